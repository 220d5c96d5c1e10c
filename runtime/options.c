// options.c: the options of picorun, one row each in `table`; command line and train section read the same rows.
//
// A train key is an option's name with '_' for '-'. Keys that name files to write, or choose how to watch a
// run, are not taken from a plan. Numbers are read whole and in decimal: "1e-3x", "0x10", "nan" are refused,
// and so is a value outside its row's range, by option and number, before anything is allocated.
//
// Trap: --data takes all words up to the next option, so PLAN stands before it.
#include "options.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stddef.h>

typedef enum { FLAG, INTEGER, UNSIGNED, NUMBER, TEXT, WORDS, SETTING, DECAY_NAME } Kind;
typedef struct {
    const char *name;
    Kind kind;
    size_t offset;
    bool in_plan;
    double min, max;         // of INTEGER and NUMBER
    bool open_min, open_max; // the end itself is not allowed
} Option;

#define AT(field) offsetof(Options, field)
static const Option table[] = {
    {"data", WORDS, AT(data), true, 0, 0, 0, 0},
    {"steps", INTEGER, AT(steps), true, 0, 1e15, 0, 0},
    {"lr", NUMBER, AT(lr), true, 0, 1e30, 0, 0},
    {"beta1", NUMBER, AT(beta1), true, 0, 1, 0, 1},
    {"beta2", NUMBER, AT(beta2), true, 0, 1, 0, 1},
    {"eps", NUMBER, AT(eps), true, 0, 1e30, 1, 0},
    {"weight-decay", NUMBER, AT(weight_decay), true, 0, 1e30, 0, 0},
    {"weight-decay-1d", NUMBER, AT(weight_decay_1d), true, 0, 1e30, 0, 0},
    {"clip", NUMBER, AT(clip), true, 0, 1e30, 0, 0},
    {"warmup", INTEGER, AT(warmup), true, 0, 1e15, 0, 0},
    {"decay", DECAY_NAME, AT(decay), true, 0, 0, 0, 0},
    {"min-lr", NUMBER, AT(min_lr), true, 0, 1e30, 0, 0},
    {"seed", UNSIGNED, AT(seed), true, 0, 0, 0, 0},
    {"shuffle", FLAG, AT(shuffle), true, 0, 0, 0, 0},
    {"ignore", INTEGER, AT(ignore), true, -2147483648.0, 4294967295.0, 0, 0},
    {"init", TEXT, AT(init), true, 0, 0, 0, 0},
    {"save", TEXT, AT(save), false, 0, 0, 0, 0},
    {"log", TEXT, AT(log), false, 0, 0, 0, 0},
    {"dump-grads", TEXT, AT(dump_grads), false, 0, 0, 0, 0},
    {"trace", TEXT, AT(trace), false, 0, 0, 0, 0},
    {"counts", TEXT, AT(counts), false, 0, 0, 0, 0},
    {"device", TEXT, AT(device), false, 0, 0, 0, 0},
    {"threads", INTEGER, AT(threads), false, 1, 1024, 0, 0},
    {"set", SETTING, AT(set), false, 0, 0, 0, 0},
    {"check-nan", FLAG, AT(check_nan), false, 0, 0, 0, 0},
    {"check-copies", FLAG, AT(check_copies), false, 0, 0, 0, 0},
    {"poison", FLAG, AT(poison), false, 0, 0, 0, 0},
    {"compile-only", FLAG, AT(compile_only), false, 0, 0, 0, 0},
};
static bool given[countof(table)]; // on the command line

