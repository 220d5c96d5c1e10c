// test_shard.c: pass shard changes no number. Every model of tests/ops/library, and the shipped ones, is evaluated in double
// before the pass, and on all ranks of a mesh after it, for many axis maps (any axis may go to tp; so may several), with and
// without sequence parallelism, and with vocabularies that do not divide: outputs, every gradient and every updated parameter
// and state must be the same, and whole values the same on all ranks.
//
// A description can be run once in a process, so each case is a child.
#include "library.h"
#include <dirent.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct { int cases, split, failed, reshards; } *shared;

typedef struct {
    const char *path;
    int64_t tp;
    int sp;
    uint32_t seed;       // which axes are split; 0: the standing map
} Case;

// What the unsharded graph gives: by parameter its gradient and new value, by state the new value; outputs.
typedef struct { double *x; int64_t n; } Array;
typedef struct { Array *grads, *params, *states; double *outputs; int64_t *extents; } Expected;

static Array copy_of(const double *x, int64_t n)
{
    Array a = {xmalloc((size_t)n * sizeof *x + 1), n};
    memcpy(a.x, x, (size_t)n * sizeof *x);
    return a;
}

static Val update_of(const Graph *g, Val target)
{
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->nodes[v].kind == K_UPDATE && g->nodes[v].in[1] == target) return v;
    return 0;
}

static Expected evaluate(Library *l)
{
    Graph *g = l->g;
    Expected e = {0};
    double **values = eval_graph(g, false, library_leaf, l);
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Param *p = &g->params[i];
        Val update = update_of(g, p->val);
        vec_push(e.grads, p->acc < 0 ? (Array){0} : copy_of(values[g->accs[p->acc].total], elements(g, p->val)));
        vec_push(e.params, update ? copy_of(values[update], elements(g, p->val)) : (Array){0});
    }
    for (size_t i = 0; i < vec_len(g->states); i++) {
        Val update = update_of(g, g->states[i].val);
        vec_push(e.states, update ? copy_of(values[update], elements(g, g->states[i].val)) : (Array){0});
    }
    for (size_t i = 0; i < vec_len(g->outputs); i++) vec_push(e.outputs, values[g->outputs[i].val][0]);
    eval_free(g, values);
    return e;
}

// ------------------------------------------------------------------------------------------------------------- ranks
// Element i of a rank's part of a parameter in the whole, -1: padding.
static int64_t in_whole(const Graph *g, uint32_t rank, size_t param, int64_t i)
{
    const struct ParamAxes *axes = &g->param_axes[param];
    const Node *n = &g->nodes[g->params[param].val];
    int64_t at = 0, stride = 1;
    for (int k = n->naxes; k-- > 0;) {
        const PlanParamAxis *a = &axes->axis[k];
        int64_t local = (int64_t)a->local, extent = (int64_t)a->extent;
        int64_t position = i % local + local * mesh_index(g->mesh.size, rank, a->mesh);
        if (position >= extent) return -1;
        at += position * stride, stride *= extent, i /= local;
    }
    return at;
}

static void fill_part(const Graph *g, uint32_t rank, size_t param, const double *whole, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = in_whole(g, rank, param, i);
        out[i] = at < 0 ? 0 : whole[at];
    }
}

static void leaf_of_rank(void *ctx, const Graph *g, uint32_t rank, Val v, double *out, int64_t n)
{
    Library *l = ctx;
    const Node *node = &g->nodes[v];
    if (node->kind == K_PARAM) fill_part(g, rank, node->u.id, l->params[node->u.id], out, n);
    else if (node->kind == K_STATE) fill_part(g, rank, (size_t)g->states[node->u.id].param, l->states[node->u.id], out, n);
    else if (node->kind == K_SCALAR && node->u.id >= SLOT_COORD && node->u.id < SLOT_NAMED)
        out[0] = mesh_coord(g->mesh.size, rank, (MeshFactor)(node->u.id - SLOT_COORD));
    else library_leaf(l, g, v, out, n);
}

static double worst;
static void compare(const Case *c, uint32_t rank, const char *what, const char *name, double have, double want, double size)
{
    double off = fabs(have - want) / fmax(size, 1e-3);
    if (isnan(want) && isnan(have)) return;
    if (off <= 1e-10) return;
    if (!(off <= worst)) {
        printf("FAILED: %s tp %lld sp %d seed %u: %s of %s on rank %u: %.15g, not %.15g\n", c->path, (long long)c->tp, c->sp,
               c->seed, what, name, rank, have, want);
        worst = isnan(off) ? INFINITY : off;
        shared->failed++;
    }
}

static double size_of(Array a)
{
    double most = 0;
    for (int64_t i = 0; i < a.n; i++) most = fmax(most, fabs(a.x[i]));
    return most;
}

static void compare_part(const Case *c, const Graph *g, uint32_t rank, size_t param, const char *what, const double *have,
                         int64_t n, Array want)
{
    double size = size_of(want);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = in_whole(g, rank, param, i);
        compare(c, rank, what, g->params[param].name, have[i], at < 0 ? 0 : want.x[at], size);
    }
}

