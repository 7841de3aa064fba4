/* SPDX-License-Identifier: MIT */
/* Convolution: checks and the public calls. */
#include "layers/checks.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

/* Of kernels, strides, paddings, dilations and sizes: their products fit in 63 bits. */
#define MOST INT32_MAX

static const char *call_name(atto__direction direction)
{
    return direction == ATTO_FORWARD ? "conv_forward" : "conv_backward";
}

/* ---- windows ---- */

static atto_status check_axis(const char *what, const atto_conv_window *v, int32_t at)
{
    const struct {
        const char *name;
        int64_t value, least;
    } numbers[] = { { "stride", v->stride[at], 1 },
                    { "padding", v->padding[at], 0 },
                    { "padding_after", v->padding_after[at], 0 },
                    { "dilation", v->dilation[at], 1 } };
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        ATTO_REQUIRE(numbers[i].value >= numbers[i].least && numbers[i].value <= MOST,
                     ATTO_E_ARGUMENT, "%s: %s[%d] is %" PRId64 ", expected %d to %d", what,
                     numbers[i].name, (int)at, numbers[i].value, (int)numbers[i].least, MOST);
    return ATTO_OK;
}

static atto_status check_window(const char *what, const atto_conv_window *v)
{
    ATTO_REQUIRE(v->dims == 1 || v->dims == 2, ATTO_E_ARGUMENT,
                 "%s: window.dims is %d, expected 1 or 2", what, (int)v->dims);
    ATTO_REQUIRE(v->groups >= 1 && v->groups <= MOST, ATTO_E_ARGUMENT,
                 "%s: groups is %" PRId64 ", expected 1 to %d", what, v->groups, MOST);
    for (int32_t at = 0; at < v->dims; at++) ATTO_TRY(check_axis(what, v, at));
    return ATTO_OK;
}

/* Elements of the big image that a window reaches over. */
static int64_t reach_of(const atto_conv_window *v, int32_t at, int64_t kernel)
{
    return v->dilation[at] * (kernel - 1) + 1;
}

/* Outputs of a convolution along an axis of in elements: 0 where there are none. */
static int64_t outputs_of(const atto_conv_window *v, int32_t at, int64_t in, int64_t kernel)
{
    const int64_t room = in + v->padding[at] + v->padding_after[at] - reach_of(v, at, kernel);
    return room < 0 ? 0 : room / v->stride[at] + 1;
}

/* The least outputs of a transposed one. */
static int64_t spread_of(const atto_conv_window *v, int32_t at, int64_t in, int64_t kernel)
{
    return (in - 1) * v->stride[at] - v->padding[at] - v->padding_after[at] +
           reach_of(v, at, kernel);
}

static int64_t greater(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- shapes ---- */

static atto_status check_image(const char *what, const char *name, const atto_tensor *x,
                               int32_t dims)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "%s: %s is %s, expected f32, f16 or bf16",
                 what, name, atto_dtype_name(x->dtype));
    ATTO_REQUIRE(x->rank == dims + 1 || x->rank == dims + 2, ATTO_E_SHAPE,
                 "%s: %s is %s, expected %s", what, name, atto__shape_text(x, text),
                 dims == 2 ? "[N, C, H, W] or [C, H, W]" : "[N, C, L] or [C, L]");
    for (int32_t d = x->rank - dims; d < x->rank; d++)
        ATTO_REQUIRE(x->shape[d] > 0 && x->shape[d] <= MOST, ATTO_E_SHAPE,
                     "%s: dimension %d of %s, %s, is %s", what, (int)d, name,
                     atto__shape_text(x, text), x->shape[d] > 0 ? "2^31 or more" : "empty");
    return ATTO_OK;
}

static atto_status check_filter(const char *what, const char *name, const atto_tensor *w,
                                const atto_conv_window *v)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(w->rank == v->dims + 2, ATTO_E_SHAPE, "%s: %s is %s, expected [%s, %s]", what,
                 name, atto__shape_text(w, text), v->transposed ? "C, O / groups" : "O, C / groups",
                 v->dims == 2 ? "KH, KW" : "K");
    for (int32_t d = 2; d < w->rank; d++)
        ATTO_REQUIRE(w->shape[d] >= 1 && w->shape[d] <= MOST, ATTO_E_SHAPE,
                     "%s: dimension %d of %s, %s, is %s", what, (int)d, name,
                     atto__shape_text(w, text), w->shape[d] < 1 ? "empty" : "2^31 or more");
    ATTO_REQUIRE(w->shape[1] <= INT64_MAX / v->groups && w->shape[0] % v->groups == 0,
                 ATTO_E_ARGUMENT,
                 "%s: %s is %s: %" PRId64 " groups do not divide its %" PRId64 " channels", what,
                 name, atto__shape_text(w, text), v->groups, w->shape[0]);
    return ATTO_OK;
}

