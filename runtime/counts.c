// counts.c: see counts.h. Collectives of equal group, kind and reason are one row.
#include "counts.h"
#include "coll_reduce.h"
#include "exec.h"
#include "json.h"
#include <inttypes.h>

typedef struct {
    const Plan *plan;  // of the stage
    Dev *dev;
    Coll *coll;
    Exec *exec;
    uint64_t memory, ranks;
} StageCounts;

// ---- counting

static StageCounts count_stage(const Plan *stage)
{
    static const NullCounts zero;
    const uint32_t *mesh = stage->info->mesh;
    StageCounts s = {.plan = stage};
    s.ranks = mesh_size(mesh, MESH_ALL & ~MESH_PP);
    s.coll = coll_null(stage, stage->stage * mesh_size(mesh, MESH_TP | MESH_CP));
    s.dev = dev_null_open(stage);
    s.exec = exec_open(stage, s.dev, s.coll, &(ExecOptions){0});
    s.memory = s.dev->allocated;
    exec_init(s.exec);
    *dev_null_counts(s.dev) = zero;
    memset(s.coll->counts->started, 0, stage->count[PLAN_COLLS] * sizeof *s.coll->counts->started);
    exec_step(s.exec, 1, NULL, NULL);
    return s;
}

static void stage_close(StageCounts *s)
{
    exec_close(s->exec);
    s->dev->close(s->dev);
    s->coll->close(s->coll);
}

typedef struct {
    const PlanColl *coll;
    uint64_t count, bytes;
} Row;

static bool one_row(const PlanColl *a, const PlanColl *b)
{
    return a->group == b->group && a->kind == b->kind && a->why == b->why;
}

static Row *rows_of(const StageCounts *s)
{
    const Plan *p = s->plan;
    Row *rows = NULL;
    for (uint64_t i = 0; i < p->count[PLAN_COLLS]; i++) {
        uint64_t n = s->coll->counts->started[i];
        size_t r = 0;
        if (n == 0) continue;
        while (r < vec_len(rows) && !one_row(rows[r].coll, &p->colls[i])) r++;
        if (r == vec_len(rows)) vec_push(rows, (Row){&p->colls[i], 0, 0});
        rows[r].count += n;
        rows[r].bytes += n * coll_whole_bytes(p, &p->colls[i]);
    }
    return rows;
}

// ---- JSON

static const char *const coll_kinds[] = {"all_reduce", "reduce_scatter", "all_gather"};
static const char *const class_names[CLASS_COUNT] = {"persist", "work", "FB", "FW", "BW", "RF", "RB", "SF", "SB"};

static void json_arenas(Buf *b, const Plan *p)
{
    buf_puts(b, "   \"arenas\": [");
    for (uint64_t i = 0; i < p->count[PLAN_ARENAS]; i++) {
        const PlanArena *a = &p->arenas[i];
        buf_printf(b, "%s{\"class\": \"%s\", \"chunk\": %u, \"slots\": %u, \"bytes\": %" PRIu64 "}", i ? ", " : "",
                   class_names[a->class_], a->chunk, a->slots, a->bytes);
    }
    buf_puts(b, "],\n");
}

static void json_collectives(Buf *b, const StageCounts *s)
{
    Row *rows = rows_of(s);
    buf_puts(b, "   \"collectives\": [");
    for (size_t i = 0; i < vec_len(rows); i++) {
        const PlanGroup *g = &s->plan->groups[rows[i].coll->group];
        Buf group = {0};
        coll_group_name(s->plan, g, &group);
        buf_printf(b, "%s{\"group\": \"%s\", \"ranks\": %u, \"kind\": \"%s\", \"why\": ", i ? ",\n    " : "\n    ", group.s,
                   g->size, coll_kinds[rows[i].coll->kind]);
        json_string(b, plan_str(s->plan, rows[i].coll->why));
        buf_printf(b, ", \"count\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", rows[i].count, rows[i].bytes);
        buf_free(&group);
    }
    buf_puts(b, "],\n");
    vec_free(rows);
}

static void json_transfers(Buf *b, const StageCounts *s)
{
    const Plan *p = s->plan;
    buf_puts(b, "   \"transfers\": [");
    for (uint32_t i = 0; i < p->count[PLAN_TRANSFERS]; i++) {
        const PlanTransfer *t = &p->transfers[i];
        uint64_t n = exec_moved(s->exec, i);
        buf_printf(b, "%s{\"tag\": %u, \"peer\": %u, \"send\": %s, \"chunk\": %u, \"what\": ", i ? ",\n    " : "\n    ", t->tag,
                   t->peer, t->send ? "true" : "false", t->chunk);
        json_string(b, plan_str(p, p->buffers[t->buffer].name));
        buf_printf(b, ", \"count\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", n, n * t->bytes);
    }
    buf_puts(b, "]}");
}

