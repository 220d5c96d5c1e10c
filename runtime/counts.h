// counts.h: what a step of a plan does, stage by stage, counted by running it on devices and transports that do nothing.
//
// One rank stands for all of its stage, so a plan of any number of ranks is counted in one thread. Segment INIT is
// not counted, it runs once.
#pragma once
#include "plan.h"

void counts_show(const Plan *p, FILE *out, const char *json_path);  // either may be NULL