static const char help[] =
    "Usage: picorun PLAN --data FILE... [options]         all ranks, as threads of one process\n"
    "       mpirun -n N picorun PLAN --data FILE...       a process for each rank\n"
    "Trains the model of a plan that picoc made. Example:\n"
    "  picoc graphs/llama.lua -o plan.bin && picorun plan.bin --data corpus.txt --steps 300 --lr 1e-3\n"
    "Data, steps and the like default to what the description says, then to the values in brackets.\n"
    "  --data FILE...           text (bytes are tokens) or token shards in llm.c's format\n"
    "  --no-shuffle             windows in file order; --shuffle permutes them per epoch [shuffle]\n"
    "  --ignore ID              targets equal to ID do not count\n"
    "  --steps N [100]          0: no training, as in --steps 0 --save FILE\n"
    "  --lr X [1e-3]  --warmup N [0]  --decay constant|cosine|linear [constant]  --min-lr X [0]\n"
    "  --beta1 X [0.9]  --beta2 X [0.95]  --eps X [1e-8]  --clip X [0: off]\n"
    "  --weight-decay X [0]     of matrices;  --weight-decay-1d X [0]  of gains and biases\n"
    "  --seed N [1]  --set NAME=VALUE    any other number that the plan names\n"
    "  --init FILE  --save FILE          safetensors with Hugging Face names\n"
    "  --log FILE.jsonl                  one JSON object a step\n"
    "  --check-nan  --poison             stop at the first NaN; fill dead memory with NaN\n"
    "  --check-copies                    at the end: what several ranks hold must be the same bits\n"
    "  --dump-grads FILE                 gradients of the first step, safetensors\n"
    "  --trace FILE                      instructions and communication with times, for ui.perfetto.dev\n"
    "  --counts FILE.json                what a step does, by stage: memory, work, collectives, transfers\n"
    "  --device cpu|null [cpu]           null counts what a step does, for any number of ranks, and computes nothing\n"
    "  --threads N [$OMP_NUM_THREADS, or cores / ranks]   of each rank\n"
    "  --compile-only  --help  --version\n"
    "Environment: CC compiles the kernels [cc]; they are kept in $XDG_CACHE_HOME/pico [~/.cache/pico].\n"
    "PICO_DELAY_US delays every communication by so many microseconds, to try what slower links would cost.\n";

// ---- values of one option

// What `--lr` or a train key is called in messages.
typedef struct {
    const Option *option;
    const char *plan_key; // NULL: command line
} Source;

_Noreturn static void refuse(Source s, const char *value, const char *wanted)
{
    if (s.plan_key) fatal("the plan's train section has %s = '%s', which is not %s", s.plan_key, value, wanted);
    usage_error("--%s %s: not %s", s.option->name, value, wanted);
}

static double parse_number(Source s, const char *text)
{
    char *end;
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text)) refuse(s, text, "a decimal number");
    double x = strtod(text, &end);
    if (*end || !isfinite(x)) refuse(s, text, "a decimal number");
    const Option *k = s.option;
    if (x < k->min || x > k->max || (k->open_min && x == k->min) || (k->open_max && x == k->max)) {
        char wanted[96];
        snprintf(wanted, sizeof wanted, "%s %g and %s %g", k->open_min ? "above" : "at least", k->min,
                 k->open_max ? "below" : "at most", k->max);
        refuse(s, text, wanted);
    }
    return x;
}

static int64_t parse_integer(Source s, const char *text)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) refuse(s, text, "a whole number");
    parse_number(s, text);
    return strtoll(text, NULL, 10);
}

static uint64_t parse_unsigned(Source s, const char *text)
{
    if (!*text || strspn(text, "0123456789") != strlen(text)) refuse(s, text, "a whole number from 0");
    errno = 0;
    uint64_t x = strtoull(text, NULL, 10);
    if (errno || x > (uint64_t)1 << 53) refuse(s, text, "at most 2^53"); // seeds pass through a double
    return x;
}

static ScalarSetting parse_setting(Source s, const char *text)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) refuse(s, text, "NAME=VALUE");
    char *end;
    double x = strtod(equals + 1, &end);
    if (!equals[1] || strspn(equals + 1, "0123456789+-.eE") != strlen(equals + 1) || *end || !isfinite(x))
        refuse(s, text, "NAME=VALUE with a decimal number");
    return (ScalarSetting){intern_n(text, (size_t)(equals - text)), x};
}

static int parse_decay(Source s, const char *text)
{
    static const char *const names[DECAY_COUNT] = {"constant", "cosine", "linear"};
    for (int i = 0; i < DECAY_COUNT; i++)
        if (strcmp(text, names[i]) == 0) return i;
    refuse(s, text, "constant, cosine or linear");
}

