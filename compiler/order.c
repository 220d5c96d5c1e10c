// order.c: the sequence of groups in each segment.
//
// Dependences: a value is written before it is read; all readers of a parameter or state come before its update;
// accumulates of one accumulator come in the order of their nodes. Then list scheduling: of the groups that could run
// next, the one that frees most more than it allocates; if none frees anything, the one that was created first (a model
// is written in a sensible order, and its gradient in the reverse of it). Only the oldest WINDOW groups that are ready
// are looked at, so the time is linear. Where creation order as it is has the lower peak, a segment keeps that.
//
// Then collectives are drawn apart: each START moves up to right behind what it waits for, past other STARTs, too, so that a
// gradient's reduction begins when that gradient is final; each WAIT moves down to right before what waits for it. The others
// keep their sequence, so memory grows by no more than what is under way.
//
// Members of a group must start its collectives in one order. Those of one stage run one sequence, so it is so. Those over
// stages, whose graphs differ, are in the order of their batch numbers in all of them.
#include "pico.h"

enum { WINDOW = 64, SEGMENTS = 256 };

typedef struct {
    const Graph *g;
    size_t n;              // groups
    uint32_t *edges;       // vec of pairs (before, after)
    uint32_t *first, *after, *waits;  // successors of group i: after[first[i]..first[i+1]); how many it waits for
    uint32_t *left;        // by node: groups that have yet to read it
    bool *brief;           // by node: lives in this segment's work memory alone
    uint32_t *heap;        // vec: ready groups, the smallest index first
} Sequence;

// ---------------------------------------------------------------------------------------------------- dependences
static void add_edge(Sequence *s, uint32_t before, uint32_t after)
{
    if (before == after) return;
    vec_push(s->edges, before);
    vec_push(s->edges, after);
}

static void value_edges(Sequence *s)
{
    const Graph *g = s->g;
    uint32_t *updater = xcalloc(vec_len(g->nodes), sizeof *updater);  // by leaf: group that updates it, + 1
    for (uint32_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < vec_len(g->groups[i].writes); k++) {
            Val leaf = leaf_of(g, g->groups[i].writes[k]);
            Kind kind = (Kind)g->nodes[leaf].kind;
            if (kind == K_PARAM || kind == K_STATE) updater[leaf] = i + 1;
        }
    for (uint32_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < vec_len(g->groups[i].reads); k++) {
            Val v = g->groups[i].reads[k], leaf = leaf_of(g, v);
            if (g->group_of[v]) add_edge(s, g->group_of[v] - 1, i);
            if (updater[leaf]) add_edge(s, i, updater[leaf] - 1);
        }
    free(updater);
}

static const Graph *sorting;
static int by_accumulator(const void *a, const void *b)
{
    Val v = *(const Val *)a, w = *(const Val *)b;
    const Node *x = &sorting->nodes[v], *y = &sorting->nodes[w];
    if (x->u.id != y->u.id) return x->u.id < y->u.id ? -1 : 1;
    if (x->seg != y->seg) return x->seg < y->seg ? -1 : 1;
    return v < w ? -1 : v > w;
}

// Those of one accumulator and segment keep their order; segments are in order anyhow.
static void accumulate_edges(Sequence *s)
{
    const Graph *g = s->g;
    Val *adds = NULL;
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->nodes[v].kind == K_ACCUMULATE && g->group_of[v]) vec_push(adds, v);
    sorting = g;
    if (adds) qsort(adds, vec_len(adds), sizeof *adds, by_accumulator);
    for (size_t i = 1; i < vec_len(adds); i++) {
        const Node *x = &g->nodes[adds[i - 1]], *y = &g->nodes[adds[i]];
        if (x->u.id == y->u.id && x->seg == y->seg) add_edge(s, g->group_of[adds[i - 1]] - 1, g->group_of[adds[i]] - 1);
    }
    vec_free(adds);
}

static uint32_t batch_of(const Graph *g, uint32_t group) { return g->nodes[g->groups[group].nodes[0]].u.reshard->batch; }

