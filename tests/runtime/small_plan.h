// small_plan.h: for tests: a valid plan of two kernels' worth of model, made in memory.
//
// w [8,8] is a parameter. F: x = w[tokens] (saved), then y = 2x (work) and loss += sum of y. B: grad (+)= x' x.
// UPDATE: w -= lr * grad. All numbers are small integers and powers of two, so results are exact.
#pragma once
#include "plan.h"
#include <xxhash.h>

enum { SP_SEQ = 4, SP_BATCH = 2, SP_ACCUM = 2, SP_N = 8, SP_TOKENS = SP_SEQ * SP_BATCH };
enum { SP_SAVED = ARENA_WORK + 1 }; // arena: class fb
enum { SP_TOKENS_BUF, SP_TARGETS_BUF, SP_W, SP_GRAD, SP_LOSS, SP_VALID, SP_X, SP_Y, SP_ONES, SP_BUFFERS };

static const char sp_source[] =
    "#include <stdint.h>\n"
    "void fill_ones(char *const *b, const double *s, void *t, int64_t lo, int64_t hi)\n"
    "{ (void)s; (void)t; float *o = (float *)b[0]; for (int64_t i = lo; i < hi; i++) o[i] = 1; }\n"
    "void embed(char *const *b, const double *s, void *t, int64_t lo, int64_t hi)\n"
    "{ (void)s; (void)t; const int32_t *id = (const int32_t *)b[0]; const float *w = (const float *)b[1];\n"
    "  float *x = (float *)b[2];\n"
    "  for (int64_t i = lo; i < hi; i++) for (int j = 0; j < 8; j++) x[i * 8 + j] = w[id[i] * 8 + j]; }\n"
    "void twice(char *const *b, const double *s, void *t, int64_t lo, int64_t hi)\n"
    "{ (void)s; float *k = t; const float *x = (const float *)b[0], *o = (const float *)b[1]; float *y = (float "
    "*)b[2];\n"
    "  for (int64_t i = lo; i < hi; i++) for (int j = 0; j < 8; j++) { k[j] = x[i * 8 + j] * o[i]; y[i * 8 + j] = 2 * "
    "k[j]; } }\n"
    "void total(char *const *b, const double *s, void *t, int64_t lo, int64_t hi)\n"
    "{ (void)t; (void)lo; (void)hi; const float *y = (const float *)b[0]; double sum = 0;\n"
    "  for (int i = 0; i < 64; i++) sum += y[i];\n"
    "  double *loss = (double *)b[1], *valid = (double *)b[2];\n"
    "  *loss = s[0] ? sum : *loss + sum; *valid = s[0] ? 8 : *valid + 8; }\n"
    "void update(char *const *b, const double *s, void *t, int64_t lo, int64_t hi)\n"
    "{ (void)t; float *w = (float *)b[0]; const float *g = (const float *)b[1];\n"
    "  for (int64_t i = lo; i < hi; i++) w[i] -= (float)s[9] * g[i]; }\n";

#define SP_IN(b)                                                                                                       \
    {                                                                                                                  \
        .buffer = (b)                                                                                                  \
    }
#define SP_OUT(b)                                                                                                      \
    {                                                                                                                  \
        .buffer = (b), .written = 1                                                                                    \
    }
#define SP_BOTH(b)                                                                                                     \
    {                                                                                                                  \
        .buffer = (b), .written = 2                                                                                    \
    }
#define SP_RUN(segment, m, ...)                                                                                        \
    {                                                                                                                  \
        .kind = STEP_RUN, .index = (segment), .micro_batch = (m), __VA_ARGS__                                          \
    }
#define SP_MOVE(what, transfer, m, ...)                                                                                \
    {                                                                                                                  \
        .kind = STEP_##what, .index = (transfer), .micro_batch = (m), __VA_ARGS__                                      \
    }
#define SP_ALL(a)                                                                                                      \
    {                                                                                                                  \
        a, countof(a)                                                                                                  \
    }

static inline Str sp_str(Buf *b, const char *s)
{
    Str at = (Str)b->n;
    buf_write(b, s, strlen(s) + 1);
    return at;
}

static inline PlanBuffer sp_buffer(Buf *s, const char *name, DType t, uint32_t arena, uint64_t offset, uint64_t d0,
                                   uint64_t d1, uint32_t first, uint32_t last)
{
    PlanBuffer b = {
        .name = sp_str(s, name), .dtype = t, .arena = arena, .offset = offset, .first = first, .last = last};
    uint64_t dims[] = {d0, d1};
    b.bytes = (uint64_t)dtype_bytes(t);
    for (int i = 0; i < 2; i++)
        if (dims[i]) {
            b.dims[b.ndim++] = dims[i];
            b.bytes *= dims[i];
        }
    return b;
}