static bool parse_flag(Source s, const char *text)
{
    if (strcmp(text, "true") == 0) return true;
    if (strcmp(text, "false") == 0) return false;
    refuse(s, text, "true or false");
}

static void store(Options *o, Source s, const char *text)
{
    char *at = (char *)o + s.option->offset;
    switch (s.option->kind) {
    case FLAG:
        *(bool *)at = parse_flag(s, text);
        break;
    case INTEGER:
        *(int64_t *)(void *)at = parse_integer(s, text);
        break;
    case UNSIGNED:
        *(uint64_t *)(void *)at = parse_unsigned(s, text);
        break;
    case NUMBER:
        *(double *)(void *)at = parse_number(s, text);
        break;
    case DECAY_NAME:
        *(int *)(void *)at = parse_decay(s, text);
        break;
    case SETTING:
        vec_push(o->set, parse_setting(s, text));
        break;
    case WORDS:
        if (!*text) refuse(s, text, "a file name");
        vec_push(o->data, text);
        break;
    case TEXT:
        if (!*text) refuse(s, text, "a file name");
        *(const char **)(void *)at = text;
        break;
    }
}

// ---- the command line

_Noreturn static void unknown_option(const char *word)
{
    const char *names[countof(table) + 3] = {"help", "version", "no-shuffle"};
    for (size_t i = 0; i < countof(table); i++) names[3 + i] = table[i].name;
    const char *nearest = nearest_name(word, countof(names), names);
    if (nearest) usage_error("unknown option '--%s'; did you mean '--%s'?", word, nearest);
    usage_error("unknown option '--%s'", word);
}

static const Option *find_option(const char *name, size_t n)
{
    for (size_t i = 0; i < countof(table); i++)
        if (strlen(table[i].name) == n && strncmp(table[i].name, name, n) == 0) return &table[i];
    return NULL;
}

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] == '-';
}

// One option at argv[i]; returns the index behind its values.
static int parse_option(Options *o, int argc, char **argv, int i)
{
    const char *word = argv[i] + 2;
    size_t n = strcspn(word, "=");
    const char *value = word[n] ? word + n + 1 : NULL;
    if (n == 10 && strncmp(word, "no-shuffle", n) == 0) {
        if (value) usage_error("--no-shuffle takes no value");
        o->shuffle = false;
        given[find_option("shuffle", 7) - table] = true;
        return i + 1;
    }
    const Option *k = find_option(word, n);
    if (!k) unknown_option(word);
    given[k - table] = true;
    if (k->kind == FLAG) {
        if (value) usage_error("--%s takes no value", k->name);
        *(bool *)((char *)o + k->offset) = true;
        return i + 1;
    }
    Source s = {k, NULL};
    i++;
    if (!value && (i >= argc || is_option(argv[i]))) usage_error("--%s needs a value", k->name);
    store(o, s, value ? value : argv[i++]);
    while (k->kind == WORDS && !value && i < argc && !is_option(argv[i])) store(o, s, argv[i++]);
    return i;
}

void options_parse(Options *o, int argc, char **argv)
{
    *o = (Options){.steps = 100,
                   .ignore = INT64_MIN,
                   .seed = 1,
                   .lr = 1e-3,
                   .beta1 = 0.9,
                   .beta2 = 0.95,
                   .eps = 1e-8,
                   .decay = DECAY_CONSTANT,
                   .shuffle = true,
                   .device = "cpu"};
    bool only_words = false;
    for (int i = 1; i < argc;) {
        const char *word = argv[i];
        if (!only_words && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            fputs(help, stdout);
            finish_stdout();
            exit(0);
        } else if (!only_words && strcmp(word, "--version") == 0) {
            printf("picorun %s (plan version %u)\n", PICO_VERSION, PLAN_VERSION);
            finish_stdout();
            exit(0);
        } else if (!only_words && strcmp(word, "--") == 0) {
            only_words = true;
            i++;
        } else if (!only_words && is_option(word)) {
            i = parse_option(o, argc, argv, i);
        } else if (!only_words && word[0] == '-' && word[1]) {
            usage_error("unknown option '%s'; options begin with two dashes", word);
        } else if (o->plan) {
            usage_error("a second plan, '%s', beside '%s' (data files stand behind --data)", word, o->plan);
        } else {
            o->plan = word;
            i++;
        }
    }
    if (!o->plan) usage_error("no PLAN is given; it stands before --data, which takes all words up to the next option");
    if (strcmp(o->device, "cpu") != 0 && strcmp(o->device, "null") != 0)
        usage_error("--device %s: not cpu or null", o->device);
    const char *wanted = o->save ? "save" : o->dump_grads ? "dump-grads" : o->log ? "log" : o->trace ? "trace" : NULL;
    if (strcmp(o->device, "null") == 0 && wanted)
        usage_error("--%s: --device null computes nothing that could be saved", wanted);
}

