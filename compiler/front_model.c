// front_model.c: the model as the description builds it: m:axes, parameters, layers, inputs, loss, training defaults,
// the optimizer.
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

static Scope *check_model(lua_State *L, const char *method)
{
    front_enter(L);
    Scope *s = luaL_testudata(L, 1, SCOPE);
    if (!s || !s->model) front_err("m:%s is called with a colon on the model that pico.model made", method);
    return s;
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

// -------------------------------------------------------------------------------------------------- scalars, train
// The runtime's options that a plan can set, and what they are if nobody says.
static const struct {
    const char *name;
    bool scalar;
    double standard;
} known[] = {
    {"accum", false, 0},  {"beta1", true, 0.9},        {"beta2", true, 0.95},        {"clip", true, 1.0},
    {"data", false, 0},   {"decay", false, 0},         {"eps", true, 1e-8},          {"ignore", false, 0},
    {"init", false, 0},   {"log", false, 0},           {"lr", true, 1e-3},           {"min_lr", false, 0},
    {"save", false, 0},   {"seed", false, 0},          {"shuffle", false, 0},        {"steps", false, 0},
    {"warmup", false, 0}, {"weight_decay", true, 0.1}, {"weight_decay_1d", true, 0},
};

static double train_value(const char *name, double standard)
{
    for (size_t i = 0; i < vec_len(fr.g->train); i++)
        if (!strcmp(fr.g->train[i].key, name)) return strtod(fr.g->train[i].value, NULL);
    return standard;
}

static void push_scalar(lua_State *L, const char *name, const double *standard)
{
    Graph *g = fr.g;
    name = intern(name);
    Val v = 0;
    double value = standard ? *standard : 0;
    bool found = standard != NULL || !strcmp(name, "step");
    for (size_t i = 0; i < countof(known) && !standard; i++)
        if (known[i].scalar && !strcmp(known[i].name, name)) value = train_value(name, known[i].standard), found = true;
    for (size_t i = 0; i < vec_len(g->scalars); i++)
        if (g->scalars[i].name == name) v = g->scalars[i].val;
    if (!found && !v)
        front_err("the runtime sets no scalar '%s': give it a default, m:scalar(\"%s\", 1.0)", name, name);
    if (!strcmp(name, "step")) {
        v = make_leaf(g, K_SCALAR, SLOT_STEP, F64, 0, NULL);
    } else if (!v) {
        uint32_t slot = SLOT_NAMED + (uint32_t)vec_len(g->scalars);
        v = make_leaf(g, K_SCALAR, slot, F64, 0, NULL);
        vec_push(g->scalars, (Scalar){name, value, slot, v});
    }
    tensor_push(L, v, name)->scalar = true;
}

// m:scalar(name, default)
static int model_scalar(lua_State *L)
{
    check_model(L, "scalar");
    if (lua_type(L, 2) != LUA_TSTRING || !*lua_tostring(L, 2)) front_err("a scalar is m:scalar(name, default)");
    const char *name = lua_tostring(L, 2);
    if (strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != strlen(name))
        front_err("'%s' is no name for a scalar: letters, digits and _", name);
    if (lua_isnoneornil(L, 3)) {
        push_scalar(L, name, NULL);
        return 1;
    }
    double standard = lua_tonumber(L, 3);
    if (lua_type(L, 3) != LUA_TNUMBER || !isfinite(standard))
        front_err("the default of the scalar '%s' is a number", name);
    push_scalar(L, name, &standard);
    return 1;
}

// m:scalars "lr beta1": a table of them
static int model_scalars(lua_State *L)
{
    check_model(L, "scalars");
    if (lua_type(L, 2) != LUA_TSTRING) front_err("m:scalars takes names, as in m:scalars \"lr beta1 beta2\"");
    const char *list = lua_tostring(L, 2);
    lua_newtable(L);
    for (const char *s = list; *s;) {
        size_t n = strcspn(s, " ,\t\n");
        if (n) {
            const char *name = intern_n(s, n);
            push_scalar(L, name, NULL);
            lua_setfield(L, -2, name);
        }
        s += n + (s[n] != 0);
    }
    return 1;
}

static const char *train_text(lua_State *L, const char *key)
{
    switch (lua_type(L, -1)) {
    case LUA_TNUMBER:
        return number_text(lua_tonumber(L, -1));
    case LUA_TSTRING:
        return intern(lua_tostring(L, -1));
    case LUA_TBOOLEAN:
        return lua_toboolean(L, -1) ? "true" : "false";
    default:
        front_err("m:train: '%s' is a number, a text or true or false, not %s", key, luaL_typename(L, -1));
    }
}

static int model_train(lua_State *L)
{
    check_model(L, "train");
    const char **keys = NULL, *names[countof(known)];
    if (lua_gettop(L) != 2 || !lua_istable(L, 2)) front_err("m:train takes { steps = 300, lr = 1e-3, ... }");
    table_keys_sorted(L, 2, "m:train", &keys);
    for (size_t i = 0; i < countof(known); i++) names[i] = known[i].name;
    for (size_t i = 0; i < vec_len(keys); i++) {
        size_t k = 0;
        while (k < countof(known) && strcmp(known[k].name, keys[i])) k++;
        if (k == countof(known))
            front_err("m:train: picorun has no option '%s'%s", keys[i], near_name(keys[i], names, countof(names)));
        lua_getfield(L, 2, keys[i]);
        int many = !strcmp(keys[i], "data") && lua_istable(L, -1) ? (int)lua_rawlen(L, -1) : 0;
        for (int f = 1; f <= many; f++) {
            lua_rawgeti(L, -1, f);
            vec_push(fr.g->train, (TrainOption){keys[i], train_text(L, keys[i])});
            lua_pop(L, 1);
        }
        if (!many) vec_push(fr.g->train, (TrainOption){keys[i], train_text(L, keys[i])});
        lua_pop(L, 1);
    }
    vec_free(keys);
    return 0;
}

// m:shard { ffn = "tp", hidden = false }: checked here; there is one rank so far, so it changes nothing.
static int model_shard(lua_State *L)
{
    check_model(L, "shard");
    const char **keys = NULL;
    if (lua_gettop(L) != 2 || !lua_istable(L, 2)) front_err("m:shard takes { axis = \"tp\" or false, ... }");
    table_keys_sorted(L, 2, "m:shard", &keys);
    for (size_t i = 0; i < vec_len(keys); i++) {
        Axis axes[MAX_AXES];
        each_axis(L, keys[i], axes, "m:shard");
        int type = lua_getfield(L, 2, keys[i]);
        const char *to = type == LUA_TSTRING ? lua_tostring(L, -1) : "";
        bool mesh = !strcmp(to, "tp") || !strcmp(to, "dp") || !strcmp(to, "cp");
        if (!mesh && !(type == LUA_TBOOLEAN && !lua_toboolean(L, -1)))
            front_err("m:shard: '%s' goes to \"tp\", \"dp\", \"cp\" or false", keys[i]);
        lua_pop(L, 1);
    }
    vec_free(keys);
    return 0;
}

// ------------------------------------------------------------------------------------------------------ optimizer
static int model_optimizer(lua_State *L)
{
    check_model(L, "optimizer");
    if (!lua_isfunction(L, 2)) front_err("m:optimizer takes a function of the model");
    lua_pushvalue(L, 2);
    lua_setfield(L, LUA_REGISTRYINDEX, "pico.optimizer");
    fr.optimizer_loc = fr.g->cur_loc;
    return 0;
}

// m:report(name, t): a number that the host reads after each step
static int model_report(lua_State *L)
{
    check_model(L, "report");
    DType dtype = BOOL;
    if (lua_type(L, 2) != LUA_TSTRING || lua_gettop(L) != 3)
        front_err("m:report takes a name and a tensor without axes");
    const char *name = lua_tostring(L, 2);
    if (!fr.optimizing) front_err("m:report belongs in m:optimizer, where a step's values are known");
    Value x = tensor_value(L, 3, &dtype, "m:report");
    if (x.naxes) front_err("'%s' is one number, and this has %s", name, axes_text(x.naxes, x.axes));
    if (!strcmp(name, "loss") || !strcmp(name, "valid")) front_err("'%s' is reported already", name);
    for (size_t i = 0; i < vec_len(fr.g->outputs); i++)
        if (!strcmp(fr.g->outputs[i].name, name)) front_err("'%s' is reported already", name);
    graph_output(fr.g, name, x.scalar ? x.v : value_float(&x));
    return 0;
}

// p:state(name): fp32, zero at first, of the parameter's shape
static int param_state(lua_State *L)
{
    front_enter(L);
    const Tensor *t = tensor_test(L, 1);
    Graph *g = fr.g;
    if (!t || t->param < 0 || lua_type(L, 2) != LUA_TSTRING) front_err("a state is p:state \"name\" of a parameter p");
    if (!fr.optimizing) front_err("states belong in m:optimizer");
    const char *name = intern(lua_tostring(L, 2));
    if (!*name || strpbrk(name, "\n\r")) front_err("a state's name is one line");
    State s = {name, t->param, 0};
    for (size_t i = 0; i < vec_len(g->states); i++)
        if (g->states[i].name == name && g->states[i].param == t->param) s.val = g->states[i].val;
    if (!s.val) {
        Node like = *node_of(g, g->params[t->param].val);
        s.val = make_leaf(g, K_STATE, (uint32_t)vec_len(g->states), graph_compute_dtype(g), like.naxes, like.axes);
        vec_push(g->states, s);
    }
    tensor_push(L, s.val, arena_printf(&g->arena, "%s of %s", name, g->params[t->param].name))->base = s.val;
    return 1;
}

int param_field(lua_State *L, Tensor *t, const char *key)
{
    if (t->param < 0) return 0;
    const Param *p = &fr.g->params[t->param];
    if (!strcmp(key, "full"))
        lua_pushstring(L, p->name);
    else if (!strcmp(key, "decay"))
        lua_pushboolean(L, p->decay);
    else if (!strcmp(key, "state"))
        lua_pushcfunction(L, param_state);
    else if (!strcmp(key, "grad")) {
        if (!fr.optimizing) front_err("p.grad exists in m:optimizer only");
        if (p->acc < 0) front_err("the parameter '%s' has no gradient", p->name);
        tensor_push(L, grad_scaled(fr.g, t->param), arena_printf(&fr.g->arena, "gradient of %s", p->name));
    } else
        return 0;
    return 1;
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

// Every parameter that has a gradient must have a new value.
void model_optimized(void)
{
    const Graph *g = fr.g;
    for (size_t i = 0; i < vec_len(g->params); i++) {
        bool found = g->params[i].acc < 0;
        for (size_t k = 0; k < vec_len(fr.updated); k++) found |= fr.updated[k] == g->params[i].val;
        if (!found)
            err(g, fr.optimizer_loc ? fr.optimizer_loc : fr.model_loc,
                "the optimizer gives the parameter '%s' no new value", g->params[i].name);
    }
}

// Pushes m:optimizer's function, or nn.adamw_step, and the model as its argument.
void model_optimize(lua_State *L)
{
    if (lua_getfield(L, LUA_REGISTRYINDEX, "pico.optimizer") != LUA_TFUNCTION) {
        lua_pop(L, 1);
        lua_getfield(L, LUA_REGISTRYINDEX, "pico.nn");
        lua_getfield(L, -1, "adamw_step");
        lua_remove(L, -2);
    }
    lua_getfield(L, LUA_REGISTRYINDEX, "pico.model");
}
