// pico.h: the whole compiler in one header, grouped by file, in pipeline order.
//
//   model.lua -front-> grad -> shard -> cut -> bucket -> save -> select -> fuse -> order -> place -> emit -> plan file
//
// From cut on there is one Graph for each pipeline stage, and the passes run on each of them.
//
// A Graph is one array of nodes in topological order: a node's operands have smaller indices. Passes append
// nodes or rewrite operands through graph_rewrite(); they never recurse. Values are indices (Val; 0 is none).
// Axes, strings, places and op calls are interned, so equality is ==. Nothing depends on pointer or hash order.
#pragma once
#include "../runtime/base.h"
#include "../runtime/plan.h"
#include "pipeline.h"

typedef uint32_t Val;   // a node's index; 0: none
typedef uint16_t Axis;  // an interned {name, extent}; 0: none
typedef uint32_t Loc;   // an interned place {file, line}; 0: unknown
enum { MAX_AXES = 16 };

// ---------------------------------------------------------------------------------------------- scalar functions
// One row a function; all knowledge of it is here, in grad.c (D_<NAME>, missing ones do not link) and in the
// preludes of templates/ (p_* functions, once for C and once for CUDA; T is float or double).
//   X(enum, dump name, operands, linear in operand (bit mask), zero at zero, text with $1 $2 $3 and $T)
// linear: scaling that operand scales the result. zero: f(0, ..) = 0 (padding stays 0 without a mask).
#define FUNCTIONS(X)                                              \
    X(NEG,     "neg",     1, 1, 1, "(-$1)")                       \
    X(ADD,     "add",     2, 3, 1, "($1 + $2)")                   \
    X(SUB,     "sub",     2, 3, 1, "($1 - $2)")                   \
    X(MUL,     "mul",     2, 3, 1, "($1 * $2)")                   \
    X(DIV,     "div",     2, 1, 0, "($1 / $2)")                   \
    X(POW,     "pow",     2, 0, 0, "p_pow_$T($1, $2)")            \
    X(LT,      "lt",      2, 0, 0, "($1 < $2)")                   \
    X(LE,      "le",      2, 0, 0, "($1 <= $2)")                  \
    X(EQ,      "eq",      2, 0, 0, "($1 == $2)")                  \
    X(NE,      "ne",      2, 0, 0, "($1 != $2)")                  \
    X(AND,     "and",     2, 0, 0, "($1 && $2)")                  \
    X(OR,      "or",      2, 0, 0, "($1 || $2)")                  \
    X(NOT,     "not",     1, 0, 0, "(!$1)")                       \
    X(WHERE,   "where",   3, 0, 0, "p_where_$T($1, $2, $3)")     \
    X(EXP,     "exp",     1, 0, 0, "p_exp_$T($1)")                \
    X(LOG,     "log",     1, 0, 0, "p_log_$T($1)")                \
    X(SQRT,    "sqrt",    1, 0, 1, "p_sqrt_$T($1)")               \
    X(RSQRT,   "rsqrt",   1, 0, 0, "p_rsqrt_$T($1)")              \
    X(TANH,    "tanh",    1, 0, 1, "p_tanh_$T($1)")               \
    X(SIGMOID, "sigmoid", 1, 0, 0, "p_sigmoid_$T($1)")            \
    X(ERF,     "erf",     1, 0, 1, "p_erf_$T($1)")                \
    X(SIN,     "sin",     1, 0, 1, "p_sin_$T($1)")                \
    X(COS,     "cos",     1, 0, 0, "p_cos_$T($1)")                \
    X(ABS,     "abs",     1, 0, 1, "p_abs_$T($1)")                \
    X(SIGN,    "sign",    1, 0, 1, "p_sign_$T($1)")               \
    X(FLOOR,   "floor",   1, 0, 1, "p_floor_$T($1)")              \
    X(MIN,     "min",     2, 0, 1, "p_min_$T($1, $2)")            \
    X(MAX,     "max",     2, 0, 1, "p_max_$T($1, $2)")            \
    X(STOP,    "stop",    1, 1, 1, "$1")                          \
    X(CAST,    "cast",    1, 1, 1, "")  /* to the node's dtype; emit spells it (bf16 rounds to nearest even; to i32 truncates) */
#define X(e, ...) FN_##e,
typedef enum { FUNCTIONS(X) FN_COUNT } Fn;
#undef X
typedef struct { const char *name; int arity; unsigned linear; bool zero; const char *text; } FnInfo;
extern const FnInfo fn_info[FN_COUNT];

