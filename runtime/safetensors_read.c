// safetensors_read.c: the reader of safetensors.h, from a mapped file or from memory.
//
// Traps: cJSON numbers are doubles, so integers are accepted up to 2^53 only. Its parser is given a copy of the
// header that ends in NUL: version 1.7.15 reads past the end of a buffer that does not. Its strings end at NUL, so a
// name that contains one would be cut short; such headers are refused.
#include "safetensors.h"
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>

typedef struct { char *message; size_t size; } Why;  // where the sentence goes
#define refused(...) refuse(why.message, why.size, __VA_ARGS__)

static const struct { const char *name; uint32_t bytes; } dtypes[] = {
#define X(e, name, bytes) {name, bytes},
    SAFE_DTYPES(X)
#undef X
};

const char *safetensor_dtype_name(SafeDType t) { return t < SAFE_UNKNOWN ? dtypes[t].name : "unknown"; }
bool safetensor_is_numeric(const SafeTensor *t) { return t->dtype <= SAFE_BF16; }

static double half_value(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
    return h >> 15 ? -magnitude : magnitude;
}

double safetensor_value(SafeDType t, const void *first, uint64_t i)
{
    const uint8_t *p = first;
    uint16_t h;
    uint32_t w;
    float f;
    double d;
    switch (t) {
    case SAFE_F64: memcpy(&d, p + 8 * i, 8); return d;
    case SAFE_F32: memcpy(&f, p + 4 * i, 4); return (double)f;
    case SAFE_F16: memcpy(&h, p + 2 * i, 2); return half_value(h);
    case SAFE_BF16:
        memcpy(&h, p + 2 * i, 2);
        w = (uint32_t)h << 16;
        memcpy(&f, &w, 4);
        return (double)f;
    default: bug("a value of dtype %s is read as a number", safetensor_dtype_name(t));
    }
}

// ---- header: one tensor

static bool whole_number(const cJSON *j, uint64_t *out)
{
    if (!cJSON_IsNumber(j) || !(j->valuedouble >= 0 && j->valuedouble < 0x1p53)) return false;
    *out = (uint64_t)j->valuedouble;
    return (double)*out == j->valuedouble;
}

static bool read_shape(SafeTensor *t, const cJSON *shape, Why why)
{
    if (!cJSON_IsArray(shape)) return refused("tensor %s has no shape", shown(t->name).s);
    t->count = 1;
    bool overflow = false, none = false;
    const cJSON *item;
    cJSON_ArrayForEach(item, shape) {
        if (t->ndim == SAFE_MAX_DIMS)
            return refused("tensor %s has more than %d dimensions", shown(t->name).s, SAFE_MAX_DIMS);
        uint64_t *dim = &t->dims[t->ndim];
        if (!whole_number(item, dim))
            return refused("tensor %s: dimension %u is not a whole number", shown(t->name).s, t->ndim);
        none |= !*dim;
        overflow |= __builtin_mul_overflow(t->count, *dim, &t->count);
        t->ndim++;
    }
    if (overflow && !none)
        return refused("tensor %s has more elements than 64 bits can count", shown(t->name).s);
    if (none) t->count = 0;
    return true;
}

static bool read_offsets(SafeTensor *t, const cJSON *offsets, uint64_t data_bytes, Why why)
{
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 || !whole_number(offsets->child, &t->begin) ||
        !whole_number(offsets->child->next, &t->end))
        return refused("tensor %s has no data_offsets of two whole numbers", shown(t->name).s);
    if (t->begin > t->end || t->end > data_bytes)
        return refused("tensor %s claims bytes %" PRIu64 " to %" PRIu64 " of %" PRIu64 " bytes of data",
                      shown(t->name).s, t->begin, t->end, data_bytes);
    return true;
}

static bool read_dtype(SafeTensor *t, const cJSON *dtype, Why why)
{
    if (!cJSON_IsString(dtype)) return refused("tensor %s has no dtype", shown(t->name).s);
    t->dtype_name = dtype->valuestring;
    t->dtype = 0;
    while (t->dtype < SAFE_UNKNOWN && strcmp(dtypes[t->dtype].name, t->dtype_name)) t->dtype++;
    return true;
}

// the size that dtype and shape make is the size that the offsets make
static bool check_size(const SafeTensor *t, Why why)
{
    uint64_t wanted;
    if (t->dtype == SAFE_UNKNOWN) return true;
    if (__builtin_mul_overflow(t->count, dtypes[t->dtype].bytes, &wanted) || wanted != t->end - t->begin)
        return refused("tensor %s has %" PRIu64 " elements of %s, but its data_offsets span %" PRIu64 " bytes",
                      shown(t->name).s, t->count, t->dtype_name, t->end - t->begin);
    return true;
}

static bool read_tensor(SafeTensors *s, const cJSON *entry, Why why)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    const cJSON *values[countof(keys)] = {0}, *item;
    SafeTensor t = {.name = entry->string};
    if (!cJSON_IsObject(entry)) return refused("tensor %s is not described by an object", shown(t.name).s);
    cJSON_ArrayForEach(item, entry) {
        size_t k = 0;
        while (k < countof(keys) && strcmp(item->string, keys[k])) k++;
        if (k == countof(keys)) continue;  // of a later version of the format
        if (values[k]) return refused("tensor %s has its %s twice", shown(t.name).s, keys[k]);
        values[k] = item;
    }
    if (!read_dtype(&t, values[0], why) || !read_shape(&t, values[1], why) ||
        !read_offsets(&t, values[2], s->data_bytes, why) || !check_size(&t, why))
        return false;
    t.data = s->data + t.begin;
    vec_push(s->tensors, t);
    return true;
}

