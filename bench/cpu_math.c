/* SPDX-License-Identifier: MIT */
/* Loops over host memory: formulas in the first-level cache, and three ways through a large array.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"

#define L1_ELEMENTS  2048
#define CHUNK        16384
#define GELU_SAMPLES 21
#define HOST_SETS    3

extern const bench_loops bench_loops_base, bench_loops_avx2, bench_loops_avx512;

/* The levels of this build; ATTO_CPU_HAS_<LEVEL> comes from CMake. */
static const bench_loops *const all_loops[] = {
    &bench_loops_base,
#if ATTO_CPU_HAS_AVX2
    &bench_loops_avx2,
#endif
#if ATTO_CPU_HAS_AVX512
    &bench_loops_avx512,
#endif
};

const bench_loops *bench_loops_of(const char *at_most)
{
    const atto_device_options options = { .ignore_environment = true, .cpu_level = at_most };
    const size_t count = sizeof all_loops / sizeof all_loops[0];
    atto_device *dev;
    atto_device_info info;
    if (atto_device_open("cpu", &options, &dev) != ATTO_OK) return NULL;
    const atto_status status = atto_device_describe(dev, &info);
    atto_device_close(dev);
    for (size_t i = 0; status == ATTO_OK && i < count; i++)
        if (strcmp(all_loops[i]->level, info.version) == 0) return all_loops[i];
    return NULL;
}

void bench_loop_parallel(bench_loop loop, float *y, const float *x, int64_t n, float a)
{
    const int64_t chunks = (n + CHUNK - 1) / CHUNK;
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (int64_t c = 0; c < chunks; c++) {
        const int64_t at = c * CHUNK;
        loop(y + at, x + at, n - at < CHUNK ? n - at : CHUNK, a, 0.0f);
    }
}

/* Seconds of `repeats` sweeps. */
static double sweep(bench_loop loop, float *y, const float *x, float a, float b, int repeats)
{
    const double start = bench_clock();
    for (int r = 0; r < repeats; r++) loop(y, x, L1_ELEMENTS, a, b);
    return bench_clock() - start;
}

double bench_loop_ns(bench_loop loop, float a, float b)
{
    enum { samples = 15, seconds_inverse = 5000 };
    static _Alignas(64) float x[L1_ELEMENTS];
    static _Alignas(64) float y[L1_ELEMENTS];
    bench_normal(x, L1_ELEMENTS, 1);
    int repeats = 1;
    while (sweep(loop, y, x, a, b, repeats) * seconds_inverse < 1 && repeats < 1 << 20)
        repeats *= 2;
    double least = sweep(loop, y, x, a, b, repeats);
    for (int i = 1; i < samples; i++) {
        const double seconds = sweep(loop, y, x, a, b, repeats);
        if (seconds < least) least = seconds;
    }
    return 1e9 * least / repeats / L1_ELEMENTS;
}

/* Large host arrays. */

static float *host_array(int64_t n)
{
    const size_t bytes = ((size_t)n * sizeof(float) + 63) / 64 * 64;
    return malloc(bytes);
}

static void fill_host(const bench_loops *loops, float *x, int64_t n)
{
    float *pattern = malloc(CHUNK * sizeof *pattern);
    if (pattern == NULL) return;
    bench_normal(pattern, CHUNK, 1);
    for (int64_t at = 0; at < n; at += CHUNK)
        loops->scale(x + at, pattern, n - at < CHUNK ? n - at : CHUNK, 1.0f, 0.0f);
    free(pattern);
}

static double ms_of_loop(bench_loop loop, float *y, const float *x, int64_t n)
{
    const double start = bench_clock();
    bench_loop_parallel(loop, y, x, n, 0.5f);
    return 1e3 * (bench_clock() - start);
}

