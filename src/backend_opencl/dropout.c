/* SPDX-License-Identifier: MIT */
/* Dropout on OpenCL: see src/cl/dropout.cl. */
#include "walk.h"

static atto__elementwise call_of(const struct atto_dropout_args *a, const char *kernel,
                                 const atto_tensor *in, const atto_tensor *out,
                                 const atto__layout *layout)
{
    return (atto__elementwise){
        .file = "dropout.cl",
        .kernel = kernel,
        .tensors = { in, out },
        .count = 2,
        .layout = layout,
        .p = a->p,
        .rng = a->rng,
    };
}

atto_status atto__opencl_dropout_forward(atto_device *dev, const struct atto_dropout_args *a,
                                         const atto__layout *layout)
{
    const atto__elementwise call = call_of(a, "atto_dropout_forward", a->x, a->y, layout);
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_dropout_backward(atto_device *dev, const struct atto_dropout_args *a,
                                          const atto__layout *layout)
{
    atto__elementwise call = call_of(a, "atto_dropout_backward", a->dy, a->dx, layout);
    atto__arg_uint(&call.own, a->add_dx);
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_dropout_prepare(atto_device *dev, atto_dtype dtype)
{
    atto__elementwise_knobs knobs = { .file = "dropout.cl",
                                      .kernel = "atto_dropout_forward",
                                      .dtype = dtype,
                                      .dropout = ATTO_DROPOUT_PHILOX };
    atto__variant variant;
    atto__elementwise_variant(&knobs, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    knobs.kernel = "atto_dropout_backward";
    atto__elementwise_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}
