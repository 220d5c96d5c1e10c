// Gradients: every function of the table and every node kind against central differences in double, then the rules of
// notation 4.5 that differences do not show (ties, masks at 0, powers at 0), then the pass on a small model.
//
// A graph is made by the constructors; its leaves are PARAMs with random values in lo..hi. The scalar that is
// differentiated is the sum of the result times fixed random weights.
#include "eval.h"
#include <math.h>
#include <setjmp.h>
#include <cmocka.h>


enum { MAX_LEAVES = 8 };
typedef struct {
    Graph *g;
    int n;
    Val leaf[MAX_LEAVES];
    double lo[MAX_LEAVES], hi[MAX_LEAVES];
    const double *fixed[MAX_LEAVES];  // values instead of random ones
    int moved;                        // leaf, and element, that is moved by `by`
    int64_t element;
    double by;
} Model;

static Axis A, B, C, D;  // 3 4 2 5 positions

void front_optimizer(Graph *g);

static Model model_new(void)
{
    Model m = {.g = graph_new(), .moved = -1};
    m.g->dtype = F64;
    A = graph_axis(m.g, "a", 3);
    B = graph_axis(m.g, "b", 4);
    C = graph_axis(m.g, "c", 2);
    D = graph_axis(m.g, "d", 5);
    return m;
}

static void model_free(Model *m)
{
    graph_free(m->g);
}

static Val leaf_in(Model *m, double lo, double hi, int naxes, const Axis *axes)
{
    m->lo[m->n] = lo, m->hi[m->n] = hi;
    Val v = make_leaf(m->g, K_PARAM, (uint32_t)m->n, F64, naxes, axes);
    m->leaf[m->n++] = v;
    return v;
}
#define LEAF(m, lo, hi, ...) leaf_in(m, lo, hi, countof(((Axis[]){__VA_ARGS__})), (Axis[]){__VA_ARGS__})

