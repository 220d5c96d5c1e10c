// shard_states.c: the heart of pass shard, tensor and sequence parallelism: which values are split, whole or partial on each mesh factor, and what has to be
// communicated for that. One mesh factor at a time (KV, then GROUP; a context-parallel factor would be a third round).
//
// Layout of a value on the factor: WHOLE on every rank, SPLIT along an axis, or PARTIAL (its ranks' values must be reduced).
// Parameters are split along the axis that the map names and never move. A node works on one axis: the split axis of its
// parameter operand or of the parameter whose gradient it is; else the only axis its operands are split along. Operands split
// otherwise are gathered, whole ones are sliced (no communication). A node that sums over its work axis is PARTIAL, and so is
// everything linear in it; where something else needs it, a reduction stands behind the node where the sum began, and all its
// users see the result. Marks for these only grow, as do those of values that are gathered, so sweeps over the graph end.
//
// A reduced value is SPLIT along its mapped axis if it has one; along seq under sequence parallelism, if it has axes beside
// batch and seq; else WHOLE. (The rule: Megatron's operators f and g, found instead of placed; states as in GSPMD and OneFlow's
// S, B, P.) Traps: an axis mapped to both factors is split by KV first, so KV is the slower coordinate; a reduction over GROUP
// must therefore stand behind one over KV, and a gather before it.
#include "shard.h"

// ---------------------------------------------------------------------------------------------------- the axis map
bool splits(const Graph *g, Axis a, MeshFactor f)
{
    for (size_t i = 0; i < vec_len(g->maps); i++)
        if (g->maps[i].axis == axis_name(g, a)) return g->maps[i].mesh >> f & 1;
    return false;
}

bool splits_at_all(const Graph *g, Axis a) { return splits(g, a, MESH_AT_KV) || splits(g, a, MESH_AT_GROUP); }

Axis part_axis(Shard *s, Axis a)
{
    int64_t extent = extent_of(s->g, a);
    if (extent % s->k) bug("axis '%s' of %lld does not divide by %lld", axis_name(s->g, a), (long long)extent, (long long)s->k);
    return graph_axis(s->g, axis_name(s->g, a), extent / s->k);
}

Axis mapped_axis(const Graph *g, const Node *n, MeshFactor f)
{
    for (int i = 0; i < n->naxes; i++)
        if (splits(g, n->axes[i], f)) return n->axes[i];
    return 0;
}

static bool is_named(const Graph *g, Axis a, Axis like) { return axis_name(g, a) == axis_name(g, like); }

// The seq axis of a value that sequence parallelism splits: it has more axes, and none that tensor parallelism splits.
static Axis sequence_axis(const Shard *s, const Node *n)
{
    const Graph *g = s->g;
    Axis seq = 0;
    int others = 0;
    for (int i = 0; i < n->naxes; i++) {
        if (splits_at_all(g, n->axes[i])) return 0;
        if (is_named(g, n->axes[i], g->seq_axis)) seq = n->axes[i];
        else if (!is_named(g, n->axes[i], g->batch)) others++;
    }
    return g->mesh.sp && others && seq && extent_of(g, seq) % s->k == 0 ? seq : 0;
}

Layout resolved(const Shard *s, Val v)
{
    const Node *n = &s->old[v];
    Axis a = s->goal[v] ? s->goal[v] : mapped_axis(s->g, n, s->factor);
    if (!a) a = sequence_axis(s, n);
    return a ? (Layout){.spread = SPLIT, .axis = a} : (Layout){.spread = WHOLE};
}

static bool only_accumulated(const Shard *s, Val v)
{
    return s->uses[v] == 1 && s->old[s->user[v]].kind == K_ACCUMULATE;
}

// ------------------------------------------------------------------------------------------------------------ views
static const ViewIndex *index_of(const View *view, Axis src)
{
    for (int i = 0; i < view->n; i++)
        if (view->ix[i].src == src) return &view->ix[i];
    return NULL;
}

static int mentions(const View *view, Axis a)
{
    int n = 0;
    for (int i = 0; i < view->n; i++)
        for (int t = 0; t < view->ix[i].nterms; t++) n += view->ix[i].axis[t] == a;
    return n;
}

