// bucket_flat.c: --zero 1: each rank of a gradient's group updates its own part of the parameter.
//
// A parameter of n elements on k ranks is cut in k flat parts of c elements, c = n / k rounded up, then to a multiple of 16.
// The total is reduce-scattered in place to the own part; the update runs on the axis `flat` [c]: slices of the parameter,
// states that are only this large; new parts are gathered in place. Sums over a gradient run over the own part, and
// cut has put the all-reduce over the key behind them.
//
// The last parts reach beyond the n elements. There parameter, total and states are 0 from the start; gradients add
// nothing there, and a reduce-scatter in place leaves other members' shares as they were, so that sums over a part are
// sums over what the parameter has.
//
// Only elementwise updates can be cut so: maps of whole tensors and numbers, and sums to a number. Else: the user's error.
// What F and B read of a parameter (casts, norms) stays whole, even where the update reads the same.
#include "cut.h"

typedef struct {
    const Node *old;
    size_t n;
    const uint32_t *reduce, *gather;  // by accumulator
    uint8_t *live, *fixed;            // fixed: F or B, or of them
    uint8_t *wanted, *whole;          // as flat part, by the update; whole, by F or B
    uint32_t *param;                  // + 1: flat parameter that a value with axes is made of
    Val *map, *flat;                  // old value -> new, whole or flat
    Axis *axis;                       // by parameter
} Flat;

_Noreturn static void err_whole(const Graph *g, const Node *x)
{
    err(g, x->op ? g->ops[x->op].loc : x->loc,
        "--zero 1 updates parameters in parts, and this update needs a whole one: leave --zero out for this optimizer");
}

// ---- what is wanted how
static int leaf_param(const Graph *g, const Node *x)
{
    int p = -1;
    if (x->kind == K_PARAM) p = (int)x->u.id;
    if (x->kind == K_STATE) p = g->states[x->u.id].param;
    if (x->kind == K_TOTAL) p = g->accs[x->u.id].param;
    return p >= 0 && x->naxes && param_is_flat(g, p) ? p : -1;
}

static void find_params(const Graph *g, Flat *f)
{
    for (Val v = 1; v < f->n; v++) {
        const Node *x = &f->old[v];
        f->fixed[v] = x->kind == K_INPUT || x->kind == K_RANDOM || x->kind == K_RECV || x->kind == K_ACCUMULATE
                   || (x->kind == K_INDEX && x->u.axis == g->batch);
        if (!x->nin) f->param[v] = (uint32_t)(leaf_param(g, x) + 1);
        for (int i = 0; i < x->nin; i++) {
            f->fixed[v] |= f->fixed[x->in[i]];
            if (x->naxes && f->old[x->in[i]].naxes && !f->param[v]) f->param[v] = f->param[x->in[i]];
        }
    }
}

static bool is_sum_of_part(const Flat *f, Val v)
{
    const Node *x = &f->old[v];
    return x->kind == K_REDUCE && !x->naxes && f->param[x->in[0]] && !f->whole[v];
}

static void find_wanted(const Graph *g, Flat *f)
{
    for (Val v = (Val)f->n; v-- > 1;) {
        const Node *x = &f->old[v];
        if (!f->live[v]) continue;
        bool update = x->kind == K_UPDATE && f->param[x->in[1]];
        bool flat = update || f->wanted[v] || is_sum_of_part(f, v), needs = f->fixed[v] || f->whole[v];
        for (int i = 0; i < x->nin; i++) {
            Val w = x->in[i];
            f->whole[w] |= needs;
            if (f->old[w].naxes && flat && !(update && i == 1)) f->wanted[w] = 1;
            if (f->param[w] && !flat && !needs) err_whole(g, x);
        }
    }
}

// ---- parts
// Before the rewrite: during it the tables' values are still the old ones.
static void find_axes(Graph *g, Flat *f)
{
    for (int p = 0; p < (int)vec_len(g->params); p++) {
        if (!param_is_flat(g, p)) continue;
        int64_t k = key_size(g, g->accs[g->params[p].acc].key), c = (elements(g, g->params[p].val) + k - 1) / k;
        f->axis[p] = graph_axis(g, "flat", (c + 15) / 16 * 16);
    }
}

static bool same_order(const Node *a, const Node *b)
{
    return a->naxes == b->naxes && !memcmp(a->axes, b->axes, a->naxes * sizeof(Axis));
}

static Val slice_of(Graph *g, const Flat *f, Val leaf, int p)
{
    return make_slice(g, leaf, g->accs[g->params[p].acc].key, f->axis[p]);
}

