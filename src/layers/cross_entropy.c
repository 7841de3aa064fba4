/* SPDX-License-Identifier: MIT */
/* Cross-entropy: checks and the public calls. */
#include "layers/checks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Dimension of the classes. */
static int32_t class_dim(const atto_tensor *x)
{
    return x->rank == 1 ? 0 : 1;
}

/* The shape of x without its classes. */
static atto_shape positions_of(const atto_tensor *x)
{
    atto_shape shape = atto_shape_of(0, x->shape);
    for (int32_t d = 0; d < x->rank; d++)
        if (d != class_dim(x)) shape.dim[shape.rank++] = x->shape[d];
    return shape;
}

static atto_status check_numbers(const char *what, const struct atto_cross_entropy_args *a)
{
    ATTO_REQUIRE(a->label_smoothing >= 0.0f && a->label_smoothing <= 1.0f, ATTO_E_ARGUMENT,
                 "%s: label_smoothing is %g, expected 0 to 1", what, (double)a->label_smoothing);
    ATTO_REQUIRE((int)a->reduction >= ATTO_REDUCTION_MEAN && a->reduction <= ATTO_REDUCTION_NONE,
                 ATTO_E_ARGUMENT, "%s: %d is no reduction", what, (int)a->reduction);
    return ATTO_OK;
}

static atto_status check_logits(const char *what, const atto_tensor *x)
{
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: x is %s, expected f32, f16 or bf16",
                 what, atto_dtype_name(x->dtype));
    ATTO_REQUIRE(x->rank >= 1, ATTO_E_SHAPE,
                 "%s: x has no dimension, expected [C], [N, C] or [N, C, ...]", what);
    ATTO_REQUIRE(x->shape[class_dim(x)] > 0, ATTO_E_SHAPE, "%s: x has no classes", what);
    return ATTO_OK;
}

/* Labels by shape and dtype, or probabilities. */
static atto_status check_target(const char *what, const struct atto_cross_entropy_args *a)
{
    const atto_dtype dtype = a->target->dtype;
    if (dtype == ATTO_I32 || dtype == ATTO_I64) {
        const atto__expected labels = { "target", a->target, positions_of(a->x), dtype, false };
        return atto__tensors_check(what, &labels, 1);
    }
    ATTO_REQUIRE(!a->has_ignore_index || a->ignore_index < 0, ATTO_E_ARGUMENT,
                 "%s: ignore_index is %lld, but target holds probabilities", what,
                 (long long)a->ignore_index);
    ATTO_REQUIRE(atto__is_float(dtype), ATTO_E_DTYPE,
                 "%s: target is %s, expected i32, i64 or a float", what, atto_dtype_name(dtype));
    const atto_shape shape = atto_shape_of(a->x->rank, a->x->shape);
    const atto__expected shares = { "target", a->target, shape, a->x->dtype, true };
    return atto__tensors_check(what, &shares, 1);
}

static atto_status check_forward(const char *what, const struct atto_cross_entropy_args *a)
{
    const bool none = a->reduction == ATTO_REDUCTION_NONE;
    const atto_shape positions = positions_of(a->x), scalar = atto_shape_of(0, a->x->shape);
    const atto__expected parts[] = {
        { "loss", a->loss, none ? positions : scalar, ATTO_F32, false },
        { "lse", a->lse, positions, ATTO_F32, false },
        { "total", a->total, scalar, ATTO_F32, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

static atto_status check_backward(const char *what, const struct atto_cross_entropy_args *a)
{
    const bool none = a->reduction == ATTO_REDUCTION_NONE;
    const atto_shape positions = positions_of(a->x), scalar = atto_shape_of(0, a->x->shape);
    const atto_shape x = atto_shape_of(a->x->rank, a->x->shape);
    ATTO_REQUIRE(!a->dtarget || atto__is_float(a->target->dtype), ATTO_E_DTYPE,
                 "%s: dtarget is given, but target is %s and labels have no gradient", what,
                 atto_dtype_name(a->target->dtype));
    const atto__expected parts[] = {
        { "lse", a->lse, positions, ATTO_F32, false },
        { "total", a->total, scalar, ATTO_F32, false },
        { "dloss", a->dloss, none ? positions : scalar, ATTO_F32, false },
        { "dx", a->dx, x, a->x->dtype, false },
        { "dtarget", a->dtarget, x, a->target->dtype, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto__cross_entropy_check(const struct atto_cross_entropy_args *a,
                                      atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "cross_entropy_forward" : "cross_entropy_backward";
    ATTO_TRY(check_numbers(what, a));
    ATTO_TRY(check_logits(what, a->x));
    ATTO_TRY(check_target(what, a));
    const atto_shape classes = atto_shape1(a->x->shape[class_dim(a->x)]);
    const atto__expected weight = { "weight", a->weight, classes, a->x->dtype, true };
    ATTO_TRY(atto__tensors_check(what, &weight, 1));
    return forward ? check_forward(what, a) : check_backward(what, a);
}

atto_status atto_cross_entropy_forward(atto_device *dev, const struct atto_cross_entropy_args *a)
{
    return atto__run(dev, ATTO_OP_CROSS_ENTROPY, ATTO_FORWARD, a);
}

atto_status atto_cross_entropy_backward(atto_device *dev, const struct atto_cross_entropy_args *a)
{
    return atto__run(dev, ATTO_OP_CROSS_ENTROPY, ATTO_BACKWARD, a);
}
