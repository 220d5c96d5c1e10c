// fuse_keep.c: which values are stored and which are made again by each kernel that wants them.
//
// Nodes are visited from the last to the first, so the users of a value are settled before it is. A value that other
// drafts want is stored, unless it is a MAP whose expression, down to what is stored or has to be, costs no more bytes to
// evaluate there than to write and to read. A value that one other draft wants and its own does not is so moved. What
// nobody wants any more (its users make it again) leaves its draft; drafts without a stored value vanish.
//
// Traps: reading a parameter or state again in segment UPDATE may be too late when it has an UPDATE; such expressions
// stay where they are. A value that is made again at every position of a larger domain pays for each.
#include "fuse.h"

enum { LARGEST_REPEATED = 12, LARGEST_MOVED = 48 };  // nodes of an expression
enum { COSTLY_BYTES = 4 };                           // an exponential takes about as long as moving so many bytes

typedef struct {
    Fuse *f;
    uint32_t **users;      // by node: vec of other drafts that want its value
    uint8_t *wanted;       // by its own draft
    uint8_t *updated;      // leaf with an UPDATE
    Val *todo;             // vec: work of expression_of
    uint32_t *seen, stamp;
} Keep;

static void add_user(Keep *k, Val v, uint32_t draft)
{
    uint32_t **users = &k->users[v];
    for (size_t i = 0; i < vec_len(*users); i++)
        if ((*users)[i] == draft) return;
    vec_push(*users, draft);
}

// What v reads is wanted by `draft`.
static void want_refs(Keep *k, Val v, uint32_t draft)
{
    Fuse *f = k->f;
    trace_refs(f, v, draft, true);
    for (size_t i = 0; i < vec_len(f->refs); i++) {
        Val r = f->refs[i].v;
        if (f->role[r] != ROLE_MEMBER) continue;
        if (f->draft_of[r] == draft) k->wanted[r] = 1;
        else add_user(k, r, draft);
    }
}

typedef struct { bool ok; int size, costly; uint64_t reads, writes; } Expression;

static bool ends_expression(const Keep *k, Val v)
{
    const Fuse *f = k->f;
    return f->g->nodes[v].kind != K_MAP || f->forced[v] || vec_len(k->users[v]);
}

// The expression of v down to what is or will be stored.
static Expression expression_of(Keep *k, Val v)
{
    Fuse *f = k->f;
    const Graph *g = f->g;
    Expression e = { .ok = true };
    k->stamp++;
    vec_clear(k->todo);
    vec_push(k->todo, v);
    while (vec_len(k->todo) && e.ok) {
        Val at = vec_pop(k->todo);
        const Node *n = &g->nodes[at];
        e.costly += n->kind == K_MAP && costly_function((Fn)n->fn);
        if (++e.size > LARGEST_MOVED) e.ok = false;
        trace_refs(f, at, 0, true);
        for (size_t i = 0; i < vec_len(f->refs); i++) {
            Val r = f->refs[i].v;
            if (k->seen[r] == k->stamp) continue;
            k->seen[r] = k->stamp;
            if (k->updated[leaf_of(g, r)] && n->seg == AT_UPDATE) e.ok = false;
            if (f->role[r] == ROLE_MEMBER && !ends_expression(k, r)) {
                vec_push(k->todo, r);
                continue;
            }
            e.reads += value_bytes(g, r);
            if (f->role[r] == ROLE_MEMBER && !f->forced[r] && !vec_len(k->users[r])) e.writes += value_bytes(g, r);
        }
    }
    return e;
}

static uint64_t domain_elements(const Graph *g, const Draft *d)
{
    uint64_t n = 1;
    for (int i = 0; i < d->ndom; i++) n *= (uint64_t)extent_of(g, d->dom[i]);
    return n;
}

