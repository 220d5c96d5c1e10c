// coll_local.h: the state that ranks of one process share (coll_local.c, coll_local_p2p.c; see there).
#pragma once
#include "coll_reduce.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define LOCAL_LINE 64
typedef struct Local Local;
typedef struct { _Alignas(LOCAL_LINE) atomic_uint n; } Counter;
typedef enum { ARRIVED, REDUCED, COPIED, PHASES } Phase;

typedef struct {              // one collective, one set of ranks
    Counter phase[PHASES];
    uint32_t k;
    bool small;
    const uint32_t *ranks;    // [k]
    const CollPart **parts;   // [k] published by the members; large only
    char *stage;              // [round & 1][k][stage_bytes]; small only, and so on
    uint64_t stage_bytes;
    uint32_t *stage_at;       // [part]
} Slot;

typedef struct {              // one rank's side of a collective
    Slot *slot;               // NULL: a group of one, or not a member
    const PlanColl *what;
    const CollPart *parts;
    uint32_t me, round;
    Phase phase;              // that this rank has ended
    enum { IDLE, RUNNING, DONE } state;  // DONE: until its wait
} Request;

typedef struct Message {      // a post or a send
    Local *owner;
    uint32_t peer, tag;
    CollHandle handle;
    uint64_t bytes;
    void *to;                 // post
    const void *from;         // send
    atomic_bool done;
    struct Message *next;     // in a queue, or among the unused
} Message;

typedef struct {
    Counter all;              // rounds of barrier and max
    const Plan *plan;
    uint32_t ranks;
    int pauses;               // looks before the first yield; none when ranks outnumber cores
    atomic_bool aborted;
    atomic_uint closed;
    Local **locals;
    Coll **colls;
    uint32_t *everyone;
    Arena memory;
} World;

struct Local {
    Coll coll;
    World *world;
    Request *requests;        // by collective of the plan
    uint32_t *active, nactive;
    const char **inputs;      // [ranks] for reducing
    uint32_t round;           // of barrier and max
    int64_t value[2];         // of max, by round & 1
    Message *messages, *unused;
    _Alignas(LOCAL_LINE) atomic_uint wake;  // futex
    atomic_int sleeping;
    _Alignas(LOCAL_LINE) pthread_mutex_t lock;  // of the two queues: what others sent here and this rank posted, unmatched
    Message *sends, *posts;
};

void local_wake(Local *r);
CollHandle local_post(Coll *c, uint32_t peer, uint32_t tag, void *to, uint64_t bytes);
CollHandle local_send(Coll *c, uint32_t peer, uint32_t tag, const void *from, uint64_t bytes);
void local_release(Local *r, Message *m);
