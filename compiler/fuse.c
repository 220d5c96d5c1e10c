// fuse.c: nodes to kernels, greedily.
//
// First every live node gets a role. Views, indices, constants, scalars, random numbers, conditions and whole numbers
// are expressions: made wherever they are used, never stored. What must be stored is known by now: operands of
// library calls, values that cross segments, outputs, packs. Library nodes are groups of their own; a contraction or a
// scatter_add whose one use is an ACCUMULATE takes it along and writes the accumulator.
//
// Then, in topological order, each remaining node starts a draft and joins the drafts of its producers, the largest
// value first. Two drafts merge when
//   - they are of one segment, and their domains agree: equal sets of axes, equal rows if both have reductions, or one
//     holds scalars of the other's rows (merge_shape);
//   - neither reads a value of the other at another position than its own;
//   - no path leads out of the pair and back in (the search goes backward and stops at drafts that end before the pair
//     begins; it gives up, and refuses, after SEARCH_LIMIT drafts).
// ACCUMULATE joins like any other node; it counts as a reader of the one before it that adds to the same accumulator, so
// their order is kept and no kernel has both. UPDATE comes last, when all readers of the old value are known.
//
// fuse_keep.c decides afterwards which members are stored and which are made again by their users, fuse_group.c writes
// the result down. With --no-fuse nothing merges and every map, reduce and gather is stored.
#include "fuse.h"

enum { SEARCH_LIMIT = 512, MAX_READS = 40, MAX_NODES = 600, FEW_ROWS = 32, SMALL_DOMAIN = 16384,
       SHORT_ROW = 16 };

bool costly_function(Fn fn) {
    switch (fn) {
    case FN_POW: case FN_EXP: case FN_LOG: case FN_TANH: case FN_SIGMOID: case FN_ERF: case FN_SIN: case FN_COS: return true;
    default: return false;
    }
}

bool is_library(const Node *n) {
    return n->kind == K_CONTRACT || n->kind == K_ATTENTION || n->kind == K_ATTENTION_GRAD || n->kind == K_PART
        || n->kind == K_SCATTER_ADD;
}

// ---------------------------------------------------------------------------------------------------------- roles
static uint8_t formula_size(const Fuse *f, const Node *n) {
    if (n->kind == K_CONST || n->kind == K_SCALAR || n->kind == K_INDEX) return 1;
    if (n->kind == K_VIEW) return f->formula[n->in[0]];
    if (n->kind != K_MAP) return 0;
    int size = costly_function((Fn)n->fn) ? FORMULA_LARGE : 1;
    for (int i = 0; i < n->nin; i++) {
        if (!f->formula[n->in[i]]) return 0;
        size += f->formula[n->in[i]];
    }
    return (uint8_t)min_of(size, FORMULA_LARGE);
}

static bool is_cheap_formula(const Fuse *f, Val v) {
    return f->formula[v] && (f->formula[v] <= FORMULA_CHEAP || f->g->nodes[v].naxes == 0);
}

// A view on the way to v that ends the walk: it has a buffer of its own.
static bool view_is_stored(const Fuse *f, Val v) { return f->g->nodes[v].fn == VIEW_PACK || f->forced[v]; }

static Val below_views(const Fuse *f, Val v) {
    while (f->g->nodes[v].kind == K_VIEW && !view_is_stored(f, v)) v = f->g->nodes[v].in[0];
    return v;
}

static void force(Fuse *f, Val v) {
    if (!is_storage(&f->g->nodes[v])) f->forced[v] = 1;
}

static void force_operands(Fuse *f, const Node *n) {
    bool library = is_library(n) && n->kind != K_PART;
    for (int i = 0; i < n->nin && n->kind != K_VIEW; i++) {
        Val v = n->in[i];
        if (library) {
            Window w = window_of(f->g, v);
            force(f, w.ok ? w.base : below_views(f, v));
        }
        v = below_views(f, v);  // a view that crosses segments stays one: what it reads is kept
        const Node *in = &f->g->nodes[v];
        if (in->nin && in->seg != n->seg && !is_cheap_formula(f, v)) force(f, v);
    }
}

