/* SPDX-License-Identifier: MIT */
/* The OpenCL devices of this machine, without opening any. */
#ifndef ATTO_DEVICES_H
#define ATTO_DEVICES_H

#include "device.h"
#include "loader.h"

typedef struct atto__found {
    cl_platform_id platform;
    cl_device_id device;
    atto_device_info info;
} atto__found;

/* All devices of all platforms, best first; release *out with atto__free. No driver, or a broken
 * one, is an empty list and ATTO_OK. */
atto_status atto__devices_find(atto__found **out, int32_t *count);

/* What the driver says of a device; the platform is the device's. */
void atto__devices_describe(cl_device_id device, atto__found *out);

/* Text of a device or platform, cut to fit. Empty when the driver does not answer. */
void atto__device_text(cl_device_id device, cl_device_info what, char *text, size_t capacity);
void atto__platform_text(cl_platform_id platform, cl_platform_info what, char *text,
                         size_t capacity);

/* The -cl-std option for a device whose CL_DEVICE_OPENCL_C_VERSION is text ("OpenCL C 1.2 ...");
 * NULL when it is older than 1.2 or unreadable. Our kernels are OpenCL C 1.2, which every later
 * compiler accepts, while some that call themselves 3.0 lack parts of 2.0. */
const char *atto__cl_std_option(const char *text);

#endif
