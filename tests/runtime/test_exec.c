// test_exec.c: plans on the CPU, against the same models in plain C: a small one of one rank with threads, poison, NaN
// search, trace; one of stages and data-parallel ranks, with their transfers, collectives and places.
#include "exec.h"
#include "faults.h"
#include "rank_plan.h"
#include "schedule.h"
#include "small_plan.h"
#include <math.h>
#include <pthread.h>

static uint8_t *file;
static Plan plan, view; // view: the plan's one stage
static Kernels *kernels;

static int set_up(void **state)
{
    (void)state;
    size_t size;
    char why[512];
    setenv("XDG_CACHE_HOME", scratch_file("cache"), 1);
    file = small_plan(&size);
    if (!plan_check(&plan, file, size, why, sizeof why)) return -1;
    plan.path = "small.plan";
    view = plan_stage(&plan, 0);
    kernels = kernels_load(&plan);
    return 0;
}

static int tear_down(void **state)
{
    kernels_close(kernels);
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
    Coll *c = coll_self(&plan);
    Dev *d = dev_cpu_open(&view, threads, kernels);
    Exec *e = exec_open(&view, d, c, &o);
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
    c->close(c);
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
    Dev *d = dev_cpu_open(&view, 1, kernels);
    Exec *e = exec_open(&view, d, coll_self(&plan), &(ExecOptions){.check_nan = true, .poison = *(bool *)arg});
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

// ---- several ranks

enum { MOST_RANKS = 8, STEPS = 3 };
typedef struct {
    float w0[RP_VOCAB * RP_N], w1[RP_N * RP_N];
    double loss, valid;
} RankResult;

static void start_rank_weights(float *w0, float *w1)
{
    for (int i = 0; w0 && i < RP_VOCAB * RP_N; i++) w0[i] = (float)(i % 5 - 2);
    for (int i = 0; w1 && i < RP_N * RP_N; i++) w1[i] = (float)(i % 3 - 1);
}

// The id at (step, micro-batch of the global batch, row).
static int32_t rank_id_at(int64_t step, uint64_t micro_batch, int i)
{
    return (int32_t)((step * 31 + (int64_t)micro_batch * 17 + i * 5) % RP_VOCAB);
}

static void reference_step(RankResult *r, int step, uint32_t micro_batches)
{
    static float g0[RP_VOCAB * RP_N];
    float g1[RP_N * RP_N] = {0};
    memset(g0, 0, sizeof g0);
    r->loss = r->valid = 0;
    for (uint32_t m = 0; m < micro_batches; m++)
        for (int i = 0; i < RP_ROWS; i++) {
            int32_t id = rank_id_at(step, m, i);
            for (int k = 0; k < RP_N; k++)
                for (int j = 0; j < RP_N; j++) {
                    r->loss += (double)r->w0[id * RP_N + k] * r->w1[k * RP_N + j];
                    g1[k * RP_N + j] += r->w0[id * RP_N + k];
                    g0[id * RP_N + k] += r->w1[k * RP_N + j];
                }
            r->valid++;
        }
    for (int i = 0; i < RP_VOCAB * RP_N; i++) r->w0[i] -= 0x1p-6f * g0[i];
    for (int i = 0; i < RP_N * RP_N; i++) r->w1[i] -= 0x1p-6f * g1[i];
}

typedef struct {
    const Plan *plan;
    const Kernels *kernels;
    ExecOptions options;
    int64_t nan_rank; // its first stage's weights hold a NaN; -1: none
    Coll *coll;
    Exec *exec;
    RankResult *result; // each stage's first rank writes its own weights
} RankRun;

static void load_rank(void *ctx, int64_t step, uint32_t micro_batch)
{
    const RankRun *r = ctx;
    const PlanInfo *o = r->plan->info;
    Plan stage = plan_stage(r->plan, mesh_coord(o->mesh, r->coll->rank, MESH_AT_PP));
    int32_t *tokens = exec_buffer(r->exec, stage.inputs[0].buffer);
    uint64_t m = (uint64_t)mesh_coord(o->mesh, r->coll->rank, MESH_AT_DP) * o->accum + micro_batch;
    assert_int_equal(stage.count[PLAN_INPUTS], 1); // else nothing is to be loaded
    for (int i = 0; i < RP_ROWS; i++) tokens[i] = rank_id_at(step, m, i);
}

static float *weights_of(const RankRun *r, const Plan *stage, const char *name)
{
    for (uint64_t i = 0; i < stage->count[PLAN_PARAMS]; i++)
        if (strcmp(plan_str(stage, stage->params[i].name), name) == 0) return exec_buffer(r->exec, stage->params[i].buffer);
    return NULL;
}

static void *rank_main(void *arg)
{
    RankRun *r = arg;
    Plan stage = plan_stage(r->plan, mesh_coord(r->plan->info->mesh, r->coll->rank, MESH_AT_PP));
    Dev *d = dev_cpu_open(&stage, 1, r->kernels);
    r->exec = exec_open(&stage, d, r->coll, &r->options);
    float *w0 = weights_of(r, &stage, "w0"), *w1 = weights_of(r, &stage, "w1");
    start_rank_weights(w0, w1);
    if (r->nan_rank == r->coll->rank && w0) w0[rank_id_at(1, r->coll->rank * stage.info->accum, 0) * RP_N + 2] = NAN;
    exec_set(r->exec, "lr", 0x1p-6);
    exec_init(r->exec);
    for (int step = 1; step <= STEPS; step++) exec_step(r->exec, step, load_rank, r);
    if (w0) memcpy(r->result->w0, w0, sizeof r->result->w0);
    if (w1) memcpy(r->result->w1, w1, sizeof r->result->w1);
    exec_output(r->exec, "loss", &r->result->loss);
    exec_output(r->exec, "valid", &r->result->valid);
    r->coll->barrier(r->coll);
    exec_close(r->exec);
    d->close(d);
    return NULL;
}

typedef struct {
    RankShape shape;
    ExecOptions options;
    double delay;
    int64_t nan_rank;
} RankCase;

// All ranks as threads, this one among them. Weights of ranks are compared with each other.
static void run_ranks(const RankCase *k, RankResult result[MOST_RANKS])
{
    size_t size;
    char why[512];
    Plan p;
    uint8_t *bytes = rank_plan(k->shape, &size);
    if (!plan_check(&p, bytes, size, why, sizeof why)) fail_msg("%s", why);
    p.path = "ranks.plan";
    uint32_t n = plan_ranks(&p);
    Kernels *loaded = kernels_load(&p);
    Coll **coll = n > 1 ? coll_local(&p, n) : (Coll *[]){coll_self(&p)};
    RankRun run[MOST_RANKS];
    pthread_t thread[MOST_RANKS];
    for (uint32_t i = 0; i < n; i++) {
        Coll *c = k->delay > 0 ? coll_delayed(coll[i], &k->delay, 1) : coll[i];
        run[i] = (RankRun){&p, loaded, k->options, k->nan_rank, c, NULL, &result[i]};
    }
    for (uint32_t i = 1; i < n; i++) pthread_create(&thread[i], NULL, rank_main, &run[i]);
    rank_main(&run[0]);
    for (uint32_t i = 1; i < n; i++) pthread_join(thread[i], NULL);
    for (uint32_t i = 0; i < n; i++) run[i].coll->close(run[i].coll);
    kernels_close(loaded);
    free(bytes);
}

static void check_ranks(const RankCase *k)
{
    static RankResult want, got[MOST_RANKS];
    uint32_t pp = k->shape.pp, n = pp * k->shape.dp;
    memset(got, 0, sizeof got);
    run_ranks(k, got);
    start_rank_weights(want.w0, want.w1);
    for (int step = 1; step <= STEPS; step++) reference_step(&want, step, k->shape.dp * k->shape.accum);
    for (uint32_t i = 0; i < n; i++) {
        if (i % pp == 0) assert_memory_equal(want.w0, got[i].w0, sizeof want.w0);
        if (i % pp == pp - 1) assert_memory_equal(want.w1, got[i].w1, sizeof want.w1);
        assert_true(got[i].loss == want.loss && got[i].valid == want.valid);
    }
}

static void every_layout_gives_the_same(void **state)
{
    (void)state;
    const RankShape shapes[] = {{1, 1, 1}, {1, 1, 8}, {2, 1, 1}, {2, 1, 2}, {2, 1, 8}, {1, 2, 3}, {1, 4, 2}, {1, 8, 1},
                                {2, 2, 1}, {2, 2, 3}, {2, 4, 2}};
    for (size_t i = 0; i < countof(shapes); i++) {
        check_ranks(&(RankCase){.shape = shapes[i], .nan_rank = -1});
        check_ranks(&(RankCase){shapes[i], {.poison = true, .check_nan = true}, 0, -1});
    }
    check_ranks(&(RankCase){{2, 2, 3}, {.poison = true}, 1e-3, -1});
}

static void rank_into_nan(void *arg)
{
    static RankResult got[MOST_RANKS];
    (void)arg;
    alarm(20);
    run_ranks(&(RankCase){{1, 2, 2}, {.check_nan = true}, 0, 1}, got);
}

// The others wait for the rank that fails: its message is the only one.
static void one_rank_names_the_first_nan(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++)
        expect_fatal(rank_into_nan, NULL, "rank 1, step 1, micro-batch 0, segment F: the first NaN is element 2 of 'x'");
}

