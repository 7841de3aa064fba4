/* SPDX-License-Identifier: MIT */
/* selftest of recurrent cells: the same gates and states on two devices. */
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"

/* Rows and features: whole vectors and odd sizes. */
static const int64_t shapes[][2] = { { 33, 128 }, { 1, 70 }, { 257, 13 }, { 64, 96 } };

enum { X, U, STATE, Y, CY, GATES, DY, DCY, DX, DU, DSTATE, TENSORS };

typedef struct rnn_data {
    int64_t rows, hidden;
    atto_dtype dtype;
    bool is_gru, backward;
    float *values, *got, *want;
    void *narrow; /* in dtype */
} rnn_data;

static int64_t parts_of(const rnn_data *d, int i)
{
    if (i == GATES) return 4;
    return i == X || i == U || i == DX || i == DU ? (d->is_gru ? 3 : 4) : 1;
}

static int64_t numel_of(const rnn_data *d, int i)
{
    return d->rows * d->hidden * parts_of(d, i);
}

/* What is compared: all that the direction writes, one behind the other. */
static bool is_compared(const rnn_data *d, int i)
{
    if (!d->backward) return i == Y || i == GATES || (i == CY && !d->is_gru);
    return i == DX || i == DSTATE || (i == DU && d->is_gru);
}

static bool is_written(const rnn_data *d, int i)
{
    return d->backward ? i >= DX : i == Y || i == CY || i == GATES;
}

static void free_data(rnn_data *d)
{
    free(d->values), free(d->got), free(d->want), free(d->narrow);
}

static atto_status make_data(rnn_data *d)
{
    const size_t most = (size_t)(d->rows * d->hidden * 16) * sizeof(float);
    d->values = malloc(most);
    d->got = malloc(most);
    d->want = malloc(most);
    d->narrow = malloc(most);
    return d->values && d->got && d->want && d->narrow ? ATTO_OK : ATTO_E_MEMORY;
}

/* Gates that backward is given lie between 0 and 1. */
static atto_status fill(atto_device *reference, rnn_data *d, int i, const atto_tensor *t)
{
    const int64_t n = numel_of(d, i);
    bench_normal(d->values, n, (uint64_t)i);
    for (int64_t k = 0; i == GATES && k < n; k++)
        d->values[k] = 1.0f / (1.0f + expf(-d->values[k]));
    BENCH_TRY(check_narrow(reference, d->values, d->dtype, n, d->narrow));
    return atto_tensor_write(t, d->narrow);
}

static atto_status make_tensors(atto_device *dev, atto_device *reference, rnn_data *d,
                                atto_tensor *t)
{
    for (int i = 0; i < TENSORS; i++) {
        const atto_shape shape = atto_shape2(d->rows, parts_of(d, i) * d->hidden);
        BENCH_TRY(atto_tensor_alloc(dev, d->dtype, shape, &t[i]));
        BENCH_TRY(is_written(d, i) ? atto_tensor_fill(&t[i], NAN) : fill(reference, d, i, &t[i]));
    }
    return ATTO_OK;
}

static atto_status call(atto_device *dev, const rnn_data *d, const atto_tensor *t)
{
    const struct atto_lstm_cell_args lstm = { .x = &t[X],
                                              .c = &t[STATE],
                                              .y = &t[Y],
                                              .cy = &t[CY],
                                              .gates = &t[GATES],
                                              .dy = &t[DY],
                                              .dcy = &t[DCY],
                                              .dx = &t[DX],
                                              .dc = &t[DSTATE] };
    const struct atto_gru_cell_args gru = { .x = &t[X],
                                            .u = &t[U],
                                            .h = &t[STATE],
                                            .y = &t[Y],
                                            .gates = &t[GATES],
                                            .dy = &t[DY],
                                            .dx = &t[DX],
                                            .du = &t[DU],
                                            .dh = &t[DSTATE] };
    if (d->is_gru)
        return d->backward ? atto_gru_cell_backward(dev, &gru) : atto_gru_cell_forward(dev, &gru);
    return d->backward ? atto_lstm_cell_backward(dev, &lstm) : atto_lstm_cell_forward(dev, &lstm);
}

static atto_status read_results(atto_device *dev, rnn_data *d, const atto_tensor *t, float *out)
{
    for (int i = 0; i < TENSORS; i++) {
        if (!is_compared(d, i)) continue;
        const int64_t n = numel_of(d, i);
        BENCH_TRY(atto_tensor_read(&t[i], d->narrow));
        BENCH_TRY(check_widen(dev, d->narrow, d->dtype, n, out));
        out += n;
    }
    return ATTO_OK;
}

static atto_status run(atto_device *dev, atto_device *reference, rnn_data *d, float *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    atto_status status = make_tensors(dev, reference, d, t);
    if (status == ATTO_OK) status = call(dev, d, t);
    if (status == ATTO_OK) status = read_results(dev, d, t, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* Two functions of 12 roundings, and a few more, of numbers up to 4 times a result. */
static atto_status compare(atto_device *dev, atto_device *reference, rnn_data *d, double *ratio)
{
    int64_t n = 0;
    BENCH_TRY(make_data(d));
    BENCH_TRY(run(dev, reference, d, d->got));
    BENCH_TRY(run(reference, reference, d, d->want));
    for (int i = 0; i < TENSORS; i++) n += is_compared(d, i) ? numel_of(d, i) : 0;
    for (int64_t i = 0; i < n; i++) {
        const double one = check_element(d->dtype, d->got[i], d->want[i], 128 * 0x1p-24);
        if (!(one <= *ratio)) *ratio = isfinite(one) ? one : INFINITY;
    }
    return ATTO_OK;
}

atto_status check_rnn(atto_device *dev, atto_device *reference, bool is_gru, bool backward,
                      atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        rnn_data d = { .rows = shapes[i][0],
                       .hidden = shapes[i][1],
                       .dtype = dtype,
                       .is_gru = is_gru,
                       .backward = backward };
        const atto_status status = compare(dev, reference, &d, ratio);
        free_data(&d);
        if (status != ATTO_OK) {
            *ratio = INFINITY;
            return status;
        }
    }
    return ATTO_OK;
}
