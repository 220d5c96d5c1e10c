// rank_plan.h: for tests: a plan of several ranks, pp (1 or 2) x dp, made in memory.
//
// x = w0[tokens], y = x w1, loss += sum of y. On two stages x and its gradient are transferred; gradients of w0 are
// all-reduced over dp, those of w1 reduce-scattered, and w1 is gathered again after each rank has updated its part. Whole
// numbers as weights and powers of two as rates make all results exact, so that every layout gives the same bits.
#pragma once
#include "plan.h"
#include <xxhash.h>

enum { RP_SEQ = 4, RP_BATCH = 2, RP_ROWS = RP_SEQ * RP_BATCH, RP_N = 8, RP_VOCAB = 256 };
typedef struct { uint32_t pp, dp, accum; } RankShape;

static const char rp_source[] =
    "#include <stdint.h>\n"
    "#define ARGS char *const *b, const double *s, void *t, int64_t lo, int64_t hi\n"
    "#define UNUSED (void)s; (void)t; (void)lo; (void)hi;\n"
    "void embed(ARGS)\n"
    "{ UNUSED const int32_t *id = (const int32_t *)b[0]; const float *w = (const float *)b[1]; float *x = (float *)b[2];\n"
    "  for (int64_t i = lo; i < hi; i++) for (int j = 0; j < 8; j++) x[i * 8 + j] = w[id[i] * 8 + j]; }\n"
    "void none(ARGS)\n"
    "{ UNUSED *(double *)b[0] = 0; *(double *)b[1] = 0; }\n"
    "void head(ARGS)\n"
    "{ UNUSED const float *x = (const float *)b[0], *w = (const float *)b[1]; double sum = 0;\n"
    "  for (int i = 0; i < 8; i++) for (int k = 0; k < 8; k++) for (int j = 0; j < 8; j++)\n"
    "    sum += (double)x[i * 8 + k] * w[k * 8 + j];\n"
    "  double *loss = (double *)b[2], *valid = (double *)b[3];\n"
    "  *loss = s[0] ? sum : *loss + sum; *valid = s[0] ? 8 : *valid + 8; }\n"
    "void back(ARGS)\n"
    "{ UNUSED const float *w = (const float *)b[0]; float *dx = (float *)b[1];\n"
    "  for (int64_t i = lo; i < hi; i++) for (int k = 0; k < 8; k++) {\n"
    "    float sum = 0; for (int j = 0; j < 8; j++) sum += w[k * 8 + j];\n"
    "    dx[i * 8 + k] = sum; } }\n"
    "void weight(ARGS)\n"
    "{ UNUSED const float *x = (const float *)b[0]; float *g = (float *)b[1];\n"
    "  for (int64_t k = lo; k < hi; k++) for (int j = 0; j < 8; j++) {\n"
    "    float sum = 0; for (int i = 0; i < 8; i++) sum += x[i * 8 + k];\n"
    "    g[k * 8 + j] = s[0] ? sum : g[k * 8 + j] + sum; } }\n"
    "void scatter(ARGS)\n"
    "{ UNUSED const int32_t *id = (const int32_t *)b[0]; const float *dx = (const float *)b[1]; float *g = (float *)b[2];\n"
    "  if (s[0]) for (int i = 0; i < 256 * 8; i++) g[i] = 0;\n"
    "  for (int i = 0; i < 8; i++) for (int j = 0; j < 8; j++) g[id[i] * 8 + j] += dx[i * 8 + j]; }\n"
    "void update(ARGS)\n"
    "{ (void)t; float *w = (float *)b[0]; const float *g = (const float *)b[1];\n"
    "  for (int64_t i = lo; i < hi; i++) w[i] -= (float)s[9] * g[i]; }\n";
enum { RP_EMBED, RP_NONE, RP_HEAD, RP_BACK, RP_WEIGHT, RP_SCATTER, RP_UPDATE, RP_UPDATE_PART, RP_KERNELS };
enum { RP_REDUCE_W0, RP_SCATTER_W1, RP_GATHER_W1, RP_REDUCE_LOSS, RP_COLLS };
enum { RP_OVER_DP, RP_OVER_ALL };

