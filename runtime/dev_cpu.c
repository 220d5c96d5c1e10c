// dev_cpu.c: the CPU: generated kernels over OpenMP threads, products by gemm_cpu.c.
//
// A kernel's rows are independent, so a launch gives each thread one contiguous range of them, in whole
// grains; the bits of a result do not depend on the number of threads. Small launches stay on one thread: a
// parallel region costs a microsecond at best, and far more on a crowded machine.
//
// Denormal numbers make kernels and products 20 to 130 times slower. They are flushed to zero in every
// thread for fp32 and bf16 plans, and kept for fp64 plans, which check gradients.
//
// Kernels are a process's: ranks that are threads share them. Everything else is a rank's, and is used by the
// thread that opened the device: the floating-point mode and the number of OpenMP threads are that thread's.
//
// Traps: first touch of memory is slow (pages come from the kernel), so arenas are touched here, by all
// threads, and never in a step. Threads that OpenMP makes later inherit the floating-point mode of the thread
// that makes them. A region of one thread is no region: it costs too much where ranks outnumber cores. dnnl_sgemm allocates: large thresholds keep malloc from giving its pages back after every call.
#include "dev.h"
#include "jit.h"
#include <malloc.h>
#include <omp.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

typedef void Kernel(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi);
struct Kernels {
    Jit *jit;
    Kernel **functions;
    char described[96];
};

typedef struct {
    void *at;
    size_t bytes;
} Mapping;

typedef struct {
    Dev dev;
    const Kernels *kernels;
    char *scratch; // `scratch_stride` bytes for each thread
    uint64_t scratch_stride;
    float *gemm_work;
    Mapping *mappings;
} Cpu;

int dev_default_threads(void)
{
    return min_of(omp_get_max_threads(), 1024); // as many as --threads takes
}

