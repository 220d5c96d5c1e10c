// gemm.c: when a contraction is a matrix product of the library, and which.
//
// The axes of C = sum[K](A * B) fall in four groups: batch (in A, B and C), M (A and C), N (B and C), K (A and B).
// Each matrix is a window, so each axis has a stride in each matrix that has it. Neighbouring axes of a group merge to
// one dimension where stride(outer) = stride(inner) * extent(inner) in every matrix. K must become one dimension; of M
// and N one dimension each is the product's, the others are batch dimensions with stride 0 in the matrix that lacks
// them. Of A, B and C one stride must be 1; where it is that of C's rows, the transposed product C' = B' A' is taken.
// Among what fits, the fewest library calls win.
//
// Where a layout is in the way, gemm_packs says which operands to copy, and to which order of axes (pass select).
#include "pico.h"

enum { A, B, C };
typedef struct { int64_t n, s[3]; } Dim;  // extent, stride in A, B, C (0 where it lacks the axis)
typedef struct { int n; Dim d[MAX_AXES]; } Dims;
typedef struct { Dims batch, m, n, k; } Shape;

// ---------------------------------------------------------------------------------------------- one set of strides
static void dims_sort(Dims *d, int key) {  // slowest first; stable
    for (int i = 1; i < d->n; i++)
        for (int j = i; j > 0 && d->d[j].s[key] > d->d[j - 1].s[key]; j--) {
            Dim t = d->d[j];
            d->d[j] = d->d[j - 1];
            d->d[j - 1] = t;
        }
}

static void dims_merge(Dims *d, int key)
{
    dims_sort(d, key);
    int n = 0;
    for (int i = 0; i < d->n; i++) {
        Dim *last = n ? &d->d[n - 1] : NULL, x = d->d[i];
        bool joins = last != NULL;
        for (int k = 0; k < 3 && joins; k++) joins = last->s[k] == x.s[k] * x.n;
        if (joins) {
            x.n *= last->n;
            *last = x;
        } else {
            d->d[n++] = x;
        }
    }
    d->n = n;
}

static const Dim none = { .n = 1 };  // a dimension that the product lacks

// A matrix of rows x cols, as it lies: leading dimension and whether it is stored transposed.
static bool matrix_fits(const Dim *rows, const Dim *cols, int which, uint64_t *ld, uint32_t *transposed)
{
    int64_t r = rows->s[which], c = cols->s[which];
    if ((cols->n == 1 || c == 1) && (rows->n == 1 || r >= cols->n)) {
        *ld = (uint64_t)(rows->n == 1 ? cols->n : r);
        *transposed = 0;
        return true;
    }
    *ld = (uint64_t)(cols->n == 1 ? rows->n : c);
    *transposed = 1;
    return (rows->n == 1 || r == 1) && (cols->n == 1 || c >= rows->n);
}

static bool add_batch(PlanGemm *p, const Dims *from, int skip, int64_t *calls)
{
    for (int i = 0; i < from->n; i++) {
        if (i == skip) continue;
        if (p->nbatch == PLAN_MAX_BATCH) return false;
        const Dim *d = &from->d[i];
        p->batch[p->nbatch] = (uint64_t)d->n;
        p->stride_a[p->nbatch] = d->s[A];
        p->stride_b[p->nbatch] = d->s[B];
        p->stride_c[p->nbatch++] = d->s[C];
        *calls *= d->n;
    }
    return true;
}

// The product whose rows are dimension i of M and whose columns are dimension j of N (-1: none).
static bool try_dims(const Shape *s, int i, int j, PlanGemm *p, int64_t *calls)
{
    const Dim *m = i < 0 ? &none : &s->m.d[i], *n = j < 0 ? &none : &s->n.d[j], *k = s->k.n ? &s->k.d[0] : &none;
    uint32_t transposed_c;
    *p = (PlanGemm){ .m = (uint64_t)m->n, .n = (uint64_t)n->n, .k = (uint64_t)k->n };
    *calls = 1;
    return matrix_fits(m, k, A, &p->lda, &p->trans_a) && matrix_fits(k, n, B, &p->ldb, &p->trans_b)
        && matrix_fits(m, n, C, &p->ldc, &transposed_c) && !transposed_c && add_batch(p, &s->batch, -1, calls)
        && add_batch(p, &s->m, i, calls) && add_batch(p, &s->n, j, calls);
}