/* Channels that a filter reads, and those it writes. */
static int64_t channels_in(const atto_conv_window *v, const atto_tensor *w)
{
    return v->transposed ? w->shape[0] : w->shape[1] * v->groups;
}

static int64_t channels_out(const atto_conv_window *v, const atto_tensor *w)
{
    return v->transposed ? w->shape[1] * v->groups : w->shape[0];
}

/* What y's shape is for x and w, without more outputs than a transposed convolution must have. */
static atto_status shape_of_outputs(const char *what, const atto_conv_window *v,
                                    const atto_tensor *x, const atto_tensor *w, atto_shape *out)
{
    char text[ATTO_SHAPE_TEXT], w_text[ATTO_SHAPE_TEXT];
    const int32_t first = x->rank - v->dims;
    *out = atto_shape_of(x->rank, x->shape);
    ATTO_REQUIRE(x->shape[first - 1] == channels_in(v, w), ATTO_E_SHAPE,
                 "%s: x is %s beside w of %s in %" PRId64 " groups, expected %" PRId64 " channels",
                 what, atto__shape_text(x, text), atto__shape_text(w, w_text), v->groups,
                 channels_in(v, w));
    out->dim[first - 1] = channels_out(v, w);
    for (int32_t at = 0; at < v->dims; at++) {
        const int64_t in = x->shape[first + at], kernel = w->shape[2 + at];
        int64_t *size = &out->dim[first + at];
        *size = v->transposed ? spread_of(v, at, in, kernel) : outputs_of(v, at, in, kernel);
    }
    return ATTO_OK;
}

static atto_status check_outputs(const char *what, const atto_conv_window *v, const atto_tensor *x,
                                 const atto_tensor *w, const atto_shape *out)
{
    const int32_t first = x->rank - v->dims;
    for (int32_t at = 0; at < v->dims; at++)
        ATTO_REQUIRE(out->dim[first + at] >= 1, ATTO_E_ARGUMENT,
                     "%s: output size too small: dimension %d of x has %" PRId64
                     " elements, with kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64
                     " and %" PRId64 ", and dilation %" PRId64 " there is no output",
                     what, (int)(first + at), x->shape[first + at], w->shape[2 + at], v->stride[at],
                     v->padding[at], v->padding_after[at], v->dilation[at]);
    return ATTO_OK;
}

/* A transposed convolution has as many outputs as y, within limits. */
static atto_status take_more_outputs(const char *what, const char *name, const atto_conv_window *v,
                                     const atto_tensor *y, atto_shape *out)
{
    const int32_t first = out->rank - v->dims;
    for (int32_t at = 0; v->transposed && y->rank == out->rank && at < v->dims; at++) {
        const int64_t more = y->shape[first + at] - out->dim[first + at];
        const int64_t most = greater(v->stride[at], v->dilation[at]) - 1;
        ATTO_REQUIRE(more >= 0 && more <= most, ATTO_E_SHAPE,
                     "%s: dimension %d of %s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                     what, (int)(first + at), name, y->shape[first + at], out->dim[first + at],
                     out->dim[first + at] + most);
        out->dim[first + at] += more;
    }
    return ATTO_OK;
}

/* ---- checks ---- */

/* The tensors of a direction: x or dx, w or dw, y or dy. */
typedef struct scene {
    const char *x_name, *w_name, *y_name;
    const atto_tensor *x, *w, *y;
} scene;

static atto_status shape_of_scene(const char *what, const scene *s, const atto_conv_window *v,
                                  atto_shape *y)
{
    ATTO_TRY(check_image(what, s->x_name, s->x, v->dims));
    ATTO_TRY(check_filter(what, s->w_name, s->w, v));
    ATTO_TRY(shape_of_outputs(what, v, s->x, s->w, y));
    ATTO_TRY(take_more_outputs(what, s->y_name, v, s->y, y));
    return check_outputs(what, v, s->x, s->w, y);
}

