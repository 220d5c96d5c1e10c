// emit_template.c: skeletons with holes.
//
// A template file is cut into sections by lines "//: NAME"; what stands before the first is a comment for readers.
// ${hole} within a line is replaced by its text. Alone in its line it may be any number of lines, each of which gets
// that line's indentation, so that no generator has to know how deep it stands.
#include "emit.h"

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static const char *line_end(const char *s)
{
    return s + strcspn(s, "\n");
}

static const char *find_section(const char *text, const char *section, const char **end)
{
    const char *found = NULL;
    size_t n = strlen(section);
    for (const char *s = text; *s; s = *line_end(s) ? line_end(s) + 1 : line_end(s)) {
        if (strncmp(s, "//: ", 4)) continue;
        if (found) {
            *end = s;
            return found;
        }
        if (!strncmp(s + 4, section, n) && line_end(s) == s + 4 + n) found = s + 4 + n + 1;
    }
    if (found) *end = found + strlen(found);
    return found;
}

static const Hole *find_hole(const Hole *holes, size_t n, const char *name, size_t length)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(holes[i].name) == length && !strncmp(holes[i].name, name, length)) return &holes[i];
    return NULL;
}

static void put_lines(Buf *out, const char *text, const char *indent, int width)
{
    for (const char *s = text; *s;) {
        const char *end = line_end(s);
        if (end > s) buf_printf(out, "%.*s", width, indent);
        buf_write(out, s, (size_t)(end - s));
        buf_puts(out, "\n");
        s = *end ? end + 1 : end;
    }
}

static void expand_line(Buf *out, const char *line, size_t length, const Hole *holes, size_t n)
{
    int width = (int)strspn(line, " ");
    const char *end = line + length;
    if (length > (size_t)width + 3 && line[width] == '$' && end[-1] == '}' && strcspn(line, "}") == length - 1) {
        const Hole *hole = find_hole(holes, n, line + width + 2, length - (size_t)width - 3);
        if (hole) {
            put_lines(out, hole->text, line, width);
            return;
        }
    }
    for (const char *s = line; s < end;) {
        const char *close = s[0] == '$' && s[1] == '{' ? strchr(s, '}') : NULL;
        const Hole *hole = close ? find_hole(holes, n, s + 2, (size_t)(close - s - 2)) : NULL;
        if (hole)
            buf_puts(out, hole->text);
        else
            buf_write(out, s, 1);
        s = hole ? close + 1 : s + 1;
    }
    buf_puts(out, "\n");
}

void template_expand(Buf *out, const char *file, const char *section, const Hole *holes, size_t n)
{
    const char *text = embedded_template(file), *end = NULL;
    const char *s = text ? find_section(text, section, &end) : NULL;
    if (!s) bug("template %s has no section '%s'", file, section);
    while (s < end) {
        const char *stop = line_end(s);
        expand_line(out, s, (size_t)(stop - s), holes, n);
        s = *stop ? stop + 1 : stop;
    }
}

bool mentions(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *s = text; (s = strstr(s, name)) != NULL; s += n)
        if (!(s > text && is_word(s[-1])) && !is_word(s[n])) return true;
    return false;
}
