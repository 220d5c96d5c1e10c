// copies.c: --check-copies: all ranks that hold the same part of a parameter must hold the same bits of it.
//
// Copies are what differs only on mesh factors that split none of its axes: data-parallel ranks, gains on tensor-parallel
// ranks, a tied weight on two stages. Each has applied its own updates to its own copy. For each part the largest hash and
// the smallest one, over all ranks, must be one.
#include "checkpoint.h"
#include "slices.h"
#include <xxhash.h>

static const PlanParam *own_param(const Plan *stage, const char *name)
{
    for (uint64_t i = 0; i < stage->count[PLAN_PARAMS]; i++)
        if (strcmp(plan_str(stage, stage->params[i].name), name) == 0) return &stage->params[i];
    return NULL;
}

static int64_t hash_of(const Plan *stage, const PlanParam *p, uint32_t rank, BufferOf buffer, void *ctx)
{
    Slice s = slice_of(stage, p, rank);
    uint64_t bytes = s.elements * (uint64_t)dtype_bytes((DType)stage->buffers[p->buffer].dtype);
    return (int64_t)(XXH3_64bits(buffer(ctx, p->buffer), bytes) >> 2);
}

void check_copies(const Plan *stage, Coll *coll, BufferOf buffer, void *ctx)
{
    ModelParam *all = model_params(stage);
    for (size_t i = 0; i < vec_len(all); i++) {
        Plan owner = plan_stage(stage, all[i].stage);
        const PlanParam *p = own_param(stage, all[i].name);
        uint32_t bits = 0;
        for (uint32_t k = 0; k < all[i].param->naxes; k++) bits |= owner.param_axes[all[i].param->first_axis + k].mesh;
        int64_t hash = p ? hash_of(stage, p, coll->rank, buffer, ctx) : 0;
        for (uint32_t part = 0; part < mesh_size(stage->info->mesh, bits); part++) {
            bool mine = p && mesh_index(stage->info->mesh, coll->rank, bits) == part;
            int64_t most = mine ? hash : INT64_MIN, least = mine ? -hash : INT64_MIN;
            if (!coll->max(coll, &most) || !coll->max(coll, &least)) end_quietly();
            if (most != -least) fatal("--check-copies: the ranks that hold part %u of '%s' do not hold the same", part, all[i].name);
        }
    }
    vec_free(all);
}
