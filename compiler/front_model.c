// front_model.c: the model as the description builds it: m:axes, parameters, layers, inputs, loss.
//
// One description makes one model. `m` and a layer's `p` are both scopes: called with a name they declare a parameter,
// p with the layer's name before it. Lua's copies of the parameters live in registry["pico.params"], so that m.params
// gives the same objects again.
//
// Traps.
// - Tables with names as keys come in hash order: they are always read in sorted order.
// - Which layer is the last is known at the end only: what was made after it gets its number then (model_finish).
#include "front.h"
#include <math.h>

typedef struct {
    bool model;
    const char *prefix;
} Scope;
static struct {
    const char *name;
    double init;
    bool in_layer;
} model;

// ----------------------------------------------------------------------------------------------------------- axes
Axis axis_known(const char *name)
{
    for (size_t i = 0; i < vec_len(fr.axes); i++)
        if (!strcmp(fr.axes[i].name, name)) return fr.axes[i].axis;
    return 0;
}

// The parser knows what a name is and which words are reserved.
static void check_axis_name(lua_State *L, const char *name)
{
    lua_pushstring(L, name);
    call_parser(L, "axis_list", 1);
    const char *why = NULL;
    if (!lua_istable(L, -2)) {
        lua_getfield(L, -1, "message");
        why = lua_tostring(L, -1);
        front_err("'%s' is no name for an axis: %s", name, why);
    }
    lua_rawgeti(L, -2, 1);
    lua_getfield(L, -1, "name");
    if (lua_rawlen(L, -4) != 1 || lua_type(L, -1) != LUA_TSTRING || strcmp(lua_tostring(L, -1), name))
        front_err("'%s' is no name for an axis: letters, digits and _", name);
    lua_pop(L, 4);
}

Axis axis_define(const char *name, int64_t extent)
{
    for (size_t i = 0; i < vec_len(fr.axes); i++) {
        const NamedAxis *a = &fr.axes[i];
        if (strcmp(a->name, name)) continue;
        if (extent_of(fr.g, a->axis) == extent) return a->axis;
        if (!a->loc)
            front_err("the axis '%s' comes from the command line: its size is %lld, not %lld", name,
                      (long long)extent_of(fr.g, a->axis), (long long)extent);
        front_err("the axis '%s' has size %lld since %s, and would get %lld", name, (long long)extent_of(fr.g, a->axis),
                  loc_text(a->loc), (long long)extent);
    }
    check_axis_name(fr.L, name);
    Axis axis = graph_axis(fr.g, name, extent);
    vec_push(fr.axes, (NamedAxis){intern(name), axis, fr.g->cur_loc});
    return axis;
}

// A size: 192.0 is 192; anything else is refused with the name.
static int64_t check_size(lua_State *L, const char *name)
{
    if (lua_type(L, -1) != LUA_TNUMBER)
        front_err("the size of the axis '%s' is a whole number, not %s", name, luaL_typename(L, -1));
    double x = lua_tonumber(L, -1);
    if (!(x >= 1) || x != floor(x))
        front_err("the size of the axis '%s' is %s: it must be a whole number of at least 1", name, number_text(x));
    if (x > INT32_MAX) front_err("the size of the axis '%s' is %s: it must be below 2^31", name, number_text(x));
    return (int64_t)x;
}

void check_model(lua_State *L, const char *method)
{
    front_enter(L);
    const Scope *s = luaL_testudata(L, 1, SCOPE);
    if (!s || !s->model) front_err("m:%s is called with a colon on the model that pico.model made", method);
}

static int model_axes(lua_State *L)
{
    check_model(L, "axes");
    const char **keys = NULL;
    if (lua_gettop(L) != 2 || !lua_istable(L, 2)) front_err("m:axes takes { name = size, ... }");
    table_keys_sorted(L, 2, "m:axes", &keys);
    for (size_t i = 0; i < vec_len(keys); i++) {
        if (!strcmp(keys[i], "batch") || !strcmp(keys[i], "seq"))
            front_err("the axis '%s' comes from the command line: --micro-batch, --seq", keys[i]);
        lua_getfield(L, 2, keys[i]);
        axis_define(keys[i], check_size(L, keys[i]));
        lua_pop(L, 1);
    }
    vec_free(keys);
    return 0;
}

