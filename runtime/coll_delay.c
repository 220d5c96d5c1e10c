// coll_delay.c: any transport, made slow: no operation is ready before its start + a delay. What a run still takes as
// long as before with it has hidden that communication. The delay counts from when this rank started the operation;
// while it lasts the transport goes on underneath. Of several delays each step takes the next, so that steps with and
// without can be compared where other programs disturb both: an agreement of all ranks, max(), ends a step.
//
// Traps: counts are the inner transport's. abort() and the loop of wait() meet through the inner wait's answer only,
// so that an abort during a delay is seen at its end.
#include "coll_reduce.h"
#include <time.h>

typedef struct {
    Coll coll;
    Coll *inner;
    uint64_t *delays, rounds;     // delays: vec; rounds: of max(), the first one comes before the first step
    uint64_t *ready;              // by handle, when its wait may return
    uint64_t operations, total, exposed; // exposed: time that waits lasted because of delays alone
} Delay;

static CollHandle started(Delay *d, CollHandle h, uint64_t now)
{
    if (h >= d->inner->handles) bug("handle %u of %u", h, d->inner->handles);
    uint64_t delay = d->delays[(d->rounds ? d->rounds - 1 : 0) % vec_len(d->delays)];
    d->ready[h] = now + delay;
    d->operations++;
    d->total += delay;
    return h;
}

static CollHandle delay_start(Coll *c, const PlanColl *what, const CollPart *parts)
{
    Delay *d = (Delay *)c;
    uint64_t now = coll_ns();
    return started(d, d->inner->start(d->inner, what, parts), now);
}

static CollHandle delay_post(Coll *c, uint32_t peer, uint32_t tag, void *to, uint64_t bytes)
{
    Delay *d = (Delay *)c;
    uint64_t now = coll_ns();
    return started(d, d->inner->post(d->inner, peer, tag, to, bytes), now);
}

static CollHandle delay_send(Coll *c, uint32_t peer, uint32_t tag, const void *from, uint64_t bytes)
{
    Delay *d = (Delay *)c;
    uint64_t now = coll_ns();
    return started(d, d->inner->send(d->inner, peer, tag, from, bytes), now);
}

static bool delay_wait(Coll *c, CollHandle h)
{
    Delay *d = (Delay *)c;
    uint64_t until = d->ready[h];
    if (!d->inner->wait(d->inner, h)) return false;
    uint64_t begun = coll_ns(), now = begun;
    while (now < until) {
        d->inner->progress(d->inner);
        struct timespec nap = {0, (long)min_of(until - now, UINT64_C(20000))};
        nanosleep(&nap, NULL);
        now = coll_ns();
    }
    d->exposed += now - begun;
    return true;
}

static void delay_progress(Coll *c)
{
    ((Delay *)c)->inner->progress(((Delay *)c)->inner);
}
static bool delay_barrier(Coll *c)
{
    return ((Delay *)c)->inner->barrier(((Delay *)c)->inner);
}
static bool delay_max(Coll *c, int64_t *value)
{
    Delay *d = (Delay *)c;
    d->rounds++;
    return d->inner->max(d->inner, value);
}
static void delay_abort(Coll *c)
{
    ((Delay *)c)->inner->abort(((Delay *)c)->inner);
}

static void delay_report(const Coll *c, FILE *out)
{
    const Delay *d = (const Delay *)c;
    d->inner->report(d->inner, out);
    fprintf(out, "delays: %llu operations, %.6f s in total, of which %.6f s were waited for\n",
            (unsigned long long)d->operations, (double)d->total * 1e-9, (double)d->exposed * 1e-9);
}

static void delay_close(Coll *c)
{
    Delay *d = (Delay *)c;
    d->inner->close(d->inner);
    free(d->ready);
    vec_free(d->delays);
    free(d);
}

Coll *coll_delayed(Coll *inner, const double *seconds, size_t n)
{
    Delay *d = xcalloc(1, sizeof *d);
    d->coll = (Coll){.name = "delayed",
                     .plan = inner->plan,
                     .rank = inner->rank,
                     .ranks = inner->ranks,
                     .handles = inner->handles,
                     .counts = inner->counts,
                     .start = delay_start,
                     .post = delay_post,
                     .send = delay_send,
                     .wait = delay_wait,
                     .progress = delay_progress,
                     .barrier = delay_barrier,
                     .max = delay_max,
                     .abort = delay_abort,
                     .report = delay_report,
                     .close = delay_close};
    d->inner = inner;
    for (size_t i = 0; i < n; i++) vec_push(d->delays, (uint64_t)(seconds[i] * 1e9));
    d->ready = xcalloc(inner->handles, sizeof *d->ready);
    return &d->coll;
}
