// rng.h: random numbers that are pure functions of a key and an index.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a block cipher applied to
// a counter. No state, so any thread or rank computes any element by itself and all agree.
// Trap: rng_normal uses log, sqrt, sin and cos of the C library; another library may differ in the last place of
// a double, which shows in f64 weights and, rarely, after rounding to f32.
#pragma once
#include "base.h"

void philox4x32_10(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

// the key of everything that is random about `name` in a run with this seed
uint64_t rng_key(uint64_t seed, const char *name);

// elements 2*pair and 2*pair+1 of the standard normal sequence of a key (Box-Muller gives two at a time)
void rng_normal_pair(uint64_t key, uint64_t pair, double out[2]);
double rng_normal(uint64_t key, uint64_t index);

// Image of i under a permutation of 0..n-1 that (key, round) chooses; needs i < n, takes no memory.
uint64_t rng_permute(uint64_t key, uint64_t round, uint64_t n, uint64_t i);
