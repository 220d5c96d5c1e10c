// test_library.c: the op library and everything the notation can say, by small models in tests/ops/library: the derived
// gradient of each equals central differences of the evaluated loss, in double. Beyond that, by marks at the top of a file:
//
//   -- same as: OTHER.lua     loss and gradients equal those of the other file to rounding
//   -- differences: no        no central differences: the gradient is not meant to be one, or is tested elsewhere
//
// and for the optimizers the new values of parameters and states against formulas written here.
// A description can be run once in a process, so every file has its own; results come back through shared memory.
#include "library.h"
#include <dirent.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char folder[] = "tests/ops/library";
enum { MAX_FILES = 128, MAX_VALUES = 1 << 18, MAX_STATE = 64, MAX_PARAMS = 128 };
typedef struct {
    char file[64];
    int passed, failed, nparams;
    double loss;
    struct { char name[64]; int64_t first, count; } param[MAX_PARAMS];
    double gradient[MAX_VALUES];
} Result;

static Result *result;  // of the file being tested

static bool check(bool good, const char *fmt, ...) PRINTF_LIKE(2, 3);
static bool check(bool good, const char *fmt, ...)
{
    good ? result->passed++ : result->failed++;
    if (good) return true;
    va_list args;
    va_start(args, fmt);
    printf("FAILED: %s: ", result->file);
    vprintf(fmt, args);
    puts("");
    va_end(args);
    return false;
}

static double largest(const double *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = isnan(x[i]) ? INFINITY : fmax(most, fabs(x[i]));
    return most;
}

// Largest difference and where; NaN is infinitely far.
static double distance(const double *a, const double *b, int64_t n, int64_t *where)
{
    double most = 0;
    *where = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]);
        if (!(d <= most)) most = isnan(d) ? INFINITY : d, *where = i;
    }
    return most;
}

static void check_close(const char *what, const char *name, const double *have, const double *want, int64_t n, double tolerance)
{
    int64_t at;
    double off = distance(have, want, n, &at), size = fmax(largest(want, n), 1e-3);
    check(off <= tolerance * size, "%s of %s, element %lld: %.15g, not %.15g", what, name, (long long)at, have[at], want[at]);
}

// --------------------------------------------------------------------------------------------------- differences
// The summed loss of the forward graph; nodes that it does not need are evaluated all the same.
static double loss_of(Library *l)
{
    double **values = eval_graph(l->g, false, library_leaf, l), sum = 0;
    for (int64_t i = 0; i < elements(l->g, l->g->loss); i++) sum += values[l->g->loss][i];
    eval_free(l->g, values);
    return sum;
}

// Fourth order: the error is that of rounding, 1e-12, where derivatives are of the size of the loss.
static double difference(Library *l, double *x)
{
    const double h = 1e-3, keep = *x;
    static const double by[] = {-2, -1, 1, 2}, weight[] = {1, -8, 8, -1};
    double sum = 0;
    for (int k = 0; k < 4; k++) {
        *x = keep + by[k] * h;
        sum += weight[k] * loss_of(l);
    }
    *x = keep;
    return sum / (12 * h);
}

static double **differences(Library *l)
{
    double **all = NULL;
    for (size_t i = 0; i < vec_len(l->g->params); i++) {
        int64_t n = elements(l->g, l->g->params[i].val);
        double *x = xcalloc((size_t)n, sizeof *x);
        for (int64_t k = 0; k < n; k++) x[k] = difference(l, &l->params[i][k]);
        vec_push(all, x);
    }
    return all;
}

// --------------------------------------------------------------------------------------------------- the gradient
static double *total(const Graph *g, double **values, const char *name)
{
    for (size_t i = 0; i < vec_len(g->accs); i++)
        if (!strcmp(g->accs[i].name, name)) return values[g->accs[i].total];
    bug("no accumulator '%s'", name);
}

