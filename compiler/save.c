// save.c: what runs when, and what crosses from forward to backward.
//
// 1. Segments follow from what a value depends on: INIT constants, indices and the rank's coordinates, PREP parameters and
//    per-step scalars, F inputs, B what grad made and what follows the last layer (so logits never cross), UPDATE totals. F
//    and B exist once for each chunk. With --schedule zb contractions whose result is accumulated and nothing else, and
//    the views, casts and collectives that only they need, run in a segment W; but those of the head stay in B, as it has
//    the gradient of the logits. What another stage sends is F's or B's, and lies where it landed for later segments too.
// 2. Which forward values are kept for backward is a minimum cut: every value has a price (its bytes), a value can be
//    made again from its operands if its kind allows, and everything that backward needs must be available. Contractions,
//    attention, gathers, reductions, sums over ranks and what crosses from layer to layer are sources: keeping something
//    behind each of them cannot be avoided. --recompute attention makes attention ordinary, full everything but what
//    crosses layers. All-gathers are always ordinary: their operand is smaller.
//    Of equal cuts the one nearest to backward is taken: it makes the least again. (The idea: Griewank's checkpoints as
//    a cut; the form: Zheng et al. 2021, "min-cut rematerialization" in functorch's AOT autograd.)
// 3. What is made again is copied into B or W at its first use there; the copies are never merged with the originals. W
//    makes cheap things again by itself, and reads what B has made again of the others.
//
// Traps. A value that only the update needs must not run in PREP: it would be stored all step long. The log-sum-exp of
// an attention is made by the attention: making it again means making that again, saved or not. An all-reduce over stages
// belongs to UPDATE even where a stage adds a constant 0.
#include "pico.h"

static bool is_view(const Node *x) { return x->kind == K_VIEW; }
static bool is_cast(const Node *x) { return x->kind == K_MAP && x->fn == FN_CAST; }

// ---- 1. segments
static SegmentId leaf_segment(const Graph *g, const Node *x)
{
    switch (x->kind) {
    case K_INPUT: return SEG_F;
    case K_RANDOM: return has_axis(x, g->batch) ? SEG_F : SEG_PREP;  // without it the same in all micro-batches
    case K_INDEX: return x->u.axis == g->batch ? SEG_F : SEG_INIT;  // counted through the global batch
    case K_SCALAR: return x->u.id >= SLOT_COORD && x->u.id < SLOT_NAMED ? SEG_INIT : SEG_PREP;
    case K_PARAM: case K_STATE: return SEG_PREP;
    case K_RECV: return g->transfers[x->u.id].backward ? SEG_B : SEG_F;
    case K_TOTAL: return SEG_UPDATE;
    default: return SEG_INIT;
    }
}

static bool only_in_update(const Node *x)
{
    return x->kind == K_UPDATE || (x->kind == K_RESHARD && x->u.reshard->key.mesh & MESH_PP);
}

static void find_segments(const Graph *g, uint8_t *seg)  // SegmentIds; the chunk is the node's
{
    size_t n = vec_len(g->nodes);
    for (Val v = 1; v < n; v++) {
        const Node *x = &g->nodes[v];
        seg[v] = x->nin ? SEG_INIT : (uint8_t)leaf_segment(g, x);
        for (int i = 0; i < x->nin; i++) seg[v] = max_of(seg[v], seg[x->in[i]]);
        if (only_in_update(x)) seg[v] = SEG_UPDATE;
        if (seg[v] == SEG_F && x->nin && (x->backward || x->layer >= g->nlayers)) seg[v] = SEG_B;
        if (seg[v] < SEG_F && x->kind == K_ACCUMULATE) seg[v] = SEG_B;
    }
    uint8_t *elsewhere = xcalloc(n, 1);  // has a user before the update
    for (Val v = (Val)n; v-- > 1;) {
        const Node *x = &g->nodes[v];
        if (x->nin && seg[v] == SEG_PREP && !elsewhere[v]) seg[v] = SEG_UPDATE;
        for (int i = 0; i < x->nin; i++) elsewhere[x->in[i]] |= seg[v] != SEG_UPDATE;
    }
    free(elsewhere);
}

// product[v]: a contraction of B, or views, casts and sums of such.
static void find_products(const Graph *g, const uint8_t *seg, uint8_t *product)
{
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        if (seg[v] != SEG_B) continue;
        bool adds = x->kind == K_ACCUMULATE || (x->kind == K_MAP && x->fn == FN_ADD);
        bool passes = is_view(x) || is_cast(x) || x->kind == K_RESHARD || adds;
        product[v] = passes || (x->kind == K_CONTRACT && x->layer < g->nlayers);
        for (int i = 0; i < x->nin && passes; i++) product[v] &= product[x->in[i]];
    }
}

