// front_call.c: calling an op. Its nodes are written out in order on the axes that front_bind.c found; ops that it
// calls are written out in place, without rounding. At the border of the outermost call results are rounded to the
// widest dtype among the tensors, `x'` to that of x; an outermost f32(...) stays fp32.
//
// An op with a gradient of its own is written out like any other, but its results go through `stop`, and grad.c is told
// to ask own_grad() for the adjoints of the operands. The frame of the call lives on for that: the gradient sees every
// name of the op.
//
// The library's attention (pico.fused) becomes the attention node when Lua calls it with scale and window known.
#include "front.h"
#include <math.h>

enum { MAX_DEPTH = 100 };

// --------------------------------------------------------------------------------------------- split axes and back
// Views are made below a cast from bf16, so that bf16 is read.
static Val split_axis(Val v, const Split *s)
{
    Node n = *node_of(fr.g, v);
    if (!has_axis(&n, s->whole)) return v;
    if (n.kind == K_MAP && n.fn == FN_CAST)
        return make_cast(fr.g, make_split(fr.g, n.in[0], s->whole, s->n, s->parts), (DType)n.dtype);
    return make_split(fr.g, v, s->whole, s->n, s->parts);
}

static Value apply_splits(const Frame *f, Value x)
{
    for (size_t i = 0; i < vec_len(f->splits); i++) {
        const Split *s = &f->splits[i];
        int at = value_axis(&x, s->whole);
        if (at < 0) continue;
        if (x.naxes + s->n - 1 > MAX_AXES) front_err("this value would have more than %d axes", MAX_AXES);
        x.v = split_axis(x.v, s);
        if (x.d) x.d = split_axis(x.d, s);
        memmove(&x.axes[at + s->n], &x.axes[at + 1], (size_t)(x.naxes - at - 1) * sizeof(Axis));
        memcpy(&x.axes[at], s->parts, (size_t)s->n * sizeof(Axis));
        x.naxes = (uint8_t)(x.naxes + s->n - 1);
    }
    return x;
}

static Val merge_axes(Val v, const Value *x, const Split *s)
{
    if (node_of(fr.g, v)->naxes != x->naxes) v = make_broadcast(fr.g, v, x->naxes, x->axes);
    return make_merge(fr.g, v, s->n, s->parts, s->whole);
}

// A value that has all parts of a split axis has the axis again; one that has some of them is refused.
static Value merge_splits(const Frame *f, Value x)
{
    for (size_t i = 0; i < vec_len(f->splits); i++) {
        const Split *s = &f->splits[i];
        int parts = 0;
        for (int k = 0; k < s->n; k++) parts += value_axis(&x, s->parts[k]) >= 0;
        if (!parts) continue;
        if (parts < s->n)
            front_err("the result has %s, only a part of the split axis '%s': reduce it or pick from it",
                      axes_text(x.naxes, x.axes), axis_name(fr.g, s->whole));
        Value r = x;
        r.naxes = 0;
        for (int k = 0; k < x.naxes; k++) {
            bool part = false;
            for (int p = 0; p < s->n; p++) part |= s->parts[p] == x.axes[k];
            if (!part)
                r.axes[r.naxes++] = x.axes[k];
            else if (value_axis(&r, s->whole) < 0)
                r.axes[r.naxes++] = s->whole;
        }
        r.v = merge_axes(x.v, &x, s);
        r.d = !x.d ? 0 : x.d == x.v ? r.v : merge_axes(x.d, &x, s);
        x = r;
    }
    return x;
}

// -------------------------------------------------------------------------------------------------- node by node
static Axis need_axis(const Frame *f, const char *name)
{
    Axis a = op_axis(f, name);
    if (!a) bug("%s: axis '%s' is not bound", f->op->name, name);
    return a;
}

static Value eval_cast(const char *name, Value x)
{
    if (!strcmp(name, "int")) return value_int(x);
    if (!strcmp(name, "const")) return value_const(x);
    if (!strcmp(name, "bf16")) return value_bf16(x);
    if (x.type == T_COND) front_err("f32 takes a number, and this is a condition");
    return x; // f32: arithmetic is in fp32 or wider already
}

