// main.c: picorun: opens a plan, prepares data, device, memory and parameters, trains, saves.
//
// Faults of files and options are found in that order, before anything slow: a name that cannot be written
// is refused before the first step, not after the last one.
//
// Trap: OpenMP's threads spin for milliseconds while they wait. Where another program takes a core, a waiting
// thread keeps the one that works from running, and small steps become a hundred times slower (measured). GCC's
// library reads GOMP_SPINCOUNT before main, so it is set and the program started again.
#include "checkpoint.h"
#include "data.h"
#include "log.h"
#include "train.h"
#include <signal.h>
#include <unistd.h>

// 5000 rounds are about a quarter of a millisecond. What the user has set stays.
static void wait_politely(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "5000", 1) == 0) execv("/proc/self/exe", argv); // returns only if it fails: no harm
}

// Files are mapped: what is cut off while a run reads it shows as a signal.
static void on_lost_file(int number)
{
    static const char text[] = "picorun: the plan, data or weights file can't be read any more: was it made shorter?\n";
    (void)number;
    remove_unfinished();
    _exit(write(2, text, sizeof text - 1) < 0 ? 2 : 1);
}

static void catch_signals(void)
{
    catch_ends();
    signal(SIGBUS, on_lost_file);
}

static void refuse_missing_outputs(const Plan *p)
{
    for (uint64_t i = 0; i < p->count[PLAN_OUTPUTS]; i++)
        if (strcmp(plan_str(p, p->outputs[i].name), "loss") == 0) return;
    fatal("'%s' has no output 'loss'", p->path);
}

static Data *open_data(const Plan *p, const Options *o)
{
    int n = (int)vec_len(o->data);
    int64_t limit = INT32_MAX;
    if (n == 0) usage_error("no data: name one or more files behind --data");
    for (int i = 0; o->data_from_plan && i < n; i++)
        if (access(o->data[i], F_OK) != 0)
            fatal("the data file '%s', which the plan names, does not exist; scripts/demo.sh prepares it, or name "
                  "others with --data",
                  o->data[i]);
    for (uint64_t i = 0; i < p->count[PLAN_INPUTS]; i++) limit = min_of(limit, (int64_t)p->inputs[i].limit);
    return data_open(o->data, n, p->info->seq, limit, o->shuffle, o->seed);
}

// A file that is written must not be one that is read, nor another that is written. --save over --init is fine: it
// replaces the file at the end.
static void refuse_shared_files(const Options *o)
{
    const struct {
        const char *name, *path;
    } out[] = {{"save", o->save}, {"dump-grads", o->dump_grads}, {"log", o->log}, {"trace", o->trace}};
    for (size_t i = 0; i < countof(out); i++) {
        if (!out[i].path) continue;
        bool read = one_file(out[i].path, o->plan) || (i > 0 && o->init && one_file(out[i].path, o->init));
        for (size_t k = 0; k < vec_len(o->data); k++) read = read || one_file(out[i].path, o->data[k]);
        if (read) usage_error("--%s %s: the run reads this file", out[i].name, out[i].path);
        for (size_t k = i + 1; k < countof(out); k++)
            if (out[k].path && one_file(out[i].path, out[k].path))
                usage_error("--%s and --%s name one file, %s", out[i].name, out[k].name, out[i].path);
    }
}

static void check_files(const Options *o)
{
    refuse_shared_files(o);
    if (o->save) checkpoint_save_check(o->save);
    if (o->dump_grads) checkpoint_save_check(o->dump_grads);
}

static Dev *open_device(const Plan *p, const Options *o)
{
    if (strcmp(o->device, "null") == 0) return dev_null_open(p);
    int threads = o->threads ? (int)o->threads : dev_default_threads();
    return dev_cpu_open(p, threads, o->steps > 0 || o->compile_only);
}

static void set_scalars(Exec *e, const Options *o)
{
    const ScalarSetting settings[] = {
        {"beta1", o->beta1},
        {"beta2", o->beta2},
        {"eps", o->eps},
        {"clip", o->clip},
        {"weight_decay", o->weight_decay},
        {"weight_decay_1d", o->weight_decay_1d},
    };
    for (size_t i = 0; i < countof(settings); i++) exec_set(e, settings[i].name, settings[i].value);
    for (size_t i = 0; i < vec_len(o->set); i++) exec_set(e, o->set[i].name, o->set[i].value);
    exec_set_seed(e, o->seed);
}

static void set_parameters(const Plan *p, const Options *o, Exec *e)
{
    if (o->init)
        checkpoint_load(p, o->init, exec_buffer, e);
    else
        params_init(p, o->seed, exec_buffer, e);
}

static void describe(const Plan *p, const Dev *d)
{
    char parameters[16];
    const PlanInfo *o = p->info;
    printf("%s: %s parameters, %s, %u x %u x %u tokens a step, %s with %d thread%s, %.1f MB", plan_str(p, o->model),
           short_count((double)o->parameters, parameters), dtype_name((DType)o->dtype), o->accum, o->micro_batch,
           o->seq, d->name, d->threads, d->threads == 1 ? "" : "s", (double)d->allocated / 1e6);
    printf("%s%s\n", *d->loaded ? "; " : "", d->loaded);
    fflush(stdout);
}

// Returns the number of the signal that ended the run, or 0.
static int run(const Plan *p, const Options *o, Dev *d, const Data *data)
{
    ExecOptions watch = {o->poison, o->check_nan, o->trace};
    Exec *e = exec_open(p, d, &watch);
    FILE *log = o->log ? log_open(o->log) : NULL;
    int signal_number = 0;
    set_scalars(e, o);
    if (d->computes) set_parameters(p, o, e);
    describe(p, d);
    if (o->steps > 0) {
        exec_init(e);
        signal_number = train(&(Training){p, o, e, data, log});
    }
    if (d->report) d->report(d, stdout);
    if (o->save && d->computes) {
        checkpoint_save(p, o->save, exec_buffer, e);
        printf("saved '%s'\n", o->save);
    }
    if (log) log_close(log);
    exec_close(e);
    return signal_number;
}

int main(int argc, char **argv)
{
    Options o;
    Plan p;
    Data *data = NULL;
    char message[512];
    int signal_number = 0;
    program_name = "picorun";
    wait_politely(argv);
    catch_signals();
    options_parse(&o, argc, argv);
    if (!plan_open(&p, o.plan, message, sizeof message)) fatal("'%s': %s", o.plan, message);
    options_complete(&o, &p);
    refuse_missing_outputs(&p);
    bool computes = strcmp(o.device, "null") != 0;
    if (!o.compile_only) check_files(&o);
    if (!o.compile_only && computes && o.steps > 0) data = open_data(&p, &o);
    Dev *d = open_device(&p, &o);
    if (o.compile_only)
        printf("%s\n", d->loaded);
    else
        signal_number = run(&p, &o, d, data);
    d->close(d);
    if (data) data_close(data);
    plan_close(&p);
    options_free(&o);
    finish_stdout();
    return signal_number ? 128 + signal_number : 0;
}
