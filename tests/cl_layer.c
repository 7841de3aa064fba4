/* SPDX-License-Identifier: MIT */
/* The layer: one wrapper for each function that the library calls. */
#include "cl_layer.h"

#include <stdio.h>

struct cl_layer cl_layer;
static atto__cl_functions real;

/* Whether this call is to fail. */
static bool fails(const char *name)
{
    const long call = ++cl_layer.calls;
    const bool now = cl_layer.fail_at > 0 &&
                     (call == cl_layer.fail_at || (cl_layer.stays && call > cl_layer.fail_at));
    if (now && !cl_layer.failed) cl_layer.failed = name;
    return now;
}

static void count_event(cl_int code, const cl_event *event)
{
    if (code == CL_SUCCESS && event) cl_layer.live[CL_KIND_EVENT]++;
}

/* X(name, parameters, arguments): returns a code. */
#define CALL_TABLE(X)                                                                              \
    X(GetPlatformIDs, (cl_uint n, cl_platform_id * out, cl_uint * count), (n, out, count))         \
    X(GetPlatformInfo,                                                                             \
      (cl_platform_id p, cl_platform_info what, size_t room, void *out, size_t *bytes),            \
      (p, what, room, out, bytes))                                                                 \
    X(GetDeviceIDs,                                                                                \
      (cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id * out, cl_uint * count),     \
      (p, type, n, out, count))                                                                    \
    X(GetDeviceInfo, (cl_device_id d, cl_device_info what, size_t room, void *out, size_t *bytes), \
      (d, what, room, out, bytes))                                                                 \
    X(GetContextInfo, (cl_context c, cl_context_info what, size_t room, void *out, size_t *bytes), \
      (c, what, room, out, bytes))                                                                 \
    X(GetCommandQueueInfo,                                                                         \
      (cl_command_queue q, cl_command_queue_info what, size_t room, void *out, size_t *bytes),     \
      (q, what, room, out, bytes))                                                                 \
    X(GetMemObjectInfo, (cl_mem m, cl_mem_info what, size_t room, void *out, size_t *bytes),       \
      (m, what, room, out, bytes))                                                                 \
    X(GetProgramInfo, (cl_program p, cl_program_info what, size_t room, void *out, size_t *bytes), \
      (p, what, room, out, bytes))                                                                 \
    X(GetProgramBuildInfo,                                                                         \
      (cl_program p, cl_device_id d, cl_program_build_info what, size_t room, void *out,           \
       size_t *bytes),                                                                             \
      (p, d, what, room, out, bytes))                                                              \
    X(GetKernelInfo, (cl_kernel k, cl_kernel_info what, size_t room, void *out, size_t *bytes),    \
      (k, what, room, out, bytes))                                                                 \
    X(GetKernelArgInfo,                                                                            \
      (cl_kernel k, cl_uint i, cl_kernel_arg_info what, size_t room, void *out, size_t *bytes),    \
      (k, i, what, room, out, bytes))                                                              \
    X(GetKernelWorkGroupInfo,                                                                      \
      (cl_kernel k, cl_device_id d, cl_kernel_work_group_info what, size_t room, void *out,        \
       size_t *bytes),                                                                             \
      (k, d, what, room, out, bytes))                                                              \
    X(GetEventInfo, (cl_event e, cl_event_info what, size_t room, void *out, size_t *bytes),       \
      (e, what, room, out, bytes))                                                                 \
    X(GetEventProfilingInfo,                                                                       \
      (cl_event e, cl_profiling_info what, size_t room, void *out, size_t *bytes),                 \
      (e, what, room, out, bytes))                                                                 \
    X(SetKernelArg, (cl_kernel k, cl_uint i, size_t bytes, const void *value),                     \
      (k, i, bytes, value))                                                                        \
    X(BuildProgram,                                                                                \
      (cl_program p, cl_uint n, const cl_device_id *d, const char *options,                        \
       void(CL_CALLBACK * done)(cl_program, void *), void *user),                                  \
      (p, n, d, options, done, user))                                                              \
    X(Flush, (cl_command_queue q), (q))                                                            \
    X(Finish, (cl_command_queue q), (q))                                                           \
    X(WaitForEvents, (cl_uint n, const cl_event *events), (n, events))

