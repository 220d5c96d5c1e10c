// bucket.c: once a step every gradient is reduced over the ranks that each have a part of it.
//
// Which ranks these are is the accumulator's key (data and context parallel, tensor parallel where a replicated parameter
// meets a split sequence, stages that share the parameter). Reductions of one key, dtype and chunk form buckets up to
// --bucket-mb, in the order in which the gradients become final in backward: one number, one collective. Every reader of
// the accumulator's total in the update then reads the reduced total. With --zero 1 bucket_flat.c does that.
//
// Traps. A parameter that several stages share is reduced by all of them in one order, which is that of the parameters in
// the model: the order of readiness is not the same on them. Such a stage takes part even if nothing of its own reads the
// result.
#include "cut.h"

// last: its last ACCUMULATE; ready: where what that adds is made (accumulates stand at the end of the graph); rank: order
// among equals.
typedef struct { uint32_t acc; Val last, ready; uint32_t rank; } Ready;

static int by_readiness(const void *a, const void *b)
{
    const Ready *x = a, *y = b;
    if (x->ready != y->ready) return x->ready < y->ready ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static bool is_tied(const Graph *g, uint32_t acc) { return g->accs[acc].key.mesh & MESH_PP; }

// Gradients to be reduced: first those of this stage alone as they become ready, then the tied ones as they stand in the model.
static Ready *find_ready(const Graph *g)
{
    Ready *all = NULL;
    Val *last = xcalloc(vec_len(g->accs) + 1, sizeof *last), *ready = xcalloc(vec_len(g->accs) + 1, sizeof *ready);
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->nodes[v].kind == K_ACCUMULATE) {
            uint32_t acc = g->nodes[v].u.id;
            last[acc] = v;
            ready[acc] = max_of(ready[acc], g->nodes[v].in[0]);
        }
    for (uint32_t a = 0; a < vec_len(g->accs); a++) {
        if (g->accs[a].param < 0 || key_size(g, g->accs[a].key) == 1) continue;
        bool tied = is_tied(g, a);
        Val after = (Val)vec_len(g->nodes);
        Ready r = {a, tied ? after : last[a], tied ? after : ready[a], g->params[g->accs[a].param].number};
        vec_push(all, r);
    }
    if (all) qsort(all, vec_len(all), sizeof *all, by_readiness);
    free(last), free(ready);
    return all;
}

static int chunk_of(const Graph *g, const Ready *r) { return is_tied(g, r->acc) ? -1 : g->nodes[r->last].chunk; }

static bool one_bucket(const Graph *g, const Ready *a, const Ready *b)
{
    const Acc *x = &g->accs[a->acc], *y = &g->accs[b->acc];
    return x->key.mesh == y->key.mesh && x->key.stages == y->key.stages && x->dtype == y->dtype
        && chunk_of(g, a) == chunk_of(g, b) && param_is_flat(g, x->param) == param_is_flat(g, y->param);
}

// Fills g->buckets; bucket_of[i]: of all[i].
static void fill_buckets(Graph *g, const Ready *all, uint32_t *bucket_of)
{
    uint64_t limit = (uint64_t)(options.bucket_mb * 1e6);
    for (size_t i = 0; i < vec_len(all); i++) {
        uint64_t bytes = value_bytes(g, g->accs[all[i].acc].total);
        struct Bucket *b = NULL;
        for (size_t k = i; k-- > 0 && !b;)
            if (one_bucket(g, &all[k], &all[i])) b = &g->buckets[bucket_of[k]];
        if (!b || b->bytes + bytes > limit) {
            vec_push(g->buckets, (struct Bucket){.key = g->accs[all[i].acc].key});
            b = &g->buckets[vec_len(g->buckets) - 1];
        }
        b->bytes += bytes;
        vec_push(b->accs, all[i].acc);
        bucket_of[i] = (uint32_t)(b - g->buckets);
    }
}

static uint32_t last_batch(const Graph *g)
{
    uint32_t last = 0;
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->nodes[v].kind == K_RESHARD) last = max_of(last, g->nodes[v].u.reshard->batch);
    return last;
}

// ---- --zero 0
Reshard bucket_reshard(const Graph *g, uint32_t acc, uint32_t batch)
{
    return (Reshard){.how = COLL_ALL_REDUCE, .reduce = REDUCE_SUM, .key = g->accs[acc].key, .batch = batch, .why = "gradients"};
}

typedef struct { const uint32_t *batch; Val *reduced; } Totals;

static Val reduced_total(Graph *g, Totals *t, Val v)
{
    const Node n = *node_of(g, v);
    if (n.kind != K_TOTAL || !t->batch[n.u.id]) return v;
    if (t->reduced[n.u.id]) return t->reduced[n.u.id];
    Loc loc = g->cur_loc;
    uint32_t op = g->cur_op;
    g->cur_loc = g->params[g->accs[n.u.id].param].loc, g->cur_op = 0;
    Reshard r = bucket_reshard(g, n.u.id, t->batch[n.u.id]);
    t->reduced[n.u.id] = make_reshard(g, v, &r);
    g->cur_loc = loc, g->cur_op = op;
    return t->reduced[n.u.id];
}

static Val read_reduced(Graph *g, void *ctx, const Node *node, Val old)
{
    (void)old;
    Node n = *node;
    for (int i = 0; i < n.nin; i++) n.in[i] = reduced_total(g, ctx, node->in[i]);
    return memcmp(n.in, node->in, sizeof n.in) ? graph_copy(g, &n) : 0;
}

static void reduce_whole(Graph *g, const uint32_t *batch)
{
    Totals t = {batch, xcalloc(vec_len(g->accs) + 1, sizeof *t.reduced)};
    graph_rewrite(g, read_reduced, &t);
    for (uint32_t a = 0; a < vec_len(g->accs); a++)
        if (batch[a] && is_tied(g, a)) (void)reduced_total(g, &t, g->accs[a].total);
    free(t.reduced);
}

void bucket(Graph *g)
{
    Ready *all = find_ready(g);
    size_t n = vec_len(g->accs);
    uint32_t *bucket_of = xcalloc(vec_len(all) + 1, sizeof *bucket_of);
    uint32_t *whole = xcalloc(n + 1, sizeof *whole), *part = xcalloc(n + 1, sizeof *part);
    uint32_t *gather = xcalloc(n + 1, sizeof *gather);
    fill_buckets(g, all, bucket_of);
    uint32_t first = last_batch(g) + 1, more = first + (uint32_t)vec_len(g->buckets);
    bool any_flat = false;
    for (size_t i = 0; i < vec_len(all); i++) {
        uint32_t a = all[i].acc;
        bool flat = param_is_flat(g, g->accs[a].param);
        any_flat |= flat;
        uint32_t number = (g->accs[a].key.mesh & MESH_PP ? 1 : first) + bucket_of[i];
        if (required(g, "reshard", "gradients")) *(flat ? &part[a] : &whole[a]) = number;
        if (flat && required(g, "reshard", "updated parameters")) gather[a] = more + bucket_of[i];
    }
    if (vec_len(all)) reduce_whole(g, whole);
    if (any_flat) bucket_flat(g, part, gather);
    vec_free(all);
    free(bucket_of), free(whole), free(part), free(gather);
}
