/* SPDX-License-Identifier: MIT */
/* Pooling: checks, the public calls, recording functions and modules. */
#include "layers/checks.h"

#include <inttypes.h>
#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

/* ---- windows ---- */

/* Of kernels, strides, paddings and dilations: their products fit in 63 bits. */
#define MOST INT32_MAX

static atto_status check_axis(const char *what, const atto_pool_window *w, int32_t at)
{
    const struct {
        const char *name;
        int64_t value, least;
    } numbers[] = { { "kernel", w->kernel[at], 1 },
                    { "stride", w->stride[at], 1 },
                    { "padding", w->padding[at], 0 },
                    { "dilation", w->dilation[at], 1 } };
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        ATTO_REQUIRE(numbers[i].value >= numbers[i].least && numbers[i].value <= MOST,
                     ATTO_E_ARGUMENT, "%s: %s[%d] is %" PRId64 ", expected %d to %d", what,
                     numbers[i].name, (int)at, numbers[i].value, (int)numbers[i].least, MOST);
    ATTO_REQUIRE(w->padding[at] <= w->kernel[at] / 2, ATTO_E_ARGUMENT,
                 "%s: padding[%d] is %" PRId64 ", expected at most half of kernel[%d], which is "
                 "%" PRId64,
                 what, (int)at, w->padding[at], (int)at, w->kernel[at]);
    return ATTO_OK;
}

static atto_status check_window(const char *what, const atto_pool_window *w)
{
    ATTO_REQUIRE(w->dims == 1 || w->dims == 2, ATTO_E_ARGUMENT,
                 "%s: window.dims is %d, expected 1 or 2", what, (int)w->dims);
    for (int32_t at = 0; !w->adaptive && at < w->dims; at++) ATTO_TRY(check_axis(what, w, at));
    return ATTO_OK;
}

/* Outputs along an axis of in elements: 0 or less when there are none. */
static int64_t outputs_of(const atto_pool_window *w, int32_t at, int64_t in)
{
    const int64_t room = in + 2 * w->padding[at] - w->dilation[at] * (w->kernel[at] - 1) - 1 +
                         (w->ceil_mode ? w->stride[at] - 1 : 0);
    if (room < 0) return 0;
    const int64_t outputs = room / w->stride[at] + 1;
    const bool begins_behind = w->ceil_mode && (outputs - 1) * w->stride[at] >= in + w->padding[at];
    return begins_behind ? outputs - 1 : outputs;
}

/* What y's shape is for that of x; of adaptive windows the sizes behind the channels are y's
 * own. */
static atto_status shape_of_outputs(const char *what, const atto_pool_window *w,
                                    const atto_tensor *x, atto_shape *out)
{
    for (int32_t at = 0; !w->adaptive && at < w->dims; at++) {
        const int64_t in = x->shape[x->rank - w->dims + at];
        int64_t *size = &out->dim[x->rank - w->dims + at];
        *size = outputs_of(w, at, in);
        ATTO_REQUIRE(*size >= 1, ATTO_E_ARGUMENT,
                     "%s: output size too small: dimension %d of x has %" PRId64
                     " elements, with kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64
                     " and dilation %" PRId64 " there is no window",
                     what, (int)(x->rank - w->dims + at), in, w->kernel[at], w->stride[at],
                     w->padding[at], w->dilation[at]);
    }
    return ATTO_OK;
}

/* ---- checks ---- */

/* The two tensors of a direction, and what else is shaped like the small one. */
typedef struct pair {
    const char *big_name, *small_name;
    const atto_tensor *big, *small, *indices;
} pair;

static atto_status check_indices(const char *what, const pair *p, const atto_pool_window *w,
                                 atto_shape shape)
{
    if (!p->indices) return ATTO_OK;
    const atto_dtype dtype = p->indices->dtype;
    ATTO_REQUIRE(dtype == ATTO_I32 || dtype == ATTO_I64, ATTO_E_DTYPE,
                 "%s: indices is %s, expected i32 or i64", what, atto_dtype_name(dtype));
    int64_t plane = 1;
    for (int32_t d = p->big->rank - w->dims; d < p->big->rank; d++) plane *= p->big->shape[d];
    ATTO_REQUIRE(dtype == ATTO_I64 || plane - 1 <= INT32_MAX, ATTO_E_ARGUMENT,
                 "%s: indices is i32, which cannot count the %" PRId64 " elements of a plane", what,
                 plane);
    const atto__expected indices = { "indices", p->indices, shape, dtype, false };
    return atto__tensors_check(what, &indices, 1);
}

