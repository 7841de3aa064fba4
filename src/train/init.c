/* SPDX-License-Identifier: MIT */
/* Initial values: drawn on the host from the device's stream, so that they are the same bits on
 * every device. */
#include <float.h>
#include <math.h>

#include "alloc.h"
#include "cl/atto_math.h"
#include "train/module.h"

/* Numbers of one parameter: element i comes from word i mod 4 of counter offset + i / 4. */
typedef struct draw {
    atto_rng rng;
    double bound;           /* uniform */
    double mean, deviation; /* normal */
} draw;

typedef double (*draw_fn)(const draw *d, int64_t i);

void atto_seed(atto_device *dev, uint64_t seed)
{
    if (dev) dev->init_rng = (atto_rng){ .seed = seed };
}

/* In [0, 1), a multiple of 2^-24. */
static double unit(atto_rng rng, uint64_t i)
{
    const uint64_t counter = rng.offset + i / 4;
    const attom_u32x4 w = attom_philox((uint32_t)counter, (uint32_t)(counter >> 32), 0, 0,
                                       (uint32_t)rng.seed, (uint32_t)(rng.seed >> 32));
    const uint32_t words[4] = { w.w0, w.w1, w.w2, w.w3 };
    return (double)(words[i % 4] >> 8) * (1.0 / 16777216.0);
}

static double draw_uniform(const draw *d, int64_t i)
{
    return (2.0 * unit(d->rng, (uint64_t)i) - 1.0) * d->bound;
}

/* Source: Box and Muller 1958. Two numbers of the stream make one. */
static double draw_normal(const draw *d, int64_t i)
{
    const double radius = sqrt(-2.0 * log(1.0 - unit(d->rng, 2 * (uint64_t)i)));
    const double angle = 6.283185307179586 * unit(d->rng, 2 * (uint64_t)i + 1);
    return d->mean + d->deviation * radius * cos(angle);
}

static void fill_host(void *host, atto_dtype dtype, int64_t n, draw_fn f, const draw *d)
{
    for (int64_t i = 0; i < n; i++) {
        const float value = (float)f(d, i);
        if (dtype == ATTO_F32) ((float *)host)[i] = value;
        if (dtype == ATTO_F16) ((uint16_t *)host)[i] = attom_f32_to_f16(value);
        if (dtype == ATTO_BF16) ((uint16_t *)host)[i] = attom_f32_to_bf16(value);
    }
}

static atto_status init(atto_param *p, int64_t numbers, draw_fn f, draw *d)
{
    const int64_t n = atto_tensor_numel(&p->value);
    d->rng = atto_rng_reserve(&p->dev->init_rng, numbers);
    void *host = atto__alloc((size_t)n * atto_dtype_size(p->value.dtype));
    ATTO_REQUIRE(host, ATTO_E_MEMORY, "param_init: out of host memory");
    fill_host(host, p->value.dtype, n, f, d);
    const atto_status status = atto_param_write(p, host);
    atto__free(host);
    return status;
}

atto_status atto_param_init_uniform(atto_param *p, double bound)
{
    ATTO_REQUIRE(p, ATTO_E_NULL, "param_init_uniform: p is NULL");
    ATTO_REQUIRE(bound >= 0.0 && bound <= FLT_MAX, ATTO_E_ARGUMENT,
                 "param_init_uniform: the bound is %g, expected one from 0, finite as f32", bound);
    return init(p, atto_tensor_numel(&p->value), draw_uniform, &(draw){ .bound = bound });
}

atto_status atto_param_init_normal(atto_param *p, double mean, double deviation)
{
    ATTO_REQUIRE(p, ATTO_E_NULL, "param_init_normal: p is NULL");
    ATTO_REQUIRE(fabs(mean) <= FLT_MAX && deviation >= 0.0 && deviation <= FLT_MAX, ATTO_E_ARGUMENT,
                 "param_init_normal: mean %g and deviation %g, expected ones finite as f32, "
                 "deviation from 0",
                 mean, deviation);
    return init(p, 2 * atto_tensor_numel(&p->value), draw_normal,
                &(draw){ .mean = mean, .deviation = deviation });
}

atto_status atto_param_init_constant(atto_param *p, double value)
{
    ATTO_REQUIRE(p, ATTO_E_NULL, "param_init_constant: p is NULL");
    atto_param_changed(p);
    return atto_tensor_fill(&p->value, value);
}
