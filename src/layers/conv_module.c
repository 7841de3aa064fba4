/* SPDX-License-Identifier: MIT */
/* Conv1d, Conv2d, ConvTranspose1d and ConvTranspose2d as modules, and batch norms that are folded
 * into them. */
#include "layers/conv.h"

#include <inttypes.h>
#include <math.h>

#include "alloc.h"
#include "layers/checks.h"
#include "layers/norm.h"

typedef struct conv_module {
    atto__conv_request r;
    int64_t in, out, kernel[2];
    atto_param *weight, *bias; /* borrowed from the module; bias may be NULL */
} conv_module;

static atto_var forward_with(atto_module *m, atto_tape *tape, atto_var x, const atto_var *residual)
{
    const conv_module *data = atto_module_data(m);
    const atto_var weight = atto_use(tape, data->weight);
    const atto_var bias = data->bias ? atto_use(tape, data->bias) : atto__no_var();
    return atto__conv_record(tape, ATTO_OK, &data->r, x, weight, data->bias ? &bias : NULL,
                             residual);
}

static atto_var conv_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    return forward_with(m, tape, x, NULL);
}

static atto_var conv_forward2(atto_module *m, atto_tape *tape, atto_var x, atto_var residual)
{
    return forward_with(m, tape, x, &residual);
}

/* The class's name is the request's in messages too. */
#define CLASS(text)                                                                             \
    {                                                                                           \
        .name = text, .forward = conv_forward, .forward2 = conv_forward2, .destroy = atto__free \
    }
static const atto_module_class classes[] = {
    CLASS("Conv1d"),
    CLASS("Conv2d"),
    CLASS("ConvTranspose1d"),
    CLASS("ConvTranspose2d"),
};

static const atto_module_class *class_of(const atto__conv_request *r)
{
    return &classes[(r->window.transposed ? 2 : 0) + r->window.dims - 1];
}

static bool is_conv(const atto_module *m)
{
    for (size_t i = 0; i < COUNT_OF(classes); i++)
        if (atto__module_is(m, &classes[i])) return true;
    return false;
}

static atto_shape weight_shape(const conv_module *data)
{
    const atto_conv_window *v = &data->r.window;
    const int64_t first = v->transposed ? data->in : data->out;
    const int64_t second = (v->transposed ? data->out : data->in) / v->groups;
    return v->dims == 2 ? atto_shape4(first, second, data->kernel[0], data->kernel[1])
                        : atto_shape3(first, second, data->kernel[0]);
}

/* Source: PyTorch 2.11 torch.nn.modules.conv._ConvNd.reset_parameters. */
static atto_status add_params(atto_module *m, void *data_, const void *options)
{
    conv_module *data = data_;
    const atto_conv_module_options *o = options;
    const atto_dtype dtype = o->dtype ? o->dtype : ATTO_F32;
    const atto_shape shape = weight_shape(data);
    double fan_in = 1.0;
    for (int32_t d = 1; d < shape.rank; d++) fan_in *= (double)shape.dim[d];
    const double bound = fan_in > 0.0 ? 1.0 / sqrt(fan_in) : 0.0;
    ATTO_TRY(atto_module_param(m, "weight", dtype, shape, &data->weight));
    ATTO_TRY(atto_param_init_uniform(data->weight, bound));
    if (o->no_bias) return ATTO_OK;
    ATTO_TRY(atto_module_param(m, "bias", dtype, atto_shape1(data->out), &data->bias));
    return atto_param_init_uniform(data->bias, bound);
}

static atto_status check_sizes(const char *what, const conv_module *data)
{
    const atto_conv_window *v = &data->r.window;
    ATTO_REQUIRE(data->in >= 0 && data->out >= 0, ATTO_E_SHAPE,
                 "%s: %s is %" PRId64 ", expected 0 or more", what, data->in < 0 ? "in" : "out",
                 data->in < 0 ? data->in : data->out);
    for (int32_t at = 0; at < v->dims; at++)
        ATTO_REQUIRE(data->kernel[at] >= 1 && data->kernel[at] <= ATTO_CONV_MOST, ATTO_E_ARGUMENT,
                     "%s: kernel[%d] is %" PRId64 ", expected 1 to %d", what, (int)at,
                     data->kernel[at], ATTO_CONV_MOST);
    ATTO_REQUIRE(data->in % v->groups == 0 && data->out % v->groups == 0, ATTO_E_ARGUMENT,
                 "%s: %" PRId64 " groups do not divide %s, which is %" PRId64, what, v->groups,
                 data->in % v->groups ? "in" : "out", data->in % v->groups ? data->in : data->out);
    return ATTO_OK;
}

