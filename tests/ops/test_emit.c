// test_emit.c: generated C against the reference evaluator: whole models, every stored value of every kernel.
//
// A model is compiled down to kernels, these to a shared object by the system's compiler, and the groups are run in
// order in this process, every value in a buffer of its own that starts as NaN, every kernel in two pieces; GEMMs by a
// plain loop. Each stored value, accumulator, parameter and state must agree with eval.c on the same graph. A process
// makes one model, so each is compiled in a child, which fails by fatal().
//
// The CUDA text is run as well, compiled as C with 32 fibers for a warp (see "a warp of fibers"): from the same inputs
// it must give the same bits as C, but for attention, whose sums have another order there.
#include "eval.h"
#include "rng.h"
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

Options options;

enum { SLOTS = 64 };
typedef void (*Kernel)(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi);
typedef struct {
    Graph *g;
    double **want; // by eval.c
    char **buffer; // by value that has storage
    double scalar[SLOTS];
    void *scratch, *library, *cuda;
    double tolerance;
    const char *what;
} Run;

// ------------------------------------------------------------------------------------------------------ numbers
static double noise(uint64_t x)
{
    x = (x + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

static double random_at(const Run *r, uint32_t id, int64_t position)
{
    uint32_t out[4], counter[4] = {(uint32_t)position, 0, (uint32_t)r->scalar[SLOT_STEP], id};
    philox4x32_10(out, counter, (uint32_t[2]){(uint32_t)r->scalar[SLOT_SEED], 0});
    return (out[0] >> 8) * 0x1p-24;
}

static void fill(void *ctx, const Graph *g, Val v, double *out, int64_t n)
{
    const Run *r = ctx;
    const Node *node = &g->nodes[v];
    uint32_t id = node->u.id;
    for (int64_t i = 0; i < n; i++) {
        double x = noise(((uint64_t)node->kind << 40) + ((uint64_t)id << 20) + (uint64_t)i);
        switch (node->kind) {
        case K_PARAM:
            out[i] = (g->params[id].init == INIT_CONSTANT ? g->params[id].init_value : 0) + 0.6 * (x - 0.5);
            break;
        case K_STATE:
            out[i] = 0.01 * x;
            break;
        case K_INPUT:
            out[i] = i == 1 ? g->inputs[id].ignore : floor(x * (double)g->inputs[id].limit);
            break;
        case K_RANDOM:
            out[i] = random_at(r, id, i);
            break;
        default:
            out[i] = r->scalar[id];
            break;
        }
        if (node->dtype == F32) out[i] = (float)out[i];
    }
}

static double get(DType t, const char *p, int64_t i)
{
    switch (t) {
    case F64:
        return ((const double *)p)[i];
    case F32:
        return ((const float *)p)[i];
    case I32:
        return ((const int32_t *)p)[i];
    case BOOL:
        return ((const uint8_t *)p)[i];
    default:
        break;
    }
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static void put(DType t, char *p, int64_t i, double x)
{
    if (t == F64)
        ((double *)p)[i] = x;
    else if (t == F32)
        ((float *)p)[i] = (float)x;
    else if (t == I32)
        ((int32_t *)p)[i] = (int32_t)x;
    else
        fatal("a leaf of this type");
}

// ---------------------------------------------------------------------------------------------------- compiling
static void *compile(const char *what, const char *text, int level)
{
    char source[] = "/tmp/pico-emit-XXXXXX.c", object[64], command[512];
    int fd = mkstemps(source, 2);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) fatal("cannot write %s:", source);
    close(fd);
    snprintf(object, sizeof object, "%.*s.so", (int)strlen(source) - 2, source);
    const char *cc = getenv("CC");
    snprintf(command, sizeof command,
             "%s -std=gnu11 -O%d -march=native -ffp-contract=off -fopenmp-simd -fno-math-errno "
             "-Wall -Werror -shared -fPIC -o %s %s -lm",
             cc && *cc ? cc : "cc", level, object, source);
    if (system(command)) fatal("%s: generated code does not compile: %s", what, command);
    void *library = dlopen(object, RTLD_NOW);
    if (!library) fatal("%s", dlerror());
    unlink(source), unlink(object);
    return library;
}

static char *whole_unit(const Graph *g, PlanTarget target)
{
    uint32_t *all = NULL;
    for (uint32_t i = 0; i < vec_len(g->kernels); i++) vec_push(all, i);
    char *text = emit_unit(g, target, all, vec_len(all));
    vec_free(all);
    return text;
}

static void *symbol(void *library, const char *name)
{
    void *p = dlsym(library, name);
    if (!p) fatal("%s", dlerror());
    return p;
}

// --------------------------------------------------------------------------------------------- a warp of fibers
// Every thread of a warp is a fiber; they run in turn up to the next shuffle. There each puts down its value and lets
// the others run; when it is its turn again all values of this shuffle lie there. Two tables in turn, since a fiber may
// put down the next shuffle's value before the others have read.
typedef struct {
    unsigned x, y, z;
} Dim;
typedef void (*Launch)(char *const *b, const double *s);
enum { FIBER_STACK = 1 << 16 };
static struct {
    ucontext_t home, fiber[32];
    char stack[32][FIBER_STACK];
    bool done[32];
    char table[2][32][8];
    int turn[32], lane;
    Launch kernel;
    char *const *args;
    const double *scalars;
    Dim *thread;
    unsigned warp;
} emulated;

static const char cuda_as_c[] =
    "#define __global__\n#define __device__ __attribute__((unused))\n#define __forceinline__ inline\n"
    "float sqrtf(float), floorf(float);\ndouble fabs(double);\n"
    "double exp(double), log(double), tanh(double), sqrt(double), floor(double), sin(double), cos(double), "
    "erf(double), pow(double, double);\n"
    "struct Dim { unsigned x, y, z; } threadIdx, blockIdx, blockDim, gridDim;\n"
    "void (*exchange)(const void *in, void *out, int size, int from, int relative);\n"
    "#define REINTERPRET(name, from, to) static inline to name(from x) { union { from f; to t; } u = {x}; return u.t; "
    "}\n"
    "REINTERPRET(__int_as_float, int, float)\nREINTERPRET(__uint_as_float, unsigned, float)\n"
    "REINTERPRET(__float_as_uint, float, unsigned)\nREINTERPRET(__longlong_as_double, long long, "
    "double)\nREINTERPRET(__double_as_longlong, double, long long)\n"
    "#define __fmaf_rn __builtin_fmaf\n#define __fma_rn __builtin_fma\n"
    "#define SHUFFLE(x, from, relative) ({ __typeof__((x) + 0) in_ = (x), out_; exchange(&in_, &out_, sizeof in_, "
    "from, relative); out_; })\n"
    "#define __shfl_sync(mask, x, from) SHUFFLE(x, from, 0)\n#define __shfl_down_sync(mask, x, by) SHUFFLE(x, by, 1)\n";

static void switch_to(int lane)
{
    emulated.lane = lane;
    emulated.thread->x = emulated.warp * 32 + (unsigned)lane;
}

static void next_fiber(void)
{
    int from = emulated.lane, to = from;
    do to = (to + 1) % 32;
    while (emulated.done[to] && to != from);
    if (to == from) return;
    switch_to(to);
    swapcontext(&emulated.fiber[from], &emulated.fiber[to]);
}

static void exchange(const void *in, void *out, int size, int from, int relative)
{
    int lane = emulated.lane, turn = emulated.turn[lane]++ % 2;
    memcpy(emulated.table[turn][lane], in, (size_t)size);
    next_fiber();
    int source = relative ? (lane + from < 32 ? lane + from : lane) : from;
    memcpy(out, emulated.table[turn][source], (size_t)size);
}

static void fiber_main(void)
{
    emulated.kernel(emulated.args, emulated.scalars);
    emulated.done[emulated.lane] = true;
    for (int i = 0; i < 32; i++)
        if (!emulated.done[i]) next_fiber();
    swapcontext(&emulated.fiber[emulated.lane], &emulated.home);
}

static void run_warp(void)
{
    memset(emulated.done, 0, sizeof emulated.done);
    memset(emulated.turn, 0, sizeof emulated.turn);
    for (volatile int i = 0; i < 32; i++) {  // getcontext may return twice
        getcontext(&emulated.fiber[i]);
        emulated.fiber[i].uc_stack.ss_sp = emulated.stack[i];
        emulated.fiber[i].uc_stack.ss_size = FIBER_STACK;
        emulated.fiber[i].uc_link = NULL;
        makecontext(&emulated.fiber[i], fiber_main, 0);
    }
    switch_to(0);
    swapcontext(&emulated.home, &emulated.fiber[0]);
}

static void launch(void *library, const KernelText *k, char *const *args, const double *scalars)
{
    Dim *block = symbol(library, "blockIdx"), *size = symbol(library, "blockDim"), *grid = symbol(library, "gridDim");
    char name[256];
    snprintf(name, sizeof name, "launch_%s", k->name);
    void *f = symbol(library, name);
    memcpy(&emulated.kernel, &f, sizeof f);
    emulated.thread = symbol(library, "threadIdx");
    emulated.args = args, emulated.scalars = scalars;
    *size = (Dim){k->block[0], 1, 1};
    *grid = (Dim){k->grid[0], 1, 1};
    for (block->x = 0; block->x < k->grid[0]; block->x++)
        for (emulated.warp = 0; emulated.warp < k->block[0] / 32; emulated.warp++) run_warp();
}

static void *compile_cuda(const char *what, const Graph *g)
{
    Buf b = {0};
    char *text = whole_unit(g, TARGET_CUDA);
    for (char *s; (s = strstr(text, "extern \"C\"")) != NULL;) memset(s, ' ', strlen("extern \"C\""));
    buf_printf(&b, "%s%s", cuda_as_c, text);
    for (size_t i = 0; i < vec_len(g->kernels); i++) {
        buf_printf(&b, "void launch_%s(char *const *b, const double *s) { %s(", g->kernels[i].name, g->kernels[i].name);
        for (uint32_t k = 0; k < g->kernels[i].nargs; k++) buf_printf(&b, "(void *)b[%u], ", k);
        buf_puts(&b, "s); }\n");
    }
    void *library = compile(what, b.s, 1);
    void (**hook)(const void *, void *, int, int, int) = symbol(library, "exchange");
    *hook = exchange;
    free(text);
    buf_free(&b);
    return library;
}

// ------------------------------------------------------------------------------------------------------- running
static Val storage(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v];
    return n->kind == K_ACCUMULATE ? g->accs[n->u.id].total : n->kind == K_UPDATE ? n->in[1] : v;
}

static char *buffer(Run *r, Val v)
{
    if (r->buffer[v]) return r->buffer[v];
    const Graph *g = r->g;
    const Node *n = &g->nodes[v];
    int64_t count = elements(g, v);
    char *p = xmalloc((size_t)value_bytes(g, v) + 64);
    memset(p, 0xff, (size_t)value_bytes(g, v) + 64);
    if (n->kind == K_PARAM || n->kind == K_STATE || n->kind == K_INPUT)
        for (int64_t i = 0; i < count; i++) put((DType)n->dtype, p, i, r->want[v][i]);
    return r->buffer[v] = p;
}

static void gemm(Run *r, const Group *gr)
{
    const PlanGemm *m = &gr->gemm;
    char *p[3];
    DType t[3];
    for (int i = 0; i < 3; i++) {
        Val v = storage(r->g, gr->args[i]);
        t[i] = (DType)r->g->nodes[v].dtype;
        p[i] = buffer(r, v) + gr->arg_offsets[i] * dtype_bytes(t[i]);
    }
    uint64_t batches = 1;
    for (uint32_t i = 0; i < m->nbatch; i++) batches *= m->batch[i];
    for (uint64_t b = 0; b < batches; b++) {
        int64_t at[3] = {0, 0, 0};
        uint64_t rest = b;
        for (uint32_t i = m->nbatch; i-- > 0; rest /= m->batch[i]) {
            int64_t k = (int64_t)(rest % m->batch[i]);
            at[0] += k * m->stride_a[i], at[1] += k * m->stride_b[i], at[2] += k * m->stride_c[i];
        }
        for (uint64_t i = 0; i < m->m; i++)
            for (uint64_t j = 0; j < m->n; j++) {
                int64_t to = at[2] + (int64_t)(i * m->ldc + j);
                double sum = m->beta == BETA_ONE ? get(t[2], p[2], to) : 0;
                for (uint64_t k = 0; k < m->k; k++)
                    sum += get(t[0], p[0], at[0] + (int64_t)(m->trans_a ? k * m->lda + i : i * m->lda + k)) *
                           get(t[1], p[1], at[1] + (int64_t)(m->trans_b ? j * m->ldb + k : k * m->ldb + j));
                put(t[2], p[2], to, sum);
            }
    }
}

static void kernel(Run *r, const Group *gr)
{
    const KernelText *k = &r->g->kernels[gr->kernel];
    char **args = NULL;
    void *found = symbol(r->library, k->name);
    Kernel f;
    memcpy(&f, &found, sizeof f);
    for (size_t i = 0; i < vec_len(gr->args); i++) vec_push(args, buffer(r, gr->args[i]));
    int64_t rows = (int64_t)k->rows, grain = (int64_t)k->grain, middle = (rows / 2 + grain - 1) / grain * grain;
    middle = min_of(middle, rows);
    memset(r->scratch, 0xff, k->scratch);
    f(args, r->scalar, r->scratch, middle, rows); // the second piece first: they must not depend on each other
    memset(r->scratch, 0xff, k->scratch);
    f(args, r->scalar, r->scratch, 0, middle);
    vec_free(args);
}

// The CUDA text of a kernel, from copies of the same buffers; `after` it the C kernel runs and results are compared.
static char **cuda_copies(Run *r, const Group *gr)
{
    char **copies = NULL;
    for (size_t i = 0; i < vec_len(gr->args); i++) {
        size_t n = (size_t)value_bytes(r->g, gr->args[i]);
        vec_push(copies, memcpy(xmalloc(n), buffer(r, gr->args[i]), n));
    }
    launch(r->cuda, &r->g->kernels[gr->kernel], copies, r->scalar);
    return copies;
}

static void compare_cuda(Run *r, const Group *gr, char **copies)
{
    bool attention = gr->kind == G_ATTENTION || gr->kind == G_ATTENTION_GRAD;
    for (size_t i = 0; i < vec_len(gr->args); i++) {
        Val v = gr->args[i];
        const char *name = r->g->kernels[gr->kernel].name;
        DType t = (DType)r->g->nodes[v].dtype;
        for (int64_t k = 0; k < elements(r->g, v); k++) {
            double c = get(t, buffer(r, v), k), cuda = get(t, copies[i], k);
            if (c == cuda || (isnan(c) && isnan(cuda)) || (attention && fabs(c - cuda) <= r->tolerance * (1 + fabs(c))))
                continue;
            fatal("%s: CUDA kernel %s gives %.9g in argument %zu at %lld, C %.9g", r->what, name, cuda, i, (long long)k,
                  c);
        }
        free(copies[i]);
    }
    vec_free(copies);
}

static void compare(Run *r, Val v, const double *want, const char *kernel_name)
{
    const Graph *g = r->g;
    Val s = storage(g, v);
    int64_t n = elements(g, s);
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i])) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        double x = get((DType)g->nodes[s].dtype, buffer(r, s), i);
        bool same = x == want[i] || (isnan(x) && isnan(want[i])) ||
                    fabs(x - want[i]) <= r->tolerance * (fabs(want[i]) + most + 1e-3);
        if (same) continue;
        Buf line = {0};
        node_dump(g, v, &line);
        fatal("%s: kernel %s, element %lld is %.9g, should be %.9g: %s", r->what, kernel_name, (long long)i, x, want[i],
              line.s);
    }
}

