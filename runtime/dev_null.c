// dev_null.c: a device that counts instructions, bytes and flops, and computes nothing.
//
// Memory is address space only (never touched), so that the largest plan can be counted on a small machine.
#include "dev.h"
#include <sys/mman.h>

typedef struct {
    void *at;
    size_t bytes;
} Mapping;

typedef struct {
    Dev dev;
    NullCounts counts;
    Mapping *mappings;
} Null;

static void *null_alloc(Dev *d, uint64_t bytes)
{
    Null *null = (Null *)d;
    size_t n = max_of(bytes, (uint64_t)1);
    void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        fatal("the plan needs %.0f MB of address space, which this machine does not give:", (double)n / 1e6);
    vec_push(null->mappings, (Mapping){at, n});
    d->allocated += bytes;
    return at;
}

static void null_prepare(Dev *d)
{
    (void)d;
}

static void null_launch(Dev *d, const PlanInstr *in, char *const *args, const double *scalars)
{
    Null *null = (Null *)d;
    (void)args;
    (void)scalars;
    null->counts.launches++;
    null->counts.kernel_bytes += d->plan->kernels[in->index].bytes;
    null->counts.kernel_flops += (double)d->plan->kernels[in->index].flops;
}

static void null_gemm(Dev *d, const PlanInstr *in, char *const *args, bool add)
{
    Null *null = (Null *)d;
    (void)args;
    (void)add;
    null->counts.gemms++;
    null->counts.gemm_bytes += gemm_bytes(d->plan, in);
    null->counts.gemm_flops += gemm_flops(&d->plan->gemms[in->index]);
}

NullCounts *dev_null_counts(Dev *d)
{
    return &((Null *)d)->counts;
}

static void null_close(Dev *d)
{
    Null *null = (Null *)d;
    for (size_t i = 0; i < vec_len(null->mappings); i++) munmap(null->mappings[i].at, null->mappings[i].bytes);
    vec_free(null->mappings);
    free(null);
}

Dev *dev_null_open(const Plan *stage)
{
    Null *null = xcalloc(1, sizeof *null);
    null->dev = (Dev){.name = "null",
                      .plan = stage,
                      .threads = 1,
                      .alloc = null_alloc,
                      .prepare = null_prepare,
                      .launch = null_launch,
                      .gemm = null_gemm,
                      .close = null_close};
    return &null->dev;
}
