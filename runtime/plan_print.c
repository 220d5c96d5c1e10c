// plan_print.c: a checked plan as text, section by section, one record a line (picoc --print): first what all stages
// share, then each stage, then the sources.
//
// Buffers are called by name and id (`x#12`), because names need not be unique. The order is that of the
// file, the layout of a line that of the record, so that two prints can be compared with diff. Sources come
// last and whole.
#include "plan.h"
#include <inttypes.h>

static void heading(const Plan *p, FILE *out, enum PlanSectionId id)
{
    fprintf(out, "\n%s (%" PRIu64 ")\n", plan_section_name(id), p->count[id]);
}

static void print_shape(FILE *out, uint32_t ndim, const uint64_t *dims)
{
    fputc('[', out);
    for (uint32_t i = 0; i < ndim; i++) fprintf(out, "%s%" PRIu64, i ? "," : "", dims[i]);
    fputc(']', out);
}

static void print_buffer_name(const Plan *p, FILE *out, uint32_t id)
{
    fprintf(out, "%s#%u", plan_str(p, p->buffers[id].name), id);
}

static void print_arena_name(const Plan *p, FILE *out, uint32_t id)
{
    const PlanArena *a = &p->arenas[id];
    fprintf(out, " %s", plan_class_name(a->class_));
    if (p->info->chunks > 1 && a->class_ >= CLASS_FB) fprintf(out, ".%u", a->chunk);
}

// Text in one line: quotes, backslashes, line ends and control characters escaped.
static void print_quoted(FILE *out, const char *s)
{
    fputc('"', out);
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '\n')
            fputs("\\n", out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < ' ' || c == 127)
            fprintf(out, "\\x%02x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static const char *const schedule_names[] = {"afab", "1f1b", "interleaved", "zb"};
static const char *const factor_names[MESH_FACTORS] = {"group", "kv", "cp", "pp", "dp"};

static void print_mesh(FILE *out, uint32_t bits)
{
    const char *between = "";
    for (int f = MESH_FACTORS; f-- > 0;)
        if (bits >> f & 1) {
            fprintf(out, "%s%s", between, factor_names[f]);
            between = "*";
        }
}

static void print_info(const Plan *p, FILE *out)
{
    const PlanInfo *o = p->info;
    fprintf(out, "plan version %u, %" PRIu64 " bytes\n", PLAN_VERSION, p->size);
    fprintf(out, "  model       %s\n", plan_str(p, o->model));
    fprintf(out, "  config      ");
    print_quoted(out, plan_str(p, o->config));
    fprintf(out, "\n  options     ");
    print_quoted(out, plan_str(p, o->options));
    fprintf(out, "\n  target      %s, %s\n", o->target == TARGET_CUDA ? "cuda" : "cpu", dtype_name((DType)o->dtype));
    fprintf(out, "  batch       seq %u, micro_batch %u, accum %u\n", o->seq, o->micro_batch, o->accum);
    fprintf(out, "  mesh        dp %u, pp %u, cp %u, tp %u (kv %u x group %u); zero %u\n", o->mesh[MESH_AT_DP],
            o->mesh[MESH_AT_PP], o->mesh[MESH_AT_CP], mesh_size(o->mesh, MESH_TP), o->mesh[MESH_AT_KV],
            o->mesh[MESH_AT_GROUP], o->zero);
    fprintf(out, "  schedule    %s, %u chunk%s a stage\n", schedule_names[o->schedule], o->chunks,
            o->chunks > 1 ? "s" : "");
    fprintf(out, "  parameters  %" PRIu64 "\n", o->parameters);
    fprintf(out, "  flops       %.6g a step\n", o->flops_per_step);
}

static void print_groups(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_GROUPS);
    for (uint32_t i = 0; i < p->count[PLAN_GROUPS]; i++) {
        const PlanGroup *g = &p->groups[i];
        fprintf(out, "  G%u ", i);
        print_mesh(out, g->mesh);
        fprintf(out, ", %u ranks", g->size);
        for (uint32_t s = 0; s < p->info->mesh[MESH_AT_PP]; s++)
            if (g->stages >> s & 1) fprintf(out, "%s %u", g->stages & ((UINT64_C(1) << s) - 1) ? "" : ", stages", s);
        fputc('\n', out);
    }
}

