// shard_emit.c: the new graph of one round of pass shard, from the states that shard.c has found.
//
// Every node is made again with local axes. Its operands are fetched as it wants them: split along its work axis (sliced, if
// they are whole), whole (gathered, if they are split), or partial. Behind a marked partial node stands its reduction.
//
// A slice of a whole value is no copy: it is pushed down to where the axis comes from. An index becomes local index +
// coordinate * extent, a broadcast is a shorter one, a map is made of slices; only at a stored leaf it is a gather at those
// positions. Traps: totals are copied before all other nodes, so the leaves' axes are changed in the graph before the rewrite.
#include "shard.h"

// -------------------------------------------------------------------------------------------------------- positions
static Val coordinate(Graph *g, MeshFactor f)
{
    return make_cast(g, make_leaf(g, K_SCALAR, (uint32_t)(SLOT_COORD + f), F64, 0, NULL), I32);
}

// Where this rank's part of an axis begins.
static Val part_start(Shard *s, Axis part)
{
    Graph *g = s->g;
    return make_map2(g, FN_MUL, coordinate(g, s->factor), make_const(g, I32, (double)extent_of(g, part)));
}

static Val part_index(Shard *s, Axis part) { return make_map2(s->g, FN_ADD, make_index(s->g, part), part_start(s, part)); }

// ----------------------------------------------------------------------------------------------------------- slices
static Val slice(Shard *s, Val v, Axis w);

static Val slice_view(Shard *s, Val v, Axis w)
{
    Graph *g = s->g;
    const Node n = *node_of(g, v);
    Axis part = part_axis(s, w), from = 0, axes[MAX_AXES];
    View view = *n.u.view;
    int mentions = 0;
    bool own = has_axis(node_of(g, n.in[0]), w);  // the operand's axis as it is
    for (int i = 0; i < view.n; i++) own = own && view.ix[i].src != w;
    for (int i = 0; i < n.naxes; i++) axes[i] = n.axes[i] == w ? part : n.axes[i];
    for (int i = 0; i < view.n; i++)
        for (int t = 0; t < view.ix[i].nterms; t++)
            if (view.ix[i].axis[t] == w) mentions++, from = view.ix[i].src;
    if (mentions == 0) {  // a broadcast, or the operand's own axis
        return make_view(g, own ? slice(s, n.in[0], w) : n.in[0], &view, n.naxes, axes);
    }
    for (int i = 0; i < view.n && mentions == 1; i++) {
        ViewIndex *x = &view.ix[i];
        if (x->src != from || x->nterms != 1 || x->coef[0] != 1 || x->offset || x->div != 1 || x->mod || x->zero
            || extent_of(g, from) != extent_of(g, w))
            continue;
        Val source = slice(s, n.in[0], from);
        x->src = part_axis(s, from);
        x->axis[0] = part;
        return make_view(g, source, &view, n.naxes, axes);
    }
    return 0;
}

// The same node of sliced operands.
static Val slice_operands(Shard *s, Val v, Axis w)
{
    Graph *g = s->g;
    Node n = *node_of(g, v);
    for (int i = 0; i < n.nin; i++)
        if (has_axis(node_of(g, n.in[i]), w)) n.in[i] = slice(s, n.in[i], w);
    return graph_copy(g, &n);
}

// This rank's part of whole value v along w.
static Val slice(Shard *s, Val v, Axis w)
{
    Graph *g = s->g;
    const Node n = *node_of(g, v);
    Val sliced = 0;
    if (!has_axis(&n, w)) return v;
    switch (n.kind) {
    case K_INDEX: return part_index(s, part_axis(s, w));
    case K_MAP: case K_REDUCE: case K_CONTRACT: return slice_operands(s, v, w);
    case K_VIEW: sliced = n.fn ? 0 : slice_view(s, v, w); break;
    case K_GATHER: sliced = n.u.axis != w && !has_axis(node_of(g, n.in[0]), w) ? slice_operands(s, v, w) : 0; break;
    default: break;
    }
    return sliced ? sliced : make_gather(g, v, part_index(s, part_axis(s, w)), w);
}

