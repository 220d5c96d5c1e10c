// emit_loops.c: which loops a kernel has, the function around them, and elementwise kernels.
//
// Loops are planned by writing the body once for nothing: the index expressions that it used say which neighbouring
// axes can be one loop (every address has them side by side) and which axis is better two (it is only wanted divided).
//
// An elementwise kernel on a CPU: a row is some thousand elements, either a piece of one long loop or a nest of short
// ones; the innermost loop is `omp simd`. On CUDA every thread takes elements, a grid apart.
#include "emit.h"

enum {
    ROW_ELEMENTS = 4096,
    GRAIN_ELEMENTS = 16384,
    BLOCK_THREADS = 256,
    MAX_BLOCKS = 4096,
    WIDE_EXTENT = INT32_MAX / 2
};

int64_t extent_product(const Graph *g, int n, const Axis *axes)
{
    int64_t product = 1;
    for (int i = 0; i < n; i++) product *= extent_of(g, axes[i]);
    return product;
}

bool is_output(const Emitter *e, Val v)
{
    Kind k = e->g->nodes[v].kind;
    return k == K_ACCUMULATE || k == K_UPDATE || e->g->stored[v];
}

// ---------------------------------------------------------------------------------------------------- planning
static void place_by_parts(Emitter *e, const LoopPlan *plan, const uint32_t *part_vars)
{
    for (int i = 0; i < plan->nparts; i++) {
        Axis axis = plan->part[i].axis;
        if (i > 0 && plan->part[i - 1].axis == axis) continue;
        int last = i;
        while (last + 1 < plan->nparts && plan->part[last + 1].axis == axis) last++;
        IdxId idx = idx_const(e, 0);
        int64_t stride = 1;
        for (int k = last; k >= i; stride *= plan->part[k--].extent)
            idx = idx_add(e, idx, idx_var(e, part_vars[k]), stride);
        place_axis(e, axis, idx);
    }
}

const char *axis_var_name(Emitter *e, Axis a)
{
    const char *name = axis_name(e->g, a);
    Buf b = {0};
    buf_puts(&b, "i_");
    for (const char *s = name; *s; s++) {
        bool word = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '_';
        if (!word) break; // what follows tells equal names apart, and equal kernels should have equal text
        buf_write(&b, s, 1);
    }
    for (uint32_t i = 1; i < vec_len(e->vars); i++)
        if (e->vars[i].name && !strcmp(e->vars[i].name, b.s)) {
            buf_printf(&b, "_%u", e->serial++);
            break;
        }
    name = arena_strdup(&e->arena, b.s);
    buf_free(&b);
    return name;
}

static void place_other(Emitter *e, int n, const Axis *axes)
{
    for (int i = 0; i < n; i++)
        place_axis(e, axes[i], idx_var(e, var_loop(e, axis_var_name(e, axes[i]), extent_of(e->g, axes[i]), 1, false)));
}

static bool side_by_side(const Emitter *e, const uint32_t *vars, const LoopPlan *plan, int q)
{
    for (size_t i = 0; i < vec_len(e->used); i++) {
        const Idx *x = &e->idxs[e->used[i]];
        int64_t slow = 0, fast = 0;
        for (uint32_t t = 0; t < x->n; t++) {
            if (x->term[t].var == vars[q - 1]) slow = x->term[t].coef;
            if (x->term[t].var == vars[q]) fast = x->term[t].coef;
        }
        if (slow != fast * plan->part[q].extent) return false;
    }
    return true;
}

static void split_part(LoopPlan *plan, int at, int64_t inner)
{
    if (plan->nparts == 2 * MAX_AXES) bug("too many loops");
    memmove(&plan->part[at + 1], &plan->part[at], (size_t)(plan->nparts - at) * sizeof *plan->part);
    plan->nparts++;
    plan->part[at].extent /= inner;
    plan->part[at + 1].extent = inner;
}

