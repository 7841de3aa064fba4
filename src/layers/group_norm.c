/* SPDX-License-Identifier: MIT */
/* Group norm and instance norm: checks, the public calls, the tape, modules. */
#include <attocl/group_norm.h>

#include <stddef.h>

#include "alloc.h"
#include "batch_norm.h"
#include "layers/norm.h"

/* ---- checks ---- */

static atto_status check_groups(const char *what, int64_t channels, int64_t groups, float eps)
{
    ATTO_TRY(atto__eps_check(what, eps));
    ATTO_REQUIRE(groups >= 1 && channels % groups == 0, ATTO_E_ARGUMENT,
                 "%s: %lld groups do not divide %lld channels", what, (long long)groups,
                 (long long)channels);
    return ATTO_OK;
}

/* What they need of the call: an image's channels each for itself, an unbiased variance. */
static atto_status check_running(const char *what, const struct atto_group_norm_args *a)
{
    ATTO_REQUIRE(!a->running_mean == !a->running_var, ATTO_E_NULL,
                 "%s: %s is NULL, and the other running statistics are not", what,
                 a->running_mean ? "running_var" : "running_mean");
    if (!a->running_mean) return ATTO_OK;
    ATTO_REQUIRE(a->groups == a->x->shape[1], ATTO_E_ARGUMENT,
                 "%s: %lld groups of %lld channels have running statistics, expected one for each",
                 what, (long long)a->groups, (long long)a->x->shape[1]);
    ATTO_REQUIRE(atto__group_norm_of(a).values != 1, ATTO_E_ARGUMENT,
                 "%s: x has one value in each channel, running statistics need more", what);
    return atto__momentum_check(what, a->momentum);
}

atto_status atto__group_norm_check(const struct atto_group_norm_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "group_norm_forward" : "group_norm_backward";
    const atto_dtype dtype = a->x->dtype;
    ATTO_REQUIRE(atto__is_float(dtype), ATTO_E_DTYPE, "%s: x is %s, expected f32, f16 or bf16",
                 what, atto_dtype_name(dtype));
    ATTO_REQUIRE(a->x->rank >= 2, ATTO_E_SHAPE, "%s: x has rank %d, expected [N, C] or [N, C, ...]",
                 what, (int)a->x->rank);
    ATTO_TRY(check_groups(what, a->x->shape[1], a->groups, a->eps));
    const atto_shape x = atto_shape_of(a->x->rank, a->x->shape), c = atto_shape1(a->x->shape[1]);
    const atto_shape groups = atto_shape2(a->x->shape[0], a->groups);
    const atto__expected both[] = { { "w", a->w, c, dtype, true },
                                    { "mean", a->mean, groups, ATTO_F32, false },
                                    { "rstd", a->rstd, groups, ATTO_F32, false } };
    const atto__expected first[] = { { "b", a->b, c, dtype, true },
                                     { "running_mean", a->running_mean, c, ATTO_F32, false },
                                     { "running_var", a->running_var, c, ATTO_F32, false },
                                     { "y", a->y, x, dtype, false } };
    const atto__expected second[] = { { "dy", a->dy, x, dtype, false },
                                      { "dx", a->dx, x, dtype, false },
                                      { "dw", a->dw, c, dtype, true },
                                      { "db", a->db, c, dtype, true } };
    ATTO_TRY(atto__tensors_check(what, both, COUNT_OF(both)));
    if (!forward) return atto__tensors_check(what, second, COUNT_OF(second));
    ATTO_TRY(atto__tensors_check(what, first, COUNT_OF(first)));
    return check_running(what, a);
}

atto_status atto_group_norm_forward(atto_device *dev, const struct atto_group_norm_args *a)
{
    return atto__run(dev, ATTO_OP_GROUP_NORM, ATTO_FORWARD, a);
}