static void transpose_shape(Shape *s)
{
    Dims m = s->m;
    s->m = s->n;
    s->n = m;
    Dims *all[] = { &s->batch, &s->m, &s->n, &s->k };
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < all[i]->n; j++) {
            int64_t a = all[i]->d[j].s[A];
            all[i]->d[j].s[A] = all[i]->d[j].s[B];
            all[i]->d[j].s[B] = a;
        }
}

// The best product of a shape: library calls, or 0 if there is none.
static int64_t shape_fit(Shape s, PlanGemm *best, bool *swapped)
{
    int64_t least = 0;
    dims_merge(&s.batch, C), dims_merge(&s.m, C), dims_merge(&s.n, C), dims_merge(&s.k, A);
    if (s.k.n > 1) return 0;
    for (int t = 0; t < 2; t++, transpose_shape(&s))
        for (int i = s.m.n ? 0 : -1; i < s.m.n; i++)
            for (int j = s.n.n ? 0 : -1; j < s.n.n; j++) {
                PlanGemm p;
                int64_t calls;
                if (!try_dims(&s, i, j, &p, &calls) || (least && calls >= least)) continue;
                least = calls, *best = p, *swapped = t;
            }
    return least;
}

// ------------------------------------------------------------------------------------------------ strides of values
typedef struct { int n; Axis axes[MAX_AXES]; int64_t s[MAX_AXES]; bool ok; } Strides;

static Strides strides_dense(const Graph *g, int n, const Axis *axes)
{
    Strides t = { .n = n, .ok = true };
    int64_t stride = 1;
    memcpy(t.axes, axes, sizeof *axes * (size_t)n);
    for (int i = n - 1; i >= 0; i--) {
        t.s[i] = stride;
        stride *= extent_of(g, axes[i]);
    }
    return t;
}

static Strides strides_window(const Graph *g, Val v, const Window *w)
{
    const Node *n = &g->nodes[v];
    Strides t = { .n = n->naxes, .ok = w->ok };
    memcpy(t.axes, n->axes, sizeof t.axes);
    memcpy(t.s, w->stride, sizeof t.s);
    return t;
}

static int strides_find(const Strides *t, Axis a)
{
    for (int i = 0; i < t->n; i++)
        if (t->axes[i] == a) return i;
    return -1;
}

static Shape shape_of(const Graph *g, const Strides m[3], int nk, const Axis *over)
{
    Shape s = { 0 };
    for (int i = 0; i < m[C].n + nk; i++) {
        Axis axis = i < m[C].n ? m[C].axes[i] : over[i - m[C].n];
        int in[3];
        Dim d = { .n = extent_of(g, axis) };
        if (d.n == 1) continue;
        for (int k = 0; k < 3; k++)
            if ((in[k] = strides_find(&m[k], axis)) >= 0) d.s[k] = m[k].s[in[k]];
        Dims *to = in[C] < 0 ? &s.k : in[A] >= 0 && in[B] >= 0 ? &s.batch : in[A] >= 0 ? &s.m : &s.n;
        to->d[to->n++] = d;
    }
    return s;
}

// Strides by v's axes of a value that holds v's elements, its axes reordered or renamed. ok: it is such a value.
static Strides strides_in(const Graph *g, Val v, Val target)
{
    const Node *n = &g->nodes[v], *t = &g->nodes[target];
    Strides own = strides_dense(g, n->naxes, n->axes), there = strides_dense(g, t->naxes, t->axes);
    if (v == target) return own;
    Window w = window_of(g, target);
    if (!w.ok || w.base != v || w.offset || elements(g, v) != elements(g, target)) return (Strides){ 0 };
    Strides out = own;
    for (int i = 0; i < own.n; i++) {
        if (extent_of(g, own.axes[i]) == 1) continue;
        int found = -1;
        for (int j = 0; j < there.n && found < 0; j++)
            if (w.stride[j] == own.s[i] && extent_of(g, t->axes[j]) == extent_of(g, n->axes[i])) found = j;
        if (found < 0) return (Strides){ 0 };
        out.s[i] = there.s[found];
    }
    return out;
}

