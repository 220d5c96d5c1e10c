// plan_relations.c: what holds between the records of a plan.
//
// No two outputs, scalars, parameters or training defaults have one name; the schedule runs every micro-batch once, in
// order, and finds its saved values in the slot it names; a value does not outlive what its arena allows; no two
// buffers share bytes while both are alive, and parameters, gradients and states never do.
//
// Traps: the records are good by themselves here (plan_check.c), so that indices need no other look. An op in place
// takes over the bytes of its operand in the operand's last instruction.
#include "plan_check.h"

// Micro-batches ascend in every segment, and all run; B finds in its slot what F of the same micro-batch left.
static bool check_schedule(Check *c)
{
    const Plan *p = c->p;
    uint64_t n = p->count[PLAN_SCHEDULE], nsegments = p->count[PLAN_SEGMENTS];
    uint32_t *next = xcalloc(nsegments, sizeof *next);
    uint32_t *occupant = xcalloc(max_of(p->info->arena_slots[ARENA_SAVED], 1u), sizeof *occupant); // micro-batch + 1
    bool ok = true;
    c->section = "schedule";
    for (c->item = 0; ok && c->item < n; c->item++) {
        const PlanStep *s = &p->schedule[c->item];
        if (s->micro_batch != next[s->segment])
            ok = fail_item(c, "runs micro-batch %u where %u is due", s->micro_batch, next[s->segment]);
        else if (p->segments[s->segment].id == SEG_F)
            occupant[s->slot] = s->micro_batch + 1;
        else if (p->info->arena_bytes[ARENA_SAVED] && occupant[s->slot] != s->micro_batch + 1)
            ok = fail_item(c, "runs micro-batch %u, whose values are not in slot %u", s->micro_batch, s->slot);
        next[s->segment]++;
    }
    for (uint64_t i = 0; ok && i < nsegments; i++)
        if ((p->segments[i].id == SEG_F || p->segments[i].id == SEG_B) && next[i] != p->info->accum)
            ok = fail(c, "the schedule runs segment %llu for %u of %u micro-batches", (unsigned long long)i, next[i],
                      p->info->accum);
    free(next);
    free(occupant);
    return ok;
}

// Values of the work arena do not outlive their segment, saved values live in F and B only.
static bool check_lifetimes(Check *c)
{
    const Plan *p = c->p;
    uint32_t *segment = xcalloc(p->count[PLAN_INSTRS], sizeof *segment);
    bool ok = true;
    for (uint32_t i = 0; i < p->count[PLAN_SEGMENTS]; i++)
        for (uint32_t j = 0; j < p->segments[i].count; j++) segment[p->segments[i].first_instr + j] = i;
    c->section = "buffers";
    for (c->item = 0; ok && c->item < p->count[PLAN_BUFFERS]; c->item++) {
        const PlanBuffer *b = &p->buffers[c->item];
        if (b->arena == ARENA_PERSIST) continue;
        uint32_t from = segment[b->first], to = segment[b->last];
        uint32_t id_from = p->segments[from].id, id_to = p->segments[to].id;
        if (b->arena == ARENA_WORK ? from != to
                                   : (id_from != SEG_F && id_from != SEG_B) || (id_to != SEG_F && id_to != SEG_B))
            ok = fail_item(c, "'%s' lives from segment %s to %s, which its arena does not", plan_str(p, b->name),
                           plan_segment_name((SegmentId)id_from), plan_segment_name((SegmentId)id_to));
    }
    free(segment);
    return ok;
}

typedef struct {
    uint32_t arena, id;
    uint64_t start, end;
} Range;