static Role role_of(const Fuse *f, Val v) {
    const Node *n = &f->g->nodes[v];
    if (!f->live[v]) return ROLE_DEAD;
    if (is_storage(n)) return ROLE_LOADED;
    if (is_library(n)) return ROLE_LIBRARY;
    if (f->forced[v]) return ROLE_MEMBER;
    switch (n->kind) {
    case K_VIEW: case K_INDEX: case K_CONST: case K_SCALAR: case K_RANDOM: return ROLE_PULLED;
    case K_MAP: {
        bool whole = n->dtype == BOOL || n->dtype == I32;
        if (f->formula[v] && n->naxes == 0) return ROLE_PULLED;
        return !options.no_fuse && (whole || is_cheap_formula(f, v)) ? ROLE_PULLED : ROLE_MEMBER;
    }
    default: return ROLE_MEMBER;
    }
}

static void find_roles(Fuse *f) {
    Graph *g = f->g;
    Val *last_added = xcalloc(vec_len(g->accs) + 1, sizeof *last_added);
    graph_mark_live(g, f->live);
    for (Val v = 1; v < f->n; v++) {
        const Node *n = &g->nodes[v];
        if (!f->live[v]) continue;
        f->formula[v] = formula_size(f, n);
        if (n->kind == K_VIEW && n->fn == VIEW_PACK) f->forced[v] = 1;
        for (int i = 0; i < n->nin; i++) f->uses[n->in[i]]++;
        if (n->kind != K_ACCUMULATE) continue;
        f->added_before[v] = last_added[n->u.id];
        last_added[n->u.id] = v;
    }
    free(last_added);
    for (size_t i = 0; i < vec_len(g->outputs); i++) force(f, g->outputs[i].val);
    for (Val v = 1; v < f->n; v++)
        if (f->live[v]) force_operands(f, &g->nodes[v]);
    for (Val v = 1; v < f->n; v++) f->role[v] = (uint8_t)role_of(f, v);
}

// ---------------------------------------------------------------------------------------------------------- refs
static void push_operands(Fuse *f, const Node *n, bool far) {
    int count = n->kind == K_UPDATE ? 1 : n->nin;  // an update's target is written
    bool moved = n->kind == K_VIEW && n->u.view->n > 0;
    for (int i = count; i-- > 0;) {
        vec_push(f->stack, n->in[i]);
        vec_push(f->stack_far, (uint8_t)(far || moved || (n->kind == K_GATHER && i == 0)));
    }
}

void trace_refs(Fuse *f, Val v, uint32_t home, bool drafting) {
    f->stamp++;
    vec_clear(f->refs);
    if (f->added_before[v]) vec_push(f->refs, (Ref){ f->added_before[v], true });
    push_operands(f, &f->g->nodes[v], false);
    while (vec_len(f->stack)) {
        Val at = vec_pop(f->stack);
        bool far = vec_pop(f->stack_far);
        uint32_t *seen = far ? f->far_seen : f->near_seen;
        if (seen[at] == f->stamp) continue;
        seen[at] = f->stamp;
        Role role = (Role)f->role[at];
        bool inlined = role == ROLE_MEMBER && !drafting && !f->stored[at] && f->draft_of[at] != home;
        if (role == ROLE_PULLED || inlined || f->g->nodes[at].kind == K_UPDATE) push_operands(f, &f->g->nodes[at], far);
        else vec_push(f->refs, (Ref){ at, far });
    }
}

static void keep_refs(Fuse *f, Draft *d) {
    for (size_t i = 0; i < vec_len(f->refs); i++) {
        vec_push(d->refs, f->refs[i].v);
        if (f->refs[i].far) vec_push(d->far, f->refs[i].v);
    }
}