#define X(name, parameters, arguments)               \
    static cl_int layer_##name parameters            \
    {                                                \
        if (fails("cl" #name)) return cl_layer.code; \
        return real.name arguments;                  \
    }
CALL_TABLE(X)
#undef X

/* X(name, parameters, arguments): the same with an event behind. */
#define ENQUEUE_TABLE(X)                                                                          \
    X(EnqueueReadBuffer,                                                                          \
      (cl_command_queue q, cl_mem m, cl_bool wait, size_t at, size_t bytes, void *to, cl_uint n,  \
       const cl_event *after, cl_event *event),                                                   \
      (q, m, wait, at, bytes, to, n, after, event))                                               \
    X(EnqueueWriteBuffer,                                                                         \
      (cl_command_queue q, cl_mem m, cl_bool wait, size_t at, size_t bytes, const void *from,     \
       cl_uint n, const cl_event *after, cl_event *event),                                        \
      (q, m, wait, at, bytes, from, n, after, event))                                             \
    X(EnqueueCopyBuffer,                                                                          \
      (cl_command_queue q, cl_mem from, cl_mem to, size_t from_at, size_t to_at, size_t bytes,    \
       cl_uint n, const cl_event *after, cl_event *event),                                        \
      (q, from, to, from_at, to_at, bytes, n, after, event))                                      \
    X(EnqueueFillBuffer,                                                                          \
      (cl_command_queue q, cl_mem m, const void *pattern, size_t size, size_t at, size_t bytes,   \
       cl_uint n, const cl_event *after, cl_event *event),                                        \
      (q, m, pattern, size, at, bytes, n, after, event))                                          \
    X(EnqueueUnmapMemObject,                                                                      \
      (cl_command_queue q, cl_mem m, void *mapped, cl_uint n, const cl_event *after,              \
       cl_event *event),                                                                          \
      (q, m, mapped, n, after, event))                                                            \
    X(EnqueueMarkerWithWaitList,                                                                  \
      (cl_command_queue q, cl_uint n, const cl_event *after, cl_event *event),                    \
      (q, n, after, event))                                                                       \
    X(EnqueueBarrierWithWaitList,                                                                 \
      (cl_command_queue q, cl_uint n, const cl_event *after, cl_event *event),                    \
      (q, n, after, event))                                                                       \
    X(EnqueueNDRangeKernel,                                                                       \
      (cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset, const size_t *global, \
       const size_t *local, cl_uint n, const cl_event *after, cl_event *event),                   \
      (q, k, dims, offset, global, local, n, after, event))

#define X(name, parameters, arguments)               \
    static cl_int layer_##name parameters            \
    {                                                \
        if (fails("cl" #name)) return cl_layer.code; \
        const cl_int code = real.name arguments;     \
        count_event(code, event);                    \
        return code;                                 \
    }
ENQUEUE_TABLE(X)
#undef X

/* X(name, type, KIND, parameters, arguments): makes an object; the last parameter is the code. */
#define CREATE_TABLE(X)                                                                  \
    X(CreateContext, cl_context, CONTEXT,                                                \
      (const cl_context_properties *p, cl_uint n, const cl_device_id *d,                 \
       void(CL_CALLBACK * tell)(const char *, const void *, size_t, void *), void *user, \
       cl_int *code),                                                                    \
      (p, n, d, tell, user, code))                                                       \
    X(CreateCommandQueue, cl_command_queue, QUEUE,                                       \
      (cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int * code),      \
      (c, d, p, code))                                                                   \
    X(CreateBuffer, cl_mem, MEMORY,                                                      \
      (cl_context c, cl_mem_flags flags, size_t bytes, void *host, cl_int *code),        \
      (c, flags, bytes, host, code))                                                     \
    X(CreateProgramWithSource, cl_program, PROGRAM,                                      \
      (cl_context c, cl_uint n, const char **text, const size_t *bytes, cl_int *code),   \
      (c, n, text, bytes, code))                                                         \
    X(CreateProgramWithBinary, cl_program, PROGRAM,                                      \
      (cl_context c, cl_uint n, const cl_device_id *d, const size_t *bytes,              \
       const unsigned char **binaries, cl_int *states, cl_int *code),                    \
      (c, n, d, bytes, binaries, states, code))                                          \
    X(CreateKernel, cl_kernel, KERNEL, (cl_program p, const char *name, cl_int *code),   \
      (p, name, code))

#define X(name, type, KIND, parameters, arguments) \
    static type layer_##name parameters            \
    {                                              \
        if (fails("cl" #name)) {                   \
            if (code) *code = cl_layer.code;       \
            return NULL;                           \
        }                                          \
        const type made = real.name arguments;     \
        if (made) cl_layer.live[CL_KIND_##KIND]++; \
        return made;                               \
    }
CREATE_TABLE(X)
#undef X

/* X(retain, release, type, KIND). Releasing never fails here: who could do what about it? */
#define COUNT_TABLE(X)                                                  \
    X(RetainContext, ReleaseContext, cl_context, CONTEXT)               \
    X(RetainCommandQueue, ReleaseCommandQueue, cl_command_queue, QUEUE) \
    X(RetainMemObject, ReleaseMemObject, cl_mem, MEMORY)

#define X(retain, release, type, KIND)                 \
    static cl_int layer_##retain(type object)          \
    {                                                  \
        if (fails("cl" #retain)) return cl_layer.code; \
        cl_layer.live[CL_KIND_##KIND]++;               \
        return real.retain(object);                    \
    }
COUNT_TABLE(X)
#undef X

/* X(release, type, KIND) */
#define RELEASE_TABLE(X)                            \
    X(ReleaseContext, cl_context, CONTEXT)          \
    X(ReleaseCommandQueue, cl_command_queue, QUEUE) \
    X(ReleaseMemObject, cl_mem, MEMORY)             \
    X(ReleaseProgram, cl_program, PROGRAM)          \
    X(ReleaseKernel, cl_kernel, KERNEL)             \
    X(ReleaseEvent, cl_event, EVENT)

#define X(release, type, KIND)                 \
    static cl_int layer_##release(type object) \
    {                                          \
        cl_layer.live[CL_KIND_##KIND]--;       \
        return real.release(object);           \
    }
RELEASE_TABLE(X)
#undef X

static void *layer_EnqueueMapBuffer(cl_command_queue q, cl_mem m, cl_bool wait, cl_map_flags flags,
                                    size_t at, size_t bytes, cl_uint n, const cl_event *after,
                                    cl_event *event, cl_int *code)
{
    if (fails("clEnqueueMapBuffer")) {
        *code = cl_layer.code;
        return NULL;
    }
    void *mapped = real.EnqueueMapBuffer(q, m, wait, flags, at, bytes, n, after, event, code);
    count_event(*code, event);
    return mapped;
}

void cl_layer_begin(void)
{
    real = atto__cl;
#define PUT(name, ...) atto__cl.name = layer_##name;
    CALL_TABLE(PUT)
    ENQUEUE_TABLE(PUT)
    CREATE_TABLE(PUT)
    COUNT_TABLE(PUT)
    RELEASE_TABLE(PUT)
    atto__cl.EnqueueMapBuffer = layer_EnqueueMapBuffer;
#undef PUT
    cl_layer = (struct cl_layer){ .fail_at = 0 };
}

void cl_layer_end(void)
{
    atto__cl = real;
}

const char *cl_layer_left(void)
{
    static char text[200];
    static const char *const names[] = {
#define X(KIND, name) #name,
        CL_KIND_TABLE(X)
#undef X
    };
    int at = 0;
    text[0] = '\0';
    for (int i = 0; i < CL_KINDS; i++)
        if (cl_layer.live[i] != 0)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%ld %s", at ? ", " : "",
                           cl_layer.live[i], names[i]);
    return text;
}
