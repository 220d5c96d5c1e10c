// random_graph.h: random graphs of one or two ranks, for test_groups.c: all kinds of nodes between leaves and updates, with
// collectives where there are two ranks. The same seed gives the same graph.
#pragma once
#include "eval.h"

static uint64_t random_state;
static int dice(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

// --------------------------------------------------------------------------------------------------- random graphs
enum { AXES = 5, LEAVES = 4, ACCS = 4 };
typedef struct {
    Graph *g;
    Axis axes[AXES], twin[AXES];  // twin: of the same size, for renamings
    Val *pool;                    // vec: what new nodes are made of
    uint32_t ranks, batches;
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

// ------------------------------------------------------------------------------------------------- between two ranks
static Reshard all_reduce(uint32_t batch)
{
    PlanReduce how = batch || dice(3) ? REDUCE_SUM : REDUCE_MAX;
    return (Reshard){ .how = COLL_ALL_REDUCE, .reduce = (uint8_t)how, .key = comm_key(MESH_GROUP), .batch = batch, .why = "test" };
}

// Of a value, or of several that do not depend on each other.
static Val random_reshard(Maker *m, Val a)
{
    Graph *g = m->g;
    const Node n = *node_of(g, a);
    if (n.dtype != F64) return a;
    if (n.naxes && dice(3) == 0) {  // joined along an axis, and cut again
        Axis part = n.axes[dice(n.naxes)], whole = graph_axis(g, axis_name(g, part), 2 * extent_of(g, part));
        Reshard r = { .how = COLL_ALL_GATHER, .key = comm_key(MESH_GROUP), .axis = whole, .part = part, .why = "gather" };
        a = make_map1(g, FN_TANH, make_reshard(g, a, &r));
        r.how = COLL_REDUCE_SCATTER, r.why = "scatter";
        return make_reshard(g, a, &r);
    }
    Val several[3] = { a, some(m), some(m) };
    uint32_t batch = dice(2) ? ++m->batches : 0;
    for (int i = 0; i < (batch ? 3 : 1); i++) {
        Reshard r = all_reduce(batch);
        if (node_of(g, several[i])->dtype == F64) several[i] = make_reshard(g, several[i], &r);
        vec_push(m->pool, several[i]);
    }
    return several[0];
}

// A parameter whose gradient is scattered, updated in parts and joined again.
static void update_in_parts(Maker *m, Val param, uint32_t acc, Val state)
{
    Graph *g = m->g;
    Axis flat = node_of(g, state)->axes[0], joined = graph_axis(g, axis_name(g, flat), 2 * extent_of(g, flat));
    Reshard r = { .how = COLL_REDUCE_SCATTER, .key = comm_key(MESH_GROUP), .part = flat, .why = "gradient" };
    Val grad = make_reshard(g, g->accs[acc].total, &r), old = make_slice(g, param, r.key, flat);
    Val moment = make_map2(g, FN_ADD, make_map2(g, FN_MUL, state, make_const(g, F64, 0.5)), grad);
    make_update(g, state, moment);
    Val value = make_map2(g, FN_SUB, old, make_map1(g, FN_TANH, moment));
    if (dice(2)) {  // depends on what is old all over it
        Val sum = make_reduce_raw(g, RED_SUM, param, node_of(g, param)->naxes, node_of(g, param)->axes);
        value = make_map2(g, FN_ADD, value, make_map1(g, FN_TANH, sum));
    } else if (elements(g, param) >= extent_of(g, flat)) {  // or at its beginning
        Axis axes[MAX_AXES];
        int n = node_of(g, param)->naxes;
        memcpy(axes, node_of(g, param)->axes, sizeof axes);
        Axis line = graph_axis(g, "line", elements(g, param));
        value = make_map2(g, FN_ADD, value, make_rename(g, n == 1 ? make_rename(g, param, axes[0], line) : make_merge(g, param, n, axes, line), line, flat));
    }
    vec_push(m->pool, make_map2(g, FN_MUL, old, make_const(g, F64, 0.25)));  // of the old value, wanted later
    vec_push(m->pool, make_reduce_raw(g, RED_SUM, old, 1, &flat));
    Val updated = make_update(g, old, value);
    r = (Reshard){ .how = COLL_ALL_GATHER, .key = r.key, .axis = joined, .part = flat, .why = "parameter" };
    make_reshard(g, updated, &r);
}

static Val random_node(Maker *m)
{
    Graph *g = m->g;
    Val a = some(m), b = some(m), cond;
    Axis over[MAX_AXES];
    int n = 0;
    if (m->ranks > 1 && dice(6) == 0 && g->cur_seg != AT_PREP) return random_reshard(m, a);
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
        if (node_of(g, a)->naxes < 2 || g->cur_seg <= AT_PREP || g->cur_seg == AT_UPDATE || has_axis(node_of(g, a), m->axes[0])) return a;
        return has_axis(node_of(g, a), m->axes[2]) ? make_gather(g, a, g->inputs[0].val, m->axes[2]) : a;
    }
}

static void grow(Maker *m, SegmentId seg, int nodes)
{
    m->g->cur_seg = seg_code(seg, 0);
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

static Graph *new_graph(uint32_t ranks)
{
    Graph *g = graph_new();
    g->dtype = F64;
    g->mesh.size[MESH_AT_GROUP] = ranks;
    return g;
}

static void accumulate_some(Maker *m, size_t forward)
{
    Graph *g = m->g;
    for (int i = 0; i < ACCS; i++)
        for (int k = 1 + dice(2); k > 0; k--) {
            if (dice(3) == 0) g->cur_seg = seg_code(SEG_W, 0);
            Val v = m->pool[forward + (size_t)dice((int)(vec_len(m->pool) - forward))];
            make_accumulate(g, (uint32_t)i, shaped(g, v, g->accs[i].total));
            g->cur_seg = seg_code(SEG_B, 0);
        }
}

static void update_all(Maker *m)
{
    Graph *g = m->g;
    for (int i = 0; i < LEAVES; i++) {
        make_update(g, g->states[i].val, shaped(g, some(m), g->states[i].val));
        if (dice(2)) grow(m, SEG_UPDATE, 2);  // reads old values after the update
        make_update(g, g->params[i].val, shaped(g, some(m), g->params[i].val));
    }
}

static Graph *random_graph(uint32_t ranks)
{
    Maker m = { .g = new_graph(ranks), .ranks = ranks };
    Graph *g = m.g;
    static const char *const names[] = { "a", "b", "c", "d", "e" };
    for (int i = 0; i < AXES; i++) m.axes[i] = graph_axis(g, names[i], i < 2 ? 2 : 2 + dice(3));
    make_leaves(&m);
    for (int i = 0; i < LEAVES; i++) vec_push(m.pool, g->params[i].val);
    grow(&m, SEG_PREP, 2);
    grow(&m, SEG_F, 4 + dice(12));
    size_t forward = vec_len(m.pool);
    grow(&m, SEG_B, 4 + dice(12));
    accumulate_some(&m, forward);
    Val whole = g->params[0].val, parts = 0;  // a further parameter, with ZeRO
    if (ranks > 1) {
        Axis flat = graph_axis(g, "flat", (elements(g, whole) + 1) / 2);
        parts = make_leaf(g, K_STATE, LEAVES, F64, 1, &flat);
        vec_push(g->states, (State){ .name = "parts", .val = parts });
        Val p = make_leaf(g, K_PARAM, LEAVES, F64, node_of(g, whole)->naxes, node_of(g, whole)->axes);
        vec_push(g->params, (Param){ .name = "whole", .val = p, .acc = -1 });
        uint32_t acc = graph_acc(g, "whole", -1, F64, node_of(g, whole)->naxes, node_of(g, whole)->axes);
        make_accumulate(g, acc, shaped(g, make_map2(g, FN_MUL, p, m.pool[vec_len(m.pool) - 1]), p));
    }
    vec_clear(m.pool);
    for (int i = 0; i < LEAVES; i++) {
        vec_push(m.pool, g->params[i].val);
        vec_push(m.pool, g->states[i].val);
    }
    g->cur_seg = AT_UPDATE;
    if (ranks > 1) update_in_parts(&m, g->params[LEAVES].val, ACCS, parts);
    if (ranks > 1) vec_push(m.pool, g->params[LEAVES].val);  // its old value
    uint32_t batch = dice(2) ? ++m.batches : 0;
    for (int i = 0; i < ACCS; i++) {
        Reshard r = all_reduce(batch);
        vec_push(m.pool, ranks > 1 ? make_reshard(g, g->accs[i].total, &r) : g->accs[i].total);
    }
    grow(&m, SEG_UPDATE, 2 + dice(16));
    update_all(&m);
    Val out = some(&m);
    graph_output(g, "loss", make_reduce_raw(g, RED_SUM, out, node_of(g, out)->naxes, node_of(g, out)->axes));
    vec_free(m.pool);
    return g;
}
