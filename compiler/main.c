// main.c: picoc. Reads the options, then runs the passes of one table over the graph; after each it checks that what the
// table promises holds, dumps and times. No pass prints, times or checks itself. Pictures and reports come last.
//
// From cut on there is a graph for each pipeline stage: a pass runs over all of them before the next one does. shard, cut
// and bucket change nothing on one rank; their dumps are left out of --dump=all then.
#include "pico.h"
#include "verify.h"
#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>

static void run_emit(Graph *g, Program *prog) { emit(g, prog); }

static const struct Pass {
    const char *name;
    void (*run)(Graph *);                  // one of the two; cut has neither
    void (*run_in)(Graph *, Program *);
    void (*check)(Graph *);
    bool among_ranks;                      // does nothing on one
    const char *holds;  // afterwards
} passes[] = {
    {"front", front, 0, graph_check, 0, "the model's forward graph; operands come before their users"},
    {"grad", grad, 0, verify_grad, 0, "every trained parameter has its accumulates and one update; no dead code"},
    {"shard", shard, 0, verify_shard, 1, "shapes are those of one rank; every partial value is reduced once"},
    {"cut", 0, 0, graph_check, 1, "a graph for each stage; what crosses is sent and received"},
    {"bucket", bucket, 0, verify_bucket, 1, "every gradient is reduced once over its key"},
    {"save", save, 0, verify_save, 0, "every value that crosses from forward to backward is saved or made again"},
    {"select", select_nodes, 0, verify_select, 0, "every reduction runs over a suffix of the axes, or keeps the last one"},
    {"fuse", fuse, 0, verify_fuse, 0, "every map and reduce belongs to one kernel, or is read through"},
    {"order", order, 0, verify_order, 0, "every value is written before it is read, parameters are read before they change"},
    {"place", 0, place, verify_place, 0, "nothing alive overlaps"},
    {"emit", 0, run_emit, verify_emit, 0, "every group has its kernel; identical kernels exist once"},
};

static const char help[] =
    "usage: picoc MODEL.lua [options] -o PLAN        compiles a model description to a training plan\n"
    "       picoc --print PLAN                       shows a plan as text\n"
    "  -o FILE                   the plan to write; picorun runs it\n"
    "  -D KEY=VALUE              sets a config field of the description (repeatable)\n"
    "  --config FILE.json        config fields from a Hugging Face config\n"
    "  --seq N --micro-batch N --accum N             tokens a sample [128], samples [8], micro-batches a step [1]\n"
    "  --dtype f32|f64|bf16      of activations and working weights [f32]\n"
    "  --recompute none|attention|full               what backward makes again to save memory [none]\n"
    "  --target cpu|cuda         [cpu]\n"
    "  --no-fuse                 every node its own kernel (the same bits, for comparison)\n"
    "many ranks (tp x pp x dp):\n"
    "  --tp N --pp N --dp N      tensor, pipeline, data parallel [1]; --micro-batch, --accum are those of one dp rank\n"
    "  --sp --no-sp              sequence parallel where tp splits nothing else [on if tp divides seq]\n"
    "  --schedule afab|1f1b|interleaved|zb           of the pipeline [1f1b]\n"
    "  --virtual N --stages LIST chunks a stage [interleaved: 2]; layers of each chunk, as in 4,4,3,5\n"
    "  --bucket-mb X --zero 0|1  size of gradient reductions [25]; 1: optimizer states split over dp [0]\n"
    "look inside:\n"
    "  --report[=FILE.json]      parameters, FLOPs, memory, kernels\n"
    "  --dot FILE --dot-level model|layer|op|kernel  the graph for Graphviz [layer]\n"
    "  --explain FILE:LINE       all nodes, kernels and bytes that this line caused\n"
    "  --emit DIR                the kernels as .c and .cu files\n"
    "  --dump[=PASS|all] --dump-dir DIR              the graph after a pass, as text\n"
    "  --stop PASS --time        ends after a pass; seconds of each (front grad shard cut bucket save select fuse\n"
    "                            order place emit)\n"
    "for tests:\n"
    "  --drop N|list             leaves out the N-th thing without which a layout is wrong, from 1\n"
    "  --help --version\n"
    "example: picoc graphs/llama.lua -D num_hidden_layers=2 --seq 64 -o plan.bin --report && picorun plan.bin\n";

