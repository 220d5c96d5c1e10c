// plan_joint.c: plays all stages together and proves that each comes to its end.
//
// One rank stands for each stage: the others of a stage run the same program. Every SEND blocks until the receiver has
// posted its buffer, every ARRIVE until the SEND, every START of a group over stages until all its members have come;
// groups within a stage match by construction. Event driven: a stage runs until it blocks, and is looked at again when
// what it waits for has happened, so the work is linear in the steps.
//
// Traps: steps of a transfer ascend by micro-batch (plan_schedule.c), so a counter for each side is its whole state.
// Members of a collective find each other by its index in PLAN_COLLS: an equal record under another index is another
// collective, and would hang.
#include "plan_check.h"

typedef struct {
    Plan p;
    uint64_t unit;       // 0 INIT, 1 PREP, 2.. the schedule, then UPDATE
    uint32_t instr, end; // within a segment: from here on
    bool last;           // it is a run of the last micro-batch
    bool came;           // at the START that it stands at
    uint32_t generation; // of its group then
    bool queued, ended;
} Stage;

typedef struct {
    Check *c;
    const Plan *p;
    uint32_t n;
    Stage *stages;
    uint32_t *other;              // by transfer of the whole plan: the other side
    uint32_t *done;               // by transfer: posts or sends
    uint32_t *count, *generation; // by group: members that have come; how often all had
    const PlanColl **coll;        // by group: what the first has started
    uint32_t **starts;            // by stage, by instruction: the next one that starts a group over stages
    uint32_t queue[MAX_STAGES], nqueue;
} Joint;

static uint32_t whole_index(const Joint *j, uint32_t stage, uint32_t transfer)
{
    return j->p->stages[stage].range[PLAN_TRANSFERS - PLAN_FIRST_STAGED].first + transfer;
}

// ---- transfers pair up

typedef struct {
    uint32_t tag, stage, index; // of the whole plan
} End;