static void print_colls(const Plan *p, FILE *out)
{
    static const char *const kinds[] = {"all-reduce", "reduce-scatter", "all-gather"};
    static const char *const reduces[] = {" sum", " max", " min"};
    heading(p, out, PLAN_COLLS);
    for (uint32_t i = 0; i < p->count[PLAN_COLLS]; i++) {
        const PlanColl *c = &p->colls[i];
        fprintf(out, "  c%u %s%s %s over G%u:", i, kinds[c->kind], c->kind == COLL_ALL_GATHER ? "" : reduces[c->reduce],
                dtype_name((DType)c->dtype), c->group);
        for (uint32_t k = 0; k < c->nparts; k++)
            fprintf(out, "%s %" PRIu64 " x %" PRIu64, k ? "," : "", p->parts[c->first_part + k].outer,
                    p->parts[c->first_part + k].inner);
        fputs("  ", out);
        print_quoted(out, plan_str(p, c->why));
        fputc('\n', out);
    }
}

static void print_scalars(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_SCALARS);
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++)
        fprintf(out, "  %s slot %u = %.15g\n", plan_str(p, p->scalars[i].name), p->scalars[i].slot,
                p->scalars[i].standard);
}

static void print_interface(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_INPUTS);
    for (uint64_t i = 0; i < p->count[PLAN_INPUTS]; i++) {
        const PlanInput *in = &p->inputs[i];
        fprintf(out, "  %s -> ", plan_str(p, in->name));
        print_buffer_name(p, out, in->buffer);
        fprintf(out, " shift %u, below %u, ignored as %d\n", in->shift, in->limit, in->ignore);
    }
    heading(p, out, PLAN_OUTPUTS);
    for (uint64_t i = 0; i < p->count[PLAN_OUTPUTS]; i++) {
        fprintf(out, "  %s <- ", plan_str(p, p->outputs[i].name));
        print_buffer_name(p, out, p->outputs[i].buffer);
        fputc('\n', out);
    }
}

// Its axes: extent, and where it is split: positions of a rank and over what.
static void print_axes(const Plan *p, FILE *out, const PlanParam *q)
{
    fprintf(out, " axes");
    for (uint32_t i = 0; i < q->naxes; i++) {
        const PlanParamAxis *a = &p->param_axes[q->first_axis + i];
        fprintf(out, " %" PRIu64, a->extent);
        if (!a->mesh && a->local == a->extent) continue;
        fprintf(out, "/%" PRIu64 ":", a->local);
        print_mesh(out, a->mesh);
    }
}

static void print_params(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_PARAMS);
    for (uint64_t i = 0; i < p->count[PLAN_PARAMS]; i++) {
        const PlanParam *q = &p->params[i];
        fprintf(out, "  %s ", plan_str(p, q->name));
        print_shape(out, q->ndim, q->dims);
        if (q->naxes) print_axes(p, out, q);
        fprintf(out, " in ");
        print_buffer_name(p, out, q->buffer);
        if (q->grad != UINT32_MAX) {
            fprintf(out, " gradient ");
            print_buffer_name(p, out, q->grad);
        }
        fprintf(out, " %s %.9g%s", q->init == INIT_NORMAL ? "normal" : "constant", q->init_value,
                q->decay ? " decay" : "");
        if (q->key) fprintf(out, " reduced over G%u", q->key - 1);
        if (!q->owner) fprintf(out, " saved elsewhere");
        if (q->aliases) {
            fprintf(out, " also ");
            print_quoted(out, plan_str(p, q->aliases));
        }
        fputc('\n', out);
    }
    heading(p, out, PLAN_STATES);
    for (uint64_t i = 0; i < p->count[PLAN_STATES]; i++) {
        const PlanState *s = &p->states[i];
        fprintf(out, "  %s of %s in ", plan_str(p, s->name), plan_str(p, p->params[s->param].name));
        print_buffer_name(p, out, s->buffer);
        fputc('\n', out);
    }
}

