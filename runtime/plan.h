// plan.h: the plan file, where compiler and runtime meet. Little-endian, mapped read-only.
//
//   PlanHeader | PlanSection[PLAN_SECTIONS] | section data, each 16-byte aligned, in enum order
//
// Every section is an array of one fixed-size record below. No pointers: records refer to each other by
// index, to text by byte offset into the strings section (NUL-terminated; offset 0 is ""). All padding is
// zero, so equal inputs give equal bytes. The loader (plan_open) checks every index, offset, size, enum and
// string end before anything is used; a good checksum is never trusted alone.
//
// A plan holds one program for each pipeline stage; all ranks of a stage share it. Sections marked (S) are cut
// in consecutive ranges, one a stage (PlanStage); indices between them count from the beginning of the stage's
// range. plan_stage() gives a Plan whose pointers and counts are those of one stage: what executes sees no other.
//
// A step of a stage: run segment PREP; go through the schedule; run UPDATE; read the outputs. INIT runs once, after
// the parameters are set. Instructions of B and W that are marked LAST run in the last micro-batch only.
#pragma once
#include "base.h"

#define PLAN_MAGIC "picoplan"
#define PLAN_VERSION 2u
#define PLAN_MAX_DIMS 16
#define PLAN_MAX_BATCH 6

typedef uint32_t Str;  // byte offset in the strings section

enum PlanSectionId {
    PLAN_STRINGS, PLAN_INFO, PLAN_STAGES, PLAN_GROUPS, PLAN_SCALARS, PLAN_SOURCES, PLAN_KERNELS, PLAN_GEMMS,
    PLAN_COLLS, PLAN_PARTS, PLAN_TRAIN,
    // (S): cut by stage, in the order of PlanStage.range
    PLAN_INPUTS, PLAN_OUTPUTS, PLAN_PARAMS, PLAN_PARAM_AXES, PLAN_STATES, PLAN_ARENAS, PLAN_BUFFERS, PLAN_ARGS,
    PLAN_INSTRS, PLAN_SEGMENTS, PLAN_TRANSFERS, PLAN_SCHEDULE,
    PLAN_SECTIONS
};
enum { PLAN_FIRST_STAGED = PLAN_INPUTS, PLAN_STAGED = PLAN_SECTIONS - PLAN_FIRST_STAGED };

typedef struct {
    char magic[8];
    uint32_t version, nsections;
    uint64_t size;      // of the whole file
    uint64_t checksum;  // XXH3_64 of all bytes after this header
} PlanHeader;
typedef struct { uint32_t id, item; uint64_t offset, count; } PlanSection;  // item: bytes of one record

// The mesh: its factors, fastest in the rank first: rank = (((dp*PP + pp)*CP + cp)*KV + kv)*GROUP + group. Tensor
// parallel is two factors, so that fewer key/value heads than ranks work; together they are "tp". As bits: a set of
// factors names a communication group (all ranks that differ in these coordinates only, in rank order).
typedef enum { MESH_AT_GROUP, MESH_AT_KV, MESH_AT_CP, MESH_AT_PP, MESH_AT_DP, MESH_FACTORS } MeshFactor;
enum { MESH_GROUP = 1, MESH_KV = 2, MESH_TP = 3, MESH_CP = 4, MESH_PP = 8, MESH_DP = 16, MESH_ALL = 31 };

// A communication group of each rank. stages: bit s set: stage s belongs to it (only with MESH_PP in mesh, else 0;
// with MESH_PP and all stages: all bits set). At most 64 stages. size: its number of ranks.
typedef struct { uint64_t stages; uint32_t mesh, size; } PlanGroup;

// Classes of arenas. PERSIST: parameters, gradients (TOTAL), states, outputs, init tables, prep values, inputs.
// WORK: what lives within one segment. The others have slots, chosen by each schedule entry, and belong to a chunk:
// FB FW BW: values that F leaves for B, F for W, B for W (F for B and W counts as FW); RF RB: landing of what comes
// from the stage before (forward) and after (backward); SF SB: what is sent on and kept until it is gone.
typedef enum { CLASS_PERSIST, CLASS_WORK, CLASS_FB, CLASS_FW, CLASS_BW, CLASS_RF, CLASS_RB, CLASS_SF, CLASS_SB,
               CLASS_COUNT } PlanClass;
