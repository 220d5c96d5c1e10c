// exec_view.c: a segment with the slots of one schedule entry, resolved to pointers (see exec.h).
//
// A schedule entry chooses a slot of every class of its chunk; entries with the same segment and slots share a
// view. An argument is its buffer, in the slot in use, plus an offset, plus the rank's place in a group times a
// stride: so all ranks of a stage run one program on slices of their own.
#include "exec.h"

uint64_t arena_stride(const PlanArena *a)
{
    return (a->bytes + 63) & ~(uint64_t)63;
}

uint64_t exec_arena_bytes(const Plan *stage)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < stage->count[PLAN_ARENAS]; i++)
        bytes += arena_stride(&stage->arenas[i]) * stage->arenas[i].slots;
    return bytes;
}

char *view_arena(const Plan *stage, char *const *memory, uint32_t arena, const uint16_t slots[SLOT_CLASSES])
{
    const PlanArena *a = &stage->arenas[arena];
    uint64_t slot = a->class_ < CLASS_FB ? 0 : slots[a->class_ - CLASS_FB];
    return memory[arena] + slot * arena_stride(a);
}

static char *resolve(const View *v, const Plan *p, uint32_t rank, const PlanArg *a)
{
    const PlanBuffer *b = &p->buffers[a->buffer];
    uint32_t index = 0;
    if (!v->arena[b->arena]) return NULL; // between the segment's arguments, but of another chunk
    if (a->group) plan_group(p, a->group - 1, rank, NULL, &index);
    return v->arena[b->arena] + b->offset + a->offset + index * a->stride;
}

static bool is_input(const Plan *p, uint32_t buffer)
{
    for (uint64_t i = 0; i < p->count[PLAN_INPUTS]; i++)
        if (p->inputs[i].buffer == buffer) return true;
    return false;
}

static void resolve_args(View *v, const Plan *p, uint32_t rank)
{
    uint32_t end = 0;
    const PlanSegment *s = v->segment;
    v->first_arg = UINT32_MAX;
    for (uint32_t i = s->first_instr; i < s->first_instr + s->count; i++) {
        const PlanInstr *in = &p->instrs[i];
        if (in->nargs == 0) continue;
        v->first_arg = min_of(v->first_arg, in->first_arg);
        end = max_of(end, in->first_arg + in->nargs);
    }
    if (end == 0) v->first_arg = 0;
    v->args = xcalloc(end - v->first_arg, sizeof *v->args);
    for (uint32_t i = v->first_arg; i < end; i++) {
        v->args[i - v->first_arg] = resolve(v, p, rank, &p->args[i]);
        v->reads_input = v->reads_input || is_input(p, p->args[i].buffer);
    }
}

static CollPart *parts_of(const View *v, const Plan *p, const PlanInstr *in)
{
    const PlanColl *c = &p->colls[in->index];
    char *const *args = v->args + (in->first_arg - v->first_arg);
    CollPart *parts = xcalloc(c->nparts, sizeof *parts);
    for (uint32_t i = 0; i < c->nparts; i++) {
        const PlanPart *part = &p->parts[c->first_part + i];
        parts[i] = (CollPart){args[2 * i], args[2 * i + 1], part->outer, part->inner};
    }
    return parts;
}

View view_open(const Plan *stage, char *const *memory, uint32_t rank, const PlanSegment *s,
               const uint16_t slots[SLOT_CLASSES])
{
    View v = {.segment = s};
    memcpy(v.slots, slots, sizeof v.slots);
    v.arena = xcalloc(stage->count[PLAN_ARENAS], sizeof *v.arena);
    // Slots are of the segment's chunk; no instruction of it names an arena of another.
    for (uint32_t i = 0; i < stage->count[PLAN_ARENAS]; i++)
        if (stage->arenas[i].class_ < CLASS_FB || stage->arenas[i].chunk == s->chunk)
            v.arena[i] = view_arena(stage, memory, i, slots);
    resolve_args(&v, stage, rank);
    for (uint32_t i = 0; i < s->count; i++) {
        const PlanInstr *in = &stage->instrs[s->first_instr + i];
        if (in->kind != INSTR_START) continue;
        if (!v.parts) v.parts = xcalloc(s->count, sizeof *v.parts);
        v.parts[i] = parts_of(&v, stage, in);
    }
    return v;
}

void view_close(View *v)
{
    for (uint32_t i = 0; v->parts && i < v->segment->count; i++) free(v->parts[i]);
    free(v->parts);
    free(v->args);
    free(v->arena);
}
