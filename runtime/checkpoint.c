// checkpoint.c: see checkpoint.h. Load: match names, refuse what is missing or misshaped, refuse what is left over,
// then convert. Save: rank 0 makes the whole file with its header, every rank writes its slices where they belong,
// and when all of it is on the disk rank 0 gives it its name. Which elements are whose: slices.h.
//
// Traps: a tied head appears in many files as a second tensor; it may only be dropped if its bytes are those of
// the tensor that stays. Values pass through double, which holds every f32, f16 and bf16 exactly. Before a rank ends
// for a fault of saving, rank 0 must have removed the unfinished file, for it may be the only process that knows of it.
#include "checkpoint.h"
#include "rng.h"
#include "safetensors.h"
#include "slices.h"
#include <inttypes.h>
#include <math.h>

static const char *name_of(const Plan *p, const PlanParam *param) { return plan_str(p, param->name); }

// dtype of a plan buffer that holds a rank's slice, one value an element
static DType dtype_of(const Plan *p, const PlanParam *param, uint32_t id, const Slice *slice)
{
    const PlanBuffer *b = &p->buffers[id];
    if (b->dtype != F64 && b->dtype != F32 && b->dtype != BF16)
        bug("buffer of parameter %s is of dtype %s", name_of(p, param), dtype_name(b->dtype));
    if (b->bytes / (uint64_t)dtype_bytes(b->dtype) < slice->elements)
        bug("buffer of parameter %s is smaller than its shape", name_of(p, param));
    return b->dtype;
}

// rounds to nearest, ties to even; NaN stays NaN
static uint16_t bf16_of(float f)
{
    uint32_t w;
    memcpy(&w, &f, 4);
    if (isnan(f)) return (uint16_t)(w >> 16 | 64);
    return (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16);
}

static void store(void *out, DType t, uint64_t i, double value)
{
    if (t == F64) ((double *)out)[i] = value;
    else if (t == F32) ((float *)out)[i] = (float)value;
    else ((uint16_t *)out)[i] = bf16_of((float)value);
}

// Fills a parameter's buffer: `fill` gets its runs, in pieces, on several threads if there is enough to do.
typedef struct { void *out; DType dtype; const void *source; } Filling;
static void fill_slice(const Filling *f, const Slice *slice, void (*fill)(const Filling *, Run))
{
    enum { PIECE = 1 << 14 };
    uint64_t pieces = (slice->elements + PIECE - 1) / PIECE;
    if (slice->padded) memset(f->out, 0, slice->elements * (uint64_t)dtype_bytes(f->dtype));
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (uint64_t i = 0; i < pieces; i++) {
        Runs runs = runs_of(slice, i * PIECE, min_of(slice->elements, (i + 1) * PIECE));
        for (Run r; runs_next(&runs, &r);) fill(f, r);
    }
}

// ---- initial values

typedef struct { uint64_t key; double deviation; } Normal;

static void fill_constant(const Filling *f, Run r)
{
    for (uint64_t i = 0; i < r.n; i++) store(f->out, f->dtype, r.local + i, *(const double *)f->source);
}

static void fill_normal(const Filling *f, Run r)
{
    const Normal *normal = f->source;
    for (uint64_t i = 0; i < r.n;) {
        uint64_t at = r.file + i, odd = at % 2;
        double z[2];
        rng_normal_pair(normal->key, at / 2, z);
        store(f->out, f->dtype, r.local + i++, normal->deviation * z[odd]);
        if (!odd && i < r.n) store(f->out, f->dtype, r.local + i++, normal->deviation * z[1]);
    }
}

void params_init(const Plan *stage, uint32_t rank, uint64_t seed, BufferOf buffer, void *ctx)
{
    for (uint64_t i = 0; i < stage->count[PLAN_PARAMS]; i++) {
        const PlanParam *param = &stage->params[i];
        Slice slice = slice_of(stage, param, rank);
        Normal normal = {rng_key(seed, name_of(stage, param)), param->init_value};
        bool random = param->init == INIT_NORMAL;
        Filling f = {buffer(ctx, param->buffer), dtype_of(stage, param, param->buffer, &slice),
                     random ? (const void *)&normal : &param->init_value};
        fill_slice(&f, &slice, random ? fill_normal : fill_constant);
    }
}

// ---- load: which tensor is which parameter

typedef struct {
    const Plan *stage;
    uint32_t rank;
    const char *path;
    SafeTensors file;
    ModelParam *params;     // of all stages: what the file must have
    SafeTensor **of_param;  // NULL: not found
    bool *used;             // by tensor
} Load;

