/* SPDX-License-Identifier: MIT */
/* Layer norm and RMS norm: checks and the public calls. */
#include "layer_norm.h"

#include <stddef.h>

#include "alloc.h"
#include "layers/norm.h"

/* ---- checks ---- */

static atto_status check_numbers(const char *what, const atto_tensor *x, int32_t dims, float eps)
{
    ATTO_TRY(atto__eps_check(what, eps));
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: x is %s, expected f32, f16 or bf16",
                 what, atto_dtype_name(x->dtype));
    ATTO_REQUIRE(dims >= 1 && dims <= x->rank, ATTO_E_SHAPE,
                 "%s: dims is %d, expected 1 to the rank of x, which is %d", what, (int)dims,
                 (int)x->rank);
    return ATTO_OK;
}

static atto_status check_tensors(const char *what, const atto__row_norm *n, int32_t dims,
                                 atto__direction direction)
{
    const atto_dtype dtype = n->x->dtype;
    const int32_t leading = n->x->rank - dims;
    const atto_shape full = atto_shape_of(n->x->rank, n->x->shape);
    const atto_shape rows = atto_shape_of(leading, n->x->shape);
    const atto_shape normalised = atto_shape_of(dims, n->x->shape + leading);
    const atto__expected both[] = { { "w", n->w, normalised, dtype, true },
                                    { "mean", n->mean, rows, ATTO_F32, false },
                                    { "rstd", n->rstd, rows, ATTO_F32, false } };
    const atto__expected forward[] = { { "b", n->b, normalised, dtype, true },
                                       { "y", n->y, full, dtype, false } };
    const atto__expected backward[] = { { "dy", n->dy, full, dtype, false },
                                        { "dx", n->dx, full, dtype, false },
                                        { "dw", n->dw, normalised, dtype, true },
                                        { "db", n->db, normalised, dtype, true } };
    ATTO_TRY(atto__tensors_check(what, both, COUNT_OF(both)));
    return direction == ATTO_FORWARD ? atto__tensors_check(what, forward, COUNT_OF(forward))
                                     : atto__tensors_check(what, backward, COUNT_OF(backward));
}

atto_status atto__layer_norm_check(const struct atto_layer_norm_args *a, atto__direction direction)
{
    const char *what = direction == ATTO_FORWARD ? "layer_norm_forward" : "layer_norm_backward";
    ATTO_TRY(check_numbers(what, a->x, a->dims, a->eps));
    const atto__row_norm n = atto__layer_norm_of(a);
    return check_tensors(what, &n, a->dims, direction);
}

atto_status atto__rms_norm_check(const struct atto_rms_norm_args *a, atto__direction direction)
{
    const char *what = direction == ATTO_FORWARD ? "rms_norm_forward" : "rms_norm_backward";
    ATTO_TRY(check_numbers(what, a->x, a->dims, a->eps));
    const atto__row_norm n = atto__rms_norm_of(a);
    return check_tensors(what, &n, a->dims, direction);
}

atto_status atto_layer_norm_forward(atto_device *dev, const struct atto_layer_norm_args *a)
{
    return atto__run(dev, ATTO_OP_LAYER_NORM, ATTO_FORWARD, a);
}

atto_status atto_layer_norm_backward(atto_device *dev, const struct atto_layer_norm_args *a)
{
    return atto__run(dev, ATTO_OP_LAYER_NORM, ATTO_BACKWARD, a);
}

atto_status atto_rms_norm_forward(atto_device *dev, const struct atto_rms_norm_args *a)
{
    return atto__run(dev, ATTO_OP_RMS_NORM, ATTO_FORWARD, a);
}

