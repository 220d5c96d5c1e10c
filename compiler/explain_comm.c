// explain_comm.c: the part of --explain about ranks: which collectives and transfers a line caused, with their bytes.
//
// A collective of several values is of the line if one of them is. Equal ones of several layers share an entry.
#include "explain.h"
#include "report.h"

typedef struct { char *text; int count, first, last; uint64_t step; } Move;

static void add_move(Move **moves, Buf *text, int layer, uint64_t bytes_a_step)
{
    size_t i = 0;
    while (i < vec_len(*moves) && (((*moves)[i].first < 0) != (layer < 0) || strcmp((*moves)[i].text, text->s))) i++;
    if (i == vec_len(*moves)) vec_push(*moves, (Move){xstrdup(text->s), 0, layer, layer, 0});
    Move *m = &(*moves)[i];
    m->count++, m->step += bytes_a_step;
    m->first = min_of(m->first, layer), m->last = max_of(m->last, layer);
    buf_free(text);
}

static void add_collective(const Graph *g, Move **moves, const Group *start, int layer)
{
    static const char *const kinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
    const struct Coll *c = &g->colls[start->coll];
    SegmentId seg = seg_id(start->seg);
    bool often = seg >= SEG_F && seg <= SEG_W && !start->last;
    Buf b = {0}, group = {0}, bytes = {0};
    buf_amount(&bytes, (double)coll_bytes(g, c), "B");
    buf_printf(&b, "%-6s %-14s %9s  over %s (%lld), each %s: %s", plan_segment_name(seg), kinds[c->how], bytes.s,
               comm_group_name(g, c->key, &group), (long long)key_ranks(g, c->key), often ? "micro-batch" : "step", c->why);
    if (vec_len(c->parts) > 1) buf_printf(&b, ", with %zu values", vec_len(c->parts));
    buf_free(&group), buf_free(&bytes);
    add_move(moves, &b, layer, coll_bytes(g, c) * (often ? (uint64_t)g->accum : 1));
}

static void add_transfer(const Graph *g, Move **moves, const Transfer *t, int layer)
{
    Buf b = {0}, bytes = {0};
    buf_amount(&bytes, (double)transfer_bytes(g, t), "B");
    buf_printf(&b, "%-6s %-14s %9s  %s stage %u, each micro-batch%s", t->backward ? "B" : "F", t->send ? "send" : "receive", bytes.s,
               t->send ? "to" : "from", t->peer, t->backward ? ": its gradient" : "");
    buf_free(&bytes);
    add_move(moves, &b, layer, transfer_bytes(g, t) * (uint64_t)g->accum);
}

static void put_moves(Move *moves, FILE *out)
{
    uint64_t step = 0;
    if (vec_len(moves)) fprintf(out, "moved between ranks (bytes of one rank, of the whole tensors)\n");
    for (size_t i = 0; i < vec_len(moves); i++) {
        const Move *m = &moves[i];
        char layers[40] = "", count[24] = "";
        if (m->first >= 0 && m->first == m->last) snprintf(layers, sizeof layers, "layer %d", m->first);
        else if (m->first >= 0) snprintf(layers, sizeof layers, "layers %d..%d", m->first, m->last);
        if (m->count > 1) snprintf(count, sizeof count, "x %d", m->count);
        fprintf(out, "  %-5s%-13s%s\n", count, layers, m->text);
        step += m->step;
        free(m->text);
    }
    Buf total = {0};
    buf_amount(&total, (double)step, "B");
    if (vec_len(moves)) fprintf(out, "total %s a step\n", total.s);
    buf_free(&total);
    vec_free(moves);
}

// The node that has the cause, of which v is a view, or 0.
static Val caused(const Graph *g, const uint32_t *cause, Val v)
{
    while (!cause[v] && g->nodes[v].kind == K_VIEW) v = g->nodes[v].in[0];
    return cause[v] ? v : 0;
}

void explain_comm(const Graph *g, const uint32_t *cause, const int *layer, FILE *out)
{
    Move *moves = NULL;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        Val v = 0;
        for (size_t k = 0; group->kind == G_START && k < vec_len(group->nodes) && !v; k++)
            if (cause[group->nodes[k]]) v = group->nodes[k];
        if (v) add_collective(g, &moves, group, layer[v] < g->nlayers ? layer[v] : -1);
    }
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        Val v = caused(g, cause, t->val);
        if (v) add_transfer(g, &moves, t, layer[v] < g->nlayers ? layer[v] : -1);
    }
    put_moves(moves, out);
}
