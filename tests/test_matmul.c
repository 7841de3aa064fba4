/* SPDX-License-Identifier: MIT */
/* Matmul, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- one case ---- */

/* How a tensor lies in memory, beside its layout. */
typedef enum turn {
    AS_IT_IS,
    TURNED, /* columns before rows: a transposed view */
    HEADS   /* [..., rows, last of the batch, columns], as attention splits heads */
} turn;

typedef struct place {
    test_layout layout;
    turn turn;
} place;

typedef struct matmul_case {
    atto_shape a_batch, b_batch;
    int64_t m, n, k;
    atto_dtype dtype;
    atto_dtype out;   /* of y and dy; 0 = dtype */
    atto_dtype grads; /* of da and db; 0 = dtype */
    bool add;
    place a, b, y; /* dy lies as y does, da as a, db as b */
    bool not_finite;
    uint64_t seed;
} matmul_case;

/* A tensor and what it holds. */
typedef struct operand {
    test_tensor t;
    double *values;
} operand;

typedef struct scene {
    const matmul_case *c;
    atto_shape batch; /* of y */
    operand a, b, y, dy, da, db;
    struct atto_matmul_args args;
} scene;

#define OPERANDS 6
static operand *operand_of(scene *s, int i)
{
    operand *const all[OPERANDS] = { &s->a, &s->b, &s->y, &s->dy, &s->da, &s->db };
    return all[i];
}

static int64_t numel(atto_shape s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s.rank; d++) n *= s.dim[d];
    return n;
}

static atto_shape broadcast(atto_shape a, atto_shape b)
{
    atto_shape out = a.rank >= b.rank ? a : b;
    const atto_shape *other = a.rank >= b.rank ? &b : &a;
    for (int32_t i = 1; i <= other->rank; i++)
        if (out.dim[out.rank - i] == 1) out.dim[out.rank - i] = other->dim[other->rank - i];
    return out;
}

static atto_shape matrices(atto_shape batch, int64_t rows, int64_t columns)
{
    batch.dim[batch.rank] = rows;
    batch.dim[batch.rank + 1] = columns;
    batch.rank += 2;
    return batch;
}

static void swap(int64_t *list, int32_t i, int32_t j)
{
    const int64_t kept = list[i];
    list[i] = list[j];
    list[j] = kept;
}

/* Element of the buffer where the view has its logical index i. */
static int64_t position(const atto_tensor *t, int64_t i)
{
    int64_t at = t->offset;
    for (int32_t d = t->rank - 1; d >= 0; d--) {
        at += i % t->shape[d] * t->stride[d];
        i /= t->shape[d];
    }
    return at;
}

/* A tensor of that shape whose dimensions i and j lie in memory as if they had changed places. */
static void make_swapped(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                         int32_t i, int32_t j)
{
    swap(shape.dim, i, j);
    test_tensor_make(t, test_dev, dtype, shape, layout);
    swap(t->view.shape, i, j);
    swap(t->view.stride, i, j);
    for (int64_t e = 0; e < t->numel; e++) t->at[e] = position(&t->view, e);
}

static void make_placed(test_tensor *t, atto_dtype dtype, atto_shape shape, place p)
{
    const int32_t rank = shape.rank;
    if (p.turn == TURNED)
        make_swapped(t, dtype, shape, p.layout, rank - 2, rank - 1);
    else if (p.turn == HEADS && rank > 2)
        make_swapped(t, dtype, shape, p.layout, rank - 3, rank - 2);
    else
        test_tensor_make(t, test_dev, dtype, shape, p.layout);
}

