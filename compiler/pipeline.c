// pipeline.c: the order of tasks of each stage.
//
// AFAB, 1F1B and interleaved are one rule with different numbers: forwards in order, `ahead` of them before the first
// backward, from then on a forward and a backward in turn, at last the backwards that are left. The k-th forward of
// interleaved (Megatron's order) goes through groups of as many micro-batches as there are stages, for each group through the
// chunks; backwards do the same with the chunks reversed.
//
// Trap: a short last group must keep the distances of a full one. With the short group's own distances some stages wait
// for each other (with 7 micro-batches 5 stages of 2 chunks do). So the order is made for full groups, and tasks of micro-batches
// that do not exist are left out: a micro-batch waits for no other, what is left still ends.
//
// ZB is the schedule ZB-H1 of Qi et al. (arXiv 2401.10241): 1F1B, where the weight gradients of stage s come s
// backwards late. They fill the wait between the last backwards, and no stage holds more micro-batches than the first
// stage of 1F1B does.
#include "pipeline.h"

typedef struct { Task *tasks; uint32_t micro_batches, weight_delay, w_done; bool split; } List;

static void push_weight_gradient(List *l)
{
    vec_push(l->tasks, (Task){ WORK_W, 0, l->w_done++ });
}

// The k-th forward or backward in the order of full groups.
static void push(List *l, Work work, uint64_t k, uint32_t group, uint32_t chunks)
{
    uint32_t chunk = (uint32_t)(k / group % chunks);
    uint64_t micro_batch = k / ((uint64_t)group * chunks) * group + k % group;
    if (micro_batch >= l->micro_batches) return;
    if (work == WORK_B) chunk = chunks - 1 - chunk;
    vec_push(l->tasks, (Task){ work, (uint16_t)chunk, (uint32_t)micro_batch });
    if (work == WORK_B && l->split && micro_batch >= l->weight_delay) push_weight_gradient(l);
}

// Forwards before the first backward, without the one that comes right before it.
static uint64_t forwards_ahead(const PipelineShape *shape, int stage)
{
    uint64_t behind = (uint64_t)(shape->stages - 1 - stage), stages = (uint64_t)shape->stages;
    if (shape->kind == SCHEDULE_AFAB) return UINT64_MAX;
    return shape->chunks == 1 ? behind : 2 * behind + (uint64_t)(shape->chunks - 1) * stages;
}

static Task *stage_tasks(const PipelineShape *shape, int stage)
{
    uint32_t group = (uint32_t)shape->stages, chunks = (uint32_t)shape->chunks;
    uint64_t groups = ((uint64_t)shape->micro_batches + group - 1) / group;
    uint64_t n = groups * group * chunks, ahead = min_of(n, forwards_ahead(shape, stage));
    List l = { .micro_batches = (uint32_t)shape->micro_batches, .weight_delay = (uint32_t)stage,
               .split = shape->kind == SCHEDULE_ZB };
    size_t works = l.split ? 3 : 2;
    l.tasks = vec_grow_(NULL, sizeof *l.tasks, works * chunks * l.micro_batches);
    for (uint64_t k = 0; k < ahead; k++) push(&l, WORK_F, k, group, chunks);
    for (uint64_t k = ahead; k < n; k++) {
        push(&l, WORK_F, k, group, chunks);
        push(&l, WORK_B, k - ahead, group, chunks);
    }
    for (uint64_t k = n - ahead; k < n; k++) push(&l, WORK_B, k, group, chunks);
    while (l.split && l.w_done < l.micro_batches) push_weight_gradient(&l);
    return l.tasks;
}

Task **pipeline_tasks(const PipelineShape *shape)
{
    bool chunked = shape->kind == SCHEDULE_AFAB || shape->kind == SCHEDULE_INTERLEAVED;
    if (shape->stages < 1 || shape->micro_batches < 1 || shape->chunks < 1 || (shape->chunks > 1 && !chunked))
        bug("no schedule of kind %d has %d stages of %d chunks and %d micro-batches", (int)shape->kind, shape->stages,
            shape->chunks, shape->micro_batches);
    Task **tasks = xcalloc((size_t)shape->stages, sizeof *tasks);
    for (int s = 0; s < shape->stages; s++) tasks[s] = stage_tasks(shape, s);
    return tasks;
}

void pipeline_tasks_free(Task **tasks, int stages)
{
    for (int s = 0; s < stages; s++) vec_free(tasks[s]);
    free(tasks);
}
