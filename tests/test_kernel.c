/* SPDX-License-Identifier: MIT */
/* Kernels of the user's: the same small programs as OpenCL C and as C functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- kernels ---- */

/* y = a * x + b, in f32. */
static const char axpb_text[] =
    "__kernel void axpb(__global const float *x, ulong x_at, __global float *y, ulong y_at,\n"
    "                   float a, int b, ulong n)\n"
    "{\n"
    "    const size_t i = get_global_id(0);\n"
    "    if (i < n) y[y_at + i] = a * x[x_at + i] + b;\n"
    "}\n";

static void axpb(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    const float *x = args[0].data, a = args[2].f32;
    float *y = args[1].data;
    for (int64_t i = begin; i < end; i++) y[i] = a * x[i] + (float)args[3].i32;
}

/* t += 1, in i32. */
static const char count_text[] =
    "__kernel void count(__global int *t, ulong t_at, ulong n)\n"
    "{ const size_t i = get_global_id(0); if (i < n) t[t_at + i] += 1; }";

static void count(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    int32_t *t = args[0].data;
    for (int64_t i = begin; i < end; i++) t[i] += 1;
}

/* One number of each type, stored as i64; the float by its bits. */
static const char numbers_text[] =
    "__kernel void numbers(int a, uint b, long c, ulong d, float e, __global long *t, ulong t_at,\n"
    "                      ulong n)\n"
    "{\n"
    "    if (get_global_id(0) > 0) return;\n"
    "    t[t_at] = a; t[t_at + 1] = b; t[t_at + 2] = c; t[t_at + 3] = d;\n"
    "    t[t_at + 4] = as_uint(e); t[t_at + 5] = n;\n"
    "}";

static void numbers(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    int64_t *t = args[5].data;
    t[0] = args[0].i32;
    t[1] = args[1].u32;
    t[2] = args[2].i64;
    t[3] = (int64_t)args[3].u64;
    memcpy(&t[4], &args[4].f32, sizeof args[4].f32);
    t[5] = end - begin;
}

/* sums[row] of a matrix with any strides, in f32. */
static const char sum_rows_text[] =
    "__kernel void sum_rows(__global const float *x, ulong x_at, long columns, long row_stride,\n"
    "                       long column_stride, __global float *sums, ulong sums_at, ulong n)\n"
    "{\n"
    "    const size_t row = get_global_id(0);\n"
    "    if (row >= n) return;\n"
    "    float sum = 0.0f;\n"
    "    for (long c = 0; c < columns; c++)\n"
    "        sum += x[x_at + row * row_stride + c * column_stride];\n"
    "    sums[sums_at + row] = sum;\n"
    "}";

static void sum_rows(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    const atto_tensor *t = args[0].tensor;
    const float *x = args[0].data;
    float *sums = args[4].data;
    for (int64_t row = begin; row < end; row++) {
        sums[row] = 0.0f;
        for (int64_t c = 0; c < t->shape[1]; c++)
            sums[row] += x[row * t->stride[0] + c * t->stride[1]];
    }
}

static const atto_kernel_source axpb_source = { .name = "axpb", .text = axpb_text, .cpu = axpb };

static atto_kernel *make(const atto_kernel_source *source)
{
    atto_kernel *kernel;
    MUST(atto_kernel_create(test_dev, source, &kernel));
    return kernel;
}

static uint64_t hidden_copies(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return stats.hidden_copies;
}

/* ---- right answers ---- */

static void ramp(test_tensor *t, double *values)
{
    for (int64_t i = 0; i < t->numel; i++) values[i] = (double)i;
    test_tensor_put(t, values);
}

/* x = 0, 1, 2, ...: the answers are exact. */
static void check_axpb(atto_kernel *kernel, atto_shape shape, test_layout in, test_layout out)
{
    test_tensor x, y;
    test_tensor_make(&x, test_dev, ATTO_F32, shape, in);
    test_tensor_make(&y, test_dev, ATTO_F32, shape, out);
    double *values = test_doubles(x.numel), *got = test_doubles(x.numel);
    ramp(&x, values);
    const atto_kernel_arg args[] = { atto_kernel_in(&x.view), atto_kernel_out(&y.view),
                                     atto_kernel_f32(0.5f), atto_kernel_i32(-3) };
    MUST(atto_kernel_launch(kernel, x.numel, args, COUNT_OF(args)));
    test_tensor_get(&y, got);
    for (int64_t i = 0; i < x.numel; i++) values[i] = 0.5 * (double)i - 3.0;
    const test_about about = { "axpb", test_layout_name(in), ATTO_F32, shape, 0 };
    expect_equal(&about, got, values, x.numel);
    assert_true(test_tensor_untouched(&x));
    test_tensor_drop(&x);
    test_tensor_drop(&y);
    free(values);
    free(got);
}

