/* SPDX-License-Identifier: MIT */
/* linear.cl - what linear needs besides its products (gemm.cl).
 *
 *   atto_linear_dz    dz = drop(act'(z) * dy), stored as dense f32: for products so large that
 *                     computing dz once costs less than while loading each tile
 *   atto_linear_sums  column sums of dz over slices of rows, the first stage of db; dz is computed
 *                     while loading. One slice: the epilogue makes db of them; more:
 *                     atto_gemm_finish
 *
 * Knobs: ATTO_A, the storage of dy and z, and those of atto_prologue.h and atto_epilogue.h.
 */
#ifndef ATTO_PROLOGUE
#define ATTO_PROLOGUE 1 /* no activation behind the sums */
#endif
#include "atto_prologue.h"
#include "atto_epilogue.h"

/* dy and z are [rows, columns]. */
#define ATTO_DY_PARAMETERS                                                                         \
    __global const ATTO_A_T *dy, const ulong dy_at, const atto_index dy_stride,                    \
        __global const ATTO_A_T *saved_z, const ulong saved_z_at, const atto_index saved_z_stride, \
        const atto_index rows, const atto_index columns

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_linear_dz)

/* count elements from p[at]; the others keep their value. */
ATTO_UNROLLED void atto_dz_load(__global const ATTO_A_T *p, size_t at, uint count, bool quads,
                                float *v)
{
    if (quads) {
        ATTO_A_GET(p, at, v);
    } else {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (i < count) v[i] = ATTO_PASTE(atto_widen_, ATTO_A)(p[at + i]);
    }
}

/* Work-item t owns four columns of a row. */
ATTO_KERNEL void atto_linear_dz(ATTO_DY_PARAMETERS, __global float *dz, const ulong dz_at,
                                const uint flags, const float act_a,
                                const float act_b ATTO_DROPOUT_PARAMETERS)
{
    const atto_index t = (atto_index)get_global_id(0), across = (columns + 3) / 4;
    const atto_index row = t / across, column = t % across * 4;
    if (row >= rows) return;
    const bool quads = (flags & ATTO_PROLOGUE_QUADS) != 0; /* the same for all work-items */
    const uint count = (uint)min(columns - column, (atto_index)4);
    const atto_prologue prologue = ATTO_PROLOGUE_OF(columns);

    float v[4] = { 0.0f, 0.0f, 0.0f, 0.0f }, z[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
    atto_dz_load(dy + dy_at, row * dy_stride + column, count, quads, v);
#if ATTO_READS_Z
    atto_dz_load(saved_z + saved_z_at, row * saved_z_stride + column, count, quads, z);
#endif
    atto_prologue_quad(&prologue, row, column, v, z);
    const size_t at = dz_at + (size_t)row * columns + column;
    if (quads) {
        atto_put_quad_f32(dz, at, v);
    } else {
#pragma unroll
        for (uint i = 0; i < 4; i++)
            if (i < count) dz[at + i] = v[i];
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_linear_sums)

/* Columns of a work-group; its work-items above each other share out the rows of a slice. */
#define ATTO_SUM_COLUMNS (ATTO_WG < 32 ? ATTO_WG : 32)
#define ATTO_SUM_HEIGHT  (ATTO_WG / ATTO_SUM_COLUMNS)

/* Work-group g takes column block g % blocks of slice g / blocks of the rows. c is [1, columns], or
 * [slices, columns] with c_slice = columns. */
ATTO_KERNEL void atto_linear_sums(ATTO_DY_PARAMETERS, const atto_index slice, const ulong c_slice,
                                  ATTO_EPILOGUE_PARAMETERS)
{
    __local float partial[ATTO_WG];
    const uint tx = get_local_id(0) % ATTO_SUM_COLUMNS, ty = get_local_id(0) / ATTO_SUM_COLUMNS;
    const atto_index blocks = (columns - 1) / ATTO_SUM_COLUMNS + 1;
    const atto_index number = (atto_index)get_group_id(0) / blocks;
    const atto_index n0 = (atto_index)get_group_id(0) % blocks * ATTO_SUM_COLUMNS;
    const atto_index column = n0 + tx, end = min(rows, (number + 1) * slice);
    const atto_prologue prologue = ATTO_PROLOGUE_OF(columns);
    dy += dy_at;
    saved_z += saved_z_at;
    c += number * c_slice;

    float sum = 0.0f;
    for (atto_index row = number * slice + ty; row < end && column < columns;
         row += ATTO_SUM_HEIGHT) {
        float z = 0.0f;
#if ATTO_READS_Z
        z = ATTO_PASTE(atto_widen_, ATTO_A)(saved_z[row * saved_z_stride + column]);
#endif
        sum += atto_prologue_one(&prologue, row, column,
                                 ATTO_PASTE(atto_widen_, ATTO_A)(dy[row * dy_stride + column]), z);
    }
    partial[get_local_id(0)] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    const atto_epilogue e = ATTO_EPILOGUE_OF(1, columns);
    if (get_local_id(0) < ATTO_SUM_COLUMNS / 4) {
        float v[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
        for (uint y = 0; y < ATTO_SUM_HEIGHT; y++) {
#pragma unroll
            for (uint i = 0; i < 4; i++)
                v[i] += partial[y * ATTO_SUM_COLUMNS + get_local_id(0) * 4 + i];
        }
        atto_epilogue_store(&e, 0, n0 + get_local_id(0) * 4, v);
    }
}
#endif
