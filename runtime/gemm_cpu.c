// gemm_cpu.c: C (+)= op(A) op(B) over batch dimensions: fp32 by oneDNN's sgemm, fp64 by CBLAS, bf16 through fp32.
//
// The bits of a result must not depend on the number of threads, and dnnl_sgemm's do where a side of C is
// short (it then splits k, or packs otherwise). So C is cut into blocks whose size depends on the shape
// alone, each computed by one thread; blocks and batch entries share one parallel loop. Measured with 128
// rows a block: no loss against one call on one thread. Only large products with both sides long go to
// dnnl_sgemm with all threads: there its bits were the same for 1 to 16 threads, and its packing pays.
// CBLAS may be anybody's (reference BLAS has no threads), so fp64 always runs in blocks.
//
// bf16 operands are widened to fp32 in the workspace, whole, and a bf16 result is rounded once at its end.
//
// Traps: dnnl_sgemm is row-major and takes 'N' and 'T'. It uses omp_get_max_threads() threads unless called
// inside a parallel region, and a region of one thread does not count as one: hence omp_set_num_threads(1).
#include "dev.h"
#include <cblas.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

typedef struct {
    const void *a, *b;
    void *c;
} Operands;

static uint64_t batch_count(const PlanGemm *g)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < g->nbatch; i++) n *= g->batch[i];
    return n;
}

double gemm_flops(const PlanGemm *g)
{
    return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)batch_count(g);
}

// ---- one call of a library

static void call(const PlanGemm *g, uint64_t m, uint64_t n, Operands o, bool add)
{
    if (g->dtype == F64) {
        cblas_dgemm(CblasRowMajor, g->trans_a ? CblasTrans : CblasNoTrans, g->trans_b ? CblasTrans : CblasNoTrans,
                    (int)m, (int)n, (int)g->k, 1.0, o.a, (int)g->lda, o.b, (int)g->ldb, add, o.c, (int)g->ldc);
        return;
    }
    dnnl_status_t status =
        dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)g->k, 1.0f,
                   o.a, (dnnl_dim_t)g->lda, o.b, (dnnl_dim_t)g->ldb, add, o.c, (dnnl_dim_t)g->ldc);
    if (status != dnnl_success) fatal("oneDNN's sgemm fails with status %d", (int)status);
}

// ---- blocks

typedef struct {
    uint64_t rows, cols, blocks; // of a block of C, and how many there are for each batch entry
} Blocking;

static bool all_threads_at_once(const PlanGemm *g)
{
    return g->dtype == F32 && min_of(g->m, g->n) >= 512 && g->m * g->n >= 512 * 1024 &&
           2.0 * (double)g->m * (double)g->n * (double)g->k >= 5e8;
}

// Cuts the longer side of C: 16 blocks over all the batch, but at least 64 rows and a megaflop a block.
static Blocking blocking_of(const PlanGemm *g)
{
    uint64_t side = max_of(g->m, g->n), batch = batch_count(g);
    double flops_per_row = 2.0 * (double)min_of(g->m, g->n) * (double)g->k;
    uint64_t size = (side * batch + 15) / 16;
    size = max_of(size, (uint64_t)(1e6 / flops_per_row));
    size = min_of((max_of(size, (uint64_t)64) + 31) / 32 * 32, side);
    bool by_rows = g->m >= g->n;
    return (Blocking){by_rows ? size : g->m, by_rows ? g->n : size, (side + size - 1) / size};
}

static size_t item_size(const PlanGemm *g)
{
    return g->dtype == F64 ? 8 : 4;
}

static Operands batch_entry(const PlanGemm *g, Operands o, uint64_t index)
{
    int64_t a = 0, b = 0, c = 0, item = (int64_t)item_size(g);
    for (uint32_t i = g->nbatch; i-- > 0;) {
        int64_t at = (int64_t)(index % g->batch[i]);
        index /= g->batch[i];
        a += at * g->stride_a[i];
        b += at * g->stride_b[i];
        c += at * g->stride_c[i];
    }
    return (Operands){(const char *)o.a + a * item, (const char *)o.b + b * item, (char *)o.c + c * item};
}