static void keep_gradients(const Library *l, double **values)
{
    const Graph *g = l->g;
    int64_t at = 0;
    result->loss = total(g, values, "loss_sum")[0];
    for (size_t i = 0; i < vec_len(g->params); i++) {
        const Param *p = &g->params[i];
        int64_t n = elements(g, p->val);
        if (i == MAX_PARAMS || at + n > MAX_VALUES || strlen(p->name) > 63) bug("%s: too large for this test", result->file);
        if (!check(p->acc >= 0, "parameter %s has no gradient", p->name)) continue;
        strcpy(result->param[i].name, p->name);
        result->param[i].first = at;
        result->param[i].count = n;
        memcpy(&result->gradient[at], values[g->accs[p->acc].total], (size_t)n * sizeof(double));
        double size = largest(&result->gradient[at], n);
        check(size > 0 && isfinite(size), "the gradient of %s is %g everywhere", p->name, size);
        at += n;
    }
    result->nparams = (int)vec_len(g->params);
}

// ----------------------------------------------------------------------------------------------------- optimizers
typedef struct {
    Library *l;
    double **values;
    const Param *p;
    int64_t n;
    const double *w, *grad;  // as before the step; the gradient is scaled
    double norm;
} OptimizerStep;

static double scalar(const OptimizerStep *s, const char *name) { return strtod(library_train(s->l->g, name), NULL); }

static int state_id(const OptimizerStep *s, const char *name)
{
    const Graph *g = s->l->g;
    for (size_t i = 0; i < vec_len(g->states); i++)
        if (!strcmp(g->states[i].name, name) && &g->params[g->states[i].param] == s->p) return (int)i;
    bug("%s has no state %s", s->p->name, name);
}

static const double *state(const OptimizerStep *s, const char *name) { return s->l->states[state_id(s, name)]; }

// want: the new value of the parameter, or of its state `name`
static void check_update(const OptimizerStep *s, const char *name, const double *want)
{
    const Graph *g = s->l->g;
    Val target = name ? g->states[state_id(s, name)].val : s->p->val;
    int found = 0;
    for (Val v = 1; v < vec_len(g->nodes); v++)
        if (g->nodes[v].kind == K_UPDATE && g->nodes[v].in[1] == target) {
            check_close(name ? name : "the new value", s->p->name, s->values[v], want, s->n, 1e-13);
            found++;
        }
    check(found == 1, "%s of %s has %d updates", name ? name : "the value", s->p->name, found);
}

static void adamw(const OptimizerStep *s)
{
    double b1 = scalar(s, "beta1"), b2 = scalar(s, "beta2"), clip = scalar(s, "clip");
    double decay = scalar(s, s->p->ndim >= 2 ? "weight_decay" : "weight_decay_1d");
    double factor = clip > 0 ? fmin(1, clip / (s->norm + 1e-6)) : 1, step = (double)s->l->step;
    const double *m = state(s, "exp_avg"), *v = state(s, "exp_avg_sq");
    double w2[MAX_STATE], m2[MAX_STATE], v2[MAX_STATE];
    for (int64_t i = 0; i < s->n; i++) {
        double g = s->grad[i] * factor;
        m2[i] = b1 * m[i] + (1 - b1) * g;
        v2[i] = b2 * v[i] + (1 - b2) * g * g;
        double u = m2[i] / (1 - pow(b1, step)) / (sqrt(v2[i] / (1 - pow(b2, step))) + scalar(s, "eps"));
        w2[i] = s->w[i] - scalar(s, "lr") * (u + decay * s->w[i]);
    }
    if (clip > 0) check(factor < 1, "the norm %g is not clipped", s->norm);
    check_update(s, NULL, w2), check_update(s, "exp_avg", m2), check_update(s, "exp_avg_sq", v2);
}

