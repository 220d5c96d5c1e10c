// compare.c: a run against its reference: losses and gradient norms of each step, gradients of step 1, weights at the end.
//
//     compare REF RUN [--loss X] [--norm X] [--grads X] [--params X] [--bits]
//     compare --ones RUN X
//
// REF and RUN are what the files' names begin with: NAME.jsonl (picorun --log), NAME.grads (--dump-grads),
// NAME.safetensors (--save). What an option names is compared, up to that relative difference; --bits compares all that
// REF has, and wants equality (of the log: the text of loss and norm). Prints the worst differences in one line; if one
// is too large, also a sentence that names the first step or the worst tensor, and the exit status is 1.
// --ones: every gradient of RUN is 1 and its norm the root of their number, both up to X.
//
// A tensor's difference is the norm of a - b over the norm of a, or over 1e-3 of the norm of all tensors where that is
// larger: a tensor of noise can't fail alone. Weights may meet their largest difference over their largest element instead.
// Trap: NaN compares false, so that every test is "not within", never "beyond".
#include "safetensors.h"
#include <math.h>
#include <unistd.h>

enum { LOSS, NORM, GRADS, PARAMS, KINDS };
static const char *const names[KINDS] = {"loss", "norm", "grads", "params"};
static const char *const endings[KINDS] = {".jsonl", ".jsonl", ".grads", ".safetensors"};
static struct {
    double allowed, worst;  // allowed < 0: not asked for
    Buf fault;              // the first one
} kind[KINDS];
static bool bits;

static void note(int k, double difference, const char *what)
{
    if (!(difference <= kind[k].worst)) kind[k].worst = difference;  // and NaN stays
    if (difference <= kind[k].allowed || kind[k].fault.n) return;
    if (bits) buf_printf(&kind[k].fault, "%s: bits differ", what);
    else buf_printf(&kind[k].fault, "%s: off by %.1e, allowed are %.0e", what, difference, kind[k].allowed);
}

static double relative(double a, double b)
{
    return a == b ? 0 : fabs(a - b) / max_of(fabs(a), fabs(b));
}

// ---- logs

// The text of a line's field, with its length; fatal if there is none.
static const char *field(const char *line, const char *name, const char *path, size_t *n)
{
    Buf key = {0};
    buf_printf(&key, "\"%s\":", name);
    const char *at = strstr(line, key.s);
    if (!at) fatal("%s: a line without '%s'", path, name);
    at += key.n;
    at += strspn(at, " ");
    *n = strcspn(at, ",}\n");
    buf_free(&key);
    return at;
}

static double number(const char *text)
{
    return strncmp(text, "null", 4) == 0 ? NAN : strtod(text, NULL);
}

static void compare_field(int k, const char *name, const char *a, const char *b, const char *const paths[2], int step)
{
    size_t n, m;
    const char *x = field(a, name, paths[0], &n), *y = field(b, name, paths[1], &m);
    double difference = bits ? !(n == m && memcmp(x, y, n) == 0) : relative(number(x), number(y));
    Buf what = {0};
    buf_printf(&what, "step %d: %s %.*s against %.*s", step, names[k], (int)m, y, (int)n, x);
    note(k, difference, what.s);
    buf_free(&what);
}

static char *next_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = 0;
    *rest = end + 1;
    return line;
}

static void compare_logs(const char *const paths[2])
{
    char *text[2], *rest[2];
    int step = 0;
    for (int i = 0; i < 2; i++)
        if (!(rest[i] = text[i] = read_file(paths[i], NULL))) fatal("%s:", paths[i]);
    for (;;) {
        char *a = next_line(&rest[0]), *b = next_line(&rest[1]);
        if (!a != !b) fatal("%s has %s lines than %s", paths[1], b ? "more" : "fewer", paths[0]);
        if (!a) break;
        step++;
        if (kind[LOSS].allowed >= 0) compare_field(LOSS, "loss", a, b, paths, step);
        if (kind[NORM].allowed >= 0) compare_field(NORM, "grad_norm", a, b, paths, step);
    }
    if (!step) fatal("%s has no lines", paths[0]);
    free(text[0]);
    free(text[1]);
}

// ---- tensors

static SafeTensors open_tensors(const char *path)
{
    SafeTensors s;
    char message[512];
    if (!safetensors_open(&s, path, message, sizeof message)) fatal("%s: %s", path, message);
    return s;
}

static double value(const SafeTensor *t, uint64_t i)
{
    return safetensor_value(t->dtype, t->data, i);
}

static double tensor_norm(const SafeTensor *t)
{
    double sum = 0;
    for (uint64_t i = 0; i < t->count; i++) sum += value(t, i) * value(t, i);
    return sqrt(sum);
}

static double norm_of_all(const SafeTensors *s)
{
    double sum = 0;
    for (size_t i = 0; i < vec_len(s->tensors); i++) sum += pow(tensor_norm(&s->tensors[i]), 2);
    return sqrt(sum);
}

