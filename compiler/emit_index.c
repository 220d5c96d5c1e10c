// emit_index.c: index expressions of a kernel: sums of coef*variable, interned, with division and text.
//
// Everything a kernel reads or writes lies at such a sum over the loops' variables. Division and remainder (of merged
// and split axes) are taken apart by the variables' ranges: (64*a + b) / 64 is a when b stays below 64. What cannot be
// taken apart becomes a variable of its own, declared where first used. A row number r stands for several axes; they
// are its parts. A sum in which all parts of r occur with fitting coefficients is written in r itself (r * 512), so
// nothing is divided that need not be.
//
// Traps: ranges hold only where the value is wanted (under its predicate); elsewhere an index is a harmless
// number that is never read at. A declared variable must be forgotten when its level closes.
#include "emit.h"

static bool idx_equal(const Idx *a, const Idx *b)
{
    return a->offset == b->offset && a->n == b->n && !memcmp(a->term, b->term, a->n * sizeof *a->term);
}

static IdxId idx_intern(Emitter *e, const Idx *x)
{
    for (size_t i = 0; i < vec_len(e->idxs); i++)
        if (idx_equal(&e->idxs[i], x)) return (IdxId)i;
    vec_push(e->idxs, *x);
    return (IdxId)(vec_len(e->idxs) - 1);
}

static void add_term(Idx *x, uint32_t var, int64_t coef)
{
    uint32_t at = 0;
    while (at < x->n && x->term[at].var < var) at++;
    if (at == x->n || x->term[at].var != var) {
        if (x->n == IDX_TERMS) bug("index expression with more than %d terms", IDX_TERMS);
        memmove(&x->term[at + 1], &x->term[at], (x->n++ - at) * sizeof *x->term);
        x->term[at] = (Term){var, 0};
    }
    x->term[at].coef += coef;
    if (x->term[at].coef) return;
    memmove(&x->term[at], &x->term[at + 1], (--x->n - at) * sizeof *x->term);
}

static int64_t coef_of(const Idx *x, uint32_t var)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (x->term[i].var == var) return x->term[i].coef;
    return 0;
}

IdxId idx_const(Emitter *e, int64_t c)
{
    return idx_intern(e, &(Idx){.offset = c});
}

IdxId idx_var(Emitter *e, uint32_t var)
{
    if (e->vars[var].extent == 1) return idx_const(e, 0);
    Idx x = {.n = 1};
    x.term[0] = (Term){var, 1};
    return idx_intern(e, &x);
}

IdxId idx_add(Emitter *e, IdxId a, IdxId b, int64_t scale)
{
    Idx x = e->idxs[a];
    const Idx *y = &e->idxs[b];
    x.offset += y->offset * scale;
    for (uint32_t i = 0; scale && i < y->n; i++) add_term(&x, y->term[i].var, y->term[i].coef * scale);
    return idx_intern(e, &x);
}

bool idx_is_const(const Emitter *e, IdxId a, int64_t *c)
{
    *c = e->idxs[a].offset;
    return e->idxs[a].n == 0;
}

static void range_of(const Emitter *e, const Idx *x, int64_t *lo, int64_t *hi)
{
    *lo = *hi = x->offset;
    for (uint32_t i = 0; i < x->n; i++) {
        int64_t far = x->term[i].coef * (e->vars[x->term[i].var].extent - 1);
        *(far < 0 ? lo : hi) += far;
    }
}

void idx_range(const Emitter *e, IdxId a, int64_t *lo, int64_t *hi)
{
    range_of(e, &e->idxs[a], lo, hi);
}

int idx_level(const Emitter *e, IdxId a)
{
    const Idx *x = &e->idxs[a];
    int level = 0;
    for (uint32_t i = 0; i < x->n; i++) level = max_of(level, e->vars[x->term[i].var].level);
    return level;
}

void idx_split(Emitter *e, IdxId a, int level, IdxId *outer, IdxId *inner)
{
    Idx x = e->idxs[a], out = {.offset = x.offset}, in = {0};
    for (uint32_t i = 0; i < x.n; i++)
        add_term(e->vars[x.term[i].var].level < level ? &out : &in, x.term[i].var, x.term[i].coef);
    *outer = idx_intern(e, &out);
    *inner = idx_intern(e, &in);
}