static double noise(uint64_t x)
{
    x = (x + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

// PARAM: a leaf of the model. STATE: weights of the result. INPUT: whole numbers -1..5.
static void fill(void *ctx, const Graph *g, Val v, double *out, int64_t n)
{
    const Model *m = ctx;
    const Node *node = &g->nodes[v];
    uint32_t id = node->u.id;
    for (int64_t i = 0; i < n; i++) {
        double x = noise(((uint64_t)node->kind << 40) + ((uint64_t)id << 20) + (uint64_t)i);
        if (node->kind == K_PARAM && m->fixed[id]) out[i] = m->fixed[id][i];
        else if (node->kind == K_PARAM) out[i] = m->lo[id] + x * (m->hi[id] - m->lo[id]);
        else if (node->kind == K_INPUT) out[i] = floor(7 * x) - 1;
        else out[i] = 0.2 + x;
    }
    if (node->kind == K_PARAM && m->moved == (int)id) out[m->element] += m->by;
}

static double scalar_of(Model *m, Val loss)
{
    double **values = eval_graph(m->g, false, fill, m);
    double x = values[loss][0];
    eval_free(m->g, values);
    return x;
}

static Val weighted_sum(Model *m, Val y, Val *weights)
{
    const Node n = *node_of(m->g, y);
    *weights = make_leaf(m->g, K_STATE, 0, F64, n.naxes, n.axes);
    return make_reduce(m->g, RED_SUM, make_map2(m->g, FN_MUL, y, *weights), n.naxes, n.axes);
}

// Compares the derived adjoints of all leaves of y with central differences.
static void check(const char *what, Model *m, Val y)
{
    Graph *g = m->g;
    Val weights, adjoint[MAX_LEAVES], loss = weighted_sum(m, y, &weights);
    grad_of(g, y, weights, m->n, m->leaf, adjoint);
    double **values = eval_graph(g, false, fill, m);
    double **derived = xcalloc((size_t)m->n, sizeof *derived);
    for (int i = 0; i < m->n; i++) {
        size_t count = (size_t)elements(g, m->leaf[i]);
        derived[i] = xcalloc(count, sizeof **derived);
        if (!adjoint[i]) continue;
        const Node *have = node_of(g, adjoint[i]), *want = node_of(g, m->leaf[i]);
        assert_int_equal(have->naxes, want->naxes);
        assert_memory_equal(have->axes, want->axes, sizeof have->axes);
        memcpy(derived[i], values[adjoint[i]], count * sizeof **derived);
    }
    eval_free(g, values);
    for (m->moved = 0; m->moved < m->n; m->moved++)
        for (m->element = 0; m->element < elements(g, m->leaf[m->moved]); m->element++) {
            double h = 1e-5, side[2];
            for (int k = 0; k < 2; k++) m->by = k ? h : -h, side[k] = scalar_of(m, loss);
            double difference = (side[1] - side[0]) / (2 * h), own = derived[m->moved][m->element];
            if (!(fabs(difference - own) <= 2e-7 * fmax(1, fabs(own)))) {
                graph_dump(g, stderr);
                fail_msg("%s: leaf %d element %d: derived %.12g, difference %.12g", what, m->moved, (int)m->element, own, difference);
            }
        }
    m->moved = -1;
    for (int i = 0; i < m->n; i++) free(derived[i]);
    free(derived);
}

// The adjoint of leaf i at its fixed values, with an adjoint of 1.
static void derived_at(Model *m, Val y, int i, double *out)
{
    Graph *g = m->g;
    const Node n = *node_of(g, y);
    Val one = make_broadcast(g, make_const(g, F64, 1), n.naxes, n.axes), adjoint[MAX_LEAVES];
    grad_of(g, y, one, m->n, m->leaf, adjoint);
    assert_int_not_equal(adjoint[i], 0);
    double **values = eval_graph(g, false, fill, m);
    memcpy(out, values[adjoint[i]], (size_t)elements(g, adjoint[i]) * sizeof *out);
    eval_free(g, values);
}

// ----------------------------------------------------------------------------------------------------- functions
static void functions(void **state)
{
    (void)state;
    for (Fn fn = 0; fn < FN_CAST; fn++) {
        Model m = model_new();
        Graph *g = m.g;
        Val x = LEAF(&m, 0.3, 0.9, A, B), y = LEAF(&m, 1.1, 1.9, B), z = LEAF(&m, 0.1, 2.0, C, A), v;
        Val cond = make_map2(g, FN_LT, x, z);
        if (fn == FN_WHERE) v = make_where(g, cond, make_map2(g, FN_MUL, x, z), y);
        else if (fn >= FN_LT && fn <= FN_NE) v = make_where(g, make_map2(g, fn, x, z), x, y);
        else if (fn == FN_NOT) v = make_where(g, make_map1(g, fn, cond), x, y);
        else if (fn == FN_AND || fn == FN_OR) v = make_where(g, make_map2(g, fn, cond, make_map2(g, FN_LT, z, y)), x, y);
        else if (fn_info[fn].arity == 1) v = make_map1(g, fn, x);
        else v = make_map2(g, fn, x, y);
        if (fn == FN_STOP) {  // differences would see through it
            Val adjoint[3];
            grad_of(g, v, make_broadcast(g, make_const(g, F64, 1), 2, node_of(g, v)->axes), 3, m.leaf, adjoint);
            assert_int_equal(adjoint[0], 0);
        } else
            check(fn_info[fn].name, &m, v);
        // the second operand on the left, and both signs where the function has them
        if (fn_info[fn].arity == 2 && fn < FN_LT) check(fn_info[fn].name, &m, make_map2(g, fn, y, x));
        if (fn == FN_MIN || fn == FN_MAX) check(fn_info[fn].name, &m, make_map2(g, fn, z, y));
        if (fn_info[fn].arity == 1 && fn != FN_LOG && fn != FN_SQRT && fn != FN_RSQRT && fn != FN_NOT && fn != FN_STOP)
            check(fn_info[fn].name, &m, make_map1(g, fn, LEAF(&m, -1.9, -0.1, D)));
        model_free(&m);
    }
}

static void casts(void **state)
{
    (void)state;
    Model m = model_new();
    Val x = LEAF(&m, 0.5, 1.5, A);
    // to f32 and back: derived exactly as without (the differences are too coarse, so by hand)
    Val y = make_map2(m.g, FN_MUL, make_cast(m.g, make_cast(m.g, x, F32), F64), make_const(m.g, F64, 3));
    double d[3];
    derived_at(&m, y, 0, d);
    for (int i = 0; i < 3; i++) assert_float_equal(d[i], 3, 0);
    Val whole = make_cast(m.g, make_cast(m.g, x, I32), F64), adjoint;
    grad_of(m.g, whole, make_broadcast(m.g, make_const(m.g, F64, 1), 1, &A), 1, &x, &adjoint);
    assert_int_equal(adjoint, 0);
    model_free(&m);
}

// --------------------------------------------------------------------------------------------------------- kinds
static void reductions(void **state)
{
    (void)state;
    for (int r = RED_SUM; r <= RED_MIN; r++) {
        Model m = model_new();
        Graph *g = m.g;
        Val x = LEAF(&m, -1, 1, A, B, C), y = LEAF(&m, -1, 1, C);
        check("reduce one axis", &m, make_reduce(g, (Reduction)r, x, 1, &B));
        check("reduce two axes", &m, make_reduce(g, (Reduction)r, make_map2(g, FN_MUL, x, y), 2, (Axis[]){C, A}));
        check("reduce all", &m, make_map1(g, FN_EXP, make_reduce(g, (Reduction)r, x, 3, (Axis[]){A, B, C})));
        check("reduce, come back", &m, make_map2(g, FN_SUB, x, make_reduce(g, (Reduction)r, x, 1, &A)));
        model_free(&m);
    }
}

static void contractions(void **state)
{
    (void)state;
    Model m = model_new();
    Graph *g = m.g;
    Val x = LEAF(&m, -1, 1, C, A, B), w = LEAF(&m, -1, 1, D, B), z = LEAF(&m, -1, 1, B, C, D);
    Val plain = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, x, w), 1, &B);
    assert_int_equal(node_of(g, plain)->kind, K_CONTRACT);
    check("matrix product", &m, plain);
    Val batched = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, x, z), 1, &B);
    assert_int_equal(node_of(g, batched)->kind, K_CONTRACT);
    check("batched", &m, batched);
    check("two summed axes", &m, make_reduce(g, RED_SUM, make_map2(g, FN_MUL, x, z), 2, (Axis[]){B, C}));
    check("w twice", &m, make_map2(g, FN_MUL, plain, make_reduce(g, RED_SUM, w, 1, &B)));
    Val no = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, x, LEAF(&m, -1, 1, B)), 1, &B);
    assert_int_equal(node_of(g, no)->kind, K_REDUCE);  // the vector has no axis of its own
    check("matrix times vector", &m, no);
    check("outer product under a mask", &m,
          make_where(g, make_map2(g, FN_LE, make_index(g, A), make_index(g, D)),
                     make_map2(g, FN_MUL, make_reduce(g, RED_SUM, x, 1, &B), make_reduce(g, RED_SUM, w, 1, &B)),
                     make_const(g, F64, 0)));
    model_free(&m);
}

