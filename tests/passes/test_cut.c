// test_cut.c: stages, buckets, flat parts and segments change no number. Models are evaluated in double on one rank, then on all
// ranks of many layouts after passes cut, bucket and save: outputs, new parameters and states must be the same on every rank
// that has them. Further: every layer and parameter has its stage, what is sent is received, collectives are as many as they
// should be, and each one that is left out (--drop) is noticed.
//
// A description can be run once in a process, so each case is a child. Numbers of one rank come through shared memory.
#include "eval_stages.h"
#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

Options options;
enum { MAX_PARAMS = 256, PER_PARAM = 1 << 12, MAX_OUT = 8, COPIES = 4 };
static struct {
    int failed, cases, dropped, left;
    int64_t nparams, noutputs;
    double outputs[MAX_OUT], x[MAX_PARAMS][COPIES][PER_PARAM];  // new parameter, new states
} *want;

typedef struct {
    const char *model, *layers;  // number of layers as a define
    const char *extra;
    int pp, virtual_chunks, tp, dp, zero;
    PlanScheduleKind schedule;
    Recompute recompute;
    const char *stages;
    double clip;
    int64_t drop;
} Case;

// ----------------------------------------------------------------------------------------------------------------- leaves
static double noise(uint64_t x)
{
    x = (x + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 31) * 0xD6E8FEB86659FD93u;
    return (double)((x ^ x >> 32) >> 12) / (double)(1ull << 52);
}

static const Case *running;
static void leaf_of_rank(void *ctx, const Graph *g, uint32_t rank, Val v, double *out, int64_t n)
{
    (void)ctx;
    const Node *x = &g->nodes[v];
    int p = x->kind == K_PARAM ? (int)x->u.id : x->kind == K_STATE ? g->states[x->u.id].param : -1;
    uint64_t kind = x->kind == K_STATE ? 7 + (uint64_t)g->states[x->u.id].name[strlen(g->states[x->u.id].name) - 1] : 0;
    uint32_t dp = mesh_coord(g->mesh.size, rank, MESH_AT_DP);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = p < 0 ? 0 : element_in_whole(g, rank, p, x, i);
        uint64_t seed = p < 0 ? 0 : ((uint64_t)g->params[p].number * 977 + kind) << 32;
        if (x->kind == K_PARAM) out[i] = at < 0 ? 0 : noise(seed + (uint64_t)at) - 0.4;
        else if (x->kind == K_STATE) out[i] = at < 0 ? 0 : 0.01 * noise(seed + (uint64_t)at);
        else if (x->kind == K_INPUT) {
            uint64_t token = dp * (uint64_t)(g->micro_batch * g->seq) + (uint64_t)i + g->inputs[x->u.id].shift;
            out[i] = g->inputs[x->u.id].shift && token % 5 == 0 ? g->inputs[x->u.id].ignore : floor(noise(token) * (double)g->inputs[x->u.id].limit);
        } else if (x->u.id >= SLOT_COORD && x->u.id < SLOT_NAMED) out[i] = mesh_coord(g->mesh.size, rank, (MeshFactor)(x->u.id - SLOT_COORD));
        else out[i] = x->u.id == SLOT_STEP ? 3 : 0.1;
    }
    for (size_t i = 0; i < vec_len(g->scalars); i++)
        if (x->kind == K_SCALAR && g->scalars[i].slot == x->u.id && !strcmp(g->scalars[i].name, "clip")) out[0] = running->clip;
}

// --------------------------------------------------------------------------------------------------------------- comparing
static void fail(const Case *c, const char *fmt, ...)
{
    if (c->drop > 0) exit(1);  // as it should
    want->failed++;
    printf("FAILED: %s layers %s pp %d x %d tp %d dp %d zero %d schedule %d recompute %d: ", base_name(c->model), c->layers, c->pp,
           c->virtual_chunks, c->tp, c->dp, c->zero, c->schedule, c->recompute);
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    exit(1);
}

