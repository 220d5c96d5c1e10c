// front_train.c: what the description says of training: scalars, the runtime's defaults, the optimizer.
//
// m:scalar gives a number that the runtime sets before a step; m:train texts for picorun's options, which the command
// line overrides; m:optimizer a function that is called once the gradients exist (front_optimizer), where p.grad,
// p:state and m:report are of use.
//
// Traps. A scalar has one node however often it is asked for. Its default in the plan is what m:train has said by then.
#include "front.h"
#include <math.h>

// -------------------------------------------------------------------------------------------------- scalars, train
// The runtime's options that a plan can set, and what they are if nobody says.
static const struct {
    const char *name;
    bool scalar;
    double standard;
} known[] = {
    {"beta1", true, 0.9}, {"beta2", true, 0.95}, {"clip", true, 0},         {"data", false, 0},
    {"decay", false, 0},  {"eps", true, 1e-8},   {"ignore", false, 0},      {"init", false, 0},
    {"lr", true, 1e-3},   {"min_lr", false, 0},  {"seed", false, 0},        {"shuffle", false, 0},
    {"steps", false, 0},  {"warmup", false, 0},  {"weight_decay", true, 0}, {"weight_decay_1d", true, 0},
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
int model_scalar(lua_State *L)
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
int model_scalars(lua_State *L)
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

// The list of data files on top of the stack, one a line.
static const char *train_files(lua_State *L)
{
    Buf b = {0};
    lua_Integer n = (lua_Integer)lua_rawlen(L, -1);
    if (n == 0) front_err("m:train: data = {} names no file");
    for (lua_Integer i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, i);
        if (lua_type(L, -1) != LUA_TSTRING) front_err("m:train: data lists names of files");
        const char *name = lua_tostring(L, -1);
        if (!*name || strchr(name, '\n')) front_err("m:train: a file's name is one line");
        buf_printf(&b, "%s%s", i > 1 ? "\n" : "", name);
        lua_pop(L, 1);
    }
    const char *text = intern(b.s);
    buf_free(&b);
    return text;
}

int model_train(lua_State *L)
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
        for (size_t t = 0; t < vec_len(fr.g->train); t++)
            if (!strcmp(fr.g->train[t].key, keys[i])) front_err("m:train: '%s' is given already", keys[i]);
        bool files = !strcmp(keys[i], "data") && lua_istable(L, -1);
        vec_push(fr.g->train, (TrainOption){keys[i], files ? train_files(L) : train_text(L, keys[i])});
        lua_pop(L, 1);
    }
    vec_free(keys);
    return 0;
}

// ------------------------------------------------------------------------------------------------------ optimizer
int model_optimizer(lua_State *L)
{
    check_model(L, "optimizer");
    if (!lua_isfunction(L, 2)) front_err("m:optimizer takes a function of the model");
    lua_pushvalue(L, 2);
    lua_setfield(L, LUA_REGISTRYINDEX, "pico.optimizer");
    fr.optimizer_loc = fr.g->cur_loc;
    return 0;
}

// m:report(name, t): a number that the host reads after each step
int model_report(lua_State *L)
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
