/* SPDX-License-Identifier: MIT */
/* conv.cl - convolutions as products over windows of an image, which no memory holds.
 *
 *   atto_conv_pack    the filter of a product as [group][k][outputs], and the taps: for each k, or
 *                     for each vector of channels, how far from a spot's origin it is
 *   atto_conv_tile    out = epilogue(filter x windows), a tile for each work-group; a walk of
 *                     convolution.h: forward, dx, and both of transposed convolutions
 *   atto_conv_few     the same for at most four outputs of a group, a spot for each work-item
 *   atto_conv_filter  sums of dw: small image x windows over all spots, cut into slices
 *   atto_conv_finish  dw = sums of slices, in their order
 *   atto_conv_dz      dz = act'(z) dy, dense, in f32
 *
 * Spot p = (n height + y) width + x of a walk; its origin in an image is n stride.x + y stride.z +
 * x stride.w. Strides are those of batch, channel, row, pixel. Two orders, ATTO_CHANNELS:
 *
 *   0, rows      unit stride along width. k counts (channel, tap), or with ATTO_CHUNKED (tap,
 *                channel), channels rounded up to ATTO_TILE_K: a step has one tap; a is the filter,
 *                whose rows are channels of the result, b the windows, whose columns are spots
 *   1, channels  unit stride along channels. k counts (tap, channel), channels rounded up to a
 *                vector; a is the windows, b the filter
 *   of dw        a is the small image, [channels, spots], b the windows, [spots, k]
 *
 * Knobs: those of atto_tile.h, where ATTO_A_VECTORS and ATTO_B_VECTORS say that an image's vectors
 * of 16 bytes are whole; ATTO_ACT and ATTO_C of atto_epilogue.h.
 */
#ifndef ATTO_CHANNELS
#define ATTO_CHANNELS 0
#endif
#ifndef ATTO_CHUNKED
#define ATTO_CHUNKED 0
#endif
#define ATTO_TAPS_FIRST (ATTO_CHANNELS || ATTO_CHUNKED)
#include "atto_product.h"
#include "atto_conv.h"

/* ---- filter and taps ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_pack)
/* w is [small channels, big channels / groups, kernels]. taps: heights x widths of them, the first
 * is kernel (tap.x, tap.y), and they are (tap.z, tap.w) apart; at: the first one's distance from
 * the origin, and how far they are apart. outputs, inputs: channels of a group; padded: outputs of
 * a row of packed, of which there are k. Without filter only taps are made. */
ATTO_KERNEL void atto_conv_pack(__global const ATTO_A_T *w, const ulong w_at,
                                const atto_index4 w_stride, __global ATTO_A_T *packed,
                                __global int4 *taps, const uint heights, const uint widths,
                                const int4 tap, const int4 at, const atto_index4 x_stride,
                                const uint inputs, const uint outputs, const uint padded,
                                const uint k, const uint groups, const uint vector,
                                const uint flags)
{
    const atto_index t = (atto_index)get_global_id(0);
    const uint entries = k / vector;
    if (t < entries) {
        uint channel, y, x, count = 1;
#if ATTO_TAPS_FIRST
        const uint across = (inputs + vector - 1) / vector;
        channel = (uint)t % across * vector;
        y = (uint)t / across / widths;
        x = (uint)t / across % widths;
        count = min(inputs - channel, vector);
#else
        channel = (uint)t / (heights * widths);
        y = (uint)t / widths % heights;
        x = (uint)t % widths;
#endif
        const int down = at.x + (int)y * at.z, right = at.y + (int)x * at.w;
        const long place = (long)channel * (long)x_stride.y + (long)down * (long)x_stride.z +
                           (long)right * (long)x_stride.w;
        taps[t] = (int4)((int)place, (int)(place >> 32), down << 16 | (right & 0xffff), (int)count);
    }
    if (!(flags & ATTO_CONV_FILTER)) return;
    const atto_index row = t / padded;
    if (row >= (atto_index)groups * k) return;
    const uint group = (uint)(row / k), r = (uint)(row % k), output = (uint)(t % padded);
    uint input, y, x;
#if ATTO_TAPS_FIRST
    const uint wide = (inputs + vector - 1) / vector * vector;
    input = r % wide;
    y = r / wide / widths;
    x = r / wide % widths;
#else
    input = r / (heights * widths);
    y = r / widths % heights;
    x = r % widths;
#endif
    const bool to_big = (flags & ATTO_CONV_TO_BIG) != 0;
    const uint small = group * (to_big ? inputs : outputs) + (to_big ? input : output);
    const uint big = to_big ? output : input;
    const uint kernel_y = (uint)(tap.x + (int)y * tap.z), kernel_x = (uint)(tap.y + (int)x * tap.w);
    const bool there = input < inputs && output < outputs;
    packed[t] = there ? w[w_at + small * w_stride.x + big * w_stride.y + kernel_y * w_stride.z +
                          kernel_x * w_stride.w]
                      : (ATTO_A_T)0;
}
#endif