static void kernel_does_every_item_once(void **state)
{
    (void)state;
    const int64_t sizes[] = { 1, 2, 255, 256, 257, 1023, 1024, 1025, 100003 };
    const atto_kernel_source source = { .name = "count", .text = count_text, .cpu = count };
    atto_kernel *kernel = make(&source);
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        test_tensor t;
        test_tensor_make(&t, test_dev, ATTO_I32, atto_shape1(sizes[i]),
                         i % 2 ? LAYOUT_OFFSET : LAYOUT_STEP2); /* as it is, and packed */
        double *values = test_doubles(sizes[i]);
        ramp(&t, values);
        const atto_kernel_arg arg = atto_kernel_in_out(&t.view);
        MUST(atto_kernel_launch(kernel, sizes[i], &arg, 1));
        test_tensor_get(&t, values);
        for (int64_t k = 0; k < sizes[i]; k++) assert_true(values[k] == (double)k + 1.0);
        test_tensor_drop(&t);
        free(values);
    }
    atto_kernel_destroy(kernel);
}

/* Where strides ask for it, dense copies are made, counted, and brought back. */
static void kernel_sees_dense_tensors(void **state)
{
    (void)state;
    atto_kernel *kernel = make(&axpb_source);
    const uint64_t before = hidden_copies();
    check_axpb(kernel, atto_shape2(7, 13), LAYOUT_DENSE, LAYOUT_OFFSET);
    assert_int_equal(hidden_copies(), before);
    for (int in = 0; in < LAYOUT_COUNT; in++)
        for (int out = 0; out < LAYOUT_COUNT; out++)
            if (in != LAYOUT_BROADCAST && out != LAYOUT_BROADCAST)
                check_axpb(kernel, atto_shape3(3, 5, 7), (test_layout)in, (test_layout)out);
    const uint64_t copies = hidden_copies();
    check_axpb(kernel, atto_shape2(7, 13), LAYOUT_STEP2, LAYOUT_PITCHED);
    assert_int_equal(hidden_copies(), copies + 2);
    atto_kernel_destroy(kernel);
}

/* Without packed copies, and with a repeated row. */
static void kernel_may_walk_strides_itself(void **state)
{
    (void)state;
    enum { ROWS = 37, COLUMNS = 11 };
    const test_layout layouts[] = { LAYOUT_DENSE, LAYOUT_PITCHED, LAYOUT_TRANSPOSED,
                                    LAYOUT_BROADCAST };
    const atto_kernel_source source = {
        .name = "sum_rows", .text = sum_rows_text, .cpu = sum_rows, .grain = 5, .strided = true
    };
    atto_kernel *kernel = make(&source);
    const uint64_t before = hidden_copies();
    for (int l = 0; l < COUNT_OF(layouts); l++) {
        test_tensor x, sums;
        double values[ROWS * COLUMNS], got[ROWS];
        test_tensor_make(&x, test_dev, ATTO_F32, atto_shape2(ROWS, COLUMNS), layouts[l]);
        test_tensor_make(&sums, test_dev, ATTO_F32, atto_shape1(ROWS), LAYOUT_OFFSET);
        ramp(&x, values);
        test_tensor_held(&x, values);
        const atto_kernel_arg args[] = { atto_kernel_in(&x.view), atto_kernel_i64(COLUMNS),
                                         atto_kernel_i64(x.view.stride[0]),
                                         atto_kernel_i64(x.view.stride[1]),
                                         atto_kernel_out(&sums.view) };
        MUST(atto_kernel_launch(kernel, ROWS, args, COUNT_OF(args)));
        test_tensor_get(&sums, got);
        for (int row = 0; row < ROWS; row++) {
            double want = 0.0;
            for (int c = 0; c < COLUMNS; c++) want += values[row * COLUMNS + c];
            assert_true(got[row] == want);
        }
        test_tensor_drop(&x);
        test_tensor_drop(&sums);
    }
    assert_int_equal(hidden_copies(), before);
    atto_kernel_destroy(kernel);
}

static void kernel_takes_numbers_of_every_type(void **state)
{
    (void)state;
    const atto_kernel_source source = { .name = "numbers", .text = numbers_text, .cpu = numbers };
    const int64_t wanted[] = { -5, 4000000000, -((int64_t)1 << 40), INT64_MIN + 7, 0x3fc00000, 3 };
    int64_t got[COUNT_OF(wanted)];
    atto_kernel *kernel = make(&source);
    atto_tensor t;
    MUST(atto_tensor_alloc(test_dev, ATTO_I64, atto_shape1(COUNT_OF(wanted)), &t));
    MUST(atto_tensor_fill(&t, 0.0));
    const atto_kernel_arg args[] = {
        atto_kernel_i32(-5),        atto_kernel_u32(4000000000u),
        atto_kernel_i64(wanted[2]), atto_kernel_u64((uint64_t)wanted[3]),
        atto_kernel_f32(1.5f),      atto_kernel_in_out(&t)
    };
    MUST(atto_kernel_launch(kernel, 3, args, COUNT_OF(args)));
    MUST(atto_tensor_read(&t, got));
    for (int i = 0; i < COUNT_OF(wanted); i++) assert_true(got[i] == wanted[i]);
    atto_tensor_free(&t);
    atto_kernel_destroy(kernel);
}

