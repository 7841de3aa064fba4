/* SPDX-License-Identifier: MIT */
/* The order of an epoch, and MNIST's files and batches. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "atto_test.h"
#include "data.h"
#include "shuffle.h"

/* ---- shuffle ---- */

/* Numbers of the reference code of splitmix64 for this seed. */
static void shuffle_random_is_splitmix64(void **state)
{
    (void)state;
    const uint64_t wanted[] = { 6457827717110365317u, 3203168211198807973u, 9817491932198370423u };
    uint64_t seed = 1234567;
    for (int i = 0; i < 3; i++) assert_true(shuffle_random(&seed) == wanted[i]);
}

/* From a second implementation, in Python, which draws the epoch's start one by one. */
static void shuffle_gives_the_same_order_on_every_machine(void **state)
{
    (void)state;
    static const struct {
        int64_t epoch, order[10];
    } wanted[] = {
        { 0, { 4, 6, 7, 0, 9, 5, 1, 2, 3, 8 } },
        { 3, { 3, 4, 7, 8, 2, 0, 5, 6, 9, 1 } },
    };
    int64_t order[10];
    for (int i = 0; i < COUNT_OF(wanted); i++) {
        shuffle(order, 10, 42, wanted[i].epoch);
        assert_memory_equal(order, wanted[i].order, sizeof order);
    }
}

static void shuffle_is_a_permutation(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 0, 1, 2, 3, 7, 1000, 10007 };
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        const int64_t n = sizes[i];
        int64_t *order = calloc((size_t)n + 1, sizeof *order);
        char *seen = calloc((size_t)n + 1, 1);
        order[n] = -77; /* canary */
        shuffle(order, n, 5, i);
        for (int64_t k = 0; k < n; k++) {
            assert_true(order[k] >= 0 && order[k] < n && !seen[order[k]]);
            seen[order[k]] = 1;
        }
        assert_int_equal(order[n], -77);
        free(order), free(seen);
    }
}

/* Places where two orders of 1000 agree: about 1 for independent orders, hence fewer than 20. */
static int agreements(uint64_t seed_a, int64_t epoch_a, uint64_t seed_b, int64_t epoch_b)
{
    static int64_t a[1000], b[1000];
    int same = 0;
    shuffle(a, 1000, seed_a, epoch_a);
    shuffle(b, 1000, seed_b, epoch_b);
    for (int i = 0; i < 1000; i++) same += a[i] == b[i];
    return same;
}

static void shuffle_depends_on_seed_and_epoch_alone(void **state)
{
    (void)state;
    assert_int_equal(agreements(1, 2, 1, 2), 1000);
    assert_true(agreements(1, 1, 1, 2) < 20);
    assert_true(agreements(1, 1, 2, 1) < 20);
    assert_true(agreements(1, 2, 2, 1) < 20);
    assert_true(agreements(0, 0, UINT64_MAX, 0) < 20);
}

/* 6000 orders of 3 items: each of the 6 about 1000 times, deviation sqrt(6000 * 1/6 * 5/6) = 29. */
static void shuffle_favours_no_order(void **state)
{
    (void)state;
    int times[27] = { 0 };
    for (int epoch = 0; epoch < 6000; epoch++) {
        int64_t o[3];
        shuffle(o, 3, 9, epoch);
        times[o[0] * 9 + o[1] * 3 + o[2]]++;
    }
    for (int i = 0; i < 27; i++)
        if (times[i] != 0) assert_in_range(times[i], 1000 - 6 * 29, 1000 + 6 * 29);
}

/* ---- the data set of the repository ---- */

static void mnist_load_reads_the_files_of_the_repository(void **state)
{
    (void)state;
    static const unsigned char train[] = { 5, 0, 4, 1, 9 }, test[] = { 7, 2, 1, 0, 4 };
    mnist_data data;
    const atto_status status = mnist_load(MNIST_DATA_DIR, &data);
    if (status != ATTO_OK) fail_msg("%s", failure_message());
    assert_int_equal(data.train.count, 10000);
    assert_int_equal(data.test.count, 10000);
    assert_memory_equal(data.train.labels.data, train, sizeof train);
    assert_memory_equal(data.test.labels.data, test, sizeof test);

    /* Published mean and deviation are those of 60,000 images; 10,000 come within 0.02 of them. */
    double sum = 0, squares = 0;
    float *image = calloc(MNIST_PIXELS, sizeof *image);
    for (int64_t i = 0; i < data.train.count; i++) {
        int32_t label;
        assert_int_equal(mnist_batch(&data.train, NULL, i, 1, image, &label), 1);
        for (int k = 0; k < MNIST_PIXELS; k++) {
            sum += (double)image[k];
            squares += (double)image[k] * (double)image[k];
        }
    }
    const double n = 10000.0 * MNIST_PIXELS;
    assert_true(fabs(sum / n) < 0.02);
    assert_true(fabs(squares / n - 1) < 0.02);
    free(image);
    mnist_free(&data);
    mnist_free(&data);
}

/* ---- batches ---- */

/* Image i has every pixel 50 i, and label i. */
static void small_set(mnist_set *set, unsigned char *pixels, unsigned char *labels)
{
    for (int i = 0; i < 5; i++) {
        memset(pixels + i * MNIST_PIXELS, 50 * i, MNIST_PIXELS);
        labels[i] = (unsigned char)i;
    }
    *set = (mnist_set){ 5, { 3, { 5, 28, 28, 1 }, pixels }, { 1, { 5, 1, 1, 1 }, labels } };
}

