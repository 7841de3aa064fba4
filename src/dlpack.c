/* SPDX-License-Identifier: MIT */
/* Tensors to and from other libraries: DLPack. */
#include <attocl/dlpack.h>

#include <inttypes.h>
#include <string.h>

#include "alloc.h"
#include "dlpack_abi.h"
#include "layout.h"
#include "tensor.h"

/* X(dtype, code, bits) */
#define TYPE_TABLE(X)                \
    X(ATTO_F32, ATTO_DL_FLOAT, 32)   \
    X(ATTO_F16, ATTO_DL_FLOAT, 16)   \
    X(ATTO_BF16, ATTO_DL_BFLOAT, 16) \
    X(ATTO_I32, ATTO_DL_INT, 32)     \
    X(ATTO_I64, ATTO_DL_INT, 64)

/* ---- import ---- */

static atto_status dtype_of(const atto__dl_tensor *d, atto_dtype *out)
{
    ATTO_REQUIRE(d->lanes == 1, ATTO_E_DTYPE, "elements have %d lanes, expected 1", d->lanes);
#define X(dtype, code, bits)                                \
    if (d->type_code == (code) && d->type_bits == (bits)) { \
        *out = dtype;                                       \
        return ATTO_OK;                                     \
    }
    TYPE_TABLE(X)
#undef X
    return atto__fail(ATTO_E_DTYPE,
                      "elements have type code %d and %d bits, expected floats of 32 or 16 bits, "
                      "bfloat16, or signed integers of 32 or 64 bits",
                      d->type_code, d->type_bits);
}

/* Shape and strides without a buffer. Strides along one element or none mean nothing. */
static atto_status view_of(const atto__dl_tensor *d, atto_tensor *out)
{
    atto_dtype dtype = ATTO_F32;
    ATTO_TRY(dtype_of(d, &dtype));
    ATTO_REQUIRE(d->ndim >= 0 && d->ndim <= ATTO_MAX_RANK, ATTO_E_SHAPE,
                 "rank is %d, expected 0 to %d", (int)d->ndim, ATTO_MAX_RANK);
    ATTO_REQUIRE(d->shape || d->ndim == 0, ATTO_E_NULL, "its shape is NULL");
    *out = atto_tensor_of(NULL, dtype, atto_shape_of(d->ndim, d->shape), 0);
    ATTO_TRY(atto__shape_check(out, "tensor"));
    const bool empty = atto_tensor_numel(out) == 0;
    for (int32_t i = 0; d->strides && !empty && i < d->ndim; i++)
        if (out->shape[i] > 1) out->stride[i] = d->strides[i];
    return atto__shape_check(out, "tensor");
}

typedef struct owner {
    void (*release)(void *user, void *data); /* NULL: the owner does not want to know */
    void *user;
} owner;

static atto_status adopt_host(atto_device *dev, const atto__dl_tensor *d, const owner *o,
                              atto_tensor *t)
{
    const size_t size = atto_dtype_size(t->dtype);
    ATTO_REQUIRE(d->data, ATTO_E_NULL, "its data is NULL");
    char *first = (char *)d->data + d->byte_offset;
    ATTO_REQUIRE((uintptr_t)first % size == 0, ATTO_E_ARGUMENT,
                 "its data and byte_offset %" PRIu64 " are not aligned to elements of %zu bytes",
                 d->byte_offset, size);
    return atto__buffer_wrap(dev, first, (size_t)atto__extent(t) * size, o->release, o->user,
                             &t->buffer);
}

static atto_status adopt_opencl(atto_device *dev, const atto__dl_tensor *d, const owner *o,
                                atto_tensor *t)
{
    const size_t size = atto_dtype_size(t->dtype);
    ATTO_REQUIRE(strcmp(dev->info.backend, "opencl") == 0, ATTO_E_DEVICE,
                 "it is on OpenCL, %s is not", dev->info.name);
    ATTO_REQUIRE(d->data, ATTO_E_NULL, "its data is NULL");
    ATTO_REQUIRE(d->byte_offset % size == 0, ATTO_E_ARGUMENT,
                 "byte_offset is %" PRIu64 ", no multiple of an element's %zu bytes",
                 d->byte_offset, size);
    t->offset = (int64_t)(d->byte_offset / size);
    ATTO_TRY(atto__shape_check(t, "tensor"));
    return atto__buffer_of_opencl(dev, d->data, (size_t)(t->offset + atto__extent(t)) * size,
                                  o->release, o->user, &t->buffer);
}

static atto_status adopt(atto_device *dev, const atto__dl_tensor *d, bool read_only, const owner *o,
                         atto_tensor *out)
{
    atto_tensor t;
    ATTO_TRY(atto__device_check(dev));
    ATTO_TRY(view_of(d, &t));
    ATTO_REQUIRE(d->device_type == ATTO_DL_CPU || d->device_type == ATTO_DL_OPENCL, ATTO_E_DEVICE,
                 "it is on a device of DLPack's kind %d, expected kDLCPU (1) or kDLOpenCL (4)",
                 (int)d->device_type);
    if (atto_tensor_numel(&t) == 0) {
        if (o->release) o->release(o->user, NULL);
    } else {
        ATTO_TRY(d->device_type == ATTO_DL_CPU ? adopt_host(dev, d, o, &t)
                                               : adopt_opencl(dev, d, o, &t));
        t.buffer->read_only |= read_only;
    }
    *out = t;
    return ATTO_OK;
}

static void delete_versioned(void *user, void *data)
{
    struct DLManagedTensorVersioned *managed = user;
    (void)data;
    managed->deleter(managed);
}

static void delete_unversioned(void *user, void *data)
{
    struct DLManagedTensor *managed = user;
    (void)data;
    managed->deleter(managed);
}

