// safetensors.h: Hugging Face's weight files: u64 length of the header | header (JSON) | data, little-endian.
//
// The header maps a name to {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the data's first
// byte. Reader: everything the header claims is checked before a byte of data is used; the tensors must cover the
// data exactly (any order, no overlap, no gap, nothing behind), "__metadata__" is ignored, and a dtype that is not
// known is only a fault for whoever reads that tensor.
// Trap: data may start at any address, so elements are read by safetensor_value, never through a cast.
#pragma once
#include "base.h"
#include "input.h"

#define SAFE_MAX_DIMS 16
#define SAFE_MAX_HEADER 100000000  // bytes; the format's own limit

// X(enum, name, bytes)
#define SAFE_DTYPES(X)                                                                                             \
    X(SAFE_F64, "F64", 8) X(SAFE_F32, "F32", 4) X(SAFE_F16, "F16", 2) X(SAFE_BF16, "BF16", 2) /* read as numbers */ \
    X(SAFE_I64, "I64", 8) X(SAFE_U64, "U64", 8) X(SAFE_I32, "I32", 4) X(SAFE_U32, "U32", 4)                        \
    X(SAFE_I16, "I16", 2) X(SAFE_U16, "U16", 2) X(SAFE_I8, "I8", 1) X(SAFE_U8, "U8", 1) X(SAFE_BOOL, "BOOL", 1)    \
    X(SAFE_F8_E4M3, "F8_E4M3", 1) X(SAFE_F8_E5M2, "F8_E5M2", 1) X(SAFE_C64, "C64", 8)
#define X(e, ...) e,
typedef enum { SAFE_DTYPES(X) SAFE_UNKNOWN } SafeDType;
#undef X

typedef struct {
    const char *name, *dtype_name;
    SafeDType dtype;
    uint32_t ndim;
    uint64_t dims[SAFE_MAX_DIMS];
    uint64_t count;       // elements
    uint64_t begin, end;  // in the data
    const uint8_t *data;
} SafeTensor;

typedef struct {
    Input in;             // empty when the bytes are the caller's
    const uint8_t *data;
    uint64_t data_bytes;
    void *json;           // owns the names
    SafeTensor *tensors;  // vec, sorted by name
} SafeTensors;

// On a fault false, with nothing to close, and `message` holds one sentence without the path.
bool safetensors_open(SafeTensors *s, const char *path, char *message, size_t message_size);
bool safetensors_check(SafeTensors *s, const void *bytes, uint64_t size, char *message, size_t message_size);
void safetensors_close(SafeTensors *s);
SafeTensor *safetensors_find(const SafeTensors *s, const char *name);  // NULL if there is none

bool safetensor_is_numeric(const SafeTensor *t);            // F64, F32, F16 or BF16
double safetensor_value(SafeDType t, const void *first, uint64_t i);  // element i, exactly; numeric dtypes only
const char *safetensor_dtype_name(SafeDType t);

// Writer. The tensors are announced, then their data appended in that order, then the file takes its name: until
// then an older file of that name stays as it was, and a failure removes what was written. Faults are fatal().
typedef struct { const char *name; SafeDType dtype; uint32_t ndim; const uint64_t *dims; } SafeEntry;
typedef struct SafeWriter SafeWriter;
SafeWriter *safetensors_create(const char *path, const SafeEntry *entries, size_t n);
void safetensors_append(SafeWriter *w, const void *data, uint64_t bytes);
void safetensors_commit(SafeWriter *w);
// fatal() unless a file can be made there: call it before hours of work
void safetensors_probe(const char *path);

// The same by many ranks, threads or processes: all announce; one begins the file, takes its room on the disk and tells
// the others its id; they join; each puts what it has, anywhere, and flushes; when all have, the one that began
// publishes. On a fault false, and safetensors_fault has one sentence. drop frees the writer, and removes a file that
// it began and did not publish.
SafeWriter *safetensors_announce(const char *path, const SafeEntry *entries, size_t n);
bool safetensors_begin(SafeWriter *w, int64_t *id);  // id > 0
bool safetensors_join(SafeWriter *w, int64_t id);
// at: byte of the tensor
bool safetensors_put(SafeWriter *w, size_t tensor, uint64_t at, const void *data, uint64_t bytes);
bool safetensors_flush(SafeWriter *w);
bool safetensors_publish(SafeWriter *w);
const char *safetensors_fault(const SafeWriter *w);
void safetensors_drop(SafeWriter *w);