static atto_status check_pair(const char *what, const pair *p, const atto_pool_window *w)
{
    atto_shape shape = atto_shape_of(p->big->rank, p->big->shape);
    ATTO_TRY(atto__image_check(what, p->big_name, p->big, w->dims, INT64_MAX));
    ATTO_TRY(atto__image_check(what, p->small_name, p->small, w->dims, INT64_MAX));
    for (int32_t at = 0; w->adaptive && at < w->dims; at++) {
        const int32_t d = p->big->rank - w->dims + at;
        if (p->small->rank == p->big->rank) shape.dim[d] = p->small->shape[d];
    }
    ATTO_TRY(shape_of_outputs(what, w, p->big, &shape));
    const atto__expected small = { p->small_name, p->small, shape, p->big->dtype, false };
    ATTO_TRY(atto__tensors_check(what, &small, 1));
    return check_indices(what, p, w, shape);
}

atto_status atto__avg_pool_check(const struct atto_avg_pool_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "avg_pool_forward" : "avg_pool_backward";
    const atto_pool_window *w = &a->window;
    ATTO_TRY(check_window(what, w));
    for (int32_t at = 0; !w->adaptive && at < w->dims; at++)
        ATTO_REQUIRE(w->dilation[at] == 1, ATTO_E_ARGUMENT,
                     "%s: dilation[%d] is %" PRId64 ", but means have none: expected 1", what,
                     (int)at, w->dilation[at]);
    ATTO_REQUIRE(!w->adaptive || a->divisor_override == 0, ATTO_E_ARGUMENT,
                 "%s: divisor_override is %" PRId64 ", but windows are adaptive: expected 0", what,
                 a->divisor_override);
    const pair p =
        forward ? (pair){ "x", "y", a->x, a->y, NULL } : (pair){ "dx", "dy", a->dx, a->dy, NULL };
    return p.big ? check_pair(what, &p, w)
                 : atto__image_check(what, "dy", a->dy, w->dims, INT64_MAX);
}

atto_status atto__max_pool_check(const struct atto_max_pool_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "max_pool_forward" : "max_pool_backward";
    ATTO_TRY(check_window(what, &a->window));
    ATTO_REQUIRE(forward || !a->dx || a->indices, ATTO_E_NULL,
                 "%s: indices is NULL, which dx needs", what);
    const pair p = forward ? (pair){ "x", "y", a->x, a->y, a->indices }
                           : (pair){ "dx", "dy", a->dx, a->dy, a->indices };
    return p.big ? check_pair(what, &p, &a->window)
                 : atto__image_check(what, "dy", a->dy, a->window.dims, INT64_MAX);
}

int32_t atto__avg_pool_spatial(const void *args)
{
    return ((const struct atto_avg_pool_args *)args)->window.dims;
}

int32_t atto__max_pool_spatial(const void *args)
{
    return ((const struct atto_max_pool_args *)args)->window.dims;
}

atto_status atto_avg_pool_forward(atto_device *dev, const struct atto_avg_pool_args *a)
{
    return atto__run(dev, ATTO_OP_AVG_POOL, ATTO_FORWARD, a);
}

atto_status atto_avg_pool_backward(atto_device *dev, const struct atto_avg_pool_args *a)
{
    return atto__run(dev, ATTO_OP_AVG_POOL, ATTO_BACKWARD, a);
}

atto_status atto_max_pool_forward(atto_device *dev, const struct atto_max_pool_args *a)
{
    return atto__run(dev, ATTO_OP_MAX_POOL, ATTO_FORWARD, a);
}

