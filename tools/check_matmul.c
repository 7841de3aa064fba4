/* SPDX-License-Identifier: MIT */
/* selftest of matmul: batches of a few shapes on two devices, dense and with a transposed right
 * side. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"

/* Batches of a and b, M, N, K. */
static const struct sizes {
    int64_t a, b, m, n, k;
} shapes[] = { { 1, 1, 1, 1, 1 },      { 3, 3, 7, 5, 33 },   { 2, 2, 64, 64, 64 },
               { 5, 1, 33, 65, 129 },  { 1, 4, 9, 130, 67 }, { 2, 2, 1, 257, 515 },
               { 2, 2, 130, 70, 1031 } };

enum { A, B, DY, INPUTS, Y = INPUTS, DA, DB, TENSORS };

typedef struct batch_data {
    struct sizes c;
    bool turned;           /* b and db are stored [N, K] */
    float *values[INPUTS]; /* the inputs, rounded to the dtype */
} batch_data;

static atto_shape shape_of(const batch_data *d, int which)
{
    const struct sizes *c = &d->c;
    const int64_t batch = c->a > c->b ? c->a : c->b;
    if (which == A || which == DA) return atto_shape3(c->a, c->m, c->k);
    if (which == DY || which == Y) return atto_shape3(batch, c->m, c->n);
    return d->turned ? atto_shape3(c->b, c->n, c->k) : atto_shape3(c->b, c->k, c->n);
}

static int64_t numel(const batch_data *d, int which)
{
    const atto_shape s = shape_of(d, which);
    return s.dim[0] * s.dim[1] * s.dim[2];
}

static void free_data(batch_data *d)
{
    for (int i = 0; i < INPUTS; i++) free(d->values[i]);
}

/* Normal numbers as the dtype holds them. */
static atto_status make_data(batch_data *d, atto_device *reference, atto_dtype dtype)
{
    for (int i = 0; i < INPUTS; i++) {
        const int64_t n = numel(d, i);
        d->values[i] = malloc((size_t)n * sizeof(float));
        void *stored = malloc((size_t)n * sizeof(float));
        atto_status status = d->values[i] && stored ? ATTO_OK : ATTO_E_MEMORY;
        if (status == ATTO_OK) {
            bench_normal(d->values[i], n, 11 + (uint64_t)i);
            status = check_narrow(reference, d->values[i], dtype, n, stored);
        }
        if (status == ATTO_OK) status = check_widen(reference, stored, dtype, n, d->values[i]);
        free(stored);
        BENCH_TRY(status);
    }
    return ATTO_OK;
}

static atto_tensor matrices_of(const batch_data *d, const atto_tensor *t)
{
    atto_tensor view = *t;
    if (!d->turned) return view;
    view.shape[1] = t->shape[2], view.shape[2] = t->shape[1];
    view.stride[1] = t->stride[2], view.stride[2] = t->stride[1];
    return view;
}

static atto_status put(atto_device *dev, const atto_tensor *t, const float *values, int64_t n,
                       bool magnitudes)
{
    void *stored = malloc((size_t)n * sizeof(float));
    float *copy = malloc((size_t)n * sizeof *copy);
    atto_status status = stored && copy ? ATTO_OK : ATTO_E_MEMORY;
    for (int64_t i = 0; status == ATTO_OK && i < n; i++)
        copy[i] = magnitudes ? fabsf(values[i]) : values[i];
    if (status == ATTO_OK) status = check_narrow(dev, copy, t->dtype, n, stored);
    if (status == ATTO_OK) status = atto_tensor_write(t, stored);
    free(stored), free(copy);
    return status;
}

static atto_status get(atto_device *dev, const atto_tensor *t, int64_t n, float *out)
{
    void *stored = malloc((size_t)n * sizeof(float));
    atto_status status = stored ? atto_tensor_read(t, stored) : ATTO_E_MEMORY;
    if (status == ATTO_OK) status = check_widen(dev, stored, t->dtype, n, out);
    free(stored);
    return status;
}

