// Windows and matrix products: what layout.c and gemm.c say about where values lie, against plain evaluation.
//
// Leaves hold their own element numbers, so an element of a window is the address it is read from. Random contractions
// go through pass select and fuse; each GEMM that comes out is multiplied by its definition in plan.h.
#include "eval.h"
#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

Options options = { .seq = 4, .micro_batch = 2, .accum = 1, .dtype = F64 };

// Leaf ids count from 0, so element i of leaf k is 1000 k + i.
static void fill(void *ctx, const Graph *g, Val v, double *out, int64_t n)
{
    (void)ctx;
    for (int64_t i = 0; i < n; i++) out[i] = 1000.0 * g->nodes[v].u.id + (double)i;
}

static Graph *new_graph(void)
{
    Graph *g = graph_new();
    g->dtype = F64;
    return g;
}

static Val leaf(Graph *g, int n, const Axis *axes)
{
    uint32_t id = (uint32_t)vec_len(g->params);
    Val v = make_leaf(g, K_PARAM, id, F64, n, axes);
    vec_push(g->params, (Param){ .name = "w", .val = v, .acc = -1 });
    return v;
}
#define LEAF(g, ...) leaf(g, countof(((Axis[]){ __VA_ARGS__ })), (Axis[]){ __VA_ARGS__ })

// Accumulates v in an accumulator with v's axes in another order (0: the same).
static void accumulate(Graph *g, Val v, int n, const Axis *axes)
{
    make_accumulate(g, graph_acc(g, "acc", -1, (DType)g->nodes[v].dtype, n, axes), v);
}

// -------------------------------------------------------------------------------------------------------- windows
static void check_window(Graph *g, Val v, bool ok)
{
    Window w = window_of(g, v);
    assert_int_equal(w.ok, ok);
    if (!ok) return;
    const Node n = *node_of(g, v);
    double **value = eval_graph(g, false, fill, NULL);
    for (int64_t i = 0; i < elements(g, v); i++) {
        int64_t at = w.offset, rest = i;
        for (int k = n.naxes - 1; k >= 0; k--) {
            at += w.stride[k] * (rest % extent_of(g, n.axes[k]));
            rest /= extent_of(g, n.axes[k]);
        }
        assert_true(at >= 0 && at < elements(g, w.base));
        assert_true(value[w.base][at] == value[v][i]);
    }
    eval_free(g, value);
}

static void test_windows(void **state)
{
    (void)state;
    Graph *g = new_graph();
    Axis seq = graph_axis(g, "seq", 5), heads = graph_axis(g, "heads", 4), dim = graph_axis(g, "dim", 6),
         hidden = graph_axis(g, "hidden", 24), two = graph_axis(g, "two", 2), half = graph_axis(g, "half", 3),
         key = graph_axis(g, "key", 5), first = graph_axis(g, "first", 3), a = graph_axis(g, "a", 8), b = graph_axis(g, "b", 3);
    Val x = LEAF(g, seq, hidden), y = LEAF(g, seq, heads, dim), z = LEAF(g, heads, seq, dim);
    Val parts = make_split(g, x, hidden, 2, (Axis[]){ heads, dim });
    check_window(g, x, true);
    check_window(g, parts, true);
    check_window(g, make_split(g, parts, dim, 2, (Axis[]){ two, half }), true);
    check_window(g, make_pick(g, parts, heads, 2), true);
    check_window(g, make_rename(g, y, seq, key), true);
    check_window(g, make_rename(g, y, seq, first), true);
    check_window(g, make_broadcast(g, y, 4, (Axis[]){ dim, key, seq, heads }), true);
    check_window(g, make_merge(g, y, 2, (Axis[]){ heads, dim }, hidden), true);
    check_window(g, make_split(g, make_merge(g, y, 2, (Axis[]){ heads, dim }, hidden), hidden, 2, (Axis[]){ a, b }), true);
    check_window(g, make_merge(g, make_split(g, y, dim, 2, (Axis[]){ two, half }), 3, (Axis[]){ heads, two, half }, hidden), true);
    check_window(g, make_merge(g, z, 2, (Axis[]){ heads, dim }, hidden), false);
    View shift = { 1, { { .src = seq, .nterms = 1, .axis = { seq }, .coef = { 1 }, .offset = -1, .div = 1, .zero = true } } };
    View flip = { 1, { { .src = seq, .nterms = 1, .axis = { seq }, .coef = { -1 }, .offset = 4, .div = 1 } } };
    View inside = { 1, { { .src = seq, .nterms = 2, .axis = { first, b }, .coef = { 1, 1 }, .div = 1, .zero = true } } };
    check_window(g, make_view(g, y, &shift, 3, (Axis[]){ seq, heads, dim }), false);
    check_window(g, make_view(g, y, &flip, 3, (Axis[]){ seq, heads, dim }), true);
    check_window(g, make_view(g, y, &inside, 4, (Axis[]){ first, b, heads, dim }), true);
    check_window(g, make_map2(g, FN_ADD, y, z), true);
    check_window(g, make_broadcast(g, make_const(g, F64, 2), 1, (Axis[]){ seq }), false);
    check_window(g, make_view(g, make_map2(g, FN_MUL, y, y), &flip, 3, (Axis[]){ seq, heads, dim }), true);
    graph_free(g);
}

