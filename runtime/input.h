// input.h: files that come from outside, mapped read-only, and how their readers refuse them.
//
// Trap: a file that another program shortens while it is mapped ends the process by SIGBUS.
#pragma once
#include "base.h"

typedef struct { const uint8_t *base; uint64_t size; } Input;  // base is NULL when the file is empty

// false: `message` holds one sentence without the path
bool input_open(Input *in, const char *path, char *message, size_t message_size);
void input_close(Input *in);
// The bytes are not needed soon: they leave the process's resident memory but stay readable.
void input_release(const Input *in, const void *first, uint64_t bytes);

// Writes the sentence and returns false, so that readers can `return refuse(...)`.
bool refuse(char *message, size_t message_size, const char *fmt, ...) PRINTF_LIKE(3, 4);
// A name that came from outside, fit for one line of a message: cut and without control characters
typedef struct { char s[96]; } Shown;
Shown shown(const char *name);
// What a file of another kind seems to be ("a gzip archive"), from its first bytes; NULL if nothing is known of it.
const char *foreign_format(const void *bytes, uint64_t size);
