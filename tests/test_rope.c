/* SPDX-License-Identifier: MIT */
/* rope, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_rope.h"

/* ---- one case ---- */

typedef struct rope_case {
    int64_t b, h, l, d, pairs;
    int64_t rows, offset;         /* rows: of the tables; 0 = offset + l */
    int32_t position;             /* 0: none; 1: [l]; 2: [b, l] */
    bool neighbours, add, narrow; /* narrow: positions are i32 */
    atto_dtype dtype;             /* 0 = f32 */
    test_layout layout;           /* of all tensors */
    uint64_t seed;
} rope_case;

/* A case with its data and tensors. */
typedef struct rope_scene {
    rope_case c;
    int64_t numel, rows, table;
    double *x, *dy, *old, *cos, *sin, *position, *y, *dx, *y_terms, *dx_terms;
    test_tensor tx, tcos, tsin, tposition, ty, tdy, tdx;
    struct atto_rope_args args;
} rope_scene;

static void begin(rope_scene *s, const rope_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    s->numel = c->b * c->h * c->l * c->d;
    s->rows = c->rows ? c->rows : c->offset + c->l;
    s->table = s->rows * c->pairs;
    double **arrays[] = { &s->x, &s->dy, &s->old, &s->y, &s->dx, &s->y_terms, &s->dx_terms };
    for (int i = 0; i < COUNT_OF(arrays); i++) *arrays[i] = test_doubles(s->numel);
    s->cos = test_doubles(s->table), s->sin = test_doubles(s->table);
    s->position = test_doubles(c->b * c->l);
    test_uniform(c->seed + 1, -4.0, 4.0, s->c.dtype, s->x, s->numel);
    test_uniform(c->seed + 2, -1.0, 1.0, s->c.dtype, s->old, s->numel);
    test_uniform(c->seed + 3, -2.0, 2.0, s->c.dtype, s->dy, s->numel);
    test_uniform(c->seed + 4, -1.0, 1.0, ATTO_F32, s->cos, s->table);
    test_uniform(c->seed + 5, -1.0, 1.0, ATTO_F32, s->sin, s->table);
    uint64_t seed = c->seed + 6;
    for (int64_t i = 0; i < c->b * c->l && s->rows > 0; i++)
        s->position[i] = (double)(test_random(&seed) % (uint64_t)s->rows);
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(rope_scene *s)
{
    const rope_case *c = &s->c;
    struct atto_rope_args *a = &s->args;
    const atto_shape shape = atto_shape4(c->b, c->h, c->l, c->d);
    make(&s->tx, c->dtype, shape, c->layout, s->x, &a->x);
    make(&s->tcos, ATTO_F32, atto_shape2(s->rows, c->pairs), c->layout, s->cos, &a->cos);
    make(&s->tsin, ATTO_F32, atto_shape2(s->rows, c->pairs), c->layout, s->sin, &a->sin);
    if (c->position)
        make(&s->tposition, c->narrow ? ATTO_I32 : ATTO_I64,
             c->position == 1 ? atto_shape1(c->l) : atto_shape2(c->b, c->l), c->layout, s->position,
             &a->position);
    make(&s->ty, c->dtype, shape, c->layout, NULL, &a->y);
    make(&s->tdy, c->dtype, shape, c->layout, s->dy, &a->dy);
    make(&s->tdx, c->dtype, shape, c->layout, c->add ? s->old : NULL, &a->dx);
    a->add_dx = c->add;
    a->pairing = c->neighbours ? ATTO_ROPE_NEIGHBOURS : ATTO_ROPE_HALVES;
    a->offset = c->offset;
}

static void end(rope_scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->tcos, &s->tsin, &s->ty, &s->tdy, &s->tdx };
    double *arrays[] = { s->x, s->dy,       s->old, s->cos,     s->sin,
                         s->y, s->position, s->dx,  s->y_terms, s->dx_terms };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    if (s->c.position) test_tensor_drop(&s->tposition);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void ask_oracle(rope_scene *s)
{
    const rope_case *c = &s->c;
    const oracle_rope q = { c->b,          c->h,      c->l,        c->d,   c->pairs, s->rows,
                            c->neighbours, c->offset, c->position, s->cos, s->sin,   s->position };
    oracle_rope_forward(&q, s->x, s->y, s->y_terms);
    oracle_rope_backward(&q, s->dy, s->dx, s->dx_terms);
}

static void judge(const rope_scene *s)
{
    const rope_case *c = &s->c;
    test_judge(&s->ty, "rope", c->layout, c->seed, 1, s->y, s->y_terms, NULL);
    test_judge(&s->tdx, "rope_grad", c->layout, c->seed, c->add ? 2 : 1, s->dx, s->dx_terms,
               c->add ? s->old : NULL);
    const test_tensor *inputs[] = { &s->tx, &s->tcos, &s->tsin, &s->tdy };
    for (int i = 0; i < COUNT_OF(inputs); i++) assert_true(test_tensor_untouched(inputs[i]));
}

static void call(rope_scene *s)
{
    MUST(atto_rope_forward(test_dev, &s->args));
    MUST(atto_rope_backward(test_dev, &s->args));
}

static void check(const rope_case *c)
{
    rope_scene s;
    begin(&s, c);
    build(&s);
    ask_oracle(&s);
    call(&s);
    judge(&s);
    MUST(atto_device_sync(test_dev));
    end(&s);
}

/* ---- sizes ---- */

/* Heads one and several, also no multiple of those that a work-item takes; whole vectors and odd
 * sizes; all elements turned, some, and none; rows longer than a block. */
static const struct {
    int64_t b, h, l, d, pairs;
} sizes[] = {
    { 1, 1, 1, 2, 1 },      { 1, 1, 1, 1, 0 },      { 2, 3, 5, 7, 3 },   { 1, 4, 1, 8, 4 },
    { 3, 2, 13, 64, 32 },   { 2, 5, 7, 64, 16 },    { 1, 7, 3, 40, 6 },  { 2, 1, 31, 128, 64 },
    { 1, 1, 2, 1030, 512 }, { 1, 2, 3, 1541, 601 }, { 2, 8, 67, 24, 8 }, { 1, 3, 2, 16, 0 },
};

static rope_case case_of(int i)
{
    return (rope_case){ .b = sizes[i].b,
                        .h = sizes[i].h,
                        .l = sizes[i].l,
                        .d = sizes[i].d,
                        .pairs = sizes[i].pairs,
                        .seed = 100 + (uint64_t)i };
}

/* I10. Positions: none with an offset, one for all batches, one for each; of two dtypes. */
static void rope_matches_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int k = 0; k < 4; k++) {
            rope_case c = case_of(i);
            c.neighbours = k % 2 == 1;
            c.add = k > 1;
            c.position = c.h > 1 || i == 8 ? (i + k / 2) % 3 : 0;
            c.narrow = i % 4 == 1;
            c.rows = c.position ? 9 : 0;
            c.offset = c.position ? 0 : i % 2 * 5;
            check(&c);
        }
}