static void check_group(Run *r, const Group *gr)
{
    const Graph *g = r->g;
    const char *name = gr->kind == G_GEMM ? "gemm" : g->kernels[gr->kernel].name;
    for (size_t i = 0; i < vec_len(gr->nodes); i++) {
        Val v = gr->nodes[i];
        const Node *n = &g->nodes[v];
        if (n->kind == K_UPDATE)
            compare(r, v, r->want[v], name);
        else if (n->kind != K_ACCUMULATE && g->stored[v])
            compare(r, v, r->want[v], name);
    }
}

static void run_all(Run *r)
{
    Graph *g = r->g;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *gr = &g->groups[i];
        if (gr->kind == G_GEMM)
            gemm(r, gr);
        else {
            char **copies = cuda_copies(r, gr);
            kernel(r, gr);
            compare_cuda(r, gr, copies);
        }
        check_group(r, gr);
    }
    for (size_t i = 0; i < vec_len(g->accs); i++)
        if (r->buffer[g->accs[i].total]) compare(r, g->accs[i].total, r->want[g->accs[i].total], g->accs[i].name);
}

static double tolerance(DType t)
{
    return t == F64 ? 1e-10 : t == F32 ? 1e-4 : 4e-2;
}

static void run_graph(Graph *g, const char *what)
{
    options.emit_dir = "none";  // both texts
    select_nodes(g), fuse(g), order(g), place(g, NULL), emit(g, NULL);
    Run r = {.g = g, .what = what, .tolerance = tolerance(g->dtype)};
    r.scalar[SLOT_FIRST] = 1, r.scalar[SLOT_SEED] = 5, r.scalar[SLOT_STEP] = 3;
    for (size_t i = 0; i < vec_len(g->scalars); i++) r.scalar[g->scalars[i].slot] = g->scalars[i].standard;
    for (size_t i = 0; i < vec_len(g->scalars); i++)
        if (!strcmp(g->scalars[i].name, "step")) r.scalar[g->scalars[i].slot] = 3;
    r.want = eval_graph(g, g->dtype != F64, fill, &r);
    r.buffer = xcalloc(vec_len(g->nodes), sizeof *r.buffer);
    r.scratch = xmalloc(g->scratch_bytes + 64);
    char *text = whole_unit(g, TARGET_CPU);
    r.library = compile(what, text, 2);
    r.cuda = compile_cuda(what, g);
    run_all(&r);
    bool updates = vec_len(g->params) && g->params[0].acc >= 0;
    if (updates) return; // parameters are others now
    r.scalar[SLOT_FIRST] = 0;
    for (size_t i = 0; i < vec_len(g->accs); i++)
        for (int64_t k = 0; k < elements(g, g->accs[i].total); k++) r.want[g->accs[i].total][k] *= 2;
    run_all(&r);
}

