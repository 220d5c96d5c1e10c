// dot.c: the graph as a picture for Graphviz, at four levels:
//   model   one box a layer (forward), the loss, the optimizer, and what flows between them
//   layer   the op calls and contractions of the forward pass
//   op      every node of the step, forward and backward, clustered by segment
//   kernel  every launch, clustered by segment; edges are buffers with their bytes
//
// A level is a function from nodes to boxes (dot_boxes.c); here are the edges, which follow from the operands, and the
// text. Order is the graph's, so the text is deterministic.
//
// Traps: values that are only read through (views, constants, index) belong to no box: edges pass them. At level kernel
// what is read from memory makes the edges, not the operands.
#include "dot.h"

// ---- pieces of labels
static void escape(Buf *out, const char *s)
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

void dot_put_bytes(Buf *b, uint64_t n)
{
    if (n >= 10000000)
        buf_printf(b, "%.0f MB", (double)n / 1e6);
    else if (n >= 10000)
        buf_printf(b, "%.0f kB", (double)n / 1e3);
    else
        buf_printf(b, "%llu B", (unsigned long long)n);
}

void dot_put_shape(const Graph *g, Buf *b, const Node *x)
{
    for (int i = 0; i < x->naxes; i++)
        buf_printf(b, "%s%s %lld", i ? ", " : "", axis_name(g, x->axes[i]), (long long)extent_of(g, x->axes[i]));
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
            } else if (g->nodes[w].kind != K_PARAM && !(g->nodes[w].seg == SEG_INIT && g->nodes[w].nin)) {
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

// ---- text
static void put_box(const Picture *p, Buf *out, size_t i)
{
    buf_printf(out, "    n%zu [shape=%s, fillcolor=\"%s\", label=\"", i + 1, p->boxes[i].shape, p->boxes[i].color);
    escape(out, p->boxes[i].label);
    buf_puts(out, "\"];\n");
}

static void put_edges(Picture *p, Buf *out, bool shapes)
{
    const Graph *g = p->g;
    if (p->edges) qsort(p->edges, vec_len(p->edges), sizeof *p->edges, by_ends);
    for (size_t i = 0; i < vec_len(p->edges); i++) {
        const Edge *e = &p->edges[i];
        if (i && e->from == e[-1].from && e->to == e[-1].to) continue;
        Buf b = {0};
        if (shapes) dot_put_shape(g, &b, &g->nodes[e->value]), buf_puts(&b, "\n");
        dot_put_bytes(&b, value_bytes(g, e->value));
        buf_printf(out, "  n%u -> n%u [label=\"", e->from, e->to);
        escape(out, b.s);
        buf_puts(out, "\"];\n");
        buf_free(&b);
    }
}

static void put_cluster(const Picture *p, Buf *out, size_t c)
{
    bool any = false;
    for (size_t i = 0; i < vec_len(p->boxes); i++) any |= p->boxes[i].cluster == (int)c + 1;
    if (!any) return;
    buf_printf(out, "  subgraph cluster_%zu {\n    color=\"#bbbbbb\"; fontsize=12; label=\"", c);
    escape(out, p->clusters[c]);
    buf_puts(out, "\";\n");
    for (size_t i = 0; i < vec_len(p->boxes); i++)
        if (p->boxes[i].cluster == (int)c + 1) put_box(p, out, i);
    buf_puts(out, "  }\n");
}

static void put_picture(Picture *p, Buf *out, bool shapes)
{
    buf_puts(out, "digraph \"");
    escape(out, p->g->model);
    buf_puts(out, "\" {\n  nslimit=1; nslimit1=1; mclimit=0.3; rankdir=TB; fontname=\"Helvetica\";\n"
                  "  node [style=filled, fontname=\"Helvetica\", fontsize=11, color=\"#888888\"];\n"
                  "  edge [fontname=\"Helvetica\", fontsize=9, color=\"#555555\", fontcolor=\"#555555\"];\n");
    for (size_t i = 0; i < vec_len(p->boxes); i++)
        if (!p->boxes[i].cluster) put_box(p, out, i);
    for (size_t c = 0; c < vec_len(p->clusters); c++) put_cluster(p, out, c);
    put_edges(p, out, shapes);
    buf_puts(out, "}\n");
}

// ---- the picture
static Picture picture_new(const Graph *g)
{
    Picture p = {.g = g, .box_of = xcalloc(vec_len(g->nodes), sizeof *p.box_of)};
    p.like = xcalloc((size_t)g->nlayers + 2, sizeof *p.like);
    p.rest = xcalloc((size_t)(g->nlayers + 2) * SEG_COUNT, sizeof *p.rest);
    p.layer_of = xcalloc(vec_len(g->nodes), sizeof *p.layer_of);
    return p;
}

static void picture_free(Picture *p)
{
    for (size_t i = 0; i < vec_len(p->boxes); i++) free(p->boxes[i].label);
    for (size_t i = 0; i < vec_len(p->clusters); i++) free(p->clusters[i]);
    vec_free(p->boxes), vec_free(p->clusters), vec_free(p->edges);
    free(p->box_of), free(p->like), free(p->rest), free(p->layer_of);
}

void dot(const Graph *g, const char *path, const char *level)
{
    bool shapes = !strcmp(level, "model") || !strcmp(level, "layer");
    Picture p = picture_new(g);
    Buf out = {0};
    dot_boxes(&p, level);
    if (strcmp(level, "kernel")) find_edges(&p);
    put_picture(&p, &out, shapes);
    if (!write_file_atomic(path, out.s, out.n)) fatal("--dot %s:", path);
    buf_free(&out);
    picture_free(&p);
}