/* ---- a tile ---- */

/* From a step's windows in memory to registers and on to local memory. */
#if ATTO_CHANNELS

#define ATTO_WINDOW_T ATTO_A_T

/* A work-item has the same spots in every step. */
typedef struct atto_windows {
    atto_origin at[ATTO_A_COUNT];
    uint4 raw[ATTO_A_COUNT];
} atto_windows;

ATTO_UNROLLED void atto_windows_of(atto_windows *w, const atto_spots *s, atto_index spot)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++)
        w->at[i] = atto_origin_of(s, spot + ATTO_A_ROW(atto_item() + i * ATTO_GROUP));
}

ATTO_UNROLLED void atto_windows_fetch(atto_windows *w, __global const ATTO_WINDOW_T *x,
                                      __global const int4 *taps, const atto_spots *s, atto_index k0,
                                      atto_index end)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        const atto_index k = k0 + ATTO_A_K(v);
        const int4 tap = taps[min(k, end - 1) / ATTO_A_VEC];
        const bool there = ATTO_A_HAS(v) && k < end && atto_inside(s, &w->at[i], tap);
        w->raw[i] =
            atto_a_vector(x, there ? atto_tap_place(&w->at[i], tap) : 0, there ? (uint)tap.w : 0);
    }
}

#else

#define ATTO_WINDOW_T   ATTO_B_T
#define ATTO_WINDOW_ROW (ATTO_GROUP < ATTO_TILE_N ? ATTO_GROUP : ATTO_TILE_N)
#define ATTO_WINDOWS    (ATTO_TILE_N / ATTO_WINDOW_ROW) /* spots of a work-item */
#define ATTO_WINDOW_K   (ATTO_GROUP / ATTO_WINDOW_ROW)  /* k that a work-group loads at a time */
#define ATTO_WINDOW_KS  ((ATTO_TILE_K + ATTO_WINDOW_K - 1) / ATTO_WINDOW_K)

typedef struct atto_windows {
    atto_origin at[ATTO_WINDOWS];
    ATTO_WINDOW_T raw[ATTO_WINDOW_KS][ATTO_WINDOWS];
} atto_windows;

ATTO_UNROLLED void atto_windows_of(atto_windows *w, const atto_spots *s, atto_index spot)
{
#pragma unroll
    for (uint i = 0; i < ATTO_WINDOWS; i++)
        w->at[i] = atto_origin_of(s, spot + atto_item() % ATTO_WINDOW_ROW + i * ATTO_WINDOW_ROW);
}

