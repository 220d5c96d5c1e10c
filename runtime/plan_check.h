// plan_check.h: what plan.c, plan_check.c and plan_relations.c share: the state of the check and its two ways to fail.
//
// The first fault wins: every check returns true, or false with the message written.
#pragma once
#include "plan.h"

typedef struct {
    Plan *p;
    char *message;
    size_t message_size;
    const char *section; // being checked
    uint64_t item;
} Check;

PRINTF_LIKE(2, 3) static inline bool fail(Check *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->message, c->message_size, fmt, ap);
    va_end(ap);
    return false;
}

// A fault of the item being checked.
PRINTF_LIKE(2, 3) static inline bool fail_item(Check *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fail(c, "%s[%llu] %s", c->section, (unsigned long long)c->item, text);
}

bool plan_check_records(Check *c);   // plan_check.c: every record by itself; what it refers to was checked before
bool plan_check_relations(Check *c); // plan_relations.c: what holds between records that are good by themselves
