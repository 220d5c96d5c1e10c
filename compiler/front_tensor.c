// front_tensor.c: tensors in Lua. Each operator, function, brace and view is an op of its own, rounded to the widest
// dtype among its tensors. One exception makes contractions: a product waits, unrounded, until sum takes it (then it is
// one op, `sum[a](x * w)`) or anything else does (then it is rounded first).
//
// In bf16 a parameter is read through a cast of its fp32 master, except in the optimizer.
// Traps: comparisons cannot be overloaded usefully (Lua turns them into one truth value), so they are refused. A tensor
// that is a one-to-one view of a parameter or state remembers the way back, since x' may be given it.
#include "front.h"
#include <math.h>

struct Undo {
    const Undo *next; // undone after this one
    enum { UNDO_RENAME, UNDO_SPLIT, UNDO_MERGE } kind;
    int n;
    Axis from[MAX_AXES], to[MAX_AXES]; // UNDO_RENAME: to[i] becomes from[i] again; else: from are the parts
    Axis whole;
};

// ------------------------------------------------------------------------------------------------------- userdata
Tensor *tensor_push(lua_State *L, Val v, const char *name)
{
    Tensor *t = lua_newuserdatauv(L, sizeof *t, 0);
    *t = (Tensor){.v = v, .param = -1, .name = name};
    luaL_setmetatable(L, TENSOR);
    return t;
}

Tensor *tensor_push_value(lua_State *L, const Value *x, DType dtype, const char *name)
{
    Tensor *t = tensor_push(L, x->scalar ? x->v : value_store(x, dtype), name);
    t->scalar = x->scalar;
    return t;
}

Tensor *tensor_test(lua_State *L, int index)
{
    return luaL_testudata(L, index, TENSOR);
}

// The value of a tensor as it is stored: for a parameter in the model, its working copy.
static Val stored_value(Tensor *t)
{
    if (t->product) {
        if (t->outer)
            front_err(
                "%s is an outer product, each side having an axis that the other lacks, and only pico.sum takes one",
                fr.outers[t->outer_id].text);
        Value r = value_map(FN_MUL, 2, (Value[]){t->a, t->b});
        t->v = value_store(&r, t->dtype);
        t->product = false;
    }
    if (t->param >= 0) fr.used[t->param] = 1;
    bool master = !fr.optimizing && node_of(fr.g, t->v)->kind == K_PARAM;
    return master && fr.g->dtype == BF16 ? make_cast(fr.g, t->v, BF16) : t->v;
}

Value tensor_value(lua_State *L, int index, DType *dtype, const char *who)
{
    if (lua_type(L, index) == LUA_TNUMBER) {
        double x = lua_tonumber(L, index);
        return value_number(x, x == floor(x));
    }
    Tensor *t = tensor_test(L, index);
    if (!t)
        front_err("%s takes tensors and numbers, and got %s", who,
                  lua_isnoneornil(L, index) ? "nil" : luaL_typename(L, index));
    Val v = stored_value(t);
    if (t->scalar)
        return (Value){.v = v, .d = node_of(fr.g, v)->kind == K_CONST ? v : 0, .type = T_FLOAT, .scalar = true};
    DType own = (DType)node_of(fr.g, v)->dtype;
    if (is_float(own)) *dtype = wider(*dtype, own);
    return value_of_val(v);
}

static DType result_dtype(DType widest)
{
    return widest == BOOL ? graph_compute_dtype(fr.g) : widest;
}

Val tensor_undo(const Tensor *t, Val v)
{
    for (const Undo *u = t->undo; u; u = u->next) {
        AtEntry entries[MAX_AXES] = {0};
        if (u->kind == UNDO_SPLIT) v = make_split(fr.g, v, u->whole, u->n, u->from);
        if (u->kind == UNDO_MERGE) v = make_merge(fr.g, v, u->n, u->from, u->whole);
        for (int i = 0; i < u->n; i++)
            entries[i] = (AtEntry){.src = u->to[i], .nterms = 1, .axis = {u->from[i]}, .coef = {1}};
        if (u->kind == UNDO_RENAME) v = value_at(value_of_val(v), u->n, entries).v;
    }
    const Node base = *node_of(fr.g, t->base);
    return make_broadcast(fr.g, v, base.naxes, base.axes);
}

