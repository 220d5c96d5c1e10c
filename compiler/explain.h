// explain.h: what explain.c shares with explain_comm.c.
#pragma once
#include "pico.h"

// The collectives and transfers of nodes with a cause; layer: by node. Prints nothing if there are none.
void explain_comm(const Graph *g, const uint32_t *cause, const int *layer, FILE *out);