static void print_arenas(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_ARENAS);
    for (uint32_t i = 0; i < p->count[PLAN_ARENAS]; i++) {
        const PlanArena *a = &p->arenas[i];
        fputc(' ', out);
        print_arena_name(p, out, i);
        fprintf(out, " %" PRIu64 " bytes x %u\n", a->bytes, a->slots);
    }
}

static void print_buffers(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_BUFFERS);
    for (uint32_t i = 0; i < p->count[PLAN_BUFFERS]; i++) {
        const PlanBuffer *b = &p->buffers[i];
        fputs("  ", out);
        print_buffer_name(p, out, i);
        fprintf(out, " %s", dtype_name((DType)b->dtype));
        print_shape(out, b->ndim, b->dims);
        print_arena_name(p, out, b->arena);
        fprintf(out, "+%" PRIu64 " %" PRIu64 " bytes", b->offset, b->bytes);
        if (b->last != UINT32_MAX) fprintf(out, " alive %u..%u", b->first, b->last);
        fputc('\n', out);
    }
}

static void print_kernels(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_KERNELS);
    for (uint32_t i = 0; i < p->count[PLAN_KERNELS]; i++) {
        const PlanKernel *k = &p->kernels[i];
        fprintf(out, "  k%u %s \"%s\" source %u, %u args, ", i, plan_str(p, k->name), plan_str(p, k->label), k->source,
                k->nargs);
        if (p->info->target == TARGET_CUDA)
            fprintf(out, "grid %u,%u,%u block %u,%u,%u", k->grid[0], k->grid[1], k->grid[2], k->block[0], k->block[1],
                    k->block[2]);
        else
            fprintf(out, "rows %" PRIu64 " by %" PRIu64 ", scratch %" PRIu64, k->rows, k->grain, k->scratch);
        fprintf(out, ", %" PRIu64 " bytes, %" PRIu64 " flops\n", k->bytes, k->flops);
    }
}

static void print_gemms(const Plan *p, FILE *out)
{
    static const char *const beta[] = {"overwrite", "add", "overwrite first"};
    heading(p, out, PLAN_GEMMS);
    for (uint32_t i = 0; i < p->count[PLAN_GEMMS]; i++) {
        const PlanGemm *g = &p->gemms[i];
        fprintf(out,
                "  g%u %s %" PRIu64 " x %" PRIu64 " x %" PRIu64 " %c%c, ld %" PRIu64 " %" PRIu64 " %" PRIu64 ", %s", i,
                dtype_name((DType)g->dtype), g->m, g->n, g->k, g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', g->lda,
                g->ldb, g->ldc, beta[g->beta]);
        for (uint32_t j = 0; j < g->nbatch; j++)
            fprintf(out, ", batch %" PRIu64 " by %" PRId64 " %" PRId64 " %" PRId64, g->batch[j], g->stride_a[j],
                    g->stride_b[j], g->stride_c[j]);
        fputc('\n', out);
    }
}

static void print_instr(const Plan *p, FILE *out, uint32_t id)
{
    const PlanInstr *in = &p->instrs[id];
    static const char *const kinds[] = {"k", "g", "start c", "wait c"};
    fprintf(out, "    %u %s%s%u", id, in->when == WHEN_LAST ? "last: " : "", kinds[in->kind], in->index);
    for (uint32_t i = 0; i < in->nargs; i++) {
        const PlanArg *a = &p->args[in->first_arg + i];
        fprintf(out, "%s%s", i ? ", " : " ", a->written == 0 ? "" : a->written == 1 ? "out " : "inout ");
        print_buffer_name(p, out, a->buffer);
        if (a->offset) fprintf(out, "+%" PRIu64, a->offset);
        if (a->group) fprintf(out, "+%" PRIu64 "*G%u", a->stride, a->group - 1);
    }
    fprintf(out, "  \"%s\"\n", plan_str(p, in->label));
}

