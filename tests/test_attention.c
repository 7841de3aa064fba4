/* SPDX-License-Identifier: MIT */
/* Attention, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- one case ---- */

/* How heads lie in memory, beside the layout. */
typedef enum spread {
    ROWS,  /* [B, H, L, D] */
    HEADS, /* [B, L, H, D]: side by side, as a projection leaves them */
    PACKED /* the middle of [B, L, 3, H, D] */
} spread;

typedef struct place {
    test_layout layout;
    spread spread;
} place;

typedef struct mask_form {
    atto_dtype dtype;
    atto_shape shape; /* rank 0: no mask */
    test_layout layout;
} mask_form;

typedef struct scene scene;

typedef struct attention_case {
    int64_t batches, heads, shared; /* shared: heads of keys; -1 = none at all */
    int64_t queries, keys, d, e;
    atto_dtype dtype;
    atto_causal causal;
    mask_form mask;
    float scale, dropout;
    atto_rng rng;
    place q, k, v, y, dy, grads;
    test_layout lse;
    bool without_low, exact;
    bool add;
    void (*prepare)(scene *s); /* changes what inputs hold */
    uint64_t seed;
} attention_case;

/* A tensor and what it holds. */
typedef struct operand {
    test_tensor t;
    double *values;
} operand;

enum { Q, K, V, MASK, Y, LSE, LSE_LOW, DY, DQ, DK, DV, OPERANDS };

struct scene {
    const attention_case *c;
    operand o[OPERANDS];
    struct atto_attention_args args;
};

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

/* After the view was changed: the elements it has now. */
static void look_again(test_tensor *t)
{
    t->numel = atto_tensor_numel(&t->view);
    for (int64_t i = 0; i < t->numel; i++) t->at[i] = position(&t->view, i);
    test_tensor_put(t, NULL);
}

/* [B, H, N, D] as a view of [B, N, parts, H, D]. */
static void make_heads(test_tensor *t, atto_dtype dtype, atto_shape shape, place p)
{
    const int64_t parts = p.spread == PACKED ? 3 : 1, heads = shape.dim[1], rows = shape.dim[2];
    test_tensor_make(t, test_dev, dtype,
                     atto_shape4(shape.dim[0], rows, parts * heads, shape.dim[3]), p.layout);
    atto_tensor *v = &t->view;
    const int64_t row = v->stride[1], head = v->stride[2];
    v->shape[1] = heads, v->stride[1] = head;
    v->shape[2] = rows, v->stride[2] = row;
    v->offset += p.spread == PACKED ? heads * head : 0;
    look_again(t);
}

static void hold(operand *o, const double *values)
{
    memcpy(o->values, values, (size_t)o->t.numel * sizeof *values);
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

/* Uniform on [-1, 1] and exact in the dtype where it holds something, else NaN: an output. */
static void make(operand *o, atto_dtype dtype, atto_shape shape, place p, uint64_t seed, bool holds)
{
    if (p.spread == ROWS)
        test_tensor_make(&o->t, test_dev, dtype, shape, p.layout);
    else
        make_heads(&o->t, dtype, shape, p);
    o->values = test_doubles(o->t.numel);
    if (!holds) return;
    test_uniform(seed, -1.0, 1.0, dtype, o->values, o->t.numel);
    hold(o, o->values);
}

/* A third of the keys is hidden; words that only look like 0 in their low bits are not 0. */
static void make_mask(operand *o, const mask_form *m, uint64_t seed)
{
    static const double words[] = { 0, 1, -1, 256, 65536, 0, -2147483648.0, 77, 0 };
    make(o, m->dtype, m->shape, (place){ m->layout, ROWS }, seed, m->dtype != ATTO_I32);
    for (int64_t i = 0; i < o->t.numel; i++) {
        const uint64_t drawn = test_random(&seed);
        if (m->dtype == ATTO_I32)
            o->values[i] = words[drawn % 9];
        else if (drawn % 3 == 0)
            o->values[i] = -INFINITY;
    }
    hold(o, o->values);
}

static void build(scene *s, const attention_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = c;
    const int64_t b = c->batches, h = c->heads,
                  g = c->shared == 0  ? h
                      : c->shared < 0 ? 0
                                      : c->shared;
    const int64_t e = c->e ? c->e : c->d;
    const atto_shape q = atto_shape4(b, h, c->queries, c->d), k = atto_shape4(b, g, c->keys, c->d);
    const atto_shape v = atto_shape4(b, g, c->keys, e), y = atto_shape4(b, h, c->queries, e);
    const uint64_t seed = 16 * c->seed;
    make(&s->o[Q], c->dtype, q, c->q, seed, true);
    make(&s->o[K], c->dtype, k, c->k, seed + 1, true);
    make(&s->o[V], c->dtype, v, c->v, seed + 2, true);
    make(&s->o[Y], c->dtype, y, c->y, 0, false);
    const atto_shape rows = atto_shape3(b, h, c->queries);
    const test_layout other = c->lse == LAYOUT_DENSE ? LAYOUT_PITCHED : LAYOUT_DENSE;
    make(&s->o[LSE], ATTO_F32, rows, (place){ c->lse, ROWS }, 0, false);
    make(&s->o[LSE_LOW], ATTO_F32, rows, (place){ other, ROWS }, 0, false);
    make(&s->o[DY], c->dtype, y, c->dy, seed + 3, true);
    make(&s->o[DQ], c->dtype, q, c->grads, seed + 4, c->add);
    make(&s->o[DK], c->dtype, k, c->grads, seed + 5, c->add);
    make(&s->o[DV], c->dtype, v, c->grads, seed + 6, c->add);
    if (c->mask.shape.rank > 0) make_mask(&s->o[MASK], &c->mask, seed + 7);
    if (c->prepare) c->prepare(s);
    s->args =
        (struct atto_attention_args){ .q = &s->o[Q].t.view,
                                      .k = &s->o[K].t.view,
                                      .v = &s->o[V].t.view,
                                      .mask = c->mask.shape.rank > 0 ? &s->o[MASK].t.view : NULL,
                                      .y = &s->o[Y].t.view,
                                      .lse = &s->o[LSE].t.view,
                                      .lse_low = c->without_low ? NULL : &s->o[LSE_LOW].t.view,
                                      .dy = &s->o[DY].t.view,
                                      .dq = &s->o[DQ].t.view,
                                      .dk = &s->o[DK].t.view,
                                      .dv = &s->o[DV].t.view,
                                      .add_dq = c->add,
                                      .add_dk = c->add,
                                      .add_dv = c->add,
                                      .causal = c->causal,
                                      .scale = c->scale,
                                      .dropout = c->dropout,
                                      .rng = c->rng };
}

static void tear_down(scene *s)
{
    for (int i = 0; i < OPERANDS; i++) {
        test_tensor_drop(&s->o[i].t);
        free(s->o[i].values);
    }
}

/* The oracle's question; y as the device has stored it, which the caller frees. */
static oracle_attention question_of(const scene *s, const double *y)
{
    const attention_case *c = s->c;
    const int64_t *q = s->o[Q].t.view.shape, *v = s->o[V].t.view.shape;
    return (oracle_attention){ .batches = q[0],
                               .heads = q[1],
                               .key_heads = v[1],
                               .queries = q[2],
                               .keys = v[2],
                               .d = q[3],
                               .e = v[3],
                               .q = s->o[Q].values,
                               .k = s->o[K].values,
                               .v = s->o[V].values,
                               .mask = c->mask.shape.rank > 0 ? s->o[MASK].values : NULL,
                               .mask_shape = c->mask.shape,
                               .mask_hides = c->mask.dtype == ATTO_I32,
                               .y = y,
                               .dy = s->o[DY].values,
                               .causal = c->causal,
                               .scale = (double)c->scale,
                               .p = c->dropout,
                               .rng = c->rng,
                               .with_low = !c->without_low,
                               .exact = c->exact };
}

static oracle_sum *sums_of(int64_t n)
{
    oracle_sum *sums = calloc(n ? (size_t)n : 1, sizeof *sums);
    assert_non_null(sums);
    return sums;
}

static void judge(const scene *s, int which, const oracle_sum *sums)
{
    const operand *o = &s->o[which];
    const bool is_gradient = which >= DQ;
    double *want = test_doubles(o->t.numel), *terms = test_doubles(o->t.numel);
    for (int64_t i = 0; i < o->t.numel; i++) want[i] = sums[i].value, terms[i] = sums[i].terms;
    test_judge(&o->t, is_gradient ? "attention_grad" : "attention", s->c->q.layout, s->c->seed, 1,
               want, terms, is_gradient && s->c->add ? o->values : NULL);
    free(want), free(terms);
}

static void expect_forward(const scene *s)
{
    const int64_t rows = s->o[LSE].t.numel;
    oracle_attention o = question_of(s, NULL);
    oracle_sum *y = sums_of(s->o[Y].t.numel), *lse = sums_of(rows), *low = sums_of(rows);
    double *stored = test_doubles(rows);
    test_tensor_get(&s->o[LSE].t, stored);
    o.lse = stored;
    oracle_attention_forward(&o, y, lse, low);
    judge(s, Y, y);
    judge(s, LSE, lse);
    if (o.with_low) judge(s, LSE_LOW, low);
    free(y), free(lse), free(low), free(stored);
}

static void expect_gradients(const scene *s)
{
    double *stored = test_doubles(s->o[Y].t.numel);
    test_tensor_get(&s->o[Y].t, stored);
    const oracle_attention o = question_of(s, stored);
    oracle_sum *dq = sums_of(s->o[DQ].t.numel), *dk = sums_of(s->o[DK].t.numel);
    oracle_sum *dv = sums_of(s->o[DV].t.numel);
    oracle_attention_backward(&o, dq, dk, dv);
    judge(s, DQ, dq);
    judge(s, DK, dk);
    judge(s, DV, dv);
    free(dq), free(dk), free(dv), free(stored);
}

static void expect_inputs_untouched(const scene *s)
{
    static const int inputs[] = { Q, K, V, DY, MASK };
    for (int i = 0; i < COUNT_OF(inputs); i++) {
        const test_tensor *t = &s->o[inputs[i]].t;
        if (t->view.dtype) assert_true(test_tensor_untouched(t));
    }
}

static void check(const attention_case *c)
{
    scene s;
    build(&s, c);
    MUST(atto_attention_forward(test_dev, &s.args));
    expect_forward(&s);
    MUST(atto_attention_backward(test_dev, &s.args));
    expect_gradients(&s);
    expect_inputs_untouched(&s);
    tear_down(&s);
}

/* Forward alone, where gradients are no numbers. */
static void check_forward(const attention_case *c)
{
    scene s;
    build(&s, c);
    MUST(atto_attention_forward(test_dev, &s.args));
    expect_forward(&s);
    tear_down(&s);
}

/* Size of heads where it matters little. */
#define WIDTH 16

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* A driver builds kernels for each dtype, head size and kind of mask, seconds each. Where cases run:
 * everywhere; but in disguises and parts; on the CPU, if it is in neither. */
enum { ANYWHERE, SELDOM, ON_HOSTS };
static bool meets(int where)
{
    if (where == ANYWHERE || (where == SELDOM && !test_in_disguise())) return true;
    return !test_on_opencl() && !test_in_disguise();
}

/* Kernels of masks that are added are for the acceptance grid, too. */
static bool meets_mask(atto_dtype mask)
{
    return meets(mask == ATTO_I32 ? ANYWHERE : SELDOM);
}

static int64_t hidden_copies(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return (int64_t)stats.hidden_copies;
}

/* ---- sizes ---- */

/* One, primes, below, at and above the powers of two that tiles have. */
static const int64_t sizes[] = { 1, 2, 7, 8, 9, 15, 17, 31, 32, 33, 63, 64, 65, 127, 128, 131 };

static void attention_takes_any_number_of_queries_and_keys(void **state)
{
    (void)state;
    const int count = COUNT_OF(sizes);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            if (test_on_opencl() || test_in_disguise() ? (3 * i + j) % 8 != 0
                                                       : (i + j) % 2 != 0 && i != j)
                continue;
            check(&(attention_case){ .batches = 1,
                                     .heads = 2,
                                     .queries = sizes[i],
                                     .keys = sizes[j],
                                     .d = WIDTH,
                                     .dtype = test_on_opencl() ? ATTO_F32 : dtypes[(i + j) % 3],
                                     .causal = (atto_causal)((i + 2 * j) % 3),
                                     .add = j % 2 == 1,
                                     .seed = 100 + (uint64_t)(i * count + j) });
        }
}

