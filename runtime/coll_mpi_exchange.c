// coll_mpi_exchange.c: collectives as messages between members.
//
//   SHARES   every member sends each other one that one's share of its input, and reduces its own in rank order
//   RESULTS  every member sends its reduced share (ALL_GATHER: its input) to all others
//
// A phase starts when the one before is over, sends included: RESULTS of a collective in place are received where
// SHARES were sent from. A piece of one run travels from and to where it lies, others are packed. Messages of one
// collective carry its number as the tag; a peer may be a round ahead, but messages of one sender and tag arrive in
// order.
//
// Staging comes from a pool that is as large as the plan's program needs. Should it be full, a collective queues until
// older ones are over; strictly in the order of starting, which is the order in which blocking collectives could not
// deadlock.
#include "coll_mpi.h"

enum { ALIGN = 64, POOL_SMALL = 64 << 20 };

// ---- staging

static bool overlaps(const MpiColl *m, uint64_t at, uint64_t bytes, uint64_t *behind)
{
    for (uint32_t i = 0; i < m->nactive; i++) {
        const Exchange *e = &m->exchanges[m->active[i]];
        if (e->state == QUEUED || !e->stage_bytes) continue;
        if (at >= e->stage_at + e->stage_bytes || e->stage_at >= at + bytes) continue;
        *behind = e->stage_at + e->stage_bytes;
        return true;
    }
    return false;
}

static bool find_staging(MpiColl *m, Exchange *e)
{
    uint64_t at = 0;
    while (overlaps(m, at, e->stage_bytes, &at)) {
    }
    if (at + e->stage_bytes > m->pool_bytes) return false;
    e->stage_at = at;
    e->stage = m->pool + at;
    return true;
}

static char *received(const Exchange *e, uint32_t member)
{
    return e->stage + member * e->area;
}
static char *to_send(const Exchange *e, uint32_t member)
{
    return e->stage + (e->k + member) * e->area;
}

// ---- pieces

// The piece as contiguous bytes: where it lies, or packed into `room`.
static const char *packed(const CollPart *parts, bool from_output, CollWalk w, char *room, bool one_run,
                          uint64_t *bytes)
{
    char *at = room;
    *bytes = 0;
    for (CollRun run; coll_next(&w, &run);) {
        const char *source = (from_output ? parts[run.part].out : parts[run.part].in) + run.offset;
        *bytes += run.bytes;
        if (one_run) return source;
        memcpy(at, source, run.bytes);
        at += run.bytes;
    }
    return room;
}

static void unpack(const CollPart *parts, CollWalk w, const char *from)
{
    for (CollRun run; coll_next(&w, &run); from += run.bytes) memcpy(parts[run.part].out + run.offset, from, run.bytes);
}

// ---- phases

static void start_shares(MpiColl *m, Exchange *e, uint32_t tag)
{
    const Plan *p = m->coll.plan;
    e->state = SHARES;
    e->nrequests = 0;
    uint64_t mine = coll_walk_bytes(coll_taken(p, e->what, e->k, e->me)), bytes;
    for (uint32_t i = 1; i < e->k; i++) {
        uint32_t peer = (e->me + e->k - i) % e->k;
        mpi_irecv(m, m->for_colls, e->requests, &e->nrequests, received(e, peer), mine, e->ranks[peer], tag);
    }
    for (uint32_t i = 1; i < e->k; i++) {
        uint32_t peer = (e->me + i) % e->k;
        const char *from = packed(e->parts, false, coll_taken(p, e->what, e->k, peer),
                                  e->one_run ? NULL : to_send(e, peer), e->one_run, &bytes);
        mpi_isend(m, m->for_colls, e->requests, &e->nrequests, from, bytes, e->ranks[peer], tag);
    }
}

