// report_text.c: the numbers of report.h for people: the model and its ranks, a line a stage, then each stage in full.
//
// With one rank there is one stage, and nothing is said about ranks.
#include "report.h"

static const char *const class_names[CLASS_COUNT] = {"persistent", "work", "saved", "saved to W", "B to W",
                                                     "received", "recv. back", "sent", "sent back"};

static const char *readable(double v, const char *unit, char text[32])
{
    Buf b = {0};
    buf_amount(&b, v, unit);
    snprintf(text, 32, "%s", b.s);
    buf_free(&b);
    return text;
}

// ---- a stage's memory
// "1.04 MB x 2 slots", for each chunk where there are several.
static void slots_text(const Graph *g, PlanClass class_, FILE *out)
{
    const char *before = " = ";
    char a[32];
    for (size_t i = 0; i < vec_len(g->arenas); i++) {
        const PlanArena *x = &g->arenas[i];
        if (x->class_ != class_ || (x->slots == 1 && g->nchunks == 1)) continue;
        fprintf(out, "%s%s x %u slot%s", before, readable((double)x->bytes, "B", a), x->slots, x->slots == 1 ? "" : "s");
        if (g->nchunks > 1) fprintf(out, " (chunk %u)", x->chunk);
        before = " + ";
    }
}

// Of a micro-batch, by layer; equal layers in a row once.
static void saved_text(const StageCosts *c, FILE *out)
{
    int n = c->g->nlayers;
    char a[32];
    const char *before = "";
    uint64_t others = c->saved[0] + c->saved[n + 1];
    if (!class_bytes(c->g, CLASS_FB) && !class_bytes(c->g, CLASS_FW)) return;
    fprintf(out, "  a micro-batch leaves for backward: ");
    for (int i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && c->saved[end + 1] == c->saved[i + 1]; end++) ;
        if (!c->saved[i + 1]) continue;
        fprintf(out, end - i > 1 ? "%slayers %d..%d %s each" : "%slayer %d%.0d %s", before, i, end - i > 1 ? end - 1 : 0,
                readable((double)c->saved[i + 1], "B", a));
        before = ", ";
    }
    if (others) fprintf(out, "%soutside the layers %s", before, readable((double)others, "B", a));
    fprintf(out, "\n");
}

static void memory_text(const StageCosts *c, FILE *out)
{
    const Graph *g = c->g;
    char a[32], b[32];
    fprintf(out, "memory      %s of tensors (%llu bytes)%s, and %s of scratch for each thread\n",
            readable((double)c->total, "B", a), (unsigned long long)c->total, g->nstages > 1 ? " on each rank" : "",
            readable((double)g->scratch_bytes, "B", b));
    static const int sequence[CLASS_COUNT] = {CLASS_PERSIST, CLASS_FB, CLASS_FW, CLASS_BW, CLASS_RF, CLASS_RB,
                                              CLASS_SF, CLASS_SB, CLASS_WORK};
    for (int k = 0; k < CLASS_COUNT; k++) {
        int i = sequence[k];
        if (!class_is_used(g, i)) continue;
        fprintf(out, "  %-10s %10s", class_names[i], readable((double)class_bytes(g, (PlanClass)i), "B", a));
        if (i == CLASS_WORK || (i == CLASS_FB && g->nstages == 1))
            fprintf(out, "   least possible %s", readable((double)class_least(g, i), "B", b));
        if (i > CLASS_WORK) slots_text(g, (PlanClass)i, out);
        for (int u = 0; i == CLASS_PERSIST && u < USES; u++)
            if (c->use[u]) fprintf(out, "%s%s %s", u ? ", " : "   ", use_names[u], readable((double)c->use[u], "B", a));
        fprintf(out, "\n");
    }
    saved_text(c, out);
}

