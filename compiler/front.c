// front.c: runs the description, a Lua file, and leaves its graph.
//
// The description is a program, so it may do anything a program can: run forever, eat memory, call os.exit. It runs in
// a sandbox: no files, clock, environment, finalizers or byte code; limits of instructions, CPU time (one call of a C
// function may take years) and memory; print goes to stderr.
// Equal input must give equal bytes, so pairs and next go in sorted order and math.random has a fixed seed.
//
// Errors. C functions here end the process themselves (front_place.c). What Lua raises (error(), a nil index, a syntax
// error) arrives at the message handler with its place in front of the text, "llama.lua:7: ..."; the handler takes it
// apart and finds the innermost place in the user's files if there is none.
//
// Traps: a hook belongs to a coroutine's state and is inherited by those it makes, so one counter counts all.
// The parser, notation*.lua, runs in an environment of its own, with the real pairs and a require of its own.
#include "front.h"
#include "embedded.h"
#include <errno.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

int luaopen_lpeg(lua_State *L);

Front fr;
enum { HOOK_STEP = 100000, MAX_STEPS = 1000 }; // 100 million instructions: a second or so
enum { MAX_MEMORY = 1 << 29, MAX_SOURCE = 16 << 20, MAX_FILES = 50 };
enum { MAX_SECONDS = 5 }; // of CPU time, for what the count of instructions does not see
static struct {
    size_t memory;
    int steps, files;
    volatile sig_atomic_t alarms;
    Buf source;
    const char *error_text;
    Loc error_loc;
} run;

// --------------------------------------------------------------------------------------------------------- limits
static void *limited_alloc(void *ud, void *p, size_t old, size_t size)
{
    (void)ud;
    if (!p) old = 0; // then it is the kind of object
    if (size == 0) {
        free(p);
        run.memory -= old;
        return NULL;
    }
    if (size > old && run.memory + (size - old) > MAX_MEMORY) {
        lua_Debug ar; // Lua calls no message handler when memory ends
        if (user_frame(fr.L, &ar)) run.error_loc = graph_loc(fr.g, ar.source + 1, ar.currentline);
        return NULL;
    }
    void *q = realloc(p, size);
    if (q) run.memory = run.memory - old + size;
    return q;
}

static void refuse_endless(lua_State *L)
{
    lua_Debug user;
    fr.frame = NULL;
    if (user_frame(L, &user)) fr.g->cur_loc = graph_loc(fr.g, user.source + 1, user.currentline);
    if (run.alarms) front_err("the description runs forever: it was stopped after %d seconds", MAX_SECONDS);
    front_err("the description runs forever: it was stopped after %d million instructions", MAX_STEPS / 10);
}

static void count_steps(lua_State *L, lua_Debug *ar)
{
    (void)ar;
    if (run.alarms || ++run.steps >= MAX_STEPS) refuse_endless(L);
}

// One call of a C function (string.rep, string.find, table.move) may run for years between two instructions. The first
// alarm leaves it to the hook. A second later it is such a call, Lua stands still, and the handler may look for the
// place; should it hang there, the third ends it.
static void on_alarm(int number)
{
    static const char text[] = "picoc: the description runs forever\n";
    (void)number;
    run.alarms++;
    if (run.alarms == 2) refuse_endless(fr.L);
    if (run.alarms > 2) _exit(write(2, text, sizeof text - 1) < 0 ? 2 : 1);
}

static void watch_time(int seconds)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_NODEFER | SA_RESTART};
    sigemptyset(&action.sa_mask);
    run.alarms = 0;
    sigaction(SIGPROF, &action, NULL);
    setitimer(ITIMER_PROF, &(struct itimerval){{seconds ? 1 : 0, 0}, {seconds, 0}}, NULL);
}

