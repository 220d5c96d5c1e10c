// plan_write_code.c: what a plan runs: kernels, collectives, and each stage's instructions, segments and schedule.
//
// A kernel that several stages have is written once. A group is one instruction: instruction i of a stage is its group i.
#include "plan_write.h"

enum { SOURCES = 4 };  // translation units: the compiler runs on them in parallel

// ---------------------------------------------------------------------------------------------------------- kernels
// Equal kernels of several stages have one key, and one name.
static void merge_kernels(Writer *w)
{
    const Program *prog = w->prog;
    uint32_t number = 0;
    size_t total = 0;
    for (int s = 0; s < prog->nstages; s++) total += vec_len(prog->stages[s]->kernels);
    w->kernel_of = xcalloc(total + 1, sizeof *w->kernel_of);
    for (int s = 0; s < prog->nstages; s++)
        for (size_t i = 0; i < vec_len(prog->stages[s]->kernels); i++, number++) {
            const KernelText *k = &prog->stages[s]->kernels[i];
            uint32_t at = 0;
            while (at < vec_len(w->kernels) && w->kernels[at].key != k->key) at++;
            if (at == vec_len(w->kernels)) vec_push(w->kernels, *k);
            w->kernel_of[number] = at;
        }
}

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
    size_t n = vec_len(w->kernels), length[SOURCES] = { 0 };
    Sized *sized = xcalloc(n + 1, sizeof *sized);
    for (uint32_t i = 0; i < n; i++) sized[i] = (Sized){ strlen(w->kernels[i].text[options.target]), i };
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
    Graph all = *w->prog->stages[0];
    all.kernels = w->kernels;
    uint32_t n = share_kernels(w), *kernels = NULL;
    for (uint32_t s = 0; s < n; s++) {
        vec_clear(kernels);
        for (uint32_t i = 0; i < vec_len(w->kernels); i++)
            if (w->source_of[i] == s) vec_push(kernels, i);
        char *text = emit_unit(&all, options.target, kernels, vec_len(kernels));
        PlanSource p = { .text = put_string(w, text), .lang = options.target };
        put(w, PLAN_SOURCES, &p, sizeof p);
        free(text);
    }
    vec_free(kernels);
}

void put_kernels(Writer *w)
{
    merge_kernels(w);
    put_sources(w);
    for (size_t i = 0; i < vec_len(w->kernels); i++) {
        const KernelText *x = &w->kernels[i];
        PlanKernel p = { .name = put_string(w, x->name), .label = put_string(w, x->label), .source = w->source_of[i],
                         .nargs = x->nargs, .rows = x->rows, .grain = x->grain, .scratch = x->scratch, .bytes = x->bytes,
                         .flops = x->flops };
        memcpy(p.grid, x->grid, sizeof p.grid);
        memcpy(p.block, x->block, sizeof p.block);
        put(w, PLAN_KERNELS, &p, sizeof p);
    }
}

// ----------------------------------------------------------------------------------------------------- instructions
static uint32_t put_coll(Writer *w, const struct Coll *x)
{
    PlanColl p = { .kind = x->how, .reduce = x->reduce, .dtype = x->dtype, .group = put_group(w, x->key),
                   .first_part = (uint32_t)w->count[PLAN_PARTS], .nparts = (uint32_t)vec_len(x->parts),
                   .why = put_string(w, x->why) };
    for (uint32_t k = 0; k < p.nparts; k++) {
        PlanPart part = { x->parts[k].outer, x->parts[k].inner };
        put(w, PLAN_PARTS, &part, sizeof part);
    }
    put(w, PLAN_COLLS, &p, sizeof p);
    return (uint32_t)w->count[PLAN_COLLS] - 1;
}

// The n-th collective of a stage over some stages is the n-th of the others: one record, by which they find each other.
static uint32_t shared_coll(Writer *w, const struct Coll *x)
{
    uint32_t n = 0;
    for (size_t i = 0; i < vec_len(w->shared); i++) {
        SharedColl *s = &w->shared[i];
        if (s->key.mesh != x->key.mesh || s->key.stages != x->key.stages) continue;
        if (s->seen_by > w->g->stage) {
            n++;
            continue;
        }
        if (s->nparts != vec_len(x->parts)) bug("plan: stages disagree about collective %u over %x", n, x->key.mesh);
        s->seen_by = w->g->stage + 1;
        return s->coll;
    }
    SharedColl s = { .key = x->key, .nparts = vec_len(x->parts), .seen_by = w->g->stage + 1 };
    s.coll = put_coll(w, x);
    vec_push(w->shared, s);
    return s.coll;
}

static void put_colls(Writer *w)
{
    const Graph *g = w->g;
    free(w->coll_at);
    w->coll_at = xcalloc(vec_len(g->colls) + 1, sizeof *w->coll_at);
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        if (g->groups[i].kind != G_START) continue;
        const struct Coll *x = &g->colls[g->groups[i].coll];
        w->coll_at[g->groups[i].coll] = x->key.mesh & MESH_PP ? shared_coll(w, x) : put_coll(w, x);
    }
}

