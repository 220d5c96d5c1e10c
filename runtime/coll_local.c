// coll_local.c: ranks as threads of one process: members read each other's buffers.
//
// A collective of the plan has one Slot for each set of ranks that takes part in it. Its life is a row of phases; a
// phase ends when every member has added one to its counter:
//
//   arrived  parts are published: inputs may be read
//   reduced  each member has reduced its share into its own output: inputs are no longer read, the shares may be
//   copied   each member has copied the others' shares (ALL_REDUCE) or inputs (ALL_GATHER): no buffer of a peer is read
//
// REDUCE_SCATTER ends with `reduced`, the others with `copied`; only then is wait() over, as a peer may still read
// before. Small inputs are copied into the slot at the start; then every member computes all of its output by itself
// and the collective ends with `arrived`: a rank may be one round ahead of its peers there, never two, hence two stages
// a slot.
//
// Counters only grow (modulo 2^32): round n of a slot of k members is complete at k*n. start(), wait() and progress()
// drive every collective of the rank that can go on, so ranks may wait in any order.
//
// Sleep: who waits sets `sleeping`, looks once more, and sleeps on the futex `wake`; who ends a phase counts, then
// looks at `sleeping`. All four are sequentially consistent: one of the two sees the other. Messages (post, send) are
// in coll_local_p2p.c.
#include "coll_local.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SMALL = 4096, PAUSES = 50, YIELD_NS = 100000 };

// ---- waking