static void reduce(MpiColl *m, const Exchange *e)
{
    const Plan *p = m->coll.plan;
    const char **in = m->inputs;
    CollWalk from = coll_taken(p, e->what, e->k, e->me), to = coll_given(p, e->what, e->k, e->me);
    CollReducer f = coll_reducer(e->what);
    uint64_t at = 0;
    for (CollRun a, b; coll_next(&from, &a) && coll_next(&to, &b); at += a.bytes) {
        for (uint32_t j = 0; j < e->k; j++) in[j] = j == e->me ? e->parts[a.part].in + a.offset : received(e, j) + at;
        f(e->parts[b.part].out + b.offset, in, e->k, a.bytes / from.item);
    }
}

static void start_results(MpiColl *m, Exchange *e, uint32_t tag)
{
    const Plan *p = m->coll.plan;
    bool gather = e->what->kind == COLL_ALL_GATHER;
    e->state = RESULTS;
    e->nrequests = 0;
    uint64_t bytes;
    for (uint32_t i = 1; i < e->k; i++) {
        uint32_t peer = (e->me + e->k - i) % e->k;
        CollWalk w = coll_given(p, e->what, e->k, peer);
        char *room = e->one_run ? (char *)(uintptr_t)packed(e->parts, true, w, NULL, true, &bytes) : received(e, peer);
        mpi_irecv(m, m->for_colls, e->requests, &e->nrequests, room, coll_walk_bytes(w), e->ranks[peer], tag);
    }
    CollWalk own = gather ? coll_taken(p, e->what, e->k, e->me) : coll_given(p, e->what, e->k, e->me);
    const char *from = packed(e->parts, !gather, own, e->one_run ? NULL : to_send(e, 0), e->one_run, &bytes);
    for (uint32_t i = 1; i < e->k; i++)
        mpi_isend(m, m->for_colls, e->requests, &e->nrequests, from, bytes, e->ranks[(e->me + i) % e->k], tag);
}

static void copy_own_input(MpiColl *m, const Exchange *e)
{
    const Plan *p = m->coll.plan;
    CollWalk from = coll_taken(p, e->what, e->k, e->me), to = coll_given(p, e->what, e->k, e->me);
    for (CollRun a, b; coll_next(&from, &a) && coll_next(&to, &b);) {
        char *target = e->parts[b.part].out + b.offset, *source = e->parts[a.part].in + a.offset;
        if (target != source) memcpy(target, source, a.bytes);
    }
}

// The phase's messages are over: what follows.
static void next_phase(MpiColl *m, Exchange *e, uint32_t tag)
{
    const Plan *p = m->coll.plan;
    if (e->state == SHARES) {
        reduce(m, e);
        if (e->what->kind == COLL_ALL_REDUCE)
            start_results(m, e, tag + 1);
        else
            e->state = DONE;
        return;
    }
    for (uint32_t i = 0; i < e->k && !e->one_run; i++)
        if (i != e->me) unpack(e->parts, coll_given(p, e->what, e->k, i), received(e, i));
    e->state = DONE;
}

static void begin(MpiColl *m, Exchange *e, uint32_t tag)
{
    if (e->what->kind != COLL_ALL_GATHER) {
        start_shares(m, e, tag);
        return;
    }
    copy_own_input(m, e);
    start_results(m, e, tag + 1);
}

// Whatever can go on, goes on. True if anything did.
bool exchange_drive(MpiColl *m)
{
    bool moved = false, full = false;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < m->nactive; i++) {
        Exchange *e = &m->exchanges[m->active[i]];
        uint32_t tag = 2 * m->active[i];
        if (e->state == QUEUED && !full) {
            full = !find_staging(m, e);
            if (!full) begin(m, e, tag);
            moved |= !full;
        }
        while ((e->state == SHARES || e->state == RESULTS) && mpi_all_over(m, e->requests, &e->nrequests)) {
            next_phase(m, e, tag);
            moved = true;
        }
    }
    for (uint32_t i = 0; i < m->nactive;
         i++) // in order, and after the loop, which looks at all active ones for staging
        if (m->exchanges[m->active[i]].state != DONE) m->active[kept++] = m->active[i];
    m->nactive = kept;
    return moved;
}

