// pipeline_simulate.c: what a schedule costs in time, and its picture.
//
// A stage runs its list as far as what it waits for has been computed, then the stages beside it are tried again.
// Transfers overlap with work: a value is there `latency` after the end of the task that made it.
#include "pipeline.h"

// Ends of tasks, by model chunk, micro-batch and F or B; negative: has not run.
typedef struct {
    const PipelineShape *shape;
    Task *const *tasks;
    PipelineTimes times;
    double **start, *ends, *first, *now;  // first, now: by stage, begin and end of what has run
    size_t *at;
} Play;

static double *end_of(const Play *p, int64_t model_chunk, uint32_t micro_batch, Work w)
{
    return p->ends + ((size_t)model_chunk * (size_t)p->shape->micro_batches + micro_batch) * 2 + w;
}

static double duration(const PipelineShape *shape, const PipelineTimes *t, Work w)
{
    if (w == WORK_F) return t->f;
    if (w == WORK_W) return t->w;
    return shape->kind == SCHEDULE_ZB ? t->b : t->b + t->w;
}

// When what the task reads is there; negative: not yet known.
static double ready(const Play *p, int stage, const Task *t)
{
    int64_t stages = p->shape->stages, chunk = t->chunk * stages + stage, last = stages * p->shape->chunks - 1;
    if (t->work == WORK_W || (t->work == WORK_F && chunk == 0)) return 0;
    if (t->work == WORK_B && chunk == last) return *end_of(p, chunk, t->micro_batch, WORK_F);
    double end = *end_of(p, t->work == WORK_F ? chunk - 1 : chunk + 1, t->micro_batch, t->work);
    return end < 0 || stages == 1 ? end : end + p->times.latency;
}

static bool advance(Play *p, int stage)  // did anything run?
{
    size_t before = p->at[stage];
    for (; p->at[stage] < vec_len(p->tasks[stage]); p->at[stage]++) {
        const Task *t = &p->tasks[stage][p->at[stage]];
        double from = ready(p, stage, t);
        if (from < 0) break;
        from = max_of(from, p->now[stage]);
        if (p->at[stage] == 0) p->first[stage] = from;
        p->now[stage] = from + duration(p->shape, &p->times, t->work);
        if (t->work != WORK_W) *end_of(p, (int64_t)t->chunk * p->shape->stages + stage, t->micro_batch, t->work) = p->now[stage];
        if (p->start) p->start[stage][p->at[stage]] = from;
    }
    return p->at[stage] > before;
}

// `waiting` is a ring of stages to try, each at most once in it.
static void play(Play *p)
{
    int n = p->shape->stages, head = 0, count = n;
    int *waiting = xmalloc((size_t)n * sizeof *waiting);
    bool *is_waiting = xmalloc((size_t)n * sizeof *is_waiting);
    for (int s = 0; s < n; s++) waiting[s] = s, is_waiting[s] = true;
    while (count) {
        int s = waiting[head];
        head = (head + 1) % n, count--, is_waiting[s] = false;
        if (!advance(p, s)) continue;
        int beside[] = { (s + 1) % n, (s + n - 1) % n };
        for (int i = 0; i < 2; i++) {
            if (is_waiting[beside[i]]) continue;
            is_waiting[beside[i]] = true;
            waiting[(head + count++) % n] = beside[i];
        }
    }
    free(waiting);
    free(is_waiting);
}

PipelineCost pipeline_simulate(const PipelineShape *shape, Task *const *tasks, const PipelineTimes *times, double **start)
{
    size_t stages = (size_t)shape->stages, n = stages * (size_t)shape->chunks * (size_t)shape->micro_batches * 2;
    Play p = { .shape = shape, .tasks = tasks, .times = *times, .start = start, .ends = xmalloc(n * sizeof *p.ends),
               .first = xcalloc(stages, sizeof *p.first), .now = xcalloc(stages, sizeof *p.now),
               .at = xcalloc(stages, sizeof *p.at) };
    for (size_t i = 0; i < n; i++) p.ends[i] = -1;
    double cost = 0;
    play(&p);
    for (size_t s = 0; s < stages; s++) {
        if (p.at[s] < vec_len(tasks[s])) bug("task %zu of stage %zu waits for ever", p.at[s], s);
        cost = max_of(cost, p.now[s] - p.first[s]);
    }
    double work = (double)shape->micro_batches * shape->chunks * (times->f + times->b + times->w);
    free(p.ends), free(p.first), free(p.now), free(p.at);
    return (PipelineCost){ cost, cost > 0 ? (cost - work) / cost : 0 };
}