/* data has the sizes. */
static atto_status create(atto_device *dev, const char *what, int32_t dims, bool transposed,
                          conv_module data, const atto_conv_module_options *options,
                          atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    const atto_conv_module_options none = { .groups = 0 };
    const atto_conv_module_options *o = options ? options : &none;
    const atto__conv_geometry g = { .stride = o->stride,
                                    .padding = o->padding,
                                    .dilation = o->dilation,
                                    .output_padding = o->output_padding,
                                    .groups = o->groups,
                                    .same = o->same,
                                    .padding_mode = o->padding_mode };
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_TRY(atto__conv_request_make(what, dims, transposed, &g, o->act, &data.r));
    ATTO_TRY(check_sizes(what, &data));
    const atto_module_class *cls = class_of(&data.r);
    data.r.what = cls->name;
    return atto__module_make(dev, what, cls, &data, sizeof data, add_params, o, m);
}

atto_status atto_conv1d_create(atto_device *dev, int64_t in, int64_t out, int64_t kernel,
                               const atto_conv_module_options *options, atto_module **m)
{
    const conv_module data = { .in = in, .out = out, .kernel = { kernel } };
    return create(dev, "conv1d_create", 1, false, data, options, m);
}

atto_status atto_conv2d_create(atto_device *dev, int64_t in, int64_t out, int64_t kernel_h,
                               int64_t kernel_w, const atto_conv_module_options *options,
                               atto_module **m)
{
    const conv_module data = { .in = in, .out = out, .kernel = { kernel_h, kernel_w } };
    return create(dev, "conv2d_create", 2, false, data, options, m);
}

atto_status atto_conv_transpose1d_create(atto_device *dev, int64_t in, int64_t out, int64_t kernel,
                                         const atto_conv_module_options *options, atto_module **m)
{
    const conv_module data = { .in = in, .out = out, .kernel = { kernel } };
    return create(dev, "conv_transpose1d_create", 1, true, data, options, m);
}

atto_status atto_conv_transpose2d_create(atto_device *dev, int64_t in, int64_t out,
                                         int64_t kernel_h, int64_t kernel_w,
                                         const atto_conv_module_options *options, atto_module **m)
{
    const conv_module data = { .in = in, .out = out, .kernel = { kernel_h, kernel_w } };
    return create(dev, "conv_transpose2d_create", 2, true, data, options, m);
}

/* ---- with a batch norm behind it ---- */

/* Host copies: scale and shift of each channel, bias and weight. */
typedef struct fold {
    double *scale, *shift;
    float *bias, *weight;
    int64_t weights;
} fold;

/* The channel that element i of the weight contributes to. */
static int64_t channel_of(const conv_module *data, int64_t weights, int64_t i)
{
    const int64_t groups = data->r.window.groups;
    const int64_t row = i / (weights / (data->r.window.transposed ? data->in : data->out));
    if (!data->r.window.transposed) return row;
    const int64_t out = data->out / groups, taps = weights / data->in / out;
    return row / (data->in / groups) * out + i / taps % out;
}

/* The folded parameters, on the host. */
static atto_status compute_fold(const char *what, const conv_module *data,
                                const atto_module *batch_norm, fold *f)
{
    ATTO_TRY(atto__batch_norm_affine(what, batch_norm, data->r.window.dims, data->out, f->scale,
                                     f->shift));
    ATTO_TRY(atto__param_floats(data->weight, f->weight));
    for (int64_t o = 0; o < data->out; o++) f->bias[o] = 0.0f;
    if (data->bias) ATTO_TRY(atto__param_floats(data->bias, f->bias));
    for (int64_t i = 0; i < f->weights; i++)
        f->weight[i] = (float)((double)f->weight[i] * f->scale[channel_of(data, f->weights, i)]);
    for (int64_t o = 0; o < data->out; o++)
        f->bias[o] = (float)((double)f->bias[o] * f->scale[o] + f->shift[o]);
    return ATTO_OK;
}