typedef struct { uint32_t class_, chunk, slots, pad; uint64_t bytes; } PlanArena;  // (S) bytes of one slot; [0] PERSIST, [1] WORK
enum { ARENA_PERSIST, ARENA_WORK };
typedef enum { TARGET_CPU, TARGET_CUDA } PlanTarget;
// Kinds of segments. F, B and W (weight gradients apart from B, schedule zb) exist once for each chunk of the stage.
typedef enum { SEG_INIT, SEG_PREP, SEG_F, SEG_B, SEG_W, SEG_UPDATE, SEG_COUNT } SegmentId;

typedef struct {
    Str model, config, options, source;  // config: JSON text; options: canonical text; source: the Lua text
    uint32_t target, dtype;              // PlanTarget, DType of activations
    uint32_t seq, micro_batch, accum;    // micro_batch, accum: of each dp rank; the global batch is dp times their product
    uint32_t mesh[MESH_FACTORS];         // extents by MeshFactor
    uint32_t zero, schedule, chunks;     // ZeRO stage; PlanScheduleKind; chunks a stage
    uint32_t pad;
    uint64_t parameters;                 // distinct elements of the model
    double flops_per_step;               // whole step, all ranks; 2 a multiply-add; contractions and attention
} PlanInfo;
typedef enum { SCHEDULE_AFAB, SCHEDULE_1F1B, SCHEDULE_INTERLEAVED, SCHEDULE_ZB } PlanScheduleKind;

typedef struct { uint32_t first, count; } PlanRange;
typedef struct {
    PlanRange range[PLAN_STAGED];        // of section PLAN_FIRST_STAGED + i
    uint64_t scratch_bytes;              // most that a kernel wants for each thread
    uint64_t parameters;                 // elements on one rank of the stage
    double flops;                        // a step of one rank of it
} PlanStage;

// tokens or targets of the micro-batch: int32 [micro_batch, seq]. shift 0: the window's tokens, 1: the next ones.
// limit: ids must be below it. Targets to be ignored are stored as `ignore`.
typedef struct { Str name; uint32_t buffer, shift, limit; int32_t ignore; uint32_t pad; } PlanInput;
// rank 0, f64 or f32, valid after UPDATE: "loss", "valid", "grad_norm" and what the model reports
typedef struct { Str name; uint32_t buffer; } PlanOutput;
// table of doubles that the host sets before a step (slots 0..3 before each micro-batch, see SLOT_*)
typedef struct { Str name; uint32_t slot; double standard; } PlanScalar;
enum { SLOT_FIRST, SLOT_BATCH_START, SLOT_SEED, SLOT_STEP, SLOT_COORD, SLOT_NAMED = SLOT_COORD + MESH_FACTORS };
// SLOT_FIRST: 1 in the first micro-batch of a step, else 0. SLOT_BATCH_START: global index (within the step's global batch)
// of the micro-batch's first sample: (dp * accum + micro_batch) * samples. SLOT_COORD + f: the rank's coordinate on factor f