static int by_place(const void *x, const void *y)
{
    const Range *a = x, *b = y;
    if (a->arena != b->arena) return a->arena < b->arena ? -1 : 1;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static Range range_of(const Plan *p, uint32_t id)
{
    const PlanBuffer *b = &p->buffers[id];
    return (Range){b->arena, id, b->offset, b->offset + b->bytes};
}

// b may take over the bytes of a in a's last instruction (an op in place), if a was there before.
static bool takes_over(const PlanBuffer *a, const PlanBuffer *b)
{
    return a->last == b->first && a->first < b->first;
}

static bool alive_together(const PlanBuffer *a, const PlanBuffer *b)
{
    return a->first <= b->last && b->first <= a->last && !takes_over(a, b) && !takes_over(b, a);
}

static bool check_overlap(Check *c, Range *r, size_t n, bool always)
{
    const Plan *p = c->p;
    qsort(r, n, sizeof *r, by_place);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n && r[j].arena == r[i].arena && r[j].start < r[i].end; j++) {
            const PlanBuffer *a = &p->buffers[r[i].id], *b = &p->buffers[r[j].id];
            if (always || alive_together(a, b))
                return fail(c, "buffers[%u] '%s' and buffers[%u] '%s' overlap at offset %llu while both are in use",
                            r[i].id, plan_str(p, a->name), r[j].id, plan_str(p, b->name),
                            (unsigned long long)r[j].start);
        }
    return true;
}

static bool check_places(Check *c)
{
    const Plan *p = c->p;
    uint64_t nparams = p->count[PLAN_PARAMS], nstates = p->count[PLAN_STATES], n = 0;
    Range *r = xcalloc(p->count[PLAN_BUFFERS] + 2 * nparams + nstates, sizeof *r);
    for (uint32_t i = 0; i < p->count[PLAN_BUFFERS]; i++)
        if (p->buffers[i].arena != ARENA_PERSIST) r[n++] = range_of(p, i);
    bool ok = check_overlap(c, r, n, false);
    n = 0;
    for (uint64_t i = 0; i < nparams; i++) {
        r[n++] = range_of(p, p->params[i].buffer);
        if (p->params[i].grad != UINT32_MAX) r[n++] = range_of(p, p->params[i].grad);
    }
    for (uint64_t i = 0; i < nstates; i++) r[n++] = range_of(p, p->states[i].buffer);
    ok = ok && check_overlap(c, r, n, true);
    free(r);
    return ok;
}

typedef struct {
    const char *name;
    uint64_t item;
} Named;

static int by_name(const void *x, const void *y)
{
    return strcmp(((const Named *)x)->name, ((const Named *)y)->name);
}

// No two records of a section, whose first field is the name, have the same one.
static bool check_unique(Check *c, enum PlanSectionId id, const void *records)
{
    uint64_t n = c->p->count[id];
    Named *names = xcalloc(n, sizeof *names);
    bool ok = true;
    for (uint64_t i = 0; i < n; i++) {
        Str s;
        memcpy(&s, (const char *)records + i * plan_item_size(id), sizeof s);
        names[i] = (Named){plan_str(c->p, s), i};
    }
    qsort(names, n, sizeof *names, by_name);
    for (uint64_t i = 1; ok && i < n; i++)
        if (strcmp(names[i - 1].name, names[i].name) == 0)
            ok = fail(c, "%s[%llu] and %s[%llu] are both named '%s'", plan_section_name(id),
                      (unsigned long long)names[i - 1].item, plan_section_name(id), (unsigned long long)names[i].item,
                      names[i].name);
    free(names);
    return ok;
}

bool plan_check_relations(Check *c)
{
    const Plan *p = c->p;
    if (p->count[PLAN_SEGMENTS] == 0 && p->count[PLAN_INSTRS] > 0)
        return fail(c, "the instructions belong to no segment");
    return check_unique(c, PLAN_OUTPUTS, p->outputs) && check_unique(c, PLAN_SCALARS, p->scalars) &&
           check_unique(c, PLAN_PARAMS, p->params) && check_unique(c, PLAN_TRAIN, p->train) && check_schedule(c) &&
           check_lifetimes(c) && check_places(c);
}