// ---------------------------------------------------------------------------------------------------- node kinds
//   X(enum, dump name, meaning)
#define KINDS(X)                                                                                                      \
    X(NONE, "none", "index 0, never used")                                                                            \
    X(INPUT, "input", "int32 [batch, seq] of the micro-batch; u.id: index in graph->inputs")                         \
    X(PARAM, "param", "trained tensor (f32 or f64 master); u.id: index in graph->params")                            \
    X(STATE, "state", "optimizer state, f32 or f64; u.id: index in graph->states")                                   \
    X(TOTAL, "total", "what an accumulator holds after the last micro-batch; u.id: index in graph->accs")            \
    X(SCALAR, "scalar", "f64, rank 0, set by the host; u.id: slot")                                                   \
    X(CONST, "const", "literal of any dtype, rank 0; u.num")                                                          \
    X(INDEX, "index", "i32 position on its one axis (batch: counted through the step's global batch)")               \
    X(RANDOM, "random", "f32 or f64 uniform in [0,1) by Philox on (seed, step, u.id, position); never merged")        \
    X(MAP, "map", "fn applied elementwise; operands align by axis; axes = union, first appearance")                  \
    X(REDUCE, "reduce", "u.reduce: sum, max or min of in[0] over u.axes")                                             \
    X(CONTRACT, "contract", "sum over u.axes of in[0]*in[1], both have them all, each has an axis the other lacks")  \
    X(GATHER, "gather", "in[0] with position in[1] (i32) on axis u.axis; 0 outside")                                  \
    X(SCATTER_ADD, "scatter_add", "adjoint of gather: in[0] summed into position in[1] of axis u.axis")              \
    X(VIEW, "view", "in[0] read at other positions, see ViewIndex; output axes that no index mentions broadcast")    \
    X(ATTENTION, "attention", "causal softmax attention of q k v (in[0..2]); see Attention")                          \
    X(ATTENTION_GRAD, "attention_grad", "in: q k v out lse dout; result dq; parts 1, 2: dk, dv")                      \
    X(PART, "part", "further result u.id of in[0]; attention part 1: log-sum-exp over keys, q's axes without head_dim") \
    X(ACCUMULATE, "accumulate", "adds in[0] to accumulator u.id (graph->accs) over the micro-batches")               \
    X(RESHARD, "reshard", "in[0] moved from one state over mesh axes to another; see Reshard; only passes make it")   \
    X(RECV, "recv", "what another stage sends once a micro-batch: a leaf; u.id: index in graph->transfers")          \
    X(SLICE, "slice", "this rank's flat part of the storage of leaf in[0]; u.reshard: over which group; --zero")      \
    X(UPDATE, "update", "writes in[0] to the parameter or state in[1] at the end of the step; result: the new value")
#define X(e, ...) K_##e,
typedef enum { KINDS(X) KIND_COUNT } Kind;
#undef X
typedef struct { const char *name, *meaning; } KindInfo;
extern const KindInfo kind_info[KIND_COUNT];

typedef enum { RED_SUM, RED_MAX, RED_MIN } Reduction;  // NaN is carried by all three

// Position on axis `src` of the operand: ((sum of coef*position(axis) + offset) / div) % mod  (div 1, mod 0: none).
// Source axes that are not listed are read at the same axis' position. zero: outside 0..extent-1 the value is 0;
// without it the position is always inside. Rename: one term. Pick: no term. Shift: zero. Split: two terms.
// Merge (a b) -> c: a = c / B, b = c % B. Flip: coef -1.
enum { VIEW_TERMS = 4 };
typedef struct {
    Axis src;
    uint16_t nterms;
    Axis axis[VIEW_TERMS];
    int64_t coef[VIEW_TERMS], offset, div, mod;
    bool zero;
} ViewIndex;
typedef struct { int n; ViewIndex ix[MAX_AXES]; } View;
enum { VIEW_PACK = 1 };  // Node.fn of a view that select wants copied to storage

typedef struct { Axis seq, head_dim; double scale, window; } Attention;  // window: inf, or that many positions

// Who reduces with whom: mesh factors (MESH_* bits) and, with MESH_PP among them, the stages (bit s; all that take part).
typedef struct { uint64_t stages; uint32_t mesh; } CommKey;

