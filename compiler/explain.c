// explain.c: --explain FILE:LINE. What one line caused: its nodes by layer and segment, the kernels that hold them (and
// why they are not one with their producers), their bytes and FLOPs; what it moves between ranks (explain_comm.c).
//
// A line of Lua has the nodes that were made by it and by the op calls in it. A line of an op's text has all calls of
// that op, by the line of the call; an op that only other ops call has the calls of these. Of layers with the same
// nodes the first is shown. Kernels that read the same once node numbers and layers are left out share an entry.
#include "explain.h"
#include <ctype.h>

typedef struct {
    const char *op, *inside;
    Loc loc;
    int calls;
    bool left;
} Caller; // op: defined there; inside: called instead
typedef struct {
    char *text;             // all but the layers and the number
    int count, first, last; // layers, -1: outside
} Entry;
typedef struct {
    const Graph *g;
    const char *asked, *file;
    int line;
    FILE *out;
    uint8_t *live;
    int *layer;      // node -> layer; in the update, that of the parameter
    uint32_t *cause; // node -> 0: not of the line, else index in callers + 1
    Caller *callers; // vec; of a line of Lua one, without an op
    Entry *entries;  // vec
} Explain;

// ---- the line
static bool same_file(const char *asked, const char *file)
{
    size_t n = strlen(asked), m = strlen(file);
    return m >= n && !strcmp(file + m - n, asked) && (m == n || file[m - n - 1] == '/');
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

static bool is_here(const Explain *e, Loc loc)
{
    return loc && e->g->locs[loc].line == e->line && same_file(e->file, e->g->locs[loc].file);
}

// ---- which nodes are of the line
static bool mark_line(Explain *e)
{
    const Graph *g = e->g;
    bool found = false;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        if (!e->live[v] || (!is_here(e, x->loc) && !(x->op && is_here(e, g->ops[x->op].loc)))) continue;
        e->cause[v] = 1, found = true;
    }
    if (found) vec_push(e->callers, (Caller){.left = true});
    return found;
}

// The op that is defined at the line and that this call writes out, or NULL.
static const OpLines *definition_here(const Explain *e, const OpCall *call)
{
    for (int i = 0; i < call->nlines; i++) {
        const OpLines *l = &call->lines[i];
        if (l->first && e->line >= l->first && e->line <= l->last && same_file(e->file, l->file)) return l;
    }
    return NULL;
}

static uint32_t caller_of(Explain *e, const OpCall *call, const OpLines *defined)
{
    const char *inside = defined->op == call->name ? NULL : call->name;
    size_t i = 0;
    while (i < vec_len(e->callers) && (e->callers[i].loc != call->loc || e->callers[i].inside != inside)) i++;
    if (i == vec_len(e->callers)) vec_push(e->callers, (Caller){defined->op, inside, call->loc, 0, false});
    e->callers[i].calls++;
    return (uint32_t)i + 1;
}

static void mark_calls(Explain *e)
{
    const Graph *g = e->g;
    uint32_t *cause = xcalloc(vec_len(g->ops) + 1, sizeof *cause);
    for (size_t i = 1; i < vec_len(g->ops); i++) {
        const OpLines *defined = definition_here(e, &g->ops[i]);
        if (defined) cause[i] = caller_of(e, &g->ops[i], defined);
    }
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        if (!e->live[v] || !g->nodes[v].op || !cause[g->nodes[v].op]) continue;
        e->cause[v] = cause[g->nodes[v].op];
        e->callers[e->cause[v] - 1].left = true;
    }
    free(cause);
}

// ---- layers
// The layer that operand v gives a node of the update: that of the parameter it is of, or -1. Constants are shared, and
// numbers (the norm) are made from all parameters.
static int layer_given(const Explain *e, Val v)
{
    const Node *x = &e->g->nodes[v];
    int param = x->kind == K_TOTAL ? e->g->accs[x->u.id].param : x->kind == K_PARAM ? (int)x->u.id : -1;
    if (param >= 0) return e->g->nodes[e->g->params[param].val].layer;
    return x->seg == AT_UPDATE && x->nin && x->naxes ? e->layer[v] : -1;
}