static void traces_all_ranks(void **state)
{
    (void)state;
    static RankResult got[MOST_RANKS];
    const char *path = scratch_file("ranks.json");
    run_ranks(&(RankCase){{2, 2, 2}, {.trace = path}, 0, -1}, got);
    char *text = read_file(path, NULL);
    assert_non_null(text);
    // a rank and step: F of the first stage and B of the last have two kernels, twice; then one update
    const struct {
        const char *what;
        int count;
    } wants[] = {{"\"cat\":\"kernel\"", STEPS * 2 * (7 + 7)}, {"\"cat\":\"all-reduce\"", STEPS * 2 * (2 + 1)},
                 {"\"cat\":\"all-gather\"", STEPS * 2},       {"\"cat\":\"receive\"", STEPS * 4 * 2},
                 {"\"ph\":\"M\"", 4},                         {"\n]}\n", 1}};
    for (size_t i = 0; i < countof(wants); i++) {
        int n = 0;
        for (const char *s = text; (s = strstr(s, wants[i].what)); s++) n++;
        if (n != wants[i].count) fail_msg("%d times %s, not %d", n, wants[i].what, wants[i].count);
    }
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
        cmocka_unit_test(every_layout_gives_the_same),
        cmocka_unit_test(one_rank_names_the_first_nan),
        cmocka_unit_test(traces_all_ranks),
        cmocka_unit_test(schedules_the_learning_rate),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
