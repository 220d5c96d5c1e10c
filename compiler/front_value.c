// front_value.c: arithmetic with types, shared by the text of ops and by Lua's operators (notation 4.1, 4.3, 4.4).
//
// A value is a float, a whole number (i32) or a condition. Floats are in the compute dtype; a value made of numbers,
// extents and scalars alone is "scalar", f64 and of rank 0, and is rounded where it meets one that is not. What is free
// of tensors carries a second version `d` in double beside it, so that const(cos(angle)) can be exact although `angle`
// was given as an argument; versions that nobody uses are dead nodes and go with the rest.
//
// Traps.
// - Folding may return a node that varies along fewer axes than the value has (0*x). The axes of a Value are the ones
//   the notation gives it; reductions, braces and value_store look at them and not at the node's.
// - In bf16 a tensor enters an op by a cast to f32. Views and lookups are made below that cast, so that they read bf16.
#include "front.h"
#include <math.h>

const char *const reduce_words[4] = {"sum", "mean", "max", "min"};

// -------------------------------------------------------------------------------------------------------- making
Value value_number(double x, bool whole)
{
    Val v = make_const(fr.g, F64, x);
    bool small = fabs(x) < 2147483648.0;
    return (Value){.v = v, .d = v, .type = whole && small ? T_WHOLE : T_FLOAT, .scalar = true};
}

static void take_axes(Value *x)
{
    const Node *n = node_of(fr.g, x->v);
    x->naxes = n->naxes;
    memcpy(x->axes, n->axes, n->naxes * sizeof(Axis));
}

Value value_of_val(Val v)
{
    Value x = {.v = v};
    DType t = (DType)node_of(fr.g, v)->dtype;
    x.type = t == I32 ? T_WHOLE : t == BOOL ? T_COND : T_FLOAT;
    take_axes(&x);
    if (x.type == T_FLOAT) x.v = make_cast(fr.g, v, graph_compute_dtype(fr.g));
    return x;
}

Value value_index(Axis a)
{
    Val v = make_index(fr.g, a);
    return (Value){.v = v, .d = v, .type = T_WHOLE, .naxes = 1, .axes = {a}};
}

int value_axis(const Value *x, Axis a)
{
    for (int i = 0; i < x->naxes; i++)
        if (x->axes[i] == a) return i;
    return -1;
}

static void add_axis(Value *x, Axis a)
{
    if (value_axis(x, a) >= 0) return;
    for (int i = 0; i < x->naxes; i++)
        if (!strcmp(axis_name(fr.g, x->axes[i]), axis_name(fr.g, a)))
            front_err("the axis '%s' has two sizes here, %lld and %lld", axis_name(fr.g, a),
                      (long long)extent_of(fr.g, x->axes[i]), (long long)extent_of(fr.g, a));
    if (x->naxes == MAX_AXES) front_err("this value would have more than %d axes", MAX_AXES);
    x->axes[x->naxes++] = a;
}

DType wider(DType a, DType b)
{
    static const int rank[DTYPE_COUNT] = {[BF16] = 1, [F32] = 2, [F64] = 3};
    return rank[a] >= rank[b] ? a : b;
}

bool value_whole_const(const Value *x, int64_t *n)
{
    double c;
    if (!x->scalar || !const_value(fr.g, x->v, &c) || c != floor(c) || fabs(c) >= 2147483648.0) return false;
    *n = (int64_t)c;
    return true;
}

// -------------------------------------------------------------------------------------------------------- casts
// As an operand of type `to`; `exact`: the version in double.
static Val operand(const Value *x, Type to, bool exact)
{
    Val v = exact ? x->d : x->v;
    if (to == T_COND) return v;
    if (to == T_WHOLE) return make_cast(fr.g, v, I32);
    return make_cast(fr.g, v, exact ? F64 : graph_compute_dtype(fr.g));
}

Val value_float(const Value *x)
{
    return operand(x, T_FLOAT, false);
}

Val value_store(const Value *x, DType dtype)
{
    Val v = x->type == T_FLOAT ? make_cast(fr.g, x->v, dtype) : x->v;
    if (x->scalar && x->type == T_WHOLE) v = make_cast(fr.g, v, dtype);
    return node_of(fr.g, v)->naxes == x->naxes ? v : make_broadcast(fr.g, v, x->naxes, x->axes);
}

