// emit_access.c: the lines of a kernel under construction, what is declared in them, and how buffers are read and
// written.
//
// Lines go to their level; emit_close() puts a level together and forgets what was declared there: values (memo),
// pointers, predicates, index variables. Names are numbered within the kernel.
//
// A buffer's element is a pointer for all but the inner loop's terms of its address, and the rest as index: a0_1[i].
// Under a predicate that does not vary along the inner loop that pointer is one that is always good; else the load
// itself is conditional. Either way nothing outside of the buffer is read.
#include "emit.h"

const char *local_type(DType t)
{
    return t == F64 ? "double" : t == F32 || t == BF16 ? "float" : "int";
}
const char *type_suffix(DType t)
{
    return t == F64 ? "f64" : t == F32 || t == BF16 ? "f32" : "i32";
}

void emit_line(Emitter *e, int level, const char *fmt, ...)
{
    va_list ap;
    char line[4096];
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof line) bug("line too long: %s", fmt);
    buf_printf(&e->lines[level], "%s\n", line);
}

const char *emit_name(Emitter *e, const char *stem)
{
    return arena_printf(&e->arena, "%s_%u", stem, e->serial++);
}

// -------------------------------------------------------------------------------------------------------- memo
static int bucket_of(Val v)
{
    return (int)(v % MEMO_BUCKETS);
}

const Memo *memo_find(const Emitter *e, Val v, const IdxId *at, PredId pred)
{
    size_t n = e->g->nodes[v].naxes;
    for (int i = e->bucket[bucket_of(v)]; i >= 0; i = e->memos[i].next) {
        const Memo *m = &e->memos[i];
        if (m->val == v && m->pred == pred && !memcmp(m->at, at, n * sizeof *at)) return m;
    }
    return NULL;
}

void memo_add(Emitter *e, Val v, const IdxId *at, PredId pred, Value value)
{
    Memo m = {.val = v, .pred = pred, .value = value, .next = e->bucket[bucket_of(v)]};
    memcpy(m.at, at, e->g->nodes[v].naxes * sizeof *at);
    e->bucket[bucket_of(v)] = (int)vec_len(e->memos);
    vec_push(e->memos, m);
}

