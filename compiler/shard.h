// shard.h: what the parts of pass shard share: shard_states.c finds states, shard_emit.c makes the new graph.
#pragma once
#include "pico.h"

// Layout of a value on the mesh factor at hand: whole on each rank, split along an axis, or to be reduced over the ranks.
typedef enum { WHOLE, SPLIT, PARTIAL } Spread;
typedef struct {
    uint8_t spread, reduce;  // Spread; PlanReduce of PARTIAL
    Axis axis;               // SPLIT: along which (as it is before this factor splits it)
} Layout;

typedef struct {
    Graph *g;
    MeshFactor factor;
    int64_t k;           // its extent
    size_t n;            // nodes before
    const Node *old;     // a copy of them
    Layout *made, *seen;  // by node: as computed; as its users see it (after a reshard behind it)
    Val *origin;         // of PARTIAL: the node where the sum began, which a reshard would stand behind
    Axis *work;          // the axis whose positions are shared out in this node (as operands have it), 0: none
    Axis *goal;          // the split axis of the parameter whose gradient this is, 0: none or whole
    uint8_t *marks;      // reshard behind this node
    uint8_t *gathered;   // split, and some user wants it whole
    uint8_t *owned;      // ACCUMULATE of a whole value to a total that others add partial values to: one rank counts
    uint32_t *uses;      // how many nodes use it
    Val *user;           // one of them
    // shard_emit.c
    Val *now;            // old node -> new one
    Val *whole;          // its all-gather, where one is needed
} Shard;

void shard_factor(Graph *g, MeshFactor factor);           // one round
bool splits(const Graph *g, Axis a, MeshFactor f);        // does the axis map send a to this factor?
bool splits_at_all(const Graph *g, Axis a);               // to one of tp
Axis mapped_axis(const Graph *g, const Node *n, MeshFactor f);  // the axis of n that goes to this factor, 0: none
Axis part_axis(Shard *s, Axis a);                         // the local part of a
Layout resolved(const Shard *s, Val v);                    // what a partial value becomes
Axis view_axis(const Graph *g, const Node *view, Axis b, int64_t k);  // the output axis along which a view of a value split along b is split; 0: none
Axis scatter_axis(const Shard *s, Val v, Axis b);  // 0, or the axis where a view puts the positions of b, to be summed over the ranks
void shard_emit(Shard *s);
