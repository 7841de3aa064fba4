/* SPDX-License-Identifier: MIT */
/* Internals: the CPU backend's matrix product, each instruction level against a triple loop in
 * double, and its bits with different numbers of threads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "device.h"

#define ATTO_LEVEL base /* the header's types; the functions of all levels are declared below */
#include "backend_cpu/gemm.h"

typedef atto_status (*gemm_fn)(atto_device *dev, const atto__gemm *g);
atto_status atto__cpu_gemm_avx2(atto_device *dev, const atto__gemm *g);
atto_status atto__cpu_gemm_avx512(atto_device *dev, const atto__gemm *g);

static const struct level {
    const char *name;
    gemm_fn gemm;
} levels[] = {
    { "base", atto__cpu_gemm_base },
#ifdef TEST_AVX2
    { "avx2", atto__cpu_gemm_avx2 },
#endif
#ifdef TEST_AVX512
    { "avx512", atto__cpu_gemm_avx512 },
#endif
};

/* A device of that level, or NULL where the processor has not got it. */
static atto_device *open_level(const char *name, int32_t threads)
{
    atto_device *dev;
    const atto_device_options options = { .cpu_level = name,
                                          .num_threads = threads,
                                          .ignore_environment = true };
    MUST(atto_device_open("cpu", &options, &dev));
    atto_device_info info;
    MUST(atto_device_describe(dev, &info));
    if (strcmp(info.version, name) == 0) return dev;
    atto_device_close(dev);
    return NULL;
}

/* ---- operands ---- */

/* A matrix as it is stored, in rows of stride elements, and the same values in double. */
typedef struct matrix {
    atto__gemm_side side;
    void *memory;
    double *values; /* [rows, columns] */
    int64_t columns;
} matrix;

static void put(void *memory, atto_dtype dtype, int64_t at, double value)
{
    if (dtype == ATTO_F32) {
        ((float *)memory)[at] = (float)value;
    } else { /* the values are exact in the dtype: test_uniform */
        ((uint16_t *)memory)[at] = (uint16_t)oracle_encode(dtype, value);
    }
}

static matrix make_matrix(int64_t rows, int64_t columns, int64_t stride, atto_dtype dtype,
                          bool along_k, uint64_t seed)
{
    matrix m = { .columns = columns };
    m.values = test_doubles(rows * columns);
    test_uniform(seed, -1.0, 1.0, dtype, m.values, rows * columns);
    const size_t bytes = (size_t)(rows * stride + columns) * 4;
    m.memory = malloc(bytes);
    assert_non_null(m.memory);
    memset(m.memory, 0xff, bytes); /* NaN: what lies between the rows must not be read */
    if (stride == 0)
        for (int64_t i = columns; i < rows * columns; i++) m.values[i] = m.values[i - columns];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            put(m.memory, dtype, i * stride + j, m.values[i * columns + j]);
    m.side = (atto__gemm_side){ rows > 0 && columns > 0 ? m.memory : NULL, stride, dtype, along_k };
    return m;
}

static void drop_matrix(matrix *m)
{
    free(m->memory);
    free(m->values);
}

/* Element of a side by its index in the product. */
static double value_of(const matrix *m, int64_t index, int64_t k)
{
    return m->side.along_k ? m->values[index * m->columns + k] : m->values[k * m->columns + index];
}

/* ---- cases ---- */

typedef struct gemm_case {
    int64_t m, n, k;
    bool a_along, b_along;
    int32_t pad_a, pad_b;        /* elements between rows; PAD_BROADCAST: row stride 0 */
    atto_dtype a_dtype, b_dtype; /* 0: f32 */
    bool accumulate, in_scratch, prologue;
} gemm_case;
#define PAD_BROADCAST (-1)

typedef struct hooks {
    const gemm_case *c;
    const matrix *a;
    float *results; /* [m, n], from finish */
} hooks;

/* Doubles the stored values, so that forgetting it shows. */
static void prologue(const void *job, int64_t row, int64_t column, int32_t n, float *out)
{
    const hooks *h = job;
    for (int32_t i = 0; i < n; i++) {
        const double value = h->a->values[row * h->a->columns + column + i];
        out[i] = n <= ATTO_GEMM_RUN ? 2.0f * (float)value : NAN;
    }
}

/* Moves the sums to results; an element that came before would be NaN no more. */
static void finish(const void *job, int64_t row, int64_t column, int32_t n, float *values)
{
    const hooks *h = job;
    for (int32_t i = 0; i < n; i++) {
        float *to = &h->results[row * h->c->n + column + i];
        *to = isnan(*to) ? values[i] : INFINITY;
        values[i] = 0.25f;
    }
}

static int64_t stride_of(int64_t columns, int32_t pad)
{
    return pad == PAD_BROADCAST ? 0 : columns + pad;
}

#define C_PAD 3 /* between the rows of C */