static void keep_base(const Tensor *from, Tensor *to, const Undo *how)
{
    Undo *u = arena_new(&fr.g->arena, Undo, 1);
    *u = *how;
    u->next = from->undo;
    to->base = from->base;
    to->undo = u;
}

int each_axis(lua_State *L, const char *list, Axis *axes, const char *who)
{
    (void)L;
    int n = 0;
    for (const char *s = list; *s;) {
        size_t length = strcspn(s, " ,\t\n");
        if (length) {
            const char *name = intern_n(s, length);
            if (n == MAX_AXES) front_err("%s: more than %d axes in '%s'", who, MAX_AXES, list);
            axes[n] = axis_known(name);
            const char **names = NULL;
            for (size_t i = 0; i < vec_len(fr.axes); i++) vec_push(names, fr.axes[i].name);
            if (!axes[n])
                front_err("%s: '%s' is not an axis%s", who, name,
                          near_name(name, names, vec_len(names))[0] ? near_name(name, names, vec_len(names))
                                                                    : ": m:axes gives axes their sizes");
            vec_free(names);
            for (int i = 0; i < n; i++)
                if (axes[i] == axes[n]) front_err("%s: '%s' is listed twice", who, name);
            n++;
        }
        s += length + (s[length] != 0);
    }
    return n;
}

// ------------------------------------------------------------------------------------------------------ operators
// One side's axes must include the other's: there is no header here that says they may differ.
static void check_included(lua_State *L, const char *op, const Value *a, const Value *b)
{
    Axis left[MAX_AXES], right[MAX_AXES];
    int nleft = 0, nright = 0;
    for (int i = 0; i < a->naxes; i++)
        if (value_axis(b, a->axes[i]) < 0) left[nleft++] = a->axes[i];
    for (int i = 0; i < b->naxes; i++)
        if (value_axis(a, b->axes[i]) < 0) right[nright++] = b->axes[i];
    if (!nleft || !nright) return;
    front_err("%s %s %s: the left has '%s', which the right lacks, and the right '%s', which the left lacks; one "
              "side's axes must include the other's",
              tensor_text(L, 1), op, tensor_text(L, 2), axes_text(nleft, left), axes_text(nright, right));
}

static int binary(lua_State *L, Fn fn, const char *op)
{
    front_enter(L);
    DType dtype = BOOL;
    for (int i = 1; i <= 2; i++)
        if (lua_type(L, i) != LUA_TNUMBER && !tensor_test(L, i))
            front_err("'%s' takes tensors and numbers, and the %s side is %s", op, i == 1 ? "left" : "right",
                      luaL_typename(L, i));
    Value a = tensor_value(L, 1, &dtype, op), b = tensor_value(L, 2, &dtype, op);
    check_included(L, op, &a, &b);
    Value r = fn == FN_POW ? value_pow(a, b) : value_map(fn, 2, (Value[]){a, b});
    tensor_push_value(L, &r, result_dtype(dtype), NULL);
    return 1;
}

static int tensor_add(lua_State *L)
{
    return binary(L, FN_ADD, "+");
}
static int tensor_sub(lua_State *L)
{
    return binary(L, FN_SUB, "-");
}
static int tensor_div(lua_State *L)
{
    return binary(L, FN_DIV, "/");
}
static int tensor_pow(lua_State *L)
{
    return binary(L, FN_POW, "^");
}

static bool has_own(const Value *a, const Value *b)
{
    for (int i = 0; i < a->naxes; i++)
        if (value_axis(b, a->axes[i]) < 0) return true;
    return false;
}