/* An output may be exactly an input only where the source says so. */
static void kernel_works_in_place_where_allowed(void **state)
{
    (void)state;
    enum { N = 7 * 111 };
    const test_layout layouts[] = { LAYOUT_DENSE, LAYOUT_STEP2, LAYOUT_TRANSPOSED };
    const atto_kernel_source in_place = {
        .name = "axpb", .text = axpb_text, .cpu = axpb, .in_place = true
    };
    atto_kernel *apart = make(&axpb_source), *same = make(&in_place);
    for (int l = 0; l < COUNT_OF(layouts); l++) {
        test_tensor t;
        double values[N];
        test_tensor_make(&t, test_dev, ATTO_F32, atto_shape2(7, N / 7), layouts[l]);
        ramp(&t, values);
        const atto_kernel_arg args[] = { atto_kernel_in(&t.view), atto_kernel_out(&t.view),
                                         atto_kernel_f32(2.0f), atto_kernel_i32(1) };
        EXPECT_FAIL(atto_kernel_launch(apart, N, args, 4), ATTO_E_ALIAS,
                    "kernel axpb|argument 1 overlaps argument 0");
        assert_true(test_tensor_untouched(&t));
        MUST(atto_kernel_launch(same, N, args, 4));
        test_tensor_get(&t, values);
        for (int i = 0; i < N; i++) assert_true(values[i] == 2.0 * i + 1.0);
        test_tensor_drop(&t);
    }
    atto_kernel_destroy(apart);
    atto_kernel_destroy(same);
}

/* No items, and tensors without elements. */
static void kernel_of_nothing_does_nothing(void **state)
{
    (void)state;
    const atto_kernel_source source = { .name = "sum_rows",
                                        .text = sum_rows_text,
                                        .cpu = sum_rows };
    atto_kernel *rows = make(&source), *kernel = make(&axpb_source);
    check_axpb(kernel, atto_shape2(0, 4), LAYOUT_DENSE, LAYOUT_DENSE);
    const atto_tensor empty = atto_tensor_of(NULL, ATTO_F32, atto_shape2(3, 0), 0);
    atto_tensor sums;
    float got[3];
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(3), &sums));
    MUST(atto_tensor_fill(&sums, 5.0));
    const atto_kernel_arg args[] = { atto_kernel_in(&empty), atto_kernel_i64(0), atto_kernel_i64(0),
                                     atto_kernel_i64(1), atto_kernel_out(&sums) };
    MUST(atto_kernel_launch(rows, 3, args, COUNT_OF(args)));
    MUST(atto_tensor_read(&sums, got));
    for (int i = 0; i < 3; i++) assert_true(got[i] == 0.0f);
    atto_tensor_free(&sums);
    atto_kernel_destroy(kernel);
    atto_kernel_destroy(rows);
}

/* ---- the library's headers ---- */

static const char gelu_text[] =
    "#include \"atto_kernel.h\"\n"
    "ATTO_KERNEL void my_gelu(__global const ATTO_T *x, ulong x_at, __global ATTO_T *y, ulong "
    "y_at,\n"
    "                         ulong n)\n"
    "{\n"
    "    const size_t i = get_global_id(0);\n"
    "    if (i < n) atto_store(y, y_at + i, attom_gelu(atto_load(x, x_at + i), 0.0f, 0.0f));\n"
    "}\n";

/* Bit for bit what the library's own kernel says, since both compile the same text. */
static void kernel_may_include_the_librarys_headers(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    enum { N = 1001 };
    static const struct {
        atto_dtype dtype;
        const char *options;
    } cases[] = { { ATTO_F32, NULL },
                  { ATTO_F16, "-DATTO_DTYPE=f16" },
                  { ATTO_BF16, "-DATTO_DTYPE=bf16" } };
    for (int c = 0; c < COUNT_OF(cases); c++) {
        const atto_kernel_source source = { .name = "my_gelu",
                                            .text = gelu_text,
                                            .options = cases[c].options };
        atto_kernel *kernel = make(&source);
        test_tensor x, mine, theirs;
        uint64_t bits[N], wanted[N];
        double values[N];
        test_tensor_make(&x, test_dev, cases[c].dtype, atto_shape1(N), LAYOUT_DENSE);
        test_tensor_make(&mine, test_dev, cases[c].dtype, atto_shape1(N), LAYOUT_OFFSET);
        test_tensor_make(&theirs, test_dev, cases[c].dtype, atto_shape1(N), LAYOUT_DENSE);
        test_uniform(3, -6.0, 6.0, cases[c].dtype, values, N);
        test_tensor_put(&x, values);
        const atto_kernel_arg args[] = { atto_kernel_in(&x.view), atto_kernel_out(&mine.view) };
        MUST(atto_kernel_launch(kernel, N, args, 2));
        const struct atto_act_args a = { .x = &x.view, .y = &theirs.view, .act = atto_gelu() };
        MUST(atto_act_forward(test_dev, &a));
        test_tensor_bits(&mine, bits);
        test_tensor_bits(&theirs, wanted);
        for (int i = 0; i < N; i++) assert_int_equal(bits[i], wanted[i]);
        test_tensor_drop(&x);
        test_tensor_drop(&mine);
        test_tensor_drop(&theirs);
        atto_kernel_destroy(kernel);
    }
}

