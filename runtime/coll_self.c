// coll_self.c: the transport of one rank: a group of one member copies, if not in place, and is done at its start.
#include "coll_reduce.h"

static CollHandle self_start(Coll *c, const PlanColl *what, const CollPart *parts)
{
    coll_count_start(c, what);
    coll_one_member(c->plan, what, parts);
    return coll_index(c, what);
}

static CollHandle self_post(Coll *c, uint32_t peer, uint32_t tag, void *to, uint64_t bytes)
{
    (void)c, (void)to, (void)bytes;
    bug("one rank receives transfer %u from rank %u", tag, peer);
}

static CollHandle self_send(Coll *c, uint32_t peer, uint32_t tag, const void *from, uint64_t bytes)
{
    (void)c, (void)from, (void)bytes;
    bug("one rank sends transfer %u to rank %u", tag, peer);
}

static bool self_wait(Coll *c, CollHandle h)
{
    (void)c, (void)h;
    return true;
}

static bool self_barrier(Coll *c)
{
    (void)c;
    return true;
}

static bool self_max(Coll *c, int64_t *value)
{
    (void)c, (void)value;
    return true;
}

static void self_nothing(Coll *c)
{
    (void)c;
}

static void self_close(Coll *c)
{
    coll_counts_close(c);
    free(c);
}

Coll *coll_self(const Plan *p)
{
    Coll *c = xcalloc(1, sizeof *c);
    *c = (Coll){.name = "self",
                .plan = p,
                .ranks = 1,
                .handles = (uint32_t)p->count[PLAN_COLLS] + 1,
                .start = self_start,
                .post = self_post,
                .send = self_send,
                .wait = self_wait,
                .progress = self_nothing,
                .barrier = self_barrier,
                .max = self_max,
                .abort = self_nothing,
                .report = coll_counts_print,
                .close = self_close};
    coll_counts_open(c);
    return c;
}
