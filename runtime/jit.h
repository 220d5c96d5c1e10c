// jit.h: C text to functions in this process, by the system's compiler and a cache of what it made.
//
// jit.c drives; jit_cc.c finds and runs the compiler; jit_cache.c keeps shared objects on disk. The last two
// are private to jit.c.
#pragma once
#include "base.h"

typedef struct Jit Jit;
typedef struct {
    int units, compiled;  // translation units, and how many of them were not in the cache
    double seconds;
} JitStats;

// Compiles (as many units at once as there are cores) or finds all units, and loads them. Faults are fatal:
// one sentence for a missing compiler, the compiler's first lines for text that it refuses.
Jit *jit_open(const char *const *texts, size_t n, JitStats *stats);
void *jit_symbol(const Jit *j, size_t unit, const char *name);  // NULL if the unit has no such function
void jit_close(Jit *j);

// ---- jit_cc.c
typedef struct {
    char **words;    // CC split in words, flags appended behind; NULL-terminated when used
    size_t nwords;
    char *identity;  // what tells this compiler from others: path, size, time, --version, flags, CPU
} Compiler;
Compiler compiler_find(void);
void compiler_free(Compiler *c);
// Starts `compiler flags -o object source`, output to `log`; returns the process, or -1 with errno.
int compiler_start(const Compiler *c, const char *source, const char *object, const char *log);

// ---- jit_cache.c
typedef struct {
    char *folder;
    bool temporary;  // removed by cache_close unless `keep`
    bool keep;
} KernelCache;
KernelCache cache_open(void);
void cache_close(KernelCache *c);
// Objects carry a checksum behind their last byte, where the dynamic linker does not look.
bool cache_object_good(const char *path);
bool cache_object_seal(const char *path);
