// exec.c: allocates a plan's arenas, resolves its arguments, and runs its segments in schedule order.
//
// The pointers of all arguments are made at load, one table for each slot of the saved arena: a schedule
// entry chooses its table by its slot, everything else is the same in all entries. A step runs PREP, then
// the schedule (loading each entry's micro-batch first), then UPDATE. Beta "first" becomes overwrite in
// micro-batch 0 and add in the others. Scalars are one table of doubles, by slot.
//
// Traps: memory_frozen makes any allocation of ours inside a step a bug; fatal() still works, it allocates
// nothing of ours. Inputs are loaded once for runs of entries with the same micro-batch.
#include "exec.h"
#include <time.h>

struct Exec {
    const Plan *plan;
    Dev *dev;
    char *arena[ARENA_COUNT];
    uint64_t slot_stride; // bytes from one slot of the saved arena to the next
    char **args;          // [slot][arg]
    double *scalars;
    Poison *poison;
    Trace *trace;
    bool check_nan, poison_all;
    int64_t step;
};

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- opening

static char *buffer_in_slot(const Exec *e, uint32_t id, uint32_t slot)
{
    const PlanBuffer *b = &e->plan->buffers[id];
    return e->arena[b->arena] + (b->arena == ARENA_SAVED ? slot * e->slot_stride : 0) + b->offset;
}

static void allocate(Exec *e)
{
    const PlanInfo *o = e->plan->info;
    e->slot_stride = (o->arena_bytes[ARENA_SAVED] + 63) & ~(uint64_t)63;
    for (int a = 0; a < ARENA_COUNT; a++) {
        uint64_t bytes = o->arena_bytes[a];
        if (a == ARENA_SAVED) bytes = e->slot_stride * o->arena_slots[a];
        e->arena[a] = e->dev->alloc(e->dev, bytes);
    }
    e->dev->prepare(e->dev);
}

static void resolve_args(Exec *e)
{
    const Plan *p = e->plan;
    uint64_t nargs = p->count[PLAN_ARGS], slots = max_of(p->info->arena_slots[ARENA_SAVED], 1u);
    e->args = xcalloc(nargs * slots, sizeof *e->args);
    for (uint32_t slot = 0; slot < slots; slot++)
        for (uint64_t i = 0; i < nargs; i++)
            e->args[slot * nargs + i] = buffer_in_slot(e, p->args[i].buffer, slot) + p->args[i].offset;
}

static void set_scalars(Exec *e)
{
    const Plan *p = e->plan;
    uint32_t n = SLOT_NAMED;
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++) n = max_of(n, p->scalars[i].slot + 1);
    e->scalars = xcalloc(n, sizeof *e->scalars);
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++) e->scalars[p->scalars[i].slot] = p->scalars[i].standard;
}

Exec *exec_open(const Plan *p, Dev *d, const ExecOptions *o)
{
    Exec *e = xcalloc(1, sizeof *e);
    e->plan = p;
    e->dev = d;
    allocate(e);
    resolve_args(e);
    set_scalars(e);
    if (d->computes && (o->poison || o->check_nan)) e->poison = poison_new(p, o->poison ? 0xff : 0);
    e->check_nan = d->computes && o->check_nan;
    e->poison_all = d->computes && o->poison;
    if (o->trace) e->trace = trace_open(p, o->trace);
    return e;
}

void exec_close(Exec *e)
{
    if (!e) return;
    poison_free(e->poison);
    trace_close(e->trace);
    free(e->args);
    free(e->scalars);
    free(e);
}

// ---- values

void *exec_buffer(void *exec, uint32_t id)
{
    return buffer_in_slot(exec, id, 0);
}

bool exec_set(Exec *e, const char *scalar, double value)
{
    for (uint64_t i = 0; i < e->plan->count[PLAN_SCALARS]; i++)
        if (strcmp(plan_str(e->plan, e->plan->scalars[i].name), scalar) == 0) {
            e->scalars[e->plan->scalars[i].slot] = value;
            return true;
        }
    return false;
}

void exec_set_seed(Exec *e, uint64_t seed)
{
    e->scalars[SLOT_SEED] = (double)seed;
}

