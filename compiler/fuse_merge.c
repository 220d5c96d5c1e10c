// fuse_merge.c: when two drafts may become one.
//
//   - They are of one segment, and their domains agree: equal sets of axes, equal rows if both have reductions, or one
//     holds scalars of the other's rows; column sums are over the same columns (merge_shape).
//   - Neither reads a value of the other at another position than its own.
//   - No path leads out of the pair and back in. The search goes backward and stops at drafts that lie before the
//     pair's cluster; it gives up, and refuses, after SEARCH_LIMIT drafts.
//
// A cluster is a run of nodes that drafts hold together: drafts whose spans (first to last node) overlap are in one. So
// what a draft of an earlier cluster depends on, however indirectly, lies in earlier clusters as well. (That its own
// last node comes before the pair is not enough: what it reads may be of a draft that goes on behind the pair.) Nothing
// reads an ACCUMULATE or UPDATE, so they do not count; their order is another matter (fuse.c).
#include "fuse.h"

enum { SEARCH_LIMIT = 512, MAX_READS = 40, MAX_NODES = 600 };
enum { FEW_ROWS = 32, SMALL_DOMAIN = 16384, SHORT_ROW = 16 };

// --------------------------------------------------------------------------------------------------------- shapes
static bool among(int n, const Axis *axes, Axis a)
{
    for (int i = 0; i < n; i++)
        if (axes[i] == a) return true;
    return false;
}

static bool subset(int n, const Axis *a, int m, const Axis *b)
{
    for (int i = 0; i < n; i++)
        if (!among(m, b, a[i])) return false;
    return true;
}

static bool same_set(int n, const Axis *a, int m, const Axis *b) { return n == m && subset(n, a, m, b); }

static int64_t extents(const Graph *g, int n, const Axis *axes)
{
    int64_t count = 1;
    for (int i = 0; i < n; i++) count *= extent_of(g, axes[i]);
    return count;
}

static bool few_rows(const Graph *g, const Draft *d)
{
    return extents(g, d->nouter, d->dom) < FEW_ROWS && extents(g, d->ndom, d->dom) > SMALL_DOMAIN;
}

// The order in which a reduction runs through a row is part of its meaning, so equal rows have equal inner axes in order.
static bool same_rows(const Draft *a, const Draft *b)
{
    if (!same_set(a->nouter, a->dom, b->nouter, b->dom)) return false;
    size_t inner = (size_t)(a->ndom - a->nouter);
    return !a->nred || !b->nred || !memcmp(a->dom + a->nouter, b->dom + b->nouter, inner * sizeof *a->dom);
}

// Both have the same axes.
static const char *merge_equal(const Graph *g, const Draft *a, const Draft *b, Draft *out)
{
    const Draft *fixed = a->nred ? a : b->nred ? b : a->nouter >= 0 ? a : b, *other = fixed == a ? b : a;
    memcpy(out->dom, fixed->dom, sizeof out->dom);
    out->nouter = fixed->nouter;
    if (fixed->nouter < 0) return NULL;
    if (other->nouter >= 0 && !same_rows(a, b)) return "it reduces other axes";
    // what only feeds a reduction may have few rows, what follows it should be shared out
    bool follows = other->nouter < 0 && other->last > fixed->last;
    return follows && (out->nouter == 0 || few_rows(g, out)) ? "it has too few rows to share out" : NULL;
}

// The narrow one holds one value for each row of the wide one.
static const char *merge_rows(const Graph *g, const Draft *wide, const Draft *narrow, Draft *out)
{
    if (narrow->nouter >= 0) return "the rows differ";
    memcpy(out->dom, wide->dom, sizeof out->dom);
    out->ndom = wide->ndom;
    out->nouter = wide->nouter;
    if (wide->nouter >= 0)
        return same_set(narrow->ndom, narrow->dom, wide->nouter, wide->dom) ? NULL : "the rows differ";
    if (narrow->ndom == 0 || !subset(narrow->ndom, wide->dom, narrow->ndom, narrow->dom)) return "the axes differ";
    out->nouter = narrow->ndom;
    if (extents(g, wide->ndom - narrow->ndom, wide->dom + narrow->ndom) < SHORT_ROW) return "the rows are short";
    return few_rows(g, out) ? "it has too few rows to share out" : NULL;
}

// Sums over columns: of one operand shape each; what follows has the axes that are kept.
static const char *merge_columns(const Draft *a, const Draft *b, Draft *out)
{
    const Draft *col = a->kind == G_COL ? a : b, *other = col == a ? b : a;
    memcpy(out->dom, col->dom, sizeof out->dom);
    memcpy(out->red, col->red, sizeof out->red);
    out->ndom = col->ndom, out->nred = col->nred, out->nouter = col->nouter, out->kind = G_COL;
    if (other->kind == G_COL) {
        bool same = a->ndom == b->ndom && !memcmp(a->dom, b->dom, sizeof *a->dom * (size_t)a->ndom)
            && same_set(a->nred, a->red, b->nred, b->red);
        return same ? NULL : "the sums are over other columns";
    }
    Axis kept[MAX_AXES];
    int n = 0;
    for (int i = 0; i < col->ndom; i++)
        if (!among(col->nred, col->red, col->dom[i])) kept[n++] = col->dom[i];
    bool follows = other->nouter < 0 && other->first > col->last && same_set(n, kept, other->ndom, other->dom);
    return follows ? NULL : "a sum over columns is a kernel of its own";
}