static void put_args(Writer *w, const Group *group)
{
    for (size_t k = 0; k < vec_len(group->args); k++) {
        Place at = value_place(w->g, group->args[k]);
        int64_t offset = vec_len(group->arg_offsets) ? group->arg_offsets[k] : 0;
        if (offset < 0) bug("plan: argument before its buffer");
        PlanArg p = { .buffer = at.buffer, .written = group->arg_written[k], .stride = at.stride,
                      .group = at.stride ? put_group(w, at.key) + 1 : 0 };
        p.offset = at.offset + (uint64_t)offset * (uint64_t)dtype_bytes(w->g->buffers[at.buffer].dtype);
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

void put_instructions(Writer *w, int stage)
{
    const Graph *g = w->g;
    uint32_t first_kernel = 0;
    for (int s = 0; s < stage; s++) first_kernel += (uint32_t)vec_len(w->prog->stages[s]->kernels);
    put_colls(w);
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        Buf text = { 0 };
        PlanInstr p = { .first_arg = staged_count(w, PLAN_ARGS), .nargs = (uint32_t)vec_len(group->args),
                        .when = group->last ? WHEN_LAST : WHEN_ALWAYS };
        p.label = put_string(w, node_place(g, main_node(group), &text));
        buf_free(&text);
        switch (group->kind) {
        case G_GEMM:
            p.kind = INSTR_GEMM, p.index = (uint32_t)w->count[PLAN_GEMMS];
            put(w, PLAN_GEMMS, &group->gemm, sizeof group->gemm);
            break;
        case G_START: p.kind = INSTR_START, p.index = w->coll_at[group->coll]; break;
        case G_WAIT: p.kind = INSTR_WAIT, p.index = w->coll_at[group->coll]; break;
        default: p.kind = INSTR_KERNEL, p.index = w->kernel_of[first_kernel + group->kernel];
        }
        put_args(w, group);
        put(w, PLAN_INSTRS, &p, sizeof p);
    }
}

// ------------------------------------------------------------------------------------------------ segments, schedule
void put_segments(Writer *w)
{
    const Graph *g = w->g;
    size_t n = vec_len(g->groups);
    for (uint32_t code = 0; code < 256; code++) w->segment_at[code] = UINT32_MAX;
    for (size_t at = 0, end; at < n; at = end) {
        uint32_t code = g->groups[at].seg;
        for (end = at; end < n && g->groups[end].seg == code; end++) ;
        PlanSegment p = { .id = seg_id((uint8_t)code), .chunk = (uint32_t)seg_chunk((uint8_t)code) };
        Buf name = { 0 };
        buf_puts(&name, plan_segment_name((SegmentId)p.id));
        if (w->chunks > 1 && code >= 2 && code != AT_UPDATE) buf_printf(&name, "%u", p.chunk);
        p.name = put_string(w, name.s);
        p.first_instr = (uint32_t)at;
        p.count = (uint32_t)(end - at);
        buf_free(&name);
        w->segment_at[code] = staged_count(w, PLAN_SEGMENTS);
        put(w, PLAN_SEGMENTS, &p, sizeof p);
    }
}

static void put_run(Writer *w, Task task, const uint16_t *slots)
{
    PlanStep p = { .kind = STEP_RUN, .index = w->segment_at[seg_code((SegmentId)(SEG_F + (int)task.work), task.chunk)],
                   .micro_batch = task.micro_batch };
    memcpy(p.slots, slots, sizeof p.slots);
    if (p.index != UINT32_MAX) put(w, PLAN_SCHEDULE, &p, sizeof p);
}

void put_schedule(Writer *w)
{
    for (size_t i = 0; i < vec_len(w->schedule->steps); i++) {
        const Step *s = &w->schedule->steps[i];
        uint16_t slots[SLOT_CLASSES] = { 0 };  // of the classes that the chunk has
        for (size_t k = 0; k < vec_len(w->g->arenas); k++) {
            const PlanArena *a = &w->g->arenas[k];
            if (a->class_ >= CLASS_FB && a->chunk == s->chunk) slots[a->class_ - CLASS_FB] = s->slots[a->class_ - CLASS_FB];
        }
        if (s->kind == STEP_RUN) {
            put_run(w, s->task, slots);
            continue;
        }
        PlanStep p = { .kind = s->kind, .index = s->crossing, .micro_batch = s->micro_batch };
        memcpy(p.slots, slots, sizeof p.slots);
        put(w, PLAN_SCHEDULE, &p, sizeof p);
    }
}

void free_code(Writer *w)
{
    vec_free(w->kernels), vec_free(w->shared);
    free(w->kernel_of), free(w->source_of), free(w->coll_at);
}
