// exec_trace.c: the instructions of a run as Chrome's trace events, for chrome://tracing and ui.perfetto.dev.
//
// One complete event ("X") an instruction: start and length in microseconds as the main thread saw them,
// with segment, step, micro-batch, and the bytes and flops a second that the plan's figures give. The file
// is written as it goes; viewers accept one whose end is missing.
//
// Trap: labels come from the plan and may hold quotes, line ends and bytes that are not UTF-8; the last are
// written as '?'.
#include "exec.h"

struct Trace {
    const Plan *plan;
    const char *path;
    FILE *out;
    double start;
    bool any;
};

Trace *trace_open(const Plan *p, const char *path)
{
    Trace *t = xcalloc(1, sizeof *t);
    t->plan = p;
    t->path = path;
    t->out = fopen(path, "w");
    if (!t->out) fatal("cannot write the trace '%s':", path);
    t->start = seconds_now();
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", t->out);
    return t;
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

static void print_json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        size_t n = utf8_length(s);
        if (*s == '"' || *s == '\\')
            fprintf(out, "\\%c", *s);
        else if (*s < 0x20)
            fprintf(out, "\\u%04x", *s);
        else if (n == 0)
            fputc('?', out);
        else
            fwrite(s, 1, n, out);
        s += n ? n : 1;
    }
    fputc('"', out);
}

void trace_instr(Trace *t, const PlanInstr *in, SegmentId segment, int64_t step, uint32_t micro_batch, double start,
                 double end)
{
    const Plan *p = t->plan;
    bool product = in->kind == INSTR_GEMM;
    double bytes = product ? (double)gemm_bytes(p, in) : (double)p->kernels[in->index].bytes;
    double flops = product ? gemm_flops(&p->gemms[in->index]) : (double)p->kernels[in->index].flops;
    double seconds = max_of(end - start, 1e-9);
    fputs(t->any ? ",\n" : "\n", t->out);
    t->any = true;
    fputs("{\"name\":", t->out);
    print_json_string(t->out, plan_str(p, in->label));
    fprintf(t->out,
            ",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f,\"args\":{\"segment\":\"%s\","
            "\"step\":%lld,\"micro_batch\":%u,\"GB/s\":%.3f,\"GFLOP/s\":%.3f}}",
            product ? "gemm" : "kernel", (start - t->start) * 1e6, seconds * 1e6, plan_segment_name(segment),
            (long long)step, micro_batch, bytes / seconds * 1e-9, flops / seconds * 1e-9);
}

void trace_close(Trace *t)
{
    if (!t) return;
    fputs("\n]}\n", t->out);
    bool bad = ferror(t->out) != 0;
    if (fclose(t->out) != 0 || bad) fatal("the trace '%s' is not complete: it could not be written", t->path);
    free(t);
}
