/* SPDX-License-Identifier: MIT */
/* Binds arguments and enqueues kernels. */
#include "launch.h"

#include <assert.h>
#include <inttypes.h>

static atto__arg *next_arg(atto__args *args, size_t bytes)
{
    assert(args->count < ATTO_MAX_ARGS);
    atto__arg *arg = &args->list[args->count++];
    arg->bytes = bytes;
    return arg;
}

void atto__arg_memory(atto__args *args, void *memory)
{
    next_arg(args, sizeof(cl_mem))->value.memory = memory;
}

void atto__arg_tensor(atto__args *args, const atto_tensor *t)
{
    atto__arg_memory(args, t->buffer ? atto__memory(t) : NULL);
    atto__arg_ulong(args, (uint64_t)t->offset);
}

void atto__arg_optional(atto__args *args, const atto_tensor *t)
{
    const atto_tensor none = { .buffer = NULL };
    atto__arg_tensor(args, t ? t : &none);
}

void atto__arg_error_word(atto__args *args, const atto_device *dev)
{
    atto__arg_memory(args, dev->error_word->memory);
    atto__arg_ulong(args, 0);
}

void atto__arg_matrix(atto__args *args, bool wide, const atto_tensor *t)
{
    const atto_tensor none = { .rank = 2 };
    if (!t) t = &none;
    atto__arg_tensor(args, t);
    atto__arg_index(args, wide, t->stride[0]);
}

void atto__arg_uint(atto__args *args, uint32_t value)
{
    next_arg(args, sizeof(cl_uint))->value.u32 = value;
}

void atto__arg_ulong(atto__args *args, uint64_t value)
{
    next_arg(args, sizeof(cl_ulong))->value.u64 = value;
}

void atto__arg_float(atto__args *args, float value)
{
    next_arg(args, sizeof(cl_float))->value.f32 = value;
}

void atto__arg_uint4(atto__args *args, const uint32_t *values)
{
    atto__arg *arg = next_arg(args, sizeof(cl_uint4));
    for (int32_t i = 0; i < 4; i++) arg->value.u32x4[i] = values[i];
}

void atto__arg_index(atto__args *args, bool wide, int64_t value)
{
    if (wide) {
        atto__arg_ulong(args, (uint64_t)value);
    } else {
        atto__arg_uint(args, (uint32_t)value);
    }
}

void atto__arg_index4(atto__args *args, bool wide, const int64_t *values)
{
    atto__arg *arg = next_arg(args, wide ? sizeof(cl_ulong4) : sizeof(cl_uint4));
    for (int32_t i = 0; i < 4; i++) {
        if (wide) {
            arg->value.u64x4[i] = (cl_ulong)values[i];
        } else {
            arg->value.u32x4[i] = (cl_uint)values[i];
        }
    }
}

void atto__args_append(atto__args *args, const atto__args *tail)
{
    for (cl_uint i = 0; i < tail->count; i++) {
        atto__arg *arg = next_arg(args, tail->list[i].bytes);
        arg->value = tail->list[i].value;
    }
}

int64_t atto__group_count(int64_t items, int64_t per_group)
{
    const int64_t groups = items / per_group + (items % per_group != 0);
    return groups > 0 ? groups : 1;
}

atto_status atto__enqueue(atto_device *dev, cl_kernel kernel, const atto__args *args,
                          int64_t groups, size_t group_size)
{
    for (cl_uint i = 0; i < args->count; i++) {
        const cl_int code =
            atto__cl.SetKernelArg(kernel, i, args->list[i].bytes, &args->list[i].value);
        if (code != CL_SUCCESS)
            return atto__fail_in(atto__cl_fail(dev, "clSetKernelArg", code),
                                 "parameter %d: ", (int)i);
    }
    ATTO_REQUIRE((uint64_t)groups <= SIZE_MAX / group_size, ATTO_E_ARGUMENT,
                 "%" PRId64 " work-groups are too many", groups);
    const size_t global = (size_t)groups * group_size;
    ATTO_CL_TRY(dev, EnqueueNDRangeKernel, atto__opencl_of(dev)->queue, kernel, 1, NULL, &global,
                &group_size, 0, NULL, NULL);
    dev->stats.launches++;
    return ATTO_OK;
}

atto_status atto__launch_sized(atto_device *dev, const atto__variant *variant,
                               const atto__args *args, int64_t groups, int32_t group_size)
{
    cl_kernel kernel;
    ATTO_TRY(atto__program_kernel(dev, variant->file, variant->kernel, variant->options, &kernel));
    const atto_status status = atto__enqueue(dev, kernel, args, groups, (size_t)group_size);
    return status == ATTO_OK ? ATTO_OK : atto__fail_in(status, "%s: ", variant->kernel);
}

atto_status atto__launch(atto_device *dev, const atto__variant *variant, const atto__args *args,
                         int64_t groups)
{
    return atto__launch_sized(dev, variant, args, groups,
                              (int32_t)atto__opencl_of(dev)->group_size);
}

atto_status atto__prepare(atto_device *dev, const atto__variant *variant)
{
    cl_kernel kernel;
    return atto__program_kernel(dev, variant->file, variant->kernel, variant->options, &kernel);
}
