// report.c: what a compiled step costs. All numbers are collected here, once; report_text.c and report_json.c print them.
//
// FLOPs: 2 a multiply-add of contractions and attention, causal attention counted at half its square, nothing made again,
// forward + backward of the whole step (all micro-batches). Bytes and counts are those of one rank of a stage.
#include "report.h"

const char *const use_names[USES] = {"weights", "copies of weights", "gradients", "optimizer", "tables", "inputs, outputs"};
const char *const report_flops_convention =
    "2 a multiply-add; contractions and causal attention at half its square; nothing made again";

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

// ---- memory
static int use_of(const Graph *g, const Buffer *b)
{
    const Node *x = &g->nodes[b->val];
    if (x->kind == K_PARAM) return USE_WEIGHTS;
    if (x->kind == K_STATE) return USE_OPTIMIZER;
    if (x->kind == K_TOTAL) return g->accs[x->u.id].param >= 0 ? USE_GRADIENTS : USE_OTHER;
    if (x->nin && x->seg == AT_INIT) return USE_TABLES;
    return x->nin && x->seg == AT_PREP ? USE_COPIES : USE_OTHER;
}

uint64_t class_bytes(const Graph *g, PlanClass class_)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < vec_len(g->arenas); i++)
        if (g->arenas[i].class_ == class_) bytes += g->arenas[i].bytes * g->arenas[i].slots;
    return bytes;
}

// Persistent, saved and work are always shown.
bool class_is_used(const Graph *g, int class_)
{
    bool used = class_ <= CLASS_FB;
    for (size_t i = 0; i < vec_len(g->arenas); i++) used |= (int)g->arenas[i].class_ == class_;
    return used;
}

// What is laid out end to end is its own lower bound.
uint64_t class_least(const Graph *g, int class_)
{
    return class_ == CLASS_WORK ? g->work_bound : class_bytes(g, (PlanClass)class_);
}

static void add_memory(StageCosts *c)
{
    const Graph *g = c->g;
    c->saved = xcalloc((size_t)g->nlayers + 2, sizeof *c->saved);
    for (size_t i = 0; i < vec_len(g->buffers); i++) {
        const Buffer *b = &g->buffers[i];
        uint32_t class_ = g->arenas[b->arena].class_;
        if (class_ == CLASS_PERSIST) c->use[use_of(g, b)] += b->bytes;
        if (class_ == CLASS_FB || class_ == CLASS_FW) c->saved[g->nodes[b->val].layer + 1] += b->bytes;
    }
    for (int a = 0; a < CLASS_COUNT; a++) c->total += class_bytes(g, (PlanClass)a);
    for (size_t i = 0; i < vec_len(g->params); i++) c->parameters += (uint64_t)elements(g, g->params[i].val);
}

// ---- work
// A chunk has a layer if it has work of it: contractions, attention, tables that are looked up.
static void find_layers(StageCosts *c)
{
    const Graph *g = c->g;
    for (int k = 0; k < MAX_CHUNKS; k++) c->first[k] = g->nlayers, c->last[k] = -1;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        if (!g->group_of[v] || x->backward || (x->kind != K_CONTRACT && x->kind != K_ATTENTION && x->kind != K_GATHER)) continue;
        if (seg_id(x->seg) < SEG_F || seg_id(x->seg) > SEG_W) continue;
        c->start |= x->layer < 0, c->end |= x->layer >= g->nlayers;
        if (x->layer < 0 || x->layer >= g->nlayers) continue;
        int k = seg_chunk(x->seg);
        c->first[k] = min_of(c->first[k], x->layer), c->last[k] = max_of(c->last[k], x->layer);
    }
}

static void add_work(StageCosts *c)
{
    const Graph *g = c->g;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        SegmentCost *s = &c->seg[seg_id(group->seg)];
        if (group->kind == G_START || group->kind == G_WAIT) continue;
        s->launches++;
        s->gemms += group->kind == G_GEMM;
        s->attentions += group->kind == G_ATTENTION || group->kind == G_ATTENTION_GRAD;
        s->bytes += group->bytes;
        s->flops += group->flops;
    }
    for (int s = SEG_PREP; s < SEG_COUNT; s++)
        c->launches += c->seg[s].launches * (s >= SEG_F && s <= SEG_W ? (uint32_t)g->accum : 1);
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->group_of[v] && !g->nodes[v].again) c->flops += node_flops(g, v);
    c->flops *= (double)g->accum;
}

// ---- the whole
static void add_model(Costs *c)
{
    for (int s = 0; s < c->prog->nstages; s++) {
        const Graph *g = c->prog->stages[s];
        for (size_t i = 0; i < vec_len(g->params); i++) {
            uint64_t n = 1;
            for (int d = 0; d < g->params[i].ndim; d++) n *= (uint64_t)g->params[i].dims[d];
            if (!g->params[i].owner) continue;
            c->parameters += n;
            c->tensors++;
        }
        c->flops += c->stages[s].flops;
    }
    const Graph *g = c->prog->stages[0];
    c->ranks = 1;
    for (int f = 0; f < MESH_FACTORS; f++) c->ranks *= g->mesh.size[f];
    c->tokens = g->seq * g->micro_batch * g->accum * g->mesh.size[MESH_AT_DP];
}

// The schedule of equal stages: as if each chunk took the mean of all.
static void add_schedule(Costs *c)
{
    double time[SEG_COUNT] = {0}, chunks = c->prog->nstages * c->prog->shape.chunks;
    for (int s = 0; s < c->prog->nstages; s++)
        for (int i = SEG_F; i <= SEG_W; i++) time[i] += (double)c->stages[s].seg[i].flops / chunks;
    if (!(time[SEG_F] > 0 && time[SEG_B] > 0)) time[SEG_F] = time[SEG_B] = time[SEG_W] = 1;
    c->times = (PipelineTimes){time[SEG_F], time[SEG_B], time[SEG_W], 0};
    c->bubble = pipeline_simulate(&c->prog->shape, c->prog->tasks, &c->times, NULL).bubble;
    if (c->prog->nstages == 1) c->bubble = 0;
}

static Costs collect(const Program *prog)
{
    Costs c = {.prog = prog, .stages = xcalloc((size_t)prog->nstages, sizeof *c.stages)};
    for (int s = 0; s < prog->nstages; s++) {
        StageCosts *stage = &c.stages[s];
        stage->g = prog->stages[s];
        add_memory(stage);
        find_layers(stage);
        add_work(stage);
        stage->comm = comm_rows(stage->g);
    }
    add_model(&c);
    add_schedule(&c);
    c.totals = comm_totals(c.stages, prog->nstages);
    return c;
}

void report(const Program *prog, FILE *text, const char *json_path)
{
    Costs c = collect(prog);
    json_path ? report_json(&c, json_path) : report_text(&c, text);
    for (int s = 0; s < prog->nstages; s++) vec_free(c.stages[s].comm), free(c.stages[s].saved);
    vec_free(c.totals);
    free(c.stages);
}