void plan_loops(Emitter *e, LoopPlan *plan, int n, const Axis *axes, int nother, const Axis *other,
                void (*use)(Emitter *))
{
    *plan = (LoopPlan){0};
    for (int i = 0; i < n; i++)
        if (extent_of(e->g, axes[i]) > 1) plan->part[plan->nparts++] = (LoopPart){axes[i], extent_of(e->g, axes[i]), 0};
    uint32_t vars[2 * MAX_AXES];
    for (bool again = true; again;) {
        emit_reset(e);
        e->planning = true;
        e->top = 1;
        for (int i = 0; i < plan->nparts; i++) {
            vars[i] = var_loop(e, axis_var_name(e, plan->part[i].axis), plan->part[i].extent, 1, false);
            e->vars[vars[i]].planned = true;
        }
        place_by_parts(e, plan, vars);
        place_other(e, nother, other);
        use(e);
        again = e->split_var && plan->nparts < 2 * MAX_AXES;
        for (int i = 0; again && i < plan->nparts; i++)
            if (vars[i] == e->split_var) {
                split_part(plan, i, e->split_at);
                break;
            }
    }
    for (int i = 0; i < plan->nparts; i++) {
        bool merges = i > 0 && side_by_side(e, vars, plan, i);
        if (!merges) plan->extent[plan->nloops++] = 1;
        plan->part[i].loop = plan->nloops - 1;
        plan->extent[plan->nloops - 1] *= plan->part[i].extent;
    }
    emit_reset(e);
}

void place_plan(Emitter *e, const LoopPlan *plan, const uint32_t *loop_vars)
{
    uint32_t vars[2 * MAX_AXES];
    for (int i = 0; i < plan->nparts;) {
        int loop = plan->part[i].loop, n = 1;
        while (i + n < plan->nparts && plan->part[i + n].loop == loop) n++;
        for (int k = 0; k < n; k++)
            vars[i + k] =
                n == 1 ? loop_vars[loop]
                       : var_new(e, VAR_PART, axis_var_name(e, plan->part[i + k].axis), plan->part[i + k].extent, 0);
        if (n > 1) var_parts(e, loop_vars[loop], (size_t)n, &vars[i]);
        i += n;
    }
    place_by_parts(e, plan, vars);
}

void place_parts(Emitter *e, uint32_t var, int n, const Axis *axes)
{
    uint32_t parts[MAX_AXES] = {0};
    if (n == 1) {
        place_axis(e, axes[0], idx_var(e, var));
        return;
    }
    for (int i = 0; i < n; i++) parts[i] = var_new(e, VAR_PART, axis_var_name(e, axes[i]), extent_of(e->g, axes[i]), 0);
    if (n) var_parts(e, var, (size_t)n, parts);
    for (int i = 0; i < n; i++) place_axis(e, axes[i], idx_var(e, parts[i]));
}

// ------------------------------------------------------------------------------------------------ the function
void append_section(Emitter *e, int level, const char *file, const char *section, const Hole *holes, size_t n)
{
    const char *path = arena_printf(&e->arena, "%s.%s", file, e->target == TARGET_CUDA ? "cu" : "c");
    template_expand(&e->lines[level], path, section, holes, n);
}

const char *arguments_text(Emitter *e)
{
    Buf b = {0};
    for (size_t i = 0; i < vec_len(e->group->args); i++) {
        const char *type = dtype_ctype((DType)e->g->nodes[e->group->args[i]].dtype),
                   *c = e->group->arg_written[i] ? "" : "const ";
        if (e->target == TARGET_CUDA)
            buf_printf(&b, "%s%s *a%zu, ", c, type, i);
        else
            buf_printf(&b, "%s%s *a%zu = (%s%s *)b[%zu];\n", c, type, i, c, type, i);
    }
    const char *text = arena_strdup(&e->arena, b.s ? b.s : "");
    buf_free(&b);
    return text;
}

char *finish_function(Emitter *e, const char *file, const char *row)
{
    Buf out = {0};
    const char *path = arena_printf(&e->arena, "%s.%s", file, e->target == TARGET_CUDA ? "cu" : "c");
    Hole holes[] = {{"arguments", arguments_text(e)},
                    {"kernel", emit_close(e, 0)},
                    {"rows", arena_printf(&e->arena, "%llu", (unsigned long long)e->out->rows)},
                    {"row", row}};
    template_expand(&out, path, "function", holes, countof(holes));
    return out.s;
}

// ------------------------------------------------------------------------------------------------- elementwise
static void use_elements(Emitter *e)
{
    for (size_t i = 0; i < vec_len(e->group->nodes); i++) {
        Val v = e->group->nodes[i];
        if (is_output(e, v)) store_here(e, v, pull_here(e, v), 1);
    }
}

// The loops from `first` on make the nest inside of a row; chunk: the only one of them is cut in pieces.
static int choose_rows(const LoopPlan *plan, bool *chunk)
{
    int first = plan->nloops;
    int64_t inside = 1;
    while (first > 0 && inside * plan->extent[first - 1] <= ROW_ELEMENTS) inside *= plan->extent[--first];
    *chunk = first == plan->nloops && first > 0;
    return *chunk ? first - 1 : first;
}

