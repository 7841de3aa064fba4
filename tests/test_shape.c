/* SPDX-License-Identifier: MIT */
/* Shapes on a tape. A case says by index arithmetic which input element each output element is; whole
 * numbers make every value and every sum exact in all dtypes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

enum { INPUTS = 20, NOTHING = -1 };

static atto_tape *tape;

/* Element `at` of the output: which input it comes from, or NOTHING, and its number there. */
typedef struct place {
    int input;
    int64_t element;
} place;

typedef struct shape_case {
    const char *name;
    int inputs;
    atto_shape in, out; /* of every input */
    atto_var (*make)(const atto_var *x);
    place (*from)(const int64_t *at);
    bool copies; /* the result has memory of its own */
} shape_case;

/* ---- the cases: inputs are [2, 3, 4], where nothing else is said ---- */

static int64_t flat(int64_t i, int64_t j, int64_t k)
{
    return (i * 3 + j) * 4 + k;
}

static atto_var make_reshape(const atto_var *x)
{
    return atto_reshape(tape, x[0], atto_shape2(4, 6));
}
static place from_reshape(const int64_t *at)
{
    return (place){ 0, at[0] * 6 + at[1] };
}

static atto_var make_reshape_turned(const atto_var *x)
{
    return atto_reshape(tape, atto_transpose(tape, x[0], 0, 2), atto_shape1(24));
}
static place from_reshape_turned(const int64_t *at)
{
    return (place){ 0, flat(at[0] % 2, at[0] / 2 % 3, at[0] / 6) };
}

static atto_var make_unsqueeze(const atto_var *x)
{
    return atto_unsqueeze(tape, atto_unsqueeze(tape, x[0], 1), -1);
}
static place from_unsqueeze(const int64_t *at)
{
    return (place){ 0, flat(at[0], at[2], at[3]) };
}

static atto_var make_squeeze(const atto_var *x)
{
    return atto_squeeze(tape, atto_slice(tape, x[0], 1, 2, 3, 1), 1);
}
static place from_squeeze(const int64_t *at)
{
    return (place){ 0, flat(at[0], 2, at[1]) };
}

static atto_var make_permute(const atto_var *x)
{
    return atto_permute(tape, x[0], (int32_t[]){ 2, 0, -2 });
}
static place from_permute(const int64_t *at)
{
    return (place){ 0, flat(at[1], at[2], at[0]) };
}

static atto_var make_transpose(const atto_var *x)
{
    return atto_transpose(tape, x[0], -1, 1);
}
static place from_transpose(const int64_t *at)
{
    return (place){ 0, flat(at[0], at[2], at[1]) };
}

static atto_var make_slice(const atto_var *x)
{
    return atto_slice(tape, x[0], -1, 1, 4, 2);
}
static place from_slice(const int64_t *at)
{
    return (place){ 0, flat(at[0], at[1], 1 + 2 * at[2]) };
}

/* Overlapping slices of one value: gradients meet. */
static atto_var make_meeting_slices(const atto_var *x)
{
    const atto_var parts[] = { atto_slice(tape, x[0], 1, 0, 2, 1),
                               atto_slice(tape, x[0], 1, 1, 3, 1) };
    return atto_concat(tape, parts, 2, 1);
}
static place from_meeting_slices(const int64_t *at)
{
    return (place){ 0, flat(at[0], at[1] < 2 ? at[1] : at[1] - 1, at[2]) };
}

/* Parts of a split in another order. */
static atto_var make_split(const atto_var *x)
{
    atto_var parts[3], turned[3];
    atto_split(tape, x[0], 2, (int64_t[]){ 1, 0, 3 }, 3, parts);
    for (int i = 0; i < 3; i++) turned[i] = parts[2 - i];
    return atto_concat(tape, turned, 3, -1);
}
static place from_split(const int64_t *at)
{
    return (place){ 0, flat(at[0], at[1], at[2] < 3 ? at[2] + 1 : 0) };
}

