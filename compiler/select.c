// select.c: what each node becomes, decided from its own shapes alone, so that no bit depends on what is fused later.
//
//   CONTRACT         stays one if gemm.c finds a matrix product, with copies (packs) of operands whose layout is in the
//                    way; else it becomes a REDUCE of the product. On a CPU bf16 operands are cast to f32: there is no
//                    faster bf16 product there, and the sums are f32 either way
//   ATTENTION(_GRAD) operands are windows with head_dim innermost, else packs
//   REDUCE           over mixed axes is split: first what is a suffix of the operand's axes (rows), then the rest. A row
//                    reduction with few rows gives its last axis first, so that there are rows to share out. A sum that
//                    keeps one position is a view
//   UPDATE           to what another leaf holds, or the same elsewhere: copied first
//   RESHARD, sends   take dense values from memory: views and formulas are packed
//
// A pack is a VIEW marked VIEW_PACK, which no other view equals or looks through; fuse stores it. Packs of what depends on
// parameters alone go to segment PREP: once a step, not once a micro-batch. Operands widened to f32 do not: they would
// live all step long, at twice the bytes of the bf16 copy.
#include "pico.h"

enum { FEW_ROWS = 64 };

// ------------------------------------------------------------------------------------------------ copies, casts
// Where a copy of v, wanted in segment `seg` (a code), is best made.
static uint8_t home_segment(const Graph *g, Val v, uint8_t seg)
{
    if (seg <= AT_PREP || seg == AT_UPDATE) return seg;
    while (g->nodes[v].kind == K_VIEW) v = g->nodes[v].in[0];
    const Node *n = &g->nodes[v];
    if (n->kind == K_PARAM) return AT_PREP;
    if (n->kind == K_CONST || (n->kind == K_INDEX && n->u.axis != g->batch)) return AT_INIT;
    return n->nin && n->seg <= AT_PREP ? n->seg : seg;
}

static bool is_formula_leaf(const Node *n)
{
    return n->kind == K_CONST || n->kind == K_INDEX || n->kind == K_SCALAR || n->kind == K_RANDOM;
}

// v as a dense value whose axes have this order, made in the segment and chunk that are set.
static Val pack_here(Graph *g, Val v, const Axis *order)
{
    v = make_broadcast(g, v, node_of(g, v)->naxes, order);
    Node n = *node_of(g, v);
    bool early = n.nin && n.seg <= AT_PREP && g->cur_seg > AT_PREP;
    if (is_storage(&n) || is_formula_leaf(&n) || (early && n.kind != K_VIEW)) {  // a copy of the whole
        static const View none;
        n.kind = K_VIEW, n.nin = 1, n.in[0] = v, n.u.view = graph_view(g, &none);
    }
    if (n.kind == K_VIEW && n.fn != VIEW_PACK) {  // what is computed is dense as it is
        n.fn = VIEW_PACK;
        v = graph_add(g, &n);
    }
    return v;
}

static Val pack(Graph *g, Val v, const Axis *order)
{
    uint8_t seg = g->cur_seg, chunk = g->cur_chunk;
    g->cur_seg = home_segment(g, v, seg);
    if (g->cur_seg != seg) g->cur_chunk = 0;  // one copy for all chunks
    v = pack_here(g, v, order);
    g->cur_seg = seg, g->cur_chunk = chunk;
    return v;
}

// --------------------------------------------------------------------------------------------------- reductions
static bool among(int n, const Axis *axes, Axis a)
{
    for (int i = 0; i < n; i++)
        if (axes[i] == a) return true;
    return false;
}

// The axes of `axes` that the next stage sums: a suffix of v's axes, of a suffix with few rows the last, or all (columns).
static int next_part(const Graph *g, Val v, int n, const Axis *axes, bool *divided, Axis *part)
{
    const Node *in = &g->nodes[v];
    int suffix = 0;
    int64_t rows = 1;
    while (suffix < in->naxes && among(n, axes, in->axes[in->naxes - 1 - suffix])) suffix++;
    for (int i = 0; i < in->naxes - suffix; i++) rows *= extent_of(g, in->axes[i]);
    if (suffix > 1 && rows < FEW_ROWS && !*divided) suffix = 1, *divided = true;
    if (suffix == 0) memcpy(part, axes, sizeof *part * (size_t)n);
    else memcpy(part, &in->axes[in->naxes - suffix], sizeof *part * (size_t)suffix);
    return suffix ? suffix : n;
}

