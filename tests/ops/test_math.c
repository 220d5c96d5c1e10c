// test_math.c: the f32 functions of templates/functions.c against double, in units in the last place, over dense
// samples of all floats; special values; max and min with NaN; bf16 rounding; Philox against runtime/rng.c.
//
// The text is the one that kernels get: it is compiled here with the flags of generated C.
#include "embedded.h"
#include "pico.h"
#include "rng.h"
#include <dlfcn.h>
#include <math.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

Options options;

static const char wrappers[] = "#define WRAP(f) void wrap_##f(const float *x, float *y, int n) { _Pragma(\"omp simd\") "
                               "for (int i = 0; i < n; i++) y[i] = p_##f##_f32(x[i]); }\n"
                               "WRAP(exp) WRAP(log) WRAP(tanh) WRAP(sigmoid) WRAP(sqrt) WRAP(rsqrt) WRAP(sin) "
                               "WRAP(cos) WRAP(erf) WRAP(abs) WRAP(sign) WRAP(floor)\n"
                               "float call_max(float a, float b) { return p_max_f32(a, b); }\n"
                               "float call_min(float a, float b) { return p_min_f32(a, b); }\n"
                               "float call_bf16(float a) { return p_round_bf16(a); }\n"
                               "float call_random(double seed, double step, uint32_t id, int64_t at) { return "
                               "p_random_f32(seed, step, id, at); }\n";

static void *library;

static void *symbol(const char *name)
{
    void *p = dlsym(library, name);
    if (!p) fatal("%s", dlerror());
    return p;
}

static int compile(void **state)
{
    (void)state;
    Graph g = {0};
    char *text = emit_unit(&g, TARGET_CPU, NULL, 0), source[] = "/tmp/pico-math-XXXXXX.c", object[64], command[512];
    int fd = mkstemps(source, 2);
    FILE *f = fdopen(fd, "w");
    fprintf(f, "%s%s", text, wrappers);
    fclose(f);
    snprintf(object, sizeof object, "%.*s.so", (int)strlen(source) - 2, source);
    const char *cc = getenv("CC");
    snprintf(command, sizeof command,
             "%s -std=gnu11 -O2 -march=native -ffp-contract=off -fopenmp-simd -fno-math-errno -Wall "
             "-Werror -shared -fPIC -o %s %s -lm",
             cc && *cc ? cc : "cc", object, source);
    if (system(command)) return 1;
    library = dlopen(object, RTLD_NOW);
    unlink(source), unlink(object);
    free(text);
    return !library;
}

static float from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

// |got - want| in units of the last place that a float near `want` has
static double ulp_error(float got, double want)
{
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (fabs(want) > 3.40282357e38)
        return isinf(got) && (got > 0) == (want > 0) ? 0 : fabs(want) < 3.4028236e38 ? 1 : INFINITY;
    if (!isfinite(got)) return fabs(want) > 3.4028234e38 ? 1 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, max_of(exponent - 24, -149));
}

enum { CHUNK = 1 << 12, STRIDE = 97 };

// all floats a stride apart, so every exponent and both signs
static double worst(const char *name, double (*want)(double))
{
    char wrapped[32];
    static float x[CHUNK], y[CHUNK];
    snprintf(wrapped, sizeof wrapped, "wrap_%s", name);
    void (*f)(const float *, float *, int);
    void *p = symbol(wrapped);
    memcpy(&f, &p, sizeof f);
    double most = 0;
    float at = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX;) {
        int n = 0;
        for (; n < CHUNK - 1 && bits <= UINT32_MAX; bits += STRIDE)
            x[n++] = from_bits((uint32_t)bits); // an odd count: a rest too
        f(x, y, n);
        for (int i = 0; i < n; i++) {
            double error = ulp_error(y[i], want((double)x[i]));
            if (error > most) most = error, at = x[i];
        }
    }
    print_message("%-8s %.3f ulp at %.9g\n", name, most, (double)at);
    return most;
}

static double sigmoid(double x)
{
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}
static double rsqrt(double x)
{
    return 1 / sqrt(x);
}

static void errors(void **state)
{
    (void)state;
    assert_true(worst("exp", exp) <= 1.01);
    assert_true(worst("log", log) <= 0.9);
    assert_true(worst("tanh", tanh) <= 1.9);
    assert_true(worst("sigmoid", sigmoid) <= 2.6);
    assert_true(worst("sqrt", sqrt) <= 0.5);
    assert_true(worst("rsqrt", rsqrt) <= 1.5);
    assert_true(worst("abs", fabs) == 0);
    assert_true(worst("floor", floor) == 0);
}

