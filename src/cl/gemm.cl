/* SPDX-License-Identifier: MIT */
/* gemm.cl - matrix products with a prologue and an epilogue.
 *
 *   c[i][j] = epilogue(sum over r of a(i, r) * b(j, r))      i < m, j < n, r < k
 *
 * a is stored [m, k] or [k, m], b [n, k] or [k, n]; sums are f32 whatever the storage. Knobs and
 * how tiles lie in memory: atto_tile.h; what happens before and after: atto_prologue.h,
 * atto_epilogue.h.
 *
 *   atto_gemm_tile    a work-group computes a tile of c (atto_product.h)
 *   atto_gemm_rows    a work-group computes ATTO_ROWS x 4 elements of c, for few rows: work-item
 *                     `lane` takes vectors lane, lane + ATTO_LANES, ... of k
 *   atto_gemm_finish  sums of slices of k, in their order, and the epilogue
 *
 * A long k can be cut into slices of `slice` values, each a work-group's, which then store plain
 * sums at c + number * c_slice.
 *
 * A launch can have a batch of products of one shape. Work-groups count tiles, then slices, then
 * products; product number p = outer * inner_count + inner reads and writes at outer * x_outer +
 * inner * x_inner, x a, b or c. */
#include "atto_product.h"

/* ---- batches ---- */

#define ATTO_BATCH_PARAMETERS                                                               \
    const atto_index slices, const atto_index inner_count, const ulong a_outer,             \
        const ulong a_inner, const ulong b_outer, const ulong b_inner, const ulong c_outer, \
        const ulong c_inner

/* Elements from the first product's x to that of product number p. */
#define ATTO_BATCH_AT(x, p) ((p) / inner_count * x##_outer + (p) % inner_count * x##_inner)

/* ---- tiles ---- */

/* Stores a block of 32 columns of c: the parts' sums in order, then the epilogue. */
ATTO_UNROLLED void atto_store_block(__local const float *block, const atto_epilogue *e,
                                    atto_index m0, atto_index n0)
{
#pragma unroll 1
    for (uint quad = atto_item(); quad < ATTO_TILE_M * 8; quad += ATTO_GROUP) {
        const uint row = quad / 8, column = quad % 8 * 4;
        float v[4];
        atto_take_quad(block, row, column, v);
        atto_epilogue_store(e, m0 + row, n0 + column, v);
    }
}

#if ATTO_PROLOGUE
#define ATTO_PROLOGUE_PARAMETERS \
    __global const ATTO_A_T *saved_z, const ulong saved_z_at, const atto_index saved_z_stride,
#else
#define ATTO_PROLOGUE_PARAMETERS
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gemm_tile)

/* One step's vectors of a, z (with a prologue) and b. */
typedef struct atto_step {
    uint4 a[ATTO_A_COUNT], z[ATTO_A_COUNT], b[ATTO_B_COUNT];
} atto_step;