static const char *merge_shape(const Graph *g, const Draft *a, const Draft *b, Draft *out)
{
    if (a->kind == G_WAIT || b->kind == G_WAIT) return "it is moved between ranks";
    if (a->kind > G_COL || b->kind > G_COL) return "it is computed by a library call";
    if (a->kind == G_COL || b->kind == G_COL) return merge_columns(a, b, out);
    if (same_set(a->ndom, a->dom, b->ndom, b->dom)) return merge_equal(g, a, b, out);
    if (subset(b->ndom, b->dom, a->ndom, a->dom)) return merge_rows(g, a, b, out);
    if (subset(a->ndom, a->dom, b->ndom, b->dom)) return merge_rows(g, b, a, out);
    return "the axes differ";
}

// ------------------------------------------------------------------------------------------------------- clusters
static Val cluster_start(Fuse *f, Val v)
{
    while (f->cluster[v] != v) {
        f->cluster[v] = f->cluster[f->cluster[v]];
        v = f->cluster[v];
    }
    return v;
}

void join_cluster(Fuse *f, Val first, Val last)
{
    for (Val v = cluster_start(f, last); v > first; v = cluster_start(f, v)) f->cluster[v] = v - 1;
}

// --------------------------------------------------------------------------------------------------------- search
// Goes backward from the drafts that a and b read. False if neither is met again.
static bool reaches_itself(Fuse *f, uint32_t a, uint32_t b)
{
    uint32_t *todo = NULL, stamp = ++f->search;
    Val start = cluster_start(f, min_of(f->drafts[a].first, f->drafts[b].first));
    size_t visits = 0;
    bool met = false;
    vec_push(todo, a);
    vec_push(todo, b);
    while (vec_len(todo) && !met) {
        uint32_t at = vec_pop(todo);
        const Draft *d = &f->drafts[at];
        for (size_t i = 0; i < vec_len(d->refs) && !met; i++) {
            uint32_t next = f->draft_of[d->refs[i]];
            bool inside = next == a || next == b;
            if (inside && at != a && at != b) met = true;
            if (!next || inside || f->drafts[next].seen == stamp || f->drafts[next].last < start) continue;
            f->drafts[next].seen = stamp;
            vec_push(todo, next);
            if (++visits > SEARCH_LIMIT) met = true;
        }
    }
    vec_free(todo);
    return met;
}

// -------------------------------------------------------------------------------------------------------- merging
static bool reads_far(const Fuse *f, const Draft *d, uint32_t other)
{
    for (size_t i = 0; i < vec_len(d->far); i++)
        if (f->draft_of[d->far[i]] == other) return true;
    return false;
}

static bool reads_from(const Fuse *f, const Draft *d, uint32_t other)
{
    for (size_t i = 0; i < vec_len(d->refs); i++)
        if (f->draft_of[d->refs[i]] == other) return true;
    return false;
}

static size_t count_reads(Fuse *f, uint32_t a, uint32_t b)
{
    size_t count = 0;
    f->stamp++;
    for (int k = 0; k < 2; k++) {
        const Draft *d = &f->drafts[k ? b : a];
        for (size_t i = 0; i < vec_len(d->refs); i++) {
            Val v = d->refs[i];
            if (f->near_seen[v] == f->stamp || f->draft_of[v] == a || f->draft_of[v] == b) continue;
            f->near_seen[v] = f->stamp;
            count++;
        }
    }
    return count;
}

static void absorb(Fuse *f, uint32_t into, uint32_t from, const Draft *shape)
{
    Draft *to = &f->drafts[into], *d = &f->drafts[from];
    for (size_t i = 0; i < vec_len(d->nodes); i++) {
        vec_push(to->nodes, d->nodes[i]);
        f->draft_of[d->nodes[i]] = into;
    }
    for (size_t i = 0; i < vec_len(d->refs); i++) vec_push(to->refs, d->refs[i]);
    for (size_t i = 0; i < vec_len(d->far); i++) vec_push(to->far, d->far[i]);
    if (!is_result(&f->g->nodes[d->nodes[0]])) {
        to->first = min_of(to->first, d->first), to->last = max_of(to->last, d->last);
        join_cluster(f, to->first, to->last);
    }
    to->kind = shape->kind, to->ndom = shape->ndom, to->nouter = shape->nouter, to->nred = shape->nred;
    memcpy(to->dom, shape->dom, sizeof to->dom);
    memcpy(to->red, shape->red, sizeof to->red);
    if (!to->why) to->why = d->why;
    vec_free(d->nodes), vec_free(d->refs), vec_free(d->far);
    d->gone = true;
}

const char why_other_segment[] = "it is of another segment";

bool try_merge(Fuse *f, uint32_t into, uint32_t from, const char **why)
{
    Draft *a = &f->drafts[into], *b = &f->drafts[from], shape = *a;
    if (a->nred < b->nred) shape.nred = b->nred, memcpy(shape.red, b->red, sizeof shape.red);
    *why = a->alone || b->alone ? "others add to its accumulator"
           : a->seg != b->seg   ? why_other_segment
                                : merge_shape(f->g, a, b, &shape);
    if (!*why && (reads_far(f, a, from) || reads_far(f, b, into))) *why = "it is read at other positions";
    bool columns = a->kind == G_COL && b->kind == G_COL;  // all sums of a kernel run at once
    if (!*why && columns && (reads_from(f, a, from) || reads_from(f, b, into))) *why = "it needs the whole sum";
    if (!*why && vec_len(a->nodes) + vec_len(b->nodes) > MAX_NODES) *why = "the kernel would be too large";
    if (!*why && vec_len(a->refs) + vec_len(b->refs) > MAX_READS && count_reads(f, into, from) > MAX_READS)
        *why = "the kernel would read too many values";
    if (!*why && reaches_itself(f, into, from)) *why = "another kernel stands between them";
    if (*why) return false;
    absorb(f, into, from, &shape);
    return true;
}
