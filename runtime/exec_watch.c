// exec_watch.c: what --poison and --check-nan do between instructions.
//
// Poison: bytes that belong to no live buffer hold 0xff, which is NaN in every float type, so that a value
// read before it is written, or after its end, shows in the loss. Around an instruction, the buffers that
// begin or end with it are filled, without the bytes that another live buffer shares (an op in place). Landing
// buffers die with the last schedule entry of their micro-batch that reads or passes them on, buffers of their own
// class that are sent with SENT. The ranges are made once, at load. With --check-nan alone the same ranges are
// zeroed: what a kernel leaves out of a buffer must not be taken for a NaN of its own.
//
// NaN search: -inf is a legitimate value (masks), only NaN counts. A product's and a collective's result is searched
// by its exact extent; a kernel's from the argument to the end of its buffer.
#include "exec.h"

typedef struct {
    uint32_t arena;
    uint64_t start, end;
} Range;

struct Poison {
    Range **before, **after; // growing arrays, by instruction
    uint32_t **landed;       // growing arrays of buffers, by schedule entry
    uint64_t ninstrs, nentries;
    int byte;
};

// Adds [start, end) without the bytes of the buffers that live at `instr` and are not `id` itself.
static void add_uncovered(Range **out, const Plan *p, uint32_t id, uint32_t instr, bool before, uint64_t start,
                          uint64_t end)
{
    const PlanBuffer *b = &p->buffers[id];
    for (uint32_t i = 0; i < p->count[PLAN_BUFFERS]; i++) {
        const PlanBuffer *other = &p->buffers[i];
        bool lives =
            before ? other->first < instr && other->last >= instr : other->first <= instr && other->last > instr;
        if (i == id || !lives || other->arena != b->arena) continue;
        if (other->offset >= end || other->offset + other->bytes <= start) continue;
        if (other->offset > start) add_uncovered(out, p, id, instr, before, start, other->offset);
        start = other->offset + other->bytes;
        if (start >= end) return;
    }
    vec_push(*out, (Range){b->arena, start, end});
}

static bool is_crossing(PlanClass c)
{
    return c >= CLASS_RF && c <= CLASS_SB;
}

static PlanClass class_of(const Plan *p, uint32_t buffer)
{
    return (PlanClass)p->arenas[p->buffers[buffer].arena].class_;
}

static bool segment_has(const Plan *p, const PlanSegment *s, uint32_t buffer)
{
    for (uint32_t i = s->first_instr; i < s->first_instr + s->count; i++)
        for (uint32_t k = 0; k < p->instrs[i].nargs; k++)
            if (p->args[p->instrs[i].first_arg + k].buffer == buffer) return true;
    return false;
}

// The last entry of the arrival's micro-batch that needs what has landed; before the slot is offered again.
static uint64_t last_use(const Plan *p, uint64_t arrival)
{
    const PlanStep *a = &p->schedule[arrival];
    const PlanTransfer *t = &p->transfers[a->index];
    uint32_t slot = class_of(p, t->buffer) - CLASS_FB;
    uint64_t last = arrival;
    for (uint64_t i = arrival + 1; i < p->count[PLAN_SCHEDULE]; i++) {
        const PlanStep *s = &p->schedule[i];
        if (s->kind == STEP_POST && s->index == a->index && s->slots[slot] == a->slots[slot]) break;
        if (s->micro_batch != a->micro_batch) continue;
        bool uses = s->kind == STEP_RUN ? p->segments[s->index].chunk == t->chunk &&
                                              segment_has(p, &p->segments[s->index], t->buffer)
                                        : s->kind == STEP_SENT && p->transfers[s->index].buffer == t->buffer;
        if (uses) last = i;
    }
    return last;
}

static void find_landed(Poison *w, const Plan *p)
{
    for (uint64_t i = 0; i < p->count[PLAN_SCHEDULE]; i++) {
        const PlanStep *s = &p->schedule[i];
        if (s->kind != STEP_ARRIVE && s->kind != STEP_SENT) continue;
        uint32_t buffer = p->transfers[s->index].buffer;
        PlanClass class_ = class_of(p, buffer);
        if (s->kind == STEP_ARRIVE)
            vec_push(w->landed[last_use(p, i)], buffer);
        else if (class_ == CLASS_SF || class_ == CLASS_SB)
            vec_push(w->landed[i], buffer);
    }
}