static int copy_index(const Graph *g, const Node *target, int *param)
{
    if (target->kind == K_PARAM) return *param = (int)target->u.id, 0;
    *param = g->states[target->u.id].param;
    int k = 1;
    for (uint32_t i = 0; i < target->u.id; i++) k += g->states[i].param == *param;
    return k;
}

static void compare_update(const Case *c, const Stages *s, const Graph *g, uint32_t rank, Val v, bool reference)
{
    const Node *n = &g->nodes[v];
    Val target = n->in[1];
    const Link *links = s->links[g->stage];
    bool part = false, gathered = false;
    for (size_t i = 0; i < vec_len(links); i++) {
        if (links[i].leaf == n->in[1]) target = links[i].operand, part = true;
        gathered |= links[i].kind == K_RESHARD && links[i].operand == v;
    }
    if (part != gathered) fail(c, "value %u is a part that is not gathered", v);
    int param, copy = copy_index(g, &g->nodes[target], &param);
    double *w = want->x[g->params[param].number][copy];
    for (int64_t i = 0; i < elements(g, v); i++) {
        int64_t at = element_in_whole(g, rank, param, n, i);
        double have = s->values[rank][v][i];
        if (at >= PER_PARAM) fatal("the test's models are too large");
        if (reference) w[at] = have;
        else if (at < 0 && have != 0) fail(c, "padding of %s is %g", g->params[param].name, have);
        else if (at >= 0 && !(fabs(have - w[at]) <= 1e-11 * fmax(1, fabs(w[at]))))
            fail(c, "%s copy %d element %lld on rank %u is %.15g, not %.15g", g->params[param].name, copy, (long long)at, rank, have, w[at]);
    }
}

static void compare(const Case *c, Program *prog, bool reference)
{
    Stages s = eval_stages(prog, leaf_of_rank, NULL);
    for (uint32_t r = 0; r < s.ranks; r++) {
        const Graph *g = prog->stages[stage_of_rank(prog->stages[0], r)];
        for (size_t i = 0; i < vec_len(g->outputs); i++) {
            double have = s.values[r][g->outputs[i].val][0];
            if (reference) want->outputs[i] = have;
            else if (!(fabs(have - want->outputs[i]) <= 1e-11 * fabs(want->outputs[i])))
                fail(c, "%s on rank %u is %.15g, not %.15g", g->outputs[i].name, r, have, want->outputs[i]);
        }
        for (Val v = 1; v < vec_len(g->nodes); v++)
            if (g->nodes[v].kind == K_UPDATE) compare_update(c, &s, g, r, v, reference);
    }
    eval_stages_free(&s);
}

// --------------------------------------------------------------------------------------------------------------- structure
static void check_layers(const Case *c, const Program *prog)
{
    const Graph *first = prog->stages[0];
    for (int layer = 0; layer < first->nlayers; layer++) {
        int stages = 0;
        for (int s = 0; s < prog->nstages; s++) {
            bool here = false;
            const Graph *g = prog->stages[s];
            for (Val v = 1; v < vec_len(g->nodes); v++) here |= g->nodes[v].kind == K_CONTRACT && g->nodes[v].layer == layer;
            stages += here;
        }
        if (stages != 1) fail(c, "layer %d is on %d stages", layer, stages);
    }
    int owners[MAX_PARAMS] = {0};
    for (int s = 0; s < prog->nstages; s++)
        for (size_t p = 0; p < vec_len(prog->stages[s]->params); p++) owners[prog->stages[s]->params[p].number] += prog->stages[s]->params[p].owner;
    for (int64_t p = 0; p < want->nparams; p++)
        if (owners[p] != 1) fail(c, "parameter %d has %d owners", (int)p, owners[p]);
}

