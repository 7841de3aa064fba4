/* SPDX-License-Identifier: MIT */
/* An open OpenCL device, and how its driver's errors become ours. */
#ifndef ATTO_OPENCL_H
#define ATTO_OPENCL_H

#include "device.h"
#include "loader.h"
#include "program.h"
#include "staging.h"

typedef struct atto__opencl {
    cl_device_id device;
    cl_context context;
    cl_command_queue queue; /* in order; perhaps the caller's, as the context */
    uint32_t group_size;    /* ATTO_WG: work-items of every work-group, a power of two */
    uint32_t nvidia;        /* ATTO_NVIDIA: compute capability times ten; 0 = portable kernels */
    const struct atto__gemm_tile *gemm_tile; /* forced by a test; else NULL */
    struct atto__clblast *clblast;           /* NULL: not asked for yet */
    atto__programs programs;
    atto__staging staging;
} atto__opencl;

static inline atto__opencl *atto__opencl_of(const atto_device *dev)
{
    return dev->impl;
}

/* Fails with "clFinish: CL_OUT_OF_RESOURCES (-5)" and the status that fits; marks the device lost
 * when the code, or a queue that no longer works, says so. */
atto_status atto__cl_fail(atto_device *dev, const char *function, cl_int code);

/* ATTO_CL_TRY(dev, Finish, cl->queue) calls clFinish and passes a failure up. */
#define ATTO_CL_TRY(dev, name, ...)                                                          \
    do {                                                                                     \
        const cl_int atto_cl_code = atto__cl.name(__VA_ARGS__);                              \
        if (atto_cl_code != CL_SUCCESS) return atto__cl_fail(dev, "cl" #name, atto_cl_code); \
    } while (0)

/* The opener of atto__device_open_by; job: const atto_opencl *, whose handles belong together. */
atto_status atto__opencl_open_handles(atto_device *dev, const void *job);

/* tensor.c: the vtable's copy and fill. */
atto_status atto__opencl_copy(atto_device *dev, const atto_tensor *dst, const atto_tensor *src,
                              const atto__layout *layout);
atto_status atto__opencl_fill(atto_device *dev, const atto_tensor *dst, uint64_t bits,
                              const atto__layout *layout);

/* optim.c */
atto_status atto__opencl_optim_norm(atto_device *dev, const struct atto__optim_args *a);
atto_status atto__opencl_optim_begin(atto_device *dev, const struct atto__optim_args *a);
atto_status atto__opencl_optim_step(atto_device *dev, const struct atto__optim_args *a);

/* kernel.c: the vtable's slots for kernels of the user's. */
atto_status atto__opencl_kernel_create(atto_device *dev, const atto_kernel_source *source,
                                       void **out, atto__signature *signature);
void atto__opencl_kernel_destroy(atto_device *dev, void *kernel);
atto_status atto__opencl_kernel_launch(atto_device *dev, void *kernel, int64_t n,
                                       const atto_kernel_arg *args, int32_t count);

/* <family>.c: the ops, and prepare, which builds what a plain call on that dtype needs. */
#define X(op, OP, layout, autocast, in_place, random, data_errors)                           \
    atto_status atto__opencl_##op##_forward(atto_device *, const struct atto_##op##_args *,  \
                                            const atto__layout *);                           \
    atto_status atto__opencl_##op##_backward(atto_device *, const struct atto_##op##_args *, \
                                             const atto__layout *);                          \
    atto_status atto__opencl_##op##_prepare(atto_device *, atto_dtype);
ATTO_OP_TABLE(X)
#undef X

#endif
