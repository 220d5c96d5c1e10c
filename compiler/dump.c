// dump.c: the graph as text, the same text for the same graph.
//
//   graph llama f32 seq 64 micro_batch 8 accum 1
//   axis batch 8
//   param 0 embed.weight %3 acc 2
//   %12 f32 [batch seq hidden] = mul %10 %11            ; rmsnorm llama.lua:21 F layer 3
//
// Behind the semicolon: the op call and its place, the segment (F or B before pass save has set any: forward or
// backward), the layer, if it is in one or after them. A view shows, for every axis of its operand that is read
// elsewhere, {axis = position}; `|0`: 0 outside. Nodes are numbered as they lie in the graph.
#include "pico.h"
#include <inttypes.h>
#include <math.h>

// Is there another axis of this name: a part of it, or the whole that it is part of?
static bool has_parts(const Graph *g, Axis a)
{
    for (size_t i = 1; i < vec_len(g->axes); i++)
        if (i != a && g->axes[i].name == g->axes[a].name) return true;
    return false;
}

static void put_axes(const Graph *g, int naxes, const Axis *axes, Buf *out)
{
    bool split = g->mesh.size[MESH_AT_KV] * g->mesh.size[MESH_AT_GROUP] > 1;
    buf_puts(out, "[");
    for (int i = 0; i < naxes; i++) {
        buf_printf(out, "%s%s", i ? " " : "", axis_name(g, axes[i]));
        if (split && has_parts(g, axes[i])) buf_printf(out, ":%" PRId64, extent_of(g, axes[i]));
    }
    buf_puts(out, "]");
}

static void put_number(double x, Buf *out)
{
    if (isinf(x)) buf_puts(out, x < 0 ? "-inf" : "inf");
    else if (isnan(x)) buf_puts(out, "nan");
    else if (x == floor(x) && fabs(x) < 1e15) buf_printf(out, "%.0f", x);
    else buf_printf(out, "%.9g", x);
}

static void put_position(const Graph *g, const ViewIndex *x, Buf *out)
{
    bool quotient = x->div > 1 || x->mod > 0, first = true;
    if (quotient && (x->nterms > 1 || x->offset)) buf_puts(out, "(");
    for (int t = 0; t < x->nterms; t++, first = false) {
        int64_t coef = x->coef[t];
        buf_puts(out, coef < 0 ? "-" : first ? "" : "+");
        if (coef != 1 && coef != -1) buf_printf(out, "%" PRId64 "*", coef < 0 ? -coef : coef);
        buf_puts(out, axis_name(g, x->axis[t]));
    }
    if (first || x->offset) buf_printf(out, first ? "%" PRId64 : "%+" PRId64, x->offset);
    if (quotient && (x->nterms > 1 || x->offset)) buf_puts(out, ")");
    if (x->div > 1) buf_printf(out, "/%" PRId64, x->div);
    if (x->mod > 0) buf_printf(out, "%%%" PRId64, x->mod);
}

static void put_view(const Graph *g, const View *view, Buf *out)
{
    buf_puts(out, " {");
    for (int i = 0; i < view->n; i++) {
        buf_printf(out, "%s%s = ", i ? ", " : "", axis_name(g, view->ix[i].src));
        put_position(g, &view->ix[i], out);
        if (view->ix[i].zero) buf_puts(out, "|0");
    }
    buf_puts(out, "}");
}

static const char *const coordinates[MESH_FACTORS] = {"group coordinate", "kv coordinate", "cp coordinate", "pp coordinate",
                                                      "dp coordinate"};

// The name behind a leaf's or accumulate's number.
static const char *table_name(const Graph *g, const Node *n)
{
    switch (n->kind) {
    case K_INPUT: return n->u.id < vec_len(g->inputs) ? g->inputs[n->u.id].name : "?";
    case K_PARAM: return n->u.id < vec_len(g->params) ? g->params[n->u.id].name : "?";
    case K_STATE: return n->u.id < vec_len(g->states) ? g->states[n->u.id].name : "?";
    case K_TOTAL: case K_ACCUMULATE: return n->u.id < vec_len(g->accs) ? g->accs[n->u.id].name : "?";
    case K_SCALAR:
        for (size_t i = 0; i < vec_len(g->scalars); i++)
            if (g->scalars[i].slot == n->u.id) return g->scalars[i].name;
        return n->u.id >= SLOT_COORD && n->u.id < SLOT_NAMED ? coordinates[n->u.id - SLOT_COORD] : "?";
    default: return NULL;
    }
}

