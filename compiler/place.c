// place.c: a buffer for every stored value and leaf, and its offset in an arena.
//
// PERSIST holds what outlives a micro-batch: leaves, outputs, values of INIT and PREP that other segments read. SAVED
// holds what F writes and B reads; all of it is alive between the two, so it lies end to end. Everything else is WORK:
// alive from the group that writes it to the last that reads it. WORK is packed offline: largest first, each in the
// smallest gap that fits among what is alive with it (Lee et al., "greedy by size"; Kierstead: such greedy colouring of
// intervals stays within a small factor of the lower bound, in practice it meets it, see --report).
//
// In place: what an elementwise group writes may take over the bytes of an input that dies there, has the same axes in
// the same order and is read at its own position only. Buffers that follow each other so are one block.
//
// ACCUMULATE and UPDATE have no buffer of their own: theirs is that of the total or target.
#include "pico.h"

enum { ALIGN = 64 };

typedef struct {
    uint32_t first, last;  // groups, inclusive
    uint64_t bytes, offset;
} Block;

typedef struct {
    Graph *g;
    Block *blocks;         // vec
    uint32_t *block_of;    // by node, + 1; 0: not in WORK
    uint32_t *last_read;   // by node: last group that reads or writes it
    uint8_t *crosses;      // by node: another segment reads it
} Place;

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

// --------------------------------------------------------------------------------------------------------- buffers
static const char *buffer_name(Graph *g, Val v)
{
    const Node *n = node_of(g, v);
    switch (n->kind) {
    case K_INPUT: return g->inputs[n->u.id].name;
    case K_PARAM: return g->params[n->u.id].name;
    case K_TOTAL: {
        const Acc *acc = &g->accs[n->u.id];
        return acc->param >= 0 ? arena_printf(&g->arena, "%s.grad", g->params[acc->param].name) : acc->name;
    }
    case K_STATE: return arena_printf(&g->arena, "%s.%s", g->params[g->states[n->u.id].param].name, g->states[n->u.id].name);
    default: break;
    }
    Buf place = { 0 };
    const char *text = node_place(g, v, &place);
    text = arena_printf(&g->arena, "%s%s%%%u", text ? text : "", text && *text ? " " : "", v);
    buf_free(&place);
    return text;
}

static Buffer *add_buffer(Graph *g, Val v, PlanArena arena)
{
    Buffer b = { .val = v, .name = buffer_name(g, v), .dtype = (DType)g->nodes[v].dtype, .arena = arena,
                 .bytes = value_bytes(g, v), .first = 0, .last = UINT32_MAX };
    vec_push(g->buffers, b);
    g->buffer_of[v] = (uint32_t)vec_len(g->buffers);
    return &g->buffers[vec_len(g->buffers) - 1];
}

static void add_leaves(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->inputs); i++) add_buffer(g, g->inputs[i].val, ARENA_PERSIST);
    for (size_t i = 0; i < vec_len(g->params); i++) add_buffer(g, g->params[i].val, ARENA_PERSIST);
    for (size_t i = 0; i < vec_len(g->states); i++) add_buffer(g, g->states[i].val, ARENA_PERSIST);
    for (size_t i = 0; i < vec_len(g->accs); i++) add_buffer(g, g->accs[i].total, ARENA_PERSIST);
}

static void find_lifetimes(Place *p)
{
    const Graph *g = p->g;
    for (uint32_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        for (size_t k = 0; k < vec_len(group->writes); k++) p->last_read[group->writes[k]] = i;
        for (size_t k = 0; k < vec_len(group->reads); k++) {
            Val v = group->reads[k];
            p->last_read[v] = i;
            if (g->group_of[v] && g->groups[g->group_of[v] - 1].seg != group->seg) p->crosses[v] = 1;
        }
    }
    for (size_t i = 0; i < vec_len(g->outputs); i++) p->crosses[g->outputs[i].val] = 1;
}

static PlanArena arena_of(const Place *p, Val v)
{
    if (!p->crosses[v]) return ARENA_WORK;
    for (size_t i = 0; i < vec_len(p->g->outputs); i++)
        if (p->g->outputs[i].val == v) return ARENA_PERSIST;
    return p->g->groups[p->g->group_of[v] - 1].seg == SEG_F ? ARENA_SAVED : ARENA_PERSIST;
}