static int tensor_mul(lua_State *L)
{
    if (!tensor_test(L, 1) || !tensor_test(L, 2) || tensor_test(L, 1)->scalar || tensor_test(L, 2)->scalar)
        return binary(L, FN_MUL, "*");
    front_enter(L);
    DType dtype = BOOL;
    Value a = tensor_value(L, 1, &dtype, "*"), b = tensor_value(L, 2, &dtype, "*");
    if (a.type == T_COND || b.type == T_COND || (a.type == T_WHOLE && b.type == T_WHOLE)) return binary(L, FN_MUL, "*");
    Tensor *t = tensor_push(L, 0, "the product");
    t->product = true;
    t->outer = has_own(&a, &b) && has_own(&b, &a);
    t->a = a;
    t->b = b;
    t->dtype = result_dtype(dtype);
    if (t->outer) {
        t->outer_id = (uint32_t)vec_len(fr.outers);
        vec_push(fr.outers, (OuterProduct){fr.g->cur_loc, NULL, false});
        fr.outers[t->outer_id].text = arena_printf(&fr.g->arena, "%s * %s", tensor_text(L, 1), tensor_text(L, 2));
    }
    return 1;
}

static int map_one(lua_State *L, Fn fn, const char *name)
{
    DType dtype = BOOL;
    Value x = tensor_value(L, 1, &dtype, name);
    Value r = value_map(fn, 1, &x);
    tensor_push_value(L, &r, result_dtype(dtype), NULL);
    return 1;
}

static int tensor_unm(lua_State *L)
{
    front_enter(L);
    return map_one(L, FN_NEG, "'-'");
}

// pico.exp(x) and the like; upvalue: Fn.
static int function_one(lua_State *L)
{
    front_enter(L);
    Fn fn = (Fn)lua_tointeger(L, lua_upvalueindex(1));
    const char *name = fn == FN_STOP ? "stop_gradient" : fn_info[fn].name;
    if (lua_gettop(L) != 1) front_err("pico.%s takes one tensor, %d given", name, lua_gettop(L));
    return map_one(L, fn, arena_printf(&fr.g->arena, "pico.%s", name));
}

// pico.f32(x), pico.bf16(x); upvalue: the dtype. With --dtype f64 both do nothing.
static int function_cast(lua_State *L)
{
    front_enter(L);
    DType to = (DType)lua_tointeger(L, lua_upvalueindex(1)), dtype = BOOL;
    if (lua_gettop(L) != 1) front_err("pico.%s takes one tensor, %d given", dtype_name(to), lua_gettop(L));
    Value x = tensor_value(L, 1, &dtype, dtype_name(to));
    tensor_push_value(L, &x, fr.g->dtype == F64 ? F64 : to, NULL);
    return 1;
}

static int tensor_compare(lua_State *L)
{
    front_enter(L);
    front_err("a comparison in Lua gives one truth value, not a mask: write it in an op, as in where(x > 0, x, 0)");
}

// ------------------------------------------------------------------------------------------------------ reductions
// sum("kv head_dim", x), mean, max, min; max and min also of two values. Upvalue: ReduceWord.
static int function_reduce(lua_State *L)
{
    front_enter(L);
    ReduceWord word = (ReduceWord)lua_tointeger(L, lua_upvalueindex(1));
    const char *name = arena_printf(&fr.g->arena, "pico.%s", reduce_words[word]);
    Axis axes[MAX_AXES];
    DType dtype = BOOL;
    if (lua_gettop(L) != 2) front_err("%s takes the axes and a tensor, as in %s(\"hidden\", x)", name, name);
    if (lua_type(L, 1) != LUA_TSTRING && word >= WORD_MAX)
        return binary(L, word == WORD_MAX ? FN_MAX : FN_MIN, reduce_words[word]);
    if (lua_type(L, 1) != LUA_TSTRING) front_err("%s takes the axes first, as in %s(\"hidden\", x)", name, name);
    int n = each_axis(L, lua_tostring(L, 1), axes, name);
    if (n == 0) front_err("%s: no axes in \"%s\"", name, lua_tostring(L, 1));
    Tensor *t = tensor_test(L, 2);
    Value r;
    if (t && t->product && word == WORD_SUM) {
        fr.op_dtype = dtype = t->dtype;
        if (t->outer) fr.outers[t->outer_id].taken = true;
        r = value_product_sum(t->a, t->b, n, axes);
    } else {
        Value x = tensor_value(L, 2, &dtype, name);
        fr.op_dtype = result_dtype(dtype);
        r = value_reduce(word, x, n, axes);
    }
    tensor_push_value(L, &r, result_dtype(dtype), reduce_words[word]);
    return 1;
}

