/* SPDX-License-Identifier: MIT */
/* Asks platforms for their devices, describes them and puts the best first. */
#include "devices.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"

static void trim(char *text)
{
    size_t length = strlen(text);
    while (length > 0 && text[length - 1] == ' ') text[--length] = '\0';
    const size_t leading = strspn(text, " ");
    memmove(text, text + leading, length - leading + 1);
}

/* Copies a driver's answer, which may be longer than text or lack its NUL. */
static void copy_text(const char *from, size_t bytes, char *text, size_t capacity)
{
    const size_t n = bytes < capacity ? bytes : capacity - 1;
    memcpy(text, from, n);
    text[n] = '\0';
    trim(text);
}

/* Long enough for every name that we ask for. */
#define ANSWER_BYTES 1024

void atto__device_text(cl_device_id device, cl_device_info what, char *text, size_t capacity)
{
    char answer[ANSWER_BYTES];
    size_t bytes = 0;
    text[0] = '\0';
    if (atto__cl.GetDeviceInfo(device, what, sizeof answer, answer, &bytes) == CL_SUCCESS)
        copy_text(answer, bytes, text, capacity);
}

void atto__platform_text(cl_platform_id platform, cl_platform_info what, char *text,
                         size_t capacity)
{
    char answer[ANSWER_BYTES];
    size_t bytes = 0;
    text[0] = '\0';
    if (atto__cl.GetPlatformInfo(platform, what, sizeof answer, answer, &bytes) == CL_SUCCESS)
        copy_text(answer, bytes, text, capacity);
}

/* A number of whatever width the driver uses for it (cl_bool, cl_uint, size_t, cl_ulong); 0 when
 * there is no answer. */
static uint64_t device_number(cl_device_id device, cl_device_info what)
{
    union {
        cl_uint narrow;
        cl_ulong wide;
    } value = { .wide = 0 };
    size_t bytes = 0;
    if (atto__cl.GetDeviceInfo(device, what, sizeof value, &value, &bytes) != CL_SUCCESS) return 0;
    return bytes == sizeof value.narrow ? value.narrow : value.wide;
}

/* major * 100 + minor of "<prefix>major.minor ..."; 0 when text does not look like that. */
static int version_number(const char *text, const char *prefix)
{
    int major = 0, minor = 0;
    const size_t length = strlen(prefix);
    if (strncmp(text, prefix, length) != 0) return 0;
    if (sscanf(text + length, "%3d.%3d", &major, &minor) != 2 || major < 0 || minor < 0) return 0;
    return major * 100 + minor;
}

const char *atto__cl_std_option(const char *text)
{
    return version_number(text, "OpenCL C ") >= 102 ? "-cl-std=CL1.2" : NULL;
}

/* A simulator may claim every type at once; then it is a CPU. */
static atto_device_kind kind_of(cl_device_id device)
{
    const uint64_t type = device_number(device, CL_DEVICE_TYPE);
    if (type & CL_DEVICE_TYPE_CPU) return ATTO_KIND_OPENCL_CPU;
    if (!(type & CL_DEVICE_TYPE_GPU)) return ATTO_KIND_ACCELERATOR;
    return device_number(device, CL_DEVICE_HOST_UNIFIED_MEMORY) ? ATTO_KIND_INTEGRATED_GPU
                                                                : ATTO_KIND_DISCRETE_GPU;
}

/* Why we cannot use the device; NULL when we can. */
static const char *problem_of(cl_device_id device, const atto_device_info *info)
{
    char c_version[64];
    atto__device_text(device, CL_DEVICE_OPENCL_C_VERSION, c_version, sizeof c_version);
    if (version_number(info->version, "OpenCL ") < 102 || !atto__cl_std_option(c_version))
        return "older than OpenCL 1.2";
    if (!device_number(device, CL_DEVICE_AVAILABLE)) return "the driver says it is not available";
    if (!device_number(device, CL_DEVICE_COMPILER_AVAILABLE)) return "no kernel compiler";
    if (!device_number(device, CL_DEVICE_ENDIAN_LITTLE)) return "big-endian";
    return NULL;
}

static int32_t to_int32(uint64_t value)
{
    return value > INT32_MAX ? INT32_MAX : (int32_t)value;
}