// What a collective does to its operand. ALL_REDUCE: P -> R, same axes. REDUCE_SCATTER: P -> S(axis), axis becomes part.
// ALL_GATHER: S -> R, part becomes axis. With axis 0 of REDUCE_SCATTER or part 0 of ALL_GATHER: of a leaf's flat storage, in
// place: `part` (`axis`) is an axis over this member's share of it. batch: those of one number (not 0) are one collective of many parts.
typedef struct {
    uint8_t how, reduce;  // PlanCollKind, PlanReduce
    CommKey key;
    Axis axis, part;      // the whole axis and its local part (ALL_REDUCE: 0)
    uint32_t batch;       // over stages: collectives begin in this order; gradients of shared parameters come first
    const char *why;      // for reports: "row-parallel sum", "sequence gather" ...
} Reshard;
enum { BATCH_LEVEL = 1 << 16 };  // numbers of the update: level * BATCH_LEVEL + which; below: gradients over stages

// Codes of Node.seg: F, B and W exist once for each chunk of a stage. They order as they may depend on each other.
enum { AT_INIT = 0, AT_PREP = 1, AT_UPDATE = 255, MAX_CHUNKS = 84 };
static inline uint8_t seg_code(SegmentId id, int chunk)
{
    return id == SEG_INIT ? AT_INIT : id == SEG_PREP ? AT_PREP : id == SEG_UPDATE ? AT_UPDATE
         : (uint8_t)(2 + 3 * chunk + ((int)id - SEG_F));
}
static inline SegmentId seg_id(uint8_t code)
{
    return code == AT_INIT ? SEG_INIT : code == AT_PREP ? SEG_PREP : code == AT_UPDATE ? SEG_UPDATE
         : (SegmentId)(SEG_F + (code - 2) % 3);
}
static inline int seg_chunk(uint8_t code) { return code < 2 || code == AT_UPDATE ? 0 : (code - 2) / 3; }

typedef struct {
    uint8_t kind, fn, dtype, seg;  // Kind, Fn (MAP; VIEW: VIEW_PACK), DType, segment code (set by pass save)
    uint8_t naxes, nin, reduce;    // reduce: Reduction
    bool backward;                 // made by grad (from the loss on), or made again in B by save
    bool again;                    // save: a copy of a forward node that B makes again
    uint8_t chunk;                 // cut: of the stage's chunks, the one it belongs to (interleaved schedules)
    int16_t layer;                 // -1 before the first layer, 0.. in it, graph->nlayers after the last
    Axis axes[MAX_AXES];           // of the result, slowest first (storage order when materialised, dense)
    Val in[6];
    Loc loc;
    uint32_t op;                   // graph->ops: the op call this node was written out from; 0: Lua surface
    union {
        double num;
        uint32_t id;
        Axis axis;
        struct { uint8_t n; Axis axes[MAX_AXES]; } over;  // REDUCE, CONTRACT: the axes summed over
        const View *view;                                 // interned by content
        const Attention *attention;
        const Reshard *reshard;                           // interned
    } u;
} Node;

typedef struct { const char *name; int64_t extent; } AxisInfo;
typedef struct { const char *file; int line; } LocInfo;
typedef struct { const char *op, *file; int first, last; } OpLines;  // where an op's definition is; first 0: made at run time
typedef struct {
    const char *name; Loc loc;     // the op; the Lua line of the call
    const OpLines *lines; int nlines;  // its definition, then those of all ops that its text calls (--explain)
} OpCall;
typedef struct { const char *name; uint32_t shift; int64_t limit; int32_t ignore; Val val; } Input;
typedef struct {
    const char *name, *aliases;    // file name; further accepted names, '\n' between
    int ndim; int64_t dims[MAX_AXES];  // file shape (groups multiplied out)
    PlanInit init; double init_value;
    bool decay;
    bool owner;                    // cut: of the stages that hold it, this one saves it and counts it in the norm
    uint32_t number;               // its index in the model as it is written (stages hold a part of all parameters)
    Val val; int acc;              // the PARAM leaf; its accumulator, -1 if it has no gradient
    Loc loc;
} Param;
typedef struct { const char *name; int param; Val val; } State;
typedef struct { const char *name; double standard; uint32_t slot; Val val; } Scalar;
// accumulator: a gradient (param >= 0) or an output that is summed over micro-batches ("loss_sum", "valid")
// key: over whom it is partial, so reduced once a step: decided by shard (tp, cp, dp) and cut (stages that share it).
typedef struct { const char *name; int param; DType dtype; Val total; CommKey key; } Acc;
typedef struct { const char *name; Val val; } Output;  // rank 0, read by the host after UPDATE
typedef struct { const char *key, *value; } TrainOption;

