// emit.c: groups become kernels: text in C and in CUDA C, from the same bodies.
//
//   emit.c            one kernel for equal texts (over all stages), names, comments, translation units, files
//   emit_expr.c       values as lines, pulled by their users       emit_index.c    index expressions
//   emit_access.c     lines by level, loads, stores, predicates    emit_template.c templates/, filled
//   emit_loops.c      loops, elementwise kernels                   emit_row.c      reductions within a row
//   emit_col.c        column sums, scatter_add                     emit_attention.c
//
// Everything but the buffers' addresses is in the text: extents, strides, offsets of windows. Nothing of a layer is:
// names are numbered within the kernel and arguments in order of first use, so the layers of a model share their
// kernels.
//
// Contract with fuse and place: kernels may run over a row several times, so an output may lie where an input lay only
// in an elementwise group that reads it at its own position. Accumulators, parameters and states are written in place.
#include "emit.h"
#include <errno.h>
#include <sys/stat.h>

static char *emit_target(Emitter *e, PlanTarget target)
{
    e->target = target;
    e->out->scratch = target == TARGET_CPU ? 0 : e->out->scratch;
    switch (e->group->kind) {
    case G_COL:
        return emit_col(e);
    case G_SCATTER:
        return emit_scatter(e);
    case G_ATTENTION:
    case G_ATTENTION_GRAD:
        return emit_attention(e);
    default:
        break;
    }
    for (size_t i = 0; i < vec_len(e->group->nodes); i++)
        if (e->g->nodes[e->group->nodes[i]].kind == K_REDUCE) return emit_row(e);
    return emit_elements(e);
}

// ------------------------------------------------------------------------------------------------ names, comments
static const char *op_of(const Graph *g, Val v)
{
    const Node *n = &g->nodes[v];
    if (n->op) return g->ops[n->op].name;
    return n->kind == K_MAP ? fn_info[n->fn].name : kind_info[n->kind].name;
}