static Value eval_at(const Frame *f, const OpNode *n)
{
    AtEntry entries[MAX_AXES] = {0};
    Value x = f->vals[n->in[0]];
    if (n->nentries > MAX_AXES) front_err("more than %d axes in braces", MAX_AXES);
    for (int i = 0; i < n->nentries; i++) {
        const OpEntry *from = &n->entries[i];
        AtEntry *to = &entries[i];
        *to = (AtEntry){
            .src = need_axis(f, from->axis), .pos = from->pos, .nterms = from->nterms, .shifted = from->offset != 0};
        for (int t = 0; t < from->nterms; t++) {
            to->axis[t] = need_axis(f, from->term[t]);
            to->coef[t] = from->coef[t];
        }
        if (from->offset && !value_whole_const(&f->vals[from->offset], &to->offset))
            front_err("the index of '%s' must be a whole number that is known when compiled", from->axis);
        if (from->lookup) to->lookup = &f->vals[from->lookup];
    }
    return value_at(x, n->nentries, entries);
}

static Value eval_random(const Frame *f, const OpNode *n)
{
    Axis axes[MAX_AXES];
    int count = op_axes(f, n->naxes, n->axes, axes);
    return value_of_val(make_random(fr.g, graph_compute_dtype(fr.g), count, axes));
}

static Value eval_extent(const Frame *f, const OpNode *n)
{
    Axis a = need_axis(f, n->name);
    if (a == fr.g->batch) front_err("the size of 'batch' is how the step is split, and no part of a model");
    return value_number((double)extent_of(fr.g, a), true);
}

static Value scalar_value(const Frame *f, int i)
{
    return f->given[i] ? f->scalars[i] : f->vals[f->op->scalars[i].standard];
}

static Value eval_call(Frame *f, const OpNode *n);

static Value eval_node(Frame *f, const OpNode *n)
{
    Value in[3];
    Axis axes[MAX_AXES];
    bool operands = n->kind == N_MAP || n->kind == N_POW || n->kind == N_CAST || n->kind == N_REDUCE;
    for (int i = 0; operands && i < max_of(n->nin, 1); i++) in[i] = f->vals[n->in[i]];
    switch ((OpNodeKind)n->kind) {
    case N_NUM:
        return value_number(n->num, n->whole);
    case N_PARAM:
        return f->outer ? f->args[n->in[0] - 1] : apply_splits(f, f->args[n->in[0] - 1]);
    case N_SCALAR:
        return scalar_value(f, n->in[0] - 1);
    case N_INDEX:
        return value_index(need_axis(f, n->name));
    case N_EXTENT:
        return eval_extent(f, n);
    case N_RANDOM:
        return eval_random(f, n);
    case N_OUTER:
        return f->outer->vals[n->in[0]];
    case N_MAP:
        return value_map((Fn)n->fn, n->nin, in);
    case N_POW:
        return value_pow(in[0], in[1]);
    case N_CAST:
        return eval_cast(n->name, in[0]);
    case N_REDUCE:
        return value_reduce((ReduceWord)n->fn, in[0], op_axes(f, n->naxes, n->axes, axes), axes);
    case N_CALL:
        return eval_call(f, n);
    case N_AT:
        return eval_at(f, n);
    }
    bug("node kind %d", n->kind);
}

static void eval_nodes(Frame *f, int first, int last)
{
    fr.frame = f;
    for (int i = first; i <= last; i++) {
        f->pos = f->op->nodes[i].pos;
        f->vals[i] = eval_node(f, &f->op->nodes[i]);
    }
}

// The header's nodes: tensors, scalars and their defaults.
static int header_nodes(const OpDef *op)
{
    int last = op->nparams;
    for (int i = 1; i <= op->nnodes; i++)
        if (op->nodes[i].kind == N_SCALAR) last = i;
    return last;
}

