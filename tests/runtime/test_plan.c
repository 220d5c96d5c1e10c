// test_plan.c: the plan loader: accepts a good plan; refuses damage, or takes no harm from it.
#include "break_plan.h"

static bool try_plan(const uint8_t *file, size_t size, FILE *sink)
{
    Plan p;
    char why[512] = "";
    bool ok = plan_check(&p, file, size, why, sizeof why);
    if (ok)
        use_plan(&p, sink);
    else if (!*why || strchr(why, '\n'))
        fail_msg("a refusal is not one sentence: '%s'", why);
    return ok;
}

static void accepts_a_good_plan(void **state)
{
    (void)state;
    size_t size, printed;
    char *text, why[512];
    uint8_t *file = small_plan(&size);
    Plan p;
    if (!plan_check(&p, file, size, why, sizeof why)) fail_msg("%s", why);
    FILE *f = open_memstream(&text, &printed);
    plan_print(&p, f);
    fclose(f);
    assert_non_null(strstr(text, "w [8,8] axes 8 8 in w#2 gradient w.grad#3 constant 1 decay"));
    assert_non_null(strstr(text, "g0 f32 8 x 8 x 8 TN"));
    free(text);
    free(file);
}

typedef uint8_t *Maker(size_t *size);
static Maker *const makers[] = {small_plan, small_pipeline};

static void refuse_flips(Maker *make)
{
    size_t size;
    uint8_t *file = make(&size);
    FILE *sink = fopen("/dev/null", "w");
    size_t accepted = 0;
    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit++) {
            file[i] ^= (uint8_t)(1 << bit);
            if (bit == 0) assert_false(try_plan(file, size, sink)); // the checksum
            sp_seal(file, size);
            accepted += try_plan(file, size, sink);
            file[i] ^= (uint8_t)(1 << bit);
        }
    sp_seal(file, size);
    assert_true(try_plan(file, size, sink));
    assert_true(accepted < 8 * size);
    fclose(sink);
    free(file);
}

static void refuses_every_flip(void **state)
{
    (void)state;
    for (size_t i = 0; i < countof(makers); i++) refuse_flips(makers[i]);
}

static void refuses_every_length(void **state)
{
    (void)state;
    size_t size;
    uint8_t *file = small_pipeline(&size);
    FILE *sink = fopen("/dev/null", "w");
    for (size_t n = 0; n < size; n++) {
        uint8_t *cut = aligned_alloc(16, n / 16 * 16 + 16); // exact enough for the sanitizer: 16 at most beyond
        memcpy(cut, file, n);
        if (n >= sizeof(PlanHeader)) sp_seal(cut, n);
        assert_false(try_plan(cut, n, sink));
        free(cut);
    }
    fclose(sink);
    free(file);
}

// Numbers at the ends of their types, in every aligned place.
static void survive_extremes(Maker *make)
{
    static const uint64_t extremes[] = {
        0, 1, 2, 0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, (uint64_t)INT64_MAX + 1, UINT64_MAX};
    size_t size;
    uint8_t *file = make(&size), keep[8];
    FILE *sink = fopen("/dev/null", "w");
    for (size_t i = sizeof(PlanHeader); i + 8 <= size; i += 4)
        for (size_t j = 0; j < countof(extremes); j++)
            for (size_t width = 4; width <= 8; width += 4) {
                memcpy(keep, file + i, 8);
                memcpy(file + i, &extremes[j], width);
                sp_seal(file, size);
                try_plan(file, size, sink);
                memcpy(file + i, keep, 8);
            }
    fclose(sink);
    free(file);
}

static void survives_extreme_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < countof(makers); i++) survive_extremes(makers[i]);
}

#define REFUSES(...) REFUSES_OF(small_plan, __VA_ARGS__)