// Moves weight gradients from B to W.
static void find_weights(const Graph *g, uint8_t *seg)
{
    size_t n = vec_len(g->nodes);
    uint8_t *product = xcalloc(n, 1), *in_w = xcalloc(n, 1), *in_b = xcalloc(n, 1);  // has users there
    find_products(g, seg, product);
    for (size_t i = 0; i < vec_len(g->transfers); i++) in_b[g->transfers[i].val] = 1;
    for (Val v = (Val)n; v-- > 1;) {
        const Node *x = &g->nodes[v];
        bool may = product[v] || is_view(x) || is_cast(x) || x->kind == K_RESHARD;
        bool weight = x->kind == K_ACCUMULATE ? product[v] : may && in_w[v] && !in_b[v];
        if (seg[v] == SEG_B && x->nin && weight) seg[v] = SEG_W;
        for (int i = 0; i < x->nin; i++) *(seg[v] == SEG_W ? &in_w[x->in[i]] : &in_b[x->in[i]]) = 1;
    }
    for (Val v = 1; v < n; v++)  // something else reads the gradient
        if (g->nodes[v].kind == K_ACCUMULATE && seg[v] == SEG_W && seg[g->nodes[v].in[0]] != SEG_W) seg[v] = SEG_B;
    free(product), free(in_w), free(in_b);
}

// ---- 2. the cut. Network: values are split in an entry and an exit, joined by an edge that costs the value's bytes.
typedef struct { uint32_t to, next; int64_t room; } NetEdge;
typedef struct {
    NetEdge *edges;      // vec; edge e ^ 1 is its reverse
    uint32_t *head;      // of each network node, + 1
    int *level;
    uint32_t *cursor, n;
} Net;
enum { SOURCE, SINK, FIRST };
#define UNPAID (INT64_MAX / 4)
static uint32_t entry_of(Val v) { return FIRST + 2 * v; }
static uint32_t exit_of(Val v) { return FIRST + 2 * v + 1; }

static void net_edge(Net *net, uint32_t from, uint32_t to, int64_t room)
{
    vec_push(net->edges, (NetEdge){to, net->head[from], room});
    net->head[from] = (uint32_t)vec_len(net->edges);
    vec_push(net->edges, (NetEdge){from, net->head[to], 0});
    net->head[to] = (uint32_t)vec_len(net->edges);
}

static bool net_levels(Net *net, uint32_t *queue)  // Dinic: breadth first from the source
{
    memset(net->level, -1, net->n * sizeof *net->level);
    size_t first = 0, last = 0;
    queue[last++] = SOURCE;
    net->level[SOURCE] = 0;
    while (first < last) {
        uint32_t u = queue[first++];
        for (uint32_t e = net->head[u]; e; e = net->edges[e - 1].next) {
            const NetEdge *edge = &net->edges[e - 1];
            if (edge->room == 0 || net->level[edge->to] >= 0) continue;
            net->level[edge->to] = net->level[u] + 1;
            queue[last++] = edge->to;
        }
    }
    return net->level[SINK] >= 0;
}

// One augmenting path along the levels, by an explicit stack of edges. Returns what it moved, 0 at the end.
static int64_t net_path(Net *net, uint32_t *path)
{
    size_t depth = 0;
    uint32_t u = SOURCE;
    while (u != SINK) {
        uint32_t *e = &net->cursor[u];
        while (*e && !(net->edges[*e - 1].room && net->level[net->edges[*e - 1].to] == net->level[u] + 1))
            *e = net->edges[*e - 1].next;
        if (*e) {
            path[depth++] = *e - 1;
            u = net->edges[*e - 1].to;
        } else {
            if (!depth) return 0;
            net->level[u] = -1;  // a dead end
            u = net->edges[path[--depth] ^ 1].to;
        }
    }
    int64_t least = UNPAID;
    for (size_t i = 0; i < depth; i++) least = min_of(least, net->edges[path[i]].room);
    if (least >= UNPAID) bug("a value that backward needs can be neither saved nor made again");
    for (size_t i = 0; i < depth; i++) net->edges[path[i]].room -= least, net->edges[path[i] ^ 1].room += least;
    return least;
}

static void net_flow(Net *net)
{
    uint32_t *work = xmalloc(net->n * sizeof *work);
    while (net_levels(net, work)) {
        memcpy(net->cursor, net->head, net->n * sizeof *net->head);
        while (net_path(net, work)) {}
    }
    free(work);
}

