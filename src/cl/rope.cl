/* SPDX-License-Identifier: MIT */
/* rope.cl - pairs of elements turned by the angles of a table.
 *
 *   to_u = u cos - v sin
 *   to_v = v cos + u sin     (+ to)     sin times sign: 1 forward, of x to y; -1 backward, of dy to dx
 *
 * Tensors are [batches, heads, length, d] with any steps but the last. The first 2 pairs elements of a
 * row are turned, the rest is copied. A work-item has one run of a row, in ATTO_HEADS heads of a
 * position, so that angles are loaded once for them:
 *
 *   t = ((batch * groups of heads + group) * length + l) * runs of a row + run, or, heads inside,
 *       ((batch * length + l) * groups of heads + group) * runs of a row + run
 *
 *   halves      run at is elements at... and pairs + at..., one unit each, of pairs at...
 *   neighbours  vectors: one unit, elements at... of pairs at / 2...; elements: those of pair at
 *   copied      one unit
 *
 *   -D               default  meaning
 *   ATTO_NEIGHBOURS  0        1: elements 2i and 2i + 1 are a pair; 0: i and pairs + i
 *   ATTO_POSITIONS   0        1: positions name the table's rows (ATTO_INDEX_IN); 0: first + l does
 *   ATTO_HEADS       4        heads of a work-item
 *   ATTO_RUN, ATTO_VECTORS of atto_kernel.h: a unit is a vector, or one element, which any size and
 *   step allows; those of atto_index.h and the others of atto_kernel.h
 */
#define ATTO_UNIT 4
#include "atto_index.h"

#ifndef ATTO_NEIGHBOURS
#define ATTO_NEIGHBOURS 0
#endif
#ifndef ATTO_POSITIONS
#define ATTO_POSITIONS 0
#endif
#ifndef ATTO_HEADS
#define ATTO_HEADS 4
#endif

/* Units and pairs of a run that is turned; elements u and v of pair k among theirs. */
#if ATTO_NEIGHBOURS && ATTO_VECTORS
#define PARTS 1
#define PAIRS (ATTO_RUN / 2)
#define U(k)  (2 * (k))
#define V(k)  (2 * (k) + 1)
#else
#define PARTS 2
#define PAIRS ATTO_RUN
#define U(k)  (k)
#define V(k)  (ATTO_RUN + (k))
#endif

/* Where part p of the run begins in its row. */
static inline size_t part_of(size_t at, uint p, size_t pairs, bool turns)
{
    if (!turns) return PARTS == 2 ? at + pairs : at;
#if ATTO_NEIGHBOURS
    return PARTS == 2 ? 2 * at + p : at;
#else
    return at + p * pairs;
#endif
}

/* Angles of PAIRS pairs, aligned to as many floats, or to 16 bytes if those are more. */
ATTO_UNROLLED void load_angles(__global const float *table, float *v)
{
#if PAIRS >= 4
#pragma unroll
    for (uint k = 0; k < PAIRS / 4; k++) {
        const float4 four = ((__global const float4 *)table)[k];
        ATTO_SPLIT_4(four, v + 4 * k);
    }
#elif PAIRS == 2
    const float2 two = *(__global const float2 *)table;
    ATTO_SPLIT_2(two, v);
#else
    v[0] = table[0];
#endif
}

ATTO_UNROLLED void turn(float *v, const float *c, const float *s)
{
#pragma unroll
    for (uint k = 0; k < PAIRS; k++) {
        const float first = v[U(k)], second = v[V(k)];
        v[U(k)] = first * c[k] - second * s[k];
        v[V(k)] = second * c[k] + first * s[k];
    }
}

#if ATTO_POSITIONS
#define POSITION_PARAMETERS                                                                \
    __global const index_t *position, const ulong position_at, const ulong position_batch, \
        const ulong position_step, volatile __global uint *errors, const ulong errors_at,
#else
#define POSITION_PARAMETERS const ulong first,
#endif

/* n runs; size: -, groups of heads, length (or, inside, these two the other way round), runs of a row.
 * Steps: batch, head, row. */
ATTO_KERNEL void atto_rope_turn(__global const ATTO_T *from, const ulong from_at,
                                __global ATTO_T *to, const ulong to_at,
                                __global const float *cosines, const ulong cos_at,
                                __global const float *sines, const ulong sin_at,
                                POSITION_PARAMETERS const ulong rows, const ulong cos_step,
                                const ulong sin_step, const ulong pairs, const atto_index heads,
                                const ulong4 from_step, const ulong4 to_step, const float sign,
                                const uint add, const uint inside, const atto_index n,
                                const atto_index4 size, const uint4 magic, const uint4 shift)
{
    const atto_index t = get_global_id(0);
    if (t >= n) return;
    const atto_index4 at = atto_walk(t, size, magic, shift);
    const atto_index head = (inside ? at.z : at.y) * ATTO_HEADS, l = inside ? at.y : at.z;
    const bool turns = at.w < (PARTS == 2 ? pairs : 2 * pairs);
    from += from_at + at.x * from_step.x + head * from_step.y + l * from_step.z;
    to += to_at + at.x * to_step.x + head * to_step.y + l * to_step.z;

#if ATTO_POSITIONS
    const long row = position[position_at + at.x * position_batch + l * position_step];
    const bool known = is_row(row, rows);
    if (!known) atomic_or(errors + errors_at, BIT_OF_INDICES);
#else
    const ulong row = first + l;
    const bool known = true;
#endif

    atto_raw raw[ATTO_HEADS][PARTS];
#pragma unroll
    for (uint j = 0; j < ATTO_HEADS; j++)
#pragma unroll
        for (uint p = 0; p < PARTS; p++)
            if (head + j < heads && (turns || p == 0))
                raw[j][p] = atto_load_unit(from + j * from_step.y, part_of(at.w, p, pairs, turns));

    float c[PAIRS], s[PAIRS];
    if (turns && known) {
        const size_t column = PARTS == 2 ? at.w : at.w / 2;
        load_angles(cosines + cos_at + row * cos_step + column, c);
        load_angles(sines + sin_at + row * sin_step + column, s);
#pragma unroll
        for (uint k = 0; k < PAIRS; k++) s[k] *= sign;
    }

#pragma unroll
    for (uint j = 0; j < ATTO_HEADS; j++) {
        if (head + j >= heads) continue;
        float v[PARTS * ATTO_RUN];
#pragma unroll
        for (uint p = 0; p < PARTS; p++)
            if (turns || p == 0) atto_widen_unit(raw[j][p], v + p * ATTO_RUN);
        if (turns && known) turn(v, c, s);
#if ATTO_POSITIONS
#pragma unroll
        for (uint k = 0; k < PARTS * ATTO_RUN; k++) v[k] = known ? v[k] : NAN;
#endif
#pragma unroll
        for (uint p = 0; p < PARTS; p++)
            if (turns || p == 0)
                atto_store_gradient(to + j * to_step.y, part_of(at.w, p, pairs, turns),
                                    v + p * ATTO_RUN, add);
    }
}
