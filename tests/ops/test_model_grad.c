// The shipped models, small, in double: the gradients that pass grad leaves in its accumulators against central
// differences of the loss, a few elements of every parameter. Covers the front end, the library ops and grad together.
// A process makes one model, so each is compiled in a child, which fails by fatal().
#include "eval.h"
#include <math.h>
#include <setjmp.h>
#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

Options options;

typedef struct {
    int param;        // moved
    int64_t element;
    double by;
} Move;

static double noise(uint64_t x)
{
    x = (x + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (double)((x ^ x >> 31) >> 11) / 9007199254740992.0;
}

static void fill(void *ctx, const Graph *g, Val v, double *out, int64_t n)
{
    const Move *move = ctx;
    const Node *node = &g->nodes[v];
    uint32_t id = node->u.id;
    for (int64_t i = 0; i < n; i++) {
        double x = noise(((uint64_t)node->kind << 40) + ((uint64_t)id << 20) + (uint64_t)i);
        switch (node->kind) {
        case K_PARAM: out[i] = (g->params[id].init == INIT_CONSTANT ? g->params[id].init_value : 0) + 0.6 * (x - 0.5); break;
        case K_INPUT:
            out[i] = floor(x * (double)g->inputs[id].limit);
            if (!strcmp(g->inputs[id].name, "targets") && i == 1) out[i] = g->inputs[id].ignore;
            break;
        case K_RANDOM: out[i] = x; break;
        default: out[i] = node->kind == K_SCALAR; break;
        }
    }
    if (node->kind == K_PARAM && (int)id == move->param) out[move->element] += move->by;
}

static Val total_named(const Graph *g, const char *name)
{
    for (size_t i = 0; i < vec_len(g->accs); i++)
        if (!strcmp(g->accs[i].name, name)) return g->accs[i].total;
    fatal("no accumulator %s", name);
}

static double loss_at(Graph *g, Move move)
{
    double **values = eval_graph(g, false, fill, &move), loss = values[total_named(g, "loss_sum")][0];
    eval_free(g, values);
    return loss;
}

static void check_params(Graph *g, const char *model)
{
    double **values = eval_graph(g, false, fill, &(Move){.param = -1});
    if (values[total_named(g, "valid")][0] != (double)(g->seq * g->micro_batch - 1)) fatal("%s: tokens that count", model);
    for (int p = 0; p < (int)vec_len(g->params); p++) {
        if (g->params[p].acc < 0) fatal("%s: %s has no gradient", model, g->params[p].name);
        const double *grad_values = values[g->accs[g->params[p].acc].total];
        int64_t count = elements(g, g->params[p].val);
        for (int k = 0; k < 3; k++) {
            int64_t i = (int64_t)(noise((uint64_t)(p * 3 + k)) * (double)count);
            double h = 1e-5;
            double difference = (loss_at(g, (Move){p, i, h}) - loss_at(g, (Move){p, i, -h})) / (2 * h);
            if (fabs(difference - grad_values[i]) > 2e-7 * fmax(1, fabs(difference)))
                fatal("%s: %s[%d]: derived %.12g, difference %.12g", model, g->params[p].name, (int)i, grad_values[i], difference);
        }
    }
    eval_free(g, values);
}

static void derive_and_check(const char *path, const char **defines)
{
    options = (Options){.model_path = path, .seq = 5, .micro_batch = 2, .accum = 1, .dtype = F64};
    for (; *defines; defines++) vec_push(options.defines, *defines);
    Graph *g = graph_new();
    front(g);
    graph_verify(g, "front");
    grad(g);
    graph_verify(g, "grad");
    check_params(g, path);
    front_close();
    vec_free(options.defines);
    graph_free(g);
}

static void check_model(const char *path, const char **defines)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        derive_and_check(path, defines);
        exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void mlp(void **state)
{
    (void)state;
    check_model("graphs/mlp.lua", (const char *[]){NULL});
}

#define SMALL_LLAMA "vocab_size=11", "hidden_size=8", "intermediate_size=12", "num_hidden_layers=2", \
                    "num_attention_heads=4", "num_key_value_heads=2", "head_dim=4"
static void llama(void **state)
{
    (void)state;
    check_model("graphs/llama.lua", (const char *[]){SMALL_LLAMA, "tie_word_embeddings=true", NULL});
}

static void qwen3(void **state)
{
    (void)state;
    check_model("graphs/qwen3.lua", (const char *[]){SMALL_LLAMA, NULL});
}

static void gpt2(void **state)
{
    (void)state;
    check_model("graphs/gpt2.lua", (const char *[]){"vocab_size=11", "n_positions=8", "n_embd=8", "n_layer=2", "n_head=2",
                                                    "resid_pdrop=0.25", "embd_pdrop=0.1", NULL});
}

int main(void)
{
    program_name = "test_model_grad";
    const struct CMUnitTest tests[] = {cmocka_unit_test(mlp), cmocka_unit_test(llama), cmocka_unit_test(qwen3), cmocka_unit_test(gpt2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
