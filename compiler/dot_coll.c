// dot_coll.c: what moves between ranks, as boxes: a collective with its kind, group and bytes, a bucket with its members,
// what another stage sends. The shape tells the kind: a roof over what is gathered, a point under what
// is reduced and scattered.
//
// Trap: several RESHARD nodes may be one collective. Its box lies where it begins: gradients are reduced from backward on.
#include "dot.h"
#include "report.h"

enum { MEMBERS_SHOWN = 5 };

void dot_find_colls(Picture *p)
{
    const Graph *g = p->g;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *group = &g->groups[i];
        for (size_t k = 0; group->kind == G_START && k < vec_len(group->nodes); k++) p->coll_of[group->nodes[k]] = group->coll + 1;
    }
}

uint8_t dot_coll_seg(const Picture *p, Val v)
{
    for (size_t i = 0; i < vec_len(p->g->groups); i++) {
        const Group *group = &p->g->groups[i];
        if (group->kind == G_START && group->coll + 1 == p->coll_of[v]) return group->seg;
    }
    return p->g->nodes[v].seg;
}

// ---- collectives
static const char *shape_of(PlanCollKind how)
{
    static const char *const shapes[] = {"hexagon, margin=\"0,0.03\"", "invhouse, margin=\"0.05,0.02\"", "house, margin=\"0.05,0.02\""};
    return shapes[how];
}

static void put_kind(const Graph *g, Buf *b, PlanCollKind how, CommKey key)
{
    static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather"};
    Buf group = {0};
    buf_printf(b, "%s over %s (%lld)", names[how], comm_group_name(g, key, &group), (long long)key_ranks(g, key));
    buf_free(&group);
}

static void put_members(const Graph *g, Buf *b, const struct Bucket *bucket)
{
    size_t n = vec_len(bucket->accs), shown = n <= MEMBERS_SHOWN + 1 ? n : MEMBERS_SHOWN;
    buf_printf(b, "\nbucket of %zu gradient%s, ", n, n == 1 ? "" : "s");
    buf_amount(b, (double)bucket->bytes, "B");
    for (size_t i = 0; i < shown; i++) buf_printf(b, "\n%s", g->accs[bucket->accs[i]].name);
    if (n > shown) buf_printf(b, "\nand %zu more", n - shown);
}

// The bucket whose reduction collective `coll` is.
static const struct Bucket *bucket_of(const Graph *g, uint32_t coll)
{
    for (size_t i = 0; i < vec_len(g->buckets); i++) {
        const Group *start = bucket_start(g, &g->buckets[i]);
        if (start && start->coll == coll) return &g->buckets[i];
    }
    return NULL;
}

static char *coll_label(const Graph *g, uint32_t coll, Val v)
{
    const struct Coll *c = &g->colls[coll];
    const struct Bucket *bucket = bucket_of(g, coll);
    Buf b = {0}, place = {0};
    put_kind(g, &b, c->how, c->key);
    if (bucket) {
        put_members(g, &b, bucket);
        return b.s;
    }
    const char *where = node_place(g, v, &place), *line = strrchr(where, ' ');
    buf_printf(&b, "\n%s", c->why);
    if (vec_len(c->parts) > 1) buf_printf(&b, ", %zu values", vec_len(c->parts));
    else if (*where) buf_printf(&b, ", %s", line ? line + 1 : where);
    buf_puts(&b, "\n"), buf_amount(&b, (double)coll_bytes(g, c), "B");
    buf_free(&place);
    return b.s;
}

uint32_t dot_coll_box(Picture *p, Val v, int cluster)
{
    uint32_t coll = p->coll_of[v] - 1, *box = &p->coll_box[coll];
    if (*box) return *box;
    bool bucket = bucket_of(p->g, coll) != NULL;
    char *label = coll_label(p->g, coll, v);
    for (size_t i = 0; i < vec_len(p->boxes) && !p->stacked && !bucket; i++) {  // those of one op call: one box
        if (p->boxes[i].cluster != cluster || strcmp(p->boxes[i].label, label)) continue;
        p->boxes[i].count++;
        free(label);
        return *box = (uint32_t)i + 1;
    }
    *box = dot_add_box(p, label, bucket ? "box3d" : shape_of(p->g->colls[coll].how), bucket ? "#e4d7f0" : "#f3d9ef", cluster);
    p->boxes[*box - 1].moves = true;
    return *box;
}

void dot_bucket_boxes(Picture *p)
{
    const Graph *g = p->g;
    if (!vec_len(g->buckets)) return;
    vec_push(p->clusters, xstrdup("once a step: gradients of all ranks"));
    for (size_t i = 0; i < vec_len(g->buckets); i++) {
        const Group *start = bucket_start(g, &g->buckets[i]);
        if (start) (void)dot_coll_box(p, start->nodes[0], (int)vec_len(p->clusters));
    }
}

// From what adds to a bucket's gradients last: one edge, or the picture would be full of them.
void dot_bucket_edges(Picture *p)
{
    const Graph *g = p->g;
    for (size_t i = 0; i < vec_len(g->buckets); i++) {
        const struct Bucket *b = &g->buckets[i];
        const Group *start = bucket_start(g, b);
        uint32_t box = start ? p->coll_box[start->coll] : 0;
        Val last = 0;
        for (Val v = 1; v < vec_len(g->nodes) && box; v++)
            for (size_t k = 0; k < vec_len(b->accs) && g->nodes[v].kind == K_ACCUMULATE; k++)
                if (g->nodes[v].u.id == b->accs[k] && p->box_of[v]) last = v;
        if (last) vec_push(p->edges, (Edge){p->box_of[last], box, g->accs[g->nodes[last].u.id].total});
    }
}

// ---- from other stages
void dot_recv_boxes(Picture *p, bool backward)
{
    const Graph *g = p->g;
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        if (t->send || (t->backward && !backward)) continue;
        Buf b = {0};
        buf_printf(&b, "RECV from stage %u%s\n", t->peer, t->backward ? ": a gradient" : "");
        dot_put_shape(g, &b, &g->nodes[t->val]);
        buf_puts(&b, ": "), buf_amount(&b, (double)transfer_bytes(g, t), "B");
        int cluster = !p->stacked ? 0 : 1 + (t->backward ? SEG_B : SEG_F);
        p->box_of[t->val] = dot_add_box(p, b.s, "cds", "#fde3c8", cluster);
        p->boxes[p->box_of[t->val] - 1].moves = true;
    }
}
