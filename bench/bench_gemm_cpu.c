/* SPDX-License-Identifier: MIT */
/* The CPU backend's products beside OpenBLAS, which is opened at run time if it is there.
 *
 *   bench_gemm_cpu [threads]      OPENBLAS=path names the library
 *
 * Each row is measured in turns with its peer in this process, so that both see the same machine;
 * figures are medians, ratios above 1 mean that ours is faster. */
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <attocl.h>

/* ---- the peer ---- */

enum { ROW_MAJOR = 101, AS_IS = 111, TRANSPOSED = 112 }; /* of CBLAS */
typedef void (*sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);
static sgemm_fn sgemm; /* NULL without OpenBLAS */

static void *symbol(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

static void open_peer(int threads)
{
    const char *path = getenv("OPENBLAS");
    void *library = dlopen(path ? path : "libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    void *found = symbol(library, "cblas_sgemm");
    memcpy(&sgemm, &found, sizeof sgemm);
    void (*set_threads)(int);
    found = symbol(library, "openblas_set_num_threads");
    memcpy(&set_threads, &found, sizeof set_threads);
    if (set_threads) set_threads(threads);
    if (!sgemm) printf("OpenBLAS was not found: no ratios\n");
}

/* ---- one row ---- */

static atto_device *dev;

static void must(atto_status status)
{
    if (status == ATTO_OK) return;
    fprintf(stderr, "%s\n", atto_last_error());
    exit(1);
}

static atto_tensor normal(atto_dtype dtype, int64_t rows, int64_t columns)
{
    atto_tensor t;
    float *values = malloc((size_t)(rows * columns) * sizeof *values);
    if (!values) exit(1);
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = (float)((rand() % 2001 - 1000) / 577.0); /* variance 1 */
    must(atto_tensor_alloc(dev, dtype, atto_shape2(rows, columns), &t));
    atto_tensor floats;
    must(atto_tensor_alloc(dev, ATTO_F32, atto_shape2(rows, columns), &floats));
    must(atto_tensor_write(&floats, values));
    must(atto_tensor_copy(&t, &floats));
    atto_tensor_free(&floats);
    free(values);
    return t;
}

typedef enum product { FORWARD, BACKWARD_DX, BACKWARD_DW, GELU_FUSED } product;
static const char *const product_names[] = { "x w^T", "dz w", "dz^T x", "x w^T + b, gelu" };

typedef struct row {
    product product;
    atto_dtype dtype;
    int64_t m, n, k; /* x [m, k], w [n, k], y [m, n] */
} row;

typedef struct tensors {
    atto_tensor x, w, b, y, dx, dw;
    float *blas; /* room for the peer's result */
} tensors;

static void ours(const row *r, const tensors *t)
{
    struct atto_linear_args a = { .x = &t->x, .w = &t->w, .y = &t->y, .dy = &t->y };
    switch (r->product) {
    case GELU_FUSED:
        a.b = &t->b;
        a.act = atto_gelu();
        must(atto_linear_forward(dev, &a));
        break;
    case FORWARD:
        must(atto_linear_forward(dev, &a));
        break;
    case BACKWARD_DX:
        a.dx = &t->dx;
        must(atto_linear_backward(dev, &a));
        break;
    case BACKWARD_DW:
        a.dw = &t->dw;
        must(atto_linear_backward(dev, &a));
        break;
    }
}

static const float *data(const atto_tensor *t)
{
    void *memory;
    must(atto_tensor_map(t, ATTO_MAP_READ, &memory));
    must(atto_tensor_unmap(t));
    return memory;
}

/* f32 whatever the row's dtype. The fused row's peer is sgemm and then our own activation, with the
 * bias added in a loop between them. */
static void peer(const row *r, const tensors *t)
{
    const int m = (int)r->m, n = (int)r->n, k = (int)r->k;
    const float *x = data(&t->x), *w = data(&t->w), *y = data(&t->y);
    switch (r->product) {
    case BACKWARD_DX:
        sgemm(ROW_MAJOR, AS_IS, AS_IS, m, k, n, 1, y, n, w, k, 0, t->blas, k);
        return;
    case BACKWARD_DW:
        sgemm(ROW_MAJOR, TRANSPOSED, AS_IS, n, k, m, 1, y, n, x, k, 0, t->blas, k);
        return;
    case FORWARD:
        sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, m, n, k, 1, x, k, w, k, 0, t->blas, n);
        return;
    case GELU_FUSED:
        break;
    }
    float *sums = (float *)(uintptr_t)y;
    const float *bias = data(&t->b);
    sgemm(ROW_MAJOR, AS_IS, TRANSPOSED, m, n, k, 1, x, k, w, k, 0, sums, n);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) sums[(int64_t)i * n + j] += bias[j];
    const struct atto_act_args a = { .x = &t->y, .y = &t->y, .act = atto_gelu() };
    must(atto_act_forward(dev, &a));
}

