// cut_update.c: which stage computes what of the update, and which numbers stages have to exchange.
//
// A parameter lies on every stage that reads it; if these are several (tied weights), its gradient is reduced over them
// and each updates its copy alike. Values with axes belong to the stages of the parameter they are made of. Numbers made of
// numbers are computed by every stage that wants them, in the model's order. In between is what only some stages can
// compute and others want, such as the sum of squares of a gradient: one stage, the parameter's owner, gives it, the others
// add 0 in an all-reduce over the stages, so every layout gets the bits of one rank. If it is an all-reduce over
// ranks of its stage already, both are one. All stages take part, in the same order, whether they want the result or not.
//
// With --zero 1 a sum over a gradient runs over the own flat part only: its all-reduce gets the gradient's key.
//
// Batches: all numbers between which there is no path form one collective. The level of a number (how many all-reduces
// are below it) is counted in the whole graph, so that the stages agree.
//
// Trap: a value that F or B need as well (a parameter's norm) is theirs; the update gets it from the first such stage.
#include "cut.h"

static uint64_t lowest_bit(uint64_t bits) { return bits & ~(bits - 1); }
static bool several(uint64_t bits) { return (bits & (bits - 1)) != 0; }

uint32_t key_size(const Graph *g, CommKey key)
{
    uint32_t ranks = mesh_size(g->mesh.size, key.mesh & ~(uint32_t)MESH_PP);
    return key.mesh & MESH_PP ? ranks * (uint32_t)__builtin_popcountll(key.stages) : ranks;
}

// A parameter without axes has nothing to be cut.
bool param_is_flat(const Graph *g, int param)
{
    const Param *p = &g->params[param];
    return options.zero == 1 && p->acc >= 0 && key_size(g, g->accs[p->acc].key) > 1 && g->nodes[p->val].naxes > 0;
}

// ---- masks: which stages can compute a value
static int param_of(const Graph *g, const Node *x)  // of a leaf; -1: none
{
    switch (x->kind) {
    case K_PARAM: return (int)x->u.id;
    case K_STATE: return g->states[x->u.id].param;
    case K_TOTAL: return g->accs[x->u.id].param;
    default: return -1;
    }
}

static uint64_t stages_of_param(const Cut *c, int p) { return c->param_stages[p] ? c->param_stages[p] : c->all; }

_Noreturn static void err_apart(const Cut *c, Val v)
{
    const Node *x = &c->g->nodes[v];
    err(c->g, x->op ? c->g->ops[x->op].loc : x->loc,
        "values of parameters on different pipeline stages meet here; in the update stages exchange numbers without axes only");
}

static void find_mask(Cut *c, Val v)
{
    const Graph *g = c->g;
    const Node *x = &g->nodes[v];
    int p = param_of(g, x);
    c->mask[v] = c->all;
    c->flat[v] = 0;
    if (p >= 0) c->mask[v] = stages_of_param(c, p);
    else if (x->kind == K_TOTAL) c->mask[v] = c->acc_stages[x->u.id];
    if (p >= 0 && x->naxes && param_is_flat(g, p)) c->flat[v] = (uint32_t)p + 1;
    bool arrays = false;  // numbers can come from elsewhere, so they matter only if all operands are
    for (int i = 0; i < x->nin; i++) arrays |= g->nodes[x->in[i]].naxes > 0;
    for (int i = 0; i < x->nin; i++) {
        bool array = g->nodes[x->in[i]].naxes > 0;
        if (array == arrays) c->mask[v] &= c->mask[x->in[i]];
        if (array && x->naxes && !c->flat[v]) c->flat[v] = c->flat[x->in[i]];
    }
}

static void find_masks(Cut *c)
{
    for (Val v = 1; v < c->n; v++)
        if (c->where[v] == WHERE_STATIC) find_mask(c, v);
}

