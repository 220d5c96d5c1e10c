// json.h: JSON text that programs of any locale read.
#pragma once
#include "base.h"

void json_string(Buf *b, const char *s);                 // quoted and escaped; bytes above 127 pass as they are
void json_number(Buf *b, int digits, double value);      // that many significant digits; null if not finite