// ----------------------------------------------------------------------------------------------------- parameters
static void param_axis(lua_State *L, const char *param, Axis *axes, int *n, int64_t *extent)
{
    lua_getfield(L, -1, "name");
    lua_getfield(L, -2, "extent");
    const char *name = intern(lua_tostring(L, -2));
    int64_t given = (int64_t)lua_tonumber(L, -1);
    lua_pop(L, 2);
    Axis a = given ? axis_define(name, given) : axis_known(name);
    if (!a) {
        const char **names = NULL;
        for (size_t i = 0; i < vec_len(fr.axes); i++) vec_push(names, fr.axes[i].name);
        const char *near = near_name(name, names, vec_len(names));
        front_err("'%s': '%s' is not an axis%s", param, name, near[0] ? near : ": m:axes gives axes their sizes");
    }
    if (a == fr.g->batch) front_err("'%s': a parameter has no axis 'batch'", param);
    axes[(*n)++] = a;
    *extent *= extent_of(fr.g, a);
    if (*extent > (int64_t)1 << 40) front_err("'%s' would have more than 2^40 elements", param);
}

// The list of axes on top of the stack: appends axes; returns the size in the file.
static int64_t param_items(lua_State *L, const char *param, Axis *axes, int *n, Param *p, bool top)
{
    int64_t all = 1;
    int items = (int)lua_rawlen(L, -1);
    luaL_checkstack(L, 8, NULL);
    for (int i = 1; i <= items; i++) {
        int64_t extent = 1;
        lua_rawgeti(L, -1, i);
        if (lua_getfield(L, -1, "group") == LUA_TTABLE) extent = param_items(L, param, axes, n, p, false);
        lua_pop(L, 1);
        lua_getfield(L, -1, "name");
        bool named = lua_isstring(L, -1);
        lua_pop(L, 1);
        if (named) param_axis(L, param, axes, n, &extent);
        if (top && p->ndim == MAX_AXES) front_err("'%s' has more than %d axes in the file", param, MAX_AXES);
        if (top) p->dims[p->ndim++] = extent;
        all *= extent;
        if (all > (int64_t)1 << 40) front_err("'%s' would have more than 2^40 elements", param);
        lua_pop(L, 1);
    }
    return all;
}

static void param_options(lua_State *L, const char *name, Param *p)
{
    p->init = INIT_NORMAL;
    p->init_value = model.init;
    p->decay = p->ndim >= 2;
    if (lua_isnoneornil(L, 4)) return;
    const char **keys = NULL;
    if (!lua_istable(L, 4)) front_err("'%s': the options are a table, { init = .., decay = .. }", name);
    table_keys_sorted(L, 4, name, &keys);
    for (size_t i = 0; i < vec_len(keys); i++) {
        int type = lua_getfield(L, 4, keys[i]);
        if (!strcmp(keys[i], "decay")) {
            if (type != LUA_TBOOLEAN) front_err("'%s': decay is true or false", name);
            p->decay = lua_toboolean(L, -1);
        } else if (!strcmp(keys[i], "init")) {
            bool ones = type == LUA_TSTRING && !strcmp(lua_tostring(L, -1), "ones");
            bool zeros = type == LUA_TSTRING && !strcmp(lua_tostring(L, -1), "zeros");
            bool std = type == LUA_TNUMBER && lua_tonumber(L, -1) >= 0 && isfinite(lua_tonumber(L, -1));
            if (!ones && !zeros && !std) front_err("'%s': init is \"ones\", \"zeros\" or a standard deviation", name);
            p->init = std ? INIT_NORMAL : INIT_CONSTANT;
            p->init_value = std ? lua_tonumber(L, -1) : ones ? 1 : 0;
        } else {
            front_err("'%s' has no option '%s'%s", name, keys[i],
                      near_name(keys[i], (const char *[]){"decay", "init"}, 2));
        }
        lua_pop(L, 1);
    }
    vec_free(keys);
}

