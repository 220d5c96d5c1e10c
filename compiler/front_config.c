// front_config.c: pico.config { field = default, ... }: the fields of a Hugging Face config that a description uses.
//
//   field = 192                    used; the default says its type. A whole default takes whole numbers from 1 (from 0
//   if
//                                  the default is 0); 192.0 is 192
//   field = function(c) .. end     used; computed from the others if it is absent
//   field = pico.optional(v)       used; absent from a config file it is v (a value, or a function)
//   field = pico.only(v)           accepted with this value alone, or absent
//
// Values come from --config, then -D, then the defaults. With --config every plain field must be in the file or in -D:
// a default made for a laptop must not stand in for what a config forgot. Fields without influence on the mathematics
// are in the list `harmless` and pass; any other field is refused by name. null in a file means absent.
//
// Trap: Lua's table has no order, so all goes by sorted names, and so does the JSON text that the plan keeps.
#include "front.h"
#include <cjson/cJSON.h>
#include <math.h>

static const char *const harmless[] = {
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "dtype",
    "eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "max_window_layers",
    "model_type",
    "n_ctx",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "pretraining_tp",
    "return_dict",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
};

typedef enum { PLAIN, OPTIONAL, ONLY } FieldKind;
typedef struct {
    const char *name;
    FieldKind kind;
    bool computed;      // the default is a function
    const cJSON *given; // NULL: absent
    const char *from;   // "config.json", or "-D" for messages
} Field;
static struct {
    Field *fields;
    cJSON *file, **defines;
    Loc loc;
} config;

// ------------------------------------------------------------------------------------------------ marks in Lua
// pico.only(v), pico.optional(v), pico.null: userdata whose user value is v.
static int push_mark(lua_State *L, FieldKind kind)
{
    *(FieldKind *)lua_newuserdatauv(L, sizeof(FieldKind), 1) = kind;
    lua_pushvalue(L, 1);
    lua_setiuservalue(L, -2, 1);
    luaL_setmetatable(L, MARK);
    return 1;
}

static int mark_only(lua_State *L)
{
    front_enter(L);
    if (lua_gettop(L) != 1 || lua_isnil(L, 1))
        front_err("pico.only takes the one value that is accepted (pico.null: absent)");
    return push_mark(L, ONLY);
}

static int mark_optional(lua_State *L)
{
    front_enter(L);
    if (lua_gettop(L) != 1 || lua_isnil(L, 1)) front_err("pico.optional takes a default");
    return push_mark(L, OPTIONAL);
}

static int mark_tostring(lua_State *L)
{
    lua_pushstring(L, "null");
    return 1;
}

void mark_library(lua_State *L)
{
    luaL_newmetatable(L, MARK);
    lua_pushcfunction(L, mark_tostring);
    lua_setfield(L, -2, "__tostring");
    lua_pop(L, 1);
    lua_pushcfunction(L, mark_only);
    lua_setfield(L, -2, "only");
    lua_pushcfunction(L, mark_optional);
    lua_setfield(L, -2, "optional");
    *(FieldKind *)lua_newuserdatauv(L, sizeof(FieldKind), 1) = PLAIN;
    luaL_setmetatable(L, MARK);
    lua_setfield(L, -2, "null");
}

static bool is_null(lua_State *L, int index)
{
    const FieldKind *k = luaL_testudata(L, index, MARK);
    return k && *k == PLAIN;
}

// ------------------------------------------------------------------------------------------------- values in JSON
static const char *json_text(const cJSON *x)
{
    if (cJSON_IsNumber(x)) return number_text(x->valuedouble);
    if (cJSON_IsString(x)) return arena_printf(&fr.g->arena, "\"%.60s\"", x->valuestring);
    if (cJSON_IsObject(x)) return "an object";
    if (cJSON_IsArray(x)) return "a list";
    return cJSON_IsNull(x) ? "null" : cJSON_IsTrue(x) ? "true" : "false";
}

static const char *lua_text(lua_State *L, int index)
{
    if (is_null(L, index)) return "null";
    if (lua_type(L, index) == LUA_TNUMBER) return number_text(lua_tonumber(L, index));
    if (lua_type(L, index) == LUA_TSTRING) return arena_printf(&fr.g->arena, "\"%s\"", lua_tostring(L, index));
    return lua_toboolean(L, index) ? "true" : "false";
}

static bool equals(lua_State *L, int index, const cJSON *x)
{
    if (is_null(L, index)) return cJSON_IsNull(x);
    switch (lua_type(L, index)) {
    case LUA_TNUMBER:
        return cJSON_IsNumber(x) && x->valuedouble == lua_tonumber(L, index);
    case LUA_TSTRING:
        return cJSON_IsString(x) && !strcmp(x->valuestring, lua_tostring(L, index));
    case LUA_TBOOLEAN:
        return cJSON_IsBool(x) && cJSON_IsTrue(x) == lua_toboolean(L, index);
    default:
        return false;
    }
}

