// log.c: see log.h.
#include "log.h"
#include "json.h"

static const char *log_path = "";
static Buf line;  // kept from step to step: no allocation while training

FILE *log_open(const char *path)
{
    FILE *log = fopen(path, "we");
    if (!log) fatal("cannot write the log %s:", path);
    log_path = intern(path);
    buf_printf(&line, "%4096s", "");
    return log;
}

static void field(const char *name, int digits, double value)
{
    buf_puts(&line, line.n == 1 ? "" : ", ");
    json_string(&line, name);
    buf_puts(&line, ": ");
    json_number(&line, digits, value);
}

void log_step(FILE *log, int digits, const StepRecord *r, int nextra, const char *const *names,
              const double *values)
{
    line.n = 0;
    buf_puts(&line, "{");
    field("step", 17, (double)r->step);
    field("loss", digits, r->loss);
    field("grad_norm", digits, r->grad_norm);
    field("lr", digits, r->lr);
    field("tokens", 17, (double)r->tokens);
    field("tokens_per_second", 6, r->tokens_per_second);
    field("seconds", 9, r->seconds);
    for (int i = 0; i < nextra; i++) field(names[i], digits, values[i]);
    buf_puts(&line, "}\n");
    if (fwrite(line.s, 1, line.n, log) != line.n || fflush(log)) fatal("cannot write the log %s:", log_path);
}

void log_close(FILE *log)
{
    if (fclose(log)) fatal("cannot write the log %s:", log_path);
    buf_free(&line);
}