/* Uniform on [-1, 1], as the tensor can hold it; else NaN, an output. */
static void make(operand *o, atto_dtype dtype, atto_shape shape, place p, uint64_t seed, bool holds)
{
    make_placed(&o->t, dtype, shape, p);
    o->values = test_doubles(o->t.numel);
    if (!holds) return;
    test_uniform(seed, -1.0, 1.0, dtype, o->values, o->t.numel);
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

static void plant(operand *o, int64_t index, double value)
{
    if (index >= o->t.numel) return;
    o->values[index] = value;
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

static void build(scene *s, const matmul_case *c)
{
    const atto_dtype out = c->out ? c->out : c->dtype, grads = c->grads ? c->grads : c->dtype;
    memset(s, 0, sizeof *s);
    s->c = c;
    s->batch = broadcast(c->a_batch, c->b_batch);
    const atto_shape a = matrices(c->a_batch, c->m, c->k), b = matrices(c->b_batch, c->k, c->n);
    const atto_shape y = matrices(s->batch, c->m, c->n);
    const uint64_t seed = 16 * c->seed;
    make(&s->a, c->dtype, a, c->a, seed, true);
    make(&s->b, c->dtype, b, c->b, seed + 1, true);
    make(&s->y, out, y, c->y, 0, false);
    make(&s->dy, out, y, c->y, seed + 2, true);
    make(&s->da, grads, a, c->a, seed + 3, c->add);
    make(&s->db, grads, b, c->b, seed + 4, c->add);
    if (c->not_finite) {
        plant(&s->a, 1, NAN);
        plant(&s->b, 2, INFINITY);
        plant(&s->dy, 3, -INFINITY);
    }
    s->args = (struct atto_matmul_args){ .a = &s->a.t.view,
                                         .b = &s->b.t.view,
                                         .y = &s->y.t.view,
                                         .dy = &s->dy.t.view,
                                         .da = &s->da.t.view,
                                         .db = &s->db.t.view,
                                         .add_da = c->add,
                                         .add_db = c->add };
}

static void tear_down(scene *s)
{
    for (int i = 0; i < OPERANDS; i++) {
        test_tensor_drop(&operand_of(s, i)->t);
        free(operand_of(s, i)->values);
    }
}

static oracle_sum *sums_of(int64_t n)
{
    oracle_sum *sums = calloc(n ? (size_t)n : 1, sizeof *sums);
    assert_non_null(sums);
    return sums;
}

/* Sums of n products against what the tensor holds. */
static void judge(const scene *s, const operand *o, const char *op, const oracle_sum *sums,
                  int64_t n)
{
    const bool adds = o == &s->da || o == &s->db;
    const double *old = s->c->add && adds ? o->values : NULL;
    double *want = test_doubles(o->t.numel), *terms = test_doubles(o->t.numel);
    for (int64_t i = 0; i < o->t.numel; i++) want[i] = sums[i].value, terms[i] = sums[i].terms;
    test_judge(&o->t, op, s->c->a.layout, s->c->seed, n + (old && n > 0), want, terms, old);
    free(want), free(terms);
}

static int64_t repetitions(const scene *s, atto_shape own)
{
    return numel(own) > 0 ? numel(s->batch) / numel(own) : 0;
}

static oracle_matmul question_of(const scene *s)
{
    const matmul_case *c = s->c;
    return (oracle_matmul){ c->m,     c->n,        c->k,        c->a_batch,  c->b_batch,
                            s->batch, s->a.values, s->b.values, s->dy.values };
}

static void expect_results(const scene *s)
{
    const matmul_case *c = s->c;
    const oracle_matmul o = question_of(s);
    oracle_sum *y = sums_of(s->y.t.numel), *da = sums_of(s->da.t.numel);
    oracle_sum *db = sums_of(s->db.t.numel);
    oracle_matmul_product(&o, y, da, db);
    judge(s, &s->y, "matmul", y, c->k);
    judge(s, &s->da, "matmul_grad", da, c->n * repetitions(s, c->a_batch));
    judge(s, &s->db, "matmul_grad", db, c->m * repetitions(s, c->b_batch));
    free(y), free(da), free(db);
}

static void check(const matmul_case *c)
{
    scene s;
    build(&s, c);
    MUST(atto_matmul_forward(test_dev, &s.args));
    MUST(atto_matmul_backward(test_dev, &s.args));
    expect_results(&s);
    assert_true(test_tensor_untouched(&s.a.t) && test_tensor_untouched(&s.b.t) &&
                test_tensor_untouched(&s.dy.t));
    tear_down(&s);
}

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* A driver builds three kernels for each combination of dtypes, storage orders and alignments, a
 * second each. The CPU meets every combination, OpenCL those of these tests that differ in what may
 * go wrong. */
static bool meets(bool on_opencl)
{
    return !test_on_opencl() || (on_opencl && !test_in_disguise());
}

#define BATCH(...)                                                                 \
    atto_shape_of((int32_t)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), \
                  (int64_t[]){ __VA_ARGS__ })

/* ---- sizes ---- */

/* Nothing, one, primes, below, at and above the powers of two that tiles have. */
static const int64_t sizes[] = { 0, 1, 2, 3, 7, 8, 31, 33, 64, 65, 127, 129 };

/* A Latin square: each pair of sizes meets in each pair of M, N and K. */
static void matmul_takes_any_size(void **state)
{
    (void)state;
    const int count = COUNT_OF(sizes);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const int64_t k = sizes[(i + j) % count];
            /* one kind of alignment, and of tile */
            const bool is_odd = sizes[i] % 4 != 0 && sizes[j] % 4 != 0 && k % 4 != 0;
            if (!meets(is_odd && sizes[i] * sizes[j] * k < 1 << 21)) continue;
            check(&(matmul_case){ .a_batch = BATCH(2),
                                  .b_batch = BATCH(2),
                                  .m = sizes[i],
                                  .n = sizes[j],
                                  .k = k,
                                  .dtype = test_on_opencl() ? ATTO_F32 : dtypes[(i + 2 * j) % 3],
                                  .add = (i + j) % 2 == 1,
                                  .seed = 100 + (uint64_t)(i * count + j) });
        }
}

static void matmul_takes_every_dtype(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int v = 0; v < 4; v++) { /* y and gradients in f32 or not */
            if (!meets(v == (d == 1 ? 1 : 0))) continue;
            check(&(matmul_case){ .a_batch = BATCH(3),
                                  .b_batch = BATCH(3),
                                  .m = 24,
                                  .n = 40,
                                  .k = 16,
                                  .dtype = dtypes[d],
                                  .out = v & 1 ? ATTO_F32 : dtypes[d],
                                  .grads = v & 2 ? ATTO_F32 : dtypes[d],
                                  .add = v == 3,
                                  .seed = 300 + (uint64_t)(d * 4 + v) });
        }
}