/* Whole vectors in both pairings, odd sizes in one. */
static void rope_takes_f16_and_bf16(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < 6; k++) {
            rope_case c = case_of(k < 4 ? 4 + k / 2 : 2 + k % 2 * 7);
            c.dtype = d ? ATTO_BF16 : ATTO_F16;
            c.neighbours = k < 4 ? k % 2 == 1 : d == 1;
            c.add = k % 2 == 1;
            check(&c);
        }
}

/* I9 */
static void rope_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET,   LAYOUT_OFFSET4,    LAYOUT_PITCHED,
                                    LAYOUT_ALIGNED,  LAYOUT_TRANSPOSED, LAYOUT_STEP2,
                                    LAYOUT_SCATTERED };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int k = 0; k < 2; k++)
            check(&(rope_case){ .b = 2,
                                .h = 3,
                                .l = 5,
                                .d = 24,
                                .pairs = 8,
                                .rows = 6,
                                .position = i % 2 ? 2 : 0,
                                .neighbours = k == 1,
                                .add = k == 1,
                                .dtype = i % 2 ? ATTO_F32 : ATTO_BF16,
                                .layout = layouts[i],
                                .seed = 300 });
}

/* Elements that are not turned are the input's bits. */
static void rope_copies_the_rest_exactly(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        const rope_case c = { .b = 1,
                              .h = 2,
                              .l = 3,
                              .d = 24,
                              .pairs = 4,
                              .dtype = (atto_dtype)(ATTO_F32 + d),
                              .seed = 400 };
        rope_scene s;
        double *got = test_doubles(2 * 3 * 24);
        begin(&s, &c);
        build(&s);
        call(&s);
        test_tensor_get(&s.ty, got);
        for (int64_t i = 0; i < s.numel; i++)
            if (i % 24 >= 8) assert_true(got[i] == s.x[i]);
        test_tensor_get(&s.tdx, got);
        for (int64_t i = 0; i < s.numel; i++)
            if (i % 24 >= 8) assert_true(got[i] == s.dy[i]);
        free(got);
        end(&s);
    }
}

/* ---- heads side by side, in place ---- */

/* Part `which` of a packed [B, L, 3, H, D] as [B, H, L, D]. */
static atto_tensor part_of(const atto_tensor *packed, int64_t which)
{
    atto_tensor part = *packed;
    MUST(atto_tensor_slice(packed, 2, which, which + 1, 1, &part));
    part.rank = 4;
    part.shape[2] = part.shape[3], part.stride[2] = part.stride[3];
    part.shape[3] = part.shape[4], part.stride[3] = part.stride[4];
    MUST(atto_tensor_permute(&part, (int32_t[]){ 0, 2, 1, 3 }, &part));
    return part;
}

