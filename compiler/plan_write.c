// plan_write.c: the graph's groups, buffers and kernels as a plan file (runtime/plan.h).
//
// Each section is a growing array of its records; strings are kept once, in order of first use. Records are zeroed
// before they are filled, so padding is zero and equal graphs give equal bytes. Nothing in the file depends on where it
// or the model lies. One group is one instruction, so the instruction index of group i is i.
#include "pico.h"
#include <xxhash.h>

enum { SOURCES = 4 };  // translation units: the compiler runs on them in parallel

typedef struct {
    const Graph *g;
    Buf data[PLAN_SECTIONS];
    uint64_t count[PLAN_SECTIONS];
    Str *table;            // open addressing over the strings section; 0: free
    size_t cap, used;
    uint32_t *source_of;   // kernel -> source
} Writer;

// ---------------------------------------------------------------------------------------------------------- strings
static Str *string_slot(const Writer *w, const char *s)
{
    for (size_t i = XXH3_64bits(s, strlen(s));; i++) {
        Str *slot = &w->table[i & (w->cap - 1)];
        if (!*slot || !strcmp(w->data[PLAN_STRINGS].s + *slot, s)) return slot;
    }
}

static void grow_strings(Writer *w)
{
    Str *old = w->table;
    size_t n = w->cap;
    w->cap = n ? 2 * n : 1024;
    w->table = xcalloc(w->cap, sizeof *w->table);
    for (size_t i = 0; i < n; i++)
        if (old[i]) *string_slot(w, w->data[PLAN_STRINGS].s + old[i]) = old[i];
    free(old);
}

static Str put_string(Writer *w, const char *s)
{
    Buf *pool = &w->data[PLAN_STRINGS];
    if (pool->n == 0) buf_write(pool, "", 1);
    if (!s || !*s) return 0;
    if (2 * w->used >= w->cap) grow_strings(w);
    Str *slot = string_slot(w, s);
    if (*slot) return *slot;
    if (pool->n + strlen(s) >= UINT32_MAX) fatal("the plan has more than 4 GB of text");
    *slot = (Str)pool->n;
    w->used++;
    buf_write(pool, s, strlen(s) + 1);
    return *slot;
}

static void put(Writer *w, enum PlanSectionId id, const void *record, size_t size)
{
    buf_write(&w->data[id], record, size);
    w->count[id]++;
}

static uint32_t buffer_index(const Writer *w, Val v)
{
    if (!w->g->buffer_of[v]) bug("plan: value %%%u has no buffer", v);
    return w->g->buffer_of[v] - 1;
}

// ------------------------------------------------------------------------------------------------------------- info
// What shapes the plan, in a fixed order.
static Str put_options(Writer *w)
{
    static const char *const recompute[] = { "none", "attention", "full" };
    const Graph *g = w->g;
    Buf b = { 0 };
    buf_printf(&b, "--seq %lld --micro-batch %lld --accum %lld --dtype %s --recompute %s --target %s%s", (long long)g->seq,
               (long long)g->micro_batch, (long long)g->accum, dtype_name(g->dtype), recompute[options.recompute],
               options.target == TARGET_CPU ? "cpu" : "cuda", options.no_fuse ? " --no-fuse" : "");
    Str s = put_string(w, b.s);
    buf_free(&b);
    return s;
}

static double step_flops(const Graph *g)
{
    double flops = 0;
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->group_of[v] && !g->nodes[v].again) flops += node_flops(g, v);
    return flops * (double)g->accum;
}

