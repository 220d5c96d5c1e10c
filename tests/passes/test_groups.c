// Groups, their order and their places, on random graphs: an interpreter runs the groups as pico.h says a kernel reads and
// writes, on real arenas filled with NaN; every value it stores must be what plain evaluation gives. So a value that is
// read too late, overwritten too early, missing in a group or made again from the wrong things shows.
//
// Half of the graphs are of two ranks, run side by side: with collectives between their values, totals reduced in place
// (START in the backward segment), parameters that are updated in parts. From START to WAIT results are NaN, and operands
// must not change.
#include "random_graph.h"
#include "verify.h"
#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

Options options = { .seq = 4, .micro_batch = 2, .accum = 1, .dtype = F64 };

static double start_value(const Graph *g, Val v, int64_t i, uint32_t rank)
{
    const Node *n = &g->nodes[v];
    uint64_t x = (n->kind * 64u + n->u.id) * 1009u + (uint64_t)i + 100003u * rank;
    x *= 0x9E3779B97F4A7C15u;
    return n->kind == K_INPUT ? (double)(x >> 40 & 3) : (double)(x >> 40 & 255) / 64 - 2;
}

static void fill(void *ctx, const Graph *g, uint32_t rank, Val v, double *out, int64_t n)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++) out[i] = start_value(g, v, i, rank);
}

// ----------------------------------------------------------------------------------------------------- interpreter
typedef struct {
    Graph *g;
    uint32_t rank;
    char **arena;
    const Group *group;
    uint32_t id;           // its index + 1
    int64_t *pos;          // by axis
} Machine;

static char *address(const Machine *m, Val v, int64_t at)
{
    Place p = value_place(m->g, v);
    const Buffer *b = &m->g->buffers[p.buffer];
    uint64_t share = p.stride * mesh_index(m->g->mesh.size, m->rank, p.key.mesh);
    uint64_t end = p.offset + share + (uint64_t)(at + 1) * (uint64_t)dtype_bytes(b->dtype);
    assert_true(end <= b->bytes);
    return m->arena[b->arena] + b->offset + end - (uint64_t)dtype_bytes(b->dtype);
}

static double load(const Machine *m, Val v, int64_t at)
{
    const char *p = address(m, v, at);
    switch (m->g->nodes[v].dtype) {
    case F64: return *(const double *)(const void *)p;
    case I32: return *(const int32_t *)(const void *)p;
    case BOOL: return *p;
    default: fail(); return 0;
    }
}

static void save_value(const Machine *m, Val v, int64_t at, double x)
{
    char *p = address(m, v, at);
    if (m->g->nodes[v].dtype == F64) *(double *)(void *)p = x;
    else if (m->g->nodes[v].dtype == I32) *(int32_t *)(void *)p = (int32_t)x;
    else *p = x != 0;
}

static int64_t own_element(const Machine *m, const Node *n)
{
    int64_t at = 0;
    for (int i = 0; i < n->naxes; i++) at = at * extent_of(m->g, n->axes[i]) + m->pos[n->axes[i]];
    return at;
}

static bool is_among(const Val *vec, Val v)
{
    for (size_t i = 0; i < vec_len(vec); i++)
        if (vec[i] == v) return true;
    return false;
}

static double value_here(Machine *m, Val v);

static double map_here(Machine *m, const Node *n)
{
    double x[3];
    for (int i = 0; i < n->nin; i++) x[i] = value_here(m, n->in[i]);
    switch (n->fn) {
    case FN_ADD: return x[0] + x[1];
    case FN_SUB: return x[0] - x[1];
    case FN_MUL: return x[0] * x[1];
    case FN_TANH: return tanh(x[0]);
    case FN_NEG: return -x[0];
    case FN_LT: return x[0] < x[1];
    case FN_MAX: return isnan(x[0]) || isnan(x[1]) ? NAN : max_of(x[0], x[1]);
    case FN_WHERE: return x[0] != 0 ? x[1] : x[2];
    default: fail(); return 0;
    }
}