static atto_status stage(atto_device *dev, atto_shape shape, const float *values, atto_tensor *out)
{
    ATTO_TRY(atto_tensor_alloc(dev, ATTO_F32, shape, out));
    return atto_tensor_write(out, values);
}

static atto_status assign(atto_param *p, const atto_tensor *values)
{
    const atto_tensor t = atto_param_value(p);
    atto_param_changed(p);
    return atto_tensor_copy(&t, values);
}

/* All that can be refused comes before what changes the module. */
static atto_status write_fold(atto_module *conv, const fold *f, atto_tensor *staged)
{
    conv_module *data = atto_module_data(conv);
    atto_device *dev = atto_module_device(conv);
    const atto_shape channels = atto_shape1(data->out);
    ATTO_TRY(stage(dev, weight_shape(data), f->weight, &staged[0]));
    ATTO_TRY(stage(dev, channels, f->bias, &staged[1]));
    if (!data->bias) {
        const atto_dtype dtype = atto_param_value(data->weight).dtype;
        ATTO_TRY(atto_module_param(conv, "bias", dtype, channels, &data->bias));
        atto_param_freeze(data->bias, atto_param_is_frozen(data->weight));
    }
    ATTO_TRY(assign(data->bias, &staged[1]));
    return assign(data->weight, &staged[0]);
}

static atto_status check_fold(const char *what, const atto_module *conv,
                              const atto_module *batch_norm)
{
    ATTO_REQUIRE(conv && batch_norm, ATTO_E_NULL, "%s: %s is NULL", what,
                 conv ? "batch_norm" : "conv");
    ATTO_REQUIRE(is_conv(conv), ATTO_E_ARGUMENT, "%s: conv is a %s, expected a convolution", what,
                 atto_module_class_name(conv));
    ATTO_REQUIRE(atto_module_device(conv) == atto_module_device(batch_norm), ATTO_E_DEVICE,
                 "%s: the modules are of two devices", what);
    const conv_module *data = atto_module_data(conv);
    ATTO_REQUIRE(data->r.act.kind == ATTO_ACT_IDENTITY, ATTO_E_ARGUMENT,
                 "%s: conv has the activation %s, which comes before batch_norm", what,
                 atto_activation_name(data->r.act.kind));
    return ATTO_OK;
}

static atto_status fold_modules(const char *what, atto_module *conv, atto_module *batch_norm,
                                fold *f)
{
    atto_tensor staged[2] = { { .dtype = 0 }, { .dtype = 0 } };
    ATTO_TRY(compute_fold(what, atto_module_data(conv), batch_norm, f));
    const atto_status status = write_fold(conv, f, staged);
    atto_tensor_free(&staged[0]);
    atto_tensor_free(&staged[1]);
    if (status == ATTO_OK) atto__batch_norm_fold(batch_norm);
    return status;
}

atto_status atto_conv_fold_batch_norm(atto_module *conv, atto_module *batch_norm)
{
    const char *what = "conv_fold_batch_norm";
    ATTO_TRY(check_fold(what, conv, batch_norm));
    const conv_module *data = atto_module_data(conv);
    const atto_tensor weight = atto_param_value(data->weight);
    const size_t channels = (size_t)data->out, weights = (size_t)atto_tensor_numel(&weight);
    double *doubles = atto__alloc((2 * channels + 1) * sizeof *doubles);
    float *floats = atto__alloc((channels + weights + 1) * sizeof *floats);
    atto_status status;
    if (doubles && floats) {
        fold f = { .scale = doubles,
                   .shift = doubles + channels,
                   .bias = floats,
                   .weight = floats + channels,
                   .weights = (int64_t)weights };
        status = fold_modules(what, conv, batch_norm, &f);
    } else {
        status = atto__fail(ATTO_E_MEMORY, "%s: out of host memory", what);
    }
    atto__free(floats);
    atto__free(doubles);
    return status;
}