// -------------------------------------------------------------------------------------------------- files, modules
// Loads a Lua text as a function on top of the stack. Ends the process if it is none.
static void load_file(lua_State *L, const char *path, bool keep)
{
    size_t size = 0;
    if (run.files++ == MAX_FILES) front_err("files load each other without end, or are more than %d", MAX_FILES);
    char *text = read_file_limited(path, MAX_SOURCE, &size);
    if (!text && errno == EFBIG) fatal("%s: a description has at most %d MiB", path, MAX_SOURCE >> 20);
    if (!text && fr.g->cur_loc) front_err("cannot read %s: %s", path, strerror(errno));
    if (!text) fatal("%s:", path);
    if (strlen(text) != size || text[0] == '\x1b') fatal("%s: this is not a text in Lua", path);
    if (keep) {
        const char *slash = strrchr(path, '/');
        if (run.source.n) buf_printf(&run.source, "\n-- %s\n", slash ? slash + 1 : path);
        buf_write(&run.source, text, size);
    }
    if (!strncmp(text, "\xef\xbb\xbf", 3)) memset(text, ' ', 3); // UTF-8's byte order mark
    size_t first = strspn(text, " ");
    if (text[first] == '#' && first <= 3) memset(text, ' ', strcspn(text, "\n")); // #!/usr/bin/..
    int status = luaL_loadbufferx(L, text, size, lua_pushfstring(L, "@%s", path), "t");
    lua_remove(L, -2);
    free(text);
    if (status == LUA_OK) return;
    const char *message = lua_tostring(L, -1);
    if (message && strstr(message, "C stack overflow")) message = "brackets or blocks are nested too deeply";
    const char *at = message ? strstr(message, ":") : NULL;
    while (at && !(at[1] >= '0' && at[1] <= '9' && at[1 + strspn(at + 1, "0123456789")] == ':'))
        at = strstr(at + 1, ":");
    if (!at) err(fr.g, 0, "%s: %s", path, message ? message : "cannot be loaded");
    Loc loc = graph_loc(fr.g, path, (int)strtol(at + 1, NULL, 10));
    err(fr.g, loc, "%s", at + 1 + strspn(at + 1, "0123456789") + 2);
}

static bool exists(const char *path)
{
    return access(path, R_OK) == 0;
}

// Where a module is: beside the model, in the source tree's graphs/, in graphs/ beside or above the program.
static const char *find_module(const char *name)
{
    Arena *a = &fr.g->arena;
    const char *slash = strrchr(options.model_path, '/');
    const char *beside =
        slash ? arena_printf(a, "%.*s/%s.lua", (int)(slash - options.model_path), options.model_path, name)
              : arena_printf(a, "%s.lua", name);
    if (exists(beside)) return beside;
#ifdef PICO_GRAPHS_DIR
    const char *source = arena_printf(a, "%s/%s.lua", PICO_GRAPHS_DIR, name);
    if (exists(source)) return source;
#endif
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    while (n > 0 && self[n - 1] != '/') n--;
    static const char *const places[] = {"graphs", "../graphs", "../share/pico/graphs"};
    for (size_t i = 0; n > 0 && i < countof(places); i++) {
        const char *path = arena_printf(a, "%.*s%s/%s.lua", (int)n, self, places[i], name);
        if (exists(path)) return path;
    }
    return NULL;
}

// require "nn", require "pico", or another description beside the model or in graphs/: run once.
static int require_module(lua_State *L)
{
    front_enter(L);
    if (lua_type(L, 1) != LUA_TSTRING) front_err("require takes a name");
    const char *name = lua_tostring(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    if (lua_getfield(L, -1, name) != LUA_TNIL) return 1;
    const char *path = strpbrk(name, "/\\") || name[0] == '.' ? NULL : find_module(name);
    if (!path) front_err("there is no module '%s': neither beside the model nor in graphs/", name);
    bool library = !strcmp(name, "nn");
    if (library) fr.library = arena_printf(&fr.g->arena, "@%s", path);
    load_file(L, path, !library);
    lua_call(L, 0, 1);
    if (library) {
        lua_pushvalue(L, -1);
        lua_setfield(L, LUA_REGISTRYINDEX, "pico.nn");
    }
    lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    if (lua_isnil(L, -2))
        lua_pushboolean(L, true);
    else
        lua_pushvalue(L, -2);
    lua_setfield(L, -2, name);
    lua_pop(L, 1);
    return 1;
}

static int do_file(lua_State *L)
{
    front_enter(L);
    if (lua_type(L, 1) != LUA_TSTRING) front_err("dofile takes a path");
    lua_settop(L, 1);
    load_file(L, lua_tostring(L, 1), true);
    lua_call(L, 0, LUA_MULTRET);
    return lua_gettop(L) - 1;
}

// -------------------------------------------------------------------------------------------------------- sandbox
static int print_stderr(lua_State *L)
{
    int n = lua_gettop(L);
    for (int i = 1; i <= n; i++) {
        fprintf(stderr, "%s%s", i > 1 ? "\t" : "", luaL_tolstring(L, i, NULL));
        lua_pop(L, 1);
    }
    fputc('\n', stderr);
    return 0;
}

// load(text, name, mode, env), of text only
static int load_text(lua_State *L)
{
    size_t size;
    const char *text = luaL_checklstring(L, 1, &size);
    const char *name = luaL_optstring(L, 2, "=(load)");
    if (luaL_loadbufferx(L, text, size, name, "t") != LUA_OK) {
        lua_pushnil(L);
        lua_insert(L, -2);
        return 2;
    }
    if (lua_gettop(L) >= 5) {
        lua_pushvalue(L, 4);
        lua_setupvalue(L, -2, 1);
    }
    return 1;
}

// os.exit, io.open ...; upvalue: the library's name
static int refuse_library(lua_State *L)
{
    front_enter(L);
    front_err("%s.%s is not there: a description reaches no files, clock or environment, so that equal input gives "
              "equal plans",
              lua_tostring(L, lua_upvalueindex(1)), lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?");
}

// When a finalizer runs, and whether, depends on more than the description.
static int set_metatable(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 2);
    lua_pushliteral(L, "__gc");
    if (lua_istable(L, 2) && lua_rawget(L, 2) != LUA_TNIL) {
        front_enter(L);
        front_err("__gc is not there: a description has no finalizers");
    }
    lua_settop(L, 2);
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, 2, 1);
    return 1;
}

