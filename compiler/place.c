// place.c: a buffer for every stored value and leaf, and its offset in an arena.
//
// PERSIST holds what outlives a micro-batch: leaves, outputs, values of INIT and PREP that other segments read. What one
// segment of a micro-batch leaves for another lies in slotted arenas (runtime/plan.h: classes), end to end: all of a slot
// is taken to be alive at once. FB FW BW: from F for B, from F for W, from B for W. RF RB: landing of what other stages
// send. SF SB: what is sent and in none of these. Inputs are PERSIST: the executor loads them again before a segment
// whose micro-batch they are not of.
//
// Everything else is WORK: alive from the group that writes it to the last that reads it. WORK is packed offline:
// largest first, each in the smallest gap that fits among what is alive with it (Lee et al., "greedy by size"; Kierstead:
// such greedy colouring of intervals stays within a small factor of the lower bound, in practice it meets it, see
// --report).
//
// In place: what an elementwise group writes may take over the bytes of an input that dies there, has the same axes in
// the same order and is read at its own position only; likewise an ALL_REDUCE of what nothing else reads any more.
// Buffers that follow each other so are one block. Operands and results of collectives are in use from START to WAIT.
//
// ACCUMULATE and UPDATE have no buffer of their own: theirs is that of the total or target. What reduces a total, or
// gathers the parts of a parameter, works in the buffer of that (reshard_in_place). Such buffers have room for as many
// parts of equal size as there are.
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
    uint32_t *last_kernel; // by node: last of them that is no collective
    uint8_t *collectives;  // by node: how many take it
    uint8_t *home;         // by node: PlanClass
    uint8_t *home_chunk;
} Placer;

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

static Buffer *add_buffer(Graph *g, Val v, uint32_t arena)
{
    Buffer b = { .val = v, .name = buffer_name(g, v), .dtype = (DType)g->nodes[v].dtype, .arena = arena,
                 .bytes = value_bytes(g, v), .first = 0, .last = UINT32_MAX };
    vec_push(g->buffers, b);
    g->buffer_of[v] = (uint32_t)vec_len(g->buffers);
    return &g->buffers[vec_len(g->buffers) - 1];
}

// The arena of a class and chunk; made when first asked for, in any order (sort_arenas).
static uint32_t arena_index(Graph *g, PlanClass class_, uint32_t chunk)
{
    if (class_ <= CLASS_WORK) return class_ == CLASS_WORK ? ARENA_WORK : ARENA_PERSIST;
    for (uint32_t i = ARENA_WORK + 1; i < vec_len(g->arenas); i++)
        if (g->arenas[i].class_ == class_ && g->arenas[i].chunk == chunk) return i;
    vec_push(g->arenas, (PlanArena){ .class_ = class_, .chunk = chunk, .slots = 1 });
    return (uint32_t)vec_len(g->arenas) - 1;
}

static void add_leaves(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->inputs); i++) add_buffer(g, g->inputs[i].val, ARENA_PERSIST);
    for (size_t i = 0; i < vec_len(g->params); i++) add_buffer(g, g->params[i].val, ARENA_PERSIST);
    for (size_t i = 0; i < vec_len(g->states); i++) add_buffer(g, g->states[i].val, ARENA_PERSIST);
    for (size_t i = 0; i < vec_len(g->accs); i++) add_buffer(g, g->accs[i].total, ARENA_PERSIST);
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        if (!t->send) add_buffer(g, t->val, arena_index(g, t->backward ? CLASS_RB : CLASS_RF, t->chunk));
    }
}

// The leaf whose storage is cut in equal parts by v, or 0.
static Val parted_leaf(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v];
    if (n->kind == K_SLICE) return n->in[0];
    return n->kind == K_RESHARD && n->u.reshard->how == COLL_REDUCE_SCATTER && reshard_in_place(g, v) ? n->in[0] : 0;
}

