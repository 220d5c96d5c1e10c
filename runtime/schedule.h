// schedule.h: the learning rate of a step.
#pragma once
#include "base.h"

typedef enum { DECAY_CONSTANT, DECAY_COSINE, DECAY_LINEAR, DECAY_COUNT } Decay;

// Step n (from 1): a ramp lr * n / warmup, then from lr at step `warmup` to min_lr at step `steps`.
double learning_rate(int64_t n, int64_t steps, int64_t warmup, double lr, double min_lr, Decay decay);