// A mesh axis splits an axis of values: extents by MeshFactor; which axis names go where (front: defaults, m:shard).
typedef struct { const char *axis; uint32_t mesh; } AxisMap;  // axis name (interned); MESH_* bits, 0: not split
typedef struct {
    uint32_t size[MESH_FACTORS];
    bool sp;                     // sequence parallel between tensor-parallel regions
} Mesh;
// What crosses to or from another stage. val: what is sent; or the RECV leaf. backward: a cotangent.
typedef struct { uint32_t tag, peer; bool send, backward; uint8_t chunk; Val val; } Transfer;
// A parameter's axis before padding, by padded axis: what files and initial values have.
typedef struct { Axis padded; int64_t extent; } Padding;

typedef struct Group Group;
typedef struct Buffer Buffer;
typedef struct KernelText KernelText;

typedef struct Graph {
    const char *model, *config, *source;  // name; config as JSON text; the Lua text(s)
    DType dtype;                          // of stored activations (--dtype); compute dtype: see graph_compute_dtype
    int64_t seq, micro_batch, accum;
    Node *nodes;        // [0] unused. All of these are vecs (base.h).
    AxisInfo *axes;     // [0] unused
    LocInfo *locs;      // [0] unknown
    OpCall *ops;        // [0] none
    Input *inputs; Param *params; State *states; Scalar *scalars; Acc *accs; Output *outputs; TrainOption *train;
    const char **layers; int nlayers;
    Val loss;           // [batch, seq], one value a token, before grad
    Axis batch, seq_axis;
    AxisMap *maps;      // vec: what front says; shard reads it
    Mesh mesh;
    int stage, nstages, nchunks;  // cut; 0 1 1 before
    Transfer *transfers;          // cut (vec)
    // shard: how each parameter's axes lie in the whole (vec by param; as many axes as its node has, in its order)
    struct ParamAxes { PlanParamAxis axis[MAX_AXES]; } *param_axes;
    // stamps for nodes under construction
    Loc cur_loc; uint32_t cur_op; int16_t cur_layer; bool cur_backward; uint8_t cur_seg, cur_chunk;
    Arena arena;        // views, names
    void *cse;          // graph.c: hash table of nodes
    void *own_grads;    // grad.c: what grad_register was told (vec)
    // results of passes
    Val *first_added;   // select: by accumulator, its first ACCUMULATE in execution order (vec)
    uint8_t *saved;     // save: node -> 1 if a forward value is kept for backward (sized to the nodes, by vec)
    struct Coll *colls; // fuse (vec)
    struct Bucket *buckets;  // bucket (vec)
    Group *groups;      // fuse: in topological order (vec); order: in execution order, by segment
    uint32_t *group_of; // fuse: node -> group index + 1, 0: not computed by any (leaf, view, dead)
    uint8_t *stored;    // select/fuse: node -> 1 if its value is written to a buffer
    uint32_t *buffer_of;// place: node -> buffer index + 1 (stored nodes and leaves that have storage)
    Buffer *buffers;    // place
    KernelText *kernels;// emit
    PlanArena *arenas;  // place (vec): [ARENA_PERSIST], [ARENA_WORK], then the slotted classes in use, by chunk
    uint64_t work_bound;// place: largest sum of live bytes in WORK
    uint64_t scratch_bytes;
} Graph;

typedef enum { RECOMPUTE_NONE, RECOMPUTE_ATTENTION, RECOMPUTE_FULL } Recompute;
typedef struct {
    const char *model_path, *output, *config_path, *dot_path, *dot_level, *emit_dir, *report_path, *dump, *dump_dir,
        *stop, *explain, *print_path;
    const char **defines;  // vec of "key=value"
    int64_t seq, micro_batch, accum, tp, pp, dp, virtual_chunks, zero, drop;  // drop: see required()
    double bucket_mb;
    const char *stages;    // --stages 4,4,3,5: layers of each chunk
    PlanScheduleKind schedule;
    int sp;                // 1 demanded, 0 off, -1 where it goes
    DType dtype;
    PlanTarget target;
    Recompute recompute;
    bool no_fuse, report, time;
} Options;
extern Options options;

// ------------------------------------------------------------------------------------------------------ error.c
// The user's errors: "file:line: sentence" and the source line below. Exit 1, nothing left behind.
_Noreturn void err(const Graph *g, Loc loc, const char *fmt, ...) PRINTF_LIKE(3, 4);

