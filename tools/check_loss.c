/* SPDX-License-Identifier: MIT */
/* selftest of losses: pointwise ones and that of labels, on two devices. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Rows and classes of nll_loss, elements of the others: less than a vector, a tail, many
 * work-groups. */
static const int64_t shapes[][2] = { { 1, 3 }, { 65, 10 }, { 33, 701 }, { 5, 5001 } };

enum { X, TARGET, LOSS, DLOSS, DX, TENSORS };

/* Host data of one case. */
typedef struct loss_data {
    int kind; /* atto_loss_kind, or CHECK_NLL */
    atto_dtype dtype;
    int64_t rows, cols, n;
    float *x, *target, *got, *want;
    void *raw_x, *raw_target; /* in dtype */
    int32_t *labels;
} loss_data;

static void free_data(loss_data *d)
{
    free(d->x), free(d->target), free(d->got), free(d->want);
    free(d->raw_x), free(d->raw_target), free(d->labels);
}

/* Where the loss makes sense: logits, logarithms of probabilities, probabilities. */
static void draw(loss_data *d)
{
    const bool kl = d->kind == ATTO_LOSS_KL_DIV || d->kind == ATTO_LOSS_KL_DIV_LOG;
    bench_normal(d->x, d->n, 4);
    bench_normal(d->target, d->n, 5);
    for (int64_t i = 0; i < d->n; i++) {
        const float size = fabsf(d->target[i]);
        if (kl) d->x[i] = -fabsf(d->x[i]);
        if (d->kind == ATTO_LOSS_BCE_WITH_LOGITS || d->kind == ATTO_LOSS_KL_DIV)
            d->target[i] = i % 5 == 0 ? 0.0f : size / (1.0f + size);
        if (d->kind == ATTO_LOSS_KL_DIV_LOG) d->target[i] = -size;
    }
    for (int64_t i = 0; i < d->rows; i++)
        d->labels[i] = i % 7 == 6 ? -1 : (int32_t)(i * 31 % d->cols);
}

static atto_status make_data(loss_data *d, atto_device *reference)
{
    d->n = d->rows * d->cols;
    d->x = malloc((size_t)d->n * sizeof(float));
    d->target = malloc((size_t)d->n * sizeof(float));
    d->got = malloc((size_t)d->n * sizeof(float));
    d->want = malloc((size_t)d->n * sizeof(float));
    d->raw_x = malloc((size_t)d->n * sizeof(float));
    d->raw_target = malloc((size_t)d->n * sizeof(float));
    d->labels = malloc((size_t)d->rows * sizeof *d->labels);
    if (!d->x || !d->target || !d->got || !d->want || !d->raw_x || !d->raw_target || !d->labels)
        return ATTO_E_MEMORY;
    draw(d);
    BENCH_TRY(check_narrow(reference, d->x, d->dtype, d->n, d->raw_x));
    BENCH_TRY(check_narrow(reference, d->target, d->dtype, d->n, d->raw_target));
    BENCH_TRY(check_widen(reference, d->raw_x, d->dtype, d->n, d->x));
    return check_widen(reference, d->raw_target, d->dtype, d->n, d->target);
}

static atto_status make_tensors(atto_device *dev, const loss_data *d, atto_tensor *t)
{
    const bool nll = d->kind == CHECK_NLL;
    const atto_shape matrix = atto_shape2(d->rows, d->cols), scalar = atto_shape_of(0, NULL);
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, matrix, &t[X]));
    BENCH_TRY(atto_tensor_alloc(dev, nll ? ATTO_I32 : d->dtype, nll ? atto_shape1(d->rows) : matrix,
                                &t[TARGET]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t[LOSS]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, scalar, &t[DLOSS]));
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, matrix, &t[DX]));
    BENCH_TRY(atto_tensor_write(&t[X], d->raw_x));
    BENCH_TRY(atto_tensor_write(&t[TARGET], nll ? (const void *)d->labels : d->raw_target));
    BENCH_TRY(atto_tensor_fill(&t[DX], NAN));
    return atto_tensor_fill(&t[DLOSS], (double)d->n); /* slopes of about 1 */
}

static atto_status call_nll(atto_device *dev, bool backward, const atto_tensor *t)
{
    const struct atto_nll_loss_args a = { .x = &t[X],
                                          .target = &t[TARGET],
                                          .loss = &t[LOSS],
                                          .dloss = &t[DLOSS],
                                          .dx = &t[DX],
                                          .has_ignore_index = true,
                                          .ignore_index = -1 };
    return backward ? atto_nll_loss_backward(dev, &a) : atto_nll_loss_forward(dev, &a);
}

/* out: the mean, or dx. */
static atto_status call(atto_device *dev, const loss_data *d, bool backward, atto_tensor *t,
                        float *out)
{
    BENCH_TRY(make_tensors(dev, d, t));
    const struct atto_loss_args a = { .x = &t[X],
                                      .target = &t[TARGET],
                                      .loss = &t[LOSS],
                                      .dloss = &t[DLOSS],
                                      .dx = &t[DX],
                                      .kind = (atto_loss_kind)d->kind,
                                      .threshold = 0.5f };
    if (d->kind == CHECK_NLL)
        BENCH_TRY(call_nll(dev, backward, t));
    else
        BENCH_TRY(backward ? atto_loss_backward(dev, &a) : atto_loss_forward(dev, &a));
    return atto_tensor_read(backward ? &t[DX] : &t[LOSS], out);
}

static atto_status run(atto_device *dev, const loss_data *d, bool backward, float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    const atto_status status = call(dev, d, backward, t, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* Both devices, widened to f32. */
static atto_status run_both(atto_device *dev, atto_device *reference, loss_data *d, bool backward)
{
    float *const results[] = { d->got, d->want };
    BENCH_TRY(run(dev, d, backward, d->got));
    BENCH_TRY(run(reference, d, backward, d->want));
    for (int i = 0; i < 2 && backward && d->dtype != ATTO_F32; i++) {
        BENCH_TRY(check_widen(reference, results[i], d->dtype, d->n, d->x));
        for (int64_t k = 0; k < d->n; k++) results[i][k] = d->x[k];
    }
    return ATTO_OK;
}

/* Terms are below 100: squares of normal numbers, or e^|t| |t - x|. 64 roundings of one, and of
 * sums of up to 200 in a row. */
static double worst_ratio(const loss_data *d, bool backward)
{
    const atto_dtype dtype = backward ? d->dtype : ATTO_F32;
    const double roundings = backward ? 64.0 : 264.0;
    double worst = 0;
    for (int64_t i = 0; i < (backward ? d->n : 1); i++) {
        const double tolerance = roundings * 0x1p-24 * (1.0 + fabs((double)d->want[i]));
        const double ratio = check_element(dtype, d->got[i], d->want[i], tolerance);
        if (ratio > worst) worst = ratio;
    }
    return worst;
}

atto_status check_loss(atto_device *dev, atto_device *reference, int kind, bool backward,
                       atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        loss_data d = { .kind = kind, .dtype = dtype, .rows = shapes[i][0], .cols = shapes[i][1] };
        atto_status status = make_data(&d, reference);
        if (status == ATTO_OK) status = run_both(dev, reference, &d, backward);
        const double worst = status == ATTO_OK ? worst_ratio(&d, backward) : INFINITY;
        if (worst > *ratio) *ratio = worst;
        free_data(&d);
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}
