// Constructors: axes, folding, merging, views in their one form; rewriting; the dump; the user's errors.
#include "eval.h"
#include <math.h>
#include <setjmp.h>
#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

void front_optimizer(Graph *g) { (void)g; }

static Graph *g;
static Axis A, B, C, D;

static int setup(void **state)
{
    (void)state;
    g = graph_new();
    A = graph_axis(g, "a", 3), B = graph_axis(g, "b", 4), C = graph_axis(g, "c", 2), D = graph_axis(g, "d", 12);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    graph_free(g);
    return 0;
}

static uint32_t leaves;
static Val leaf(DType t, int naxes, const Axis *axes) { return make_leaf(g, K_STATE, leaves++, t, naxes, axes); }
#define LEAF(t, ...) leaf(t, countof(((Axis[]){__VA_ARGS__})), (Axis[]){__VA_ARGS__})

static void assert_axes(Val v, int n, const Axis *axes)
{
    assert_int_equal(node_of(g, v)->naxes, n);
    assert_memory_equal(node_of(g, v)->axes, axes, (size_t)n * sizeof *axes);
}
#define AXES(v, ...) assert_axes(v, countof(((Axis[]){__VA_ARGS__})), (Axis[]){__VA_ARGS__})

static void assert_const(Val v, double x)
{
    double c = NAN;
    assert_true(const_value(g, v, &c));
    assert_true(c == x);
}

static void axes_and_merging(void **state)
{
    (void)state;
    Val x = LEAF(F32, A, B), y = LEAF(F32, C, A), cond = make_map2(g, FN_LT, LEAF(F32, D), y);
    AXES(make_map2(g, FN_ADD, x, y), A, B, C);
    AXES(make_where(g, cond, x, y), A, B, C, D);  // counts as x, y, condition
    AXES(make_reduce(g, RED_SUM, make_map2(g, FN_MUL, x, y), 1, &A), B, C);
    assert_int_equal(make_map2(g, FN_ADD, x, y), make_map2(g, FN_ADD, x, y));
    assert_int_not_equal(make_map2(g, FN_ADD, x, y), make_map2(g, FN_ADD, y, x));
    assert_int_equal(make_reduce(g, RED_MAX, x, 2, (Axis[]){A, B}), make_reduce(g, RED_MAX, x, 2, (Axis[]){B, A}));
    Val r = make_random(g, F32, 1, &A), s = make_random(g, F32, 1, &A);
    assert_int_not_equal(r, s);
    assert_int_equal(node_of(g, s)->u.id, node_of(g, r)->u.id + 1);
    Val sum = make_map2(g, FN_SUB, x, y);
    g->cur_seg = SEG_B;  // what is made again in another segment is another node
    assert_int_not_equal(sum, make_map2(g, FN_SUB, x, y));
    assert_int_equal(make_const(g, F32, 2), (g->cur_seg = 0, make_const(g, F32, 2)));
}

static void folding(void **state)
{
    (void)state;
    Val x = LEAF(F32, A), zero = make_const(g, F32, 0), one = make_const(g, F32, 1), y = LEAF(F32, B);
    assert_const(make_const(g, F32, 0.1), (float)0.1);
    assert_const(make_const(g, BF16, 1.00390625), 1);  // a tie goes to even
    assert_int_equal(make_map2(g, FN_MUL, x, one), x);
    assert_int_equal(make_map2(g, FN_ADD, zero, x), x);
    assert_int_equal(make_map2(g, FN_POW, x, one), x);
    assert_int_equal(make_map2(g, FN_POW, x, make_const(g, F32, 2)), make_map2(g, FN_MUL, x, x));
    assert_int_equal(make_map1(g, FN_NEG, make_map1(g, FN_NEG, x)), x);
    Val none = make_map2(g, FN_MUL, make_map2(g, FN_ADD, x, y), zero);
    assert_const(none, 0);
    AXES(none, A, B);
    Val spread = make_map2(g, FN_ADD, x, make_broadcast(g, zero, 1, &B));
    AXES(spread, A, B);
    assert_int_equal(node_of(g, spread)->kind, K_VIEW);
    Val yes = make_map2(g, FN_LT, zero, one), c = make_map2(g, FN_LT, x, zero);
    assert_const(yes, 1);
    assert_int_equal(make_where(g, yes, x, zero), x);
    assert_int_equal(make_where(g, c, make_where(g, c, x, one), zero), make_where(g, c, x, zero));
    assert_const(make_where(g, c, one, one), 1);
    assert_const(make_reduce(g, RED_SUM, make_broadcast(g, one, 2, (Axis[]){A, B}), 1, &B), 4);
    assert_true(isnan(g->nodes[make_map2(g, FN_MAX, make_const(g, F32, NAN), one)].u.num));
}

