/* SPDX-License-Identifier: MIT */
/* Padding: checks, the public calls, recording functions and modules. */
#include "layers/checks.h"

#include <inttypes.h>
#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

/* ---- checks ---- */

/* What an amount may be at most. */
static int64_t most_of(atto_pad_kind mode, int64_t size)
{
    if (mode == ATTO_PAD_REFLECT) return size > 0 ? size - 1 : 0;
    if (mode == ATTO_PAD_CIRCULAR) return size;
    return mode == ATTO_PAD_REPLICATE && size == 0 ? 0 : INT64_MAX / 16;
}

static atto_status check_amount(const char *what, atto_pad_kind mode, const char *name,
                                int64_t amount, int32_t dim, int64_t size)
{
    const int64_t least = mode == ATTO_PAD_CONSTANT ? -size : 0, most = most_of(mode, size);
    ATTO_REQUIRE(amount >= least && amount <= most, ATTO_E_ARGUMENT,
                 "%s: %s[%d] is %" PRId64 ", expected %" PRId64 " to %" PRId64 " of %" PRId64
                 " elements",
                 what, name, (int)dim, amount, least, most, size);
    return ATTO_OK;
}

static atto_status check_dim(const char *what, atto_pad_kind mode, int32_t dim, int64_t size,
                             int64_t before, int64_t after)
{
    ATTO_TRY(check_amount(what, mode, "before", before, dim, size));
    ATTO_TRY(check_amount(what, mode, "after", after, dim, size));
    const int64_t cut = (before < 0 ? -before : 0) + (after < 0 ? -after : 0);
    ATTO_REQUIRE(cut <= size, ATTO_E_ARGUMENT,
                 "%s: before[%d] and after[%d] are %" PRId64 " and %" PRId64
                 ", but there are %" PRId64 " elements",
                 what, (int)dim, (int)dim, before, after, size);
    return ATTO_OK;
}

/* The shape of what x becomes. */
static atto_status padded_shape(const char *what, const struct atto_pad_args *a,
                                const atto_tensor *x, atto_shape *shape)
{
    ATTO_REQUIRE((int)a->mode >= 0 && a->mode < ATTO_PAD_COUNT, ATTO_E_ARGUMENT,
                 "%s: mode is %d, expected 0 to %d", what, (int)a->mode, ATTO_PAD_COUNT - 1);
    *shape = atto_shape_of(x->rank, x->shape);
    for (int32_t d = 0; d < x->rank; d++) {
        ATTO_TRY(check_dim(what, a->mode, d, x->shape[d], a->before[d], a->after[d]));
        shape->dim[d] += a->before[d] + a->after[d];
    }
    return ATTO_OK;
}

static atto_status check_floats(const char *what, const atto_tensor *dy)
{
    ATTO_REQUIRE(atto__is_float(dy->dtype), ATTO_E_DTYPE, "%s: dy is %s, expected f32, f16 or bf16",
                 what, atto_dtype_name(dy->dtype));
    return ATTO_OK;
}

atto_status atto__pad_check(const struct atto_pad_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "pad_forward" : "pad_backward";
    const atto_tensor *x = forward ? a->x : a->dx;
    atto_shape shape;
    if (!forward) ATTO_TRY(check_floats(what, a->dy));
    if (!x) return ATTO_OK;
    ATTO_TRY(padded_shape(what, a, x, &shape));
    const atto__expected y = { forward ? "y" : "dy", forward ? a->y : a->dy, shape, x->dtype,
                               false };
    return atto__tensors_check(what, &y, 1);
}

atto_status atto_pad_forward(atto_device *dev, const struct atto_pad_args *a)
{
    return atto__run(dev, ATTO_OP_PAD, ATTO_FORWARD, a);
}

