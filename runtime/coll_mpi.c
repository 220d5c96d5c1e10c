// coll_mpi.c: a process a rank. Everything is made of nonblocking sends and receives between ranks, in three
// communicators: collectives (coll_mpi_exchange.c), messages between stages, and what concerns all ranks.
//
// Only the thread that opened it calls MPI (MPI_THREAD_FUNNELED); abort() from another thread is noted and done by the
// owner at its next call. Waits look often at first, then yield, then sleep longer and longer: ranks may outnumber
// cores, and nothing wakes a process that waits for a message.
//
// Traps: counts in MPI are int, so long messages go in chunks, all with one tag, which keeps their order. libmpi prints
// a banner of its own at MPI_Abort; the sentence that explains comes first.
#include "coll_mpi.h"
#include <sched.h>
#include <time.h>
#include <unistd.h>

enum { PAUSES = 200, YIELD_NS = 100000, BURST = 32, SLEEP_FIRST_NS = 20000, SLEEP_MOST_NS = 200000 };
uint64_t coll_mpi_chunk = UINT64_C(1) << 30;

uint64_t mpi_chunks(uint64_t bytes)
{
    return (bytes + coll_mpi_chunk - 1) / coll_mpi_chunk;
}

void mpi_check(const MpiColl *m, int code)
{
    char text[MPI_ERROR_TEXT] = "unknown error";
    int n = 0;
    if (!code) return;
    m->mpi.Error_string(code, text, &n);
    fatal("rank %u: MPI: %s", m->coll.rank, text);
}

void mpi_isend(MpiColl *m, MpiObject comm, MpiObject *requests, int *n, const char *from, uint64_t bytes, uint32_t to,
               uint32_t tag)
{
    for (uint64_t at = 0; at < bytes; at += coll_mpi_chunk)
        mpi_check(m, m->mpi.Isend(from + at, (int)min_of(bytes - at, coll_mpi_chunk), m->mpi.byte, (int)to, (int)tag,
                                  comm, &requests[(*n)++]));
}

void mpi_irecv(MpiColl *m, MpiObject comm, MpiObject *requests, int *n, char *to, uint64_t bytes, uint32_t from,
               uint32_t tag)
{
    for (uint64_t at = 0; at < bytes; at += coll_mpi_chunk)
        mpi_check(m, m->mpi.Irecv(to + at, (int)min_of(bytes - at, coll_mpi_chunk), m->mpi.byte, (int)from, (int)tag,
                                  comm, &requests[(*n)++]));
}

bool mpi_all_over(MpiColl *m, MpiObject *requests, int *n)
{
    int over = 1;
    if (*n) mpi_check(m, m->mpi.Testall(*n, requests, &over, NULL));
    if (over) *n = 0;
    return over;
}

// ---- waiting

static bool aborted(MpiColl *m)
{
    if (!atomic_load(&m->aborted)) return false;
    if (pthread_equal(pthread_self(), m->owner)) m->mpi.Abort(m->mpi.comm_world, 1);
    return true;
}

static bool drive(MpiColl *m)
{
    bool moved = exchange_drive(m);
    for (uint32_t i = 0; i < m->nmessages; i++) {
        MpiMessage *message = &m->messages[i];
        if (message->active && message->nrequests) moved |= mpi_all_over(m, message->requests, &message->nrequests);
    }
    return moved;
}

static bool ready(MpiColl *m, CollHandle h)
{
    uint32_t ncolls = (uint32_t)m->coll.plan->count[PLAN_COLLS];
    if (h < ncolls) return m->exchanges[h].state == DONE;
    if (h < m->coll.handles) return !m->messages[h - ncolls].nrequests;
    int over = 0;
    mpi_check(m, m->mpi.Testall(1, &m->all, &over, NULL));
    return over;
}

