// log.h: the training log, one JSON object a line (JSONL).
//
// Fields: step, loss, grad_norm, lr, tokens, tokens_per_second, seconds, then what the caller adds. A number that
// is not finite is written as null. Every line is flushed; a write that fails ends the run with one sentence.
// Trap: one log a process (the path is kept for messages).
#pragma once
#include "base.h"

typedef struct {
    int64_t step;
    double loss, grad_norm, lr;
    int64_t tokens;  // since the start of training
    double tokens_per_second, seconds;
} StepRecord;

FILE *log_open(const char *path);  // truncates
// digits: significant digits of loss, grad_norm, lr and the extra values: 9 for f32, 17 for f64
void log_step(FILE *log, int digits, const StepRecord *record, int nextra, const char *const *names,
              const double *values);
void log_close(FILE *log);
