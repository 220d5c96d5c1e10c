// jit.c: compiles a plan's translation units, or finds them in the cache, and loads them.
//
// The key of a unit is the hash of its text and of the compiler's identity (jit_cc.c). A unit goes through:
// in the cache and whole -> loaded; else written as a source of a name of its own, compiled, sealed, renamed
// to KEY.so, loaded. Units compile in parallel, one process each, as many as there are cores.
//
// Traps: a cached object that the linker refuses (a folder copied from elsewhere, a changed libc) is built
// again once. Names of temporary files hold the process id, since several processes may race on one entry.
#define _GNU_SOURCE
#include "jit.h"
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct {
    const char *text;
    char *object;               // KEY.so in the cache
    char *source, *fresh, *log; // temporary names
    int pid;                    // of its compiler, 0 when none runs
    bool cached;
    void *handle;
} Unit;

struct Jit {
    Unit *units;
    size_t n;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *format(const char *fmt, ...)
{
    char *s;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0) fatal("out of memory");
    va_end(ap);
    return s;
}

static void name_files(Unit *u, const KernelCache *cache, const Compiler *cc, size_t number)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state) fatal("out of memory");
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, cc->identity, strlen(cc->identity) + 1);
    XXH3_128bits_update(state, u->text, strlen(u->text));
    XXH128_hash_t h = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    unsigned long long hi = h.high64, lo = h.low64;
    long pid = (long)getpid();
    u->object = format("%s/%016llx%016llx.so", cache->folder, hi, lo);
    u->source = format("%s/%016llx%016llx.%ld.%zu.c", cache->folder, hi, lo, pid, number);
    u->fresh = format("%s/%016llx%016llx.%ld.%zu.tmp", cache->folder, hi, lo, pid, number);
    u->log = format("%s/%016llx%016llx.%ld.%zu.log", cache->folder, hi, lo, pid, number);
}

static void write_source(const Unit *u)
{
    FILE *f = fopen(u->source, "w");
    if (!f || fputs(u->text, f) == EOF || fclose(f) != 0) fatal("cannot write '%s':", u->source);
}

static void unit_start(Unit *u, const Compiler *cc)
{
    write_source(u);
    u->pid = compiler_start(cc, u->source, u->fresh, u->log);
    if (u->pid < 0) fatal("the C compiler '%s' does not start:", cc->words[0]);
}

// The first lines of what the compiler said. The source stays, with its path in the message.
_Noreturn static void refuse(Unit *u, const Compiler *cc, int status)
{
    char *text = read_file(u->log, NULL);
    int lines = 0;
    size_t n = 0;
    while (text && text[n] && lines < 10) lines += text[n++] == '\n';
    unlink(u->log);
    unlink(u->fresh);
    if (WIFSIGNALED(status)) {
        unlink(u->source);
        fatal("the C compiler '%s' was ended by signal %d", cc->words[0], WTERMSIG(status));
    }
    while (n && text[n - 1] == '\n') n--;
    fatal("the C compiler '%s' refuses the kernels in '%s'%s%.*s", cc->words[0], u->source, n ? ":\n" : "", (int)n,
          n ? text : "");
}

static void unit_finish(Unit *u, const Compiler *cc, int status)
{
    u->pid = 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) refuse(u, cc, status);
    if (access(u->fresh, F_OK) != 0) {
        unlink(u->source);
        unlink(u->log);
        fatal("the C compiler '%s' says that all is well but makes no object; set CC to a C compiler", cc->words[0]);
    }
    if (!cache_object_seal(u->fresh) || rename(u->fresh, u->object) != 0) fatal("cannot write '%s':", u->object);
    unlink(u->source);
    unlink(u->log);
}

// Ends all compilers that still run, for an orderly end when one unit is refused.
static void stop_others(Unit *units, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (units[i].pid <= 0) continue;
        kill(units[i].pid, SIGTERM);
        waitpid(units[i].pid, NULL, 0);
        unlink(units[i].source);
        unlink(units[i].fresh);
        unlink(units[i].log);
    }
}

static Unit *wait_for_one(Unit *units, size_t n, int *status)
{
    for (;;) {
        for (size_t i = 0; i < n; i++)
            if (units[i].pid > 0 && waitpid(units[i].pid, status, WNOHANG) == units[i].pid) return &units[i];
        siginfo_t info; // sleep until any child ends, but leave it to the loop above
        if (waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) != 0 && errno != EINTR) fatal("lost a compiler process:");
    }
}

// Compiles all units that are not `cached`.
static int compile_all(Unit *units, size_t n, const Compiler *cc, KernelCache *cache)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int running = 0, compiled = 0;
    size_t next = 0;
    for (;;) {
        while (next < n && running < max_of(cores, 1l)) {
            if (units[next].cached) {
                next++;
                continue;
            }
            unit_start(&units[next++], cc);
            running++;
        }
        if (running == 0) return compiled;
        int status;
        Unit *u = wait_for_one(units, n, &status);
        running--;
        compiled++;
        if (status != 0 || access(u->fresh, F_OK) != 0) {
            cache->keep = status != 0; // for the source that the message names
            u->pid = 0;
            stop_others(units, n);
        }
        unit_finish(u, cc, status);
    }
}

static bool load(Unit *u)
{
    u->handle = dlopen(u->object, RTLD_NOW | RTLD_LOCAL);
    return u->handle != NULL;
}

static void load_all(Unit *units, size_t n, const Compiler *cc, KernelCache *cache, JitStats *stats)
{
    for (size_t i = 0; i < n; i++) {
        Unit *u = &units[i];
        if (load(u)) continue;
        if (u->cached) {
            u->cached = false;
            unlink(u->object);
            stats->compiled += compile_all(u, 1, cc, cache);
            if (load(u)) continue;
        }
        fatal("cannot load compiled kernels: %s", dlerror());
    }
}

Jit *jit_open(const char *const *texts, size_t n, JitStats *stats)
{
    double start = now();
    Compiler cc = compiler_find();
    KernelCache cache = cache_open();
    Jit *j = xcalloc(1, sizeof *j);
    j->units = xcalloc(n, sizeof *j->units);
    j->n = n;
    for (size_t i = 0; i < n; i++) {
        Unit *u = &j->units[i];
        u->text = texts[i];
        name_files(u, &cache, &cc, i);
        u->cached = cache_object_good(u->object);
    }
    *stats = (JitStats){.units = (int)n};
    stats->compiled = compile_all(j->units, n, &cc, &cache);
    load_all(j->units, n, &cc, &cache, stats);
    cache_close(&cache); // loaded objects stay mapped when a temporary folder goes
    compiler_free(&cc);
    stats->seconds = now() - start;
    return j;
}

void *jit_symbol(const Jit *j, size_t unit, const char *name)
{
    return dlsym(j->units[unit].handle, name);
}

void jit_close(Jit *j)
{
    if (!j) return;
    for (size_t i = 0; i < j->n; i++) {
        Unit *u = &j->units[i];
        if (u->handle) dlclose(u->handle);
        free(u->object);
        free(u->source);
        free(u->fresh);
        free(u->log);
    }
    free(j->units);
    free(j);
}
