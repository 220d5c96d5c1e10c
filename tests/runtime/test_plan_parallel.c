// test_plan_parallel.c: the loader on plans of several ranks: groups, classes and slots, collectives, transfers, the
// joint run. A good pipeline is broken one field at a time; also what ranks and groups are.
#include "break_plan.h"

#define REFUSES(...) REFUSES_OF(small_pipeline, __VA_ARGS__)
#define ACCEPTS(section, index, type, change) REFUSES(section, index, type, change, "accepted")

// Records of stage 1 lie behind those of stage 0.
enum { STAGE1_BUFFER = PP_BUFFERS0, STAGE1_STEP = PP_SCHEDULE0, STAGE1_ARENA = PP_ARENAS0, STAGE1_TRANSFER = 2 };

static void knows_its_stages(void **state)
{
    (void)state;
    size_t size;
    char why[512];
    uint8_t *file = small_pipeline(&size);
    Plan p;
    if (!plan_check(&p, file, size, why, sizeof why)) fail_msg("%s", why);
    Plan one = plan_stage(&p, 1);
    assert_int_equal(one.stage, 1);
    assert_int_equal(one.count[PLAN_BUFFERS], PP_BUFFERS1);
    assert_string_equal(plan_str(&one, one.buffers[PP_X1].name), "x.in");
    assert_int_equal(one.schedule[0].kind, STEP_POST);
    assert_int_equal(one.count[PLAN_KERNELS], 5);
    free(file);
}

static void knows_its_groups(void **state)
{
    (void)state;
    size_t size;
    char why[512];
    uint32_t ranks[4], index;
    uint8_t *file = small_pipeline(&size);
    Plan p;
    assert_true(plan_check(&p, file, size, why, sizeof why));
    assert_int_equal(plan_ranks(&p), 4); // rank = dp * 2 + pp
    assert_int_equal(plan_group(&p, PP_G_DP, 3, ranks, &index), 2);
    assert_int_equal(ranks[0], 1);
    assert_int_equal(ranks[1], 3);
    assert_int_equal(index, 1);
    assert_int_equal(plan_group(&p, PP_G_ALL, 2, ranks, &index), 4);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(ranks[i], i);
    assert_int_equal(index, 2);
    ((PlanGroup *)record(file, PLAN_GROUPS, PP_G_PP))->stages = 2; // stage 1 alone: nobody has checked it
    assert_int_equal(plan_group(&p, PP_G_PP, 2, NULL, &index), 0);
    assert_int_equal(plan_group(&p, PP_G_PP, 3, ranks, &index), 1);
    assert_int_equal(ranks[0], 3);
    free(file);
}

static void checks_mesh_and_groups(void **state)
{
    (void)state;
    REFUSES(PLAN_INFO, 0, PlanInfo, r->mesh[MESH_AT_PP] = 3, "section stages has 2 records, not 3");
    REFUSES(PLAN_INFO, 0, PlanInfo, r->mesh[MESH_AT_PP] = 65, "65 pipeline stages");
    REFUSES(PLAN_INFO, 0, PlanInfo, r->mesh[MESH_AT_DP] = 1 << 20, "not 1 to 1048576 ranks");
    REFUSES(PLAN_INFO, 0, PlanInfo, r->zero = 4, "info[0] has zero 4");
    REFUSES(PLAN_INFO, 0, PlanInfo, r->schedule = 4, "has schedule 4");
    REFUSES(PLAN_INFO, 0, PlanInfo, r->chunks = 0, "has 0 chunks");
    REFUSES(PLAN_STAGES, 0, PlanStage, r->range[PLAN_BUFFERS - PLAN_FIRST_STAGED].count++,
            "stages[1] has 8 buffers from 9 on");
    REFUSES(PLAN_STAGES, 1, PlanStage, r->range[PLAN_ARGS - PLAN_FIRST_STAGED].count--, "stages[1] has 11 args");
    REFUSES(PLAN_STAGES, 0, PlanStage, r->scratch_bytes = UINT64_MAX, "bytes of scratch");
    REFUSES(PLAN_STAGES, 1, PlanStage, r->scratch_bytes = 8,
            "stage 1: instrs[1] wants 32 bytes of scratch, its stage has 8");
    REFUSES(PLAN_GROUPS, PP_G_DP, PlanGroup, r->size = 3, "groups[0] has size 3, its mesh says 2");
    REFUSES(PLAN_GROUPS, PP_G_DP, PlanGroup, r->stages = 1, "groups[0] has stages 0x1");
    REFUSES(PLAN_GROUPS, PP_G_ALL, PlanGroup, r->stages = 7, "groups[1] has stages 0x7 of 0x3");
    REFUSES(PLAN_GROUPS, PP_G_PP, PlanGroup, r->mesh = 0, "groups[2] has mesh factors");
    REFUSES(PLAN_GROUPS, PP_G_ALL, PlanGroup, (r->stages = 1, r->size = 2),
            "stage 1: instrs[4] starts a collective of group 1");
}