bool gemm_of(const Graph *g, Val v, Val target, Gemm *out)
{
    const Node *n = &g->nodes[v];
    Window w[2] = { window_of(g, n->in[0]), window_of(g, n->in[1]) };
    Strides m[3] = { strides_window(g, n->in[0], &w[0]), strides_window(g, n->in[1], &w[1]), strides_in(g, v, target) };
    if (!m[A].ok || !m[B].ok || !m[C].ok) return false;
    bool swapped = false;
    *out = (Gemm){ 0 };
    if (!shape_fit(shape_of(g, m, n->u.over.n, n->u.over.axes), &out->gemm, &swapped)) return false;
    out->gemm.dtype = g->nodes[n->in[0]].dtype;
    out->a = w[swapped].base, out->b = w[!swapped].base;
    out->offset_a = w[swapped].offset, out->offset_b = w[!swapped].offset;
    return true;
}

// --------------------------------------------------------------------------------------------------- what to copy
// The order in which a copy of operand `which` lies best: batch, its own axes, summed ones.
static Strides strides_packed(const Graph *g, const Strides m[3], int which, int nk, const Axis *over)
{
    Strides t = { 0 };
    for (int shared = 1; shared >= 0; shared--)
        for (int i = 0; i < m[C].n; i++) {
            Axis a = m[C].axes[i];
            if (strides_find(&m[which], a) >= 0 && (strides_find(&m[!which], a) >= 0) == shared) t.axes[t.n++] = a;
        }
    memcpy(&t.axes[t.n], over, sizeof *over * (size_t)nk);
    return strides_dense(g, t.n + nk, t.axes);
}

// The summed axes in the order of the operand that stays as it is, so that both agree.
static void order_by_strides(const Strides *t, int n, Axis *axes)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && t->s[strides_find(t, axes[j])] > t->s[strides_find(t, axes[j - 1])]; j--) {
            Axis x = axes[j];
            axes[j] = axes[j - 1];
            axes[j - 1] = x;
        }
}

// What may become of an operand: used as it lies, copied in its own order of axes, or copied to the best one.
typedef enum { AS_IT_IS, OWN_ORDER, BEST_ORDER, COPIES } Copy;

// A library call costs about as much as copying this many bytes; a copy in another order more than a plain one.
enum { CALL_BYTES = 16384, PLAIN_COPY = 2, ORDERED_COPY = 3 };

static Strides strides_copied(const Graph *g, const Strides asis[3], const Copy copy[2], int which, int nk, const Axis *over)
{
    Axis k[MAX_AXES];
    if (copy[which] == AS_IT_IS) return asis[which];
    if (copy[which] == OWN_ORDER) return strides_dense(g, asis[which].n, asis[which].axes);
    memcpy(k, over, sizeof *over * (size_t)nk);
    Strides other = copy[!which] == OWN_ORDER ? strides_dense(g, asis[!which].n, asis[!which].axes) : asis[!which];
    if (copy[!which] != BEST_ORDER && other.ok) order_by_strides(&other, nk, k);
    return strides_packed(g, asis, which, nk, k);
}

GemmPacks gemm_packs(const Graph *g, const Val in[2], int nk, const Axis *over, int nc, const Axis *c)
{
    static const int times[COPIES] = { 0, PLAIN_COPY, ORDERED_COPY };
    Strides asis[3];
    GemmPacks packs = { 0 };
    double least = 0;
    for (int i = 0; i < 2; i++) {
        Window w = window_of(g, in[i]);
        asis[i] = strides_window(g, in[i], &w);
    }
    asis[C] = strides_dense(g, nc, c);
    for (int choice = 0; choice < COPIES * COPIES; choice++) {
        Copy copy[2] = { (Copy)(choice % COPIES), (Copy)(choice / COPIES) };
        Strides m[3] = { strides_copied(g, asis, copy, A, nk, over), strides_copied(g, asis, copy, B, nk, over), asis[C] };
        bool swapped;
        PlanGemm p;
        if (!m[A].ok || !m[B].ok) continue;
        int64_t calls = shape_fit(shape_of(g, m, nk, over), &p, &swapped);
        double cost = (double)calls * CALL_BYTES;
        for (int i = 0; i < 2; i++) cost += times[copy[i]] * (double)value_bytes(g, in[i]);
        if (calls == 0 || (packs.ok && cost >= least)) continue;
        packs.ok = true, least = cost;
        for (int i = 0; i < 2; i++) {
            packs.pack[i] = copy[i] != AS_IT_IS;
            memcpy(packs.order[i], m[i].axes, sizeof m[i].axes);
        }
    }
    return packs;
}
