/* SPDX-License-Identifier: MIT */
/* OpenCL's handles in and out: the calls of attocl/opencl.h. */
#include <attocl/opencl.h>

#include <inttypes.h>
#include <string.h>

#include "alloc.h"
#include "devices.h"
#include "layout.h"
#include "opencl.h"
#include "tensor.h"

static bool is_opencl(const atto_device *dev)
{
    return strcmp(dev->info.backend, "opencl") == 0;
}

static atto_status check_device(const char *call, const atto_device *dev)
{
    ATTO_REQUIRE(dev, ATTO_E_NULL, "%s: dev is NULL", call);
    ATTO_REQUIRE(is_opencl(dev), ATTO_E_DEVICE, "%s: %s is no OpenCL device (backend %s)", call,
                 dev->info.name, dev->info.backend);
    return atto__device_check(dev);
}

/* ---- devices ---- */

static bool is_in_context(cl_context context, cl_device_id device)
{
    size_t bytes = 0;
    bool found = false;
    if (atto__cl.GetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &bytes) != CL_SUCCESS)
        return false;
    cl_device_id *devices = atto__alloc(bytes);
    if (devices &&
        atto__cl.GetContextInfo(context, CL_CONTEXT_DEVICES, bytes, devices, NULL) == CL_SUCCESS)
        for (size_t i = 0; i < bytes / sizeof *devices; i++) found |= devices[i] == device;
    atto__free(devices);
    return found;
}

static atto_status check_queue(const atto_opencl *handles)
{
    cl_context context = NULL;
    cl_device_id device = NULL;
    if (!handles->queue) return ATTO_OK;
    atto__cl.GetCommandQueueInfo(handles->queue, CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    atto__cl.GetCommandQueueInfo(handles->queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    ATTO_REQUIRE(context == handles->context, ATTO_E_DEVICE,
                 "device_open_opencl: queue belongs to another context");
    ATTO_REQUIRE(device == handles->device, ATTO_E_DEVICE,
                 "device_open_opencl: queue belongs to another device");
    return ATTO_OK;
}

static atto_status check_handles(const atto_opencl *handles)
{
    ATTO_REQUIRE(handles, ATTO_E_NULL, "device_open_opencl: handles is NULL");
    ATTO_REQUIRE(handles->context && handles->device, ATTO_E_NULL,
                 "device_open_opencl: handles->%s is NULL",
                 handles->context ? "device" : "context");
    ATTO_REQUIRE(atto__cl_load(), ATTO_E_DEVICE,
                 "device_open_opencl: this library finds no OpenCL loader (libOpenCL.so.1)");
    ATTO_REQUIRE(is_in_context(handles->context, handles->device), ATTO_E_DEVICE,
                 "device_open_opencl: device is none of the context's");
    return check_queue(handles);
}

atto_status atto_device_open_opencl_abi(int32_t abi, const atto_opencl *handles,
                                        const atto_device_options *options, atto_device **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "device_open_opencl: out is NULL");
    *out = NULL;
    ATTO_TRY(atto__check_abi("device_open_opencl", abi));
    ATTO_TRY(check_handles(handles));
    atto__found found;
    atto__devices_describe(handles->device, &found);
    found.info.index = -1;
    return atto__device_open_by(options, &found.info, atto__opencl_open_handles, handles, out);
}

atto_status atto_device_opencl(const atto_device *dev, atto_opencl *out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "device_opencl: out is NULL");
    memset(out, 0, sizeof *out);
    ATTO_TRY(check_device("device_opencl", dev));
    const atto__opencl *cl = atto__opencl_of(dev);
    *out = (atto_opencl){ cl->context, cl->device, cl->queue };
    return ATTO_OK;
}

/* ---- memory ---- */

static void let_go(atto_device *dev, void *memory)
{
    (void)dev;
    atto__cl.ReleaseMemObject(memory);
}

/* Whether memory is a buffer of dev's context that kernels may read and write; its size. */
static atto_status check_memory(atto_device *dev, cl_mem memory, size_t *bytes)
{
    cl_mem_object_type type = 0;
    cl_context context = NULL;
    cl_mem_flags flags = 0;
    ATTO_CL_TRY(dev, GetMemObjectInfo, memory, CL_MEM_TYPE, sizeof type, &type, NULL);
    ATTO_CL_TRY(dev, GetMemObjectInfo, memory, CL_MEM_CONTEXT, sizeof context, &context, NULL);
    ATTO_CL_TRY(dev, GetMemObjectInfo, memory, CL_MEM_FLAGS, sizeof flags, &flags, NULL);
    ATTO_CL_TRY(dev, GetMemObjectInfo, memory, CL_MEM_SIZE, sizeof *bytes, bytes, NULL);
    ATTO_REQUIRE(type == CL_MEM_OBJECT_BUFFER, ATTO_E_ARGUMENT, "memory is no buffer");
    ATTO_REQUIRE(context == atto__opencl_of(dev)->context, ATTO_E_DEVICE,
                 "memory belongs to another context than %s was opened on", dev->info.name);
    ATTO_REQUIRE(!(flags & CL_MEM_WRITE_ONLY), ATTO_E_STATE, "memory is write-only for kernels");
    return ATTO_OK;
}