/* ---- ranges of the CPU ---- */

/* Item i of the tensor = first item of its range. */
static void note_range(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    int64_t *t = args[0].data;
    for (int64_t i = begin; i < end; i++) t[i] = begin;
}

/* Cut by the grain alone, whatever the number of threads. */
static void kernel_ranges_follow_the_grain(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    enum { N = 5000 };
    static const struct {
        int64_t grain, cut;
    } cases[] = { { 0, 1024 }, { 1, 1 }, { 7, 7 }, { N, N }, { N + 1, N }, { INT64_MAX, N } };
    for (int c = 0; c < COUNT_OF(cases); c++) {
        const atto_kernel_source source = { .name = "note",
                                            .cpu = note_range,
                                            .grain = cases[c].grain };
        atto_kernel *kernel = make(&source);
        int64_t got[N];
        atto_tensor t;
        MUST(atto_tensor_alloc(test_dev, ATTO_I64, atto_shape1(N), &t));
        const atto_kernel_arg arg = atto_kernel_out(&t);
        MUST(atto_kernel_launch(kernel, N, &arg, 1));
        MUST(atto_tensor_read(&t, got));
        for (int i = 0; i < N; i++) assert_true(got[i] == i / cases[c].cut * cases[c].cut);
        atto_tensor_free(&t);
        atto_kernel_destroy(kernel);
    }
}

/* ---- work-groups ---- */

static void kernel_keeps_its_own_work_group_size(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    static const char text[] =
        "__kernel __attribute__((reqd_work_group_size(WIDTH, HEIGHT, 1)))\n"
        "void width(__global int *t, ulong t_at, ulong n)\n"
        "{ const size_t i = get_global_id(0); if (i < n) t[t_at + i] = get_local_size(0); }";
    const atto_kernel_source narrow = { .name = "width",
                                        .text = text,
                                        .options = "-DWIDTH=16 -DHEIGHT=1" };
    const atto_kernel_source square = { .name = "width",
                                        .text = text,
                                        .options = "-DWIDTH=4 -DHEIGHT=4" };
    atto_kernel *kernel = make(&narrow), *none;
    int32_t got[100];
    atto_tensor t;
    MUST(atto_tensor_alloc(test_dev, ATTO_I32, atto_shape1(100), &t));
    const atto_kernel_arg arg = atto_kernel_out(&t);
    MUST(atto_kernel_launch(kernel, 100, &arg, 1));
    MUST(atto_tensor_read(&t, got));
    for (int i = 0; i < 100; i++) assert_int_equal(got[i], 16);
    EXPECT_FAIL(atto_kernel_create(test_dev, &square, &none), ATTO_E_UNSUPPORTED,
                "kernel_create: width|more than one dimension");
    const atto_kernel_source wide = { .name = "width",
                                      .text = text,
                                      .options = "-DWIDTH=65536 -DHEIGHT=1" };
    const atto_status status = atto_kernel_create(test_dev, &wide, &none);
    assert_true(status == ATTO_E_UNSUPPORTED ||
                status == ATTO_E_BUILD); /* the compiler may say so */
    assert_null(none);
    atto_tensor_free(&t);
    atto_kernel_destroy(kernel);
}

/* ---- refusals ---- */

static void kernel_create_refuses_bad_sources(void **state)
{
    (void)state;
    static const char long_name[] =
        "a234567890123456789012345678901234567890123456789012345678901234";
    struct {
        atto_kernel_source source;
        atto_status status;
        const char *words;
    } cases[] = {
        { { .text = axpb_text, .cpu = axpb }, ATTO_E_NULL, "name is NULL" },
        { { .name = "", .text = axpb_text, .cpu = axpb }, ATTO_E_ARGUMENT, "no identifier" },
        { { .name = "a b", .text = axpb_text, .cpu = axpb }, ATTO_E_ARGUMENT, "\"a b\"" },
        { { .name = "1a", .text = axpb_text, .cpu = axpb }, ATTO_E_ARGUMENT, "\"1a\"" },
        { { .name = long_name, .text = axpb_text, .cpu = axpb }, ATTO_E_ARGUMENT, "63" },
        { { .name = "axpb", .text = axpb_text, .cpu = axpb, .grain = -1 },
          ATTO_E_ARGUMENT,
          "axpb: grain is -1" },
        { { .name = "axpb", .text = axpb_text, .cpu = axpb, .reserved = { 0, 0, 0, 1 } },
          ATTO_E_ARGUMENT,
          "kernel_create: the source: reserved[3]" },
    };
    atto_kernel *kernel;
    for (int i = 0; i < COUNT_OF(cases); i++) {
        kernel = (atto_kernel *)&kernel;
        EXPECT_FAIL(atto_kernel_create(test_dev, &cases[i].source, &kernel), cases[i].status,
                    cases[i].words);
        assert_null(kernel);
    }
    EXPECT_FAIL(atto_kernel_create(NULL, &axpb_source, &kernel), ATTO_E_NULL, "dev is NULL");
    EXPECT_FAIL(atto_kernel_create(test_dev, NULL, &kernel), ATTO_E_NULL, "source is NULL");
    EXPECT_FAIL(atto_kernel_create(test_dev, &axpb_source, NULL), ATTO_E_NULL, "out is NULL");
    atto_kernel_destroy(NULL);
}

