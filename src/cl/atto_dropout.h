/* SPDX-License-Identifier: MIT */
/* Dropout inside a kernel: the mask is drawn by logical element index, so nobody stores it.
 *
 *   -D            default  meaning
 *   ATTO_DROPOUT  0        0 none
 *                          1 Philox: element i takes word i mod 4 of counter offset + i / 4
 *                          2 Triton: element i takes the first word of counter offset + i (32 bits)
 *
 * With 0 the parameter lists are empty and no function is to be called. */
#ifndef ATTO_DROPOUT_H
#define ATTO_DROPOUT_H

#include "atto_kernel.h"

#ifndef ATTO_DROPOUT
#define ATTO_DROPOUT 0
#endif

#if ATTO_DROPOUT
/* At the end of a kernel's parameter list; the second one in strided kernels, where grouped says
 * that a run's logical indices are consecutive and start at a multiple of 4. */
#define ATTO_DROPOUT_PARAMETERS \
    , const uint threshold, const float p, const float scale, const ulong seed, const ulong offset
#define ATTO_DROPOUT_WALK_PARAMETERS \
    , const atto_index4 index_stride, const uint grouped ATTO_DROPOUT_PARAMETERS
#define ATTO_MASK atto_mask_of(threshold, p, scale, seed, offset)
#else
#define ATTO_DROPOUT_PARAMETERS
#define ATTO_DROPOUT_WALK_PARAMETERS
#endif

/* One call's mask. */
typedef struct atto_mask {
    uint threshold; /* Philox: kept when word >> 8 is at least this */
    float p;        /* Triton: kept when the uniform number is at least this */
    float scale;    /* of kept elements */
    uint key0, key1;
    ulong offset; /* in counters */
} atto_mask;

static inline atto_mask atto_mask_of(uint threshold, float p, float scale, ulong seed, ulong offset)
{
    const atto_mask m = { threshold, p, scale, (uint)seed, (uint)(seed >> 32), offset };
    return m;
}

/* A dropped element is 0 whatever it was. */
static inline float atto_drop_if(bool kept, float value, float scale)
{
    return kept ? value * scale : 0.0f;
}

/* The four words of a counter. */
static inline attom_u32x4 atto_mask_words(atto_mask m, ulong counter)
{
    return attom_philox((uint)counter, (uint)(counter >> 32), 0, 0, m.key0, m.key1);
}

/* Whether the element of logical index i is kept. */
static inline bool atto_kept(atto_mask m, ulong i)
{
#if ATTO_DROPOUT == 2
    const attom_u32x4 words = atto_mask_words(m, (uint)(m.offset + i));
    return attom_triton_uniform(words.w0) >= m.p;
#else
    const attom_u32x4 words = atto_mask_words(m, m.offset + i / 4);
    const uint low = i & 1 ? words.w1 : words.w0;
    const uint high = i & 1 ? words.w3 : words.w2;
    return attom_keep(i & 2 ? high : low, m.threshold);
#endif
}

static inline float atto_drop(float value, atto_mask m, ulong i)
{
    return atto_drop_if(atto_kept(m, i), value, m.scale);
}

/* v[k] has the logical index i + k * step. */
ATTO_UNROLLED void atto_drop_each(float *v, atto_mask m, ulong i, ulong step)
{
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) v[k] = atto_drop(v[k], m, i + k * step);
}

/* v[k] has the logical index i + k; i and ATTO_RUN are multiples of 4. */
ATTO_UNROLLED void atto_drop_groups(float *v, atto_mask m, ulong i)
{
#if ATTO_DROPOUT == 2
    atto_drop_each(v, m, i, 1);
#else
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k += 4) {
        const attom_u32x4 words = atto_mask_words(m, m.offset + (i + k) / 4);
        v[k] = atto_drop_if(attom_keep(words.w0, m.threshold), v[k], m.scale);
        v[k + 1] = atto_drop_if(attom_keep(words.w1, m.threshold), v[k + 1], m.scale);
        v[k + 2] = atto_drop_if(attom_keep(words.w2, m.threshold), v[k + 2], m.scale);
        v[k + 3] = atto_drop_if(attom_keep(words.w3, m.threshold), v[k + 3], m.scale);
    }
#endif
}

/* A strided kernel's run: v[k] has the logical index i + k * step. */
ATTO_UNROLLED void atto_drop_run(float *v, atto_mask m, ulong i, ulong step, uint grouped)
{
#if ATTO_RUN > 1 && ATTO_DROPOUT == 1
    if (grouped) { /* the same for all work-items */
        atto_drop_groups(v, m, i);
        return;
    }
#endif
    atto_drop_each(v, m, i, step);
}

#endif
