// Collectives in hand-made graphs: what becomes one, where it begins and ends, where its values lie. That no value comes out
// wrong is test_groups'.
#include "verify.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

Options options = { .seq = 4, .micro_batch = 2, .accum = 1, .dtype = F32 };

typedef struct { Graph *g; Axis row, col; Val x; } World;

static World new_world(void)
{
    World w = { .g = graph_new() };
    Graph *g = w.g;
    g->mesh.size[MESH_AT_GROUP] = 2, g->mesh.size[MESH_AT_DP] = 4;
    w.row = graph_axis(g, "row", 8), w.col = graph_axis(g, "col", 32);
    w.x = make_leaf(g, K_PARAM, 0, F32, 2, (Axis[]){ w.row, w.col });
    vec_push(g->params, (Param){ .name = "x", .val = w.x, .acc = -1 });
    return w;
}

static void at(World *w, SegmentId seg, int chunk) { w->g->cur_seg = seg_code(seg, chunk), w->g->cur_chunk = (uint8_t)chunk; }

static Val all_reduce(World *w, Val v, uint32_t mesh, uint32_t batch)
{
    Reshard r = { .how = COLL_ALL_REDUCE, .key = comm_key(mesh), .batch = batch, .why = "test" };
    return make_reshard(w->g, v, &r);
}

static uint32_t accumulator(World *w, Val v)
{
    const Node n = *node_of(w->g, v);
    uint32_t acc = graph_acc(w->g, "acc", -1, (DType)n.dtype, n.naxes, n.axes);
    make_accumulate(w->g, acc, v);
    return acc;
}

static void back_end(World *w)
{
    select_nodes(w->g), verify_select(w->g);
    fuse(w->g), verify_fuse(w->g);
    order(w->g), verify_order(w->g);
    place(w->g, NULL), verify_place(w->g);
}

// The only node of that kind that is made of a node of kind `of` (K_NONE: of any).
static Val find(const Graph *g, Kind kind, Kind of)
{
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->nodes[v].kind == kind && (!of || g->nodes[g->nodes[v].in[0]].kind == of)) return v;
    fail();
    return 0;
}

static uint32_t group_with(const Graph *g, GroupKind kind, Val v)
{
    for (uint32_t i = 0; i < vec_len(g->groups); i++)
        for (size_t k = 0; g->groups[i].kind == kind && k < vec_len(g->groups[i].nodes); k++)
            if (g->groups[i].nodes[k] == v) return i;
    fail();
    return 0;
}

static bool same_place(const Graph *g, Val v, Val w)
{
    Place p = value_place(g, v), q = value_place(g, w);
    const Buffer *b = &g->buffers[p.buffer], *c = &g->buffers[q.buffer];
    return b->arena == c->arena && b->offset + p.offset == c->offset + q.offset && p.stride == q.stride;
}

// ---------------------------------------------------------------------------------------------------------- between maps
static void test_between_maps(void **state)
{
    (void)state;
    World w = new_world();
    at(&w, SEG_F, 0);
    Val before = make_map1(w.g, FN_EXP, w.x), sum = all_reduce(&w, before, MESH_GROUP, 0);
    Val y = make_leaf(w.g, K_PARAM, 1, F32, 2, (Axis[]){ w.col, w.row });
    vec_push(w.g->params, (Param){ .name = "y", .val = y, .acc = -1 });
    accumulator(&w, make_reduce_raw(w.g, RED_SUM, make_map1(w.g, FN_EXP, y), 1, &w.col));  // does not wait
    accumulator(&w, make_map1(w.g, FN_SIGMOID, sum));
    back_end(&w);
    Val v = find(w.g, K_RESHARD, K_NONE), in = w.g->nodes[v].in[0];
    uint32_t start = group_with(w.g, G_START, v), wait = group_with(w.g, G_WAIT, v);
    assert_int_equal(w.g->group_of[v], wait + 1);
    assert_int_equal(w.g->group_of[in], start);      // right behind what it takes
    assert_true(wait > start + 1);                   // the other kernels run between
    assert_true(same_place(w.g, in, v));             // nothing else reads the operand
    assert_int_equal(vec_len(w.g->colls), 1);
    assert_int_equal(w.g->colls[0].parts[0].inner, 8 * 32);
    graph_free(w.g);
}

static void test_operand_is_kept(void **state)
{
    (void)state;
    World w = new_world();
    at(&w, SEG_F, 0);
    Val before = make_map1(w.g, FN_EXP, w.x), sum = all_reduce(&w, before, MESH_GROUP, 0);
    accumulator(&w, make_map2(w.g, FN_MUL, before, sum));
    back_end(&w);
    Val v = find(w.g, K_RESHARD, K_NONE);
    assert_false(same_place(w.g, w.g->nodes[v].in[0], v));
    graph_free(w.g);
}

