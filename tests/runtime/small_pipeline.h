// small_pipeline.h: for tests: the model of small_plan.h on two pipeline stages, each of two data-parallel ranks.
//
// Stage 0, F: x = w[tokens], sent. B: takes dx, grad (+)= x' dx; in the last micro-batch the reduction of grad over dp
// starts. UPDATE awaits it: w -= lr * grad. Stage 1, F: takes x, y = 2x, loss += sum of y. B: dx = 2y, sent. Both: the
// loss is added over all ranks. One forward, one backward (two micro-batches).
#pragma once
#include "small_plan.h"

enum { PP_TOKENS, PP_W, PP_GRAD, PP_SUM0, PP_LOSS0, PP_ONES0, PP_X0, PP_DX0, PP_SPARE, PP_BUFFERS0 };
enum { PP_TARGETS, PP_SUM1, PP_VALID, PP_LOSS1, PP_ONES1, PP_X1, PP_Y, PP_DX1, PP_BUFFERS1 };
enum { PP_BUFFERS = PP_BUFFERS0 + PP_BUFFERS1, PP_TAG_X = 7, PP_TAG_DX = 9 };
enum { PP_G_DP, PP_G_ALL, PP_G_PP };                        // groups
enum { PP_C_GRAD, PP_C_LOSS, PP_C_EQUAL };                  // collectives; the last is equal to the second, and unused
enum { PP_FB0 = 2, PP_RB0, PP_RF1 = 2, PP_FB1, PP_SB1 };    // arenas
enum { PP_INSTRS0 = 8, PP_SCHEDULE0 = 12, PP_ARENAS0 = 4 }; // of stage 0: where stage 1 begins

static inline void pp_buffers(Buf *s, PlanBuffer *b)
{
    uint32_t end = UINT32_MAX;
    b[PP_TOKENS] = sp_buffer(s, "tokens", I32, ARENA_PERSIST, 0, SP_BATCH, SP_SEQ, 0, end);
    b[PP_W] = sp_buffer(s, "w", F32, ARENA_PERSIST, 128, SP_N, SP_N, 0, end);
    b[PP_GRAD] = sp_buffer(s, "w.grad", F32, ARENA_PERSIST, 384, SP_N, SP_N, 0, end);
    b[PP_SUM0] = sp_buffer(s, "loss.sum", F64, ARENA_PERSIST, 640, 0, 0, 0, end);
    b[PP_LOSS0] = sp_buffer(s, "loss", F64, ARENA_PERSIST, 704, 0, 0, 0, end);
    b[PP_ONES0] = sp_buffer(s, "ones", F32, ARENA_PERSIST, 768, SP_TOKENS, 0, 0, end);
    b[PP_X0] = sp_buffer(s, "x", F32, PP_FB0, 0, SP_TOKENS, SP_N, 1, 2);
    b[PP_DX0] = sp_buffer(s, "dx.in", F32, PP_RB0, 0, SP_TOKENS, SP_N, 0, end);
    b[PP_SPARE] = sp_buffer(s, "spare", F32, PP_FB0, 0, SP_TOKENS, SP_N, 3, 3); // where x was; for a test
    b += PP_BUFFERS0;
    b[PP_TARGETS] = sp_buffer(s, "targets", I32, ARENA_PERSIST, 0, SP_BATCH, SP_SEQ, 0, end);
    b[PP_SUM1] = sp_buffer(s, "loss.sum", F64, ARENA_PERSIST, 64, 0, 0, 0, end);
    b[PP_VALID] = sp_buffer(s, "valid", F64, ARENA_PERSIST, 128, 0, 0, 0, end);
    b[PP_LOSS1] = sp_buffer(s, "loss", F64, ARENA_PERSIST, 192, 0, 0, 0, end);
    b[PP_ONES1] = sp_buffer(s, "ones", F32, ARENA_PERSIST, 256, SP_TOKENS, 0, 0, end);
    b[PP_X1] = sp_buffer(s, "x.in", F32, PP_RF1, 0, SP_TOKENS, SP_N, 0, end);
    b[PP_Y] = sp_buffer(s, "y", F32, PP_FB1, 0, SP_TOKENS, SP_N, 1, 3);
    b[PP_DX1] = sp_buffer(s, "dx", F32, PP_SB1, 0, SP_TOKENS, SP_N, 0, end);
}

static inline uint8_t *pp_join(const SpSection *given, PlanStage stage[2], const uint32_t first[PLAN_STAGED],
                               size_t *size)
{
    for (int i = 0; i < PLAN_STAGED; i++) {
        uint32_t n = (uint32_t)given[PLAN_FIRST_STAGED + i].count;
        stage[0].range[i] = (PlanRange){0, first[i]};
        stage[1].range[i] = (PlanRange){first[i], n - first[i]};
    }
    return sp_join(given, size);
}

