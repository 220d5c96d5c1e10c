// test_safetensors.c: what the reader accepts and refuses, what the writer leaves behind.
#include "faults.h"
#include "safetensors.h"
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

// a file in memory: header text and `data` bytes of zeros
static void *image(const char *header, size_t data, size_t *size)
{
    uint64_t n = strlen(header);
    *size = 8 + n + data;
    char *bytes = xcalloc(*size, 1);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    return bytes;
}

#define TENSOR(name, dtype, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"

static void accepted_headers(void **state)
{
    (void)state;
    static const struct { const char *header; size_t data, tensors; } good[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, 0},
        {"{" TENSOR("b", "F32", "2,3", 8, 32) "," TENSOR("a", "F64", "", 0, 8) "}", 32, 2},
        {"{" TENSOR("none", "F32", "5,0", 0, 0) "," TENSOR("one", "BOOL", "1", 0, 1) "}", 1, 2},
        {"{\"a\":{\"later\":1,\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1, 1},
        {"{" TENSOR("odd", "F4_SOMETHING", "3", 0, 2) "}", 2, 1},
        {"{" TENSOR("deep", "I8", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 0, 1) "}", 1, 1},
        {"{" TENSOR("zero", "F32", "4294967296,4294967296,0", 0, 0) "}", 0, 1},
    };
    for (size_t i = 0; i < countof(good); i++) {
        size_t size;
        void *bytes = image(good[i].header, good[i].data, &size);
        char why[512] = "";
        SafeTensors s;
        if (!safetensors_check(&s, bytes, size, why, sizeof why)) fail_msg("%s: %s", good[i].header, why);
        assert_int_equal(vec_len(s.tensors), good[i].tensors);
        safetensors_close(&s);
        free(bytes);
    }
}

