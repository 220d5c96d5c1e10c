// hand_plan.h: for tests: a plan of only the sections that parameters need, made by hand and not checked.
#pragma once
#include "plan.h"

typedef struct {
    enum PlanSectionId id;
    const void *data;
    uint64_t count;
} HandSection;

// Copies the sections. free((void *)plan.base) ends it.
static inline Plan hand_plan(const HandSection *given, size_t n)
{
    PlanSection table[PLAN_SECTIONS];
    Plan p = {0};
    Buf file = {0};
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++)
        table[i] = (PlanSection){i, (uint32_t)plan_item_size((enum PlanSectionId)i), 0, 0};
    buf_write(&file, &(PlanHeader){0}, sizeof(PlanHeader));
    buf_write(&file, table, sizeof table);
    for (size_t i = 0; i < n; i++) {
        PlanSection *s = &table[given[i].id];
        while (file.n % 16) buf_write(&file, "", 1);
        s->offset = file.n;
        p.count[given[i].id] = s->count = given[i].count;
        buf_write(&file, given[i].data, given[i].count * s->item);
    }
    memcpy(file.s + sizeof(PlanHeader), table, sizeof table);
    p.base = (const uint8_t *)file.s;
    p.stages = (const PlanStage *)(const void *)(p.base + table[PLAN_STAGES].offset);
    return p;
}
