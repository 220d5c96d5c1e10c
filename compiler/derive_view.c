// derive_view.c: a view backwards: dx[s] = sum of dy[o] over the positions o that the view reads at s.
//
// First dy is summed over the axes along which the view repeats. Then one view W of dy and one more sum give dx: W says,
// for each axis of dy, where it lies in terms of the operand's axes. Three forms of an index have such an inverse:
//   a = b*s + .. + t, factor 1 or -1 of some axis b that is used nowhere else    b = s*(a - .. - t), 0 outside
//   a = B*b + c, the parts of a split                                            b = a / B, c = a % B
//   a = c / B, b = c % B, digits of a merged axis (absent digits are summed)     c = B*a + b
// Every other index (pick, diagonal, odd strides) becomes a mask: where(its position == index(a), dy, 0), a new axis.
// Trap: an axis of dy may have the name of an axis of the operand and mean another one (a transposition by renaming), so
// axes that go from dy to the sum get names of their own where they would clash.
#include "derive.h"

typedef struct {
    Graph *g;
    const Node *view, *operand;     // copies: nodes move
    Node dy;                        // its axes; they grow with masks and shrink with sums
    Val value;
    View inverse;                   // W, over the axes of dy
    Axis made[MAX_AXES];            // axes of the operand that masks have brought into dy
    int nmade;
} Inverse;

static const ViewIndex *read_at(const Node *view, Axis src)
{
    for (int i = 0; i < view->u.view->n; i++)
        if (view->u.view->ix[i].src == src) return &view->u.view->ix[i];
    return NULL;
}

// How many positions of the operand hang on axis a of the result.
static int uses(const Inverse *w, Axis a)
{
    int n = has_axis(w->operand, a) && !read_at(w->view, a);
    for (int i = 0; i < w->view->u.view->n; i++) {
        const ViewIndex *x = &w->view->u.view->ix[i];
        for (int t = 0; t < x->nterms; t++) n += x->axis[t] == a;
    }
    return n;
}

// An axis with a name that no model has (a point is no letter of the notation).
static Axis fresh_axis(Graph *g, Axis like, const char *what, int64_t extent)
{
    Buf name = {0};
    buf_printf(&name, "%s.%s", axis_name(g, like), what);
    Axis a = graph_axis(g, name.s, extent);
    buf_free(&name);
    return a;
}

// Axis a of dy is axis a of the operand.
static bool is_kept(const Inverse *w, Axis a)
{
    for (int i = 0; i < w->nmade; i++)
        if (w->made[i] == a) return true;
    return has_axis(w->operand, a) && !read_at(w->view, a);
}

// The name under which an axis of dy is summed over in the end: the operand may use its own for something else.
static Axis name_after(Inverse *w, Axis a)
{
    return is_kept(w, a) || !has_axis(w->operand, a) ? a : fresh_axis(w->g, a, "sum", extent_of(w->g, a));
}

static ViewIndex term(Axis src, Axis axis, int64_t coef)
{
    return (ViewIndex){.src = src, .nterms = 1, .axis = {axis}, .coef = {coef}, .div = 1};
}

static void add_index(Inverse *w, ViewIndex x) { w->inverse.ix[w->inverse.n++] = x; }

// ------------------------------------------------------------------------------------------------ what inverts
// A digit of a merged axis c: (c/div) % mod.
static bool is_digit(const ViewIndex *x) { return x->nterms == 1 && x->coef[0] == 1 && x->offset == 0; }

// The next digit above `place` of axis c that the view reads, or NULL.
static const ViewIndex *digit_from(const Inverse *w, Axis c, int64_t place)
{
    const ViewIndex *best = NULL;
    for (int i = 0; i < w->view->u.view->n; i++) {
        const ViewIndex *y = &w->view->u.view->ix[i];
        if (is_digit(y) && y->axis[0] == c && y->div >= place && (!best || y->div < best->div)) best = y;
    }
    return best;
}

// Positions that a digit takes: the quotient's modulus, or all that c has.
static int64_t digit_size(const Inverse *w, const ViewIndex *y)
{
    return y->mod > 0 ? y->mod : (extent_of(w->g, y->axis[0]) + y->div - 1) / y->div;
}

