// replay.c: runs a fuzz target over files, and over the files in folders, that are named as arguments.
//
// It stands in for libFuzzer's main, so that each corpus is part of the ordinary tests and needs no clang.
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);
static long files;

// The bytes are copied to a block of their exact size, so that the sanitizer sees a read beyond them.
static void replay_file(const char *path, size_t size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(size ? size : 1);
    if (!f || !bytes || fread(bytes, 1, size, f) != size) {
        fprintf(stderr, "cannot read '%s'\n", path);
        exit(1);
    }
    fclose(f);
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    files++;
}

static void replay(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) {
        fprintf(stderr, "cannot read '%s'\n", path);
        exit(1);
    }
    if (!S_ISDIR(st.st_mode)) {
        replay_file(path, (size_t)st.st_size);
        return;
    }
    DIR *folder = opendir(path);
    for (struct dirent *e; folder && (e = readdir(folder));) {
        if (e->d_name[0] == '.') continue;
        size_t n = strlen(path) + strlen(e->d_name) + 2;
        char *name = malloc(n);
        if (!name) exit(1);
        snprintf(name, n, "%s/%s", path, e->d_name);
        replay(name);
        free(name);
    }
    if (folder) closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) replay(argv[i]);
    printf("%ld files replayed\n", files);
    return files ? 0 : 1;
}
