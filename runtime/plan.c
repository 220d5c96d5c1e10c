// plan.c: opens a plan file: header, section table, and the Plan that points into the mapped bytes.
//
// In: bytes of any origin. Out: a Plan whose indices, offsets, enums, string ends and sizes may be used
// without another look: all of it is checked before anything in it is used. Here: that the bytes are a plan,
// whole, and that its sections lie in it. plan_check*.c check the records; plan_relations.c, plan_schedule.c,
// plan_flight.c and plan_joint.c what holds between them.
//
// Traps: while the check runs, a section may be read only after its own check. The table of names and record sizes
// below is the format: a change there needs another PLAN_VERSION.
#include "plan_check.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(sizeof(PlanHeader) == 32 && sizeof(PlanSection) == 24 && sizeof(PlanInfo) == 88, "no hidden padding");
_Static_assert(sizeof(PlanStage) == 120 && sizeof(PlanGroup) == 16 && sizeof(PlanScalar) == 16, "no hidden padding");
_Static_assert(sizeof(PlanKernel) == 80 && sizeof(PlanGemm) == 264 && sizeof(PlanColl) == 28, "no hidden padding");
_Static_assert(sizeof(PlanInput) == 24 && sizeof(PlanParam) == 184 && sizeof(PlanParamAxis) == 24, "no hidden padding");
_Static_assert(sizeof(PlanArena) == 24 && sizeof(PlanBuffer) == 168 && sizeof(PlanArg) == 32, "no hidden padding");
_Static_assert(sizeof(PlanInstr) == 24 && sizeof(PlanSegment) == 20 && sizeof(PlanState) == 12, "no hidden padding");
_Static_assert(sizeof(PlanTransfer) == 32 && sizeof(PlanStep) == 28, "no hidden padding");

// ---- names

static const struct {
    const char *name;
    size_t item;
} sections[PLAN_SECTIONS] = {
    [PLAN_STRINGS] = {"strings", 1},
    [PLAN_INFO] = {"info", sizeof(PlanInfo)},
    [PLAN_STAGES] = {"stages", sizeof(PlanStage)},
    [PLAN_GROUPS] = {"groups", sizeof(PlanGroup)},
    [PLAN_SCALARS] = {"scalars", sizeof(PlanScalar)},
    [PLAN_SOURCES] = {"sources", sizeof(PlanSource)},
    [PLAN_KERNELS] = {"kernels", sizeof(PlanKernel)},
    [PLAN_GEMMS] = {"gemms", sizeof(PlanGemm)},
    [PLAN_COLLS] = {"colls", sizeof(PlanColl)},
    [PLAN_PARTS] = {"parts", sizeof(PlanPart)},
    [PLAN_TRAIN] = {"train", sizeof(PlanTrain)},
    [PLAN_INPUTS] = {"inputs", sizeof(PlanInput)},
    [PLAN_OUTPUTS] = {"outputs", sizeof(PlanOutput)},
    [PLAN_PARAMS] = {"params", sizeof(PlanParam)},
    [PLAN_PARAM_AXES] = {"param_axes", sizeof(PlanParamAxis)},
    [PLAN_STATES] = {"states", sizeof(PlanState)},
    [PLAN_ARENAS] = {"arenas", sizeof(PlanArena)},
    [PLAN_BUFFERS] = {"buffers", sizeof(PlanBuffer)},
    [PLAN_ARGS] = {"args", sizeof(PlanArg)},
    [PLAN_INSTRS] = {"instrs", sizeof(PlanInstr)},
    [PLAN_SEGMENTS] = {"segments", sizeof(PlanSegment)},
    [PLAN_TRANSFERS] = {"transfers", sizeof(PlanTransfer)},
    [PLAN_SCHEDULE] = {"schedule", sizeof(PlanStep)},
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
    static const char *const names[SEG_COUNT] = {"init", "prep", "F", "B", "W", "update"};
    return names[id];
}

const char *plan_class_name(uint32_t class_)
{
    static const char *const names[CLASS_COUNT] = {"persist", "work", "fb", "fw", "bw", "rf", "rb", "sf", "sb"};
    return names[class_];
}

