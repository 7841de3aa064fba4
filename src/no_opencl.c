/* SPDX-License-Identifier: MIT */
/* The calls of attocl/opencl.h in a library that was built without OpenCL. */
#include <attocl/opencl.h>

#include <string.h>

#include "tensor.h"

static atto_status without(const char *call)
{
    return atto__fail(ATTO_E_UNSUPPORTED, "%s: this library was built without OpenCL", call);
}

atto_status atto_device_open_opencl_abi(int32_t abi, const atto_opencl *handles,
                                        const atto_device_options *options, atto_device **out)
{
    (void)abi, (void)handles, (void)options;
    if (out) *out = NULL;
    return without("device_open_opencl");
}

atto_status atto_device_opencl(const atto_device *dev, atto_opencl *out)
{
    (void)dev;
    if (out) memset(out, 0, sizeof *out);
    return without("device_opencl");
}

atto_status atto_tensor_from_opencl(atto_device *dev, struct _cl_mem *memory, atto_dtype dtype,
                                    atto_shape shape, int64_t offset, atto_tensor *out)
{
    (void)dev, (void)memory, (void)dtype, (void)shape, (void)offset;
    if (out) memset(out, 0, sizeof *out);
    return without("tensor_from_opencl");
}

atto_status atto_tensor_opencl(const atto_tensor *t, struct _cl_mem **memory)
{
    (void)t;
    if (memory) *memory = NULL;
    return without("tensor_opencl");
}

atto_status atto_opencl_wait(atto_device *dev, int32_t count, struct _cl_event *const *events)
{
    (void)dev, (void)count, (void)events;
    return without("opencl_wait");
}

atto_status atto_opencl_signal(atto_device *dev, struct _cl_event **event)
{
    (void)dev;
    if (event) *event = NULL;
    return without("opencl_signal");
}

atto_status atto__buffer_of_opencl(atto_device *dev, struct _cl_mem *memory, size_t wanted,
                                   void (*release)(void *user, void *data), void *user,
                                   atto_buffer **out)
{
    (void)dev, (void)memory, (void)wanted, (void)release, (void)user, (void)out;
    return without("tensor_from_opencl");
}
