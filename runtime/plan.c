// plan.c: opens a plan file and checks it, all of it, before anything in it is used.
//
// In: bytes of any origin. Out: a Plan whose indices, offsets, enums, string ends and sizes may be used
// without another look. One function checks each section; the first fault wins and is one sentence that
// names section, item and numbers. What is checked goes beyond memory safety where it is cheap: a buffer is
// used only while it is alive, no two buffers share bytes while both are alive, parameters are disjoint,
// the schedule runs every micro-batch once, in order, and finds its saved values in the slot it names.
// What cannot be checked is what a kernel's C text does with its arguments.
//
// Traps: all sums and products of numbers from the file go through mul_ok/add_ok or are bounded before.
// Section checks use only sections that were checked earlier, in the order of `checks`.
#include "plan.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { MAX_SLOTS = 1 << 16, MAX_ARGS = 4096 };
#define MAX_BYTES ((uint64_t)1 << 46) // of one arena with all its slots, or of one buffer

_Static_assert(sizeof(PlanHeader) == 32 && sizeof(PlanSection) == 24, "no hidden padding");
_Static_assert(sizeof(PlanInfo) == 120 && sizeof(PlanInput) == 24 && sizeof(PlanScalar) == 16, "no hidden padding");
_Static_assert(sizeof(PlanParam) == 168 && sizeof(PlanState) == 12 && sizeof(PlanBuffer) == 168, "no hidden padding");
_Static_assert(sizeof(PlanKernel) == 80 && sizeof(PlanGemm) == 264 && sizeof(PlanArg) == 16, "no hidden padding");
_Static_assert(sizeof(PlanInstr) == 20 && sizeof(PlanSegment) == 16 && sizeof(PlanStep) == 16, "no hidden padding");

// ---- names

static const struct {
    const char *name;
    size_t item;
} sections[PLAN_SECTIONS] = {
    [PLAN_STRINGS] = {"strings", 1},
    [PLAN_INFO] = {"info", sizeof(PlanInfo)},
    [PLAN_INPUTS] = {"inputs", sizeof(PlanInput)},
    [PLAN_OUTPUTS] = {"outputs", sizeof(PlanOutput)},
    [PLAN_SCALARS] = {"scalars", sizeof(PlanScalar)},
    [PLAN_PARAMS] = {"params", sizeof(PlanParam)},
    [PLAN_STATES] = {"states", sizeof(PlanState)},
    [PLAN_BUFFERS] = {"buffers", sizeof(PlanBuffer)},
    [PLAN_SOURCES] = {"sources", sizeof(PlanSource)},
    [PLAN_KERNELS] = {"kernels", sizeof(PlanKernel)},
    [PLAN_GEMMS] = {"gemms", sizeof(PlanGemm)},
    [PLAN_ARGS] = {"args", sizeof(PlanArg)},
    [PLAN_INSTRS] = {"instrs", sizeof(PlanInstr)},
    [PLAN_SEGMENTS] = {"segments", sizeof(PlanSegment)},
    [PLAN_SCHEDULE] = {"schedule", sizeof(PlanStep)},
    [PLAN_TRAIN] = {"train", sizeof(PlanTrain)},
};

size_t plan_item_size(enum PlanSectionId id)
{
    return sections[id].item;
}
const char *plan_section_name(enum PlanSectionId id)
{
    return sections[id].name;
}

const char *plan_segment_name(SegmentId id)
{
    static const char *const names[SEG_COUNT] = {"init", "prep", "F", "B", "update"};
    return names[id];
}

// ---- the checker's state and its three tools

typedef struct {
    Plan *p;
    char *message;
    size_t message_size;
    const char *section; // being checked
    uint64_t item;
} Check;

PRINTF_LIKE(2, 3) static bool fail(Check *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->message, c->message_size, fmt, ap);
    va_end(ap);
    return false;
}

// A fault of the item being checked.
PRINTF_LIKE(2, 3) static bool fail_item(Check *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fail(c, "%s[%llu] %s", c->section, (unsigned long long)c->item, text);
}