atto_status atto_pad_backward(atto_device *dev, const struct atto_pad_args *a)
{
    return atto__run(dev, ATTO_OP_PAD, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

/* args: mode, value and amounts. */
static atto_var record(atto_tape *tape, const char *what, struct atto_pad_args *args, atto_var x)
{
    const atto_tensor *t = atto__tape_tensor(tape, what, x);
    atto_shape shape;
    if (!t || atto__tape_fail(tape, padded_shape(what, args, t, &shape)) != ATTO_OK)
        return atto__no_var();
    const int32_t innermost = t->rank >= 3 ? atto__view_innermost(t) : t->rank - 1;
    const atto__binding input = { .field = offsetof(struct atto_pad_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_pad_args, y),
                             .like_inputs = true,
                             .shape = shape,
                             .moves = innermost == 1,
                             .innermost = innermost };
    return atto__record_op(tape, ATTO_OP_PAD, args, &input, 1, &y, 1);
}

static atto_var record_amounts(atto_tape *tape, const char *what, struct atto_pad_args *args,
                               atto_var x, const int64_t *before, const int64_t *after)
{
    const atto_tensor *t = atto__tape_tensor(tape, what, x);
    if (!t) return atto__no_var();
    if (t->rank > 0 && !(before && after)) {
        atto__tape_fail(
            tape, atto__fail(ATTO_E_NULL, "%s: %s is NULL", what, before ? "after" : "before"));
        return atto__no_var();
    }
    for (int32_t d = 0; d < t->rank; d++) {
        args->before[d] = before[d];
        args->after[d] = after[d];
    }
    return record(tape, what, args, x);
}

atto_var atto_pad(atto_tape *tape, atto_var x, const int64_t *before, const int64_t *after,
                  double value)
{
    struct atto_pad_args args = { .mode = ATTO_PAD_CONSTANT, .value = value };
    return record_amounts(tape, "pad", &args, x, before, after);
}

atto_var atto_pad_mode(atto_tape *tape, atto_var x, atto_pad_kind mode, const int64_t *before,
                       const int64_t *after)
{
    struct atto_pad_args args = { .mode = mode };
    return record_amounts(tape, "pad_mode", &args, x, before, after);
}

/* ---- as modules ---- */

/* What a module is asked for: amounts are {left, right, top, bottom}, as PyTorch's. */
typedef struct request {
    const char *what;
    atto_pad_kind mode;
    int32_t dims; /* 1, 2 */
    int64_t amount[4];
    double value;
} request;

static atto_status check_image(const request *r, const atto_tensor *x)
{
    char text[ATTO_SHAPE_TEXT];
    if (r->mode == ATTO_PAD_CONSTANT)
        ATTO_REQUIRE(x->rank >= r->dims, ATTO_E_SHAPE,
                     "%s: x is %s, expected %d dimensions or more", r->what,
                     atto__shape_text(x, text), (int)r->dims);
    else
        ATTO_REQUIRE(x->rank == r->dims + 1 || x->rank == r->dims + 2, ATTO_E_SHAPE,
                     "%s: x is %s, expected %s", r->what, atto__shape_text(x, text),
                     r->dims == 2 ? "[N, C, H, W] or [C, H, W]" : "[N, C, L] or [C, L]");
    return ATTO_OK;
}

static atto_var pad_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const request *r = atto_module_data(m);
    const atto_tensor *t = atto__tape_tensor(tape, r->what, x);
    struct atto_pad_args args = { .mode = r->mode, .value = r->value };
    if (!t || atto__tape_fail(tape, check_image(r, t)) != ATTO_OK) return atto__no_var();
    for (int32_t i = 0; i < r->dims; i++) {
        args.before[t->rank - 1 - i] = r->amount[2 * i];
        args.after[t->rank - 1 - i] = r->amount[2 * i + 1];
    }
    return record(tape, r->what, &args, x);
}

/* The class's name is the request's in messages too. */
enum { ZERO, CONSTANT, REFLECTION, REPLICATION, CIRCULAR };
#define CLASSES(text)                                                             \
    {                                                                             \
        { .name = text "1d", .forward = pad_forward, .destroy = atto__free },     \
            { .name = text "2d", .forward = pad_forward, .destroy = atto__free }, \
    }
static const atto_module_class classes[][2] = {
    [ZERO] = CLASSES("ZeroPad"),
    [CONSTANT] = CLASSES("ConstantPad"),
    [REFLECTION] = CLASSES("ReflectionPad"),
    [REPLICATION] = CLASSES("ReplicationPad"),
    [CIRCULAR] = CLASSES("CircularPad"),
};
static const atto_pad_kind modes[] = {
    [ZERO] = ATTO_PAD_CONSTANT,      [CONSTANT] = ATTO_PAD_CONSTANT,
    [REFLECTION] = ATTO_PAD_REFLECT, [REPLICATION] = ATTO_PAD_REPLICATE,
    [CIRCULAR] = ATTO_PAD_CIRCULAR,
};

/* r: dims, amounts and value. */
static atto_status create(atto_device *dev, const char *what, int32_t kind, request r,
                          atto_module **m)
{
    static const char *const names[] = { "left", "right", "top", "bottom" };
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "%s: dev is NULL", what);
    for (int32_t i = 0; modes[kind] != ATTO_PAD_CONSTANT && i < 2 * r.dims; i++)
        ATTO_REQUIRE(r.amount[i] >= 0, ATTO_E_ARGUMENT, "%s: %s is %" PRId64 ", expected 0 or more",
                     what, names[i], r.amount[i]);
    const atto_module_class *class = &classes[kind][r.dims - 1];
    r.mode = modes[kind];
    r.what = class->name;
    return atto__module_make(dev, what, class, &r, sizeof r, NULL, NULL, m);
}