static const int64_t head_sizes[] = { 1, 3, 8, 17, 32, 64, 80, 128, 256 };

static void attention_takes_any_head_size(void **state)
{
    (void)state;
    const int count = COUNT_OF(head_sizes);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++) {
            const int64_t d = head_sizes[i], e = head_sizes[j];
            const bool usual = d == e && (d == 64 || d == 128), odd = d == 17 && e == 3;
            if (!meets(usual || odd || (d == 80 && e == 256) ? SELDOM : ON_HOSTS)) continue;
            check(&(attention_case){ .batches = 1,
                                     .heads = 2,
                                     .queries = 37,
                                     .keys = 35,
                                     .d = d,
                                     .e = e,
                                     .dtype = test_on_opencl() ? ATTO_F32 : dtypes[(i + 2 * j) % 3],
                                     .causal = j % 2 ? ATTO_CAUSAL_TOP_LEFT : ATTO_CAUSAL_NONE,
                                     .seed = 400 + (uint64_t)(i * count + j) });
        }
}

static void attention_takes_every_dtype(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        const int where = dtypes[i] == ATTO_BF16 ? SELDOM : ANYWHERE;
        const int64_t widths[] = { WIDTH, 64 };
        for (int w = 0; w < 2; w++)
            for (int add = 0; add < 2; add++) {
                if (!meets(w == 0 ? where : i == 1 ? SELDOM : ON_HOSTS)) continue;
                check(&(attention_case){ .batches = 2,
                                         .heads = 3,
                                         .queries = 45,
                                         .keys = 70,
                                         .d = widths[w],
                                         .dtype = dtypes[i],
                                         .causal = (atto_causal)(i % 3),
                                         .add = add == 1,
                                         .seed = 500 + (uint64_t)i });
            }
    }
}

/* Heads that share keys add up in dk and dv. */
static void attention_takes_heads_that_share_keys(void **state)
{
    (void)state;
    static const int64_t heads[][2] = { { 4, 1 }, { 4, 2 }, { 6, 3 }, { 8, 8 }, { 5, 1 } };
    for (int i = 0; i < COUNT_OF(heads); i++)
        for (int d = 0; d < 3; d++) {
            if (!meets(d == 0 ? ANYWHERE : ON_HOSTS)) continue;
            check(&(attention_case){ .batches = 2,
                                     .heads = heads[i][0],
                                     .shared = heads[i][1],
                                     .queries = 19,
                                     .keys = 34,
                                     .d = WIDTH,
                                     .dtype = dtypes[d],
                                     .causal = i % 2 ? ATTO_CAUSAL_BOTTOM_RIGHT : ATTO_CAUSAL_NONE,
                                     .add = i % 2 == 0,
                                     .seed = 600 + (uint64_t)i });
        }
}

/* One query beside many keys: decoding. */
static void attention_takes_one_query_and_many_keys(void **state)
{
    (void)state;
    static const int64_t keys[] = { 129, 1000, 4099 };
    for (int i = 0; i < COUNT_OF(keys); i++)
        for (int d = 0; d < 3; d++) {
            if (!meets(d == 0 ? ANYWHERE : ON_HOSTS)) continue;
            check(&(attention_case){ .batches = 1,
                                     .heads = 4,
                                     .shared = 2,
                                     .queries = 1,
                                     .keys = keys[i],
                                     .d = WIDTH,
                                     .dtype = dtypes[d],
                                     .causal = i == 1 ? ATTO_CAUSAL_BOTTOM_RIGHT : ATTO_CAUSAL_NONE,
                                     .seed = 620 + (uint64_t)i });
        }
}

static void attention_takes_any_scale(void **state)
{
    (void)state;
    const float scales[] = { 1.0f, -0.7f, 4.0f, 1e-3f };
    for (int i = 0; i < COUNT_OF(scales); i++)
        check(&(attention_case){ .batches = 1,
                                 .heads = 2,
                                 .queries = 13,
                                 .keys = 21,
                                 .d = WIDTH,
                                 .dtype = ATTO_F32,
                                 .scale = scales[i],
                                 .seed = 640 + (uint64_t)i });
}

/* I1: without keys y is 0 and lse infinite; without queries dk and dv are 0, or stay. */
static void attention_of_nothing(void **state)
{
    (void)state;
    static const struct {
        int64_t batches, heads, shared, queries, keys;
    } rows[] = { { 0, 2, 2, 3, 5 },
                 { 1, 2, 2, 0, 5 },
                 { 2, 2, 1, 3, 0 },
                 { 1, 2, 2, 0, 0 },
                 { 2, 0, -1, 3, 5 } };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int add = 0; add < 2; add++)
            for (int causal = 0; causal < 3; causal++)
                check(&(attention_case){ .batches = rows[i].batches,
                                         .heads = rows[i].heads,
                                         .shared = rows[i].shared,
                                         .queries = rows[i].queries,
                                         .keys = rows[i].keys,
                                         .d = WIDTH,
                                         .dtype = ATTO_F32,
                                         .causal = (atto_causal)causal,
                                         .add = add == 1,
                                         .seed = 660 + (uint64_t)i });
}

/* ---- layouts ---- */

static const place free_places[] = {
    { LAYOUT_DENSE, ROWS },    { LAYOUT_DENSE, HEADS },   { LAYOUT_DENSE, PACKED },
    { LAYOUT_OFFSET, ROWS },   { LAYOUT_OFFSET4, HEADS }, { LAYOUT_PITCHED, ROWS },
    { LAYOUT_ALIGNED, HEADS }, { LAYOUT_OFFSET, PACKED },
};

static attention_case placed_case(int i, int64_t d, atto_dtype dtype)
{
    const int n = COUNT_OF(free_places);
    return (attention_case){ .batches = 2,
                             .heads = 4,
                             .shared = i % 2 ? 2 : 4,
                             .queries = 21,
                             .keys = 18,
                             .d = d,
                             .dtype = dtype,
                             .q = free_places[i % n],
                             .k = free_places[(i + 1) % n],
                             .v = free_places[(i + 3) % n],
                             .y = free_places[(i + 5) % n],
                             .dy = free_places[(i + 6) % n],
                             .grads = free_places[(i + 2) % n],
                             .lse = i % 3 == 1 ? LAYOUT_PITCHED : LAYOUT_DENSE,
                             .add = i % 3 == 0,
                             .seed = 700 + (uint64_t)i };
}

/* I9 */
static void attention_takes_heads_and_packed_views_as_they_are(void **state)
{
    (void)state;
    const int64_t widths[] = { WIDTH, 64, 17 };
    for (int i = 0; i < 2 * COUNT_OF(free_places); i++)
        for (int d = 0; d < 3; d++) {
            if (!meets(d == 0 && i % 3 == 0 ? ANYWHERE : d == 0 ? SELDOM : ON_HOSTS)) continue;
            const int64_t before = hidden_copies();
            const attention_case c =
                placed_case(i, widths[(i + d) % 3 * !test_on_opencl()], dtypes[d]);
            check(&c);
            assert_int_equal(hidden_copies(), before);
        }
}

/* Heads first to first + heads of a packed [B, L, parts, D], from row on. */
static atto_tensor heads_of(const atto_tensor *packed, int64_t first, int64_t heads, int64_t row)
{
    atto_tensor t = *packed;
    t.shape[1] = heads, t.stride[1] = packed->stride[2];
    t.shape[2] = packed->shape[1] - row, t.stride[2] = packed->stride[1];
    t.offset += first * packed->stride[2] + row * packed->stride[1];
    return t;
}