static bool wait_for(MpiColl *m, CollHandle h)
{
    uint64_t since = 0;
    long sleep_ns = SLEEP_FIRST_NS;
    int burst = 0;
    for (int pauses = 0; !ready(m, h);) {
        if (aborted(m)) return false;
        if (drive(m)) {
            pauses = 0, since = 0, sleep_ns = SLEEP_FIRST_NS;
        } else if (pauses < PAUSES) {
            pauses++;
            coll_pause();
        } else if (!since || coll_ns() - since < YIELD_NS) {
            if (!since) since = coll_ns();
            sched_yield();
        } else if (burst++ < BURST) { // a large message moves on by a piece with each look
            coll_pause();
        } else {
            burst = 0;
            struct timespec nap = {0, sleep_ns};
            nanosleep(&nap, NULL);
            sleep_ns = min_of(sleep_ns * 2, (long)SLEEP_MOST_NS);
        }
    }
    return !aborted(m);
}

static bool mpi_wait(Coll *c, CollHandle h)
{
    MpiColl *m = (MpiColl *)c;
    uint32_t ncolls = (uint32_t)c->plan->count[PLAN_COLLS];
    if (h >= c->handles) bug("handle %u of %u", h, c->handles);
    if (h < ncolls && m->exchanges[h].state == IDLE) bug("collective %u is awaited without a start", h);
    if (!wait_for(m, h)) return false;
    if (h < ncolls) {
        m->exchanges[h].state = IDLE;
        return true;
    }
    MpiMessage *message = &m->messages[h - ncolls];
    message->active = false;
    message->next = m->unused;
    m->unused = message;
    return true;
}

static void mpi_progress(Coll *c)
{
    MpiColl *m = (MpiColl *)c;
    if (!aborted(m)) drive(m);
}

// ---- operations

static CollHandle mpi_start(Coll *c, const PlanColl *what, const CollPart *parts)
{
    coll_count_start(c, what);
    exchange_start((MpiColl *)c, coll_index(c, what), parts);
    return coll_index(c, what);
}

static MpiMessage *new_message(MpiColl *m, uint32_t tag)
{
    MpiMessage *message = m->unused;
    if (!message) bug("more than %u posts and sends are in flight", m->nmessages);
    if (tag > m->tag_limit) bug("transfer %u is beyond MPI's largest tag, %u", tag, m->tag_limit);
    m->unused = message->next;
    message->active = true;
    return message;
}

static CollHandle handle_of(const MpiColl *m, const MpiMessage *message)
{
    return (CollHandle)(m->coll.plan->count[PLAN_COLLS] + (uint64_t)(message - m->messages));
}

static CollHandle mpi_post(Coll *c, uint32_t peer, uint32_t tag, void *to, uint64_t bytes)
{
    MpiColl *m = (MpiColl *)c;
    MpiMessage *message = new_message(m, tag);
    coll_count_post(c, bytes);
    mpi_irecv(m, m->for_messages, message->requests, &message->nrequests, to, bytes, peer, tag);
    return handle_of(m, message);
}

static CollHandle mpi_send(Coll *c, uint32_t peer, uint32_t tag, const void *from, uint64_t bytes)
{
    MpiColl *m = (MpiColl *)c;
    MpiMessage *message = new_message(m, tag);
    coll_count_send(c, bytes);
    mpi_isend(m, m->for_messages, message->requests, &message->nrequests, from, bytes, peer, tag);
    return handle_of(m, message);
}

static bool mpi_max(Coll *c, int64_t *value)
{
    MpiColl *m = (MpiColl *)c;
    int64_t mine = *value, most = 0;
    mpi_check(m, m->mpi.Iallreduce(&mine, &most, 1, m->mpi.int64_t, m->mpi.op_max, m->for_all, &m->all));
    if (!wait_for(m, c->handles)) return false;
    *value = most;
    return true;
}

static bool mpi_barrier(Coll *c)
{
    int64_t value = 0;
    return mpi_max(c, &value);
}

static void mpi_abort(Coll *c)
{
    MpiColl *m = (MpiColl *)c;
    atomic_store(&m->aborted, true);
    fflush(NULL);
    aborted(m);
}

// ---- opening

