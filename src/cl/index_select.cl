/* SPDX-License-Identifier: MIT */
/* index_select.cl - rows that an index names, and the sums of their gradients.
 *
 *   forward   y[o][p] = x[o][index[p]], in units of as many bytes as rows allow
 *   count     row of each position, how many a row has, and a slot among them   a slab of positions
 *   place     where a row's slots begin; rows that have positions become heads
 *   fill      slots get their positions
 *   rank      positions of a row in ascending order
 *   sum       dx[o][r] = (old +) sum of dy[o][p] over the positions of a head's row r, in that order
 *
 * Slots and heads are handed out by atomic counters of integers, in any order. What they hold is the
 * same set each time, and rank brings it into an order that is the same too:
 *
 *       index    7  2  7  5  2  7            rows     2     5     7
 *       bucket  | 4  1 | 5  0  2 | 3 |       order  | 1  4 | 0  2  5 | 3 |
 *
 *   -D              default  meaning
 *   ATTO_UNIT       16       forward: bytes that move at a time: 16, 4 or 2
 *   ATTO_WIDE_OUT   0        sum: 1: dx is scratch in f32, 0: it has ATTO_DTYPE as dy
 *   and those of atto_index.h and atto_kernel.h; ATTO_RUN and ATTO_VECTORS are those of sum
 */
#ifndef ATTO_UNIT
#define ATTO_UNIT 16
#endif
#include "atto_index.h"

#ifndef ATTO_WIDE_OUT
#define ATTO_WIDE_OUT 0
#endif

#define NO_ROW 0xffffffffu

/* ---- forward ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_index_select_forward)
/* Offsets of x and y, and n, count units. size.w = units of a row, size.z = positions. */
ATTO_KERNEL void atto_index_select_forward(__global const unit_t *x, const ulong x_at,
                                           __global const index_t *index, const ulong index_at,
                                           __global unit_t *y, const ulong y_at,
                                           volatile __global uint *errors, const ulong errors_at,
                                           const ulong rows, const atto_index n,
                                           const atto_index4 size, const uint4 magic,
                                           const uint4 shift)
{
    const atto_index first = atto_first_vector();
    size_t from[ATTO_ITEMS];
    long named[ATTO_ITEMS];
    unit_t value[ATTO_ITEMS];
    x += x_at;
    index += index_at;
    y += y_at;
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index t = first + j * ATTO_WG;
        if (t >= n) continue;
        const atto_index row = atto_divide(t, size.w, magic.w, shift.w);
        const atto_index outer = atto_divide(row, size.z, magic.z, shift.z);
        const atto_index position = row - outer * size.z, unit = t - row * size.w;
        named[j] = index[position];
        from[j] = ((size_t)outer * rows + (size_t)named[j]) * size.w + unit;
        if (!is_row(named[j], rows) && unit == 0) atomic_or(errors + errors_at, BIT_OF_INDICES);
    }
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        if (first + j * ATTO_WG >= n) continue;
        value[j] = NAN_UNIT;
        if (is_row(named[j], rows)) value[j] = x[from[j]];
    }
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++)
        if (first + j * ATTO_WG < n) y[first + j * ATTO_WG] = value[j];
}
#endif