static void casts(void **state)
{
    (void)state;
    Val x = LEAF(F32, A, B), h = make_cast(g, x, BF16), wide = make_cast(g, h, F32);
    assert_int_not_equal(wide, x);  // it rounds
    assert_int_equal(make_cast(g, wide, BF16), h);
    assert_int_equal(make_cast(g, make_cast(g, x, F64), F32), x);
    Val renamed = make_rename(g, wide, B, graph_axis(g, "b2", 4));  // the view lies on the stored value
    assert_int_equal(node_of(g, renamed)->fn, FN_CAST);
    assert_int_equal(node_of(g, node_of(g, renamed)->in[0])->kind, K_VIEW);
}

static void sums(void **state)
{
    (void)state;
    Val x = LEAF(F32, A, B), w = LEAF(F32, C, B), v = LEAF(F32, B);
    Val total = make_reduce(g, RED_SUM, x, 2, (Axis[]){A, B});
    assert_int_equal(node_of(g, total)->dtype, F32);
    assert_int_equal(node_of(g, node_of(g, total)->in[0])->dtype, F64);
    Val product = make_map2(g, FN_MUL, x, w);
    assert_int_equal(node_of(g, make_reduce(g, RED_SUM, product, 1, &B))->kind, K_CONTRACT);
    assert_int_equal(node_of(g, make_reduce(g, RED_SUM, product, 1, &A))->kind, K_REDUCE);  // w lacks it
    assert_int_equal(node_of(g, make_reduce(g, RED_SUM, make_map2(g, FN_MUL, x, v), 1, &B))->kind, K_REDUCE);
    assert_int_equal(node_of(g, make_reduce_raw(g, RED_SUM, product, 1, &B))->kind, K_REDUCE);
    assert_int_equal(make_reduce(g, RED_SUM, x, 0, NULL), x);
    Val first = make_map2(g, FN_EQ, make_index(g, C), make_const(g, I32, 0)), zero = make_const(g, F32, 0), one;
    one = make_reduce(g, RED_SUM, make_where(g, first, w, zero), 1, &C);
    assert_int_equal(one, make_pick(g, w, C, 0));  // a sum of which all but one is 0
    assert_int_equal(make_reduce(g, RED_SUM, make_where(g, first, zero, w), 1, &C), make_pick(g, w, C, 1));
    assert_int_equal(make_reduce(g, RED_SUM, make_where(g, first, x, zero), 2, (Axis[]){A, C}), make_reduce(g, RED_SUM, x, 1, &A));
    assert_int_equal(node_of(g, make_reduce(g, RED_SUM, make_where(g, first, v, w), 1, &C))->kind, K_REDUCE);
    g->dtype = BF16;  // operands are rounded to the op's dtype where its tensors are bf16
    Val a = make_cast(g, LEAF(BF16, A, B), F32), b = make_cast(g, LEAF(BF16, C, B), F32);
    Val c = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, make_map1(g, FN_EXP, a), b), 1, &B);
    assert_int_equal(node_of(g, c)->dtype, F32);
    assert_int_equal(node_of(g, node_of(g, c)->in[0])->dtype, BF16);
    c = make_reduce(g, RED_SUM, make_map2(g, FN_MUL, x, b), 1, &B);  // one f32 tensor: f32
    assert_int_equal(node_of(g, node_of(g, c)->in[0])->dtype, F32);
}