// ------------------------------------------------------------------------------------------------------ communication
static const char *why_reduced(Shard *s, Val v)
{
    Val at = s->origin[v];
    Axis w = s->work[at];
    if (s->old[v].naxes == 0) return "sums over split parameters";
    if (!w) return "sum of what the ranks have";
    return arena_printf(&s->g->arena, "%s is split", axis_name(s->g, w));
}

static Val reduce_behind(Shard *s, Val v, Val x)
{
    Graph *g = s->g;
    Layout to = s->seen[v];
    Reshard r = {.how = to.spread == SPLIT ? COLL_REDUCE_SCATTER : COLL_ALL_REDUCE, .reduce = s->made[v].reduce,
                 .key = comm_key(1u << s->factor), .why = why_reduced(s, v)};
    if (to.spread == SPLIT) r.axis = to.axis, r.part = part_axis(s, to.axis);
    if (required(g, "reshard", r.why)) return make_reshard(g, x, &r);
    return to.spread == SPLIT ? slice(s, x, to.axis) : x;
}

// The whole of split value v.
static Val gathered(Shard *s, Val v)
{
    Graph *g = s->g;
    if (s->whole[v]) return s->whole[v];
    Axis axis = s->seen[v].axis, part = part_axis(s, axis);
    Val x = s->now[v];
    Reshard r = {.how = COLL_ALL_GATHER, .key = comm_key(1u << s->factor), .axis = axis, .part = part,
                 .why = arena_printf(&g->arena, "all of %s is needed", axis_name(g, axis))};
    if (required(g, "reshard", r.why)) return s->whole[v] = make_reshard(g, x, &r);
    Axis axes[MAX_AXES];  // left out: the own part over and over
    const Node n = *node_of(g, x);
    for (int i = 0; i < n.naxes; i++) axes[i] = n.axes[i] == part ? axis : n.axes[i];
    View view = {.n = 1, .ix = {{.src = part, .nterms = 1, .axis = {axis}, .coef = {1}, .div = 1, .mod = extent_of(g, part)}}};
    return s->whole[v] = make_view(g, x, &view, n.naxes, axes);
}

// Operand v for a node that works on axis w (0: on none).
static Val fetch(Shard *s, Val v, Axis w)
{
    Layout state = s->seen[v];
    if (s->old[v].kind == K_TOTAL) s->now[v] = s->g->accs[s->old[v].u.id].total;
    if (state.spread == PARTIAL) return s->now[v];
    if (state.spread == SPLIT && state.axis == w) return s->now[v];
    Val whole = state.spread == SPLIT ? gathered(s, v) : s->now[v];
    return w && has_axis(&s->old[v], w) ? slice(s, whole, w) : whole;
}

// ------------------------------------------------------------------------------------------------------------ nodes
static Val emit_view(Shard *s, const Node *old, Val x, Axis b, Axis c)
{
    Graph *g = s->g;
    View view = *old->u.view;
    Axis axes[MAX_AXES], c_part = part_axis(s, c), b_part = part_axis(s, b);
    for (int i = 0; i < old->naxes; i++) axes[i] = old->axes[i] == c ? c_part : old->axes[i];
    for (int i = 0; i < view.n; i++) {
        ViewIndex *ix = &view.ix[i];
        for (int t = 0; t < ix->nterms; t++)
            if (ix->axis[t] == c) ix->axis[t] = c_part;
        if (ix->src != b) continue;
        ix->src = b_part;
        if (ix->mod == extent_of(g, b)) ix->mod = extent_of(g, b_part);
    }
    return make_view(g, x, &view, old->naxes, axes);
}

// The view's positions of b as what a rank adds to the whole.
static Val emit_placed(Shard *s, const Node *old, Val x, Axis b)
{
    Graph *g = s->g;
    const ViewIndex *ix = &old->u.view->ix[0];
    Val index = part_index(s, part_axis(s, b));
    if (ix->offset) index = make_map2(g, FN_SUB, index, make_const(g, I32, (double)ix->offset));
    return make_scatter_add(g, x, index, ix->axis[0], old->naxes, old->axes);
}

