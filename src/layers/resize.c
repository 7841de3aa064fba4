/* SPDX-License-Identifier: MIT */
/* Resizing: checks, the public calls, recording functions and modules. */
#include "layers/checks.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "alloc.h"
#include "train/module.h"

/* ---- checks ---- */

static atto_status check_numbers(const char *what, atto_resize_kind mode, bool align_corners,
                                 int32_t dims, const double *scale)
{
    ATTO_REQUIRE((int)mode >= 0 && mode < ATTO_RESIZE_COUNT, ATTO_E_ARGUMENT,
                 "%s: mode is %d, expected 0 to %d", what, (int)mode, ATTO_RESIZE_COUNT - 1);
    ATTO_REQUIRE(dims == 1 || dims == 2, ATTO_E_ARGUMENT, "%s: dims is %d, expected 1 or 2", what,
                 (int)dims);
    ATTO_REQUIRE(!align_corners || mode == ATTO_RESIZE_LINEAR, ATTO_E_ARGUMENT,
                 "%s: align_corners is set, but the mode is nearest", what);
    for (int32_t at = 0; at < dims; at++)
        ATTO_REQUIRE(scale[at] >= 0.0 && isfinite(scale[at]), ATTO_E_ARGUMENT,
                     "%s: scale[%d] is %g, expected a number above 0, or 0", what, (int)at,
                     scale[at]);
    return ATTO_OK;
}

atto_status atto__resize_check(const struct atto_resize_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "resize_forward" : "resize_backward";
    const char *x_name = forward ? "x" : "dx", *y_name = forward ? "y" : "dy";
    const atto_tensor *x = forward ? a->x : a->dx, *y = forward ? a->y : a->dy;
    ATTO_TRY(check_numbers(what, a->mode, a->align_corners, a->dims, a->scale));
    ATTO_TRY(atto__image_check(what, y_name, y, a->dims, INT32_MAX));
    if (!x) return ATTO_OK;
    ATTO_TRY(atto__image_check(what, x_name, x, a->dims, INT32_MAX));
    atto_shape shape = atto_shape_of(x->rank, x->shape);
    for (int32_t d = x->rank - a->dims; d < x->rank && y->rank == x->rank; d++)
        shape.dim[d] = y->shape[d];
    const atto__expected expected = { y_name, y, shape, x->dtype, false };
    return atto__tensors_check(what, &expected, 1);
}

int32_t atto__resize_spatial(const void *args)
{
    return ((const struct atto_resize_args *)args)->dims;
}

atto_status atto_resize_forward(atto_device *dev, const struct atto_resize_args *a)
{
    return atto__run(dev, ATTO_OP_RESIZE, ATTO_FORWARD, a);
}

