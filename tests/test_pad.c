/* SPDX-License-Identifier: MIT */
/* pad, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_pad.h"

#define VALUE 2.5

/* ---- one case ---- */

typedef struct pad_case {
    oracle_pad q;
    bool add, ones;      /* ones: dy is 1, whose sums are exact */
    atto_dtype dtype;    /* 0 = f32 */
    test_layout in, out; /* of x and dx, of y and dy */
    uint64_t seed;
} pad_case;

/* A case with its data and tensors. */
typedef struct pad_scene {
    pad_case c;
    atto_shape shape; /* of y */
    int64_t n, m;     /* elements of x, of y */
    int64_t most;     /* terms of an element of dx */
    double *x, *old, *dx, *terms, *y, *dy;
    test_tensor tx, ty, tdy, tdx;
    struct atto_pad_args args;
} pad_scene;

static int64_t size_of(atto_shape s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s.rank; d++) n *= s.dim[d];
    return n;
}

static void begin(pad_scene *s, const pad_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    s->shape = oracle_pad_shape(&c->q);
    s->n = size_of(c->q.x);
    s->m = size_of(s->shape);
    double **small[] = { &s->x, &s->old, &s->dx, &s->terms };
    for (int i = 0; i < COUNT_OF(small); i++) *small[i] = test_doubles(s->n);
    s->y = test_doubles(s->m);
    s->dy = test_doubles(s->m);
    test_uniform(c->seed + 1, -40.0, 40.0, s->c.dtype, s->x, s->n);
    test_uniform(c->seed + 2, -1.0, 1.0, s->c.dtype, s->old, s->n);
    test_uniform(c->seed + 3, -2.0, 2.0, s->c.dtype, s->dy, s->m);
    for (int64_t i = 0; c->ones && i < s->m; i++) s->dy[i] = 1.0;
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(pad_scene *s)
{
    const pad_case *c = &s->c;
    struct atto_pad_args *a = &s->args;
    make(&s->tx, c->dtype, c->q.x, c->in, s->x, &a->x);
    make(&s->ty, c->dtype, s->shape, c->out, NULL, &a->y);
    make(&s->tdy, c->dtype, s->shape, c->out, s->dy, &a->dy);
    make(&s->tdx, c->dtype, c->q.x, c->in, c->add ? s->old : NULL, &a->dx);
    a->add_dx = c->add;
    a->mode = c->q.mode;
    a->value = c->q.value;
    memcpy(a->before, c->q.before, sizeof a->before);
    memcpy(a->after, c->q.after, sizeof a->after);
}

static void end(pad_scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->ty, &s->tdy, &s->tdx };
    double *arrays[] = { s->x, s->old, s->dx, s->terms, s->y, s->dy };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static bool has_gradient(const pad_scene *s)
{
    return s->c.dtype == ATTO_F32 || s->c.dtype == ATTO_F16 || s->c.dtype == ATTO_BF16;
}

static void call(pad_scene *s)
{
    MUST(atto_pad_forward(test_dev, &s->args));
    if (has_gradient(s)) MUST(atto_pad_backward(test_dev, &s->args));
}

static void judge(pad_scene *s)
{
    const pad_case *c = &s->c;
    oracle_pad_forward(&c->q, s->x, s->y);
    test_judge(&s->ty, "pad", c->out, c->seed, 1, s->y, NULL, NULL);
    assert_true(test_tensor_untouched(&s->tx));
    if (!has_gradient(s)) return;
    s->most = oracle_pad_backward(&c->q, s->dy, s->dx, s->terms);
    test_judge(&s->tdx, "pad_grad", c->in, c->seed, s->most + c->add, s->dx, s->terms,
               c->add ? s->old : NULL);
    assert_true(test_tensor_untouched(&s->tdy));
}

static void check(const pad_case *c)
{
    pad_scene s;
    begin(&s, c);
    build(&s);
    call(&s);
    judge(&s);
    MUST(atto_device_sync(test_dev));
    end(&s);
}

/* ---- sizes ---- */

/* x, before and after. Amounts that every mode takes: no axis at all, some, all of them; whole
 * vectors and odd sizes; as much as reflect and circular allow; rows longer than a piece of work,
 * and one; more axes than a kernel has at once. */
static const struct {
    atto_shape x;
    int64_t before[ATTO_MAX_RANK], after[ATTO_MAX_RANK];
} sizes[] = {
    { { 0, { 0 } }, { 0 }, { 0 } },
    { { 1, { 1 } }, { 0 }, { 0 } },
    { { 1, { 5 } }, { 4 }, { 4 } },
    { { 1, { 2 } }, { 1 }, { 0 } },
    { { 1, { 17001 } }, { 3 }, { 1100 } },
    { { 2, { 3, 7 } }, { 0, 2 }, { 0, 3 } },
    { { 2, { 3, 7 } }, { 1, 0 }, { 2, 0 } },
    { { 2, { 2, 1100 } }, { 1, 1030 }, { 1, 1099 } },
    { { 3, { 2, 3, 33 } }, { 0, 0, 1 }, { 0, 0, 1 } },
    { { 3, { 4, 5, 16 } }, { 0, 2, 0 }, { 0, 2, 0 } },
    { { 4, { 2, 3, 5, 7 } }, { 0, 0, 1, 2 }, { 0, 0, 3, 4 } },
    { { 4, { 2, 8, 6, 8 } }, { 0, 0, 2, 2 }, { 0, 0, 2, 2 } },
    { { 4, { 2, 16, 5, 4 } }, { 0, 0, 1, 0 }, { 0, 0, 0, 3 } },
    { { 5, { 2, 2, 3, 4, 5 } }, { 0, 0, 1, 2, 3 }, { 0, 0, 2, 1, 4 } },
    { { 6, { 2, 3, 2, 3, 2, 3 } }, { 1, 0, 1, 0, 1, 0 }, { 0, 0, 1, 0, 0, 0 } },
    { { 8, { 2, 3, 2, 2, 2, 3, 2, 4 } }, { 1, 2, 1, 0, 1, 0, 1, 2 }, { 0, 1, 1, 1, 0, 2, 0, 1 } },
};

static pad_case case_of(int i, int mode)
{
    pad_case c = { .q = { .x = sizes[i].x, .mode = (atto_pad_kind)mode, .value = VALUE },
                   .seed = 100 + (uint64_t)i };
    memcpy(c.q.before, sizes[i].before, sizeof c.q.before);
    memcpy(c.q.after, sizes[i].after, sizeof c.q.after);
    return c;
}

static void pad_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
            pad_case c = case_of(i, mode);
            c.add = (i + mode) % 2 == 1;
            check(&c);
        }
}

