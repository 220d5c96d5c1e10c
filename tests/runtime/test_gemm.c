// test_gemm.c: products of the CPU against three loops, in all transpositions, batches and dtypes; the bits do
// not depend on the number of threads.
#include "dev.h"
#include "faults.h"
#include <math.h>
#include <omp.h>

enum { MOST = 1 << 20 };
static double value[3][MOST];

static void fill(void)
{
    uint32_t x = 1;
    for (int j = 0; j < 3; j++)
        for (int i = 0; i < MOST; i++) {
            x = x * 1664525u + 1013904223u;
            value[j][i] = (int)(x >> 24) / 128.0 - 1; // exact in bf16
        }
}

static uint16_t to_bf16(double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static void put(DType t, char *at, size_t i, double v)
{
    if (t == F64) ((double *)(void *)at)[i] = v;
    if (t == F32) ((float *)(void *)at)[i] = (float)v;
    if (t == BF16) ((uint16_t *)(void *)at)[i] = to_bf16(v);
}

static double get(DType t, const char *at, size_t i)
{
    return t == F64   ? ((const double *)(const void *)at)[i]
           : t == F32 ? (double)((const float *)(const void *)at)[i]
                      : from_bf16(((const uint16_t *)(const void *)at)[i]);
}

static double expected(const PlanGemm *g, const uint64_t at[3], uint64_t i, uint64_t j, bool add)
{
    double sum = add ? value[2][at[2] + i * g->ldc + j] : 0;
    for (uint64_t k = 0; k < g->k; k++)
        sum += value[0][at[0] + (g->trans_a ? k * g->lda + i : i * g->lda + k)] *
               value[1][at[1] + (g->trans_b ? j * g->ldb + k : k * g->ldb + j)];
    return sum;
}

static void compare(const PlanGemm *g, DType t, const char *c, bool add)
{
    double tolerance = t == F64 ? 1e-13 : t == F32 ? 2e-5 : 8e-3;
    for (uint64_t p = 0; p < max_of(g->batch[0], (uint64_t)1); p++)
        for (uint64_t q = 0; q < max_of(g->batch[1], (uint64_t)1); q++) {
            uint64_t at[3] = {p * (uint64_t)g->stride_a[0] + q * (uint64_t)g->stride_a[1],
                              p * (uint64_t)g->stride_b[0] + q * (uint64_t)g->stride_b[1],
                              p * (uint64_t)g->stride_c[0] + q * (uint64_t)g->stride_c[1]};
            for (uint64_t i = 0; i < g->m; i++)
                for (uint64_t j = 0; j < g->n; j++) {
                    double want = expected(g, at, i, j, add), got = get(t, c, at[2] + i * g->ldc + j);
                    if (fabs(want - got) > tolerance * (fabs(want) + sqrt((double)g->k)))
                        fail_msg("%d x %d x %d %d%d: [%d,%d] is %g, not %g", (int)g->m, (int)g->n, (int)g->k,
                                 g->trans_a, g->trans_b, (int)i, (int)j, got, want);
                }
        }
}

// Runs with 1, 2 and 5 threads, compares bits, then numbers; what lies outside of c must not change.
static void check(PlanGemm g, DType a, DType b, DType c, bool add)
{
    PlanBuffer buffers[3] = {{.dtype = a}, {.dtype = b}, {.dtype = c}};
    PlanArg args[3] = {{.buffer = 0}, {.buffer = 1}, {.buffer = 2, .written = 1}};
    PlanInstr in = {.kind = INSTR_GEMM, .nargs = 3};
    Plan p = {.buffers = buffers, .args = args, .gemms = &g, .instrs = &in};
    p.count[PLAN_INSTRS] = 1;
    uint64_t floats = gemm_cpu_workspace(&p);
    float *work = xmalloc(4 * floats + 4);
    static char mem[3][8 * MOST], first[8 * MOST];
    const DType t[3] = {a, b, c};
    static const int threads[] = {1, 2, 5};
    for (size_t run = 0; run < countof(threads); run++) {
        for (int j = 0; j < 3; j++)
            for (int i = 0; i < MOST; i++) put(t[j], mem[j], (size_t)i, value[j][i]);
        omp_set_num_threads(threads[run]);
        gemm_cpu(&p, &in, (char *[]){mem[0], mem[1], mem[2]}, add, work, threads[run]);
        if (run == 0)
            memcpy(first, mem[2], sizeof first);
        else
            assert_true(memcmp(first, mem[2], sizeof first) == 0);
    }
    compare(&g, c, mem[2], add);
    free(work);
}

static PlanGemm product(uint64_t m, uint64_t n, uint64_t k, uint32_t trans, DType t, uint64_t gap)
{
    return (PlanGemm){.m = m,
                      .n = n,
                      .k = k,
                      .trans_a = trans & 1,
                      .trans_b = trans >> 1,
                      .dtype = t,
                      .lda = (trans & 1 ? m : k) + gap,
                      .ldb = (trans & 2 ? k : n) + gap,
                      .ldc = n + gap};
}

static const uint64_t shapes[][3] = {{1, 1, 1},     {7, 5, 3},     {65, 130, 36},
                                     {300, 64, 64}, {40, 520, 33}, {130, 200, 1024}};

static void plain(void **state)
{
    (void)state;
    for (uint32_t trans = 0; trans < 4; trans++)
        for (size_t i = 0; i < countof(shapes); i++)
            for (int add = 0; add < 2; add++) {
                check(product(shapes[i][0], shapes[i][1], shapes[i][2], trans, F32, i % 3), F32, F32, F32, add);
                check(product(shapes[i][0], shapes[i][1], shapes[i][2], trans, F64, i % 3), F64, F64, F64, add);
            }
}

static void half(void **state)
{
    (void)state;
    for (uint32_t trans = 0; trans < 4; trans++)
        for (size_t i = 0; i < countof(shapes) - 1; i++) {
            check(product(shapes[i][0], shapes[i][1], shapes[i][2], trans, BF16, 1), BF16, BF16, BF16, trans & 1);
            check(product(shapes[i][0], shapes[i][1], shapes[i][2], trans, BF16, 0), BF16, BF16, F32, trans & 1);
            check(product(shapes[i][0], shapes[i][1], shapes[i][2], trans, F32, 0), F32, BF16, F32, false);
        }
}

// Heads side by side in rows of a and c, shared b (stride 0) over the outer batch.
static void batched(void **state)
{
    (void)state;
    for (uint32_t trans = 0; trans < 2; trans++) {
        PlanGemm g = product(24, 12, 20, trans * 2, F32, 0);
        g.lda = 3 * 20;
        g.ldc = 3 * 12;
        g.nbatch = 2;
        g.batch[0] = 4, g.stride_a[0] = 24 * 60, g.stride_b[0] = 0, g.stride_c[0] = 24 * 36;
        g.batch[1] = 3, g.stride_a[1] = 20, g.stride_b[1] = 240, g.stride_c[1] = 12;
        check(g, F32, F32, F32, false);
        check(g, BF16, BF16, BF16, true);
        g.dtype = F64;
        check(g, F64, F64, F64, true);
    }
}

int main(void)
{
    fill();
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain), cmocka_unit_test(half), cmocka_unit_test(batched)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
