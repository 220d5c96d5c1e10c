// emit_expr.c: values as lines of C, pulled by their users.
//
// pull(v, position) gives the name of a local that holds value v where its axes have these indices, and writes the
// lines that it takes, each at the level of the innermost loop that it varies with. A load is the end of the chain;
// views only change the position. What was pulled once at a position is used again while its level is open.
//
// A zero-filled view evaluates its operand under a *predicate*, and only the result is set to 0: below, whatever is
// read is of no matter as long as it may be read. If the predicate varies along the inner loop a load is `inside ? a[i]
// : 0`; if it does not, the row's pointer is one that is always good, so that no condition stands in the inner loop.
//
// bf16 values live in float registers, rounded; BOOL and I32 in int. The text is the same for C and CUDA.
#include "emit.h"
#include <math.h>

// positions of the axes of `of` when n stands at `at`; an axis n lacks is left alone
static void align(const Node *n, const IdxId *at, const Node *of, IdxId *out)
{
    for (int i = 0; i < of->naxes; i++) {
        int k = axis_find(n, of->axes[i]);
        if (k >= 0) out[i] = at[k];
    }
}

Value pull_here(Emitter *e, Val v)
{
    IdxId at[MAX_AXES];
    natural_position(e, &e->g->nodes[v], at);
    return pull(e, v, at, 0);
}

// ------------------------------------------------------------------------------------------------- expressions
// Shortest decimal that reads back as the same number.
const char *float_text(Emitter *e, double v, bool single)
{
    const char *suffix = single ? "f32" : "f64";
    if (isnan(v)) return arena_printf(&e->arena, "P_NAN_%s", suffix);
    if (isinf(v)) return arena_printf(&e->arena, v < 0 ? "(-P_INF_%s)" : "P_INF_%s", suffix);
    char s[64];
    for (int digits = single ? 6 : 15;; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, v);
        if (digits >= (single ? 9 : 17) || (single ? strtof(s, NULL) == (float)v : strtod(s, NULL) == v)) break;
    }
    if (!strpbrk(s, ".e")) strcat(s, ".0");
    if (single) strcat(s, "f");
    return signbit(v) ? arena_printf(&e->arena, "(%s)", s) : arena_strdup(&e->arena, s);
}

static Value literal(Emitter *e, const Node *n)
{
    double v = n->u.num;
    if (n->dtype == F64) return (Value){float_text(e, v, false), 0};
    if (n->dtype == I32) return (Value){arena_printf(&e->arena, v < 0 ? "(%lld)" : "%lld", (long long)v), 0};
    if (n->dtype == BOOL) return (Value){v != 0 ? "1" : "0", 0};
    float f = (float)v;
    if (n->dtype == BF16 && !isnan(f)) {
        uint32_t bits;
        memcpy(&bits, &f, 4);
        bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
        memcpy(&f, &bits, 4);
    }
    return (Value){float_text(e, f, true), 0};
}

static Value local(Emitter *e, const char *stem, DType t, int level, const char *text)
{
    const char *name = emit_name(e, stem);
    emit_line(e, level, "const %s %s = %s;", local_type(t), name, text);
    return (Value){name, level};
}

static const char *batch_start(Emitter *e)
{
    if (!e->declared_start) emit_line(e, 0, "const int batch_start = (int)s[%d];", SLOT_BATCH_START);
    e->declared_start = true;
    return "batch_start";
}

static Value pull_index(Emitter *e, const Node *n, const IdxId *at)
{
    const char *text = idx_text(e, at[0]), *start = n->axes[0] == e->g->batch ? batch_start(e) : NULL;
    int level = idx_level(e, at[0]);
    const Idx *x = &e->idxs[at[0]];
    const Var *only = x->n == 1 ? &e->vars[x->term[0].var] : NULL;
    if (!start && only && !only->wide && !strcmp(only->name, text)) return (Value){text, level};
    text = arena_printf(&e->arena, "(int)(%s)%s%s", text, start ? " + " : "", start ? start : "");
    return local(e, "index", I32, level, text);
}

// The position counts as if batch were the slowest axis, since only its own extent depends on how a step is split.
static Value pull_random(Emitter *e, const Node *n, const IdxId *at)
{
    IdxId position = idx_const(e, 0);
    int64_t stride = 1;
    int batch = axis_find(n, e->g->batch);
    for (int i = n->naxes; i-- > 0;) {
        if (i == batch) continue;
        position = idx_add(e, position, at[i], stride);
        stride *= extent_of(e->g, n->axes[i]);
    }
    if (batch >= 0) position = idx_add(e, position, at[batch], stride);
    int level = idx_level(e, position);
    const char *text = idx_text(e, position);
    if (batch >= 0) text = arena_printf(&e->arena, "%s + (int64_t)%s * %lld", text, batch_start(e), (long long)stride);
    text = arena_printf(&e->arena, "p_random_%s(s[%d], s[%d], %uu, %s)", type_suffix(n->dtype), SLOT_SEED, SLOT_STEP,
                        n->u.id, text);
    return local(e, "random", n->dtype, level, text);
}