// -------------------------------------------------------------------------------------------------------- in place
static bool is_elementwise(const Graph *g, const Group *group)
{
    for (size_t i = 0; i < vec_len(group->nodes); i++)
        if (g->nodes[group->nodes[i]].kind == K_REDUCE) return false;
    return group->kind == G_ROW;
}

static bool same_layout(const Graph *g, Val v, Val w)
{
    const Node *a = &g->nodes[v], *b = &g->nodes[w];
    return dtype_bytes((DType)a->dtype) == dtype_bytes((DType)b->dtype) && a->naxes == b->naxes
        && !memcmp(a->axes, b->axes, sizeof *a->axes * a->naxes);
}

// The input whose bytes group i can write v over, 0 if there is none.
static Val dying_input(const Place *p, uint32_t i, Val v, const uint8_t *taken)
{
    const Group *group = &p->g->groups[i];
    if (!is_elementwise(p->g, group) || p->g->nodes[v].naxes != group->ndom) return 0;
    for (size_t k = 0; k < vec_len(group->reads); k++) {
        Val r = group->reads[k];
        if (p->block_of[r] && p->last_read[r] == i && !group->reads_far[k] && !taken[r] && same_layout(p->g, v, r)) return r;
    }
    return 0;
}

static void add_work(Place *p, uint32_t i, Val v, uint8_t *taken)
{
    Buffer *b = add_buffer(p->g, v, ARENA_WORK);
    b->first = i, b->last = p->last_read[v];
    Val under = dying_input(p, i, v, taken);
    if (under) {
        taken[under] = 1;
        p->block_of[v] = p->block_of[under];
        p->blocks[p->block_of[v] - 1].last = b->last;
        return;
    }
    vec_push(p->blocks, (Block){ .first = b->first, .last = b->last, .bytes = aligned(b->bytes) });
    p->block_of[v] = (uint32_t)vec_len(p->blocks);
}

static void add_values(Place *p)
{
    Graph *g = p->g;
    uint8_t *taken = xcalloc(vec_len(g->nodes), 1);
    for (uint32_t i = 0; i < vec_len(g->groups); i++)
        for (size_t k = 0; k < vec_len(g->groups[i].writes); k++) {
            Val v = g->groups[i].writes[k];
            Kind kind = (Kind)g->nodes[v].kind;
            if (is_storage(&g->nodes[v]) || kind == K_UPDATE || kind == K_ACCUMULATE) continue;
            PlanArena arena = arena_of(p, v);
            if (arena == ARENA_WORK) {
                add_work(p, i, v, taken);
                continue;
            }
            Buffer *b = add_buffer(g, v, arena);
            if (arena == ARENA_SAVED) b->first = i, b->last = p->last_read[v];
        }
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *n = &g->nodes[v];
        if (n->kind == K_UPDATE) g->buffer_of[v] = g->buffer_of[n->in[1]];
        if (n->kind == K_ACCUMULATE) g->buffer_of[v] = g->buffer_of[g->accs[n->u.id].total];
    }
    free(taken);
}

// ---------------------------------------------------------------------------------------------------------- packing
static const Block *sorting;
static int by_size(const void *a, const void *b)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const Block *x = &sorting[i], *y = &sorting[j];
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return i < j ? -1 : i > j;
}

static bool alive_together(const Block *a, const Block *b) { return a->first <= b->last && b->first <= a->last; }

// The smallest gap that holds b between blocks alive with it; `placed` is sorted by offset.
static uint64_t best_offset(const Place *p, const uint32_t *placed, const Block *b)
{
    uint64_t end = 0, best = 0, best_size = UINT64_MAX;
    for (size_t i = 0; i < vec_len(placed); i++) {
        const Block *x = &p->blocks[placed[i]];
        if (!alive_together(x, b)) continue;
        if (x->offset >= end + b->bytes && x->offset - end < best_size) best = end, best_size = x->offset - end;
        end = max_of(end, x->offset + x->bytes);
    }
    return best_size == UINT64_MAX ? end : best;
}