static inline PlanKernel sp_kernel(Buf *s, const char *name, uint32_t nargs, uint64_t rows, uint64_t grain)
{
    Str id = sp_str(s, name);
    return (PlanKernel){.name = id,
                        .label = id,
                        .nargs = nargs,
                        .rows = rows,
                        .grain = grain,
                        .scratch = strcmp(name, "twice") == 0 ? 32 : 0,
                        .bytes = 1 << 16,
                        .flops = rows};
}

static inline void sp_seal(uint8_t *file, size_t size)
{
    PlanHeader h;
    memcpy(&h, file, sizeof h);
    h.checksum = XXH3_64bits(file + sizeof h, size - sizeof h);
    h.size = size;
    memcpy(file, &h, sizeof h);
}

typedef struct {
    const void *data;
    size_t count;
} SpSection;

static inline uint8_t *sp_join(const SpSection *section, size_t *size)
{
    size_t at = sizeof(PlanHeader) + PLAN_SECTIONS * sizeof(PlanSection);
    for (int i = 0; i < PLAN_SECTIONS; i++)
        at = (at + 15) / 16 * 16 + section[i].count * plan_item_size((enum PlanSectionId)i);
    *size = at;
    uint8_t *file = aligned_alloc(16, (at + 15) / 16 * 16);
    memset(file, 0, at);
    PlanHeader h = {.version = PLAN_VERSION, .nsections = PLAN_SECTIONS};
    memcpy(h.magic, PLAN_MAGIC, 8);
    memcpy(file, &h, sizeof h);
    at = sizeof(PlanHeader) + PLAN_SECTIONS * sizeof(PlanSection);
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        size_t item = plan_item_size((enum PlanSectionId)i);
        at = (at + 15) / 16 * 16;
        PlanSection s = {i, (uint32_t)item, at, section[i].count};
        memcpy(file + sizeof(PlanHeader) + i * sizeof s, &s, sizeof s);
        if (section[i].count) memcpy(file + at, section[i].data, item * section[i].count);
        at += item * section[i].count;
    }
    sp_seal(file, *size);
    return file;
}

