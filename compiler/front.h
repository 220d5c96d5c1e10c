// front.h: private to front*.c, which turn a description in Lua into a graph.
//
//   front.c         the Lua state: sandbox, limits, running the description and the optimizer
//   front_place.c   where an error is, and what its sentence says: places, near names, lists of axes
//   front_config.c  pico.config
//   front_model.c   pico.model: axes, parameters, layers, inputs, loss
//   front_train.c   what it says of training: scalars, defaults, optimizer
//   front_tensor.c  what Lua can do with tensors: operators, braces, sum, view
//   front_value.c   arithmetic with types (notation 4.4), shared by Lua and by the text of ops
//   front_bind.c    an op's header meets its arguments (4.2)
//   front_op.c      op definitions, from notation.lua's tables to C
//   front_call.c    calling an op: its nodes written out, rounding, updates, gradients of its own
//
// One description is compiled in a process, so there is one `fr`. The user's errors end the process where they are
// found; no C function here raises a Lua error, so none is lost in a pcall.
#pragma once
#include "pico.h"
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

// ---- values: what an expression means while it is written out. Floats are in the compute dtype, whatever the storage.
typedef enum { T_FLOAT, T_WHOLE, T_COND } Type;
typedef struct {
    Val v;             // dtype: f64 if scalar, else compute dtype, i32 or bool
    Val d;             // the same computed in double, if free of tensors, random and per-step scalars; else 0
    uint8_t type;      // Type
    uint8_t naxes;
    bool scalar;       // made of numbers, extents and scalars alone: computed in double, rank 0
    Axis axes[MAX_AXES];  // the node may lack some: where folding found that it does not vary along them
} Value;
// One entry of e{axis = ...}: a lookup, or a sum of positions with factors +-1 and an offset
typedef struct {
    Axis src;
    int pos;           // in the text, 0 in Lua
    int nterms;
    Axis axis[VIEW_TERMS];
    int64_t coef[VIEW_TERMS], offset;
    bool shifted;      // an offset was written, even + 0: zero outside the axis
    const Value *lookup;
} AtEntry;
typedef enum { WORD_SUM, WORD_MEAN, WORD_MAX, WORD_MIN } ReduceWord;
extern const char *const reduce_words[4];

Value value_number(double x, bool whole);
Value value_of_val(Val v);                      // a tensor (not scalar), floats cast to the compute dtype
Value value_index(Axis a);
Value value_map(Fn fn, int n, const Value *args);
Value value_pow(Value x, Value n);
Value value_int(Value x);
Value value_bf16(Value x);
Value value_const(Value x);
Value value_reduce(ReduceWord word, Value x, int n, const Axis *axes);
Value value_product_sum(Value a, Value b, int n, const Axis *axes);  // a contraction if it is one (4.6)
Value value_at(Value x, int n, const AtEntry *entries);
Val value_float(const Value *x);                // as float of the compute dtype
Val value_store(const Value *x, DType dtype);   // with exactly its axes, rounded to dtype if float
int value_axis(const Value *x, Axis a);         // position or -1
bool value_whole_const(const Value *x, int64_t *n);  // a number known now, without fraction
DType wider(DType a, DType b);                  // of float dtypes; BOOL is none

// ---- tensors: userdata in Lua
typedef struct Undo Undo;
typedef struct {
    Val v;             // a parameter's or state's leaf (master), else the value; 0 while `product`
    bool scalar;       // value_number's kind: f64
    bool product, outer;  // a * b, not yet rounded: sum may take it whole
    Value a, b;
    DType dtype;       // of a * b
    uint32_t outer_id; // in fr.outers
    int param;         // index, or -1
    Val base;          // the PARAM or STATE leaf this is a one-to-one view of, or 0
    const Undo *undo;  // how a new value becomes one of base
    const char *name;  // for messages: parameter, input or op
} Tensor;
typedef struct { Loc loc; const char *text; bool taken; } OuterProduct;

#define TENSOR "pico.tensor"
#define SCOPE "pico.scope"
#define OP "pico.op"
#define MARK "pico.mark"
Tensor *tensor_push(lua_State *L, Val v, const char *name);
Tensor *tensor_push_value(lua_State *L, const Value *x, DType dtype, const char *name);
Tensor *tensor_test(lua_State *L, int index);        // NULL if it is none
Value tensor_value(lua_State *L, int index, DType *dtype, const char *who);  // or a number; dtype grows to hold it
Val tensor_undo(const Tensor *t, Val v);             // a new value of t as one of t->base
void tensor_library(lua_State *L);                   // adds to the module table on top
int each_axis(lua_State *L, const char *list, Axis *axes, const char *who);  // "kv head_dim"; all known

