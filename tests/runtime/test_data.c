// test_data.c: windows, targets, epochs and shuffling of the token reader; files it must refuse.
#include "data.h"
#include "faults.h"
#include <fcntl.h>
#include <sys/stat.h>

static const char *write_shard(const char *name, uint32_t magic, uint32_t version, uint32_t count, const void *tokens,
                               size_t bytes)
{
    char file[1024 + 4096] = {0};
    uint32_t head[3] = {magic, version, count};
    memcpy(file, head, sizeof head);
    if (bytes) memcpy(file + 1024, tokens, bytes);
    return write_scratch(name, file, 1024 + bytes);
}

static void text_windows(void **state)
{
    (void)state;
    const char *path = write_scratch("ten.txt", "abcdefghij", 10);  // (10 - 1) / 4 = 2 samples
    Data *d = data_open(&path, 1, 4, 256, false, 0);
    assert_int_equal(data_samples(d), 2);
    int32_t tokens[12], targets[12];
    data_batch(d, 0, 3, DATA_NO_IGNORE, 0, tokens, targets);
    for (int i = 0; i < 8; i++) assert_true(tokens[i] == 'a' + i && targets[i] == 'b' + i);
    assert_memory_equal(tokens + 8, tokens, 16);  // the third sample is the first again
    assert_memory_equal(targets + 8, targets, 16);
    data_batch(d, 7, 1, 'g', -1, tokens, targets);
    assert_true(tokens[2] == 'g' && targets[1] == -1 && targets[2] == 'h');
    data_close(d);
}

static void windows_do_not_cross_files(void **state)
{
    (void)state;
    const char *paths[] = {write_scratch("a.txt", "abcdef", 6), write_scratch("b.txt", "ABC", 3),
                           write_scratch("c.txt", "0123456", 7)};
    Data *d = data_open(paths, 3, 2, 256, false, 0);
    static const char *const want[] = {"ab", "cd", "AB", "01", "23", "45"};
    assert_int_equal(data_samples(d), 6);  // 2 + 1 + 3
    for (uint64_t i = 0; i < 6; i++) {
        int32_t tokens[2], targets[2];
        data_batch(d, i, 1, DATA_NO_IGNORE, 0, tokens, targets);
        assert_true(tokens[0] == want[i][0] && tokens[1] == want[i][1] && targets[0] == want[i][1]);
    }
    data_close(d);
}

static void shards(void **state)
{
    (void)state;
    uint16_t narrow[] = {1, 2, 65535, 50256, 7, 8};
    uint32_t wide[] = {1, 70000, 128255, 3, 4};
    const char *paths[] = {write_shard("n.bin", 20240520, 1, 6, narrow, sizeof narrow),
                           write_shard("w.bin", 20240801, 7, 5, wide, sizeof wide)};
    Data *d = data_open(paths, 2, 4, 128256, false, 0);
    assert_int_equal(data_samples(d), 2);
    int32_t tokens[8], targets[8], want[] = {1, 2, 65535, 50256, 1, 70000, 128255, 3},
                                   next[] = {2, 65535, 50256, 7, 70000, 128255, 3, 4};
    data_batch(d, 0, 2, DATA_NO_IGNORE, 0, tokens, targets);
    assert_memory_equal(tokens, want, sizeof want);
    assert_memory_equal(targets, next, sizeof next);
    data_close(d);
}

static void shuffle_permutes_each_epoch(void **state)
{
    (void)state;
    enum { N = 200 };
    uint8_t text[N + 1];
    for (int i = 0; i <= N; i++) text[i] = (uint8_t)(i + 1);
    const char *path = write_scratch("perm.txt", text, sizeof text);
    Data *d = data_open(&path, 1, 1, 256, true, 7), *other = data_open(&path, 1, 1, 256, true, 8);
    int32_t epochs[3][N], targets[N], seen[N + 2] = {0};
    data_batch(d, 0, N, DATA_NO_IGNORE, 0, epochs[0], targets);
    data_batch(d, N, N, DATA_NO_IGNORE, 0, epochs[1], targets);
    data_batch(other, 0, N, DATA_NO_IGNORE, 0, epochs[2], targets);
    for (int i = 0; i < N; i++) seen[epochs[0][i]] += 1, seen[epochs[1][i]] += 1;
    for (int i = 1; i <= N; i++) assert_int_equal(seen[i], 2);
    assert_memory_not_equal(epochs[0], epochs[1], sizeof epochs[0]);
    assert_memory_not_equal(epochs[0], epochs[2], sizeof epochs[0]);
    int32_t one;  // a batch is a function of its position alone
    data_batch(d, N + 33, 1, DATA_NO_IGNORE, 0, &one, targets);
    assert_int_equal(one, epochs[1][33]);
    data_close(d);
    data_close(other);
}

static void file_over_two_gigabytes(void **state)
{
    (void)state;
    const char *path = scratch_file("huge.bin");
    uint64_t count = 1500000000;  // of 2 bytes; nothing but the end is on the disk
    uint32_t head[3] = {20240520, 1, (uint32_t)count};
    uint16_t last[] = {11, 12, 13};
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(pwrite(fd, head, sizeof head, 0) == sizeof head);
    assert_true(pwrite(fd, last, sizeof last, (off_t)(1024 + 2 * count - sizeof last)) == sizeof last);
    close(fd);
    Data *d = data_open(&path, 1, 1, 100, false, 0);
    assert_true(data_samples(d) == (int64_t)count - 1);
    int32_t tokens[2], targets[2];
    data_batch(d, count - 3, 2, DATA_NO_IGNORE, 0, tokens, targets);
    assert_true(tokens[0] == 11 && tokens[1] == 12 && targets[1] == 13);
    data_close(d);
    unlink(path);
}