static void mpi_close(Coll *c)
{
    MpiColl *m = (MpiColl *)c;
    if (!atomic_load(&m->aborted)) {
        MpiObject *comms[] = {&m->for_colls, &m->for_messages, &m->for_all};
        for (size_t i = 0; i < countof(comms); i++) m->mpi.Comm_free(comms[i]);
        m->mpi.Finalize();
    }
    coll_counts_close(c);
    Arena memory = m->memory; // holds m, too
    arena_free(&memory);
}

static void open_messages(MpiColl *m)
{
    const Plan *p = m->coll.plan;
    uint64_t bytes = 1;
    for (uint64_t i = 0; i < p->count[PLAN_TRANSFERS]; i++) bytes = max_of(bytes, p->transfers[i].bytes);
    m->nmessages = coll_most_messages(p);
    m->messages = arena_new(&m->memory, MpiMessage, m->nmessages);
    for (uint32_t i = m->nmessages; i-- > 0;) {
        m->messages[i].requests = arena_new(&m->memory, MpiObject, mpi_chunks(bytes));
        m->messages[i].next = m->unused;
        m->unused = &m->messages[i];
    }
}

static void open_communicators(MpiColl *m)
{
    MpiObject world = m->mpi.comm_world, *comms[] = {&m->for_colls, &m->for_messages, &m->for_all};
    for (size_t i = 0; i < countof(comms); i++) {
        mpi_check(m, m->mpi.Comm_dup(world, comms[i]));
        mpi_check(m, m->mpi.Comm_set_errhandler(*comms[i], m->mpi.errors_return));
    }
    int *limit = NULL, found = 0;
    mpi_check(m, m->mpi.Comm_get_attr(world, MPI_ATTRIBUTE_TAG_UB, &limit, &found));
    m->tag_limit = found ? (uint32_t)*limit : 32767;
    uint64_t most = 2 * m->coll.plan->count[PLAN_COLLS];
    if (most > m->tag_limit)
        fatal("the plan's %llu collectives need more tags than MPI has", (unsigned long long)most / 2);
}

// All processes see it; the first one has the word, and its end makes the launcher end the others.
static void refuse_world(const Mpi *mpi, int rank, int size, uint32_t ranks, char *message, size_t message_size)
{
    snprintf(message, message_size, "the plan has %u ranks, but the MPI launcher started %d process%s", ranks, size,
             size == 1 ? "" : "es");
    mpi->Finalize();
    if (rank) sleep(2);
}

Coll *coll_mpi(const Plan *p, char *message, size_t message_size)
{
    Mpi mpi;
    int already = 0, provided = 0, rank = 0, size = 0;
    if (!mpi_load(&mpi, message, message_size)) return NULL;
    mpi.Initialized(&already);
    if (already) bug("MPI is opened twice");
    if (mpi.Init_thread(NULL, NULL, MPI_FUNNELED, &provided) || provided < MPI_FUNNELED) {
        snprintf(message, message_size, "MPI cannot be started with MPI_THREAD_FUNNELED");
        return NULL;
    }
    mpi.Comm_rank(mpi.comm_world, &rank);
    mpi.Comm_size(mpi.comm_world, &size);
    if ((uint32_t)size != plan_ranks(p)) {
        refuse_world(&mpi, rank, size, plan_ranks(p), message, message_size);
        return NULL;
    }
    Arena memory = {0};
    MpiColl *m = arena_new(&memory, MpiColl, 1);
    m->memory = memory;
    m->mpi = mpi;
    m->owner = pthread_self();
    m->inputs = arena_new(&m->memory, const char *, size);
    m->coll = (Coll){.name = "mpi",
                     .plan = p,
                     .rank = (uint32_t)rank,
                     .ranks = (uint32_t)size,
                     .start = mpi_start,
                     .post = mpi_post,
                     .send = mpi_send,
                     .wait = mpi_wait,
                     .progress = mpi_progress,
                     .barrier = mpi_barrier,
                     .max = mpi_max,
                     .abort = mpi_abort,
                     .report = coll_counts_print,
                     .close = mpi_close};
    coll_counts_open(&m->coll);
    open_communicators(m);
    open_messages(m);
    exchange_open(m);
    m->coll.handles = (uint32_t)p->count[PLAN_COLLS] + m->nmessages;
    return &m->coll;
}