static void lookups(void **state)
{
    (void)state;
    Model m = model_new();
    Graph *g = m.g;
    Val table = LEAF(&m, -1, 1, D, B), index = make_leaf(g, K_INPUT, 0, I32, 2, (Axis[]){A, C});
    Val y = make_gather(g, table, index, D);
    check("gather", &m, make_map2(g, FN_MUL, y, y));
    Val aligned = make_leaf(g, K_INPUT, 1, I32, 2, (Axis[]){B, C});
    check("gather along an axis of the table", &m, make_gather(g, table, aligned, D));
    Val dy = LEAF(&m, -1, 1, A, C, B);
    check("scatter_add", &m, make_scatter_add(g, dy, index, D, 2, (Axis[]){B, D}));
    model_free(&m);
}

static void attention_case(int64_t seq, double window, bool grouped)
{
    Model m = model_new();
    Graph *g = m.g;
    Axis s = graph_axis(g, "seq", seq), h = graph_axis(g, "head_dim", 3);
    Val q = grouped ? LEAF(&m, -1, 1, A, s, C, h) : LEAF(&m, -1, 1, A, s, h);
    Val k = LEAF(&m, -1, 1, s, A, h), v = LEAF(&m, -1, 1, A, s, h);
    Attention a = {.seq = s, .head_dim = h, .scale = 0.7, .window = window};
    check("attention", &m, make_attention(g, q, k, v, &a));
    model_free(&m);
}