// -------------------------------------------------------------------------------------------------------- frames
static Frame *new_frame(const OpDef *op, Frame *caller, DType dtype)
{
    Arena *a = &fr.g->arena;
    Frame *f = arena_new(a, Frame, 1);
    *f = (Frame){.op = op, .caller = caller, .dtype = dtype, .loc = caller ? caller->loc : fr.g->cur_loc};
    f->depth = caller ? caller->depth + 1 : 0;
    if (f->depth > MAX_DEPTH) front_err("ops call each other more than %d deep", MAX_DEPTH);
    f->vals = arena_new(a, Value, op->nnodes + 1);
    f->args = arena_new(a, Value, op->nparams + 1);
    f->scalars = arena_new(a, Value, op->nscalars + 1);
    f->given = arena_new(a, bool, op->nscalars + 1);
    return f;
}

static void end_frame(Frame *f)
{
    if (f->op->grad) { // own_grad needs it
        f->caller = NULL;
        return;
    }
    vec_free(f->bound);
    vec_free(f->splits);
}

static void check_locals(const Frame *f, const Value *x)
{
    for (size_t i = 0; i < vec_len(f->bound); i++)
        if (f->bound[i].local && value_axis(x, f->bound[i].axis) >= 0)
            front_err("the result still has '%s', an axis that exists inside the op only: reduce it, or take it in "
                      "brackets, as in %s[%s](..)",
                      f->bound[i].name, f->op->name, f->bound[i].name);
}

// ------------------------------------------------------------------------------------------ gradients of one's own
typedef struct {
    Frame *f;
    Value *results;
    DType dtype;
} OwnCall;

// An adjoint as the operand has its axes: summed over those it lacks, constant along those the text left out.
static Val fit_adjoint(const Frame *f, Value r, int param)
{
    const Value *like = &f->vals[param + 1], *arg = &f->args[param];
    double c;
    if (arg->type != T_FLOAT || arg->scalar) return 0;
    if (const_value(fr.g, r.v, &c) && c == 0) return 0;
    Axis extra[MAX_AXES];
    int n = 0;
    for (int i = 0; i < r.naxes; i++)
        if (value_axis(like, r.axes[i]) < 0) extra[n++] = r.axes[i];
    if (n) r = value_reduce(WORD_SUM, r, n, extra);
    r.v = value_float(&r);
    r.type = T_FLOAT;
    r.scalar = false;
    r.d = 0;
    r.v = make_broadcast(fr.g, r.v, like->naxes, like->axes);
    r.naxes = like->naxes;
    memcpy(r.axes, like->axes, sizeof r.axes);
    r = merge_splits(f, r);
    Node operand = *node_of(fr.g, arg->v);
    return make_broadcast(fr.g, r.v, operand.naxes, operand.axes);
}

static void own_grad(Graph *g, void *ctx, const Val *dresults, Val *doperands)
{
    OwnCall *call = ctx;
    Frame *f = call->f, *d = new_frame(f->op->grad, NULL, f->dtype);
    const Frame *before = fr.frame;
    DType dtype = fr.op_dtype;
    bool over_batch = fr.over_batch;
    fr.over_batch = true;
    fr.op_dtype = call->dtype;
    d->outer = f;
    d->loc = f->loc;
    Value *args = (Value *)d->args;
    for (int i = 0; i < d->op->nparams; i++) {
        const Value *r = &call->results[i];
        Val v =
            dresults[i] ? dresults[i] : make_broadcast(g, make_const(g, graph_compute_dtype(g), 0), r->naxes, r->axes);
        args[i] = apply_splits(f, value_of_val(v));
    }
    op_bind_locals(d);
    eval_nodes(d, 1, d->op->nnodes);
    for (int i = 0; i < d->op->nresults; i++) {
        d->pos = d->op->nodes[d->op->results[i]].pos;
        Value r = d->vals[d->op->results[i]];
        check_locals(d, &r);
        doperands[i] = fit_adjoint(f, r, i);
    }
    vec_free(d->bound);
    fr.frame = before;
    fr.op_dtype = dtype;
    fr.over_batch = over_batch;
}

