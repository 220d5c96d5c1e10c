// base.h: what compiler and runtime share: errors, arenas, growing arrays, strings, files.
//
// Errors have three kinds and no fourth: the user's (compiler: err() with a place; runtime: fatal() with
// a sentence that names file, option or number), the system's (fatal(); a format that ends in ':' gets
// strerror(errno) appended), and ours (bug(), aborts). Usage errors exit with 2, all others with 1.
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PICO_VERSION "0.2.0"

#define countof(a) (sizeof(a) / sizeof((a)[0]))
#define min_of(a, b) ((a) < (b) ? (a) : (b))
#define max_of(a, b) ((a) > (b) ? (a) : (b))
#if defined __GNUC__
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF_LIKE(f, a)
#endif

// ---- errors. program_name is "picoc" or "picorun"; set by main. Files of cleanup_on_exit are removed first. Threads may
// fail at once: the first message is the only one, the other threads wait for the end that follows.
extern const char *program_name;
_Noreturn void fatal(const char *fmt, ...) PRINTF_LIKE(1, 2);      // "picorun: ...", exit 1
_Noreturn void usage_error(const char *fmt, ...) PRINTF_LIKE(1, 2); // exit 2, hints at --help
_Noreturn void bug_at(const char *file, int line, const char *fmt, ...) PRINTF_LIKE(3, 4);
#define bug(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
void warn(const char *fmt, ...) PRINTF_LIKE(1, 2);
extern bool warnings_off;                // another process says the same
void cleanup_on_exit(const char *path);  // remove this file if the process ends by fatal() or a signal; NULL forgets it
void remove_unfinished(void);            // does so now; may be called in a signal's handler
void catch_ends(void);                   // SIGINT, SIGTERM and SIGHUP remove it, then do what they did
// Set by whoever runs several ranks: called by the one that fails, before its message (false), and behind it (true), when
// it may tell others and need not return.
extern void (*on_fatal)(bool said);
_Noreturn void end_quietly(void);        // for a rank that sees another's failure: waits for the end, then ends, without a word
void finish_stdout(void);                // fatal() if what was printed could not be written
extern _Atomic bool line_open;  // the cursor stands behind a progress line: the next message starts a new one

// ---- memory. xmalloc and friends never return NULL. Arena memory is zeroed and freed all at once.
extern _Thread_local bool memory_frozen;  // set during a training step: an allocation of this thread is then a bug
void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
typedef struct ArenaChunk ArenaChunk;
typedef struct { ArenaChunk *chunk; } Arena;
void *arena_alloc(Arena *a, size_t n);  // aligned to 16, zeroed
char *arena_strdup(Arena *a, const char *s);
char *arena_printf(Arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);
void arena_free(Arena *a);
#define arena_new(a, T, n) ((T *)arena_alloc((a), sizeof(T) * (size_t)(n)))

// ---- growing arrays: `T *v = NULL; vec_push(v, x); for (size_t i = 0; i < vec_len(v); i++) ...; vec_free(v);`
typedef struct { size_t len, cap; } VecHeader;
#define vec_header(v) ((VecHeader *)(void *)(v)-1)
#define vec_len(v) ((v) ? vec_header(v)->len : 0)
#define vec_push(v, ...) \
    ((v) = vec_grow_((v), sizeof *(v), 1), (v)[vec_header(v)->len++] = (__VA_ARGS__))
#define vec_add(v, n) ((v) = vec_grow_((v), sizeof *(v), (size_t)(n)), vec_header(v)->len += (size_t)(n)) // n unset items
#define vec_pop(v) ((v)[--vec_header(v)->len])
#define vec_clear(v) ((v) ? (void)(vec_header(v)->len = 0) : (void)0)
#define vec_free(v) ((v) ? (free(vec_header(v)), (v) = NULL) : 0)
void *vec_grow_(void *v, size_t item, size_t more);

// ---- text under construction; s is always NUL-terminated (never NULL after the first append)
typedef struct { char *s; size_t n, cap; } Buf;
void buf_printf(Buf *b, const char *fmt, ...) PRINTF_LIKE(2, 3);
void buf_puts(Buf *b, const char *s);
void buf_write(Buf *b, const void *p, size_t n);
void buf_free(Buf *b);

// ---- the name among `names` that is nearest to a misspelled one; NULL if none is near. Of equals the first by alphabet.
const char *nearest_name(const char *name, size_t n, const char *const *names);

// ---- for people: 1234567 B is "1.23 MB"; "a/b.lua" is "b.lua"
void buf_amount(Buf *b, double v, const char *unit);
const char *base_name(const char *path);

// ---- interned strings: equal text is the same pointer, for the life of the process. Any thread may ask.
const char *intern(const char *s);
const char *intern_n(const char *s, size_t n);

// ---- files. read_file: whole file, NUL-terminated; NULL with errno set. read_file_limited: EFBIG beyond `limit`
// bytes, so that an endless device or a huge file ends before memory does. write_file_atomic: temporary name in
// the same folder, fsync, rename; false with errno set and nothing left behind.
bool one_file(const char *a, const char *b);  // regular files that are one, or one name of a file to come
char *read_file(const char *path, size_t *size);
char *read_file_limited(const char *path, size_t limit, size_t *size);
char *read_source_again(const char *path);  // for messages: NULL unless it is a regular file of modest size
bool write_file_atomic(const char *path, const void *data, size_t size);

// ---- dtypes, one table for both programs: X(enum, name, bytes, safetensors name, C type)
#define DTYPES(X)                              \
    X(F64, "f64", 8, "F64", "double")          \
    X(F32, "f32", 4, "F32", "float")           \
    X(BF16, "bf16", 2, "BF16", "uint16_t")     \
    X(I32, "i32", 4, "I32", "int32_t")         \
    X(BOOL, "bool", 1, "BOOL", "uint8_t")
#define X(e, ...) e,
typedef enum { DTYPES(X) DTYPE_COUNT } DType;
#undef X
int dtype_bytes(DType t);
const char *dtype_name(DType t);
const char *dtype_ctype(DType t);