static void put_operands(const Node *n, Buf *out)
{
    for (int i = 0; i < n->nin; i++) buf_printf(out, " %%%u", n->in[i]);
}

// "tp", "dp", "kv dp stages 0 3"
static void put_key(const Graph *g, CommKey key, Buf *out)
{
    static const char *const names[MESH_FACTORS] = {"group", "kv", "cp", "pp", "dp"};
    uint32_t mesh = key.mesh;
    const char *between = "";
    for (int f = MESH_AT_GROUP; f <= MESH_AT_KV && mesh & MESH_TP; f++)
        if (g->mesh.size[f] == 1) mesh |= 1u << f;  // the other one is tp
    if ((mesh & MESH_TP) == MESH_TP) buf_puts(out, "tp"), mesh &= ~(uint32_t)MESH_TP, between = " ";
    for (int f = 0; f < MESH_FACTORS; f++)
        if (mesh >> f & 1) buf_printf(out, "%s%s", between, names[f]), between = " ";
    for (int s = 0; s < 64 && key.stages; s++)
        if (key.stages >> s & 1) buf_printf(out, "%s%d", s && key.stages & ((1ull << s) - 1) ? "+" : " stages ", s);
}

static void put_reshard(const Graph *g, const Reshard *r, Buf *out)
{
    static const char *const how[] = {"all-reduce", "reduce-scatter", "all-gather"}, *const reduce[] = {"", " max", " min"};
    buf_printf(out, " {%s%s", how[r->how], r->how == COLL_ALL_GATHER ? "" : reduce[r->reduce]);
    if (r->axis) buf_printf(out, " %s", axis_name(g, r->axis));
    buf_puts(out, " over ");
    put_key(g, r->key, out);
    if (r->batch) buf_printf(out, " joint %u.%u", r->batch / BATCH_LEVEL, r->batch % BATCH_LEVEL);
    buf_printf(out, ": %s}", r->why);
}

static void put_operation(const Graph *g, const Node *n, Buf *out)
{
    static const char *const reductions[] = {"sum", "max", "min"};
    switch (n->kind) {
    case K_MAP: buf_puts(out, fn_info[n->fn].name); break;
    case K_REDUCE: buf_puts(out, reductions[n->reduce]); break;
    default: buf_puts(out, kind_info[n->kind].name); break;
    }
    if (n->kind == K_REDUCE || n->kind == K_CONTRACT) put_axes(g, n->u.over.n, n->u.over.axes, out);
    if (n->kind == K_GATHER || n->kind == K_SCATTER_ADD) put_axes(g, 1, &n->u.axis, out);
    put_operands(n, out);
    switch (n->kind) {
    case K_CONST: buf_puts(out, " "), put_number(n->u.num, out); break;
    case K_INDEX: buf_printf(out, " %s", axis_name(g, n->u.axis)); break;
    case K_RANDOM: case K_PART: buf_printf(out, " %u", n->u.id); break;
    case K_VIEW: put_view(g, n->u.view, out); break;
    case K_ATTENTION: case K_ATTENTION_GRAD:
        buf_printf(out, " {seq = %s, head_dim = %s, scale = ", axis_name(g, n->u.attention->seq),
                   axis_name(g, n->u.attention->head_dim));
        put_number(n->u.attention->scale, out);
        buf_puts(out, ", window = ");
        put_number(n->u.attention->window, out);
        buf_puts(out, "}");
        break;
    case K_RESHARD: put_reshard(g, n->u.reshard, out); break;
    case K_SLICE: buf_puts(out, " of "), put_key(g, n->u.reshard->key, out); break;
    case K_RECV:
        if (n->u.id < vec_len(g->transfers))
            buf_printf(out, " %u from stage %u", g->transfers[n->u.id].tag, g->transfers[n->u.id].peer);
        break;
    default:
        if (table_name(g, n)) buf_printf(out, " %u \"%s\"", n->u.id, table_name(g, n));
    }
}

// A file is shown without its folder: dumps, labels and plans are the same wherever the description lies.
const char *node_place(const Graph *g, Val v, Buf *out)
{
    const Node *n = &g->nodes[v];
    const OpCall *op = n->op ? &g->ops[n->op] : NULL;
    Loc at = op ? op->loc : n->loc;
    if (op) buf_puts(out, op->name);
    if (at) buf_printf(out, "%s%s:%d", op ? " " : "", base_name(g->locs[at].file), g->locs[at].line);
    if (!out->s) buf_puts(out, "");
    return out->s;
}

