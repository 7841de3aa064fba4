/* SPDX-License-Identifier: MIT */
/* Tensors: making, viewing, filling, copying, and their way to and from the host. */
#include <attocl/tensor.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "alloc.h"
#include "cl/atto_math.h"
#include "layout.h"
#include "tensor.h"

size_t atto_dtype_size(atto_dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, value, bytes) \
    case ATTO_##NAME:               \
        return bytes;
        ATTO_DTYPE_TABLE(X)
#undef X
    }
    return 0;
}

const char *atto_dtype_name(atto_dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, value, bytes) \
    case ATTO_##NAME:               \
        return #name;
        ATTO_DTYPE_TABLE(X)
#undef X
    }
    return "?";
}

atto_shape atto_shape_of(int32_t rank, const int64_t *dims)
{
    atto_shape shape = { rank, { 0 } };
    if (!dims && rank > 0) shape.rank = -1; /* refused where it is used */
    for (int32_t d = 0; d < shape.rank && d < ATTO_MAX_RANK; d++) shape.dim[d] = dims[d];
    return shape;
}

int64_t atto_tensor_numel(const atto_tensor *t)
{
    if (!t) return 0;
    int64_t numel = 1;
    bool fits = true;
    for (int32_t d = 0; d < t->rank && d < ATTO_MAX_RANK; d++) {
        const int64_t size = t->shape[d];
        if (size == 0) return 0;
        fits = fits && numel <= INT64_MAX / size;
        if (fits) numel *= size;
    }
    return fits ? numel : INT64_MAX;
}

atto_device *atto_tensor_device(const atto_tensor *t)
{
    return t && t->buffer ? t->buffer->dev : NULL;
}

atto_tensor atto_tensor_of(atto_buffer *buffer, atto_dtype dtype, atto_shape shape, int64_t offset)
{
    atto_tensor t = { buffer, dtype, shape.rank, { 0 }, { 0 }, offset };
    int64_t stride = 1;
    for (int32_t d = (shape.rank < ATTO_MAX_RANK ? shape.rank : ATTO_MAX_RANK) - 1; d >= 0; d--) {
        t.shape[d] = shape.dim[d];
        t.stride[d] = stride;
        /* An illegal size is reported where the tensor is used; here it must only not overflow. */
        if (shape.dim[d] > 1)
            stride = stride > INT64_MAX / shape.dim[d] ? INT64_MAX : stride * shape.dim[d];
    }
    return t;
}

/* ---- memory ---- */

/* The buffer of a block, which becomes its own; on failure the block is the caller's. */
static atto_status new_buffer(atto_device *dev, atto__block *block, size_t bytes, atto_buffer **out)
{
    atto_buffer *buffer = atto__alloc(sizeof *buffer);
    ATTO_REQUIRE(buffer, ATTO_E_MEMORY, "out of host memory for a %zu-byte record", sizeof *buffer);
    buffer->dev = dev;
    buffer->block = block;
    buffer->bytes = bytes;
    atomic_init(&buffer->references, 1);
    atto__device_retain(dev);
    dev->stats.buffers_live++;
    dev->stats.bytes_live += bytes;
    *out = buffer;
    return ATTO_OK;
}

static atto_status pooled_buffer(atto_device *dev, size_t bytes, atto_buffer **out)
{
    atto__block *block;
    ATTO_TRY(atto__pool_take(dev, bytes, &block));
    const atto_status status = new_buffer(dev, block, bytes, out);
    if (status != ATTO_OK) atto__pool_give(dev, block);
    return status;
}

/* Whether there can be a tensor t on dev; zeroes *out, where it is to go. */
static atto_status check_new(const char *call, const atto_device *dev, const atto_tensor *t,
                             atto_tensor *out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "%s: out is NULL", call);
    memset(out, 0, sizeof *out);
    ATTO_REQUIRE(dev, ATTO_E_NULL, "%s: dev is NULL", call);
    ATTO_TRY(atto__device_check(dev));
    return atto__shape_check(t, call);
}

atto_status atto_tensor_alloc(atto_device *dev, atto_dtype dtype, atto_shape shape,
                              atto_tensor *out)
{
    atto_tensor t = atto_tensor_of(NULL, dtype, shape, 0);
    ATTO_TRY(check_new("tensor_alloc", dev, &t, out));
    const int64_t numel = atto_tensor_numel(&t);
    if (numel > 0) {
        ATTO_REQUIRE((uint64_t)numel <= SIZE_MAX / atto_dtype_size(dtype), ATTO_E_MEMORY,
                     "tensor_alloc: %" PRId64 " elements do not fit the address space", numel);
        const atto_status status =
            pooled_buffer(dev, (size_t)numel * atto_dtype_size(dtype), &t.buffer);
        if (status != ATTO_OK) return atto__fail_in(status, "tensor_alloc: ");
    }
    *out = t;
    return ATTO_OK;
}

