// jit_cache.c: the folder of compiled kernels, and the seal that tells a whole object from a damaged one.
//
// The folder is pico/ in $XDG_CACHE_HOME (if absolute) or $HOME/.cache. Where that cannot be written, a
// temporary folder serves this process and is removed: an unwritable cache is no error. Its files:
//   KEY.so  a shared object and its seal; written under another name, then renamed, so that several
//           processes may race for one entry and readers see a whole file or none
//   KEY.c   the text of a unit that did not compile
// The seal is a magic number and the XXH3_128 of all bytes before it. It guards against damage, not malice:
// who can write the folder can run code as its owner.
#include "jit.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

typedef struct {
    char magic[16];
    XXH128_canonical_t hash;
} Seal;
static const char seal_magic[16] = "pico kernels v1";

static bool make_folders(char *path)
{
    for (char *s = path + 1;; s++) {
        char ch = *s;
        if (ch != '/' && ch != 0) continue;
        *s = 0;
        bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
        *s = ch;
        if (!ok) return false;
        if (!ch) return access(path, R_OK | W_OK | X_OK) == 0;
    }
}

static KernelCache open_temporary(void)
{
    const char *tmp = getenv("TMPDIR");
    Buf b = {0};
    buf_printf(&b, "%s/pico-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(b.s)) fatal("cannot make a folder for compiled kernels in '%s' (TMPDIR):", tmp && *tmp ? tmp : "/tmp");
    return (KernelCache){.folder = b.s, .temporary = true};
}

KernelCache cache_open(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    Buf b = {0};
    if (cache && cache[0] == '/')
        buf_printf(&b, "%s/pico", cache);
    else if (home && home[0] == '/')
        buf_printf(&b, "%s/.cache/pico", home);
    else {
        warn("HOME is not set; compiled kernels are not kept");
        return open_temporary();
    }
    if (make_folders(b.s)) return (KernelCache){.folder = b.s};
    warn("the kernel cache '%s' cannot be written (%s); compiled kernels are not kept", b.s, strerror(errno));
    buf_free(&b);
    return open_temporary();
}

static void remove_folder(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlinkat(dirfd(d), e->d_name, 0);
    if (d) closedir(d);
    rmdir(path);
}

void cache_close(KernelCache *c)
{
    if (c->temporary && !c->keep) remove_folder(c->folder);
    free(c->folder);
    *c = (KernelCache){0};
}

static Seal seal_of(const char *bytes, size_t n)
{
    Seal s;
    memcpy(s.magic, seal_magic, sizeof s.magic);
    XXH128_canonicalFromHash(&s.hash, XXH3_128bits(bytes, n));
    return s;
}

bool cache_object_good(const char *path)
{
    size_t n;
    char *bytes = read_file(path, &n);
    bool ok = bytes && n > sizeof(Seal);
    if (ok) {
        Seal want = seal_of(bytes, n - sizeof want);
        ok = memcmp(bytes + n - sizeof want, &want, sizeof want) == 0;
    }
    free(bytes);
    return ok;
}

bool cache_object_seal(const char *path)
{
    size_t n;
    char *bytes = read_file(path, &n);
    int fd = bytes ? open(path, O_WRONLY | O_APPEND | O_CLOEXEC) : -1;
    bool ok = false;
    if (fd >= 0) {
        Seal s = seal_of(bytes, n);
        ok = write(fd, &s, sizeof s) == (ssize_t)sizeof s;
        ok = close(fd) == 0 && ok;
    }
    free(bytes);
    return ok;
}