static void views(void **state)
{
    (void)state;
    Val x = LEAF(F32, A, B), z = LEAF(F32, D);
    Val merged = make_merge(g, x, 2, (Axis[]){A, B}, D);
    assert_int_equal(make_split(g, merged, D, 2, (Axis[]){A, B}), x);
    assert_int_equal(make_merge(g, make_split(g, z, D, 2, (Axis[]){A, B}), 2, (Axis[]){A, B}, D), z);
    assert_int_equal(make_pick(g, merged, D, 7), make_pick(g, make_pick(g, x, A, 1), B, 3));
    assert_int_equal(make_broadcast(g, make_broadcast(g, x, 2, (Axis[]){B, A}), 2, (Axis[]){A, B}), x);
    assert_const(make_pick(g, make_index(g, B), B, 2), 2);
    Axis b2 = graph_axis(g, "b2", 4);
    assert_int_equal(make_rename(g, make_index(g, B), B, b2), make_index(g, b2));
    View far = {.n = 1, .ix = {{.src = B, .nterms = 1, .axis = {B}, .coef = {1}, .offset = 9, .div = 1, .zero = true}}};
    assert_const(make_view(g, x, &far, 2, (Axis[]){A, B}), 0);
    far.ix[0].offset = 0;  // always inside: nothing is left of it
    assert_int_equal(make_view(g, x, &far, 2, (Axis[]){A, B}), x);
}

static Val twice(Graph *graph, void *ctx, const Node *n, Val old)
{
    (void)old;
    if (n->kind != K_MAP || n->fn != FN_EXP) return 0;
    ++*(int *)ctx;
    return make_map2(graph, FN_MUL, n->in[0], make_const(graph, F32, 2));
}

static void rewriting(void **state)
{
    (void)state;
    vec_push(g->params, (Param){.name = "w", .val = make_leaf(g, K_PARAM, 0, F32, 1, &A), .acc = 0});
    Val w = g->params[0].val;
    graph_acc(g, "w", 0, F32, 1, &A);
    make_map1(g, FN_SIN, w);  // dead
    make_accumulate(g, 0, make_map1(g, FN_EXP, w));
    make_update(g, w, make_map2(g, FN_SUB, w, g->accs[0].total));
    int visited = 0;
    graph_rewrite(g, twice, &visited);
    graph_verify(g, "rewrite");
    assert_int_equal(visited, 1);
    for (Val v = 1; v < vec_len(g->nodes); v++) assert_true(g->nodes[v].fn != FN_SIN && g->nodes[v].fn != FN_EXP);
    assert_int_equal(g->nodes[g->params[0].val].kind, K_PARAM);
    assert_int_equal(g->nodes[g->accs[0].total].kind, K_TOTAL);
}

static void dump_line(void **state)
{
    (void)state;
    g->cur_op = graph_op(g, "norm", graph_loc(g, "m.lua", 7));
    g->cur_layer = 3;
    Val x = LEAF(F32, A, B), y = make_reduce(g, RED_MAX, x, 1, &B);
    View view = {.n = 1, .ix = {{.src = B, .nterms = 2, .axis = {A, C}, .coef = {1, -1}, .offset = -2, .div = 1, .zero = true}}};
    Val z = make_view(g, x, &view, 2, (Axis[]){A, C});
    Buf line = {0};
    node_dump(g, y, &line);
    assert_string_equal(line.s, "%2 f32 [a] = max[b] %1                                  ; norm m.lua:7 F layer 3");
    buf_free(&line);
    node_dump(g, z, &line);
    assert_string_equal(line.s, "%3 f32 [a c] = view %1 {b = a-c-2|0}                    ; norm m.lua:7 F layer 3");
    buf_free(&line);
}

// What err() prints, and with which status it ends.
static void user_errors(void **state)
{
    (void)state;
    int out[2];
    assert_int_equal(pipe(out), 0);
    g->source = "first\nsecond line\nthird\n";
    Loc loc = graph_loc(g, "/nowhere/m.lua", 2);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], 2);
        err(g, loc, "the loss is a %s", "number");
    }
    close(out[1]);
    char text[200] = {0};
    size_t n = 0;
    for (ssize_t more; (more = read(out[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)more;
    close(out[0]);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_string_equal(text, "/nowhere/m.lua:2: the loss is a number\n    second line\n");
}

int main(void)
{
    program_name = "test_graph";
    const struct CMUnitTest tests[] = {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        TEST(axes_and_merging), TEST(folding), TEST(casts), TEST(sums), TEST(views), TEST(rewriting), TEST(dump_line),
        TEST(user_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