// ----------------------------------------------------------------- graph.c (nodes) build.c view.c (constructors) rewrite.c
// Nodes are made here and nowhere else. Every constructor checks its operands (bug() on a compiler fault), folds
// (constants; x*1, x+0, 0*x -> 0; cast of same dtype; select on constant condition; view of view; double negation)
// and returns an existing equal node if there is one (never for RANDOM, ACCUMULATE, UPDATE).
Graph *graph_new(void);
void graph_free(Graph *g);                                    // nodes and tables; what later passes made is theirs
Axis graph_axis(Graph *g, const char *name, int64_t extent);  // interned
Loc graph_loc(Graph *g, const char *file, int line);
uint32_t graph_op(Graph *g, const char *name, Loc loc);       // not interned: one for each call
DType graph_compute_dtype(const Graph *g);                    // f64 with --dtype f64, else f32
static inline Node *node_of(Graph *g, Val v) { return &g->nodes[v]; }
static inline const char *axis_name(const Graph *g, Axis a) { return g->axes[a].name; }
static inline int64_t extent_of(const Graph *g, Axis a) { return g->axes[a].extent; }
int axis_find(const Node *n, Axis a);                         // position of a in n->axes, or -1
static inline bool has_axis(const Node *n, Axis a) { return axis_find(n, a) >= 0; }
int64_t elements(const Graph *g, Val v);
bool const_value(const Graph *g, Val v, double *value);       // v is a CONST, or one broadcast
static inline bool is_float(DType t) { return t == F64 || t == F32 || t == BF16; }
uint64_t value_bytes(const Graph *g, Val v);

Val graph_add(Graph *g, const Node *n);                       // n as it is but for the stamps, or the equal node there is (constructors only)
void graph_forget(Graph *g);                                  // empties the table of equal nodes (graph_rewrite)
const View *graph_view(Graph *g, const View *view);           // interned
const Attention *graph_attention(Graph *g, const Attention *a);
const Reshard *graph_reshard(Graph *g, const Reshard *r);
Val make_const(Graph *g, DType dtype, double v);
Val make_index(Graph *g, Axis a);
Val make_random(Graph *g, DType dtype, int naxes, const Axis *axes);
Val make_leaf(Graph *g, Kind kind, uint32_t id, DType dtype, int naxes, const Axis *axes);  // INPUT PARAM STATE TOTAL SCALAR
// All operands of one dtype (WHERE: of 2 and 3; comparisons give BOOL; logic takes BOOL). Casts are explicit.
Val make_map(Graph *g, Fn fn, int nin, const Val *in);
Val make_map1(Graph *g, Fn fn, Val a);
Val make_map2(Graph *g, Fn fn, Val a, Val b);
Val make_where(Graph *g, Val cond, Val a, Val b);
Val make_wall(Graph *g, Val a);            // FN_STOP, but equal to no other node (results of an op with a gradient of its own)
Val make_cast(Graph *g, Val a, DType to);  // f32 -> bf16 -> f32 is kept (it rounds); bf16 -> f32 -> bf16 folds away
// Sums of f32 to rank 0 are made in f64 and rounded at the end (casts around the node). A sum over axes the operand
// lacks is the caller's to multiply. A sum of a product that qualifies becomes CONTRACT (notation 4.6).
Val make_reduce(Graph *g, Reduction r, Val a, int naxes, const Axis *axes);
Val make_reduce_raw(Graph *g, Reduction r, Val a, int naxes, const Axis *axes);  // no widening, no CONTRACT (select)
Val make_contract(Graph *g, Val a, Val b, int naxes, const Axis *axes);  // operands bf16 or f32/f64; result compute dtype
Val make_gather(Graph *g, Val table, Val index, Axis axis);
Val make_scatter_add(Graph *g, Val dy, Val index, Axis axis, int naxes, const Axis *axes);  // axes of the table
Val make_view(Graph *g, Val a, const View *view, int naxes, const Axis *axes);
Val make_rename(Graph *g, Val a, Axis from, Axis to);                 // to: equal extent, or shorter (first positions)
Val make_pick(Graph *g, Val a, Axis axis, int64_t position);
Val make_split(Graph *g, Val a, Axis axis, int n, const Axis *parts); // first slowest
Val make_merge(Graph *g, Val a, int n, const Axis *parts, Axis merged);
Val make_broadcast(Graph *g, Val a, int naxes, const Axis *axes);     // to exactly these axes, in this order (also reorders)
Val make_attention(Graph *g, Val q, Val k, Val v, const Attention *a);
Val make_attention_grad(Graph *g, Val attention, Val lse, Val dout);
Val make_part(Graph *g, Val a, uint32_t which);
Val make_reshard(Graph *g, Val a, const Reshard *r);
Val make_slice(Graph *g, Val leaf, CommKey key, Axis flat);
Val make_accumulate(Graph *g, uint32_t acc, Val v);
Val make_update(Graph *g, Val target, Val v);
uint32_t graph_acc(Graph *g, const char *name, int param, DType dtype, int naxes, const Axis *axes);  // makes its TOTAL leaf
void graph_output(Graph *g, const char *name, Val v);
void graph_map_axis(Graph *g, const char *axis, uint32_t mesh);  // replaces what was said of that axis name