// --------------------------------------------------------------------------------------------------------- braces
static Axis axis_of(const Value *x, const char *name)
{
    for (int i = 0; i < x->naxes; i++)
        if (!strcmp(axis_name(fr.g, x->axes[i]), name)) return x->axes[i];
    const char **names = NULL;
    for (int i = 0; i < x->naxes; i++) vec_push(names, axis_name(fr.g, x->axes[i]));
    front_err("there is no axis '%s' in the tensor before the brace; it has %s%s", name, axes_text(x->naxes, x->axes),
              near_name(name, names, vec_len(names)));
}

static void take_index(lua_State *L, AtEntry *e, Value *index)
{
    DType dtype = BOOL;
    e->nterms = 0;
    if (lua_type(L, -1) == LUA_TNUMBER) {
        double at = lua_tonumber(L, -1);
        if (at != floor(at) || fabs(at) >= 2147483648.0)
            front_err("a position is a whole number, and '%s' gets %s", axis_name(fr.g, e->src), number_text(at));
        e->offset = (int64_t)at;
    } else if (lua_type(L, -1) == LUA_TSTRING) {
        const char *name = lua_tostring(L, -1);
        Axis to = axis_known(name);
        e->axis[0] = to ? to : axis_define(intern(name), extent_of(fr.g, e->src));
        e->coef[0] = 1;
        e->nterms = 1;
    } else if (tensor_test(L, -1)) {
        *index = tensor_value(L, lua_gettop(L), &dtype, "a lookup");
        e->lookup = index;
    } else {
        front_err("'%s' is replaced by an axis, a position or a tensor of whole numbers, not by %s",
                  axis_name(fr.g, e->src), luaL_typename(L, -1));
    }
}

// Renames of one whole axis each to one that is not there: can be undone.
static bool one_to_one(const Value *x, int n, const AtEntry *entries)
{
    for (int i = 0; i < n; i++) {
        const AtEntry *e = &entries[i];
        if (e->lookup || e->nterms != 1 || extent_of(fr.g, e->axis[0]) != extent_of(fr.g, e->src)) return false;
        bool replaced = false;
        for (int k = 0; k < n; k++) {
            replaced |= entries[k].src == e->axis[0];
            if (k != i && entries[k].nterms == 1 && entries[k].axis[0] == e->axis[0]) return false;
        }
        if (value_axis(x, e->axis[0]) >= 0 && !replaced) return false;
    }
    return true;
}

// x { seq = "key", two = 1, vocab = tokens }
static int tensor_call(lua_State *L)
{
    front_enter(L);
    const char **keys = NULL;
    if (lua_gettop(L) != 2 || !lua_istable(L, 2))
        front_err("braces follow a tensor, as in x { seq = \"key\" }; to multiply, write *");
    table_keys_sorted(L, 2, "a tensor's brace", &keys);
    int n = (int)vec_len(keys);
    if (n == 0 || n > MAX_AXES) front_err("a brace names 1 to %d axes, as in x { seq = \"key\" }", MAX_AXES);
    DType dtype = BOOL;
    Value x = tensor_value(L, 1, &dtype, "a brace"), index[MAX_AXES];
    AtEntry entries[MAX_AXES] = {0};
    for (int i = 0; i < n; i++) {
        entries[i].src = axis_of(&x, keys[i]);
        lua_getfield(L, 2, keys[i]);
        take_index(L, &entries[i], &index[i]);
        lua_pop(L, 1);
    }
    const Tensor *from = tensor_test(L, 1);
    Value r = value_at(x, n, entries);
    Tensor *t = tensor_push_value(L, &r, result_dtype(dtype), from->name);
    if (from->base && fr.optimizing && one_to_one(&x, n, entries)) {
        Undo u = {.kind = UNDO_RENAME, .n = n};
        for (int i = 0; i < n; i++) u.from[i] = entries[i].src, u.to[i] = entries[i].axis[0];
        keep_base(from, t, &u);
    }
    vec_free(keys);
    return 1;
}

