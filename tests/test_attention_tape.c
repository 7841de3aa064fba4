/* SPDX-License-Identifier: MIT */
/* Attention on a tape: the same bits as the op's, whatever the options; with a cache of keys. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

enum { B = 2, H = 4, G = 2, L = 5, S = 7, D = 16, E = 16 };
enum { Q_N = B * H * L * D, K_N = B * G * S * D, V_N = B * G * S * E, Y_N = B * H * L * E };

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

/* Uniform on [-1, 1). */
static void draw(uint64_t seed, float *out, int64_t n)
{
    double *values = test_doubles(n);
    test_uniform(seed, -1.0, 1.0, ATTO_F32, values, n);
    for (int64_t i = 0; i < n; i++) out[i] = (float)values[i];
    free(values);
}

static void upload(atto_dtype dtype, atto_shape shape, const void *values, atto_tensor *t)
{
    MUST(atto_tensor_alloc(test_dev, dtype, shape, t));
    MUST(atto_tensor_write(t, values));
}

/* The tensors of a call. */
typedef struct tensors {
    atto_tensor q, k, v, mask, y, lse, lse_low, dy, dq, dk, dv;
} tensors;

static void make(tensors *t, atto_dtype mask)
{
    float q[Q_N], k[K_N], v[V_N], dy[Y_N], added[L * S];
    int32_t words[L * S];
    draw(1, q, Q_N), draw(2, k, K_N), draw(3, v, V_N), draw(4, dy, Y_N), draw(5, added, L * S);
    for (int i = 0; i < L * S; i++) words[i] = i % 3 != 0;
    upload(ATTO_F32, atto_shape4(B, H, L, D), q, &t->q);
    upload(ATTO_F32, atto_shape4(B, G, S, D), k, &t->k);
    upload(ATTO_F32, atto_shape4(B, G, S, E), v, &t->v);
    upload(ATTO_F32, atto_shape4(B, H, L, E), dy, &t->dy);
    upload(mask, atto_shape2(L, S), mask == ATTO_I32 ? (void *)words : (void *)added, &t->mask);
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape4(B, H, L, E), &t->y));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(B, H, L), &t->lse));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(B, H, L), &t->lse_low));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape4(B, H, L, D), &t->dq));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape4(B, G, S, D), &t->dk));
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape4(B, G, S, E), &t->dv));
}

static void drop(tensors *t)
{
    atto_tensor *const all[] = { &t->q,       &t->k,  &t->v,  &t->mask, &t->y, &t->lse,
                                 &t->lse_low, &t->dy, &t->dq, &t->dk,   &t->dv };
    for (int i = 0; i < COUNT_OF(all); i++) atto_tensor_free(all[i]);
}

/* y and the gradients by the op. */
static void run_op(const tensors *t, const atto_attention_options *o, atto_rng rng)
{
    const struct atto_attention_args a = { .q = &t->q,
                                           .k = &t->k,
                                           .v = &t->v,
                                           .mask = o && o->mask ? &t->mask : NULL,
                                           .y = &t->y,
                                           .lse = &t->lse,
                                           .lse_low = &t->lse_low,
                                           .dy = &t->dy,
                                           .dq = &t->dq,
                                           .dk = &t->dk,
                                           .dv = &t->dv,
                                           .causal = o ? o->causal : ATTO_CAUSAL_NONE,
                                           .scale = o ? o->scale : 0.0f,
                                           .dropout = o ? o->dropout : 0.0f,
                                           .rng = rng };
    MUST(atto_attention_forward(test_dev, &a));
    MUST(atto_attention_backward(test_dev, &a));
}

static void expect_same(const atto_tensor *got, const atto_tensor *want)
{
    float a[Q_N], b[Q_N];
    const size_t bytes = (size_t)atto_tensor_numel(want) * sizeof *a;
    assert_int_equal(atto_tensor_numel(got), atto_tensor_numel(want));
    MUST(atto_tensor_read(got, a));
    MUST(atto_tensor_read(want, b));
    assert_memory_equal(a, b, bytes);
}