static void describe(atto__found *found)
{
    const cl_device_id device = found->device;
    atto_device_info *info = &found->info;
    memset(info, 0, sizeof *info);
    snprintf(info->backend, sizeof info->backend, "opencl");
    atto__device_text(device, CL_DEVICE_NAME, info->name, sizeof info->name);
    atto__device_text(device, CL_DEVICE_VENDOR, info->vendor, sizeof info->vendor);
    atto__device_text(device, CL_DEVICE_VERSION, info->version, sizeof info->version);
    atto__device_text(device, CL_DRIVER_VERSION, info->driver, sizeof info->driver);
    atto__platform_text(found->platform, CL_PLATFORM_NAME, info->platform, sizeof info->platform);
    info->kind = kind_of(device);
    info->compute_units = to_int32(device_number(device, CL_DEVICE_MAX_COMPUTE_UNITS));
    info->max_work_group = to_int32(device_number(device, CL_DEVICE_MAX_WORK_GROUP_SIZE));
    info->memory_bytes = device_number(device, CL_DEVICE_GLOBAL_MEM_SIZE);
    info->max_alloc_bytes = device_number(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    info->local_bytes = device_number(device, CL_DEVICE_LOCAL_MEM_SIZE);
    const char *problem = problem_of(device, info);
    snprintf(info->problem, sizeof info->problem, "%s", problem ? problem : "");
}

void atto__devices_describe(cl_device_id device, atto__found *out)
{
    memset(out, 0, sizeof *out);
    out->device = device;
    atto__cl.GetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof out->platform, &out->platform, NULL);
    describe(out);
}

/* Usable before unusable, then by kind, then by compute units. */
static bool better(const atto_device_info *a, const atto_device_info *b)
{
    const bool a_works = !a->problem[0], b_works = !b->problem[0];
    if (a_works != b_works) return a_works;
    if (a->kind != b->kind) return a->kind > b->kind;
    return a->compute_units > b->compute_units;
}

/* Insertion sort: equal devices stay in the drivers' order. */
static void insert_sorted(atto__found *list, int32_t count, const atto__found *entry)
{
    int32_t at = count;
    while (at > 0 && better(&entry->info, &list[at - 1].info)) {
        list[at] = list[at - 1];
        at--;
    }
    list[at] = *entry;
}

/* The platforms; none when the loader finds no driver. */
static atto_status get_platforms(cl_platform_id **out, cl_uint *count)
{
    *out = NULL;
    *count = 0;
    cl_uint n = 0;
    if (!atto__cl_load() || atto__cl.GetPlatformIDs(0, NULL, &n) != CL_SUCCESS || n == 0)
        return ATTO_OK;
    *out = atto__alloc(n * sizeof **out);
    ATTO_REQUIRE(*out, ATTO_E_MEMORY, "device_list: out of host memory");
    if (atto__cl.GetPlatformIDs(n, *out, NULL) == CL_SUCCESS) *count = n;
    return ATTO_OK;
}

static cl_uint count_devices(cl_platform_id platform)
{
    cl_uint n = 0;
    const cl_int code = atto__cl.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, NULL, &n);
    return code == CL_SUCCESS ? n : 0;
}

/* Appends one platform's devices; a platform that fails has none. */
static atto_status add_platform(cl_platform_id platform, atto__found *list, int32_t room,
                                int32_t *count)
{
    cl_uint n = count_devices(platform);
    if (n == 0) return ATTO_OK;
    cl_device_id *ids = atto__alloc(n * sizeof *ids);
    ATTO_REQUIRE(ids, ATTO_E_MEMORY, "device_list: out of host memory");
    if (atto__cl.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, n, ids, NULL) != CL_SUCCESS) n = 0;
    for (cl_uint i = 0; i < n && *count < room; i++) {
        atto__found entry = { .platform = platform, .device = ids[i] };
        describe(&entry);
        insert_sorted(list, (*count)++, &entry);
    }
    atto__free(ids);
    return ATTO_OK;
}

atto_status atto__devices_find(atto__found **out, int32_t *count)
{
    cl_platform_id *platforms;
    cl_uint n;
    int32_t room = 0;
    *out = NULL;
    *count = 0;
    ATTO_TRY(get_platforms(&platforms, &n));
    for (cl_uint i = 0; i < n; i++) room += to_int32(count_devices(platforms[i]));
    atto_status status = ATTO_OK;
    *out = atto__alloc((size_t)room * sizeof **out);
    if (!*out) status = atto__fail(ATTO_E_MEMORY, "device_list: out of host memory");
    for (cl_uint i = 0; i < n && status == ATTO_OK; i++)
        status = add_platform(platforms[i], *out, room, count);
    atto__free(platforms);
    if (status != ATTO_OK) {
        atto__free(*out);
        *out = NULL;
        *count = 0;
    }
    return status;
}