/* Five roundings of 2^-24: of p / 255 (at most 1) and 0.1307 before the division by 0.3081, of the
 * difference, of 0.3081 and of the quotient relative to the result. */
static double allowed(double result)
{
    return ldexp(1.1307 / 0.3081 + 3 * fabs(result), -24);
}

static void mnist_batch_follows_the_order_and_ends_with_a_partial_batch(void **state)
{
    (void)state;
    static unsigned char pixels[5 * MNIST_PIXELS], labels[5];
    static float images[3 * MNIST_PIXELS];
    const int64_t order[] = { 3, 1, 4, 0, 2 };
    mnist_set set;
    small_set(&set, pixels, labels);
    for (int64_t first = 0; first <= 6; first += 3) {
        int32_t got[3] = { -1, -1, -1 };
        const int64_t n = mnist_batch(&set, order, first, 3, images, got);
        assert_int_equal(n, first == 0 ? 3 : first == 3 ? 2 : 0);
        for (int64_t i = 0; i < 3; i++) assert_int_equal(got[i], i < n ? order[first + i] : -1);
        for (int64_t i = 0; i < n * MNIST_PIXELS; i++) {
            const double p = 50.0 * (double)order[first + i / MNIST_PIXELS];
            const double wanted = (p / 255 - 0.1307) / 0.3081;
            assert_true(fabs((double)images[i] - wanted) <= allowed(wanted));
        }
    }
    int32_t got[3];
    assert_int_equal(mnist_batch(&set, NULL, 2, 2, images, got), 2);
    assert_int_equal(got[0], 2);
    assert_int_equal(got[1], 3);
}

/* ---- malformed sets ---- */

#define FOLDER "test_mnist_data"

/* An IDX file of rank 1 (rows = 0) or 3, filled with one value. */
static void put(const char *name, int64_t count, int rows, int columns, int value)
{
    char path[128];
    snprintf(path, sizeof path, FOLDER "/%s", name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    const int sizes[] = { (int)count, rows, columns };
    const int rank = rows > 0 ? 3 : 1;
    fprintf(file, "%c%c%c%c", 0, 0, 8, rank);
    for (int d = 0; d < rank; d++) fprintf(file, "%c%c%c%c", 0, 0, sizes[d] >> 8, sizes[d] & 255);
    const int64_t each = rows > 0 ? rows * columns : 1;
    for (int64_t i = 0; i < count * each; i++) fputc(value, file);
    fclose(file);
}

static const char *const names[] = { "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
                                     "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte" };

/* A right set of plain files: 2 training and 3 test images. */
static void put_all(void)
{
    put(names[0], 2, 28, 28, 255);
    put(names[1], 2, 0, 0, 9);
    put(names[2], 3, 28, 28, 0);
    put(names[3], 3, 0, 0, 0);
}

static void remove_file(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, FOLDER "/%s", name);
    remove(path);
}

static void expect(atto_status wanted, const char *word)
{
    mnist_data data;
    const atto_status status = mnist_load(FOLDER, &data);
    if (status != wanted || (wanted != ATTO_OK && strstr(failure_message(), word) == NULL))
        fail_msg("got %s: %s; expected %s", atto_status_name(status), failure_message(), word);
    assert_true(status == ATTO_OK || data.train.images.data == NULL);
    mnist_free(&data);
}

static void mnist_load_refuses_sets_that_do_not_fit(void **state)
{
    (void)state;
    mkdir(FOLDER, 0700);
    put_all();
    expect(ATTO_OK, "");
    put(names[1], 3, 0, 0, 9);
    expect(ATTO_E_FORMAT, "3 labels, expected 2, one per image of");
    put(names[1], 2, 0, 0, 10);
    expect(ATTO_E_FORMAT, "label 0 is 10, expected 0 to 9");
    put_all();
    put(names[2], 3, 28, 27, 0);
    expect(ATTO_E_FORMAT, "images of 28 x 27 pixels, expected 28 x 28");
    put(names[2], 0, 28, 28, 0);
    expect(ATTO_E_FORMAT, "no images");
    put(names[2], 3, 0, 0, 0);
    expect(ATTO_E_FORMAT, "1 dimensions, expected 3");
    remove_file(names[2]);
    expect(ATTO_E_IO, "no t10k-images-idx3-ubyte.gz there");
    for (int i = 0; i < COUNT_OF(names); i++) remove_file(names[i]);
    expect(ATTO_E_IO, FOLDER ": no train-images");
    rmdir(FOLDER);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(shuffle_random_is_splitmix64),
    cmocka_unit_test(shuffle_gives_the_same_order_on_every_machine),
    cmocka_unit_test(shuffle_is_a_permutation),
    cmocka_unit_test(shuffle_depends_on_seed_and_epoch_alone),
    cmocka_unit_test(shuffle_favours_no_order),
    cmocka_unit_test(mnist_load_reads_the_files_of_the_repository),
    cmocka_unit_test(mnist_batch_follows_the_order_and_ends_with_a_partial_batch),
    cmocka_unit_test(mnist_load_refuses_sets_that_do_not_fit),
};
TEST_MAIN_HOST("example.mnist_data", tests)