static void checks_arenas_and_parameters(void **state)
{
    (void)state;
    REFUSES(PLAN_ARENAS, 1, PlanArena, r->class_ = CLASS_FB, "stage 0: arenas[1] is of class fb");
    REFUSES(PLAN_ARENAS, 3, PlanArena, r->class_ = CLASS_FB, "arenas[3] of class fb, chunk 0 is there twice");
    REFUSES(PLAN_ARENAS, 2, PlanArena, r->chunk = 1, "has chunk 1");
    REFUSES(PLAN_ARENAS, 0, PlanArena, r->slots = 2, "gives arena persist 2 slots");
    REFUSES(PLAN_ARENAS, 2, PlanArena, r->slots = 0, "gives arena fb 0 slots");
    REFUSES(PLAN_ARENAS, 2, PlanArena, r->slots = 1, "names slot 1 of class fb, which has 1");
    REFUSES(PLAN_BUFFERS, PP_DX0, PlanBuffer, r->last = 7, "buffers[7] lives from");
    REFUSES(PLAN_BUFFERS, PP_X0, PlanBuffer, (r->first = 0), "lives from segment init to B");
    REFUSES(PLAN_PARAM_AXES, 0, PlanParamAxis, r->extent = 32, "has axes of 32 elements and dimensions of 64");
    REFUSES(PLAN_PARAM_AXES, 0, PlanParamAxis, r->local = 32, "has 32 of 64 positions of axis 0 on each of 1 ranks");
    REFUSES(PLAN_PARAM_AXES, 0, PlanParamAxis, r->local = 65, "'w' has 65 elements, its buffer 256 bytes");
    REFUSES(PLAN_PARAM_AXES, 0, PlanParamAxis, r->mesh = MESH_PP, "splits its axis 0 over mesh factors 0x8");
    REFUSES(PLAN_PARAMS, 0, PlanParam, r->naxes = 2, "has axes 0 and 2 more of 1");
    REFUSES(PLAN_PARAMS, 0, PlanParam, r->key = 4, "has reduction key 4");
    REFUSES(PLAN_PARAMS, 0, PlanParam, r->owner = 0, "parameter 'w' has 0 owners");
    REFUSES(PLAN_ARGS, 0, PlanArg, r->stride = 4, "has a stride and no group");
    REFUSES(PLAN_ARGS, 0, PlanArg, (r->group = 1, r->stride = 32), "has offset 32 in 'ones' of 32 bytes");
    REFUSES(PLAN_ARGS, 4, PlanArg, (r->group = 1, r->stride = 32), "operand a beyond the 256 bytes of 'x'");
}

static void checks_collectives(void **state)
{
    (void)state;
    REFUSES(PLAN_COLLS, PP_C_GRAD, PlanColl, r->group = 3, "has group 3");
    REFUSES(PLAN_COLLS, PP_C_GRAD, PlanColl, r->dtype = F64, "has 'w.grad' of dtype f32 in a collective of f64");
    REFUSES(PLAN_COLLS, PP_C_GRAD, PlanColl, r->dtype = BOOL, "adds numbers of dtype bool");
    REFUSES(PLAN_COLLS, PP_C_GRAD, PlanColl, r->kind = COLL_ALL_GATHER, "moves 128 elements beyond the 256 bytes");
    REFUSES(PLAN_PARTS, 0, PlanPart, r->inner = 65, "moves 65 elements beyond");
    REFUSES(PLAN_PARTS, 0, PlanPart, r->outer = 0, "parts[0] has 0 x 64 elements");
    REFUSES(PLAN_ARGS, 7, PlanArg, r->written = 1, "is a collective that writes argument 0");
    ACCEPTS(PLAN_ARGS, 7, PlanArg, (r->buffer = PP_W, r->offset = 0)); // not in place: w is read until UPDATE writes it
    REFUSES(PLAN_INSTRS, 3, PlanInstr, r->when = WHEN_ALWAYS, "starts a collective that its segment does not await");
    REFUSES(PLAN_INSTRS, 2, PlanInstr, r->when = 2, "instrs[2] has when 2");
    REFUSES(PLAN_INSTRS, 1, PlanInstr, r->when = WHEN_LAST, "'F' has an instruction for the last micro-batch");
    REFUSES(PLAN_INSTRS, 5, PlanInstr, r->index = PP_C_EQUAL, "awaits collective 2, which is not under way");
    REFUSES(PLAN_INSTRS, 7, PlanInstr, (r->kind = INSTR_KERNEL, r->index = 4, r->first_arg = 11, r->nargs = 2),
            "instrs[4] starts a collective that nothing awaits");
    REFUSES(PLAN_INSTRS, 4, PlanInstr, (r->index = PP_C_GRAD, r->first_arg = 7),
            "starts collective 0, which instrs[3] has begun");
    REFUSES(PLAN_ARGS, 12, PlanArg, r->buffer = PP_LOSS0,
            "instrs[6] reads bytes 704 to 712 of arena persist, which belong to");
}