enum { PACKED_B = 2, PACKED_L = 9, PACKED_H = 4, PACKED_G = 2, PACKED_D = 8 };
#define PACKED_SHAPE atto_shape4(PACKED_B, PACKED_L, PACKED_H + 2 * PACKED_G, PACKED_D)

/* Of packed inputs, with all gradients in `gradients`, or dq in `other`: dq, dk and dv one behind the other. */
static void packed_backward(const atto_tensor *packed, const atto_tensor *gradients,
                            const atto_tensor *other, int64_t row, float *got)
{
    atto_tensor y, lse;
    const atto_tensor q = heads_of(packed, 0, PACKED_H, row);
    const atto_tensor k = heads_of(packed, PACKED_H, PACKED_G, 0);
    const atto_tensor v = heads_of(packed, PACKED_H + PACKED_G, PACKED_G, 0);
    const atto_tensor dq = heads_of(other, 0, PACKED_H, row);
    const atto_tensor dk = heads_of(gradients, PACKED_H, PACKED_G, 0);
    const atto_tensor dv = heads_of(gradients, PACKED_H + PACKED_G, PACKED_G, 0);
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape_of(4, q.shape), &y));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape_of(3, q.shape), &lse));
    const struct atto_attention_args args = {
        .q = &q, .k = &k, .v = &v, .y = &y, .lse = &lse, .dy = &y, .dq = &dq, .dk = &dk, .dv = &dv
    };
    MUST(atto_tensor_fill(gradients, 0.0));
    MUST(atto_tensor_fill(other, 0.0));
    MUST(atto_attention_forward(test_dev, &args));
    MUST(atto_attention_backward(test_dev, &args));
    MUST(atto_tensor_read(&dq, got));
    MUST(atto_tensor_read(&dk, got + atto_tensor_numel(&dq)));
    MUST(atto_tensor_read(&dv, got + atto_tensor_numel(&dq) + atto_tensor_numel(&dk)));
    atto_tensor_free(&y);
    atto_tensor_free(&lse);
}

/* All three gradients in one tensor, also where heads share keys or some queries are left out. */
static void attention_packs_gradients_into_one_tensor(void **state)
{
    (void)state;
    enum { ALL = PACKED_B * PACKED_L * (PACKED_H + 2 * PACKED_G) * PACKED_D };
    double x[ALL];
    float values[ALL], together[ALL], apart[ALL];
    atto_tensor packed, gradients, other;
    test_uniform(77, -1.0, 1.0, ATTO_F32, x, ALL);
    for (int i = 0; i < ALL; i++) values[i] = (float)x[i];
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, PACKED_SHAPE, &packed));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, PACKED_SHAPE, &gradients));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, PACKED_SHAPE, &other));
    MUST(atto_tensor_write(&packed, values));
    for (int64_t row = 0; row < 6; row += 5) {
        memset(together, 0, sizeof together);
        memset(apart, 0, sizeof apart);
        packed_backward(&packed, &gradients, &gradients, row, together);
        packed_backward(&packed, &gradients, &other, row, apart);
        assert_memory_equal(together, apart, sizeof together);
    }
    atto_tensor_free(&packed);
    atto_tensor_free(&gradients);
    atto_tensor_free(&other);
}

/* I9 */
static void attention_packs_what_has_no_unit_stride(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_STEP2, LAYOUT_TRANSPOSED, LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i++) {
        const int64_t before = hidden_copies();
        check(&(attention_case){ .batches = 2,
                                 .heads = 2,
                                 .queries = 9,
                                 .keys = 7,
                                 .d = WIDTH,
                                 .dtype = ATTO_F32,
                                 .q = { layouts[i], ROWS },
                                 .k = { layouts[(i + 1) % 3], ROWS },
                                 .v = { layouts[(i + 2) % 3], ROWS },
                                 .y = { layouts[i], ROWS },
                                 .dy = { layouts[(i + 1) % 3], ROWS },
                                 .grads = { layouts[(i + 2) % 3], ROWS },
                                 .lse = LAYOUT_STEP2,
                                 .add = i == 1,
                                 .seed = 730 + (uint64_t)i });
        assert_true(hidden_copies() > before);
    }
}

/* I9: what the caller expanded over the batch. */
static void attention_takes_expanded_inputs(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        check(&(attention_case){ .batches = 3,
                                 .heads = 2,
                                 .queries = 9,
                                 .keys = 7,
                                 .d = WIDTH,
                                 .dtype = ATTO_F32,
                                 .q = { i == 0 ? LAYOUT_BROADCAST : LAYOUT_DENSE, ROWS },
                                 .k = { i != 1 ? LAYOUT_BROADCAST : LAYOUT_DENSE, ROWS },
                                 .v = { i != 0 ? LAYOUT_BROADCAST : LAYOUT_DENSE, HEADS },
                                 .dy = { i == 1 ? LAYOUT_BROADCAST : LAYOUT_DENSE, ROWS },
                                 .seed = 740 + (uint64_t)i });
}

/* NaN times the 0 that pads a tile would be NaN: what lies beside the views takes no part. */
static void attention_reads_nothing_outside_its_views(void **state)
{
    (void)state;
    enum { L = 9, S = 11, ROOM = 24, PITCH = WIDTH + 5 };
    const int64_t rows[] = { L, S, S, L, L, L, S, S };
    atto_tensor whole[8], view[8], lse;
    for (int i = 0; i < 8; i++) {
        MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape4(1, 2, ROOM, PITCH), &whole[i]));
        MUST(atto_tensor_fill(&whole[i], (double)NAN));
        view[i] = whole[i];
        view[i].shape[2] = rows[i], view[i].shape[3] = WIDTH;
        view[i].offset = 2 * PITCH + 3;
        MUST(atto_tensor_fill(&view[i], 1.0));
    }
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(1, 2, L), &lse));
    const struct atto_attention_args p = { .q = &view[0],
                                           .k = &view[1],
                                           .v = &view[2],
                                           .y = &view[3],
                                           .lse = &lse,
                                           .dy = &view[4],
                                           .dq = &view[5],
                                           .dk = &view[6],
                                           .dv = &view[7] };
    MUST(atto_attention_forward(test_dev, &p));
    MUST(atto_attention_backward(test_dev, &p));
    const double want[] = { 1, 1, 1, 1, 1, 0, 0, (double)L / S };
    for (int i = 0; i < 8; i++) {
        float got[2 * ROOM * PITCH];
        MUST(atto_tensor_read(&view[i], got));
        for (int64_t e = 0; e < 2 * rows[i] * WIDTH; e++)
            if (!(fabs((double)got[e] - want[i]) < 1e-5))
                fail_msg("tensor %d, element %d is %g", i, (int)e, (double)got[e]);
        atto_tensor_free(&whole[i]);
    }
    atto_tensor_free(&lse);
}

/* ---- masks ---- */

enum { MASK_B = 2, MASK_H = 4, MASK_L = 21, MASK_S = 35 };

static const struct form_row {
    int32_t rank;
    int64_t dims[4];
} forms[] = {
    { 1, { MASK_S } },
    { 1, { 1 } },
    { 2, { MASK_L, MASK_S } },
    { 2, { MASK_L, 1 } },
    { 2, { 1, MASK_S } },
    { 3, { MASK_H, MASK_L, MASK_S } },
    { 3, { 1, MASK_L, MASK_S } },
    { 3, { MASK_H, 1, MASK_S } },
    { 3, { MASK_H, 1, 1 } },
    { 4, { MASK_B, 1, 1, MASK_S } }, /* padding of keys */
    { 4, { MASK_B, 1, MASK_L, MASK_S } },
    { 4, { MASK_B, MASK_H, MASK_L, MASK_S } },
    { 4, { MASK_B, 1, MASK_L, 1 } },
    { 4, { 1, MASK_H, MASK_L, 1 } },
    { 4, { MASK_B, 1, 1, 1 } },
    { 4, { 1, 1, 1, 1 } },
};

static attention_case masked_case(int form, atto_dtype mask, atto_dtype dtype)
{
    return (attention_case){ .batches = MASK_B,
                             .heads = MASK_H,
                             .shared = 2,
                             .queries = MASK_L,
                             .keys = MASK_S,
                             .d = WIDTH,
                             .dtype = dtype,
                             .causal = (atto_causal)(form % 3),
                             .mask = { .dtype = mask,
                                       .shape = atto_shape_of(forms[form].rank, forms[form].dims) },
                             .seed = 800 + (uint64_t)form };
}

static void attention_takes_masks_of_every_form(void **state)
{
    (void)state;
    for (int form = 0; form < COUNT_OF(forms); form++)
        for (int d = 0; d < 3; d++) {
            const atto_dtype kinds[] = { ATTO_I32, ATTO_F32, dtypes[d] };
            for (int m = 0; m < (d == 0 ? 2 : 3); m++) {
                const bool mixed = d == 1 && form % 8 == 2;
                if (!meets(d == 0 ? ANYWHERE : mixed ? SELDOM : ON_HOSTS)) continue;
                if (!meets_mask(kinds[m])) continue;
                attention_case c = masked_case(form, kinds[m], dtypes[d]);
                check(&c);
                c.mask.layout = form % 2 ? LAYOUT_OFFSET : LAYOUT_PITCHED;
                if (d == 0) check(&c);
            }
        }
}

/* A mask without unit stride is packed; one of stride 0, as expand leaves it, is taken. */
static void attention_takes_expanded_masks(void **state)
{
    (void)state;
    static const test_layout layouts[] = { LAYOUT_BROADCAST, LAYOUT_STEP2, LAYOUT_TRANSPOSED };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int m = 0; m < 2; m++)
            for (int form = 2; form < 12; form += 3) {
                attention_case c = masked_case(form, m ? ATTO_F32 : ATTO_I32, ATTO_F32);
                c.mask.layout = layouts[i];
                if (meets_mask(c.mask.dtype)) check(&c);
            }
}