// ------------------------------------------------------------------------------------------------ random contractions
static uint64_t random_state;
static int dice(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

static void shuffle(Axis *axes, int n)
{
    for (int i = n - 1; i > 0; i--) {
        int j = dice(i + 1);
        Axis t = axes[i];
        axes[i] = axes[j];
        axes[j] = t;
    }
}

// An operand with these axes: a leaf, a reordered one, one whose axes are parts, one that is shifted, a map.
static Val operand(Graph *g, Axis *axes, int n, int salt)
{
    Axis order[MAX_AXES];
    memcpy(order, axes, sizeof *axes * (size_t)n);
    shuffle(order, n);
    Val v;
    if (dice(4) == 0 && n > 1) {
        char name[16];
        snprintf(name, sizeof name, "merged%d", salt);
        Axis merged = graph_axis(g, name, extent_of(g, order[0]) * extent_of(g, order[1]));
        Axis whole[MAX_AXES];
        memcpy(whole, order + 1, sizeof *order * (size_t)(n - 1));
        whole[0] = merged;
        v = make_split(g, leaf(g, n - 1, whole), merged, 2, order);
    } else {
        v = leaf(g, n, order);
    }
    if (dice(5) == 0) v = make_map2(g, FN_ADD, v, leaf(g, 1, order));
    if (dice(6) == 0) {
        View shift = { 1, { { .src = order[0], .nterms = 1, .axis = { order[0] }, .coef = { 1 }, .offset = 1, .div = 1, .zero = true } } };
        const Node node = *node_of(g, v);
        v = make_view(g, v, &shift, node.naxes, node.axes);
    }
    return dice(2) ? v : make_broadcast(g, v, n, axes);
}

// C of one GEMM by definition; a, b, c as they lie.
static void multiply(const PlanGemm *p, const double *a, const double *b, double *c)
{
    uint64_t calls = 1;
    for (uint32_t d = 0; d < p->nbatch; d++) calls *= p->batch[d];
    for (uint64_t call = 0; call < calls; call++) {
        int64_t oa = 0, ob = 0, oc = 0;
        uint64_t rest = call;
        for (uint32_t d = p->nbatch; d-- > 0; rest /= p->batch[d]) {
            int64_t at = (int64_t)(rest % p->batch[d]);
            oa += at * p->stride_a[d], ob += at * p->stride_b[d], oc += at * p->stride_c[d];
        }
        for (uint64_t i = 0; i < p->m; i++)
            for (uint64_t j = 0; j < p->n; j++) {
                double sum = 0;
                for (uint64_t k = 0; k < p->k; k++)
                    sum += a[oa + (int64_t)(p->trans_a ? k * p->lda + i : i * p->lda + k)]
                         * b[ob + (int64_t)(p->trans_b ? j * p->ldb + k : k * p->ldb + j)];
                c[oc + (int64_t)(i * p->ldc + j)] = sum;
            }
    }
}

static Val random_contraction(Graph *g)
{
    static const char *const names[] = { "a", "b", "c", "d", "e", "f" };
    Axis axes[2][MAX_AXES], over[MAX_AXES];
    int n[2] = { 0, 0 }, nover = 0, count = 3 + dice(4);
    for (int i = 0; i < count; i++) {
        Axis axis = graph_axis(g, names[i], 1 + dice(4));
        int role = i < 3 ? i : dice(4);  // M, N, K, batch
        if (role != 1) axes[0][n[0]++] = axis;
        if (role != 0) axes[1][n[1]++] = axis;
        if (role == 2) over[nover++] = axis;
    }
    shuffle(axes[0], n[0]), shuffle(axes[1], n[1]);
    Val a = operand(g, axes[0], n[0], 0), b = operand(g, axes[1], n[1], 1);
    return make_contract(g, a, b, nover, over);
}

static double *copy(const double *x, int64_t n) { return memcpy(xmalloc((size_t)n * sizeof *x), x, (size_t)n * sizeof *x); }

static void check_products(Graph *g, double **value, int *gemms)
{
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->kind != G_GEMM) continue;
        ++*gemms;
        Val c = group->args[2];
        double *out = xcalloc((size_t)elements(g, c), sizeof *out);
        multiply(&group->gemm, value[group->args[0]] + group->arg_offsets[0], value[group->args[1]] + group->arg_offsets[1], out);
        for (int64_t k = 0; k < elements(g, c); k++) assert_true(out[k] == value[c][k]);
        free(out);
    }
}

