// emit_attention.c: attention and its gradient: fills templates/attention*.{c,cu}.
//
// The templates know one head: pointers to its q, k, v ... and strides along seq and head_dim. Here is what surrounds
// it: the axes that q has besides those two are loops; a key or value that lacks one of them (grouped heads) stands
// still along it. The gradient goes by heads of k and v; the query heads that share one are its members.
//
// Operands are read where they lie (window_of): GPT-2's q, k and v are parts of one tensor. Results are dense.
#include "emit.h"
#include <math.h>

enum { QUERIES = 16, WARPS = 4 };

typedef struct {
    const char *name;
    Val v;
    bool written;
    Window w;
    DType dtype;
    uint32_t arg;
} Operand;
typedef struct {
    Emitter *e;
    const Attention *how;
    DType compute;
    Operand op[9];
    int nops;
    Axis q_axes[MAX_AXES], k_axes[MAX_AXES], members[MAX_AXES]; // besides seq and head_dim; q's that k lacks
    int nq, nk, nmembers;
    Hole *holes; // vec
} Heads;

static void hole(Heads *h, const char *name, const char *text)
{
    vec_push(h->holes, (Hole){arena_strdup(&h->e->arena, name), text});
}

static void hole_number(Heads *h, const char *name, int64_t x)
{
    hole(h, name, arena_printf(&h->e->arena, "%lld", (long long)x));
}

static Window dense(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v];
    Window w = {.ok = true, .base = v};
    int64_t stride = 1;
    for (int i = n->naxes; i-- > 0; stride *= extent_of(g, n->axes[i])) w.stride[i] = stride;
    return w;
}

static int64_t stride_along(const Heads *h, const Operand *o, Axis a)
{
    int k = axis_find(&h->e->g->nodes[o->v], a);
    return k < 0 ? 0 : o->w.stride[k];
}

static void operand(Heads *h, const char *name, Val v, bool written)
{
    Emitter *e = h->e;
    Operand *o = &h->op[h->nops++];
    *o = (Operand){.name = name, .v = v, .written = written, .w = written ? dense(e->g, v) : window_of(e->g, v)};
    if (!o->w.ok) bug("operand %s (node %u) of attention lies nowhere", name, v);
    o->dtype = e->g->nodes[o->w.base].dtype;
    o->arg = arg_of(e, o->w.base, !written, written);
    const char *load = o->dtype == BF16 ? "p_from_bf16" : "", *store = o->dtype == BF16 ? "p_to_bf16" : "";
    hole(h, arena_printf(&e->arena, "%s_load", name), load);
    hole(h, arena_printf(&e->arena, "%s_store", name), store);
    hole(h, arena_printf(&e->arena, "%s_type", name), dtype_name(o->dtype));
    hole_number(h, arena_printf(&e->arena, "%s_seq", name), stride_along(h, o, h->how->seq));
    hole_number(h, arena_printf(&e->arena, "%s_dim", name), stride_along(h, o, h->how->head_dim));
}

static int other_axes(const Heads *h, Val v, Axis *out)
{
    const Node *n = &h->e->g->nodes[v];
    int count = 0;
    for (int i = 0; i < n->naxes; i++)
        if (n->axes[i] != h->how->seq && n->axes[i] != h->how->head_dim) out[count++] = n->axes[i];
    return count;
}

static Val part_of(const Emitter *e, uint32_t id)
{
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        const Node *n = &e->g->nodes[e->group->nodes[i]];
        if (n->kind == K_PART && n->u.id == id) return e->group->nodes[i];
    }
    return 0;
}

static Heads heads_of(Emitter *e)
{
    Heads h = {.e = e};
    Val v = e->group->nodes[0];
    bool grad = e->group->kind == G_ATTENTION_GRAD;
    const Node *n = &e->g->nodes[v];
    h.how = grad && !n->u.attention ? e->g->nodes[n->in[3]].u.attention : n->u.attention;
    h.compute = graph_compute_dtype(e->g);
    const char *read[] = {"q", "k", "v", "o", "lse", "g"};
    for (int i = 0; i < (grad ? 6 : 3); i++) operand(&h, read[i], n->in[i], false);
    operand(&h, grad ? "dq" : "o", v, true);
    for (uint32_t i = 1; grad && i <= 2; i++) {
        if (!part_of(e, i)) bug("attention_grad %u without part %u", v, i);
        operand(&h, i == 1 ? "dk" : "dv", part_of(e, i), true);
    }
    if (!grad && part_of(e, 1)) operand(&h, "lse", part_of(e, 1), true);
    h.nq = other_axes(&h, n->in[0], h.q_axes);
    h.nk = other_axes(&h, n->in[1], h.k_axes);
    for (int i = 0; i < h.nq; i++)
        if (!has_axis(&e->g->nodes[n->in[1]], h.q_axes[i])) h.members[h.nmembers++] = h.q_axes[i];
    if (grad && h.nk != e->g->nodes[n->in[2]].naxes - 2) bug("k and v of attention differ in their axes");
    return h;
}

