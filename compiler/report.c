// report.c: what a compiled step costs, as text and as JSON: parameters, FLOPs, memory by arena and by what it is for,
// launches and bytes by segment, the most expensive kernels, the schedule. One table of numbers is collected first;
// both forms print that table. FLOPs: 2 a multiply-add of contractions and attention, causal attention counted at
// half its square, nothing made again, forward + backward of the whole step (all micro-batches).
#include "pico.h"
#include <cjson/cJSON.h>
#include <math.h>

enum { USE_WEIGHTS, USE_COPIES, USE_GRADIENTS, USE_OPTIMIZER, USE_TABLES, USE_OTHER, USES };
static const char *const use_names[USES] = {"weights", "copies of weights", "gradients", "optimizer", "tables", "inputs, outputs"};
static const char *const class_names[CLASS_COUNT] = {"persistent", "work", "saved", "saved to W", "B to W",
                                                     "received", "recv. back", "sent", "sent back"};

typedef struct { uint32_t launches, gemms, attentions; uint64_t bytes, flops; } SegmentCost;
typedef struct {
    uint64_t parameters, parameter_tensors, use[USES], total;
    double flops;
    SegmentCost seg[SEG_COUNT];
    uint32_t launches;
} Costs;

static double product_of_axes(const Graph *g, const Node *a, const Node *b)
{
    double n = 1;
    for (int i = 0; i < a->naxes; i++) n *= (double)extent_of(g, a->axes[i]);
    for (int i = 0; i < b->naxes; i++)
        if (!has_axis(a, b->axes[i])) n *= (double)extent_of(g, b->axes[i]);
    return n;
}

double node_flops(const Graph *g, Val v)
{
    const Node *x = &g->nodes[v];
    if (x->kind == K_CONTRACT) return 2 * product_of_axes(g, &g->nodes[x->in[0]], &g->nodes[x->in[1]]);
    if (x->kind != K_ATTENTION && x->kind != K_ATTENTION_GRAD) return 0;
    const Node *q = &g->nodes[x->in[0]];
    double n = (double)extent_of(g, x->u.attention->seq);  // keys; causal: half of them
    for (int i = 0; i < q->naxes; i++) n *= (double)extent_of(g, q->axes[i]);
    return x->kind == K_ATTENTION ? 2 * n : 4 * n;  // 2 products forward, 4 backward
}

static int use_of(const Graph *g, const Buffer *b)
{
    const Node *x = &g->nodes[b->val];
    if (x->kind == K_PARAM) return USE_WEIGHTS;
    if (x->kind == K_STATE) return USE_OPTIMIZER;
    if (x->kind == K_TOTAL) return g->accs[x->u.id].param >= 0 ? USE_GRADIENTS : USE_OTHER;
    if (x->nin && x->seg == AT_INIT) return USE_TABLES;
    return x->nin && x->seg == AT_PREP ? USE_COPIES : USE_OTHER;
}

// All chunks and slots.
static uint64_t class_bytes(const Graph *g, PlanClass class_)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < vec_len(g->arenas); i++)
        if (g->arenas[i].class_ == class_) bytes += g->arenas[i].bytes * g->arenas[i].slots;
    return bytes;
}

static uint32_t class_slots(const Graph *g, PlanClass class_)
{
    uint32_t slots = 0;
    for (size_t i = 0; i < vec_len(g->arenas); i++)
        if (g->arenas[i].class_ == class_) slots = max_of(slots, g->arenas[i].slots);
    return slots;
}

// What is laid out end to end is its own lower bound.
static uint64_t class_bound(const Graph *g, int class_)
{
    return class_ == CLASS_WORK ? g->work_bound : class_bytes(g, (PlanClass)class_);
}

// Persistent, saved and work are always shown.
static bool is_shown(const Graph *g, int class_) { return class_ <= CLASS_FB || class_slots(g, (PlanClass)class_) > 0; }

static Costs collect(const Graph *g)
{
    Costs c = {0};
    for (size_t i = 0; i < vec_len(g->params); i++) {
        uint64_t n = 1;
        for (int d = 0; d < g->params[i].ndim; d++) n *= (uint64_t)g->params[i].dims[d];
        c.parameters += n;
        c.parameter_tensors++;
    }
    for (size_t i = 0; i < vec_len(g->buffers); i++)
        if (g->buffers[i].arena == ARENA_PERSIST) c.use[use_of(g, &g->buffers[i])] += g->buffers[i].bytes;
    for (int a = 0; a < CLASS_COUNT; a++) c.total += class_bytes(g, (PlanClass)a);
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        SegmentCost *s = &c.seg[seg_id(group->seg)];
        if (group->kind == G_WAIT) continue;
        s->launches++;
        s->gemms += group->kind == G_GEMM;
        s->attentions += group->kind == G_ATTENTION || group->kind == G_ATTENTION_GRAD;
        s->bytes += group->bytes;
        s->flops += group->flops;
    }
    for (int s = SEG_PREP; s < SEG_COUNT; s++)
        c.launches += c.seg[s].launches * (s >= SEG_F && s <= SEG_W ? (uint32_t)g->accum : 1);
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->group_of[v] && !g->nodes[v].again) c.flops += node_flops(g, v);
    c.flops *= (double)g->accum;
    return c;
}

