// error.c: the user's errors. "file:line: sentence" and the source line below, exit 1.
//
// The line is read from the file the place names; if that can't be read (a description that came through a pipe,
// a file removed meanwhile), it is taken from graph->source. The sentence says what to write instead; that is the
// caller's. Trap: `loc` 0 is a fault without a place; it prints the program's name instead.
#include "pico.h"

// Line `line` (from 1) of a text, without its newline; NULL if the text is shorter.
static const char *find_line(const char *text, int line, int *length)
{
    for (; line > 1; line--) {
        text = strchr(text, '\n');
        if (!text) return NULL;
        text++;
    }
    *length = (int)strcspn(text, "\r\n");
    return *text ? text : NULL;
}

static void print_source_line(const Graph *g, const LocInfo *place)
{
    char *file = read_source_again(place->file);
    int length = 0;
    const char *line = NULL;
    if (file) line = find_line(file, place->line, &length);
    else if (g->source) line = find_line(g->source, place->line, &length);
    if (line && length > 0) fprintf(stderr, "    %.*s\n", length, line);
    free(file);
}

void err(const Graph *g, Loc loc, const char *fmt, ...)
{
    fflush(stdout);
    const LocInfo *place = g && loc < vec_len(g->locs) && loc ? &g->locs[loc] : NULL;
    if (place) fprintf(stderr, "%s:%d: ", place->file, place->line);
    else fprintf(stderr, "%s: ", program_name);
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    if (place && place->line > 0) print_source_line(g, place);
    exit(1);
}