static void expect_grad(atto_var v, const atto_tensor *want)
{
    atto_tensor grad;
    MUST(atto_var_grad(tape, v, &grad));
    expect_same(&grad, want);
}

/* options' mask is filled in where has_mask. */
static void check(const atto_attention_options *options, bool has_mask, atto_dtype mask)
{
    const atto_rng rng = { 77, 5, ATTO_RNG_PHILOX };
    tensors t;
    atto_tensor y;
    atto_attention_options o = options ? *options : (atto_attention_options){ .scale = 0.0f };
    make(&t, mask);
    atto_tape_seed(tape, rng.seed, rng.offset);
    const atto_var q = atto_borrow(tape, &t.q, true), k = atto_borrow(tape, &t.k, true);
    const atto_var v = atto_borrow(tape, &t.v, true), m = atto_borrow(tape, &t.mask, false);
    if (has_mask) o.mask = &m;
    const atto_var out = atto_scaled_dot_product_attention(tape, q, k, v, options ? &o : NULL);
    MUST(atto_var_tensor(tape, out, &y));
    run_op(&t, &o, rng);
    expect_same(&y, &t.y);
    MUST(atto_backward_from(tape, out, &t.dy));
    expect_grad(q, &t.dq);
    expect_grad(k, &t.dk);
    expect_grad(v, &t.dv);
    MUST(atto_tape_end(tape));
    drop(&t);
}

static void attention_on_a_tape_has_the_bits_of_the_op(void **state)
{
    (void)state;
    check(NULL, false, ATTO_F32);
    check(&(atto_attention_options){ .scale = 0.5f }, false, ATTO_F32);
    for (int causal = 0; causal < 3; causal++)
        for (int mask = 0; mask < 3; mask++) {
            const atto_attention_options o = { .causal = (atto_causal)causal,
                                               .dropout = mask == 0 ? 0.25f : 0.0f };
            if (mask == 1 || !test_on_opencl() || !test_in_disguise())
                check(&o, mask > 0, mask == 1 ? ATTO_I32 : ATTO_F32);
        }
}

/* Two calls that drop: the second goes on where the first has ended. */
static void attention_on_a_tape_draws_on(void **state)
{
    (void)state;
    atto_rng rng = { 9, 0, ATTO_RNG_PHILOX };
    const atto_attention_options o = { .dropout = 0.5f };
    tensors t;
    make(&t, ATTO_F32);
    atto_tape_seed(tape, rng.seed, rng.offset);
    const atto_var q = atto_borrow(tape, &t.q, false), k = atto_borrow(tape, &t.k, false);
    const atto_var v = atto_borrow(tape, &t.v, false);
    for (int call = 0; call < 2; call++) {
        atto_tensor y;
        const atto_var out = atto_scaled_dot_product_attention(tape, q, k, v, &o);
        MUST(atto_var_tensor(tape, out, &y));
        run_op(&t, &o, atto_rng_reserve(&rng, (int64_t)B * H * L * S));
        expect_same(&y, &t.y);
    }
    MUST(atto_tape_end(tape));
    drop(&t);
}

/* q = k = v: three gradients meet. */
static void attention_of_one_value_with_itself_adds_gradients(void **state)
{
    (void)state;
    enum { N = H * L * D };
    float x[N], dy[N], got[N], want[3][N];
    atto_tensor t, up, y, lse, d[3], grad;
    draw(11, x, N), draw(12, dy, N);
    upload(ATTO_F32, atto_shape4(1, H, L, D), x, &t);
    upload(ATTO_F32, atto_shape4(1, H, L, D), dy, &up);
    upload(ATTO_F32, atto_shape4(1, H, L, D), x, &y);
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape3(1, H, L), &lse));
    for (int i = 0; i < 3; i++) upload(ATTO_F32, atto_shape4(1, H, L, D), x, &d[i]);
    const struct atto_attention_args a = { .q = &t,
                                           .k = &t,
                                           .v = &t,
                                           .y = &y,
                                           .lse = &lse,
                                           .dy = &up,
                                           .dq = &d[0],
                                           .dk = &d[1],
                                           .dv = &d[2] };
    MUST(atto_attention_forward(test_dev, &a));
    MUST(atto_attention_backward(test_dev, &a));
    const atto_var v = atto_borrow(tape, &t, true);
    const atto_var out = atto_scaled_dot_product_attention(tape, v, v, v, NULL);
    MUST(atto_backward_from(tape, out, &up));
    MUST(atto_var_grad(tape, v, &grad));
    MUST(atto_tensor_read(&grad, got));
    for (int i = 0; i < 3; i++) MUST(atto_tensor_read(&d[i], want[i]));
    for (int i = 0; i < N; i++)
        assert_true(fabsf(got[i] - want[0][i] - want[1][i] - want[2][i]) < 1e-5f);
    MUST(atto_tape_end(tape));
    atto_tensor_free(&t), atto_tensor_free(&up), atto_tensor_free(&y), atto_tensor_free(&lse);
    for (int i = 0; i < 3; i++) atto_tensor_free(&d[i]);
}