static void model(const char *path, int64_t seq, const char *defines, DType dtype, bool no_fuse, Recompute recompute)
{
    char *text = xstrdup(defines);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) vec_push(options.defines, word);
    options.model_path = path;
    options.seq = seq, options.micro_batch = 2, options.accum = 1;
    options.dtype = dtype, options.no_fuse = no_fuse, options.recompute = recompute;
    Graph *g = graph_new();
    g->dtype = dtype, g->seq = seq, g->micro_batch = 2, g->accum = 1;
    front(g), grad(g), save(g);
    run_graph(g, path);
}

// ---------------------------------------------------------------------------------------------------- by hand
// Shapes and positions that models seldom have: each value below is one accumulator's.
static void keep(Graph *g, Val v)
{
    const Node n = *node_of(g, v);
    Axis axes[MAX_AXES];
    for (int i = 0; i < n.naxes; i++) axes[i] = n.axes[n.naxes - 1 - i]; // transposed
    uint32_t straight = graph_acc(g, "straight", -1, (DType)n.dtype, n.naxes, n.axes);
    make_accumulate(g, straight, v);
    if (n.naxes < 2) return;
    uint32_t turned = graph_acc(g, "turned", -1, (DType)n.dtype, n.naxes, axes);
    make_accumulate(g, turned, make_broadcast(g, v, n.naxes, axes));
}