__kernel __attribute__((reqd_work_group_size(ATTO_GROUP, 1, 1))) void
atto_gemm_tile(__global const ATTO_A_T *a, const ulong a_at, const atto_index a_stride,
               __global const ATTO_B_T *b, const ulong b_at, const atto_index b_stride,
               ATTO_PROLOGUE_PARAMETERS const atto_index m, const atto_index n, const atto_index k,
               const atto_index tiles, const atto_index slice, const ulong c_slice,
               ATTO_BATCH_PARAMETERS, ATTO_EPILOGUE_PARAMETERS)
{
    __local float memory[ATTO_FLOATS] __attribute__((aligned(128)));
    const uint part = atto_item() / (ATTO_GROUP / ATTO_SLICES);
    const uint lane = atto_item() % (ATTO_GROUP / ATTO_SLICES);
    const uint tx = atto_tx(lane), ty = atto_ty(lane);
    const atto_index part_of_k = (atto_index)get_group_id(0) / tiles, product = part_of_k / slices;
    const atto_index number = part_of_k % slices; /* of the slice of k */
    const atto_index first = number * slice, end = min(k, first + slice);
    atto_index m0, n0;
    atto_tile_corner((atto_index)get_group_id(0) % tiles, m, n, &m0, &n0);
    a += a_at + ATTO_BATCH_AT(a, product);
    b += b_at + ATTO_BATCH_AT(b, product);
    c += number * c_slice + ATTO_BATCH_AT(c, product);
#if ATTO_PROLOGUE
    saved_z += saved_z_at;
    const atto_prologue prologue = ATTO_PROLOGUE_OF(ATTO_A_TRANSPOSED ? m : k);
#else
    const atto_prologue prologue = { 0 };
#endif
    atto_route_a from_a;
    atto_route_b from_b;
    atto_view view;
    atto_view_of(&view, memory, part, tx, ty);
    atto_route_from_a(from_a.from, a, a_stride, m0, first, m);
    atto_route_to_a(from_a.to, 0);
    atto_route_of_b(&from_b, b, b_stride, n0, first, n, ATTO_TILE_K * ATTO_TILE_M);
#if ATTO_PROLOGUE && ATTO_READS_Z
    atto_route_from_a(from_a.z_from, saved_z, saved_z_stride, m0, first, m);
#define ATTO_FETCH_Z(k0) atto_fetch_a(from_a.z_from, saved_z_stride, m0, k0, m, end, at.z)
#else
#define ATTO_FETCH_Z(k0) (void)0
#endif
#define ATTO_FETCH_STEP(k0)                                        \
    do {                                                           \
        atto_fetch_a(from_a.from, a_stride, m0, k0, m, end, at.a); \
        ATTO_FETCH_Z(k0);                                          \
        atto_fetch_b(from_b.from, b_stride, n0, k0, n, end, at.b); \
    } while (0)
#define ATTO_STASH_STEP(k0)                                                   \
    do {                                                                      \
        atto_stash_a(at.a, at.z, &prologue, memory, from_a.to, m0, k0, turn); \
        atto_stash_b(at.b, memory, from_b.to, turn);                          \
        turn = 0 - turn;                                                      \
    } while (0)

    float sum[ATTO_ITEM_M][ATTO_ITEM_N];
    atto_clear(sum);

    atto_step at;
    uint turn = ATTO_STAGE; /* from one buffer to the other; then back */
    ATTO_FETCH_STEP(first);
    ATTO_STASH_STEP(first);
    barrier(CLK_LOCAL_MEM_FENCE);
    /* The loads of a step fly while the step before is multiplied; behind the last step they load
     * nothing. All work-items have the same k0 and meet the same barriers. */
#pragma unroll 1
    for (atto_index k0 = first; k0 < end; k0 += ATTO_TILE_K) {
        ATTO_FETCH_STEP(k0 + ATTO_TILE_K);
        atto_multiply(&view, 0 - (int)turn, sum);
        ATTO_STASH_STEP(k0 + ATTO_TILE_K);
        barrier(CLK_LOCAL_MEM_FENCE);
    }

    const atto_epilogue e = ATTO_EPILOGUE_OF(m, n);
#pragma unroll
    for (uint j = 0; j < ATTO_ITEM_N; j += 4) {
        if (j > 0) barrier(CLK_LOCAL_MEM_FENCE);
        atto_put_block(memory, part, tx, ty, j, sum);
        barrier(CLK_LOCAL_MEM_FENCE);
        atto_store_block(memory, &e, m0, n0 + j * 8);
    }
}
#endif

/* ---- few rows ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gemm_rows)

/* Rows of c and work-items of a work-group. */
#ifndef ATTO_ROWS
#define ATTO_ROWS 4
#endif
#ifndef ATTO_LANES
#define ATTO_LANES 64
#endif

/* sum += a b^T over one vector of k; a row or column that does not exist is read as the last
 * one. */
ATTO_UNROLLED void atto_rows_multiply(__global const ATTO_A_T *a, const atto_index *a_row,
                                      __global const ATTO_B_T *b, const atto_index *b_row,
                                      atto_index k, uint count, float (*sum)[4])
{
    uint4 raw[4];
    float column[4][ATTO_B_VEC];
#pragma unroll
    for (uint j = 0; j < 4; j++) raw[j] = atto_b_vector(b, b_row[j] + k, count);
#pragma unroll
    for (uint j = 0; j < 4; j++) ATTO_B_UNPACK(raw[j], column[j]);
#pragma unroll
    for (uint i = 0; i < ATTO_ROWS; i++) {
        float row[ATTO_A_VEC];
        ATTO_A_UNPACK(atto_a_vector(a, a_row[i] + k, count), row);
#pragma unroll
        for (uint j = 0; j < 4; j++) {
#pragma unroll
            for (uint e = 0; e < ATTO_A_VEC; e++) sum[i][j] = fma(row[e], column[j][e], sum[i][j]);
        }
    }
}

