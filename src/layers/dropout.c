/* SPDX-License-Identifier: MIT */
/* Dropout: checks and the public calls. */
#include "layers/checks.h"

atto_status atto__dropout_check(const struct atto_dropout_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "dropout_forward" : "dropout_backward";
    ATTO_TRY(atto__probability_check(what, a->p, &a->rng));
    if (forward) return atto__elementwise_check(what, "x", a->x, "y", a->y);
    return atto__elementwise_check(what, "dy", a->dy, a->dx ? "dx" : "dy", a->dx ? a->dx : a->dy);
}

atto_status atto_dropout_forward(atto_device *dev, const struct atto_dropout_args *a)
{
    return atto__run(dev, ATTO_OP_DROPOUT, ATTO_FORWARD, a);
}

atto_status atto_dropout_backward(atto_device *dev, const struct atto_dropout_args *a)
{
    return atto__run(dev, ATTO_OP_DROPOUT, ATTO_BACKWARD, a);
}
