// fuzz_plan.c: the plan loader on arbitrary bytes; what it accepts is printed and run on the null device.
//
// The checksum is repaired first: it guards against accidents, and the checks behind it must hold alone.
#include "exec.h"
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void run_stage(const Plan *p, uint32_t s)
{
    Plan stage = plan_stage(p, s);
    if (exec_arena_bytes(&stage) > 1 << 30 || p->stages[s].scratch_bytes > 1 << 20) return;
    if (stage.count[PLAN_SCHEDULE] * stage.count[PLAN_INSTRS] > 1 << 20) return;
    Dev *d = dev_null_open(&stage);
    Coll *c = coll_null(p, s * mesh_size(p->info->mesh, MESH_GROUP | MESH_KV | MESH_CP));
    Exec *e = exec_open(&stage, d, c, &(ExecOptions){0});
    exec_init(e);
    exec_step(e, 1, NULL, NULL);
    exec_close(e);
    c->close(c);
    d->close(d);
}

static void use(const Plan *p)
{
    FILE *sink = fopen("/dev/null", "w");
    if (!sink) abort();
    plan_print(p, sink);
    fclose(sink);
    for (uint32_t s = 0; s < p->count[PLAN_STAGES] && plan_ranks(p) <= 1 << 12; s++) run_stage(p, s);
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
