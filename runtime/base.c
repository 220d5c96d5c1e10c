// base.c: errors, memory, growing arrays, text, interning and files for both programs (see base.h).
//
// Traps: a vector's header sits in front of its items, so a vector is freed by vec_free only. Arena and
// vector sizes are checked for overflow here, once, so that callers may multiply counts from files they
// have already bounded. write_file_atomic renames over regular files only: `-o /dev/null`, run by root,
// must not replace the device.
#include "base.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

const char *program_name = "pico";
_Thread_local bool memory_frozen = false;
_Atomic bool line_open = false;
void (*on_fatal)(bool said);
bool warnings_off = false;
static char *volatile unfinished_file;

// ---- errors

static void print_message(const char *kind, const char *fmt, va_list ap)
{
    int saved = errno;
    fflush(stdout);
    if (line_open) fputc('\n', stderr);
    line_open = false;
    fprintf(stderr, "%s: %s", program_name, kind);
    vfprintf(stderr, fmt, ap);
    size_t n = strlen(fmt);
    if (n && fmt[n - 1] == ':') fprintf(stderr, " %s", strerror(saved));
    fputc('\n', stderr);
}

void remove_unfinished(void)
{
    if (unfinished_file) unlink(unfinished_file);
}

void end_quietly(void)
{
    enum { SECONDS = 5 };
    for (unsigned left = SECONDS; left; left = sleep(left)) continue;
    remove_unfinished();
    _exit(1);
}

// Only one thread comes back from here: the first to fail. What it has said last stands, if it fails again on its way out.
static void begin_end(void)
{
    static atomic_flag ending = ATOMIC_FLAG_INIT;
    static _Thread_local bool mine;
    int saved = errno;
    if (mine) _exit(1);
    if (atomic_flag_test_and_set(&ending)) end_quietly();
    mine = true;
    if (on_fatal) on_fatal(false);
    errno = saved;
}

// With on_fatal other threads still run, so that nothing is torn down under them.
_Noreturn static void end_process(int status)
{
    remove_unfinished();
    if (!on_fatal) exit(status);
    on_fatal(true);
    fflush(NULL);
    _exit(status);
}

void fatal(const char *fmt, ...)
{
    va_list ap;
    begin_end();
    va_start(ap, fmt);
    print_message("", fmt, ap);
    va_end(ap);
    end_process(1);
}

void usage_error(const char *fmt, ...)
{
    va_list ap;
    begin_end();
    va_start(ap, fmt);
    print_message("", fmt, ap);
    va_end(ap);
    fprintf(stderr, "Try '%s --help'.\n", program_name);
    end_process(2);
}

void bug_at(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    begin_end();
    va_start(ap, fmt);
    print_message("internal error: ", fmt, ap);
    va_end(ap);
    fprintf(stderr, "  at %s:%d; please report this with the command and its input files\n", file, line);
    remove_unfinished();
    if (on_fatal) on_fatal(true);
    abort();
}

void warn(const char *fmt, ...)
{
    va_list ap;
    if (warnings_off) return;
    va_start(ap, fmt);
    print_message("warning: ", fmt, ap);
    va_end(ap);
}

void cleanup_on_exit(const char *path)
{
    char *old = unfinished_file;
    unfinished_file = path ? xstrdup(path) : NULL;
    free(old);
}

static void end_by_signal(int number)
{
    remove_unfinished();
    raise(number); // blocked until the handler returns; SA_RESETHAND: it then ends the process
}

void catch_ends(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    signal(SIGXFSZ, SIG_IGN); // a limit of file sizes is then an error of write
    for (size_t i = 0; i < countof(numbers); i++) {
        struct sigaction now, action = {.sa_handler = end_by_signal, .sa_flags = SA_RESETHAND};
        sigemptyset(&action.sa_mask);
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) sigaction(numbers[i], &action, NULL);
    }
}

void finish_stdout(void)
{
    if (fflush(stdout) || ferror(stdout)) fatal("cannot write to the standard output:");
}

// ---- memory

static void *checked(void *p, size_t n)
{
    if (!p) fatal("out of memory (%zu bytes wanted)", n);
    return p;
}

static void refuse_when_frozen(void)
{
    if (memory_frozen) bug("memory is allocated inside a training step");
}

void *xmalloc(size_t n)
{
    refuse_when_frozen();
    return checked(malloc(n ? n : 1), n);
}

void *xcalloc(size_t n, size_t size)
{
    refuse_when_frozen();
    return checked(calloc(n ? n : 1, size ? size : 1), n);
}

void *xrealloc(void *p, size_t n)
{
    refuse_when_frozen();
    return checked(realloc(p, n ? n : 1), n);
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(xmalloc(n), s, n);
}

// An arena is a list of chunks, newest first; only the newest has room. A request beyond the usual chunk
// size gets a chunk of its own.
struct ArenaChunk {
    ArenaChunk *next;
    size_t used, size;
    _Alignas(16) unsigned char data[];
};

