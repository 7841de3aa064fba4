/* SPDX-License-Identifier: MIT */
/* Pointwise losses: names, checks, and the public calls. */
#include <math.h>
#include <stddef.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/module.h"

const char *atto_loss_name(atto_loss_kind kind)
{
    static const char *const names[] = {
#define X(NAME, name, rule) #name,
        ATTO_LOSS_TABLE(X)
#undef X
    };
    return (int)kind >= 0 && kind < ATTO_LOSS_COUNT ? names[kind] : "?";
}

/* ---- numbers ---- */

typedef enum rule { UNUSED, NONNEGATIVE, POSITIVE } rule;

static const rule rules[] = {
#define X(NAME, name, rule) rule,
    ATTO_LOSS_TABLE(X)
#undef X
};

static atto_status check_threshold(const char *what, atto_loss_kind kind, float threshold)
{
    const rule r = rules[kind];
    const bool legal = threshold > 0.0f || (r == NONNEGATIVE && threshold == 0.0f);
    ATTO_REQUIRE(r == UNUSED || (legal && isfinite(threshold)), ATTO_E_ARGUMENT,
                 "%s: %s of %s is %g, expected a finite number %s 0", what,
                 kind == ATTO_LOSS_HUBER ? "delta" : "beta", atto_loss_name(kind),
                 (double)threshold, r == POSITIVE ? "above" : "of at least");
    return ATTO_OK;
}

static atto_status check_numbers(const char *what, atto_loss_kind kind, atto_reduction reduction,
                                 float threshold)
{
    ATTO_REQUIRE((int)kind >= 0 && kind < ATTO_LOSS_COUNT, ATTO_E_ARGUMENT, "%s: %d is no loss",
                 what, (int)kind);
    ATTO_TRY(atto__reduction_check(what, reduction, ATTO_REDUCTION_BATCH_MEAN));
    return check_threshold(what, kind, threshold);
}

/* ---- shapes ---- */

/* The shape that the two make together; where they do not fit, one to which one does not expand. */
static atto_shape shape_together(const atto_tensor *a, const atto_tensor *b)
{
    const atto_tensor *parts[] = { a, b };
    atto_shape shape = { a->rank > b->rank ? a->rank : b->rank, { 0 } };
    for (int32_t d = 0; d < shape.rank; d++) {
        shape.dim[d] = 1;
        for (int32_t i = 0; i < 2; i++) {
            const int32_t own = d - (shape.rank - parts[i]->rank);
            if (own >= 0 && parts[i]->shape[own] != 1) shape.dim[d] = parts[i]->shape[own];
        }
    }
    return shape;
}

static atto_tensor full_tensor(const struct atto_loss_args *a)
{
    return atto_tensor_of(NULL, ATTO_F32, shape_together(a->x, a->target), 0);
}

static atto_status check_together(const char *what, const struct atto_loss_args *a)
{
    char one[ATTO_SHAPE_TEXT], other[ATTO_SHAPE_TEXT];
    const atto_tensor full = full_tensor(a);
    atto_tensor x = *a->x, target = *a->target;
    ATTO_REQUIRE(a->kind != ATTO_LOSS_BCE_WITH_LOGITS || atto__shape_same(&x, &target),
                 ATTO_E_SHAPE, "%s: target is %s, expected x's %s", what,
                 atto__shape_text(&target, one), atto__shape_text(&x, other));
    ATTO_REQUIRE(atto__view_expand(&x, &full, 0) && atto__view_expand(&target, &full, 0),
                 ATTO_E_SHAPE, "%s: target is %s, which does not broadcast with x's %s", what,
                 atto__shape_text(a->target, one), atto__shape_text(a->x, other));
    return ATTO_OK;
}

/* A weight of BCE_WITH_LOGITS; first: another one, whose dtype it shares. */
static atto_status check_weight(const char *what, const struct atto_loss_args *a, const char *name,
                                const atto_tensor *t, const atto_tensor *first)
{
    char got[ATTO_SHAPE_TEXT], wanted[ATTO_SHAPE_TEXT];
    if (!t) return ATTO_OK;
    ATTO_REQUIRE(a->kind == ATTO_LOSS_BCE_WITH_LOGITS, ATTO_E_ARGUMENT,
                 "%s: %s is given, which %s does not have", what, name, atto_loss_name(a->kind));
    ATTO_REQUIRE(t->dtype == ATTO_F32 || t->dtype == a->x->dtype, ATTO_E_DTYPE,
                 "%s: %s is %s, expected f32 or x's %s", what, name, atto_dtype_name(t->dtype),
                 atto_dtype_name(a->x->dtype));
    ATTO_REQUIRE(!first || t->dtype == first->dtype, ATTO_E_DTYPE,
                 "%s: %s is %s, expected weight's %s", what, name, atto_dtype_name(t->dtype),
                 first ? atto_dtype_name(first->dtype) : "");
    atto_tensor view = *t;
    ATTO_REQUIRE(atto__view_expand(&view, a->x, 0), ATTO_E_SHAPE,
                 "%s: %s is %s, which does not broadcast to x's %s", what, name,
                 atto__shape_text(t, got), atto__shape_text(a->x, wanted));
    return ATTO_OK;
}