/* Long sums, of which backends make slices; few rows; single rows and columns. */
static void matmul_takes_lopsided_shapes(void **state)
{
    (void)state;
    static const struct {
        int64_t batch, m, n, k;
    } rows[] = { { 3, 5, 7, 4099 }, { 2, 1, 65, 1031 },  { 5, 129, 1, 33 }, { 1, 1, 1, 4097 },
                 { 9, 1, 1, 17 },   { 2, 2053, 3, 5 },   { 3, 1, 515, 1 },  { 70, 3, 5, 2 },
                 { 2, 3, 4099, 5 }, { 1, 130, 140, 200 } };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int d = 0; d < 3; d++) {
            if (!meets(d == 0 && i + 1 < COUNT_OF(rows))) continue;
            check(&(matmul_case){ .a_batch = BATCH(rows[i].batch),
                                  .b_batch = BATCH(rows[i].batch),
                                  .m = rows[i].m,
                                  .n = rows[i].n,
                                  .k = rows[i].k,
                                  .dtype = dtypes[d],
                                  .seed = 400 + (uint64_t)i });
        }
}

/* ---- batches ---- */

static const struct batch_row {
    int32_t a_rank, b_rank;
    int64_t a[6], b[6];
} batch_rows[] = {
    { 0, 0, { 0 }, { 0 } },
    { 1, 0, { 5 }, { 0 } }, /* b is shared: one product in each direction */
    { 0, 1, { 0 }, { 5 } },
    { 2, 0, { 2, 3 }, { 0 } },
    { 2, 2, { 2, 3 }, { 2, 3 } },
    { 2, 2, { 2, 1 }, { 2, 3 } },
    { 2, 2, { 3, 1 }, { 1, 4 } },
    { 2, 1, { 2, 3 }, { 3 } },
    { 1, 3, { 1 }, { 2, 1, 2 } },
    { 3, 2, { 2, 3, 2 }, { 3, 1 } },
    { 3, 3, { 2, 1, 3 }, { 1, 2, 1 } },
    { 6, 6, { 2, 1, 2, 1, 2, 1 }, { 1, 2, 1, 2, 1, 3 } }, /* nothing merges: loops on the host */
    { 5, 6, { 1, 2, 1, 1, 2 }, { 2, 1, 2, 1, 2, 1 } },
};

static void matmul_broadcasts_batches_both_ways(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(batch_rows); i++)
        for (int d = 0; d < 3; d++)
            for (int add = 0; add < 2; add++) {
                const struct batch_row *row = &batch_rows[i];
                if (!meets(d == 0 || (d == 1 && i % 4 == 2))) continue;
                check(&(matmul_case){ .a_batch = atto_shape_of(row->a_rank, row->a),
                                      .b_batch = atto_shape_of(row->b_rank, row->b),
                                      .m = 9,
                                      .n = 11,
                                      .k = 7,
                                      .dtype = dtypes[d],
                                      .add = add == 1,
                                      .seed = 500 + (uint64_t)i });
            }
}

/* The gradient of an operand that is repeated, in 16 bits: rounded once, not once a repetition. The
 * tolerance has room for one rounding only. */
static void matmul_rounds_a_sum_over_the_batch_once(void **state)
{
    (void)state;
    for (int d = 1; d < 3; d++)
        for (int t = 0; t < 2; t++) {
            if (!meets(d == 1)) continue;
            check(&(matmul_case){ .a_batch = BATCH(2, 1),
                                  .b_batch = BATCH(2, 37),
                                  .m = 3,
                                  .n = 5,
                                  .k = 7,
                                  .dtype = dtypes[d],
                                  .add = t == 1,
                                  .y = { LAYOUT_DENSE, t == 1 ? HEADS : AS_IT_IS },
                                  .seed = 560 + (uint64_t)d });
        }
}

/* Sizes 0 in the batch: a gradient that sums over nothing is 0, or as it was. */
static void matmul_of_empty_tensors_gives_zeros(void **state)
{
    (void)state;
    static const struct {
        int64_t a, b, m, n, k;
    } rows[] = { { 1, 0, 3, 5, 7 }, { 0, 1, 3, 5, 7 }, { 0, 0, 3, 5, 7 }, { 2, 2, 0, 5, 7 },
                 { 2, 2, 3, 0, 7 }, { 2, 2, 3, 5, 0 }, { 2, 1, 3, 5, 0 }, { 1, 2, 0, 5, 0 },
                 { 2, 1, 0, 5, 7 }, { 1, 2, 3, 0, 7 } };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int d = 0; d < 3; d++)
            for (int add = 0; add < 2; add++) {
                if (!meets(d == 0)) continue;
                check(&(matmul_case){ .a_batch = BATCH(rows[i].a),
                                      .b_batch = BATCH(rows[i].b),
                                      .m = rows[i].m,
                                      .n = rows[i].n,
                                      .k = rows[i].k,
                                      .dtype = dtypes[d],
                                      .add = add == 1,
                                      .seed = 580 + (uint64_t)i });
            }
}

/* A gradient that is summed over a batch of products of nothing costs one product of nothing, not one for
 * each of the batch. */
static void matmul_of_many_empty_matrices_costs_one(void **state)
{
    (void)state;
    atto_tensor a, b, dy, db;
    atto_device_stats before, after;
    float got[12];
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(500, 0, 3), &a));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 4), &b));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(500, 0, 4), &dy));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 4), &db));
    for (int add = 0; add < 2; add++) {
        const struct atto_matmul_args args = {
            .a = &a, .b = &b, .dy = &dy, .db = &db, .add_db = add
        };
        MUST(atto_tensor_fill(&db, 7.0));
        MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_matmul_backward(test_dev, &args));
        MUST(atto_device_stats_get(test_dev, &after));
        MUST(atto_tensor_read(&db, got));
        for (int i = 0; i < COUNT_OF(got); i++) assert_true(got[i] == (add ? 7.0f : 0.0f));
        assert_true(after.launches - before.launches <= 2);
    }
    atto_tensor_free(&b);
    atto_tensor_free(&db);
}

