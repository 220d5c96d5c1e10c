// emit.h: private to emit*.c: index expressions, the state of a kernel being written, templates.
//
// A kernel is a nest of loops; *levels* number the places where a line can stand: 0 before all loops, 1 in the row
// loop, and so on to `top`, the element. A value stands at the level of the innermost loop variable it depends on, so
// whatever does not vary along the inner loop is computed outside of it. Lines are kept by level and put together
// when the loop closes (emit_close); what was declared there is then forgotten.
#pragma once
#include "pico.h"

enum { IDX_TERMS = 40, MAX_LEVELS = 24, LANES = 32 };  // the templates spell lanes (32) and blocks of rows (64) out

typedef uint32_t IdxId;   // an interned index expression
typedef uint32_t PredId;  // a condition under which a value is wanted; 0: always
typedef struct { uint32_t var; int64_t coef; } Term;
typedef struct { int64_t offset; uint32_t n; Term term[IDX_TERMS]; } Idx;  // offset + sum of coef*var, by ascending var

// An integer in the text with values 0..extent-1. Loop variables are always declared. A part of another variable
// (axis of a row number) is parent / stride % extent, a quotient is (src / div) % mod, a looked-up one is the value of
// node `val`; these are declared when first used at their level.
typedef enum { VAR_LOOP, VAR_PART, VAR_QUOTIENT, VAR_VALUE } VarKind;
typedef struct {
    VarKind kind;
    const char *name;
    int64_t extent;
    int level;
    bool declared, wide, planned;  // wide: int64_t; planned: a loop that plan_loops may split or merge
    uint32_t parent, *children;  // parts; children: vec
    int64_t stride;
    IdxId src; int64_t div, mod;
    Val val; PredId pred; IdxId at[MAX_AXES];
} Var;

typedef struct { IdxId idx; int64_t extent; PredId outer; int level; const char *name; } Pred;  // 0 <= idx < extent, and outer
typedef struct { const char *text; int level; } Value;                // text: a name or a literal
typedef struct { Val val; PredId pred; IdxId at[MAX_AXES]; Value value; int next; } Memo;
typedef struct { uint32_t arg; IdxId base; PredId pred; int level; const char *name; } Pointer;
typedef struct { Val val; const char *name; int first; } ScratchRow;  // a costly value kept for later passes
typedef struct { Axis axis; IdxId idx; } Position;

typedef struct { const char *name, *text; } Hole;  // of a template

enum { MEMO_BUCKETS = 256 };
typedef struct Emitter {
    Graph *g;
    Group *group;
    PlanTarget target;
    uint8_t *inside;       // node -> 1: computed in this group
    Arena arena;           // names
    Var *vars; Idx *idxs; Pred *preds; Memo *memos; Pointer *pointers;  // vecs; item 0 of vars and preds unused
    int bucket[MEMO_BUCKETS];
    Position *positions;   // vec: where each axis of the domain stands now
    Buf lines[MAX_LEVELS], ends[MAX_LEVELS];  // ends: stores, after all lines of the level
    int top;               // level of the innermost loop
    unsigned serial;       // numbers names
    bool planning;         // record the index expressions that are used, and divisions worth splitting a loop for
    IdxId *used;           // vec
    uint32_t split_var; int64_t split_at;
    // row kernels
    int pass;              // number of the pass being written
    bool pass_natural;     // it runs through the row in the domain's order
    ScratchRow *scratch;   // vec
    Val *written;          // vec: stored by an earlier pass
    bool declared_first, declared_start;  // s[SLOT_FIRST], s[SLOT_BATCH_START] have names
    const char *guard;     // condition of stores below the top level (CUDA: one lane writes), or NULL
    uint32_t guard_var;    // likewise: only where this variable is 0 (0: none)
    KernelText *out;
} Emitter;

// emit_index.c
IdxId idx_const(Emitter *e, int64_t c);
IdxId idx_var(Emitter *e, uint32_t var);
IdxId idx_add(Emitter *e, IdxId a, IdxId b, int64_t scale);  // a + scale*b
IdxId idx_divide(Emitter *e, IdxId a, int64_t div, int64_t mod);
IdxId idx_coarser(Emitter *e, IdxId a, int64_t *extent);  // 0 <= a < extent is the same as for the result and its extent
void idx_range(const Emitter *e, IdxId a, int64_t *lo, int64_t *hi);
int idx_level(const Emitter *e, IdxId a);
const char *idx_text(Emitter *e, IdxId a);                   // declares what it needs
void idx_split(Emitter *e, IdxId a, int level, IdxId *outer, IdxId *inner);  // terms below that level, and the rest
bool idx_is_const(const Emitter *e, IdxId a, int64_t *c);
uint32_t var_new(Emitter *e, VarKind kind, const char *name, int64_t extent, int level);
uint32_t var_loop(Emitter *e, const char *name, int64_t extent, int level, bool wide);
void var_parts(Emitter *e, uint32_t parent, size_t n, const uint32_t *parts);  // slowest first
void var_declare(Emitter *e, uint32_t var);