static void register_own(Frame *f, Value *results)
{
    const OpDef *op = f->op;
    OwnCall *call = arena_new(&fr.g->arena, OwnCall, 1);
    Val *outs = NULL, *ins = NULL;
    for (int i = 0; i < op->nresults; i++) {
        Value *r = &results[i];
        if (r->type == T_FLOAT && !r->scalar) {
            if (node_of(fr.g, r->v)->naxes != r->naxes) r->v = make_broadcast(fr.g, r->v, r->naxes, r->axes);
            r->v = make_wall(fr.g, r->v);
            r->d = 0;
        }
        vec_push(outs, r->v);
    }
    for (int i = 0; i < op->nparams; i++) vec_push(ins, f->args[i].v);
    *call = (OwnCall){f, arena_new(&fr.g->arena, Value, op->nresults + 1), fr.op_dtype};
    memcpy(call->results, results, (size_t)op->nresults * sizeof *results);
    grad_register(fr.g, op->nresults, outs, op->nparams, ins, own_grad, call);
    vec_free(outs);
    vec_free(ins);
}

// --------------------------------------------------------------------------------------------- results of a call
// After the nodes: the op's results in f's terms, axes merged.
static Value *take_results(Frame *f)
{
    const OpDef *op = f->op;
    Value *results = arena_new(&fr.g->arena, Value, op->nresults + 1);
    for (int i = 0; i < op->nresults; i++) {
        f->pos = op->nodes[op->results[i]].pos;
        check_locals(f, &f->vals[op->results[i]]);
        results[i] = merge_splits(f, f->vals[op->results[i]]);
    }
    if (op->grad) register_own(f, results);
    return results;
}

static Value eval_call(Frame *f, const OpNode *n)
{
    const OpDef *op = n->callee;
    Frame *inner = new_frame(op, f, f->dtype);
    Axis brackets[MAX_AXES];
    Value *args = (Value *)inner->args;
    for (int i = 0; i < n->naxes && i < MAX_AXES; i++) brackets[i] = need_axis(f, n->axes[i]);
    for (int i = 0; i < n->nargs; i++) args[i] = f->vals[n->args[i]];
    for (int i = 0; i < n->ngiven; i++)
        for (int k = 0; k < op->nscalars; k++)
            if (op->scalars[k].name == n->given[i].name) {
                inner->given[k] = true;
                inner->scalars[k] = f->vals[n->given[i].node];
                if (!inner->scalars[k].scalar) front_err("'%s' is a scalar: it takes no tensor", op->scalars[k].name);
            }
    op_bind(inner, brackets);
    eval_nodes(inner, 1, op->nnodes);
    Value r = take_results(inner)[0];
    end_frame(inner);
    fr.frame = f;
    return r;
}

// ---------------------------------------------------------------------------------------------- the call from Lua
static const char *signature(const OpDef *op)
{
    Buf b = {0};
    buf_puts(&b, op->name);
    for (int i = 0; i < op->naxes; i++) buf_printf(&b, "%s\"%s\"", i ? ", " : "(", op->axes[i]);
    for (int i = 0; i < op->nparams; i++) buf_printf(&b, "%s%s", i || op->naxes ? ", " : "(", op->params[i].name);
    if (!op->nparams && !op->naxes) buf_puts(&b, "(");
    for (int i = 0; i < op->nscalars; i++)
        buf_printf(&b, "%s%s = ..%s",
                   i                          ? ", "
                   : op->nparams || op->naxes ? ", { "
                                              : "{ ",
                   op->scalars[i].name, i + 1 == op->nscalars ? " }" : "");
    buf_puts(&b, ")");
    const char *s = arena_strdup(&fr.g->arena, b.s);
    buf_free(&b);
    return s;
}

