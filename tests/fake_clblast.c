/* SPDX-License-Identifier: MIT */
/* A library with CLBlast's names that multiplies on the host, rightly or as FAKE_CLBLAST says at
 * each call: "wrong" (one element), "nan", "fails". Like the versions before 1.4 it takes no
 * scratch. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

int fake_clblast_calls;

static __typeof__(clEnqueueReadBuffer) *read_buffer;
static __typeof__(clEnqueueWriteBuffer) *write_buffer;

static int load(void)
{
    if (read_buffer) return 1;
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW);
    if (!library) return 0;
    *(void **)&read_buffer = dlsym(library, "clEnqueueReadBuffer");
    *(void **)&write_buffer = dlsym(library, "clEnqueueWriteBuffer");
    return read_buffer && write_buffer;
}

static int is_mode(const char *mode)
{
    const char *set = getenv("FAKE_CLBLAST");
    return set && strcmp(set, mode) == 0;
}

/* rows * pitch floats from at on, the last row without its gap. */
static float *fetch(cl_command_queue queue, cl_mem from, size_t at, size_t rows, size_t columns,
                    size_t pitch)
{
    const size_t floats = (rows - 1) * pitch + columns;
    float *host = malloc(floats * sizeof *host);
    if (host && read_buffer(queue, from, CL_TRUE, at * sizeof *host, floats * sizeof *host, host, 0,
                            NULL, NULL) == CL_SUCCESS)
        return host;
    free(host);
    return NULL;
}

static float element(const float *m, size_t pitch, int transposed, size_t i, size_t j)
{
    return transposed ? m[j * pitch + i] : m[i * pitch + j];
}

static void multiply(size_t m, size_t n, size_t k, const float *a, size_t a_ld, int a_transposed,
                     const float *b, size_t b_ld, int b_transposed, float beta, float *c,
                     size_t c_ld)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (size_t r = 0; r < k; r++)
                sum += element(a, a_ld, a_transposed, i, r) * element(b, b_ld, b_transposed, r, j);
            c[i * c_ld + j] = sum + (beta == 0.0f ? 0.0f : beta * c[i * c_ld + j]);
        }
}

int CLBlastClearCache(void);
int CLBlastClearCache(void)
{
    return 0;
}

int CLBlastSgemm(int layout, int a_transpose, int b_transpose, size_t m, size_t n, size_t k,
                 float alpha, cl_mem a, size_t a_at, size_t a_ld, cl_mem b, size_t b_at,
                 size_t b_ld, float beta, cl_mem c, size_t c_at, size_t c_ld,
                 cl_command_queue *queue, cl_event *event);
int CLBlastSgemm(int layout, int a_transpose, int b_transpose, size_t m, size_t n, size_t k,
                 float alpha, cl_mem a, size_t a_at, size_t a_ld, cl_mem b, size_t b_at,
                 size_t b_ld, float beta, cl_mem c, size_t c_at, size_t c_ld,
                 cl_command_queue *queue, cl_event *event)
{
    const int ta = a_transpose == 112, tb = b_transpose == 112;
    fake_clblast_calls++;
    if (layout != 101 || alpha != 1.0f || event || !load() || is_mode("fails")) return -5;
    float *host_a = fetch(*queue, a, a_at, ta ? k : m, ta ? m : k, a_ld);
    float *host_b = fetch(*queue, b, b_at, tb ? n : k, tb ? k : n, b_ld);
    float *host_c = fetch(*queue, c, c_at, m, n, c_ld);
    int code = host_a && host_b && host_c ? 0 : -4;
    if (code == 0) {
        multiply(m, n, k, host_a, a_ld, ta, host_b, b_ld, tb, beta, host_c, c_ld);
        float *last = &host_c[(m - 1) * c_ld + n - 1];
        if (is_mode("wrong")) *last += 1.0f;
        if (is_mode("nan")) *last = NAN;
        const size_t floats = (m - 1) * c_ld + n;
        code = write_buffer(*queue, c, CL_TRUE, c_at * sizeof *host_c, floats * sizeof *host_c,
                            host_c, 0, NULL, NULL);
    }
    free(host_a);
    free(host_b);
    free(host_c);
    return code;
}