// emit_access.c
void emit_line(Emitter *e, int level, const char *fmt, ...) PRINTF_LIKE(3, 4);
const char *emit_name(Emitter *e, const char *stem);         // stem_N
void emit_reset(Emitter *e);                                 // a new body for the same group
char *emit_close(Emitter *e, int level);                     // that level's text; what it declared is forgotten (arena)
const char *local_type(DType t);
const char *type_suffix(DType t);                            // f32, f64, i32: the end of p_ function names
const Memo *memo_find(const Emitter *e, Val v, const IdxId *at, PredId pred);
void memo_add(Emitter *e, Val v, const IdxId *at, PredId pred, Value value);
void place_axis(Emitter *e, Axis a, IdxId idx);
IdxId position_of(Emitter *e, Axis a);
void natural_position(Emitter *e, const Node *n, IdxId *at);
// 0 <= idx < extent, and outer; `known`: drop it when the ranges say that it always holds
PredId predicate(Emitter *e, PredId outer, IdxId idx, int64_t extent, bool known);
const char *predicate_text(Emitter *e, PredId p);
Val storage_of(const Graph *g, Val v);                       // the value whose buffer holds v (ACCUMULATE, UPDATE: a leaf)
bool is_loaded(const Emitter *e, Val v);
uint32_t arg_of(Emitter *e, Val v, bool read, bool written);
IdxId address_of(Emitter *e, Val storage, const Node *n, const IdxId *at);
const char *element_text(Emitter *e, uint32_t arg, IdxId address, bool written, PredId pred);  // "a0_1[i]", pointer declared
Value load(Emitter *e, Val v, const IdxId *at, PredId pred);
Value load_here(Emitter *e, Val v);
void store_here(Emitter *e, Val v, Value value, int least);  // at the end of its level, at least `least`
const char *first_flag(Emitter *e);

// emit_expr.c
Value pull(Emitter *e, Val v, const IdxId *at, PredId pred); // value of v at that position (one index an axis)
Value pull_here(Emitter *e, Val v);                          // at the loops' position
IdxId looked_up(Emitter *e, Val index, const IdxId *at, PredId pred, int64_t extent);  // a value as an index
const char *float_text(Emitter *e, double v, bool single);   // a literal

// emit_loops.c: loops for a list of axes. An axis that is only wanted in halves is two loops; neighbours that are
// always read side by side are one.
typedef struct { Axis axis; int64_t extent; int loop; } LoopPart;
typedef struct { LoopPart part[2 * MAX_AXES]; int64_t extent[2 * MAX_AXES]; int nparts, nloops; } LoopPlan;
void plan_loops(Emitter *e, LoopPlan *plan, int n, const Axis *axes, int nother, const Axis *other, void (*use)(Emitter *));
void place_plan(Emitter *e, const LoopPlan *plan, const uint32_t *vars);  // one loop variable for each loop
void place_parts(Emitter *e, uint32_t var, int n, const Axis *axes);      // one variable for all these axes
const char *axis_var_name(Emitter *e, Axis a);                             // "i_seq"
int64_t extent_product(const Graph *g, int n, const Axis *axes);
bool is_output(const Emitter *e, Val v);                                  // the group writes it
const char *arguments_text(Emitter *e);                                   // C: declarations; CUDA: parameters
char *finish_function(Emitter *e, const char *file, const char *row);     // the whole function, ${name} left open (malloc)
void append_section(Emitter *e, int level, const char *file, const char *section, const Hole *holes, size_t n);

// The bodies, as what finish_function gives.
char *emit_elements(Emitter *e);   // emit_loops.c
char *emit_row(Emitter *e);        // emit_row.c
bool row_reload(Emitter *e, Val v, Value *out);  // v at the loops' position, kept by an earlier pass
char *emit_col(Emitter *e);        // emit_col.c
char *emit_scatter(Emitter *e);
char *emit_attention(Emitter *e);  // emit_attention.c

// emit_row.c: reductions
const char *reduce_identity(const Node *n);
const char *reduce_name(const Node *n);          // "sum"
uint8_t *passes_before(const Emitter *e);        // by node: reductions that must be complete, one after the other (malloc)
const char *reduce_step(Emitter *e, const Node *n, const char *to, const char *value);  // to = to + value;

// emit_template.c
// Appends a section of a template with its holes filled. A hole alone in its line takes any number of lines, which get
// the line's indentation; none at all if it is empty. "${name}" that is not among the holes stays.
void template_expand(Buf *out, const char *file, const char *section, const Hole *holes, size_t n);
bool mentions(const char *text, const char *name);  // as a whole word
const char *embedded_template(const char *name);