static Val emit_scatter(Shard *s, const Node *n, const Val *in, Axis w)
{
    Graph *g = s->g;
    Axis axes[MAX_AXES], part = w ? part_axis(s, w) : 0;
    for (int i = 0; i < n->naxes; i++) axes[i] = w && n->axes[i] == w ? part : n->axes[i];
    Val index = in[1];
    if (w && n->u.axis == w) index = make_map2(g, FN_SUB, index, part_start(s, part));
    return make_scatter_add(g, in[0], index, w && n->u.axis == w ? part : n->u.axis, n->naxes, axes);
}

static Val emit_gather(Shard *s, const Node *n, const Val *in, Axis w)
{
    Graph *g = s->g;
    if (!w || n->u.axis != w) return make_gather(g, in[0], in[1], n->u.axis);
    Axis part = part_axis(s, w);
    return make_gather(g, in[0], make_map2(g, FN_SUB, in[1], part_start(s, part)), part);
}

static Val emit_accumulate(Shard *s, Val v, Val x)
{
    Graph *g = s->g;
    const Node *n = &s->old[v];
    if (s->owned[v] && required(g, "owner", "a whole value counts once")) {
        Val first = make_map2(g, FN_EQ, coordinate(g, s->factor), make_const(g, I32, 0));
        x = make_where(g, first, x, make_const(g, (DType)node_of(g, x)->dtype, 0));
    }
    return make_accumulate(g, n->u.id, x);
}

static Val emit_node(Shard *s, Val v)
{
    Graph *g = s->g;
    const Node *old = &s->old[v];
    Axis w = s->work[v];
    Node n = *old;
    for (int i = 0; i < n.nin && n.kind != K_PART; i++) n.in[i] = fetch(s, old->in[i], w);
    switch (n.kind) {
    case K_VIEW:
        if (!w) return graph_copy(g, &n);
        if (scatter_axis(s, v, w)) return emit_placed(s, old, n.in[0], w);
        return emit_view(s, old, n.in[0], w, view_axis(g, old, w, s->k));
    case K_GATHER: return emit_gather(s, old, n.in, w);
    case K_SCATTER_ADD: return emit_scatter(s, old, n.in, w);
    case K_ACCUMULATE: return emit_accumulate(s, v, n.in[0]);
    case K_PART: n.in[0] = s->now[old->in[0]]; return graph_copy(g, &n);
    case K_REDUCE: case K_CONTRACT:
        for (int i = 0; i < n.u.over.n; i++)
            if (w && n.u.over.axes[i] == w) n.u.over.axes[i] = part_axis(s, w);
        return graph_copy(g, &n);
    case K_ATTENTION_GRAD:
        for (int i = 0; i < n.naxes; i++)
            if (w && n.axes[i] == w) n.axes[i] = part_axis(s, w);
        return graph_add(g, &n);
    default: return graph_copy(g, &n);
    }
}

static Val visit(Graph *g, void *ctx, const Node *node, Val old)
{
    Shard *s = ctx;
    Val x = node->nin ? emit_node(s, old) : graph_add(g, node);
    if (s->made[old].spread == PARTIAL && s->marks[old]) x = reduce_behind(s, old, x);
    return s->now[old] = x;
}

// ----------------------------------------------------------------------------------------------------------- leaves
static void split_leaves(Shard *s)
{
    Graph *g = s->g;
    for (Val v = 1; v < s->n; v++) {
        if (s->old[v].nin || s->seen[v].spread != SPLIT) continue;
        Axis part = part_axis(s, s->seen[v].axis);
        Node *n = node_of(g, v);
        n->axes[axis_find(n, s->seen[v].axis)] = part;
    }
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Node *n = &s->old[g->params[i].val];
        for (int k = 0; k < n->naxes; k++) {
            if (s->seen[g->params[i].val].spread != SPLIT || n->axes[k] != s->seen[g->params[i].val].axis) continue;
            g->param_axes[i].axis[k].local /= (uint64_t)s->k;
            g->param_axes[i].axis[k].mesh |= 1u << s->factor;
        }
    }
}

void shard_emit(Shard *s)
{
    split_leaves(s);
    graph_rewrite(s->g, visit, s);
}