/* a and b have one storage type. */
__kernel __attribute__((reqd_work_group_size(ATTO_LANES, 1, 1))) void
atto_gemm_rows(__global const ATTO_A_T *a, const ulong a_at, const atto_index a_stride,
               __global const ATTO_B_T *b, const ulong b_at, const atto_index b_stride,
               const atto_index m, const atto_index n, const atto_index k, const atto_index tiles,
               const atto_index slice, const ulong c_slice, ATTO_BATCH_PARAMETERS,
               ATTO_EPILOGUE_PARAMETERS)
{
    __local float partial[ATTO_ROWS * 4 * ATTO_LANES]; /* [element][work-item] */
    const uint lane = get_local_id(0);
    const atto_index part_of_k = (atto_index)get_group_id(0) / tiles, product = part_of_k / slices;
    const atto_index number = part_of_k % slices;
    const atto_index tile = (atto_index)get_group_id(0) % tiles, down = (m - 1) / ATTO_ROWS + 1;
    const atto_index m0 = tile % down * ATTO_ROWS, n0 = tile / down * 4;
    const atto_index first = number * slice, end = min(k, first + slice);
    a += a_at + ATTO_BATCH_AT(a, product);
    b += b_at + ATTO_BATCH_AT(b, product);
    c += number * c_slice + ATTO_BATCH_AT(c, product);

    atto_index a_row[ATTO_ROWS], b_row[4];
    float sum[ATTO_ROWS][4];
#pragma unroll
    for (uint i = 0; i < ATTO_ROWS; i++) a_row[i] = min(m0 + i, m - 1) * a_stride;
#pragma unroll
    for (uint j = 0; j < 4; j++) b_row[j] = min(n0 + j, n - 1) * b_stride;
#pragma unroll
    for (uint i = 0; i < ATTO_ROWS; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) sum[i][j] = 0.0f;
    }
    for (atto_index r = first + lane * ATTO_A_VEC; r < end; r += ATTO_LANES * ATTO_A_VEC)
        atto_rows_multiply(a, a_row, b, b_row, r, atto_left(r, end, ATTO_A_VEC), sum);

#pragma unroll
    for (uint i = 0; i < ATTO_ROWS; i++) {
#pragma unroll
        for (uint j = 0; j < 4; j++) partial[(i * 4 + j) * ATTO_LANES + lane] = sum[i][j];
    }
    /* Halves: work-item t adds for element t / half. The same barriers for all. */
    for (uint half_lanes = ATTO_LANES / 2; half_lanes > 0; half_lanes /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint t = lane; t < ATTO_ROWS * 4 * half_lanes; t += ATTO_LANES) {
            const uint at = t / half_lanes * ATTO_LANES + t % half_lanes;
            partial[at] += partial[at + half_lanes];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const atto_epilogue e = ATTO_EPILOGUE_OF(m, n);
    if (lane < ATTO_ROWS) {
        float v[4];
#pragma unroll
        for (uint j = 0; j < 4; j++) v[j] = partial[(lane * 4 + j) * ATTO_LANES];
        atto_epilogue_store(&e, m0 + lane, n0, v);
    }
}
#endif

/* ---- slices ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gemm_finish)
/* sums is [slices, products, m, n], dense. Work-item t owns four columns of a row. */
ATTO_KERNEL void atto_gemm_finish(__global const float *sums, const ulong sums_at,
                                  const atto_index m, const atto_index n, const uint slices,
                                  const atto_index products, const atto_index inner_count,
                                  const ulong c_outer, const ulong c_inner,
                                  ATTO_EPILOGUE_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0), across = (n + 3) / 4;
    const atto_index row = t / across, column = t % across * 4; /* row of all products */
    if (row >= products * m) return;
    const atto_index product = row / m;
    float v[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    size_t at = sums_at + (size_t)row * n + column;
    for (uint s = 0; s < slices; s++, at += (size_t)products * m * n) {
        float more[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        if (n % 4 == 0) { /* the same for all work-items */
            atto_get_quad_f32(sums, at, more);
        } else {
#pragma unroll
            for (uint i = 0; i < 4; i++)
                if (column + i < n) more[i] = sums[at + i];
        }
#pragma unroll
        for (uint i = 0; i < 4; i++) v[i] += more[i];
    }
    c += ATTO_BATCH_AT(c, product);
    const atto_epilogue e = ATTO_EPILOGUE_OF(m, n);
    atto_epilogue_store(&e, row - product * m, column, v);
}
#endif
