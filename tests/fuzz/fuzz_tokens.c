// fuzz_tokens.c: the token reader on arbitrary bytes; what it accepts is then read in full.
#include "data.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char why[512] = "";
    DataShard shard;
    if (!data_check_shard(bytes, size, &shard, why, sizeof why)) {
        if (!*why || strchr(why, '\n')) abort();  // a refusal is one sentence
        return 0;
    }
    if (shard.tokens * shard.width > size) abort();
    uint32_t sum = 0;
    for (uint64_t i = 0; i < shard.tokens; i++) sum += data_token(&shard, i);
    __asm__ volatile("" : : "m"(sum));  // used, so the reads stay
    return 0;
}
