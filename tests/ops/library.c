// library.c: see library.h. The positions of random numbers count batch as the slowest axis, as the kernels do.
#include "library.h"
#include "rng.h"
#include <math.h>

Options options;
int64_t library_seq = LIBRARY_SEQ;

double library_noise(const char *name, int64_t i)
{
    uint64_t x = 14695981039346656037u;
    for (; *name; name++) x = (x ^ (uint8_t)*name) * 1099511628211u;
    x += (uint64_t)(i + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

// Positive around 1 for what begins at one; else of both signs, away from 0.
static double *initial(const Param *p, int64_t n)
{
    double *x = xcalloc((size_t)n, sizeof *x);
    bool ones = p->init == INIT_CONSTANT && p->init_value == 1;
    for (int64_t i = 0; i < n; i++) {
        double u = library_noise(p->name, i), sign = u < 0.5 ? -1 : 1, size = fmod(2 * u, 1);
        x[i] = (float)(ones ? 0.5 + u : sign * (0.05 + 0.95 * size));
    }
    return x;
}

Library library_open(const char *path, DType dtype)
{
    const char *sizes = library_mark(path, "sizes");
    long long seq = library_seq, batch = LIBRARY_BATCH;
    if (sizes && sscanf(sizes, "%lld %lld", &seq, &batch) != 2) fatal("%s: sizes: %s", path, sizes);
    options = (Options){.model_path = path, .seq = seq, .micro_batch = batch, .accum = 1, .dtype = dtype,
                        .tp = 1, .pp = 1, .dp = 1, .virtual_chunks = 1, .drop = DROP_NONE, .sp = -1};
    Library l = {.g = graph_new(), .step = 1};
    l.g->dtype = dtype;
    l.g->seq = options.seq, l.g->micro_batch = options.micro_batch, l.g->accum = 1;
    front(l.g);
    graph_verify(l.g, "front");
    for (size_t i = 0; i < vec_len(l.g->params); i++)
        vec_push(l.params, initial(&l.g->params[i], elements(l.g, l.g->params[i].val)));
    return l;
}

// States exist once the optimizer has been run.
static double *state_of(Library *l, size_t id)
{
    while (vec_len(l->states) <= id) {
        const State *s = &l->g->states[vec_len(l->states)];
        vec_push(l->states, xcalloc((size_t)elements(l->g, s->val), sizeof(double)));
    }
    return l->states[id];
}

void library_random_states(Library *l)
{
    for (size_t i = 0; i < vec_len(l->g->states); i++) {
        double *x = state_of(l, i);
        int64_t n = elements(l->g, l->g->states[i].val);
        for (int64_t k = 0; k < n; k++) x[k] = library_noise(l->g->states[i].name, k);
    }
}

int64_t library_vocab(const Graph *g)
{
    int64_t least = 256;
    for (size_t i = 0; i < vec_len(g->inputs); i++) least = min_of(least, g->inputs[i].limit);
    return least;
}

uint32_t library_token(int64_t vocab, int64_t position)
{
    return (uint32_t)(library_noise("tokens", position) * (double)vocab);
}

const char *library_train(const Graph *g, const char *key)
{
    for (size_t i = 0; i < vec_len(g->train); i++)
        if (!strcmp(g->train[i].key, key)) return g->train[i].value;
    return NULL;
}

// Sample s holds the tokens s*seq .. s*seq + seq; the last is a target only.
static void fill_input(const Library *l, const Input *in, double *out)
{
    const char *ignored = library_train(l->g, "ignore");
    for (int64_t i = 0; i < l->g->micro_batch * l->g->seq; i++) {
        uint32_t t = library_token(library_vocab(l->g), l->first_sample * l->g->seq + i + in->shift);
        out[i] = in->shift && ignored && t == (uint32_t)atoi(ignored) ? in->ignore : (double)t;
    }
}

static void fill_random(const Library *l, const Graph *g, const Node *n, double *out, int64_t count)
{
    const uint32_t key[2] = {1, 0};
    for (int64_t i = 0; i < count; i++) {
        int64_t rest = i, stride = 1, position = 0, batch = 0;
        for (int k = n->naxes; k-- > 0; rest /= extent_of(g, n->axes[k])) {
            int64_t at = rest % extent_of(g, n->axes[k]);
            if (n->axes[k] == g->batch) batch = at;
            else position += at * stride, stride *= extent_of(g, n->axes[k]);
        }
        position += batch * stride;
        uint32_t words[4], counter[4] = {(uint32_t)position, 0, (uint32_t)l->step, n->u.id};
        philox4x32_10(words, counter, key);
        out[i] = (words[0] >> 8) * 0x1p-24;
    }
}

static double scalar_value(const Library *l, const Graph *g, uint32_t slot)
{
    if (slot == SLOT_STEP) return (double)l->step;
    for (size_t i = 0; i < vec_len(g->scalars); i++) {
        const Scalar *s = &g->scalars[i];
        const char *train = library_train(g, s->name);
        if (s->slot == slot) return train ? strtod(train, NULL) : s->standard;
    }
    bug("no scalar has slot %u", slot);
}

void library_leaf(void *ctx, const Graph *g, Val v, double *out, int64_t n)
{
    Library *l = ctx;
    const Node *node = &g->nodes[v];
    switch (node->kind) {
    case K_INPUT: fill_input(l, &g->inputs[node->u.id], out); break;
    case K_PARAM: memcpy(out, l->params[node->u.id], (size_t)n * sizeof *out); break;
    case K_STATE: memcpy(out, state_of(l, node->u.id), (size_t)n * sizeof *out); break;
    case K_SCALAR: out[0] = scalar_value(l, g, node->u.id); break;
    case K_RANDOM: fill_random(l, g, node, out, n); break;
    default: bug("%s is no leaf", kind_info[node->kind].name);
    }
}

const char *library_mark(const char *path, const char *key)
{
    char *text = read_file(path, NULL);
    if (!text) fatal("%s:", path);
    const char *found = NULL;
    for (const char *line = text; !strncmp(line, "-- ", 3);) {
        size_t length = strcspn(line, "\n"), n = strlen(key);
        if (!strncmp(line + 3, key, n) && !strncmp(line + 3 + n, ": ", 2)) found = intern_n(line + n + 5, length - n - 5);
        line += length + (line[length] != 0);
    }
    free(text);
    return found;
}