static const char *check_param_name(lua_State *L, const Scope *s)
{
    size_t size;
    if (lua_type(L, 2) != LUA_TSTRING)
        front_err("a parameter is declared by its name and its axes, as in m(\"embed.weight\", \"vocab hidden\")");
    const char *local = lua_tolstring(L, 2, &size);
    const char *name = intern(arena_printf(&fr.g->arena, "%s%s", s->prefix, local));
    if (!size || strlen(local) != size || strpbrk(local, "\n\r") || strlen(name) > 256)
        front_err("a parameter's name is one line of 1 to 256 letters");
    for (size_t i = 0; i < vec_len(fr.g->params); i++)
        if (fr.g->params[i].name == name)
            front_err("the parameter '%s' is declared already at %s", name, loc_text(fr.g->params[i].loc));
    if (lua_type(L, 3) != LUA_TSTRING)
        front_err("'%s': its axes are a list in storage order, as in \"(heads head_dim) hidden\"", name);
    if (lua_gettop(L) > 4)
        front_err("'%s': a parameter takes a name, its axes and options, %d given", name, lua_gettop(L) - 1);
    return name;
}

// m(name, axes, { init, decay }) and p(...)
static int scope_call(lua_State *L)
{
    front_enter(L);
    const Scope *s = luaL_checkudata(L, 1, SCOPE);
    const char *name = check_param_name(L, s);
    if (fr.optimizing) front_err("'%s': parameters are declared in the model, not in its optimizer", name);
    lua_settop(L, 4);
    lua_pushvalue(L, 3);
    call_parser(L, "axis_list", 1);
    if (!lua_istable(L, -2)) {
        lua_getfield(L, -1, "message");
        front_err("'%s': \"%s\": %s", name, lua_tostring(L, 3), lua_tostring(L, -1));
    }
    lua_pop(L, 1);
    Param p = {.name = name, .aliases = "", .acc = -1, .loc = fr.g->cur_loc};
    Axis axes[MAX_AXES];
    int n = 0;
    param_items(L, name, axes, &n, &p, true);
    param_options(L, name, &p);
    DType master = graph_compute_dtype(fr.g);
    p.val = make_leaf(fr.g, K_PARAM, (uint32_t)vec_len(fr.g->params), master, n, axes);
    lua_getfield(L, LUA_REGISTRYINDEX, "pico.params");
    Tensor *t = tensor_push(L, p.val, name);
    t->param = (int)vec_len(fr.g->params);
    t->base = p.val;
    lua_pushvalue(L, -1);
    lua_rawseti(L, -3, t->param + 1);
    vec_push(fr.g->params, p);
    vec_push(fr.used, 0);
    return 1;
}

// --------------------------------------------------------------------------------------------------------- layers
static Scope *push_scope(lua_State *L, bool is_model, const char *prefix)
{
    Scope *s = lua_newuserdatauv(L, sizeof *s, 0);
    *s = (Scope){is_model, prefix};
    luaL_setmetatable(L, SCOPE);
    return s;
}