// "rmsnorm_add": the group's ops, at most three, backward ones with d_ before; then a number that no other kernel has
static const char *kernel_name(Graph *g, const Group *gr, size_t number)
{
    Buf b = {0};
    const char *seen[3];
    int nseen = 0;
    for (size_t i = 0; i < vec_len(gr->nodes) && nseen < 3; i++) {
        const char *op = op_of(g, gr->nodes[i]);
        bool known = false;
        for (int k = 0; k < nseen; k++) known |= !strcmp(seen[k], op);
        if (known) continue;
        seen[nseen++] = op;
        buf_puts(&b, nseen > 1 ? "_" : g->nodes[gr->nodes[i]].backward ? "d_" : "");
        for (const char *s = op; *s; s++) {
            bool word = (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9');
            buf_write(&b, word ? s : "_", 1);
        }
    }
    bool digit = b.n && b.s[0] >= '0' && b.s[0] <= '9';
    const char *name = arena_printf(&g->arena, "%s%s_%zu", digit ? "k_" : "", b.n ? b.s : "kernel", number);
    buf_free(&b);
    return name;
}

// The places that the group comes from, each once: "rmsnorm llama.lua:21, rope llama.lua:30"
static const char *places(Graph *g, const Group *gr, size_t most)
{
    Buf b = {0}, place = {0};
    const char **seen = NULL;
    for (size_t i = 0; i < vec_len(gr->nodes); i++) {
        buf_free(&place);
        const char *text = intern(node_place(g, gr->nodes[i], &place));
        bool known = false;
        for (size_t k = 0; k < vec_len(seen); k++) known |= seen[k] == text;
        if (known || !*text) continue;
        if (vec_len(seen) == most) {
            buf_puts(&b, ", ...");
            break;
        }
        vec_push(seen, text);
        buf_printf(&b, "%s%s", b.n ? ", " : "", text);
    }
    for (char *s = b.s; s && *s; s++)
        if (*s < ' ' || *s == '\\') *s = '?'; // it stands in a comment
    const char *out = arena_strdup(&g->arena, b.s ? b.s : "");
    buf_free(&b), buf_free(&place);
    vec_free(seen);
    return out;
}

static void comment(Graph *g, const Group *gr, Buf *out)
{
    static const char *const access[] = {"read", "written", "read and written"};
    buf_printf(out, "// %s\n", places(g, gr, 6));
    for (size_t i = 0; i < vec_len(gr->args); i++) {
        const Node *n = &g->nodes[gr->args[i]];
        buf_printf(out, "// a%zu %s [", i, dtype_name((DType)n->dtype));
        for (int k = 0; k < n->naxes; k++)
            buf_printf(out, "%s%s %lld", k ? ", " : "", axis_name(g, n->axes[k]), (long long)extent_of(g, n->axes[k]));
        buf_printf(out, "] %s\n", access[gr->arg_written[i]]);
    }
}

static const char *with_name(Graph *g, const char *notes, const char *body, const char *name)
{
    Buf b = {0};
    const char *hole = strstr(body, "${name}");
    if (!hole) bug("a kernel without a name");
    buf_puts(&b, notes);
    buf_write(&b, body, (size_t)(hole - body));
    buf_puts(&b, name);
    buf_puts(&b, hole + strlen("${name}"));
    const char *text = arena_strdup(&g->arena, b.s);
    buf_free(&b);
    return text;
}

// ------------------------------------------------------------------------------------------------------- kernels
// The kernel of an earlier stage with that key, or NULL; their number (each once) in *distinct.
static const KernelText *earlier_kernel(const Graph *g, const Program *prog, const char *key, size_t *distinct)
{
    for (int s = 0; prog && s < g->stage; s++) {
        const Graph *before = prog->stages[s];
        for (size_t i = 0; i < vec_len(before->kernels); i++) {
            if (before->kernels[i].key == key) return &before->kernels[i];
            *distinct += before->kernels[i].stage == s;
        }
    }
    return NULL;
}

// The index of the kernel with these bodies (equal ones are found by that for the target): the stage's own, one of an earlier stage under the same name, or a new one.
static uint32_t kernel_of(Graph *g, const Program *prog, Group *gr, KernelText *k, char *const body[2])
{
    Buf text = {0};  // (the rows are not in the text of a C kernel)
    buf_printf(&text, "%s%llu", body[options.target], (unsigned long long)k->rows);
    const char *key = intern_n(text.s, text.n);
    buf_free(&text);
    uint32_t index = (uint32_t)vec_len(g->kernels);
    size_t number = 0;
    for (uint32_t i = 0; i < index; i++) {
        if (g->kernels[i].key == key) return i;
        number += g->kernels[i].stage == g->stage;
    }
    const KernelText *earlier = earlier_kernel(g, prog, key, &number);
    if (earlier) {
        vec_push(g->kernels, *earlier);
        return index;
    }
    Buf notes = {0};
    comment(g, gr, &notes);
    k->key = key, k->stage = g->stage;
    k->name = kernel_name(g, gr, number);
    k->label = places(g, gr, 3);
    for (int t = 0; t < 2; t++)
        if (body[t]) k->text[t] = with_name(g, notes.s, body[t], k->name);
    buf_free(&notes);
    k->nargs = (uint32_t)vec_len(gr->args);
    k->bytes = gr->bytes;
    k->flops = gr->flops;
    for (int i = 0; i < 3; i++) {
        k->grid[i] = max_of(k->grid[i], 1u);
        k->block[i] = max_of(k->block[i], 1u);
    }
    vec_push(g->kernels, *k);
    return index;
}

static void emit_group(Emitter *e, const Program *prog, Group *gr)
{
    KernelText k = {0};
    char *body[2] = {NULL, NULL};
    e->group = gr;
    e->out = &k;
    vec_clear(gr->args), vec_clear(gr->arg_offsets), vec_clear(gr->arg_written);
    for (size_t i = 0; i < vec_len(gr->nodes); i++) e->inside[gr->nodes[i]] = 1;
    uint64_t rows;
    body[TARGET_CPU] = emit_target(e, TARGET_CPU);
    rows = k.rows;
    if (options.target == TARGET_CUDA || options.emit_dir) body[TARGET_CUDA] = emit_target(e, TARGET_CUDA);
    k.rows = rows; // the plan's rows are those of the CPU kernel
    for (size_t i = 0; i < vec_len(gr->nodes); i++) e->inside[gr->nodes[i]] = 0;
    gr->kernel = kernel_of(e->g, prog, gr, &k, body);
    free(body[0]), free(body[1]);
    emit_reset(e);
    arena_free(&e->arena);
    e->arena = (Arena){0};
}

bool has_kernel(const Group *group) { return group->kind != G_GEMM && group->kind < G_START; }

void emit(Graph *g, const Program *prog)
{
    Emitter e = {.g = g, .inside = xcalloc(vec_len(g->nodes), 1)};
    emit_reset(&e);
    for (size_t i = 0; i < vec_len(g->groups); i++)
        if (has_kernel(&g->groups[i])) emit_group(&e, prog, &g->groups[i]);
    for (size_t i = 0; i < vec_len(g->kernels); i++) g->scratch_bytes = max_of(g->scratch_bytes, g->kernels[i].scratch);
    free(e.inside);
    vec_free(e.vars), vec_free(e.idxs), vec_free(e.preds), vec_free(e.memos), vec_free(e.pointers);
    vec_free(e.positions), vec_free(e.used), vec_free(e.scratch), vec_free(e.written);
}

// ------------------------------------------------------------------------------------------- units and files
char *emit_unit(const Graph *g, PlanTarget t, const uint32_t *kernels, size_t n)
{
    Buf out = {0}, functions = {0};
    bool attention = false;
    template_expand(&functions, "functions.c", "functions", NULL, 0);
    const char *prelude = t == TARGET_CUDA ? "prelude.cu" : "prelude.c";
    template_expand(&out, prelude, "prelude", &(Hole){"functions", functions.s}, 1);
    for (size_t i = 0; i < n; i++) attention |= strstr(g->kernels[kernels[i]].text[t], "p_lanes_") != NULL;
    if (attention) template_expand(&out, prelude, "attention", NULL, 0);
    buf_puts(&out, "\n// ---- kernels\n"); // tests/nvrtc looks for this line
    for (size_t i = 0; i < n; i++) {
        buf_puts(&out, "\n");
        buf_puts(&out, g->kernels[kernels[i]].text[t]);
    }
    buf_free(&functions);
    return out.s;
}

void emit_files(const Graph *g, const char *dir)
{
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) fatal("cannot make the folder %s:", dir);
    for (uint32_t i = 0; i < vec_len(g->kernels); i++)
        for (int t = 0; t < 2; t++) {
            Buf path = {0};
            buf_printf(&path, "%s/%s.%s", dir, g->kernels[i].name, t == TARGET_CUDA ? "cu" : "c");
            char *text = emit_unit(g, (PlanTarget)t, &i, 1);
            Buf file = {0};
            buf_printf(&file, "// %s: %s\n// Compiles by itself: %s. The kernel is at the end.\n", g->kernels[i].name, g->kernels[i].label,
                       t == TARGET_CUDA ? "NVRTC, or nvcc -c --fmad=false"
                                        : "cc -c -O2 -march=native -ffp-contract=off -fopenmp-simd -fno-math-errno");
            buf_puts(&file, text);
            if (!write_file_atomic(path.s, file.s, file.n)) fatal("cannot write %s:", path.s);
            buf_free(&file);
            free(text);
            buf_free(&path);
        }
}