static void segments_text(const StageCosts *c, FILE *out)
{
    char a[32], b[32];
    fprintf(out, "%-11s %8s %8s %10s %12s %12s\n", "segment", "launches", "GEMMs", "attention", "bytes", "FLOPs");
    for (int s = 0; s < SEG_COUNT; s++) {
        const SegmentCost *k = &c->seg[s];
        if (!k->launches) continue;
        fprintf(out, "  %-9s %8u %8u %10u %12s %12s%s\n", plan_segment_name((SegmentId)s), k->launches, k->gemms,
                k->attentions, readable((double)k->bytes, "B", a), readable((double)k->flops, "", b),
                s >= SEG_F && s <= SEG_W ? "  each micro-batch" : s == SEG_INIT ? "  once" : "  each step");
    }
    fprintf(out, "kernels     %zu distinct, %u launches a step\n", vec_len(c->g->kernels), c->launches);
}

// ---- what a stage communicates
static const char *kind_name(PlanCollKind how)
{
    static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather"};
    return names[how];
}

static void group_text(const Graph *g, CommKey key, char text[48])
{
    Buf b = {0};
    comm_group_name(g, key, &b);
    snprintf(text, 48, "%s (%lld)", b.s, (long long)key_ranks(g, key));
    buf_free(&b);
}

static void collectives_text(const StageCosts *c, FILE *out)
{
    const Graph *g = c->g;
    if (!vec_len(c->comm)) fprintf(out, "collectives none%s\n", g->nstages == 1 ? " (one rank)" : "");
    else
        fprintf(out, "%-18s %-14s %-8s %11s %6s %9s %12s  why\n", "collectives", "", "for", "micro-batch", "step", "of",
                "bytes a step");
    for (size_t i = 0; i < vec_len(c->comm); i++) {
        const CommRow *r = &c->comm[i];
        char group[48], a[32], b[32], times[24] = "-";
        group_text(g, r->key, group);
        if (r->per_micro_batch) snprintf(times, sizeof times, "%llu", (unsigned long long)r->per_micro_batch);
        fprintf(out, "  %-16s %-14s %-8s %11s %6llu %9s %12s  %s\n", group, kind_name(r->how), phase_names[r->phase], times,
                (unsigned long long)r->step, readable((double)r->bytes, "B", a), readable((double)(r->step * r->bytes), "B", b),
                r->why);
    }
}

static void transfers_text(const Graph *g, FILE *out)
{
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        char a[32], b[32];
        double bytes = (double)transfer_bytes(g, t);
        fprintf(out, "%-11s %-8s stage %u, %s%s each micro-batch, %s a step: %s\n", i ? "" : "transfers",
                t->send ? "to" : "from", t->peer, t->backward ? "a gradient, " : "", readable(bytes, "B", a),
                readable(bytes * (double)g->accum, "B", b), g->buffers[g->buffer_of[t->val] - 1].name);
    }
}

static void buckets_text(const Graph *g, FILE *out)
{
    for (size_t i = 0; i < vec_len(g->buckets); i++) {
        const struct Bucket *b = &g->buckets[i];
        const Group *start = bucket_start(g, b);
        char group[48], a[32];
        size_t n = vec_len(b->accs);
        group_text(g, b->key, group);
        fprintf(out, "%-11s %s of %zu gradient%s, %s over %s: %s", i ? "" : "buckets",
                start ? kind_name(g->colls[start->coll].how) : "left out", n, n == 1 ? "" : "s",
                readable((double)b->bytes, "B", a), group, g->accs[b->accs[0]].name);
        if (n > 1) fprintf(out, " .. %s", g->accs[b->accs[n - 1]].name);
        if (start) fprintf(out, "; begins in %s%s", plan_segment_name(seg_id(start->seg)), start->last ? " of the last micro-batch" : "");
        fprintf(out, "\n");
    }
}