// Rows are the axes and, fastest, `count` pieces of the sequence. Gives the piece's position.
static IdxId place_rows(Heads *h, int n, const Axis *axes, const char *piece, int64_t count)
{
    Emitter *e = h->e;
    uint32_t parts[MAX_AXES + 1];
    for (int i = 0; i < n; i++) parts[i] = var_new(e, VAR_PART, axis_var_name(e, axes[i]), extent_of(e->g, axes[i]), 1);
    parts[n] = var_new(e, VAR_PART, piece, count, 1);
    int64_t rows = extent_product(e->g, n, axes) * count;
    var_parts(e, var_loop(e, "r", rows, 1, true), (size_t)n + 1, parts);
    for (int i = 0; i < n; i++) place_axis(e, axes[i], idx_var(e, parts[i]));
    e->out->rows = (uint64_t)rows;
    return idx_var(e, parts[n]);
}

static void point(Heads *h, const char *name, int level)
{
    Emitter *e = h->e;
    for (int i = 0; i < h->nops; i++) {
        const Operand *o = &h->op[i];
        if (strcmp(o->name, name)) continue;
        IdxId at = idx_const(e, o->w.offset);
        const Node *n = &e->g->nodes[o->v];
        for (int k = 0; k < n->naxes; k++) {
            Axis a = n->axes[k];
            if (a == h->how->seq || a == h->how->head_dim || extent_of(e->g, a) == 1) continue;
            for (size_t p = 0; p < vec_len(e->positions); p++)
                if (e->positions[p].axis == a) at = idx_add(e, at, e->positions[p].idx, o->w.stride[k]);
        }
        const char *text = idx_text(e, at);
        emit_line(e, level, "%s%s *%s = a%u + %s;", o->written ? "" : "const ", dtype_ctype(o->dtype), name, o->arg,
                  text);
    }
}

static void point_all(Heads *h, const char *names, int level)
{
    char name[8];
    for (const char *s = names; *s; s += strspn(s, " ")) {
        size_t n = strcspn(s, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, s);
        point(h, intern(name), level);
        s += n;
    }
}

static void common_holes(Heads *h)
{
    Emitter *e = h->e;
    int64_t seq = extent_of(e->g, h->how->seq), dim = extent_of(e->g, h->how->head_dim);
    int64_t window = h->how->window < (double)seq ? (int64_t)ceil(h->how->window) : 0; // 0: none
    const char *seen = "(back >= 0)", *first = "0";
    if (window) {
        seen = arena_printf(&e->arena, "((back >= 0) & (back < %lld))", (long long)window);
        first = arena_printf(&e->arena, "q0 < %lld ? 0 : q0 - %lld", (long long)window, (long long)window - 1);
    }
    hole(h, "T", local_type(h->compute));
    hole(h, "S", type_suffix(h->compute));
    hole(h, "scale", float_text(e, h->how->scale, h->compute != F64));
    hole(h, "seen", seen);
    hole(h, "first_key", first);
    hole_number(h, "seq", seq);
    hole_number(h, "dim", dim);
    hole_number(h, "wide", (dim + QUERIES - 1) / QUERIES * QUERIES);
    hole_number(h, "members", extent_product(e->g, h->nmembers, h->members));
}

static char *finish(Heads *h, const char *file)
{
    Emitter *e = h->e;
    Buf out = {0};
    hole(h, "arguments", arguments_text(e));
    hole(h, "kernel", emit_close(e, 0));
    hole_number(h, "rows", (int64_t)e->out->rows);
    const char *path = arena_printf(&e->arena, "%s.%s", file, e->target == TARGET_CUDA ? "cu" : "c");
    template_expand(&out, path, "function", h->holes, vec_len(h->holes));
    vec_free(h->holes);
    return out.s;
}

