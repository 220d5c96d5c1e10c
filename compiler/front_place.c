// front_place.c: where an error of the description is, and the words its sentence is made of.
//
// Two kinds of place. A line of Lua: the innermost frame of the user's own files (a call inside nn.lua is the fault of
// the line that called nn). A column of an op's text: long strings are verbatim but for CRLF and a first newline, so
// the text is searched in its file from the line of the pico.op call on. A text that was put together at run time is
// not found there; then the place is the call's line, and the text's own line is shown.
//
// Traps: all lists in sentences are sorted or in declared order, never in hash order. The strings returned live until
// the graph's arena goes.
#include "front.h"
#include <math.h>

// ------------------------------------------------------------------------------------------------------- frames
static bool file_frame(lua_State *L, int level, lua_Debug *ar)
{
    if (!lua_getstack(L, level, ar)) return false;
    lua_getinfo(L, "Sl", ar);
    return true;
}

static bool has_place(const lua_Debug *ar)
{
    return ar->currentline > 0 && ar->source[0] == '@';
}

bool user_frame(lua_State *L, lua_Debug *ar)
{
    for (int level = 0; file_frame(L, level, ar); level++)
        if (has_place(ar) && !(fr.library && !strcmp(ar->source, fr.library))) return true;
    for (int level = 0; file_frame(L, level, ar); level++)
        if (has_place(ar)) return true;
    return false;
}

void front_enter(lua_State *L)
{
    lua_Debug ar;
    fr.frame = NULL;
    fr.g->cur_op = 0;
    if (user_frame(L, &ar)) fr.g->cur_loc = graph_loc(fr.g, ar.source + 1, ar.currentline);
    if (vec_len(fr.g->nodes) > 1000000) front_err("the description makes more than a million nodes");
}

// ----------------------------------------------------------------------------------------------- the text of ops
typedef struct {
    const char *path, *content;
} SourceFile;

// The file's text as Lua's long strings have it: CRLF and CR are LF. NULL if it can't be read (any more).
static const char *file_content(const char *path)
{
    static SourceFile *files;
    for (size_t i = 0; i < vec_len(files); i++)
        if (!strcmp(files[i].path, path)) return files[i].content;
    char *text = read_source_again(path), *to = text;
    for (const char *from = text; from && (*to = *from); from++) {
        if (*from == '\r') {
            *to = '\n';
            if (from[1] == '\n') from++;
        }
        to++;
    }
    vec_push(files, (SourceFile){intern(path), text ? arena_strdup(&fr.g->arena, text) : NULL});
    free(text);
    return files[vec_len(files) - 1].content;
}

static const char *line_start(const char *text, int line)
{
    for (; text && line > 1; line--) {
        text = strchr(text, '\n');
        if (text) text++;
    }
    return text;
}

const OpText *op_text(lua_State *L, const char *text)
{
    OpText *t = arena_new(&fr.g->arena, OpText, 1);
    t->text = arena_strdup(&fr.g->arena, text);
    t->loc = fr.g->cur_loc;
    lua_Debug ar;
    int level = 0;
    while (file_frame(L, level, &ar) && !has_place(&ar)) level++;
    if (!has_place(&ar)) return t;
    t->file = arena_strdup(&fr.g->arena, ar.source + 1);
    t->loc = graph_loc(fr.g, t->file, ar.currentline);
    const char *content = file_content(t->file), *from = line_start(content, ar.currentline);
    const char *at = from ? strstr(from, text) : NULL;
    if (!at && content) at = strstr(content, text);
    if (at) t->content = content, t->offset = (size_t)(at - content);
    return t;
}

// -------------------------------------------------------------------------------------------------------- errors
static void print_caret(const char *line, size_t column)
{
    int length = (int)strcspn(line, "\n");
    fprintf(stderr, "    %.*s\n    ", length, line);
    for (size_t i = 0; i + 1 < column; i++) {
        if (line[i] == '\t')
            fputc('\t', stderr);
        else if ((line[i] & 0xC0) != 0x80)
            fputc(' ', stderr); // a letter of UTF-8 is one column wide
    }
    fputs("^\n", stderr);
}

