/* SPDX-License-Identifier: MIT */
/* Memory of others: host memory wrapped, and tensors to and from other libraries (M3). The structs
 * below are DLPack's as its specification prints them, not those of the library. */
#include <stdlib.h>
#include <string.h>

#include <attocl/opencl.h>

#include "atto_test.h"

/* ---- DLPack ---- */

typedef struct {
    uint32_t major, minor;
} DLPackVersion;

typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLOpenCL = 4 } DLDeviceType;

typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;

typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4 } DLDataTypeCode;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
} DLManagedTensorVersioned;

#define READ_ONLY 1

/* ---- another library ---- */

#define ROWS    3
#define COLUMNS 5
#define FLOATS  32

/* A tensor of another library's on the host, ROWS x COLUMNS at the start of values, and how often
 * it was deleted. */
typedef struct other {
    float values[FLOATS];
    int64_t shape[2], strides[2];
    DLManagedTensorVersioned versioned;
    DLManagedTensor old;
    int deleted;
} other;

static void delete_versioned(DLManagedTensorVersioned *self)
{
    ((other *)self->manager_ctx)->deleted++;
}

static void delete_old(DLManagedTensor *self)
{
    ((other *)self->manager_ctx)->deleted++;
}

/* It lives until test_dev is closed at most: nothing is freed in it. */
static other *other_make(void)
{
    other *o = NULL;
    assert_int_equal(posix_memalign((void **)&o, 4096, (sizeof *o + 4095) / 4096 * 4096), 0);
    memset(o, 0, sizeof *o);
    for (int i = 0; i < FLOATS; i++) o->values[i] = (float)(i - 7);
    o->shape[0] = ROWS, o->shape[1] = COLUMNS;
    o->strides[0] = COLUMNS, o->strides[1] = 1;
    const DLTensor t = {
        o->values, { kDLCPU, 0 }, 2, { kDLFloat, 32, 1 }, o->shape, o->strides, 0
    };
    o->versioned = (DLManagedTensorVersioned){ { 1, 0 }, o, delete_versioned, 0, t };
    o->old = (DLManagedTensor){ t, o, delete_old };
    return o;
}

/* Whether the device under test can use the host's memory. */
static bool shares_memory(void)
{
    atto_device_info info;
    MUST(atto_device_describe(test_dev, &info));
    return info.kind != ATTO_KIND_DISCRETE_GPU && info.kind != ATTO_KIND_ACCELERATOR;
}

#define NEED_SHARED_MEMORY() \
    if (!shares_memory()) skip()

/* t's elements are from(i) for their place i in values. */
static void expect_values(const atto_tensor *t, const int *places, float (*from)(float))
{
    float got[FLOATS];
    const int64_t n = atto_tensor_numel(t);
    MUST(atto_tensor_read(t, got));
    for (int64_t i = 0; i < n; i++) {
        const float want = from((float)(places[i] - 7));
        if (got[i] != want) fail_msg("element %d is %g, expected %g", (int)i, got[i], want);
    }
}

static float same(float x)
{
    return x;
}
static float relu(float x)
{
    return x > 0 ? x : 0;
}

static const int dense_places[] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 };

/* t = relu(t). */
static void apply_relu(const atto_tensor *t)
{
    MUST(atto_act_forward(test_dev, &(struct atto_act_args){ .x = t, .y = t, .act = atto_relu() }));
}

/* ---- wrap ---- */

typedef struct released {
    int count;
    void *data;
} released;

static void count_release(void *user, void *data)
{
    released *r = user;
    r->count++;
    r->data = data;
}

static void wrapped_memory_is_used_where_it_is(void **state)
{
    (void)state;
    NEED_SHARED_MEMORY();
    other *o = other_make();
    released r = { 0, NULL };
    atto_tensor t, copy;
    void *seen;
    MUST(atto_tensor_wrap(test_dev, o->values, ATTO_F32, atto_shape2(ROWS, COLUMNS), count_release,
                          &r, &t));
    copy = t;
    atto_tensor_retain(&copy);
    expect_values(&t, dense_places, same);
    apply_relu(&t);
    MUST(atto_tensor_map(&t, ATTO_MAP_READ, &seen));
    assert_ptr_equal(seen, o->values);
    for (int i = 0; i < FLOATS; i++)
        assert_true(o->values[i] == (i < ROWS * COLUMNS ? relu((float)(i - 7)) : (float)(i - 7)));
    MUST(atto_tensor_unmap(&t));
    atto_tensor_free(&t);
    assert_int_equal(r.count, 0);
    expect_values(&copy, dense_places, relu);
    atto_tensor_free(&copy);
    assert_int_equal(r.count, 1);
    assert_ptr_equal(r.data, o->values);
    free(o);
}