/* Sums of ones are counted, and right to the bit. */
static void pad_counts_every_element_once(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
            pad_case c = case_of(i, mode);
            pad_scene s;
            c.ones = true;
            begin(&s, &c);
            build(&s);
            call(&s);
            oracle_pad_backward(&c.q, s.dy, s.dx, s.terms);
            test_tensor_get(&s.tdx, s.old);
            for (int64_t k = 0; k < s.n; k++) assert_true(s.old[k] == s.dx[k]);
            end(&s);
        }
}

static void pad_takes_f16_and_bf16(void **state)
{
    (void)state;
    const int some[] = { 4, 7, 8, 10, 11, 12 };
    for (int i = 0; i < COUNT_OF(some); i++)
        for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
            pad_case c = case_of(some[i], mode);
            c.dtype = (i + mode) % 2 ? ATTO_BF16 : ATTO_F16;
            c.add = i % 2 == 0;
            check(&c);
        }
}

/* Integers are moved as they are; they have no gradient. */
static void pad_takes_integers(void **state)
{
    (void)state;
    for (int i = 8; i < 13; i++)
        for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
            pad_case c = case_of(i, mode);
            c.dtype = (i + mode) % 2 ? ATTO_I32 : ATTO_I64;
            c.q.value = -7.0;
            check(&c);
        }
    pad_scene s;
    pad_case c = case_of(8, 0);
    c.dtype = ATTO_I64;
    begin(&s, &c);
    build(&s);
    EXPECT_FAIL(atto_pad_backward(test_dev, &s.args), ATTO_E_DTYPE,
                "pad_backward: dy is i64|expected f32, f16 or bf16");
    end(&s);
}