// ----------------------------------------------------------------------------------------------------------- view
typedef struct {
    const char *name;
    int64_t extent;
} Item;

// One side of a view: a single name (returns 0) or one group (returns its length).
static int view_side(lua_State *L, const char *text, size_t size, Item *items)
{
    lua_pushlstring(L, text, size);
    call_parser(L, "axis_list", 1);
    if (!lua_istable(L, -2)) {
        lua_getfield(L, -1, "message");
        front_err("view: %s", lua_tostring(L, -1));
    }
    lua_pop(L, 1);
    if (lua_rawlen(L, -1) != 1)
        front_err("a view merges or splits one axis, as in x:view \"(a b) -> c\" or x:view \"c -> (a:2 b)\"");
    lua_rawgeti(L, -1, 1);
    int n = 0;
    bool group = lua_getfield(L, -1, "group") == LUA_TTABLE;
    if (group) n = (int)lua_rawlen(L, -1);
    for (int i = 0; i < max_of(n, 1); i++) {
        if (group)
            lua_rawgeti(L, -1, i + 1);
        else
            lua_pushvalue(L, -2);
        lua_getfield(L, -1, "name");
        lua_getfield(L, -2, "extent");
        if (lua_type(L, -2) != LUA_TSTRING) front_err("view: an axis has a name");
        items[i] = (Item){intern(lua_tostring(L, -2)), (int64_t)lua_tonumber(L, -1)};
        lua_pop(L, 3);
    }
    lua_pop(L, 3);
    return n;
}

static Value view_merge(Value x, int n, const Item *items, const Item *to, Undo *u)
{
    int64_t extent = 1;
    for (int i = 0; i < n; i++) {
        u->from[i] = axis_of(&x, items[i].name);
        extent *= extent_of(fr.g, u->from[i]);
        if (extent > INT32_MAX) front_err("view: '%s' would be longer than 2^31", to->name);
    }
    if (to->extent && to->extent != extent)
        front_err("view: '%s' has %lld positions, not %lld", to->name, (long long)extent, (long long)to->extent);
    u->kind = UNDO_SPLIT;
    u->whole = axis_define(to->name, extent);
    if (value_axis(&x, u->whole) >= 0) front_err("view: there is an axis '%s' already", to->name);
    return value_of_val(make_merge(fr.g, x.v, n, u->from, u->whole));
}

static Value view_split(Value x, int n, const Item *items, const Item *from, Undo *u)
{
    u->whole = axis_of(&x, from->name);
    int64_t extent = extent_of(fr.g, u->whole), known = 1;
    int open = -1;
    for (int i = 0; i < n; i++) {
        Axis axis = axis_known(items[i].name);
        int64_t size = items[i].extent ? items[i].extent : axis ? extent_of(fr.g, axis) : 0;
        if (!size && open >= 0) front_err("view: give '%s' a size, as in %s:2", items[i].name, items[i].name);
        if (!size) open = i;
        known = min_of(known * max_of(size, 1), INT32_MAX);
    }
    if (extent % known || (open < 0 && known != extent))
        front_err("view: '%s' (%lld) does not split into parts of %lld", from->name, (long long)extent,
                  (long long)known);
    for (int i = 0; i < n; i++) {
        Axis axis = axis_known(items[i].name);
        int64_t size = items[i].extent ? items[i].extent : i == open ? extent / known : extent_of(fr.g, axis);
        u->from[i] = axis_define(items[i].name, size);
        if (value_axis(&x, u->from[i]) >= 0) front_err("view: there is an axis '%s' already", items[i].name);
    }
    u->kind = UNDO_MERGE;
    return value_of_val(make_split(fr.g, x.v, u->whole, n, u->from));
}

