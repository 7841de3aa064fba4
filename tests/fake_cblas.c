/* SPDX-License-Identifier: MIT */
/* A BLAS of one plain function; with FAKE_CBLAS in the environment it forgets the last term of each
 * sum. */
#include <stdlib.h>

int fake_cblas_calls;

void cblas_sgemm(int order, int a_transpose, int b_transpose, int m, int n, int k, float alpha,
                 const float *a, int a_stride, const float *b, int b_stride, float beta, float *c,
                 int c_stride);
void cblas_sgemm(int order, int a_transpose, int b_transpose, int m, int n, int k, float alpha,
                 const float *a, int a_stride, const float *b, int b_stride, float beta, float *c,
                 int c_stride)
{
    const int ta = a_transpose == 112, tb = b_transpose == 112;
    const int terms = getenv("FAKE_CBLAS") ? k - 1 : k;
    fake_cblas_calls++;
    if (order != 101) return;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int r = 0; r < terms; r++)
                sum += (ta ? a[r * a_stride + i] : a[i * a_stride + r]) *
                       (tb ? b[j * b_stride + r] : b[r * b_stride + j]);
            float *to = &c[i * c_stride + j];
            *to = alpha * sum + (beta == 0.0f ? 0.0f : beta * *to);
        }
}
