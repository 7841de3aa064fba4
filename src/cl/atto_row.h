/* SPDX-License-Identifier: MIT */
/* Rows: how the work-items of a row read and write its elements, 16 bytes at a time.
 *
 * A tensor is [outer, cols, step] without gaps; element c of row r stands at
 * (r / step * cols + c) * step + r % step. ATTO_LANES work-items have a row: lane l takes vectors
 * l, l + ATTO_LANES, ... of its elements, a chunk of ATTO_ITEMS of them at a time. Where step is
 * not 1, elements of a vector are fetched one by one.
 *
 *   -D          default  meaning
 *   ATTO_HELD   0        1: a row's slots are at most ATTO_LEAP, so that each lane has one chunk,
 *                        which stays in registers between the passes of a kernel; 0: each pass
 *                        reads it again
 *   ATTO_WHOLE  0        1: rows of all tensors begin at 16 bytes and are made of whole vectors
 *   and ATTO_DTYPE, ATTO_INDEX, ATTO_WG, ATTO_ITEMS of atto_kernel.h, ATTO_LANES of atto_reduce.h
 *
 * A kernel of two passes:
 *
 *     float v[ATTO_CHUNK];
 *     for (ATTO_CHUNKS(at, s)) {
 *         atto_load_chunk(x, s, at, 0.0f, v);
 *         ...
 *     }
 *     for (ATTO_CHUNKS(at, s)) {
 *         atto_load_again(x, s, at, 0.0f, v);
 *         ...
 *         atto_store_chunk(y, to, at, v);
 *     }
 *
 * Between the two, a held v must not be changed. */
#ifndef ATTO_ROW_H
#define ATTO_ROW_H

#include "atto_kernel.h"
#include "atto_reduce.h"

#ifndef ATTO_HELD
#define ATTO_HELD 0
#endif
#ifndef ATTO_WHOLE
#define ATTO_WHOLE 0
#endif

/* Elements of a chunk, how far apart its vectors lie, and how far chunks. */
#define ATTO_CHUNK (ATTO_VEC * ATTO_ITEMS)
#define ATTO_APART (ATTO_VEC * ATTO_LANES)
#define ATTO_LEAP  (ATTO_CHUNK * ATTO_LANES)

/* A row's elements are slots first .. end - 1 of a run that begins at 16 bytes, so that vectors lie
 * alike in every row: a row that begins behind such an address has some empty slots in front.
 * Vector j of the chunk at slot `at` begins at slot at + j * ATTO_APART. */
typedef struct atto_slots {
    atto_index first, end, step;
    uint whole; /* slots are neighbours, and vectors of them begin at 16 bytes */
} atto_slots;

#define ATTO_SLOT_OF(at, i) ((at) + (i) / ATTO_VEC * ATTO_APART + (i) % ATTO_VEC)
#define ATTO_IS_SLOT(s, at) ((at) >= (s).first && (at) < (s).end)
#if ATTO_WHOLE
#define ATTO_IS_VECTOR(s, at) ((at) < (s).end)
#define ATTO_HAS(s, at, i)    ((at) + (i) / ATTO_VEC * ATTO_APART < (s).end)
#else
#define ATTO_IS_VECTOR(s, at) ((s).whole && (at) >= (s).first && (at) + ATTO_VEC <= (s).end)
#define ATTO_HAS(s, at, i)    ATTO_IS_SLOT(s, ATTO_SLOT_OF(at, i)) /* element i of the chunk */
#endif
/* All vectors of a chunk. */
#define ATTO_IS_FULL(s, at) \
    ((s).whole && (at) >= (s).first && (at) + (ATTO_ITEMS - 1) * ATTO_APART + ATTO_VEC <= (s).end)

/* The head of a loop over this lane's chunks. */
#if ATTO_HELD
#define ATTO_CHUNKS(at, s)                                 \
    atto_index at = ATTO_LANE() * ATTO_VEC, at##_left = 1; \
    at##_left;                                             \
    at##_left = 0
#else
#define ATTO_CHUNKS(at, s)                  \
    atto_index at = ATTO_LANE() * ATTO_VEC; \
    at < (s).end;                           \
    at += ATTO_LEAP
#endif

/* ---- where a row is ---- */

/* This work-item's row. Those behind the last one take part in barriers only. */
static inline size_t atto_row(void)
{
    return get_group_id(0) * (size_t)ATTO_ROWS + get_local_id(0) / ATTO_LANES;
}

/* The row's first element. */
static inline size_t atto_row_start(size_t row, atto_index cols, atto_index step)
{
    return step == 1 ? row * cols : row / step * cols * step + row % step;
}

