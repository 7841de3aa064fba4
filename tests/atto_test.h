/* SPDX-License-Identifier: MIT */
/* What every test shares: the device under test, tensors with canaries, seeded data, layouts,
 * tolerances and a comparison that says all there is to say. */
#ifndef ATTO_TEST_H
#define ATTO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <attocl.h>

#include "oracle.h"

#ifdef _WIN32
#include "win32.h"
#endif

/* ---- the device under test ---- */

/* Opened by test_main from ATTO_TEST_DEVICE: "cpu" (also when unset) or "opencl". */
extern atto_device *test_dev;

/* What reports call it: ATTO_TEST_NAME ("cpu-base", "cpu", "opencl"), else the device. */
const char *test_backend(void);

/* ATTO_TEST_DEVICE, to open the device under test once more. */
const char *test_device_name(void);

bool test_on_opencl(void);

/* The device plays another one (ctest labels wide and small), or ATTO_TEST_PART is set, as the gate
 * pocl does for want of time: a part of the cases is enough. */
bool test_in_disguise(void);

/* Runs the tests on the device under test. Returns 77, which ctest shows as skipped, when OpenCL is
 * wanted and no OpenCL device is there; the reason is printed. */
int test_main(const char *family, const struct CMUnitTest *tests, size_t count);
#define TEST_MAIN(family, tests)                                         \
    int main(void)                                                       \
    {                                                                    \
        return test_main(family, tests, sizeof tests / sizeof tests[0]); \
    }

/* The same for tests that need no device; opens none. */
int test_main_host(const char *family, const struct CMUnitTest *tests, size_t count);
#define TEST_MAIN_HOST(family, tests)                                         \
    int main(void)                                                            \
    {                                                                         \
        return test_main_host(family, tests, sizeof tests / sizeof tests[0]); \
    }

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* A device whose kernels of one family cannot be built, so that the CPU has to do its work. */
typedef struct test_broken {
    atto_device *dev;
    char folder[32], path[96];
} test_broken;

void test_broken_open(test_broken *b, const char *family);

/* Closes it; so many calls have fallen back. */
void test_broken_close(test_broken *b, uint64_t fallbacks);

/* ---- statuses ---- */

/* The call succeeds; its message is shown when it does not. */
#define MUST(call) test_must((call), #call, __FILE__, __LINE__)
void test_must(atto_status status, const char *call, const char *file, int line);

