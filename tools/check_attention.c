/* SPDX-License-Identifier: MIT */
/* selftest of attention: some shapes on two devices, with masks, causal, shared keys and dropout.
 * Backward starts from the reference's y, lse and lse_low on both. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"

typedef struct sizes {
    int64_t batches, heads, shared, queries, keys, d, e;
    atto_dtype mask; /* NO_MASK, I32 or F32 */
    atto_causal causal;
    float dropout;
} sizes;

#define NO_MASK ATTO_I64 /* which no mask has */

static const sizes shapes[] = {
    { 1, 1, 1, 1, 1, 8, 8, NO_MASK, ATTO_CAUSAL_NONE, 0.0f },
    { 2, 4, 2, 33, 70, 64, 64, NO_MASK, ATTO_CAUSAL_TOP_LEFT, 0.0f },
    { 1, 8, 2, 1, 600, 64, 64, NO_MASK, ATTO_CAUSAL_NONE, 0.0f },
    { 1, 2, 2, 65, 40, 64, 64, ATTO_I32, ATTO_CAUSAL_NONE, 0.0f },
    { 1, 2, 1, 20, 45, 128, 128, ATTO_F32, ATTO_CAUSAL_BOTTOM_RIGHT, 0.25f },
    { 1, 2, 2, 9, 17, 17, 3, NO_MASK, ATTO_CAUSAL_NONE, 0.0f },
};

enum { Q, K, V, DY, MASK, INPUTS, Y = INPUTS, LSE, LSE_LOW, DQ, DK, DV, TENSORS };

static atto_shape shape_of(const sizes *c, int which)
{
    const int64_t b = c->batches, h = c->heads, g = c->shared;
    switch (which) {
    case Q:
    case DQ:
        return atto_shape4(b, h, c->queries, c->d);
    case K:
    case DK:
        return atto_shape4(b, g, c->keys, c->d);
    case V:
    case DV:
        return atto_shape4(b, g, c->keys, c->e);
    case LSE:
    case LSE_LOW:
        return atto_shape3(b, h, c->queries);
    case MASK:
        return atto_shape2(c->queries, c->keys);
    default:
        return atto_shape4(b, h, c->queries, c->e);
    }
}

static int64_t numel(const sizes *c, int which)
{
    const atto_shape s = shape_of(c, which);
    int64_t n = 1;
    for (int32_t d = 0; d < s.rank; d++) n *= s.dim[d];
    return n;
}

static atto_dtype dtype_of(const sizes *c, int which, atto_dtype dtype)
{
    return which == LSE || which == LSE_LOW ? ATTO_F32 : which == MASK ? c->mask : dtype;
}

/* Values as a dtype holds them, in f32. Forward's of the reference are inputs of backward. */
typedef struct values {
    float *of[TENSORS];
} values;

static atto_status make_values(const sizes *c, values *v)
{
    for (int i = 0; i < TENSORS; i++) {
        v->of[i] = malloc((size_t)numel(c, i) * sizeof(float));
        if (!v->of[i]) return ATTO_E_MEMORY;
    }
    return ATTO_OK;
}

static void free_values(values *v)
{
    for (int i = 0; i < TENSORS; i++) free(v->of[i]);
}

static atto_status write(atto_device *dev, const atto_tensor *t, const float *from, int64_t n)
{
    void *stored = malloc((size_t)n * sizeof(float));
    atto_status status = stored ? ATTO_OK : ATTO_E_MEMORY;
    if (status == ATTO_OK && t->dtype == ATTO_I32)
        for (int64_t i = 0; i < n; i++) ((int32_t *)stored)[i] = from[i] > -0.5f;
    else if (status == ATTO_OK)
        status = check_narrow(dev, from, t->dtype, n, stored);
    if (status == ATTO_OK) status = atto_tensor_write(t, stored);
    free(stored);
    return status;
}