// ---------------------------------------------------------------------------------------------------------- maps
static bool is_comparison(Fn fn)
{
    return fn == FN_LT || fn == FN_LE || fn == FN_EQ || fn == FN_NE;
}
static bool is_logic(Fn fn)
{
    return fn == FN_AND || fn == FN_OR || fn == FN_NOT;
}
static bool keeps_whole(Fn fn)
{
    return fn == FN_NEG || fn == FN_ADD || fn == FN_SUB || fn == FN_MUL || fn == FN_MIN || fn == FN_MAX ||
           fn == FN_ABS || fn == FN_SIGN || fn == FN_FLOOR || fn == FN_STOP || fn == FN_WHERE || is_comparison(fn);
}

// What the operands (but for where's condition) are cast to; `scalar`: all are.
static Type operand_type(Fn fn, int n, const Value *args, bool *scalar)
{
    Type t = is_logic(fn) ? T_COND : keeps_whole(fn) ? T_WHOLE : T_FLOAT;
    *scalar = true;
    for (int i = 0; i < n; i++) {
        *scalar &= args[i].scalar;
        bool condition = is_logic(fn) || (fn == FN_WHERE && i == 0);
        if (condition != (args[i].type == T_COND))
            front_err(condition ? "'%s' takes a condition here, and this is a number"
                                : "'%s' takes a number here, and this is a condition",
                      fn_info[fn].name);
        if (t == T_WHOLE && !condition && args[i].type == T_FLOAT) t = T_FLOAT;
    }
    return t;
}

static Val map_version(Fn fn, int n, const Value *args, Type t, bool scalar, bool exact)
{
    Val in[3] = {0};
    for (int i = 0; i < n; i++) {
        if (fn == FN_WHERE && i == 0)
            in[i] = exact ? args[i].d : args[i].v;
        else
            in[i] = scalar && t != T_COND ? (exact ? args[i].d : args[i].v) : operand(&args[i], t, exact);
    }
    return make_map(fr.g, fn, n, in);
}

Value value_map(Fn fn, int n, const Value *args)
{
    Value r = {0};
    Type t = operand_type(fn, n, args, &r.scalar);
    if (fn == FN_STOP && (t == T_WHOLE || r.scalar)) return args[0];
    if (fn == FN_FLOOR && t == T_WHOLE) return args[0];
    r.type = is_comparison(fn) ? T_COND : t;
    for (int k = 0; k < n; k++) { // where(c, a, b) has its axes in the order a, b, c
        const Value *x = &args[fn == FN_WHERE ? (k + 1) % 3 : k];
        for (int i = 0; i < x->naxes; i++) add_axis(&r, x->axes[i]);
    }
    bool exact = true;
    for (int i = 0; i < n; i++) exact &= args[i].d != 0;
    r.v = map_version(fn, n, args, t, r.scalar, false);
    if (exact) r.d = r.scalar ? r.v : map_version(fn, n, args, t, false, true);
    return r;
}

// x^n as a product: by squares, n from 0 to 8.
static Value power_product(Value x, int64_t n)
{
    Value r = {0};
    for (; n; n >>= 1) {
        if (n & 1) r = r.v ? value_map(FN_MUL, 2, (Value[]){r, x}) : x;
        if (n > 1) x = value_map(FN_MUL, 2, (Value[]){x, x});
    }
    return r;
}

static Value to_float(Value x)
{
    if (x.type == T_WHOLE && !x.scalar) {
        Val v = x.v, d = x.d;
        x.v = operand(&(Value){.v = v}, T_FLOAT, false);
        if (d) x.d = operand(&(Value){.d = d}, T_FLOAT, true);
    }
    x.type = T_FLOAT;
    return x;
}

Value value_pow(Value x, Value n)
{
    int64_t whole;
    if (x.type == T_COND || n.type == T_COND) front_err("'^' takes numbers, and this is a condition");
    if (n.type == T_WHOLE && value_whole_const(&n, &whole) && whole >= 0 && whole <= 8) {
        if (whole > 0) return power_product(to_float(x), whole);
        Value one = value_number(1, false);
        one.naxes = x.naxes;
        memcpy(one.axes, x.axes, sizeof one.axes);
        if (!x.scalar) {
            one.scalar = false;
            one.v = make_const(fr.g, graph_compute_dtype(fr.g), 1);
        }
        return one;
    }
    return value_map(FN_POW, 2, (Value[]){x, n});
}

Value value_int(Value x)
{
    if (x.type == T_COND) front_err("int takes a number, and this is a condition: write where(condition, 1, 0)");
    if (x.type == T_WHOLE) return x;
    x.type = T_WHOLE;
    x.v = make_cast(fr.g, x.v, I32);
    if (x.d) x.d = make_cast(fr.g, x.d, I32);
    if (x.scalar) {
        x.v = make_cast(fr.g, x.v, F64);
        x.d = x.d ? x.v : 0;
    }
    return x;
}

