// verify.h: what must hold after each pass (the sentences of the table in main.c). Each ends in bug() when it doesn't.
#pragma once
#include "pico.h"
void graph_check(Graph *g);  // operands come first and agree in dtype and axes
void verify_grad(Graph *g);
void verify_shard(Graph *g);
void verify_bucket(Graph *g);
void verify_save(Graph *g);
void verify_select(Graph *g);
void verify_fuse(Graph *g);
void verify_order(Graph *g);
void verify_place(Graph *g);
void verify_emit(Graph *g);