// ---- refusals

typedef struct { const char *path, *second; int64_t seq, limit; } Attempt;

static void attempt(void *arg)
{
    const Attempt *a = arg;
    const char *paths[] = {a->path, a->second};
    Data *d = data_open(paths, a->second ? 2 : 1, a->seq, a->limit, false, 0);
    int32_t *tokens = xcalloc((size_t)a->seq, 4), *targets = xcalloc((size_t)a->seq, 4);
    for (int64_t i = 0; i < data_samples(d); i++) data_batch(d, (uint64_t)i, 1, DATA_NO_IGNORE, 0, tokens, targets);
}

static void refuses(const char *path, const char *second, int64_t seq, int64_t limit, const char *part)
{
    expect_fatal(attempt, &(Attempt){path, second, seq, limit}, part);
}

static void refused_files(void **state)
{
    (void)state;
    const char *text = write_scratch("four.txt", "abcd", 4);
    refuses(scratch_file("none.txt"), NULL, 4, 256, "none.txt cannot be opened: No such file");
    refuses(scratch_file(""), NULL, 4, 256, "is a folder");
    refuses("/dev/null", NULL, 4, 256, "not a regular file");
    refuses(write_scratch("empty", "", 0), NULL, 4, 256, "is empty");
    refuses(text, NULL, 4, 256, "has 4 tokens, fewer than one window of 5 (seq 4");
    refuses(write_scratch("long.txt", "abcdefgh", 8), text, 4, 256, "four.txt has 4 tokens");
    const char *fifo = scratch_file("fifo");
    mkfifo(fifo, 0600);
    refuses(fifo, NULL, 4, 256, "not a regular file");
    refuses(write_scratch("x.npy", "\x93NUMPY\1\0v\0{'descr'", 18), NULL, 4, 256, "seems to be a NumPy array");
    refuses(write_scratch("x.gz", "\x1f\x8b\x08\0\0\0\0\0\0\3", 10), NULL, 4, 256, "seems to be a gzip archive");
    refuses(write_scratch("x.st", "\x20\0\0\0\0\0\0\0{\"a\":", 13), NULL, 4, 256, "seems to be a safetensors file");
}

static void refused_shards(void **state)
{
    (void)state;
    uint16_t ids[] = {1, 2, 50257, 3};
    const char *text = write_scratch("text.txt", "abcdefgh", 8),
               *good = write_shard("good.bin", 20240520, 1, 4, ids, 8);
    refuses(write_shard("v2.bin", 20240520, 2, 4, ids, 8), NULL, 2, 65536,
            "magic 20240520 and version 2, but only version 1");
    refuses(write_shard("v1.bin", 20240801, 1, 2, ids, 8), NULL, 1, 65536, "version 1, but only version 7");
    refuses(write_shard("cut.bin", 20240520, 1, 5, ids, 8), NULL, 2, 65536,
            "truncated token file: its header announces 5 tokens of 2 bytes, in all 1034 bytes, but it has 1032");
    refuses(write_shard("more.bin", 20240520, 1, 3, ids, 8), NULL, 2, 65536, "damaged token file");
    refuses(write_shard("minus.bin", 20240520, 1, ~0u, ids, 8), NULL, 2, 65536, "announces 4294967295 tokens");
    refuses(write_shard("swapped.bin", __builtin_bswap32(20240520), 1, 4, ids, 8), NULL, 2, 65536, "big-endian");
    refuses(write_scratch("head.bin", "\x88\xd8\x34\x01\1\0\0\0", 8), NULL, 2, 65536,
            "header alone takes 1024 bytes, but it has 8");
    refuses(write_shard("zero.bin", 20240520, 1, 0, NULL, 0), NULL, 2, 65536, "has 0 tokens");
    refuses(text, good, 2, 65536, "text.txt is text, but ");
    refuses(good, text, 2, 65536, "good.bin is a token file, but ");
    refuses(good, NULL, 2, 50257,
            "good.bin: the token at position 2 is 50257, but the model's vocabulary has 50257 entries");
    refuses(text, NULL, 3, 'd', "position 3 is 100");  // as a target only
    uint32_t wide[] = {1, 0xffffffff, 2};
    refuses(write_shard("wide.bin", 20240801, 7, 3, wide, 12), NULL, 2, INT32_MAX, "position 1 is 4294967295");
}

// a target that is ignored need not be in the vocabulary
static void ignored_target_out_of_range(void **state)
{
    (void)state;
    const char *path = write_scratch("pad.txt", "aab~", 4);
    Data *d = data_open(&path, 1, 3, 'c', false, 0);
    int32_t tokens[3], targets[3];
    data_batch(d, 0, 1, '~', -100, tokens, targets);
    assert_int_equal(targets[2], -100);
    data_close(d);
}

int main(void)
{
    program_name = "test_data";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_windows),
        cmocka_unit_test(windows_do_not_cross_files),
        cmocka_unit_test(shards),
        cmocka_unit_test(shuffle_permutes_each_epoch),
        cmocka_unit_test(file_over_two_gigabytes),
        cmocka_unit_test(refused_files),
        cmocka_unit_test(refused_shards),
        cmocka_unit_test(ignored_target_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
