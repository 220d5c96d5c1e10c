// layout.c: where a value lies, when it lies in the storage of another one.
//
// A chain of views is a change of index. Walking it down from a value to the stored value below, every position
// on an axis of the current node is kept as a function of the positions on the axes of the value we came from:
//
//     offset + sum of coef * axis  +  sum of coef * (((offset + sum of coef * axis) / div) % mod)
//
// the second part being digits, which merged axes leave behind (a = c / B, b = c % B). Multiplied by the strides
// of the storage the digits usually melt: sb * (c % B) + sa * (c / B) is sb * c when sa = sb * B, that is, when a
// and b lie side by side. If any is left, or a view fills in zeros, the value is no window.
//
// Traps: division here rounds as C does, so a digit is only taken apart where its argument cannot be negative.
// A shift view that provably stays inside (its zeros are never read) is a window like any other.
#include "pico.h"

enum { MAX_DIGITS = 8 };
typedef struct { int64_t offset, coef[MAX_AXES]; } Linear;       // by the axes of the value asked for
typedef struct { Linear of; int64_t div, mod, coef; } Digit;     // mod 0: none
typedef struct { Linear linear; int n; Digit digit[MAX_DIGITS]; } Position;
typedef struct { int n; int64_t extent[MAX_AXES]; } Space;

static void linear_range(const Space *s, const Linear *l, int64_t *low, int64_t *high)
{
    *low = *high = l->offset;
    for (int i = 0; i < s->n; i++) {
        int64_t far = l->coef[i] * (s->extent[i] - 1);
        *(far < 0 ? low : high) += far;
    }
}

static bool linear_equal(const Space *s, const Linear *a, const Linear *b)
{
    return a->offset == b->offset && memcmp(a->coef, b->coef, sizeof *a->coef * (size_t)s->n) == 0;
}

static void linear_add(const Space *s, Linear *to, const Linear *l, int64_t times)
{
    to->offset += l->offset * times;
    for (int i = 0; i < s->n; i++) to->coef[i] += l->coef[i] * times;
}

// Writes l as by * quotient + rest, where rest stays in 0 .. by-1; false if it cannot be.
static bool linear_divide(const Space *s, const Linear *l, int64_t by, Linear *quotient, Linear *rest)
{
    *quotient = *rest = (Linear){0};
    for (int i = 0; i < s->n; i++) {
        bool whole = l->coef[i] % by == 0;
        if (whole) quotient->coef[i] = l->coef[i] / by;
        else rest->coef[i] = l->coef[i];
    }
    rest->offset = ((l->offset % by) + by) % by;
    quotient->offset = (l->offset - rest->offset) / by;
    int64_t low, high;
    linear_range(s, rest, &low, &high);
    return low >= 0 && high < by;
}

// Digits that are linear after all move to the linear part; neighbouring digits of one number become one.
static void position_simplify(const Space *s, Position *p)
{
    for (int i = 0; i < p->n; i++) {
        Digit *d = &p->digit[i];
        int64_t low, high;
        linear_range(s, &d->of, &low, &high);
        if (d->mod && low >= 0 && high / d->div < d->mod) d->mod = 0;
        for (int j = 0; j < p->n && d->mod; j++) {
            Digit *e = &p->digit[j];
            if (j == i || !linear_equal(s, &d->of, &e->of)) continue;
            if (e->div != d->div * d->mod || e->coef != d->coef * d->mod) continue;
            d->mod = e->mod ? d->mod * e->mod : 0;
            *e = p->digit[--p->n];
            position_simplify(s, p);
            return;
        }
        if (d->div == 1 && d->mod == 0) {
            linear_add(s, &p->linear, &d->of, d->coef);
            *d = p->digit[--p->n];
            i--;
        }
    }
}

static bool position_add(const Space *s, Position *to, const Position *p, int64_t times)
{
    if (times == 0) return true;
    linear_add(s, &to->linear, &p->linear, times);
    if (to->n + p->n > MAX_DIGITS) return false;
    for (int i = 0; i < p->n; i++) {
        to->digit[to->n] = p->digit[i];
        to->digit[to->n++].coef *= times;
    }
    return true;
}

// p = (p / div) % mod
static bool position_digit(const Space *s, Position *p, int64_t div, int64_t mod)
{
    position_simplify(s, p);
    if (div == 1 && mod == 0) return true;
    if (p->n) return false;
    int64_t low, high;
    linear_range(s, &p->linear, &low, &high);
    if (low < 0) return false;
    Linear l = p->linear, quotient, rest;
    if (linear_divide(s, &l, div, &quotient, &rest)) {
        l = quotient;
        div = 1;
        if (mod && linear_divide(s, &l, mod, &quotient, &rest)) {
            p->linear = rest;
            return true;
        }
    }
    *p = (Position){ .n = 1, .digit = { { l, div, mod, 1 } } };
    position_simplify(s, p);
    return true;
}

static const ViewIndex *view_index(const View *view, Axis src)
{
    for (int i = 0; i < view->n; i++)
        if (view->ix[i].src == src) return &view->ix[i];
    return NULL;
}

