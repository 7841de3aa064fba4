/* SPDX-License-Identifier: MIT */
/* Packing for gemm.c: operands become panels of floats in the order in which tiles read them.
 *
 *     panel[k][0 .. width)    one after the other, the last one padded with zeros
 *
 * width is a constant at every call, so that each copy below is a loop over whole vectors. */
#ifndef ATTO_CPU_PACK_H
#define ATTO_CPU_PACK_H

#include "backend_cpu/vec.h"

/* What is read so far ahead of its use, in elements of a row along k and in rows across it: the
 * pieces are too short for the processor to see the next one coming. */
#define PACK_AHEAD      64
#define PACK_ROWS_AHEAD 8

/* Rows first .. first + VEC_LANES of a group, VEC_LANES elements each; rows that are not there are
 * zero. */
ATTO_INLINE void load_square(const void *from, int64_t stride, atto_dtype dtype, int32_t rows,
                             int32_t first, vec_u32 square[VEC_LANES])
{
    VEC_UNROLL
    for (int32_t i = 0; i < VEC_LANES; i++) {
        square[i] = (vec_u32){ 0 };
        if (first + i < rows) {
            const int64_t at = (int64_t)(first + i) * stride;
            square[i] = (vec_u32)vec_load_as(from, at, dtype);
            vec_prefetch_as(from, at + PACK_AHEAD, dtype);
        }
    }
}

/* A panel from rows along k. Where width is no multiple of a vector, whole vectors are stored all
 * the same, in ascending k: what spills over is overwritten by the next one. Only the last one is
 * cut, since the memory behind the panel belongs to another thread. */
ATTO_INLINE void pack_along_k(const void *from, int64_t stride, atto_dtype dtype, int32_t rows,
                              int32_t k, int32_t width, float *to)
{
    const int32_t bytes = dtype == ATTO_F32 ? 4 : 2;
    int32_t at = 0;
    for (; at + VEC_LANES <= k; at += VEC_LANES) {
        const void *block = (const char *)from + (int64_t)at * bytes;
        float *out = to + (int64_t)at * width;
        for (int32_t first = 0; first < width; first += VEC_LANES) {
            vec_u32 square[VEC_LANES];
            load_square(block, stride, dtype, rows, first, square);
            vec_transpose(square);
            VEC_UNROLL
            for (int32_t i = 0; i < VEC_LANES - 1; i++)
                vec_store(out + i * width + first, (vec)square[i]);
            const int32_t last = width - first < VEC_LANES ? width - first : VEC_LANES;
            memcpy(out + (VEC_LANES - 1) * width + first, &square[VEC_LANES - 1],
                   (size_t)last * sizeof(float));
        }
    }
    for (; at < k; at++)
        for (int32_t i = 0; i < width; i++)
            to[at * width + i] =
                i < rows ? vec_one_as(from, (int64_t)i * stride + at, dtype) : 0.0f;
}

/* spills: whole vectors may be copied, of which the next row overwrites what is too much. */
ATTO_INLINE void copy_row(const void *from, int64_t at, atto_dtype dtype, int32_t columns,
                          int32_t width, bool spills, float *to)
{
    int32_t i = 0;
    if (columns == width) {
        VEC_UNROLL
        for (; i + VEC_LANES <= width; i += VEC_LANES)
            vec_store(to + i, vec_load_as(from, at + i, dtype));
        if (spills && i < width) {
            vec_store(to + i, vec_load_as(from, at + i, dtype));
            return;
        }
    }
    for (; i < columns; i++) to[i] = vec_one_as(from, at + i, dtype);
    for (; i < width; i++) to[i] = 0.0f;
}

/* Panels, panel_floats apart, from rows across k: columns of them in all. */
ATTO_INLINE void pack_across_k(const void *from, int64_t stride, atto_dtype dtype, int32_t columns,
                               int32_t k, int32_t width, float *to, int64_t panel_floats)
{
    for (int32_t i = 0; i < k; i++) {
        float *panel = to + (int64_t)i * width;
        for (int32_t j = 0; j < columns; j += 16)
            vec_prefetch_as(from, (int64_t)(i + PACK_ROWS_AHEAD) * stride + j, dtype);
        for (int32_t first = 0; first < columns; first += width, panel += panel_floats)
            copy_row(from, (int64_t)i * stride + first, dtype,
                     columns - first < width ? columns - first : width, width,
                     i + VEC_LANES / width + 1 < k &&
                         first + (width + VEC_LANES - 1) / VEC_LANES * VEC_LANES <= columns,
                     panel);
    }
}

ATTO_INLINE void pack_as(const void *from, int64_t stride, atto_dtype dtype, bool along_k,
                         int32_t count, int32_t k, int32_t width, float *to)
{
    if (!along_k) {
        pack_across_k(from, stride, dtype, count, k, width, to, (int64_t)k * width);
        return;
    }
    for (int32_t first = 0; first < count; first += width)
        pack_along_k((const char *)from + first * stride * (dtype == ATTO_F32 ? 4 : 2), stride,
                     dtype, count - first < width ? count - first : width, k, width,
                     to + (int64_t)first * k);
}

/* As many panels as count rows (or columns) fill. from points at the first element. */
ATTO_INLINE void pack_panels(const void *from, int64_t stride, atto_dtype dtype, bool along_k,
                             int32_t count, int32_t k, int32_t width, float *to)
{
    switch (dtype) {
    case ATTO_F16:
        pack_as(from, stride, ATTO_F16, along_k, count, k, width, to);
        break;
    case ATTO_BF16:
        pack_as(from, stride, ATTO_BF16, along_k, count, k, width, to);
        break;
    default:
        pack_as(from, stride, ATTO_F32, along_k, count, k, width, to);
        break;
    }
}

#endif
