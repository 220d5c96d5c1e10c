// pipeline_check.c: is a schedule right? Knows what a schedule promises, and nothing of how schedules are made.
//
// Three walks, each linear in the number of steps: over the tasks of every stage (all there, in an order that one stage
// alone can keep); over its steps (the same tasks, every transfer whole and around its task, no slot with two owners);
// and over all stages together, a SEND blocking until its POST and an ARRIVE until its SEND. The last walk needs no
// search: steps that can run never stop others from running, so any order of trying finds the same end.
#include "pipeline.h"

static char message[512];
#define wrong(...) (snprintf(message, sizeof message, __VA_ARGS__), message)
static const char WORKS[] = "FBW";
static const char *const CLASSES[SLOT_CLASSES] = { "FB", "FW", "BW", "RF", "RB", "SF", "SB" };
static const char *const STEPS[] = { [STEP_POST] = "POST", [STEP_ARRIVE] = "ARRIVE", [STEP_SEND] = "SEND", [STEP_SENT] = "SENT" };

typedef struct {
    const PipelineShape *shape;
    uint32_t m;               // micro-batches
    int works;                // of a micro-batch: F and B, or W too
    Task *const *tasks;
    const StageSchedule *schedules;
    Crossing *const *crossings;
} Check;

// ------------------------------------------------------------------------------------------------------ tasks
static const char *check_tasks(const Check *c, int stage)
{
    uint32_t chunks = (uint32_t)c->shape->chunks, (*next)[3] = xcalloc(chunks, sizeof *next);
    const char *fault = NULL;
    for (size_t k = 0; !fault && k < vec_len(c->tasks[stage]); k++) {
        Task t = c->tasks[stage][k];
        if (t.chunk >= chunks || t.micro_batch >= c->m || (int)t.work >= c->works)
            fault = wrong("stage %d: task %zu is no task of this shape", stage, k);
        else if (next[t.chunk][t.work] != t.micro_batch)
            fault = wrong("stage %d, chunk %u: %c of micro-batch %u stands where %u is due", stage, t.chunk, WORKS[t.work],
                          t.micro_batch, next[t.chunk][t.work]);
        else if (t.work != WORK_F && next[t.chunk][t.work - 1] <= t.micro_batch)
            fault = wrong("stage %d, chunk %u: %c of micro-batch %u stands before its %c", stage, t.chunk, WORKS[t.work],
                          t.micro_batch, WORKS[t.work - 1]);
        else next[t.chunk][t.work]++;
    }
    for (uint32_t k = 0; !fault && k < chunks; k++)
        for (int w = 0; !fault && w < c->works; w++)
            if (next[k][w] != c->m)
                fault = wrong("stage %d, chunk %u: %c of micro-batch %u is missing", stage, k, WORKS[w], next[k][w]);
    free(next);
    return fault;
}

// ------------------------------------------------------------------------------------------------------ steps of a stage
// How far a transfer of a micro-batch is.
enum { BEFORE, BEGUN, ENDED };  // receipt: POST, ARRIVE; send: SEND, SENT

// What one walk over the steps of a stage knows. A slot is owned from the first to the last step that needs it: `needs`
// of them by chunk and class, `seen` so far by chunk, class and micro-batch.
typedef struct {
    const Check *c;
    int stage;
    size_t ncrossings;
    const Crossing *crossings;
    const StageSchedule *schedule;
    uint32_t (*ran)[3], *needs, *seen, **owners;
    uint8_t *progress;      // by crossing and micro-batch
    size_t ntasks;          // that ran
} Walk;

static Work actual(const Check *c, Work w) { return w == WORK_W && c->works < 3 ? WORK_B : w; }

// Does RUN of this work need slots of the class, for values that stay within the stage?
static bool saved(const Check *c, PlanClass class_, Work w)
{
    if (class_ == CLASS_FB) return w != WORK_W;
    if (class_ == CLASS_FW) return true;
    return class_ == CLASS_BW && actual(c, w) != WORK_F;
}

static void count_needs(Walk *w)
{
    for (int k = 0; k < w->c->shape->chunks; k++)
        for (int i = 0; i <= CLASS_BW - CLASS_FB; i++)
            for (int work = 0; work < w->c->works; work++)
                if (w->schedule->slots[k][i] && saved(w->c, (PlanClass)(CLASS_FB + i), (Work)work))
                    w->needs[k * SLOT_CLASSES + i]++;
    for (size_t i = 0; i < w->ncrossings; i++) {  // RUN, and POST and ARRIVE, or SEND and SENT
        const Crossing *x = &w->crossings[i];
        w->needs[x->chunk * SLOT_CLASSES + (x->class_ - CLASS_FB)] += 3;
    }
}

