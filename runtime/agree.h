// agree.h: do the processes of a run have the same plan, options and data? All ranks call these together; fatal() if not.
#pragma once
#include "data.h"
#include "options.h"
#include "ranks.h"

void ranks_agree(const Ranks *r, const Plan *p, const Options *o);
void ranks_agree_on_data(const Ranks *r, const Plan *p, const Data *d);  // d NULL: this rank reads none