static void check_transfers(const Case *c, const Program *prog)
{
    int balance[1024] = {0};
    for (int s = 0; s < prog->nstages; s++) {
        const Graph *g = prog->stages[s];
        for (size_t i = 0; i < vec_len(g->transfers); i++) {
            const Transfer *t = &g->transfers[i];
            int me = t->chunk * prog->nstages + s, step = (t->send ? 1 : -1) * (t->backward ? -1 : 1);
            if (t->tag >= 1024 || (me + step + prog->nstages) % prog->nstages != (int)t->peer) fail(c, "transfer %u goes the wrong way", t->tag);
            balance[t->tag] += t->send ? 1 : 1000;
        }
    }
    for (int i = 0; i < 1024; i++)
        if (balance[i] && balance[i] != 1001) fail(c, "tag %d has no two ends", i);
}

static void check_segments(const Case *c, Graph *g)
{
    for (Val v = 1; v < vec_len(g->nodes); v++)
        for (int i = 0; i < g->nodes[v].nin; i++) {
            const Node *x = &g->nodes[v], *y = &g->nodes[x->in[i]];
            SegmentId to = seg_id(x->seg), from = seg_id(y->seg);
            bool moving = y->nin && from >= SEG_F && from <= SEG_W;
            if (from > to) fail(c, "value %u reads a later segment", v);
            if (moving && (to == SEG_UPDATE || x->chunk != y->chunk)) fail(c, "value %u reads another chunk", v);
            if (moving && from != to && !g->saved[x->in[i]]) fail(c, "value %u is not saved", x->in[i]);
        }
}

static int reshards(const Program *prog, SegmentId seg, PlanCollKind how)
{
    int n = 0;
    for (int s = 0; s < prog->nstages; s++)
        for (Val v = 1; v < vec_len(prog->stages[s]->nodes); v++) {
            const Node *x = &prog->stages[s]->nodes[v];
            n += x->kind == K_RESHARD && seg_id(x->seg) == seg && x->u.reshard->how == how;
        }
    return n;
}

// What design and tests count: L layers, tp with sequence parallelism, one micro-batch. The head's forward runs in B, and what
// it gathers is not gathered again.
static void check_counts(const Case *c, const Program *prog)
{
    int L = prog->stages[0]->nlayers, w = c->schedule == SCHEDULE_ZB;
    if (c->tp == 1 || c->recompute || strcmp(base_name(c->model), "llama.lua")) return;
    int rs = reshards(prog, SEG_F, COLL_REDUCE_SCATTER), ag = reshards(prog, SEG_F, COLL_ALL_GATHER);
    if (rs != 2 * L + 1 || ag != 2 * L) fail(c, "F has %d reduce-scatters, %d all-gathers", rs, ag);
    rs = reshards(prog, SEG_B, COLL_REDUCE_SCATTER), ag = reshards(prog, SEG_B, COLL_ALL_GATHER);
    if (rs != 2 * L + 1 || ag != 2 * L + 2 + (w ? 0 : 2 * L)) fail(c, "B has %d reduce-scatters, %d all-gathers", rs, ag);
    ag = reshards(prog, SEG_W, COLL_ALL_GATHER);
    if (ag != (w ? 2 * L : 0)) fail(c, "W has %d all-gathers", ag);
}

