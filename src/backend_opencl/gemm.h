/* SPDX-License-Identifier: MIT */
/* Matrix products on OpenCL: from shapes to kernels of src/cl/gemm.cl.
 *
 *     out[i][j] = epilogue(sum over r of a(i, r) * b(j, r))      i < m, j < n, r < k
 *
 * Which kernel and tile, and how a long sum is cut into slices, depends on the shape, the dtypes
 * and the kind of device; so do the bits of the result. */
#ifndef ATTO_GEMM_H
#define ATTO_GEMM_H

#include "launch.h"

/* Products of one shape: `outer` times `inner` of them, and the elements from one to the next in
 * each direction; 0 repeats an operand. All 0 is one product. */
typedef struct atto__gemm_batch {
    int64_t outer, inner;
    struct atto__gemm_steps {
        int64_t outer, inner;
    } a, b, out;
} atto__gemm_batch;

/* Tensors are matrices with unit stride along their rows, as the op table's ROWS makes them; of a
 * batch the first ones. */
typedef struct atto__gemm {
    int64_t m, n, k;
    const atto_tensor *a;            /* [m, k], or [k, m] */
    const atto_tensor *b;            /* [n, k], or [k, n] */
    bool a_transposed, b_transposed; /* the second form */

    const atto_tensor *out;      /* [m, n] */
    bool add;                    /* to what out holds */
    const atto_tensor *bias;     /* [n] as one row, f32 or like b; NULL = none */
    const atto_tensor *z;        /* gets the sums before the activation; NULL = not wanted */
    const atto_tensor *residual; /* like out; NULL = none */

    /* Activation and dropout: behind the sum; or, with a prologue, a is a gradient dy, and its
     * product with their derivatives is multiplied. */
    atto_activation act;
    float dropout;
    atto_rng rng;
    bool prologue;
    const atto_tensor *prologue_z; /* like a; NULL where the activation is the identity */

    /* Of more than one product only a, b and out are there. */
    atto__gemm_batch batch;
} atto__gemm;

/* Scratch headers of a call, which must live until everything is enqueued. */
atto_status atto__gemm_run(atto_device *dev, const atto__gemm *g);

/* A tile for products that other kernels compute, conv.cl's: m, n, k and the batch are given. Where
 * sums may not be cut, slices is 1. False if the device can run no tile. */
typedef struct atto__gemm_cut {
    const atto__gemm_tile *tile;
    int64_t tiles;         /* of one product */
    int64_t slices, slice; /* of k, and values of k in one, a multiple of 64 */
} atto__gemm_cut;

bool atto__gemm_cut_of(const atto_device *dev, const atto__gemm *sizes, bool may_cut,
                       atto__gemm_cut *out);

/* How often the prologue would see each element of a: once for each tile beside another. */
int64_t atto__gemm_passes(atto_device *dev, const atto__gemm *g);

/* Builds what a plain product of that dtype needs. */
atto_status atto__gemm_prepare(atto_device *dev, atto_dtype dtype);

/* For tests: products use that tile of atto__gemm_tiles wherever the device can run it, and no
 * other kernel; NULL gives the choice back. False if there is no such tile. */
bool atto__gemm_use_tile(atto_device *dev, const char *name);

/* ---- pieces that linear.c shares ---- */

/* The knobs that activation, dropout and prologue decide; dtypes and the rest are the caller's. */
atto__gemm_knobs atto__gemm_knobs_of(const atto__gemm *g);

/* ATTO_EPILOGUE_PARAMETERS. */
void atto__arg_epilogue(atto__args *args, const atto__gemm *g, bool wide);

/* An offset inside the matrix reaches 2^31, or options force wide indices. t may be NULL. */
bool atto__matrix_wide(const atto_device *dev, const atto_tensor *t);

/* Rows start at multiples of that many elements and consist of such pieces. */
bool atto__matrix_divides(const atto_tensor *t, int32_t elements);

/* out = epilogue(sums of slices), sums [slices, outer, inner, m, n] in f32. */
atto_status atto__gemm_finish(atto_device *dev, const atto__gemm *g, const atto_tensor *sums,
                              int64_t slices);

#endif