/* ---- memory of others ---- */

atto_status atto__buffer_adopt(atto_device *dev, void *memory, size_t bytes,
                               const atto__foreign *foreign, atto_buffer **out)
{
    atto__block *block;
    ATTO_TRY(atto__pool_adopt(memory, bytes, foreign, &block));
    const atto_status status = new_buffer(dev, block, bytes, out);
    if (status != ATTO_OK) atto__free(block);
    return status;
}

atto_status atto__buffer_wrap(atto_device *dev, void *data, size_t bytes,
                              void (*release)(void *user, void *data), void *user,
                              atto_buffer **out)
{
    void *memory;
    ATTO_TRY(dev->vt->wrap(dev, data, bytes, &memory));
    const atto__foreign foreign = { dev->vt->unwrap, release, user, data };
    const atto_status status = atto__buffer_adopt(dev, memory, bytes, &foreign, out);
    if (status != ATTO_OK) dev->vt->unwrap(dev, memory);
    return status;
}

atto_status atto_tensor_wrap(atto_device *dev, void *data, atto_dtype dtype, atto_shape shape,
                             void (*release)(void *user, void *data), void *user, atto_tensor *out)
{
    atto_tensor t = atto_tensor_of(NULL, dtype, shape, 0);
    ATTO_TRY(check_new("tensor_wrap", dev, &t, out));
    const int64_t numel = atto_tensor_numel(&t);
    const size_t size = atto_dtype_size(dtype);
    if (numel > 0) {
        ATTO_REQUIRE(data, ATTO_E_NULL, "tensor_wrap: data is NULL");
        ATTO_REQUIRE((uint64_t)numel <= SIZE_MAX / 2 / size, ATTO_E_SHAPE,
                     "tensor_wrap: %" PRId64 " elements do not fit the address space", numel);
        ATTO_REQUIRE((uintptr_t)data % size == 0, ATTO_E_ARGUMENT,
                     "tensor_wrap: data is not aligned to %zu bytes", size);
        const atto_status status =
            atto__buffer_wrap(dev, data, (size_t)numel * size, release, user, &t.buffer);
        if (status != ATTO_OK) return atto__fail_in(status, "tensor_wrap: ");
    } else if (release) {
        release(user, data);
    }
    *out = t;
    return ATTO_OK;
}

void atto_tensor_retain(const atto_tensor *t)
{
    if (t && t->buffer) atomic_fetch_add(&t->buffer->references, 1);
}

void atto_tensor_free(atto_tensor *t)
{
    if (!t) return;
    atto_buffer *buffer = t->buffer;
    memset(t, 0, sizeof *t);
    if (!buffer || atomic_fetch_sub(&buffer->references, 1) > 1) return;
    atto_device *dev = buffer->dev;
    dev->stats.buffers_live--;
    dev->stats.bytes_live -= buffer->bytes;
    atto__pool_give(dev, buffer->block);
    atto__free(buffer);
    atto__device_release(dev);
}

/* ---- views ---- */

static atto_status resolve_dim(const atto_tensor *t, const char *call, int32_t *dim)
{
    const int32_t rank = t->rank;
    ATTO_REQUIRE(rank >= 0 && rank <= ATTO_MAX_RANK, ATTO_E_SHAPE, "%s: rank is %d", call,
                 (int)rank);
    ATTO_REQUIRE(*dim >= -rank && *dim < rank, ATTO_E_ARGUMENT,
                 "%s: dimension %d of a tensor of rank %d, expected %d to %d", call, (int)*dim,
                 (int)rank, (int)-rank, (int)rank - 1);
    if (*dim < 0) *dim += rank;
    return ATTO_OK;
}

