// faults.h: for tests: expects that a call ends by fatal() with a given sentence, in a child process; small files.
#pragma once
#include "base.h"
#include <setjmp.h>
#include <sys/wait.h>
#include <unistd.h>
// after setjmp.h, which it needs
#include <cmocka.h>

// A child leaves at once: it has nothing to clean up, and leaks on the way out are no finding.
static inline void leave_(int status, void *unused)
{
    (void)unused;
    fflush(NULL);
    _exit(status);
}

// Runs call(arg) in a child; fails unless it exits with 1 and its one line on stderr contains `part`.
static inline void expect_fatal(void (*call)(void *), void *arg, const char *part)
{
    int ends[2];
    if (pipe(ends)) abort();
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        on_exit(leave_, NULL);
        call(arg);
        _exit(0);
    }
    close(ends[1]);
    char said[4096];
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n < sizeof said - 1; n += got > 0 ? (size_t)got : 0)
        got = read(ends[0], said + n, sizeof said - 1 - n);
    said[n] = 0;
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);
    char *line = strchr(said, '\n');
    bool one_line = line && !line[1];
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1 || !strstr(said, part) || !one_line)
        fail_msg("wanted exit 1 and one line with \"%s\"; got status %d and \"%s\"", part, status, said);
}

// a folder of this process, made at the first call
static inline const char *scratch_file(const char *name)
{
    static char folder[64];
    if (!*folder) {
        snprintf(folder, sizeof folder, "/tmp/pico-test-XXXXXX");
        if (!mkdtemp(folder)) abort();
    }
    Buf path = {0};
    buf_printf(&path, "%s/%s", folder, name);
    const char *kept = intern(path.s);
    buf_free(&path);
    return kept;
}

static inline const char *write_scratch(const char *name, const void *data, size_t size)
{
    const char *path = scratch_file(name);
    FILE *f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f)) abort();
    return path;
}

static inline int remove_scratch(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", scratch_file(""));
    return system(command);
}