static void attentions(void **state)
{
    (void)state;
    attention_case(4, INFINITY, true);
    attention_case(4, 2, false);
    attention_case(1, INFINITY, false);
}

// --------------------------------------------------------------------------------------------------------- views
static ViewIndex affine(Axis src, int64_t offset, bool zero, Axis a, int64_t ca, Axis b, int64_t cb)
{
    ViewIndex x = {.src = src, .offset = offset, .zero = zero, .div = 1};
    if (a) x.axis[x.nterms] = a, x.coef[x.nterms++] = ca;
    if (b) x.axis[x.nterms] = b, x.coef[x.nterms++] = cb;
    return x;
}

static void views(void **state)
{
    (void)state;
    Model m = model_new();
    Graph *g = m.g;
    Val x = LEAF(&m, -1, 1, A, B), z = LEAF(&m, -1, 1, D, C);
    Axis e = graph_axis(g, "e", 12), b2 = graph_axis(g, "b2", 4), b3 = graph_axis(g, "b3", 3), a2 = graph_axis(g, "a2", 3);
    check("rename", &m, make_rename(g, x, B, b2));
    check("rename to shorter", &m, make_rename(g, x, B, b3));
    check("pick", &m, make_pick(g, x, A, 2));
    check("diagonal of a product", &m, make_rename(g, make_map2(g, FN_MUL, x, make_cast(g, make_index(g, a2), F64)), a2, A));
    check("merge", &m, make_merge(g, x, 2, (Axis[]){A, B}, e));
    check("merge the other way", &m, make_merge(g, x, 2, (Axis[]){B, A}, e));
    check("split", &m, make_split(g, make_merge(g, x, 2, (Axis[]){B, A}, e), e, 2, (Axis[]){a2, b2}));
    check("broadcast", &m, make_broadcast(g, z, 3, (Axis[]){C, A, D}));
    check("repeat and merge", &m, make_merge(g, make_broadcast(g, x, 3, (Axis[]){A, b3, B}), 2, (Axis[]){B, b3}, e));
    check("merge and pick a part", &m,
          make_pick(g, make_merge(g, make_broadcast(g, make_pick(g, x, A, 1), 2, (Axis[]){B, b3}), 2, (Axis[]){B, b3}, e), e, 7));
    Val long_ = LEAF(&m, -1, 1, e), square = LEAF(&m, -1, 1, C, B);
    Axis c2 = graph_axis(g, "c2", 2), c3 = graph_axis(g, "c3", 2);
    check("split of a leaf", &m, make_split(g, long_, e, 2, (Axis[]){A, B}));
    check("split in three", &m, make_split(g, long_, e, 3, (Axis[]){c2, A, c3}));
    check("part of a split", &m, make_pick(g, make_split(g, long_, e, 3, (Axis[]){c2, A, c3}), A, 1));
    check("split, then shorter", &m, make_rename(g, make_split(g, long_, e, 2, (Axis[]){A, B}), A, C));
    check("merge, then split otherwise", &m,
          make_split(g, make_merge(g, x, 2, (Axis[]){A, B}, e), e, 2, (Axis[]){graph_axis(g, "six", 6), c2}));
    check("diagonal", &m, make_rename(g, make_rename(g, square, B, graph_axis(g, "b4", 2)), graph_axis(g, "b4", 2), C));
    View shift = {.n = 1, .ix = {affine(B, -1, true, B, 1, A, 1)}};
    Axis lone = graph_axis(g, "lone", 1);
    check("shift by another axis", &m, make_view(g, make_pick(g, x, A, 0), &shift, 2, (Axis[]){B, A}));
    check("flip", &m, make_view(g, x, &(View){.n = 1, .ix = {affine(B, 3, false, B, -1, 0, 0)}}, 2, (Axis[]){A, B}));
    check("slice", &m, make_view(g, x, &(View){.n = 1, .ix = {affine(B, 2, false, C, 1, 0, 0)}}, 2, (Axis[]){A, C}));
    check("every second", &m, make_view(g, x, &(View){.n = 1, .ix = {affine(B, 1, false, C, 2, 0, 0)}}, 2, (Axis[]){A, C}));
    check("transposed by names", &m, make_view(g, z, &(View){.n = 2, .ix = {affine(C, 0, true, D, 1, 0, 0), affine(D, 0, false, C, 1, 0, 0)}}, 2, (Axis[]){D, C}));
    check("size 1", &m, make_broadcast(g, make_pick(g, x, A, 0), 2, (Axis[]){lone, B}));
    model_free(&m);
}

