/* SPDX-License-Identifier: MIT */
/* Cross-entropy: checks and the public calls. */
#include "layers/checks.h"

#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

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

static atto_status check_numbers(const char *what, float label_smoothing, atto_reduction reduction)
{
    ATTO_REQUIRE(label_smoothing >= 0.0f && label_smoothing <= 1.0f, ATTO_E_ARGUMENT,
                 "%s: label_smoothing is %g, expected 0 to 1", what, (double)label_smoothing);
    return atto__reduction_check(what, reduction, ATTO_REDUCTION_NONE);
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
    ATTO_REQUIRE(a->target->rank == shape.rank, ATTO_E_SHAPE,
                 "%s: target is %s, which means probabilities in the shape of x; labels are i32 or "
                 "i64",
                 what, atto_dtype_name(dtype));
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
    ATTO_TRY(check_numbers(what, a->label_smoothing, a->reduction));
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

/* ---- on a tape ---- */

#define FIELD(name)          offsetof(struct atto_cross_entropy_args, name)
#define DEFAULT_IGNORE_INDEX (-100)

static struct atto_cross_entropy_args args_of(const atto_cross_entropy_options *o)
{
    return (struct atto_cross_entropy_args){
        .reduction = o->reduction,
        .has_ignore_index = true,
        .ignore_index = o->has_ignore_index ? o->ignore_index : DEFAULT_IGNORE_INDEX,
        .label_smoothing = o->label_smoothing,
    };
}

atto_var atto_cross_entropy(atto_tape *tape, atto_var x, atto_var target,
                            const atto_cross_entropy_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "cross_entropy", x);
    if (!t || !atto__tape_tensor(tape, "cross_entropy", target)) return atto__no_var();
    const atto_cross_entropy_options none = { .weight = NULL };
    const atto_cross_entropy_options *o = options ? options : &none;
    if (atto__tape_fail(tape, atto__reserved_check("cross_entropy: options", o->reserved)) !=
        ATTO_OK)
        return atto__no_var();
    struct atto_cross_entropy_args args = args_of(o);
    const atto_shape scalar = atto_shape0();
    const atto_shape positions = t->rank > 0 ? positions_of(t) : scalar; /* the op refuses rank 0 */
    const bool none_reduced = o->reduction == ATTO_REDUCTION_NONE;
    atto__binding inputs[3] = { { .field = FIELD(x), .v = x },
                                { .field = FIELD(target), .v = target, .f32_too = true } };
    if (o->weight)
        inputs[2] = (atto__binding){ .field = FIELD(weight), .v = *o->weight, .f32_too = true };
    const atto__result results[] = {
        { .field = FIELD(loss), .dtype = ATTO_F32, .shape = none_reduced ? positions : scalar },
        { .field = FIELD(lse), .dtype = ATTO_F32, .shape = positions, .only_saved = true },
        { .field = FIELD(total), .dtype = ATTO_F32, .shape = scalar, .only_saved = true },
    };
    return atto__record_op(tape, ATTO_OP_CROSS_ENTROPY, &args, inputs, o->weight ? 3 : 2, results,
                           3);
}

/* ---- as a module ---- */

typedef struct loss_module {
    atto_cross_entropy_options options;
    atto_tensor weight; /* [C], or no dtype */
} loss_module;

static atto_var loss_forward(atto_module *m, atto_tape *tape, atto_var x, atto_var target)
{
    const loss_module *data = atto_module_data(m);
    atto_cross_entropy_options options = data->options;
    const bool weighted = data->weight.dtype != 0;
    const atto_var weight = weighted ? atto_borrow(tape, &data->weight, false) : atto__no_var();
    if (weighted) options.weight = &weight;
    return atto_cross_entropy(tape, x, target, &options);
}

static void loss_destroy(void *data)
{
    loss_module *loss = data;
    atto_tensor_free(&loss->weight);
    atto__free(loss);
}

static const atto_module_class loss_class = { .name = "CrossEntropyLoss",
                                              .forward2 = loss_forward,
                                              .destroy = loss_destroy };

static atto_status check_options(const atto_cross_entropy_loss_options *o)
{
    const char *what = "cross_entropy_loss_create";
    ATTO_TRY(atto__reserved_check("cross_entropy_loss_create: options", o->reserved));
    ATTO_TRY(check_numbers(what, o->label_smoothing, o->reduction));
    ATTO_REQUIRE(!o->weight || o->classes > 0, ATTO_E_ARGUMENT,
                 "%s: classes is %lld, but weight is given", what, (long long)o->classes);
    return ATTO_OK;
}

static atto_status fill_loss(atto_device *dev, const atto_cross_entropy_loss_options *o,
                             loss_module *loss)
{
    loss->options = (atto_cross_entropy_options){ .reduction = o->reduction,
                                                  .has_ignore_index = o->has_ignore_index,
                                                  .ignore_index = o->ignore_index,
                                                  .label_smoothing = o->label_smoothing };
    if (!o->weight) return ATTO_OK;
    ATTO_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(o->classes), &loss->weight));
    return atto_tensor_write(&loss->weight, o->weight);
}

atto_status atto_cross_entropy_loss_create(atto_device *dev,
                                           const atto_cross_entropy_loss_options *options,
                                           atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "cross_entropy_loss_create: m is NULL");
    *m = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "cross_entropy_loss_create: dev is NULL");
    const atto_cross_entropy_loss_options none = { .weight = NULL };
    const atto_cross_entropy_loss_options *o = options ? options : &none;
    ATTO_TRY(check_options(o));
    loss_module *loss = atto__alloc(sizeof *loss);
    ATTO_REQUIRE(loss, ATTO_E_MEMORY, "cross_entropy_loss_create: out of host memory");
    atto_status status = fill_loss(dev, o, loss);
    if (status == ATTO_OK) status = atto_module_create(dev, &loss_class, loss, m);
    if (status == ATTO_OK) return ATTO_OK;
    loss_destroy(loss);
    return atto__fail_in(status, "cross_entropy_loss_create: ");
}
