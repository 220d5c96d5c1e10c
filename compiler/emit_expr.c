// emit_expr.c: values as lines of C, pulled by their users.
//
// pull(v, position) gives the name of a local that holds value v where its axes have these indices, and writes the
// lines that it takes, each at the level of the innermost loop that it varies with. A load is the end of the chain;
// views only change the position. What was pulled once at a position is used again while its level is open.
//
// A zero-filled view evaluates its operand under a *predicate*, and only the result is set to 0: below, whatever is read is
// of no matter as long as it may be read. If the predicate varies along the inner loop a load is `inside ? a[i] : 0`; if it
// does not, the row's pointer is one that is always good, so that no condition stands in the inner loop.
//
// bf16 values live in float registers, rounded; BOOL and I32 in int. The text is the same for C and CUDA.
#include "emit.h"
#include <math.h>

const char *local_type(DType t) { return t == F64 ? "double" : t == F32 || t == BF16 ? "float" : "int"; }
const char *type_suffix(DType t) { return t == F64 ? "f64" : t == F32 || t == BF16 ? "f32" : "i32"; }

void emit_line(Emitter *e, int level, const char *fmt, ...) {
    va_list ap;
    char line[4096];
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof line) bug("line too long: %s", fmt);
    buf_printf(&e->lines[level], "%s\n", line);
}

const char *emit_name(Emitter *e, const char *stem) { return arena_printf(&e->arena, "%s_%u", stem, e->serial++); }

// -------------------------------------------------------------------------------------------------------- memo
static int bucket_of(Val v) { return (int)(v % MEMO_BUCKETS); }

static const Memo *memo_find(const Emitter *e, Val v, const IdxId *at, PredId pred) {
    size_t n = e->g->nodes[v].naxes;
    for (int i = e->bucket[bucket_of(v)]; i >= 0; i = e->memos[i].next) {
        const Memo *m = &e->memos[i];
        if (m->val == v && m->pred == pred && !memcmp(m->at, at, n * sizeof *at)) return m;
    }
    return NULL;
}

void memo_add(Emitter *e, Val v, const IdxId *at, PredId pred, Value value) {
    Memo m = {.val = v, .pred = pred, .value = value, .next = e->bucket[bucket_of(v)]};
    memcpy(m.at, at, e->g->nodes[v].naxes * sizeof *at);
    e->bucket[bucket_of(v)] = (int)vec_len(e->memos);
    vec_push(e->memos, m);
}

static void forget_from(Emitter *e, int level) {
    size_t kept = 0;
    for (int i = 0; i < MEMO_BUCKETS; i++) e->bucket[i] = -1;
    for (size_t i = 0; i < vec_len(e->memos); i++) {
        if (e->memos[i].value.level >= level) continue;
        Memo m = e->memos[i];
        m.next = e->bucket[bucket_of(m.val)];
        e->bucket[bucket_of(m.val)] = (int)kept;
        e->memos[kept++] = m;
    }
    if (e->memos) vec_header(e->memos)->len = kept;
    kept = 0;
    for (size_t i = 0; i < vec_len(e->pointers); i++)
        if (e->pointers[i].level < level) e->pointers[kept++] = e->pointers[i];
    if (e->pointers) vec_header(e->pointers)->len = kept;
    for (size_t i = 1; i < vec_len(e->preds); i++)
        if (e->preds[i].level >= level) e->preds[i].name = NULL;
    for (size_t i = 1; i < vec_len(e->vars); i++)
        if (e->vars[i].level >= level && e->vars[i].kind != VAR_LOOP) e->vars[i].declared = false;
}

char *emit_close(Emitter *e, int level) {
    Buf b = {0};
    buf_puts(&b, e->lines[level].s ? e->lines[level].s : "");
    buf_puts(&b, e->ends[level].s ? e->ends[level].s : "");
    char *text = arena_strdup(&e->arena, b.s);
    buf_free(&b);
    buf_free(&e->lines[level]);
    buf_free(&e->ends[level]);
    forget_from(e, level);
    return text;
}

