// grad.c: the backward graph, by reverse mode on the nodes; then accumulators, optimizer, outputs.
//
// One sweep from the loss down. Every value collects the contributions of its consumers in the order the sweep meets
// them (the last consumer first), adds them in a chain in the compute dtype, rounds once to its own dtype, and hands the
// sum on (derive.c). Nodes made for a forward node carry its place, op and layer.
//
// A parameter's gradient is not one sum: each use has an ACCUMULATE of its own (tied weights may lie on two stages). A
// use is an op call; outside of ops, a node. Casts and views of a parameter are not uses but ways to it: contributions
// go through them one by one and are not rounded to bf16 on the way.
//
// Traps. An op with a gradient of its own is a wall: nothing flows through its nodes, its operands get what its function
// says once all of its results have been met. The graph grows while it is read: nodes are copied.
#include "derive.h"
#include <math.h>

typedef struct {
    int nresults, noperands;
    const Val *results, *operands;
    OwnGrad f;
    void *ctx;
    Val first;      // the earliest result: when the sweep comes to it, all adjoints are known
    Val *dresults;  // during a sweep
} Own;

typedef struct {
    int param;
    uint64_t user;  // op call, or node
    Val sum;
    Val stamp;      // the consumer
} Use;

struct Deriv {
    Graph *g;
    size_t n;          // nodes of the forward graph, from index 0; what is above was made here
    Val **parts;       // node -> vec of contributions
    uint8_t *needed;   // some wanted operand lies below
    uint8_t *cut;      // wanted itself: the sweep ends here
    Val *total;        // of cut nodes
    uint32_t *own_of;  // node -> index in graph->own_grads + 1, for results of ops with a gradient of their own
    bool by_use;       // parameters: collect uses
    uint8_t *way;      // a parameter, or a cast or view of one
    Use *uses;         // vec
    Val consumer;      // node whose adjoint is being handed on
};

// ------------------------------------------------------------------------------------------------ contributions
static void stamp(Graph *g, Val v)
{
    const Node *n = node_of(g, v);
    g->cur_loc = n->loc, g->cur_op = n->op, g->cur_layer = n->layer, g->cur_backward = true;
}

bool wants(const Deriv *d, Val v) { return d->needed[v]; }

// c with v's axes and, but for bf16, v's dtype.
static Val fit(Graph *g, Val c, Val v)
{
    const Node like = *node_of(g, v);
    c = make_cast(g, c, like.dtype == BF16 ? graph_compute_dtype(g) : (DType)like.dtype);
    Axis extra[MAX_AXES];
    int n = 0;
    for (int i = 0; i < node_of(g, c)->naxes; i++)
        if (!has_axis(&like, node_of(g, c)->axes[i])) extra[n++] = node_of(g, c)->axes[i];
    return adj_spread(g, adj_sum(g, c, n, extra), like.naxes, like.axes);
}

// Back through casts and views to the parameter; added to what the same user has given it before.
static void give_use(Deriv *d, Val v, Val c)
{
    Graph *g = d->g;
    c = fit(g, c, v);
    while (node_of(g, v)->kind != K_PARAM) {
        const Node n = *node_of(g, v);
        if (n.kind == K_VIEW) c = derive_view(g, &n, c);
        v = n.in[0];
        c = fit(g, c, v);
    }
    const Node *consumer = node_of(g, d->consumer);
    uint64_t user = consumer->op ? consumer->op : (uint64_t)d->consumer << 32;
    int param = (int)node_of(g, v)->u.id;
    for (size_t i = 0; i < vec_len(d->uses); i++)
        if (d->uses[i].param == param && d->uses[i].user == user) {
            d->uses[i].sum = adj_add(g, d->uses[i].sum, c);
            return;
        }
    vec_push(d->uses, (Use){param, user, c, d->consumer});
}

void give(Deriv *d, Val v, Val c)
{
    double zero;
    if (!wants(d, v) || (const_value(d->g, c, &zero) && zero == 0)) return;
    if (d->by_use && d->way[v]) give_use(d, v, c);
    else vec_push(d->parts[v], fit(d->g, c, v));
}

