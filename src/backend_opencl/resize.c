/* SPDX-License-Identifier: MIT */
/* Resizing on OpenCL: see src/cl/resize.cl. */
#include "resizing.h"

#include "walk.h"

#define MOST_NARROW (INT32_MAX - (1 << 24))

/* Every pixel of a view, or along width every row, begins at a multiple of unit elements. */
static bool is_aligned(const atto_tensor *t, bool channels, int32_t unit)
{
    bool fits = t->offset % unit == 0 && t->shape[channels ? 1 : 3] % unit == 0;
    for (int32_t d = 0; d < 4; d++)
        if (d != (channels ? 1 : 3)) fits = fits && t->stride[d] % unit == 0;
    return fits;
}

static void arg_axis(atto__args *args, bool wide, const resize_axis *a)
{
    atto__arg_index(args, wide, a->in);
    atto__arg_index(args, wide, a->out);
    atto__arg_float(args, a->scale);
}

static atto_status launch(atto_device *dev, const struct atto_resize_args *a, const atto_tensor *x,
                          const atto_tensor *y, bool backward, const atto__layout *layout)
{
    const atto__resizing r = atto__resizing_of(a, x, y);
    const atto_tensor *from = backward ? y : x, *to = backward ? x : y;
    const int32_t unit = atto__vector_elements(x->dtype);
    const bool channels = layout->channels_last;
    const bool vectors =
        is_aligned(to, channels, unit) && (!channels || is_aligned(from, channels, unit));
    const int64_t *shape = to->shape, run = vectors ? unit : 1;
    const int64_t sizes[4] = { shape[0], channels ? shape[2] : shape[1],
                               channels ? shape[3] : shape[2], shape[channels ? 1 : 3] / run };
    const int64_t n = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    const bool wide = layout->wide || n > MOST_NARROW;
    const atto__resize_knobs knobs = { .backward = backward,
                                       .dtype = x->dtype,
                                       .how = r.how,
                                       .channels = channels,
                                       .vectors = vectors,
                                       .wide = wide };
    atto__variant variant;
    atto__resize_variant(&knobs, &variant);

    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, from);
    atto__arg_tensor(&args, to);
    atto__arg_index4(&args, wide, from->stride);
    atto__arg_index4(&args, wide, to->stride);
    arg_axis(&args, wide, &r.h);
    arg_axis(&args, wide, &r.w);
    if (backward) atto__arg_uint(&args, a->add_dx);
    atto__arg_index(&args, wide, n);
    atto__arg_sizes(&args, wide, sizes);
    return atto__launch(dev, &variant, &args,
                        atto__group_count(n, atto__opencl_of(dev)->group_size));
}

atto_status atto__opencl_resize_forward(atto_device *dev, const struct atto_resize_args *a,
                                        const atto__layout *layout)
{
    return launch(dev, a, a->x, a->y, false, layout);
}

atto_status atto__opencl_resize_backward(atto_device *dev, const struct atto_resize_args *a,
                                         const atto__layout *layout)
{
    return launch(dev, a, a->dx, a->dy, true, layout);
}

atto_status atto__opencl_resize_prepare(atto_device *dev, atto_dtype dtype)
{
    for (int32_t i = 0; i < 2; i++) {
        const atto__resize_knobs knobs = {
            .backward = i == 1, .dtype = dtype, .how = RESIZE_LINEAR, .vectors = true
        };
        atto__variant variant;
        atto__resize_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}
