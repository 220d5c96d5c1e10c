// Groups, their order and their places, on random graphs: an interpreter runs the groups as pico.h says a kernel reads and
// writes, on real arenas filled with NaN; every value it stores must be what plain evaluation gives. So a value that is
// read too late, overwritten too early, missing in a group or made again from the wrong things shows.
#include "eval.h"
#include "verify.h"
#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

Options options = { .seq = 4, .micro_batch = 2, .accum = 1, .dtype = F64 };

static uint64_t random_state;
static int dice(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

static double start_value(const Graph *g, Val v, int64_t i)
{
    const Node *n = &g->nodes[v];
    uint64_t x = (n->kind * 64u + n->u.id) * 1009u + (uint64_t)i;
    x *= 0x9E3779B97F4A7C15u;
    return n->kind == K_INPUT ? (double)(x >> 40 & 3) : (double)(x >> 40 & 255) / 64 - 2;
}

static void fill(void *ctx, const Graph *g, Val v, double *out, int64_t n)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++) out[i] = start_value(g, v, i);
}

// --------------------------------------------------------------------------------------------------- random graphs
enum { AXES = 5, LEAVES = 4, ACCS = 4 };
typedef struct {
    Graph *g;
    Axis axes[AXES], twin[AXES];  // twin: of the same size, for renamings
    Val *pool;                    // vec: what new nodes are made of
} Maker;

static int some_axes(const Maker *m, Axis *out, int least)
{
    int n = 0;
    for (int i = 0; i < AXES; i++)
        if (dice(2)) out[n++] = m->axes[i];
    if (n < least) out[n++] = m->axes[dice(AXES)];
    return n;
}

static Val some(const Maker *m) {  // mostly what is new
    int n = (int)vec_len(m->pool), recent = min_of(n, 6);
    return dice(3) ? m->pool[n - 1 - dice(recent)] : m->pool[dice(n)];
}

static void make_leaves(Maker *m)
{
    Graph *g = m->g;
    for (int i = 0; i < LEAVES; i++) {
        Axis axes[MAX_AXES];
        int n = some_axes(m, axes, 1);
        Val p = make_leaf(g, K_PARAM, (uint32_t)i, F64, n, axes), s = make_leaf(g, K_STATE, (uint32_t)i, F64, n, axes);
        vec_push(g->params, (Param){ .name = "p", .val = p, .acc = -1 });
        vec_push(g->states, (State){ .name = "s", .param = i, .val = s });
    }
    for (int i = 0; i < ACCS; i++) {
        Axis axes[MAX_AXES];
        int n = some_axes(m, axes, 0);
        graph_acc(g, "acc", -1, F64, n, axes);
    }
    Val in = make_leaf(g, K_INPUT, 0, I32, 2, m->axes);
    vec_push(g->inputs, (Input){ .name = "tokens", .limit = 4, .val = in });
}

static Val random_view(Maker *m, Val v)
{
    Graph *g = m->g;
    const Node n = *node_of(g, v);
    if (n.naxes == 0) return v;
    int i = dice(n.naxes);
    Axis a = n.axes[i];
    int k = 0;
    while (k < AXES && m->axes[k] != a) k++;
    switch (dice(4)) {
    case 0: return make_pick(g, v, a, dice((int)extent_of(g, a)));
    case 1: {
        View shift = { 1, { { .src = a, .nterms = 1, .axis = { a }, .coef = { 1 }, .offset = dice(3) - 1, .div = 1, .zero = true } } };
        return make_view(g, v, &shift, n.naxes, n.axes);
    }
    case 2: {
        View flip = { 1, { { .src = a, .nterms = 1, .axis = { a }, .coef = { -1 }, .offset = extent_of(g, a) - 1, .div = 1 } } };
        return make_view(g, v, &flip, n.naxes, n.axes);
    }
    default: {
        Axis order[MAX_AXES];
        for (int j = 0; j < n.naxes; j++) order[j] = n.axes[(j + i) % n.naxes];
        return make_broadcast(g, v, n.naxes, order);
    }
    }
}

