// test_coll.c: transports between ranks. By itself: ranks as threads, and the transports of one rank. Started by mpirun
// (see mpi.sh): the same cases between processes; the argument chooses which.
#include "coll_cases.h"
#include "faults.h"
#include <pthread.h>

typedef struct {
    const Cases *cases;
    Coll *coll;
    bool good;
} Rank;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void sleep_for(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

// Runs one thread for each rank; true if all were good.
static bool on_threads(uint32_t ranks, void *(*run)(void *))
{
    Cases *c = new_cases(ranks);
    Coll **colls = coll_local(&c->plan, ranks);
    pthread_t threads[RANKS];
    Rank rank[RANKS];
    bool good = true;
    for (uint32_t i = 0; i < ranks; i++) rank[i] = (Rank){.cases = c, .coll = colls[i]};
    for (uint32_t i = 0; i < ranks; i++) assert_int_equal(pthread_create(&threads[i], NULL, run, &rank[i]), 0);
    for (uint32_t i = 0; i < ranks; i++) pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < ranks; i++) good &= rank[i].good;
    for (uint32_t i = 0; i < ranks; i++) rank[i].coll->close(rank[i].coll);
    free(c);
    return good;
}

static void *all_cases(void *arg)
{
    Rank *r = arg;
    r->good = true;
    for (uint32_t round = 0; round < 4 && r->good; round++) r->good = run_cases(r->cases, r->coll, round, round & 1);
    if (!r->good) r->coll->abort(r->coll);
    return NULL;
}

static void every_collective(void **state)
{
    (void)state;
    for (uint32_t ranks = 1; ranks <= RANKS; ranks++)
        if (!on_threads(ranks, all_cases)) fail_msg("%u ranks", ranks);
}

// The first collective of the whole mesh of this kind and dtype, of at least so many elements.
static uint32_t find_coll(const Cases *c, PlanCollKind kind, DType t, uint64_t elements)
{
    for (uint32_t i = 0; i < c->plan.count[PLAN_COLLS]; i++) {
        const PlanColl *w = &c->colls[i];
        if (w->kind == kind && w->dtype == t && c->groups[w->group].size == plan_ranks(&c->plan) && w->nparts == 1 &&
            c->parts[w->first_part].outer == 1 && c->parts[w->first_part].inner >= elements)
            return i;
    }
    abort();
}

// Ranks are at most one round apart; small collectives and barriers, over and over, at full speed.
static void *many_rounds(void *arg)
{
    Rank *r = arg;
    Coll *coll = r->coll;
    uint32_t small = find_coll(r->cases, COLL_ALL_REDUCE, F64, 1),
             large = find_coll(r->cases, COLL_ALL_REDUCE, F64, 1000);
    double *in = xcalloc(1037, 8), *out = xcalloc(1037, 8);
    r->good = true;
    for (uint32_t i = 0; i < 3000 && r->good; i++) {
        bool big = i % 8 == 0;
        uint64_t n = big ? 1037 : 1;
        CollPart part = {(char *)in, (char *)out, 1, n};
        for (uint64_t e = 0; e < n; e++) in[e] = i * (coll->rank + 1.0);
        r->good = coll->wait(coll, coll->start(coll, &r->cases->colls[big ? large : small], &part));
        for (uint64_t e = 0; e < n; e++) r->good &= out[e] == i * (coll->ranks * (coll->ranks + 1.0) / 2);
        int64_t most = (int64_t)i * (coll->rank + 1);
        if (i % 5 == 0) r->good &= coll->max(coll, &most) && most == (int64_t)i * coll->ranks;
    }
    if (!r->good) coll->abort(coll);
    free(in);
    free(out);
    return NULL;
}

static void rounds_keep_apart(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= RANKS; ranks *= 2) assert_true(on_threads(ranks, many_rounds));
}

// Reduce-scatter, then all-gather of its results, give the bits of all-reduce.
static void *scatter_gather(void *arg)
{
    enum { N = 1037 };
    Rank *r = arg;
    Coll *coll = r->coll;
    const PlanColl *c = r->cases->colls;
    uint64_t whole = (uint64_t)N * coll->ranks;
    float *in = xcalloc(whole, 4), *out = xcalloc(whole, 4), *part_out = xcalloc(N, 4), *again = xcalloc(N, 4);
    for (uint64_t i = 0; i < whole; i++) in[i] = ldexpf((float)(int32_t)mix(i * RANKS + coll->rank), -(int)(i % 24));
    CollPart scatter = {(char *)in, (char *)part_out, 1, N}, gather = {(char *)part_out, (char *)out, 1, N};
    r->good = coll->wait(coll, coll->start(coll, &c[find_coll(r->cases, COLL_REDUCE_SCATTER, F32, N)], &scatter));
    r->good &= coll->wait(coll, coll->start(coll, &c[find_coll(r->cases, COLL_ALL_GATHER, F32, N)], &gather));
    for (uint32_t i = 0; i < coll->ranks && r->good; i++) {
        CollPart reduce = {(char *)(in + (uint64_t)i * N), (char *)again, 1, N};
        r->good = coll->wait(coll, coll->start(coll, &c[find_coll(r->cases, COLL_ALL_REDUCE, F32, N)], &reduce));
        r->good &= !memcmp(again, out + (uint64_t)i * N, N * 4);
    }
    if (!r->good) coll->abort(coll);
    free(in), free(out), free(part_out), free(again);
    return NULL;
}

