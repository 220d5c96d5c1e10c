// verify.c: postconditions of the passes, checked by the driver after each one on every compile. They read the graph
// by themselves and share nothing with the passes, so that one mistake is not made twice. Cost: linear in the graph.
#include "verify.h"

void graph_check(Graph *g) { graph_verify(g, "front"); }

static _Noreturn void broken(Graph *g, const char *pass, Val v, const char *what)
{
    Buf line = {0};
    if (v) node_dump(g, v, &line);
    bug("after %s: %s\n  %s", pass, what, v ? line.s : "");
}

// ---- grad
void verify_grad(Graph *g)
{
    graph_verify(g, "grad");
    size_t n = vec_len(g->nodes), np = vec_len(g->params), na = vec_len(g->accs);
    uint8_t *live = xcalloc(n, 1);
    int *updates = xcalloc(np + 1, sizeof *updates), *adds = xcalloc(na + 1, sizeof *adds);
    graph_mark_live(g, live);
    for (Val v = 1; v < n; v++) {
        const Node *x = node_of(g, v);
        bool leaf = x->nin == 0;
        if (!live[v] && !leaf) broken(g, "grad", v, "dead code");
        if (x->kind == K_ACCUMULATE) adds[x->u.id]++;
        if (x->kind == K_UPDATE && node_of(g, x->in[1])->kind == K_PARAM) updates[node_of(g, x->in[1])->u.id]++;
    }
    for (size_t a = 0; a < na; a++)
        if (!adds[a]) broken(g, "grad", g->accs[a].total, "an accumulator that nothing is added to");
    for (size_t p = 0; p < np; p++) {
        if (g->params[p].acc >= 0 && updates[p] > 1) broken(g, "grad", g->params[p].val, "a parameter updated twice");
        if (g->params[p].acc >= 0 && !updates[p]) broken(g, "grad", g->params[p].val, "a parameter without update");
    }
    free(live), free(updates), free(adds);
}

// ---- save
static bool free_to_read(const Graph *g, Val v)
{
    Kind k = (Kind)g->nodes[v].kind;
    return k == K_INPUT || k == K_PARAM || k == K_STATE || k == K_TOTAL || k == K_SCALAR || k == K_CONST || k == K_INDEX
        || k == K_RECV || k == K_SLICE;
}

void verify_save(Graph *g)
{
    graph_verify(g, "save");
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = node_of(g, v);
        for (int i = 0; i < x->nin; i++) {
            const Node *y = node_of(g, x->in[i]);
            if (y->seg > x->seg) broken(g, "save", v, "reads a value of a later segment");
            SegmentId reader = seg_id(x->seg), maker = seg_id(y->seg);
            bool inside = maker >= SEG_F && maker <= SEG_W && !free_to_read(g, x->in[i]);  // made in a micro-batch
            if (inside && maker == SEG_F && (reader == SEG_B || reader == SEG_W) && !g->saved[x->in[i]])
                broken(g, "save", v, "backward reads a forward value that is not saved");
            if (inside && x->seg == AT_UPDATE) broken(g, "save", v, "the update reads a value of one micro-batch");
            if (inside && x->seg != AT_UPDATE && seg_chunk(x->seg) != seg_chunk(y->seg))
                broken(g, "save", v, "reads a value of another chunk");
        }
    }
}

// ---- select: a reduction runs over a suffix of its operand's axes, or keeps the last axis
// What is sent or moved between ranks lies somewhere, dense.
static void check_dense(Graph *g, Val v)
{
    const Node *x = node_of(g, v);
    bool formula = x->kind == K_CONST || x->kind == K_INDEX || x->kind == K_SCALAR || x->kind == K_RANDOM;
    if (formula || (x->kind == K_VIEW && x->fn != VIEW_PACK)) broken(g, "select", v, "sent or reduced as it does not lie");
}

void verify_select(Graph *g)
{
    graph_verify(g, "select");
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (node_of(g, v)->kind == K_RESHARD) check_dense(g, node_of(g, v)->in[0]);
    for (size_t i = 0; i < vec_len(g->transfers); i++)
        if (g->transfers[i].send) check_dense(g, g->transfers[i].val);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = node_of(g, v);
        if (x->kind != K_REDUCE) continue;
        const Node *y = node_of(g, x->in[0]);
        bool reduced[MAX_AXES] = {0}, kept = false, ok = true;
        for (int i = 0; i < y->naxes; i++)
            for (int k = 0; k < x->u.over.n; k++) reduced[i] |= y->axes[i] == x->u.over.axes[k];
        if (y->naxes && !reduced[y->naxes - 1]) continue;
        for (int i = y->naxes - 1; i >= 0; i--) {
            if (!reduced[i]) kept = true;
            else if (kept) ok = false;
        }
        if (!ok) broken(g, "select", v, "a reduction over mixed axes");
    }
}

// ---- fuse, order
static bool lies_somewhere(const Graph *g, Val v)
{
    return g->stored[v] || is_storage(&g->nodes[v]) || g->nodes[v].kind == K_UPDATE;
}

