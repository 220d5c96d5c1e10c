// dev.h: what executes instructions: a table of functions. `cpu` computes, `null` counts and computes nothing.
//
// A device is opened for one plan, with its kernels loaded. Pointers are the device's; on `cpu` the host may
// use them. The executor resolves buffers to pointers and `beta` to `add`; a device knows no buffers.
#pragma once
#include "plan.h"

typedef struct Dev Dev;
struct Dev {
    const char *name;
    const Plan *plan;
    bool computes;      // false: memory holds nothing and outputs mean nothing
    int threads;
    char loaded[96];    // how kernels came about, for people: "40 kernels in 2 units, 1 compiled, 0.8 s"
    uint64_t allocated; // bytes of arenas and scratch
    void *(*alloc)(Dev *d, uint64_t bytes);  // zero, aligned to 64, touched; lives as long as the device
    void (*prepare)(Dev *d);                 // once, before the first instruction
    void (*launch)(Dev *d, const PlanInstr *in, char *const *args, const double *scalars);
    void (*gemm)(Dev *d, const PlanInstr *in, char *const *args, bool add);
    void (*report)(const Dev *d, FILE *out);
    void (*close)(Dev *d);
};

int dev_default_threads(void);
Dev *dev_cpu_open(const Plan *p, int threads, bool load);  // load false: memory only, nothing is compiled
Dev *dev_null_open(const Plan *p);

// gemm_cpu.c: matrix products of the CPU. `work` holds gemm_cpu_workspace() floats (bf16 operands in fp32).
uint64_t gemm_cpu_workspace(const Plan *p);
void gemm_cpu_warm_up(const Plan *p);
void gemm_cpu(const Plan *p, const PlanInstr *in, char *const *args, bool add, float *work, int threads);
// Bytes that a product must read and write, and its flops; for reports.
uint64_t gemm_bytes(const Plan *p, const PlanInstr *in);
double gemm_flops(const PlanGemm *g);