/* ---- layouts ---- */

static int64_t hidden_copies(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return (int64_t)stats.hidden_copies;
}

/* Whatever has unit stride along rows or columns is taken as it is. */
static const place free_places[] = {
    { LAYOUT_DENSE, AS_IT_IS }, { LAYOUT_OFFSET, AS_IT_IS }, { LAYOUT_PITCHED, AS_IT_IS },
    { LAYOUT_ALIGNED, TURNED }, { LAYOUT_DENSE, TURNED },    { LAYOUT_PITCHED, TURNED },
    { LAYOUT_DENSE, HEADS },    { LAYOUT_PITCHED, HEADS },   { LAYOUT_OFFSET, TURNED },
};

/* Each place of one tensor beside the next ones of the others. */
static void matmul_takes_transposed_and_permuted_views_as_they_are(void **state)
{
    (void)state;
    const int count = COUNT_OF(free_places);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            for (int d = 0; d < 3; d++) {
                if (!meets(d == 0 && (i + j) % 4 == 0)) continue;
                const int64_t before = hidden_copies();
                check(&(matmul_case){ .a_batch = BATCH(2, 3),
                                      .b_batch = BATCH(2, 3),
                                      .m = 10,
                                      .n = 13,
                                      .k = 9,
                                      .dtype = dtypes[d],
                                      .a = free_places[i],
                                      .b = free_places[j],
                                      .y = free_places[(i + 2 * j) % count],
                                      .add = j % 2 == 1,
                                      .seed = 600 + (uint64_t)(i * count + j) });
                assert_int_equal(hidden_copies(), before);
            }
}

static void matmul_packs_what_has_no_unit_stride(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_STEP2, LAYOUT_TRANSPOSED, LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i++) {
        const int64_t before = hidden_copies();
        check(&(matmul_case){ .a_batch = BATCH(2, 3),
                              .b_batch = BATCH(2, 3),
                              .m = 10,
                              .n = 13,
                              .k = 9,
                              .a = { layouts[i], AS_IT_IS },
                              .b = { layouts[(i + 1) % 3], AS_IT_IS },
                              .y = { layouts[(i + 2) % 3], AS_IT_IS },
                              .dtype = ATTO_F32,
                              .add = i == 1,
                              .seed = 700 + (uint64_t)i });
        assert_true(hidden_copies() > before);
    }
}

/* An operand that the caller expanded, of which matrices repeat; packed, each is copied once. */
static void matmul_takes_expanded_inputs(void **state)
{
    (void)state;
    scene s;
    for (int i = 0; i < 2; i++) {
        build(&s, &(matmul_case){ .a_batch = BATCH(4),
                                  .b_batch = BATCH(4),
                                  .m = 5,
                                  .n = 7,
                                  .k = 3,
                                  .dtype = ATTO_F32,
                                  .a = { i == 0 ? LAYOUT_BROADCAST : LAYOUT_STEP2, AS_IT_IS },
                                  .seed = 720 });
        if (i == 1) s.a.t.view.stride[0] = 0; /* the first matrix, four times */
        for (int64_t e = 0; i == 1 && e < s.a.t.numel; e++) s.a.values[e] = s.a.values[e % 15];
        s.args.da = s.args.db = NULL;
        MUST(atto_matmul_forward(test_dev, &s.args));
        const oracle_matmul o = question_of(&s);
        oracle_sum *y = sums_of(s.y.t.numel);
        oracle_matmul_product(&o, y, NULL, NULL);
        judge(&s, &s.y, "matmul", y, 3);
        free(y);
        tear_down(&s);
    }
}

/* NaN times the 0 that pads a tile would be NaN: what lies between the views' rows takes no part. */
static void matmul_reads_nothing_outside_its_views(void **state)
{
    (void)state;
    enum { B = 2, M = 9, N = 11, K = 7, PITCH = 13 };
    const int64_t rows[] = { M, K, M, M, M, K }, columns[] = { K, N, N, N, K, N };
    atto_tensor whole[6], view[6];
    for (int i = 0; i < 6; i++) {
        const atto_shape shape = atto_shape3(B, rows[i], columns[i]);
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(B, 16, PITCH), &whole[i]));
        MUST(atto_tensor_fill(&whole[i], (double)NAN));
        view[i] = atto_tensor_of(whole[i].buffer, ATTO_F32, shape, PITCH + 1);
        view[i].stride[0] = 16 * PITCH;
        view[i].stride[1] = PITCH;
        MUST(atto_tensor_fill(&view[i], 1.0));
    }
    const struct atto_matmul_args p = {
        .a = &view[0], .b = &view[1], .y = &view[2], .dy = &view[3], .da = &view[4], .db = &view[5]
    };
    MUST(atto_matmul_forward(test_dev, &p));
    MUST(atto_matmul_backward(test_dev, &p));
    const float want[] = { 1, 1, K, 1, N, M };
    for (int i = 0; i < 6; i++) {
        float got[B * 16 * PITCH];
        MUST(atto_tensor_read(&view[i], got));
        for (int64_t e = 0; e < B * rows[i] * columns[i]; e++) assert_true(got[e] == want[i]);
        atto_tensor_free(&whole[i]);
    }
}

