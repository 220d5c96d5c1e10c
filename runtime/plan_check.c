// plan_check.c: checks the records that say what a plan is: mesh, groups, stages; a stage's arenas, buffers,
// parameters.
//
// One function checks each section; a fault is one sentence that names section, item and numbers. What is checked
// goes beyond memory safety where it is cheap: a buffer is used only while it is alive, a GEMM stays in its operands
// and writes each element once. What cannot be checked is what a kernel's C text does with its arguments.
//
// Traps: all sums and products of numbers from the file go through mul_ok/add_ok or are bounded before. A section's
// check uses only sections that were checked earlier, in the order of plan_check_records and plan_check_stage.
#include "plan_check.h"
#include <math.h>

// ---- what all stages share. `fail_item` speaks of c->item.

static bool check_mesh(Check *c)
{
    const PlanInfo *o = c->p->info;
    uint64_t ranks = 1;
    for (int f = 0; f < MESH_FACTORS; f++) {
        ranks *= o->mesh[f];
        if (!o->mesh[f] || ranks > MAX_RANKS) // at most 2^20 times 2^32
            return fail_item(c, "has a mesh of %u x %u x %u x %u x %u (group, kv, cp, pp, dp), not 1 to %d ranks",
                             o->mesh[0], o->mesh[1], o->mesh[2], o->mesh[3], o->mesh[4], MAX_RANKS);
    }
    if (o->mesh[MESH_AT_PP] > MAX_STAGES)
        return fail_item(c, "has %u pipeline stages, more than %d", o->mesh[MESH_AT_PP], MAX_STAGES);
    if (c->p->count[PLAN_STAGES] != o->mesh[MESH_AT_PP])
        return fail(c, "section stages has %llu records, not %u", (unsigned long long)c->p->count[PLAN_STAGES],
                    o->mesh[MESH_AT_PP]);
    return true;
}

static bool check_info(Check *c)
{
    const Plan *p = c->p;
    const PlanInfo *o = p->info;
    if (p->count[PLAN_INFO] != 1)
        return fail(c, "section info has %llu records, not 1", (unsigned long long)p->count[PLAN_INFO]);
    if (!line_ok(c, "model", o->model) || !str_ok(c, "config", o->config) || !str_ok(c, "options", o->options) ||
        !str_ok(c, "source", o->source) || !zero(c, o->pad))
        return false;
    if (!below(c, "target", o->target, 2) || !below(c, "zero", o->zero, 4) || !below(c, "schedule", o->schedule, 4))
        return false;
    if (!is_float(o->dtype)) return fail_item(c, "has dtype %u, which no activation has", o->dtype);
    if (!o->seq || !o->micro_batch || !o->accum || o->seq > INT32_MAX || o->micro_batch > INT32_MAX ||
        o->accum > MAX_SLOTS)
        return fail_item(c, "has seq %u, micro_batch %u, accum %u; each must be positive, and accum at most %u", o->seq,
                         o->micro_batch, o->accum, MAX_SLOTS);
    if ((uint64_t)o->seq * o->micro_batch > (uint64_t)1 << 40)
        return fail_item(c, "has %u x %u tokens in a micro-batch", o->micro_batch, o->seq);
    if (!o->chunks || o->chunks > MAX_CHUNKS) return fail_item(c, "has %u chunks a stage", o->chunks);
    if (!isfinite(o->flops_per_step) || o->flops_per_step < 0) return fail_item(c, "has a bad flops_per_step");
    return check_mesh(c);
}

// The ranges of a section follow each other by stage and cover it.
static bool check_stage_record(Check *c, const PlanStage *s)
{
    const Plan *p = c->p;
    for (uint32_t i = 0; i < PLAN_STAGED; i++) {
        enum PlanSectionId id = (enum PlanSectionId)(PLAN_FIRST_STAGED + i);
        uint64_t n = p->count[id], first = 0, end = (uint64_t)s->range[i].first + s->range[i].count;
        if (c->item) first = (uint64_t)s[-1].range[i].first + s[-1].range[i].count;
        if (s->range[i].first != first || end > n || (c->item + 1 == p->count[PLAN_STAGES] && end != n))
            return fail_item(c, "has %u %s from %u on, where %llu begins of %llu", s->range[i].count,
                             plan_section_name(id), s->range[i].first, (unsigned long long)first,
                             (unsigned long long)n);
    }
    if (s->scratch_bytes > MAX_BYTES)
        return fail_item(c, "wants %llu bytes of scratch", (unsigned long long)s->scratch_bytes);
    return (isfinite(s->flops) && s->flops >= 0) || fail_item(c, "has bad flops");
}

