// eval.c: reference evaluator (see eval.h). One loop over positions serves all kinds: `pos` holds the position on every
// axis of the graph, a value is read at the positions of its own axes. Nothing here knows strides of anything else.
#include "eval.h"
#include <math.h>

typedef struct Eval {
    Graph *g;
    struct Eval *all;  // eval_ranks: those of all ranks; this is all[rank]
    uint32_t rank, ranks;
    EvalRankLeaf rank_leaf;
    double **value;
    double **part[3];  // second and third results: part[1][v], part[2][v]
    int64_t *pos;      // by axis
    bool round;
    EvalLeaf leaf;
    void *ctx;
} Eval;

static int64_t element(const Eval *e, const Node *n)
{
    int64_t at = 0;
    for (int i = 0; i < n->naxes; i++) at = at * extent_of(e->g, n->axes[i]) + e->pos[n->axes[i]];
    return at;
}

static double *slot(const Eval *e, Val v) { return &e->value[v][element(e, node_of(e->g, v))]; }
static double get(const Eval *e, Val v) { return *slot(e, v); }

// Positions over axes, last fastest: `start(); do ... while (step());`
static void start(Eval *e, int n, const Axis *axes)
{
    for (int i = 0; i < n; i++) e->pos[axes[i]] = 0;
}
static bool step(Eval *e, int n, const Axis *axes)
{
    for (int i = n; i-- > 0;) {
        if (++e->pos[axes[i]] < extent_of(e->g, axes[i])) return true;
        e->pos[axes[i]] = 0;
    }
    return false;
}

static double rounded(DType t, double x)
{
    if (t == F32) return (float)x;
    if (t != BF16) return x;
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    if (f != f) return x;
    uint32_t rest = bits & 0xffff;
    bits &= 0xffff0000u;
    if (rest > 0x8000 || (rest == 0x8000 && (bits & 0x10000))) bits += 0x10000;
    memcpy(&f, &bits, 4);
    return f;
}

// --------------------------------------------------------------------------------------------------------- maps
static double map(const Node *n, double a, double b, double c)
{
    bool nan = isnan(a) || isnan(b);
    switch ((Fn)n->fn) {
    case FN_NEG: return -a;
    case FN_ADD: return a + b;
    case FN_SUB: return a - b;
    case FN_MUL: return a * b;
    case FN_DIV: return a / b;
    case FN_POW: return pow(a, b);
    case FN_LT: return a < b;
    case FN_LE: return a <= b;
    case FN_EQ: return a == b;
    case FN_NE: return a != b;
    case FN_AND: return a && b;
    case FN_OR: return a || b;
    case FN_NOT: return !a;
    case FN_WHERE: return a ? b : c;
    case FN_EXP: return exp(a);
    case FN_LOG: return log(a);
    case FN_SQRT: return sqrt(a);
    case FN_RSQRT: return 1 / sqrt(a);
    case FN_TANH: return tanh(a);
    case FN_SIGMOID: return 1 / (1 + exp(-a));
    case FN_ERF: return erf(a);
    case FN_SIN: return sin(a);
    case FN_COS: return cos(a);
    case FN_ABS: return fabs(a);
    case FN_SIGN: return isnan(a) ? a : a > 0 ? 1 : a < 0 ? -1 : 0;
    case FN_FLOOR: return floor(a);
    case FN_MIN: return nan ? NAN : a < b ? a : b;
    case FN_MAX: return nan ? NAN : a > b ? a : b;
    case FN_STOP: return a;
    case FN_CAST: return n->dtype == I32 ? trunc(a) : a;
    case FN_COUNT: break;
    }
    bug("function %d", n->fn);
}

static void eval_map(Eval *e, const Node *n, double *out)
{
    start(e, n->naxes, n->axes);
    do {
        double x[3] = {0};
        for (int i = 0; i < n->nin; i++) x[i] = get(e, n->in[i]);
        *out++ = map(n, x[0], x[1], x[2]);
    } while (step(e, n->naxes, n->axes));
}