static bool stays_inside(const Space *s, Position *p, int64_t extent)
{
    position_simplify(s, p);
    if (p->n) return false;
    int64_t low, high;
    linear_range(s, &p->linear, &low, &high);
    return low >= 0 && high < extent;
}

// at: positions on the axes of the view `n`; becomes those on the axes of its operand. False: no window.
static bool through_view(const Graph *g, const Space *s, const Node *n, Position *at)
{
    const Node *operand = &g->nodes[n->in[0]];
    Position below[MAX_AXES];
    for (int i = 0; i < operand->naxes; i++) {
        const ViewIndex *x = view_index(n->u.view, operand->axes[i]);
        Position *p = &below[i];
        if (!x) {
            int same = axis_find(n, operand->axes[i]);
            if (same < 0) bug("view %%%u: no position for axis '%s'", (unsigned)(n - g->nodes), axis_name(g, operand->axes[i]));
            *p = at[same];
            continue;
        }
        *p = (Position){ .linear.offset = x->offset };
        for (int t = 0; t < x->nterms; t++)
            if (!position_add(s, p, &at[axis_find(n, x->axis[t])], x->coef[t])) return false;
        if (!position_digit(s, p, x->div ? x->div : 1, x->mod)) return false;
        if (x->zero && !stays_inside(s, p, extent_of(g, operand->axes[i]))) return false;
    }
    memcpy(at, below, sizeof *at * operand->naxes);
    return true;
}

bool is_storage(const Node *n)
{
    return n->kind == K_INPUT || n->kind == K_PARAM || n->kind == K_STATE || n->kind == K_TOTAL || n->kind == K_RECV
        || n->kind == K_SLICE;
}

// Values that a kernel makes wherever it needs them; nothing of theirs lies anywhere unless someone stores them.
static bool is_formula(const Node *n)
{
    return n->kind == K_CONST || n->kind == K_SCALAR || n->kind == K_INDEX || n->kind == K_RANDOM || n->kind == K_NONE;
}

Window window_of(const Graph *g, Val v)
{
    const Node *top = &g->nodes[v];
    Window w = { .base = v };
    Space s = { .n = top->naxes };
    Position at[MAX_AXES];
    for (int i = 0; i < s.n; i++) {
        s.extent[i] = extent_of(g, top->axes[i]);
        at[i] = (Position){0};
        at[i].linear.coef[i] = 1;
    }
    while (g->nodes[w.base].kind == K_VIEW && g->nodes[w.base].fn != VIEW_PACK && !(g->stored && g->stored[w.base])) {
        if (!through_view(g, &s, &g->nodes[w.base], at)) return w;
        w.base = g->nodes[w.base].in[0];
    }
    const Node *base = &g->nodes[w.base];
    if (is_formula(base) && !(g->stored && g->stored[w.base])) return w;
    Position address = {0};
    int64_t stride = 1;
    for (int i = base->naxes - 1; i >= 0; i--) {
        if (!position_add(&s, &address, &at[i], stride)) return w;
        stride *= extent_of(g, base->axes[i]);
    }
    position_simplify(&s, &address);
    if (address.n) return w;
    w.ok = true;
    w.offset = address.linear.offset;
    memcpy(w.stride, address.linear.coef, sizeof w.stride);
    return w;
}

// ---------------------------------------------------------------------------------------------- parts of a storage
Val leaf_of(const Graph *g, Val v) { return g->nodes[v].kind == K_SLICE ? g->nodes[v].in[0] : v; }

int64_t key_ranks(const Graph *g, CommKey key)
{
    int64_t n = 1;
    for (int f = 0; f < MESH_FACTORS; f++)
        if (f != MESH_AT_PP && key.mesh >> f & 1) n *= g->mesh.size[f];
    int64_t stages = 0;
    for (int s = 0; s < g->nstages; s++) stages += key.stages >> s & 1;
    return key.mesh & MESH_PP ? n * stages : n;
}

// Does it split or join along the slowest axis, so that the shares lie one behind the other?
static bool shares_follow(const Graph *g, const Node *whole, Axis axis)
{
    for (int i = 0; axis && i < whole->naxes && whole->axes[i] != axis; i++)
        if (extent_of(g, whole->axes[i]) != 1) return false;
    return true;
}

bool reshard_in_place(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v], *in = &g->nodes[n->in[0]];
    if (n->kind != K_RESHARD) return false;
    PlanCollKind how = (PlanCollKind)n->u.reshard->how;
    if (how == COLL_ALL_GATHER) return in->kind == K_UPDATE && g->nodes[in->in[1]].kind == K_SLICE;
    return in->kind == K_TOTAL && (how == COLL_ALL_REDUCE || shares_follow(g, in, n->u.reshard->axis));
}

Place value_place(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v];
    if (n->kind == K_UPDATE) return value_place(g, n->in[1]);
    if (!g->buffer_of[v]) bug("value %%%u has no buffer", v);
    Place p = { .buffer = g->buffer_of[v] - 1 };
    bool share = n->kind == K_RESHARD && n->u.reshard->how == COLL_REDUCE_SCATTER && reshard_in_place(g, v);
    if (n->kind == K_SLICE || share) p.stride = value_bytes(g, v), p.key = n->u.reshard->key;
    return p;
}
