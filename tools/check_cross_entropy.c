/* SPDX-License-Identifier: MIT */
/* selftest of cross-entropy: logits and labels on two devices. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Few classes, some, many; a work-item, a part of a work-group or all of one has a position. */
static const int64_t shapes[][2] = { { 65, 10 }, { 33, 700 }, { 5, 5001 } };

enum { X, LABELS, LOSS, LSE, TOTAL, DLOSS, DX, TENSORS };

/* Host data of one case. */
typedef struct ce_data {
    atto_dtype dtype;
    int64_t rows, cols;
    float *x, *got, *want;
    void *raw; /* in dtype */
    int32_t *labels;
} ce_data;

static void free_data(ce_data *d)
{
    free(d->x), free(d->got), free(d->want), free(d->raw), free(d->labels);
}

/* Logits from N(0, 9); every seventh label is -1, which is ignored. */
static atto_status make_data(ce_data *d, atto_device *reference)
{
    const int64_t n = d->rows * d->cols;
    d->x = malloc((size_t)n * sizeof *d->x);
    d->got = malloc((size_t)n * sizeof *d->got);
    d->want = malloc((size_t)n * sizeof *d->want);
    d->raw = malloc((size_t)n * sizeof *d->x);
    d->labels = malloc((size_t)d->rows * sizeof *d->labels);
    if (!d->x || !d->got || !d->want || !d->raw || !d->labels) return ATTO_E_MEMORY;
    bench_normal(d->x, n, 3);
    for (int64_t i = 0; i < n; i++) d->x[i] *= 3;
    for (int64_t i = 0; i < d->rows; i++)
        d->labels[i] = i % 7 == 6 ? -1 : (int32_t)(i * 31 % d->cols);
    return check_narrow(reference, d->x, d->dtype, n, d->raw);
}

static atto_status make_tensors(atto_device *dev, const ce_data *d, atto_tensor *t)
{
    const atto_shape matrix = atto_shape2(d->rows, d->cols), scalar = atto_shape_of(0, NULL);
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, matrix, &t[X]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, atto_shape1(d->rows), &t[LABELS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t[LOSS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(d->rows), &t[LSE]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t[TOTAL]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t[DLOSS]));
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, matrix, &t[DX]));
    BENCH_TRY(atto_tensor_write(&t[X], d->raw));
    BENCH_TRY(atto_tensor_write(&t[LABELS], d->labels));
    BENCH_TRY(atto_tensor_fill(&t[DX], NAN));
    return atto_tensor_fill(&t[DLOSS], 100.0); /* f16 gradients are not subnormal */
}

/* out: the loss, or dx. */
static atto_status call(atto_device *dev, const ce_data *d, bool backward, atto_tensor *t,
                        float *out)
{
    BENCH_TRY(make_tensors(dev, d, t));
    const struct atto_cross_entropy_args a = { .x = &t[X],
                                               .target = &t[LABELS],
                                               .loss = &t[LOSS],
                                               .lse = &t[LSE],
                                               .total = &t[TOTAL],
                                               .dloss = &t[DLOSS],
                                               .dx = &t[DX],
                                               .has_ignore_index = true,
                                               .ignore_index = -1 };
    BENCH_TRY(atto_cross_entropy_forward(dev, &a));
    if (!backward) return atto_tensor_read(&t[LOSS], out);
    BENCH_TRY(atto_cross_entropy_backward(dev, &a));
    return atto_tensor_read(&t[DX], out);
}

static atto_status run(atto_device *dev, const ce_data *d, bool backward, float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    const atto_status status = call(dev, d, backward, t, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* Both devices, widened to f32. */
static atto_status run_both(atto_device *dev, atto_device *reference, ce_data *d, bool backward)
{
    const int64_t n = d->rows * d->cols;
    BENCH_TRY(make_data(d, reference));
    BENCH_TRY(run(dev, d, backward, d->got));
    BENCH_TRY(run(reference, d, backward, d->want));
    if (!backward || d->dtype == ATTO_F32) return ATTO_OK;
    float *const results[] = { d->got, d->want };
    for (int i = 0; i < 2; i++) {
        BENCH_TRY(check_widen(reference, results[i], d->dtype, n, d->x));
        for (int64_t k = 0; k < n; k++) results[i][k] = d->x[k];
    }
    return ATTO_OK;
}

/* A step of the stored result, and roundings of sums of up to cols terms of size 1 beside logits of
 * up to about 20. The gradient's terms are dloss / total times softmax, at most 100 / rows. */
static double worst_ratio(const ce_data *d, bool backward)
{
    const double terms = backward ? 200.0 / (double)d->rows : 20.0;
    const double step = !backward || d->dtype == ATTO_F32 ? 0x1p-23
                        : d->dtype == ATTO_F16            ? 0x1p-10
                                                          : 0x1p-7;
    double worst = 0;
    for (int64_t i = 0; i < (backward ? d->rows * d->cols : 1); i++) {
        const double want = d->want[i], error = fabs(d->got[i] - want);
        const double allowed = 256 * 0x1p-24 * terms + step * fabs(want) + 0x1p-24;
        if (!(error / allowed <= worst)) worst = isfinite(error) ? error / allowed : INFINITY;
    }
    return worst;
}

atto_status check_cross_entropy(atto_device *dev, atto_device *reference, bool backward,
                                atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        ce_data d = { .dtype = dtype, .rows = shapes[i][0], .cols = shapes[i][1] };
        const atto_status status = run_both(dev, reference, &d, backward);
        const double worst = status == ATTO_OK ? worst_ratio(&d, backward) : INFINITY;
        if (worst > *ratio) *ratio = worst;
        free_data(&d);
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}
