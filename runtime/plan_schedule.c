// plan_schedule.c: plays the schedule of one stage and checks that every value is where, and when, it is read.
//
// A slot of an arena belongs to one micro-batch at a time. What takes it: the first segment (of F, B, W) that uses the
// arena, or, in a landing class, the first post. From then on until the next taker everything that touches the arena
// must be of that micro-batch; a slot with a transfer under way is not taken, and what is being sent is not written. So
// a value that is overwritten too early is found when its reader comes, whatever the order of the schedule.
//
// Traps: micro-batches ascend in every segment and transfer, so that counters say what has been done. They ascend in
// every slot, too: a slot that is taken back would hide that its other values are gone.
#include "plan_check.h"

typedef struct {
    uint32_t occupant;   // micro-batch + 1
    uint32_t busy;       // transfers under way
    uint32_t sent_by[3]; // of these, sends of bytes that F, B, W write
} Slot;

typedef struct {
    Check *c;
    const Plan *p;
    uint32_t *done;                    // by segment: micro-batches run
    uint32_t (*moved)[2];              // by transfer: begun, ended
    uint32_t **receipts;               // by segment: vec of transfers whose landing buffers it reads
    uint8_t *uses;                     // by segment and class: does it use the arena of its chunk?
    uint32_t *writer;                  // by transfer: segment + 1 that writes what is sent last
    uint32_t *receipt;                 // by buffer: transfer + 1 that fills it
    uint8_t *clobbers;                 // by transfer: F, B, W (bits) that write bytes of what is sent
    uint32_t (*arena_at)[CLASS_COUNT]; // by chunk and class: arena, 0: none
    uint32_t (*segment_at)[3];         // by chunk: F, B, W as segment + 1
    uint8_t *born;                     // by arena: F, B or W takes its slots (0 to 2)
    Slot **slots;                      // by arena
    uint32_t **slot_of;                // by arena and micro-batch: slot + 1
} Play;

// ---- what touches what

static void free_tables(Play *y)
{
    for (uint64_t i = 0; i < y->p->count[PLAN_SEGMENTS]; i++) vec_free(y->receipts[i]);
    for (uint64_t i = 0; i < y->p->count[PLAN_ARENAS]; i++) free(y->slots[i]), free(y->slot_of[i]);
    free(y->done), free(y->moved), free(y->receipts), free(y->uses), free(y->writer), free(y->receipt);
    free(y->clobbers), free(y->arena_at), free(y->segment_at), free(y->born), free(y->slots), free(y->slot_of);
}

static void make_tables(Play *y)
{
    const Plan *p = y->p;
    uint64_t nsegments = p->count[PLAN_SEGMENTS], ntransfers = p->count[PLAN_TRANSFERS],
             narenas = p->count[PLAN_ARENAS];
    y->done = xcalloc(nsegments, sizeof *y->done);
    y->moved = xcalloc(ntransfers, sizeof *y->moved);
    y->receipts = xcalloc(nsegments, sizeof *y->receipts);
    y->uses = xcalloc(nsegments, CLASS_COUNT);
    y->writer = xcalloc(ntransfers, sizeof *y->writer);
    y->receipt = xcalloc(p->count[PLAN_BUFFERS], sizeof *y->receipt);
    y->clobbers = xcalloc(ntransfers, 1);
    y->arena_at = xcalloc(p->info->chunks, sizeof *y->arena_at);
    y->segment_at = xcalloc(p->info->chunks, sizeof *y->segment_at);
    y->born = xcalloc(narenas, 1);
    y->slots = xcalloc(narenas, sizeof *y->slots);
    y->slot_of = xcalloc(narenas, sizeof *y->slot_of);
    for (uint32_t i = 0; i < narenas; i++) {
        const PlanArena *a = &p->arenas[i];
        if (a->class_ < CLASS_FB) continue;
        y->arena_at[a->chunk][a->class_] = i;
        y->slots[i] = xcalloc(a->slots, sizeof *y->slots[i]);
        y->slot_of[i] = xcalloc(p->info->accum, sizeof *y->slot_of[i]);
        y->born[i] = 3;
    }
    for (uint32_t i = 0; i < nsegments; i++)
        if (is_scheduled(p->segments[i].id)) y->segment_at[p->segments[i].chunk][p->segments[i].id - SEG_F] = i + 1;
}