// ---- text
static const char *readable(double v, const char *unit, char text[32])
{
    Buf b = {0};
    buf_amount(&b, v, unit);
    snprintf(text, 32, "%s", b.s);
    buf_free(&b);
    return text;
}

static void memory_text(const Graph *g, const Costs *c, FILE *out)
{
    char a[32], b[32];
    fprintf(out, "memory      %s of tensors (%llu bytes), and %s of scratch for each thread\n",
            readable((double)c->total, "B", a), (unsigned long long)c->total, readable((double)g->scratch_bytes, "B", b));
    static const int sequence[CLASS_COUNT] = {CLASS_PERSIST, CLASS_FB, CLASS_FW, CLASS_BW, CLASS_RF, CLASS_RB,
                                              CLASS_SF, CLASS_SB, CLASS_WORK};
    for (int k = 0; k < CLASS_COUNT; k++) {
        int i = sequence[k];
        if (!is_shown(g, i)) continue;
        fprintf(out, "  %-10s %10s", class_names[i], readable((double)class_bytes(g, (PlanClass)i), "B", a));
        if (i != CLASS_PERSIST) fprintf(out, "   least possible %s", readable((double)class_bound(g, i), "B", b));
        if (class_slots(g, (PlanClass)i) > 1) fprintf(out, ", in up to %u slots", class_slots(g, (PlanClass)i));
        for (int u = 0; i == CLASS_PERSIST && u < USES; u++)
            if (c->use[u]) fprintf(out, "%s%s %s", u ? ", " : "   ", use_names[u], readable((double)c->use[u], "B", a));
        fprintf(out, "\n");
    }
}

static void segments_text(const Graph *g, const Costs *c, FILE *out)
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
    fprintf(out, "kernels     %zu distinct, %u launches a step\n", vec_len(g->kernels), c->launches);
}

static void schedule_text(const Program *prog, const Graph *g, FILE *out)
{
    const Task *tasks = prog->tasks[g->stage];
    fprintf(out, "schedule    stage %d:", g->stage);
    for (size_t i = 0; i < min_of(vec_len(tasks), 32); i++) {
        fprintf(out, " %c", "FBW"[tasks[i].work]);
        if (g->nchunks > 1) fprintf(out, "%u.", tasks[i].chunk);
        fprintf(out, "%u", tasks[i].micro_batch);
    }
    fprintf(out, "%s U%s\n", vec_len(tasks) > 32 ? " ..." : "", prog->nstages == 1 ? "    bubble 0" : "");
}

static void collectives_text(const Graph *g, FILE *out)
{
    static const char *const kinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
    if (!vec_len(g->colls)) fprintf(out, "collectives none%s\n", g->nstages == 1 ? " (one rank)" : "");
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        if (group->kind != G_START) continue;
        const struct Coll *c = &g->colls[group->coll];
        char a[32];
        fprintf(out, "collective  %-6s %-14s of %zu value%s, %s over %lld ranks: %s%s\n", plan_segment_name(seg_id(group->seg)),
                kinds[c->how], vec_len(c->parts), vec_len(c->parts) == 1 ? "" : "s", readable((double)group->bytes, "B", a),
                (long long)key_ranks(g, c->key), c->why, group->last ? ", last micro-batch" : "");
    }
}

static void report_text(const Program *prog, const Graph *g, const Costs *c, FILE *out)
{
    char a[32];
    int64_t tokens = g->seq * g->micro_batch * g->accum;
    fprintf(out, "model       %s, %s, %llu parameters in %llu tensors\n", g->model, dtype_name(g->dtype),
            (unsigned long long)c->parameters, (unsigned long long)c->parameter_tensors);
    fprintf(out, "step        %lld tokens: %lld sample%s of %lld in %s%lld micro-batch%s\n", (long long)tokens,
            (long long)g->micro_batch, g->micro_batch == 1 ? "" : "s", (long long)g->seq, g->accum == 1 ? "" : "each of ",
            (long long)g->accum, g->accum == 1 ? "" : "es");
    fprintf(out, "FLOPs       %s a step", readable(c->flops, "", a));
    fprintf(out, ", %s a token (2 a multiply-add; contractions and attention, forward and backward)\n",
            readable(c->flops / (double)tokens, "", a));
    memory_text(g, c, out);
    segments_text(g, c, out);
    schedule_text(prog, g, out);
    collectives_text(g, out);
}

