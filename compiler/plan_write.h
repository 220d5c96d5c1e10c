// plan_write.h: what plan_write.c and plan_write_code.c share: the plan under construction.
#pragma once
#include "pico.h"

// A collective over several stages: its record, and the last stage (+ 1) that has it.
typedef struct { CommKey key; size_t nparts; uint32_t coll; int seen_by; } SharedColl;

typedef struct {
    const Program *prog;
    uint32_t mesh[MESH_FACTORS], chunks;
    Buf data[PLAN_SECTIONS];
    uint64_t count[PLAN_SECTIONS];
    Str *table;            // open addressing over the strings section; 0: free
    size_t cap, used;
    KernelText *kernels;   // of all stages, each once (vec)
    uint32_t *kernel_of;   // kernel, counted through all stages -> in kernels
    uint32_t *source_of;   // kernel of the plan -> source
    uint64_t parameters;   // of the model
    double flops;          // of one rank of each stage
    // the stage being written
    const Graph *g;
    const StageSchedule *schedule;
    uint64_t first[PLAN_SECTIONS];  // where its records begin
    SharedColl *shared;    // vec, of all stages
    uint32_t *coll_at;     // the stage's collectives -> index in PLAN_COLLS
    uint32_t segment_at[256];       // segment code -> segment, UINT32_MAX: none
} Writer;

// plan_write.c
Str put_string(Writer *w, const char *s);
void put(Writer *w, enum PlanSectionId id, const void *record, size_t size);
uint32_t put_group(Writer *w, CommKey key);                           // interned; index in PLAN_GROUPS
uint32_t staged_count(const Writer *w, enum PlanSectionId id);       // records of the stage so far
uint32_t buffer_index(const Writer *w, Val v);
// plan_write_code.c
void put_kernels(Writer *w);                                         // of all stages, and their sources
void put_instructions(Writer *w, int stage);
void put_segments(Writer *w);
void put_schedule(Writer *w);
void free_code(Writer *w);