// Marks what still reaches the sink: behind the last cut.
static void net_behind(const Net *net, uint8_t *behind)
{
    uint32_t *stack = NULL;
    vec_push(stack, SINK);
    behind[SINK] = 1;
    while (vec_len(stack)) {
        uint32_t u = vec_pop(stack);
        for (uint32_t e = net->head[u]; e; e = net->edges[e - 1].next) {
            uint32_t from = net->edges[e - 1].to;
            if (!behind[from] && net->edges[(e - 1) ^ 1].room) behind[from] = 1, vec_push(stack, from);
        }
    }
    vec_free(stack);
}

// A value of F that B and W cannot read for free.
static bool costs(const Graph *g, const uint8_t *seg, Val v) { return seg[v] == SEG_F && g->nodes[v].nin; }

static bool is_cheap(const Node *x)
{
    return x->kind == K_MAP || is_view(x) || (x->kind == K_RESHARD && x->u.reshard->how == COLL_ALL_GATHER);
}

static bool made_again(const Node *x)  // may the kind be made again at all?
{
    if (options.recompute == RECOMPUTE_FULL) return true;
    if (x->kind == K_ATTENTION || x->kind == K_PART) return options.recompute == RECOMPUTE_ATTENTION;
    return is_cheap(x);
}

// The operands that making v again takes: those of the attention for its log-sum-exp.
static const Node *maker_of(const Graph *g, Val v)
{
    const Node *x = &g->nodes[v];
    return x->kind == K_PART ? &g->nodes[x->in[0]] : x;
}

static void build_net(const Graph *g, const uint8_t *seg, Net *net)
{
    size_t n = vec_len(g->nodes);
    uint8_t *crosses = xcalloc(n, 1), *needed = xcalloc(n, 1);
    for (Val v = (Val)n; v-- > 1;) {  // backwards: a view crosses where its users do
        const Node *x = &g->nodes[v];
        for (int i = 0; i < x->nin; i++) {
            Val w = x->in[i];
            if (seg[v] == SEG_F && !is_view(x)) crosses[w] |= g->nodes[w].layer != x->layer;
            if (seg[v] == SEG_F && is_view(x)) crosses[w] |= crosses[v];
            needed[w] |= seg[v] == SEG_B || seg[v] == SEG_W;
        }
    }
    for (Val v = 1; v < n; v++) {
        if (!costs(g, seg, v)) continue;
        const Node *x = &g->nodes[v], *maker = maker_of(g, v);
        bool source = !is_view(x) && (crosses[v] || !made_again(x));
        net_edge(net, entry_of(v), exit_of(v), is_view(x) ? UNPAID : (int64_t)value_bytes(g, v));
        if (source) net_edge(net, SOURCE, entry_of(v), UNPAID);
        if (needed[v]) net_edge(net, exit_of(v), SINK, UNPAID);
        for (int i = 0; i < maker->nin && !source; i++)
            if (costs(g, seg, maker->in[i])) net_edge(net, exit_of(maker->in[i]), entry_of(v), UNPAID);
    }
    free(crosses), free(needed);
}

// keep[v]: the value is saved. What B needs and is not kept is made again.
static void find_cut(const Graph *g, const uint8_t *seg, uint8_t *keep)
{
    Net net = {.n = FIRST + 2 * (uint32_t)vec_len(g->nodes)};
    net.head = xcalloc(net.n, sizeof *net.head);
    net.level = xcalloc(net.n, sizeof *net.level);
    net.cursor = xcalloc(net.n, sizeof *net.cursor);
    uint8_t *behind = xcalloc(net.n, 1);
    build_net(g, seg, &net);
    net_flow(&net);
    net_behind(&net, behind);
    for (Val v = 1; v < vec_len(g->nodes); v++) keep[v] = costs(g, seg, v) && !behind[entry_of(v)] && behind[exit_of(v)];
    vec_free(net.edges);
    free(net.head), free(net.level), free(net.cursor), free(behind);
}

// ---- 3. the new graph
typedef struct {
    const Node *old;           // the nodes before
    const uint8_t *seg, *keep;
    Val *forward, *again[2];   // old value -> its copy, and its copies made again in B and W
} Copies;
typedef struct { Val val; SegmentId seg; } Remake;

static Val add_copy(Graph *g, const Node *x, const Val *in, SegmentId seg, bool again)
{
    Node n = *x;
    for (int i = 0; i < n.nin; i++) n.in[i] = in[i];
    g->cur_loc = x->loc, g->cur_op = x->op, g->cur_layer = x->layer, g->cur_backward = x->backward || again;
    g->cur_chunk = x->chunk, g->cur_seg = seg_code(seg, x->chunk);
    Val v = graph_add(g, &n);
    if (again) g->nodes[v].again = true;
    return v;
}

