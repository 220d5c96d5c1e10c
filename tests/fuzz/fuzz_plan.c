// fuzz_plan.c: the plan loader on arbitrary bytes; what it accepts is printed and run on the null device.
//
// The checksum is repaired first: it guards against accidents, and the checks behind it must hold alone.
#include "exec.h"
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void use(const Plan *p)
{
    FILE *sink = fopen("/dev/null", "w");
    if (!sink) abort();
    plan_print(p, sink);
    fclose(sink);
    uint64_t most = max_of(p->info->arena_bytes[ARENA_WORK], p->info->arena_bytes[ARENA_PERSIST]);
    if (most > 1 << 30 || p->info->arena_bytes[ARENA_SAVED] * p->info->arena_slots[ARENA_SAVED] > 1 << 30) return;
    if (p->count[PLAN_SCHEDULE] * p->count[PLAN_INSTRS] > 1 << 20) return;
    Dev *d = dev_null_open(p);
    Exec *e = exec_open(p, d, &(ExecOptions){0});
    exec_init(e);
    exec_step(e, 1, NULL, NULL);
    exec_close(e);
    d->close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    Plan p;
    char why[512] = "";
    uint8_t *file = aligned_alloc(16, size / 16 * 16 + 16);
    if (!file) abort();
    memcpy(file, bytes, size);
    if (size >= sizeof(PlanHeader)) {
        PlanHeader h;
        memcpy(&h, file, sizeof h);
        h.size = size;
        h.checksum = XXH3_64bits(file + sizeof h, size - sizeof h);
        memcpy(file, &h, sizeof h);
    }
    if (plan_check(&p, file, size, why, sizeof why))
        use(&p);
    else if (!*why || strchr(why, '\n'))
        abort(); // a refusal is one sentence
    free(file);
    return 0;
}