static bool can_contract(Graph *g, Val a, Val b, Axis *over, int *n)
{
    const Node *x = node_of(g, a), *y = node_of(g, b);
    int own = 0, common = 0;
    *n = 0;
    for (int i = 0; i < x->naxes; i++) {
        if (!has_axis(y, x->axes[i])) own++;
        else if (common++ == 0 || dice(2)) over[(*n)++] = x->axes[i];
    }
    int other = 0;
    for (int i = 0; i < y->naxes; i++) other += !has_axis(x, y->axes[i]);
    return own && other && *n;
}

static Val random_node(Maker *m)
{
    Graph *g = m->g;
    Val a = some(m), b = some(m), cond;
    Axis over[MAX_AXES];
    int n = 0;
    switch (dice(12)) {
    case 0: return make_map2(g, FN_ADD, a, b);
    case 1: return make_map2(g, FN_SUB, a, b);
    case 2: return make_map1(g, FN_TANH, make_map2(g, FN_MUL, a, b));
    case 3: return make_map1(g, dice(2) ? FN_TANH : FN_NEG, a);
    case 4: cond = make_map2(g, FN_LT, a, b); return make_where(g, cond, a, some(m));
    case 5: cond = make_map2(g, FN_LT, make_index(g, m->axes[dice(AXES)]), make_const(g, I32, 2)); return make_where(g, cond, a, b);
    case 6: return random_view(m, a);
    case 7: if (can_contract(g, a, b, over, &n)) return make_map1(g, FN_TANH, make_contract(g, a, b, n, over));
        return make_map2(g, FN_MAX, a, b);
    case 8: case 9: case 10:
        for (int i = 0; i < node_of(g, a)->naxes; i++)
            if (dice(2)) over[n++] = node_of(g, a)->axes[i];
        return n ? make_map1(g, FN_TANH, make_reduce_raw(g, (Reduction)dice(3), a, n, over)) : a;
    default:
        if (node_of(g, a)->naxes < 2 || g->cur_seg < SEG_F || g->cur_seg == SEG_UPDATE || has_axis(node_of(g, a), m->axes[0])) return a;
        return has_axis(node_of(g, a), m->axes[2]) ? make_gather(g, a, g->inputs[0].val, m->axes[2]) : a;
    }
}

static void grow(Maker *m, SegmentId seg, int nodes)
{
    m->g->cur_seg = (uint8_t)seg;
    for (int i = 0; i < nodes; i++) {
        Val v = random_node(m);
        vec_push(m->pool, v);
    }
}

// v spread or summed to the axes of `like`.
static Val shaped(Graph *g, Val v, Val like)
{
    const Node n = *node_of(g, v), to = *node_of(g, like);
    Axis over[MAX_AXES];
    int nover = 0;
    for (int i = 0; i < n.naxes; i++)
        if (!has_axis(&to, n.axes[i])) over[nover++] = n.axes[i];
    v = make_reduce_raw(g, RED_SUM, v, nover, over);
    return make_broadcast(g, v, to.naxes, to.axes);
}

static Graph *random_graph(void)
{
    Maker m = { .g = graph_new() };
    Graph *g = m.g;
    static const char *const names[] = { "a", "b", "c", "d", "e" };
    g->dtype = F64;
    for (int i = 0; i < AXES; i++) m.axes[i] = graph_axis(g, names[i], i < 2 ? 2 : 2 + dice(3));
    make_leaves(&m);
    for (int i = 0; i < LEAVES; i++) vec_push(m.pool, g->params[i].val);
    grow(&m, SEG_PREP, 2);
    grow(&m, SEG_F, 4 + dice(12));
    size_t forward = vec_len(m.pool);
    grow(&m, SEG_B, 4 + dice(12));
    for (int i = 0; i < ACCS; i++)
        for (int k = 1 + dice(2); k > 0; k--)
            make_accumulate(g, (uint32_t)i, shaped(g, m.pool[forward + (size_t)dice((int)(vec_len(m.pool) - forward))], g->accs[i].total));
    vec_clear(m.pool);
    for (int i = 0; i < LEAVES; i++) {
        vec_push(m.pool, g->params[i].val);
        vec_push(m.pool, g->states[i].val);
    }
    for (int i = 0; i < ACCS; i++) vec_push(m.pool, g->accs[i].total);
    grow(&m, SEG_UPDATE, 2 + dice(16));
    for (int i = 0; i < LEAVES; i++) {
        make_update(g, g->states[i].val, shaped(g, some(&m), g->states[i].val));
        if (dice(2)) grow(&m, SEG_UPDATE, 2);  // reads old values after the update
        make_update(g, g->params[i].val, shaped(g, some(&m), g->params[i].val));
    }
    Val out = some(&m);
    graph_output(g, "loss", make_reduce_raw(g, RED_SUM, out, node_of(g, out)->naxes, node_of(g, out)->axes));
    vec_free(m.pool);
    return g;
}