static bool make_again(Keep *k, Val v)
{
    Fuse *f = k->f;
    const Graph *g = f->g;
    if (options.no_fuse || f->forced[v] || g->nodes[v].kind != K_MAP) return false;
    Expression e = expression_of(k, v);
    uint64_t n = vec_len(k->users[v]), bytes = value_bytes(g, v), again = e.writes;
    bool moved = n == 1 && !k->wanted[v];
    if (!e.ok || (!moved && e.size > LARGEST_REPEATED)) return false;
    for (size_t i = 0; i < n; i++) {
        const Draft *d = &f->drafts[k->users[v][i]];
        uint64_t times = d->kind <= G_COL ? domain_elements(g, d) : (uint64_t)elements(g, v);
        if (moved && times <= (uint64_t)elements(g, v)) continue;
        again += times * (uint64_t)e.costly * COSTLY_BYTES;
    }
    return moved ? again <= 2 * bytes : again + n * e.reads <= (n + 1) * (bytes + bytes / 4);  // a write costs more
}

static void settle(Keep *k, Val v)
{
    Fuse *f = k->f;
    uint32_t own = f->draft_of[v];
    if (f->role[v] == ROLE_LIBRARY) {
        f->stored[v] = f->forced[v];
        return;
    }
    if (vec_len(k->users[v]) && make_again(k, v)) {
        for (size_t i = 0; i < vec_len(k->users[v]); i++) want_refs(k, v, k->users[v][i]);
        vec_clear(k->users[v]);
    }
    f->stored[v] = f->forced[v] || vec_len(k->users[v]);
    bool needed = f->stored[v] || k->wanted[v] || is_result(&f->g->nodes[v]);
    if (needed) want_refs(k, v, own);
    else f->draft_of[v] = 0;
}

static void drop_unneeded(Fuse *f)
{
    for (uint32_t i = 1; i < vec_len(f->drafts); i++) {
        Draft *d = &f->drafts[i];
        size_t kept = 0;
        for (size_t j = 0; j < vec_len(d->nodes); j++)
            if (f->draft_of[d->nodes[j]] == i) d->nodes[kept++] = d->nodes[j];
        if (d->gone || !d->nodes) continue;
        vec_header(d->nodes)->len = kept;
        d->gone = kept == 0;
    }
}

// The refs of the drafts as they are now, with what is made again looked through.
static void refresh_refs(Fuse *f)
{
    for (uint32_t i = 1; i < vec_len(f->drafts); i++) {
        Draft *d = &f->drafts[i];
        if (d->gone || d->kind > G_COL) continue;
        vec_clear(d->refs), vec_clear(d->far);
        for (size_t j = 0; j < vec_len(d->nodes); j++) {
            trace_refs(f, d->nodes[j], i, false);
            for (size_t r = 0; r < vec_len(f->refs); r++) {
                if (f->draft_of[f->refs[r].v] == i) continue;
                vec_push(d->refs, f->refs[r].v);
                if (f->refs[r].far) vec_push(d->far, f->refs[r].v);
            }
        }
    }
}

void fuse_keep(Fuse *f)
{
    Keep k = { .f = f };
    k.users = xcalloc(f->n, sizeof *k.users), k.wanted = xcalloc(f->n, 1), k.updated = xcalloc(f->n, 1);
    k.seen = xcalloc(f->n, sizeof *k.seen);
    for (Val v = 1; v < f->n; v++)
        if (f->live[v] && f->g->nodes[v].kind == K_UPDATE) k.updated[leaf_of(f->g, f->g->nodes[v].in[1])] = 1;
    for (Val v = (Val)f->n; v-- > 1;)
        if (f->role[v] == ROLE_MEMBER || f->role[v] == ROLE_LIBRARY) settle(&k, v);
    drop_unneeded(f);
    refresh_refs(f);
    for (size_t i = 0; i < f->n; i++) vec_free(k.users[i]);
    free(k.users), free(k.wanted), free(k.updated), free(k.seen);
    vec_free(k.todo);
}
