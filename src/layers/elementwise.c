/* SPDX-License-Identifier: MIT */
/* Elementwise ops: names, checks, and the public calls. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "layers/checks.h"
#include "reduction.h"
#include "train/module.h"

/* ---- names ---- */

#define NAME_2(NAME, name)        #name,
#define NAME_3(NAME, name, third) #name,
static const char *const unary_names[] = { ATTO_UNARY_TABLE(NAME_2) };
static const char *const binary_names[] = { ATTO_BINARY_TABLE(NAME_3) };
static const char *const compare_names[] = { ATTO_COMPARE_TABLE(NAME_3) };

const char *atto_unary_name(atto_unary_kind kind)
{
    return (int)kind >= 0 && kind < ATTO_UNARY_COUNT ? unary_names[kind] : "?";
}

const char *atto_binary_name(atto_binary_kind kind)
{
    return (int)kind >= 0 && kind < ATTO_BINARY_COUNT ? binary_names[kind] : "?";
}

const char *atto_compare_name(atto_compare_kind kind)
{
    return (int)kind >= 0 && kind < ATTO_COMPARE_COUNT ? compare_names[kind] : "?";
}

/* ---- shapes that broadcast ---- */

/* A tensor of the call and its name; t may be NULL. */
typedef struct part {
    const char *name;
    const atto_tensor *t;
} part;

static atto_status check_expands(const char *what, part p, part full)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    atto_tensor view = p.t ? *p.t : *full.t;
    ATTO_REQUIRE(atto__view_expand(&view, full.t, 0), ATTO_E_SHAPE,
                 "%s: %s is %s, which does not broadcast to %s's %s", what, p.name,
                 atto__shape_text(p.t, got), full.name, atto__shape_text(full.t, wanted));
    return ATTO_OK;
}

/* Whether a size of the full shape is there only because some part has it. */
static bool makes_size(const part *parts, int32_t count, const atto_tensor *full, int32_t d)
{
    for (int32_t i = 0; i < count; i++) {
        const atto_tensor *t = parts[i].t;
        const int32_t own = t ? d - (full->rank - t->rank) : -1;
        if (own >= 0 && t->shape[own] == full->shape[d]) return true;
    }
    return false;
}

/* The parts together make y's shape, neither more nor less. */
static atto_status check_makes(const char *what, const part *parts, int32_t count, part y)
{
    char text[ATTO_SHAPE_TEXT];
    for (int32_t i = 0; i < count; i++) ATTO_TRY(check_expands(what, parts[i], y));
    for (int32_t d = 0; d < y.t->rank; d++)
        ATTO_REQUIRE(makes_size(parts, count, y.t, d), ATTO_E_SHAPE,
                     "%s: %s is %s, larger than its inputs make it", what, y.name,
                     atto__shape_text(y.t, text));
    return ATTO_OK;
}

/* A gradient has the shape of its input, if that is there, or any that broadcasts to dy's. */
static atto_status check_gradient(const char *what, part gradient, part input, part dy)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    if (!gradient.t) return ATTO_OK;
    ATTO_REQUIRE(!input.t || atto__shape_same(gradient.t, input.t), ATTO_E_SHAPE,
                 "%s: %s is %s, expected %s's %s", what, gradient.name,
                 atto__shape_text(gradient.t, got), input.name, atto__shape_text(input.t, wanted));
    return check_expands(what, gradient, dy);
}

static atto_status check_dtypes(const char *what, const part *parts, int32_t count)
{
    const part *first = NULL;
    for (int32_t i = 0; i < count; i++) {
        const part *p = &parts[i];
        if (!p->t) continue;
        ATTO_REQUIRE(atto__is_float(p->t->dtype), ATTO_E_DTYPE,
                     "%s: %s is %s, expected f32, f16 or bf16", what, p->name,
                     atto_dtype_name(p->t->dtype));
        ATTO_REQUIRE(!first || p->t->dtype == first->t->dtype, ATTO_E_DTYPE,
                     "%s: %s is %s, expected %s's %s", what, p->name, atto_dtype_name(p->t->dtype),
                     first->name, atto_dtype_name(first->t->dtype));
        if (!first) first = p;
    }
    return ATTO_OK;
}

/* Each input may be overwritten by a gradient only after both gradients have read it. */
static bool is_in_place(const atto_tensor *out, const part *inputs, int32_t count)
{
    for (int32_t i = 0; out && i < count; i++)
        if (inputs[i].t && atto__view_overlap(out, inputs[i].t)) return true;
    return false;
}