// Collectives over stages begin in the order of their numbers. `starts` are of one segment.
static void stage_edges(Sequence *s, uint32_t *starts)
{
    for (size_t i = 1; i < vec_len(starts); i++)
        for (size_t k = i; k > 0 && batch_of(s->g, starts[k]) < batch_of(s->g, starts[k - 1]); k--) {
            uint32_t t = starts[k];
            starts[k] = starts[k - 1];
            starts[k - 1] = t;
        }
    for (size_t i = 1; i < vec_len(starts); i++) add_edge(s, starts[i - 1], starts[i]);
}

// A START in place comes behind all that add to the totals it takes, and behind all others that read them.
static void total_edges(Sequence *s)
{
    const Graph *g = s->g;
    uint32_t *start = xcalloc(vec_len(g->nodes), sizeof *start);  // by operand: the START that changes it, + 1
    for (uint32_t i = 0; i < s->n; i++)
        for (size_t k = 0; g->groups[i].kind == G_START && k < vec_len(g->groups[i].reads); k++) {
            if (reshard_in_place(g, g->groups[i].writes[k])) start[g->groups[i].reads[k]] = i + 1;
        }
    for (uint32_t i = 0; i < s->n; i++) {
        const Group *group = &g->groups[i];
        for (size_t k = 0; k < vec_len(group->reads); k++)
            if (start[group->reads[k]]) add_edge(s, i, start[group->reads[k]] - 1);
        for (size_t k = 0; k < vec_len(group->writes); k++)
            if (start[group->writes[k]]) add_edge(s, i, start[group->writes[k]] - 1);
    }
    free(start);
}

static void collective_edges(Sequence *s)
{
    const Graph *g = s->g;
    uint32_t *starts = NULL, *begun = xcalloc(vec_len(g->colls) + 1, sizeof *begun);
    for (uint32_t i = 0; i < s->n; i++) {
        const Group *group = &g->groups[i];
        if (vec_len(starts) && g->groups[starts[0]].seg != group->seg) stage_edges(s, starts), vec_clear(starts);
        if (group->kind != G_START) continue;
        begun[group->coll] = i;
        if (g->colls[group->coll].key.mesh & MESH_PP) vec_push(starts, i);
    }
    stage_edges(s, starts);
    for (uint32_t i = 0; i < s->n; i++)
        if (g->groups[i].kind == G_WAIT) add_edge(s, begun[g->groups[i].coll], i);
    total_edges(s);
    vec_free(starts);
    free(begun);
}

static void sort_edges(Sequence *s)
{
    size_t n = vec_len(s->edges) / 2;
    s->first = xcalloc(s->n + 2, sizeof *s->first);
    s->after = xcalloc(n + 1, sizeof *s->after);
    for (size_t i = 0; i < n; i++) s->first[s->edges[2 * i] + 2]++;
    for (size_t i = 0; i < s->n; i++) s->first[i + 2] += s->first[i + 1];
    for (size_t i = 0; i < n; i++) s->after[s->first[s->edges[2 * i] + 1]++] = s->edges[2 * i + 1];
}

// ------------------------------------------------------------------------------------------------- memory in a segment
static void find_brief(Sequence *s)
{
    const Graph *g = s->g;
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < vec_len(g->groups[i].writes); k++) {
            Val v = g->groups[i].writes[k];
            s->brief[v] = !is_storage(&g->nodes[v]) && !reshard_in_place(g, v);
        }
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < vec_len(g->groups[i].reads); k++) {
            Val v = g->groups[i].reads[k];
            if (g->group_of[v] && g->groups[g->group_of[v] - 1].seg != g->groups[i].seg) s->brief[v] = false;
        }
    for (size_t i = 0; i < vec_len(g->outputs); i++) s->brief[g->outputs[i].val] = false;
    for (size_t i = 0; i < vec_len(g->transfers); i++) s->brief[g->transfers[i].val] = false;
}

static void count_readers(Sequence *s)
{
    const Graph *g = s->g;
    memset(s->left, 0, vec_len(g->nodes) * sizeof *s->left);
    for (size_t i = 0; i < s->n; i++)
        for (size_t k = 0; k < vec_len(g->groups[i].reads); k++) s->left[g->groups[i].reads[k]]++;
}

