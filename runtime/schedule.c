// schedule.c: the learning rate of a step (see schedule.h).
//
// Trap: warmup >= steps is allowed (a run that is cut short keeps its ramp); the decay is then never reached.
#include "schedule.h"
#include <math.h>

double learning_rate(int64_t n, int64_t steps, int64_t warmup, double lr, double min_lr, Decay decay)
{
    if (n <= warmup) return lr * (double)n / (double)warmup;
    if (decay == DECAY_CONSTANT || steps <= warmup) return lr;
    double t = (double)(n - warmup) / (double)(steps - warmup);
    if (decay == DECAY_COSINE) return min_lr + (lr - min_lr) * 0.5 * (1 + cos(acos(-1.0) * t));
    return min_lr + (lr - min_lr) * (1 - t);
}