// -------------------------------------------------------------------------------------------------------- drafts
static uint32_t new_draft(Fuse *f, GroupKind kind, Val v) {
    const Node *n = &f->g->nodes[v];
    Draft d = { .kind = kind, .seg = n->nin ? n->seg : SEG_UPDATE, .first = v, .last = v, .nouter = -1 };
    if (n->kind == K_CONST || n->kind == K_INDEX) d.seg = SEG_INIT;
    vec_push(d.nodes, v);
    uint32_t id = (uint32_t)vec_len(f->drafts);
    f->draft_of[v] = id;
    const Node *shape = n->kind == K_REDUCE ? &f->g->nodes[n->in[0]] : n;
    d.ndom = shape->naxes;
    memcpy(d.dom, shape->axes, sizeof d.dom);
    if (n->kind == K_REDUCE) {
        d.nred = n->u.over.n;
        memcpy(d.red, n->u.over.axes, sizeof d.red);
        d.nouter = d.ndom - d.nred;
    }
    vec_push(f->drafts, d);
    return id;
}

static bool among(int n, const Axis *axes, Axis a) {
    for (int i = 0; i < n; i++)
        if (axes[i] == a) return true;
    return false;
}

static bool subset(int n, const Axis *a, int m, const Axis *b) {
    for (int i = 0; i < n; i++)
        if (!among(m, b, a[i])) return false;
    return true;
}

static bool same_set(int n, const Axis *a, int m, const Axis *b) { return n == m && subset(n, a, m, b); }

static int64_t extents(const Graph *g, int n, const Axis *axes) {
    int64_t count = 1;
    for (int i = 0; i < n; i++) count *= extent_of(g, axes[i]);
    return count;
}

static bool few_rows(const Graph *g, const Draft *d) {
    return extents(g, d->nouter, d->dom) < FEW_ROWS && extents(g, d->ndom, d->dom) > SMALL_DOMAIN;
}

// The order in which a reduction runs through a row is part of its meaning, so equal rows have equal inner axes in order.
static bool same_rows(const Draft *a, const Draft *b) {
    if (!same_set(a->nouter, a->dom, b->nouter, b->dom)) return false;
    size_t inner = (size_t)(a->ndom - a->nouter);
    return !a->nred || !b->nred || !memcmp(a->dom + a->nouter, b->dom + b->nouter, inner * sizeof *a->dom);
}

// Both have the same axes.
static const char *merge_equal(const Graph *g, const Draft *a, const Draft *b, Draft *out) {
    const Draft *fixed = a->nred ? a : b->nred ? b : a->nouter >= 0 ? a : b, *other = fixed == a ? b : a;
    memcpy(out->dom, fixed->dom, sizeof out->dom);
    out->nouter = fixed->nouter;
    if (fixed->nouter < 0) return NULL;
    if (other->nouter >= 0 && !same_rows(a, b)) return "it reduces other axes";
    // what only feeds a reduction may have few rows, what follows it should be shared out
    bool follows = other->nouter < 0 && other->last > fixed->last;
    return follows && (out->nouter == 0 || few_rows(g, out)) ? "it has too few rows to share out" : NULL;
}

// The narrow one holds one value for each row of the wide one.
static const char *merge_rows(const Graph *g, const Draft *wide, const Draft *narrow, Draft *out) {
    if (narrow->nouter >= 0) return "the rows differ";
    memcpy(out->dom, wide->dom, sizeof out->dom);
    out->ndom = wide->ndom;
    out->nouter = wide->nouter;
    if (wide->nouter >= 0)
        return same_set(narrow->ndom, narrow->dom, wide->nouter, wide->dom) ? NULL : "the rows differ";
    if (narrow->ndom == 0 || !subset(narrow->ndom, wide->dom, narrow->ndom, narrow->dom)) return "the axes differ";
    out->nouter = narrow->ndom;
    if (extents(g, wide->ndom - narrow->ndom, wide->dom + narrow->ndom) < SHORT_ROW) return "the rows are short";
    return few_rows(g, out) ? "it has too few rows to share out" : NULL;
}