#if ATTO_CHUNKED
/* All k of a step have one tap, and lie a channel apart. */
ATTO_UNROLLED void atto_windows_fetch(atto_windows *w, __global const ATTO_WINDOW_T *x,
                                      __global const int4 *taps, const atto_spots *s, atto_index k0,
                                      atto_index end)
{
    const int4 tap = taps[min(k0, end - 1) / ATTO_TILE_K];
    const uint inside = atto_item() / ATTO_WINDOW_ROW;
    const uint count = k0 < end ? (uint)tap.w : 0;
#pragma unroll
    for (uint i = 0; i < ATTO_WINDOWS; i++) {
        const uint channels = atto_inside(s, &w->at[i], tap) ? count : 0;
        __global const ATTO_WINDOW_T *from =
            x + (atto_index)(atto_tap_place(&w->at[i], tap) + inside * s->stride.y);
#pragma unroll
        for (uint j = 0; j < ATTO_WINDOW_KS; j++)
            w->raw[j][i] = inside + j * ATTO_WINDOW_K < channels
                               ? from[(atto_index)(j * ATTO_WINDOW_K) * s->stride.y]
                               : (ATTO_WINDOW_T)0;
    }
}
#else
ATTO_UNROLLED void atto_windows_fetch(atto_windows *w, __global const ATTO_WINDOW_T *x,
                                      __global const int4 *taps, const atto_spots *s, atto_index k0,
                                      atto_index end)
{
#pragma unroll
    for (uint j = 0; j < ATTO_WINDOW_KS; j++) {
        const uint inside = atto_item() / ATTO_WINDOW_ROW + j * ATTO_WINDOW_K;
        const atto_index k = k0 + inside;
        const int4 tap = taps[min(k, end - 1)];
#pragma unroll
        for (uint i = 0; i < ATTO_WINDOWS; i++) {
            const bool there = inside < ATTO_TILE_K && k < end && atto_inside(s, &w->at[i], tap);
            w->raw[j][i] = there ? x[atto_tap_place(&w->at[i], tap)] : (ATTO_WINDOW_T)0;
        }
    }
}
#endif