/* C as the product leaves it, [m, n + C_PAD], the pads NaN. */
static float *multiply(const struct level *level, atto_device *dev, const gemm_case *c,
                       const matrix *a, const matrix *b)
{
    const int64_t stride = c->n + C_PAD, floats = c->m * stride + 1;
    float *out = malloc((size_t)floats * 4), *results = malloc((size_t)(c->m * c->n + 1) * 4);
    assert_non_null(out);
    assert_non_null(results);
    for (int64_t i = 0; i < floats; i++) out[i] = c->accumulate && i % stride < c->n ? 0.5f : NAN;
    for (int64_t i = 0; i < c->m * c->n; i++) results[i] = NAN;
    const hooks h = { c, a, results };
    const atto__gemm g = { .m = c->m,
                           .n = c->n,
                           .k = c->k,
                           .a = a->side,
                           .b = b->side,
                           .c = c->in_scratch ? NULL : out,
                           .c_stride = stride,
                           .accumulate = c->accumulate,
                           .prologue = c->prologue ? prologue : NULL,
                           .finish = c->in_scratch ? finish : NULL,
                           .job = &h };
    atto__scratch_reset(dev);
    MUST(level->gemm(dev, &g));
    for (int64_t i = 0; i < c->m && c->in_scratch; i++)
        memcpy(out + i * stride, results + i * c->n, (size_t)c->n * 4);
    free(results);
    return out;
}

/* What C must be, and how far it may be off: k products and sums, one rounding each, one more for
 * what is added to, of the sum of magnitudes. */
typedef struct answer {
    double *want, *allowed; /* [m, n] */
} answer;

static answer reference(const gemm_case *c, const matrix *a, const matrix *b)
{
    const answer r = { test_doubles(c->m * c->n), test_doubles(c->m * c->n) };
    const double factor = c->prologue ? 2.0 : 1.0, old = c->accumulate ? 0.5 : 0.0;
    for (int64_t i = 0; i < c->m; i++) {
        for (int64_t j = 0; j < c->n; j++) {
            double want = old, scale = old;
            for (int64_t k = 0; k < c->k; k++) {
                const double term = factor * value_of(a, i, k) * value_of(b, j, k);
                want += term;
                scale += fabs(term);
            }
            r.want[i * c->n + j] = want;
            r.allowed[i * c->n + j] = (double)(c->k + 1) * 0x1p-24 * scale;
        }
    }
    return r;
}

static void check(const char *level, const gemm_case *c, const answer *r, const float *out)
{
    for (int64_t i = 0; i < c->m; i++) {
        const float *got = out + i * (c->n + C_PAD);
        const double *want = r->want + i * c->n, *allowed = r->allowed + i * c->n;
        for (int64_t j = 0; j < c->n; j++) {
            if (fabs(got[j] - want[j]) <= allowed[j]) continue;
            fail_msg("gemm %s [%d,%d,%d]: element [%d,%d] is %.9g, expected %.9g", level, (int)c->m,
                     (int)c->n, (int)c->k, (int)i, (int)j, (double)got[j], want[j]);
        }
        for (int64_t j = c->n; j < c->n + C_PAD; j++) assert_true(isnan(got[j]));
    }
}

/* Every level: right, and the same bits with 1, 2 and 3 threads. */
static void try_case(const gemm_case *c)
{
    const atto_dtype a_dtype = c->a_dtype ? c->a_dtype : ATTO_F32;
    const atto_dtype b_dtype = c->b_dtype ? c->b_dtype : ATTO_F32;
    matrix a = c->a_along ? make_matrix(c->m, c->k, stride_of(c->k, c->pad_a), a_dtype, true, 11)
                          : make_matrix(c->k, c->m, stride_of(c->m, c->pad_a), a_dtype, false, 12);
    matrix b = c->b_along ? make_matrix(c->n, c->k, stride_of(c->k, c->pad_b), b_dtype, true, 13)
                          : make_matrix(c->k, c->n, stride_of(c->n, c->pad_b), b_dtype, false, 14);
    const answer r = reference(c, &a, &b);
    for (int l = 0; l < COUNT_OF(levels); l++) {
        float *first = NULL;
        for (int32_t threads = 1; threads <= 3; threads++) {
            atto_device *dev = open_level(levels[l].name, threads);
            if (!dev) break;
            float *out = multiply(&levels[l], dev, c, &a, &b);
            if (!first) {
                check(levels[l].name, c, &r, out);
                first = out;
            } else {
                assert_memory_equal(out, first, (size_t)(c->m * (c->n + C_PAD)) * 4);
                free(out);
            }
            atto_device_close(dev);
        }
        free(first);
    }
    free(r.want);
    free(r.allowed);
    drop_matrix(&a);
    drop_matrix(&b);
}

/* Sizes around tiles, vectors, blocks and the limits of 8 and 128 rows. Large enough ones use every
 * thread. */
