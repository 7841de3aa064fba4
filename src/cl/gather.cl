/* SPDX-License-Identifier: MIT */
/* gather.cl - elements that an index names, and the sums of their gradients.
 *
 *   forward    y[o][j][i] = x[o][index[o][j][i]][i]
 *   backward   sums[o][index[o][j][i]][i] += dy[o][j][i], j ascending: a work-item has a line (o, i),
 *              so that those side by side read neighbours; or, where lines are long and next to no
 *              neighbours (inner is small), a work-group has one; or a work-item has some rows of a line's
 *              sums in local memory and looks for these in the whole line
 *
 * Row r of outer index o begins at element o * outer_step + r * row_step of x and of sums.
 *
 *   -D             default  meaning
 *   ATTO_UNIT      4        forward: bytes of an element: 4 or 2
 *   and those of atto_index.h and atto_kernel.h
 */
#ifndef ATTO_UNIT
#define ATTO_UNIT 4
#endif
#include "atto_gather_sizes.h"
#include "atto_index.h"

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gather_forward)
/* n elements of y. size.w = inner, size.z = elements of the index along dim. */
ATTO_KERNEL void atto_gather_forward(__global const unit_t *x, const ulong x_at,
                                     __global const index_t *index, const ulong index_at,
                                     __global unit_t *y, const ulong y_at,
                                     volatile __global uint *errors, const ulong errors_at,
                                     const ulong rows, const ulong outer_step, const ulong row_step,
                                     const atto_index n, const atto_index4 size, const uint4 magic,
                                     const uint4 shift)
{
    const atto_index first = atto_first_vector();
    long named[ATTO_ITEMS];
    unit_t value[ATTO_ITEMS];
    x += x_at;
    index += index_at;
    y += y_at;
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++)
        if (first + j * ATTO_WG < n) named[j] = index[first + j * ATTO_WG];
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++) {
        const atto_index t = first + j * ATTO_WG;
        if (t >= n) continue;
        const atto_index row = atto_divide(t, size.w, magic.w, shift.w);
        const atto_index outer = atto_divide(row, size.z, magic.z, shift.z);
        value[j] = NAN_UNIT;
        if (is_row(named[j], rows))
            value[j] = x[outer * outer_step + named[j] * row_step + (t - row * size.w)];
        else
            atomic_or(errors + errors_at, BIT_OF_INDICES);
    }
#pragma unroll
    for (uint j = 0; j < ATTO_ITEMS; j++)
        if (first + j * ATTO_WG < n) y[first + j * ATTO_WG] = value[j];
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gather_backward)

/* Elements of a line that are loaded before the first of them is added. */
#define AHEAD 4

static inline void add_one(__global float *sums, ulong row_step, long named, float d, ulong rows,
                           volatile __global uint *errors)
{
    if (is_row(named, rows))
        sums[named * row_step] += d;
    else
        atomic_or(errors, BIT_OF_INDICES);
}

/* size.w = inner. */
ATTO_KERNEL void atto_gather_backward(__global const index_t *index, const ulong index_at,
                                      __global const ATTO_T *dy, const ulong dy_at,
                                      __global float *sums, const ulong sums_at,
                                      volatile __global uint *errors, const ulong errors_at,
                                      const ulong rows, const ulong outer_step,
                                      const ulong row_step, const ulong count,
                                      const atto_index lines, const atto_index4 size,
                                      const uint4 magic, const uint4 shift)
{
    const atto_index line = get_global_id(0);
    if (line >= lines) return;
    const size_t outer = atto_divide(line, size.w, magic.w, shift.w), inner = size.w;
    const size_t i = line - outer * inner, begin = outer * count * inner + i;
    long named[AHEAD];
    float d[AHEAD];
    index += index_at + begin;
    dy += dy_at + begin;
    sums += sums_at + outer * outer_step + i;
    errors += errors_at;
    size_t j = 0;
    for (; j + AHEAD <= count; j += AHEAD) {
#pragma unroll
        for (uint k = 0; k < AHEAD; k++) {
            named[k] = index[(j + k) * inner];
            d[k] = atto_load(dy, (j + k) * inner);
        }
#pragma unroll
        for (uint k = 0; k < AHEAD; k++) add_one(sums, row_step, named[k], d[k], rows, errors);
    }
    for (; j < count; j++)
        add_one(sums, row_step, index[j * inner], atto_load(dy, j * inner), rows, errors);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gather_backward_line)

/* Places where the work-items of a block meet that add to one element. Elements apart that share a place
 * only wait for each other. */
#define PLACES 2048

/* A line, ATTO_WG elements at a time. Of those that go to one element the first adds, then the next: in
 * each round all who wait name themselves at their element's place, and the least number wins. Names
 * grow from round to round, so that no place is ever cleared. */