static Val moved(Graph *g, Val v, Axis a, int64_t coef, int64_t offset)
{
    const Node n = *node_of(g, v);
    View view = {1, {{.src = a, .nterms = 1, .axis = {a}, .coef = {coef}, .offset = offset, .div = 1, .zero = true}}};
    return make_view(g, v, &view, n.naxes, n.axes);
}

static Val parameter(Graph *g, int n, const Axis *axes)
{
    uint32_t id = (uint32_t)vec_len(g->params);
    Val v = make_leaf(g, K_PARAM, id, graph_compute_dtype(g), n, axes);
    vec_push(g->params, (Param){.name = "p", .val = v, .acc = -1});
    return v;
}

static void positions(Graph *g, Val x, Axis a, Axis b)
{
    keep(g, make_map1(g, FN_EXP, moved(g, make_map1(g, FN_TANH, x), b, 1, -3)));
    keep(g, make_map2(g, FN_MUL, moved(g, x, b, -1, extent_of(g, b) + 1), x));
    keep(g, make_map2(g, FN_ADD, moved(g, x, a, 1, 5), moved(g, moved(g, x, a, 1, -1), b, 1, 2)));
    Axis ab = graph_axis(g, "ab", extent_of(g, a) * extent_of(g, b)), three = graph_axis(g, "three", 3),
         c = graph_axis(g, "c", extent_of(g, ab) / 3);
    Val merged = make_merge(g, make_map1(g, FN_EXP, x), 2, (Axis[]){b, a}, ab);
    keep(g, make_map1(g, FN_NEG, merged));
    keep(g, make_map1(g, FN_TANH, make_split(g, merged, ab, 2, (Axis[]){c, three})));
    keep(g, make_map2(g, FN_MUL, make_cast(g, make_index(g, b), graph_compute_dtype(g)), x));
}

