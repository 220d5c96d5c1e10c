// slices.c: see slices.h. An axis is whole where this rank has all of it; whole inner axes are one with the innermost
// that is not, so the common cases (nothing cut, rows cut) are a single run.
#include "slices.h"

static SliceAxis cut(const Plan *stage, const PlanParamAxis *a, uint32_t rank)
{
    SliceAxis s = {.local = a->local, .first = mesh_index(stage->info->mesh, rank, a->mesh) * a->local};
    s.valid = s.first < a->extent ? min_of(a->extent - s.first, a->local) : 0;
    return s;
}

static bool is_whole(const Plan *stage, const PlanParamAxis *a)
{
    return a->local == a->extent && mesh_size(stage->info->mesh, a->mesh) == 1;
}

Slice slice_of(const Plan *stage, const PlanParam *param, uint32_t rank)
{
    Slice s = {.elements = 1};
    const PlanParamAxis *axes = stage->param_axes + param->first_axis;
    if (param->naxes > PLAN_MAX_DIMS)
        bug("parameter %s has %u axes", plan_str(stage, param->name), param->naxes);
    uint64_t step = 1, file_step = 1;
    uint32_t n = param->naxes;
    for (; n > 1 && is_whole(stage, &axes[n - 1]); n--) step = file_step *= axes[n - 1].extent;
    s.naxes = n;
    for (uint32_t i = n; i-- > 0;) {
        s.axis[i] = cut(stage, &axes[i], rank);
        s.axis[i].step = step;
        s.axis[i].file_step = file_step;
        s.padded |= s.axis[i].valid < s.axis[i].local;
        step *= axes[i].local;
        file_step *= axes[i].extent;
    }
    s.elements = step;
    return s;
}

bool runs_next(Runs *r, Run *run)
{
    const Slice *s = r->slice;
    for (uint64_t at = r->at; at < r->end;) {
        uint64_t file = 0, left = s->elements - at, next = 0;
        for (uint32_t i = 0; i < s->naxes && !next; i++) {
            const SliceAxis *a = &s->axis[i];
            uint64_t whole = a->local * a->step, in = at % whole;
            if (in >= a->valid * a->step) next = at - in + whole;  // padding: on to the axis' next beginning
            file += (a->first + in / a->step) * a->file_step;
            left = a->valid * a->step - in;
            if (i + 1 == s->naxes) file += in % a->step;
        }
        if (next) {
            at = next;
            continue;
        }
        *run = (Run){at, file, min_of(left, r->end - at)};
        r->at = at + run->n;
        return true;
    }
    r->at = r->end;
    return false;
}

// ---- the model's parameters

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ModelParam *)a)->name, ((const ModelParam *)b)->name);
}

ModelParam *model_params(const Plan *stage)
{
    ModelParam *all = NULL;
    for (uint32_t i = 0; i < stage->count[PLAN_STAGES]; i++) {
        Plan s = plan_stage(stage, i);
        for (uint64_t k = 0; k < s.count[PLAN_PARAMS]; k++)
            if (s.params[k].owner)
                vec_push(all, (ModelParam){plan_str(&s, s.params[k].name), &s.params[k], i});
    }
    if (all) qsort(all, vec_len(all), sizeof *all, by_name);
    return all;
}

const ModelParam *model_param(const ModelParam *all, const char *name)
{
    const ModelParam key = {.name = name}, *found = all ? bsearch(&key, all, vec_len(all), sizeof key, by_name) : NULL;
    if (!found) bug("no stage saves parameter %s", name);
    return found;
}
