// coll_mpi.h: libmpi as opened at run time, and one rank's state (coll_mpi*.c).
//
// Open MPI's binary interface (libmpi.so.40): handles are pointers to exported objects, constants as in its mpi.h. No header
// of MPI is needed to build.
#pragma once
#include "coll_reduce.h"
#include <pthread.h>
#include <stdatomic.h>

typedef void *MpiObject;  // communicator, datatype, operation, request
enum { MPI_FUNNELED = 1, MPI_ATTRIBUTE_TAG_UB = 0, MPI_ERROR_TEXT = 256 };

#define MPI_FUNCTIONS(X)                                                                                \
    X(Initialized, (int *flag))                                                                         \
    X(Init_thread, (int *argc, char ***argv, int required, int *provided))                              \
    X(Finalize, (void))                                                                                 \
    X(Abort, (MpiObject comm, int code))                                                                \
    X(Comm_rank, (MpiObject comm, int *rank))                                                           \
    X(Comm_size, (MpiObject comm, int *size))                                                           \
    X(Comm_dup, (MpiObject comm, MpiObject *copy))                                                      \
    X(Comm_free, (MpiObject *comm))                                                                     \
    X(Comm_get_attr, (MpiObject comm, int key, void *value, int *found))                                \
    X(Comm_set_errhandler, (MpiObject comm, MpiObject handler))                                         \
    X(Error_string, (int code, char *text, int *length))                                                \
    X(Isend, (const void *from, int n, MpiObject type, int to, int tag, MpiObject comm, MpiObject *r))  \
    X(Irecv, (void *to, int n, MpiObject type, int from, int tag, MpiObject comm, MpiObject *r))        \
    X(Testall, (int n, MpiObject *r, int *flag, void *statuses))                                        \
    X(Iallreduce, (const void *in, void *out, int n, MpiObject type, MpiObject op, MpiObject comm, MpiObject *r))
#define MPI_OBJECTS(X) X(comm_world) X(byte) X(int64_t) X(op_max) X(errors_return)

typedef struct {
#define X(name, args) int(*name) args;
    MPI_FUNCTIONS(X)
#undef X
#define X(name) MpiObject name;
    MPI_OBJECTS(X)
#undef X
} Mpi;
bool mpi_load(Mpi *m, char *message, size_t message_size);

typedef struct {                 // a collective of the plan
    const uint32_t *ranks;       // [k]
    uint32_t k, me;              // k 0: not a member
    const PlanColl *what;
    const CollPart *parts;
    uint64_t area;               // bytes kept for one member's piece
    bool one_run;                // every piece is contiguous: sent and received where it lies
    char *stage;                 // [k] received, [k] to send unless one_run
    uint64_t stage_bytes, stage_at;
    MpiObject *requests;         // of the phase that is under way
    int nrequests;
    enum { IDLE, QUEUED, SHARES, RESULTS, DONE } state;  // SHARES: all-to-all of shares; RESULTS: all-gather
} Exchange;

typedef struct MpiMessage {      // a post or a send, in chunks
    MpiObject *requests;
    int nrequests;
    bool active;
    struct MpiMessage *next;     // among the unused
} MpiMessage;

typedef struct {
    Coll coll;
    Mpi mpi;
    MpiObject for_colls, for_messages, for_all;  // communicators
    pthread_t owner;             // the one thread that may call MPI
    atomic_bool aborted;
    uint32_t tag_limit;
    Exchange *exchanges;         // by collective of the plan
    CollHandle *active;          // started and not over, oldest first
    uint32_t nactive;
    MpiMessage *messages, *unused;
    uint32_t nmessages;
    char *pool;                  // staging
    uint64_t pool_bytes;
    const char **inputs;         // [ranks] for reducing
    MpiObject all;               // request of max() and barrier()
    bool all_done;
    Arena memory;
} MpiColl;

extern uint64_t coll_mpi_chunk;  // largest message in bytes; longer ones go in several. Lowered by tests only
uint64_t mpi_chunks(uint64_t bytes);
void mpi_check(const MpiColl *m, int code);
void mpi_isend(MpiColl *m, MpiObject comm, MpiObject *requests, int *n, const char *from, uint64_t bytes,
               uint32_t to, uint32_t tag);
void mpi_irecv(MpiColl *m, MpiObject comm, MpiObject *requests, int *n, char *to, uint64_t bytes,
               uint32_t from, uint32_t tag);
bool mpi_all_over(MpiColl *m, MpiObject *requests, int *n);
void exchange_open(MpiColl *m);  // sizes and staging of all collectives
void exchange_start(MpiColl *m, CollHandle h, const CollPart *parts);
bool exchange_drive(MpiColl *m);