// Split b = (c, rest): c is the slowest term and its coefficient the extent of the rest.
static Axis split_axis(const Graph *g, const ViewIndex *x)
{
    int slowest = 0;
    int64_t rest = 1;
    for (int t = 0; t < x->nterms; t++)
        if (x->coef[t] > x->coef[slowest]) slowest = t;
    for (int t = 0; t < x->nterms; t++)
        if (t != slowest) rest *= extent_of(g, x->axis[t]);
    return x->coef[slowest] == rest && rest * extent_of(g, x->axis[slowest]) == extent_of(g, x->src) ? x->axis[slowest] : 0;
}

Axis view_axis(const Graph *g, const Node *view, Axis b, int64_t k)
{
    const View *w = view->u.view;
    const ViewIndex *x = index_of(w, b);
    Axis c = 0;
    if (!x) return has_axis(view, b) && !mentions(w, b) ? b : 0;
    if (x->zero || x->offset || x->nterms == 0) return 0;
    if (x->div == 1 && x->mod == 0) {
        c = x->nterms == 1 && x->coef[0] == 1 && extent_of(g, x->axis[0]) == extent_of(g, b) ? x->axis[0] : split_axis(g, x);
        if (c && mentions(w, c) != 1) c = 0;
    } else if (x->nterms == 1 && x->coef[0] == 1 && x->div * extent_of(g, b) == extent_of(g, x->axis[0])
               && (x->mod == 0 || x->mod == extent_of(g, b))) {
        c = x->axis[0];  // the slowest of merged axes; the faster ones are read at remainders of a divisor of `div`
        for (int i = 0; i < w->n; i++) {
            const ViewIndex *y = &w->ix[i];
            bool reads_c = false;
            for (int t = 0; t < y->nterms; t++) reads_c |= y->axis[t] == c;
            if (reads_c && y != x && (y->nterms != 1 || y->mod == 0 || x->div % (y->div * y->mod))) return 0;
        }
    }
    return c && extent_of(g, c) % k == 0 ? c : 0;
}

// A view that only puts positions of b at c, with zeros around them (the gradient of reading the first rows of a table). Each
// rank can put its own there, and the sum is the whole: that is worth it where the sum is a gradient's anyway.
Axis scatter_axis(const Shard *s, Val v, Axis b)
{
    const Node *n = &s->old[v];
    const View *w = n->u.view;
    if (n->kind != K_VIEW || w->n != 1 || w->ix[0].src != b || !w->ix[0].zero || w->ix[0].nterms != 1) return 0;
    const ViewIndex *x = &w->ix[0];
    bool plain = x->coef[0] == 1 && x->div == 1 && x->mod == 0 && (n->dtype == F32 || n->dtype == F64);
    return plain && only_accumulated(s, v) ? x->axis[0] : 0;
}

// ------------------------------------------------------------------------------------------------------ node kinds
// Can the positions of axis w be shared out among the ranks in this node?
static bool can_work(const Shard *s, Val v, Axis w)
{
    const Graph *g = s->g;
    const Node *n = &s->old[v];
    switch (n->kind) {
    case K_MAP: case K_REDUCE: case K_CONTRACT: return true;
    case K_GATHER: case K_SCATTER_ADD: return n->u.axis != w || !has_axis(&s->old[n->in[1]], w);
    case K_VIEW: return view_axis(g, n, w, s->k) || scatter_axis(s, v, w);
    case K_ATTENTION: case K_ATTENTION_GRAD:
        return has_axis(&s->old[n->in[0]], w) && !is_named(g, w, n->u.attention->seq) && w != n->u.attention->head_dim;
    case K_RESHARD: return n->u.reshard->axis != w && n->u.reshard->part != w;
    default: return false;
    }
}

// The result's axis along which it is split if the node works on w; 0: it has none, so it is partial.
static Axis result_axis(const Shard *s, const Node *n, Axis w)
{
    if (n->kind == K_VIEW) return view_axis(s->g, n, w, s->k);
    if (n->kind == K_GATHER && n->u.axis == w) return 0;
    return has_axis(n, w) ? w : 0;
}

static bool narrows(const Shard *s, const Node *n)  // a cast that rounds
{
    DType from = (DType)s->old[n->in[0]].dtype, to = (DType)n->dtype;
    return !(from == to || to == F64 || (to == F32 && from == BF16));
}

