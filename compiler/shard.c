// shard.c: the pass: sizes of the mesh and what they refuse, padding, a round for each factor of tp (shard_states.c finds what is
// split, shard_emit.c makes the new graph), and what data parallelism adds.
//
// tp is two factors: KV = gcd(key/value heads, tp) splits heads, GROUP = tp / KV the queries that share one; ffn, vocab and
// heads are split by both. What both rounds put behind each other on one value becomes one collective over tp.
#include "shard.h"

// ----------------------------------------------------------------------------------------- one collective over both
// What follows each other on one value is one collective over the union of the ranks: KV's coordinate is the slower one,
// so reductions come in the order KV, GROUP and gathers in the order GROUP, KV.
static Val merge_reshards(Graph *g, void *ctx, const Node *n, Val old)
{
    (void)ctx, (void)old;
    if (n->kind != K_RESHARD) return 0;
    const Node in = *node_of(g, n->in[0]);
    if (in.kind != K_RESHARD) return 0;
    const Reshard *first = in.u.reshard, *then = n->u.reshard;
    bool scatter = then->how == COLL_REDUCE_SCATTER, gather = then->how == COLL_ALL_GATHER;
    if (first->how != then->how || first->reduce != then->reduce || (scatter && first->part != then->axis)
        || (gather && first->axis != then->part))
        return 0;
    Reshard both = *first;
    both.key.mesh |= then->key.mesh;
    if (scatter) both.part = then->part;
    if (gather) both.axis = then->axis;
    if (strcmp(first->why, then->why)) both.why = arena_printf(&g->arena, "%s, %s", first->why, then->why);
    return make_reshard(g, in.in[0], &both);
}

// ------------------------------------------------------------------------------------------------------- the mesh
static Axis axis_named(const Graph *g, const char *name)
{
    for (size_t i = 1; i < vec_len(g->axes); i++)
        if (!strcmp(g->axes[i].name, name)) return (Axis)i;
    return 0;
}

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

static Loc param_with(const Graph *g, Axis a)
{
    for (size_t i = 0; i < vec_len(g->params); i++)
        if (has_axis(&g->nodes[g->params[i].val], a)) return g->params[i].loc;
    return 0;
}

// The two factors of so many ranks: as many as there are key/value heads split those, the others share one. False: the
// queries of a head do not divide.
static bool factors_of(const Graph *g, int64_t tp, int64_t *by_kv, int64_t *by_group)
{
    Axis kv = axis_named(g, "kv"), group = axis_named(g, "group");
    bool heads = kv && splits(g, kv, MESH_AT_KV);
    int64_t queries = group && splits(g, group, MESH_AT_GROUP) ? extent_of(g, group) : 1;
    *by_kv = heads ? gcd(extent_of(g, kv), tp) : tp;
    *by_group = tp / *by_kv;
    return !heads || queries % *by_group == 0;
}

// The first axis of a parameter that so many ranks do not divide, 0: none; *param: whose. (A vocabulary is padded.)
static Axis uneven_axis(const Graph *g, int64_t by_kv, int64_t by_group, size_t *param)
{
    for (*param = 0; *param < vec_len(g->params); ++*param) {
        const Node *n = &g->nodes[g->params[*param].val];
        for (int k = 0; k < n->naxes; k++) {
            Axis a = n->axes[k];
            int64_t ways = (splits(g, a, MESH_AT_KV) ? by_kv : 1) * (splits(g, a, MESH_AT_GROUP) ? by_group : 1);
            if (extent_of(g, a) % ways && strcmp(axis_name(g, a), "vocab")) return a;
        }
    }
    return 0;
}

// "1, 2, 4": the sizes of tp that this model allows.
static const char *sizes_that_work(Graph *g)
{
    Buf b = {0};
    for (int64_t tp = 1, kv, group; tp <= 4 * options.tp && tp <= 64; tp++) {
        size_t param;
        if (factors_of(g, tp, &kv, &group) && !uneven_axis(g, kv, group, &param))
            buf_printf(&b, "%s%lld", b.n ? ", " : "", (long long)tp);
    }
    const char *text = arena_strdup(&g->arena, b.s);
    buf_free(&b);
    return text;
}

