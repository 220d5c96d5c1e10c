// view.c: views: one operand read at other positions. Renamings, picks, shifts, slices, flips, splits, merges,
// broadcasts and reorderings are all one node; composed where the result is again one.
//
// make_view normalises each index (terms that are always 0 go, quotients and remainders that the ranges decide go,
// `zero` goes where the position is always inside), drops those that say "the same axis", and then, from the outside in:
//   constant                 a broadcast constant
//   cast that widens bf16    the cast goes outside, so that storage is read through views alone
//   view                     composed, unless bounds that give 0 would be lost or a quotient had to be substituted
//   index                    of a picked position: the number; renamed: the other index
// Positions are those of one sample's axes: index(batch) counts through the whole step, so it is not renamed away.
#include "pico.h"

// ------------------------------------------------------------------------------------------------- one index
static void add_term(ViewIndex *x, Axis axis, int64_t coef, bool *fits)
{
    for (int t = 0; t < x->nterms; t++)
        if (x->axis[t] == axis) {
            x->coef[t] += coef;
            return;
        }
    if (x->nterms == VIEW_TERMS) {
        *fits = false;
        return;
    }
    x->axis[x->nterms] = axis;
    x->coef[x->nterms++] = coef;
}

static void drop_term(ViewIndex *x, int t)
{
    x->nterms--;
    for (; t < x->nterms; t++) x->axis[t] = x->axis[t + 1], x->coef[t] = x->coef[t + 1];
    x->axis[t] = 0, x->coef[t] = 0;
}

typedef struct { int64_t lo, hi; } Range;

static Range sum_range(const Graph *g, const ViewIndex *x)
{
    Range r = {x->offset, x->offset};
    for (int t = 0; t < x->nterms; t++) {
        int64_t most = x->coef[t] * (extent_of(g, x->axis[t]) - 1);
        if (most < 0) r.lo += most;
        else r.hi += most;
    }
    return r;
}

static Range position_range(const Graph *g, const ViewIndex *x)
{
    Range r = sum_range(g, x);
    if (x->div > 1) r.lo /= x->div, r.hi /= x->div;
    if (x->mod > 0 && r.hi >= x->mod) r.lo = 0, r.hi = x->mod - 1;
    return r;
}

// Splits the sum into multiples of m and a rest; true if the rest always lies in 0..m-1.
static bool split_multiples(const Graph *g, const ViewIndex *x, int64_t m, ViewIndex *multiples, ViewIndex *rest)
{
    bool fits = true;
    *multiples = *rest = (ViewIndex){.src = x->src, .div = 1};
    for (int t = 0; t < x->nterms; t++) add_term(x->coef[t] % m == 0 ? multiples : rest, x->axis[t], x->coef[t], &fits);
    int64_t below = ((x->offset % m) + m) % m;
    multiples->offset = x->offset - below;
    rest->offset = below;
    Range r = sum_range(g, rest);
    return r.lo >= 0 && r.hi < m;
}

static void reduce_quotient(const Graph *g, ViewIndex *x)
{
    ViewIndex multiples, rest;
    if (x->div > 1 && split_multiples(g, x, x->div, &multiples, &rest)) {
        for (int t = 0; t < multiples.nterms; t++) multiples.coef[t] /= x->div;
        multiples.offset /= x->div;
        multiples.mod = x->mod, multiples.zero = x->zero;
        *x = multiples;
    }
    if (x->mod > 0 && x->div == 1 && split_multiples(g, x, x->mod, &multiples, &rest)) {
        rest.zero = x->zero;
        *x = rest;
    }
    if (x->mod > 0 && sum_range(g, x).hi / x->div < x->mod) x->mod = 0;
}

static int place_of(const Axis *axes, int naxes, Axis a)
{
    for (int i = 0; i < naxes; i++)
        if (axes[i] == a) return i;
    return -1;
}

// Terms in the order of the result's axes; those whose axis has one position, or whose factor is 0, go.
static void tidy_terms(const Graph *g, ViewIndex *x, int naxes, const Axis *axes)
{
    ViewIndex sorted = *x;
    sorted.nterms = 0;
    for (int i = 0; i < naxes; i++)
        for (int t = 0; t < x->nterms; t++)
            if (x->axis[t] == axes[i]) {
                sorted.axis[sorted.nterms] = axes[i];
                sorted.coef[sorted.nterms++] = x->coef[t];
            }
    if (sorted.nterms != x->nterms) bug("a view reads an axis that its result lacks");
    for (int t = sorted.nterms; t-- > 0;)
        if (sorted.coef[t] == 0 || extent_of(g, sorted.axis[t]) == 1) drop_term(&sorted, t);
    for (int t = sorted.nterms; t < VIEW_TERMS; t++) sorted.axis[t] = 0, sorted.coef[t] = 0;
    *x = sorted;
}