/* All of [B, H, L, S] with any strides 0. */
static void attention_takes_masks_with_any_stride_zero(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++)
        for (int zero = 1; zero < 16; zero++) {
            const attention_case c = masked_case(11, m ? ATTO_F32 : ATTO_I32, ATTO_F32);
            scene s;
            if (!meets_mask(c.mask.dtype)) continue;
            build(&s, &c);
            test_tensor *t = &s.o[MASK].t;
            for (int32_t d = 0; d < 4; d++)
                if (zero >> d & 1) t->view.stride[d] = 0;
            for (int64_t i = 0; i < t->numel; i++) t->at[i] = position(&t->view, i);
            test_tensor_held(t, s.o[MASK].values);
            MUST(atto_attention_forward(test_dev, &s.args));
            expect_forward(&s);
            MUST(atto_attention_backward(test_dev, &s.args));
            expect_gradients(&s);
            tear_down(&s);
        }
}

/* All but the last tenth of the keys, where backends share keys out: parts that see nothing. */
static void hide_most_keys(scene *s)
{
    const bool words = s->c->mask.dtype == ATTO_I32;
    const int64_t n = s->o[MASK].t.numel, keys = s->c->keys;
    double *mask = test_doubles(n);
    for (int64_t i = 0; i < n; i++)
        mask[i] = i % keys < keys - keys / 10 ? (words ? 0.0 : -INFINITY) : words ? 1.0 : 0.5;
    hold(&s->o[MASK], mask);
    free(mask);
}

/* Where queries are few, keys are shared out among those who compute: with masks of each head,
 * causal and dropout. */
static void attention_of_few_queries_takes_everything(void **state)
{
    (void)state;
    static const int64_t rows[][4] = { { 4, 2, 1, 1500 }, { 2, 2, 3, 1111 }, { 3, 1, 7, 777 } };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int turn = 0; turn < 6; turn++) {
            const atto_shape mask = { 3, { rows[i][0], turn == 1 ? 1 : rows[i][2], rows[i][3] } };
            attention_case c = { .batches = 2,
                                 .heads = rows[i][0],
                                 .shared = rows[i][1],
                                 .queries = rows[i][2],
                                 .keys = rows[i][3],
                                 .d = WIDTH,
                                 .dtype = ATTO_F32,
                                 .causal = (atto_causal)(turn % 3),
                                 .prepare = turn == 3 ? hide_most_keys : NULL,
                                 .rng = { 3, 4, ATTO_RNG_PHILOX },
                                 .seed = 850 + (uint64_t)i };
            if (turn < 4)
                c.mask = (mask_form){ .dtype = turn == 2 ? ATTO_F32 : ATTO_I32, .shape = mask };
            if (turn == 4) c.dropout = 0.25f;
            if (meets(turn == 2 || turn == 4 ? SELDOM : ANYWHERE)) check(&c);
        }
}

/* A probability for each key: v is the identity and some columns of 0, so that y holds them. */
static void see_probabilities(scene *s)
{
    const int64_t keys = s->c->keys, e = s->o[V].t.view.shape[3];
    double *v = test_doubles(s->o[V].t.numel);
    for (int64_t i = 0; i < s->o[V].t.numel; i++) v[i] = i % e == i / e % keys;
    hold(&s->o[V], v);
    free(v);
}

static void expect_seen(int64_t queries, int64_t keys, atto_causal causal, const char *pattern)
{
    const attention_case c = { .batches = 1,
                               .heads = 1,
                               .queries = queries,
                               .keys = keys,
                               .d = WIDTH,
                               .dtype = ATTO_F32,
                               .causal = causal,
                               .prepare = see_probabilities,
                               .seed = 870 };
    scene s;
    double y[5 * WIDTH];
    build(&s, &c);
    MUST(atto_attention_forward(test_dev, &s.args));
    test_tensor_get(&s.o[Y].t, y);
    for (int64_t i = 0; i < queries * keys; i++) {
        const double p = y[i / keys * WIDTH + i % keys];
        if ((p != 0.0) != (pattern[i + i / keys] == '1'))
            fail_msg("%d queries, %d keys, causal %d: key %d has probability %g, pattern %s",
                     (int)queries, (int)keys, (int)causal, (int)i, p, pattern);
    }
    tear_down(&s);
}

/* G4 */
static void attention_aligns_causal_as_it_says(void **state)
{
    (void)state;
    expect_seen(2, 5, ATTO_CAUSAL_TOP_LEFT, "10000 11000");
    expect_seen(5, 2, ATTO_CAUSAL_TOP_LEFT, "10 11 11 11 11");
    expect_seen(2, 5, ATTO_CAUSAL_BOTTOM_RIGHT, "11110 11111");
    expect_seen(5, 2, ATTO_CAUSAL_BOTTOM_RIGHT, "00 00 00 10 11");
    expect_seen(3, 3, ATTO_CAUSAL_TOP_LEFT, "100 110 111");
    expect_seen(3, 3, ATTO_CAUSAL_BOTTOM_RIGHT, "100 110 111");
    expect_seen(1, 5, ATTO_CAUSAL_BOTTOM_RIGHT, "11111");
    expect_seen(1, 5, ATTO_CAUSAL_TOP_LEFT, "10000");
    expect_seen(2, 5, ATTO_CAUSAL_NONE, "11111 11111");
}

/* G4: far apart, where whole tiles of either are hidden. */
static void attention_takes_causal_of_unequal_lengths(void **state)
{
    (void)state;
    static const int64_t rows[][2] = { { 300, 40 }, { 40, 300 }, { 200, 1 }, { 257, 255 } };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int causal = 1; causal < 3; causal++)
            for (int d = 0; d < 3; d++) {
                if (!meets(d == 0 ? ANYWHERE : ON_HOSTS)) continue;
                check(&(attention_case){ .batches = 1,
                                         .heads = 2,
                                         .shared = 1,
                                         .queries = rows[i][0],
                                         .keys = rows[i][1],
                                         .d = WIDTH,
                                         .dtype = dtypes[d],
                                         .causal = (atto_causal)causal,
                                         .add = d == 1,
                                         .seed = 880 + (uint64_t)i });
            }
}

/* ---- queries that see nothing (G2) ---- */

enum { SEE_L = 4 };

/* Hides these rows of [L, S], the others see all. */
static unsigned hidden_rows;

static void hide_rows(scene *s)
{
    const bool words = s->c->mask.dtype == ATTO_I32;
    const int64_t n = s->o[MASK].t.numel, keys = s->c->keys;
    double *mask = test_doubles(n);
    for (int64_t i = 0; i < n; i++)
        mask[i] = hidden_rows >> (i / keys) & 1 ? (words ? 0.0 : -INFINITY) : words ? 1.0 : 0.0;
    hold(&s->o[MASK], mask);
    free(mask);
}

/* And their upstream gradients are 0. */
static void hide_rows_and_gradients(scene *s)
{
    hide_rows(s);
    const int64_t e = s->o[DY].t.view.shape[3], n = s->o[DY].t.numel;
    double *dy = test_doubles(n);
    memcpy(dy, s->o[DY].values, (size_t)n * sizeof *dy);
    for (int64_t i = 0; i < n; i++)
        if (hidden_rows >> (i / e % s->c->queries) & 1) dy[i] = 0.0;
    hold(&s->o[DY], dy);
    free(dy);
}

static attention_case hiding_case(atto_dtype mask, atto_dtype dtype, atto_causal causal,
                                  int zero_dy)
{
    return (attention_case){ .batches = 1,
                             .heads = 1,
                             .queries = SEE_L,
                             .keys = SEE_L,
                             .d = WIDTH,
                             .dtype = dtype,
                             .causal = causal,
                             .mask = { .dtype = mask, .shape = atto_shape2(SEE_L, SEE_L) },
                             .prepare = zero_dy ? hide_rows_and_gradients : hide_rows,
                             .seed = 900 };
}

/* Runs both passes and returns what came out, in y, lse, dq, dk, dv. */
static void run_hidden(const attention_case *c, unsigned rows, double *out[5])
{
    static const int outputs[] = { Y, LSE, DQ, DK, DV };
    scene s;
    hidden_rows = rows;
    build(&s, c);
    MUST(atto_attention_forward(test_dev, &s.args));
    expect_forward(&s);
    MUST(atto_attention_backward(test_dev, &s.args));
    expect_gradients(&s);
    for (int i = 0; i < 5; i++) {
        out[i] = test_doubles(s.o[outputs[i]].t.numel);
        test_tensor_get(&s.o[outputs[i]].t, out[i]);
    }
    tear_down(&s);
}

/* Whether numbers of all rows of one tensor are as they should be beside those of no hidden row. */
static void expect_hidden(unsigned rows, double *const got[5], double *const open[5])
{
    for (int64_t l = 0; l < SEE_L; l++) {
        const bool hidden = rows >> l & 1;
        assert_true(hidden ? got[1][l] == (double)INFINITY : got[1][l] == open[1][l]);
        for (int64_t i = l * WIDTH; i < (l + 1) * WIDTH; i++) {
            assert_true(got[0][i] == (hidden ? 0.0 : open[0][i]));
            assert_true(got[2][i] == (hidden ? 0.0 : open[2][i]));
            assert_true(isfinite(got[3][i]) && isfinite(got[4][i]));
        }
    }
}

static void attention_of_a_hidden_row_is_zero(void **state)
{
    (void)state;
    const unsigned rows[] = { 1, 3, 8, 15 };
    for (int d = 0; d < 3; d++)
        for (int m = 0; m < 2; m++)
            for (int turn = 0; turn < 4; turn++) {
                double *open[5], *got[5];
                if (!meets(d == 0 ? ANYWHERE : ON_HOSTS)) continue;
                if (!meets_mask(m ? ATTO_F32 : ATTO_I32)) continue;
                const attention_case c =
                    hiding_case(m ? ATTO_F32 : ATTO_I32, dtypes[d],
                                turn & 1 ? ATTO_CAUSAL_TOP_LEFT : ATTO_CAUSAL_NONE, turn & 2);
                run_hidden(&c, 0, open);
                for (int r = 0; r < COUNT_OF(rows); r++) {
                    run_hidden(&c, rows[r], got);
                    expect_hidden(rows[r], got, open);
                    for (int i = 0; i < 5; i++) free(got[i]);
                }
                for (int i = 0; i < 5; i++) free(open[i]);
            }
}

