/* SPDX-License-Identifier: MIT */
/* Dropout: the mask bit for bit as the oracle draws it, on every backend, layout and thread count.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* Generators and dtypes that meet. On OpenCL, where every pair is a few kernels to build, Triton's
 * stream comes in f32 only; where the device plays another one, Philox in f16 only. */
static bool wanted(bool triton, atto_dtype dtype)
{
    if (!test_on_opencl()) return true;
    if (triton) return dtype == ATTO_F32;
    return !test_in_disguise() || dtype == ATTO_F16;
}

/* ---- one case ---- */

typedef struct dropout_case {
    atto_dtype dtype;
    atto_shape shape;
    test_layout in, out;
    float p;
    atto_rng rng;
    bool add, in_place;
} dropout_case;

static int64_t numel(const atto_shape *shape)
{
    int64_t n = 1;
    for (int32_t d = 0; d < shape->rank; d++) n *= shape->dim[d];
    return n;
}

/* Forward and backward are one map: out = keep * in / (1 - p) (+ out). */
static void check_direction(const dropout_case *c, bool backward)
{
    const int64_t n = numel(&c->shape);
    double *in = test_doubles(n), *old = test_doubles(n), *got = test_doubles(n);
    double *want = test_doubles(n), *allowed = test_doubles(n);
    test_tensor tin, tout;
    test_tensor_make(&tin, test_dev, c->dtype, c->shape, c->in);
    test_tensor_make(&tout, test_dev, c->dtype, c->shape, c->out);
    test_inputs(c->rng.seed + 3, atto_identity(), c->dtype, in, n);
    test_uniform(c->rng.seed + 4, -1.0, 1.0, c->dtype, old, n);
    test_tensor_put(&tin, in);
    const bool add = c->add && backward;
    if (add) test_tensor_put(&tout, old);
    test_tensor_held(&tin, in);

    const atto_tensor *target = c->in_place ? &tin.view : &tout.view;
    struct atto_dropout_args a = { .p = c->p, .rng = c->rng, .add_dx = add };
    if (backward) {
        a.dy = &tin.view, a.dx = target;
        MUST(atto_dropout_backward(test_dev, &a));
    } else {
        a.x = &tin.view, a.y = target;
        MUST(atto_dropout_forward(test_dev, &a));
    }

    test_tensor_get(c->in_place ? &tin : &tout, got);
    assert_true(c->in_place || test_tensor_untouched(&tin));
    const double *base = c->in_place ? in : old;
    for (int64_t i = 0; i < n; i++) {
        const bool keep = oracle_keep(c->rng, c->p, i);
        want[i] = keep ? in[i] * oracle_keep_scale(c->p) : 0.0;
        double terms = keep ? fabs(want[i]) : 0.0;
        if (add) want[i] += base[i];
        if (add) terms += fabs(base[i]);
        allowed[i] = atto_tol("dropout", c->dtype, add ? 2 : 1, terms);
        if (!keep && !add) allowed[i] = 0.0; /* a dropped element is exactly 0 */
    }
    const test_about about = { backward ? "dropout_grad" : "dropout", test_layout_name(c->in),
                               c->dtype, c->shape, c->rng.seed };
    expect_close(&about, got, want, allowed, n);
    test_tensor_drop(&tin);
    test_tensor_drop(&tout);
    free(in), free(old), free(got), free(want), free(allowed);
}

static void check_both(const dropout_case *c)
{
    check_direction(c, false);
    check_direction(c, true);
}

/* ---- values ---- */

static const int64_t sizes[] = { 1,   2,   3,   5,   31,  33,   63,   65,   127,
                                 129, 255, 257, 511, 512, 1023, 1025, 4099, 200003 };

static void dropout_matches_oracle_at_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!wanted(false, dtypes[d])) continue;
            check_both(&(dropout_case){ .dtype = dtypes[d],
                                        .shape = atto_shape1(sizes[i]),
                                        .in = i % 2 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                                        .out = i % 3 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                                        .p = 0.3f,
                                        .rng = { (uint64_t)i, 0, ATTO_RNG_PHILOX } });
        }
}