void graph_mark_live(const Graph *g, uint8_t *live);  // live[nodes]: reachable from ACCUMULATE, UPDATE, outputs
// Copies the graph in order through the constructors: for each live node, `visit` may return a replacement made from
// operands already mapped (node->in refers to new values), or 0 to copy it. All side tables follow. Groups must not exist yet.
typedef Val (*Rewrite)(Graph *g, void *ctx, const Node *node, Val old);
void graph_rewrite(Graph *g, Rewrite visit, void *ctx);
Val graph_copy(Graph *g, const Node *n);              // n again, through its constructor (its axes follow from its operands)
void graph_verify(Graph *g, const char *after);       // bug() with a dump when an invariant is broken
void graph_dump(const Graph *g, FILE *out);           // one node a line, deterministic (dump.c)
void groups_dump(const Graph *g, Buf *out);            // what passes from fuse on add to that (dump_groups.c)
void node_dump(const Graph *g, Val v, Buf *out);      // that line without newline
const char *node_place(const Graph *g, Val v, Buf *out);  // "rmsnorm llama.lua:21"

// ------------------------------------------------------------------------------- front.c front_op.c (Lua, LPeg)
// Runs the description in a fresh Lua state: fills axes, inputs, params, layers, train, forward nodes and g->loss.
void front(Graph *g);
// Runs the model's optimizer (nn.adamw_step by default) once the gradients exist: makes norm, clip, updates.
// p.grad is TOTAL(acc of p) * 1/max(TOTAL(valid), 1), made by grad_scaled().
void front_optimizer(Graph *g);
void front_close(void);

// ------------------------------------------------------------------------------------------------------- grad.c
// Appends the backward graph from g->loss; accumulators loss_sum and valid (f64), one ACCUMULATE for each use of a
// parameter; calls front_optimizer; outputs loss, valid, grad_norm; removes dead code.
void grad(Graph *g);
Val grad_scaled(Graph *g, int param);
// Adjoints of `operands` (n of them; 0 where there is none) of the nodes between them and `result`, given its adjoint. For tests and own-grad ops.
void grad_of(Graph *g, Val result, Val adjoint, int n, const Val *operands, Val *adjoints);
// An op with a `grad` of its own: front_op registers, for each result, how the adjoints are made.
// dresults[i] is the adjoint of results[i] (0 as a constant where there is none); doperands may have more or fewer axes
// than the operands. A result must be a node of its own: wrap it by make_wall.
typedef void (*OwnGrad)(Graph *g, void *ctx, const Val *dresults, Val *doperands);
void grad_register(Graph *g, int nresults, const Val *results, int noperands, const Val *operands, OwnGrad f, void *ctx);

// -------------------------------------------------------------------------------------------------- shard.c pad.c
// Tensor and sequence parallel: states R, S(axis), P on each factor of tp, resharding explicit. Afterwards axes are local,
// param_axes and the accumulators' keys are set, and no value that is partial is used where that matters.
void shard(Graph *g);
void pad(Graph *g);       // first step of shard: axes that the mesh must divide and need not grow to a multiple; padding stays 0
CommKey comm_key(uint32_t mesh);
// ------------------------------------------------------------------------------------------------------- drop.c
// --drop N: the N-th thing without which a layout is wrong (reshard, owner, mask, scale, wait) is left out. False: leave it out.
// Every pass asks here when it is about to insert one; `what` and `why` are listed by --drop=list.
bool required(Graph *g, const char *what, const char *why);
enum { DROP_NONE, DROP_LIST = -1 };  // else: the number, counted from 1

// -------------------------------------------------------------------------------------------------------- cut.c
// Pipeline stages. One Graph for each: its layers, its parameters, transfers; chunks where the schedule is interleaved.
typedef struct {
    int nstages;
    Graph **stages;
    PipelineShape shape;
    Task **tasks;             // by stage
    Crossing **crossings;     // by stage: vec, parallel to stages[s]->transfers
    StageSchedule *schedules; // by stage; made by place, which knows the classes in use
} Program;
Program *cut(Graph *g);