static float call(const char *name, float x)
{
    char wrapped[32];
    float y;
    snprintf(wrapped, sizeof wrapped, "wrap_%s", name);
    void (*f)(const float *, float *, int);
    void *p = symbol(wrapped);
    memcpy(&f, &p, sizeof f);
    f(&x, &y, 1);
    return y;
}

static void through_double(void **state)
{
    (void)state;
    for (float x = -50; x < 50; x += 0.0371f) {
        assert_true(call("sin", x) == (float)sin(x) && call("cos", x) == (float)cos(x) &&
                    call("erf", x) == (float)erf(x));
    }
}

static void edges(void **state)
{
    (void)state;
    static const char *const all[] = {"exp", "log", "tanh", "sigmoid", "sqrt", "rsqrt",
                                      "sin", "cos", "erf",  "abs",     "sign", "floor"};
    for (size_t i = 0; i < countof(all); i++) assert_true(isnan(call(all[i], NAN)));
    assert_true(call("exp", -INFINITY) == 0 && call("exp", INFINITY) == INFINITY && call("exp", 0) == 1);
    assert_true(call("log", 0) == -INFINITY && call("log", -0.0f) == -INFINITY && call("log", 1) == 0);
    assert_true(isnan(call("log", -1)) && isnan(call("log", -INFINITY)) && call("log", INFINITY) == INFINITY);
    assert_true(call("tanh", INFINITY) == 1 && call("tanh", -INFINITY) == -1 && call("tanh", 0) == 0);
    assert_true(call("sigmoid", INFINITY) == 1 && call("sigmoid", -INFINITY) == 0 && call("sigmoid", 0) == 0.5f);
    assert_true(call("rsqrt", 0) == INFINITY && call("rsqrt", INFINITY) == 0 && isnan(call("rsqrt", -1)));
    assert_true(call("sign", -3) == -1 && call("sign", 0) == 0 && call("sign", 2) == 1 && call("floor", -1.5f) == -2);
}

static void nan_is_carried(void **state)
{
    (void)state;
    float (*max)(float, float), (*min)(float, float);
    void *p = symbol("call_max"), *q = symbol("call_min");
    memcpy(&max, &p, sizeof p);
    memcpy(&min, &q, sizeof q);
    assert_true(isnan(max(NAN, 1)) && isnan(max(1, NAN)) && isnan(min(NAN, 1)) && isnan(min(1, NAN)));
    assert_true(max(1, 2) == 2 && max(2, 1) == 2 && min(1, 2) == 1 && min(2, 1) == 1 && max(-INFINITY, 0) == 0);
}

static void bf16(void **state)
{
    (void)state;
    float (*round)(float);
    void *p = symbol("call_bf16");
    memcpy(&round, &p, sizeof p);
    assert_true(round(1.00390625f) == 1.0f && round(1.01171875f) == 1.015625f); // halfway: to even
    assert_true(round(1.0040f) == 1.0078125f && round(-1.0040f) == -1.0078125f);
    assert_true(round(3.4e38f) == INFINITY && round(INFINITY) == INFINITY && isnan(round(NAN)) &&
                isnan(round(from_bits(0x7f800001))));
}

static void random_numbers(void **state)
{
    (void)state;
    float (*random)(double, double, uint32_t, int64_t);
    void *p = symbol("call_random");
    memcpy(&random, &p, sizeof p);
    double sum = 0;
    for (int64_t i = 0; i < 20000; i++) {
        int64_t position = i * 1000003;
        uint32_t out[4], counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), 9, 4};
        philox4x32_10(out, counter, (uint32_t[2]){7, 3});
        float x = random(7 + 3 * 4294967296.0, 9, 4, position);
        assert_true(x == (float)(out[0] >> 8) * 0x1p-24f && x >= 0 && x < 1);
        sum += x;
    }
    assert_true(fabs(sum / 20000 - 0.5) < 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(errors), cmocka_unit_test(through_double),
                                       cmocka_unit_test(edges),  cmocka_unit_test(nan_is_carried),
                                       cmocka_unit_test(bf16),   cmocka_unit_test(random_numbers)};
    return cmocka_run_group_tests(tests, compile, NULL);
}