// Sums over columns: of one operand shape each; what follows has the axes that are kept.
static const char *merge_columns(const Draft *a, const Draft *b, Draft *out) {
    const Draft *col = a->kind == G_COL ? a : b, *other = col == a ? b : a;
    memcpy(out->dom, col->dom, sizeof out->dom);
    memcpy(out->red, col->red, sizeof out->red);
    out->ndom = col->ndom, out->nred = col->nred, out->nouter = col->nouter, out->kind = G_COL;
    if (other->kind == G_COL) {
        bool same = a->ndom == b->ndom && !memcmp(a->dom, b->dom, sizeof *a->dom * (size_t)a->ndom)
            && same_set(a->nred, a->red, b->nred, b->red);
        return same ? NULL : "the sums are over other columns";
    }
    Axis kept[MAX_AXES];
    int n = 0;
    for (int i = 0; i < col->ndom; i++)
        if (!among(col->nred, col->red, col->dom[i])) kept[n++] = col->dom[i];
    bool follows = other->nouter < 0 && other->first > col->last && same_set(n, kept, other->ndom, other->dom);
    return follows ? NULL : "a sum over columns is a kernel of its own";
}

static const char *merge_shape(const Graph *g, const Draft *a, const Draft *b, Draft *out) {
    if (a->kind > G_COL || b->kind > G_COL) return "it is computed by a library call";
    if (a->kind == G_COL || b->kind == G_COL) return merge_columns(a, b, out);
    if (same_set(a->ndom, a->dom, b->ndom, b->dom)) return merge_equal(g, a, b, out);
    if (subset(b->ndom, b->dom, a->ndom, a->dom)) return merge_rows(g, a, b, out);
    if (subset(a->ndom, a->dom, b->ndom, b->dom)) return merge_rows(g, b, a, out);
    return "the axes differ";
}

// -------------------------------------------------------------------------------------------------------- merging
// Goes backward from the drafts that a and b read. False if neither is met again.
bool reaches_itself(Fuse *f, uint32_t a, uint32_t b) {
    uint32_t *todo = NULL, stamp = ++f->search;
    Val first = min_of(f->drafts[a].first, f->drafts[b].first);
    size_t visits = 0;
    bool met = false;
    vec_push(todo, a);
    vec_push(todo, b);
    while (vec_len(todo) && !met) {
        uint32_t at = vec_pop(todo);
        const Draft *d = &f->drafts[at];
        for (size_t i = 0; i < vec_len(d->refs) && !met; i++) {
            uint32_t next = f->draft_of[d->refs[i]];
            bool inside = next == a || next == b;
            if (inside && at != a && at != b) met = true;
            if (!next || inside || f->drafts[next].seen == stamp || f->drafts[next].last < first) continue;
            f->drafts[next].seen = stamp;
            vec_push(todo, next);
            if (++visits > SEARCH_LIMIT) met = true;
        }
    }
    vec_free(todo);
    return met;
}

static bool reads_far(const Fuse *f, const Draft *d, uint32_t other) {
    for (size_t i = 0; i < vec_len(d->far); i++)
        if (f->draft_of[d->far[i]] == other) return true;
    return false;
}

static size_t count_reads(Fuse *f, uint32_t a, uint32_t b) {
    size_t count = 0;
    f->stamp++;
    for (int k = 0; k < 2; k++) {
        const Draft *d = &f->drafts[k ? b : a];
        for (size_t i = 0; i < vec_len(d->refs); i++) {
            Val v = d->refs[i];
            if (f->near_seen[v] == f->stamp || f->draft_of[v] == a || f->draft_of[v] == b) continue;
            f->near_seen[v] = f->stamp;
            count++;
        }
    }
    return count;
}

