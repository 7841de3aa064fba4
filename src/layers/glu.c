/* SPDX-License-Identifier: MIT */
/* Gated linear units: checks, the public calls, recording and the module. */
#include <inttypes.h>
#include <stddef.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/module.h"

/* The shape of x with half the size along dim, which x has and which is even. */
static atto_shape half_of(const atto_tensor *x, int32_t dim)
{
    atto_shape shape = atto_shape_of(x->rank, x->shape);
    shape.dim[dim < 0 ? dim + x->rank : dim] /= 2;
    return shape;
}

static atto_status check_x(const char *what, const atto_tensor *x, int32_t dim)
{
    ATTO_REQUIRE(x->rank > 0, ATTO_E_SHAPE, "%s: x has no dimension that could be halved", what);
    ATTO_TRY(atto__dim_check(what, dim, x->rank));
    const int64_t size = x->shape[dim < 0 ? dim + x->rank : dim];
    ATTO_REQUIRE(size % 2 == 0, ATTO_E_SHAPE,
                 "%s: x has %" PRId64 " elements along dimension %d, expected an even number", what,
                 size, (int)dim);
    return ATTO_OK;
}

atto_status atto__glu_check(const struct atto_glu_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "glu_forward" : "glu_backward";
    ATTO_TRY(atto__activation_check(what, a->act));
    ATTO_REQUIRE(atto__is_float(a->x->dtype), ATTO_E_DTYPE,
                 "%s: x is %s, expected f32, f16 or bf16", what, atto_dtype_name(a->x->dtype));
    ATTO_TRY(check_x(what, a->x, a->dim));
    const atto_shape half = half_of(a->x, a->dim), full = atto_shape_of(a->x->rank, a->x->shape);
    const atto__expected parts[] = {
        { "y", forward ? a->y : NULL, half, a->x->dtype, false },
        { "dy", forward ? NULL : a->dy, half, a->x->dtype, false },
        { "dx", forward ? NULL : a->dx, full, a->x->dtype, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto_glu_forward(atto_device *dev, const struct atto_glu_args *a)
{
    return atto__run(dev, ATTO_OP_GLU, ATTO_FORWARD, a);
}

atto_status atto_glu_backward(atto_device *dev, const struct atto_glu_args *a)
{
    return atto__run(dev, ATTO_OP_GLU, ATTO_BACKWARD, a);
}

/* ---- on a tape, and as a module ---- */

atto_var atto_glu(atto_tape *tape, atto_var x, int32_t dim, atto_activation act)
{
    const atto_tensor *t = atto__tape_tensor(tape, "glu", x);
    if (!t || atto__tape_fail(tape, check_x("glu", t, dim)) != ATTO_OK) return atto__no_var();
    struct atto_glu_args args = { .act = act, .dim = dim };
    const atto__binding input = { .field = offsetof(struct atto_glu_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_glu_args, y),
                             .like_inputs = true,
                             .shape = half_of(t, dim) };
    return atto__record_op(tape, ATTO_OP_GLU, &args, &input, 1, &y, 1);
}

typedef struct glu_module {
    int32_t dim;
    atto_activation act;
} glu_module;

static atto_var glu_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const glu_module *data = atto_module_data(m);
    return atto_glu(tape, x, data->dim, data->act);
}

static const atto_module_class glu_class = { .name = "GLU",
                                             .forward = glu_forward,
                                             .destroy = atto__free };

atto_status atto_glu_create(atto_device *dev, int32_t dim, atto_activation act, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "glu_create: m is NULL");
    *m = NULL;
    ATTO_TRY(atto__activation_check("glu_create", act));
    const glu_module data = { dim, act };
    return atto__module_make(dev, "glu_create", &glu_class, &data, sizeof data, NULL, NULL, m);
}