static bool check_group(Check *c, const PlanGroup *g)
{
    const uint32_t *mesh = c->p->info->mesh;
    uint64_t all = mesh[MESH_AT_PP] == 64 ? UINT64_MAX : ((uint64_t)1 << mesh[MESH_AT_PP]) - 1;
    if (!g->mesh || g->mesh & ~(uint32_t)MESH_ALL) return fail_item(c, "has mesh factors %#x", g->mesh);
    uint32_t size = mesh_size(mesh, g->mesh & ~(uint32_t)MESH_PP);
    if (g->mesh & MESH_PP) size *= (uint32_t)__builtin_popcountll(g->stages);
    if (g->mesh & MESH_PP ? !g->stages || g->stages & ~all : g->stages != 0)
        return fail_item(c, "has stages %#llx of %#llx", (unsigned long long)g->stages,
                         (unsigned long long)(g->mesh & MESH_PP ? all : 0));
    return g->size == size || fail_item(c, "has size %u, its mesh says %u", g->size, size);
}

static bool check_scalar(Check *c, const PlanScalar *s)
{
    if (!name_ok(c, s->name) || !below(c, "slot", s->slot, MAX_SLOTS)) return false;
    if (s->slot < SLOT_NAMED)
        return fail_item(c, "'%s' has slot %u, which the host sets itself", plan_str(c->p, s->name), s->slot);
    return isfinite(s->standard) || fail_item(c, "'%s' has no finite value", plan_str(c->p, s->name));
}

static bool check_train(Check *c, const PlanTrain *t)
{
    if (!line_ok(c, "key", t->key) || !str_ok(c, "value", t->value)) return false;
    return t->key != 0 || fail_item(c, "has no key");
}

// ---- one stage

static bool check_arena(Check *c, const PlanArena *a)
{
    const Plan *p = c->p;
    uint64_t total;
    if (!below(c, "class", a->class_, CLASS_COUNT) || !below(c, "chunk", a->chunk, p->info->chunks) || !zero(c, a->pad))
        return false;
    const char *name = plan_class_name(a->class_);
    if (c->item < 2 ? a->class_ != c->item || a->chunk : a->class_ < CLASS_FB)
        return fail_item(c, "is of class %s, chunk %u; the first two are persist and work, the others are not", name,
                         a->chunk);
    for (uint64_t i = 2; i < c->item; i++) // few: none of them is there twice
        if (p->arenas[i].class_ == a->class_ && p->arenas[i].chunk == a->chunk)
            return fail_item(c, "of class %s, chunk %u is there twice", name, a->chunk);
    if (c->item < 2 && a->slots != 1) return fail_item(c, "gives arena %s %u slots, not 1", name, a->slots);
    if (a->slots == 0 || a->slots > MAX_SLOTS)
        return fail_item(c, "gives arena %s %u slots, not 1 to %u", name, a->slots, MAX_SLOTS);
    if (!mul_ok(a->bytes, a->slots, &total) || total > MAX_BYTES)
        return fail_item(c, "gives arena %s %llu bytes, more than any machine has", name, (unsigned long long)a->bytes);
    return true;
}

// Elements of a shape; false if it has a zero extent, too many dimensions or elements, or dims left over.
static bool shape_elements(Check *c, uint32_t ndim, const uint64_t *dims, uint64_t *elements)
{
    *elements = 1;
    if (ndim > PLAN_MAX_DIMS) return fail_item(c, "has %u dimensions, more than %d", ndim, PLAN_MAX_DIMS);
    for (uint32_t i = 0; i < PLAN_MAX_DIMS; i++) {
        if (i >= ndim && dims[i]) return fail_item(c, "has an extent behind its %u dimensions", ndim);
        if (i < ndim && (!dims[i] || !mul_ok(*elements, dims[i], elements) || *elements > MAX_BYTES))
            return fail_item(c, "has extent %llu as dimension %u", (unsigned long long)dims[i], i);
    }
    return true;
}

