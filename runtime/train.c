// train.c: the training loop: learning rate, micro-batches, outputs, log, signals.
//
// A step's time runs from before its data is read to after its outputs are; compiling, memory and the
// library's first call lie before step 1. SIGINT and SIGTERM let the current step finish, the next one ends
// the process at once. A loss that is not finite ends the run, after its line is logged. SIGUSR1 does what SIGTERM does:
// mpirun passes it on as it is, while on SIGTERM Open MPI's kills the processes a second later, finished or not.
//
// All ranks of a plan run this together. Outputs are the same on all of them, so rank 0 alone looks at them. Whether
// to stop is agreed at the end of every step: a signal may reach one process, or be seen by one thread first.
#include "train.h"
#include "checkpoint.h"
#include "log.h"
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int stop_signal;

static void on_signal(int number)
{
    if (atomic_exchange(&stop_signal, number)) {
        remove_unfinished();
        _exit(128 + number);
    }
}

static void catch_signals(void) // of the process: ranks may all do so
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

// ---- data to inputs

typedef struct {
    const Training *training;
    int32_t *tokens, *targets; // a micro-batch, as data_batch gives it
    int32_t ignore_as;
} Feed;

static void load_micro_batch(void *ctx, int64_t step, uint32_t micro_batch)
{
    const Feed *f = ctx;
    const Plan *p = f->training->plan;
    const PlanInfo *o = p->info;
    uint64_t dp = o->mesh[MESH_AT_DP], place = mesh_coord(o->mesh, f->training->coll->rank, MESH_AT_DP);
    uint64_t first = ((((uint64_t)step - 1) * dp + place) * o->accum + micro_batch) * o->micro_batch;
    data_batch(f->training->data, first, o->micro_batch, f->training->options->ignore, f->ignore_as, f->tokens,
               f->targets);
    for (uint64_t i = 0; i < p->count[PLAN_INPUTS]; i++) {
        const PlanInput *in = &p->inputs[i];
        memcpy(exec_buffer(f->training->exec, in->buffer), in->shift ? f->targets : f->tokens,
               p->buffers[in->buffer].bytes);
    }
}

static Feed feed_open(const Training *t)
{
    size_t n = (size_t)t->plan->info->seq * t->plan->info->micro_batch;
    Feed f = {t, xcalloc(n, sizeof *f.tokens), xcalloc(n, sizeof *f.targets), -1};
    for (uint64_t i = 0; i < t->plan->count[PLAN_INPUTS]; i++)
        if (t->plan->inputs[i].shift) f.ignore_as = t->plan->inputs[i].ignore;
    return f;
}

// ---- outputs

// What the model reports beside loss, grad_norm and valid.
typedef struct {
    const char **names; // growing arrays
    double *values;
} Extras;

static Extras extras_of(const Plan *p)
{
    Extras x = {0};
    for (uint64_t i = 0; i < p->count[PLAN_OUTPUTS]; i++) {
        const char *name = plan_str(p, p->outputs[i].name);
        if (strcmp(name, "loss") == 0 || strcmp(name, "grad_norm") == 0 || strcmp(name, "valid") == 0) continue;
        vec_push(x.names, name);
        vec_push(x.values, 0);
    }
    return x;
}

static void log_numbers(const Training *t, const StepNumbers *s, int64_t tokens_per_step, Extras *x)
{
    StepRecord r = {.step = s->step,
                    .loss = s->loss,
                    .grad_norm = s->grad_norm,
                    .lr = s->lr,
                    .tokens = s->step * tokens_per_step,
                    .tokens_per_second = (double)tokens_per_step / s->seconds,
                    .seconds = s->seconds};
    for (size_t i = 0; i < vec_len(x->names); i++) exec_output(t->exec, x->names[i], &x->values[i]);
    log_step(t->log, t->plan->info->dtype == F64 ? 17 : 9, &r, (int)vec_len(x->names), x->names, x->values);
}

static void dump_gradients(const Training *t)
{
    double valid;
    if (!exec_output(t->exec, "valid", &valid)) fatal("--dump-grads: the plan has no output 'valid'");
    gradients_save(t->plan, t->coll, t->options->dump_grads, 1 / max_of(valid, 1.0), exec_buffer, t->exec);
}

static void refuse_loss(const Training *t, const StepNumbers *s)
{
    long long step = (long long)s->step;
    if (isfinite(s->loss)) return;
    if (!isnan(s->loss)) fatal("step %lld: the loss is infinite; a lower --lr, --warmup or --clip may help", step);
    fatal("step %lld: the loss is nan%s", step, t->options->check_nan ? "" : "; --check-nan tells where it begins");
}

// ---- steps

static double step_rate(const Options *o, int64_t step)
{
    return learning_rate(step, o->steps, o->warmup, o->lr, o->min_lr, (Decay)o->decay);
}

static StepNumbers run_step(const Training *t, Feed *feed, int64_t step)
{
    double start = seconds_now();
    StepNumbers s = {.step = step, .lr = step_rate(t->options, step), .grad_norm = NAN};
    exec_set(t->exec, "lr", s.lr);
    exec_set(t->exec, "step", (double)step);
    exec_step(t->exec, step, load_micro_batch, feed);
    exec_output(t->exec, "loss", &s.loss);
    s.has_norm = exec_output(t->exec, "grad_norm", &s.grad_norm);
    s.seconds = max_of(seconds_now() - start, 1e-9);
    return s;
}

// What rank 0 does with a step's numbers. A loss that is refused ends all ranks.
static void show_step(const Training *t, const Progress *progress, const StepNumbers *s, Extras *extras)
{
    if (t->log) log_numbers(t, s, progress->tokens_per_step, extras);
    refuse_loss(t, s);
    progress_step(progress, s);
}

static int agreed_signal(const Training *t)
{
    int64_t signal_number = atomic_load(&stop_signal);
    if (!t->coll->max(t->coll, &signal_number)) end_quietly();
    return (int)signal_number;
}

int train(const Training *t)
{
    const PlanInfo *o = t->plan->info;
    int64_t tokens_per_step = (int64_t)((uint64_t)o->seq * o->micro_batch * o->accum * o->mesh[MESH_AT_DP]), step = 1;
    bool shows = t->coll->rank == 0;
    catch_signals();
    int signal_number = agreed_signal(t);
    Feed feed = feed_open(t);
    Extras extras = extras_of(t->plan);
    Progress progress = progress_start(t->options->steps, tokens_per_step);
    for (; step <= t->options->steps && !signal_number; step++) {
        StepNumbers s = run_step(t, &feed, step);
        if (shows) show_step(t, &progress, &s, &extras);
        if (step == 1 && t->options->dump_grads) dump_gradients(t);
        signal_number = agreed_signal(t);
    }
    if (shows) progress_end(&progress, step - 1, signal_number != 0);
    free(feed.tokens);
    free(feed.targets);
    vec_free(extras.names);
    vec_free(extras.values);
    return signal_number;
}