static atto_var make_expand(const atto_var *x)
{
    const atto_var row = atto_slice(tape, x[0], 1, 1, 2, 1); /* [2, 1, 4] */
    return atto_expand(tape, row, atto_shape4(2, 2, 3, 4));
}
static place from_expand(const int64_t *at)
{
    return (place){ 0, flat(at[1], 1, at[3]) };
}

static atto_var make_concat(const atto_var *x)
{
    return atto_concat(tape, x, 3, 1);
}
static place from_concat(const int64_t *at)
{
    return (place){ (int)(at[1] / 3), flat(at[0], at[1] % 3, at[2]) };
}

/* More than a node takes. */
static atto_var make_long_concat(const atto_var *x)
{
    return atto_concat(tape, x, INPUTS, 0);
}
static place from_long_concat(const int64_t *at)
{
    return (place){ (int)(at[0] / 2), flat(at[0] % 2, at[1], at[2]) };
}

static atto_var make_stack(const atto_var *x)
{
    return atto_stack(tape, x, 2, -1);
}
static place from_stack(const int64_t *at)
{
    return (place){ (int)at[3], flat(at[0], at[1], at[2]) };
}

static atto_var make_long_stack(const atto_var *x)
{
    return atto_stack(tape, x, INPUTS, 1);
}
static place from_long_stack(const int64_t *at)
{
    return (place){ (int)at[1], flat(at[0], at[2], at[3]) };
}

/* The same value twice: one gradient. */
static atto_var make_twice(const atto_var *x)
{
    const atto_var both[] = { x[0], x[0] };
    return atto_concat(tape, both, 2, 2);
}
static place from_twice(const int64_t *at)
{
    return (place){ 0, flat(at[0], at[1], at[2] % 4) };
}

#define PADDED 7.0

static atto_var make_pad(const atto_var *x)
{
    return atto_pad(tape, x[0], (int64_t[]){ 1, 0, 2 }, (int64_t[]){ 0, 2, 1 }, PADDED);
}
static place from_pad(const int64_t *at)
{
    const bool inside = at[0] >= 1 && at[1] < 3 && at[2] >= 2 && at[2] < 6;
    return (place){ inside ? 0 : NOTHING, inside ? flat(at[0] - 1, at[1], at[2] - 2) : 0 };
}

/* clang-format off */
#define CASE(name_, inputs_, copies_, rank_, ...)                                             \
    { #name_, inputs_, { 3, { 2, 3, 4 } }, { rank_, { __VA_ARGS__ } }, make_##name_, from_##name_, copies_ }

static const shape_case cases[] = {
    CASE(reshape,        1,      false, 2, 4, 6),
    CASE(reshape_turned, 1,      true,  1, 24),
    CASE(unsqueeze,      1,      false, 5, 2, 1, 3, 4, 1),
    CASE(squeeze,        1,      false, 2, 2, 4),
    CASE(permute,        1,      false, 3, 4, 2, 3),
    CASE(transpose,      1,      false, 3, 2, 4, 3),
    CASE(slice,          1,      false, 3, 2, 3, 2),
    CASE(meeting_slices, 1,      true,  3, 2, 4, 4),
    CASE(split,          1,      true,  3, 2, 3, 4),
    CASE(expand,         1,      false, 4, 2, 2, 3, 4),
    CASE(concat,         3,      true,  3, 2, 9, 4),
    CASE(long_concat,    INPUTS, true,  3, 2 * INPUTS, 3, 4),
    CASE(stack,          2,      true,  4, 2, 3, 4, 2),
    CASE(long_stack,     INPUTS, true,  4, 2, INPUTS, 3, 4),
    CASE(twice,          1,      true,  3, 2, 3, 8),
    CASE(pad,            1,      true,  3, 3, 5, 7),
};
/* clang-format on */

/* ---- running them ---- */

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

static int64_t numel(const atto_shape *s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s->rank; d++) n *= s->dim[d];
    return n;
}

