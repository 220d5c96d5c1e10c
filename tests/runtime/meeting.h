// meeting.h: for tests: Colls that can only meet (barrier, max), for ranks that are threads or forked processes.
#pragma once
#include "coll.h"
#include <pthread.h>
#include <sys/mman.h>

enum { MEETING_RANKS = 64 };
typedef struct {
    pthread_barrier_t barrier;
    int64_t said[MEETING_RANKS];
} Meeting;
typedef struct {
    Coll coll;
    Meeting *meeting;
} MeetingRank;

static inline bool meeting_barrier(Coll *c)
{
    pthread_barrier_wait(&((MeetingRank *)c)->meeting->barrier);
    return true;
}

static inline bool meeting_max(Coll *c, int64_t *value)
{
    Meeting *m = ((MeetingRank *)c)->meeting;
    m->said[c->rank] = *value;
    meeting_barrier(c);
    for (uint32_t i = 0; i < c->ranks; i++) *value = max_of(*value, m->said[i]);
    return meeting_barrier(c);
}

static inline Meeting *meeting_new(uint32_t ranks)
{
    Meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    if (m == MAP_FAILED || ranks > MEETING_RANKS || pthread_barrierattr_init(&shared)) abort();
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    if (pthread_barrier_init(&m->barrier, &shared, ranks)) abort();
    return m;
}

static inline void meeting_free(Meeting *m)
{
    pthread_barrier_destroy(&m->barrier);
    munmap(m, sizeof *m);
}

static inline MeetingRank meeting_rank(Meeting *m, const Plan *p, uint32_t rank, uint32_t ranks)
{
    Coll c = {.name = "test", .plan = p, .rank = rank, .ranks = ranks, .barrier = meeting_barrier, .max = meeting_max};
    return (MeetingRank){c, m};
}
