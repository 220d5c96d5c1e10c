// Schedules of pipeline stages: every generator in every small shape with random transfers, against the checker, which
// knows nothing of the generators; the checker against schedules that were broken on purpose; the simulator against the
// published bubbles of 1F1B and ZB-H1.
#include "pipeline.h"
#include <math.h>
#include <setjmp.h>
#include <time.h>
#include <cmocka.h>

static uint64_t random_state = 1;
static int dice(int n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

// ------------------------------------------------------------------------------------------------------ whole schedules
typedef struct {
    PipelineShape shape;
    Task **tasks;
    Crossing **crossings;
    StageSchedule *schedules;
} Whole;
enum { RELAYS = 1, BACKWARD = 2, SAVED = 4 };  // what crosses besides one forward value; SAVED: sends lie in FB, FW, BW
static const bool ALL_USED[CLASS_COUNT] = { [CLASS_FB] = true, [CLASS_FW] = true, [CLASS_BW] = true };

// A value from model chunk `from` to chunk `to`, in as many hops.
static void cross(Whole *w, uint32_t *tag, int from, int to, int flags)
{
    bool split = w->shape.kind == SCHEDULE_ZB;
    int by = from < to ? 1 : -1, stages = w->shape.stages;
    Work at = by > 0 ? WORK_F : WORK_B;
    PlanClass landing = by > 0 ? CLASS_RF : CLASS_RB;
    for (int i = from; i != to; i += by) {
        int a = i % stages, b = (i + by) % stages;
        PlanClass class_ = i != from ? landing : by > 0 ? CLASS_SF : CLASS_SB;
        if (i == from && flags & SAVED) class_ = by > 0 ? (dice(2) && split ? CLASS_FW : CLASS_FB) : split ? CLASS_BW : CLASS_SB;
        Work until = (Work)((int)at + dice((split ? 3 : 2) - (int)at));
        vec_push(w->crossings[a], (Crossing){ *tag, (uint32_t)b, true, (uint16_t)(i / stages), at, at, class_ });
        vec_push(w->crossings[b], (Crossing){ *tag, (uint32_t)a, false, (uint16_t)((i + by) / stages), at, until, landing });
        ++*tag;
    }
}

static Whole make(PipelineShape shape, int flags, const bool *used)
{
    size_t stages = (size_t)shape.stages;
    Whole w = { shape, pipeline_tasks(&shape), xcalloc(stages, sizeof *w.crossings), xcalloc(stages, sizeof *w.schedules) };
    int n = shape.stages * shape.chunks;
    uint32_t tag = 5;
    for (int i = 0; i + 1 < n && shape.stages > 1; i++) {
        cross(&w, &tag, i, i + 1, flags);
        if (flags & BACKWARD) cross(&w, &tag, i + 1, i, flags);
        int far = i + 2 + dice(3);
        if (!(flags & RELAYS) || far >= n) continue;
        cross(&w, &tag, i, far, flags);
        if (flags & BACKWARD) cross(&w, &tag, far, i, flags);
    }
    for (int s = 0; s < shape.stages; s++)
        w.schedules[s] = pipeline_steps(w.tasks[s], shape.chunks, vec_len(w.crossings[s]), w.crossings[s], used);
    return w;
}

static const char *check(const Whole *w) { return pipeline_check(&w->shape, w->tasks, w->schedules, w->crossings); }

static void whole_free(Whole *w)
{
    for (int s = 0; s < w->shape.stages; s++) stage_schedule_free(&w->schedules[s]), vec_free(w->crossings[s]);
    free(w->schedules);
    free(w->crossings);
    pipeline_tasks_free(w->tasks, w->shape.stages);
}

static void check_right(const Whole *w)
{
    const char *fault = check(w);
    if (fault)
        fail_msg("kind %d, %d stages, %d chunks, %d micro-batches: %s", (int)w->shape.kind, w->shape.stages, w->shape.chunks,
                 w->shape.micro_batches, fault);
}

// Slots of a stage: what the schedules promise (transfers apart).
static void check_counts(const Whole *w)
{
    int p = w->shape.stages, m = w->shape.micro_batches;
    bool zb = w->shape.kind == SCHEDULE_ZB;
    for (int s = 0; s < p; s++) {
        const uint16_t *slots = w->schedules[s].slots[0];
        if (w->shape.kind == SCHEDULE_AFAB) assert_int_equal(slots[0], m);
        if (w->shape.kind == SCHEDULE_1F1B || zb) assert_int_equal(slots[0], min_of(m, p - s));
        if (!zb) continue;
        assert_int_equal(slots[CLASS_FW - CLASS_FB], min_of(m, p));
        assert_int_equal(slots[CLASS_BW - CLASS_FB], min_of(m, s + 1));
    }
    for (int s = 0; s < p; s++)
        for (int k = 0; k < w->shape.chunks; k++)
            for (PlanClass c = CLASS_SF; c <= CLASS_SB; c++) {
                int n = w->schedules[s].slots[k][c - CLASS_FB];
                assert_true(n == 0 || n == min_of(m, 2));
            }
}

static void try_shape(PipelineShape shape)
{
    Whole w = make(shape, dice(8), ALL_USED);
    check_right(&w);
    check_counts(&w);
    PipelineTimes times = { 1 + dice(3), 1 + dice(3), dice(3), dice(3) };
    PipelineCost cost = pipeline_simulate(&shape, w.tasks, &times, NULL);
    assert_true(cost.bubble >= 0 && cost.bubble < 1);
    whole_free(&w);
}

static void test_shapes(void **state)
{
    (void)state;
    for (int p = 1; p <= 16; p++)
        for (int m = 1; m <= 40; m++)
            for (int kind = SCHEDULE_AFAB; kind <= SCHEDULE_ZB; kind++)
                for (int chunks = 1; chunks <= (kind == SCHEDULE_AFAB || kind == SCHEDULE_INTERLEAVED ? 4 : 1); chunks++)
                    try_shape((PipelineShape){ (PlanScheduleKind)kind, p, chunks, m });
}

// ------------------------------------------------------------------------------------------------------ exact lists
static void check_list(PipelineShape shape, int stage, const char *want)
{
    Task **tasks = pipeline_tasks(&shape);
    Buf got = { 0 };
    for (size_t k = 0; k < vec_len(tasks[stage]); k++) {
        Task t = tasks[stage][k];
        buf_printf(&got, "%s%c%u", k ? " " : "", "FBW"[t.work], t.micro_batch);
        if (shape.chunks > 1) buf_printf(&got, "%c", 'a' + t.chunk);
    }
    assert_string_equal(got.s, want);
    buf_free(&got);
    pipeline_tasks_free(tasks, shape.stages);
}

static void test_lists(void **state)
{
    (void)state;
    check_list((PipelineShape){ SCHEDULE_AFAB, 3, 1, 3 }, 1, "F0 F1 F2 B0 B1 B2");
    check_list((PipelineShape){ SCHEDULE_1F1B, 3, 1, 4 }, 0, "F0 F1 F2 B0 F3 B1 B2 B3");
    check_list((PipelineShape){ SCHEDULE_1F1B, 3, 1, 4 }, 2, "F0 B0 F1 B1 F2 B2 F3 B3");
    check_list((PipelineShape){ SCHEDULE_1F1B, 4, 1, 2 }, 0, "F0 F1 B0 B1");
    check_list((PipelineShape){ SCHEDULE_ZB, 3, 1, 4 }, 0, "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
    check_list((PipelineShape){ SCHEDULE_ZB, 3, 1, 4 }, 2, "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
    check_list((PipelineShape){ SCHEDULE_INTERLEAVED, 2, 2, 4 }, 0,
               "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a");
    check_list((PipelineShape){ SCHEDULE_INTERLEAVED, 2, 2, 4 }, 1,
               "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a");
    check_list((PipelineShape){ SCHEDULE_INTERLEAVED, 2, 2, 3 }, 1, "F0a F1a F0b B0b F1b B1b F2a B0a B1a F2b B2b B2a");
}

// ------------------------------------------------------------------------------------------------------ broken on purpose
// The checker says why: `part` is in its sentence.
static void check_wrong(const Whole *w, const char *part)
{
    const char *fault = check(w);
    if (!fault) fail_msg("a broken schedule passes: expected \"%s\"", part);
    if (!strstr(fault, part)) fail_msg("\"%s\" does not say \"%s\"", fault, part);
}

static void step_remove(StageSchedule *s, size_t i)
{
    size_t n = vec_len(s->steps);
    memmove(s->steps + i, s->steps + i + 1, (n - i - 1) * sizeof *s->steps);
    (void)vec_pop(s->steps);
}

static void step_move(StageSchedule *s, size_t from, size_t to)
{
    Step step = s->steps[from];
    memmove(s->steps + from, s->steps + from + 1, (vec_len(s->steps) - from - 1) * sizeof step);
    memmove(s->steps + to + 1, s->steps + to, (vec_len(s->steps) - to - 1) * sizeof step);
    s->steps[to] = step;
}

// First step of the kind for this micro-batch from step `i` on.
static size_t find(const StageSchedule *s, PlanStepKind kind, uint32_t micro_batch, size_t i)
{
    while (s->steps[i].kind != kind || s->steps[i].micro_batch != micro_batch) i++;
    return i;
}

static Whole sample(PlanScheduleKind kind)
{
    return make((PipelineShape){ kind, 4, kind == SCHEDULE_INTERLEAVED ? 2 : 1, 9 }, BACKWARD, ALL_USED);
}

static void test_missing_steps(void **state)
{
    (void)state;
    static const char *const parts[] = { [STEP_RUN] = "stage 2: ", [STEP_POST] = "ARRIVE of tag", [STEP_ARRIVE] = "before the arrival of tag",
                                         [STEP_SEND] = "without a SEND", [STEP_SENT] = "stage 2" };
    for (int kind = SCHEDULE_AFAB; kind <= SCHEDULE_ZB; kind++)
        for (int step = STEP_RUN; step <= STEP_SENT; step++)
            for (uint32_t m = 0; m < 9; m++) {
                Whole w = sample((PlanScheduleKind)kind);
                step_remove(&w.schedules[2], find(&w.schedules[2], (PlanStepKind)step, m, 0));
                check_wrong(&w, parts[step]);
                whole_free(&w);
            }
    Whole w = sample(SCHEDULE_1F1B);
    size_t post = find(&w.schedules[2], STEP_POST, 3, 0);
    uint32_t tag = w.crossings[2][w.schedules[2].steps[post].crossing].tag;
    step_remove(&w.schedules[2], post);
    char part[80];
    snprintf(part, sizeof part, "stage 2: ARRIVE of tag %u, micro-batch 3, without a POST", tag);
    check_wrong(&w, part);
    whole_free(&w);
}

// Two steps change places: posts and ends of sends have some freedom, all else is noticed.
static void test_swapped_steps(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_AFAB; kind <= SCHEDULE_ZB; kind++)
        for (int stage = 0; stage < 4; stage++) {
            Whole w = sample((PlanScheduleKind)kind);
            Step *steps = w.schedules[stage].steps;
            for (size_t i = 0; i + 1 < vec_len(steps); i++) {
                Step a = steps[i], b = steps[i + 1];
                steps[i] = b, steps[i + 1] = a;
                bool run = a.kind == STEP_RUN || b.kind == STEP_RUN, chained = a.kind == STEP_ARRIVE || b.kind == STEP_SEND;
                if (run && chained && a.micro_batch == b.micro_batch) check_wrong(&w, "before");
                if (a.kind == STEP_RUN && b.kind == STEP_RUN) check_wrong(&w, "is due");
                bool reused = a.kind == STEP_SENT && w.crossings[stage][a.crossing].class_ >= CLASS_SF;
                if (reused && b.kind == STEP_RUN) check_wrong(&w, "needs it");
                check(&w);
                steps[i] = a, steps[i + 1] = b;
            }
            check_right(&w);
            whole_free(&w);
        }
}

static void test_wrong_tasks(void **state)
{
    (void)state;
    Whole w = sample(SCHEDULE_ZB);
    Task *t = w.tasks[1];
    size_t n = vec_len(t);
    t[n - 1].micro_batch--;
    check_wrong(&w, "stage 1, chunk 0: W of micro-batch 7 stands where 8 is due");
    t[n - 1].micro_batch++;
    vec_header(t)->len--;
    check_wrong(&w, "stage 1, chunk 0: W of micro-batch 8 is missing");
    vec_header(t)->len++;
    t[0].work = WORK_B;
    check_wrong(&w, "stage 1, chunk 0: B of micro-batch 0 stands before its F");
    t[0].work = WORK_F;
    t[0].micro_batch = 9;
    check_wrong(&w, "stage 1: task 0 is no task of this shape");
    t[0].micro_batch = 0;
    check_right(&w);
    whole_free(&w);
}

static void test_wrong_slots(void **state)
{
    (void)state;
    Whole w = sample(SCHEDULE_ZB);
    for (size_t i = 0; i < vec_len(w.schedules[1].steps); i++) {
        Step *s = &w.schedules[1].steps[i];
        if (s->kind != STEP_RUN || s->task.work != WORK_B) continue;
        for (int c = 0; c < SLOT_CLASSES; c++) {
            if (c + CLASS_FB == CLASS_RF || c + CLASS_FB == CLASS_SF) continue;  // dead by B here
            uint16_t old = s->slots[c];
            s->slots[c] = w.schedules[1].slots[0][c];
            check_wrong(&w, "has slot");
            s->slots[c] = old;
        }
        uint16_t old = s->slots[0];
        s->slots[0] = (uint16_t)!old;
        check_wrong(&w, "stage 1, chunk 0: ");
        s->slots[0] = old;
    }
    check_right(&w);
    whole_free(&w);
}

// Posts right before their arrivals: neighbours of 1F1B that send to each other then wait for ever.
static void test_late_posts(void **state)
{
    (void)state;
    Whole w = sample(SCHEDULE_1F1B);
    for (int s = 0; s < 4; s++) {
        StageSchedule *of = &w.schedules[s];
        for (size_t i = vec_len(of->steps); i-- > 0;) {
            if (of->steps[i].kind != STEP_POST) continue;
            size_t to = i + 1;
            while (of->steps[to].kind != STEP_ARRIVE || of->steps[to].crossing != of->steps[i].crossing) to++;
            step_move(of, i, to - 1);
        }
    }
    check_wrong(&w, "the stages wait for each other: stage 0 waits at step");
    whole_free(&w);
}

static void test_wrong_tags(void **state)
{
    (void)state;
    Whole w = sample(SCHEDULE_1F1B);
    uint32_t old = w.crossings[1][0].tag;
    w.crossings[1][0].tag = 1000;
    check_wrong(&w, "has no single counterpart");
    w.crossings[1][0].tag = old;
    w.crossings[1][0].peer = 3;
    check_wrong(&w, "name other peers");
    whole_free(&w);
}

// ------------------------------------------------------------------------------------------------------ time
// Tables 5 and 6 of Qi et al., "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241).
static void test_published_bubbles(void **state)
{
    (void)state;
    static const struct { int p, m; PipelineTimes times; const char *f1b1, *zb_h1; } rows[] = {
        { 8, 24, { 18.522, 18.086, 9.337, 0.601 }, "0.2431", "0.1585" },
        { 8, 64, { 18.546, 18.097, 9.321, 0.762 }, "0.1240", "0.0674" },
        { 8, 32, { 29.802, 29.428, 19.530, 0.577 }, "0.1898", "0.1045" },
        { 16, 64, { 11.307, 11.254, 8.101, 0.379 }, "0.2082", "0.1088" },
        { 32, 128, { 10.408, 10.204, 7.703, 0.408 }, "0.2168", "0.1106" },
    };
    for (size_t i = 0; i < countof(rows); i++)
        for (int zb = 0; zb < 2; zb++) {
            PipelineShape shape = { zb ? SCHEDULE_ZB : SCHEDULE_1F1B, rows[i].p, 1, rows[i].m };
            Task **tasks = pipeline_tasks(&shape);
            char got[16];
            snprintf(got, sizeof got, "%.4f", pipeline_simulate(&shape, tasks, &rows[i].times, NULL).bubble);
            assert_string_equal(got, zb ? rows[i].zb_h1 : rows[i].f1b1);
            pipeline_tasks_free(tasks, shape.stages);
        }
}

// Without latency, F = B = W: (p-1)(F+B+W) idle for 1F1B and AFAB, (p-1)(F+B-W) for ZB-H1, a chunks-th for interleaved.
static void test_formulas(void **state)
{
    (void)state;
    PipelineTimes times = { 1, 1, 1, 0 };
    for (int p = 2; p <= 8; p++)
        for (int m = 2 * p; m <= 4 * p; m += p)
            for (int kind = SCHEDULE_AFAB; kind <= SCHEDULE_ZB; kind++) {
                PipelineShape shape = { (PlanScheduleKind)kind, p, kind == SCHEDULE_INTERLEAVED ? 3 : 1, m };
                Task **tasks = pipeline_tasks(&shape);
                double idle = kind == SCHEDULE_ZB ? p - 1 : 3 * (p - 1);
                double cost = pipeline_simulate(&shape, tasks, &times, NULL).cost;
                assert_true(fabs(cost - 3.0 * m * shape.chunks - idle) < 1e-9);
                pipeline_tasks_free(tasks, p);
            }
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Linear time: 64 stages, 4096 micro-batches, 2.6 million steps. The limit is for slow machines and sanitizers.
static void test_large(void **state)
{
    (void)state;
    PipelineTimes times = { 1, 2, 1, 0.1 };
    double begin = seconds();
    Whole w = make((PipelineShape){ SCHEDULE_1F1B, 64, 1, 4096 }, BACKWARD, ALL_USED);
    double made = seconds();
    check_right(&w);
    double checked = seconds();
    pipeline_simulate(&w.shape, w.tasks, &times, NULL);
    double end = seconds();
    print_message("64 stages, 4096 micro-batches: made in %.3f s, checked in %.3f s, simulated in %.3f s\n", made - begin,
                  checked - made, end - checked);
    assert_true(end - begin < 5);
    whole_free(&w);
}

static void check_picture(PipelineShape shape, PipelineTimes times, int width, const char *want)
{
    Task **tasks = pipeline_tasks(&shape);
    Buf got = { 0 };
    pipeline_draw(&shape, tasks, &times, width, &got);
    assert_string_equal(got.s, want);
    buf_free(&got);
    pipeline_tasks_free(tasks, shape.stages);
}

static void test_pictures(void **state)
{
    (void)state;
    check_picture((PipelineShape){ SCHEDULE_1F1B, 2, 1, 3 }, (PipelineTimes){ 1, 1, 1, 0 }, 36,
                  "stage 0  |F0 F1 ......B0    F2 B1    ...B2    |\n"
                  "stage 1  |...F0 B0    F1 B1    F2 B2    ......|\n");
    check_picture((PipelineShape){ SCHEDULE_ZB, 2, 1, 12 }, (PipelineTimes){ 1, 1, 1, 0 }, 28,
                  "stage 0  |F0  F1  ....B0  W0  F2  B...\n"
                  "stage 1  |....F0  B0  F1  B1  W0  F...\n");
    check_picture((PipelineShape){ SCHEDULE_INTERLEAVED, 2, 2, 1 }, (PipelineTimes){ 1, 0.5, 0.5, 1 }, 72,
                  "stage 0  |F0a  ...............F0b  .....................B0b  ...............B0a   |\n"
                  "stage 1  |..........F0a  ...............F0b   B0b  ...............B0a  ...........|\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_lists), cmocka_unit_test(test_missing_steps),
        cmocka_unit_test(test_swapped_steps), cmocka_unit_test(test_wrong_tasks), cmocka_unit_test(test_wrong_slots),
        cmocka_unit_test(test_late_posts), cmocka_unit_test(test_wrong_tags), cmocka_unit_test(test_published_bubbles),
        cmocka_unit_test(test_formulas), cmocka_unit_test(test_large), cmocka_unit_test(test_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