// m:layer(name, f, x, ...)
static int model_layer(lua_State *L)
{
    check_model(L, "layer");
    if (lua_type(L, 2) != LUA_TSTRING || !lua_isfunction(L, 3)) front_err("a layer is m:layer(name, function, x, ...)");
    const char *name = intern(lua_tostring(L, 2));
    if (model.in_layer) front_err("the layer '%s' is inside another: layers do not nest", name);
    if (fr.optimizing) front_err("layers belong in the model, not in its optimizer");
    for (int i = 0; i < fr.g->nlayers; i++)
        if (fr.g->layers[i] == name) front_err("there is a layer '%s' already", name);
    if (fr.g->nlayers == INT16_MAX - 1) front_err("more than %d layers", INT16_MAX - 1);
    vec_push(fr.g->layers, name);
    fr.g->cur_layer = (int16_t)fr.g->nlayers++;
    model.in_layer = true;
    push_scope(L, false, arena_printf(&fr.g->arena, "%s.", name));
    lua_replace(L, 2); // self, scope, f, x ... -> f, scope, x ...
    lua_pushvalue(L, 3);
    lua_replace(L, 1);
    lua_remove(L, 3);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    model.in_layer = false;
    fr.layers_end = (Val)vec_len(fr.g->nodes);
    return lua_gettop(L);
}

// --------------------------------------------------------------------------------------------------- inputs, loss
static int model_input(lua_State *L)
{
    check_model(L, "input");
    const char *name = lua_type(L, 2) == LUA_TSTRING ? intern(lua_tostring(L, 2)) : "";
    bool targets = !strcmp(name, "targets");
    if (!targets && strcmp(name, "tokens"))
        front_err("a model's inputs are m:input \"tokens\" and m:input \"targets\"");
    Graph *g = fr.g;
    for (size_t i = 0; i < vec_len(g->inputs); i++)
        if (g->inputs[i].name == name) front_err("the input '%s' is declared already", name);
    Input in = {.name = name, .shift = targets, .limit = INT32_MAX, .ignore = -100};
    if (lua_istable(L, 3)) {
        const char **keys = NULL;
        table_keys_sorted(L, 3, "m:input", &keys);
        for (size_t i = 0; i < vec_len(keys); i++) {
            if (strcmp(keys[i], "ignore") || !targets) front_err("m:input \"%s\" has no option '%s'", name, keys[i]);
            lua_getfield(L, 3, "ignore");
            double x = lua_tonumber(L, -1);
            if (lua_type(L, -1) != LUA_TNUMBER || x != floor(x) || fabs(x) > INT32_MAX)
                front_err("ignore is a token id");
            in.ignore = (int32_t)x;
            lua_pop(L, 1);
        }
        vec_free(keys);
    }
    in.val = make_leaf(g, K_INPUT, (uint32_t)vec_len(g->inputs), I32, 2, (Axis[]){g->batch, g->seq_axis});
    tensor_push(L, in.val, name);
    vec_push(g->inputs, in);
    return 1;
}

static int model_loss(lua_State *L)
{
    check_model(L, "loss");
    Graph *g = fr.g;
    DType dtype = BOOL;
    if (lua_gettop(L) != 2 || !tensor_test(L, 2))
        front_err("m:loss takes the loss, a tensor [batch, seq]: one value a token");
    if (g->loss) front_err("the model has its loss already, since %s", loc_text(fr.loss_loc));
    Value x = tensor_value(L, 2, &dtype, "m:loss");
    if (x.naxes != 2 || value_axis(&x, g->batch) < 0 || value_axis(&x, g->seq_axis) < 0)
        front_err("the loss is one value a token, [batch, seq], and this one has %s", axes_text(x.naxes, x.axes));
    if (x.type != T_FLOAT) front_err("the loss is made of floats, and these are whole numbers");
    g->loss = make_broadcast(g, x.v, 2, (Axis[]){g->batch, g->seq_axis});
    fr.loss_loc = g->cur_loc;
    return 0;
}