static void absorb(Fuse *f, uint32_t into, uint32_t from, const Draft *shape) {
    Draft *to = &f->drafts[into], *d = &f->drafts[from];
    for (size_t i = 0; i < vec_len(d->nodes); i++) {
        vec_push(to->nodes, d->nodes[i]);
        f->draft_of[d->nodes[i]] = into;
    }
    for (size_t i = 0; i < vec_len(d->refs); i++) vec_push(to->refs, d->refs[i]);
    for (size_t i = 0; i < vec_len(d->far); i++) vec_push(to->far, d->far[i]);
    to->first = min_of(to->first, d->first), to->last = max_of(to->last, d->last);
    to->kind = shape->kind, to->ndom = shape->ndom, to->nouter = shape->nouter, to->nred = shape->nred;
    memcpy(to->dom, shape->dom, sizeof to->dom);
    memcpy(to->red, shape->red, sizeof to->red);
    if (!to->why) to->why = d->why;
    vec_free(d->nodes), vec_free(d->refs), vec_free(d->far);
    d->gone = true;
}

bool try_merge(Fuse *f, uint32_t into, uint32_t from, const char **why) {
    Draft *a = &f->drafts[into], *b = &f->drafts[from], shape = *a;
    if (a->nred < b->nred) shape.nred = b->nred, memcpy(shape.red, b->red, sizeof shape.red);
    *why = a->seg != b->seg ? "it is of another segment" : merge_shape(f->g, a, b, &shape);
    if (!*why && (reads_far(f, a, from) || reads_far(f, b, into))) *why = "it is read at other positions";
    if (!*why && vec_len(a->nodes) + vec_len(b->nodes) > MAX_NODES) *why = "the kernel would be too large";
    if (!*why && vec_len(a->refs) + vec_len(b->refs) > MAX_READS && count_reads(f, into, from) > MAX_READS)
        *why = "the kernel would read too many values";
    if (!*why && reaches_itself(f, into, from)) *why = "another kernel stands between them";
    if (*why) return false;
    absorb(f, into, from, &shape);
    return true;
}

// The drafts that v may join: those of what it reads, largest value first, then the newest.
static int candidates(Fuse *f, uint32_t own, uint32_t *drafts, int most) {
    uint64_t bytes[16];
    Val newest[16];
    int n = 0;
    most = min_of(most, 16);
    for (size_t i = 0; i < vec_len(f->refs); i++) {
        Val v = f->refs[i].v;
        uint32_t d = f->draft_of[v];
        if (!d || d == own) continue;
        uint64_t size = value_bytes(f->g, v);
        int at = 0;
        while (at < n && drafts[at] != d) at++;
        if (at < n && (bytes[at] > size || (bytes[at] == size && newest[at] > v))) continue;
        if (at == n && n == most) continue;
        if (at == n) n++;
        for (; at > 0 && (bytes[at - 1] < size || (bytes[at - 1] == size && newest[at - 1] < v)); at--)
            drafts[at] = drafts[at - 1], bytes[at] = bytes[at - 1], newest[at] = newest[at - 1];
        drafts[at] = d, bytes[at] = size, newest[at] = v;
    }
    return n;
}

static void join_producers(Fuse *f, uint32_t own) {
    uint32_t drafts[16];
    int n = candidates(f, own, drafts, (int)countof(drafts));
    uint32_t at = own;
    for (int i = 0; i < n && !options.no_fuse; i++) {
        const char *why;
        // the older draft takes the newer in, so that small drafts move
        if (try_merge(f, drafts[i], at, &why)) at = drafts[i];
        else if (!f->drafts[at].why) f->drafts[at].why = why;
    }
}

// -------------------------------------------------------------------------------------------------- kinds of nodes
static bool column_shaped(const Graph *g, const Node *n) {
    const Node *in = &g->nodes[n->in[0]];
    return in->naxes && !among(n->u.over.n, n->u.over.axes, in->axes[in->naxes - 1]);
}

