// front_op.c: op definitions. pico.op and pico.library hand the text to notation.lua and copy the tables it returns
// (described at its head) to C, once; calling an op then touches no Lua.
//
// Op names are global: registry["pico.known"] is the parser's table of all of them, fr.ops the same in C. Everything
// made here lives in the graph's arena: definitions are needed until the gradient is done.
// Trap: the parser has checked the text, so a malformed table is our bug, not the user's.
#include "front.h"

#define ARENA(T, n) arena_new(&fr.g->arena, T, (n) + 1)

// ------------------------------------------------------------------------------------------------ reading tables
static const char *field_text(lua_State *L, int table, const char *key)
{
    lua_getfield(L, table, key);
    const char *s = lua_isstring(L, -1) ? intern(lua_tostring(L, -1)) : NULL;
    lua_pop(L, 1);
    return s;
}

static int field_int(lua_State *L, int table, const char *key)
{
    lua_getfield(L, table, key);
    int n = (int)lua_tointeger(L, -1);
    lua_pop(L, 1);
    return n;
}

static int item_int(lua_State *L, int table, int i)
{
    lua_rawgeti(L, table, i);
    int n = (int)lua_tonumber(L, -1);
    lua_pop(L, 1);
    return n;
}

static const char *item_text(lua_State *L, int table, int i)
{
    lua_rawgeti(L, table, i);
    const char *s = intern(lua_tostring(L, -1));
    lua_pop(L, 1);
    return s;
}

// Pushes table[key] and returns its length; 0 (and pushes) if it is nil.
static int open_field(lua_State *L, int table, const char *key)
{
    return lua_getfield(L, table, key) == LUA_TTABLE ? (int)lua_rawlen(L, -1) : 0;
}

static const char **text_list(lua_State *L, int table, int n)
{
    const char **list = ARENA(const char *, n);
    for (int i = 0; i < n; i++) list[i] = item_text(L, table, i + 1);
    return list;
}

static const char **field_list(lua_State *L, int table, const char *key, int *n)
{
    *n = open_field(L, table, key);
    const char **list = text_list(L, lua_gettop(L), *n);
    lua_pop(L, 1);
    return list;
}

// --------------------------------------------------------------------------------------------------- the header
static void read_parts(lua_State *L, OpAxis *axis)
{
    axis->nparts = open_field(L, lua_gettop(L), "parts");
    axis->parts = ARENA(OpPart, axis->nparts);
    for (int i = 0; i < axis->nparts; i++) {
        lua_rawgeti(L, -1, i + 1);
        axis->parts[i] = (OpPart){field_text(L, lua_gettop(L), "name"), field_int(L, lua_gettop(L), "extent")};
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

static void read_param(lua_State *L, OpParam *p)
{
    int top = lua_gettop(L);
    p->name = field_text(L, top, "name");
    p->pos = field_int(L, top, "pos");
    int n = open_field(L, top, "axes");
    p->any = lua_isnil(L, -1);
    p->axes = ARENA(OpAxis, n);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, top + 1, i + 1);
        OpAxis axis = {.name = field_text(L, -1, "name"), .pos = field_int(L, -1, "pos")};
        read_parts(L, &axis);
        if (strcmp(axis.name, ".."))
            p->axes[p->naxes++] = axis;
        else
            p->rest = true;
        lua_pop(L, 1);
    }
    lua_settop(L, top);
}

static void read_header(lua_State *L, int op, OpDef *d)
{
    d->axes = field_list(L, op, "axes", &d->naxes);
    d->locals = field_list(L, op, "locals", &d->nlocals);
    d->local_from = field_list(L, op, "local_from", &d->nlocals);
    d->nparams = open_field(L, op, "params");
    d->params = ARENA(OpParam, d->nparams);
    for (int i = 0; i < d->nparams; i++) {
        lua_rawgeti(L, op + 1, i + 1);
        read_param(L, &d->params[i]);
        lua_pop(L, 1);
    }
    lua_settop(L, op);
    d->nscalars = open_field(L, op, "scalars");
    d->scalars = ARENA(OpScalar, d->nscalars);
    for (int i = 0; i < d->nscalars; i++) {
        lua_rawgeti(L, op + 1, i + 1);
        d->scalars[i] = (OpScalar){field_text(L, -1, "name"), field_int(L, -1, "pos"), field_int(L, -1, "default")};
        lua_pop(L, 1);
    }
    lua_settop(L, op);
}

