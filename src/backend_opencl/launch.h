/* SPDX-License-Identifier: MIT */
/* Kernel arguments and launches: the only clSetKernelArg and clEnqueueNDRangeKernel of the library.
 */
#ifndef ATTO_LAUNCH_H
#define ATTO_LAUNCH_H

#include "opencl.h"
#include "variants.h"

/* One kernel argument, made by the functions below so that its size is that of its type. */
typedef struct atto__arg {
    size_t bytes;
    union {
        cl_mem memory;
        cl_uint u32;
        cl_ulong u64;
        cl_float f32;
        cl_uint u32x4[4];
        cl_ulong u64x4[4];
    } value;
} atto__arg;

#define ATTO_MAX_ARGS ATTO_MAX_PARAMETERS

/* Arguments in the kernel's order. */
typedef struct atto__args {
    atto__arg list[ATTO_MAX_ARGS];
    cl_uint count;
} atto__args;

/* A buffer whose kernel starts at its front. */
void atto__arg_memory(atto__args *args, void *memory);

/* A tensor is two arguments: buffer (NULL if it has none) and ulong element offset. */
void atto__arg_tensor(atto__args *args, const atto_tensor *t);

/* The same; buffer NULL where t is NULL. */
void atto__arg_optional(atto__args *args, const atto_tensor *t);
/* The device's error word, as such a tensor of one uint. */
void atto__arg_error_word(atto__args *args, const atto_device *dev);

/* The same and the stride of its rows; t may be NULL, which the kernel must not touch then. */
void atto__arg_matrix(atto__args *args, bool wide, const atto_tensor *t);
void atto__arg_uint(atto__args *args, uint32_t value);
void atto__arg_ulong(atto__args *args, uint64_t value);
void atto__arg_float(atto__args *args, float value);
void atto__arg_uint4(atto__args *args, const uint32_t *values);

/* atto_index and atto_index4 of the kernels: uint, or ulong when wide. */
void atto__arg_index(atto__args *args, bool wide, int64_t value);
void atto__arg_index4(atto__args *args, bool wide, const int64_t *values);

/* All arguments of tail behind those of args. */
void atto__args_append(atto__args *args, const atto__args *tail);

/* Work-groups for items, per_group to each; at least one. */
int64_t atto__group_count(int64_t items, int64_t per_group);

/* Binds the arguments and enqueues the kernel in one dimension. */
atto_status atto__enqueue(atto_device *dev, cl_kernel kernel, const atto__args *args,
                          int64_t groups, size_t group_size);

/* Builds the variant if it is new, and enqueues it in one dimension, groups work-groups of ATTO_WG
 * work-items. */
atto_status atto__launch(atto_device *dev, const atto__variant *variant, const atto__args *args,
                         int64_t groups);

/* The same for kernels that name their own work-group size. */
atto_status atto__launch_sized(atto_device *dev, const atto__variant *variant,
                               const atto__args *args, int64_t groups, int32_t group_size);

/* Builds the variant if it is new. */
atto_status atto__prepare(atto_device *dev, const atto__variant *variant);

#endif
