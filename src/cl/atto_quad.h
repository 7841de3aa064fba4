/* SPDX-License-Identifier: MIT */
/* Four neighbouring elements of a row: what the epilogue and the prologue of matrix kernels work
 * on. Four, because they share one Philox counter, and because a sum's 16 bytes of f32 are four. */
#ifndef ATTO_QUAD_H
#define ATTO_QUAD_H

#include "atto_kernel.h"
#include "atto_dropout.h"

#ifndef ATTO_ACT
#define ATTO_ACT attom_identity
#endif
#define ATTO_ACT_GRAD ATTO_PASTE(ATTO_ACT, _grad)

/* The derivative of the identity does not need z, so z is not read. */
#define ATTO_IGNORES_Z_attom_identity 1
#define ATTO_READS_Z                  (!ATTO_PASTE(ATTO_IGNORES_Z_, ATTO_ACT))

/* ---- memory: at is a multiple of 4, the pointer aligned to match ---- */

/* As they are stored; widened where they are used, they take half the registers until then. */
typedef float4 atto_quad_f32;
typedef uint2 atto_quad_f16;
typedef uint2 atto_quad_bf16;

ATTO_UNROLLED void atto_widen_quad_f32(atto_quad_f32 raw, float *v)
{
    ATTO_SPLIT_4(raw, v);
}

ATTO_UNROLLED void atto_widen_quad_f16(atto_quad_f16 raw, float *v)
{
    const float4 wide = vload_half4(0, (const half *)&raw);
    ATTO_SPLIT_4(wide, v);
}

ATTO_UNROLLED void atto_widen_quad_bf16(atto_quad_bf16 raw, float *v)
{
    v[0] = as_float(raw.x << 16), v[1] = as_float(raw.x & 0xffff0000u);
    v[2] = as_float(raw.y << 16), v[3] = as_float(raw.y & 0xffff0000u);
}

#define ATTO_LOAD_QUAD(dtype, p, at) (*(__global const ATTO_PASTE(atto_quad_, dtype) *)((p) + (at)))

ATTO_UNROLLED void atto_get_quad_f32(__global const atto_f32 *p, size_t at, float *v)
{
    atto_widen_quad_f32(ATTO_LOAD_QUAD(f32, p, at), v);
}

ATTO_UNROLLED void atto_get_quad_f16(__global const atto_f16 *p, size_t at, float *v)
{
    atto_widen_quad_f16(ATTO_LOAD_QUAD(f16, p, at), v);
}

ATTO_UNROLLED void atto_get_quad_bf16(__global const atto_bf16 *p, size_t at, float *v)
{
    atto_widen_quad_bf16(ATTO_LOAD_QUAD(bf16, p, at), v);
}

ATTO_UNROLLED void atto_put_quad_f32(__global atto_f32 *p, size_t at, const float *v)
{
    *(__global float4 *)(p + at) = (float4)(ATTO_JOIN_4(v));
}

ATTO_UNROLLED void atto_put_quad_f16(__global atto_f16 *p, size_t at, const float *v)
{
    ushort4 raw;
    vstore_half4_rte((float4)(ATTO_JOIN_4(v)), 0, (half *)&raw);
    *(__global ushort4 *)(p + at) = raw;
}

ATTO_UNROLLED void atto_put_quad_bf16(__global atto_bf16 *p, size_t at, const float *v)
{
    const uint2 raw = (uint2)(atto_pack_pair_bf16(v[0], v[1]), atto_pack_pair_bf16(v[2], v[3]));
    *(__global uint2 *)(p + at) = raw;
}

/* Two of them: at is even. */
typedef float2 atto_pair_f32;
typedef uint atto_pair_f16;
typedef uint atto_pair_bf16;

#define ATTO_LOAD_PAIR(dtype, p, at) (*(__global const ATTO_PASTE(atto_pair_, dtype) *)((p) + (at)))

ATTO_UNROLLED void atto_widen_pair_f32(atto_pair_f32 raw, float *v)
{
    v[0] = raw.x, v[1] = raw.y;
}

ATTO_UNROLLED void atto_widen_pair_f16(atto_pair_f16 raw, float *v)
{
    const float2 wide = vload_half2(0, (const half *)&raw);
    v[0] = wide.x, v[1] = wide.y;
}

ATTO_UNROLLED void atto_widen_pair_bf16(atto_pair_bf16 raw, float *v)
{
    v[0] = as_float(raw << 16), v[1] = as_float(raw & 0xffff0000u);
}

/* ---- arithmetic ---- */

/* v[e] = act(v[e]) */
ATTO_UNROLLED void atto_act_quad(float *v, float a, float b)
{
#pragma unroll
    for (uint e = 0; e < 4; e++) v[e] = ATTO_ACT(v[e], a, b);
}

/* v[e] = act'(z[e]) * v[e] */
ATTO_UNROLLED void atto_act_grad_quad(float *v, const float *z, float a, float b)
{
#pragma unroll
    for (uint e = 0; e < 4; e++) v[e] = ATTO_ACT_GRAD(z[e], a, b) * v[e];
}

/* v[e] has the logical index i + e. grouped, the same for all work-items: i is a multiple of 4. */
ATTO_UNROLLED void atto_drop_quad(float *v, atto_mask m, ulong i, bool grouped)
{
#if ATTO_DROPOUT == 1
    if (grouped) {
        const attom_u32x4 words = atto_mask_words(m, m.offset + i / 4);
        v[0] = atto_drop_if(attom_keep(words.w0, m.threshold), v[0], m.scale);
        v[1] = atto_drop_if(attom_keep(words.w1, m.threshold), v[1], m.scale);
        v[2] = atto_drop_if(attom_keep(words.w2, m.threshold), v[2], m.scale);
        v[3] = atto_drop_if(attom_keep(words.w3, m.threshold), v[3], m.scale);
        return;
    }
#endif
#pragma unroll
    for (uint e = 0; e < 4; e++) v[e] = atto_drop(v[e], m, i + e);
}

#endif