static void grow_parted_leaves(Graph *g)
{
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        Val leaf = parted_leaf(g, v);
        if (!leaf) continue;
        Buffer *b = &g->buffers[g->buffer_of[leaf] - 1];
        b->bytes = max_of(b->bytes, value_bytes(g, v) * (uint64_t)key_ranks(g, g->nodes[v].u.reshard->key));
    }
}

// ---------------------------------------------------------------------------------------------- lifetimes, classes
static bool is_collective(const Group *group) { return group->kind == G_START || group->kind == G_WAIT; }

static void find_lifetimes(Placer *p)
{
    const Graph *g = p->g;
    for (uint32_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        bool collective = is_collective(group);
        for (size_t k = 0; k < vec_len(group->writes); k++) p->last_read[group->writes[k]] = i;
        for (size_t k = 0; k < vec_len(group->reads); k++) {
            Val v = group->reads[k];
            p->last_read[v] = i;
            if (!collective) p->last_kernel[v] = i;
            if (group->kind == G_START) p->collectives[v] = (uint8_t)min_of(p->collectives[v] + 1, 2);
        }
    }
}

// Where v lies because group `reader` wants it.
static PlanClass class_for(const Graph *g, Val v, const Group *reader)
{
    uint8_t from = g->groups[g->group_of[v] - 1].seg, to = reader->seg;
    SegmentId a = seg_id(from), b = seg_id(to);
    if (from == to) return CLASS_WORK;
    if (a <= SEG_PREP || a == SEG_UPDATE) return CLASS_PERSIST;
    if (b <= a || b == SEG_UPDATE || seg_chunk(from) != seg_chunk(to)) bug("place: %%%u is read in a segment that it cannot reach", v);
    return a == SEG_B ? CLASS_BW : b == SEG_W ? CLASS_FW : CLASS_FB;
}

static void find_homes(Placer *p)
{
    const Graph *g = p->g;
    memset(p->home, CLASS_WORK, vec_len(g->nodes));
    for (uint32_t i = 0; i < vec_len(g->groups); i++)
        for (size_t k = 0; k < vec_len(g->groups[i].reads); k++) {
            Val v = g->groups[i].reads[k];
            if (!g->group_of[v] || g->nodes[v].kind == K_UPDATE) continue;
            PlanClass home = class_for(g, v, &g->groups[i]);
            if (home == CLASS_PERSIST) p->home[v] = CLASS_PERSIST;
            else if (p->home[v] != CLASS_PERSIST) p->home[v] = (uint8_t)max_of((int)p->home[v], (int)home);  // W: later than B
            p->home_chunk[v] = (uint8_t)seg_chunk(g->groups[g->group_of[v] - 1].seg);
        }
    for (size_t i = 0; i < vec_len(g->outputs); i++) p->home[g->outputs[i].val] = CLASS_PERSIST;
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        if (!t->send || p->home[t->val] != CLASS_WORK) continue;
        p->home[t->val] = t->backward ? CLASS_SB : CLASS_SF, p->home_chunk[t->val] = t->chunk;
    }
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
static Val dying_input(const Placer *p, uint32_t i, Val v, const uint8_t *taken)
{
    const Group *group = &p->g->groups[i];
    if (!is_elementwise(p->g, group) || p->g->nodes[v].naxes != group->ndom) return 0;
    for (size_t k = 0; k < vec_len(group->reads); k++) {
        Val r = group->reads[k];
        if (p->block_of[r] && p->last_read[r] == i && !group->reads_far[k] && !taken[r] && same_layout(p->g, v, r)) return r;
    }
    return 0;
}

// The operand of an ALL_REDUCE that nothing else will read, so that the result of START i can lie there.
static Val dying_operand(const Placer *p, uint32_t i, Val v, const uint8_t *taken)
{
    const Node *n = &p->g->nodes[v];
    Val r = n->in[0];
    if (n->kind != K_RESHARD || n->u.reshard->how != COLL_ALL_REDUCE) return 0;
    return p->block_of[r] && p->collectives[r] == 1 && p->last_kernel[r] < i && !taken[r] ? r : 0;
}