static const struct layout_row {
    int32_t rank;
    int64_t dims[ATTO_MAX_RANK];
    test_layout in, out;
} layout_rows[] = {
    { 0, { 0 }, LAYOUT_DENSE, LAYOUT_OFFSET },
    { 1, { 131 }, LAYOUT_STEP2, LAYOUT_DENSE },
    { 2, { 7, 33 }, LAYOUT_PITCHED, LAYOUT_PITCHED },
    { 2, { 7, 40 }, LAYOUT_PITCHED, LAYOUT_PITCHED },
    { 2, { 7, 40 }, LAYOUT_ALIGNED, LAYOUT_ALIGNED },
    { 2, { 7, 34 }, LAYOUT_ALIGNED, LAYOUT_ALIGNED }, /* rows that share a counter */
    { 1, { 1000 }, LAYOUT_OFFSET4, LAYOUT_DENSE },
    { 2, { 33, 7 }, LAYOUT_TRANSPOSED, LAYOUT_DENSE },
    { 2, { 33, 7 }, LAYOUT_TRANSPOSED, LAYOUT_TRANSPOSED }, /* dense in memory, not in index */
    { 2, { 5, 65 }, LAYOUT_BROADCAST, LAYOUT_DENSE },
    { 3, { 3, 5, 17 }, LAYOUT_SCATTERED, LAYOUT_STEP2 },
    { 4, { 2, 3, 7, 5 }, LAYOUT_CHANNELS_LAST, LAYOUT_CHANNELS_LAST },
    { 4, { 2, 8, 3, 4 }, LAYOUT_CHANNELS_LAST, LAYOUT_CHANNELS_LAST },
    { 4, { 2, 3, 5, 16 }, LAYOUT_ALIGNED, LAYOUT_ALIGNED },
    { 5, { 2, 3, 2, 3, 5 }, LAYOUT_SCATTERED, LAYOUT_SCATTERED },
    { 8, { 2, 2, 2, 2, 2, 2, 2, 3 }, LAYOUT_TRANSPOSED, LAYOUT_SCATTERED },
    { 2, { 0, 3 }, LAYOUT_DENSE, LAYOUT_DENSE },
};

/* The mask belongs to the logical index: a transposed view draws as its dense copy would. */
static void dropout_mask_does_not_depend_on_the_layout(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(layout_rows); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++)
            for (int kind = 0; kind < 2; kind++) {
                if (!wanted(kind, dtypes[d])) continue;
                check_both(&(dropout_case){
                    .dtype = dtypes[d],
                    .shape = atto_shape_of(layout_rows[i].rank, layout_rows[i].dims),
                    .in = layout_rows[i].in,
                    .out = layout_rows[i].out,
                    .p = 0.5f,
                    .add = d == 1,
                    .rng = { 42, 7, kind ? ATTO_RNG_TRITON : ATTO_RNG_PHILOX } });
            }
}

static void dropout_works_in_place(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_DENSE, LAYOUT_OFFSET, LAYOUT_TRANSPOSED };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) {
            if (!wanted(false, dtypes[d])) continue;
            check_both(&(dropout_case){ .dtype = dtypes[d],
                                        .shape = atto_shape2(9, 115),
                                        .in = layouts[i],
                                        .out = layouts[i],
                                        .in_place = true,
                                        .p = 0.4f,
                                        .rng = { 8, 8, ATTO_RNG_PHILOX } });
        }
}

static void dropout_backward_accumulates(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT_OF(dtypes); d++) {
        if (!wanted(false, dtypes[d])) continue;
        check_direction(&(dropout_case){ .dtype = dtypes[d],
                                         .shape = atto_shape1(1037),
                                         .p = 0.3f,
                                         .add = true,
                                         .rng = { 5, 0, ATTO_RNG_PHILOX } },
                        true);
    }
}

