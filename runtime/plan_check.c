// plan_check.c: checks every record of a plan by itself, and what it refers to.
//
// One function checks each section; a fault is one sentence that names section, item and numbers. What is checked
// goes beyond memory safety where it is cheap: a buffer is used only while it is alive, a GEMM stays in its operands
// and writes each element once. What cannot be checked is what a kernel's C text does with its arguments.
//
// Traps: all sums and products of numbers from the file go through mul_ok/add_ok or are bounded before. A section's
// check uses only sections that were checked earlier, in the order of plan_check_records.
#include "plan_check.h"
#include <math.h>

enum { MAX_SLOTS = 1 << 16, MAX_ARGS = 4096 };
#define MAX_BYTES ((uint64_t)1 << 46) // of one arena with all its slots, or of one buffer

// ---- tools

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
        !below(c, "decay", q->decay, 2) || !below(c, "reduction key", q->key, 1))  // one rank: partial over nothing
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

// A row writes at least one element that no other row writes, so a kernel has no more rows than that.
static bool check_rows(Check *c, const PlanInstr *in)
{
    const Plan *p = c->p;
    uint64_t rows = p->kernels[in->index].rows, most = 0;
    for (uint32_t i = 0; i < in->nargs; i++) {
        const PlanArg *a = &p->args[in->first_arg + i];
        const PlanBuffer *b = &p->buffers[a->buffer];
        if (a->written) most = max_of(most, (b->bytes - a->offset) / (uint64_t)dtype_bytes((DType)b->dtype));
    }
    if (rows <= most) return true;
    return fail_item(c, "runs %llu rows of kernel '%s', which writes %llu elements", (unsigned long long)rows,
                     plan_str(p, p->kernels[in->index].name), (unsigned long long)most);
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
    if (in->kind == INSTR_KERNEL && !check_rows(c, in)) return false;
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

#define CHECK_ALL(c, id, array, check)                                                                                 \
    ((c)->section = plan_section_name(id), (c)->item = 0, true);                                                       \
    for (; ok && (c)->item < (c)->p->count[id]; (c)->item++) ok = check(c, &(c)->p->array[(c)->item])

bool plan_check_records(Check *c)
{
    c->section = "info";
    bool ok = check_strings(c) && check_info(c);
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
