// options.c: what picoc does if nobody says otherwise. The only thing in this file, so that a test can have its own.
#include "pico.h"

Options options = {.seq = 128, .micro_batch = 8, .accum = 1, .dtype = F32, .target = TARGET_CPU, .dot_level = "layer",
                   .tp = 1, .pp = 1, .dp = 1, .drop = DROP_NONE, .bucket_mb = 25, .sp = -1};