/* What this backend needs is missing; the other one's part is never missed. */
static void kernel_create_asks_for_what_the_device_needs(void **state)
{
    (void)state;
    const atto_kernel_source only_text = { .name = "axpb", .text = axpb_text },
                             only_cpu = { .name = "axpb", .cpu = axpb };
    atto_kernel *kernel;
    MUST(atto_kernel_create(test_dev, test_on_opencl() ? &only_text : &only_cpu, &kernel));
    check_axpb(kernel, atto_shape1(10), LAYOUT_DENSE, LAYOUT_DENSE);
    atto_kernel_destroy(kernel);
    EXPECT_FAIL(atto_kernel_create(test_dev, test_on_opencl() ? &only_cpu : &only_text, &kernel),
                ATTO_E_NULL,
                test_on_opencl() ? "axpb: text is NULL|OpenCL" : "axpb: cpu is NULL|CPU backend");
}

static void kernel_create_tells_what_does_not_build(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    static const struct {
        const char *text, *options, *words;
    } cases[] = {
        { "// one\n#include \"atto_math.h\"\n// three\nthis is no OpenCL C\n", NULL,
          "wrong.cl: wrong does not build|wrong.cl:4|error" },
        { "// one\n#include \"missing.h\"\n", NULL, "missing.h" },
        { "__kernel void other(ulong n) {}\n", NULL, "no kernel wrong" },
        { "__kernel void wrong(ulong n) { X }\n", "-DX=@", "-DX=@" },
        { "", NULL, "wrong" },
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        const atto_kernel_source source = { .name = "wrong",
                                            .text = cases[i].text,
                                            .options = cases[i].options };
        atto_kernel *kernel;
        EXPECT_FAIL(atto_kernel_create(test_dev, &source, &kernel), ATTO_E_BUILD, cases[i].words);
        EXPECT_FAIL(atto_kernel_create(test_dev, &source, &kernel), ATTO_E_BUILD, "kernel_create");
        assert_null(kernel);
    }
}

static void kernel_launch_refuses_bad_arguments(void **state)
{
    (void)state;
    enum { N = 50 };
    test_tensor x, y;
    test_tensor_make(&x, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_OFFSET);
    test_tensor_make(&y, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_OFFSET);
    atto_kernel *kernel = make(&axpb_source);
    const atto_kernel_arg in = atto_kernel_in(&x.view), out = atto_kernel_out(&y.view),
                          f = atto_kernel_f32(1.0f), i = atto_kernel_i32(1);
    atto_kernel_arg none = f, null = in, long_view = out, twice = out;
    atto_tensor beyond = y.view, repeated = y.view;
    none.kind = (atto_kernel_arg_kind)0;
    null.tensor = NULL;
    beyond.shape[0] = 2 * N;
    beyond.offset += N;
    long_view.tensor = &beyond;
    repeated.stride[0] = 0;
    twice.tensor = &repeated;
    const struct {
        atto_kernel_arg args[4];
        atto_status status;
        const char *words;
    } cases[] = {
        { { in, out, none, i }, ATTO_E_ARGUMENT, "argument 2: 0 is no kind" },
        { { null, out, f, i }, ATTO_E_NULL, "kernel axpb: argument 0 is NULL" },
        { { in, long_view, f, i }, ATTO_E_SHAPE, "kernel axpb: argument 1: the view ends" },
        { { in, twice, f, i }, ATTO_E_STRIDE, "kernel axpb: argument 1|overlap each other" },
        { { out, out, f, i }, ATTO_E_ALIAS, "argument 0 overlaps argument 1" },
    };
    for (int c = 0; c < COUNT_OF(cases); c++)
        EXPECT_FAIL(atto_kernel_launch(kernel, N, cases[c].args, 4), cases[c].status,
                    cases[c].words);
    const atto_kernel_arg good[] = { in, out, f, i };
    EXPECT_FAIL(atto_kernel_launch(NULL, N, good, 4), ATTO_E_NULL, "kernel is NULL");
    EXPECT_FAIL(atto_kernel_launch(kernel, N, NULL, 4), ATTO_E_NULL, "args is NULL");
    EXPECT_FAIL(atto_kernel_launch(kernel, -1, good, 4), ATTO_E_ARGUMENT, "n is -1");
    EXPECT_FAIL(atto_kernel_launch(kernel, N, good, -1), ATTO_E_ARGUMENT, "-1 arguments");
    EXPECT_FAIL(atto_kernel_launch(kernel, N, good, ATTO_KERNEL_MAX_ARGS + 1), ATTO_E_ARGUMENT,
                "25 arguments, expected 0 to 24");
    assert_true(test_tensor_untouched(&y) && test_tensor_untouched(&x));
    atto_kernel_destroy(kernel);
    test_tensor_drop(&x);
    test_tensor_drop(&y);
}

