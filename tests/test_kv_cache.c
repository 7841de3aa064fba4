/* SPDX-License-Identifier: MIT */
/* Key-value caches: what was appended comes back in order, in the cache's dtype, and nothing else. */
#include <stdlib.h>

#include "atto_test.h"

enum { BATCH = 2, HEADS = 3, CAPACITY = 7, DIMS = 5, VALUE_DIMS = 4 };

static atto_tape *tape;

static int open_tape(void **state)
{
    (void)state;
    return atto_tape_create(test_dev, &tape) == ATTO_OK ? 0 : -1;
}

static int close_tape(void **state)
{
    (void)state;
    atto_tape_free(tape);
    return 0;
}

static const atto_kv_cache_sizes sizes = {
    .batch = BATCH, .heads = HEADS, .capacity = CAPACITY, .dims = DIMS, .value_dims = VALUE_DIMS
};

/* Exact in bf16: below 256. */
static float number(int64_t image, int64_t position, int64_t dim)
{
    return (float)(image * 37 + position * 5 + dim);
}

/* Positions first .. first + count of all images, [BATCH, HEADS, count, dims]; with heads behind
 * positions in memory, as a projection leaves them. */
static atto_var new_part(int64_t first, int64_t count, int64_t dims)
{
    float *values = malloc((size_t)(BATCH * HEADS * count * dims + 1) * sizeof *values);
    float *at = values;
    for (int64_t b = 0; b < BATCH; b++)
        for (int64_t p = 0; p < count; p++)
            for (int64_t h = 0; h < HEADS; h++)
                for (int64_t d = 0; d < dims; d++) *at++ = number(b * HEADS + h, first + p, d);
    const atto_var v = atto_input(tape, ATTO_F32, atto_shape4(BATCH, count, HEADS, dims), values);
    free(values);
    return atto_transpose(tape, v, 1, 2);
}

static void expect_filled(atto_var v, atto_dtype dtype, int64_t length, int64_t dims)
{
    atto_tensor t;
    float *got = malloc((size_t)(BATCH * HEADS * length * dims + 1) * sizeof *got), *at = got;
    MUST(atto_var_tensor(tape, v, &t));
    assert_int_equal(t.dtype, dtype);
    assert_int_equal(t.shape[2], length);
    MUST(atto_var_read(tape, atto_cast(tape, v, ATTO_F32), got));
    for (int64_t i = 0; i < BATCH * HEADS; i++)
        for (int64_t p = 0; p < length; p++)
            for (int64_t d = 0; d < dims; d++) assert_true(*at++ == number(i, p, d));
    free(got);
}

static void kv_cache_gives_back_what_was_appended(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
    const int64_t counts[] = { 3, 1, 0, 2, 1 }; /* together CAPACITY */
    for (int i = 0; i < COUNT_OF(dtypes); i++) {
        atto_kv_cache *cache;
        int64_t length = 0;
        MUST(atto_kv_cache_create(test_dev, dtypes[i], &sizes, &cache));
        assert_int_equal(atto_kv_cache_length(cache), 0);
        for (int step = 0; step < COUNT_OF(counts); step++) {
            atto_var k, v;
            const atto_var new_k = new_part(length, counts[step], DIMS);
            const atto_var new_v = new_part(length, counts[step], VALUE_DIMS);
            atto_kv_cache_append(cache, tape, new_k, new_v, &k, &v);
            length += counts[step];
            assert_int_equal(atto_kv_cache_length(cache), length);
            expect_filled(k, dtypes[i], length, DIMS);
            expect_filled(v, dtypes[i], length, VALUE_DIMS);
            MUST(atto_tape_end(tape)); /* the cache outlives it */
        }
        atto_kv_cache_free(cache);
    }
}

static void kv_cache_is_truncated_and_filled_again(void **state)
{
    (void)state;
    atto_kv_cache *cache;
    atto_var k, v;
    MUST(atto_kv_cache_create(test_dev, ATTO_F32, &sizes, &cache));
    atto_kv_cache_append(cache, tape, new_part(0, 3, DIMS), new_part(0, 3, VALUE_DIMS), NULL, NULL);
    atto_kv_cache_append(cache, tape, new_part(9, 4, DIMS), new_part(9, 4, VALUE_DIMS), NULL, NULL);
    MUST(atto_tape_end(tape));
    EXPECT_FAIL(atto_kv_cache_truncate(cache, 8), ATTO_E_ARGUMENT, "length is 8|0 to 7");
    EXPECT_FAIL(atto_kv_cache_truncate(cache, -1), ATTO_E_ARGUMENT, "length is -1");
    MUST(atto_kv_cache_truncate(cache, 3)); /* what came after was a wrong guess */
    atto_kv_cache_append(cache, tape, new_part(3, 2, DIMS), new_part(3, 2, VALUE_DIMS), &k, &v);
    expect_filled(k, ATTO_F32, 5, DIMS);
    expect_filled(v, ATTO_F32, 5, VALUE_DIMS);
    MUST(atto_tape_end(tape));
    MUST(atto_kv_cache_truncate(cache, 0));
    assert_int_equal(atto_kv_cache_length(cache), 0);
    atto_kv_cache_free(cache);
}

