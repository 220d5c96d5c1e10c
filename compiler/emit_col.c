// emit_col.c: reductions that keep the last axis (column sums), and scatter_add.
//
// Both go down the rows of a tensor with neighbouring columns side by side. A column sum adds its rows, counted
// through the reduced axes in the operand's order, in blocks of 64: within a block in order, then the blocks in order;
// that is its meaning, and how wide a tile of columns a thread takes is not. On a CPU a tile is a `row`; on CUDA every
// thread has one column. A sum that needs another one (softmax along an axis that is not the last) is made in a
// further run down the rows.
//
// scatter_add goes through the tokens in order and adds each one's columns to the row it names, straight into the
// result (or the accumulator); positions outside are skipped.
#include "emit.h"

enum { COL_THREADS = 128 };

static int kept_axes(const Emitter *e, Axis *kept)
{
    const Group *gr = e->group;
    int n = 0;
    for (int i = 0; i < gr->ndom; i++) {
        bool red = false;
        for (int k = 0; k < gr->nred; k++) red |= gr->red[k] == gr->dom[i];
        if (!red) kept[n++] = gr->dom[i];
    }
    return n;
}

static int removed_axes(const Emitter *e, Axis *red)
{ // in the domain's order
    const Group *gr = e->group;
    int n = 0;
    for (int i = 0; i < gr->ndom; i++)
        for (int k = 0; k < gr->nred; k++)
            if (gr->red[k] == gr->dom[i]) red[n++] = gr->dom[i];
    return n;
}

static bool is_sum(const Emitter *e, Val v)
{
    return e->g->nodes[v].kind == K_REDUCE && e->inside[v];
}

// Columns that a thread takes at once: a divisor of the last extent, so that no tile is ragged, if there is one.
static int64_t tile_width(int64_t columns)
{
    for (int64_t w = 128; w >= 32; w /= 2)
        if (columns % w == 0 && columns / w >= 4) return w;
    return min_of(columns, 64);
}

typedef struct {
    int64_t columns, width;
} Tiles;

// Rows are the outer kept loops and the tiles of the last; e->positions of the kept axes are set.
static Tiles place_tiles(Emitter *e, const LoopPlan *plan, int level)
{
    uint32_t vars[2 * MAX_AXES], parts[2 * MAX_AXES];
    int outer = max_of(plan->nloops - 1, 0);
    int64_t rows = 1, columns = plan->nloops ? plan->extent[outer] : 1, width = tile_width(columns);
    int64_t tiles = (columns + width - 1) / width;
    for (int i = 0; i < outer; i++) rows *= plan->extent[i];
    uint32_t r = var_loop(e, "r", rows * tiles, 1, true);
    for (int i = 0; i < outer; i++) parts[i] = vars[i] = var_new(e, VAR_PART, emit_name(e, "row"), plan->extent[i], 1);
    uint32_t tile = parts[outer] = var_new(e, VAR_PART, "tile", tiles, 1);
    var_parts(e, r, (size_t)outer + 1, parts);
    if (plan->nloops) vars[outer] = var_loop(e, "c", columns, level, false);
    place_plan(e, plan, vars);
    e->out->rows = (uint64_t)(rows * tiles);
    e->out->grain = 1;
    if (columns > 1)
        emit_line(e, 1, "const int c0 = (int)(%s) * %lld;", idx_text(e, idx_var(e, tile)), (long long)width);
    if (columns % width)
        emit_line(e, 1, "const int n = %lld - c0 < %lld ? %lld - c0 : %lld;", (long long)columns, (long long)width,
                  (long long)columns, (long long)width);
    return (Tiles){columns, width};
}

// One thread has one element of the kept axes.
static void place_threads(Emitter *e, const LoopPlan *plan)
{
    uint32_t vars[2 * MAX_AXES];
    int64_t total = 1;
    for (int i = 0; i < plan->nloops; i++) total *= plan->extent[i];
    if (total > INT32_MAX / 2)
        err(e->g, e->g->nodes[e->group->nodes[0]].loc, "a sum here keeps %lld elements, and a kernel has at most %d columns", (long long)total, INT32_MAX / 2);
    uint32_t t = var_loop(e, "c", total, 1, false);
    for (int i = 0; i < plan->nloops; i++) vars[i] = var_new(e, VAR_PART, emit_name(e, "row"), plan->extent[i], 1);
    if (plan->nloops == 1)
        vars[0] = t;
    else
        var_parts(e, t, (size_t)plan->nloops, vars);
    place_plan(e, plan, vars);
    e->out->rows = (uint64_t)total;
    e->out->block[0] = COL_THREADS;
    e->out->grid[0] = (uint32_t)((total + COL_THREADS - 1) / COL_THREADS);
}

