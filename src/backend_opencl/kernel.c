/* SPDX-License-Identifier: MIT */
/* Kernels of the user's through OpenCL: built from text, and checked against their arguments, because
 * drivers take a number for a pointer and crash. */
#include <string.h>

#include "alloc.h"
#include "launch.h"

/* A kernel knows its parameters only if it was built with this. */
#define OPTIONS " -cl-kernel-arg-info "

typedef struct opencl_kernel {
    atto__kernel *built;
    cl_uint parameters;
    bool is_pointer[ATTO_MAX_ARGS];
    bool knows_pointers; /* else the driver would not say */
    size_t group_size;
} opencl_kernel;

/* ---- create ---- */

static atto_status find_parameters(atto_device *dev, opencl_kernel *k)
{
    const cl_kernel handle = k->built->handle;
    ATTO_CL_TRY(dev, GetKernelInfo, handle, CL_KERNEL_NUM_ARGS, sizeof k->parameters,
                &k->parameters, NULL);
    ATTO_REQUIRE(k->parameters <= ATTO_MAX_ARGS, ATTO_E_UNSUPPORTED,
                 "%d parameters, expected at most %d", (int)k->parameters, ATTO_MAX_ARGS);
    k->knows_pointers = true;
    for (cl_uint i = 0; i < k->parameters; i++) {
        cl_kernel_arg_address_qualifier space = CL_KERNEL_ARG_ADDRESS_PRIVATE;
        const cl_int code = atto__cl.GetKernelArgInfo(handle, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER,
                                                      sizeof space, &space, NULL);
        k->knows_pointers = k->knows_pointers && code == CL_SUCCESS;
        k->is_pointer[i] = space != CL_KERNEL_ARG_ADDRESS_PRIVATE;
    }
    return ATTO_OK;
}

/* Work-items of a work-group: what the kernel's attribute says, else the library's own number, or
 * less where the kernel needs too many registers for it. */
static atto_status find_group_size(atto_device *dev, opencl_kernel *k)
{
    const atto__opencl *cl = atto__opencl_of(dev);
    size_t wanted[3] = { 0 }, most = 0;
    ATTO_CL_TRY(dev, GetKernelWorkGroupInfo, k->built->handle, cl->device,
                CL_KERNEL_COMPILE_WORK_GROUP_SIZE, sizeof wanted, wanted, NULL);
    ATTO_CL_TRY(dev, GetKernelWorkGroupInfo, k->built->handle, cl->device,
                CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    ATTO_REQUIRE(wanted[0] == 0 || (wanted[1] == 1 && wanted[2] == 1), ATTO_E_UNSUPPORTED,
                 "its work-groups have more than one dimension");
    k->group_size = wanted[0] ? wanted[0] : cl->group_size;
    while (wanted[0] == 0 && k->group_size > most && k->group_size > 1) k->group_size /= 2;
    return ATTO_OK;
}

static atto_status build(atto_device *dev, const atto_kernel_source *source, opencl_kernel *k)
{
    char *file = atto__format("%s.cl", source->name);
    char *options = atto__format(OPTIONS "%s", source->options);
    atto_status status = ATTO_OK;
    if (!file || !options) status = atto__fail(ATTO_E_MEMORY, "out of host memory");
    if (status == ATTO_OK)
        status = atto__program_build(dev, file, source->text, source->name, options, &k->built);
    atto__free(file);
    atto__free(options);
    ATTO_TRY(status);
    status = find_parameters(dev, k);
    if (status == ATTO_OK) status = find_group_size(dev, k);
    if (status == ATTO_OK) return ATTO_OK;
    atto__program_destroy(k->built);
    return atto__fail_in(status, "%s: ", source->name);
}

atto_status atto__opencl_kernel_create(atto_device *dev, const atto_kernel_source *source,
                                       void **out)
{
    ATTO_REQUIRE(source->text, ATTO_E_NULL, "%s: text is NULL, which OpenCL devices need",
                 source->name);
    opencl_kernel *k = atto__alloc(sizeof *k);
    ATTO_REQUIRE(k, ATTO_E_MEMORY, "out of host memory");
    const atto_status status = build(dev, source, k);
    if (status != ATTO_OK) {
        atto__free(k);
        return status;
    }
    *out = k;
    return ATTO_OK;
}

void atto__opencl_kernel_destroy(atto_device *dev, void *kernel)
{
    (void)dev;
    opencl_kernel *k = kernel;
    atto__program_destroy(k->built);
    atto__free(k);
}

/* ---- launch ---- */

static void bind_one(atto__args *out, const atto_kernel_arg *arg)
{
    switch (arg->kind) {
    case ATTO_KERNEL_IN:
    case ATTO_KERNEL_OUT:
    case ATTO_KERNEL_IN_OUT:
        atto__arg_tensor(out, arg->tensor);
        break;
    case ATTO_KERNEL_I32:
    case ATTO_KERNEL_U32:
        atto__arg_uint(out, arg->u32);
        break;
    case ATTO_KERNEL_I64:
    case ATTO_KERNEL_U64:
        atto__arg_ulong(out, arg->u64);
        break;
    case ATTO_KERNEL_F32:
        atto__arg_float(out, arg->f32);
        break;
    }
}

/* A number where a pointer is due, and the other way round. */
static atto_status check_pointer(const opencl_kernel *k, cl_uint parameter, bool wanted)
{
    ATTO_REQUIRE(
        !k->knows_pointers || k->is_pointer[parameter] == wanted, ATTO_E_ARGUMENT,
        "parameter %d is %s pointer, the arguments want it to be %s (a tensor is a pointer "
        "and a ulong; ulong n comes last)",
        (int)parameter, wanted ? "no" : "a", wanted ? "one" : "a number");
    return ATTO_OK;
}

static atto_status bind_all(const opencl_kernel *k, int64_t n, const atto_kernel_arg *args,
                            int32_t count, atto__args *out)
{
    out->count = 0;
    for (int32_t i = 0; i < count; i++) bind_one(out, &args[i]);
    atto__arg_ulong(out, (uint64_t)n);
    ATTO_REQUIRE(out->count == k->parameters, ATTO_E_ARGUMENT,
                 "the kernel has %d parameters, the arguments make %d (two for each tensor, and n)",
                 (int)k->parameters, (int)out->count);
    cl_uint at = 0;
    for (int32_t i = 0; i < count; i++) {
        const bool is_tensor = args[i].tensor != NULL;
        ATTO_TRY(check_pointer(k, at++, is_tensor));
        if (is_tensor) ATTO_TRY(check_pointer(k, at++, false));
    }
    return check_pointer(k, at, false);
}

atto_status atto__opencl_kernel_launch(atto_device *dev, void *kernel, int64_t n,
                                       const atto_kernel_arg *args, int32_t count)
{
    const opencl_kernel *k = kernel;
    atto__args bound;
    ATTO_TRY(bind_all(k, n, args, count, &bound));
    const size_t groups = (size_t)atto__group_count(n, (int64_t)k->group_size);
    return atto__enqueue(dev, k->built->handle, &bound, groups, k->group_size);
}