static const char *const prefixes[] = {"model.", "transformer."};

static const char *without_prefix(const char *name)
{
    for (size_t i = 0; i < countof(prefixes); i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return name + strlen(prefixes[i]);
    return name;
}

static bool take(Load *l, uint64_t param, const char *name)
{
    SafeTensor *t = safetensors_find(&l->file, name);
    if (!t || l->used[t - l->file.tensors]) return false;
    l->of_param[param] = t;
    return l->used[t - l->file.tensors] = true;
}

static bool take_prefixed(Load *l, uint64_t param, const char *name)
{
    const char *bare = without_prefix(name);
    bool found = take(l, param, bare);
    for (size_t i = 0; i < countof(prefixes) && !found; i++) {
        Buf longer = {0};
        buf_printf(&longer, "%s%s", prefixes[i], bare);
        found = take(l, param, longer.s);
        buf_free(&longer);
    }
    return found;
}

static void match_param(Load *l, uint64_t i, bool (*match)(Load *, uint64_t, const char *))
{
    if (l->of_param[i] || match(l, i, l->params[i].name)) return;
    for (const char *alias = plan_str(l->stage, l->params[i].param->aliases); *alias;) {
        size_t n = strcspn(alias, "\n");
        if (n && match(l, i, intern_n(alias, n))) return;
        alias += n + (alias[n] == '\n');
    }
}

// Exact names first, for all: a prefix must not take away what another parameter calls by its name.
static void match_names(Load *l)
{
    size_t n = vec_len(l->params);
    for (size_t i = 0; i < n; i++) match_param(l, i, take);
    for (size_t i = 0; i < n; i++) match_param(l, i, take_prefixed);
}

// ---- load: refusals

// "a, b, c and 4 more"
typedef struct { Buf text; uint64_t n; } NameList;
enum { NAMES_SHOWN = 3 };

static void list_name(NameList *l, const char *name)
{
    if (l->n++ < NAMES_SHOWN) buf_printf(&l->text, "%s%s", l->n > 1 ? ", " : "", shown(name).s);
}

static const char *list_text(NameList *l)
{
    if (l->n > NAMES_SHOWN) buf_printf(&l->text, " and %" PRIu64 " more", l->n - NAMES_SHOWN);
    return l->text.s;
}

static void refuse_missing(const Load *l)
{
    NameList missing = {0};
    for (size_t i = 0; i < vec_len(l->params); i++)
        if (!l->of_param[i]) list_name(&missing, l->params[i].name);
    if (missing.n) fatal("%s lacks the weights of %s", l->path, list_text(&missing));
}

static const char *shape_text(Buf *b, const uint64_t *dims, uint32_t ndim)
{
    buf_puts(b, "[");
    for (uint32_t d = 0; d < ndim; d++) buf_printf(b, "%s%" PRIu64, d ? ", " : "", dims[d]);
    buf_puts(b, "]");
    return b->s;
}

static bool same_shape(const SafeTensor *t, uint32_t ndim, const uint64_t *dims)
{
    return t->ndim == ndim && (!ndim || !memcmp(t->dims, dims, ndim * sizeof *dims));
}

static void refuse_misfits(const Load *l)
{
    for (size_t i = 0; i < vec_len(l->params); i++) {
        const PlanParam *param = l->params[i].param;
        const SafeTensor *t = l->of_param[i];
        if (!same_shape(t, param->ndim, param->dims)) {
            Buf has = {0}, wants = {0};
            fatal("%s: tensor %s has shape %s, but the model wants %s", l->path, t->name,
                  shape_text(&has, t->dims, t->ndim), shape_text(&wants, param->dims, param->ndim));
        }
        if (!safetensor_is_numeric(t))
            fatal("%s: tensor %s is of dtype %s, but weights are read from F64, F32, F16 and BF16 only", l->path,
                  t->name, shown(t->dtype_name).s);
    }
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

// tensors that old files carry although nothing was learned in them
static bool is_harmless(const char *name)
{
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    for (size_t i = 0; i < countof(ends); i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

// A head that is left over must be the copy of a tensor that was used: then the model's tied head is right. That reads
// all of both, so one rank does it for all.
static void refuse_untied_head(const Load *l, const SafeTensor *head)
{
    if (l->rank) return;
    for (size_t i = 0; i < vec_len(l->params); i++) {
        const SafeTensor *t = l->of_param[i];
        if (t->dtype == head->dtype && same_shape(t, head->ndim, head->dims) &&
            !memcmp(t->data, head->data, head->end - head->begin))
            return;
    }
    fatal("%s: the head %s differs from the embedding, but the model ties the two", l->path, head->name);
}

static void refuse_extras(const Load *l)
{
    NameList extra = {0};
    for (size_t i = 0; i < vec_len(l->file.tensors); i++) {
        const SafeTensor *t = &l->file.tensors[i];
        if (l->used[i] || is_harmless(t->name)) continue;
        if (!strcmp(without_prefix(t->name), "lm_head.weight")) refuse_untied_head(l, t);
        else list_name(&extra, t->name);
    }
    if (extra.n) fatal("%s has tensors that the model does not have: %s", l->path, list_text(&extra));
}

// ---- load: values

static void fill_converted(const Filling *f, Run r)
{
    const SafeTensor *t = f->source;
    if ((t->dtype == SAFE_F32 && f->dtype == F32) || (t->dtype == SAFE_F64 && f->dtype == F64)) {
        uint64_t width = (uint64_t)dtype_bytes(f->dtype);
        memcpy((char *)f->out + r.local * width, t->data + r.file * width, r.n * width);
        return;
    }
    for (uint64_t i = 0; i < r.n; i++)
        store(f->out, f->dtype, r.local + i, safetensor_value(t->dtype, t->data, r.file + i));
}

static void open_and_match(Load *l)
{
    char why[512];
    if (!safetensors_open(&l->file, l->path, why, sizeof why)) fatal("weights file %s: %s", l->path, why);
    l->params = model_params(l->stage);
    l->of_param = xcalloc(vec_len(l->params), sizeof(SafeTensor *));
    l->used = xcalloc(vec_len(l->file.tensors), sizeof *l->used);
    match_names(l);
    refuse_missing(l);
    refuse_misfits(l);
    refuse_extras(l);
}

void checkpoint_load(const Plan *stage, uint32_t rank, const char *path, BufferOf buffer, void *ctx)
{
    Load l = {.stage = stage, .rank = rank, .path = path};
    open_and_match(&l);
    for (uint64_t i = 0; i < stage->count[PLAN_PARAMS]; i++) {
        const PlanParam *param = &stage->params[i];
        const SafeTensor *t = l.of_param[model_param(l.params, name_of(stage, param)) - l.params];
        Slice slice = slice_of(stage, param, rank);
        Filling f = {buffer(ctx, param->buffer), dtype_of(stage, param, param->buffer, &slice), t};
        fill_slice(&f, &slice, fill_converted);
        input_release(&l.file.in, t->data, t->end - t->begin);
    }
    vec_free(l.params);
    free(l.of_param);
    free(l.used);
    safetensors_close(&l.file);
}

// ---- save

typedef struct {
    const Plan *stage;
    Coll *coll;
    bool gradients;
    double scale;
    BufferOf buffer;
    void *ctx;
    ModelParam *params;  // of all stages
    SafeWriter *writer;
} Save;

static uint32_t saved_buffer(const Save *s, const PlanParam *param)
{
    return s->gradients ? param->grad : param->buffer;
}

// Copies are written once: by the stage that owns them, on the ranks at coordinate 0 of the factors that no axis names.
// A gradient under ZeRO is in parts over the whole group of its key, which may span stages. False: nothing to write.
static bool own_part(const Save *s, const PlanParam *param, const Slice *slice, Runs *part)
{
    const PlanInfo *info = s->stage->info;
    uint32_t rank = s->coll->rank, named = 0, members = 1, index = 0;
    for (uint32_t i = 0; i < param->naxes; i++) named |= s->stage->param_axes[param->first_axis + i].mesh;
    if (s->gradients && info->zero && param->key) {
        named |= s->stage->groups[param->key - 1].mesh;
        members = plan_group(s->stage, param->key - 1, rank, NULL, &index);
        if (!members) bug("parameter %s is reduced over a group without its stage", name_of(s->stage, param));
    }
    if (!(named & MESH_PP) && !param->owner) return false;
    if (mesh_index(info->mesh, rank, MESH_ALL & ~(uint32_t)MESH_PP & ~named)) return false;
    uint64_t n = slice->elements, share = members == 1 ? n : ((n + members - 1) / members + 15) / 16 * 16;
    *part = runs_of(slice, min_of(n, index * share), min_of(n, (index + 1) * share));
    return true;
}

static bool put_run(const Save *s, size_t tensor, DType from, const void *values, Run r)
{
    enum { CHUNK = 1 << 13 };
    static const SafeDType source[DTYPE_COUNT] = {[F64] = SAFE_F64, [F32] = SAFE_F32, [BF16] = SAFE_BF16};
    DType to = from == F64 ? F64 : F32;
    uint64_t width = (uint64_t)dtype_bytes(to);
    if (from == to && s->scale == 1)
        return safetensors_put(s->writer, tensor, r.file * width, (const char *)values + r.local * width, r.n * width);
    double chunk[CHUNK];
    for (uint64_t at = 0; at < r.n; at += CHUNK) {
        uint64_t count = min_of(r.n - at, (uint64_t)CHUNK);
        for (uint64_t i = 0; i < count; i++)
            store(chunk, to, i, s->scale * safetensor_value(source[from], values, r.local + at + i));
        if (!safetensors_put(s->writer, tensor, (r.file + at) * width, chunk, count * width)) return false;
    }
    return true;
}

static bool put_param(const Save *s, const PlanParam *param)
{
    uint32_t id = saved_buffer(s, param);
    if (id == UINT32_MAX) return true;
    Slice slice = slice_of(s->stage, param, s->coll->rank);
    DType from = dtype_of(s->stage, param, id, &slice);
    const void *values = s->buffer(s->ctx, id);
    size_t tensor = (size_t)(model_param(s->params, name_of(s->stage, param)) - s->params);
    Runs runs;
    if (own_part(s, param, &slice, &runs))
        for (Run r; runs_next(&runs, &r);)
            if (!put_run(s, tensor, from, values, r)) return false;
    return true;
}

// The largest `mine` of all ranks, which come here together.
static int64_t largest(Save *s, int64_t mine)
{
    if (s->coll->max(s->coll, &mine)) return mine;
    safetensors_drop(s->writer);
    end_quietly();
}

// All ranks come here. If one of them has failed, all end; the first by rank says why.
static void end_if_failed(Save *s, bool good)
{
    int64_t mine = good ? 0 : (int64_t)s->coll->ranks - s->coll->rank, worst = largest(s, mine);
    if (!worst) return;
    if (s->coll->rank == 0) remove_unfinished();
    largest(s, 0);  // the file is gone before anyone ends
    if (mine == worst) fatal("%s", safetensors_fault(s->writer));
    end_quietly();
}

// The parameters that are saved, without those that have no gradient; announces them to the writer.
static void announce(Save *s, const char *path)
{
    ModelParam *all = model_params(s->stage);
    SafeEntry *entries = NULL;
    for (size_t i = 0; i < vec_len(all); i++) {
        const PlanParam *param = all[i].param;
        uint32_t id = saved_buffer(s, param);
        if (id == UINT32_MAX) continue;
        Plan owner = plan_stage(s->stage, all[i].stage);
        SafeDType t = owner.buffers[id].dtype == F64 ? SAFE_F64 : SAFE_F32;
        vec_push(s->params, all[i]);
        vec_push(entries, (SafeEntry){all[i].name, t, param->ndim, param->dims});
    }
    s->writer = safetensors_announce(path, entries, vec_len(entries));
    vec_free(entries);
    vec_free(all);
}

static void save(Save *s, const char *path)
{
    bool first = s->coll->rank == 0, good = true;
    int64_t id = 0;
    announce(s, path);
    if (first) good = safetensors_begin(s->writer, &id);
    end_if_failed(s, good);
    id = largest(s, id);
    if (!first) good = safetensors_join(s->writer, id);
    for (uint64_t i = 0; i < s->stage->count[PLAN_PARAMS] && good; i++) good = put_param(s, &s->stage->params[i]);
    end_if_failed(s, good && safetensors_flush(s->writer));
    end_if_failed(s, !first || safetensors_publish(s->writer));
    safetensors_drop(s->writer);
    vec_free(s->params);
}

void checkpoint_save(const Plan *stage, Coll *coll, const char *path, BufferOf buffer, void *ctx)
{
    save(&(Save){stage, coll, false, 1, buffer, ctx, NULL, NULL}, path);
}

void gradients_save(const Plan *stage, Coll *coll, const char *path, double scale, BufferOf buffer, void *ctx)
{
    save(&(Save){stage, coll, true, scale, buffer, ctx, NULL, NULL}, path);
}

void checkpoint_save_check(const char *path) { safetensors_probe(path); }