static Val reduce_in_parts(Graph *g, Reduction r, Val v, int n, const Axis *axes)
{
    Axis left[MAX_AXES], part[MAX_AXES];
    bool divided = false;
    memcpy(left, axes, sizeof *axes * (size_t)n);
    while (n > 0) {
        int npart = next_part(g, v, n, left, &divided, part), rest = 0;
        v = make_reduce_raw(g, r, v, npart, part);
        for (int i = 0; i < n; i++)
            if (!among(npart, part, left[i])) left[rest++] = left[i];
        n = rest;
    }
    return v;
}

// The position p of axis a for which `where(index(a) == p, x, 0)` keeps x: its sum over a is x there. 0: not of that form.
// (The adjoint of a pick, summed over the axis, is what remains of a picked half: rotary embeddings.)
static Val sum_of_one(Graph *g, const Node *n)
{
    const Node where = *node_of(g, n->in[0]);
    if (n->reduce != RED_SUM || n->u.over.n != 1 || where.kind != K_MAP || where.fn != FN_WHERE) return 0;
    const Node cond = *node_of(g, where.in[0]);
    Axis axis = n->u.over.axes[0];
    double position = 0, zero = 1;
    bool equal = cond.kind == K_MAP && cond.fn == FN_EQ;
    for (int i = 0, known = 0; i < 2 && equal; i++) {
        const Node *side = node_of(g, cond.in[i]);
        bool number = const_value(g, cond.in[i], &position);
        if (!number && (side->kind != K_INDEX || side->u.axis != axis || axis == g->batch)) equal = false;
        if ((known += number) == 2) equal = false;
    }
    if (!equal) return 0;
    int64_t at = (int64_t)position;
    Val kept = 0;
    if (const_value(g, where.in[2], &zero) && zero == 0) kept = where.in[1];
    else if (const_value(g, where.in[1], &zero) && zero == 0 && extent_of(g, axis) == 2) kept = where.in[2], at = 1 - at;
    if (!kept || at < 0 || at >= extent_of(g, axis)) return 0;
    if (has_axis(node_of(g, kept), axis)) kept = make_pick(g, kept, axis, at);
    return make_broadcast(g, kept, n->naxes, n->axes);
}

// ------------------------------------------------------------------------------------------------- contractions
static Val product_summed(Graph *g, const Node *n, const Val in[2])
{
    Val a = make_cast(g, in[0], (DType)n->dtype), b = make_cast(g, in[1], (DType)n->dtype);
    Val v = reduce_in_parts(g, RED_SUM, make_map2(g, FN_MUL, a, b), n->u.over.n, n->u.over.axes);
    return make_broadcast(g, v, n->naxes, n->axes);
}

static Val select_contract(Graph *g, const Node *n)
{
    Node out = *n;
    if (options.target == TARGET_CPU && node_of(g, n->in[0])->dtype == BF16)
        for (int i = 0; i < 2; i++) out.in[i] = make_cast(g, n->in[i], F32);
    GemmPacks packs = gemm_packs(g, out.in, n->u.over.n, n->u.over.axes, n->naxes, n->axes);
    if (!packs.ok) return product_summed(g, n, n->in);
    for (int i = 0; i < 2; i++)
        if (packs.pack[i]) out.in[i] = pack(g, out.in[i], packs.order[i]);
    return graph_add(g, &out);
}

// ----------------------------------------------------------------------------------------------------- attention
static Val attention_operand(Graph *g, Val v, Axis head_dim)
{
    const Node *n = node_of(g, v);
    Window w = window_of(g, v);
    int at = axis_find(n, head_dim);
    if (w.ok && (at < 0 || w.stride[at] == 1 || extent_of(g, head_dim) == 1)) return v;
    Axis order[MAX_AXES];
    int count = 0;
    for (int i = 0; i < n->naxes; i++)
        if (n->axes[i] != head_dim) order[count++] = n->axes[i];
    if (at >= 0) order[count++] = head_dim;
    return pack(g, v, order);
}

static Val select_attention(Graph *g, const Node *n)
{
    Node out = *n;
    for (int i = 0; i < n->nin; i++) out.in[i] = attention_operand(g, n->in[i], n->u.attention->head_dim);
    return graph_add(g, &out);
}