static int take_brackets(lua_State *L, const OpDef *op, Axis *brackets)
{
    int at = 2, n = 0;
    for (; lua_type(L, at) == LUA_TSTRING; at++) {
        Axis axes[MAX_AXES];
        int more = each_axis(L, lua_tostring(L, at), axes, op->name);
        for (int i = 0; i < more && n < MAX_AXES; i++) brackets[n++] = axes[i];
    }
    if (n != op->naxes)
        front_err("%s takes %d ax%s by name, %d given: %s", op->name, op->naxes, op->naxes == 1 ? "is" : "es", n,
                  signature(op));
    return at;
}

static void take_scalars(lua_State *L, int table, Frame *f)
{
    const OpDef *op = f->op;
    const char **names = NULL, **keys = NULL;
    for (int i = 0; i < op->nscalars; i++) vec_push(names, op->scalars[i].name);
    if (table) table_keys_sorted(L, table, op->name, &keys);
    for (size_t i = 0; i < vec_len(keys); i++) {
        int k = 0;
        while (k < op->nscalars && op->scalars[k].name != keys[i]) k++;
        if (k == op->nscalars)
            front_err("%s has no scalar '%s'%s", op->name, keys[i], near_name(keys[i], names, vec_len(names)));
        lua_getfield(L, table, keys[i]);
        const Tensor *t = tensor_test(L, -1);
        if (lua_type(L, -1) != LUA_TNUMBER && !(t && t->scalar))
            front_err("%s: the scalar '%s' is a number or m:scalar, not %s", op->name, keys[i],
                      t ? tensor_text(L, -1) : luaL_typename(L, -1));
        DType none = BOOL;
        f->scalars[k] = tensor_value(L, lua_gettop(L), &none, op->name);
        f->given[k] = true;
        lua_pop(L, 1);
    }
    for (int i = 0; i < op->nscalars; i++)
        if (!f->given[i] && !op->scalars[i].standard)
            front_err("%s needs the scalar '%s': %s", op->name, op->scalars[i].name, signature(op));
    vec_free(names);
    vec_free(keys);
}

static bool same_axes(const Value *a, const Value *b)
{
    int shared = 0;
    for (int i = 0; i < a->naxes; i++)
        for (int k = 0; k < b->naxes; k++) shared += a->axes[i] == b->axes[k];
    return shared == a->naxes && shared == b->naxes;
}

// Attention as a node: scale and window are known, keys and values have the same axes. Otherwise it is written out.
static bool fused_attention(Frame *f, Value *result)
{
    const OpDef *op = f->op;
    double scale, window;
    if (!same_axes(&f->args[1], &f->args[2])) return false;
    if (!const_value(fr.g, scalar_value(f, 0).v, &scale) || !const_value(fr.g, scalar_value(f, 1).v, &window))
        return false;
    fr.frame = NULL;
    if (!isfinite(scale)) front_err("%s: the scale is %s", op->name, number_text(scale));
    if (!(window >= 1))
        front_err("%s: a window of %s positions sees nothing: 1 or more", op->name, number_text(window));
    Attention a = {.seq = op_axis(f, "seq"), .head_dim = op_axis(f, "head_dim"), .scale = scale, .window = window};
    Val in[3];
    for (int i = 0; i < 3; i++) in[i] = value_store(&f->args[i], f->dtype);
    *result = value_of_val(make_attention(fr.g, in[0], in[1], in[2], &a));
    return true;
}

static bool keeps_f32(const OpDef *op, int result)
{
    const OpNode *n = &op->nodes[op->results[result]];
    return n->kind == N_CAST && !strcmp(n->name, "f32");
}