static void put_info(Writer *w)
{
    const Graph *g = w->g;
    PlanInfo info = { .target = options.target, .dtype = g->dtype, .seq = (uint32_t)g->seq,
                      .micro_batch = (uint32_t)g->micro_batch, .accum = (uint32_t)g->accum, .tp = 1, .pp = 1, .dp = 1, .cp = 1,
                      .scratch_bytes = g->scratch_bytes, .flops_per_step = step_flops(g) };
    info.model = put_string(w, g->model);
    info.config = put_string(w, g->config);
    info.options = put_options(w);
    info.source = put_string(w, g->source);
    for (int i = 0; i < ARENA_COUNT; i++) info.arena_bytes[i] = g->arena_bytes[i], info.arena_slots[i] = 1;
    for (size_t i = 0; i < vec_len(g->params); i++) info.parameters += (uint64_t)elements(g, g->params[i].val);
    put(w, PLAN_INFO, &info, sizeof info);
}

// ----------------------------------------------------------------------------------------------------------- tables
static void put_inputs_outputs(Writer *w)
{
    const Graph *g = w->g;
    for (size_t i = 0; i < vec_len(g->inputs); i++) {
        const Input *x = &g->inputs[i];
        PlanInput p = { .name = put_string(w, x->name), .buffer = buffer_index(w, x->val), .shift = x->shift,
                        .limit = (uint32_t)x->limit, .ignore = x->ignore };
        put(w, PLAN_INPUTS, &p, sizeof p);
    }
    for (size_t i = 0; i < vec_len(g->outputs); i++) {
        PlanOutput p = { .name = put_string(w, g->outputs[i].name), .buffer = buffer_index(w, g->outputs[i].val) };
        put(w, PLAN_OUTPUTS, &p, sizeof p);
    }
    for (size_t i = 0; i < vec_len(g->scalars); i++) {
        const Scalar *x = &g->scalars[i];
        PlanScalar p = { .name = put_string(w, x->name), .slot = x->slot, .standard = x->standard };
        put(w, PLAN_SCALARS, &p, sizeof p);
    }
}

static void put_params_states(Writer *w)
{
    const Graph *g = w->g;
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Param *x = &g->params[i];
        PlanParam p = { .name = put_string(w, x->name), .aliases = put_string(w, x->aliases),
                        .buffer = buffer_index(w, x->val), .grad = UINT32_MAX, .ndim = (uint32_t)x->ndim, .init = x->init,
                        .init_value = x->init_value, .decay = x->decay,
                        .key = x->acc >= 0 ? g->accs[x->acc].key : 0 };
        if (x->acc >= 0) p.grad = buffer_index(w, g->accs[x->acc].total);
        if (x->ndim > PLAN_MAX_DIMS) bug("plan: parameter '%s' has %d dimensions", x->name, x->ndim);
        for (int d = 0; d < x->ndim; d++) p.dims[d] = (uint64_t)x->dims[d];
        put(w, PLAN_PARAMS, &p, sizeof p);
    }
    for (size_t i = 0; i < vec_len(g->states); i++) {
        const State *x = &g->states[i];
        PlanState p = { .name = put_string(w, x->name), .param = (uint32_t)x->param, .buffer = buffer_index(w, x->val) };
        put(w, PLAN_STATES, &p, sizeof p);
    }
    for (size_t i = 0; i < vec_len(g->train); i++) {
        PlanTrain p = { .key = put_string(w, g->train[i].key), .value = put_string(w, g->train[i].value) };
        put(w, PLAN_TRAIN, &p, sizeof p);
    }
}

static void put_buffers(Writer *w)
{
    const Graph *g = w->g;
    for (size_t i = 0; i < vec_len(g->buffers); i++) {
        const Buffer *x = &g->buffers[i];
        const Node *n = &g->nodes[x->val];
        PlanBuffer p = { .name = put_string(w, x->name), .dtype = x->dtype, .arena = x->arena, .ndim = n->naxes,
                         .offset = x->offset, .bytes = x->bytes, .first = x->first, .last = x->last };
        for (int d = 0; d < n->naxes; d++) p.dims[d] = (uint64_t)extent_of(g, n->axes[d]);
        put(w, PLAN_BUFFERS, &p, sizeof p);
    }
}

