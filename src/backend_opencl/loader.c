/* SPDX-License-Identifier: MIT */
/* Finds the ICD loader and its functions, and names OpenCL's error codes. */
#include "loader.h"

#include <stddef.h>
#include <string.h>

#include "os.h"

atto__cl_functions atto__cl;

static const char *const library_names[] = {
#if defined(_WIN32)
    "OpenCL.dll",
#elif defined(__APPLE__)
    "/System/Library/Frameworks/OpenCL.framework/OpenCL",
#else
    "libOpenCL.so.1",
    "libOpenCL.so",
#endif
};

/* All functions or none. */
static bool fill_table(void *library, atto__cl_functions *table)
{
    static const struct {
        const char *name;
        size_t offset;
    } rows[] = {
#define X(name) { "cl" #name, offsetof(atto__cl_functions, name) },
        ATTO_CL_TABLE(X)
#undef X
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        void *symbol = atto__library_symbol(library, rows[i].name);
        if (symbol == NULL) return false;
        memcpy((char *)table + rows[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

static bool open_library(void)
{
    for (size_t i = 0; i < sizeof library_names / sizeof library_names[0]; ++i) {
        atto__cl_functions table;
        void *library = atto__library_open(library_names[i]);
        if (library == NULL) continue;
        if (fill_table(library, &table)) {
            atto__cl = table; /* the library stays open: drivers keep threads running in it */
            return true;
        }
        atto__library_close(library);
    }
    return false;
}

bool atto__cl_load(void)
{
    static atto__mutex mutex = ATTO_MUTEX_INIT;
    static bool tried, loaded;
    atto__lock(&mutex);
    if (!tried) loaded = open_library();
    tried = true;
    const bool result = loaded;
    atto__unlock(&mutex);
    return result;
}

/* X(name) for codes of cl.h, Y(name, code) for those of extensions and drivers. */
/* clang-format off */
#define ATTO_CL_ERROR_TABLE(X, Y)                      \
    X(CL_SUCCESS)                                      \
    X(CL_DEVICE_NOT_FOUND)                             \
    X(CL_DEVICE_NOT_AVAILABLE)                         \
    X(CL_COMPILER_NOT_AVAILABLE)                       \
    X(CL_MEM_OBJECT_ALLOCATION_FAILURE)                \
    X(CL_OUT_OF_RESOURCES)                             \
    X(CL_OUT_OF_HOST_MEMORY)                           \
    X(CL_PROFILING_INFO_NOT_AVAILABLE)                 \
    X(CL_MEM_COPY_OVERLAP)                             \
    X(CL_IMAGE_FORMAT_MISMATCH)                        \
    X(CL_IMAGE_FORMAT_NOT_SUPPORTED)                   \
    X(CL_BUILD_PROGRAM_FAILURE)                        \
    X(CL_MAP_FAILURE)                                  \
    X(CL_MISALIGNED_SUB_BUFFER_OFFSET)                 \
    X(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)    \
    X(CL_COMPILE_PROGRAM_FAILURE)                      \
    X(CL_LINKER_NOT_AVAILABLE)                         \
    X(CL_LINK_PROGRAM_FAILURE)                         \
    X(CL_DEVICE_PARTITION_FAILED)                      \
    X(CL_KERNEL_ARG_INFO_NOT_AVAILABLE)                \
    X(CL_INVALID_VALUE)                                \
    X(CL_INVALID_DEVICE_TYPE)                          \
    X(CL_INVALID_PLATFORM)                             \
    X(CL_INVALID_DEVICE)                               \
    X(CL_INVALID_CONTEXT)                              \
    X(CL_INVALID_QUEUE_PROPERTIES)                     \
    X(CL_INVALID_COMMAND_QUEUE)                        \
    X(CL_INVALID_HOST_PTR)                             \
    X(CL_INVALID_MEM_OBJECT)                           \
    X(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR)              \
    X(CL_INVALID_IMAGE_SIZE)                           \
    X(CL_INVALID_SAMPLER)                              \
    X(CL_INVALID_BINARY)                               \
    X(CL_INVALID_BUILD_OPTIONS)                        \
    X(CL_INVALID_PROGRAM)                              \
    X(CL_INVALID_PROGRAM_EXECUTABLE)                   \
    X(CL_INVALID_KERNEL_NAME)                          \
    X(CL_INVALID_KERNEL_DEFINITION)                    \
    X(CL_INVALID_KERNEL)                               \
    X(CL_INVALID_ARG_INDEX)                            \
    X(CL_INVALID_ARG_VALUE)                            \
    X(CL_INVALID_ARG_SIZE)                             \
    X(CL_INVALID_KERNEL_ARGS)                          \
    X(CL_INVALID_WORK_DIMENSION)                       \
    X(CL_INVALID_WORK_GROUP_SIZE)                      \
    X(CL_INVALID_WORK_ITEM_SIZE)                       \
    X(CL_INVALID_GLOBAL_OFFSET)                        \
    X(CL_INVALID_EVENT_WAIT_LIST)                      \
    X(CL_INVALID_EVENT)                                \
    X(CL_INVALID_OPERATION)                            \
    X(CL_INVALID_GL_OBJECT)                            \
    X(CL_INVALID_BUFFER_SIZE)                          \
    X(CL_INVALID_MIP_LEVEL)                            \
    X(CL_INVALID_GLOBAL_WORK_SIZE)                     \
    X(CL_INVALID_PROPERTY)                             \
    X(CL_INVALID_IMAGE_DESCRIPTOR)                     \
    X(CL_INVALID_COMPILER_OPTIONS)                     \
    X(CL_INVALID_LINKER_OPTIONS)                       \
    X(CL_INVALID_DEVICE_PARTITION_COUNT)               \
    Y(CL_PLATFORM_NOT_FOUND_KHR, -1001)                \
    Y(NVIDIA_ILLEGAL_ACCESS,     -9999)
/* clang-format on */

const char *atto__cl_error_name(cl_int code)
{
#define X(name) \
    case name:  \
        return #name;
#define Y(name, number) \
    case number:        \
        return #name;
    switch (code) {
        ATTO_CL_ERROR_TABLE(X, Y)
    default:
        return "CL_UNKNOWN";
    }
#undef X
#undef Y
}
