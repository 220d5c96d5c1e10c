// fuse_group.c: drafts become Groups.
//
// First, drafts that are equal in shape and read the same large value are merged, if they stand near each other: the
// gradients of a norm's gain and bias, of the two halves of a gated unit. Then each draft's nodes are sorted, its reads
// and writes listed, a contraction's GEMM filled in, and the groups put in a topological order.
#include "fuse.h"

enum { NEAR_DRAFTS = 6, INNER_ELEMENTS = 64 };

// ------------------------------------------------------------------------------------------------------- siblings
static bool equal_axes(const Draft *a, const Draft *b)
{
    if (a->kind != b->kind || a->seg != b->seg || a->ndom != b->ndom) return false;
    for (int i = 0, j; i < a->ndom; i++) {
        for (j = 0; j < b->ndom && b->dom[j] != a->dom[i];) j++;
        if (j == b->ndom) return false;
    }
    return true;
}

// Bytes that a reads, and those of them that b reads too.
static uint64_t shared_bytes(Fuse *f, const Draft *a, const Draft *b, uint64_t *all)
{
    uint64_t shared = 0;
    f->stamp++;
    *all = 0;
    for (size_t i = 0; i < vec_len(b->refs); i++) f->near_seen[b->refs[i]] = f->stamp;
    for (size_t i = 0; i < vec_len(a->refs); i++) {
        Val v = a->refs[i];
        if (f->far_seen[v] == f->stamp) continue;
        f->far_seen[v] = f->stamp;
        *all += value_bytes(f->g, v);
        if (f->near_seen[v] == f->stamp) shared += value_bytes(f->g, v);
    }
    return shared;
}

static bool are_siblings(Fuse *f, const Draft *a, const Draft *b)
{
    uint64_t all_a, all_b;
    if (!equal_axes(a, b)) return false;
    uint64_t shared = shared_bytes(f, a, b, &all_a);
    shared_bytes(f, b, a, &all_b);
    return shared > 0 && 2 * shared >= min_of(all_a, all_b);
}

// Only what stands near is looked at, so that the search is linear. Updates are left alone: what they write is read.
static void merge_siblings(Fuse *f)
{
    uint32_t *recent = NULL;
    for (uint32_t i = 1; i < vec_len(f->drafts); i++) {
        if (f->drafts[i].gone || f->drafts[i].kind > G_COL || f->drafts[i].seg == AT_UPDATE) continue;
        size_t from = vec_len(recent) > NEAR_DRAFTS ? vec_len(recent) - NEAR_DRAFTS : 0;
        for (size_t k = vec_len(recent); k-- > from;) {
            const char *why;
            if (!f->drafts[recent[k]].gone && are_siblings(f, &f->drafts[recent[k]], &f->drafts[i])
                && try_merge(f, recent[k], i, &why))
                break;
        }
        if (!f->drafts[i].gone) vec_push(recent, i);
    }
    vec_free(recent);
}

// --------------------------------------------------------------------------------------------------------- groups
static int by_index(const void *a, const void *b)
{
    Val x = *(const Val *)a, y = *(const Val *)b;
    return x < y ? -1 : x > y;
}

// Elementwise kernels: rows are what is left when the inner loop has something to do.
static int rows_of(const Graph *g, const Group *group)
{
    int n = group->ndom;
    for (int64_t inner = 1; n > 0 && inner < INNER_ELEMENTS;) inner *= extent_of(g, group->dom[--n]);
    return n;
}

// Brings n of the domain's axes to the order in which the node has them.
static void order_axes(const Node *like, Axis *axes, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && axis_find(like, axes[j]) < axis_find(like, axes[j - 1]); j--) {
            Axis t = axes[j];
            axes[j] = axes[j - 1];
            axes[j - 1] = t;
        }
}

// The loops run in the order of what is written first. A reduction's order inside the row is not ours to change.
static void order_domain(const Graph *g, const Draft *d, Group *group)
{
    const Node *like = NULL;
    for (size_t i = 0; i < vec_len(group->writes); i++) {
        const Node *n = &g->nodes[group->writes[i]];
        if (n->naxes == group->ndom && !like) like = n;
    }
    int outer = d->nouter >= 0 ? d->nouter : group->ndom;
    if (like) {
        order_axes(like, group->dom, outer);
        if (!d->nred) order_axes(like, group->dom + outer, group->ndom - outer);
    }
    group->nouter = d->nouter >= 0 ? d->nouter : rows_of(g, group);
}

static void add_read(Fuse *f, Group *group, Val v, bool far)
{
    if (f->near_seen[v] == f->stamp) {
        for (size_t i = 0; i < vec_len(group->reads); i++)
            if (group->reads[i] == v) group->reads_far[i] |= far;
        return;
    }
    f->near_seen[v] = f->stamp;
    vec_push(group->reads, v);
    vec_push(group->reads_far, (uint8_t)far);
}