/* Queries and keys of a packed projection, turned where they lie: as the oracle says, and values are
 * left alone. No tensor is copied. */
static void turn_packed(bool neighbours)
{
    enum { B = 2, L = 5, H = 6, D = 16, N = B * L * 3 * H * D };
    static double held[N], got[N];
    double in[D], out[D], terms[D];
    test_tensor packed;
    atto_tensor cosines, sines;
    atto_device_stats before, after;
    static float table[2][L * D / 2];
    test_tensor_make(&packed, test_dev, ATTO_F32, atto_shape_of(5, (int64_t[]){ B, L, 3, H, D }),
                     LAYOUT_DENSE);
    test_uniform(500, -2.0, 2.0, ATTO_F32, held, N);
    test_tensor_put(&packed, held);
    MUST(atto_rope_tables(test_dev, L, D, NULL, &cosines, &sines));
    MUST(atto_tensor_read(&cosines, table[0]));
    MUST(atto_tensor_read(&sines, table[1]));
    MUST(atto_device_stats_get(test_dev, &before));
    for (int64_t which = 0; which < 2; which++) {
        const atto_tensor part = part_of(&packed.view, which);
        const struct atto_rope_args a = { .x = &part,
                                          .cos = &cosines,
                                          .sin = &sines,
                                          .y = &part,
                                          .pairing = neighbours ? ATTO_ROPE_NEIGHBOURS
                                                                : ATTO_ROPE_HALVES };
        MUST(atto_rope_forward(test_dev, &a));
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    test_tensor_get(&packed, got);
    for (int64_t at = 0; at < N; at += D) {
        const int64_t l = at / (3 * H * D) % L, which = at / (H * D) % 3;
        double c[D / 2], s[D / 2];
        for (int i = 0; i < D / 2; i++)
            c[i] = (double)table[0][l * D / 2 + i], s[i] = (double)table[1][l * D / 2 + i];
        const oracle_rope q = { 1, 1, 1, D, D / 2, 1, neighbours, 0, 0, c, s, NULL };
        memcpy(in, held + at, sizeof in);
        memcpy(out, in, sizeof out);
        if (which < 2) oracle_rope_forward(&q, in, out, terms);
        for (int i = 0; i < D; i++)
            assert_true(fabs(got[at + i] - out[i]) <= (which < 2 ? 0x1p-22 * 3 : 0.0));
    }
    test_tensor_drop(&packed);
    atto_tensor_free(&cosines);
    atto_tensor_free(&sines);
}

static void rope_turns_packed_heads_where_they_lie(void **state)
{
    (void)state;
    turn_packed(false);
    turn_packed(true);
}

/* An output may be its input: the bits are the same. */
static void rope_works_in_place(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int k = 0; k < 2; k++) {
            rope_case c = case_of(i);
            c.neighbours = k == 1;
            c.dtype = i == 5 && k == 1 ? ATTO_F16 : ATTO_F32;
            rope_scene s;
            begin(&s, &c);
            build(&s);
            uint64_t *want = calloc(4 * (size_t)s.numel, sizeof *want), *got = want + 2 * s.numel;
            call(&s);
            test_tensor_bits(&s.ty, want);
            test_tensor_bits(&s.tdx, want + s.numel);
            s.args.y = s.args.x;
            s.args.dx = s.args.dy;
            call(&s);
            test_tensor_bits(&s.tx, got);
            test_tensor_bits(&s.tdy, got + s.numel);
            assert_memory_equal(got, want, 2 * (size_t)s.numel * sizeof *want);
            free(want);
            end(&s);
        }
}

/* ---- values ---- */

/* I1 */
static void rope_of_nothing(void **state)
{
    (void)state;
    atto_device_stats before, after;
    MUST(atto_device_stats_get(test_dev, &before));
    check(&(rope_case){ .b = 0, .h = 2, .l = 3, .d = 8, .pairs = 4 });
    check(&(rope_case){ .b = 2, .h = 0, .l = 3, .d = 8, .pairs = 4 });
    check(&(rope_case){ .b = 2, .h = 2, .l = 0, .d = 8, .pairs = 4, .position = 2, .rows = 3 });
    check(&(rope_case){ .b = 2, .h = 2, .l = 3, .d = 0, .pairs = 0, .add = true });
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.launches, before.launches);
}