// ---------------------------------------------------------------------------------------------- reduce, contract
static void eval_reduce(Eval *e, const Node *n, double *out)
{
    static const double first[] = {0, -INFINITY, INFINITY};
    int64_t count = 1;
    for (int i = 0; i < n->naxes; i++) count *= extent_of(e->g, n->axes[i]);
    for (int64_t i = 0; i < count; i++) out[i] = first[n->reduce];
    const Node in = *node_of(e->g, n->in[0]);
    start(e, in.naxes, in.axes);
    do {
        double x = get(e, n->in[0]), *y = &out[element(e, n)];
        if (n->reduce == RED_SUM) *y += x;
        else if (isnan(x) || isnan(*y)) *y = NAN;
        else if (n->reduce == RED_MAX ? x > *y : x < *y) *y = x;
    } while (step(e, in.naxes, in.axes));
}

static void eval_contract(Eval *e, const Node *n, double *out)
{
    Axis all[2 * MAX_AXES];
    int nall = 0;
    for (int i = 0; i < n->naxes; i++) all[nall++] = n->axes[i];
    for (int i = 0; i < n->u.over.n; i++) all[nall++] = n->u.over.axes[i];
    start(e, nall, all);
    do out[element(e, n)] += get(e, n->in[0]) * get(e, n->in[1]);
    while (step(e, nall, all));
}

// --------------------------------------------------------------------------------------------------- positions
static void eval_gather(Eval *e, const Node *n, double *out)
{
    start(e, n->naxes, n->axes);
    do {
        int64_t at = (int64_t)get(e, n->in[1]), keep = e->pos[n->u.axis];
        e->pos[n->u.axis] = at;
        *out++ = at >= 0 && at < extent_of(e->g, n->u.axis) ? get(e, n->in[0]) : 0;
        e->pos[n->u.axis] = keep;
    } while (step(e, n->naxes, n->axes));
}

static void eval_scatter_add(Eval *e, const Node *n, double *out)
{
    const Node dy = *node_of(e->g, n->in[0]);
    start(e, dy.naxes, dy.axes);
    do {
        double x = get(e, n->in[0]);
        int64_t at = (int64_t)get(e, n->in[1]), keep = e->pos[n->u.axis];
        e->pos[n->u.axis] = at;
        if (at >= 0 && at < extent_of(e->g, n->u.axis)) out[element(e, n)] += x;
        e->pos[n->u.axis] = keep;
    } while (step(e, dy.naxes, dy.axes));
}

// Position on the source axis of one index.
static int64_t position(const Eval *e, const ViewIndex *x)
{
    int64_t p = x->offset;
    for (int t = 0; t < x->nterms; t++) p += x->coef[t] * e->pos[x->axis[t]];
    if (x->div > 1) p /= x->div;
    return x->mod > 0 ? p % x->mod : p;
}

static void eval_view(Eval *e, const Node *n, double *out)
{
    const View *view = n->u.view;
    start(e, n->naxes, n->axes);
    do {
        int64_t at[MAX_AXES], keep[MAX_AXES];
        bool inside = true;
        for (int i = 0; i < view->n; i++) {
            at[i] = position(e, &view->ix[i]);
            bool in = at[i] >= 0 && at[i] < extent_of(e->g, view->ix[i].src);
            if (!in && !view->ix[i].zero) bug("a view reads outside");
            inside &= in;
        }
        for (int i = 0; i < view->n; i++) keep[i] = e->pos[view->ix[i].src], e->pos[view->ix[i].src] = at[i];
        *out++ = inside ? get(e, n->in[0]) : 0;
        for (int i = view->n; i-- > 0;) e->pos[view->ix[i].src] = keep[i];
    } while (step(e, n->naxes, n->axes));
}

// ----------------------------------------------------------------------------------------------------- attention
// q[i] . k[j] at the current positions of all axes but seq and head_dim; `b` is read at key j.
static double inner(Eval *e, const Attention *a, Val x, int64_t i, Val y, int64_t j)
{
    double sum = 0;
    for (int64_t d = 0; d < extent_of(e->g, a->head_dim); d++) {
        e->pos[a->head_dim] = d;
        e->pos[a->seq] = i;
        double left = get(e, x);
        e->pos[a->seq] = j;
        sum += left * get(e, y);
    }
    e->pos[a->seq] = i;
    return sum;
}

