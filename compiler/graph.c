// graph.c: the graph's store: axes, places, op calls, nodes; and the tables of functions and kinds.
//
// graph_add() is the one door through which nodes come in. Equal nodes are one node (common subexpressions): an
// open-addressing table over the node's content finds them. Content is kind, function, dtype, segment, axes, operands
// and the kind's own field; the stamps (place, op, layer, backward) are those of the first maker. The segment is part
// of it so that a value which pass save makes again in B stays apart from the one in F; so is the chunk. RANDOM, ACCUMULATE and UPDATE
// are never merged.
// Traps: nodes lie in a vec, so a `Node *` dies with the next graph_add: copy the node. A Node must be zeroed before
// it is filled, as unused operands and axes are compared.
#include "pico.h"

#define X(e, name, arity, linear, zero, text) {name, arity, linear, zero, text},
const FnInfo fn_info[FN_COUNT] = {FUNCTIONS(X)};
#undef X
#define X(e, name, meaning) {name, meaning},
const KindInfo kind_info[KIND_COUNT] = {KINDS(X)};
#undef X

typedef struct {
    Val *slots;         // power of two of them; 0: free
    size_t cap, used;
    const View **views; // vecs of what was interned
    const Attention **attentions;
    const Reshard **reshards;
} Interned;

// ---------------------------------------------------------------------------------------------------- new graph
Graph *graph_new(void)
{
    Graph *g = xcalloc(1, sizeof *g);
    g->dtype = F32;
    g->cur_layer = -1;
    g->nstages = g->nchunks = 1;
    for (int f = 0; f < MESH_FACTORS; f++) g->mesh.size[f] = 1;
    static const struct { const char *axis; uint32_t mesh; } standing[] = {
        {"batch", MESH_DP}, {"seq", MESH_CP}, {"kv", MESH_KV}, {"group", MESH_GROUP}, {"heads", MESH_TP}, {"ffn", MESH_TP},
        {"vocab", MESH_TP}, {"expert", MESH_TP}};
    for (size_t i = 0; i < countof(standing); i++) graph_map_axis(g, standing[i].axis, standing[i].mesh);
    vec_push(g->nodes, (Node){0});
    vec_push(g->axes, (AxisInfo){0});
    vec_push(g->locs, (LocInfo){0});
    vec_push(g->ops, (OpCall){0});
    g->cse = arena_new(&g->arena, Interned, 1);
    return g;
}

void graph_free(Graph *g)
{
    Interned *table = g->cse;
    free(table->slots);
    vec_free(table->views);
    vec_free(table->attentions);
    vec_free(table->reshards);
    vec_free(g->nodes), vec_free(g->axes), vec_free(g->locs), vec_free(g->ops);
    vec_free(g->inputs), vec_free(g->params), vec_free(g->states), vec_free(g->scalars);
    vec_free(g->accs), vec_free(g->outputs), vec_free(g->train), vec_free(g->layers);
    vec_free(g->saved), vec_free(g->own_grads), vec_free(g->maps), vec_free(g->transfers), vec_free(g->param_axes);
    arena_free(&g->arena);
    free(g);
}

Axis graph_axis(Graph *g, const char *name, int64_t extent)
{
    name = intern(name);
    if (extent < 1 || extent > INT32_MAX) bug("axis '%s' of extent %lld", name, (long long)extent);
    for (size_t i = 1; i < vec_len(g->axes); i++)
        if (g->axes[i].name == name && g->axes[i].extent == extent) return (Axis)i;
    if (vec_len(g->axes) > UINT16_MAX) err(g, g->cur_loc, "the model has more than %d axes", UINT16_MAX);
    vec_push(g->axes, (AxisInfo){name, extent});
    return (Axis)(vec_len(g->axes) - 1);
}

Loc graph_loc(Graph *g, const char *file, int line)
{
    file = intern(file);
    for (size_t i = vec_len(g->locs); i-- > 1;)  // the newest first: places come in runs
        if (g->locs[i].file == file && g->locs[i].line == line) return (Loc)i;
    vec_push(g->locs, (LocInfo){file, line});
    return (Loc)(vec_len(g->locs) - 1);
}

uint32_t graph_op(Graph *g, const char *name, Loc loc)
{
    vec_push(g->ops, (OpCall){.name = intern(name), .loc = loc});
    return (uint32_t)(vec_len(g->ops) - 1);
}

DType graph_compute_dtype(const Graph *g) { return g->dtype == F64 ? F64 : F32; }

int axis_find(const Node *n, Axis a)
{
    for (int i = 0; i < n->naxes; i++)
        if (n->axes[i] == a) return i;
    return -1;
}

int64_t elements(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v];
    int64_t count = 1;
    for (int i = 0; i < n->naxes; i++) {
        int64_t extent = extent_of(g, n->axes[i]);
        if (count > INT64_MAX / 16 / extent) err(g, n->loc, "a value here has too many elements for this machine");
        count *= extent;
    }
    return count;
}

