// emit_row.c: kernels with reductions over the inner axes of a row.
//
// A row takes passes. Pass p holds the reductions whose operands need the results of p earlier passes, and writes the
// values that are known by then; accumulators, parameters and states are written in the last one, since they overwrite
// what earlier passes read. What a pass needs it makes again from loads, but for costly functions that several passes
// use (kept in a scratch row, CPU only) and values that an earlier pass has written (read back).
//
// The order of a sum is part of its meaning: element i, counted through the reduced axes in the operand's order, is
// added to lane i % 32, and the lanes are added in a fixed tree. A CPU runs 32 lanes in an inner loop, a GPU one warp.
#include "emit.h"

enum { ROW_THREADS = 128, GRAIN_ELEMENTS = 16384, SCRATCH_LIMIT = 1 << 20, MAX_PASSES = 30 };

// ---------------------------------------------------------------------------------------------------- reductions
const char *reduce_name(const Node *n)
{
    static const char *const names[] = {[RED_SUM] = "sum", [RED_MAX] = "max", [RED_MIN] = "min"};
    return names[n->reduce];
}

const char *reduce_identity(const Node *n)
{
    bool whole = n->dtype == I32 || n->dtype == BOOL;
    if (n->reduce == RED_SUM) return "0";
    if (n->reduce == RED_MAX) return whole ? "INT32_MIN" : n->dtype == F64 ? "-P_INF_f64" : "-P_INF_f32";
    return whole ? "INT32_MAX" : n->dtype == F64 ? "P_INF_f64" : "P_INF_f32";
}

const char *reduce_step(Emitter *e, const Node *n, const char *to, const char *value)
{
    if (n->reduce == RED_SUM) return arena_printf(&e->arena, "%s += %s;", to, value);
    return arena_printf(&e->arena, "%s = p_%s_%s(%s, %s);", to, reduce_name(n), type_suffix(n->dtype), to, value);
}

// ------------------------------------------------------------------------------------------------- what is when
// For each node that the group pulls: passes that must be complete before it (ready), passes that use it (need, bits),
// whether something reads it through a view (moved).
typedef struct {
    Val *order;
    uint8_t *ready;
    uint32_t *need;
    bool *moved;
    int last;
} RowPlan;

static int by_value(const void *a, const void *b)
{
    Val x = *(const Val *)a, y = *(const Val *)b;
    return (x > y) - (x < y);
}

static Val *closure(const Emitter *e)
{
    uint8_t *seen = xcalloc(vec_len(e->g->nodes), 1);
    Val *order = NULL;
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        vec_push(order, e->group->nodes[i]);
        seen[e->group->nodes[i]] = 1;
    }
    for (size_t i = 0; i < vec_len(order); i++) {
        const Node *n = &e->g->nodes[order[i]];
        int nin = n->kind == K_UPDATE ? 1 : n->nin;
        if (is_loaded(e, order[i])) continue;
        for (int k = 0; k < nin; k++)
            if (!seen[n->in[k]]++)
                vec_push(order, n->in[k]);
            else
                seen[n->in[k]] = 1;
    }
    free(seen);
    qsort(order, vec_len(order), sizeof *order, by_value);
    return order;
}

static bool in_place(const Node *n)
{
    return n->kind == K_ACCUMULATE || n->kind == K_UPDATE;
}

static bool is_costly(const Node *n)
{
    if (n->kind != K_MAP) return false;
    switch ((Fn)n->fn) {
    case FN_EXP:
    case FN_LOG:
    case FN_POW:
    case FN_TANH:
    case FN_SIGMOID:
    case FN_ERF:
    case FN_SIN:
    case FN_COS:
        return true;
    default:
        return false;
    }
}

static int64_t row_extent(const Emitter *e)
{
    const Group *gr = e->group;
    return extent_product(e->g, gr->ndom - gr->nouter, gr->dom + gr->nouter);
}

static bool is_inner(const Emitter *e, Val v)
{
    for (int i = e->group->nouter; i < e->group->ndom; i++)
        if (extent_of(e->g, e->group->dom[i]) > 1 && has_axis(&e->g->nodes[v], e->group->dom[i])) return true;
    return false;
}

