// front_bind.c: binding, notation 4.2. The names of an op's header meet the axes of its arguments: by name, else by
// elimination, never by position.
//
//   1 axes in brackets are the caller's
//   2 tensors without `..`: equal names; then one name and one axis left over
//   3 tensors with `..`: equal names; then one name left and one axis that no other tensor's `..` holds
//
// Each rule goes over all tensors until nothing changes, so that the order of the header does not matter. Afterwards
// `..` is what the first tensor that has it leaves open, split axes are split, and renamings get their axes.
//
// Names are compared as the caller sees them: inside an op that calls itself on its `hidden`, an axis is called hidden
// whatever the argument calls it. Hygiene: an axis the op makes (a part, a renaming) whose name an argument has already
// becomes key'2. No argument can have such a name itself: it is no name of the notation.
#include "front.h"

// What the caller calls axis a; NULL if that name means another axis there.
static const char *caller_name(const Frame *caller, Axis a)
{
    const char *name = axis_name(fr.g, a);
    for (const Frame *f = caller; f; f = f->outer) {
        for (size_t i = 0; i < vec_len(f->bound); i++)
            if (f->bound[i].axis == a) return f->bound[i].name;
        for (size_t i = 0; i < vec_len(f->bound); i++)
            if (!strcmp(f->bound[i].name, name)) return NULL;
    }
    return name;
}

Axis op_axis(const Frame *f, const char *name)
{
    for (; f; f = f->outer)
        for (size_t i = 0; i < vec_len(f->bound); i++)
            if (!strcmp(f->bound[i].name, name)) return f->bound[i].axis;
    return 0;
}

static int add_once(int count, Axis *axes, Axis a)
{
    for (int i = 0; i < count; i++)
        if (axes[i] == a) return count;
    if (count < MAX_AXES) axes[count++] = a;
    return count;
}

int op_axes(const Frame *f, int n, const char *const *names, Axis *axes)
{
    const Frame *rest = f->outer ? f->outer : f;
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], ".."))
            count = add_once(count, axes, op_axis(f, names[i]));
        else
            for (int k = 0; k < rest->nrest; k++) count = add_once(count, axes, rest->rest[k]);
    }
    return count;
}

static bool is_bound(const Frame *f, Axis a)
{
    for (size_t i = 0; i < vec_len(f->bound); i++)
        if (f->bound[i].axis == a) return true;
    return false;
}

static _Noreturn void bind_err(const Frame *f, const char *fmt, ...) PRINTF_LIKE(2, 3);
static _Noreturn void bind_err(const Frame *f, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fr.frame = f->caller; // the place is the call's
    front_err("%s: %s", f->op->name, text);
}

static void bind(Frame *f, const char *name, Axis a, const char *from, bool local)
{
    for (size_t i = 0; i < vec_len(f->bound); i++)
        if (f->bound[i].axis == a)
            bind_err(f, "'%s' and '%s' are both '%s', and two names are two axes", f->bound[i].name, name,
                     axis_name(fr.g, a));
    vec_push(f->bound, (Bound){name, a, from, local});
}

// ------------------------------------------------------------------------------------------------ the three rules
static bool bind_equal(Frame *f, const OpParam *p, const Value *x)
{
    bool changed = false;
    for (int i = 0; i < p->naxes; i++) {
        if (op_axis(f, p->axes[i].name)) continue;
        for (int k = 0; k < x->naxes; k++) {
            const char *name = caller_name(f->caller, x->axes[k]);
            if (!name || strcmp(name, p->axes[i].name) || is_bound(f, x->axes[k])) continue;
            bind(f, p->axes[i].name, x->axes[k], p->name, false);
            changed = true;
            break;
        }
    }
    return changed;
}

// May another tensor's `..` hold axis a?
static bool held_elsewhere(const Frame *f, const OpParam *p, Axis a)
{
    for (int i = 0; i < f->op->nparams; i++) {
        const OpParam *q = &f->op->params[i];
        if (q != p && q->rest && value_axis(&f->args[i], a) >= 0) return true;
    }
    return false;
}

static bool bind_left(Frame *f, const OpParam *p, const Value *x)
{
    const char *name = NULL;
    Axis axis = 0;
    for (int i = 0; i < p->naxes; i++) {
        if (op_axis(f, p->axes[i].name)) continue;
        if (name) return false;
        name = p->axes[i].name;
    }
    if (!name) return false;
    for (int k = 0; k < x->naxes; k++) {
        if (is_bound(f, x->axes[k]) || (p->rest && held_elsewhere(f, p, x->axes[k]))) continue;
        if (axis) return false;
        axis = x->axes[k];
    }
    if (!axis) return false;
    bind(f, name, axis, p->name, false);
    return true;
}

static void bind_params(Frame *f, bool rest, bool (*rule)(Frame *, const OpParam *, const Value *))
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (int i = 0; i < f->op->nparams; i++) {
            const OpParam *p = &f->op->params[i];
            if (!p->any && p->rest == rest) changed |= rule(f, p, &f->args[i]);
        }
    }
}

