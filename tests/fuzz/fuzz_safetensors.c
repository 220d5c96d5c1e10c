// fuzz_safetensors.c: the weight-file reader on arbitrary bytes; what it accepts is then read in full.
#include "safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static double sum_values(const SafeTensor *t)
{
    double sum = 0;
    for (uint64_t i = 0; i < t->count; i++) sum += safetensor_value(t->dtype, t->data, i);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char why[512] = "";
    SafeTensors s;
    if (!safetensors_check(&s, bytes, size, why, sizeof why)) {
        if (!*why || strchr(why, '\n')) abort();  // a refusal is one sentence
        return 0;
    }
    double sum = 0;
    for (size_t i = 0; i < vec_len(s.tensors); i++) {
        SafeTensor *t = &s.tensors[i];
        if (t->data < bytes || t->end > s.data_bytes || safetensors_find(&s, t->name) != t) abort();
        if (safetensor_is_numeric(t)) sum += sum_values(t);
        for (uint64_t k = 0; k < t->end - t->begin; k++) sum += t->data[k];
    }
    __asm__ volatile("" : : "m"(sum));  // used, so the reads stay
    safetensors_close(&s);
    return 0;
}