// c = sum of place * digit, absent digits on fresh axes; false if the digits do not fit together.
static bool invert_digits(Inverse *w, Axis c)
{
    ViewIndex out = {.src = c, .div = 1, .zero = true};
    int64_t place = 1, count = extent_of(w->g, c);
    while (place < count) {
        const ViewIndex *y = digit_from(w, c, place);
        int64_t next = y ? y->div : count;
        if (out.nterms == VIEW_TERMS) return false;
        if (next > place) {  // a gap: summed over
            int64_t size = (next + place - 1) / place;
            char what[32];
            snprintf(what, sizeof what, "%lld", (long long)place);
            out.axis[out.nterms] = fresh_axis(w->g, c, what, size);
            out.coef[out.nterms++] = place;
            place *= size;
        } else {
            if (y->mod > 0 && y->mod != extent_of(w->g, y->src)) return false;
            out.axis[out.nterms] = y->src;
            out.coef[out.nterms++] = place;
            place *= digit_size(w, y);
        }
    }
    int used = 0;
    for (int t = 0; t < out.nterms; t++) used += has_axis(w->operand, out.axis[t]);
    if (used != uses(w, c)) return false;  // something else reads c, or two digits lie over each other
    add_index(w, out);
    return true;
}

// a = B*b + c over axes that nothing else uses: returns false if the factors are not those of a split.
static bool invert_split(Inverse *w, const ViewIndex *x)
{
    if (x->nterms < 2 || x->div > 1 || x->mod > 0 || x->offset) return false;
    int64_t place = 1;
    int order[VIEW_TERMS];
    for (int k = 0; k < x->nterms; k++) {
        order[k] = -1;
        for (int t = 0; t < x->nterms; t++)
            if (x->coef[t] == place && uses(w, x->axis[t]) == 1) order[k] = t;
        if (order[k] < 0) return false;
        place *= extent_of(w->g, x->axis[order[k]]);
    }
    place = 1;
    for (int k = 0; k < x->nterms; k++) {
        ViewIndex y = term(x->axis[order[k]], x->src, 1);
        int64_t size = extent_of(w->g, y.src);
        y.div = place;
        y.mod = k + 1 < x->nterms ? size : 0;
        y.zero = true;
        add_index(w, y);
        place *= size;
    }
    return true;
}

// a = +-b + .. + t: b = +-(a - .. - t). The other terms' axes stay axes of dy.
static bool invert_pivot(Inverse *w, const ViewIndex *x)
{
    if (x->div > 1 || x->mod > 0) return false;
    for (int p = 0; p < x->nterms; p++) {
        if ((x->coef[p] != 1 && x->coef[p] != -1) || uses(w, x->axis[p]) != 1) continue;
        ViewIndex y = term(x->axis[p], x->src, x->coef[p]);
        y.offset = -x->coef[p] * x->offset;
        y.zero = true;
        for (int t = 0; t < x->nterms; t++)
            if (t != p) {
                y.axis[y.nterms] = name_after(w, x->axis[t]);
                y.coef[y.nterms++] = -x->coef[p] * x->coef[t];
            }
        add_index(w, y);
        return true;
    }
    return false;
}

// ------------------------------------------------------------------------------------------------------- masks
// The position that x reads, as a value: whole numbers, or doubles if it has a quotient.
static Val position(Graph *g, const ViewIndex *x)
{
    DType t = x->div > 1 || x->mod > 0 ? F64 : I32;
    Val sum = make_const(g, t, (double)x->offset);
    for (int i = 0; i < x->nterms; i++) {
        Val index = make_cast(g, make_index(g, x->axis[i]), t);
        sum = make_map2(g, FN_ADD, sum, make_map2(g, FN_MUL, index, make_const(g, t, (double)x->coef[i])));
    }
    if (x->div > 1) sum = make_map1(g, FN_FLOOR, make_map2(g, FN_DIV, sum, make_const(g, t, (double)x->div)));
    if (x->mod > 0) {
        Val mod = make_const(g, t, (double)x->mod);
        Val rounds = make_map1(g, FN_FLOOR, make_map2(g, FN_DIV, sum, mod));
        sum = make_map2(g, FN_SUB, sum, make_map2(g, FN_MUL, rounds, mod));
    }
    return sum;
}

// Spreads dy along axis `own`, put where the operand has `src` among the axes that both have.
static Val spread_along(Inverse *w, Axis src, Axis own)
{
    Axis axes[MAX_AXES];
    int n = 0;
    bool placed = false;
    if (w->dy.naxes == MAX_AXES) err(w->g, w->g->cur_loc, "the gradient of this view has too many axes");
    for (int i = 0; i < w->dy.naxes; i++) {
        Axis a = w->dy.axes[i];
        bool later = is_kept(w, a) && axis_find(w->operand, a) > axis_find(w->operand, src);
        if (later && !placed) axes[n++] = own, placed = true;
        axes[n++] = a;
    }
    if (!placed) axes[n++] = own;
    return make_broadcast(w->g, w->value, n, axes);
}