// ------------------------------------------------------------------------------------------------- what is given
static void read_file_config(void)
{
    const char *path = options.config_path;
    size_t size;
    char *text = read_file_limited(path, 16 << 20, &size);
    if (!text) fatal("%s:", path);
    const char *end = NULL;
    config.file = cJSON_ParseWithLengthOpts(text, size + 1, &end, true);
    if (!cJSON_IsObject(config.file)) {
        int line = 1;
        for (const char *s = text; end && s < end && *s; s++) line += *s == '\n';
        if (config.file) fatal("%s: a config is a JSON object", path);
        fatal("%s:%d: this is not JSON", path, line);
    }
    free(text);
}

// -D key=value: a number, true, false or null as in JSON; anything else is text.
static cJSON *parse_define(const char *define)
{
    const char *equal = strchr(define, '=');
    if (!equal || equal == define) usage_error("-D %s: write -D key=value", define);
    cJSON *x = cJSON_ParseWithOpts(equal + 1, NULL, true);
    if (!x || cJSON_IsObject(x) || cJSON_IsArray(x) || cJSON_IsString(x)) {
        cJSON_Delete(x);
        x = cJSON_CreateString(equal + 1);
    }
    x->string = strncpy(xcalloc((size_t)(equal - define) + 1, 1), define, (size_t)(equal - define));
    return x;
}

static void read_given(void)
{
    if (options.config_path) read_file_config();
    for (size_t i = 0; i < vec_len(options.defines); i++) vec_push(config.defines, parse_define(options.defines[i]));
}

static const char *config_name(void)
{
    const char *slash = strrchr(options.config_path, '/');
    return slash ? slash + 1 : options.config_path;
}

static void give(const cJSON *x, const char *from)
{
    for (size_t i = 0; i < vec_len(config.fields); i++) {
        Field *f = &config.fields[i];
        if (strcmp(f->name, x->string)) continue;
        if (f->given && f->from == from && strcmp(from, "-D"))
            front_err("%s: the field '%s' is there twice", from, f->name);
        f->given = cJSON_IsNull(x) && f->kind != ONLY ? NULL : x;
        f->from = from;
        return;
    }
    for (size_t i = 0; i < countof(harmless); i++)
        if (!strcmp(harmless[i], x->string)) return;
    const char **names = NULL;
    for (size_t i = 0; i < vec_len(config.fields); i++) vec_push(names, config.fields[i].name);
    front_err("%s: the model knows no config field '%s'%s", from, x->string,
              near_name(x->string, names, vec_len(names)));
}

// ---------------------------------------------------------------------------------------------------- one field
static _Noreturn void refuse_value(const Field *f, const char *want)
{
    front_err("%s: the config field '%s' is %s, and must be %s", f->from, f->name, json_text(f->given), want);
}

// Pushes the value given, checked against the default on top of the stack (which stays).
static void push_given(lua_State *L, const Field *f)
{
    const cJSON *x = f->given;
    int type = f->computed ? LUA_TNUMBER : lua_type(L, -1);
    if (type == LUA_TBOOLEAN) {
        if (!cJSON_IsBool(x)) refuse_value(f, "true or false");
        lua_pushboolean(L, cJSON_IsTrue(x));
    } else if (type == LUA_TSTRING) {
        if (!cJSON_IsString(x)) refuse_value(f, "text");
        lua_pushstring(L, x->valuestring);
    } else {
        bool whole = !f->computed && lua_isinteger(L, -1);
        if (!cJSON_IsNumber(x) || !isfinite(x->valuedouble)) refuse_value(f, whole ? "a whole number" : "a number");
        double v = x->valuedouble, least = whole && lua_tointeger(L, -1) == 0 ? 0 : 1;
        if (whole && (v != floor(v) || v < least || v > INT32_MAX))
            refuse_value(f, least == 0 ? "a whole number from 0, below 2^31" : "a whole number from 1, below 2^31");
        if (whole || (f->computed && v == floor(v) && fabs(v) <= INT32_MAX))
            lua_pushinteger(L, (lua_Integer)v);
        else
            lua_pushnumber(L, v);
    }
}

static void check_default(lua_State *L, const Field *f)
{
    int type = lua_type(L, -1);
    if (f->kind == ONLY && is_null(L, -1)) return;
    if (type != LUA_TNUMBER && type != LUA_TSTRING && type != LUA_TBOOLEAN &&
        !(type == LUA_TFUNCTION && f->kind != ONLY))
        front_err("the default of the config field '%s' is a number, a text, true or false, or a function, not %s",
                  f->name, luaL_typename(L, -1));
}

