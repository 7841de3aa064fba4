/* SPDX-License-Identifier: MIT */
/* selftest of the normalisations: the same rows, channels or groups of them, on two devices. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Rows of some elements, or channels of [n, c, size]: in registers, too long for them, odd. */
static const int64_t shapes[][3] = { { 65, 10, 1 }, { 33, 700, 1 }, { 5, 9001, 1 }, { 6, 5, 196 } };

enum { X, W, B, Y, MEAN, RSTD, DY, DX, DW, DB, TENSORS };

/* Host data of one case. */
typedef struct norm_data {
    check_family family;
    atto_dtype dtype;
    atto_shape shape;
    int64_t n, rows, cols; /* elements; what is normalised, and what parameters there are */
    int64_t groups;        /* of an image's channels */
    float *x, *dy, *w, *got, *want;
    void *raw_x, *raw_dy; /* in dtype */
} norm_data;

static void free_data(norm_data *d)
{
    free(d->x), free(d->dy), free(d->w), free(d->got), free(d->want);
    free(d->raw_x), free(d->raw_dy);
}

static void shape_data(norm_data *d, const int64_t *dims)
{
    const bool batch = d->family == CHECK_BATCH_NORM, groups = d->family == CHECK_GROUP_NORM;
    d->shape = atto_shape3(dims[0], dims[1], dims[2]);
    d->n = dims[0] * dims[1] * dims[2];
    d->groups = dims[1] % 5 == 0 ? dims[1] / 5 : 1;
    d->rows = batch ? dims[1] : groups ? dims[0] * d->groups : dims[0];
    d->cols = batch || groups ? dims[1] : dims[1] * dims[2];
}

static atto_status make_data(norm_data *d, atto_device *reference)
{
    float **arrays[] = { &d->x, &d->dy, &d->got, &d->want };
    for (int i = 0; i < 4; i++) *arrays[i] = malloc((size_t)d->n * sizeof(float));
    d->raw_x = malloc((size_t)d->n * sizeof(float));
    d->raw_dy = malloc((size_t)d->n * sizeof(float));
    d->w = malloc((size_t)d->cols * sizeof(float));
    if (!d->x || !d->dy || !d->got || !d->want || !d->raw_x || !d->raw_dy || !d->w)
        return ATTO_E_MEMORY;
    bench_normal(d->x, d->n, 3);
    bench_normal(d->dy, d->n, 4);
    bench_normal(d->w, d->cols, 5);
    BENCH_TRY(check_narrow(reference, d->x, d->dtype, d->n, d->raw_x));
    return check_narrow(reference, d->dy, d->dtype, d->n, d->raw_dy);
}

static atto_status make_tensors(atto_device *dev, const norm_data *d, atto_tensor *t)
{
    const int full[] = { X, Y, DY, DX }, of_cols[] = { W, B, DW, DB }, of_rows[] = { MEAN, RSTD };
    for (int i = 0; i < 4; i++) BENCH_TRY(atto_tensor_alloc(dev, d->dtype, d->shape, &t[full[i]]));
    for (int i = 0; i < 4; i++)
        BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(d->cols), &t[of_cols[i]]));
    for (int i = 0; i < 2; i++)
        BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(d->rows), &t[of_rows[i]]));
    BENCH_TRY(atto_tensor_write(&t[X], d->raw_x));
    BENCH_TRY(atto_tensor_write(&t[DY], d->raw_dy));
    BENCH_TRY(atto_tensor_write(&t[W], d->w));
    BENCH_TRY(atto_tensor_write(&t[B], d->w));
    BENCH_TRY(atto_tensor_fill(&t[Y], NAN));
    return atto_tensor_fill(&t[DX], NAN);
}

static atto_status call_rows(atto_device *dev, const norm_data *d, bool backward, atto_tensor *t)
{
    /* Rows are [n, c * size]. */
    const int full[] = { X, Y, DY, DX };
    for (int i = 0; i < 4; i++)
        BENCH_TRY(atto_tensor_reshape(&t[full[i]], atto_shape2(d->rows, d->cols), &t[full[i]]));
    const struct atto_layer_norm_args layer = { .x = &t[X],
                                                .w = &t[W],
                                                .b = &t[B],
                                                .y = &t[Y],
                                                .mean = &t[MEAN],
                                                .rstd = &t[RSTD],
                                                .dy = &t[DY],
                                                .dx = &t[DX],
                                                .dw = &t[DW],
                                                .db = &t[DB],
                                                .dims = 1,
                                                .eps = 1e-3f };
    const struct atto_rms_norm_args rms = { .x = &t[X],
                                            .w = &t[W],
                                            .y = &t[Y],
                                            .rstd = &t[RSTD],
                                            .dy = &t[DY],
                                            .dx = &t[DX],
                                            .dw = &t[DW],
                                            .dims = 1,
                                            .eps = 1e-3f };
    if (d->family == CHECK_RMS_NORM) {
        BENCH_TRY(atto_rms_norm_forward(dev, &rms));
        return backward ? atto_rms_norm_backward(dev, &rms) : ATTO_OK;
    }
    BENCH_TRY(atto_layer_norm_forward(dev, &layer));
    return backward ? atto_layer_norm_backward(dev, &layer) : ATTO_OK;
}