static void print_program(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_SEGMENTS);
    for (uint64_t i = 0; i < p->count[PLAN_SEGMENTS]; i++) {
        const PlanSegment *s = &p->segments[i];
        fprintf(out, "  %s (%s), %u instructions\n", plan_str(p, s->name), plan_segment_name((SegmentId)s->id),
                s->count);
        for (uint32_t j = 0; j < s->count; j++) print_instr(p, out, s->first_instr + j);
    }
    heading(p, out, PLAN_TRANSFERS);
    for (uint32_t i = 0; i < p->count[PLAN_TRANSFERS]; i++) {
        const PlanTransfer *t = &p->transfers[i];
        fprintf(out, "  t%u %s ", i, t->send ? "send" : "receive");
        print_buffer_name(p, out, t->buffer);
        fprintf(out, " %s stage %u, tag %u, %" PRIu64 " bytes, chunk %u\n", t->send ? "to" : "from", t->peer, t->tag,
                t->bytes, t->chunk);
    }
}

// One step a line, with the slots of its chunk's classes.
static void print_schedule(const Plan *p, FILE *out)
{
    static const char *const kinds[] = {"run", "post", "arrive", "send", "sent"};
    heading(p, out, PLAN_SCHEDULE);
    for (uint64_t i = 0; i < p->count[PLAN_SCHEDULE]; i++) {
        const PlanStep *s = &p->schedule[i];
        bool run = s->kind == STEP_RUN;
        uint32_t chunk = run ? p->segments[s->index].chunk : p->transfers[s->index].chunk;
        if (run)
            fprintf(out, "  run %s", plan_str(p, p->segments[s->index].name));
        else
            fprintf(out, "  %s t%u", kinds[s->kind], s->index);
        fprintf(out, " micro-batch %u", s->micro_batch);
        const char *between = " slots ";
        for (uint32_t a = 2; a < p->count[PLAN_ARENAS]; a++) {
            if (p->arenas[a].chunk != chunk) continue;
            fprintf(out, "%s%s %u", between, plan_class_name(p->arenas[a].class_),
                    s->slots[p->arenas[a].class_ - CLASS_FB]);
            between = ", ";
        }
        fputc('\n', out);
    }
}

static void print_stage(const Plan *p, FILE *out)
{
    const PlanStage *s = &p->stages[p->stage];
    fprintf(out, "\n== stage %u: %" PRIu64 " parameters, %.6g flops a step, %" PRIu64 " bytes of scratch a thread\n",
            p->stage, s->parameters, s->flops, s->scratch_bytes);
    print_interface(p, out);
    print_params(p, out);
    print_arenas(p, out);
    print_buffers(p, out);
    print_program(p, out);
    print_schedule(p, out);
}

static void print_texts(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_TRAIN);
    for (uint64_t i = 0; i < p->count[PLAN_TRAIN]; i++) {
        fprintf(out, "  %s = ", plan_str(p, p->train[i].key));
        print_quoted(out, plan_str(p, p->train[i].value));
        fputc('\n', out);
    }
    heading(p, out, PLAN_SOURCES);
    for (uint64_t i = 0; i < p->count[PLAN_SOURCES]; i++)
        fprintf(out, "---- source %" PRIu64 "\n%s", i, plan_str(p, p->sources[i].text));
}

void plan_print(const Plan *p, FILE *out)
{
    print_info(p, out);
    print_groups(p, out);
    print_scalars(p, out);
    print_kernels(p, out);
    print_gemms(p, out);
    print_colls(p, out);
    for (uint32_t i = 0; i < p->count[PLAN_STAGES]; i++) {
        Plan stage = plan_stage(p, i);
        print_stage(&stage, out);
    }
    print_texts(p, out);
}
