// exec.c: allocates a rank's arenas, resolves its arguments, and runs its segments in schedule order.
//
// A step runs PREP, then the schedule (loading a micro-batch before a segment that reads it), then UPDATE. Every
// schedule entry that runs a segment has its view (exec_view.c), made at load and shared by entries with equal
// slots. Beta "first" becomes overwrite in micro-batch 0 and add in the others. Scalars are one table of
// doubles, by slot. Collectives and transfers are started and awaited where the plan says; exec_comm.c does both.
//
// Traps: memory_frozen makes any allocation of ours inside a step a bug; fatal() still works, it allocates
// nothing of ours. Between a START and its WAIT, and between SEND and SENT, memory belongs to the transport.
#include "exec_parts.h"
#include <time.h>

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- opening

static void allocate(Exec *e)
{
    uint64_t n = e->plan->count[PLAN_ARENAS];
    e->memory = xcalloc(n, sizeof *e->memory);
    for (uint64_t i = 0; i < n; i++) {
        const PlanArena *a = &e->plan->arenas[i];
        e->memory[i] = e->dev->alloc(e->dev, arena_stride(a) * a->slots);
    }
    e->dev->prepare(e->dev);
}

static View *find_view(Exec *e, const PlanSegment *s, const uint16_t slots[SLOT_CLASSES])
{
    for (size_t i = 0; i < vec_len(e->views); i++)
        if (e->views[i]->segment == s && memcmp(e->views[i]->slots, slots, sizeof e->views[i]->slots) == 0)
            return e->views[i];
    View *v = xmalloc(sizeof *v);
    *v = view_open(e->plan, e->memory, e->coll->rank, s, slots);
    vec_push(e->views, v);
    return v;
}

static void make_views(Exec *e)
{
    static const uint16_t no_slots[SLOT_CLASSES];
    const Plan *p = e->plan;
    for (uint64_t i = 0; i < p->count[PLAN_SEGMENTS]; i++) {
        const PlanSegment *s = &p->segments[i];
        if (s->id == SEG_INIT || s->id == SEG_PREP || s->id == SEG_UPDATE) e->once[s->id] = find_view(e, s, no_slots);
    }
    e->view_of = xcalloc(p->count[PLAN_SCHEDULE], sizeof *e->view_of);
    for (uint64_t i = 0; i < p->count[PLAN_SCHEDULE]; i++) {
        const PlanStep *s = &p->schedule[i];
        if (s->kind == STEP_RUN) e->view_of[i] = find_view(e, &p->segments[s->index], s->slots);
    }
}

static void set_scalars(Exec *e)
{
    const Plan *p = e->plan;
    uint32_t n = SLOT_NAMED;
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++) n = max_of(n, p->scalars[i].slot + 1);
    e->scalars = xcalloc(n, sizeof *e->scalars);
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++) e->scalars[p->scalars[i].slot] = p->scalars[i].standard;
    for (int f = 0; f < MESH_FACTORS; f++)
        e->scalars[SLOT_COORD + f] = mesh_coord(p->info->mesh, e->coll->rank, (MeshFactor)f);
}

Exec *exec_open(const Plan *stage, Dev *d, Coll *c, const ExecOptions *o)
{
    Exec *e = xcalloc(1, sizeof *e);
    e->plan = stage;
    e->dev = d;
    e->coll = c;
    e->dp = mesh_coord(stage->info->mesh, c->rank, MESH_AT_DP);
    allocate(e);
    make_views(e);
    set_scalars(e);
    comm_open(e);
    if (d->computes && (o->poison || o->check_nan)) e->poison = poison_new(stage, o->poison ? 0xff : 0);
    e->check_nan = d->computes && o->check_nan;
    e->poison_all = d->computes && o->poison;
    if (o->trace) e->trace = trace_open(stage, c, o->trace);
    return e;
}

void exec_close(Exec *e)
{
    if (!e) return;
    poison_free(e->poison);
    trace_close(e->trace);
    for (size_t i = 0; i < vec_len(e->views); i++) {
        view_close(e->views[i]);
        free(e->views[i]);
    }
    vec_free(e->views);
    comm_close(e);
    free(e->view_of);
    free(e->memory);
    free(e->scalars);
    free(e);
}

// ---- values