static double view_here(Machine *m, const Node *n)
{
    int64_t at[MAX_AXES], keep[MAX_AXES];
    const View *view = n->u.view;
    bool zero = false;
    for (int i = 0; i < view->n; i++) {
        const ViewIndex *x = &view->ix[i];
        at[i] = x->offset;
        for (int t = 0; t < x->nterms; t++) at[i] += x->coef[t] * m->pos[x->axis[t]];
        at[i] /= x->div;
        if (x->mod) at[i] %= x->mod;
        zero |= at[i] < 0 || at[i] >= extent_of(m->g, x->src);
    }
    if (zero) return 0;
    for (int i = 0; i < view->n; i++) keep[i] = m->pos[view->ix[i].src], m->pos[view->ix[i].src] = at[i];
    double x = value_here(m, n->in[0]);
    for (int i = view->n; i-- > 0;) m->pos[view->ix[i].src] = keep[i];
    return x;
}

static double sum_here(Machine *m, Val v, const Node *n)
{
    assert_int_equal(m->g->group_of[v], m->id);  // nobody makes another kernel's reduction again
    double y = n->reduce == RED_SUM ? 0 : n->reduce == RED_MAX ? -INFINITY : INFINITY;
    int64_t keep[MAX_AXES];
    for (int i = 0; i < n->u.over.n; i++) keep[i] = m->pos[n->u.over.axes[i]], m->pos[n->u.over.axes[i]] = 0;
    for (int i = 0; i >= 0;) {
        double x = value_here(m, n->in[0]);
        y = n->reduce == RED_SUM ? y + x : isnan(x) || isnan(y) ? NAN : n->reduce == RED_MAX ? max_of(x, y) : min_of(x, y);
        for (i = n->u.over.n - 1; i >= 0; i--) {
            Axis a = n->u.over.axes[i];
            if (++m->pos[a] < extent_of(m->g, a)) break;
            m->pos[a] = 0;
        }
    }
    for (int i = 0; i < n->u.over.n; i++) m->pos[n->u.over.axes[i]] = keep[i];
    return y;
}

static double compute(Machine *m, Val v)
{
    Graph *g = m->g;
    const Node n = g->nodes[v];
    switch (n.kind) {
    case K_CONST: return n.u.num;
    case K_INDEX: return (double)m->pos[n.axes[0]];
    case K_MAP: return map_here(m, &n);
    case K_VIEW: return view_here(m, &n);
    case K_REDUCE: return sum_here(m, v, &n);
    case K_UPDATE: case K_ACCUMULATE: return value_here(m, n.in[0]);
    case K_GATHER: {
        double at = value_here(m, n.in[1]);
        if (at < 0 || at >= (double)extent_of(g, n.u.axis)) return 0;
        int64_t keep = m->pos[n.u.axis];
        m->pos[n.u.axis] = (int64_t)at;
        double x = value_here(m, n.in[0]);
        m->pos[n.u.axis] = keep;
        return x;
    }
    default: fail(); return 0;
    }
}

static double value_here(Machine *m, Val v)
{
    Graph *g = m->g;
    const Node *n = &g->nodes[v];
    bool loads = is_storage(n) || (g->stored[v] && g->group_of[v] != m->id);
    if (!loads) return compute(m, v);
    assert_true(is_among(m->group->reads, v));
    return load(m, v, own_element(m, n));
}

// All elements of node v at once, so that what a kernel does in place is done after it has read.
static double *all_elements(Machine *m, Val v)
{
    const Node n = m->g->nodes[v];
    int64_t count = elements(m->g, v);
    double *out = xmalloc((size_t)count * sizeof *out);
    for (int i = 0; i < n.naxes; i++) m->pos[n.axes[i]] = 0;
    for (int64_t k = 0; k < count; k++) {
        out[k] = compute(m, v);
        for (int i = n.naxes; i-- > 0;) {
            if (++m->pos[n.axes[i]] < extent_of(m->g, n.axes[i])) break;
            m->pos[n.axes[i]] = 0;
        }
    }
    return out;
}

static bool same(double a, double b) { return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= 1e-12 * (1 + fabs(a)); }

