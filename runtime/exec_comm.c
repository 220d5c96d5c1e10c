// exec_comm.c: what a rank says to others: collectives of instructions, transfers of schedule entries.
//
// A collective is under way once at a time; a transfer once for each micro-batch, since several landing buffers
// may be open. Its other end is the rank of the peer stage with the same coordinates otherwise. A wait that comes
// back false means that another rank has failed and says so: this one ends without a word.
#include "exec_parts.h"

void comm_open(Exec *e)
{
    const Plan *p = e->plan;
    e->collectives = xcalloc(p->count[PLAN_COLLS], sizeof *e->collectives);
    e->transfers = xcalloc(p->count[PLAN_TRANSFERS] * p->info->accum, sizeof *e->transfers);
    e->moved = xcalloc(p->count[PLAN_TRANSFERS], sizeof *e->moved);
}

void comm_close(Exec *e)
{
    free(e->collectives);
    free(e->transfers);
    free(e->moved);
}

uint64_t exec_moved(const Exec *e, uint32_t transfer)
{
    return e->moved[transfer];
}

static void await(Exec *e, const Operation *o, const char *name, TraceWhere w)
{
    double start = e->trace ? seconds_now() : 0;
    if (!e->coll->wait(e->coll, o->handle)) end_quietly();
    if (e->trace) trace_host(e->trace, "wait", name, w, start, seconds_now());
}

// ---- collectives

void comm_start(Exec *e, const PlanInstr *in, char *const *args, const CollPart *parts)
{
    Operation *o = &e->collectives[in->index];
    if (e->trace) {
        o->lane = trace_begin(e->trace);
        o->start = seconds_now();
    }
    o->instr = in;
    o->args = args;
    o->handle = e->coll->start(e->coll, &e->plan->colls[in->index], parts);
}

static uint64_t coll_bytes(const Plan *p, const PlanColl *c)
{
    uint64_t n = 0, k = c->kind == COLL_ALL_REDUCE ? 1 : p->groups[c->group].size;
    for (uint32_t i = 0; i < c->nparts; i++) n += p->parts[c->first_part + i].outer * p->parts[c->first_part + i].inner;
    return n * k * (uint64_t)dtype_bytes((DType)c->dtype);
}

void comm_wait(Exec *e, const PlanInstr *in, TraceWhere w)
{
    static const char *const kinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
    const Plan *p = e->plan;
    const PlanColl *c = &p->colls[in->index];
    Operation *o = &e->collectives[in->index];
    await(e, o, plan_str(p, c->why), w);
    if (e->trace)
        trace_end(e->trace, o->lane, kinds[c->kind], plan_str(p, c->why), coll_bytes(p, c), w, o->start, seconds_now());
    if (e->check_nan) exec_refuse_nan(e, o->instr, o->args, w);
}

// ---- transfers

// The rank of another stage that differs from this one in the pp coordinate only.
static uint32_t rank_in_stage(const Exec *e, uint32_t stage)
{
    const uint32_t *mesh = e->plan->info->mesh;
    uint32_t below = mesh_size(mesh, MESH_TP | MESH_CP), rank = e->coll->rank;
    return rank + stage * below - mesh_coord(mesh, rank, MESH_AT_PP) * below;
}

static char *buffer_at(const Exec *e, uint32_t buffer, const PlanStep *s)
{
    const PlanBuffer *b = &e->plan->buffers[buffer];
    return view_arena(e->plan, e->memory, b->arena, s->slots) + b->offset;
}

static void end_transfer(Exec *e, const PlanTransfer *t, Operation *o, TraceWhere w)
{
    const char *name = plan_str(e->plan, e->plan->buffers[t->buffer].name);
    await(e, o, name, w);
    e->moved[t - e->plan->transfers]++;
    if (e->trace)
        trace_end(e->trace, o->lane, t->send ? "send" : "receive", name, t->bytes, w, o->start, seconds_now());
}

void comm_step(Exec *e, const PlanStep *s)
{
    const PlanTransfer *t = &e->plan->transfers[s->index];
    Operation *o = &e->transfers[(uint64_t)s->index * e->plan->info->accum + s->micro_batch];
    TraceWhere w = {SEG_COUNT, e->step, s->micro_batch};
    char *at = buffer_at(e, t->buffer, s);
    if (s->kind == STEP_ARRIVE || s->kind == STEP_SENT) {
        end_transfer(e, t, o, w);
        return;
    }
    if (e->trace) {
        o->lane = trace_begin(e->trace);
        o->start = seconds_now();
    }
    if (s->kind == STEP_POST) {
        if (e->poison_all) memset(at, 0xff, t->bytes);
        o->handle = e->coll->post(e->coll, rank_in_stage(e, t->peer), t->tag, at, t->bytes);
        return;
    }
    o->handle = e->coll->send(e->coll, rank_in_stage(e, t->peer), t->tag, at, t->bytes);
    if (e->trace)
        trace_host(e->trace, "send", plan_str(e->plan, e->plan->buffers[t->buffer].name), w, o->start, seconds_now());
}

void comm_poison(Exec *e, uint64_t entry)
{
    const uint32_t *dead = poison_landed(e->poison, entry);
    for (size_t i = 0; i < vec_len(dead); i++)
        memset(buffer_at(e, dead[i], &e->plan->schedule[entry]), 0xff, e->plan->buffers[dead[i]].bytes);
}