static int by_tag(const void *x, const void *y)
{
    const End *a = x, *b = y;
    if (a->tag != b->tag) return a->tag < b->tag ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static bool is_pair(const Plan *p, const End *a, const End *b)
{
    const PlanTransfer *x = &p->transfers[a->index], *y = &p->transfers[b->index];
    return a->tag == b->tag && x->peer == b->stage && y->peer == a->stage && x->send != y->send && x->bytes == y->bytes;
}

static bool pair_up(Joint *j)
{
    const Plan *p = j->p;
    uint64_t n = p->count[PLAN_TRANSFERS], at = 0;
    End *ends = xcalloc(n, sizeof *ends);
    bool ok = true;
    for (uint32_t s = 0; s < j->n; s++)
        for (uint32_t i = 0; i < j->stages[s].p.count[PLAN_TRANSFERS]; i++, at++)
            ends[at] = (End){p->transfers[at].tag, s, (uint32_t)at};
    qsort(ends, n, sizeof *ends, by_tag);
    for (uint64_t i = 0; ok && i < n; i += 2) {
        bool pair = i + 1 < n && is_pair(p, &ends[i], &ends[i + 1]);
        if (!pair || (i + 2 < n && ends[i + 2].tag == ends[i].tag)) {
            ok = fail(j->c,
                      "transfer tag %u of stage %u has not one other side: a transfer of that tag, size and opposite "
                      "direction between the two stages",
                      ends[i].tag, ends[i].stage);
            break;
        }
        j->other[ends[i].index] = ends[i + 1].index;
        j->other[ends[i + 1].index] = ends[i].index;
    }
    free(ends);
    return ok;
}

// ---- the run

static void wake(Joint *j, uint32_t s)
{
    if (j->stages[s].queued || j->stages[s].ended) return;
    j->stages[s].queued = true;
    j->queue[j->nqueue++] = s;
}

static bool over_stages(const Plan *p, const PlanInstr *in)
{
    return in->kind == INSTR_START && p->groups[p->colls[in->index].group].mesh & MESH_PP;
}

static void find_starts(Joint *j)
{
    for (uint32_t s = 0; s < j->n; s++) {
        const Plan *p = &j->stages[s].p;
        uint32_t n = (uint32_t)p->count[PLAN_INSTRS];
        j->starts[s] = xcalloc((size_t)n + 1, sizeof *j->starts[s]);
        j->starts[s][n] = n;
        for (uint32_t i = n; i-- > 0;) j->starts[s][i] = over_stages(p, &p->instrs[i]) ? i : j->starts[s][i + 1];
    }
}

typedef enum { GOES_ON, BLOCKED, WRONG } Outcome;

// The stage stands at a START of a group over stages.
static Outcome play_start(Joint *j, uint32_t s)
{
    Stage *stage = &j->stages[s];
    const PlanColl *coll = &stage->p.colls[stage->p.instrs[stage->instr].index];
    uint32_t g = coll->group;
    if (!stage->came) {
        stage->came = true;
        stage->generation = j->generation[g];
        if (j->count[g]++ == 0) j->coll[g] = coll;
        if (coll != j->coll[g]) {
            fail(j->c, "stage %u starts a collective at instrs[%u] that is not what the others of group %u start", s,
                 stage->instr, g);
            return WRONG;
        }
        if (j->count[g] == (uint32_t)__builtin_popcountll(j->p->groups[g].stages)) {
            j->count[g] = 0;
            j->generation[g]++;
            for (uint32_t i = 0; i < j->n; i++)
                if (i != s && j->p->groups[g].stages >> i & 1) wake(j, i);
        }
    }
    if (j->generation[g] == stage->generation) return BLOCKED;
    stage->came = false;
    stage->instr++;
    return GOES_ON;
}

static Outcome play_segment(Joint *j, uint32_t s)
{
    Stage *stage = &j->stages[s];
    for (;;) {
        if (!stage->came && stage->instr < stage->end) stage->instr = j->starts[s][stage->instr];
        if (stage->instr >= stage->end) return GOES_ON;
        if (!stage->last && stage->p.instrs[stage->instr].when == WHEN_LAST) {
            stage->instr++;
            continue;
        }
        Outcome o = play_start(j, s);
        if (o != GOES_ON) return o;
    }
}

static Outcome play_transfer(Joint *j, uint32_t s, const PlanStep *step)
{
    uint32_t t = whole_index(j, s, step->index), other = j->other[t], peer = j->p->transfers[t].peer;
    bool waits = step->kind == STEP_SEND || step->kind == STEP_ARRIVE;
    if (waits && j->done[other] <= step->micro_batch) return BLOCKED;
    if (step->kind == STEP_SEND || step->kind == STEP_POST) {
        j->done[t]++;
        wake(j, peer);
    }
    return GOES_ON;
}

static void enter(Stage *stage, const PlanSegment *s, bool last)
{
    stage->instr = s->first_instr;
    stage->end = s->first_instr + s->count;
    stage->last = last;
}

static void enter_kind(Stage *stage, SegmentId id)
{
    for (uint64_t i = 0; i < stage->p.count[PLAN_SEGMENTS]; i++)
        if (stage->p.segments[i].id == id) enter(stage, &stage->p.segments[i], false);
}

// Runs a stage until it blocks or ends. Between two units instr == end.
static Outcome play_stage(Joint *j, uint32_t s)
{
    Stage *stage = &j->stages[s];
    const Plan *p = &stage->p;
    for (;;) {
        Outcome o = play_segment(j, s);
        if (o != GOES_ON) return o;
        uint64_t n = p->count[PLAN_SCHEDULE], unit = stage->unit;
        if (unit == n + 3) {
            stage->ended = true;
            return GOES_ON;
        }
        if (unit < 2 || unit == n + 2) {
            enter_kind(stage, unit == 0 ? SEG_INIT : unit == 1 ? SEG_PREP : SEG_UPDATE);
        } else {
            const PlanStep *step = &p->schedule[unit - 2];
            if (step->kind == STEP_RUN)
                enter(stage, &p->segments[step->index], step->micro_batch + 1 == p->info->accum);
            else if (play_transfer(j, s, step) == BLOCKED)
                return BLOCKED;
        }
        stage->unit++;
    }
}

// ---- who waits for whom

// Writes what stage s waits for and returns the stage that would have to do it.
static uint32_t describe(const Joint *j, uint32_t s, Buf *out)
{
    const Stage *stage = &j->stages[s];
    if (stage->came) {
        const PlanColl *coll = &stage->p.colls[stage->p.instrs[stage->instr].index];
        uint32_t missing = s;
        for (uint32_t i = j->n; i-- > 0;) {
            const Stage *x = &j->stages[i];
            bool there = x->came && x->p.colls[x->p.instrs[x->instr].index].group == coll->group;
            if (j->p->groups[coll->group].stages >> i & 1 && !there) missing = i;
        }
        buf_printf(out, "stage %u stands at the collective of instrs[%u] and waits for stage %u", s, stage->instr,
                   missing);
        return missing;
    }
    const PlanStep *step = &stage->p.schedule[stage->unit - 2];
    const PlanTransfer *t = &stage->p.transfers[step->index];
    buf_printf(out, "stage %u at schedule[%llu] waits until stage %u %s transfer %u of micro-batch %u", s,
               (unsigned long long)stage->unit - 2, t->peer, step->kind == STEP_SEND ? "posts" : "sends", t->tag,
               step->micro_batch);
    return t->peer;
}

static bool refuse_deadlock(Joint *j)
{
    uint32_t s = 0, seen[MAX_STAGES] = {0};
    while (j->stages[s].ended) s++;
    Buf text = {0};
    for (int i = 0; i < 4; i++) {
        if (i) buf_puts(&text, "; ");
        seen[s] = 1;
        s = describe(j, s, &text);
        if (j->stages[s].ended) buf_printf(&text, "; stage %u has ended", s);
        if (j->stages[s].ended || seen[s]) break;
    }
    fail(j->c, "the stages wait for each other: %s", text.s);
    buf_free(&text);
    return false;
}

static bool play(Joint *j)
{
    for (uint32_t s = 0; s < j->n; s++) wake(j, s);
    while (j->nqueue) {
        uint32_t s = j->queue[--j->nqueue];
        j->stages[s].queued = false;
        if (play_stage(j, s) == WRONG) return false;
    }
    for (uint32_t s = 0; s < j->n; s++)
        if (!j->stages[s].ended) return refuse_deadlock(j);
    return true;
}

bool plan_check_joint(Check *c)
{
    const Plan *p = c->p;
    Joint j = {.c = c, .p = p, .n = (uint32_t)p->count[PLAN_STAGES]};
    uint64_t ntransfers = p->count[PLAN_TRANSFERS], ngroups = p->count[PLAN_GROUPS];
    j.stages = xcalloc(j.n, sizeof *j.stages);
    for (uint32_t s = 0; s < j.n; s++) j.stages[s].p = plan_stage(p, s);
    j.other = xcalloc(ntransfers, sizeof *j.other), j.done = xcalloc(ntransfers, sizeof *j.done);
    j.count = xcalloc(ngroups, sizeof *j.count), j.generation = xcalloc(ngroups, sizeof *j.generation);
    j.coll = xcalloc(ngroups, sizeof *j.coll);
    j.starts = xcalloc(j.n, sizeof *j.starts);
    find_starts(&j);
    bool ok = pair_up(&j) && play(&j);
    for (uint32_t s = 0; s < j.n; s++) free(j.starts[s]);
    free(j.stages), free(j.other), free(j.done), free(j.count), free(j.generation), free(j.coll), free(j.starts);
    return ok;
}