static void forget_from(Emitter *e, int level)
{
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

char *emit_close(Emitter *e, int level)
{
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

void emit_reset(Emitter *e)
{
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
void place_axis(Emitter *e, Axis a, IdxId idx)
{
    for (size_t i = 0; i < vec_len(e->positions); i++)
        if (e->positions[i].axis == a) {
            e->positions[i].idx = idx;
            return;
        }
    vec_push(e->positions, (Position){a, idx});
}

IdxId position_of(Emitter *e, Axis a)
{
    for (size_t i = 0; i < vec_len(e->positions); i++)
        if (e->positions[i].axis == a) return e->positions[i].idx;
    if (extent_of(e->g, a) == 1) return idx_const(e, 0);
    bug("axis '%s' is not in the domain of this kernel", axis_name(e->g, a));
}

void natural_position(Emitter *e, const Node *n, IdxId *at)
{
    for (int i = 0; i < n->naxes; i++) at[i] = position_of(e, n->axes[i]);
}

// -------------------------------------------------------------------------------------------------- predicates
PredId predicate(Emitter *e, PredId outer, IdxId idx, int64_t extent, bool known)
{
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

const char *predicate_text(Emitter *e, PredId p)
{
    if (e->preds[p].name) return e->preds[p].name;
    const char *outer = e->preds[p].outer ? predicate_text(e, e->preds[p].outer) : NULL;
    const char *idx = idx_text(e, e->preds[p].idx), *name = emit_name(e, "inside");
    emit_line(e, e->preds[p].level, "const int %s = (uint32_t)(%s) < %lldu%s%s;", name, idx,
              (long long)e->preds[p].extent, outer ? " && " : "", outer ? outer : "");
    return e->preds[p].name = name;
}

// --------------------------------------------------------------------------------------------- loads and stores
Val storage_of(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v];
    if (n->kind == K_ACCUMULATE) return g->accs[n->u.id].total;
    return n->kind == K_UPDATE ? n->in[1] : v;
}

bool is_loaded(const Emitter *e, Val v)
{
    const Node *n = &e->g->nodes[v];
    return is_storage(n) ||
           (!e->inside[v] && e->g->stored[v] && n->kind != K_UPDATE); // an update's value is made again
}

uint32_t arg_of(Emitter *e, Val v, bool read, bool written)
{
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

IdxId address_of(Emitter *e, Val storage, const Node *n, const IdxId *at)
{
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
static const char *pointer(Emitter *e, uint32_t arg, IdxId base, bool written, PredId pred)
{
    uint32_t key = arg * 2 + written;
    for (size_t i = 0; i < vec_len(e->pointers); i++) {
        const Pointer *p = &e->pointers[i];
        if (p->arg == key && p->base == base && p->pred == pred) return p->name;
    }
    int level = max_of(idx_level(e, base), e->preds[pred].level);
    const char *inside = pred ? predicate_text(e, pred) : NULL, *text = idx_text(e, base);
    const char *stem = arena_printf(&e->arena, "a%u", arg), *name = emit_name(e, stem);
    const char *type = dtype_ctype((DType)e->g->nodes[e->group->args[arg]].dtype), *c = written ? "" : "const ";
    if (pred)
        emit_line(e, level, "%s%s *%s = %s ? %s + %s : %s;", c, type, name, inside, stem, text, stem);
    else
        emit_line(e, level, "%s%s *%s = %s + %s;", c, type, name, stem, text);
    vec_push(e->pointers, (Pointer){key, base, pred, level, name});
    return name;
}

const char *element_text(Emitter *e, uint32_t arg, IdxId address, bool written, PredId pred)
{
    IdxId outer, inner;
    int64_t c;
    idx_split(e, address, e->top, &outer, &inner);
    bool whole = idx_is_const(e, inner, &c) || (idx_is_const(e, outer, &c) && !pred);
    if (e->planning || whole) return arena_printf(&e->arena, "a%u[%s]", arg, idx_text(e, address));
    const char *base = pointer(e, arg, outer, written, pred);
    return arena_printf(&e->arena, "%s[%s]", base, idx_text(e, inner));
}

// Can the predicate be kept out of the inner loop by another pointer?
static bool pointer_is_safe(Emitter *e, IdxId address, PredId pred)
{
    IdxId outer, inner;
    int64_t lo, hi;
    idx_split(e, address, e->top, &outer, &inner);
    idx_range(e, inner, &lo, &hi);
    return !e->planning && e->preds[pred].level < e->top && lo >= 0 && idx_level(e, inner) == e->top;
}

Value load(Emitter *e, Val v, const IdxId *at, PredId pred)
{
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
    if (inside)
        emit_line(e, level, "const %s %s = %s ? %s : 0;", local_type(n->dtype), name, inside, text);
    else
        emit_line(e, level, "const %s %s = %s;", local_type(n->dtype), name, text);
    return (Value){name, level};
}

Value load_here(Emitter *e, Val v)
{
    IdxId at[MAX_AXES];
    natural_position(e, &e->g->nodes[v], at);
    return load(e, v, at, 0);
}

const char *first_flag(Emitter *e)
{
    if (!e->declared_first) emit_line(e, 0, "const int first = s[%d] != 0;  // micro-batch of the step", SLOT_FIRST);
    e->declared_first = true;
    return "first";
}

// Which of the axes that n lacks must stand at 0, so that n is written once.
static const char *store_guard(Emitter *e, const Node *n, int level)
{
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

void store_here(Emitter *e, Val v, Value value, int least)
{
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
    else if (adds)
        text = arena_printf(&e->arena, "%s + %s", to, text);
    buf_printf(&e->ends[level], "%s%s = %s;\n", guard, to, text);
}
