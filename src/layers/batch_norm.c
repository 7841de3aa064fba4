/* SPDX-License-Identifier: MIT */
/* Batch norm: checks, the public calls, the tape, modules. */
#include "batch_norm.h"

#include <math.h>
#include <stddef.h>

#include "alloc.h"
#include "layers/norm.h"

/* ---- checks ---- */

static atto_status check_numbers(const char *what, atto_activation act, float momentum, float eps)
{
    ATTO_TRY(atto__activation_check(what, act));
    ATTO_TRY(atto__eps_check(what, eps));
    return atto__momentum_check(what, momentum);
}

static atto_status check_statistics(const char *what, const struct atto_batch_norm_args *a)
{
    ATTO_REQUIRE(!a->running_mean == !a->running_var, ATTO_E_NULL,
                 "%s: %s is NULL, and the other running statistics are not", what,
                 a->running_mean ? "running_var" : "running_mean");
    ATTO_REQUIRE(a->training || a->running_mean, ATTO_E_NULL,
                 "%s: running_mean is NULL: give running statistics, or set training", what);
    ATTO_REQUIRE(!a->training || !a->cumulative || !a->running_mean || a->batches, ATTO_E_NULL,
                 "%s: batches is NULL, which cumulative needs", what);
    ATTO_REQUIRE(!a->training || atto__batch_norm_of(a->x, false).values != 1, ATTO_E_ARGUMENT,
                 "%s: x has one value in each channel, training needs more", what);
    return ATTO_OK;
}

atto_status atto__batch_norm_check(const struct atto_batch_norm_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "batch_norm_forward" : "batch_norm_backward";
    const atto_dtype dtype = a->x->dtype;
    ATTO_TRY(check_numbers(what, a->act, a->momentum, a->eps));
    ATTO_REQUIRE(atto__is_float(dtype), ATTO_E_DTYPE, "%s: x is %s, expected f32, f16 or bf16",
                 what, atto_dtype_name(dtype));
    ATTO_REQUIRE(a->x->rank >= 2, ATTO_E_SHAPE, "%s: x has rank %d, expected [N, C] or [N, C, ...]",
                 what, (int)a->x->rank);
    const atto_shape x = atto_shape_of(a->x->rank, a->x->shape), c = atto_shape1(a->x->shape[1]);
    const atto__expected both[] = { { "w", a->w, c, dtype, true },
                                    { "b", a->b, c, dtype, true },
                                    { "residual", a->residual, x, dtype, false },
                                    { "mean", a->mean, c, ATTO_F32, false },
                                    { "rstd", a->rstd, c, ATTO_F32, false } };
    ATTO_TRY(atto__tensors_check(what, both, COUNT_OF(both)));
    if (!forward) {
        const atto__expected parts[] = { { "dy", a->dy, x, dtype, false },
                                         { "dx", a->dx, x, dtype, false },
                                         { "dw", a->dw, c, dtype, true },
                                         { "db", a->db, c, dtype, true },
                                         { "dresidual", a->dresidual, x, dtype, false } };
        return atto__tensors_check(what, parts, COUNT_OF(parts));
    }
    const atto__expected parts[] = { { "running_mean", a->running_mean, c, ATTO_F32, false },
                                     { "running_var", a->running_var, c, ATTO_F32, false },
                                     { "batches", a->batches, atto_shape0(), ATTO_I64, false },
                                     { "y", a->y, x, dtype, false } };
    ATTO_TRY(atto__tensors_check(what, parts, COUNT_OF(parts)));
    return check_statistics(what, a);
}

atto_status atto_batch_norm_forward(atto_device *dev, const struct atto_batch_norm_args *a)
{
    return atto__run(dev, ATTO_OP_BATCH_NORM, ATTO_FORWARD, a);
}