// Brings an index to its one form. *outside: no position is inside, so the value is 0.
static void normalise(const Graph *g, ViewIndex *x, int naxes, const Axis *axes, bool *outside)
{
    if (x->div < 1) x->div = 1;
    tidy_terms(g, x, naxes, axes);
    if ((x->div > 1 || x->mod > 0) && sum_range(g, x).lo < 0) bug("quotient of a negative position");
    reduce_quotient(g, x);
    Range r = position_range(g, x);
    int64_t extent = extent_of(g, x->src);
    bool inside = r.lo >= 0 && r.hi < extent;
    if (inside) x->zero = false;
    else if (!x->zero) bug("a view leaves axis '%s'", axis_name(g, x->src));
    else if (r.hi < 0 || r.lo >= extent) *outside = true;
}

static bool is_affine(const ViewIndex *x) { return x->div == 1 && x->mod == 0; }
static bool is_rename(const ViewIndex *x)
{
    return x->nterms == 1 && x->coef[0] == 1 && x->offset == 0 && is_affine(x);
}
static bool is_identity(const ViewIndex *x) { return is_rename(x) && x->axis[0] == x->src && !x->zero; }

static ViewIndex identity_index(Axis a) { return (ViewIndex){.src = a, .nterms = 1, .axis = {a}, .coef = {1}, .div = 1}; }

static const ViewIndex *index_of(const View *view, Axis src)
{
    for (int i = 0; i < view->n; i++)
        if (view->ix[i].src == src) return &view->ix[i];
    return NULL;
}

// ----------------------------------------------------------------------------------------------------- composing
// How often the inner view reads its result's axis `a`, and whether just as a source axis of the same size.
static int uses_of(const Graph *g, const Node *source, const View *inner, Axis a, bool *plain)
{
    int uses = 0;
    *plain = false;
    for (int i = 0; i < source->naxes; i++) {
        const ViewIndex *x = index_of(inner, source->axes[i]);
        if (!x) {
            if (source->axes[i] == a) uses++, *plain = true;
            continue;
        }
        for (int t = 0; t < x->nterms; t++)
            if (x->axis[t] == a) uses++, *plain = is_rename(x) && extent_of(g, x->src) == extent_of(g, a);
    }
    return uses;
}

// 4*(c/4) + 1*(c%4) is c: what a split followed by its merge reads. The axis and the common factor, if the terms of
// `inner` are all the digits of one axis, each with its place.
static bool join_digits(const ViewIndex *inner, const View *outer, Axis *whole, int64_t *factor)
{
    int64_t place = 1;
    *whole = 0;
    for (int found = 0; found < inner->nterms; found++) {
        const ViewIndex *digit = NULL;
        int64_t coef = 0;
        for (int t = 0; t < inner->nterms; t++) {
            const ViewIndex *o = index_of(outer, inner->axis[t]);
            if (!o || o->nterms != 1 || o->coef[0] != 1 || o->offset || o->zero) return false;
            if (o->div == place) digit = o, coef = inner->coef[t];
        }
        if (!digit || (*whole && digit->axis[0] != *whole)) return false;
        *whole = digit->axis[0];
        if (place == 1) *factor = coef;
        if (coef != *factor * place) return false;
        if (digit->mod == 0) return found + 1 == inner->nterms;  // the highest
        place *= digit->mod;
    }
    return false;
}