static void unravel(int64_t i, const atto_shape *s, int64_t *at)
{
    for (int32_t d = s->rank - 1; d >= 0; d--) {
        at[d] = i % s->dim[d];
        i /= s->dim[d];
    }
}

/* Whole numbers below 128: bf16 has them all. */
static double number(int64_t i)
{
    return (double)(i * 37 % 127);
}

/* Ones, twos and threes: a sum of up to 40 is exact. */
static double gradient(int64_t i)
{
    return (double)(1 + i % 3);
}

static void fill(test_tensor *t, const atto_shape *s, double (*f)(int64_t), int64_t shift)
{
    const int64_t n = numel(s);
    double *values = test_doubles(n);
    for (int64_t i = 0; i < n; i++) values[i] = f(i + shift);
    test_tensor_put(t, values);
    free(values);
}

/* What v is, as doubles, through a tensor of the test's. */
static double *values_of(const atto_tensor *t)
{
    test_tensor copy;
    double *out = test_doubles(atto_tensor_numel(t) + 1);
    test_tensor_make(&copy, test_dev, t->dtype, atto_shape_of(t->rank, t->shape), LAYOUT_DENSE);
    MUST(atto_tensor_copy(&copy.view, t));
    test_tensor_get(&copy, out);
    test_tensor_drop(&copy);
    return out;
}

static void expect_output(const shape_case *c, const atto_tensor *y)
{
    double *got = values_of(y);
    assert_int_equal(y->rank, c->out.rank);
    for (int32_t d = 0; d < y->rank; d++) assert_int_equal(y->shape[d], c->out.dim[d]);
    for (int64_t i = 0; i < numel(&c->out); i++) {
        int64_t at[ATTO_MAX_RANK];
        unravel(i, &c->out, at);
        const place p = c->from(at);
        const double want = p.input == NOTHING ? PADDED : number(p.element + 5 * p.input);
        if (got[i] != want) fail_msg("%s: y[%d] is %g, not %g", c->name, (int)i, got[i], want);
    }
    free(got);
}

/* Whatever reads an element adds its gradient. */
static void expect_gradients(const shape_case *c, const atto_var *x)
{
    const int64_t n = numel(&c->in);
    double *want = test_doubles(n * c->inputs);
    for (int64_t i = 0; i < n * c->inputs; i++) want[i] = 0.0;
    for (int64_t i = 0; i < numel(&c->out); i++) {
        int64_t at[ATTO_MAX_RANK];
        unravel(i, &c->out, at);
        const place p = c->from(at);
        if (p.input != NOTHING) want[p.input * n + p.element] += gradient(i);
    }
    for (int k = 0; k < c->inputs; k++) {
        atto_tensor dx;
        MUST(atto_var_grad(tape, x[k], &dx));
        double *got = values_of(&dx);
        for (int64_t i = 0; i < n; i++)
            if (got[i] != want[k * n + i])
                fail_msg("%s: dx%d[%d] is %g, not %g", c->name, k, (int)i, got[i], want[k * n + i]);
        free(got);
    }
    free(want);
}

static void run_case(const shape_case *c, atto_dtype dtype, test_layout layout)
{
    const bool is_float = dtype != ATTO_I32 && dtype != ATTO_I64;
    test_tensor in[INPUTS], dy;
    atto_var x[INPUTS];
    atto_tensor y;
    for (int k = 0; k < c->inputs; k++) {
        test_tensor_make(&in[k], test_dev, dtype, c->in, layout);
        fill(&in[k], &c->in, number, 5 * k);
        x[k] = atto_borrow(tape, &in[k].view, is_float);
    }
    const atto_var v = c->make(x);
    MUST(atto_var_tensor(tape, v, &y));
    expect_output(c, &y);
    if (layout == LAYOUT_DENSE) assert_int_equal(y.buffer == in[0].view.buffer, !c->copies);
    if (is_float) {
        test_tensor_make(&dy, test_dev, dtype, c->out, LAYOUT_DENSE);
        fill(&dy, &c->out, gradient, 0);
        MUST(atto_backward_from(tape, v, &dy.view));
        expect_gradients(c, x);
        test_tensor_drop(&dy);
    }
    MUST(atto_tape_end(tape));
    for (int k = 0; k < c->inputs; k++) test_tensor_drop(&in[k]);
}

