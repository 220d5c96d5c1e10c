// dot_boxes.c: which nodes are which boxes of a picture, at each level.
//
// At all levels but the first, of equal layers in a row only the first is shown in full, the others as one box:
// Graphviz takes minutes for thousands of boxes, and nobody reads them. So what comes first is which layers are equal;
// then a function a level fills box_of. At levels op and kernel, what runs once a step or less (the segments init, prep
// and update) is folded further: calls of the same kind from the same line are one box, over all parameters.
//
// Traps: an op call that is one box is labelled by its last node, its result: level layer goes backward. At levels op
// and kernel leaves have no box: dot_label.c makes lines of them.
#include "dot.h"

// ---- nodes
static bool is_forward(const Node *x)
{
    return !x->backward && x->seg != AT_UPDATE && x->kind != K_TOTAL && x->kind != K_STATE && x->kind != K_ACCUMULATE;
}

static bool read_through(const Node *x)
{
    return x->kind == K_CONST || x->kind == K_INDEX || x->kind == K_SCALAR || x->kind == K_VIEW || x->kind == K_PART;
}

static const char *node_color(const Node *x)
{
    if (x->kind == K_CONTRACT) return "#dbe9f6";
    if (x->kind == K_ATTENTION || x->kind == K_ATTENTION_GRAD) return "#d9f0dd";
    return x->kind == K_PARAM || x->kind == K_INPUT || x->kind == K_STATE ? "#f2f2f2" : "#fbf3d5";
}

static const char *node_shape(const Node *x)
{
    return dot_is_leaf(x) ? "oval" : "box";
}

// ---- boxes
uint32_t dot_add_box(Picture *p, char *label, const char *shape, const char *color, int cluster)
{
    vec_push(p->boxes, (Box){label, shape, color, cluster, .count = 1});
    return (uint32_t)vec_len(p->boxes);
}

static const char *layer_name(const Graph *g, int layer)
{
    return layer < 0 ? "before the layers" : layer >= g->nlayers ? "after the layers" : g->layers[layer];
}

static uint64_t layer_parameters(const Graph *g, int layer)
{
    uint64_t n = 0;
    uint8_t *seen = xcalloc(vec_len(g->params) + 1, 1);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        if (!is_forward(x) || x->layer != layer) continue;
        for (int i = 0; i < x->nin; i++) {
            const Node *y = &g->nodes[x->in[i]];
            if (y->kind != K_PARAM || seen[y->u.id]++) continue;
            n += (uint64_t)elements(g, x->in[i]);
        }
    }
    free(seen);
    return n;
}

static uint32_t box_of_layer(Picture *p, int layer, int last)
{
    Buf b = {0};
    buf_puts(&b, layer_name(p->g, layer));
    if (last > layer) buf_printf(&b, " .. %s\n%d layers like the one before", layer_name(p->g, last), last - layer + 1);
    uint64_t n = 0;
    for (int i = layer; i <= last; i++) n += layer_parameters(p->g, i);
    buf_printf(&b, "\n%.2fM parameters", (double)n / 1e6);
    return dot_add_box(p, b.s, "box", "#dbe9f6", 0);
}

// ---- equal layers
static uint64_t mix(uint64_t h, uint64_t v)
{
    return (h ^ v) * 0x9E3779B97F4A7C15u ^ (h >> 29);
}

static uint64_t *layer_signatures(const Graph *g)
{
    uint64_t *h = xcalloc((size_t)g->nlayers + 2, sizeof *h);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        if (!is_forward(x) || x->nin == 0 || x->seg == AT_INIT) continue; // tables are shared
        uint64_t *s = &h[x->layer + 1];
        *s = mix(*s, (uint64_t)x->kind << 16 | (uint64_t)x->fn << 8 | x->dtype);
        for (int i = 0; i < x->naxes; i++) *s = mix(*s, x->axes[i]);
    }
    return h;
}

// Finds the layers that are like the one before them, forward.
static void find_equal_layers(Picture *p)
{
    const Graph *g = p->g;
    uint64_t *signature = layer_signatures(g);
    for (int i = 1; i < g->nlayers; i++)
        if (signature[i + 1] == signature[i]) p->like[i + 1] = p->like[i] ? p->like[i] : i;
    free(signature);
}

static bool in_rest(const Picture *p, Val v)
{
    int layer = p->g->nodes[v].layer;
    return layer >= 0 && layer < p->g->nlayers && p->like[layer + 1];
}

// The box of all layers that are like the one of node x and not shown, in x's segment; 0: x is shown.
static uint32_t box_of_rest(Picture *p, Val v, SegmentId seg, int cluster)
{
    int layer = p->g->nodes[v].layer;
    if (!in_rest(p, v) || !p->g->nodes[v].nin) return 0;
    int first = layer, last = layer;
    while (first > 0 && p->like[first] == p->like[layer + 1]) first--;
    while (last + 1 < p->g->nlayers && p->like[last + 2] == p->like[layer + 1]) last++;
    uint32_t *box = &p->rest[(first + 1) * SEG_COUNT + seg];
    if (!*box) {
        *box = box_of_layer(p, first, last);
        p->boxes[*box - 1].cluster = cluster;
        p->boxes[*box - 1].rest = true;
    }
    return *box;
}