// ---- ops
typedef struct OpDef OpDef;
typedef struct { const char *name; int64_t extent; } OpPart;          // extent 0: what is left
typedef struct { const char *name; int pos, nparts; OpPart *parts; } OpAxis;
typedef struct { const char *name; int pos; bool any, rest; int naxes; OpAxis *axes; } OpParam;  // axes without ".."
typedef struct { const char *name; int pos, standard; } OpScalar;     // standard: node of the default, or 0
typedef struct {             // of braces: offset and lookup are nodes, or 0
    const char *axis;
    int pos, nterms;
    const char *term[VIEW_TERMS];
    int coef[VIEW_TERMS], offset, lookup;
} OpEntry;
typedef enum {
    N_NUM, N_PARAM, N_SCALAR, N_INDEX, N_EXTENT, N_RANDOM, N_OUTER, N_MAP, N_POW, N_CAST, N_REDUCE, N_CALL, N_AT
} OpNodeKind;
typedef struct { const char *name; int node; } OpGiven;
typedef struct {
    uint8_t kind;            // OpNodeKind
    uint8_t fn;              // N_MAP: Fn; N_REDUCE: ReduceWord
    bool whole;              // N_NUM
    int pos, nin, in[3];     // operands: nodes of the op; N_PARAM N_SCALAR N_OUTER: index
    double num;
    const char *name;        // N_INDEX N_EXTENT: axis; N_CAST: int f32 bf16 const
    int naxes; const char **axes;
    const OpDef *callee; int nargs, *args, ngiven; OpGiven *given;
    int nentries; OpEntry *entries;
} OpNode;
// Where the text of ops is; content, the whole file, is NULL if the text is not found in it.
typedef struct { const char *file, *content; size_t offset; Loc loc; const char *text; } OpText;
struct OpDef {
    const char *name;
    int pos, naxes, nparams, nscalars, nnodes, nresults, nupdates, nlocals;
    const char **axes, **locals, **local_from;
    OpParam *params;
    OpScalar *scalars;
    OpNode *nodes;           // from 1
    int *results, *update_param, *update_node;
    const OpDef *grad;
    const OpText *text;
    const OpLines *lines; int nlines;  // its own, then those of all ops it calls
    bool attention;          // calls from Lua become the attention node
};
typedef struct { const char *name; Axis axis; const char *from; bool local; } Bound;  // from: the tensor that decided
typedef struct { Axis whole; int n; Axis parts[MAX_AXES]; } Split;
typedef struct Frame {
    const OpDef *op;
    const struct Frame *caller, *outer;  // outer: in a gradient, the frame of its op
    const Value *args;                   // as given, axes not split
    Value *vals;                         // by node
    Value *scalars; bool *given;
    Bound *bound;                        // vec: header names, parts, locals
    Split *splits;                       // vec
    Axis rest[MAX_AXES]; int nrest; bool has_rest;
    const char *rest_from;
    int pos, depth;                      // pos: of the node being made, for errors
    DType dtype;                         // results are rounded to it
    Loc loc;                             // of the call in Lua
} Frame;
void op_bind(Frame *f, const Axis *brackets);
void op_bind_locals(Frame *f);
Axis op_axis(const Frame *f, const char *name);      // 0: none
int op_axes(const Frame *f, int n, const char *const *names, Axis *axes);  // ".." written out
int op_define(lua_State *L);                         // pico.op
int op_library(lua_State *L);                        // pico.library
int op_fused(lua_State *L);                          // pico.fused
int op_call(lua_State *L);
int op_tostring(lua_State *L);

// ---- the rest
typedef struct { const char *name; Axis axis; Loc loc; } NamedAxis;
typedef struct {
    Graph *g;
    lua_State *L;
    const char *graphs_dir, *library;   // folder of nn.lua; chunk name of nn.lua ("@...")
    NamedAxis *axes;                    // vec: names that Lua knows
    OpDef **ops;                        // vec: all, by definition
    OuterProduct *outers;               // vec
    const Frame *frame;                 // the op being written out: errors point into its text
    DType op_dtype;                     // operands of contractions are rounded to it
    bool optimizing;                    // in the optimizer: parameters are read as they are stored, in fp32
    bool over_batch;                    // reductions over `batch` are allowed
    bool config_read;
    Loc model_loc, loss_loc, optimizer_loc;
    Val layers_end;                     // nodes from here on come after the last layer
    uint8_t *used;                      // vec: parameter -> a call has read it
    Val *updated; Loc *updated_at;      // vecs: leaves that have an update
} Front;
extern Front fr;

void front_enter(lua_State *L);          // at the start of every function that Lua calls: sets g->cur_loc
_Noreturn void front_err(const char *fmt, ...) PRINTF_LIKE(1, 2);              // at the op text or the Lua line
_Noreturn void front_err_pos(const OpText *text, int pos, Loc call, const char *fmt, ...) PRINTF_LIKE(4, 5);
const OpText *op_text(lua_State *L, const char *text);
bool user_frame(lua_State *L, lua_Debug *ar);                // innermost frame of the user's files
const char *loc_text(Loc loc);                               // "llama.lua:12"
const char *near_name(const char *name, const char **names, size_t n);  // "; did you mean 'x'?" or ""
const char *axes_text(int n, const Axis *axes);              // "batch seq hidden", or "no axes"
const char *tensor_text(lua_State *L, int index);            // "embed[batch, seq, hidden]"
const char *number_text(double x);                           // shortest that reads back

Axis axis_known(const char *name);                           // of the names in Lua, or 0
Axis axis_define(const char *name, int64_t extent);          // or the same one again
int config_function(lua_State *L);                           // pico.config
void config_finish(void);                                    // nothing given is left unread
void mark_library(lua_State *L);                             // pico.only, pico.optional, pico.null
int model_function(lua_State *L);                            // pico.model
void model_register(lua_State *L);
void model_finish(lua_State *L, bool returned);
void check_model(lua_State *L, const char *method);          // argument 1 is the model, as in m:method(..)
int model_scalar(lua_State *L);                              // front_train.c: m:scalar ...
int model_scalars(lua_State *L);
int model_train(lua_State *L);
int model_optimizer(lua_State *L);
int model_report(lua_State *L);
void model_optimize(lua_State *L);
void model_optimized(void);
int param_field(lua_State *L, Tensor *t, const char *key);   // p.grad, p:state...; 0: no such field
int call_parser(lua_State *L, const char *function, int nargs);  // arguments on the stack; -> result or nil, error
int sorted_pairs(lua_State *L);                              // front_sorted.c: pairs and next of a description
int sorted_next(lua_State *L);
// A vec of the table's keys, interned; all must be strings.
void table_keys_sorted(lua_State *L, int index, const char *who, const char ***keys);