uint64_t value_bytes(const Graph *g, Val v)
{
    return (uint64_t)elements(g, v) * (uint64_t)dtype_bytes((DType)g->nodes[v].dtype);
}

bool const_value(const Graph *g, Val v, double *value)
{
    const Node *n = &g->nodes[v];
    if (n->kind == K_VIEW && n->u.view->n == 0) n = &g->nodes[n->in[0]];
    if (n->kind != K_CONST) return false;
    *value = n->u.num;
    return true;
}

// ------------------------------------------------------------------------------------------ interned parameters
static bool same_index(const ViewIndex *a, const ViewIndex *b)
{
    if (a->src != b->src || a->nterms != b->nterms || a->offset != b->offset || a->div != b->div || a->mod != b->mod
        || a->zero != b->zero)
        return false;
    for (int t = 0; t < a->nterms; t++)
        if (a->axis[t] != b->axis[t] || a->coef[t] != b->coef[t]) return false;
    return true;
}

static bool same_view(const View *a, const View *b)
{
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++)
        if (!same_index(&a->ix[i], &b->ix[i])) return false;
    return true;
}

// A model has few distinct views (layers share them), so both lists are searched from front to back.
const View *graph_view(Graph *g, const View *view)
{
    Interned *table = g->cse;
    for (size_t i = 0; i < vec_len(table->views); i++)
        if (same_view(table->views[i], view)) return table->views[i];
    View *copy = arena_new(&g->arena, View, 1);
    *copy = *view;
    vec_push(table->views, copy);
    return copy;
}

const Attention *graph_attention(Graph *g, const Attention *a)
{
    Interned *table = g->cse;
    for (size_t i = 0; i < vec_len(table->attentions); i++) {
        const Attention *b = table->attentions[i];
        if (a->seq == b->seq && a->head_dim == b->head_dim && a->scale == b->scale && a->window == b->window) return b;
    }
    Attention *copy = arena_new(&g->arena, Attention, 1);
    *copy = *a;
    vec_push(table->attentions, copy);
    return copy;
}

static bool same_reshard(const Reshard *a, const Reshard *b)
{
    return a->how == b->how && a->reduce == b->reduce && a->key.mesh == b->key.mesh && a->key.stages == b->key.stages
        && a->axis == b->axis && a->part == b->part && a->batch == b->batch && !strcmp(a->why, b->why);
}

const Reshard *graph_reshard(Graph *g, const Reshard *r)
{
    Interned *table = g->cse;
    for (size_t i = vec_len(table->reshards); i-- > 0;)
        if (same_reshard(table->reshards[i], r)) return table->reshards[i];
    Reshard *copy = arena_new(&g->arena, Reshard, 1);
    *copy = *r;
    vec_push(table->reshards, copy);
    return copy;
}

// ---------------------------------------------------------------------------------------- common subexpressions
static bool never_merged(const Node *n)
{
    // (a stage that only takes part in a reduction over stages gives the same zero to each)
    if (n->kind == K_RESHARD && n->u.reshard->key.mesh & MESH_PP) return true;
    return n->kind == K_RANDOM || n->kind == K_ACCUMULATE || n->kind == K_UPDATE;
}

// What stands in every segment at once: leaves have no segment of their own.
static bool is_leaf(const Node *n) { return n->nin == 0; }

static uint64_t mix(uint64_t h, uint64_t x) { return ((h ^ x) * 0x9E3779B97F4A7C15u) ^ (h >> 29); }

static uint64_t double_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint64_t hash_index(uint64_t h, const ViewIndex *x)
{
    h = mix(mix(mix(h, x->src), (uint64_t)x->offset), ((uint64_t)x->div << 32) ^ (uint64_t)x->mod);
    for (int t = 0; t < x->nterms; t++) h = mix(mix(h, x->axis[t]), (uint64_t)x->coef[t]);
    return h;
}

static uint64_t hash_node(const Node *n)
{
    uint64_t h = mix(mix(n->kind, n->fn), (uint64_t)n->chunk << 24 | (uint64_t)n->dtype << 16 | (uint64_t)n->reduce << 8 | n->seg);
    for (int i = 0; i < n->naxes; i++) h = mix(h, n->axes[i]);
    for (int i = 0; i < n->nin; i++) h = mix(h, n->in[i]);
    switch (n->kind) {
    case K_CONST: return mix(h, double_bits(n->u.num));
    case K_GATHER: case K_SCATTER_ADD: case K_INDEX: return mix(h, n->u.axis);
    case K_REDUCE: case K_CONTRACT:
        for (int i = 0; i < n->u.over.n; i++) h = mix(h, n->u.over.axes[i]);
        return h;
    case K_VIEW:
        for (int i = 0; i < n->u.view->n; i++) h = hash_index(h, &n->u.view->ix[i]);
        return h;
    case K_ATTENTION: case K_ATTENTION_GRAD: return h;
    case K_RESHARD: case K_SLICE:
        h = mix(mix(h, n->u.reshard->how), n->u.reshard->key.mesh);
        return mix(mix(h, n->u.reshard->key.stages), n->u.reshard->batch);
    default: return mix(h, n->u.id);
    }
}