/* buffer: the first float of the step's tile of b. */
ATTO_UNROLLED void atto_windows_stash(const atto_windows *w, __local float *buffer)
{
#pragma unroll
    for (uint j = 0; j < ATTO_WINDOW_KS; j++) {
        const uint inside = atto_item() / ATTO_WINDOW_ROW + j * ATTO_WINDOW_K;
        if (ATTO_TILE_K % ATTO_WINDOW_K != 0 && inside >= ATTO_TILE_K) break;
#pragma unroll
        for (uint i = 0; i < ATTO_WINDOWS; i++)
            buffer[atto_b_place(inside, atto_item() % ATTO_WINDOW_ROW + i * ATTO_WINDOW_ROW)] =
                ATTO_PASTE(atto_widen_, ATTO_B)(w->raw[j][i]);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_tile)

/* Stores a block of 32 columns of the tile at m0, n0. Rows: a work-item's columns, four spots, are
 * the same in every turn. */
ATTO_UNROLLED void atto_conv_store_block(__local const float *block, const atto_conv_out *out,
                                         atto_index m0, atto_index n0)
{
#if !ATTO_CHANNELS
    atto_place place[4];
#pragma unroll
    for (uint e = 0; e < 4; e++) place[e] = atto_place_of(out, n0 + atto_item() % 8 * 4 + e);
#endif
#pragma unroll 1
    for (uint quad = atto_item(); quad < ATTO_TILE_M * 8; quad += ATTO_GROUP) {
        const uint row = quad / 8, column = quad % 8 * 4;
        float v[4];
        atto_take_quad(block, row, column, v);
#if ATTO_CHANNELS
        const atto_place place = atto_place_of(out, m0 + row);
        atto_conv_store_channels(out, &place, n0 + column, v);
#else
        atto_conv_store_spots(out, place, m0 + row, v);
#endif
    }
}

/* Work-groups count tiles, then groups of channels. x_group, filter_group: elements from one
 * group's to the next one's. */
__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void
atto_conv_tile(__global const ATTO_WINDOW_T *x, const ulong x_at, const atto_index4 x_stride,
#if ATTO_CHANNELS
               __global const ATTO_B_T *filter,
#else
               __global const ATTO_A_T *filter,
#endif
               __global const int4 *taps, const atto_index padded, const atto_index filter_group,
               const atto_index x_group, const atto_index k, const atto_index tiles,
               ATTO_SPOT_PARAMETERS, ATTO_CONV_OUT_PARAMETERS)
{
    __local float memory[ATTO_FLOATS] __attribute__((aligned(128)));
    const uint part = atto_item() / (ATTO_GROUP / ATTO_SLICES);
    const uint lane = atto_item() % (ATTO_GROUP / ATTO_SLICES);
    const uint tx = atto_tx(lane), ty = atto_ty(lane);
    const atto_index group = (atto_index)get_group_id(0) / tiles;
    const atto_spots spots = ATTO_SPOTS_OF(x_stride);
    atto_index m0, n0;
    x += x_at + group * x_group;
    filter += group * filter_group;
    atto_windows windows;
    atto_view view;
    atto_view_of(&view, memory, part, tx, ty);
#if ATTO_CHANNELS
    atto_tile_corner((atto_index)get_group_id(0) % tiles, spot_count, outputs, &m0, &n0);
    const atto_prologue none = { 0 };
    uint to[ATTO_A_COUNT];
    uint4 raw[ATTO_B_COUNT];
    atto_route_b route;
    atto_windows_of(&windows, &spots, m0);
    atto_route_to_a(to, 0);
    atto_route_of_b(&route, filter, padded, n0, 0, padded, ATTO_TILE_K * ATTO_TILE_M);
#define ATTO_FETCH_STEP(k0)                                       \
    do {                                                          \
        atto_windows_fetch(&windows, x, taps, &spots, k0, k);     \
        atto_fetch_b(route.from, padded, n0, k0, padded, k, raw); \
    } while (0)
#define ATTO_STASH_STEP(k0)                                                      \
    do {                                                                         \
        atto_stash_a(windows.raw, windows.raw, &none, memory, to, m0, k0, turn); \
        atto_stash_b(raw, memory, route.to, turn);                               \
        turn = 0 - turn;                                                         \
    } while (0)
#else
    atto_tile_corner((atto_index)get_group_id(0) % tiles, outputs, spot_count, &m0, &n0);
    const atto_prologue none = { 0 };
    uint4 raw[ATTO_A_COUNT];
    atto_route_a route;
    uint buffer = ATTO_TILE_K * ATTO_TILE_M;
    atto_windows_of(&windows, &spots, n0);
    atto_route_from_a(route.from, filter, padded, m0, 0, padded);
    atto_route_to_a(route.to, 0);
#define ATTO_FETCH_STEP(k0)                                       \
    do {                                                          \
        atto_windows_fetch(&windows, x, taps, &spots, k0, k);     \
        atto_fetch_a(route.from, padded, m0, k0, padded, k, raw); \
    } while (0)
#define ATTO_STASH_STEP(k0)                                            \
    do {                                                               \
        atto_stash_a(raw, raw, &none, memory, route.to, m0, k0, turn); \
        atto_windows_stash(&windows, memory + buffer);                 \
        buffer += turn;                                                \
        turn = 0 - turn;                                               \
    } while (0)
#endif

    float sum[ATTO_ITEM_M][ATTO_ITEM_N];
    atto_clear(sum);
    uint turn = ATTO_STAGE; /* from one buffer to the other; then back */
    if (k > 0) {            /* the same for all work-items */
        ATTO_FETCH_STEP(0);
        ATTO_STASH_STEP(0);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    /* As atto_gemm_tile: the loads of a step fly while the step before is multiplied. */
#pragma unroll 1
    for (atto_index k0 = 0; k0 < k; k0 += ATTO_TILE_K) {
        ATTO_FETCH_STEP(k0 + ATTO_TILE_K);
        atto_multiply(&view, 0 - (int)turn, sum);
        ATTO_STASH_STEP(k0 + ATTO_TILE_K);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#undef ATTO_FETCH_STEP
#undef ATTO_STASH_STEP

    const atto_conv_out out = ATTO_CONV_OUT_OF(group);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEM_N; j += 4) {
        if (j > 0) barrier(CLK_LOCAL_MEM_FENCE);
        atto_put_block(memory, part, tx, ty, j, sum);
        barrier(CLK_LOCAL_MEM_FENCE);
        atto_conv_store_block(memory, &out, m0, n0 + j * 8);
    }
}
#endif

/* ---- few outputs ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_few)

/* Elements of k that one tap entry is for. */
#if ATTO_CHANNELS
#define ATTO_FEW_STEP   ATTO_A_VEC
#define ATTO_FEW_FILTER ATTO_B
#else
#define ATTO_FEW_STEP   (ATTO_CHUNKED ? ATTO_TILE_K : 1)
#define ATTO_FEW_FILTER ATTO_A
#endif

ATTO_UNROLLED void atto_few_load(__global const ATTO_WINDOW_T *x, const atto_spots *s,
                                 const atto_origin *at, int4 tap, float *v)
{
    const atto_index place = atto_tap_place(at, tap);
#if ATTO_CHANNELS
    ATTO_A_UNPACK(atto_a_vector(x, place, (uint)tap.w), v);
#else
#pragma unroll
    for (uint j = 0; j < ATTO_FEW_STEP; j++)
        v[j] = j < (uint)tap.w
                   ? ATTO_PASTE(atto_widen_, ATTO_B)(x[(atto_index)(place + j * s->stride.y)])
                   : 0.0f;
#endif
}

/* Arguments as atto_conv_tile's; tiles: work-groups of a group of channels. */
ATTO_KERNEL void atto_conv_few(__global const ATTO_WINDOW_T *x, const ulong x_at,
                               const atto_index4 x_stride,
                               __global const ATTO_PASTE(atto_, ATTO_FEW_FILTER) * filter,
                               __global const int4 *taps, const atto_index padded,
                               const atto_index filter_group, const atto_index x_group,
                               const atto_index k, const atto_index tiles, ATTO_SPOT_PARAMETERS,
                               ATTO_CONV_OUT_PARAMETERS)
{
    const atto_index group = (atto_index)get_group_id(0) / tiles;
    const atto_index spot = (atto_index)get_group_id(0) % tiles * ATTO_WG + get_local_id(0);
    const atto_spots spots = ATTO_SPOTS_OF(x_stride);
    const atto_origin at = atto_origin_of(&spots, spot);
    x += x_at + group * x_group;
    filter += group * filter_group;
    float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    for (atto_index k0 = 0; k0 < k; k0 += ATTO_FEW_STEP) {
        const int4 tap = taps[k0 / ATTO_FEW_STEP];
        if (!atto_inside(&spots, &at, tap)) continue;
        float v[ATTO_FEW_STEP];
        atto_few_load(x, &spots, &at, tap, v);
#pragma unroll
        for (uint j = 0; j < ATTO_FEW_STEP; j++) {
            float w[4];
            ATTO_PASTE(atto_get_quad_, ATTO_FEW_FILTER)(filter, (k0 + j) * padded, w);
#pragma unroll
            for (uint o = 0; o < 4; o++) sum[o] = fma(w[o], v[j], sum[o]);
        }
    }
    const atto_conv_out out = ATTO_CONV_OUT_OF(group);
    const atto_place place = atto_place_of(&out, spot);
    atto_conv_store_channels(&out, &place, 0, sum);
}
#endif

/* ---- dw ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_filter)

/* Spots of a work-item in a step, of each operand: the first of each vector along spots. */
#define ATTO_A_SPOTS (ATTO_CHANNELS ? ATTO_A_COUNT : 1)
#define ATTO_B_SPOTS (ATTO_CHANNELS ? ATTO_B_COUNT : 1)

#if ATTO_CHANNELS

/* a: spots as rows of channels; b: spots as rows of k. */
ATTO_UNROLLED void atto_small_fetch(__global const ATTO_A_T *small, const atto_spots *s,
                                    const atto_mover *spot, atto_index m0, atto_index m,
                                    atto_index k0, atto_index end, uint4 *raw)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        const atto_index k = k0 + ATTO_A_K(v), channel = m0 + ATTO_A_ROW(v);
        const bool there = ATTO_A_HAS(v) && k < end && channel < m;
        const atto_origin at = atto_origin_at(s, &spot[i]);
        raw[i] = atto_a_vector(small, there ? at.place + channel : 0,
                               there ? atto_left(channel, m, ATTO_A_VEC) : 0);
    }
}