void *exec_buffer(void *exec, uint32_t id)
{
    const Exec *e = exec;
    const PlanBuffer *b = &e->plan->buffers[id];
    return e->memory[b->arena] + b->offset;
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
        const PlanBuffer *b = &p->buffers[p->outputs[i].buffer];
        const char *at = e->memory[b->arena] + b->offset;
        float f;
        if (b->dtype == F64) {
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

void exec_refuse_nan(const Exec *e, const PlanInstr *in, char *const *args, TraceWhere w)
{
    const Plan *p = e->plan;
    char rank[24] = "";
    if (e->coll->ranks > 1) snprintf(rank, sizeof rank, "rank %u, ", e->coll->rank);
    for (uint32_t i = 0; i < in->nargs; i++) {
        int64_t at = find_nan(p, in, i, args[i]);
        if (at < 0) continue;
        const char *buffer = plan_str(p, p->buffers[p->args[in->first_arg + i].buffer].name);
        fatal("%sstep %lld, micro-batch %u, segment %s: the first NaN is element %lld of '%s', written by '%s'", rank,
              (long long)e->step, w.micro_batch, plan_segment_name(w.segment), (long long)at, buffer,
              plan_str(p, in->label));
    }
}

static void compute(Exec *e, const PlanInstr *in, char *const *args, TraceWhere w)
{
    double start = e->trace ? seconds_now() : 0;
    if (in->kind == INSTR_KERNEL) {
        e->dev->launch(e->dev, in, args, e->scalars);
    } else {
        uint32_t beta = e->plan->gemms[in->index].beta;
        e->dev->gemm(e->dev, in, args, beta == BETA_ONE || (beta == BETA_FIRST && w.micro_batch > 0));
    }
    if (e->trace) trace_instr(e->trace, in, w, start, seconds_now());
    if (e->check_nan) exec_refuse_nan(e, in, args, w);
}

static void run_instr(Exec *e, const View *v, uint32_t i, TraceWhere w)
{
    const PlanInstr *in = &e->plan->instrs[i];
    char *const *args = v->args + (in->nargs ? in->first_arg - v->first_arg : 0);
    if (in->kind == INSTR_START)
        comm_start(e, in, args, v->parts[i - v->segment->first_instr]);
    else if (in->kind == INSTR_WAIT)
        comm_wait(e, in, w);
    else
        compute(e, in, args, w);
}

// last: the last micro-batch of the step, or a segment that is no part of one.
static void run_segment(Exec *e, const View *v, uint32_t micro_batch, bool last)
{
    const PlanInfo *o = e->plan->info;
    const PlanSegment *s = v->segment;
    TraceWhere w = {(SegmentId)s->id, e->step, micro_batch};
    bool several = e->coll->ranks > 1;
    e->scalars[SLOT_FIRST] = micro_batch == 0;
    e->scalars[SLOT_BATCH_START] = (double)(((uint64_t)e->dp * o->accum + micro_batch) * o->micro_batch);
    for (uint32_t i = s->first_instr; i < s->first_instr + s->count; i++) {
        if (e->poison) poison_before(e->poison, i, v->arena);
        if (last || e->plan->instrs[i].when != WHEN_LAST) run_instr(e, v, i, w);
        if (e->poison) poison_after(e->poison, i, v->arena);
        if (several) e->coll->progress(e->coll);
    }
}

static void run_once(Exec *e, SegmentId id)
{
    if (e->once[id]) run_segment(e, e->once[id], 0, true);
}

// All of it, also what no buffer ever covers.
static void poison_all(Exec *e)
{
    for (uint64_t i = 0; i < e->plan->count[PLAN_ARENAS]; i++) {
        const PlanArena *a = &e->plan->arenas[i];
        if (a->class_ != CLASS_PERSIST) memset(e->memory[i], 0xff, arena_stride(a) * a->slots);
    }
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
        const View *v = e->view_of[i];
        if (v && v->reads_input && loaded != s->micro_batch && e->dev->computes) {
            load(ctx, step, s->micro_batch);
            loaded = s->micro_batch;
        }
        if (v)
            run_segment(e, v, s->micro_batch, s->micro_batch + 1 == p->info->accum);
        else
            comm_step(e, s);
        if (e->poison_all) comm_poison(e, i);
    }
    run_once(e, SEG_UPDATE);
    memory_frozen = false;
}