static int below(uint64_t *seed, int n) { return (int)(noise((*seed)++) * n); }

// One index of a random view: a sum, a quotient, or (digit) one of the axis all digits of this view belong to.
static ViewIndex random_index(Axis src, int naxes, const Axis *axes, Axis digits, uint64_t *seed)
{
    ViewIndex x = {.src = src, .div = 1, .zero = true};
    int form = below(seed, 4);
    if (form == 0 && digits) {
        x = affine(src, 0, true, digits, 1, 0, 0);
        x.div = (int64_t[]){1, 2, 3, 4, 6}[below(seed, 5)];
        x.mod = (int64_t[]){0, 2, 3, 4}[below(seed, 4)];
        return x;
    }
    for (int t = below(seed, 3); t > 0 && naxes > 0; t--) {
        Axis a = axes[below(seed, naxes)];
        bool twice = false;
        for (int k = 0; k < x.nterms; k++) twice |= x.axis[k] == a;
        if (twice) continue;
        x.axis[x.nterms] = a;
        x.coef[x.nterms++] = form == 1 ? 1 + below(seed, 2) : (int64_t[]){1, -1, 1, 2, 3}[below(seed, 5)];
    }
    x.offset = form == 1 ? below(seed, 2) : form == 2 ? 0 : below(seed, 5) - 2;
    if (form == 1) x.div = 1 + below(seed, 3), x.mod = below(seed, 2) ? 1 + below(seed, 4) : 0;
    return x;
}

static Val random_view(Graph *g, Val from, uint64_t *seed)
{
    const Node n = *node_of(g, from);
    const Axis pool[] = {A, B, C, D, graph_axis(g, "e", 12), graph_axis(g, "f", 1), graph_axis(g, "h", 4)};
    Axis axes[MAX_AXES];
    int naxes = 0;
    for (size_t i = 0; i < countof(pool); i++)
        if (below(seed, 3) && naxes < 4) axes[naxes++] = pool[i];
    Axis digits = naxes > 0 && below(seed, 2) ? axes[below(seed, naxes)] : 0;
    View view = {0};
    for (int i = 0; i < n.naxes; i++) {
        bool there = false;
        for (int j = 0; j < naxes; j++) there |= axes[j] == n.axes[i];
        if (!there || below(seed, 2)) view.ix[view.n++] = random_index(n.axes[i], naxes, axes, digits, seed);
    }
    return make_view(g, from, &view, naxes, axes);
}

// A view is linear: sum(y * weights) must be sum(x * adjoint of x).
static void check_linear(Model *m, Val y)
{
    Graph *g = m->g;
    Val weights, adjoint, loss = weighted_sum(m, y, &weights);
    grad_of(g, y, weights, 1, m->leaf, &adjoint);
    double **values = eval_graph(g, false, fill, m), sum = 0;
    for (int64_t i = 0; adjoint && i < elements(g, m->leaf[0]); i++) sum += values[m->leaf[0]][i] * values[adjoint][i];
    if (fabs(sum - values[loss][0]) > 1e-12) {
        graph_dump(g, stderr);
        fail_msg("adjoint of a random view: %.15g instead of %.15g", sum, values[loss][0]);
    }
    eval_free(g, values);
}

static void assert_same(Model *m, Val a, Val b)
{
    double **values = eval_graph(m->g, false, fill, m);
    assert_int_equal(elements(m->g, a), elements(m->g, b));
    for (int64_t i = 0; i < elements(m->g, a); i++) assert_float_equal(values[a][i], values[b][i], 0);
    eval_free(m->g, values);
}

