/* SPDX-License-Identifier: MIT */
/* Attention on OpenCL: see src/cl/attention.cl. */
#include "attention.h"

#include "walk.h"

atto_status atto__opencl_attention_forward(atto_device *dev, const struct atto_attention_args *a,
                                           const atto__layout *layout)
{
    (void)layout, (void)a, (void)dev;
    return atto__fail(ATTO_E_BUILD, "not yet");
}

atto_status atto__opencl_attention_backward(atto_device *dev, const struct atto_attention_args *a,
                                            const atto__layout *layout)
{
    (void)layout, (void)a, (void)dev;
    return atto__fail(ATTO_E_BUILD, "not yet");
}

atto_status atto__opencl_attention_prepare(atto_device *dev, atto_dtype dtype)
{
    (void)dtype, (void)dev;
    return atto__fail(ATTO_E_BUILD, "not yet");
}