static uint64_t pack_blocks(Place *p)
{
    size_t n = vec_len(p->blocks);
    uint32_t *by = xmalloc((n + 1) * sizeof *by), *placed = NULL;
    uint64_t size = 0;
    for (uint32_t i = 0; i < n; i++) by[i] = i;
    sorting = p->blocks;
    qsort(by, n, sizeof *by, by_size);
    for (size_t i = 0; i < n; i++) {
        Block *b = &p->blocks[by[i]];
        b->offset = best_offset(p, placed, b);
        size = max_of(size, b->offset + b->bytes);
        size_t at = vec_len(placed);
        vec_push(placed, by[i]);
        for (; at > 0 && p->blocks[placed[at - 1]].offset > b->offset; at--) placed[at] = placed[at - 1];
        placed[at] = by[i];
    }
    vec_free(placed);
    free(by);
    return size;
}

static uint64_t largest_sum(const Place *p)
{
    size_t n = vec_len(p->g->groups);
    int64_t *change = xcalloc(n + 2, sizeof *change), now = 0, most = 0;
    for (size_t i = 0; i < vec_len(p->blocks); i++) {
        change[p->blocks[i].first] += (int64_t)p->blocks[i].bytes;
        change[p->blocks[i].last + 1] -= (int64_t)p->blocks[i].bytes;
    }
    for (size_t i = 0; i <= n; i++) {
        now += change[i];
        most = max_of(most, now);
    }
    free(change);
    return (uint64_t)most;
}

// ------------------------------------------------------------------------------------------------------------ check
// A sweep over time: blocks that are alive, sorted by offset, must not overlap. Independent of how they were placed.
static void check_blocks(const Place *p)
{
    size_t n = vec_len(p->blocks), ngroups = vec_len(p->g->groups);
    uint32_t *start = xcalloc(ngroups + 2, sizeof *start), *by_start = xmalloc((n + 1) * sizeof *by_start), *alive = NULL;
    for (size_t i = 0; i < n; i++) start[p->blocks[i].first + 1]++;
    for (size_t i = 0; i < ngroups; i++) start[i + 1] += start[i];
    for (uint32_t i = 0; i < n; i++) by_start[start[p->blocks[i].first]++] = i;
    for (size_t i = 0; i < n; i++) {
        const Block *b = &p->blocks[by_start[i]];
        size_t kept = 0;
        for (size_t k = 0; k < vec_len(alive); k++) {
            const Block *x = &p->blocks[alive[k]];
            if (x->last < b->first) continue;
            if (x->offset < b->offset + b->bytes && b->offset < x->offset + x->bytes) bug("place: two live buffers overlap");
            alive[kept++] = alive[k];
        }
        if (alive) vec_header(alive)->len = kept;
        vec_push(alive, by_start[i]);
    }
    vec_free(alive);
    free(start), free(by_start);
}

// ------------------------------------------------------------------------------------------------------------- pass
static void assign_offsets(Place *p)
{
    Graph *g = p->g;
    for (size_t i = 0; i < vec_len(g->buffers); i++) {
        Buffer *b = &g->buffers[i];
        if (b->arena == ARENA_WORK) {
            b->offset = p->blocks[p->block_of[b->val] - 1].offset;
            continue;
        }
        b->offset = g->arena_bytes[b->arena];
        g->arena_bytes[b->arena] += aligned(b->bytes);
        g->live_bound[b->arena] = g->arena_bytes[b->arena];
    }
}

void place(Graph *g)
{
    size_t n = vec_len(g->nodes);
    Place p = { .g = g };
    p.block_of = xcalloc(n, sizeof *p.block_of), p.last_read = xcalloc(n, sizeof *p.last_read), p.crosses = xcalloc(n, 1);
    vec_free(g->buffers);
    vec_free(g->buffer_of);
    vec_add(g->buffer_of, n);
    memset(g->buffer_of, 0, n * sizeof *g->buffer_of);
    memset(g->arena_bytes, 0, sizeof g->arena_bytes);
    memset(g->live_bound, 0, sizeof g->live_bound);
    find_lifetimes(&p);
    add_leaves(g);
    add_values(&p);
    g->arena_bytes[ARENA_WORK] = pack_blocks(&p);
    g->live_bound[ARENA_WORK] = largest_sum(&p);
    check_blocks(&p);
    assign_offsets(&p);
    vec_free(p.blocks);
    free(p.block_of), free(p.last_read), free(p.crosses);
}
