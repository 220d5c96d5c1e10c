// coll_counts.c: what a rank has communicated, as a table.
//
// Bytes of a collective are those of its whole tensors: reduced, or [outer][k][inner]. "received" is what reaches this
// rank from others with every share sent once: (k-1)/k of that, all-reduce twice. Equal rows (group, kind, why) are
// one.
#include "coll_reduce.h"

void coll_counts_open(Coll *c)
{
    c->counts = xcalloc(1, sizeof *c->counts);
    c->counts->started = xcalloc(c->plan->count[PLAN_COLLS] + 1, sizeof(uint64_t));
}

void coll_counts_close(Coll *c)
{
    free(c->counts->started);
    free(c->counts);
}

// "cp x dp", "tp of stages 0,3"
void coll_group_name(const Plan *p, const PlanGroup *g, Buf *b)
{
    static const struct {
        uint32_t bits;
        const char *name;
    } names[] = {
        {MESH_TP, "tp"}, {MESH_GROUP, "group"}, {MESH_KV, "kv"}, {MESH_CP, "cp"}, {MESH_PP, "pp"}, {MESH_DP, "dp"},
    };
    buf_puts(b, "");
    uint32_t left = g->mesh, single = 0;  // factors of one rank: tp is then the other one
    for (uint32_t f = MESH_AT_GROUP; f <= MESH_AT_KV; f++)
        if (p->info->mesh[f] == 1) single |= 1u << f;
    if (left & MESH_TP) left |= single;
    for (size_t i = 0; i < countof(names); i++) {
        if ((left & names[i].bits) != names[i].bits) continue;
        left &= ~names[i].bits;
        buf_printf(b, "%s%s", b->n ? " x " : "", names[i].name);
    }
    if (!b->n) buf_puts(b, "one rank");
    uint32_t stages = p->info->mesh[MESH_AT_PP];
    uint64_t all = stages < 64 ? (UINT64_C(1) << stages) - 1 : UINT64_MAX;
    if (!(g->mesh & MESH_PP) || (g->stages & all) == all) return;
    const char *before = " of stages ";
    for (uint32_t s = 0; s < 64; s++) {
        if (!(g->stages >> s & 1)) continue;
        buf_printf(b, "%s%u", before, s);
        before = ",";
    }
}

static bool same_row(const PlanColl *a, const PlanColl *b)
{
    return a->group == b->group && a->kind == b->kind && a->why == b->why;
}

static void print_row(const char *name, const char *kind, uint64_t n, double bytes, double received, const char *why,
                      FILE *out)
{
    Buf whole = {0}, got = {0};
    buf_amount(&whole, bytes, "B");
    buf_amount(&got, received, "B");
    fprintf(out, "%-24s %-14s %10llu %12s %12s  %s\n", name, kind, (unsigned long long)n, whole.s, got.s, why);
    buf_free(&whole);
    buf_free(&got);
}

// Adds the rows that equal collective i; false if an earlier one has done so.
static bool print_colls_like(const Coll *c, uint64_t i, FILE *out)
{
    static const char *const kinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
    const Plan *p = c->plan;
    const PlanColl *what = &p->colls[i];
    for (uint64_t j = 0; j < i; j++)
        if (same_row(&p->colls[j], what)) return false;
    uint64_t n = 0;
    double bytes = 0;
    for (uint64_t j = i; j < p->count[PLAN_COLLS]; j++) {
        if (!same_row(&p->colls[j], what)) continue;
        n += c->counts->started[j];
        bytes += (double)c->counts->started[j] * (double)coll_whole_bytes(p, &p->colls[j]);
    }
    if (!n) return false;
    const PlanGroup *g = &p->groups[what->group];
    double received = bytes * (g->size - 1) / g->size * (what->kind == COLL_ALL_REDUCE ? 2 : 1);
    Buf name = {0};
    coll_group_name(p, g, &name);
    buf_printf(&name, " (%u)", g->size);
    print_row(name.s, kinds[what->kind], n, bytes, received, plan_str(p, what->why), out);
    buf_free(&name);
    return true;
}

void coll_counts_print(const Coll *c, FILE *out)
{
    const CollCounts *n = c->counts;
    fprintf(out, "%-24s %-14s %10s %12s %12s  %s\n", "group (ranks)", "kind", "operations", "bytes", "received", "why");
    for (uint64_t i = 0; i < c->plan->count[PLAN_COLLS]; i++) print_colls_like(c, i, out);
    if (n->sends) print_row("stages", "send", n->sends, (double)n->sent_bytes, 0, "", out);
    if (n->posts) print_row("stages", "receive", n->posts, (double)n->posted_bytes, (double)n->posted_bytes, "", out);
}
