// nvrtc_check FILE.cu..: do emitted CUDA kernels compile for sm_80, sm_90 and sm_100? Needs the toolkit, no GPU.
//
//   nvrtc_check --available        exit 0 if NVRTC can be loaded, else 77
//   nvrtc_check [--sm N].. FILE..  exit 0 if all compile, 1 with NVRTC's message, 77 without NVRTC
//
// A program takes NVRTC over a second, most of it start-up, so all files of a call are compiled as one: the prelude,
// which they share, once (it ends at the line KERNELS_BELOW), then every kernel.
#include "base.h"
#include <dlfcn.h>

#define KERNELS_BELOW "// ---- kernels\n"

typedef struct Program *Prog;
static struct {
    int (*create)(Prog *, const char *src, const char *name, int nheaders, const char *const *headers,
                  const char *const *names);
    int (*compile)(Prog, int noptions, const char *const *options);
    int (*log_size)(Prog, size_t *);
    int (*log)(Prog, char *);
    int (*destroy)(Prog *);
    const char *(*error)(int);
} nvrtc;

static bool load(void)
{
    static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    void *lib = NULL;
    for (size_t i = 0; !lib && i < countof(names); i++) lib = dlopen(names[i], RTLD_NOW);
    if (!lib) return false;
    struct {
        const char *name;
        void *to;
    } symbols[] = {{"nvrtcCreateProgram", &nvrtc.create},       {"nvrtcCompileProgram", &nvrtc.compile},
                   {"nvrtcGetProgramLogSize", &nvrtc.log_size}, {"nvrtcGetProgramLog", &nvrtc.log},
                   {"nvrtcDestroyProgram", &nvrtc.destroy},     {"nvrtcGetErrorString", &nvrtc.error}};
    for (size_t i = 0; i < countof(symbols); i++) {
        void *symbol = dlsym(lib, symbols[i].name);
        if (!symbol) return false;
        memcpy(symbols[i].to, &symbol, sizeof symbol);
    }
    return true;
}

static void append_file(Buf *program, const char *path)
{
    char *text = read_file(path, NULL);
    if (!text) fatal("%s:", path);
    const char *kernels = strstr(text, KERNELS_BELOW);
    if (!kernels) fatal("%s: no line \"%.15s\"", path, KERNELS_BELOW);
    buf_puts(program, program->n ? kernels : text);
    free(text);
}

static bool compile(const char *text, const char *sm)
{
    Prog program;
    char arch[64];
    size_t size = 0;
    snprintf(arch, sizeof arch, "--gpu-architecture=sm_%s", sm);
    const char *options[] = {arch, "--fmad=false"};
    int error = nvrtc.create(&program, text, "kernels.cu", 0, NULL, NULL);
    if (error) fatal("NVRTC: %s", nvrtc.error(error));
    error = nvrtc.compile(program, countof(options), options);
    if (error && !nvrtc.log_size(program, &size) && size > 1) {
        char *log = xcalloc(size + 1, 1);
        nvrtc.log(program, log);
        fprintf(stderr, "sm_%s: %s\n", sm, log);
        free(log);
    } else if (error)
        fprintf(stderr, "sm_%s: %s\n", sm, nvrtc.error(error));
    nvrtc.destroy(&program);
    return !error;
}

int main(int argc, char **argv)
{
    program_name = "nvrtc_check";
    const char **archs = NULL;
    Buf program = {0};
    if (!load()) {
        fprintf(stderr, "nvrtc_check: skipped: no NVRTC on this machine\n");
        return 77;
    }
    if (argc == 2 && !strcmp(argv[1], "--available")) return 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--sm") && i + 1 < argc)
            vec_push(archs, argv[++i]);
        else
            append_file(&program, argv[i]);
    }
    if (!program.n) usage_error("no file given");
    if (!archs) {
        vec_push(archs, "80");
        vec_push(archs, "90");
        vec_push(archs, "100");
    }
    bool good = true;
    for (size_t i = 0; i < vec_len(archs); i++) good &= compile(program.s, archs[i]);
    return !good;
}