// A landing buffer is filled by one transfer, and only by it.
static bool find_receipts(Play *y)
{
    Check *c = y->c;
    const Plan *p = y->p;
    c->section = "transfers";
    for (c->item = 0; c->item < p->count[PLAN_TRANSFERS]; c->item++) {
        const PlanTransfer *t = &p->transfers[c->item];
        if (t->send) continue;
        if (y->receipt[t->buffer])
            return fail_item(c, "fills '%s', as transfer %u does", plan_str(p, p->buffers[t->buffer].name),
                             y->receipt[t->buffer] - 1);
        y->receipt[t->buffer] = (uint32_t)c->item + 1;
    }
    return true;
}

static bool note_arg(Play *y, uint32_t segment, uint32_t instr, uint32_t which, uint32_t *noted)
{
    const Plan *p = y->p;
    const PlanArg *a = &p->args[p->instrs[instr].first_arg + which];
    const PlanBuffer *b = &p->buffers[a->buffer];
    uint32_t class_ = class_of(p, b), kind = p->segments[segment].id - SEG_F, t = y->receipt[a->buffer];
    if (class_ < CLASS_FB) return true;
    y->uses[segment * CLASS_COUNT + class_] = 1;
    y->born[b->arena] = (uint8_t)min_of(y->born[b->arena], kind);
    if (!is_landing(class_)) return true;
    y->c->section = "instrs", y->c->item = instr;
    if (!t) return fail_item(y->c, "reads '%s', which no transfer fills", plan_str(p, b->name));
    if (a->written) return fail_item(y->c, "writes '%s', which a transfer fills", plan_str(p, b->name));
    if (noted[t - 1] != segment + 1) vec_push(y->receipts[segment], t - 1);
    noted[t - 1] = segment + 1;
    return true;
}

static bool find_uses(Play *y)
{
    const Plan *p = y->p;
    uint32_t *noted = xcalloc(p->count[PLAN_TRANSFERS], sizeof *noted); // by transfer: segment + 1
    bool ok = true;
    for (uint32_t s = 0; s < p->count[PLAN_SEGMENTS]; s++)
        for (uint32_t i = 0; ok && is_scheduled(p->segments[s].id) && i < p->segments[s].count; i++) {
            uint32_t instr = p->segments[s].first_instr + i;
            for (uint32_t k = 0; ok && k < p->instrs[instr].nargs; k++) ok = note_arg(y, s, instr, k, noted);
        }
    free(noted);
    return ok;
}

// ---- what is sent: who writes it, and who writes over it

typedef struct {
    uint32_t arena, segment, buffer; // segment: of a write
    uint64_t start, end;
    uint32_t transfer; // + 1: what is sent; 0: a write
} Span;

static int by_start(const void *x, const void *y)
{
    const Span *a = x, *b = y;
    if (a->arena != b->arena) return a->arena < b->arena ? -1 : 1;
    if (a->start != b->start) return a->start < b->start ? -1 : 1;
    return a->transfer != b->transfer ? (a->transfer < b->transfer ? -1 : 1)
           : a->segment < b->segment  ? -1
                                      : a->segment > b->segment;
}

static void note_overlap(Play *y, const Span *a, const Span *b)
{
    const Span *sent = a->transfer ? a : b, *write = a->transfer ? b : a;
    if (!sent->transfer || write->transfer) return;
    uint32_t t = sent->transfer - 1;
    y->clobbers[t] |= (uint8_t)(1u << (y->p->segments[write->segment].id - SEG_F));
    if (write->buffer == sent->buffer) y->writer[t] = max_of(y->writer[t], write->segment + 1);
}

