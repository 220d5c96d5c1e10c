// main.c: picorun: opens a plan, prepares data, kernels and ranks; every rank prepares its memory and parameters,
// trains, saves.
//
// Faults of files and options are found in that order, before anything slow: a name that cannot be written
// is refused before the first step, not after the last one.
//
// Traps: a user's OMP_PROC_BIND or OMP_PLACES would put all ranks of a process on one core. OpenMP's threads spin for milliseconds while they wait. Where another program takes a core, a waiting
// thread keeps the one that works from running, and small steps become a hundred times slower (measured). GCC's
// library reads GOMP_SPINCOUNT before main, so it is set and the program started again.
#include "agree.h"
#include "checkpoint.h"
#include "counts.h"
#include "data.h"
#include "log.h"
#include "ranks.h"
#include "train.h"
#include <limits.h>
#include <signal.h>
#include <unistd.h>

typedef struct {
    const Plan *plan;
    const Options *options;
    const Data *data;
    const Kernels *kernels;
    Ranks ranks;
    int signal_number; // the one that ended the run, or 0
} Session;

// 5000 rounds are about a quarter of a millisecond. What the user has set stays.
static void restart_with_environment(char **argv, bool rank_threads)
{
    static const char *const places[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"};
    bool changed = false;
    if (!getenv("GOMP_SPINCOUNT") && !getenv("OMP_WAIT_POLICY")) changed = setenv("GOMP_SPINCOUNT", "5000", 1) == 0;
    for (size_t i = 0; rank_threads && i < countof(places); i++) {
        if (!getenv(places[i])) continue;
        unsetenv(places[i]);
        changed = true;
    }
    char program[PATH_MAX]; // by its own name, which ps and top show
    ssize_t n = changed ? readlink("/proc/self/exe", program, sizeof program - 1) : -1;
    if (n < 0) return;
    program[n] = 0;
    execv(program, argv); // returns only if it fails: no harm
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
    for (uint32_t i = 0; i < p->count[PLAN_STAGES]; i++) {
        Plan stage = plan_stage(p, i);
        bool found = false;
        for (uint64_t k = 0; k < stage.count[PLAN_OUTPUTS]; k++)
            found = found || strcmp(plan_str(p, stage.outputs[k].name), "loss") == 0;
        if (!found) fatal("'%s' has no output 'loss' in stage %u", p->path, i);
    }
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
    } out[] = {{"save", o->save}, {"dump-grads", o->dump_grads}, {"log", o->log}, {"trace", o->trace}, {"counts", o->counts}};
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
    if (ranks_launched_as() != 0) return;
    if (o->save) checkpoint_save_check(o->save);
    if (o->dump_grads) checkpoint_save_check(o->dump_grads);
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

static void set_parameters(const Plan *stage, const Options *o, Exec *e, uint32_t rank)
{
    if (o->init)
        checkpoint_load(stage, rank, o->init, exec_buffer, e);
    else
        params_init(stage, rank, o->seed, exec_buffer, e);
}

// ---- what is told before the first step

// "tp 2 x pp 2 = 4 ranks as threads, 1 thread each, "
static void print_ranks(const uint32_t mesh[MESH_FACTORS], const Ranks *r)
{
    const struct {
        const char *name;
        uint32_t bits;
    } axes[] = {{"tp", MESH_TP}, {"cp", MESH_CP}, {"pp", MESH_PP}, {"dp", MESH_DP}};
    const char *before = "";
    for (size_t i = 0; i < countof(axes); i++) {
        if (mesh_size(mesh, axes[i].bits) == 1) continue;
        printf("%s%s %u", before, axes[i].name, mesh_size(mesh, axes[i].bits));
        before = " x ";
    }
    printf(" = %u ranks as %s, %d thread%s each", mesh_size(mesh, MESH_ALL), r->launched ? "processes" : "threads",
           r->threads, r->threads == 1 ? "" : "s");
}

static void print_memory(const Plan *p, const Ranks *r)
{
    uint32_t ranks = plan_ranks(p), stages = p->info->mesh[MESH_AT_PP];
    uint64_t all = 0, most = 0;
    for (uint32_t i = 0; i < stages; i++) {
        Plan stage = plan_stage(p, i);
        uint64_t bytes = exec_arena_bytes(&stage) + dev_cpu_scratch(&stage, r->threads);
        most = max_of(most, bytes);
        all += bytes * (ranks / stages);
    }
    if (ranks > 1) printf(", at most %.1f MB a rank", (double)most / 1e6);
    printf(", %.1f MB%s", (double)all / 1e6, ranks > 1 ? " in all" : "");
}

static void describe(const Session *s)
{
    char parameters[16];
    const PlanInfo *o = s->plan->info;
    const Ranks *r = &s->ranks;
    const char *kernels = kernels_described(s->kernels);
    printf("%s: %s parameters, %s, ", plan_str(s->plan, o->model), short_count((double)o->parameters, parameters),
           dtype_name((DType)o->dtype));
    if (o->mesh[MESH_AT_DP] > 1) printf("%u x ", o->mesh[MESH_AT_DP]);
    printf("%u x %u x %u tokens a step, ", o->accum, o->micro_batch, o->seq);
    if (plan_ranks(s->plan) > 1)
        print_ranks(o->mesh, r);
    else
        printf("cpu with %d thread%s", r->threads, r->threads == 1 ? "" : "s");
    print_memory(s->plan, r);
    printf("%s%s\n", *kernels ? "; " : "", kernels);
    fflush(stdout);
}

// ---- a rank, and all of this process

static void run_rank(void *ctx, Coll *c)
{
    Session *s = ctx;
    const Options *o = s->options;
    bool first = c->rank == 0;
    int signal_number = 0;
    Plan stage = plan_stage(s->plan, mesh_coord(s->plan->info->mesh, c->rank, MESH_AT_PP));
    Dev *d = dev_cpu_open(&stage, s->ranks.threads, s->kernels);
    Exec *e = exec_open(&stage, d, c, &(ExecOptions){o->poison, o->check_nan, o->trace});
    FILE *log = first && o->log ? log_open(o->log) : NULL;
    set_scalars(e, o);
    set_parameters(&stage, o, e, c->rank);
    if (first) describe(s);
    if (o->steps > 0) {
        exec_init(e);
        signal_number = train(&(Training){&stage, o, e, c, s->data, log});
    }
    if (o->check_copies) check_copies(&stage, c, exec_buffer, e);
    if (o->save) checkpoint_save(&stage, c, o->save, exec_buffer, e);
    if (first && o->save) printf("saved '%s'\n", o->save);
    if (log) log_close(log);
    exec_close(e);
    if (!c->barrier(c)) end_quietly(); // others may still read this rank's memory
    d->close(d);
    if (c == s->ranks.coll[0]) s->signal_number = signal_number;
}

// Processes that share a host share its cache of kernels: one fills it, the others find them there.
static Kernels *load_kernels(const Plan *p, const Ranks *r)
{
    Kernels *k = r->first_here ? kernels_load(p) : NULL;
    if (!ranks_barrier(r)) end_quietly();
    return k ? k : kernels_load(p);
}

static bool reads_data(const Plan *p, const Ranks *r)
{
    if (!r->launched) return p->count[PLAN_INPUTS] > 0;
    return plan_stage(p, mesh_coord(p->info->mesh, r->coll[0]->rank, MESH_AT_PP)).count[PLAN_INPUTS] > 0;
}

static int run(const Plan *p, const Options *o)
{
    Session s = {.plan = p, .options = o};
    Data *data = NULL;
    Kernels *kernels = NULL;
    if (!o->compile_only) check_files(o);
    s.ranks = ranks_open(p, (int)o->threads);
    ranks_agree(&s.ranks, p, o);
    if (!o->compile_only && o->steps > 0 && reads_data(p, &s.ranks)) data = open_data(p, o);
    ranks_agree_on_data(&s.ranks, p, data);
    if (o->counts && s.ranks.coll[0]->rank == 0) counts_show(p, NULL, o->counts);
    if (o->steps > 0 || o->compile_only) kernels = load_kernels(p, &s.ranks);
    s.data = data;
    s.kernels = kernels;
    if (!o->compile_only)
        ranks_run(&s.ranks, run_rank, &s);
    else if (s.ranks.coll[0]->rank == 0)
        printf("%s\n", kernels_described(kernels));
    ranks_close(&s.ranks);
    kernels_close(kernels);
    if (data) data_close(data);
    return s.signal_number;
}

int main(int argc, char **argv)
{
    Options o;
    Plan p;
    char message[512];
    int signal_number = 0;
    program_name = "picorun";
    ranks_begin();
    catch_signals();
    options_parse(&o, argc, argv);
    if (!plan_open(&p, o.plan, message, sizeof message)) fatal("'%s': %s", o.plan, message);
    restart_with_environment(argv, plan_ranks(&p) > 1 && !coll_mpi_launched());
    options_complete(&o, &p);
    refuse_missing_outputs(&p);
    if (strcmp(o.device, "null") != 0)
        signal_number = run(&p, &o);
    else if (ranks_launched_as() == 0)
        counts_show(&p, stdout, o.counts);
    plan_close(&p);
    options_free(&o);
    finish_stdout();
    return signal_number ? 128 + signal_number : 0;
}