// ---- header: all tensors

static int by_offset(const void *a, const void *b)
{
    const SafeTensor *x = *(const SafeTensor *const *)a, *y = *(const SafeTensor *const *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const SafeTensor *)a)->name, ((const SafeTensor *)b)->name);
}

static bool check_names(SafeTensors *s, Why why)
{
    size_t n = vec_len(s->tensors);
    if (n) qsort(s->tensors, n, sizeof *s->tensors, by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(s->tensors[i - 1].name, s->tensors[i].name))
            return refused("tensor %s appears twice", shown(s->tensors[i].name).s);
    return true;
}

// walks the tensors in the order of their data: each begins where the one before ends
static bool check_cover(const SafeTensors *s, SafeTensor **order, size_t n, Why why)
{
    uint64_t covered = 0;
    if (n) qsort(order, n, sizeof *order, by_offset);
    for (size_t i = 0; i < n; i++) {
        const SafeTensor *t = order[i];
        if (t->begin < covered)
            return refused("tensors %s and %s overlap", shown(order[i - 1]->name).s, shown(t->name).s);
        if (t->begin > covered)
            return refused("bytes %" PRIu64 " to %" PRIu64 " of the data, before tensor %s, belong to no tensor",
                          covered, t->begin, shown(t->name).s);
        covered = t->end;
    }
    if (covered != s->data_bytes)
        return refused("%" PRIu64 " bytes follow the last tensor", s->data_bytes - covered);
    return true;
}

static bool read_tensors(SafeTensors *s, Why why)
{
    const cJSON *entry;
    if (!cJSON_IsObject((cJSON *)s->json)) return refused("the header is not a JSON object");
    cJSON_ArrayForEach(entry, (cJSON *)s->json)
        if (strcmp(entry->string, "__metadata__") && !read_tensor(s, entry, why)) return false;
    if (!check_names(s, why)) return false;
    SafeTensor **order = NULL;
    for (size_t i = 0; i < vec_len(s->tensors); i++) vec_push(order, &s->tensors[i]);
    bool good = check_cover(s, order, vec_len(order), why);
    vec_free(order);
    return good;
}

static bool parse_header(SafeTensors *s, const char *header, size_t n, Why why)
{
    if (header[0] != '{') return refused("the header does not begin with '{'");
    if (strlen(header) != n || strstr(header, "\\u0000")) return refused("the header contains a NUL character");
    const char *end = NULL;
    s->json = cJSON_ParseWithLengthOpts(header, n + 1, &end, false);
    if (!s->json) return refused("the header is not JSON: fault at byte %td", end ? end - header : 0);
    end += strspn(end, " \t\r\n");
    if (*end) return refused("the header has more than one JSON value: byte %td", end - header);
    return read_tensors(s, why);
}

static bool refuse_foreign(const void *bytes, uint64_t size, uint64_t header, Why why)
{
    const char *foreign = foreign_format(bytes, size);
    bool own = size > 8 && ((const char *)bytes)[8] == '{';
    if (foreign && !own) return refused("this is not a safetensors file; it seems to be %s", foreign);
    if (header > SAFE_MAX_HEADER)
        return refused("this is not a safetensors file, or damaged: its header claims %" PRIu64
                       " bytes, more than the format's %d", header, SAFE_MAX_HEADER);
    return refused("the file is truncated: its header claims %" PRIu64 " bytes, but %" PRIu64 " follow the length",
                  header, size - 8);
}

bool safetensors_check(SafeTensors *s, const void *bytes, uint64_t size, char *message, size_t message_size)
{
    Why why = {message, message_size};
    uint64_t header;
    *s = (SafeTensors){0};
    if (!size) return refuse(message, message_size, "the file is empty");
    if (size < 8)
        return refuse(message, message_size, "the file has %" PRIu64 " bytes, too few for a safetensors file", size);
    memcpy(&header, bytes, 8);
    if (header > SAFE_MAX_HEADER || header > size - 8) return refuse_foreign(bytes, size, header, why);
    if (!header) return refuse(message, message_size, "this is not a safetensors file: its header has no bytes");
    s->data = (const uint8_t *)bytes + 8 + header;
    s->data_bytes = size - 8 - header;
    char *copy = xmalloc(header + 1);
    memcpy(copy, (const uint8_t *)bytes + 8, header);
    copy[header] = 0;
    bool good = parse_header(s, copy, header, why);
    free(copy);
    if (!good) safetensors_close(s);
    return good;
}

bool safetensors_open(SafeTensors *s, const char *path, char *message, size_t message_size)
{
    Input in;
    if (!input_open(&in, path, message, message_size)) return false;
    if (!safetensors_check(s, in.base, in.size, message, message_size)) {
        input_close(&in);
        return false;
    }
    s->in = in;
    return true;
}

void safetensors_close(SafeTensors *s)
{
    vec_free(s->tensors);
    cJSON_Delete(s->json);
    input_close(&s->in);
    *s = (SafeTensors){0};
}

SafeTensor *safetensors_find(const SafeTensors *s, const char *name)
{
    SafeTensor key = {.name = name};
    size_t n = vec_len(s->tensors);
    return n ? bsearch(&key, s->tensors, n, sizeof key, by_name) : NULL;
}
