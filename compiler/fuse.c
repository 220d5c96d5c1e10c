// fuse.c: nodes to kernels, greedily.
//
// First every live node gets a role. Views, indices, constants, scalars, random numbers, conditions and whole numbers
// are expressions: made wherever they are used, never stored. What must be stored is known by now: operands of
// library calls, values that cross segments, outputs, packs. Library nodes are groups of their own; a contraction or a
// scatter_add whose one use is an ACCUMULATE takes it along and writes the accumulator.
//
// Then, in topological order, each remaining node starts a draft and joins the drafts of its producers, the largest
// value first, where fuse_merge.c allows. UPDATEs come last, when all readers of the old values are known. Accumulates of
// one accumulator keep their order; when there are several, each is alone or with its library call, so that nothing
// comes after them but each other.
//
// fuse_keep.c decides afterwards which members are stored and which are made again by their users, fuse_group.c writes
// the result down. With --no-fuse nothing merges and every map, reduce and gather is stored.
#include "fuse.h"

enum { READERS_LIMIT = 4096 };  // drafts that the search for late readers visits

bool costly_function(Fn fn)
{
    switch (fn) {
    case FN_POW: case FN_EXP: case FN_LOG: case FN_TANH: case FN_SIGMOID: case FN_ERF: case FN_SIN: case FN_COS: return true;
    default: return false;
    }
}

bool is_result(const Node *n) { return n->kind == K_ACCUMULATE || n->kind == K_UPDATE; }

bool is_library(const Node *n)
{
    return n->kind == K_CONTRACT || n->kind == K_ATTENTION || n->kind == K_ATTENTION_GRAD || n->kind == K_PART
        || n->kind == K_SCATTER_ADD || n->kind == K_RESHARD;
}