static void wrapped_memory_outlives_its_closed_device(void **state)
{
    (void)state;
    NEED_SHARED_MEMORY();
    other *o = other_make();
    released r = { 0, NULL };
    atto_device *dev;
    atto_tensor t;
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    MUST(atto_tensor_wrap(dev, o->values, ATTO_F32, atto_shape1(FLOATS), count_release, &r, &t));
    atto_device_close(dev);
    MUST(atto_tensor_fill(&t, 3.0));
    atto_tensor_free(&t);
    assert_int_equal(r.count, 1);
    assert_true(o->values[0] == 3.0f && o->values[FLOATS - 1] == 3.0f);
    free(o);
}

static void wrap_refuses_what_cannot_be(void **state)
{
    (void)state;
    other *o = other_make();
    released r = { 0, NULL };
    atto_tensor t;
    const atto_shape shape = atto_shape1(4);
    EXPECT_FAIL(atto_tensor_wrap(test_dev, o->values, ATTO_F32, shape, NULL, NULL, NULL),
                ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_tensor_wrap(NULL, o->values, ATTO_F32, shape, NULL, NULL, &t), ATTO_E_NULL,
                "dev");
    EXPECT_FAIL(atto_tensor_wrap(test_dev, NULL, ATTO_F32, shape, count_release, &r, &t),
                ATTO_E_NULL, "data");
    EXPECT_FAIL(atto_tensor_wrap(test_dev, o->values, (atto_dtype)77, shape, NULL, NULL, &t),
                ATTO_E_DTYPE, "77");
    EXPECT_FAIL(atto_tensor_wrap(test_dev, o->values, ATTO_F32, atto_shape1(-1), NULL, NULL, &t),
                ATTO_E_SHAPE, "-1");
    EXPECT_FAIL(
        atto_tensor_wrap(test_dev, (char *)o->values + 2, ATTO_F32, shape, count_release, &r, &t),
        ATTO_E_ARGUMENT, "aligned|4");
    if (!shares_memory())
        EXPECT_FAIL(atto_tensor_wrap(test_dev, o->values, ATTO_F32, shape, count_release, &r, &t),
                    ATTO_E_UNSUPPORTED, "memory of its own");
    assert_int_equal(r.count, 0);
    assert_null(t.buffer);
    MUST(atto_tensor_wrap(test_dev, NULL, ATTO_F32, atto_shape2(0, 3), count_release, &r, &t));
    assert_int_equal(r.count, 1); /* nothing to hold */
    atto_tensor_free(&t);
    assert_int_equal(r.count, 1);
    free(o);
}

/* ---- import ---- */

static void dlpack_imports_both_forms(void **state)
{
    (void)state;
    NEED_SHARED_MEMORY();
    for (int i = 0; i < 4; i++) {
        other *o = other_make();
        atto_tensor t;
        if (i >= 2) o->versioned.dl_tensor.strides = o->old.dl_tensor.strides = NULL;
        o->versioned.version.minor = 77;
        MUST(i % 2 ? atto_tensor_from_dlpack(test_dev, &o->versioned, &t)
                   : atto_tensor_from_dlpack_unversioned(test_dev, &o->old, &t));
        assert_int_equal(t.rank, 2);
        expect_values(&t, dense_places, same);
        apply_relu(&t);
        expect_values(&t, dense_places, relu);
        assert_int_equal(o->deleted, 0);
        atto_tensor_free(&t);
        assert_int_equal(o->deleted, 1);
        assert_true(o->values[0] == 0.0f && o->values[14] == 7.0f);
        free(o);
    }
}

