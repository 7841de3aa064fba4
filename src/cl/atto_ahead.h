/* SPDX-License-Identifier: MIT */
/* Rows to come: their vectors are on their way into local memory while a row is worked on, which
 * takes no registers. A work-item reads only what it has asked for itself, so nobody has to wait
 * for another.
 *
 *   -D           default  meaning
 *   ATTO_STAGES  0        rows of a work-item that have room there, a power of two; 0: none, each
 *                         row is fetched when its turn comes. Else ATTO_NVIDIA is 80 or more, and
 *                         ATTO_WHOLE 1
 *
 *     __local uint4 stages[ATTO_STAGE_VECTORS(1)];
 *     for (k = 0; k < ATTO_STAGES - 1; k++) { ask for row k; atto_end_asking(); }
 *     for (k = 0; ...; k++) {
 *         ask for row k + ATTO_STAGES - 1; atto_end_asking();
 *         atto_await_oldest();
 *         take row k
 *     }
 */
#ifndef ATTO_AHEAD_H
#define ATTO_AHEAD_H

#include "atto_row.h"

#ifndef ATTO_STAGES
#define ATTO_STAGES 0
#endif

#if ATTO_STAGES
#if ATTO_NVIDIA < 80 || !ATTO_WHOLE
#error "ATTO_STAGES needs cp.async, and rows of whole vectors"
#endif
/* Of a work-group, for chunks of that many tensors. */
#define ATTO_STAGE_VECTORS(tensors) (ATTO_STAGES * (tensors)*ATTO_ITEMS * ATTO_WG)

/* Where this work-item's chunk of row `turn` of tensor `which` is. */
static inline __local uint4 *atto_stage(__local uint4 *stages, uint turn, uint tensors, uint which)
{
    const uint slot = turn % ATTO_STAGES * tensors + which;
    return stages + slot * (ATTO_ITEMS * ATTO_WG) + get_local_id(0);
}

/* Zeros where there is no vector. */
ATTO_UNROLLED void atto_ask_for_chunk(__global const ATTO_T *run, atto_slots s, atto_index at,
                                      __local uint4 *stage)
{
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const uint bytes = ATTO_IS_VECTOR(s, at + j * ATTO_APART) ? 16 : 0;
        const atto_index from = bytes ? at + j * ATTO_APART : 0;
        __asm__ volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                         :
                         : "r"((uint)(ulong)(stage + j * ATTO_WG)), "l"((ulong)(run + from)),
                           "r"(bytes)
                         : "memory");
    }
}

static inline void atto_end_asking(void)
{
    __asm__ volatile("cp.async.commit_group;" : : : "memory");
}

static inline void atto_await_oldest(void)
{
    __asm__ volatile("cp.async.wait_group %0;" : : "n"(ATTO_STAGES - 1) : "memory");
}

ATTO_UNROLLED void atto_take_chunk(__local const uint4 *stage, uint4 *raw)
{
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) raw[j] = stage[j * ATTO_WG];
}
#endif

#endif