Value value_bf16(Value x)
{
    if (x.type == T_COND) front_err("bf16 takes a number, and this is a condition");
    if (fr.g->dtype == F64) return to_float(x);
    DType compute = graph_compute_dtype(fr.g);
    x.v = make_cast(fr.g, make_cast(fr.g, value_float(&x), BF16), compute);
    x.d = 0;
    x.scalar = false;
    x.type = T_FLOAT;
    return x;
}

Value value_const(Value x)
{
    if (!x.d)
        front_err(
            "const is a table made once, before the first step: no tensor, random or per-step scalar can be in it");
    if (!x.scalar && x.type == T_FLOAT) x.v = make_cast(fr.g, x.d, graph_compute_dtype(fr.g));
    return x;
}

// ---------------------------------------------------------------------------------------------------- reductions
static void check_batch(Axis a, const char *what)
{
    if (a == fr.g->batch && !fr.over_batch)
        front_err("%s over 'batch' would hang on how the batch is split: a model sees one sample at a time", what);
}

static void check_reduced(const Value *x, int n, const Axis *axes, const char *what)
{
    for (int i = 0; i < n; i++) {
        check_batch(axes[i], what);
        if (value_axis(x, axes[i]) < 0)
            front_err("%s goes over '%s', and the value has no such axis; it has %s", what, axis_name(fr.g, axes[i]),
                      axes_text(x->naxes, x->axes));
    }
}

static bool in_list(Axis a, int n, const Axis *axes)
{
    for (int i = 0; i < n; i++)
        if (axes[i] == a) return true;
    return false;
}

static bool has_own_axis(const Node *x, const Node *y)
{
    for (int i = 0; i < x->naxes; i++)
        if (!has_axis(y, x->axes[i])) return true;
    return false;
}

// sum[axes](a * b) is a matrix product iff both have all of the axes and each has one that the other lacks.
static bool is_contraction(Val a, Val b, int n, const Axis *axes)
{
    const Node *x = node_of(fr.g, a), *y = node_of(fr.g, b);
    for (int i = 0; i < n; i++)
        if (!has_axis(x, axes[i]) || !has_axis(y, axes[i])) return false;
    return n > 0 && has_own_axis(x, y) && has_own_axis(y, x);
}

static Val contract(Val a, Val b, int n, const Axis *axes)
{
    DType t = fr.op_dtype;
    return make_contract(fr.g, make_cast(fr.g, a, t), make_cast(fr.g, b, t), n, axes);
}

// One version of a reduction. Axes along which folding found no variation are counted, not summed.
static Val reduce_version(ReduceWord word, Val v, int n, const Axis *axes, bool exact)
{
    static const Reduction reductions[] = {RED_SUM, RED_SUM, RED_MAX, RED_MIN};
    double times = 1, size = 1;
    Axis over[MAX_AXES];
    int nover = 0;
    for (int i = 0; i < n; i++) {
        double extent = (double)extent_of(fr.g, axes[i]);
        size *= extent;
        if (has_axis(node_of(fr.g, v), axes[i]))
            over[nover++] = axes[i];
        else
            times *= extent;
    }
    const Node *node = node_of(fr.g, v);
    bool sums = word == WORD_SUM || word == WORD_MEAN;
    DType t = (DType)node->dtype;
    bool product = node->kind == K_MAP && node->fn == FN_MUL;
    if (sums && !exact && product && t != I32 && is_contraction(node->in[0], node->in[1], nover, over))
        v = contract(node->in[0], node->in[1], nover, over);
    else if (nover)
        v = make_reduce(fr.g, reductions[word], v, nover, over);
    if (sums && times > 1) v = make_map2(fr.g, FN_MUL, v, make_const(fr.g, t, times));
    if (word == WORD_MEAN) v = make_map2(fr.g, FN_DIV, v, make_const(fr.g, t, size));
    return v;
}

Value value_reduce(ReduceWord word, Value x, int n, const Axis *axes)
{
    const char *what = reduce_words[word];
    if (x.type == T_COND) front_err("%s takes a number, and this is a condition: write where(condition, 1, 0)", what);
    check_reduced(&x, n, axes, what);
    if (n == 0) return x;
    if (word == WORD_MEAN) x = to_float(x);
    Value r = {.type = x.type};
    for (int i = 0; i < x.naxes; i++)
        if (!in_list(x.axes[i], n, axes)) r.axes[r.naxes++] = x.axes[i];
    r.v = reduce_version(word, x.v, n, axes, false);
    if (x.d) r.d = x.d == x.v ? r.v : reduce_version(word, x.d, n, axes, true);
    return r;
}