static void dlpack_imports_strides_and_offsets(void **state)
{
    (void)state;
    NEED_SHARED_MEMORY();
    static const int columns[] = { 2, 7, 12, 3, 8, 13 };
    other *o = other_make();
    atto_tensor t;
    DLTensor *d = &o->versioned.dl_tensor;
    o->shape[0] = 2, o->shape[1] = 3; /* columns 2 and 3, as rows */
    o->strides[0] = 1, o->strides[1] = COLUMNS;
    d->byte_offset = 2 * sizeof(float);
    MUST(atto_tensor_from_dlpack(test_dev, &o->versioned, &t));
    expect_values(&t, columns, same);
    apply_relu(&t);
    expect_values(&t, columns, relu);
    atto_tensor_free(&t);
    assert_int_equal(o->deleted, 1);
    assert_true(o->values[0] == -7.0f && o->values[2] == 0.0f && o->values[4] == -3.0f);

    o->shape[0] = 1, o->shape[1] = 1; /* strides along one element mean nothing */
    o->strides[0] = -5, o->strides[1] = INT64_MAX;
    MUST(atto_tensor_from_dlpack(test_dev, &o->versioned, &t));
    assert_int_equal(atto_tensor_numel(&t), 1);
    atto_tensor_free(&t);
    assert_int_equal(o->deleted, 2);

    d->ndim = 0; /* a scalar needs no shape */
    d->shape = d->strides = NULL;
    d->byte_offset = 9 * sizeof(float);
    MUST(atto_tensor_from_dlpack(test_dev, &o->versioned, &t));
    expect_values(&t, (const int[]){ 9 }, same);
    atto_tensor_free(&t);
    assert_int_equal(o->deleted, 3);
    free(o);
}

static void dlpack_imports_every_dtype(void **state)
{
    (void)state;
    NEED_SHARED_MEMORY();
    static const struct {
        DLDataType type;
        atto_dtype dtype;
    } rows[] = {
        { { kDLFloat, 32, 1 }, ATTO_F32 },   { { kDLFloat, 16, 1 }, ATTO_F16 },
        { { kDLBfloat, 16, 1 }, ATTO_BF16 }, { { kDLInt, 32, 1 }, ATTO_I32 },
        { { kDLInt, 64, 1 }, ATTO_I64 },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        other *o = other_make();
        atto_tensor t;
        DLManagedTensorVersioned *back;
        o->versioned.dl_tensor.dtype = rows[i].type;
        MUST(atto_tensor_from_dlpack(test_dev, &o->versioned, &t));
        assert_int_equal(t.dtype, rows[i].dtype);
        MUST(atto_tensor_to_dlpack(&t, &back));
        assert_memory_equal(&back->dl_tensor.dtype, &rows[i].type, sizeof rows[i].type);
        back->deleter(back);
        atto_tensor_free(&t);
        assert_int_equal(o->deleted, 1);
        free(o);
    }
}

static void dlpack_imports_without_deleter_and_of_nothing(void **state)
{
    (void)state;
    other *o = other_make();
    atto_tensor t;
    o->shape[0] = 0;
    o->strides[1] = -1; /* of nothing: no matter */
    o->versioned.dl_tensor.data = NULL;
    MUST(atto_tensor_from_dlpack(test_dev, &o->versioned, &t));
    assert_int_equal(o->deleted, 1);
    assert_int_equal(t.shape[1], COLUMNS);
    atto_tensor_free(&t);
    assert_int_equal(o->deleted, 1);
    if (shares_memory()) {
        o->shape[0] = 2, o->strides[1] = 1;
        o->versioned.dl_tensor.data = o->values;
        o->versioned.deleter = NULL;
        MUST(atto_tensor_from_dlpack(test_dev, &o->versioned, &t));
        atto_tensor_free(&t);
    }
    free(o);
}

/* A tensor that is read-only is read; every way of writing to it fails and changes nothing. */
static void dlpack_keeps_read_only_memory_as_it_is(void **state)
{
    (void)state;
    NEED_SHARED_MEMORY();
    other *o = other_make();
    atto_tensor t, y, row;
    void *seen;
    DLManagedTensorVersioned *back;
    DLManagedTensor *old;
    float zeros[ROWS * COLUMNS] = { 0 };
    o->versioned.flags = READ_ONLY;
    MUST(atto_tensor_from_dlpack(test_dev, &o->versioned, &t));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(ROWS, COLUMNS), &y));
    MUST(atto_act_forward(test_dev,
                          &(struct atto_act_args){ .x = &t, .y = &y, .act = atto_relu() }));
    expect_values(&y, dense_places, relu);
    EXPECT_FAIL(
        atto_act_forward(test_dev, &(struct atto_act_args){ .x = &y, .y = &t, .act = atto_relu() }),
        ATTO_E_STATE, "act_forward|y|read-only");
    EXPECT_FAIL(atto_tensor_fill(&t, 1.0), ATTO_E_STATE, "read-only");
    EXPECT_FAIL(atto_tensor_write(&t, zeros), ATTO_E_STATE, "read-only");
    EXPECT_FAIL(atto_tensor_copy(&t, &y), ATTO_E_STATE, "read-only");
    EXPECT_FAIL(atto_tensor_map(&t, ATTO_MAP_READ_WRITE, &seen), ATTO_E_STATE, "read-only");
    MUST(atto_tensor_slice(&t, 0, 1, 2, 1, &row));
    EXPECT_FAIL(atto_tensor_fill(&row, 1.0), ATTO_E_STATE, "read-only");
    MUST(atto_tensor_map(&t, ATTO_MAP_READ, &seen));
    MUST(atto_tensor_unmap(&t));
    MUST(atto_tensor_to_dlpack(&t, &back));
    assert_int_equal(back->flags, READ_ONLY);
    back->deleter(back);
    EXPECT_FAIL(atto_tensor_to_dlpack_unversioned(&t, &old), ATTO_E_STATE, "read-only");
    expect_values(&t, dense_places, same);
    atto_tensor_free(&t);
    atto_tensor_free(&y);
    assert_int_equal(o->deleted, 1);
    free(o);
}

