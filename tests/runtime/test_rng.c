// test_rng.c: Philox against its published vectors; normal numbers; permutations.
#include "faults.h"
#include "rng.h"
#include <math.h>

// known answers of Random123 (kat_vectors, philox4x32 with 10 rounds)
static void philox_known_answers(void **state)
{
    (void)state;
    static const struct { uint32_t counter[4], key[2], out[4]; } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < countof(known); i++) {
        uint32_t out[4];
        philox4x32_10(out, known[i].counter, known[i].key);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

static void normal_moments(void **state)
{
    (void)state;
    enum { N = 400000 };
    uint64_t key = rng_key(1, "model.embed_tokens.weight");
    double sum[5] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double z = rng_normal(key, i), power = z;
        assert_true(isfinite(z));
        for (int k = 1; k <= 4; k++, power *= z) sum[k] += power;
    }
    assert_true(fabs(sum[1] / N) < 0.008);  // five standard errors each
    assert_true(fabs(sum[2] / N - 1) < 0.012);
    assert_true(fabs(sum[3] / N) < 0.031);
    assert_true(fabs(sum[4] / N - 3) < 0.08);
}

static void normal_depends_on_everything(void **state)
{
    (void)state;
    uint64_t a = rng_key(1, "a"), b = rng_key(1, "b"), c = rng_key(2, "a");
    double pair[2];
    rng_normal_pair(a, 21, pair);
    assert_true(pair[0] == rng_normal(a, 42) && pair[1] == rng_normal(a, 43));
    assert_true(rng_normal(a, 0) != rng_normal(b, 0) && rng_normal(a, 0) != rng_normal(c, 0));
    assert_true(rng_normal(a, 0) != rng_normal(a, (uint64_t)1 << 33));
}

// Initial weights must not change from version to version without being noticed.
static void normal_is_pinned(void **state)
{
    (void)state;
    uint64_t key = rng_key(42, "model.norm.weight");
    assert_true(key == 0xfc475bc462964768);
    assert_true(fabs(rng_normal(key, 0) + 0.45488491203615933) < 1e-14);
    assert_true(fabs(rng_normal(key, 12345678901) - 0.28652319179784674) < 1e-14);
}

static void permutations_are_bijective(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 64, 65, 100, 1023, 4097};
    for (size_t s = 0; s < countof(sizes); s++)
        for (uint64_t round = 0; round < 3; round++) {
            uint64_t n = sizes[s];
            bool *seen = xcalloc(n, sizeof *seen);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t image = rng_permute(99, round, n, i);
                assert_true(image < n && !seen[image]);
                seen[image] = true;
            }
            free(seen);
        }
}

static void permutations_mix(void **state)
{
    (void)state;
    enum { N = 10007 };
    int fixed = 0, same_as_next_round = 0, neighbours = 0;
    for (uint64_t i = 0; i < N; i++) {
        uint64_t image = rng_permute(5, 0, N, i);
        fixed += image == i;
        same_as_next_round += image == rng_permute(5, 1, N, i);
        neighbours += i && image == rng_permute(5, 0, N, i - 1) + 1;
    }
    assert_true(fixed < 10 && same_as_next_round < 10 && neighbours < 10);  // 1 expected of each
    uint64_t huge = (uint64_t)1 << 62;
    assert_true(rng_permute(5, 0, huge + 1, huge) <= huge);
    int low = 0, first_half = 0;  // of three elements each image of 0 has a third of the keys
    for (uint64_t key = 0; key < 3000; key++) {
        low += rng_permute(key, 0, 3, 0) == 0;
        first_half += rng_permute(key, 0, 2, 0) == 0;
    }
    assert_true(low > 850 && low < 1150 && first_half > 1350 && first_half < 1650);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_known_answers), cmocka_unit_test(normal_moments),
        cmocka_unit_test(normal_depends_on_everything), cmocka_unit_test(normal_is_pinned),
        cmocka_unit_test(permutations_are_bijective), cmocka_unit_test(permutations_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
