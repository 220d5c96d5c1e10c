// report_json.c: the numbers of report.h as JSON. Keys are stable: names of classes, kinds and groups are those of picorun
// --counts; a group over tensor parallelism is "tp" also where only one of its factors splits.
//
// What is of a step of one rank stands in stages[]; with one rank the only stage's memory and segments stand at the top, too.
#include "report.h"
#include <cjson/cJSON.h>

static const char *const class_names[CLASS_COUNT] = {"persist", "work", "FB", "FW", "BW", "RF", "RB", "SF", "SB"};

static void add(cJSON *object, const char *key, double v) { cJSON_AddNumberToObject(object, key, v); }
static void text(cJSON *object, const char *key, const char *s) { cJSON_AddStringToObject(object, key, s); }

static cJSON *add_item(cJSON *list)
{
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(list, item);
    return item;
}

static void add_group(const Graph *g, cJSON *object, CommKey key)
{
    Buf b = {0};
    text(object, "group", comm_group_name(g, key, &b));
    add(object, "ranks", (double)key_ranks(g, key));
    buf_free(&b);
}

// ---- a stage
static cJSON *kernels_json(const Graph *g)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < vec_len(g->kernels); i++) {
        cJSON *k = add_item(list);
        text(k, "name", g->kernels[i].name);
        text(k, "ops", g->kernels[i].label);
        add(k, "bytes", (double)g->kernels[i].bytes);
        uint32_t calls = 0;
        for (size_t n = 0; n < vec_len(g->groups); n++) calls += has_kernel(&g->groups[n]) && g->groups[n].kernel == i;
        add(k, "calls", calls);
    }
    return list;
}

static cJSON *memory_json(const StageCosts *c)
{
    const Graph *g = c->g;
    cJSON *memory = cJSON_CreateObject();
    add(memory, "total", (double)c->total);
    add(memory, "scratch_per_thread", (double)g->scratch_bytes);
    cJSON *arenas = cJSON_AddArrayToObject(memory, "arenas");
    for (size_t i = 0; i < vec_len(g->arenas); i++) {
        const PlanArena *a = &g->arenas[i];
        cJSON *arena = add_item(arenas);
        text(arena, "class", class_names[a->class_]);
        add(arena, "chunk", a->chunk), add(arena, "slots", a->slots), add(arena, "bytes", (double)a->bytes);
        if (a->class_ == CLASS_WORK) add(arena, "least_possible", (double)g->work_bound);
    }
    cJSON *persist = cJSON_AddObjectToObject(memory, "persist");
    for (int u = 0; u < USES; u++) add(persist, use_names[u], (double)c->use[u]);
    cJSON *saved = cJSON_AddArrayToObject(memory, "saved_per_micro_batch");
    for (int l = -1; l <= g->nlayers; l++) {
        if (!c->saved[l + 1]) continue;
        cJSON *item = add_item(saved);
        add(item, "layer", l), add(item, "bytes", (double)c->saved[l + 1]);
    }
    return memory;
}

static cJSON *segments_json(const StageCosts *c)
{
    cJSON *segments = cJSON_CreateObject();
    for (int s = 0; s < SEG_COUNT; s++) {
        const SegmentCost *k = &c->seg[s];
        cJSON *x = cJSON_AddObjectToObject(segments, plan_segment_name((SegmentId)s));
        add(x, "launches", k->launches), add(x, "gemms", k->gemms), add(x, "bytes", (double)k->bytes);
        add(x, "flops", (double)k->flops);
    }
    return segments;
}

static cJSON *collectives_json(const StageCosts *c)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < vec_len(c->comm); i++) {
        const CommRow *r = &c->comm[i];
        cJSON *x = add_item(list);
        add_group(c->g, x, r->key);
        text(x, "kind", coll_names[r->how]), text(x, "phase", phase_names[r->phase]), text(x, "why", r->why);
        add(x, "bytes_each", (double)r->bytes), add(x, "per_micro_batch", (double)r->per_micro_batch);
        add(x, "per_step", (double)r->step), add(x, "bytes_per_step", (double)(r->step * r->bytes));
    }
    return list;
}

static cJSON *transfers_json(const Graph *g)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        double bytes = (double)transfer_bytes(g, t);
        cJSON *x = add_item(list);
        add(x, "tag", t->tag), add(x, "peer", t->peer), add(x, "chunk", t->chunk);
        cJSON_AddBoolToObject(x, "send", t->send), cJSON_AddBoolToObject(x, "backward", t->backward);
        text(x, "what", g->buffers[g->buffer_of[t->val] - 1].name);
        add(x, "bytes_each", bytes), add(x, "per_step", (double)g->accum);
        add(x, "bytes_per_step", bytes * (double)g->accum);
    }
    return list;
}