// ------------------------------------------------------------------------------------------------- what must hold
static void check_param(const Frame *f, const OpParam *p, const Value *x)
{
    for (int i = 0; i < p->naxes; i++) {
        const char *name = p->axes[i].name;
        Axis a = op_axis(f, name);
        if (!a)
            bind_err(f,
                     "which axis of '%s' is '%s'? It has %s: use that name, or take it in brackets, as in %s[%s](..)",
                     p->name, name, axes_text(x->naxes, x->axes), f->op->name, name);
        if (value_axis(x, a) >= 0) continue;
        const char *from = "the brackets";
        for (size_t k = 0; k < vec_len(f->bound); k++)
            if (f->bound[k].axis == a && f->bound[k].from) from = arena_printf(&fr.g->arena, "'%s'", f->bound[k].from);
        bind_err(f, "'%s' is '%s' (from %s), and '%s' has no such axis; it has %s", name, axis_name(fr.g, a), from,
                 p->name, axes_text(x->naxes, x->axes));
    }
    if (!p->rest && x->naxes > p->naxes) {
        Buf want = {0};
        for (int i = 0; i < p->naxes; i++) buf_printf(&want, "%s%s", i ? " " : "", p->axes[i].name);
        bind_err(f, "'%s' takes a value with %s alone, and this one has %s", p->name, p->naxes ? want.s : "no axes",
                 axes_text(x->naxes, x->axes));
    }
}

static bool is_named(const Frame *f, const OpParam *p, Axis a)
{
    for (int i = 0; i < p->naxes; i++)
        if (op_axis(f, p->axes[i].name) == a) return true;
    return false;
}

// `..` is what the first tensor that has it leaves open; a later one may have any part of it.
static void bind_rest(Frame *f, const OpParam *p, const Value *x)
{
    bool first = !f->has_rest;
    for (int k = 0; k < x->naxes; k++) {
        Axis a = x->axes[k];
        if (is_named(f, p, a)) continue;
        if (first) {
            f->rest[f->nrest++] = a;
            continue;
        }
        bool known = false;
        for (int i = 0; i < f->nrest; i++) known |= f->rest[i] == a;
        if (!known)
            bind_err(f, "'%s' has the axis '%s', and '..' is %s (from '%s'): a later tensor has no more", p->name,
                     axis_name(fr.g, a), axes_text(f->nrest, f->rest), f->rest_from);
    }
    if (first) f->has_rest = true, f->rest_from = p->name;
}

// ------------------------------------------------------------------------------------------- axes that the op makes
static bool name_taken(const Frame *f, const char *name)
{
    for (int i = 0; i < f->op->nparams; i++)
        for (int k = 0; k < f->args[i].naxes; k++)
            if (!strcmp(axis_name(fr.g, f->args[i].axes[k]), name)) return true;
    for (size_t i = 0; i < vec_len(f->bound); i++)
        if (!strcmp(axis_name(fr.g, f->bound[i].axis), name)) return true;
    return false;
}

// An axis called `name`, or name'2 ... where an argument has that name already.
static Axis fresh_axis(const Frame *f, const char *name, int64_t extent)
{
    for (int k = 1;; k++) {
        const char *tried = k == 1 ? name : arena_printf(&fr.g->arena, "%s'%d", name, k);
        if (!name_taken(f, tried) && !(f->outer && name_taken(f->outer, tried))) return graph_axis(fr.g, tried, extent);
    }
}

static void bind_split(Frame *f, const OpAxis *axis)
{
    Split s = {.whole = op_axis(f, axis->name), .n = axis->nparts};
    int64_t size = extent_of(fr.g, s.whole), known = 1, left = 1;
    bool open = false;
    for (int i = 0; i < axis->nparts; i++) {
        if (!axis->parts[i].extent) open = true;
        known = min_of(known * max_of(axis->parts[i].extent, 1), INT32_MAX);
    }
    if (size % known || (!open && size != known))
        bind_err(f, "'%s' (%lld) does not split into parts of %lld", axis_name(fr.g, s.whole), (long long)size,
                 (long long)known);
    left = size / known;
    for (size_t i = 0; i < vec_len(f->splits); i++)
        if (f->splits[i].whole == s.whole) bind_err(f, "'%s' is split in two ways", axis_name(fr.g, s.whole));
    for (int i = 0; i < axis->nparts; i++) {
        const OpPart *part = &axis->parts[i];
        int64_t extent = part->extent ? part->extent : left;
        s.parts[i] = fresh_axis(f, part->name, extent);
        vec_push(f->bound, (Bound){part->name, s.parts[i], axis->name, false});
    }
    vec_push(f->splits, s);
}

static void bind_splits(Frame *f)
{
    for (int i = 0; i < f->op->nparams; i++)
        for (int k = 0; k < f->op->params[i].naxes; k++) {
            const OpAxis *axis = &f->op->params[i].axes[k];
            if (axis->nparts && !op_axis(f, axis->parts[0].name)) bind_split(f, axis);
        }
}

void op_bind_locals(Frame *f)
{
    for (int i = 0; i < f->op->nlocals; i++) {
        Axis from = op_axis(f, f->op->local_from[i]);
        Axis made = fresh_axis(f, f->op->locals[i], extent_of(fr.g, from));
        vec_push(f->bound, (Bound){f->op->locals[i], made, NULL, true});
    }
}

void op_bind(Frame *f, const Axis *brackets)
{
    const OpDef *op = f->op;
    for (int i = 0; i < op->naxes; i++) bind(f, op->axes[i], brackets[i], NULL, false);
    bind_params(f, false, bind_equal);
    bind_params(f, false, bind_left);
    bind_params(f, true, bind_equal);
    bind_params(f, true, bind_left);
    for (int i = 0; i < op->nparams; i++)
        if (!op->params[i].any) check_param(f, &op->params[i], &f->args[i]);
    for (int i = 0; i < op->nparams; i++)
        if (op->params[i].rest) bind_rest(f, &op->params[i], &f->args[i]);
    bind_splits(f);
    op_bind_locals(f);
}
