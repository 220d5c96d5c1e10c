// ranks.h: the ranks of a plan that live in this process: threads of it, or the one that an MPI launcher made it.
//
// The calling thread is a rank itself: with more OpenMP threads in a process than cores every parallel region becomes
// slow, and an idle team counts. A failure of any rank ends all; its message is the only one.
#pragma once
#include "coll.h"

typedef struct {
    const Plan *plan;
    Coll **coll;      // of the ranks of this process
    uint32_t local;   // how many these are
    bool launched;    // by MPI: then it is one
    int threads;      // OpenMP threads of each rank
    bool first_here;  // no other process of this host compiles kernels
} Ranks;

uint32_t ranks_launched_as(void);  // rank of this process as the launcher's environment says; 0 without one
// Before anything that can fail: under a launcher, messages of processes come one at a time, the first ends all.
void ranks_begin(void);
// threads: of each rank; 0: as many as there are cores for each. Fatal if the launcher made another number of ranks.
Ranks ranks_open(const Plan *p, int threads);
bool ranks_barrier(const Ranks *r);  // of processes, outside ranks_run
// Calls run(ctx, coll) for each rank of this process, each in a thread of its own, and returns when all have returned.
void ranks_run(const Ranks *r, void (*run)(void *ctx, Coll *c), void *ctx);
void ranks_close(Ranks *r);