static void write_result(Machine *m, Val v, const double *x, double **expected)
{
    Graph *g = m->g;
    const Node *n = &g->nodes[v];
    Val to = n->kind == K_UPDATE ? n->in[1] : n->kind == K_ACCUMULATE ? g->accs[n->u.id].total : v;
    assert_true(is_among(m->group->writes, to));
    bool add = n->kind == K_ACCUMULATE && !accumulate_is_first(g, v);
    for (int64_t k = 0; k < elements(g, v); k++) {
        if (n->kind != K_ACCUMULATE && !same(x[k], expected[v][k])) fail_msg("%%%u [%d]: %g, not %g", v, (int)k, x[k], expected[v][k]);
        save_value(m, to, k, add ? load(m, to, k) + x[k] : x[k]);
    }
}

static void run_gemm(Machine *m, double **expected)
{
    // the product itself is test_layout's; here only what it reads is looked at
    Graph *g = m->g;
    for (int i = 0; i < 2; i++)
        for (int64_t k = 0; k < elements(g, m->group->args[i]); k++)
            if (!same(load(m, m->group->args[i], k), expected[m->group->args[i]][k])) fail_msg("operand %%%u is wrong", m->group->args[i]);
    Val v = m->group->nodes[0], last = m->group->nodes[vec_len(m->group->nodes) - 1];
    bool accumulates = g->nodes[last].kind == K_ACCUMULATE;
    write_result(m, accumulates ? last : v, expected[accumulates ? g->nodes[last].in[0] : v], expected);
}

static void run_group(Machine *m, uint32_t i, double **expected)
{
    Graph *g = m->g;
    m->group = &g->groups[i], m->id = i + 1;
    if (m->group->kind == G_GEMM) {
        run_gemm(m, expected);
        return;
    }
    double **out = xcalloc(vec_len(m->group->nodes) + 1, sizeof *out);
    for (int write = 0; write < 2; write++)
        for (size_t k = 0; k < vec_len(m->group->nodes); k++) {
            Val v = m->group->nodes[k];
            Kind kind = (Kind)g->nodes[v].kind;
            if (!g->stored[v] && kind != K_UPDATE && kind != K_ACCUMULATE) continue;
            if (!write) out[k] = all_elements(m, v);
            else write_result(m, v, out[k], expected), free(out[k]);
        }
    free(out);
}

// ------------------------------------------------------------------------------------------------------ collectives
typedef struct { double **out, **in; } Moving;  // of one rank: by part, results to come and operands as they were

static double element(Machine *m, const struct CollPart *p, const struct Coll *c, uint32_t from, uint64_t i)
{
    // element i of what this rank gets from rank `from`; parts of a flat storage may be longer than it
    uint64_t share = p->inner, k = 2, at = i;
    if (c->how == COLL_REDUCE_SCATTER) at = (i / share * k + m[0].rank) * share + i % share;
    Machine *other = m - m[0].rank + from;
    return (int64_t)at < elements(m->g, p->in) ? load(other, p->in, (int64_t)at) : 0;
}

static double result_of(Machine *m, const struct CollPart *p, const struct Coll *c, uint64_t i)
{
    if (c->how == COLL_ALL_GATHER) return element(m, p, c, (uint32_t)(i / p->inner % 2), i / p->inner / 2 * p->inner + i % p->inner);
    double a = element(m, p, c, 0, i), b = element(m, p, c, 1, i);
    return c->reduce == REDUCE_SUM ? a + b : c->reduce == REDUCE_MAX ? max_of(a, b) : min_of(a, b);
}

static uint64_t result_elements(const struct CollPart *p, const struct Coll *c)
{
    return p->outer * p->inner * (c->how == COLL_ALL_GATHER ? 2 : 1);
}

static bool in_one_place(const Machine *m, const struct CollPart *p) { return address(m, p->in, 0) == address(m, p->out, 0); }

