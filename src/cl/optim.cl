/* SPDX-License-Identifier: MIT */
/* optim.cl - one step of an optimiser over a chunk of parameters.
 *
 *   norm    partials = sum of (g / scale)^2, and count of what is not finite
 *   begin   norm, clipping, loss scale; each segment's steps and coefficients
 *   step    value and states, from the gradient
 *
 * atto_optim.h has the formulas and the tables. In step, work-item t has the 16 bytes t of the
 * value:
 *
 *   work-item t    block t / (BLOCK / VEC)    segment segment_of[block]    coefficients[segment]
 *
 * In norm, work-group i has span i of the chunk, and its work-items take vectors ATTO_WG apart.
 * begin is one work-group. Chunks are whole blocks, so there are no tails.
 *
 *   -D             default  meaning
 *   ATTO_OPTIM     1        method: ATTO_OPTIM_SGD 0, ADAM 1, RMSPROP 2
 *   ATTO_MOMENTUM  0        1: SGD or RMSprop with a momentum buffer
 *   ATTO_CENTERED  0        1: RMSprop around the average
 *   ATTO_SHADOW    none     f16 or bf16: the f32 value is written in that dtype as well
 *   and those of atto_kernel.h
 */
#include "atto_kernel.h"
#include "atto_optim.h"

#ifndef ATTO_OPTIM
#define ATTO_OPTIM ATTO_OPTIM_ADAM
#endif
#ifndef ATTO_MOMENTUM
#define ATTO_MOMENTUM 0
#endif
#ifndef ATTO_CENTERED
#define ATTO_CENTERED 0
#endif

/* What a method keeps of each element. f16 and bf16 values have an f32 master. */
#define ATTO_HAS_MASTER (ATTO_VEC == 8)
#define ATTO_HAS_SQUARE (ATTO_OPTIM != ATTO_OPTIM_SGD)
#define ATTO_HAS_MEAN   (ATTO_OPTIM == ATTO_OPTIM_ADAM || ATTO_CENTERED)
#define ATTO_HAS_BUFFER ATTO_MOMENTUM

#define optim_narrow ATTO_PASTE(atto_narrow_, ATTO_SHADOW)

/* Vectors of 16 bytes in a block. */
#define ATTO_BLOCK_VECTORS (ATTO_OPTIM_BLOCK / ATTO_VEC)

/* The ATTO_VEC floats beside vector `at`. */
ATTO_UNROLLED void optim_get(__global const float *s, size_t at, float *v)
{
#pragma unroll
    for (uint k = 0; k < ATTO_VEC / 4; k++) {
        const float4 four = ((__global const float4 *)s)[at * (ATTO_VEC / 4) + k];
        ATTO_SPLIT_4(four, v + 4 * k);
    }
}

ATTO_UNROLLED void optim_put(__global float *s, size_t at, const float *v)
{
#pragma unroll
    for (uint k = 0; k < ATTO_VEC / 4; k++)
        ((__global float4 *)s)[at * (ATTO_VEC / 4) + k] = (float4)(ATTO_JOIN_4(v + 4 * k));
}

/* Adds up v over the work-group, by a tree; every work-item gets the sum. */
static inline float optim_group_sum(float v, __local float *scratch)
{
    const uint lane = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* whoever still reads the last sum */
    scratch[lane] = v;
    for (uint apart = ATTO_WG / 2; apart > 0; apart /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < apart) scratch[lane] += scratch[lane + apart];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return scratch[0];
}

/* ---- norm ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_optim_norm)
ATTO_KERNEL void atto_optim_norm(__global const ATTO_T *grad,     /* [blocks][BLOCK] */
                                 __global const uint *segment_of, /* [blocks] */
                                 __global const uint *flags,      /* [segments] */
                                 __global const float *control,   /* [8] */
                                 __global float2 *partials,       /* [spans] */
                                 const uint first_span, const uint blocks)
{
    __local float scratch[ATTO_WG];
    const float inverse = 1.0f / control[ATTO_CONTROL_SCALE];
    const uint first = (uint)get_group_id(0) * ATTO_OPTIM_SPAN;
    const uint count = min(blocks - first, (uint)ATTO_OPTIM_SPAN) * ATTO_BLOCK_VECTORS;

    float sum[ATTO_VEC], bad = 0.0f;
#pragma unroll
    for (uint k = 0; k < ATTO_VEC; k++) sum[k] = 0.0f;
    for (uint i = get_local_id(0); i < count; i += ATTO_WG) {
        if (!flags[segment_of[first + i / ATTO_BLOCK_VECTORS]]) continue;
        float g[ATTO_VEC];
        atto_unpack(atto_fetch(grad, (size_t)first * ATTO_BLOCK_VECTORS + i), g);
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++) {
            const float unscaled = g[k] * inverse;
            sum[k] += unscaled * unscaled;
            bad += atto_optim_is_finite(g[k]) ? 0.0f : 1.0f;
        }
    }

    float own = 0.0f;
