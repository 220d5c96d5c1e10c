// plan_relations.c: what holds between the records of a plan.
//
// No two outputs, scalars, parameters or training defaults have one name; a value does not outlive what its arena
// allows; no two buffers share bytes while both are alive, and parameters, gradients and states never do; a parameter
// that several stages have is one and the same, and one of them saves it.
//
// Traps: buffers of the persistent arena may be windows of each other, parameters, gradients and states apart. The
// records are good by themselves here (plan_check.c), so that indices need no other look. An op in place takes over the
// bytes of its operand in the operand's last instruction.
#include "plan_check.h"

// Where values of a class live: F, B and W as bits 0 to 2.
static uint32_t class_segments(uint32_t class_)
{
    if (class_ == CLASS_FB) return 3;
    return class_ == CLASS_BW ? 6 : 7;
}

// May a value of this arena be touched in segment s?
static bool arena_reaches(const PlanArena *a, const PlanSegment *s)
{
    if (a->class_ < CLASS_FB) return true;
    return is_scheduled(s->id) && s->chunk == a->chunk && class_segments(a->class_) >> (s->id - SEG_F) & 1;
}

// Values of the work arena do not outlive their segment; those of the others are used in segments of their chunk only.
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
        const PlanArena *a = &p->arenas[b->arena];
        if (always_alive(a->class_)) continue;
        const PlanSegment *from = &p->segments[segment[b->first]], *to = &p->segments[segment[b->last]];
        if (a->class_ == CLASS_WORK ? from != to : !arena_reaches(a, from) || !arena_reaches(a, to))
            ok = fail_item(c, "'%s' lives from segment %s to %s, which its arena does not", plan_str(p, b->name),
                           plan_str(p, from->name), plan_str(p, to->name));
    }
    c->section = "instrs";
    for (c->item = 0; ok && c->item < p->count[PLAN_INSTRS]; c->item++)
        for (uint32_t i = 0; ok && i < p->instrs[c->item].nargs; i++) {
            const PlanBuffer *b = &p->buffers[p->args[p->instrs[c->item].first_arg + i].buffer];
            const PlanSegment *s = &p->segments[segment[c->item]];
            if (!arena_reaches(&p->arenas[b->arena], s))
                ok = fail_item(c, "of segment %s uses '%s' of class %s, chunk %u", plan_str(p, s->name),
                               plan_str(p, b->name), plan_class_name(class_of(p, b)), p->arenas[b->arena].chunk);
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

// b may take over the bytes of a in a's last instruction (an op in place), if a was there before. For a collective in
// place that is its WAIT: both are in its hands from START to WAIT (plan_flight.c).
static bool takes_over(const Plan *p, const PlanBuffer *a, const PlanBuffer *b)
{
    if (a->first >= b->first || b->first >= p->count[PLAN_INSTRS]) return false;
    if (a->last == b->first) return true;
    if (a->last >= p->count[PLAN_INSTRS] || a->last < b->first) return false;
    const PlanInstr *start = &p->instrs[b->first], *end = &p->instrs[a->last];
    return start->kind == INSTR_START && end->kind == INSTR_WAIT && start->index == end->index;
}

static bool alive_together(const Plan *p, const PlanBuffer *a, const PlanBuffer *b)
{
    return a->first <= b->last && b->first <= a->last && !takes_over(p, a, b) && !takes_over(p, b, a);
}

static bool check_overlap(Check *c, Range *r, size_t n, bool always)
{
    const Plan *p = c->p;
    qsort(r, n, sizeof *r, by_place);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n && r[j].arena == r[i].arena && r[j].start < r[i].end; j++) {
            const PlanBuffer *a = &p->buffers[r[i].id], *b = &p->buffers[r[j].id];
            if (always || alive_together(p, a, b))
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
        if (class_of(p, &p->buffers[i]) != CLASS_PERSIST) r[n++] = range_of(p, i);
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

bool plan_check_names(Check *c)
{
    return check_unique(c, PLAN_SCALARS, c->p->scalars) && check_unique(c, PLAN_TRAIN, c->p->train);
}

bool plan_check_relations(Check *c)
{
    const Plan *p = c->p;
    return check_unique(c, PLAN_OUTPUTS, p->outputs) && check_unique(c, PLAN_PARAMS, p->params) && check_lifetimes(c) &&
           check_places(c);
}

// ---- parameters of several stages

typedef struct {
    const char *name;
    uint32_t stage, index;
} Holder;

static int by_holder(const void *x, const void *y)
{
    const Holder *a = x, *b = y;
    int order = strcmp(a->name, b->name);
    return order ? order : a->stage < b->stage ? -1 : a->stage > b->stage;
}

static bool same_axes(const Plan *a, const PlanParam *x, const Plan *b, const PlanParam *y)
{
    return x->naxes == y->naxes &&
           !memcmp(a->param_axes + x->first_axis, b->param_axes + y->first_axis, x->naxes * sizeof *a->param_axes);
}

static bool same_param(const Plan *p, const Holder *x, const Holder *y)
{
    Plan s = plan_stage(p, x->stage), t = plan_stage(p, y->stage);
    const PlanParam *a = &s.params[x->index], *b = &t.params[y->index];
    return a->ndim == b->ndim && !memcmp(a->dims, b->dims, sizeof a->dims) && a->init == b->init &&
           !memcmp(&a->init_value, &b->init_value, sizeof a->init_value) && a->decay == b->decay && a->key == b->key &&
           (a->grad == UINT32_MAX) == (b->grad == UINT32_MAX) && same_axes(&s, a, &t, b);
}

bool plan_check_owners(Check *c)
{
    const Plan *p = c->p;
    uint64_t n = p->count[PLAN_PARAMS], at = 0;
    Holder *h = xcalloc(n, sizeof *h);
    bool ok = true;
    for (uint32_t s = 0; s < p->count[PLAN_STAGES]; s++) {
        const PlanRange *r = &p->stages[s].range[PLAN_PARAMS - PLAN_FIRST_STAGED];
        for (uint32_t i = 0; i < r->count; i++) h[at++] = (Holder){plan_str(p, p->params[r->first + i].name), s, i};
    }
    qsort(h, n, sizeof *h, by_holder);
    for (uint64_t i = 0, end; ok && i < n; i = end) {
        uint32_t owners = 0;
        for (end = i; ok && end < n && !strcmp(h[i].name, h[end].name); end++) {
            const PlanRange *r = &p->stages[h[end].stage].range[PLAN_PARAMS - PLAN_FIRST_STAGED];
            owners += p->params[r->first + h[end].index].owner;
            if (!same_param(p, &h[i], &h[end]))
                ok = fail(c, "parameter '%s' of stage %u is not that of stage %u", h[i].name, h[end].stage, h[i].stage);
        }
        if (ok && owners != 1) ok = fail(c, "parameter '%s' has %u owners, not 1", h[i].name, owners);
    }
    free(h);
    return ok;
}
