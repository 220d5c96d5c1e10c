// data.c: see data.h. Files are mapped, so any size works; pages leave resident memory once a batch is copied.
//
// Traps: the header's count is checked against the file's size before a token is read; ids are checked when they
// are read, not at the start, because a corpus may be larger than memory.
#include "data.h"
#include "input.h"
#include "rng.h"
#include <inttypes.h>

enum { SHARD_HEADER = 256 * 4, TEXT_PROBE = 4096 };

typedef struct {
    const char *path;
    Input in;
    DataShard shard;
    uint64_t first, samples;  // samples of the files before this one; of this one
} DataFile;

struct Data {
    DataFile *files;  // vec
    uint64_t seq, limit, samples, key;
    bool shuffle;
};

// ---- one file

static const struct { uint32_t magic, version, width; } shard_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static uint32_t word(const void *bytes, size_t i)
{
    uint32_t w;
    memcpy(&w, (const uint8_t *)bytes + 4 * i, 4);
    return w;
}

static bool check_text(const void *bytes, uint64_t size, DataShard *out, char *message, size_t message_size)
{
    const char *foreign = foreign_format(bytes, size);
    if (foreign)
        return refuse(message, message_size, "seems to be %s, neither text nor a token file of llm.c's format",
                      foreign);
    *out = (DataShard){1, size, bytes};
    return true;
}

bool data_check_shard(const void *bytes, uint64_t size, DataShard *out, char *message, size_t message_size)
{
    *out = (DataShard){0};
    if (!size) return refuse(message, message_size, "is empty");
    size_t kind = 0;
    for (; size >= 4 && kind < countof(shard_kinds); kind++) {
        uint32_t magic = shard_kinds[kind].magic;
        if (word(bytes, 0) == magic) break;
        if (word(bytes, 0) == __builtin_bswap32(magic))
            return refuse(message, message_size, "is a token file in big-endian byte order (magic %u, bytes reversed)",
                          magic);
    }
    if (size < 4 || kind == countof(shard_kinds)) return check_text(bytes, size, out, message, message_size);

    uint32_t magic = shard_kinds[kind].magic, width = shard_kinds[kind].width;
    if (size < SHARD_HEADER)
        return refuse(message, message_size,
                      "is a truncated token file: its header alone takes %d bytes, but it has %" PRIu64, SHARD_HEADER,
                      size);
    uint32_t version = word(bytes, 1);
    uint64_t tokens = word(bytes, 2), wanted = SHARD_HEADER + tokens * width;
    if (version != shard_kinds[kind].version)
        return refuse(message, message_size, "is a token file of magic %u and version %u, but only version %u is known",
                      magic, version, shard_kinds[kind].version);
    if (size != wanted)
        return refuse(message, message_size,
                      "is a %s token file: its header announces %" PRIu64 " tokens of %u bytes, in all %" PRIu64
                      " bytes, but it has %" PRIu64,
                      size < wanted ? "truncated" : "damaged", tokens, width, wanted, size);
    *out = (DataShard){width, tokens, (const uint8_t *)bytes + SHARD_HEADER};
    return true;
}

uint32_t data_token(const DataShard *s, uint64_t i)
{
    uint16_t narrow;
    uint32_t wide;
    switch (s->width) {
    case 1: return s->first[i];
    case 2: memcpy(&narrow, s->first + 2 * i, 2); return narrow;
    default: memcpy(&wide, s->first + 4 * i, 4); return wide;
    }
}

static void open_file(DataFile *f, uint64_t seq)
{
    char why[512];
    if (!input_open(&f->in, f->path, why, sizeof why)) fatal("data file %s %s", f->path, why);
    if (!data_check_shard(f->in.base, f->in.size, &f->shard, why, sizeof why)) fatal("data file %s %s", f->path, why);
    uint64_t tokens = f->shard.tokens;
    if (tokens < seq + 1)
        fatal("data file %s has %" PRIu64 " tokens, fewer than one window of %" PRIu64 " (seq %" PRIu64
              " and the token after it)", f->path, tokens, seq + 1, seq);
    f->samples = (tokens - 1) / seq;
}