static const char *check_crossings(const Walk *w)
{
    for (size_t i = 0; i < w->ncrossings; i++) {
        const Crossing *x = &w->crossings[i];
        if (x->chunk >= w->c->shape->chunks || x->peer >= (uint32_t)w->c->shape->stages || x->class_ < CLASS_FB
            || x->class_ >= CLASS_COUNT)
            return wrong("stage %d: the transfer of tag %u has a chunk, peer or class that is not there", w->stage, x->tag);
        if (!x->send && x->until < x->at)
            return wrong("stage %d: tag %u is read no more when it arrives", w->stage, x->tag);
    }
    return NULL;
}

// The step needs its micro-batch's slot of a class.
static const char *need(Walk *w, const Step *s, PlanClass class_)
{
    size_t i = s->chunk * SLOT_CLASSES + (class_ - CLASS_FB);
    uint32_t *owner = &w->owners[i][s->slots[class_ - CLASS_FB]], *seen = &w->seen[i * w->c->m + s->micro_batch];
    if (*seen == 0 && *owner == 0) *owner = s->micro_batch + 1;
    if (*owner == 0)
        return wrong("stage %d, chunk %u: the slot of %s of micro-batch %u changes", w->stage, s->chunk,
                     CLASSES[class_ - CLASS_FB], s->micro_batch);
    if (*owner != s->micro_batch + 1)
        return wrong("stage %d, chunk %u: slot %u of %s is micro-batch %u's when %u needs it", w->stage, s->chunk,
                     s->slots[class_ - CLASS_FB], CLASSES[class_ - CLASS_FB], *owner - 1, s->micro_batch);
    if (++*seen == w->needs[i]) *owner = 0;
    return NULL;
}

// All slots that a step names are there; those of values that live are theirs.
static const char *check_slots(const Walk *w, const Step *s)
{
    for (int k = 0; k < SLOT_CLASSES; k++) {
        size_t i = (size_t)s->chunk * SLOT_CLASSES + (size_t)k;
        uint32_t seen = w->seen[i * w->c->m + s->micro_batch], count = w->schedule->slots[s->chunk][k];
        if (s->slots[k] >= max_of(count, 1u) || (w->needs[i] && !count))
            return wrong("stage %d, chunk %u: micro-batch %u has slot %u of %u", w->stage, s->chunk, s->micro_batch,
                         s->slots[k], count);
        if (seen && seen < w->needs[i] && w->owners[i][s->slots[k]] != s->micro_batch + 1)
            return wrong("stage %d, chunk %u: a slot of micro-batch %u changes while its value lives", w->stage, s->chunk,
                         s->micro_batch);
    }
    return NULL;
}

static const char *step_run(Walk *w, const Step *s, size_t at)
{
    const Task *t = &s->task;
    if (w->ntasks == vec_len(w->c->tasks[w->stage]))
        return wrong("stage %d: step %zu runs a task that is not in the list", w->stage, at);
    const Task *due = &w->c->tasks[w->stage][w->ntasks];
    if (t->work != due->work || t->chunk != due->chunk || t->micro_batch != due->micro_batch || t->chunk != s->chunk
        || t->micro_batch != s->micro_batch)
        return wrong("stage %d: step %zu runs %c of micro-batch %u where %c of %u is due", w->stage, at,
                     t->work <= WORK_W ? WORKS[t->work] : '?', t->micro_batch, WORKS[due->work], due->micro_batch);
    w->ntasks++;
    w->ran[t->chunk][t->work]++;
    const char *fault = NULL;
    for (PlanClass k = CLASS_FB; !fault && k <= CLASS_BW; k++)
        if (w->schedule->slots[t->chunk][k - CLASS_FB] && saved(w->c, k, t->work)) fault = need(w, s, k);
    for (size_t i = 0; !fault && i < w->ncrossings; i++) {
        const Crossing *x = &w->crossings[i];
        if (x->chunk != t->chunk) continue;
        if (!x->send && actual(w->c, x->at) == t->work && w->progress[i * w->c->m + t->micro_batch] != ENDED)
            return wrong("stage %d: %c of micro-batch %u runs before the arrival of tag %u", w->stage, WORKS[t->work],
                         t->micro_batch, x->tag);
        if (actual(w->c, x->send ? x->at : x->until) == t->work) fault = need(w, s, x->class_);
    }
    return fault;
}