// ---- all stages
static void ranks_text(const Costs *c, FILE *out)
{
    const Graph *g = c->prog->stages[0];
    const uint32_t *m = g->mesh.size;
    uint32_t tp = mesh_size(m, MESH_TP);
    if (c->ranks == 1) return;
    fprintf(out, "ranks       %lld = tp %u", (long long)c->ranks, tp);
    if (m[MESH_AT_KV] > 1 && m[MESH_AT_GROUP] > 1) fprintf(out, " (kv %u x group %u)", m[MESH_AT_KV], m[MESH_AT_GROUP]);
    fprintf(out, " x pp %u x dp %u; tp changes fastest, then pp", m[MESH_AT_PP], m[MESH_AT_DP]);
    if (tp > 1) fprintf(out, "; %s sequence parallel", g->mesh.sp ? "with" : "without");
    if (options.zero) fprintf(out, "; optimizer states are split (zero %lld)", (long long)options.zero);
    fprintf(out, "\n");
}

// Which axes tensor parallelism splits, and how much of the weights it leaves whole on each rank.
static void split_text(const Costs *c, FILE *out)
{
    Buf axes = {0};
    const char **named = NULL;
    uint64_t all = 0, whole = 0;
    for (int s = 0; s < c->prog->nstages; s++) {
        const Graph *g = c->prog->stages[s];
        if (mesh_size(g->mesh.size, MESH_TP) == 1) return;
        for (size_t i = 0; i < vec_len(g->params); i++) {
            const Node *n = &g->nodes[g->params[i].val];
            uint32_t split = 0;
            for (int k = 0; k < n->naxes; k++) {
                uint32_t mesh = g->param_axes[i].axis[k].mesh;
                split |= mesh;
                bool known = !mesh;
                for (size_t m = 0; m < vec_len(named); m++) known |= named[m] == axis_name(g, n->axes[k]);
                if (known) continue;
                vec_push(named, axis_name(g, n->axes[k]));
                buf_printf(&axes, "%s%s", axes.n ? ", " : "", axis_name(g, n->axes[k]));
            }
            all += (uint64_t)elements(g, g->params[i].val);
            if (!split) whole += (uint64_t)elements(g, g->params[i].val);
        }
    }
    fprintf(out, "tp splits   %s; %.1f %% of a rank's parameters are whole on all ranks of tp\n", axes.n ? axes.s : "nothing",
            all ? 100.0 * (double)whole / (double)all : 0);
    vec_free(named);
    buf_free(&axes);
}

static void schedule_text(const Costs *c, FILE *out)
{
    const Program *prog = c->prog;
    if (prog->nstages == 1) {
        fprintf(out, "schedule    stage 0:");
        for (size_t i = 0; i < min_of(vec_len(prog->tasks[0]), 32); i++)
            fprintf(out, " %c%u", "FBW"[prog->tasks[0][i].work], prog->tasks[0][i].micro_batch);
        fprintf(out, "%s U    bubble 0\n", vec_len(prog->tasks[0]) > 32 ? " ..." : "");
        return;
    }
    fprintf(out, "schedule    %s", schedule_names[prog->shape.kind]);
    if (prog->shape.chunks > 1) fprintf(out, ", %d chunks a stage", prog->shape.chunks);
    fprintf(out, ": bubble %.1f %% (stages taken as equal, times by FLOPs)\n", 100 * c->bubble);
    Buf b = {0};
    pipeline_draw(&prog->shape, prog->tasks, &c->times, 100, &b);
    fputs(b.s, out);
    buf_free(&b);
}

static void layers_text(const StageCosts *c, Buf *b)
{
    if (c->start) buf_puts(b, "start");
    for (int k = 0; k < c->g->nchunks; k++) {
        if (c->first[k] > c->last[k]) continue;
        buf_printf(b, "%s%d", b->n ? ", " : "", c->first[k]);
        if (c->last[k] > c->first[k]) buf_printf(b, "..%d", c->last[k]);
    }
    if (c->end) buf_printf(b, "%send", b->n ? ", " : "");
    buf_puts(b, "");
}

