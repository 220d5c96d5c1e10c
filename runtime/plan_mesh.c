// plan_mesh.c: who belongs together: the ranks of a plan and its communication groups.
//
// A group's members differ from each other on its factors only. With the pipeline among them the group may leave
// stages out (a tied weight lives on two of them).
#include "plan.h"

uint32_t plan_ranks(const Plan *p)
{
    return mesh_size(p->info->mesh, MESH_ALL);
}

uint32_t plan_group(const Plan *p, uint32_t g, uint32_t rank, uint32_t *ranks, uint32_t *index)
{
    const uint32_t *mesh = p->info->mesh;
    const PlanGroup *group = &p->groups[g];
    uint32_t n = 0, all = mesh_size(mesh, group->mesh), place = 0;
    bool pipeline = group->mesh & MESH_PP, member = false;
    for (uint32_t i = 0; i < all; i++) {
        uint32_t other = 0, left = i, stride = 1, stage = 0;
        for (int f = 0; f < MESH_FACTORS; f++) {
            uint32_t at = mesh_coord(mesh, rank, (MeshFactor)f);
            if (group->mesh >> f & 1) at = left % mesh[f], left /= mesh[f];
            if (f == MESH_AT_PP) stage = at;
            other += at * stride;
            stride *= mesh[f];
        }
        if (pipeline && !(group->stages >> stage & 1)) continue;
        if (other == rank) member = true, place = n;
        if (ranks) ranks[n] = other;
        n++;
    }
    if (index) *index = place;
    return member ? n : 0;
}
