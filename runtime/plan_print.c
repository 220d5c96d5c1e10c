// plan_print.c: a checked plan as text, section by section, one record a line (picoc --print).
//
// Buffers are called by name and id (`x#12`), because names need not be unique. The order is that of the
// file, the layout of a line that of the record, so that two prints can be compared with diff. Sources come
// last and whole.
#include "plan.h"
#include <inttypes.h>

static const char *const arena_names[ARENA_COUNT] = {"persist", "saved", "work"};

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
    fprintf(out, "  mesh        tp %u, pp %u, dp %u, cp %u\n", o->tp, o->pp, o->dp, o->cp);
    for (int a = 0; a < ARENA_COUNT; a++)
        fprintf(out, "  %-11s %" PRIu64 " bytes x %u\n", arena_names[a], o->arena_bytes[a], o->arena_slots[a]);
    fprintf(out, "  scratch     %" PRIu64 " bytes a thread\n", o->scratch_bytes);
    fprintf(out, "  parameters  %" PRIu64 "\n", o->parameters);
    fprintf(out, "  flops       %.6g a step\n", o->flops_per_step);
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
    heading(p, out, PLAN_SCALARS);
    for (uint64_t i = 0; i < p->count[PLAN_SCALARS]; i++)
        fprintf(out, "  %s slot %u = %.15g\n", plan_str(p, p->scalars[i].name), p->scalars[i].slot,
                p->scalars[i].standard);
}

static void print_params(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_PARAMS);
    for (uint64_t i = 0; i < p->count[PLAN_PARAMS]; i++) {
        const PlanParam *q = &p->params[i];
        fprintf(out, "  %s ", plan_str(p, q->name));
        print_shape(out, q->ndim, q->dims);
        fprintf(out, " in ");
        print_buffer_name(p, out, q->buffer);
        if (q->grad != UINT32_MAX) {
            fprintf(out, " gradient ");
            print_buffer_name(p, out, q->grad);
        }
        fprintf(out, " %s %.9g%s", q->init == INIT_NORMAL ? "normal" : "constant", q->init_value,
                q->decay ? " decay" : "");
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

static void print_buffers(const Plan *p, FILE *out)
{
    heading(p, out, PLAN_BUFFERS);
    for (uint32_t i = 0; i < p->count[PLAN_BUFFERS]; i++) {
        const PlanBuffer *b = &p->buffers[i];
        fputs("  ", out);
        print_buffer_name(p, out, i);
        fprintf(out, " %s", dtype_name((DType)b->dtype));
        print_shape(out, b->ndim, b->dims);
        fprintf(out, " %s+%" PRIu64 " %" PRIu64 " bytes", arena_names[b->arena], b->offset, b->bytes);
        if (b->arena != ARENA_PERSIST) fprintf(out, " alive %u..%u", b->first, b->last);
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
    fprintf(out, "    %u %c%u", id, in->kind == INSTR_GEMM ? 'g' : 'k', in->index);
    for (uint32_t i = 0; i < in->nargs; i++) {
        const PlanArg *a = &p->args[in->first_arg + i];
        fprintf(out, "%s%s", i ? ", " : " ", a->written == 0 ? "" : a->written == 1 ? "out " : "inout ");
        print_buffer_name(p, out, a->buffer);
        if (a->offset) fprintf(out, "+%" PRIu64, a->offset);
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
    heading(p, out, PLAN_SCHEDULE);
    for (uint64_t i = 0; i < p->count[PLAN_SCHEDULE]; i++) {
        const PlanStep *s = &p->schedule[i];
        fprintf(out, "  %s micro-batch %u slot %u\n", plan_str(p, p->segments[s->segment].name), s->micro_batch,
                s->slot);
    }
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
    print_interface(p, out);
    print_params(p, out);
    print_buffers(p, out);
    print_kernels(p, out);
    print_gemms(p, out);
    print_program(p, out);
    print_texts(p, out);
}