// Reads kind and default of a field of the table at 1; leaves the default on top.
static void open_field(lua_State *L, Field *f)
{
    lua_getfield(L, 1, f->name);
    const FieldKind *mark = luaL_testudata(L, -1, MARK);
    f->kind = mark ? *mark : PLAIN;
    if (mark && *mark == PLAIN)
        front_err("the config field '%s': write pico.only(pico.null) for a field that must be absent", f->name);
    if (mark) {
        lua_getiuservalue(L, -1, 1);
        lua_remove(L, -2);
    }
    check_default(L, f);
    f->computed = lua_type(L, -1) == LUA_TFUNCTION;
}

// c[field] = its value, c being the table at 2. Computed ones are made in a second round.
static void settle(lua_State *L, Field *f, bool second)
{
    open_field(L, f);
    if (f->kind == ONLY) {
        if (f->given && !equals(L, -1, f->given))
            refuse_value(f, arena_printf(&fr.g->arena, "%s: this model has nothing else", lua_text(L, -1)));
    } else if (f->given) {
        push_given(L, f);
    } else if (f->kind == PLAIN && !f->computed && options.config_path) {
        front_err("%s lacks the config field '%s'", config_name(), f->name);
    } else if (f->computed) {
        if (!second) {
            lua_pop(L, 1);
            return;
        }
        lua_pushvalue(L, 2);
        lua_call(L, 1, 1);
        double v = lua_tonumber(L, -1);
        if (lua_type(L, -1) == LUA_TNUMBER && v == floor(v) && fabs(v) <= INT32_MAX) lua_pushinteger(L, (lua_Integer)v);
        if (lua_isnil(L, -1)) front_err("the function of the config field '%s' gives nil", f->name);
    }
    lua_setfield(L, 2, f->name);
    lua_settop(L, 2);
}

// c.fiel: says so, instead of giving nil.
static int config_missing(lua_State *L)
{
    front_enter(L);
    const char **names = NULL;
    for (size_t i = 0; i < vec_len(config.fields); i++) vec_push(names, config.fields[i].name);
    const char *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";
    front_err("the config has no field '%s'%s", key, near_name(key, names, vec_len(names)));
}

// The fields and their values as JSON, for the plan.
static void keep_text(lua_State *L)
{
    cJSON *all = cJSON_CreateObject();
    for (size_t i = 0; i < vec_len(config.fields); i++) {
        const char *name = config.fields[i].name;
        int type = lua_getfield(L, 2, name);
        if (type == LUA_TNUMBER)
            cJSON_AddNumberToObject(all, name, lua_tonumber(L, -1));
        else if (type == LUA_TSTRING)
            cJSON_AddStringToObject(all, name, lua_tostring(L, -1));
        else if (type == LUA_TBOOLEAN)
            cJSON_AddBoolToObject(all, name, lua_toboolean(L, -1));
        lua_pop(L, 1);
    }
    char *text = cJSON_PrintUnformatted(all);
    fr.g->config = arena_strdup(&fr.g->arena, text);
    cJSON_free(text);
    cJSON_Delete(all);
}

int config_function(lua_State *L)
{
    front_enter(L);
    if (lua_gettop(L) != 1 || !lua_istable(L, 1)) front_err("pico.config takes { field = default, ... }");
    if (fr.config_read) front_err("pico.config is called twice: first at %s", loc_text(config.loc));
    fr.config_read = true;
    config.loc = fr.g->cur_loc;
    const char **names = NULL;
    table_keys_sorted(L, 1, "pico.config", &names);
    for (size_t i = 0; i < vec_len(names); i++) {
        Field f = {.name = names[i]};
        open_field(L, &f);
        lua_settop(L, 1);
        vec_push(config.fields, f);
    }
    vec_free(names);
    read_given();
    if (config.file)
        for (const cJSON *x = config.file->child; x; x = x->next) give(x, config_name());
    for (size_t i = 0; i < vec_len(config.defines); i++) give(config.defines[i], "-D");
    lua_newtable(L);
    for (int second = 0; second < 2; second++)
        for (size_t i = 0; i < vec_len(config.fields); i++) settle(L, &config.fields[i], second);
    keep_text(L);
    lua_newtable(L);
    lua_pushcfunction(L, config_missing);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, 2);
    return 1;
}

void config_finish(void)
{
    if (!fr.config_read && (options.config_path || vec_len(options.defines)))
        err(fr.g, fr.model_loc, "the description has no config fields, and %s gives some",
            options.config_path ? "--config" : "-D");
    cJSON_Delete(config.file);
    for (size_t i = 0; i < vec_len(config.defines); i++) cJSON_Delete(config.defines[i]);
    vec_free(config.defines);
    vec_free(config.fields);
}