/* Fresh tensors, both directions; out[which] is y, da or db. */
static atto_status run_on(atto_device *dev, const batch_data *d, atto_dtype dtype, bool backward,
                          bool magnitudes, atto_tensor *t, float *const out[TENSORS])
{
    for (int i = 0; i < TENSORS; i++) {
        BENCH_TRY(atto_tensor_alloc(dev, dtype, shape_of(d, i), &t[i]));
        BENCH_TRY(i < INPUTS ? put(dev, &t[i], d->values[i], numel(d, i), magnitudes)
                             : atto_tensor_fill(&t[i], NAN));
    }
    const atto_tensor b = matrices_of(d, &t[B]), db = matrices_of(d, &t[DB]);
    const struct atto_matmul_args p = {
        .a = &t[A], .b = &b, .y = &t[Y], .dy = &t[DY], .da = &t[DA], .db = &db
    };
    BENCH_TRY(backward ? atto_matmul_backward(dev, &p) : atto_matmul_forward(dev, &p));
    for (int i = backward ? DA : Y; i < (backward ? TENSORS : DA); i++)
        BENCH_TRY(get(dev, &t[i], numel(d, i), out[i]));
    return ATTO_OK;
}

static atto_status run(atto_device *dev, const batch_data *d, atto_dtype dtype, bool backward,
                       bool magnitudes, float *const out[TENSORS])
{
    atto_tensor t[TENSORS] = { { 0 } };
    const atto_status status = run_on(dev, d, dtype, backward, magnitudes, t, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* Terms behind an element, repetitions in the batch included. */
static int64_t terms_of(const struct sizes *c, int which)
{
    const int64_t batch = c->a > c->b ? c->a : c->b;
    return which == Y ? c->k : which == DA ? c->n * (batch / c->a) : c->m * (batch / c->b);
}

/* What was found on the device, on the reference, and there of magnitudes. */
typedef struct found {
    float *got[TENSORS], *want[TENSORS], *sizes[TENSORS];
} found;

static bool make_found(const batch_data *d, found *f)
{
    bool made = true;
    for (int i = INPUTS; i < TENSORS; i++) {
        const size_t bytes = (size_t)numel(d, i) * sizeof(float);
        f->got[i] = malloc(bytes), f->want[i] = malloc(bytes), f->sizes[i] = malloc(bytes);
        made = made && f->got[i] && f->want[i] && f->sizes[i];
    }
    return made;
}

static void free_found(found *f)
{
    for (int i = INPUTS; i < TENSORS; i++) free(f->got[i]), free(f->want[i]), free(f->sizes[i]);
}

/* Sums in another order differ by their roundings, as in check_linear. */
static double worst_ratio(const batch_data *d, const found *f, atto_dtype dtype, bool backward)
{
    double worst = 0;
    for (int which = backward ? DA : Y; which < (backward ? TENSORS : DA); which++)
        for (int64_t i = 0; i < numel(d, which); i++) {
            const double roundings = 0x1p-23 * (double)(terms_of(&d->c, which) + 64);
            const double tolerance = roundings * (1.0 + (double)f->sizes[which][i]);
            const double ratio =
                check_element(dtype, f->got[which][i], f->want[which][i], tolerance);
            if (!(ratio <= worst)) worst = isfinite(ratio) ? ratio : INFINITY;
        }
    return worst;
}

static atto_status compare(atto_device *dev, atto_device *reference, batch_data *d,
                           atto_dtype dtype, bool backward, double *ratio)
{
    found f;
    memset(&f, 0, sizeof f);
    atto_status status = make_found(d, &f) ? ATTO_OK : ATTO_E_MEMORY;
    if (status == ATTO_OK) status = make_data(d, reference, dtype);
    if (status == ATTO_OK) status = run(dev, d, dtype, backward, false, f.got);
    if (status == ATTO_OK) status = run(reference, d, dtype, backward, false, f.want);
    if (status == ATTO_OK) status = run(reference, d, ATTO_F32, backward, true, f.sizes);
    if (status == ATTO_OK) *ratio = worst_ratio(d, &f, dtype, backward);
    free_found(&f);
    return status;
}

atto_status check_matmul(atto_device *dev, atto_device *reference, bool backward, atto_dtype dtype,
                         double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof shapes[0]; i++) {
        batch_data d = { .c = shapes[i / 2], .turned = i % 2 == 1 };
        double worst = INFINITY;
        const atto_status status = compare(dev, reference, &d, dtype, backward, &worst);
        free_data(&d);
        if (worst > *ratio) *ratio = worst;
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}