static void place_element_loops(Emitter *e, const LoopPlan *plan, int first, bool chunk)
{
    uint32_t vars[2 * MAX_AXES], parts[2 * MAX_AXES];
    size_t nparts = 0;
    int64_t rows = 1;
    for (int i = 0; i < first; i++) rows *= plan->extent[i];
    int64_t chunks = chunk ? (plan->extent[first] + ROW_ELEMENTS - 1) / ROW_ELEMENTS : 1;
    uint32_t r = var_loop(e, "r", rows * chunks, 1, true);
    for (int i = 0; i < first; i++)
        parts[nparts++] = vars[i] = var_new(e, VAR_PART, emit_name(e, "row"), plan->extent[i], 1);
    if (chunk) parts[nparts++] = e->guard_var = var_new(e, VAR_PART, "chunk", chunks, 1);
    var_parts(e, r, nparts, parts);
    for (int i = first; i < plan->nloops; i++) {
        const char *name = i == plan->nloops - 1 ? "i" : emit_name(e, "j");
        vars[i] = var_loop(e, name, plan->extent[i], i - first + 2, plan->extent[i] > WIDE_EXTENT);
    }
    place_plan(e, plan, vars);
    e->top = 1 + plan->nloops - first;
    e->out->rows = (uint64_t)(rows * chunks);
}

static char *elements_cpu(Emitter *e, const LoopPlan *plan)
{
    bool chunk;
    int first = choose_rows(plan, &chunk);
    place_element_loops(e, plan, first, chunk);
    use_elements(e);
    for (int level = e->top; level >= 2; level--) {
        int loop = first + level - 2;
        const char *type = plan->extent[loop] > WIDE_EXTENT ? "int64_t" : "int", *body = emit_close(e, level);
        const char *from = "0", *to = arena_printf(&e->arena, "%lld", (long long)plan->extent[loop]);
        if (chunk) {
            const char *text = idx_text(e, idx_var(e, e->guard_var));
            emit_line(e, 1, "const %s i0 = (%s)%s * %d, i1 = i0 + %d < %s ? i0 + %d : %s;", type, type, text,
                      ROW_ELEMENTS, ROW_ELEMENTS, to, ROW_ELEMENTS, to);
            from = "i0", to = "i1";
        }
        uint32_t v = 1;
        while (e->vars[v].kind != VAR_LOOP || e->vars[v].level != level) v++;
        Hole holes[] = {{"type", type}, {"i", e->vars[v].name}, {"from", from}, {"to", to}, {"body", body}};
        append_section(e, level - 1, "row", level == e->top ? "elements" : "nest", holes, countof(holes));
    }
    int64_t total = 1;
    for (int i = 0; i < plan->nloops; i++) total *= plan->extent[i];
    uint64_t each = (uint64_t)total / e->out->rows;
    e->out->grain = max_of(1, GRAIN_ELEMENTS / max_of(each, 1));
    return finish_function(e, "row", emit_close(e, 1));
}

static char *elements_cuda(Emitter *e, const LoopPlan *plan)
{
    uint32_t vars[2 * MAX_AXES];
    int64_t total = 1;
    for (int i = 0; i < plan->nloops; i++) total *= plan->extent[i];
    bool wide = total > WIDE_EXTENT;
    uint32_t t = var_loop(e, "i", total, 1, wide);
    for (int i = 0; i < plan->nloops; i++) vars[i] = var_new(e, VAR_PART, emit_name(e, "row"), plan->extent[i], 1);
    if (plan->nloops == 1)
        vars[0] = t;
    else
        var_parts(e, t, (size_t)plan->nloops, vars);
    place_plan(e, plan, vars);
    e->top = 1;
    use_elements(e);
    Hole holes[] = {{"type", wide ? "int64_t" : "int"},
                    {"total", arena_printf(&e->arena, "%lld", (long long)total)},
                    {"body", emit_close(e, 1)}};
    append_section(e, 1, "row", "elements", holes, countof(holes));
    e->out->block[0] = BLOCK_THREADS;
    e->out->grid[0] = (uint32_t)min_of((total + BLOCK_THREADS - 1) / BLOCK_THREADS, MAX_BLOCKS);
    return finish_function(e, "row", emit_close(e, 1));
}

char *emit_elements(Emitter *e)
{
    LoopPlan plan;
    plan_loops(e, &plan, e->group->ndom, e->group->dom, 0, NULL, use_elements);
    return e->target == TARGET_CUDA ? elements_cuda(e, &plan) : elements_cpu(e, &plan);
}