/* ---- numbers ---- */

static void put_at(operand *o, int64_t index, double value)
{
    o->values[index] = value;
    test_tensor_put(&o->t, o->values);
    test_tensor_held(&o->t, o->values);
}

static void nan_in_a_query(scene *s)
{
    put_at(&s->o[Q], 3 * s->c->d + 1, NAN);
}
static void nan_in_a_key(scene *s)
{
    put_at(&s->o[K], 5 * s->c->d + 2, NAN);
}
static void infinity_in_a_query(scene *s)
{
    put_at(&s->o[Q], 3 * s->c->d + 1, INFINITY);
}
static void nan_in_the_last_key(scene *s)
{
    put_at(&s->o[K], s->o[K].t.numel - 1, NAN);
}
static void infinity_in_a_value(scene *s)
{
    put_at(&s->o[V], 5 * s->c->d + 2, -INFINITY);
}
static void nan_in_a_value(scene *s)
{
    put_at(&s->o[V], 5 * s->c->d + 2, NAN);
}

/* F7: of 2 heads of 8 queries and 11 keys one number is spoilt. */
static void attention_propagates_nan_and_infinity(void **state)
{
    (void)state;
    void (*const spoils[])(scene *) = { nan_in_a_query, nan_in_a_key, infinity_in_a_query,
                                        infinity_in_a_value, nan_in_a_value };
    for (int i = 0; i < COUNT_OF(spoils); i++)
        for (int d = 0; d < 3; d++) {
            if (!meets(d == 0 ? ANYWHERE : ON_HOSTS)) continue;
            check_forward(&(attention_case){ .batches = 1,
                                             .heads = 2,
                                             .queries = 8,
                                             .keys = 11,
                                             .d = WIDTH,
                                             .dtype = dtypes[d],
                                             .prepare = spoils[i],
                                             .seed = 920 });
        }
}

/* The same of a few queries, of whose many keys one is spoilt. */
static void attention_of_few_queries_propagates_nan(void **state)
{
    (void)state;
    void (*const spoils[])(scene *) = { nan_in_a_key, nan_in_the_last_key, infinity_in_a_value };
    for (int i = 0; i < COUNT_OF(spoils); i++)
        check_forward(&(attention_case){ .batches = 1,
                                         .heads = 2,
                                         .queries = 1,
                                         .keys = 1200,
                                         .d = WIDTH,
                                         .dtype = ATTO_F32,
                                         .prepare = spoils[i],
                                         .seed = 925 });
}

/* Key 5 is hidden from all. */
static void hide_key(scene *s)
{
    const bool words = s->c->mask.dtype == ATTO_I32;
    for (int64_t i = 0; i < s->o[MASK].t.numel; i++)
        put_at(&s->o[MASK], i, i == 5 ? (words ? 0.0 : -INFINITY) : words ? 1.0 : 0.0);
}
static void hide_nan_key(scene *s)
{
    hide_key(s);
    nan_in_a_key(s);
}
static void hide_nan_value(scene *s)
{
    hide_key(s);
    nan_in_a_value(s);
}
static void hide_infinite_value(scene *s)
{
    hide_key(s);
    infinity_in_a_value(s);
}

/* G5: a key that an i32 mask hides is not looked at, NaN and an added -infinity are NaN, and so is 0
 * times NaN or infinity in a hidden value. */
static void attention_passes_nan_of_hidden_values_on(void **state)
{
    (void)state;
    void (*const spoils[])(scene *) = { hide_nan_key, hide_nan_value, hide_infinite_value };
    for (int i = 0; i < COUNT_OF(spoils); i++)
        for (int m = 0; m < 2; m++) {
            if (!meets_mask(m ? ATTO_F32 : ATTO_I32)) continue;
            check_forward(&(attention_case){
                .batches = 1,
                .heads = 2,
                .queries = 8,
                .keys = 11,
                .d = WIDTH,
                .dtype = ATTO_F32,
                .mask = { .dtype = m ? ATTO_F32 : ATTO_I32, .shape = atto_shape1(11) },
                .prepare = spoils[i],
                .seed = 930 });
        }
}

enum { FAR = 700 };

static void nan_far_away(scene *s)
{
    put_at(&s->o[K], s->o[K].t.numel - 1, NAN);
    put_at(&s->o[V], s->o[V].t.numel - 1, NAN);
}

/* G5: what causal hides by whole blocks is not read. The last query sees the last key. */
static void attention_does_not_read_blocks_that_causal_hides(void **state)
{
    (void)state;
    const attention_case c = { .batches = 1,
                               .heads = 1,
                               .queries = FAR,
                               .keys = FAR,
                               .d = WIDTH,
                               .dtype = ATTO_F32,
                               .causal = ATTO_CAUSAL_TOP_LEFT,
                               .prepare = nan_far_away,
                               .seed = 940 };
    scene s;
    double *y = test_doubles((int64_t)FAR * WIDTH);
    build(&s, &c);
    MUST(atto_attention_forward(test_dev, &s.args));
    test_tensor_get(&s.o[Y].t, y);
    for (int64_t i = 0; i < WIDTH; i++) {
        for (int64_t l = 0; l < FAR - 512; l++) assert_true(isfinite(y[l * WIDTH + i]));
        assert_true(isnan(y[(FAR - 1) * WIDTH + i]));
    }
    tear_down(&s);
    free(y);
}

/* Products q k = 512 key, key = 56, 52, ...: exact in every dtype, and thousands apart. */
static void make_huge(scene *s)
{
    const int64_t d = s->c->d, n = s->o[K].t.numel;
    double *q = test_doubles(s->o[Q].t.numel), *k = test_doubles(n);
    for (int64_t i = 0; i < s->o[Q].t.numel; i++) q[i] = i / d % 2 ? -32.0 : 32.0;
    for (int64_t i = 0; i < n; i++) k[i] = 56.0 - 4.0 * (double)(i / d % s->c->keys);
    hold(&s->o[Q], q);
    hold(&s->o[K], k);
    free(q), free(k);
}

/* z up to 28672: softmax picks one key, and all stays finite. */
static void attention_of_huge_logits_is_finite(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        if (!meets(d == 0 ? ANYWHERE : ON_HOSTS)) continue;
        const attention_case c = { .batches = 1,
                                   .heads = 2,
                                   .queries = 10,
                                   .keys = 29,
                                   .d = WIDTH,
                                   .dtype = dtypes[d],
                                   .scale = 1.0f,
                                   .prepare = make_huge,
                                   .seed = 950 };
        scene s;
        double y[20 * WIDTH], lse[20];
        check(&c);
        build(&s, &c);
        MUST(atto_attention_forward(test_dev, &s.args));
        test_tensor_get(&s.o[Y].t, y);
        test_tensor_get(&s.o[LSE].t, lse);
        for (int i = 0; i < 20 * WIDTH; i++) {
            const int64_t key = i / WIDTH % 2 ? 28 : 0, head = i / WIDTH / 10;
            assert_true(y[i] == s.o[V].values[(head * 29 + key) * WIDTH + i % WIDTH]);
            assert_true(lse[i / WIDTH] == 28672.0);
        }
        tear_down(&s);
    }
}

/* A mask on all keys of a row, and a step of its last place; keys have 0 to steps - 1 of those. */
static const struct depth {
    double mask, step;
    int64_t steps;
} depths[] = { { -1e6, 0x1p-4, 37 }, { -1e9, 64.0, 2 }, { -0x1.fffffep127, 0.0, 1 } };
static const struct depth *depth;

/* Columns in pairs: the second is the first times sign. Products of sixteenths are exact. */
static void pair_columns(operand *o, double sign)
{
    double *values = test_doubles(o->t.numel);
    for (int64_t i = 0; i < o->t.numel; i++)
        values[i] = i % 2 ? sign * values[i - 1] : round(16.0 * o->values[i]) / 16.0;
    hold(o, values);
    free(values);
}

/* Scores are the mask's, as f32 holds them: products of queries and keys are 0. One row of three has a
 * mask of 0. */
static void make_deep(scene *s)
{
    const int64_t keys = s->c->keys, n = s->o[MASK].t.numel;
    double *mask = test_doubles(n);
    for (int64_t i = 0; i < n; i++)
        mask[i] = i / keys % 3 == 1 ? 0.0 : depth->mask - depth->step * (double)(i % depth->steps);
    pair_columns(&s->o[Q], 1.0);
    pair_columns(&s->o[K], -1.0);
    hold(&s->o[MASK], mask);
    free(mask);
}

/* The logarithm of a row's sum is lost beside scores of 1e9, and with it the number of keys. */
static void attention_of_rows_far_below_zero_is_right(void **state)
{
    (void)state;
    static const struct {
        int64_t heads, shared, queries, keys;
        atto_causal causal;
        float dropout;
    } rows[] = { { 4, 2, 9, 70, ATTO_CAUSAL_NONE, 0.0f },
                 { 2, 2, 40, 33, ATTO_CAUSAL_TOP_LEFT, 0.0f },
                 { 4, 2, 1, 1000, ATTO_CAUSAL_NONE, 0.0f },
                 { 2, 1, 3, 1500, ATTO_CAUSAL_BOTTOM_RIGHT, 0.0f },
                 { 2, 2, 9, 70, ATTO_CAUSAL_NONE, 0.25f } };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int turn = 0; turn < COUNT_OF(depths) * 3; turn++) {
            const bool plain = turn % 3 == 0 && rows[i].dropout == 0.0f;
            if (!meets(plain ? SELDOM : ON_HOSTS)) continue;
            depth = &depths[turn / 3];
            check(&(attention_case){
                .batches = 2,
                .heads = rows[i].heads,
                .shared = rows[i].shared,
                .queries = rows[i].queries,
                .keys = rows[i].keys,
                .d = WIDTH,
                .dtype = dtypes[turn % 3],
                .causal = rows[i].causal,
                .mask = { .dtype = ATTO_F32,
                          .shape = atto_shape3(rows[i].heads, rows[i].queries, rows[i].keys) },
                .dropout = rows[i].dropout,
                .rng = { 3, 4, ATTO_RNG_PHILOX },
                .exact = true,
                .prepare = make_deep,
                .seed = 970 + (uint64_t)i });
        }
}

