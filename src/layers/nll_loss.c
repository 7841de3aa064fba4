/* SPDX-License-Identifier: MIT */
/* Negative log-likelihood: checks and the public calls. */
#include <stddef.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/module.h"

/* Dimension of the classes. */
static int32_t class_dim(const atto_tensor *x)
{
    return x->rank == 1 ? 0 : 1;
}

/* The shape of x without its classes. */
static atto_shape positions_of(const atto_tensor *x)
{
    atto_shape shape = atto_shape0();
    for (int32_t d = 0; d < x->rank; d++)
        if (d != class_dim(x)) shape.dim[shape.rank++] = x->shape[d];
    return shape;
}

static atto_status check_reduction(const char *what, atto_reduction reduction)
{
    return atto__reduction_check(what, reduction, ATTO_REDUCTION_NONE);
}

/* x, or dx, which stands for it in backward. */
static atto_status check_logs(const char *what, const char *name, const atto_tensor *x)
{
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16",
                 what, name, atto_dtype_name(x->dtype));
    ATTO_REQUIRE(x->rank >= 1, ATTO_E_SHAPE,
                 "%s: %s has no dimension, expected [C], [N, C] or [N, C, ...]", what, name);
    ATTO_REQUIRE(x->shape[class_dim(x)] > 0, ATTO_E_SHAPE, "%s: %s has no classes", what, name);
    return ATTO_OK;
}

atto_status atto__nll_loss_check(const struct atto_nll_loss_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD, none = a->reduction == ATTO_REDUCTION_NONE;
    const char *what = forward ? "nll_loss_forward" : "nll_loss_backward";
    const atto_tensor *x = forward ? a->x : a->dx;
    const atto_dtype labels = a->target->dtype;
    ATTO_TRY(check_reduction(what, a->reduction));
    ATTO_REQUIRE(labels == ATTO_I32 || labels == ATTO_I64, ATTO_E_DTYPE,
                 "%s: target is %s, expected i32 or i64", what, atto_dtype_name(labels));
    if (!x) return ATTO_OK; /* nothing is wanted */
    ATTO_TRY(check_logs(what, forward ? "x" : "dx", x));
    const atto_shape positions = positions_of(x), scalar = atto_shape0();
    const atto_shape classes = atto_shape1(x->shape[class_dim(x)]),
                     loss = none ? positions : scalar;
    const atto__expected parts[] = {
        { "target", a->target, positions, labels, false },
        { "weight", a->weight, classes, x->dtype, true },
        { "loss", forward ? a->loss : NULL, loss, ATTO_F32, false },
        { "total", a->total, scalar, ATTO_F32, false },
        { "dloss", forward ? NULL : a->dloss, loss, ATTO_F32, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto_nll_loss_forward(atto_device *dev, const struct atto_nll_loss_args *a)
{
    return atto__run(dev, ATTO_OP_NLL_LOSS, ATTO_FORWARD, a);
}

atto_status atto_nll_loss_backward(atto_device *dev, const struct atto_nll_loss_args *a)
{
    return atto__run(dev, ATTO_OP_NLL_LOSS, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

#define FIELD(name)          offsetof(struct atto_nll_loss_args, name)
#define DEFAULT_IGNORE_INDEX (-100)

atto_var atto_nll_loss(atto_tape *tape, atto_var x, atto_var target,
                       const atto_nll_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "nll_loss", x);
    if (!t || !atto__tape_tensor(tape, "nll_loss", target)) return atto__no_var();
    const atto_nll_options defaults = { .weight = NULL };
    const atto_nll_options *o = options ? options : &defaults;
    if (atto__tape_fail(tape, atto__reserved_check("nll_loss: options", o->reserved)) != ATTO_OK)
        return atto__no_var();
    struct atto_nll_loss_args args = {
        .reduction = o->reduction,
        .has_ignore_index = true,
        .ignore_index = o->has_ignore_index ? o->ignore_index : DEFAULT_IGNORE_INDEX,
    };
    atto__binding inputs[3] = { { .field = FIELD(x), .v = x },
                                { .field = FIELD(target), .v = target } };
    if (o->weight)
        inputs[2] = (atto__binding){ .field = FIELD(weight), .v = *o->weight, .f32_too = true };
    const bool none = o->reduction == ATTO_REDUCTION_NONE;
    const atto__result results[] = {
        { .field = FIELD(loss),
          .dtype = ATTO_F32,
          .shape = none ? positions_of(t) : atto_shape0() },
        { .field = FIELD(total), .dtype = ATTO_F32, .shape = atto_shape0(), .only_saved = true },
    };
    const int32_t saves = o->reduction == ATTO_REDUCTION_MEAN;
    return atto__record_op(tape, ATTO_OP_NLL_LOSS, &args, inputs, o->weight ? 3 : 2, results,
                           1 + saves);
}

/* ---- as a module ---- */

typedef struct loss_module {
    atto_nll_options options;
    atto_tensor weight; /* [C], or no dtype */
} loss_module;

static atto_var loss_forward(atto_module *m, atto_tape *tape, atto_var x, atto_var target)
{
    const loss_module *data = atto_module_data(m);
    atto_nll_options options = data->options;
    const bool weighted = data->weight.dtype != 0;
    const atto_var weight = weighted ? atto_borrow(tape, &data->weight, false) : atto__no_var();
    if (weighted) options.weight = &weight;
    return atto_nll_loss(tape, x, target, &options);
}

static void loss_destroy(void *data)
{
    loss_module *loss = data;
    atto_tensor_free(&loss->weight);
    atto__free(loss);
}

static const atto_module_class loss_class = { .name = "NLLLoss",
                                              .forward2 = loss_forward,
                                              .destroy = loss_destroy };

static atto_status fill_loss(atto_device *dev, const atto_nll_loss_options *o, loss_module *loss)
{
    *loss = (loss_module){ .options = { .reduction = o->reduction,
                                        .has_ignore_index = o->has_ignore_index,
                                        .ignore_index = o->ignore_index } };
    if (!o->weight) return ATTO_OK;
    ATTO_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(o->classes), &loss->weight));
    return atto_tensor_write(&loss->weight, o->weight);
}

atto_status atto_nll_loss_create(atto_device *dev, const atto_nll_loss_options *options,
                                 atto_module **m)
{
    const char *what = "nll_loss_create";
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "%s: dev is NULL", what);
    const atto_nll_loss_options none = { .weight = NULL };
    const atto_nll_loss_options *o = options ? options : &none;
    ATTO_TRY(atto__reserved_check("nll_loss_create: options", o->reserved));
    ATTO_TRY(check_reduction(what, o->reduction));
    ATTO_REQUIRE(!o->weight || o->classes > 0, ATTO_E_ARGUMENT,
                 "%s: classes is %lld, but weight is given", what, (long long)o->classes);
    loss_module *loss = atto__alloc(sizeof *loss);
    ATTO_REQUIRE(loss, ATTO_E_MEMORY, "%s: out of host memory", what);
    atto_status status = fill_loss(dev, o, loss);
    if (status == ATTO_OK) status = atto_module_create(dev, &loss_class, loss, m);
    if (status == ATTO_OK) return ATTO_OK;
    loss_destroy(loss);
    return atto__fail_in(status, "%s: ", what);
}