/* One thing wrong with a tensor; nothing is taken over. */
typedef struct fault {
    void (*plant)(DLManagedTensorVersioned *m, other *o);
    atto_status status;
    const char *words;
} fault;

static void no_data(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.data = NULL;
}
static void no_shape(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.shape = NULL;
}
static void version_0(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->version.major = 0;
}
static void version_2(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->version.major = 2;
}
static void on_cuda(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.device.device_type = kDLCUDA;
}
static void two_lanes(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.dtype.lanes = 2;
}
static void no_lanes(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.dtype.lanes = 0;
}
static void unsigned_8(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.dtype = (DLDataType){ kDLUInt, 8, 1 };
}
static void float_64(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.dtype.bits = 64;
}
static void rank_9(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.ndim = 9;
}
static void rank_below_0(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.ndim = -1;
}
static void negative_size(DLManagedTensorVersioned *m, other *o)
{
    (void)m, o->shape[1] = -2;
}
static void huge_size(DLManagedTensorVersioned *m, other *o)
{
    m->dl_tensor.strides = NULL;
    o->shape[0] = o->shape[1] = INT64_MAX / 2;
}
static void negative_stride(DLManagedTensorVersioned *m, other *o)
{
    (void)m, o->strides[1] = -1;
}
static void huge_stride(DLManagedTensorVersioned *m, other *o)
{
    (void)m, o->strides[0] = INT64_MAX / 2;
}
static void odd_offset(DLManagedTensorVersioned *m, other *o)
{
    (void)o, m->dl_tensor.byte_offset = 6;
}