// ---------------------------------------------------------------------------------------------------- the nodes
static void read_entry(lua_State *L, int entry, OpEntry *e, const OpText *text, Loc loc)
{
    e->axis = item_text(L, entry, 1);
    e->pos = field_int(L, entry, "pos");
    e->offset = field_int(L, entry, "const");
    e->lookup = field_int(L, entry, "index");
    int n = open_field(L, entry, "terms");
    if (n > VIEW_TERMS) front_err_pos(text, e->pos, loc, "a position is a sum of at most %d axes", VIEW_TERMS);
    e->nterms = n;
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, entry + 1, i + 1);
        e->term[i] = item_text(L, lua_gettop(L), 1);
        e->coef[i] = item_int(L, lua_gettop(L), 2);
        lua_pop(L, 1);
    }
    lua_settop(L, entry);
}

static void read_at(lua_State *L, int node, OpNode *n, const OpText *text)
{
    n->in[0] = item_int(L, node, 2);
    lua_rawgeti(L, node, 3);
    n->nentries = (int)lua_rawlen(L, -1);
    n->entries = ARENA(OpEntry, n->nentries);
    for (int i = 0; i < n->nentries; i++) {
        lua_rawgeti(L, node + 1, i + 1);
        read_entry(L, node + 2, &n->entries[i], text, text->loc);
        lua_settop(L, node + 1);
    }
    lua_settop(L, node);
}

static const OpDef *find_op(const char *name)
{
    for (size_t i = 0; i < vec_len(fr.ops); i++)
        if (fr.ops[i]->name == name) return fr.ops[i];
    bug("the parser knows an op '%s' that front does not", name);
}

static void read_call(lua_State *L, int node, OpNode *n)
{
    n->callee = find_op(item_text(L, node, 2));
    n->axes = field_list(L, node, "axes", &n->naxes);
    n->nargs = open_field(L, node, "args");
    n->args = ARENA(int, n->nargs);
    for (int i = 0; i < n->nargs; i++) n->args[i] = item_int(L, node + 1, i + 1);
    lua_settop(L, node);
    n->ngiven = open_field(L, node, "given");
    n->given = ARENA(OpGiven, n->ngiven);
    for (int i = 0; i < n->ngiven; i++) {
        lua_rawgeti(L, node + 1, i + 1);
        n->given[i] = (OpGiven){item_text(L, node + 2, 1), item_int(L, node + 2, 2)};
        lua_settop(L, node + 1);
    }
    lua_settop(L, node);
}

static int map_fn(const char *name)
{
    if (!strcmp(name, "stop_gradient")) return FN_STOP;
    for (int f = 0; f < FN_COUNT; f++)
        if (f != FN_CAST && f != FN_STOP && !strcmp(fn_info[f].name, name)) return f;
    return -1;
}

// Maps: { "add", a, b } and { "fn", "exp", a }.
static void read_map(lua_State *L, int node, OpNode *n, const char *kind)
{
    int first = 2;
    if (!strcmp(kind, "fn")) kind = item_text(L, node, 2), first = 3;
    n->nin = (int)lua_rawlen(L, node) - first + 1;
    if (n->nin < 1 || n->nin > 3) bug("notation: node '%s' has %d operands", kind, n->nin);
    for (int i = 0; i < n->nin; i++) n->in[i] = item_int(L, node, first + i);
    int fn = map_fn(kind);
    n->kind = !strcmp(kind, "pow") ? N_POW : fn >= 0 ? N_MAP : N_CAST;
    n->fn = (uint8_t)max_of(fn, 0);
    n->name = intern(kind);
}

static void read_reduce(lua_State *L, int node, OpNode *n)
{
    const char *word = item_text(L, node, 2);
    while (n->fn < 4 && strcmp(word, reduce_words[n->fn])) n->fn++;
    if (n->fn == 4) bug("notation: unknown reduction '%s'", word);
    lua_rawgeti(L, node, 3);
    n->naxes = (int)lua_rawlen(L, -1);
    n->axes = text_list(L, node + 1, n->naxes);
    lua_settop(L, node);
    n->in[0] = item_int(L, node, 4);
}

static void read_random(lua_State *L, int node, OpNode *n)
{
    lua_rawgeti(L, node, 2);
    n->naxes = (int)lua_rawlen(L, -1);
    n->axes = text_list(L, node + 1, n->naxes);
    lua_settop(L, node);
}

