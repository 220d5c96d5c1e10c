// break_plan.h: for tests: changes one record of a good plan and looks at what the loader says; runs what it accepts.
#pragma once
#include "exec.h"
#include "faults.h"
#include "small_pipeline.h"

// What a checked plan must stand: printing, and a step of each stage on the null device if that is of ordinary size.
static inline void use_plan(const Plan *p, FILE *sink)
{
    plan_print(p, sink);
    uint32_t below = mesh_size(p->info->mesh, MESH_GROUP | MESH_KV | MESH_CP);
    if (p->info->accum > 64 || plan_ranks(p) > 1 << 10) return;
    for (uint32_t s = 0; s < p->count[PLAN_STAGES]; s++) {
        Plan stage = plan_stage(p, s);
        if (exec_arena_bytes(&stage) > 1 << 30 || p->stages[s].scratch_bytes > 1 << 20) continue;
        Dev *d = dev_null_open(&stage);
        Coll *c = coll_null(p, s * below);
        Exec *e = exec_open(&stage, d, c, &(ExecOptions){0});
        exec_init(e);
        exec_step(e, 1, NULL, NULL);
        exec_close(e);
        c->close(c);
        d->close(d);
    }
}

static inline void *record(uint8_t *file, enum PlanSectionId id, size_t index)
{
    PlanSection s;
    memcpy(&s, file + sizeof(PlanHeader) + id * sizeof s, sizeof s);
    return file + s.offset + index * s.item;
}

static inline void expect_refusal(uint8_t *file, size_t size, const char *part)
{
    Plan p;
    char why[512] = "accepted";
    sp_seal(file, size);
    plan_check(&p, file, size, why, sizeof why);
    if (!strstr(why, part)) fail_msg("wanted '%s', got '%s'", part, why);
    free(file);
}

#define REFUSES_OF(plan, section, index, type, change, part)                                                           \
    do {                                                                                                               \
        size_t size;                                                                                                   \
        uint8_t *file = plan(&size);                                                                                   \
        type *r = record(file, section, index);                                                                        \
        change;                                                                                                        \
        expect_refusal(file, size, part);                                                                              \
    } while (0)