// The sum of v's contributions, or 0. A view of a bf16 value is no result of an op: its adjoint stays wide.
static Val adjoint_of(Deriv *d, Val v)
{
    Graph *g = d->g;
    if (!d->parts[v]) return 0;
    stamp(g, v);
    Val sum = d->parts[v][0];
    for (size_t i = 1; i < vec_len(d->parts[v]); i++) sum = adj_add(g, sum, d->parts[v][i]);
    if (node_of(g, v)->kind == K_VIEW && !d->cut[v]) return sum;
    return make_cast(g, sum, (DType)node_of(g, v)->dtype);
}

// ----------------------------------------------------------------------------------------- gradients of one's own
void grad_register(Graph *g, int nresults, const Val *results, int noperands, const Val *operands, OwnGrad f, void *ctx)
{
    Own *all = g->own_grads;
    for (size_t i = 0; i < vec_len(all); i++)
        for (int j = 0; j < nresults; j++)
            for (int k = 0; k < all[i].nresults; k++)
                if (all[i].results[k] == results[j]) return;  // a result that is no wall, met twice: once is enough
    Val *mine = arena_new(&g->arena, Val, nresults + noperands);
    memcpy(mine, results, (size_t)nresults * sizeof *mine);
    memcpy(mine + nresults, operands, (size_t)noperands * sizeof *mine);
    Own own = {.nresults = nresults, .noperands = noperands, .results = mine, .operands = mine + nresults, .f = f, .ctx = ctx};
    own.first = mine[0];
    for (int i = 1; i < nresults; i++) own.first = min_of(own.first, mine[i]);
    vec_push(all, own);
    g->own_grads = all;
}

static void mark_own(Deriv *d)
{
    Own *all = d->g->own_grads;
    for (size_t i = 0; i < vec_len(all); i++) {
        all[i].dresults = arena_new(&d->g->arena, Val, all[i].nresults);
        for (int j = 0; j < all[i].nresults; j++)
            if (all[i].results[j] < d->n) d->own_of[all[i].results[j]] = (uint32_t)i + 1;
    }
}

static bool own_needed(const Deriv *d, const Own *own)
{
    for (int i = 0; i < own->noperands; i++)
        if (own->operands[i] < d->n && d->needed[own->operands[i]]) return true;
    return false;
}

// Result v's adjoint is dv (0: none). At the last of them the op's function gives those of the operands.
static void derive_own(Deriv *d, Own *own, Val v, Val dv)
{
    Graph *g = d->g;
    for (int i = 0; i < own->nresults; i++)
        if (own->results[i] == v) own->dresults[i] = dv;
    if (v != own->first) return;
    Val known = 0;
    for (int i = 0; i < own->nresults; i++) known |= own->dresults[i];
    if (!known) return;
    stamp(g, v);
    for (int i = 0; i < own->nresults; i++) {
        const Node n = *node_of(g, own->results[i]);
        if (!own->dresults[i]) own->dresults[i] = make_broadcast(g, make_const(g, (DType)n.dtype, 0), n.naxes, n.axes);
    }
    Val *doperands = xcalloc((size_t)own->noperands, sizeof *doperands);
    own->f(g, own->ctx, own->dresults, doperands);
    stamp(g, v);
    d->consumer = v;
    for (int i = 0; i < own->noperands; i++) {
        if (doperands[i] && own->operands[i] >= v) bug("an op's operand comes behind its result");
        if (doperands[i]) give(d, own->operands[i], doperands[i]);
    }
    free(doperands);
}

// ------------------------------------------------------------------------------------------------------ the sweep
static Deriv deriv_new(Graph *g, Val result)
{
    Deriv d = {.g = g, .n = (size_t)result + 1};
    d.parts = xcalloc(d.n, sizeof *d.parts);
    d.needed = xcalloc(d.n, 1);
    d.cut = xcalloc(d.n, 1);
    d.way = xcalloc(d.n, 1);
    d.total = xcalloc(d.n, sizeof *d.total);
    d.own_of = xcalloc(d.n, sizeof *d.own_of);
    mark_own(&d);
    return d;
}