// ---------------------------------------------------------------------------------------------------------- kernels
typedef struct { size_t length; uint32_t kernel; } Sized;
static int longest_first(const void *a, const void *b)
{
    const Sized *x = a, *y = b;
    if (x->length != y->length) return x->length > y->length ? -1 : 1;
    return x->kernel < y->kernel ? -1 : x->kernel > y->kernel;
}

// Shares the kernels out to translation units of about equal length: the longest first, each to the shortest unit.
static uint32_t share_kernels(Writer *w)
{
    const Graph *g = w->g;
    size_t n = vec_len(g->kernels), length[SOURCES] = { 0 };
    Sized *sized = xcalloc(n + 1, sizeof *sized);
    for (uint32_t i = 0; i < n; i++) sized[i] = (Sized){ strlen(g->kernels[i].text[options.target]), i };
    qsort(sized, n, sizeof *sized, longest_first);
    w->source_of = xcalloc(n + 1, sizeof *w->source_of);
    for (size_t i = 0; i < n; i++) {
        uint32_t shortest = 0;
        for (uint32_t s = 1; s < SOURCES; s++)
            if (length[s] < length[shortest]) shortest = s;
        w->source_of[sized[i].kernel] = shortest;
        length[shortest] += sized[i].length;
    }
    free(sized);
    return (uint32_t)min_of(n, SOURCES);  // none of the first so many is empty
}

static void put_sources(Writer *w)
{
    const Graph *g = w->g;
    uint32_t n = share_kernels(w), *kernels = NULL;
    for (uint32_t s = 0; s < n; s++) {
        vec_clear(kernels);
        for (uint32_t i = 0; i < vec_len(g->kernels); i++)
            if (w->source_of[i] == s) vec_push(kernels, i);
        char *text = emit_unit(g, options.target, kernels, vec_len(kernels));
        PlanSource p = { .text = put_string(w, text), .lang = options.target };
        put(w, PLAN_SOURCES, &p, sizeof p);
        free(text);
    }
    vec_free(kernels);
}

static void put_kernels(Writer *w)
{
    const Graph *g = w->g;
    for (size_t i = 0; i < vec_len(g->kernels); i++) {
        const KernelText *x = &g->kernels[i];
        PlanKernel p = { .name = put_string(w, x->name), .label = put_string(w, x->label), .source = w->source_of[i],
                         .nargs = x->nargs, .rows = x->rows, .grain = x->grain, .scratch = x->scratch, .bytes = x->bytes,
                         .flops = x->flops };
        memcpy(p.grid, x->grid, sizeof p.grid);
        memcpy(p.block, x->block, sizeof p.block);
        put(w, PLAN_KERNELS, &p, sizeof p);
    }
}

// ----------------------------------------------------------------------------------------------------- instructions
static void put_args(Writer *w, const Group *group)
{
    for (size_t k = 0; k < vec_len(group->args); k++) {
        Val v = group->args[k];
        PlanArg p = { .buffer = buffer_index(w, v), .written = group->arg_written[k] };
        int64_t offset = vec_len(group->arg_offsets) ? group->arg_offsets[k] : 0;
        if (offset < 0) bug("plan: argument before its buffer");
        p.offset = (uint64_t)offset * (uint64_t)dtype_bytes(w->g->buffers[p.buffer].dtype);
        put(w, PLAN_ARGS, &p, sizeof p);
    }
}

// The node that names a group: what it writes first.
static Val main_node(const Group *group)
{
    for (size_t k = 0; k < vec_len(group->nodes); k++)
        if (vec_len(group->writes) && group->nodes[k] == group->writes[0]) return group->nodes[k];
    return group->nodes[vec_len(group->nodes) - 1];
}

