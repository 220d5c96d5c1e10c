// test_exec.c: a small plan on the CPU, against the same model in plain C; threads, poison, NaN search, trace.
#include "exec.h"
#include "faults.h"
#include "schedule.h"
#include "small_plan.h"
#include <math.h>

static uint8_t *file;
static Plan plan;

static int set_up(void **state)
{
    (void)state;
    size_t size;
    char why[512];
    setenv("XDG_CACHE_HOME", scratch_file("cache"), 1);
    file = small_plan(&size);
    if (!plan_check(&plan, file, size, why, sizeof why)) return -1;
    plan.path = "small.plan";
    return 0;
}

static int tear_down(void **state)
{
    free(file);
    return remove_scratch(state);
}

// The id at (step, micro-batch, position): any fixed function.
static int32_t id_at(int64_t step, uint32_t micro_batch, int i)
{
    return (int32_t)((step * 5 + micro_batch * 3 + i * i) % SP_N);
}

static void load(void *ctx, int64_t step, uint32_t micro_batch)
{
    int32_t *tokens = exec_buffer(ctx, SP_TOKENS_BUF);
    for (int i = 0; i < SP_TOKENS; i++) tokens[i] = id_at(step, micro_batch, i);
}

typedef struct {
    float w[SP_N * SP_N];
    double loss, valid;
} Result;

static void start_weights(float *w)
{
    for (int i = 0; i < SP_N * SP_N; i++) w[i] = (float)(i % 7 - 3);
}

static Result reference(int steps)
{
    Result r;
    start_weights(r.w);
    for (int step = 1; step <= steps; step++) {
        float grad[SP_N * SP_N] = {0};
        r.loss = r.valid = 0;
        for (uint32_t m = 0; m < SP_ACCUM; m++)
            for (int t = 0; t < SP_TOKENS; t++) {
                const float *x = r.w + id_at(step, m, t) * SP_N;
                for (int i = 0; i < SP_N; i++) r.loss += 2 * x[i];
                for (int i = 0; i < SP_N; i++)
                    for (int j = 0; j < SP_N; j++) grad[i * SP_N + j] += x[i] * x[j];
                r.valid++;
            }
        for (int i = 0; i < SP_N * SP_N; i++) r.w[i] -= 0x1p-10f * grad[i];
    }
    return r;
}

static Result run(int steps, int threads, ExecOptions o)
{
    Result r;
    Dev *d = dev_cpu_open(&plan, threads, true);
    Exec *e = exec_open(&plan, d, &o);
    start_weights(exec_buffer(e, SP_W));
    assert_true(exec_set(e, "lr", 0x1p-10));
    assert_false(exec_set(e, "nothing", 1));
    exec_init(e);
    for (int step = 1; step <= steps; step++) exec_step(e, step, load, e);
    memcpy(r.w, exec_buffer(e, SP_W), sizeof r.w);
    assert_true(exec_output(e, "loss", &r.loss) && exec_output(e, "valid", &r.valid));
    assert_false(exec_output(e, "nothing", &r.loss));
    exec_close(e);
    d->close(d);
    return r;
}

static void computes(void **state)
{
    (void)state;
    Result want = reference(1), got = run(1, 2, (ExecOptions){0});
    assert_memory_equal(want.w, got.w, sizeof want.w);
    assert_true(want.loss == got.loss && want.valid == got.valid);
    want = reference(3), got = run(3, 2, (ExecOptions){0});
    assert_true(fabs(want.loss - got.loss) < 1e-4 * fabs(want.loss));
}

static void same_bits_however_watched(void **state)
{
    (void)state;
    Result a = run(3, 1, (ExecOptions){0});
    const struct {
        int threads;
        ExecOptions o;
    } others[] = {
        {2, {0}}, {3, {0}}, {2, {.poison = true}}, {2, {.check_nan = true}}, {1, {.poison = true, .check_nan = true}}};
    for (size_t i = 0; i < countof(others); i++) {
        Result b = run(3, others[i].threads, others[i].o);
        assert_memory_equal(a.w, b.w, sizeof a.w);
        assert_true(a.loss == b.loss);
    }
}

static void run_into_nan(void *arg)
{
    Dev *d = dev_cpu_open(&plan, 1, true);
    Exec *e = exec_open(&plan, d, &(ExecOptions){.check_nan = true, .poison = *(bool *)arg});
    start_weights(exec_buffer(e, SP_W));
    ((float *)exec_buffer(e, SP_W))[id_at(1, 1, 0) * SP_N + 2] = NAN;
    ((float *)exec_buffer(e, SP_W))[id_at(1, 0, 0) * SP_N + 3] = -INFINITY; // a legitimate value
    exec_init(e);
    exec_step(e, 1, load, e);
}

static void names_the_first_nan(void **state)
{
    (void)state;
    for (int poison = 0; poison < 2; poison++)
        expect_fatal(run_into_nan, &(bool){poison}, "micro-batch 1, segment F: the first NaN is element 2 of 'x'");
}

static void traces(void **state)
{
    (void)state;
    const char *path = scratch_file("trace.json");
    run(2, 1, (ExecOptions){.trace = path});
    char *text = read_file(path, NULL);
    assert_non_null(text);
    assert_non_null(strstr(text, "product \\\"x'x\\\" small.lua:3"));
    int events = 0;
    for (const char *s = text; (s = strstr(s, "\"ph\":\"X\"")); s++) events++;
    assert_int_equal(events, 1 + 2 * (2 * 4 + 1));
    free(text);
}

static void schedules_the_learning_rate(void **state)
{
    (void)state;
    assert_true(learning_rate(1, 10, 4, 1, 0, DECAY_COSINE) == 0.25);
    assert_true(learning_rate(4, 10, 4, 1, 0, DECAY_COSINE) == 1);
    assert_true(fabs(learning_rate(7, 10, 4, 1, 0.5, DECAY_COSINE) - 0.75) < 1e-15);
    assert_true(fabs(learning_rate(10, 10, 4, 1, 0.5, DECAY_COSINE) - 0.5) < 1e-15);
    assert_true(learning_rate(7, 10, 4, 1, 0, DECAY_LINEAR) == 0.5);
    assert_true(learning_rate(10, 10, 4, 1, 0.125, DECAY_LINEAR) == 0.125);
    assert_true(learning_rate(9, 10, 0, 3, 1, DECAY_CONSTANT) == 3);
    assert_true(learning_rate(5, 10, 20, 1, 0, DECAY_LINEAR) == 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computes),
        cmocka_unit_test(same_bits_however_watched),
        cmocka_unit_test(names_the_first_nan),
        cmocka_unit_test(traces),
        cmocka_unit_test(schedules_the_learning_rate),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