static void lion(const OptimizerStep *s)
{
    double b1 = scalar(s, "beta1"), b2 = scalar(s, "beta2"), w2[MAX_STATE], m2[MAX_STATE];
    const double *m = state(s, "exp_avg");
    for (int64_t i = 0; i < s->n; i++) {
        double u = b1 * m[i] + (1 - b1) * s->grad[i];
        m2[i] = b2 * m[i] + (1 - b2) * s->grad[i];
        w2[i] = s->w[i] - scalar(s, "lr") * ((u > 0 ? 1 : u < 0 ? -1 : 0) + scalar(s, "weight_decay") * s->w[i]);
    }
    check_update(s, NULL, w2), check_update(s, "exp_avg", m2);
}

static void descent(const OptimizerStep *s)
{
    double w2[MAX_STATE];
    for (int64_t i = 0; i < s->n; i++) w2[i] = s->w[i] - scalar(s, "lr") * s->grad[i];
    check_update(s, NULL, w2);
}

static void ema(const OptimizerStep *s)
{
    double average[MAX_STATE];
    for (int64_t i = 0; i < s->n; i++) average[i] = 0.9 * state(s, "average")[i] + 0.1 * s->w[i];
    check_update(s, "average", average);
    descent(s);
}

// out = 3.4445*x - 4.7750*(x x') x + 2.0315*(x x')(x x') x
static void newton_schulz(const double *x, double *out, int rows, int cols)
{
    double a[64] = {0}, b[64] = {0};
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < rows; j++)
            for (int k = 0; k < cols; k++) a[i * rows + j] += x[i * cols + k] * x[j * cols + k];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < rows; j++) {
            for (int k = 0; k < rows; k++) b[i * rows + j] += 2.0315 * a[i * rows + k] * a[k * rows + j];
            b[i * rows + j] -= 4.7750 * a[i * rows + j];
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++) {
            double sum = 3.4445 * x[i * cols + j];
            for (int k = 0; k < rows; k++) sum += b[i * rows + k] * x[k * cols + j];
            out[i * cols + j] = sum;
        }
}

static void muon(const OptimizerStep *s)
{
    if (s->p->ndim < 2) {
        descent(s);
        return;
    }
    double u[64] = {0}, u2[64], momentum[64], square = 0;
    for (int64_t i = 0; i < s->n; i++) {
        momentum[i] = 0.9 * state(s, "momentum")[i] + s->grad[i];
        u[i] = 0.9 * momentum[i] + s->grad[i];
        square += u[i] * u[i];
    }
    for (int64_t i = 0; i < s->n; i++) u[i] /= sqrt(square) + 1e-7;
    newton_schulz(u, u2, (int)s->p->dims[0], (int)s->p->dims[1]);
    newton_schulz(u2, u, (int)s->p->dims[0], (int)s->p->dims[1]);
    for (int64_t i = 0; i < s->n; i++) u[i] = s->w[i] - scalar(s, "lr") * u[i];
    check_update(s, NULL, u), check_update(s, "momentum", momentum);
}

static const struct { const char *file; void (*formula)(const OptimizerStep *); } optimizers[] = {
    {"adamw.lua", adamw}, {"adamw_free.lua", adamw}, {"lion.lua", lion}, {"ema.lua", ema}, {"muon.lua", muon}};

// At step 3, with states that are not zero.
static void check_optimizer(Library *l, void (*formula)(const OptimizerStep *))
{
    library_random_states(l);
    l->step = 3;
    OptimizerStep s = {.l = l, .values = eval_graph(l->g, false, library_leaf, l)};
    double scale = 1 / total(l->g, s.values, "valid")[0];
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < vec_len(l->g->params); i++) {
            double scaled[MAX_STATE];
            s.p = &l->g->params[i], s.w = l->params[i], s.grad = scaled, s.n = elements(l->g, s.p->val);
            for (int64_t k = 0; k < s.n; k++) scaled[k] = scale * s.values[l->g->accs[s.p->acc].total][k];
            if (pass) formula(&s);
            else
                for (int64_t k = 0; k < s.n; k++) s.norm = hypot(s.norm, scaled[k]);
        }
    eval_free(l->g, s.values);
}