static const char *number(Emitter *e, int64_t x)
{
    return arena_printf(&e->arena, "%lld", (long long)x);
}

static const char *column_position(const char *body)
{
    return mentions(body, "c") ? "const int c = c0 + l;" : "";
}

static const char *tile_columns(Emitter *e, const Tiles *t)
{
    return t->columns % t->width ? "n" : number(e, t->width);
}

// ------------------------------------------------------------------------------------------------- column sums
static void leave_removed(Emitter *e)
{
    for (int k = 0; k < e->group->nred; k++) place_axis(e, e->group->red[k], idx_const(e, 0));
}

static void use_col(Emitter *e)
{
    IdxId at[MAX_AXES];
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        Val v = e->group->nodes[i];
        if (!is_sum(e, v)) continue;
        pull_here(e, e->g->nodes[v].in[0]);
        natural_position(e, &e->g->nodes[v], at);
        memo_add(e, v, at, 0, (Value){"sum", 1});
    }
    leave_removed(e);
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        Val v = e->group->nodes[i];
        if (is_output(e, v)) store_here(e, v, pull_here(e, v), 1);
    }
}

// One run down the rows: the sums that can be made now that `stage` others, one after the other, are complete.
typedef struct {
    Val val;
    const char *total;
} ColSum;
typedef struct {
    Buf declare, start, clear, add;
    ColSum *sums;
    const uint8_t *ready;
    int stage, stages;
} ColText;

static ColText col_start(const Emitter *e, const uint8_t *ready)
{
    ColText t = {.ready = ready};
    for (size_t i = 0; i < vec_len(e->group->nodes); i++)
        if (is_sum(e, e->group->nodes[i])) t.stages = max_of(t.stages, ready[e->group->nodes[i]]);
    return t;
}

// Complete sums are known by name at `level`.
static void remember_sums(Emitter *e, const ColText *t, int level)
{
    IdxId at[MAX_AXES];
    for (size_t i = 0; i < vec_len(t->sums); i++) {
        const Node *n = &e->g->nodes[t->sums[i].val];
        const char *text = t->sums[i].total;
        if (n->dtype == BF16) text = arena_printf(&e->arena, "p_round_bf16(%s)", text);
        natural_position(e, n, at);
        memo_add(e, t->sums[i].val, at, 0, (Value){text, level});
    }
}

static void start_sums(Emitter *e, ColText *t, const char *sub, int level, const char *width)
{
    Buf *bufs[] = {&t->declare, &t->start, &t->clear, &t->add};
    for (size_t i = 0; i < countof(bufs); i++) buf_free(bufs[i]);
    remember_sums(e, t, level);
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        Val v = e->group->nodes[i];
        if (!is_sum(e, v) || t->ready[v] != t->stage + 1) continue;
        const Node *n = &e->g->nodes[v];
        const char *type = local_type(n->dtype), *total = emit_name(e, reduce_name(n)), *block = emit_name(e, "block");
        const char *to = arena_printf(&e->arena, "%s%s", block, sub),
                   *all = arena_printf(&e->arena, "%s%s", total, sub);
        buf_printf(&t->declare, "%s %s%s, %s%s;\n", type, total, width, block, width);
        buf_printf(&t->start, "%s = %s;\n", all, reduce_identity(n));
        buf_printf(&t->clear, "%s = %s;\n", to, reduce_identity(n));
        buf_printf(&t->add, "%s\n", reduce_step(e, n, all, to));
        Value value = pull_here(e, n->in[0]);
        buf_printf(&e->ends[level], "%s\n", reduce_step(e, n, to, value.text));
        vec_push(t->sums, (ColSum){v, all});
    }
    t->stage++;
}

// All sums are complete: what is made of them. Nothing has a position on the removed axes any more.
static void use_sums(Emitter *e, const ColText *t, int level)
{
    leave_removed(e);
    remember_sums(e, t, level);
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        Val v = e->group->nodes[i];
        if (is_output(e, v)) store_here(e, v, pull_here(e, v), level);
    }
}

