// plan_write.c: the graphs of all stages as a plan file (runtime/plan.h): text, tables, the file. plan_write_code.c has what
// is run.
//
// Each section is a growing array of its records; strings are kept once, in order of first use. Records are zeroed
// before they are filled, so padding is zero and equal graphs give equal bytes. Nothing in the file depends on where it
// or the model lies. Sections of stages are filled stage by stage; indices into them count from the stage's beginning.
#include "plan_write.h"
#include <xxhash.h>

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

Str put_string(Writer *w, const char *s)
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

void put(Writer *w, enum PlanSectionId id, const void *record, size_t size)
{
    buf_write(&w->data[id], record, size);
    w->count[id]++;
}

uint32_t put_group(Writer *w, CommKey key)
{
    PlanGroup g = { .mesh = key.mesh, .stages = key.stages, .size = (uint32_t)key_ranks(w->g, key) };
    for (uint32_t i = 0; i < w->count[PLAN_GROUPS]; i++) {
        PlanGroup x;
        memcpy(&x, w->data[PLAN_GROUPS].s + i * sizeof x, sizeof x);
        if (x.mesh == g.mesh && x.stages == g.stages) return i;
    }
    put(w, PLAN_GROUPS, &g, sizeof g);
    return (uint32_t)w->count[PLAN_GROUPS] - 1;
}

uint32_t staged_count(const Writer *w, enum PlanSectionId id) { return (uint32_t)(w->count[id] - w->first[id]); }

uint32_t buffer_index(const Writer *w, Val v)
{
    if (!w->g->buffer_of[v]) bug("plan: value %%%u has no buffer", v);
    return w->g->buffer_of[v] - 1;
}

// ------------------------------------------------------------------------------------------------------------- info
// What shapes the plan, in a fixed order.
static Str put_options(Writer *w)
{
    static const char *const recompute[] = { "none", "attention", "full" };
    static const char *const schedules[] = { "afab", "1f1b", "interleaved", "zb" };
    const Graph *g = w->prog->stages[0];
    Buf b = { 0 };
    buf_printf(&b, "--seq %lld --micro-batch %lld --accum %lld --dtype %s --recompute %s --target %s%s", (long long)g->seq,
               (long long)g->micro_batch, (long long)g->accum, dtype_name(g->dtype), recompute[options.recompute],
               options.target == TARGET_CPU ? "cpu" : "cuda", options.no_fuse ? " --no-fuse" : "");
    if (options.tp * options.pp * options.dp > 1)
        buf_printf(&b, " --tp %lld --pp %lld --dp %lld%s --schedule %s --bucket-mb %g --zero %lld", (long long)options.tp,
                   (long long)options.pp, (long long)options.dp, g->mesh.sp ? " --sp" : "", schedules[options.schedule],
                   options.bucket_mb, (long long)options.zero);
    if (g->nchunks > 1) buf_printf(&b, " --virtual %d", g->nchunks);
    if (options.stages) buf_printf(&b, " --stages %s", options.stages);
    if (options.drop > 0) buf_printf(&b, " --drop %lld", (long long)options.drop);
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

static uint64_t file_elements(const Param *x)
{
    uint64_t n = 1;
    for (int d = 0; d < x->ndim; d++) n *= (uint64_t)x->dims[d];
    return n;
}

// The stages are written by now: their sums are known.
static void put_info(Writer *w)
{
    const Graph *g = w->prog->stages[0];
    PlanInfo info = { .target = options.target, .dtype = g->dtype, .seq = (uint32_t)g->seq,
                      .micro_batch = (uint32_t)g->micro_batch, .accum = (uint32_t)g->accum, .chunks = w->chunks,
                      .schedule = w->prog->shape.kind, .zero = (uint32_t)options.zero,
                      .parameters = w->parameters };
    memcpy(info.mesh, w->mesh, sizeof info.mesh);
    info.flops_per_step = w->flops * mesh_size(w->mesh, MESH_ALL & ~MESH_PP);
    info.model = put_string(w, g->model);
    info.config = put_string(w, g->config);
    info.options = put_options(w);
    info.source = put_string(w, g->source);
    put(w, PLAN_INFO, &info, sizeof info);
}

// ----------------------------------------------------------------------------------------------------------- tables
// Scalars have one slot in all stages; a stage has those that it reads.
static void put_scalars_train(Writer *w)
{
    const Program *prog = w->prog;
    uint32_t *seen = NULL;
    for (int s = 0; s < prog->nstages; s++)
        for (size_t i = 0; i < vec_len(prog->stages[s]->scalars); i++) {
            const Scalar *x = &prog->stages[s]->scalars[i];
            PlanScalar p = { .name = put_string(w, x->name), .slot = x->slot, .standard = x->standard };
            bool known = false;
            for (size_t k = 0; k < vec_len(seen); k++) known |= seen[k] == x->slot;
            if (known) continue;
            vec_push(seen, x->slot);
            put(w, PLAN_SCALARS, &p, sizeof p);
        }
    vec_free(seen);
    const Graph *g = prog->stages[0];
    for (size_t i = 0; i < vec_len(g->train); i++) {
        PlanTrain p = { .key = put_string(w, g->train[i].key), .value = put_string(w, g->train[i].value) };
        put(w, PLAN_TRAIN, &p, sizeof p);
    }
}

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
}