/* F7: what is turned by NaN or infinity shows it; others of the row do not. */
static void rope_passes_infinities_and_nan_on(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        rope_scene s;
        begin(&s,
              &(rope_case){ .b = 1, .h = 2, .l = 3, .d = 12, .pairs = 4, .neighbours = k == 1 });
        for (int i = 0; i < 4; i++) s.cos[i] = 0.5, s.sin[i] = 0.5;
        s.x[0] = NAN, s.x[3] = INFINITY, s.x[9] = -INFINITY, s.x[10] = NAN;
        s.dy[1] = NAN, s.dy[2] = -INFINITY, s.dy[11] = INFINITY;
        s.cos[5] = NAN;
        build(&s);
        ask_oracle(&s);
        call(&s);
        judge(&s);
        end(&s);
    }
}

/* ---- positions that name no row (G8) ---- */

static const double bad_positions[] = { 5, -1, 2147483647, -2147483648.0, 4294967297.0 };

/* That row is NaN, in all heads; the others are as ever; the next read tells, once. */
static void expect_data_error(atto_device *dev, rope_case c, double position)
{
    rope_scene s;
    atto_device *before = test_dev;
    test_dev = dev;
    begin(&s, &c);
    s.position[c.l / 2] = position;
    build(&s);
    ask_oracle(&s);
    MUST(atto_rope_forward(dev, &s.args));
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "index");
    MUST(atto_device_sync(dev));
    MUST(atto_rope_backward(dev, &s.args)); /* finds it by itself too */
    EXPECT_FAIL(atto_device_sync(dev), ATTO_E_INDEX, "index");
    judge(&s);
    end(&s);
    c.seed++; /* the device is as good as before */
    check(&c);
    test_dev = before;
}

static void rope_finds_bad_positions(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(bad_positions); i++)
        for (int k = 0; k < 2; k++)
            expect_data_error(test_dev,
                              (rope_case){ .b = 2,
                                           .h = 3,
                                           .l = 5,
                                           .d = k ? 24 : 13,
                                           .pairs = k ? 8 : 3,
                                           .rows = 5,
                                           .position = 1 + k,
                                           .narrow = i < 4 && k == 1,
                                           .add = k == 1,
                                           .neighbours = i % 2 == 1,
                                           .seed = 700 },
                              bad_positions[i]);
}

/* In tables without rows every position is wrong. */
static void rope_by_empty_tables(void **state)
{
    (void)state;
    rope_scene s;
    begin(&s, &(rope_case){ .b = 1, .h = 2, .l = 3, .d = 12, .pairs = 4, .position = 1 });
    s.rows = s.table = 0;
    build(&s);
    ask_oracle(&s);
    MUST(atto_rope_forward(test_dev, &s.args));
    EXPECT_FAIL(atto_device_sync(test_dev), ATTO_E_INDEX, "index");
    test_judge(&s.ty, "rope", LAYOUT_DENSE, 0, 1, s.y, s.y_terms, NULL);
    end(&s);
}

/* A device without kernels falls back to the CPU, and passes the bit on. */
static void rope_finds_bad_positions_through_the_fallback(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    test_broken broken;
    test_broken_open(&broken, "rope");
    expect_data_error(
        broken.dev,
        (rope_case){
            .b = 2, .h = 3, .l = 5, .d = 8, .pairs = 4, .rows = 5, .position = 1, .seed = 3 },
        5);
    test_broken_close(&broken, 4);
}

/* ---- properties ---- */

/* A query and a key at every position, all of them the same two vectors. */
static void turn_all_positions(const double *vector, int64_t l, int64_t d,
                               atto_rope_pairing pairing, const atto_tensor *cosines,
                               const atto_tensor *sines, double *out)
{
    test_tensor x, y;
    double *values = test_doubles(l * d);
    for (int64_t i = 0; i < l * d; i++) values[i] = vector[i % d];
    test_tensor_make(&x, test_dev, ATTO_F32, atto_shape4(1, 1, l, d), LAYOUT_DENSE);
    test_tensor_make(&y, test_dev, ATTO_F32, atto_shape4(1, 1, l, d), LAYOUT_DENSE);
    test_tensor_put(&x, values);
    const struct atto_rope_args a = {
        .x = &x.view, .cos = cosines, .sin = sines, .y = &y.view, .pairing = pairing
    };
    MUST(atto_rope_forward(test_dev, &a));
    test_tensor_get(&y, out);
    test_tensor_drop(&x);
    test_tensor_drop(&y);
    free(values);
}

