// fuse.h: private to fuse*.c, which turn nodes into groups.
//
//   fuse.c         roles of nodes, drafts of groups, which to merge
//   fuse_merge.c   whether two drafts may merge
//   fuse_keep.c    which values are stored, which are made again where they are used
//   fuse_group.c   drafts become Groups
//   fuse_coll.c    collectives
#pragma once
#include "pico.h"

// What becomes of a node. PULLED: an expression made wherever it is used. LIBRARY: a group of a kind of its own.
// MEMBER: computed in a row or column group. LOADED: a leaf with storage.
typedef enum { ROLE_DEAD, ROLE_LOADED, ROLE_PULLED, ROLE_LIBRARY, ROLE_MEMBER } Role;

// A group in the making. nouter -1: no reduction and no row scalars, so any axes may be the rows.
typedef struct {
    GroupKind kind;
    uint8_t seg;
    bool gone;             // merged in another, or nothing in it is needed
    bool alone;            // never merged
    Val *nodes, *refs;     // vecs: computed here; read (members, library results, leaves), with repetitions
    Val *far;              // vec: those of refs that are read at another position than their own
    Val first, last;       // smallest and largest of nodes, but for accumulates and updates: nothing reads those
    Axis dom[MAX_AXES]; int ndom, nouter;
    Axis red[MAX_AXES]; int nred;
    uint32_t seen;         // stamp of the search that came here last
    const char *why;
} Draft;

typedef struct { Val v; bool far; } Ref;

typedef struct {
    Graph *g;
    size_t n;
    uint8_t *live, *role, *forced;  // forced: must be stored, whatever fuse decides
    uint8_t *formula;      // size of an expression of constants, scalars and indices alone; FORMULA_LARGE; 0: it is none
    uint8_t *stored;       // = g->stored
    uint32_t *uses;        // by live nodes
    uint32_t *draft_of;    // 0: none
    Draft *drafts;         // vec; [0] unused
    uint32_t *near_seen, *far_seen, stamp;  // of the trace that came to a node last
    Ref *refs;             // vec: result of trace_refs
    Val *stack; uint8_t *stack_far;         // vecs: work of trace_refs
    uint32_t *added;       // by accumulator: its ACCUMULATEs
    Val *cluster;          // by node: a smaller one of its cluster, or itself (fuse_merge.c)
    Val **readers;         // by PARAM or STATE leaf: vec of members of segment UPDATE that read it
    uint32_t search;
} Fuse;

enum { FORMULA_CHEAP = 8, FORMULA_LARGE = 255 };

bool costly_function(Fn fn);            // of the order of an exponential
// Fills f->refs with what node v reads when it is computed in draft `home`: through views and expressions down to members
// and leaves. Before anything is stored (`drafting`) every member is an end; afterwards those that are neither stored
// nor of `home` are expressions.
void trace_refs(Fuse *f, Val v, uint32_t home, bool drafting);
bool try_merge(Fuse *f, uint32_t into, uint32_t from, const char **why);  // false: why not
uint32_t new_draft(Fuse *f, GroupKind kind, Val v);
void note_readers(Fuse *f, const Draft *d);              // of leaves that may be updated
void draft_reshard(Fuse *f, Val v);
void add_collective(Fuse *f, uint32_t draft);  // its two groups
void join_cluster(Fuse *f, Val first, Val last);         // nodes that one draft spans
bool is_library(const Node *n);
bool is_result(const Node *n);           // writes what was there before, and has no readers
void fuse_keep(Fuse *f);
void fuse_groups(Fuse *f);