bool exec_output(const Exec *e, const char *name, double *value)
{
    const Plan *p = e->plan;
    for (uint64_t i = 0; i < p->count[PLAN_OUTPUTS]; i++) {
        if (strcmp(plan_str(p, p->outputs[i].name), name) != 0) continue;
        const char *at = buffer_in_slot(e, p->outputs[i].buffer, 0);
        float f;
        if (p->buffers[p->outputs[i].buffer].dtype == F64) {
            memcpy(value, at, sizeof *value);
        } else {
            memcpy(&f, at, sizeof f);
            *value = (double)f;
        }
        return true;
    }
    return false;
}

// ---- running

static void refuse_nan(const Exec *e, const PlanInstr *in, char *const *args, const PlanSegment *s,
                       uint32_t micro_batch)
{
    const Plan *p = e->plan;
    for (uint32_t i = 0; i < in->nargs; i++) {
        int64_t at = find_nan(p, in, i, args[i]);
        if (at < 0) continue;
        const char *buffer = plan_str(p, p->buffers[p->args[in->first_arg + i].buffer].name);
        fatal("step %lld, micro-batch %u, segment %s: the first NaN is element %lld of '%s', written by '%s'",
              (long long)e->step, micro_batch, plan_segment_name((SegmentId)s->id), (long long)at, buffer,
              plan_str(p, in->label));
    }
}

static void run_instr(Exec *e, const PlanInstr *in, char *const *args, uint32_t micro_batch)
{
    if (in->kind == INSTR_KERNEL) {
        e->dev->launch(e->dev, in, args, e->scalars);
    } else {
        uint32_t beta = e->plan->gemms[in->index].beta;
        e->dev->gemm(e->dev, in, args, beta == BETA_ONE || (beta == BETA_FIRST && micro_batch > 0));
    }
}

static void run_segment(Exec *e, const PlanSegment *s, uint32_t micro_batch, uint32_t slot)
{
    const Plan *p = e->plan;
    char *const *args = e->args + slot * p->count[PLAN_ARGS];
    char *arena[ARENA_COUNT] = {e->arena[ARENA_PERSIST], e->arena[ARENA_SAVED] + slot * e->slot_stride,
                                e->arena[ARENA_WORK]};
    e->scalars[SLOT_FIRST] = micro_batch == 0;
    e->scalars[SLOT_BATCH_START] = (double)((uint64_t)micro_batch * p->info->micro_batch);
    for (uint32_t i = s->first_instr; i < s->first_instr + s->count; i++) {
        const PlanInstr *in = &p->instrs[i];
        if (e->poison) poison_before(e->poison, i, arena);
        double start = e->trace ? seconds_now() : 0;
        run_instr(e, in, args + in->first_arg, micro_batch);
        if (e->trace) trace_instr(e->trace, in, (SegmentId)s->id, e->step, micro_batch, start, seconds_now());
        if (e->check_nan) refuse_nan(e, in, args + in->first_arg, s, micro_batch);
        if (e->poison) poison_after(e->poison, i, arena);
    }
}

static void run_once(Exec *e, SegmentId id)
{
    for (uint64_t i = 0; i < e->plan->count[PLAN_SEGMENTS]; i++)
        if (e->plan->segments[i].id == id) run_segment(e, &e->plan->segments[i], 0, 0);
}

// The whole of both arenas, also what no buffer ever covers.
static void poison_all(Exec *e)
{
    memset(e->arena[ARENA_SAVED], 0xff, e->slot_stride * e->plan->info->arena_slots[ARENA_SAVED]);
    memset(e->arena[ARENA_WORK], 0xff, e->plan->info->arena_bytes[ARENA_WORK]);
}

void exec_init(Exec *e)
{
    if (e->poison_all) poison_all(e);
    run_once(e, SEG_INIT);
}

void exec_step(Exec *e, int64_t step, ExecLoad *load, void *ctx)
{
    const Plan *p = e->plan;
    int64_t loaded = -1;
    e->step = step;
    e->scalars[SLOT_STEP] = (double)step;
    memory_frozen = true;
    if (e->poison_all) poison_all(e);
    run_once(e, SEG_PREP);
    for (uint64_t i = 0; i < p->count[PLAN_SCHEDULE]; i++) {
        const PlanStep *s = &p->schedule[i];
        if (e->dev->computes && loaded != s->micro_batch) load(ctx, step, s->micro_batch);
        loaded = s->micro_batch;
        run_segment(e, &p->segments[s->segment], s->micro_batch, s->slot);
    }
    run_once(e, SEG_UPDATE);
    memory_frozen = false;
}