/* Slots of the row that starts so many elements behind element x_at of its buffer; the run begins
 * `first` elements before it. inside 0: it has none. */
static inline atto_slots atto_slots_of(ulong x_at, size_t start, atto_index cols, atto_index step,
                                       uint inside)
{
#if ATTO_WHOLE
    const atto_index first = 0;
#else
    const atto_index first = step == 1 ? (atto_index)((x_at + start) % ATTO_VEC) : 0;
#endif
    const atto_slots s = { first, inside ? first + cols : 0, step, step == 1 };
    return s;
}

/* The same slots in another tensor, whose vectors may lie otherwise. */
static inline atto_slots atto_slots_like(atto_slots s, ulong at, size_t start)
{
#if ATTO_WHOLE
    s.whole = 1;
#else
    s.whole = s.step == 1 && (at + start) % ATTO_VEC == s.first;
#endif
    return s;
}

/* ---- chunks ---- */

/* As it is stored, 0 where there is no vector; all of them are on their way before one is used. */
ATTO_UNROLLED void atto_fetch_chunk(__global const ATTO_T *run, atto_slots s, atto_index at,
                                    uint4 *raw)
{
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++)
        raw[j] = ATTO_IS_VECTOR(s, at + j * ATTO_APART)
                     ? atto_fetch(run, (at + j * ATTO_APART) / ATTO_VEC)
                     : (uint4)(0);
}

ATTO_UNROLLED void atto_unpack_chunk(const uint4 *raw, float *v)
{
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) atto_unpack(raw[j], v + j * ATTO_VEC);
}

/* Vectors first, then what is none. */
ATTO_UNROLLED void atto_load_ragged(__global const ATTO_T *run, atto_slots s, atto_index at,
                                    float fill, float *v)
{
    uint4 raw[ATTO_ITEMS];
    atto_fetch_chunk(run, s, at, raw);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index c = at + j * ATTO_APART;
        if (ATTO_IS_VECTOR(s, c)) {
            atto_unpack(raw[j], v + j * ATTO_VEC);
        } else {
#pragma unroll
            for (uint k = 0; k < ATTO_VEC; k++)
                v[j * ATTO_VEC + k] =
                    !ATTO_WHOLE && ATTO_IS_SLOT(s, c + k) ? atto_load(run, (c + k) * s.step) : fill;
        }
    }
}

/* Empty slots are `fill`. */
ATTO_UNROLLED void atto_load_chunk(__global const ATTO_T *run, atto_slots s, atto_index at,
                                   float fill, float *v)
{
    if (ATTO_WHOLE && fill == 0.0f) {
        uint4 raw[ATTO_ITEMS];
        atto_fetch_chunk(run, s, at, raw);
        atto_unpack_chunk(raw, v);
    } else if (ATTO_IS_FULL(s, at)) {
        uint4 raw[ATTO_ITEMS];
#pragma unroll
        for (uint j = 0; j < ATTO_ITEMS; j++)
            raw[j] = atto_fetch(run, (at + j * ATTO_APART) / ATTO_VEC);
        atto_unpack_chunk(raw, v);
    } else {
        atto_load_ragged(run, s, at, fill, v);
    }
}

/* In a later pass: v is still there if the row is held. */
ATTO_UNROLLED void atto_load_again(__global const ATTO_T *run, atto_slots s, atto_index at,
                                   float fill, float *v)
{
#if !ATTO_HELD
    atto_load_chunk(run, s, at, fill, v);
#endif
}

/* The vector at slot c. */
ATTO_UNROLLED void atto_store_vector(__global ATTO_T *run, atto_slots s, atto_index c,
                                     const float *v)
{
    if (ATTO_IS_VECTOR(s, c)) {
        atto_put(run, c / ATTO_VEC, atto_pack(v));
    } else if (!ATTO_WHOLE) {
#pragma unroll
        for (uint k = 0; k < ATTO_VEC; k++)
            if (ATTO_IS_SLOT(s, c + k)) atto_store(run, (c + k) * s.step, v[k]);
    }
}

ATTO_UNROLLED void atto_store_chunk(__global ATTO_T *run, atto_slots s, atto_index at,
                                    const float *v)
{
    if (!ATTO_WHOLE && ATTO_IS_FULL(s, at)) {
#pragma unroll
        for (uint j = 0; j < ATTO_ITEMS; j++)
            atto_put(run, (at + j * ATTO_APART) / ATTO_VEC, atto_pack(v + j * ATTO_VEC));
        return;
    }
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++)
        atto_store_vector(run, s, at + j * ATTO_APART, v + j * ATTO_VEC);
}

#endif
