// coll_reduce.c: sums in rank order, and which bytes of a collective belong to which member.
//
// An all-reduce is cut over the concatenation of its parts, in whole cache lines, so that many small tensors are shared
// as evenly as one large. Where it is cut changes no bits: every element is summed over the members in their order.
// bf16 is summed in fp32 and rounded once.
//
// Traps: a sum begins with member 0's value, not with 0 (0 + -0 is 0). A NaN of any member is the maximum and the
// minimum.
#include "coll_reduce.h"
#include <time.h>

// ---- reducing. Blocks stay in the first cache, so that every input is read once and the output written once.
enum { BLOCK = 512, LINE = 64 };

static inline float from_bf16(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t to_bf16(float f) // to nearest even
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#define SAME(x) (x)
#define SUM(a, b) ((a) + (b))
#define SUM_I32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define MAX(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define MIN(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define REDUCER(name, T, Wide, LOAD, STORE, OP)                                                                        \
    static void name(char *out, const char *const *in, uint32_t k, size_t n)                                           \
    {                                                                                                                  \
        Wide sum[BLOCK];                                                                                               \
        for (size_t at = 0; at < n; at += BLOCK) {                                                                     \
            size_t m = min_of(n - at, (size_t)BLOCK);                                                                  \
            const T *x = (const T *)(const void *)in[0] + at;                                                          \
            _Pragma("omp simd") for (size_t i = 0; i < m; i++) sum[i] = LOAD(x[i]);                                    \
            for (uint32_t j = 1; j < k; j++) {                                                                         \
                x = (const T *)(const void *)in[j] + at;                                                               \
                _Pragma("omp simd") for (size_t i = 0; i < m; i++)                                                     \
                {                                                                                                      \
                    Wide a = sum[i], b = LOAD(x[i]);                                                                   \
                    sum[i] = OP(a, b);                                                                                 \
                }                                                                                                      \
            }                                                                                                          \
            T *y = (T *)(void *)out + at;                                                                              \
            _Pragma("omp simd") for (size_t i = 0; i < m; i++) y[i] = STORE(sum[i]);                                   \
        }                                                                                                              \
    }
#define REDUCERS(t, T, Wide, LOAD, STORE, SUM_OF)                                                                      \
    REDUCER(sum_##t, T, Wide, LOAD, STORE, SUM_OF)                                                                     \
    REDUCER(max_##t, T, Wide, LOAD, STORE, MAX)                                                                        \
    REDUCER(min_##t, T, Wide, LOAD, STORE, MIN)
REDUCERS(f64, double, double, SAME, SAME, SUM)
REDUCERS(f32, float, float, SAME, SAME, SUM)
REDUCERS(bf16, uint16_t, float, from_bf16, to_bf16, SUM)
REDUCERS(i32, int32_t, int32_t, SAME, SAME, SUM_I32)

CollReducer coll_reducer(const PlanColl *what)
{
    static const CollReducer table[DTYPE_COUNT][3] = {
        [F64] = {sum_f64, max_f64, min_f64},
        [F32] = {sum_f32, max_f32, min_f32},
        [BF16] = {sum_bf16, max_bf16, min_bf16},
        [I32] = {sum_i32, max_i32, min_i32},
    };
    CollReducer f = what->dtype < DTYPE_COUNT && what->reduce < 3 ? table[what->dtype][what->reduce] : NULL;
    if (!f) bug("a collective reduces dtype %u by %u", what->dtype, what->reduce);
    return f;
}

// ---- which bytes

static CollWalk walk(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member, int how)
{
    CollWalk w = {.parts = p->parts + what->first_part, .nparts = what->nparts, .k = k, .member = member};
    w.item = (uint32_t)dtype_bytes((DType)what->dtype);
    w.how = how;
    return w;
}

// elements low..high of all parts in a row
static CollWalk range(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member, bool all)
{
    CollWalk w = walk(p, what, k, member, WALK_RANGE);
    uint64_t total = 0, line = LINE / w.item;
    for (uint32_t i = 0; i < w.nparts; i++) total += w.parts[i].outer * w.parts[i].inner;
    uint64_t lines = (total + line - 1) / line;
    w.low = all ? 0 : min_of(total, lines * member / k * line);
    w.high = all ? total : min_of(total, lines * (member + 1) / k * line);
    return w;
}

CollWalk coll_taken(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member)
{
    if (what->kind == COLL_ALL_REDUCE) return range(p, what, k, member, false);
    return walk(p, what, k, member, what->kind == COLL_ALL_GATHER ? WALK_WHOLE : WALK_SHARE);
}

CollWalk coll_given(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member)
{
    if (what->kind == COLL_ALL_REDUCE) return range(p, what, k, member, false);
    return walk(p, what, k, member, what->kind == COLL_ALL_GATHER ? WALK_SHARE : WALK_WHOLE);
}

CollWalk coll_taken_alone(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member)
{
    return what->kind == COLL_ALL_REDUCE ? range(p, what, k, member, true) : coll_taken(p, what, k, member);
}

CollWalk coll_given_alone(const Plan *p, const PlanColl *what, uint32_t k, uint32_t member)
{
    return what->kind == COLL_ALL_REDUCE ? range(p, what, k, member, true) : coll_given(p, what, k, member);
}

static bool next_of_range(CollWalk *w, CollRun *run)
{
    while (w->part < w->nparts && w->base < w->high) {
        const PlanPart *p = &w->parts[w->part];
        uint64_t base = w->base, end = base + p->outer * p->inner;
        uint64_t low = max_of(w->low, base), high = min_of(w->high, end);
        *run = (CollRun){w->part++, (low - base) * w->item, (high - low) * w->item};
        w->base = end;
        if (low < high) return true;
    }
    return false;
}

bool coll_next(CollWalk *w, CollRun *run)
{
    if (w->how == WALK_RANGE) return next_of_range(w, run);
    for (; w->part < w->nparts; w->part++, w->o = 0) {
        const PlanPart *p = &w->parts[w->part];
        if (w->o == p->outer || !p->inner) continue;
        uint64_t row = w->how == WALK_SHARE ? w->o * w->k + w->member : w->o;
        *run = (CollRun){w->part, row * p->inner * w->item, p->inner * w->item};
        w->o++;
        return true;
    }
    return false;
}

uint64_t coll_walk_bytes(CollWalk w)
{
    uint64_t n = 0;
    for (CollRun run; coll_next(&w, &run);) n += run.bytes;
    return n;
}

uint64_t coll_part_bytes(const PlanColl *what, const PlanPart *part, uint32_t k)
{
    uint64_t rows = what->kind == COLL_REDUCE_SCATTER ? part->outer * k : part->outer;
    return rows * part->inner * (uint64_t)dtype_bytes((DType)what->dtype);
}

uint64_t coll_input_bytes(const Plan *p, const PlanColl *what, uint32_t k)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < what->nparts; i++) n += coll_part_bytes(what, &p->parts[what->first_part + i], k);
    return n;
}

uint64_t coll_whole_bytes(const Plan *p, const PlanColl *what)
{
    uint32_t k = p->groups[what->group].size;
    return coll_input_bytes(p, what, k) * (what->kind == COLL_ALL_GATHER ? k : 1);
}

void coll_one_member(const Plan *p, const PlanColl *what, const CollPart *parts)
{
    for (uint32_t i = 0; i < what->nparts; i++) {
        uint64_t n = coll_part_bytes(what, &p->parts[what->first_part + i], 1);
        if (n && parts[i].in != parts[i].out) memcpy(parts[i].out, parts[i].in, n);
    }
}

// ---- the rest

uint32_t coll_most_messages(const Plan *p)
{
    uint64_t most = p->count[PLAN_TRANSFERS] * 2 + 4, open = 0;
    for (uint64_t i = 0; i < p->count[PLAN_SCHEDULE]; i++) {
        uint32_t kind = p->schedule[i].kind;
        if (kind == STEP_POST || kind == STEP_SEND)
            most = max_of(most, ++open);
        else if ((kind == STEP_ARRIVE || kind == STEP_SENT) && open)
            open--;
    }
    return (uint32_t)most;
}

uint64_t coll_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