// How a parameter's buffer lies in the file's tensor.
static void put_axes(Writer *w, size_t param, PlanParam *p)
{
    const Graph *g = w->g;
    p->first_axis = staged_count(w, PLAN_PARAM_AXES);
    p->naxes = g->nodes[g->params[param].val].naxes;
    for (uint32_t i = 0; i < p->naxes; i++)
        put(w, PLAN_PARAM_AXES, &g->param_axes[param].axis[i], sizeof g->param_axes[param].axis[i]);
}

static void put_params_states(Writer *w)
{
    const Graph *g = w->g;
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Param *x = &g->params[i];
        CommKey key = x->acc >= 0 ? g->accs[x->acc].key : comm_key(0);
        PlanParam p = { .name = put_string(w, x->name), .aliases = put_string(w, x->aliases),
                        .buffer = buffer_index(w, x->val), .grad = UINT32_MAX, .ndim = (uint32_t)x->ndim, .init = x->init,
                        .init_value = x->init_value, .decay = x->decay, .owner = x->owner,
                        .key = key.mesh ? put_group(w, key) + 1 : 0 };
        if (x->acc >= 0) p.grad = buffer_index(w, g->accs[x->acc].total);
        if (x->ndim > PLAN_MAX_DIMS) bug("plan: parameter '%s' has %d dimensions", x->name, x->ndim);
        for (int d = 0; d < x->ndim; d++) p.dims[d] = (uint64_t)x->dims[d];
        put_axes(w, i, &p);
        put(w, PLAN_PARAMS, &p, sizeof p);
        if (p.owner) w->parameters += file_elements(x);
    }
    for (size_t i = 0; i < vec_len(g->states); i++) {
        const State *x = &g->states[i];
        PlanState p = { .name = put_string(w, x->name), .param = (uint32_t)x->param, .buffer = buffer_index(w, x->val) };
        put(w, PLAN_STATES, &p, sizeof p);
    }
}

static void put_arenas(Writer *w)
{
    for (size_t i = 0; i < vec_len(w->g->arenas); i++) {
        PlanArena a = w->g->arenas[i];
        a.slots = 1;
        if (a.class_ >= CLASS_FB) a.slots = w->schedule->slots[a.chunk][a.class_ - CLASS_FB];
        put(w, PLAN_ARENAS, &a, sizeof a);
    }
}

// A group is an instruction, so lifetimes in groups are lifetimes in instructions.
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

static void put_transfers(Writer *w)
{
    for (size_t i = 0; i < vec_len(w->g->transfers); i++) {
        const Transfer *x = &w->g->transfers[i];
        PlanTransfer p = { .tag = x->tag, .peer = x->peer, .send = x->send, .buffer = buffer_index(w, x->val),
                           .chunk = x->chunk };
        p.bytes = w->g->buffers[p.buffer].bytes;
        put(w, PLAN_TRANSFERS, &p, sizeof p);
    }
}

static uint64_t local_parameters(const Graph *g)
{
    uint64_t n = 0;
    for (size_t i = 0; i < vec_len(g->params); i++) n += (uint64_t)elements(g, g->params[i].val);
    return n;
}

static void put_stage(Writer *w, int s)
{
    w->g = w->prog->stages[s];
    w->schedule = &w->prog->schedules[s];
    for (int i = PLAN_FIRST_STAGED; i < PLAN_SECTIONS; i++) w->first[i] = w->count[i];
    put_inputs_outputs(w);
    put_params_states(w);
    put_arenas(w);
    put_buffers(w);
    put_transfers(w);
    put_instructions(w, s);
    put_segments(w);
    put_schedule(w);
    PlanStage p = { .scratch_bytes = w->g->scratch_bytes, .parameters = local_parameters(w->g), .flops = step_flops(w->g) };
    for (int i = PLAN_FIRST_STAGED; i < PLAN_SECTIONS; i++)
        p.range[i - PLAN_FIRST_STAGED] = (PlanRange){ (uint32_t)w->first[i], staged_count(w, (enum PlanSectionId)i) };
    w->flops += p.flops;
    put(w, PLAN_STAGES, &p, sizeof p);
}

// ------------------------------------------------------------------------------------------------------------- file
static void pad_to(Buf *b, size_t to)
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
        pad_to(&file, 16);
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

void plan_write(const Program *prog, const char *path)
{
    Writer w = { .prog = prog, .g = prog->stages[0], .chunks = (uint32_t)prog->stages[0]->nchunks };
    memcpy(w.mesh, w.g->mesh.size, sizeof w.mesh);
    put_string(&w, "");
    put_scalars_train(&w);
    put_kernels(&w);
    for (int s = 0; s < prog->nstages; s++) put_stage(&w, s);
    put_info(&w);
    w.count[PLAN_STRINGS] = w.data[PLAN_STRINGS].n;
    for (int i = 0; i < PLAN_SECTIONS; i++)
        if (w.data[i].n != w.count[i] * plan_item_size((enum PlanSectionId)i)) bug("plan: a record of section %d has the wrong size", i);
    write_file(&w, path);
    for (int i = 0; i < PLAN_SECTIONS; i++) buf_free(&w.data[i]);
    free_code(&w);
    free(w.table);
}
