// coll_reduce.h: what the transports share: which bytes of a collective belong to which member, sums in rank order,
// counting. Internal to coll_*.c.
#pragma once
#include "coll.h"

// out[i] = in[0][i] op in[1][i] op ..., n elements, k >= 1. out may be one of the inputs.
typedef void (*CollReducer)(char *out, const char *const *in, uint32_t k, size_t n);
CollReducer coll_reducer(const PlanColl *what);  // bug() if the dtype cannot be reduced

// The runs of contiguous bytes, in order, of one member's piece of a collective.
typedef struct { uint32_t part; uint64_t offset, bytes; } CollRun;
typedef struct {
    const PlanPart *parts;
    uint32_t nparts, item, k, member;
    enum { WALK_RANGE, WALK_SHARE, WALK_WHOLE } how;
    uint32_t part;               // the next run is in this part,
    uint64_t o, base, low, high; // at this index of outer; RANGE: elements before it, and what the range is
} CollWalk;
// What `member` takes from every member's input: its share; ALL_GATHER: all of it.
CollWalk coll_taken(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member);
// Where what `member` gives lies in the output of the others; REDUCE_SCATTER: all of its own output.
CollWalk coll_given(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member);
// All of an ALL_REDUCE; otherwise as coll_given.
CollWalk coll_given_alone(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member);
CollWalk coll_taken_alone(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member);
bool coll_next(CollWalk *w, CollRun *run);
uint64_t coll_walk_bytes(CollWalk w);

// bytes of one part's `in`, of all of them, and of the larger side ([outer][k][inner], what reports show)
uint64_t coll_part_bytes(const PlanColl *what, const PlanPart *part, uint32_t k);
uint64_t coll_input_bytes(const Plan *p, const PlanColl *what, uint32_t k);
uint64_t coll_whole_bytes(const Plan *p, const PlanColl *what);
void coll_one_member(const Plan *p, const PlanColl *what, const CollPart *parts);  // a group of one: in to out

// Most posts and sends of a rank that the plan has in flight.
uint32_t coll_most_messages(const Plan *p);
uint64_t coll_ns(void);  // a clock that only goes forward

void coll_group_name(const Plan *p, const PlanGroup *g, Buf *b);  // "cp x dp", "pp of stages 0,3"
void coll_counts_open(Coll *c);
void coll_counts_close(Coll *c);
static inline uint32_t coll_index(const Coll *c, const PlanColl *what) { return (uint32_t)(what - c->plan->colls); }
static inline void coll_count_start(Coll *c, const PlanColl *what) { c->counts->started[coll_index(c, what)]++; }
static inline void coll_count_post(Coll *c, uint64_t bytes) { c->counts->posts++, c->counts->posted_bytes += bytes; }
static inline void coll_count_send(Coll *c, uint64_t bytes) { c->counts->sends++, c->counts->sent_bytes += bytes; }

static inline void coll_pause(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}
