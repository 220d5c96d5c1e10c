// dot_label.c: the text in the boxes of a picture.
//
// At levels op and kernel what is read from memory and computed by no box (parameters, states, inputs, totals) is a
// line in the label of who reads it: boxes of their own would be most of the picture's width.
//
// Trap: a parameter's short name has no layer, so only what is drawn with that layer may use it.
#include "dot.h"

void dot_put_shape(const Graph *g, Buf *b, const Node *x)
{
    for (int i = 0; i < x->naxes; i++)
        buf_printf(b, "%s%s %lld", i ? ", " : "", axis_name(g, x->axes[i]), (long long)extent_of(g, x->axes[i]));
}

// ---- names
// The name without that layer's name and without ".weight".
static void put_short_name(const Graph *g, Buf *b, int param, int layer)
{
    const char *name = g->params[param].name;
    if (layer >= 0 && layer < g->nlayers) {
        size_t n = strlen(g->layers[layer]);
        if (!strncmp(name, g->layers[layer], n) && name[n] == '.') name += n + 1;
    }
    size_t n = strlen(name), tail = strlen(".weight");
    if (n > tail && !strcmp(name + n - tail, ".weight")) n -= tail;
    buf_write(b, name, n);
}

static void put_leaf_name(const Graph *g, Buf *b, Val v, int layer)
{
    const Node *x = &g->nodes[leaf_of(g, v)];
    int param = x->kind == K_PARAM   ? (int)x->u.id
                : x->kind == K_STATE ? g->states[x->u.id].param
                : x->kind == K_TOTAL ? g->accs[x->u.id].param
                                     : -1;
    if (x->kind == K_INPUT) buf_puts(b, g->inputs[x->u.id].name);
    if (x->kind == K_STATE) buf_printf(b, "%s of ", g->states[x->u.id].name);
    if (x->kind == K_TOTAL && param >= 0) buf_puts(b, "gradient of ");
    if (x->kind == K_TOTAL && param < 0) buf_printf(b, "total of %s", g->accs[x->u.id].name);
    if (param >= 0) put_short_name(g, b, param, layer);
}

Val dot_weight_of(const Graph *g, Val v)
{
    const Node *x = &g->nodes[v];
    for (int i = 0; i < x->nin && x->kind == K_CONTRACT; i++) {
        Val w = x->in[i];
        while (g->nodes[w].nin == 1) w = g->nodes[w].in[0];
        if (g->nodes[w].kind == K_PARAM) return w;
    }
    return 0;
}

// ---- labels of boxes
static void put_operation(const Graph *g, Buf *b, Val v, bool detail)
{
    const Node *x = &g->nodes[v];
    const char *own = x->kind == K_MAP ? fn_info[x->fn].name : kind_info[x->kind].name;
    static const char *const reductions[] = {"sum", "max", "min"};
    if (x->kind == K_REDUCE) own = reductions[x->reduce];
    if (x->op) buf_puts(b, g->ops[x->op].name);
    if (x->op && detail && strcmp(own, g->ops[x->op].name)) buf_printf(b, ": %s", own);
    if (!x->op) buf_puts(b, own);
    if (dot_weight_of(g, v)) buf_puts(b, " "), put_leaf_name(g, b, dot_weight_of(g, v), x->layer);
}

static void put_line_of(const Graph *g, Buf *b, Val v, const char *before)
{
    Buf place = {0};
    const char *where = node_place(g, v, &place), *line = strrchr(where, ' ');
    if (*where) buf_printf(b, "%s%s", before, line ? line + 1 : where);
    buf_free(&place);
}

char *dot_node_label(const Graph *g, Val v)
{
    const Node *x = &g->nodes[v];
    Buf b = {0};
    if (x->kind == K_PARAM && g->nstages > 1) {  // side by side there is less room
        put_short_name(g, &b, (int)x->u.id, x->layer);
    } else if (x->kind == K_PARAM) {
        buf_puts(&b, g->params[x->u.id].name);
    } else if (x->kind == K_INPUT) {
        buf_puts(&b, g->inputs[x->u.id].name);
    } else {
        put_operation(g, &b, v, false), put_line_of(g, &b, v, "\n");
    }
    buf_puts(&b, "\n");
    dot_put_shape(g, &b, x);
    return b.s;
}