/* One element becomes many: all of replicate's, and a corner of an image. */
static void pad_replicates_far(void **state)
{
    (void)state;
    check(&(pad_case){ .q = { .x = { 1, { 1 } },
                              .before = { 700 },
                              .after = { 1900 },
                              .mode = ATTO_PAD_REPLICATE },
                       .seed = 200 });
    check(&(pad_case){ .q = { .x = { 3, { 2, 1, 2 } },
                              .before = { 0, 40, 33 },
                              .after = { 0, 3, 50 },
                              .mode = ATTO_PAD_REPLICATE },
                       .add = true,
                       .seed = 201 });
}

/* circular: the whole of x, once more on either side. */
static void pad_repeats_the_whole(void **state)
{
    (void)state;
    check(&(pad_case){ .q = { .x = { 3, { 2, 3, 5 } },
                              .before = { 0, 3, 5 },
                              .after = { 0, 3, 5 },
                              .mode = ATTO_PAD_CIRCULAR },
                       .seed = 210 });
}

/* Amounts below 0, alone and beside others; down to nothing in between. */
static void pad_cuts_off(void **state)
{
    (void)state;
    const struct {
        int64_t before[3], after[3];
    } rows[] = { { { 0, 0, -2 }, { 0, 0, -3 } }, { { 0, -1, 4 }, { 0, 2, -5 } },
                 { { -1, 0, -4 }, { 3, 0, 8 } }, { { 0, -2, 8 }, { 0, 0, -8 } },
                 { { 0, -4, 3 }, { 0, 2, 0 } },  { { 0, 0, -5 }, { 0, 0, 3 } } };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        pad_case c = { .q = { .x = { 3, { 2, 4, 12 } }, .value = VALUE },
                       .add = i % 2 == 1,
                       .dtype = (atto_dtype)(ATTO_F32 + i % 3),
                       .seed = 220 + (uint64_t)i };
        memcpy(c.q.before, rows[i].before, sizeof rows[i].before);
        memcpy(c.q.after, rows[i].after, sizeof rows[i].after);
        check(&c);
    }
}

/* ---- values ---- */

static void pad_passes_infinities_and_nan_on(void **state)
{
    (void)state;
    const double special[] = { INFINITY, -INFINITY, NAN, -0.0, 0x1p-149 };
    for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
        pad_case c = case_of(10, mode);
        pad_scene s;
        c.q.value = -INFINITY;
        begin(&s, &c);
        for (int i = 0; i < COUNT_OF(special); i++) {
            s.x[7 * i] = special[i];
            s.dy[11 * i + 1] = special[i];
        }
        build(&s);
        call(&s);
        oracle_pad_forward(&c.q, s.x, s.y);
        test_judge(&s.ty, "pad", c.out, c.seed, 1, s.y, NULL, NULL);
        s.most = oracle_pad_backward(&c.q, s.dy, s.dx, s.terms);
        test_judge(&s.tdx, "pad_grad", c.in, c.seed, s.most, s.dx, s.terms, NULL);
        end(&s);
    }
}