typedef enum { INIT_NORMAL, INIT_CONSTANT } PlanInit;
typedef struct {                 // (S) on each stage that uses it
    Str name, aliases;           // HF name; aliases: further accepted names, separated by '\n'
    uint32_t buffer, grad;       // master weights; accumulated gradient (UINT32_MAX: not trained)
    uint32_t ndim, init;         // file shape: whole, unpadded, row-major
    uint64_t dims[PLAN_MAX_DIMS];
    double init_value;           // standard deviation, or the constant
    uint32_t decay, owner;       // decay 1: weight_decay, 0: weight_decay_1d; owner: of the stages that have it, this one saves it
    uint32_t key;                // index + 1 of the PLAN_GROUPS its gradient is reduced over, 0: none
    uint32_t first_axis, naxes;  // PLAN_PARAM_AXES: how the buffer lies in the file's tensor, outermost first
    uint32_t pad;
} PlanParam;
// (S) One axis of a parameter. The buffer has `local` positions; position i is position coordinate*local + i of the
// whole, the coordinate being mesh_index of the rank for the bits `mesh` (0 bits: 0). Positions from `extent` on are
// padding, always 0, and in no file. The product of the extents is that of dims. Ranks whose coordinates differ only on
// factors that no axis names hold copies.
typedef struct { uint64_t extent, local; uint32_t mesh, pad; } PlanParamAxis;
// (S) zero at first; the parameter's shape, or (with --zero) a flat part of it: whatever the buffer has
typedef struct { Str name; uint32_t param, buffer; } PlanState;

