// plan_flight.c: collectives under way: each ends, once, and until then nothing touches what belongs to it.
//
// Between START and WAIT nobody writes what is read, nor reads or writes what is written. Most pairs lie in one
// segment. A START of the last micro-batch (B, W) may be awaited in UPDATE: then it is under way in all that the
// schedule runs behind it, and its arguments are persistent, for no slot is held so long. All instructions of a segment
// are looked at as in the last micro-batch: what runs in the others is part of that.
//
// Traps: bytes are compared, not buffers: persistent buffers may be windows of each other. A kernel is taken to touch
// its buffer from the argument's offset to the end; an address that depends on the rank is taken on all ranks at once.
#include "plan_check.h"

enum { MAX_FLIGHT = 1 << 13 }; // extents under way at once: each argument is compared with all of them

typedef struct {
    Check *c;
    const Plan *p;
    Extent *busy;      // vec
    uint32_t *open;    // by collective: instruction + 1 that started it
    uint32_t *carried; // vec of STARTs that UPDATE awaits
} Flight;

Extent plan_extent(const Plan *p, uint32_t instr, uint32_t which)
{
    const PlanInstr *in = &p->instrs[instr];
    const PlanArg *a = &p->args[in->first_arg + which];
    const PlanBuffer *b = &p->buffers[a->buffer];
    uint64_t item = (uint64_t)dtype_bytes((DType)b->dtype), elements = UINT64_MAX, start = b->offset + a->offset;
    if (in->kind == INSTR_GEMM) plan_operand_extent(&p->gemms[in->index], (int)which, &elements);
    if (in->kind == INSTR_START) {
        const PlanColl *coll = &p->colls[in->index];
        const PlanPart *part = &p->parts[coll->first_part + which / 2];
        bool all = which % 2 ? coll->kind == COLL_ALL_GATHER : coll->kind == COLL_REDUCE_SCATTER;
        elements = part->outer * part->inner * (all ? p->groups[coll->group].size : 1);
    }
    uint64_t end = b->offset + b->bytes;
    if (elements != UINT64_MAX) end = b->offset + arg_last_offset(p, a) + elements * item; // it lies in the buffer
    return (Extent){b->arena, instr, start, end, a->written != 0};
}

// Addresses are compared, not buffers: an op in place may have two of them at one place.
static bool same_begin(const Plan *p, const PlanArg *a, const PlanArg *b)
{
    const PlanBuffer *x = &p->buffers[a->buffer], *y = &p->buffers[b->buffer];
    return x->arena == y->arena && x->offset + a->offset == y->offset + b->offset;
}

static bool same_address(const Plan *p, const PlanArg *a, const PlanArg *b)
{
    return same_begin(p, a, b) && a->stride == b->stride && a->group == b->group;
}

// Is `share` the member's own share of `whole`?
static bool own_share(const Plan *p, const PlanColl *coll, const PlanPart *part, const PlanArg *whole,
                      const PlanArg *share)
{
    uint64_t item = (uint64_t)dtype_bytes((DType)coll->dtype);
    if (p->groups[coll->group].size == 1) return same_address(p, whole, share);
    return part->outer == 1 && same_begin(p, whole, share) && !whole->group && share->group == coll->group + 1 &&
           share->stride == part->inner * item;
}

bool plan_in_place(const Plan *p, const PlanInstr *start, uint32_t i)
{
    const PlanColl *coll = &p->colls[start->index];
    const PlanPart *part = &p->parts[coll->first_part + i];
    const PlanArg *in = &p->args[start->first_arg + 2 * i], *out = in + 1;
    if (coll->kind == COLL_ALL_REDUCE) return same_address(p, in, out);
    return coll->kind == COLL_REDUCE_SCATTER ? own_share(p, coll, part, in, out) : own_share(p, coll, part, out, in);
}

// ---- one instruction

