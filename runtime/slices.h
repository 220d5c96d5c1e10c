// slices.h: where the elements of a rank's buffer of a parameter lie in the parameter's file tensor.
//
// Both are row-major over the parameter's axes (PlanParamAxis); a buffer has `local` positions of each, cut from the
// whole by the rank's coordinates. Any range of the flat buffer falls apart into runs that are contiguous in both.
// Positions beyond an axis' extent are padding: in no run.
#pragma once
#include "plan.h"

typedef struct {
    uint64_t local, first, valid;  // positions here; the first one's in the whole; how many are no padding
    uint64_t step, file_step;      // elements from one position to the next, in the buffer and in the file
} SliceAxis;
typedef struct {
    SliceAxis axis[PLAN_MAX_DIMS];  // the last one includes all inner axes that are whole
    uint32_t naxes;
    uint64_t elements;              // of the buffer, with padding
    bool padded;
} Slice;
Slice slice_of(const Plan *stage, const PlanParam *param, uint32_t rank);

typedef struct { uint64_t local, file, n; } Run;  // elements local..local+n of the buffer: file..file+n of the tensor
typedef struct { const Slice *slice; uint64_t at, end; } Runs;  // the range of the flat buffer that is left
static inline Runs runs_of(const Slice *s, uint64_t begin, uint64_t end) { return (Runs){s, begin, end}; }
bool runs_next(Runs *r, Run *run);  // false at the end

// The parameters of all stages, each as the stage that saves it has it, sorted by name. A vec.
typedef struct { const char *name; const PlanParam *param; uint32_t stage; } ModelParam;
ModelParam *model_params(const Plan *stage);
const ModelParam *model_param(const ModelParam *all, const char *name);  // bug() if there is none
