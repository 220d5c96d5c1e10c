// derive.c: the derivative of every function (a D_<NAME> each; one that is missing does not link) and node kind.
//
// Rules are those of notation 4.5. Masks stay outside: an adjoint of the form where(c, x, 0) is taken through products,
// quotients, signs, sums and broadcasts by its x, so that what is not selected is never multiplied with an infinity.
// The exception (matrix products keep the mask on their factor) needs no rule here: an adjoint has all axes of its
// node, so a product with an operand is no outer one; and contractions go to contractions without passing a product.
// Derivatives use the node's own value where that is shorter (exp, tanh, sqrt, quotient).
#include "derive.h"

static const Node *at(Graph *g, Val v) { return node_of(g, v); }

static Val number(Graph *g, Val like, double x) { return make_const(g, (DType)at(g, like)->dtype, x); }
static Val mul(Graph *g, Val a, Val b) { return make_map2(g, FN_MUL, a, b); }
static Val sub(Graph *g, Val a, Val b) { return make_map2(g, FN_SUB, a, b); }

// --------------------------------------------------------------------------------------------------------- masks
typedef struct { Val cond, x; bool otherwise; } Mask;  // where(cond, x, 0); otherwise: where(cond, 0, x)

static bool masked(Graph *g, Val v, Mask *m)
{
    const Node n = *at(g, v);
    double c;
    if (n.kind != K_MAP || n.fn != FN_WHERE || !is_float((DType)n.dtype)) return false;
    if (const_value(g, n.in[2], &c) && c == 0) return *m = (Mask){n.in[0], n.in[1], false}, true;
    if (const_value(g, n.in[1], &c) && c == 0) return *m = (Mask){n.in[0], n.in[2], true}, true;
    return false;
}

static Val mask(Graph *g, const Mask *m, Val x)
{
    Val zero = number(g, x, 0);
    return m->otherwise ? make_where(g, m->cond, zero, x) : make_where(g, m->cond, x, zero);
}

Val adj_add(Graph *g, Val a, Val b)
{
    Mask m, n;
    if (masked(g, a, &m) && masked(g, b, &n) && m.cond == n.cond && m.otherwise == n.otherwise)
        return mask(g, &m, adj_add(g, m.x, n.x));
    return make_map2(g, FN_ADD, a, b);
}

Val adj_neg(Graph *g, Val a)
{
    Mask m;
    return masked(g, a, &m) ? mask(g, &m, adj_neg(g, m.x)) : make_map1(g, FN_NEG, a);
}

Val adj_mul(Graph *g, Val a, Val factor)
{
    Mask m;
    return masked(g, a, &m) ? mask(g, &m, adj_mul(g, m.x, factor)) : mul(g, a, factor);
}

Val adj_div(Graph *g, Val a, Val by)
{
    Mask m;
    return masked(g, a, &m) ? mask(g, &m, adj_div(g, m.x, by)) : make_map2(g, FN_DIV, a, by);
}

Val adj_sum(Graph *g, Val a, int naxes, const Axis *axes)
{
    Mask m;
    bool varies = false;
    if (naxes > 0 && masked(g, a, &m)) {
        for (int i = 0; i < naxes; i++) varies |= has_axis(at(g, m.cond), axes[i]);
        if (!varies) return mask(g, &m, adj_sum(g, m.x, naxes, axes));
    }
    return make_reduce(g, RED_SUM, a, naxes, axes);
}

Val adj_spread(Graph *g, Val a, int naxes, const Axis *axes)
{
    Mask m;
    if (at(g, a)->naxes == naxes || !masked(g, a, &m)) return make_broadcast(g, a, naxes, axes);
    return mask(g, &m, adj_spread(g, m.x, naxes, axes));
}

// ----------------------------------------------------------------------------------------------------- functions
// n: the node, v: its value, g: its adjoint.
#define D(name) static void D_##name(Deriv *d, Graph *G, const Node *n, Val v, Val g)
#define UNUSED (void)d, (void)G, (void)n, (void)v, (void)g
#define A (n->in[0])
#define B (n->in[1])