static void dlpack_refuses_what_it_cannot_take(void **state)
{
    (void)state;
    static const fault faults[] = {
        { no_data, ATTO_E_NULL, "data" },
        { no_shape, ATTO_E_NULL, "shape" },
        { version_0, ATTO_E_VERSION, "0.0" },
        { version_2, ATTO_E_VERSION, "2.0" },
        { on_cuda, ATTO_E_DEVICE, "kind 2" },
        { two_lanes, ATTO_E_DTYPE, "2 lanes" },
        { no_lanes, ATTO_E_DTYPE, "0 lanes" },
        { unsigned_8, ATTO_E_DTYPE, "code 1|8 bits" },
        { float_64, ATTO_E_DTYPE, "code 2|64 bits" },
        { rank_9, ATTO_E_SHAPE, "rank is 9" },
        { rank_below_0, ATTO_E_SHAPE, "rank is -1" },
        { negative_size, ATTO_E_SHAPE, "-2" },
        { huge_size, ATTO_E_SHAPE, "beyond" },
        { negative_stride, ATTO_E_STRIDE, "-1" },
        { huge_stride, ATTO_E_SHAPE, "beyond" },
        { odd_offset, ATTO_E_ARGUMENT, "byte_offset 6" },
    };
    for (int i = 0; i < COUNT_OF(faults); i++) {
        other *o = other_make();
        atto_tensor t;
        faults[i].plant(&o->versioned, o);
        EXPECT_FAIL(atto_tensor_from_dlpack(test_dev, &o->versioned, &t), faults[i].status,
                    faults[i].words);
        assert_null(t.buffer);
        assert_int_equal(o->deleted, 0);
        free(o);
    }
    other *o = other_make();
    atto_tensor t;
    EXPECT_FAIL(atto_tensor_from_dlpack(NULL, &o->versioned, &t), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_tensor_from_dlpack(test_dev, NULL, &t), ATTO_E_NULL, "managed");
    EXPECT_FAIL(atto_tensor_from_dlpack(test_dev, &o->versioned, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_tensor_from_dlpack_unversioned(test_dev, NULL, &t), ATTO_E_NULL, "managed");
    if (!shares_memory())
        EXPECT_FAIL(atto_tensor_from_dlpack(test_dev, &o->versioned, &t), ATTO_E_UNSUPPORTED,
                    "memory of its own");
    o->versioned.dl_tensor.device.device_type = kDLOpenCL;
    if (!test_on_opencl())
        EXPECT_FAIL(atto_tensor_from_dlpack(test_dev, &o->versioned, &t), ATTO_E_DEVICE, "OpenCL");
    assert_int_equal(o->deleted, 0);
    free(o);
}

/* ---- export ---- */

/* Out and in again: the same memory, view and values, on the same device. */
static void dlpack_exports_what_it_imports(void **state)
{
    (void)state;
    static const int columns[] = { 2, 7, 12, 3, 8, 13 };
    float values[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = (float)(i - 7);
    for (int versioned = 0; versioned < 2; versioned++) {
        atto_tensor t, view, back;
        atto_device_stats before, after;
        MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(ROWS, COLUMNS), &t));
        MUST(atto_tensor_write(&t, values));
        MUST(atto_tensor_slice(&t, 1, 2, 4, 1, &view));
        MUST(atto_tensor_transpose(&view, 0, 1, &view));
        DLManagedTensorVersioned *m = NULL;
        DLManagedTensor *old = NULL;
        MUST(versioned ? atto_tensor_to_dlpack(&view, &m)
                       : atto_tensor_to_dlpack_unversioned(&view, &old));
        const DLTensor *d = versioned ? &m->dl_tensor : &old->dl_tensor;
        assert_int_equal(d->device.device_type, test_on_opencl() ? kDLOpenCL : kDLCPU);
        assert_int_equal(d->ndim, 2);
        assert_true(d->shape[0] == 2 && d->shape[1] == ROWS);
        assert_true(d->strides[0] == 1 && d->strides[1] == COLUMNS);
        if (versioned) assert_true(m->version.major == 1 && m->flags == 0);
        if (!test_on_opencl()) {
            const float *first = (const float *)((const char *)d->data + d->byte_offset);
            for (int i = 0; i < 6; i++)
                assert_true(first[i / 3 * d->strides[0] + i % 3 * d->strides[1]] ==
                            (float)(columns[i] - 7));
        }
        atto_tensor_free(&t); /* the exported one holds it */
        MUST(versioned ? atto_tensor_from_dlpack(test_dev, m, &back)
                       : atto_tensor_from_dlpack_unversioned(test_dev, old, &back));
        expect_values(&back, columns, same);
        apply_relu(&back);
        expect_values(&back, columns, relu);
        atto_tensor_free(&back);
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.buffers_live, before.buffers_live);
        assert_int_equal(after.bytes_live, before.bytes_live);
    }
}

static void dlpack_exports_empty_tensors_and_refuses_bad_ones(void **state)
{
    (void)state;
    atto_tensor t;
    DLManagedTensorVersioned *m;
    MUST(atto_tensor_alloc(test_dev, ATTO_I64, atto_shape2(4, 0), &t));
    MUST(atto_tensor_to_dlpack(&t, &m));
    assert_true(m->dl_tensor.ndim == 2 && m->dl_tensor.shape[1] == 0);
    m->deleter(m);
    EXPECT_FAIL(atto_tensor_to_dlpack(NULL, &m), ATTO_E_NULL, "t is NULL");
    assert_null(m);
    EXPECT_FAIL(atto_tensor_to_dlpack(&t, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_tensor_to_dlpack_unversioned(&t, NULL), ATTO_E_NULL, "out");
    t.shape[1] = 1;
    EXPECT_FAIL(atto_tensor_to_dlpack(&t, &m), ATTO_E_NULL, "buffer");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(wrapped_memory_is_used_where_it_is),
    cmocka_unit_test(wrapped_memory_outlives_its_closed_device),
    cmocka_unit_test(wrap_refuses_what_cannot_be),
    cmocka_unit_test(dlpack_imports_both_forms),
    cmocka_unit_test(dlpack_imports_strides_and_offsets),
    cmocka_unit_test(dlpack_imports_every_dtype),
    cmocka_unit_test(dlpack_imports_without_deleter_and_of_nothing),
    cmocka_unit_test(dlpack_keeps_read_only_memory_as_it_is),
    cmocka_unit_test(dlpack_refuses_what_it_cannot_take),
    cmocka_unit_test(dlpack_exports_what_it_imports),
    cmocka_unit_test(dlpack_exports_empty_tensors_and_refuses_bad_ones),
};

TEST_MAIN("dlpack", tests)