/* ---- numbers ---- */

/* F7 */
static void matmul_propagates_nan_and_infinity(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        if (!meets(d == 0)) continue;
        for (int turned = 0; turned < 2; turned++)
            check(&(matmul_case){ .a_batch = BATCH(2),
                                  .b_batch = BATCH(2),
                                  .m = 9,
                                  .n = 11,
                                  .k = 7,
                                  .dtype = dtypes[d],
                                  .b = { LAYOUT_DENSE, turned ? TURNED : AS_IT_IS },
                                  .not_finite = true,
                                  .seed = 800 });
    }
}

/* H10: ones are summed exactly, far beyond where a sum in the dtype would stall. */
static void matmul_sums_ones_exactly_in_every_dtype(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        if (!meets(d == 1)) continue;
        scene s;
        build(&s, &(matmul_case){ .a_batch = BATCH(2),
                                  .b_batch = BATCH(2),
                                  .m = 3,
                                  .n = 5,
                                  .k = 4096,
                                  .dtype = dtypes[d] });
        MUST(atto_tensor_fill(&s.a.t.view, 1.0));
        MUST(atto_tensor_fill(&s.b.t.view, 1.0));
        MUST(atto_matmul_forward(test_dev, &s.args));
        double got[30];
        test_tensor_get(&s.y.t, got);
        for (int i = 0; i < 30; i++) assert_true(got[i] == oracle_round(dtypes[d], 4096.0));
        tear_down(&s);
    }
}

/* ---- bits, memory, launches ---- */

/* Shapes that the CPU computes side by side, and one by one. */
static const struct shape_row {
    int64_t batch, m, n, k;
} shape_rows[] = {
    { 5, 3, 50, 70 }, { 7, 33, 17, 300 }, { 3, 150, 160, 90 }, { 2, 130, 170, 200 }
};

static matmul_case case_of(int i, atto_dtype dtype)
{
    const struct shape_row *r = &shape_rows[i];
    return (matmul_case){ .a_batch = BATCH(r->batch),
                          .b_batch = BATCH(r->batch),
                          .m = r->m,
                          .n = r->n,
                          .k = r->k,
                          .dtype = dtype,
                          .seed = 900 + (uint64_t)i };
}

/* Bits of y, da and db behind each other; release with free. */
static uint64_t *all_bits(const scene *s, int64_t *n)
{
    const test_tensor *const outputs[] = { &s->y.t, &s->da.t, &s->db.t };
    *n = s->y.t.numel + s->da.t.numel + s->db.t.numel;
    uint64_t *bits = calloc((size_t)*n, sizeof *bits), *to = bits;
    assert_non_null(bits);
    for (int i = 0; i < 3; to += outputs[i++]->numel) test_tensor_bits(outputs[i], to);
    return bits;
}

/* J1 */
static void matmul_repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(shape_rows); i++) {
        if (!meets(i == 1)) continue;
        const matmul_case c = case_of(i, ATTO_F32);
        scene s;
        int64_t n;
        uint64_t *first = NULL;
        build(&s, &c);
        for (int run = 0; run < 20; run++) {
            MUST(atto_matmul_forward(test_dev, &s.args));
            MUST(atto_matmul_backward(test_dev, &s.args));
            uint64_t *bits = all_bits(&s, &n);
            if (first) assert_memory_equal(first, bits, (size_t)n * sizeof *bits);
            if (first)
                free(bits);
            else
                first = bits;
        }
        free(first);
        tear_down(&s);
    }
}

/* One product of the batch, as a call of its own. */
static void expect_same_alone(scene *s, int64_t item, const uint64_t *bits, uint64_t *alone)
{
    struct atto_matmul_args p = s->args;
    const atto_tensor **const slots[] = { &p.a, &p.b, &p.y, &p.dy, &p.da, &p.db };
    atto_tensor views[OPERANDS];
    for (int i = 0; i < OPERANDS; i++) {
        MUST(atto_tensor_slice(*slots[i], 0, item, item + 1, 1, &views[i]));
        *slots[i] = &views[i];
    }
    MUST(atto_matmul_forward(test_dev, &p));
    MUST(atto_matmul_backward(test_dev, &p));
    test_tensor_bits(&s->y.t, alone);
    assert_memory_equal(bits, alone, (size_t)s->y.t.numel * sizeof *bits);
    test_tensor_bits(&s->da.t, alone);
    assert_memory_equal(bits + s->y.t.numel, alone, (size_t)s->da.t.numel * sizeof *bits);
    test_tensor_bits(&s->db.t, alone);
    assert_memory_equal(bits + s->y.t.numel + s->da.t.numel, alone,
                        (size_t)s->db.t.numel * sizeof *bits);
}

/* The CPU's bits depend neither on how many threads there are nor on whether a product is one of
 * many. */
static void check_threads(const matmul_case *c)
{
    atto_device *const own = test_dev;
    uint64_t *first = NULL;
    static const int32_t threads[] = { 1, 2, 7 };
    for (int t = 0; t < 3; t++) {
        const atto_device_options options = { .num_threads = threads[t] };
        scene s;
        int64_t n;
        MUST(atto_device_open("cpu", &options, &test_dev));
        build(&s, c);
        MUST(atto_matmul_forward(test_dev, &s.args));
        MUST(atto_matmul_backward(test_dev, &s.args));
        uint64_t *bits = all_bits(&s, &n), *alone = calloc((size_t)n, sizeof *alone);
        if (first) assert_memory_equal(first, bits, (size_t)n * sizeof *bits);
        for (int64_t item = 0; item < c->a_batch.dim[0]; item++)
            expect_same_alone(&s, item, bits, alone);
        free(alone);
        if (first)
            free(bits);
        else
            first = bits;
        tear_down(&s);
        atto_device_close(test_dev);
    }
    test_dev = own;
    free(first);
}

