/* SPDX-License-Identifier: MIT */
/* What a backend is: a table of functions. One row here and one folder make a new backend.
 *
 * The functions below may assume what `atto__run` (run.c) and tensor.c have checked: nothing is
 * NULL that a slot reads, every view lies inside its buffer, every buffer belongs to dev, shapes
 * and dtypes are legal, outputs do not overlap, and nothing is empty. They enqueue and return; only
 * read, sync and event_elapsed wait. One thread uses a device at a time. */
#ifndef ATTO_BACKEND_H
#define ATTO_BACKEND_H

#include <attocl.h>

struct atto__options;
struct atto__optim_args; /* optim.h */

#define ATTO_MERGED_RANK 4

/* How to walk the tensors of one elementwise call. run.c drops size-1 dimensions, sorts dimensions
 * by the strides of the first output and merges neighbours wherever all tensors allow it. The
 * tensors that a slot receives have exactly this rank and shape, and strides to match. */
typedef struct atto__layout {
    int32_t rank; /* 0 (one element) .. ATTO_MERGED_RANK */
    int64_t shape[ATTO_MERGED_RANK];
    int64_t index_stride[ATTO_MERGED_RANK]; /* logical row-major index, which random numbers use */
    int64_t numel;
    int64_t folded; /* reductions: elements of the full tensor behind one of the reduced; losses:
                       what their sum is divided by */
    bool dense;     /* rank <= 1, every stride 1, logical index = position */
    bool wide; /* an offset relative to a view's start, or an index, reaches 2^31 (or forced) */
    bool channels_last; /* CHANNELS, IMAGES, FILTERED: channels are innermost, else the last
                           dimension; of the rest only wide is set */
} atto__layout;

/* Two for each tensor of a user's kernel, and n. */
#define ATTO_MAX_PARAMETERS (2 * ATTO_KERNEL_MAX_ARGS + 1)

/* The parameters of a user's kernel, as its compiler knows them. */
typedef struct atto__signature {
    int32_t count;    /* -1: a C function, which takes what it gets */
    bool knows_types; /* else only the count is known */
    /* ATTO_KERNEL_IN_OUT for a pointer, else the kind of number. */
    atto_kernel_arg_kind types[ATTO_MAX_PARAMETERS];
} atto__signature;

