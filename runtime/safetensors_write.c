// safetensors_write.c: the writer of safetensors.h.
//
// The file is built under a temporary name in the same folder, brought to the disk, then renamed, so that whoever
// opens the name finds the old file or the whole new one. A symbolic link stays a link: its target is replaced.
// Traps: a full disk may show only at fsync or close; a device (/dev/null) must not be renamed over. Data goes through
// pwrite, not a shared mapping: a mapping writes whole pages, and on a network file system would undo what another
// host wrote in the same page.
#include "json.h"
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct SafeWriter {
    int fd;
    bool began;
    char *path, *target, *temporary;  // as the user wrote it; with links followed; what is being written
    Buf header, fault;                // header: with its length in front
    uint64_t *begins;                 // vec: where each tensor begins in the data, and where the last one ends
    uint64_t appended;                // bytes of data
};

static uint64_t data_bytes(const SafeWriter *w) { return w->begins[vec_len(w->begins) - 1]; }

static bool failed(SafeWriter *w)
{
    buf_printf(&w->fault, "cannot write %s: %s", w->path, strerror(errno));
    return false;
}

const char *safetensors_fault(const SafeWriter *w) { return w->fault.s; }

// ---- announce

static uint32_t bytes_of(SafeDType t)
{
    static const uint32_t bytes[] = {
#define X(e, name, size) size,
        SAFE_DTYPES(X)
#undef X
    };
    return bytes[t];
}

// {"__metadata__": ..., name: {dtype, shape, data_offsets}, ...}, then spaces to a multiple of 8
static void make_header(SafeWriter *w, const SafeEntry *entries, size_t n)
{
    Buf *b = &w->header;
    uint64_t offset = 0, length = 0;
    buf_write(b, &length, 8);
    buf_puts(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = 0; i < n; i++) {
        const SafeEntry *e = &entries[i];
        uint64_t count = 1;
        buf_puts(b, ",");
        json_string(b, e->name);
        buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", safetensor_dtype_name(e->dtype));
        for (uint32_t d = 0; d < e->ndim; d++) {
            buf_printf(b, "%s%" PRIu64, d ? "," : "", e->dims[d]);
            count *= e->dims[d];
        }
        vec_push(w->begins, offset);
        uint64_t end = offset + count * bytes_of(e->dtype);
        buf_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, end);
        offset = end;
    }
    vec_push(w->begins, offset);
    buf_puts(b, "}");
    while (b->n % 8) buf_puts(b, " ");
    length = b->n - 8;
    memcpy(b->s, &length, 8);
}

SafeWriter *safetensors_announce(const char *path, const SafeEntry *entries, size_t n)
{
    SafeWriter *w = xcalloc(1, sizeof *w);
    w->fd = -1;
    w->path = xstrdup(path);
    make_header(w, entries, n);
    return w;
}

// ---- the file

// target: the file to replace, or the path itself where there is none
static bool name_files(SafeWriter *w, int64_t id)
{
    struct stat st;
    if (!stat(w->path, &st) && !S_ISREG(st.st_mode)) {
        const char *what = S_ISDIR(st.st_mode) ? "a folder" : "not a regular file";
        buf_printf(&w->fault, "cannot write %s: it is %s", w->path, what);
        return false;
    }
    Buf name = {0};
    w->target = realpath(w->path, NULL);
    if (!w->target) w->target = xstrdup(w->path);
    buf_printf(&name, "%s.tmp-%" PRIx64, w->target, (uint64_t)id);
    w->temporary = name.s;
    return true;
}

// A number that no other process has, on any host: the name of a temporary file must not mean two files.
static int64_t new_id(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t nanoseconds = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return (int64_t)((nanoseconds ^ (uint64_t)getpid() << 40) & INT64_MAX) | 1;
}

static bool make_temporary(SafeWriter *w, int64_t id)
{
    if (!name_files(w, id)) return false;
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0) return failed(w);
    w->began = true;
    cleanup_on_exit(w->temporary);
    return true;
}