// ------------------------------------------------------------------------------------------------------------------- cases
static Program *compile(const Case *c, bool reference)
{
    static const char *const llama[] = {"vocab_size=12", "hidden_size=8", "intermediate_size=12", "num_attention_heads=4", "num_key_value_heads=2"};
    static const char *const gpt2[] = {"vocab_size=12", "n_embd=8", "n_head=2", "n_positions=16"};
    bool is_llama = !strcmp(base_name(c->model), "llama.lua"), is_gpt2 = !strcmp(base_name(c->model), "gpt2.lua");
    int64_t batch = 4;
    options = (Options){.model_path = c->model, .seq = 4, .accum = 1, .dtype = F64, .pp = c->pp, .tp = c->tp, .dp = c->dp,
                        .virtual_chunks = c->virtual_chunks, .zero = c->zero, .drop = c->drop, .bucket_mb = 0.002, .sp = -1,
                        .schedule = c->schedule, .recompute = c->recompute, .stages = c->stages};
    if (reference) options.pp = options.tp = options.dp = options.virtual_chunks = 1, options.zero = 0;
    options.micro_batch = batch / options.dp;
    for (size_t i = 0; i < countof(llama) && is_llama; i++) vec_push(options.defines, llama[i]);
    for (size_t i = 0; i < countof(gpt2) && is_gpt2; i++) vec_push(options.defines, gpt2[i]);
    vec_push(options.defines, arena_printf(&(Arena){0}, "%s=%s", is_llama ? "num_hidden_layers" : is_gpt2 ? "n_layer" : "layers", c->layers));
    if (c->extra) vec_push(options.defines, c->extra);
    Graph *g = graph_new();
    g->dtype = F64, g->seq = options.seq, g->micro_batch = options.micro_batch, g->accum = 1;
    front(g);
    grad(g);
    for (size_t p = 0; p < vec_len(g->params); p++) g->params[p].number = (uint32_t)p;
    if (reference) {
        Program *prog = xcalloc(1, sizeof *prog);
        *prog = (Program){.nstages = 1, .stages = xcalloc(1, sizeof(Graph *))};
        prog->stages[0] = g;
        want->nparams = (int64_t)vec_len(g->params), want->noutputs = (int64_t)vec_len(g->outputs);
        return prog;
    }
    shard(g);
    return cut(g);
}

static void run(const Case *c, bool reference)
{
    running = c;
    Program *prog = compile(c, reference);
    if (!reference) {
        for (int s = 0; s < prog->nstages; s++) {
            graph_verify(prog->stages[s], "cut");
            bucket(prog->stages[s]);
            graph_verify(prog->stages[s], "bucket");
            save(prog->stages[s]);
            graph_verify(prog->stages[s], "save");
            check_segments(c, prog->stages[s]);
        }
        if (prog->nstages != c->pp) fail(c, "%d stages", prog->nstages);
        check_layers(c, prog);
        check_transfers(c, prog);
        if (c->drop <= 0) check_counts(c, prog);
    }
    compare(c, prog, reference);
}

static int child(const Case *c, bool reference)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (c->drop > 0 && !freopen("/dev/null", "w", stderr)) exit(3);
        run(c, reference);
        exit(0);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) fatal("fork:");
    return status;
}

static void check(Case c)
{
    c.drop = DROP_NONE;
    c.clip = 0.5;
    if (!c.virtual_chunks) c.virtual_chunks = 1;
    if (child(&c, true)) fatal("%s does not run on one rank", c.model);
    want->cases++;
    if (child(&c, false)) want->failed = max_of(want->failed, 1), printf("FAILED: pp %d tp %d dp %d zero %d\n", c.pp, c.tp, c.dp, c.zero);
}

// How many things the layout needs.
static int64_t count_required(Case c)
{
    int ends[2];
    c.drop = DROP_LIST;
    fflush(NULL);
    if (pipe(ends)) fatal("pipe:");
    pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        close(ends[0]), close(ends[1]);
        Program *prog = compile(&c, false);
        for (int s = 0; s < prog->nstages; s++) bucket(prog->stages[s]);
        exit(0);
    }
    close(ends[1]);
    FILE *f = fdopen(ends[0], "r");
    int64_t lines = 0;
    for (int ch = 0; f && (ch = getc(f)) != EOF;) lines += ch == '\n';
    if (!f || waitpid(pid, NULL, 0) != pid) fatal("fork:");
    fclose(f);
    return lines;
}