/* All keys alike: y is their mean, whatever the number of keys (H10). */
static void make_even(scene *s)
{
    for (int i = 0; i < 2; i++) {
        double *values = test_doubles(s->o[i == 0 ? Q : V].t.numel);
        for (int64_t j = 0; i == 1 && j < s->o[V].t.numel; j++) values[j] = 1.0;
        hold(&s->o[i == 0 ? Q : V], values);
        free(values);
    }
}

static void attention_of_many_equal_keys_is_their_mean(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        if (!meets(d == 0 ? ANYWHERE : ON_HOSTS)) continue;
        const attention_case c = { .batches = 1,
                                   .heads = 1,
                                   .queries = 3,
                                   .keys = 5000,
                                   .d = WIDTH,
                                   .dtype = dtypes[d],
                                   .prepare = make_even,
                                   .seed = 960 };
        scene s;
        double y[3 * WIDTH];
        build(&s, &c);
        MUST(atto_attention_forward(test_dev, &s.args));
        test_tensor_get(&s.o[Y].t, y);
        for (int i = 0; i < 3 * WIDTH; i++) assert_true(fabs(y[i] - 1.0) < 1e-5);
        tear_down(&s);
    }
}

/* ---- dropout ---- */

static attention_case dropping_case(float p, atto_rng_kind kind, atto_dtype dtype)
{
    return (attention_case){ .batches = 2,
                             .heads = 4,
                             .shared = 2,
                             .queries = 37,
                             .keys = 45,
                             .d = WIDTH,
                             .dtype = dtype,
                             .dropout = p,
                             .rng = { 42, UINT64_C(0x1fffffff0), kind },
                             .seed = 1000 };
}

static void attention_drops_probabilities(void **state)
{
    (void)state;
    const float ps[] = { 0.25f, 0.9f, 1.0f };
    for (int i = 0; i < COUNT_OF(ps); i++)
        for (int kind = 0; kind < 2; kind++)
            for (int d = 0; d < 3; d++) {
                if (!meets(d > 0 ? ON_HOSTS : SELDOM)) continue;
                attention_case c =
                    dropping_case(ps[i], kind ? ATTO_RNG_TRITON : ATTO_RNG_PHILOX, dtypes[d]);
                c.causal = (atto_causal)i;
                c.add = d == 1;
                check(&c);
                c.queries = 70, c.keys = 276; /* several tiles of both */
                check(&c);
                c.queries = 37, c.keys = 45;
                c.mask = (mask_form){ .dtype = ATTO_I32, .shape = atto_shape2(37, 45) };
                if (kind == 0 && meets(ON_HOSTS)) check(&c);
                c.mask.dtype = ATTO_F32;
                if (kind == 0 && meets(ON_HOSTS)) check(&c);
            }
}

/* y = dropout(softmax(z)) beside what dropout makes of ones by the same rng; numbers of keys that are
 * a multiple of the four words of a counter and such that are none. */
static void expect_the_mask_of_dropout(const attention_case *c)
{
    scene s;
    test_tensor ones, kept;
    build(&s, c);
    MUST(atto_attention_forward(test_dev, &s.args));
    const atto_shape shape = atto_shape4(c->batches, c->heads, c->queries, c->keys);
    test_tensor_make(&ones, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    test_tensor_make(&kept, test_dev, ATTO_F32, shape, LAYOUT_DENSE);
    double *keep = test_doubles(ones.numel), *y = test_doubles(s.o[Y].t.numel);
    for (int64_t i = 0; i < ones.numel; i++) keep[i] = 1.0;
    test_tensor_put(&ones, keep);
    MUST(atto_dropout_forward(
        test_dev, &(struct atto_dropout_args){
                      .x = &ones.view, .y = &kept.view, .p = c->dropout, .rng = c->rng }));
    test_tensor_get(&kept, keep);
    test_tensor_get(&s.o[Y].t, y);
    int64_t dropped = 0;
    for (int64_t i = 0; i < ones.numel; i++) {
        const double p = y[i / c->keys * c->e + i % c->keys];
        if ((keep[i] != 0.0) != (p != 0.0))
            fail_msg("element %d of %d is %s by dropout, %g", (int)i, (int)ones.numel,
                     keep[i] != 0.0 ? "kept" : "dropped", p);
        dropped += p == 0.0;
    }
    /* four standard deviations */
    const double n = (double)ones.numel, p = (double)c->dropout;
    assert_true(fabs((double)dropped / n - p) < 4.0 * sqrt(p * (1.0 - p) / n));
    test_tensor_drop(&ones), test_tensor_drop(&kept);
    free(keep), free(y);
    tear_down(&s);
}

static void attention_drops_what_dropout_would(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < 4; i++) {
            attention_case c =
                dropping_case(0.3f, kind ? ATTO_RNG_TRITON : ATTO_RNG_PHILOX, ATTO_F32);
            if (!meets(kind == 0 ? ANYWHERE : SELDOM)) continue;
            c.keys = 45 + i;
            c.d = c.e = 64;
            c.rng.offset += (uint64_t)i;
            c.prepare = see_probabilities;
            expect_the_mask_of_dropout(&c);
        }
}

/* Seeds and offsets beyond 32 bits: both words of each take part. */
static void attention_drops_by_all_of_seed_and_offset(void **state)
{
    (void)state;
    const atto_rng rngs[] = { { UINT64_C(0x100000001), 0, ATTO_RNG_PHILOX },
                              { 1, 0, ATTO_RNG_PHILOX },
                              { 1, UINT64_C(1) << 32, ATTO_RNG_PHILOX },
                              { 1, UINT32_MAX, ATTO_RNG_PHILOX } };
    for (int i = 0; i < COUNT_OF(rngs); i++) {
        attention_case c = dropping_case(0.5f, ATTO_RNG_PHILOX, ATTO_F32);
        c.rng = rngs[i];
        c.d = c.e = 64;
        c.prepare = see_probabilities;
        expect_the_mask_of_dropout(&c);
    }
}

/* ---- bits, memory, launches ---- */

/* Bits of all outputs behind each other; release with free. */
static uint64_t *all_bits(const scene *s, int64_t *n)
{
    static const int outputs[] = { Y, LSE, DQ, DK, DV };
    *n = 0;
    for (int i = 0; i < 5; i++) *n += s->o[outputs[i]].t.numel;
    uint64_t *bits = calloc((size_t)*n, sizeof *bits), *to = bits;
    assert_non_null(bits);
    for (int i = 0; i < 5; to += s->o[outputs[i++]].t.numel)
        test_tensor_bits(&s->o[outputs[i]].t, to);
    return bits;
}

static uint64_t *run_for_bits(scene *s, int64_t *n)
{
    MUST(atto_attention_forward(test_dev, &s->args));
    MUST(atto_attention_backward(test_dev, &s->args));
    return all_bits(s, n);
}

static attention_case repeated_case(int i, atto_dtype dtype)
{
    static const int64_t rows[][4] = { { 4, 2, 65, 130 }, { 3, 3, 100, 37 }, { 8, 1, 1, 1515 } };
    return (attention_case){ .batches = 2,
                             .heads = rows[i][0],
                             .shared = rows[i][1],
                             .queries = rows[i][2],
                             .keys = rows[i][3],
                             .d = WIDTH,
                             .dtype = dtype,
                             .causal = i == 1 ? ATTO_CAUSAL_TOP_LEFT : ATTO_CAUSAL_NONE,
                             .dropout = i == 1 ? 0.25f : 0.0f,
                             .rng = { 5, 6, ATTO_RNG_PHILOX },
                             .seed = 1100 + (uint64_t)i };
}

/* J1 */
static void attention_repeats_bit_for_bit(void **state)
{
    (void)state;
    const int runs = test_in_disguise() ? 5 : 50;
    for (int i = 0; i < 3; i++) {
        const attention_case c = repeated_case(i, ATTO_F32);
        scene s;
        int64_t n;
        if (!meets(c.dropout > 0.0f ? SELDOM : ANYWHERE)) continue;
        build(&s, &c);
        uint64_t *first = run_for_bits(&s, &n);
        for (int run = 1; run < runs; run++) {
            uint64_t *bits = run_for_bits(&s, &n);
            assert_memory_equal(first, bits, (size_t)n * sizeof *bits);
            free(bits);
        }
        free(first);
        tear_down(&s);
    }
}

static void check_threads(const attention_case *c)
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
        uint64_t *bits = run_for_bits(&s, &n);
        if (first) assert_memory_equal(first, bits, (size_t)n * sizeof *bits);
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

static void attention_does_not_depend_on_threads(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    for (int i = 0; i < 3; i++)
        for (int d = 0; d < 3; d++) {
            const attention_case c = repeated_case(i, dtypes[d]);
            check_threads(&c);
        }
}