/* After a refusal the cache is as it was. */
static void refuse(atto_kv_cache *cache, atto_var k, atto_var v, atto_status status,
                   const char *words)
{
    atto_var all_k, all_v;
    const int64_t before = atto_kv_cache_length(cache);
    atto_kv_cache_append(cache, tape, k, v, &all_k, &all_v);
    EXPECT_FAIL(atto_tape_end(tape), status, words);
    assert_int_equal(atto_kv_cache_length(cache), before);
}

static void kv_cache_refuses_what_does_not_fit(void **state)
{
    (void)state;
    atto_kv_cache *cache, *none;
    const int words[1] = { 0 };
    atto_kv_cache_sizes odd = sizes;
    EXPECT_FAIL(atto_kv_cache_create(test_dev, ATTO_I32, &sizes, &none), ATTO_E_DTYPE, "i32");
    EXPECT_FAIL(atto_kv_cache_create(test_dev, ATTO_F32, NULL, &none), ATTO_E_NULL, "sizes");
    EXPECT_FAIL(atto_kv_cache_create(NULL, ATTO_F32, &sizes, &none), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_kv_cache_create(test_dev, ATTO_F32, &sizes, NULL), ATTO_E_NULL, "out");
    odd.heads = -2;
    EXPECT_FAIL(atto_kv_cache_create(test_dev, ATTO_F32, &odd, &none), ATTO_E_SHAPE, "heads is -2");
    odd = sizes;
    odd.reserved[1] = 1;
    EXPECT_FAIL(atto_kv_cache_create(test_dev, ATTO_F32, &odd, &none), ATTO_E_ARGUMENT, "reserved");
    odd = sizes;
    odd.capacity = INT64_MAX / 2;
    EXPECT_FAIL(atto_kv_cache_create(test_dev, ATTO_F32, &odd, &none), ATTO_E_SHAPE,
                "kv_cache_create: ");
    assert_null(none);
    atto_kv_cache_free(NULL);

    MUST(atto_kv_cache_create(test_dev, ATTO_F32, &sizes, &cache));
    atto_kv_cache_append(cache, tape, new_part(0, 5, DIMS), new_part(0, 5, VALUE_DIMS), NULL, NULL);
    MUST(atto_tape_end(tape));
    refuse(cache, new_part(5, 3, DIMS), new_part(5, 3, VALUE_DIMS), ATTO_E_STATE,
           "3 positions more than the 5 filled exceed the capacity of 7");
    refuse(cache, new_part(5, 1, VALUE_DIMS), new_part(5, 1, VALUE_DIMS), ATTO_E_SHAPE,
           "k is [2,3,1,4], expected [2,3,1,5]");
    refuse(cache, new_part(5, 1, DIMS), new_part(5, 2, VALUE_DIMS), ATTO_E_SHAPE,
           "v is [2,3,2,4], expected [2,3,1,4]");
    refuse(cache, atto_input(tape, ATTO_I32, atto_shape1(1), words), new_part(5, 1, VALUE_DIMS),
           ATTO_E_DTYPE, "k is i32");
    refuse(cache, atto_input(tape, ATTO_F32, atto_shape1(1), words), new_part(5, 1, VALUE_DIMS),
           ATTO_E_SHAPE, "k is [1], expected [2,3,1,5]");
    refuse(NULL, new_part(5, 1, DIMS), new_part(5, 1, VALUE_DIMS), ATTO_E_NULL, "cache");
    atto_kv_cache_free(cache);
}

static void kv_cache_gives_its_memory_back(void **state)
{
    (void)state;
    atto_device_stats before, after;
    atto_kv_cache *cache;
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(atto_kv_cache_create(test_dev, ATTO_BF16, &sizes, &cache));
    atto_kv_cache_free(cache);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.bytes_live, before.bytes_live);
}

#define ON_A_TAPE(test) cmocka_unit_test_setup_teardown(test, open_tape, close_tape)

static const struct CMUnitTest tests[] = {
    ON_A_TAPE(kv_cache_gives_back_what_was_appended),
    ON_A_TAPE(kv_cache_is_truncated_and_filled_again),
    ON_A_TAPE(kv_cache_refuses_what_does_not_fit),
    ON_A_TAPE(kv_cache_gives_its_memory_back),
};
TEST_MAIN("kv_cache", tests)
