// train.h: the training loop, and what it tells people while it runs.
#pragma once
#include "data.h"
#include "exec.h"
#include "options.h"

typedef struct {
    const Plan *plan;  // of the rank's stage
    const Options *options;
    Exec *exec;
    Coll *coll;
    const Data *data;  // NULL: the stage reads none
    FILE *log;         // NULL: none; rank 0 only
} Training;

// Runs all steps, on all ranks together; rank 0 logs and shows them. Returns 0, or the number of the signal that ended the
// run after a whole step, the same on all ranks.
int train(const Training *t);

// progress.c: one line a step, or on a terminal one line that is rewritten and a line now and then.
typedef struct {
    int64_t steps, tokens_per_step;
    bool live;
    double start;
} Progress;
typedef struct {
    int64_t step;
    double loss, grad_norm, lr, seconds;
    bool has_norm;
} StepNumbers;
Progress progress_start(int64_t steps, int64_t tokens_per_step);
void progress_step(const Progress *p, const StepNumbers *s);
void progress_end(const Progress *p, int64_t done, bool stopped);
// "12.3k", "4.56M": a count for people
const char *short_count(double x, char text[16]);
