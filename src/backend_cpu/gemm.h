/* SPDX-License-Identifier: MIT */
/* Matrix product with float sums, for operands of any float dtype and storage order.
 *
 *     C[m, n] (+)= A[m, k] B[k, n], then finish
 *
 * K is cut into blocks by its size alone and never among threads, and whoever computes an element
 * computes it in the same way: the bits of C depend on the sizes and the instruction level only. (A
 * row's bits may differ between a product of at most ATTO_GEMM_SKINNY rows and a larger one.) */
#ifndef ATTO_CPU_GEMM_H
#define ATTO_CPU_GEMM_H

#include "backend_cpu/cpu.h"

/* Up to so many rows B is read where it lies, once, instead of being packed. */
#define ATTO_GEMM_SKINNY 8

/* No run of elements that a hook gets is longer (ATTO_BLOCK of loops.h). */
#define ATTO_GEMM_RUN 1024

/* An operand as it is stored: rows of unit stride, either along k (A as [m, k], B as [n, k]) or
 * across it (A as [k, m], B as [k, n]). data points at its first element; NULL if it has none. */
typedef struct atto__gemm_side {
    const void *data;
    int64_t stride; /* elements between rows; 0 repeats one row */
    atto_dtype dtype;
    bool along_k;
} atto__gemm_side;

typedef void atto__pack_fn(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                           float *to);

/* A panel of A's rows (TILE_ROWS of panel.h) where they lie: n values of k, side by side in each
 * row. */
#define ATTO_GEMM_ROWS 16
typedef struct atto__gemm_run {
    const float *rows[ATTO_GEMM_ROWS];
    int32_t n;
} atto__gemm_run;

/* Runs that a panel has at most in a block of k. */
#define ATTO_GEMM_RUNS 48

typedef struct atto__gemm {
    int64_t m, n, k;
    atto__gemm_side a, b;

    /* Where the sums are to stand, rows c_stride apart, and whether to add to what is there; NULL:
     * in scratch until finish. */
    float *c;
    int64_t c_stride;
    bool accumulate;

    /* NULL, or what to multiply instead of a.data: n elements of A's stored row, from column on, as
     * floats. May be called more than once for the same ones. */
    void (*prologue)(const void *job, int64_t row, int64_t column, int32_t n, float *out);

    /* NULL, or what becomes of n finished elements of C's row, from column on. May change values;
     * they stand in c if there is one. Called once for each element; may store past the caches. */
    void (*finish)(const void *job, int64_t row, int64_t column, int32_t n, float *values);

    /* NULL, or finish for some rows of C at a time, of which values has one every stride floats. */
    void (*finish_rows)(const void *job, int64_t row, int32_t rows, int64_t column, int32_t n,
                        float *values, int64_t stride);

    /* NULL, or what packs an operand that no memory holds, in place of reading it: panels of width
     * rows of A, or columns of B, from first on, n of them, over depth values of k; as pack.h says. */
    atto__pack_fn *pack_a, *pack_b;

    /* NULL, or besides pack_a: where n rows of A lie from k on, depth values; some that may be read
     * for those from n on. Returns how many runs there are. */
    int32_t (*point_a)(const void *job, int64_t first, int64_t k, int32_t n, int32_t depth,
                       atto__gemm_run *runs);

    const void *job; /* of all hooks */

    /* What finish is told of C's row 0: products of a batch stand below each other. */
    int64_t first_row;

    /* What pack_a and pack_b are told of k = 0. */
    int64_t first_k;
} atto__gemm;

/* n floats, or one where n is 0, that live as long as the call. */
static inline atto_status scratch_floats(atto_device *dev, int64_t n, float **out)
{
    atto_buffer header;
    atto_tensor t;
    const int64_t room = n > 0 ? n : 1;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &room, &header, &t));
    *out = atto__memory(&t);
    return ATTO_OK;
}

/* Any size may be 0; k = 0 gives sums of 0. Fails only for want of scratch memory. */
atto_status ATTO_LEVEL_NAME(gemm)(atto_device *dev, const atto__gemm *g);

/* count products like g: locate turns a copy of g into number `item`, which may have other memory
 * and another first row only. Where one has not enough to do for all threads, each is computed by
 * one thread; the bits are those of gemm. No prologue. */
atto_status ATTO_LEVEL_NAME(gemm_batch)(atto_device *dev, const atto__gemm *g, int64_t count,
                                        void (*locate)(const void *job, int64_t item,
                                                       atto__gemm *out));

#endif