/* Whether it is read-only for kernels. */
static bool is_read_only(cl_mem memory)
{
    cl_mem_flags flags = 0;
    atto__cl.GetMemObjectInfo(memory, CL_MEM_FLAGS, sizeof flags, &flags, NULL);
    return flags & CL_MEM_READ_ONLY;
}

atto_status atto__buffer_of_opencl(atto_device *dev, struct _cl_mem *memory, size_t wanted,
                                   void (*release)(void *user, void *data), void *user,
                                   atto_buffer **out)
{
    size_t bytes;
    ATTO_TRY(check_memory(dev, memory, &bytes));
    ATTO_REQUIRE(wanted <= bytes, ATTO_E_SHAPE, "the tensor needs %zu bytes, memory has %zu",
                 wanted, bytes);
    const atto__foreign foreign = { let_go, release, user, NULL };
    ATTO_CL_TRY(dev, RetainMemObject, memory);
    const atto_status status = atto__buffer_adopt(dev, memory, bytes, &foreign, out);
    if (status != ATTO_OK) {
        atto__cl.ReleaseMemObject(memory);
        return status;
    }
    (*out)->read_only = is_read_only(memory);
    return ATTO_OK;
}

atto_status atto_tensor_from_opencl(atto_device *dev, struct _cl_mem *memory, atto_dtype dtype,
                                    atto_shape shape, int64_t offset, atto_tensor *out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "tensor_from_opencl: out is NULL");
    memset(out, 0, sizeof *out);
    ATTO_TRY(check_device("tensor_from_opencl", dev));
    ATTO_REQUIRE(memory, ATTO_E_NULL, "tensor_from_opencl: memory is NULL");
    atto_tensor t = atto_tensor_of(NULL, dtype, shape, offset);
    ATTO_TRY(atto__shape_check(&t, "tensor_from_opencl"));
    ATTO_REQUIRE(offset >= 0, ATTO_E_ARGUMENT, "tensor_from_opencl: offset is %" PRId64, offset);
    const int64_t numel = atto_tensor_numel(&t), size = (int64_t)atto_dtype_size(dtype);
    ATTO_REQUIRE(numel <= INT64_MAX / size - offset, ATTO_E_SHAPE,
                 "tensor_from_opencl: %" PRId64 " elements from %" PRId64
                 " on do not fit the address space",
                 numel, offset);
    const atto_status status = atto__buffer_of_opencl(
        dev, memory, (size_t)((offset + numel) * size), NULL, NULL, &t.buffer);
    if (status != ATTO_OK) return atto__fail_in(status, "tensor_from_opencl: ");
    *out = t;
    return ATTO_OK;
}

atto_status atto_tensor_opencl(const atto_tensor *t, struct _cl_mem **memory)
{
    ATTO_REQUIRE(memory, ATTO_E_NULL, "tensor_opencl: memory is NULL");
    *memory = NULL;
    ATTO_REQUIRE(t, ATTO_E_NULL, "tensor_opencl: t is NULL");
    ATTO_TRY(atto__view_check(t, "tensor_opencl: t"));
    if (!t->buffer) return ATTO_OK;
    ATTO_TRY(check_device("tensor_opencl", t->buffer->dev));
    *memory = atto__memory(t);
    return ATTO_OK;
}

/* ---- events ---- */

atto_status atto_opencl_wait(atto_device *dev, int32_t count, struct _cl_event *const *events)
{
    ATTO_TRY(check_device("opencl_wait", dev));
    ATTO_REQUIRE(count >= 0, ATTO_E_ARGUMENT, "opencl_wait: count is %d", (int)count);
    if (count == 0) return ATTO_OK;
    ATTO_REQUIRE(events, ATTO_E_NULL, "opencl_wait: events is NULL");
    for (int32_t i = 0; i < count; i++) {
        cl_context context = NULL;
        ATTO_REQUIRE(events[i], ATTO_E_NULL, "opencl_wait: event %d is NULL", (int)i);
        ATTO_CL_TRY(dev, GetEventInfo, events[i], CL_EVENT_CONTEXT, sizeof context, &context, NULL);
        ATTO_REQUIRE(context == atto__opencl_of(dev)->context, ATTO_E_DEVICE,
                     "opencl_wait: event %d belongs to another context", (int)i);
    }
    ATTO_CL_TRY(dev, EnqueueBarrierWithWaitList, atto__opencl_of(dev)->queue, (cl_uint)count,
                events, NULL);
    return ATTO_OK;
}

atto_status atto_opencl_signal(atto_device *dev, struct _cl_event **event)
{
    ATTO_REQUIRE(event, ATTO_E_NULL, "opencl_signal: event is NULL");
    *event = NULL;
    ATTO_TRY(check_device("opencl_signal", dev));
    cl_event made;
    ATTO_CL_TRY(dev, EnqueueMarkerWithWaitList, atto__opencl_of(dev)->queue, 0, NULL, &made);
    const cl_int code = atto__cl.Flush(atto__opencl_of(dev)->queue);
    if (code != CL_SUCCESS) {
        atto__cl.ReleaseEvent(made);
        return atto__cl_fail(dev, "clFlush", code);
    }
    *event = made;
    return ATTO_OK;
}