atto_status atto_max_pool_backward(atto_device *dev, const struct atto_max_pool_args *a)
{
    return atto__run(dev, ATTO_OP_MAX_POOL, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

/* What a recording function or a module is asked for. */
typedef struct request {
    const char *what;
    bool is_max;
    atto_pool_window window;
    int64_t out[2]; /* adaptive; 0 = as x */
    bool exclude_padding;
    int64_t divisor_override;
    atto_dtype indices; /* of those for the caller; 0 = i64 */
} request;

static atto_status check_request(const request *r)
{
    for (int32_t at = 0; r->window.adaptive && at < r->window.dims; at++)
        ATTO_REQUIRE(r->out[at] >= 0, ATTO_E_ARGUMENT,
                     "%s: size %d of the output is %" PRId64 ", expected 0 or more", r->what,
                     (int)at, r->out[at]);
    ATTO_REQUIRE(!r->indices || r->indices == ATTO_I32 || r->indices == ATTO_I64, ATTO_E_DTYPE,
                 "%s: options: indices is %s, expected i32 or i64", r->what,
                 atto_dtype_name(r->indices));
    return check_window(r->what, &r->window);
}

/* Zeros of the options become what they stand for. */
static atto_status fill_window(const char *what, const int64_t *stride, const int64_t *padding,
                               const int64_t *dilation, atto_pool_window *w)
{
    for (int32_t at = 0; at < w->dims; at++) {
        w->stride[at] = stride[at] ? stride[at] : w->kernel[at];
        w->padding[at] = padding[at];
        w->dilation[at] = dilation[at] ? dilation[at] : 1;
    }
    ATTO_REQUIRE(w->dims == 2 || (stride[1] == 0 && padding[1] == 0 && dilation[1] == 0),
                 ATTO_E_ARGUMENT,
                 "%s: options: the second of a pair is not 0, but there is one "
                 "dimension",
                 what);
    return ATTO_OK;
}

static atto_status avg_request(const char *what, int32_t dims, int64_t kernel_0, int64_t kernel_1,
                               const atto_avg_pool_options *options, request *r)
{
    const atto_avg_pool_options none = { .ceil_mode = false };
    const atto_avg_pool_options *o = options ? options : &none;
    const int64_t undilated[2] = { 0, 0 };
    *r = (request){
        .what = what,
        .window = { .dims = dims, .ceil_mode = o->ceil_mode, .kernel = { kernel_0, kernel_1 } },
        .exclude_padding = o->exclude_padding,
        .divisor_override = o->divisor_override
    };
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_TRY(fill_window(what, o->stride, o->padding, undilated, &r->window));
    return check_request(r);
}

static atto_status max_request(const char *what, int32_t dims, int64_t kernel_0, int64_t kernel_1,
                               const atto_max_pool_options *options, request *r)
{
    const atto_max_pool_options none = { .ceil_mode = false };
    const atto_max_pool_options *o = options ? options : &none;
    *r = (request){
        .what = what,
        .is_max = true,
        .window = { .dims = dims, .ceil_mode = o->ceil_mode, .kernel = { kernel_0, kernel_1 } },
        .indices = o->indices
    };
    ATTO_TRY(atto__reserved_check(what, o->reserved));
    ATTO_TRY(fill_window(what, o->stride, o->padding, o->dilation, &r->window));
    return check_request(r);
}

static atto_status adaptive_request(const char *what, bool is_max, int32_t dims, int64_t out_0,
                                    int64_t out_1, request *r)
{
    *r = (request){ .what = what,
                    .is_max = is_max,
                    .window = { .dims = dims, .adaptive = true },
                    .out = { out_0, out_1 } };
    return check_request(r);
}

static atto_status result_shape(const request *r, const atto_tensor *x, atto_shape *shape)
{
    ATTO_TRY(atto__image_check(r->what, "x", x, r->window.dims, INT64_MAX));
    *shape = atto_shape_of(x->rank, x->shape);
    for (int32_t at = 0; at < r->window.dims; at++)
        if (r->out[at]) shape->dim[x->rank - r->window.dims + at] = r->out[at];
    return shape_of_outputs(r->what, &r->window, x, shape);
}

/* Indices for backward alone are as short as they can be. */
static atto_dtype index_dtype(const request *r, const atto_tensor *x, bool for_caller)
{
    if (for_caller) return r->indices ? r->indices : ATTO_I64;
    int64_t plane = 1;
    for (int32_t d = x->rank - r->window.dims; d < x->rank; d++) plane *= x->shape[d];
    return plane - 1 <= INT32_MAX ? ATTO_I32 : ATTO_I64;
}

static atto_var record_avg(atto_tape *tape, const request *r, atto_var x, const atto__result *y)
{
    struct atto_avg_pool_args args = { .exclude_padding = r->exclude_padding,
                                       .divisor_override = r->divisor_override,
                                       .window = r->window };
    const atto__binding input = { .field = offsetof(struct atto_avg_pool_args, x), .v = x };
    atto__result result = *y;
    result.field = offsetof(struct atto_avg_pool_args, y);
    return atto__record_op(tape, ATTO_OP_AVG_POOL, &args, &input, 1, &result, 1);
}

static atto_var record_max(atto_tape *tape, const request *r, atto_var x, const atto__result *y,
                           atto_dtype dtype, atto_var *indices)
{
    struct atto_max_pool_args args = { .window = r->window };
    const atto__binding input = { .field = offsetof(struct atto_max_pool_args, x), .v = x };
    atto__result results[2] = { *y, *y };
    results[0].field = offsetof(struct atto_max_pool_args, y);
    results[1].field = offsetof(struct atto_max_pool_args, indices);
    results[1].like_inputs = false;
    results[1].dtype = dtype;
    results[1].only_saved = indices == NULL;
    results[1].also = indices;
    return atto__record_op(tape, ATTO_OP_MAX_POOL, &args, &input, 1, results, 2);
}

/* status: what making the request gave. */
static atto_var record(atto_tape *tape, atto_status status, const request *r, atto_var x,
                       atto_var *indices)
{
    if (indices) *indices = atto__no_var();
    const atto_tensor *t = atto__tape_tensor(tape, r->what, x);
    if (!t) return atto__no_var();
    atto_shape shape;
    if (status == ATTO_OK) status = result_shape(r, t, &shape);
    if (atto__tape_fail(tape, status) != ATTO_OK) return atto__no_var();
    const atto__result y = { .like_inputs = true,
                             .shape = shape,
                             .moves = atto__image_channels_last(t, r->window.dims),
                             .innermost = t->rank - 1 - r->window.dims };
    if (!r->is_max) return record_avg(tape, r, x, &y);
    return record_max(tape, r, x, &y, index_dtype(r, t, indices != NULL), indices);
}

atto_var atto_avg_pool1d(atto_tape *tape, atto_var x, int64_t kernel,
                         const atto_avg_pool_options *options)
{
    request r;
    const atto_status status = avg_request("avg_pool1d", 1, kernel, 0, options, &r);
    return record(tape, status, &r, x, NULL);
}

atto_var atto_avg_pool2d(atto_tape *tape, atto_var x, int64_t kernel_h, int64_t kernel_w,
                         const atto_avg_pool_options *options)
{
    request r;
    const atto_status status = avg_request("avg_pool2d", 2, kernel_h, kernel_w, options, &r);
    return record(tape, status, &r, x, NULL);
}

atto_var atto_max_pool1d(atto_tape *tape, atto_var x, int64_t kernel,
                         const atto_max_pool_options *options, atto_var *indices)
{
    request r;
    const atto_status status = max_request("max_pool1d", 1, kernel, 0, options, &r);
    return record(tape, status, &r, x, indices);
}

atto_var atto_max_pool2d(atto_tape *tape, atto_var x, int64_t kernel_h, int64_t kernel_w,
                         const atto_max_pool_options *options, atto_var *indices)
{
    request r;
    const atto_status status = max_request("max_pool2d", 2, kernel_h, kernel_w, options, &r);
    return record(tape, status, &r, x, indices);
}

atto_var atto_adaptive_avg_pool1d(atto_tape *tape, atto_var x, int64_t out)
{
    request r;
    const atto_status status = adaptive_request("adaptive_avg_pool1d", false, 1, out, 0, &r);
    return record(tape, status, &r, x, NULL);
}

atto_var atto_adaptive_avg_pool2d(atto_tape *tape, atto_var x, int64_t out_h, int64_t out_w)
{
    request r;
    const atto_status status = adaptive_request("adaptive_avg_pool2d", false, 2, out_h, out_w, &r);
    return record(tape, status, &r, x, NULL);
}

atto_var atto_adaptive_max_pool1d(atto_tape *tape, atto_var x, int64_t out, atto_var *indices)
{
    request r;
    const atto_status status = adaptive_request("adaptive_max_pool1d", true, 1, out, 0, &r);
    return record(tape, status, &r, x, indices);
}

atto_var atto_adaptive_max_pool2d(atto_tape *tape, atto_var x, int64_t out_h, int64_t out_w,
                                  atto_var *indices)
{
    request r;
    const atto_status status = adaptive_request("adaptive_max_pool2d", true, 2, out_h, out_w, &r);
    return record(tape, status, &r, x, indices);
}

/* ---- as modules ---- */

static atto_var pool_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    return record(tape, ATTO_OK, atto_module_data(m), x, NULL);
}

/* The class's name is the request's in messages too. */
#define CLASS(text)                                                  \
    {                                                                \
        .name = text, .forward = pool_forward, .destroy = atto__free \
    }
static const atto_module_class classes[] = {
    CLASS("AvgPool1d"),         CLASS("AvgPool2d"),         CLASS("MaxPool1d"),
    CLASS("MaxPool2d"),         CLASS("AdaptiveAvgPool1d"), CLASS("AdaptiveAvgPool2d"),
    CLASS("AdaptiveMaxPool1d"), CLASS("AdaptiveMaxPool2d"),
};

static const atto_module_class *class_of(const request *r)
{
    return &classes[(r->window.adaptive ? 4 : 0) + (r->is_max ? 2 : 0) + r->window.dims - 1];
}

static atto_status create(atto_device *dev, atto_status status, const request *r, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", r->what);
    *m = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "%s: dev is NULL", r->what);
    ATTO_TRY(status);
    request data = *r;
    data.what = class_of(r)->name;
    return atto__module_make(dev, r->what, class_of(r), &data, sizeof data, NULL, NULL, m);
}