static atto_status call_channels(atto_device *dev, bool backward, atto_tensor *t)
{
    const struct atto_batch_norm_args a = { .x = &t[X],
                                            .w = &t[W],
                                            .b = &t[B],
                                            .y = &t[Y],
                                            .mean = &t[MEAN],
                                            .rstd = &t[RSTD],
                                            .dy = &t[DY],
                                            .dx = &t[DX],
                                            .dw = &t[DW],
                                            .db = &t[DB],
                                            .training = true,
                                            .momentum = 0.1f,
                                            .eps = 1e-3f };
    BENCH_TRY(atto_batch_norm_forward(dev, &a));
    return backward ? atto_batch_norm_backward(dev, &a) : ATTO_OK;
}

static atto_status call_groups(atto_device *dev, const norm_data *d, bool backward, atto_tensor *t)
{
    const atto_shape stats = atto_shape2(d->shape.dim[0], d->groups);
    BENCH_TRY(atto_tensor_reshape(&t[MEAN], stats, &t[MEAN]));
    BENCH_TRY(atto_tensor_reshape(&t[RSTD], stats, &t[RSTD]));
    const struct atto_group_norm_args a = { .x = &t[X],
                                            .w = &t[W],
                                            .b = &t[B],
                                            .y = &t[Y],
                                            .mean = &t[MEAN],
                                            .rstd = &t[RSTD],
                                            .dy = &t[DY],
                                            .dx = &t[DX],
                                            .dw = &t[DW],
                                            .db = &t[DB],
                                            .groups = d->groups,
                                            .eps = 1e-3f };
    BENCH_TRY(atto_group_norm_forward(dev, &a));
    return backward ? atto_group_norm_backward(dev, &a) : ATTO_OK;
}

static atto_status run(atto_device *dev, atto_device *reference, norm_data *d, bool backward,
                       float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    atto_status status = make_tensors(dev, d, t);
    if (status == ATTO_OK && d->family == CHECK_BATCH_NORM)
        status = call_channels(dev, backward, t);
    else if (status == ATTO_OK)
        status = d->family == CHECK_GROUP_NORM ? call_groups(dev, d, backward, t)
                                               : call_rows(dev, d, backward, t);
    if (status == ATTO_OK) status = atto_tensor_read(&t[backward ? DX : Y], d->raw_x);
    if (status == ATTO_OK) status = check_widen(reference, d->raw_x, d->dtype, d->n, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

static atto_status run_both(atto_device *dev, atto_device *reference, norm_data *d, bool backward)
{
    BENCH_TRY(make_data(d, reference));
    BENCH_TRY(run(dev, reference, d, backward, d->got));
    BENCH_TRY(check_narrow(reference, d->x, d->dtype, d->n, d->raw_x)); /* run has overwritten it */
    return run(reference, reference, d, backward, d->want);
}

/* A step of the stored result, and roundings of sums of terms of size up to about 10. */
static double worst_ratio(const norm_data *d)
{
    const double step = d->dtype == ATTO_F32 ? 0x1p-23 : d->dtype == ATTO_F16 ? 0x1p-10 : 0x1p-7;
    double worst = 0;
    for (int64_t i = 0; i < d->n; i++) {
        const double want = d->want[i], error = fabs(d->got[i] - want);
        const double allowed = 128 * 0x1p-24 * 10 + step * fabs(want) + 0x1p-24;
        if (!(error / allowed <= worst)) worst = isfinite(error) ? error / allowed : INFINITY;
    }
    return worst;
}

atto_status check_norm(atto_device *dev, atto_device *reference, check_family family, bool backward,
                       atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        norm_data d = { .family = family, .dtype = dtype };
        shape_data(&d, shapes[i]);
        const atto_status status = run_both(dev, reference, &d, backward);
        const double worst = status == ATTO_OK ? worst_ratio(&d) : INFINITY;
        if (worst > *ratio) *ratio = worst;
        free_data(&d);
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}
