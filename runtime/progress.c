// progress.c: the lines that people watch: step, loss, norm, rate, speed, tokens, memory.
//
// On a terminal the current step is one line that is rewritten, with the time that is left, and about forty
// steps of a run stay as lines of their own; elsewhere every step is a line. Memory is the peak of the
// process. Trap: line_open tells base.c that a message must start on a new line.
#include "train.h"
#include <math.h>
#include <sys/resource.h>
#include <unistd.h>

const char *short_count(double x, char text[16])
{
    static const char suffix[] = {0, 'k', 'M', 'G', 'T'};
    size_t i = 0;
    while (x >= 999.5 && i + 1 < sizeof suffix) x /= 1000, i++;
    snprintf(text, 16, i ? "%.*f%c" : "%.*f", i ? x < 9.995 ? 2 : x < 99.95 ? 1 : 0 : 0, x, suffix[i]);
    return text;
}

static double peak_megabytes(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)u.ru_maxrss * 1024 / 1e6;
}

Progress progress_start(int64_t steps, int64_t tokens_per_step)
{
    bool live = isatty(STDOUT_FILENO) == 1 && !coll_mpi_launched(); // launchers show terminals where there are none
    return (Progress){steps, tokens_per_step, live, seconds_now()};
}

static void print_line(const Progress *p, const StepNumbers *s)
{
    char speed[16], tokens[16];
    double norm = isnan(s->grad_norm) ? NAN : s->grad_norm; // without a sign
    bool usual = s->loss > -1e6 && s->loss < 1e6;
    printf(usual ? "step %lld/%lld | loss %.4f" : "step %lld/%lld | loss %.4g", (long long)s->step, (long long)p->steps,
           s->loss);
    if (s->has_norm) printf(" | norm %.4g", norm);
    printf(" | lr %.2e | %s tok/s | %s tokens | %.0f MB", s->lr,
           short_count((double)p->tokens_per_step / s->seconds, speed),
           short_count((double)p->tokens_per_step * (double)s->step, tokens), peak_megabytes());
}

static void print_remaining(const Progress *p, int64_t step)
{
    double seconds = (seconds_now() - p->start) / (double)step * (double)(p->steps - step);
    if (seconds < 100)
        printf(" | %.0f s left", seconds);
    else if (seconds < 6000)
        printf(" | %.0f min left", seconds / 60);
    else
        printf(" | %.1f h left", seconds / 3600);
}

void progress_step(const Progress *p, const StepNumbers *s)
{
    if (p->live) fputs("\r\033[K", stdout);
    print_line(p, s);
    bool stays = !p->live || s->step == 1 || s->step == p->steps || s->step % max_of(p->steps / 40, (int64_t)1) == 0;
    if (stays)
        putchar('\n');
    else
        print_remaining(p, s->step);
    line_open = !stays;
    fflush(stdout);
}

void progress_end(const Progress *p, int64_t done, bool stopped)
{
    char speed[16];
    double seconds = seconds_now() - p->start;
    if (line_open) putchar('\n');
    line_open = false;
    if (done == 0) return;
    printf("%lld step%s in %.1f s, %s tok/s%s\n", (long long)done, done == 1 ? "" : "s", seconds,
           short_count((double)done * (double)p->tokens_per_step / seconds, speed), stopped ? "; stopped by a signal" : "");
    fflush(stdout);
}