/* Each gradient alone has the bits that it has beside the others, and others are left alone. */
static void attention_backward_skips_what_is_not_wanted(void **state)
{
    (void)state;
    const attention_case c = repeated_case(0, ATTO_F32);
    scene s;
    build(&s, &c);
    MUST(atto_attention_forward(test_dev, &s.args));
    MUST(atto_attention_backward(test_dev, &s.args));
    uint64_t *all[3], *one = calloc((size_t)s.o[DQ].t.numel, sizeof *one);
    for (int i = 0; i < 3; i++) {
        all[i] = calloc((size_t)s.o[DQ + i].t.numel, sizeof *all[i]);
        test_tensor_bits(&s.o[DQ + i].t, all[i]);
    }
    for (int wanted = 0; wanted < 8; wanted++) {
        struct atto_attention_args a = s.args;
        for (int i = 0; i < 3; i++) test_tensor_put(&s.o[DQ + i].t, NULL);
        if (!(wanted & 1)) a.dq = NULL;
        if (!(wanted & 2)) a.dk = NULL;
        if (!(wanted & 4)) a.dv = NULL;
        MUST(atto_attention_backward(test_dev, &a));
        for (int i = 0; i < 3; i++) {
            const size_t bytes = (size_t)s.o[DQ + i].t.numel * sizeof *one;
            assert_true(test_tensor_untouched(&s.o[DQ + i].t) == !(wanted >> i & 1));
            test_tensor_bits(&s.o[DQ + i].t, one);
            if (wanted >> i & 1) assert_memory_equal(all[i], one, bytes);
        }
    }
    for (int i = 0; i < 3; i++) free(all[i]);
    free(one);
    tear_down(&s);
}

static uint64_t *bits_of(const scene *s, int which)
{
    const test_tensor *t = &s->o[which].t;
    uint64_t *bits = calloc((size_t)t->numel, sizeof *bits);
    assert_non_null(bits);
    test_tensor_bits(t, bits);
    return bits;
}

/* Frees what it was given. */
static void expect_bits(const scene *s, int which, uint64_t *want)
{
    uint64_t *got = bits_of(s, which);
    assert_memory_equal(got, want, (size_t)s->o[which].t.numel * sizeof *got);
    free(got), free(want);
}

/* lse and lse_low, either without the other or none. */
static void attention_forward_without_lse_is_the_same(void **state)
{
    (void)state;
    static const int outputs[] = { Y, LSE, LSE_LOW };
    const attention_case c = repeated_case(0, ATTO_F32);
    for (int without = 1; without < 4; without++) {
        scene s;
        uint64_t *with[3];
        build(&s, &c);
        MUST(atto_attention_forward(test_dev, &s.args));
        for (int i = 0; i < 3; i++) {
            with[i] = bits_of(&s, outputs[i]);
            test_tensor_put(&s.o[outputs[i]].t, NULL);
        }
        if (without & 1) s.args.lse = NULL;
        if (without & 2) s.args.lse_low = NULL;
        MUST(atto_attention_forward(test_dev, &s.args));
        expect_bits(&s, Y, with[0]);
        for (int i = 1; i < 3; i++) {
            if (without & i) assert_true(test_tensor_untouched(&s.o[outputs[i]].t));
            if (!(without & i))
                expect_bits(&s, outputs[i], with[i]);
            else
                free(with[i]);
        }
        tear_down(&s);
    }
}

/* Less is known without it, and nothing is read in its place. */
static void attention_backward_without_lse_low_takes_0(void **state)
{
    (void)state;
    attention_case c = { .batches = 2,
                         .heads = 4,
                         .shared = 2,
                         .queries = 33,
                         .keys = 70,
                         .d = WIDTH,
                         .dtype = ATTO_F32,
                         .without_low = true,
                         .seed = 1140 };
    scene s;
    uint64_t *with[3];
    check(&c);
    c.without_low = false;
    build(&s, &c);
    MUST(atto_attention_forward(test_dev, &s.args));
    MUST(atto_tensor_fill(s.args.lse_low, 0.0));
    MUST(atto_attention_backward(test_dev, &s.args));
    for (int i = 0; i < 3; i++) {
        with[i] = bits_of(&s, DQ + i);
        test_tensor_put(&s.o[DQ + i].t, NULL);
    }
    s.args.lse_low = NULL;
    MUST(atto_attention_backward(test_dev, &s.args));
    for (int i = 0; i < 3; i++) expect_bits(&s, DQ + i, with[i]);
    tear_down(&s);
}

/* Bytes that both passes hold beside the tensors. */
static int64_t scratch_of(int64_t length)
{
    atto_device *const own = test_dev;
    atto_device_stats before, after;
    scene s;
    MUST(atto_device_open(test_device_name(), NULL, &test_dev));
    build(&s, &(attention_case){ .batches = 1,
                                 .heads = 1,
                                 .queries = length,
                                 .keys = length,
                                 .d = test_on_opencl() ? WIDTH : 64,
                                 .dtype = ATTO_F32,
                                 .causal = ATTO_CAUSAL_TOP_LEFT,
                                 .seed = 1150 });
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(atto_attention_forward(test_dev, &s.args));
    MUST(atto_attention_backward(test_dev, &s.args));
    MUST(atto_device_sync(test_dev));
    MUST(atto_device_stats_get(test_dev, &after));
    tear_down(&s);
    atto_device_close(test_dev);
    test_dev = own;
    return (int64_t)(after.bytes_reserved - before.bytes_reserved);
}

/* Work-groups of 32 have a tile for few queries, and none for backward; smaller ones have none: what a
 * device cannot do at all the CPU does. */
static void attention_on_small_work_groups_is_right(void **state)
{
    (void)state;
    atto_device *const own = test_dev;
    const int32_t groups[] = { 32, 4 };
    for (int i = 0; test_on_opencl() && i < COUNT_OF(groups); i++) {
        const atto_device_options options = { .max_work_group = groups[i] };
        MUST(atto_device_open(test_device_name(), &options, &test_dev));
        check(&(attention_case){ .batches = 1,
                                 .heads = 2,
                                 .queries = 4,
                                 .keys = 700,
                                 .d = WIDTH,
                                 .dtype = ATTO_F32,
                                 .add = true,
                                 .seed = 1180 + (uint64_t)i });
        atto_device_close(test_dev);
        test_dev = own;
    }
}

/* Never L x S: at 4096 the CPU may have 16 MiB, as at 16384 it may have 64, since both grow alike. */
static void attention_needs_little_memory(void **state)
{
    (void)state;
    const int64_t length = test_on_opencl() ? 1024 : 4096;
    const int64_t scratch = scratch_of(length), all = 4 * length * length;
    if (4 * scratch >= all) fail_msg("%d KiB of scratch", (int)(scratch >> 10));
}

static void attention_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    atto_device_stats before, after;
    attention_case c = placed_case(0, WIDTH, ATTO_F32);
    c.mask = (mask_form){ .dtype = ATTO_I32, .shape = atto_shape4(2, 1, 1, 18) };
    c.v.layout = c.y.layout = c.dy.layout = LAYOUT_DENSE; /* the kernels of others */
    scene s;
    build(&s, &c);
    for (int i = 0; i < 3; i++) {
        MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_attention_forward(test_dev, &s.args));
        MUST(atto_attention_backward(test_dev, &s.args));
        MUST(atto_device_stats_get(test_dev, &after));
    }
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    assert_true(after.launches - before.launches <= 6);
    tear_down(&s);
}

/* ---- what is refused ---- */

typedef void spoil_fn(scene *s);

static void refuse(spoil_fn *spoil, bool backward, atto_status status, const char *words)
{
    static const int outputs[] = { Y, LSE, DQ, DK, DV };
    scene s;
    build(&s, &(attention_case){ .batches = 2,
                                 .heads = 4,
                                 .shared = 2,
                                 .queries = 3,
                                 .keys = 5,
                                 .d = 6,
                                 .e = 7,
                                 .dtype = ATTO_F16,
                                 .mask = { .dtype = ATTO_F16, .shape = atto_shape2(3, 5) } });
    spoil(&s);
    EXPECT_FAIL(backward ? atto_attention_backward(test_dev, &s.args)
                         : atto_attention_forward(test_dev, &s.args),
                status, words);
    for (int i = 0; i < 5; i++) assert_true(test_tensor_untouched(&s.o[outputs[i]].t));
    tear_down(&s);
}

static void flat_q(scene *s)
{
    s->o[Q].t.view.rank = 3;
}
static void flat_v(scene *s)
{
    s->o[V].t.view.rank = 2;
}
static void wide_q(scene *s)
{
    s->o[Q].t.view.shape[3] = 257, s->o[Q].t.view.stride[3] = 0;
}
static void wide_v(scene *s)
{
    s->o[V].t.view.shape[3] = 257, s->o[V].t.view.stride[3] = 0;
}
static void no_width(scene *s)
{
    s->o[K].t.view.shape[3] = 0;
}
static void other_width(scene *s)
{
    s->o[K].t.view.shape[3] = 5;
}
static void other_batch(scene *s)
{
    s->o[K].t.view.shape[0] = 1;
}
static void other_keys(scene *s)
{
    s->o[V].t.view.shape[2] = 4;
}
static void other_heads(scene *s)
{
    s->o[V].t.view.shape[1] = 1;
}
static void three_of_four(scene *s)
{
    for (int i = K; i <= V; i++) s->o[i].t.view.shape[1] = 3, s->o[i].t.view.stride[1] = 0;
}
static void no_shared(scene *s)
{
    for (int i = K; i <= V; i++) s->o[i].t.view.shape[1] = 0;
}