static int64_t allocates(const Sequence *s, const Group *group)
{
    int64_t bytes = 0;
    for (size_t k = 0; group->kind != G_WAIT && k < vec_len(group->writes); k++)
        if (s->brief[group->writes[k]]) bytes += (int64_t)value_bytes(s->g, group->writes[k]);
    return bytes;
}

static int64_t frees(const Sequence *s, const Group *group)
{
    int64_t bytes = 0;
    for (size_t k = 0; k < vec_len(group->reads); k++) {
        Val v = group->reads[k];
        if (s->brief[v] && s->left[v] == 1) bytes += (int64_t)value_bytes(s->g, v);
    }
    return bytes;
}

static void has_run(Sequence *s, const Group *group)
{
    for (size_t k = 0; k < vec_len(group->reads); k++) s->left[group->reads[k]]--;
}

// Largest live memory of each segment under a sequence.
static void peaks(Sequence *s, const uint32_t *sequence, int64_t peak[SEGMENTS])
{
    int64_t now[SEGMENTS] = { 0 };
    count_readers(s);
    memset(peak, 0, sizeof *peak * SEGMENTS);
    for (size_t i = 0; i < s->n; i++) {
        const Group *group = &s->g->groups[sequence[i]];
        now[group->seg] += allocates(s, group);
        peak[group->seg] = max_of(peak[group->seg], now[group->seg]);
        now[group->seg] -= frees(s, group);
        has_run(s, group);
    }
}

// ------------------------------------------------------------------------------------------------------------ heap
static void heap_push(uint32_t **heap, uint32_t x)
{
    vec_push(*heap, x);
    uint32_t *h = *heap;
    for (size_t i = vec_len(h) - 1; i > 0 && h[i] < h[(i - 1) / 2]; i = (i - 1) / 2) {
        uint32_t t = h[i];
        h[i] = h[(i - 1) / 2];
        h[(i - 1) / 2] = t;
    }
}

static uint32_t heap_pop(uint32_t *h)
{
    uint32_t top = h[0], last = vec_pop(h);
    size_t n = vec_len(h), i = 0;
    if (n == 0) return top;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1] < h[child]) child++;
        if (last <= h[child]) break;
        h[i] = h[child];
    }
    h[i] = last;
    return top;
}

// ------------------------------------------------------------------------------------------------------ scheduling
static uint32_t take_next(Sequence *s, bool save_memory)
{
    uint32_t seen[WINDOW], n = 0, best = 0;
    int64_t most = 0;
    if (!save_memory) return heap_pop(s->heap);
    while (n < WINDOW && vec_len(s->heap)) {
        uint32_t i = heap_pop(s->heap);
        const Group *group = &s->g->groups[i];
        int64_t gain = frees(s, group) - allocates(s, group);
        if (n && group->seg > s->g->groups[seen[0]].seg) {
            heap_push(&s->heap, i);
            break;
        }
        if (gain > most) most = gain, best = n;
        seen[n++] = i;
    }
    for (uint32_t i = 0; i < n; i++)
        if (i != best) heap_push(&s->heap, seen[i]);
    return seen[best];
}

static uint32_t *schedule(Sequence *s, bool save_memory)
{
    uint32_t *out = xmalloc((s->n + 1) * sizeof *out);
    s->waits = xcalloc(s->n + 1, sizeof *s->waits);
    count_readers(s);
    for (size_t i = 0; i < vec_len(s->edges) / 2; i++) s->waits[s->edges[2 * i + 1]]++;
    for (uint32_t i = 0; i < s->n; i++)
        if (!s->waits[i]) heap_push(&s->heap, i);
    size_t done = 0;
    while (vec_len(s->heap)) {
        uint32_t i = take_next(s, save_memory);
        out[done++] = i;
        has_run(s, &s->g->groups[i]);
        for (uint32_t k = s->first[i]; k < s->first[i + 1]; k++)
            if (--s->waits[s->after[k]] == 0) heap_push(&s->heap, s->after[k]);
    }
    if (done != s->n) bug("the kernels depend on each other in a circle: %zu of %zu can run", done, s->n);
    free(s->waits);
    return out;
}