static void sums(Graph *g, Val x, Axis batch, Axis a, Axis b)
{
    Axis pairs[][2] = {{batch, a}, {a, b}, {batch, b}};
    for (int r = RED_SUM; r <= RED_MIN; r++) {
        for (int i = 0; i < 3; i++) keep(g, make_reduce(g, (Reduction)r, x, 2, pairs[i]));
        keep(g, make_reduce(g, (Reduction)r, make_map1(g, FN_EXP, x), 1, &a));
        keep(g, make_reduce(g, (Reduction)r, x, 1, &b));
    }
    Val top = make_reduce(g, RED_MAX, x, 1, &a), e = make_map1(g, FN_EXP, make_map2(g, FN_SUB, x, top));
    keep(g, make_map2(g, FN_DIV, e, make_reduce(g, RED_SUM, e, 1, &a))); // softmax along an inner axis
    Val nodes[] = {make_random(g, graph_compute_dtype(g), 3, (Axis[]){batch, a, b}), x};
    keep(g, make_map(g, FN_ADD, 2, nodes));
}

static void windows(Graph *g, Axis batch, double window, int64_t seq_extent, int64_t dim_extent)
{
    Axis seq = graph_axis(g, "seq", seq_extent), dim = graph_axis(g, "dim", dim_extent), kv = graph_axis(g, "kv", 2),
         group = graph_axis(g, "group", 3);
    Val q = parameter(g, 5, (Axis[]){batch, group, seq, kv, dim}), k = parameter(g, 4, (Axis[]){kv, batch, seq, dim}),
        v = parameter(g, 4, (Axis[]){batch, dim, seq, kv}),
        dout = parameter(g, 5, (Axis[]){batch, group, seq, kv, dim});
    Attention how = {seq, dim, 0.3, window};
    Val o = make_attention(g, q, k, v, &how), lse = make_part(g, o, 1), dq = make_attention_grad(g, o, lse, dout);
    keep(g, o), keep(g, lse), keep(g, dq), keep(g, make_part(g, dq, 1)), keep(g, make_part(g, dq, 2));
}