// ---- options: one row each; kinds: 's' text, 'n' whole number from 1, 'f' flag, 'd' define, 'o' optional text
static const char *dtype_text, *recompute_text, *target_text, *print_plan, *schedule_text, *bucket_text, *zero_text, *drop_text;
static bool want_help, want_version, want_dump, want_sp, want_no_sp;
static const struct Option {
    const char *name;
    char kind;
    void *to;
    bool *given;
} table[] = {
    {"-o", 's', &options.output, 0}, {"-D", 'd', 0, 0}, {"--config", 's', &options.config_path, 0},
    {"--seq", 'n', &options.seq, 0}, {"--micro-batch", 'n', &options.micro_batch, 0},
    {"--accum", 'n', &options.accum, 0}, {"--dtype", 's', &dtype_text, 0}, {"--recompute", 's', &recompute_text, 0},
    {"--target", 's', &target_text, 0}, {"--no-fuse", 'f', 0, &options.no_fuse},
    {"--tp", 'n', &options.tp, 0}, {"--pp", 'n', &options.pp, 0}, {"--dp", 'n', &options.dp, 0},
    {"--sp", 'f', 0, &want_sp}, {"--no-sp", 'f', 0, &want_no_sp}, {"--schedule", 's', &schedule_text, 0},
    {"--virtual", 'n', &options.virtual_chunks, 0}, {"--stages", 's', &options.stages, 0},
    {"--bucket-mb", 's', &bucket_text, 0}, {"--zero", 's', &zero_text, 0}, {"--drop", 's', &drop_text, 0},
    {"--report", 'o', &options.report_path, &options.report}, {"--dot", 's', &options.dot_path, 0},
    {"--dot-level", 's', &options.dot_level, 0}, {"--explain", 's', &options.explain, 0},
    {"--emit", 's', &options.emit_dir, 0}, {"--dump", 'o', &options.dump, &want_dump},
    {"--dump-dir", 's', &options.dump_dir, 0}, {"--stop", 's', &options.stop, 0}, {"--time", 'f', 0, &options.time},
    {"--print", 's', &print_plan, 0}, {"--help", 'f', 0, &want_help}, {"-h", 'f', 0, &want_help},
    {"--version", 'f', 0, &want_version},
};

static _Noreturn void unknown_option(const char *name)
{
    const char *names[countof(table)];
    for (size_t i = 0; i < countof(table); i++) names[i] = table[i].name;
    const char *nearest = nearest_name(name, countof(table), names);
    if (nearest) usage_error("unknown option %s; did you mean %s?", name, nearest);
    usage_error("unknown option %s", name);
}

static int64_t whole_number(const char *option, const char *text, int64_t least)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || text[0] == ' ') usage_error("%s: '%s' is not a whole number", option, text);
    if (errno || v < least || v > 1 << 24)
        usage_error("%s: %s is not between %lld and %d", option, text, (long long)least, 1 << 24);
    return v;
}

// Stores one option; returns how many further words it took.
static int take_option(const struct Option *o, const char *value, bool attached)
{
    if (o->given) *o->given = true;
    if (o->kind == 'f') {
        if (attached) usage_error("%s takes no value", o->name);
        return 0;
    }
    if (o->kind == 'o') {
        if (attached) *(const char **)o->to = value;
        return 0;
    }
    if (!value) usage_error("%s needs a value", o->name);
    if (o->kind == 'n') *(int64_t *)o->to = whole_number(o->name, value, 1);
    else if (o->kind == 'd') vec_push(options.defines, value);
    else *(const char **)o->to = value;
    return !attached;
}

static int choice(const char *option, const char *text, int standard, int n, const char *const *names)
{
    if (!text) return standard;
    for (int i = 0; i < n; i++)
        if (!strcmp(text, names[i])) return i;
    Buf b = {0};
    for (int i = 0; i < n; i++) buf_printf(&b, "%s%s", i ? ", " : "", names[i]);
    usage_error("%s: '%s' is none of %s", option, text, b.s);
}

static void check_pass_name(const char *option, const char *name)
{
    const char *names[countof(passes) + 1];
    for (size_t i = 0; i < countof(passes); i++) names[i] = passes[i].name;
    names[countof(passes)] = "all";
    if (name) choice(option, name, 0, (int)countof(passes) + (option[2] == 'd'), names);
}

// It stands in labels, dumps and messages.
static void check_model_path(void)
{
    for (const char *s = options.model_path; s && *s; s++)
        if ((unsigned char)*s < 32 || *s == 127) usage_error("the model's path holds a control character");
}

// picorun takes no more than this.
static void check_sizes(void)
{
    if (options.accum > 1 << 16)
        usage_error("--accum: %lld is not between 1 and %d", (long long)options.accum, 1 << 16);
    if (options.seq * options.micro_batch > INT32_MAX)
        usage_error("--seq %lld --micro-batch %lld: a micro-batch has fewer than 2^31 tokens", (long long)options.seq,
                    (long long)options.micro_batch);
}