static double product(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* The product of a query and a key is that of any two positions as far apart. Each element is off
 * by the roundings of two products, a sum and of cos and sin: 4 of |q| |k|. */
static void rope_knows_relative_positions_only(void **state)
{
    (void)state;
    enum { L = 40, D = 32 };
    double q[D], k[D], first[L];
    static double all_q[L * D], all_k[L * D];
    atto_tensor cosines, sines;
    test_uniform(900, -1.0, 1.0, ATTO_F32, q, D);
    test_uniform(901, -1.0, 1.0, ATTO_F32, k, D);
    const double allowed = 2 * 4 * 0x1p-24 * sqrt(product(q, q, D) * product(k, k, D)) * 2;
    MUST(atto_rope_tables(test_dev, L, D, NULL, &cosines, &sines));
    for (int p = 0; p < 2; p++) {
        const atto_rope_pairing pairing = p ? ATTO_ROPE_NEIGHBOURS : ATTO_ROPE_HALVES;
        turn_all_positions(q, L, D, pairing, &cosines, &sines, all_q);
        turn_all_positions(k, L, D, pairing, &cosines, &sines, all_k);
        for (int m = 0; m < L; m++)
            for (int n = m; n < L; n++) {
                const double got = product(all_q + n * D, all_k + m * D, D);
                if (m == 0) first[n] = got;
                assert_true(fabs(got - first[n - m]) <= allowed);
            }
        assert_true(fabs(first[0] - product(q, k, D)) <= allowed);
        assert_true(fabs(first[1] - first[0]) > 0x1p-10); /* it does depend on it */
    }
    atto_tensor_free(&cosines);
    atto_tensor_free(&sines);
}

/* With tables of cos and sin, backward of forward is the input. */
static void rope_turns_back(void **state)
{
    (void)state;
    enum { L = 9, D = 20, N = 3 * L * D };
    static double x[N], got[N];
    for (int p = 0; p < 2; p++) {
        test_tensor tx, ty;
        atto_tensor cosines, sines;
        MUST(atto_rope_tables(test_dev, 100, 12, NULL, &cosines, &sines));
        test_tensor_make(&tx, test_dev, ATTO_F32, atto_shape4(1, 3, L, D), LAYOUT_DENSE);
        test_tensor_make(&ty, test_dev, ATTO_F32, atto_shape4(1, 3, L, D), LAYOUT_DENSE);
        test_uniform(1000, -1.0, 1.0, ATTO_F32, x, N);
        test_tensor_put(&tx, x);
        const struct atto_rope_args a = { .x = &tx.view,
                                          .cos = &cosines,
                                          .sin = &sines,
                                          .y = &ty.view,
                                          .dy = &ty.view,
                                          .dx = &tx.view,
                                          .pairing = p ? ATTO_ROPE_NEIGHBOURS : ATTO_ROPE_HALVES,
                                          .offset = 91 };
        MUST(atto_rope_forward(test_dev, &a));
        test_tensor_get(&ty, got);
        assert_true(fabs(got[0] - x[0]) > 0x1p-10);
        MUST(atto_rope_backward(test_dev, &a));
        test_tensor_get(&tx, got);
        for (int i = 0; i < N; i++) assert_true(fabs(got[i] - x[i]) <= 0x1p-20);
        test_tensor_drop(&tx);
        test_tensor_drop(&ty);
        atto_tensor_free(&cosines);
        atto_tensor_free(&sines);
    }
}

/* ---- tables ---- */

static void expect_tables(int64_t positions, int64_t dims, const atto_rope_table_options *options,
                          double theta, double pace)
{
    const int64_t half = dims / 2;
    atto_tensor cosines, sines;
    float *got = calloc(2 * (size_t)(positions * half) + 1, sizeof *got);
    MUST(atto_rope_tables(test_dev, positions, dims, options, &cosines, &sines));
    assert_int_equal(cosines.shape[0], positions);
    assert_int_equal(cosines.shape[1], half);
    if (positions * half > 0) {
        MUST(atto_tensor_read(&cosines, got));
        MUST(atto_tensor_read(&sines, got + positions * half));
    }
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < half; i++) {
            const double angle =
                (double)p * pace * exp(-log(theta) * 2.0 * (double)i / (double)dims);
            const float *at = got + p * half + i;
            assert_true(fabs((double)at[0] - cos(angle)) <= 0x1p-24);
            assert_true(fabs((double)at[positions * half] - sin(angle)) <= 0x1p-24);
        }
    free(got);
    atto_tensor_free(&cosines);
    atto_tensor_free(&sines);
}

