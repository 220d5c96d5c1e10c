// input.c: see input.h. Regular files only: a pipe has no size and a folder no bytes.
#include "input.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool refuse(char *message, size_t message_size, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, message_size, fmt, args);
    va_end(args);
    return false;
}

Shown shown(const char *name)
{
    Shown out;
    size_t n = strlen(name), fits = sizeof out.s - 4;
    snprintf(out.s, sizeof out.s, "%.*s%s", (int)min_of(n, fits), name, n > fits ? "..." : "");
    for (char *c = out.s; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127) *c = '?';
    return out;
}

static bool map_descriptor(Input *in, int fd, char *message, size_t message_size)
{
    struct stat st;
    if (fstat(fd, &st) < 0) return refuse(message, message_size, "cannot be read: %s", strerror(errno));
    if (S_ISDIR(st.st_mode)) return refuse(message, message_size, "is a folder, not a file");
    if (!S_ISREG(st.st_mode)) return refuse(message, message_size, "is not a regular file, so it cannot be mapped");
    in->size = (uint64_t)st.st_size;
    if (!in->size) return true;
    void *base = mmap(NULL, in->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (base == MAP_FAILED) return refuse(message, message_size, "cannot be mapped: %s", strerror(errno));
    in->base = base;
    return true;
}

bool input_open(Input *in, const char *path, char *message, size_t message_size)
{
    *in = (Input){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not block the open
    if (fd < 0) return refuse(message, message_size, "cannot be opened: %s", strerror(errno));
    bool good = map_descriptor(in, fd, message, message_size);
    close(fd);
    return good;
}

void input_close(Input *in)
{
    if (in->base) munmap((void *)(uintptr_t)in->base, in->size);
    *in = (Input){0};
}

void input_release(const Input *in, const void *first, uint64_t bytes)
{
    if (!in->base || !bytes) return;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = (uint64_t)((const uint8_t *)first - in->base);
    uint64_t start = from / page * page;
    madvise((void *)(uintptr_t)(in->base + start), from + bytes - start, MADV_DONTNEED);  // only advice: may fail
}

const char *foreign_format(const void *bytes, uint64_t size)
{
    static const struct { const char *magic; unsigned length; const char *name; } known[] = {
        {"\x93NUMPY", 6, "a NumPy array"},
        {"PK\3\4", 4, "a zip archive (as PyTorch and NumPy write)"},
        {"\x80\2", 2, "a Python pickle"},
        {"\x1f\x8b", 2, "a gzip archive"},
        {"\x28\xb5\x2f\xfd", 4, "a zstd archive"},
        {"\xfd\x37zXZ", 5, "an xz archive"},
        {"BZh91AY&SY", 10, "a bzip2 archive"},
        {"PAR1\x15", 5, "a Parquet table"},
        {"ARROW1", 6, "an Arrow table"},
        {"\x89HDF\r\n", 6, "an HDF5 file"},
        {"GGUF\2\0\0\0", 8, "a GGUF file"},
        {"GGUF\3\0\0\0", 8, "a GGUF file"},
        {"picoplan", 8, "a plan of picoc"},
        {"\x7f""ELF", 4, "a program"},
        {"version https://git-lfs", 23, "a Git LFS pointer, not the file itself"},
    };
    for (size_t i = 0; i < countof(known); i++)
        if (size >= known[i].length && !memcmp(bytes, known[i].magic, known[i].length)) return known[i].name;
    const uint8_t *b = bytes;  // safetensors: a header length below 2^32, then a JSON object
    if (size >= 10 && b[8] == '{' && b[9] == '"' && !(b[4] | b[5] | b[6] | b[7])) return "a safetensors file";
    return NULL;
}
