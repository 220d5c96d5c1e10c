// eval.h: every node of a graph by its plain definition, in double. Slow and short: what kernels are compared with.
#pragma once
#include "pico.h"

// Fills the n elements of a leaf (INPUT PARAM STATE SCALAR RANDOM; dense, in the order of its axes).
typedef void (*EvalLeaf)(void *ctx, const Graph *g, Val v, double *out, int64_t n);

// Values of all nodes ([0] is NULL). round: to each node's dtype after each node (f32, bf16); else all stays double.
// A TOTAL is the sum of its ACCUMULATEs, of this one micro-batch. index(batch) starts at 0.
double **eval_graph(Graph *g, bool round, EvalLeaf leaf, void *ctx);
void eval_free(const Graph *g, double **values);

// All ranks of a mesh of tp (group, kv) side by side: values[rank][v]. The leaves of each rank are told by its coordinates.
// A TOTAL of a parameter is summed over its key's ranks (what pass bucket makes explicit).
typedef void (*EvalRankLeaf)(void *ctx, const Graph *g, uint32_t rank, Val v, double *out, int64_t n);
double ***eval_ranks(Graph *g, uint32_t ranks, EvalRankLeaf leaf, void *ctx);
