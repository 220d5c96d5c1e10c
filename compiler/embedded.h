// embedded.h: files that are built into picoc (scripts/embed.cmake writes the .c): the modules of the notation's parser
// and the kernel templates. Text is NUL-terminated.
#pragma once
#include <stddef.h>
const char *embedded_lua(const char *module, size_t *size); // "notation", size without the NUL; NULL if there is none
const char *embedded_template(const char *name);            // "row.cu"; NULL if there is no such template
