// fuzz_notation.c: the parser of the index notation on any text: it returns ops, or one sentence with a place inside
// the text, and never throws.
#include "embedded.h"
#include <lauxlib.h>
#include <lualib.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int luaopen_lpeg(lua_State *L);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int search_embedded(lua_State *L)
{
    size_t size;
    const char *name = luaL_checkstring(L, 1), *text = embedded_lua(name, &size);
    if (!text) return lua_pushstring(L, "not embedded"), 1;
    if (luaL_loadbuffer(L, text, size, name)) return lua_error(L);
    return 1;
}

static lua_State *open_parser(void)
{
    lua_State *L = luaL_newstate();
    luaL_openlibs(L);
    luaL_requiref(L, "lpeg", luaopen_lpeg, 0);
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "searchers");
    lua_pushcfunction(L, search_embedded);
    lua_rawseti(L, -2, 2); // in the place of the one that looks for files
    lua_settop(L, 0);
    lua_getglobal(L, "require");
    lua_pushstring(L, "notation");
    if (lua_pcall(L, 1, 1, 0)) {
        fprintf(stderr, "%s\n", lua_tostring(L, -1));
        abort();
    }
    return L;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static lua_State *L;
    if (!L) L = open_parser();
    lua_getfield(L, 1, "parse");
    lua_pushlstring(L, (const char *)data, size);
    lua_newtable(L);
    if (lua_pcall(L, 2, 2, 0)) {
        fprintf(stderr, "the parser threw: %s\n", lua_tostring(L, -1));
        abort();
    }
    if (lua_isnil(L, -2)) {
        lua_getfield(L, -1, "pos");
        lua_getfield(L, -2, "message");
        lua_Integer pos = lua_tointeger(L, -2);
        if (pos < 1 || pos > (lua_Integer)size + 1 || !lua_isstring(L, -1)) abort();
    }
    lua_settop(L, 1);
    return 0;
}