static atto_status check_one_in_place(const char *what, const atto_tensor *da,
                                      const atto_tensor *db, const part *inputs, int32_t count)
{
    ATTO_REQUIRE(!is_in_place(da, inputs, count) || !is_in_place(db, inputs, count), ATTO_E_ALIAS,
                 "%s: da and db are both in place, expected at most one of them", what);
    return ATTO_OK;
}

/* ---- unary ---- */

atto_status atto__unary_check(const struct atto_unary_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "unary_forward" : "unary_backward";
    ATTO_REQUIRE((int)a->kind >= 0 && a->kind < ATTO_UNARY_COUNT, ATTO_E_ARGUMENT,
                 "%s: %d is no unary kind", what, (int)a->kind);
    ATTO_REQUIRE(a->kind != ATTO_UNARY_CLAMP || (a->lo == a->lo && a->hi == a->hi), ATTO_E_ARGUMENT,
                 "%s: %s of clamp is NaN", what, a->lo == a->lo ? "hi" : "lo");
    if (forward) return atto__elementwise_check(what, "x", a->x, "y", a->y);
    ATTO_TRY(atto__elementwise_check(what, "x", a->x, "dy", a->dy));
    return a->dx ? atto__elementwise_check(what, "x", a->x, "dx", a->dx) : ATTO_OK;
}

atto_status atto_unary_forward(atto_device *dev, const struct atto_unary_args *a)
{
    return atto__run(dev, ATTO_OP_UNARY, ATTO_FORWARD, a);
}

atto_status atto_unary_backward(atto_device *dev, const struct atto_unary_args *a)
{
    return atto__run(dev, ATTO_OP_UNARY, ATTO_BACKWARD, a);
}

/* ---- cast ---- */

static atto_status check_cast_shape(const char *what, part in, part out)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto__shape_same(in.t, out.t), ATTO_E_SHAPE, "%s: %s is %s, expected %s's %s",
                 what, out.name, atto__shape_text(out.t, got), in.name,
                 atto__shape_text(in.t, wanted));
    return ATTO_OK;
}

atto_status atto__cast_check(const struct atto_cast_args *a, atto__direction direction)
{
    const part dy = { "dy", a->dy }, dx = { "dx", a->dx };
    if (direction == ATTO_FORWARD)
        return check_cast_shape("cast_forward", (part){ "x", a->x }, (part){ "y", a->y });
    ATTO_TRY(check_dtypes("cast_backward", &dy, 1));
    ATTO_TRY(check_dtypes("cast_backward", &dx, 1));
    return a->dx ? check_cast_shape("cast_backward", dy, dx) : ATTO_OK;
}

atto_status atto_cast_forward(atto_device *dev, const struct atto_cast_args *a)
{
    return atto__run(dev, ATTO_OP_CAST, ATTO_FORWARD, a);
}

atto_status atto_cast_backward(atto_device *dev, const struct atto_cast_args *a)
{
    return atto__run(dev, ATTO_OP_CAST, ATTO_BACKWARD, a);
}

/* ---- binary ---- */

static atto_status check_binary_forward(const struct atto_binary_args *a)
{
    const char *what = "binary_forward";
    const part y = { "y", a->y }, parts[] = { { "a", a->a }, { "b", a->b }, y };
    ATTO_REQUIRE(a->a || a->b, ATTO_E_NULL, "%s: a and b are NULL", what);
    ATTO_TRY(check_dtypes(what, parts, 3));
    return check_makes(what, parts, 2, y);
}

static atto_status check_binary_backward(const struct atto_binary_args *a)
{
    const char *what = "binary_backward";
    const part pa = { "a", a->a }, pb = { "b", a->b }, dy = { "dy", a->dy };
    const part da = { "da", a->da }, db = { "db", a->db };
    const part parts[] = { pa, pb, dy, da, db };
    ATTO_REQUIRE(a->a || a->b || atto__gradient_is_sign(a->kind), ATTO_E_NULL,
                 "%s: a and b are NULL, which the gradients of %s need", what,
                 atto_binary_name(a->kind));
    ATTO_TRY(check_dtypes(what, parts, 5));
    ATTO_TRY(check_expands(what, pa, dy));
    ATTO_TRY(check_expands(what, pb, dy));
    ATTO_TRY(check_gradient(what, da, pa, dy));
    ATTO_TRY(check_gradient(what, db, pb, dy));
    return check_one_in_place(what, a->da, a->db, parts, 3);
}