static void read_node(lua_State *L, int node, OpNode *n, const OpText *text)
{
    static const char *const kinds[] = {"num",    "param", "scalar", "index", "extent",
                                        "random", "outer", "reduce", "op",    "at"};
    static const uint8_t to[] = {N_NUM,    N_PARAM, N_SCALAR, N_INDEX, N_EXTENT,
                                 N_RANDOM, N_OUTER, N_REDUCE, N_CALL,  N_AT};
    const char *kind = item_text(L, node, 1);
    n->pos = field_int(L, node, "pos");
    n->kind = N_MAP;
    for (size_t i = 0; i < countof(kinds); i++)
        if (!strcmp(kind, kinds[i])) n->kind = to[i];
    switch (n->kind) {
    case N_NUM:
        lua_rawgeti(L, node, 2);
        n->num = lua_tonumber(L, -1);
        lua_getfield(L, node, "whole");
        n->whole = lua_toboolean(L, -1);
        lua_settop(L, node);
        break;
    case N_PARAM:
    case N_SCALAR:
    case N_OUTER:
        n->in[0] = item_int(L, node, 2);
        break;
    case N_INDEX:
    case N_EXTENT:
        n->name = item_text(L, node, 2);
        break;
    case N_RANDOM:
        read_random(L, node, n);
        break;
    case N_REDUCE:
        read_reduce(L, node, n);
        break;
    case N_CALL:
        read_call(L, node, n);
        break;
    case N_AT:
        read_at(L, node, n, text);
        break;
    default:
        read_map(L, node, n, kind);
    }
}

// ----------------------------------------------------------------------------------------------------- the whole
static OpDef *read_op(lua_State *L, int op, const OpText *text)
{
    OpDef *d = ARENA(OpDef, 1);
    luaL_checkstack(L, 12, NULL);
    d->name = field_text(L, op, "name");
    d->pos = field_int(L, op, "pos");
    d->text = text;
    read_header(L, op, d);
    d->nnodes = open_field(L, op, "nodes");
    d->nodes = ARENA(OpNode, d->nnodes + 1);
    for (int i = 1; i <= d->nnodes; i++) {
        lua_rawgeti(L, op + 1, i);
        read_node(L, op + 2, &d->nodes[i], text);
        lua_settop(L, op + 1);
    }
    lua_settop(L, op);
    d->nresults = open_field(L, op, "results");
    d->results = ARENA(int, d->nresults);
    for (int i = 0; i < d->nresults; i++) d->results[i] = item_int(L, op + 1, i + 1);
    lua_settop(L, op);
    d->nupdates = open_field(L, op, "updates");
    d->update_param = ARENA(int, d->nupdates);
    d->update_node = ARENA(int, d->nupdates);
    for (int i = 0; i < d->nupdates; i++) {
        lua_rawgeti(L, op + 1, i + 1);
        d->update_param[i] = item_int(L, op + 2, 1) - 1;
        d->update_node[i] = item_int(L, op + 2, 2);
        lua_settop(L, op + 1);
    }
    lua_settop(L, op);
    if (open_field(L, op, "grad"), lua_istable(L, -1)) d->grad = read_op(L, op + 1, text);
    lua_settop(L, op);
    return d;
}

// Parses the text at argument 1; leaves the list of op tables on top. Ends the process if the text is wrong.
static const OpText *parse_text(lua_State *L, const char *who)
{
    front_enter(L);
    size_t size;
    if (lua_type(L, 1) != LUA_TSTRING || lua_gettop(L) != 1)
        front_err("%s takes one text: %s [[ name(tensors; scalars) = ... ]]", who, who);
    const char *text = lua_tolstring(L, 1, &size);
    const OpText *place = op_text(L, text);
    lua_pushvalue(L, 1);
    lua_getfield(L, LUA_REGISTRYINDEX, "pico.known");
    call_parser(L, "parse", 2);
    if (lua_istable(L, -2)) {
        lua_pop(L, 1);
        return place;
    }
    front_err_pos(place, field_int(L, lua_gettop(L), "pos"), 0, "%s", field_text(L, lua_gettop(L), "message"));
}

// The lines of d in its file; its definition ends before position `end` of the text, blank lines and comments aside.
static OpLines own_lines(const OpDef *d, size_t end)
{
    const OpText *t = d->text;
    OpLines l = {.op = d->name, .file = t->file};
    if (!t->content) return l;
    const char *s = t->content, *stop = s + t->offset + end;
    int line = 1;
    for (const char *begin = s + t->offset + d->pos - 1; s < begin; s++) line += *s == '\n';
    for (l.first = line; s < stop; line++) {
        s += strspn(s, " \t");
        if (s < stop && *s != '\n' && strncmp(s, "--", 2)) l.last = line;
        s += strcspn(s, "\n");
        s += *s == '\n';
    }
    return l;
}