static void check_masks(const Cut *c)
{
    const Graph *g = c->g;
    for (Val v = 1; v < c->n; v++) {
        const Node *x = &g->nodes[v];
        if (c->where[v] != WHERE_STATIC || !c->live[v] || !x->naxes) continue;
        bool update = x->kind == K_UPDATE && c->param_stages[param_of(g, &g->nodes[x->in[1]])] & ~c->mask[v];
        if (!c->mask[v] || update) err_apart(c, v);
    }
}

// What neither F nor B reads follows what its new value is made of.
static void place_unread_params(Cut *c)
{
    const Graph *g = c->g;
    find_masks(c);
    for (Val v = 1; v < c->n; v++) {
        const Node *x = &g->nodes[v];
        if (x->kind != K_UPDATE || !c->live[v]) continue;
        int p = param_of(g, &g->nodes[x->in[1]]);
        if (!c->param_stages[p] && c->mask[x->in[0]]) c->param_stages[p] = lowest_bit(c->mask[x->in[0]]);
    }
    for (size_t p = 0; p < vec_len(g->params); p++)
        if (!c->param_stages[p]) c->param_stages[p] = 1;
}

static void place_params(Cut *c)
{
    Graph *g = c->g;
    for (Val v = 1; v < c->n; v++)
        if (g->nodes[v].kind == K_ACCUMULATE) c->acc_stages[g->nodes[v].u.id] |= stage_bit(c, c->home[v]);
    for (size_t p = 0; p < vec_len(g->params); p++) {
        const Param *param = &g->params[p];
        c->param_stages[p] = c->early[param->val] | (param->acc >= 0 ? c->acc_stages[param->acc] : 0);
    }
    place_unread_params(c);
    for (size_t a = 0; a < vec_len(g->accs); a++) {
        if (g->accs[a].param < 0 || !several(c->param_stages[g->accs[a].param])) continue;
        g->accs[a].key.mesh |= MESH_PP;
        g->accs[a].key.stages = c->param_stages[g->accs[a].param];
    }
    find_masks(c);
    check_masks(c);
}

// ---- joints
static bool is_number_sum(const Cut *c, Val v)  // an all-reduce of a number, in the update
{
    const Node *x = &c->g->nodes[v];
    return x->kind == K_RESHARD && x->naxes == 0 && x->u.reshard->how == COLL_ALL_REDUCE && !c->early[v];
}

// Over whom the sum v of flat parts is partial.
static CommKey flat_key(const Cut *c, Val v)
{
    const Node *x = &c->g->nodes[v];
    if (x->kind != K_REDUCE || x->naxes || c->early[v] || !c->flat[x->in[0]]) return (CommKey){0};
    return c->g->accs[c->g->params[c->flat[x->in[0]] - 1].acc].key;
}

static bool of_numbers(const Cut *c, const Node *x)
{
    for (int i = 0; i < x->nin; i++)
        if (c->g->nodes[x->in[i]].naxes) return false;
    return x->nin > 0 && x->kind != K_UPDATE;
}

// v is wanted by stages that cannot compute it, or is partial.
static void make_joint(Cut *c, Val v, uint64_t outside, CommKey partial, bool parts)
{
    const Node *x = &c->g->nodes[v];
    bool fold = is_number_sum(c, v) && x->u.reshard->reduce == REDUCE_SUM;
    uint64_t can = c->early[v] ? c->early[v] : c->mask[v] ? c->mask[v] : c->late[v];
    Joint j = {.on = true, .fold = fold, .from = lowest_bit(can)};
    j.key.mesh = partial.mesh | (fold ? x->u.reshard->key.mesh : 0);
    j.key.stages = partial.stages;
    if (partial.mesh & MESH_PP) j.from = partial.stages;
    if (parts) j.from = c->acc_stages[x->u.id];
    if (outside || parts) j.key.mesh |= MESH_PP, j.key.stages = c->all;
    if (!(j.key.mesh & MESH_PP)) j.from = c->late[v];
    j.at = j.key.mesh & MESH_PP ? j.key.stages : j.from;
    j.dropped = !required(c->g, "reshard", joint_reshard(&j, x).why);
    c->joint[v] = j;
    if (fold) c->raw[x->in[0]] |= j.from;
    else c->raw[v] |= j.from;
}