atto_status atto_avg_pool1d_create(atto_device *dev, int64_t kernel,
                                   const atto_avg_pool_options *options, atto_module **m)
{
    request r;
    const atto_status status = avg_request("avg_pool1d_create", 1, kernel, 0, options, &r);
    return create(dev, status, &r, m);
}

atto_status atto_avg_pool2d_create(atto_device *dev, int64_t kernel_h, int64_t kernel_w,
                                   const atto_avg_pool_options *options, atto_module **m)
{
    request r;
    const atto_status status = avg_request("avg_pool2d_create", 2, kernel_h, kernel_w, options, &r);
    return create(dev, status, &r, m);
}

atto_status atto_max_pool1d_create(atto_device *dev, int64_t kernel,
                                   const atto_max_pool_options *options, atto_module **m)
{
    request r;
    const atto_status status = max_request("max_pool1d_create", 1, kernel, 0, options, &r);
    return create(dev, status, &r, m);
}

atto_status atto_max_pool2d_create(atto_device *dev, int64_t kernel_h, int64_t kernel_w,
                                   const atto_max_pool_options *options, atto_module **m)
{
    request r;
    const atto_status status = max_request("max_pool2d_create", 2, kernel_h, kernel_w, options, &r);
    return create(dev, status, &r, m);
}

atto_status atto_adaptive_avg_pool1d_create(atto_device *dev, int64_t out, atto_module **m)
{
    request r;
    const atto_status status = adaptive_request("adaptive_avg_pool1d_create", false, 1, out, 0, &r);
    return create(dev, status, &r, m);
}

atto_status atto_adaptive_avg_pool2d_create(atto_device *dev, int64_t out_h, int64_t out_w,
                                            atto_module **m)
{
    request r;
    const atto_status status =
        adaptive_request("adaptive_avg_pool2d_create", false, 2, out_h, out_w, &r);
    return create(dev, status, &r, m);
}

atto_status atto_adaptive_max_pool1d_create(atto_device *dev, int64_t out, atto_module **m)
{
    request r;
    const atto_status status = adaptive_request("adaptive_max_pool1d_create", true, 1, out, 0, &r);
    return create(dev, status, &r, m);
}

atto_status atto_adaptive_max_pool2d_create(atto_device *dev, int64_t out_h, int64_t out_w,
                                            atto_module **m)
{
    request r;
    const atto_status status =
        adaptive_request("adaptive_max_pool2d_create", true, 2, out_h, out_w, &r);
    return create(dev, status, &r, m);
}