// Sections as vecs; `first` is where the stage under construction begins in each.
typedef struct {
    Buf s;
    RankShape shape;
    PlanStage *stages;
    PlanInput *inputs; PlanOutput *outputs; PlanParam *params; PlanParamAxis *axes; PlanArena *arenas; PlanBuffer *buffers;
    PlanArg *args; PlanInstr *instrs; PlanSegment *segments; PlanTransfer *transfers; PlanStep *schedule;
    uint32_t first[PLAN_STAGED];
} RankPlan;

static inline Str rp_str(RankPlan *r, const char *s)
{
    Str at = (Str)r->s.n;
    buf_write(&r->s, s, strlen(s) + 1);
    return at;
}

static inline uint32_t rp_at(size_t len, RankPlan *r, enum PlanSectionId id)
{
    return (uint32_t)len - r->first[id - PLAN_FIRST_STAGED];
}

static inline uint32_t rp_arena(RankPlan *r, PlanClass class_, uint32_t slots)
{
    vec_push(r->arenas, (PlanArena){.class_ = class_, .slots = slots});
    return rp_at(vec_len(r->arenas), r, PLAN_ARENAS) - 1;
}

static inline uint32_t rp_buffer(RankPlan *r, const char *name, DType t, uint32_t arena, uint64_t d0, uint64_t d1)
{
    PlanArena *a = &r->arenas[r->first[PLAN_ARENAS - PLAN_FIRST_STAGED] + arena];
    PlanBuffer b = {.name = rp_str(r, name), .dtype = t, .arena = arena, .offset = a->bytes, .last = UINT32_MAX};
    uint64_t dims[] = {d0, d1};
    b.bytes = (uint64_t)dtype_bytes(t);
    for (int i = 0; i < 2; i++)
        if (dims[i]) {
            b.dims[b.ndim++] = dims[i];
            b.bytes *= dims[i];
        }
    a->bytes += (b.bytes + 63) / 64 * 64;
    vec_push(r->buffers, b);
    return rp_at(vec_len(r->buffers), r, PLAN_BUFFERS) - 1;
}

// The instruction's arguments, buffers with `written`, follow in pairs.
static inline void rp_instr(RankPlan *r, PlanInstrKind kind, uint32_t index, PlanWhen when, uint32_t nargs, const PlanArg *args)
{
    static const char *const labels[] = {"kernel", "gemm", "start", "wait"};
    uint32_t at = rp_at(vec_len(r->instrs), r, PLAN_INSTRS);
    PlanInstr in = {.kind = kind, .index = index, .first_arg = rp_at(vec_len(r->args), r, PLAN_ARGS), .nargs = nargs,
                    .label = rp_str(r, labels[kind]), .when = when};
    for (uint32_t i = 0; i < nargs; i++) {
        PlanBuffer *b = &r->buffers[r->first[PLAN_BUFFERS - PLAN_FIRST_STAGED] + args[i].buffer];
        uint32_t class_ = r->arenas[r->first[PLAN_ARENAS - PLAN_FIRST_STAGED] + b->arena].class_;
        vec_push(r->args, args[i]);
        if (class_ == CLASS_PERSIST || class_ >= CLASS_RF) continue;
        if (b->last == UINT32_MAX) b->first = at;
        b->last = at;
    }
    vec_push(r->instrs, in);
}
#define RP_RUN(r, kernel, ...)                                                                                         \
    rp_instr(r, INSTR_KERNEL, kernel, WHEN_ALWAYS, sizeof((PlanArg[]){__VA_ARGS__}) / sizeof(PlanArg), (PlanArg[]){__VA_ARGS__})
#define RP_START(r, coll, when, ...)                                                                                   \
    rp_instr(r, INSTR_START, coll, when, sizeof((PlanArg[]){__VA_ARGS__}) / sizeof(PlanArg), (PlanArg[]){__VA_ARGS__})
#define RP_WAIT(r, coll) rp_instr(r, INSTR_WAIT, coll, WHEN_ALWAYS, 0, NULL)

