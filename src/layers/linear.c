/* SPDX-License-Identifier: MIT */
/* Linear: checks and the public calls. */
#include "layers/checks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* The tensor's shape with another last size. */
static atto_shape with_last(const atto_tensor *t, int64_t last)
{
    atto_shape shape = atto_shape_of(t->rank, t->shape);
    shape.dim[t->rank - 1] = last;
    return shape;
}

static atto_status check_forward(const struct atto_linear_args *a)
{
    const char *what = "linear_forward";
    ATTO_REQUIRE(atto__is_float(a->x->dtype), ATTO_E_DTYPE,
                 "%s: x is %s, expected f32, f16 or bf16", what, atto_dtype_name(a->x->dtype));
    ATTO_REQUIRE(a->x->rank >= 1, ATTO_E_SHAPE, "%s: x has no dimension, expected [..., K]", what);
    ATTO_REQUIRE(a->w->rank == 2, ATTO_E_SHAPE, "%s: w has rank %d, expected [N, K]", what,
                 (int)a->w->rank);
    const atto_dtype dtype = a->x->dtype, out = a->y->dtype;
    const int64_t k = a->x->shape[a->x->rank - 1], n = a->w->shape[0];
    const atto_shape y = with_last(a->x, n);
    const atto__expected parts[] = { { "w", a->w, atto_shape2(n, k), dtype, false },
                                     { "b", a->b, atto_shape1(n), dtype, true },
                                     { "y", a->y, y, dtype, true },
                                     { "z", a->z, y, out, false },
                                     { "residual", a->residual, y, out, false } };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

/* K and the dtype of x come from whatever the wanted gradients need. */
static atto_status check_backward(const struct atto_linear_args *a)
{
    const char *what = "linear_backward";
    ATTO_REQUIRE(!a->dx || a->w, ATTO_E_NULL, "%s: w is NULL, which dx needs", what);
    ATTO_REQUIRE(!a->dw || a->x, ATTO_E_NULL, "%s: x is NULL, which dw needs", what);
    ATTO_REQUIRE(a->z || a->act.kind == ATTO_ACT_IDENTITY, ATTO_E_NULL,
                 "%s: z is NULL, which the derivative of %s needs", what,
                 atto_activation_name(a->act.kind));
    ATTO_REQUIRE(atto__is_float(a->dy->dtype), ATTO_E_DTYPE,
                 "%s: dy is %s, expected f32, f16 or bf16", what, atto_dtype_name(a->dy->dtype));
    ATTO_REQUIRE(a->dy->rank >= 1, ATTO_E_SHAPE, "%s: dy has no dimension, expected [..., N]",
                 what);
    const atto_tensor *source = a->x ? a->x : a->w; /* NULL: only db is wanted */
    ATTO_REQUIRE(!source || source->rank >= 1, ATTO_E_SHAPE, "%s: %s has no dimension", what,
                 a->x ? "x" : "w");
    const atto_dtype out = a->dy->dtype;
    const atto_dtype dtype = source ? source->dtype : out;
    ATTO_REQUIRE(atto__is_float(dtype) && (out == dtype || out == ATTO_F32), ATTO_E_DTYPE,
                 "%s: dy is %s beside %s of %s", what, atto_dtype_name(out), a->x ? "x" : "w",
                 atto_dtype_name(dtype));
    const int64_t n = a->dy->shape[a->dy->rank - 1];
    const int64_t k = source ? source->shape[source->rank - 1] : 0;
    const atto_shape x = with_last(a->dy, k), w = atto_shape2(n, k);
    const atto__expected parts[] = { { "x", a->x, x, dtype, false },
                                     { "w", a->w, w, dtype, false },
                                     { "z", a->z, with_last(a->dy, n), out, false },
                                     { "dx", a->dx, x, dtype, false },
                                     { "dw", a->dw, w, dtype, true },
                                     { "db", a->db, atto_shape1(n), dtype, true } };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto__linear_check(const struct atto_linear_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "linear_forward" : "linear_backward";
    ATTO_TRY(atto__activation_check(what, a->act));
    ATTO_TRY(atto__probability_check(what, a->dropout, &a->rng));
    return forward ? check_forward(a) : check_backward(a);
}

atto_status atto_linear_forward(atto_device *dev, const struct atto_linear_args *a)
{
    return atto__run(dev, ATTO_OP_LINEAR, ATTO_FORWARD, a);
}

atto_status atto_linear_backward(atto_device *dev, const struct atto_linear_args *a)
{
    return atto__run(dev, ATTO_OP_LINEAR, ATTO_BACKWARD, a);
}
