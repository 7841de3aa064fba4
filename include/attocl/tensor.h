/* SPDX-License-Identifier: MIT */
/* Tensors: a borrowed view of a device buffer. Making views costs nothing and moves no data. */
#ifndef ATTOCL_TENSOR_H
#define ATTOCL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <attocl/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTO_MAX_RANK 8

/** Element types. f16 is IEEE binary16, bf16 is bfloat16; both are stored as 16-bit words. */
typedef enum atto_dtype {
#define X(NAME, name, value, bytes) ATTO_##NAME = value,
    ATTO_DTYPE_TABLE(X)
#undef X
} atto_dtype;

/** Bytes per element; 0 for a value that is no dtype. */
ATTO_API size_t atto_dtype_size(atto_dtype dtype);

/** "f32", "f16", ...; "?" for a value that is no dtype. */
ATTO_API const char *atto_dtype_name(atto_dtype dtype);

/** A shape by value: rank sizes, outermost first. Rank 0 is a single element. */
typedef struct atto_shape {
    int32_t rank;
    int64_t dim[ATTO_MAX_RANK];
} atto_shape;

static inline atto_shape atto_shape4(int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    atto_shape s = { 4, { d0, d1, d2, d3, 0, 0, 0, 0 } };
    return s;
}
static inline atto_shape atto_shape3(int64_t d0, int64_t d1, int64_t d2)
{
    atto_shape s = { 3, { d0, d1, d2, 0, 0, 0, 0, 0 } };
    return s;
}
static inline atto_shape atto_shape2(int64_t d0, int64_t d1)
{
    atto_shape s = { 2, { d0, d1, 0, 0, 0, 0, 0, 0 } };
    return s;
}
static inline atto_shape atto_shape1(int64_t d0)
{
    atto_shape s = { 1, { d0, 0, 0, 0, 0, 0, 0, 0 } };
    return s;
}
static inline atto_shape atto_shape0(void)
{
    atto_shape s = { 0, { 0, 0, 0, 0, 0, 0, 0, 0 } };
    return s;
}

/** Shape of any rank up to ATTO_MAX_RANK; a larger or negative rank is refused where it is used. */
ATTO_API atto_shape atto_shape_of(int32_t rank, const int64_t *dims);

typedef struct atto_device atto_device;
typedef struct atto_buffer atto_buffer;

/**
 * A view: element (i0, i1, ...) lives at element offset + i0*stride[0] + i1*stride[1] + ... of the
 * buffer. Plain data: copy it, change it, put it on the stack. It borrows its buffer; only
 * atto_tensor_alloc, atto_tensor_retain and atto_tensor_free touch the reference count.
 *
 *   shape   >= 0; a tensor with a 0 in its shape is empty and may have a NULL buffer
 *   stride  >= 0, in elements; 0 (broadcast) is allowed for inputs only
 *   offset  >= 0, in elements
 */
typedef struct atto_tensor {
    atto_buffer *buffer;
    atto_dtype dtype;
    int32_t rank;
    int64_t shape[ATTO_MAX_RANK];
    int64_t stride[ATTO_MAX_RANK];
    int64_t offset;
} atto_tensor;

/**
 * A new dense row-major tensor on dev, with memory from the device's pool. Contents are undefined.
 *
 * @param out  the tensor; zeroed on failure. Release it with atto_tensor_free
 * Returns     ATTO_E_NULL, ATTO_E_DTYPE, ATTO_E_SHAPE (rank or a size out of range, or more bytes
 *             than 2^63), ATTO_E_MEMORY
 */
ATTO_API atto_status atto_tensor_alloc(atto_device *dev, atto_dtype dtype, atto_shape shape,
                                       atto_tensor *out);

/**
 * A dense row-major tensor on the caller's host memory, without a copy: on the CPU backend, and
 * through OpenCL on CPUs and integrated GPUs, which share the host's memory. There results stand in
 * data while the tensor is mapped (atto_tensor_map), and what the host changes outside of that may
 * not be seen; some drivers copy all the same unless data and its size are multiples of a page.
 *
 * @param data     numel elements, aligned to their size; NULL for an empty tensor
 * @param release  called once with user and data when the last tensor of the buffer is freed and
 *                 the device is done with it, on that thread; NULL if nobody wants to know. Not
 *                 called when this call fails
 * @param out      the tensor; zeroed on failure. Release it with atto_tensor_free
 * Returns         ATTO_E_NULL, ATTO_E_DTYPE, ATTO_E_SHAPE, ATTO_E_ARGUMENT (data is not aligned),
 *                 ATTO_E_UNSUPPORTED (the device has memory of its own: atto_tensor_write copies),
 *                 ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST
 */
ATTO_API atto_status atto_tensor_wrap(atto_device *dev, void *data, atto_dtype dtype,
                                      atto_shape shape, void (*release)(void *user, void *data),
                                      void *user, atto_tensor *out);

/** Takes one more reference to the tensor's buffer. NULL and empty tensors are fine. */
ATTO_API void atto_tensor_retain(const atto_tensor *t);

/** Drops one reference to the buffer and zeroes *t. NULL and zeroed tensors are fine. Work that is
 * already enqueued on the buffer still runs as if it were there. */
ATTO_API void atto_tensor_free(atto_tensor *t);

/** Number of elements: the product of the shape, 1 for rank 0; INT64_MAX if it is larger. */
ATTO_API int64_t atto_tensor_numel(const atto_tensor *t);