atto_status atto_batch_norm_backward(atto_device *dev, const struct atto_batch_norm_args *a)
{
    return atto__run(dev, ATTO_OP_BATCH_NORM, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_batch_norm_args, name)

/* What the options name, as inputs of the op; backward reads b and residual for the activation
 * alone. */
static int32_t bind_inputs(const atto_batch_norm_options *o, atto_var x, atto__binding *out)
{
    const bool linear = o->act.kind == ATTO_ACT_IDENTITY;
    const struct {
        size_t field;
        const atto_var *v;
        bool passes, not_read;
    } given[] = { { FIELD(w), o->weight, false, false },
                  { FIELD(b), o->bias, false, linear },
                  { FIELD(residual), o->residual, linear, linear },
                  { FIELD(running_mean), o->running_mean, false, true },
                  { FIELD(running_var), o->running_var, false, true },
                  { FIELD(batches), o->batches, false, true } };
    int32_t count = 0;
    out[count++] = (atto__binding){ .field = FIELD(x), .v = x };
    for (size_t i = 0; i < COUNT_OF(given); i++)
        if (given[i].v)
            out[count++] = (atto__binding){ .field = given[i].field,
                                            .v = *given[i].v,
                                            .f32_too = given[i].field != FIELD(residual),
                                            .passes = given[i].passes,
                                            .not_read = given[i].not_read };
    return count;
}

atto_var atto_batch_norm(atto_tape *tape, atto_var x, const atto_batch_norm_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "batch_norm", x);
    const atto_batch_norm_options none = { .training = false };
    const atto_batch_norm_options *o = options ? options : &none;
    if (!t ||
        atto__tape_fail(tape, atto__reserved_check("batch_norm: options", o->reserved)) != ATTO_OK)
        return atto__no_var();
    struct atto_batch_norm_args args = { .act = o->act,
                                         .training = o->training,
                                         .cumulative = o->cumulative,
                                         .momentum = atto__or_default(o->momentum, 0.1f),
                                         .eps = atto__or_default(o->eps, 1e-5f) };
    const atto_shape channels = atto_shape1(t->rank >= 2 ? t->shape[1] : 0); /* or the op refuses */
    atto__binding inputs[ATTO_NODE_INPUTS];
    const int32_t count = bind_inputs(o, x, inputs);
    const atto__result results[] = {
        { .field = FIELD(y),
          .like_inputs = true,
          .shape = atto_shape_of(t->rank, t->shape),
          .moves = true,
          .innermost = atto__norm_innermost(t) },
        { .field = FIELD(mean), .dtype = ATTO_F32, .shape = channels, .only_saved = true },
        { .field = FIELD(rstd), .dtype = ATTO_F32, .shape = channels, .only_saved = true },
    };
    return atto__record_op(tape, ATTO_OP_BATCH_NORM, &args, inputs, count, results, 3);
}

/* ---- as modules ---- */

typedef struct batch_norm_module {
    atto__affine affine;
    atto__running running;
    int64_t channels;
    atto_activation act;
    bool cumulative;
    float momentum, eps;
    int32_t least_rank, most_rank; /* of the input */
    bool is_folded;                /* a convolution does what it did */
} batch_norm_module;

static atto_status check_input(const atto_module *m, const batch_norm_module *data,
                               const atto_tensor *x)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(x->rank >= data->least_rank && x->rank <= data->most_rank &&
                     x->shape[1] == data->channels,
                 ATTO_E_SHAPE, "%s: the input is %s, expected %d channels in %s",
                 atto_module_class_name(m), atto__shape_text(x, text), (int)data->channels,
                 data->most_rank == 4 ? "[N,C,H,W]" : "[N,C] or [N,C,L]");
    return ATTO_OK;
}

/* What is left of it: the residual and the activation. */
static atto_var folded(const atto_module *m, atto_tape *tape, atto_var x, const atto_var *residual)
{
    const batch_norm_module *data = atto_module_data(m);
    if (atto_module_is_training(m)) {
        atto__tape_fail(tape, atto__fail(ATTO_E_STATE,
                                         "%s: it was folded into a convolution, and cannot train",
                                         atto_module_class_name(m)));
        return atto__no_var();
    }
    if (residual) x = atto_add(tape, x, *residual);
    return data->act.kind == ATTO_ACT_IDENTITY ? x : atto_act(tape, x, data->act, NULL);
}