/* The kernel's parameters are other ones than the arguments: drivers would crash. */
static void kernel_launch_compares_parameters(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    enum { N = 50 };
    test_tensor x, y;
    test_tensor_make(&x, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_OFFSET);
    test_tensor_make(&y, test_dev, ATTO_F32, atto_shape1(N), LAYOUT_OFFSET);
    const atto_kernel_arg in = atto_kernel_in(&x.view), out = atto_kernel_out(&y.view),
                          f = atto_kernel_f32(1.0f), i = atto_kernel_i32(1),
                          wide = atto_kernel_u64(1);
    const struct {
        atto_kernel_arg args[6];
        int32_t count;
        const char *words;
    } cases[] = {
        { { in, out, f }, 3, "7 parameters, the arguments make 6" },
        { { in, out, f, i, i }, 5, "7 parameters, the arguments make 8" },
        { { { 0 } }, 0, "make 1" },
        { { wide, wide, out, f, i }, 5, "parameter 0 is a pointer, the arguments want a number" },
        { { f, in, out, i }, 4, "parameter 0 is a pointer" },
        { { in, f, f, f, i }, 5, "parameter 2 is a pointer" },
        { { in, out, wide, i }, 4, "parameter 4 is a number of type f32" },
        { { in, out, i, i }, 4, "parameter 4 is a number of type f32|of type i32" },
        { { in, out, f, wide }, 4, "parameter 5 is a number of type i32|of type u64" },
    };
    for (int pass = 0; pass < 2; pass++) { /* built, then from the cache */
        atto_kernel *kernel = make(&axpb_source);
        for (int c = 0; c < COUNT_OF(cases); c++)
            EXPECT_FAIL(atto_kernel_launch(kernel, N, cases[c].args, cases[c].count),
                        ATTO_E_ARGUMENT, cases[c].words);
        check_axpb(kernel, atto_shape1(N), LAYOUT_DENSE, LAYOUT_DENSE); /* still works */
        atto_kernel_destroy(kernel);
    }
    assert_true(test_tensor_untouched(&y) && test_tensor_untouched(&x));
    test_tensor_drop(&x);
    test_tensor_drop(&y);
}

static void kernel_launch_respects_the_devices_options(void **state)
{
    (void)state;
    const atto_device_options options = { .no_hidden_copies = true };
    atto_device *dev;
    atto_kernel *kernel;
    test_tensor x, y, away;
    MUST(atto_device_open(test_device_name(), &options, &dev));
    MUST(atto_kernel_create(dev, &axpb_source, &kernel));
    test_tensor_make(&x, dev, ATTO_F32, atto_shape1(9), LAYOUT_STEP2);
    test_tensor_make(&y, dev, ATTO_F32, atto_shape1(9), LAYOUT_DENSE);
    test_tensor_make(&away, test_dev, ATTO_F32, atto_shape1(9), LAYOUT_DENSE);
    atto_kernel_arg args[] = { atto_kernel_in(&x.view), atto_kernel_out(&y.view),
                               atto_kernel_f32(1.0f), atto_kernel_i32(0) };
    EXPECT_FAIL(atto_kernel_launch(kernel, 9, args, 4), ATTO_E_STRIDE,
                "kernel axpb: argument 0|packed copy");
    args[0] = atto_kernel_in(&away.view);
    EXPECT_FAIL(atto_kernel_launch(kernel, 9, args, 4), ATTO_E_DEVICE,
                "kernel axpb: argument 0 belongs to another device");
    assert_true(test_tensor_untouched(&y));
    test_tensor_drop(&x);
    test_tensor_drop(&y);
    test_tensor_drop(&away);
    atto_kernel_destroy(kernel);
    atto_device_close(dev);
}

