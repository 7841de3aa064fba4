/* SPDX-License-Identifier: MIT */
/* Dropout masks of one block: by logical index, the same bits as in the kernels. */
#ifndef ATTO_CPU_MASK_H
#define ATTO_CPU_MASK_H

#include "backend_cpu/loops.h"
#include "backend_cpu/philox.h"
#include "rng.h"

/* Room for a block's words, begun up to three words early and ended by a whole vector of counters.
 */
#define MASK_WORDS (ATTO_BLOCK + 4 + 4 * VEC_LANES)

/* Drops by Philox words when the logical indices are first, first + 1, ... Four words belong to a
 * counter, so the block starts up to three words into the first one. */
static inline void drop_run(float *values, int32_t n, const atto__mask *m, uint64_t first)
{
    uint32_t words[MASK_WORDS];
    const uint64_t counter = m->rng.offset + first / 4;
    const uint32_t *word = words + first % 4;
    const int32_t counters = ((int32_t)(first % 4) + n + 3) / 4;
    for (int32_t j = 0; j < counters; j += VEC_LANES)
        philox_vector(counter + (uint64_t)j, m->rng.seed, words + 4 * j);
    const uint32_t threshold = m->threshold;
    const float scale = m->scale;
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++)
        values[i] = attom_keep(word[i], threshold) ? values[i] * scale : 0.0f;
}

static inline bool keep_one(const atto__mask *m, uint64_t index)
{
    const uint32_t k0 = (uint32_t)m->rng.seed, k1 = (uint32_t)(m->rng.seed >> 32);
    if (m->rng.kind == ATTO_RNG_TRITON) {
        const uint32_t counter = (uint32_t)(m->rng.offset + index);
        return attom_triton_uniform(attom_philox(counter, 0, 0, 0, k0, k1).w0) >= m->p;
    }
    const uint64_t counter = m->rng.offset + index / 4;
    const attom_u32x4 w = attom_philox((uint32_t)counter, (uint32_t)(counter >> 32), 0, 0, k0, k1);
    const uint32_t words[4] = { w.w0, w.w1, w.w2, w.w3 };
    return attom_keep(words[index % 4], m->threshold);
}

/* Drops by the logical indices first, first + step, ...: dropped values become 0, whatever they
 * were, the others are scaled. */
static inline void drop_values(float *values, int32_t n, const atto__mask *m, uint64_t first,
                               uint64_t step)
{
    if (m->rng.kind == ATTO_RNG_PHILOX && step == 1) {
        drop_run(values, n, m, first);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        values[i] = keep_one(m, first + (uint64_t)i * step) ? values[i] * m->scale : 0.0f;
}

static inline void drop_block(float *values, const atto__mask *m, const atto__layout *l,
                              const block_at *at)
{
    drop_values(values, at->n, m, (uint64_t)logical_index(l, at), (uint64_t)inner_index_stride(l));
}

#endif
