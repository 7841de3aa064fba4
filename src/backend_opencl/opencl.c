/* SPDX-License-Identifier: MIT */
/* The OpenCL backend: its table, its devices, queue, memory and events. */
#include "opencl.h"

#include <attocl/opencl.h>

#include "clblast.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "devices.h"
#include "launch.h"
#include "os.h"

/* Work-items of a work-group where the device allows it. */
#define GROUP_SIZE 256

/* ---- errors ---- */

static bool means_lost(const atto_device *dev, cl_int code)
{
    switch (code) {
    case CL_DEVICE_NOT_AVAILABLE:
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
    case CL_INVALID_CONTEXT:
    case CL_INVALID_COMMAND_QUEUE:
    case -9999:
        return true;
    case CL_OUT_OF_RESOURCES: /* NVIDIA says so after a bad address too; then nothing works */
        return dev->impl && atto__cl.Finish(atto__opencl_of(dev)->queue) != CL_SUCCESS;
    default:
        return false;
    }
}

static atto_status status_of(cl_int code)
{
    switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
        return ATTO_E_MEMORY;
    case CL_INVALID_ARG_SIZE:
    case CL_INVALID_ARG_VALUE:
        return ATTO_E_ARGUMENT;
    default:
        return ATTO_E_BACKEND;
    }
}

atto_status atto__cl_fail(atto_device *dev, const char *function, cl_int code)
{
    const char *name = atto__cl_error_name(code);
    if (means_lost(dev, code))
        return atto__device_lose(dev, "%s: %s (%d)", function, name, (int)code);
    return atto__fail(status_of(code), "%s: %s (%d)", function, name, (int)code);
}

/* ---- memory ---- */

/* Writes every byte, which makes drivers that allocate at first use do so now. Large patterns:
 * NVIDIA's driver counts them, and their offset, in 31 bits (beyond, it hangs or writes
 * elsewhere). */
static cl_int commit(const atto__opencl *cl, cl_mem memory, size_t bytes)
{
    const cl_uint16 zero = { { 0 } };
    const size_t pattern = bytes % sizeof zero == 0 ? sizeof zero : 1;
    const cl_int code =
        atto__cl.EnqueueFillBuffer(cl->queue, memory, &zero, pattern, 0, bytes, 0, NULL, NULL);
    return code == CL_SUCCESS ? atto__cl.Finish(cl->queue) : code;
}

static atto_status alloc_failed(atto_device *dev, const char *function, size_t bytes, cl_int code)
{
    atto_status status = atto__cl_fail(dev, function, code);
    if (status == ATTO_E_BACKEND && code == CL_OUT_OF_RESOURCES) status = ATTO_E_MEMORY;
    return atto__fail_in(status, "no %zu bytes of device memory: ", bytes);
}