// Of query i = pos[seq]: weights of all keys (caller frees), and the log of their sum.
static double *probabilities(Eval *e, const Node *n, double *lse)
{
    const Attention *a = n->u.attention;
    int64_t i = e->pos[a->seq], count = extent_of(e->g, a->seq);
    double *p = xcalloc((size_t)count, sizeof *p), top = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        p[j] = (double)(i - j) < a->window ? a->scale * inner(e, a, n->in[0], i, n->in[1], j) : -INFINITY;
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j <= i; j++) sum += p[j] = exp(p[j] - top);
    for (int64_t j = 0; j <= i; j++) p[j] /= sum;
    *lse = top + log(sum);
    return p;
}

// The axes of the result without head_dim: one row of scores each.
static int rows_of(const Node *n, Axis *rows)
{
    int count = 0;
    for (int i = 0; i < n->naxes; i++)
        if (n->axes[i] != n->u.attention->head_dim) rows[count++] = n->axes[i];
    return count;
}

static void eval_attention(Eval *e, const Node *n, Val v, double *out)
{
    const Attention *a = n->u.attention;
    Axis rows[MAX_AXES];
    int nrows = rows_of(n, rows);
    double *lse = e->part[1][v] = xcalloc((size_t)elements(e->g, v), sizeof *lse);
    start(e, nrows, rows);
    do {
        double *p = probabilities(e, n, lse++);
        int64_t i = e->pos[a->seq];
        for (int64_t j = 0; j <= i; j++)
            for (int64_t d = 0; d < extent_of(e->g, a->head_dim); d++) {
                e->pos[a->head_dim] = d;
                e->pos[a->seq] = j;
                double value = get(e, n->in[2]);
                e->pos[a->seq] = i;
                out[element(e, n)] += p[j] * value;
            }
        free(p);
    } while (step(e, nrows, rows));
}

static void eval_attention_grad(Eval *e, const Node *n, Val v, double *dq)
{
    const Attention *a = n->u.attention;
    Val q = n->in[0], k = n->in[1], val = n->in[2], out = n->in[3], dout = n->in[5];
    const Node nk = *node_of(e->g, k), nv = *node_of(e->g, val);
    double *dk = e->part[1][v] = xcalloc((size_t)elements(e->g, k), sizeof *dk);
    double *dv = e->part[2][v] = xcalloc((size_t)elements(e->g, val), sizeof *dv);
    Axis rows[MAX_AXES];
    int nrows = rows_of(n, rows);
    start(e, nrows, rows);
    do {
        double lse, *p = probabilities(e, n, &lse);
        int64_t i = e->pos[a->seq];
        double own = inner(e, a, dout, i, out, i);
        for (int64_t j = 0; j <= i; j++) {
            double ds = a->scale * p[j] * (inner(e, a, dout, i, val, j) - own);
            for (int64_t d = 0; d < extent_of(e->g, a->head_dim); d++) {
                e->pos[a->head_dim] = d;
                double query = get(e, q), up = get(e, dout);
                e->pos[a->seq] = j;
                double key = get(e, k);
                dk[element(e, &nk)] += ds * query;
                dv[element(e, &nv)] += p[j] * up;
                e->pos[a->seq] = i;
                dq[element(e, n)] += ds * key;
            }
        }
        free(p);
    } while (step(e, nrows, rows));
}

// ------------------------------------------------------------------------------------------------------ between ranks
static bool is_peer(const Eval *e, uint32_t other, CommKey key)
{
    for (int f = 0; f < MESH_FACTORS; f++)
        if (!(key.mesh >> f & 1) && mesh_coord(e->g->mesh.size, e->rank, f) != mesh_coord(e->g->mesh.size, other, f)) return false;
    return true;
}