#pragma unroll
    for (uint k = 0; k < ATTO_VEC; k++) own += sum[k];
    const float squares = optim_group_sum(own, scratch);
    bad = optim_group_sum(bad, scratch);
    if (get_local_id(0) == 0) partials[first_span + get_group_id(0)] = (float2)(squares, bad);
}
#endif

/* ---- begin ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_optim_begin)

/* The scale after a step: PyTorch's GradScaler.update. */
static inline void optim_update_scale(__global float *control, bool skips, float growth,
                                      float backoff, float interval)
{
    const float good = skips ? 0.0f : control[ATTO_CONTROL_GOOD] + 1.0f;
    const float scale = control[ATTO_CONTROL_SCALE];
    const bool grows = good == interval;
    control[ATTO_CONTROL_GOOD] = grows ? 0.0f : good;
    if (grows) control[ATTO_CONTROL_SCALE] = atto_optim_grown(scale, growth);
    if (skips) control[ATTO_CONTROL_SCALE] = atto_optim_shrunk(scale, backoff);
    if (skips) control[ATTO_CONTROL_SKIPPED] += 1.0f;
}

/* One segment's numbers; steps counts this step already. */
static inline void optim_coefficients(__global float *c, uint steps, float2 group, uint mode,
                                      float lr, float factor, float ln_beta1, float ln_beta2,
                                      float fresh)
{
    const float rate = lr * group.x, decay = group.y;
    const bool decoupled = mode & ATTO_OPTIM_DECOUPLED;
    c[ATTO_OPTIM_ACTIVE] = 1.0f;
    c[ATTO_OPTIM_GRADIENT] = factor;
    c[ATTO_OPTIM_RATE] = rate / atto_optim_correction((float)steps, ln_beta1);
    c[ATTO_OPTIM_L2] = decoupled ? 0.0f : decay;
    c[ATTO_OPTIM_DECAY] = decoupled ? 1.0f - rate * decay : 1.0f;
    c[ATTO_OPTIM_ROOT] = attop_rsqrt(atto_optim_correction((float)steps, ln_beta2));
    c[ATTO_OPTIM_FRESH] = steps == 1 ? 1.0f : fresh;
}

ATTO_KERNEL void atto_optim_begin(__global const float2 *partials, /* [spans] */
                                  __global float *control,         /* [8] */
                                  __global const uint *flags,      /* [segments] */
                                  __global const uint *group_of,   /* [segments] */
                                  __global const float2 *groups,   /* [groups] */
                                  __global uint *steps,            /* [segments] */
                                  __global float *coefficients,    /* [segments][8] */
                                  const uint spans, const uint segments, const uint mode,
                                  const float lr, const float max_norm, const float ln_beta1,
                                  const float ln_beta2, const float fresh, const float growth,
                                  const float backoff, const float interval)
{
    __local float scratch[ATTO_WG];
    const uint lane = get_local_id(0);

    float squares = 0.0f, bad = 0.0f;
    for (uint i = lane; i < spans; i += ATTO_WG) {
        squares += partials[i].x;
        bad += partials[i].y;
    }
    const float norm = sqrt(optim_group_sum(squares, scratch));
    const bool skips = optim_group_sum(bad, scratch) > 0.0f && (mode & ATTO_OPTIM_SCALES);

    float factor = 1.0f / control[ATTO_CONTROL_SCALE];
    if (mode & ATTO_OPTIM_CLIPS) factor *= atto_optim_clip(norm, max_norm);
    if (mode & ATTO_OPTIM_MAXIMIZES) factor = -factor;
    barrier(CLK_GLOBAL_MEM_FENCE); /* all have read the scale */
    if (lane == 0 && (mode & ATTO_OPTIM_MEASURES)) control[ATTO_CONTROL_NORM] = norm;
    if (lane == 0 && (mode & ATTO_OPTIM_SCALES))
        optim_update_scale(control, skips, growth, backoff, interval);

    for (uint s = lane; s < segments; s += ATTO_WG) {
        const bool active = flags[s] && !skips;
        __global float *c = coefficients + s * ATTO_OPTIM_COEFFICIENTS;
        c[ATTO_OPTIM_ACTIVE] = 0.0f;
        if (!active) continue;
        steps[s]++;
        optim_coefficients(c, steps[s], groups[group_of[s]], mode, lr, factor, ln_beta1, ln_beta2,
                           fresh);
    }
}
#endif

