// cut_home.c: in which model chunk each value of the forward and backward graph is computed, and what crosses.
//
// A value that depends on inputs and on parameters (or on random numbers) has one home: the chunk of its layer. It is sent
// to the next chunk, and from there on to the next, as far as it is read; a cotangent goes the other way. All else is
// copied wherever it is read, so that no table, mask or weight ever crosses. A sum of cotangents is made where the last
// of them becomes known, so that one value crosses and not each of them; casts and reductions over ranks of it follow.
//
// Traps. A backward node may be younger than its layer says: it has to lie between the forward values it reads (their
// chunk or an earlier one) and the cotangents (their chunk or an earlier one). A gradient is accumulated where it is made.
#include "cut.h"

enum { DEP_INPUT = 1, DEP_PARAM = 2, DEP_RANDOM = 4 };

_Noreturn static void broken(const Cut *c, Val v, const char *what)
{
    Buf line = {0};
    node_dump(c->g, v, &line);
    graph_dump(c->g, stderr);
    bug("cut: %s: %s", what, line.s);
}

static uint8_t leaf_depends(const Graph *g, const Node *x)
{
    switch (x->kind) {
    case K_INPUT: return DEP_INPUT;
    case K_INDEX: return x->u.axis == g->batch ? DEP_INPUT : 0;
    case K_RANDOM: return has_axis(x, g->batch) ? DEP_RANDOM : 0;  // else like a table
    case K_PARAM: return DEP_PARAM;
    default: return 0;
    }
}

// The operand is smaller: sent instead, and cast by each reader.
static bool only_widens(const Graph *g, const Node *x)
{
    return x->kind == K_MAP && x->fn == FN_CAST && dtype_bytes((DType)g->nodes[x->in[0]].dtype) < dtype_bytes((DType)x->dtype);
}

static void find_where(Cut *c)
{
    uint8_t *depends = xcalloc(c->n, 1);
    for (Val v = 1; v < c->n; v++) {
        const Node *x = &c->g->nodes[v];
        depends[v] = x->nin ? 0 : leaf_depends(c->g, x);
        c->backward[v] = x->backward && x->nin;
        for (int i = 0; i < x->nin; i++) depends[v] |= depends[x->in[i]], c->backward[v] |= c->backward[x->in[i]];
        bool moving = depends[v] & (DEP_INPUT | DEP_RANDOM);
        bool fixed = depends[v] & DEP_RANDOM || (depends[v] & DEP_INPUT && depends[v] & DEP_PARAM);
        fixed = x->kind == K_ACCUMULATE || (fixed && !only_widens(c->g, x));
        c->where[v] = fixed ? WHERE_FIXED : moving ? WHERE_FREE : WHERE_STATIC;
    }
    free(depends);
}

// A sum of cotangents, or what is done with one before it goes on.
static bool moves_up(const Node *x)
{
    if (x->kind == K_MAP) return x->fn == FN_ADD || x->fn == FN_CAST;
    return x->kind == K_RESHARD && x->u.reshard->how != COLL_ALL_GATHER;
}

static int home_of(const Cut *c, Val v)
{
    const Node *x = &c->g->nodes[v];
    int home = chunk_of_layer(c, x->layer), least = 0, most = c->chunks - 1;
    bool known = false;
    for (int i = 0; i < x->nin; i++) {
        int h = c->home[x->in[i]];
        if (h < 0) continue;
        if (c->backward[x->in[i]]) most = min_of(most, h), known = true;
        else least = max_of(least, h);
    }
    if ((x->kind == K_ACCUMULATE || x->kind == K_PART) && c->home[x->in[0]] >= 0) return c->home[x->in[0]];
    if (!c->backward[v]) return max_of(home, least);
    if (known && moves_up(x)) home = max_of(home, most);
    home = max_of(min_of(home, most), least);
    if (home > most) broken(c, v, "backward reads a forward value of a later stage than its cotangent's");
    return home;
}

static void find_homes(Cut *c)
{
    for (Val v = 1; v < c->n; v++) {
        c->home[v] = -1;
        if (!c->live[v]) continue;
        if (c->where[v] == WHERE_FIXED) c->home[v] = home_of(c, v);
        else if (c->where[v] == WHERE_FREE && only_widens(c->g, &c->g->nodes[v])) c->home[v] = c->home[c->g->nodes[v].in[0]];
    }
}

static void set_need(Cut *c, Val v, int chunk) { c->need[v * c->words + (size_t)chunk / 64] |= 1ull << chunk % 64; }

// Of stages that have the chunks which read v.
static uint64_t stages_of_need(const Cut *c, Val v)
{
    uint64_t stages = 0;
    for (int k = 0; k < c->chunks; k++)
        if (needs_chunk(c, v, k)) stages |= stage_bit(c, k);
    return stages;
}

static void find_needs(Cut *c)
{
    for (Val v = (Val)c->n; v-- > 1;) {
        const Node *x = &c->g->nodes[v];
        if (!c->live[v]) continue;
        if (c->where[v] == WHERE_FIXED) set_need(c, v, c->home[v]);
        for (int i = 0; i < x->nin; i++) {
            Val w = x->in[i];
            if (c->where[v] == WHERE_STATIC) c->early[w] |= c->early[v];
            else if (c->where[v] == WHERE_FIXED && c->where[w] == WHERE_STATIC) c->early[w] |= stage_bit(c, c->home[v]);
            else if (c->where[v] == WHERE_FIXED) set_need(c, w, c->home[v]);
            else if (c->where[w] == WHERE_STATIC) c->early[w] |= stages_of_need(c, v);
            else for (size_t k = 0; k < c->words; k++) c->need[w * c->words + k] |= c->need[v * c->words + k];
        }
    }
}

static void find_hops(Cut *c)
{
    for (Val v = 1; v < c->n; v++) {
        if (!c->live[v] || c->where[v] != WHERE_FIXED) continue;
        int first = c->chunks, last = 0, home = c->home[v];
        for (int k = 0; k < c->chunks; k++)
            if (needs_chunk(c, v, k)) first = min_of(first, k), last = max_of(last, k);
        if (c->backward[v] ? last > home : first < home) broken(c, v, "read by a stage that no value goes to from here");
        int step = c->backward[v] ? -1 : 1, end = c->backward[v] ? first : last;
        for (int k = home; k != end; k += step) {
            uint32_t tag = (uint32_t)vec_len(c->hops);
            vec_push(c->hops, (Hop){v, (uint16_t)k, (uint16_t)(k + step), tag, c->backward[v]});
        }
    }
}

void cut_homes(Cut *c)
{
    find_where(c);
    find_homes(c);
    find_needs(c);
    find_hops(c);
}