atto_status atto_rms_norm_backward(atto_device *dev, const struct atto_rms_norm_args *a)
{
    return atto__run(dev, ATTO_OP_RMS_NORM, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

/* The distance from 1 to the next number of the dtype: PyTorch's finfo(dtype).eps. */
static float machine_epsilon(atto_dtype dtype)
{
    return dtype == ATTO_F16 ? 0x1p-10f : dtype == ATTO_BF16 ? 0x1p-7f : 0x1p-23f;
}

static atto_status check_recording(const char *what, const atto_layer_norm_options *o,
                                   const atto_tensor *x, int32_t dims, bool centred)
{
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_REQUIRE(centred || !o->bias, ATTO_E_ARGUMENT, "%s: bias is given, and there is none",
                 what);
    return check_numbers(what, x, dims, atto__or_default(o->eps, 1.0f));
}

/* The fields of the two args structs that a recording fills. */
typedef struct norm_fields {
    size_t x, w, b, y, mean, rstd;
} norm_fields;

static atto_var record_norm(atto_tape *tape, atto_op op, void *args, const norm_fields *f,
                            atto_var x, int32_t dims, const atto_layer_norm_options *o)
{
    const atto_tensor *t = atto__tape_tensor(tape, "norm", x);
    const atto_shape rows = atto_shape_of(t->rank - dims, t->shape);
    const bool centred = op == ATTO_OP_LAYER_NORM;
    atto__binding inputs[3] = { { .field = f->x, .v = x } };
    int32_t count = 1;
    if (o->weight)
        inputs[count++] = (atto__binding){ .field = f->w, .v = *o->weight, .f32_too = true };
    if (o->bias) inputs[count++] = (atto__binding){ .field = f->b, .v = *o->bias, .f32_too = true };
    const atto__result results[] = {
        { .field = f->y, .like_inputs = true, .shape = atto_shape_of(t->rank, t->shape) },
        { .field = f->rstd, .dtype = ATTO_F32, .shape = rows, .only_saved = true },
        { .field = f->mean, .dtype = ATTO_F32, .shape = rows, .only_saved = true },
    };
    return atto__record_op(tape, op, args, inputs, count, results, centred ? 3 : 2);
}

#define LAYER_FIELD(name) offsetof(struct atto_layer_norm_args, name)
#define RMS_FIELD(name)   offsetof(struct atto_rms_norm_args, name)

atto_var atto_layer_norm(atto_tape *tape, atto_var x, int32_t dims,
                         const atto_layer_norm_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "layer_norm", x);
    const atto_layer_norm_options none = { .weight = NULL };
    const atto_layer_norm_options *o = options ? options : &none;
    if (!t ||
        atto__tape_fail(tape, check_recording("layer_norm: options", o, t, dims, true)) != ATTO_OK)
        return atto__no_var();
    struct atto_layer_norm_args args = { .dims = dims, .eps = atto__or_default(o->eps, 1e-5f) };
    const norm_fields fields = { LAYER_FIELD(x), LAYER_FIELD(w),    LAYER_FIELD(b),
                                 LAYER_FIELD(y), LAYER_FIELD(mean), LAYER_FIELD(rstd) };
    return record_norm(tape, ATTO_OP_LAYER_NORM, &args, &fields, x, dims, o);
}

atto_var atto_rms_norm(atto_tape *tape, atto_var x, int32_t dims,
                       const atto_layer_norm_options *options)
{
    const atto_tensor *t = atto__tape_tensor(tape, "rms_norm", x);
    const atto_layer_norm_options none = { .weight = NULL };
    const atto_layer_norm_options *o = options ? options : &none;
    if (!t ||
        atto__tape_fail(tape, check_recording("rms_norm: options", o, t, dims, false)) != ATTO_OK)
        return atto__no_var();
    struct atto_rms_norm_args args = { .dims = dims,
                                       .eps = atto__or_default(o->eps, machine_epsilon(t->dtype)) };
    const norm_fields fields = { RMS_FIELD(x), RMS_FIELD(w), 0, RMS_FIELD(y), 0, RMS_FIELD(rstd) };
    return record_norm(tape, ATTO_OP_RMS_NORM, &args, &fields, x, dims, o);
}

/* ---- as modules ---- */

typedef struct norm_module {
    atto__affine affine;
    atto_shape normalised;
    float eps;
    bool centred;
} norm_module;

/* The input's trailing dimensions are those that the module was made for. */
static atto_status check_input(const atto_module *m, const norm_module *data, const atto_tensor *x)
{
    const int32_t leading = x->rank - data->normalised.rank;
    const atto_tensor wanted = atto_tensor_of(NULL, ATTO_F32, data->normalised, 0);
    const atto_shape tail =
        leading >= 0 ? atto_shape_of(data->normalised.rank, x->shape + leading) : atto_shape0();
    const atto_tensor got = atto_tensor_of(NULL, ATTO_F32, tail, 0);
    char got_text[ATTO_SHAPE_TEXT], wanted_text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(leading >= 0 && atto__shape_same(&got, &wanted), ATTO_E_SHAPE,
                 "%s: the input is %s, expected one that ends in %s", atto_module_class_name(m),
                 atto__shape_text(x, got_text), atto__shape_text(&wanted, wanted_text));
    return ATTO_OK;
}

static atto_var norm_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    const norm_module *data = atto_module_data(m);
    const atto_tensor *t = atto__tape_tensor(tape, atto_module_class_name(m), x);
    if (!t || atto__tape_fail(tape, check_input(m, data, t)) != ATTO_OK) return atto__no_var();
    atto__affine_vars vars;
    atto__affine_use(tape, &data->affine, &vars);
    const atto_layer_norm_options options = { .weight = vars.weight_or_null,
                                              .bias = vars.bias_or_null,
                                              .eps = data->eps };
    return data->centred ? atto_layer_norm(tape, x, data->normalised.rank, &options)
                         : atto_rms_norm(tape, x, data->normalised.rank, &options);
}