char *dot_op_label(const Graph *g, Val v, bool folded)
{
    Buf b = {0};
    put_operation(g, &b, v, !folded || !g->nodes[v].op);
    put_line_of(g, &b, v, folded ? "\n" : ", ");
    if (folded) return b.s;
    buf_puts(&b, "\n"), dot_put_shape(g, &b, &g->nodes[v]);
    buf_puts(&b, g->nodes[v].naxes ? ": " : ""), buf_amount(&b, (double)value_bytes(g, v), "B");
    return b.s;
}

static void put_stem(Buf *b, const char *kernel) // "adamw_42": "adamw"
{
    const char *number = strrchr(kernel, '_');
    buf_write(b, kernel, number ? (size_t)(number - kernel) : strlen(kernel));
}

char *dot_group_label(const Graph *g, const Group *group, bool folded)
{
    Buf b = {0}, place = {0};
    const PlanGemm *x = &group->gemm;
    if (group->kind == G_GEMM)
        buf_printf(&b, "GEMM %llu x %llu x %llu\n%s", (unsigned long long)x->m, (unsigned long long)x->n,
                   (unsigned long long)x->k, node_place(g, group->nodes[0], &place));
    else if (folded)
        put_stem(&b, g->kernels[group->kernel].name), buf_printf(&b, "\n%s", g->kernels[group->kernel].label);
    else
        buf_printf(&b, "%s\n%s", g->kernels[group->kernel].name, g->kernels[group->kernel].label);
    if (!folded) buf_puts(&b, "\n"), buf_amount(&b, (double)group->bytes, "B");
    buf_free(&place);
    return b.s;
}

// ---- lines of leaves
static int by_box(const void *a, const void *b)
{
    const Leaf *x = a, *y = b;
    if (x->box != y->box) return x->box < y->box ? -1 : 1;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->added != y->added ? x->added - y->added : x->layer - y->layer;
}

static const char *kind_of_leaf(const Graph *g, Val v)
{
    const Node *x = &g->nodes[v];
    if (x->kind == K_TOTAL && g->accs[x->u.id].param >= 0) return "gradient";
    return x->kind == K_PARAM ? "parameter" : kind_info[x->kind].name;
}

static void put_counts(const Graph *g, Buf *b, const Leaf *leaf, size_t n)
{
    static const char *const kinds[] = {"input", "parameter", "state", "gradient", "total"};
    const char *between = "\nreads ";
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t count = 0;
        for (size_t i = 0; i < n; i++) count += !strcmp(kind_of_leaf(g, leaf[i].value), kinds[k]);
        if (count) buf_printf(b, "%s%zu %s%s", between, count, kinds[k], count == 1 ? "" : "s"), between = ", ";
    }
}

// The lines of one box; leaf[0..n) are its own, each once.
static void put_leaves(const Graph *g, Buf *b, const Leaf *leaf, size_t n)
{
    enum { MANY = 3 };
    const char *between = "\nreads ";
    if (n > MANY) {
        put_counts(g, b, leaf, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (leaf[i].added) continue;
        buf_puts(b, between), put_leaf_name(g, b, leaf[i].value, leaf[i].layer), between = ", ";
    }
    for (size_t i = 0; i < n; i++)
        if (leaf[i].added) buf_puts(b, "\nadds to "), put_leaf_name(g, b, leaf[i].value, leaf[i].layer);
}

void dot_add_leaf_lines(Picture *p)
{
    Leaf *leaf = p->leaves;
    size_t n = 0, all = vec_len(leaf);
    if (leaf) qsort(leaf, all, sizeof *leaf, by_box);
    for (size_t i = 0; i < all; i++) { // one value added to and read: added to
        bool again = i + 1 < all && leaf[i].box == leaf[i + 1].box && leaf[i].value == leaf[i + 1].value;
        if (!again) leaf[n++] = leaf[i];
    }
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && leaf[end].box == leaf[i].box;) end++;
        Box *box = &p->boxes[leaf[i].box - 1];
        if (box->rest) continue;
        Buf b = {0};
        buf_puts(&b, box->label);
        put_leaves(p->g, &b, leaf + i, end - i);
        free(box->label);
        box->label = b.s;
    }
}