/* The call fails with this status, and its message holds each of the words (separated by '|'). */
#define EXPECT_FAIL(call, status, words) \
    test_expect_fail((call), status, words, #call, __FILE__, __LINE__)
void test_expect_fail(atto_status got, atto_status wanted, const char *words, const char *call,
                      const char *file, int line);

/* ---- layouts ---- */

/* X(NAME, "text"): ways to place a tensor in its buffer. */
/* clang-format off */
#define TEST_LAYOUT_TABLE(X)                                                           \
    X(DENSE,         "dense")         /* row-major, at the start of the view's room */ \
    X(OFFSET,        "offset 1")      /* dense, one element later: misaligned       */ \
    X(OFFSET4,       "offset 4")      /* dense; 16-byte aligned for f32 only        */ \
    X(PITCHED,       "pitched")       /* rows three elements longer than needed     */ \
    X(ALIGNED,       "aligned rows")  /* pitched; every row starts at 16 bytes      */ \
    X(TRANSPOSED,    "transposed")    /* the last dimension has the largest stride  */ \
    X(STEP2,         "step 2")        /* every other element                        */ \
    X(SCATTERED,     "scattered")     /* gaps after every dimension: nothing merges */ \
    X(CHANNELS_LAST, "channels_last") /* dimension 1 has stride 1                   */ \
    X(BROADCAST,     "broadcast")     /* dimension 0 has stride 0: inputs only      */
/* clang-format on */
typedef enum test_layout {
#define X(NAME, text) LAYOUT_##NAME,
    TEST_LAYOUT_TABLE(X)
#undef X
        LAYOUT_COUNT
} test_layout;
const char *test_layout_name(test_layout layout);

/* ---- tensors with canaries ---- */

/* A view inside a larger buffer. Every element of the buffer that the view does not reach is a
 * canary; the view's own elements start as NaN (integers: a fixed odd number). */
typedef struct test_tensor {
    atto_tensor view;
    atto_tensor whole; /* the buffer, dense, canaries included; no buffer when the view is empty */
    unsigned char *host; /* what was last written to it */
    int64_t numel;
    int64_t *at; /* element of the buffer for each logical index */
} test_tensor;

void test_tensor_make(test_tensor *t, atto_device *dev, atto_dtype dtype, atto_shape shape,
                      test_layout layout);
void test_tensor_drop(test_tensor *t);

/* Writes values (numel of them, in logical order, rounded to the dtype) and refreshes canaries. */
void test_tensor_put(test_tensor *t, const double *values);

/* What put wrote, as it is stored, in logical order: rounded, and repeated where the view repeats.
 */
void test_tensor_held(const test_tensor *t, double *values);

/* Reads the view's values in logical order; fails if a canary was touched. */
void test_tensor_get(const test_tensor *t, double *values);

/* The stored bits in logical order; fails if a canary was touched. */
void test_tensor_bits(const test_tensor *t, uint64_t *bits);

/* Every byte is as last written. */
bool test_tensor_untouched(const test_tensor *t);

/* ---- data ---- */

/* Next number of a stream (splitmix64); *state is the seed at first. */
uint64_t test_random(uint64_t *state);

/* n values from [lo, hi), exact in the dtype. */
void test_uniform(uint64_t seed, double lo, double hi, atto_dtype dtype, double *out, int64_t n);

/* n inputs for an activation, exact in the dtype: its kinks, their neighbours, zeros, subnormals,
 * huge values, infinities and NaN first (as far as n reaches, starting anywhere in that list), then
 * a mix of magnitudes. */
void test_inputs(uint64_t seed, atto_activation act, atto_dtype dtype, double *out, int64_t n);

/* Every activation with PyTorch's numbers, then some with others; returns how many. */
#define TEST_ACTIVATIONS_MAX 64
int test_activations(atto_activation out[TEST_ACTIVATIONS_MAX]);

/* n zeroed doubles; the test fails without memory. Release with free. */
double *test_doubles(int64_t n);

/* ---- comparison ---- */

/* How far an f32 evaluation may be from the true result: (k + n - 1) roundings of 2^-24 of scale.
 *
 *   op     row of the table in tolerance.c, which derives k
 *   dtype  of the output
 *   n      terms summed, 1 for elementwise
 *   scale  sum of the magnitudes of those terms, at least |result|
 *
 * Half an ulp of the stored dtype comes on top when expect_close rounds both ends of the allowed
 * interval to that dtype, so ties, subnormals and overflow are judged exactly. */
double atto_tol(const char *op, atto_dtype dtype, int64_t n, double scale);

/* What a comparison is about. */
typedef struct test_about {
    const char *op; /* also the key of the worst-case report */
    const char *layout;
    atto_dtype dtype;
    atto_shape shape;
    uint64_t seed;
} test_about;

/* Error of one element as a share of what is allowed; > 1 is bad. Half an ulp of the dtype counts
 * as allowed in the share, but the verdict is exact. */
double test_share(atto_dtype dtype, double got, double want, double allowed);

/* got[i] lies in [want[i] - allowed[i], want[i] + allowed[i], both rounded to the dtype]. NaN
 * equals NaN only; an infinity in want equals itself only. Fails with a full report at the first
 * bad index. */
void expect_close(const test_about *about, const double *got, const double *want,
                  const double *allowed, int64_t n);

/* The tensor, if it was made, against want, to which old is added unless it is NULL: sums of n
 * terms of those sizes; terms NULL: those of want. layout and seed are for the message. */
void test_judge(const test_tensor *t, const char *op, test_layout layout, uint64_t seed, int64_t n,
                const double *want, const double *terms, const double *old);

/* got[i] == want[i] (NaN equals NaN; -0 equals 0). */
void expect_equal(const test_about *about, const double *got, const double *want, int64_t n);

#endif