// What a collective owns, in place and not. The reduction of w.grad over dp is changed: 64 elements in all.
static void checks_what_collectives_own(void **state)
{
    (void)state;
    enum { IN = 7, OUT = 8 }; // its arguments
    // to another place: w.grad is read until the end, w is written
    ACCEPTS(PLAN_ARGS, OUT, PlanArg, r->buffer = PP_W);
    REFUSES(PLAN_ARGS, IN, PlanArg, (r->offset = 4, ((PlanPart *)record(file, PLAN_PARTS, 0))->inner = 60),
            "instrs[3] writes bytes");
    // reduce-scatter and all-gather in place: the member's own share; elsewhere in the whole: refused
    PlanArg share = {PP_GRAD, 1, 0, 128, PP_G_DP + 1, 0};
    ACCEPTS(PLAN_ARGS, OUT, PlanArg,
            (*r = share, ((PlanColl *)record(file, PLAN_COLLS, 0))->kind = COLL_REDUCE_SCATTER,
             ((PlanPart *)record(file, PLAN_PARTS, 0))->inner = 32));
    REFUSES(PLAN_ARGS, OUT, PlanArg,
            (*r = share, r->stride = 64, ((PlanColl *)record(file, PLAN_COLLS, 0))->kind = COLL_REDUCE_SCATTER,
             ((PlanPart *)record(file, PLAN_PARTS, 0))->inner = 32),
            "instrs[3] writes bytes");
    share.written = 0;
    ACCEPTS(PLAN_ARGS, IN, PlanArg,
            (*r = share, ((PlanColl *)record(file, PLAN_COLLS, 0))->kind = COLL_ALL_GATHER,
             ((PlanPart *)record(file, PLAN_PARTS, 0))->inner = 32));
    REFUSES(PLAN_ARGS, IN, PlanArg,
            (*r = share, r->group = PP_G_PP + 1, ((PlanColl *)record(file, PLAN_COLLS, 0))->kind = COLL_ALL_GATHER,
             ((PlanPart *)record(file, PLAN_PARTS, 0))->inner = 32),
            "instrs[3] writes bytes");
    // w belongs to it until UPDATE: F of stage 0 must not run behind it, and UPDATE must wait before it writes w
    REFUSES(PLAN_INSTRS, 5, PlanInstr, (*(r + 1) = *r, *r = (PlanInstr){.index = 4, .first_arg = 11, .nargs = 2}),
            "instrs[5] reads bytes 384 to 640");
}

// Gradients of weights apart from B, in a segment W: what F leaves for it must be of another class.
static uint8_t *plan_with_w(uint32_t class_, size_t *size)
{
    uint8_t *file = small_plan(size);
    ((PlanSegment *)record(file, PLAN_SEGMENTS, 2))->id = SEG_W;
    ((PlanArena *)record(file, PLAN_ARENAS, SP_SAVED))->class_ = class_;
    for (size_t i = 0; i < 4; i++) {
        PlanStep *s = record(file, PLAN_SCHEDULE, i);
        uint16_t slot = s->slots[0];
        s->slots[0] = 0;
        s->slots[class_ - CLASS_FB] = slot;
    }
    sp_seal(file, *size);
    return file;
}