// dy gets the operand's axis: it is there where the view reads that position.
static void add_mask(Inverse *w, const ViewIndex *x)
{
    Graph *g = w->g;
    bool taken = has_axis(&w->dy, x->src);
    if (!taken && !x->zero && extent_of(g, x->src) == 1) {  // its one position is always read
        w->made[w->nmade++] = x->src;
        return;
    }
    Axis own = taken ? fresh_axis(g, x->src, "read", extent_of(g, x->src)) : x->src;
    Val where = position(g, x);
    Val here = make_map2(g, FN_EQ, make_cast(g, make_index(g, own), (DType)node_of(g, where)->dtype), where);
    w->value = make_where(g, here, spread_along(w, x->src, own), make_const(g, (DType)w->dy.dtype, 0));
    w->dy = *node_of(g, w->value);
    if (taken) add_index(w, term(own, x->src, 1));
    else w->made[w->nmade++] = own;
}

// ---------------------------------------------------------------------------------------------------- together
static void sum_repeats(Inverse *w)
{
    Axis over[MAX_AXES];
    int n = 0;
    for (int i = 0; i < w->dy.naxes; i++)
        if (uses(w, w->dy.axes[i]) == 0) over[n++] = w->dy.axes[i];
    w->value = adj_sum(w->g, w->value, n, over);
    w->dy = *node_of(w->g, w->value);
}

static bool inverted(const Inverse *w, Axis a)
{
    for (int i = 0; i < w->inverse.n; i++)
        if (w->inverse.ix[i].src == a) return true;
    return false;
}

static void invert(Inverse *w)
{
    const View *view = w->view->u.view;
    for (int i = 0; i < view->n; i++) {
        const ViewIndex *x = &view->ix[i];
        if (is_digit(x) && (x->div > 1 || x->mod > 0)) {
            if (inverted(w, x->axis[0]) || invert_digits(w, x->axis[0])) continue;
        } else if (invert_split(w, x) || invert_pivot(w, x))
            continue;
        add_mask(w, x);
    }
}

// The axes over which W is summed in the end: those of dy that are neither inverted nor the operand's, absent digits.
static int left_over(Inverse *w, Axis *over)
{
    int n = 0;
    for (int i = 0; i < w->dy.naxes; i++) {
        Axis a = w->dy.axes[i];
        if (inverted(w, a) || is_kept(w, a)) continue;
        over[n++] = name_after(w, a);
        if (over[n - 1] != a) add_index(w, term(a, over[n - 1], 1));
    }
    for (int i = 0; i < w->inverse.n; i++)
        for (int t = 0; t < w->inverse.ix[i].nterms; t++) {
            Axis a = w->inverse.ix[i].axis[t];
            bool known = has_axis(w->operand, a);
            for (int j = 0; j < n; j++) known |= over[j] == a;
            if (!known && n == MAX_AXES) err(w->g, w->g->cur_loc, "the gradient of this view has too many axes");
            if (!known) over[n++] = a;
        }
    return n;
}

Val derive_view(Graph *g, const Node *node, Val dy)
{
    const Node view = *node, operand = *node_of(g, node->in[0]);
    Inverse w = {.g = g, .view = &view, .operand = &operand, .dy = *node_of(g, dy), .value = dy};
    sum_repeats(&w);
    invert(&w);
    Axis axes[MAX_AXES], over[MAX_AXES];
    int naxes = 0, nover = left_over(&w, over);
    if (operand.naxes + nover > MAX_AXES) err(g, g->cur_loc, "the gradient of this view has too many axes");
    for (int i = 0; i < operand.naxes; i++)  // an axis that dy lacks (size 1, read at 0) comes with give()
        if (is_kept(&w, operand.axes[i]) ? has_axis(&w.dy, operand.axes[i]) : true) axes[naxes++] = operand.axes[i];
    for (int j = 0; j < nover; j++) axes[naxes++] = over[j];
    Val spread = w.inverse.n ? make_view(g, w.value, &w.inverse, naxes, axes) : w.value;
    return adj_sum(g, spread, nover, over);
}
