/* SPDX-License-Identifier: MIT */
/* OpenCL at run time: the ICD loader is opened when a device is first asked for, never linked. */
#ifndef ATTO_LOADER_H
#define ATTO_LOADER_H

#include <stdbool.h>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

/* X(name): the function cl<name> of OpenCL 1.2. Every call of the library goes through this list.
 */
#define ATTO_CL_TABLE(X)          \
    X(GetPlatformIDs)             \
    X(GetPlatformInfo)            \
    X(GetDeviceIDs)               \
    X(GetDeviceInfo)              \
    X(CreateContext)              \
    X(RetainContext)              \
    X(ReleaseContext)             \
    X(GetContextInfo)             \
    X(CreateCommandQueue)         \
    X(RetainCommandQueue)         \
    X(ReleaseCommandQueue)        \
    X(GetCommandQueueInfo)        \
    X(CreateBuffer)               \
    X(RetainMemObject)            \
    X(ReleaseMemObject)           \
    X(GetMemObjectInfo)           \
    X(EnqueueReadBuffer)          \
    X(EnqueueWriteBuffer)         \
    X(EnqueueCopyBuffer)          \
    X(EnqueueFillBuffer)          \
    X(EnqueueMapBuffer)           \
    X(EnqueueUnmapMemObject)      \
    X(EnqueueMarkerWithWaitList)  \
    X(EnqueueBarrierWithWaitList) \
    X(Flush)                      \
    X(Finish)                     \
    X(CreateProgramWithSource)    \
    X(CreateProgramWithBinary)    \
    X(BuildProgram)               \
    X(GetProgramInfo)             \
    X(GetProgramBuildInfo)        \
    X(ReleaseProgram)             \
    X(CreateKernel)               \
    X(ReleaseKernel)              \
    X(GetKernelInfo)              \
    X(GetKernelArgInfo)           \
    X(GetKernelWorkGroupInfo)     \
    X(SetKernelArg)               \
    X(EnqueueNDRangeKernel)       \
    X(WaitForEvents)              \
    X(GetEventInfo)               \
    X(GetEventProfilingInfo)      \
    X(ReleaseEvent)

typedef struct atto__cl_functions {
#define X(name) __typeof__(cl##name) *name;
    ATTO_CL_TABLE(X)
#undef X
} atto__cl_functions;

/* Filled by the first atto__cl_load that returns true: atto__cl.Finish(queue). */
extern atto__cl_functions atto__cl;

/* Opens the loader once per process, from any thread. False when there is none; says nothing. */
bool atto__cl_load(void);

/* "CL_OUT_OF_RESOURCES"; "CL_UNKNOWN" for a number that has no name. */
const char *atto__cl_error_name(cl_int code);

#endif
