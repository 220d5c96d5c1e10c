// test_checkpoint.c: initial weights, weight files against a small plan of one rank, and the training log. Many ranks:
// test_layouts.c.
#include "checkpoint.h"
#include "faults.h"
#include "hand_plan.h"
#include "log.h"
#include "meeting.h"
#include "rng.h"
#include "safetensors.h"
#include <math.h>
#include <omp.h>

enum { EMBED, GAIN, BIAS, PARAMS };
enum { ROWS = 5, COLUMNS = 4 };

// a plan of three parameters with one gradient; memory[i] is buffer i
typedef struct {
    Plan plan;
    double memory[PARAMS + 1][ROWS * COLUMNS];
} Model;

static const char strings[] = "\0model.embed.weight\0model.norm.weight\0model.norm.bias\0wte.weight\nold.embed";
enum { STR_EMBED = 1, STR_GAIN = 20, STR_BIAS = 38, STR_ALIASES = 54 };

static void *memory_of(void *ctx, uint32_t id) { return ((Model *)ctx)->memory[id]; }

static Model *model_new(DType t)
{
    Model *m = xcalloc(1, sizeof *m);
    PlanInfo info = {.mesh = {1, 1, 1, 1, 1}};
    PlanStage stage = {0};
    PlanParamAxis axes[] = {{ROWS, ROWS, 0, 0}, {COLUMNS, COLUMNS, 0, 0}};
    PlanParam params[PARAMS] = {
        [EMBED] = {.name = STR_EMBED, .aliases = STR_ALIASES, .ndim = 2, .dims = {ROWS, COLUMNS}, .init_value = 0.02},
        [GAIN] = {.name = STR_GAIN, .ndim = 1, .dims = {COLUMNS}, .init_value = 1},
        [BIAS] = {.name = STR_BIAS, .ndim = 1, .dims = {COLUMNS}},
    };
    PlanBuffer buffers[PARAMS + 1];
    for (uint32_t i = 0; i < PARAMS; i++) {
        params[i].init = i == EMBED ? INIT_NORMAL : INIT_CONSTANT, params[i].owner = 1;
        params[i].buffer = i, params[i].grad = i == EMBED ? (uint32_t)PARAMS : UINT32_MAX;
        params[i].first_axis = 2 - params[i].ndim, params[i].naxes = params[i].ndim;
    }
    for (int i = 0; i <= PARAMS; i++) buffers[i] = (PlanBuffer){.dtype = t, .bytes = sizeof m->memory[i]};
    stage.range[PLAN_PARAMS - PLAN_FIRST_STAGED].count = countof(params);
    stage.range[PLAN_PARAM_AXES - PLAN_FIRST_STAGED].count = countof(axes);
    stage.range[PLAN_BUFFERS - PLAN_FIRST_STAGED].count = countof(buffers);
    const HandSection sections[] = {
        {PLAN_STRINGS, strings, sizeof strings}, {PLAN_INFO, &info, 1},
        {PLAN_STAGES, &stage, 1},                {PLAN_PARAMS, params, countof(params)},
        {PLAN_PARAM_AXES, axes, countof(axes)},  {PLAN_BUFFERS, buffers, countof(buffers)},
    };
    Plan whole = hand_plan(sections, countof(sections));
    m->plan = plan_stage(&whole, 0);
    return m;
}

static void model_free(Model *m)
{
    free((void *)(uintptr_t)m->plan.base);
    free(m);
}

static void init(Model *m, uint64_t seed) { params_init(&m->plan, 0, seed, memory_of, m); }
static void load_from(Model *m, const char *path) { checkpoint_load(&m->plan, 0, path, memory_of, m); }

static void save_to(Model *m, const char *path, bool gradients)
{
    Meeting *alone = meeting_new(1);
    MeetingRank coll = meeting_rank(alone, &m->plan, 0, 1);
    if (gradients) gradients_save(&m->plan, &coll.coll, path, 0.25, memory_of, m);
    else checkpoint_save(&m->plan, &coll.coll, path, memory_of, m);
    meeting_free(alone);
}

static void init_is_by_element(void **state)
{
    (void)state;
    Model *one = model_new(F32), *two = model_new(F32), *wide = model_new(F64);
    omp_set_num_threads(1);
    init(one, 3);
    omp_set_num_threads(3);
    init(two, 3);
    init(wide, 3);
    assert_memory_equal(one->memory, two->memory, sizeof one->memory);
    uint64_t key = rng_key(3, "model.embed.weight");
    for (uint64_t i = 0; i < ROWS * COLUMNS; i++) {
        double want = 0.02 * rng_normal(key, i);
        assert_true(wide->memory[EMBED][i] == want && ((float *)one->memory[EMBED])[i] == (float)want);
    }
    assert_true(((float *)one->memory[GAIN])[COLUMNS - 1] == 1 && wide->memory[GAIN][0] == 1 &&
                wide->memory[BIAS][0] == 0);
    init(two, 4);
    assert_memory_not_equal(one->memory[EMBED], two->memory[EMBED], ROWS * COLUMNS * sizeof(float));
    model_free(one), model_free(two), model_free(wide);
}