static bool is_kept(const Emitter *e, const RowPlan *p, Val v)
{
    return e->target == TARGET_CPU && is_costly(&e->g->nodes[v]) && !p->moved[v] && is_inner(e, v) &&
           (p->need[v] & (p->need[v] - 1)) && row_extent(e) * 8 <= SCRATCH_LIMIT;
}

static int lowest_bit(uint32_t x)
{
    return __builtin_ctz(x);
}

static void plan_need(const Emitter *e, RowPlan *p)
{
    for (size_t i = vec_len(p->order); i-- > 0;) {
        Val v = p->order[i];
        const Node *n = &e->g->nodes[v];
        if (e->inside[v] && n->kind == K_REDUCE)
            p->need[v] = 1u << (p->ready[v] - 1);
        else if (e->inside[v] && is_output(e, v))
            p->need[v] |= 1u << (in_place(n) ? p->last : p->ready[v]);
        if (is_loaded(e, v) || !p->need[v]) continue;
        uint32_t need = is_kept(e, p, v) ? 1u << lowest_bit(p->need[v]) : p->need[v];
        bool moves = (n->kind == K_VIEW && n->u.view->n) || n->kind == K_GATHER || (p->moved[v] && n->kind != K_REDUCE);
        for (int k = 0; k < (n->kind == K_UPDATE ? 1 : n->nin); k++) {
            p->need[n->in[k]] |= need;
            p->moved[n->in[k]] |= moves;
        }
    }
}

static RowPlan row_plan(const Emitter *e)
{
    size_t n = vec_len(e->g->nodes);
    RowPlan p = {closure(e), xcalloc(n, 1), xcalloc(n, sizeof(uint32_t)), xcalloc(n, sizeof(bool)), 0};
    for (size_t i = 0; i < vec_len(p.order); i++) {
        Val v = p.order[i];
        const Node *node = &e->g->nodes[v];
        if (is_loaded(e, v)) continue;
        for (int k = 0; k < (node->kind == K_UPDATE ? 1 : node->nin); k++)
            p.ready[v] = max_of(p.ready[v], p.ready[node->in[k]]);
        if (!e->inside[v]) continue;
        if (node->kind == K_REDUCE || (is_output(e, v) && is_inner(e, v))) p.last = max_of(p.last, p.ready[v]);
        if (node->kind == K_REDUCE) p.ready[v]++;
    }
    if (p.last >= MAX_PASSES) bug("a row kernel with %d passes", p.last);
    plan_need(e, &p);
    return p;
}

static void row_plan_free(RowPlan *p)
{
    vec_free(p->order);
    free(p->ready), free(p->need), free(p->moved);
}

uint8_t *passes_before(const Emitter *e)
{
    RowPlan p = row_plan(e);
    uint8_t *ready = p.ready;
    p.ready = NULL;
    row_plan_free(&p);
    return ready;
}

// ------------------------------------------------------------------------------------------------------ a pass
// Axes that a reduction runs over, in its operand's order.
static int reduced_axes(const Emitter *e, Val v, Axis *axes)
{
    const Node *n = &e->g->nodes[v], *of = &e->g->nodes[n->in[0]];
    int count = 0;
    for (int i = 0; i < of->naxes; i++)
        if (!has_axis(n, of->axes[i])) axes[count++] = of->axes[i];
    return count;
}

static bool same_order(const Emitter *e, int na, const Axis *a, int nb, const Axis *b)
{
    int i = 0, k = 0;
    for (;; i++, k++) { // axes of one position do not count
        while (i < na && extent_of(e->g, a[i]) == 1) i++;
        while (k < nb && extent_of(e->g, b[k]) == 1) k++;
        if (i == na || k == nb) return i == na && k == nb;
        if (a[i] != b[k]) return false;
    }
}

static void keep_scratch(Emitter *e, Val v)
{
    const char *name = emit_name(e, "kept"), *type = local_type(e->g->nodes[v].dtype);
    emit_line(e, 0, "%s *%s = (%s *)((char *)scratch + %llu);", type, name, type, (unsigned long long)e->out->scratch);
    e->out->scratch += ((uint64_t)row_extent(e) * 8 + 63) / 64 * 64;
    vec_push(e->scratch, (ScratchRow){v, name, e->pass});
    Value value = pull_here(e, v);
    buf_printf(&e->ends[2], "%s[i] = %s;\n", name, value.text);
}