// ------------------------------------------------------------------------------------------------------ picture
enum { MOST_ROWS = 16, MOST_LABEL = 16 };

// "F3", with a letter for the chunk where there are several: "F3b".
static int label_of(const PipelineShape *shape, const Task *t, char label[MOST_LABEL])
{
    char chunk[] = { shape->chunks > 1 ? (char)('a' + t->chunk % 26) : 0, 0 };
    return snprintf(label, MOST_LABEL, "%c%u%s", "FBW"[t->work], t->micro_batch, chunk);
}

// Columns for a unit of time: all of it in `width`, or as much that the shortest task has room for its label and a space.
static double columns(const PipelineShape *shape, const PipelineTimes *times, double end, int width)
{
    char label[MOST_LABEL];
    int room = label_of(shape, &(Task){ WORK_W, 0, (uint32_t)shape->micro_batches - 1 }, label) + 1;
    double longest = max_of(duration(shape, times, WORK_F), duration(shape, times, WORK_B)), shortest = longest;
    for (Work w = WORK_F; w <= WORK_W; w++) {
        double d = w == WORK_W && shape->kind != SCHEDULE_ZB ? longest : duration(shape, times, w);
        if (d > longest / 4) shortest = min_of(shortest, d);  // a tiny one may lose its label
    }
    return end > 0 ? max_of(room / shortest, width / end) : 1;
}

// Tasks stand where they begin, spaces up to where they end; dots: idle.
static void draw_stage(const PipelineShape *shape, const Task *tasks, const PipelineTimes *times, const double *start, double scale,
                       char *row, int width)
{
    memset(row, '.', (size_t)width);
    for (size_t k = 0; k < vec_len(tasks); k++) {
        double from = start[k] * scale + 1e-6, to = (start[k] + duration(shape, times, tasks[k].work)) * scale + 1e-6;
        if (from >= width) break;
        int first = (int)from, room = (int)min_of(to, (double)width) - first;
        if (room < 1) continue;
        char label[MOST_LABEL];
        int n = label_of(shape, &tasks[k], label);
        memset(row + first, ' ', (size_t)room);
        memcpy(row + first, label, n <= room ? (size_t)n : 1);
    }
}

void pipeline_draw(const PipelineShape *shape, Task *const *tasks, const PipelineTimes *times, int width, Buf *out)
{
    int rows = min_of(shape->stages, MOST_ROWS);
    double end = 0, **start = xcalloc((size_t)shape->stages, sizeof *start);
    for (int s = 0; s < shape->stages; s++) start[s] = xcalloc(vec_len(tasks[s]) + 1, sizeof **start);
    pipeline_simulate(shape, tasks, times, start);
    for (int s = 0; s < shape->stages; s++)
        for (size_t k = 0; k < vec_len(tasks[s]); k++) end = max_of(end, start[s][k] + duration(shape, times, tasks[s][k].work));
    width = max_of(width, 8);
    double scale = columns(shape, times, end, width);
    bool cut = end * scale > width + 0.5;
    int shown = cut ? width - 3 : (int)(end * scale + 0.5);
    char *row = xmalloc((size_t)width + 1);
    for (int s = 0; s < rows; s++) {
        draw_stage(shape, tasks[s], times, start[s], scale, row, shown);
        buf_printf(out, "stage %-2d |%.*s%s\n", s, shown, row, cut ? "..." : "|");
    }
    if (rows < shape->stages) buf_printf(out, "... and %d stages more\n", shape->stages - rows);
    for (int s = 0; s < shape->stages; s++) free(start[s]);
    free(start);
    free(row);
}
