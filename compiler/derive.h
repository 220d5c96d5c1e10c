// derive.h: what the files of pass grad share: grad.c (the sweep), derive.c (a row a function, a case a node kind),
// derive_view.c (views backwards).
#pragma once
#include "pico.h"

typedef struct Deriv Deriv;

// grad.c. v's adjoint is wanted; gives it one contribution: summed over the axes that v lacks, spread over those that
// the contribution lacks, rounded to v's dtype (bf16: kept wide and rounded when all contributions are added).
bool wants(const Deriv *d, Val v);
void give(Deriv *d, Val v, Val contribution);

// derive.c. Hands the adjoint `g` of node `v` on to its operands.
void derive_node(Deriv *d, Graph *graph, Val v, Val g);
// Arithmetic that keeps masks outside: where(c, x, 0) * y becomes where(c, x*y, 0) and so on (notation 4.5).
Val adj_add(Graph *g, Val a, Val b);
Val adj_neg(Graph *g, Val a);
Val adj_mul(Graph *g, Val a, Val factor);
Val adj_div(Graph *g, Val a, Val by);
Val adj_sum(Graph *g, Val a, int naxes, const Axis *axes);
Val adj_spread(Graph *g, Val a, int naxes, const Axis *axes);

// derive_view.c. Adjoint of the operand of VIEW node `view`, dy (f32 or f64) being the view's.
Val derive_view(Graph *g, const Node *view, Val dy);
