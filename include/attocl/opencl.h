/* SPDX-License-Identifier: MIT */
/* OpenCL interop: devices on the caller's context and queue, memory objects and events both ways.
 *
 * The handles are OpenCL's: cl_context is a struct _cl_context *, as CL/cl.h has it, so that this
 * header needs none of OpenCL's. They must come from the machine's ICD loader (libOpenCL.so.1),
 * which this library opens too. A handle that is none is undefined behaviour, as in OpenCL. Where
 * the library was built without OpenCL, every call is ATTO_E_UNSUPPORTED.
 *
 * Order of work: a device runs its work in one order on the queue of atto_device_opencl. On a queue
 * in order that it shares with the caller, everything runs as it was enqueued, by whom does not
 * matter. Across queues, events order: atto_opencl_wait and atto_opencl_signal. */
#ifndef ATTOCL_OPENCL_H
#define ATTOCL_OPENCL_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

struct _cl_context;
struct _cl_device_id;
struct _cl_command_queue;
struct _cl_mem;
struct _cl_event;

/** What a device works with. */
typedef struct atto_opencl {
    struct _cl_context *context;
    struct _cl_device_id *device;
    struct _cl_command_queue *queue;
} atto_opencl;

/** Use atto_device_open_opencl, which passes the header's ATTO_ABI. */
ATTO_API atto_status atto_device_open_opencl_abi(int32_t abi, const atto_opencl *handles,
                                                 const atto_device_options *options,
                                                 atto_device **out);

/**
 * Opens a device on the caller's context and queue. It takes references to both, and gives them
 * back when it is closed and its last tensor is freed.
 *
 * @param handles  context and device, which must be one of the context's. queue: NULL for a queue
 *                 of the device's own; one in order is used as it is; one out of order belongs to
 *                 the caller's events alone, and the device makes a queue of its own beside it
 * @param options  as atto_device_open; ATTOCL_DEVICE does not matter here. profile wants a queue
 *                 that was made with CL_QUEUE_PROFILING_ENABLE
 * @param out      the device, NULL on failure
 * Returns         ATTO_E_NULL (handles, its context or device, out), ATTO_E_ARGUMENT (a bad option;
 *                 profile without profiling), ATTO_E_DEVICE (handles do not belong together, or the
 *                 device does not work), ATTO_E_MEMORY, ATTO_E_VERSION, ATTO_E_UNSUPPORTED
 */
static inline atto_status atto_device_open_opencl(const atto_opencl *handles,
                                                  const atto_device_options *options,
                                                  atto_device **out)
{
    return atto_device_open_opencl_abi(ATTO_ABI, handles, options, out);
}

/** What an OpenCL device works with, also one of atto_device_open: borrowed, valid while dev is.
 * Returns ATTO_E_NULL, ATTO_E_DEVICE (not an OpenCL device), ATTO_E_UNSUPPORTED. */
ATTO_API atto_status atto_device_opencl(const atto_device *dev, atto_opencl *out);

/**
 * A tensor on the caller's memory object, of which it takes a reference until the last tensor of
 * its buffer is freed.
 *
 * @param memory  a buffer or sub-buffer of dev's context that kernels may read and write
 * @param shape   dense, row-major
 * @param offset  of element (0, 0, ...), in elements
 * @param out     the tensor; zeroed on failure. Release it with atto_tensor_free
 * Returns        ATTO_E_NULL, ATTO_E_DTYPE, ATTO_E_SHAPE (shape, or the tensor does not fit into
 *                memory), ATTO_E_ARGUMENT (offset; an image), ATTO_E_DEVICE (not an OpenCL device,
 *                or memory of another context), ATTO_E_STATE (read-only, write-only),
 *                ATTO_E_MEMORY, ATTO_E_LOST, ATTO_E_UNSUPPORTED
 */
ATTO_API atto_status atto_tensor_from_opencl(atto_device *dev, struct _cl_mem *memory,
                                             atto_dtype dtype, atto_shape shape, int64_t offset,
                                             atto_tensor *out);

/**
 * The memory object of a tensor's buffer: borrowed, valid while the buffer is; element (0, 0, ...)
 * stands t->offset elements behind its start. Memory of the device's pool is used again when the
 * last tensor of its buffer is freed, also while the caller has retained the object.
 *
 * @param memory  out  NULL for an empty tensor
 * Returns        ATTO_E_NULL, ATTO_E_DEVICE (not an OpenCL device), ATTO_E_UNSUPPORTED, and what an
 *                op says of a bad view
 */
ATTO_API atto_status atto_tensor_opencl(const atto_tensor *t, struct _cl_mem **memory);

/**
 * Everything that dev is given from now on runs after these events. Does not wait itself.
 *
 * @param events  count events of dev's context; borrowed
 * Returns        ATTO_E_NULL, ATTO_E_ARGUMENT (count is negative), ATTO_E_DEVICE (not an OpenCL
 *                device, or events of another context), ATTO_E_BACKEND, ATTO_E_LOST,
 *                ATTO_E_UNSUPPORTED
 */
ATTO_API atto_status atto_opencl_wait(atto_device *dev, int32_t count,
                                      struct _cl_event *const *events);

/**
 * An event that is complete when everything that dev has been given so far has run. The work is on
 * its way (flushed), so that other queues may wait for it.
 *
 * @param event  out  release it with clReleaseEvent
 * Returns       ATTO_E_NULL, ATTO_E_DEVICE (not an OpenCL device), ATTO_E_BACKEND, ATTO_E_LOST,
 *               ATTO_E_UNSUPPORTED
 */
ATTO_API atto_status atto_opencl_signal(atto_device *dev, struct _cl_event **event);

#ifdef __cplusplus
}
#endif

#endif
