/* SPDX-License-Identifier: MIT */
/* selftest of convolutions: images on two devices, along rows and along channels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"

/* Products of 3 x 3, of 1 x 1 and with a stride; groups; a channel for itself; dilation and an even
 * kernel. Transposed: input and output exchanged. */
static const struct conv_row {
    int64_t batch, channels, outputs, groups, h, w;
    int64_t kernel, stride, padding, dilation;
} rows[] = {
    { 2, 16, 24, 1, 15, 17, 3, 1, 1, 1 },  { 2, 33, 18, 1, 9, 11, 1, 1, 0, 1 },
    { 1, 3, 16, 1, 21, 22, 7, 2, 3, 1 },   { 2, 8, 12, 4, 12, 10, 3, 2, 1, 1 },
    { 2, 20, 20, 20, 14, 19, 3, 1, 1, 1 }, { 1, 6, 10, 2, 16, 13, 2, 1, 2, 2 },
};

enum { X, W, B, DY, Y, DX, DW, DB, TENSORS };

/* One case of one device; host arrays are f32. */
typedef struct conv_data {
    const struct conv_row *row;
    atto_dtype dtype;
    bool transposed, channels_last, backward;
    atto_shape shape[TENSORS];
    int64_t numel[TENSORS];
    void *in[DY + 1]; /* in dtype */
    float *out[2];    /* what is compared, one behind the other: of dev, of reference */
    void *raw;
} conv_data;

static int64_t outputs_of(const conv_data *d, int64_t in)
{
    const struct conv_row *r = d->row;
    const int64_t reach = r->dilation * (r->kernel - 1) + 1;
    return d->transposed ? (in - 1) * r->stride - 2 * r->padding + reach
                         : (in + 2 * r->padding - reach) / r->stride + 1;
}

static void measure(conv_data *d)
{
    const struct conv_row *r = d->row;
    const atto_shape x = atto_shape4(r->batch, r->channels, r->h, r->w),
                     b = atto_shape1(r->outputs);
    const atto_shape y =
        atto_shape4(r->batch, r->outputs, outputs_of(d, r->h), outputs_of(d, r->w));
    const atto_shape w =
        d->transposed ? atto_shape4(r->channels, r->outputs / r->groups, r->kernel, r->kernel)
                      : atto_shape4(r->outputs, r->channels / r->groups, r->kernel, r->kernel);
    const atto_shape shapes[TENSORS] = { x, w, b, y, y, x, w, b };
    for (int i = 0; i < TENSORS; i++) {
        const atto_tensor t = atto_tensor_of(NULL, ATTO_F32, shapes[i], 0);
        d->shape[i] = shapes[i];
        d->numel[i] = atto_tensor_numel(&t);
    }
}

static atto_status make(atto_device *dev, const conv_data *d, int which, atto_tensor *out)
{
    const int32_t order[] = { 0, 3, 1, 2 };
    const atto_shape s = d->shape[which];
    const bool last = d->channels_last && s.rank == 4;
    const atto_shape stored = last ? atto_shape4(s.dim[0], s.dim[2], s.dim[3], s.dim[1]) : s;
    BENCH_TRY(atto_tensor_alloc(dev, d->dtype, stored, out));
    if (last) BENCH_TRY(atto_tensor_permute(out, order, out));
    return which <= DY ? atto_tensor_write(out, d->in[which]) : atto_tensor_fill(out, NAN);
}

static atto_status fetch(atto_device *reference, const conv_data *d, int which,
                         const atto_tensor *t, float *out)
{
    BENCH_TRY(atto_tensor_read(t, d->raw));
    return check_widen(reference, d->raw, d->dtype, d->numel[which], out);
}