// ---- level model
static void boxes_model(Picture *p)
{
    const Graph *g = p->g;
    uint32_t *layers = xcalloc((size_t)g->nlayers + 2, sizeof *layers), optimizer = 0;
    dot_recv_boxes(p, false);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        if (x->kind == K_INPUT)
            p->box_of[v] = dot_add_box(p, xstrdup(g->inputs[x->u.id].name), "oval", "#f2f2f2", 0);
        else if (x->kind == K_UPDATE) {
            if (!optimizer) optimizer = dot_add_box(p, xstrdup("backward, then the optimizer"), "box", "#f6e3db", 0);
        } else if (is_forward(x) && x->nin && !read_through(x) && x->seg != AT_INIT) {
            uint32_t *box = &layers[x->layer + 1];
            if (!*box) *box = box_of_layer(p, x->layer, x->layer);
            p->box_of[v] = *box;
        }
    }
    if (optimizer && g->loss && p->box_of[g->loss]) vec_push(p->edges, (Edge){p->box_of[g->loss], optimizer, g->loss});
    dot_bucket_boxes(p);
    free(layers);
}

// ---- level layer
// An op call is one box, labelled by its last node (its result); so the boxes are made from the end.
static void boxes_layer(Picture *p)
{
    const Graph *g = p->g;
    uint32_t *calls = xcalloc(vec_len(g->ops) + 1, sizeof *calls);
    dot_recv_boxes(p, false);
    for (Val v = (Val)vec_len(g->nodes); v-- > 1;) {
        const Node *x = &g->nodes[v];
        if (!is_forward(x) || read_through(x) || (x->nin && x->seg == AT_INIT) || x->kind == K_PARAM || x->kind == K_RECV) continue;
        if ((p->box_of[v] = box_of_rest(p, v, SEG_F, 0))) continue;
        uint32_t own = 0, *box = x->op ? &calls[x->op] : &own;
        int cluster = x->nin && x->layer >= 0 && x->layer < g->nlayers ? x->layer + 1 : 0;
        if (p->coll_of[v]) {
            p->box_of[v] = dot_coll_box(p, v, cluster);
            continue;
        }
        if (!*box) *box = dot_add_box(p, dot_node_label(g, v), node_shape(x), node_color(x), cluster);
        p->box_of[v] = *box;
    }
    for (Val v = 1; v < vec_len(g->nodes); v++) { // parameters of what is shown in full
        const Node *x = &g->nodes[v];
        bool shown = is_forward(x) && p->box_of[v] && !in_rest(p, v);
        for (int i = 0; i < x->nin && shown; i++) {
            Val w = x->in[i];
            if (g->nodes[w].kind == K_PARAM && !p->box_of[w]) {
                int cluster = x->layer >= 0 && x->layer < g->nlayers ? x->layer + 1 : 0;
                p->box_of[w] = dot_add_box(p, dot_node_label(g, w), "oval", "#f2f2f2", cluster);
            }
        }
    }
    for (int i = 0; i < g->nlayers; i++) vec_push(p->clusters, xstrdup(g->layers[i]));
    dot_bucket_boxes(p);
    free(calls);
}

// ---- levels op and kernel
static void segment_clusters(Picture *p)
{
    static const char *const names[SEG_COUNT] = {"init: once", "prep: once a step", "forward", "backward",
                                                 "backward of weights", "update"};
    for (int s = 0; s < SEG_COUNT; s++) vec_push(p->clusters, xstrdup(names[s]));
    p->stacked = true;
}

static bool is_folded(uint8_t seg)
{
    return seg <= AT_PREP || seg == AT_UPDATE;
}

// The box of that label in the cluster: the one there is, counted once more, or a new one. Owns the label.
static uint32_t fold_box(Picture *p, char *label, const char *color, int cluster)
{
    for (size_t i = 0; i < vec_len(p->boxes); i++) {
        if (p->boxes[i].cluster != cluster || strcmp(p->boxes[i].label, label)) continue;
        p->boxes[i].count++;
        free(label);
        return (uint32_t)i + 1;
    }
    return dot_add_box(p, label, "box", color, cluster);
}

// ---- level op
static void add_op_leaves(Picture *p, Val v)
{
    const Graph *g = p->g;
    const Node *x = &g->nodes[v];
    if (x->kind == K_ACCUMULATE) vec_push(p->leaves, (Leaf){p->box_of[v], g->accs[x->u.id].total, x->layer, true});
    for (int i = 0; i < x->nin; i++) {
        Val w = x->in[i];
        if (dot_is_leaf(&g->nodes[w]) && w != dot_weight_of(g, v) && !p->box_of[w] && !p->coll_of[v])
            vec_push(p->leaves, (Leaf){p->box_of[v], w, x->layer, false});
    }
}