// x = by * quotient + rest
static void divide_terms(const Idx *x, int64_t by, Idx *quotient, Idx *rest)
{
    *quotient = *rest = (Idx){0};
    for (uint32_t i = 0; i < x->n; i++) {
        bool whole = x->term[i].coef % by == 0;
        add_term(whole ? quotient : rest, x->term[i].var, whole ? x->term[i].coef / by : x->term[i].coef);
    }
    rest->offset = ((x->offset % by) + by) % by;
    quotient->offset = (x->offset - rest->offset) / by;
}

static bool stays_in(const Emitter *e, const Idx *x, int64_t extent)
{
    int64_t lo, hi;
    range_of(e, x, &lo, &hi);
    return lo >= 0 && hi < extent;
}

// A loop over n positions whose variable is only wanted as v / d and v % d is better two loops.
static void want_split(Emitter *e, const Idx *x, int64_t d)
{
    if (!e->planning || e->split_var || x->n != 1 || x->offset || x->term[0].coef != 1) return;
    const Var *v = &e->vars[x->term[0].var];
    if (!v->planned || d <= 1 || v->extent % d || v->extent == d) return;
    e->split_var = x->term[0].var;
    e->split_at = d;
}

static IdxId quotient_var(Emitter *e, IdxId src, int64_t div, int64_t mod)
{
    for (uint32_t i = 1; i < vec_len(e->vars); i++) {
        const Var *v = &e->vars[i];
        if (v->kind == VAR_QUOTIENT && v->src == src && v->div == div && v->mod == mod) return idx_var(e, i);
    }
    int64_t lo, hi;
    idx_range(e, src, &lo, &hi);
    int64_t extent = hi < 0 ? 1 : hi / div + 1;
    if (mod) extent = min_of(extent, mod);
    uint32_t v = var_new(e, VAR_QUOTIENT, NULL, max_of(extent, 2), idx_level(e, src));
    e->vars[v].src = src;
    e->vars[v].div = div;
    e->vars[v].mod = mod;
    return idx_var(e, v);
}

IdxId idx_divide(Emitter *e, IdxId a, int64_t div, int64_t mod)
{
    Idx quotient = e->idxs[a], rest = {0};
    if (div > 1) {
        divide_terms(&e->idxs[a], div, &quotient, &rest);
        if (!stays_in(e, &rest, div)) {
            want_split(e, &e->idxs[a], div);
            int64_t lo, hi;
            idx_range(e, a, &lo, &hi);
            if (mod && lo >= 0 && hi / div < mod) mod = 0;
            return quotient_var(e, a, div, mod);
        }
    }
    if (!mod || stays_in(e, &quotient, mod)) return idx_intern(e, &quotient);
    IdxId divided = idx_intern(e, &quotient);
    Idx unused;
    divide_terms(&e->idxs[divided], mod, &unused, &rest);
    if (stays_in(e, &rest, mod)) return idx_intern(e, &rest);
    want_split(e, &e->idxs[divided], mod);
    return quotient_var(e, divided, 1, mod);
}

// 64*a + b < 128 is a < 2 when b stays below 64: fewer variables, so it may hold for a whole inner loop.
IdxId idx_coarser(Emitter *e, IdxId a, int64_t *extent)
{
    Idx x = e->idxs[a], quotient, rest;
    int64_t best = 1;
    for (uint32_t i = 0; i < x.n; i++) {
        int64_t by = x.term[i].coef < 0 ? -x.term[i].coef : x.term[i].coef;
        if (by <= best || *extent % by) continue;
        divide_terms(&x, by, &quotient, &rest);
        if (stays_in(e, &rest, by)) best = by;
    }
    if (best == 1) return a;
    divide_terms(&x, best, &quotient, &rest);
    *extent /= best;
    return idx_intern(e, &quotient);
}

// --------------------------------------------------------------------------------------------------- variables
uint32_t var_new(Emitter *e, VarKind kind, const char *name, int64_t extent, int level)
{
    vec_push(e->vars, (Var){.kind = kind, .name = name, .extent = extent, .level = level});
    return (uint32_t)(vec_len(e->vars) - 1);
}

uint32_t var_loop(Emitter *e, const char *name, int64_t extent, int level, bool wide)
{
    uint32_t v = var_new(e, VAR_LOOP, name, extent, level);
    e->vars[v].declared = true;
    e->vars[v].wide = wide;
    return v;
}