static const char *step_transfer(Walk *w, const Step *s, size_t at)
{
    if (s->crossing >= w->ncrossings || w->crossings[s->crossing].chunk != s->chunk
        || w->crossings[s->crossing].send != (s->kind == STEP_SEND || s->kind == STEP_SENT))
        return wrong("stage %d: step %zu names no transfer of its kind and chunk", w->stage, at);
    const Crossing *x = &w->crossings[s->crossing];
    uint8_t *progress = &w->progress[s->crossing * w->c->m + s->micro_batch];
    uint8_t want = s->kind == STEP_POST || s->kind == STEP_SEND ? BEFORE : BEGUN;
    Work at_work = actual(w->c, x->at);
    if (*progress < want)
        return wrong("stage %d: %s of tag %u, micro-batch %u, without a %s before it", w->stage, STEPS[s->kind], x->tag,
                     s->micro_batch, x->send ? "SEND" : "POST");
    if (*progress > want)
        return wrong("stage %d: %s of tag %u, micro-batch %u, is there twice", w->stage, STEPS[s->kind], x->tag, s->micro_batch);
    if (s->kind == STEP_SEND && w->ran[x->chunk][at_work] <= s->micro_batch)
        return wrong("stage %d: SEND of tag %u, micro-batch %u, before %c has run", w->stage, x->tag, s->micro_batch, WORKS[at_work]);
    ++*progress;
    return need(w, s, x->class_);
}

static const char *walk_steps(Walk *w)
{
    for (size_t i = 0; i < vec_len(w->schedule->steps); i++) {
        const Step *s = &w->schedule->steps[i];
        if (s->kind > STEP_SENT || s->chunk >= w->c->shape->chunks || s->micro_batch >= w->c->m)
            return wrong("stage %d: step %zu has a kind, chunk or micro-batch that is not there", w->stage, i);
        const char *fault = check_slots(w, s);
        if (!fault) fault = s->kind == STEP_RUN ? step_run(w, s, i) : step_transfer(w, s, i);
        if (fault) return fault;
    }
    size_t ntasks = vec_len(w->c->tasks[w->stage]);
    if (w->ntasks < ntasks) return wrong("stage %d: its steps run %zu tasks of %zu", w->stage, w->ntasks, ntasks);
    for (size_t i = 0; i < w->ncrossings; i++)
        for (uint32_t m = 0; m < w->c->m; m++)
            if (w->progress[i * w->c->m + m] != ENDED)
                return wrong("stage %d: tag %u, micro-batch %u, has no %s", w->stage, w->crossings[i].tag, m,
                             w->crossings[i].send ? "SEND and SENT" : "POST and ARRIVE");
    return NULL;
}

static const char *check_steps(const Check *c, int stage)
{
    size_t chunks = (size_t)c->shape->chunks, classes = chunks * SLOT_CLASSES;
    Walk w = { .c = c, .stage = stage, .schedule = &c->schedules[stage], .crossings = c->crossings[stage],
               .ncrossings = vec_len(c->crossings[stage]) };
    const char *fault = check_crossings(&w);
    if (fault) return fault;
    w.ran = xcalloc(chunks, sizeof *w.ran);
    w.needs = xcalloc(classes, sizeof *w.needs);
    w.seen = xcalloc(classes * c->m, sizeof *w.seen);
    w.owners = xcalloc(classes, sizeof *w.owners);
    w.progress = xcalloc(w.ncrossings * c->m + 1, 1);
    for (size_t i = 0; i < classes; i++)
        w.owners[i] = xcalloc(w.schedule->slots[i / SLOT_CLASSES][i % SLOT_CLASSES] + 1u, sizeof **w.owners);
    count_needs(&w);
    fault = walk_steps(&w);
    for (size_t i = 0; i < classes; i++) free(w.owners[i]);
    free(w.ran), free(w.needs), free(w.seen), free(w.owners), free(w.progress);
    return fault;
}

// ------------------------------------------------------------------------------------------------------ all stages together
typedef struct { uint32_t tag; int stage; size_t index; bool send; } End;  // of a transfer
enum { POSTED = 1, SENDING = 2 };
typedef struct {
    const Check *c;
    size_t *at;               // by stage: the step it is at
    uint32_t **transfers;     // by stage and crossing: which transfer of all
    uint8_t *state;           // by transfer and micro-batch
} Joint;

static int by_tag(const void *a, const void *b)
{
    const End *x = a, *y = b;
    return x->tag != y->tag ? (x->tag < y->tag ? -1 : 1) : (int)y->send - (int)x->send;
}