static bool same_parameter(const Node *a, const Node *b)
{
    switch (a->kind) {
    case K_CONST: return double_bits(a->u.num) == double_bits(b->u.num);
    case K_GATHER: case K_SCATTER_ADD: case K_INDEX: return a->u.axis == b->u.axis;
    case K_REDUCE: case K_CONTRACT:
        return a->u.over.n == b->u.over.n && !memcmp(a->u.over.axes, b->u.over.axes, a->u.over.n * sizeof(Axis));
    case K_VIEW: return a->u.view == b->u.view;
    case K_ATTENTION: case K_ATTENTION_GRAD: return a->u.attention == b->u.attention;
    case K_RESHARD: case K_SLICE: return a->u.reshard == b->u.reshard;
    default: return a->u.id == b->u.id;
    }
}

static bool same_node(const Node *a, const Node *b)
{
    return a->kind == b->kind && a->fn == b->fn && a->dtype == b->dtype && a->seg == b->seg && a->chunk == b->chunk && a->naxes == b->naxes
        && a->nin == b->nin && a->reduce == b->reduce && !memcmp(a->axes, b->axes, a->naxes * sizeof(Axis))
        && !memcmp(a->in, b->in, a->nin * sizeof(Val)) && same_parameter(a, b);
}

// The slot of an equal node, or the free one where it would stand.
static Val *find_slot(const Graph *g, const Interned *table, const Node *n)
{
    for (size_t i = hash_node(n);; i++) {
        Val *slot = &table->slots[i & (table->cap - 1)];
        if (!*slot || same_node(&g->nodes[*slot], n)) return slot;
    }
}

static void grow_table(const Graph *g, Interned *table)
{
    Val *old = table->slots;
    size_t old_cap = table->cap;
    table->cap = old_cap ? 2 * old_cap : 1024;
    table->slots = xcalloc(table->cap, sizeof *table->slots);
    for (size_t i = 0; i < old_cap; i++)
        if (old[i]) *find_slot(g, table, &g->nodes[old[i]]) = old[i];
    free(old);
}

void graph_forget(Graph *g)
{
    Interned *table = g->cse;
    if (table->slots) memset(table->slots, 0, table->cap * sizeof *table->slots);
    table->used = 0;
}

Val graph_add(Graph *g, const Node *node)
{
    Node n = *node;
    n.loc = g->cur_loc, n.op = g->cur_op, n.layer = g->cur_layer, n.backward = g->cur_backward;
    n.seg = is_leaf(&n) ? 0 : g->cur_seg;
    n.chunk = is_leaf(&n) ? 0 : g->cur_chunk;
    for (int i = 0; i < n.nin; i++)
        if (n.in[i] == 0 || n.in[i] >= vec_len(g->nodes)) bug("%s: operand %d is no node", kind_info[n.kind].name, i);
    if (vec_len(g->nodes) == UINT32_MAX) err(g, g->cur_loc, "the graph is too large");
    Val v = (Val)vec_len(g->nodes);
    if (!never_merged(&n)) {
        Interned *table = g->cse;
        if (2 * table->used >= table->cap) grow_table(g, table);
        Val *slot = find_slot(g, table, &n);
        if (*slot) return *slot;
        *slot = v;
        table->used++;
    }
    vec_push(g->nodes, n);
    return v;
}

// ---------------------------------------------------------------------------------------- accumulators, outputs
uint32_t graph_acc(Graph *g, const char *name, int param, DType dtype, int naxes, const Axis *axes)
{
    uint32_t id = (uint32_t)vec_len(g->accs);
    Val total = make_leaf(g, K_TOTAL, id, dtype, naxes, axes);
    vec_push(g->accs, (Acc){.name = intern(name), .param = param, .dtype = dtype, .total = total});
    return id;
}

void graph_output(Graph *g, const char *name, Val v)
{
    const Node *n = node_of(g, v);
    if (n->naxes != 0 || (n->dtype != F64 && n->dtype != F32)) bug("output '%s' is no float of rank 0", name);
    vec_push(g->outputs, (Output){intern(name), v});
}

void graph_map_axis(Graph *g, const char *axis, uint32_t mesh)
{
    axis = intern(axis);
    for (size_t i = 0; i < vec_len(g->maps); i++)
        if (g->maps[i].axis == axis) {
            g->maps[i].mesh = mesh;
            return;
        }
    vec_push(g->maps, (AxisMap){axis, mesh});
}