/* p = 0 keeps all, p = 1 drops all, also NaN and infinity; the smallest and largest between. */
static void dropout_takes_p_from_zero_to_one(void **state)
{
    (void)state;
    const float ps[] = { 0.0f, 1e-9f, 0x1p-24f, 0.15f, 0.5f, 0.999999f, 1.0f - 0x1p-24f, 1.0f };
    for (int i = 0; i < COUNT_OF(ps); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++)
            for (int kind = 0; kind < 2; kind++) {
                if (!wanted(kind, dtypes[d])) continue;
                check_both(
                    &(dropout_case){ .dtype = dtypes[d],
                                     .shape = atto_shape1(515),
                                     .p = ps[i],
                                     .rng = { 3, 1, kind ? ATTO_RNG_TRITON : ATTO_RNG_PHILOX } });
            }
}

/* ---- the mask, bit for bit ---- */

/* keep[i] as the device draws it: what is left of n ones. */
static void draw(atto_device *dev, float p, atto_rng rng, int64_t n, double *keep)
{
    test_tensor x, y;
    test_tensor_make(&x, dev, ATTO_F32, atto_shape1(n), LAYOUT_DENSE);
    test_tensor_make(&y, dev, ATTO_F32, atto_shape1(n), LAYOUT_DENSE);
    for (int64_t i = 0; i < n; i++) keep[i] = 1.0;
    test_tensor_put(&x, keep);
    const struct atto_dropout_args a = { .x = &x.view, .y = &y.view, .p = p, .rng = rng };
    MUST(atto_dropout_forward(dev, &a));
    test_tensor_get(&y, keep);
    for (int64_t i = 0; i < n; i++) keep[i] = keep[i] != 0.0;
    test_tensor_drop(&x);
    test_tensor_drop(&y);
}

static void expect_mask(atto_device *dev, float p, atto_rng rng, int64_t n)
{
    double *keep = test_doubles(n);
    draw(dev, p, rng, n, keep);
    for (int64_t i = 0; i < n; i++)
        if ((keep[i] != 0.0) != oracle_keep(rng, p, i))
            fail_msg("%s: element %" PRId64 " of %" PRId64 " is %s; p %g, seed %" PRIu64
                     ", offset %" PRIu64 ", kind %d",
                     test_backend(), i, n, keep[i] != 0.0 ? "kept" : "dropped", p, rng.seed,
                     rng.offset, (int)rng.kind);
    free(keep);
}

/* J2, with counters and seeds beyond 32 bits: both words of each must take part. */
static void dropout_mask_matches_oracle_bit_for_bit(void **state)
{
    (void)state;
    const uint64_t seeds[] = {
        0, 123, 65535, UINT64_C(0x100000001), UINT64_C(0xfedcba9876543210), UINT64_MAX
    };
    const uint64_t offsets[] = {
        0, 1, 3, UINT32_MAX - 100, UINT64_C(1) << 32, UINT64_C(0x123456789abcdef0), UINT64_MAX - 100
    };
    const float ps[] = { 0.1f, 0.3f, 0.5f, 0.75f };
    for (int s = 0; s < COUNT_OF(seeds); s++)
        for (int o = 0; o < COUNT_OF(offsets); o++)
            for (int kind = 0; kind < 2; kind++)
                expect_mask(
                    test_dev, ps[(s + o) % 4],
                    (atto_rng){ seeds[s], offsets[o], kind ? ATTO_RNG_TRITON : ATTO_RNG_PHILOX },
                    1021);
}

/* The threshold is exact: with p = k / 2^24 a word whose upper bits are k is kept; with half a step
 * more it is dropped. Floats hold both while k is below 2^23. */
static void dropout_decides_exactly_at_the_threshold(void **state)
{
    (void)state;
    const uint32_t counter[4] = { 0 };
    const atto_rng rng = { 123, 0, ATTO_RNG_PHILOX };
    uint32_t words[4];
    oracle_philox(counter, rng.seed, words);
    for (int i = 0; i < 4; i++) {
        const float k = (float)(words[i] >> 8);
        if (k >= 0x1p23f) continue;
        const float hit = k * 0x1p-24f, miss = (k + 0.5f) * 0x1p-24f;
        assert_true(oracle_keep(rng, hit, i) && !oracle_keep(rng, miss, i));
        expect_mask(test_dev, hit, rng, 67);
        expect_mask(test_dev, miss, rng, 67);
    }
}