// --------------------------------------------------------------------------------------------------- collectives apart
static bool waits_for(const Sequence *s, uint32_t after, uint32_t before)
{
    for (uint32_t k = s->first[before]; k < s->first[before + 1]; k++)
        if (s->after[k] == after) return true;
    return false;
}

// Where the group at sequence[i] could stand at the earliest: right behind the last one that it waits for.
static size_t earliest(const Sequence *s, const uint32_t *sequence, size_t i)
{
    const Group *groups = s->g->groups;
    size_t at = i;
    while (at > 0 && groups[sequence[at - 1]].seg == groups[sequence[i]].seg && !waits_for(s, sequence[i], sequence[at - 1])) at--;
    return at;
}

static void draw_apart(const Sequence *s, uint32_t *sequence)
{
    const Group *groups = s->g->groups;
    for (size_t i = s->n; i-- > 0;) {
        uint32_t wait = sequence[i];
        if (groups[wait].kind != G_WAIT) continue;
        size_t at = i;
        for (; at + 1 < s->n && groups[sequence[at + 1]].seg == groups[wait].seg && !waits_for(s, sequence[at + 1], wait); at++)
            sequence[at] = sequence[at + 1];
        sequence[at] = wait;
    }
    for (size_t i = 0; i < s->n; i++) {
        uint32_t start = sequence[i];
        if (groups[start].kind != G_START) continue;
        size_t at = earliest(s, sequence, i);
        while (at < i && groups[sequence[at]].kind == G_START) at++;  // those that became ready together keep their order
        memmove(&sequence[at + 1], &sequence[at], (i - at) * sizeof *sequence);
        sequence[at] = start;
    }
}

// Puts groups in this sequence.
static void apply(Graph *g, const uint32_t *sequence)
{
    Group *old = g->groups;
    g->groups = NULL;
    for (size_t i = 0; i < vec_len(old); i++) {
        const Group *group = &old[sequence[i]];
        vec_push(g->groups, *group);
        for (size_t k = 0; k < vec_len(group->nodes) && group->kind != G_START; k++)
            g->group_of[group->nodes[k]] = (uint32_t)i + 1;
    }
    vec_free(old);
}

static void sort_by_segment(Graph *g)
{
    uint32_t *sequence = xmalloc((vec_len(g->groups) + 1) * sizeof *sequence);
    size_t n = 0;
    for (int seg = 0; seg < SEGMENTS; seg++)
        for (uint32_t i = 0; i < vec_len(g->groups); i++)
            if ((int)g->groups[i].seg == seg) sequence[n++] = i;
    apply(g, sequence);
    free(sequence);
}

static Sequence sequence_new(const Graph *g)
{
    Sequence s = { .g = g, .n = vec_len(g->groups) };
    s.left = xcalloc(vec_len(g->nodes), sizeof *s.left);
    s.brief = xcalloc(vec_len(g->nodes), sizeof *s.brief);
    value_edges(&s);
    accumulate_edges(&s);
    collective_edges(&s);
    sort_edges(&s);
    find_brief(&s);
    return s;
}

static void sequence_free(Sequence *s)
{
    vec_free(s->edges), vec_free(s->heap);
    free(s->first), free(s->after), free(s->left), free(s->brief);
}

void groups_sort(Graph *g, bool save_memory)
{
    sort_by_segment(g);  // so that the oldest group that is ready is of the earliest segment
    Sequence s = sequence_new(g);
    uint32_t *sequence = schedule(&s, false);
    if (save_memory) {
        uint32_t *frugal = schedule(&s, true);
        int64_t plain_peak[SEGMENTS], frugal_peak[SEGMENTS];
        peaks(&s, sequence, plain_peak);
        peaks(&s, frugal, frugal_peak);
        for (size_t i = 0; i < s.n; i++) {  // both have the segments in the same places
            uint8_t seg = g->groups[frugal[i]].seg;
            if (frugal_peak[seg] < plain_peak[seg]) sequence[i] = frugal[i];
        }
        free(frugal);
        draw_apart(&s, sequence);
    }
    apply(g, sequence);
    free(sequence);
    sequence_free(&s);
}

void order(Graph *g) { groups_sort(g, true); }
