// report_comm.c: what a step communicates: collectives with their reason, summed over equal ones; buckets; transfers.
//
// Segments F, B and W run once a micro-batch, what is marked `last` and the other segments once a step. A collective of
// several values is one. Whether it serves forward or backward is read from the nodes: the head and its loss run in B.
#include "report.h"

const char *const coll_names[3] = {"all_reduce", "reduce_scatter", "all_gather"};
const char *const schedule_names[4] = {"afab", "1f1b", "interleaved", "zb"};
const char *const phase_names[PHASES] = {"forward", "backward", "again", "step"};

uint64_t coll_bytes(const Graph *g, const struct Coll *c)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < vec_len(c->parts); i++)
        bytes += c->parts[i].outer * c->parts[i].inner * (uint64_t)dtype_bytes(c->dtype);
    return c->how == COLL_ALL_REDUCE ? bytes : bytes * (uint64_t)key_ranks(g, c->key);
}

// Factors of size 1 don't matter: where only one of its two splits, tp is still called tp.
const char *comm_group_name(const Graph *g, CommKey key, Buf *out)
{
    static const struct { uint32_t bits; const char *name; } names[] = {
        {MESH_TP, "tp"}, {MESH_GROUP, "group"}, {MESH_KV, "kv"}, {MESH_CP, "cp"}, {MESH_PP, "pp"}, {MESH_DP, "dp"}};
    uint32_t left = key.mesh, ones = 0;
    for (int f = 0; f < MESH_FACTORS; f++) ones |= g->mesh.size[f] == 1 ? 1u << f : 0;
    if (left & MESH_TP & ~ones) left |= MESH_TP & ones;
    size_t start = out->n;
    for (size_t i = 0; i < countof(names); i++) {
        if ((left & names[i].bits) != names[i].bits || !(names[i].bits & ~ones)) continue;
        left &= ~names[i].bits;
        buf_printf(out, "%s%s", out->n > start ? " x " : "", names[i].name);
    }
    uint64_t all = g->nstages < 64 ? (UINT64_C(1) << g->nstages) - 1 : UINT64_MAX;
    if (!(key.mesh & MESH_PP) || (key.stages & all) == all) return out->s;
    const char *before = " of stages ";
    for (int s = 0; s < g->nstages; s++) {
        if (!(key.stages >> s & 1)) continue;
        buf_printf(out, "%s%d", before, s);
        before = ",";
    }
    return out->s;
}

// ---- collectives
static Phase phase_of(const Graph *g, const Group *start)
{
    SegmentId id = seg_id(start->seg);
    if (start->last || id < SEG_F || id > SEG_W) return PHASE_STEP;
    Phase phase = PHASE_FORWARD;
    for (size_t i = 0; i < vec_len(start->nodes); i++) {
        const Node *x = &g->nodes[start->nodes[i]];
        phase = max_of(phase, x->again ? PHASE_AGAIN : x->backward ? PHASE_BACKWARD : PHASE_FORWARD);
    }
    return phase;
}

CommRow *comm_rows(const Graph *g)
{
    CommRow *rows = NULL;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->kind != G_START || seg_id(group->seg) == SEG_INIT) continue;
        const struct Coll *c = &g->colls[group->coll];
        CommRow row = {.key = c->key, .how = c->how, .phase = phase_of(g, group), .why = c->why, .bytes = coll_bytes(g, c)};
        size_t k = 0;
        for (; k < vec_len(rows); k++) {
            const CommRow *r = &rows[k];
            if (r->key.mesh == row.key.mesh && r->key.stages == row.key.stages && r->how == row.how && r->phase == row.phase
                && r->bytes == row.bytes && !strcmp(r->why, row.why)) break;
        }
        if (k == vec_len(rows)) vec_push(rows, row);
        uint64_t times = row.phase == PHASE_STEP ? 1 : (uint64_t)g->accum;
        *(row.phase == PHASE_STEP ? &rows[k].once : &rows[k].per_micro_batch) += 1;
        rows[k].step += times;
    }
    return rows;
}

CommTotal *comm_totals(const StageCosts *stages, int n)
{
    CommTotal *totals = NULL;
    for (int s = 0; s < n; s++)
        for (size_t i = 0; i < vec_len(stages[s].comm); i++) {
            const CommRow *row = &stages[s].comm[i];
            size_t k = 0;
            while (k < vec_len(totals) && (totals[k].key.mesh != row->key.mesh || totals[k].key.stages != row->key.stages
                                           || totals[k].how != row->how)) k++;
            if (k == vec_len(totals)) vec_push(totals, (CommTotal){row->key, row->how, 0, 0});
            totals[k].count += row->step, totals[k].bytes += row->step * row->bytes;
        }
    return totals;
}

// ---- buckets, transfers
const Group *bucket_start(const Graph *g, const struct Bucket *b)
{
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->kind != G_START) continue;
        const struct Coll *c = &g->colls[group->coll];
        for (size_t k = 0; k < vec_len(c->parts) && c->how != COLL_ALL_GATHER; k++)
            if (c->parts[k].in == g->accs[b->accs[0]].total) return group;
    }
    return NULL;
}

uint64_t transfer_bytes(const Graph *g, const Transfer *t) { return g->buffers[g->buffer_of[t->val] - 1].bytes; }