// ------------------------------------------------------------------------------------------------------- one file
static void test_file(const char *path)
{
    const char *mark = library_mark(path, "differences");
    bool skip = mark && !strcmp(mark, "no");
    Library l = library_open(path, F64);
    double loss = loss_of(&l), **slopes = skip ? NULL : differences(&l);
    grad(l.g);
    graph_verify(l.g, "grad");
    double **values = eval_graph(l.g, false, library_leaf, &l);
    keep_gradients(&l, values);
    check(fabs(result->loss - loss) <= 1e-12 * fmax(1, fabs(loss)), "the loss is %.15g, and %.15g after grad", loss, result->loss);
    for (int i = 0; i < result->nparams && !skip; i++)
        check_close("the gradient", result->param[i].name, &result->gradient[result->param[i].first], slopes[i],
                    result->param[i].count, 1e-7);
    for (size_t i = 0; i < countof(optimizers); i++)
        if (!strcmp(optimizers[i].file, result->file)) check_optimizer(&l, optimizers[i].formula);
}

static void compare(const Result *twin)
{
    check(fabs(result->loss - twin->loss) <= 1e-12 * fabs(twin->loss), "the loss is %.15g, in %s %.15g", result->loss,
          twin->file, twin->loss);
    check(result->nparams == twin->nparams, "%d parameters, in %s %d", result->nparams, twin->file, twin->nparams);
    for (int i = 0; i < result->nparams && i < twin->nparams; i++)
        if (check(!strcmp(result->param[i].name, twin->param[i].name), "parameter %s, in %s %s", result->param[i].name,
                  twin->file, twin->param[i].name))
            check_close("unlike its twin: the gradient", result->param[i].name, &result->gradient[result->param[i].first],
                        &twin->gradient[twin->param[i].first], result->param[i].count, 1e-12);
}

// -------------------------------------------------------------------------------------------------------- all files
static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static const char **list_files(void)
{
    const char **names = NULL;
    DIR *d = opendir(folder);
    if (!d) fatal("%s:", folder);
    for (struct dirent *e; (e = readdir(d));)
        if (strlen(e->d_name) > 4 && !strcmp(e->d_name + strlen(e->d_name) - 4, ".lua")) vec_push(names, intern(e->d_name));
    closedir(d);
    qsort(names, vec_len(names), sizeof *names, by_name);
    return names;
}

static void run(const char *path)
{
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) fatal("fork:");
    if (!child) {
        test_file(path);
        fflush(stdout);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    check(status == 0, "the process ended with %s %d", WIFSIGNALED(status) ? "signal" : "status",
          WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

// test_library [FILE.lua ..]: all files, or those named
int main(int argc, char **argv)
{
    program_name = "test_library";
    const char **names = list_files();
    size_t n = vec_len(names);
    if (n > MAX_FILES) bug("more than %d files", MAX_FILES);
    Result *results = mmap(NULL, MAX_FILES * sizeof *results, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (results == MAP_FAILED) fatal("mmap:");
    int passed = 0, failed = 0;
    for (size_t i = 0; i < n; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++) wanted |= !strcmp(argv[k], names[i]);
        if (!wanted) continue;
        result = &results[i];
        snprintf(result->file, sizeof result->file, "%s", names[i]);
        Buf path = {0};
        buf_printf(&path, "%s/%s", folder, names[i]);
        run(path.s);
        const char *twin = library_mark(path.s, "same as");
        for (size_t k = 0; twin && k < i; k++)
            if (!strcmp(twin, names[k]) && results[k].nparams) compare(&results[k]), twin = NULL;
        check(!twin || argc > 1, "there is no %s before it", twin);
        passed += result->passed, failed += result->failed;
        buf_free(&path);
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