static void deriv_free(Deriv *d)
{
    for (size_t i = 0; i < d->n; i++) vec_free(d->parts[i]);
    vec_free(d->uses);
    free(d->parts), free(d->needed), free(d->cut), free(d->way), free(d->total), free(d->own_of);
}

// Marks what lies between the wanted values (cut, ways) and the result.
static void mark_needed(Deriv *d)
{
    const Own *all = d->g->own_grads;
    for (Val v = 1; v < d->n; v++) {
        const Node *n = node_of(d->g, v);
        if (d->cut[v]) d->needed[v] = 1;
        else if (!is_float((DType)n->dtype)) continue;
        else if (d->own_of[v]) d->needed[v] = own_needed(d, &all[d->own_of[v] - 1]);
        else if (n->kind == K_MAP && n->fn == FN_STOP) continue;
        else for (int i = 0; i < n->nin; i++) d->needed[v] |= d->needed[n->in[i]];
    }
}

static void mark_ways(Deriv *d)
{
    for (Val v = 1; v < d->n; v++) {
        const Node *n = node_of(d->g, v);
        bool passes = n->kind == K_VIEW || (n->kind == K_MAP && n->fn == FN_CAST && is_float((DType)n->dtype));
        d->way[v] = n->kind == K_PARAM || (passes && d->way[n->in[0]] && !d->own_of[v]);
        if (n->kind == K_PARAM) d->cut[v] = 1;
    }
}

static void sweep(Deriv *d, Val result, Val adjoint)
{
    Graph *g = d->g;
    stamp(g, result);
    d->consumer = result;
    give(d, result, adjoint);
    for (Val v = result; v > 0; v--) {
        if (!d->needed[v]) continue;
        Val dv = adjoint_of(d, v);
        if (d->cut[v]) {
            d->total[v] = dv;
            continue;
        }
        if (d->own_of[v]) {
            derive_own(d, (Own *)g->own_grads + d->own_of[v] - 1, v, dv);
            continue;
        }
        if (!dv) continue;
        stamp(g, v);
        d->consumer = v;
        derive_node(d, g, v, dv);
    }
}

typedef struct { Loc loc; uint32_t op; int16_t layer; bool backward; } Stamps;
static Stamps stamps(const Graph *g) { return (Stamps){g->cur_loc, g->cur_op, g->cur_layer, g->cur_backward}; }
static void set_stamps(Graph *g, Stamps s)
{
    g->cur_loc = s.loc, g->cur_op = s.op, g->cur_layer = s.layer, g->cur_backward = s.backward;
}

void grad_of(Graph *g, Val result, Val adjoint, int n, const Val *operands, Val *adjoints)
{
    Stamps before = stamps(g);
    Deriv d = deriv_new(g, result);
    for (int i = 0; i < n; i++)
        if (operands[i] < d.n) d.cut[operands[i]] = 1;
    mark_needed(&d);
    sweep(&d, result, adjoint);
    for (int i = 0; i < n; i++) adjoints[i] = operands[i] < d.n ? d.total[operands[i]] : 0;
    deriv_free(&d);
    set_stamps(g, before);
}

// ------------------------------------------------------------------------------------------------------ the pass
static void check_loss(Graph *g)
{
    const Node *n = node_of(g, g->loss);
    const Axis wanted[] = {g->batch, g->seq_axis};
    for (int i = 0; i < 2; i++)
        if (!has_axis(n, wanted[i]))
            err(g, n->loc, "the loss is one value a token, and this one has no axis '%s': leave the sum over tokens to the trainer",
                axis_name(g, wanted[i]));
    for (int i = 0; i < n->naxes; i++)
        if (n->axes[i] != g->batch && n->axes[i] != g->seq_axis)
            err(g, n->loc, "the loss is one value a token [batch, seq], and this one also has axis '%s': sum over it",
                axis_name(g, n->axes[i]));
    if (!is_float((DType)n->dtype)) err(g, n->loc, "the loss is a %s, not a float", dtype_name((DType)n->dtype));
}