/* What would crash a driver when it is launched. */
static void kernel_create_refuses_what_it_cannot_bind(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    static const struct {
        const char *text, *options;
        atto_status status;
        const char *words;
    } cases[] = {
        { "__kernel void k(__read_only image2d_t t, ulong t_at, ulong n) {}", NULL,
          ATTO_E_UNSUPPORTED, "kernel_create: k: parameter 0 is an image" },
        { "__kernel void k(sampler_t s, ulong n) {}", NULL, ATTO_E_UNSUPPORTED,
          "parameter 0 is sampler_t, expected int" },
        { "typedef struct { int a[40]; } S;\n"
          "__kernel void k(S s, __global int *t, ulong at, ulong n) { t[at] = s.a[39]; }",
          NULL, ATTO_E_UNSUPPORTED, "parameter 0 is" },
        { "__kernel void k(float4 v, ulong n) {}", NULL, ATTO_E_UNSUPPORTED,
          "parameter 0 is float4" },
        { "__kernel void k(__local float *s, ulong n) { s[0] = 0; }", NULL, ATTO_E_UNSUPPORTED,
          "parameter 0 is in local memory" },
        { "__kernel void k(ulong n) {}", "-D", ATTO_E_ARGUMENT, "\"-D\" end in a flag" },
        { "__kernel void k(ulong n) {}", "-cl-mad-enable -I ", ATTO_E_ARGUMENT, "end in a flag" },
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        const atto_kernel_source source = { .name = "k",
                                            .text = cases[i].text,
                                            .options = cases[i].options };
        atto_kernel *kernel;
        EXPECT_FAIL(atto_kernel_create(test_dev, &source, &kernel), cases[i].status,
                    cases[i].words);
        assert_null(kernel);
    }
}

/* ---- texts ---- */

/* Comments behind an include, line ends of other systems, another kernel, the same name as a file
 * of the library's: y = 3 for item 0. */
static void kernel_texts_may_look_odd(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    static const char *const texts[] = {
        "__kernel void act(__global float *y, ulong y_at, ulong n)\r\n"
        "{\r\n if (get_global_id(0) < n) y[y_at] = 3;\r\n}\r\n",
        "# include \"atto_math.h\" /* the\n formulas */\n#include \"atto_math.h\"\n"
        "__kernel void act(__global float *y, ulong y_at, ulong n)\n"
        "{ if (get_global_id(0) < n) y[y_at] = attom_relu(3.0f, 0.0f, 0.0f); }",
        "#if 0\n#include \"nowhere.h\"\n#endif\n"
        "__kernel void other(__global int *t, ulong n) { t[0] = 1; }\n"
        "__kernel void act(__global float *y, ulong y_at, ulong n)\n"
        "{ if (get_global_id(0) < n) y[y_at] = 3; }",
    };
    atto_tensor t;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(1), &t));
    for (int i = 0; i < COUNT_OF(texts); i++) {
        const atto_kernel_source source = { .name = "act", .text = texts[i] };
        const atto_kernel_arg arg = atto_kernel_out(&t);
        atto_kernel *kernel = make(&source);
        float got = 0.0f;
        MUST(atto_kernel_launch(kernel, 1, &arg, 1));
        MUST(atto_tensor_read(&t, &got));
        assert_true(got == 3.0f);
        atto_kernel_destroy(kernel);
        MUST(atto_tensor_fill(&t, 0.0));
    }
    atto_tensor_free(&t);
}

/* ---- the most of everything ---- */

static void add_all(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    float *out = args[0].data;
    for (int64_t i = begin; i < end; i++) {
        out[i] = 0.0f;
        for (int k = 1; k < ATTO_KERNEL_MAX_ARGS; k++) out[i] += ((const float *)args[k].data)[i];
    }
}

/* A = B + C + ..., 24 tensors. */
static void write_add_all(char *text, size_t room)
{
    size_t at = (size_t)snprintf(text, room, "__kernel void add_all(");
    for (char c = 'A'; c < 'A' + ATTO_KERNEL_MAX_ARGS; c++)
        at += (size_t)snprintf(text + at, room - at, "__global float *%c, ulong %c_at, ", c, c);
    at +=
        (size_t)snprintf(text + at, room - at,
                         "ulong n) {\n size_t i = get_global_id(0);\n if (i < n) A[A_at + i] = 0");
    for (char c = 'B'; c < 'A' + ATTO_KERNEL_MAX_ARGS; c++)
        at += (size_t)snprintf(text + at, room - at, " + %c[%c_at + i]", c, c);
    snprintf(text + at, room - at, ";\n}\n");
}

static void kernel_takes_24_tensors_that_are_all_packed(void **state)
{
    (void)state;
    enum { N = 33 };
    char text[4096];
    write_add_all(text, sizeof text);
    const atto_kernel_source source = { .name = "add_all", .text = text, .cpu = add_all };
    atto_kernel *kernel = make(&source);
    test_tensor tensors[ATTO_KERNEL_MAX_ARGS];
    atto_kernel_arg args[ATTO_KERNEL_MAX_ARGS];
    double values[N];
    for (int k = 0; k < ATTO_KERNEL_MAX_ARGS; k++) {
        test_tensor_make(&tensors[k], test_dev, ATTO_F32, atto_shape1(N), LAYOUT_STEP2);
        for (int i = 0; i < N; i++) values[i] = k + i;
        test_tensor_put(&tensors[k], values);
        args[k] = k ? atto_kernel_in(&tensors[k].view) : atto_kernel_out(&tensors[k].view);
    }
    MUST(atto_kernel_launch(kernel, N, args, ATTO_KERNEL_MAX_ARGS));
    test_tensor_get(&tensors[0], values);
    for (int i = 0; i < N; i++) assert_true(values[i] == 276.0 + 23.0 * i); /* 1 + ... + 23 */
    for (int k = 0; k < ATTO_KERNEL_MAX_ARGS; k++) test_tensor_drop(&tensors[k]);
    atto_kernel_destroy(kernel);
}