static void shapes_are_what_indices_say(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16, ATTO_I32, ATTO_I64 };
    for (int i = 0; i < COUNT_OF(cases); i++)
        for (int d = 0; d < COUNT_OF(dtypes); d++) run_case(&cases[i], dtypes[d], LAYOUT_DENSE);
}

static void shapes_of_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_TRANSPOSED, LAYOUT_OFFSET };
    for (int i = 0; i < COUNT_OF(cases); i++)
        if (cases[i].make != make_reshape) /* a copy, of what does not lie row by row */
            for (int l = 0; l < COUNT_OF(layouts); l++) run_case(&cases[i], ATTO_F32, layouts[l]);
}

/* ---- edges ---- */

static void shapes_may_be_empty(void **state)
{
    (void)state;
    atto_tensor t, y;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(0, 3), &t));
    const atto_var x = atto_borrow(tape, &t, true);
    const atto_var both[] = { x, x };
    const atto_var none[] = { atto_transpose(tape, x, 0, 1), atto_slice(tape, x, 1, 2, 2, 1),
                              atto_concat(tape, both, 2, 0), atto_stack(tape, both, 2, 0),
                              atto_expand(tape, x, atto_shape3(4, 0, 3)) };
    for (int i = 0; i < COUNT_OF(none); i++) {
        MUST(atto_var_tensor(tape, none[i], &y));
        assert_int_equal(atto_tensor_numel(&y), 0);
    }
    /* something around nothing */
    const atto_var padded = atto_pad(tape, x, (int64_t[]){ 1, 0 }, (int64_t[]){ 1, 0 }, 3.0);
    float got[6];
    MUST(atto_var_read(tape, padded, got));
    for (int i = 0; i < 6; i++) assert_true(got[i] == 3.0f);
    MUST(atto_tape_end(tape));
    atto_tensor_free(&t);
}

static void shapes_of_rank_0(void **state)
{
    (void)state;
    const float one = 1.0f;
    float got[3];
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape0(), &one);
    const atto_var three[] = { x, x, x };
    MUST(atto_var_read(tape, atto_stack(tape, three, 3, 0), got));
    for (int i = 0; i < 3; i++) assert_true(got[i] == 1.0f);
    MUST(atto_var_read(tape, atto_pad(tape, x, NULL, NULL, 2.0), got));
    MUST(atto_var_read(tape, atto_squeeze(tape, atto_unsqueeze(tape, x, -1), 0), got));
    MUST(atto_var_read(tape, atto_permute(tape, x, (int32_t[]){ 0 }), got));
    assert_true(got[0] == 1.0f);
    MUST(atto_tape_end(tape));
}

/* A parameter that is changed behind a view spoils the backward of what read the view, also when it gets
 * no gradient itself. */
static void shapes_notice_parameters_that_changed(void **state)
{
    (void)state;
    const float values[4] = { 1, 2, 3, 4 };
    atto_param *p;
    atto_tensor x, ones;
    MUST(atto_param_create(test_dev, ATTO_F32, atto_shape2(2, 2), &p));
    MUST(atto_param_write(p, values));
    atto_param_freeze(p, true);
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 2), &x));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(2, 2), &ones));
    MUST(atto_tensor_fill(&x, 1.0));
    MUST(atto_tensor_fill(&ones, 1.0));
    for (int i = 0; i < 2; i++) {
        const atto_var w = atto_use(tape, p);
        const atto_var view =
            i ? atto_transpose(tape, w, 0, 1)
              : atto_expand(tape, atto_slice(tape, w, 0, 0, 1, 1), atto_shape2(2, 2));
        const atto_var y = atto_binary(tape, ATTO_BINARY_MUL, atto_borrow(tape, &x, true), view);
        MUST(atto_param_write(p, values));
        EXPECT_FAIL(atto_backward_from(tape, y, &ones), ATTO_E_STATE, "a parameter was changed");
        EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "changed");
    }
    atto_tensor_free(&x);
    atto_tensor_free(&ones);
    atto_param_free(p);
}