static void run_block(const PlanGemm *g, Operands o, Blocking k, uint64_t index, bool add)
{
    o = batch_entry(g, o, index / k.blocks);
    uint64_t block = index % k.blocks, item = item_size(g);
    bool by_rows = k.cols == g->n && k.rows < g->m;
    uint64_t row = by_rows ? block * k.rows : 0, col = by_rows ? 0 : block * k.cols;
    o.a = (const char *)o.a + row * (g->trans_a ? 1 : g->lda) * item;
    o.b = (const char *)o.b + col * (g->trans_b ? g->ldb : 1) * item;
    o.c = (char *)o.c + (row * g->ldc + col) * item;
    call(g, min_of(k.rows, g->m - row), min_of(k.cols, g->n - col), o, add);
}

static void run(const PlanGemm *g, Operands o, bool add, int threads)
{
    if (all_threads_at_once(g)) {
        for (uint64_t i = 0, n = batch_count(g); i < n; i++) call(g, g->m, g->n, batch_entry(g, o, i), add);
        return;
    }
    Blocking k = blocking_of(g);
    int64_t n = (int64_t)(batch_count(g) * k.blocks);
    bool small = gemm_flops(g) < 4e6; // less than a few parallel regions cost
    int team = small ? 1 : (int)min_of((int64_t)threads, n);
    if (team == 1) {
        omp_set_num_threads(1);
        for (int64_t i = 0; i < n; i++) run_block(g, o, k, (uint64_t)i, add);
        omp_set_num_threads(threads);
        return;
    }
#pragma omp parallel num_threads(team)
    {
        omp_set_num_threads(1); // of this thread's own regions
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < n; i++) run_block(g, o, k, (uint64_t)i, add);
    }
}

// ---- bf16 through fp32

static float widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint16_t narrow(float f) // to nearest, ties to even; NaN stays NaN
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// An operand as rows of `cols` elements: the batch dimensions in which it moves, then its rows. Its fp32 copy
// is dense in that order.
typedef struct {
    uint64_t batches, rows, cols, ld;
    uint64_t batch[PLAN_MAX_BATCH];
    int64_t stride[PLAN_MAX_BATCH], dense[PLAN_MAX_BATCH];
} Layout;

static Layout layout_of(const PlanGemm *g, int which)
{
    const int64_t *stride[] = {g->stride_a, g->stride_b, g->stride_c};
    const uint64_t rows[] = {g->trans_a ? g->k : g->m, g->trans_b ? g->n : g->k, g->m};
    const uint64_t cols[] = {g->trans_a ? g->m : g->k, g->trans_b ? g->k : g->n, g->n};
    const uint64_t ld[] = {g->lda, g->ldb, g->ldc};
    Layout l = {.batches = 1, .rows = rows[which], .cols = cols[which], .ld = ld[which]};
    for (uint32_t i = PLAN_MAX_BATCH; i-- > 0;) {
        bool moves = i < g->nbatch && stride[which][i] != 0;
        l.batch[i] = moves ? g->batch[i] : 1;
        l.stride[i] = moves ? stride[which][i] : 0;
        l.dense[i] = moves ? (int64_t)(l.batches * l.rows * l.cols) : 0;
        l.batches *= l.batch[i];
    }
    return l;
}

static int64_t row_offset(const Layout *l, uint64_t row)
{
    int64_t offset = (int64_t)(row % l->rows * l->ld);
    row /= l->rows;
    for (uint32_t i = PLAN_MAX_BATCH; i-- > 0; row /= l->batch[i])
        offset += (int64_t)(row % l->batch[i]) * l->stride[i];
    return offset;
}