// ------------------------------------------------------------------------------------------------------- sharding
// m:shard { ffn = "tp", hidden = false }: where the positions of an axis are spread.
static void set_map(const char *axis, const char *to)
{
    Graph *g = fr.g;
    if (!strcmp(to, "dp") && strcmp(axis, "batch")) front_err("m:shard: '%s' can't go to \"dp\": only the axis 'batch' does", axis);
    if (strcmp(to, "dp") && !strcmp(axis, "batch")) front_err("m:shard: 'batch' goes to \"dp\" and nowhere else");
    if (!strcmp(to, "cp") && strcmp(axis, "seq")) front_err("m:shard: '%s' can't go to \"cp\": only the axis 'seq' does", axis);
    if (!strcmp(to, "tp") && !strcmp(axis, "seq")) front_err("m:shard: 'seq' goes to \"cp\"; tensor parallelism splits it by itself (--sp)");
    graph_map_axis(g, axis, !strcmp(to, "tp") ? MESH_TP : !strcmp(to, "dp") ? MESH_DP : !strcmp(to, "cp") ? MESH_CP : 0);
}

static int model_shard(lua_State *L)
{
    check_model(L, "shard");
    const char **keys = NULL;
    if (lua_gettop(L) != 2 || !lua_istable(L, 2)) front_err("m:shard takes { axis = \"tp\" or false, ... }");
    table_keys_sorted(L, 2, "m:shard", &keys);
    for (size_t i = 0; i < vec_len(keys); i++) {
        Axis axes[MAX_AXES];
        int naxes = each_axis(L, keys[i], axes, "m:shard");
        int type = lua_getfield(L, 2, keys[i]);
        const char *to = type == LUA_TSTRING ? lua_tostring(L, -1) : "";
        bool mesh = !strcmp(to, "tp") || !strcmp(to, "dp") || !strcmp(to, "cp");
        if (!mesh && !(type == LUA_TBOOLEAN && !lua_toboolean(L, -1)))
            front_err("m:shard: '%s' goes to \"tp\", \"dp\", \"cp\" or false", keys[i]);
        for (int k = 0; k < naxes; k++) set_map(axis_name(fr.g, axes[k]), to);
        lua_pop(L, 1);
    }
    vec_free(keys);
    return 0;
}

// The parameters, those without a gradient left out once gradients exist.
static int push_params(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "pico.params");
    lua_newtable(L);
    int n = 0;
    for (size_t i = 0; i < vec_len(fr.g->params); i++) {
        if (fr.optimizing && fr.g->params[i].acc < 0) continue;
        lua_rawgeti(L, -2, (lua_Integer)i + 1);
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

// ------------------------------------------------------------------------------------------------------ the object
static const luaL_Reg methods[] = {{"axes", model_axes},     {"input", model_input},         {"layer", model_layer},
                                   {"loss", model_loss},     {"optimizer", model_optimizer}, {"report", model_report},
                                   {"scalar", model_scalar}, {"scalars", model_scalars},     {"shard", model_shard},
                                   {"train", model_train}};

static int scope_index(lua_State *L)
{
    front_enter(L);
    const Scope *s = luaL_checkudata(L, 1, SCOPE);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "", *names[countof(methods) + 1];
    if (!s->model) front_err("a layer's p only declares parameters, p(name, axes): '%s' belongs to the model", key);
    if (!strcmp(key, "params")) return push_params(L);
    for (size_t i = 0; i < countof(methods); i++) {
        names[i] = methods[i].name;
        if (strcmp(key, methods[i].name)) continue;
        lua_pushcfunction(L, methods[i].func);
        return 1;
    }
    names[countof(methods)] = "params";
    front_err("a model has no '%s'%s", key, near_name(key, names, countof(names)));
}

static int scope_assign(lua_State *L)
{
    front_enter(L);
    front_err("a model has no fields to set");
}

static int scope_tostring(lua_State *L)
{
    const Scope *s = luaL_checkudata(L, 1, SCOPE);
    lua_pushfstring(L, s->model ? "model %s" : "layer %s", s->model ? model.name : s->prefix);
    return 1;
}

void model_register(lua_State *L)
{
    luaL_newmetatable(L, SCOPE);
    luaL_setfuncs(L,
                  (luaL_Reg[]){{"__call", scope_call},
                               {"__index", scope_index},
                               {"__newindex", scope_assign},
                               {"__tostring", scope_tostring},
                               {NULL, NULL}},
                  0);
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "pico.params");
}

