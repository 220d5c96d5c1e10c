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
    return k == K_INPUT || k == K_PARAM || k == K_STATE || k == K_TOTAL || k == K_SCALAR || k == K_CONST || k == K_INDEX;
}

void verify_save(Graph *g)
{
    graph_verify(g, "save");
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = node_of(g, v);
        for (int i = 0; i < x->nin; i++) {
            const Node *y = node_of(g, x->in[i]);
            if (y->seg > x->seg) broken(g, "save", v, "reads a value of a later segment");
            if (x->seg == SEG_B && y->seg == SEG_F && !free_to_read(g, x->in[i]) && !g->saved[x->in[i]])
                broken(g, "save", v, "backward reads a forward value that is not saved");
            if (x->seg == SEG_UPDATE && (y->seg == SEG_F || y->seg == SEG_B))
                broken(g, "save", v, "the update reads a value of one micro-batch");
        }
    }
}

// ---- select: a reduction runs over a suffix of its operand's axes, or keeps the last axis
void verify_select(Graph *g)
{
    graph_verify(g, "select");
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
// Maps, views and constants without a group are read through; sums, products and writes need one.
void verify_fuse(Graph *g)
{
    size_t n = vec_len(g->nodes);
    uint8_t *live = xcalloc(n, 1), *count = xcalloc(n, 1);
    graph_mark_live(g, live);
    for (size_t i = 0; i < vec_len(g->groups); i++)
        for (size_t k = 0; k < vec_len(g->groups[i].nodes); k++) {
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

void verify_order(Graph *g)
{
    size_t n = vec_len(g->nodes);
    uint8_t *written = xcalloc(n, 1), *changed = xcalloc(n, 1);
    SegmentId seg = SEG_INIT;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->seg < seg) broken(g, "order", 0, "groups are not sorted by segment");
        seg = group->seg;
        for (size_t k = 0; k < vec_len(group->reads); k++) {
            Val v = group->reads[k];
            if (node_of(g, v)->nin && !written[v]) broken(g, "order", v, "read before it is written");
            if (changed[v]) broken(g, "order", v, "a parameter or state is read after its update");
        }
        for (size_t k = 0; k < vec_len(group->writes); k++) {
            Val v = group->writes[k];
            written[v] = 1;
            Kind kind = (Kind)node_of(g, v)->kind;
            if (kind == K_PARAM || kind == K_STATE) changed[v] = 1;
        }
    }
    free(written), free(changed);
}

// ---- place: every buffer inside its arena and aligned; sweep over offsets for overlaps of lifetimes
static const Graph *sorting;
static int by_place(const void *a, const void *b)
{
    const Buffer *x = &sorting->buffers[*(const uint32_t *)a], *y = &sorting->buffers[*(const uint32_t *)b];
    if (x->arena != y->arena) return x->arena < y->arena ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

void verify_place(Graph *g)
{
    size_t n = vec_len(g->buffers);
    uint32_t *sorted = xmalloc((n + 1) * sizeof *sorted);
    for (uint32_t i = 0; i < n; i++) sorted[i] = i;
    sorting = g;
    qsort(sorted, n, sizeof *sorted, by_place);
    for (size_t i = 0; i < n; i++) {
        const Buffer *x = &g->buffers[sorted[i]];
        if (x->offset % 64 || x->offset + x->bytes > g->arena_bytes[x->arena])
            broken(g, "place", x->val, "a buffer outside its arena, or not aligned");
        for (size_t k = i + 1; k < n; k++) {
            const Buffer *y = &g->buffers[sorted[k]];
            if (y->arena != x->arena || y->offset >= x->offset + x->bytes) break;
            bool in_place = x->last == y->first || y->last == x->first;  // checked by the pass: same group, same position
            if (x->first <= y->last && y->first <= x->last && !(in_place && x->offset == y->offset))
                broken(g, "place", y->val, "two buffers that are alive together overlap");
        }
    }
    free(sorted);
}

void verify_emit(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->kind != G_GEMM && group->kernel >= vec_len(g->kernels))
            broken(g, "emit", group->nodes[0], "a group without kernel");
        if (vec_len(group->args) != vec_len(group->arg_written)) broken(g, "emit", group->nodes[0], "argument lists disagree");
    }
    for (size_t i = 0; i < vec_len(g->kernels); i++)
        for (size_t k = 0; k < i; k++)
            if (g->kernels[i].text[0] == g->kernels[k].text[0]) broken(g, "emit", 0, "the same kernel twice");
}