static void reduce_scatter_and_all_gather(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= RANKS; ranks++) assert_true(on_threads(ranks, scatter_gather));
}

// ---- abort: rank 0 never comes; the others wait for a collective, a message, a barrier

static void *aborting(void *arg)
{
    Rank *r = arg;
    Coll *coll = r->coll;
    static char buffer[RANKS][9000];
    char *at = buffer[coll->rank];
    CollPart part = {at, at, 1, 1037};
    if (coll->rank == 0) {
        sleep_for(0.3);
        coll->abort(coll);
        r->good = true;
        return NULL;
    }
    bool ended;
    const PlanColl *what = &r->cases->colls[find_coll(r->cases, COLL_ALL_REDUCE, F64, 1000)];
    if (coll->rank == 1)
        ended = coll->wait(coll, coll->start(coll, what, &part));
    else if (coll->rank == 2)
        ended = coll->wait(coll, coll->post(coll, 0, 1, at, 10));
    else if (coll->rank == 3)
        ended = coll->wait(coll, coll->send(coll, 0, 1, at, 10));
    else
        ended = coll->barrier(coll);
    r->good = !ended && !coll->barrier(coll);
    return NULL;
}

static void abort_wakes_everybody(void **state)
{
    (void)state;
    double begun = now();
    assert_true(on_threads(RANKS, aborting));
    assert_true(now() - begun < 1.3);
}

// ---- messages

static void *late_posts(void *arg)
{
    enum { N = 10 };
    Rank *r = arg;
    Coll *coll = r->coll;
    int values[N], got[N];
    CollHandle h[N];
    r->good = true;
    for (int i = 0; i < N; i++) values[i] = 100 + i, got[i] = 0;
    if (coll->rank == 0) {
        for (int i = 0; i < N; i++) h[i] = coll->send(coll, 1, (uint32_t)(i % 2), &values[i], sizeof(int));
        r->good = coll->barrier(coll); // a send does not hold up what follows
        for (int i = N; i-- > 0;) r->good &= coll->wait(coll, h[i]);
        return NULL;
    }
    r->good = coll->barrier(coll);
    for (int i = 0; i < N; i++) h[i] = coll->post(coll, 0, (uint32_t)(i < N / 2), &got[i], sizeof(int));
    for (int i = 0; i < N; i++) r->good &= coll->wait(coll, h[i]);
    for (int i = 0; i < N; i++) r->good &= got[i] == 100 + i % (N / 2) * 2 + (i < N / 2);
    return NULL;
}

static void messages_match_in_order(void **state)
{
    (void)state;
    assert_true(on_threads(2, late_posts));
}

// ---- transports of one rank

static void self_copies(void **state)
{
    (void)state;
    Cases *c = new_cases(1);
    Coll *coll = coll_self(&c->plan);
    assert_true(run_cases(c, coll, 0, false) && run_cases(c, coll, 1, true));
    coll->close(coll);
    free(c);
}

static const char *report_of(const Coll *coll)
{
    static char text[8192];
    FILE *f = fmemopen(text, sizeof text, "w");
    coll->report(coll, f);
    fclose(f);
    return text;
}

static void null_counts(void **state)
{
    (void)state;
    Cases *c = new_cases(8);
    Coll *coll = coll_null(&c->plan, 3);
    uint32_t id = find_coll(c, COLL_ALL_REDUCE, F64, 1000);
    char byte[8];
    CollPart part = {byte, byte, 1, 1037};
    for (int i = 0; i < 3; i++) assert_true(coll->wait(coll, coll->start(coll, &c->colls[id], &part)));
    assert_true(coll->wait(coll, coll->send(coll, 1, 2, byte, 500)));
    assert_true(coll->wait(coll, coll->post(coll, 1, 2, byte, 700)));
    assert_true(coll->barrier(coll));
    assert_int_equal(coll->counts->started[id], 3);
    assert_int_equal(coll->counts->sent_bytes, 500);
    const char *text = report_of(coll);
    const char *row = strstr(text, "tp x cp x dp (8)");
    if (!row) fail_msg("%s", text);
    assert_non_null(strstr(row, "all-reduce              3"));
    assert_non_null(strstr(row, "24.9 kB")); // 3 * 1037 * 8
    assert_non_null(strstr(row, "43.6 kB")); // 2 * 7/8 of it
    assert_non_null(strstr(row, "  test\n"));
    assert_non_null(strstr(text, "700 B"));
    coll->close(coll);
    free(c);
}