static void refuse_table(lua_State *L, const char *name)
{
    lua_newtable(L);
    lua_newtable(L);
    lua_pushstring(L, name);
    lua_pushcclosure(L, refuse_library, 1);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_setglobal(L, name);
}

static void clear_fields(lua_State *L, const char *library, const char *const *names)
{
    lua_getglobal(L, library);
    for (; *names; names++) {
        lua_pushnil(L);
        lua_setfield(L, -2, *names);
    }
    lua_pop(L, 1);
}

static void keep_fields(lua_State *L, const char *library, const char *const *names)
{
    lua_getglobal(L, library);
    lua_newtable(L);
    for (; *names; names++) {
        lua_getfield(L, -2, *names);
        lua_setfield(L, -2, *names);
    }
    lua_setglobal(L, library);
    lua_pop(L, 1);
}

static void make_sandbox(lua_State *L)
{
    static const luaL_Reg own[] = {{"print", print_stderr},
                                   {"load", load_text},
                                   {"pairs", sorted_pairs},
                                   {"next", sorted_next},
                                   {"require", require_module},
                                   {"dofile", do_file},
                                   {NULL, NULL}};
    lua_getglobal(L, "math");
    lua_getfield(L, -1, "randomseed");
    lua_pushinteger(L, 0);
    lua_call(L, 1, 0);
    lua_pop(L, 1);
    lua_pushglobaltable(L);
    luaL_setfuncs(L, own, 0);
    lua_getfield(L, -1, "setmetatable");
    lua_pushcclosure(L, set_metatable, 1);
    lua_setfield(L, -2, "setmetatable");
    lua_pop(L, 1);
    clear_fields(L, "_G", (const char *const[]){"collectgarbage", "loadfile", "warn", NULL});
    clear_fields(L, "math", (const char *const[]){"randomseed", NULL});
    clear_fields(L, "string", (const char *const[]){"dump", NULL});
    keep_fields(L, "debug", (const char *const[]){"getinfo", "traceback", NULL});
    refuse_table(L, "os");
    refuse_table(L, "io");
    refuse_table(L, "package");
}

// ------------------------------------------------------------------------------------------------------- the parser
int call_parser(lua_State *L, const char *function, int nargs)
{
    luaL_checkstack(L, 8, NULL);
    lua_getfield(L, LUA_REGISTRYINDEX, "pico.notation");
    lua_getfield(L, -1, function);
    lua_remove(L, -2);
    lua_insert(L, -1 - nargs);
    lua_call(L, nargs, 2);
    return 2;
}