ATTO_UNROLLED void atto_big_fetch(__global const ATTO_B_T *x, __global const int4 *taps,
                                  const atto_spots *s, const atto_mover *spot, atto_index n0,
                                  atto_index n, atto_index k0, atto_index end, uint4 *raw)
{
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        const atto_index k = k0 + ATTO_B_K(v), column = n0 + ATTO_B_COLUMN(v);
        const int4 tap = taps[min(column, n - 1) / ATTO_B_VEC];
        const atto_origin at = atto_origin_at(s, &spot[i]);
        const bool there = ATTO_B_HAS(v) && k < end && column < n && atto_inside(s, &at, tap);
        raw[i] = atto_b_vector(x, there ? atto_tap_place(&at, tap) : 0, there ? (uint)tap.w : 0);
    }
}

#else

/* a: rows of spots; neighbours in memory unless a row of the image ends. */
ATTO_UNROLLED void atto_small_fetch(__global const ATTO_A_T *small, const atto_spots *s,
                                    const atto_mover *spot, atto_index m0, atto_index m,
                                    atto_index k0, atto_index end, uint4 *raw)
{
    ATTO_A_T e[ATTO_A_VEC];
#pragma unroll
    for (uint i = 0; i < ATTO_A_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        const atto_index k = k0 + ATTO_A_K(v);
        const atto_index row = min(m0 + ATTO_A_ROW(v), m - 1) * s->stride.y;
        atto_origin at = atto_origin_at(s, spot);
#if ATTO_A_VECTORS
        raw[i] = ATTO_A_HAS(v) && k < end ? *(__global const uint4 *)(small + at.place + row)
                                          : (uint4)(0);
#else
#pragma unroll
        for (uint j = 0; j < ATTO_A_VEC; j++) {
            e[j] = ATTO_A_HAS(v) && k + j < end ? small[at.place + row] : (ATTO_A_T)0;
            atto_origin_next(s, &at);
        }
        raw[i] = ATTO_PASTE(atto_join_, ATTO_A)(e);
#endif
    }
}