/* Only what is watched gets a gradient. */
static void attention_on_a_tape_computes_wanted_gradients_only(void **state)
{
    (void)state;
    for (int wanted = 0; wanted < 3; wanted++) {
        tensors t;
        atto_tensor grad;
        make(&t, ATTO_F32);
        const atto_tensor *const in[] = { &t.q, &t.k, &t.v }, *const d[] = { &t.dq, &t.dk, &t.dv };
        atto_var v[3];
        for (int i = 0; i < 3; i++) v[i] = atto_borrow(tape, in[i], i == wanted);
        run_op(&t, NULL, (atto_rng){ 0, 0, ATTO_RNG_PHILOX });
        const atto_var out = atto_scaled_dot_product_attention(tape, v[0], v[1], v[2], NULL);
        MUST(atto_backward_from(tape, out, &t.dy));
        expect_grad(v[wanted], d[wanted]);
        EXPECT_FAIL(atto_var_grad(tape, v[(wanted + 1) % 3], &grad), ATTO_E_STATE, "grad");
        (void)atto_tape_end(tape);
        drop(&t);
    }
}

/* A float mask that wants a gradient is refused; one that wants none is fine, and so is any where
 * nothing is recorded. */
static void attention_refuses_a_mask_that_wants_a_gradient(void **state)
{
    (void)state;
    tensors t;
    atto_param *p;
    make(&t, ATTO_F32);
    MUST(atto_param_create(test_dev, ATTO_F32, atto_shape2(L, S), &p));
    for (int turn = 0; turn < 5; turn++) {
        const bool records = turn != 1, is_param = turn >= 2, fine = turn == 1 || turn == 3;
        if (turn == 3) atto_param_freeze(p, true);
        if (turn == 4) atto_param_freeze(p, false);
        (void)atto_tape_record(tape, records);
        const atto_var q = atto_borrow(tape, &t.q, true), k = atto_borrow(tape, &t.k, false);
        const atto_var v = atto_borrow(tape, &t.v, false);
        const atto_var m = is_param ? atto_use(tape, p) : atto_borrow(tape, &t.mask, true);
        (void)atto_scaled_dot_product_attention(tape, q, k, v,
                                                &(atto_attention_options){ .mask = &m });
        if (fine)
            MUST(atto_tape_end(tape));
        else
            EXPECT_FAIL(atto_tape_end(tape), ATTO_E_UNSUPPORTED,
                        "scaled_dot_product_attention|mask|gradient");
    }
    atto_param_free(p);
    drop(&t);
}

static void attention_is_evaluated_without_recording(void **state)
{
    (void)state;
    tensors t;
    atto_tensor y;
    make(&t, ATTO_F32);
    (void)atto_tape_record(tape, false);
    const atto_var q = atto_borrow(tape, &t.q, true), k = atto_borrow(tape, &t.k, true);
    const atto_var out =
        atto_scaled_dot_product_attention(tape, q, k, atto_borrow(tape, &t.v, true), NULL);
    run_op(&t, NULL, (atto_rng){ 0, 0, ATTO_RNG_PHILOX });
    MUST(atto_var_tensor(tape, out, &y));
    expect_same(&y, &t.y);
    assert_true(atto_backward_from(tape, out, &t.dy) != ATTO_OK ||
                atto_var_grad(tape, q, &y) != ATTO_OK);
    (void)atto_tape_end(tape);
    drop(&t);
}

