// test_layouts.c: initial weights, weight files and gradient files of one model in many layouts: always the same.
//
// The model is made by hand: axes that do not divide (padding), axes that only a part of tensor parallel cuts, strided
// ones, a tied parameter on two stages. Where an element lies is worked out here one by one, apart from slices.c.
#include "checkpoint.h"
#include "faults.h"
#include "hand_plan.h"
#include "meeting.h"
#include "rng.h"
#include "safetensors.h"
#include <math.h>
#include <omp.h>
#include <signal.h>

typedef struct { uint64_t extent; uint32_t mesh; } Axis;
typedef struct {
    const char *name;
    uint32_t ndim;
    uint64_t dims[2];
    uint32_t naxes;
    Axis axes[5];
    bool tied, frozen;
} Tensor;

enum { HIDDEN = 24, KV = 3, GROUP = 2, HEAD = 5 };
static const Tensor model[] = {
    {"wte.weight", 2, {65, HIDDEN}, 2, {{65, MESH_TP}, {HIDDEN, 0}}, true, false},
    {"attn.weight", 2, {HIDDEN, 3 * KV * GROUP * HEAD}, 5,
     {{HIDDEN, 0}, {3, 0}, {KV, MESH_KV}, {GROUP, MESH_GROUP}, {HEAD, 0}}, false, false},
    {"k.weight", 2, {KV * HEAD, HIDDEN}, 3, {{KV, MESH_KV}, {HEAD, 0}, {HIDDEN, 0}}, false, false},
    {"down.weight", 2, {HIDDEN, 42}, 2, {{HIDDEN, 0}, {42, MESH_TP}}, false, false},
    {"norm.weight", 1, {HIDDEN}, 1, {{HIDDEN, 0}}, false, false},
    {"up.weight", 2, {700, 60}, 2, {{700, MESH_TP}, {60, 0}}, false, false},
    {"few.weight", 2, {HIDDEN, 1}, 2, {{HIDDEN, 0}, {1, MESH_KV}}, false, false},
    {"scale", 0, {0}, 0, {{0, 0}}, false, false},
    {"frozen", 1, {7}, 1, {{7, MESH_KV}}, false, true},
};

// ---- plans

enum { STAGES = 4, PARAMS = STAGES * countof(model), AXES = 5 * PARAMS };
typedef struct {
    Plan plan;
    PlanInfo info;
    PlanStage stages[STAGES];
    PlanParam params[PARAMS];
    PlanParamAxis axes[AXES];
    PlanBuffer buffers[2 * PARAMS];
    PlanGroup groups[countof(model)];  // over which the gradient of each tensor is summed
    Buf strings;
    uint64_t nparams, naxes, nbuffers;
} Layout;
typedef struct { uint32_t mesh[MESH_FACTORS]; bool zero; DType dtype; } Shape;

static uint64_t add_axes(Layout *l, const Tensor *t)
{
    uint64_t elements = 1;
    for (uint32_t a = 0; a < t->naxes; a++) {
        uint32_t size = mesh_size(l->info.mesh, t->axes[a].mesh);
        uint64_t local = (t->axes[a].extent + size - 1) / size;
        l->axes[l->naxes++] = (PlanParamAxis){t->axes[a].extent, local, t->axes[a].mesh, 0};
        elements *= local;
    }
    return elements;
}

static void add_tensor(Layout *l, uint32_t stage, uint32_t index, uint32_t owner, DType dtype)
{
    const Tensor *t = &model[index];
    PlanStage *s = &l->stages[stage];
    PlanParam *p = &l->params[l->nparams++];
    *p = (PlanParam){.name = (Str)l->strings.n, .ndim = t->ndim, .init_value = 0.02 + index, .owner = owner == stage};
    buf_write(&l->strings, t->name, strlen(t->name) + 1);
    memcpy(p->dims, t->dims, sizeof t->dims);
    p->init = t->ndim == 1 ? INIT_CONSTANT : INIT_NORMAL;
    p->key = t->frozen ? 0 : index + 1;
    p->first_axis = (uint32_t)(l->naxes - s->range[PLAN_PARAM_AXES - PLAN_FIRST_STAGED].first);
    p->naxes = t->naxes;
    uint64_t bytes = add_axes(l, t) * (uint64_t)dtype_bytes(dtype);
    p->buffer = (uint32_t)(l->nbuffers - s->range[PLAN_BUFFERS - PLAN_FIRST_STAGED].first);
    p->grad = t->frozen ? UINT32_MAX : p->buffer + 1;
    for (int i = 0; i < 2; i++) l->buffers[l->nbuffers++] = (PlanBuffer){.dtype = dtype, .bytes = bytes};
}

