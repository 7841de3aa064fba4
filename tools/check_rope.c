/* SPDX-License-Identifier: MIT */
/* selftest of rope: the same heads on two devices. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Batches, heads, positions, size, what is turned of it: whole vectors and odd sizes, one head and some, the
 * second time with positions that are named. */
static const int64_t shapes[][5] = {
    { 2, 5, 33, 64, 64 }, { 1, 1, 70, 128, 96 }, { 3, 3, 17, 13, 10 }, { 2, 8, 9, 48, 32 }
};

#define ROWS 80

typedef struct rope_data {
    const int64_t *shape;
    int64_t n;
    atto_dtype dtype;
    bool neighbours, named;
    float *values, *got, *want;
    void *in, *out; /* in dtype */
} rope_data;

static void free_data(rope_data *d)
{
    free(d->values), free(d->got), free(d->want), free(d->in), free(d->out);
}

static atto_status make_data(rope_data *d, atto_device *reference)
{
    const size_t bytes = (size_t)d->n * sizeof(float);
    d->values = malloc(bytes);
    d->got = malloc(bytes);
    d->want = malloc(bytes);
    d->in = malloc(bytes);
    d->out = malloc(bytes);
    if (!d->values || !d->got || !d->want || !d->in || !d->out) return ATTO_E_MEMORY;
    bench_normal(d->values, d->n, 5);
    return check_narrow(reference, d->values, d->dtype, d->n, d->in);
}

enum { IN, OUT, COS, SIN, POSITION, TENSORS };

static atto_status make_tensors(atto_device *dev, const rope_data *d, atto_tensor *t)
{
    const atto_shape shape = atto_shape_of(4, d->shape);
    int32_t named[ROWS];
    for (int64_t i = 0; i < d->shape[2]; i++) named[i] = (int32_t)(i * i % 7919 % ROWS);
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, shape, &t[IN]));
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, shape, &t[OUT]));
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_I32, atto_shape1(d->shape[2]), &t[POSITION]));
    BENCH_TRY(atto_rope_tables(dev, ROWS, d->shape[4], NULL, &t[COS], &t[SIN]));
    BENCH_TRY(atto_tensor_write(&t[IN], d->in));
    BENCH_TRY(atto_tensor_write(&t[POSITION], named));
    return atto_tensor_fill(&t[OUT], NAN);
}

/* Turns fresh tensors in one direction; out gets y or dx. */
static atto_status run(atto_device *dev, const rope_data *d, bool backward, float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    const struct atto_rope_args a = { .x = &t[IN],
                                      .dy = &t[IN],
                                      .y = &t[OUT],
                                      .dx = &t[OUT],
                                      .cos = &t[COS],
                                      .sin = &t[SIN],
                                      .position = d->named ? &t[POSITION] : NULL,
                                      .pairing =
                                          d->neighbours ? ATTO_ROPE_NEIGHBOURS : ATTO_ROPE_HALVES };
    atto_status status = make_tensors(dev, d, t);
    if (status == ATTO_OK)
        status = backward ? atto_rope_backward(dev, &a) : atto_rope_forward(dev, &a);
    if (status == ATTO_OK) status = atto_tensor_read(&t[OUT], d->out);
    if (status == ATTO_OK) status = check_widen(dev, d->out, d->dtype, d->n, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* Two products and a sum, fused or not. */
static atto_status compare(atto_device *dev, atto_device *reference, rope_data *d, bool backward,
                           double *ratio)
{
    BENCH_TRY(make_data(d, reference));
    BENCH_TRY(run(dev, d, backward, d->got));
    BENCH_TRY(run(reference, d, backward, d->want));
    for (int64_t i = 0; i < d->n; i++) {
        const double one = check_element(d->dtype, d->got[i], d->want[i], 64 * 0x1p-24);
        if (!(one <= *ratio)) *ratio = isfinite(one) ? one : INFINITY;
    }
    return ATTO_OK;
}

atto_status check_rope(atto_device *dev, atto_device *reference, bool neighbours, bool backward,
                       atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        const int64_t *s = shapes[i / 2];
        rope_data d = { .shape = s,
                        .n = s[0] * s[1] * s[2] * s[3],
                        .dtype = dtype,
                        .neighbours = neighbours,
                        .named = i % 2 == 1 };
        const atto_status status = compare(dev, reference, &d, backward, ratio);
        free_data(&d);
        if (status != ATTO_OK) {
            *ratio = INFINITY;
            return status;
        }
    }
    return ATTO_OK;
}