static void start_collective(Machine *m, uint32_t ranks, const Group *group, Moving *moving)
{
    const struct Coll *c = &m->g->colls[group->coll];
    for (uint32_t r = 0; r < ranks; r++)
        for (size_t k = 0; k < vec_len(c->parts); k++) {
            const struct CollPart *p = &c->parts[k];
            uint64_t n = result_elements(p, c), operand = (uint64_t)elements(m->g, p->in);
            double *out = xcalloc(n, sizeof *out), *in = xcalloc(operand, sizeof *in);
            for (uint64_t i = 0; i < n; i++) out[i] = result_of(&m[r], p, c, i);
            for (uint64_t i = 0; i < operand; i++) in[i] = load(&m[r], p->in, (int64_t)i);
            vec_push(moving[r].out, out);
            vec_push(moving[r].in, in);
        }
    for (uint32_t r = 0; r < ranks; r++)
        for (size_t k = 0; k < vec_len(c->parts); k++)
            for (uint64_t i = 0; i < result_elements(&c->parts[k], c); i++) save_value(&m[r], c->parts[k].out, (int64_t)i, NAN);
}

static void end_collective(Machine *m, const Group *group, Moving *moving, double **expected)
{
    const struct Coll *c = &m->g->colls[group->coll];
    for (size_t k = 0; k < vec_len(c->parts); k++) {
        const struct CollPart *p = &c->parts[k];
        bool kept = m->g->nodes[p->in].kind != K_UPDATE && m->g->nodes[p->in].kind != K_TOTAL && !in_one_place(m, p);
        for (int64_t i = 0; kept && i < elements(m->g, p->in); i++)
            if (!same(load(m, p->in, i), moving->in[k][i])) fail_msg("operand %%%u changes under way", p->in);
        for (int64_t i = 0; i < (int64_t)result_elements(p, c); i++) {
            if (!same(moving->out[k][i], expected[p->out][i]))
                fail_msg("%%%u [%d]: %g, not %g", p->out, (int)i, moving->out[k][i], expected[p->out][i]);
            save_value(m, p->out, i, moving->out[k][i]);
        }
        free(moving->out[k]), free(moving->in[k]);
    }
    vec_free(moving->out), vec_free(moving->in);
}

static void run_groups(Machine *m, uint32_t ranks, double ***expected)
{
    const Graph *g = m->g;
    Moving *moving = xcalloc(ranks * vec_len(g->colls) + 1, sizeof *moving);
    for (uint32_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        Moving *own = &moving[ranks * group->coll];
        if (group->kind == G_START) start_collective(m, ranks, group, own);
        for (uint32_t r = 0; r < ranks; r++) {
            if (group->kind == G_WAIT) end_collective(&m[r], group, &own[r], expected[r]);
            else if (group->kind != G_START) run_group(&m[r], i, expected[r]);
        }
    }
    free(moving);
}

static Machine machine_new(Graph *g, uint32_t rank)
{
    Machine m = { .g = g, .rank = rank };
    for (size_t a = 0; a < vec_len(g->arenas); a++) {
        vec_push(m.arena, xmalloc(g->arenas[a].bytes + 64));
        memset(m.arena[a], 0xff, g->arenas[a].bytes + 64);
    }
    m.pos = xcalloc(vec_len(g->axes), sizeof *m.pos);
    for (size_t i = 0; i < vec_len(g->buffers); i++) {
        Val v = g->buffers[i].val;
        Kind kind = (Kind)g->nodes[v].kind;
        if (kind != K_PARAM && kind != K_STATE && kind != K_INPUT) continue;
        memset(m.arena[ARENA_PERSIST] + g->buffers[i].offset, 0, g->buffers[i].bytes);
        for (int64_t k = 0; k < elements(g, v); k++) save_value(&m, v, k, start_value(g, v, k, rank));
    }
    return m;
}

static void check_results(const Machine *m, double **expected)
{
    Graph *g = m->g;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        Val at = g->nodes[v].kind == K_UPDATE ? g->nodes[v].in[1] : g->nodes[v].kind == K_TOTAL ? v : 0;
        if (g->mesh.size[MESH_AT_GROUP] > 1 && g->nodes[v].kind == K_TOTAL) continue;  // reduced in place
        for (int64_t k = 0; at && k < elements(g, v); k++)
            if (!same(load(m, at, k), expected[v][k])) fail_msg("%%%u [%d]: %g, not %g", v, (int)k, load(m, at, k), expected[v][k]);
    }
}

