// exec_parts.h: what exec.c and exec_comm.c share; private to them.
#pragma once
#include "exec.h"

// What is under way: a collective from START to WAIT, a transfer from POST to ARRIVE or from SEND to SENT.
typedef struct {
    CollHandle handle;
    uint32_t lane;  // of the trace
    double start;
    const PlanInstr *instr;  // of a collective: its START and that one's arguments
    char *const *args;
} Operation;

struct Exec {
    const Plan *plan;  // of the stage
    Dev *dev;
    Coll *coll;
    uint32_t dp;
    char **memory;  // by arena: slot 0
    View **views;   // vec
    View **view_of; // by schedule entry; NULL: it runs no segment
    View *once[SEG_COUNT];
    double *scalars;
    Operation *collectives;  // by PLAN_COLLS
    Operation *transfers;    // [transfer][micro-batch]
    uint64_t *moved;         // by transfer
    Poison *poison;
    Trace *trace;
    bool check_nan, poison_all;
    int64_t step;
};

void exec_refuse_nan(const Exec *e, const PlanInstr *in, char *const *args, TraceWhere w);

// ---- exec_comm.c
void comm_open(Exec *e);
void comm_close(Exec *e);
void comm_start(Exec *e, const PlanInstr *in, char *const *args, const CollPart *parts);
void comm_wait(Exec *e, const PlanInstr *in, TraceWhere w);
void comm_step(Exec *e, const PlanStep *s);          // POST, ARRIVE, SEND, SENT
void comm_poison(Exec *e, uint64_t entry);           // fills what dies with a schedule entry