// The parser's require; upvalues: its modules by name, its globals. Out of reach of the description.
static int parser_require(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    if (lua_getfield(L, lua_upvalueindex(1), name) != LUA_TNIL) return 1;
    size_t size;
    const char *text = embedded_lua(name, &size);
    if (!text) bug("no module '%s' is built in", name);
    if (luaL_loadbufferx(L, text, size, lua_pushfstring(L, "=%s.lua", name), "t") != LUA_OK)
        bug("%s", lua_tostring(L, -1));
    lua_pushvalue(L, lua_upvalueindex(2));
    lua_setupvalue(L, -2, 1);
    lua_call(L, 0, 1);
    lua_pushvalue(L, -1);
    lua_setfield(L, lua_upvalueindex(1), name);
    return 1;
}

// The parser, in a copy of the globals as they are before the sandbox is made.
static void open_parser(lua_State *L)
{
    lua_newtable(L); // modules
    luaL_requiref(L, "lpeg", luaopen_lpeg, 0);
    lua_setfield(L, -2, "lpeg");
    lua_newtable(L); // globals
    lua_pushglobaltable(L);
    lua_pushnil(L);
    while (lua_next(L, -2)) {
        lua_pushvalue(L, -2);
        lua_insert(L, -2);
        lua_settable(L, -5);
    }
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    lua_insert(L, -3); // globals, modules, globals
    lua_pushcclosure(L, parser_require, 2);
    lua_pushvalue(L, -1);
    lua_setfield(L, -3, "require");
    lua_pushstring(L, "notation");
    lua_call(L, 1, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, "pico.notation");
    lua_newtable(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "pico.known");
    lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    lua_pushnil(L);
    lua_setfield(L, -2, "lpeg");
    lua_pop(L, 2);
}

static int pico_missing(lua_State *L)
{
    front_enter(L);
    const char **names = NULL, *key = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";
    table_keys_sorted(L, 1, "pico", &names);
    front_err("there is no pico.%s%s", key, near_name(key, names, vec_len(names)));
}

static void open_pico(lua_State *L)
{
    static const luaL_Reg functions[] = {{"model", model_function}, {"config", config_function}, {"op", op_define},
                                         {"library", op_library},   {"fused", op_fused},         {NULL, NULL}};
    luaL_newmetatable(L, OP);
    luaL_setfuncs(L, (luaL_Reg[]){{"__call", op_call}, {"__tostring", op_tostring}, {NULL, NULL}}, 0);
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "__metatable");
    lua_pop(L, 1);
    model_register(L);
    lua_newtable(L);
    luaL_setfuncs(L, functions, 0);
    tensor_library(L);
    mark_library(L);
    lua_newtable(L);
    lua_pushcfunction(L, pico_missing);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_getfield(L, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
    lua_insert(L, -2);
    lua_setfield(L, -2, "pico");
    lua_pop(L, 1);
}

// --------------------------------------------------------------------------------------------------- Lua's own errors
// If the message begins with the place of a frame, "llama.lua:7: ", takes it off.
static const char *take_place(lua_State *L, const char *message)
{
    lua_Debug ar;
    for (int level = 0; lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "S", &ar);
        size_t n = strlen(ar.short_src), digits;
        if (ar.source[0] != '@' || strncmp(message, ar.short_src, n) || message[n] != ':') continue;
        digits = strspn(message + n + 1, "0123456789");
        if (!digits || strncmp(message + n + 1 + digits, ": ", 2)) continue;
        run.error_loc = graph_loc(fr.g, ar.source + 1, (int)strtol(message + n + 1, NULL, 10));
        return message + n + 1 + digits + 2;
    }
    return message;
}

static int on_error(lua_State *L)
{
    lua_Debug ar;
    run.error_loc = 0;
    const char *message;
    if (lua_isstring(L, 1))
        message = take_place(L, lua_tostring(L, 1));
    else if (luaL_getmetafield(L, 1, "__tostring") != LUA_TNIL)
        message = luaL_tolstring(L, 1, NULL);
    else
        message = lua_pushfstring(L, "the description raised an error that is no text: a %s", luaL_typename(L, 1));
    if (strstr(message, "stack overflow")) message = "functions call each other without end";
    if (!run.error_loc && user_frame(L, &ar)) run.error_loc = graph_loc(fr.g, ar.source + 1, ar.currentline);
    const char *end = strchr(message, '\n');
    run.error_text =
        arena_printf(&fr.g->arena, "%.*s", (int)min_of(end ? (size_t)(end - message) : strlen(message), 500), message);
    return 0;
}

