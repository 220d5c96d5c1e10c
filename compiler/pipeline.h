// pipeline.h: schedules of pipeline stages: who runs what when, proven to end, simulated for its bubble.
//
// The same generators serve plans (cut.c, plan_write.c), the report and the comparison with published tables. Nothing here
// knows the graph: a schedule is lists of numbers.
#pragma once
#include "../runtime/base.h"
#include "../runtime/plan.h"

typedef enum { WORK_F, WORK_B, WORK_W } Work;
typedef struct { Work work; uint16_t chunk; uint32_t micro_batch; } Task;
typedef struct {
    PlanScheduleKind kind;
    int stages, chunks, micro_batches;  // chunks: of each stage; model chunk i is chunk i / stages of stage i % stages
} PipelineShape;

// Tasks of every stage in order (vec of vecs; stages of them). AFAB, 1F1B, INTERLEAVED have F and B; ZB (H1) also W.
// Any number of micro-batches works (fewer than stages; interleaved: no multiple of stages, the last group is short).
// 1F1B and ZB want chunks 1; interleaved with 1 chunk is 1F1B.
Task **pipeline_tasks(const PipelineShape *shape);
void pipeline_tasks_free(Task **tasks, int stages);

// What crosses between stages, as one stage sees it. A send starts behind task `at` of its chunk and micro-batch, a receipt
// is awaited before it. A received value is read until the end of task `until`.
typedef struct {
    uint32_t tag, peer;
    bool send;
    uint16_t chunk;
    Work at, until;
    PlanClass class_;  // where the buffer lies: CLASS_RF or CLASS_RB for receipts; CLASS_SF, SB, or any slotted one for sends
} Crossing;
typedef struct {
    PlanStepKind kind;
    Task task;              // RUN
    uint32_t crossing;      // else: index of the stage's crossings
    uint32_t micro_batch;
    uint16_t chunk, slots[SLOT_CLASSES];
} Step;
typedef struct {
    Step *steps;            // vec
    uint16_t (*slots)[SLOT_CLASSES];  // by chunk: how many slots each class needs (0: class unused)
} StageSchedule;

// Adds posts (one task ahead), arrivals, sends and their completion (two of a kind later, or at the end) to the tasks of a
// stage, and colours the intervals: FB lives from F to the end of B, FW from F to W, BW from B to W, R* from the post to
// the end of `until`, S* from the task that writes to SENT. used: by PlanClass (CLASS_COUNT of them), does the stage have
// values of it? Read for FB, FW and BW only; landing and send buffers are known from the crossings. A send out of a slot
// that lives on anyway ends before the last task that reads the slot; one out of a slot that would be free (a relay out of
// R*) keeps it as long as S*. With several chunks posts come two tasks ahead, else the stages would wait for each other.
StageSchedule pipeline_steps(const Task *tasks, int chunks, size_t ncrossings, const Crossing *crossings, const bool *used);
void stage_schedule_free(StageSchedule *s);

// NULL, or one sentence (static buffer) about what is wrong: every task once; micro-batches ascend for each (stage, chunk,
// work); F before B before W; and the joint run of all stages ends even when every SEND blocks until its POST. Also: the
// steps run the tasks, every transfer is posted, awaited, sent and ended once and around its task, each tag has one send
// and one receipt, and no slot has two owners. crossings: by stage, vecs.
const char *pipeline_check(const PipelineShape *shape, Task *const *tasks, const StageSchedule *schedules,
                           Crossing *const *crossings);

// Plays the tasks with these times (seconds, or any unit) for each task, `latency` between stages. `cost`: the largest, over
// stages, of last end minus first start. `bubble`: (cost - work of one stage) / cost. Start of each task in `start` (may be
// NULL; by stage, by task: the caller's arrays). B of schedules without W takes b + w.
typedef struct { double f, b, w, latency; } PipelineTimes;
typedef struct { double cost, bubble; } PipelineCost;
PipelineCost pipeline_simulate(const PipelineShape *shape, Task *const *tasks, const PipelineTimes *times, double **start);

// One line a stage for people: "F0 F1 .. " drawn on a time axis of at most `width` columns (report).
void pipeline_draw(const PipelineShape *shape, Task *const *tasks, const PipelineTimes *times, int width, Buf *out);