// pico.model(name, { init = std })
int model_function(lua_State *L)
{
    front_enter(L);
    if (model.name)
        front_err("a description makes one model, and '%s' is made already at %s", model.name, loc_text(fr.model_loc));
    if (lua_type(L, 1) != LUA_TSTRING || !*lua_tostring(L, 1)) front_err("a model is pico.model(name, { init = std })");
    model.name = intern(lua_tostring(L, 1));
    model.init = 0.02;
    const char **keys = NULL;
    if (lua_istable(L, 2))
        table_keys_sorted(L, 2, "pico.model", &keys);
    else if (!lua_isnoneornil(L, 2))
        front_err("pico.model: the options are a table, { init = std }");
    for (size_t i = 0; i < vec_len(keys); i++) {
        if (strcmp(keys[i], "init")) front_err("pico.model has no option '%s'; it has init", keys[i]);
        lua_getfield(L, 2, "init");
        model.init = lua_tonumber(L, -1);
        if (lua_type(L, -1) != LUA_TNUMBER || !(model.init >= 0) || !isfinite(model.init))
            front_err("init is a standard deviation, a number from 0");
    }
    vec_free(keys);
    fr.g->model = model.name;
    fr.model_loc = fr.g->cur_loc;
    push_scope(L, true, "");
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "pico.model");
    return 1;
}

// ------------------------------------------------------------------------------------------------------- at the end
// Everything that the loss depends on.
static uint8_t *mark_used(const Graph *g)
{
    uint8_t *used = xcalloc(vec_len(g->nodes), 1);
    used[g->loss] = 1;
    for (Val v = (Val)vec_len(g->nodes) - 1; v > 0; v--)
        for (int i = 0; used[v] && i < g->nodes[v].nin; i++) used[g->nodes[v].in[i]] = 1;
    return used;
}

static void check_use(Graph *g)
{
    for (size_t i = 0; i < vec_len(fr.outers); i++)
        if (!fr.outers[i].taken)
            err(g, fr.outers[i].loc, "%s is an outer product that nobody sums: write pico.sum(axes, ..)",
                fr.outers[i].text);
    for (size_t i = 0; i < vec_len(g->params); i++)
        if (!fr.used[i])
            err(g, g->params[i].loc, "the parameter '%s' is never used: use it or take it out", g->params[i].name);
    uint8_t *used = mark_used(g);
    for (size_t i = 0; i < vec_len(g->params); i++)
        if (!used[g->params[i].val])
            warn("%s: the loss does not depend on the parameter '%s', which stays as it is", loc_text(g->params[i].loc),
                 g->params[i].name);
    free(used);
}

void model_finish(lua_State *L, bool returned)
{
    Graph *g = fr.g;
    if (!model.name) err(g, g->cur_loc, "the description makes no model: m = pico.model(name)");
    const Scope *s = luaL_testudata(L, -1, SCOPE);
    if (!returned || !s || !s->model)
        err(g, fr.model_loc, "the description returns no model: its last line is return m");
    if (!g->loss) err(g, fr.model_loc, "the model '%s' has no loss: m:loss(..)", model.name);
    bool targets = false;
    Axis vocab = axis_known("vocab");
    for (size_t i = 0; i < vec_len(g->inputs); i++) {
        targets |= !strcmp(g->inputs[i].name, "targets");
        if (vocab) g->inputs[i].limit = extent_of(g, vocab);
    }
    if (!targets)
        err(g, fr.loss_loc, "the model reads no m:input \"targets\", by which the tokens that count are counted");
    if (!vec_len(g->params)) err(g, fr.model_loc, "the model '%s' has no parameters to train", model.name);
    check_use(g);
    for (size_t v = fr.layers_end; fr.layers_end && v < vec_len(g->nodes); v++) g->nodes[v].layer = (int16_t)g->nlayers;
    if (g->nlayers) g->cur_layer = (int16_t)g->nlayers;
}
