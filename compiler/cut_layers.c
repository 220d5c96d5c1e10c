// cut_layers.c: which layers form which model chunk: contiguous, so that the heaviest stage is as light as can be.
//
// A layer's weight are its FLOPs, forward and backward; what stands before the layers counts for the first chunk, what
// follows them (head, loss) for the last. One chunk a stage: an exact minimum by dynamic programming, of all minima the one
// with the least sum of squares. Several chunks a stage (interleaved): layers are dealt to the lightest stage, then single
// layers move across borders while that helps; exact for layers of equal weight, near it otherwise.
#include "cut.h"

typedef struct {
    int nlayers, chunks, stages;
    double *sum, before, after;  // sum[i]: of the layers before layer i
} Weights;

static Weights weigh(const Cut *c)
{
    Weights w = {c->g->nlayers, c->chunks, c->stages, xcalloc((size_t)c->g->nlayers + 1, sizeof(double)), 0, 0};
    for (Val v = 1; v < c->n; v++) {
        if (!c->live[v]) continue;
        int layer = c->g->nodes[v].layer;
        double flops = node_flops(c->g, v);
        if (layer < 0) w.before += flops;
        else if (layer >= w.nlayers) w.after += flops;
        else w.sum[layer + 1] += flops;
    }
    for (int i = 0; i < w.nlayers; i++) w.sum[i + 1] += w.sum[i];
    return w;
}

// Weight of chunk `chunk` if it has the layers from `first` to before `end`.
static double chunk_weight(const Weights *w, int chunk, int first, int end)
{
    return w->sum[end] - w->sum[first] + (chunk == 0 ? w->before : 0) + (chunk == w->chunks - 1 ? w->after : 0);
}

// Least value over all divisions of the first `end` layers in chunks 0..chunk. Phase 1: of the heaviest chunk. Phase 2: of
// the sum of squares, no chunk being heavier than `limit`.
static double divide(const Weights *w, double limit, int *sizes)
{
    size_t width = (size_t)w->nlayers + 1;
    double *best = xmalloc(width * (size_t)(w->chunks + 1) * sizeof *best);
    int *from = xcalloc(width * (size_t)(w->chunks + 1), sizeof *from);
    for (size_t i = 0; i < width * (size_t)(w->chunks + 1); i++) best[i] = -1;  // impossible
    best[0] = 0;
    for (int k = 0; k < w->chunks; k++)
        for (int end = k + 1; end <= w->nlayers; end++)
            for (int first = k; first < end; first++) {
                double before = best[(size_t)k * width + (size_t)first], here = chunk_weight(w, k, first, end);
                if (before < 0 || (limit >= 0 && here > limit)) continue;
                double total = limit >= 0 ? before + here * here : max_of(before, here);
                double *to = &best[(size_t)(k + 1) * width + (size_t)end];
                if (*to < 0 || total < *to) *to = total, from[(size_t)(k + 1) * width + (size_t)end] = first;
            }
    double result = best[(size_t)w->chunks * width + (size_t)w->nlayers];
    for (int k = w->chunks, end = w->nlayers; k > 0; k--) {
        int first = from[(size_t)k * width + (size_t)end];
        sizes[k - 1] = end - first, end = first;
    }
    free(best), free(from);
    return result;
}

// ---- several chunks a stage
typedef struct { double heaviest, squares; } Score;

static Score score(const Weights *w, const int *sizes)
{
    Score s = {0};
    double stage[64] = {0};
    for (int k = 0, first = 0; k < w->chunks; first += sizes[k++]) {
        double here = chunk_weight(w, k, first, first + sizes[k]);
        stage[k % w->stages] += here;
        s.squares += 1e-6 * here * here;  // even chunks, where stages are equal
    }
    for (int i = 0; i < w->stages; i++) s.heaviest = max_of(s.heaviest, stage[i]), s.squares += stage[i] * stage[i];
    return s;
}