static atto_status ms_of_attocl(atto_device *dev, const bench_tensors *t, double *out_ms)
{
    const struct atto_act_args a = { .x = &t->x, .y = &t->out, .act = atto_gelu() };
    const double start = bench_clock();
    atto_status status = atto_act_forward(dev, &a);
    if (status == ATTO_OK) status = atto_device_sync(dev);
    *out_ms = 1e3 * (bench_clock() - start);
    return status;
}

/* The three ways in turn, so that a disturbance hits all of them; the first round warms up. */
static atto_status interleave(const bench_loops *loops, atto_device *dev, const bench_tensors *t,
                              float *x, float *y, bench_gelu *out)
{
    double own[GELU_SAMPLES + 1], scale[GELU_SAMPLES + 1], libm[GELU_SAMPLES + 1];
    for (int i = 0; i <= GELU_SAMPLES; i++) {
        const atto_status status = ms_of_attocl(dev, t, &own[i]);
        if (status != ATTO_OK) return status;
        scale[i] = ms_of_loop(loops->scale, y, x, out->elements);
        libm[i] = ms_of_loop(loops->gelu_libm, y, x, out->elements);
    }
    out->attocl_ms = bench_median(own + 1, GELU_SAMPLES);
    out->scale_ms = bench_median(scale + 1, GELU_SAMPLES);
    out->libm_ms = bench_median(libm + 1, GELU_SAMPLES);
    return ATTO_OK;
}

static atto_status gelu_on(const bench_loops *loops, atto_device *dev, float *x, float *y,
                           bench_gelu *out)
{
    bench_tensors t = { 0 };
    const atto_shape shape = atto_shape1(out->elements);
    atto_status status = atto_tensor_alloc(dev, ATTO_F32, shape, &t.x);
    if (status == ATTO_OK) status = atto_tensor_alloc(dev, ATTO_F32, shape, &t.out);
    if (status == ATTO_OK) status = atto_tensor_write(&t.x, x);
    if (status == ATTO_OK) status = interleave(loops, dev, &t, x, y, out);
    atto_tensor_free(&t.x);
    atto_tensor_free(&t.out);
    return status;
}

atto_status bench_gelu_large(const bench_loops *loops, int64_t elements, bench_gelu *out)
{
    const atto_device_options options = { .ignore_environment = true, .cpu_level = loops->level };
    atto_device *dev = NULL;
    float *x = host_array(elements);
    float *y = host_array(elements);
    *out = (bench_gelu){ .elements = elements };
    atto_status status = x != NULL && y != NULL ? ATTO_OK : ATTO_E_MEMORY;
    if (status == ATTO_OK) fill_host(loops, x, elements);
    if (status == ATTO_OK) status = atto_device_open("cpu", &options, &dev);
    if (status == ATTO_OK) status = gelu_on(loops, dev, x, y, out);
    atto_device_close(dev);
    free(x);
    free(y);
    return status;
}

/* Median of y = a*x over `sets` pairs of arrays in turn; filling them is the warm-up. */
static double median_sweep(const bench_loops *loops, float *y, float *x, int64_t n, int64_t sets,
                           int32_t samples)
{
    double ms[BENCH_MAX_SAMPLES];
    fill_host(loops, x, n * sets);
    fill_host(loops, y, n * sets);
    for (int32_t i = 0; i < samples; i++) {
        const int64_t at = i % sets * n;
        ms[i] = ms_of_loop(loops->scale, y + at, x + at, n);
    }
    return bench_median(ms, samples);
}

double bench_host_ceiling(const char *at_most, int64_t bytes, int32_t samples)
{
    const bench_loops *loops = bench_loops_of(at_most);
    const int64_t n = (bytes + 3) / 4;
    const int64_t sets = 1 + 10 * bench_last_level_cache() / (2 * bytes);
    float *x = host_array(n * sets);
    float *y = host_array(n * sets);
    const bool complete = loops != NULL && x != NULL && y != NULL;
    const double ms = complete ? median_sweep(loops, y, x, n, sets, samples) : 0;
    free(x);
    free(y);
    return ms > 0 ? 1e-6 * 2.0 * (double)bytes / ms : 0;
}
