// report.c: what a compiled step costs, as text and as JSON: parameters, FLOPs, memory by arena and by what it is for,
// launches and bytes by segment, the most expensive kernels, the schedule. One table of numbers is collected first;
// both forms print that table. FLOPs: 2 a multiply-add of contractions and attention, causal attention counted at
// half its square, nothing made again, forward + backward of the whole step (all micro-batches).
#include "pico.h"
#include <cjson/cJSON.h>
#include <math.h>

enum { USE_WEIGHTS, USE_COPIES, USE_GRADIENTS, USE_OPTIMIZER, USE_TABLES, USE_OTHER, USES };
static const char *const use_names[USES] = {"weights", "copies of weights", "gradients", "optimizer", "tables", "inputs, outputs"};
static const char *const arena_names[ARENA_COUNT] = {"persistent", "saved", "work"};

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
    if (x->nin && x->seg == SEG_INIT) return USE_TABLES;
    return x->nin && x->seg == SEG_PREP ? USE_COPIES : USE_OTHER;
}

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
    for (int a = 0; a < ARENA_COUNT; a++) c.total += g->arena_bytes[a];
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        SegmentCost *s = &c.seg[group->seg];
        s->launches++;
        s->gemms += group->kind == G_GEMM;
        s->attentions += group->kind == G_ATTENTION || group->kind == G_ATTENTION_GRAD;
        s->bytes += group->bytes;
        s->flops += group->flops;
    }
    for (int s = SEG_PREP; s < SEG_COUNT; s++)
        c.launches += c.seg[s].launches * (s == SEG_F || s == SEG_B ? (uint32_t)g->accum : 1);
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->group_of[v] && !(g->nodes[v].backward && g->nodes[v].seg == SEG_B && g->nodes[v].again)) c.flops += node_flops(g, v);
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
    for (int i = 0; i < ARENA_COUNT; i++) {
        fprintf(out, "  %-10s %10s", arena_names[i], readable((double)g->arena_bytes[i], "B", a));
        if (i != ARENA_PERSIST) fprintf(out, "   least possible %s", readable((double)g->live_bound[i], "B", b));
        for (int u = 0; i == ARENA_PERSIST && u < USES; u++)
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
                s == SEG_F || s == SEG_B ? "  each micro-batch" : s == SEG_INIT ? "  once" : "  each step");
    }
    fprintf(out, "kernels     %zu distinct, %u launches a step\n", vec_len(g->kernels), c->launches);
}

static void schedule_text(const Graph *g, FILE *out)
{
    fprintf(out, "schedule    stage 0:");
    for (int64_t i = 0; i < min_of(g->accum, 16); i++) fprintf(out, " F%lld B%lld", (long long)i, (long long)i);
    fprintf(out, "%s U    bubble 0\n", g->accum > 16 ? " ..." : "");
    fprintf(out, "collectives none (one rank)\n");
}

static void report_text(const Graph *g, const Costs *c, FILE *out)
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
    schedule_text(g, out);
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
        for (size_t n = 0; n < vec_len(g->groups); n++) calls += g->groups[n].kind != G_GEMM && g->groups[n].kernel == i;
        add(k, "calls", calls);
        cJSON_AddItemToArray(list, k);
    }
    return list;
}

static void report_json(const Graph *g, const Costs *c, const char *path)
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
    for (int a = 0; a < ARENA_COUNT; a++) {
        cJSON *arena = cJSON_AddObjectToObject(memory, arena_names[a]);
        add(arena, "bytes", (double)g->arena_bytes[a]);
        add(arena, "slots", 1);
        if (a != ARENA_PERSIST) add(arena, "least_possible", (double)g->live_bound[a]);
        for (int u = 0; a == ARENA_PERSIST && u < USES; u++) add(arena, use_names[u], (double)c->use[u]);
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
    add(top, "bubble", 0);
    char *text = cJSON_Print(top);
    Buf b = {0};
    buf_printf(&b, "%s\n", text);
    if (!write_file_atomic(path, b.s, b.n)) fatal("--report=%s:", path);
    buf_free(&b);
    cJSON_free(text);
    cJSON_Delete(top);
}

void report(const Graph *g, FILE *text, const char *json_path)
{
    Costs c = collect(g);
    if (json_path) report_json(g, &c, json_path);
    else report_text(g, &c, text);
}