/* Half a step of f32 below 1 is 2^-25: positions of 10^5 leave no trace. */
static void rope_tables_are_exact(void **state)
{
    (void)state;
    expect_tables(3, 8, NULL, 10000.0, 1.0);
    expect_tables(100001, 4, NULL, 10000.0, 1.0);
    expect_tables(0, 4, NULL, 10000.0, 1.0);
    expect_tables(5, 0, NULL, 10000.0, 1.0);
    expect_tables(50, 64, &(atto_rope_table_options){ .theta = 500000.0 }, 500000.0, 1.0);
    expect_tables(50, 16,
                  &(atto_rope_table_options){ .scaling = ATTO_ROPE_SCALING_LINEAR, .factor = 4.0 },
                  10000.0, 0.25);
    /* 8^(6/4) = 22.627417 */
    expect_tables(50, 6,
                  &(atto_rope_table_options){ .scaling = ATTO_ROPE_SCALING_NTK, .factor = 8.0 },
                  10000.0 * 16.0 * sqrt(2.0), 1.0);
    expect_tables(5, 8, &(atto_rope_table_options){ .scaling = ATTO_ROPE_SCALING_NTK }, 10000.0,
                  1.0);
    expect_tables(5, 8, &(atto_rope_table_options){ .factor = 3.0 }, 10000.0, 1.0);
}

static void rope_tables_refuse_what_they_cannot_be(void **state)
{
    (void)state;
    const struct {
        int64_t positions, dims;
        atto_rope_table_options options;
        atto_status status;
        const char *words;
    } rows[] = {
        { -1, 4, { .theta = 0 }, ATTO_E_SHAPE, "positions is -1" },
        { 4, 5, { .theta = 0 }, ATTO_E_SHAPE, "dims is 5|even" },
        { 4, -2, { .theta = 0 }, ATTO_E_SHAPE, "dims is -2" },
        { 4, 4, { .theta = -1.0 }, ATTO_E_ARGUMENT, "theta is -1" },
        { 4, 4, { .theta = INFINITY }, ATTO_E_ARGUMENT, "theta is inf" },
        { 4, 4, { .factor = NAN }, ATTO_E_ARGUMENT, "factor is" },
        { 4, 4, { .scaling = (atto_rope_scaling)3 }, ATTO_E_ARGUMENT, "scaling is 3" },
        { 4, 2, { .scaling = ATTO_ROPE_SCALING_NTK }, ATTO_E_ARGUMENT, "dims is 2|NTK" },
        { 4, 4, { .reserved = { 1 } }, ATTO_E_ARGUMENT, "options|reserved" },
    };
    atto_tensor cosines, sines;
    for (int i = 0; i < COUNT_OF(rows); i++) {
        EXPECT_FAIL(atto_rope_tables(test_dev, rows[i].positions, rows[i].dims, &rows[i].options,
                                     &cosines, &sines),
                    rows[i].status, rows[i].words);
        assert_null(cosines.buffer);
        assert_null(sines.buffer);
    }
    EXPECT_FAIL(atto_rope_tables(NULL, 4, 4, NULL, &cosines, &sines), ATTO_E_NULL, "dev is NULL");
    EXPECT_FAIL(atto_rope_tables(test_dev, 4, 4, NULL, NULL, &sines), ATTO_E_NULL, "cos is NULL");
    EXPECT_FAIL(atto_rope_tables(test_dev, 4, 4, NULL, &cosines, NULL), ATTO_E_NULL, "sin is NULL");
}

/* ---- repeatability ---- */

static void take_bits(rope_scene *s, uint64_t *bits)
{
    call(s);
    test_tensor_bits(&s->ty, bits);
    test_tensor_bits(&s->tdx, bits + s->numel);
}

/* J1 */
static void rope_repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        rope_scene s;
        begin(
            &s,
            &(rope_case){
                .b = 2, .h = 8, .l = 67, .d = 64, .pairs = 32, .neighbours = k == 1, .seed = 800 });
        build(&s);
        const int64_t n = 2 * s.numel;
        uint64_t *bits = calloc(2 * (size_t)n, sizeof *bits);
        take_bits(&s, bits);
        for (int run = 0; run < 10; run++) {
            take_bits(&s, bits + n);
            assert_memory_equal(bits, bits + n, (size_t)n * sizeof *bits);
        }
        free(bits);
        end(&s);
    }
}

/* J1: nor do bits depend on the number of threads. */
static void rope_does_not_depend_on_threads(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    const int32_t threads[] = { 1, 2, 7 };
    const rope_case c = { .b = 2, .h = 8, .l = 67, .d = 64, .pairs = 29, .seed = 900 };
    const int64_t n = 2 * 2 * 8 * 67 * 64;
    uint64_t *bits = calloc(2 * (size_t)n, sizeof *bits);
    atto_device *before = test_dev;
    for (int i = 0; i < COUNT_OF(threads); i++) {
        const atto_device_options options = { .num_threads = threads[i] };
        rope_scene s;
        MUST(atto_device_open("cpu", &options, &test_dev));
        begin(&s, &c);
        build(&s);
        take_bits(&s, bits + (i > 0 ? n : 0));
        if (i > 0) assert_memory_equal(bits, bits + n, (size_t)n * sizeof *bits);
        end(&s);
        atto_device_close(test_dev);
    }
    test_dev = before;
    free(bits);
}

