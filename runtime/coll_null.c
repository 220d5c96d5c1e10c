// coll_null.c: counts and moves nothing: one rank, standing for its stage, runs through its program without peers.
// What collectives and receives would have written is left as it is.
#include "coll_reduce.h"

static CollHandle null_start(Coll *c, const PlanColl *what, const CollPart *parts)
{
    (void)parts;
    coll_count_start(c, what);
    return coll_index(c, what);
}

static CollHandle null_post(Coll *c, uint32_t peer, uint32_t tag, void *to, uint64_t bytes)
{
    (void)peer, (void)tag, (void)to;
    coll_count_post(c, bytes);
    return c->handles - 1;
}

static CollHandle null_send(Coll *c, uint32_t peer, uint32_t tag, const void *from, uint64_t bytes)
{
    (void)peer, (void)tag, (void)from;
    coll_count_send(c, bytes);
    return c->handles - 1;
}

static bool null_wait(Coll *c, CollHandle h)
{
    (void)c, (void)h;
    return true;
}

static bool null_barrier(Coll *c)
{
    (void)c;
    return true;
}

static bool null_max(Coll *c, int64_t *value)
{
    (void)c, (void)value;
    return true;
}

static void null_nothing(Coll *c)
{
    (void)c;
}

static void null_close(Coll *c)
{
    coll_counts_close(c);
    free(c);
}

Coll *coll_null(const Plan *p, uint32_t rank)
{
    Coll *c = xcalloc(1, sizeof *c);
    *c = (Coll){.name = "null",
                .plan = p,
                .rank = rank,
                .ranks = plan_ranks(p),
                .handles = (uint32_t)p->count[PLAN_COLLS] + 1,
                .start = null_start,
                .post = null_post,
                .send = null_send,
                .wait = null_wait,
                .progress = null_nothing,
                .barrier = null_barrier,
                .max = null_max,
                .abort = null_nothing,
                .report = coll_counts_print,
                .close = null_close};
    coll_counts_open(c);
    return c;
}