// ----------------------------------------------------------------------------------------------------- interpreter
typedef struct {
    Graph *g;
    char *arena[ARENA_COUNT];
    const Group *group;
    uint32_t id;           // its index + 1
    int64_t *pos;          // by axis
} Machine;

static char *address(const Machine *m, Val v, int64_t at)
{
    const Buffer *b = &m->g->buffers[m->g->buffer_of[v] - 1];
    assert_true(m->g->buffer_of[v] != 0);
    return m->arena[b->arena] + b->offset + (uint64_t)at * (uint64_t)dtype_bytes(b->dtype);
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

static Machine machine_new(Graph *g)
{
    Machine m = { .g = g };
    for (int a = 0; a < ARENA_COUNT; a++) {
        m.arena[a] = xmalloc(g->arena_bytes[a] + 64);
        memset(m.arena[a], 0xff, g->arena_bytes[a] + 64);
    }
    m.pos = xcalloc(vec_len(g->axes), sizeof *m.pos);
    for (size_t i = 0; i < vec_len(g->buffers); i++) {
        Val v = g->buffers[i].val;
        Kind kind = (Kind)g->nodes[v].kind;
        if (kind != K_PARAM && kind != K_STATE && kind != K_INPUT) continue;
        for (int64_t k = 0; k < elements(g, v); k++) save_value(&m, v, k, start_value(g, v, k));
    }
    return m;
}

static void check_results(const Machine *m, double **expected)
{
    Graph *g = m->g;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        Val at = g->nodes[v].kind == K_UPDATE ? g->nodes[v].in[1] : g->nodes[v].kind == K_TOTAL ? v : 0;
        for (int64_t k = 0; at && k < elements(g, v); k++)
            if (!same(load(m, at, k), expected[v][k])) fail_msg("%%%u [%d]: %g, not %g", v, (int)k, load(m, at, k), expected[v][k]);
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
    vec_free(g->groups), vec_free(g->group_of), vec_free(g->stored), vec_free(g->buffer_of), vec_free(g->buffers);
    graph_free(g);
}

static size_t run_random(int seed, bool no_fuse)
{
    random_state = (uint64_t)seed;
    options.no_fuse = no_fuse;
    Graph *g = random_graph();
    select_nodes(g);
    verify_select(g);
    fuse(g);
    verify_fuse(g);
    check_shapes(g);
    order(g);
    verify_order(g);
    place(g);
    verify_place(g);
    double **expected = eval_graph(g, false, fill, NULL);
    Machine m = machine_new(g);
    for (uint32_t i = 0; i < vec_len(g->groups); i++) run_group(&m, i, expected);
    check_results(&m, expected);
    eval_free(g, expected);
    for (int a = 0; a < ARENA_COUNT; a++) free(m.arena[a]);
    free(m.pos);
    size_t groups = vec_len(g->groups);
    free_results(g);
    return groups;
}

static void test_random_graphs(void **state)
{
    (void)state;
    size_t fused = 0, alone = 0;
    for (int i = 0; i < 1500; i++) {
        fused += run_random(i, false);
        alone += run_random(i, true);
    }
    assert_true(fused < alone * 2 / 3);
}

// Two runs give the same groups in the same places.
static void test_repeatable(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) assert_int_equal(run_random(i, false), run_random(i, false));
}

int main(int argc, char **argv)
{
    if (argc > 1) return run_random(atoi(argv[1]), argc > 2), 0;  // one seed, for the debugger
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_graphs), cmocka_unit_test(test_repeatable) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