bool row_reload(Emitter *e, Val v, Value *out)
{
    if (!e->pass_natural || !is_inner(e, v)) return false;
    for (size_t i = 0; i < vec_len(e->scratch); i++) {
        if (e->scratch[i].val != v || e->scratch[i].first >= e->pass) continue;
        const char *name = emit_name(e, fn_info[e->g->nodes[v].fn].name);
        emit_line(e, 2, "const %s %s = %s[i];", local_type(e->g->nodes[v].dtype), name, e->scratch[i].name);
        *out = (Value){name, 2};
        return true;
    }
    for (size_t i = 0; i < vec_len(e->written); i++)
        if (e->written[i] == v) {
            *out = load_here(e, v);
            return true;
        }
    return false;
}

typedef struct {
    Val val;
    const char *lanes;
} Sum; // a reduction of the pass that is being written

static void pass_loop(Emitter *e, const Sum *sums, int64_t extent)
{
    Buf declare = {0}, start = {0};
    bool cuda = e->target == TARGET_CUDA;
    for (size_t i = 0; i < vec_len(sums); i++) {
        const Node *n = &e->g->nodes[sums[i].val];
        const char *type = local_type(n->dtype), *lanes = sums[i].lanes, *identity = reduce_identity(n);
        if (cuda)
            buf_printf(&declare, "%s %s = %s;\n", type, lanes, identity);
        else
            buf_printf(&declare, "%s %s[%d];\n", type, lanes, LANES);
        buf_printf(&start, "%s[l] = %s;\n", lanes, identity);
    }
    int64_t full = extent / LANES * LANES;
    const char *body = emit_close(e, 2), *none = "";
    const char *full_text = arena_printf(&e->arena, "%lld", (long long)full);
    const char *extent_text = arena_printf(&e->arena, "%lld", (long long)extent);
    const char *rest_text = arena_printf(&e->arena, "%lld", (long long)(extent - full));
    bool used = mentions(body, "i");
    const char *rest_position = !used   ? none
                                : !full ? "const int i = l;"
                                        : arena_printf(&e->arena, "const int i = %lld + l;", (long long)full);
    Hole common[] = {{"declare", declare.s ? declare.s : none},
                     {"start", start.s ? start.s : none},
                     {"body", body},
                     {"extent", extent_text},
                     {"full", full_text},
                     {"rest", rest_text},
                     {"position", used ? "const int i = i0 + l;" : none},
                     {"type", "int"},
                     {"i", "i"},
                     {"from", "0"},
                     {"to", extent_text}};
    if (cuda)
        append_section(e, 1, "row", "pass", common, countof(common));
    else if (!vec_len(sums))
        append_section(e, 1, "row", "elements", common, countof(common));
    else {
        append_section(e, 1, "row", "lanes", common, countof(common));
        if (full) append_section(e, 1, "row", "full", common, countof(common));
        common[6].text = rest_position;
        if (extent > full) append_section(e, 1, "row", "rest", common, countof(common));
    }
    buf_free(&declare), buf_free(&start);
}

static void finish_sum(Emitter *e, Sum sum)
{
    const Node *n = &e->g->nodes[sum.val];
    const char *where = e->target == TARGET_CUDA ? "warp" : "tree", *name = emit_name(e, reduce_name(n));
    const char *text =
        arena_printf(&e->arena, "p_%s_%s_%s(%s)", where, reduce_name(n), type_suffix(n->dtype), sum.lanes);
    if (n->dtype == BF16) text = arena_printf(&e->arena, "p_round_bf16(%s)", text);
    emit_line(e, 1, "const %s %s = %s;", local_type(n->dtype), name, text);
    IdxId at[MAX_AXES];
    natural_position(e, n, at);
    memo_add(e, sum.val, at, 0, (Value){name, 1});
}

