/* SPDX-License-Identifier: MIT */
/* selftest of padding and resizing: images on two devices, along rows and along channels. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* What pad puts around an image, and where resize ends: whole vectors and odd sizes. */
static const struct image_row {
    int64_t shape[4];  /* N, C, H, W */
    int64_t around[4]; /* top, bottom, left, right */
    int64_t out[2];    /* height, width */
} rows[] = {
    { { 2, 8, 30, 32 }, { 1, 1, 4, 4 }, { 60, 64 } },
    { { 2, 3, 17, 19 }, { 0, 5, 3, 1 }, { 9, 40 } },
    { { 1, 16, 9, 7 }, { 8, 2, 0, 6 }, { 13, 3 } },
};

enum { X, Y, DY, DX, TENSORS };

/* One case; results are host arrays, in f32. */
typedef struct image_data {
    const struct image_row *row;
    check_family family; /* CHECK_PAD, CHECK_RESIZE */
    int kind;            /* atto_pad_kind; 0, 1, 2: nearest, linear, with align_corners */
    atto_dtype dtype;
    bool channels_last, backward;
    int64_t small, large; /* elements of x, of y */
    void *x, *dy;         /* in dtype */
} image_data;

static void result_of(const image_data *d, int64_t *y)
{
    const struct image_row *r = d->row;
    const bool pads = d->family == CHECK_PAD;
    y[0] = r->shape[0], y[1] = r->shape[1];
    for (int k = 0; k < 2; k++)
        y[2 + k] = pads ? r->shape[2 + k] + r->around[2 * k] + r->around[2 * k + 1] : r->out[k];
}

static atto_status make_image(atto_device *dev, const image_data *d, const int64_t *shape,
                              atto_tensor *out)
{
    const int32_t order[] = { 0, 3, 1, 2 };
    const atto_shape stored = d->channels_last ? atto_shape4(shape[0], shape[2], shape[3], shape[1])
                                               : atto_shape_of(4, shape);
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, stored, out));
    return d->channels_last ? atto_tensor_permute(out, order, out) : ATTO_OK;
}

static atto_status pad(atto_device *dev, const image_data *d, const atto_tensor *t)
{
    const int64_t *around = d->row->around;
    const struct atto_pad_args a = { .x = &t[X],
                                     .y = &t[Y],
                                     .dy = &t[DY],
                                     .dx = &t[DX],
                                     .mode = (atto_pad_kind)d->kind,
                                     .value = 0.5,
                                     .before = { 0, 0, around[0], around[2] },
                                     .after = { 0, 0, around[1], around[3] } };
    return d->backward ? atto_pad_backward(dev, &a) : atto_pad_forward(dev, &a);
}

static atto_status resize(atto_device *dev, const image_data *d, const atto_tensor *t)
{
    const struct atto_resize_args a = { .x = &t[X],
                                        .y = &t[Y],
                                        .dy = &t[DY],
                                        .dx = &t[DX],
                                        .mode =
                                            d->kind == 0 ? ATTO_RESIZE_NEAREST : ATTO_RESIZE_LINEAR,
                                        .align_corners = d->kind == 2,
                                        .dims = 2 };
    return d->backward ? atto_resize_backward(dev, &a) : atto_resize_forward(dev, &a);
}

static atto_status call(atto_device *dev, const image_data *d, atto_tensor *t, void *out)
{
    int64_t y[4];
    result_of(d, y);
    for (int i = 0; i < TENSORS; i++)
        BENCH_TRY(make_image(dev, d, i == X || i == DX ? d->row->shape : y, &t[i]));
    BENCH_TRY(atto_tensor_write(&t[X], d->x));
    BENCH_TRY(atto_tensor_write(&t[DY], d->dy));
    BENCH_TRY(atto_tensor_fill(&t[Y], NAN));
    BENCH_TRY(atto_tensor_fill(&t[DX], NAN));
    BENCH_TRY(d->family == CHECK_PAD ? pad(dev, d, t) : resize(dev, d, t));
    return atto_tensor_read(&t[d->backward ? DX : Y], out);
}

static atto_status run(atto_device *dev, atto_device *reference, const image_data *d, void *raw,
                       float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    atto_status status = call(dev, d, t, raw);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    if (status == ATTO_OK)
        status = check_widen(reference, raw, d->dtype, d->backward ? d->small : d->large, out);
    return status;
}

/* Values of x and dy are a few units: sums of some dozen terms, shares of coordinates up to 32. */
static atto_status compare(atto_device *dev, atto_device *reference, image_data *d, float *x,
                           void *raw, float *got, float *want, double *ratio)
{
    bench_normal(x, d->small, 3);
    BENCH_TRY(check_narrow(reference, x, d->dtype, d->small, d->x));
    bench_normal(x, d->large, 4);
    BENCH_TRY(check_narrow(reference, x, d->dtype, d->large, d->dy));
    BENCH_TRY(run(dev, reference, d, raw, got));
    BENCH_TRY(run(reference, reference, d, raw, want));
    for (int64_t i = 0; i < (d->backward ? d->small : d->large); i++) {
        const double share = check_element(d->dtype, got[i], want[i], 256.0 * 0x1p-24 * 4.0);
        if (!(share <= *ratio)) *ratio = share;
    }
    return ATTO_OK;
}

static atto_status check_case(atto_device *dev, atto_device *reference, image_data *d,
                              double *ratio)
{
    const int64_t *shape = d->row->shape;
    int64_t y[4];
    result_of(d, y);
    d->small = shape[0] * shape[1] * shape[2] * shape[3];
    d->large = y[0] * y[1] * y[2] * y[3];
    const size_t bytes = (size_t)(d->small > d->large ? d->small : d->large) * sizeof(float);
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

atto_status check_image(atto_device *dev, atto_device *reference, const check_op *op, bool backward,
                        atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int last = 0; last < 2; last++) {
            image_data d = { .row = &rows[i],
                             .family = op->family,
                             .kind = op->kind,
                             .dtype = dtype,
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