// Leaves out each needed thing in turn: the numbers must change.
static void check_drops(Case c)
{
    c.clip = 0.5;
    c.drop = DROP_NONE;
    if (child(&c, true)) fatal("%s does not run on one rank", c.model);
    int64_t n = count_required(c);
    for (c.drop = 1; c.drop <= n; c.drop++) {
        want->dropped++;
        if (!child(&c, false)) want->left++, want->failed++, printf("FAILED: not noticed: --drop %lld\n", (long long)c.drop);
    }
}

#define LLAMA "graphs/llama.lua"
#define GPT2 "graphs/gpt2.lua"
#define HARD "tests/passes/stages.lua"
#define UNTIED "tie_word_embeddings=false"

int main(void)
{
    want = mmap(NULL, sizeof *want, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (want == MAP_FAILED) fatal("mmap:");
    check((Case){LLAMA, "5", .pp = 2, .tp = 1, .dp = 1, .schedule = SCHEDULE_1F1B});
    check((Case){LLAMA, "7", .pp = 3, .tp = 1, .dp = 1, .schedule = SCHEDULE_1F1B});
    check((Case){LLAMA, "4", .pp = 2, .tp = 1, .dp = 1, .schedule = SCHEDULE_1F1B, .stages = "3,1"});
    check((Case){LLAMA, "4", .pp = 2, .tp = 2, .dp = 1, .schedule = SCHEDULE_1F1B});
    check((Case){LLAMA, "4", .pp = 2, .tp = 2, .dp = 1, .schedule = SCHEDULE_ZB});
    check((Case){LLAMA, "2", .pp = 1, .tp = 2, .dp = 1, .schedule = SCHEDULE_ZB, .recompute = RECOMPUTE_ATTENTION});
    check((Case){LLAMA, "3", .pp = 2, .tp = 2, .dp = 1, .schedule = SCHEDULE_ZB, .recompute = RECOMPUTE_FULL});
    check((Case){LLAMA, "5", .pp = 2, .virtual_chunks = 2, .tp = 1, .dp = 2, .schedule = SCHEDULE_INTERLEAVED});
    check((Case){GPT2, "3", .pp = 3, .tp = 1, .dp = 1, .schedule = SCHEDULE_1F1B});
    check((Case){GPT2, "3", UNTIED, .pp = 2, .tp = 1, .dp = 1, .schedule = SCHEDULE_AFAB});
    check((Case){GPT2, "4", .pp = 2, .virtual_chunks = 2, .tp = 2, .dp = 1, .schedule = SCHEDULE_INTERLEAVED});
    check((Case){HARD, "4", .pp = 4, .tp = 1, .dp = 2, .schedule = SCHEDULE_ZB});
    check((Case){HARD, "5", .pp = 2, .virtual_chunks = 2, .tp = 2, .dp = 1, .schedule = SCHEDULE_INTERLEAVED});
    check((Case){HARD, "3", .pp = 3, .tp = 1, .dp = 1, .schedule = SCHEDULE_1F1B, .recompute = RECOMPUTE_FULL});
    for (int zero = 0; zero < 2; zero++) {
        check((Case){LLAMA, "2", .pp = 1, .tp = 1, .dp = 2, .zero = zero, .schedule = SCHEDULE_1F1B});
        check((Case){LLAMA, "2", .pp = 2, .tp = 2, .dp = 2, .zero = zero, .schedule = SCHEDULE_ZB});
        check((Case){GPT2, "3", .pp = 2, .tp = 1, .dp = 2, .zero = zero, .schedule = SCHEDULE_1F1B});
        check((Case){GPT2, "2", .pp = 2, .tp = 2, .dp = 2, .zero = zero, .schedule = SCHEDULE_1F1B});
    }
    check_drops((Case){GPT2, "2", .pp = 2, .virtual_chunks = 1, .tp = 1, .dp = 2, .zero = 1, .schedule = SCHEDULE_1F1B});
    printf("%d layouts, %d left out, %d not noticed, %d failed\n", want->cases, want->dropped, want->left, want->failed);
    return want->failed != 0;
}
