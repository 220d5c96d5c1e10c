// fuse_coll.c: RESHARD nodes become collectives: each a G_START and a G_WAIT, so that other kernels can run between.
//
// Those of one segment with the same number (u.reshard->batch, not 0) are one collective with many parts. While fuse
// merges there is one draft for both groups: it reads the operands and holds the results. group_of names the WAIT.
//
// The reduction of gradients need not wait for UPDATE: its START goes to the backward segment that adds to them last, in
// the last micro-batch only. Not if several chunks add to them, and not over stages: one that waits there for another
// would hold up the pipeline.
#include "fuse.h"

static bool same_collective(const Node *a, const Node *b)
{
    const Reshard *x = a->u.reshard, *y = b->u.reshard;
    return b->kind == K_RESHARD && a->seg == b->seg && a->dtype == b->dtype && x->batch == y->batch && x->how == y->how
        && x->reduce == y->reduce && x->key.mesh == y->key.mesh && x->key.stages == y->key.stages;
}

// The first of a batch takes in the others, so that nothing is fused across them.
void draft_reshard(Fuse *f, Val v)
{
    const Node *n = &f->g->nodes[v];
    if (f->draft_of[v]) return;
    uint32_t id = new_draft(f, G_WAIT, v);
    Draft *d = &f->drafts[id];
    for (Val w = v + 1; w < f->n && n->u.reshard->batch; w++) {
        if (!f->live[w] || f->draft_of[w] || !same_collective(n, &f->g->nodes[w])) continue;
        vec_push(d->nodes, w);
        f->draft_of[w] = id, d->last = w;
    }
    for (size_t i = 0; i < vec_len(d->nodes); i++) {
        f->forced[d->nodes[i]] = 1;
        vec_push(d->refs, f->g->nodes[d->nodes[i]].in[0]);
    }
    join_cluster(f, v, d->last);
    note_readers(f, d);
}

// ---------------------------------------------------------------------------------------------------------- parts
// Shares are cut off or joined along one axis of the dense tensor; what lies inside of that axis stays together.
static struct CollPart part_of(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v], *in = &g->nodes[n->in[0]];
    const Reshard *r = n->u.reshard;
    const Node *share = r->how == COLL_ALL_GATHER ? in : n;
    struct CollPart p = { .in = n->in[0], .out = v, .outer = 1, .inner = 1 };
    int at = r->how == COLL_ALL_REDUCE ? 0 : max_of(axis_find(share, r->part), 0);
    for (int i = 0; i < share->naxes; i++) *(i < at ? &p.outer : &p.inner) *= (uint64_t)extent_of(g, share->axes[i]);
    return p;
}

static uint64_t part_bytes(const Graph *g, const struct CollPart *p, PlanCollKind how, CommKey key)
{
    uint64_t share = p->outer * p->inner * (uint64_t)dtype_bytes((DType)g->nodes[p->in].dtype);
    return how == COLL_ALL_REDUCE ? 2 * share : share + share * (uint64_t)key_ranks(g, key);
}

// -------------------------------------------------------------------------------------------------------- hoisting
// The segment that adds to one of these totals last, if all that add are of one chunk; else UPDATE.
static uint8_t segment_of_start(const Fuse *f, const Draft *d)
{
    const Graph *g = f->g;
    const CommKey key = g->nodes[d->nodes[0]].u.reshard->key;
    int chunk = -1;
    uint8_t last = 0;
    if (d->seg != AT_UPDATE || key.mesh & MESH_PP) return d->seg;
    for (size_t i = 0; i < vec_len(d->nodes); i++) {
        const Node *total = &g->nodes[g->nodes[d->nodes[i]].in[0]];
        if (total->kind != K_TOTAL || !reshard_in_place(g, d->nodes[i])) return AT_UPDATE;
        for (Val v = 1; v < f->n; v++) {
            const Node *n = &g->nodes[v];
            if (n->kind != K_ACCUMULATE || n->u.id != total->u.id || !f->live[v]) continue;
            if (chunk >= 0 && chunk != seg_chunk(n->seg)) return AT_UPDATE;
            chunk = seg_chunk(n->seg), last = max_of(last, n->seg);
        }
    }
    return chunk >= 0 && (seg_id(last) == SEG_B || seg_id(last) == SEG_W) ? last : AT_UPDATE;
}

// ---------------------------------------------------------------------------------------------------------- groups
static void add_values(const Graph *g, const struct Coll *c, Group *start, Group *wait)
{
    for (size_t i = 0; i < vec_len(c->parts); i++) {
        const struct CollPart *p = &c->parts[i];
        bool inside = reshard_in_place(g, p->out);
        vec_push(start->reads, p->in), vec_push(start->reads_far, 1);
        if (!inside) vec_push(wait->reads, p->in), vec_push(wait->reads_far, 1);  // the operand is in use until then
        vec_push(start->writes, p->out), vec_push(wait->writes, p->out);
        vec_push(start->args, p->in), vec_push(start->args, p->out);
        for (int k = 0; k < 2; k++) vec_push(start->arg_offsets, 0), vec_push(start->arg_written, (uint8_t)k);
        start->bytes += part_bytes(g, p, c->how, c->key);
    }
}

void add_collective(Fuse *f, uint32_t draft)
{
    Graph *g = f->g;
    Draft *d = &f->drafts[draft];
    const Node *n = &g->nodes[d->nodes[0]];
    const Reshard *r = n->u.reshard;
    struct Coll c = { .how = (PlanCollKind)r->how, .reduce = (PlanReduce)r->reduce, .dtype = (DType)n->dtype,
                      .key = r->key, .why = r->why };
    uint32_t coll = (uint32_t)vec_len(g->colls);
    Group start = { .kind = G_START, .seg = segment_of_start(f, d), .coll = coll };
    Group wait = { .kind = G_WAIT, .seg = d->seg, .nodes = d->nodes, .coll = coll };
    start.last = start.seg != wait.seg;
    d->nodes = NULL;
    for (size_t i = 0; i < vec_len(wait.nodes); i++) {
        vec_push(start.nodes, wait.nodes[i]);
        vec_push(c.parts, part_of(g, wait.nodes[i]));
    }
    add_values(g, &c, &start, &wait);
    vec_push(g->colls, c);
    vec_push(g->groups, start);
    if (required(g, "wait", r->why)) vec_push(g->groups, wait);
    for (size_t i = 0; i < vec_len(wait.nodes); i++) g->group_of[wait.nodes[i]] = (uint32_t)vec_len(g->groups);
}