void *arena_alloc(Arena *a, size_t n)
{
    enum { CHUNK = 1 << 16 };
    if (n > SIZE_MAX / 2) fatal("out of memory (%zu bytes wanted)", n);
    n = (n + 15) & ~(size_t)15;
    if (!a->chunk || n > a->chunk->size - a->chunk->used) {
        size_t size = max_of(n, (size_t)CHUNK);
        ArenaChunk *c = xcalloc(1, sizeof *c + size);
        c->next = a->chunk;
        c->size = size;
        a->chunk = c;
    }
    void *p = a->chunk->data + a->chunk->used;
    a->chunk->used += n;
    return p;
}

char *arena_strdup(Arena *a, const char *s)
{
    size_t n = strlen(s) + 1;
    return memcpy(arena_alloc(a, n), s, n);
}

char *arena_printf(Arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) bug("bad format '%s'", fmt);
    char *s = arena_alloc(a, (size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, again);
    va_end(again);
    return s;
}

void arena_free(Arena *a)
{
    for (ArenaChunk *c = a->chunk, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    a->chunk = NULL;
}

void *vec_grow_(void *v, size_t item, size_t more)
{
    size_t len = vec_len(v), cap = v ? vec_header(v)->cap : 0;
    if (more > SIZE_MAX / 4 / item - len) fatal("out of memory (%zu items wanted)", more);
    if (len + more <= cap) return v;
    size_t want = max_of(len + more, max_of(2 * cap, (size_t)8));
    VecHeader *h = xrealloc(v ? vec_header(v) : NULL, sizeof *h + want * item);
    h->len = len;
    h->cap = want;
    return h + 1;
}

// ---- text

static void buf_reserve(Buf *b, size_t more)
{
    if (more > SIZE_MAX / 4 - b->n) fatal("out of memory (%zu bytes wanted)", more);
    size_t want = b->n + more + 1;
    if (want <= b->cap) return;
    b->cap = max_of(want, max_of(2 * b->cap, (size_t)64));
    b->s = xrealloc(b->s, b->cap);
}

void buf_write(Buf *b, const void *p, size_t n)
{
    buf_reserve(b, n);
    if (n) memcpy(b->s + b->n, p, n);
    b->n += n;
    b->s[b->n] = 0;
}

void buf_puts(Buf *b, const char *s)
{
    buf_write(b, s, strlen(s));
}

void buf_printf(Buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) bug("bad format '%s'", fmt);
    buf_reserve(b, (size_t)n);
    vsnprintf(b->s + b->n, (size_t)n + 1, fmt, again);
    va_end(again);
    b->n += (size_t)n;
}

void buf_free(Buf *b)
{
    free(b->s);
    *b = (Buf){0};
}

// ---- for people
void buf_amount(Buf *b, double v, const char *unit)
{
    static const char *const big[] = {"", "k", "M", "G", "T", "P"};
    int i = 0;
    while (v >= 999.5 && i < 5) v /= 1000, i++;
    buf_printf(b, !i || v >= 99.95 ? "%.0f %s%s" : v < 9.995 ? "%.2f %s%s" : "%.1f %s%s", v, big[i], unit);
}

const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// ---- the nearest name