static void test_contractions(void **state)
{
    (void)state;
    int gemms = 0, total = 3000, packs = 0;
    for (int i = 0; i < total; i++) {
        random_state = (uint64_t)i;
        options.no_fuse = dice(2);
        Graph *g = new_graph();
        Val v = random_contraction(g);
        Axis order[MAX_AXES];
        int n = node_of(g, v)->naxes;
        memcpy(order, node_of(g, v)->axes, sizeof order);
        if (dice(2)) shuffle(order, n);
        accumulate(g, v, n, order);
        double **before = eval_graph(g, false, fill, NULL);
        double *expected = copy(before[g->accs[0].total], elements(g, v));
        eval_free(g, before);
        select_nodes(g);
        graph_verify(g, "select");
        fuse(g);
        double **value = eval_graph(g, false, fill, NULL);
        for (int64_t k = 0; k < elements(g, g->accs[0].total); k++) assert_true(value[g->accs[0].total][k] == expected[k]);
        for (Val u = 1; u < vec_len(g->nodes); u++) packs += node_of(g, u)->kind == K_VIEW && node_of(g, u)->fn == VIEW_PACK;
        check_products(g, value, &gemms);
        eval_free(g, value);
        free(expected);
        graph_free(g);
    }
    options.no_fuse = false;
    assert_true(gemms > total * 95 / 100);  // all but those with more batch axes than a plan can say
    assert_true(packs > total / 10);
}

// --------------------------------------------------------------------------------------------------- known products
static PlanGemm only_gemm(Graph *g)
{
    select_nodes(g);
    fuse(g);
    for (size_t i = 0; i < vec_len(g->groups); i++)
        if (g->groups[i].kind == G_GEMM) return g->groups[i].gemm;
    fail();
    return (PlanGemm){ 0 };
}

static void test_linear_layer(void **state)
{
    (void)state;
    Graph *g = new_graph();
    Axis batch = graph_axis(g, "batch", 2), seq = graph_axis(g, "seq", 4), heads = graph_axis(g, "heads", 3),
         dim = graph_axis(g, "dim", 5), hidden = graph_axis(g, "hidden", 7);
    Val h = LEAF(g, batch, seq, hidden), w = LEAF(g, heads, dim, hidden);
    accumulate(g, make_contract(g, h, w, 1, &hidden), 4, (Axis[]){ batch, seq, heads, dim });
    PlanGemm p = only_gemm(g);
    assert_true(p.m == 8 && p.n == 15 && p.k == 7 && p.lda == 7 && p.ldb == 7 && p.ldc == 15);
    assert_true(!p.trans_a && p.trans_b && p.nbatch == 0 && p.beta == BETA_FIRST);
    graph_free(g);
    // its weight gradient goes to the accumulator in the order of the weight
    g = new_graph();
    batch = graph_axis(g, "batch", 2), seq = graph_axis(g, "seq", 4), heads = graph_axis(g, "heads", 3);
    dim = graph_axis(g, "dim", 5), hidden = graph_axis(g, "hidden", 7);
    Val dy = LEAF(g, batch, seq, heads, dim), x = LEAF(g, batch, seq, hidden);
    accumulate(g, make_contract(g, x, dy, 2, (Axis[]){ batch, seq }), 3, (Axis[]){ heads, dim, hidden });
    p = only_gemm(g);
    assert_true(p.m == 15 && p.n == 7 && p.k == 8 && p.trans_a && !p.trans_b && p.ldc == 7);
    assert_int_equal(vec_len(g->groups), 1);
    graph_free(g);
}