// The parameter that was updated in parts is whole again, on every rank.
static void check_joined(const Machine *m, uint32_t ranks, double ***expected)
{
    Graph *g = m->g;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *n = &g->nodes[v];
        if (n->kind != K_UPDATE || g->nodes[n->in[1]].kind != K_SLICE) continue;
        Val param = g->nodes[n->in[1]].in[0];
        for (int64_t i = 0; i < elements(g, param); i++)
            for (uint32_t r = 0; r < ranks; r++) {
                double want = expected[i / elements(g, v)][v][i % elements(g, v)];
                if (!same(load(&m[r], param, i), want)) fail_msg("%%%u [%d]: %g, not %g", param, (int)i, load(&m[r], param, i), want);
            }
    }
}

static void check_shapes(const Graph *g)
{
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        for (size_t k = 0; k < vec_len(group->nodes) && group->kind <= G_COL; k++) {
            const Node *n = &g->nodes[group->nodes[k]];
            if (group->kind == G_ROW) assert_true(n->naxes == group->ndom || n->naxes == group->nouter);
            else assert_true(n->naxes == group->ndom || n->naxes == group->ndom - group->nred);
            for (int a = 0; a < n->naxes; a++) {
                int at = 0;
                while (at < group->ndom && group->dom[at] != n->axes[a]) at++;
                assert_true(at < group->ndom && (n->naxes == group->ndom || group->kind == G_COL || at < group->nouter));
            }
        }
    }
}

static void free_results(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        Group *group = &g->groups[i];
        vec_free(group->nodes), vec_free(group->reads), vec_free(group->reads_far), vec_free(group->writes);
        vec_free(group->args), vec_free(group->arg_offsets), vec_free(group->arg_written);
    }
    for (size_t i = 0; i < vec_len(g->colls); i++) vec_free(g->colls[i].parts);
    vec_free(g->colls), vec_free(g->arenas);
    vec_free(g->groups), vec_free(g->group_of), vec_free(g->stored), vec_free(g->buffer_of), vec_free(g->buffers);
    graph_free(g);
}

static size_t run_random(int seed, bool no_fuse, uint32_t ranks)
{
    random_state = (uint64_t)seed;
    options.no_fuse = no_fuse;
    Graph *g = random_graph(ranks);
    select_nodes(g);
    verify_select(g);
    fuse(g);
    verify_fuse(g);
    check_shapes(g);
    order(g);
    verify_order(g);
    place(g, NULL);
    verify_place(g);
    double ***expected = eval_ranks(g, ranks, fill, NULL);
    Machine m[2];
    for (uint32_t r = 0; r < ranks; r++) m[r] = machine_new(g, r);
    run_groups(m, ranks, expected);
    check_joined(m, ranks, expected);
    for (uint32_t r = 0; r < ranks; r++) {
        check_results(&m[r], expected[r]);
        eval_free(g, expected[r]);
        for (size_t a = 0; a < vec_len(m[r].arena); a++) free(m[r].arena[a]);
        vec_free(m[r].arena);
        free(m[r].pos);
    }
    free(expected);
    size_t groups = vec_len(g->groups);
    free_results(g);
    return groups;
}

static void test_random_graphs(void **state)
{
    (void)state;
    size_t fused = 0, alone = 0;
    for (int i = 0; i < 1500; i++) {
        fused += run_random(i, false, 1 + (uint32_t)i % 2);
        alone += run_random(i, true, 1 + (uint32_t)i % 2);
    }
    assert_true(fused < alone * 3 / 4);
}

// Two runs give the same groups in the same places.
static void test_repeatable(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) assert_int_equal(run_random(i, false, 1), run_random(i, false, 1));
}

int main(int argc, char **argv)
{
    if (argc > 1) return run_random(atoi(argv[1]), argc > 2, 1 + (uint32_t)atoi(argv[1]) % 2), 0;  // one seed, for the debugger
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_repeatable) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