void exchange_start(MpiColl *m, CollHandle h, const CollPart *parts)
{
    Exchange *e = &m->exchanges[h];
    if (e->state != IDLE) bug("collective %u is started a second time before its wait", h);
    if (!e->k) bug("rank %u is not in the group of collective %u", m->coll.rank, h);
    e->state = DONE;
    e->parts = parts;
    if (e->k == 1) {
        coll_one_member(m->coll.plan, e->what, parts);
        return;
    }
    e->state = QUEUED;
    m->active[m->nactive++] = h;
    exchange_drive(m);
}

// ---- sizes

static void open_exchange(MpiColl *m, Exchange *e)
{
    const Plan *p = m->coll.plan;
    const PlanPart *first = &p->parts[e->what->first_part];
    if (e->k < 2) return;
    uint64_t area = 0;
    for (uint32_t i = 0; i < e->k; i++) {
        area = max_of(area, coll_walk_bytes(coll_taken(p, e->what, e->k, i)));
        area = max_of(area, coll_walk_bytes(coll_given(p, e->what, e->k, i)));
    }
    e->area = (area + ALIGN - 1) / ALIGN * ALIGN;
    e->one_run = e->what->nparts == 1 && (e->what->kind == COLL_ALL_REDUCE || first->outer == 1);
    bool receives = e->what->kind != COLL_ALL_GATHER || !e->one_run;
    e->stage_bytes = e->area * e->k * ((receives ? 1u : 0u) + (e->one_run ? 0u : 1u));
    e->requests = arena_new(&m->memory, MpiObject, 2 * (e->k - 1) * mpi_chunks(area));
}

// Most staging that the program of any stage has in use at once, in the order of its instructions.
static uint64_t most_staging(const MpiColl *m)
{
    const Plan *p = m->coll.plan;
    bool *live = xcalloc(p->count[PLAN_COLLS] + 1, sizeof *live);
    uint64_t now = 0, most = 0;
    for (uint64_t i = 0; i < p->count[PLAN_INSTRS]; i++) {
        const PlanInstr *in = &p->instrs[i];
        bool starts = in->kind == INSTR_START;
        if ((!starts && in->kind != INSTR_WAIT) || live[in->index] == starts) continue;
        live[in->index] = starts;
        uint64_t bytes = m->exchanges[in->index].stage_bytes;
        now = starts ? now + bytes : now - bytes;
        most = max_of(most, now);
    }
    free(live);
    return most;
}

void exchange_open(MpiColl *m)
{
    const Plan *p = m->coll.plan;
    uint64_t n = p->count[PLAN_COLLS], largest = 0, sum = 0;
    const uint32_t **ranks = xcalloc(p->count[PLAN_GROUPS] + 1, sizeof *ranks);
    m->exchanges = arena_new(&m->memory, Exchange, n + 1);
    m->active = arena_new(&m->memory, CollHandle, n + 1);
    for (uint64_t c = 0; c < n; c++) {
        Exchange *e = &m->exchanges[c];
        e->what = &p->colls[c];
        uint32_t g = e->what->group;
        e->k = plan_group(p, g, m->coll.rank, NULL, &e->me);
        if (!ranks[g]) {
            uint32_t *all = arena_new(&m->memory, uint32_t, m->coll.ranks);
            plan_group(p, g, m->coll.rank, all, &e->me);
            ranks[g] = all;
        }
        e->ranks = ranks[g];
        open_exchange(m, e);
        largest = max_of(largest, e->stage_bytes);
        sum += e->stage_bytes;
    }
    free(ranks);
    m->pool_bytes = max_of(largest, min_of(sum, max_of(most_staging(m), (uint64_t)POOL_SMALL)));
    char *pool = arena_alloc(&m->memory, m->pool_bytes + ALIGN);
    m->pool = pool + (ALIGN - (uintptr_t)pool % ALIGN);
}