atto_status atto_zero_pad1d_create(atto_device *dev, int64_t left, int64_t right, atto_module **m)
{
    return create(dev, "zero_pad1d_create", ZERO, (request){ .dims = 1, .amount = { left, right } },
                  m);
}

atto_status atto_zero_pad2d_create(atto_device *dev, int64_t left, int64_t right, int64_t top,
                                   int64_t bottom, atto_module **m)
{
    return create(dev, "zero_pad2d_create", ZERO,
                  (request){ .dims = 2, .amount = { left, right, top, bottom } }, m);
}

atto_status atto_constant_pad1d_create(atto_device *dev, int64_t left, int64_t right, double value,
                                       atto_module **m)
{
    return create(dev, "constant_pad1d_create", CONSTANT,
                  (request){ .dims = 1, .amount = { left, right }, .value = value }, m);
}

atto_status atto_constant_pad2d_create(atto_device *dev, int64_t left, int64_t right, int64_t top,
                                       int64_t bottom, double value, atto_module **m)
{
    return create(dev, "constant_pad2d_create", CONSTANT,
                  (request){ .dims = 2, .amount = { left, right, top, bottom }, .value = value },
                  m);
}

atto_status atto_reflection_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                         atto_module **m)
{
    return create(dev, "reflection_pad1d_create", REFLECTION,
                  (request){ .dims = 1, .amount = { left, right } }, m);
}

atto_status atto_reflection_pad2d_create(atto_device *dev, int64_t left, int64_t right, int64_t top,
                                         int64_t bottom, atto_module **m)
{
    return create(dev, "reflection_pad2d_create", REFLECTION,
                  (request){ .dims = 2, .amount = { left, right, top, bottom } }, m);
}

atto_status atto_replication_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                          atto_module **m)
{
    return create(dev, "replication_pad1d_create", REPLICATION,
                  (request){ .dims = 1, .amount = { left, right } }, m);
}

atto_status atto_replication_pad2d_create(atto_device *dev, int64_t left, int64_t right,
                                          int64_t top, int64_t bottom, atto_module **m)
{
    return create(dev, "replication_pad2d_create", REPLICATION,
                  (request){ .dims = 2, .amount = { left, right, top, bottom } }, m);
}

atto_status atto_circular_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                       atto_module **m)
{
    return create(dev, "circular_pad1d_create", CIRCULAR,
                  (request){ .dims = 1, .amount = { left, right } }, m);
}

atto_status atto_circular_pad2d_create(atto_device *dev, int64_t left, int64_t right, int64_t top,
                                       int64_t bottom, atto_module **m)
{
    return create(dev, "circular_pad2d_create", CIRCULAR,
                  (request){ .dims = 2, .amount = { left, right, top, bottom } }, m);
}
