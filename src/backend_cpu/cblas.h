/* SPDX-License-Identifier: MIT */
/* A BLAS that the user names (option cblas): on the CPU f32 products go to it. */
#ifndef ATTO_CBLAS_H
#define ATTO_CBLAS_H

#include "device.h"

/* cblas_sgemm with 32-bit integers. */
typedef void atto__sgemm_fn(int order, int a_transpose, int b_transpose, int m, int n, int k,
                            float alpha, const float *a, int a_stride, const float *b, int b_stride,
                            float beta, float *c, int c_stride);

enum { ATTO_CBLAS_ROW_MAJOR = 101, ATTO_CBLAS_AS_IT_IS = 111, ATTO_CBLAS_TRANSPOSED = 112 };

typedef struct atto__cblas {
    void *library; /* NULL: none is named */
    atto__sgemm_fn *sgemm;
} atto__cblas;

/* Opens what options name and tries it. ATTO_E_ARGUMENT if it cannot be opened or has no
 * cblas_sgemm, ATTO_E_DEVICE if it computes wrong numbers; then nothing is left open. */
atto_status atto__cblas_open(const atto__options *options, atto__cblas *out);
void atto__cblas_close(atto__cblas *cblas);

/* NULL: none, or in a forked child, which has not got the library's threads. */
atto__sgemm_fn *atto__cpu_sgemm(const atto_device *dev);

#endif
