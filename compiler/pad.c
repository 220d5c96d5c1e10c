// pad.c: axes that tensor parallelism splits, and that need not divide, grow to a multiple of the number of ranks.
//
// Which axes: vocab. Its extent in the model stays what files, initial values, means and norms see; in the graph every
// node has the padded axis. What must hold: the padding of parameters, gradients and states is 0, and whatever is summed over
// the axis has 0 there. So each value is known to have zeros there (parameters; maps of zeros that give zero) or not, and one
// that has not is masked by index < extent where it is summed, accumulated or written. The operand of a maximum or minimum gets
// -inf or inf instead. A product of a mask's zero and an overflow of padding would be NaN, so both operands of a contraction
// over the axis are masked.
//
// Trap: sums over a true axis were written with its true extent (mean divides by it) before this pass, so nothing else changes.
#include "pico.h"
#include <math.h>

typedef struct {
    Graph *g;
    Axis from, to;      // at hand
    uint8_t *zero;      // by old node: its padding is 0
    Val *clean;         // by old node: it with a mask, once it has one
    uint8_t *late;      // by old node: part of the update
    size_t n;
    const Node *old;
} Pad;

static bool stays_zero(const Pad *p, const Node *n, bool late)
{
    bool has[3] = {0}, zero[3] = {0};
    for (int i = 0; i < n->nin && i < 3; i++) {
        const Node *x = &p->old[n->in[i]];
        has[i] = has_axis(x, p->from);
        zero[i] = has[i] && p->zero[n->in[i]];
        if (!has[i] && x->kind == K_CONST && x->u.num == 0) zero[i] = has[i] = true;
    }
    switch (n->fn) {
    case FN_MUL: return zero[0] || zero[1];
    case FN_DIV: return zero[0] && (!has[1] || late);  // (the update divides by what is not 0)
    case FN_WHERE: return zero[1] && zero[2];
    case FN_CAST: return zero[0];
    default:
        for (int i = 0; i < n->nin; i++)
            if (!zero[i]) return false;
        return fn_info[n->fn].zero;
    }
}

static Val within(Pad *p)
{
    Graph *g = p->g;
    return make_map2(g, FN_LT, make_index(g, p->to), make_const(g, I32, (double)extent_of(g, p->from)));
}

static Val masked(Pad *p, Val x, double outside)
{
    Graph *g = p->g;
    if (!required(g, "mask", arena_printf(&g->arena, "padding of %s", axis_name(g, p->from)))) return x;
    DType t = (DType)node_of(g, x)->dtype, wide = t == BF16 ? graph_compute_dtype(g) : t;
    x = make_where(g, within(p), make_cast(g, x, wide), make_const(g, wide, outside));
    return make_cast(g, x, t);
}

// Old value v, now x, with zeros in the padding.
static Val cleaned(Pad *p, Val v, Val x)
{
    if (p->zero[v] || !has_axis(&p->old[v], p->from)) return x;
    if (!p->clean[v]) p->clean[v] = masked(p, x, 0);
    return p->clean[v];
}

static void replace(const Pad *p, Axis *axes, int n)
{
    for (int i = 0; i < n; i++)
        if (axes[i] == p->from) axes[i] = p->to;
}

static Val pad_view(Pad *p, const Node *n)
{
    Graph *g = p->g;
    View view = *n->u.view;
    Axis axes[MAX_AXES];
    memcpy(axes, n->axes, sizeof axes);
    replace(p, axes, n->naxes);
    for (int i = 0; i < view.n; i++) {
        ViewIndex *x = &view.ix[i];
        bool padded = false;
        for (int t = 0; t < x->nterms; t++) padded |= x->axis[t] == p->from;
        if (x->src == p->from) x->src = p->to;
        else if (padded && x->div == 1 && x->mod == 0) x->zero = true;  // the padding reads beyond the other axis
        replace(p, x->axis, x->nterms);
    }
    return make_view(g, n->in[0], &view, n->naxes, axes);
}

// A view of the padding is 0 where the operand's is, if it reads the axis as it is.
static bool view_keeps(const Pad *p, const Node *n)
{
    for (int i = 0; i < n->u.view->n; i++) {
        const ViewIndex *x = &n->u.view->ix[i];
        if (x->src == p->from) return false;
        for (int t = 0; t < x->nterms; t++)
            if (x->axis[t] == p->from) return false;
    }
    return has_axis(&p->old[n->in[0]], p->from) && p->zero[n->in[0]];
}

// Random numbers are those of the true axis, so that every layout draws the same: the padded value reads them.
static Val pad_random(Pad *p, const Node *n)
{
    Graph *g = p->g;
    Axis axes[MAX_AXES];
    memcpy(axes, n->axes, sizeof axes);
    replace(p, axes, n->naxes);
    View view = {.n = 1, .ix = {{.src = p->from, .nterms = 1, .axis = {p->to}, .coef = {1}, .div = 1, .zero = true}}};
    return make_view(g, graph_add(g, n), &view, n->naxes, axes);
}

