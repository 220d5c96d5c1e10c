// dot.c: the graph as a picture for Graphviz, at four levels:
//   model   one box a layer (forward), the loss, the optimizer, and what flows between them
//   layer   the op calls and contractions of the forward pass
//   op      every node of the step, forward and backward, by segment
//   kernel  every launch, by segment; edges are buffers with their bytes
//
// A level is a function from nodes to boxes (dot_boxes.c) with labels (dot_label.c); here are the edges, which follow
// from the operands, and the text. At levels op and kernel segments lie below each other, and what a later segment
// reads is a dashed edge that has no say in where boxes lie. Collectives have boxes of their own (dot_coll.c); several
// stages stand side by side (dot_stages.c). Order is the graph's, so the text is deterministic.
//
// Traps: without newrank Graphviz takes edges between clusters for wishes, and the stack falls over. Values that are
// only read through (views, constants, index) belong to no box: edges pass them. At level kernel what is read from
// memory makes the edges, not the operands.
#include "dot.h"

// ---- pieces of labels
void dot_escape(Buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_printf(out, "\\%c", *s);
        else if (*s == '\n')
            buf_puts(out, "\\n");
        else if ((unsigned char)*s < 32)
            buf_puts(out, " ");
        else
            buf_write(out, s, 1);
    }
}

// ---- edges
static void find_edges(Picture *p)
{
    const Graph *g = p->g;
    Val *stack = NULL;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        if (!p->box_of[v]) continue;
        for (int i = 0; i < g->nodes[v].nin; i++) vec_push(stack, g->nodes[v].in[i]);
        while (vec_len(stack)) {
            Val w = vec_pop(stack);
            if (p->box_of[w]) {
                if (p->box_of[w] != p->box_of[v]) vec_push(p->edges, (Edge){p->box_of[w], p->box_of[v], w});
            } else if (g->nodes[w].kind != K_PARAM && !(g->nodes[w].seg == AT_INIT && g->nodes[w].nin)) {
                for (int i = 0; i < g->nodes[w].nin; i++) vec_push(stack, g->nodes[w].in[i]);
            }
        }
    }
    vec_free(stack);
}

