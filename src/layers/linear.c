/* SPDX-License-Identifier: MIT */
/* Linear: checks and the public calls. */
#include "layers/checks.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

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
    char x_text[ATTO_SHAPE_TEXT], w_text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(a->w->shape[1] == k, ATTO_E_SHAPE,
                 "%s: x is %s beside w of %s, expected [..., %" PRId64 "]", what,
                 atto__shape_text(a->x, x_text), atto__shape_text(a->w, w_text), a->w->shape[1]);
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

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_linear_args, name)

static int32_t bind_inputs(atto_var x, atto_var w, const atto_linear_fused *fused,
                           atto__binding *out)
{
    int32_t count = 0;
    out[count++] = (atto__binding){ .field = FIELD(x), .v = x };
    out[count++] = (atto__binding){ .field = FIELD(w), .v = w, .f32_grad = true };
    if (fused && fused->bias)
        out[count++] = (atto__binding){ .field = FIELD(b), .v = *fused->bias, .f32_too = true };
    if (fused && fused->residual)
        out[count++] =
            (atto__binding){ .field = FIELD(residual), .v = *fused->residual, .passes = true };
    return count;
}

atto_var atto_linear(atto_tape *tape, atto_var x, atto_var w, const atto_linear_fused *fused)
{
    const atto_tensor *tx = atto__tape_tensor(tape, "linear", x);
    const atto_tensor *tw = atto__tape_tensor(tape, "linear", w);
    if (!tx || !tw) return atto__no_var();
    const bool is_legal = tx->rank >= 1 && tw->rank == 2; /* if not, the op says so */
    struct atto_linear_args args = { .dropout = 0.0f };
    if (fused &&
        atto__tape_fail(tape, atto__reserved_check("linear: options", fused->reserved)) != ATTO_OK)
        return atto__no_var();
    if (fused) args.act = fused->act;
    if (fused) args.dropout = fused->dropout;
    const atto_shape shape =
        is_legal ? with_last(tx, tw->shape[0]) : atto_shape_of(tx->rank, tx->shape);
    const atto_tensor like_y = atto_tensor_of(NULL, tx->dtype, shape, 0);
    if (args.dropout > 0.0f) args.rng = atto__tape_draw(tape, atto_tensor_numel(&like_y));
    atto__binding inputs[4];
    const int32_t count = bind_inputs(x, w, fused, inputs);
    const atto__result results[] = {
        { .field = FIELD(y), .like_inputs = true, .shape = shape },
        { .field = FIELD(z), .like_inputs = true, .shape = shape, .only_saved = true }
    };
    return atto__record_op(tape, ATTO_OP_LINEAR, &args, inputs, count, results,
                           args.act.kind == ATTO_ACT_IDENTITY ? 1 : 2);
}

/* ---- as a module ---- */

typedef struct linear_module {
    atto_param *weight, *bias; /* borrowed from the module; bias may be NULL */
    atto_activation act;
    float dropout;
    int64_t in, out;
} linear_module;

static atto_var linear_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const linear_module *data = atto_module_data(m);
    const atto_var weight = atto_use(tape, data->weight);
    const atto_var bias = data->bias ? atto_use(tape, data->bias) : atto__no_var();
    const atto_linear_fused fused = { .bias = data->bias ? &bias : NULL,
                                      .act = data->act,
                                      .dropout =
                                          atto_module_is_training(m) ? data->dropout : 0.0f };
    return atto_linear(tape, x, weight, &fused);
}

static const atto_module_class linear_class = { .name = "Linear",
                                                .forward = linear_forward,
                                                .destroy = atto__free };

/* Source: PyTorch 2.11 torch.nn.Linear.reset_parameters. */
static atto_status add_params(atto_module *m, void *data_, const void *options)
{
    linear_module *data = data_;
    const atto_linear_options *o = options;
    const int64_t in = data->in, out = data->out;
    const atto_dtype dtype = o->dtype ? o->dtype : ATTO_F32;
    const double bound = in > 0 ? 1.0 / sqrt((double)in) : 0.0;
    ATTO_TRY(atto_module_param(m, "weight", dtype, atto_shape2(out, in), &data->weight));
    ATTO_TRY(atto_param_init_uniform(data->weight, bound));
    if (o->no_bias) return ATTO_OK;
    ATTO_TRY(atto_module_param(m, "bias", dtype, atto_shape1(out), &data->bias));
    return atto_param_init_uniform(data->bias, bound);
}

static atto_status check_options(const atto_linear_options *o)
{
    ATTO_TRY(atto__reserved_check("linear_create: options", o->reserved));
    ATTO_TRY(atto__activation_check("linear_create", o->act));
    return atto__probability_check("linear_create", o->dropout, &(atto_rng){ 0 });
}

atto_status atto_linear_create(atto_device *dev, int64_t in, int64_t out,
                               const atto_linear_options *options, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "linear_create: m is NULL");
    *m = NULL;
    ATTO_REQUIRE(in >= 0 && out >= 0, ATTO_E_SHAPE, "linear_create: %s is %lld, expected 0 or more",
                 in < 0 ? "in" : "out", (long long)(in < 0 ? in : out));
    const atto_linear_options none = { .no_bias = false };
    const atto_linear_options *o = options ? options : &none;
    ATTO_TRY(check_options(o));
    const linear_module data = { .in = in, .out = out, .act = o->act, .dropout = o->dropout };
    return atto__module_make(dev, "linear_create", &linear_class, &data, sizeof data, add_params, o,
                             m);
}