/* b: columns of k, along spots. */
ATTO_UNROLLED void atto_big_fetch(__global const ATTO_B_T *x, __global const int4 *taps,
                                  const atto_spots *s, const atto_mover *spot, atto_index n0,
                                  atto_index n, atto_index k0, atto_index end, uint4 *raw)
{
    ATTO_B_T e[ATTO_B_VEC];
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        const atto_index k = k0 + ATTO_B_K(v), column = n0 + ATTO_B_COLUMN(v);
        const int4 tap = taps[min(column, n - 1)];
        atto_origin at = atto_origin_at(s, spot);
#pragma unroll
        for (uint j = 0; j < ATTO_B_VEC; j++) {
            const bool there = ATTO_B_HAS(v) && k + j < end && atto_inside(s, &at, tap);
            e[j] = there ? x[atto_tap_place(&at, tap)] : (ATTO_B_T)0;
            atto_origin_next(s, &at);
        }
        raw[i] = ATTO_PASTE(atto_join_, ATTO_B)(e);
    }
}
#endif

/* On by a step, both operands' spots. */
ATTO_UNROLLED void atto_move_all(const atto_spots *s, atto_mover stride, atto_mover *a,
                                 atto_mover *b)
{
#pragma unroll
    for (uint i = 0; i < ATTO_A_SPOTS; i++) atto_move(s, stride, &a[i]);
#pragma unroll
    for (uint i = 0; i < ATTO_B_SPOTS; i++) atto_move(s, stride, &b[i]);
}