static bool better(Score a, Score b)
{
    double slack = 1e-12;
    if (a.heaviest < b.heaviest * (1 - slack)) return true;
    return a.heaviest <= b.heaviest * (1 + slack) && a.squares < b.squares * (1 - slack);
}

static void deal(const Weights *w, int *sizes)
{
    double mean = w->sum[w->nlayers] > 0 ? w->sum[w->nlayers] / w->nlayers : 1, stage[64] = {0};
    stage[0] += w->before;
    stage[w->stages - 1] += w->after;
    for (int k = 0; k < w->chunks; k++) sizes[k] = 1, stage[k % w->stages] += mean;
    for (int left = w->nlayers - w->chunks; left > 0; left--) {
        int s = 0;
        for (int i = 1; i < w->stages; i++)
            if (stage[i] < stage[s]) s = i;
        int k = s;
        for (int i = s; i < w->chunks; i += w->stages)
            if (sizes[i] < sizes[k]) k = i;
        sizes[k]++;
        stage[s] += mean;
    }
}

static void improve(const Weights *w, int *sizes)
{
    Score now = score(w, sizes);
    for (bool moved = true; moved;) {
        moved = false;
        for (int k = 0; k + 1 < w->chunks; k++)
            for (int step = -1; step <= 1; step += 2) {
                int give = step > 0 ? k : k + 1, take = step > 0 ? k + 1 : k;
                if (sizes[give] == 1) continue;
                sizes[give]--, sizes[take]++;
                Score next = score(w, sizes);
                if (better(next, now)) now = next, moved = true;
                else sizes[give]++, sizes[take]--;
            }
    }
}

// ---- --stages 4,4,3,5
static void read_sizes(const Cut *c, int *sizes)
{
    const char *s = options.stages;
    long long sum = 0;
    int n = 0;
    for (bool more = true; more; n++) {
        char *end;
        long long size = strtoll(s, &end, 10);
        if (end == s || *s < '0' || *s > '9' || (*end && *end != ',') || size < 1 || size > c->g->nlayers)
            usage_error("--stages %s: '%.*s' is not a number of layers from 1 to %d", options.stages, (int)strcspn(s, ","), s,
                        c->g->nlayers);
        if (n < c->chunks) sizes[n] = (int)size;
        sum += size;
        more = *end == ',';
        s = end + more;
    }
    if (n != c->chunks || sum != c->g->nlayers)
        usage_error("--stages %s: %d number%s with a sum of %lld; wanted are %d (one for each chunk), with a sum of %d layers", options.stages,
                    n, n == 1 ? "" : "s", sum, c->chunks, c->g->nlayers);
}

void cut_layers(Cut *c)
{
    int nlayers = c->g->nlayers;
    c->chunk_of_layer = xcalloc((size_t)nlayers + 2, sizeof *c->chunk_of_layer);
    if (c->chunks > nlayers && c->chunks > 1)
        usage_error("--pp %d, %d chunk%s of layers a stage: the model has %d layer%s (m:layer in its description makes them), fewer than %d",
                    c->stages, c->chunks / c->stages, c->chunks == c->stages ? "" : "s", nlayers, nlayers == 1 ? "" : "s", c->chunks);
    int *sizes = xcalloc((size_t)c->chunks, sizeof *sizes);
    Weights w = weigh(c);
    if (options.stages) read_sizes(c, sizes);
    else if (c->chunks == 1) sizes[0] = nlayers;
    else if (c->chunks == c->stages) divide(&w, divide(&w, -1, sizes), sizes);
    else deal(&w, sizes), improve(&w, sizes);
    int layer = 0;
    for (int k = 0; k < c->chunks; k++)
        for (int i = 0; i < sizes[k]; i++) c->chunk_of_layer[++layer] = (uint16_t)k;
    if (layer != nlayers) bug("%d of %d layers have a stage", layer, nlayers);
    c->chunk_of_layer[nlayers + 1] = (uint16_t)(c->chunks - 1);
    free(sizes), free(w.sum);
}