/* What is outside does not depend on x: 0 times NaN is nowhere. */
static void pad_of_nothing(void **state)
{
    (void)state;
    const atto_shape empty[] = { { 2, { 0, 4 } }, { 3, { 2, 0, 3 } } };
    atto_device_stats before, after;
    for (int i = 0; i < COUNT_OF(empty); i++)
        for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
            pad_case c = { .q = { .x = empty[i], .mode = (atto_pad_kind)mode, .value = VALUE } };
            c.q.before[empty[i].rank - 1] = c.q.after[empty[i].rank - 1] = 1;
            MUST(atto_device_stats_get(test_dev, &before));
            check(&c);
            MUST(atto_device_stats_get(test_dev, &after));
            assert_int_equal(after.launches, before.launches);
        }
    /* Elements around nothing. */
    check(&(pad_case){ .q = { .x = { 2, { 3, 0 } }, .before = { 0, 2 }, .value = VALUE } });
    check(&(pad_case){ .q = { .x = { 3, { 2, 0, 3 } },
                              .before = { 0, 1, 2 },
                              .after = { 1, 1, 0 },
                              .value = VALUE },
                       .dtype = ATTO_F16 });
    /* All of it cut off: gradients of nothing. */
    check(&(pad_case){ .q = { .x = { 1, { 4 } }, .before = { -4 } } });
    check(&(pad_case){ .q = { .x = { 2, { 3, 4 } }, .before = { 0, -1 }, .after = { 0, -3 } } });
}

/* ---- strides ---- */

static void pad_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET,     LAYOUT_OFFSET4,   LAYOUT_PITCHED,
                                    LAYOUT_TRANSPOSED, LAYOUT_SCATTERED, LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int k = 0; k < COUNT_OF(layouts); k++) {
            pad_case c = case_of(10 + k % 2, (i + k) % ATTO_PAD_COUNT);
            c.in = layouts[i];
            c.out = layouts[k];
            c.dtype = i % 2 ? ATTO_F32 : ATTO_F16;
            c.add = k % 2 == 1;
            check(&c);
        }
}

/* Views of one dimension that have gaps. */
static void pad_takes_strided_vectors(void **state)
{
    (void)state;
    for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
        pad_case c = case_of(2, mode);
        c.in = LAYOUT_STEP2;
        c.out = LAYOUT_STEP2;
        check(&c);
    }
}

static void pad_takes_channels_last_without_copies(void **state)
{
    (void)state;
    for (int i = 10; i < 14; i++)
        for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
            pad_case c = case_of(i, mode);
            pad_scene s;
            atto_device_stats before, after;
            c.in = c.out = LAYOUT_CHANNELS_LAST;
            begin(&s, &c);
            build(&s);
            MUST(atto_device_stats_get(test_dev, &before));
            call(&s);
            MUST(atto_device_stats_get(test_dev, &after));
            assert_int_equal(after.hidden_copies, before.hidden_copies);
            assert_int_equal(after.launches, before.launches + 2);
            judge(&s);
            end(&s);
        }
}

/* ---- repeatability ---- */

static void take_bits(pad_scene *s, uint64_t *bits)
{
    call(s);
    test_tensor_bits(&s->ty, bits);
    test_tensor_bits(&s->tdx, bits + s->m);
}

static void pad_repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int mode = 0; mode < ATTO_PAD_COUNT; mode++) {
        pad_scene s;
        const pad_case c = { .q = { .x = { 4, { 2, 3, 61, 67 } },
                                    .before = { 0, 0, 20, 30 },
                                    .after = { 0, 0, 10, 40 },
                                    .mode = (atto_pad_kind)mode },
                             .seed = 300 };
        begin(&s, &c);
        build(&s);
        const int64_t n = s.n + s.m;
        uint64_t *bits = calloc(2 * (size_t)n, sizeof *bits);
        take_bits(&s, bits);
        for (int run = 0; run < 5; run++) {
            take_bits(&s, bits + n);
            assert_memory_equal(bits, bits + n, (size_t)n * sizeof *bits);
        }
        free(bits);
        end(&s);
    }
}

