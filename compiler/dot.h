// dot.h: what dot*.c share: a picture of a stage as boxes and edges.
#pragma once
#include "pico.h"

typedef struct {
    char *label;
    const char *shape, *color;
    int cluster;    // 0: none
    bool rest;      // of layers that are not shown
    uint32_t count; // calls or launches that are this box
    uint64_t saved; // bytes that later segments read
    bool moves;     // a collective or what comes from another stage: its bytes are in its label
} Box;
typedef struct {
    uint32_t from, to;
    Val value;
} Edge;
typedef struct { // a leaf that is a line in the label of a box
    uint32_t box;
    Val value;
    int layer; // that the box is drawn with
    bool added;
} Leaf;
typedef struct {
    const Graph *g;
    char prefix[16];  // of names: "" or, with several stages, the stage's number
    Box *boxes; // vecs
    char **clusters;
    Edge *edges;
    Leaf *leaves;
    bool stacked;     // clusters are segments, one below the other
    uint32_t *box_of; // node -> box + 1, 0: read through
    int *like;        // layer + 1 -> the first of the equal layers before it, + 1; 0: shown in full
    uint32_t *rest;   // (layer + 1) * SEG_COUNT + segment -> the box of the layers that are not shown
    uint32_t *coll_of, *coll_box;  // RESHARD node -> collective + 1; collective -> its box
} Picture;

static inline bool dot_is_leaf(const Node *x)
{
    return is_storage(x);
}

// dot_boxes.c: boxes and clusters, and the edges of level kernel
void dot_boxes(Picture *p, const char *level);
// dot_label.c. The labels are malloc'd; folded: of a box for many calls, without what differs between them.
void dot_put_shape(const Graph *g, Buf *b, const Node *x); // "seq 64, hidden 2048"
Val dot_weight_of(const Graph *g, Val v);                  // the parameter that a contraction multiplies by, 0: none
char *dot_node_label(const Graph *g, Val v);               // level layer
char *dot_op_label(const Graph *g, Val v, bool folded);
char *dot_group_label(const Graph *g, const Group *group, bool folded);
void dot_add_leaf_lines(Picture *p);

// dot_coll.c: collectives, buckets, what comes from other stages
void dot_find_colls(Picture *p);
uint32_t dot_coll_box(Picture *p, Val v, int cluster);  // of RESHARD v: made when first asked for, in that cluster
void dot_recv_boxes(Picture *p, bool backward);         // of RECV leaves, those of gradients too
uint8_t dot_coll_seg(const Picture *p, Val v);          // where the collective begins
void dot_bucket_boxes(Picture *p);                      // at levels that show forward only
void dot_bucket_edges(Picture *p);                      // at the others
// dot_stages.c: several stages side by side
void dot_stages(const Picture *stages, int n, const char *level, Buf *out);
// dot.c
void dot_escape(Buf *out, const char *s);
void dot_head(const Graph *g, bool several, bool stacked, Buf *out);
void dot_contents(const Picture *p, const char *level, Buf *out);
uint32_t dot_add_box(Picture *p, char *label, const char *shape, const char *color, int cluster);