static atto_status check_import(const atto_device *dev, const void *managed, atto_tensor *out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "tensor_from_dlpack: out is NULL");
    memset(out, 0, sizeof *out);
    ATTO_REQUIRE(dev && managed, ATTO_E_NULL, "tensor_from_dlpack: %s is NULL",
                 dev ? "managed" : "dev");
    return ATTO_OK;
}

atto_status atto_tensor_from_dlpack(atto_device *dev, struct DLManagedTensorVersioned *managed,
                                    atto_tensor *out)
{
    ATTO_TRY(check_import(dev, managed, out));
    ATTO_REQUIRE(managed->major == ATTO_DL_MAJOR, ATTO_E_VERSION,
                 "tensor_from_dlpack: the tensor is of DLPack %u.%u, expected %d",
                 (unsigned)managed->major, (unsigned)managed->minor, ATTO_DL_MAJOR);
    const owner o = { managed->deleter ? delete_versioned : NULL, managed };
    const atto_status status =
        adopt(dev, &managed->tensor, managed->flags & ATTO_DL_READ_ONLY, &o, out);
    return status == ATTO_OK ? ATTO_OK : atto__fail_in(status, "tensor_from_dlpack: ");
}

atto_status atto_tensor_from_dlpack_unversioned(atto_device *dev, struct DLManagedTensor *managed,
                                                atto_tensor *out)
{
    ATTO_TRY(check_import(dev, managed, out));
    const owner o = { managed->deleter ? delete_unversioned : NULL, managed };
    const atto_status status = adopt(dev, &managed->tensor, false, &o, out);
    return status == ATTO_OK ? ATTO_OK : atto__fail_in(status, "tensor_from_dlpack: ");
}

/* ---- export ---- */

/* What an exported tensor points to. It is also what its deleter releases. */
typedef struct exported {
    union {
        struct DLManagedTensor unversioned;
        struct DLManagedTensorVersioned versioned;
    } managed;
    atto_tensor t; /* holds a reference */
} exported;

static void describe(const atto_tensor *t, atto__dl_tensor *d)
{
    const atto_device *dev = atto_tensor_device(t);
    const size_t size = atto_dtype_size(t->dtype);
    *d = (atto__dl_tensor){ .device_type = ATTO_DL_CPU, .ndim = t->rank, .lanes = 1 };
    d->shape = (int64_t *)t->shape;
    d->strides = (int64_t *)t->stride;
#define X(type, code, bits)   \
    if (t->dtype == (type)) { \
        d->type_code = code;  \
        d->type_bits = bits;  \
    }
    TYPE_TABLE(X)
#undef X
    if (!dev) return; /* empty */
    d->data = atto__memory(t);
    if (strcmp(dev->info.backend, "opencl") == 0) {
        d->device_type = ATTO_DL_OPENCL;
        d->device_id = dev->info.index > 0 ? dev->info.index : 0;
        d->byte_offset = (uint64_t)t->offset * size;
    } else { /* some readers forget byte_offset */
        d->data = (char *)d->data + (size_t)t->offset * size;
    }
}

static atto_status prepare(const atto_tensor *t, exported **out)
{
    ATTO_REQUIRE(t, ATTO_E_NULL, "tensor_to_dlpack: t is NULL");
    ATTO_TRY(atto__view_check(t, "tensor_to_dlpack: t"));
    atto_device *dev = atto_tensor_device(t);
    if (dev) ATTO_TRY(atto_device_sync(dev));
    exported *e = atto__alloc(sizeof *e);
    ATTO_REQUIRE(e, ATTO_E_MEMORY, "tensor_to_dlpack: out of host memory");
    e->t = *t;
    atto_tensor_retain(&e->t);
    *out = e;
    return ATTO_OK;
}

static void drop(exported *e)
{
    if (e->t.buffer) atto_tensor_free(&e->t);
    atto__free(e);
}

static void drop_versioned(struct DLManagedTensorVersioned *self)
{
    drop(self->context);
}

static void drop_unversioned(struct DLManagedTensor *self)
{
    drop(self->context);
}

atto_status atto_tensor_to_dlpack(const atto_tensor *t, struct DLManagedTensorVersioned **out)
{
    exported *e = NULL;
    ATTO_REQUIRE(out, ATTO_E_NULL, "tensor_to_dlpack: out is NULL");
    *out = NULL;
    ATTO_TRY(prepare(t, &e));
    const bool read_only = e->t.buffer && e->t.buffer->read_only;
    e->managed.versioned = (struct DLManagedTensorVersioned){ .major = ATTO_DL_MAJOR,
                                                              .minor = ATTO_DL_MINOR,
                                                              .context = e,
                                                              .deleter = drop_versioned,
                                                              .flags = read_only };
    describe(&e->t, &e->managed.versioned.tensor);
    *out = &e->managed.versioned;
    return ATTO_OK;
}

atto_status atto_tensor_to_dlpack_unversioned(const atto_tensor *t, struct DLManagedTensor **out)
{
    exported *e = NULL;
    ATTO_REQUIRE(out, ATTO_E_NULL, "tensor_to_dlpack: out is NULL");
    *out = NULL;
    ATTO_TRY(prepare(t, &e));
    if (e->t.buffer && e->t.buffer->read_only) {
        drop(e);
        return atto__fail(ATTO_E_STATE, "tensor_to_dlpack: the tensor is read-only, which only "
                                        "DLPack 1 can say");
    }
    e->managed.unversioned = (struct DLManagedTensor){ .context = e, .deleter = drop_unversioned };
    describe(&e->t, &e->managed.unversioned.tensor);
    *out = &e->managed.unversioned;
    return ATTO_OK;
}