// The inner index with every axis replaced by what the outer view says; false if that is no index.
static bool substitute(const Graph *g, const ViewIndex *inner, const View *outer, ViewIndex *out)
{
    if (is_rename(inner)) {
        const ViewIndex *o = index_of(outer, inner->axis[0]);
        *out = o ? *o : identity_index(inner->axis[0]);
        out->src = inner->src;
        out->zero |= inner->zero;
        return true;
    }
    bool fits = true;
    *out = (ViewIndex){.src = inner->src, .offset = inner->offset, .div = inner->div, .mod = inner->mod, .zero = inner->zero};
    Axis whole;
    int64_t factor = 0;
    if (join_digits(inner, outer, &whole, &factor)) {
        add_term(out, whole, factor, &fits);
        return true;
    }
    for (int t = 0; t < inner->nterms && fits; t++) {
        const ViewIndex *o = index_of(outer, inner->axis[t]);
        if (!o) {
            add_term(out, inner->axis[t], inner->coef[t], &fits);
            continue;
        }
        if (!is_affine(o)) return false;
        out->offset += inner->coef[t] * o->offset;
        for (int s = 0; s < o->nterms; s++)
            if (extent_of(g, o->axis[s]) > 1) add_term(out, o->axis[s], inner->coef[t] * o->coef[s], &fits);
    }
    return fits;
}

// outer over (inner over source) as one view over source.
static bool compose(const Graph *g, const Node *source, const View *inner, const View *outer, View *out)
{
    for (int i = 0; i < outer->n; i++)
        if (outer->ix[i].zero) {
            bool plain;
            if (uses_of(g, source, inner, outer->ix[i].src, &plain) != 1 || !plain) return false;
        }
    *out = (View){0};
    for (int i = 0; i < source->naxes; i++) {
        const ViewIndex *x = index_of(inner, source->axes[i]);
        ViewIndex same = identity_index(source->axes[i]);
        if (!substitute(g, x ? x : &same, outer, &out->ix[out->n++])) return false;
    }
    return true;
}

// ----------------------------------------------------------------------------------------------------- make_view
// The view in its one form: indices in the order of the operand's axes, without those that say nothing.
static View tidy(const Graph *g, const Node *a, const View *view, int naxes, const Axis *axes, bool *outside)
{
    View out = {0};
    for (int i = 0; i < view->n; i++)
        if (!has_axis(a, view->ix[i].src)) bug("a view of axis '%s' that is not there", axis_name(g, view->ix[i].src));
    for (int i = 0; i < a->naxes; i++) {
        const ViewIndex *x = index_of(view, a->axes[i]);
        ViewIndex y = x ? *x : identity_index(a->axes[i]);
        if (!x && place_of(axes, naxes, a->axes[i]) < 0) bug("a view forgets axis '%s'", axis_name(g, a->axes[i]));
        if (x) normalise(g, &y, naxes, axes, outside);
        bool one = extent_of(g, y.src) == 1 && y.nterms == 0 && !y.zero && place_of(axes, naxes, y.src) >= 0;
        if (!is_identity(&y) && !one) out.ix[out.n++] = y;
    }
    return out;
}

static Val fold_view(Graph *g, const Node *a, const View *view, int naxes, const Axis *axes)
{
    if (a->kind == K_MAP && a->fn == FN_CAST && node_of(g, a->in[0])->dtype == BF16)
        return make_cast(g, make_view(g, a->in[0], view, naxes, axes), (DType)a->dtype);
    if (a->kind == K_VIEW && a->fn == 0) {  // (a pack is a value of its own)
        View both;
        const Node source = *node_of(g, a->in[0]);
        if (compose(g, &source, a->u.view, view, &both)) return make_view(g, a->in[0], &both, naxes, axes);
    }
    if (a->kind == K_INDEX && view->n == 1 && a->u.axis != g->batch) {
        const ViewIndex *x = &view->ix[0];
        if (x->nterms == 0 && !x->zero && is_affine(x))
            return make_broadcast(g, make_const(g, I32, (double)x->offset), naxes, axes);
        if (is_rename(x) && !x->zero && x->axis[0] != g->batch)
            return make_broadcast(g, make_index(g, x->axis[0]), naxes, axes);
    }
    return 0;
}

