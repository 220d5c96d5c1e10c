// pipeline_slots.c: a stage's tasks with the transfers around them, and slots for all values that outlive a task.
//
// Around task k, in this order: the posts of task k + 1, the ends of sends that are due, arrivals, the task, its sends.
// With several chunks it is task k + 2: stages then are a ring, where all may send a forward while each one's next task
// is a backward; one post ahead, and they would wait for each other.
//
// While steps are written, the first and last step that needs a slot of each (chunk, class, micro-batch) are noted;
// a second walk over the steps hands out the lowest free slot at the first and takes it back after the last.
//
// When a send is due: a value that the stage needs later anyway is gone before the task that reads it last (no slot more
// than without the send). Others, transfer buffers above all, have until their task runs for the second time again.
#include "pipeline.h"

enum { NONE = UINT32_MAX };
typedef struct { uint32_t first, last; } Life;  // steps; first NONE: no life
typedef struct { uint64_t *busy; size_t lowest; uint32_t count; } Slots;  // bits; no free one in the words before `lowest`
typedef struct {
    const Task *tasks;
    size_t ncrossings;
    const Crossing *crossings;
    const bool *used;
    uint32_t micro_batches;
    size_t chunks;
    bool split;              // W is a task of its own
    int *last_reader;        // by chunk and class: Work, or -1
    Life *lives;             // by chunk, micro-batch and class
    uint16_t *slots;         // the same
    StageSchedule out;
} Build;

static size_t index_of(const Build *b, uint32_t chunk, uint32_t micro_batch)  // of its first life
{
    return ((size_t)chunk * b->micro_batches + micro_batch) * SLOT_CLASSES;
}

static int *last_reader(const Build *b, uint32_t chunk, PlanClass c)
{
    return b->last_reader + chunk * SLOT_CLASSES + c - CLASS_FB;
}

// Without W its work is done in B.
static Work actual(const Build *b, Work w) { return w == WORK_W && !b->split ? WORK_B : w; }

// ------------------------------------------------------------------------------------------------------ steps
// The last step written needs the slot.
static void need(Build *b, uint32_t chunk, uint32_t micro_batch, PlanClass c)
{
    Life *life = b->lives + index_of(b, chunk, micro_batch) + (c - CLASS_FB);
    life->last = (uint32_t)vec_len(b->out.steps) - 1;
    if (life->first == NONE) life->first = life->last;
}

static void transfer(Build *b, PlanStepKind kind, size_t crossing, uint32_t micro_batch)
{
    const Crossing *x = &b->crossings[crossing];
    vec_push(b->out.steps, (Step){ .kind = kind, .crossing = (uint32_t)crossing, .micro_batch = micro_batch, .chunk = x->chunk });
    need(b, x->chunk, micro_batch, x->class_);
}

static void transfers_of_task(Build *b, PlanStepKind kind, const Task *t)
{
    for (size_t i = 0; i < b->ncrossings; i++) {
        const Crossing *x = &b->crossings[i];
        if (x->chunk == t->chunk && actual(b, x->at) == t->work && x->send == (kind == STEP_SEND))
            transfer(b, kind, i, t->micro_batch);
    }
}

static void run(Build *b, const Task *t)
{
    static const bool lives[][3] = { [CLASS_FB - CLASS_FB] = { true, true, false },
                                     [CLASS_FW - CLASS_FB] = { true, true, true },
                                     [CLASS_BW - CLASS_FB] = { false, true, true } };
    vec_push(b->out.steps, (Step){ .kind = STEP_RUN, .task = *t, .micro_batch = t->micro_batch, .chunk = t->chunk });
    for (PlanClass c = CLASS_FB; c <= CLASS_BW; c++)
        if (b->used[c] && lives[c - CLASS_FB][t->work]) need(b, t->chunk, t->micro_batch, c);
    for (size_t i = 0; i < b->ncrossings; i++) {
        const Crossing *x = &b->crossings[i];
        if (x->chunk == t->chunk && actual(b, x->send ? x->at : x->until) == t->work) need(b, t->chunk, t->micro_batch, x->class_);
    }
}

// -1: the send has until its task runs for the second time again; else it is over before this work of the micro-batch.
static int over_before(const Build *b, const Crossing *x)
{
    int last = *last_reader(b, x->chunk, x->class_);
    return last > (int)actual(b, x->at) ? last : -1;
}

static void sends_due(Build *b, const Task *t)
{
    for (size_t i = 0; i < b->ncrossings; i++) {
        const Crossing *x = &b->crossings[i];
        if (!x->send || x->chunk != t->chunk) continue;
        int before = over_before(b, x);
        if (before == (int)t->work) transfer(b, STEP_SENT, i, t->micro_batch);
        if (before < 0 && actual(b, x->at) == t->work && t->micro_batch >= 2) transfer(b, STEP_SENT, i, t->micro_batch - 2);
    }
}

static void sends_left(Build *b)
{
    for (uint32_t m = b->micro_batches > 2 ? b->micro_batches - 2 : 0; m < b->micro_batches; m++)
        for (size_t i = 0; i < b->ncrossings; i++)
            if (b->crossings[i].send && over_before(b, &b->crossings[i]) < 0) transfer(b, STEP_SENT, i, m);
}

