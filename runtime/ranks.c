// ranks.c: starts the ranks of this process and ends them together (see ranks.h).
//
// The launcher is asked by its environment alone: which rank this is, and which of its host. Processes that fail for
// the same reason (a missing file, a wrong number of ranks) would say so all at once; so each waits a little
// longer than the one before it with its message, and the first to speak ends the others.
//
// Traps: a thread must set its own number of OpenMP threads, new ones do not inherit it. The stacks of rank threads
// have the main thread's size. PICO_DELAY_US makes every operation take longer (of several numbers each step takes
// the next); it is for tests.
#include "ranks.h"
#include "dev.h"
#include <omp.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

static Coll *ending; // of this process under a launcher, once it has joined

static uint32_t number_from(const char *const *names, size_t n, uint32_t otherwise)
{
    for (size_t i = 0; i < n; i++) {
        const char *text = getenv(names[i]);
        if (text && *text && strspn(text, "0123456789") == strlen(text)) return (uint32_t)strtoul(text, NULL, 10);
    }
    return otherwise;
}

uint32_t ranks_launched_as(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    return coll_mpi_launched() ? number_from(names, countof(names), 0) : 0;
}

// Its number among the processes of its host; where that is not known, rank 0 counts as the first of every host.
static uint32_t rank_on_host(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"};
    return number_from(names, countof(names), ranks_launched_as());
}

static uint32_t ranks_on_host(uint32_t all)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"};
    return max_of(number_from(names, countof(names), all), 1u);
}

// ---- failure

static void on_process_failure(bool said)
{
    if (!said) {
        uint32_t rank = ranks_launched_as();
        if (rank) usleep(400000 + 50000 * min_of(rank, 30u));
    } else if (ending) {
        ending->abort(ending);
    }
}

static void on_thread_failure(bool said)
{
    (void)said; // the process ends now, and all ranks with it
}

void ranks_begin(void)
{
    if (!coll_mpi_launched()) return;
    on_fatal = on_process_failure;
    warnings_off = ranks_launched_as() != 0;
}

// ---- opening

// A rank has the cores that its process may use to itself, divided by the ranks that share them.
static int threads_each(const Ranks *r)
{
    int cores = omp_get_num_procs();
    if (plan_ranks(r->plan) == 1 || getenv("OMP_NUM_THREADS")) return dev_default_threads();
    if (!r->launched) return max_of(cores / (int)r->local, 1);
    long online = sysconf(_SC_NPROCESSORS_ONLN); // a launcher may have bound processes to their share
    return max_of(min_of(cores, (int)online / (int)ranks_on_host(plan_ranks(r->plan))), 1);
}

static void delay_all(Ranks *r)
{
    const char *text = getenv("PICO_DELAY_US");
    if (!text || !*text) return;
    double *seconds = NULL;
    for (const char *at = text; at;) {
        char *end;
        double us = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(us >= 0 && us <= 1e7))
            fatal("PICO_DELAY_US is '%s', not a number of microseconds up to 1e7, or several of them with commas", text);
        vec_push(seconds, us * 1e-6);
        at = *end ? end + 1 : NULL;
    }
    for (uint32_t i = 0; i < r->local; i++) r->coll[i] = coll_delayed(r->coll[i], seconds, vec_len(seconds));
    vec_free(seconds);
}

static void join_launcher(Ranks *r)
{
    char message[512];
    r->coll[0] = coll_mpi(r->plan, message, sizeof message);
    if (!r->coll[0]) fatal("%s", message);
    ending = r->coll[0];
    r->first_here = rank_on_host() == 0;
}

enum { MOST_THREADS = 1024 };

Ranks ranks_open(const Plan *p, int threads)
{
    uint32_t n = plan_ranks(p);
    Ranks r = {.plan = p, .local = 1, .launched = coll_mpi_launched(), .first_here = true};
    if (!r.launched) r.local = n;
    if (r.local > MOST_THREADS)
        fatal("the plan has %u ranks, more than the %d that one process starts as threads: start it with mpirun -n %u, or count "
              "it with --device null", n, MOST_THREADS, n);
    r.coll = xcalloc(r.local, sizeof(Coll *));
    if (r.launched) {
        join_launcher(&r);
    } else if (n == 1) {
        r.coll[0] = coll_self(p);
    } else {
        Coll **colls = coll_local(p, n); // its array ends with its last member
        memcpy(r.coll, colls, n * sizeof(Coll *));
        on_fatal = on_thread_failure;
    }
    r.threads = threads ? threads : threads_each(&r);
    omp_set_num_threads(r.threads);
    delay_all(&r);
    return r;
}

bool ranks_barrier(const Ranks *r)
{
    return !r->launched || r->coll[0]->barrier(r->coll[0]);
}

void ranks_close(Ranks *r)
{
    ending = NULL;
    for (uint32_t i = 0; i < r->local; i++) r->coll[i]->close(r->coll[i]);
    free(r->coll);
    on_fatal = NULL;
}

// ---- running

typedef struct {
    pthread_t thread;
    const Ranks *ranks;
    void (*run)(void *ctx, Coll *c);
    void *ctx;
    Coll *coll;
} RankThread;

static void *rank_thread(void *arg)
{
    RankThread *t = arg;
    omp_set_num_threads(t->ranks->threads);
    t->run(t->ctx, t->coll);
    return NULL;
}

static void stack_size(pthread_attr_t *a)
{
    enum { LEAST = 8 << 20 };
    struct rlimit limit;
    size_t size = LEAST;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) size = max_of((size_t)limit.rlim_cur, size);
    pthread_attr_setstacksize(a, size);
}

void ranks_run(const Ranks *r, void (*run)(void *ctx, Coll *c), void *ctx)
{
    RankThread *threads = xcalloc(r->local, sizeof *threads);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    stack_size(&attributes);
    for (uint32_t i = 1; i < r->local; i++) {
        threads[i] = (RankThread){.ranks = r, .run = run, .ctx = ctx, .coll = r->coll[i]};
        int error = pthread_create(&threads[i].thread, &attributes, rank_thread, &threads[i]);
        if (error) fatal("cannot start a thread for rank %u: %s", i, strerror(error));
    }
    pthread_attr_destroy(&attributes);
    run(ctx, r->coll[0]);
    for (uint32_t i = 1; i < r->local; i++) pthread_join(threads[i].thread, NULL);
    free(threads);
}