Val make_view(Graph *g, Val a, const View *view, int naxes, const Axis *axes)
{
    const Node in = *node_of(g, a);
    if (naxes > MAX_AXES) bug("%d axes", naxes);
    for (int i = 0; i < naxes; i++)
        if (place_of(axes, i, axes[i]) >= 0) bug("axis '%s' twice", axis_name(g, axes[i]));
    bool outside = false;
    View tidied = tidy(g, &in, view, naxes, axes, &outside);
    if (outside) {
        Val zero = make_const(g, (DType)in.dtype, 0);
        return make_broadcast(g, zero, naxes, axes);
    }
    bool zeros = false;
    double c;
    for (int i = 0; i < tidied.n; i++) zeros |= tidied.ix[i].zero;
    if (tidied.n == 0 && naxes == in.naxes && !memcmp(axes, in.axes, (size_t)naxes * sizeof *axes)) return a;
    if (const_value(g, a, &c) && !zeros) {
        if (in.naxes > 0) return make_broadcast(g, make_const(g, (DType)in.dtype, c), naxes, axes);
    } else {
        Val folded = fold_view(g, &in, &tidied, naxes, axes);
        if (folded) return folded;
    }
    Node n = {.kind = K_VIEW, .dtype = in.dtype, .nin = 1, .in = {a}, .naxes = (uint8_t)naxes};
    for (int i = 0; i < naxes; i++) n.axes[i] = axes[i];
    n.u.view = graph_view(g, &tidied);
    return graph_add(g, &n);
}

// ----------------------------------------------------------------------------------------------- the usual views
Val make_broadcast(Graph *g, Val a, int naxes, const Axis *axes)
{
    static const View none;
    return make_view(g, a, &none, naxes, axes);
}

// The axes of `a` with `from` replaced by those of `to` that are not there already.
static int replaced(const Node *a, Axis from, int nto, const Axis *to, Axis *out)
{
    int n = 0;
    for (int i = 0; i < a->naxes; i++) {
        if (a->axes[i] != from) {
            if (n == MAX_AXES) bug("too many axes");
            out[n++] = a->axes[i];
            continue;
        }
        for (int j = 0; j < nto; j++)
            if (!has_axis(a, to[j]) || to[j] == from) {
                if (n == MAX_AXES) bug("too many axes");
                out[n++] = to[j];
            }
    }
    return n;
}

Val make_rename(Graph *g, Val a, Axis from, Axis to)
{
    const Node in = *node_of(g, a);
    View view = {.n = 1, .ix = {{.src = from, .nterms = 1, .axis = {to}, .coef = {1}, .div = 1}}};
    Axis axes[MAX_AXES];
    int naxes = replaced(&in, from, 1, &to, axes);
    return make_view(g, a, &view, naxes, axes);
}

Val make_pick(Graph *g, Val a, Axis axis, int64_t position)
{
    const Node in = *node_of(g, a);
    View view = {.n = 1, .ix = {{.src = axis, .offset = position, .div = 1}}};
    Axis axes[MAX_AXES];
    int naxes = replaced(&in, axis, 0, NULL, axes);
    return make_view(g, a, &view, naxes, axes);
}

Val make_split(Graph *g, Val a, Axis axis, int n, const Axis *parts)
{
    const Node in = *node_of(g, a);
    if (n > VIEW_TERMS) err(g, g->cur_loc, "an axis is split in %d parts here; at most %d go", n, VIEW_TERMS);
    View view = {.n = 1, .ix = {{.src = axis, .nterms = (uint16_t)n, .div = 1}}};
    int64_t stride = 1;
    for (int i = n; i-- > 0; stride *= extent_of(g, parts[i])) {
        view.ix[0].axis[i] = parts[i];
        view.ix[0].coef[i] = stride;
    }
    if (stride != extent_of(g, axis)) bug("parts of '%s' do not make it up", axis_name(g, axis));
    Axis axes[MAX_AXES];
    int naxes = replaced(&in, axis, n, parts, axes);
    return make_view(g, a, &view, naxes, axes);
}

Val make_merge(Graph *g, Val a, int n, const Axis *parts, Axis merged)
{
    const Node in = *node_of(g, a);
    View view = {.n = n};
    int64_t stride = 1;
    for (int i = n; i-- > 0; stride *= extent_of(g, parts[i]))
        view.ix[i] = (ViewIndex){.src = parts[i], .nterms = 1, .axis = {merged}, .coef = {1}, .div = stride,
                                 .mod = extent_of(g, parts[i])};
    if (stride != extent_of(g, merged)) bug("parts of '%s' do not make it up", axis_name(g, merged));
    Axis axes[MAX_AXES];
    int naxes = 0;
    bool placed = false;  // where the first of the parts stood
    for (int i = 0; i < in.naxes; i++) {
        if (place_of(parts, n, in.axes[i]) < 0) axes[naxes++] = in.axes[i];
        else if (!placed) axes[naxes++] = merged, placed = true;
    }
    return make_view(g, a, &view, naxes, axes);
}