static Val sum_of_all(Graph *g, Val v)
{
    const Node n = *node_of(g, v);
    return make_reduce(g, RED_SUM, v, n.naxes, n.axes);
}

// 1.0 for each target that counts; without targets every token does.
static Val counted(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->inputs); i++) {
        const Input *in = &g->inputs[i];
        if (!strcmp(in->name, "targets"))
            return make_cast(g, make_map2(g, FN_NE, in->val, make_const(g, I32, in->ignore)), F64);
    }
    return make_broadcast(g, make_const(g, F64, 1), 2, (Axis[]){g->batch, g->seq_axis});
}

static void accumulate_loss(Graph *g)
{
    stamp(g, g->loss);
    g->cur_op = 0;
    uint32_t loss_sum = graph_acc(g, "loss_sum", -1, F64, 0, NULL);
    make_accumulate(g, loss_sum, sum_of_all(g, make_cast(g, g->loss, F64)));
    uint32_t valid = graph_acc(g, "valid", -1, F64, 0, NULL);
    make_accumulate(g, valid, sum_of_all(g, counted(g)));
}

static void accumulate_params(Deriv *d)
{
    Graph *g = d->g;
    for (size_t i = 0; i < vec_len(g->params); i++) {
        Param *p = &g->params[i];
        p->acc = -1;
        for (size_t u = 0; u < vec_len(d->uses); u++) {
            if (d->uses[u].param != (int)i) continue;
            const Node leaf = *node_of(g, p->val);
            stamp(g, d->uses[u].stamp);
            if (p->acc < 0) p->acc = (int)graph_acc(g, p->name, (int)i, (DType)leaf.dtype, leaf.naxes, leaf.axes);
            make_accumulate(g, (uint32_t)p->acc, d->uses[u].sum);
        }
    }
}

static Val total_of(Graph *g, const char *name)
{
    for (size_t i = 0; i < vec_len(g->accs); i++)
        if (g->accs[i].param < 0 && !strcmp(g->accs[i].name, name)) return g->accs[i].total;
    bug("no accumulator '%s'", name);
}

static Val at_least_one(Graph *g, Val count) { return make_map2(g, FN_MAX, count, make_const(g, F64, 1)); }

Val grad_scaled(Graph *g, int param)
{
    const Param *p = &g->params[param];
    if (p->acc < 0) err(g, p->loc, "parameter '%s' has no influence on the loss, so it has no gradient", p->name);
    Val total = g->accs[p->acc].total;
    if (!required(g, "scale", "1 / valid tokens")) return total;
    Val scale = make_map2(g, FN_DIV, make_const(g, F64, 1), at_least_one(g, total_of(g, "valid")));
    return make_map2(g, FN_MUL, total, make_cast(g, scale, (DType)node_of(g, total)->dtype));
}

void grad(Graph *g)
{
    check_loss(g);
    Deriv d = deriv_new(g, g->loss);
    d.by_use = true;
    mark_ways(&d);
    mark_needed(&d);
    const Node loss = *node_of(g, g->loss);
    sweep(&d, g->loss, make_broadcast(g, make_const(g, (DType)loss.dtype, 1), loss.naxes, loss.axes));
    accumulate_loss(g);
    accumulate_params(&d);
    deriv_free(&d);
    set_stamps(g, (Stamps){.layer = (int16_t)g->nlayers});
    Val valid = total_of(g, "valid");
    graph_output(g, "loss", make_map2(g, FN_DIV, total_of(g, "loss_sum"), at_least_one(g, valid)));
    graph_output(g, "valid", valid);
    front_optimizer(g);
    Own *all = g->own_grads;
    vec_free(all);
    g->own_grads = NULL;
    graph_rewrite(g, NULL, NULL);
}