static void take_schedule(void)
{
    static const char *const names[] = {"afab", "1f1b", "interleaved", "zb"};
    bool chunks = options.virtual_chunks > 1;
    int standard = chunks ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    options.schedule = (PlanScheduleKind)choice("--schedule", schedule_text, standard, 4, names);
    if (options.schedule == SCHEDULE_INTERLEAVED && !options.virtual_chunks) options.virtual_chunks = 2;
    if (chunks && options.schedule != SCHEDULE_INTERLEAVED)
        usage_error("--virtual %lld: only schedule interleaved has several chunks a stage", (long long)options.virtual_chunks);
    if (options.schedule == SCHEDULE_INTERLEAVED && options.pp == 1)
        usage_error("schedule interleaved needs pipeline stages: --pp 2 or more");
    if (options.stages && options.pp == 1) usage_error("--stages %s: there is one stage; see --pp", options.stages);
    if (options.pp > 64) usage_error("--pp: %lld is not between 1 and 64", (long long)options.pp);
    if (options.virtual_chunks > MAX_CHUNKS)
        usage_error("--virtual: %lld is not between 1 and %d", (long long)options.virtual_chunks, MAX_CHUNKS);
}

static void take_layout(void)
{
    static const char *const zeros[] = {"0", "1"};
    take_schedule();
    if (want_sp && want_no_sp) usage_error("--sp and --no-sp are opposites");
    options.sp = want_sp ? 1 : want_no_sp ? 0 : -1;
    if (want_sp && options.tp < 2) usage_error("--sp splits the sequence among the ranks of --tp, which is 1");
    options.zero = choice("--zero", zero_text, 0, 2, zeros);
    if (bucket_text) {
        char *end;
        options.bucket_mb = strtod(bucket_text, &end);
        if (end == bucket_text || *end || !(options.bucket_mb >= 0 && options.bucket_mb <= 1e6))
            usage_error("--bucket-mb: '%s' is not a number of megabytes from 0 (a reduction for each gradient) to 1e6", bucket_text);
    }
    if (drop_text) options.drop = !strcmp(drop_text, "list") ? DROP_LIST : whole_number("--drop", drop_text, 1);
    int64_t ranks = options.tp * options.pp;  // each below 2^24
    if (ranks > 1 << 20 || ranks * options.dp > 1 << 20)
        usage_error("--tp %lld --pp %lld --dp %lld: that is more than %d ranks", (long long)options.tp,
                    (long long)options.pp, (long long)options.dp, 1 << 20);
}

// A file that is written must not be one that is read, nor another that is written.
static void refuse_shared_files(void)
{
    const struct {
        const char *name, *path;
    } out[] = {{"-o", options.output}, {"--dot", options.dot_path}, {"--report", options.report_path}};
    for (size_t i = 0; i < countof(out); i++) {
        if (!out[i].path) continue;
        const char *in[] = {options.model_path, options.config_path};
        for (size_t k = 0; k < countof(in); k++)
            if (in[k] && one_file(out[i].path, in[k]))
                usage_error("%s %s would overwrite an input", out[i].name, out[i].path);
        for (size_t k = i + 1; k < countof(out); k++)
            if (out[k].path && one_file(out[i].path, out[k].path))
                usage_error("%s and %s name one file, %s", out[i].name, out[k].name, out[i].path);
    }
}

static void parse_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *equals = strchr(word, '=');
        if (word[0] != '-' || !word[1]) {
            if (options.model_path) usage_error("two model files: %s and %s", options.model_path, word);
            options.model_path = word;
            continue;
        }
        char name[64];
        size_t n = equals && word[1] == '-' ? (size_t)(equals - word) : strlen(word);
        if (word[1] == 'D' && word[2]) n = 2;  // -Dkey=value
        if (n >= sizeof name) unknown_option(word);
        memcpy(name, word, n);
        name[n] = 0;
        const struct Option *o = NULL;
        for (size_t k = 0; k < countof(table) && !o; k++)
            if (!strcmp(name, table[k].name)) o = &table[k];
        if (!o) unknown_option(name);
        bool attached = word[n] != 0;
        i += take_option(o, attached ? word + n + (word[n] == '=') : i + 1 < argc ? argv[i + 1] : NULL, attached);
    }
    static const char *const dtypes[] = {"f32", "f64", "bf16"}, *const levels[] = {"model", "layer", "op", "kernel"},
                             *const recomputes[] = {"none", "attention", "full"}, *const targets[] = {"cpu", "cuda"};
    options.dtype = (DType[]){F32, F64, BF16}[choice("--dtype", dtype_text, 0, 3, dtypes)];
    options.recompute = (Recompute)choice("--recompute", recompute_text, 0, 3, recomputes);
    options.target = (PlanTarget)choice("--target", target_text, 0, 2, targets);
    choice("--dot-level", options.dot_level, 0, 4, levels);
    take_layout();
    if (want_dump && !options.dump) options.dump = "all";
    if (options.dump_dir && !options.dump) options.dump = "all";
    check_pass_name("--dump", options.dump);
    check_pass_name("--stop", options.stop);
    check_model_path();
    check_sizes();
    explain_check(options.explain);
    if (print_plan && options.model_path)
        usage_error("--print shows a plan; it takes no model, such as %s", options.model_path);
    refuse_shared_files();
}