static void add_stage(Layout *l, uint32_t stage, DType dtype)
{
    uint32_t pp = l->info.mesh[MESH_AT_PP];
    PlanRange *range = l->stages[stage].range, *params = &range[PLAN_PARAMS - PLAN_FIRST_STAGED],
              *axes = &range[PLAN_PARAM_AXES - PLAN_FIRST_STAGED], *buffers = &range[PLAN_BUFFERS - PLAN_FIRST_STAGED];
    params->first = (uint32_t)l->nparams, axes->first = (uint32_t)l->naxes, buffers->first = (uint32_t)l->nbuffers;
    for (uint32_t i = countof(model); i-- > 0;) {  // not the order of one rank
        bool here = i % pp == stage || (model[i].tied && stage == pp - 1);
        if (here) add_tensor(l, stage, i, i % pp, dtype);
    }
    params->count = (uint32_t)l->nparams - params->first;
    axes->count = (uint32_t)l->naxes - axes->first;
    buffers->count = (uint32_t)l->nbuffers - buffers->first;
}

static void add_groups(Layout *l)
{
    for (uint32_t i = 0; i < countof(model); i++) {
        uint32_t named = MESH_PP, pp = l->info.mesh[MESH_AT_PP];
        for (uint32_t a = 0; a < model[i].naxes; a++) named |= model[i].axes[a].mesh;
        PlanGroup *g = &l->groups[i];
        g->mesh = MESH_ALL & ~named;
        if (i % 2) g->mesh &= ~(uint32_t)MESH_CP;  // a gradient that all cp ranks have anyway
        g->size = mesh_size(l->info.mesh, g->mesh);
        if (!model[i].tied || pp == 1) continue;
        g->mesh |= MESH_PP;
        g->size *= 2;
        g->stages = pp == 2 ? UINT64_MAX : (uint64_t)1 | (uint64_t)1 << (pp - 1);
    }
}

static Layout *layout_new(const Shape *shape)
{
    Layout *l = xcalloc(1, sizeof *l);
    memcpy(l->info.mesh, shape->mesh, sizeof l->info.mesh);
    l->info.zero = shape->zero;
    buf_write(&l->strings, "", 1);
    uint32_t pp = shape->mesh[MESH_AT_PP];
    for (uint32_t s = 0; s < pp; s++) add_stage(l, s, shape->dtype);
    add_groups(l);
    const HandSection sections[] = {
        {PLAN_STRINGS, l->strings.s, l->strings.n}, {PLAN_INFO, &l->info, 1},
        {PLAN_STAGES, l->stages, pp},               {PLAN_GROUPS, l->groups, countof(model)},
        {PLAN_PARAMS, l->params, l->nparams},       {PLAN_PARAM_AXES, l->axes, l->naxes},
        {PLAN_BUFFERS, l->buffers, l->nbuffers},
    };
    l->plan = hand_plan(sections, countof(sections));
    return l;
}

static void layout_free(Layout *l)
{
    buf_free(&l->strings);
    free((void *)(uintptr_t)l->plan.base);
    free(l);
}

// ---- ranks

typedef struct {
    Plan stage;
    uint32_t rank;
    void *memory[2 * countof(model)];
} Rank;

static void *memory_of(void *ctx, uint32_t id) { return ((Rank *)ctx)->memory[id]; }

static Rank *rank_new(const Layout *l, uint32_t rank, int byte)
{
    Rank *r = xcalloc(1, sizeof *r);
    r->stage = plan_stage(&l->plan, mesh_coord(l->info.mesh, rank, MESH_AT_PP));
    r->rank = rank;
    for (uint64_t i = 0; i < r->stage.count[PLAN_BUFFERS]; i++)
        r->memory[i] = memset(xmalloc(r->stage.buffers[i].bytes), byte, r->stage.buffers[i].bytes);
    return r;
}

static void rank_free(Rank *r)
{
    for (uint64_t i = 0; i < r->stage.count[PLAN_BUFFERS]; i++) free(r->memory[i]);
    free(r);
}

// place in the whole tensor of element i of a rank's buffer, or -1 for padding
static int64_t place(const Rank *r, const PlanParam *p, uint64_t i)
{
    uint64_t at = 0, step = 1;
    for (uint32_t a = p->naxes; a-- > 0;) {
        const PlanParamAxis *x = &r->stage.param_axes[p->first_axis + a];
        uint64_t position = mesh_index(r->stage.info->mesh, r->rank, x->mesh) * x->local + i % x->local;
        if (position >= x->extent) return -1;
        i /= x->local;
        at += position * step;
        step *= x->extent;
    }
    return (int64_t)at;
}