static bool is_zero(const Node *old, Val v)
{
    const Node *n = &old[v];
    if (n->kind == K_VIEW && n->u.view->n == 0) n = &old[n->in[0]];
    return n->kind == K_CONST && n->u.num == 0;
}

static bool is_partial(const Shard *s, Val v) { return s->seen[v].spread == PARTIAL; }

// Is v, all of whose partial operands are sums, the same function of their sum? Other operands must then be whole.
static bool is_linear(const Shard *s, const Node *n)
{
    int partial = 0, at = 0;
    for (int i = 0; i < n->nin; i++)
        if (is_partial(s, n->in[i])) {
            partial++, at = i;
            if (s->seen[n->in[i]].reduce != REDUCE_SUM) return false;
        }
    switch (n->kind) {
    case K_MAP:
        if (n->fn == FN_CAST) return !narrows(s, n);
        if (n->fn == FN_NEG || n->fn == FN_STOP) return true;
        if (n->fn == FN_ADD || n->fn == FN_SUB) return partial == 2;
        if (n->fn == FN_MUL) return partial == 1;
        if (n->fn == FN_DIV) return partial == 1 && at == 0;
        if (n->fn == FN_WHERE)
            return !is_partial(s, n->in[0]) && (is_partial(s, n->in[1]) || is_zero(s->old, n->in[1]))
                && (is_partial(s, n->in[2]) || is_zero(s->old, n->in[2]));
        return false;
    case K_REDUCE: return n->reduce == RED_SUM;
    case K_CONTRACT: return partial == 1;
    case K_GATHER: case K_SCATTER_ADD: return partial == 1 && at == 0;
    case K_VIEW: return true;
    case K_RESHARD: return n->u.reshard->reduce == REDUCE_SUM;
    default: return false;
    }
}

// ------------------------------------------------------------------------------------------------------------- work
// Is the value a parameter, or a view or cast of one?
static bool is_param_way(const Shard *s, Val v)
{
    const Node *n = &s->old[v];
    while (n->kind == K_VIEW || (n->kind == K_MAP && n->fn == FN_CAST)) n = &s->old[n->in[0]];
    return n->kind == K_PARAM || n->kind == K_STATE || n->kind == K_TOTAL;
}

static Axis work_axis(const Shard *s, Val v)
{
    const Node *n = &s->old[v];
    Axis found = 0, sequence = 0;
    for (int i = 0; i < n->nin; i++)
        if (s->seen[n->in[i]].spread == SPLIT && is_param_way(s, n->in[i])) return s->seen[n->in[i]].axis;
    if (s->goal[v] && n->kind != K_VIEW) return s->goal[v];
    for (int i = 0; i < n->nin; i++) {
        const Layout *o = &s->seen[n->in[i]];
        if (o->spread != SPLIT) continue;
        if (is_named(s->g, o->axis, s->g->seq_axis)) sequence = o->axis;
        else if (!found) found = o->axis;
    }
    return found ? found : sequence;
}

// Under sequence parallelism a product with a whole matrix could run on the own positions; but if its operand is gathered for
// other products anyhow (queries beside keys and values that all ranks need), it joins them.
static bool joins_gathered(const Shard *s, Val v, Axis w)
{
    const Node *n = &s->old[v];
    bool whole_matrix = false, has_gathered = false;
    if (n->kind != K_CONTRACT || !is_named(s->g, w, s->g->seq_axis)) return false;
    for (int i = 0; i < n->nin; i++) {
        whole_matrix |= s->seen[n->in[i]].spread == WHOLE && is_param_way(s, n->in[i]);
        has_gathered |= s->gathered[n->in[i]] && s->seen[n->in[i]].spread == SPLIT;
    }
    return whole_matrix && has_gathered;
}

static void note_gathered(Shard *s, Val v)
{
    const Node *n = &s->old[v];
    for (int i = 0; i < n->nin; i++) {
        const Layout *o = &s->seen[n->in[i]];
        if (o->spread == SPLIT && o->axis != s->work[v]) s->gathered[n->in[i]] = 1;
    }
}