static bool mul_ok(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static bool add_ok(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static bool str_ok(Check *c, const char *field, Str s)
{
    uint64_t n = c->p->count[PLAN_STRINGS];
    return s < n || fail_item(c, "has its %s at %u of %llu string bytes", field, s, (unsigned long long)n);
}

// Text that goes into messages and to terminals: short, one line, no control characters. The bound keeps many
// records with one long text cheap.
static bool line_ok(Check *c, const char *field, Str s)
{
    enum { LONGEST = 1024 };
    if (!str_ok(c, field, s)) return false;
    const unsigned char *text = (const unsigned char *)plan_str(c->p, s);
    size_t n = 0;
    while (n <= LONGEST && text[n] >= ' ' && text[n] != 127) n++;
    if (text[n] == 0) return true;
    return fail_item(c, "has a %s that is longer than %d bytes or holds a control character", field, LONGEST);
}

static bool name_ok(Check *c, Str s)
{
    if (!line_ok(c, "name", s)) return false;
    return s != 0 || fail_item(c, "has no name");
}

static bool below(Check *c, const char *field, uint64_t value, uint64_t limit)
{
    if (value < limit) return true;
    return fail_item(c, "has %s %llu, which must be below %llu", field, (unsigned long long)value,
                     (unsigned long long)limit);
}

static bool zero(Check *c, uint64_t pad)
{
    return pad == 0 || fail_item(c, "has padding that is not zero");
}

static bool is_float(uint32_t dtype)
{
    return dtype == F64 || dtype == F32 || dtype == BF16;
}

// ---- header and section table

static bool check_header(Check *c)
{
    Plan *p = c->p;
    PlanHeader h;
    if (p->size < sizeof h) return fail(c, "the file has %llu bytes and no header", (unsigned long long)p->size);
    memcpy(&h, p->base, sizeof h);
    if (memcmp(h.magic, PLAN_MAGIC, sizeof h.magic) != 0)
        return fail(c, "the file does not begin with '%s'", PLAN_MAGIC);
    if (h.version != PLAN_VERSION)
        return fail(c, "the plan has version %u, this program reads version %u; compile the model again", h.version,
                    PLAN_VERSION);
    if (h.size != p->size)
        return fail(c, "the file has %llu bytes, its header says %llu", (unsigned long long)p->size,
                    (unsigned long long)h.size);
    if (h.nsections != PLAN_SECTIONS)
        return fail(c, "the header names %u sections, not %u", h.nsections, PLAN_SECTIONS);
    uint64_t sum = XXH3_64bits(p->base + sizeof h, p->size - sizeof h);
    if (sum != h.checksum) return fail(c, "the checksum does not match; the file is damaged");
    if ((uintptr_t)p->base % 16) return fail(c, "the bytes are not aligned to 16 in memory");
    return true;
}

static bool zeros_between(const Plan *p, uint64_t from, uint64_t to)
{
    for (; from < to; from++)
        if (p->base[from]) return false;
    return true;
}

// Sections follow each other without gaps but alignment, which leaves no room for overlaps.
static bool check_table(Check *c, PlanSection *table)
{
    Plan *p = c->p;
    uint64_t end = sizeof(PlanHeader) + PLAN_SECTIONS * sizeof(PlanSection);
    if (p->size < end) return fail(c, "the file ends in the section table, at byte %llu", (unsigned long long)p->size);
    memcpy(table, p->base + sizeof(PlanHeader), PLAN_SECTIONS * sizeof(PlanSection));
    for (uint32_t i = 0; i < PLAN_SECTIONS; i++) {
        const PlanSection *s = &table[i];
        const char *name = sections[i].name;
        uint64_t start = (end + 15) & ~(uint64_t)15;
        if (s->id != i) return fail(c, "section %u has id %u", i, s->id);
        if (s->item != sections[i].item)
            return fail(c, "section %s has records of %u bytes, not %zu", name, s->item, sections[i].item);
        if (s->offset != start || start > p->size)
            return fail(c, "section %s begins at byte %llu, not %llu of %llu", name, (unsigned long long)s->offset,
                        (unsigned long long)start, (unsigned long long)p->size);
        if (s->count > (p->size - start) / s->item)
            return fail(c, "section %s has %llu records of %u bytes, more than the file holds", name,
                        (unsigned long long)s->count, s->item);
        if (!zeros_between(p, end, start)) return fail(c, "the padding before section %s is not zero", name);
        end = start + s->count * s->item;
    }
    if (p->size - end > 15 || !zeros_between(p, end, p->size))
        return fail(c, "%llu bytes follow the last section", (unsigned long long)(p->size - end));
    return true;
}

static void set_sections(Plan *p, const PlanSection *table)
{
    const void *at[PLAN_SECTIONS];
    for (int i = 0; i < PLAN_SECTIONS; i++) {
        at[i] = p->base + table[i].offset;
        p->count[i] = table[i].count;
    }
    p->strings = at[PLAN_STRINGS];
    p->info = at[PLAN_INFO];
    p->inputs = at[PLAN_INPUTS];
    p->outputs = at[PLAN_OUTPUTS];
    p->scalars = at[PLAN_SCALARS];
    p->params = at[PLAN_PARAMS];
    p->states = at[PLAN_STATES];
    p->buffers = at[PLAN_BUFFERS];
    p->sources = at[PLAN_SOURCES];
    p->kernels = at[PLAN_KERNELS];
    p->gemms = at[PLAN_GEMMS];
    p->args = at[PLAN_ARGS];
    p->instrs = at[PLAN_INSTRS];
    p->segments = at[PLAN_SEGMENTS];
    p->schedule = at[PLAN_SCHEDULE];
    p->train = at[PLAN_TRAIN];
}

// ---- sections, in the order in which they are checked. `fail_item` speaks of c->item.

static bool check_strings(Check *c)
{
    const Plan *p = c->p;
    uint64_t n = p->count[PLAN_STRINGS];
    if (n == 0 || p->strings[0] != 0) return fail(c, "the strings do not begin with the empty one");
    return p->strings[n - 1] == 0 || fail(c, "the last string has no end");
}

static bool check_arenas(Check *c)
{
    const PlanInfo *o = c->p->info;
    static const char *const names[ARENA_COUNT] = {"persist", "saved", "work"};
    for (int a = 0; a < ARENA_COUNT; a++) {
        uint64_t total;
        if (a != ARENA_SAVED && o->arena_slots[a] != 1)
            return fail_item(c, "gives arena %s %u slots, not 1", names[a], o->arena_slots[a]);
        if (o->arena_slots[a] == 0 && o->arena_bytes[a] > 0) return fail_item(c, "gives arena %s no slot", names[a]);
        if (o->arena_slots[a] > MAX_SLOTS)
            return fail_item(c, "gives arena %s %u slots, more than %u", names[a], o->arena_slots[a], MAX_SLOTS);
        if (!mul_ok(o->arena_bytes[a], max_of(o->arena_slots[a], 1u), &total) || total > MAX_BYTES)
            return fail_item(c, "gives arena %s %llu bytes, more than any machine has", names[a],
                             (unsigned long long)o->arena_bytes[a]);
    }
    if (o->scratch_bytes > MAX_BYTES)
        return fail_item(c, "wants %llu bytes of scratch", (unsigned long long)o->scratch_bytes);
    return true;
}

static bool check_info(Check *c)
{
    const Plan *p = c->p;
    const PlanInfo *o = p->info;
    if (p->count[PLAN_INFO] != 1)
        return fail(c, "section info has %llu records, not 1", (unsigned long long)p->count[PLAN_INFO]);
    if (!line_ok(c, "model", o->model) || !str_ok(c, "config", o->config) || !str_ok(c, "options", o->options) ||
        !str_ok(c, "source", o->source) || !zero(c, o->pad) || !zero(c, o->reserved))
        return false;
    if (!below(c, "target", o->target, 2)) return false;
    if (!is_float(o->dtype)) return fail_item(c, "has dtype %u, which no activation has", o->dtype);
    if (!o->seq || !o->micro_batch || !o->accum || o->seq > INT32_MAX || o->micro_batch > INT32_MAX ||
        o->accum > MAX_SLOTS)
        return fail_item(c, "has seq %u, micro_batch %u, accum %u; each must be positive, and accum at most %u", o->seq,
                         o->micro_batch, o->accum, MAX_SLOTS);
    if ((uint64_t)o->seq * o->micro_batch > (uint64_t)1 << 40)
        return fail_item(c, "has %u x %u tokens in a micro-batch", o->micro_batch, o->seq);
    if (o->tp != 1 || o->pp != 1 || o->dp != 1 || o->cp != 1)
        return fail_item(c, "wants a mesh of tp %u, pp %u, dp %u, cp %u; this program runs one rank", o->tp, o->pp,
                         o->dp, o->cp);
    if (!isfinite(o->flops_per_step) || o->flops_per_step < 0) return fail_item(c, "has a bad flops_per_step");
    return check_arenas(c);
}

// Elements of a shape; false if it has a zero extent, too many dimensions or elements, or dims left over.
static bool shape_elements(Check *c, uint32_t ndim, const uint64_t *dims, uint64_t *elements)
{
    *elements = 1;
    if (ndim > PLAN_MAX_DIMS) return fail_item(c, "has %u dimensions, more than %d", ndim, PLAN_MAX_DIMS);
    for (uint32_t i = 0; i < PLAN_MAX_DIMS; i++) {
        if (i >= ndim && dims[i]) return fail_item(c, "has an extent behind its %u dimensions", ndim);
        if (i < ndim && (!dims[i] || !mul_ok(*elements, dims[i], elements) || *elements > MAX_BYTES))
            return fail_item(c, "has extent %llu as dimension %u", (unsigned long long)dims[i], i);
    }
    return true;
}

static bool check_buffer(Check *c, const PlanBuffer *b)
{
    const PlanInfo *o = c->p->info;
    uint64_t elements, end, ninstrs = c->p->count[PLAN_INSTRS];
    if (!name_ok(c, b->name) || !below(c, "dtype", b->dtype, DTYPE_COUNT) ||
        !below(c, "arena", b->arena, ARENA_COUNT) || !shape_elements(c, b->ndim, b->dims, &elements))
        return false;
    uint64_t item = (uint64_t)dtype_bytes((DType)b->dtype);
    if (elements * item != b->bytes)
        return fail_item(c, "'%s' has %llu elements of %s in %llu bytes", plan_str(c->p, b->name),
                         (unsigned long long)elements, dtype_name((DType)b->dtype), (unsigned long long)b->bytes);
    if (b->offset % item)
        return fail_item(c, "lies at offset %llu, which its dtype forbids", (unsigned long long)b->offset);
    if (!add_ok(b->offset, b->bytes, &end) || end > o->arena_bytes[b->arena])
        return fail_item(c, "'%s' (offset %llu, %llu bytes) leaves its arena of %llu bytes", plan_str(c->p, b->name),
                         (unsigned long long)b->offset, (unsigned long long)b->bytes,
                         (unsigned long long)o->arena_bytes[b->arena]);
    if (b->arena == ARENA_PERSIST ? b->first != 0 || b->last != UINT32_MAX : b->first > b->last || b->last >= ninstrs)
        return fail_item(c, "lives from instruction %u to %u of %llu", b->first, b->last, (unsigned long long)ninstrs);
    return true;
}

// A rank-0 or shaped value of the persistent arena that inputs, outputs, parameters and states refer to.
static const PlanBuffer *persistent(Check *c, const char *field, uint32_t id)
{
    if (!below(c, field, id, c->p->count[PLAN_BUFFERS])) return NULL;
    const PlanBuffer *b = &c->p->buffers[id];
    if (b->arena == ARENA_PERSIST) return b;
    fail_item(c, "has %s '%s' outside the persistent arena", field, plan_str(c->p, b->name));
    return NULL;
}

static bool check_input(Check *c, const PlanInput *in)
{
    const PlanInfo *o = c->p->info;
    const PlanBuffer *b;
    if (!name_ok(c, in->name) || !(b = persistent(c, "buffer", in->buffer)) || !below(c, "shift", in->shift, 2) ||
        !zero(c, in->pad))
        return false;
    if (in->limit == 0 || in->limit > INT32_MAX) return fail_item(c, "has limit %u", in->limit);
    if (b->dtype != I32 || b->bytes != (uint64_t)o->seq * o->micro_batch * 4)
        return fail_item(c, "has %llu bytes of %s, not i32 [%u, %u]", (unsigned long long)b->bytes,
                         dtype_name((DType)b->dtype), o->micro_batch, o->seq);
    return true;
}

static bool check_output(Check *c, const PlanOutput *out)
{
    const PlanBuffer *b;
    if (!name_ok(c, out->name) || !(b = persistent(c, "buffer", out->buffer))) return false;
    if ((b->dtype != F32 && b->dtype != F64) || b->bytes != (uint64_t)dtype_bytes((DType)b->dtype))
        return fail_item(c, "is not one f32 or f64 number");
    return true;
}

static bool check_scalar(Check *c, const PlanScalar *s)
{
    if (!name_ok(c, s->name) || !below(c, "slot", s->slot, MAX_SLOTS)) return false;
    return isfinite(s->standard) || fail_item(c, "'%s' has no finite value", plan_str(c->p, s->name));
}

static bool check_param(Check *c, const PlanParam *q)
{
    const PlanBuffer *b, *g = NULL;
    uint64_t elements;
    if (!name_ok(c, q->name) || !str_ok(c, "aliases", q->aliases) || !(b = persistent(c, "buffer", q->buffer)) ||
        !shape_elements(c, q->ndim, q->dims, &elements) || !below(c, "init", q->init, 2) ||
        !below(c, "decay", q->decay, 2) || !zero(c, q->pad))
        return false;
    const char *name = plan_str(c->p, q->name);
    if (!is_float(b->dtype) || elements * (uint64_t)dtype_bytes((DType)b->dtype) != b->bytes)
        return fail_item(c, "'%s' has %llu elements, its buffer %llu bytes of %s", name, (unsigned long long)elements,
                         (unsigned long long)b->bytes, dtype_name((DType)b->dtype));
    if (!isfinite(q->init_value) || (q->init == INIT_NORMAL && q->init_value < 0))
        return fail_item(c, "'%s' has a bad initial value", name);
    if (q->grad == UINT32_MAX) return true;
    if (!(g = persistent(c, "grad", q->grad))) return false;
    if ((g->dtype != F32 && g->dtype != F64) || elements * (uint64_t)dtype_bytes((DType)g->dtype) != g->bytes)
        return fail_item(c, "'%s' has %llu elements, its gradient %llu bytes of %s", name, (unsigned long long)elements,
                         (unsigned long long)g->bytes, dtype_name((DType)g->dtype));
    return true;
}

static bool check_state(Check *c, const PlanState *s)
{
    const PlanBuffer *b;
    if (!name_ok(c, s->name) || !below(c, "param", s->param, c->p->count[PLAN_PARAMS]) ||
        !(b = persistent(c, "buffer", s->buffer)))
        return false;
    const PlanBuffer *q = &c->p->buffers[c->p->params[s->param].buffer];
    uint64_t elements = q->bytes / (uint64_t)dtype_bytes((DType)q->dtype);
    if (!is_float(b->dtype) || b->bytes != elements * (uint64_t)dtype_bytes((DType)b->dtype))
        return fail_item(c, "'%s' has not the %llu elements of its parameter", plan_str(c->p, s->name),
                         (unsigned long long)elements);
    return true;
}

static bool check_source(Check *c, const PlanSource *s)
{
    if (!str_ok(c, "text", s->text)) return false;
    return s->lang == c->p->info->target ||
           fail_item(c, "has language %u, not the plan's %u", s->lang, c->p->info->target);
}

static bool is_identifier(const char *s)
{
    if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_')) return false;
    for (; *s; s++)
        if (!((*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || (*s >= '0' && *s <= '9') || *s == '_'))
            return false;
    return true;
}

static bool check_kernel(Check *c, const PlanKernel *k)
{
    const PlanInfo *o = c->p->info;
    if (!name_ok(c, k->name) || !line_ok(c, "label", k->label) ||
        !below(c, "source", k->source, c->p->count[PLAN_SOURCES]) || !below(c, "nargs", k->nargs, MAX_ARGS + 1))
        return false;
    if (!is_identifier(plan_str(c->p, k->name))) return fail_item(c, "has a name that is no C identifier");
    if (k->rows > (uint64_t)INT64_MAX / 4 || k->grain == 0 || k->grain > (uint64_t)INT64_MAX / 4)
        return fail_item(c, "has %llu rows at grain %llu", (unsigned long long)k->rows, (unsigned long long)k->grain);
    if (k->scratch > o->scratch_bytes)
        return fail_item(c, "wants %llu bytes of scratch, the plan has %llu", (unsigned long long)k->scratch,
                         (unsigned long long)o->scratch_bytes);
    if (o->target == TARGET_CPU) return true;
    uint64_t threads = (uint64_t)k->block[0] * k->block[1];
    if (!k->grid[0] || !k->grid[1] || !k->grid[2] || !threads || threads > 1024 || !k->block[2] ||
        threads * k->block[2] > 1024)
        return fail_item(c, "has grid %u x %u x %u, block %u x %u x %u", k->grid[0], k->grid[1], k->grid[2],
                         k->block[0], k->block[1], k->block[2]);
    return true;
}

// Elements from the first to behind the last that an operand of rows x cols touches; false on overflow.
static bool operand_extent(uint64_t rows, uint64_t cols, uint64_t ld, const PlanGemm *g, const int64_t *stride,
                           uint64_t *extent)
{
    uint64_t part;
    if (!mul_ok(rows - 1, ld, extent) || !add_ok(*extent, cols, extent)) return false;
    for (uint32_t i = 0; i < g->nbatch; i++)
        if (!mul_ok(g->batch[i] - 1, (uint64_t)stride[i], &part) || !add_ok(*extent, part, extent)) return false;
    return *extent <= MAX_BYTES;
}

// Every element of c is written once: sorted by stride, each dimension steps over all smaller ones.
static bool result_is_disjoint(const PlanGemm *g)
{
    uint64_t stride[PLAN_MAX_BATCH + 2], extent[PLAN_MAX_BATCH + 2], covered = 1;
    uint32_t n = 0;
    stride[n] = 1, extent[n++] = g->n;
    stride[n] = g->ldc, extent[n++] = g->m;
    for (uint32_t i = 0; i < g->nbatch; i++) stride[n] = (uint64_t)g->stride_c[i], extent[n++] = g->batch[i];
    for (uint32_t done = 0; done < n; done++) {
        uint32_t least = done;
        for (uint32_t i = done; i < n; i++)
            if (extent[i] == 1 || (extent[least] != 1 && stride[i] < stride[least])) least = i;
        uint64_t s = stride[least], e = extent[least];
        stride[least] = stride[done], extent[least] = extent[done];
        if (e == 1) continue;
        if (s < covered) return false;
        covered += (e - 1) * s; // bounded: the whole extent of c was
    }
    return true;
}

static bool check_gemm_batch(Check *c, const PlanGemm *g)
{
    if (g->nbatch > PLAN_MAX_BATCH) return fail_item(c, "has %u batch dimensions", g->nbatch);
    uint64_t total = 1;
    for (uint32_t i = 0; i < PLAN_MAX_BATCH; i++) {
        bool used = i < g->nbatch;
        if (used ? g->batch[i] == 0 || g->stride_a[i] < 0 || g->stride_b[i] < 0 || g->stride_c[i] < 0
                 : g->batch[i] || g->stride_a[i] || g->stride_b[i] || g->stride_c[i])
            return fail_item(c, "has batch dimension %u of %llu with strides %lld, %lld, %lld", i,
                             (unsigned long long)g->batch[i], (long long)g->stride_a[i], (long long)g->stride_b[i],
                             (long long)g->stride_c[i]);
        if (used && (!mul_ok(total, g->batch[i], &total) || total > INT32_MAX))
            return fail_item(c, "has too large a batch");
    }
    return true;
}

static bool check_gemm(Check *c, const PlanGemm *g)
{
    uint64_t extent;
    uint64_t cols_a = g->trans_a ? g->m : g->k, cols_b = g->trans_b ? g->k : g->n;
    if (!below(c, "trans_a", g->trans_a, 2) || !below(c, "trans_b", g->trans_b, 2) || !below(c, "beta", g->beta, 3) ||
        !zero(c, g->pad) || !check_gemm_batch(c, g))
        return false;
    if (!is_float(g->dtype)) return fail_item(c, "has dtype %u", g->dtype);
    const uint64_t sizes[] = {g->m, g->n, g->k, g->lda, g->ldb, g->ldc};
    for (size_t i = 0; i < countof(sizes); i++)
        if (sizes[i] == 0 || sizes[i] > INT32_MAX)
            return fail_item(c, "has %s %llu", &"m\0\0\0n\0\0\0k\0\0\0lda\0ldb\0ldc"[4 * i],
                             (unsigned long long)sizes[i]);
    if (g->lda < cols_a || g->ldb < cols_b || g->ldc < g->n)
        return fail_item(c, "has leading dimensions %llu, %llu, %llu below its rows of %llu, %llu, %llu",
                         (unsigned long long)g->lda, (unsigned long long)g->ldb, (unsigned long long)g->ldc,
                         (unsigned long long)cols_a, (unsigned long long)cols_b, (unsigned long long)g->n);
    if (!operand_extent(g->m, g->n, g->ldc, g, g->stride_c, &extent)) return fail_item(c, "is larger than any machine");
    return result_is_disjoint(g) || fail_item(c, "writes an element of its result twice");
}

static bool check_arg(Check *c, const PlanArg *a)
{
    if (!below(c, "buffer", a->buffer, c->p->count[PLAN_BUFFERS]) || !below(c, "written", a->written, 3)) return false;
    const PlanBuffer *b = &c->p->buffers[a->buffer];
    if (a->offset >= b->bytes || a->offset % (uint64_t)dtype_bytes((DType)b->dtype))
        return fail_item(c, "has offset %llu in '%s' of %llu bytes", (unsigned long long)a->offset,
                         plan_str(c->p, b->name), (unsigned long long)b->bytes);
    return true;
}

static bool check_operand(Check *c, const PlanGemm *g, int which, const PlanArg *a)
{
    const PlanBuffer *b = &c->p->buffers[a->buffer];
    uint64_t extent, item = (uint64_t)dtype_bytes((DType)b->dtype);
    uint64_t rows[] = {g->trans_a ? g->k : g->m, g->trans_b ? g->n : g->k, g->m};
    uint64_t cols[] = {g->trans_a ? g->m : g->k, g->trans_b ? g->k : g->n, g->n};
    uint64_t ld[] = {g->lda, g->ldb, g->ldc};
    const int64_t *stride[] = {g->stride_a, g->stride_b, g->stride_c};
    if (!is_float(b->dtype) || (g->dtype == F64) != (b->dtype == F64))
        return fail_item(c, "has operand %c of dtype %s in a gemm of %s", "abc"[which], dtype_name((DType)b->dtype),
                         dtype_name((DType)g->dtype));
    if ((a->written != 0) != (which == 2)) return fail_item(c, "is a gemm that writes operand %c", "abc"[which]);
    if (!operand_extent(rows[which], cols[which], ld[which], g, stride[which], &extent) ||
        extent > (b->bytes - a->offset) / item)
        return fail_item(c, "has operand %c of %llu x %llu beyond the %llu bytes of '%s'", "abc"[which],
                         (unsigned long long)rows[which], (unsigned long long)cols[which],
                         (unsigned long long)b -> bytes, plan_str(c->p, b->name));
    return true;
}

static bool check_alive(Check *c, const PlanInstr *in)
{
    for (uint32_t i = 0; i < in->nargs; i++) {
        const PlanBuffer *b = &c->p->buffers[c->p->args[in->first_arg + i].buffer];
        if (c->item < b->first || c->item > b->last)
            return fail_item(c, "uses '%s', which lives from instruction %u to %u", plan_str(c->p, b->name), b->first,
                             b->last);
    }
    return true;
}

static bool check_instr(Check *c, const PlanInstr *in)
{
    const Plan *p = c->p;
    uint64_t nargs = p->count[PLAN_ARGS];
    if (!below(c, "kind", in->kind, 2) || !line_ok(c, "label", in->label)) return false;
    if (!below(c, "index", in->index, p->count[in->kind == INSTR_GEMM ? PLAN_GEMMS : PLAN_KERNELS])) return false;
    uint32_t want = in->kind == INSTR_GEMM ? 3 : p->kernels[in->index].nargs;
    if (in->nargs != want) return fail_item(c, "has %u arguments, not %u", in->nargs, want);
    if (in->first_arg > nargs || in->nargs > nargs - in->first_arg)
        return fail_item(c, "has arguments %u and %u more of %llu", in->first_arg, in->nargs,
                         (unsigned long long)nargs);
    if (in->kind == INSTR_GEMM)
        for (int i = 0; i < 3; i++)
            if (!check_operand(c, &p->gemms[in->index], i, &p->args[in->first_arg + (uint32_t)i])) return false;
    return check_alive(c, in);
}

static bool check_segment(Check *c, const PlanSegment *s)
{
    const Plan *p = c->p;
    uint64_t expected = 0;
    if (!name_ok(c, s->name) || !below(c, "id", s->id, SEG_COUNT)) return false;
    if (c->item) expected = (uint64_t)s[-1].first_instr + s[-1].count;
    if (s->first_instr != expected || s->count > p->count[PLAN_INSTRS] - expected)
        return fail_item(c, "has instructions %u and %u more, where %llu begins of %llu", s->first_instr, s->count,
                         (unsigned long long)expected, (unsigned long long)p->count[PLAN_INSTRS]);
    if (c->item + 1 == p->count[PLAN_SEGMENTS] && expected + s->count != p->count[PLAN_INSTRS])
        return fail_item(c, "is the last and leaves %llu instructions over",
                         (unsigned long long)(p->count[PLAN_INSTRS] - expected - s->count));
    if (s->id == SEG_F || s->id == SEG_B) return true;
    for (uint64_t i = 0; i < c->item; i++)
        if (p->segments[i].id == s->id)
            return fail_item(c, "is a second segment '%s'", plan_segment_name((SegmentId)s->id));
    return true;
}

static bool check_step(Check *c, const PlanStep *s)
{
    const Plan *p = c->p;
    if (!below(c, "segment", s->segment, p->count[PLAN_SEGMENTS]) ||
        !below(c, "micro_batch", s->micro_batch, p->info->accum) ||
        !below(c, "slot", s->slot, max_of(p->info->arena_slots[ARENA_SAVED], 1u)) || !zero(c, s->pad))
        return false;
    uint32_t id = p->segments[s->segment].id;
    return id == SEG_F || id == SEG_B || fail_item(c, "runs segment '%s'", plan_segment_name((SegmentId)id));
}

static bool check_train(Check *c, const PlanTrain *t)
{
    if (!line_ok(c, "key", t->key) || !str_ok(c, "value", t->value)) return false;
    return t->key != 0 || fail_item(c, "has no key");
}

// ---- what holds between items

// Micro-batches ascend in every segment, and all run; B finds in its slot what F of the same micro-batch left.
static bool check_schedule(Check *c)
{
    const Plan *p = c->p;
    uint64_t n = p->count[PLAN_SCHEDULE], nsegments = p->count[PLAN_SEGMENTS];
    uint32_t *next = xcalloc(nsegments, sizeof *next);
    uint32_t *occupant = xcalloc(max_of(p->info->arena_slots[ARENA_SAVED], 1u), sizeof *occupant); // micro-batch + 1
    bool ok = true;
    c->section = "schedule";
    for (c->item = 0; ok && c->item < n; c->item++) {
        const PlanStep *s = &p->schedule[c->item];
        if (s->micro_batch != next[s->segment])
            ok = fail_item(c, "runs micro-batch %u where %u is due", s->micro_batch, next[s->segment]);
        else if (p->segments[s->segment].id == SEG_F)
            occupant[s->slot] = s->micro_batch + 1;
        else if (p->info->arena_bytes[ARENA_SAVED] && occupant[s->slot] != s->micro_batch + 1)
            ok = fail_item(c, "runs micro-batch %u, whose values are not in slot %u", s->micro_batch, s->slot);
        next[s->segment]++;
    }
    for (uint64_t i = 0; ok && i < nsegments; i++)
        if ((p->segments[i].id == SEG_F || p->segments[i].id == SEG_B) && next[i] != p->info->accum)
            ok = fail(c, "the schedule runs segment %llu for %u of %u micro-batches", (unsigned long long)i, next[i],
                      p->info->accum);
    free(next);
    free(occupant);
    return ok;
}

// Values of the work arena do not outlive their segment, saved values live in F and B only.
static bool check_lifetimes(Check *c)
{
    const Plan *p = c->p;
    uint32_t *segment = xcalloc(p->count[PLAN_INSTRS], sizeof *segment);
    bool ok = true;
    for (uint32_t i = 0; i < p->count[PLAN_SEGMENTS]; i++)
        for (uint32_t j = 0; j < p->segments[i].count; j++) segment[p->segments[i].first_instr + j] = i;
    c->section = "buffers";
    for (c->item = 0; ok && c->item < p->count[PLAN_BUFFERS]; c->item++) {
        const PlanBuffer *b = &p->buffers[c->item];
        if (b->arena == ARENA_PERSIST) continue;
        uint32_t from = segment[b->first], to = segment[b->last];
        uint32_t id_from = p->segments[from].id, id_to = p->segments[to].id;
        if (b->arena == ARENA_WORK ? from != to
                                   : (id_from != SEG_F && id_from != SEG_B) || (id_to != SEG_F && id_to != SEG_B))
            ok = fail_item(c, "'%s' lives from segment %s to %s, which its arena does not", plan_str(p, b->name),
                           plan_segment_name((SegmentId)id_from), plan_segment_name((SegmentId)id_to));
    }
    free(segment);
    return ok;
}

typedef struct {
    uint32_t arena, id;
    uint64_t start, end;
} Range;

static int by_place(const void *x, const void *y)
{
    const Range *a = x, *b = y;
    if (a->arena != b->arena) return a->arena < b->arena ? -1 : 1;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static Range range_of(const Plan *p, uint32_t id)
{
    const PlanBuffer *b = &p->buffers[id];
    return (Range){b->arena, id, b->offset, b->offset + b->bytes};
}

// b may take over the bytes of a in a's last instruction (an op in place), if a was there before.
static bool takes_over(const PlanBuffer *a, const PlanBuffer *b)
{
    return a->last == b->first && a->first < b->first;
}

static bool alive_together(const PlanBuffer *a, const PlanBuffer *b)
{
    return a->first <= b->last && b->first <= a->last && !takes_over(a, b) && !takes_over(b, a);
}

static bool check_overlap(Check *c, Range *r, size_t n, bool always)
{
    const Plan *p = c->p;
    qsort(r, n, sizeof *r, by_place);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n && r[j].arena == r[i].arena && r[j].start < r[i].end; j++) {
            const PlanBuffer *a = &p->buffers[r[i].id], *b = &p->buffers[r[j].id];
            if (always || alive_together(a, b))
                return fail(c, "buffers[%u] '%s' and buffers[%u] '%s' overlap at offset %llu while both are in use",
                            r[i].id, plan_str(p, a->name), r[j].id, plan_str(p, b->name),
                            (unsigned long long)r[j].start);
        }
    return true;
}

static bool check_places(Check *c)
{
    const Plan *p = c->p;
    uint64_t nparams = p->count[PLAN_PARAMS], nstates = p->count[PLAN_STATES], n = 0;
    Range *r = xcalloc(p->count[PLAN_BUFFERS] + 2 * nparams + nstates, sizeof *r);
    for (uint32_t i = 0; i < p->count[PLAN_BUFFERS]; i++)
        if (p->buffers[i].arena != ARENA_PERSIST) r[n++] = range_of(p, i);
    bool ok = check_overlap(c, r, n, false);
    n = 0;
    for (uint64_t i = 0; i < nparams; i++) {
        r[n++] = range_of(p, p->params[i].buffer);
        if (p->params[i].grad != UINT32_MAX) r[n++] = range_of(p, p->params[i].grad);
    }
    for (uint64_t i = 0; i < nstates; i++) r[n++] = range_of(p, p->states[i].buffer);
    ok = ok && check_overlap(c, r, n, true);
    free(r);
    return ok;
}

typedef struct {
    const char *name;
    uint64_t item;
} Named;

static int by_name(const void *x, const void *y)
{
    return strcmp(((const Named *)x)->name, ((const Named *)y)->name);
}

// No two records of a section, whose first field is the name, have the same one.
static bool check_unique(Check *c, enum PlanSectionId id, const void *records)
{
    uint64_t n = c->p->count[id];
    Named *names = xcalloc(n, sizeof *names);
    bool ok = true;
    for (uint64_t i = 0; i < n; i++) {
        Str s;
        memcpy(&s, (const char *)records + i * sections[id].item, sizeof s);
        names[i] = (Named){plan_str(c->p, s), i};
    }
    qsort(names, n, sizeof *names, by_name);
    for (uint64_t i = 1; ok && i < n; i++)
        if (strcmp(names[i - 1].name, names[i].name) == 0)
            ok = fail(c, "%s[%llu] and %s[%llu] are both named '%s'", sections[id].name,
                      (unsigned long long)names[i - 1].item, sections[id].name, (unsigned long long)names[i].item,
                      names[i].name);
    free(names);
    return ok;
}

#define CHECK_ALL(c, id, array, check)                                                                                 \
    ((c)->section = sections[id].name, (c)->item = 0, true);                                                           \
    for (; ok && (c)->item < (c)->p->count[id]; (c)->item++) ok = check(c, &(c)->p->array[(c)->item])

static bool check_items(Check *c)
{
    bool ok = true;
    ok = ok && CHECK_ALL(c, PLAN_BUFFERS, buffers, check_buffer);
    ok = ok && CHECK_ALL(c, PLAN_INPUTS, inputs, check_input);
    ok = ok && CHECK_ALL(c, PLAN_OUTPUTS, outputs, check_output);
    ok = ok && CHECK_ALL(c, PLAN_SCALARS, scalars, check_scalar);
    ok = ok && CHECK_ALL(c, PLAN_PARAMS, params, check_param);
    ok = ok && CHECK_ALL(c, PLAN_STATES, states, check_state);
    ok = ok && CHECK_ALL(c, PLAN_SOURCES, sources, check_source);
    ok = ok && CHECK_ALL(c, PLAN_KERNELS, kernels, check_kernel);
    ok = ok && CHECK_ALL(c, PLAN_GEMMS, gemms, check_gemm);
    ok = ok && CHECK_ALL(c, PLAN_ARGS, args, check_arg);
    ok = ok && CHECK_ALL(c, PLAN_INSTRS, instrs, check_instr);
    ok = ok && CHECK_ALL(c, PLAN_SEGMENTS, segments, check_segment);
    ok = ok && CHECK_ALL(c, PLAN_SCHEDULE, schedule, check_step);
    ok = ok && CHECK_ALL(c, PLAN_TRAIN, train, check_train);
    return ok;
}

bool plan_check(Plan *p, const void *bytes, uint64_t size, char *message, size_t message_size)
{
    Check c = {.p = p, .message = message, .message_size = message_size, .section = "info"};
    PlanSection table[PLAN_SECTIONS];
    *p = (Plan){.base = bytes, .size = size};
    if (!check_header(&c) || !check_table(&c, table)) return false;
    for (int i = 0; i < PLAN_SECTIONS; i++)
        if (table[i].count >= UINT32_MAX && i != PLAN_STRINGS)
            return fail(&c, "section %s has %llu records", sections[i].name, (unsigned long long)table[i].count);
    set_sections(p, table);
    if (!check_strings(&c) || !check_info(&c) || !check_items(&c)) return false;
    if (p->count[PLAN_SEGMENTS] == 0 && p->count[PLAN_INSTRS] > 0)
        return fail(&c, "the instructions belong to no segment");
    return check_unique(&c, PLAN_OUTPUTS, p->outputs) && check_unique(&c, PLAN_SCALARS, p->scalars) &&
           check_unique(&c, PLAN_PARAMS, p->params) && check_unique(&c, PLAN_TRAIN, p->train) && check_schedule(&c) &&
           check_lifetimes(&c) && check_places(&c);
}

// ---- files

bool plan_open(Plan *p, const char *path, char *message, size_t message_size)
{
    Check c = {.p = p, .message = message, .message_size = message_size};
    struct stat st;
    *p = (Plan){.path = path};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(&c, "%s", strerror(errno));
    void *bytes = MAP_FAILED;
    bool regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (regular && st.st_size > 0) bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    int saved = errno;
    close(fd);
    if (!regular) return fail(&c, "not a regular file");
    if (st.st_size == 0) return fail(&c, "the file is empty");
    if (bytes == MAP_FAILED) return fail(&c, "cannot be mapped: %s", strerror(saved));
    bool ok = plan_check(p, bytes, (uint64_t)st.st_size, message, message_size);
    p->path = path;
    if (!ok) plan_close(p);
    return ok;
}

void plan_close(Plan *p)
{
    if (p->base) munmap((void *)(uintptr_t)p->base, p->size);
    *p = (Plan){0};
}
