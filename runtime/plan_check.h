// plan_check.h: what the files that check a plan share: the state of the check and its ways to fail.
//
// The first fault wins: every check returns true, or false with the message written. A Check looks at the whole plan,
// or at one stage of it: then `p` is a view (plan_stage), and messages name the stage if there are several.
#pragma once
#include "plan.h"

enum { MAX_SLOTS = 1 << 16, MAX_ARGS = 4096, MAX_RANKS = 1 << 20, MAX_STAGES = 64, MAX_CHUNKS = 64 };
#define MAX_BYTES ((uint64_t)1 << 46) // of one arena with all its slots, or of one buffer

typedef struct {
    const Plan *p;
    char *message;
    size_t message_size;
    const char *section; // being checked
    uint64_t item;
    bool staged; // p is one of several stages
} Check;

PRINTF_LIKE(2, 3) static inline bool fail(Check *c, const char *fmt, ...)
{
    va_list ap;
    size_t n = 0;
    if (c->staged) n = (size_t)snprintf(c->message, c->message_size, "stage %u: ", c->p->stage);
    va_start(ap, fmt);
    if (n < c->message_size) vsnprintf(c->message + n, c->message_size - n, fmt, ap);
    va_end(ap);
    return false;
}

// A fault of the item being checked.
PRINTF_LIKE(2, 3) static inline bool fail_item(Check *c, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return fail(c, "%s[%llu] %s", c->section, (unsigned long long)c->item, text);
}

// ---- the passes of the check, in order
bool plan_check_records(Check *c);   // plan_check.c: what all stages share, and their ranges
bool plan_check_names(Check *c);     // plan_relations.c: no two of the shared records have one name
bool plan_check_stage(Check *c);     // plan_check.c, plan_check_code.c: the records of one stage
bool plan_check_relations(Check *c); // plan_relations.c: names, lifetimes and places of one stage
bool plan_check_schedule(Check *c);  // plan_schedule.c: every value is where and when it is read
bool plan_check_flight(Check *c);    // plan_flight.c: nothing touches what a collective owns; each ends
bool plan_check_owners(Check *c);    // plan_relations.c: a parameter is the same on every stage that has it
bool plan_check_joint(Check *c);     // plan_joint.c: transfers pair up; all stages come to their ends

// plan_check_code.c: kernels, GEMMs and collectives (of the whole plan); arguments, instructions, segments, transfers
// and schedule (of a stage)
bool plan_check_shared_code(Check *c);
bool plan_check_code(Check *c);

// ---- what more than one file asks

// Segments in the order in which they lie: init, prep, F B W of each chunk, update.
static inline uint32_t segment_order(const Plan *p, const PlanSegment *s)
{
    if (s->id < SEG_F) return s->id;
    return 2 + 3 * (s->id == SEG_UPDATE ? p->info->chunks : s->chunk) + (s->id == SEG_UPDATE ? 0 : s->id - SEG_F);
}
static inline bool is_scheduled(uint32_t id) // F, B, W
{
    return id >= SEG_F && id <= SEG_W;
}
static inline bool always_alive(uint32_t class_) // its buffers' lifetimes are not told by instructions
{
    return class_ == CLASS_PERSIST || class_ >= CLASS_RF;
}
static inline bool is_landing(uint32_t class_)
{
    return class_ == CLASS_RF || class_ == CLASS_RB;
}
static inline uint32_t class_of(const Plan *p, const PlanBuffer *b)
{
    return p->arenas[b->arena].class_;
}

// Bytes of an arena. out: written, or owned by a transfer or collective.
typedef struct {
    uint32_t arena, instr;
    uint64_t start, end;
    bool out;
} Extent;
// Bytes that argument `which` of instruction `instr` can touch on any rank.
Extent plan_extent(const Plan *p, uint32_t instr, uint32_t which); // plan_flight.c
bool plan_in_place(const Plan *p, const PlanInstr *start, uint32_t part);

// Elements from the first to behind the last that operand a, b or c (0 to 2) touches; false on overflow.
bool plan_operand_extent(const PlanGemm *g, int which, uint64_t *extent); // plan_check_code.c
// Byte offset of an argument on the rank where it is largest.
static inline uint64_t arg_last_offset(const Plan *p, const PlanArg *a)
{
    return a->offset + (a->group ? (uint64_t)(p->groups[a->group - 1].size - 1) * a->stride : 0);
}

// ---- tools

static inline bool mul_ok(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool add_ok(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool str_ok(Check *c, const char *field, Str s)
{
    uint64_t n = c->p->count[PLAN_STRINGS];
    return s < n || fail_item(c, "has its %s at %u of %llu string bytes", field, s, (unsigned long long)n);
}

// Text that goes into messages and to terminals: short, one line, no control characters. The bound keeps many
// records with one long text cheap.
static inline bool line_ok(Check *c, const char *field, Str s)
{
    enum { LONGEST = 1024 };
    if (!str_ok(c, field, s)) return false;
    const unsigned char *text = (const unsigned char *)plan_str(c->p, s);
    size_t n = 0;
    while (n <= LONGEST && text[n] >= ' ' && text[n] != 127) n++;
    if (text[n] == 0) return true;
    return fail_item(c, "has a %s that is longer than %d bytes or holds a control character", field, LONGEST);
}

static inline bool name_ok(Check *c, Str s)
{
    if (!line_ok(c, "name", s)) return false;
    return s != 0 || fail_item(c, "has no name");
}

static inline bool below(Check *c, const char *field, uint64_t value, uint64_t limit)
{
    if (value < limit) return true;
    return fail_item(c, "has %s %llu, which must be below %llu", field, (unsigned long long)value,
                     (unsigned long long)limit);
}

static inline bool zero(Check *c, uint64_t pad)
{
    return pad == 0 || fail_item(c, "has padding that is not zero");
}

static inline bool is_float(uint32_t dtype)
{
    return dtype == F64 || dtype == F32 || dtype == BF16;
}

static inline uint64_t buffer_elements(const PlanBuffer *b)
{
    return b->bytes / (uint64_t)dtype_bytes((DType)b->dtype);
}

#define CHECK_ALL(c, id, array, check)                                                                                 \
    ((c)->section = plan_section_name(id), (c)->item = 0, true);                                                       \
    for (; ok && (c)->item < (c)->p->count[id]; (c)->item++) ok = check(c, &(c)->p->array[(c)->item])
