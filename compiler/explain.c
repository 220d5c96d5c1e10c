// explain.c: --explain FILE:LINE. Everything that one Lua line caused: its nodes by segment, the kernels that hold them
// (and why they were not fused with their producers), the buffers they fill.
#include "pico.h"
#include <ctype.h>

static bool same_file(const char *asked, const char *file)
{
    size_t n = strlen(asked), m = strlen(file);
    return m >= n && !strcmp(file + m - n, asked) && (m == n || file[m - n - 1] == '/');
}

// Marks the nodes of the line; an op that is written out at that line counts as well.
static size_t mark_line(const Graph *g, const char *file, int line, uint8_t *marked)
{
    size_t found = 0;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        const LocInfo *loc = &g->locs[x->loc], *call = &g->locs[g->ops[x->op].loc];
        bool here = x->loc && loc->line == line && same_file(file, loc->file);
        here = here || (x->op && g->ops[x->op].loc && call->line == line && same_file(file, call->file));
        if (here && (g->group_of[v] || g->stored[v])) marked[v] = 1, found++;
    }
    return found;
}

static void explain_group(const Graph *g, const Group *group, FILE *out)
{
    static const char *const names[] = {"rows", "columns", "GEMM", "attention", "attention gradient", "scatter"};
    fprintf(out, "  %-18s %-24s %12llu bytes", names[group->kind],
            group->kind == G_GEMM ? "library" : g->kernels[group->kernel].name, (unsigned long long)group->bytes);
    if (group->kind == G_GEMM)
        fprintf(out, "  m %llu n %llu k %llu", (unsigned long long)group->gemm.m, (unsigned long long)group->gemm.n,
                (unsigned long long)group->gemm.k);
    fprintf(out, "\n");
    if (group->why) fprintf(out, "      not fused with what comes before: %s\n", group->why);
}

// The colon of FILE:LINE, and the line.
static const char *split_place(const char *file_line, int *line)
{
    const char *colon = strrchr(file_line, ':');
    char *end = NULL;
    long n = colon && isdigit((unsigned char)colon[1]) ? strtol(colon + 1, &end, 10) : 0;
    if (!colon || colon == file_line || n < 1 || *end || n > INT32_MAX)
        usage_error("--explain: '%s' is not FILE:LINE, as in llama.lua:34", file_line);
    *line = (int)n;
    return colon;
}

void explain_check(const char *file_line)
{
    int line;
    if (file_line) split_place(file_line, &line);
}

void explain(const Graph *g, const char *file_line, FILE *out)
{
    int line;
    const char *colon = split_place(file_line, &line);
    char *file = xstrdup(file_line);
    file[colon - file_line] = 0;
    uint8_t *marked = xcalloc(vec_len(g->nodes), 1), *groups = xcalloc(vec_len(g->groups) + 1, 1);
    size_t found = mark_line(g, file, line, marked);
    if (!found) fatal("--explain: nothing of the graph comes from %s", file_line);
    fprintf(out, "%s caused %zu nodes\n", file_line, found);
    for (int seg = 0; seg < SEG_COUNT; seg++) {
        for (Val v = 1; v < vec_len(g->nodes); v++) {
            if (!marked[v] || g->nodes[v].seg != seg) continue;
            Buf b = {0};
            node_dump(g, v, &b);
            fprintf(out, "  %s\n", b.s);
            buf_free(&b);
            if (g->group_of[v]) groups[g->group_of[v] - 1] = 1;
        }
    }
    fprintf(out, "in these kernels\n");
    for (size_t i = 0; i < vec_len(g->groups); i++)
        if (groups[i]) explain_group(g, &g->groups[i], out);
    free(file), free(marked), free(groups);
}