static void col_text_free(ColText *t)
{
    buf_free(&t->declare), buf_free(&t->start), buf_free(&t->clear), buf_free(&t->add);
    vec_free(t->sums);
}

static char *col_cpu(Emitter *e, const LoopPlan *plan, ColText *t, int nred, const Axis *red)
{
    int64_t k = extent_product(e->g, nred, red);
    e->top = 3;
    Tiles tiles = place_tiles(e, plan, 3);
    const char *width = arena_printf(&e->arena, "[%lld]", (long long)tiles.width);
    place_parts(e, var_loop(e, "k", k, 2, false), nred, red);
    Hole common[] = {{"rows", number(e, k)},
                     {"position", ""},
                     {"n", tile_columns(e, &tiles)},
                     {"finish", ""},
                     {"declare", ""},
                     {"start", ""},
                     {"clear", ""},
                     {"add", ""},
                     {"body", ""},
                     {"term", ""}};
    while (t->stage < t->stages) {
        start_sums(e, t, "[l]", 3, width);
        common[4].text = t->declare.s, common[5].text = t->start.s, common[6].text = t->clear.s,
        common[7].text = t->add.s;
        common[8].text = emit_close(e, 3);
        common[9].text = emit_close(e, 2);
        common[1].text = column_position(common[8].text);
        append_section(e, 1, "col", "columns", common, countof(common));
    }
    use_sums(e, t, 3);
    common[3].text = emit_close(e, 3);
    common[1].text = column_position(common[3].text);
    append_section(e, 1, "col", "finish", common, countof(common));
    return finish_function(e, "col", emit_close(e, 1));
}

static char *col_cuda(Emitter *e, const LoopPlan *plan, ColText *t, int nred, const Axis *red)
{
    int64_t k = extent_product(e->g, nred, red);
    e->top = 2;
    place_threads(e, plan);
    place_parts(e, var_loop(e, "k", k, 2, false), nred, red);
    while (t->stage < t->stages) {
        start_sums(e, t, "", 2, "");
        Hole holes[] = {{"declare", t->declare.s}, {"start", t->start.s},      {"clear", t->clear.s},
                        {"add", t->add.s},         {"body", emit_close(e, 2)}, {"rows", number(e, k)}};
        append_section(e, 1, "col", "column", holes, countof(holes));
    }
    use_sums(e, t, 1);
    return finish_function(e, "col", emit_close(e, 1));
}

char *emit_col(Emitter *e)
{
    LoopPlan plan;
    Axis kept[MAX_AXES], red[MAX_AXES];
    int nkept = kept_axes(e, kept), nred = removed_axes(e, red);
    plan_loops(e, &plan, nkept, kept, nred, red, use_col);
    uint8_t *ready = passes_before(e);
    ColText t = col_start(e, ready);
    char *text = e->target == TARGET_CUDA ? col_cuda(e, &plan, &t, nred, red) : col_cpu(e, &plan, &t, nred, red);
    col_text_free(&t);
    free(ready);
    return text;
}

// ------------------------------------------------------------------------------------------------- scatter_add
typedef struct {
    Val scatter, out;
    bool first, always;
} Scatter; // out: what is written; first, always: when it is cleared

static Scatter scatter_of(const Emitter *e)
{
    Scatter s = {0};
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        Val v = e->group->nodes[i];
        Kind k = e->g->nodes[v].kind;
        if (k == K_SCATTER_ADD) s.scatter = v;
        if (k == K_SCATTER_ADD && !s.out) s.out = v, s.always = true;
        if (k == K_ACCUMULATE) s = (Scatter){s.scatter, v, accumulate_is_first(e->g, v), false};
    }
    return s;
}

static int token_axes(const Emitter *e, Val scatter, Axis *axes)
{
    const Node *n = &e->g->nodes[scatter];
    int count = 0;
    for (int k = 1; k >= 0; k--) // the index's, then what only the values have
        for (int i = 0; i < e->g->nodes[n->in[k]].naxes; i++) {
            Axis a = e->g->nodes[n->in[k]].axes[i];
            bool known = has_axis(n, a);
            for (int j = 0; j < count; j++) known |= axes[j] == a;
            if (!known) axes[count++] = a;
        }
    return count;
}