// A node of the update is of the layer whose parameter or gradient it is made from; of none if there are several.
static void find_layers(Explain *e)
{
    const Graph *g = e->g;
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        const Node *x = &g->nodes[v];
        e->layer[v] = x->layer;
        if (x->seg != AT_UPDATE || !x->nin) continue;
        int layer = -1;
        for (int i = 0; i < x->nin; i++) {
            int l = layer_given(e, x->in[i]);
            if (l >= 0 && l < g->nlayers && l != layer) layer = layer < 0 ? l : g->nlayers;
        }
        e->layer[v] = layer < 0 ? g->nlayers : layer;
    }
}

// ---- nodes, by layer and part: a segment, or that no kernel makes them
enum { PART_HELD = SEG_COUNT, PART_INLINE, PARTS };
typedef struct {
    uint64_t of[PARTS];
} Signature; // what the nodes of each part are; 0: there are none

static int part_of(const Explain *e, Val v)
{
    if (is_storage(&e->g->nodes[v])) return PART_HELD;
    return e->g->group_of[v] ? (int)seg_id(e->g->nodes[v].seg) : PART_INLINE;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    return (h ^ v) * 0x9E3779B97F4A7C15u ^ (h >> 29);
}

static Signature *signatures(const Explain *e, uint32_t cause)
{
    Signature *s = xcalloc((size_t)e->g->nlayers + 2, sizeof *s);
    for (Val v = 1; v < vec_len(e->g->nodes); v++) {
        const Node *x = &e->g->nodes[v];
        if (e->cause[v] != cause) continue;
        uint64_t *h = &s[e->layer[v] + 1].of[part_of(e, v)];
        *h = mix(*h, (uint64_t)x->kind << 24 | (uint64_t)x->fn << 16 | (uint64_t)x->dtype << 8 | x->nin);
        for (int i = 0; i < x->naxes; i++) *h = mix(*h, x->axes[i]);
        *h |= 1;
    }
    return s;
}

static void put_part(const Explain *e, uint32_t cause, int layer, int part)
{
    for (Val v = 1; v < vec_len(e->g->nodes); v++) {
        if (e->cause[v] != cause || e->layer[v] != layer || part_of(e, v) != part) continue;
        Buf b = {0};
        node_dump(e->g, v, &b);
        fprintf(e->out, "    %s\n", b.s);
        buf_free(&b);
    }
}

// Of a layer whose other parts differ from those of a layer above, a part that does not is not written again.
static void put_parts(const Explain *e, uint32_t cause, int layer, const Signature *s)
{
    static const char *const titles[PARTS] = {"once, before the first step",
                                              "at the start of a step",
                                              "forward",
                                              "backward, and what follows the last layer",
                                              "gradients of weights, apart from backward",
                                              "update",
                                              "in memory for the whole run: no kernel makes it",
                                              "no kernel: read where it is used (views, constants, indices)"};
    static const int sequence[PARTS] = {PART_HELD, SEG_INIT, SEG_PREP, SEG_F, SEG_B, SEG_W, SEG_UPDATE, PART_INLINE};
    bool inside = layer >= 0 && layer < e->g->nlayers;
    for (int i = 0; i < PARTS; i++) {
        int part = sequence[i], like = inside ? 0 : layer;
        uint64_t h = s[layer + 1].of[part];
        if (!h) continue;
        while (like < layer && s[like + 1].of[part] != h) like++;
        fprintf(e->out, "  %s%s%s\n", titles[part], like < layer ? ": like " : "",
                like < layer ? e->g->layers[like] : "");
        if (like == layer) put_part(e, cause, layer, part);
    }
}

static void put_title(const Graph *g, int layer, int others, FILE *out)
{
    if (!g->nlayers) return;
    fprintf(out, "%s", layer >= 0 && layer < g->nlayers ? g->layers[layer] : "outside the layers");
    if (others) fprintf(out, ", and %d layer%s like it", others, others == 1 ? "" : "s");
    fprintf(out, "\n");
}

