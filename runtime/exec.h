// exec.h: runs a plan on a device: memory, arguments, segments, schedule.
//
// It knows no ops and no model: buffers, instructions, scalars, named inputs and outputs. All decisions are
// the plan's; all pointers are resolved before the first step, and a step allocates nothing.
#pragma once
#include "dev.h"

typedef struct Exec Exec;
typedef struct {
    bool poison;        // dead memory holds NaN
    bool check_nan;     // look at every result; the first NaN is fatal, with step, micro-batch, buffer, instruction
    const char *trace;  // file for Chrome's and Perfetto's JSON, or NULL
} ExecOptions;
// Fills the plan's input buffers for one micro-batch of a step.
typedef void ExecLoad(void *ctx, int64_t step, uint32_t micro_batch);

Exec *exec_open(const Plan *p, Dev *d, const ExecOptions *o);
void exec_init(Exec *e);  // runs segment INIT, once, after parameters and scalars are set
void exec_step(Exec *e, int64_t step, ExecLoad *load, void *ctx);
void *exec_buffer(void *exec, uint32_t id);  // a BufferOf; saved buffers: of slot 0
bool exec_set(Exec *e, const char *scalar, double value);  // false if the plan has no such scalar
void exec_set_seed(Exec *e, uint64_t seed);
bool exec_output(const Exec *e, const char *name, double *value);  // false if the plan has no such output
void exec_close(Exec *e);

// ---- exec_watch.c: --poison and --check-nan. exec_trace.c: --trace.
typedef struct Poison Poison;
// Fills what is about to live (before) or has died (after) with `byte`: 0xff is NaN in every float type, 0 keeps
// --check-nan alone from seeing what earlier values left. `arena` is that of the slot in use.
Poison *poison_new(const Plan *p, int byte);
void poison_before(const Poison *w, uint32_t instr, char *const arena[ARENA_COUNT]);
void poison_after(const Poison *w, uint32_t instr, char *const arena[ARENA_COUNT]);
void poison_free(Poison *w);
// Index of the first NaN among what the instruction wrote through argument `arg`, or -1.
int64_t find_nan(const Plan *p, const PlanInstr *in, uint32_t arg, const char *at);

typedef struct Trace Trace;
Trace *trace_open(const Plan *p, const char *path);
void trace_instr(Trace *t, const PlanInstr *in, SegmentId segment, int64_t step, uint32_t micro_batch, double start, double end);
void trace_close(Trace *t);
double seconds_now(void);  // of a monotonic clock