static IdxId scatter_address(Emitter *e, const Scatter *s, IdxId position)
{
    const Node *n = &e->g->nodes[s->scatter];
    IdxId at[MAX_AXES];
    int k = axis_find(n, n->u.axis);
    place_axis(e, n->u.axis, position);
    natural_position(e, n, at);
    at[k] = position;
    return address_of(e, storage_of(e->g, s->out), n, at);
}

// Writes the lines that add one token's columns; gives the condition that its position is inside.
static const char *add_token(Emitter *e, const Scatter *s, int level)
{
    const Node *n = &e->g->nodes[s->scatter];
    IdxId at[MAX_AXES];
    natural_position(e, &e->g->nodes[n->in[1]], at);
    int64_t extent = extent_of(e->g, n->u.axis);
    IdxId position = looked_up(e, n->in[1], at, 0, extent);
    PredId inside = predicate(e, 0, position, extent, false);
    const char *condition = predicate_text(e, inside);
    Value value = pull_here(e, n->in[0]);
    uint32_t arg = arg_of(e, s->out, !s->always, true);
    const char *to = element_text(e, arg, scatter_address(e, s, position), true, 0);
    buf_printf(&e->ends[level], "%s += %s;\n", to, value.text);
    return condition;
}

static const char *clear_element(Emitter *e, const Scatter *s, uint32_t var)
{
    uint32_t arg = arg_of(e, s->out, !s->always, true);
    return element_text(e, arg, scatter_address(e, s, idx_var(e, var)), true, 0);
}

static void use_scatter(Emitter *e)
{
    Scatter s = scatter_of(e);
    add_token(e, &s, 1);
}

static const char *clear_condition(Emitter *e, const Scatter *s)
{
    return s->always ? "1" : first_flag(e);
}

static char *scatter_body(Emitter *e, const Scatter *s, const LoopPlan *plan, int ntokens, const Axis *tokens)
{
    bool cuda = e->target == TARGET_CUDA;
    Tiles tiles = {1, 1};
    e->top = cuda ? 2 : 3;
    if (cuda)
        place_threads(e, plan);
    else
        tiles = place_tiles(e, plan, 3);
    int64_t count = extent_product(e->g, ntokens, tokens), extent = extent_of(e->g, e->g->nodes[s->scatter].u.axis);
    const char *n = tile_columns(e, &tiles);
    if (s->always || s->first) {
        buf_printf(&e->ends[e->top], "%s = 0;\n", clear_element(e, s, var_loop(e, "v", extent, 2, false)));
        const char *clear = emit_close(e, e->top), *outer = cuda ? "" : emit_close(e, 2);
        Hole holes[] = {{"extent", number(e, extent)},
                        {"term", outer},
                        {"body", clear},
                        {"position", column_position(clear)},
                        {"n", n},
                        {"if", s->always ? "" : arena_printf(&e->arena, "if (%s) ", clear_condition(e, s))}};
        append_section(e, 1, "scatter", "clear", holes, countof(holes));
    }
    place_parts(e, var_loop(e, "t", count, 2, false), ntokens, tokens);
    const char *inside = add_token(e, s, e->top);
    Hole holes[] = {
        {"tokens", number(e, count)}, {"inside", inside}, {"body", NULL}, {"term", NULL}, {"position", ""}, {"n", n}};
    if (cuda) {
        buf_printf(&e->lines[2], "if (%s) ", inside);
        holes[2].text = holes[3].text = emit_close(e, 2);
    } else {
        holes[2].text = emit_close(e, 3);
        holes[4].text = column_position(holes[2].text);
        holes[3].text = emit_close(e, 2);
    }
    append_section(e, 1, "scatter", "tokens", holes, countof(holes));
    return finish_function(e, "scatter", emit_close(e, 1));
}

char *emit_scatter(Emitter *e)
{
    Scatter s = scatter_of(e);
    const Node *n = &e->g->nodes[s.scatter];
    DType t = e->g->nodes[storage_of(e->g, s.out)].dtype;
    if (t != F32 && t != F64) bug("scatter_add into %s", dtype_name(t));
    Axis kept[MAX_AXES], other[MAX_AXES];
    int nkept = 0, ntokens = token_axes(e, s.scatter, other);
    for (int i = 0; i < n->naxes; i++)
        if (n->axes[i] != n->u.axis) kept[nkept++] = n->axes[i];
    LoopPlan plan;
    plan_loops(e, &plan, nkept, kept, ntokens, other, use_scatter);
    return scatter_body(e, &s, &plan, ntokens, other);
}
