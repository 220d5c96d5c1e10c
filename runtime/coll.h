// coll.h: what moves data between ranks: a table of functions, as dev.h is for computing.
//
//   self   one rank: nothing to move
//   local  ranks are threads of one process; members read each other's buffers
//   mpi    a process a rank (libmpi is loaded when asked for)
//   null   counts and moves nothing
//
// A Coll belongs to one rank. Operations are started and awaited; between the two their buffers belong to them. All members
// of a group start the same collectives on it in the same order. Reductions are all-to-all, then a sum in rank order, then
// all-gather, in every transport: the same bits, and reduce-scatter + all-gather = all-reduce.
//
// A collective of the plan is in flight at most once a rank: it is awaited before it is started again.
//
// Waiting never spins for long: a short pause, some sched_yield, then sleep (futex), for ranks may outnumber cores.
// Failure: abort() makes every rank's wait return false within a second; the first error is the one shown. Peers may
// still be reading a rank's buffers then: they are freed after all ranks' threads have ended.
#pragma once
#include "plan.h"

typedef struct Coll Coll;
typedef struct { char *in, *out; uint64_t outer, inner; } CollPart;  // see PlanColl
typedef uint32_t CollHandle;
// What a rank has started; every transport counts. Bytes of a collective follow from the plan.
typedef struct { uint64_t *started, sends, sent_bytes, posts, posted_bytes; } CollCounts;  // started: by collective of the plan
struct Coll {
    const char *name;
    const Plan *plan;
    uint32_t rank, ranks;
    uint32_t handles;  // every handle is below it
    CollCounts *counts;
    // Collective c of the plan (kind, reduce, dtype, group from it) on these parts, kept by the caller until the wait.
    CollHandle (*start)(Coll *c, const PlanColl *what, const CollPart *parts);
    // Point to point, matched by (peer, tag) in order. post offers a landing buffer; send may block until it is posted.
    CollHandle (*post)(Coll *c, uint32_t peer, uint32_t tag, void *to, uint64_t bytes);
    CollHandle (*send)(Coll *c, uint32_t peer, uint32_t tag, const void *from, uint64_t bytes);
    bool (*wait)(Coll *c, CollHandle h);  // false: the run is being aborted
    void (*progress)(Coll *c);            // moves what can be moved without waiting; called between instructions
    bool (*barrier)(Coll *c);
    // For the host's own needs (setup, stop requests, errors): maximum over all ranks.
    bool (*max)(Coll *c, int64_t *value);
    void (*abort)(Coll *c);               // any thread, also from a signal's aftermath: ends everybody's waits
    void (*report)(const Coll *c, FILE *out);  // counts and bytes by group and kind
    void (*close)(Coll *c);
};

Coll *coll_self(const Plan *p);
// ranks Colls that share memory, one for each thread; ranks must equal plan_ranks(p). The last close frees the array, too.
Coll **coll_local(const Plan *p, uint32_t ranks);
// Joins the launcher's world. On failure NULL and one sentence (libmpi missing; N processes where the plan has M ranks).
bool coll_mpi_launched(void);  // is this process one of an MPI launcher's? (OMPI_COMM_WORLD_SIZE, PMI_SIZE, PMIX_RANK ...)
Coll *coll_mpi(const Plan *p, char *message, size_t message_size);
Coll *coll_null(const Plan *p, uint32_t rank);
// The table of report(): operations and bytes by group, kind and reason, as far as `counts` has any.
void coll_counts_print(const Coll *c, FILE *out);
// For tests: c, with every operation ready no sooner than `seconds` after its start; counts them. Of n >= 1 such delays
// every step takes the next. PICO_DELAY_US in picorun.
Coll *coll_delayed(Coll *c, const double *seconds, size_t n);
