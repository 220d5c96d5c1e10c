// drop.c: --drop N, by which tests show that nothing of what a layout needs is there in vain.
#include "pico.h"

bool required(Graph *g, const char *what, const char *why)
{
    static int64_t count;
    int64_t number = ++count;
    (void)g;
    if (options.drop == DROP_LIST) printf("%lld %s: %s\n", (long long)number, what, why);
    if (number != options.drop) return true;
    fprintf(stderr, "picoc: --drop %lld leaves out a %s: %s\n", (long long)number, what, why);
    return false;
}
