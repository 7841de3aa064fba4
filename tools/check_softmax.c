/* SPDX-License-Identifier: MIT */
/* selftest of softmax and gated linear units: rows of three lengths on two devices. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Few elements, some, many; a work-item, a part of a work-group or all of one has a row. */
static const int64_t shapes[][2] = { { 65, 10 }, { 33, 700 }, { 5, 5002 } };

enum { X, Y, DY, DX, TENSORS };

typedef struct rows_data {
    const check_op *op;
    atto_dtype dtype;
    int64_t rows, cols, half; /* half: columns of y and dy */
    float *values[TENSORS];   /* Y, DX: results */
    void *raw[TENSORS];       /* the same in dtype; Y is forward's on the reference */
} rows_data;

static bool is_glu(const rows_data *d)
{
    return d->op->family == CHECK_GLU;
}

static int64_t columns_of(const rows_data *d, int which)
{
    return which == Y || which == DY ? d->half : d->cols;
}

static void free_data(rows_data *d)
{
    for (int i = 0; i < TENSORS; i++) free(d->values[i]), free(d->raw[i]);
}

/* x from N(0, 9), dy from N(0, 1). */
static atto_status make_data(rows_data *d, atto_device *reference)
{
    const int64_t n = d->rows * d->cols;
    for (int i = 0; i < TENSORS; i++) {
        d->values[i] = malloc((size_t)n * sizeof(float));
        d->raw[i] = malloc((size_t)n * sizeof(float));
        if (!d->values[i] || !d->raw[i]) return ATTO_E_MEMORY;
    }
    bench_normal(d->values[X], n, 3);
    bench_normal(d->values[DY], n, 4);
    for (int64_t i = 0; i < n; i++) d->values[X][i] *= 3;
    BENCH_TRY(check_narrow(reference, d->values[X], d->dtype, n, d->raw[X]));
    return check_narrow(reference, d->values[DY], d->dtype, n, d->raw[DY]);
}

static atto_status call(atto_device *dev, const rows_data *d, bool backward, const atto_tensor *t)
{
    if (is_glu(d)) {
        const struct atto_glu_args a = {
            .x = &t[X], .y = &t[Y], .dy = &t[DY], .dx = &t[DX], .act = d->op->act, .dim = 1
        };
        return backward ? atto_glu_backward(dev, &a) : atto_glu_forward(dev, &a);
    }
    const struct atto_softmax_args a = { .x = &t[X],
                                         .y = &t[Y],
                                         .dy = &t[DY],
                                         .dx = &t[DX],
                                         .kind = (atto_softmax_kind)d->op->kind,
                                         .dim = 1 };
    return backward ? atto_softmax_backward(dev, &a) : atto_softmax_forward(dev, &a);
}

/* Runs one direction on fresh tensors; out gets y or dx, in dtype. */
static atto_status run_on(atto_device *dev, const rows_data *d, bool backward, atto_tensor *t,
                          void *out)
{
    for (int i = 0; i < TENSORS; i++) {
        BENCH_TRY(atto_tensor_alloc(dev, d->dtype, atto_shape2(d->rows, columns_of(d, i)), &t[i]));
        BENCH_TRY(i == DX || (i == Y && !backward) ? atto_tensor_fill(&t[i], NAN)
                                                   : atto_tensor_write(&t[i], d->raw[i]));
    }
    BENCH_TRY(call(dev, d, backward, t));
    return atto_tensor_read(&t[backward ? DX : Y], out);
}

static atto_status run(atto_device *dev, const rows_data *d, bool backward, void *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    const atto_status status = run_on(dev, d, backward, t, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* Roundings of sums of up to 5002 terms: of shares of 1, logs up to about 30, and a gradient's
 * terms, which for log-softmax sum up all of dy. */
static double worst_ratio(const rows_data *d, bool backward, const float *got, const float *want)
{
    const bool is_log = !is_glu(d) && d->op->kind == ATTO_SOFTMAX_LOG;
    const double terms = is_glu(d) ? 32.0 : is_log ? (backward ? 128.0 : 30.0) : 4.0;
    double worst = 0;
    for (int64_t i = 0; i < d->rows * (backward ? d->cols : d->half); i++) {
        const double ratio = check_element(d->dtype, got[i], want[i], 64 * 0x1p-24 * terms);
        if (!(ratio <= worst)) worst = isfinite(ratio) ? ratio : INFINITY;
    }
    return worst;
}

/* Both devices; backward starts from the y of the reference. */
static atto_status compare(atto_device *dev, atto_device *reference, rows_data *d, bool backward,
                           double *ratio)
{
    const int64_t n = d->rows * (backward ? d->cols : d->half);
    BENCH_TRY(make_data(d, reference));
    BENCH_TRY(run(reference, d, false, d->raw[Y]));
    BENCH_TRY(run(dev, d, backward, d->raw[DX]));
    BENCH_TRY(check_widen(reference, d->raw[DX], d->dtype, n, d->values[Y]));
    BENCH_TRY(run(reference, d, backward, d->raw[DX]));
    BENCH_TRY(check_widen(reference, d->raw[DX], d->dtype, n, d->values[DX]));
    *ratio = worst_ratio(d, backward, d->values[Y], d->values[DX]);
    return ATTO_OK;
}

atto_status check_rows(atto_device *dev, atto_device *reference, const check_op *op, bool backward,
                       atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        rows_data d = { .op = op, .dtype = dtype, .rows = shapes[i][0], .cols = shapes[i][1] };
        double worst = INFINITY;
        d.half = is_glu(&d) ? d.cols / 2 : d.cols;
        const atto_status status = compare(dev, reference, &d, backward, &worst);
        free_data(&d);
        if (worst > *ratio) *ratio = worst;
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}