static void json_stage(Buf *b, const StageCounts *s)
{
    const NullCounts *n = dev_null_counts(s->dev);
    buf_printf(b, "%s  {\"stage\": %u, \"ranks\": %" PRIu64 ", \"memory\": %" PRIu64 ",\n", s->plan->stage ? ",\n" : "",
               s->plan->stage, s->ranks, s->memory);
    buf_printf(b,
               "   \"kernels\": {\"count\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"flops\": %.17g},\n"
               "   \"gemms\": {\"count\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"flops\": %.17g},\n",
               n->launches, n->kernel_bytes, n->kernel_flops, n->gemms, n->gemm_bytes, n->gemm_flops);
    json_arenas(b, s->plan);
    json_collectives(b, s);
    json_transfers(b, s);
}

// ---- for people

static void print_work(FILE *out, const char *name, uint64_t n, const char *unit, double bytes, double flops)
{
    fprintf(out, "  %-8s %10" PRIu64 " %-8s  %15.0f bytes  %12.6g flops\n", name, n, unit, bytes, flops);
}

static void print_stage(FILE *out, const StageCounts *s)
{
    const NullCounts *n = dev_null_counts(s->dev);
    Buf memory = {0};
    buf_amount(&memory, (double)s->memory, "B");
    fprintf(out, "stage %u: %" PRIu64 " rank%s of %" PRIu64 " bytes (%s); a step of each:\n", s->plan->stage, s->ranks,
            s->ranks == 1 ? "" : "s", s->memory, memory.s);
    print_work(out, "kernels", n->launches, "launches", (double)n->kernel_bytes, n->kernel_flops);
    print_work(out, "gemms", n->gemms, "calls", (double)n->gemm_bytes, n->gemm_flops);
    if (plan_ranks(s->plan) > 1) coll_counts_print(s->coll, out);
    buf_free(&memory);
}

typedef struct {
    uint64_t ranks, memory, most_memory, launches, gemms, collectives, sends;
    double kernel_bytes, kernel_flops, gemm_bytes, gemm_flops, coll_bytes, sent_bytes;
} Totals;

static void add_up(Totals *t, const StageCounts *s)
{
    const NullCounts *n = dev_null_counts(s->dev);
    const CollCounts *c = s->coll->counts;
    uint64_t k = s->ranks;
    t->ranks += k;
    t->memory += k * s->memory;
    t->most_memory = max_of(t->most_memory, s->memory);
    t->launches += k * n->launches;
    t->gemms += k * n->gemms;
    t->kernel_bytes += (double)(k * n->kernel_bytes);
    t->gemm_bytes += (double)(k * n->gemm_bytes);
    t->kernel_flops += (double)k * n->kernel_flops;
    t->gemm_flops += (double)k * n->gemm_flops;
    t->sends += k * c->sends;
    t->sent_bytes += (double)(k * c->sent_bytes);
    for (uint64_t i = 0; i < s->plan->count[PLAN_COLLS]; i++) {
        t->collectives += k * c->started[i];
        t->coll_bytes += (double)(k * c->started[i] * coll_whole_bytes(s->plan, &s->plan->colls[i]));
    }
}

static void print_totals(FILE *out, const Totals *t)
{
    Buf memory = {0};
    buf_amount(&memory, (double)t->memory, "B");
    buf_puts(&memory, ", at most ");
    buf_amount(&memory, (double)t->most_memory, "B");
    fprintf(out, "in all: %" PRIu64 " ranks, %s a rank; a step:\n", t->ranks, memory.s);
    print_work(out, "kernels", t->launches, "launches", t->kernel_bytes, t->kernel_flops);
    print_work(out, "gemms", t->gemms, "calls", t->gemm_bytes, t->gemm_flops);
    fprintf(out, "  %-8s %10" PRIu64 " started   %15.0f bytes\n", "collect.", t->collectives, t->coll_bytes);
    fprintf(out, "  %-8s %10" PRIu64 " made      %15.0f bytes\n", "sends", t->sends, t->sent_bytes);
    buf_free(&memory);
}

void counts_show(const Plan *p, FILE *out, const char *json_path)
{
    Buf json = {0};
    Totals totals = {0};
    buf_printf(&json, "{\"ranks\": %u, \"stages\": [\n", plan_ranks(p));
    for (uint32_t i = 0; i < p->count[PLAN_STAGES]; i++) {
        Plan stage = plan_stage(p, i);
        StageCounts s = count_stage(&stage);
        if (out) print_stage(out, &s);
        json_stage(&json, &s);
        add_up(&totals, &s);
        stage_close(&s);
    }
    if (out && totals.ranks > 1) print_totals(out, &totals);
    buf_puts(&json, "\n]}\n");
    if (json_path && !write_file_atomic(json_path, json.s, json.n)) fatal("cannot write '%s':", json_path);
    buf_free(&json);
}
