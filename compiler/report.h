// report.h: what report*.c share: the numbers of a program, collected once and printed as text or JSON.
//
//   report.c        collects what is of a stage; node_flops
//   report_comm.c   collectives, buckets
//   report_text.c   for people
//   report_json.c   for programs
#pragma once
#include "pico.h"

enum { USE_WEIGHTS, USE_COPIES, USE_GRADIENTS, USE_OPTIMIZER, USE_TABLES, USE_OTHER, USES };
extern const char *const use_names[USES];
extern const char *const report_flops_convention;

typedef struct { uint32_t launches, gemms, attentions; uint64_t bytes, flops; } SegmentCost;

// What a collective is there for: the model's forward or backward, a value made again in backward, or the step's end.
typedef enum { PHASE_FORWARD, PHASE_BACKWARD, PHASE_AGAIN, PHASE_STEP, PHASES } Phase;
extern const char *const phase_names[PHASES];

// Equal collectives of one stage. Bytes are those of the whole tensors, as picorun counts them.
typedef struct {
    CommKey key;
    PlanCollKind how;
    Phase phase;
    const char *why;
    uint64_t bytes;                         // of one
    uint64_t per_micro_batch, once, step;   // once: a step; step: all that run in a step
} CommRow;
typedef struct { CommKey key; PlanCollKind how; uint64_t count, bytes; } CommTotal;  // of a step

typedef struct {
    const Graph *g;
    int first[MAX_CHUNKS], last[MAX_CHUNKS];  // layers of each chunk; first > last: none
    bool start, end;                          // has what comes before, after the layers
    uint64_t parameters, use[USES], total;    // elements on one rank; PERSIST by use; bytes of all arenas
    uint64_t *saved;                          // by layer + 1: bytes kept for backward, of a micro-batch
    double flops;                             // a step
    SegmentCost seg[SEG_COUNT];
    uint32_t launches;
    CommRow *comm;                            // vec
} StageCosts;

typedef struct {
    const Program *prog;
    StageCosts *stages;
    uint64_t parameters, tensors;             // of the model
    int64_t ranks, tokens;                    // of a step
    double flops;                             // of a step of one rank of each stage
    PipelineTimes times;                      // FLOPs of F, B, W of a mean chunk
    double bubble;
    CommTotal *totals;                        // vec
} Costs;

// report.c
uint64_t class_bytes(const Graph *g, PlanClass class_);  // all chunks and slots
bool class_is_used(const Graph *g, int class_);
uint64_t class_least(const Graph *g, int class_);        // lower bound of class_bytes
// report_comm.c
uint64_t coll_bytes(const Graph *g, const struct Coll *c);
const char *comm_group_name(const Graph *g, CommKey key, Buf *out);  // "tp", "tp x dp", "pp x dp of stages 0,3"
CommRow *comm_rows(const Graph *g);                                  // vec
CommTotal *comm_totals(const StageCosts *stages, int n);             // vec
const Group *bucket_start(const Graph *g, const struct Bucket *b);   // what begins its reduction; NULL: left out
uint64_t transfer_bytes(const Graph *g, const Transfer *t);
extern const char *const coll_names[3], *const schedule_names[4];
// report_text.c, report_json.c
void report_text(const Costs *c, FILE *out);
void report_json(const Costs *c, const char *path);