static void test_parts_of_axes(void **state)
{
    (void)state;
    World w = new_world();
    at(&w, SEG_F, 0);
    Axis half = graph_axis(w.g, "col", 16);
    Reshard r = { .how = COLL_REDUCE_SCATTER, .key = comm_key(MESH_GROUP), .axis = w.col, .part = half, .why = "test" };
    Val v = make_reshard(w.g, make_pick(w.g, w.x, w.row, 3), &r);  // a view: packed first
    r.how = COLL_ALL_GATHER;
    Val wide = make_reshard(w.g, make_broadcast(w.g, make_map1(w.g, FN_EXP, v), 2, (Axis[]){ w.row, half }), &r);
    accumulator(&w, make_map1(w.g, FN_EXP, wide));
    back_end(&w);
    const struct CollPart *scatter = w.g->colls[0].parts, *gather = w.g->colls[1].parts;
    assert_int_equal(scatter->outer, 1), assert_int_equal(scatter->inner, 16);
    assert_int_equal(gather->outer, 8), assert_int_equal(gather->inner, 16);
    assert_int_equal(w.g->nodes[scatter->in].fn, VIEW_PACK);
    assert_int_equal(w.g->nodes[gather->in].fn, VIEW_PACK);
    graph_free(w.g);
}

// ------------------------------------------------------------------------------------------------------------ once a step
static void test_batch(void **state)
{
    (void)state;
    World w = new_world();
    at(&w, SEG_B, 0);
    Val v = make_map1(w.g, FN_EXP, w.x);
    uint32_t a = accumulator(&w, v), b = accumulator(&w, make_map1(w.g, FN_TANH, v));
    at(&w, SEG_UPDATE, 0);
    Val sums[2], all = 0;
    for (int i = 0; i < 2; i++) {
        Val total = w.g->accs[i ? b : a].total;
        sums[i] = make_reduce_raw(w.g, RED_SUM, make_map2(w.g, FN_MUL, total, total), 2, (Axis[]){ w.row, w.col });
        sums[i] = all_reduce(&w, sums[i], MESH_TP, 7);
    }
    all = make_map2(w.g, FN_ADD, sums[0], sums[1]);
    graph_output(w.g, "norm", all);
    back_end(&w);
    assert_int_equal(vec_len(w.g->colls), 1);
    assert_int_equal(vec_len(w.g->colls[0].parts), 2);
    assert_false(w.g->groups[group_with(w.g, G_START, find(w.g, K_RESHARD, K_NONE))].last);
    graph_free(w.g);
}

// w_chunk, w_mesh: where else the second gradient is added, over whom it is reduced. True: it begins in backward.
static bool begins_in_backward(SegmentId seg, int chunk, uint32_t mesh, uint8_t *code)
{
    World w = new_world();
    if (mesh & MESH_PP) w.g->nstages = 2;
    at(&w, SEG_B, 0);
    Val v = make_map1(w.g, FN_EXP, w.x);
    uint32_t acc = accumulator(&w, v);
    make_accumulate(w.g, graph_acc(w.g, "other", -1, F32, 0, NULL), make_reduce_raw(w.g, RED_SUM, v, 2, (Axis[]){ w.row, w.col }));
    at(&w, seg, chunk);
    make_accumulate(w.g, acc, make_map1(w.g, FN_TANH, w.x));
    at(&w, SEG_UPDATE, 0);
    Reshard r = { .how = COLL_ALL_REDUCE, .key = { mesh & MESH_PP ? 3 : 0, mesh }, .batch = 1, .why = "test" };
    make_update(w.g, w.x, make_reshard(w.g, w.g->accs[acc].total, &r));
    back_end(&w);
    Val reshard = find(w.g, K_RESHARD, K_TOTAL), total = w.g->nodes[reshard].in[0];
    const Group *start = &w.g->groups[group_with(w.g, G_START, reshard)];
    assert_true(same_place(w.g, reshard, total));
    assert_int_equal(w.g->groups[group_with(w.g, G_WAIT, reshard)].seg, AT_UPDATE);
    bool last = start->last;
    assert_int_equal(last, start->seg != AT_UPDATE);
    *code = start->seg;
    graph_free(w.g);
    return last;
}

static void test_gradients(void **state)
{
    (void)state;
    uint8_t code;
    assert_true(begins_in_backward(SEG_B, 0, MESH_DP, &code)), assert_int_equal(code, seg_code(SEG_B, 0));
    assert_true(begins_in_backward(SEG_W, 0, MESH_DP, &code)), assert_int_equal(code, seg_code(SEG_W, 0));
    assert_false(begins_in_backward(SEG_B, 1, MESH_DP, &code));
    assert_false(begins_in_backward(SEG_B, 0, MESH_DP | MESH_PP, &code));
}