static void put_nodes(const Explain *e, uint32_t cause)
{
    static const Signature none;
    int n = e->g->nlayers;
    Signature *s = signatures(e, cause);
    for (int l = -1; l <= n; l++) {
        bool inside = l >= 0 && l < n, shown = !memcmp(&s[l + 1], &none, sizeof none);
        int others = 0;
        for (int k = 0; inside && k < l; k++) shown |= !memcmp(&s[k + 1], &s[l + 1], sizeof *s);
        for (int k = l + 1; inside && k < n; k++) others += !memcmp(&s[k + 1], &s[l + 1], sizeof *s);
        if (shown) continue;
        put_title(e->g, l, others, e->out);
        put_parts(e, cause, l, s);
    }
    free(s);
}

// ---- kernels
// A name as it is in every layer: without the layer's.
static const char *short_name(const Graph *g, const char *name)
{
    for (int i = 0; i < g->nlayers; i++) {
        size_t n = strlen(g->layers[i]);
        if (!strncmp(name, g->layers[i], n) && name[n] == '.') return name + n + 1;
    }
    return name;
}

static void put_line(const Explain *e, Loc loc, Buf *b)
{
    const LocInfo *l = &e->g->locs[loc];
    if (!loc) return;
    buf_printf(b, "%s:%d", same_file(e->file, l->file) ? "" : base_name(l->file), l->line);
}

// "self_attn.q_proj.weight", "rope:40", "d rope:40": its gradient.
static void put_value(const Explain *e, Val v, Buf *b)
{
    const Graph *g = e->g;
    const Node *x = &g->nodes[v];
    switch (x->kind) {
    case K_INPUT:
        buf_puts(b, g->inputs[x->u.id].name);
        return;
    case K_PARAM:
        buf_puts(b, short_name(g, g->params[x->u.id].name));
        return;
    case K_STATE:
        buf_puts(b, g->states[x->u.id].name);
        return;
    case K_TOTAL:
        buf_printf(b, "%s%s", g->accs[x->u.id].param >= 0 ? "gradient of " : "", short_name(g, g->accs[x->u.id].name));
        return;
    default:
        break;
    }
    const char *name = x->op ? g->ops[x->op].name : x->kind == K_MAP ? fn_info[x->fn].name : kind_info[x->kind].name;
    const Node *made = x->kind == K_PART ? &g->nodes[x->in[0]] : x;
    buf_printf(b, "%s%s", made->backward && !made->again ? "d " : "", name);
    Loc loc = x->op ? g->ops[x->op].loc : x->loc;
    if (loc && same_file(e->file, g->locs[loc].file))
        put_line(e, loc, b);
    else if (loc)
        buf_puts(b, " "), put_line(e, loc, b);
}

static void put_values(const Explain *e, const char *what, const Val *values, Buf *b)
{
    enum { SHOWN = 4 };
    size_t n = vec_len(values);
    if (n) buf_puts(b, what);
    for (size_t i = 0; i < n && (i < SHOWN || n == SHOWN + 1); i++) {
        buf_puts(b, i ? ", " : " ");
        put_value(e, values[i], b);
    }
    if (n > SHOWN + 1) buf_printf(b, " and %zu more", n - SHOWN);
}

static void put_kind(const Explain *e, const Group *group, Buf *b)
{
    static const char *const names[] = {"rows", "columns", "gemm", "attention", "attention gradient", "scatter"};
    const PlanGemm *m = &group->gemm;
    size_t start = b->n;
    if (group->kind == G_GEMM)
        buf_printf(b, "gemm %llu x %llu x %llu", (unsigned long long)m->m, (unsigned long long)m->n,
                   (unsigned long long)m->k);
    else
        buf_printf(b, "%s %s", names[group->kind], e->g->kernels[group->kernel].name);
    buf_printf(b, "%*s", b->n - start < 34 ? (int)(34 - (b->n - start)) : 0, "");
}