static const char *cast_text(Emitter *e, DType from, DType to, const char *x)
{
    switch (to) {
    case F64:
        return arena_printf(&e->arena, "(double)%s", x);
    case F32:
        return arena_printf(&e->arena, "(float)%s", x);
    case BF16:
        return arena_printf(&e->arena, from == F64 ? "p_round_bf16((float)%s)" : "p_round_bf16(%s)", x);
    case I32:
        return arena_printf(&e->arena, "(int)%s", x);
    default:
        return arena_printf(&e->arena, "%s != 0", x);
    }
}

// fn_info's text with operands put in; without the outer parentheses
static const char *function_text(Emitter *e, Fn fn, const char *suffix, const Value *operand)
{
    Buf b = {0};
    for (const char *s = fn_info[fn].text; *s; s++) {
        if (*s != '$')
            buf_write(&b, s, 1);
        else if (*++s == 'T')
            buf_puts(&b, suffix);
        else
            buf_puts(&b, operand[*s - '1'].text);
    }
    bool wrapped = b.s[0] == '(' && b.s[b.n - 1] == ')';
    const char *text = wrapped ? arena_printf(&e->arena, "%.*s", (int)b.n - 2, b.s + 1) : arena_strdup(&e->arena, b.s);
    buf_free(&b);
    return text;
}

static Value pull_map(Emitter *e, Val v, const IdxId *at, PredId pred)
{
    const Node n = e->g->nodes[v];
    Value operand[6];
    int level = 0;
    for (int i = 0; i < n.nin; i++) {
        IdxId there[MAX_AXES];
        align(&n, at, &e->g->nodes[n.in[i]], there);
        operand[i] = pull(e, n.in[i], there, pred);
        level = max_of(level, operand[i].level);
    }
    DType from = e->g->nodes[n.in[n.nin - 1]].dtype;
    if (n.fn == FN_STOP || (n.fn == FN_CAST && from == BF16 && n.dtype == F32)) return operand[0];
    if (n.fn == FN_CAST)
        return local(e, dtype_name(n.dtype), n.dtype, level, cast_text(e, from, n.dtype, operand[0].text));
    const char *text = function_text(e, n.fn, type_suffix(from), operand);
    if (n.dtype == BF16) text = arena_printf(&e->arena, "p_round_bf16(%s)", text);
    return local(e, fn_info[n.fn].name, n.dtype, level, text);
}

static IdxId view_index(Emitter *e, const Node *n, const IdxId *at, const ViewIndex *ix)
{
    IdxId sum = idx_const(e, ix->offset);
    for (int t = 0; t < ix->nterms; t++) sum = idx_add(e, sum, at[axis_find(n, ix->axis[t])], ix->coef[t]);
    return idx_divide(e, sum, ix->div ? ix->div : 1, ix->mod);
}

// Is a value pulled under this predicate already 0 where that does not hold? Loads are, of which it is the condition.
static bool zero_outside(const Emitter *e, Val v, PredId pred)
{
    return e->preds[pred].level == e->top && is_loaded(e, v);
}

// the value of `of` at `there` where `inside` holds, 0 elsewhere
static Value pull_masked(Emitter *e, Val of, const IdxId *there, PredId pred, PredId inside)
{
    Value value = pull(e, of, there, inside);
    if (inside == pred || zero_outside(e, of, inside)) return value;
    int level = max_of(value.level, e->preds[inside].level);
    DType t = (DType)e->g->nodes[of].dtype;
    const char *condition = predicate_text(e, inside);
    const char *text = arena_printf(&e->arena, "p_where_%s(%s, %s, 0)", type_suffix(t), condition, value.text);
    return local(e, "shifted", t, level, text);
}

static Value pull_view(Emitter *e, Val v, const IdxId *at, PredId pred)
{
    const Node *n = &e->g->nodes[v], *of = &e->g->nodes[n->in[0]];
    const View *view = n->u.view;
    IdxId there[MAX_AXES];
    PredId inside = pred;
    align(n, at, of, there);
    for (int i = 0; i < view->n; i++) {
        const ViewIndex *ix = &view->ix[i];
        int k = axis_find(of, ix->src);
        there[k] = view_index(e, n, at, ix);
        if (ix->zero) inside = predicate(e, inside, there[k], extent_of(e->g, ix->src), true);
    }
    return pull_masked(e, n->in[0], there, pred, inside);
}

