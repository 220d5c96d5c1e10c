// json.c: see json.h. Numbers are written with the "C" locale's point whatever the program's locale is.
#include "json.h"
#include <locale.h>
#include <math.h>

void json_string(Buf *b, const char *s)
{
    buf_puts(b, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') buf_printf(b, "\\%c", c);
        else if (c < 32 || c == 127) buf_printf(b, "\\u%04x", c);
        else buf_write(b, s, 1);
    }
    buf_puts(b, "\"");
}

void json_number(Buf *b, int digits, double value)
{
    if (!isfinite(value)) {
        buf_puts(b, "null");
        return;
    }
    char text[64];
    snprintf(text, sizeof text, "%.*g", digits, value);
    const char *point = localeconv()->decimal_point;
    char *at = strcmp(point, ".") ? strstr(text, point) : NULL;
    if (!at) {
        buf_puts(b, text);
        return;
    }
    buf_write(b, text, (size_t)(at - text));
    buf_puts(b, ".");
    buf_puts(b, at + strlen(point));
}