atto_status atto__binary_check(const struct atto_binary_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    ATTO_REQUIRE((int)a->kind >= 0 && a->kind < ATTO_BINARY_COUNT, ATTO_E_ARGUMENT,
                 "%s: %d is no binary kind", forward ? "binary_forward" : "binary_backward",
                 (int)a->kind);
    return forward ? check_binary_forward(a) : check_binary_backward(a);
}

static const atto_tensor *binary_full(const void *args, atto__direction direction)
{
    const struct atto_binary_args *a = args;
    return direction == ATTO_FORWARD ? a->y : a->dy;
}

const atto__broadcast atto__binary_broadcast = { .full = binary_full };

atto_status atto_binary_forward(atto_device *dev, const struct atto_binary_args *a)
{
    return atto__run(dev, ATTO_OP_BINARY, ATTO_FORWARD, a);
}

atto_status atto_binary_backward(atto_device *dev, const struct atto_binary_args *a)
{
    return atto__run(dev, ATTO_OP_BINARY, ATTO_BACKWARD, a);
}

/* ---- where ---- */

static atto_status check_where_forward(const struct atto_where_args *a)
{
    const char *what = "where_forward";
    const part y = { "y", a->y };
    const part parts[] = { { "a", a->a }, { "b", a->b }, { "cond", a->cond } };
    const part floats[] = { parts[0], parts[1], y };
    ATTO_REQUIRE(a->a || a->b, ATTO_E_NULL, "%s: a and b are NULL", what);
    ATTO_TRY(check_dtypes(what, floats, 3));
    return check_makes(what, parts, 3, y);
}

static atto_status check_where_backward(const struct atto_where_args *a)
{
    const char *what = "where_backward";
    const part dy = { "dy", a->dy }, none = { NULL, NULL };
    const part da = { "da", a->da }, db = { "db", a->db }, parts[] = { dy, da, db };
    ATTO_TRY(check_dtypes(what, parts, 3));
    ATTO_TRY(check_expands(what, (part){ "cond", a->cond }, dy));
    ATTO_TRY(check_gradient(what, da, none, dy));
    ATTO_TRY(check_gradient(what, db, none, dy));
    return check_one_in_place(what, a->da, a->db, &dy, 1);
}

atto_status atto__where_check(const struct atto_where_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    ATTO_REQUIRE(a->cond->dtype == ATTO_I32, ATTO_E_DTYPE, "%s: cond is %s, expected i32",
                 forward ? "where_forward" : "where_backward", atto_dtype_name(a->cond->dtype));
    return forward ? check_where_forward(a) : check_where_backward(a);
}

static const atto_tensor *where_full(const void *args, atto__direction direction)
{
    const struct atto_where_args *a = args;
    return direction == ATTO_FORWARD ? a->y : a->dy;
}

const atto__broadcast atto__where_broadcast = { .full = where_full };

atto_status atto_where_forward(atto_device *dev, const struct atto_where_args *a)
{
    return atto__run(dev, ATTO_OP_WHERE, ATTO_FORWARD, a);
}

atto_status atto_where_backward(atto_device *dev, const struct atto_where_args *a)
{
    return atto__run(dev, ATTO_OP_WHERE, ATTO_BACKWARD, a);
}

/* ---- compare ---- */

/* Beside integers: one that f32 and long both hold. */
static bool is_whole(float value)
{
    return value >= -0x1p63f && value < 0x1p63f && value == truncf(value);
}