// The looked-up position is a variable whose text is the value of the index.
IdxId looked_up(Emitter *e, Val index, const IdxId *at, PredId pred, int64_t extent)
{
    size_t n = e->g->nodes[index].naxes;
    for (uint32_t i = 1; i < vec_len(e->vars); i++) {
        const Var *v = &e->vars[i];
        if (v->kind == VAR_VALUE && v->val == index && v->pred == pred && !memcmp(v->at, at, n * sizeof *at))
            return idx_var(e, i);
    }
    Value value = pull(e, index, at, pred);
    uint32_t v = var_new(e, VAR_VALUE, value.text, max_of(extent, 2), value.level);
    e->vars[v].val = index;
    e->vars[v].pred = pred;
    memcpy(e->vars[v].at, at, n * sizeof *at);
    return idx_var(e, v);
}

static Value pull_gather(Emitter *e, Val v, const IdxId *at, PredId pred)
{
    const Node *n = &e->g->nodes[v], *table = &e->g->nodes[n->in[0]];
    int64_t extent = extent_of(e->g, n->u.axis);
    IdxId there[MAX_AXES], index_at[MAX_AXES];
    align(n, at, &e->g->nodes[n->in[1]], index_at);
    align(n, at, table, there);
    IdxId position = looked_up(e, n->in[1], index_at, pred, extent);
    there[axis_find(table, n->u.axis)] = position;
    return pull_masked(e, n->in[0], there, pred, predicate(e, pred, position, extent, false));
}

// A scatter that sums nothing: every position of the index writes an element of its own.
static Value pull_scatter(Emitter *e, Val v, const IdxId *at, PredId pred)
{
    const Node n = e->g->nodes[v];
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < e->g->nodes[n.in[i]].naxes; k++)
            if (!has_axis(&n, e->g->nodes[n.in[i]].axes[k])) bug("scatter_add %u sums: it needs its own kernel", v);
    IdxId there[MAX_AXES], index_at[MAX_AXES], position = at[axis_find(&n, n.u.axis)];
    align(&n, at, &e->g->nodes[n.in[1]], index_at);
    align(&n, at, &e->g->nodes[n.in[0]], there);
    Value index = pull(e, n.in[1], index_at, pred), dy = pull(e, n.in[0], there, pred);
    int level = max_of(max_of(index.level, dy.level), idx_level(e, position));
    const char *here = idx_text(e, position);
    const char *suffix = type_suffix((DType)n.dtype);
    return local(e, "scatter", (DType)n.dtype, level,
                 arena_printf(&e->arena, "p_where_%s(%s == %s, %s, 0)", suffix, index.text, here, dy.text));
}

static Value pull_new(Emitter *e, Val v, const IdxId *at, PredId pred)
{
    const Node *n = &e->g->nodes[v];
    switch ((Kind)n->kind) {
    case K_SCALAR:
        return local(e, "scalar", F64, 0, arena_printf(&e->arena, "s[%u]", n->u.id));
    case K_INDEX:
        return pull_index(e, n, at);
    case K_RANDOM:
        return pull_random(e, n, at);
    case K_MAP:
        return pull_map(e, v, at, pred);
    case K_VIEW:
        return pull_view(e, v, at, pred);
    case K_GATHER:
        return pull_gather(e, v, at, pred);
    case K_SCATTER_ADD:
        return pull_scatter(e, v, at, pred);
    case K_ACCUMULATE:
    case K_UPDATE:
        return pull(e, n->in[0], at, pred);
    default:
        bug("node %u (%s) is no expression: it needs a kernel of its own, or another position", v,
            kind_info[n->kind].name);
    }
}

static bool is_natural(Emitter *e, const Node *n, const IdxId *at)
{
    for (int i = 0; i < n->naxes; i++)
        if (at[i] != position_of(e, n->axes[i])) return false;
    return true;
}

Value pull(Emitter *e, Val v, const IdxId *at, PredId pred)
{
    const Node *n = &e->g->nodes[v];
    if (n->kind == K_CONST) return literal(e, n);
    const Memo *m = memo_find(e, v, at, pred);
    if (!m && pred) m = memo_find(e, v, at, 0); // holds everywhere, so here too
    if (m) return m->value;
    Value value;
    bool kept = e->pass > 0 && !pred && e->inside[v] && is_natural(e, n, at) && row_reload(e, v, &value);
    if (!kept) value = is_loaded(e, v) ? load(e, v, at, pred) : pull_new(e, v, at, pred);
    memo_add(e, v, at, pred, value);
    return value;
}