static atto_status read(atto_device *dev, const atto_tensor *t, int64_t n, float *to)
{
    void *stored = malloc((size_t)n * sizeof(float));
    atto_status status = stored ? atto_tensor_read(t, stored) : ATTO_E_MEMORY;
    if (status == ATTO_OK) status = check_widen(dev, stored, t->dtype, n, to);
    free(stored);
    return status;
}

/* Normal numbers as the dtype holds them. */
static atto_status draw(const sizes *c, atto_device *reference, atto_dtype dtype, values *v)
{
    for (int i = 0; i < INPUTS; i++) {
        const int64_t n = numel(c, i);
        void *stored = malloc((size_t)n * sizeof(float));
        const atto_dtype held = i == MASK ? ATTO_F32 : dtype;
        atto_status status = stored ? ATTO_OK : ATTO_E_MEMORY;
        bench_normal(v->of[i], n, 21 + (uint64_t)i);
        if (status == ATTO_OK) status = check_narrow(reference, v->of[i], held, n, stored);
        if (status == ATTO_OK) status = check_widen(reference, stored, held, n, v->of[i]);
        free(stored);
        BENCH_TRY(status);
    }
    return ATTO_OK;
}

static atto_status call(atto_device *dev, const sizes *c, const atto_tensor *t, bool backward)
{
    const struct atto_attention_args a = { .q = &t[Q],
                                           .k = &t[K],
                                           .v = &t[V],
                                           .mask = c->mask == NO_MASK ? NULL : &t[MASK],
                                           .y = &t[Y],
                                           .lse = &t[LSE],
                                           .lse_low = &t[LSE_LOW],
                                           .dy = &t[DY],
                                           .dq = &t[DQ],
                                           .dk = &t[DK],
                                           .dv = &t[DV],
                                           .causal = c->causal,
                                           .dropout = c->dropout,
                                           .rng = { .seed = 7, .offset = 3 } };
    return backward ? atto_attention_backward(dev, &a) : atto_attention_forward(dev, &a);
}

/* Fresh tensors; `in` has the inputs, and what forward saves if backward; results go to `out`. */
static atto_status run_on(atto_device *dev, const sizes *c, atto_dtype dtype, bool backward,
                          const values *in, atto_tensor *t, const values *out)
{
    for (int i = 0; i < TENSORS; i++) {
        const bool is_input = i < INPUTS || (backward && i < DQ);
        BENCH_TRY(atto_tensor_alloc(dev, dtype_of(c, i, dtype), shape_of(c, i), &t[i]));
        if (i == MASK && c->mask == NO_MASK) continue;
        BENCH_TRY(is_input ? write(dev, &t[i], in->of[i], numel(c, i))
                           : atto_tensor_fill(&t[i], (double)NAN));
    }
    BENCH_TRY(call(dev, c, t, backward));
    for (int i = backward ? DQ : Y; i < (backward ? TENSORS : DQ); i++)
        BENCH_TRY(read(dev, &t[i], numel(c, i), out->of[i]));
    return ATTO_OK;
}

static atto_status run(atto_device *dev, const sizes *c, atto_dtype dtype, bool backward,
                       const values *in, const values *out)
{
    atto_tensor t[TENSORS] = { { 0 } };
    const atto_status status = run_on(dev, c, dtype, backward, in, t, out);
    for (int i = 0; i < TENSORS; i++) atto_tensor_free(&t[i]);
    return status;
}

/* ---- tolerance ---- */

static double dot(const float *a, const float *b, int64_t n, bool magnitudes)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double term = (double)a[i] * (double)b[i];
        sum += magnitudes ? fabs(term) : term;
    }
    return sum;
}

static void add_sizes(float *to, double factor, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += (float)(factor * fabs((double)from[i]));
}

