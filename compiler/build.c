// build.c: constructors of every node that is no view, and the folding they do.
//
// A constructor checks its operands (a fault there is the compiler's: bug()), folds, and hands the node to graph_add.
// Folding never changes a value, with one exception that the notation makes: a literal 0 times anything is 0, and the
// other side is not computed. Constants are folded in double and rounded to the node's dtype, which for one operation
// is the correctly rounded result. x^n for whole n up to 8 is a product (by squaring), so no kernel needs pow for it.
// Traps: a folded MAP must still have the union of its operands' axes (0 * x is a broadcast 0, not a rank-0 one).
// A cast that only widens bf16 stands outside of views (view.c), so that a contraction finds the stored operand.
#include "pico.h"
#include <math.h>

// ------------------------------------------------------------------------------------------------------- leaves
static double to_bf16(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (isnan(f)) return f;
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static double round_to(DType t, double x)
{
    switch (t) {
    case F32: return (float)x;
    case BF16: return to_bf16(x);
    case I32: return trunc(x);
    case BOOL: return x != 0;
    default: return x;
    }
}

Val make_const(Graph *g, DType dtype, double v)
{
    Node n = {.kind = K_CONST, .dtype = (uint8_t)dtype};
    n.u.num = round_to(dtype, v);
    if (dtype == I32 && (n.u.num != v || v < INT32_MIN || v > INT32_MAX)) bug("constant %g as i32", v);
    return graph_add(g, &n);
}

Val make_index(Graph *g, Axis a)
{
    Node n = {.kind = K_INDEX, .dtype = I32, .naxes = 1, .axes = {a}};
    n.u.axis = a;
    return graph_add(g, &n);
}

static void set_axes(Node *n, int naxes, const Axis *axes)
{
    if (naxes > MAX_AXES) bug("%d axes", naxes);
    n->naxes = (uint8_t)naxes;
    for (int i = 0; i < naxes; i++) n->axes[i] = axes[i];
}

Val make_random(Graph *g, DType dtype, int naxes, const Axis *axes)
{
    Node n = {.kind = K_RANDOM, .dtype = (uint8_t)dtype};
    if (dtype != F32 && dtype != F64) bug("random of %s", dtype_name(dtype));
    set_axes(&n, naxes, axes);
    for (size_t i = 1; i < vec_len(g->nodes); i++)
        if (g->nodes[i].kind == K_RANDOM) n.u.id = max_of(n.u.id, g->nodes[i].u.id + 1);
    return graph_add(g, &n);
}

Val make_leaf(Graph *g, Kind kind, uint32_t id, DType dtype, int naxes, const Axis *axes)
{
    Node n = {.kind = (uint8_t)kind, .dtype = (uint8_t)dtype};
    if ((kind < K_INPUT || kind > K_SCALAR) && kind != K_RECV) bug("%s is no leaf", kind_info[kind].name);
    set_axes(&n, naxes, axes);
    n.u.id = id;
    return graph_add(g, &n);
}

// ------------------------------------------------------------------------------------------------- axes of a map
// Adds the axes of operand `a` that the node lacks.
static void join_axes(Graph *g, Node *n, Val a)
{
    const Node *in = node_of(g, a);
    for (int i = 0; i < in->naxes; i++) {
        Axis axis = in->axes[i];
        if (has_axis(n, axis)) continue;
        for (int j = 0; j < n->naxes; j++)
            if (axis_name(g, n->axes[j]) == axis_name(g, axis)) bug("axis '%s' has two sizes here", axis_name(g, axis));
        if (n->naxes == MAX_AXES) err(g, g->cur_loc, "a value here has more than %d axes", MAX_AXES);
        n->axes[n->naxes++] = axis;
    }
}

static bool same_axes(const Node *a, const Node *b)
{
    return a->naxes == b->naxes && !memcmp(a->axes, b->axes, a->naxes * sizeof(Axis));
}

// Operand v, spread over the axes of n: what a map that folds to one of its operands gives.
static Val as(Graph *g, const Node *n, Val v) { return make_broadcast(g, v, n->naxes, n->axes); }

static Val const_as(Graph *g, const Node *n, double value)
{
    return as(g, n, make_const(g, (DType)n->dtype, value));
}

// ----------------------------------------------------------------------------------------------- dtypes of a map
static bool is_compare(Fn f) { return f >= FN_LT && f <= FN_NE; }
static bool is_logic(Fn f) { return f >= FN_AND && f <= FN_NOT; }

static bool takes_int(Fn f)
{
    return f == FN_NEG || f == FN_ADD || f == FN_SUB || f == FN_MUL || f == FN_ABS || f == FN_SIGN || f == FN_MIN
        || f == FN_MAX || f == FN_STOP;
}

static void check_map(Graph *g, Fn fn, int nin, const Val *in)
{
    if (fn >= FN_CAST) bug("%s by make_map", fn_info[fn].name);
    if (nin != fn_info[fn].arity) bug("%s of %d operands", fn_info[fn].name, nin);
    int first = fn == FN_WHERE;
    DType t = (DType)node_of(g, in[first])->dtype;
    for (int i = first; i < nin; i++)
        if (node_of(g, in[i])->dtype != t)
            bug("%s of %s and %s", fn_info[fn].name, dtype_name(t), dtype_name((DType)node_of(g, in[i])->dtype));
    if (fn == FN_WHERE && node_of(g, in[0])->dtype != BOOL) bug("where on no condition");
    bool ok = is_logic(fn) ? t == BOOL
            : fn == FN_WHERE ? t != BF16
            : is_compare(fn) || takes_int(fn) ? t == F32 || t == F64 || t == I32
                             : t == F32 || t == F64;
    if (!ok) bug("%s of %s", fn_info[fn].name, dtype_name(t));
}

// ------------------------------------------------------------------------------------------------------- folding
// NaN wins in min and max, as in the kernels.
static double fold_min(double a, double b) { return isnan(a) || a <= b ? a : b; }
static double fold_max(double a, double b) { return isnan(a) || a >= b ? a : b; }

static double fold_fn(Fn fn, const double *x)
{
    switch (fn) {
    case FN_NEG: return -x[0];
    case FN_ADD: return x[0] + x[1];
    case FN_SUB: return x[0] - x[1];
    case FN_MUL: return x[0] == 0 || x[1] == 0 ? 0 : x[0] * x[1];
    case FN_DIV: return x[0] / x[1];
    case FN_POW: return pow(x[0], x[1]);
    case FN_LT: return x[0] < x[1];
    case FN_LE: return x[0] <= x[1];
    case FN_EQ: return x[0] == x[1];
    case FN_NE: return x[0] != x[1];
    case FN_AND: return x[0] != 0 && x[1] != 0;
    case FN_OR: return x[0] != 0 || x[1] != 0;
    case FN_NOT: return x[0] == 0;
    case FN_WHERE: return x[0] != 0 ? x[1] : x[2];
    case FN_EXP: return exp(x[0]);
    case FN_LOG: return log(x[0]);
    case FN_SQRT: return sqrt(x[0]);
    case FN_RSQRT: return 1 / sqrt(x[0]);
    case FN_TANH: return tanh(x[0]);
    case FN_SIGMOID: return 1 / (1 + exp(-x[0]));
    case FN_ERF: return erf(x[0]);
    case FN_SIN: return sin(x[0]);
    case FN_COS: return cos(x[0]);
    case FN_ABS: return fabs(x[0]);
    case FN_SIGN: return isnan(x[0]) ? x[0] : (x[0] > 0) - (x[0] < 0);
    case FN_FLOOR: return floor(x[0]);
    case FN_MIN: return isnan(x[1]) ? x[1] : fold_min(x[0], x[1]);
    case FN_MAX: return isnan(x[1]) ? x[1] : fold_max(x[0], x[1]);
    case FN_STOP: return x[0];
    case FN_CAST: case FN_COUNT: break;
    }
    bug("fold of function %d", fn);
}

static bool is_map(Graph *g, Val v, Fn fn) { return node_of(g, v)->kind == K_MAP && node_of(g, v)->fn == fn; }

// x^n for whole n from 1 to 8, by squaring.
static Val power(Graph *g, Val x, int n)
{
    Val result = 0;
    for (; n > 0; n >>= 1) {
        if (n & 1) result = result ? make_map2(g, FN_MUL, result, x) : x;
        if (n > 1) x = make_map2(g, FN_MUL, x, x);
    }
    return result;
}

// One operand is the constant c, the other is x; `left`: the constant comes first. 0: nothing to fold.
static Val fold_with_const(Graph *g, const Node *n, Val x, double c, bool left)
{
    switch (n->fn) {
    case FN_ADD: return c == 0 ? as(g, n, x) : 0;
    case FN_SUB: return c != 0 ? 0 : left ? as(g, n, make_map1(g, FN_NEG, x)) : as(g, n, x);
    case FN_MUL:
        if (c == 0) return const_as(g, n, 0);
        return c == 1 ? as(g, n, x) : c == -1 ? as(g, n, make_map1(g, FN_NEG, x)) : 0;
    case FN_DIV: return left ? 0 : c == 1 ? as(g, n, x) : c == -1 ? as(g, n, make_map1(g, FN_NEG, x)) : 0;
    case FN_POW:
        if (left) return 0;
        if (c == 0) return const_as(g, n, 1);
        return c >= 1 && c <= 8 && c == floor(c) ? as(g, n, power(g, x, (int)c)) : 0;
    case FN_AND: return c == 0 ? const_as(g, n, 0) : as(g, n, x);
    case FN_OR: return c != 0 ? const_as(g, n, 1) : as(g, n, x);
    default: return 0;
    }
}

static Val fold_where(Graph *g, const Node *n)
{
    double c;
    Val cond = n->in[0], a = n->in[1], b = n->in[2];
    if (const_value(g, cond, &c)) return as(g, n, c != 0 ? a : b);
    if (a == b) return as(g, n, a);
    double x, y;
    if (const_value(g, a, &x) && const_value(g, b, &y) && x == y && signbit(x) == signbit(y)) return as(g, n, a);
    // the same condition further in has been decided already
    if (is_map(g, a, FN_WHERE) && node_of(g, a)->in[0] == cond) return as(g, n, make_where(g, cond, node_of(g, a)->in[1], b));
    if (is_map(g, b, FN_WHERE) && node_of(g, b)->in[0] == cond) return as(g, n, make_where(g, cond, a, node_of(g, b)->in[2]));
    return 0;
}

static Val fold_map(Graph *g, const Node *n)
{
    double c[3];
    bool known[3] = {false};
    int nknown = 0;
    for (int i = 0; i < n->nin; i++) nknown += known[i] = const_value(g, n->in[i], &c[i]);
    if (nknown == n->nin) {
        double value = fold_fn((Fn)n->fn, c);
        if (n->dtype != I32 || fabs(value) <= INT32_MAX) return const_as(g, n, value);
        return 0;
    }
    switch (n->fn) {
    case FN_NEG: case FN_NOT:  // twice is not at all
        return is_map(g, n->in[0], (Fn)n->fn) ? node_of(g, n->in[0])->in[0] : 0;
    case FN_STOP: return is_map(g, n->in[0], FN_STOP) ? n->in[0] : 0;
    case FN_MIN: case FN_MAX: return n->in[0] == n->in[1] ? n->in[0] : 0;
    case FN_WHERE: return fold_where(g, n);
    default: break;
    }
    if (nknown == 1 && n->nin == 2) return fold_with_const(g, n, n->in[known[0]], known[0] ? c[0] : c[1], known[0]);
    return 0;
}

Val make_map(Graph *g, Fn fn, int nin, const Val *in)
{
    check_map(g, fn, nin, in);
    Node n = {.kind = K_MAP, .fn = (uint8_t)fn, .nin = (uint8_t)nin};
    n.dtype = is_compare(fn) || is_logic(fn) ? BOOL : node_of(g, in[fn == FN_WHERE])->dtype;
    for (int i = 0; i < nin; i++) n.in[i] = in[i];
    if (fn == FN_WHERE) join_axes(g, &n, in[1]), join_axes(g, &n, in[2]), join_axes(g, &n, in[0]);
    else for (int i = 0; i < nin; i++) join_axes(g, &n, in[i]);
    Val folded = fold_map(g, &n);
    return folded ? folded : graph_add(g, &n);
}

Val make_map1(Graph *g, Fn fn, Val a) { return make_map(g, fn, 1, &a); }
Val make_map2(Graph *g, Fn fn, Val a, Val b) { return make_map(g, fn, 2, (Val[]){a, b}); }
Val make_where(Graph *g, Val cond, Val a, Val b) { return make_map(g, FN_WHERE, 3, (Val[]){cond, a, b}); }

Val make_wall(Graph *g, Val a)
{
    const Node in = *node_of(g, a);
    check_map(g, FN_STOP, 1, &a);
    Node n = {.kind = K_MAP, .fn = FN_STOP, .dtype = in.dtype, .nin = 1, .in = {a}};
    set_axes(&n, in.naxes, in.axes);
    n.u.id = (uint32_t)vec_len(g->nodes);  // no other MAP has a number, so this equals none
    return graph_add(g, &n);
}

// --------------------------------------------------------------------------------------------------------- casts
// Every value of `from` is a value of `to`.
static bool holds(DType to, DType from)
{
    switch (from) {
    case F32: case I32: return to == F64;
    case BF16: return to == F32 || to == F64;
    case BOOL: return true;
    default: return false;
    }
}

Val make_cast(Graph *g, Val a, DType to)
{
    const Node in = *node_of(g, a);
    if (in.dtype == to) return a;
    if (to == BOOL) bug("cast to a condition");
    double c;
    Node n = {.kind = K_MAP, .fn = FN_CAST, .dtype = (uint8_t)to, .nin = 1, .in = {a}};
    set_axes(&n, in.naxes, in.axes);
    if (const_value(g, a, &c) && (to != I32 || fabs(c) <= INT32_MAX)) return const_as(g, &n, round_to(to, c));
    if (in.kind == K_MAP && in.fn == FN_CAST && holds((DType)in.dtype, (DType)node_of(g, in.in[0])->dtype))
        return make_cast(g, in.in[0], to);
    return graph_add(g, &n);
}

// ---------------------------------------------------------------------------------------------------- reductions
static void set_over(Graph *g, Node *n, int naxes, const Axis *axes)
{
    if (naxes > MAX_AXES) bug("%d axes", naxes);
    n->u.over.n = (uint8_t)naxes;
    for (int i = 0; i < naxes; i++) {
        for (int j = 0; j < i; j++)
            if (axes[i] == axes[j]) bug("axis '%s' reduced twice", axis_name(g, axes[i]));
        n->u.over.axes[i] = axes[i];
    }
}

static bool reduced(const Node *n, Axis a)
{
    for (int i = 0; i < n->u.over.n; i++)
        if (n->u.over.axes[i] == a) return true;
    return false;
}

static void drop_reduced(Node *n)
{
    int kept = 0;
    for (int i = 0; i < n->naxes; i++)
        if (!reduced(n, n->axes[i])) n->axes[kept++] = n->axes[i];
    for (int i = kept; i < n->naxes; i++) n->axes[i] = 0;
    n->naxes = (uint8_t)kept;
}

Val make_reduce_raw(Graph *g, Reduction r, Val a, int naxes, const Axis *axes)
{
    if (naxes == 0) return a;
    const Node in = *node_of(g, a);
    if (in.dtype == BF16 || in.dtype == BOOL) bug("%s over %s", kind_info[K_REDUCE].name, dtype_name((DType)in.dtype));
    Node n = {.kind = K_REDUCE, .reduce = (uint8_t)r, .dtype = in.dtype, .nin = 1, .in = {a}};
    set_axes(&n, in.naxes, in.axes);
    // listed in the order of the operand, so that equal reductions are equal nodes
    Axis ordered[MAX_AXES];
    int found = 0;
    for (int i = 0; i < in.naxes; i++)
        for (int j = 0; j < naxes; j++)
            if (axes[j] == in.axes[i]) ordered[found++] = axes[j];
    if (found != naxes) bug("reduction over an axis that the operand lacks");
    set_over(g, &n, naxes, ordered);
    drop_reduced(&n);
    double c;
    if (!const_value(g, a, &c)) return graph_add(g, &n);
    double count = 1;
    for (int i = 0; i < naxes; i++) count *= (double)extent_of(g, axes[i]);
    if (r == RED_SUM && n.dtype == I32 && fabs(c * count) > INT32_MAX) return graph_add(g, &n);
    return const_as(g, &n, r == RED_SUM ? c * count : c);
}

// a and b have all the axes, and each an axis that the other lacks (notation 4.6).
static bool contracts(Graph *g, Val a, Val b, int naxes, const Axis *axes)
{
    const Node *x = node_of(g, a), *y = node_of(g, b);
    int own_x = 0, own_y = 0;
    for (int i = 0; i < naxes; i++)
        if (!has_axis(x, axes[i]) || !has_axis(y, axes[i])) return false;
    for (int i = 0; i < x->naxes; i++) own_x += !has_axis(y, x->axes[i]);
    for (int i = 0; i < y->naxes; i++) own_y += !has_axis(x, y->axes[i]);
    return naxes > 0 && own_x > 0 && own_y > 0;
}

Val make_contract(Graph *g, Val a, Val b, int naxes, const Axis *axes)
{
    DType t = (DType)node_of(g, a)->dtype;
    if (!contracts(g, a, b, naxes, axes)) bug("no contraction");
    if (t != node_of(g, b)->dtype || !is_float(t)) bug("contraction of %s", dtype_name(t));
    Node n = {.kind = K_CONTRACT, .dtype = (uint8_t)(t == BF16 ? F32 : t), .nin = 2, .in = {a, b}};
    join_axes(g, &n, a), join_axes(g, &n, b);
    Axis ordered[MAX_AXES];
    int found = 0;
    for (int i = 0; i < n.naxes; i++)
        for (int j = 0; j < naxes; j++)
            if (axes[j] == n.axes[i]) ordered[found++] = axes[j];
    set_over(g, &n, naxes, ordered);
    drop_reduced(&n);
    return graph_add(g, &n);
}

// The dtype of the op that v belongs to is that of its tensors: bf16 if everything v is computed from, back to the
// tensors, is stored as bf16. Looks at no more than LOOK values; beyond that f32, which is the safe side.
enum { LOOK = 256 };
static bool from_bf16(Graph *g, Val v)
{
    Val todo[LOOK] = {v};
    int n = 1;
    bool found = false;
    for (int i = 0; i < n; i++) {
        const Node *node = node_of(g, todo[i]);
        if (node->dtype == BF16) found = true;
        else if (is_float((DType)node->dtype) && node->nin == 0) {
            if (node->kind == K_PARAM || node->kind == K_STATE || node->kind == K_TOTAL) return false;
        } else
            for (int j = 0; j < node->nin; j++) {
                bool seen = false;
                for (int k = 0; k < n; k++) seen |= todo[k] == node->in[j];
                if (seen) continue;
                if (n == LOOK) return false;
                todo[n++] = node->in[j];
            }
    }
    return found;
}

// Sum of a product of which each factor has an axis the other lacks, or 0.
static Val product_sum(Graph *g, Val v, int naxes, const Axis *axes)
{
    const Node n = *node_of(g, v);
    if (n.kind != K_MAP || n.fn != FN_MUL || !is_float((DType)n.dtype)) return 0;
    if (!contracts(g, n.in[0], n.in[1], naxes, axes)) return 0;
    if (g->dtype != BF16 || n.dtype != F32 || !from_bf16(g, v)) return make_contract(g, n.in[0], n.in[1], naxes, axes);
    return make_contract(g, make_cast(g, n.in[0], BF16), make_cast(g, n.in[1], BF16), naxes, axes);
}

// The axis whose position the condition compares with a constant: index(axis) == k. 0: it does something else.
static Axis picked_axis(Graph *g, Val cond, double *k)
{
    const Node *n = node_of(g, cond);
    if (n->kind != K_MAP || n->fn != FN_EQ) return 0;
    for (int i = 0; i < 2; i++) {
        const Node *index = node_of(g, n->in[i]);
        if (index->kind == K_INDEX && index->u.axis != g->batch && const_value(g, n->in[1 - i], k)) return index->u.axis;
    }
    return 0;
}

// sum[a](where(index(a) == k, x, 0)) is x{a = k}: what the adjoint of a rotation is full of. 0: v is no such sum.
static Val picked_sum(Graph *g, Val v, int naxes, const Axis *axes)
{
    const Node n = *node_of(g, v);
    double k, zero;
    if (n.kind != K_MAP || n.fn != FN_WHERE) return 0;
    Axis axis = picked_axis(g, n.in[0], &k), rest[MAX_AXES], kept[MAX_AXES];
    int nrest = 0, nkept = 0;
    if (!axis) return 0;
    for (int i = 0; i < naxes; i++)
        if (axes[i] != axis) rest[nrest++] = axes[i];
    if (nrest == naxes || k < 0 || k >= (double)extent_of(g, axis)) return 0;
    Val x = n.in[1];
    if (const_value(g, n.in[1], &zero) && zero == 0 && extent_of(g, axis) == 2) x = n.in[2], k = 1 - k;  // the other one
    else if (!const_value(g, n.in[2], &zero) || zero != 0) return 0;
    if (has_axis(node_of(g, x), axis)) x = make_pick(g, x, axis, (int64_t)k);
    for (int i = 0; i < n.naxes; i++)
        if (n.axes[i] != axis) kept[nkept++] = n.axes[i];
    return make_reduce(g, RED_SUM, make_broadcast(g, x, nkept, kept), nrest, rest);
}

Val make_reduce(Graph *g, Reduction r, Val a, int naxes, const Axis *axes)
{
    const Node in = *node_of(g, a);
    if (naxes == 0) return a;
    if (r == RED_SUM) {
        Val v = picked_sum(g, a, naxes, axes);
        if (v) return v;
        v = product_sum(g, a, naxes, axes);
        if (v) return v;
        if (in.dtype == F32 && naxes == in.naxes)  // to one number: in double
            return make_cast(g, make_reduce_raw(g, r, make_cast(g, a, F64), naxes, axes), F32);
    }
    return make_reduce_raw(g, r, a, naxes, axes);
}

// ------------------------------------------------------------------------------------------------------- lookups
// The index' axes come in the place of `axis`; an axis that the table has already is aligned, not added.
Val make_gather(Graph *g, Val table, Val index, Axis axis)
{
    const Node t = *node_of(g, table), x = *node_of(g, index);
    if (x.dtype != I32 || !has_axis(&t, axis)) bug("gather of axis '%s'", axis_name(g, axis));
    Node n = {.kind = K_GATHER, .dtype = t.dtype, .nin = 2, .in = {table, index}};
    n.u.axis = axis;
    for (int i = 0; i < t.naxes; i++) {
        if (t.axes[i] != axis) {
            if (n.naxes == MAX_AXES) err(g, g->cur_loc, "a value here has more than %d axes", MAX_AXES);
            n.axes[n.naxes++] = t.axes[i];
            continue;
        }
        for (int j = 0; j < x.naxes; j++) {
            if (has_axis(&t, x.axes[j]) && x.axes[j] != axis) continue;
            if (n.naxes == MAX_AXES) err(g, g->cur_loc, "a value here has more than %d axes", MAX_AXES);
            n.axes[n.naxes++] = x.axes[j];
        }
    }
    return graph_add(g, &n);
}

Val make_scatter_add(Graph *g, Val dy, Val index, Axis axis, int naxes, const Axis *axes)
{
    const Node d = *node_of(g, dy), x = *node_of(g, index);
    if (x.dtype != I32 || (d.dtype != F32 && d.dtype != F64)) bug("scatter_add of %s", dtype_name((DType)d.dtype));
    Node n = {.kind = K_SCATTER_ADD, .dtype = d.dtype, .nin = 2, .in = {dy, index}};
    set_axes(&n, naxes, axes);
    n.u.axis = axis;
    if (!has_axis(&n, axis)) bug("scatter_add into no axis");
    for (int i = 0; i < naxes; i++)
        if (axes[i] != axis && !has_axis(&d, axes[i])) bug("scatter_add: no axis '%s'", axis_name(g, axes[i]));
    for (int i = 0; i < x.naxes; i++)
        if (!has_axis(&d, x.axes[i])) bug("scatter_add: no axis '%s'", axis_name(g, x.axes[i]));
    return graph_add(g, &n);
}

// ----------------------------------------------------------------------------------------------------- attention
Val make_attention(Graph *g, Val q, Val k, Val v, const Attention *a)
{
    const Node *nq = node_of(g, q), *nk = node_of(g, k), *nv = node_of(g, v);
    if (nq->dtype != nk->dtype || nq->dtype != nv->dtype || !is_float((DType)nq->dtype)) bug("attention of mixed dtypes");
    if (!has_axis(nk, a->seq) || !has_axis(nk, a->head_dim) || nk->naxes != nv->naxes) bug("attention: axes of k");
    for (int i = 0; i < nk->naxes; i++)
        if (!has_axis(nq, nk->axes[i]) || !has_axis(nv, nk->axes[i])) bug("attention: '%s'", axis_name(g, nk->axes[i]));
    Node n = {.kind = K_ATTENTION, .dtype = nq->dtype, .nin = 3, .in = {q, k, v}};
    set_axes(&n, nq->naxes, nq->axes);
    n.u.attention = graph_attention(g, a);
    return graph_add(g, &n);
}

Val make_attention_grad(Graph *g, Val attention, Val lse, Val dout)
{
    const Node a = *node_of(g, attention);
    const Node *s = node_of(g, lse), *d = node_of(g, dout);
    if (a.kind != K_ATTENTION || s->kind != K_PART || s->in[0] != attention) bug("attention_grad of no attention");
    if (d->dtype != a.dtype || !same_axes(d, &a)) bug("attention_grad: adjoint unlike the result");
    Node n = {.kind = K_ATTENTION_GRAD, .dtype = a.dtype, .nin = 6};
    for (int i = 0; i < 3; i++) n.in[i] = a.in[i];
    n.in[3] = attention, n.in[4] = lse, n.in[5] = dout;
    set_axes(&n, a.naxes, a.axes);
    n.u.attention = a.u.attention;
    return graph_add(g, &n);
}

Val make_part(Graph *g, Val a, uint32_t which)
{
    const Node in = *node_of(g, a);
    Node n = {.kind = K_PART, .nin = 1, .in = {a}};
    n.u.id = which;
    if (in.kind == K_ATTENTION && which == 1) {
        n.dtype = (uint8_t)(in.dtype == BF16 ? F32 : in.dtype);
        for (int i = 0; i < in.naxes; i++)
            if (in.axes[i] != in.u.attention->head_dim) n.axes[n.naxes++] = in.axes[i];
    } else if (in.kind == K_ATTENTION_GRAD && (which == 1 || which == 2)) {
        const Node *like = node_of(g, in.in[which]);
        n.dtype = in.dtype;
        set_axes(&n, like->naxes, like->axes);
    } else
        bug("%s has no part %u", kind_info[in.kind].name, which);
    return graph_add(g, &n);
}

// ---------------------------------------------------------------------------------------------------- the borders
static void check_target(Graph *g, const Node *target, Val v)
{
    const Node *n = node_of(g, v);
    if (n->naxes != target->naxes) bug("a value of %d axes for storage of %d", n->naxes, target->naxes);
    for (int i = 0; i < n->naxes; i++)
        if (!has_axis(target, n->axes[i])) bug("storage has no axis '%s'", axis_name(g, n->axes[i]));
    if (!is_float((DType)n->dtype)) bug("storage of %s", dtype_name((DType)n->dtype));
}

Val make_accumulate(Graph *g, uint32_t acc, Val v)
{
    const Node target = *node_of(g, g->accs[acc].total);
    check_target(g, &target, v);
    v = make_broadcast(g, make_cast(g, v, g->accs[acc].dtype), target.naxes, target.axes);
    Node n = {.kind = K_ACCUMULATE, .dtype = target.dtype, .nin = 1, .in = {v}};
    set_axes(&n, target.naxes, target.axes);
    n.u.id = acc;
    return graph_add(g, &n);
}

Val make_update(Graph *g, Val where, Val v)
{
    const Node target = *node_of(g, where);
    if (target.kind != K_PARAM && target.kind != K_STATE && target.kind != K_SLICE) bug("update of %s", kind_info[target.kind].name);
    check_target(g, &target, v);
    v = make_broadcast(g, make_cast(g, v, (DType)target.dtype), target.naxes, target.axes);
    Node n = {.kind = K_UPDATE, .dtype = target.dtype, .nin = 2, .in = {v, where}};
    set_axes(&n, target.naxes, target.axes);
    return graph_add(g, &n);
}

// -------------------------------------------------------------------------------------------------- between ranks
CommKey comm_key(uint32_t mesh) { return (CommKey){.mesh = mesh}; }

Val make_reshard(Graph *g, Val a, const Reshard *r)
{
    const Node in = *node_of(g, a);
    Node n = {.kind = K_RESHARD, .dtype = in.dtype, .nin = 1, .in = {a}};
    set_axes(&n, in.naxes, in.axes);
    if (!r->key.mesh) bug("a reshard over no axis");
    if (r->how == COLL_ALL_REDUCE) {
        if (r->axis || r->part) bug("an all-reduce of an axis");
    } else {
        Axis from = r->how == COLL_ALL_GATHER ? r->part : r->axis, to = r->how == COLL_ALL_GATHER ? r->axis : r->part;
        if (from) {
            int at = axis_find(&n, from);
            if (at < 0) bug("a reshard of axis '%s', which is not there", axis_name(g, from));
            n.axes[at] = to;
        } else {  // of a leaf's flat storage
            set_axes(&n, 1, &to);
        }
    }
    n.u.reshard = graph_reshard(g, r);
    return graph_add(g, &n);
}

Val make_slice(Graph *g, Val leaf, CommKey key, Axis flat)
{
    const Node in = *node_of(g, leaf);
    if (in.nin) bug("a slice of what is no leaf");
    Node n = {.kind = K_SLICE, .dtype = in.dtype, .nin = 1, .in = {leaf}, .naxes = 1, .axes = {flat}};
    n.u.reshard = graph_reshard(g, &(Reshard){.how = COLL_REDUCE_SCATTER, .key = key, .part = flat, .why = ""});
    return graph_add(g, &n);
}