static Val remake(Pad *p, Node *n)
{
    Graph *g = p->g;
    if (n->kind == K_RANDOM && has_axis(n, p->from)) return pad_random(p, n);
    replace(p, n->axes, n->naxes);
    switch (n->kind) {
    case K_VIEW: return pad_view(p, n);
    case K_REDUCE: case K_CONTRACT: replace(p, n->u.over.axes, n->u.over.n); return graph_copy(g, n);
    case K_GATHER: case K_SCATTER_ADD: case K_INDEX: replace(p, &n->u.axis, 1); return graph_copy(g, n);
    case K_ATTENTION_GRAD: return graph_add(g, n);
    default: return n->nin ? graph_copy(g, n) : graph_add(g, n);
    }
}

static bool sums(const Node *n, Axis a)
{
    for (int i = 0; i < n->u.over.n; i++)
        if (n->u.over.axes[i] == a) return true;
    return false;
}

// A position beyond the true extent is outside, also where there is padding now. Tokens are below their limit.
static Val true_position(Pad *p, Val v, Val x)
{
    Graph *g = p->g;
    const Node *n = &p->old[v];
    while (n->kind == K_VIEW) n = &p->old[n->in[0]];
    if (n->kind == K_INPUT) {
        const Input *in = &g->inputs[n->u.id];
        int64_t extent = extent_of(g, p->from);
        if (in->limit <= extent && (in->ignore < extent || in->ignore >= extent_of(g, p->to))) return x;
    }
    if (!required(g, "mask", arena_printf(&g->arena, "position beyond %s", axis_name(g, p->from)))) return x;
    Val inside = make_map2(g, FN_LT, x, make_const(g, I32, (double)extent_of(g, p->from)));
    return make_where(g, inside, x, make_const(g, I32, -1));
}

static bool has_zeros(const Pad *p, const Node *n)
{
    if (n->nin == 0) return n->kind != K_INDEX;
    switch (n->kind) {
    case K_MAP: return n->dtype != BOOL && stays_zero(p, n, p->late[n - p->old]);
    case K_VIEW: return view_keeps(p, n);
    case K_ACCUMULATE: case K_UPDATE: return true;
    default:
        for (int i = 0; i < n->nin; i++)
            if (has_axis(&p->old[n->in[i]], p->from) && !p->zero[n->in[i]]) return false;
        return true;
    }
}

static Val visit(Graph *g, void *ctx, const Node *node, Val old)
{
    (void)g;
    Pad *p = ctx;
    Node n = *node;
    const Node *was = &p->old[old];
    bool sum = (n.kind == K_CONTRACT || n.kind == K_REDUCE) && sums(was, p->from);
    if (sum && n.kind == K_REDUCE && n.reduce != RED_SUM)
        n.in[0] = masked(p, n.in[0], n.reduce == RED_MAX ? -INFINITY : INFINITY);
    else if (sum || n.kind == K_ACCUMULATE || n.kind == K_UPDATE)
        for (int i = 0; i < n.nin; i++) n.in[i] = cleaned(p, was->in[i], n.in[i]);
    if ((n.kind == K_GATHER || n.kind == K_SCATTER_ADD) && was->u.axis == p->from) n.in[1] = true_position(p, was->in[1], n.in[1]);
    p->zero[old] = has_axis(was, p->from) && has_zeros(p, was);
    return remake(p, &n);
}

static void pad_axis(Graph *g, Axis from, Axis to)
{
    Pad p = {.g = g, .from = from, .to = to, .n = vec_len(g->nodes)};
    Node *old = xmalloc(p.n * sizeof *old);
    memcpy(old, g->nodes, p.n * sizeof *old);
    p.old = old;
    p.zero = xcalloc(p.n, 1), p.clean = xcalloc(p.n, sizeof *p.clean);
    p.late = xcalloc(p.n, 1);
    for (Val v = 1; v < p.n; v++) {
        p.late[v] = old[v].kind == K_TOTAL;
        p.zero[v] = old[v].kind == K_TOTAL && has_axis(&old[v], from);  // (the rewrite does not visit totals)
        for (int i = 0; i < old[v].nin; i++) p.late[v] |= p.late[old[v].in[i]];
    }
    for (Val v = 1; v < p.n; v++)  // totals are copied before all else
        if (old[v].kind == K_TOTAL) replace(&p, g->nodes[v].axes, g->nodes[v].naxes);
    for (size_t i = 0; i < vec_len(g->params); i++)
        for (int k = 0; k < g->nodes[g->params[i].val].naxes; k++)
            if (old[g->params[i].val].axes[k] == from) g->param_axes[i].axis[k].local = (uint64_t)extent_of(g, to);
    graph_rewrite(g, visit, &p);
    free(old), free(p.zero), free(p.clean), free(p.late);
}

void pad(Graph *g)
{
    int64_t tp = options.tp;
    size_t n = vec_len(g->axes);
    for (size_t i = 1; i < n; i++) {
        bool split = false;
        for (size_t k = 0; k < vec_len(g->maps); k++) split |= g->maps[k].axis == g->axes[i].name && g->maps[k].mesh & MESH_TP;
        int64_t extent = g->axes[i].extent;
        if (!split || strcmp(g->axes[i].name, "vocab") || extent % tp == 0) continue;
        pad_axis(g, (Axis)i, graph_axis(g, "vocab", (extent + tp - 1) / tp * tp));
    }
}