static inline void rp_segment(RankPlan *r, const char *name, SegmentId id, uint32_t first)
{
    vec_push(r->segments, (PlanSegment){rp_str(r, name), id, 0, first, rp_at(vec_len(r->instrs), r, PLAN_INSTRS) - first});
}

static inline void rp_param(RankPlan *r, const char *name, uint32_t buffer, uint32_t grad, uint64_t rows)
{
    uint32_t axis = rp_at(vec_len(r->axes), r, PLAN_PARAM_AXES);
    vec_push(r->params, (PlanParam){.name = rp_str(r, name), .buffer = buffer, .grad = grad, .ndim = 2, .init = INIT_NORMAL,
                                    .dims = {rows, RP_N}, .init_value = 0.02, .decay = 1, .owner = 1, .key = RP_OVER_DP + 1,
                                    .first_axis = axis, .naxes = 2});
    vec_push(r->axes, (PlanParamAxis){rows, rows, 0, 0});
    vec_push(r->axes, (PlanParamAxis){RP_N, RP_N, 0, 0});
}

static inline void rp_step(RankPlan *r, PlanStepKind kind, uint32_t index, uint32_t m, const uint16_t *slots)
{
    PlanStep s = {.kind = kind, .index = index, .micro_batch = m};
    memcpy(s.slots, slots, sizeof s.slots);
    vec_push(r->schedule, s);
}

// Slots of one micro-batch: where a class has fewer, they are used in turn.
static inline void rp_add(RankPlan *r, PlanStepKind kind, uint32_t index, uint32_t m)
{
    uint16_t slots[SLOT_CLASSES] = {0};
    for (size_t i = r->first[PLAN_ARENAS - PLAN_FIRST_STAGED] + 2; i < vec_len(r->arenas); i++)
        slots[r->arenas[i].class_ - CLASS_FB] = (uint16_t)(m % r->arenas[i].slots);
    rp_step(r, kind, index, m, slots);
}

static inline void rp_schedule(RankPlan *r, uint32_t stage)
{
    enum { X, DX }; // transfers
    uint32_t n = r->shape.accum;
    if (r->shape.pp == 1) {
        for (uint32_t m = 0; m < n; m++) rp_add(r, STEP_RUN, 0, m);
        for (uint32_t m = 0; m < n; m++) rp_add(r, STEP_RUN, 1, m);
    } else if (stage == 0) {
        for (uint32_t m = 0; m < n; m++) rp_add(r, STEP_POST, DX, m);
        for (uint32_t m = 0; m < n; m++) rp_add(r, STEP_RUN, 0, m), rp_add(r, STEP_SEND, X, m);
        for (uint32_t m = 0; m < n; m++) rp_add(r, STEP_ARRIVE, DX, m), rp_add(r, STEP_RUN, 1, m);
        for (uint32_t m = 0; m < n; m++) rp_add(r, STEP_SENT, X, m);
    } else {
        rp_add(r, STEP_POST, X, 0);
        for (uint32_t m = 0; m < n; m++) {
            if (m + 1 < n) rp_add(r, STEP_POST, X, m + 1);
            rp_add(r, STEP_ARRIVE, X, m);
            rp_add(r, STEP_RUN, 0, m);
            if (m >= 2) rp_add(r, STEP_SENT, DX, m - 2);
            rp_add(r, STEP_RUN, 1, m);
            rp_add(r, STEP_SEND, DX, m);
        }
        for (uint32_t m = n < 2 ? 0 : n - 2; m < n; m++) rp_add(r, STEP_SENT, DX, m);
    }
}

// Buffers of a stage; UINT32_MAX where it has no such one.
typedef struct { uint32_t tokens, w0, g0, w1, g1, loss, valid, x, dx; } RankBuffers;