// A rank holds some rows of a table: positions before and behind them give 0, and add to nothing.
static void part_of_table(Graph *g, Val rows, Axis batch, Axis a, Axis b)
{
    Axis where = graph_axis(g, "where", 12);
    Val token = make_leaf(g, K_INPUT, 1, I32, 2, (Axis[]){batch, where});
    vec_push(g->inputs, (Input){.name = "part", .limit = 200, .ignore = -1, .val = token});
    Val local = make_map2(g, FN_SUB, token, make_const(g, I32, 50));
    Val found = make_gather(g, rows, local, a);
    keep(g, make_map1(g, FN_NEG, found));
    keep(g, make_scatter_add(g, make_map1(g, FN_TANH, found), local, a, 2, (Axis[]){a, b}));
    Val logits = make_gather(g, make_broadcast(g, rows, 3, (Axis[]){batch, a, b}), make_pick(g, local, where, 3), a);
    keep(g, make_reduce(g, RED_SUM, logits, 1, &b));
    keep(g, make_scatter_add(g, make_pick(g, make_map1(g, FN_EXP, found), where, 3), make_pick(g, local, where, 3), a, 3,
                             (Axis[]){batch, a, b}));
}

static void by_hand(DType dtype, bool no_fuse)
{
    Graph *g = graph_new();
    g->dtype = options.dtype = dtype, options.no_fuse = no_fuse;
    g->seq = options.seq = 4, g->micro_batch = options.micro_batch = 2, g->accum = options.accum = 1;
    Axis batch = graph_axis(g, "batch", 2), a = graph_axis(g, "a", 75), b = graph_axis(g, "b", 90),
         big = graph_axis(g, "big", 9001);
    g->batch = batch;
    g->cur_seg = seg_code(SEG_F, 0);
    Val x = parameter(g, 3, (Axis[]){batch, a, b}), flat = parameter(g, 1, &big),
        rows = parameter(g, 2, (Axis[]){a, b});
    positions(g, x, a, b);
    sums(g, x, batch, a, b);
    keep(g, make_map1(g, FN_SIGMOID, flat));
    keep(g, make_reduce(g, RED_SUM, make_map1(g, FN_ABS, flat), 1, &big));
    Val token = make_leaf(g, K_INPUT, 0, I32, 1, &batch);
    vec_push(g->inputs, (Input){.name = "tokens", .limit = 75, .ignore = -1, .val = token});
    Val found = make_gather(g, rows, token, a); // one of them lies outside
    keep(g, make_map1(g, FN_EXP, found));
    keep(g, make_scatter_add(g, found, token, a, 2, (Axis[]){a, b}));
    part_of_table(g, rows, batch, a, b);
    windows(g, batch, 5, 37, 20);
    windows(g, batch, INFINITY, 18, 6);
    run_graph(g, "by hand");
}