static atto_var forward_with(atto_module *m, atto_tape *tape, atto_var x, const atto_var *residual)
{
    const batch_norm_module *data = atto_module_data(m);
    const atto_tensor *t = atto__tape_tensor(tape, atto_module_class_name(m), x);
    if (!t || atto__tape_fail(tape, check_input(m, data, t)) != ATTO_OK) return atto__no_var();
    if (data->is_folded) return folded(m, tape, x, residual);
    const bool tracks = data->running.mean.dtype != 0, training = atto_module_is_training(m);
    const atto_var none = atto__no_var();
    atto__affine_vars vars;
    atto__affine_use(tape, &data->affine, &vars);
    const atto_var mean = tracks ? atto_borrow(tape, &data->running.mean, false) : none;
    const atto_var var = tracks ? atto_borrow(tape, &data->running.var, false) : none;
    const atto_var batches = tracks ? atto_borrow(tape, &data->running.batches, false) : none;
    const atto_batch_norm_options options = { .weight = vars.weight_or_null,
                                              .bias = vars.bias_or_null,
                                              .residual = residual,
                                              .running_mean = tracks ? &mean : NULL,
                                              .running_var = tracks ? &var : NULL,
                                              .batches = tracks ? &batches : NULL,
                                              .act = data->act,
                                              .training = training || !tracks,
                                              .cumulative = data->cumulative,
                                              .momentum = data->momentum,
                                              .eps = data->eps };
    return atto_batch_norm(tape, x, &options);
}

static atto_var batch_norm_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    return forward_with(m, tape, x, NULL);
}

static atto_var batch_norm_forward2(atto_module *m, atto_tape *tape, atto_var x, atto_var residual)
{
    return forward_with(m, tape, x, &residual);
}

static void batch_norm_destroy(void *data_)
{
    batch_norm_module *data = data_;
    atto__running_free(&data->running);
    atto__free(data);
}

static const atto_module_class batch_norm1d_class = { .name = "BatchNorm1d",
                                                      .forward = batch_norm_forward,
                                                      .destroy = batch_norm_destroy,
                                                      .forward2 = batch_norm_forward2 };
static const atto_module_class batch_norm2d_class = { .name = "BatchNorm2d",
                                                      .forward = batch_norm_forward,
                                                      .destroy = batch_norm_destroy,
                                                      .forward2 = batch_norm_forward2 };

static atto_status fill_module(atto_module *m, void *data_, const void *options)
{
    batch_norm_module *data = data_;
    const atto_batch_norm_module_options *o = options;
    const atto_shape channels = atto_shape1(data->channels);
    if (!o->no_affine) ATTO_TRY(atto__affine_add(m, o->dtype, channels, true, &data->affine));
    return o->no_running_stats ? ATTO_OK : atto__running_add(m, data->channels, &data->running);
}

static atto_status create(atto_device *dev, const char *what, const atto_module_class *cls,
                          int64_t channels, const atto_batch_norm_module_options *options,
                          atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    const atto_batch_norm_module_options none = { .eps = 0.0f };
    const atto_batch_norm_module_options *o = options ? options : &none;
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_REQUIRE(channels >= 0, ATTO_E_SHAPE, "%s: %lld channels, expected 0 or more", what,
                 (long long)channels);
    ATTO_TRY(check_numbers(what, o->act, atto__or_default(o->momentum, 0.1f),
                           atto__or_default(o->eps, 1e-5f)));
    const bool flat = cls == &batch_norm1d_class;
    const batch_norm_module data = { .channels = channels,
                                     .act = o->act,
                                     .cumulative = o->cumulative,
                                     .momentum = o->momentum,
                                     .eps = o->eps,
                                     .least_rank = flat ? 2 : 4,
                                     .most_rank = flat ? 3 : 4 };
    return atto__module_make(dev, what, cls, &data, sizeof data, fill_module, o, m);
}

