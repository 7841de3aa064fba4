/* SPDX-License-Identifier: MIT */
/* selftest's look at linear: the same layers on the device and on the reference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"

typedef struct linear_case {
    int64_t m, n, k;
    int64_t gap; /* elements between rows */
} linear_case;

static const linear_case cases[] = {
    { 1, 1, 1, 0 },     { 7, 5, 3, 0 },    { 64, 64, 64, 0 },    { 33, 65, 129, 3 },
    { 1, 257, 515, 0 }, { 8, 130, 67, 1 }, { 130, 70, 1031, 0 },
};

enum { CASES = sizeof cases / sizeof cases[0], MAX_ELEMENTS = 130 * 1031 };

/* The tensors of a layer, inputs first. */
enum { X, W, B, DY, Z, INPUTS, Y = INPUTS, SAVED_Z, DX, DW, DB, TENSORS };

static const char *const names[TENSORS] = { "x", "w", "b", "dy", "z", "y", "z", "dx", "dw", "db" };

typedef struct layer {
    atto_tensor t[TENSORS];
} layer;

static atto_shape shape_of(const linear_case *c, int which)
{
    switch (which) {
    case X:
    case DX:
        return atto_shape2(c->m, c->k);
    case W:
    case DW:
        return atto_shape2(c->n, c->k);
    case B:
    case DB:
        return atto_shape1(c->n);
    default:
        return atto_shape2(c->m, c->n);
    }
}

/* A view of uninitialised memory, its rows apart by the gap. */
static atto_status make_view(atto_device *dev, atto_dtype dtype, atto_shape shape, int64_t gap,
                             atto_tensor *out)
{
    if (shape.rank == 1) return atto_tensor_alloc(dev, dtype, shape, out);
    BENCH_TRY(atto_tensor_alloc(dev, dtype, atto_shape2(shape.dim[0], shape.dim[1] + gap), out));
    out->shape[1] = shape.dim[1];
    return ATTO_OK;
}

/* t = data, rounded to its dtype. */
static atto_status put(atto_device *dev, const atto_tensor *t, const float *data)
{
    atto_tensor wide;
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape_of(t->rank, t->shape), &wide));
    atto_status status = atto_tensor_write(&wide, data);
    if (status == ATTO_OK) status = atto_tensor_copy(t, &wide);
    atto_tensor_free(&wide);
    return status;
}

static atto_status get(atto_device *dev, const atto_tensor *t, float *data)
{
    atto_tensor wide;
    BENCH_TRY(atto_tensor_alloc(dev, ATTO_F32, atto_shape_of(t->rank, t->shape), &wide));
    atto_status status = atto_tensor_copy(&wide, t);
    if (status == ATTO_OK) status = atto_tensor_read(&wide, data);
    atto_tensor_free(&wide);
    return status;
}

static void drop_layer(layer *l)
{
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&l->t[i]);
}

/* Inputs hold normal numbers, or their magnitudes; outputs NaN, so that an element that nobody
 * writes shows. */
static atto_status fill_layer(atto_device *dev, layer *l, bool magnitudes, float *room)
{
    for (int i = 0; i < INPUTS; i++) {
        const int64_t n = atto_tensor_numel(&l->t[i]);
        bench_normal(room, n, (uint64_t)i + 1);
        for (int64_t e = 0; magnitudes && e < n; e++) room[e] = fabsf(room[e]);
        BENCH_TRY(put(dev, &l->t[i], room));
    }
    for (int i = INPUTS; i < TENSORS; i++) BENCH_TRY(atto_tensor_fill(&l->t[i], NAN));
    return ATTO_OK;
}

static atto_status make_layer(atto_device *dev, atto_dtype dtype, const linear_case *c, layer *l)
{
    for (int i = 0; i < TENSORS; i++)
        BENCH_TRY(make_view(dev, dtype, shape_of(c, i), c->gap, &l->t[i]));
    return ATTO_OK;
}

static atto_status call_layer(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                              const layer *l)
{
    const atto_tensor *t = l->t;
    const struct atto_linear_args a = { .x = &t[X],
                                        .w = &t[W],
                                        .b = &t[B],
                                        .y = &t[Y],
                                        .z = backward ? &t[Z] : &t[SAVED_Z],
                                        .dy = &t[DY],
                                        .dx = &t[DX],
                                        .dw = &t[DW],
                                        .db = &t[DB],
                                        .act = op->act,
                                        .dropout = op->dropout,
                                        .rng = rng };
    return backward ? atto_linear_backward(dev, &a) : atto_linear_forward(dev, &a);
}