static const atto_module_class layer_norm_class = { .name = "LayerNorm",
                                                    .forward = norm_forward,
                                                    .destroy = atto__free };
static const atto_module_class rms_norm_class = { .name = "RMSNorm",
                                                  .forward = norm_forward,
                                                  .destroy = atto__free };

static atto_status add_params(atto_module *m, void *data_, const void *options)
{
    norm_module *data = data_;
    const atto_norm_options *o = options;
    if (o->no_affine) return ATTO_OK;
    const bool has_bias = data->centred && !o->no_bias;
    return atto__affine_add(m, o->dtype, data->normalised, has_bias, &data->affine);
}

static atto_status check_options(const char *what, const atto_norm_options *o, atto_shape shape)
{
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_REQUIRE(shape.rank >= 1, ATTO_E_SHAPE, "%s: normalised has no dimension", what);
    const atto_tensor whole = atto_tensor_of(NULL, ATTO_F32, shape, 0);
    ATTO_TRY(atto__shape_check(&whole, what));
    return atto__eps_check(what, atto__or_default(o->eps, 1.0f));
}

static atto_status create(atto_device *dev, const char *what, const atto_module_class *cls,
                          atto_shape normalised, const atto_norm_options *options, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    const atto_norm_options none = { .eps = 0.0f };
    const atto_norm_options *o = options ? options : &none;
    ATTO_TRY(check_options(what, o, normalised));
    const norm_module data = { .normalised = normalised,
                               .eps = o->eps,
                               .centred = cls == &layer_norm_class };
    return atto__module_make(dev, what, cls, &data, sizeof data, add_params, o, m);
}

atto_status atto_layer_norm_create(atto_device *dev, atto_shape normalised,
                                   const atto_norm_options *options, atto_module **m)
{
    return create(dev, "layer_norm_create", &layer_norm_class, normalised, options, m);
}

atto_status atto_rms_norm_create(atto_device *dev, atto_shape normalised,
                                 const atto_norm_options *options, atto_module **m)
{
    return create(dev, "rms_norm_create", &rms_norm_class, normalised, options, m);
}