// ---- dumps and times
static bool is_dumped(const struct Pass *pass)
{
    bool all = options.dump && !strcmp(options.dump, "all"), ranks = options.tp * options.pp * options.dp > 1;
    return all ? ranks || !pass->among_ranks : options.dump && !strcmp(options.dump, pass->name);
}

static void dump_after(Graph *const *stages, int n, const struct Pass *pass)
{
    if (!is_dumped(pass)) return;
    FILE *out = stdout;
    if (options.dump_dir) {
        if (mkdir(options.dump_dir, 0777) && errno != EEXIST) fatal("--dump-dir %s:", options.dump_dir);
        Buf path = {0};
        buf_printf(&path, "%s/%02d-%s.ir", options.dump_dir, (int)(pass - passes), pass->name);
        if (!(out = fopen(path.s, "w"))) fatal("%s:", path.s);
        buf_free(&path);
    }
    fprintf(out, "-- after %s: %s\n", pass->name, pass->holds);
    for (int s = 0; s < n; s++) {
        if (n > 1) fprintf(out, "stage %d\n", s);
        graph_dump(stages[s], out);
    }
    bool bad = ferror(out);
    if ((out == stdout ? fflush(out) : fclose(out)) || bad) fatal("--dump: cannot write:");
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool run_passes(Graph *g, Program **prog)  // false: stopped early
{
    Graph *const *stages = &g;
    int n = 1;
    for (size_t i = 0; i < countof(passes); i++) {
        const struct Pass *p = &passes[i];
        double start = seconds();
        if (p->run || p->run_in)
            for (int s = 0; s < n; s++) p->run ? p->run(stages[s]) : p->run_in(stages[s], *prog);
        else
            *prog = cut(g), stages = (*prog)->stages, n = (*prog)->nstages;
        double done = seconds();
        size_t nodes = 0;
        for (int s = 0; s < n; s++) p->check(stages[s]), nodes += vec_len(stages[s]->nodes) - 1;
        if (options.time)
            fprintf(stderr, "%-7s %7.1f ms   check %6.1f ms   %zu nodes\n", p->name, 1e3 * (done - start),
                    1e3 * (seconds() - done), nodes);
        dump_after(stages, n, p);
        if (options.stop && !strcmp(options.stop, p->name)) return false;
    }
    return true;
}

static int print_file(const char *path)
{
    Plan plan;
    char message[512];
    if (!plan_open(&plan, path, message, sizeof message)) fatal("%s: %s", path, message);
    plan_print(&plan, stdout);
    plan_close(&plan);
    if (fflush(stdout) || ferror(stdout)) fatal("--print: cannot write:");
    return 0;
}

int main(int argc, char **argv)
{
    program_name = "picoc";
    catch_ends();
    parse_options(argc, argv);
    if (want_help || want_version) {
        if (want_help)
            fputs(help, stdout);
        else
            printf("picoc %s, plan format %u\n", PICO_VERSION, PLAN_VERSION);
        finish_stdout();
        return 0;
    }
    if (print_plan) return print_file(print_plan);
    if (!options.model_path) usage_error("no model file given");
    bool looks = options.report || options.dot_path || options.emit_dir || options.explain || options.dump || options.stop ||
                 options.drop == DROP_LIST;
    if (options.output && options.stop) usage_error("--stop %s: no plan is written then; leave out -o", options.stop);
    if (!options.output && !looks) usage_error("nothing to do: say where the plan goes with -o FILE");

    Graph *g = graph_new();
    g->dtype = options.dtype;
    g->seq = options.seq;
    g->micro_batch = options.micro_batch;
    g->accum = options.accum;
    Program *prog = NULL;
    if (run_passes(g, &prog)) {
        double start = seconds();
        if (options.output) plan_write(prog, options.output);
        if (options.time) fprintf(stderr, "%-7s %7.1f ms\n", "write", 1e3 * (seconds() - start));
        for (int s = 0; options.emit_dir && s < prog->nstages; s++) emit_files(prog->stages[s], options.emit_dir);
        if (options.dot_path) dot(prog, options.dot_path, options.dot_level);
        if (options.report) report(prog, stdout, options.report_path);
        if (options.explain) explain(prog, options.explain, stdout);
    }
    front_close();
    finish_stdout();
    return 0;
}