// Calls the function below its n arguments. Ends the process with the place if Lua raises an error.
static void call(lua_State *L, int nargs, int nresults)
{
    int handler = lua_gettop(L) - nargs;
    lua_pushcfunction(L, on_error);
    lua_insert(L, handler);
    run.error_text = NULL;
    run.error_loc = 0;
    int status = lua_pcall(L, nargs, nresults, handler);
    lua_remove(L, handler);
    if (status == LUA_OK) return;
    Loc loc = run.error_loc ? run.error_loc : fr.g->cur_loc;
    if (status == LUA_ERRMEM) err(fr.g, loc, "the description needs more than %d MiB of memory", MAX_MEMORY >> 20);
    if (status == LUA_ERRERR) err(fr.g, loc, "functions call each other without end");
    err(fr.g, loc, "%s",
        run.error_text && *run.error_text ? run.error_text : "the description raised an error without a text");
}

// -------------------------------------------------------------------------------------------------------- the passes
static int open_state(lua_State *L)
{
    luaL_openlibs(L);
    open_parser(L);
    make_sandbox(L);
    open_pico(L);
    return 0;
}

static void define_axes(Graph *g)
{
    g->batch = graph_axis(g, "batch", options.micro_batch);
    g->seq_axis = graph_axis(g, "seq", options.seq);
    vec_push(fr.axes, (NamedAxis){"batch", g->batch, 0});
    vec_push(fr.axes, (NamedAxis){"seq", g->seq_axis, 0});
}

// Offsets and sizes in bytes stay far below 2^63.
static void refuse_large_values(const Graph *g)
{
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        int64_t n = 1;
        for (int i = 0; i < x->naxes; i++) {
            int64_t extent = g->axes[x->axes[i]].extent;
            if (n > ((int64_t)1 << 48) / extent)
                err(g, x->loc, "a value of this line would have more than 2^48 elements");
            n *= extent;
        }
    }
}

void front(Graph *g)
{
    fr.g = g;
    g->dtype = options.dtype;
    g->seq = options.seq;
    g->micro_batch = options.micro_batch;
    g->accum = options.accum;
    g->cur_layer = -1;
    g->cur_loc = 0;
    fr.op_dtype = graph_compute_dtype(g);
    define_axes(g);
    lua_State *L = fr.L = lua_newstate(limited_alloc, NULL);
    if (!L) fatal("no memory for Lua");
    lua_pushcfunction(L, open_state);
    call(L, 0, 0);
    load_file(L, options.model_path, true);
    lua_sethook(L, count_steps, LUA_MASKCOUNT, HOOK_STEP);
    int base = lua_gettop(L) - 1;
    watch_time(MAX_SECONDS);
    call(L, 0, LUA_MULTRET);
    bool returned = lua_gettop(L) > base;
    if (returned) lua_settop(L, base + 1);
    g->cur_loc = graph_loc(g, options.model_path, 1);
    model_finish(L, returned);
    watch_time(0);
    config_finish();
    refuse_large_values(g);
    if (!g->config) g->config = "{}";
    g->source = arena_strdup(&g->arena, run.source.s ? run.source.s : "");
    buf_free(&run.source);
    lua_settop(L, 0);
}

static int run_optimizer(lua_State *L)
{
    if (lua_getfield(L, LUA_REGISTRYINDEX, "pico.nn") == LUA_TNIL) { // a model without nn: its optimizer may need it
        lua_pushcfunction(L, require_module);
        lua_pushstring(L, "nn");
        lua_call(L, 1, 0);
    }
    model_optimize(L);
    lua_call(L, 1, 0);
    return 0;
}

void front_optimizer(Graph *g)
{
    lua_State *L = fr.L;
    Loc loc = g->cur_loc;
    fr.optimizing = fr.over_batch = true;
    run.steps = 0;
    g->cur_loc = fr.model_loc;
    lua_pushcfunction(L, run_optimizer);
    watch_time(MAX_SECONDS);
    call(L, 0, 0);
    watch_time(0);
    model_optimized();
    g->cur_loc = loc;
    g->cur_op = 0;
    fr.frame = NULL;
}

void front_close(void)
{
    if (fr.L) lua_close(fr.L);
    fr.L = NULL;
    vec_free(fr.axes);
    vec_free(fr.ops);
    vec_free(fr.outers);
    vec_free(fr.used);
    vec_free(fr.updated);
    vec_free(fr.updated_at);
}
