// reference.c: what a run of the generated kernels must give, by the evaluator.
//
//   reference MODEL.lua f64|f32|bf16 DIR  writes to DIR: init.safetensors (parameters), data.bin (tokens), and as expected
//                                        grads.safetensors, save.safetensors and log.jsonl
//
// It runs as many steps as the mark `-- steps: N` of the file says (1). All arithmetic is in
// double, on the graph of the dtype; in bf16 every value is rounded to its dtype.
#include "library.h"
#define Input FileInput  // input.h's; the compiler has an Input of its own
#include "safetensors.h"
#undef Input

static void write_tensors(const Graph *g, const char *folder, const char *name, double **values)
{
    Buf path = {0};
    SafeEntry *entries = NULL;
    uint64_t(*dims)[MAX_AXES] = xcalloc(vec_len(g->params), sizeof *dims);
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Param *p = &g->params[i];
        for (int k = 0; k < p->ndim; k++) dims[i][k] = (uint64_t)p->dims[k];
        vec_push(entries, (SafeEntry){p->name, SAFE_F64, (uint32_t)p->ndim, dims[i]});
    }
    buf_printf(&path, "%s/%s.safetensors", folder, name);
    SafeWriter *w = safetensors_create(path.s, entries, vec_len(entries));
    for (size_t i = 0; i < vec_len(g->params); i++)
        safetensors_append(w, values[i], (uint64_t)elements(g, g->params[i].val) * sizeof(double));
    safetensors_commit(w);
    vec_free(entries);
    free(dims);
    buf_free(&path);
}

// A token file of llm.c's format with 16-bit tokens.
static void write_data(const Graph *g, const char *folder, int64_t steps)
{
    int64_t n = steps * g->micro_batch * g->seq + 1;
    Buf path = {0}, bytes = {0};
    uint32_t header[256] = {20240520, 1, (uint32_t)n};
    buf_write(&bytes, header, sizeof header);
    for (int64_t i = 0; i < n; i++) {
        uint16_t t = (uint16_t)library_token(library_vocab(g), i);
        buf_write(&bytes, &t, sizeof t);
    }
    buf_printf(&path, "%s/data.bin", folder);
    if (!write_file_atomic(path.s, bytes.s, bytes.n)) fatal("%s:", path.s);
    buf_free(&path);
    buf_free(&bytes);
}

static double **gradients(const Graph *g, double **values)
{
    double **grads = NULL, valid = 1;
    for (size_t i = 0; i < vec_len(g->outputs); i++)
        if (!strcmp(g->outputs[i].name, "valid")) valid = max_of(values[g->outputs[i].val][0], 1.0);
    for (size_t i = 0; i < vec_len(g->params); i++) {
        int64_t n = elements(g, g->params[i].val);
        double *x = xcalloc((size_t)n, sizeof *x);
        for (int64_t k = 0; g->params[i].acc >= 0 && k < n; k++) x[k] = values[g->accs[g->params[i].acc].total][k] / valid;
        vec_push(grads, x);
    }
    return grads;
}

static void log_outputs(const Graph *g, double **values, int64_t step, Buf *log)
{
    buf_printf(log, "{\"step\": %lld", (long long)step);
    for (size_t i = 0; i < vec_len(g->outputs); i++)
        buf_printf(log, ", \"%s\": %.17g", g->outputs[i].name, values[g->outputs[i].val][0]);
    buf_puts(log, "}\n");
}

static void update(Library *l, double **values)
{
    for (Val v = 1; v < vec_len(l->g->nodes); v++) {
        const Node *n = node_of(l->g, v);
        if (n->kind != K_UPDATE) continue;
        const Node *target = node_of(l->g, n->in[1]);
        double *to = target->kind == K_PARAM ? l->params[target->u.id] : l->states[target->u.id];
        memcpy(to, values[v], (size_t)elements(l->g, v) * sizeof *to);
    }
}

int main(int argc, char **argv)
{
    program_name = "reference";
    if (argc != 4) usage_error("reference MODEL.lua f64|f32|bf16 DIR");
    const char *folder = argv[3], *steps_text = library_mark(argv[1], "steps");
    int64_t steps = steps_text ? atoll(steps_text) : 1;
    DType dtype = !strcmp(argv[2], "bf16") ? BF16 : !strcmp(argv[2], "f32") ? F32 : F64;
    Library l = library_open(argv[1], dtype);
    Buf log = {0}, path = {0};
    write_tensors(l.g, folder, "init", l.params);
    write_data(l.g, folder, steps);
    grad(l.g);
    for (; l.step <= steps; l.step++, l.first_sample += l.g->micro_batch) {
        double **values = eval_graph(l.g, dtype == BF16, library_leaf, &l);
        if (l.step == 1) write_tensors(l.g, folder, "grads", gradients(l.g, values));
        log_outputs(l.g, values, l.step, &log);
        update(&l, values);
        eval_free(l.g, values);
    }
    write_tensors(l.g, folder, "save", l.params);
    buf_printf(&path, "%s/log.jsonl", folder);
    if (!write_file_atomic(path.s, log.s, log.n)) fatal("%s:", path.s);
    return 0;
}