static void pad_does_not_depend_on_threads(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    const int32_t threads[] = { 1, 2, 7 };
    const pad_case c = { .q = { .x = { 4, { 2, 3, 61, 67 } },
                                .before = { 0, 0, 20, 30 },
                                .after = { 0, 0, 10, 40 },
                                .mode = ATTO_PAD_REFLECT },
                         .seed = 310 };
    uint64_t *bits = NULL;
    atto_device *before = test_dev;
    for (int i = 0; i < COUNT_OF(threads); i++) {
        const atto_device_options options = { .num_threads = threads[i] };
        pad_scene s;
        MUST(atto_device_open("cpu", &options, &test_dev));
        begin(&s, &c);
        build(&s);
        const int64_t n = s.n + s.m;
        if (!bits) bits = calloc(2 * (size_t)n, sizeof *bits);
        take_bits(&s, bits + (i > 0 ? n : 0));
        if (i > 0) assert_memory_equal(bits, bits + n, (size_t)n * sizeof *bits);
        end(&s);
        atto_device_close(test_dev);
    }
    test_dev = before;
    free(bits);
}

static void pad_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    pad_scene s;
    pad_case c = case_of(10, ATTO_PAD_REFLECT);
    c.in = LAYOUT_SCATTERED;
    begin(&s, &c);
    build(&s);
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        call(&s);
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