void emit_reset(Emitter *e) {
    for (size_t i = 1; i < vec_len(e->vars); i++) vec_free(e->vars[i].children);
    vec_clear(e->vars), vec_clear(e->idxs), vec_clear(e->preds), vec_clear(e->memos), vec_clear(e->pointers);
    vec_clear(e->positions), vec_clear(e->used), vec_clear(e->scratch), vec_clear(e->written);
    for (int i = 0; i < MAX_LEVELS; i++) buf_free(&e->lines[i]), buf_free(&e->ends[i]);
    for (int i = 0; i < MEMO_BUCKETS; i++) e->bucket[i] = -1;
    vec_push(e->vars, (Var){0});
    vec_push(e->preds, (Pred){0});
    e->serial = 0;
    e->split_var = e->guard_var = 0;
    e->guard = NULL;
    e->pass = 0;
    e->planning = e->declared_first = e->declared_start = false;
}

// --------------------------------------------------------------------------------------------------- positions
void place_axis(Emitter *e, Axis a, IdxId idx) {
    for (size_t i = 0; i < vec_len(e->positions); i++)
        if (e->positions[i].axis == a) {
            e->positions[i].idx = idx;
            return;
        }
    vec_push(e->positions, (Position){a, idx});
}

static IdxId position_of(Emitter *e, Axis a) {
    for (size_t i = 0; i < vec_len(e->positions); i++)
        if (e->positions[i].axis == a) return e->positions[i].idx;
    if (extent_of(e->g, a) == 1) return idx_const(e, 0);
    bug("axis '%s' is not in the domain of this kernel", axis_name(e->g, a));
}

void natural_position(Emitter *e, const Node *n, IdxId *at) {
    for (int i = 0; i < n->naxes; i++) at[i] = position_of(e, n->axes[i]);
}

Value pull_here(Emitter *e, Val v) {
    IdxId at[MAX_AXES];
    natural_position(e, &e->g->nodes[v], at);
    return pull(e, v, at, 0);
}

// positions of the axes of `of` when n stands at `at`; an axis n lacks is left alone
static void align(const Node *n, const IdxId *at, const Node *of, IdxId *out) {
    for (int i = 0; i < of->naxes; i++) {
        int k = axis_find(n, of->axes[i]);
        if (k >= 0) out[i] = at[k];
    }
}

// -------------------------------------------------------------------------------------------------- predicates
// 0 <= idx < extent and outer; `known`: drop it when the ranges say that it always holds
PredId predicate(Emitter *e, PredId outer, IdxId idx, int64_t extent, bool known) {
    if (known) idx = idx_coarser(e, idx, &extent);
    int64_t lo, hi;
    idx_range(e, idx, &lo, &hi);
    if (known && lo >= 0 && hi < extent) return outer;
    for (PredId i = 1; i < vec_len(e->preds); i++) {
        const Pred *p = &e->preds[i];
        if (p->outer == outer && p->idx == idx && p->extent == extent) return i;
    }
    int level = max_of(idx_level(e, idx), e->preds[outer].level);
    vec_push(e->preds, (Pred){.idx = idx, .extent = extent, .outer = outer, .level = level});
    return (PredId)(vec_len(e->preds) - 1);
}

const char *predicate_text(Emitter *e, PredId p) {
    if (e->preds[p].name) return e->preds[p].name;
    const char *outer = e->preds[p].outer ? predicate_text(e, e->preds[p].outer) : NULL;
    const char *idx = idx_text(e, e->preds[p].idx), *name = emit_name(e, "inside");
    emit_line(e, e->preds[p].level, "const int %s = (uint32_t)(%s) < %lldu%s%s;", name, idx,
              (long long)e->preds[p].extent, outer ? " && " : "", outer ? outer : "");
    return e->preds[p].name = name;
}

// --------------------------------------------------------------------------------------------- loads and stores
Val storage_of(const Graph *g, Val v) {
    const Node *n = &g->nodes[v];
    if (n->kind == K_ACCUMULATE) return g->accs[n->u.id].total;
    return n->kind == K_UPDATE ? n->in[1] : v;
}

bool is_loaded(const Emitter *e, Val v) {
    const Node *n = &e->g->nodes[v];
    return is_storage(n) || (!e->inside[v] && e->g->stored[v] && n->kind != K_UPDATE);  // an update's value is made again
}

uint32_t arg_of(Emitter *e, Val v, bool read, bool written) {
    Val storage = storage_of(e->g, v);
    uint32_t i = 0;
    while (i < vec_len(e->group->args) && e->group->args[i] != storage) i++;
    if (i == vec_len(e->group->args)) {
        vec_push(e->group->args, storage);
        vec_push(e->group->arg_offsets, 0);
        vec_push(e->group->arg_written, read ? 0 : 1);
    }
    uint8_t *w = &e->group->arg_written[i];
    if (read && *w == 1) *w = 2;
    if (written && *w == 0) *w = 2;
    return i;
}