// ---- header and section table

static bool check_header(Check *c)
{
    const Plan *p = c->p;
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
    const Plan *p = c->p;
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

// The places where a Plan points to its sections, by PlanSectionId.
static void set_pointers(Plan *p, const void *const at[PLAN_SECTIONS])
{
    p->strings = at[PLAN_STRINGS];
    p->info = at[PLAN_INFO];
    p->stages = at[PLAN_STAGES];
    p->groups = at[PLAN_GROUPS];
    p->scalars = at[PLAN_SCALARS];
    p->sources = at[PLAN_SOURCES];
    p->kernels = at[PLAN_KERNELS];
    p->gemms = at[PLAN_GEMMS];
    p->colls = at[PLAN_COLLS];
    p->parts = at[PLAN_PARTS];
    p->train = at[PLAN_TRAIN];
    p->inputs = at[PLAN_INPUTS];
    p->outputs = at[PLAN_OUTPUTS];
    p->params = at[PLAN_PARAMS];
    p->param_axes = at[PLAN_PARAM_AXES];
    p->states = at[PLAN_STATES];
    p->arenas = at[PLAN_ARENAS];
    p->buffers = at[PLAN_BUFFERS];
    p->args = at[PLAN_ARGS];
    p->instrs = at[PLAN_INSTRS];
    p->segments = at[PLAN_SEGMENTS];
    p->transfers = at[PLAN_TRANSFERS];
    p->schedule = at[PLAN_SCHEDULE];
}

static void set_sections(Plan *p, const PlanSection *table)
{
    const void *at[PLAN_SECTIONS];
    for (int i = 0; i < PLAN_SECTIONS; i++) {
        at[i] = p->base + table[i].offset;
        p->count[i] = table[i].count;
    }
    set_pointers(p, at);
}

Plan plan_stage(const Plan *p, uint32_t stage)
{
    Plan view = *p;
    const void *at[PLAN_SECTIONS];
    PlanSection table[PLAN_SECTIONS];
    memcpy(table, p->base + sizeof(PlanHeader), sizeof table);
    for (int i = 0; i < PLAN_SECTIONS; i++) {
        uint64_t first = 0;
        if (i >= PLAN_FIRST_STAGED) {
            PlanRange range = p->stages[stage].range[i - PLAN_FIRST_STAGED];
            first = range.first;
            view.count[i] = range.count;
        }
        at[i] = p->base + table[i].offset + first * table[i].item;
    }
    set_pointers(&view, at);
    view.stage = stage;
    return view;
}

bool plan_check(Plan *p, const void *bytes, uint64_t size, char *message, size_t message_size)
{
    Check c = {.p = p, .message = message, .message_size = message_size};
    PlanSection table[PLAN_SECTIONS];
    *p = (Plan){.base = bytes, .size = size};
    if (!check_header(&c) || !check_table(&c, table)) return false;
    for (int i = 0; i < PLAN_SECTIONS; i++)
        if (table[i].count >= UINT32_MAX && i != PLAN_STRINGS)
            return fail(&c, "section %s has %llu records", sections[i].name, (unsigned long long)table[i].count);
    set_sections(p, table);
    if (!plan_check_records(&c) || !plan_check_names(&c)) return false;
    for (uint32_t i = 0; i < p->count[PLAN_STAGES]; i++) {
        Plan view = plan_stage(p, i);
        Check stage = c;
        stage.p = &view;
        stage.staged = p->count[PLAN_STAGES] > 1;
        if (!plan_check_stage(&stage) || !plan_check_relations(&stage) || !plan_check_schedule(&stage) ||
            !plan_check_flight(&stage))
            return false;
    }
    return plan_check_owners(&c) && plan_check_joint(&c);
}

// ---- files

bool plan_open(Plan *p, const char *path, char *message, size_t message_size)
{
    Check c = {.p = p, .message = message, .message_size = message_size};
    struct stat st;
    *p = (Plan){.path = path};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // a named pipe must not block the open
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