static void matmul_does_not_depend_on_threads_or_company(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    for (int i = 0; i < COUNT_OF(shape_rows); i++)
        for (int d = 0; d < 3; d++) {
            matmul_case c = case_of(i, dtypes[d]);
            if (d != i % 3) c.a.turn = c.b.turn = TURNED;
            if (d != (i + 2) % 3) check_threads(&c);
        }
}

/* The launches of one forward and one backward call, warm. */
static void steady_state(const matmul_case *c, int forward, int backward)
{
    atto_device_stats before, middle, after;
    scene s;
    build(&s, c);
    for (int i = 0; i < 3; i++) {
        MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_matmul_forward(test_dev, &s.args));
        MUST(atto_device_stats_get(test_dev, &middle));
        MUST(atto_matmul_backward(test_dev, &s.args));
        MUST(atto_device_stats_get(test_dev, &after));
    }
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    if (test_on_opencl()) {
        assert_int_equal(middle.launches - before.launches, forward);
        assert_int_equal(after.launches - middle.launches, backward);
    }
    tear_down(&s);
}

/* A batch is one launch, heads that were permuted are one, and so are a layer and its gradients
 * where the right side is shared. */
static void matmul_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    matmul_case c = { .a_batch = BATCH(2, 3),
                      .b_batch = BATCH(2, 3),
                      .m = 10,
                      .n = 13,
                      .k = 9,
                      .dtype = ATTO_F32,
                      .seed = 950 };
    steady_state(&c, 1, 2);
    c.a.turn = c.b.turn = HEADS;
    steady_state(&c, 1, 2);
    c.a.turn = c.b.turn = AS_IT_IS;
    c.b_batch = atto_shape0();
    steady_state(&c, 1, 2);
    c.b_batch = BATCH(2, 1); /* da in one, db folds the heads into k */
    steady_state(&c, 1, 2);
    c.a_batch = BATCH(2, 1), c.b_batch = BATCH(2, 3); /* da adds up three products */
    steady_state(&c, 1, 4);
}

/* ---- what is refused ---- */

typedef void spoil_fn(scene *s, bool backward);

static void refuse(spoil_fn *spoil, bool backward, atto_status status, const char *words)
{
    scene s;
    build(
        &s,
        &(matmul_case){
            .a_batch = BATCH(2), .b_batch = BATCH(2), .m = 3, .n = 4, .k = 5, .dtype = ATTO_F16 });
    spoil(&s, backward);
    EXPECT_FAIL(backward ? atto_matmul_backward(test_dev, &s.args)
                         : atto_matmul_forward(test_dev, &s.args),
                status, words);
    assert_true(test_tensor_untouched(&s.y.t) && test_tensor_untouched(&s.da.t) &&
                test_tensor_untouched(&s.db.t));
    tear_down(&s);
}

static void vector_a(scene *s, bool backward)
{
    (void)backward;
    s->a.t.view.rank = 1;
}
static void vector_b(scene *s, bool backward)
{
    (void)backward;
    s->b.t.view.rank = 1;
}
static void short_k(scene *s, bool backward)
{
    (void)backward;
    s->a.t.view.shape[2] = 4;
}
static void other_batch(scene *s, bool backward)
{
    (void)backward;
    s->b.t.view.shape[0] = 3;
    s->b.t.view.stride[0] = 0;
}
static void short_result(scene *s, bool backward)
{
    (backward ? &s->dy : &s->y)->t.view.shape[1] = 2;
}
static void flat_result(scene *s, bool backward)
{
    (backward ? &s->dy : &s->y)->t.view.shape[0] = 1;
}
static void integers(scene *s, bool backward)
{
    (void)backward;
    s->a.t.view.dtype = ATTO_I32;
    s->a.t.view.shape[0] = 1;
}
static void mixed(scene *s, bool backward)
{
    (void)backward;
    s->b.t.view.dtype = ATTO_BF16;
}
static void odd_result(scene *s, bool backward)
{
    (backward ? &s->dy : &s->y)->t.view.dtype = ATTO_BF16;
}
static void odd_gradient(scene *s, bool backward)
{
    (void)backward;
    s->da.t.view.dtype = ATTO_BF16;
}
static void short_gradient(scene *s, bool backward)
{
    (void)backward;
    s->db.t.view.shape[2] = 3;
}
static void no_b(scene *s, bool backward)
{
    (void)backward;
    s->args.b = NULL;
}
static void no_a(scene *s, bool backward)
{
    (void)backward;
    s->args.a = NULL;
    s->args.da = NULL;
}
static void overlapping(scene *s, bool backward)
{
    if (backward)
        s->args.da = s->args.a;
    else
        s->y.t.view = s->a.t.view, s->y.t.view.shape[2] = 4;
}