static bool refuse(Flight *f, const Extent *e, const Extent *busy)
{
    const Plan *p = f->p;
    f->c->section = "instrs", f->c->item = e->instr;
    return fail_item(f->c,
                     "%s bytes %llu to %llu of arena %s, which belong to the collective of instrs[%u] until its end",
                     e->out ? "writes" : "reads", (unsigned long long)e->start, (unsigned long long)e->end,
                     plan_class_name(p->arenas[e->arena].class_), busy->instr);
}

static bool check_free(Flight *f, const Extent *e)
{
    for (size_t i = 0; i < vec_len(f->busy); i++) {
        const Extent *b = &f->busy[i];
        if ((e->out || b->out) && e->arena == b->arena && e->start < b->end && b->start < e->end)
            return refuse(f, e, b);
    }
    return true;
}

static bool own(Flight *f, Extent e)
{
    if (!check_free(f, &e)) return false;
    vec_push(f->busy, e);
    return vec_len(f->busy) <= MAX_FLIGHT ||
           fail(f->c, "more than %d arguments of collectives are under way", MAX_FLIGHT);
}

// What a collective in place owns is one extent: the larger one, written.
static bool own_all(Flight *f, uint32_t instr)
{
    const PlanInstr *in = &f->p->instrs[instr];
    for (uint32_t i = 0; i < in->nargs / 2; i++) {
        Extent from = plan_extent(f->p, instr, 2 * i), to = plan_extent(f->p, instr, 2 * i + 1);
        if (plan_in_place(f->p, in, i)) {
            to.start = min_of(to.start, from.start);
            to.end = max_of(to.end, from.end);
        } else if (!own(f, from)) {
            return false;
        }
        if (!own(f, to)) return false;
    }
    return true;
}

static void disown(Flight *f, uint32_t instr)
{
    size_t kept = 0;
    for (size_t i = 0; i < vec_len(f->busy); i++)
        if (f->busy[i].instr != instr) f->busy[kept++] = f->busy[i];
    if (f->busy) vec_header(f->busy)->len = kept;
}

static bool check_wait(Flight *f, const PlanSegment *s, uint32_t instr)
{
    const Plan *p = f->p;
    const PlanInstr *in = &p->instrs[instr];
    uint32_t start = f->open[in->index] - 1;
    if (!f->open[in->index]) return fail_item(f->c, "awaits collective %u, which is not under way", in->index);
    if (start < s->first_instr && s->id != SEG_UPDATE)
        return fail_item(f->c, "awaits instrs[%u] of another segment", start);
    if (in->when != (start < s->first_instr ? WHEN_ALWAYS : p->instrs[start].when))
        return fail_item(f->c, "awaits instrs[%u] in other micro-batches than it runs in", start);
    for (uint32_t i = 0; i < p->instrs[start].nargs; i++) {
        const PlanBuffer *b = &p->buffers[p->args[p->instrs[start].first_arg + i].buffer];
        bool covered = i % 2 == 0 && plan_in_place(p, &p->instrs[start], i / 2); // by the result's bytes
        if (b->last < instr && !covered)
            return fail_item(f->c, "ends the collective of instrs[%u] after the life of its '%s'", start,
                             plan_str(p, b->name));
    }
    f->open[in->index] = 0;
    disown(f, start);
    return true;
}

static bool check_flight_instr(Flight *f, const PlanSegment *s, uint32_t instr)
{
    const PlanInstr *in = &f->p->instrs[instr];
    f->c->section = "instrs", f->c->item = instr;
    if (in->kind == INSTR_WAIT) return check_wait(f, s, instr);
    if (in->kind == INSTR_START) {
        if (f->open[in->index])
            return fail_item(f->c, "starts collective %u, which instrs[%u] has begun", in->index,
                             f->open[in->index] - 1);
        f->open[in->index] = instr + 1;
        return own_all(f, instr);
    }
    for (uint32_t i = 0; i < in->nargs && vec_len(f->busy); i++) {
        Extent e = plan_extent(f->p, instr, i);
        if (!check_free(f, &e)) return false;
    }
    return true;
}

