// checkpoint.h: a plan's parameters: their initial values, and Hugging Face weight files in and out.
//
// `stage` is what plan_stage gives for the rank; buffer(ctx, id) the host memory of the rank's buffer `id` of that
// stage. A rank touches only its own slices, and a file has no trace of the layout: any layout reads what another
// wrote, and writes the same bytes. Faults of files are fatal(), in one sentence that names the file and the tensor.
// Loops use as many OpenMP threads as the calling thread has by omp_set_num_threads.
#pragma once
#include "coll.h"
#include "plan.h"

typedef void *(*BufferOf)(void *ctx, uint32_t id);

// Element i of a parameter is a function of (seed, parameter name, i): the same bits in every layout.
void params_init(const Plan *stage, uint32_t rank, uint64_t seed, BufferOf buffer, void *ctx);

// Reads every parameter, from F64, F32, F16 or BF16. A parameter is found by its name, an alias, or one of them
// with "model." or "transformer." put in front or taken away. Missing, misshaped and left-over tensors are refused
// for the parameters of all stages, apart from left-overs that hold no weights (attention masks, rotary frequencies)
// and a head that equals the tensor it is tied to (rank 0 compares). Nothing is changed before all of that holds.
// Ranks need not call it together.
void checkpoint_load(const Plan *stage, uint32_t rank, const char *path, BufferOf buffer, void *ctx);

// All ranks together, into one file on a file system that they share. F32 (F64 where the buffer is f64), names and
// shapes as Hugging Face's, in the order of the names. A fault on one rank ends all.
void checkpoint_save(const Plan *stage, Coll *coll, const char *path, BufferOf buffer, void *ctx);
// The accumulated gradients times `scale`, under their parameters' names. With ZeRO each rank writes the flat part of
// a gradient that it reduced: part i of k is elements [i*c, (i+1)*c) of its buffer, c = ceil(n/k) rounded up to 16.
void gradients_save(const Plan *stage, Coll *coll, const char *path, double scale, BufferOf buffer, void *ctx);
// copies.c: all ranks together; fatal() if two hold different bits of the same part of a parameter.
void check_copies(const Plan *stage, Coll *coll, BufferOf buffer, void *ctx);
// fatal() unless a file can be made there: call it on rank 0 before hours of work
void checkpoint_save_check(const char *path);