static void matmul_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        refuse(vector_a, backward, ATTO_E_SHAPE, "a is [2]|two dimensions");
        refuse(vector_b, backward, ATTO_E_SHAPE, "b is [2]|two dimensions");
        refuse(other_batch, backward, ATTO_E_SHAPE, backward ? "db is" : "broadcast|2 beside 3");
        refuse(integers, backward, ATTO_E_DTYPE, "a is i32");
        refuse(mixed, backward, ATTO_E_DTYPE, "b is bf16|f16");
        refuse(odd_result, backward, ATTO_E_DTYPE,
               backward ? "dy is bf16" : "y is bf16|f16 or f32");
        refuse(short_result, backward, ATTO_E_SHAPE, "is [2,2,4], expected [2,3,4]");
        refuse(flat_result, backward, ATTO_E_SHAPE, "is [1,3,4], expected [2,3,4]");
        refuse(overlapping, backward, ATTO_E_ALIAS, "overlaps a");
    }
    refuse(short_k, false, ATTO_E_SHAPE, "a is [2,3,4]|columns|rows of b, [2,5,4]");
    refuse(odd_gradient, true, ATTO_E_DTYPE, "da is bf16|a's f16");
    refuse(short_gradient, true, ATTO_E_SHAPE, "db is [2,5,3], expected [2,5,4]");
    refuse(no_b, true, ATTO_E_NULL, "b is NULL, which da needs");
    refuse(no_a, true, ATTO_E_NULL, "a is NULL, which db needs");
}

/* Each gradient alone needs no more than its other operand. */
static void matmul_backward_skips_what_is_not_wanted(void **state)
{
    (void)state;
    for (int wanted = 0; wanted < 4; wanted++) {
        scene s;
        build(&s, &(matmul_case){ .a_batch = BATCH(3),
                                  .b_batch = BATCH(1),
                                  .m = 9,
                                  .n = 11,
                                  .k = 7,
                                  .dtype = ATTO_F32 });
        if (!(wanted & 1)) s.args.da = s.args.b = NULL;
        if (!(wanted & 2)) s.args.db = s.args.a = NULL;
        MUST(atto_matmul_backward(test_dev, &s.args));
        assert_true(test_tensor_untouched(&s.da.t) == !(wanted & 1));
        assert_true(test_tensor_untouched(&s.db.t) == !(wanted & 2));
        tear_down(&s);
    }
}

/* ---- on a tape ---- */

/* Shapes as torch.matmul takes them, and what it makes of them. */
typedef struct tape_row {
    int32_t a_rank, b_rank, y_rank;
    int64_t a[3], b[3], y[3];
    int32_t a_batch, b_batch; /* leading dimensions that are the batch */
    int64_t m, n, k;
} tape_row;

static const tape_row tape_rows[] = {
    { 1, 1, 0, { 3 }, { 3 }, { 0 }, 0, 0, 1, 1, 3 },
    { 2, 1, 1, { 2, 3 }, { 3 }, { 2 }, 0, 0, 2, 1, 3 },
    { 1, 2, 1, { 3 }, { 3, 5 }, { 5 }, 0, 0, 1, 5, 3 },
    { 2, 2, 2, { 2, 3 }, { 3, 5 }, { 2, 5 }, 0, 0, 2, 5, 3 },
    { 3, 1, 2, { 2, 2, 3 }, { 3 }, { 2, 2 }, 1, 0, 2, 1, 3 },
    { 1, 3, 2, { 3 }, { 2, 3, 5 }, { 2, 5 }, 0, 1, 1, 5, 3 },
    { 3, 2, 3, { 2, 2, 3 }, { 3, 5 }, { 2, 2, 5 }, 1, 0, 2, 5, 3 },
};

#define MOST 32

/* The gradient of v against the oracle's sums. */
static void expect_gradient(atto_tape *tape, atto_var v, const oracle_sum *want, int64_t n)
{
    atto_tensor grad;
    float got[MOST];
    MUST(atto_var_grad(tape, v, &grad));
    MUST(atto_tensor_read(&grad, got));
    for (int64_t i = 0; i < n; i++) assert_true(fabs((double)got[i] - want[i].value) < 1e-5);
}

static void fill(uint64_t seed, double *values, float *floats, int64_t n)
{
    test_uniform(seed, -1.0, 1.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) floats[i] = (float)values[i];
}

static void check_on_tape(atto_tape *tape, const tape_row *r)
{
    const atto_shape sa = atto_shape_of(r->a_rank, r->a), sb = atto_shape_of(r->b_rank, r->b);
    const atto_shape sy = atto_shape_of(r->y_rank, r->y);
    double a[MOST], b[MOST], dy[MOST];
    float fa[MOST], fb[MOST], fdy[MOST], got[MOST];
    oracle_sum y[MOST], da[MOST], db[MOST];
    atto_tensor ta, tb, ty;
    fill(1, a, fa, numel(sa)), fill(2, b, fb, numel(sb)), fill(3, dy, fdy, numel(sy));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, sa, &ta));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, sb, &tb));
    MUST(atto_tensor_write(&ta, fa));
    MUST(atto_tensor_write(&tb, fb));
    const atto_var va = atto_borrow(tape, &ta, true), vb = atto_borrow(tape, &tb, true);
    const atto_var vy = atto_matmul(tape, va, vb);
    MUST(atto_var_tensor(tape, vy, &ty));
    assert_int_equal(ty.rank, sy.rank);
    for (int32_t d = 0; d < sy.rank; d++) assert_int_equal(ty.shape[d], sy.dim[d]);
    MUST(atto_tensor_read(&ty, got));
    atto_tensor up;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, sy, &up));
    MUST(atto_tensor_write(&up, fdy));
    MUST(atto_backward_from(tape, vy, &up));
    const atto_shape batch_a = atto_shape_of(r->a_batch, r->a);
    const atto_shape batch_b = atto_shape_of(r->b_batch, r->b);
    oracle_matmul_product(&(oracle_matmul){ r->m, r->n, r->k, batch_a, batch_b,
                                            broadcast(batch_a, batch_b), a, b, dy },
                          y, da, db);
    for (int64_t i = 0; i < numel(sy); i++) assert_true(fabs((double)got[i] - y[i].value) < 1e-5);
    expect_gradient(tape, va, da, numel(sa));
    expect_gradient(tape, vb, db, numel(sb));
    MUST(atto_tape_end(tape));
    atto_tensor_free(&ta), atto_tensor_free(&tb), atto_tensor_free(&up);
}