/* What one query and one key add to the sizes of terms. */
static void add_pair(const sizes *c, const values *in, const values *size, int64_t row, int64_t key,
                     double p)
{
    const float *dy = in->of[DY] + row * c->e, *v = in->of[V] + key * c->e;
    const double dz = p * (dot(dy, v, c->e, true) + dot(dy, in->of[Y] + row * c->e, c->e, true));
    add_sizes(size->of[Y] + row * c->e, p, v, c->e);
    add_sizes(size->of[DV] + key * c->e, p, dy, c->e);
    add_sizes(size->of[DQ] + row * c->d, dz, in->of[K] + key * c->d, c->d);
    add_sizes(size->of[DK] + key * c->d, dz, in->of[Q] + row * c->d, c->d);
}

/* Sizes of the terms behind each element. A probability is at most e^(z - lse): the mask and causal
 * are left out, dropout's scale is in. */
static void measure(const sizes *c, const values *in, const values *size)
{
    const double scale = 1.0 / sqrt((double)c->d), keep = 1.0 / (1.0 - (double)c->dropout);
    for (int i = Y; i < TENSORS; i++) memset(size->of[i], 0, (size_t)numel(c, i) * sizeof(float));
    for (int64_t row = 0; row < c->batches * c->heads * c->queries; row++) {
        const int64_t head = row / c->queries, batch = head / c->heads;
        const int64_t shared = batch * c->shared + head % c->heads / (c->heads / c->shared);
        const double lse = (double)in->of[LSE][row];
        size->of[LSE][row] = size->of[LSE_LOW][row] = fabsf(in->of[LSE][row]);
        for (int64_t s = 0; s < c->keys; s++) {
            const int64_t key = shared * c->keys + s, l = row % c->queries;
            const double mask = c->mask == ATTO_F32 ? (double)in->of[MASK][l * c->keys + s] : 0.0;
            const float *q = in->of[Q] + row * c->d, *k = in->of[K] + key * c->d;
            const double p = exp(scale * dot(q, k, c->d, false) + mask - lse);
            add_pair(c, in, size, row, key, keep * fmin(p, 1.0));
        }
    }
}

/* Sums in another order differ by their roundings, as in check_linear, and probabilities by those of
 * their exponents. */
static double worst_ratio(const sizes *c, const values *got, const values *want, const values *size,
                          atto_dtype dtype, bool backward)
{
    const double roundings = 0x1p-23 * (double)(c->keys + c->queries + c->d + c->e + 256);
    double worst = 0;
    for (int which = backward ? DQ : Y; which < (backward ? TENSORS : DQ); which++)
        for (int64_t i = 0; i < numel(c, which); i++) {
            const float have = got->of[which][i], wanted = want->of[which][i];
            const double of = isfinite(size->of[which][i]) ? (double)size->of[which][i] : 0.0;
            const double ratio =
                check_element(dtype_of(c, which, dtype), have, wanted, roundings * (1.0 + of));
            if (!(ratio <= worst)) worst = isfinite(ratio) ? ratio : INFINITY;
        }
    return worst;
}

static atto_status compare(atto_device *dev, atto_device *reference, const sizes *c,
                           atto_dtype dtype, bool backward, values *v, double *ratio)
{
    values *want = &v[0], *got = &v[1], *size = &v[2];
    for (int i = 0; i < 3; i++) BENCH_TRY(make_values(c, &v[i]));
    BENCH_TRY(draw(c, reference, dtype, want));
    BENCH_TRY(run(reference, c, dtype, false, want, want));
    if (backward) BENCH_TRY(run(reference, c, dtype, true, want, want));
    BENCH_TRY(run(dev, c, dtype, backward, want, got));
    measure(c, want, size);
    *ratio = worst_ratio(c, got, want, size, dtype, backward);
    return ATTO_OK;
}

atto_status check_attention(atto_device *dev, atto_device *reference, bool backward,
                            atto_dtype dtype, double *ratio)
{
    *ratio = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        values v[3];
        double worst = INFINITY;
        memset(v, 0, sizeof v);
        const atto_status status = compare(dev, reference, &shapes[i], dtype, backward, v, &worst);
        for (int j = 0; j < 3; j++) free_values(&v[j]);
        if (worst > *ratio) *ratio = worst;
        if (status != ATTO_OK) return status;
    }
    return ATTO_OK;
}