static void refuse(atto_pad_kind mode, int64_t before, int64_t after, atto_status status,
                   const char *words)
{
    pad_scene s;
    begin(&s, &(pad_case){ .q = { .x = { 2, { 3, 4 } }, .before = { 0, 1 }, .after = { 0, 1 } } });
    build(&s);
    s.args.mode = mode;
    s.args.before[1] = before;
    s.args.after[1] = after;
    EXPECT_FAIL(atto_pad_forward(test_dev, &s.args), status, words);
    EXPECT_FAIL(atto_pad_backward(test_dev, &s.args), status, words);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void pad_refuses_what_does_not_fit(void **state)
{
    (void)state;
    refuse(ATTO_PAD_COUNT, 1, 1, ATTO_E_ARGUMENT, "mode is 4|0 to 3");
    refuse((atto_pad_kind)-1, 1, 1, ATTO_E_ARGUMENT, "mode is -1");
    refuse(ATTO_PAD_CONSTANT, 1, 2, ATTO_E_SHAPE, "[3,6]|expected [3,7]");
    refuse(ATTO_PAD_CONSTANT, -5, 7, ATTO_E_ARGUMENT, "before[1] is -5|-4 to ");
    refuse(ATTO_PAD_CONSTANT, -3, -2, ATTO_E_ARGUMENT,
           "before[1] and after[1] are -3 and -2|4 elements");
    refuse(ATTO_PAD_CONSTANT, INT64_MAX, 1, ATTO_E_ARGUMENT, "before[1] is 9223372036854775807");
    refuse(ATTO_PAD_CONSTANT, INT64_MIN, 1, ATTO_E_ARGUMENT, "before[1] is -9223372036854775808");
    refuse(ATTO_PAD_REFLECT, 4, 0, ATTO_E_ARGUMENT,
           "before[1] is 4, expected 0 to 3 of 4 elements");
    refuse(ATTO_PAD_REFLECT, 0, 4, ATTO_E_ARGUMENT, "after[1] is 4");
    refuse(ATTO_PAD_REFLECT, -1, 3, ATTO_E_ARGUMENT, "before[1] is -1");
    refuse(ATTO_PAD_REPLICATE, 3, -1, ATTO_E_ARGUMENT, "after[1] is -1");
    refuse(ATTO_PAD_CIRCULAR, 5, 0, ATTO_E_ARGUMENT, "before[1] is 5, expected 0 to 4");
    refuse(ATTO_PAD_CIRCULAR, 0, -1, ATTO_E_ARGUMENT, "after[1] is -1");
    pad_scene s;
    begin(&s, &(pad_case){ .q = { .x = { 2, { 3, 4 } }, .before = { 0, 1 } } });
    build(&s);
    s.ty.view.dtype = s.tdx.view.dtype = ATTO_F16;
    EXPECT_FAIL(atto_pad_forward(test_dev, &s.args), ATTO_E_DTYPE, "pad_forward: y is f16|f32");
    EXPECT_FAIL(atto_pad_backward(test_dev, &s.args), ATTO_E_DTYPE, "pad_backward: dy is f32|f16");
    end(&s);
    /* Nothing to take the elements from. */
    begin(&s, &(pad_case){ .q = { .x = { 2, { 3, 0 } }, .before = { 0, 1 } } });
    build(&s);
    for (int mode = 1; mode < ATTO_PAD_COUNT; mode++) {
        s.args.mode = (atto_pad_kind)mode;
        EXPECT_FAIL(atto_pad_forward(test_dev, &s.args), ATTO_E_ARGUMENT,
                    "before[1] is 1, expected 0 to 0 of 0 elements");
    }
    end(&s);
}

/* ---- on a tape and as modules ---- */

typedef atto_status (*created)(atto_module **m);

static atto_status zero1(atto_module **m)
{
    return atto_zero_pad1d_create(test_dev, 2, 1, m);
}
static atto_status zero2(atto_module **m)
{
    return atto_zero_pad2d_create(test_dev, 1, -2, 3, 0, m);
}
static atto_status constant1(atto_module **m)
{
    return atto_constant_pad1d_create(test_dev, 0, 4, VALUE, m);
}
static atto_status constant2(atto_module **m)
{
    return atto_constant_pad2d_create(test_dev, 1, 2, 3, 4, VALUE, m);
}
static atto_status reflection1(atto_module **m)
{
    return atto_reflection_pad1d_create(test_dev, 3, 1, m);
}
static atto_status reflection2(atto_module **m)
{
    return atto_reflection_pad2d_create(test_dev, 3, 1, 2, 0, m);
}
static atto_status replication1(atto_module **m)
{
    return atto_replication_pad1d_create(test_dev, 5, 0, m);
}
static atto_status replication2(atto_module **m)
{
    return atto_replication_pad2d_create(test_dev, 0, 5, 1, 1, m);
}
static atto_status circular1(atto_module **m)
{
    return atto_circular_pad1d_create(test_dev, 4, 2, m);
}
static atto_status circular2(atto_module **m)
{
    return atto_circular_pad2d_create(test_dev, 1, 4, 3, 2, m);
}

/* Amounts are {left, right, top, bottom}, those of the create above. */
static const struct {
    created create;
    const char *name;
    atto_pad_kind mode;
    double value;
    int32_t dims;
    int64_t amount[4];
} modules[] = {
    { zero1, "ZeroPad1d", ATTO_PAD_CONSTANT, 0.0, 1, { 2, 1 } },
    { zero2, "ZeroPad2d", ATTO_PAD_CONSTANT, 0.0, 2, { 1, -2, 3, 0 } },
    { constant1, "ConstantPad1d", ATTO_PAD_CONSTANT, VALUE, 1, { 0, 4 } },
    { constant2, "ConstantPad2d", ATTO_PAD_CONSTANT, VALUE, 2, { 1, 2, 3, 4 } },
    { reflection1, "ReflectionPad1d", ATTO_PAD_REFLECT, 0.0, 1, { 3, 1 } },
    { reflection2, "ReflectionPad2d", ATTO_PAD_REFLECT, 0.0, 2, { 3, 1, 2, 0 } },
    { replication1, "ReplicationPad1d", ATTO_PAD_REPLICATE, 0.0, 1, { 5, 0 } },
    { replication2, "ReplicationPad2d", ATTO_PAD_REPLICATE, 0.0, 2, { 0, 5, 1, 1 } },
    { circular1, "CircularPad1d", ATTO_PAD_CIRCULAR, 0.0, 1, { 4, 2 } },
    { circular2, "CircularPad2d", ATTO_PAD_CIRCULAR, 0.0, 2, { 1, 4, 3, 2 } },
};

static pad_case case_of_module(int i, int32_t more)
{
    pad_case c = { .q = { .x = { modules[i].dims + more, { 0 } },
                          .mode = modules[i].mode,
                          .value = modules[i].value },
                   .seed = 400 + (uint64_t)i };
    const int64_t first[] = { 2, 3 };
    const int32_t rank = c.q.x.rank;
    for (int32_t d = 0; d < more; d++) c.q.x.dim[d] = first[d];
    for (int32_t k = 0; k < modules[i].dims; k++) {
        c.q.x.dim[rank - 1 - k] = 5 - k;
        c.q.before[rank - 1 - k] = modules[i].amount[2 * k];
        c.q.after[rank - 1 - k] = modules[i].amount[2 * k + 1];
    }
    return c;
}

/* By a function or by a module: results lie as x does, and nothing is copied. */
static void check_step(const pad_case *c, atto_module *m)
{
    const bool last = c->in == LAYOUT_CHANNELS_LAST;
    pad_scene s;
    atto_tape *tape;
    atto_tensor seen;
    atto_device_stats before, after;
    begin(&s, c);
    build(&s);
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_device_stats_get(test_dev, &before));
    const atto_var x = atto_borrow(tape, &s.tx.view, true);
    const atto_var y = m ? atto_apply(tape, m, x)
                       : c->q.mode == ATTO_PAD_CONSTANT
                           ? atto_pad(tape, x, c->q.before, c->q.after, c->q.value)
                           : atto_pad_mode(tape, x, c->q.mode, c->q.before, c->q.after);
    MUST(atto_var_tensor(tape, y, &seen));
    assert_true(!last || seen.stride[1] == 1);
    assert_true(last || seen.stride[seen.rank - 1] == 1);
    MUST(atto_tensor_copy(&s.ty.view, &seen));
    MUST(atto_backward_from(tape, y, &s.tdy.view));
    MUST(atto_var_grad(tape, x, &seen));
    assert_true(!last || seen.stride[1] == 1);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    MUST(atto_tensor_copy(&s.tdx.view, &seen));
    judge(&s);
    atto_tape_free(tape);
    end(&s);
}

