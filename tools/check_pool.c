/* SPDX-License-Identifier: MIT */
/* selftest of pooling: images on two devices, along rows and along channels. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Each kernel: 2 x 2 and 3 x 3 with stride 2, another window, one that work-items share,
 * adaptive. */
static const struct pool_row {
    int64_t shape[4]; /* N, C, H, W */
    int64_t kernel, stride, padding;
    int64_t out; /* not 0: adaptive */
} rows[] = {
    { { 2, 8, 30, 33 }, 2, 2, 0, 0 }, { { 2, 8, 29, 32 }, 3, 2, 1, 0 },
    { { 1, 5, 17, 19 }, 4, 3, 2, 0 }, { { 1, 16, 40, 40 }, 20, 10, 0, 0 },
    { { 2, 3, 23, 31 }, 0, 0, 0, 7 },
};

enum { X, Y, INDICES, DY, DX, TENSORS };

/* One case of one device; results are host arrays, in f32. */
typedef struct pool_data {
    const struct pool_row *row;
    atto_dtype dtype;
    bool is_max, channels_last, backward;
    int64_t big, small; /* elements of x, of y */
    void *x, *dy;       /* in dtype */
} pool_data;

static int64_t outputs_of(const struct pool_row *r, int64_t in)
{
    return r->out ? r->out : (in + 2 * r->padding - r->kernel) / r->stride + 1;
}

static atto_status make_image(atto_device *dev, atto_dtype dtype, const int64_t *shape, bool last,
                              atto_tensor *out)
{
    const int32_t order[] = { 0, 3, 1, 2 };
    const atto_shape stored =
        last ? atto_shape4(shape[0], shape[2], shape[3], shape[1]) : atto_shape_of(4, shape);
    BENCH_TRY(atto_tensor_alloc(dev, dtype, stored, out));
    return last ? atto_tensor_permute(out, order, out) : ATTO_OK;
}

static atto_status make_tensors(atto_device *dev, const pool_data *d, atto_tensor *t)
{
    const struct pool_row *r = d->row;
    const int64_t y[4] = { r->shape[0], r->shape[1], outputs_of(r, r->shape[2]),
                           outputs_of(r, r->shape[3]) };
    BENCH_TRY(make_image(dev, d->dtype, r->shape, d->channels_last, &t[X]));
    BENCH_TRY(make_image(dev, d->dtype, r->shape, d->channels_last, &t[DX]));
    BENCH_TRY(make_image(dev, d->dtype, y, d->channels_last, &t[Y]));
    BENCH_TRY(make_image(dev, d->dtype, y, d->channels_last, &t[DY]));
    BENCH_TRY(make_image(dev, ATTO_I32, y, d->channels_last, &t[INDICES]));
    BENCH_TRY(atto_tensor_write(&t[X], d->x));
    BENCH_TRY(atto_tensor_write(&t[DY], d->dy));
    BENCH_TRY(atto_tensor_fill(&t[Y], NAN));
    return atto_tensor_fill(&t[DX], NAN);
}

static atto_status call(atto_device *dev, const pool_data *d, atto_tensor *t, void *out)
{
    const struct pool_row *r = d->row;
    const atto_pool_window window = { .dims = 2,
                                      .adaptive = r->out != 0,
                                      .kernel = { r->kernel, r->kernel },
                                      .stride = { r->stride, r->stride },
                                      .padding = { r->padding, r->padding },
                                      .dilation = { 1, 1 } };
    BENCH_TRY(make_tensors(dev, d, t));
    const struct atto_avg_pool_args avg = {
        .x = &t[X], .y = &t[Y], .dy = &t[DY], .dx = &t[DX], .window = window
    };
    const struct atto_max_pool_args max = {
        .x = &t[X], .y = &t[Y], .indices = &t[INDICES], .dy = &t[DY], .dx = &t[DX], .window = window
    };
    BENCH_TRY(d->is_max ? atto_max_pool_forward(dev, &max) : atto_avg_pool_forward(dev, &avg));
    if (!d->backward) return atto_tensor_read(&t[Y], out);
    BENCH_TRY(d->is_max ? atto_max_pool_backward(dev, &max) : atto_avg_pool_backward(dev, &avg));
    return atto_tensor_read(&t[DX], out);
}

static atto_status run(atto_device *dev, atto_device *reference, const pool_data *d, void *raw,
                       float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    atto_status status = call(dev, d, t, raw);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    if (status == ATTO_OK)
        status = check_widen(reference, raw, d->dtype, d->backward ? d->big : d->small, out);
    return status;
}

/* Values of x and dy are a few units: sums of up to 400 terms, divided. */
static atto_status compare(atto_device *dev, atto_device *reference, pool_data *d, float *x,
                           void *raw, float *got, float *want, double *ratio)
{
    bench_normal(x, d->big, 3);
    BENCH_TRY(check_narrow(reference, x, d->dtype, d->big, d->x));
    bench_normal(x, d->small, 4);
    BENCH_TRY(check_narrow(reference, x, d->dtype, d->small, d->dy));
    BENCH_TRY(run(dev, reference, d, raw, got));
    BENCH_TRY(run(reference, reference, d, raw, want));
    for (int64_t i = 0; i < (d->backward ? d->big : d->small); i++) {
        const double share = check_element(d->dtype, got[i], want[i], 64.0 * 0x1p-24 * 4.0);
        if (!(share <= *ratio)) *ratio = share;
    }
    return ATTO_OK;
}

static atto_status check_case(atto_device *dev, atto_device *reference, pool_data *d, double *ratio)
{
    const struct pool_row *r = d->row;
    const int64_t planes = r->shape[0] * r->shape[1];
    d->big = planes * r->shape[2] * r->shape[3];
    d->small = planes * outputs_of(r, r->shape[2]) * outputs_of(r, r->shape[3]);
    const size_t bytes = (size_t)d->big * sizeof(float);
    float *x = malloc(bytes), *got = malloc(bytes), *want = malloc(bytes);
    void *raw = malloc(bytes);
    d->x = malloc(bytes);
    d->dy = malloc(bytes);
    atto_status status = ATTO_E_MEMORY;
    if (x && got && want && raw && d->x && d->dy)
        status = compare(dev, reference, d, x, raw, got, want, ratio);
    free(x), free(got), free(want), free(raw), free(d->x), free(d->dy);
    return status;
}

atto_status check_pool(atto_device *dev, atto_device *reference, bool is_max, bool backward,
                       atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int last = 0; last < 2; last++) {
            pool_data d = { .row = &rows[i],
                            .dtype = dtype,
                            .is_max = is_max,
                            .channels_last = last == 1,
                            .backward = backward };
            const atto_status status = check_case(dev, reference, &d, ratio);
            if (status != ATTO_OK) {
                *ratio = INFINITY;
                return status;
            }
        }
    return ATTO_OK;
}
