// coll_cases.h: collectives of every kind on every group of a mesh, started and awaited in random order among messages, and
// compared bit for bit with a plain loop over the members. For threads (test_coll.c) and MPI processes alike.
//
// Values are a function of (collective, round, member, part, element), so each rank knows what all others gave.
#pragma once
#include "coll.h"
#include <math.h>
#include <time.h>

enum { MAX_COLLS = 2000, MAX_GROUPS = 40, TRANSFERS = 20, WINDOW = 20, RANKS = 8 };
typedef struct {
    Plan plan;
    PlanInfo info;
    PlanGroup groups[MAX_GROUPS];
    PlanColl colls[MAX_COLLS];
    PlanPart parts[4 * MAX_COLLS];
    PlanTransfer transfers[TRANSFERS];
} Cases;

static inline void add_coll(Cases *c, uint32_t group, PlanCollKind kind, DType t, PlanReduce reduce, int shape)
{
    static const PlanPart shapes[4][4] = {
        {{1, 1}}, {{1, 1037}}, {{3, 70}}, {{1, 3}, {1, 2000}, {2, 129}, {1, 16}},
    };
    uint64_t *nparts = &c->plan.count[PLAN_PARTS], *ncolls = &c->plan.count[PLAN_COLLS];
    PlanColl what = {kind, reduce, t, group, (uint32_t)*nparts, 0, 1};
    for (; what.nparts < 4 && shapes[shape][what.nparts].outer; what.nparts++)
        c->parts[(*nparts)++] = shapes[shape][what.nparts];
    if (*ncolls == MAX_COLLS) abort();
    c->colls[(*ncolls)++] = what;
}

static inline void add_group(Cases *c, uint32_t bits, uint64_t stages)
{
    uint32_t id = (uint32_t)c->plan.count[PLAN_GROUPS]++, size = mesh_size(c->info.mesh, bits);
    if (stages) size = size / c->info.mesh[MESH_AT_PP] * (uint32_t)__builtin_popcountll(stages);
    c->groups[id] = (PlanGroup){stages, bits, size};
    for (int shape = 0; shape < 4; shape++) {
        for (DType t = F64; t <= BOOL; t++) {
            add_coll(c, id, COLL_ALL_GATHER, t, REDUCE_SUM, shape);
            for (int reduce = REDUCE_SUM; reduce <= REDUCE_MIN && t != BOOL; reduce++) {
                add_coll(c, id, COLL_ALL_REDUCE, t, (PlanReduce)reduce, shape);
                add_coll(c, id, COLL_REDUCE_SCATTER, t, (PlanReduce)reduce, shape);
            }
        }
    }
}

// A plan for so many ranks, with every group of its mesh and, of three or more stages, the first and the last.
static inline Cases *new_cases(uint32_t ranks)
{
    static const uint32_t meshes[RANKS + 1][MESH_FACTORS] = {
        {0}, {1, 1, 1, 1, 1}, {2, 1, 1, 1, 1}, {1, 1, 3, 1, 1}, {1, 2, 1, 2, 1}, {1, 1, 1, 5, 1}, {1, 1, 2, 3, 1},
        {1, 1, 1, 1, 7}, {2, 1, 2, 1, 2},
    };
    Cases *c = xcalloc(1, sizeof *c);
    memcpy(c->info.mesh, meshes[ranks], sizeof c->info.mesh);
    const uint32_t *mesh = c->info.mesh, stages = mesh[MESH_AT_PP];
    for (uint32_t bits = 0; bits <= MESH_ALL; bits++) {
        bool minimal = true; // names no factor of one
        for (int f = 0; f < MESH_FACTORS; f++) minimal &= !(bits >> f & 1) || mesh[f] > 1;
        if (!minimal) continue;
        add_group(c, bits, bits & MESH_PP ? (UINT64_C(1) << stages) - 1 : 0);
        if ((bits & MESH_PP) && stages > 2) add_group(c, bits, 1 | UINT64_C(1) << (stages - 1));
    }
    for (uint32_t i = 0; i < TRANSFERS; i++) c->transfers[i] = (PlanTransfer){.tag = i, .bytes = 20000};
    Plan *p = &c->plan;
    p->info = &c->info, p->groups = c->groups, p->colls = c->colls, p->parts = c->parts, p->transfers = c->transfers;
    p->strings = "\0test";
    p->count[PLAN_TRANSFERS] = TRANSFERS;
    return c;
}

// ---- values

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
static inline uint32_t draw(uint64_t *seed, uint32_t n) { return (uint32_t)(mix(*seed += 0x9e3779b97f4a7c15u) % n); }