/* What a join copied is free as soon as its scope is over: backward needs shapes alone. */
static void shapes_hold_no_memory(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    atto_tensor t, ones, dx;
    atto_device_stats before, after;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(N), &t));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(4 * N), &ones));
    MUST(atto_tensor_fill(&t, 1.0));
    MUST(atto_tensor_fill(&ones, 1.0));
    MUST(atto_device_stats_get(test_dev, &before));
    const atto_var x = atto_borrow(tape, &t, true);
    atto_scope_begin(tape);
    const atto_var twice = atto_concat(tape, (atto_var[]){ x, x }, 2, 0);
    const atto_var y = atto_concat(tape, (atto_var[]){ twice, twice }, 2, 0);
    atto_scope_end(tape, &y, 1);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_true(after.bytes_live - before.bytes_live < 5 * N * 4);
    MUST(atto_backward_from(tape, y, &ones));
    MUST(atto_var_grad(tape, x, &dx));
    double *got = values_of(&dx);
    for (int i = 0; i < N; i++) assert_true(got[i] == 4.0);
    free(got);
    MUST(atto_tape_end(tape));
    atto_tensor_free(&t);
    atto_tensor_free(&ones);
}

/* ---- triangles ---- */

static const int64_t diagonals[] = { 0, 1, -1, 3, -4, 100, -100, INT64_MAX, INT64_MIN };

static bool is_kept(int64_t row, int64_t col, int64_t diagonal)
{
    if (diagonal > 100) return true;
    return diagonal >= -100 && col - row <= diagonal;
}

static void tril_masks_are_what_indices_say(void **state)
{
    (void)state;
    const int64_t sizes[][2] = { { 5, 7 }, { 7, 5 }, { 1, 1 }, { 65, 129 }, { 0, 3 }, { 3, 0 } };
    for (int s = 0; s < COUNT_OF(sizes); s++)
        for (int d = 0; d < COUNT_OF(diagonals); d++) {
            const int64_t rows = sizes[s][0], cols = sizes[s][1];
            atto_tensor mask;
            static int32_t got[65 * 129];
            MUST(atto_tril_mask(test_dev, rows, cols, diagonals[d], &mask));
            assert_int_equal(mask.dtype, ATTO_I32);
            assert_true(mask.rank == 2 && mask.shape[0] == rows && mask.shape[1] == cols);
            if (rows * cols > 0) MUST(atto_tensor_read(&mask, got));
            for (int64_t i = 0; i < rows * cols; i++)
                assert_int_equal(got[i], is_kept(i / cols, i % cols, diagonals[d]));
            atto_tensor_free(&mask);
        }
}

/* The tensor's values, as whole numbers are in every dtype. */
static void expect_kept(const atto_tensor *t, int64_t diagonal, const double *kept)
{
    unsigned char bytes[2 * 5 * 7 * 4];
    const size_t size = atto_dtype_size(t->dtype);
    MUST(atto_tensor_read(t, bytes));
    for (int64_t i = 0; i < 2 * 5 * 7; i++) {
        uint32_t bits = 0;
        memcpy(&bits, bytes + (size_t)i * size, size);
        assert_true(oracle_decode(t->dtype, bits) ==
                    (is_kept(i / 7 % 5, i % 7, diagonal) ? kept[i] : 0.0));
    }
}