// ------------------------------------------------------------------------------------------------------- the tests
static void hand_in_child(DType dtype, bool no_fuse)
{
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        program_name = "test_emit";
        signal(SIGSEGV, SIG_DFL), signal(SIGABRT, SIG_DFL), signal(SIGFPE, SIG_DFL);
        by_hand(dtype, no_fuse);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
}

static void shapes(void **state)
{
    (void)state;
    hand_in_child(F64, false), hand_in_child(F32, false), hand_in_child(F32, true);
}

static void in_child(const char *path, int64_t seq, const char *defines, DType dtype, bool no_fuse, Recompute recompute)
{
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, SIG_DFL), signal(SIGABRT, SIG_DFL), signal(SIGFPE, SIG_DFL); // cmocka would catch them
        program_name = "test_emit";
        model(path, seq, defines, dtype, no_fuse, recompute);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    if (status)
        print_message("%s seq %lld %s dtype %s no_fuse %d\n", path, (long long)seq, defines, dtype_name(dtype),
                      no_fuse);
    assert_int_equal(status, 0);
}

static const struct {
    const char *path;
    int64_t seq;
    const char *defines;
} models[] = {
    {"graphs/mlp.lua", 7, ""},
    {"graphs/llama.lua", 7,
     "vocab_size=65 hidden_size=36 intermediate_size=50 num_hidden_layers=2 num_attention_heads=6 "
     "num_key_value_heads=2 head_dim=6"},
    {"graphs/llama.lua", 65,
     "vocab_size=33 hidden_size=64 intermediate_size=96 num_hidden_layers=1 num_attention_heads=2 "
     "num_key_value_heads=1 head_dim=24 tie_word_embeddings=true"},
    {"graphs/llama.lua", 1,
     "vocab_size=17 hidden_size=16 intermediate_size=20 num_hidden_layers=1 num_attention_heads=1 "
     "num_key_value_heads=1 head_dim=80"},
    {"graphs/gpt2.lua", 20, "vocab_size=65 n_embd=48 n_layer=2 n_head=3 n_positions=32"},
    {"graphs/qwen3.lua", 33,
     "vocab_size=65 hidden_size=40 intermediate_size=64 num_hidden_layers=2 num_attention_heads=4 "
     "num_key_value_heads=2 head_dim=16"},
};

