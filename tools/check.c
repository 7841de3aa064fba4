/* SPDX-License-Identifier: MIT */
/* Calls and comparison of selftest. */
#include "check.h"

#include <math.h>

#include "bench.h"

static atto_status call_act(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                            const atto_tensor *x, const atto_tensor *dy, const atto_tensor *out)
{
    const struct atto_act_args a = {
        .x = x, .y = out, .dy = dy, .dx = out, .act = op->act, .dropout = op->dropout, .rng = rng
    };
    return backward ? atto_act_backward(dev, &a) : atto_act_forward(dev, &a);
}

static atto_status call_dropout(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                                const atto_tensor *x, const atto_tensor *dy, const atto_tensor *out)
{
    const struct atto_dropout_args a = {
        .x = x, .y = out, .dy = dy, .dx = out, .p = op->dropout, .rng = rng
    };
    return backward ? atto_dropout_backward(dev, &a) : atto_dropout_forward(dev, &a);
}

static atto_status call_unary(atto_device *dev, const check_op *op, bool backward,
                              const atto_tensor *x, const atto_tensor *dy, const atto_tensor *out)
{
    const struct atto_unary_args a = {
        .x = x, .y = out, .dy = dy, .dx = out, .kind = (atto_unary_kind)op->kind, .lo = -1, .hi = 3
    };
    return backward ? atto_unary_backward(dev, &a) : atto_unary_forward(dev, &a);
}

static atto_status call_binary(atto_device *dev, const check_op *op, bool backward,
                               const atto_tensor *x, const atto_tensor *dy, const atto_tensor *out)
{
    const struct atto_binary_args a = {
        .a = x, .b = dy, .y = out, .dy = dy, .da = out, .kind = (atto_binary_kind)op->kind
    };
    return backward ? atto_binary_backward(dev, &a) : atto_binary_forward(dev, &a);
}

atto_status check_call(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                       const atto_tensor *x, const atto_tensor *dy, const atto_tensor *out)
{
    switch (op->family) {
    case CHECK_DROPOUT:
        return call_dropout(dev, op, backward, rng, x, dy, out);
    case CHECK_UNARY:
        return call_unary(dev, op, backward, x, dy, out);
    case CHECK_BINARY:
        return call_binary(dev, op, backward, x, dy, out);
    default:
        return call_act(dev, op, backward, rng, x, dy, out);
    }
}

static atto_status upload(atto_device *dev, atto_dtype dtype, int64_t n, const void *data,
                          atto_tensor *out)
{
    BENCH_TRY(atto_tensor_alloc(dev, dtype, atto_shape1(n), out));
    return atto_tensor_write(out, data);
}

atto_status check_call_host(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                            atto_dtype dtype, int64_t n, const void *x, const void *dy, void *out)
{
    atto_tensor tx = { 0 }, tdy = { 0 }, tout = { 0 };
    atto_status status = upload(dev, dtype, n, x, &tx);
    if (status == ATTO_OK) status = upload(dev, dtype, n, dy, &tdy);
    if (status == ATTO_OK) status = atto_tensor_alloc(dev, dtype, atto_shape1(n), &tout);
    if (status == ATTO_OK) status = check_call(dev, op, backward, rng, &tx, &tdy, &tout);
    if (status == ATTO_OK) status = atto_tensor_read(&tout, out);
    atto_tensor_free(&tx);
    atto_tensor_free(&tdy);
    atto_tensor_free(&tout);
    return status;
}

static atto_status convert(atto_device *dev, const void *in, atto_dtype from, atto_dtype to,
                           int64_t n, void *out)
{
    atto_tensor source = { 0 }, target = { 0 };
    atto_status status = upload(dev, from, n, in, &source);
    if (status == ATTO_OK) status = atto_tensor_alloc(dev, to, atto_shape1(n), &target);
    if (status == ATTO_OK) status = atto_tensor_copy(&target, &source);
    if (status == ATTO_OK) status = atto_tensor_read(&target, out);
    atto_tensor_free(&source);
    atto_tensor_free(&target);
    return status;
}

atto_status check_narrow(atto_device *dev, const float *in, atto_dtype dtype, int64_t n, void *out)
{
    return convert(dev, in, ATTO_F32, dtype, n, out);
}

atto_status check_widen(atto_device *dev, const void *in, atto_dtype dtype, int64_t n, float *out)
{
    return convert(dev, in, dtype, ATTO_F32, n, out);
}

/* Distance of 1 to the next value, and the smallest positive value that every device keeps. */
static double epsilon_of(atto_dtype dtype)
{
    return dtype == ATTO_F32 ? 0x1p-23 : dtype == ATTO_F16 ? 0x1p-10 : 0x1p-7;
}

static double tiny_of(atto_dtype dtype)
{
    return dtype == ATTO_F16 ? 0x1p-24 : 0x1p-126;
}

static double finite_size(float v)
{
    return isfinite(v) ? fabs((double)v) : 0;
}

double check_element(atto_dtype dtype, float got, float want, double tolerance)
{
    const double stored = epsilon_of(dtype) * finite_size(want) + tiny_of(dtype);
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (got == want) return 0;
    if (isinf(want) || isinf(got)) return INFINITY;
    return fabs((double)got - want) / (tolerance + stored);
}

check_worst check_compare(const check_op *op, atto_dtype dtype, int64_t n, const float *x,
                          const float *dy, const float *got, const float *want)
{
    const double scale = op->dropout < 1 ? 1.0 / (1.0 - op->dropout) : 0;
    check_worst worst = { .ratio = -1 };
    for (int64_t i = 0; i < n; i++) {
        const double term = (1 + finite_size(x[i])) * (dy != NULL ? finite_size(dy[i]) : 1);
        const double large = op->family == CHECK_UNARY || op->family == CHECK_BINARY
                                 ? 64 * 0x1p-24 * finite_size(want[i])
                                 : 0;
        const double ratio =
            check_element(dtype, got[i], want[i], 64 * 0x1p-24 * term * scale + large);
        if (ratio > worst.ratio) worst = (check_worst){ ratio, i, got[i], want[i] };
    }
    return worst;
}