static uint32_t warp_blocks(uint64_t rows)
{
    return (uint32_t)((rows + WARPS - 1) / WARPS);
}

static char *forward(Heads *h)
{
    Emitter *e = h->e;
    bool cuda = e->target == TARGET_CUDA;
    int64_t seq = extent_of(e->g, h->how->seq), dim = extent_of(e->g, h->how->head_dim);
    Buf lse = {0};
    IdxId piece = place_rows(h, h->nq, h->q_axes, cuda ? "query" : "block", cuda ? seq : (seq + QUERIES - 1) / QUERIES);
    emit_line(e, 1, cuda ? "const int q0 = %s;" : "const int q0 = %s * 16;", idx_text(e, piece));
    point_all(h, "q k v o lse", 1);
    if (part_of(e, 1)) template_expand(&lse, cuda ? "attention.cu" : "attention.c", "lse", h->holes, vec_len(h->holes));
    hole(h, "store_lse", lse.s ? arena_strdup(&e->arena, lse.s) : "");
    hole(h, "row", emit_close(e, 1));
    buf_free(&lse);
    e->out->grain = 1;
    if (cuda) {
        e->out->block[0] = WARPS * 32;
        e->out->grid[0] = warp_blocks(e->out->rows);
    } else
        e->out->scratch = (uint64_t)(dim * 2 + seq) * QUERIES * (uint64_t)dtype_bytes(h->compute);
    return finish(h, "attention");
}

static void place_members(Heads *h)
{
    place_parts(h->e, var_loop(h->e, "m", extent_product(h->e->g, h->nmembers, h->members), 2, false), h->nmembers,
                h->members);
}

static char *backward_cpu(Heads *h)
{
    Emitter *e = h->e;
    int64_t seq = extent_of(e->g, h->how->seq), dim = extent_of(e->g, h->how->head_dim);
    int64_t wide = (dim + QUERIES - 1) / QUERIES * QUERIES;
    place_rows(h, h->nk, h->k_axes, "one", 1);
    place_members(h);
    point_all(h, "k v dk dv", 1);
    point_all(h, "q o lse g dq", 2);
    hole(h, "member", emit_close(e, 2));
    hole(h, "row", emit_close(e, 1));
    e->out->grain = 1;
    e->out->scratch = (uint64_t)(2 * seq * wide + 2 * seq * QUERIES + 3 * dim * QUERIES + 2 * QUERIES * wide);
    e->out->scratch *= (uint64_t)dtype_bytes(h->compute);
    return finish(h, "attention_grad");
}

static char *backward_cuda(Heads *h)
{
    Emitter *e = h->e;
    int64_t seq = extent_of(e->g, h->how->seq);
    IdxId query = place_rows(h, h->nq, h->q_axes, "query", seq);
    uint32_t query_blocks = warp_blocks(e->out->rows);
    hole_number(h, "query_rows", (int64_t)e->out->rows);
    hole_number(h, "query_blocks", query_blocks);
    emit_line(e, 1, "const int q0 = %s;", idx_text(e, query));
    point_all(h, "q k v o lse g dq", 1);
    hole(h, "query_row", emit_close(e, 1));
    IdxId key = place_rows(h, h->nk, h->k_axes, "key", seq);
    place_members(h);
    hole_number(h, "key_rows", (int64_t)e->out->rows);
    emit_line(e, 1, "const int j0 = %s;", idx_text(e, key));
    point_all(h, "k v dk dv", 1);
    point_all(h, "q o lse g", 2);
    hole(h, "member", emit_close(e, 2));
    hole(h, "key_row", emit_close(e, 1));
    e->out->block[0] = WARPS * 32;
    e->out->grid[0] = query_blocks + warp_blocks(e->out->rows);
    return finish(h, "attention_grad");
}

char *emit_attention(Emitter *e)
{
    emit_reset(e);
    e->top = 2;
    Heads h = heads_of(e);
    common_holes(&h);
    if (e->group->kind == G_ATTENTION) return forward(&h);
    return e->target == TARGET_CUDA ? backward_cuda(&h) : backward_cpu(&h);
}
