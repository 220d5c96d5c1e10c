// rewrite.c: what every pass needs that changes a graph: which nodes are live, copying with replacements, checking.
//
// graph_rewrite() sends each live node through the constructors again, so folding and merging happen as when it was
// made first, and dead nodes are left behind. Leaves with storage (inputs, parameters, states, totals, scalars) stay
// even when dead, as the tables refer to them. A REDUCE stays a REDUCE: pass select has decided what is a contraction.
// Trap: a visitor may make any number of nodes; the stamps (place, op, layer, segment) are those of the node visited.
#include "pico.h"

// ---------------------------------------------------------------------------------------------------------- live
// Stays without a user: what reduces over stages, for each of them must take part; with ZeRO what gathers a parameter of
// which an update has written a part.
static bool is_rooted_reshard(const Graph *g, const Node *n)
{
    return n->kind == K_RESHARD && (n->u.reshard->key.mesh & MESH_PP || g->nodes[n->in[0]].kind == K_UPDATE);
}

void graph_mark_live(const Graph *g, uint8_t *live)
{
    size_t n = vec_len(g->nodes);
    memset(live, 0, n);
    bool summed = false;
    for (size_t i = 1; i < n; i++) {
        summed |= g->nodes[i].kind == K_ACCUMULATE;
        live[i] = g->nodes[i].kind == K_ACCUMULATE || g->nodes[i].kind == K_UPDATE || is_rooted_reshard(g, &g->nodes[i]);
    }
    for (size_t i = 0; i < vec_len(g->transfers); i++)
        if (g->transfers[i].send) live[g->transfers[i].val] = 1;
    for (size_t i = 0; i < vec_len(g->outputs); i++) live[g->outputs[i].val] = 1;
    if (!summed) live[g->loss] = 1;  // before grad it is the only root; later B may read a loss that it has made again
    live[0] = 0;
    for (size_t i = n; i-- > 1;)
        if (live[i])
            for (int j = 0; j < g->nodes[i].nin; j++) live[g->nodes[i].in[j]] = 1;
}

// ---------------------------------------------------------------------------------------------------------- copy
static Val copy_map(Graph *g, const Node *n)
{
    return n->fn == FN_CAST ? make_cast(g, n->in[0], (DType)n->dtype) : make_map(g, (Fn)n->fn, n->nin, n->in);
}

Val graph_copy(Graph *g, const Node *n)
{
    switch ((Kind)n->kind) {
    case K_INPUT: case K_PARAM: case K_STATE: case K_TOTAL: case K_SCALAR: case K_CONST: case K_INDEX: case K_RANDOM:
    case K_RECV: case K_ATTENTION_GRAD: return graph_add(g, n);
    case K_MAP: return copy_map(g, n);
    case K_REDUCE: return make_reduce_raw(g, (Reduction)n->reduce, n->in[0], n->u.over.n, n->u.over.axes);
    case K_CONTRACT: return make_contract(g, n->in[0], n->in[1], n->u.over.n, n->u.over.axes);
    case K_GATHER: return make_gather(g, n->in[0], n->in[1], n->u.axis);
    case K_SCATTER_ADD: return make_scatter_add(g, n->in[0], n->in[1], n->u.axis, n->naxes, n->axes);
    case K_VIEW: return n->fn ? graph_add(g, n) : make_view(g, n->in[0], n->u.view, n->naxes, n->axes);
    case K_ATTENTION: return make_attention(g, n->in[0], n->in[1], n->in[2], n->u.attention);
    case K_PART: return make_part(g, n->in[0], n->u.id);
    case K_ACCUMULATE: return make_accumulate(g, n->u.id, n->in[0]);
    case K_RESHARD: return make_reshard(g, n->in[0], n->u.reshard);
    case K_SLICE: return make_slice(g, n->in[0], n->u.reshard->key, n->axes[0]);
    case K_UPDATE: return make_update(g, n->in[1], n->in[0]);
    case K_NONE: case KIND_COUNT: break;
    }
    bug("copy of kind %d", n->kind);
}

