// library.h: a description of tests/ops/library as numbers: the graph of the model, and what its leaves hold.
//
// Values are functions of names and positions, so that a graph in fp64, its twin written another way and a run of the
// generated kernels see the same ones: parameters are +-[0.05, 1] ([0.5, 1.5] if their init is "ones"), each a float;
// tokens are those of library_token; states are zero or as told; random numbers are those of seed 1; the step is 1.
#pragma once
#include "eval.h"

enum { LIBRARY_SEQ = 5, LIBRARY_BATCH = 2 };  // but for files with the mark `-- sizes: SEQ BATCH`

typedef struct {
    Graph *g;
    double **params, **states;  // by id: what they hold now
    int64_t step;               // from 1
    int64_t first_sample;       // of the step's batch
} Library;

// Runs front() on the file (once in a process) and fills the parameters.
Library library_open(const char *path, DType dtype);
extern int64_t library_seq;  // instead of LIBRARY_SEQ, where the file has no mark
void library_random_states(Library *l);  // in [0, 1), instead of zero
void library_leaf(void *ctx, const Graph *g, Val v, double *out, int64_t n);  // EvalLeaf; ctx: Library
int64_t library_vocab(const Graph *g);
uint32_t library_token(int64_t vocab, int64_t position);
double library_noise(const char *name, int64_t i);  // uniform in [0, 1)
const char *library_train(const Graph *g, const char *key);  // of the train section, or NULL

// A line `-- KEY: VALUE` at the top of the file; NULL if there is none.
const char *library_mark(const char *path, const char *key);