static void matmul_on_a_tape_takes_matrices_and_vectors(void **state)
{
    (void)state;
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    for (int i = 0; i < COUNT_OF(tape_rows); i++) check_on_tape(tape, &tape_rows[i]);
    atto_tape_free(tape);
}

/* x x: both gradients meet in one value. */
static void matmul_on_a_tape_of_one_value_twice_adds_gradients(void **state)
{
    (void)state;
    double x[9], dy[9];
    float fx[9], fdy[9];
    oracle_sum da[9], db[9];
    atto_tape *tape;
    atto_tensor t, up;
    fill(5, x, fx, 9), fill(6, dy, fdy, 9);
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 3), &t));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape2(3, 3), &up));
    MUST(atto_tensor_write(&t, fx));
    MUST(atto_tensor_write(&up, fdy));
    const atto_var v = atto_borrow(tape, &t, true);
    MUST(atto_backward_from(tape, atto_matmul(tape, v, v), &up));
    const atto_shape none = atto_shape0();
    oracle_matmul_product(&(oracle_matmul){ 3, 3, 3, none, none, none, x, x, dy }, NULL, da, db);
    for (int i = 0; i < 9; i++) da[i].value += db[i].value;
    expect_gradient(tape, v, da, 9);
    MUST(atto_tape_end(tape));
    atto_tape_free(tape);
    atto_tensor_free(&t), atto_tensor_free(&up);
}

static void matmul_on_a_tape_refuses_what_does_not_fit(void **state)
{
    (void)state;
    const float x[24] = { 0 };
    const struct {
        atto_shape a, b;
        const char *words;
    } rows[] = { { atto_shape0(), atto_shape1(1), "a has no dimension" },
                 { atto_shape1(2), atto_shape0(), "b has no dimension" },
                 { atto_shape1(3), atto_shape1(4), "a is [1,3]|b, [4,1]" },
                 { atto_shape3(2, 3, 4), atto_shape3(3, 4, 2), "broadcast" } };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        atto_tape *tape;
        MUST(atto_tape_create(test_dev, &tape));
        atto_matmul(tape, atto_input(tape, ATTO_F32, rows[i].a, x),
                    atto_input(tape, ATTO_F32, rows[i].b, x));
        EXPECT_FAIL(atto_tape_status(tape), ATTO_E_SHAPE, rows[i].words);
        atto_tape_free(tape);
    }
}

/* A silent fallback would test the CPU twice. */
static void matmul_never_fell_back(void **state)
{
    (void)state;
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_int_equal(stats.fallbacks, 0);
    for (int d = 0; d < 3; d++)
        if (meets(d == 0)) assert_true(atto_device_supports(test_dev, ATTO_OP_MATMUL, dtypes[d]));
    assert_false(atto_device_supports(test_dev, ATTO_OP_MATMUL, ATTO_I32));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(matmul_takes_any_size),
    cmocka_unit_test(matmul_takes_every_dtype),
    cmocka_unit_test(matmul_takes_lopsided_shapes),
    cmocka_unit_test(matmul_broadcasts_batches_both_ways),
    cmocka_unit_test(matmul_rounds_a_sum_over_the_batch_once),
    cmocka_unit_test(matmul_of_empty_tensors_gives_zeros),
    cmocka_unit_test(matmul_of_many_empty_matrices_costs_one),
    cmocka_unit_test(matmul_takes_transposed_and_permuted_views_as_they_are),
    cmocka_unit_test(matmul_packs_what_has_no_unit_stride),
    cmocka_unit_test(matmul_takes_expanded_inputs),
    cmocka_unit_test(matmul_reads_nothing_outside_its_views),
    cmocka_unit_test(matmul_propagates_nan_and_infinity),
    cmocka_unit_test(matmul_sums_ones_exactly_in_every_dtype),
    cmocka_unit_test(matmul_repeats_bit_for_bit),
    cmocka_unit_test(matmul_does_not_depend_on_threads_or_company),
    cmocka_unit_test(matmul_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(matmul_refuses_what_does_not_fit),
    cmocka_unit_test(matmul_backward_skips_what_is_not_wanted),
    cmocka_unit_test(matmul_on_a_tape_takes_matrices_and_vectors),
    cmocka_unit_test(matmul_on_a_tape_of_one_value_twice_adds_gradients),
    cmocka_unit_test(matmul_on_a_tape_refuses_what_does_not_fit),
    cmocka_unit_test(matmul_never_fell_back),
};
TEST_MAIN("matmul", tests)