/* J2: threads and work-group sizes do not move the mask. */
static void dropout_mask_does_not_depend_on_threads_or_work_groups(void **state)
{
    (void)state;
    const atto_device_options machines[] = {
        { .num_threads = 1 },
        { .num_threads = 2 },
        { .num_threads = 3 },
        { .max_work_group = 32 },
        { .max_work_group = 128, .max_local_bytes = 16384 },
        { .index_bits = 64 },
    };
    for (int i = 0; i < COUNT_OF(machines); i++) {
        atto_device *dev;
        MUST(atto_device_open(test_device_name(), &machines[i], &dev));
        expect_mask(dev, 0.3f, (atto_rng){ 123, 0, ATTO_RNG_PHILOX }, 100003);
        expect_mask(dev, 0.3f, (atto_rng){ 123, 0, ATTO_RNG_TRITON }, 10007);
        atto_device_close(dev);
    }
}

/* Streams that follow each other by atto_rng_reserve do not overlap: together they are one long
 * draw when the parts are multiples of four. */
static void dropout_streams_continue_where_reserve_says(void **state)
{
    (void)state;
    enum { PART = 400, PARTS = 3 };
    double whole[PART * PARTS], part[PART];
    for (int kind = 0; kind < 2; kind++) {
        atto_rng rng = { 99, 11, kind ? ATTO_RNG_TRITON : ATTO_RNG_PHILOX };
        draw(test_dev, 0.5f, rng, PART * PARTS, whole);
        for (int i = 0; i < PARTS; i++) {
            draw(test_dev, 0.5f, atto_rng_reserve(&rng, PART), PART, part);
            assert_memory_equal(part, whole + i * PART, sizeof part);
        }
    }
    atto_rng rng = { 0, 0, ATTO_RNG_PHILOX };
    const int64_t counts[] = { 0, 1, 4, 5 };
    const uint64_t moved[] = { 0, 1, 2, 4 };
    for (int i = 0; i < 4; i++) {
        atto_rng_reserve(&rng, counts[i]);
        assert_int_equal(rng.offset, moved[i]);
    }
}