// ------------------------------------------------------------------------------------------------------- updates
// A new value that is an old value, moved or of another leaf: all updates happen at once, so it is copied first. Who reads
// the update reads the value instead, so nothing comes after an update.
static Val select_update(Graph *g, const Node *n, Val *update)
{
    Node out = *n;
    Val v = n->in[0];
    while (node_of(g, v)->kind == K_VIEW) v = node_of(g, v)->in[0];
    Kind kind = (Kind)node_of(g, leaf_of(g, v))->kind;
    if (kind == K_PARAM || kind == K_STATE) out.in[0] = pack(g, n->in[0], n->axes);
    *update = graph_add(g, &out);
    return out.in[0];
}

// ------------------------------------------------------------------------------------------------- between ranks
// What a collective or transfer takes from memory: a dense value. Leaves are that as they lie.
typedef struct {
    Val *update;      // by old UPDATE: the new one (its readers get the value instead)
    Val *gathered;    // by old RESHARD: the old UPDATE it reads, or 0
} Select;

static Val select_reshard(Graph *g, const Select *s, const Node *n, Val old)
{
    if (s->gathered[old]) return make_reshard(g, s->update[s->gathered[old]], n->u.reshard);
    const Node in = *node_of(g, n->in[0]);
    bool dense = in.kind != K_VIEW && !is_formula_leaf(&in);
    return make_reshard(g, dense ? n->in[0] : pack(g, n->in[0], in.axes), n->u.reshard);
}

// What is sent is made once a micro-batch, in the segment that the value is of.
static void select_sends(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        Transfer *t = &g->transfers[i];
        const Node n = *node_of(g, t->val);
        if (!t->send || n.kind == K_RECV) continue;
        g->cur_seg = n.nin && n.seg > AT_PREP ? n.seg : seg_code(t->backward ? SEG_B : SEG_F, t->chunk);
        g->cur_chunk = t->chunk;
        g->cur_layer = n.layer, g->cur_loc = n.loc, g->cur_op = n.op, g->cur_backward = t->backward;
        t->val = pack_here(g, t->val, n.axes);
    }
    g->cur_seg = g->cur_chunk = 0;
}

// ---------------------------------------------------------------------------------------------------------- pass
static Val visit(Graph *g, void *ctx, const Node *n, Val old)
{
    Select *s = ctx;
    switch (n->kind) {
    case K_CONTRACT: return select_contract(g, n);
    case K_ATTENTION: case K_ATTENTION_GRAD: return select_attention(g, n);
    case K_UPDATE: return select_update(g, n, &s->update[old]);
    case K_RESHARD: return select_reshard(g, s, n, old);
    case K_REDUCE: {
        Val one = sum_of_one(g, n);
        return one ? one : reduce_in_parts(g, (Reduction)n->reduce, n->in[0], n->u.over.n, n->u.over.axes);
    }
    default: return 0;
    }
}

// Place of a segment in the run of the first micro-batch: forward from chunk to chunk, then back.
static int run_order(uint8_t seg)
{
    SegmentId id = seg_id(seg);
    int chunk = seg_chunk(seg);
    return id < SEG_F ? (int)id : id == SEG_F ? SEG_F + chunk : 1000 + 2 * (MAX_CHUNKS - chunk) + (id == SEG_W);
}

// Accumulates run in order of segments, then of nodes.
static void find_first_added(Graph *g)
{
    size_t n = vec_len(g->accs);
    vec_free(g->first_added);
    if (n) vec_add(g->first_added, n);
    for (size_t i = 0; i < n; i++) g->first_added[i] = 0;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        if (g->nodes[v].kind != K_ACCUMULATE) continue;
        Val *first = &g->first_added[g->nodes[v].u.id];
        if (!*first || run_order(g->nodes[v].seg) < run_order(g->nodes[*first].seg)) *first = v;
    }
}

void select_nodes(Graph *g)
{
    size_t n = vec_len(g->nodes);
    Select s = { xcalloc(n, sizeof *s.update), xcalloc(n, sizeof *s.gathered) };
    for (Val v = 1; v < n; v++)
        if (g->nodes[v].kind == K_RESHARD && g->nodes[g->nodes[v].in[0]].kind == K_UPDATE) s.gathered[v] = g->nodes[v].in[0];
    graph_rewrite(g, visit, &s);
    select_sends(g);
    find_first_added(g);
    free(s.update), free(s.gathered);
}

bool accumulate_is_first(const Graph *g, Val v) { return g->first_added[g->nodes[v].u.id] == v; }