static atto_status check_inputs(const char *what, const struct atto_loss_args *a)
{
    ATTO_REQUIRE(atto__is_float(a->x->dtype), ATTO_E_DTYPE,
                 "%s: x is %s, expected f32, f16 or bf16", what, atto_dtype_name(a->x->dtype));
    ATTO_REQUIRE(a->target->dtype == a->x->dtype, ATTO_E_DTYPE, "%s: target is %s, expected x's %s",
                 what, atto_dtype_name(a->target->dtype), atto_dtype_name(a->x->dtype));
    ATTO_TRY(check_together(what, a));
    ATTO_TRY(check_weight(what, a, "weight", a->weight, NULL));
    return check_weight(what, a, "pos_weight", a->pos_weight, a->weight);
}

atto_status atto__loss_check(const struct atto_loss_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD, none = a->reduction == ATTO_REDUCTION_NONE;
    const char *what = forward ? "loss_forward" : "loss_backward";
    ATTO_TRY(check_numbers(what, a->kind, a->reduction, a->threshold));
    ATTO_TRY(check_inputs(what, a));
    const atto_shape loss = none ? shape_together(a->x, a->target) : atto_shape0();
    const atto_shape x = atto_shape_of(a->x->rank, a->x->shape);
    const atto_shape target = atto_shape_of(a->target->rank, a->target->shape);
    const atto__expected parts[] = {
        { "loss", forward ? a->loss : NULL, loss, ATTO_F32, false },
        { "dloss", forward ? NULL : a->dloss, loss, ATTO_F32, false },
        { "dx", forward ? NULL : a->dx, x, a->x->dtype, false },
        { "dtarget", forward ? NULL : a->dtarget, target, a->x->dtype, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

/* ---- how tensors expand ---- */

static const atto_tensor *full(const void *args, atto__direction direction)
{
    (void)direction;
    const struct atto_loss_args *a = args;
    const atto_tensor made = full_tensor(a);
    if (atto__shape_same(a->x, &made)) return a->x;
    return atto__shape_same(a->target, &made) ? a->target : NULL;
}

static atto_shape shape(const void *args)
{
    const struct atto_loss_args *a = args;
    return shape_together(a->x, a->target);
}

/* What the sum is divided by. */
static int64_t divisor(const void *args)
{
    const struct atto_loss_args *a = args;
    const atto_tensor made = full_tensor(a);
    if (a->reduction == ATTO_REDUCTION_MEAN) return atto_tensor_numel(&made);
    return a->reduction == ATTO_REDUCTION_BATCH_MEAN && a->x->rank > 0 ? a->x->shape[0] : 1;
}

static double empty(const void *args, atto__direction direction)
{
    return direction == ATTO_FORWARD && divisor(args) == 0 ? (double)NAN : 0.0;
}

const atto__broadcast atto__loss_broadcast = {
    .full = full, .shape = shape, .folded = divisor, .empty = empty
};

atto_status atto_loss_forward(atto_device *dev, const struct atto_loss_args *a)
{
    return atto__run(dev, ATTO_OP_LOSS, ATTO_FORWARD, a);
}

atto_status atto_loss_backward(atto_device *dev, const struct atto_loss_args *a)
{
    return atto__run(dev, ATTO_OP_LOSS, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_loss_args, name)

/* What a recording is asked for, whatever the kind. */
typedef struct request {
    atto_loss_kind kind;
    atto_reduction reduction;
    float threshold;
    const atto_var *weight, *pos_weight; /* NULL = none */
} request;

static atto_var record(atto_tape *tape, atto_var x, atto_var target, const request *r)
{
    const char *what = atto_loss_name(r->kind);
    const atto_tensor *tx = atto__tape_tensor(tape, what, x);
    const atto_tensor *tt = atto__tape_tensor(tape, what, target);
    if (!tx || !tt) return atto__no_var();
    struct atto_loss_args args = { .kind = r->kind,
                                   .reduction = r->reduction,
                                   .threshold = r->threshold };
    atto__binding inputs[4] = { { .field = FIELD(x), .v = x },
                                { .field = FIELD(target), .v = target } };
    int32_t count = 2;
    if (r->weight)
        inputs[count++] =
            (atto__binding){ .field = FIELD(weight), .v = *r->weight, .f32_too = true };
    if (r->pos_weight)
        inputs[count++] =
            (atto__binding){ .field = FIELD(pos_weight), .v = *r->pos_weight, .f32_too = true };
    const bool none = r->reduction == ATTO_REDUCTION_NONE;
    const atto__result loss = { .field = FIELD(loss),
                                .dtype = ATTO_F32,
                                .shape = none ? shape_together(tx, tt) : atto_shape0() };
    return atto__record_op(tape, ATTO_OP_LOSS, &args, inputs, count, &loss, 1);
}

static atto_var record_plain(atto_tape *tape, atto_loss_kind kind, atto_var x, atto_var target,
                             float threshold, const atto_loss_options *options)
{
    const atto_loss_options none = { .reduction = ATTO_REDUCTION_MEAN };
    const atto_loss_options *o = options ? options : &none;
    const request r = { .kind = kind, .reduction = o->reduction, .threshold = threshold };
    if (!tape ||
        atto__tape_fail(tape, atto__reserved_check("loss: options", o->reserved)) != ATTO_OK)
        return atto__no_var();
    return record(tape, x, target, &r);
}

atto_var atto_l1_loss(atto_tape *tape, atto_var x, atto_var target,
                      const atto_loss_options *options)
{
    return record_plain(tape, ATTO_LOSS_L1, x, target, 0.0f, options);
}

atto_var atto_mse_loss(atto_tape *tape, atto_var x, atto_var target,
                       const atto_loss_options *options)
{
    return record_plain(tape, ATTO_LOSS_MSE, x, target, 0.0f, options);
}

atto_var atto_smooth_l1_loss(atto_tape *tape, atto_var x, atto_var target, float beta,
                             const atto_loss_options *options)
{
    return record_plain(tape, ATTO_LOSS_SMOOTH_L1, x, target, beta, options);
}

atto_var atto_huber_loss(atto_tape *tape, atto_var x, atto_var target, float delta,
                         const atto_loss_options *options)
{
    return record_plain(tape, ATTO_LOSS_HUBER, x, target, delta, options);
}

atto_var atto_bce_with_logits(atto_tape *tape, atto_var x, atto_var target,
                              const atto_bce_with_logits_options *options)
{
    const atto_bce_with_logits_options none = { .weight = NULL };
    const atto_bce_with_logits_options *o = options ? options : &none;
    const request r = { .kind = ATTO_LOSS_BCE_WITH_LOGITS,
                        .reduction = o->reduction,
                        .weight = o->weight,
                        .pos_weight = o->pos_weight };
    if (!tape || atto__tape_fail(tape, atto__reserved_check("bce_with_logits: options",
                                                            o->reserved)) != ATTO_OK)
        return atto__no_var();
    return record(tape, x, target, &r);
}

atto_var atto_kl_div(atto_tape *tape, atto_var x, atto_var target,
                     const atto_kl_div_options *options)
{
    const atto_kl_div_options none = { .log_target = false };
    const atto_kl_div_options *o = options ? options : &none;
    const request r = { .kind = o->log_target ? ATTO_LOSS_KL_DIV_LOG : ATTO_LOSS_KL_DIV,
                        .reduction = o->reduction };
    if (!tape ||
        atto__tape_fail(tape, atto__reserved_check("kl_div: options", o->reserved)) != ATTO_OK)
        return atto__no_var();
    return record(tape, x, target, &r);
}

/* ---- as modules ---- */

typedef struct loss_module {
    request r;
    atto_tensor weight, pos_weight; /* or no dtype */
} loss_module;

static atto_var loss_forward(atto_module *m, atto_tape *tape, atto_var x, atto_var target)
{
    const loss_module *data = atto_module_data(m);
    request r = data->r;
    atto_var weight, pos_weight;
    if (data->weight.dtype != 0) {
        weight = atto_borrow(tape, &data->weight, false);
        r.weight = &weight;
    }
    if (data->pos_weight.dtype != 0) {
        pos_weight = atto_borrow(tape, &data->pos_weight, false);
        r.pos_weight = &pos_weight;
    }
    return record(tape, x, target, &r);
}

static void loss_destroy(void *data)
{
    loss_module *loss = data;
    atto_tensor_free(&loss->weight);
    atto_tensor_free(&loss->pos_weight);
    atto__free(loss);
}

#define CLASS(KIND, name_) \
    [ATTO_LOSS_##KIND] = { .name = name_, .forward2 = loss_forward, .destroy = loss_destroy }
static const atto_module_class classes[ATTO_LOSS_COUNT] = {
    CLASS(L1, "L1Loss"),
    CLASS(MSE, "MSELoss"),
    CLASS(SMOOTH_L1, "SmoothL1Loss"),
    CLASS(HUBER, "HuberLoss"),
    CLASS(BCE_WITH_LOGITS, "BCEWithLogitsLoss"),
    CLASS(KL_DIV, "KLDivLoss"),
    CLASS(KL_DIV_LOG, "KLDivLoss"),
};

/* A weight as the host gives it; a shape that was forgotten must not mean its first number. */
static atto_status upload(atto_device *dev, const char *name, const float *values, atto_shape shape,
                          atto_tensor *out)
{
    if (!values) return ATTO_OK;
    ATTO_REQUIRE(shape.rank > 0, ATTO_E_ARGUMENT,
                 "bce_with_logits_loss_create: %s is given, but %s_shape has no dimension", name,
                 name);
    ATTO_TRY(atto_tensor_alloc(dev, ATTO_F32, shape, out));
    return atto_tensor_write(out, values);
}

static atto_status make_module(atto_device *dev, loss_module *loss,
                               const atto_bce_with_logits_loss_options *weights, atto_module **m)
{
    if (weights) {
        ATTO_TRY(upload(dev, "weight", weights->weight, weights->weight_shape, &loss->weight));
        ATTO_TRY(upload(dev, "pos_weight", weights->pos_weight, weights->pos_weight_shape,
                        &loss->pos_weight));
    }
    return atto_module_create(dev, &classes[loss->r.kind], loss, m);
}

static atto_status create(const char *what, atto_device *dev, const request *r,
                          const uint64_t *reserved,
                          const atto_bce_with_logits_loss_options *weights, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "%s: dev is NULL", what);
    ATTO_TRY(check_numbers(what, r->kind, r->reduction, r->threshold));
    if (reserved) ATTO_TRY(atto__reserved_check(what, reserved));
    loss_module *loss = atto__alloc(sizeof *loss);
    ATTO_REQUIRE(loss, ATTO_E_MEMORY, "%s: out of host memory", what);
    *loss = (loss_module){ .r = *r };
    const atto_status status = make_module(dev, loss, weights, m);
    if (status == ATTO_OK) return ATTO_OK;
    loss_destroy(loss);
    return atto__fail_in(status, "%s: ", what);
}

static atto_status create_plain(const char *what, atto_device *dev, atto_loss_kind kind,
                                float threshold, const atto_loss_options *options, atto_module **m)
{
    const request r = { .kind = kind,
                        .reduction = options ? options->reduction : ATTO_REDUCTION_MEAN,
                        .threshold = threshold };
    return create(what, dev, &r, options ? options->reserved : NULL, NULL, m);
}

atto_status atto_l1_loss_create(atto_device *dev, const atto_loss_options *options, atto_module **m)
{
    return create_plain("l1_loss_create", dev, ATTO_LOSS_L1, 0.0f, options, m);
}

atto_status atto_mse_loss_create(atto_device *dev, const atto_loss_options *options,
                                 atto_module **m)
{
    return create_plain("mse_loss_create", dev, ATTO_LOSS_MSE, 0.0f, options, m);
}

atto_status atto_smooth_l1_loss_create(atto_device *dev, float beta,
                                       const atto_loss_options *options, atto_module **m)
{
    return create_plain("smooth_l1_loss_create", dev, ATTO_LOSS_SMOOTH_L1, beta, options, m);
}

atto_status atto_huber_loss_create(atto_device *dev, float delta, const atto_loss_options *options,
                                   atto_module **m)
{
    return create_plain("huber_loss_create", dev, ATTO_LOSS_HUBER, delta, options, m);
}

atto_status atto_bce_with_logits_loss_create(atto_device *dev,
                                             const atto_bce_with_logits_loss_options *options,
                                             atto_module **m)
{
    const request r = { .kind = ATTO_LOSS_BCE_WITH_LOGITS,
                        .reduction = options ? options->reduction : ATTO_REDUCTION_MEAN };
    return create("bce_with_logits_loss_create", dev, &r, options ? options->reserved : NULL,
                  options, m);
}

atto_status atto_kl_div_loss_create(atto_device *dev, const atto_kl_div_options *options,
                                    atto_module **m)
{
    const bool log_target = options && options->log_target;
    const request r = { .kind = log_target ? ATTO_LOSS_KL_DIV_LOG : ATTO_LOSS_KL_DIV,
                        .reduction = options ? options->reduction : ATTO_REDUCTION_MEAN };
    return create("kl_div_loss_create", dev, &r, options ? options->reserved : NULL, NULL, m);
}