static inline RankBuffers rp_buffers(RankPlan *r, bool first, bool last)
{
    RankBuffers b;
    memset(&b, 0xff, sizeof b);
    uint32_t persist = rp_arena(r, CLASS_PERSIST, 1), work = rp_arena(r, CLASS_WORK, 1), accum = r->shape.accum;
    uint32_t x = first && last ? rp_arena(r, CLASS_FB, accum) : first ? rp_arena(r, CLASS_SF, accum) : rp_arena(r, CLASS_RF, 2);
    uint32_t dx = first && last ? work : first ? rp_arena(r, CLASS_RB, accum) : rp_arena(r, CLASS_SB, 2);
    b.loss = rp_buffer(r, "loss", F64, persist, 0, 0);
    b.valid = rp_buffer(r, "valid", F64, persist, 0, 0);
    if (first) {
        b.tokens = rp_buffer(r, "tokens", I32, persist, RP_BATCH, RP_SEQ);
        b.w0 = rp_buffer(r, "w0", F32, persist, RP_VOCAB, RP_N);
        b.g0 = rp_buffer(r, "w0.grad", F32, persist, RP_VOCAB, RP_N);
        vec_push(r->inputs, (PlanInput){rp_str(r, "tokens"), b.tokens, 0, RP_VOCAB, 0, 0});
        rp_param(r, "w0", b.w0, b.g0, RP_VOCAB);
    }
    if (last) {
        b.w1 = rp_buffer(r, "w1", F32, persist, RP_N, RP_N);
        b.g1 = rp_buffer(r, "w1.grad", F32, persist, RP_N, RP_N);
        rp_param(r, "w1", b.w1, b.g1, RP_N);
    }
    b.x = rp_buffer(r, "x", F32, x, RP_ROWS, RP_N);
    b.dx = rp_buffer(r, "dx", F32, dx, RP_ROWS, RP_N);
    vec_push(r->outputs, (PlanOutput){rp_str(r, "loss"), b.loss});
    vec_push(r->outputs, (PlanOutput){rp_str(r, "valid"), b.valid});
    return b;
}

static inline void rp_segments(RankPlan *r, const RankBuffers *b, bool first, bool last)
{
    uint64_t part = RP_N * RP_N * 4 / r->shape.dp;
    uint32_t of_dp = r->shape.dp > 1 ? RP_OVER_DP + 1 : 0, from;
    if (!of_dp) part = 0;
    PlanArg w1_part = {b->w1, 2, 0, part, of_dp, 0}, g1_part = {b->g1, 1, 0, part, of_dp, 0};
    if (first) RP_RUN(r, RP_EMBED, {.buffer = b->tokens}, {.buffer = b->w0}, {.buffer = b->x, .written = 1});
    if (last) RP_RUN(r, RP_HEAD, {.buffer = b->x}, {.buffer = b->w1}, {.buffer = b->loss, .written = 2}, {.buffer = b->valid, .written = 2});
    else RP_RUN(r, RP_NONE, {.buffer = b->loss, .written = 1}, {.buffer = b->valid, .written = 1});
    rp_segment(r, "F", SEG_F, 0);
    from = rp_at(vec_len(r->instrs), r, PLAN_INSTRS);
    if (last) {
        RP_RUN(r, RP_BACK, {.buffer = b->w1}, {.buffer = b->dx, .written = 1});
        RP_RUN(r, RP_WEIGHT, {.buffer = b->x}, {.buffer = b->g1, .written = 2});
        RP_START(r, RP_SCATTER_W1, WHEN_LAST, {.buffer = b->g1}, g1_part);
    }
    if (first) {
        RP_RUN(r, RP_SCATTER, {.buffer = b->tokens}, {.buffer = b->dx}, {.buffer = b->g0, .written = 2});
        RP_START(r, RP_REDUCE_W0, WHEN_LAST, {.buffer = b->g0}, {.buffer = b->g0, .written = 1});
    }
    rp_segment(r, "B", SEG_B, from);
    from = rp_at(vec_len(r->instrs), r, PLAN_INSTRS);
    RP_START(r, RP_REDUCE_LOSS, WHEN_ALWAYS, {.buffer = b->loss}, {.buffer = b->loss, .written = 1}, {.buffer = b->valid}, {.buffer = b->valid, .written = 1});
    if (last) {
        RP_WAIT(r, RP_SCATTER_W1);
        g1_part.written = 0;
        RP_RUN(r, RP_UPDATE_PART, w1_part, g1_part);
        w1_part.written = 0;
        RP_START(r, RP_GATHER_W1, WHEN_ALWAYS, w1_part, {.buffer = b->w1, .written = 1});
    }
    if (first) {
        RP_WAIT(r, RP_REDUCE_W0);
        RP_RUN(r, RP_UPDATE, {.buffer = b->w0, .written = 2}, {.buffer = b->g0});
    }
    if (last) RP_WAIT(r, RP_GATHER_W1);
    RP_WAIT(r, RP_REDUCE_LOSS);
    rp_segment(r, "update", SEG_UPDATE, from);
}