static bool is_table_leaf(const Node *n) { return (n->kind >= K_INPUT && n->kind <= K_SCALAR) || n->kind == K_RECV; }

static void set_stamps(Graph *g, const Node *n)
{
    g->cur_loc = n->loc, g->cur_op = n->op, g->cur_layer = n->layer, g->cur_backward = n->backward, g->cur_seg = n->seg, g->cur_chunk = n->chunk;
}

// Per-node marks follow their nodes.
static void follow_marks(uint8_t **marks, const Val *map, size_t nold, size_t nnew)
{
    if (!*marks) return;
    uint8_t *to = NULL;
    vec_add(to, nnew);
    memset(to, 0, nnew);
    for (size_t i = 1; i < min_of(nold, vec_len(*marks)); i++)
        if (map[i]) to[map[i]] |= (*marks)[i];
    vec_free(*marks);
    *marks = to;
}

static void follow_tables(Graph *g, const Val *map)
{
    for (size_t i = 0; i < vec_len(g->inputs); i++) g->inputs[i].val = map[g->inputs[i].val];
    for (size_t i = 0; i < vec_len(g->params); i++) g->params[i].val = map[g->params[i].val];
    for (size_t i = 0; i < vec_len(g->states); i++) g->states[i].val = map[g->states[i].val];
    for (size_t i = 0; i < vec_len(g->scalars); i++) g->scalars[i].val = map[g->scalars[i].val];
    for (size_t i = 0; i < vec_len(g->accs); i++) g->accs[i].total = map[g->accs[i].total];
    for (size_t i = 0; i < vec_len(g->outputs); i++) g->outputs[i].val = map[g->outputs[i].val];
    for (size_t i = 0; i < vec_len(g->transfers); i++) g->transfers[i].val = map[g->transfers[i].val];
    g->loss = map[g->loss];
}

void graph_rewrite(Graph *g, Rewrite visit, void *ctx)
{
    if (g->groups) bug("rewrite after fuse");
    size_t n = vec_len(g->nodes);
    uint8_t *live = xmalloc(n);
    graph_mark_live(g, live);
    Node *old = g->nodes;
    Val *map = xcalloc(n, sizeof *map);
    g->nodes = NULL;
    vec_push(g->nodes, (Node){0});
    graph_forget(g);
    // TOTAL leaves first: make_accumulate looks at the one of its accumulator, which may stand behind it
    for (size_t i = 1; i < n; i++)
        if (old[i].kind == K_TOTAL) {
            set_stamps(g, &old[i]);
            map[i] = graph_add(g, &old[i]);
            if (g->accs[old[i].u.id].total == i) g->accs[old[i].u.id].total = map[i];
        }
    for (size_t i = 1; i < n; i++) {
        if (map[i] || (!live[i] && !is_table_leaf(&old[i]))) continue;
        Node node = old[i];
        for (int j = 0; j < node.nin; j++) node.in[j] = map[node.in[j]];
        set_stamps(g, &node);
        size_t before = vec_len(g->nodes);
        Val v = visit ? visit(g, ctx, &node, (Val)i) : 0;
        map[i] = v ? v : graph_copy(g, &node);
        if (node.again && map[i] >= before) g->nodes[map[i]].again = true;
    }
    // the totals' entries are new already; let follow_tables see them as they were
    for (size_t i = 1; i < n; i++)
        if (old[i].kind == K_TOTAL && g->accs[old[i].u.id].total == map[i]) g->accs[old[i].u.id].total = (Val)i;
    follow_tables(g, map);
    follow_marks(&g->saved, map, n, vec_len(g->nodes));
    vec_free(old);
    free(map);
    free(live);
    g->cur_seg = g->cur_chunk = 0;
}