// The own part of old value w, an operand of x, whose values are parts of parameter p.
static Val part_of(Graph *g, Flat *f, const Node *x, Val w, int p)
{
    const Node *y = &f->old[w];
    if (!y->naxes) return f->map[w];
    if (!f->param[w] && y->kind == K_VIEW && !f->old[y->in[0]].naxes) return f->map[y->in[0]];  // a number spread out
    if (f->param[w] != (uint32_t)p + 1 || !same_order(y, &f->old[g->params[p].val])) err_whole(g, x);
    if (f->flat[w]) return f->flat[w];
    if (y->kind == K_PARAM) return f->flat[w] = slice_of(g, f, f->map[w], p);
    if (y->kind != K_TOTAL) bug("zero: value %u has no part", w);
    Val total = g->accs[y->u.id].total;
    Reshard r = bucket_reshard(g, y->u.id, f->reduce[y->u.id]);
    r.how = COLL_REDUCE_SCATTER, r.part = f->axis[p];
    Loc loc = g->cur_loc;
    uint32_t op = g->cur_op;
    g->cur_loc = g->params[p].loc, g->cur_op = 0;
    f->flat[w] = r.batch ? make_reshard(g, total, &r) : slice_of(g, f, total, p);
    g->cur_loc = loc, g->cur_op = op;
    return f->flat[w];
}

static Val flat_map(Graph *g, Flat *f, const Node *x, int p)
{
    if (x->kind != K_MAP || !same_order(x, &f->old[g->params[p].val])) err_whole(g, x);
    Val in[6];
    for (int i = 0; i < x->nin; i++) in[i] = part_of(g, f, x, x->in[i], p);
    Val v = x->fn == FN_CAST ? make_cast(g, in[0], (DType)x->dtype) : make_map(g, (Fn)x->fn, x->nin, in);
    return make_broadcast(g, v, 1, &(Axis){f->axis[p]});
}

static Val flat_sum(Graph *g, Flat *f, const Node *x)
{
    int p = (int)f->param[x->in[0]] - 1;
    if (x->reduce != RED_SUM) err_whole(g, x);
    return make_reduce_raw(g, RED_SUM, part_of(g, f, x, x->in[0], p), 1, &(Axis){f->axis[p]});
}

static Val flat_update(Graph *g, Flat *f, const Node *x)
{
    const Node *target = &f->old[x->in[1]];
    int p = (int)f->param[x->in[1]] - 1;
    Axis flat = f->axis[p];
    Val v = make_broadcast(g, part_of(g, f, x, x->in[0], p), 1, &flat);
    if (target->kind == K_STATE) return make_update(g, f->map[x->in[1]], v);
    uint32_t acc = (uint32_t)g->params[p].acc;
    Val update = make_update(g, slice_of(g, f, f->map[x->in[1]], p), v);
    Reshard r = {.how = COLL_ALL_GATHER, .key = g->accs[acc].key, .axis = flat, .batch = f->gather[acc]};
    r.why = "updated parameters";
    if (r.batch) (void)make_reshard(g, update, &r);
    return update;
}

static Val visit(Graph *g, void *ctx, const Node *node, Val old)
{
    Flat *f = ctx;
    const Node *x = &f->old[old];
    int p = (int)f->param[old] - 1;
    Val flat = 0;
    if (x->kind == K_STATE && p >= 0) {
        if (f->whole[old]) bug("zero: forward reads a state");
        flat = make_leaf(g, K_STATE, x->u.id, (DType)x->dtype, 1, &(Axis){f->axis[p]});
    } else if (x->kind == K_UPDATE && f->param[x->in[1]]) flat = flat_update(g, f, x);
    else if (is_sum_of_part(f, old) && f->live[old]) return f->map[old] = flat_sum(g, f, x);
    else if (f->wanted[old] && p >= 0 && x->nin) flat = flat_map(g, f, x, p);
    f->flat[old] = flat;
    return f->map[old] = flat && !f->whole[old] ? flat : graph_copy(g, node);
}

void bucket_flat(Graph *g, const uint32_t *reduce, const uint32_t *gather)
{
    size_t n = vec_len(g->nodes);
    Node *old = xmalloc(n * sizeof *old);
    memcpy(old, g->nodes, n * sizeof *old);
    Flat f = {.old = old, .n = n, .reduce = reduce, .gather = gather};
    f.live = xcalloc(n, 1), f.fixed = xcalloc(n, 1), f.wanted = xcalloc(n, 1), f.whole = xcalloc(n, 1);
    f.param = xcalloc(n, sizeof *f.param), f.map = xcalloc(n, sizeof *f.map), f.flat = xcalloc(n, sizeof *f.flat);
    f.axis = xcalloc(vec_len(g->params) + 1, sizeof *f.axis);
    graph_mark_live(g, f.live);
    find_params(g, &f);
    find_wanted(g, &f);
    find_axes(g, &f);
    graph_rewrite(g, visit, &f);
    free(f.live), free(f.fixed), free(f.wanted), free(f.whole), free(f.param), free(f.map), free(f.flat), free(f.axis);
    free(old);
}