atto_status atto_group_norm_backward(atto_device *dev, const struct atto_group_norm_args *a)
{
    return atto__run(dev, ATTO_OP_GROUP_NORM, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

#define FIELD(name) offsetof(struct atto_group_norm_args, name)

/* NULL: not there. */
typedef struct norm_inputs {
    const atto_var *weight, *bias, *running_mean, *running_var;
} norm_inputs;

static int32_t bind_inputs(const norm_inputs *in, atto_var x, atto__binding *out)
{
    const struct {
        size_t field;
        const atto_var *v;
        bool not_read;
    } given[] = { { FIELD(w), in->weight, false },
                  { FIELD(b), in->bias, false },
                  { FIELD(running_mean), in->running_mean, true },
                  { FIELD(running_var), in->running_var, true } };
    int32_t count = 0;
    out[count++] = (atto__binding){ .field = FIELD(x), .v = x };
    for (size_t i = 0; i < COUNT_OF(given); i++)
        if (given[i].v)
            out[count++] = (atto__binding){ .field = given[i].field,
                                            .v = *given[i].v,
                                            .f32_too = true,
                                            .not_read = given[i].not_read };
    return count;
}

/* args: groups, eps, momentum. */
static atto_var record(atto_tape *tape, atto_var x, const atto_tensor *t,
                       struct atto_group_norm_args *args, const norm_inputs *in)
{
    const bool is_legal = t->rank >= 1 && args->groups >= 0; /* if not, the op says so */
    const atto_shape stats = atto_shape2(is_legal ? t->shape[0] : 0, is_legal ? args->groups : 0);
    atto__binding inputs[5];
    const int32_t count = bind_inputs(in, x, inputs);
    const atto__result results[] = {
        { .field = FIELD(y),
          .like_inputs = true,
          .shape = atto_shape_of(t->rank, t->shape),
          .moves = true,
          .innermost = atto__norm_innermost(t) },
        { .field = FIELD(mean), .dtype = ATTO_F32, .shape = stats, .only_saved = true },
        { .field = FIELD(rstd), .dtype = ATTO_F32, .shape = stats, .only_saved = true },
    };
    return atto__record_op(tape, ATTO_OP_GROUP_NORM, args, inputs, count, results, 3);
}

atto_var atto_group_norm(atto_tape *tape, atto_var x, int64_t groups,
                         const atto_layer_norm_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "group_norm", x);
    const atto_layer_norm_options none = { .weight = NULL };
    const atto_layer_norm_options *o = options ? options : &none;
    if (!t ||
        atto__tape_fail(tape, atto__reserved_check("group_norm: options", o->reserved)) != ATTO_OK)
        return atto__no_var();
    struct atto_group_norm_args args = { .groups = groups, .eps = atto__or_default(o->eps, 1e-5f) };
    const norm_inputs in = { .weight = o->weight, .bias = o->bias };
    return record(tape, x, t, &args, &in);
}

/* With the running statistics it is batch norm, but for autocast's class. */
static atto_var evaluate(atto_tape *tape, atto_var x, const atto_instance_norm_options *o)
{
    const atto_batch_norm_options options = { .weight = o->weight,
                                              .bias = o->bias,
                                              .running_mean = o->running_mean,
                                              .running_var = o->running_var,
                                              .eps = o->eps };
    return atto_batch_norm(tape, atto__autocast_var(tape, x, ATTO_F32), &options);
}

/* An image's channel of one value has no variance. */
static atto_status check_instances(const atto_tensor *x)
{
    int64_t values = 1;
    for (int32_t d = 2; d < x->rank; d++) values *= x->shape[d];
    ATTO_REQUIRE(values != 1, ATTO_E_ARGUMENT,
                 "instance_norm: x has one value in each channel, its statistics need more");
    return ATTO_OK;
}

atto_var atto_instance_norm(atto_tape *tape, atto_var x, const atto_instance_norm_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "instance_norm", x);
    const atto_instance_norm_options none = { .weight = NULL };
    const atto_instance_norm_options *o = options ? options : &none;
    if (!t || atto__tape_fail(tape, atto__reserved_check("instance_norm: options", o->reserved)) !=
                  ATTO_OK)
        return atto__no_var();
    if (o->use_running_stats) return evaluate(tape, x, o);
    if (atto__tape_fail(tape, check_instances(t)) != ATTO_OK) return atto__no_var();
    struct atto_group_norm_args args = { .groups = t->rank >= 2 ? t->shape[1] : 1,
                                         .momentum = atto__or_default(o->momentum, 0.1f),
                                         .eps = atto__or_default(o->eps, 1e-5f) };
    const norm_inputs in = { o->weight, o->bias, o->running_mean, o->running_var };
    return record(tape, x, t, &args, &in);
}