IdxId address_of(Emitter *e, Val storage, const Node *n, const IdxId *at) {
    const Node *s = &e->g->nodes[storage];
    IdxId address = idx_const(e, 0);
    int64_t stride = 1;
    for (int i = s->naxes; i-- > 0;) {
        int64_t extent = extent_of(e->g, s->axes[i]);
        int k = axis_find(n, s->axes[i]);
        if (k < 0 && extent > 1) bug("axis '%s' has no position", axis_name(e->g, s->axes[i]));
        if (extent > 1) address = idx_add(e, address, at[k], stride);
        stride *= extent;
    }
    return address;
}

// argument + base; with pred: the argument itself where that does not hold
static const char *pointer(Emitter *e, uint32_t arg, IdxId base, bool written, PredId pred) {
    uint32_t key = arg * 2 + written;
    for (size_t i = 0; i < vec_len(e->pointers); i++) {
        const Pointer *p = &e->pointers[i];
        if (p->arg == key && p->base == base && p->pred == pred) return p->name;
    }
    int level = max_of(idx_level(e, base), e->preds[pred].level);
    const char *inside = pred ? predicate_text(e, pred) : NULL, *text = idx_text(e, base);
    const char *stem = arena_printf(&e->arena, "a%u", arg), *name = emit_name(e, stem);
    const char *type = dtype_ctype((DType)e->g->nodes[e->group->args[arg]].dtype), *c = written ? "" : "const ";
    if (pred) emit_line(e, level, "%s%s *%s = %s ? %s + %s : %s;", c, type, name, inside, stem, text, stem);
    else emit_line(e, level, "%s%s *%s = %s + %s;", c, type, name, stem, text);
    vec_push(e->pointers, (Pointer){key, base, pred, level, name});
    return name;
}

const char *element_text(Emitter *e, uint32_t arg, IdxId address, bool written, PredId pred) {
    IdxId outer, inner;
    int64_t c;
    idx_split(e, address, e->top, &outer, &inner);
    bool whole = idx_is_const(e, inner, &c) || (idx_is_const(e, outer, &c) && !pred);
    if (e->planning || whole) return arena_printf(&e->arena, "a%u[%s]", arg, idx_text(e, address));
    const char *base = pointer(e, arg, outer, written, pred);
    return arena_printf(&e->arena, "%s[%s]", base, idx_text(e, inner));
}

// Can the predicate be kept out of the inner loop by another pointer?
static bool pointer_is_safe(Emitter *e, IdxId address, PredId pred) {
    IdxId outer, inner;
    int64_t lo, hi;
    idx_split(e, address, e->top, &outer, &inner);
    idx_range(e, inner, &lo, &hi);
    return !e->planning && e->preds[pred].level < e->top && lo >= 0 && idx_level(e, inner) == e->top;
}

static Value load(Emitter *e, Val v, const IdxId *at, PredId pred) {
    const Node *n = &e->g->nodes[v];
    Val storage = storage_of(e->g, v);
    uint32_t arg = arg_of(e, v, true, false);
    IdxId address = address_of(e, storage, n, at);
    int level = max_of(idx_level(e, address), e->preds[pred].level);
    bool safe = pred && pointer_is_safe(e, address, pred);
    const char *inside = pred && !safe ? predicate_text(e, pred) : NULL;
    const char *text = element_text(e, arg, address, false, safe ? pred : 0);
    if (n->dtype == BF16) text = arena_printf(&e->arena, "p_from_bf16(%s)", text);
    const char *name = emit_name(e, "x");
    if (inside) emit_line(e, level, "const %s %s = %s ? %s : 0;", local_type(n->dtype), name, inside, text);
    else emit_line(e, level, "const %s %s = %s;", local_type(n->dtype), name, text);
    return (Value){name, level};
}

Value load_here(Emitter *e, Val v) {
    IdxId at[MAX_AXES];
    natural_position(e, &e->g->nodes[v], at);
    return load(e, v, at, 0);
}

const char *first_flag(Emitter *e) {
    if (!e->declared_first) emit_line(e, 0, "const int first = s[%d] != 0;  // micro-batch of the step", SLOT_FIRST);
    e->declared_first = true;
    return "first";
}