// -------------------------------------------------------------------------------------------------------- verify
typedef struct { Graph *g; const char *after; } Check;

_Noreturn static void broken(const Check *c, Val v, const char *what)
{
    Buf line = {0};
    node_dump(c->g, v, &line);
    graph_dump(c->g, stderr);
    bug("after %s: %s: %s", c->after, what, line.s);
}

static void verify_axes(const Check *c, Val v)
{
    const Node *n = node_of(c->g, v);
    if (n->naxes > MAX_AXES) broken(c, v, "too many axes");
    for (int i = 0; i < n->naxes; i++) {
        if (n->axes[i] == 0 || n->axes[i] >= vec_len(c->g->axes)) broken(c, v, "unknown axis");
        for (int j = 0; j < i; j++)
            if (axis_name(c->g, n->axes[i]) == axis_name(c->g, n->axes[j])) broken(c, v, "an axis twice");
    }
}

static void verify_map(const Check *c, Val v)
{
    const Node *n = node_of(c->g, v);
    if (n->nin != fn_info[n->fn].arity) broken(c, v, "operands");
    for (int i = 0; i < n->nin; i++) {
        const Node *in = node_of(c->g, n->in[i]);
        for (int j = 0; j < in->naxes; j++)
            if (!has_axis(n, in->axes[j])) broken(c, v, "map lacks an operand's axis");
        if (in->dtype == BF16 && n->fn != FN_CAST) broken(c, v, "map of bf16");
    }
}

static void verify_kind(const Check *c, Val v)
{
    Graph *g = c->g;
    const Node *n = node_of(g, v);
    switch (n->kind) {
    case K_INPUT: if (n->u.id >= vec_len(g->inputs) || g->inputs[n->u.id].val != v) broken(c, v, "table"); break;
    case K_PARAM: if (n->u.id >= vec_len(g->params) || g->params[n->u.id].val != v) broken(c, v, "table"); break;
    case K_STATE: if (n->u.id >= vec_len(g->states) || g->states[n->u.id].val != v) broken(c, v, "table"); break;
    case K_TOTAL: if (n->u.id >= vec_len(g->accs) || g->accs[n->u.id].total != v) broken(c, v, "table"); break;
    case K_ACCUMULATE:
        if (n->u.id >= vec_len(g->accs)) broken(c, v, "table");
        if (elements(g, v) != elements(g, n->in[0])) broken(c, v, "accumulate of another shape");
        break;
    case K_RECV: if (n->u.id >= vec_len(g->transfers) || g->transfers[n->u.id].val != v) broken(c, v, "table"); break;
    case K_MAP: verify_map(c, v); break;
    case K_REDUCE: case K_CONTRACT:
        for (int i = 0; i < n->u.over.n; i++)
            for (int j = 0; j < n->nin; j++)
                if (!has_axis(node_of(g, n->in[j]), n->u.over.axes[i])) broken(c, v, "sum over an axis that is not there");
        break;
    case K_VIEW:
        for (int i = 0; i < n->u.view->n; i++)
            if (!has_axis(node_of(g, n->in[0]), n->u.view->ix[i].src)) broken(c, v, "view of an axis that is not there");
        break;
    default: break;
    }
}

void graph_verify(Graph *g, const char *after)
{
    Check c = {g, after};
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *n = node_of(g, v);
        if (n->kind == K_NONE || n->kind >= KIND_COUNT || n->dtype >= DTYPE_COUNT || n->nin > countof(n->in))
            bug("after %s: node %u is damaged", after, v);
        for (int i = 0; i < n->nin; i++)
            if (n->in[i] == 0 || n->in[i] >= v) broken(&c, v, "an operand does not come before");
        verify_axes(&c, v);
        verify_kind(&c, v);
    }
    for (size_t i = 0; i < vec_len(g->outputs); i++)
        if (g->outputs[i].val == 0) bug("after %s: output '%s' is lost", after, g->outputs[i].name);
}