static void mark(Shard *s, Val v)
{
    Val at = s->origin[v];
    while (s->uses[at] == 1 && s->old[s->user[at]].kind == K_RESHARD && s->old[s->user[at]].u.reshard->reduce == REDUCE_SUM)
        at = s->user[at];  // a reduction over an earlier factor comes first
    s->marks[at] = 1;
}

static void state_of_part(Shard *s, Val v)
{
    Val whole = s->old[v].in[0];
    Axis w = s->work[whole];
    s->made[v] = !w ? (Layout){.spread = WHOLE}
               : has_axis(&s->old[v], w) ? (Layout){.spread = SPLIT, .axis = w} : (Layout){.spread = PARTIAL};
    s->origin[v] = v;
}

static PlanReduce reduce_of(const Node *n)
{
    if (n->kind != K_REDUCE) return REDUCE_SUM;
    return n->reduce == RED_MAX ? REDUCE_MAX : n->reduce == RED_MIN ? REDUCE_MIN : REDUCE_SUM;
}

// No operand is partial.
static void state_from_work(Shard *s, Val v)
{
    const Node *n = &s->old[v];
    Axis w = work_axis(s, v);
    bool works = false;
    if (w && (!can_work(s, v, w) || joins_gathered(s, v, w))) w = 0;
    for (int i = 0; i < n->nin && w; i++) works |= has_axis(&s->old[n->in[i]], w);
    if (n->kind == K_SCATTER_ADD && w == n->u.axis) works = w != 0;
    if (!works) w = 0;
    s->work[v] = w;
    Axis a = w ? result_axis(s, n, w) : 0;
    s->made[v] = !w ? (Layout){.spread = WHOLE}
               : a ? (Layout){.spread = SPLIT, .axis = a} : (Layout){.spread = PARTIAL, .reduce = (uint8_t)reduce_of(n)};
    s->origin[v] = v;
}

// Some are. False: they must be resolved.
static bool state_from_partial(Shard *s, Val v)
{
    const Node *n = &s->old[v];
    Val origin = 0;
    if (!is_linear(s, n)) return false;
    for (int i = 0; i < n->nin; i++) {
        if (is_partial(s, n->in[i])) origin = !origin || origin == s->origin[n->in[i]] ? s->origin[n->in[i]] : v;
        else if (s->seen[n->in[i]].spread == SPLIT && (n->kind != K_CONTRACT || !s->gathered[n->in[i]])) return false;
    }
    s->work[v] = 0;
    s->made[v] = (Layout){.spread = PARTIAL, .reduce = REDUCE_SUM};
    s->origin[v] = origin;
    return true;
}

// What is added to a total or written to a leaf lies as that does; only to a whole total what is partial may be added.
static void state_of_write(Shard *s, Val v)
{
    const Node *n = &s->old[v];
    Axis a = mapped_axis(s->g, n, s->factor);
    bool partial = is_partial(s, n->in[0]), keeps = n->kind == K_ACCUMULATE && !a && s->seen[n->in[0]].reduce == REDUCE_SUM;
    if (partial && !keeps) mark(s, n->in[0]);
    s->work[v] = a;
    s->made[v] = a ? (Layout){.spread = SPLIT, .axis = a} : (Layout){.spread = partial && keeps ? PARTIAL : WHOLE};
    s->origin[v] = partial ? s->origin[n->in[0]] : v;
}

static Layout leaf_state(const Shard *s, Val v)
{
    const Node *n = &s->old[v];
    bool stays = n->kind == K_PARAM || n->kind == K_STATE || n->kind == K_TOTAL;
    Axis a = stays ? mapped_axis(s->g, n, s->factor) : 0;
    return a ? (Layout){.spread = SPLIT, .axis = a} : (Layout){.spread = WHOLE};
}

