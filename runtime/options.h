// options.h: what a run is asked to do: built-in defaults, then the plan's train section, then the command line.
#pragma once
#include "plan.h"
#include "schedule.h"

typedef struct {
    const char *name;
    double value;
} ScalarSetting;

typedef struct {
    const char *plan;
    const char **data;  // growing array
    bool data_from_plan;
    int64_t steps, warmup, ignore;  // ignore: INT64_MIN for none
    uint64_t seed;
    double lr, beta1, beta2, eps, weight_decay, weight_decay_1d, clip, min_lr;
    int decay;  // Decay
    bool shuffle, check_nan, check_copies, poison, compile_only;
    const char *init, *save, *log, *dump_grads, *trace, *counts, *device;
    int64_t threads;  // of each rank; 0: its share of the cores
    ScalarSetting *set;  // growing array
} Options;

// Reads the command line; --help and --version print and exit, faults are usage errors (exit 2).
void options_parse(Options *o, int argc, char **argv);
// Takes from the plan's train section what the command line left open, then checks all values together.
void options_complete(Options *o, const Plan *p);
void options_free(Options *o);
