// safetensors_write.c: the writer of safetensors.h.
//
// The file is built under a temporary name in the same folder, brought to the disk, then renamed, so that whoever
// opens the name finds the old file or the whole new one. A symbolic link stays a link: its target is replaced.
// Traps: a full disk may show only at fsync or close; a device (/dev/null) must not be renamed over.
#include "json.h"
#include "safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

struct SafeWriter {
    int fd;
    char *path, *target, *temporary;  // as the user wrote it; with links followed; what is being written
    uint64_t left;                    // bytes of data still to come
};

_Noreturn static void fail(const SafeWriter *w) { fatal("cannot write %s:", w->path); }

// the file to replace, or `path` itself where there is none
static char *resolve(const char *path)
{
    struct stat st;
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        fatal("cannot write %s: it is %s", path, S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
    char *target = realpath(path, NULL);
    return target ? target : xstrdup(path);
}

static SafeWriter *begin(const char *path)
{
    SafeWriter *w = xcalloc(1, sizeof *w);
    Buf name = {0};
    w->path = xstrdup(path);
    w->target = resolve(path);
    buf_printf(&name, "%s.tmp-%ld", w->target, (long)getpid());
    w->temporary = name.s;
    unlink(w->temporary);  // of a dead process that had our number
    w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd < 0) fail(w);
    cleanup_on_exit(w->temporary);
    return w;
}

static void put(SafeWriter *w, const void *data, uint64_t bytes)
{
    for (const char *p = data; bytes;) {
        ssize_t n = write(w->fd, p, min_of(bytes, (uint64_t)1 << 30));  // Linux writes less than 2 GiB at a time
        if (n < 0 && errno != EINTR) fail(w);
        if (n > 0) p += n, bytes -= (uint64_t)n;
    }
}

static uint32_t bytes_of(SafeDType t)
{
    static const uint32_t bytes[] = {
#define X(e, name, size) size,
        SAFE_DTYPES(X)
#undef X
    };
    return bytes[t];
}

// {"__metadata__": ..., name: {dtype, shape, data_offsets}, ...}, then spaces to a multiple of 8; returns data bytes
static uint64_t header(Buf *b, const SafeEntry *entries, size_t n)
{
    uint64_t offset = 0;
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
        uint64_t end = offset + count * bytes_of(e->dtype);
        buf_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, end);
        offset = end;
    }
    buf_puts(b, "}");
    while (b->n % 8) buf_puts(b, " ");
    return offset;
}

SafeWriter *safetensors_create(const char *path, const SafeEntry *entries, size_t n)
{
    SafeWriter *w = begin(path);
    Buf b = {0};
    w->left = header(&b, entries, n);
    uint64_t length = b.n;
    put(w, &length, 8);
    put(w, b.s, b.n);
    buf_free(&b);
    return w;
}

void safetensors_append(SafeWriter *w, const void *data, uint64_t bytes)
{
    if (bytes > w->left) bug("%s gets more data than was announced", w->path);
    put(w, data, bytes);
    w->left -= bytes;
}

static void release(SafeWriter *w)
{
    cleanup_on_exit(NULL);
    free(w->path);
    free(w->target);
    free(w->temporary);
    free(w);
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

void safetensors_commit(SafeWriter *w)
{
    if (w->left) bug("%s lacks %" PRIu64 " bytes of the data that was announced", w->path, w->left);
    if (fsync(w->fd) || close(w->fd) || rename(w->temporary, w->target)) fail(w);
    sync_folder(w->target);
    release(w);
}

void safetensors_probe(const char *path)
{
    SafeWriter *w = begin(path);
    close(w->fd);
    unlink(w->temporary);
    release(w);
}