Value value_product_sum(Value a, Value b, int n, const Axis *axes)
{
    Value r = {.type = T_FLOAT}, all = {0};
    for (int i = 0; i < a.naxes; i++) add_axis(&all, a.axes[i]);
    for (int i = 0; i < b.naxes; i++)
        if (value_axis(&all, b.axes[i]) < 0) {
            if (all.naxes == MAX_AXES) front_err("this product would have more than %d axes", MAX_AXES);
            add_axis(&all, b.axes[i]);
        }
    Val x = value_float(&a), y = value_float(&b);
    if (!is_contraction(x, y, n, axes)) return value_reduce(WORD_SUM, value_map(FN_MUL, 2, (Value[]){a, b}), n, axes);
    check_reduced(&all, n, axes, "sum");
    for (int i = 0; i < all.naxes; i++)
        if (!in_list(all.axes[i], n, axes)) r.axes[r.naxes++] = all.axes[i];
    r.v = contract(x, y, n, axes);
    return r;
}

// -------------------------------------------------------------------------------------------------------- braces
// Is this a parameter or state, perhaps cast or seen through views? Then a lookup reads rows of it.
static bool is_table(Val v)
{
    for (;;) {
        const Node *n = node_of(fr.g, v);
        if (n->kind == K_PARAM || n->kind == K_STATE || n->kind == K_TOTAL) return true;
        if (n->kind != K_VIEW && !(n->kind == K_MAP && n->fn == FN_CAST)) return false;
        v = n->in[0];
    }
}

static Axis temporary_axis(const Node *n, const Value *index, Axis a)
{
    for (int k = 2;; k++) {
        Axis t = graph_axis(fr.g, arena_printf(&fr.g->arena, "%s'%d", axis_name(fr.g, a), k), extent_of(fr.g, a));
        if (!has_axis(n, t) && value_axis(index, t) < 0) return t;
    }
}

static Val look_up(Val v, Axis a, const Value *index)
{
    const Node *n = node_of(fr.g, v);
    bool apart = is_table(v);
    for (int i = 0; i < n->naxes; i++)
        if (n->axes[i] != a && value_axis(index, n->axes[i]) >= 0) apart = false;
    Val i = index->scalar ? make_cast(fr.g, index->v, I32) : index->v;
    if (apart) return make_gather(fr.g, v, i, a);
    DType t = (DType)n->dtype, to = t == BF16 ? F32 : t;
    Val hit = make_map2(fr.g, FN_EQ, make_index(fr.g, a), i);
    Val masked = make_where(fr.g, hit, make_cast(fr.g, v, to), make_const(fr.g, to, 0));
    return make_reduce(fr.g, RED_SUM, masked, 1, &a);
}