atto_status atto_tensor_slice(const atto_tensor *t, int32_t dim, int64_t start, int64_t end,
                              int64_t step, atto_tensor *out)
{
    ATTO_REQUIRE(t && out, ATTO_E_NULL, "tensor_slice: %s is NULL", t ? "out" : "t");
    ATTO_TRY(atto__shape_check(t, "tensor_slice: t"));
    ATTO_TRY(resolve_dim(t, "tensor_slice", &dim));
    ATTO_REQUIRE(start >= 0 && start <= end && end <= t->shape[dim], ATTO_E_ARGUMENT,
                 "tensor_slice: %" PRId64 " to %" PRId64 " of a dimension of size %" PRId64
                 ", expected 0 <= start <= end <= size",
                 start, end, t->shape[dim]);
    ATTO_REQUIRE(step >= 1, ATTO_E_ARGUMENT,
                 "tensor_slice: step is %" PRId64 ", expected 1 or more", step);
    atto_tensor view = *t;
    const int64_t size = end - start;
    view.shape[dim] = size == 0 ? 0 : (size - 1) / step + 1;
    if (view.shape[dim] > 1) view.stride[dim] = t->stride[dim] * step;
    if (size > 0) view.offset += start * t->stride[dim];
    *out = view;
    return ATTO_OK;
}

atto_status atto_tensor_permute(const atto_tensor *t, const int32_t *order, atto_tensor *out)
{
    ATTO_REQUIRE(t && order && out, ATTO_E_NULL, "tensor_permute: %s is NULL",
                 !t       ? "t"
                 : !order ? "order"
                          : "out");
    ATTO_REQUIRE(t->rank >= 0 && t->rank <= ATTO_MAX_RANK, ATTO_E_SHAPE,
                 "tensor_permute: rank is %d", (int)t->rank);
    atto_tensor view = *t;
    bool seen[ATTO_MAX_RANK] = { false };
    for (int32_t d = 0; d < t->rank; d++) {
        int32_t from = order[d];
        ATTO_TRY(resolve_dim(t, "tensor_permute", &from));
        ATTO_REQUIRE(!seen[from], ATTO_E_ARGUMENT, "tensor_permute: dimension %d appears twice",
                     (int)from);
        seen[from] = true;
        view.shape[d] = t->shape[from];
        view.stride[d] = t->stride[from];
    }
    *out = view;
    return ATTO_OK;
}

atto_status atto_tensor_transpose(const atto_tensor *t, int32_t dim0, int32_t dim1,
                                  atto_tensor *out)
{
    ATTO_REQUIRE(t && out, ATTO_E_NULL, "tensor_transpose: %s is NULL", t ? "out" : "t");
    ATTO_TRY(resolve_dim(t, "tensor_transpose", &dim0));
    ATTO_TRY(resolve_dim(t, "tensor_transpose", &dim1));
    atto_tensor view = *t;
    view.shape[dim0] = t->shape[dim1];
    view.stride[dim0] = t->stride[dim1];
    view.shape[dim1] = t->shape[dim0];
    view.stride[dim1] = t->stride[dim0];
    *out = view;
    return ATTO_OK;
}

atto_status atto_tensor_expand(const atto_tensor *t, atto_shape shape, atto_tensor *out)
{
    ATTO_REQUIRE(t && out, ATTO_E_NULL, "tensor_expand: %s is NULL", t ? "out" : "t");
    ATTO_REQUIRE(t->rank >= 0 && shape.rank >= t->rank && shape.rank <= ATTO_MAX_RANK, ATTO_E_SHAPE,
                 "tensor_expand: from rank %d to rank %d", (int)t->rank, (int)shape.rank);
    const int32_t added = shape.rank - t->rank;
    atto_tensor view = atto_tensor_of(t->buffer, t->dtype, shape, t->offset);
    ATTO_TRY(atto__shape_check(&view, "tensor_expand: shape"));
    for (int32_t d = 0; d < shape.rank; d++) {
        const int64_t size = d < added ? 1 : t->shape[d - added];
        ATTO_REQUIRE(size == 1 || size == shape.dim[d], ATTO_E_SHAPE,
                     "tensor_expand: dimension %d has size %" PRId64 ", not 1 or %" PRId64, (int)d,
                     size, shape.dim[d]);
        const bool repeats = size == 1 && shape.dim[d] != 1;
        view.stride[d] = repeats || d < added ? 0 : t->stride[d - added];
    }
    *out = view;
    return ATTO_OK;
}

/* Strides of the new shape over an old walk whose dimensions were merged as far as they go: each
 * merged run must be cut exactly by a group of new dimensions. */