// Element i of [outer][whole][inner] for element `at` of the member's [outer][part][inner].
static int64_t in_whole(int64_t at, int64_t part, int64_t whole, int64_t inner, int64_t member)
{
    int64_t outer = at / (part * inner), rest = at % (part * inner);
    return (outer * whole + member * part) * inner + rest;
}

static void eval_reshard(Eval *e, const Node *n, double *out, int64_t count)
{
    const Reshard *r = n->u.reshard;
    const Node *in = node_of(e->g, n->in[0]);
    int64_t inner = 1, part = r->part ? extent_of(e->g, r->part) : 1, whole = r->axis ? extent_of(e->g, r->axis) : 1, seen = 0;
    int at = r->axis ? axis_find(in, r->how == COLL_ALL_GATHER ? r->part : r->axis) : -1;
    for (int i = at + 1; i < in->naxes && at >= 0; i++) inner *= extent_of(e->g, in->axes[i]);
    int64_t mine = mesh_index(e->g->mesh.size, e->rank, r->key.mesh), incount = elements(e->g, n->in[0]);
    for (uint32_t other = 0; other < e->ranks; other++) {
        if (!is_peer(e, other, r->key)) continue;
        const double *x = e->all[other].value[n->in[0]];
        for (int64_t i = 0; i < (r->how == COLL_ALL_GATHER ? incount : count); i++) {
            if (r->how == COLL_ALL_GATHER) {
                out[in_whole(i, part, whole, inner, seen)] = x[i];
                continue;
            }
            int64_t from = r->how == COLL_ALL_REDUCE ? i : in_whole(i, part, whole, inner, mine);
            double y = from < incount ? x[from] : 0;  // parts of a flat storage may be longer than it
            out[i] = !seen ? y : r->reduce == REDUCE_SUM ? out[i] + y : r->reduce == REDUCE_MAX ? fmax(out[i], y) : fmin(out[i], y);
        }
        seen++;
    }
}

static void eval_slice(Eval *e, const Node *n, double *out, int64_t count)
{
    int64_t from = count * mesh_index(e->g->mesh.size, e->rank, n->u.reshard->key.mesh), all = elements(e->g, n->in[0]);
    for (int64_t i = 0; i < count; i++) out[i] = from + i < all ? e->value[n->in[0]][from + i] : 0;
}

// -------------------------------------------------------------------------------------------------------- graph
static void eval_leaf(Eval *e, Val v, double *out, int64_t count)
{
    if (e->all) e->rank_leaf(e->ctx, e->g, e->rank, v, out, count);
    else e->leaf(e->ctx, e->g, v, out, count);
}

static void add_accumulates(Eval *e, const Node *n, double *out, int64_t count);

static void eval_total(Eval *e, const Node *n, double *out, int64_t count)
{
    const Acc *acc = &e->g->accs[n->u.id];
    if (!e->all || acc->param < 0) {
        add_accumulates(e, n, out, count);
        return;
    }
    for (uint32_t other = 0; other < e->ranks; other++)
        if (is_peer(e, other, acc->key)) add_accumulates(&e->all[other], n, out, count);
}

static void add_accumulates(Eval *e, const Node *n, double *out, int64_t count)
{
    for (Val v = 1; v < vec_len(e->g->nodes); v++) {
        const Node *a = node_of(e->g, v);
        if (a->kind == K_ACCUMULATE && a->u.id == n->u.id && e->value[v])
            for (int64_t i = 0; i < count; i++) out[i] += e->value[v][i];
    }
}