static void saved_is_loaded(void **state)
{
    (void)state;
    for (DType t = F64; t <= F32; t++) {
        Model *m = model_new(t), *back = model_new(t);
        const char *path = scratch_file("w.safetensors");
        init(m, 1);
        save_to(m, path, false);
        load_from(back, path);
        assert_memory_equal(m->memory, back->memory, sizeof m->memory);
        model_free(m), model_free(back);
    }
}

static void gradients_are_scaled(void **state)
{
    (void)state;
    Model *m = model_new(F32);
    for (int i = 0; i < ROWS * COLUMNS; i++) ((float *)m->memory[PARAMS])[i] = (float)i;
    save_to(m, scratch_file("g.safetensors"), true);
    char why[256];
    SafeTensors s;
    assert_true(safetensors_open(&s, scratch_file("g.safetensors"), why, sizeof why));
    assert_int_equal(vec_len(s.tensors), 1);
    assert_string_equal(s.tensors[0].name, "model.embed.weight");
    assert_true(safetensor_value(SAFE_F32, s.tensors[0].data, 6) == 1.5);
    safetensors_close(&s);
    model_free(m);
}

// ---- files of other makers

typedef struct { const char *name; SafeDType dtype; uint32_t ndim; uint64_t dims[2]; int first; } Given;

// values first, first + 1 ... in the given dtype
static const char *write_given(const Given *given, size_t n)
{
    const char *path = scratch_file("given.safetensors");
    SafeEntry *entries = NULL;
    for (size_t i = 0; i < n; i++)
        vec_push(entries, (SafeEntry){given[i].name, given[i].dtype, given[i].ndim, given[i].dims});
    SafeWriter *w = safetensors_create(path, entries, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t count = given[i].dims[0] * (given[i].ndim > 1 ? given[i].dims[1] : 1);
        for (uint64_t k = 0; k < count; k++) {
            double d = given[i].first + (double)k;
            float f = (float)d;
            uint32_t bits;
            memcpy(&bits, &f, 4);
            uint16_t bf16 = (uint16_t)(bits >> 16);
            if (given[i].dtype == SAFE_F64) safetensors_append(w, &d, 8);
            else if (given[i].dtype == SAFE_BF16) safetensors_append(w, &bf16, 2);
            else if (given[i].dtype == SAFE_I16) safetensors_append(w, &bf16, 2);
            else safetensors_append(w, &f, 4);
        }
    }
    safetensors_commit(w);
    vec_free(entries);
    return path;
}

#define NORM {"model.norm.weight", SAFE_F32, 1, {COLUMNS}, 100}, {"model.norm.bias", SAFE_F32, 1, {COLUMNS}, 200}

static void names_and_dtypes(void **state)
{
    (void)state;
    static const char *const accepted[] = {"model.embed.weight", "embed.weight",           "transformer.embed.weight",
                                           "wte.weight",         "transformer.wte.weight", "old.embed",
                                           "model.old.embed"};
    static const SafeDType dtypes[] = {SAFE_F32, SAFE_F64, SAFE_BF16};
    for (size_t i = 0; i < countof(accepted); i++) {
        Given given[] = {NORM, {accepted[i], dtypes[i % 3], 2, {ROWS, COLUMNS}, 1}};
        const char *path = write_given(given, countof(given));
        Model *m = model_new(F32), *wide = model_new(F64);
        load_from(m, path);
        load_from(wide, path);
        for (int k = 0; k < ROWS * COLUMNS; k++)
            assert_true(((float *)m->memory[EMBED])[k] == (float)(k + 1) && wide->memory[EMBED][k] == k + 1);
        assert_true(((float *)m->memory[BIAS])[3] == 203);
        model_free(m), model_free(wide);
    }
}

static void harmless_left_overs(void **state)
{
    (void)state;
    Given given[] = {NORM,
                     {"model.embed.weight", SAFE_F32, 2, {ROWS, COLUMNS}, 1},
                     {"lm_head.weight", SAFE_F32, 2, {ROWS, COLUMNS}, 1},
                     {"h.0.attn.bias", SAFE_I16, 1, {3}, 0},
                     {"transformer.h.0.attn.masked_bias", SAFE_F32, 1, {1}, 0},
                     {"model.layers.0.self_attn.rotary_emb.inv_freq", SAFE_F32, 1, {2}, 0}};
    Model *m = model_new(F32);
    load_from(m, write_given(given, countof(given)));
    assert_true(((float *)m->memory[EMBED])[19] == 20);
    model_free(m);
}