/* A layer of its own on dev, filled and run. */
static atto_status run_layer(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                             atto_dtype dtype, const linear_case *c, bool magnitudes, float *room,
                             layer *l)
{
    BENCH_TRY(make_layer(dev, dtype, c, l));
    BENCH_TRY(fill_layer(dev, l, magnitudes, room));
    return call_layer(dev, op, backward, rng, l);
}

/* Terms behind an element of that tensor. */
static int64_t terms_of(const linear_case *c, int which)
{
    return which == DX ? c->n : which == DW || which == DB ? c->m : c->k + 1;
}

/* Host room: inputs, then what the device and the reference found, and the sums of magnitudes. */
typedef struct host {
    float data[MAX_ELEMENTS], got[MAX_ELEMENTS], want[MAX_ELEMENTS], sizes[MAX_ELEMENTS];
} host;

/* What the device found beside what the reference found, for the same inputs. */
typedef struct trio {
    layer got, want;
    layer sizes; /* f32, the identity of magnitudes: its outputs are the sums of |terms| */
} trio;

static atto_status run_trio(atto_device *dev, atto_device *reference, const check_op *op,
                            bool backward, atto_rng rng, atto_dtype dtype, const linear_case *c,
                            host *h, trio *out)
{
    const check_op plain = { .name = "magnitudes" };
    BENCH_TRY(run_layer(dev, op, backward, rng, dtype, c, false, h->data, &out->got));
    BENCH_TRY(run_layer(reference, op, backward, rng, dtype, c, false, h->data, &out->want));
    return run_layer(reference, &plain, backward, rng, ATTO_F32, c, true, h->data, &out->sizes);
}

/* Compares one output; *out and where change when it is the worst so far. */
static atto_status compare(atto_device *dev, atto_device *reference, const check_op *op,
                           const linear_case *c, const trio *layers, int which, host *h,
                           check_worst *out, char *where)
{
    const double scale = 1.0 / (1.0 - op->dropout);
    const double roundings = 0x1p-23 * (double)(terms_of(c, which) + 64);
    const atto_tensor *t = &layers->got.t[which];
    BENCH_TRY(get(dev, t, h->got));
    BENCH_TRY(get(reference, &layers->want.t[which], h->want));
    BENCH_TRY(get(reference, &layers->sizes.t[which], h->sizes));
    for (int64_t i = 0; i < atto_tensor_numel(t); i++) {
        const double tolerance = roundings * (1.0 + (double)h->sizes[i]) * scale;
        const double ratio = check_element(t->dtype, h->got[i], h->want[i], tolerance);
        if (ratio <= out->ratio) continue;
        *out = (check_worst){ ratio, i, h->got[i], h->want[i] };
        snprintf(where, CHECK_WHERE, "%s of %d x %d x %d", names[which], (int)c->m, (int)c->n,
                 (int)c->k);
    }
    return ATTO_OK;
}

static atto_status check_case(atto_device *dev, atto_device *reference, const check_op *op,
                              bool backward, atto_rng rng, atto_dtype dtype, const linear_case *c,
                              host *h, check_worst *out, char *where)
{
    trio layers;
    memset(&layers, 0, sizeof layers);
    atto_status status = run_trio(dev, reference, op, backward, rng, dtype, c, h, &layers);
    const int first = backward ? DX : Y, last = backward ? DB : SAVED_Z;
    for (int which = first; which <= last && status == ATTO_OK; which++)
        status = compare(dev, reference, op, c, &layers, which, h, out, where);
    drop_layer(&layers.got);
    drop_layer(&layers.want);
    drop_layer(&layers.sizes);
    return status;
}

atto_status check_linear(atto_device *dev, atto_device *reference, const check_op *op,
                         bool backward, atto_rng rng, atto_dtype dtype, check_worst *out,
                         char where[CHECK_WHERE])
{
    host *h = malloc(sizeof *h);
    check_worst worst = { .ratio = -1 };
    if (h == NULL) return ATTO_E_MEMORY;
    atto_status status = ATTO_OK;
    for (int i = 0; i < CASES && status == ATTO_OK; i++)
        status = check_case(dev, reference, op, backward, rng, dtype, &cases[i], h, &worst, where);
    free(h);
    if (status == ATTO_OK) *out = worst;
    return status;
}