static atto_status opencl_alloc(atto_device *dev, size_t bytes, void **out)
{
    const atto__opencl *cl = atto__opencl_of(dev);
    cl_int code;
    cl_mem memory = atto__cl.CreateBuffer(cl->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    if (!memory) return alloc_failed(dev, "clCreateBuffer", bytes, code);
    dev->stats.blocking_calls++;
    code = commit(cl, memory, bytes);
    if (code != CL_SUCCESS) {
        atto__cl.ReleaseMemObject(memory);
        return alloc_failed(dev, "clEnqueueFillBuffer", bytes, code);
    }
    *out = memory;
    return ATTO_OK;
}

static void opencl_release(atto_device *dev, void *memory)
{
    (void)dev;
    atto__cl.ReleaseMemObject(memory);
}

static atto_status opencl_wrap(atto_device *dev, void *data, size_t bytes, void **out)
{
    const atto__opencl *cl = atto__opencl_of(dev);
    const bool shares =
        dev->info.kind == ATTO_KIND_OPENCL_CPU || dev->info.kind == ATTO_KIND_INTEGRATED_GPU;
    ATTO_REQUIRE(shares, ATTO_E_UNSUPPORTED,
                 "%s has memory of its own; allocate a tensor and write to it", dev->info.name);
    cl_int code;
    *out = atto__cl.CreateBuffer(cl->context, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, data,
                                 &code);
    return *out ? ATTO_OK : atto__cl_fail(dev, "clCreateBuffer", code);
}

static void opencl_unwrap(atto_device *dev, void *memory)
{
    atto__cl.Finish(atto__opencl_of(dev)->queue);
    atto__cl.ReleaseMemObject(memory);
}

static atto_status opencl_write(atto_device *dev, void *memory, size_t offset, const void *data,
                                size_t bytes)
{
    return atto__staging_write(dev, memory, offset, data, bytes);
}

static atto_status opencl_read(atto_device *dev, void *memory, size_t offset, void *data,
                               size_t bytes)
{
    dev->stats.blocking_calls++;
    ATTO_CL_TRY(dev, EnqueueReadBuffer, atto__opencl_of(dev)->queue, memory, CL_TRUE, offset, bytes,
                data, 0, NULL, NULL);
    return ATTO_OK;
}

static atto_status opencl_poll(atto_device *dev, void *memory, uint32_t *word)
{
    return atto__staging_poll(dev, memory, word);
}

static cl_map_flags map_flags(atto_map_mode mode)
{
    switch (mode) {
    case ATTO_MAP_READ:
        return CL_MAP_READ;
    case ATTO_MAP_WRITE:
        return CL_MAP_WRITE_INVALIDATE_REGION;
    case ATTO_MAP_READ_WRITE:
        break;
    }
    return CL_MAP_READ | CL_MAP_WRITE;
}

static atto_status opencl_map(atto_device *dev, void *memory, size_t offset, size_t bytes,
                              atto_map_mode mode, void **out)
{
    cl_int code;
    dev->stats.blocking_calls++;
    *out = atto__cl.EnqueueMapBuffer(atto__opencl_of(dev)->queue, memory, CL_TRUE, map_flags(mode),
                                     offset, bytes, 0, NULL, NULL, &code);
    return code == CL_SUCCESS ? ATTO_OK : atto__cl_fail(dev, "clEnqueueMapBuffer", code);
}

static atto_status opencl_unmap(atto_device *dev, void *memory, void *mapped)
{
    ATTO_CL_TRY(dev, EnqueueUnmapMemObject, atto__opencl_of(dev)->queue, memory, mapped, 0, NULL,
                NULL);
    return ATTO_OK;
}

static atto_status opencl_sync(atto_device *dev)
{
    dev->stats.blocking_calls++;
    ATTO_CL_TRY(dev, Finish, atto__opencl_of(dev)->queue);
    return ATTO_OK;
}

/* ---- events ---- */

static atto_status opencl_event_record(atto_device *dev, void **out)
{
    cl_event event;
    ATTO_CL_TRY(dev, EnqueueMarkerWithWaitList, atto__opencl_of(dev)->queue, 0, NULL, &event);
    *out = event;
    return ATTO_OK;
}

static atto_status end_time(atto_device *dev, cl_event event, cl_ulong *nanoseconds)
{
    ATTO_CL_TRY(dev, GetEventProfilingInfo, event, CL_PROFILING_COMMAND_END, sizeof *nanoseconds,
                nanoseconds, NULL);
    return ATTO_OK;
}

static atto_status opencl_event_elapsed(atto_device *dev, void *start, void *end, double *out_ms)
{
    cl_event events[] = { start, end };
    cl_ulong from, to;
    dev->stats.blocking_calls++;
    ATTO_CL_TRY(dev, WaitForEvents, 2, events);
    ATTO_TRY(end_time(dev, start, &from));
    ATTO_TRY(end_time(dev, end, &to));
    *out_ms = 1e-6 * ((double)to - (double)from);
    return ATTO_OK;
}

static void opencl_event_destroy(atto_device *dev, void *event)
{
    (void)dev;
    if (event) atto__cl.ReleaseEvent(event);
}

/* ---- ops ---- */

static bool opencl_supports(atto_device *dev, atto_op op, atto_dtype dtype)
{
    if (dtype != ATTO_F32 && dtype != ATTO_F16 && dtype != ATTO_BF16) return false;
    switch (op) {
#define X(op, OP, layout, autocast, in_place, random, data_errors) \
    case ATTO_OP_##OP:                                             \
        return atto__opencl_##op##_prepare(dev, dtype) == ATTO_OK;
        ATTO_OP_TABLE(X)
#undef X
    default:
        return false;
    }
}

/* ---- open and close ---- */

/* Also for a device that is half open: what is missing is NULL. */
static void opencl_close(atto_device *dev)
{
    atto__opencl *cl = atto__opencl_of(dev);
    if (!cl) return;
    if (cl->queue) {
        atto__cl.Finish(cl->queue);
        atto__staging_close(dev);
    }
    atto__clblast_close(dev);
    atto__programs_close(dev);
    if (cl->queue) atto__cl.ReleaseCommandQueue(cl->queue);
    if (cl->context) atto__cl.ReleaseContext(cl->context);
    atto__free(cl);
    dev->impl = NULL;
    dev->vt = NULL;
}

static const atto__vtable opencl_vtable = { .name = "opencl",
                                            .close = opencl_close,
                                            .alloc = opencl_alloc,
                                            .release = opencl_release,
                                            .wrap = opencl_wrap,
                                            .unwrap = opencl_unwrap,
                                            .write = opencl_write,
                                            .read = opencl_read,
                                            .poll = opencl_poll,
                                            .map = opencl_map,
                                            .unmap = opencl_unmap,
                                            .sync = opencl_sync,
                                            .copy = atto__opencl_copy,
                                            .fill = atto__opencl_fill,
                                            .kernel_create = atto__opencl_kernel_create,
                                            .kernel_destroy = atto__opencl_kernel_destroy,
                                            .launch = atto__opencl_kernel_launch,
                                            .optim_norm = atto__opencl_optim_norm,
                                            .optim_begin = atto__opencl_optim_begin,
                                            .optim_step = atto__opencl_optim_step,
                                            .event_record = opencl_event_record,
                                            .event_elapsed = opencl_event_elapsed,
                                            .event_destroy = opencl_event_destroy,
                                            .supports = opencl_supports,
#define X(op, OP, layout, autocast, in_place, random, data_errors) \
    .op##_forward = atto__opencl_##op##_forward, .op##_backward = atto__opencl_##op##_backward,
                                            ATTO_OP_TABLE(X)
#undef X
};

static atto_status create_queue(atto_device *dev)
{
    atto__opencl *cl = atto__opencl_of(dev);
    const cl_command_queue_properties profile =
        dev->options.set.profile ? CL_QUEUE_PROFILING_ENABLE : 0;
    cl_int code;
    cl->queue = atto__cl.CreateCommandQueue(cl->context, cl->device, profile, &code);
    return cl->queue ? ATTO_OK : atto__cl_fail(dev, "clCreateCommandQueue", code);
}

static atto_status create_context(atto_device *dev, const void *job)
{
    const atto__found *found = job;
    atto__opencl *cl = atto__opencl_of(dev);
    const cl_context_properties properties[] = { CL_CONTEXT_PLATFORM,
                                                 (cl_context_properties)found->platform, 0 };
    cl_int code;
    cl->device = found->device;
    cl->context = atto__cl.CreateContext(properties, 1, &cl->device, NULL, NULL, &code);
    if (!cl->context) return atto__cl_fail(dev, "clCreateContext", code);
    return create_queue(dev);
}

/* The caller's context, and its queue if that is in order. */
static atto_status take_handles(atto_device *dev, const void *job)
{
    const atto_opencl *handles = job;
    atto__opencl *cl = atto__opencl_of(dev);
    cl_command_queue_properties properties = 0;
    cl->device = handles->device;
    ATTO_CL_TRY(dev, RetainContext, handles->context);
    cl->context = handles->context;
    if (handles->queue)
        ATTO_CL_TRY(dev, GetCommandQueueInfo, handles->queue, CL_QUEUE_PROPERTIES,
                    sizeof properties, &properties, NULL);
    if (!handles->queue || (properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE))
        return create_queue(dev);
    ATTO_REQUIRE(!dev->options.set.profile || (properties & CL_QUEUE_PROFILING_ENABLE),
                 ATTO_E_ARGUMENT,
                 "the option profile wants a queue made with CL_QUEUE_PROFILING_ENABLE");
    ATTO_CL_TRY(dev, RetainCommandQueue, handles->queue);
    cl->queue = handles->queue;
    return ATTO_OK;
}

/* What the device has, or less if options say so. */
static void apply_limits(atto_device *dev)
{
    const atto_device_options *options = &dev->options.set;
    atto_device_info *info = &dev->info;
    if (options->max_work_group > 0 && options->max_work_group < info->max_work_group)
        info->max_work_group = options->max_work_group;
    if (options->max_local_bytes > 0 && (uint64_t)options->max_local_bytes < info->local_bytes)
        info->local_bytes = (uint64_t)options->max_local_bytes;
    uint32_t size = GROUP_SIZE;
    while (size > 1 && size > (uint32_t)info->max_work_group) size /= 2;
    atto__opencl_of(dev)->group_size = size;
}

/* cl_nv_device_attribute_query */
#define COMPUTE_CAPABILITY_MAJOR_NV 0x4000
#define COMPUTE_CAPABILITY_MINOR_NV 0x4001
#define VENDOR_NVIDIA               0x10de

/* 90 on an H200; 0 on other vendors' devices and where options want portable kernels. */
static uint32_t nvidia_capability(const atto_device *dev)
{
    const cl_device_id device = atto__opencl_of(dev)->device;
    cl_uint vendor = 0, major = 0, minor = 0;
    if (dev->options.set.portable) return 0;
    atto__cl.GetDeviceInfo(device, CL_DEVICE_VENDOR_ID, sizeof vendor, &vendor, NULL);
    if (vendor != VENDOR_NVIDIA) return 0;
    atto__cl.GetDeviceInfo(device, COMPUTE_CAPABILITY_MAJOR_NV, sizeof major, &major, NULL);
    atto__cl.GetDeviceInfo(device, COMPUTE_CAPABILITY_MINOR_NV, sizeof minor, &minor, NULL);
    return 10 * major + minor;
}

#define PROBE_ITEMS  64
#define PROBE_OFFSET 32 /* elements */

/* What src/cl/probe.cl says it writes for item i of n. */
static uint32_t probe_expected(uint32_t i, uint32_t n)
{
    const uint32_t from = n - 1 - i;
    const uint32_t half_way = (2049 + 2 * from + 1) / 4 * 4, bfloat = (257 + 2 * from + 1) / 4 * 4;
    return half_way + 4096 * bfloat + (3 * (from + 1)) / 2;
}

static atto_status check_probe(const uint32_t *got, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ATTO_REQUIRE(got[i] == probe_expected(i, n), ATTO_E_DEVICE,
                     "a probe kernel computed 0x%x at %u, expected 0x%x", (unsigned)got[i],
                     (unsigned)i, (unsigned)probe_expected(i, n));
    return ATTO_OK;
}

static atto_status run_probe(atto_device *dev, void *memory)
{
    const uint32_t group = atto__opencl_of(dev)->group_size;
    const uint32_t n = group < PROBE_ITEMS ? group : PROBE_ITEMS;
    uint32_t got[PROBE_ITEMS] = { 0 };
    atto__block block = { .memory = memory };
    atto_buffer buffer = { .dev = dev, .block = &block };
    const atto_tensor out = atto_tensor_of(&buffer, ATTO_I32, atto_shape1(n), PROBE_OFFSET);
    atto__variant variant;
    atto__args args;
    args.count = 0;
    atto__probe_variant(&variant);
    atto__arg_tensor(&args, &out);
    ATTO_TRY(atto__launch(dev, &variant, &args, 1));
    ATTO_TRY(opencl_read(dev, memory, PROBE_OFFSET * sizeof *got, got, n * sizeof *got));
    return check_probe(got, n);
}

/* A device that computes wrong numbers is no device. */
static atto_status probe(atto_device *dev)
{
    void *memory;
    ATTO_TRY(opencl_alloc(dev, (PROBE_OFFSET + PROBE_ITEMS) * sizeof(uint32_t), &memory));
    const atto_status status = run_probe(dev, memory);
    opencl_release(dev, memory);
    return status;
}

/* connect finds context and queue. */
static atto_status start(atto_device *dev, atto_status (*connect)(atto_device *, const void *),
                         const void *job)
{
    dev->impl = atto__alloc(sizeof(atto__opencl));
    ATTO_REQUIRE(dev->impl, ATTO_E_MEMORY, "out of host memory for a device");
    dev->vt = &opencl_vtable;
    ATTO_TRY(connect(dev, job));
    apply_limits(dev);
    atto__opencl_of(dev)->nvidia = nvidia_capability(dev);
    const atto_status status = probe(dev);
    memset(&dev->stats, 0, sizeof dev->stats);
    return status;
}

/* Undoes a start that failed, and says of which device. */
static atto_status stop(atto_device *dev, atto_status status)
{
    if (status == ATTO_OK) return ATTO_OK;
    opencl_close(dev);
    return status == ATTO_E_MEMORY || status == ATTO_E_ARGUMENT
               ? status
               : atto__fail_in(ATTO_E_DEVICE, "%s does not work: ", dev->info.name);
}

/* Drivers initialise themselves in their first calls, some without a lock (PoCL 3.1 crashes when
 * two threads open at once), so only one thread at a time lists or opens. */
static atto__mutex driver_lock = ATTO_MUTEX_INIT;

static atto_status open_locked(atto_device *dev, int32_t local_index)
{
    atto__found *found;
    int32_t count;
    ATTO_TRY(atto__devices_find(&found, &count));
    atto_status status = ATTO_OK;
    if (local_index >= count)
        status = atto__fail(ATTO_E_DEVICE, "device_open: the OpenCL device is gone");
    if (status == ATTO_OK) status = stop(dev, start(dev, create_context, &found[local_index]));
    atto__free(found);
    return status;
}

static atto_status opencl_open(atto_device *dev, int32_t local_index)
{
    atto__lock(&driver_lock);
    const atto_status status = open_locked(dev, local_index);
    atto__unlock(&driver_lock);
    return status;
}

atto_status atto__opencl_open_handles(atto_device *dev, const void *job)
{
    atto__lock(&driver_lock);
    const atto_status status = stop(dev, start(dev, take_handles, job));
    atto__unlock(&driver_lock);
    return status;
}

static atto_status opencl_list(const atto__options *options, atto_device_info *infos,
                               int32_t capacity, int32_t *count)
{
    (void)options;
    atto__found *found;
    atto__lock(&driver_lock);
    const atto_status status = atto__devices_find(&found, count);
    atto__unlock(&driver_lock);
    ATTO_TRY(status);
    for (int32_t i = 0; i < *count && i < capacity; i++) infos[i] = found[i].info;
    atto__free(found);
    return ATTO_OK;
}

const atto__backend atto__opencl_backend = { "opencl", opencl_list, opencl_open };