ATTO_KERNEL void atto_gather_backward_line(__global const index_t *index, const ulong index_at,
                                           __global const ATTO_T *dy, const ulong dy_at,
                                           __global float *sums, const ulong sums_at,
                                           volatile __global uint *errors, const ulong errors_at,
                                           const ulong rows, const ulong outer_step,
                                           const ulong row_step, const ulong count,
                                           const ulong inner)
{
    __local uint winner[PLACES], waits[2];
    const uint item = get_local_id(0);
    const size_t line = get_group_id(0), outer = line / inner, i = line % inner;
    const size_t begin = outer * count * inner + i;
    uint round = 1;
    index += index_at + begin;
    dy += dy_at + begin;
    sums += sums_at + outer * outer_step + i;
    for (uint place = item; place < PLACES; place += ATTO_WG) winner[place] = 0;
    if (item < 2) waits[item] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (size_t block = 0; block < count; block += ATTO_WG) {
        const size_t j = block + item;
        const uint exists = j < count;
        const long named = exists ? index[j * inner] : 0;
        const float d = exists ? atto_load(dy, j * inner) : 0.0f;
        const uint is_known = exists && is_row(named, rows);
        const uint place = (uint)named % PLACES;
        uint pending = is_known, again = 1;
        if (exists && !is_known) atomic_or(errors + errors_at, BIT_OF_INDICES);
        for (; again; round++) {
            const uint name = round * ATTO_WG + (ATTO_WG - 1 - item);
            if (pending) atomic_max(winner + place, name);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (pending && winner[place] == name) {
                sums[(size_t)named * row_step] += d;
                pending = 0;
            }
            if (pending) atomic_or(waits + round % 2, 1u);
            if (item == 0) waits[(round + 1) % 2] = 0;
            barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
            again = waits[round % 2];
        }
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gather_backward_tile)

/* Elements of a line that are on their way at a time: memory answers after as long as it takes to add so
 * many. */
#define UNDER_WAY 32

/* Rows that a work-item has. */
typedef struct share {
    ulong first, all;
    uint count;
} share;

/* Element of an index: where its sum stands in local memory. Those of other work-items' rows go to the
 * last row, which nobody stores. */
static inline uint place_of(share s, long named, uint *is_wrong)
{
    const ulong row = (ulong)named - s.first;
    *is_wrong |= !is_row(named, s.all);
    return (row < s.count ? (uint)row : ATTO_GATHER_ROWS) * ATTO_GATHER_COLUMNS;
}

/* Elements j to j + UNDER_WAY of a line. */
ATTO_UNROLLED void fetch_few(__global const index_t *index, __global const ATTO_T *dy, size_t inner,
                             size_t j, index_t *named, float *d)
{
#pragma unroll
    for (uint e = 0; e < UNDER_WAY; e++) {
        named[e] = index[(j + e) * inner];
        d[e] = atto_load(dy, (j + e) * inner);
    }
}

/* Work-group g has block g % row_blocks of rows, of ATTO_GATHER_COLUMNS neighbouring lines, so that those
 * that read the same lines run together. No work-item reads what another one wrote. */
ATTO_KERNEL void atto_gather_backward_tile(
    __global const index_t *index, const ulong index_at, __global const ATTO_T *dy,
    const ulong dy_at, __global float *sums, const ulong sums_at, volatile __global uint *errors,
    const ulong errors_at, const ulong rows, const ulong outer_step, const ulong row_step,
    const ulong count, const ulong inner, const uint row_blocks, const uint column_blocks)
{
    __local float tile[ATTO_GATHER_TILE];
    const uint item = get_local_id(0), column = item % ATTO_GATHER_COLUMNS;
    const size_t block = get_group_id(0) / row_blocks, outer = block / column_blocks;
    const size_t i = block % column_blocks * ATTO_GATHER_COLUMNS + column;
    const uint part = item / ATTO_GATHER_COLUMNS;
    const ulong first =
        (get_group_id(0) % row_blocks * (ATTO_WG / ATTO_GATHER_COLUMNS) + part) * ATTO_GATHER_ROWS;
    const share s = { first, rows,
                      first < rows ? (uint)min(rows - first, (ulong)ATTO_GATHER_ROWS) : 0 };
    __local float *own = tile + part * (ATTO_GATHER_ROWS + 1) * ATTO_GATHER_COLUMNS + column;
    if (i >= inner) return;
    index += index_at + outer * count * inner + i;
    dy += dy_at + outer * count * inner + i;
    sums += sums_at + outer * outer_step + first * row_step + i;
#pragma unroll 8
    for (uint r = 0; r < s.count; r++) own[r * ATTO_GATHER_COLUMNS] = sums[r * row_step];
    index_t named[UNDER_WAY];
    float d[UNDER_WAY];
    uint is_wrong = 0;
    size_t j = 0;
    if (count >= UNDER_WAY) fetch_few(index, dy, inner, 0, named, d);
    for (; j + UNDER_WAY <= count; j += UNDER_WAY) {
        index_t next_named[UNDER_WAY];
        float next[UNDER_WAY];
        const size_t ahead = j + 2 * UNDER_WAY <= count ? j + UNDER_WAY : j;
        fetch_few(index, dy, inner, ahead, next_named, next);
#pragma unroll
        for (uint e = 0; e < UNDER_WAY; e++) {
            own[place_of(s, named[e], &is_wrong)] += d[e];
            named[e] = next_named[e];
            d[e] = next[e];
        }
    }
    for (; j < count; j++)
        own[place_of(s, index[j * inner], &is_wrong)] += atto_load(dy, j * inner);
    if (is_wrong) atomic_or(errors + errors_at, BIT_OF_INDICES);
#pragma unroll 8
    for (uint r = 0; r < s.count; r++) sums[r * row_step] = own[r * ATTO_GATHER_COLUMNS];
}
#endif