typedef struct {                 // (S)
    Str name;                    // what the model calls it, for --check-nan, --print, poison
    uint32_t dtype, arena, ndim; // arena: index of the stage's PLAN_ARENAS
    uint64_t offset, bytes, dims[PLAN_MAX_DIMS];  // bytes: at least those of dims
    uint32_t first, last;        // instruction indices between which it is alive (inclusive); PERSIST, R*, S*: 0, UINT32_MAX
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

// (S) Address: the buffer's + offset + index*stride, where index is the rank's in PLAN_GROUPS[group - 1] (group 0: 0).
// written: 0 read, 1 written, 2 both
typedef struct { uint32_t buffer, written; uint64_t offset, stride; uint32_t group, pad; } PlanArg;

// A collective over a group, on nparts tensors at once. Arguments: in and out of each part, in turn (the same address:
// in place). Part [outer][k][inner] elements, k the group's size:
//   ALL_REDUCE      in and out have outer*inner elements
//   REDUCE_SCATTER  in [outer][k][inner], out [outer][inner]: member i gets [.][i][.]; in place (outer 1): out is the
//                   member's own share of in, and what is left of in means nothing
//   ALL_GATHER      in [outer][inner], out [outer][k][inner]; in place (outer 1): in is the member's own share of out
// Sums are made in the order of the group's members, in the dtype: the same bits in every transport and on every member.
typedef enum { COLL_ALL_REDUCE, COLL_REDUCE_SCATTER, COLL_ALL_GATHER } PlanCollKind;
typedef enum { REDUCE_SUM, REDUCE_MAX, REDUCE_MIN } PlanReduce;
typedef struct { uint32_t kind, reduce, dtype, group, first_part, nparts; Str why; } PlanColl;
typedef struct { uint64_t outer, inner; } PlanPart;

// START begins a collective, WAIT (index: that START's coll) ends it: until then its arguments belong to it.
// when: ALWAYS, or LAST: in the last micro-batch of a step only (segments B and W).
typedef enum { INSTR_KERNEL, INSTR_GEMM, INSTR_START, INSTR_WAIT } PlanInstrKind;
typedef enum { WHEN_ALWAYS, WHEN_LAST } PlanWhen;
typedef struct {                // (S)
    uint32_t kind, index;       // kernel, gemm or collective
    uint32_t first_arg, nargs;  // gemm: a, b, c; START: in, out of each part; WAIT: none
    Str label;                  // op and Lua line
    uint32_t when;
} PlanInstr;
typedef struct { Str name; uint32_t id, chunk, first_instr, count; } PlanSegment;  // (S) id: SegmentId; in the order init, prep, F B W of each chunk, update

// (S) What crosses to or from another stage once a micro-batch. tag: the same number on both sides; unique in the plan.
// The ranks that talk differ in the pp coordinate only. The buffer lies in an R* class (send 0) or any slotted one (1), of
// the transfer's chunk, and crosses whole. A landing buffer has one transfer, and no instruction writes it.
typedef struct { uint32_t tag, peer, send, buffer, chunk, pad; uint64_t bytes; } PlanTransfer;

// (S) The schedule of a stage, in order. RUN: a segment. POST: the transfer's landing buffer is offered to the sender;
// ARRIVE: waits until it is filled. SEND: starts sending; SENT: waits until the buffer may be written again. A SEND may
// block until the receiver has posted; plan_check proves that all stages still come to their ends. slots: of the chunk's
// classes for this micro-batch, by class - CLASS_FB; 0 for a class that the chunk has not. Micro-batches ascend in each
// segment, in each transfer and in each slot.
enum { SLOT_CLASSES = CLASS_COUNT - CLASS_FB };
typedef enum { STEP_RUN, STEP_POST, STEP_ARRIVE, STEP_SEND, STEP_SENT } PlanStepKind;
typedef struct {
    uint32_t kind, index;        // segment, or transfer
    uint32_t micro_batch;
    uint16_t slots[SLOT_CLASSES], pad;
} PlanStep;
typedef struct { Str key, value; } PlanTrain;  // the description's train section, text as on the command line

typedef struct {
    const char *path;
    const uint8_t *base; uint64_t size;
    uint64_t count[PLAN_SECTIONS];
    const char *strings;
    const PlanInfo *info;
    const PlanStage *stages; const PlanGroup *groups; const PlanScalar *scalars; const PlanSource *sources;
    const PlanKernel *kernels; const PlanGemm *gemms; const PlanColl *colls; const PlanPart *parts; const PlanTrain *train;
    // of all stages, or of one (plan_stage)
    const PlanInput *inputs; const PlanOutput *outputs; const PlanParam *params; const PlanParamAxis *param_axes;
    const PlanState *states; const PlanArena *arenas; const PlanBuffer *buffers; const PlanArg *args;
    const PlanInstr *instrs; const PlanSegment *segments; const PlanTransfer *transfers; const PlanStep *schedule;
    uint32_t stage;              // plan_stage: which; else 0
} Plan;

// ---- the mesh
static inline uint32_t mesh_size(const uint32_t mesh[MESH_FACTORS], uint32_t bits)  // product of the factors in `bits`
{
    uint32_t n = 1;
    for (int f = 0; f < MESH_FACTORS; f++)
        if (bits >> f & 1) n *= mesh[f];
    return n;
}
static inline uint32_t mesh_coord(const uint32_t mesh[MESH_FACTORS], uint32_t rank, MeshFactor f)
{
    for (int i = 0; i < (int)f; i++) rank /= mesh[i];
    return rank % mesh[f];
}
// Place of `rank` among the ranks that differ from it on the factors in `bits` only, in rank order.
static inline uint32_t mesh_index(const uint32_t mesh[MESH_FACTORS], uint32_t rank, uint32_t bits)
{
    uint32_t at = 0;
    for (int f = MESH_FACTORS; f-- > 0;)
        if (bits >> f & 1) at = at * mesh[f] + mesh_coord(mesh, rank, (MeshFactor)f);
    return at;
}
uint32_t plan_ranks(const Plan *p);
// Ranks of group g that rank belongs to, in order; returns their number (0: its stage is not in the group). `ranks` may be
// NULL. *index: the rank's place among them.
uint32_t plan_group(const Plan *p, uint32_t g, uint32_t rank, uint32_t *ranks, uint32_t *index);
Plan plan_stage(const Plan *p, uint32_t stage);  // borrows p

// plan.c: maps and checks a plan. On any fault: false, and `message` holds one sentence without the path.
bool plan_open(Plan *p, const char *path, char *message, size_t message_size);
bool plan_check(Plan *p, const void *bytes, uint64_t size, char *message, size_t message_size);  // fuzz target; bytes stay the caller's
void plan_close(Plan *p);
static inline const char *plan_str(const Plan *p, Str s) { return p->strings + s; }
size_t plan_item_size(enum PlanSectionId id);
const char *plan_section_name(enum PlanSectionId id);
const char *plan_segment_name(SegmentId id);
const char *plan_class_name(uint32_t class_);  // PlanClass: "persist", "work", "fb", ...
// plan_print.c: the whole plan as text (picoc --print)
void plan_print(const Plan *p, FILE *out);