static inline void rp_lengths(const RankPlan *r, uint32_t n[PLAN_STAGED])
{
    const size_t now[PLAN_STAGED] = {vec_len(r->inputs), vec_len(r->outputs), vec_len(r->params), vec_len(r->axes), 0,
                                     vec_len(r->arenas), vec_len(r->buffers), vec_len(r->args), vec_len(r->instrs),
                                     vec_len(r->segments), vec_len(r->transfers), vec_len(r->schedule)};
    for (int i = 0; i < PLAN_STAGED; i++) n[i] = (uint32_t)now[i];
}

static inline void rp_stage(RankPlan *r, uint32_t stage)
{
    bool first = stage == 0, last = stage + 1 == r->shape.pp;
    PlanStage s = {.flops = 1024};
    uint32_t end[PLAN_STAGED];
    rp_lengths(r, r->first);
    RankBuffers b = rp_buffers(r, first, last);
    rp_segments(r, &b, first, last);
    if (r->shape.pp == 2) {
        uint64_t bytes = RP_ROWS * RP_N * 4;
        vec_push(r->transfers, (PlanTransfer){.tag = 0, .peer = 1 - stage, .send = first, .buffer = b.x, .bytes = bytes});
        vec_push(r->transfers, (PlanTransfer){.tag = 1, .peer = 1 - stage, .send = last, .buffer = b.dx, .bytes = bytes});
    }
    rp_schedule(r, stage);
    rp_lengths(r, end);
    for (int i = 0; i < PLAN_STAGED; i++) s.range[i] = (PlanRange){r->first[i], end[i] - r->first[i]};
    s.parameters = (first ? RP_VOCAB * RP_N : 0) + (last ? RP_N * RP_N : 0);
    vec_push(r->stages, s);
}

static inline PlanKernel rp_kernel(RankPlan *r, const char *name, uint32_t nargs, uint64_t rows)
{
    Str id = rp_str(r, name);
    return (PlanKernel){.name = id, .label = id, .nargs = nargs, .rows = rows, .grain = 1, .bytes = 1 << 16, .flops = rows};
}

typedef struct { const void *data; size_t count; } RankSection;

static inline uint8_t *rp_join(const RankSection *section, size_t *size)
{
    Buf file = {0};
    PlanSection table[PLAN_SECTIONS];
    PlanHeader h = {.version = PLAN_VERSION, .nsections = PLAN_SECTIONS};
    memcpy(h.magic, PLAN_MAGIC, 8);
    buf_write(&file, &h, sizeof h);
    buf_write(&file, memset(table, 0, sizeof table), sizeof table);
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        while (file.n % 16) buf_write(&file, "", 1);
        table[i] = (PlanSection){i, (uint32_t)plan_item_size((enum PlanSectionId)i), file.n, section[i].count};
        buf_write(&file, section[i].data, table[i].item * section[i].count);
    }
    memcpy(file.s + sizeof h, table, sizeof table);
    h.size = file.n;
    h.checksum = XXH3_64bits(file.s + sizeof h, file.n - sizeof h);
    memcpy(file.s, &h, sizeof h);
    *size = file.n;
    uint8_t *aligned = aligned_alloc(16, (file.n + 15) / 16 * 16);
    memcpy(aligned, file.s, file.n);
    buf_free(&file);
    return aligned;
}