/* ---- GroupNorm ---- */

typedef struct group_norm_module {
    atto__affine affine;
    int64_t groups, channels;
    float eps;
} group_norm_module;

static atto_status check_channels(const atto_module *m, const group_norm_module *data,
                                  const atto_tensor *x)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(x->rank >= 2 && x->shape[1] == data->channels, ATTO_E_SHAPE,
                 "%s: the input is %s, expected %lld channels in [N,C,...]",
                 atto_module_class_name(m), atto__shape_text(x, text), (long long)data->channels);
    return ATTO_OK;
}

static atto_var group_norm_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const group_norm_module *data = atto_module_data(m);
    const atto_tensor *t = atto__tape_tensor(tape, atto_module_class_name(m), x);
    if (!t || atto__tape_fail(tape, check_channels(m, data, t)) != ATTO_OK) return atto__no_var();
    atto__affine_vars vars;
    atto__affine_use(tape, &data->affine, &vars);
    const atto_layer_norm_options options = { .weight = vars.weight_or_null,
                                              .bias = vars.bias_or_null,
                                              .eps = data->eps };
    return atto_group_norm(tape, x, data->groups, &options);
}

static const atto_module_class group_norm_class = { .name = "GroupNorm",
                                                    .forward = group_norm_forward,
                                                    .destroy = atto__free };

static atto_status fill_group_norm(atto_module *m, void *data_, const void *options)
{
    group_norm_module *data = data_;
    const atto_norm_options *o = options;
    const atto_shape channels = atto_shape1(data->channels);
    return o->no_affine ? ATTO_OK
                        : atto__affine_add(m, o->dtype, channels, !o->no_bias, &data->affine);
}

atto_status atto_group_norm_create(atto_device *dev, int64_t groups, int64_t channels,
                                   const atto_norm_options *options, atto_module **m)
{
    const char *what = "group_norm_create";
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    const atto_norm_options none = { .eps = 0.0f };
    const atto_norm_options *o = options ? options : &none;
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_REQUIRE(channels >= 0, ATTO_E_SHAPE, "%s: %lld channels, expected 0 or more", what,
                 (long long)channels);
    ATTO_TRY(check_groups(what, channels, groups, atto__or_default(o->eps, 1e-5f)));
    const group_norm_module data = { .groups = groups, .channels = channels, .eps = o->eps };
    return atto__module_make(dev, what, &group_norm_class, &data, sizeof data, fill_group_norm, o,
                             m);
}

/* ---- InstanceNorm ---- */

typedef struct instance_norm_module {
    atto__affine affine;
    atto__running running;
    int64_t channels;
    float momentum, eps;
    int32_t dims; /* behind the channels */
} instance_norm_module;

/* Of one image or a batch of them. */
static atto_status check_instance(const atto_module *m, const instance_norm_module *data,
                                  const atto_tensor *x)
{
    const int32_t channels = x->rank - data->dims - 1; /* its dimension */
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE((channels == 0 || channels == 1) && x->shape[channels] == data->channels,
                 ATTO_E_SHAPE, "%s: the input is %s, expected %lld channels in %s",
                 atto_module_class_name(m), atto__shape_text(x, text), (long long)data->channels,
                 data->dims == 1 ? "[N,C,L] or [C,L]" : "[N,C,H,W] or [C,H,W]");
    return ATTO_OK;
}