/* sums: [slice][group][m][n] with rows of n, a multiple of 4, elements. small_stride: of the small
 * image. */
__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void
atto_conv_filter(__global const ATTO_A_T *small, const ulong small_at,
                 const atto_index4 small_stride, __global const ATTO_B_T *x, const ulong x_at,
                 const atto_index4 x_stride, __global const int4 *taps, const atto_index m,
                 const atto_index n, const atto_index columns, const atto_index small_group,
                 const atto_index x_group, const atto_index tiles, const atto_index slice,
                 const atto_index slices, const atto_index groups, ATTO_SPOT_PARAMETERS,
                 __global float *sums)
{
    __local float memory[ATTO_FLOATS] __attribute__((aligned(128)));
    const uint part = atto_item() / (ATTO_GROUP / ATTO_SLICES);
    const uint lane = atto_item() % (ATTO_GROUP / ATTO_SLICES);
    const uint tx = atto_tx(lane), ty = atto_ty(lane);
    const atto_index part_of_k = (atto_index)get_group_id(0) / tiles;
    const atto_index group = part_of_k / slices, number = part_of_k % slices;
    const atto_index first = number * slice, end = min(spot_count, first + slice);
    const atto_spots spots = ATTO_SPOTS_OF(x_stride),
                     small_spots = ATTO_SMALL_SPOTS_OF(small_stride);
    atto_index m0, n0;
    atto_tile_corner((atto_index)get_group_id(0) % tiles, m, n, &m0, &n0);
    small += small_at + group * small_group;
    x += x_at + group * x_group;
    sums += ((number * groups + group) * m + m0) * columns + n0;
    const atto_prologue none = { 0 };
    atto_view view;
    atto_view_of(&view, memory, part, tx, ty);
    atto_mover a_spot[ATTO_A_SPOTS], b_spot[ATTO_B_SPOTS];
    const atto_mover stride = atto_stride_of(&spots);
#pragma unroll
    for (uint i = 0; i < ATTO_A_SPOTS; i++)
        a_spot[i] = atto_mover_of(&spots, first + ATTO_A_K(atto_item() + i * ATTO_GROUP));
#pragma unroll
    for (uint i = 0; i < ATTO_B_SPOTS; i++)
        b_spot[i] = atto_mover_of(&spots, first + ATTO_B_K(atto_item() + i * ATTO_GROUP));
    uint a_to[ATTO_A_COUNT], b_to[ATTO_B_COUNT];
    uint4 a_raw[ATTO_A_COUNT], b_raw[ATTO_B_COUNT];
    atto_route_to_a(a_to, 0);
#pragma unroll
    for (uint i = 0; i < ATTO_B_COUNT; i++) {
        const uint v = atto_item() + i * ATTO_GROUP;
        b_to[i] = ATTO_TILE_K * ATTO_TILE_M + atto_b_place(ATTO_B_K(v), ATTO_B_COLUMN(v));
    }
#define ATTO_FETCH_STEP(k0)                                                   \
    do {                                                                      \
        atto_small_fetch(small, &small_spots, a_spot, m0, m, k0, end, a_raw); \
        atto_big_fetch(x, taps, &spots, b_spot, n0, n, k0, end, b_raw);       \
        atto_move_all(&spots, stride, a_spot, b_spot);                        \
    } while (0)
#define ATTO_STASH_STEP(k0)                                            \
    do {                                                               \
        atto_stash_a(a_raw, a_raw, &none, memory, a_to, m0, k0, turn); \
        atto_stash_b(b_raw, memory, b_to, turn);                       \
        turn = 0 - turn;                                               \
    } while (0)

    float sum[ATTO_ITEM_M][ATTO_ITEM_N];
    atto_clear(sum);
    uint turn = ATTO_STAGE;
    ATTO_FETCH_STEP(first);
    ATTO_STASH_STEP(first);
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 1
    for (atto_index k0 = first; k0 < end; k0 += ATTO_TILE_K) {
        ATTO_FETCH_STEP(k0 + ATTO_TILE_K);
        atto_multiply(&view, 0 - (int)turn, sum);
        ATTO_STASH_STEP(k0 + ATTO_TILE_K);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
#undef ATTO_FETCH_STEP
#undef ATTO_STASH_STEP

#pragma unroll
    for (uint j = 0; j < ATTO_ITEM_N; j += 4) {
        if (j > 0) barrier(CLK_LOCAL_MEM_FENCE);
        atto_put_block(memory, part, tx, ty, j, sum);
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 1
        for (uint quad = atto_item(); quad < ATTO_TILE_M * 8; quad += ATTO_GROUP) {
            const uint row = quad / 8, column = quad % 8 * 4 + j * 8;
            float v[4];
            atto_take_quad(memory, row, quad % 8 * 4, v);
            if (m0 + row < m && n0 + column < columns)
                atto_put_quad_f32(sums, row * columns + column, v);
        }
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_finish)
/* dw is [groups m, inputs, kernels]. Work-item t owns one element of a row of sums: where the order
 * is channels, one of taps x channels, `wide` of them to a tap. */
ATTO_KERNEL void atto_conv_finish(__global const float *sums, const atto_index rows,
                                  const atto_index columns, const uint slices, const uint inputs,
                                  const uint wide, const uint heights, const uint widths,
                                  __global ATTO_C_T *dw, const ulong dw_at,
                                  const atto_index4 dw_stride, const uint add)
{
    const atto_index t = (atto_index)get_global_id(0), row = t / columns;
    const uint column = (uint)(t % columns);
    if (row >= rows) return;
    uint input, y, x;
#if ATTO_CHANNELS
    input = column % wide;
    y = column / wide / widths;
    x = column / wide % widths;
#else
    input = column / (heights * widths);
    y = column / widths % heights;
    x = column % widths;
#endif
    if (input >= inputs || y >= heights) return;
    float v = 0.0f;
    for (uint s = 0; s < slices; s++) v += sums[(size_t)s * rows * columns + t];
    const size_t at =
        dw_at + row * dw_stride.x + input * dw_stride.y + y * dw_stride.z + x * dw_stride.w;
    if (add) v += ATTO_C_LOAD(dw[at]);
    dw[at] = ATTO_C_STORE(v);
}
#endif

/* ---- dz ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_conv_dz)
/* Images as batch, two dimensions, and the innermost one; dz is dense in this order. */
ATTO_KERNEL void atto_conv_dz(__global const ATTO_A_T *dy, const ulong dy_at,
                              const atto_index4 dy_stride, __global const ATTO_A_T *z,
                              const ulong z_at, const atto_index4 z_stride, __global float *dz,
                              const ulong dz_at, const atto_index count, const atto_index4 size,
                              const uint4 magic, const uint4 shift, const float act_a,
                              const float act_b)
{
    const atto_index t = (atto_index)get_global_id(0);
    if (t >= count) return;
    atto_index4 at;
    const atto_index rows = atto_divide(t, size.w, magic.w, shift.w);
    at.w = t - rows * size.w;
    const atto_index planes = atto_divide(rows, size.z, magic.z, shift.z);
    at.z = rows - planes * size.z;
    at.x = atto_divide(planes, size.y, magic.y, shift.y);
    at.y = planes - at.x * size.y;
    const float v = ATTO_PASTE(atto_widen_, ATTO_A)(dy[dy_at + atto_dot(at, dy_stride)]);
    const float saved = ATTO_PASTE(atto_widen_, ATTO_A)(z[z_at + atto_dot(at, z_stride)]);
    dz[dz_at + t] = ATTO_ACT_GRAD(saved, act_a, act_b) * v;
}
#endif