// What lies outside of a view stays outside, though its operand goes on.
static void shortened(void **state)
{
    (void)state;
    Model m = model_new();
    Graph *g = m.g;
    Val x = LEAF(&m, 1, 2, D), first = make_rename(g, x, D, A);
    View further = {.n = 1, .ix = {affine(A, 1, true, B, 1, 0, 0)}};
    assert_same(&m, make_view(g, first, &further, 1, &B), make_view(g, make_map1(g, FN_STOP, first), &further, 1, &B));
    model_free(&m);
}

// Derivatives of random views, and that a composed view is what its two views are one after the other.
static void random_views(void **state)
{
    (void)state;
    uint64_t seed = 1000;
    for (int round = 0; round < 2000; round++) {
        Model m = model_new();
        Graph *g = m.g;
        Val x = LEAF(&m, -1, 1, A, B, C);
        uint64_t again = seed;
        Val y = random_view(g, x, &seed), second = random_view(g, y, &seed);
        check_linear(&m, y);
        check_linear(&m, second);
        Val wall = make_map1(g, FN_STOP, random_view(g, x, &again));
        assert_same(&m, random_view(g, wall, &again), second);
        model_free(&m);
    }
}

// --------------------------------------------------------------------------------------------------------- rules
static void ties(void **state)
{
    (void)state;
    static const double zero[] = {0, 1, -1}, grid[] = {1, 5, 2, 3, 5, 5, 0, 5, 4, 4, 5, NAN};
    Model m = model_new();
    Graph *g = m.g;
    Val x = LEAF(&m, 0, 0, A), none = make_const(g, F64, 0);
    m.fixed[0] = zero;
    double d[12];
    derived_at(&m, make_map2(g, FN_MAX, none, x), 0, d);
    assert_float_equal(d[0], 0, 0);
    derived_at(&m, make_map2(g, FN_MAX, x, none), 0, d);
    assert_float_equal(d[0], 1, 0);
    derived_at(&m, make_map2(g, FN_MIN, x, none), 0, d);
    assert_float_equal(d[0], 1, 0);
    derived_at(&m, make_map1(g, FN_ABS, x), 0, d);
    assert_float_equal(d[0], 0, 0);
    Val y = LEAF(&m, 0, 0, A, B);
    m.fixed[1] = grid;
    derived_at(&m, make_reduce(g, RED_MAX, y, 1, &B), 1, d);
    const double by_row[] = {0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};  // the last row has a NaN, which takes none
    for (int i = 0; i < 12; i++) assert_float_equal(d[i], by_row[i], 0);
    derived_at(&m, make_reduce(g, RED_MAX, make_rename(g, y, A, graph_axis(g, "two", 2)), 2, (Axis[]){B, graph_axis(g, "two", 2)}), 1, d);
    for (int i = 0; i < 12; i++) assert_float_equal(d[i], i == 1, 0);
    model_free(&m);
}

