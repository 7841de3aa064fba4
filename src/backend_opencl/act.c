/* SPDX-License-Identifier: MIT */
/* Activations on OpenCL: see src/cl/act.cl. */
#include "walk.h"

static atto__elementwise call_of(const struct atto_act_args *a, const char *kernel,
                                 const atto__layout *layout)
{
    atto__elementwise call = {
        .file = "act.cl",
        .kernel = kernel,
        .act = atto_activation_name(a->act.kind),
        .layout = layout,
        .p = a->dropout,
        .rng = a->rng,
    };
    atto__arg_float(&call.own, a->act.a);
    atto__arg_float(&call.own, a->act.b);
    return call;
}

atto_status atto__opencl_act_forward(atto_device *dev, const struct atto_act_args *a,
                                     const atto__layout *layout)
{
    atto__elementwise call = call_of(a, "atto_act_forward", layout);
    call.tensors[call.count++] = a->x;
    call.tensors[call.count++] = a->y;
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_act_backward(atto_device *dev, const struct atto_act_args *a,
                                      const atto__layout *layout)
{
    atto__elementwise call = call_of(a, "atto_act_backward", layout);
    call.tensors[call.count++] = a->x;
    call.tensors[call.count++] = a->dy;
    call.tensors[call.count++] = a->dx;
    atto__arg_uint(&call.own, a->add_dx);
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_act_prepare(atto_device *dev, atto_dtype dtype)
{
    atto__elementwise_knobs knobs = {
        .file = "act.cl", .kernel = "atto_act_forward", .act = "gelu", .dtype = dtype
    };
    atto__variant variant;
    atto__elementwise_variant(&knobs, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    knobs.kernel = "atto_act_backward";
    atto__elementwise_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}