static void some_models(const char *which, DType dtype, bool no_fuse, Recompute recompute)
{
    for (; *which; which++) {
        int i = *which - '0';
        in_child(models[i].path, models[i].seq, models[i].defines, dtype, no_fuse, recompute);
    }
}

static void f64(void **state)
{
    (void)state;
    some_models("135", F64, false, RECOMPUTE_NONE);
}
static void f32(void **state)
{
    (void)state;
    some_models("024", F32, false, RECOMPUTE_NONE);
}
static void bf16(void **state)
{
    (void)state;
    some_models("14", BF16, false, RECOMPUTE_NONE);
}
static void unfused(void **state)
{
    (void)state;
    some_models("1", F32, true, RECOMPUTE_NONE);
}
static void recomputed(void **state)
{
    (void)state;
    some_models("1", F64, false, RECOMPUTE_FULL);
}

int main(int argc, char **argv)
{
    program_name = "test_emit";
    if (argc == 2) { // for debugging: f32|f64
        by_hand(argv[1][1] == '6' ? F64 : F32, getenv("NO_FUSE") != NULL);
        return 0;
    }
    if (argc == 5) { // PATH SEQ DEFINES f32|f64|bf16
        model(argv[1], atoi(argv[2]), argv[3],
              argv[4][1] == '6'   ? F64
              : argv[4][0] == 'b' ? BF16
                                  : F32,
              getenv("NO_FUSE") != NULL, RECOMPUTE_NONE);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes),  cmocka_unit_test(f64),
                                       cmocka_unit_test(f32),     cmocka_unit_test(bf16),
                                       cmocka_unit_test(unfused), cmocka_unit_test(recomputed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