static double difference_of(int k, const SafeTensor *a, const SafeTensor *b, double all)
{
    if (bits) return a->dtype != b->dtype || memcmp(a->data, b->data, a->end - a->begin) != 0;
    double sum = 0, most = 0, largest = 0;
    for (uint64_t i = 0; i < a->count; i++) {
        double x = value(a, i), d = fabs(x - value(b, i));
        sum += d * d;
        if (!(d <= most)) most = d;
        largest = max_of(largest, fabs(x));
    }
    if (sum == 0) return 0;
    double by_norm = sqrt(sum) / max_of(tensor_norm(a), 1e-3 * all);
    return k == PARAMS && largest > 0 && most / largest < by_norm ? most / largest : by_norm;
}

static void compare_tensors(int k, const char *const paths[2])
{
    SafeTensors a = open_tensors(paths[0]), b = open_tensors(paths[1]);
    double all = norm_of_all(&a);
    if (vec_len(a.tensors) != vec_len(b.tensors))
        fatal("%s has %zu tensors, %s %zu", paths[1], vec_len(b.tensors), paths[0], vec_len(a.tensors));
    for (size_t i = 0; i < vec_len(a.tensors); i++) {
        const SafeTensor *x = &a.tensors[i], *y = safetensors_find(&b, x->name);
        if (!y) fatal("%s lacks %s", paths[1], x->name);
        if (x->ndim != y->ndim || memcmp(x->dims, y->dims, x->ndim * sizeof *x->dims) != 0)
            fatal("%s: the shape of %s is another", paths[1], x->name);
        Buf what = {0};
        buf_printf(&what, "%s of %s", k == GRADS ? "gradient" : "weights", x->name);
        note(k, difference_of(k, x, y, all), what.s);
        buf_free(&what);
    }
    safetensors_close(&a);
    safetensors_close(&b);
}

// ---- gradients that are all 1

static int check_ones(const char *run, double allowed)
{
    Buf grads = {0}, log = {0};
    buf_printf(&grads, "%s.grads", run);
    buf_printf(&log, "%s.jsonl", run);
    SafeTensors s = open_tensors(grads.s);
    double n = 0;
    for (size_t t = 0; t < vec_len(s.tensors); t++)
        for (uint64_t i = 0; i < s.tensors[t].count; i++, n++) {
            double g = value(&s.tensors[t], i);
            if (!(fabs(g - 1) <= allowed)) fatal("the gradient of %s[%llu] is %.17g", s.tensors[t].name, (unsigned long long)i, g);
        }
    char *text = read_file(log.s, NULL);
    if (!text) fatal("%s:", log.s);
    size_t length;
    double norm = number(field(text, "grad_norm", log.s, &length));
    if (!(relative(norm, sqrt(n)) <= allowed))
        fatal("the norm is %.17g, the root of %.6f; there are %.0f gradients of 1", norm, norm * norm, n);
    printf("%.0f gradients of 1, norm %.17g\n", n, norm);
    return 0;
}

// ----

static void parse(int argc, char **argv)
{
    for (int k = 0; k < KINDS; k++) kind[k].allowed = -1;
    for (int i = 3; i < argc; i++) {
        int k = 0;
        if (strcmp(argv[i], "--bits") == 0) {
            bits = true;
            continue;
        }
        while (k < KINDS && (strncmp(argv[i], "--", 2) != 0 || strcmp(argv[i] + 2, names[k]) != 0)) k++;
        if (k == KINDS || i + 1 == argc) usage_error("%s: no option, or without its value", argv[i]);
        kind[k].allowed = strtod(argv[++i], NULL);
    }
}

static char *path_of(const char *run, int k)
{
    Buf b = {0};
    buf_printf(&b, "%s%s", run, endings[k]);
    return b.s;
}

static bool report(void)
{
    bool failed = false;
    const char *gap = "";
    for (int k = 0; k < KINDS; k++) {
        if (kind[k].allowed < 0) continue;
        printf("%s%s %.1e", gap, names[k], kind[k].worst);
        gap = " ";
    }
    if (!*gap) fatal("nothing to compare");
    printf("\n");
    fflush(stdout);
    for (int k = 0; k < KINDS; k++) {
        if (kind[k].fault.n) fprintf(stderr, "%s\n", kind[k].fault.s);
        failed |= kind[k].fault.n > 0;
    }
    return failed;
}

int main(int argc, char **argv)
{
    program_name = "compare";
    if (argc == 4 && strcmp(argv[1], "--ones") == 0) return check_ones(argv[2], strtod(argv[3], NULL));
    if (argc < 4) usage_error("usage: compare REF RUN [--loss X] [--norm X] [--grads X] [--params X] [--bits]");
    parse(argc, argv);
    char *paths[KINDS][2];
    for (int k = 0; k < KINDS; k++) {
        for (int i = 0; i < 2; i++) paths[k][i] = path_of(argv[1 + i], k);
        if (bits && access(paths[k][0], F_OK) == 0) kind[k].allowed = 0;
    }
    if (kind[LOSS].allowed >= 0 || kind[NORM].allowed >= 0) compare_logs((const char *const *)paths[LOSS]);
    for (int k = GRADS; k <= PARAMS; k++)
        if (kind[k].allowed >= 0) compare_tensors(k, (const char *const *)paths[k]);
    return report();
}
