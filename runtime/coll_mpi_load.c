// coll_mpi_load.c: opens libmpi and finds what picorun calls in it.
//
// Traps: Open MPI's own plugins look for its symbols, so the library is opened for all (RTLD_GLOBAL). MPICH's libmpi
// has another binary interface; it is known by the lack of Open MPI's objects.
#include "coll_mpi.h"
#include <dlfcn.h>

static bool find(void *library, const char *name, void *to, char *message, size_t message_size)
{
    void *found = dlsym(library, name);
    memcpy(to, &found, sizeof found); // a function's address, too
    if (!found)
        snprintf(message, message_size,
                 "libmpi.so lacks %s: Open MPI 3 or newer is needed, other MPI libraries do not fit", name);
    return found;
}

bool mpi_load(Mpi *m, char *message, size_t message_size)
{
    void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL);
    if (!library) library = dlopen("libmpi.so", RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        snprintf(message, message_size, "ranks as MPI processes need Open MPI, but libmpi.so.40 cannot be loaded");
        return false;
    }
#define X(name) &&find(library, "ompi_mpi_" #name, &m->name, message, message_size)
    bool objects = true MPI_OBJECTS(X);
#undef X
#define X(name, args) &&find(library, "MPI_" #name, &m->name, message, message_size)
    return objects MPI_FUNCTIONS(X);
#undef X
}

bool coll_mpi_launched(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
    for (size_t i = 0; i < countof(names); i++)
        if (getenv(names[i])) return true;
    return false;
}
