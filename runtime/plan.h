// plan.h: the plan file, where compiler and runtime meet. Little-endian, mapped read-only.
//
//   PlanHeader | PlanSection[PLAN_SECTIONS] | section data, each 16-byte aligned, in enum order
//
// Every section is an array of one fixed-size record below. No pointers: records refer to each other by
// index, to text by byte offset into the strings section (NUL-terminated; offset 0 is ""). All padding is
// zero, so equal inputs give equal bytes. The loader (plan_open) checks every index, offset, size, enum and
// string end before anything is used; a good checksum is never trusted alone.
//
// A whole training step is: run segment PREP; for each PlanStep of the schedule load the inputs of its
// micro-batch and run its segment; run UPDATE; read the outputs. INIT runs once, after the parameters are set.
#pragma once
#include "base.h"

#define PLAN_MAGIC "picoplan"
#define PLAN_VERSION 1u
#define PLAN_MAX_DIMS 16
#define PLAN_MAX_BATCH 6

typedef uint32_t Str;  // byte offset in the strings section

enum PlanSectionId {
    PLAN_STRINGS, PLAN_INFO, PLAN_INPUTS, PLAN_OUTPUTS, PLAN_SCALARS, PLAN_PARAMS, PLAN_STATES, PLAN_BUFFERS,
    PLAN_SOURCES, PLAN_KERNELS, PLAN_GEMMS, PLAN_ARGS, PLAN_INSTRS, PLAN_SEGMENTS, PLAN_SCHEDULE, PLAN_TRAIN,
    PLAN_SECTIONS
};

typedef struct {
    char magic[8];
    uint32_t version, nsections;
    uint64_t size;      // of the whole file
    uint64_t checksum;  // XXH3_64 of all bytes after this header
} PlanHeader;
typedef struct { uint32_t id, item; uint64_t offset, count; } PlanSection;  // item: bytes of one record

// Arenas. PERSIST: parameters, gradients (TOTAL), states, outputs, init tables, prep values, inputs.
// SAVED: values that live from F to B, one copy for each slot. WORK: everything else (F, B and UPDATE share it).
typedef enum { ARENA_PERSIST, ARENA_SAVED, ARENA_WORK, ARENA_COUNT } PlanArena;
typedef enum { TARGET_CPU, TARGET_CUDA } PlanTarget;
typedef enum { SEG_INIT, SEG_PREP, SEG_F, SEG_B, SEG_UPDATE, SEG_COUNT } SegmentId;

typedef struct {
    Str model, config, options, source;  // config: JSON text; options: canonical text; source: the Lua text
    uint32_t target, dtype;              // PlanTarget, DType of activations
    uint32_t seq, micro_batch, accum;
    uint32_t tp, pp, dp, cp, reserved;   // the mesh; 1 1 1 1 until later; reserved: 0
    uint64_t arena_bytes[ARENA_COUNT];   // of one slot
    uint32_t arena_slots[ARENA_COUNT], pad;
    uint64_t scratch_bytes;              // most that a kernel wants for each thread
    uint64_t parameters;                 // distinct elements
    double flops_per_step;               // 2 a multiply-add; contractions and attention, forward and backward
} PlanInfo;

// tokens or targets of the micro-batch: int32 [micro_batch, seq]. shift 0: the window's tokens, 1: the next ones.
// limit: ids must be below it. Targets to be ignored are stored as `ignore`.
typedef struct { Str name; uint32_t buffer, shift, limit; int32_t ignore; uint32_t pad; } PlanInput;
// rank 0, f64 or f32, valid after UPDATE: "loss", "valid", "grad_norm" and what the model reports
typedef struct { Str name; uint32_t buffer; } PlanOutput;
// table of doubles that the host sets before a step (slots 0..3 before each micro-batch, see SLOT_*)
typedef struct { Str name; uint32_t slot; double standard; } PlanScalar;
enum { SLOT_FIRST, SLOT_BATCH_START, SLOT_SEED, SLOT_STEP, SLOT_NAMED };
// SLOT_FIRST: 1 in the first micro-batch of a step, else 0. SLOT_BATCH_START: global index (within the step's global batch) of the micro-batch's first sample

