// dot_stages.c: the pictures of several stages as one: a cluster each, side by side from the first to the last, and what
// crosses between them as edges with their bytes.
//
// Traps: an edge points down for Graphviz, and a stage would begin below the end of the one before; so the edges between
// stages are written from the receiver, which stands above, to the sender, and their arrows point back. Points that nobody sees stand in one rank above the stages, in order: Graphviz keeps that order.
#include "dot.h"
#include "report.h"

static const char cut_style[] = "dir=back, weight=0, penwidth=2, color=\"#c0712f\", fontcolor=\"#c0712f\", fontsize=10";

// The box that computes v, through what is only read.
static uint32_t box_behind(const Picture *p, Val v)
{
    while (!p->box_of[v] && p->g->nodes[v].nin) v = p->g->nodes[v].in[0];
    return p->box_of[v];
}

static const Transfer *other_side(const Picture *stages, const Transfer *send)
{
    const Graph *g = stages[send->peer].g;
    for (size_t i = 0; i < vec_len(g->transfers); i++)
        if (g->transfers[i].tag == send->tag && !g->transfers[i].send) return &g->transfers[i];
    return NULL;
}

// Where only forward is shown, gradients go back along the edge of what they are of.
static uint64_t bytes_back(const Picture *stages, int stage, const Transfer *send)
{
    const Graph *g = stages[stage].g;
    uint64_t bytes = 0;
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        if (!t->send && t->backward && t->peer == send->peer) bytes += transfer_bytes(g, t);
    }
    return bytes;
}

static void put_cut(const Picture *stages, int stage, const Transfer *send, bool forward_only, Buf *out)
{
    const Transfer *recv = other_side(stages, send);
    if (!recv || (forward_only && send->backward)) return;
    uint32_t from = box_behind(&stages[stage], send->val), to = stages[send->peer].box_of[recv->val];
    if (!from || !to) return;
    uint64_t back = forward_only ? bytes_back(stages, stage, send) : 0;
    bool right = (int)send->peer > stage;
    buf_printf(out, "  n%s%u:%c -> n%s%u:%c [%s, label=\"SEND ", stages[send->peer].prefix, to, right ? 'w' : 'e', stages[stage].prefix,
               from, right ? 'e' : 'w', cut_style);
    buf_amount(out, (double)transfer_bytes(stages[stage].g, send), "B");
    if (back) buf_puts(out, "\\nback: "), buf_amount(out, (double)back, "B");
    buf_puts(out, "\"];\n");
}

// What nothing reads lies above the buckets.
static void put_order(const Picture *p, Buf *out)
{
    Val last = 0;
    for (Val v = 1; v < vec_len(p->g->nodes); v++)
        if (p->box_of[v] && !p->coll_of[v]) last = v;
    for (size_t i = 0; last && i < vec_len(p->boxes); i++)
        if (!strcmp(p->boxes[i].shape, "box3d"))
            buf_printf(out, "  n%s%u -> n%s%zu [style=invis];\n", p->prefix, p->box_of[last], p->prefix, i + 1);
}

static void put_tops(const Picture *stages, int n, Buf *out)
{
    for (int s = 0; s < n; s++) {
        const Picture *p = &stages[s];
        uint8_t *reads = xcalloc(vec_len(p->boxes) + 1, 1);
        for (size_t i = 0; i < vec_len(p->edges); i++) reads[p->edges[i].to] = 1;
        for (size_t i = 1; i <= vec_len(p->boxes); i++)
            if (!reads[i] && (!p->stacked || p->boxes[i - 1].cluster <= SEG_F + 1))
                buf_printf(out, "  top%d -> n%s%zu [style=invis, weight=0];\n", s, p->prefix, i);
        free(reads);
    }
    buf_puts(out, "  { rank=same; ");
    for (int s = 0; s < n; s++) buf_printf(out, "%stop%d", s ? " -> " : "", s);
    buf_puts(out, " [style=invis]; }\n");
}

void dot_stages(const Picture *stages, int n, const char *level, Buf *out)
{
    bool forward_only = !stages[0].stacked;
    for (int s = 0; s < n; s++) {
        const Graph *g = stages[s].g;
        int64_t ranks = mesh_size(g->mesh.size, MESH_ALL & ~MESH_PP);
        buf_printf(out, "  subgraph cluster_stage%d {\n  style=\"rounded,filled\"; fillcolor=\"#fafafa\"; color=\"#999999\"; "
                        "fontsize=16; label=\"stage %d", s, s);
        if (ranks > 1) buf_printf(out, ": %lld ranks", (long long)ranks);
        buf_printf(out, "\";\n  top%d [shape=point, style=invis, width=0.01];\n", s);
        dot_contents(&stages[s], level, out);
        if (forward_only) put_order(&stages[s], out);
        buf_puts(out, "  }\n");
    }
    put_tops(stages, n, out);
    for (int s = 0; s < n; s++)
        for (size_t i = 0; i < vec_len(stages[s].g->transfers); i++)
            if (stages[s].g->transfers[i].send) put_cut(stages, s, &stages[s].g->transfers[i], forward_only, out);
}