static atto_status check_forward(const struct atto_conv_args *a)
{
    const char *what = call_name(ATTO_FORWARD);
    const atto_conv_window *v = &a->window;
    const scene s = { "x", "w", "y", a->x, a->w, a->y };
    atto_shape y;
    ATTO_TRY(shape_of_scene(what, &s, v, &y));
    const atto_dtype dtype = a->x->dtype, out = a->y->dtype;
    const atto__expected parts[] = { { "w", a->w, atto_shape_of(a->w->rank, a->w->shape), dtype,
                                       false },
                                     { "b", a->b, atto_shape1(channels_out(v, a->w)), dtype, true },
                                     { "y", a->y, y, dtype, true },
                                     { "z", a->z, y, out, false },
                                     { "residual", a->residual, y, out, false } };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

/* Only db is wanted. */
static atto_status check_bias(const struct atto_conv_args *a)
{
    const char *what = call_name(ATTO_BACKWARD);
    ATTO_TRY(check_image(what, "dy", a->dy, a->window.dims));
    const atto_tensor *dy = a->dy;
    const atto_shape y = atto_shape_of(dy->rank, dy->shape);
    const atto_dtype out = a->db && a->db->dtype != ATTO_F32 ? a->db->dtype : dy->dtype;
    const atto__expected parts[] = {
        { "dy", dy, y, out, true },
        { "z", a->z, y, dy->dtype, false },
        { "db", a->db, atto_shape1(dy->shape[dy->rank - a->window.dims - 1]), out, true }
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

static atto_status check_backward(const struct atto_conv_args *a)
{
    const char *what = call_name(ATTO_BACKWARD);
    const atto_conv_window *v = &a->window;
    ATTO_REQUIRE(!a->dx || a->w, ATTO_E_NULL, "%s: w is NULL, which dx needs", what);
    ATTO_REQUIRE(!a->dw || a->x, ATTO_E_NULL, "%s: x is NULL, which dw needs", what);
    ATTO_REQUIRE(a->z || a->act.kind == ATTO_ACT_IDENTITY, ATTO_E_NULL,
                 "%s: z is NULL, which the derivative of %s needs", what,
                 atto_activation_name(a->act.kind));
    if (!a->dx && !a->dw) return check_bias(a);
    ATTO_TRY(check_image(what, "dy", a->dy, v->dims));
    const scene s = { a->x ? "x" : "dx",   a->w ? "w" : "dw",   "dy",
                      a->x ? a->x : a->dx, a->w ? a->w : a->dw, a->dy };
    atto_shape y;
    ATTO_TRY(shape_of_scene(what, &s, v, &y));
    const atto_dtype dtype = s.x->dtype;
    const atto_shape x = atto_shape_of(s.x->rank, s.x->shape);
    const atto_shape w = atto_shape_of(s.w->rank, s.w->shape);
    const atto__expected parts[] = { { "x", a->x, x, dtype, false },
                                     { "w", a->w, w, dtype, false },
                                     { "dy", a->dy, y, dtype, true },
                                     { "z", a->z, y, a->dy->dtype, false },
                                     { "dx", a->dx, x, dtype, false },
                                     { "dw", a->dw, w, dtype, true },
                                     { "db", a->db, atto_shape1(channels_out(v, s.w)), dtype,
                                       true } };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto__conv_check(const struct atto_conv_args *a, atto__direction direction)
{
    const char *what = call_name(direction);
    ATTO_TRY(atto__activation_check(what, a->act));
    ATTO_TRY(check_window(what, &a->window));
    return direction == ATTO_FORWARD ? check_forward(a) : check_backward(a);
}

int32_t atto__conv_spatial(const void *args)
{
    return ((const struct atto_conv_args *)args)->window.dims;
}

atto_status atto_conv_forward(atto_device *dev, const struct atto_conv_args *a)
{
    return atto__run(dev, ATTO_OP_CONV, ATTO_FORWARD, a);
}

atto_status atto_conv_backward(atto_device *dev, const struct atto_conv_args *a)
{
    return atto__run(dev, ATTO_OP_CONV, ATTO_BACKWARD, a);
}