static void says_what_is_wrong(void **state)
{
    (void)state;
    REFUSES(PLAN_INFO, 0, PlanInfo, r->mesh[MESH_AT_CP] = 0, "has a mesh of 1 x 1 x 0");
    REFUSES(PLAN_BUFFERS, SP_X, PlanBuffer, r->offset = 4,
            "buffers[6] 'x' (offset 4, 256 bytes) leaves its arena of 256 bytes");
    REFUSES(PLAN_BUFFERS, SP_X, PlanBuffer, r->last = 3, "instrs[4] uses 'x', which lives from instruction 1 to 3");
    REFUSES(PLAN_BUFFERS, SP_Y, PlanBuffer, r->last = 4, "'y' lives from segment F to B");
    REFUSES(PLAN_BUFFERS, SP_GRAD, PlanBuffer, r->offset = 256, "'w' and buffers[3] 'w.grad' overlap at offset 256");
    REFUSES(PLAN_PARAMS, 0, PlanParam, r->dims[0] = 9, "params[0] 'w' has axes of 64 elements and dimensions of 72");
    REFUSES(PLAN_GEMMS, 0, PlanGemm, r->k = 9, "operand a beyond the 256 bytes of 'x'");
    REFUSES(PLAN_GEMMS, 0, PlanGemm, r->lda = 7, "leading dimensions 7, 8, 8");
    REFUSES(PLAN_GEMMS, 0, PlanGemm, (r->nbatch = 1, r->batch[0] = 2), "writes an element of its result twice");
    REFUSES(PLAN_GEMMS, 0, PlanGemm, (r->nbatch = 1, r->batch[0] = 2, r->stride_c[0] = INT64_MAX),
            "larger than any machine");
    REFUSES(PLAN_ARGS, 3, PlanArg, r->offset = 256, "args[3] has offset 256 in 'x'");
    REFUSES(PLAN_KERNELS, 0, PlanKernel, r->rows = 1 << 20, "runs 1048576 rows of kernel");
    REFUSES(PLAN_INSTRS, 1, PlanInstr, r->nargs = 2, "instrs[1] has 2 arguments, not 3");
    REFUSES(PLAN_SEGMENTS, 1, PlanSegment, r->first_instr = 2, "where 1 begins of 6");
    REFUSES(PLAN_SCHEDULE, 1, PlanStep, r->micro_batch = 0, "schedule[1] runs micro-batch 0 where 1 is due");
    REFUSES(PLAN_SCHEDULE, 3, PlanStep, r->slots[0] = 0, "values are not in slot 0");
    REFUSES(PLAN_BUFFERS, SP_Y, PlanBuffer, (r->arena = SP_SAVED, r->first = 1), "overlap at offset 0 while both");
    REFUSES(PLAN_SCALARS, 0, PlanScalar, r->name = 1 << 30, "scalars[0] has its name at 1073741824");
}

static void refuses_files(void **state)
{
    (void)state;
    Plan p;
    char why[512];
    assert_false(plan_open(&p, "/nonexistent/plan.bin", why, sizeof why));
    assert_string_equal(why, "No such file or directory");
    assert_false(plan_open(&p, "/", why, sizeof why));
    assert_false(plan_open(&p, write_scratch("empty", "", 0), why, sizeof why));
    size_t size;
    uint8_t *file = small_plan(&size);
    assert_true(plan_open(&p, write_scratch("good", file, size), why, sizeof why));
    plan_close(&p);
    free(file);
}

// The seeds of fuzz_plan are these plans.
static void seeds_are_current(void **state)
{
    (void)state;
    static const char *const paths[] = {"tests/fuzz/corpus/plan/small", "tests/fuzz/corpus/plan/pipeline"};
    for (size_t i = 0; i < countof(makers); i++) {
        size_t size, kept;
        uint8_t *file = makers[i](&size);
        char *seed = read_file(paths[i], &kept);
        if (!seed || kept != size || memcmp(seed, file, size) != 0)
            fail_msg("%s is out of date: write it with test_plan tests/fuzz/corpus/plan", paths[i]);
        free(seed), free(file);
    }
}

static void save(const char *folder, const char *name, const void *bytes, size_t n)
{
    Buf path = {0};
    buf_printf(&path, "%s/%s", folder, name);
    if (!write_file_atomic(path.s, bytes, n)) fatal("cannot write %s:", path.s);
    buf_free(&path);
}

static int write_seeds(const char *folder)
{
    size_t size;
    uint8_t *small = small_plan(&size);
    save(folder, "small", small, size);
    save(folder, "header-only", small, sizeof(PlanHeader));
    save(folder, "truncated", small, 1000);
    save(folder, "empty", "", 0);
    free(small);
    uint8_t *pipeline = small_pipeline(&size);
    save(folder, "pipeline", pipeline, size);
    ((PlanStep *)record(pipeline, PLAN_SCHEDULE, 4))->micro_batch = 0;
    save(folder, "pipeline-sends-twice", pipeline, size);
    free(pipeline);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) return write_seeds(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_a_good_plan),  cmocka_unit_test(refuses_every_flip),
        cmocka_unit_test(refuses_every_length), cmocka_unit_test(survives_extreme_numbers),
        cmocka_unit_test(says_what_is_wrong),   cmocka_unit_test(refuses_files),
        cmocka_unit_test(seeds_are_current),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
