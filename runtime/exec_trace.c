// exec_trace.c: what ranks do as Chrome's trace events, for chrome://tracing and ui.perfetto.dev.
//
// One process a rank. Its thread 0 has the instructions as the rank's thread saw them, with segment, step,
// micro-batch and the bytes and flops a second that the plan's figures give, and the waits; threads above have
// collectives and transfers from start to end, as many lanes as were under way at once.
//
// All ranks append whole events to one file, each by a write of its own, so that threads and processes need no
// further agreement; rank 0 begins and ends it. Times count from rank 0's start by the machine's clock. Viewers
// accept a file whose end is missing. Traps: labels come from the plan and may hold quotes, line ends and bytes that
// are not UTF-8; the last are written as '?', and long ones are cut. Nothing may be allocated here after trace_open.
#include "exec.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { LANES = 64, MOST_TEXT = 400, MOST_EVENT = 6 * MOST_TEXT + 600, ROOM = 1 << 16 };

struct Trace {
    const Plan *plan;
    Coll *coll;
    const char *path;
    int fd;
    bool bad;
    double start;
    bool busy[LANES];
    size_t n;
    char text[ROOM];
};

// ---- writing

static void flush(Trace *t)
{
    for (size_t done = 0; done < t->n && !t->bad;) {
        ssize_t k = write(t->fd, t->text + done, t->n - done);
        if (k < 0 && errno != EINTR) t->bad = true;
        if (k > 0) done += (size_t)k;
    }
    t->n = 0;
}

static void put(Trace *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void put(Trace *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->text + t->n, ROOM - t->n, fmt, ap);
    va_end(ap);
    t->n = min_of(t->n + (size_t)max_of(n, 0), (size_t)ROOM - 1);
}

// Bytes of the UTF-8 character at s, or 0.
static size_t utf8_length(const unsigned char *s)
{
    size_t n = s[0] < 0x80                   ? 1
               : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
               : (s[0] & 0xf0) == 0xe0       ? 3
               : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return n;
}

static void put_string(Trace *t, const char *text)
{
    put(t, "\"");
    for (const unsigned char *s = (const unsigned char *)text; *s && s < (const unsigned char *)text + MOST_TEXT;) {
        size_t n = utf8_length(s);
        if (*s == '"' || *s == '\\')
            put(t, "\\%c", *s);
        else if (*s < 0x20)
            put(t, "\\u%04x", *s);
        else
            put(t, "%.*s", n ? (int)n : 1, n ? (const char *)s : "?");
        s += n ? n : 1;
    }
    put(t, "\"");
}

// A slice up to its own arguments; the caller writes these and "}}".
static void put_event(Trace *t, const char *kind, const char *name, uint32_t thread, TraceWhere w, double start,
                      double end)
{
    if (t->n + MOST_EVENT > ROOM) flush(t);
    put(t, ",\n{\"name\":");
    put_string(t, name);
    put(t, ",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"segment\":\"%s\",",
        kind, t->coll->rank, thread, (start - t->start) * 1e6, max_of(end - start, 1e-9) * 1e6,
        w.segment < SEG_COUNT ? plan_segment_name(w.segment) : "");
    put(t, "\"step\":%lld,\"micro_batch\":%u", (long long)w.step, w.micro_batch);
}

// ---- opening and closing

static void open_file(Trace *t, int flags)
{
    t->fd = open(t->path, O_WRONLY | O_APPEND | O_CLOEXEC | flags, 0666);
    if (t->fd < 0) fatal("cannot write the trace '%s':", t->path);
}

// Rank 0's clock for all: one machine has one.
static void agree_on_start(Trace *t)
{
    int64_t start = t->coll->rank == 0 ? (int64_t)(seconds_now() * 1e9) : INT64_MIN;
    if (!t->coll->max(t->coll, &start)) end_quietly();
    t->start = (double)start * 1e-9;
}

static void name_tracks(Trace *t)
{
    for (uint32_t rank = 0; rank < t->coll->ranks; rank++) {
        if (t->n + MOST_EVENT > ROOM) flush(t);
        put(t, "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"rank %u\"}}", rank ? ",\n" : "",
            rank, rank);
    }
}

Trace *trace_open(const Plan *stage, Coll *c, const char *path)
{
    Trace *t = xcalloc(1, sizeof *t);
    *t = (Trace){.plan = stage, .coll = c, .path = path};
    if (c->rank == 0) open_file(t, O_CREAT | O_TRUNC);
    agree_on_start(t); // the others open the file behind rank 0
    if (c->rank != 0) open_file(t, 0);
    if (c->rank == 0) {
        put(t, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
        name_tracks(t);
        flush(t);
    }
    if (!c->barrier(c)) end_quietly();
    return t;
}

void trace_close(Trace *t)
{
    if (!t) return;
    flush(t);
    if (!t->coll->barrier(t->coll)) end_quietly();
    if (t->coll->rank == 0) {
        put(t, "\n]}\n");
        flush(t);
    }
    bool bad = t->bad;
    if (close(t->fd) != 0 || bad) fatal("the trace '%s' is not complete: it could not be written", t->path);
    free(t);
}

// ---- events

void trace_instr(Trace *t, const PlanInstr *in, TraceWhere w, double start, double end)
{
    const Plan *p = t->plan;
    bool product = in->kind == INSTR_GEMM;
    double bytes = product ? (double)gemm_bytes(p, in) : (double)p->kernels[in->index].bytes;
    double flops = product ? gemm_flops(&p->gemms[in->index]) : (double)p->kernels[in->index].flops;
    double seconds = max_of(end - start, 1e-9);
    put_event(t, product ? "gemm" : "kernel", plan_str(p, in->label), 0, w, start, end);
    put(t, ",\"GB/s\":%.3f,\"GFLOP/s\":%.3f}}", bytes / seconds * 1e-9, flops / seconds * 1e-9);
}

void trace_host(Trace *t, const char *kind, const char *name, TraceWhere w, double start, double end)
{
    put_event(t, kind, name, 0, w, start, end);
    put(t, "}}");
}

// With all lanes taken the last one is shared: a picture that overlaps is better than none.
uint32_t trace_begin(Trace *t)
{
    uint32_t lane = 0;
    while (lane + 1 < LANES && t->busy[lane]) lane++;
    t->busy[lane] = true;
    return lane;
}

void trace_end(Trace *t, uint32_t lane, const char *kind, const char *name, uint64_t bytes, TraceWhere w, double start,
               double end)
{
    t->busy[lane] = false;
    put_event(t, kind, name, 1 + lane, w, start, end);
    put(t, ",\"bytes\":%llu}}", (unsigned long long)bytes);
}