static bool reshape_strides(const atto_tensor *t, atto_tensor *view)
{
    int64_t run_size[ATTO_MAX_RANK], run_stride[ATTO_MAX_RANK];
    int32_t runs = 0;
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] == 1) continue;
        if (runs > 0 && run_stride[runs - 1] == t->shape[d] * t->stride[d]) {
            run_size[runs - 1] *= t->shape[d];
        } else {
            run_size[runs++] = t->shape[d];
        }
        run_stride[runs - 1] = t->stride[d];
    }
    int32_t d = view->rank - 1;
    for (int32_t run = runs - 1; run >= 0; run--) {
        int64_t left = run_size[run], stride = run_stride[run];
        while (left > 1) {
            if (d < 0 || left % view->shape[d] != 0) return false;
            view->stride[d] = stride;
            stride *= view->shape[d];
            left /= view->shape[d];
            d--;
        }
    }
    return true;
}

atto_status atto_tensor_reshape(const atto_tensor *t, atto_shape shape, atto_tensor *out)
{
    ATTO_REQUIRE(t && out, ATTO_E_NULL, "tensor_reshape: %s is NULL", t ? "out" : "t");
    atto_tensor view = atto_tensor_of(t->buffer, t->dtype, shape, t->offset);
    ATTO_TRY(atto__shape_check(t, "tensor_reshape: t"));
    ATTO_TRY(atto__shape_check(&view, "tensor_reshape: shape"));
    char from[ATTO_SHAPE_TEXT], to[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto_tensor_numel(t) == atto_tensor_numel(&view), ATTO_E_SHAPE,
                 "tensor_reshape: %s has another number of elements than %s",
                 atto__shape_text(&view, to), atto__shape_text(t, from));
    ATTO_REQUIRE(atto_tensor_numel(t) == 0 || reshape_strides(t, &view), ATTO_E_STRIDE,
                 "tensor_reshape: the strides of %s do not allow a view shaped %s; copy it first",
                 atto__shape_text(t, from), atto__shape_text(&view, to));
    *out = view;
    return ATTO_OK;
}

/* ---- fill and copy ---- */

/* The dimension to loop over on the host when a walk has too many: the one with the fewest steps.
 */
static int32_t smallest_dim(const atto_tensor *t)
{
    int32_t best = -1;
    for (int32_t d = 0; d < t->rank; d++)
        if (t->shape[d] > 1 && (best < 0 || t->shape[d] < t->shape[best])) best = d;
    return best;
}

atto_status atto__copy(atto_device *dev, const atto_tensor *dst, const atto_tensor *src)
{
    if (atto_tensor_numel(dst) == 0) return ATTO_OK;
    atto_tensor to = *dst, from = *src;
    atto_tensor *walk[2] = { &to, &from };
    atto__layout layout;
    if (atto__layout_merge(walk, 2, false, dev->options.set.index_bits == 64, &layout))
        return dev->vt->copy(dev, &to, &from, &layout);
    const int32_t dim = smallest_dim(dst);
    for (int64_t i = 0; i < dst->shape[dim]; i++) {
        ATTO_TRY(atto_tensor_slice(dst, dim, i, i + 1, 1, &to));
        ATTO_TRY(atto_tensor_slice(src, dim, i, i + 1, 1, &from));
        ATTO_TRY(atto__copy(dev, &to, &from));
    }
    return ATTO_OK;
}

static atto_status fill(atto_device *dev, const atto_tensor *t, uint64_t bits)
{
    if (atto_tensor_numel(t) == 0) return ATTO_OK;
    atto_tensor to = *t;
    atto_tensor *walk[1] = { &to };
    atto__layout layout;
    if (atto__layout_merge(walk, 1, false, dev->options.set.index_bits == 64, &layout))
        return dev->vt->fill(dev, &to, bits, &layout);
    const int32_t dim = smallest_dim(t);
    for (int64_t i = 0; i < t->shape[dim]; i++) {
        ATTO_TRY(atto_tensor_slice(t, dim, i, i + 1, 1, &to));
        ATTO_TRY(fill(dev, &to, bits));
    }
    return ATTO_OK;
}

/* What every call on a tensor as a target or source needs; *dev is NULL for an empty one. */
static atto_status check_use(const atto_tensor *t, bool writes, const char *what, atto_device **dev)
{
    *dev = NULL;
    ATTO_REQUIRE(t, ATTO_E_NULL, "%s is NULL", what);
    ATTO_TRY(atto__view_check(t, what));
    ATTO_REQUIRE(!writes || atto__view_distinct(t), ATTO_E_STRIDE,
                 "%s: elements of an output overlap each other", what);
    if (atto_tensor_numel(t) == 0) return ATTO_OK;
    ATTO_REQUIRE(!writes || !t->buffer->read_only, ATTO_E_STATE, "%s: its memory is read-only",
                 what);
    *dev = t->buffer->dev;
    t->buffer->writes += writes;
    atto__scratch_reset(*dev);
    return atto__device_check(*dev);
}