static bool write_at(SafeWriter *w, uint64_t offset, const void *data, uint64_t bytes)
{
    for (const char *p = data; bytes;) {
        uint64_t now = min_of(bytes, (uint64_t)1 << 30);  // Linux writes less than 2 GiB at a time
        ssize_t n = pwrite(w->fd, p, now, (off_t)offset);
        if (n < 0 && errno != EINTR) return failed(w);
        if (n > 0) p += n, offset += (uint64_t)n, bytes -= (uint64_t)n;
    }
    return true;
}

// A full disk shows here, before anything else is written; not every file system can promise room.
static bool take_room(SafeWriter *w)
{
    off_t size = (off_t)(w->header.n + data_bytes(w));
    int fault = posix_fallocate(w->fd, 0, size);
    if (fault == EOPNOTSUPP || fault == EINVAL) fault = ftruncate(w->fd, size) ? errno : 0;
    errno = fault;
    return !fault || failed(w);
}

bool safetensors_begin(SafeWriter *w, int64_t *id)
{
    *id = new_id();
    return make_temporary(w, *id) && take_room(w) && write_at(w, 0, w->header.s, w->header.n);
}

bool safetensors_join(SafeWriter *w, int64_t id)
{
    if (!name_files(w, id)) return false;
    w->fd = open(w->temporary, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (w->fd >= 0) return true;
    buf_printf(&w->fault,
               "cannot write %s: a rank cannot open %s, which rank 0 has begun (%s); all ranks must share its folder",
               w->path, w->temporary, strerror(errno));
    return false;
}

bool safetensors_put(SafeWriter *w, size_t tensor, uint64_t at, const void *data, uint64_t bytes)
{
    uint64_t size = w->begins[tensor + 1] - w->begins[tensor];
    if (at > size || bytes > size - at) bug("%s: data beyond the end of a tensor", w->path);
    return write_at(w, w->header.n + w->begins[tensor] + at, data, bytes);
}

bool safetensors_flush(SafeWriter *w)
{
    int fd = w->fd;
    w->fd = -1;
    if (fsync(fd)) {
        failed(w);
        close(fd);
        return false;
    }
    return !close(fd) || failed(w);
}

// The name is safe only when its folder is on the disk too; where folders cannot be synced, so be it.
static void sync_folder(const char *file)
{
    char *folder = xstrdup(file), *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) fsync(fd), close(fd);
    free(folder);
}

bool safetensors_publish(SafeWriter *w)
{
    if (rename(w->temporary, w->target)) return failed(w);
    w->began = false;
    cleanup_on_exit(NULL);
    sync_folder(w->target);
    return true;
}

void safetensors_drop(SafeWriter *w)
{
    if (w->fd >= 0) close(w->fd);
    if (w->began) {
        unlink(w->temporary);
        cleanup_on_exit(NULL);
    }
    free(w->path);
    free(w->target);
    free(w->temporary);
    buf_free(&w->header);
    buf_free(&w->fault);
    vec_free(w->begins);
    free(w);
}

// ---- one writer, in order

static void must(const SafeWriter *w, bool good)
{
    if (!good) fatal("%s", w->fault.s);
}

SafeWriter *safetensors_create(const char *path, const SafeEntry *entries, size_t n)
{
    int64_t id;
    SafeWriter *w = safetensors_announce(path, entries, n);
    must(w, safetensors_begin(w, &id));
    return w;
}

void safetensors_append(SafeWriter *w, const void *data, uint64_t bytes)
{
    if (bytes > data_bytes(w) - w->appended) bug("%s gets more data than was announced", w->path);
    must(w, write_at(w, w->header.n + w->appended, data, bytes));
    w->appended += bytes;
}

void safetensors_commit(SafeWriter *w)
{
    uint64_t left = data_bytes(w) - w->appended;
    if (left) bug("%s lacks %" PRIu64 " bytes of the data that was announced", w->path, left);
    must(w, safetensors_flush(w) && safetensors_publish(w));
    safetensors_drop(w);
}

void safetensors_probe(const char *path)
{
    SafeWriter *w = safetensors_announce(path, NULL, 0);
    must(w, make_temporary(w, new_id()));
    safetensors_drop(w);
}
