/* SPDX-License-Identifier: MIT */
/* Dropout: checks and the public calls. */
#include "layers/checks.h"

#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

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

/* ---- on a tape, and as a module ---- */

atto_var atto_dropout(atto_tape *tape, atto_var x, float p)
{
    const atto_tensor *t = atto__tape_tensor(tape, "dropout", x);
    if (!t) return atto__no_var();
    struct atto_dropout_args args = { .p = p };
    if (p > 0.0f) args.rng = atto__tape_draw(tape, atto_tensor_numel(t));
    const atto__binding input = { .field = offsetof(struct atto_dropout_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_dropout_args, y),
                             .like_inputs = true,
                             .shape = atto_shape_of(t->rank, t->shape),
                             .moves = true,
                             .innermost = atto__view_innermost(t) };
    return atto__record_op(tape, ATTO_OP_DROPOUT, &args, &input, 1, &y, 1);
}

static atto_var dropout_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const float *p = atto_module_data(m);
    return atto_module_is_training(m) && *p > 0.0f ? atto_dropout(tape, x, *p) : x;
}

static const atto_module_class dropout_class = { .name = "Dropout",
                                                 .forward = dropout_forward,
                                                 .destroy = atto__free };

atto_status atto_dropout_create(atto_device *dev, float p, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "dropout_create: m is NULL");
    *m = NULL;
    ATTO_TRY(atto__probability_check("dropout_create", p, &(atto_rng){ 0 }));
    return atto__module_make(dev, "dropout_create", &dropout_class, &p, sizeof p, NULL, NULL, m);
}