void node_dump(const Graph *g, Val v, Buf *out)
{
    static const char *const segments[SEG_COUNT] = {"INIT", "PREP", "F", "B", "W", "UPDATE"};
    const Node *n = &g->nodes[v];
    size_t start = out->n;
    buf_printf(out, "%%%u %s ", v, dtype_name((DType)n->dtype));
    put_axes(g, n->naxes, n->axes, out);
    buf_puts(out, " = ");
    put_operation(g, n, out);
    int width = (int)(out->n - start);
    buf_printf(out, "%*s ; ", width < 55 ? 55 - width : 0, "");
    size_t before = out->n;
    node_place(g, v, out);
    const char *segment = g->saved ? segments[seg_id(n->seg)] : n->backward ? "B" : "F";
    buf_printf(out, "%s%s", out->n > before ? " " : "", segment);
    if (g->nchunks > 1 && n->nin) buf_printf(out, " chunk %d", n->chunk);
    if (n->layer >= 0 && n->layer == g->nlayers) buf_puts(out, " after the layers");
    else if (n->layer >= 0) buf_printf(out, " layer %d", n->layer);
    if (g->saved && v < vec_len(g->saved) && g->saved[v]) buf_puts(out, " saved");
}

static void put_tables(const Graph *g, Buf *b)
{
    for (size_t i = 1; i < vec_len(g->axes); i++) buf_printf(b, "axis %s %" PRId64 "\n", g->axes[i].name, g->axes[i].extent);
    for (size_t i = 0; i < vec_len(g->inputs); i++)
        buf_printf(b, "input %zu %s %%%u shift %u limit %" PRId64 " ignore %d\n", i, g->inputs[i].name, g->inputs[i].val,
                   g->inputs[i].shift, g->inputs[i].limit, g->inputs[i].ignore);
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Param *p = &g->params[i];
        buf_printf(b, "param %zu %s %%%u", i, p->name, p->val);
        for (int d = 0; d < p->ndim; d++) buf_printf(b, "%s%" PRId64, d ? "x" : " ", p->dims[d]);
        buf_puts(b, p->init == INIT_NORMAL ? " normal " : " constant ");
        put_number(p->init_value, b);
        buf_printf(b, "%s acc %d\n", p->decay ? " decay" : "", p->acc);
    }
    for (size_t i = 0; i < vec_len(g->states); i++)
        buf_printf(b, "state %zu %s %%%u of param %d\n", i, g->states[i].name, g->states[i].val, g->states[i].param);
    for (size_t i = 0; i < vec_len(g->scalars); i++)
        buf_printf(b, "scalar %u %s %%%u\n", g->scalars[i].slot, g->scalars[i].name, g->scalars[i].val);
    for (size_t i = 0; i < vec_len(g->accs); i++)
    {
        buf_printf(b, "acc %zu %s %s %%%u", i, g->accs[i].name, dtype_name(g->accs[i].dtype), g->accs[i].total);
        if (g->accs[i].key.mesh) buf_puts(b, " over "), put_key(g, g->accs[i].key, b);
        buf_puts(b, "\n");
    }
    for (size_t i = 0; i < vec_len(g->transfers); i++) {
        const Transfer *t = &g->transfers[i];
        buf_printf(b, "%s %u %%%u %s stage %u%s", t->send ? "send" : "recv", t->tag, t->val, t->send ? "to" : "from", t->peer,
                   t->backward ? " backward" : "");
        if (g->nchunks > 1) buf_printf(b, " chunk %d", t->chunk);
        buf_puts(b, "\n");
    }
}

void graph_dump(const Graph *g, FILE *out)
{
    Buf b = {0};
    buf_printf(&b, "graph %s %s seq %" PRId64 " micro_batch %" PRId64 " accum %" PRId64 "\n", g->model ? g->model : "?",
               dtype_name(g->dtype), g->seq, g->micro_batch, g->accum);
    put_tables(g, &b);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        node_dump(g, v, &b);
        buf_puts(&b, "\n");
    }
    if (g->loss) buf_printf(&b, "loss %%%u\n", g->loss);
    for (size_t i = 0; i < vec_len(g->outputs); i++) buf_printf(&b, "output %s %%%u\n", g->outputs[i].name, g->outputs[i].val);
    groups_dump(g, &b);
    fputs(b.s, out);
    buf_free(&b);
}