static void put_instructions(Writer *w)
{
    const Graph *g = w->g;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        Buf label = { 0 };
        PlanInstr p = { .kind = group->kind == G_GEMM ? INSTR_GEMM : INSTR_KERNEL, .index = group->kernel,
                        .first_arg = (uint32_t)w->count[PLAN_ARGS], .nargs = (uint32_t)vec_len(group->args) };
        p.label = put_string(w, node_place(g, main_node(group), &label));
        buf_free(&label);
        if (group->kind == G_GEMM) {
            p.index = (uint32_t)w->count[PLAN_GEMMS];
            put(w, PLAN_GEMMS, &group->gemm, sizeof group->gemm);
        }
        put_args(w, group);
        put(w, PLAN_INSTRS, &p, sizeof p);
    }
}

static void put_segments(Writer *w)
{
    const Graph *g = w->g;
    uint32_t at = 0, index[SEG_COUNT];
    for (uint32_t seg = 0; seg < SEG_COUNT; seg++) {
        index[seg] = UINT32_MAX;
        PlanSegment p = { .id = seg, .first_instr = at };
        while (at < vec_len(g->groups) && g->groups[at].seg == (SegmentId)seg) at++;
        p.count = at - p.first_instr;
        if (!p.count) continue;
        p.name = put_string(w, plan_segment_name((SegmentId)seg));
        index[seg] = (uint32_t)w->count[PLAN_SEGMENTS];
        put(w, PLAN_SEGMENTS, &p, sizeof p);
    }
    for (uint32_t j = 0; j < g->accum; j++)
        for (int seg = SEG_F; seg <= SEG_B; seg++) {
            PlanStep step = { .segment = index[seg], .micro_batch = j };
            if (index[seg] != UINT32_MAX) put(w, PLAN_SCHEDULE, &step, sizeof step);
        }
}

// ------------------------------------------------------------------------------------------------------------- file
static void pad(Buf *b, size_t to)
{
    static const char zeros[16];
    if (b->n % to) buf_write(b, zeros, to - b->n % to);
}

static void write_file(const Writer *w, const char *path)
{
    Buf file = { 0 };
    PlanHeader header = { .version = PLAN_VERSION, .nsections = PLAN_SECTIONS };
    PlanSection sections[PLAN_SECTIONS] = { 0 };
    memcpy(header.magic, PLAN_MAGIC, sizeof header.magic);
    uint64_t at = sizeof header + sizeof sections;
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        at = (at + 15) / 16 * 16;
        sections[i] = (PlanSection){ i, (uint32_t)plan_item_size((enum PlanSectionId)i), at, w->count[i] };
        at += w->data[i].n;
    }
    buf_write(&file, &header, sizeof header);
    buf_write(&file, sections, sizeof sections);
    for (int i = 0; i < PLAN_SECTIONS; i++) {
        pad(&file, 16);
        if (w->data[i].n) buf_write(&file, w->data[i].s, w->data[i].n);
    }
    header.size = file.n;
    header.checksum = XXH3_64bits(file.s + sizeof header, file.n - sizeof header);
    memcpy(file.s, &header, sizeof header);
    Plan plan;
    char why[512];
    if (!plan_check(&plan, file.s, file.n, why, sizeof why)) fatal("%s: picorun would refuse the plan: %s", path, why);
    if (!write_file_atomic(path, file.s, file.n)) fatal("%s: cannot write the plan:", path);
    buf_free(&file);
}

void plan_write(const Graph *g, const char *path)
{
    Writer w = { .g = g };
    put_string(&w, "");
    put_info(&w);
    put_inputs_outputs(&w);
    put_params_states(&w);
    put_buffers(&w);
    put_sources(&w);
    put_kernels(&w);
    put_instructions(&w);
    put_segments(&w);
    w.count[PLAN_STRINGS] = w.data[PLAN_STRINGS].n;
    for (int i = 0; i < PLAN_SECTIONS; i++)
        if (w.data[i].n != w.count[i] * plan_item_size((enum PlanSectionId)i)) bug("plan: a record of section %d has the wrong size", i);
    write_file(&w, path);
    for (int i = 0; i < PLAN_SECTIONS; i++) buf_free(&w.data[i]);
    free(w.table), free(w.source_of);
}