// Does segment `seg` read old value v itself? W also takes B's value, unless that is a view or a cast of a smaller one.
static bool is_shared(const Copies *c, Val v, SegmentId seg)
{
    const Node *x = &c->old[v];
    if (x->nin == 0) return true;
    if (c->seg[v] == SEG_F) return c->keep[v];
    if (c->seg[v] != SEG_B || seg != SEG_W) return true;
    bool widens = is_cast(x) && dtype_bytes((DType)c->old[x->in[0]].dtype) < dtype_bytes((DType)x->dtype);
    return !is_view(x) && !widens;
}

// Where what segment `seg` needs is made again: W leaves what is not cheap to B.
static SegmentId remade_in(const Copies *c, Val v, SegmentId seg)
{
    return is_cheap(&c->old[v]) ? seg : SEG_B;
}

// The value that stands for old value v in B or W: shared, saved, or made again now (its operands first, by a stack).
static Val in_backward(Graph *g, Copies *c, Val v, SegmentId seg)
{
    if (is_shared(c, v, seg)) return c->forward[v];
    Remake *stack = NULL;
    seg = remade_in(c, v, seg);
    vec_push(stack, (Remake){v, seg});
    while (vec_len(stack)) {
        Remake now = stack[vec_len(stack) - 1];
        Val in[6], *made = &c->again[now.seg == SEG_W][now.val];
        const Node *x = &c->old[now.val];
        size_t before = vec_len(stack);
        for (int i = 0; i < x->nin && !*made; i++) {
            SegmentId at = remade_in(c, x->in[i], now.seg);
            bool shared = is_shared(c, x->in[i], now.seg) && x->kind != K_PART;
            in[i] = shared ? c->forward[x->in[i]] : c->again[at == SEG_W][x->in[i]];
            if (!in[i]) vec_push(stack, (Remake){x->in[i], at});
        }
        if (vec_len(stack) > before) continue;
        if (!*made) *made = add_copy(g, x, in, now.seg, true);
        (void)vec_pop(stack);
    }
    vec_free(stack);
    return c->again[seg == SEG_W][v];
}

static Val copy_node(Graph *g, void *ctx, const Node *node, Val old)
{
    Copies *c = ctx;
    const Node *x = &c->old[old];
    SegmentId seg = (SegmentId)c->seg[old];
    Val in[6];
    for (int i = 0; i < x->nin; i++)
        in[i] = seg == SEG_B || seg == SEG_W ? in_backward(g, c, x->in[i], seg) : node->in[i];
    return c->forward[old] = add_copy(g, x, in, seg, false);
}

// What is made in B (or W) alone is not made again: its original has no user left.
static void forget_lone_copies(Graph *g, const Copies *c, size_t nold)
{
    uint8_t *live = xmalloc(vec_len(g->nodes));
    graph_mark_live(g, live);
    for (size_t v = 1; v < nold; v++) {
        Val first = c->again[0][v] ? c->again[0][v] : c->again[1][v];
        if (first && !live[c->forward[v]]) g->nodes[first].again = false;
    }
    free(live);
}

static void mark_saved(Graph *g)
{
    vec_free(g->saved);
    (void)vec_add(g->saved, vec_len(g->nodes));
    memset(g->saved, 0, vec_len(g->nodes));
    for (Val v = 1; v < vec_len(g->nodes); v++)
        for (int i = 0; i < g->nodes[v].nin; i++) {
            Val w = g->nodes[v].in[i];
            SegmentId to = seg_id(g->nodes[v].seg), from = seg_id(g->nodes[w].seg);
            bool crosses = (to == SEG_B && from == SEG_F) || (to == SEG_W && (from == SEG_F || from == SEG_B));
            if (crosses && g->nodes[w].nin) g->saved[w] = 1;
        }
}

void save(Graph *g)
{
    size_t n = vec_len(g->nodes);
    uint8_t *seg = xcalloc(n, 1), *keep = xcalloc(n, 1);
    find_segments(g, seg);
    if (options.schedule == SCHEDULE_ZB) find_weights(g, seg);
    find_cut(g, seg, keep);
    Node *old = xmalloc(n * sizeof *old);
    memcpy(old, g->nodes, n * sizeof *old);
    Copies c = {old, seg, keep, xcalloc(n, sizeof(Val)), {xcalloc(n, sizeof(Val)), xcalloc(n, sizeof(Val))}};
    graph_rewrite(g, copy_node, &c);
    forget_lone_copies(g, &c, n);
    graph_rewrite(g, NULL, NULL);  // originals that only backward needed
    mark_saved(g);
    free(seg), free(keep), free(old), free(c.forward), free(c.again[0]), free(c.again[1]);
}