static void find_state(Shard *s, Val v)
{
    const Node *n = &s->old[v];
    bool partial = false;
    for (int i = 0; i < n->nin; i++) partial |= is_partial(s, n->in[i]);
    if (n->nin == 0) s->made[v] = leaf_state(s, v), s->work[v] = 0;
    else if (n->kind == K_ACCUMULATE || n->kind == K_UPDATE) state_of_write(s, v);
    else if (n->kind == K_PART) state_of_part(s, v);
    else if (partial && !state_from_partial(s, v)) {
        for (int i = 0; i < n->nin; i++)
            if (is_partial(s, n->in[i])) mark(s, n->in[i]), s->seen[n->in[i]] = resolved(s, n->in[i]);
        state_from_work(s, v);
    } else if (!partial) {
        state_from_work(s, v);
    }
    if (n->kind != K_PART) note_gathered(s, v);
    if (s->made[v].spread == PARTIAL && n->naxes == 0 && n->kind != K_ACCUMULATE && !only_accumulated(s, v)) mark(s, v);
    if (s->made[v].spread == PARTIAL && s->made[v].reduce != REDUCE_SUM) mark(s, v);
    s->seen[v] = s->made[v].spread == PARTIAL && s->marks[v] ? resolved(s, v) : s->made[v];
}

// The axis that the gradient of a split parameter has, handed down from its accumulate to where it is made.
static void find_goals(Shard *s)
{
    for (Val v = (Val)s->n; v-- > 1;) {
        const Node *n = &s->old[v];
        Axis goal = 0;
        if (n->kind == K_ACCUMULATE) goal = mapped_axis(s->g, n, s->factor);
        else if (n->kind == K_MAP && s->uses[v] == 1) goal = s->goal[v];
        else if (n->kind == K_VIEW && s->uses[v] == 1 && s->goal[v]) goal = s->goal[v];
        if (!goal) continue;
        for (int i = 0; i < n->nin; i++)
            if (s->uses[n->in[i]] == 1 && has_axis(&s->old[n->in[i]], goal)) s->goal[n->in[i]] = goal;
    }
}

static void count_uses(Shard *s)
{
    uint8_t *live = xmalloc(s->n);
    graph_mark_live(s->g, live);
    for (Val v = 1; v < s->n; v++)
        for (int i = 0; i < s->old[v].nin && live[v]; i++) s->uses[s->old[v].in[i]]++, s->user[s->old[v].in[i]] = v;
    for (size_t i = 0; i < vec_len(s->g->outputs); i++) s->uses[s->g->outputs[i].val] += 2;
    free(live);
}

// A total that anything partial is added to is partial: what is whole is then added by one rank only.
static void find_owned(Shard *s)
{
    Graph *g = s->g;
    for (Val v = 1; v < s->n; v++)
        if (s->old[v].kind == K_ACCUMULATE && s->made[v].spread == PARTIAL) g->accs[s->old[v].u.id].key.mesh |= 1u << s->factor;
    for (Val v = 1; v < s->n; v++)
        if (s->old[v].kind == K_ACCUMULATE && s->made[v].spread == WHOLE && g->accs[s->old[v].u.id].key.mesh >> s->factor & 1)
            s->owned[v] = 1;
}

void shard_factor(Graph *g, MeshFactor factor)
{
    size_t n = vec_len(g->nodes);
    Shard s = {.g = g, .factor = factor, .k = g->mesh.size[factor], .n = n};
    Node *old = xmalloc(n * sizeof *old);
    memcpy(old, g->nodes, n * sizeof *old);
    s.old = old;
    s.made = xcalloc(n, sizeof *s.made), s.seen = xcalloc(n, sizeof *s.seen), s.origin = xcalloc(n, sizeof *s.origin);
    s.work = xcalloc(n, sizeof *s.work), s.goal = xcalloc(n, sizeof *s.goal), s.marks = xcalloc(2 * n, 1), s.gathered = s.marks + n;
    s.owned = xcalloc(n, 1), s.uses = xcalloc(n, sizeof *s.uses), s.user = xcalloc(n, sizeof *s.user);
    s.now = xcalloc(n, sizeof *s.now), s.whole = xcalloc(n, sizeof *s.whole);
    count_uses(&s);
    find_goals(&s);
    uint8_t *before = xmalloc(2 * n);
    do {
        memcpy(before, s.marks, 2 * n);
        for (Val v = 1; v < n; v++) find_state(&s, v);
    } while (memcmp(before, s.marks, 2 * n));
    find_owned(&s);
    shard_emit(&s);
    free(before), free(old), free(s.made), free(s.seen), free(s.origin), free(s.work), free(s.goal), free(s.marks);
    free(s.owned), free(s.uses), free(s.user), free(s.now), free(s.whole);
}
