// checkpoint.c: see checkpoint.h. Load: match names, refuse what is missing or misshaped, refuse what
// is left over, then convert; save streams through a small buffer, so it needs no second copy of the weights.
//
// Traps: a tied head appears in many files as a second tensor; it may only be dropped if its bytes are those of
// the tensor that stays. Values pass through double, which holds every f32, f16 and bf16 exactly.
#include "checkpoint.h"
#include "rng.h"
#include "safetensors.h"
#include <inttypes.h>
#include <math.h>

static uint64_t elements(const PlanParam *param)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < param->ndim; d++) n *= param->dims[d];
    return n;
}

static const char *name_of(const Plan *p, const PlanParam *param) { return plan_str(p, param->name); }

// dtype of a plan buffer that holds one value an element
static DType dtype_of(const Plan *p, const PlanParam *param, uint32_t id)
{
    const PlanBuffer *b = &p->buffers[id];
    if (b->dtype != F64 && b->dtype != F32 && b->dtype != BF16)
        bug("buffer of parameter %s is of dtype %s", name_of(p, param), dtype_name(b->dtype));
    if (b->bytes / (uint64_t)dtype_bytes(b->dtype) < elements(param))
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

// ---- initial values

static void fill_constant(void *out, DType t, uint64_t n, double value)
{
#pragma omp parallel for schedule(static)
    for (uint64_t i = 0; i < n; i++) store(out, t, i, value);
}

static void fill_normal(void *out, DType t, uint64_t n, uint64_t key, double deviation)
{
#pragma omp parallel for schedule(static)
    for (uint64_t pair = 0; pair < (n + 1) / 2; pair++) {
        double z[2];
        rng_normal_pair(key, pair, z);
        for (uint64_t i = 2 * pair; i < min_of(n, 2 * pair + 2); i++) store(out, t, i, deviation * z[i % 2]);
    }
}

void params_init(const Plan *p, uint64_t seed, BufferOf buffer, void *ctx)
{
    for (uint64_t i = 0; i < p->count[PLAN_PARAMS]; i++) {
        const PlanParam *param = &p->params[i];
        DType t = dtype_of(p, param, param->buffer);
        void *out = buffer(ctx, param->buffer);
        if (param->init == INIT_NORMAL)
            fill_normal(out, t, elements(param), rng_key(seed, name_of(p, param)), param->init_value);
        else fill_constant(out, t, elements(param), param->init_value);
    }
}

// ---- load: which tensor is which parameter

typedef struct {
    const Plan *plan;
    const char *path;
    SafeTensors file;
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
    const PlanParam *param = &l->plan->params[i];
    if (l->of_param[i] || match(l, i, name_of(l->plan, param))) return;
    for (const char *alias = plan_str(l->plan, param->aliases); *alias;) {
        size_t n = strcspn(alias, "\n");
        if (n && match(l, i, intern_n(alias, n))) return;
        alias += n + (alias[n] == '\n');
    }
}

// Exact names first, for all: a prefix must not take away what another parameter calls by its name.
static void match_names(Load *l)
{
    uint64_t n = l->plan->count[PLAN_PARAMS];
    for (uint64_t i = 0; i < n; i++) match_param(l, i, take);
    for (uint64_t i = 0; i < n; i++) match_param(l, i, take_prefixed);
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
    for (uint64_t i = 0; i < l->plan->count[PLAN_PARAMS]; i++)
        if (!l->of_param[i]) list_name(&missing, name_of(l->plan, &l->plan->params[i]));
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
    for (uint64_t i = 0; i < l->plan->count[PLAN_PARAMS]; i++) {
        const PlanParam *param = &l->plan->params[i];
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

// A head that is left over must be the copy of a tensor that was used: then the model's tied head is right.
static void refuse_untied_head(const Load *l, const SafeTensor *head)
{
    for (uint64_t i = 0; i < l->plan->count[PLAN_PARAMS]; i++) {
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

static void convert(const SafeTensor *t, void *out, DType to)
{
    if ((t->dtype == SAFE_F32 && to == F32) || (t->dtype == SAFE_F64 && to == F64)) {
        memcpy(out, t->data, t->end - t->begin);
        return;
    }
#pragma omp parallel for schedule(static)
    for (uint64_t i = 0; i < t->count; i++) store(out, to, i, safetensor_value(t->dtype, t->data, i));
}

void checkpoint_load(const Plan *p, const char *path, BufferOf buffer, void *ctx)
{
    char why[512];
    Load l = {.plan = p, .path = path};
    if (!safetensors_open(&l.file, path, why, sizeof why)) fatal("weights file %s: %s", path, why);
    l.of_param = xcalloc(p->count[PLAN_PARAMS], sizeof *l.of_param);
    l.used = xcalloc(vec_len(l.file.tensors), sizeof *l.used);
    match_names(&l);
    refuse_missing(&l);
    refuse_misfits(&l);
    refuse_extras(&l);
    for (uint64_t i = 0; i < p->count[PLAN_PARAMS]; i++) {
        const PlanParam *param = &p->params[i];
        const SafeTensor *t = l.of_param[i];
        convert(t, buffer(ctx, param->buffer), dtype_of(p, param, param->buffer));
        input_release(&l.file.in, t->data, t->end - t->begin);
    }
    free(l.of_param);
    free(l.used);
    safetensors_close(&l.file);
}

// ---- save

typedef struct { const Plan *plan; bool gradients; double scale; BufferOf buffer; void *ctx; } Save;

static uint32_t saved_buffer(const Save *s, const PlanParam *param)
{
    return s->gradients ? param->grad : param->buffer;
}

static void save_values(const Save *s, SafeWriter *w, const PlanParam *param)
{
    enum { CHUNK = 1 << 16 };
    static const SafeDType source[DTYPE_COUNT] = {[F64] = SAFE_F64, [F32] = SAFE_F32, [BF16] = SAFE_BF16};
    uint32_t id = saved_buffer(s, param);
    DType from = dtype_of(s->plan, param, id), to = from == F64 ? F64 : F32;
    const void *values = s->buffer(s->ctx, id);
    uint64_t n = elements(param), width = (uint64_t)dtype_bytes(to);
    if (from == to && s->scale == 1) {
        safetensors_append(w, values, n * width);
        return;
    }
    void *chunk = xmalloc(CHUNK * width);
    for (uint64_t at = 0; at < n; at += CHUNK) {
        uint64_t count = min_of(n - at, (uint64_t)CHUNK);
        for (uint64_t i = 0; i < count; i++)
            store(chunk, to, i, s->scale * safetensor_value(source[from], values, at + i));
        safetensors_append(w, chunk, count * width);
    }
    free(chunk);
}

static void save(const Save *s, const char *path)
{
    const PlanParam **saved = NULL;
    SafeEntry *entries = NULL;
    for (uint64_t i = 0; i < s->plan->count[PLAN_PARAMS]; i++) {
        const PlanParam *param = &s->plan->params[i];
        uint32_t id = saved_buffer(s, param);
        if (id == UINT32_MAX) continue;  // not trained: it has no gradient
        SafeDType t = dtype_of(s->plan, param, id) == F64 ? SAFE_F64 : SAFE_F32;
        vec_push(saved, param);
        vec_push(entries, (SafeEntry){name_of(s->plan, param), t, param->ndim, param->dims});
    }
    SafeWriter *w = safetensors_create(path, entries, vec_len(entries));
    for (size_t i = 0; i < vec_len(saved); i++) save_values(s, w, saved[i]);
    safetensors_commit(w);
    vec_free(entries);
    vec_free(saved);
}

void checkpoint_save(const Plan *p, const char *path, BufferOf buffer, void *ctx)
{
    save(&(Save){p, false, 1, buffer, ctx}, path);
}

void gradients_save(const Plan *p, const char *path, double scale, BufferOf buffer, void *ctx)
{
    save(&(Save){p, true, scale, buffer, ctx}, path);
}

void checkpoint_save_check(const char *path) { safetensors_probe(path); }