// The plan's bytes, aligned to 16; free() them. dp divides 64.
static inline uint8_t *rank_plan(RankShape shape, size_t *size)
{
    RankPlan r = {.shape = shape};
    buf_write(&r.s, "", 1);
    PlanInfo info = {.model = rp_str(&r, "ranks"), .config = rp_str(&r, "{}"), .dtype = F32, .seq = RP_SEQ, .micro_batch = RP_BATCH,
                     .accum = shape.accum, .mesh = {1, 1, 1, shape.pp, shape.dp}, .zero = 1, .chunks = 1,
                     .parameters = RP_VOCAB * RP_N + RP_N * RP_N, .flops_per_step = 1 << 20};
    for (uint32_t s = 0; s < shape.pp; s++) rp_stage(&r, s);
    PlanGroup groups[] = {{0, MESH_DP, shape.dp}, {(UINT64_C(1) << shape.pp) - 1, MESH_PP | MESH_DP, shape.pp * shape.dp}};
    PlanScalar scalars[] = {{rp_str(&r, "lr"), SLOT_NAMED, 0.5}};
    PlanSource sources[] = {{rp_str(&r, rp_source), TARGET_CPU}};
    uint32_t part = RP_N * RP_N / shape.dp;
    PlanKernel kernels[RP_KERNELS] = {rp_kernel(&r, "embed", 3, 8),   rp_kernel(&r, "none", 2, 1),   rp_kernel(&r, "head", 4, 1),
                                      rp_kernel(&r, "back", 2, 8),    rp_kernel(&r, "weight", 2, 8), rp_kernel(&r, "scatter", 3, 1),
                                      rp_kernel(&r, "update", 2, RP_VOCAB * RP_N), rp_kernel(&r, "update", 2, part)};
    PlanPart parts[] = {{1, RP_VOCAB * RP_N}, {1, part}, {1, part}, {1, 1}, {1, 1}};
    PlanColl colls[RP_COLLS] = {{COLL_ALL_REDUCE, REDUCE_SUM, F32, RP_OVER_DP, 0, 1, rp_str(&r, "gradient of w0")},
                                {COLL_REDUCE_SCATTER, REDUCE_SUM, F32, RP_OVER_DP, 1, 1, rp_str(&r, "gradient of w1")},
                                {COLL_ALL_GATHER, REDUCE_SUM, F32, RP_OVER_DP, 2, 1, rp_str(&r, "w1")},
                                {COLL_ALL_REDUCE, REDUCE_SUM, F64, RP_OVER_ALL, 3, 2, rp_str(&r, "loss")}};
    const RankSection section[PLAN_SECTIONS] = {
        [PLAN_STRINGS] = {r.s.s, r.s.n}, [PLAN_INFO] = {&info, 1}, [PLAN_STAGES] = {r.stages, shape.pp},
        [PLAN_GROUPS] = {groups, countof(groups)}, [PLAN_SCALARS] = {scalars, 1}, [PLAN_SOURCES] = {sources, 1},
        [PLAN_KERNELS] = {kernels, RP_KERNELS}, [PLAN_COLLS] = {colls, RP_COLLS}, [PLAN_PARTS] = {parts, countof(parts)},
        [PLAN_INPUTS] = {r.inputs, vec_len(r.inputs)}, [PLAN_OUTPUTS] = {r.outputs, vec_len(r.outputs)},
        [PLAN_PARAMS] = {r.params, vec_len(r.params)}, [PLAN_PARAM_AXES] = {r.axes, vec_len(r.axes)},
        [PLAN_ARENAS] = {r.arenas, vec_len(r.arenas)}, [PLAN_BUFFERS] = {r.buffers, vec_len(r.buffers)},
        [PLAN_ARGS] = {r.args, vec_len(r.args)}, [PLAN_INSTRS] = {r.instrs, vec_len(r.instrs)},
        [PLAN_SEGMENTS] = {r.segments, vec_len(r.segments)}, [PLAN_TRANSFERS] = {r.transfers, vec_len(r.transfers)},
        [PLAN_SCHEDULE] = {r.schedule, vec_len(r.schedule)}};
    uint8_t *file = rp_join(section, size);
    buf_free(&r.s);
    vec_free(r.stages), vec_free(r.inputs), vec_free(r.outputs), vec_free(r.params), vec_free(r.axes), vec_free(r.arenas);
    vec_free(r.buffers), vec_free(r.args), vec_free(r.instrs), vec_free(r.segments), vec_free(r.transfers), vec_free(r.schedule);
    return file;
}