// Why it is not one with its producer. fuse keeps the sentence alone: of which segment the producers are is seen here.
static void put_why(const Explain *e, const Group *group, Buf *b)
{
    if (!group->why) return;
    buf_printf(b, "\n      not one with what comes before: %s", group->why);
    const char *space = ": ";
    for (size_t i = 0; group->why == why_other_segment && i < vec_len(group->reads); i++) {
        uint32_t from = e->g->group_of[group->reads[i]];
        if (!from || e->g->groups[from - 1].seg == group->seg) continue;
        buf_puts(b, space), put_value(e, group->reads[i], b);
        buf_printf(b, " is of %s", plan_segment_name(seg_id(e->g->groups[from - 1].seg)));
        space = ", ";
    }
}

static char *entry_text(const Explain *e, const Group *group)
{
    Buf b = {0}, bytes = {0}, place = {0};
    put_kind(e, group, &b);
    buf_amount(&bytes, (double)group->bytes, "B");
    buf_printf(&b, " %8s  %s:", bytes.s, node_place(e->g, group->nodes[0], &place));
    put_values(e, " reads", group->reads, &b);
    put_values(e, vec_len(group->reads) ? "; writes" : " writes", group->writes, &b);
    put_why(e, group, &b);
    buf_free(&bytes), buf_free(&place);
    char *with_segment = xmalloc(b.n + 16);
    snprintf(with_segment, b.n + 16, "%-6s %s", plan_segment_name(seg_id(group->seg)), b.s);
    buf_free(&b);
    return with_segment;
}

static void add_entry(Explain *e, const Group *group, int layer)
{
    char *text = entry_text(e, group);
    size_t i = 0;
    while (i < vec_len(e->entries) && ((e->entries[i].first < 0) != (layer < 0) || strcmp(e->entries[i].text, text)))
        i++;
    if (i == vec_len(e->entries))
        vec_push(e->entries, (Entry){text, 0, layer, layer});
    else
        free(text);
    Entry *entry = &e->entries[i];
    entry->count++;
    entry->first = min_of(entry->first, layer), entry->last = max_of(entry->last, layer);
}

static void put_entries(Explain *e)
{
    for (size_t i = 0; i < vec_len(e->entries); i++) {
        const Entry *x = &e->entries[i];
        char layers[40] = "", count[24] = "";
        if (x->first >= 0 && x->first == x->last)
            snprintf(layers, sizeof layers, "layer %d", x->first);
        else if (x->first >= 0)
            snprintf(layers, sizeof layers, "layers %d..%d", x->first, x->last);
        if (x->count > 1) snprintf(count, sizeof count, "x %d", x->count);
        fprintf(e->out, "  %-5s%-13s%s\n", count, layers, x->text);
        free(x->text);
    }
    vec_free(e->entries);
}

// A layer that nodes of the line have in the group, -1 if they are outside all; -2: it has none of them.
static int layer_here(const Explain *e, const Group *group)
{
    int found = -2;
    for (size_t i = 0; i < vec_len(group->nodes); i++) {
        Val v = group->nodes[i];
        if (e->cause[v] && e->layer[v] >= 0 && e->layer[v] < e->g->nlayers) return e->layer[v];
        if (e->cause[v]) found = -1;
    }
    return found;
}

static void put_kernels(Explain *e)
{
    double bytes = 0, flops = 0;
    size_t n = 0;
    for (size_t i = 0; i < vec_len(e->g->groups); i++) {
        const Group *group = &e->g->groups[i];
        int layer = layer_here(e, group);
        if (layer == -2 || group->kind == G_START || group->kind == G_WAIT) continue;
        add_entry(e, group, layer);
        bytes += (double)group->bytes, flops += (double)group->flops, n++;
    }
    if (!n) {
        fprintf(e->out, "no kernel: nothing of it has to be computed by itself\n");
        return;
    }
    fprintf(e->out, "in these kernels (a kernel may hold other lines' nodes, too; gemm m x n x k; bytes read and "
                    "written, of one)\n");
    put_entries(e);
    Buf total = {0};
    buf_amount(&total, bytes, "B"), buf_puts(&total, ", "), buf_amount(&total, flops, "FLOP");
    fprintf(e->out, "total %zu launch%s, %s (of contractions and attention); F and B run once a micro-batch\n", n,
            n == 1 ? "" : "es", total.s);
    buf_free(&total);
}