/* ---- states ---- */

static void kernel_launch_refuses_mapped_tensors(void **state)
{
    (void)state;
    const atto_kernel_source source = { .name = "count", .text = count_text, .cpu = count };
    atto_kernel *kernel = make(&source);
    atto_tensor t;
    void *data;
    MUST(atto_tensor_alloc(test_dev, ATTO_I32, atto_shape1(4), &t));
    MUST(atto_tensor_map(&t, ATTO_MAP_READ, &data));
    const atto_kernel_arg arg = atto_kernel_in_out(&t);
    EXPECT_FAIL(atto_kernel_launch(kernel, 4, &arg, 1), ATTO_E_STATE, "argument 0|mapped");
    MUST(atto_tensor_unmap(&t));
    MUST(atto_kernel_launch(kernel, 4, &arg, 1));
    atto_tensor_free(&t);
    atto_kernel_destroy(kernel);
}

/* What a call of the library from inside a C function gave. */
static atto_status inner_status;

static void call_back(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    (void)begin, (void)end;
    inner_status = atto_tensor_fill(args[0].tensor, 1.0);
}

static void kernel_functions_may_not_call_their_device(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    const atto_kernel_source source = { .name = "call_back", .cpu = call_back };
    atto_kernel *kernel = make(&source);
    atto_tensor t;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(4), &t));
    const atto_kernel_arg arg = atto_kernel_in_out(&t);
    MUST(atto_kernel_launch(kernel, 1, &arg, 1));
    assert_int_equal(inner_status, ATTO_E_STATE);
    MUST(atto_tensor_fill(&t, 1.0)); /* afterwards it may */
    atto_tensor_free(&t);
    atto_kernel_destroy(kernel);
}

/* ---- lifetimes ---- */

/* The device is closed and the kernel destroyed while its work is queued. */
static void kernel_outlives_its_closed_device(void **state)
{
    (void)state;
    atto_device *dev;
    atto_kernel *kernel;
    atto_tensor x, y;
    float got[1000];
    MUST(atto_device_open(test_device_name(), NULL, &dev));
    MUST(atto_kernel_create(dev, &axpb_source, &kernel));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(1000), &x));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(1000), &y));
    atto_device_close(dev);
    MUST(atto_tensor_fill(&x, 4.0));
    const atto_kernel_arg args[] = { atto_kernel_in(&x), atto_kernel_out(&y), atto_kernel_f32(0.5f),
                                     atto_kernel_i32(1) };
    MUST(atto_kernel_launch(kernel, 1000, args, 4));
    atto_kernel_destroy(kernel);
    atto_tensor_free(&x);
    MUST(atto_tensor_read(&y, got));
    for (int i = 0; i < 1000; i++) assert_true(got[i] == 3.0f);
    atto_tensor_free(&y);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(kernel_does_every_item_once),
    cmocka_unit_test(kernel_sees_dense_tensors),
    cmocka_unit_test(kernel_may_walk_strides_itself),
    cmocka_unit_test(kernel_takes_numbers_of_every_type),
    cmocka_unit_test(kernel_works_in_place_where_allowed),
    cmocka_unit_test(kernel_of_nothing_does_nothing),
    cmocka_unit_test(kernel_may_include_the_librarys_headers),
    cmocka_unit_test(kernel_ranges_follow_the_grain),
    cmocka_unit_test(kernel_keeps_its_own_work_group_size),
    cmocka_unit_test(kernel_create_refuses_bad_sources),
    cmocka_unit_test(kernel_create_asks_for_what_the_device_needs),
    cmocka_unit_test(kernel_create_tells_what_does_not_build),
    cmocka_unit_test(kernel_launch_refuses_bad_arguments),
    cmocka_unit_test(kernel_launch_compares_parameters),
    cmocka_unit_test(kernel_launch_respects_the_devices_options),
    cmocka_unit_test(kernel_create_refuses_what_it_cannot_bind),
    cmocka_unit_test(kernel_texts_may_look_odd),
    cmocka_unit_test(kernel_takes_24_tensors_that_are_all_packed),
    cmocka_unit_test(kernel_launch_refuses_mapped_tensors),
    cmocka_unit_test(kernel_functions_may_not_call_their_device),
    cmocka_unit_test(kernel_outlives_its_closed_device),
};
TEST_MAIN("kernel", tests)