static void draft_member(Fuse *f, Val v) {
    const Node *n = &f->g->nodes[v];
    uint32_t d = new_draft(f, n->kind == K_REDUCE && column_shaped(f->g, n) ? G_COL : G_ROW, v);
    trace_refs(f, v, d, true);
    keep_refs(f, &f->drafts[d]);
    if (f->drafts[d].seg == SEG_UPDATE)
        for (size_t i = 0; i < vec_len(f->refs); i++) {
            Kind kind = (Kind)f->g->nodes[f->refs[i].v].kind;
            if (kind == K_PARAM || kind == K_STATE) vec_push(f->readers[f->refs[i].v], v);
        }
    if (f->drafts[d].kind == G_ROW) join_producers(f, d);  // what a column sum reads is looked at by fuse_keep
}

static void draft_library(Fuse *f, Val v) {
    static const uint8_t kinds[KIND_COUNT] = { [K_CONTRACT] = G_GEMM, [K_ATTENTION] = G_ATTENTION,
        [K_ATTENTION_GRAD] = G_ATTENTION_GRAD, [K_SCATTER_ADD] = G_SCATTER };
    const Node *n = &f->g->nodes[v];
    if (n->kind == K_PART) {
        uint32_t d = f->draft_of[n->in[0]];
        f->draft_of[v] = d;
        vec_push(f->drafts[d].nodes, v);
        f->drafts[d].last = v;
        f->forced[v] = 1;
        return;
    }
    uint32_t d = new_draft(f, (GroupKind)kinds[n->kind], v);
    f->forced[v] = 1;
    for (int i = 0; i < n->nin; i++) {
        Window w = window_of(f->g, n->in[i]);
        vec_push(f->drafts[d].refs, w.ok ? w.base : below_views(f, n->in[i]));
    }
}

// The CONTRACT or SCATTER_ADD that writes the accumulator itself: nothing else reads it. 0: none.
static Val writes_accumulator(const Fuse *f, Val accumulate) {
    const Graph *g = f->g;
    Val in = g->nodes[accumulate].in[0], v = in;
    while (g->nodes[v].kind == K_VIEW && !view_is_stored(f, v) && f->uses[v] == 1) v = g->nodes[v].in[0];
    const Node *n = &g->nodes[v];
    if (f->uses[v] != 1 || n->seg != g->nodes[accumulate].seg || n->dtype != g->nodes[accumulate].dtype) return 0;
    Gemm gemm;
    if (n->kind == K_CONTRACT && gemm_of(g, v, in, &gemm)) return v;
    return n->kind == K_SCATTER_ADD && v == in ? v : 0;
}

static bool draft_accumulate(Fuse *f, Val v) {
    Val maker = writes_accumulator(f, v);
    if (!maker) return false;
    uint32_t id = f->draft_of[maker];
    Draft *d = &f->drafts[id];
    for (Val at = f->g->nodes[v].in[0]; at != maker; at = f->g->nodes[at].in[0]) {
        vec_push(d->nodes, at);
        f->draft_of[at] = id;
    }
    vec_push(d->nodes, v);
    f->draft_of[v] = id;
    d->last = v;
    if (f->added_before[v]) vec_push(d->refs, f->added_before[v]);
    f->forced[maker] = 0;
    return true;
}

// ------------------------------------------------------------------------------------------------------- updates
static void push_draft(Fuse *f, uint32_t **todo, Val v) {
    uint32_t d = f->draft_of[v];
    if (!d || f->drafts[d].seen == f->search) return;
    f->drafts[d].seen = f->search;
    vec_push(*todo, d);
}

// Must some reader of the old value come after draft `into`? A draft comes after those it reads, and one that updates a
// leaf after all readers of that.
static bool read_after(Fuse *f, Val target, uint32_t into) {
    uint32_t *todo = NULL;
    size_t visits = 0;
    bool met = false;
    f->search++;
    for (size_t i = 0; i < vec_len(f->readers[target]); i++)
        if (f->draft_of[f->readers[target][i]] != into) push_draft(f, &todo, f->readers[target][i]);
    while (vec_len(todo) && !met) {
        uint32_t at = vec_pop(todo);
        const Draft *d = &f->drafts[at];
        met = at == into || ++visits > 8 * SEARCH_LIMIT;
        for (size_t k = 0; k < vec_len(d->refs); k++) push_draft(f, &todo, d->refs[k]);
        for (size_t k = 0; k < vec_len(d->nodes); k++) {
            const Node *n = &f->g->nodes[d->nodes[k]];
            for (size_t r = 0; n->kind == K_UPDATE && r < vec_len(f->readers[n->in[1]]); r++)
                if (f->draft_of[f->readers[n->in[1]][r]] != at) push_draft(f, &todo, f->readers[n->in[1]][r]);
        }
    }
    vec_free(todo);
    return met;
}