static void rope_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    rope_scene s;
    begin(
        &s,
        &(rope_case){
            .b = 2, .h = 3, .l = 5, .d = 24, .pairs = 8, .add = true, .layout = LAYOUT_SCATTERED });
    build(&s);
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        call(&s);
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.launches, before.launches + 6);
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

/* Makes one change to a good call, [2, 3, 4, 10] by tables of [6, 4] and positions [2, 4]. */
static void refuse(void (*spoil)(rope_scene *s), bool backward, atto_status status,
                   const char *words)
{
    rope_scene s;
    begin(&s,
          &(rope_case){ .b = 2, .h = 3, .l = 4, .d = 10, .pairs = 4, .rows = 6, .position = 2 });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(backward ? atto_rope_backward(test_dev, &s.args)
                         : atto_rope_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void flat_x(rope_scene *s)
{
    s->tx.view.rank = s->tdy.view.rank = 3;
}
static void whole_x(rope_scene *s)
{
    s->tx.view.dtype = s->tdy.view.dtype = ATTO_I32;
}
static void other_y(rope_scene *s)
{
    s->ty.view.shape[2] = s->tdx.view.shape[2] = 3;
}
static void half_y(rope_scene *s)
{
    s->ty.view.dtype = s->tdx.view.dtype = ATTO_F16;
}
static void flat_cos(rope_scene *s)
{
    s->tcos.view.rank = 1;
}
static void wide_cos(rope_scene *s)
{
    s->tx.view.shape[3] = s->tdy.view.shape[3] = 7;
}
static void half_cos(rope_scene *s)
{
    s->tcos.view.dtype = ATTO_F16;
}
static void short_sin(rope_scene *s)
{
    s->tsin.view.shape[0] = 5;
}
static void whole_sin(rope_scene *s)
{
    s->tsin.view.dtype = ATTO_I32;
}
static void other_pairing(rope_scene *s)
{
    s->args.pairing = (atto_rope_pairing)2;
}
static void before_the_start(rope_scene *s)
{
    s->args.position = NULL;
    s->args.offset = -1;
}
static void behind_the_end(rope_scene *s)
{
    s->args.position = NULL;
    s->args.offset = 3;
}
static void far_behind_the_end(rope_scene *s)
{
    s->args.position = NULL;
    s->args.offset = INT64_MAX;
}
static void offset_and_position(rope_scene *s)
{
    s->args.offset = 1;
}
static void float_position(rope_scene *s)
{
    s->tposition.view.dtype = ATTO_F32;
}
static void short_position(rope_scene *s)
{
    s->tposition.view.shape[1] = 3;
}
static void one_batch_of_positions(rope_scene *s)
{
    s->tposition.view.shape[0] = 1;
}
static void one_position(rope_scene *s)
{
    s->tposition.view.rank = 0;
}

static void rope_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(flat_x, backward, ATTO_E_SHAPE,
               backward ? "rope_backward: dy is|four dimensions"
                        : "rope_forward: x is|four dimensions");
        refuse(whole_x, backward, ATTO_E_DTYPE, backward ? "dy is i32" : "x is i32");
        refuse(other_y, backward, ATTO_E_SHAPE,
               backward ? "dx is [2,3,3,10]|[2,3,4,10]" : "y is [2,3,3,10]|[2,3,4,10]");
        refuse(half_y, backward, ATTO_E_DTYPE, backward ? "dx is f16" : "y is f16");
        refuse(flat_cos, backward, ATTO_E_SHAPE, "cos is [6]|two dimensions");
        refuse(wide_cos, backward, ATTO_E_SHAPE, "cos is [6,4]|at most 3 columns");
        refuse(half_cos, backward, ATTO_E_DTYPE, "cos is f16");
        refuse(short_sin, backward, ATTO_E_SHAPE, "sin is [5,4]|expected [6,4]");
        refuse(whole_sin, backward, ATTO_E_DTYPE, "sin is i32");
        refuse(other_pairing, backward, ATTO_E_ARGUMENT, "pairing is 2");
        refuse(before_the_start, backward, ATTO_E_ARGUMENT, "offset is -1");
        refuse(behind_the_end, backward, ATTO_E_SHAPE, "cos has 6 rows|offset 3|4 positions");
        refuse(far_behind_the_end, backward, ATTO_E_SHAPE, "cos has 6 rows");
        refuse(offset_and_position, backward, ATTO_E_ARGUMENT, "offset is 1 beside position");
        refuse(float_position, backward, ATTO_E_DTYPE, "position is f32|i32 or i64");
        refuse(short_position, backward, ATTO_E_SHAPE, "position is [2,3]|[4] or [2,4]");
        refuse(one_batch_of_positions, backward, ATTO_E_SHAPE, "position is [1,4]");
        refuse(one_position, backward, ATTO_E_SHAPE, "position is []");
    }
}