static atto_var normalise_instances(atto_module *m, atto_tape *tape, atto_var x)
{
    const instance_norm_module *data = atto_module_data(m);
    const bool tracks = data->running.mean.dtype != 0;
    const atto_var none = atto__no_var();
    const atto_var mean = tracks ? atto_borrow(tape, &data->running.mean, false) : none;
    const atto_var var = tracks ? atto_borrow(tape, &data->running.var, false) : none;
    atto__affine_vars vars;
    atto__affine_use(tape, &data->affine, &vars);
    const atto_instance_norm_options options = {
        .weight = vars.weight_or_null,
        .bias = vars.bias_or_null,
        .running_mean = tracks ? &mean : NULL,
        .running_var = tracks ? &var : NULL,
        .use_running_stats = tracks && !atto_module_is_training(m),
        .momentum = data->momentum,
        .eps = data->eps,
    };
    return atto_instance_norm(tape, x, &options);
}

static atto_var instance_norm_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const instance_norm_module *data = atto_module_data(m);
    const atto_tensor *t = atto__tape_tensor(tape, atto_module_class_name(m), x);
    if (!t || atto__tape_fail(tape, check_instance(m, data, t)) != ATTO_OK) return atto__no_var();
    if (t->rank == data->dims + 2) return normalise_instances(m, tape, x);
    const atto_shape image = atto_shape_of(t->rank, t->shape);
    atto_shape batch = { .rank = t->rank + 1, .dim = { 1 } };
    for (int32_t d = 0; d < t->rank; d++) batch.dim[d + 1] = t->shape[d];
    return atto_reshape(tape, normalise_instances(m, tape, atto_reshape(tape, x, batch)), image);
}

static void instance_norm_destroy(void *data_)
{
    instance_norm_module *data = data_;
    atto__running_free(&data->running);
    atto__free(data);
}

static const atto_module_class instance_norm_classes[] = {
    { .name = "InstanceNorm1d",
      .forward = instance_norm_forward,
      .destroy = instance_norm_destroy },
    { .name = "InstanceNorm2d",
      .forward = instance_norm_forward,
      .destroy = instance_norm_destroy },
};

static atto_status fill_instance_norm(atto_module *m, void *data_, const void *options)
{
    instance_norm_module *data = data_;
    const atto_instance_norm_module_options *o = options;
    const atto_shape channels = atto_shape1(data->channels);
    if (o->affine) ATTO_TRY(atto__affine_add(m, o->dtype, channels, true, &data->affine));
    return o->track_running_stats ? atto__running_add(m, data->channels, &data->running) : ATTO_OK;
}

static atto_status create_instance_norm(atto_device *dev, const char *what, int32_t dims,
                                        int64_t channels,
                                        const atto_instance_norm_module_options *options,
                                        atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    const atto_instance_norm_module_options none = { .eps = 0.0f };
    const atto_instance_norm_module_options *o = options ? options : &none;
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_REQUIRE(channels >= 0, ATTO_E_SHAPE, "%s: %lld channels, expected 0 or more", what,
                 (long long)channels);
    ATTO_TRY(atto__eps_check(what, atto__or_default(o->eps, 1e-5f)));
    ATTO_TRY(atto__momentum_check(what, atto__or_default(o->momentum, 0.1f)));
    const instance_norm_module data = {
        .channels = channels, .momentum = o->momentum, .eps = o->eps, .dims = dims
    };
    return atto__module_make(dev, what, &instance_norm_classes[dims - 1], &data, sizeof data,
                             fill_instance_norm, o, m);
}

atto_status atto_instance_norm1d_create(atto_device *dev, int64_t channels,
                                        const atto_instance_norm_module_options *options,
                                        atto_module **m)
{
    return create_instance_norm(dev, "instance_norm1d_create", 1, channels, options, m);
}

atto_status atto_instance_norm2d_create(atto_device *dev, int64_t channels,
                                        const atto_instance_norm_module_options *options,
                                        atto_module **m)
{
    return create_instance_norm(dev, "instance_norm2d_create", 2, channels, options, m);
}