D(NEG) { (void)v; give(d, A, adj_neg(G, g)); }
D(ADD) { (void)v, (void)G; give(d, A, g); give(d, B, g); }
D(SUB) { (void)v; give(d, A, g); if (wants(d, B)) give(d, B, adj_neg(G, g)); }
D(MUL)
{
    (void)v;
    if (wants(d, A)) give(d, A, adj_mul(G, g, B));
    if (wants(d, B)) give(d, B, adj_mul(G, g, A));
}
D(DIV)
{
    if (wants(d, A)) give(d, A, adj_div(G, g, B));
    if (wants(d, B)) give(d, B, adj_neg(G, adj_div(G, adj_mul(G, g, v), B)));
}
// n*x^(n-1): written so, it is finite at 0 for n = 1 too (0^0 is 1). The exponent's: 0 at a base of 0.
D(POW)
{
    if (wants(d, A)) {
        Val less = make_map2(G, FN_POW, A, sub(G, B, number(G, B, 1)));
        give(d, A, adj_mul(G, g, mul(G, B, less)));
    }
    if (wants(d, B)) {
        Val at_zero = make_map2(G, FN_EQ, A, number(G, A, 0));
        Val slope = mul(G, v, make_where(G, at_zero, number(G, A, 0), make_map1(G, FN_LOG, A)));
        give(d, B, adj_mul(G, g, slope));
    }
}
D(LT) { UNUSED; }
D(LE) { UNUSED; }
D(EQ) { UNUSED; }
D(NE) { UNUSED; }
D(AND) { UNUSED; }
D(OR) { UNUSED; }
D(NOT) { UNUSED; }
D(WHERE)
{
    (void)v;
    Val zero = number(G, g, 0);
    if (wants(d, B)) give(d, B, make_where(G, A, g, zero));
    if (wants(d, n->in[2])) give(d, n->in[2], make_where(G, A, zero, g));
}
D(EXP) { give(d, A, adj_mul(G, g, v)); }
D(LOG) { (void)v; give(d, A, adj_div(G, g, A)); }
D(SQRT) { give(d, A, adj_div(G, adj_mul(G, g, number(G, g, 0.5)), v)); }
D(RSQRT) { give(d, A, adj_mul(G, adj_mul(G, g, number(G, g, -0.5)), make_map2(G, FN_POW, v, number(G, v, 3)))); }
D(TANH) { give(d, A, adj_mul(G, g, sub(G, number(G, v, 1), mul(G, v, v)))); }
D(SIGMOID) { give(d, A, adj_mul(G, g, mul(G, v, sub(G, number(G, v, 1), v)))); }
D(ERF)
{
    (void)v;
    Val bell = make_map1(G, FN_EXP, make_map1(G, FN_NEG, mul(G, A, A)));
    give(d, A, adj_mul(G, g, mul(G, number(G, g, 1.1283791670955126), bell)));  // 2/sqrt(pi)
}
D(SIN) { (void)v; give(d, A, adj_mul(G, g, make_map1(G, FN_COS, A))); }
D(COS) { (void)v; give(d, A, adj_neg(G, adj_mul(G, g, make_map1(G, FN_SIN, A)))); }
D(ABS) { (void)v; give(d, A, adj_mul(G, g, make_map1(G, FN_SIGN, A))); }
D(SIGN) { UNUSED; }
D(FLOOR) { UNUSED; }
// On a tie all goes to the first operand.
static void select_one(Deriv *d, Graph *G, const Node *n, Val first, Val g)
{
    Val zero = number(G, g, 0);
    if (wants(d, A)) give(d, A, make_where(G, first, g, zero));
    if (wants(d, B)) give(d, B, make_where(G, first, zero, g));
}
D(MIN) { (void)v; select_one(d, G, n, make_map2(G, FN_LE, A, B), g); }
D(MAX) { (void)v; select_one(d, G, n, make_map2(G, FN_LE, B, A), g); }
D(STOP) { UNUSED; }
D(CAST) { (void)v, (void)G; if (is_float((DType)n->dtype)) give(d, A, g); }

#define X(e, ...) D_##e,
static void (*const derivatives[FN_COUNT])(Deriv *, Graph *, const Node *, Val, Val) = {FUNCTIONS(X)};
#undef X

// ---------------------------------------------------------------------------------------------------- reductions
static bool counts_in_i32(Graph *G, const Node *n)
{
    int64_t count = 1;
    for (int i = 0; i < n->u.over.n; i++) {
        if (n->u.over.axes[i] == G->batch) return false;  // counted through the step
        if (count > INT32_MAX / extent_of(G, n->u.over.axes[i])) return false;
        count *= extent_of(G, n->u.over.axes[i]);
    }
    return true;
}

// Position over all reduced axes in row order.
static Val row_position(Graph *G, const Node *n, DType t)
{
    Val position = 0;
    for (int i = 0; i < n->u.over.n; i++) {
        Val index = make_cast(G, make_index(G, n->u.over.axes[i]), t);
        Val extent = make_const(G, t, (double)extent_of(G, n->u.over.axes[i]));
        position = position ? make_map2(G, FN_ADD, mul(G, position, extent), index) : index;
    }
    return position;
}

