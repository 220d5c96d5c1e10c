// plan_check_code.c: checks the records that a plan runs: kernels, GEMMs, collectives; a stage's arguments,
// instructions, segments, transfers and schedule.
//
// A GEMM and a collective stay in their operands on every rank; a kernel writes no fewer elements than it has rows. The
// rules of plan_check.c hold here too.
#include "plan_check.h"

// ---- what all stages share

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

bool plan_operand_extent(const PlanGemm *g, int which, uint64_t *extent)
{
    uint64_t rows[] = {g->trans_a ? g->k : g->m, g->trans_b ? g->n : g->k, g->m};
    uint64_t cols[] = {g->trans_a ? g->m : g->k, g->trans_b ? g->k : g->n, g->n};
    uint64_t ld[] = {g->lda, g->ldb, g->ldc};
    const int64_t *stride[] = {g->stride_a, g->stride_b, g->stride_c};
    return operand_extent(rows[which], cols[which], ld[which], g, stride[which], extent);
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
    if (!plan_operand_extent(g, 2, &extent)) return fail_item(c, "is larger than any machine");
    return result_is_disjoint(g) || fail_item(c, "writes an element of its result twice");
}

static bool check_part(Check *c, const PlanPart *a)
{
    uint64_t elements;
    if (a->outer && a->inner && mul_ok(a->outer, a->inner, &elements) && elements <= MAX_BYTES) return true;
    return fail_item(c, "has %llu x %llu elements", (unsigned long long)a->outer, (unsigned long long)a->inner);
}

static bool check_coll(Check *c, const PlanColl *a)
{
    const Plan *p = c->p;
    uint64_t n = p->count[PLAN_PARTS], elements;
    if (!below(c, "kind", a->kind, 3) || !below(c, "reduce", a->reduce, 3) ||
        !below(c, "dtype", a->dtype, DTYPE_COUNT) || !below(c, "group", a->group, p->count[PLAN_GROUPS]) ||
        !line_ok(c, "reason", a->why))
        return false;
    if (a->first_part > n || a->nparts > n - a->first_part || !a->nparts || a->nparts > MAX_ARGS / 2)
        return fail_item(c, "has parts %u and %u more of %llu", a->first_part, a->nparts, (unsigned long long)n);
    if (a->kind != COLL_ALL_GATHER && !is_float(a->dtype) && a->dtype != I32)
        return fail_item(c, "adds numbers of dtype %s", dtype_name((DType)a->dtype));
    for (uint32_t i = 0; i < a->nparts; i++) {
        const PlanPart *part = &p->parts[a->first_part + i];
        if (!mul_ok(part->outer * part->inner, p->groups[a->group].size, &elements) || elements > MAX_BYTES)
            return fail_item(c, "is larger than any machine");
    }
    return true;
}

// ---- one stage

static bool check_arg(Check *c, const PlanArg *a)
{
    const Plan *p = c->p;
    uint64_t reach = 0;
    if (!below(c, "buffer", a->buffer, p->count[PLAN_BUFFERS]) || !below(c, "written", a->written, 3) ||
        !below(c, "group", a->group, p->count[PLAN_GROUPS] + 1) || !zero(c, a->pad))
        return false;
    const PlanBuffer *b = &p->buffers[a->buffer];
    uint64_t item = (uint64_t)dtype_bytes((DType)b->dtype);
    if (!a->group && a->stride) return fail_item(c, "has a stride and no group");
    if (a->group) {
        const PlanGroup *g = &p->groups[a->group - 1];
        if (g->mesh & MESH_PP && !(g->stages >> p->stage & 1))
            return fail_item(c, "depends on the place in group %u, which leaves its stage out", a->group - 1);
        if (!mul_ok(a->stride, g->size - 1, &reach)) reach = UINT64_MAX;
    }
    if (a->offset >= b->bytes || reach >= b->bytes - a->offset || a->offset % item || a->stride % item)
        return fail_item(c, "has offset %llu in '%s' of %llu bytes",
                         (unsigned long long)min_of(reach, UINT64_MAX - a->offset) + a->offset, plan_str(p, b->name),
                         (unsigned long long)b->bytes);
    return true;
}