// Edits between two names: insertions, deletions, replacements, and swaps of neighbours.
static int edit_distance(const char *a, const char *b)
{
    enum { MOST = 64 };
    int n = (int)strlen(a), m = (int)strlen(b), d[MOST + 1][MOST + 1];
    if (n > MOST || m > MOST) return MOST;
    for (int i = 0; i <= n; i++) d[i][0] = i;
    for (int j = 0; j <= m; j++) d[0][j] = j;
    for (int i = 1; i <= n; i++)
        for (int j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            best = min_of(best, min_of(d[i - 1][j], d[i][j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = min_of(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    return d[n][m];
}

const char *nearest_name(const char *name, size_t n, const char *const *names)
{
    const char *best = NULL;
    int least = max_of(1, (int)strlen(name) / 3) + 1;
    for (size_t i = 0; i < n; i++) {
        int d = edit_distance(name, names[i]);
        if (d < least || (d == least && best && strcmp(names[i], best) < 0)) least = d, best = names[i];
    }
    return best;
}

// ---- interned strings: an open-addressing table of pointers; texts live in an arena that is never freed

static struct {
    Arena arena;
    const char **slots;
    size_t count, cap; // cap: a power of two
    pthread_mutex_t lock;
} interned = {.lock = PTHREAD_MUTEX_INITIALIZER};

static uint64_t hash_text(const char *s, size_t n)
{ // FNV-1a
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)s[i]) * 1099511628211u;
    return h ^ h >> 32;
}

static size_t intern_slot(const char *s, size_t n)
{
    size_t i = hash_text(s, n) & (interned.cap - 1);
    while (interned.slots[i] && (strncmp(interned.slots[i], s, n) != 0 || interned.slots[i][n] != 0))
        i = (i + 1) & (interned.cap - 1);
    return i;
}

static void intern_grow(void)
{
    const char **old = interned.slots;
    size_t old_cap = interned.cap;
    interned.cap = old_cap ? 2 * old_cap : 1024;
    interned.slots = xcalloc(interned.cap, sizeof *interned.slots);
    for (size_t i = 0; i < old_cap; i++)
        if (old[i]) interned.slots[intern_slot(old[i], strlen(old[i]))] = old[i];
    free(old);
}

const char *intern_n(const char *s, size_t n)
{
    const char *nul = memchr(s, 0, n);
    if (nul) n = (size_t)(nul - s);
    pthread_mutex_lock(&interned.lock);
    if (2 * interned.count >= interned.cap) intern_grow();
    size_t i = intern_slot(s, n);
    if (!interned.slots[i]) {
        char *copy = arena_alloc(&interned.arena, n + 1);
        memcpy(copy, s, n);
        interned.slots[i] = copy;
        interned.count++;
    }
    const char *kept = interned.slots[i];
    pthread_mutex_unlock(&interned.lock);
    return kept;
}

const char *intern(const char *s)
{
    return intern_n(s, strlen(s));
}

// ---- files

// The same name in the same folder, however the folder is written.
static bool one_name(const char *a, const char *b)
{
    const char *last_a = strrchr(a, '/'), *last_b = strrchr(b, '/');
    if (strcmp(last_a ? last_a + 1 : a, last_b ? last_b + 1 : b) != 0) return false;
    Buf x = {0}, y = {0};
    struct stat s, t;
    buf_printf(&x, "%.*s/.", last_a ? (int)(last_a - a) : 1, last_a ? a : ".");
    buf_printf(&y, "%.*s/.", last_b ? (int)(last_b - b) : 1, last_b ? b : ".");
    bool same = stat(x.s, &s) == 0 && stat(y.s, &t) == 0 && s.st_dev == t.st_dev && s.st_ino == t.st_ino;
    buf_free(&x);
    buf_free(&y);
    return same;
}

bool one_file(const char *a, const char *b)
{
    struct stat x, y;
    bool there = stat(a, &x) == 0, also = stat(b, &y) == 0;
    if (!there && !also) return one_name(a, b);
    return there && also && S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

char *read_file(const char *path, size_t *size)
{
    return read_file_limited(path, SIZE_MAX, size);
}

// Reads what is left of a descriptor; false with errno set.
static bool read_all(int fd, size_t limit, Buf *b)
{
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        if ((uint64_t)st.st_size > limit) return errno = EFBIG, false;
        buf_reserve(b, (size_t)st.st_size);
    }
    for (;;) {
        buf_reserve(b, 1 << 12);
        ssize_t n = read(fd, b->s + b->n, b->cap - b->n - 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n == 0;
        b->n += (size_t)n;
        if (b->n > limit) return errno = EFBIG, false;
    }
}

char *read_file_limited(const char *path, size_t limit, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    Buf b = {0};
    bool ok = read_all(fd, limit, &b);
    int saved = errno;
    close(fd);
    if (!ok) {
        buf_free(&b);
        errno = saved;
        return NULL;
    }
    b.s[b.n] = 0;
    if (size) *size = b.n;
    return b.s;
}

// A pipe was read once and would block.
char *read_source_again(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return NULL;
    return read_file_limited(path, 16 << 20, NULL);
}

static bool write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t k = write(fd, p, min_of(n, (size_t)1 << 30));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

// Devices, pipes and the like are written in place.
static bool write_in_place(const char *path, const void *data, size_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = write_all(fd, data, size);
    return close(fd) == 0 && ok;
}

static bool write_and_rename(const char *path, const void *data, size_t size)
{
    Buf temporary = {0};
    buf_printf(&temporary, "%s.XXXXXX", path);
    int fd = mkstemp(temporary.s);
    bool ok = fd >= 0;
    if (ok) {
        cleanup_on_exit(temporary.s);
        mode_t mask = umask(0);
        umask(mask);
        ok = fchmod(fd, 0666 & ~mask) == 0 && write_all(fd, data, size) && fsync(fd) == 0;
        ok = close(fd) == 0 && ok;
        ok = ok && rename(temporary.s, path) == 0;
        int saved = errno;
        if (!ok) unlink(temporary.s);
        cleanup_on_exit(NULL);
        errno = saved;
    }
    int saved = errno;
    buf_free(&temporary);
    errno = saved;
    return ok;
}

bool write_file_atomic(const char *path, const void *data, size_t size)
{
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        if (S_ISDIR(st.st_mode)) return errno = EISDIR, false;
        return write_in_place(path, data, size);
    }
    char resolved[PATH_MAX]; // a symbolic link stays one; its target is replaced
    return write_and_rename(realpath(path, resolved) ? resolved : path, data, size);
}

// ---- dtypes

int dtype_bytes(DType t)
{
    static const int bytes[] = {
#define X(e, name, n, ...) [e] = n,
        DTYPES(X)
#undef X
    };
    return bytes[t];
}

const char *dtype_name(DType t)
{
    static const char *const names[] = {
#define X(e, name, ...) [e] = name,
        DTYPES(X)
#undef X
    };
    return names[t];
}

const char *dtype_ctype(DType t)
{
    static const char *const types[] = {
#define X(e, name, n, st, ctype) [e] = ctype,
        DTYPES(X)
#undef X
    };
    return types[t];
}