static uint64_t count_of(const Rank *r, uint32_t buffer)
{
    return r->stage.buffers[buffer].bytes / (uint64_t)dtype_bytes(r->stage.buffers[buffer].dtype);
}

static double value(const Rank *r, uint32_t buffer, uint64_t i)
{
    return r->stage.buffers[buffer].dtype == F64 ? ((double *)r->memory[buffer])[i] : ((float *)r->memory[buffer])[i];
}

static void check_initial(const Rank *r, uint64_t seed)
{
    for (uint64_t k = 0; k < r->stage.count[PLAN_PARAMS]; k++) {
        const PlanParam *p = &r->stage.params[k];
        uint64_t key = rng_key(seed, plan_str(&r->stage, p->name));
        for (uint64_t i = 0; i < count_of(r, p->buffer); i++) {
            int64_t at = place(r, p, i);
            double want = at < 0 ? 0 : p->init_value * (p->init ? 1 : rng_normal(key, (uint64_t)at));
            if (r->stage.buffers[p->buffer].dtype == F32) want = (float)want;
            assert_true(value(r, p->buffer, i) == want);
        }
    }
}

static void set_value(Rank *r, uint32_t buffer, uint64_t i, double d)
{
    if (r->stage.buffers[buffer].dtype == F64) ((double *)r->memory[buffer])[i] = d;
    else ((float *)r->memory[buffer])[i] = (float)d;
}

// A gradient is its place in the tensor; with ZeRO only in the rank's part, elsewhere and in padding NaN.
static void set_gradients(Rank *r)
{
    for (uint64_t k = 0; k < r->stage.count[PLAN_PARAMS]; k++) {
        const PlanParam *p = &r->stage.params[k];
        if (p->grad == UINT32_MAX) continue;
        uint32_t index, members = plan_group(&r->stage, p->key - 1, r->rank, NULL, &index);
        uint64_t n = count_of(r, p->grad), part = (n + members - 1) / members;
        while (part % 16) part++;
        for (uint64_t i = 0; i < n; i++) {
            int64_t at = place(r, p, i);
            bool mine = !r->stage.info->zero || members == 1 || i / part == index;
            set_value(r, p->grad, i, mine && at >= 0 ? (double)(at + 1) : NAN);
        }
    }
}

// Leaves each weight on the first rank that has it; NaN in its copies and in padding, which no file may show.
static void spoil_copies(Rank **ranks)
{
    static bool seen[countof(model)][700 * 60];
    memset(seen, 0, sizeof seen);
    for (size_t k = 0; k < vec_len(ranks); k++) {
        Rank *r = ranks[k];
        for (uint64_t n = 0; n < r->stage.count[PLAN_PARAMS]; n++) {
            const PlanParam *p = &r->stage.params[n];
            size_t tensor = 0;
            while (strcmp(model[tensor].name, plan_str(&r->stage, p->name))) tensor++;
            for (uint64_t i = 0; i < count_of(r, p->buffer); i++) {
                int64_t at = place(r, p, i);
                if (at < 0 || seen[tensor][at]) set_value(r, p->buffer, i, NAN);
                else seen[tensor][at] = true;
            }
        }
    }
}

// ---- saving together

typedef struct { Rank *rank; MeetingRank coll; const char *path, *gradients; } Saver;

static void *save(void *saver)
{
    Saver *s = saver;
    if (s->path) checkpoint_save(&s->rank->stage, &s->coll.coll, s->path, memory_of, s->rank);
    if (s->gradients) gradients_save(&s->rank->stage, &s->coll.coll, s->gradients, 0.5, memory_of, s->rank);
    return NULL;
}

typedef struct { Rank **ranks; const char *path, *gradients, *path_of_1; bool processes; } Saving;

static void save_all(const Saving *what)
{
    uint32_t n = (uint32_t)vec_len(what->ranks);
    Meeting *m = meeting_new(n);
    pthread_t threads[MEETING_RANKS];
    pid_t children[MEETING_RANKS];
    Saver savers[MEETING_RANKS];
    for (uint32_t i = 0; i < n; i++) {
        const char *path = i == 1 && what->path_of_1 ? what->path_of_1 : what->path;
        savers[i] = (Saver){what->ranks[i], meeting_rank(m, &what->ranks[i]->stage, i, n), path, what->gradients};
        if (!what->processes) assert_int_equal(pthread_create(&threads[i], NULL, save, &savers[i]), 0);
        else if (!(children[i] = fork())) save(&savers[i]), _exit(0);
    }
    for (uint32_t i = 0; i < n; i++) {
        int status = 0;
        if (what->processes) assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        else pthread_join(threads[i], NULL);
        assert_int_equal(status, 0);
    }
    meeting_free(m);
}

