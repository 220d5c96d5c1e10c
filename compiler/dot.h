// dot.h: what dot.c and dot_boxes.c share: a picture as boxes and edges.
#pragma once
#include "pico.h"

typedef struct {
    char *label;
    const char *shape, *color;
    int cluster;
} Box;
typedef struct {
    uint32_t from, to;
    Val value;
} Edge;
typedef struct {
    const Graph *g;
    Box *boxes; // vecs
    char **clusters;
    Edge *edges;
    uint32_t *box_of; // node -> box + 1, 0: read through
    int *like;        // layer + 1 -> the first of the equal layers before it, + 1; 0: shown in full
    int *layer_of;    // node -> the layer it is drawn with: its own, or for the update that of its parameter
    uint32_t *rest;   // (layer + 1) * SEG_COUNT + segment -> the box of the layers that are not shown
} Picture;

void dot_boxes(Picture *p, const char *level); // dot_boxes.c: boxes, clusters, and the edges of level kernel
void dot_put_bytes(Buf *b, uint64_t n);        // "12.6 MB"
void dot_put_shape(const Graph *g, Buf *b, const Node *x); // "seq 64, hidden 2048"