static void add_callees(OpLines **lines, const OpDef *d)
{
    for (int i = 1; i <= d->nnodes; i++) {
        const OpDef *callee = d->nodes[i].callee;
        for (int k = 0; callee && k < callee->nlines; k++) {
            bool known = false;
            for (size_t j = 0; j < vec_len(*lines); j++)
                known |= (*lines)[j].op == callee->lines[k].op;
            if (!known) vec_push(*lines, callee->lines[k]);
        }
    }
    if (d->grad) add_callees(lines, d->grad);
}

static void find_lines(OpDef *d, size_t end)
{
    OpLines *lines = NULL;
    vec_push(lines, own_lines(d, end));
    add_callees(&lines, d);
    d->nlines = (int)vec_len(lines);
    d->lines = memcpy(ARENA(OpLines, d->nlines), lines, sizeof *lines * vec_len(lines));
    vec_free(lines);
}

// Where op i of the list ends in the text: before the next one.
static size_t end_of(lua_State *L, int list, int i, const OpText *text)
{
    size_t end = strlen(text->text);
    if (lua_rawgeti(L, list, i + 1) == LUA_TTABLE) end = (size_t)field_int(L, lua_gettop(L), "pos") - 1;
    lua_pop(L, 1);
    return end;
}

// Defines op i of the list at `list` and pushes it as a value of Lua.
static OpDef *define(lua_State *L, int list, int i, const OpText *text)
{
    lua_rawgeti(L, list, i);
    OpDef *d = read_op(L, lua_gettop(L), text);
    find_lines(d, end_of(L, list, i, text));
    vec_push(fr.ops, d);
    lua_getfield(L, LUA_REGISTRYINDEX, "pico.known");
    lua_pushvalue(L, -2);
    lua_setfield(L, -2, d->name);
    lua_pop(L, 2);
    *(OpDef **)lua_newuserdatauv(L, sizeof(OpDef *), 0) = d;
    luaL_setmetatable(L, OP);
    return d;
}

int op_define(lua_State *L)
{
    const OpText *text = parse_text(L, "pico.op");
    int list = lua_gettop(L), n = (int)lua_rawlen(L, list);
    luaL_checkstack(L, n + 12, "too many ops in one text");
    for (int i = 1; i <= n; i++) define(L, list, i, text);
    return n;
}

// A name that the library lacks: says so, instead of Lua's "a nil value".
static int library_missing(lua_State *L)
{
    front_enter(L);
    const char *name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : "?";
    const char **names = NULL;
    table_keys_sorted(L, 1, "a library", &names);
    front_err("there is no op '%s' in this library%s", name, near_name(name, names, vec_len(names)));
}

int op_library(lua_State *L)
{
    const OpText *text = parse_text(L, "pico.library");
    int list = lua_gettop(L), n = (int)lua_rawlen(L, list);
    lua_newtable(L);
    for (int i = 1; i <= n; i++) {
        OpDef *d = define(L, list, i, text);
        lua_setfield(L, list + 1, d->name);
    }
    lua_newtable(L);
    lua_pushcfunction(L, library_missing);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    return 1;
}

// pico.fused { attention = nn.attention }: calls of this op from Lua become the node whose text it is.
int op_fused(lua_State *L)
{
    front_enter(L);
    lua_settop(L, 1);
    if (!lua_istable(L, 1) || lua_getfield(L, 1, "attention") != LUA_TUSERDATA || !luaL_testudata(L, -1, OP))
        front_err("pico.fused takes { attention = op }");
    OpDef *d = *(OpDef **)lua_touserdata(L, -1);
    static const char *const scalars[] = {"scale", "window"};
    bool fits = d->nparams == 3 && d->nscalars == 2 && d->nresults == 1 && !d->nupdates && !d->grad;
    for (int i = 0; fits && i < 2; i++) fits = !strcmp(d->scalars[i].name, scalars[i]);
    for (int i = 0; fits && i < 3; i++)
        fits = d->params[i].rest && d->params[i].naxes == 2 && !strcmp(d->params[i].axes[0].name, "seq") &&
               !strcmp(d->params[i].axes[1].name, "head_dim");
    if (!fits)
        front_err("the attention node is an op (q, k, v[.., seq, head_dim]; scale, window), and '%s' is none", d->name);
    d->attention = true;
    return 0;
}

int op_tostring(lua_State *L)
{
    lua_pushfstring(L, "op %s", (*(OpDef **)lua_touserdata(L, 1))->name);
    return 1;
}