static Rank **ranks_new(const Layout *l, int byte)
{
    Rank **ranks = NULL;
    for (uint32_t i = 0; i < mesh_size(l->info.mesh, MESH_ALL); i++) vec_push(ranks, rank_new(l, i, byte));
    return ranks;
}

static void ranks_free(Rank **ranks)
{
    for (size_t i = 0; i < vec_len(ranks); i++) rank_free(ranks[i]);
    vec_free(ranks);
}

static void same_file(const char *a, const char *b)
{
    size_t n, m;
    char *x = read_file(a, &n), *y = read_file(b, &m);
    assert_true(x && y && n == m && !memcmp(x, y, n));
    free(x), free(y);
}

// ---- tests

static const Shape shapes[] = {
    {{1, 1, 1, 1, 1}, 0, F32}, {{2, 2, 1, 1, 1}, 0, F32}, {{2, 1, 1, 1, 1}, 0, F32}, {{1, 4, 1, 1, 1}, 0, F32},
    {{4, 1, 1, 1, 1}, 0, F32}, {{1, 3, 1, 2, 1}, 0, F32}, {{1, 1, 1, 4, 1}, 0, F32}, {{1, 1, 1, 1, 3}, 0, F32},
    {{1, 1, 1, 1, 4}, 1, F32}, {{2, 2, 1, 1, 2}, 1, F32}, {{1, 2, 2, 2, 1}, 1, F32}, {{2, 2, 2, 2, 2}, 1, F32},
    {{2, 2, 2, 2, 2}, 0, F32}, {{2, 3, 1, 3, 2}, 1, F32},
};

static void every_layout(DType dtype, bool processes)
{
    const char *one = scratch_file("one"), *one_gradients = scratch_file("one.gradients");
    for (size_t i = 0; i < countof(shapes); i++) {
        Shape shape = shapes[i];
        shape.dtype = dtype;
        Layout *l = layout_new(&shape);
        Rank **ranks = ranks_new(l, 0xff), **back = ranks_new(l, 0xff);
        for (size_t k = 0; k < vec_len(ranks); k++) {
            omp_set_num_threads(k % 2 ? 1 : 3);
            params_init(&ranks[k]->stage, ranks[k]->rank, 7, memory_of, ranks[k]);
            check_initial(ranks[k], 7);
            set_gradients(ranks[k]);
        }
        spoil_copies(ranks);
        const char *path = i ? scratch_file("many") : one;
        const char *gradients = i ? scratch_file("many.gradients") : one_gradients;
        save_all(&(Saving){ranks, path, gradients, NULL, processes});
        same_file(one, path);
        same_file(one_gradients, gradients);
        for (size_t k = 0; k < vec_len(back); k++) {
            checkpoint_load(&back[k]->stage, back[k]->rank, one, memory_of, back[k]);
            check_initial(back[k], 7);
        }
        ranks_free(ranks), ranks_free(back);
        layout_free(l);
    }
}

static void ranks_are_threads(void **state)
{
    (void)state;
    every_layout(F32, false);
    every_layout(F64, false);
}

static void ranks_are_processes(void **state)
{
    (void)state;
    omp_set_num_threads(1);
    every_layout(F32, true);
}

static void gradients_are_whole(void **state)
{
    (void)state;
    Layout *l = layout_new(&shapes[11]);
    Rank **ranks = ranks_new(l, 0xff);
    for (size_t k = 0; k < vec_len(ranks); k++) set_gradients(ranks[k]);
    save_all(&(Saving){ranks, NULL, scratch_file("g"), NULL, false});
    char why[256];
    SafeTensors s;
    assert_true(safetensors_open(&s, scratch_file("g"), why, sizeof why));
    assert_int_equal(vec_len(s.tensors), countof(model) - 1);
    for (size_t i = 0; i < vec_len(s.tensors); i++)
        for (uint64_t k = 0; k < s.tensors[i].count; k++)
            assert_true(safetensor_value(s.tensors[i].dtype, s.tensors[i].data, k) == 0.5 * (double)(k + 1));
    safetensors_close(&s);
    ranks_free(ranks);
    layout_free(l);
}