static bool check_operand(Check *c, const PlanGemm *g, int which, const PlanArg *a)
{
    const PlanBuffer *b = &c->p->buffers[a->buffer];
    uint64_t extent, item = (uint64_t)dtype_bytes((DType)b->dtype);
    if (!is_float(b->dtype) || (g->dtype == F64) != (b->dtype == F64))
        return fail_item(c, "has operand %c of dtype %s in a gemm of %s", "abc"[which], dtype_name((DType)b->dtype),
                         dtype_name((DType)g->dtype));
    if ((a->written != 0) != (which == 2)) return fail_item(c, "is a gemm that writes operand %c", "abc"[which]);
    if (!plan_operand_extent(g, which, &extent) || extent > (b->bytes - arg_last_offset(c->p, a)) / item)
        return fail_item(c, "has operand %c beyond the %llu bytes of '%s' at offset %llu", "abc"[which],
                         (unsigned long long)b -> bytes, plan_str(c->p, b->name), (unsigned long long)a -> offset);
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
static bool check_kernel_call(Check *c, const PlanInstr *in)
{
    const Plan *p = c->p;
    const PlanKernel *k = &p->kernels[in->index];
    uint64_t most = 0;
    if (k->scratch > p->stages[p->stage].scratch_bytes)
        return fail_item(c, "wants %llu bytes of scratch, its stage has %llu", (unsigned long long)k->scratch,
                         (unsigned long long)p->stages[p->stage].scratch_bytes);
    for (uint32_t i = 0; i < in->nargs; i++) {
        const PlanArg *a = &p->args[in->first_arg + i];
        const PlanBuffer *b = &p->buffers[a->buffer];
        if (a->written)
            most = max_of(most, (b->bytes - arg_last_offset(p, a)) / (uint64_t)dtype_bytes((DType)b->dtype));
    }
    if (k->rows <= most) return true;
    return fail_item(c, "runs %llu rows of kernel '%s', which writes %llu elements", (unsigned long long)k->rows,
                     plan_str(p, k->name), (unsigned long long)most);
}

// One side of a part: the dtype, whether it is written, and that it lies in its buffer on every rank.
static bool check_side(Check *c, const PlanInstr *in, uint32_t which, uint64_t elements)
{
    const Plan *p = c->p;
    const PlanArg *a = &p->args[in->first_arg + which];
    const PlanBuffer *b = &p->buffers[a->buffer];
    const PlanColl *coll = &p->colls[in->index];
    if (b->dtype != coll->dtype)
        return fail_item(c, "has '%s' of dtype %s in a collective of %s", plan_str(p, b->name),
                         dtype_name((DType)b->dtype), dtype_name((DType)coll->dtype));
    if ((a->written != 0) != (which % 2 == 1)) return fail_item(c, "is a collective that writes argument %u", which);
    if (elements <= (b->bytes - arg_last_offset(p, a)) / (uint64_t)dtype_bytes((DType)b->dtype)) return true;
    return fail_item(c, "moves %llu elements beyond the %llu bytes of '%s'", (unsigned long long)elements,
                     (unsigned long long)b->bytes, plan_str(p, b->name));
}

static bool check_start(Check *c, const PlanInstr *in)
{
    const Plan *p = c->p;
    const PlanColl *coll = &p->colls[in->index];
    const PlanGroup *g = &p->groups[coll->group];
    if (g->mesh & MESH_PP && !(g->stages >> p->stage & 1))
        return fail_item(c, "starts a collective of group %u, which leaves its stage out", coll->group);
    for (uint32_t i = 0; i < coll->nparts; i++) {
        const PlanPart *part = &p->parts[coll->first_part + i];
        uint64_t share = part->outer * part->inner, all = share * g->size;
        uint64_t in_elements = coll->kind == COLL_REDUCE_SCATTER ? all : share;
        uint64_t out_elements = coll->kind == COLL_ALL_GATHER ? all : share;
        if (!check_side(c, in, 2 * i, in_elements) || !check_side(c, in, 2 * i + 1, out_elements)) return false;
    }
    return true;
}

static bool check_instr(Check *c, const PlanInstr *in)
{
    static const enum PlanSectionId table[] = {PLAN_KERNELS, PLAN_GEMMS, PLAN_COLLS, PLAN_COLLS};
    const Plan *p = c->p;
    uint64_t nargs = p->count[PLAN_ARGS];
    if (!below(c, "kind", in->kind, 4) || !line_ok(c, "label", in->label) || !below(c, "when", in->when, 2))
        return false;
    if (!below(c, "index", in->index, p->count[table[in->kind]])) return false;
    uint32_t want = 0;
    if (in->kind == INSTR_KERNEL) want = p->kernels[in->index].nargs;
    if (in->kind == INSTR_GEMM) want = 3;
    if (in->kind == INSTR_START) want = 2 * p->colls[in->index].nparts;
    if (in->nargs != want) return fail_item(c, "has %u arguments, not %u", in->nargs, want);
    if (in->first_arg > nargs || in->nargs > nargs - in->first_arg)
        return fail_item(c, "has arguments %u and %u more of %llu", in->first_arg, in->nargs,
                         (unsigned long long)nargs);
    if (in->kind == INSTR_KERNEL && !check_kernel_call(c, in)) return false;
    if (in->kind == INSTR_START && !check_start(c, in)) return false;
    if (in->kind == INSTR_GEMM)
        for (int i = 0; i < 3; i++)
            if (!check_operand(c, &p->gemms[in->index], i, &p->args[in->first_arg + (uint32_t)i])) return false;
    return check_alive(c, in);
}

static bool check_segment(Check *c, const PlanSegment *s)
{
    const Plan *p = c->p;
    uint64_t expected = 0;
    if (!name_ok(c, s->name) || !below(c, "id", s->id, SEG_COUNT) || !below(c, "chunk", s->chunk, p->info->chunks))
        return false;
    if (!is_scheduled(s->id) && s->chunk)
        return fail_item(c, "is '%s' of a chunk", plan_segment_name((SegmentId)s->id));
    if (c->item) expected = (uint64_t)s[-1].first_instr + s[-1].count;
    if (s->first_instr != expected || s->count > p->count[PLAN_INSTRS] - expected)
        return fail_item(c, "has instructions %u and %u more, where %llu begins of %llu", s->first_instr, s->count,
                         (unsigned long long)expected, (unsigned long long)p->count[PLAN_INSTRS]);
    if (c->item + 1 == p->count[PLAN_SEGMENTS] && expected + s->count != p->count[PLAN_INSTRS])
        return fail_item(c, "is the last and leaves %llu instructions over",
                         (unsigned long long)(p->count[PLAN_INSTRS] - expected - s->count));
    if (c->item && segment_order(p, s) <= segment_order(p, s - 1))
        return fail_item(c, "'%s' is out of order, or there twice", plan_str(p, s->name));
    for (uint32_t i = 0; i < s->count; i++)
        if (p->instrs[s->first_instr + i].when == WHEN_LAST && s->id != SEG_B && s->id != SEG_W)
            return fail_item(c, "'%s' has an instruction for the last micro-batch only", plan_str(p, s->name));
    return true;
}

static bool check_transfer(Check *c, const PlanTransfer *t)
{
    const Plan *p = c->p;
    if (!below(c, "tag", t->tag, INT32_MAX) || !below(c, "peer", t->peer, p->count[PLAN_STAGES]) ||
        !below(c, "send", t->send, 2) || !below(c, "buffer", t->buffer, p->count[PLAN_BUFFERS]) ||
        !below(c, "chunk", t->chunk, p->info->chunks) || !zero(c, t->pad))
        return false;
    const PlanBuffer *b = &p->buffers[t->buffer];
    uint32_t class_ = class_of(p, b);
    if (t->peer == p->stage) return fail_item(c, "goes from stage %u to itself", t->peer);
    if (t->bytes != b->bytes)
        return fail_item(c, "has %llu bytes, its buffer '%s' %llu", (unsigned long long)t->bytes, plan_str(p, b->name),
                         (unsigned long long)b->bytes);
    if (class_ < CLASS_FB || p->arenas[b->arena].chunk != t->chunk || (!t->send && !is_landing(class_)))
        return fail_item(c, "%s '%s' of class %s, chunk %u", t->send ? "sends" : "receives", plan_str(p, b->name),
                         plan_class_name(class_), p->arenas[b->arena].chunk);
    return true;
}

static bool check_step(Check *c, const PlanStep *s)
{
    const Plan *p = c->p;
    bool run = s->kind == STEP_RUN;
    if (!below(c, "kind", s->kind, 5) || !below(c, "index", s->index, p->count[run ? PLAN_SEGMENTS : PLAN_TRANSFERS]) ||
        !below(c, "micro_batch", s->micro_batch, p->info->accum) || !zero(c, s->pad))
        return false;
    if (run && !is_scheduled(p->segments[s->index].id))
        return fail_item(c, "runs segment '%s'", plan_segment_name((SegmentId)p->segments[s->index].id));
    if (!run && (s->kind == STEP_SEND || s->kind == STEP_SENT) != (p->transfers[s->index].send != 0))
        return fail_item(c, "takes transfer %u for one in the other direction", s->index);
    uint32_t chunk = run ? p->segments[s->index].chunk : p->transfers[s->index].chunk;
    uint32_t slots[SLOT_CLASSES] = {0};
    for (uint64_t i = 2; i < p->count[PLAN_ARENAS]; i++)
        if (p->arenas[i].chunk == chunk) slots[p->arenas[i].class_ - CLASS_FB] = p->arenas[i].slots;
    for (int i = 0; i < SLOT_CLASSES; i++)
        if (s->slots[i] >= max_of(slots[i], 1u))
            return fail_item(c, "names slot %u of class %s, which has %u", s->slots[i],
                             plan_class_name((uint32_t)i + CLASS_FB), slots[i]);
    return true;
}

bool plan_check_shared_code(Check *c)
{
    bool ok = CHECK_ALL(c, PLAN_SOURCES, sources, check_source);
    ok = ok && CHECK_ALL(c, PLAN_KERNELS, kernels, check_kernel);
    ok = ok && CHECK_ALL(c, PLAN_GEMMS, gemms, check_gemm);
    ok = ok && CHECK_ALL(c, PLAN_PARTS, parts, check_part);
    ok = ok && CHECK_ALL(c, PLAN_COLLS, colls, check_coll);
    return ok;
}

bool plan_check_code(Check *c)
{
    const Plan *p = c->p;
    bool ok = CHECK_ALL(c, PLAN_ARGS, args, check_arg);
    ok = ok && CHECK_ALL(c, PLAN_INSTRS, instrs, check_instr);
    ok = ok && CHECK_ALL(c, PLAN_SEGMENTS, segments, check_segment);
    if (ok && p->count[PLAN_SEGMENTS] == 0 && p->count[PLAN_INSTRS] > 0)
        return fail(c, "the instructions belong to no segment");
    ok = ok && CHECK_ALL(c, PLAN_TRANSFERS, transfers, check_transfer);
    ok = ok && CHECK_ALL(c, PLAN_SCHEDULE, schedule, check_step);
    return ok;
}