atto_status atto_batch_norm1d_create(atto_device *dev, int64_t channels,
                                     const atto_batch_norm_module_options *options, atto_module **m)
{
    return create(dev, "batch_norm1d_create", &batch_norm1d_class, channels, options, m);
}

atto_status atto_batch_norm2d_create(atto_device *dev, int64_t channels,
                                     const atto_batch_norm_module_options *options, atto_module **m)
{
    return create(dev, "batch_norm2d_create", &batch_norm2d_class, channels, options, m);
}

/* ---- folded into what comes before it ---- */

static atto_status check_fold(const char *what, const atto_module *m, int32_t dims,
                              int64_t channels)
{
    const bool flat = atto__module_is(m, &batch_norm1d_class);
    ATTO_REQUIRE(flat || atto__module_is(m, &batch_norm2d_class), ATTO_E_ARGUMENT,
                 "%s: batch_norm is a %s, expected a BatchNorm1d or BatchNorm2d", what,
                 atto_module_class_name(m));
    const batch_norm_module *data = atto_module_data(m);
    ATTO_REQUIRE(flat == (dims == 1), ATTO_E_SHAPE, "%s: batch_norm is a %s, expected a %s", what,
                 atto_module_class_name(m), dims == 1 ? "BatchNorm1d" : "BatchNorm2d");
    ATTO_REQUIRE(data->channels == channels, ATTO_E_SHAPE,
                 "%s: batch_norm has %lld channels, expected %lld as the convolution gives", what,
                 (long long)data->channels, (long long)channels);
    ATTO_REQUIRE(data->running.mean.dtype != 0, ATTO_E_ARGUMENT,
                 "%s: batch_norm has no running statistics: it takes each batch's own", what);
    ATTO_REQUIRE(!data->is_folded, ATTO_E_STATE, "%s: batch_norm was folded before", what);
    return ATTO_OK;
}

/* Rows of [C] floats: mean, variance, weight, bias. */
static atto_status read_rows(const batch_norm_module *data, float *rows)
{
    const int64_t n = data->channels;
    ATTO_TRY(atto_tensor_read(&data->running.mean, rows));
    ATTO_TRY(atto_tensor_read(&data->running.var, rows + n));
    for (int64_t c = 0; c < n; c++) rows[2 * n + c] = 1.0f, rows[3 * n + c] = 0.0f;
    if (!data->affine.weight) return ATTO_OK;
    ATTO_TRY(atto__param_floats(data->affine.weight, rows + 2 * n));
    return atto__param_floats(data->affine.bias, rows + 3 * n);
}

atto_status atto__batch_norm_affine(const char *what, const atto_module *m, int32_t dims,
                                    int64_t channels, double *scale, double *shift)
{
    ATTO_TRY(check_fold(what, m, dims, channels));
    const batch_norm_module *data = atto_module_data(m);
    const double eps = (double)atto__or_default(data->eps, 1e-5f);
    float *rows = atto__alloc(((size_t)channels * 4 + 1) * sizeof *rows);
    ATTO_REQUIRE(rows, ATTO_E_MEMORY, "%s: out of host memory", what);
    const atto_status status = read_rows(data, rows);
    for (int64_t c = 0; status == ATTO_OK && c < channels; c++) {
        const float *of = rows + c;
        scale[c] = (double)of[2 * channels] / sqrt((double)of[channels] + eps);
        shift[c] = (double)of[3 * channels] - (double)of[0] * scale[c];
    }
    atto__free(rows);
    return status;
}

void atto__batch_norm_fold(atto_module *m)
{
    ((batch_norm_module *)atto_module_data(m))->is_folded = true;
}