static void save_apart(void *ranks)
{
    save_all(&(Saving){ranks, scratch_file("apart"), NULL, scratch_file("elsewhere/apart"), false});
}

static void save_nowhere(void *ranks)
{
    save_all(&(Saving){ranks, scratch_file("none/apart"), NULL, NULL, false});
}

static int files_in_scratch(void)
{
    char command[128];
    snprintf(command, sizeof command, "find '%s' -type f | wc -l", scratch_file(""));
    FILE *f = popen(command, "r");
    int n = -1;
    if (fscanf(f, "%d", &n) != 1) n = -1;
    pclose(f);
    return n;
}

static void faults_end_all(void **state)
{
    (void)state;
    Layout *l = layout_new(&shapes[1]);
    Rank **ranks = ranks_new(l, 0);
    int before = files_in_scratch();
    char command[128];
    snprintf(command, sizeof command, "mkdir '%s'", scratch_file("elsewhere"));
    assert_int_equal(system(command), 0);
    expect_fatal(save_apart, ranks, "(No such file or directory); all ranks must share its folder\n");
    expect_fatal(save_nowhere, ranks, "none/apart: No such file or directory");
    assert_int_equal(files_in_scratch(), before);
    ranks_free(ranks);
    layout_free(l);
}

// When the rank that failed has ended, rank 0, another process, has removed the file.
static void a_process_ends(void **state)
{
    (void)state;
    Layout *l = layout_new(&shapes[2]);
    Rank **ranks = ranks_new(l, 0);
    Meeting *m = meeting_new(2);
    pid_t children[2];
    int before = files_in_scratch(), status;
    for (uint32_t i = 0; i < 2; i++) {
        const char *path = scratch_file(i ? "elsewhere/apart" : "apart");
        Saver s = {ranks[i], meeting_rank(m, &ranks[i]->stage, i, 2), path, NULL};
        if ((children[i] = fork())) continue;
        if (!freopen("/dev/null", "w", stderr)) abort();
        on_exit(leave_, NULL);
        save(&s);
        _exit(0);
    }
    assert_int_equal(waitpid(children[1], &status, 0), children[1]);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    assert_int_equal(files_in_scratch(), before);
    kill(children[0], SIGKILL);
    waitpid(children[0], &status, 0);
    meeting_free(m);
    ranks_free(ranks);
    layout_free(l);
}

// What is refused does not depend on which parameters a stage has.
static void load_last_stage(void *path)
{
    Layout *l = layout_new(&(Shape){{1, 1, 1, 4, 1}, 0, F32});
    Rank *r = rank_new(l, 3, 0);
    checkpoint_load(&r->stage, 3, path, memory_of, r);
}

static void refusals_of_a_stage(void **state)
{
    (void)state;
    static const float zeros[700 * 60];
    static const uint64_t three = 3;
    static const struct { const char *missing, *extra, *said; } cases[] = {
        {"wte.weight", NULL, "lacks the weights of wte.weight\n"},
        {"scale", NULL, "lacks the weights of scale\n"},
        {"none", "extra", "tensors that the model does not have: extra\n"},
        {"norm.weight", "norm.weight", "tensor norm.weight has shape [3], but the model wants [24]\n"},
    };
    for (size_t c = 0; c < countof(cases); c++) {
        SafeEntry *entries = NULL;
        for (size_t i = 0; i < countof(model); i++)
            if (strcmp(model[i].name, cases[c].missing))
                vec_push(entries, (SafeEntry){model[i].name, SAFE_F32, model[i].ndim, model[i].dims});
        if (cases[c].extra) vec_push(entries, (SafeEntry){cases[c].extra, SAFE_F32, 1, &three});
        const char *path = scratch_file("refused");
        SafeWriter *w = safetensors_create(path, entries, vec_len(entries));
        for (size_t i = 0; i < vec_len(entries); i++) {
            uint64_t n = 4;
            for (uint32_t d = 0; d < entries[i].ndim; d++) n *= entries[i].dims[d];
            safetensors_append(w, zeros, n);
        }
        safetensors_commit(w);
        expect_fatal(load_last_stage, (void *)path, cases[c].said);
        vec_free(entries);
    }
}

int main(void)
{
    program_name = "test_layouts";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_end_all),      cmocka_unit_test(a_process_ends),
        cmocka_unit_test(refusals_of_a_stage), cmocka_unit_test(ranks_are_processes),
        cmocka_unit_test(gradients_are_whole), cmocka_unit_test(ranks_are_threads),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