static inline float widen(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t narrow(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(f != f ? (u >> 16 | 0x40) : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline void put(char *at, DType t, double v, uint64_t h)
{
    float f = (float)v;
    uint16_t b = narrow(f);
    int32_t i = (int32_t)h;
    const void *from[] = {[F64] = &v, [F32] = &f, [BF16] = &b, [I32] = &i, [BOOL] = &h};
    memcpy(at, from[t], (size_t)dtype_bytes(t));
}

// element i of a part as a member gives it. Sums round; maxima meet NaN now and then.
static inline void value(const PlanColl *what, uint32_t id, uint32_t round, uint32_t rank, uint32_t part, uint64_t i, char *at)
{
    uint64_t h = mix(mix((uint64_t)id << 32 | round << 8 | rank) + ((uint64_t)part << 40 | i));
    double v = ldexp((double)(int32_t)h, -(int)(h >> 32 & 15) - 20);
    if (what->reduce != REDUCE_SUM && (h >> 40 & 127) == 0) v = (double)NAN;
    put(at, (DType)what->dtype, v, h);
}

static inline double chosen(double a, double b, uint32_t reduce)
{
    return reduce == REDUCE_MAX ? (a > b || isnan(a) ? a : b) : (a < b || isnan(a) ? a : b);
}

// The reduction of one element, a plain loop.
static inline void reduced(const PlanColl *what, uint32_t id, uint32_t round, const uint32_t *ranks, uint32_t k, uint32_t part,
                           uint64_t i, char *at)
{
    double d = 0;
    float f = 0;
    uint32_t n = 0;
    char one[8];
    for (uint32_t j = 0; j < k; j++) {
        value(what, id, round, ranks[j], part, i, one);
        double x = 0;
        float xf = 0;
        int32_t xi = 0;
        uint16_t h = 0;
        if (what->dtype == F64) memcpy(&x, one, 8);
        if (what->dtype == F32) memcpy(&xf, one, 4), x = (double)xf;
        if (what->dtype == BF16) memcpy(&h, one, 2), xf = widen(h), x = (double)xf;
        if (what->dtype == I32) memcpy(&xi, one, 4), x = xi;
        if (what->reduce == REDUCE_SUM) d = j ? d + x : x, f = j ? f + xf : xf, n += (uint32_t)xi;
        else d = j ? chosen(d, x, what->reduce) : x, f = (float)d, n = what->dtype == I32 ? (uint32_t)(int32_t)d : 0;
    }
    put(at, (DType)what->dtype, what->dtype == F64 ? d : (double)f, n);
}

// ---- one operation in flight

typedef struct {
    CollHandle h;
    const PlanColl *what; // NULL: a message
    uint32_t id, round;
    CollPart parts[4];
    char *memory[4];
    char *from, *to;
    CollHandle sent;
    uint64_t bytes;
} Flight;

static inline bool may_be_in_place(const Cases *c, const PlanColl *what)
{
    for (uint32_t i = 0; i < what->nparts && what->kind != COLL_ALL_REDUCE; i++)
        if (c->parts[what->first_part + i].outer != 1) return false;
    return true;
}

static inline Flight *launch(const Cases *c, Coll *coll, uint32_t id, uint32_t round, bool in_place)
{
    const PlanColl *what = &c->colls[id];
    uint32_t me = 0, k = plan_group(&c->plan, what->group, coll->rank, NULL, &me);
    uint64_t item = (uint64_t)dtype_bytes((DType)what->dtype);
    Flight *f = xcalloc(1, sizeof *f);
    *f = (Flight){.what = what, .id = id, .round = round};
    in_place &= may_be_in_place(c, what);
    for (uint32_t i = 0; i < what->nparts; i++) {
        PlanPart p = c->parts[what->first_part + i];
        uint64_t small = p.outer * p.inner, n_in = what->kind == COLL_REDUCE_SCATTER ? small * k : small;
        uint64_t n_out = what->kind == COLL_ALL_GATHER ? small * k : small;
        char *m = f->memory[i] = xcalloc(n_in + n_out, item);
        CollPart at = {m, m + n_in * item, p.outer, p.inner};
        if (in_place) {
            at.out = what->kind == COLL_REDUCE_SCATTER ? m + me * small * item : m;
            at.in = what->kind == COLL_ALL_GATHER ? m + me * small * item : m;
        }
        for (uint64_t e = 0; e < n_in; e++) value(what, id, round, coll->rank, i, e, at.in + e * item);
        f->parts[i] = at;
    }
    f->h = coll->start(coll, what, f->parts);
    return f;
}

static inline bool check_coll(const Cases *c, Coll *coll, const Flight *f)
{
    const PlanColl *what = f->what;
    uint32_t ranks[64], me = 0, k = plan_group(&c->plan, what->group, coll->rank, ranks, &me);
    uint64_t item = (uint64_t)dtype_bytes((DType)what->dtype);
    for (uint32_t i = 0; i < what->nparts; i++) {
        PlanPart p = c->parts[what->first_part + i];
        uint64_t rows = p.outer * (what->kind == COLL_ALL_GATHER ? k : 1);
        for (uint64_t e = 0; e < rows * p.inner; e++) {
            char want[8];
            uint64_t row = e / p.inner, col = e % p.inner, scattered = (row * k + me) * p.inner + col;
            if (what->kind == COLL_ALL_GATHER)
                value(what, f->id, f->round, ranks[row % k], i, row / k * p.inner + col, want);
            else reduced(what, f->id, f->round, ranks, k, i, what->kind == COLL_REDUCE_SCATTER ? scattered : e, want);
            if (!memcmp(want, f->parts[i].out + e * item, item)) continue;
            fprintf(stderr, "rank %u: kind %u, reduce %u, %s, %u members, part %u, element %llu differs\n", coll->rank,
                    what->kind, what->reduce, dtype_name((DType)what->dtype), k, i, (unsigned long long)e);
            return false;
        }
    }
    return true;
}

static inline void fill(char *at, uint64_t n, uint64_t seed)
{
    for (uint64_t i = 0; i < n; i++) at[i] = (char)mix(seed + i);
}

// To the next rank, from the one before; tags repeat, so order matters. The sender is sometimes first, sometimes second.
static inline Flight *launch_message(Coll *coll, uint32_t number, bool post_first)
{
    uint32_t next = (coll->rank + 1) % coll->ranks, before = (coll->rank + coll->ranks - 1) % coll->ranks;
    uint64_t bytes = mix(number) % 20000;
    Flight *f = xcalloc(1, sizeof *f);
    *f = (Flight){.bytes = bytes, .id = number, .from = xcalloc(bytes + 1, 1), .to = xcalloc(bytes + 1, 1)};
    fill(f->from, bytes, (uint64_t)number << 32 | coll->rank << 20);
    if (post_first) f->h = coll->post(coll, before, number % 3, f->to, bytes);
    f->sent = coll->send(coll, next, number % 3, f->from, bytes);
    if (!post_first) f->h = coll->post(coll, before, number % 3, f->to, bytes);
    return f;
}

// The end of an operation: awaited, compared, freed. False: aborted or wrong.
static inline bool land(const Cases *c, Coll *coll, Flight *f)
{
    bool good = coll->wait(coll, f->h);
    if (good && f->what) good = check_coll(c, coll, f);
    if (good && !f->what) {
        uint32_t before = (coll->rank + coll->ranks - 1) % coll->ranks;
        good = coll->wait(coll, f->sent);
        fill(f->from, f->bytes, (uint64_t)f->id << 32 | before << 20);
        if (good && memcmp(f->from, f->to, f->bytes)) good = false, fprintf(stderr, "message %u differs\n", f->id);
    }
    for (int i = 0; i < 4; i++) free(f->memory[i]);
    free(f->from);
    free(f->to);
    free(f);
    return good;
}

static inline void nap(uint64_t *seed)
{
    struct timespec t = {0, (long)draw(seed, 300000)};
    nanosleep(&t, NULL);
}

// All collectives once, in an order that is the same on all ranks; waits and naps are each rank's own.
static inline bool run_cases(const Cases *c, Coll *coll, uint32_t round, bool in_place)
{
    Flight *window[WINDOW];
    uint32_t n = 0, messages = 0, ncolls = (uint32_t)c->plan.count[PLAN_COLLS];
    uint64_t common = round + 1, own = mix(coll->rank * 1000 + round);
    uint32_t *order = xcalloc(ncolls, sizeof *order);
    for (uint32_t i = 0; i < ncolls; i++) {
        uint32_t j = draw(&common, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    bool good = true;
    for (uint32_t i = 0; i < ncolls && good; i++) {
        bool message = coll->ranks > 1 && draw(&common, 4) == 0;
        bool member = plan_group(&c->plan, c->colls[order[i]].group, coll->rank, NULL, &(uint32_t){0});
        while (good && n + 2 > WINDOW - draw(&own, 10)) {
            uint32_t at = draw(&own, n);
            good = land(c, coll, window[at]);
            window[at] = window[--n];
        }
        if (message) window[n++] = launch_message(coll, messages++, draw(&own, 2));
        if (member) window[n++] = launch(c, coll, order[i], round, in_place);
        if (draw(&own, 16) == 0) nap(&own);
        if (draw(&own, 3) == 0) coll->progress(coll);
    }
    while (n && good) good = land(c, coll, window[--n]);
    free(order);
    int64_t most = coll->rank;
    return good && coll->barrier(coll) && coll->max(coll, &most) && most == coll->ranks - 1;
}