/* Backward of activations with fused dropout draws the same mask as dropout alone. */
static void dropout_mask_is_that_of_fused_dropout(void **state)
{
    (void)state;
    enum { N = 1037 };
    const atto_rng rng = { 31, 17, ATTO_RNG_PHILOX };
    double *keep = test_doubles(N), *dx = test_doubles(N);
    draw(test_dev, 0.6f, rng, N, keep);
    test_tensor x, dy, tdx;
    test_tensor_make(&x, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
    test_tensor_make(&dy, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
    test_tensor_make(&tdx, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
    for (int i = 0; i < N; i++) dx[i] = 1.0;
    test_tensor_put(&x, dx);
    test_tensor_put(&dy, dx);
    const struct atto_act_args a = { .x = &x.view,
                                     .dy = &dy.view,
                                     .dx = &tdx.view,
                                     .act = atto_relu(),
                                     .dropout = 0.6f,
                                     .rng = rng };
    MUST(atto_act_backward(test_dev, &a));
    test_tensor_get(&tdx, dx);
    for (int i = 0; i < N; i++) assert_true((dx[i] != 0.0) == (keep[i] != 0.0));
    test_tensor_drop(&x);
    test_tensor_drop(&dy);
    test_tensor_drop(&tdx);
    free(keep), free(dx);
}

/* ---- statistics (J4) ---- */

static void dropout_drops_the_share_it_should(void **state)
{
    (void)state;
    enum { N = 1000000 };
    double *y = test_doubles(N);
    for (int kind = 0; kind < 2; kind++) {
        const atto_rng rng = { 2024, 0, kind ? ATTO_RNG_TRITON : ATTO_RNG_PHILOX };
        test_tensor tx, ty;
        test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
        test_tensor_make(&ty, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_DENSE);
        for (int64_t i = 0; i < N; i++) y[i] = 1.0;
        test_tensor_put(&tx, y);
        const struct atto_dropout_args a = { .x = &tx.view, .y = &ty.view, .p = 0.3f, .rng = rng };
        MUST(atto_dropout_forward(test_dev, &a));
        test_tensor_get(&ty, y);
        int64_t dropped = 0;
        for (int64_t i = 0; i < N; i++) {
            dropped += y[i] == 0.0;
            assert_true(y[i] == 0.0 || fabs(y[i] - 1.0 / 0.7) < 1e-6);
        }
        /* three standard deviations of a share: 3 sqrt(.3 * .7 / 1e6) = .0014 */
        assert_true(fabs((double)dropped / N - 0.3) < 0.0014);
        test_tensor_drop(&tx);
        test_tensor_drop(&ty);
    }
    free(y);
}

static void dropout_repeats_bit_for_bit(void **state)
{
    (void)state;
    enum { N = 20011 };
    double *first = test_doubles(N), *again = test_doubles(N);
    const atto_rng rng = { 4, 4, ATTO_RNG_PHILOX };
    draw(test_dev, 0.3f, rng, N, first);
    for (int run = 1; run < 50; run++) {
        draw(test_dev, 0.3f, rng, N, again);
        assert_memory_equal(first, again, N * sizeof *first);
    }
    free(first), free(again);
}

/* ---- arguments ---- */

static void dropout_refuses_illegal_numbers(void **state)
{
    (void)state;
    const struct {
        const char *words;
        float p;
        int kind;
    } rows[] = { { "dropout|-0.1", -0.1f, 0 }, { "dropout|1.1", 1.1f, 0 },
                 { "dropout|nan", NAN, 0 },    { "dropout|inf", INFINITY, 0 },
                 { "random", 0.5f, 2 },        { "random", 0.5f, -1 } };
    test_tensor t[2];
    for (int i = 0; i < 2; i++)
        test_tensor_make(&t[i], test_dev, ATTO_F32, atto_shape1(9), LAYOUT_DENSE);
    for (int i = 0; i < COUNT_OF(rows); i++) {
        struct atto_dropout_args a = {
            .x = &t[0].view, .y = &t[1].view, .dy = &t[0].view, .dx = &t[1].view, .p = rows[i].p
        };
        a.rng.kind = (atto_rng_kind)rows[i].kind;
        EXPECT_FAIL(atto_dropout_forward(test_dev, &a), ATTO_E_ARGUMENT, rows[i].words);
        EXPECT_FAIL(atto_dropout_backward(test_dev, &a), ATTO_E_ARGUMENT, rows[i].words);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(test_tensor_untouched(&t[i]));
        test_tensor_drop(&t[i]);
    }
}

static void dropout_never_fell_back(void **state)
{
    (void)state;
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_int_equal(stats.fallbacks, 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(dropout_matches_oracle_at_any_size),
    cmocka_unit_test(dropout_mask_does_not_depend_on_the_layout),
    cmocka_unit_test(dropout_works_in_place),
    cmocka_unit_test(dropout_backward_accumulates),
    cmocka_unit_test(dropout_takes_p_from_zero_to_one),
    cmocka_unit_test(dropout_mask_matches_oracle_bit_for_bit),
    cmocka_unit_test(dropout_decides_exactly_at_the_threshold),
    cmocka_unit_test(dropout_mask_does_not_depend_on_threads_or_work_groups),
    cmocka_unit_test(dropout_streams_continue_where_reserve_says),
    cmocka_unit_test(dropout_mask_is_that_of_fused_dropout),
    cmocka_unit_test(dropout_drops_the_share_it_should),
    cmocka_unit_test(dropout_repeats_bit_for_bit),
    cmocka_unit_test(dropout_refuses_illegal_numbers),
    cmocka_unit_test(dropout_never_fell_back),
};
TEST_MAIN("dropout", tests)