atto_status atto_resize_backward(atto_device *dev, const struct atto_resize_args *a)
{
    return atto__run(dev, ATTO_OP_RESIZE, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

/* What a recording function or a module is asked for. */
typedef struct request {
    const char *what;
    int32_t dims;
    int64_t out[2]; /* 0 = as the scale says */
    atto_resize_options o;
} request;

static atto_status make_request(const char *what, int32_t dims, int64_t out_0, int64_t out_1,
                                const atto_resize_options *options, request *r)
{
    const atto_resize_options none = { .align_corners = false };
    *r = (request){
        .what = what, .dims = dims, .out = { out_0, out_1 }, .o = options ? *options : none
    };
    ATTO_TRY(atto__reserved_check(what, r->o.reserved));
    ATTO_TRY(check_numbers(what, r->o.mode, r->o.align_corners, dims, r->o.scale));
    ATTO_REQUIRE(dims == 2 || r->o.scale[1] == 0.0, ATTO_E_ARGUMENT,
                 "%s: options: scale[1] is not 0, but there is one dimension", what);
    for (int32_t at = 0; at < dims; at++)
        ATTO_REQUIRE(r->out[at] >= 0, ATTO_E_ARGUMENT,
                     "%s: size %d of the output is %" PRId64 ", expected 0 or more", what, (int)at,
                     r->out[at]);
    return ATTO_OK;
}

static atto_status result_shape(const request *r, const atto_tensor *x, atto_shape *shape)
{
    ATTO_TRY(atto__image_check(r->what, "x", x, r->dims, INT32_MAX));
    *shape = atto_shape_of(x->rank, x->shape);
    for (int32_t at = 0; at < r->dims; at++) {
        int64_t *size = &shape->dim[x->rank - r->dims + at];
        const double scaled = floor((double)*size * r->o.scale[at]);
        if (r->out[at] > 0) {
            *size = r->out[at];
        } else if (r->o.scale[at] > 0.0) {
            ATTO_REQUIRE(scaled >= 1.0 && scaled <= (double)INT32_MAX, ATTO_E_ARGUMENT,
                         "%s: scale[%d] is %g: of %" PRId64 " elements it makes %g", r->what,
                         (int)at, r->o.scale[at], *size, scaled);
            *size = (int64_t)scaled;
        }
    }
    return ATTO_OK;
}

/* status: what making the request gave. */
static atto_var record(atto_tape *tape, atto_status status, const request *r, atto_var x)
{
    const atto_tensor *t = atto__tape_tensor(tape, r->what, x);
    if (!t) return atto__no_var();
    atto_shape shape;
    if (status == ATTO_OK) status = result_shape(r, t, &shape);
    if (atto__tape_fail(tape, status) != ATTO_OK) return atto__no_var();
    struct atto_resize_args args = { .mode = r->o.mode,
                                     .align_corners = r->o.align_corners,
                                     .dims = r->dims,
                                     .scale = { r->o.scale[0], r->o.scale[1] } };
    const atto__binding input = { .field = offsetof(struct atto_resize_args, x), .v = x };
    const atto__result y = { .field = offsetof(struct atto_resize_args, y),
                             .like_inputs = true,
                             .shape = shape,
                             .moves = atto__image_channels_last(t, r->dims),
                             .innermost = t->rank - 1 - r->dims };
    return atto__record_op(tape, ATTO_OP_RESIZE, &args, &input, 1, &y, 1);
}

atto_var atto_resize1d(atto_tape *tape, atto_var x, int64_t out, const atto_resize_options *options)
{
    request r;
    const atto_status status = make_request("resize1d", 1, out, 0, options, &r);
    return record(tape, status, &r, x);
}

atto_var atto_resize2d(atto_tape *tape, atto_var x, int64_t out_h, int64_t out_w,
                       const atto_resize_options *options)
{
    request r;
    const atto_status status = make_request("resize2d", 2, out_h, out_w, options, &r);
    return record(tape, status, &r, x);
}

/* ---- as modules ---- */

static atto_var upsample_forward(atto_module *m, atto_tape *tape, atto_var x)
{
    return record(tape, ATTO_OK, atto_module_data(m), x);
}

/* PyTorch's class has one name for any number of dimensions. */
static const atto_module_class upsample_class = { .name = "Upsample",
                                                  .forward = upsample_forward,
                                                  .destroy = atto__free };

static atto_status create(atto_device *dev, atto_status status, request *r, atto_module **m)
{
    const char *what = r->what;
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", what);
    *m = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "%s: dev is NULL", what);
    ATTO_TRY(status);
    r->what = upsample_class.name;
    return atto__module_make(dev, what, &upsample_class, r, sizeof *r, NULL, NULL, m);
}

atto_status atto_upsample1d_create(atto_device *dev, int64_t out,
                                   const atto_resize_options *options, atto_module **m)
{
    request r;
    const atto_status status = make_request("upsample1d_create", 1, out, 0, options, &r);
    return create(dev, status, &r, m);
}

atto_status atto_upsample2d_create(atto_device *dev, int64_t out_h, int64_t out_w,
                                   const atto_resize_options *options, atto_module **m)
{
    request r;
    const atto_status status = make_request("upsample2d_create", 2, out_h, out_w, options, &r);
    return create(dev, status, &r, m);
}