/* Values and gradients; NaN above the diagonal leaves no trace. */
static void check_tril(atto_dtype dtype, int64_t diagonal)
{
    enum { N = 2 * 5 * 7 };
    double held[N], ones[N];
    test_tensor x;
    atto_tensor grad, copy;
    test_tensor_make(&x, test_dev, dtype, atto_shape3(2, 5, 7), LAYOUT_PITCHED);
    for (int i = 0; i < N; i++) {
        held[i] = is_kept(i / 7 % 5, i % 7, diagonal) ? (double)i + 1.0 : NAN;
        ones[i] = 1.0;
    }
    test_tensor_put(&x, held);
    const atto_var v = atto_borrow(tape, &x.view, true);
    const atto_var y = atto_tril(tape, v, diagonal);
    MUST(atto_var_tensor(tape, y, &copy));
    expect_kept(&copy, diagonal, held);
    MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, y, NULL)));
    MUST(atto_var_grad(tape, v, &grad));
    expect_kept(&grad, diagonal, ones);
    MUST(atto_tape_end(tape));
    test_tensor_drop(&x);
}

static void tril_zeroes_what_is_above(void **state)
{
    (void)state;
    for (int d = 0; d < COUNT_OF(diagonals); d++) check_tril(ATTO_F32, diagonals[d]);
    check_tril(ATTO_F16, 1);
    check_tril(ATTO_BF16, -1);
}

/* ---- refusals ---- */

static atto_var x23(void)
{
    static const float values[6] = { 0 };
    return atto_input(tape, ATTO_F32, atto_shape2(2, 3), values);
}

#define REFUSES(call, status, words)                     \
    do {                                                 \
        (void)(call);                                    \
        EXPECT_FAIL(atto_tape_end(tape), status, words); \
    } while (0)

static void shapes_refuse_what_does_not_fit(void **state)
{
    (void)state;
    const int32_t twice[] = { 0, 0 };
    const int64_t some[] = { 1, 1 }, negative[] = { -3, 0 }, huge[] = { INT64_MAX, 0 };
    const int64_t short_sizes[] = { 1, 1 }, below[] = { 4, -1 };
    const int wrong[3] = { 0 };
    const float one = 1.0f;
    const atto_shape eight = { 8, { 1, 1, 1, 1, 1, 1, 1, 1 } };
    atto_var out[2];
    REFUSES(atto_permute(tape, x23(), twice), ATTO_E_ARGUMENT, "permute");
    REFUSES(atto_permute(tape, x23(), NULL), ATTO_E_NULL, "permute");
    REFUSES(atto_transpose(tape, x23(), 0, 2), ATTO_E_ARGUMENT, "transpose: dim is 2|-2 to 1");
    REFUSES(atto_slice(tape, x23(), 1, 2, 4, 1), ATTO_E_ARGUMENT, "slice");
    REFUSES(atto_slice(tape, x23(), 1, 0, 3, 0), ATTO_E_ARGUMENT, "slice");
    REFUSES(atto_squeeze(tape, x23(), 0), ATTO_E_SHAPE, "squeeze: dimension 0 has size 2");
    REFUSES(atto_unsqueeze(tape, x23(), 3), ATTO_E_ARGUMENT, "unsqueeze: dim is 3|-3 to 2");
    REFUSES(atto_unsqueeze(tape, atto_input(tape, ATTO_F32, eight, &one), 0), ATTO_E_SHAPE,
            "unsqueeze: the result would have 9 dimensions, expected at most 8");
    REFUSES(atto_squeeze(tape, atto_input(tape, ATTO_F32, atto_shape0(), &one), 0), ATTO_E_ARGUMENT,
            "squeeze: dim is 0 of a value that has no dimensions");
    REFUSES(atto_expand(tape, x23(), atto_shape2(4, 3)), ATTO_E_SHAPE, "expand");
    REFUSES(atto_split(tape, x23(), 1, short_sizes, 2, out), ATTO_E_SHAPE, "split|add up to the 3");
    REFUSES(atto_split(tape, x23(), 1, below, 2, out), ATTO_E_ARGUMENT, "split: size 1 is -1");
    REFUSES(atto_split(tape, x23(), 1, NULL, 2, out), ATTO_E_NULL, "split: sizes");
    REFUSES(atto_split(tape, x23(), 1, some, 2, NULL), ATTO_E_NULL, "split: out");
    REFUSES(atto_pad(tape, x23(), negative, some, 0.0), ATTO_E_ARGUMENT, "pad: before[0] is -3");
    REFUSES(atto_pad(tape, x23(), huge, some, 0.0), ATTO_E_ARGUMENT, "pad: before[0]");
    REFUSES(atto_pad_mode(tape, x23(), ATTO_PAD_REFLECT, huge, some), ATTO_E_ARGUMENT,
            "pad_mode: before[0]|expected 0 to 1");
    REFUSES(atto_pad_mode(tape, x23(), ATTO_PAD_REFLECT, some, NULL), ATTO_E_NULL,
            "pad_mode: after");
    REFUSES(atto_pad(tape, x23(), NULL, some, 0.0), ATTO_E_NULL, "pad: before");
    REFUSES(atto_concat(tape, NULL, 2, 0), ATTO_E_NULL, "concat: inputs");
    REFUSES(atto_concat(tape, out, 0, 0), ATTO_E_ARGUMENT, "concat: 0 inputs");
    REFUSES(atto_concat(tape, (atto_var[]){ x23() }, 1, 2), ATTO_E_ARGUMENT, "concat: dim is 2");
    const atto_var three = atto_input(tape, ATTO_I32, atto_shape1(3), wrong);
    REFUSES(atto_concat(tape, (atto_var[]){ x23(), three }, 2, 0), ATTO_E_DTYPE,
            "concat: input 1 is i32 [3]|f32 [2,3]");
    const atto_var turned = atto_transpose(tape, x23(), 0, 1);
    REFUSES(atto_concat(tape, (atto_var[]){ x23(), turned }, 2, 0), ATTO_E_SHAPE,
            "concat: input 1 is f32 [3,2]");
}