// ---- the plan's defaults, and what must hold together

static const Option *find_key(const char *key)
{
    char name[32];
    size_t n = strlen(key);
    if (n >= sizeof name) return NULL;
    for (size_t i = 0; i <= n; i++) name[i] = key[i] == '_' ? '-' : key[i];
    return find_option(name, n);
}

static void store_train(Options *o, const char *key, const char *value)
{
    const Option *k = find_key(key);
    if (!k || !k->in_plan) fatal("the plan's train section has an unknown key '%s'", key);
    if (given[k - table]) return;
    Source s = {k, key};
    if (k->kind != WORDS) {
        store(o, s, value);
        return;
    }
    o->data_from_plan = true;
    for (size_t len; *value; value += len + (value[len] != 0)) {
        len = strcspn(value, "\n");
        store(o, s, intern_n(value, len));
    }
}

static bool names_scalar(const Plan *p, const char *name)
{
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++)
        if (strcmp(plan_str(p, p->scalars[i].name), name) == 0) return true;
    return false;
}

// What the description gives a scalar of an option's name, as in m:scalar("lr", 0.1), stands before the built-in value.
static void take_scalar(Options *o, const char *name, double standard)
{
    const Option *k = find_key(name);
    if (!k || k->kind != NUMBER || !k->in_plan || given[k - table]) return;
    if (!(standard >= k->min && standard <= k->max) || (k->open_min && standard == k->min) ||
        (k->open_max && standard == k->max))
        fatal("the description gives '%s' the value %g, which makes no sense; set --%s", name, standard, k->name);
    *(double *)(void *)((char *)o + k->offset) = standard;
}

void options_complete(Options *o, const Plan *p)
{
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++)
        take_scalar(o, plan_str(p, p->scalars[i].name), p->scalars[i].standard);
    for (uint64_t i = 0; i < p->count[PLAN_TRAIN]; i++)
        store_train(o, plan_str(p, p->train[i].key), plan_str(p, p->train[i].value));
    if (p->info->dtype != F64 && o->eps < (double)FLT_MIN)
        usage_error("--eps %g is zero in f32; the least is %.3g", o->eps, (double)FLT_MIN);
    if (o->steps > 0 && o->warmup >= o->steps && o->warmup > 1)
        warn("--warmup %lld: --steps %lld end before the learning rate is reached", (long long)o->warmup, (long long)o->steps);
    for (uint64_t i = 0; i < p->count[PLAN_INPUTS]; i++)
        if (p->inputs[i].shift && o->ignore >= (int64_t)p->inputs[i].limit)
            warn("--ignore %lld: no target is %lld, they are below %u", (long long)o->ignore, (long long)o->ignore, p->inputs[i].limit);
    if (o->decay != DECAY_CONSTANT && o->min_lr > o->lr) usage_error("--min-lr %g is above --lr %g", o->min_lr, o->lr);
    for (size_t i = 0; i < vec_len(o->set); i++) {
        const Option *k = find_key(o->set[i].name);
        if (k) usage_error("--set %s: use --%s", o->set[i].name, k->name);
        if (!names_scalar(p, o->set[i].name))
            usage_error("--set %s: '%s' has no number of that name", o->set[i].name, o->plan);
    }
}

void options_free(Options *o)
{
    vec_free(o->data);
    vec_free(o->set);
}