static bool always_inside(const AtEntry *e)
{
    int64_t low = e->offset, high = e->offset;
    for (int t = 0; t < e->nterms; t++) {
        int64_t reach = e->coef[t] * (extent_of(fr.g, e->axis[t]) - 1);
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    return low >= 0 && high < extent_of(fr.g, e->src);
}

static bool is_same(const AtEntry *e)
{
    return !e->lookup && e->nterms == 1 && e->axis[0] == e->src && e->coef[0] == 1 && e->offset == 0;
}

// The view of the entries that are no lookups; from[i] is the axis that stands for entries[i].src in v.
static Val make_windows(Val v, int n, const AtEntry *entries, const Axis *from)
{
    View view = {0};
    Node in = *node_of(fr.g, v);
    Axis axes[MAX_AXES];
    int naxes = 0;
    for (int i = 0; i < in.naxes; i++) {
        const AtEntry *e = NULL;
        for (int k = 0; k < n; k++)
            if (from[k] == in.axes[i] && !entries[k].lookup && !(is_same(&entries[k]) && from[k] == entries[k].src))
                e = &entries[k];
        int more = e ? e->nterms : 1;
        for (int t = 0; t < more; t++) {
            Axis a = e ? e->axis[t] : in.axes[i];
            if (in_list(a, naxes, axes)) continue;
            if (naxes == MAX_AXES) front_err("this value would have more than %d axes", MAX_AXES);
            axes[naxes++] = a;
        }
        if (!e) continue;
        ViewIndex *x = &view.ix[view.n++];
        *x = (ViewIndex){.src = in.axes[i], .nterms = (uint16_t)e->nterms, .offset = e->offset, .div = 1};
        x->zero = !always_inside(e);
        memcpy(x->axis, e->axis, sizeof x->axis);
        memcpy(x->coef, e->coef, sizeof x->coef);
    }
    return view.n ? make_view(fr.g, v, &view, naxes, axes) : v;
}

// Lookups first, on axes that nothing else names, so that all entries are put in at once.
static Val at_version(Val v, int n, const AtEntry *entries)
{
    Axis from[MAX_AXES];
    int lookups = 0;
    bool gathers = true;
    for (int i = 0; i < n; i++) from[i] = entries[i].src, lookups += entries[i].lookup != NULL;
    const Node *node = node_of(fr.g, v);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < node->naxes && entries[i].lookup; k++)
            gathers &= node->axes[k] == from[i] || value_axis(entries[i].lookup, node->axes[k]) < 0;
    bool up = node->kind == K_MAP && node->fn == FN_CAST && is_float((DType)node->dtype) &&
              node_of(fr.g, node->in[0])->dtype == BF16 && (!lookups || (is_table(v) && gathers));
    DType outer = (DType)node->dtype;
    if (up) v = node->in[0];
    for (int i = 0; i < n && lookups; i++) {
        bool clash = n > 1 || (entries[i].lookup && value_axis(entries[i].lookup, from[i]) >= 0);
        if (!clash) continue;
        static const Value none;
        from[i] = temporary_axis(node_of(fr.g, v), entries[i].lookup ? entries[i].lookup : &none, entries[i].src);
        v = make_rename(fr.g, v, entries[i].src, from[i]);
    }
    for (int i = 0; i < n; i++)
        if (entries[i].lookup) v = look_up(v, from[i], entries[i].lookup);
    v = make_windows(v, n, entries, from);
    return up ? make_cast(fr.g, v, outer) : v;
}

static void check_entry(const Value *x, const AtEntry *e)
{
    Graph *g = fr.g;
    const char *src = axis_name(g, e->src);
    long long size = extent_of(g, e->src);
    if (value_axis(x, e->src) < 0)
        front_err("there is no axis '%s' in the value before the brace; it has %s", src, axes_text(x->naxes, x->axes));
    if (!is_same(e)) check_batch(e->src, "an index");
    if (e->lookup && e->lookup->type != T_WHOLE)
        front_err("the index of '%s' is a whole number, and this is a %s: int(x) cuts a fraction off", src,
                  e->lookup->type == T_COND ? "condition" : "fraction");
    if (e->lookup && x->type == T_COND) front_err("conditions cannot be looked up: look up where(condition, 1, 0)");
    if (e->lookup) return;
    if (e->nterms == 0 && (e->offset < 0 || e->offset >= size))
        front_err("position %lld is outside '%s', which has %lld", (long long)e->offset, src, size);
    if (e->nterms == 1 && e->coef[0] == 1 && !e->shifted && extent_of(g, e->axis[0]) > size)
        front_err("'%s' (%lld) is longer than '%s' (%lld)", axis_name(g, e->axis[0]),
                  (long long)extent_of(g, e->axis[0]), src, size);
}

// Braces put new axes in the place of the one replaced.
static void at_axes(Value *r, const Value *x, int n, const AtEntry *entries)
{
    for (int i = 0; i < x->naxes; i++) {
        const AtEntry *e = NULL;
        for (int k = 0; k < n; k++)
            if (entries[k].src == x->axes[i]) e = &entries[k];
        if (!e) add_axis(r, x->axes[i]);
        for (int t = 0; e && t < e->nterms; t++) add_axis(r, e->axis[t]);
        for (int t = 0; e && e->lookup && t < e->lookup->naxes; t++) add_axis(r, e->lookup->axes[t]);
    }
}

Value value_at(Value x, int n, const AtEntry *entries)
{
    Value r = {.type = x.type};
    for (int i = 0; i < n; i++) check_entry(&x, &entries[i]);
    at_axes(&r, &x, n, entries);
    bool exact = x.d != 0;
    for (int i = 0; i < n; i++) {
        if (node_of(fr.g, x.v)->naxes != x.naxes) x.v = make_broadcast(fr.g, x.v, x.naxes, x.axes);
        if (x.d && node_of(fr.g, x.d)->naxes != x.naxes) x.d = make_broadcast(fr.g, x.d, x.naxes, x.axes);
        if (entries[i].lookup && !entries[i].lookup->d) exact = false;
    }
    r.v = at_version(x.v, n, entries);
    if (exact) r.d = x.d == x.v ? r.v : at_version(x.d, n, entries);
    return r;
}