typedef struct atto__vtable {
    /* "cpu", "opencl": what logs and tests print. */
    const char *name;

    /* Waits for what is in flight and releases everything that open made. No memory is held any
     * more. */
    void (*close)(atto_device *dev);

    /* Memory: a new block of bytes > 0, contents undefined; on drivers that would fail only at
     * first use, used once (committed). *out is the
     * handle that buffers carry: a pointer on the CPU, a cl_mem on OpenCL. ATTO_E_MEMORY without
     * side effects when there is none. */
    atto_status (*alloc)(atto_device *dev, size_t bytes, void **out);
    void (*release)(atto_device *dev, void *memory);

    /* Host memory as a block, until unwrap: without a copy, or ATTO_E_UNSUPPORTED where the device
     * has memory of its own. unwrap waits for what is enqueued. */
    atto_status (*wrap)(atto_device *dev, void *data, size_t bytes, void **out);
    void (*unwrap)(atto_device *dev, void *memory);

    /* Bytes in and out of a block. write has read data when it returns and does not wait for the
     * device up to 4 MiB; read waits. */
    atto_status (*write)(atto_device *dev, void *memory, size_t offset_bytes, const void *data,
                         size_t bytes);
    atto_status (*read)(atto_device *dev, void *memory, size_t offset_bytes, void *data,
                        size_t bytes);

    /* A 32-bit word of device memory without waiting: *word is what the last read that has come
     * back brought (0 when none has), and another read may start. The same block at every call. word
     * NULL: what is under way is forgotten. */
    atto_status (*poll)(atto_device *dev, void *memory, uint32_t *word);

    /* Shows a block's bytes to the host, when everything enqueued has run, until unmap takes the
     * same pointer. ATTO_MAP_WRITE: all of them will be written. */
    atto_status (*map)(atto_device *dev, void *memory, size_t offset_bytes, size_t bytes,
                       atto_map_mode mode, void **out);
    atto_status (*unmap)(atto_device *dev, void *memory, void *mapped);

    /* Waits for everything enqueued. */
    atto_status (*sync)(atto_device *dev);

    /* dst = src with conversion; src may have stride 0. The two have the layout's shape. */
    atto_status (*copy)(atto_device *dev, const atto_tensor *dst, const atto_tensor *src,
                        const atto__layout *layout);

    /* Every element = the dtype-sized bit pattern in the low bytes of bits. */
    atto_status (*fill)(atto_device *dev, const atto_tensor *dst, uint64_t bits,
                        const atto__layout *layout);

    /* Kernels of the user's. create builds from a source, asks for the part that this backend
     * needs, and tells what parameters the kernel has; *out is the backend's own. launch gets
     * arguments that fit them, with the tensors' final views, and n > 0. */
    atto_status (*kernel_create)(atto_device *dev, const atto_kernel_source *source, void **out,
                                 atto__signature *signature);
    void (*kernel_destroy)(atto_device *dev, void *kernel);
    atto_status (*launch)(atto_device *dev, void *kernel, int64_t n, const atto_kernel_arg *args,
                          int32_t count);

    /* Optimisers (optim.h, cl/atto_optim.h). norm writes a chunk's partials; begin, once a step,
     * reads those of all chunks and writes coefficients, steps and control; step updates a
     * chunk, and its shadow. */
    atto_status (*optim_norm)(atto_device *dev, const struct atto__optim_args *a);
    atto_status (*optim_begin)(atto_device *dev, const struct atto__optim_args *a);
    atto_status (*optim_step)(atto_device *dev, const struct atto__optim_args *a);

    /* Time stamps on the device; *out is the backend's own. */
    atto_status (*event_record)(atto_device *dev, void **out);
    atto_status (*event_elapsed)(atto_device *dev, void *start, void *end, double *out_ms);
    void (*event_destroy)(atto_device *dev, void *event);

    /* Whether the op would run here on this dtype; may build a kernel. */
    bool (*supports)(atto_device *dev, atto_op op, atto_dtype dtype);

    /* The ops. layout is NULL unless the op table says ELEMENTWISE, BROADCAST, CHANNELS, IMAGES or
     * FILTERED.
     * ATTO_E_BUILD (the kernel cannot be built) makes run.c fall back to the CPU; any other failure
     * is the call's result. */
#define X(op, OP, layout, autocast, in_place, random, data_errors)               \
    atto_status (*op##_forward)(atto_device *, const struct atto_##op##_args *,  \
                                const atto__layout *);                           \
    atto_status (*op##_backward)(atto_device *, const struct atto_##op##_args *, \
                                 const atto__layout *);
    ATTO_OP_TABLE(X)
#undef X
} atto__vtable;

/* One backend. */
typedef struct atto__backend {
    const char *name;

    /* Fills up to capacity infos, best device first, and counts all; info.problem says why a device
     * cannot be used. No driver is *count = 0 and ATTO_OK. info.index is the backend's own here;
     * device.c renumbers. */
    atto_status (*list)(const struct atto__options *options, atto_device_info *infos,
                        int32_t capacity, int32_t *count);

    /* Opens the backend's device number local_index. dev comes zeroed except for options and info;
     * open sets vt and impl, and may correct info. It must have run a probe: a device that computes
     * wrong numbers is ATTO_E_DEVICE. On failure everything is undone. */
    atto_status (*open)(atto_device *dev, int32_t local_index);
} atto__backend;

/* X(name): src/backend_<name>/ defines atto__<name>_backend. */
#if ATTO_WITH_OPENCL
#define ATTO_BACKEND_TABLE(X) X(opencl) X(cpu)
#else
#define ATTO_BACKEND_TABLE(X) X(cpu)
#endif

#define X(name) extern const atto__backend atto__##name##_backend;
ATTO_BACKEND_TABLE(X)
#undef X

#endif