static void knows_segment_w(void **state)
{
    (void)state;
    size_t size;
    char why[512];
    Plan p;
    uint8_t *file = plan_with_w(CLASS_FW, &size);
    if (!plan_check(&p, file, size, why, sizeof why)) fail_msg("%s", why);
    ((PlanStep *)record(file, PLAN_SCHEDULE, 3))->slots[CLASS_FW - CLASS_FB] = 0;
    expect_refusal(file, size, "schedule[3] needs micro-batch 1, whose values are not in slot 0 of class fw");
    file = plan_with_w(CLASS_FB, &size);
    expect_refusal(file, size, "'x' lives from segment F to B, which its arena does not"); // its name is still B
    file = plan_with_w(CLASS_BW, &size);
    expect_refusal(file, size, "'x' lives from segment F to B, which its arena does not");
}

// Two stages whose schedules are good by themselves.
static void checks_transfers(void **state)
{
    (void)state;
    enum { S1 = STAGE1_TRANSFER };
    REFUSES(PLAN_TRANSFERS, 0, PlanTransfer, r->tag = 8, "transfer tag 7 of stage 1 has not one other side");
    REFUSES(PLAN_TRANSFERS, 0, PlanTransfer, r->peer = 0, "goes from stage 0 to itself");
    REFUSES(PLAN_TRANSFERS, 0, PlanTransfer, r->peer = 2, "has peer 2");
    REFUSES(PLAN_TRANSFERS, 0, PlanTransfer, r->bytes = 128, "has 128 bytes, its buffer 'x' 256");
    REFUSES(PLAN_TRANSFERS, 0, PlanTransfer, r->chunk = 1, "has chunk 1");
    REFUSES(PLAN_TRANSFERS, 0, PlanTransfer, (r->buffer = PP_W), "sends 'w' of class persist");
    REFUSES(PLAN_TRANSFERS, 1, PlanTransfer, r->buffer = PP_X0, "receives 'x' of class fb");
    REFUSES(PLAN_TRANSFERS, S1, PlanTransfer, r->tag = 9, "transfer tag 7 of stage 0 has not one other side");
    REFUSES(PLAN_SCHEDULE, 1, PlanStep, r->kind = STEP_ARRIVE, "takes transfer 0 for one in the other direction");
    REFUSES(PLAN_SCHEDULE, 1, PlanStep, r->index = 2, "has index 2");
    ACCEPTS(PLAN_ARGS, 5, PlanArg, r->buffer = PP_X0); // nobody reads dx then
    ACCEPTS(PLAN_ARGS, 13 + 2, PlanArg, (r->buffer = PP_X1));
    REFUSES(PLAN_ARGS, 13 + 3, PlanArg, r->buffer = PP_X1, "writes 'x.in', which a transfer fills");
    REFUSES(PLAN_ARGS, 13 + 9, PlanArg, (r->buffer = PP_Y), "stage 1: transfers[1] sends 'dx', which nothing writes");
}

static void swap_steps(uint8_t *file, size_t i, size_t j)
{
    PlanStep *a = record(file, PLAN_SCHEDULE, i), *b = record(file, PLAN_SCHEDULE, j), keep = *a;
    *a = *b;
    *b = keep;
}

static void checks_the_schedule(void **state)
{
    (void)state;
    enum { S1 = STAGE1_STEP };
    REFUSES(PLAN_SCHEDULE, 0, PlanStep, (swap_steps(file, 0, 1), (void)r),
            "schedule[0] needs micro-batch 0, whose values are not");
    REFUSES(PLAN_SCHEDULE, 0, PlanStep, (swap_steps(file, 0, 2), (void)r), "runs micro-batch 1 where 0 is due");
    REFUSES(PLAN_SCHEDULE, 0, PlanStep, (swap_steps(file, 5, 7), (void)r),
            "needs 'dx.in' of micro-batch 0 before it has arrived");
    REFUSES(PLAN_SCHEDULE, 0, PlanStep, (swap_steps(file, 0, 7), (void)r), "runs B of micro-batch 0 before its F");
    REFUSES(PLAN_SCHEDULE, 0, PlanStep, (swap_steps(file, 7, 8), (void)r), "values are not in slot 0 of class rb");
    REFUSES(PLAN_SCHEDULE, 2, PlanStep, r->slots[0] = 0,
            "takes slot 0 of class fb for micro-batch 1 while micro-batch 0 is being moved");
    REFUSES(PLAN_SCHEDULE, 4, PlanStep, r->slots[0] = 0,
            "needs micro-batch 1, whose values are not in slot 0 of class fb");
    REFUSES(PLAN_SCHEDULE, S1 + 9, PlanStep, (swap_steps(file, S1 + 8, S1 + 9), (void)r),
            "stage 1: schedule[8] takes slot 0 of class sb for micro-batch 1 while micro-batch 0 is being moved");
    REFUSES(PLAN_SCHEDULE, S1 + 11, PlanStep, (r->kind = STEP_SEND, r->micro_batch = 0), "moves micro-batch 0 where");
    REFUSES(PLAN_SCHEDULE, 9, PlanStep, (*r = *(PlanStep *)record(file, PLAN_SCHEDULE, 6)),
            "awaits micro-batch 0 of transfer 0");
    REFUSES(PLAN_STAGES, 0, PlanStage, (r[0].range[11].count--, r[1].range[11].first--, r[1].range[11].count++),
            "stage 0: the schedule runs segment 2 for 1 of 2 micro-batches");
}