static void compare_rank(const Case *c, Graph *g, uint32_t rank, double **values, const Expected *e)
{
    for (size_t i = 0; i < vec_len(g->outputs); i++)
        compare(c, rank, "output", g->outputs[i].name, values[g->outputs[i].val][0], e->outputs[i], fabs(e->outputs[i]));
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Param *p = &g->params[i];
        Val update = update_of(g, p->val);
        if (p->acc >= 0) compare_part(c, g, rank, i, "gradient", values[g->accs[p->acc].total], elements(g, p->val), e->grads[i]);
        if (update) compare_part(c, g, rank, i, "new value", values[update], elements(g, p->val), e->params[i]);
    }
    for (size_t i = 0; i < vec_len(g->states); i++) {
        Val update = update_of(g, g->states[i].val);
        if (update)
            compare_part(c, g, rank, (size_t)g->states[i].param, g->states[i].name, values[update],
                         elements(g, g->states[i].val), e->states[i]);
    }
}

// ------------------------------------------------------------------------------------------------------------- cases
// Any axis of a parameter whose extent divides may be split.
static void choose_axes(Graph *g, const Case *c)
{
    uint32_t x = c->seed * 2654435761u;
    for (size_t i = 0; i < vec_len(g->params) && c->seed; i++) {
        const Node *n = &g->nodes[g->params[i].val];
        for (int k = 0; k < n->naxes; k++) {
            const char *name = axis_name(g, n->axes[k]);
            bool divides = extent_of(g, n->axes[k]) % c->tp == 0 || !strcmp(name, "vocab");
            if (!strcmp(name, "seq") || !strcmp(name, "batch")) continue;
            if (c->tp == 4 && (!strcmp(name, "kv") || !strcmp(name, "group"))) continue;  // two factors
            x = x * 1664525u + 1013904223u;
            graph_map_axis(g, name, divides && x >> 30 != 0 ? MESH_TP : 0);
        }
    }
}

static bool splits_any(const Graph *g, int64_t tp)
{
    bool any = false;
    for (size_t i = 0; i < vec_len(g->params); i++)
        for (int k = 0; k < g->nodes[g->params[i].val].naxes; k++)
            for (size_t m = 0; m < vec_len(g->maps); m++) {
                Axis a = g->nodes[g->params[i].val].axes[k];
                if (g->maps[m].axis != axis_name(g, a) || !(g->maps[m].mesh & MESH_TP)) continue;
                bool factor = tp == 4 && (!strcmp(axis_name(g, a), "kv") || !strcmp(axis_name(g, a), "group"));
                if (extent_of(g, a) % (factor ? 2 : tp) && strcmp(axis_name(g, a), "vocab")) return false;
                any = true;
            }
    return any;
}

static void run_case(const Case *c)
{
    library_seq = 6;
    Library l = library_open(c->path, F64);
    grad(l.g);
    library_random_states(&l);
    Expected e = evaluate(&l);
    options.tp = c->tp;
    options.sp = c->sp && l.g->seq % c->tp == 0;
    choose_axes(l.g, c);
    shared->cases++;
    if (!splits_any(l.g, c->tp)) return;
    shared->split++;
    shard(l.g);
    graph_verify(l.g, "shard");
    for (Val v = 1; v < vec_len(l.g->nodes); v++) shared->reshards += l.g->nodes[v].kind == K_RESHARD;
    double ***values = eval_ranks(l.g, (uint32_t)c->tp, leaf_of_rank, &l);
    for (uint32_t rank = 0; rank < (uint32_t)c->tp; rank++) compare_rank(c, l.g, rank, values[rank], &e);
}

static void run_child(Case c)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run_case(&c);
        fflush(NULL);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status)) {
        printf("FAILED: %s tp %lld sp %d seed %u ends with status %d\n", c.path, (long long)c.tp, c.sp, c.seed, status);
        shared->failed++;
    }
}

int main(int argc, char **argv)
{
    program_name = "test_shard";
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint32_t most = argc > 2 ? (uint32_t)atoi(argv[2]) : 4;
    struct dirent **files;
    int n = scandir("tests/ops/library", &files, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        Buf path = {0};
        buf_printf(&path, "tests/ops/library/%s", files[i]->d_name);
        const char *end = strrchr(files[i]->d_name, '.');
        if (!end || strcmp(end, ".lua") || (argc > 1 && !strstr(files[i]->d_name, argv[1]))) continue;
        uint32_t seeds = strncmp(files[i]->d_name, "wide", 4) ? most : 0;  // (too much to evaluate so often)
        for (uint32_t seed = 0; seed < seeds; seed++)
            for (int tp = 2; tp <= 4; tp++)
                for (int sp = 0; sp < 2; sp++) run_child((Case){path.s, tp, sp, seed});
        buf_free(&path);
    }
    printf("%d cases, %d with something split, %d reshards, %d failed\n", shared->cases, shared->split, shared->reshards,
           shared->failed);
    return shared->failed || shared->split < 50;
}
