// embedded.h: files that are built into picoc (scripts/embed.cmake writes the .c): the notation's parser and the
// kernel templates. Text is NUL-terminated.
#pragma once
#include <stddef.h>
extern const char embedded_notation_lua[];
extern const size_t embedded_notation_lua_size;    // without the NUL
const char *embedded_template(const char *name);   // "row.cu"; NULL if there is no such template