static void flush_denormals(bool on)
{
#if defined __SSE2__
    enum { FLUSH_TO_ZERO = 0x8000, DENORMALS_ARE_ZERO = 0x0040 };
    unsigned bits = FLUSH_TO_ZERO | DENORMALS_ARE_ZERO;
    _mm_setcsr(on ? _mm_getcsr() | bits : _mm_getcsr() & ~bits);
#elif defined __aarch64__
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr = on ? fpcr | 1u << 24 : fpcr & ~(uint64_t)(1u << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
#else
    (void)on;
#endif
}

static void *cpu_alloc(Dev *d, uint64_t bytes)
{
    enum { PAGE = 4096 };
    Cpu *cpu = (Cpu *)d;
    size_t n = (max_of(bytes, (uint64_t)1) + PAGE - 1) / PAGE * PAGE;
    char *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        fatal("the plan needs %.0f MB of memory in one piece, which this machine does not give:", (double)n / 1e6);
    madvise(at, n, MADV_HUGEPAGE);
    if (d->threads == 1) {
        for (size_t i = 0; i < n; i += PAGE) at[i] = 0;
    } else {
#pragma omp parallel for schedule(static) num_threads(d->threads)
        for (size_t i = 0; i < n; i += PAGE) at[i] = 0;
    }
    vec_push(cpu->mappings, (Mapping){at, n});
    d->allocated += bytes;
    return at;
}

static void cpu_launch(Dev *d, const PlanInstr *in, char *const *args, const double *scalars)
{
    Cpu *cpu = (Cpu *)d;
    const PlanKernel *k = &d->plan->kernels[in->index];
    Kernel *kernel = cpu->kernels->functions[in->index];
    int64_t rows = (int64_t)k->rows, grain = (int64_t)k->grain;
    int64_t grains = (rows + grain - 1) / grain;
    uint64_t work = max_of(k->bytes, k->flops);
    if (grains < 2 || d->threads < 2 || (work > 0 && work < 1 << 15)) {
        if (rows > 0) kernel(args, scalars, cpu->scratch, 0, rows);
        return;
    }
#pragma omp parallel num_threads((int)min_of(grains, (int64_t)d->threads))
    {
        int64_t n = omp_get_num_threads(), t = omp_get_thread_num();
        int64_t part = grains / n, extra = grains % n; // no product: grains may be huge
        int64_t first = t * part + min_of(t, extra), count = part + (t < extra);
        int64_t hi = min_of((first + count) * grain, rows);
        if (count > 0) kernel(args, scalars, cpu->scratch + (uint64_t)t * cpu->scratch_stride, first * grain, hi);
    }
}

static void cpu_gemm(Dev *d, const PlanInstr *in, char *const *args, bool add)
{
    gemm_cpu(d->plan, in, args, add, ((Cpu *)d)->gemm_work, d->threads);
}

static void cpu_close(Dev *d)
{
    Cpu *cpu = (Cpu *)d;
    for (size_t i = 0; i < vec_len(cpu->mappings); i++) munmap(cpu->mappings[i].at, cpu->mappings[i].bytes);
    vec_free(cpu->mappings);
    free(cpu);
}

// ---- kernels

static void find_functions(Kernels *k, const Plan *p)
{
    uint64_t n = p->count[PLAN_KERNELS];
    k->functions = xcalloc(n, sizeof *k->functions);
    for (uint64_t i = 0; i < n; i++) {
        const char *name = plan_str(p, p->kernels[i].name);
        void *symbol = jit_symbol(k->jit, p->kernels[i].source, name);
        if (!symbol)
            fatal("'%s': kernels[%llu] '%s' is not in source %u", p->path, (unsigned long long)i, name,
                  p->kernels[i].source);
        memcpy(&k->functions[i], &symbol, sizeof symbol);
    }
}

static void refuse_target(const Plan *p)
{
    if (p->info->target != TARGET_CPU) fatal("'%s' is compiled for cuda, not for the cpu", p->path);
}

Kernels *kernels_load(const Plan *p)
{
    refuse_target(p);
    Kernels *k = xcalloc(1, sizeof *k);
    uint64_t nsources = p->count[PLAN_SOURCES];
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    gemm_cpu_warm_up(p);
    if (nsources == 0) return k;
    const char **texts = xcalloc(nsources, sizeof *texts);
    for (uint64_t i = 0; i < nsources; i++) texts[i] = plan_str(p, p->sources[i].text);
    JitStats stats;
    k->jit = jit_open(texts, nsources, &stats);
    free(texts);
    find_functions(k, p);
    snprintf(k->described, sizeof k->described, "%llu kernels in %d unit%s, %d compiled, %.1f s",
             (unsigned long long)p->count[PLAN_KERNELS], stats.units, stats.units == 1 ? "" : "s", stats.compiled,
             stats.seconds);
    return k;
}

const char *kernels_described(const Kernels *k)
{
    return k ? k->described : "";
}

void kernels_close(Kernels *k)
{
    if (!k) return;
    jit_close(k->jit);
    free(k->functions);
    free(k);
}

// ---- opening

static uint64_t scratch_stride(const Plan *stage)
{
    return (stage->stages[stage->stage].scratch_bytes + 63) & ~(uint64_t)63;
}

uint64_t dev_cpu_scratch(const Plan *stage, int threads)
{
    return scratch_stride(stage) * (uint64_t)threads + 4 * gemm_cpu_workspace(stage);
}

// Everything beside the arenas: scratch of the threads, fp32 copies of bf16 operands.
static void cpu_prepare(Dev *d)
{
    Cpu *cpu = (Cpu *)d;
    cpu->scratch_stride = scratch_stride(d->plan);
    cpu->scratch = cpu_alloc(d, cpu->scratch_stride * (uint64_t)d->threads);
    uint64_t floats = gemm_cpu_workspace(d->plan);
    if (floats) cpu->gemm_work = cpu_alloc(d, 4 * floats);
}

static void set_thread_modes(const Plan *p, int threads)
{
    bool flush = p->info->dtype != F64;
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
    flush_denormals(flush);
    if (threads == 1) return;
#pragma omp parallel num_threads(threads)
    flush_denormals(flush);
}

Dev *dev_cpu_open(const Plan *stage, int threads, const Kernels *k)
{
    refuse_target(stage);
    Cpu *cpu = xcalloc(1, sizeof *cpu);
    cpu->dev = (Dev){.name = "cpu",
                     .plan = stage,
                     .computes = true,
                     .threads = threads,
                     .alloc = cpu_alloc,
                     .prepare = cpu_prepare,
                     .launch = cpu_launch,
                     .gemm = cpu_gemm,
                     .close = cpu_close};
    cpu->kernels = k;
    set_thread_modes(stage, threads);
    return &cpu->dev;
}