static atto_status call(atto_device *dev, atto_device *reference, const conv_data *d,
                        atto_tensor *t, float *out)
{
    const struct conv_row *r = d->row;
    const struct atto_conv_args a = { .x = &t[X],
                                      .w = &t[W],
                                      .b = &t[B],
                                      .y = &t[Y],
                                      .dy = &t[DY],
                                      .dx = &t[DX],
                                      .dw = &t[DW],
                                      .db = &t[DB],
                                      .window = { .dims = 2,
                                                  .transposed = d->transposed,
                                                  .groups = r->groups,
                                                  .stride = { r->stride, r->stride },
                                                  .padding = { r->padding, r->padding },
                                                  .padding_after = { r->padding, r->padding },
                                                  .dilation = { r->dilation, r->dilation } } };
    for (int i = 0; i < TENSORS; i++) BENCH_TRY(make(dev, d, i, &t[i]));
    if (!d->backward) {
        BENCH_TRY(atto_conv_forward(dev, &a));
        return fetch(reference, d, Y, &t[Y], out);
    }
    BENCH_TRY(atto_conv_backward(dev, &a));
    for (int i = DX; i <= DB; i++) {
        BENCH_TRY(fetch(reference, d, i, &t[i], out));
        out += d->numel[i];
    }
    return ATTO_OK;
}

static atto_status run(atto_device *dev, atto_device *reference, const conv_data *d, float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    const atto_status status = call(dev, reference, d, t, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* Of normal numbers the values that n additions round are random walks, some sqrt(n) long; sqrt(n)
 * of their roundings count, and the tails 8 times that; twice, for two devices. */
static double tolerance(const conv_data *d, int which)
{
    const struct conv_row *r = d->row;
    const int64_t taps = r->kernel * r->kernel;
    const int64_t terms[TENSORS] = { [Y] = r->channels / r->groups * taps,
                                     [DX] = r->outputs / r->groups * taps,
                                     [DW] = d->transposed ? d->numel[X] / r->channels
                                                          : d->numel[Y] / r->outputs,
                                     [DB] = d->numel[Y] / r->outputs };
    return 0x1p-23 * 8.0 * (double)(terms[which] + 1);
}

static void judge(const conv_data *d, double *ratio)
{
    const int first = d->backward ? DX : Y, last = d->backward ? DB : Y;
    int64_t at = 0;
    for (int which = first; which <= last; which++)
        for (int64_t i = 0; i < d->numel[which]; i++, at++) {
            const double share =
                check_element(d->dtype, d->out[0][at], d->out[1][at], tolerance(d, which));
            if (!(share <= *ratio)) *ratio = share;
        }
}

static atto_status compare(atto_device *dev, atto_device *reference, conv_data *d, float *x,
                           double *ratio)
{
    for (int i = X; i <= DY; i++) {
        bench_normal(x, d->numel[i], (uint64_t)(3 + i));
        BENCH_TRY(check_narrow(reference, x, d->dtype, d->numel[i], d->in[i]));
    }
    BENCH_TRY(run(dev, reference, d, d->out[0]));
    BENCH_TRY(run(reference, reference, d, d->out[1]));
    judge(d, ratio);
    return ATTO_OK;
}

static atto_status check_case(atto_device *dev, atto_device *reference, conv_data *d, double *ratio)
{
    int64_t all = 0;
    measure(d);
    for (int i = 0; i < TENSORS; i++) all += d->numel[i];
    const size_t bytes = (size_t)all * sizeof(float);
    float *x = malloc(bytes);
    bool has_room = x != NULL;
    for (int i = X; i <= DY; i++) has_room = (d->in[i] = malloc(bytes)) && has_room;
    for (int i = 0; i < 2; i++) has_room = (d->out[i] = malloc(bytes)) && has_room;
    has_room = (d->raw = malloc(bytes)) && has_room;
    const atto_status status = has_room ? compare(dev, reference, d, x, ratio) : ATTO_E_MEMORY;
    for (int i = X; i <= DY; i++) free(d->in[i]);
    free(x), free(d->out[0]), free(d->out[1]), free(d->raw);
    return status;
}

atto_status check_conv(atto_device *dev, atto_device *reference, bool transposed, bool backward,
                       atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int last = 0; last < 2; last++) {
            conv_data d = { .row = &rows[i],
                            .dtype = dtype,
                            .transposed = transposed,
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