static void add_work(Placer *p, uint32_t i, Val v, uint8_t *taken)
{
    Buffer *b = add_buffer(p->g, v, ARENA_WORK);
    b->first = i, b->last = p->last_read[v];
    bool collective = p->g->groups[i].kind == G_START;
    Val under = collective ? dying_operand(p, i, v, taken) : dying_input(p, i, v, taken);
    if (under) {
        taken[under] = 1;
        p->block_of[v] = p->block_of[under];
        p->blocks[p->block_of[v] - 1].last = max_of(b->last, p->last_read[under]);
        return;
    }
    vec_push(p->blocks, (Block){ .first = b->first, .last = b->last, .bytes = aligned(b->bytes) });
    p->block_of[v] = (uint32_t)vec_len(p->blocks);
}

static void add_value(Placer *p, uint32_t i, Val v, uint8_t *taken)
{
    Graph *g = p->g;
    Kind kind = (Kind)g->nodes[v].kind;
    PlanClass home = (PlanClass)p->home[v];
    if (g->buffer_of[v] || is_storage(&g->nodes[v]) || kind == K_UPDATE || kind == K_ACCUMULATE || reshard_in_place(g, v)) return;
    if (home == CLASS_WORK) {
        add_work(p, i, v, taken);
        return;
    }
    Buffer *b = add_buffer(g, v, arena_index(g, home, p->home_chunk[v]));
    if (home == CLASS_FB || home == CLASS_FW || home == CLASS_BW) b->first = i, b->last = p->last_read[v];
}