static atto_var zeros(atto_dtype dtype, atto_shape shape)
{
    static const float data[Q_N];
    return atto_input(tape, dtype, shape, data);
}

static void attention_on_a_tape_refuses_what_does_not_fit(void **state)
{
    (void)state;
    const struct {
        atto_shape q, k, v, mask;
        atto_attention_options o;
        atto_status status;
        const char *words;
    } rows[] = {
        { .q = atto_shape3(H, L, D),
          .k = atto_shape4(1, G, S, D),
          .v = atto_shape4(1, G, S, E),
          .status = ATTO_E_SHAPE,
          .words = "scaled_dot_product_attention: q is [4,5,16]|four dimensions" },
        { .q = atto_shape4(1, H, L, D),
          .k = atto_shape4(1, 3, S, D),
          .v = atto_shape4(1, 3, S, E),
          .status = ATTO_E_SHAPE,
          .words = "scaled_dot_product_attention: q has 4 heads|k's 3" },
        { .q = atto_shape4(1, H, L, D),
          .k = atto_shape4(1, G, S, D),
          .v = atto_shape4(1, G, L, E),
          .status = ATTO_E_SHAPE,
          .words = "v is [1,2,5,16], expected [1,2,7,16]" },
        { .q = atto_shape4(1, H, L, D),
          .k = atto_shape4(1, G, S, D),
          .v = atto_shape4(1, G, S, E),
          .mask = atto_shape2(S, L),
          .status = ATTO_E_SHAPE,
          .words = "mask is [7,5]|broadcast to [1,4,5,7]" },
        { .q = atto_shape4(1, H, L, D),
          .k = atto_shape4(1, G, S, D),
          .v = atto_shape4(1, G, S, E),
          .o = { .dropout = 2.0f },
          .status = ATTO_E_ARGUMENT,
          .words = "dropout|2" },
        { .q = atto_shape4(1, H, L, D),
          .k = atto_shape4(1, G, S, D),
          .v = atto_shape4(1, G, S, E),
          .o = { .scale = NAN },
          .status = ATTO_E_ARGUMENT,
          .words = "scale is" },
        { .q = atto_shape4(1, H, L, D),
          .k = atto_shape4(1, G, S, D),
          .v = atto_shape4(1, G, S, E),
          .o = { .causal = (atto_causal)7 },
          .status = ATTO_E_ARGUMENT,
          .words = "causal is 7" },
        { .q = atto_shape4(1, H, L, D),
          .k = atto_shape4(1, G, S, D),
          .v = atto_shape4(1, G, S, E),
          .o = { .reserved = { 0, 0, 1 } },
          .status = ATTO_E_ARGUMENT,
          .words = "scaled_dot_product_attention|reserved" },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        atto_attention_options o = rows[i].o;
        const atto_var q = zeros(ATTO_F32, rows[i].q), k = zeros(ATTO_F32, rows[i].k);
        const atto_var v = zeros(ATTO_F32, rows[i].v);
        const atto_var m = zeros(ATTO_I32, rows[i].mask);
        if (rows[i].mask.rank > 0) o.mask = &m;
        (void)atto_scaled_dot_product_attention(tape, q, k, v, &o);
        EXPECT_FAIL(atto_tape_end(tape), rows[i].status, rows[i].words);
    }
    const atto_var q = zeros(ATTO_F32, atto_shape4(1, H, L, D)), none = { 0, 0 };
    (void)atto_scaled_dot_product_attention(tape, q, q, none, NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "scaled_dot_product_attention");
    const atto_var x = zeros(ATTO_F32, atto_shape4(1, H, L, D));
    (void)atto_scaled_dot_product_attention(tape, x, x, x,
                                            &(atto_attention_options){ .mask = &none });
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_STATE, "scaled_dot_product_attention");
    assert_int_equal(atto_scaled_dot_product_attention(NULL, none, none, none, NULL).generation, 0);
}

/* Dropout counts its numbers, 2^80 of them here, before memory is found missing; UndefinedBehaviorSanitizer
 * sees the product. */