// ---------------------------------------------------------------------------------------------------------- roles
static uint8_t formula_size(const Fuse *f, const Node *n)
{
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

static bool is_cheap_formula(const Fuse *f, Val v)
{
    return f->formula[v] && (f->formula[v] <= FORMULA_CHEAP || f->g->nodes[v].naxes == 0);
}

// A view on the way to v that ends the walk: it has a buffer of its own.
static bool view_is_stored(const Fuse *f, Val v) { return f->g->nodes[v].fn == VIEW_PACK || f->forced[v]; }

static Val below_views(const Fuse *f, Val v)
{
    while (f->g->nodes[v].kind == K_VIEW && !view_is_stored(f, v)) v = f->g->nodes[v].in[0];
    return v;
}

static void force(Fuse *f, Val v)
{
    const Node *n = &f->g->nodes[v];
    if (!is_storage(n) && !is_result(n)) f->forced[v] = 1;
}

static void force_operands(Fuse *f, const Node *n)
{
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

static Role role_of(const Fuse *f, Val v)
{
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

static void find_roles(Fuse *f)
{
    Graph *g = f->g;
    graph_mark_live(g, f->live);
    for (Val v = 1; v < f->n; v++) {
        const Node *n = &g->nodes[v];
        if (!f->live[v]) continue;
        f->formula[v] = formula_size(f, n);
        if (n->kind == K_VIEW && n->fn == VIEW_PACK) f->forced[v] = 1;
        for (int i = 0; i < n->nin; i++) f->uses[n->in[i]]++;
        if (n->kind == K_ACCUMULATE) f->added[n->u.id]++;
    }
    for (size_t i = 0; i < vec_len(g->outputs); i++) force(f, g->outputs[i].val);
    for (size_t i = 0; i < vec_len(g->transfers); i++)
        if (g->transfers[i].send) force(f, g->transfers[i].val);
    for (Val v = 1; v < f->n; v++)
        if (f->live[v]) force_operands(f, &g->nodes[v]);
    for (Val v = 1; v < f->n; v++) f->role[v] = (uint8_t)role_of(f, v);
}

// ---------------------------------------------------------------------------------------------------------- refs
static void push_operands(Fuse *f, const Node *n, bool far)
{
    int count = n->kind == K_UPDATE ? 1 : n->nin;  // an update's target is written
    bool moved = n->kind == K_VIEW && n->u.view->n > 0;
    for (int i = count; i-- > 0;) {
        vec_push(f->stack, n->in[i]);
        vec_push(f->stack_far, (uint8_t)(far || moved || (n->kind == K_GATHER && i == 0)));
    }
}

void trace_refs(Fuse *f, Val v, uint32_t home, bool drafting)
{
    f->stamp++;
    vec_clear(f->refs);
    push_operands(f, &f->g->nodes[v], false);
    while (vec_len(f->stack)) {
        Val at = vec_pop(f->stack);
        bool far = vec_pop(f->stack_far);
        uint32_t *seen = far ? f->far_seen : f->near_seen;
        if (seen[at] == f->stamp) continue;
        seen[at] = f->stamp;
        Role role = (Role)f->role[at];
        bool inlined = role == ROLE_MEMBER && !drafting && !f->stored[at] && f->draft_of[at] != home;
        if (role == ROLE_PULLED || inlined) push_operands(f, &f->g->nodes[at], far);
        else vec_push(f->refs, (Ref){ at, far });
    }
}

static void keep_refs(Fuse *f, Draft *d)
{
    for (size_t i = 0; i < vec_len(f->refs); i++) {
        vec_push(d->refs, f->refs[i].v);
        if (f->refs[i].far) vec_push(d->far, f->refs[i].v);
    }
}

// -------------------------------------------------------------------------------------------------------- drafts
uint32_t new_draft(Fuse *f, GroupKind kind, Val v)
{
    const Node *n = &f->g->nodes[v];
    Draft d = { .kind = kind, .seg = n->nin ? n->seg : AT_UPDATE, .first = v, .last = v, .nouter = -1 };
    if (n->kind == K_CONST || n->kind == K_INDEX) d.seg = AT_INIT;
    vec_push(d.nodes, v);
    uint32_t id = (uint32_t)vec_len(f->drafts);
    f->draft_of[v] = id;
    const Node *shape = n->kind == K_REDUCE ? &f->g->nodes[n->in[0]] : n;
    d.ndom = shape->naxes;
    memcpy(d.dom, shape->axes, sizeof d.dom);
    d.alone = n->kind == K_ACCUMULATE && f->added[n->u.id] > 1;
    if (n->kind == K_REDUCE) {
        d.nred = n->u.over.n;
        memcpy(d.red, n->u.over.axes, sizeof d.red);
        d.nouter = d.ndom - d.nred;
    }
    vec_push(f->drafts, d);
    return id;
}

// The drafts that v may join: those of what it reads, largest value first, then the newest.
static int candidates(Fuse *f, uint32_t own, uint32_t *drafts, int most)
{
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

static void join_producers(Fuse *f, uint32_t own)
{
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
static bool column_shaped(const Graph *g, const Node *n)
{
    const Node *in = &g->nodes[n->in[0]];
    return in->naxes && has_axis(n, in->axes[in->naxes - 1]);  // the last axis is kept
}

// What a new draft reads that may be updated.
void note_readers(Fuse *f, const Draft *d)
{
    for (size_t i = 0; i < vec_len(d->refs) && d->seg == AT_UPDATE; i++) {
        Val leaf = leaf_of(f->g, d->refs[i]);
        Kind kind = (Kind)f->g->nodes[leaf].kind;
        if (kind == K_PARAM || kind == K_STATE) vec_push(f->readers[leaf], d->nodes[0]);
    }
}

static void draft_member(Fuse *f, Val v)
{
    const Node *n = &f->g->nodes[v];
    uint32_t d = new_draft(f, n->kind == K_REDUCE && column_shaped(f->g, n) ? G_COL : G_ROW, v);
    trace_refs(f, v, d, true);
    keep_refs(f, &f->drafts[d]);
    note_readers(f, &f->drafts[d]);
    if (f->drafts[d].kind == G_ROW) join_producers(f, d);  // what a column sum reads is looked at by fuse_keep
}

static void draft_library(Fuse *f, Val v)
{
    static const uint8_t kinds[KIND_COUNT] = { [K_CONTRACT] = G_GEMM, [K_ATTENTION] = G_ATTENTION,
        [K_ATTENTION_GRAD] = G_ATTENTION_GRAD, [K_SCATTER_ADD] = G_SCATTER };
    const Node *n = &f->g->nodes[v];
    if (n->kind == K_PART) {
        uint32_t d = f->draft_of[n->in[0]];
        f->draft_of[v] = d;
        vec_push(f->drafts[d].nodes, v);
        f->drafts[d].last = v;
        join_cluster(f, f->drafts[d].first, v);
        f->forced[v] = 1;
        return;
    }
    uint32_t d = new_draft(f, (GroupKind)kinds[n->kind], v);
    f->forced[v] = 1;
    for (int i = 0; i < n->nin; i++) {
        Window w = window_of(f->g, n->in[i]);
        vec_push(f->drafts[d].refs, w.ok ? w.base : below_views(f, n->in[i]));
    }
    note_readers(f, &f->drafts[d]);
}

// The CONTRACT or SCATTER_ADD that writes the accumulator itself: nothing else reads it. 0: none.
static Val writes_accumulator(const Fuse *f, Val accumulate)
{
    const Graph *g = f->g;
    Val in = g->nodes[accumulate].in[0], v = in;
    while (g->nodes[v].kind == K_VIEW && !view_is_stored(f, v) && f->uses[v] == 1) v = g->nodes[v].in[0];
    const Node *n = &g->nodes[v];
    if (f->uses[v] != 1 || n->seg != g->nodes[accumulate].seg || n->dtype != g->nodes[accumulate].dtype) return 0;
    Gemm gemm;
    if (n->kind == K_CONTRACT && gemm_of(g, v, in, &gemm)) return v;
    return n->kind == K_SCATTER_ADD && v == in ? v : 0;
}

static bool draft_accumulate(Fuse *f, Val v)
{
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
    f->forced[maker] = 0;
    return true;
}

// ------------------------------------------------------------------------------------------------------- updates
static void push_draft(Fuse *f, uint32_t **todo, Val v)
{
    uint32_t d = f->draft_of[v];
    if (!d || f->drafts[d].seen == f->search) return;
    f->drafts[d].seen = f->search;
    vec_push(*todo, d);
}

// Must some reader of the old value come after draft `into`? A draft comes after those it reads, and one that updates a
// leaf after all readers of that.
static bool read_after(Fuse *f, Val target, uint32_t into)
{
    uint32_t *todo = NULL;
    size_t visits = 0;
    bool met = false;
    f->search++;
    target = leaf_of(f->g, target);
    for (size_t i = 0; i < vec_len(f->readers[target]); i++)
        if (f->draft_of[f->readers[target][i]] != into) push_draft(f, &todo, f->readers[target][i]);
    while (vec_len(todo) && !met) {
        uint32_t at = vec_pop(todo);
        const Draft *d = &f->drafts[at];
        met = at == into || ++visits > READERS_LIMIT;
        for (size_t k = 0; k < vec_len(d->refs); k++) push_draft(f, &todo, d->refs[k]);
        for (size_t k = 0; k < vec_len(d->nodes); k++) {
            const Node *n = &f->g->nodes[d->nodes[k]];
            const Val *readers = n->kind == K_UPDATE ? f->readers[leaf_of(f->g, n->in[1])] : NULL;
            for (size_t r = 0; r < vec_len(readers); r++)
                if (f->draft_of[readers[r]] != at) push_draft(f, &todo, readers[r]);
        }
    }
    vec_free(todo);
    return met;
}

// An update joins the kernel that makes the value unless some reader of the old value is bound to come after it.
static void draft_update(Fuse *f, Val v)
{
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
    for (size_t i = 0; i < vec_len(f->drafts[maker].refs); i++) {
        Val r = f->drafts[maker].refs[i];
        if (r != n->in[1] && leaf_of(g, r) == leaf_of(g, n->in[1])) why = "the old value is read at other positions";
    }
    if (!why && read_after(f, n->in[1], maker)) why = "the old value is read later";
    if (!why && try_merge(f, maker, own, &why)) return;
    f->drafts[own].why = why;
}

// ---------------------------------------------------------------------------------------------------------- pass
static Fuse *fuse_new(Graph *g)
{
    Fuse *f = xcalloc(1, sizeof *f);
    size_t n = vec_len(g->nodes);
    f->g = g, f->n = n;
    f->live = xcalloc(n, 1), f->role = xcalloc(n, 1), f->forced = xcalloc(n, 1), f->formula = xcalloc(n, 1);
    f->uses = xcalloc(n, sizeof *f->uses), f->draft_of = xcalloc(n, sizeof *f->draft_of);
    f->near_seen = xcalloc(n, sizeof *f->near_seen), f->far_seen = xcalloc(n, sizeof *f->far_seen);
    f->readers = xcalloc(n, sizeof *f->readers), f->added = xcalloc(vec_len(g->accs) + 1, sizeof *f->added);
    f->cluster = xcalloc(n, sizeof *f->cluster);
    for (Val v = 0; v < n; v++) f->cluster[v] = v;
    vec_free(g->stored);
    vec_add(g->stored, n);
    memset(g->stored, 0, n);
    f->stored = g->stored;
    vec_push(f->drafts, (Draft){ .gone = true });
    return f;
}

static void fuse_free(Fuse *f)
{
    for (size_t i = 0; i < vec_len(f->drafts); i++)
        vec_free(f->drafts[i].nodes), vec_free(f->drafts[i].refs), vec_free(f->drafts[i].far);
    for (size_t i = 0; i < f->n; i++) vec_free(f->readers[i]);
    vec_free(f->drafts), vec_free(f->refs), vec_free(f->stack), vec_free(f->stack_far);
    free(f->live), free(f->role), free(f->forced), free(f->formula), free(f->uses), free(f->draft_of);
    free(f->near_seen), free(f->far_seen), free(f->readers), free(f->added), free(f->cluster);
    free(f);
}

void fuse(Graph *g)
{
    Fuse *f = fuse_new(g);
    find_roles(f);
    for (Val v = 1; v < f->n; v++) {
        const Node *n = &g->nodes[v];
        if (n->kind == K_RESHARD && f->role[v] == ROLE_LIBRARY) draft_reshard(f, v);
        else if (f->role[v] == ROLE_LIBRARY) draft_library(f, v);
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
