// dev.h: what executes instructions: a table of functions. `cpu` computes, `null` counts and computes nothing.
//
// A device is opened for one stage of a plan, by the thread that will use it, with the process's kernels loaded. Pointers are the device's; on `cpu` the host may
// use them. The executor resolves buffers to pointers and `beta` to `add`; a device knows no buffers.
#pragma once
#include "plan.h"

typedef struct Dev Dev;
struct Dev {
    const char *name;
    const Plan *plan;
    bool computes;      // false: memory holds nothing and outputs mean nothing
    int threads;
    uint64_t allocated; // bytes of arenas and scratch
    void *(*alloc)(Dev *d, uint64_t bytes);  // zero, aligned to 64, touched; lives as long as the device
    void (*prepare)(Dev *d);                 // once, before the first instruction
    void (*launch)(Dev *d, const PlanInstr *in, char *const *args, const double *scalars);
    void (*gemm)(Dev *d, const PlanInstr *in, char *const *args, bool add);
    void (*close)(Dev *d);
};

// The plan's kernels, compiled or found, loaded once in a process for all its ranks.
typedef struct Kernels Kernels;
Kernels *kernels_load(const Plan *p);
const char *kernels_described(const Kernels *k);  // for people: "40 kernels in 2 units, 1 compiled, 0.8 s"
void kernels_close(Kernels *k);

int dev_default_threads(void);  // of a process with one rank
Dev *dev_cpu_open(const Plan *stage, int threads, const Kernels *k);  // k NULL: memory only, nothing can be launched
uint64_t dev_cpu_scratch(const Plan *stage, int threads);  // bytes beside the arenas
Dev *dev_null_open(const Plan *stage);
typedef struct { uint64_t launches, gemms, kernel_bytes, gemm_bytes; double kernel_flops, gemm_flops; } NullCounts;
NullCounts *dev_null_counts(Dev *d);

// gemm_cpu.c: matrix products of the CPU. `work` holds gemm_cpu_workspace() floats (bf16 operands in fp32).
uint64_t gemm_cpu_workspace(const Plan *p);
void gemm_cpu_warm_up(const Plan *p);  // once a process
void gemm_cpu(const Plan *p, const PlanInstr *in, char *const *args, bool add, float *work, int threads);
// Bytes that a product must read and write, and its flops; for reports.
uint64_t gemm_bytes(const Plan *p, const PlanInstr *in);
double gemm_flops(const PlanGemm *g);
