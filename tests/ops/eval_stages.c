// eval_stages.c: a program's ranks together, though each is evaluated alone: what comes from elsewhere is a leaf, filled with
// what the others had in the round before. Communication has no cycles, so after as many rounds as it is deep all is right.
#include "eval_stages.h"

enum { LINK = 1 << 20 };  // states with such a number are links

// ------------------------------------------------------------------------------------------------------------ opening
typedef struct { Link *links; } Opening;

static Val open_node(Graph *g, void *ctx, const Node *n, Val old)
{
    Opening *o = ctx;
    (void)old;
    if (n->kind != K_RESHARD && n->kind != K_RECV && n->kind != K_SLICE) return 0;
    Link l = {.kind = (Kind)n->kind, .operand = n->nin ? n->in[0] : 0};
    if (n->kind == K_RECV) l.tag = g->transfers[n->u.id].tag;
    else l.reshard = n->u.reshard;
    l.leaf = make_leaf(g, K_STATE, LINK + (uint32_t)vec_len(o->links), (DType)n->dtype, n->naxes, n->axes);
    vec_push(o->links, l);
    return l.leaf;
}

static bool same_key(CommKey a, CommKey b) { return a.mesh == b.mesh && a.stages == b.stages; }

// Collectives of one key run in the order of their batches, parts in the order of the nodes.
static void number_links(Link *links)
{
    for (size_t i = 0; i < vec_len(links); i++)
        for (size_t k = 0; k < vec_len(links) && links[i].kind == K_RESHARD; k++) {
            if (links[k].kind != K_RESHARD || !same_key(links[i].reshard->key, links[k].reshard->key)) continue;
            uint32_t a = links[i].reshard->batch, b = links[k].reshard->batch;
            links[i].number += b < a || (b == a && k < i);
        }
}

// ------------------------------------------------------------------------------------------------------------- groups
static bool in_group(const Graph *g, uint32_t rank, uint32_t other, CommKey key)
{
    for (int f = 0; f < MESH_FACTORS; f++)
        if (!(key.mesh >> f & 1) && mesh_coord(g->mesh.size, rank, f) != mesh_coord(g->mesh.size, other, f)) return false;
    return !(key.mesh & MESH_PP) || key.stages >> stage_of_rank(g, other) & 1;
}

int64_t place_in_group(const Graph *g, uint32_t rank, CommKey key)
{
    int64_t place = 0;
    for (uint32_t other = 0; other < rank; other++) place += in_group(g, rank, other, key);
    return place;
}

int64_t element_in_whole(const Graph *g, uint32_t rank, int param, const Node *n, int64_t i)
{
    const Node *p = &g->nodes[g->params[param].val];
    if (n->naxes == 1 && !strcmp(axis_name(g, n->axes[0]), "flat"))
        i += place_in_group(g, rank, g->accs[g->params[param].acc].key) * extent_of(g, n->axes[0]);
    if (!vec_len(g->param_axes)) return i;
    if (i >= elements(g, g->params[param].val)) return -1;
    int64_t at = 0, stride = 1;
    for (int k = p->naxes; k-- > 0;) {
        const PlanParamAxis *a = &g->param_axes[param].axis[k];
        int64_t local = (int64_t)a->local, extent = (int64_t)a->extent;
        int64_t position = i % local + local * mesh_index(g->mesh.size, rank, a->mesh);
        if (position >= extent) return -1;
        at += position * stride, stride *= extent, i /= local;
    }
    return at;
}

// -------------------------------------------------------------------------------------------------------- collectives
static const Graph *graph_of(const Stages *s, uint32_t rank) { return s->prog->stages[stage_of_rank(s->prog->stages[0], rank)]; }
static const Link *links_of(const Stages *s, uint32_t rank) { return s->links[stage_of_rank(s->prog->stages[0], rank)]; }

static const Link *partner(const Stages *s, uint32_t other, const Link *l)
{
    const Link *links = links_of(s, other);
    for (size_t i = 0; i < vec_len(links); i++)
        if (links[i].kind == K_RESHARD && same_key(links[i].reshard->key, l->reshard->key) && links[i].number == l->number) {
            if (links[i].reshard->how != l->reshard->how) bug("two ranks take part in different collectives");
            return &links[i];
        }
    bug("a collective lacks a member");
}

// Element `at` of [outer][part][inner] of a member in [outer][whole][inner].
static int64_t in_whole(int64_t at, int64_t part, int64_t whole, int64_t inner, int64_t member)
{
    return (at / (part * inner) * whole + member * part) * inner + at % (part * inner);
}

static void add_part(double *out, int64_t i, double y, bool first, int reduce)
{
    out[i] = first ? y : reduce == REDUCE_SUM ? out[i] + y : reduce == REDUCE_MAX ? (out[i] > y ? out[i] : y) : (out[i] < y ? out[i] : y);
}