static int64_t to_integer(double value, int64_t lowest, int64_t highest)
{
    if (value != value) return 0;
    if (value <= (double)lowest) return lowest;
    if (value >= (double)highest) return highest;
    return (int64_t)value;
}

/* value as a float that rounds to f16 and bf16 as value itself would: cut, and odd if anything was
 * cut. Two roundings to nearest can end one place off. */
static float to_odd_float(double value)
{
    const float nearest = (float)value;
    if (isnan(value) || isinf(nearest) || (double)nearest == value) return nearest;
    const uint32_t bits = attop_bits(nearest);
    const bool outward = fabs((double)nearest) > fabs(value);
    return attop_float((outward ? bits - 1 : bits) | 1);
}

uint64_t atto__bits_of(atto_dtype dtype, double value)
{
    switch (dtype) {
    case ATTO_F32:
        return attop_bits((float)value);
    case ATTO_F16:
        return attom_f32_to_f16(to_odd_float(value));
    case ATTO_BF16:
        return attom_f32_to_bf16(to_odd_float(value));
    case ATTO_I32:
        return (uint32_t)to_integer(value, INT32_MIN, INT32_MAX);
    case ATTO_I64:
        return (uint64_t)to_integer(value, INT64_MIN, INT64_MAX);
    }
    return 0;
}

atto_status atto__fill(atto_device *dev, const atto_tensor *t, double value)
{
    return fill(dev, t, atto__bits_of(t->dtype, value));
}

atto_status atto_tensor_fill(const atto_tensor *t, double value)
{
    atto_device *dev;
    ATTO_TRY(check_use(t, true, "tensor_fill: t", &dev));
    if (!dev) return ATTO_OK;
    ATTO_TRY(atto__fill(dev, t, value));
    return atto__device_finish_call(dev);
}

static size_t byte_size(const atto_tensor *t)
{
    return (size_t)atto_tensor_numel(t) * atto_dtype_size(t->dtype);
}

static atto_status write_dense(atto_device *dev, const atto_tensor *t, const void *data)
{
    return dev->vt->write(dev, atto__memory(t), (size_t)t->offset * atto_dtype_size(t->dtype), data,
                          byte_size(t));
}

/* A dense scratch tensor shaped like t; its buffer header lives in *buffer. */
static atto_status packed_like(atto_device *dev, const atto_tensor *t, atto_buffer *buffer,
                               atto_tensor *out)
{
    dev->stats.hidden_copies++;
    return atto__scratch_tensor(dev, t->dtype, t->rank, t->shape, buffer, out);
}

static atto_status write_packed(atto_device *dev, const atto_tensor *t, const void *data)
{
    atto_buffer buffer;
    atto_tensor packed;
    ATTO_TRY(packed_like(dev, t, &buffer, &packed));
    ATTO_TRY(write_dense(dev, &packed, data));
    return atto__copy(dev, t, &packed);
}

atto_status atto_tensor_write(const atto_tensor *t, const void *data)
{
    atto_device *dev;
    ATTO_TRY(check_use(t, true, "tensor_write: t", &dev));
    if (!dev) return ATTO_OK;
    ATTO_REQUIRE(data, ATTO_E_NULL, "tensor_write: data is NULL");
    ATTO_TRY(atto__view_dense(t) ? write_dense(dev, t, data) : write_packed(dev, t, data));
    return atto__device_finish_call(dev);
}

static atto_status read_packed(atto_device *dev, const atto_tensor *t, void *data)
{
    atto_buffer buffer;
    atto_tensor packed = *t;
    if (!atto__view_dense(t)) {
        ATTO_TRY(packed_like(dev, t, &buffer, &packed));
        ATTO_TRY(atto__copy(dev, &packed, t));
    }
    return dev->vt->read(dev, atto__memory(&packed),
                         (size_t)packed.offset * atto_dtype_size(t->dtype), data, byte_size(t));
}