static void list_reads(Fuse *f, uint32_t draft, Group *group)
{
    bool library = group->kind > G_COL;
    Ref *all = NULL;
    for (size_t i = 0; i < vec_len(group->nodes) && !library; i++) {
        trace_refs(f, group->nodes[i], draft, false);
        for (size_t k = 0; k < vec_len(f->refs); k++) vec_push(all, f->refs[k]);
    }
    for (size_t i = 0; i < vec_len(f->drafts[draft].refs) && library; i++)
        vec_push(all, (Ref){ f->drafts[draft].refs[i], true });
    f->stamp++;
    for (size_t i = 0; i < vec_len(all); i++) {
        Val v = all[i].v;
        if (f->draft_of[v] != draft) add_read(f, group, v, all[i].far);
    }
    vec_free(all);
}

static void list_writes(const Fuse *f, Group *group)
{
    for (size_t i = 0; i < vec_len(group->nodes); i++) {
        Val v = group->nodes[i];
        const Node *n = &f->g->nodes[v];
        if (f->stored[v]) vec_push(group->writes, v);
        if (n->kind == K_ACCUMULATE) vec_push(group->writes, f->g->accs[n->u.id].total);
        if (n->kind == K_UPDATE) vec_push(group->writes, n->in[1]);
    }
}

static void fill_gemm(const Graph *g, Group *group)
{
    Val v = group->nodes[0], last = group->nodes[vec_len(group->nodes) - 1];
    bool accumulates = g->nodes[last].kind == K_ACCUMULATE;
    Gemm gemm;
    if (!gemm_of(g, v, accumulates ? g->nodes[last].in[0] : v, &gemm)) {
        Buf line = { 0 };
        node_dump(g, v, &line);
        bug("no GEMM for a contraction that select left: %s", line.s);
    }
    group->gemm = gemm.gemm;
    group->gemm.beta = !accumulates ? BETA_ZERO : accumulate_is_first(g, last) ? BETA_FIRST : BETA_ONE;
    Val args[] = { gemm.a, gemm.b, accumulates ? g->accs[g->nodes[last].u.id].total : v };
    int64_t offsets[] = { gemm.offset_a, gemm.offset_b, 0 };
    for (int i = 0; i < 3; i++) {
        vec_push(group->args, args[i]);
        vec_push(group->arg_offsets, offsets[i]);
        vec_push(group->arg_written, (uint8_t)(i < 2 ? 0 : accumulates ? 2 : 1));
    }
}

static void count_costs(const Graph *g, Group *group)
{
    for (size_t i = 0; i < vec_len(group->reads); i++) group->bytes += value_bytes(g, group->reads[i]);
    for (size_t i = 0; i < vec_len(group->writes); i++) group->bytes += value_bytes(g, group->writes[i]);
    double flops = 0;
    for (size_t i = 0; i < vec_len(group->nodes); i++) {
        Val v = group->nodes[i];
        flops += node_flops(g, v);
        if (g->nodes[v].kind == K_ACCUMULATE) group->bytes += value_bytes(g, v);  // read as well
    }
    group->flops = (uint64_t)flops;
}

static Group group_of_draft(Fuse *f, uint32_t draft)
{
    Draft *d = &f->drafts[draft];
    Group group = { .kind = d->kind, .seg = d->seg, .nodes = d->nodes, .ndom = d->ndom, .nred = d->nred,
                    .why = d->why };
    d->nodes = NULL;
    memcpy(group.dom, d->dom, sizeof group.dom);
    memcpy(group.red, d->red, sizeof group.red);
    if (d->kind != G_COL) group.nred = 0;
    qsort(group.nodes, vec_len(group.nodes), sizeof *group.nodes, by_index);
    list_reads(f, draft, &group);
    list_writes(f, &group);
    if (group.kind == G_ROW) order_domain(f->g, d, &group);
    if (group.kind == G_GEMM) fill_gemm(f->g, &group);
    count_costs(f->g, &group);
    return group;
}

void fuse_groups(Fuse *f)
{
    Graph *g = f->g;
    if (!options.no_fuse) merge_siblings(f);
    vec_free(g->group_of);
    vec_add(g->group_of, f->n);
    memset(g->group_of, 0, f->n * sizeof *g->group_of);
    for (uint32_t i = 1; i < vec_len(f->drafts); i++) {
        if (f->drafts[i].gone) continue;
        if (f->drafts[i].kind == G_WAIT) {
            add_collective(f, i);
            continue;
        }
        Group group = group_of_draft(f, i);
        vec_push(g->groups, group);
        for (size_t k = 0; k < vec_len(group.nodes); k++) g->group_of[group.nodes[k]] = (uint32_t)vec_len(g->groups);
    }
    groups_sort(g, false);
}
