// eval_stages.h: all ranks of all stages of a program, by plain definition, in double.
#pragma once
#include "eval.h"

// What stands for a RESHARD, a RECV or a SLICE while a rank is evaluated by itself.
typedef struct {
    Kind kind;
    Val leaf, operand;   // in the opened graph
    const Reshard *reshard;
    uint32_t tag, number;  // RECV; RESHARD: which of its key
} Link;
typedef struct {
    Program *prog;
    Link **links;        // by stage (vecs)
    uint32_t ranks;
    double ***values;    // by rank, by value of the opened graph of its stage
    double ***got;       // by rank, by link
} Stages;

// Opens the stages' graphs (they are of no other use then) and evaluates them until nothing changes.
Stages eval_stages(Program *prog, EvalRankLeaf leaf, void *ctx);
void eval_stages_free(Stages *s);
static inline uint32_t stage_of_rank(const Graph *g, uint32_t rank) { return mesh_coord(g->mesh.size, rank, MESH_AT_PP); }
// Place of a rank in a group of its graph, and the whole's element that element i of a parameter is (-1: padding). Values over
// an axis `flat` are parts of the storage over the gradient's group.
int64_t place_in_group(const Graph *g, uint32_t rank, CommKey key);
int64_t element_in_whole(const Graph *g, uint32_t rank, int param, const Node *n, int64_t i);
