// rank_plan.c: rank_plan FILE PP DP ACCUM writes the plan of rank_plan.h, for tests of the programs.
#include "rank_plan.h"

int main(int argc, char **argv)
{
    size_t size;
    program_name = "rank_plan";
    if (argc != 5) usage_error("FILE PP DP ACCUM");
    uint8_t *file = rank_plan((RankShape){(uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]), (uint32_t)atoi(argv[4])}, &size);
    if (!write_file_atomic(argv[1], file, size)) fatal("cannot write '%s':", argv[1]);
    free(file);
    return 0;
}