static bool check_buffer(Check *c, const PlanBuffer *b)
{
    uint64_t elements, end, ninstrs = c->p->count[PLAN_INSTRS];
    if (!name_ok(c, b->name) || !below(c, "dtype", b->dtype, DTYPE_COUNT) ||
        !below(c, "arena", b->arena, c->p->count[PLAN_ARENAS]) || !shape_elements(c, b->ndim, b->dims, &elements))
        return false;
    uint64_t item = (uint64_t)dtype_bytes((DType)b->dtype);
    if (elements * item > b->bytes || b->bytes % item)
        return fail_item(c, "'%s' has %llu elements of %s in %llu bytes", plan_str(c->p, b->name),
                         (unsigned long long)elements, dtype_name((DType)b->dtype), (unsigned long long)b->bytes);
    if (b->offset % item)
        return fail_item(c, "lies at offset %llu, which its dtype forbids", (unsigned long long)b->offset);
    if (!add_ok(b->offset, b->bytes, &end) || end > c->p->arenas[b->arena].bytes)
        return fail_item(c, "'%s' (offset %llu, %llu bytes) leaves its arena of %llu bytes", plan_str(c->p, b->name),
                         (unsigned long long)b->offset, (unsigned long long)b->bytes,
                         (unsigned long long)c->p->arenas[b->arena].bytes);
    if (always_alive(class_of(c->p, b)) ? b->first != 0 || b->last != UINT32_MAX
                                        : b->first > b->last || b->last >= ninstrs)
        return fail_item(c, "lives from instruction %u to %u of %llu", b->first, b->last, (unsigned long long)ninstrs);
    return true;
}

// A rank-0 or shaped value of the persistent arena that inputs, outputs, parameters and states refer to.
static const PlanBuffer *persistent(Check *c, const char *field, uint32_t id)
{
    if (!below(c, field, id, c->p->count[PLAN_BUFFERS])) return NULL;
    const PlanBuffer *b = &c->p->buffers[id];
    if (b->arena == ARENA_PERSIST) return b;
    fail_item(c, "has %s '%s' outside the persistent arena", field, plan_str(c->p, b->name));
    return NULL;
}

static bool check_input(Check *c, const PlanInput *in)
{
    const PlanInfo *o = c->p->info;
    const PlanBuffer *b;
    if (!name_ok(c, in->name) || !(b = persistent(c, "buffer", in->buffer)) || !below(c, "shift", in->shift, 2) ||
        !zero(c, in->pad))
        return false;
    if (in->limit == 0 || in->limit > INT32_MAX) return fail_item(c, "has limit %u", in->limit);
    if (b->dtype != I32 || b->bytes != (uint64_t)o->seq * o->micro_batch * 4)
        return fail_item(c, "has %llu bytes of %s, not i32 [%u, %u]", (unsigned long long)b->bytes,
                         dtype_name((DType)b->dtype), o->micro_batch, o->seq);
    return true;
}

static bool check_output(Check *c, const PlanOutput *out)
{
    const PlanBuffer *b;
    if (!name_ok(c, out->name) || !(b = persistent(c, "buffer", out->buffer))) return false;
    if ((b->dtype != F32 && b->dtype != F64) || b->bytes != (uint64_t)dtype_bytes((DType)b->dtype))
        return fail_item(c, "is not one f32 or f64 number");
    return true;
}

// Nothing is split twice, the extents are those of the file's tensor, and the rank's part lies in the buffer.
static bool check_axes(Check *c, const PlanParam *q, uint64_t elements, uint64_t *local)
{
    const Plan *p = c->p;
    uint64_t n = p->count[PLAN_PARAM_AXES], whole = 1, covered;
    uint32_t used = 0;
    *local = 1;
    if (q->first_axis > n || q->naxes > n - q->first_axis || q->naxes > PLAN_MAX_DIMS)
        return fail_item(c, "has axes %u and %u more of %llu", q->first_axis, q->naxes, (unsigned long long)n);
    for (uint32_t i = 0; i < q->naxes; i++) {
        const PlanParamAxis *a = &p->param_axes[q->first_axis + i];
        if (a->mesh & ~(uint32_t)(MESH_ALL & ~MESH_PP) || a->mesh & used || a->pad)
            return fail_item(c, "splits its axis %u over mesh factors %#x", i, a->mesh);
        used |= a->mesh;
        if (!a->extent || !a->local || !mul_ok(whole, a->extent, &whole) || !mul_ok(*local, a->local, local) ||
            whole > MAX_BYTES || *local > MAX_BYTES || !mul_ok(a->local, mesh_size(p->info->mesh, a->mesh), &covered) ||
            covered < a->extent)
            return fail_item(c, "has %llu of %llu positions of axis %u on each of %u ranks",
                             (unsigned long long)a->local, (unsigned long long)a->extent, i,
                             mesh_size(p->info->mesh, a->mesh));
    }
    if (whole == elements) return true;
    return fail_item(c, "'%s' has axes of %llu elements and dimensions of %llu", plan_str(p, q->name),
                     (unsigned long long)whole, (unsigned long long)elements);
}

