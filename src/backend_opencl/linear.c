/* SPDX-License-Identifier: MIT */
/* Linear on OpenCL. */
#include "launch.h"

static atto_status not_here(void)
{
    return atto__fail(ATTO_E_BUILD, "linear has no kernel yet");
}

atto_status atto__opencl_linear_forward(atto_device *dev, const struct atto_linear_args *a,
                                        const atto__layout *layout)
{
    (void)dev, (void)a, (void)layout;
    return not_here();
}

atto_status atto__opencl_linear_backward(atto_device *dev, const struct atto_linear_args *a,
                                         const atto__layout *layout)
{
    (void)dev, (void)a, (void)layout;
    return not_here();
}

atto_status atto__opencl_linear_prepare(atto_device *dev, atto_dtype dtype)
{
    (void)dev, (void)dtype;
    return not_here();
}