// ---- the whole
static void put_callers(const Explain *e)
{
    const Caller *first = &e->callers[0];
    fprintf(e->out, "%s, defined there, is called", first->op);
    for (size_t i = 0; i < vec_len(e->callers); i++) {
        const Caller *c = &e->callers[i];
        const LocInfo *l = &e->g->locs[c->loc];
        if (i) fprintf(e->out, ",");
        if (c->inside) fprintf(e->out, " by %s", c->inside);
        if (c->loc) fprintf(e->out, " at %s:%d", base_name(l->file), l->line);
        if (c->calls > 1) fprintf(e->out, " (%d times)", c->calls);
        if (!c->left) fprintf(e->out, " (nothing is left of it)");
    }
    fprintf(e->out, "\n");
}

static void put_causes(Explain *e)
{
    if (e->callers[0].op) put_callers(e);
    for (size_t i = 0; i < vec_len(e->callers); i++) {
        const Caller *c = &e->callers[i];
        size_t count = 0;
        for (Val v = 1; v < vec_len(e->g->nodes); v++) count += e->cause[v] == i + 1;
        if (!count) continue;
        if (!c->op)
            fprintf(e->out, "%s", e->asked);
        else if (c->loc)
            fprintf(e->out, "%s at %s:%d", c->inside ? c->inside : c->op, base_name(e->g->locs[c->loc].file),
                    e->g->locs[c->loc].line);
        else
            fprintf(e->out, "%s", c->inside ? c->inside : c->op);
        fprintf(e->out, " caused %zu node%s\n", count, count == 1 ? "" : "s");
        put_nodes(e, (uint32_t)i + 1);
    }
    put_kernels(e);
    explain_comm(e->g, e->cause, e->layer, e->out);
}

// A line that ran, and of which no stage has anything; or one that is not of the description at all.
static void put_nothing(const Explain *e)
{
    for (Loc i = 1; i < vec_len(e->g->locs); i++) {
        if (!is_here(e, i)) continue;
        fprintf(e->out,
                "%s ran, and nothing of the graph comes from it: it makes no values, they were folded away, or "
                "nothing needs them\n",
                e->asked);
        return;
    }
    fatal("--explain: nothing of the graph comes from %s", e->asked);
}

// False: the stage has nothing of the line.
static bool explain_stage(Explain *all, const Graph *g)
{
    Explain e = {.g = g, .asked = all->asked, .file = all->file, .line = all->line, .out = all->out};
    size_t n = vec_len(g->nodes);
    e.live = xcalloc(n, sizeof *e.live), e.layer = xcalloc(n, sizeof *e.layer), e.cause = xcalloc(n, sizeof *e.cause);
    graph_mark_live(g, e.live);
    find_layers(&e);
    if (!mark_line(&e)) mark_calls(&e);
    bool any = e.callers != NULL;
    if (any && g->nstages > 1) fprintf(e.out, "stage %d\n", g->stage);
    if (any) put_causes(&e);
    vec_free(e.callers);
    free(e.live), free(e.layer), free(e.cause);
    return any;
}

void explain(const Program *prog, const char *file_line, FILE *out)
{
    Explain e = {.g = prog->stages[0], .asked = file_line, .out = out};
    const char *colon = split_place(file_line, &e.line);
    char *file = xstrdup(file_line);
    file[colon - file_line] = 0;
    e.file = file;
    bool any = false;
    for (int s = 0; s < prog->nstages; s++) any |= explain_stage(&e, prog->stages[s]);
    if (!any) put_nothing(&e);
    free(file);
}