// The plan's bytes, aligned to 16; free() them.
static inline uint8_t *small_pipeline(size_t *size)
{
    Buf s = {0};
    buf_write(&s, "", 1);
    PlanInfo info = {.model = sp_str(&s, "small"),
                     .config = sp_str(&s, "{}"),
                     .dtype = F32,
                     .seq = SP_SEQ,
                     .micro_batch = SP_BATCH,
                     .accum = SP_ACCUM,
                     .mesh = {1, 1, 1, 2, 2},
                     .chunks = 1,
                     .schedule = SCHEDULE_1F1B,
                     .parameters = 64,
                     .flops_per_step = 16384};
    PlanStage stages[] = {{.scratch_bytes = 32, .parameters = 64, .flops = 4096}, {.scratch_bytes = 32, .flops = 4096}};
    PlanGroup groups[] = {{0, MESH_DP, 2}, {3, MESH_PP | MESH_DP, 4}, {3, MESH_PP, 2}};
    PlanScalar scalars[] = {{sp_str(&s, "lr"), SLOT_NAMED, 0.5}};
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
    Str why = sp_str(&s, "gradients of dp");
    PlanColl colls[] = {{COLL_ALL_REDUCE, REDUCE_SUM, F32, PP_G_DP, 0, 1, why},
                        {COLL_ALL_REDUCE, REDUCE_SUM, F64, PP_G_ALL, 1, 1, sp_str(&s, "loss")},
                        {COLL_ALL_REDUCE, REDUCE_SUM, F64, PP_G_ALL, 1, 1, sp_str(&s, "loss")}};
    PlanPart parts[] = {{1, SP_N * SP_N}, {1, 1}};
    PlanTrain train[] = {{sp_str(&s, "steps"), sp_str(&s, "3")}};
    PlanInput inputs[] = {{sp_str(&s, "tokens"), PP_TOKENS, 0, SP_N, 0, 0},
                          {sp_str(&s, "targets"), PP_TARGETS, 1, SP_N, -1, 0}};
    PlanOutput outputs[] = {{sp_str(&s, "loss"), PP_LOSS0}, {sp_str(&s, "loss"), PP_LOSS1}};
    PlanParam params[] = {{.name = sp_str(&s, "w"),
                           .buffer = PP_W,
                           .grad = PP_GRAD,
                           .ndim = 2,
                           .init = INIT_CONSTANT,
                           .dims = {SP_N, SP_N},
                           .init_value = 1,
                           .decay = 1,
                           .owner = 1,
                           .key = PP_G_DP + 1,
                           .naxes = 1}};
    PlanParamAxis axes[] = {{SP_N * SP_N, SP_N * SP_N, 0, 0}};
    PlanArena arenas[] = {{CLASS_PERSIST, 0, 1, 0, 1024}, {CLASS_WORK, 0, 1, 0, 0},      {CLASS_FB, 0, 2, 0, 256},
                          {CLASS_RB, 0, 1, 0, 256},       {CLASS_PERSIST, 0, 1, 0, 512}, {CLASS_WORK, 0, 1, 0, 0},
                          {CLASS_RF, 0, 1, 0, 256},       {CLASS_FB, 0, 1, 0, 256},      {CLASS_SB, 0, 1, 0, 256}};
    PlanBuffer buffers[PP_BUFFERS];
    pp_buffers(&s, buffers);
    PlanArg args[] = {
        // stage 0: init, F, B (gemm, start), update
        SP_OUT(PP_ONES0), SP_IN(PP_TOKENS), SP_IN(PP_W), SP_OUT(PP_X0), SP_IN(PP_X0), SP_IN(PP_DX0), SP_BOTH(PP_GRAD),
        SP_IN(PP_GRAD), SP_BOTH(PP_GRAD), SP_IN(PP_SUM0), SP_OUT(PP_LOSS0), SP_BOTH(PP_W), SP_IN(PP_GRAD),
        // stage 1: init, F, B, update
        SP_OUT(PP_ONES1), SP_IN(PP_X1), SP_IN(PP_ONES1), SP_OUT(PP_Y), SP_IN(PP_Y), SP_BOTH(PP_SUM1), SP_BOTH(PP_VALID),
        SP_IN(PP_Y), SP_IN(PP_ONES1), SP_OUT(PP_DX1), SP_IN(PP_SUM1), SP_OUT(PP_LOSS1)};
    PlanInstr instrs[] = {{.index = 0, .first_arg = 0, .nargs = 1},
                          {.index = 1, .first_arg = 1, .nargs = 3},
                          {.kind = INSTR_GEMM, .first_arg = 4, .nargs = 3},
                          {.kind = INSTR_START, .index = PP_C_GRAD, .first_arg = 7, .nargs = 2, .when = WHEN_LAST},
                          {.kind = INSTR_START, .index = PP_C_LOSS, .first_arg = 9, .nargs = 2},
                          {.kind = INSTR_WAIT, .index = PP_C_GRAD},
                          {.index = 4, .first_arg = 11, .nargs = 2},
                          {.kind = INSTR_WAIT, .index = PP_C_LOSS},
                          // stage 1
                          {.index = 0, .first_arg = 0, .nargs = 1},
                          {.index = 2, .first_arg = 1, .nargs = 3},
                          {.index = 3, .first_arg = 4, .nargs = 3},
                          {.index = 2, .first_arg = 7, .nargs = 3},
                          {.kind = INSTR_START, .index = PP_C_LOSS, .first_arg = 10, .nargs = 2},
                          {.kind = INSTR_WAIT, .index = PP_C_LOSS}};
    Str init = sp_str(&s, "init"), f = sp_str(&s, "F"), b = sp_str(&s, "B"), update = sp_str(&s, "update");
    PlanSegment segments[] = {{init, SEG_INIT, 0, 0, 1},     {f, SEG_F, 0, 1, 1},          {b, SEG_B, 0, 2, 2},
                              {update, SEG_UPDATE, 0, 4, 4}, {init, SEG_INIT, 0, 0, 1},    {f, SEG_F, 0, 1, 2},
                              {b, SEG_B, 0, 3, 1},           {update, SEG_UPDATE, 0, 4, 2}};
    PlanTransfer transfers[] = {{PP_TAG_X, 1, 1, PP_X0, 0, 0, 256},
                                {PP_TAG_DX, 1, 0, PP_DX0, 0, 0, 256},
                                {PP_TAG_X, 0, 0, PP_X1, 0, 0, 256},
                                {PP_TAG_DX, 0, 1, PP_DX1, 0, 0, 256}};
    PlanStep schedule[] = {
        SP_RUN(1, 0, .slots = {0}), SP_MOVE(SEND, 0, 0, .slots = {0}), SP_RUN(1, 1, .slots = {1}),
        SP_MOVE(POST, 1, 0, .slots = {0}), SP_MOVE(SEND, 0, 1, .slots = {1}), SP_MOVE(ARRIVE, 1, 0, .slots = {0}),
        SP_MOVE(SENT, 0, 0, .slots = {0}), SP_RUN(2, 0, .slots = {0}), SP_MOVE(POST, 1, 1, .slots = {1}),
        SP_MOVE(SENT, 0, 1, .slots = {1}), SP_MOVE(ARRIVE, 1, 1, .slots = {1}), SP_RUN(2, 1, .slots = {1}),
        // stage 1
        SP_MOVE(POST, 0, 0, .slots = {0}), SP_MOVE(ARRIVE, 0, 0, .slots = {0}), SP_RUN(1, 0, .slots = {0}),
        SP_RUN(2, 0, .slots = {0}), SP_MOVE(POST, 0, 1, .slots = {0}), SP_MOVE(SEND, 1, 0, .slots = {0}),
        SP_MOVE(ARRIVE, 0, 1, .slots = {0}), SP_RUN(1, 1, .slots = {0}), SP_MOVE(SENT, 1, 0, .slots = {0}),
        SP_RUN(2, 1, .slots = {0}), SP_MOVE(SEND, 1, 1, .slots = {0}), SP_MOVE(SENT, 1, 1, .slots = {0})};
    SpSection section[PLAN_SECTIONS] = {
        [PLAN_STRINGS] = {s.s, s.n},       [PLAN_INFO] = {&info, 1},           [PLAN_STAGES] = SP_ALL(stages),
        [PLAN_GROUPS] = SP_ALL(groups),    [PLAN_SCALARS] = SP_ALL(scalars),   [PLAN_SOURCES] = SP_ALL(sources),
        [PLAN_KERNELS] = SP_ALL(kernels),  [PLAN_GEMMS] = SP_ALL(gemms),       [PLAN_COLLS] = SP_ALL(colls),
        [PLAN_PARTS] = SP_ALL(parts),      [PLAN_TRAIN] = SP_ALL(train),       [PLAN_INPUTS] = SP_ALL(inputs),
        [PLAN_OUTPUTS] = SP_ALL(outputs),  [PLAN_PARAMS] = SP_ALL(params),     [PLAN_PARAM_AXES] = SP_ALL(axes),
        [PLAN_ARENAS] = SP_ALL(arenas),    [PLAN_BUFFERS] = SP_ALL(buffers),   [PLAN_ARGS] = SP_ALL(args),
        [PLAN_INSTRS] = SP_ALL(instrs),    [PLAN_SEGMENTS] = SP_ALL(segments), [PLAN_TRANSFERS] = SP_ALL(transfers),
        [PLAN_SCHEDULE] = SP_ALL(schedule)};
    // inputs outputs params axes states arenas buffers args instrs segments transfers schedule
    const uint32_t first[PLAN_STAGED] = {1, 1, 1, 1, 0, PP_ARENAS0, PP_BUFFERS0, 13, PP_INSTRS0, 4, 2, PP_SCHEDULE0};
    uint8_t *file = pp_join(section, stages, first, size);
    buf_free(&s);
    return file;
}