// The plan's bytes, aligned to 16; free() them.
static inline uint8_t *small_plan(size_t *size)
{
    Buf s = {0};
    buf_write(&s, "", 1);
    PlanInfo info = {.model = sp_str(&s, "small"),
                     .config = sp_str(&s, "{}"),
                     .dtype = F32,
                     .seq = SP_SEQ,
                     .micro_batch = SP_BATCH,
                     .accum = SP_ACCUM,
                     .mesh = {1, 1, 1, 1, 1},
                     .chunks = 1,
                     .parameters = 64,
                     .flops_per_step = 4096};
    PlanStage stage = {.scratch_bytes = 32, .parameters = 64, .flops = 4096};
    PlanArena arenas[] = {{CLASS_PERSIST, 0, 1, 0, 1024}, {CLASS_WORK, 0, 1, 0, 256}, {CLASS_FB, 0, 2, 0, 256}};
    PlanInput inputs[] = {{sp_str(&s, "tokens"), SP_TOKENS_BUF, 0, SP_N, 0, 0},
                          {sp_str(&s, "targets"), SP_TARGETS_BUF, 1, SP_N, -1, 0}};
    PlanOutput outputs[] = {{sp_str(&s, "loss"), SP_LOSS}, {sp_str(&s, "valid"), SP_VALID}};
    PlanScalar scalars[] = {{sp_str(&s, "lr"), SLOT_NAMED, 0.5}};
    PlanParam params[] = {{.name = sp_str(&s, "w"),
                           .buffer = SP_W,
                           .grad = SP_GRAD,
                           .ndim = 2,
                           .init = INIT_CONSTANT,
                           .dims = {SP_N, SP_N},
                           .init_value = 1,
                           .decay = 1,
                           .owner = 1,
                           .naxes = 2}};
    PlanParamAxis axes[] = {{SP_N, SP_N, 0, 0}, {SP_N, SP_N, 0, 0}};
    PlanBuffer buffers[SP_BUFFERS];
    buffers[SP_TOKENS_BUF] = sp_buffer(&s, "tokens", I32, ARENA_PERSIST, 0, SP_BATCH, SP_SEQ, 0, UINT32_MAX);
    buffers[SP_TARGETS_BUF] = sp_buffer(&s, "targets", I32, ARENA_PERSIST, 64, SP_BATCH, SP_SEQ, 0, UINT32_MAX);
    buffers[SP_W] = sp_buffer(&s, "w", F32, ARENA_PERSIST, 128, SP_N, SP_N, 0, UINT32_MAX);
    buffers[SP_GRAD] = sp_buffer(&s, "w.grad", F32, ARENA_PERSIST, 384, SP_N, SP_N, 0, UINT32_MAX);
    buffers[SP_LOSS] = sp_buffer(&s, "loss", F64, ARENA_PERSIST, 640, 0, 0, 0, UINT32_MAX);
    buffers[SP_VALID] = sp_buffer(&s, "valid", F64, ARENA_PERSIST, 704, 0, 0, 0, UINT32_MAX);
    buffers[SP_X] = sp_buffer(&s, "x", F32, SP_SAVED, 0, SP_TOKENS, SP_N, 1, 4);
    buffers[SP_Y] = sp_buffer(&s, "y", F32, ARENA_WORK, 0, SP_TOKENS, SP_N, 2, 3);
    buffers[SP_ONES] = sp_buffer(&s, "ones", F32, ARENA_PERSIST, 768, SP_TOKENS, 0, 0, UINT32_MAX);
    PlanSource sources[] = {{sp_str(&s, sp_source), TARGET_CPU}};
    PlanKernel kernels[] = {sp_kernel(&s, "fill_ones", 1, 8, 8), sp_kernel(&s, "embed", 3, 8, 2),
                            sp_kernel(&s, "twice", 3, 8, 3), sp_kernel(&s, "total", 3, 1, 1),
                            sp_kernel(&s, "update", 2, 64, 16)};
    PlanGemm gemms[] = {{.m = SP_N,
                         .n = SP_N,
                         .k = SP_TOKENS,
                         .lda = SP_N,
                         .ldb = SP_N,
                         .ldc = SP_N,
                         .trans_a = 1,
                         .dtype = F32,
                         .beta = BETA_FIRST}};
    PlanArg args[] = {SP_OUT(SP_ONES), SP_IN(SP_TOKENS_BUF), SP_IN(SP_W),      SP_OUT(SP_X),     SP_IN(SP_X),
                      SP_IN(SP_ONES),  SP_OUT(SP_Y),         SP_IN(SP_Y),      SP_BOTH(SP_LOSS), SP_BOTH(SP_VALID),
                      SP_IN(SP_X),     SP_IN(SP_X),          SP_BOTH(SP_GRAD), SP_BOTH(SP_W),    SP_IN(SP_GRAD)};
    Str label = sp_str(&s, "product \"x'x\" small.lua:3");
    PlanInstr instrs[] = {{.index = 0, .first_arg = 0, .nargs = 1},
                          {.index = 1, .first_arg = 1, .nargs = 3},
                          {.index = 2, .first_arg = 4, .nargs = 3},
                          {.index = 3, .first_arg = 7, .nargs = 3},
                          {.kind = INSTR_GEMM, .first_arg = 10, .nargs = 3, .label = label},
                          {.index = 4, .first_arg = 13, .nargs = 2}};
    PlanSegment segments[] = {{sp_str(&s, "init"), SEG_INIT, 0, 0, 1},
                              {sp_str(&s, "F"), SEG_F, 0, 1, 3},
                              {sp_str(&s, "B"), SEG_B, 0, 4, 1},
                              {sp_str(&s, "update"), SEG_UPDATE, 0, 5, 1}};
    PlanStep schedule[] = {SP_RUN(1, 0, .slots = {0}), SP_RUN(1, 1, .slots = {1}), SP_RUN(2, 0, .slots = {0}),
                           SP_RUN(2, 1, .slots = {1})};
    PlanTrain train[] = {{sp_str(&s, "steps"), sp_str(&s, "3")}, {sp_str(&s, "lr"), sp_str(&s, "0.25")}};
    SpSection section[PLAN_SECTIONS] = {
        [PLAN_STRINGS] = {s.s, s.n},      [PLAN_INFO] = {&info, 1},           [PLAN_STAGES] = {&stage, 1},
        [PLAN_SCALARS] = SP_ALL(scalars), [PLAN_SOURCES] = SP_ALL(sources),   [PLAN_KERNELS] = SP_ALL(kernels),
        [PLAN_GEMMS] = SP_ALL(gemms),     [PLAN_TRAIN] = SP_ALL(train),       [PLAN_INPUTS] = SP_ALL(inputs),
        [PLAN_OUTPUTS] = SP_ALL(outputs), [PLAN_PARAMS] = SP_ALL(params),     [PLAN_PARAM_AXES] = SP_ALL(axes),
        [PLAN_ARENAS] = SP_ALL(arenas),   [PLAN_BUFFERS] = SP_ALL(buffers),   [PLAN_ARGS] = SP_ALL(args),
        [PLAN_INSTRS] = SP_ALL(instrs),   [PLAN_SEGMENTS] = SP_ALL(segments), [PLAN_SCHEDULE] = SP_ALL(schedule)};
    for (int i = 0; i < PLAN_STAGED; i++) stage.range[i].count = (uint32_t)section[PLAN_FIRST_STAGED + i].count;
    uint8_t *file = sp_join(section, size);
    buf_free(&s);
    return file;
}
