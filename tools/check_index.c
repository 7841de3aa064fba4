/* SPDX-License-Identifier: MIT */
/* selftest of index_select and gather: the same index on two devices. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Rows of x, columns, and rows of y: few and many positions of a row, whole vectors and odd sizes. */
static const int64_t shapes[][3] = { { 5, 8, 700 }, { 300, 64, 257 }, { 33, 37, 91 } };

enum { X, INDEX, Y, DY, DX, TENSORS };

typedef struct index_data {
    bool is_gather;
    atto_dtype dtype;
    int64_t rows, cols, out; /* of x; out: rows of y */
    float *values[TENSORS];
    void *raw[TENSORS]; /* the same in dtype; INDEX: i32 */
} index_data;

static int64_t rows_of(const index_data *d, int which)
{
    return which == X || which == DX ? d->rows : d->out;
}

static void free_data(index_data *d)
{
    for (int i = 0; i < TENSORS; i++) free(d->values[i]), free(d->raw[i]);
}

/* An index for each element or, of which the first ones are used, for each row. */
static atto_status make_data(index_data *d, atto_device *reference)
{
    const int64_t n = (d->rows > d->out ? d->rows : d->out) * d->cols;
    for (int i = 0; i < TENSORS; i++) {
        d->values[i] = malloc((size_t)n * sizeof(float));
        d->raw[i] = malloc((size_t)n * sizeof(float));
        if (!d->values[i] || !d->raw[i]) return ATTO_E_MEMORY;
    }
    bench_normal(d->values[X], n, 3);
    bench_normal(d->values[DY], n, 4);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)d->raw[INDEX])[i] = (int32_t)(i * i % 7919 % d->rows);
    BENCH_TRY(check_narrow(reference, d->values[X], d->dtype, n, d->raw[X]));
    return check_narrow(reference, d->values[DY], d->dtype, n, d->raw[DY]);
}

static atto_status make_tensor(atto_device *dev, const index_data *d, int which, atto_tensor *t)
{
    const atto_shape rows = atto_shape1(d->out), all = atto_shape2(rows_of(d, which), d->cols);
    if (which == INDEX)
        BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, d->is_gather ? all : rows, t));
    else
        BENCH_TRY(atto_tensor_alloc(dev, d->dtype, all, t));
    if (which == Y || which == DX) return atto_tensor_fill(t, NAN);
    return atto_tensor_write(t, d->raw[which]);
}

static atto_status call(atto_device *dev, const index_data *d, bool backward, const atto_tensor *t)
{
    if (d->is_gather) {
        const struct atto_gather_args a = {
            .x = &t[X], .index = &t[INDEX], .y = &t[Y], .dy = &t[DY], .dx = &t[DX], .dim = 0
        };
        return backward ? atto_gather_backward(dev, &a) : atto_gather_forward(dev, &a);
    }
    const struct atto_index_select_args a = {
        .x = &t[X], .index = &t[INDEX], .y = &t[Y], .dy = &t[DY], .dx = &t[DX], .dim = 0
    };
    return backward ? atto_index_select_backward(dev, &a) : atto_index_select_forward(dev, &a);
}

/* Runs one direction on fresh tensors; out gets y or dx, in dtype. */
static atto_status run(atto_device *dev, const index_data *d, bool backward, void *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    atto_status status = ATTO_OK;
    for (int i = 0; i < TENSORS && status == ATTO_OK; i++) status = make_tensor(dev, d, i, &t[i]);
    if (status == ATTO_OK) status = call(dev, d, backward, t);
    if (status == ATTO_OK) status = atto_tensor_read(&t[backward ? DX : Y], out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* The sums have one order everywhere: nothing but the roundings of a few hundred terms could
 * differ. */
static atto_status compare(atto_device *dev, atto_device *reference, index_data *d, bool backward,
                           double *ratio)
{
    const int64_t n = rows_of(d, backward ? DX : Y) * d->cols;
    BENCH_TRY(make_data(d, reference));
    BENCH_TRY(run(dev, d, backward, d->raw[Y]));
    BENCH_TRY(check_widen(reference, d->raw[Y], d->dtype, n, d->values[Y]));
    BENCH_TRY(run(reference, d, backward, d->raw[DX]));
    BENCH_TRY(check_widen(reference, d->raw[DX], d->dtype, n, d->values[DX]));
    *ratio = 0;
    for (int64_t i = 0; i < n; i++) {
        const double one = check_element(d->dtype, d->values[Y][i], d->values[DX][i], 64 * 0x1p-24);
        if (!(one <= *ratio)) *ratio = isfinite(one) ? one : INFINITY;
    }
    return ATTO_OK;
}

atto_status check_index(atto_device *dev, atto_device *reference, bool is_gather, bool backward,
                        atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        index_data d = { .is_gather = is_gather,
                         .dtype = dtype,
                         .rows = shapes[i][0],
                         .cols = shapes[i][1],
                         .out = shapes[i][2] };
        double worst = INFINITY;
        const atto_status status = compare(dev, reference, &d, backward, &worst);
        free_data(&d);
        if (worst > *ratio) *ratio = worst;
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}
