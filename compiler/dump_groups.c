// dump_groups.c: what the passes from fuse on add to the text of a graph.
//
//   group 7 B gemm 64 x 192 x 1024: %301 %302                   ; llama.lua:31     (m x n x k)
//     reads %288 %120 writes %44
//   group 8 B rows [batch seq | hidden]: %303 %304              ; rmsnorm llama.lua:26 -> rmsnorm_7
//     reads %302 %118 writes %304 alone: read by two kernels
//   group 9 B start all_reduce 3 last (gradients) 1x4096: %400
//   buffer %304 work 8192..16383 groups 8..12
//
// rows: the axes left of the bar are parallel. columns: the axes right of the bar are summed over.
#include "pico.h"

static void put_values(const char *what, const Val *values, Buf *b)
{
    if (!vec_len(values)) return;
    buf_printf(b, " %s", what);
    for (size_t i = 0; i < vec_len(values); i++) buf_printf(b, " %%%u", values[i]);
}

static bool is_reduced(const Group *group, int i)
{
    if (group->kind == G_ROW) return i >= group->nouter;
    for (int k = 0; k < group->nred; k++)
        if (group->red[k] == group->dom[i]) return true;
    return false;
}

static void put_domain(const Graph *g, const Group *group, Buf *b)
{
    buf_puts(b, " [");
    const char *space = "";
    for (int right = 0; right < 2; right++) {
        for (int i = 0; i < group->ndom; i++)
            if (is_reduced(group, i) == (bool)right) buf_printf(b, "%s%s", space, axis_name(g, group->dom[i])), space = " ";
        if (!right) buf_printf(b, "%s|", space), space = " ";
    }
    buf_puts(b, "]");
}

// The name of a class of arenas, with the chunk where there are several.
static void put_arena(const Graph *g, const PlanArena *a, Buf *b)
{
    static const char *const names[] = {"persistent", "work", "saved", "saved_w", "kept_w", "received", "received_back",
                                        "sent", "sent_back"};
    buf_puts(b, names[a->class_]);
    if (a->class_ >= CLASS_FB && g->nchunks > 1) buf_printf(b, ".%u", a->chunk);
}

static void put_segment(const Graph *g, uint8_t seg, Buf *b)
{
    buf_puts(b, plan_segment_name(seg_id(seg)));
    if (seg > AT_PREP && seg != AT_UPDATE && g->nchunks > 1) buf_printf(b, ".%d", seg_chunk(seg));
}

static void put_coll(const Graph *g, const Group *group, Buf *b)
{
    static const char *const kinds[] = {"all_reduce", "reduce_scatter", "all_gather"};
    const struct Coll *c = &g->colls[group->coll];
    buf_printf(b, " %s %u", kinds[c->how], group->coll);
    if (group->kind == G_WAIT) return;
    buf_printf(b, "%s (%s)", group->last ? " last" : "", c->why);
    for (size_t i = 0; i < vec_len(c->parts); i++)
        buf_printf(b, " %llux%llu", (unsigned long long)c->parts[i].outer, (unsigned long long)c->parts[i].inner);
}

static void put_group(const Graph *g, size_t i, Buf *b)
{
    static const char *const kinds[] = {"rows", "columns", "gemm", "attention", "attention_grad", "scatter", "start", "wait"};
    const Group *group = &g->groups[i];
    buf_printf(b, "group %zu ", i);
    put_segment(g, group->seg, b);
    buf_printf(b, " %s", kinds[group->kind]);
    if (group->kind == G_GEMM)
        buf_printf(b, " %llu x %llu x %llu", (unsigned long long)group->gemm.m, (unsigned long long)group->gemm.n,
                   (unsigned long long)group->gemm.k);
    else if (group->kind == G_ROW || group->kind == G_COL) put_domain(g, group, b);
    else if (group->kind == G_START || group->kind == G_WAIT) put_coll(g, group, b);
    buf_puts(b, ":");
    put_values("", group->nodes, b);
    Buf place = {0};
    buf_printf(b, " ; %s", node_place(g, group->nodes[0], &place));
    if (has_kernel(group) && group->kernel < vec_len(g->kernels)) buf_printf(b, " -> %s", g->kernels[group->kernel].name);
    buf_puts(b, "\n ");
    put_values("reads", group->reads, b);
    put_values("writes", group->writes, b);
    if (group->why) buf_printf(b, " alone: %s", group->why);
    buf_puts(b, "\n");
    buf_free(&place);
}

void groups_dump(const Graph *g, Buf *b)
{
    for (size_t i = 0; i < vec_len(g->groups); i++) put_group(g, i, b);
    for (size_t i = 0; i < vec_len(g->buffers); i++) {
        const Buffer *x = &g->buffers[i];
        buf_printf(b, "buffer %%%u ", x->val);
        put_arena(g, &g->arenas[x->arena], b);
        buf_printf(b, " %llu..%llu", (unsigned long long)x->offset, (unsigned long long)(x->offset + x->bytes - 1));
        if (x->arena != ARENA_PERSIST) buf_printf(b, " groups %u..%u", x->first, x->last);
        buf_puts(b, "\n");
    }
}