// sqrt at 0 has slope infinity; what is not selected must not be multiplied with it.
static void masks(void **state)
{
    (void)state;
    static const double zeros[] = {0, 4, 0}, rows[] = {0, 0, 0, 0, 1, 2, 2, 4, 0, 0, 0, 0};
    Model m = model_new();
    Graph *g = m.g;
    Val x = LEAF(&m, 0, 0, A), y = LEAF(&m, 0, 0, A, B), none = make_const(g, F64, 0);
    m.fixed[0] = zeros, m.fixed[1] = rows;
    double d[12];
    Val positive = make_map2(g, FN_LT, none, x);
    derived_at(&m, make_where(g, positive, make_map1(g, FN_SQRT, x), none), 0, d);
    assert_float_equal(d[0], 0, 0);
    assert_float_equal(d[1], 0.25, 1e-15);
    derived_at(&m, make_where(g, make_map2(g, FN_LE, x, none), none, make_map1(g, FN_LOG, x)), 0, d);
    assert_float_equal(d[0], 0, 0);
    assert_float_equal(d[1], 0.25, 1e-15);
    // where(s > 0, y/sqrt(s), 0), s = sum[b](y^2): through a quotient, a sum over b, and back along b
    Val s = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, y, y), 1, &B);
    Val unit = make_where(g, make_map2(g, FN_LT, none, s), make_map2(g, FN_DIV, y, make_map1(g, FN_SQRT, s)), none);
    derived_at(&m, unit, 1, d);
    for (int i = 0; i < 12; i++) assert_true(isfinite(d[i]));
    assert_float_equal(d[4], (1 - 1 * 9.0 / 25) / 5, 1e-15);
    // the mask passes a broadcast: the slope of sqrt is infinite in the rows that are not selected
    Val roots = make_reduce(g, RED_SUM, make_map1(g, FN_SQRT, y), 1, &B);
    derived_at(&m, make_where(g, make_map2(g, FN_LT, none, roots), make_map1(g, FN_LOG, roots), none), 1, d);
    for (int i = 0; i < 12; i++) assert_true(isfinite(d[i]));
    // a product of factors with axes of their own keeps the mask, so that its sum stays a contraction
    Val w = LEAF(&m, -1, 1, B, D);
    Val p = make_where(g, make_map2(g, FN_LE, make_index(g, B), make_index(g, A)), y, none), adjoint[3];
    Val product = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, p, w), 1, &B);
    grad_of(g, product, make_leaf(g, K_STATE, 1, F64, 2, (Axis[]){A, D}), 3, m.leaf, adjoint);
    assert_int_equal(node_of(g, adjoint[2])->kind, K_CONTRACT);
    model_free(&m);
}

static void powers(void **state)
{
    (void)state;
    static const double zeros[] = {0, 2, -3};
    for (int n = 1; n <= 9; n++) {
        Model m = model_new();
        Val x = LEAF(&m, 0, 0, A);
        m.fixed[0] = zeros;
        double d[3];
        Val exponent = make_const(m.g, F64, n);
        derived_at(&m, make_map2(m.g, FN_POW, x, exponent), 0, d);
        for (int i = 0; i < 3; i++) assert_float_equal(d[i], n * pow(zeros[i], n - 1), 1e-12);
        // an exponent that is known only at run time
        Val late = make_leaf(m.g, K_SCALAR, 9, F64, 0, NULL);
        derived_at(&m, make_map2(m.g, FN_POW, x, make_map2(m.g, FN_SUB, exponent, make_map2(m.g, FN_SUB, late, late))), 0, d);
        for (int i = 0; i < 3; i++) assert_float_equal(d[i], n * pow(zeros[i], n - 1), 1e-12);
        model_free(&m);
    }
}

static void triple(Graph *g, void *ctx, const Val *dresults, Val *doperands)
{
    doperands[0] = make_map2(g, FN_MUL, dresults[0], make_const(g, F64, *(double *)ctx));
    doperands[1] = make_map2(g, FN_ADD, dresults[1], dresults[0]);
}

static void own_gradients(void **state)
{
    (void)state;
    Model m = model_new();
    Graph *g = m.g;
    Val x = LEAF(&m, -1, 1, A), y = LEAF(&m, -1, 1, A), three = make_const(g, F64, 3);
    Val floor_x = make_map1(g, FN_FLOOR, x), r[2] = {make_wall(g, floor_x), make_wall(g, make_map2(g, FN_MUL, x, y))};
    assert_int_not_equal(r[0], make_wall(g, floor_x));
    double factor = 7, d[3];
    grad_register(g, 2, r, 2, (Val[]){x, y}, triple, &factor);
    Val z = make_map2(g, FN_ADD, make_map2(g, FN_MUL, r[0], three), x);
    derived_at(&m, z, 0, d);
    assert_float_equal(d[0], 3 * 7 + 1, 0);
    derived_at(&m, z, 1, d);  // of the second result there is none
    assert_float_equal(d[0], 3, 0);
    model_free(&m);
}

// ------------------------------------------------------------------------------------------------------ the pass
// p -= 0.1 * p.grad
void front_optimizer(Graph *g)
{
    for (int i = 0; i < (int)vec_len(g->params); i++) {
        if (g->params[i].acc < 0) continue;
        Val step = make_map2(g, FN_MUL, make_cast(g, grad_scaled(g, i), F32), make_const(g, F32, 0.1));
        make_update(g, g->params[i].val, make_map2(g, FN_SUB, g->params[i].val, step));
    }
}