static void tril_refuses_what_does_not_fit(void **state)
{
    (void)state;
    const int32_t whole[4] = { 0 };
    const float values[3] = { 0 };
    atto_tensor mask;
    REFUSES(atto_tril(tape, atto_input(tape, ATTO_F32, atto_shape1(3), values), 0), ATTO_E_SHAPE,
            "tril: x is [3]|two dimensions");
    REFUSES(atto_tril(tape, atto_input(tape, ATTO_I32, atto_shape2(2, 2), whole), 0), ATTO_E_DTYPE,
            "tril: x is i32");
    EXPECT_FAIL(atto_tril_mask(NULL, 2, 2, 0, &mask), ATTO_E_NULL, "tril_mask: dev");
    EXPECT_FAIL(atto_tril_mask(test_dev, 2, 2, 0, NULL), ATTO_E_NULL, "tril_mask: mask");
    EXPECT_FAIL(atto_tril_mask(test_dev, -1, 2, 0, &mask), ATTO_E_SHAPE, "tril_mask: rows is -1");
    EXPECT_FAIL(atto_tril_mask(test_dev, 2, -3, 0, &mask), ATTO_E_SHAPE, "tril_mask: cols is -3");
    assert_null(mask.buffer);
}

#define ON_A_TAPE(test) cmocka_unit_test_setup_teardown(test, open_tape, close_tape)

static const struct CMUnitTest tests[] = {
    ON_A_TAPE(shapes_are_what_indices_say),
    ON_A_TAPE(shapes_of_any_layout),
    ON_A_TAPE(shapes_may_be_empty),
    ON_A_TAPE(shapes_of_rank_0),
    ON_A_TAPE(shapes_hold_no_memory),
    ON_A_TAPE(shapes_notice_parameters_that_changed),
    ON_A_TAPE(shapes_refuse_what_does_not_fit),
    ON_A_TAPE(tril_masks_are_what_indices_say),
    ON_A_TAPE(tril_zeroes_what_is_above),
    ON_A_TAPE(tril_refuses_what_does_not_fit),
};
TEST_MAIN("shape", tests)