// Buffers that are written, each once a segment, and buffers that are sent.
static Span *find_spans(const Plan *p)
{
    Span *spans = NULL;
    uint32_t *seen = xcalloc(p->count[PLAN_BUFFERS], sizeof *seen); // segment + 1
    for (uint32_t s = 0; s < p->count[PLAN_SEGMENTS]; s++)
        for (uint32_t i = 0; is_scheduled(p->segments[s].id) && i < p->segments[s].count; i++) {
            const PlanInstr *in = &p->instrs[p->segments[s].first_instr + i];
            for (uint32_t k = 0; k < in->nargs; k++) {
                const PlanArg *a = &p->args[in->first_arg + k];
                const PlanBuffer *b = &p->buffers[a->buffer];
                if (!a->written || class_of(p, b) < CLASS_FB || seen[a->buffer] == s + 1) continue;
                seen[a->buffer] = s + 1;
                vec_push(spans, (Span){b->arena, s, a->buffer, b->offset, b->offset + b->bytes, 0});
            }
        }
    for (uint32_t t = 0; t < p->count[PLAN_TRANSFERS]; t++) {
        const PlanBuffer *b = &p->buffers[p->transfers[t].buffer];
        if (p->transfers[t].send)
            vec_push(spans, (Span){b->arena, 0, p->transfers[t].buffer, b->offset, b->offset + b->bytes, t + 1});
    }
    free(seen);
    return spans;
}

static bool find_writers(Play *y)
{
    const Plan *p = y->p;
    Check *c = y->c;
    if (p->count[PLAN_TRANSFERS] == 0) return true;
    Span *spans = find_spans(p);
    size_t n = vec_len(spans);
    if (n) qsort(spans, n, sizeof *spans, by_start);
    for (size_t i = 0; i < n; i++)
        for (size_t j = i + 1; j < n && spans[j].arena == spans[i].arena && spans[j].start < spans[i].end; j++)
            note_overlap(y, &spans[i], &spans[j]);
    vec_free(spans);
    c->section = "transfers";
    for (c->item = 0; c->item < p->count[PLAN_TRANSFERS]; c->item++) {
        const PlanTransfer *t = &p->transfers[c->item];
        const PlanBuffer *b = &p->buffers[t->buffer];
        if (t->send && !y->writer[c->item] && !y->receipt[t->buffer])
            return fail_item(c, "sends '%s', which nothing writes", plan_str(p, b->name));
    }
    return true;
}

// ---- the steps

static bool take(Play *y, uint32_t arena, uint32_t slot, uint32_t m)
{
    Check *c = y->c;
    Slot *s = &y->slots[arena][slot];
    const char *name = plan_class_name(y->p->arenas[arena].class_);
    uint32_t other = y->slot_of[arena][m];
    if (other && other != slot + 1)
        return fail_item(c, "takes slot %u of class %s for micro-batch %u, which has slot %u", slot, name, m,
                         other - 1);
    if (s->occupant == m + 1) return true;
    if (s->busy)
        return fail_item(c, "takes slot %u of class %s for micro-batch %u while micro-batch %u is being moved", slot,
                         name, m, s->occupant - 1);
    if (s->occupant > m + 1) return fail_item(c, "takes slot %u of class %s back for micro-batch %u", slot, name, m);
    s->occupant = m + 1;
    y->slot_of[arena][m] = slot + 1;
    return true;
}

static bool find(Play *y, uint32_t arena, uint32_t slot, uint32_t m)
{
    if (y->slots[arena][slot].occupant == m + 1 && y->slot_of[arena][m] == slot + 1) return true;
    return fail_item(y->c, "needs micro-batch %u, whose values are not in slot %u of class %s", m, slot,
                     plan_class_name(y->p->arenas[arena].class_));
}

static bool arrived(Play *y, uint32_t transfer, const uint16_t *slots, uint32_t m)
{
    const PlanBuffer *b = &y->p->buffers[y->p->transfers[transfer].buffer];
    if (!find(y, b->arena, slots[class_of(y->p, b) - CLASS_FB], m)) return false;
    return y->moved[transfer][1] > m ||
           fail_item(y->c, "needs '%s' of micro-batch %u before it has arrived", plan_str(y->p, b->name), m);
}