Poison *poison_new(const Plan *stage, int byte)
{
    Poison *w = xcalloc(1, sizeof *w);
    w->ninstrs = stage->count[PLAN_INSTRS];
    w->nentries = stage->count[PLAN_SCHEDULE];
    w->byte = byte;
    w->before = xcalloc(w->ninstrs, sizeof *w->before);
    w->after = xcalloc(w->ninstrs, sizeof *w->after);
    w->landed = xcalloc(w->nentries, sizeof *w->landed);
    for (uint32_t i = 0; i < stage->count[PLAN_BUFFERS]; i++) {
        const PlanBuffer *b = &stage->buffers[i];
        PlanClass class_ = class_of(stage, i);
        if (class_ == CLASS_PERSIST || is_crossing(class_)) continue;
        add_uncovered(&w->before[b->first], stage, i, b->first, true, b->offset, b->offset + b->bytes);
        add_uncovered(&w->after[b->last], stage, i, b->last, false, b->offset, b->offset + b->bytes);
    }
    find_landed(w, stage);
    return w;
}

static void fill(const Range *ranges, int byte, char *const *arena)
{
    for (size_t i = 0; i < vec_len(ranges); i++)
        memset(arena[ranges[i].arena] + ranges[i].start, byte, ranges[i].end - ranges[i].start);
}

void poison_before(const Poison *w, uint32_t instr, char *const *arena)
{
    fill(w->before[instr], w->byte, arena);
}

void poison_after(const Poison *w, uint32_t instr, char *const *arena)
{
    fill(w->after[instr], w->byte, arena);
}

const uint32_t *poison_landed(const Poison *w, uint64_t entry)
{
    return w->landed[entry];
}

void poison_free(Poison *w)
{
    if (!w) return;
    for (uint64_t i = 0; i < w->ninstrs; i++) {
        vec_free(w->before[i]);
        vec_free(w->after[i]);
    }
    for (uint64_t i = 0; i < w->nentries; i++) vec_free(w->landed[i]);
    free(w->before);
    free(w->after);
    free(w->landed);
    free(w);
}

// ---- NaN

static int64_t nan_in_row(DType t, const char *at, uint64_t n)
{
    const double *d = (const double *)(const void *)at;
    const float *f = (const float *)(const void *)at;
    const uint16_t *h = (const uint16_t *)(const void *)at;
    for (uint64_t i = 0; i < n; i++) {
        bool nan = t == F64 ? d[i] != d[i] : t == F32 ? f[i] != f[i] : (h[i] & 0x7fff) > 0x7f80;
        if (nan) return (int64_t)i;
    }
    return -1;
}

static int64_t nan_in_product(const PlanGemm *g, DType t, const char *at, uint64_t offset)
{
    uint64_t batches = 1;
    for (uint32_t i = 0; i < g->nbatch; i++) batches *= g->batch[i];
    for (uint64_t row = 0; row < batches * g->m; row++) {
        uint64_t start = row % g->m * g->ldc, rest = row / g->m;
        for (uint32_t i = g->nbatch; i-- > 0; rest /= g->batch[i])
            start += rest % g->batch[i] * (uint64_t)g->stride_c[i];
        int64_t found = nan_in_row(t, at + start * (uint64_t)dtype_bytes(t), g->n);
        if (found >= 0) return (int64_t)(offset + start) + found;
    }
    return -1;
}

static int64_t nan_in_part(const Plan *p, const PlanColl *c, uint32_t part, DType t, const char *at)
{
    const PlanPart *x = &p->parts[c->first_part + part];
    uint64_t k = c->kind == COLL_ALL_GATHER ? p->groups[c->group].size : 1;
    return nan_in_row(t, at, x->outer * k * x->inner);
}

int64_t find_nan(const Plan *p, const PlanInstr *in, uint32_t arg, const char *at)
{
    const PlanArg *a = &p->args[in->first_arg + arg];
    const PlanBuffer *b = &p->buffers[a->buffer];
    DType t = (DType)b->dtype;
    if (!a->written || (t != F64 && t != F32 && t != BF16)) return -1;
    uint64_t item = (uint64_t)dtype_bytes(t), offset = a->offset / item;
    if (in->kind == INSTR_GEMM) return nan_in_product(&p->gemms[in->index], t, at, offset);
    if (in->kind == INSTR_START) {
        int64_t in_part = arg % 2 ? nan_in_part(p, &p->colls[in->index], arg / 2, t, at) : -1;
        return in_part < 0 ? -1 : (int64_t)offset + in_part;
    }
    int64_t found = nan_in_row(t, at, (b->bytes - a->offset) / item);
    return found < 0 ? -1 : (int64_t)offset + found;
}