static void balance_text(const Costs *c, FILE *out)
{
    double most = 0, mean = c->flops / c->prog->nstages;
    fprintf(out, "%-11s %-22s %14s %14s %8s %12s\n", "stage", "layers", "parameters", "FLOPs", "share", "memory");
    for (int s = 0; s < c->prog->nstages; s++) {
        const StageCosts *x = &c->stages[s];
        char a[32], b[32], d[32];
        Buf layers = {0};
        layers_text(x, &layers);
        fprintf(out, "  %-9d %-22s %14s %14s %6.1f %% %12s\n", s, layers.s, readable((double)x->parameters, "", a),
                readable(x->flops, "", b), c->flops > 0 ? 100 * x->flops / c->flops : 0, readable((double)x->total, "B", d));
        most = max_of(most, x->flops);
        buf_free(&layers);
    }
    fprintf(out, "  of one rank, a step; start and end: what comes before and after the layers");
    if (mean > 0 && c->prog->nstages > 1) fprintf(out, "; the heaviest stage has %.3f of the mean", most / mean);
    fprintf(out, "\n");
}

static void totals_text(const Costs *c, FILE *out)
{
    const Graph *g = c->prog->stages[0];
    if (vec_len(c->totals)) fprintf(out, "%-26s %-14s %10s %12s\n", "communication of a step", "", "operations", "bytes");
    for (size_t i = 0; i < vec_len(c->totals); i++) {
        const CommTotal *t = &c->totals[i];
        char group[48], a[32];
        group_text(g, t->key, group);
        fprintf(out, "  %-24s %-14s %10llu %12s\n", group, kind_name(t->how), (unsigned long long)t->count,
                readable((double)t->bytes, "B", a));
    }
    if (vec_len(c->totals)) fprintf(out, "  of one rank of each stage; bytes of the whole tensors\n");
}

static void stage_text(const StageCosts *c, FILE *out)
{
    memory_text(c, out);
    segments_text(c, out);
}

void report_text(const Costs *c, FILE *out)
{
    const Graph *g = c->prog->stages[0];
    char a[32], dp[32] = "";
    fprintf(out, "model       %s, %s, %llu parameters in %llu tensors\n", g->model, dtype_name(g->dtype),
            (unsigned long long)c->parameters, (unsigned long long)c->tensors);
    ranks_text(c, out);
    split_text(c, out);
    if (g->mesh.size[MESH_AT_DP] > 1) snprintf(dp, sizeof dp, " on each of %u dp ranks", g->mesh.size[MESH_AT_DP]);
    fprintf(out, "step        %lld tokens: %lld sample%s of %lld in %s%lld micro-batch%s%s\n", (long long)c->tokens,
            (long long)g->micro_batch, g->micro_batch == 1 ? "" : "s", (long long)g->seq, g->accum == 1 ? "" : "each of ",
            (long long)g->accum, g->accum == 1 ? "" : "es", dp);
    double ranks = (double)c->ranks / c->prog->nstages;
    fprintf(out, "FLOPs       %s a step", readable(c->flops * ranks, "", a));
    fprintf(out, ", %s a token (2 a multiply-add; contractions and attention, forward and backward)\n",
            readable(c->flops * ranks / (double)c->tokens, "", a));
    if (c->ranks == 1) {
        stage_text(&c->stages[0], out);
        schedule_text(c, out);
        collectives_text(&c->stages[0], out);
        return;
    }
    schedule_text(c, out);
    balance_text(c, out);
    totals_text(c, out);
    for (int s = 0; s < c->prog->nstages; s++) {
        if (c->prog->nstages > 1) fprintf(out, "\n-- stage %d\n", s);
        stage_text(&c->stages[s], out);
        collectives_text(&c->stages[s], out);
        transfers_text(c->stages[s].g, out);
        buckets_text(c->stages[s].g, out);
    }
}