// A value that is sent from the class in which B finds it, and B writes over it.
static void finds_what_is_overwritten(void **state)
{
    (void)state;
    size_t size;
    uint8_t *file = small_pipeline(&size);
    swap_steps(file, 6, 7); // B of micro-batch 0 before its x is gone: still good
    char why[512];
    Plan p;
    sp_seal(file, size);
    if (!plan_check(&p, file, size, why, sizeof why)) fail_msg("%s", why);
    PlanBuffer *spare = record(file, PLAN_BUFFERS, PP_SPARE);
    spare->first = spare->last = 2; // the GEMM writes there instead of the gradient
    ((PlanArg *)record(file, PLAN_ARGS, 6))->buffer = PP_SPARE;
    expect_refusal(file, size, "writes what is still being sent from slot 0 of class fb");
}

static void finds_deadlocks(void **state)
{
    (void)state;
    enum { S1 = STAGE1_STEP };
    // stage 1 sends dx of micro-batch 0 before it posts for x of micro-batch 1, stage 0 posts for dx after it has sent
    // x of 1
    size_t size;
    uint8_t *file = small_pipeline(&size);
    swap_steps(file, S1 + 4, S1 + 5);
    swap_steps(file, 3, 4);
    expect_refusal(file, size,
                   "the stages wait for each other: stage 0 at schedule[3] waits until stage 1 posts transfer 7 of "
                   "micro-batch 1; stage 1 at schedule[4] waits until stage 0 posts transfer 9 of micro-batch 0");
    // one of the two alone is harmless
    file = small_pipeline(&size);
    swap_steps(file, S1 + 4, S1 + 5);
    sp_seal(file, size);
    Plan p;
    char why[512];
    if (!plan_check(&p, file, size, why, sizeof why)) fail_msg("%s", why);
    free(file);
}

static void finds_unequal_collectives(void **state)
{
    (void)state;
    // stage 1 starts and awaits another one; an equal record is another one, too
    enum { START1 = PP_INSTRS0 + 4 };
#define OTHER (r[0].index = r[1].index = PP_C_EQUAL)
    REFUSES(PLAN_INSTRS, START1, PlanInstr, OTHER, "that is not what the others of group 1 start");
    REFUSES(PLAN_INSTRS, START1, PlanInstr,
            (OTHER, ((PlanColl *)record(file, PLAN_COLLS, PP_C_EQUAL))->reduce = REDUCE_MAX),
            "that is not what the others of group 1 start");
    REFUSES(PLAN_INSTRS, START1, PlanInstr, (OTHER, ((PlanColl *)record(file, PLAN_COLLS, PP_C_EQUAL))->group = PP_G_DP),
            "stage 0 stands at the collective of instrs[4] and waits for stage 1; stage 1 has ended");
#undef OTHER
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_stages),
        cmocka_unit_test(knows_its_groups),
        cmocka_unit_test(checks_mesh_and_groups),
        cmocka_unit_test(checks_arenas_and_parameters),
        cmocka_unit_test(checks_collectives),
        cmocka_unit_test(checks_transfers),
        cmocka_unit_test(checks_the_schedule),
        cmocka_unit_test(finds_what_is_overwritten),
        cmocka_unit_test(checks_what_collectives_own),
        cmocka_unit_test(knows_segment_w),
        cmocka_unit_test(finds_deadlocks),
        cmocka_unit_test(finds_unequal_collectives),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