static void add_values(Placer *p)
{
    Graph *g = p->g;
    uint8_t *taken = xcalloc(vec_len(g->nodes), 1);
    for (uint32_t i = 0; i < vec_len(g->groups); i++)
        for (size_t k = 0; k < vec_len(g->groups[i].writes); k++) add_value(p, i, g->groups[i].writes[k], taken);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *n = &g->nodes[v];
        if (n->kind == K_SLICE) g->buffer_of[v] = g->buffer_of[n->in[0]];
        if (n->kind == K_UPDATE) g->buffer_of[v] = g->buffer_of[n->in[1]];
        if (n->kind == K_ACCUMULATE) g->buffer_of[v] = g->buffer_of[g->accs[n->u.id].total];
        if (reshard_in_place(g, v)) g->buffer_of[v] = g->buffer_of[n->in[0]];
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
static uint64_t best_offset(const Placer *p, const uint32_t *placed, const Block *b)
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

static uint64_t pack_blocks(Placer *p)
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

static uint64_t largest_sum(const Placer *p)
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
static void check_blocks(const Placer *p)
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
// Slotted arenas by chunk, then class, as the plan lists them.
static void sort_arenas(Graph *g)
{
    size_t n = vec_len(g->arenas);
    uint32_t *at = xmalloc((n + 1) * sizeof *at);
    PlanArena *sorted = NULL;
    for (uint32_t i = 0; i < n; i++) {
        at[i] = 0;
        for (uint32_t k = 0; k < n; k++) {
            const PlanArena *a = &g->arenas[k], *b = &g->arenas[i];
            bool slots = k > ARENA_WORK && i > ARENA_WORK;
            at[i] += slots ? a->chunk < b->chunk || (a->chunk == b->chunk && a->class_ < b->class_) : k < i;
        }
        vec_push(sorted, (PlanArena){ 0 });
    }
    for (uint32_t i = 0; i < n; i++) sorted[at[i]] = g->arenas[i];
    for (size_t i = 0; i < vec_len(g->buffers); i++) g->buffers[i].arena = at[g->buffers[i].arena];
    vec_free(g->arenas);
    g->arenas = sorted;
    free(at);
}

static void assign_offsets(Placer *p)
{
    Graph *g = p->g;
    for (size_t i = 0; i < vec_len(g->buffers); i++) {
        Buffer *b = &g->buffers[i];
        if (b->arena == ARENA_WORK) {
            b->offset = p->blocks[p->block_of[b->val] - 1].offset;
            continue;
        }
        b->offset = g->arenas[b->arena].bytes;
        g->arenas[b->arena].bytes += aligned(b->bytes);
    }
}

// ---------------------------------------------------------------------------------------------------------- schedule
static Work work_of(uint8_t seg) { return seg_id(seg) == SEG_W ? WORK_W : seg_id(seg) == SEG_B ? WORK_B : WORK_F; }

static Crossing crossing_of(const Graph *g, const Transfer *t)
{
    Work standard = t->backward ? WORK_B : WORK_F;
    Crossing c = { .tag = t->tag, .peer = t->peer, .send = t->send, .chunk = t->chunk, .at = standard, .until = standard };
    c.class_ = (PlanClass)g->arenas[g->buffers[g->buffer_of[t->val] - 1].arena].class_;
    if (t->send && g->group_of[t->val]) c.at = c.until = work_of(g->groups[g->group_of[t->val] - 1].seg);
    for (size_t i = 0; i < vec_len(g->groups) && !t->send; i++)
        for (size_t k = 0; k < vec_len(g->groups[i].reads); k++)
            if (g->groups[i].reads[k] == t->val) c.until = max_of(c.until, work_of(g->groups[i].seg));
    return c;
}

static void make_schedule(Graph *g, Program *prog)
{
    bool used[CLASS_COUNT] = { false };
    Crossing *crossings = NULL;
    for (size_t i = 0; i < vec_len(g->transfers); i++) vec_push(crossings, crossing_of(g, &g->transfers[i]));
    for (size_t i = ARENA_WORK + 1; i < vec_len(g->arenas); i++) used[g->arenas[i].class_] = true;
    vec_free(prog->crossings[g->stage]);
    prog->crossings[g->stage] = crossings;
    StageSchedule *s = &prog->schedules[g->stage];
    *s = pipeline_steps(prog->tasks[g->stage], prog->shape.chunks, vec_len(crossings), crossings, used);
    for (size_t i = ARENA_WORK + 1; i < vec_len(g->arenas); i++)
        g->arenas[i].slots = max_of(s->slots[g->arenas[i].chunk][g->arenas[i].class_ - CLASS_FB], 1);
}

// -------------------------------------------------------------------------------------------------------------- pass
static Placer placer_new(Graph *g)
{
    size_t n = vec_len(g->nodes);
    Placer p = { .g = g };
    p.block_of = xcalloc(n, sizeof *p.block_of), p.last_read = xcalloc(n, sizeof *p.last_read);
    p.last_kernel = xcalloc(n, sizeof *p.last_kernel), p.collectives = xcalloc(n, 1);
    p.home = xcalloc(n, 1), p.home_chunk = xcalloc(n, 1);
    vec_free(g->buffers), vec_free(g->buffer_of), vec_free(g->arenas);
    vec_add(g->buffer_of, n);
    memset(g->buffer_of, 0, n * sizeof *g->buffer_of);
    vec_push(g->arenas, (PlanArena){ .class_ = CLASS_PERSIST, .slots = 1 });
    vec_push(g->arenas, (PlanArena){ .class_ = CLASS_WORK, .slots = 1 });
    return p;
}

void place(Graph *g, Program *prog)
{
    Placer p = placer_new(g);
    find_lifetimes(&p);
    find_homes(&p);
    add_leaves(g);
    add_values(&p);
    grow_parted_leaves(g);
    sort_arenas(g);
    g->arenas[ARENA_WORK].bytes = pack_blocks(&p);
    g->work_bound = largest_sum(&p);
    check_blocks(&p);
    assign_offsets(&p);
    if (prog) make_schedule(g, prog);
    vec_free(p.blocks);
    free(p.block_of), free(p.last_read), free(p.last_kernel), free(p.collectives), free(p.home), free(p.home_chunk);
}