static const int64_t sizes[][3] = {
    { 0, 5, 7 },     { 5, 0, 7 },      { 5, 7, 0 },       { 9, 17, 0 },    { 1, 1, 1 },
    { 2, 2, 2 },     { 1, 50, 70 },    { 2, 47, 33 },     { 3, 96, 129 },  { 5, 49, 17 },
    { 8, 131, 40 },  { 9, 8, 16 },     { 14, 32, 16 },    { 15, 33, 17 },  { 13, 31, 15 },
    { 28, 64, 48 },  { 127, 3, 5 },    { 61, 127, 67 },   { 97, 151, 89 }, { 1, 700, 801 },
    { 7, 613, 400 }, { 67, 101, 771 }, { 113, 550, 263 }, { 128, 65, 9 },  { 129, 33, 385 },
    { 131, 7, 1 },   { 150, 613, 67 }, { 143, 130, 771 },
};

static void gemm_matches_a_triple_loop_in_every_storage_order(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        for (int order = 0; order < 4; order++) {
            const gemm_case c = { .m = sizes[i][0],
                                  .n = sizes[i][1],
                                  .k = sizes[i][2],
                                  .a_along = order & 1,
                                  .b_along = order & 2,
                                  .pad_a = 5,
                                  .pad_b = order };
            try_case(&c);
        }
    }
}

static void gemm_accumulates_and_calls_its_hooks(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        for (int how = 1; how < 8; how++) {
            const gemm_case c = { .m = sizes[i][0],
                                  .n = sizes[i][1],
                                  .k = sizes[i][2],
                                  .a_along = (how ^ i) & 1,
                                  .b_along = how & 2,
                                  .pad_a = 1,
                                  .accumulate = how % 3 == 1,
                                  .in_scratch = how % 3 == 2,
                                  .prologue = how >= 4 };
            try_case(&c);
        }
    }
}

static void gemm_widens_short_floats(void **state)
{
    (void)state;
    static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
    for (int i = 3; i < COUNT_OF(sizes); i += 3) {
        for (int pair = 1; pair < 9; pair++) {
            const gemm_case c = { .m = sizes[i][0],
                                  .n = sizes[i][1],
                                  .k = sizes[i][2],
                                  .a_along = pair & 1,
                                  .b_along = pair & 2,
                                  .pad_b = 1,
                                  .a_dtype = dtypes[pair % 3],
                                  .b_dtype = dtypes[pair / 3] };
            try_case(&c);
        }
    }
}

static void gemm_reads_repeated_rows(void **state)
{
    (void)state;
    for (int i = 4; i < COUNT_OF(sizes); i += 4) {
        for (int order = 0; order < 4; order++) {
            const gemm_case c = { .m = sizes[i][0],
                                  .n = sizes[i][1],
                                  .k = sizes[i][2],
                                  .a_along = order & 1,
                                  .b_along = order & 2,
                                  .pad_a = PAD_BROADCAST,
                                  .pad_b = PAD_BROADCAST };
            try_case(&c);
        }
    }
}

/* More than one block of rows, columns and K, and more than one part of C in scratch. */
static void gemm_crosses_every_block(void **state)
{
    (void)state;
    const gemm_case tall = { .m = 2053, .n = 5, .k = 19, .a_along = true },
                    wide = { .m = 131, .n = 1031, .k = 11, .b_along = true },
                    deep = { .m = 129, .n = 9, .k = 2003, .a_along = true, .b_along = true };
    const gemm_case parts = { .m = 137, .n = 2085, .k = 400, .in_scratch = true };
    try_case(&tall);
    try_case(&wide);
    try_case(&deep);
    try_case(&parts);
}

/* Infinities and NaN reach the elements that they belong to, and no others. */
static void gemm_keeps_special_values_in_their_row_and_column(void **state)
{
    (void)state;
    const gemm_case c = { .m = 15, .n = 35, .k = 21, .a_along = true };
    for (int l = 0; l < COUNT_OF(levels); l++) {
        atto_device *dev = open_level(levels[l].name, 1);
        if (!dev) continue;
        matrix a = make_matrix(c.m, c.k, c.k, ATTO_F32, true, 3);
        matrix b = make_matrix(c.k, c.n, c.n, ATTO_F32, false, 4);
        ((float *)a.memory)[4 * c.k + 20] = NAN;
        ((float *)b.memory)[20 * c.n + 34] = INFINITY;
        float *out = multiply(&levels[l], dev, &c, &a, &b);
        for (int64_t i = 0; i < c.m; i++) {
            for (int64_t j = 0; j < c.n; j++) {
                const float got = out[i * (c.n + C_PAD) + j];
                assert_true(i == 4 ? isnan(got) : j == 34 ? isinf(got) : isfinite(got));
            }
        }
        free(out);
        drop_matrix(&a);
        drop_matrix(&b);
        atto_device_close(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_matches_a_triple_loop_in_every_storage_order),
        cmocka_unit_test(gemm_accumulates_and_calls_its_hooks),
        cmocka_unit_test(gemm_widens_short_floats),
        cmocka_unit_test(gemm_reads_repeated_rows),
        cmocka_unit_test(gemm_crosses_every_block),
        cmocka_unit_test(gemm_keeps_special_values_in_their_row_and_column),
    };
    return test_main_host("gemm", tests, sizeof tests / sizeof tests[0]);
}