// ---- segments and the schedule

// What a segment leaves under way: for UPDATE to await.
static bool carry(Flight *f)
{
    const Plan *p = f->p;
    for (size_t i = 0; i < vec_len(f->busy); i++) {
        uint32_t start = f->busy[i].instr;
        f->c->section = "instrs", f->c->item = start;
        if (p->instrs[start].when != WHEN_LAST)
            return fail_item(f->c, "starts a collective that its segment does not await");
        if (p->arenas[f->busy[i].arena].class_ != CLASS_PERSIST)
            return fail_item(f->c, "leaves a collective under way in arena %s",
                             plan_class_name(p->arenas[f->busy[i].arena].class_));
        if (!i || f->busy[i - 1].instr != start) vec_push(f->carried, start);
    }
    vec_clear(f->busy);
    return true;
}

static bool check_segments(Flight *f)
{
    const Plan *p = f->p;
    for (uint64_t i = 0; i < p->count[PLAN_SEGMENTS]; i++) {
        const PlanSegment *s = &p->segments[i];
        if (s->id == SEG_UPDATE) continue;
        for (uint32_t k = 0; k < s->count; k++)
            if (!check_flight_instr(f, s, s->first_instr + k)) return false;
        if (!carry(f)) return false;
    }
    return true;
}

// Does a segment touch what those before it have left under way?
static bool check_run(Flight *f, const PlanSegment *s)
{
    for (uint32_t i = s->first_instr; i < s->first_instr + s->count; i++)
        for (uint32_t k = 0; k < f->p->instrs[i].nargs; k++) {
            Extent e = plan_extent(f->p, i, k);
            if (!check_free(f, &e)) return false;
        }
    return true;
}

// Behind the last run of a segment, what it has started is under way. A run is looked at once for each such set.
static bool check_steps(Flight *f)
{
    const Plan *p = f->p;
    uint8_t *seen = xcalloc(p->count[PLAN_SEGMENTS], 1);
    bool ok = true;
    for (uint64_t i = 0; ok && vec_len(f->carried) && i < p->count[PLAN_SCHEDULE]; i++) {
        const PlanStep *step = &p->schedule[i];
        if (step->kind != STEP_RUN) continue;
        const PlanSegment *s = &p->segments[step->index];
        if (vec_len(f->busy) && !seen[step->index]) ok = check_run(f, s);
        seen[step->index] = 1;
        size_t before = vec_len(f->busy);
        for (size_t k = 0; ok && step->micro_batch + 1 == p->info->accum && k < vec_len(f->carried); k++)
            if (f->carried[k] - s->first_instr < s->count) ok = own_all(f, f->carried[k]);
        if (vec_len(f->busy) > before) memset(seen, 0, p->count[PLAN_SEGMENTS]);
    }
    free(seen);
    return ok;
}

static bool check_update(Flight *f)
{
    const Plan *p = f->p;
    for (uint64_t i = 0; i < p->count[PLAN_SEGMENTS]; i++) {
        const PlanSegment *s = &p->segments[i];
        for (uint32_t k = 0; s->id == SEG_UPDATE && k < s->count; k++)
            if (!check_flight_instr(f, s, s->first_instr + k)) return false;
    }
    if (vec_len(f->busy) == 0) return true;
    f->c->section = "instrs", f->c->item = f->busy[0].instr;
    return fail_item(f->c, "starts a collective that nothing awaits");
}

bool plan_check_flight(Check *c)
{
    Flight f = {.c = c, .p = c->p};
    f.open = xcalloc(c->p->count[PLAN_COLLS], sizeof *f.open);
    bool ok = check_segments(&f) && check_steps(&f) && check_update(&f);
    vec_free(f.busy), vec_free(f.carried);
    free(f.open);
    return ok;
}