// An update joins the kernel that makes the value unless some reader of the old value is bound to come after it.
static void draft_update(Fuse *f, Val v) {
    Graph *g = f->g;
    const Node *n = &g->nodes[v];
    uint32_t own = new_draft(f, G_ROW, v);
    trace_refs(f, v, own, true);
    keep_refs(f, &f->drafts[own]);
    Val value = n->in[0];
    uint32_t maker = f->role[value] == ROLE_MEMBER ? f->draft_of[value] : 0;
    if (!maker || options.no_fuse) return;
    const char *why = NULL;
    for (size_t i = 0; i < vec_len(f->drafts[maker].far); i++)
        if (f->drafts[maker].far[i] == n->in[1]) why = "the old value is read at other positions";
    if (!why && read_after(f, n->in[1], maker)) why = "the old value is read later";
    if (!why && try_merge(f, maker, own, &why)) return;
    f->drafts[own].why = why;
}

// ---------------------------------------------------------------------------------------------------------- pass
static Fuse *fuse_new(Graph *g) {
    Fuse *f = xcalloc(1, sizeof *f);
    size_t n = vec_len(g->nodes);
    f->g = g, f->n = n;
    f->live = xcalloc(n, 1), f->role = xcalloc(n, 1), f->forced = xcalloc(n, 1), f->formula = xcalloc(n, 1);
    f->uses = xcalloc(n, sizeof *f->uses), f->draft_of = xcalloc(n, sizeof *f->draft_of);
    f->near_seen = xcalloc(n, sizeof *f->near_seen), f->far_seen = xcalloc(n, sizeof *f->far_seen);
    f->readers = xcalloc(n, sizeof *f->readers), f->added_before = xcalloc(n, sizeof *f->added_before);
    vec_free(g->stored);
    vec_add(g->stored, n);
    memset(g->stored, 0, n);
    f->stored = g->stored;
    vec_push(f->drafts, (Draft){ .gone = true });
    return f;
}

static void fuse_free(Fuse *f) {
    for (size_t i = 0; i < vec_len(f->drafts); i++)
        vec_free(f->drafts[i].nodes), vec_free(f->drafts[i].refs), vec_free(f->drafts[i].far);
    for (size_t i = 0; i < f->n; i++) vec_free(f->readers[i]);
    vec_free(f->drafts), vec_free(f->refs), vec_free(f->stack), vec_free(f->stack_far);
    free(f->live), free(f->role), free(f->forced), free(f->formula), free(f->uses), free(f->draft_of);
    free(f->near_seen), free(f->far_seen), free(f->readers), free(f->added_before);
    free(f);
}

void fuse(Graph *g) {
    Fuse *f = fuse_new(g);
    find_roles(f);
    for (Val v = 1; v < f->n; v++) {
        const Node *n = &g->nodes[v];
        if (f->role[v] == ROLE_LIBRARY) draft_library(f, v);
        else if (f->role[v] != ROLE_MEMBER || n->kind == K_UPDATE) continue;
        else if (n->kind == K_ACCUMULATE && draft_accumulate(f, v)) continue;
        else draft_member(f, v);
    }
    for (Val v = 1; v < f->n; v++)
        if (f->role[v] == ROLE_MEMBER && g->nodes[v].kind == K_UPDATE) draft_update(f, v);
    fuse_keep(f);
    fuse_groups(f);
    fuse_free(f);
}