// ---- JSON
static void add(cJSON *object, const char *key, double v) { cJSON_AddNumberToObject(object, key, v); }

static cJSON *kernels_json(const Graph *g)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < vec_len(g->kernels); i++) {
        cJSON *k = cJSON_CreateObject();
        cJSON_AddStringToObject(k, "name", g->kernels[i].name);
        cJSON_AddStringToObject(k, "ops", g->kernels[i].label);
        add(k, "bytes", (double)g->kernels[i].bytes);
        uint32_t calls = 0;
        for (size_t n = 0; n < vec_len(g->groups); n++) calls += has_kernel(&g->groups[n]) && g->groups[n].kernel == i;
        add(k, "calls", calls);
        cJSON_AddItemToArray(list, k);
    }
    return list;
}

static cJSON *stage_json(const Graph *g, const Costs *c)
{
    cJSON *top = cJSON_CreateObject(), *memory = cJSON_CreateObject(), *segments = cJSON_CreateObject();
    cJSON_AddStringToObject(top, "model", g->model);
    cJSON_AddStringToObject(top, "dtype", dtype_name(g->dtype));
    add(top, "parameters", (double)c->parameters);
    add(top, "tokens_per_step", (double)(g->seq * g->micro_batch * g->accum));
    add(top, "flops_per_step", c->flops);
    cJSON_AddStringToObject(top, "flops_convention", "2 a multiply-add; contractions and causal attention at half its square; nothing made again");
    add(memory, "total", (double)c->total);
    add(memory, "scratch_per_thread", (double)g->scratch_bytes);
    for (int a = 0; a < CLASS_COUNT; a++) {
        if (!is_shown(g, a)) continue;
        cJSON *arena = cJSON_AddObjectToObject(memory, class_names[a]);
        add(arena, "bytes", (double)class_bytes(g, (PlanClass)a));
        add(arena, "slots", max_of(class_slots(g, (PlanClass)a), 1));
        if (a != CLASS_PERSIST) add(arena, "least_possible", (double)class_bound(g, a));
        for (int u = 0; a == CLASS_PERSIST && u < USES; u++) add(arena, use_names[u], (double)c->use[u]);
    }
    cJSON_AddItemToObject(top, "memory", memory);
    for (int s = 0; s < SEG_COUNT; s++) {
        cJSON *k = cJSON_AddObjectToObject(segments, plan_segment_name((SegmentId)s));
        add(k, "launches", c->seg[s].launches), add(k, "gemms", c->seg[s].gemms), add(k, "bytes", (double)c->seg[s].bytes);
        add(k, "flops", (double)c->seg[s].flops);
    }
    cJSON_AddItemToObject(top, "segments", segments);
    add(top, "launches_per_step", c->launches);
    cJSON_AddItemToObject(top, "kernels", kernels_json(g));
    cJSON_AddItemToObject(top, "collectives", cJSON_CreateArray());
    return top;
}

static void report_json(const Program *prog, const char *path)
{
    cJSON *top = NULL, *stages = NULL;
    for (int s = 0; s < prog->nstages; s++) {
        Costs c = collect(prog->stages[s]);
        cJSON *stage = stage_json(prog->stages[s], &c);
        if (prog->nstages == 1) top = stage;
        else {
            if (!top) top = cJSON_CreateObject(), stages = cJSON_AddArrayToObject(top, "stages");
            cJSON_AddItemToArray(stages, stage);
        }
    }
    if (prog->nstages == 1) add(top, "bubble", 0);
    char *text = cJSON_Print(top);
    Buf b = {0};
    buf_printf(&b, "%s\n", text);
    if (!write_file_atomic(path, b.s, b.n)) fatal("--report=%s:", path);
    buf_free(&b);
    cJSON_free(text);
    cJSON_Delete(top);
}

void report(const Program *prog, FILE *text, const char *json_path)
{
    if (json_path) {
        report_json(prog, json_path);
        return;
    }
    for (int s = 0; s < prog->nstages; s++) {
        Costs c = collect(prog->stages[s]);
        if (prog->nstages > 1) fprintf(text, "%s-- stage %d\n", s ? "\n" : "", s);
        report_text(prog, prog->stages[s], &c, text);
    }
}