// Every tag has a send and a receipt, each naming the other's stage.
static const char *match_ends(Joint *j, End *ends)
{
    size_t n = vec_len(ends);
    if (n) qsort(ends, n, sizeof *ends, by_tag);
    for (size_t i = 0; i < n; i += 2) {
        const End *from = &ends[i], *to = &ends[i + 1];
        if (i + 1 == n || to->tag != from->tag || !from->send || to->send)
            return wrong("tag %u on stage %d has no single counterpart", from->tag, from->stage);
        if (i + 2 < n && ends[i + 2].tag == from->tag) return wrong("tag %u is there more than twice", from->tag);
        if (j->c->crossings[from->stage][from->index].peer != (uint32_t)to->stage
            || j->c->crossings[to->stage][to->index].peer != (uint32_t)from->stage)
            return wrong("tag %u goes from stage %d to stage %d, which name other peers", from->tag, from->stage, to->stage);
        j->transfers[from->stage][from->index] = j->transfers[to->stage][to->index] = (uint32_t)(i / 2);
    }
    return NULL;
}

// Runs a stage as far as it goes; marks the stages that may go on because of it.
static void advance(Joint *j, int stage, bool *wake)
{
    const Step *steps = j->c->schedules[stage].steps;
    for (; j->at[stage] < vec_len(steps); j->at[stage]++) {
        const Step *s = &steps[j->at[stage]];
        if (s->kind == STEP_RUN || s->kind == STEP_SENT) continue;
        uint8_t *state = &j->state[(size_t)j->transfers[stage][s->crossing] * j->c->m + s->micro_batch];
        if ((s->kind == STEP_SEND && !(*state & POSTED)) || (s->kind == STEP_ARRIVE && !(*state & SENDING))) return;
        if (s->kind == STEP_ARRIVE) continue;
        *state |= s->kind == STEP_POST ? POSTED : SENDING;
        wake[j->c->crossings[stage][s->crossing].peer] = true;
    }
}

static const char *describe_wait(const Joint *j, int stage)
{
    static char text[2][96];  // a sentence has two of them
    static int turn;
    const Step *steps = j->c->schedules[stage].steps, *s = &steps[j->at[stage]];
    turn = !turn;
    if (j->at[stage] == vec_len(steps)) return "is at its end";
    snprintf(text[turn], sizeof text[turn], "waits at step %zu, %s of tag %u, micro-batch %u", j->at[stage],
             STEPS[s->kind], j->c->crossings[stage][s->crossing].tag, s->micro_batch);
    return text[turn];
}

static const char *run_joint(Joint *j)
{
    int stages = j->c->shape->stages;
    bool *wake = xmalloc((size_t)stages);
    memset(wake, true, (size_t)stages);
    for (int idle = 0, s = 0; idle < stages; s = (s + 1) % stages) {
        idle = wake[s] ? 0 : idle + 1;
        if (!wake[s]) continue;
        wake[s] = false;
        advance(j, s, wake);
    }
    free(wake);
    for (int s = 0; s < stages; s++) {
        const Step *steps = j->c->schedules[s].steps;
        if (j->at[s] == vec_len(steps)) continue;
        int peer = (int)j->c->crossings[s][steps[j->at[s]].crossing].peer;
        return wrong("the stages wait for each other: stage %d %s, for stage %d, which %s", s, describe_wait(j, s), peer,
                     describe_wait(j, peer));
    }
    return NULL;
}

static const char *check_joint(const Check *c)
{
    size_t stages = (size_t)c->shape->stages;
    Joint j = { .c = c, .at = xcalloc(stages, sizeof *j.at), .transfers = xcalloc(stages, sizeof *j.transfers) };
    End *ends = NULL;
    for (size_t s = 0; s < stages; s++) {
        size_t n = vec_len(c->crossings[s]);
        j.transfers[s] = xcalloc(n + 1, sizeof **j.transfers);
        for (size_t i = 0; i < n; i++) vec_push(ends, (End){ c->crossings[s][i].tag, (int)s, i, c->crossings[s][i].send });
    }
    j.state = xcalloc(vec_len(ends) / 2 * c->m + 1, 1);
    const char *fault = match_ends(&j, ends);
    if (!fault) fault = run_joint(&j);
    for (size_t s = 0; s < stages; s++) free(j.transfers[s]);
    free(j.at), free(j.transfers), free(j.state);
    vec_free(ends);
    return fault;
}

const char *pipeline_check(const PipelineShape *shape, Task *const *tasks, const StageSchedule *schedules,
                           Crossing *const *crossings)
{
    Check c = { .shape = shape, .m = (uint32_t)shape->micro_batches, .works = shape->kind == SCHEDULE_ZB ? 3 : 2,
                .tasks = tasks, .schedules = schedules, .crossings = crossings };
    const char *fault = NULL;
    for (int s = 0; !fault && s < shape->stages; s++) fault = check_tasks(&c, s);
    for (int s = 0; !fault && s < shape->stages; s++) fault = check_steps(&c, s);
    return fault ? fault : check_joint(&c);
}