static bool holds(Check *c, const PlanParam *q, const char *what, const PlanBuffer *b, uint64_t local)
{
    if (buffer_elements(b) >= local) return true;
    return fail_item(c, "'%s' has %llu elements, its %s %llu bytes of %s", plan_str(c->p, q->name),
                     (unsigned long long)local, what, (unsigned long long)b->bytes, dtype_name((DType)b->dtype));
}

static bool in_group(const Plan *p, uint32_t group)
{
    const PlanGroup *g = &p->groups[group];
    return !(g->mesh & MESH_PP) || g->stages >> p->stage & 1;
}

static bool check_param(Check *c, const PlanParam *q)
{
    const PlanBuffer *b, *g;
    uint64_t elements, local;
    if (!name_ok(c, q->name) || !str_ok(c, "aliases", q->aliases) || !(b = persistent(c, "buffer", q->buffer)) ||
        !shape_elements(c, q->ndim, q->dims, &elements) || !check_axes(c, q, elements, &local) ||
        !below(c, "init", q->init, 2) || !below(c, "decay", q->decay, 2) || !below(c, "owner", q->owner, 2) ||
        !below(c, "reduction key", q->key, c->p->count[PLAN_GROUPS] + 1) || !zero(c, q->pad))
        return false;
    const char *name = plan_str(c->p, q->name);
    if (q->key && !in_group(c->p, q->key - 1))
        return fail_item(c, "'%s' is reduced over group %u, which leaves its stage out", name, q->key - 1);
    if (!is_float(b->dtype)) return fail_item(c, "'%s' is of dtype %s", name, dtype_name((DType)b->dtype));
    if (!holds(c, q, "buffer", b, local)) return false;
    if (!isfinite(q->init_value) || (q->init == INIT_NORMAL && q->init_value < 0))
        return fail_item(c, "'%s' has a bad initial value", name);
    if (q->grad == UINT32_MAX) return true;
    if (!(g = persistent(c, "grad", q->grad))) return false;
    if (g->dtype != F32 && g->dtype != F64)
        return fail_item(c, "'%s' has a gradient of dtype %s", name, dtype_name((DType)g->dtype));
    return holds(c, q, "gradient", g, local);
}

static bool check_state(Check *c, const PlanState *s)
{
    const PlanBuffer *b;
    if (!name_ok(c, s->name) || !below(c, "param", s->param, c->p->count[PLAN_PARAMS]) ||
        !(b = persistent(c, "buffer", s->buffer)))
        return false;
    const PlanBuffer *q = &c->p->buffers[c->p->params[s->param].buffer];
    uint64_t elements = buffer_elements(q);
    if (!is_float(b->dtype))
        return fail_item(c, "'%s' is of dtype %s", plan_str(c->p, s->name), dtype_name((DType)b->dtype));
    if (c->p->info->zero == 0 && buffer_elements(b) != elements)
        return fail_item(c, "'%s' has not the %llu elements of its parameter", plan_str(c->p, s->name),
                         (unsigned long long)elements);
    return true;
}

bool plan_check_records(Check *c)
{
    const Plan *p = c->p;
    uint64_t n = p->count[PLAN_STRINGS];
    if (n == 0 || p->strings[0] != 0) return fail(c, "the strings do not begin with the empty one");
    if (p->strings[n - 1] != 0) return fail(c, "the last string has no end");
    c->section = "info";
    bool ok = check_info(c);
    ok = ok && CHECK_ALL(c, PLAN_STAGES, stages, check_stage_record);
    ok = ok && CHECK_ALL(c, PLAN_GROUPS, groups, check_group);
    ok = ok && CHECK_ALL(c, PLAN_SCALARS, scalars, check_scalar);
    ok = ok && CHECK_ALL(c, PLAN_TRAIN, train, check_train);
    return ok && plan_check_shared_code(c);
}

bool plan_check_stage(Check *c)
{
    const Plan *p = c->p;
    if (p->count[PLAN_ARENAS] < 2) return fail(c, "there is no persistent arena or no work arena");
    bool ok = CHECK_ALL(c, PLAN_ARENAS, arenas, check_arena);
    ok = ok && CHECK_ALL(c, PLAN_BUFFERS, buffers, check_buffer);
    ok = ok && CHECK_ALL(c, PLAN_INPUTS, inputs, check_input);
    ok = ok && CHECK_ALL(c, PLAN_OUTPUTS, outputs, check_output);
    ok = ok && CHECK_ALL(c, PLAN_PARAMS, params, check_param);
    ok = ok && CHECK_ALL(c, PLAN_STATES, states, check_state);
    return ok && plan_check_code(c);
}