atto_status atto_tensor_read(const atto_tensor *t, void *data)
{
    atto_device *dev;
    ATTO_TRY(check_use(t, false, "tensor_read: t", &dev));
    if (!dev) return ATTO_OK;
    ATTO_REQUIRE(data, ATTO_E_NULL, "tensor_read: data is NULL");
    ATTO_TRY(read_packed(dev, t, data));
    return atto__device_data_errors(dev);
}

/* Between devices: through the host, converted on the target. */
static atto_status copy_across(atto_device *dev, const atto_tensor *dst, const atto_tensor *src,
                               atto_device *from)
{
    void *host = atto__alloc_aligned(byte_size(src));
    ATTO_REQUIRE(host, ATTO_E_MEMORY,
                 "tensor_copy: out of host memory for %zu bytes between devices", byte_size(src));
    atto_buffer buffer;
    atto_tensor staged;
    atto_status status = read_packed(from, src, host);
    if (status == ATTO_OK)
        status = atto__scratch_tensor(dev, src->dtype, src->rank, src->shape, &buffer, &staged);
    if (status == ATTO_OK) status = write_dense(dev, &staged, host);
    if (status == ATTO_OK) status = atto__copy(dev, dst, &staged);
    atto__free_aligned(host);
    return status;
}

atto_status atto_tensor_copy(const atto_tensor *dst, const atto_tensor *src)
{
    atto_device *dev, *from;
    ATTO_TRY(check_use(dst, true, "tensor_copy: dst", &dev));
    ATTO_TRY(check_use(src, false, "tensor_copy: src", &from));
    char wanted[ATTO_SHAPE_TEXT], got[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(atto__shape_same(dst, src), ATTO_E_SHAPE,
                 "tensor_copy: src is %s, expected dst's %s", atto__shape_text(src, got),
                 atto__shape_text(dst, wanted));
    if (!dev || atto__view_same(dst, src)) return ATTO_OK;
    ATTO_REQUIRE(!atto__view_overlap(dst, src), ATTO_E_ALIAS, "tensor_copy: dst and src overlap");
    ATTO_TRY(dev == from ? atto__copy(dev, dst, src) : copy_across(dev, dst, src, from));
    return atto__device_finish_call(dev);
}

/* ---- mapping ---- */

static bool is_map_mode(atto_map_mode mode)
{
    return mode == ATTO_MAP_READ || mode == ATTO_MAP_WRITE || mode == ATTO_MAP_READ_WRITE;
}

atto_status atto_tensor_map(const atto_tensor *t, atto_map_mode mode, void **data)
{
    ATTO_REQUIRE(data, ATTO_E_NULL, "tensor_map: data is NULL");
    *data = NULL;
    ATTO_REQUIRE(is_map_mode(mode), ATTO_E_ARGUMENT, "tensor_map: %d is no mode", (int)mode);
    atto_device *dev;
    ATTO_TRY(check_use(t, mode != ATTO_MAP_READ, "tensor_map: t", &dev));
    if (!dev) return ATTO_OK;
    /* The gaps of a view with gaps keep their contents. */
    if (mode == ATTO_MAP_WRITE && !atto__view_dense(t)) mode = ATTO_MAP_READ_WRITE;
    const size_t size = atto_dtype_size(t->dtype);
    ATTO_TRY(dev->vt->map(dev, atto__memory(t), (size_t)t->offset * size,
                          (size_t)atto__extent(t) * size, mode, data));
    t->buffer->mapped = *data;
    atto_tensor_retain(t);
    return ATTO_OK;
}

atto_status atto_tensor_unmap(const atto_tensor *t)
{
    ATTO_REQUIRE(t, ATTO_E_NULL, "tensor_unmap: t is NULL");
    atto_buffer *buffer = t->buffer;
    const bool empty = atto_tensor_numel(t) == 0;
    if (empty && !(buffer && buffer->mapped)) return ATTO_OK;
    ATTO_REQUIRE(buffer, ATTO_E_NULL,
                 "tensor_unmap: t has no buffer (freed? keep a copy of the view to unmap it)");
    ATTO_REQUIRE(buffer->mapped, ATTO_E_STATE, "tensor_unmap: the tensor is not mapped");
    atto_device *dev = buffer->dev;
    atto_status status = atto__device_check(dev);
    if (status == ATTO_OK) status = dev->vt->unmap(dev, buffer->block->memory, buffer->mapped);
    if (status == ATTO_OK) status = atto__device_finish_call(dev);
    buffer->mapped = NULL;
    atto_tensor mapping = *t;
    atto_tensor_free(&mapping); /* the reference that map took */
    return status;
}