static void load(void *path)
{
    Model *m = model_new(F32);
    load_from(m, path);
}

static void refused_weights(void **state)
{
    (void)state;
    Given embed = {"model.embed.weight", SAFE_F32, 2, {ROWS, COLUMNS}, 1};
    Given one[] = {embed}, none[] = {{"x", SAFE_F32, 1, {1}, 0}};
    expect_fatal(load, (void *)write_given(one, 1), "lacks the weights of model.norm.bias, model.norm.weight\n");
    expect_fatal(load, (void *)write_given(none, 1), "lacks the weights of model.embed.weight, model.norm.bias");
    Given flat[] = {NORM, {"model.embed.weight", SAFE_F32, 1, {ROWS * COLUMNS}, 1}};
    expect_fatal(load, (void *)write_given(flat, 3),
                 "tensor model.embed.weight has shape [20], but the model wants [5, 4]");
    Given turned[] = {NORM, {"model.embed.weight", SAFE_F32, 2, {COLUMNS, ROWS}, 1}};
    expect_fatal(load, (void *)write_given(turned, 3), "has shape [4, 5], but the model wants [5, 4]");
    Given whole[] = {NORM, {"model.embed.weight", SAFE_I16, 2, {ROWS, COLUMNS}, 1}};
    expect_fatal(load, (void *)write_given(whole, 3), "is of dtype I16");
    Given extra[] = {NORM,
                     embed,
                     {"a", SAFE_F32, 1, {1}, 0},
                     {"b", SAFE_F32, 1, {1}, 0},
                     {"c", SAFE_F32, 1, {1}, 0},
                     {"d", SAFE_F32, 1, {1}, 0}};
    expect_fatal(load, (void *)write_given(extra, 7), "has tensors that the model does not have: a, b, c and 1 more");
    Given both[] = {NORM, embed, {"wte.weight", SAFE_F32, 2, {ROWS, COLUMNS}, 1}};
    expect_fatal(load, (void *)write_given(both, 4), "does not have: wte.weight");
    Given untied[] = {NORM, embed, {"lm_head.weight", SAFE_F32, 2, {ROWS, COLUMNS}, 2}};
    expect_fatal(load, (void *)write_given(untied, 4), "the head lm_head.weight differs from the embedding");
    expect_fatal(load, (void *)scratch_file("none"), "none: cannot be opened: No such file");
}

static void log_lines(void **state)
{
    (void)state;
    const char *path = scratch_file("log.jsonl");
    FILE *log = log_open(path);
    StepRecord r = {1, 5.5451774444795623, 1.0 / 3, 3e-4, 1024, 123456.789, 0.25};
    log_step(log, 9, &r, 1, (const char *const[]){"a\"b"}, (const double[]){0.1});
    r.step = 2, r.loss = NAN, r.grad_norm = INFINITY;
    log_step(log, 17, &r, 0, NULL, NULL);
    log_close(log);
    size_t n;
    char *text = read_file(path, &n);
    assert_string_equal(
        text, "{\"step\": 1, \"loss\": 5.54517744, \"grad_norm\": 0.333333333, \"lr\": 0.0003, \"tokens\": 1024, "
              "\"tokens_per_second\": 123457, \"seconds\": 0.25, \"a\\\"b\": 0.1}\n"
              "{\"step\": 2, \"loss\": null, \"grad_norm\": null, \"lr\": 0.00029999999999999997, \"tokens\": 1024, "
              "\"tokens_per_second\": 123457, \"seconds\": 0.25}\n");
    free(text);
}

static void log_to_full_disk(void *path)
{
    FILE *log = log_open(path);
    log_step(log, 9, &(StepRecord){0}, 0, NULL, NULL);
}

static void log_faults(void **state)
{
    (void)state;
    expect_fatal(log_to_full_disk, "/dev/full", "cannot write the log /dev/full: No space left on device");
    expect_fatal(log_to_full_disk, (void *)scratch_file("none/x"), "No such file");
}

int main(void)
{
    program_name = "test_checkpoint";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_is_by_element), cmocka_unit_test(saved_is_loaded), cmocka_unit_test(gradients_are_scaled),
        cmocka_unit_test(names_and_dtypes), cmocka_unit_test(harmless_left_overs), cmocka_unit_test(refused_weights),
        cmocka_unit_test(log_lines), cmocka_unit_test(log_faults),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