static uint32_t op_box(Picture *p, Val v, uint32_t *calls)
{
    const Node *x = &p->g->nodes[v];
    int cluster = (int)seg_id(x->seg) + 1;
    if (p->coll_of[v] && (!in_rest(p, v) || is_folded(x->seg))) return dot_coll_box(p, v, seg_id(dot_coll_seg(p, v)) + 1);
    if (!is_folded(x->seg)) {
        uint32_t box = box_of_rest(p, v, seg_id(x->seg), cluster);
        return box ? box : dot_add_box(p, dot_op_label(p->g, v, false), "box", node_color(x), cluster);
    }
    uint32_t own = 0, *box = x->op ? &calls[x->op] : &own;
    if (!*box || p->boxes[*box - 1].cluster != cluster)
        *box = fold_box(p, dot_op_label(p->g, v, true), node_color(x), cluster);
    return *box;
}

static void boxes_op(Picture *p)
{
    const Graph *g = p->g;
    uint32_t *calls = xcalloc(vec_len(g->ops) + 1, sizeof *calls);
    uint8_t *live = xcalloc(vec_len(g->nodes), 1);
    graph_mark_live(g, live);
    segment_clusters(p);
    dot_recv_boxes(p, true);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        if (!live[v] || dot_is_leaf(x) || x->kind == K_CONST || x->kind == K_INDEX || x->kind == K_SCALAR) continue;
        p->box_of[v] = op_box(p, v, calls);
        add_op_leaves(p, v);
    }
    free(live), free(calls);
}

// ---- level kernel
// Edges are what is read from memory.
static void edges_kernel(Picture *p, const Group *group, int layer)
{
    uint32_t to = p->box_of[group->nodes[0]];
    bool lists = group->kind == G_START || group->kind == G_WAIT;  // what it moves is in its label
    for (size_t k = 0; k < vec_len(group->reads); k++) {
        Val v = group->reads[k];
        if (!p->box_of[v] && lists) continue;
        if (!p->box_of[v])
            vec_push(p->leaves, (Leaf){to, v, layer, false});
        else if (p->box_of[v] != to)
            vec_push(p->edges, (Edge){p->box_of[v], to, v});
    }
    for (size_t k = 0; k < vec_len(group->writes) && !lists; k++)
        if (p->g->nodes[group->writes[k]].kind == K_TOTAL)
            vec_push(p->leaves, (Leaf){to, group->writes[k], layer, true});
}

// The node that says which layer a group is drawn with.
static Val group_node(const Graph *g, const Group *group)
{
    for (size_t k = 0; k < vec_len(group->nodes); k++) {
        int layer = g->nodes[group->nodes[k]].layer;
        if (layer >= 0 && layer < g->nlayers) return group->nodes[k];
    }
    return group->nodes[0];
}

static uint32_t kernel_box(Picture *p, const Group *group)
{
    static const char *const colors[] = {"#fbf3d5", "#fbf3d5", "#dbe9f6", "#d9f0dd", "#d9f0dd", "#f6e3db"};
    int cluster = (int)seg_id(group->seg) + 1;
    Val first = group->nodes[0];
    if (group->kind == G_WAIT && (!in_rest(p, first) || is_folded(group->seg)))
        return dot_coll_box(p, first, seg_id(dot_coll_seg(p, first)) + 1);
    if (is_folded(group->seg)) return fold_box(p, dot_group_label(p->g, group, true), colors[group->kind], cluster);
    uint32_t box = box_of_rest(p, group_node(p->g, group), seg_id(group->seg), cluster);
    return box ? box : dot_add_box(p, dot_group_label(p->g, group, false), "box", colors[group->kind], cluster);
}

static void boxes_kernel(Picture *p)
{
    const Graph *g = p->g;
    segment_clusters(p);
    dot_recv_boxes(p, true);
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->kind == G_START) continue;  // a collective is one box, that of its end
        uint32_t box = kernel_box(p, group);
        for (size_t k = 0; k < vec_len(group->nodes); k++) p->box_of[group->nodes[k]] = box;
    }
    for (size_t i = 0; i < vec_len(g->groups); i++)
        edges_kernel(p, &g->groups[i], g->nodes[group_node(g, &g->groups[i])].layer);
}

void dot_boxes(Picture *p, const char *level)
{
    find_equal_layers(p);
    if (!strcmp(level, "model"))
        boxes_model(p);
    else if (!strcmp(level, "layer"))
        boxes_layer(p);
    else if (!strcmp(level, "op"))
        boxes_op(p);
    else
        boxes_kernel(p);
}