// Which of the axes that n lacks must stand at 0, so that n is written once.
static const char *store_guard(Emitter *e, const Node *n, int level) {
    Buf b = {0};
    int64_t c;
    for (size_t i = 0; i < vec_len(e->positions); i++) {
        Position p = e->positions[i];
        if (has_axis(n, p.axis) || idx_is_const(e, p.idx, &c) || idx_level(e, p.idx) > level) continue;
        buf_printf(&b, "%s%s == 0", b.n ? " && " : "", idx_text(e, p.idx));
    }
    if (level < e->top && e->guard) buf_printf(&b, "%s%s", b.n ? " && " : "", e->guard);
    if (level < e->top && e->guard_var)
        buf_printf(&b, "%s%s == 0", b.n ? " && " : "", idx_text(e, idx_var(e, e->guard_var)));
    const char *text = b.n ? arena_printf(&e->arena, "if (%s) ", b.s) : "";
    buf_free(&b);
    return text;
}

void store_here(Emitter *e, Val v, Value value, int least) {
    const Node *n = &e->g->nodes[v];
    Val storage = storage_of(e->g, v);
    DType t = e->g->nodes[storage].dtype;
    IdxId at[MAX_AXES];
    natural_position(e, n, at);
    bool adds = n->kind == K_ACCUMULATE;
    uint32_t arg = arg_of(e, v, adds, true);
    IdxId address = address_of(e, storage, n, at);
    int level = max_of(max_of(idx_level(e, address), value.level), least);
    const char *guard = store_guard(e, n, level), *to = element_text(e, arg, address, true, 0), *text = value.text;
    if (t == BF16) text = arena_printf(&e->arena, "p_to_bf16(%s)", text);
    if (t == BOOL) text = arena_printf(&e->arena, "(uint8_t)%s", text);
    if (adds && accumulate_is_first(e->g, v))
        text = arena_printf(&e->arena, "p_where_%s(%s, %s, %s + %s)", type_suffix(t), first_flag(e), text, to, text);
    else if (adds) text = arena_printf(&e->arena, "%s + %s", to, text);
    buf_printf(&e->ends[level], "%s%s = %s;\n", guard, to, text);
}