atto_status atto__compare_check(const struct atto_compare_args *a, atto__direction direction)
{
    const char *what = direction == ATTO_FORWARD ? "compare_forward" : "compare_backward";
    ATTO_REQUIRE(direction == ATTO_FORWARD, ATTO_E_UNSUPPORTED, "%s: a comparison has no gradient",
                 what);
    ATTO_REQUIRE((int)a->kind >= 0 && a->kind < ATTO_COMPARE_COUNT, ATTO_E_ARGUMENT,
                 "%s: %d is no comparison", what, (int)a->kind);
    const part y = { "y", a->y }, parts[] = { { "a", a->a }, { "b", a->b } };
    ATTO_REQUIRE(a->y->dtype == ATTO_I32, ATTO_E_DTYPE, "%s: y is %s, expected i32", what,
                 atto_dtype_name(a->y->dtype));
    ATTO_REQUIRE(!a->b || a->b->dtype == a->a->dtype, ATTO_E_DTYPE, "%s: b is %s, expected a's %s",
                 what, atto_dtype_name(a->b->dtype), atto_dtype_name(a->a->dtype));
    ATTO_REQUIRE(a->b || atto__is_float(a->a->dtype) || is_whole(a->value), ATTO_E_ARGUMENT,
                 "%s: value is %g, expected a whole number that i64 holds beside %s", what,
                 (double)a->value, atto_dtype_name(a->a->dtype));
    return check_makes(what, parts, 2, y);
}

static const atto_tensor *compare_full(const void *args, atto__direction direction)
{
    (void)direction;
    return ((const struct atto_compare_args *)args)->y;
}

const atto__broadcast atto__compare_broadcast = { .full = compare_full };

atto_status atto_compare_forward(atto_device *dev, const struct atto_compare_args *a)
{
    return atto__run(dev, ATTO_OP_COMPARE, ATTO_FORWARD, a);
}