/* ---- on a tape ---- */

static void rope_on_a_tape(void **state)
{
    (void)state;
    enum { L = 3, D = 4, N = 2 * L * D };
    const int64_t rows[] = { 6, 0, 4 };
    double x[N], y[N], dy[N], dx[N], terms[N], c[8 * D / 2], s[8 * D / 2];
    float in[N], got[N], table[8 * D / 2];
    atto_tape *tape;
    atto_tensor input, cosines, sines, grad;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape4(1, 2, L, D), &input));
    for (int i = 0; i < N; i++) in[i] = (float)i - 7.0f, x[i] = (double)in[i], dy[i] = 1.0;
    MUST(atto_tensor_write(&input, in));
    MUST(atto_rope_tables(test_dev, 8, D, NULL, &cosines, &sines));
    MUST(atto_tensor_read(&cosines, table));
    for (int i = 0; i < 8 * D / 2; i++) c[i] = (double)table[i];
    MUST(atto_tensor_read(&sines, table));
    for (int i = 0; i < 8 * D / 2; i++) s[i] = (double)table[i];
    MUST(atto_tape_create(test_dev, &tape));
    for (int k = 0; k < 2; k++) {
        const double positions[] = { 6, 0, 4 };
        const oracle_rope q = { 1, 2, L, D, D / 2, 8, k == 1, k ? 0 : 5, k, c, s, positions };
        const atto_var v = atto_borrow(tape, &input, true);
        const atto_var cv = atto_borrow(tape, &cosines, false);
        const atto_var sv = atto_borrow(tape, &sines, false);
        const atto_var p = atto_input(tape, ATTO_I64, atto_shape1(L), rows);
        const atto_rope_options by_offset = { .offset = 5 };
        const atto_rope_options by_position = { .position = &p, .pairing = ATTO_ROPE_NEIGHBOURS };
        const atto_var r = atto_rope(tape, v, cv, sv, k ? &by_position : &by_offset);
        oracle_rope_forward(&q, x, y, terms);
        oracle_rope_backward(&q, dy, dx, terms);
        MUST(atto_var_read(tape, r, got));
        for (int i = 0; i < N; i++) assert_true(fabs((double)got[i] - y[i]) <= 0x1p-19);
        MUST(atto_backward(tape, atto_reduce(tape, ATTO_REDUCE_SUM, r, NULL)));
        MUST(atto_var_grad(tape, v, &grad));
        MUST(atto_tensor_read(&grad, got));
        for (int i = 0; i < N; i++) assert_true(fabs((double)got[i] - dx[i]) <= 0x1p-21);
        MUST(atto_tape_end(tape));
    }
    atto_rope(tape, atto_borrow(tape, &cosines, false), atto_borrow(tape, &cosines, false),
              atto_borrow(tape, &sines, false), NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "rope: x is [8,2]");
    atto_rope(tape, atto_borrow(tape, &input, true), atto_borrow(tape, &cosines, true),
              atto_borrow(tape, &sines, false), NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_UNSUPPORTED, "rope: cos would need a gradient");
    atto_rope(tape, atto_borrow(tape, &input, true), atto_borrow(tape, &cosines, false),
              atto_borrow(tape, &sines, false), &(atto_rope_options){ .offset = 6 });
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "rope_forward: cos has 8 rows");
    atto_tape_free(tape);
    atto_tensor_free(&input);
    atto_tensor_free(&cosines);
    atto_tensor_free(&sines);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rope_matches_oracle),
    cmocka_unit_test(rope_takes_f16_and_bf16),
    cmocka_unit_test(rope_takes_any_layout),
    cmocka_unit_test(rope_copies_the_rest_exactly),
    cmocka_unit_test(rope_turns_packed_heads_where_they_lie),
    cmocka_unit_test(rope_works_in_place),
    cmocka_unit_test(rope_of_nothing),
    cmocka_unit_test(rope_passes_infinities_and_nan_on),
    cmocka_unit_test(rope_finds_bad_positions),
    cmocka_unit_test(rope_by_empty_tables),
    cmocka_unit_test(rope_finds_bad_positions_through_the_fallback),
    cmocka_unit_test(rope_knows_relative_positions_only),
    cmocka_unit_test(rope_turns_back),
    cmocka_unit_test(rope_tables_are_exact),
    cmocka_unit_test(rope_tables_refuse_what_they_cannot_be),
    cmocka_unit_test(rope_repeats_bit_for_bit),
    cmocka_unit_test(rope_does_not_depend_on_threads),
    cmocka_unit_test(rope_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(rope_refuses_what_does_not_fit),
    cmocka_unit_test(rope_on_a_tape),
};
TEST_MAIN("rope", tests)
