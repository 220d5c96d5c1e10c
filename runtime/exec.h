// exec.h: runs one rank's share of a plan on a device: memory, arguments, segments, schedule, communication.
//
// It knows no ops and no model: buffers, instructions, scalars, named inputs and outputs. All decisions are
// the plan's; all pointers are resolved before the first step, and a step allocates nothing.
#pragma once
#include "coll.h"
#include "dev.h"

typedef struct Exec Exec;
typedef struct {
    bool poison;        // dead memory holds NaN
    bool check_nan;     // look at every result; the first NaN is fatal, with step, micro-batch, buffer, instruction
    const char *trace;  // file for Chrome's and Perfetto's JSON, or NULL; one for all ranks
} ExecOptions;
// Fills the plan's input buffers for one micro-batch of a step.
typedef void ExecLoad(void *ctx, int64_t step, uint32_t micro_batch);

// stage: of plan_stage, that of rank c->rank. All ranks call what follows together, each in a thread or process of its own.
Exec *exec_open(const Plan *stage, Dev *d, Coll *c, const ExecOptions *o);
void exec_init(Exec *e);  // runs segment INIT, once, after parameters and scalars are set
void exec_step(Exec *e, int64_t step, ExecLoad *load, void *ctx);
void *exec_buffer(void *exec, uint32_t id);  // a BufferOf; in a class with slots: of slot 0
bool exec_set(Exec *e, const char *scalar, double value);  // false if the plan has no such scalar
void exec_set_seed(Exec *e, uint64_t seed);
bool exec_output(const Exec *e, const char *name, double *value);  // false if the plan has no such output
uint64_t exec_moved(const Exec *e, uint32_t transfer);  // how often this rank has sent or received it
void exec_close(Exec *e);

uint64_t arena_stride(const PlanArena *a);  // bytes from one slot to the next
uint64_t exec_arena_bytes(const Plan *stage);  // of all arenas with their slots

// ---- exec_view.c: a segment as it runs with certain slots: every pointer in its place
typedef struct {
    const PlanSegment *segment;
    uint16_t slots[SLOT_CLASSES];
    char **arena;         // by arena of the stage: the slot in use
    char **args;          // of the segment's instructions, from `first_arg` on
    uint32_t first_arg;
    CollPart **parts;     // by instruction of the segment: what its START takes; NULL for a segment without one
    bool reads_input;     // an argument is a buffer of PLAN_INPUTS
} View;
View view_open(const Plan *stage, char *const *memory, uint32_t rank, const PlanSegment *s,
               const uint16_t slots[SLOT_CLASSES]);
char *view_arena(const Plan *stage, char *const *memory, uint32_t arena, const uint16_t slots[SLOT_CLASSES]);
void view_close(View *v);

// ---- exec_watch.c: --poison and --check-nan. exec_trace.c: --trace.
typedef struct Poison Poison;
// Fills what is about to live (before) or has died (after) with `byte`: 0xff is NaN in every float type, 0 keeps
// --check-nan alone from seeing what earlier values left. `arena` has the slots in use, by arena.
Poison *poison_new(const Plan *stage, int byte);
void poison_before(const Poison *w, uint32_t instr, char *const *arena);
void poison_after(const Poison *w, uint32_t instr, char *const *arena);
const uint32_t *poison_landed(const Poison *w, uint64_t entry);  // vec: buffers of crossings that die with a schedule entry
void poison_free(Poison *w);
// Index of the first NaN among what the instruction wrote through argument `arg`, or -1. `in` is no WAIT: its START instead.
int64_t find_nan(const Plan *p, const PlanInstr *in, uint32_t arg, const char *at);

typedef struct Trace Trace;
typedef struct { SegmentId segment; int64_t step; uint32_t micro_batch; } TraceWhere;
Trace *trace_open(const Plan *stage, Coll *c, const char *path);
void trace_instr(Trace *t, const PlanInstr *in, TraceWhere w, double start, double end);
// What the rank does or waits for beside computing ("wait", "send" ...), on its own track.
void trace_host(Trace *t, const char *kind, const char *name, TraceWhere w, double start, double end);
// An operation in the background: begin gives a lane that no other one uses until its end.
uint32_t trace_begin(Trace *t);
void trace_end(Trace *t, uint32_t lane, const char *kind, const char *name, uint64_t bytes, TraceWhere w, double start,
               double end);
void trace_close(Trace *t);
double seconds_now(void);  // of a monotonic clock