static _Noreturn void report_pos(const OpText *t, int pos, Loc call, const char *fmt, va_list args)
{
    fflush(stdout);
    const char *text = t->content ? t->content : t->text;
    size_t at = (t->content ? t->offset : 0) + (size_t)(pos > 0 ? pos - 1 : 0);
    int line = 1;
    size_t start = 0;
    for (size_t i = 0; i < at && text[i]; i++)
        if (text[i] == '\n') line++, start = i + 1;
    const LocInfo *place = &fr.g->locs[t->loc];
    if (t->content)
        fprintf(stderr, "%s:%d:%zu: ", t->file, line, at - start + 1);
    else
        fprintf(stderr, "%s:%d: ", t->loc ? place->file : options.model_path, place->line);
    vfprintf(stderr, fmt, args);
    if (call && call != t->loc) fprintf(stderr, " (called at %s)", loc_text(call));
    fputc('\n', stderr);
    print_caret(text + start, at - start + 1);
    exit(1);
}

void front_err_pos(const OpText *t, int pos, Loc call, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    report_pos(t, pos, call, fmt, args);
}

void front_err(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (fr.frame && fr.frame->pos) report_pos(fr.frame->op->text, fr.frame->pos, fr.frame->loc, fmt, args);
    Buf b = {0};
    char *s;
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    s = xmalloc((size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, fmt, args);
    va_end(args);
    buf_puts(&b, s);
    err(fr.g, fr.g->cur_loc, "%s", b.s);
}

// --------------------------------------------------------------------------------------------------------- words
const char *loc_text(Loc loc)
{
    const LocInfo *l = &fr.g->locs[loc];
    return arena_printf(&fr.g->arena, "%s:%d", l->file ? l->file : "?", l->line);
}

const char *near_name(const char *name, const char **names, size_t n)
{
    const char *best = nearest_name(name, n, names);
    return best ? arena_printf(&fr.g->arena, "; did you mean '%s'?", best) : "";
}

const char *axes_text(int n, const Axis *axes)
{
    if (n == 0) return "no axes";
    Buf b = {0};
    for (int i = 0; i < n; i++) buf_printf(&b, "%s%s", i ? " " : "", axis_name(fr.g, axes[i]));
    const char *s = arena_strdup(&fr.g->arena, b.s);
    buf_free(&b);
    return s;
}

// The name of the user's variable that holds the value at `index`: a local or an upvalue of the innermost user frame.
static const char *variable_name(lua_State *L, int index)
{
    lua_Debug ar;
    const char *name, *found = NULL;
    index = lua_absindex(L, index);
    if (!user_frame(L, &ar)) return NULL;
    for (int i = 1; (name = lua_getlocal(L, &ar, i)); i++) {
        if (lua_rawequal(L, -1, index) && name[0] != '(') found = name;
        lua_pop(L, 1);
    }
    if (found) return found;
    lua_getinfo(L, "f", &ar);
    for (int i = 1; (name = lua_getupvalue(L, -1, i)); i++) {
        if (lua_rawequal(L, -1, index) && name[0]) found = name;
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return found;
}

const char *tensor_text(lua_State *L, int index)
{
    if (lua_type(L, index) == LUA_TNUMBER) return arena_strdup(&fr.g->arena, number_text(lua_tonumber(L, index)));
    const Tensor *t = tensor_test(L, index);
    if (!t) return luaL_typename(L, index);
    const char *name = variable_name(L, index);
    if (!name) name = t->name ? t->name : "x";
    if (t->scalar) return arena_strdup(&fr.g->arena, name);
    Buf b = {0};
    buf_printf(&b, "%s[", name);
    const Node *n = t->v ? node_of(fr.g, t->v) : NULL;
    Axis both[2 * MAX_AXES];
    int count = 0;
    for (int i = 0; n && i < n->naxes; i++) both[count++] = n->axes[i];
    for (int i = 0; !n && i < t->a.naxes; i++) both[count++] = t->a.axes[i];
    for (int i = 0; !n && i < t->b.naxes; i++)
        if (value_axis(&t->a, t->b.axes[i]) < 0) both[count++] = t->b.axes[i];
    for (int i = 0; i < count; i++) buf_printf(&b, "%s%s", i ? ", " : "", axis_name(fr.g, both[i]));
    buf_puts(&b, "]");
    const char *s = arena_strdup(&fr.g->arena, b.s);
    buf_free(&b);
    return s;
}

const char *number_text(double x)
{
    char text[40];
    if (isnan(x)) return "nan";
    if (isinf(x)) return x > 0 ? "inf" : "-inf";
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    if (fabs(x) < 1e15 && x == floor(x)) snprintf(text, sizeof text, "%.0f", x);
    return arena_strdup(&fr.g->arena, text);
}
