// test_jit.c: compiling and the kernel cache, in the conditions that users have.
#include "faults.h"
#include "jit.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

static const char *const texts[] = {"int one(void) { return 1; }\n", "int two(void) { return 2; }\n"};

static void use(int compiled)
{
    JitStats stats;
    Jit *j = jit_open(texts, 2, &stats);
    assert_int_equal(stats.compiled, compiled);
    for (size_t i = 0; i < 2; i++) {
        void *symbol = jit_symbol(j, i, i ? "two" : "one");
        int (*f)(void);
        assert_non_null(symbol);
        memcpy(&f, &symbol, sizeof f);
        assert_int_equal(f(), (int)i + 1);
        assert_null(jit_symbol(j, i, i ? "one" : "two"));
    }
    jit_close(j);
}

static void fresh_cache(const char *name)
{
    setenv("XDG_CACHE_HOME", scratch_file(name), 1);
    unsetenv("CC");
}

// Calls f for every file of the cache; returns how many there are.
static int each_entry(const char *name, void (*f)(const char *path))
{
    int n = 0;
    Buf folder = {0}, path = {0};
    buf_printf(&folder, "%s/pico", scratch_file(name));
    DIR *d = opendir(folder.s);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        buf_free(&path);
        buf_printf(&path, "%s/%s", folder.s, e->d_name);
        f(path.s);
        n++;
    }
    if (d) closedir(d);
    buf_free(&folder);
    buf_free(&path);
    return n;
}

static void leave(const char *path)
{
    (void)path;
}

static void truncate_half(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
}

static void empty(const char *path)
{
    assert_int_equal(truncate(path, 0), 0);
}

static void change_byte(const char *path)
{
    int fd = open(path, O_RDWR);
    char c;
    assert_int_equal(pread(fd, &c, 1, 4096 + 17), 1);
    c ^= 1;
    assert_int_equal(pwrite(fd, &c, 1, 4096 + 17), 1);
    close(fd);
}

static void keeps_what_it_made(void **state)
{
    (void)state;
    fresh_cache("a b 'c' $(d) \"e\"");
    use(2);
    use(0);
    assert_int_equal(each_entry("a b 'c' $(d) \"e\"", leave), 2);
}

static void rebuilds_damage(void **state)
{
    (void)state;
    fresh_cache("damage");
    use(2);
    void (*const damage[])(const char *) = {truncate_half, empty, change_byte};
    for (size_t i = 0; i < countof(damage); i++) {
        assert_int_equal(each_entry("damage", damage[i]), 2);
        use(2);
        use(0);
    }
}

static void tells_compilers_apart(void **state)
{
    (void)state;
    fresh_cache("apart");
    use(2);
    setenv("CC", "cc -DOTHER", 1);
    use(2);
    use(0);
    const char *own = scratch_file("my compiler");
    FILE *f = fopen(own, "w");
    fputs("#!/bin/sh\nexec cc \"$@\"\n", f);
    fclose(f);
    assert_int_equal(chmod(own, 0755), 0);
    setenv("CC", own, 1);
    use(2);
}

static void works_without_a_cache(void **state)
{
    (void)state;
    unsetenv("CC");
    setenv("TMPDIR", scratch_file("tmp"), 1);
    mkdir(scratch_file("tmp"), 0700);
    setenv("XDG_CACHE_HOME", "/dev/null/cache", 1);
    use(2);
    use(2);
    assert_int_equal(rmdir(scratch_file("tmp")), 0); // empty again
    unsetenv("TMPDIR");
    setenv("XDG_CACHE_HOME", "relative", 1);
    char *home = getenv("HOME") ? xstrdup(getenv("HOME")) : NULL;
    unsetenv("HOME");
    use(2);
    if (home) setenv("HOME", home, 1);
    free(home);
}

static void open_jit(void *arg)
{
    JitStats stats;
    jit_open(arg, 1, &stats);
}

static void says_what_is_missing(void **state)
{
    (void)state;
    fresh_cache("missing");
    setenv("CC", "no-such-compiler -m64", 1);
    expect_fatal(open_jit, (void *)(uintptr_t)texts, "no C compiler: 'no-such-compiler -m64' is not found");
    unsetenv("CC");
    char *path = xstrdup(getenv("PATH"));
    setenv("PATH", "/nonexistent", 1);
    expect_fatal(open_jit, (void *)(uintptr_t)texts, "install one (Debian: apt install gcc) or set CC");
    setenv("PATH", path, 1);
    free(path);
}

static void check_kept_source(const char *path)
{
    assert_non_null(strstr(path, ".c"));
}

static void shows_what_the_compiler_said(void **state)
{
    (void)state;
    fresh_cache("refused");
    const char *bad = "int f(void) { return undeclared_thing; }\n";
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        int fd = open(scratch_file("said"), O_WRONLY | O_CREAT, 0600);
        dup2(fd, 2);
        on_exit(leave_, NULL);
        open_jit(&bad);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    char *said = read_file(scratch_file("said"), NULL);
    assert_non_null(strstr(said, "undeclared_thing"));
    assert_non_null(strstr(said, "refuses the kernels in '"));
    free(said);
    assert_int_equal(each_entry("refused", check_kept_source), 1);
}

static void races(void **state)
{
    (void)state;
    fresh_cache("race");
    fflush(NULL);
    for (int i = 0; i < 4; i++)
        if (!fork()) {
            on_exit(leave_, NULL);
            JitStats stats;
            Jit *j = jit_open(texts, 2, &stats);
            _exit(jit_symbol(j, 1, "two") ? 0 : 1);
        }
    for (int i = 0, status; i < 4; i++) {
        wait(&status);
        assert_int_equal(status, 0);
    }
    assert_int_equal(each_entry("race", leave), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_what_it_made),
        cmocka_unit_test(rebuilds_damage),
        cmocka_unit_test(tells_compilers_apart),
        cmocka_unit_test(works_without_a_cache),
        cmocka_unit_test(says_what_is_missing),
        cmocka_unit_test(shows_what_the_compiler_said),
        cmocka_unit_test(races),
    };
    return cmocka_run_group_tests(tests, NULL, remove_scratch);
}
