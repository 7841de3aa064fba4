/* SPDX-License-Identifier: MIT */
/* Kernels of your own, on every device: OpenCL C for OpenCL devices, a C function for the CPU
 * backend. docs/custom-kernels.md has a whole program. */
#ifndef ATTOCL_KERNEL_H
#define ATTOCL_KERNEL_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/** X(NAME, name, type): numbers that a kernel can take; in OpenCL C int, uint, long, ulong, float. */
/* clang-format off */
#define ATTO_KERNEL_NUMBER_TABLE(X) \
    X(I32, i32, int32_t)            \
    X(U32, u32, uint32_t)           \
    X(I64, i64, int64_t)            \
    X(U64, u64, uint64_t)           \
    X(F32, f32, float)
/* clang-format on */

/** What an argument is. 0 is none, so that a zeroed one is refused. */
typedef enum atto_kernel_arg_kind {
    ATTO_KERNEL_IN = 1, /**< a tensor that is read */
    ATTO_KERNEL_OUT,    /**< a tensor that is written: what is not written is undefined */
    ATTO_KERNEL_IN_OUT, /**< a tensor that is read and written */
#define X(NAME, name, type) ATTO_KERNEL_##NAME,
    ATTO_KERNEL_NUMBER_TABLE(X)
#undef X
} atto_kernel_arg_kind;

/** One argument; make it with the functions below. */
typedef struct atto_kernel_arg {
    atto_kernel_arg_kind kind;
    const atto_tensor *tensor; /**< the C function gets the view that its data belongs to */
    void *data;                /**< for the C function: the tensor's first element */
    union {
#define X(NAME, name, type) type name;
        ATTO_KERNEL_NUMBER_TABLE(X)
#undef X
    };
} atto_kernel_arg;

static inline atto_kernel_arg atto_kernel_tensor_arg(atto_kernel_arg_kind kind,
                                                     const atto_tensor *t)
{
    atto_kernel_arg arg;
    arg.kind = kind;
    arg.tensor = t;
    arg.data = NULL;
    arg.u64 = 0;
    return arg;
}
static inline atto_kernel_arg atto_kernel_in(const atto_tensor *t)
{
    return atto_kernel_tensor_arg(ATTO_KERNEL_IN, t);
}
static inline atto_kernel_arg atto_kernel_out(const atto_tensor *t)
{
    return atto_kernel_tensor_arg(ATTO_KERNEL_OUT, t);
}
static inline atto_kernel_arg atto_kernel_in_out(const atto_tensor *t)
{
    return atto_kernel_tensor_arg(ATTO_KERNEL_IN_OUT, t);
}
/* atto_kernel_i32(value), atto_kernel_f32(value), ... */
#define X(NAME, name, type)                                                                 \
    static inline atto_kernel_arg atto_kernel_##name(type value)                            \
    {                                                                                       \
        atto_kernel_arg arg = atto_kernel_tensor_arg(ATTO_KERNEL_##NAME, (atto_tensor *)0); \
        arg.name = value;                                                                   \
        return arg;                                                                         \
    }
ATTO_KERNEL_NUMBER_TABLE(X)
#undef X

/**
 * The kernel for the CPU backend: does items begin to end - 1. Several threads call it at once with
 * different ranges; where the ranges are cut depends on n and the source's grain alone. It calls
 * nothing of the library on its device (ATTO_E_STATE), and keeps no pointer from args: a tensor
 * there may be a packed copy that lives for this launch.
 */
typedef void (*atto_kernel_fn)(const atto_kernel_arg *args, int64_t begin, int64_t end);

/** What a kernel is made of. Zero what is not needed. */
typedef struct atto_kernel_source {
    const char *name; /**< of the __kernel function: an identifier of at most 63 characters */

    /**
     * OpenCL C 1.2, needed on OpenCL devices. For each tensor argument the kernel has two
     * parameters, a pointer to its buffer (`__global const float *x`; ushort for f16 and bf16) and
     * the position of its first element (`ulong x_at`); for each number one; and last `ulong n`.
     * Work-item get_global_id(0) does item of that number; their count is rounded up to whole
     * work-groups, so a kernel returns where it reaches n. Work-groups have get_local_size(0)
     * work-items: ATTO_WG, or fewer for a kernel that needs many registers, or what its
     * reqd_work_group_size says. `#include "atto_math.h"` (activations and their derivatives) and
     * `"atto_kernel.h"` (storage types) are at hand, at the top and unconditionally.
     */
    const char *text;
    const char *options; /**< for the compiler: "-DROWS=4 -cl-mad-enable"; NULL for none. -DATTO_WG
                              belongs to the library */

    atto_kernel_fn cpu; /**< needed on the CPU backend */
    int64_t grain;      /**< items of one call of cpu; 0 = 1024. Small for items that take long */

    bool strided;  /**< the kernel walks tensors by their strides, which it gets as numbers. Without
                        this it sees dense row-major tensors only: others are packed for it, counted
                        in hidden_copies */
    bool in_place; /**< an output may be exactly the same view as an input */
    uint64_t reserved[4]; /**< must be 0 */
} atto_kernel_source;

typedef struct atto_kernel atto_kernel;

#define ATTO_KERNEL_MAX_ARGS 24

/**
 * Builds a kernel for dev: the text on OpenCL devices, where it never falls back to the C function,
 * which the CPU backend takes. Built binaries go to the same cache as the library's own, unless the
 * text includes files in angle brackets or options have -I. The source may go away afterwards.
 *
 * @param out  the kernel, NULL on failure; give it back with atto_kernel_destroy
 * Returns     ATTO_E_NULL (dev, source, out, name, or the text or function that this device needs),
 *             ATTO_E_ARGUMENT (name, grain, options, reserved), ATTO_E_BUILD (the compiler's log in
 *             the message up to 16 KiB, whole in the log callback; lines counted as in text),
 *             ATTO_E_UNSUPPORTED (a parameter that is no buffer and no number of the table, more
 *             than 49 of them, work-groups of more than one dimension or too large for the device,
 *             too much local memory), ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST
 */
ATTO_API atto_status atto_kernel_create(atto_device *dev, const atto_kernel_source *source,
                                        atto_kernel **out);

/** NULL is fine. What was launched still runs. */
ATTO_API void atto_kernel_destroy(atto_kernel *kernel);

/**
 * Enqueues items 0 to n - 1. Tensors are checked as those of an op: inside their buffers, of this
 * device, outputs distinct and without overlap. What the kernel does with them is its own matter: a
 * wrong index corrupts memory as in any C program.
 *
 * @param n      0 does nothing
 * @param args   count of them, in the kernel's order; may be NULL when count is 0
 * Returns       what every op returns (device.h), and ATTO_E_ARGUMENT (n, count, a kind that is
 *               none; on OpenCL devices parameters of other number or types than the arguments). On
 *               a driver that does not tell types only their number is compared
 */
ATTO_API atto_status atto_kernel_launch(atto_kernel *kernel, int64_t n, const atto_kernel_arg *args,
                                        int32_t count);

#ifdef __cplusplus
}
#endif

#endif