// All of g to the first position that holds the extremum. A NaN equals nothing, so it takes none.
static void derive_extremum(Deriv *d, Graph *G, const Node *n, Val v, Val g)
{
    DType t = counts_in_i32(G, n) ? I32 : F64;
    Val position = row_position(G, n, t);
    Val none = make_const(G, t, t == I32 ? INT32_MAX : 1e300);
    Val holds = make_map2(G, FN_EQ, A, v);
    Val first = make_reduce_raw(G, RED_MIN, make_where(G, holds, position, none), n->u.over.n, n->u.over.axes);
    Val chosen = make_map2(G, FN_EQ, position, first);
    give(d, A, make_where(G, chosen, g, number(G, g, 0)));
}

// --------------------------------------------------------------------------------------------------- contractions
// Whether a contraction of (a, b) over `over` has its axes in the order of `like`.
static bool in_order(Graph *G, Val a, Val b, int nover, const Axis *over, const Node *like)
{
    int n = 0;
    for (int k = 0; k < 2; k++) {
        const Node *x = at(G, k ? b : a);
        for (int i = 0; i < x->naxes; i++) {
            bool out = k && has_axis(at(G, a), x->axes[i]);
            for (int j = 0; j < nover; j++) out |= over[j] == x->axes[i];
            if (out) continue;
            if (n == like->naxes || like->axes[n++] != x->axes[i]) return false;
        }
    }
    return n == like->naxes;
}

// Both adjoints of a contraction are contractions: each operand has a summed axis, which the adjoint lacks, and lacks
// an axis that the other and the adjoint have.
static void derive_factor(Deriv *d, Graph *G, Val operand, Val other, Val g)
{
    if (!wants(d, operand)) return;
    Val dy = make_cast(G, g, (DType)at(G, other)->dtype);
    const Node like = *at(G, operand);
    Axis over[MAX_AXES];
    int nover = 0;
    for (int i = 0; i < at(G, dy)->naxes; i++)
        if (!has_axis(&like, at(G, dy)->axes[i])) over[nover++] = at(G, dy)->axes[i];
    bool swap = !in_order(G, dy, other, nover, over, &like) && in_order(G, other, dy, nover, over, &like);
    give(d, operand, swap ? make_contract(G, other, dy, nover, over) : make_contract(G, dy, other, nover, over));
}

// ---------------------------------------------------------------------------------------------------------- kinds
static void derive_attention(Deriv *d, Graph *G, const Node *n, Val v, Val g)
{
    Val dq = make_attention_grad(G, v, make_part(G, v, 1), g);
    give(d, n->in[0], dq);
    if (wants(d, n->in[1])) give(d, n->in[1], make_part(G, dq, 1));
    if (wants(d, n->in[2])) give(d, n->in[2], make_part(G, dq, 2));
}

void derive_node(Deriv *d, Graph *G, Val v, Val g)
{
    const Node copy = *at(G, v), *n = &copy;
    DType wide = n->dtype == BF16 ? graph_compute_dtype(G) : (DType)n->dtype;
    switch ((Kind)n->kind) {
    case K_MAP: derivatives[n->fn](d, G, n, v, g); break;
    case K_REDUCE:
        if (n->reduce != RED_SUM) derive_extremum(d, G, n, v, g);
        else give(d, A, g);
        break;
    case K_CONTRACT:
        derive_factor(d, G, A, B, g);
        derive_factor(d, G, B, A, g);
        break;
    case K_GATHER:
        give(d, A, make_scatter_add(G, make_cast(G, g, wide), B, n->u.axis, at(G, A)->naxes, at(G, A)->axes));
        break;
    case K_SCATTER_ADD: give(d, A, make_gather(G, g, B, n->u.axis)); break;
    case K_VIEW: give(d, A, derive_view(G, n, make_cast(G, g, wide))); break;
    case K_ATTENTION: derive_attention(d, G, n, v, g); break;
    case K_INPUT: case K_PARAM: case K_STATE: case K_TOTAL: case K_SCALAR: case K_CONST: case K_INDEX: case K_RANDOM: break;
    case K_PART: case K_ATTENTION_GRAD: case K_ACCUMULATE: case K_RESHARD: case K_RECV: case K_SLICE: case K_UPDATE: case K_NONE:
    case KIND_COUNT:
        bug("%s has no derivative", kind_info[n->kind].name);
    }
}