// Bytes of anything can be trained on, but they are rarely what was meant.
static void warn_of_doubtful_text(const DataFile *f, uint64_t limit)
{
    if (memchr(f->in.base, 0, min_of(f->in.size, (uint64_t)TEXT_PROBE)))
        warn("data file %s holds zero bytes, so it is neither text nor a token file of llm.c's format; "
             "its bytes are taken as the tokens", f->path);
    else if (limit > 256)
        warn("data file %s is taken as text: its bytes are the tokens, 256 of the model's %" PRIu64, f->path, limit);
}

// ---- all files

static const char *kind_name(const DataFile *f) { return f->shard.width == 1 ? "text" : "a token file"; }

Data *data_open(const char *const *paths, int n, int64_t seq, int64_t limit, bool shuffle, uint64_t seed)
{
    if (n < 1 || seq < 1 || limit < 1 || limit > INT32_MAX)
        bug("data_open: %d files, seq %" PRId64 ", limit %" PRId64, n, seq, limit);
    Data *d = xcalloc(1, sizeof *d);
    d->seq = (uint64_t)seq, d->limit = (uint64_t)limit;
    d->shuffle = shuffle, d->key = rng_key(seed, "shuffle");
    for (int i = 0; i < n; i++) {
        DataFile f = {.path = intern(paths[i]), .first = d->samples};
        open_file(&f, d->seq);
        vec_push(d->files, f);
        d->samples += f.samples;
        const DataFile *before = &d->files[0];
        if ((before->shard.width == 1) != (f.shard.width == 1))
            fatal("data file %s is %s, but %s is %s: all must be of one kind", before->path, kind_name(before), f.path,
                  kind_name(&f));
    }
    if (d->files[0].shard.width == 1) warn_of_doubtful_text(&d->files[0], d->limit);
    return d;
}

int64_t data_samples(const Data *d) { return (int64_t)d->samples; }

void data_close(Data *d)
{
    if (!d) return;
    for (size_t i = 0; i < vec_len(d->files); i++) input_close(&d->files[i].in);
    vec_free(d->files);
    free(d);
}

static DataFile *file_of_sample(const Data *d, uint64_t sample)
{
    size_t low = 0, high = vec_len(d->files);  // files[low].first <= sample < files[high].first
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (d->files[middle].first <= sample) low = middle;
        else high = middle;
    }
    return &d->files[low];
}

typedef struct { int64_t id; int32_t as; } Ignore;

static void read_window(const Data *d, const DataFile *f, uint64_t sample, Ignore ignore, int32_t *tokens,
                        int32_t *targets)
{
    uint64_t start = (sample - f->first) * d->seq;
    for (uint64_t j = 0; j <= d->seq; j++) {
        uint32_t id = data_token(&f->shard, start + j);
        bool ignored = ignore.id == (int64_t)id, only_target = j == d->seq;
        if (id >= d->limit && !(ignored && only_target))
            fatal("data file %s: the token at position %" PRIu64 " is %u, but the model's vocabulary has %" PRIu64
                  " entries (0 to %" PRIu64 ")", f->path, start + j, id, d->limit, d->limit - 1);
        if (!only_target) tokens[j] = (int32_t)id;
        if (j) targets[j - 1] = ignored ? ignore.as : (int32_t)id;
    }
    uint64_t width = f->shard.width;
    input_release(&f->in, f->shard.first + start * width, (d->seq + 1) * width);
}

void data_batch(const Data *d, uint64_t first, int64_t count, int64_t ignore_id, int32_t ignore_as, int32_t *tokens,
                int32_t *targets)
{
    Ignore ignore = {ignore_id, ignore_as};
    for (uint64_t i = 0; i < (uint64_t)count; i++) {
        uint64_t epoch = (first + i) / d->samples, sample = (first + i) % d->samples;
        if (d->shuffle) sample = rng_permute(d->key, epoch, d->samples, sample);
        read_window(d, file_of_sample(d, sample), sample, ignore, tokens + i * d->seq, targets + i * d->seq);
    }
}