// ----------------------------------------------------------------------------------------------------- bucket.c
// Groups the reductions of accumulators: one collective for each bucket, started when its last gradient is final.
// With --zero 1 gradients are scattered, the update runs on flat parts, parameters are gathered.
struct Bucket { uint32_t *accs; CommKey key; uint64_t bytes; };  // accs: vec of indices in graph->accs, in order of readiness
void bucket(Graph *g);

// ------------------------------------------------------------------------------------------------------- save.c
// Gives every node its segment (INIT: constants and indices alone; PREP: parameters, no inputs; F; B: backward and
// what follows the last layer; UPDATE: after TOTAL). Decides what crosses from F to B by a minimum cut over bytes:
// contractions, attention, gathers, row statistics and layer inputs are never made again unless --recompute says so.
// Values made again are cloned in B. Afterwards every F -> B edge is from a node with saved[] set.
void save(Graph *g);

// ----------------------------------------------------------------------------------------------------- select.c
// Per-node decisions from shapes alone, so that bits never depend on fusion: contractions that are no GEMM become
// REDUCE of a product, packs (copies) where a GEMM or attention operand needs one, casts of bf16 GEMM operands on a
// CPU, a REDUCE over mixed axes is split in a row part (suffix of the operand's axes) and the rest.
void select_nodes(Graph *g);
bool accumulate_is_first(const Graph *g, Val v);  // of its accumulator's ACCUMULATEs in execution order

// ---------------------------------------------------------------------------------------- layout.c (windows)
// Where a value lies: a window of the stored value `base`. ok: every view on the way is affine and stays inside.
typedef struct { bool ok; Val base; int64_t offset; int64_t stride[MAX_AXES]; } Window;  // strides by the value's axes, elements
Window window_of(const Graph *g, Val v);
bool is_storage(const Node *n);  // leaves with a buffer: INPUT PARAM STATE TOTAL RECV, and SLICE, which lies in one
Val leaf_of(const Graph *g, Val v);              // SLICE: the leaf it lies in; else v
int64_t key_ranks(const Graph *g, CommKey key);   // ranks of a group
// RESHARD v whose result lies where its operand does: of a TOTAL; or, of an UPDATE of a SLICE, in the leaf around it.
bool reshard_in_place(const Graph *g, Val v);
// Where a stored value lies, once place has run: bytes from the buffer's begin, plus stride times the rank's index in key.
typedef struct { uint32_t buffer; uint64_t offset, stride; CommKey key; } Place;
Place value_place(const Graph *g, Val v);

// ------------------------------------------------------------------------------------------------------- gemm.c
// The GEMM that computes CONTRACT v into `target`, v itself or a view of v that reorders or renames its axes. a, b: where
// operands 0 and 1 lie or, for the transposed product, 1 and 0. False: the layouts do not allow it.
typedef struct { PlanGemm gemm; Val a, b; int64_t offset_a, offset_b; } Gemm;
bool gemm_of(const Graph *g, Val v, Val target, Gemm *out);
// Which operands of a contraction (summed axes k, result axes c) to copy so that it is a GEMM, and the order of their axes
// then. ok false: none helps.
typedef struct { bool ok, pack[2]; Axis order[2][MAX_AXES]; } GemmPacks;
GemmPacks gemm_packs(const Graph *g, const Val in[2], int nk, const Axis *k, int nc, const Axis *c);