static Val param(Graph *g, const char *name, int naxes, const Axis *axes)
{
    Val v = make_leaf(g, K_PARAM, (uint32_t)vec_len(g->params), F32, naxes, axes);
    vec_push(g->params, (Param){.name = name, .val = v, .acc = -1});
    return v;
}

static size_t count_kind(const Graph *g, Kind kind, int param_of_acc)
{
    size_t n = 0;
    for (size_t v = 1; v < vec_len(g->nodes); v++)
        n += g->nodes[v].kind == kind && (param_of_acc < 0 || g->accs[g->nodes[v].u.id].param == param_of_acc);
    return n;
}

// Tied weights in bf16: an embedding that is the head too, cast once, used by two ops.
static void pass(void **state)
{
    (void)state;
    Graph *g = graph_new();
    g->dtype = BF16;
    Axis batch = g->batch = graph_axis(g, "batch", 2), seq = g->seq_axis = graph_axis(g, "seq", 3);
    Axis vocab = graph_axis(g, "vocab", 5), hidden = graph_axis(g, "hidden", 4);
    const char *names[] = {"tokens", "targets"};
    for (uint32_t i = 0; i < 2; i++)
        vec_push(g->inputs, (Input){.name = names[i], .limit = 5, .ignore = -1,
                                    .val = make_leaf(g, K_INPUT, i, I32, 2, (Axis[]){batch, seq})});
    Val embed = param(g, "embed", 2, (Axis[]){vocab, hidden}), unused = param(g, "unused", 1, &hidden);
    Val w = make_cast(g, embed, BF16);
    g->cur_op = graph_op(g, "embedding", 0);
    Val x = make_gather(g, w, g->inputs[0].val, vocab);
    g->cur_op = graph_op(g, "head", 0);
    Val z = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, make_cast(g, x, F32), make_cast(g, w, F32)), 1, &hidden);
    assert_int_equal(node_of(g, z)->kind, K_CONTRACT);
    assert_int_equal(node_of(g, node_of(g, z)->in[0])->dtype, BF16);
    g->cur_op = 0;
    g->loss = make_map1(g, FN_LOG, make_reduce(g, RED_SUM, make_map1(g, FN_EXP, z), 1, &vocab));
    grad(g);
    graph_verify(g, "grad");
    assert_int_equal(g->params[0].acc >= 0, 1);
    assert_int_equal(g->params[1].acc, -1);
    assert_int_equal(count_kind(g, K_ACCUMULATE, 0), 2);  // one a use
    assert_int_equal(count_kind(g, K_UPDATE, -1), 1);
    assert_int_equal(count_kind(g, K_PARAM, -1), 2);
    assert_int_equal(vec_len(g->outputs), 2);
    (void)unused;
    // a parameter's gradient is never rounded to bf16
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->nodes[v].kind == K_ACCUMULATE)
            for (Val u = g->nodes[v].in[0]; g->nodes[u].nin > 0; u = g->nodes[u].in[0]) {
                if (g->nodes[u].kind != K_VIEW && g->nodes[u].kind != K_MAP) break;
                assert_int_not_equal(g->nodes[u].dtype, BF16);
            }
    Model m = {.g = g, .moved = -1, .lo = {-1}, .hi = {1}};
    double **values = eval_graph(g, true, fill, &m);
    assert_true(isfinite(values[g->outputs[0].val][0]));
    eval_free(g, values);
    graph_free(g);
}

int main(void)
{
    program_name = "test_grad";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions), cmocka_unit_test(casts), cmocka_unit_test(reductions),
        cmocka_unit_test(contractions), cmocka_unit_test(lookups), cmocka_unit_test(attentions),
        cmocka_unit_test(views), cmocka_unit_test(random_views), cmocka_unit_test(shortened), cmocka_unit_test(ties),
        cmocka_unit_test(masks), cmocka_unit_test(powers), cmocka_unit_test(own_gradients), cmocka_unit_test(pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