static void refused_headers(void **state)
{
    (void)state;
    static const struct { const char *header; size_t data; const char *part;
    } bad[] = {
        {"", 0, "header has no bytes"},
        {" {}", 0, "begin with '{'"},
        {"[]", 0, "begin with '{'"},
        {"{\"a\":1", 0, "not JSON"},
        {"{} {}", 0, "more than one JSON value"},
        {"{\"a\":1}", 0, "tensor a is not described by an object"},
        {"{\"a\\u0000b\":{}}", 0, "NUL"},
        {"{\"a\":{}}", 0, "no dtype"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 0, "no data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "no data_offsets of two"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4, "its dtype twice"},
        {"{" TENSOR("a", "F32", "-1", 0, 4) "}", 4, "dimension 0 is not a whole number"},
        {"{" TENSOR("a", "F32", "1,0.5", 0, 4) "}", 4, "dimension 1 is not a whole number"},
        {"{" TENSOR("a", "F32", "9007199254740993", 0, 4) "}", 4, "not a whole number"},
        {"{" TENSOR("a", "F32", "1e400", 0, 4) "}", 4, "not a whole number"},
        {"{" TENSOR("a", "F32", "4294967296,4294967296,2", 0, 4) "}", 4, "more elements than 64 bits"},
        {"{" TENSOR("a", "F64", "4611686018427387904", 0, 0) "}", 0, "not a whole number"},
        {"{" TENSOR("a", "F32", "1125899906842624,1024", 0, 4) "}", 4,
         "elements of F32, but its data_offsets span 4 bytes"},
        {"{" TENSOR("a", "F64", "1125899906842624,2048", 0, 0) "}", 0, "elements of F64"},
        {"{" TENSOR("a", "F32", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 0, 4) "}", 4, "more than 16 dimensions"},
        {"{" TENSOR("a", "F32", "1", 4, 0) "}", 4, "claims bytes 4 to 0"},
        {"{" TENSOR("a", "F32", "2", 0, 8) "}", 4, "claims bytes 0 to 8 of 4"},
        {"{" TENSOR("a", "F32", "2", 0, 4) "}", 4, "2 elements of F32, but its data_offsets span 4"},
        {"{" TENSOR("a", "F32", "1", 0, 4) "}", 5, "1 bytes follow the last tensor"},
        {"{}", 3, "3 bytes follow"},
        {"{" TENSOR("a", "F32", "1", 1, 5) "}", 5, "bytes 0 to 1 of the data, before tensor a"},
        {"{" TENSOR("a", "F32", "2", 0, 8) "," TENSOR("b", "F32", "1", 4, 8) "}", 8, "tensors a and b overlap"},
        {"{" TENSOR("a", "F32", "1", 0, 4) "," TENSOR("b", "F32", "1", 0, 4) "}", 4, "overlap"},
        {"{" TENSOR("a", "F32", "1", 0, 4) "," TENSOR("a", "F32", "1", 4, 8) "}", 8, "tensor a appears twice"},
        {"{\"new\\nline\":1}", 0, "tensor new?line is"},
    };
    for (size_t i = 0; i < countof(bad); i++) {
        size_t size;
        void *bytes = image(bad[i].header, bad[i].data, &size);
        char why[512] = "";
        SafeTensors s;
        if (safetensors_check(&s, bytes, size, why, sizeof why)) fail_msg("accepted: %s", bad[i].header);
        if (!strstr(why, bad[i].part)) fail_msg("%s: wanted \"%s\", got \"%s\"", bad[i].header, bad[i].part, why);
        free(bytes);
    }
}

static void refused_lengths(void **state)
{
    (void)state;
    static const struct { const char *bytes; size_t size; const char *part; } bad[] = {
        {"", 0, "empty"},
        {"abc", 3, "has 3 bytes"},
        {"\0\0\0\0\0\0\0\x80{}", 10, "claims 9223372036854775808 bytes, more than"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "claims 18446744073709551615 bytes"},
        {"\1\xe1\xf5\5\0\0\0\0{}", 10, "claims 100000001 bytes"},
        {"\3\0\0\0\0\0\0\0{}", 10, "claims 3 bytes, but 2 follow"},
        {"\3\0\0\0\0\0\0\0{\"", 10, "truncated: its header claims 3 bytes, but 2 follow"},
        {"PK\3\4\0\0\0\0\0\0", 10, "seems to be a zip archive"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, "Git LFS pointer"},
    };
    for (size_t i = 0; i < countof(bad); i++) {
        char why[512] = "";
        SafeTensors s;
        assert_false(safetensors_check(&s, bad[i].bytes, bad[i].size, why, sizeof why));
        if (!strstr(why, bad[i].part)) fail_msg("wanted \"%s\", got \"%s\"", bad[i].part, why);
    }
}

static void values(void **state)
{
    (void)state;
    static const struct { uint16_t bits; double value;
    } halves[] = {{0x0000, 0},
                  {0x3c00, 1},
                  {0xc000, -2},
                  {0x7bff, 65504},
                  {0x0400, 0x1p-14},
                  {0x0001, 0x1p-24},
                  {0x83ff, -1023 * 0x1p-24},
                  {0x7c00, INFINITY},
                  {0x3555, 0.333251953125}};
    for (size_t i = 0; i < countof(halves); i++)
        assert_true(safetensor_value(SAFE_F16, &halves[i].bits, 0) == halves[i].value);
    assert_true(isnan(safetensor_value(SAFE_F16, &(uint16_t){0x7e00}, 0)));
    assert_true(signbit(safetensor_value(SAFE_F16, &(uint16_t){0x8000}, 0)));
    uint16_t bf16[] = {0x3f80, 0xc040, 0x0001, 0x7f80};
    assert_true(safetensor_value(SAFE_BF16, bf16, 0) == 1 && safetensor_value(SAFE_BF16, bf16, 1) == -3);
    assert_true(safetensor_value(SAFE_BF16, bf16, 2) == 0x1p-133 && isinf(safetensor_value(SAFE_BF16, bf16, 3)));
    char unaligned[17];
    memcpy(unaligned + 1, &(double){1.5}, 8);
    memcpy(unaligned + 9, &(float){2.5f}, 4);
    assert_true(safetensor_value(SAFE_F64, unaligned + 1, 0) == 1.5 &&
                safetensor_value(SAFE_F32, unaligned + 1, 2) == 2.5);
}

// ---- writer

static const float numbers[] = {1, 2, 3, 4, 5, 6};

static void write_numbers(void *path)
{
    SafeEntry entries[] = {{"a.weight", SAFE_F32, 2, (uint64_t[]){2, 2}},
                           {"quote\"\\\n", SAFE_F32, 1, (uint64_t[]){2}}};
    SafeWriter *w = safetensors_create(path, entries, 2);
    safetensors_append(w, numbers, 12);
    safetensors_append(w, numbers + 3, 12);
    safetensors_commit(w);
}

static void round_trip(void **state)
{
    (void)state;
    const char *path = scratch_file("out.safetensors"), *link_to_it = scratch_file("link");
    write_numbers((void *)path);
    assert_int_equal(symlink("out.safetensors", link_to_it), 0);
    write_numbers((void *)link_to_it);  // over an old file, through a link
    struct stat st;
    assert_true(!lstat(link_to_it, &st) && S_ISLNK(st.st_mode));
    char why[512];
    SafeTensors s;
    assert_true(safetensors_open(&s, path, why, sizeof why));
    assert_int_equal((uintptr_t)s.data % 8, 0);
    const SafeTensor *a = safetensors_find(&s, "a.weight"), *b = safetensors_find(&s, "quote\"\\\n");
    assert_true(a && b && !safetensors_find(&s, "c"));
    assert_true(a->ndim == 2 && a->dims[0] == 2 && a->count == 4 && a->dtype == SAFE_F32);
    assert_memory_equal(a->data, numbers, 16);
    assert_memory_equal(b->data, numbers + 4, 8);
    safetensors_close(&s);
    unlink(link_to_it);
}

static void write_without_room(void *path)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = {100, 100};
    setrlimit(RLIMIT_FSIZE, &small);
    write_numbers(path);
}

static int files_in_scratch(void)
{
    char command[128];
    snprintf(command, sizeof command, "ls '%s' | wc -l", scratch_file(""));
    FILE *f = popen(command, "r");
    int n = -1;
    if (fscanf(f, "%d", &n) != 1) n = -1;
    pclose(f);
    return n;
}

static void failing_writes_leave_nothing(void **state)
{
    (void)state;
    const char *path = write_scratch("old.safetensors", "old", 3);
    int before = files_in_scratch();
    expect_fatal(write_without_room, (void *)path, "old.safetensors: File too large");
    expect_fatal(write_numbers, (void *)scratch_file("none/x.safetensors"), "cannot write");
    expect_fatal(write_numbers, (void *)scratch_file(""), "it is a folder");
    expect_fatal(write_numbers, "/dev/null", "not a regular file");
    assert_int_equal(files_in_scratch(), before);
    size_t n;
    char *text = read_file(path, &n);
    assert_true(n == 3 && !memcmp(text, "old", 3));
    free(text);
    safetensors_probe(scratch_file("new.safetensors"));
    assert_int_equal(files_in_scratch(), before);
}

int main(void)
{
    program_name = "test_safetensors";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted_headers), cmocka_unit_test(refused_headers), cmocka_unit_test(refused_lengths),
        cmocka_unit_test(values), cmocka_unit_test(round_trip), cmocka_unit_test(failing_writes_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