static bool play_run(Play *y, const PlanStep *s)
{
    const Plan *p = y->p;
    const PlanSegment *segment = &p->segments[s->index];
    uint32_t kind = segment->id - SEG_F, m = s->micro_batch;
    if (m != y->done[s->index]) return fail_item(y->c, "runs micro-batch %u where %u is due", m, y->done[s->index]);
    for (uint32_t k = 0; k < kind; k++) {
        uint32_t before = y->segment_at[segment->chunk][k];
        if (before && y->done[before - 1] <= m)
            return fail_item(y->c, "runs %s of micro-batch %u before its %s", plan_segment_name((SegmentId)segment->id),
                             m, plan_segment_name((SegmentId)(SEG_F + k)));
    }
    for (uint32_t class_ = CLASS_FB; class_ < CLASS_COUNT; class_++) {
        uint32_t arena = y->arena_at[segment->chunk][class_], slot = s->slots[class_ - CLASS_FB];
        if (!y->uses[s->index * CLASS_COUNT + class_] || is_landing(class_)) continue;
        if (!(y->born[arena] == kind ? take(y, arena, slot, m) : find(y, arena, slot, m))) return false;
        if (y->slots[arena][slot].sent_by[kind])
            return fail_item(y->c, "writes what is still being sent from slot %u of class %s", slot,
                             plan_class_name(class_));
    }
    for (size_t i = 0; i < vec_len(y->receipts[s->index]); i++)
        if (!arrived(y, y->receipts[s->index][i], s->slots, m)) return false;
    y->done[s->index]++;
    return true;
}

static bool play_begin(Play *y, const PlanStep *s, uint32_t arena, uint32_t slot)
{
    const PlanTransfer *t = &y->p->transfers[s->index];
    uint32_t m = s->micro_batch, receipt = y->receipt[t->buffer], writer = y->writer[s->index];
    if (m != y->moved[s->index][0])
        return fail_item(y->c, "moves micro-batch %u where %u is due", m, y->moved[s->index][0]);
    if (!(t->send ? find(y, arena, slot, m) : take(y, arena, slot, m))) return false;
    if (t->send && receipt && !arrived(y, receipt - 1, s->slots, m)) return false;
    if (t->send && writer && y->done[writer - 1] <= m)
        return fail_item(y->c, "sends '%s' of micro-batch %u before it is written",
                         plan_str(y->p, y->p->buffers[t->buffer].name), m);
    y->moved[s->index][0]++;
    return true;
}

static bool play_transfer(Play *y, const PlanStep *s)
{
    const PlanTransfer *t = &y->p->transfers[s->index];
    uint32_t arena = y->p->buffers[t->buffer].arena, m = s->micro_batch;
    uint32_t slot = s->slots[y->p->arenas[arena].class_ - CLASS_FB];
    bool begin = s->kind == STEP_POST || s->kind == STEP_SEND;
    uint32_t *moved = y->moved[s->index];
    if (begin) {
        if (!play_begin(y, s, arena, slot)) return false;
    } else {
        if (m != moved[1] || moved[0] <= m)
            return fail_item(y->c, "awaits micro-batch %u of transfer %u, of which %u were begun and %u awaited", m,
                             s->index, moved[0], moved[1]);
        if (!find(y, arena, slot, m)) return false;
        moved[1]++;
    }
    Slot *at = &y->slots[arena][slot];
    at->busy += begin ? 1 : -1u;
    for (uint32_t k = 0; k < 3; k++)
        if (y->clobbers[s->index] >> k & 1) at->sent_by[k] += begin ? 1 : -1u;
    return true;
}

static bool play(Play *y)
{
    Check *c = y->c;
    const Plan *p = y->p;
    c->section = "schedule";
    for (c->item = 0; c->item < p->count[PLAN_SCHEDULE]; c->item++) {
        const PlanStep *s = &p->schedule[c->item];
        if (!(s->kind == STEP_RUN ? play_run(y, s) : play_transfer(y, s))) return false;
    }
    for (uint64_t i = 0; i < p->count[PLAN_SEGMENTS]; i++)
        if (is_scheduled(p->segments[i].id) && y->done[i] != p->info->accum)
            return fail(c, "the schedule runs segment %llu for %u of %u micro-batches", (unsigned long long)i,
                        y->done[i], p->info->accum);
    for (uint64_t i = 0; i < p->count[PLAN_TRANSFERS]; i++)
        if (y->moved[i][1] != p->info->accum)
            return fail(c, "the schedule ends transfer %llu for %u of %u micro-batches", (unsigned long long)i,
                        y->moved[i][1], p->info->accum);
    return true;
}

bool plan_check_schedule(Check *c)
{
    Play y = {.c = c, .p = c->p};
    make_tables(&y);
    bool ok = find_receipts(&y) && find_uses(&y) && find_writers(&y) && play(&y);
    free_tables(&y);
    return ok;
}