static void test_attention_scores(void **state)
{
    (void)state;
    Graph *g = new_graph();
    Axis batch = graph_axis(g, "batch", 2), seq = graph_axis(g, "seq", 4), kv = graph_axis(g, "kv", 3),
         group = graph_axis(g, "group", 2), dim = graph_axis(g, "dim", 8), key = graph_axis(g, "key", 4);
    Val q = LEAF(g, batch, seq, kv, group, dim), k = make_rename(g, LEAF(g, batch, seq, kv, dim), seq, key);
    Val s = make_contract(g, q, k, 1, &dim);
    accumulate(g, s, node_of(g, s)->naxes, node_of(g, s)->axes);
    PlanGemm p = only_gemm(g);  // no copies: a product for each of batch, kv, group
    assert_true(p.m == 4 && p.n == 4 && p.k == 8 && p.lda == 48 && p.ldb == 24 && p.trans_b);
    assert_int_equal(vec_len(g->groups), 1);
    graph_free(g);
}

static void test_bf16_on_cpu(void **state)
{
    (void)state;
    for (int target = TARGET_CPU; target <= TARGET_CUDA; target++) {
        options.target = (PlanTarget)target;
        Graph *g = new_graph();
        g->dtype = BF16;
        Axis a = graph_axis(g, "a", 4), b = graph_axis(g, "b", 4), k = graph_axis(g, "k", 4);
        Val x = make_cast(g, make_leaf(g, K_STATE, 0, F32, 2, (Axis[]){ a, k }), BF16);
        Val y = make_cast(g, make_leaf(g, K_STATE, 1, F32, 2, (Axis[]){ b, k }), BF16);
        vec_push(g->states, (State){ .name = "x", .val = 1 });
        vec_push(g->states, (State){ .name = "y", .val = node_of(g, y)->in[0] });
        accumulate(g, make_contract(g, x, y, 1, &k), 2, (Axis[]){ a, b });
        assert_int_equal(only_gemm(g).dtype, target == TARGET_CPU ? F32 : BF16);
        graph_free(g);
    }
    options.target = TARGET_CPU;
}

// ------------------------------------------------------------------------------------------------------ reductions
static void test_reductions(void **state)
{
    (void)state;
    for (int i = 0; i < 500; i++) {
        random_state = (uint64_t)i;
        Graph *g = new_graph();
        static const char *const names[] = { "a", "b", "c", "d", "e" };
        Axis axes[5], over[5];
        int n = 1 + dice(5), nover = 0;
        for (int k = 0; k < n; k++) axes[k] = graph_axis(g, names[k], 1 + dice(5));
        for (int k = 0; k < n; k++)
            if (dice(2) || (k == n - 1 && !nover)) over[nover++] = axes[k];
        Val v = make_reduce_raw(g, (Reduction)dice(3), leaf(g, n, axes), nover, over);
        const Node r = *node_of(g, v);
        accumulate(g, v, r.naxes, r.axes);
        double **before = eval_graph(g, false, fill, NULL);
        double *expected = copy(before[g->accs[0].total], elements(g, v));
        eval_free(g, before);
        select_nodes(g);
        double **value = eval_graph(g, false, fill, NULL);
        for (int64_t k = 0; k < elements(g, g->accs[0].total); k++) assert_true(value[g->accs[0].total][k] == expected[k]);
        for (Val u = 1; u < vec_len(g->nodes); u++) {
            const Node *x = node_of(g, u);
            if (x->kind != K_REDUCE) continue;
            const Node *y = node_of(g, x->in[0]);  // a suffix, or the last axis is kept
            bool column = has_axis(x, y->axes[y->naxes - 1]);
            for (int k = 0; k < x->u.over.n && !column; k++) assert_false(has_axis(x, y->axes[y->naxes - 1 - k]));
        }
        eval_free(g, value);
        free(expected);
        graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows), cmocka_unit_test(test_linear_layer), cmocka_unit_test(test_attention_scores),
        cmocka_unit_test(test_bf16_on_cpu), cmocka_unit_test(test_reductions), cmocka_unit_test(test_contractions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