/* ---- backward: positions by rows ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_index_select_count)
/* count is [rows + 2], zeros at first: those of rows, the slots that are handed out, the heads. */
ATTO_KERNEL void atto_index_select_count(__global const index_t *index, const ulong index_at,
                                         __global uint *row, __global uint *slot,
                                         volatile __global uint *count,
                                         volatile __global uint *errors, const ulong errors_at,
                                         const uint positions, const ulong rows,
                                         const uint has_padding, const ulong padding)
{
    const uint i = get_global_id(0);
    if (i >= positions) return;
    const long named = index[index_at + i];
    const uint valid = is_row(named, rows);
    const uint counts = valid && !(has_padding && (ulong)named == padding);
    if (!valid) atomic_or(errors + errors_at, BIT_OF_INDICES);
    row[i] = counts ? (uint)named : NO_ROW;
    slot[i] = counts ? atomic_inc(count + named) : 0;
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_index_select_place)
/* The position with a row's first slot acts for the row. */
ATTO_KERNEL void atto_index_select_place(__global const uint *row, __global const uint *slot,
                                         volatile __global uint *count, __global uint *begin,
                                         __global uint *head, const uint positions,
                                         const ulong rows)
{
    const uint i = get_global_id(0);
    if (i >= positions || row[i] == NO_ROW || slot[i] != 0) return;
    begin[row[i]] = atomic_add(count + rows, count[row[i]]);
    head[atomic_inc(count + rows + 1)] = row[i];
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_index_select_fill)
ATTO_KERNEL void atto_index_select_fill(__global const uint *row, __global const uint *slot,
                                        __global const uint *begin, __global uint *bucket,
                                        const uint positions)
{
    const uint i = get_global_id(0);
    if (i >= positions || row[i] == NO_ROW) return;
    bucket[begin[row[i]] + slot[i]] = i;
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_index_select_rank)
/* As many comparisons as the row has positions. */
ATTO_KERNEL void atto_index_select_rank(__global const uint *row, __global const uint *count,
                                        __global const uint *begin, __global const uint *bucket,
                                        __global uint *order, const uint positions)
{
    const uint i = get_global_id(0);
    if (i >= positions || row[i] == NO_ROW) return;
    const uint n = count[row[i]], at = begin[row[i]];
    uint before = 0;
    for (uint k = 0; k < n; k++) before += bucket[at + k] < i;
    order[at + before] = i;
}
#endif

/* ---- backward: sums ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_index_select_sum)

/* Rows of dy that are loaded before the first of them is added. */
#define AHEAD 4

#if ATTO_WIDE_OUT
typedef float out_t;
#else
typedef ATTO_T out_t;
#endif

/* The sums of a run so far. */
ATTO_UNROLLED void load_sums(__global const out_t *dx, float *sum)
{
#if ATTO_WIDE_OUT
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) sum[k] = dx[k];
#else
    atto_widen_unit(atto_load_unit(dx, 0), sum);
#endif
}

ATTO_UNROLLED void store_sums(__global out_t *dx, const float *sum)
{
#if ATTO_WIDE_OUT
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) dx[k] = sum[k];
#else
    atto_store_run(dx, 0, 1, ATTO_RUN, sum);
#endif
}

/* Work-item t has run t mod runs of one head's row, for one outer index. size.w = runs of a row,
 * size.z = outer. A slab's positions are those from `first` on of all. */
ATTO_KERNEL void atto_index_select_sum(__global const ATTO_T *dy, const ulong dy_at,
                                       __global out_t *dx, const ulong dx_at,
                                       __global const uint *count, __global const uint *begin,
                                       __global const uint *head, __global const uint *order,
                                       const ulong rows, const ulong all, const ulong first,
                                       const uint add, const atto_index4 size, const uint4 magic,
                                       const uint4 shift)
{
    const atto_index t = get_global_id(0);
    const atto_index part = atto_divide(t, size.w, magic.w, shift.w);
    const atto_index h = atto_divide(part, size.z, magic.z, shift.z);
    if (h >= count[rows + 1]) return;
    const size_t outer = part - h * size.z, width = (size_t)size.w * ATTO_RUN;
    const size_t col = (size_t)(t - part * size.w) * ATTO_RUN;
    const uint row = head[h], n = count[row];
    float sum[ATTO_RUN], v[ATTO_RUN];
    atto_raw raw[AHEAD];
    order += begin[row];
    dy += dy_at + (outer * all + first) * width + col;
    dx += dx_at + (outer * rows + row) * width + col;
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) sum[k] = 0.0f;
    if (add) load_sums(dx, sum);
    uint i = 0;
    for (; i + AHEAD <= n; i += AHEAD) {
#pragma unroll
        for (uint j = 0; j < AHEAD; j++) raw[j] = atto_load_unit(dy, order[i + j] * width);
#pragma unroll
        for (uint j = 0; j < AHEAD; j++) {
            atto_widen_unit(raw[j], v);
            atto_add_run(sum, v);
        }
    }
    for (; i < n; i++) {
        atto_widen_unit(atto_load_unit(dy, order[i] * width), v);
        atto_add_run(sum, v);
    }
    store_sums(dx, sum);
}
#endif