static void no_heads(scene *s)
{
    s->o[Q].t.view.shape[1] = 0;
}
static void short_mask(scene *s)
{
    s->o[MASK].t.view.shape[1] = 4;
}
static void deep_mask(scene *s)
{
    s->o[MASK].t.view.rank = 5;
    for (int i = 0; i < 5; i++) s->o[MASK].t.view.shape[i] = 1;
}
static void scalar_mask(scene *s)
{
    s->o[MASK].t.view.rank = 0;
}
static void odd_mask(scene *s)
{
    s->o[MASK].t.view.dtype = ATTO_BF16;
}
static void integers(scene *s)
{
    for (int i = Q; i <= V; i++) s->o[i].t.view.dtype = ATTO_I32, s->o[i].t.view.stride[0] = 0;
}
static void mixed_k(scene *s)
{
    s->o[K].t.view.dtype = ATTO_BF16;
}
static void mixed_v(scene *s)
{
    s->o[V].t.view.dtype = ATTO_BF16;
}
static void odd_y(scene *s)
{
    s->o[Y].t.view.dtype = ATTO_BF16;
}
static void short_y(scene *s)
{
    s->o[Y].t.view.shape[2] = 2;
}
static void odd_lse(scene *s)
{
    s->o[LSE].t.view.dtype = ATTO_I32;
}
static void short_lse(scene *s)
{
    s->o[LSE].t.view.shape[2] = 2;
}
static void odd_lse_low(scene *s)
{
    s->o[LSE_LOW].t.view.dtype = ATTO_F16;
}
static void short_lse_low(scene *s)
{
    s->o[LSE_LOW].t.view.shape[1] = 2;
}
static void short_dy(scene *s)
{
    s->o[DY].t.view.shape[3] = 6;
}
static void short_dq(scene *s)
{
    s->o[DQ].t.view.shape[1] = 2;
}
static void short_dk(scene *s)
{
    s->o[DK].t.view.shape[2] = 4;
}
static void odd_dv(scene *s)
{
    s->o[DV].t.view.dtype = ATTO_BF16;
}
static void fourth_causal(scene *s)
{
    s->args.causal = (atto_causal)3;
}
static void negative_causal(scene *s)
{
    s->args.causal = (atto_causal)-1;
}
static void nan_scale(scene *s)
{
    s->args.scale = NAN;
}
static void infinite_scale(scene *s)
{
    s->args.scale = INFINITY;
}
static void large_dropout(scene *s)
{
    s->args.dropout = 1.5f;
}
static void nan_dropout(scene *s)
{
    s->args.dropout = NAN;
}
static void odd_rng(scene *s)
{
    s->args.dropout = 0.5f;
    s->args.rng.kind = (atto_rng_kind)2;
}
static void reserved(scene *s)
{
    s->args.reserved[2] = 1;
}
static void no_q(scene *s)
{
    s->args.q = NULL;
}
static void no_k(scene *s)
{
    s->args.k = NULL;
}
static void no_v(scene *s)
{
    s->args.v = NULL;
}
static void no_y(scene *s)
{
    s->args.y = NULL;
}
static void no_dy(scene *s)
{
    s->args.dy = NULL;
}
static void no_lse(scene *s)
{
    s->args.lse = NULL;
}
static void y_over_q(scene *s)
{
    s->args.v = s->args.k;
    s->args.y = s->args.q;
}
static void dk_over_k(scene *s)
{
    s->args.dk = s->args.k;
}

static void attention_refuses_what_does_not_fit(void **state)
{
    (void)state;
    static const struct {
        spoil_fn *spoil;
        atto_status status;
        const char *words;
    } both[] = {
        { flat_q, ATTO_E_SHAPE, "q is [2,4,3]|four dimensions" },
        { flat_v, ATTO_E_SHAPE, "v is [2,2]|four dimensions" },
        { wide_q, ATTO_E_SHAPE, "q is [2,4,3,257]|1 to 256" },
        { wide_v, ATTO_E_SHAPE, "v is [2,2,5,257]|1 to 256" },
        { no_width, ATTO_E_SHAPE, "k is [2,2,5,0]|1 to 256" },
        { other_width, ATTO_E_SHAPE, "k is [2,2,5,5], expected [2,2,5,6]" },
        { other_batch, ATTO_E_SHAPE, "k is [1,2,5,6], expected [2,2,5,6]" },
        { other_keys, ATTO_E_SHAPE, "v is [2,2,4,7], expected [2,2,5,7]" },
        { other_heads, ATTO_E_SHAPE, "v is [2,1,5,7], expected [2,2,5,7]" },
        { three_of_four, ATTO_E_SHAPE, "q has 4 heads|multiple of k's 3" },
        { no_shared, ATTO_E_SHAPE, "q has 4 heads|multiple of k's 0" },
        { no_heads, ATTO_E_SHAPE, "q has 0 heads|multiple of k's 2" },
        { short_mask, ATTO_E_SHAPE, "mask is [3,4]|broadcast to [2,4,3,5]" },
        { deep_mask, ATTO_E_SHAPE, "mask is [1,1,1,1,1]|broadcast" },
        { scalar_mask, ATTO_E_SHAPE, "mask is []|broadcast" },
        { odd_mask, ATTO_E_DTYPE, "mask is bf16|i32, f32 or q's f16" },
        { integers, ATTO_E_DTYPE, "q is i32|f32, f16 or bf16" },
        { mixed_k, ATTO_E_DTYPE, "k is bf16|f16" },
        { mixed_v, ATTO_E_DTYPE, "v is bf16|f16" },
        { odd_y, ATTO_E_DTYPE, "y is bf16|f16" },
        { short_y, ATTO_E_SHAPE, "y is [2,4,2,7], expected [2,4,3,7]" },
        { odd_lse, ATTO_E_DTYPE, "lse is i32|f32" },
        { short_lse, ATTO_E_SHAPE, "lse is [2,4,2], expected [2,4,3]" },
        { odd_lse_low, ATTO_E_DTYPE, "lse_low is f16|f32" },
        { short_lse_low, ATTO_E_SHAPE, "lse_low is [2,2,3], expected [2,4,3]" },
        { fourth_causal, ATTO_E_ARGUMENT, "causal is 3|0 to 2" },
        { negative_causal, ATTO_E_ARGUMENT, "causal is -1" },
        { nan_scale, ATTO_E_ARGUMENT, "scale is" },
        { infinite_scale, ATTO_E_ARGUMENT, "scale is inf" },
        { large_dropout, ATTO_E_ARGUMENT, "dropout|1.5" },
        { nan_dropout, ATTO_E_ARGUMENT, "dropout|nan" },
        { odd_rng, ATTO_E_ARGUMENT, "random" },
        { reserved, ATTO_E_ARGUMENT, "reserved" },
        { no_q, ATTO_E_NULL, "q is NULL" },
        { no_k, ATTO_E_NULL, "k is NULL" },
        { no_v, ATTO_E_NULL, "v is NULL" },
        { no_y, ATTO_E_NULL, "y is NULL" },
    };
    for (int i = 0; i < COUNT_OF(both); i++)
        for (int backward = 0; backward < 2; backward++)
            refuse(both[i].spoil, backward == 1, both[i].status, both[i].words);
    refuse(y_over_q, false, ATTO_E_ALIAS, "y overlaps q");
    refuse(dk_over_k, true, ATTO_E_ALIAS, "dk overlaps k");
    refuse(no_lse, true, ATTO_E_NULL, "lse is NULL");
    refuse(no_dy, true, ATTO_E_NULL, "dy is NULL");
    refuse(short_dy, true, ATTO_E_SHAPE, "dy is [2,4,3,6], expected [2,4,3,7]");
    refuse(short_dq, true, ATTO_E_SHAPE, "dq is [2,2,3,6], expected [2,4,3,6]");
    refuse(short_dk, true, ATTO_E_SHAPE, "dk is [2,2,4,6], expected [2,2,5,6]");
    refuse(odd_dv, true, ATTO_E_DTYPE, "dv is bf16|f16");
}

/* A silent fallback would test the CPU twice. */
static void attention_never_fell_back(void **state)
{
    (void)state;
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    assert_int_equal(stats.fallbacks, 0);
    for (int d = 0; d < 3; d++)
        if (meets(d == 0 ? ANYWHERE : SELDOM))
            assert_true(atto_device_supports(test_dev, ATTO_OP_ATTENTION, dtypes[d]));
    assert_false(atto_device_supports(test_dev, ATTO_OP_ATTENTION, ATTO_I32));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(attention_takes_any_number_of_queries_and_keys),
    cmocka_unit_test(attention_takes_any_head_size),
    cmocka_unit_test(attention_takes_every_dtype),
    cmocka_unit_test(attention_takes_heads_that_share_keys),
    cmocka_unit_test(attention_takes_one_query_and_many_keys),
    cmocka_unit_test(attention_takes_any_scale),
    cmocka_unit_test(attention_of_nothing),
    cmocka_unit_test(attention_takes_heads_and_packed_views_as_they_are),
    cmocka_unit_test(attention_packs_what_has_no_unit_stride),
    cmocka_unit_test(attention_packs_gradients_into_one_tensor),
    cmocka_unit_test(attention_takes_expanded_inputs),
    cmocka_unit_test(attention_reads_nothing_outside_its_views),
    cmocka_unit_test(attention_takes_masks_of_every_form),
    cmocka_unit_test(attention_takes_expanded_masks),
    cmocka_unit_test(attention_takes_masks_with_any_stride_zero),
    cmocka_unit_test(attention_of_few_queries_takes_everything),
    cmocka_unit_test(attention_aligns_causal_as_it_says),
    cmocka_unit_test(attention_takes_causal_of_unequal_lengths),
    cmocka_unit_test(attention_of_a_hidden_row_is_zero),
    cmocka_unit_test(attention_propagates_nan_and_infinity),
    cmocka_unit_test(attention_of_few_queries_propagates_nan),
    cmocka_unit_test(attention_passes_nan_of_hidden_values_on),
    cmocka_unit_test(attention_does_not_read_blocks_that_causal_hides),
    cmocka_unit_test(attention_of_huge_logits_is_finite),
    cmocka_unit_test(attention_of_rows_far_below_zero_is_right),
    cmocka_unit_test(attention_of_many_equal_keys_is_their_mean),
    cmocka_unit_test(attention_drops_probabilities),
    cmocka_unit_test(attention_drops_what_dropout_would),
    cmocka_unit_test(attention_drops_by_all_of_seed_and_offset),
    cmocka_unit_test(attention_repeats_bit_for_bit),
    cmocka_unit_test(attention_does_not_depend_on_threads),
    cmocka_unit_test(attention_backward_skips_what_is_not_wanted),
    cmocka_unit_test(attention_forward_without_lse_is_the_same),
    cmocka_unit_test(attention_backward_without_lse_low_takes_0),
    cmocka_unit_test(attention_on_small_work_groups_is_right),
    cmocka_unit_test(attention_needs_little_memory),
    cmocka_unit_test(attention_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(attention_refuses_what_does_not_fit),
    cmocka_unit_test(attention_never_fell_back),
};
TEST_MAIN("attention", tests)