// Every live RESHARD is begun once and ended once; its operand and result are in memory; no total is reduced twice.
static void check_collectives(Graph *g, const uint8_t *live)
{
    size_t n = vec_len(g->nodes);
    uint8_t *begun = xcalloc(n, 1), *ended = xcalloc(n, 1), *changed = xcalloc(n, 1);
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        uint8_t *count = group->kind == G_START ? begun : group->kind == G_WAIT ? ended : NULL;
        for (size_t k = 0; count && k < vec_len(group->nodes); k++) count[group->nodes[k]]++;
    }
    for (Val v = 1; v < n; v++) {
        const Node *x = node_of(g, v);
        if (x->kind != K_RESHARD || !live[v]) continue;
        if (begun[v] != 1 || ended[v] != 1) broken(g, "fuse", v, "a collective that is not begun and ended once");
        if (!g->stored[v] || !lies_somewhere(g, x->in[0])) broken(g, "fuse", v, "a collective on what is not in memory");
        if (reshard_in_place(g, v) && changed[x->in[0]]++) broken(g, "fuse", x->in[0], "reduced twice in its place");
    }
    for (size_t i = 0; i < vec_len(g->transfers); i++)
        if (!lies_somewhere(g, g->transfers[i].val)) broken(g, "fuse", g->transfers[i].val, "sent, and not in memory");
    free(begun), free(ended), free(changed);
}

// Maps, views and constants without a group are read through; sums, products and writes need one.
void verify_fuse(Graph *g)
{
    size_t n = vec_len(g->nodes);
    uint8_t *live = xcalloc(n, 1), *count = xcalloc(n, 1);
    graph_mark_live(g, live);
    check_collectives(g, live);
    for (size_t i = 0; i < vec_len(g->groups); i++)
        for (size_t k = 0; g->groups[i].kind != G_START && k < vec_len(g->groups[i].nodes); k++) {
            Val v = g->groups[i].nodes[k];
            if (count[v]++) broken(g, "fuse", v, "a node in two groups");
            if (g->group_of[v] != i + 1) broken(g, "fuse", v, "group_of disagrees with the group");
        }
    for (Val v = 1; v < n; v++) {
        const Node *x = node_of(g, v);
        if (!live[v] || count[v]) continue;
        if (g->stored[v] && x->nin) broken(g, "fuse", v, "a stored value that no kernel computes");
        if (x->kind == K_ACCUMULATE || x->kind == K_UPDATE || x->kind == K_CONTRACT || x->kind == K_REDUCE)
            broken(g, "fuse", v, "a node that no group computes");
    }
    free(live), free(count);
}

// A collective ends after it has begun; until then nothing else reads what it changes, and in between nothing at all.
// Those over stages begin in the order of their numbers.
typedef struct {
    Graph *g;
    uint8_t *written, *changed, *taken, *begun;  // by node; begun: by collective
    uint32_t batch; uint8_t batch_seg;
} Run;

static void run_start(Run *r, const Group *group)
{
    Graph *g = r->g;
    const Reshard *reshard = node_of(g, group->nodes[0])->u.reshard;
    r->begun[group->coll] = 1;
    for (size_t k = 0; k < vec_len(group->nodes); k++)
        if (reshard_in_place(g, group->nodes[k])) r->taken[node_of(g, group->nodes[k])->in[0]] = 1;
    if (!(reshard->key.mesh & MESH_PP)) return;
    if (group->seg == r->batch_seg && reshard->batch < r->batch)
        broken(g, "order", group->nodes[0], "collectives over stages do not begin in the order of their numbers");
    r->batch = reshard->batch, r->batch_seg = group->seg;
}

static void run_reads(Run *r, const Group *group)
{
    Graph *g = r->g;
    for (size_t k = 0; k < vec_len(group->reads); k++) {
        Val v = group->reads[k];
        if (!is_storage(node_of(g, v)) && node_of(g, v)->nin && !r->written[v]) broken(g, "order", v, "read before it is written");
        if (r->changed[leaf_of(g, v)]) broken(g, "order", v, "a parameter or state is read after its update");
        if (r->taken[v]) broken(g, "order", v, "read after a collective has changed it");
    }
}

// A kernel that updates a leaf, or a part of it, reads that and nothing else of the leaf.
static void check_updated(Graph *g, const Group *group)
{
    for (size_t k = 0; k < vec_len(group->writes); k++)
        for (size_t i = 0; i < vec_len(group->reads); i++) {
            Val w = group->writes[k], r = group->reads[i];
            if (is_storage(node_of(g, w)) && r != w && leaf_of(g, r) == leaf_of(g, w))
                broken(g, "order", w, "updated by a kernel that reads it as another part");
        }
}