// ------------------------------------------------------------------------------------------------- expressions
// Shortest decimal that reads back as the same number.
const char *float_text(Emitter *e, double v, bool single) {
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

static Value literal(Emitter *e, const Node *n) {
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

static Value local(Emitter *e, const char *stem, DType t, int level, const char *text) {
    const char *name = emit_name(e, stem);
    emit_line(e, level, "const %s %s = %s;", local_type(t), name, text);
    return (Value){name, level};
}

static const char *batch_start(Emitter *e) {
    if (!e->declared_start) emit_line(e, 0, "const int batch_start = (int)s[%d];", SLOT_BATCH_START);
    e->declared_start = true;
    return "batch_start";
}

static Value pull_index(Emitter *e, const Node *n, const IdxId *at) {
    const char *text = idx_text(e, at[0]), *start = n->axes[0] == e->g->batch ? batch_start(e) : NULL;
    int level = idx_level(e, at[0]);
    text = arena_printf(&e->arena, "(int)(%s)%s%s", text, start ? " + " : "", start ? start : "");
    return local(e, "index", I32, level, text);
}

// The position counts as if batch were the slowest axis, since only its own extent depends on how a step is split.
static Value pull_random(Emitter *e, const Node *n, const IdxId *at) {
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

static const char *cast_text(Emitter *e, DType from, DType to, const char *x) {
    switch (to) {
    case F64: return arena_printf(&e->arena, "(double)%s", x);
    case F32: return arena_printf(&e->arena, "(float)%s", x);
    case BF16: return arena_printf(&e->arena, from == F64 ? "p_round_bf16((float)%s)" : "p_round_bf16(%s)", x);
    case I32: return arena_printf(&e->arena, "(int)%s", x);
    default: return arena_printf(&e->arena, "%s != 0", x);
    }
}

// fn_info's text with operands put in; without the outer parentheses
static const char *function_text(Emitter *e, Fn fn, const char *suffix, const Value *operand) {
    Buf b = {0};
    for (const char *s = fn_info[fn].text; *s; s++) {
        if (*s != '$') buf_write(&b, s, 1);
        else if (*++s == 'T') buf_puts(&b, suffix);
        else buf_puts(&b, operand[*s - '1'].text);
    }
    bool wrapped = b.s[0] == '(' && b.s[b.n - 1] == ')';
    const char *text = wrapped ? arena_printf(&e->arena, "%.*s", (int)b.n - 2, b.s + 1) : arena_strdup(&e->arena, b.s);
    buf_free(&b);
    return text;
}

static Value pull_map(Emitter *e, Val v, const IdxId *at, PredId pred) {
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
    if (n.fn == FN_CAST) return local(e, dtype_name(n.dtype), n.dtype, level, cast_text(e, from, n.dtype, operand[0].text));
    const char *text = function_text(e, n.fn, type_suffix(from), operand);
    if (n.dtype == BF16) text = arena_printf(&e->arena, "p_round_bf16(%s)", text);
    return local(e, fn_info[n.fn].name, n.dtype, level, text);
}

static IdxId view_index(Emitter *e, const Node *n, const IdxId *at, const ViewIndex *ix) {
    IdxId sum = idx_const(e, ix->offset);
    for (int t = 0; t < ix->nterms; t++) sum = idx_add(e, sum, at[axis_find(n, ix->axis[t])], ix->coef[t]);
    return idx_divide(e, sum, ix->div ? ix->div : 1, ix->mod);
}

// Is a value pulled under this predicate already 0 where that does not hold? Loads are, of which it is the condition.
static bool zero_outside(const Emitter *e, Val v, PredId pred) { return e->preds[pred].level == e->top && is_loaded(e, v); }

// the value of `of` at `there` where `inside` holds, 0 elsewhere
static Value pull_masked(Emitter *e, Val of, const IdxId *there, PredId pred, PredId inside) {
    Value value = pull(e, of, there, inside);
    if (inside == pred || zero_outside(e, of, inside)) return value;
    int level = max_of(value.level, e->preds[inside].level);
    DType t = (DType)e->g->nodes[of].dtype;
    const char *condition = predicate_text(e, inside);
    const char *text = arena_printf(&e->arena, "p_where_%s(%s, %s, 0)", type_suffix(t), condition, value.text);
    return local(e, "shifted", t, level, text);
}

static Value pull_view(Emitter *e, Val v, const IdxId *at, PredId pred) {
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
IdxId looked_up(Emitter *e, Val index, const IdxId *at, PredId pred, int64_t extent) {
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

static Value pull_gather(Emitter *e, Val v, const IdxId *at, PredId pred) {
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
static Value pull_scatter(Emitter *e, Val v, const IdxId *at, PredId pred) {
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

static Value pull_new(Emitter *e, Val v, const IdxId *at, PredId pred) {
    const Node *n = &e->g->nodes[v];
    switch ((Kind)n->kind) {
    case K_SCALAR: return local(e, "scalar", F64, 0, arena_printf(&e->arena, "s[%u]", n->u.id));
    case K_INDEX: return pull_index(e, n, at);
    case K_RANDOM: return pull_random(e, n, at);
    case K_MAP: return pull_map(e, v, at, pred);
    case K_VIEW: return pull_view(e, v, at, pred);
    case K_GATHER: return pull_gather(e, v, at, pred);
    case K_SCATTER_ADD: return pull_scatter(e, v, at, pred);
    case K_ACCUMULATE:
    case K_UPDATE: return pull(e, n->in[0], at, pred);
    default: bug("node %u (%s) is no expression: it needs a kernel of its own, or another position", v, kind_info[n->kind].name);
    }
}

static bool is_natural(Emitter *e, const Node *n, const IdxId *at) {
    for (int i = 0; i < n->naxes; i++)
        if (at[i] != position_of(e, n->axes[i])) return false;
    return true;
}

Value pull(Emitter *e, Val v, const IdxId *at, PredId pred) {
    const Node *n = &e->g->nodes[v];
    if (n->kind == K_CONST) return literal(e, n);
    const Memo *m = memo_find(e, v, at, pred);
    if (!m && pred) m = memo_find(e, v, at, 0);  // holds everywhere, so here too
    if (m) return m->value;
    Value value;
    bool kept = e->pass > 0 && !pred && e->inside[v] && is_natural(e, n, at) && row_reload(e, v, &value);
    if (!kept) value = is_loaded(e, v) ? load(e, v, at, pred) : pull_new(e, v, at, pred);
    memo_add(e, v, at, pred, value);
    return value;
}