// The axes of the mesh, as bits: a reduction key says over which of them a gradient is partial. 0 on one rank.
enum { MESH_TP = 1, MESH_CP = 2, MESH_PP = 4, MESH_DP = 8 };
typedef enum { INIT_NORMAL, INIT_CONSTANT } PlanInit;
typedef struct {
    Str name, aliases;         // HF name; aliases: further accepted names, separated by '\n'
    uint32_t buffer, grad;     // master weights; accumulated gradient (UINT32_MAX: not trained)
    uint32_t ndim, init;       // file shape, dense row-major = the buffer's order
    uint64_t dims[PLAN_MAX_DIMS];
    double init_value;         // standard deviation, or the constant
    uint32_t decay, key;       // decay 1: weight_decay, 0: weight_decay_1d; key: of the gradient's reduction, MESH_* bits
} PlanParam;
typedef struct { Str name; uint32_t param, buffer; } PlanState;  // zero at first; same shape as the parameter

typedef struct {
    Str name;                    // what the model calls it, for --check-nan, --print, poison
    uint32_t dtype, arena, ndim;
    uint64_t offset, bytes, dims[PLAN_MAX_DIMS];
    uint32_t first, last;        // instruction indices between which it is alive (inclusive); PERSIST: 0, UINT32_MAX
} PlanBuffer;

typedef struct { Str text; uint32_t lang; } PlanSource;  // a translation unit; lang: PlanTarget
// CPU: void NAME(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi): rows lo..hi of `rows`,
// independent of each other; threads take contiguous ranges that are multiples of `grain`.
// CUDA: __global__ void NAME(pointers..., const double *s) with grid x block.
typedef struct {
    Str name, label;             // C identifier; what people read ("rmsnorm llama.lua:21")
    uint32_t source, nargs;
    uint64_t rows, grain, scratch;  // scratch: bytes each thread
    uint32_t grid[3], block[3];
    uint64_t bytes, flops;       // least traffic, for reports
} PlanKernel;

// C[m,n] (+)= op(A)[m,k] op(B)[k,n], row-major, for every index of the batch dimensions (strides in elements,
// 0 allowed for a and b). beta: 0 overwrite, 1 add, 2 overwrite in the first micro-batch and add in the others.
typedef struct {
    uint64_t m, n, k, lda, ldb, ldc;
    uint32_t trans_a, trans_b, dtype, beta, nbatch, pad;
    uint64_t batch[PLAN_MAX_BATCH];
    int64_t stride_a[PLAN_MAX_BATCH], stride_b[PLAN_MAX_BATCH], stride_c[PLAN_MAX_BATCH];
} PlanGemm;
enum { BETA_ZERO, BETA_ONE, BETA_FIRST };

typedef struct { uint32_t buffer, written; uint64_t offset; } PlanArg;  // byte offset within the buffer; written: 0 read, 1 written, 2 both
typedef enum { INSTR_KERNEL, INSTR_GEMM } PlanInstrKind;
typedef struct {
    uint32_t kind, index;       // kernel or gemm
    uint32_t first_arg, nargs;  // gemm: a, b, c
    Str label;                  // op and Lua line
} PlanInstr;
typedef struct { Str name; uint32_t id, first_instr, count; } PlanSegment;  // id: SegmentId
typedef struct { uint32_t segment, micro_batch, slot, pad; } PlanStep;      // segment: index of PlanSegment
typedef struct { Str key, value; } PlanTrain;  // the description's train section, text as on the command line

typedef struct {
    const char *path;
    const uint8_t *base; uint64_t size;
    uint64_t count[PLAN_SECTIONS];
    const char *strings;
    const PlanInfo *info;
    const PlanInput *inputs; const PlanOutput *outputs; const PlanScalar *scalars;
    const PlanParam *params; const PlanState *states; const PlanBuffer *buffers;
    const PlanSource *sources; const PlanKernel *kernels; const PlanGemm *gemms; const PlanArg *args;
    const PlanInstr *instrs; const PlanSegment *segments; const PlanStep *schedule; const PlanTrain *train;
} Plan;

// plan.c: maps and checks a plan. On any fault: false, and `message` holds one sentence without the path.
bool plan_open(Plan *p, const char *path, char *message, size_t message_size);
bool plan_check(Plan *p, const void *bytes, uint64_t size, char *message, size_t message_size);  // fuzz target; bytes stay the caller's
void plan_close(Plan *p);
static inline const char *plan_str(const Plan *p, Str s) { return p->strings + s; }
size_t plan_item_size(enum PlanSectionId id);
const char *plan_section_name(enum PlanSectionId id);
const char *plan_segment_name(SegmentId id);
// plan_print.c: the whole plan as text (picoc --print)
void plan_print(const Plan *p, FILE *out);