static void test_parts_of_parameters(void **state)
{
    (void)state;
    World w = new_world();
    Graph *g = w.g;
    Axis odd = graph_axis(g, "odd", 30), flat = graph_axis(g, "flat", 8), whole = graph_axis(g, "flat", 32);
    Val p = make_leaf(g, K_PARAM, 1, F32, 1, &odd), s = make_leaf(g, K_STATE, 0, F32, 1, &flat);
    vec_push(g->params, (Param){ .name = "p", .val = p, .acc = -1 });
    vec_push(g->states, (State){ .name = "m", .param = 1, .val = s });
    at(&w, SEG_B, 0);
    uint32_t acc = accumulator(&w, make_map1(g, FN_EXP, p));
    at(&w, SEG_UPDATE, 0);
    CommKey key = comm_key(MESH_DP);
    Val part = make_reshard(g, g->accs[acc].total, &(Reshard){ .how = COLL_REDUCE_SCATTER, .key = key, .part = flat, .why = "g" });
    Val slice = make_slice(g, p, key, flat);
    make_update(g, s, make_map2(g, FN_ADD, s, part));
    Val updated = make_update(g, slice, make_map2(g, FN_SUB, slice, part));
    make_reshard(g, updated, &(Reshard){ .how = COLL_ALL_GATHER, .key = key, .axis = whole, .part = flat, .why = "p" });
    back_end(&w);
    Val scatter = find(g, K_RESHARD, K_TOTAL), gather = find(g, K_RESHARD, K_UPDATE);
    Place share = value_place(g, scatter), mine = value_place(g, g->nodes[gather].in[0]), all = value_place(g, gather);
    assert_int_equal(share.buffer, g->buffer_of[g->accs[acc].total] - 1);
    assert_int_equal(share.stride, 8 * 4), assert_int_equal(mine.stride, 8 * 4), assert_int_equal(all.stride, 0);
    assert_int_equal(mine.buffer, all.buffer), assert_int_equal(mine.buffer, g->buffer_of[g->params[1].val] - 1);
    assert_int_equal(g->buffers[mine.buffer].bytes, 32 * 4), assert_int_equal(g->buffers[share.buffer].bytes, 32 * 4);
    assert_int_equal(w.g->groups[group_with(g, G_START, scatter)].seg, seg_code(SEG_B, 0));
    graph_free(g);
}

// ---------------------------------------------------------------------------------------------------------- other stages
static PlanClass class_of(const Graph *g, Val v)
{
    return (PlanClass)g->arenas[g->buffers[value_place(g, v).buffer].arena].class_;
}

static Val receive(World *w, bool backward)
{
    uint32_t id = (uint32_t)vec_len(w->g->transfers);
    Val v = make_leaf(w->g, K_RECV, id, F32, 2, (Axis[]){ w->row, w->col });
    vec_push(w->g->transfers, (Transfer){ .tag = id, .backward = backward, .val = v });
    return v;
}

static void send(World *w, Val v, bool backward)
{
    vec_push(w->g->transfers, (Transfer){ .tag = (uint32_t)vec_len(w->g->transfers), .send = true, .backward = backward, .val = v });
}

static void test_stages(void **state)
{
    (void)state;
    World w = new_world();
    Graph *g = w.g;
    Val in = receive(&w, false), up = receive(&w, true);
    at(&w, SEG_F, 0);
    Val kept = make_map1(g, FN_EXP, in), for_w = make_map1(g, FN_TANH, in), out = make_map2(g, FN_ADD, kept, for_w);
    send(&w, out, false);                                       // 2
    send(&w, kept, false);                                      // 3: and kept
    send(&w, in, false);                                        // 4: passed on as it came
    send(&w, make_broadcast(g, w.x, 2, (Axis[]){ w.col, w.row }), false);  // 5: a view of a parameter
    at(&w, SEG_B, 0);
    Val down = make_map2(g, FN_MUL, kept, up), both = make_map1(g, FN_SIGMOID, down);
    send(&w, down, true);                                       // 6
    at(&w, SEG_W, 0);
    accumulator(&w, make_map2(g, FN_MUL, for_w, make_map1(g, FN_EXP, both)));
    back_end(&w);
    static const PlanClass classes[] = { CLASS_RF, CLASS_RB, CLASS_SF, CLASS_FB, CLASS_RF, CLASS_SF, CLASS_SB };
    for (size_t i = 0; i < countof(classes); i++)
        if (i != 6) assert_int_equal(class_of(g, g->transfers[i].val), classes[i]);
    PlanClass last = class_of(g, g->transfers[6].val);
    assert_true(last == CLASS_SB || last == CLASS_BW);          // as fuse decides who makes `both`
    for (size_t i = 2; i < vec_len(g->arenas); i++)
        for (size_t k = i + 1; k < vec_len(g->arenas); k++) assert_true(g->arenas[i].class_ < g->arenas[k].class_);
    graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_maps), cmocka_unit_test(test_operand_is_kept), cmocka_unit_test(test_parts_of_axes),
        cmocka_unit_test(test_batch), cmocka_unit_test(test_gradients), cmocka_unit_test(test_parts_of_parameters),
        cmocka_unit_test(test_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
