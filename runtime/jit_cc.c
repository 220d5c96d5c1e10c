// jit_cc.c: finds the system's C compiler, tells it from others, and starts it. No shell is involved.
//
// CC is honoured: the name or path of a program, or words separated by blanks ("gcc -m64", "ccache gcc").
// If CC as a whole names a file, blanks in it belong to the path.
//
// Trap: -march=native makes an object of this CPU's, so the identity has the CPU's features in it: a home
// folder may be shared between machines.
#define _GNU_SOURCE
#include "jit.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// Contraction stays off and -ffast-math is never used: the order and rounding of a sum are part of a
// kernel's meaning. -fno-math-errno lets sqrt be an instruction and changes no result.
static const char *const flags[] = {"-std=gnu11",      "-O2",     "-march=native", "-ffp-contract=off", "-fopenmp-simd",
                                    "-fno-math-errno", "-shared", "-fPIC"};

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

// The file that execvp would run, or NULL.
static char *find_program(const char *name)
{
    if (strchr(name, '/')) return is_program(name) ? xstrdup(name) : NULL;
    const char *path = getenv("PATH");
    if (!path) path = "/usr/local/bin:/usr/bin:/bin";
    for (const char *end; *path; path = *end ? end + 1 : end) {
        end = path + strcspn(path, ":");
        Buf b = {0};
        buf_write(&b, path, (size_t)(end - path));
        buf_printf(&b, "%s%s", b.n ? "/" : "./", name);
        if (is_program(b.s)) return b.s;
        buf_free(&b);
    }
    return NULL;
}

static char **split_words(const char *text)
{
    char **words = NULL;
    if (strchr(text, '/') && is_program(text)) {
        vec_push(words, xstrdup(text));
        return words;
    }
    for (const char *s = text + strspn(text, " \t\n"); *s; s += strspn(s, " \t\n")) {
        size_t n = strcspn(s, " \t\n");
        char *word = xmalloc(n + 1);
        memcpy(word, s, n);
        word[n] = 0;
        vec_push(words, word);
        s += n;
    }
    return words;
}

static int start(char *const *argv, const char *out, const char *err)
{
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (strcmp(out, err) == 0)
        posix_spawn_file_actions_adddup2(&files, 1, 2);
    else
        posix_spawn_file_actions_addopen(&files, 2, err, O_WRONLY, 0);
    pid_t pid;
    int error = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    errno = error;
    return error ? -1 : (int)pid;
}

// What `compiler --version` prints. A pipe of the parent's is read: nothing is written to disk for it.
static void append_version(Buf *b, char *const *words, size_t nwords)
{
    int fd[2];
    if (pipe2(fd, O_CLOEXEC) != 0) fatal("cannot make a pipe:");
    char **argv = NULL, out[32];
    for (size_t i = 0; i < nwords; i++) vec_push(argv, words[i]);
    vec_push(argv, "--version");
    vec_push(argv, NULL);
    snprintf(out, sizeof out, "/dev/fd/%d", fd[1]);
    int pid = start(argv, out, "/dev/null");
    int saved = errno;
    close(fd[1]);
    vec_free(argv);
    errno = saved;
    if (pid < 0) fatal("the C compiler '%s' does not start; set CC to one that does:", words[0]);
    char chunk[1024];
    for (ssize_t n; (n = read(fd[0], chunk, sizeof chunk)) != 0;) {
        if (n < 0 && errno != EINTR) break;
        if (n > 0) buf_write(b, chunk, (size_t)n);
    }
    close(fd[0]);
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
}

static void append_cpu(Buf *b)
{
    struct utsname u;
    if (uname(&u) == 0) buf_printf(b, "machine %s\n", u.machine);
    char *text = read_file("/proc/cpuinfo", NULL);
    static const char *const keys[] = {"model name", "flags", "Features", "CPU part", "CPU implementer"};
    for (size_t i = 0; text && i < countof(keys); i++) {
        const char *line = strstr(text, keys[i]);
        if (!line) continue;
        buf_write(b, line, strcspn(line, "\n"));
        buf_puts(b, "\n");
    }
    free(text);
}

Compiler compiler_find(void)
{
    const char *cc = getenv("CC");
    Compiler c = {0};
    if (!cc || !*cc) cc = "cc";
    c.words = split_words(cc);
    char *path = vec_len(c.words) ? find_program(c.words[0]) : NULL;
    if (!path)
        fatal("no C compiler: '%s' is not found, and kernels are compiled when a plan is loaded; install one "
              "(Debian: apt install gcc) or set CC",
              cc);
    char real[PATH_MAX];
    struct stat st = {0};
    Buf b = {0};
    stat(path, &st);
    buf_printf(&b, "%s %lld %lld\n", realpath(path, real) ? real : path, (long long)st.st_size, (long long)st.st_mtime);
    free(path);
    append_version(&b, c.words, vec_len(c.words));
    for (size_t i = 0; i < countof(flags); i++) vec_push(c.words, xstrdup(flags[i]));
    c.nwords = vec_len(c.words);
    for (size_t i = 0; i < c.nwords; i++) buf_printf(&b, "%s\n", c.words[i]);
    append_cpu(&b);
    c.identity = b.s;
    return c;
}

void compiler_free(Compiler *c)
{
    for (size_t i = 0; i < c->nwords; i++) free(c->words[i]);
    vec_free(c->words);
    free(c->identity);
    *c = (Compiler){0};
}

int compiler_start(const Compiler *c, const char *source, const char *object, const char *log)
{
    char **argv = NULL;
    for (size_t i = 0; i < c->nwords; i++) vec_push(argv, c->words[i]);
    vec_push(argv, "-o");
    vec_push(argv, (char *)(uintptr_t)object);
    vec_push(argv, (char *)(uintptr_t)source);
    vec_push(argv, "-lm");
    vec_push(argv, NULL);
    int pid = start(argv, log, log);
    int saved = errno;
    vec_free(argv);
    errno = saved;
    return pid;
}
