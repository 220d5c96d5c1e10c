// checkpoint.h: a plan's parameters: their initial values, and Hugging Face weight files in and out.
//
// `buffer(ctx, id)` gives the host memory of plan buffer `id`. Faults of files are fatal(), in one sentence that
// names the file and the tensor.
#pragma once
#include "plan.h"

typedef void *(*BufferOf)(void *ctx, uint32_t id);

// Element i of a parameter is a function of (seed, parameter name, i): the same bits for any number of threads.
void params_init(const Plan *p, uint64_t seed, BufferOf buffer, void *ctx);

// Reads every parameter, from F64, F32, F16 or BF16. A parameter is found by its name, an alias, or one of them
// with "model." or "transformer." put in front or taken away. Missing, misshaped and left-over tensors are refused,
// apart from left-overs that hold no weights (attention masks, rotary frequencies) and a head that equals the tensor
// it is tied to. Nothing is changed before all of that holds.
void checkpoint_load(const Plan *p, const char *path, BufferOf buffer, void *ctx);

// F32 (F64 where the buffer is f64), names and shapes as Hugging Face's.
void checkpoint_save(const Plan *p, const char *path, BufferOf buffer, void *ctx);
// the accumulated gradients times `scale`, under their parameters' names
void gradients_save(const Plan *p, const char *path, double scale, BufferOf buffer, void *ctx);
// fatal() unless a file can be made there: call it before hours of work
void checkpoint_save_check(const char *path);
