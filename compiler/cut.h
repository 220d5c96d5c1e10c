// cut.h: private to cut*.c (stages), with what bucket*.c must decide in the same way.
//
//   cut.c          options, the order of things, one stage
//   cut_layers.c   layers to model chunks
//   cut_home.c     homes of activations and cotangents, what crosses between chunks
//   cut_update.c   the update: which stage computes what, sums over stages, batches of numbers
//   cut_build.c    the graph of one stage
//   bucket.c, bucket_flat.c   gradients: buckets, and --zero 1
#pragma once
#include "pico.h"

// Where a value is computed. STATIC: free of inputs and random numbers, so that stages have copies where they need them.
// FREE: of inputs alone (or a cast that would only make a value larger): copied in every chunk that needs it. FIXED: once,
// in its home chunk.
typedef enum { WHERE_STATIC, WHERE_FREE, WHERE_FIXED } Where;

// One way from a model chunk to the next (forward) or the one before (backward).
typedef struct { Val val; uint16_t from, to; uint32_t tag; bool backward; } Hop;

// A number (rank 0) of the update that a collective makes, of a value's parts on ranks or of what one stage has and others
// want. fold: the value is a RESHARD already, whose bits key includes.
typedef struct {
    bool on, fold, dropped;
    CommKey key;
    uint64_t from, at;   // stages that give a part (the others 0); stages that take part
    uint32_t batch, level;
} Joint;

typedef struct {
    Graph *g;
    size_t n;
    int stages, chunks;            // pp; model chunks
    uint64_t all;                  // bit s for every stage
    uint16_t *chunk_of_layer;      // [layer + 1], layer from -1 to nlayers
    uint8_t *live, *where, *backward;
    int32_t *home;                 // model chunk of what is FIXED (a FREE cast: of its operand), -1: none
    uint64_t *need;                // [v * words + ..]: chunks that read it
    size_t words;
    uint64_t *early, *late, *raw;  // STATIC: stages whose F or B, whose update, whose Joint read it
    uint64_t *mask, *made;         // stages that can compute it; that do
    uint64_t *param_stages, *acc_stages;
    uint32_t *flat;                // STATIC with axes: the parameter + 1 whose flat parts it is computed in (--zero)
    Joint *joint;
    Hop *hops;                     // vec, by value
} Cut;

static inline uint64_t stage_bit(const Cut *c, int chunk) { return 1ull << (chunk % c->stages); }
static inline bool needs_chunk(const Cut *c, Val v, int chunk)
{
    return c->need[v * c->words + (size_t)chunk / 64] >> chunk % 64 & 1;
}
static inline int chunk_of_layer(const Cut *c, int layer) { return c->chunk_of_layer[layer + 1]; }

void cut_layers(Cut *c);
void cut_homes(Cut *c);
void cut_update(Cut *c);
Graph *cut_stage(const Cut *c, int stage);  // transfers and all
Reshard joint_reshard(const Joint *j, const Node *x);  // x: the value, or the RESHARD it is

// Ranks that reduce together.
uint32_t key_size(const Graph *g, CommKey key);
// Is the parameter updated in flat parts (--zero 1)? Its gradient is then reduced over more than one rank.
bool param_is_flat(const Graph *g, int param);
// The reduction of an accumulator in its bucket, or what stands for it where --drop leaves it out. batch 0: it is left out.
Reshard bucket_reshard(const Graph *g, uint32_t acc, uint32_t batch);
// --zero 1. By accumulator: the numbers of its bucket's reduction and gathering, 0: left out.
void bucket_flat(Graph *g, const uint32_t *reduce, const uint32_t *gather);