static cJSON *buckets_json(const Graph *g)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < vec_len(g->buckets); i++) {
        const struct Bucket *b = &g->buckets[i];
        const Group *start = bucket_start(g, b);
        cJSON *x = add_item(list), *members = cJSON_AddArrayToObject(x, "members");
        for (size_t k = 0; k < vec_len(b->accs); k++)
            cJSON_AddItemToArray(members, cJSON_CreateString(g->accs[b->accs[k]].name));
        add_group(g, x, b->key);
        add(x, "bytes", (double)b->bytes);
        if (!start) continue;
        text(x, "kind", coll_names[g->colls[start->coll].how]);
        text(x, "starts_in", plan_segment_name(seg_id(start->seg)));
        add(x, "chunk", seg_chunk(start->seg));
        cJSON_AddBoolToObject(x, "last_micro_batch", start->last);
    }
    return list;
}

static cJSON *layers_json(const StageCosts *c)
{
    cJSON *list = cJSON_CreateArray();
    for (int k = 0; k < c->g->nchunks; k++) {
        cJSON *x = add_item(list);
        add(x, "chunk", k);
        if (c->first[k] <= c->last[k]) add(x, "first", c->first[k]), add(x, "last", c->last[k]);
    }
    return list;
}

static void stage_json(const Costs *all, const StageCosts *c, cJSON *x)
{
    add(x, "stage", c->g->stage);
    cJSON_AddItemToObject(x, "layers", layers_json(c));
    add(x, "parameters", (double)c->parameters);
    add(x, "flops_per_step", c->flops);
    add(x, "flops_share", all->flops > 0 ? c->flops / all->flops : 0);
    cJSON_AddItemToObject(x, "memory", memory_json(c));
    cJSON_AddItemToObject(x, "segments", segments_json(c));
    add(x, "launches_per_step", c->launches);
    cJSON_AddItemToObject(x, "collectives", collectives_json(c));
    cJSON_AddItemToObject(x, "transfers", transfers_json(c->g));
    cJSON_AddItemToObject(x, "buckets", buckets_json(c->g));
    cJSON_AddItemToObject(x, "kernels", kernels_json(c->g));
}

// ---- the whole
static cJSON *mesh_json(const Graph *g)
{
    static const char *const names[MESH_FACTORS] = {"group", "kv", "cp", "pp", "dp"};
    cJSON *mesh = cJSON_CreateObject();
    add(mesh, "tp", mesh_size(g->mesh.size, MESH_TP));
    for (int f = 0; f < MESH_FACTORS; f++) add(mesh, names[f], g->mesh.size[f]);
    cJSON_AddBoolToObject(mesh, "sequence_parallel", g->mesh.sp);
    return mesh;
}

static cJSON *schedule_json(const Costs *c)
{
    cJSON *x = cJSON_CreateObject();
    Buf b = {0};
    text(x, "name", schedule_names[c->prog->shape.kind]);
    add(x, "chunks", c->prog->shape.chunks), add(x, "micro_batches", c->prog->shape.micro_batches);
    add(x, "flops_f", c->times.f), add(x, "flops_b", c->times.b), add(x, "flops_w", c->times.w);
    add(x, "bubble", c->bubble);
    pipeline_draw(&c->prog->shape, c->prog->tasks, &c->times, 100, &b);
    text(x, "drawn", b.s);
    buf_free(&b);
    return x;
}

static cJSON *totals_json(const Costs *c)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < vec_len(c->totals); i++) {
        const CommTotal *t = &c->totals[i];
        cJSON *x = add_item(list);
        add_group(c->prog->stages[0], x, t->key);
        text(x, "kind", coll_names[t->how]);
        add(x, "per_step", (double)t->count), add(x, "bytes_per_step", (double)t->bytes);
    }
    return list;
}

static cJSON *program_json(const Costs *c)
{
    const Graph *g = c->prog->stages[0];
    cJSON *top = cJSON_CreateObject();
    text(top, "model", g->model), text(top, "dtype", dtype_name(g->dtype));
    add(top, "parameters", (double)c->parameters);
    add(top, "ranks", (double)c->ranks);
    cJSON_AddItemToObject(top, "mesh", mesh_json(g));
    add(top, "zero", (double)options.zero);
    add(top, "tokens_per_step", (double)c->tokens);
    add(top, "flops_per_step", c->flops * (double)c->ranks / c->prog->nstages);
    text(top, "flops_convention", report_flops_convention);
    add(top, "bubble", c->bubble);
    cJSON_AddItemToObject(top, "schedule", schedule_json(c));
    if (c->ranks == 1) {
        cJSON_AddItemToObject(top, "memory", memory_json(&c->stages[0]));
        cJSON_AddItemToObject(top, "segments", segments_json(&c->stages[0]));
    }
    cJSON_AddItemToObject(top, "collectives", totals_json(c));
    cJSON *stages = cJSON_AddArrayToObject(top, "stages");
    for (int s = 0; s < c->prog->nstages; s++) stage_json(c, &c->stages[s], add_item(stages));
    return top;
}

void report_json(const Costs *c, const char *path)
{
    cJSON *top = program_json(c);
    char *printed = cJSON_Print(top);
    Buf b = {0};
    buf_printf(&b, "%s\n", printed);
    if (!write_file_atomic(path, b.s, b.n)) fatal("--report=%s:", path);
    buf_free(&b);
    cJSON_free(printed);
    cJSON_Delete(top);
}