void verify_order(Graph *g)
{
    size_t n = vec_len(g->nodes);
    Run r = {.g = g, .written = xcalloc(n, 1), .changed = xcalloc(n, 1), .taken = xcalloc(n, 1)};
    r.begun = xcalloc(vec_len(g->colls) + 1, 1);
    uint8_t seg = AT_INIT;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->seg < seg) broken(g, "order", 0, "groups are not sorted by segment");
        seg = group->seg;
        run_reads(&r, group);
        check_updated(g, group);
        if (group->kind == G_START) run_start(&r, group);
        if (group->kind == G_WAIT && !r.begun[group->coll]) broken(g, "order", group->nodes[0], "ended before it has begun");
        for (size_t k = 0; group->kind != G_START && k < vec_len(group->writes); k++) {
            Val v = group->writes[k], leaf = leaf_of(g, v);
            r.written[v] = 1;
            Kind kind = (Kind)node_of(g, leaf)->kind;
            if (kind == K_PARAM || kind == K_STATE) r.changed[leaf] = 1;
            if (r.taken[v]) broken(g, "order", v, "written after a collective has taken it");
        }
        for (size_t k = 0; k < vec_len(group->nodes); k++) r.written[group->nodes[k]] |= node_of(g, group->nodes[k])->kind == K_UPDATE;
    }
    free(r.written), free(r.changed), free(r.taken), free(r.begun);
}

// ---- place: every buffer inside its arena and aligned; sweep over offsets for overlaps of lifetimes
static const Graph *sorting;
static int by_place(const void *a, const void *b)
{
    const Buffer *x = &sorting->buffers[*(const uint32_t *)a], *y = &sorting->buffers[*(const uint32_t *)b];
    if (x->arena != y->arena) return x->arena < y->arena ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

// An ALL_REDUCE of what nothing reads after it begins; that and the order of writes are checked by the pass.
static bool reduced_over(const Graph *g, const Buffer *result, const Buffer *operand)
{
    const Node *x = &g->nodes[result->val];
    return x->kind == K_RESHARD && x->u.reshard->how == COLL_ALL_REDUCE && x->in[0] == operand->val;
}

// Operands and results are in their places from START to WAIT.
static void check_in_use(Graph *g)
{
    uint32_t *start = xcalloc(vec_len(g->colls) + 1, sizeof *start);
    for (uint32_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->kind == G_START) start[group->coll] = i;
        if (group->kind != G_WAIT) continue;
        for (size_t k = 0; k < vec_len(group->nodes); k++)
            for (int operand = 0; operand < 2; operand++) {
                Val v = operand ? node_of(g, group->nodes[k])->in[0] : group->nodes[k];
                const Buffer *b = &g->buffers[value_place(g, v).buffer];
                if (b->first > start[group->coll] || b->last < i) broken(g, "place", v, "a collective outlives its buffer");
            }
    }
    free(start);
}

static void check_transfers(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        Val v = g->transfers[i].val;
        const PlanArena *a = &g->arenas[g->buffers[value_place(g, v).buffer].arena];
        if (a->class_ < CLASS_FB) broken(g, "place", v, "what is sent or received has no slot");
    }
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        if (!g->buffer_of[v]) continue;
        Place p = value_place(g, v);
        if (p.stride && p.stride * (uint64_t)key_ranks(g, p.key) > g->buffers[p.buffer].bytes)
            broken(g, "place", v, "a buffer has no room for the parts of all ranks");
    }
}

void verify_place(Graph *g)
{
    size_t n = vec_len(g->buffers);
    check_in_use(g), check_transfers(g);
    uint32_t *sorted = xmalloc((n + 1) * sizeof *sorted);
    for (uint32_t i = 0; i < n; i++) sorted[i] = i;
    sorting = g;
    qsort(sorted, n, sizeof *sorted, by_place);
    for (size_t i = 0; i < n; i++) {
        const Buffer *x = &g->buffers[sorted[i]];
        if (x->offset % 64 || x->offset + x->bytes > g->arenas[x->arena].bytes)
            broken(g, "place", x->val, "a buffer outside its arena, or not aligned");
        for (size_t k = i + 1; k < n; k++) {
            const Buffer *y = &g->buffers[sorted[k]];
            if (y->arena != x->arena || y->offset >= x->offset + x->bytes) break;
            // same group, same position: checked by the pass
            bool in_place = x->last == y->first || y->last == x->first || reduced_over(g, x, y) || reduced_over(g, y, x);
            if (x->first <= y->last && y->first <= x->last && !(in_place && x->offset == y->offset))
                broken(g, "place", y->val, "two buffers that are alive together overlap");
        }
    }
    free(sorted);
}

void verify_shard(Graph *g) { graph_verify(g, "shard"); }
void verify_bucket(Graph *g) { graph_verify(g, "bucket"); }

void verify_emit(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (has_kernel(group) && group->kernel >= vec_len(g->kernels))
            broken(g, "emit", group->nodes[0], "a group without kernel");
        if (vec_len(group->args) != vec_len(group->arg_written)) broken(g, "emit", group->nodes[0], "argument lists disagree");
    }
    for (size_t i = 0; i < vec_len(g->kernels); i++)
        for (size_t k = 0; k < i; k++)
            if (g->kernels[i].text[0] == g->kernels[k].text[0]) broken(g, "emit", 0, "the same kernel twice");
}
