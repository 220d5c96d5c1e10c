// rng.c: Philox, normal numbers and permutations by index; see rng.h for the contract.
#include "rng.h"
#include <math.h>
#include <xxhash.h>

enum { PHILOX_ROUNDS = 10, FEISTEL_ROUNDS = 8 };

void philox4x32_10(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;  // Weyl sequence: golden ratio, sqrt(3) - 1
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

uint64_t rng_key(uint64_t seed, const char *name) { return XXH3_64bits_withSeed(name, strlen(name), seed); }

// the block of a key at two 64-bit coordinates
static void block(uint32_t out[4], uint64_t key, uint64_t x, uint64_t y)
{
    uint32_t counter[4] = {(uint32_t)x, (uint32_t)(x >> 32), (uint32_t)y, (uint32_t)(y >> 32)};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    philox4x32_10(out, counter, k);
}

void rng_normal_pair(uint64_t key, uint64_t pair, double out[2])
{
    uint32_t r[4];
    block(r, key, pair, 0);
    uint64_t a = (uint64_t)r[1] << 32 | r[0], b = (uint64_t)r[3] << 32 | r[2];
    double u = (double)((a >> 11) + 1) * 0x1p-53;  // (0, 1]: its logarithm is finite
    double v = (double)(b >> 11) * 0x1p-53;        // [0, 1)
    double radius = sqrt(-2.0 * log(u)), angle = 6.283185307179586476925 * v;
    out[0] = radius * cos(angle);
    out[1] = radius * sin(angle);
}

double rng_normal(uint64_t key, uint64_t index)
{
    double both[2];
    rng_normal_pair(key, index / 2, both);
    return both[index % 2];
}

// A Feistel network permutes the numbers below 4^half; its image is taken again until it falls below n, which
// stays a permutation (cycle walking) and takes under four tries on average because 4^half < 4n.
uint64_t rng_permute(uint64_t key, uint64_t round, uint64_t n, uint64_t i)
{
    if (i >= n) bug("permutation of %llu has no element %llu", (unsigned long long)n, (unsigned long long)i);
    int half = 1;
    while (half < 32 && (n - 1) >> (2 * half)) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t f = 0; f < FEISTEL_ROUNDS; f++) {
            uint32_t r[4];
            block(r, key, right | f << 32, round);
            uint64_t next = left ^ (r[0] & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