// x' = value: all at once, since every node above read the old values.
static void push_update(lua_State *L, Frame *f, int i, int first_tensor)
{
    const OpDef *op = f->op;
    int param = op->update_param[i];
    Tensor *t = tensor_test(L, first_tensor + param);
    const char *name = op->params[param].name;
    fr.frame = NULL; // faults of the call, not of the text
    if (!fr.optimizing) front_err("%s: %s' is an update, and updates belong in m:optimizer", op->name, name);
    if (!t || !t->base)
        front_err("%s: %s' must be given a parameter or a state, whole, and %s is none", op->name, name,
                  tensor_text(L, first_tensor + param));
    for (size_t k = 0; k < vec_len(fr.updated); k++)
        if (fr.updated[k] == t->base)
            front_err("%s: %s is updated twice, here and at %s", op->name, tensor_text(L, first_tensor + param),
                      loc_text(fr.updated_at[k]));
    fr.frame = f;
    f->pos = op->nodes[op->update_node[i]].pos;
    Value x = merge_splits(f, f->vals[op->update_node[i]]);
    Node target = *node_of(fr.g, t->v);
    bool same = x.naxes == target.naxes;
    for (int k = 0; k < x.naxes; k++) same &= has_axis(&target, x.axes[k]);
    if (!same)
        front_err("%s' has %s, and %s is stored with %s", name, axes_text(x.naxes, x.axes), name,
                  axes_text(target.naxes, target.axes));
    Value as_float = x;
    as_float.v = value_float(&x);
    as_float.type = T_FLOAT;
    as_float.scalar = false;
    Val v = value_store(&as_float, (DType)target.dtype);
    Val stored = make_update(fr.g, t->base, tensor_undo(t, v));
    vec_push(fr.updated, t->base);
    vec_push(fr.updated_at, f->loc);
    tensor_push(L, t->undo ? v : stored, op->name);
}

static int push_results(lua_State *L, Frame *f, const Value *results, int first_tensor)
{
    const OpDef *op = f->op;
    luaL_checkstack(L, op->nupdates + op->nresults + 8, NULL);
    for (int i = 0; i < op->nupdates; i++) push_update(L, f, i, first_tensor);
    for (int i = 0; i < op->nresults; i++) {
        f->pos = op->nodes[op->results[i]].pos;
        if (results[i].type == T_COND)
            front_err("the result is a condition, and a call gives numbers: write where(condition, 1, 0)");
        DType t = keeps_f32(op, i) ? wider(f->dtype, F32) : f->dtype;
        tensor_push_value(L, &results[i], t, op->name);
    }
    return op->nupdates + op->nresults;
}

int op_call(lua_State *L)
{
    front_enter(L);
    const OpDef *op = *(OpDef **)luaL_checkudata(L, 1, OP);
    Frame *f = new_frame(op, NULL, BOOL);
    Axis brackets[MAX_AXES];
    int first = take_brackets(L, op, brackets), last = lua_gettop(L), table = 0;
    if (last >= first && lua_istable(L, last)) table = last--;
    if (last - first + 1 != op->nparams)
        front_err("%s takes %d tensor%s, %d given: %s", op->name, op->nparams, op->nparams == 1 ? "" : "s",
                  last - first + 1, signature(op));
    fr.op_dtype = graph_compute_dtype(fr.g);
    for (int i = 0; i < op->nparams; i++) ((Value *)f->args)[i] = tensor_value(L, first + i, &f->dtype, op->name);
    if (f->dtype == BOOL) f->dtype = graph_compute_dtype(fr.g);
    take_scalars(L, table, f);
    fr.op_dtype = f->dtype;
    fr.g->cur_op = graph_op(fr.g, op->name, fr.g->cur_loc);
    fr.g->ops[fr.g->cur_op].lines = op->lines, fr.g->ops[fr.g->cur_op].nlines = op->nlines;
    op_bind(f, brackets);
    int header = header_nodes(op);
    eval_nodes(f, 1, header);
    Value fused;
    const Value *results = &fused;
    if (!op->attention || !fused_attention(f, &fused)) {
        eval_nodes(f, header + 1, op->nnodes);
        results = take_results(f);
    }
    int n = push_results(L, f, results, first);
    end_frame(f);
    fr.frame = NULL;
    fr.g->cur_op = 0;
    return n;
}