static int by_ends(const void *a, const void *b)
{
    const Edge *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

// An edge to a later segment: it must not pull on the places of boxes.
static bool is_far(const Picture *p, const Edge *e)
{
    return p->stacked && p->boxes[e->from - 1].cluster != p->boxes[e->to - 1].cluster;
}

static void sort_edges(Picture *p)
{
    uint8_t *counted = xcalloc(vec_len(p->g->nodes), 1);
    if (p->edges) qsort(p->edges, vec_len(p->edges), sizeof *p->edges, by_ends);
    for (size_t i = 0; i < vec_len(p->edges); i++) {
        const Edge *e = &p->edges[i];
        if (is_far(p, e) && !p->boxes[e->from - 1].moves && !counted[e->value]++) p->boxes[e->from - 1].saved += value_bytes(p->g, e->value);
    }
    free(counted);
}

// ---- text
// The count of calls goes behind the first line.
static void put_box(const Picture *p, Buf *out, size_t i)
{
    const Box *box = &p->boxes[i];
    Buf b = {0};
    size_t line = strcspn(box->label, "\n");
    buf_write(&b, box->label, line);
    if (box->count > 1) buf_printf(&b, " x %u", box->count);
    buf_puts(&b, box->label + line);
    if (box->saved) buf_puts(&b, "\nsaved: "), buf_amount(&b, (double)box->saved, "B");
    buf_printf(out, "    n%s%zu [shape=%s, fillcolor=\"%s\", label=\"", p->prefix, i + 1, box->shape, box->color);
    dot_escape(out, b.s);
    buf_puts(out, "\"];\n");
    buf_free(&b);
}

static void put_edge_label(const Picture *p, Buf *out, Val v, bool shapes)
{
    Buf b = {0};
    if (shapes) dot_put_shape(p->g, &b, &p->g->nodes[v]), buf_puts(&b, "\n");
    buf_amount(&b, (double)value_bytes(p->g, v), "B");
    buf_puts(out, " [label=\""), dot_escape(out, b.s), buf_puts(out, "\"]");
    buf_free(&b);
}

static void put_edges(const Picture *p, Buf *out, const char *level)
{
    for (size_t i = 0; i < vec_len(p->edges); i++) {
        const Edge *e = &p->edges[i];
        if (i && e->from == e[-1].from && e->to == e[-1].to) continue;
        buf_printf(out, "  n%s%u -> n%s%u", p->prefix, e->from, p->prefix, e->to);
        if (is_far(p, e))
            buf_puts(out, " [style=dashed, constraint=false, color=\"#7f9db9\"]");
        else if (strcmp(level, "op"))
            put_edge_label(p, out, e->value, !strcmp(level, "model"));
        buf_puts(out, ";\n");
    }
}

// Stacks the clusters: what nothing in its cluster reads comes before a point that nobody sees, and that before what
// reads nothing in the next cluster.
static void put_stack(const Picture *p, Buf *out)
{
    size_t n = vec_len(p->boxes);
    uint8_t *reads = xcalloc(n + 1, 1), *read = xcalloc(n + 1, 1);
    for (size_t i = 0; i < vec_len(p->edges); i++)
        if (!is_far(p, &p->edges[i])) read[p->edges[i].from] = reads[p->edges[i].to] = 1;
    int above = 0;
    for (int c = 1; c <= (int)vec_len(p->clusters); c++) {
        bool any = false;
        for (size_t i = 1; i <= n; i++) {
            if (p->boxes[i - 1].cluster != c) continue;
            if (above && !reads[i]) buf_printf(out, "  s%s%d -> n%s%zu [style=invis, weight=0];\n", p->prefix, above, p->prefix, i);
            if (!read[i]) buf_printf(out, "  n%s%zu -> s%s%d [style=invis, weight=0];\n", p->prefix, i, p->prefix, c);
            any = true;
        }
        if (!any) continue;
        buf_printf(out, "  s%s%d [shape=point, style=invis, width=0.01];\n", p->prefix, c);
        above = c;
    }
    free(reads), free(read);
}

static void put_cluster(const Picture *p, Buf *out, size_t c)
{
    bool any = false;
    for (size_t i = 0; i < vec_len(p->boxes); i++) any |= p->boxes[i].cluster == (int)c + 1;
    if (!any) return;
    buf_printf(out, "  subgraph cluster_%s%zu {\n    color=\"#bbbbbb\"; fontsize=12; label=\"", p->prefix, c);
    dot_escape(out, p->clusters[c]);
    buf_puts(out, "\";\n");
    for (size_t i = 0; i < vec_len(p->boxes); i++)
        if (p->boxes[i].cluster == (int)c + 1) put_box(p, out, i);
    buf_puts(out, "  }\n");
}

void dot_head(const Graph *g, bool several, bool stacked, Buf *out)
{
    buf_puts(out, "digraph \"");
    dot_escape(out, g->model);
    buf_puts(out, "\" {\n  nslimit=1; nslimit1=1; mclimit=0.3; rankdir=TB; fontname=\"Helvetica\";\n"
                  "  node [style=filled, fontname=\"Helvetica\", fontsize=11, color=\"#888888\"];\n"
                  "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\", fontcolor=\"#555555\"];\n");
    if (several || stacked) buf_printf(out, "  newrank=true; nodesep=%s; ranksep=%s;\n", stacked ? "0.12" : "0.3", stacked ? "0.25" : "0.3");
}

void dot_contents(const Picture *p, const char *level, Buf *out)
{
    for (size_t i = 0; i < vec_len(p->boxes); i++)
        if (!p->boxes[i].cluster) put_box(p, out, i);
    for (size_t c = 0; c < vec_len(p->clusters); c++) put_cluster(p, out, c);
    put_edges(p, out, level);
    if (p->stacked) put_stack(p, out);
}

// ---- the picture
static Picture picture_new(const Graph *g)
{
    Picture p = {.g = g, .box_of = xcalloc(vec_len(g->nodes), sizeof *p.box_of)};
    p.like = xcalloc((size_t)g->nlayers + 2, sizeof *p.like);
    p.rest = xcalloc((size_t)(g->nlayers + 2) * SEG_COUNT, sizeof *p.rest);
    p.coll_of = xcalloc(vec_len(g->nodes), sizeof *p.coll_of);
    p.coll_box = xcalloc(vec_len(g->colls) + 1, sizeof *p.coll_box);
    if (g->nstages > 1) snprintf(p.prefix, sizeof p.prefix, "%d_", g->stage);
    return p;
}

static void picture_free(Picture *p)
{
    for (size_t i = 0; i < vec_len(p->boxes); i++) free(p->boxes[i].label);
    for (size_t i = 0; i < vec_len(p->clusters); i++) free(p->clusters[i]);
    vec_free(p->boxes), vec_free(p->clusters), vec_free(p->edges), vec_free(p->leaves);
    free(p->box_of), free(p->like), free(p->rest), free(p->coll_of), free(p->coll_box);
}

static Picture picture_of(const Graph *g, const char *level)
{
    Picture p = picture_new(g);
    dot_find_colls(&p);
    dot_boxes(&p, level);
    if (strcmp(level, "kernel")) find_edges(&p);
    if (p.stacked) dot_bucket_edges(&p);
    dot_add_leaf_lines(&p);
    sort_edges(&p);
    return p;
}

void dot(const Program *prog, const char *path, const char *level)
{
    Buf out = {0};
    int n = prog->nstages;
    Picture *stages = xcalloc((size_t)n, sizeof *stages);
    for (int s = 0; s < n; s++) stages[s] = picture_of(prog->stages[s], level);
    dot_head(prog->stages[0], n > 1, stages[0].stacked, &out);
    n > 1 ? dot_stages(stages, n, level, &out) : dot_contents(&stages[0], level, &out);
    buf_puts(&out, "}\n");
    if (!write_file_atomic(path, out.s, out.n)) fatal("--dot %s:", path);
    for (int s = 0; s < n; s++) picture_free(&stages[s]);
    free(stages);
    buf_free(&out);
}