// One pass over axes[n]: the reductions in `sums`; with the plan, also what is written and kept in it.
static void emit_pass(Emitter *e, int n, const Axis *axes, Sum *sums, const RowPlan *plan)
{
    int64_t extent = extent_product(e->g, n, axes);
    if (extent > INT32_MAX - LANES) bug("a row of %lld elements", (long long)extent);
    place_parts(e, var_loop(e, "i", extent, 2, false), n, axes);
    for (size_t i = 0; i < vec_len(sums); i++) {
        const Node *node = &e->g->nodes[sums[i].val];
        Value value = pull_here(e, node->in[0]);
        sums[i].lanes = emit_name(e, "lanes");
        const char *to = e->target == TARGET_CUDA ? sums[i].lanes : arena_printf(&e->arena, "%s[l]", sums[i].lanes);
        buf_printf(&e->ends[2], "%s\n", reduce_step(e, node, to, value.text));
    }
    for (size_t i = 0; plan && i < vec_len(plan->order); i++) {
        Val v = plan->order[i];
        const Node *node = &e->g->nodes[v];
        if (e->inside[v] && is_output(e, v) && node->kind != K_REDUCE && is_inner(e, v) &&
            e->pass == (in_place(node) ? plan->last : plan->ready[v])) {
            store_here(e, v, pull_here(e, v), 1);
            if (!in_place(node)) vec_push(e->written, v);
        } else if (!is_loaded(e, v) && is_kept(e, plan, v) && lowest_bit(plan->need[v]) == e->pass)
            keep_scratch(e, v);
    }
    pass_loop(e, sums, extent);
    for (size_t i = 0; i < vec_len(sums); i++) finish_sum(e, sums[i]);
}

// All passes of number e->pass: one for the domain's order, one more for each reduction that runs in another.
static void emit_passes(Emitter *e, const RowPlan *plan)
{
    const Axis *inner = e->group->dom + e->group->nouter;
    int ninner = e->group->ndom - e->group->nouter;
    Sum *sums = NULL;
    for (size_t i = 0; i < vec_len(plan->order); i++) {
        Val v = plan->order[i];
        Axis axes[MAX_AXES];
        if (!e->inside[v] || e->g->nodes[v].kind != K_REDUCE || plan->ready[v] != e->pass + 1) continue;
        int n = reduced_axes(e, v, axes);
        if (same_order(e, n, axes, ninner, inner)) {
            vec_push(sums, (Sum){v, NULL});
            continue;
        }
        Sum *alone = NULL;
        vec_push(alone, (Sum){v, NULL});
        e->pass_natural = false;
        emit_pass(e, n, axes, alone, NULL);
        vec_free(alone);
    }
    e->pass_natural = true;
    bool any = vec_len(sums) > 0;
    for (size_t i = 0; !any && i < vec_len(plan->order); i++)
        any = e->inside[plan->order[i]] && is_output(e, plan->order[i]) && is_inner(e, plan->order[i]) &&
              (plan->need[plan->order[i]] >> e->pass & 1);
    if (any) emit_pass(e, ninner, inner, sums, plan);
    vec_free(sums);
}

static char *row_function(Emitter *e, const char *row)
{
    int64_t rows = (int64_t)e->out->rows;
    if (e->target == TARGET_CPU) {
        e->out->grain = (uint64_t)max_of(1, GRAIN_ELEMENTS / max_of(row_extent(e), 1));
        return finish_function(e, "row", row);
    }
    Hole holes[] = {{"rows", arena_printf(&e->arena, "%lld", (long long)rows)}, {"row", row}};
    append_section(e, 1, "row", "rows", holes, countof(holes));
    e->out->block[0] = ROW_THREADS;
    e->out->grid[0] = (uint32_t)((rows * 32 + ROW_THREADS - 1) / ROW_THREADS);
    return finish_function(e, "row", emit_close(e, 1));
}

char *emit_row(Emitter *e)
{
    const Group *gr = e->group;
    RowPlan plan = row_plan(e);
    emit_reset(e);
    e->top = 2;
    e->guard = e->target == TARGET_CUDA ? "lane == 0" : NULL;
    int64_t rows = extent_product(e->g, gr->nouter, gr->dom);
    e->out->rows = (uint64_t)rows;
    place_parts(e, var_loop(e, "r", rows, 1, true), gr->nouter, gr->dom);
    for (; e->pass <= plan.last; e->pass++) emit_passes(e, &plan);
    for (size_t i = 0; i < vec_len(plan.order); i++) {
        Val v = plan.order[i];
        if (e->inside[v] && is_output(e, v) && !is_inner(e, v)) store_here(e, v, pull_here(e, v), 1);
    }
    row_plan_free(&plan);
    return row_function(e, emit_close(e, 1));
}