// What of the update's numbers is to be exchanged; made[v]: the stages with a copy of v as it is.
static void find_joint(Cut *c, Val v)
{
    const Node *x = &c->g->nodes[v];
    uint64_t need = c->late[v], outside = need & ~c->mask[v];
    bool sum = is_number_sum(c, v);
    bool parts = x->kind == K_TOTAL && x->naxes == 0 && c->g->accs[x->u.id].param < 0 && several(c->mask[v]);
    CommKey partial = flat_key(c, sum ? x->in[0] : v);
    if (need && (outside || parts || partial.mesh)) {
        if (x->naxes) err_apart(c, v);
        bool adds = sum && x->u.reshard->reduce == REDUCE_SUM;
        if (partial.mesh || adds || !of_numbers(c, x) || c->early[v]) {
            make_joint(c, v, outside, partial, parts);
            need = 0;
        }
    }
    if (need && sum) {
        c->joint[v] = (Joint){.on = true, .fold = true, .key = x->u.reshard->key, .from = need, .at = need};
        *(outside ? &c->late[x->in[0]] : &c->raw[x->in[0]]) |= need;
        need = 0;
    }
    c->made[v] = need | c->raw[v] | c->early[v];
    for (int i = 0; i < x->nin; i++) c->late[x->in[i]] |= c->made[v] & ~c->early[v];
}

static void find_joints(Cut *c)
{
    const Graph *g = c->g;
    for (size_t i = 0; i < vec_len(g->outputs); i++) c->late[g->outputs[i].val] |= c->all;
    for (Val v = (Val)c->n; v-- > 1;) {
        if (c->where[v] != WHERE_STATIC || !c->live[v]) continue;
        if (g->nodes[v].kind == K_UPDATE) c->late[v] |= c->param_stages[param_of(g, &g->nodes[g->nodes[v].in[1]])];
        find_joint(c, v);
    }
}

// ---- batches
typedef struct { uint32_t level; CommKey key; uint8_t dtype, reduce; } Batch;

static uint32_t batch_number(Batch **batches, const Batch *b)
{
    for (size_t i = 0; i < vec_len(*batches); i++) {
        const Batch *o = &(*batches)[i];
        if (o->level == b->level && o->key.mesh == b->key.mesh && o->key.stages == b->key.stages && o->dtype == b->dtype
            && o->reduce == b->reduce)
            return b->level * BATCH_LEVEL + (uint32_t)i + 1;
    }
    vec_push(*batches, *b);
    return b->level * BATCH_LEVEL + (uint32_t)vec_len(*batches);
}

static void find_batches(Cut *c)
{
    uint32_t *level = xcalloc(c->n, sizeof *level);
    Batch *batches = NULL;
    for (Val v = 1; v < c->n; v++) {
        const Node *x = &c->g->nodes[v];
        if (c->where[v] != WHERE_STATIC || !c->live[v]) continue;
        for (int i = 0; i < x->nin; i++) {
            Val w = x->in[i];
            level[v] = max_of(level[v], c->joint[w].on && !c->early[v] ? c->joint[w].level : level[w]);
        }
        Joint *j = &c->joint[v];
        j->level = level[v] + 1;
        if (!j->on || j->dropped) continue;
        j->batch = batch_number(&batches, &(Batch){j->level, j->key, x->dtype, joint_reshard(j, x).reduce});
    }
    vec_free(batches);
    free(level);
}

Reshard joint_reshard(const Joint *j, const Node *x)
{
    Reshard r = {.how = COLL_ALL_REDUCE, .reduce = REDUCE_SUM};
    if (j->fold) r = *x->u.reshard;
    else r.why = j->from == j->at ? "sum of the flat parts" : "from its stage to all";
    if (j->fold && j->dropped) return r;
    r.key = j->key;
    r.batch = j->batch;
    return r;
}

void cut_update(Cut *c)
{
    place_params(c);
    find_joints(c);
    find_batches(c);
}
