// data.h: the training text as windows of tokens.
//
// Files: text, where every byte is a token, or token shards in llm.c's format: a header of 256 int32 {magic,
// version, number of tokens, 0 ...}, then the tokens; magic 20240520 version 1: uint16, 20240801 version 7: uint32.
// All little-endian. A file of T tokens gives (T-1)/seq samples; sample i covers its tokens i*seq .. i*seq+seq, the
// last of which is a target only. Windows do not cross files; files follow each other in the order given.
//
// Which tokens a step uses is a function of (seed, index of the sample since the start of training), nothing else:
// there is no state to save, and every layout and every resumed run sees the same data.
#pragma once
#include "base.h"

typedef struct Data Data;

// Maps and checks the files; faults are fatal(). Token ids must be below `limit`. With `shuffle` the windows of
// each epoch are permuted by (seed, epoch); an epoch visits each window once either way.
Data *data_open(const char *const *paths, int n, int64_t seq, int64_t limit, bool shuffle, uint64_t seed);
int64_t data_samples(const Data *d);  // in one epoch

#define DATA_NO_IGNORE INT64_MIN
// Fills tokens and targets, each [count][seq], from samples first .. first+count-1, counted from the start of
// training. Targets equal to ignore_id are written as ignore_as. A token that is not below `limit` is fatal().
void data_batch(const Data *d, uint64_t first, int64_t count, int64_t ignore_id, int32_t ignore_as, int32_t *tokens,
                int32_t *targets);
void data_close(Data *d);

// What a file in memory holds: width 1 is text. On a fault false, and `message` holds one sentence without the path.
typedef struct { uint32_t width; uint64_t tokens; const uint8_t *first; } DataShard;
bool data_check_shard(const void *bytes, uint64_t size, DataShard *out, char *message, size_t message_size);
uint32_t data_token(const DataShard *s, uint64_t i);  // needs i < tokens