static void widen_operand(const Layout *l, const uint16_t *from, float *to, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (uint64_t row = 0; row < l->batches * l->rows; row++) {
        const uint16_t *x = from + row_offset(l, row);
        for (uint64_t i = 0; i < l->cols; i++) to[row * l->cols + i] = widen(x[i]);
    }
}

static void narrow_operand(const Layout *l, const float *from, uint16_t *to, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (uint64_t row = 0; row < l->batches * l->rows; row++) {
        uint16_t *x = to + row_offset(l, row);
        for (uint64_t i = 0; i < l->cols; i++) x[i] = narrow(from[row * l->cols + i]);
    }
}

static DType operand_dtype(const Plan *p, const PlanInstr *in, uint32_t which)
{
    return (DType)p->buffers[p->args[in->first_arg + which].buffer].dtype;
}

static uint64_t elements(const Layout *l)
{
    return l->batches * l->rows * l->cols;
}

uint64_t gemm_cpu_workspace(const Plan *p)
{
    uint64_t most = 0;
    for (uint64_t i = 0; i < p->count[PLAN_INSTRS]; i++) {
        const PlanInstr *in = &p->instrs[i];
        if (in->kind != INSTR_GEMM) continue;
        uint64_t n = 0;
        for (uint32_t j = 0; j < 3; j++) {
            Layout l = layout_of(&p->gemms[in->index], (int)j);
            if (operand_dtype(p, in, j) == BF16) n += elements(&l);
        }
        most = max_of(most, n);
    }
    return most;
}

uint64_t gemm_bytes(const Plan *p, const PlanInstr *in)
{
    uint64_t bytes = 0;
    for (uint32_t j = 0; j < 3; j++) {
        Layout l = layout_of(&p->gemms[in->index], (int)j);
        bytes += elements(&l) * (uint64_t)dtype_bytes(operand_dtype(p, in, j));
    }
    return bytes;
}

void gemm_cpu(const Plan *p, const PlanInstr *in, char *const *args, bool add, float *work, int threads)
{
    PlanGemm g = p->gemms[in->index];
    if (g.dtype == BF16) g.dtype = F32;
    int64_t *stride[] = {g.stride_a, g.stride_b, g.stride_c};
    uint64_t *ld[] = {&g.lda, &g.ldb, &g.ldc};
    void *at[3];
    Layout layout[3];
    for (uint32_t j = 0; j < 3; j++) {
        at[j] = args[j];
        layout[j] = layout_of(&p->gemms[in->index], (int)j);
        if (operand_dtype(p, in, j) != BF16) continue;
        at[j] = work;
        if (j < 2 || add) widen_operand(&layout[j], (const uint16_t *)(void *)args[j], work, threads);
        work += elements(&layout[j]);
        *ld[j] = layout[j].cols;
        memcpy(stride[j], layout[j].dense, sizeof layout[j].dense);
    }
    run(&g, (Operands){at[0], at[1], at[2]}, add, threads);
    if (operand_dtype(p, in, 2) == BF16) narrow_operand(&layout[2], at[2], (uint16_t *)(void *)args[2], threads);
}

// dnnl_sgemm generates its code at the first call of each kind: tens of milliseconds that no step should pay.
void gemm_cpu_warm_up(const Plan *p)
{
    enum { N = 64 };
    bool wanted = false;
    for (uint64_t i = 0; i < p->count[PLAN_GEMMS]; i++) wanted = wanted || p->gemms[i].dtype != F64;
    if (!wanted) return;
    float *x = xcalloc(3 * N * N, sizeof *x);
    for (int kind = 0; kind < 8; kind++) {
        PlanGemm g = {.m = N, .n = N, .k = N, .lda = N, .ldb = N, .ldc = N, .dtype = F32};
        g.trans_a = kind & 1;
        g.trans_b = kind >> 1 & 1;
        call(&g, N, N, (Operands){x, x + N * N, x + 2 * N * N}, kind >> 2);
    }
    free(x);
}