/** Device that owns the tensor's buffer; NULL without a buffer. */
ATTO_API atto_device *atto_tensor_device(const atto_tensor *t);

/** Dense row-major view over a buffer, starting at element offset. Checked when it is used. */
ATTO_API atto_tensor atto_tensor_of(atto_buffer *buffer, atto_dtype dtype, atto_shape shape,
                                    int64_t offset);

/**
 * Views of a view. dim may be negative (-1 is the last). out may be t itself.
 *
 *   slice      elements start, start + step, ... before end of one dimension;
 *              0 <= start <= end <= size, step >= 1
 *   permute    dimension i of the result is dimension order[i] of t
 *   transpose  swaps two dimensions
 *   expand     size-1 dimensions repeat (stride 0); missing leading dimensions are added
 *   reshape    same elements in row-major order; ATTO_E_STRIDE if that needs a copy
 *
 * Returns ATTO_E_NULL, ATTO_E_ARGUMENT (dim, range or step), ATTO_E_SHAPE
 */
ATTO_API atto_status atto_tensor_slice(const atto_tensor *t, int32_t dim, int64_t start,
                                       int64_t end, int64_t step, atto_tensor *out);
ATTO_API atto_status atto_tensor_permute(const atto_tensor *t, const int32_t *order,
                                         atto_tensor *out);
ATTO_API atto_status atto_tensor_transpose(const atto_tensor *t, int32_t dim0, int32_t dim1,
                                           atto_tensor *out);
ATTO_API atto_status atto_tensor_expand(const atto_tensor *t, atto_shape shape, atto_tensor *out);
ATTO_API atto_status atto_tensor_reshape(const atto_tensor *t, atto_shape shape, atto_tensor *out);

/**
 * Host to device: data is dense, row-major, of the tensor's dtype, numel elements. It has been read
 * when the call returns. Up to 4 MiB the call does not wait for the device.
 *
 * Returns ATTO_E_NULL, ATTO_E_SHAPE, ATTO_E_DTYPE, ATTO_E_STRIDE (t overlaps itself), ATTO_E_STATE
 * (mapped), ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST
 */
ATTO_API atto_status atto_tensor_write(const atto_tensor *t, const void *data);

/**
 * Device to host, same layout of data; waits for the device. Reports data errors of earlier calls
 * as ATTO_E_INDEX (once); the data has then been read all the same.
 */
ATTO_API atto_status atto_tensor_read(const atto_tensor *t, void *data);

/** Sets every element to value, converted as atto_tensor_copy does. Not for stride 0.
 *
 * Returns as atto_tensor_write, and ATTO_E_BUILD if its kernel cannot be built (fills and copies do
 * not fall back to the CPU). */
ATTO_API atto_status atto_tensor_fill(const atto_tensor *t, double value);

/**
 * dst = src, converted to dst's dtype, from any strides to any strides, also between devices (that
 * waits). src may broadcast (stride 0); the shapes must be equal. dst and src must not overlap,
 * unless they are the same view.
 *
 * Conversions: to f16 and bf16 round to nearest even; to integers truncate towards zero, saturate
 * at the ends of the range, NaN becomes 0; integers to floats round once, to nearest even.
 *
 * Returns ATTO_E_NULL, ATTO_E_SHAPE, ATTO_E_DTYPE, ATTO_E_STRIDE (dst overlaps itself),
 *         ATTO_E_ALIAS, ATTO_E_STATE, ATTO_E_MEMORY, ATTO_E_BUILD, ATTO_E_BACKEND, ATTO_E_LOST
 */
ATTO_API atto_status atto_tensor_copy(const atto_tensor *dst, const atto_tensor *src);

/** What the host does with a mapped tensor. */
typedef enum atto_map_mode {
    ATTO_MAP_READ = 1,
    ATTO_MAP_WRITE = 2, /**< every element of the view; what was there is lost */
    ATTO_MAP_READ_WRITE = 3
} atto_map_mode;

/**
 * Shows a tensor to the host without a copy where the device shares the host's memory (CPU backend,
 * CPUs and integrated GPUs through OpenCL); elsewhere the driver copies, and atto_tensor_read and
 * _write are as good. Waits for what is enqueued; data errors wait for atto_device_sync.
 *
 * Until atto_tensor_unmap every other use of any tensor of that buffer is ATTO_E_STATE, a second
 * mapping too. Freeing the tensor keeps the buffer alive until then; keep a copy of the view to end
 * the mapping with.
 *
 * @param data  out  element (0, 0, ...) of the view; walk it by t's strides. NULL for an empty
 *                   tensor
 * Returns      ATTO_E_NULL, ATTO_E_ARGUMENT (mode), ATTO_E_STATE, ATTO_E_SHAPE, ATTO_E_DTYPE,
 *              ATTO_E_STRIDE (a view to be written overlaps itself), ATTO_E_MEMORY, ATTO_E_BACKEND,
 *              ATTO_E_LOST
 */
ATTO_API atto_status atto_tensor_map(const atto_tensor *t, atto_map_mode mode, void **data);

/** Ends the mapping of t's buffer; what was written reaches the device before the next call on it.
 * Returns ATTO_E_NULL, ATTO_E_STATE (not mapped), ATTO_E_BACKEND, ATTO_E_LOST. */
ATTO_API atto_status atto_tensor_unmap(const atto_tensor *t);

#ifdef __cplusplus
}
#endif

#endif