/* ---- step ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_optim_step)

#if ATTO_HAS_MASTER
#define ATTO_MASTER_PARAMETER , __global float *master
#else
#define ATTO_MASTER_PARAMETER
#endif
#if ATTO_HAS_SQUARE
#define ATTO_SQUARE_PARAMETER , __global float *square
#else
#define ATTO_SQUARE_PARAMETER
#endif
#if ATTO_HAS_MEAN
#define ATTO_MEAN_PARAMETER , __global float *mean
#else
#define ATTO_MEAN_PARAMETER
#endif
#if ATTO_HAS_BUFFER
#define ATTO_BUFFER_PARAMETER , __global float *buffer
#else
#define ATTO_BUFFER_PARAMETER
#endif

#ifdef ATTO_SHADOW
#define ATTO_SHADOW_PARAMETER , __global ushort4 *shadow
#else
#define ATTO_SHADOW_PARAMETER
#endif

/* All but the tables is [blocks][BLOCK]. */
ATTO_KERNEL void
atto_optim_step(__global const uint *segment_of,    /* [blocks] */
                __global const float *coefficients, /* [segments][8] */
                const uint blocks, const float momentum, const float weight1, const float beta2,
                const float weight2, const float eps, const uint nesterov,
                __global const ATTO_T *grad,
                __global ATTO_T *value ATTO_MASTER_PARAMETER ATTO_SQUARE_PARAMETER
                    ATTO_MEAN_PARAMETER ATTO_BUFFER_PARAMETER ATTO_SHADOW_PARAMETER)
{
    const size_t at = get_global_id(0);
    const size_t block = at / ATTO_BLOCK_VECTORS;
    if (block >= blocks) return;
    __global const float *c = coefficients + segment_of[block] * ATTO_OPTIM_COEFFICIENTS;
    if (c[ATTO_OPTIM_ACTIVE] == 0.0f) return;
    const float factor = c[ATTO_OPTIM_GRADIENT], rate = c[ATTO_OPTIM_RATE];
    const float l2 = c[ATTO_OPTIM_L2], decay = c[ATTO_OPTIM_DECAY];
    const float root = c[ATTO_OPTIM_ROOT], fresh = c[ATTO_OPTIM_FRESH];

    float p[ATTO_VEC], g[ATTO_VEC];
    atto_unpack(atto_fetch(grad, at), g);
#if ATTO_HAS_MASTER
    optim_get(master, at, p);
#else
    atto_unpack(atto_fetch(value, at), p);
#endif
#if ATTO_HAS_SQUARE
    float v[ATTO_VEC];
    optim_get(square, at, v);
#endif
#if ATTO_HAS_MEAN
    float m[ATTO_VEC];
    optim_get(mean, at, m);
#endif
#if ATTO_HAS_BUFFER
    float b[ATTO_VEC];
    optim_get(buffer, at, b);
#endif

#pragma unroll
    for (uint k = 0; k < ATTO_VEC; k++) {
        float d = atto_optim_gradient(g[k], p[k], factor, l2); /* the direction */
#if ATTO_HAS_MEAN
        m[k] = atto_optim_average(m[k], d, ATTO_OPTIM == ATTO_OPTIM_ADAM ? weight1 : weight2);
#endif
#if ATTO_HAS_SQUARE
        v[k] = atto_optim_square(v[k], d, beta2, weight2);
#endif
#if ATTO_OPTIM == ATTO_OPTIM_ADAM
        d = atto_optim_adam(m[k], v[k], root, eps);
#elif ATTO_OPTIM == ATTO_OPTIM_RMSPROP
#if ATTO_CENTERED
        d = atto_optim_rmsprop(d, v[k], m[k], eps);
#else
        d = atto_optim_rmsprop(d, v[k], 0.0f, eps);
#endif
#if ATTO_HAS_BUFFER
        d = b[k] = momentum * b[k] + d;
#endif
#elif ATTO_HAS_BUFFER
        b[k] = atto_optim_buffer(b[k], d, momentum, fresh);
        d = nesterov ? atto_optim_nesterov(b[k], d, momentum) : b[k];
#endif
        p[k] = p[k] * decay - rate * d;
    }

    atto_put(value, at, atto_pack(p));
#if ATTO_HAS_MASTER
    optim_put(master, at, p);
#endif
#if ATTO_HAS_SQUARE
    optim_put(square, at, v);
#endif
#if ATTO_HAS_MEAN
    optim_put(mean, at, m);
#endif
#if ATTO_HAS_BUFFER
    optim_put(buffer, at, b);
#endif
#ifdef ATTO_SHADOW
    const ushort n0 = optim_narrow(p[0]), n1 = optim_narrow(p[1]);
    const ushort n2 = optim_narrow(p[2]), n3 = optim_narrow(p[3]);
    shadow[at] = (ushort4)(n0, n1, n2, n3);
#endif
}
#endif