void var_parts(Emitter *e, uint32_t parent, size_t n, const uint32_t *parts)
{
    int64_t stride = 1;
    for (size_t i = n; i-- > 0;) {
        Var *v = &e->vars[parts[i]];
        v->kind = VAR_PART;
        v->declared = false;
        v->parent = parent;
        v->stride = stride;
        v->level = e->vars[parent].level;
        stride *= v->extent;
        if (v->extent > 1) vec_push(e->vars[parent].children, parts[i]);
    }
    if (stride != e->vars[parent].extent) bug("parts of %s make %lld", e->vars[parent].name, (long long)stride);
}

void var_declare(Emitter *e, uint32_t var)
{
    Var *v = &e->vars[var];
    if (v->declared) return;
    Buf b = {0};
    if (v->kind == VAR_VALUE) {
        IdxId at[MAX_AXES];
        memcpy(at, v->at, sizeof at);
        const char *text = pull(e, v->val, at, v->pred).text;
        e->vars[var].name = text;
    } else {
        const char *cast = "";
        if (v->kind == VAR_PART) {
            uint32_t parent = v->parent;
            var_declare(e, parent);
            v = &e->vars[var];
            if (e->vars[parent].wide) cast = "(int)";
            buf_puts(&b, e->vars[parent].name);
            if (v->stride > 1) buf_printf(&b, " / %lld", (long long)v->stride);
            if (v->stride * v->extent < e->vars[parent].extent) buf_printf(&b, " %% %lld", (long long)v->extent);
        } else {
            const char *src = idx_text(e, v->src);
            v = &e->vars[var];
            buf_printf(&b, "(%s)", src);
            if (v->div > 1) buf_printf(&b, " / %lld", (long long)v->div);
            if (v->mod) buf_printf(&b, " %% %lld", (long long)v->mod);
        }
        const char *name = v->name;
        if (!name) name = emit_name(e, "i");
        e->vars[var].name = name;
        emit_line(e, e->vars[var].level, *cast ? "const int %s = %s(%s);" : "const int %s = %s%s;", name, cast, b.s);
        buf_free(&b);
    }
    e->vars[var].declared = true;
}

// ------------------------------------------------------------------------------------------------------- text
// Writes parts as their parent where all of them occur side by side.
static void merge_parts(const Emitter *e, Idx *x)
{
    for (uint32_t i = 0; i < x->n; i++) {
        const Var *v = &e->vars[x->term[i].var];
        if (v->kind != VAR_PART || x->term[i].coef % v->stride) continue;
        const Var *parent = &e->vars[v->parent];
        int64_t unit = x->term[i].coef / v->stride;
        bool all = true;
        for (size_t c = 0; c < vec_len(parent->children); c++)
            all &= coef_of(x, parent->children[c]) == unit * e->vars[parent->children[c]].stride;
        if (!all) continue;
        uint32_t up = v->parent;
        for (size_t c = 0; c < vec_len(parent->children); c++)
            add_term(x, parent->children[c], -unit * e->vars[parent->children[c]].stride);
        add_term(x, up, unit);
        i = (uint32_t)-1; // from the start again: the parent may be a part itself
    }
}

static void term_text(Emitter *e, Buf *b, const Term *t, bool wide)
{
    const Var *v = &e->vars[t->var];
    int64_t coef = t->coef;
    if (b->n) buf_puts(b, coef < 0 ? " - " : " + ");
    if (b->n && coef < 0) coef = -coef;
    if (coef == -1) buf_puts(b, "-");
    buf_printf(b, wide && !v->wide ? "(int64_t)%s" : "%s", v->name);
    if (coef != 1 && coef != -1) buf_printf(b, " * %lld", (long long)coef);
}

const char *idx_text(Emitter *e, IdxId a)
{
    if (e->planning) vec_push(e->used, a);
    Idx x = e->idxs[a];
    merge_parts(e, &x);
    for (uint32_t i = 0; i < x.n; i++) var_declare(e, x.term[i].var);
    int64_t lo, hi;
    range_of(e, &x, &lo, &hi);
    bool wide = lo < INT32_MIN || hi > INT32_MAX;
    Buf b = {0};
    for (uint32_t i = 0; i < x.n; i++) term_text(e, &b, &x.term[i], wide);
    if (!x.n)
        buf_printf(&b, "%lld", (long long)x.offset);
    else if (x.offset)
        buf_printf(&b, " %c %lld", x.offset < 0 ? '-' : '+', (long long)(x.offset < 0 ? -x.offset : x.offset));
    const char *text = arena_strdup(&e->arena, b.s);
    buf_free(&b);
    return text;
}