/* With one thread the time of the process, which other programs on the machine do not lengthen. */
static clockid_t which_clock = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    clock_gettime(which_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef void (*run_fn)(const row *r, const tensors *t);

/* ms of one call, from as many as take a millisecond. */
static double time_calls(run_fn run, const row *r, const tensors *t, int calls)
{
    const double start = now();
    for (int i = 0; i < calls; i++) run(r, t);
    return 1e3 * (now() - start) / calls;
}

/* Two thread pools disturb each other while they spin, OpenBLAS its for 100 ms: rest, and one call
 * before the clock runs. */
static double sample(run_fn run, const row *r, const tensors *t, int calls, bool rest)
{
    if (rest) nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    run(r, t);
    return time_calls(run, r, t, calls);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define SAMPLES 7

static void measure(const row *r, int threads)
{
    tensors t = { .x = normal(r->dtype, r->m, r->k),
                  .w = normal(r->dtype, r->n, r->k),
                  .b = normal(r->dtype, 1, r->n),
                  .y = normal(r->dtype, r->m, r->n),
                  .dx = normal(r->dtype, r->m, r->k),
                  .dw = normal(r->dtype, r->n, r->k) };
    t.b.rank = 1;
    t.b.shape[0] = r->n;
    t.b.stride[0] = 1;
    const int64_t most = r->m * r->n + r->m * r->k + r->n * r->k;
    t.blas = malloc((size_t)most * sizeof *t.blas);
    if (!t.blas) exit(1);
    double mine[SAMPLES], theirs[SAMPLES] = { 0 };
    const bool has_peer = sgemm && r->dtype == ATTO_F32;
    ours(r, &t);
    const double once = time_calls(ours, r, &t, 1);
    const int calls = once > 1.0 ? 1 : (int)(1.0 / once) + 1;
    for (int i = 0; i < SAMPLES; i++) {
        mine[i] = sample(ours, r, &t, calls, threads > 1);
        if (has_peer) theirs[i] = sample(peer, r, &t, calls, threads > 1);
    }
    qsort(mine, SAMPLES, sizeof *mine, ascending);
    qsort(theirs, SAMPLES, sizeof *theirs, ascending);
    const double flops = 2e-6 * (double)r->m * (double)r->n * (double)r->k;
    const double ms = mine[SAMPLES / 2], peer_ms = theirs[SAMPLES / 2];
    printf("%-16s %-4s %5d %5d %5d  %8.3f ms %7.1f GF (best %7.1f)", product_names[r->product],
           atto_dtype_name(r->dtype), (int)r->m, (int)r->n, (int)r->k, ms, flops / ms,
           flops / mine[0]);
    if (has_peer)
        printf("   OpenBLAS %7.1f GF (best %7.1f)   ratio %.2f (best %.2f)", flops / peer_ms,
               flops / theirs[0], peer_ms / ms, theirs[0] / mine[0]);
    printf("\n");
    fflush(stdout);
    free(t.blas);
    atto_tensor_free(&t.x);
    atto_tensor_free(&t.w);
    atto_tensor_free(&t.b);
    atto_tensor_free(&t.y);
    atto_tensor_free(&t.dx);
    atto_tensor_free(&t.dw);
}

static const row rows[] = {
    { FORWARD, ATTO_F32, 256, 256, 256 },         { BACKWARD_DX, ATTO_F32, 256, 256, 256 },
    { BACKWARD_DW, ATTO_F32, 256, 256, 256 },     { FORWARD, ATTO_F32, 512, 512, 512 },
    { BACKWARD_DX, ATTO_F32, 512, 512, 512 },     { BACKWARD_DW, ATTO_F32, 512, 512, 512 },
    { FORWARD, ATTO_F32, 1024, 1024, 1024 },      { BACKWARD_DX, ATTO_F32, 1024, 1024, 1024 },
    { BACKWARD_DW, ATTO_F32, 1024, 1024, 1024 },  { FORWARD, ATTO_F32, 2048, 2048, 2048 },
    { BACKWARD_DX, ATTO_F32, 2048, 2048, 2048 },  { BACKWARD_DW, ATTO_F32, 2048, 2048, 2048 },
    { FORWARD, ATTO_F32, 1000, 1000, 1000 },      { FORWARD, ATTO_F32, 1536, 1536, 1536 },
    { FORWARD, ATTO_F32, 1, 4096, 4096 },         { FORWARD, ATTO_F32, 2, 4096, 4096 },
    { FORWARD, ATTO_F32, 4, 4096, 4096 },         { FORWARD, ATTO_F32, 8, 4096, 4096 },
    { FORWARD, ATTO_F32, 32, 4096, 4096 },        { BACKWARD_DX, ATTO_F32, 1, 4096, 4096 },
    { BACKWARD_DX, ATTO_F32, 8, 4096, 4096 },     { BACKWARD_DX, ATTO_F32, 32, 4096, 4096 },
    { FORWARD, ATTO_F32, 64, 512, 784 },          { BACKWARD_DW, ATTO_F32, 64, 512, 784 },
    { FORWARD, ATTO_F32, 64, 10, 512 },           { GELU_FUSED, ATTO_F32, 1024, 1024, 1024 },
    { GELU_FUSED, ATTO_F32, 512, 2048, 512 },     { FORWARD, ATTO_BF16, 512, 512, 512 },
    { FORWARD, ATTO_F16, 512, 512, 512 },         { FORWARD, ATTO_BF16, 1024, 1024, 1024 },
    { FORWARD, ATTO_F16, 1024, 1024, 1024 },      { BACKWARD_DX, ATTO_BF16, 1024, 1024, 1024 },
    { BACKWARD_DW, ATTO_BF16, 1024, 1024, 1024 },
};

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 1;
    const int first = argc > 2 ? atoi(argv[2]) : 0, last = argc > 3 ? atoi(argv[3]) : 1000;
    if (threads == 1) which_clock = CLOCK_PROCESS_CPUTIME_ID;
    open_peer(threads);
    must(atto_device_open("cpu", &(atto_device_options){ .num_threads = threads }, &dev));
    atto_device_info info;
    must(atto_device_describe(dev, &info));
    printf("%s, %s, %d threads\n", info.name, info.version, threads);
    const int count = (int)(sizeof rows / sizeof rows[0]);
    for (int i = first; i < count && i <= last; i++) measure(&rows[i], threads);
    atto_device_close(dev);
    return 0;
}
