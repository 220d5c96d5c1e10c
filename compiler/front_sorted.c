// front_sorted.c: the description's pairs and next, in sorted order.
//
// Lua's own order depends on hashes and addresses; here booleans come first, then numbers, then strings, each ascending,
// so that equal descriptions make equal graphs. Keys of other kinds have no order that a second run would repeat: refused.
#include "front.h"

typedef struct {
    int rank;
    lua_Number number;
    const char *text;
    size_t size;
} Key;

static int key_order(const void *a, const void *b)
{
    const Key *x = a, *y = b;
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->rank < 2) return (x->number > y->number) - (x->number < y->number);
    int order = memcmp(x->text, y->text, min_of(x->size, y->size));
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

// The key on top of the stack. Other kinds have no order that a second run would repeat.
static Key take_key(lua_State *L)
{
    Key k = {0};
    switch (lua_type(L, -1)) {
    case LUA_TBOOLEAN:
        k.number = lua_toboolean(L, -1);
        break;
    case LUA_TNUMBER:
        k.rank = 1, k.number = lua_tonumber(L, -1);
        break;
    case LUA_TSTRING:
        k.rank = 2, k.text = lua_tolstring(L, -1, &k.size);
        break;
    default:
        front_enter(L);
        front_err("pairs and next go in sorted order here, and keys of the kind %s have none: use a list",
                  luaL_typename(L, -1));
    }
    return k;
}

static Key *sorted_keys(lua_State *L, int table)
{
    Key *keys = NULL;
    lua_pushnil(L);
    while (lua_next(L, table)) {
        lua_pop(L, 1);
        vec_push(keys, take_key(L));
    }
    qsort(keys, vec_len(keys), keys ? sizeof *keys : 1, key_order);
    return keys;
}

static void push_key(lua_State *L, const Key *k)
{
    if (k->rank == 0)
        lua_pushboolean(L, k->number != 0);
    else if (k->rank == 2)
        lua_pushlstring(L, k->text, k->size);
    else if (k->number == (lua_Number)(lua_Integer)k->number)
        lua_pushinteger(L, (lua_Integer)k->number);
    else
        lua_pushnumber(L, k->number);
}

// The iterator of pairs; upvalues: the keys in order, how many are done.
static int pairs_step(lua_State *L)
{
    lua_Integer i = lua_tointeger(L, lua_upvalueindex(2));
    for (;;) {
        lua_pushinteger(L, ++i);
        lua_replace(L, lua_upvalueindex(2));
        lua_settop(L, 1);
        if (lua_rawgeti(L, lua_upvalueindex(1), i) == LUA_TNIL) return 1;
        lua_pushvalue(L, -1);
        if (lua_rawget(L, 1) != LUA_TNIL) return 2; // else removed meanwhile
    }
}

int sorted_pairs(lua_State *L)
{
    luaL_checkany(L, 1);
    if (luaL_getmetafield(L, 1, "__pairs") != LUA_TNIL) {
        lua_pushvalue(L, 1);
        lua_call(L, 1, 3);
        return 3;
    }
    luaL_checktype(L, 1, LUA_TTABLE);
    Key *keys = sorted_keys(L, 1);
    lua_createtable(L, (int)vec_len(keys), 0);
    for (size_t i = 0; i < vec_len(keys); i++) {
        push_key(L, &keys[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    vec_free(keys);
    lua_pushinteger(L, 0);
    lua_pushcclosure(L, pairs_step, 2);
    lua_pushvalue(L, 1);
    lua_pushnil(L);
    return 3;
}

int sorted_next(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 2);
    bool first = lua_isnil(L, 2);
    Key before = {0}, best = {0};
    if (!first) before = take_key(L);
    bool found = false;
    lua_pushnil(L);
    while (lua_next(L, 1)) {
        lua_pop(L, 1);
        Key k = take_key(L);
        if ((first || key_order(&k, &before) > 0) && (!found || key_order(&k, &best) < 0)) best = k, found = true;
    }
    if (!found) return lua_pushnil(L), 1;
    push_key(L, &best);
    lua_pushvalue(L, -1);
    lua_rawget(L, 1);
    return 2;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void table_keys_sorted(lua_State *L, int index, const char *who, const char ***keys)
{
    index = lua_absindex(L, index);
    lua_pushnil(L);
    while (lua_next(L, index)) {
        lua_pop(L, 1);
        if (lua_type(L, -1) != LUA_TSTRING)
            front_err("%s: the table has names as keys, as in { name = .. }, and here is a %s", who,
                      luaL_typename(L, -1));
        vec_push(*keys, intern(lua_tostring(L, -1)));
    }
    if (*keys) qsort(*keys, vec_len(*keys), sizeof **keys, name_order);
}
