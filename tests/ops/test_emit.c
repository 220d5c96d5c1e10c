// test_emit.c: generated C against the reference evaluator: whole models, every stored value of every kernel.
//
// A model is compiled down to kernels, these to a shared object by the system's compiler, and the groups are run in order
// in this process, every value in a buffer of its own that starts as NaN, every kernel in two pieces; GEMMs by a plain
// loop. Each stored value, accumulator, parameter and state must agree with eval.c on the same graph. A process makes
// one model, so each is compiled in a child, which fails by fatal().
//
// The CUDA text is run as well, compiled as C with 32 fibers for a warp (see "a warp of fibers"): from the same inputs it
// must give the same bits as C, but for attention, whose sums have another order there.
#include "eval.h"
#include "rng.h"
#include <dlfcn.h>
#include <math.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <cmocka.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

Options options;

enum { SLOTS = 64 };
typedef void (*Kernel)(char *const *b, const double *s, void *scratch, int64_t lo, int64_t hi);
typedef struct {
    Graph *g;
    double **want;   // by eval.c
    char **buffer;   // by value that has storage
    double scalar[SLOTS];
    void *scratch, *library, *cuda;
    double tolerance;
    const char *what;
} Run;

// ------------------------------------------------------------------------------------------------------ numbers
static double noise(uint64_t x) {
    x = (x + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

static double random_at(const Run *r, uint32_t id, int64_t position) {
    uint32_t out[4], counter[4] = {(uint32_t)position, 0, (uint32_t)r->scalar[SLOT_STEP], id};
    philox4x32_10(out, counter, (uint32_t[2]){(uint32_t)r->scalar[SLOT_SEED], 0});
    return (out[0] >> 8) * 0x1p-24;
}

static void fill(void *ctx, const Graph *g, Val v, double *out, int64_t n) {
    const Run *r = ctx;
    const Node *node = &g->nodes[v];
    uint32_t id = node->u.id;
    for (int64_t i = 0; i < n; i++) {
        double x = noise(((uint64_t)node->kind << 40) + ((uint64_t)id << 20) + (uint64_t)i);
        switch (node->kind) {
        case K_PARAM: out[i] = (g->params[id].init == INIT_CONSTANT ? g->params[id].init_value : 0) + 0.6 * (x - 0.5); break;
        case K_STATE: out[i] = 0.01 * x; break;
        case K_INPUT: out[i] = i == 1 ? g->inputs[id].ignore : floor(x * (double)g->inputs[id].limit); break;
        case K_RANDOM: out[i] = random_at(r, id, i); break;
        default: out[i] = r->scalar[id]; break;
        }
        if (node->dtype == F32) out[i] = (float)out[i];
    }
}

static double get(DType t, const char *p, int64_t i) {
    switch (t) {
    case F64: return ((const double *)p)[i];
    case F32: return ((const float *)p)[i];
    case I32: return ((const int32_t *)p)[i];
    case BOOL: return ((const uint8_t *)p)[i];
    default: break;
    }
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static void put(DType t, char *p, int64_t i, double x) {
    if (t == F64) ((double *)p)[i] = x;
    else if (t == F32) ((float *)p)[i] = (float)x;
    else if (t == I32) ((int32_t *)p)[i] = (int32_t)x;
    else fatal("a leaf of this type");
}

// ---------------------------------------------------------------------------------------------------- compiling
static void *compile(const char *what, const char *text) {
    char source[] = "/tmp/pico-emit-XXXXXX.c", object[64], command[512];
    int fd = mkstemps(source, 2);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text)) fatal("cannot write %s:", source);
    close(fd);
    snprintf(object, sizeof object, "%.*s.so", (int)strlen(source) - 2, source);
    const char *cc = getenv("CC");
    snprintf(command, sizeof command, "%s -std=gnu11 -O2 -march=native -ffp-contract=off -fopenmp-simd -fno-math-errno "
             "-Wall -Werror -shared -fPIC -o %s %s -lm", cc && *cc ? cc : "cc", object, source);
    if (system(command)) fatal("%s: generated code does not compile: %s", what, command);
    void *library = dlopen(object, RTLD_NOW);
    if (!library) fatal("%s", dlerror());
    unlink(source), unlink(object);
    return library;
}

static char *whole_unit(const Graph *g, PlanTarget target) {
    uint32_t *all = NULL;
    for (uint32_t i = 0; i < vec_len(g->kernels); i++) vec_push(all, i);
    char *text = emit_unit(g, target, all, vec_len(all));
    vec_free(all);
    return text;
}

static void *symbol(void *library, const char *name) {
    void *p = dlsym(library, name);
    if (!p) fatal("%s", dlerror());
    return p;
}

// --------------------------------------------------------------------------------------------- a warp of fibers
// Every thread of a warp is a fiber; they run in turn up to the next shuffle. There each puts down its value and lets
// the others run; when it is its turn again all values of this shuffle lie there. Two tables in turn, since a fiber may
// put down the next shuffle's value before the others have read.
typedef struct { unsigned x, y, z; } Dim;
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
    "float sqrtf(float), floorf(float);\n"
    "double exp(double), log(double), tanh(double), sqrt(double), floor(double), sin(double), cos(double), erf(double), pow(double, double);\n"
    "struct Dim { unsigned x, y, z; } threadIdx, blockIdx, blockDim, gridDim;\n"
    "void (*exchange)(const void *in, void *out, int size, int from, int relative);\n"
    "#define REINTERPRET(name, from, to) static inline to name(from x) { union { from f; to t; } u = {x}; return u.t; }\n"
    "REINTERPRET(__int_as_float, int, float)\nREINTERPRET(__uint_as_float, unsigned, float)\n"
    "REINTERPRET(__float_as_uint, float, unsigned)\nREINTERPRET(__longlong_as_double, long long, double)\n"
    "#define __fmaf_rn __builtin_fmaf\n#define __fma_rn __builtin_fma\n"
    "#define SHUFFLE(x, from, relative) ({ __typeof__(x) in_ = (x), out_; exchange(&in_, &out_, sizeof in_, from, relative); out_; })\n"
    "#define __shfl_sync(mask, x, from) SHUFFLE(x, from, 0)\n#define __shfl_down_sync(mask, x, by) SHUFFLE(x, by, 1)\n";

static void switch_to(int lane) {
    emulated.lane = lane;
    emulated.thread->x = emulated.warp * 32 + (unsigned)lane;
}

static void next_fiber(void) {
    int from = emulated.lane, to = from;
    do to = (to + 1) % 32;
    while (emulated.done[to] && to != from);
    if (to == from) return;
    switch_to(to);
    swapcontext(&emulated.fiber[from], &emulated.fiber[to]);
}

static void exchange(const void *in, void *out, int size, int from, int relative) {
    int lane = emulated.lane, turn = emulated.turn[lane]++ % 2;
    memcpy(emulated.table[turn][lane], in, (size_t)size);
    next_fiber();
    int source = relative ? (lane + from < 32 ? lane + from : lane) : from;
    memcpy(out, emulated.table[turn][source], (size_t)size);
}

static void fiber_main(void) {
    emulated.kernel(emulated.args, emulated.scalars);
    emulated.done[emulated.lane] = true;
    for (int i = 0; i < 32; i++)
        if (!emulated.done[i]) next_fiber();
    swapcontext(&emulated.fiber[emulated.lane], &emulated.home);
}

static void run_warp(void) {
    memset(emulated.done, 0, sizeof emulated.done);
    memset(emulated.turn, 0, sizeof emulated.turn);
    for (int i = 0; i < 32; i++) {
        getcontext(&emulated.fiber[i]);
        emulated.fiber[i].uc_stack.ss_sp = emulated.stack[i];
        emulated.fiber[i].uc_stack.ss_size = FIBER_STACK;
        emulated.fiber[i].uc_link = NULL;
        makecontext(&emulated.fiber[i], fiber_main, 0);
    }
    switch_to(0);
    swapcontext(&emulated.home, &emulated.fiber[0]);
}

static void launch(void *library, const KernelText *k, char *const *args, const double *scalars) {
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

static void *compile_cuda(const char *what, const Graph *g) {
    Buf b = {0};
    char *text = whole_unit(g, TARGET_CUDA);
    for (char *s; (s = strstr(text, "extern \"C\"")) != NULL;) memset(s, ' ', strlen("extern \"C\""));
    buf_printf(&b, "%s%s", cuda_as_c, text);
    for (size_t i = 0; i < vec_len(g->kernels); i++) {
        buf_printf(&b, "void launch_%s(char *const *b, const double *s) { %s(", g->kernels[i].name, g->kernels[i].name);
        for (uint32_t k = 0; k < g->kernels[i].nargs; k++) buf_printf(&b, "(void *)b[%u], ", k);
        buf_puts(&b, "s); }\n");
    }
    void *library = compile(what, b.s);
    void (**hook)(const void *, void *, int, int, int) = symbol(library, "exchange");
    *hook = exchange;
    free(text);
    buf_free(&b);
    return library;
}

// ------------------------------------------------------------------------------------------------------- running
static Val storage(const Graph *g, Val v) {
    const Node *n = &g->nodes[v];
    return n->kind == K_ACCUMULATE ? g->accs[n->u.id].total : n->kind == K_UPDATE ? n->in[1] : v;
}

static char *buffer(Run *r, Val v) {
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

static void gemm(Run *r, const Group *gr) {
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

static void kernel(Run *r, const Group *gr) {
    const KernelText *k = &r->g->kernels[gr->kernel];
    char **args = NULL;
    void *found = symbol(r->library, k->name);
    Kernel f;
    memcpy(&f, &found, sizeof f);
    for (size_t i = 0; i < vec_len(gr->args); i++) vec_push(args, buffer(r, gr->args[i]));
    int64_t rows = (int64_t)k->rows, grain = (int64_t)k->grain, middle = (rows / 2 + grain - 1) / grain * grain;
    middle = min_of(middle, rows);
    memset(r->scratch, 0xff, k->scratch);
    f(args, r->scalar, r->scratch, middle, rows);  // the second piece first: they must not depend on each other
    memset(r->scratch, 0xff, k->scratch);
    f(args, r->scalar, r->scratch, 0, middle);
    vec_free(args);
}

// The CUDA text of a kernel, from copies of the same buffers; `after` it the C kernel runs and results are compared.
static char **cuda_copies(Run *r, const Group *gr) {
    char **copies = NULL;
    for (size_t i = 0; i < vec_len(gr->args); i++) {
        size_t n = (size_t)value_bytes(r->g, gr->args[i]);
        vec_push(copies, memcpy(xmalloc(n), buffer(r, gr->args[i]), n));
    }
    launch(r->cuda, &r->g->kernels[gr->kernel], copies, r->scalar);
    return copies;
}

static void compare_cuda(Run *r, const Group *gr, char **copies) {
    bool attention = gr->kind == G_ATTENTION || gr->kind == G_ATTENTION_GRAD;
    for (size_t i = 0; i < vec_len(gr->args); i++) {
        Val v = gr->args[i];
        const char *name = r->g->kernels[gr->kernel].name;
        DType t = (DType)r->g->nodes[v].dtype;
        for (int64_t k = 0; k < elements(r->g, v); k++) {
            double c = get(t, buffer(r, v), k), cuda = get(t, copies[i], k);
            if (c == cuda || (isnan(c) && isnan(cuda)) || (attention && fabs(c - cuda) <= r->tolerance * (1 + fabs(c)))) continue;
            fatal("%s: CUDA kernel %s gives %.9g in argument %zu at %lld, C %.9g", r->what, name, cuda, i, (long long)k, c);
        }
        free(copies[i]);
    }
    vec_free(copies);
}

static void compare(Run *r, Val v, const double *want, const char *kernel_name) {
    const Graph *g = r->g;
    Val s = storage(g, v);
    int64_t n = elements(g, s);
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (isfinite(want[i])) most = fmax(most, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        double x = get((DType)g->nodes[s].dtype, buffer(r, s), i);
        bool same = x == want[i] || (isnan(x) && isnan(want[i])) ||
                    fabs(x - want[i]) <= r->tolerance * (fabs(want[i]) + most + 1e-6);
        if (same) continue;
        Buf line = {0};
        node_dump(g, v, &line);
        fatal("%s: kernel %s, element %lld is %.9g, should be %.9g: %s", r->what, kernel_name, (long long)i, x, want[i], line.s);
    }
}

static void check_group(Run *r, const Group *gr) {
    const Graph *g = r->g;
    const char *name = gr->kind == G_GEMM ? "gemm" : g->kernels[gr->kernel].name;
    for (size_t i = 0; i < vec_len(gr->nodes); i++) {
        Val v = gr->nodes[i];
        const Node *n = &g->nodes[v];
        if (n->kind == K_UPDATE) compare(r, v, r->want[v], name);
        else if (n->kind != K_ACCUMULATE && g->stored[v]) compare(r, v, r->want[v], name);
    }
}

static void run_all(Run *r) {
    Graph *g = r->g;
    for (size_t i = 0; i < vec_len(g->groups); i++) {
        const Group *gr = &g->groups[i];
        if (gr->kind == G_GEMM) gemm(r, gr);
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

static void model(const char *path, int64_t seq, const char *defines, DType dtype, bool no_fuse, Recompute recompute) {
    char *text = xstrdup(defines);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) vec_push(options.defines, word);
    options.model_path = path;
    options.seq = seq, options.micro_batch = 2, options.accum = 1;
    options.dtype = dtype, options.no_fuse = no_fuse, options.recompute = recompute;
    Graph *g = graph_new();
    g->dtype = dtype, g->seq = seq, g->micro_batch = 2, g->accum = 1;
    front(g), grad(g), save(g), select_nodes(g), fuse(g), order(g), place(g), emit(g);
    Run r = {.g = g, .what = path, .tolerance = dtype == F64 ? 1e-10 : dtype == F32 ? 1e-4 : 4e-2};
    r.scalar[SLOT_FIRST] = 1, r.scalar[SLOT_SEED] = 5, r.scalar[SLOT_STEP] = 3;
    for (size_t i = 0; i < vec_len(g->scalars); i++) r.scalar[g->scalars[i].slot] = g->scalars[i].standard;
    for (size_t i = 0; i < vec_len(g->scalars); i++)
        if (!strcmp(g->scalars[i].name, "step")) r.scalar[g->scalars[i].slot] = 3;
    r.want = eval_graph(g, dtype != F64, fill, &r);
    r.buffer = xcalloc(vec_len(g->nodes), sizeof *r.buffer);
    r.scratch = xmalloc(g->scratch_bytes + 64);
    text = whole_unit(g, TARGET_CPU);
    r.library = compile(path, text);
    r.cuda = compile_cuda(path, g);
    run_all(&r);
}

// ------------------------------------------------------------------------------------------------------- the tests
static void in_child(const char *path, int64_t seq, const char *defines, DType dtype, bool no_fuse, Recompute recompute) {
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        signal(SIGSEGV, SIG_DFL), signal(SIGABRT, SIG_DFL), signal(SIGFPE, SIG_DFL);  // cmocka would catch them
        program_name = "test_emit";
        model(path, seq, defines, dtype, no_fuse, recompute);
        _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    if (status) print_message("%s seq %lld %s dtype %s no_fuse %d\n", path, (long long)seq, defines, dtype_name(dtype), no_fuse);
    assert_int_equal(status, 0);
}

static const struct { const char *path; int64_t seq; const char *defines; } models[] = {
    {"graphs/mlp.lua", 7, ""},
    {"graphs/llama.lua", 7, "vocab_size=65 hidden_size=36 intermediate_size=50 num_hidden_layers=2 num_attention_heads=6 num_key_value_heads=2 head_dim=6"},
    {"graphs/llama.lua", 65, "vocab_size=33 hidden_size=64 intermediate_size=96 num_hidden_layers=1 num_attention_heads=2 num_key_value_heads=1 head_dim=24 tie_word_embeddings=true"},
    {"graphs/llama.lua", 1, "vocab_size=17 hidden_size=16 intermediate_size=20 num_hidden_layers=1 num_attention_heads=1 num_key_value_heads=1 head_dim=80"},
    {"graphs/gpt2.lua", 20, "vocab_size=65 n_embd=48 n_layer=2 n_head=3 n_positions=32"},
    {"graphs/qwen3.lua", 33, "vocab_size=65 hidden_size=40 intermediate_size=64 num_hidden_layers=2 num_attention_heads=4 num_key_value_heads=2 head_dim=16"},
};

static void each_model(DType dtype, bool no_fuse, Recompute recompute) {
    for (size_t i = 0; i < countof(models); i++)
        in_child(models[i].path, models[i].seq, models[i].defines, dtype, no_fuse, recompute);
}

static void f64(void **state) { (void)state; each_model(F64, false, RECOMPUTE_NONE); }
static void f32(void **state) { (void)state; each_model(F32, false, RECOMPUTE_NONE); }
static void bf16(void **state) { (void)state; each_model(BF16, false, RECOMPUTE_NONE); }
static void unfused(void **state) { (void)state; each_model(F32, true, RECOMPUTE_NONE); }
static void recomputed(void **state) { (void)state; each_model(F64, false, RECOMPUTE_FULL); }

int main(int argc, char **argv) {
    if (argc == 5) {  // one model, for debugging: PATH SEQ DEFINES f32|f64|bf16
        program_name = argv[0];
        model(argv[1], atoi(argv[2]), argv[3], argv[4][1] == '6' ? F64 : argv[4][0] == 'b' ? BF16 : F32, getenv("NO_FUSE") != NULL, RECOMPUTE_NONE);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(f64), cmocka_unit_test(f32), cmocka_unit_test(bf16),
                                       cmocka_unit_test(unfused), cmocka_unit_test(recomputed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