static void attention_refuses_more_than_memory_holds(void **state)
{
    (void)state;
    const atto_shape huge = atto_shape4(1, 1, (int64_t)1 << 40, 1);
    const atto_var x = atto_expand(tape, zeros(ATTO_F32, atto_shape4(1, 1, 1, 1)), huge);
    (void)atto_scaled_dot_product_attention(tape, x, x, x,
                                            &(atto_attention_options){ .dropout = 0.5f });
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_MEMORY, "bytes");
}

/* Rows [first, first + count) of a [1, heads, rows, width] as a value. */
static atto_var part(const atto_tensor *t, int64_t first, int64_t count)
{
    atto_tensor view;
    MUST(atto_tensor_slice(t, 2, first, first + count, 1, &view));
    return atto_borrow(tape, &view, false);
}

/* Queries that come piece by piece beside a cache see what they see all at once. */
static void attention_with_a_cache_continues_a_sequence(void **state)
{
    (void)state;
    const int64_t pieces[] = { 3, 1, 2, 1 }; /* together S */
    const atto_kv_cache_sizes sizes = {
        .batch = 1, .heads = G, .capacity = S, .dims = D, .value_dims = E
    };
    float q[H * S * D], k[G * S * D], v[G * S * E], all[H * S * E], some[H * S * E];
    atto_tensor tq, tk, tv;
    atto_kv_cache *cache;
    int64_t first = 0;
    draw(21, q, H * S * D), draw(22, k, G * S * D), draw(23, v, G * S * E);
    upload(ATTO_F32, atto_shape4(1, H, S, D), q, &tq);
    upload(ATTO_F32, atto_shape4(1, G, S, D), k, &tk);
    upload(ATTO_F32, atto_shape4(1, G, S, E), v, &tv);
    MUST(atto_kv_cache_create(test_dev, ATTO_F32, &sizes, &cache));
    (void)atto_tape_record(tape, false);
    const atto_attention_options causal = { .causal = ATTO_CAUSAL_TOP_LEFT };
    const atto_attention_options last = { .causal = ATTO_CAUSAL_BOTTOM_RIGHT };
    MUST(atto_var_read(tape,
                       atto_scaled_dot_product_attention(tape, part(&tq, 0, S), part(&tk, 0, S),
                                                         part(&tv, 0, S), &causal),
                       all));
    for (int i = 0; i < COUNT_OF(pieces); i++) {
        const int64_t n = pieces[i];
        atto_var keys, values;
        atto_kv_cache_append(cache, tape, part(&tk, first, n), part(&tv, first, n), &keys, &values);
        MUST(atto_var_read(
            tape, atto_scaled_dot_product_attention(tape, part(&tq, first, n), keys, values, &last),
            some));
        for (int64_t at = 0; at < H * n * E; at++) {
            const int64_t h = at / (n * E), row = at / E % n;
            assert_true(fabsf(some[at] - all[(h * S + first + row) * E + at % E]) < 1e-6f);
        }
        first += n;
    }
    MUST(atto_tape_end(tape));
    atto_kv_cache_free(cache);
    atto_tensor_free(&tq), atto_tensor_free(&tk), atto_tensor_free(&tv);
}

#define ON_A_TAPE(test) cmocka_unit_test_setup_teardown(test, open_tape, close_tape)

static const struct CMUnitTest tests[] = {
    ON_A_TAPE(attention_on_a_tape_has_the_bits_of_the_op),
    ON_A_TAPE(attention_on_a_tape_draws_on),
    ON_A_TAPE(attention_of_one_value_with_itself_adds_gradients),
    ON_A_TAPE(attention_on_a_tape_computes_wanted_gradients_only),
    ON_A_TAPE(attention_refuses_a_mask_that_wants_a_gradient),
    ON_A_TAPE(attention_is_evaluated_without_recording),
    ON_A_TAPE(attention_on_a_tape_refuses_what_does_not_fit),
    ON_A_TAPE(attention_refuses_more_than_memory_holds),
    ON_A_TAPE(attention_with_a_cache_continues_a_sequence),
};
TEST_MAIN("attention_tape", tests)