static void pad_functions_and_modules_match_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(modules); i++) {
        atto_module *m;
        MUST(modules[i].create(&m));
        assert_string_equal(atto_module_class_name(m), modules[i].name);
        for (int32_t more = 1; more < 3; more++)
            for (int last = 0; last < more; last++) {
                pad_case c = case_of_module(i, more);
                c.in = c.out = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
                c.dtype = (atto_dtype)(ATTO_F32 + (i + more) % 3);
                check_step(&c, m);
                check_step(&c, NULL);
            }
        atto_module_free(m);
    }
}

static void pad_modules_stand_in_a_sequential(void **state)
{
    (void)state;
    atto_tape *tape;
    atto_module *net;
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_zero_pad1d(net, 1, 0));           /* 0 1 2 3, */
    MUST(atto_sequential_reflection_pad1d(net, 2, 0));     /* 2 1 0 1 2 3, */
    MUST(atto_sequential_replication_pad1d(net, 0, 1));    /* 2 1 0 1 2 3 3, */
    MUST(atto_sequential_circular_pad1d(net, 0, 1));       /* 2 1 0 1 2 3 3 2, */
    MUST(atto_sequential_constant_pad1d(net, -3, 1, 9.0)); /* 1 2 3 3 2 9 */
    const float data[] = { 1, 2, 3 }, want[] = { 1, 2, 3, 3, 2, 9 };
    float y[6];
    MUST(atto_var_read(
        tape, atto_apply(tape, net, atto_input(tape, ATTO_F32, atto_shape2(1, 3), data)), y));
    assert_memory_equal(y, want, sizeof want);
    atto_module_free(net);
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_zero_pad2d(net, 0, 0, 1, 0));            /* 0 0 / 1 2, */
    MUST(atto_sequential_reflection_pad2d(net, 1, 0, 0, 0));      /* 0 0 0 / 2 1 2, */
    MUST(atto_sequential_replication_pad2d(net, 0, 0, 1, 0));     /* 0 0 0 / 0 0 0 / 2 1 2, */
    MUST(atto_sequential_circular_pad2d(net, 0, 0, 0, 1));        /* and 0 0 0, */
    MUST(atto_sequential_constant_pad2d(net, 0, -1, -2, 0, 9.0)); /* 2 1 / 0 0 */
    const float image[] = { 2, 1, 0, 0 };
    MUST(atto_var_read(
        tape, atto_apply(tape, net, atto_input(tape, ATTO_F32, atto_shape3(1, 1, 2), data)), y));
    assert_memory_equal(y, image, sizeof image);
    atto_module_free(net);
    atto_tape_free(tape);
}