static void set_tp(Graph *g)
{
    int64_t tp = options.tp, by_kv, by_group;
    size_t param;
    if (!factors_of(g, tp, &by_kv, &by_group)) {
        Axis kv = axis_named(g, "kv"), group = axis_named(g, "group");
        err(g, param_with(g, kv), "--tp %lld: %lld key/value heads divide by %lld of it, and the other factor, %lld, does not divide the "
            "%lld queries that share a head; this model allows --tp %s", (long long)tp, (long long)extent_of(g, kv), (long long)by_kv,
            (long long)by_group, (long long)(group ? extent_of(g, group) : 1), sizes_that_work(g));
    }
    Axis uneven = uneven_axis(g, by_kv, by_group, &param);
    if (uneven)
        err(g, g->params[param].loc, "--tp %lld does not divide axis '%s' of %lld; this model allows --tp %s", (long long)tp,
            axis_name(g, uneven), (long long)extent_of(g, uneven), sizes_that_work(g));
    g->mesh.size[MESH_AT_KV] = (uint32_t)by_kv;
    g->mesh.size[MESH_AT_GROUP] = (uint32_t)by_group;
    bool any = tp == 1;
    for (size_t i = 0; i < vec_len(g->params); i++)
        for (int k = 0; k < g->nodes[g->params[i].val].naxes; k++) any |= splits_at_all(g, g->nodes[g->params[i].val].axes[k]);
    if (!any) err(g, 0, "--tp %lld: no parameter of this model has an axis that tensor parallelism splits; m:shard { axis = \"tp\" } names one", (long long)tp);
}

static void set_sequence(Graph *g)
{
    int64_t tp = options.tp;
    bool divides = g->seq % tp == 0;
    if (options.sp == 1 && !divides)
        err(g, 0, "--sp: the sequence of %lld is not a multiple of --tp %lld", (long long)g->seq, (long long)tp);
    if (options.sp < 0 && tp > 1 && !divides)
        fprintf(stderr, "picoc: sequence parallelism is off: --seq %lld is not a multiple of --tp %lld\n", (long long)g->seq, (long long)tp);
    g->mesh.sp = tp > 1 && divides && options.sp != 0;
}

static void start_param_axes(Graph *g)
{
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Node *n = &g->nodes[g->params[i].val];
        struct ParamAxes axes = {0};
        for (int k = 0; k < n->naxes; k++) axes.axis[k].extent = axes.axis[k].local = (uint64_t)extent_of(g, n->axes[k]);
        vec_push(g->param_axes, axes);
    }
}

// ------------------------------------------------------------------------------------------------------ other axes
// Every micro-batch is one dp rank's, so what is summed over the batch is partial over dp. Sums of rank 0 (loss, valid) are
// reduced at once; those of parameters by pass bucket.
static Val reduced_total(Graph *g, Val *reduced, Val v)
{
    const Node *n = node_of(g, v);
    if (n->kind != K_TOTAL || g->accs[n->u.id].param >= 0 || !g->accs[n->u.id].key.mesh) return v;
    uint32_t acc = n->u.id;
    Reshard r = {.how = COLL_ALL_REDUCE, .key = g->accs[acc].key, .why = arena_printf(&g->arena, "%s of all ranks", g->accs[acc].name)};
    if (!reduced[acc]) reduced[acc] = required(g, "reshard", r.why) ? make_reshard(g, v, &r) : v;
    return reduced[acc];
}

static Val reduce_totals(Graph *g, void *ctx, const Node *n, Val old)
{
    (void)old;
    Node copy = *n;
    for (int i = 0; i < n->nin; i++) copy.in[i] = reduced_total(g, ctx, n->in[i]);
    return memcmp(copy.in, n->in, sizeof copy.in) ? graph_copy(g, &copy) : 0;
}

static void set_data_parallel(Graph *g)
{
    Val *reduced = xcalloc(vec_len(g->accs) + 1, sizeof *reduced);
    if (options.dp > 1)
        for (size_t i = 0; i < vec_len(g->accs); i++) g->accs[i].key.mesh |= MESH_DP;
    graph_rewrite(g, reduce_totals, reduced);
    for (size_t i = 0; i < vec_len(g->outputs); i++) g->outputs[i].val = reduced_total(g, reduced, g->outputs[i].val);
    free(reduced);
}

void shard(Graph *g)
{
    g->mesh.size[MESH_AT_PP] = (uint32_t)options.pp;
    g->mesh.size[MESH_AT_DP] = (uint32_t)options.dp;
    set_tp(g);
    set_sequence(g);
    start_param_axes(g);
    pad(g);
    for (int f = MESH_AT_KV; f >= MESH_AT_GROUP; f--)
        if (g->mesh.size[f] > 1) shard_factor(g, (MeshFactor)f);
    if (g->mesh.size[MESH_AT_KV] > 1 && g->mesh.size[MESH_AT_GROUP] > 1) graph_rewrite(g, merge_reshards, NULL);
    set_data_parallel(g);
}