static void write_steps(Build *b)
{
    size_t n = vec_len(b->tasks);
    b->out.steps = vec_grow_(NULL, sizeof *b->out.steps, n + 2 * b->ncrossings * b->micro_batches);
    size_t ahead = b->chunks > 1 ? 2 : 1;
    for (size_t k = 0; k < ahead && k < n; k++) transfers_of_task(b, STEP_POST, &b->tasks[k]);
    for (size_t k = 0; k < n; k++) {
        const Task *t = &b->tasks[k];
        if (k + ahead < n) transfers_of_task(b, STEP_POST, &b->tasks[k + ahead]);
        sends_due(b, t);
        transfers_of_task(b, STEP_ARRIVE, t);
        run(b, t);
        transfers_of_task(b, STEP_SEND, t);
    }
    sends_left(b);
}

// ------------------------------------------------------------------------------------------------------ slots
static uint16_t slot_take(Slots *s)
{
    while (s->lowest < vec_len(s->busy) && s->busy[s->lowest] == UINT64_MAX) s->lowest++;
    if (s->lowest == vec_len(s->busy)) vec_push(s->busy, 0);
    uint32_t bit = (uint32_t)__builtin_ctzll(~s->busy[s->lowest]), slot = (uint32_t)s->lowest * 64 + bit;
    if (slot >= UINT16_MAX)
        fatal("a stage keeps values of more than %d micro-batches at once: use fewer, or another schedule", UINT16_MAX);
    s->busy[s->lowest] |= UINT64_C(1) << bit;
    s->count = max_of(s->count, slot + 1);
    return (uint16_t)slot;
}

static void slot_give_back(Slots *s, uint16_t slot)
{
    s->busy[slot / 64] &= ~(UINT64_C(1) << slot % 64);
    s->lowest = min_of(s->lowest, (size_t)slot / 64);
}

// A life begins and ends at steps of its own chunk and micro-batch.
static void colour(Build *b)
{
    Slots *slots = xcalloc(b->chunks * SLOT_CLASSES, sizeof *slots);
    for (uint32_t i = 0; i < vec_len(b->out.steps); i++) {
        const Step *s = &b->out.steps[i];
        size_t at = index_of(b, s->chunk, s->micro_batch);
        for (size_t c = 0; c < SLOT_CLASSES; c++) {
            Slots *of = &slots[s->chunk * SLOT_CLASSES + c];
            if (b->lives[at + c].first == i) b->slots[at + c] = slot_take(of);
            if (b->lives[at + c].last == i) slot_give_back(of, b->slots[at + c]);
        }
    }
    for (size_t i = 0; i < vec_len(b->out.steps); i++) {
        Step *s = &b->out.steps[i];
        memcpy(s->slots, b->slots + index_of(b, s->chunk, s->micro_batch), sizeof s->slots);
    }
    for (size_t i = 0; i < b->chunks * SLOT_CLASSES; i++) {
        b->out.slots[i / SLOT_CLASSES][i % SLOT_CLASSES] = (uint16_t)slots[i].count;
        vec_free(slots[i].busy);
    }
    free(slots);
}

// ------------------------------------------------------------------------------------------------------ all
static void find_last_readers(Build *b)
{
    b->last_reader = xmalloc(b->chunks * SLOT_CLASSES * sizeof *b->last_reader);
    for (size_t i = 0; i < b->chunks * SLOT_CLASSES; i++) b->last_reader[i] = -1;
    for (uint32_t k = 0; k < b->chunks; k++) {
        if (b->used[CLASS_FB]) *last_reader(b, k, CLASS_FB) = WORK_B;
        if (b->used[CLASS_FW]) *last_reader(b, k, CLASS_FW) = (int)actual(b, WORK_W);
        if (b->used[CLASS_BW]) *last_reader(b, k, CLASS_BW) = (int)actual(b, WORK_W);
    }
    for (size_t i = 0; i < b->ncrossings; i++) {
        const Crossing *x = &b->crossings[i];
        if (x->chunk >= b->chunks || x->class_ < CLASS_FB) bug("crossing %zu: chunk %u, class %d", i, x->chunk, (int)x->class_);
        int *last = last_reader(b, x->chunk, x->class_);
        if (!x->send) *last = max_of(*last, (int)actual(b, x->until));
    }
}

StageSchedule pipeline_steps(const Task *tasks, int chunks, size_t ncrossings, const Crossing *crossings, const bool *used)
{
    Build b = { .tasks = tasks, .ncrossings = ncrossings, .crossings = crossings, .used = used, .chunks = (size_t)chunks };
    for (size_t i = 0; i < vec_len(tasks); i++) {
        b.micro_batches = max_of(b.micro_batches, tasks[i].micro_batch + 1);
        if (tasks[i].work == WORK_W) b.split = true;
    }
    find_last_readers(&b);
    size_t nlives = b.chunks * b.micro_batches * SLOT_CLASSES;
    b.lives = xmalloc(nlives * sizeof *b.lives);
    for (size_t i = 0; i < nlives; i++) b.lives[i] = (Life){ NONE, NONE };
    b.slots = xcalloc(nlives, sizeof *b.slots);
    b.out.slots = xcalloc(b.chunks, sizeof *b.out.slots);
    write_steps(&b);
    colour(&b);
    free(b.last_reader);
    free(b.lives);
    free(b.slots);
    return b.out;
}

void stage_schedule_free(StageSchedule *s)
{
    vec_free(s->steps);
    free(s->slots);
    s->slots = NULL;
}
