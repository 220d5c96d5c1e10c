// cut.c: the whole graph becomes one graph for each pipeline stage.
//
//   1. layers to model chunks (cut_layers.c); chunk i is chunk i / stages of stage i % stages
//   2. homes of activations and cotangents; what crosses, and over which chunks it is relayed (cut_home.c)
//   3. the update: what stays on its stage, which numbers are exchanged (cut_update.c)
//   4. the stages' graphs (cut_build.c), the order of their work (pipeline.c)
//
// With one stage the graph stays the one it is; only its numbers' all-reduces are batched. The whole graph and its
// arena must outlive the stages: they share names.
#include "cut.h"

static void check_options(int64_t stages, int64_t chunks)
{
    if (stages > 64) usage_error("--pp %lld: at most 64 stages", (long long)stages);
    if (chunks > MAX_CHUNKS) usage_error("--virtual %lld: at most %d chunks a stage", (long long)chunks, MAX_CHUNKS);
    bool interleaved = options.schedule == SCHEDULE_INTERLEAVED;
    if (chunks > 1 && !interleaved) usage_error("--virtual %lld is for --schedule interleaved", (long long)chunks);
    if (interleaved && chunks < 2) usage_error("--schedule interleaved needs --virtual 2 or more");
    if (interleaved && stages < 2) usage_error("--schedule interleaved needs --pp 2 or more");
}

static Cut cut_new(Graph *g, int stages, int chunks)
{
    size_t n = vec_len(g->nodes);
    Cut c = {.g = g, .n = n, .stages = stages, .chunks = chunks, .all = stages == 64 ? UINT64_MAX : (1ull << stages) - 1};
    c.words = ((size_t)chunks + 63) / 64;
    c.live = xcalloc(n, 1), c.where = xcalloc(n, 1), c.backward = xcalloc(n, 1);
    c.home = xcalloc(n, sizeof *c.home), c.flat = xcalloc(n, sizeof *c.flat), c.joint = xcalloc(n, sizeof *c.joint);
    c.need = xcalloc(n * c.words, sizeof *c.need);
    c.early = xcalloc(n, sizeof *c.early), c.late = xcalloc(n, sizeof *c.late), c.raw = xcalloc(n, sizeof *c.raw);
    c.mask = xcalloc(n, sizeof *c.mask), c.made = xcalloc(n, sizeof *c.made);
    c.param_stages = xcalloc(vec_len(g->params) + 1, sizeof *c.param_stages);
    c.acc_stages = xcalloc(vec_len(g->accs) + 1, sizeof *c.acc_stages);
    graph_mark_live(g, c.live);
    return c;
}

static void cut_free(Cut *c)
{
    free(c->live), free(c->where), free(c->backward), free(c->home), free(c->flat), free(c->joint), free(c->need);
    free(c->early), free(c->late), free(c->raw), free(c->mask), free(c->made), free(c->param_stages), free(c->acc_stages);
    free(c->chunk_of_layer);
    vec_free(c->hops);
}

static Val visit_joint(Graph *g, void *ctx, const Node *node, Val old)
{
    const Joint *j = &((const Cut *)ctx)->joint[old];
    if (!j->on || j->dropped) return 0;
    Reshard r = joint_reshard(j, node);
    return make_reshard(g, j->fold ? node->in[0] : graph_copy(g, node), &r);
}

static void keep_whole(Cut *c)
{
    bool joined = false;
    for (Val v = 1; v < c->n; v++) joined |= c->joint[v].on;
    if (joined) graph_rewrite(c->g, visit_joint, c);
    for (size_t p = 0; p < vec_len(c->g->params); p++) c->g->params[p].owner = true, c->g->params[p].number = (uint32_t)p;
}

Program *cut(Graph *g)
{
    int64_t stages = max_of(options.pp, 1), chunks = max_of(options.virtual_chunks, 1);
    check_options(stages, chunks);
    g->mesh.size[MESH_AT_PP] = (uint32_t)stages;
    Cut c = cut_new(g, (int)stages, (int)(stages * chunks));
    cut_layers(&c);
    cut_homes(&c);
    cut_update(&c);
    Program *prog = xcalloc(1, sizeof *prog);
    prog->nstages = c.stages;
    prog->shape = (PipelineShape){options.schedule, c.stages, c.chunks / c.stages, (int)g->accum};
    prog->stages = xcalloc((size_t)c.stages, sizeof *prog->stages);
    prog->crossings = xcalloc((size_t)c.stages, sizeof *prog->crossings);
    prog->schedules = xcalloc((size_t)c.stages, sizeof *prog->schedules);
    prog->tasks = pipeline_tasks(&prog->shape);
    if (c.stages == 1) keep_whole(&c), prog->stages[0] = g;
    else for (int s = 0; s < c.stages; s++) prog->stages[s] = cut_stage(&c, s);
    cut_free(&c);
    return prog;
}