static void eval_node(Eval *e, Val v)
{
    const Node copy = *node_of(e->g, v), *n = &copy;
    int64_t count = elements(e->g, v);
    double *out = e->value[v] = xcalloc((size_t)count, sizeof *out);
    switch ((Kind)n->kind) {
    case K_INPUT: case K_PARAM: case K_STATE: case K_SCALAR: case K_RANDOM: eval_leaf(e, v, out, count); break;
    case K_TOTAL: eval_total(e, n, out, count); break;
    case K_CONST: out[0] = n->u.num; break;
    case K_INDEX: for (int64_t i = 0; i < count; i++) out[i] = (double)i; break;
    case K_MAP: eval_map(e, n, out); break;
    case K_REDUCE: eval_reduce(e, n, out); break;
    case K_CONTRACT: eval_contract(e, n, out); break;
    case K_GATHER: eval_gather(e, n, out); break;
    case K_SCATTER_ADD: eval_scatter_add(e, n, out); break;
    case K_VIEW: eval_view(e, n, out); break;
    case K_ATTENTION: eval_attention(e, n, v, out); break;
    case K_ATTENTION_GRAD: eval_attention_grad(e, n, v, out); break;
    case K_PART: memcpy(out, e->part[n->u.id][n->in[0]], (size_t)count * sizeof *out); break;
    case K_RESHARD: eval_reshard(e, n, out, count); break;
    case K_ACCUMULATE: case K_UPDATE: memcpy(out, e->value[n->in[0]], (size_t)count * sizeof *out); break;
    case K_SLICE: eval_slice(e, n, out, count); break;
    case K_NONE: case K_RECV: case KIND_COUNT: bug("kind %d", n->kind);
    }
    if (e->round)
        for (int64_t i = 0; i < count; i++) out[i] = rounded((DType)n->dtype, out[i]);
}

static Eval eval_new(Graph *g)
{
    size_t n = vec_len(g->nodes);
    Eval e = {.g = g};
    e.value = xcalloc(n, sizeof *e.value);
    for (int i = 1; i < 3; i++) e.part[i] = xcalloc(n, sizeof *e.part[i]);
    e.pos = xcalloc(vec_len(g->axes), sizeof *e.pos);
    return e;
}

static void eval_done(Eval *e)
{
    for (int i = 1; i < 3; i++) {
        for (size_t v = 0; v < vec_len(e->g->nodes); v++) free(e->part[i][v]);
        free(e->part[i]);
    }
    free(e->pos);
}

// What waits for a TOTAL, which waits for the ACCUMULATEs.
static uint8_t *late_nodes(Graph *g)
{
    uint8_t *late = xcalloc(vec_len(g->nodes), 1);
    for (Val v = 1; v < vec_len(g->nodes); v++) {
        late[v] = node_of(g, v)->kind == K_TOTAL;
        for (int i = 0; i < node_of(g, v)->nin; i++) late[v] |= late[node_of(g, v)->in[i]];
    }
    return late;
}

double ***eval_ranks(Graph *g, uint32_t ranks, EvalRankLeaf leaf, void *ctx)
{
    Eval *all = xcalloc(ranks, sizeof *all);
    double ***values = xcalloc(ranks, sizeof *values);
    uint8_t *late = late_nodes(g);
    for (uint32_t r = 0; r < ranks; r++) {
        all[r] = eval_new(g);
        all[r].all = all, all[r].rank = r, all[r].ranks = ranks, all[r].rank_leaf = leaf, all[r].ctx = ctx;
        values[r] = all[r].value;
    }
    for (int then = 0; then < 2; then++)
        for (Val v = 1; v < vec_len(g->nodes); v++)
            for (uint32_t r = 0; r < ranks && late[v] == then; r++) eval_node(&all[r], v);
    for (uint32_t r = 0; r < ranks; r++) eval_done(&all[r]);
    free(all), free(late);
    return values;
}

double **eval_graph(Graph *g, bool round, EvalLeaf leaf, void *ctx)
{
    size_t n = vec_len(g->nodes);
    Eval e = eval_new(g);
    e.round = round, e.leaf = leaf, e.ctx = ctx;
    uint8_t *late = late_nodes(g);
    for (int then = 0; then < 2; then++)
        for (Val v = 1; v < n; v++)
            if (late[v] == then) eval_node(&e, v);
    eval_done(&e);
    free(late);
    return e.value;
}

void eval_free(const Graph *g, double **values)
{
    for (size_t v = 0; v < vec_len(g->nodes); v++) free(values[v]);
    free(values);
}