static void pad_modules_refuse_what_does_not_fit(void **state)
{
    (void)state;
    atto_module *m = NULL;
    atto_tape *tape;
    const float data[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    EXPECT_FAIL(atto_reflection_pad1d_create(test_dev, 1, -1, &m), ATTO_E_ARGUMENT,
                "reflection_pad1d_create: right is -1");
    assert_null(m);
    EXPECT_FAIL(atto_circular_pad2d_create(test_dev, 1, 1, 1, -2, &m), ATTO_E_ARGUMENT,
                "circular_pad2d_create: bottom is -2");
    EXPECT_FAIL(atto_zero_pad1d_create(NULL, 1, 1, &m), ATTO_E_NULL, "zero_pad1d_create: dev");
    EXPECT_FAIL(atto_zero_pad2d_create(test_dev, 1, 1, 1, 1, NULL), ATTO_E_NULL, "m is NULL");
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_reflection_pad2d_create(test_dev, 1, 1, 1, 1, &m));
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape2(2, 4), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "ReflectionPad2d: x is [2,4]|[C, H, W]");
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape3(1, 1, 8), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "ReflectionPad2d: before[1] is 1");
    atto_module_free(m);
    MUST(atto_constant_pad2d_create(test_dev, 1, 1, 1, 1, VALUE, &m));
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape1(8), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "ConstantPad2d: x is [8]|2 dimensions or more");
    atto_module_free(m);
    atto_tape_free(tape);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pad_takes_any_size),
    cmocka_unit_test(pad_counts_every_element_once),
    cmocka_unit_test(pad_takes_f16_and_bf16),
    cmocka_unit_test(pad_takes_integers),
    cmocka_unit_test(pad_replicates_far),
    cmocka_unit_test(pad_repeats_the_whole),
    cmocka_unit_test(pad_cuts_off),
    cmocka_unit_test(pad_passes_infinities_and_nan_on),
    cmocka_unit_test(pad_of_nothing),
    cmocka_unit_test(pad_takes_any_layout),
    cmocka_unit_test(pad_takes_strided_vectors),
    cmocka_unit_test(pad_takes_channels_last_without_copies),
    cmocka_unit_test(pad_repeats_bit_for_bit),
    cmocka_unit_test(pad_does_not_depend_on_threads),
    cmocka_unit_test(pad_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(pad_refuses_what_does_not_fit),
    cmocka_unit_test(pad_functions_and_modules_match_oracle),
    cmocka_unit_test(pad_modules_stand_in_a_sequential),
    cmocka_unit_test(pad_modules_refuse_what_does_not_fit),
};
TEST_MAIN("pad", tests)