// x:view "(a b) -> c", x:view "c -> (a:2 b)"
static int tensor_view(lua_State *L)
{
    front_enter(L);
    Item left[MAX_AXES], right[MAX_AXES];
    Tensor *from = tensor_test(L, 1);
    const char *text = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : NULL,
               *arrow = text ? strstr(text, "->") : NULL;
    if (!from || !arrow) front_err("a view is written x:view \"(a b) -> c\" or x:view \"c -> (a:2 b)\"");
    int nleft = view_side(L, text, (size_t)(arrow - text), left),
        nright = view_side(L, arrow + 2, strlen(arrow + 2), right);
    if (!nleft == !nright)
        front_err("a view has one name on one side and a group on the other: \"(a b) -> c\" or \"c -> (a:2 b)\"");
    Undo u = {.n = max_of(nleft, nright)};
    if (from->scalar) front_err("a scalar has no axes");
    Val stored = stored_value(from);
    DType dtype = (DType)node_of(fr.g, stored)->dtype;
    Value x = value_of_val(stored);
    x.v = stored; // not cast: a view moves what is stored
    Value r = nleft ? view_merge(x, nleft, left, right, &u) : view_split(x, nright, right, left, &u);
    Tensor *t = tensor_push_value(L, &r, dtype, from->name);
    if (from->base && fr.optimizing) keep_base(from, t, &u);
    return 1;
}

// -------------------------------------------------------------------------------------------------- metatable, pico
static int tensor_index(lua_State *L)
{
    front_enter(L);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : NULL;
    Tensor *t = tensor_test(L, 1);
    if (!key) front_err("a tensor is not indexed by position: x { axis = 0 } picks");
    if (!strcmp(key, "view")) {
        lua_pushcfunction(L, tensor_view);
        return 1;
    }
    if (param_field(L, t, key)) return 1;
    const char *names[] = {"view", "grad", "decay", "full", "state"};
    front_err("%s has no field '%s'%s", tensor_text(L, 1), key, near_name(key, names, t->param >= 0 ? 5 : 1));
}

static int tensor_tostring(lua_State *L)
{
    lua_pushstring(L, tensor_text(L, 1));
    return 1;
}

static int tensor_assign(lua_State *L)
{
    front_enter(L);
    front_err("a tensor has no fields to set");
}

void tensor_library(lua_State *L)
{
    static const luaL_Reg methods[] = {{"__add", tensor_add},           {"__sub", tensor_sub},
                                       {"__mul", tensor_mul},           {"__div", tensor_div},
                                       {"__pow", tensor_pow},           {"__unm", tensor_unm},
                                       {"__call", tensor_call},         {"__index", tensor_index},
                                       {"__newindex", tensor_assign},   {"__eq", tensor_compare},
                                       {"__lt", tensor_compare},        {"__le", tensor_compare},
                                       {"__tostring", tensor_tostring}, {NULL, NULL}};
    static const Fn functions[] = {FN_EXP, FN_LOG, FN_SQRT, FN_RSQRT, FN_TANH, FN_SIGMOID,
                                   FN_ERF, FN_SIN, FN_COS,  FN_ABS,   FN_SIGN, FN_FLOOR};
    luaL_newmetatable(L, TENSOR);
    luaL_setfuncs(L, methods, 0);
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
    for (size_t i = 0; i < countof(functions); i++) {
        lua_pushinteger(L, functions[i]);
        lua_pushcclosure(L, function_one, 1);
        lua_setfield(L, -2, fn_info[functions[i]].name);
    }
    lua_pushinteger(L, FN_STOP);
    lua_pushcclosure(L, function_one, 1);
    lua_setfield(L, -2, "stop_gradient");
    for (int i = 0; i < 4; i++) {
        lua_pushinteger(L, i);
        lua_pushcclosure(L, function_reduce, 1);
        lua_setfield(L, -2, reduce_words[i]);
    }
    for (int i = 0; i < 2; i++) {
        lua_pushinteger(L, i ? BF16 : F32);
        lua_pushcclosure(L, function_cast, 1);
        lua_setfield(L, -2, i ? "bf16" : "f32");
    }
}