// -------------------------------------------------------------- fuse.c (fuse_merge.c fuse_keep.c fuse_group.c)
// Groups nodes to kernels. Each group is one launch.
typedef enum { G_ROW, G_COL, G_GEMM, G_ATTENTION, G_ATTENTION_GRAD, G_SCATTER, G_START, G_WAIT } GroupKind;
// G_ROW: domain dom[0..ndom), outer axes dom[0..nouter) are parallel rows; reductions run over all inner axes.
//        A node of the group has either all axes of dom or exactly the outer ones (in any order). No reduction:
//        elementwise. G_COL: dom are the axes of the operand of every REDUCE in it, in its order; red[] those summed
//        over (the last of dom is kept); its nodes have the axes of dom (before the sum) or those kept (after it).
// In group i a value v that its nodes need is: a load, if v is a storage leaf or stored[v] && group_of[v] != i + 1; a
// local of the loop (REDUCE: of the row), if group_of[v] == i + 1, written as well if stored[v]; else an expression that
// is evaluated at the place of use (MAP VIEW INDEX CONST SCALAR RANDOM; never a REDUCE or GATHER of another group).
// Nodes of the group are read by each other at the same position only (through views that only reorder or broadcast).
// ACCUMULATE writes its TOTAL (accumulate_is_first: overwrite in the first micro-batch; else always add), UPDATE its
// target. G_SCATTER: SCATTER_ADD, with its ACCUMULATE if that is its only use. An output may lie where an input of the
// same elementwise group lies (place), if that is read at the same position only: pointers are not `restrict`.
// G_GEMM: nodes CONTRACT [VIEW ..] [ACCUMULATE]; fuse fills gemm, args (a, b, c), arg_offsets and arg_written.
// G_START: nodes RESHARD (several of one batch); begins collective `coll` of
// graph->colls. G_WAIT ends it; what it moves is written by both. last: in the last micro-batch only.
struct Group {
    GroupKind kind;
    uint8_t seg;
    bool last;
    uint32_t coll;
    Val *nodes;            // vec, topological; computed here
    Val *reads, *writes;   // vecs: stored values read and written (bases of windows; accumulators by their TOTAL leaf)
    uint8_t *reads_far;    // vec beside reads: 1 if read at another position than its own (views, tables, library calls)
    Axis dom[MAX_AXES]; int ndom, nouter;
    Axis red[MAX_AXES]; int nred;
    PlanGemm gemm;         // G_GEMM
    uint32_t kernel;       // emit: index in graph->kernels (not G_GEMM)
    Val *args;             // vec, emit (G_GEMM: fuse): stored values in argument order (nodes; leaves)
    int64_t *arg_offsets;  // vec, emit: element offsets, 0 where the kernel's text holds them
    uint8_t *arg_written;  // vec, emit: 0 read, 1 written, 2 both
    uint64_t bytes, flops; // least traffic; arithmetic of contractions, attention
    const char *why;       // why it was not fused with its producer (--explain)
};
extern const char why_other_segment[];  // a Group's `why`, which explain says more about
// A collective in the making. Parts: stored values; in place where both lie at one place (reshard_in_place, or place's choice).
struct Coll {
    PlanCollKind how; PlanReduce reduce; DType dtype; CommKey key; const char *why;
    struct CollPart { Val in, out; uint64_t outer, inner; } *parts;  // vec; inner: elements of one member's share
};
void fuse(Graph *g);

// ------------------------------------------------------------------------------------------------------ order.c
// Sequence of groups by segment: a topological order that frees memory early; readers of a parameter or state
// before its update; accumulators written in a fixed order. Afterwards g->groups is sorted by (segment, position).
void groups_sort(Graph *g, bool save_memory);  // fuse: in order of creation as far as dependences allow
void order(Graph *g);

// ------------------------------------------------------------------------------------------------------ place.c
struct Buffer {
    Val val;               // the stored node or leaf
    const char *name;
    DType dtype;
    uint32_t arena;        // index of graph->arenas
    uint64_t offset, bytes;
    uint32_t first, last;  // group indices, inclusive
};
// Also makes the stage's schedule (slots need the classes in use): prog->schedules[g->stage].
void place(Graph *g, Program *prog);

// ------------------------------------------------------------------------------------------------------- emit.c
struct KernelText {
    const char *name, *label;
    const char *text[2];   // body of the whole function, C and CUDA; CUDA only if it is the target, or for --emit
    uint32_t nargs;
    uint64_t rows, grain, scratch;
    uint32_t grid[3], block[3];
    uint64_t bytes, flops;
    const char *key;       // interned: the target's body without the name, and the rows
    int stage;             // that made it; later ones have a copy of this record, under the same name
};
void emit(Graph *g, const Program *prog);                // identical kernels once, over all stages (prog NULL: this graph)
bool has_kernel(const Group *group);                     // kernel is meant: no GEMM, no collective
char *emit_unit(const Graph *g, PlanTarget t, const uint32_t *kernels, size_t n);  // a translation unit: prelude + kernels (malloc)
void emit_files(const Graph *g, const char *dir);        // --emit: one file a kernel, .c and .cu, each compiles by itself

// ------------------------------------------------------------------------- plan_write.c report.c explain.c dot.c
void plan_write(const Program *prog, const char *path);
void report(const Program *prog, FILE *text, const char *json_path);
void dot(const Program *prog, const char *path, const char *level);  // a digraph for each stage
void explain_check(const char *file_line);  // a usage error if it is not FILE:LINE; NULL is fine
void explain(const Program *prog, const char *file_line, FILE *out);
double node_flops(const Graph *g, Val v);                // 2 a multiply-add: CONTRACT, ATTENTION (causal counted full/2), ATTENTION_GRAD
