/* SPDX-License-Identifier: MIT */
/* Kernels of the user's through OpenCL: built from text. What drivers crash on (images, structs,
 * too much local memory) is refused before it is launched. */
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "launch.h"

/* A kernel knows its parameters only if it was built with this. */
#define WITH_TYPES " -cl-kernel-arg-info "

typedef struct opencl_kernel {
    atto__kernel *built;
    size_t group_size;
} opencl_kernel;

/* ---- parameters ---- */

#define CL_TYPE_I32 "int"
#define CL_TYPE_U32 "uint"
#define CL_TYPE_I64 "long"
#define CL_TYPE_U64 "ulong"
#define CL_TYPE_F32 "float"

/* The kind of a number by its type's name; false for a name that no number here has. */
static bool number_of(const char *name, atto_kernel_arg_kind *out)
{
#define X(NAME, number, type)                \
    if (strcmp(name, CL_TYPE_##NAME) == 0) { \
        *out = ATTO_KERNEL_##NAME;           \
        return true;                         \
    }
    ATTO_KERNEL_NUMBER_TABLE(X)
#undef X
    return false;
}

/* What the driver says of parameter i; CL_KERNEL_ARG_INFO_NOT_AVAILABLE where it does not know. */
typedef struct parameter {
    cl_kernel_arg_address_qualifier space;
    cl_kernel_arg_access_qualifier access;
    char type[64];
} parameter;

static cl_int ask(cl_kernel handle, cl_uint i, parameter *p)
{
    cl_int code = atto__cl.GetKernelArgInfo(handle, i, CL_KERNEL_ARG_ADDRESS_QUALIFIER,
                                            sizeof p->space, &p->space, NULL);
    if (code == CL_SUCCESS)
        code = atto__cl.GetKernelArgInfo(handle, i, CL_KERNEL_ARG_ACCESS_QUALIFIER,
                                         sizeof p->access, &p->access, NULL);
    snprintf(p->type, sizeof p->type, "a type with a long name");
    if (code == CL_SUCCESS &&
        atto__cl.GetKernelArgInfo(handle, i, CL_KERNEL_ARG_TYPE_NAME, sizeof p->type, p->type,
                                  NULL) == CL_INVALID_VALUE)
        snprintf(p->type, sizeof p->type, "a type with a long name");
    return code;
}

static atto_status find_type(cl_kernel handle, cl_uint i, atto__signature *s)
{
    parameter p;
    if (ask(handle, i, &p) != CL_SUCCESS) {
        s->knows_types = false;
        return ATTO_OK;
    }
    const bool is_image = p.access != CL_KERNEL_ARG_ACCESS_NONE;
    ATTO_REQUIRE(!is_image, ATTO_E_UNSUPPORTED, "parameter %d is an image or a pipe (%s)", (int)i,
                 p.type);
    ATTO_REQUIRE(p.space != CL_KERNEL_ARG_ADDRESS_LOCAL, ATTO_E_UNSUPPORTED,
                 "parameter %d is in local memory; declare local arrays inside the kernel", (int)i);
    if (p.space != CL_KERNEL_ARG_ADDRESS_PRIVATE) {
        s->types[i] = ATTO_KERNEL_IN_OUT;
        return ATTO_OK;
    }
    ATTO_REQUIRE(number_of(p.type, &s->types[i]), ATTO_E_UNSUPPORTED,
                 "parameter %d is %s, expected int, uint, long, ulong or float under that name",
                 (int)i, p.type);
    return ATTO_OK;
}

static atto_status find_signature(atto_device *dev, const opencl_kernel *k, atto__signature *s)
{
    const cl_kernel handle = k->built->handle;
    cl_uint count = 0;
    ATTO_CL_TRY(dev, GetKernelInfo, handle, CL_KERNEL_NUM_ARGS, sizeof count, &count, NULL);
    ATTO_REQUIRE(count <= ATTO_MAX_PARAMETERS, ATTO_E_UNSUPPORTED,
                 "%u parameters, expected at most %d", (unsigned)count, ATTO_MAX_PARAMETERS);
    s->count = (int32_t)count;
    s->knows_types = true;
    for (cl_uint i = 0; i < count && s->knows_types; i++) ATTO_TRY(find_type(handle, i, s));
    return ATTO_OK;
}

/* ---- work-groups ---- */

/* Drivers that do not check what a kernel declares end the process; NVIDIA's takes more than it
 * says it has. */
static atto_status check_local_memory(atto_device *dev, const opencl_kernel *k)
{
    const atto__opencl *cl = atto__opencl_of(dev);
    cl_ulong bytes = 0;
    ATTO_CL_TRY(dev, GetKernelWorkGroupInfo, k->built->handle, cl->device, CL_KERNEL_LOCAL_MEM_SIZE,
                sizeof bytes, &bytes, NULL);
    ATTO_REQUIRE(cl->nvidia || bytes <= dev->info.local_bytes, ATTO_E_UNSUPPORTED,
                 "it declares %llu bytes of local memory, the device has %llu",
                 (unsigned long long)bytes, (unsigned long long)dev->info.local_bytes);
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
    if (most > (size_t)dev->info.max_work_group) most = (size_t)dev->info.max_work_group;
    ATTO_REQUIRE(wanted[0] == 0 || (wanted[1] == 1 && wanted[2] == 1), ATTO_E_UNSUPPORTED,
                 "its work-groups have more than one dimension");
    ATTO_REQUIRE(wanted[0] <= most, ATTO_E_UNSUPPORTED,
                 "its work-groups have %zu work-items, the device takes %zu", wanted[0], most);
    k->group_size = wanted[0] ? wanted[0] : cl->group_size;
    while (k->group_size > most && k->group_size > 1) k->group_size /= 2;
    return ATTO_OK;
}

/* ---- create and destroy ---- */

/* The compiler reads files that the cache knows nothing of. */
static bool reads_other_files(const atto_kernel_source *source)
{
    const char *include = strstr(source->text, "include");
    for (; include; include = strstr(include + 1, "include"))
        if (include[7 + strspn(include + 7, " \t")] == '<') return true;
    return strstr(source->options, "-I") || strstr(source->options, "-include");
}

static atto_status build_text(atto_device *dev, const atto_kernel_source *source, bool use_cache,
                              atto__kernel **out)
{
    char *file = atto__format("%s.cl", source->name);
    char *options = atto__format(WITH_TYPES "%s", source->options);
    atto_status status = ATTO_OK;
    if (!file || !options) status = atto__fail(ATTO_E_MEMORY, "out of host memory");
    if (status == ATTO_OK)
        status =
            atto__program_build(dev, file, source->text, source->name, options, use_cache, out);
    atto__free(file);
    atto__free(options);
    return status;
}

/* Some drivers forget the types of a program that comes from the cache. */
static atto_status build_typed(atto_device *dev, const atto_kernel_source *source, opencl_kernel *k,
                               atto__signature *signature)
{
    for (int32_t use_cache = !reads_other_files(source); use_cache >= 0; use_cache--) {
        atto__program_destroy(k->built);
        k->built = NULL;
        ATTO_TRY(build_text(dev, source, use_cache, &k->built));
        const atto_status status = find_signature(dev, k, signature);
        if (status != ATTO_OK) return atto__fail_in(status, "%s: ", source->name);
        if (signature->knows_types) break;
    }
    return ATTO_OK;
}

static atto_status build(atto_device *dev, const atto_kernel_source *source, opencl_kernel *k,
                         atto__signature *signature)
{
    ATTO_TRY(build_typed(dev, source, k, signature));
    atto_status status = check_local_memory(dev, k);
    if (status == ATTO_OK) status = find_group_size(dev, k);
    return status == ATTO_OK ? ATTO_OK : atto__fail_in(status, "%s: ", source->name);
}

/* PoCL's option parser reads beyond the end of the text. */
static bool ends_in_a_bare_flag(const char *options)
{
    size_t length = strlen(options);
    while (length > 0 && options[length - 1] == ' ') length--;
    return length >= 2 && options[length - 2] == '-' && strchr("DI", options[length - 1]) &&
           (length == 2 || options[length - 3] == ' ');
}

atto_status atto__opencl_kernel_create(atto_device *dev, const atto_kernel_source *source,
                                       void **out, atto__signature *signature)
{
    ATTO_REQUIRE(source->text, ATTO_E_NULL, "%s: text is NULL, which OpenCL devices need",
                 source->name);
    ATTO_REQUIRE(!ends_in_a_bare_flag(source->options), ATTO_E_ARGUMENT,
                 "%s: the options \"%s\" end in a flag without its value", source->name,
                 source->options);
    opencl_kernel *k = atto__alloc(sizeof *k);
    ATTO_REQUIRE(k, ATTO_E_MEMORY, "out of host memory");
    const atto_status status = build(dev, source, k, signature);
    if (status != ATTO_OK) {
        atto__opencl_kernel_destroy(dev, k);
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

atto_status atto__opencl_kernel_launch(atto_device *dev, void *kernel, int64_t n,
                                       const atto_kernel_arg *args, int32_t count)
{
    const opencl_kernel *k = kernel;
    atto__args bound;
    bound.count = 0;
    for (int32_t i = 0; i < count; i++) bind_one(&bound, &args[i]);
    atto__arg_ulong(&bound, (uint64_t)n);
    const int64_t groups = atto__group_count(n, (int64_t)k->group_size);
    return atto__enqueue(dev, k->built->handle, &bound, groups, k->group_size);
}