static void reshard(const Stages *s, uint32_t rank, const Link *l, double *out)
{
    const Graph *g = graph_of(s, rank);
    const Reshard *r = l->reshard;
    const Node *in = &g->nodes[l->operand];
    if (r->how == COLL_ALL_GATHER && !r->part) return;  // in place, into the parameter
    bool flat = r->how == COLL_REDUCE_SCATTER && !r->axis;
    int64_t part = r->part ? extent_of(g, r->part) : 1, whole = r->axis ? extent_of(g, r->axis) : 1, inner = 1, seen = 0;
    int64_t have = elements(g, l->operand), want = elements(g, l->leaf), mine = place_in_group(g, rank, r->key);
    int at = r->axis ? axis_find(in, r->how == COLL_ALL_GATHER ? r->part : r->axis) : in->naxes;
    for (int i = at + 1; i < in->naxes; i++) inner *= extent_of(g, in->axes[i]);
    for (uint32_t other = 0; other < s->ranks; other++) {
        if (!in_group(g, rank, other, r->key)) continue;
        const double *x = s->values[other][partner(s, other, l)->operand];
        if (r->how == COLL_ALL_GATHER)
            for (int64_t i = 0; i < have; i++) out[in_whole(i, part, whole, inner, seen)] = x[i];
        else
            for (int64_t i = 0; i < want; i++) {
                int64_t from = r->how == COLL_ALL_REDUCE ? i : flat ? mine * part + i : in_whole(i, part, whole, inner, mine);
                add_part(out, i, from < have ? x[from] : 0, seen == 0, r->reduce);
            }
        seen++;
    }
}

static void slice(const Stages *s, uint32_t rank, const Link *l, double *out)
{
    const Graph *g = graph_of(s, rank);
    int64_t c = elements(g, l->leaf), n = elements(g, l->operand), from = c * place_in_group(g, rank, l->reshard->key);
    for (int64_t i = 0; i < c; i++) out[i] = from + i < n ? s->values[rank][l->operand][from + i] : 0;
}

static void receive(const Stages *s, uint32_t rank, const Link *l, double *out)
{
    const Graph *g = graph_of(s, rank);
    for (uint32_t other = 0; other < s->ranks; other++) {
        if (!in_group(g, rank, other, (CommKey){.mesh = MESH_PP, .stages = UINT64_MAX})) continue;
        const Graph *h = graph_of(s, other);
        for (size_t i = 0; i < vec_len(h->transfers); i++)
            if (h->transfers[i].send && h->transfers[i].tag == l->tag)
                memcpy(out, s->values[other][h->transfers[i].val], (size_t)elements(g, l->leaf) * sizeof *out);
    }
}

// -------------------------------------------------------------------------------------------------------------- rounds
typedef struct { const Stages *s; uint32_t rank; EvalRankLeaf leaf; void *ctx; } Filling;

static void fill(void *ctx, const Graph *g, Val v, double *out, int64_t n)
{
    const Filling *f = ctx;
    const Node *x = &g->nodes[v];
    if (x->kind == K_STATE && x->u.id >= LINK) memcpy(out, f->s->got[f->rank][x->u.id - LINK], (size_t)n * sizeof *out);
    else f->leaf(f->ctx, g, f->rank, v, out, n);
}

static bool exchange(Stages *s)  // did anything change?
{
    bool changed = false;
    for (uint32_t r = 0; r < s->ranks; r++)
        for (size_t i = 0; i < vec_len(links_of(s, r)); i++) {
            const Link *l = &links_of(s, r)[i];
            size_t n = (size_t)elements(graph_of(s, r), l->leaf);
            double *now = xcalloc(n, sizeof *now);
            if (l->kind == K_RESHARD) reshard(s, r, l, now);
            if (l->kind == K_SLICE) slice(s, r, l, now);
            if (l->kind == K_RECV) receive(s, r, l, now);
            changed |= memcmp(now, s->got[r][i], n * sizeof *now) != 0;
            free(s->got[r][i]);
            s->got[r][i] = now;
        }
    return changed;
}

Stages eval_stages(Program *prog, EvalRankLeaf leaf, void *ctx)
{
    Graph *first = prog->stages[0];
    Stages s = {.prog = prog, .ranks = mesh_size(first->mesh.size, MESH_ALL)};
    s.links = xcalloc((size_t)prog->nstages, sizeof *s.links);
    for (int i = 0; i < prog->nstages; i++) {
        Opening o = {0};
        graph_rewrite(prog->stages[i], open_node, &o);
        number_links(s.links[i] = o.links);
    }
    s.values = xcalloc(s.ranks, sizeof *s.values);
    s.got = xcalloc(s.ranks, sizeof *s.got);
    for (uint32_t r = 0; r < s.ranks; r++) {
        s.got[r] = xcalloc(vec_len(links_of(&s, r)) + 1, sizeof **s.got);
        for (size_t i = 0; i < vec_len(links_of(&s, r)); i++)
            s.got[r][i] = xcalloc((size_t)elements(graph_of(&s, r), links_of(&s, r)[i].leaf), sizeof(double));
    }
    for (bool more = true; more; more = exchange(&s))
        for (uint32_t r = 0; r < s.ranks; r++) {
            if (s.values[r]) eval_free(graph_of(&s, r), s.values[r]);
            s.values[r] = eval_graph(prog->stages[stage_of_rank(first, r)], false, fill, &(Filling){&s, r, leaf, ctx});
        }
    return s;
}

void eval_stages_free(Stages *s)
{
    for (uint32_t r = 0; r < s->ranks; r++) {
        eval_free(graph_of(s, r), s->values[r]);
        for (size_t i = 0; i < vec_len(links_of(s, r)); i++) free(s->got[r][i]);
        free(s->got[r]);
    }
    for (int i = 0; i < s->prog->nstages; i++) vec_free(s->links[i]);
    free(s->links), free(s->values), free(s->got);
}