// Work of 30 ms between start and wait hides 20 ms of delay; without it the delay is waited for.
static void delay_counts_from_the_start(void **state)
{
    (void)state;
    Cases *c = new_cases(1);
    Coll *coll = coll_delayed(coll_self(&c->plan), &(double){0.02}, 1);
    uint32_t id = find_coll(c, COLL_ALL_REDUCE, F64, 1);
    double value_at = 5, result = 0, begun = now();
    CollPart part = {(char *)&value_at, (char *)&result, 1, 1};
    CollHandle h = coll->start(coll, &c->colls[id], &part);
    assert_true(coll->wait(coll, h));
    assert_true(now() - begun >= 0.02 && result == 5);
    h = coll->start(coll, &c->colls[id], &part);
    sleep_for(0.03);
    begun = now();
    assert_true(coll->wait(coll, h));
    assert_true(now() - begun < 0.015);
    const char *text = report_of(coll);
    assert_non_null(strstr(text, "delays: 2 operations, 0.040000 s in total, of which 0.02"));
    coll->close(coll);
    free(c);
}

// Every step, ended by max(), takes the next of several delays; what comes before the first max() has the first.
static void delays_take_turns(void **state)
{
    (void)state;
    Cases *c = new_cases(1);
    Coll *coll = coll_delayed(coll_self(&c->plan), (double[]){0.02, 0}, 2);
    uint32_t id = find_coll(c, COLL_ALL_REDUCE, F64, 1);
    double value_at = 5, result = 0;
    CollPart part = {(char *)&value_at, (char *)&result, 1, 1};
    for (int step = 0; step < 4; step++) {
        int64_t stop = 0;
        assert_true(coll->max(coll, &stop));
        double begun = now();
        assert_true(coll->wait(coll, coll->start(coll, &c->colls[id], &part)));
        if (step % 2 == 0) assert_true(now() - begun >= 0.02);
    }
    assert_non_null(strstr(report_of(coll), "delays: 4 operations, 0.040000 s in total"));
    coll->close(coll);
    free(c);
}

static void *delayed_cases(void *arg)
{
    Rank *r = arg;
    r->coll = coll_delayed(r->coll, &(double){0.0002}, 1);
    r->good = run_cases(r->cases, r->coll, 0, false);
    if (!r->good) r->coll->abort(r->coll);
    return NULL;
}

static void delay_over_threads(void **state)
{
    (void)state;
    assert_true(on_threads(3, delayed_cases));
}

// ---- under mpirun

extern uint64_t coll_mpi_chunk;

static int mpi_main(const char *what)
{
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    uint32_t ranks = size ? (uint32_t)atoi(size) : 1;
    bool wrong = !strcmp(what, "wrong");
    Cases *c = new_cases(wrong ? ranks + 1 : ranks);
    char message[256] = "";
    if (!strcmp(what, "chunks")) coll_mpi_chunk = 100;
    Coll *coll = coll_mpi(&c->plan, message, sizeof message);
    if (!coll) fatal("%s", message);
    Rank r = {.cases = c, .coll = coll, .good = true};
    if (!strcmp(what, "abort") && coll->rank == ranks - 1) {
        sleep_for(0.3);
        fprintf(stderr, "rank %u gives up\n", coll->rank);
        coll->abort(coll);
    }
    if (!strcmp(what, "hang") && coll->rank == 0) {
        printf("ready\n");
        fflush(stdout);
        sleep_for(60);
    }
    all_cases(&r);
    if (r.good && ranks > 1) many_rounds(&r);
    if (r.good && ranks > 1) scatter_gather(&r);
    coll->close(coll);
    return r.good ? 0 : 1;
}

int main(int argc, char **argv)
{
    program_name = "test_coll";
    if (coll_mpi_launched()) return mpi_main(argc > 1 ? argv[1] : "");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective),
        cmocka_unit_test(rounds_keep_apart),
        cmocka_unit_test(reduce_scatter_and_all_gather),
        cmocka_unit_test(abort_wakes_everybody),
        cmocka_unit_test(messages_match_in_order),
        cmocka_unit_test(self_copies),
        cmocka_unit_test(null_counts),
        cmocka_unit_test(delay_counts_from_the_start), cmocka_unit_test(delays_take_turns),
        cmocka_unit_test(delay_over_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