atto_status atto_compare_backward(atto_device *dev, const struct atto_compare_args *a)
{
    return atto__run(dev, ATTO_OP_COMPARE, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

/* The shape that tensors make together; where they do not fit, one that the op refuses by name. */
static atto_shape shape_together(const atto_tensor *const *parts, int32_t count)
{
    atto_shape shape = { 0, { 0 } };
    for (int32_t i = 0; i < count; i++)
        if (parts[i]->rank > shape.rank) shape.rank = parts[i]->rank;
    for (int32_t d = 0; d < shape.rank; d++) {
        shape.dim[d] = 1;
        for (int32_t i = 0; i < count; i++) {
            const int32_t own = d - (shape.rank - parts[i]->rank);
            if (own >= 0 && parts[i]->shape[own] != 1) shape.dim[d] = parts[i]->shape[own];
        }
    }
    return shape;
}

/* As the first of the tensors that has the result's shape lies, so does the result. */
static int32_t innermost_together(const atto_tensor *const *parts, int32_t count, atto_shape shape)
{
    for (int32_t i = 0; i < count; i++) {
        const atto_tensor *t = parts[i];
        const size_t sizes = (size_t)shape.rank * sizeof *shape.dim;
        if (t->rank == shape.rank && memcmp(t->shape, shape.dim, sizes) == 0)
            return atto__view_innermost(t);
    }
    return shape.rank - 1;
}

static atto_shape shape_like(const atto_tensor *t)
{
    return atto_shape_of(t->rank, t->shape);
}

static atto_var record_unary(atto_tape *tape, struct atto_unary_args *args, atto_var x)
{
    const atto_tensor *t = atto__tape_tensor(tape, "unary", x);
    if (!t) return atto__no_var();
    const atto__binding input = { .field = offsetof(struct atto_unary_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_unary_args, y),
                             .like_inputs = true,
                             .shape = shape_like(t),
                             .moves = true,
                             .innermost = atto__view_innermost(t) };
    return atto__record_op(tape, ATTO_OP_UNARY, args, &input, 1, &y, 1);
}

atto_var atto_unary(atto_tape *tape, atto_unary_kind kind, atto_var x)
{
    struct atto_unary_args args = { .kind = kind };
    return record_unary(tape, &args, x);
}

atto_var atto_clamp(atto_tape *tape, atto_var x, float lo, float hi)
{
    struct atto_unary_args args = { .kind = ATTO_UNARY_CLAMP, .lo = lo, .hi = hi };
    return record_unary(tape, &args, x);
}

atto_var atto_cast(atto_tape *tape, atto_var x, atto_dtype dtype)
{
    const atto_tensor *t = atto__tape_tensor(tape, "cast", x);
    if (!t) return atto__no_var();
    struct atto_cast_args args = { .add_dx = false };
    const atto__binding input = { .field = offsetof(struct atto_cast_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_cast_args, y),
                             .dtype = dtype,
                             .shape = shape_like(t),
                             .moves = true,
                             .innermost = atto__view_innermost(t) };
    return atto__record_op(tape, ATTO_OP_CAST, &args, &input, 1, &y, 1);
}

/* inputs: count of them, whose tensors make the output's shape. dtype 0: that of the inputs. */
static atto_var record_together(atto_tape *tape, atto_op op, void *args,
                                const atto__binding *inputs, int32_t count, size_t y_field,
                                atto_dtype dtype)
{
    const atto_tensor *parts[3];
    for (int32_t i = 0; i < count; i++) {
        parts[i] = atto__tape_tensor(tape, atto__op(op)->name[ATTO_FORWARD], inputs[i].v);
        if (!parts[i]) return atto__no_var();
    }
    const atto_shape shape = shape_together(parts, count);
    const atto__result y = { .field = y_field,
                             .like_inputs = dtype == 0,
                             .dtype = dtype,
                             .shape = shape,
                             .moves = true,
                             .innermost = innermost_together(parts, count, shape) };
    return atto__record_op(tape, op, args, inputs, count, &y, 1);
}

#define BINARY_FIELD(name) offsetof(struct atto_binary_args, name)

atto_var atto_binary(atto_tape *tape, atto_binary_kind kind, atto_var a, atto_var b)
{
    struct atto_binary_args args = { .kind = kind };
    const bool not_read = atto__gradient_is_sign(kind);
    const atto__binding inputs[] = { { .field = BINARY_FIELD(a), .v = a, .not_read = not_read },
                                     { .field = BINARY_FIELD(b), .v = b, .not_read = not_read } };
    return record_together(tape, ATTO_OP_BINARY, &args, inputs, 2, BINARY_FIELD(y), 0);
}

atto_var atto_binary_number(atto_tape *tape, atto_binary_kind kind, atto_var a, float b)
{
    struct atto_binary_args args = { .kind = kind, .value = b };
    const atto__binding input = { .field = BINARY_FIELD(a),
                                  .v = a,
                                  .not_read = atto__gradient_is_sign(kind) };
    return record_together(tape, ATTO_OP_BINARY, &args, &input, 1, BINARY_FIELD(y), 0);
}

atto_var atto_number_binary(atto_tape *tape, atto_binary_kind kind, float a, atto_var b)
{
    struct atto_binary_args args = { .kind = kind, .value = a };
    const atto__binding input = { .field = BINARY_FIELD(b),
                                  .v = b,
                                  .not_read = atto__gradient_is_sign(kind) };
    return record_together(tape, ATTO_OP_BINARY, &args, &input, 1, BINARY_FIELD(y), 0);
}

atto_var atto_where(atto_tape *tape, atto_var cond, atto_var a, atto_var b)
{
    struct atto_where_args args = { .value = 0.0f };
    const atto__binding inputs[] = { { .field = offsetof(struct atto_where_args, cond), .v = cond },
                                     { .field = offsetof(struct atto_where_args, a), .v = a },
                                     { .field = offsetof(struct atto_where_args, b), .v = b } };
    return record_together(tape, ATTO_OP_WHERE, &args, inputs, 3,
                           offsetof(struct atto_where_args, y), 0);
}

atto_var atto_masked_fill(atto_tape *tape, atto_var x, atto_var mask, float value)
{
    struct atto_where_args args = { .value = value };
    const atto__binding inputs[] = { { .field = offsetof(struct atto_where_args, cond), .v = mask },
                                     { .field = offsetof(struct atto_where_args, b), .v = x } };
    return record_together(tape, ATTO_OP_WHERE, &args, inputs, 2,
                           offsetof(struct atto_where_args, y), 0);
}

atto_var atto_compare_number(atto_tape *tape, atto_compare_kind kind, atto_var a, float b)
{
    struct atto_compare_args args = { .kind = kind, .value = b };
    const atto__binding input = { .field = offsetof(struct atto_compare_args, a), .v = a };
    return record_together(tape, ATTO_OP_COMPARE, &args, &input, 1,
                           offsetof(struct atto_compare_args, y), ATTO_I32);
}

atto_var atto_compare(atto_tape *tape, atto_compare_kind kind, atto_var a, atto_var b)
{
    struct atto_compare_args args = { .kind = kind };
    const atto__binding inputs[] = { { .field = offsetof(struct atto_compare_args, a), .v = a },
                                     { .field = offsetof(struct atto_compare_args, b), .v = b } };
    return record_together(tape, ATTO_OP_COMPARE, &args, inputs, 2,
                           offsetof(struct atto_compare_args, y), ATTO_I32);
}