static void futex_wake(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

void local_wake(Local *r)
{
    if (!atomic_load(&r->sleeping) || !atomic_exchange(&r->sleeping, 0)) return;
    atomic_fetch_add(&r->wake, 1);
    futex_wake(&r->wake);
}

// This rank has done its share of a phase; the last one wakes the others.
static void add_phase(Local *r, Counter *counter, uint32_t target, const uint32_t *ranks, uint32_t k)
{
    if (atomic_fetch_add(&counter->n, 1) + 1 != target) return;
    for (uint32_t i = 0; i < k; i++)
        if (ranks[i] != r->coll.rank) local_wake(r->world->locals[ranks[i]]);
}

static bool reached(Counter *counter, uint32_t target)
{
    return (int32_t)(atomic_load(&counter->n) - target) >= 0;
}

// ---- collectives

static const char *input(const Request *q, uint32_t member, uint32_t part)
{
    const Slot *s = q->slot;
    if (!s->small) return s->parts[member][part].in;
    return s->stage + ((q->round & 1) * s->k + member) * s->stage_bytes + s->stage_at[part];
}

static void reduce(const Local *r, const Request *q)
{
    const Slot *s = q->slot;
    const char **in = r->inputs;
    const Plan *p = r->coll.plan;
    CollWalk from = s->small ? coll_taken_alone(p, q->what, s->k, q->me) : coll_taken(p, q->what, s->k, q->me);
    CollWalk to = s->small ? coll_given_alone(p, q->what, s->k, q->me) : coll_given(p, q->what, s->k, q->me);
    CollReducer f = coll_reducer(q->what);
    for (CollRun a, b; coll_next(&from, &a) && coll_next(&to, &b);) {
        for (uint32_t j = 0; j < s->k; j++) in[j] = input(q, j, a.part) + a.offset;
        f(q->parts[b.part].out + b.offset, in, s->k, a.bytes / from.item);
    }
}

// What `member` gives: its reduced share, or its input (which it may have written in place, as this member has).
static void copy_from(const Local *r, const Request *q, uint32_t member)
{
    const Slot *s = q->slot;
    const Plan *p = r->coll.plan;
    CollWalk to = coll_given(p, q->what, s->k, member), from = to;
    bool gather = q->what->kind == COLL_ALL_GATHER;
    if (gather) from = coll_taken(p, q->what, s->k, member);
    for (CollRun a, b; coll_next(&from, &a) && coll_next(&to, &b);) {
        const char *source = (gather ? input(q, member, a.part) : s->parts[member][a.part].out) + a.offset;
        char *target = q->parts[b.part].out + b.offset;
        if (source != target) memcpy(target, source, a.bytes);
    }
}

static void copy_all(const Local *r, const Request *q)
{
    bool gather = q->what->kind == COLL_ALL_GATHER;
    for (uint32_t i = gather ? 0 : 1; i < q->slot->k; i++) copy_from(r, q, (q->me + i) % q->slot->k);
}

static void end_phase(Local *r, Request *q, Phase phase)
{
    Slot *s = q->slot;
    q->phase = phase;
    add_phase(r, &s->phase[phase], q->round * s->k, s->ranks, s->k);
}

// After the phase that all have ended: this member's part of the next one, or true: the collective is over.
static bool next_phase(Local *r, Request *q)
{
    PlanCollKind kind = (PlanCollKind)q->what->kind;
    if (q->phase == COPIED || (q->phase == REDUCED && kind == COLL_REDUCE_SCATTER)) return true;
    bool reduces = kind != COLL_ALL_GATHER && q->phase == ARRIVED;
    reduces ? reduce(r, q) : copy_all(r, q);
    if (q->slot->small) return true;
    end_phase(r, q, reduces ? REDUCED : COPIED);
    return false;
}

// Whatever can go on, goes on. True if anything did.
static bool drive(Local *r)
{
    bool moved = false;
    for (uint32_t i = 0; i < r->nactive;) {
        Request *q = &r->requests[r->active[i]];
        bool over = false;
        while (!over && reached(&q->slot->phase[q->phase], q->round * q->slot->k)) {
            moved = true;
            over = next_phase(r, q);
        }
        q->state = over ? DONE : RUNNING;
        if (over)
            r->active[i] = r->active[--r->nactive];
        else
            i++;
    }
    return moved;
}

static CollHandle local_start(Coll *c, const PlanColl *what, const CollPart *parts)
{
    Local *r = (Local *)c;
    CollHandle h = coll_index(c, what);
    Request *q = &r->requests[h];
    Slot *s = q->slot;
    if (q->state != IDLE) bug("collective %u is started a second time before its wait", h);
    coll_count_start(c, what);
    q->state = DONE;
    if (!s) { // a group of one
        coll_one_member(c->plan, what, parts);
        return h;
    }
    q->what = what;
    q->parts = parts;
    q->round++;
    if (s->small)
        for (uint32_t i = 0; i < what->nparts; i++)
            memcpy((char *)(uintptr_t)input(q, q->me, i), parts[i].in,
                   coll_part_bytes(what, &c->plan->parts[what->first_part + i], s->k));
    else
        s->parts[q->me] = parts;
    q->state = RUNNING;
    r->active[r->nactive++] = h;
    end_phase(r, q, ARRIVED);
    drive(r);
    return h;
}

// ---- waiting

static bool aborted(const Local *r)
{
    return atomic_load(&r->world->aborted);
}

// What a rank waits for: an operation, or a round of all ranks.
static bool ready(Local *r, CollHandle h)
{
    if (h == r->coll.handles) return reached(&r->world->all, r->round * r->coll.ranks);
    uint32_t ncolls = (uint32_t)r->coll.plan->count[PLAN_COLLS];
    return h < ncolls ? r->requests[h].state != RUNNING : atomic_load(&r->messages[h - ncolls].done);
}

static void sleep_until_woken(Local *r, CollHandle h)
{
    unsigned seen = atomic_load(&r->wake);
    atomic_store(&r->sleeping, 1);
    if (!aborted(r) && !drive(r) && !ready(r, h)) syscall(SYS_futex, &r->wake, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    atomic_store(&r->sleeping, 0);
}

static bool wait_for(Local *r, CollHandle h)
{
    uint64_t since = 0;
    for (int pauses = 0; !ready(r, h);) {
        if (aborted(r)) return false;
        if (drive(r)) {
            pauses = 0, since = 0;
        } else if (pauses < r->world->pauses) {
            pauses++;
            coll_pause();
        } else if (!since || coll_ns() - since < YIELD_NS) {
            if (!since) since = coll_ns();
            sched_yield();
        } else {
            sleep_until_woken(r, h);
        }
    }
    return !aborted(r);
}

static bool local_wait(Coll *c, CollHandle h)
{
    Local *r = (Local *)c;
    uint32_t ncolls = (uint32_t)c->plan->count[PLAN_COLLS];
    if (h >= c->handles) bug("handle %u of %u", h, c->handles);
    if (h < ncolls && r->requests[h].state == IDLE) bug("collective %u is awaited without a start", h);
    if (!wait_for(r, h)) return false;
    if (h < ncolls)
        r->requests[h].state = IDLE;
    else
        local_release(r, &r->messages[h - ncolls]);
    return true;
}

static void local_progress(Coll *c)
{
    drive((Local *)c);
}

// Values of two rounds are kept: a rank may be one round ahead of the slowest reader, never two.
static bool local_max(Coll *c, int64_t *value)
{
    Local *r = (Local *)c;
    World *w = r->world;
    uint32_t round = ++r->round;
    r->value[round & 1] = *value;
    add_phase(r, &w->all, round * w->ranks, w->everyone, w->ranks);
    if (!wait_for(r, c->handles)) return false;
    for (uint32_t i = 0; i < w->ranks; i++) *value = max_of(*value, w->locals[i]->value[round & 1]);
    return true;
}

static bool local_barrier(Coll *c)
{
    int64_t value = 0;
    return local_max(c, &value);
}

static void local_abort(Coll *c)
{
    World *w = ((Local *)c)->world;
    atomic_store(&w->aborted, true);
    for (uint32_t i = 0; i < w->ranks; i++) {
        atomic_fetch_add(&w->locals[i]->wake, 1);
        futex_wake(&w->locals[i]->wake);
    }
}

// ---- opening

static void *lines(Arena *a, size_t n) // memory that shares no cache line
{
    char *p = arena_alloc(a, n + 2 * LOCAL_LINE);
    return p + (LOCAL_LINE - (uintptr_t)p % LOCAL_LINE);
}

static Slot *new_slot(World *w, const PlanColl *what, const uint32_t *ranks, uint32_t k)
{
    const Plan *p = w->plan;
    Slot *s = lines(&w->memory, sizeof *s);
    s->k = k;
    s->ranks = ranks;
    s->small = coll_input_bytes(p, what, k) <= SMALL && what->nparts <= SMALL / 64;
    if (!s->small) {
        s->parts = arena_new(&w->memory, const CollPart *, k);
        return s;
    }
    s->stage_at = arena_new(&w->memory, uint32_t, what->nparts + 1);
    for (uint32_t i = 0; i < what->nparts; i++) {
        s->stage_at[i] = (uint32_t)s->stage_bytes;
        s->stage_bytes += (coll_part_bytes(what, &p->parts[what->first_part + i], k) + 15) / 16 * 16;
    }
    s->stage_bytes = (s->stage_bytes + LOCAL_LINE - 1) / LOCAL_LINE * LOCAL_LINE;
    s->stage = lines(&w->memory, 2 * k * s->stage_bytes);
    return s;
}

// Members of a group find the slots that its first member, opened before, has made.
static void open_group(Local *r, uint32_t g)
{
    World *w = r->world;
    const Plan *p = w->plan;
    uint32_t *ranks = arena_new(&w->memory, uint32_t, w->ranks), me = 0;
    uint32_t k = plan_group(p, g, r->coll.rank, ranks, &me);
    if (k < 2) return;
    for (uint64_t c = 0; c < p->count[PLAN_COLLS]; c++) {
        Request *q = &r->requests[c];
        if (p->colls[c].group != g) continue;
        q->me = me;
        q->slot = me ? w->locals[ranks[0]]->requests[c].slot : new_slot(w, &p->colls[c], ranks, k);
    }
}

static void local_close(Coll *c)
{
    Local *r = (Local *)c;
    World *w = r->world;
    coll_counts_close(c);
    pthread_mutex_destroy(&r->lock);
    if (atomic_fetch_add(&w->closed, 1) + 1 < w->ranks) return;
    Coll **colls = w->colls;
    Arena memory = w->memory; // holds w, too
    free(colls);
    arena_free(&memory);
}

static Local *open_rank(World *w, uint32_t rank)
{
    const Plan *p = w->plan;
    uint32_t ncolls = (uint32_t)p->count[PLAN_COLLS], nmessages = coll_most_messages(p);
    Local *r = lines(&w->memory, sizeof *r);
    r->coll = (Coll){.name = "local",
                     .plan = p,
                     .rank = rank,
                     .ranks = w->ranks,
                     .handles = ncolls + nmessages,
                     .start = local_start,
                     .post = local_post,
                     .send = local_send,
                     .wait = local_wait,
                     .progress = local_progress,
                     .barrier = local_barrier,
                     .max = local_max,
                     .abort = local_abort,
                     .report = coll_counts_print,
                     .close = local_close};
    coll_counts_open(&r->coll);
    r->world = w;
    pthread_mutex_init(&r->lock, NULL);
    r->requests = lines(&w->memory, (ncolls + 1) * sizeof *r->requests);
    r->active = lines(&w->memory, (ncolls + 1) * sizeof *r->active);
    r->inputs = lines(&w->memory, w->ranks * sizeof *r->inputs);
    r->messages = lines(&w->memory, nmessages * sizeof *r->messages);
    for (uint32_t i = nmessages; i-- > 0;) {
        r->messages[i] = (Message){.owner = r, .handle = ncolls + i, .next = r->unused};
        r->unused = &r->messages[i];
    }
    return r;
}

Coll **coll_local(const Plan *p, uint32_t ranks)
{
    if (ranks != plan_ranks(p)) bug("%u local ranks for a plan of %u", ranks, plan_ranks(p));
    Arena memory = {0};
    World *w = lines(&memory, sizeof *w);
    w->memory = memory;
    w->plan = p;
    w->ranks = ranks;
    w->pauses = (long)ranks <= sysconf(_SC_NPROCESSORS_ONLN) ? PAUSES : 0;
    w->colls = xcalloc(ranks, sizeof(Coll *));
    w->locals = arena_new(&w->memory, Local *, ranks);
    w->everyone = arena_new(&w->memory, uint32_t, ranks);
    for (uint32_t i = 0; i < ranks; i++) {
        w->everyone[i] = i;
        w->locals[i] = open_rank(w, i);
        w->colls[i] = &w->locals[i]->coll;
        for (uint32_t g = 0; g < p->count[PLAN_GROUPS]; g++) open_group(w->locals[i], g);
    }
    return w->colls;
}
