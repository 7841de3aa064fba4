/* SPDX-License-Identifier: MIT */
/* Results that are too large for the caches take other stores than small ones (the CPU backend's
 * stream.h). The other tests judge small ones; here a call on a large tensor has to give the bits
 * of two calls on its halves. */
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* Of f32 the whole has 16.8 MB, each half 8.4; rows begin anywhere in a vector. */
#define ROWS   4098
#define COLS   1027
#define WIDTH  13 /* COLS as pixels of so many channels */
#define DEPTH  79
#define IMAGES 2

/* What an op reads and writes: all of it, or rows (images) of one half. */
typedef struct scene {
    atto_tensor x, other, out;         /* [ROWS, COLS] */
    atto_tensor turned;                /* the same, columns dense */
    atto_tensor mean, rstd, labels, d; /* [ROWS] */
    atto_tensor w, var;                /* [COLS] */
} scene;

typedef void (*op_fn)(const scene *s);

static void fill(atto_tensor *t, atto_dtype dtype, atto_shape shape, uint64_t seed)
{
    MUST(atto_tensor_alloc(test_dev, dtype, shape, t));
    const int64_t n = atto_tensor_numel(t);
    uint32_t *bits = malloc((size_t)n * sizeof *bits);
    assert_non_null(bits);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t r = (uint32_t)test_random(&seed);
        const float v = (float)(r >> 8) * 0x1p-24f + 0.25f;
        if (dtype == ATTO_I32)
            bits[i] = r % COLS;
        else
            memcpy(&bits[i], &v, sizeof v);
    }
    MUST(atto_tensor_write(t, bits));
    free(bits);
}

static void make(scene *s)
{
    const atto_shape whole = atto_shape2(ROWS, COLS), rows = atto_shape1(ROWS);
    fill(&s->x, ATTO_F32, whole, 1);
    fill(&s->other, ATTO_F32, whole, 2);
    fill(&s->out, ATTO_F32, whole, 3);
    fill(&s->turned, ATTO_F32, atto_shape2(COLS, ROWS), 10);
    MUST(atto_tensor_transpose(&s->turned, 0, 1, &s->turned));
    fill(&s->mean, ATTO_F32, rows, 4);
    fill(&s->rstd, ATTO_F32, rows, 5);
    fill(&s->labels, ATTO_I32, rows, 6);
    fill(&s->d, ATTO_F32, rows, 7);
    fill(&s->w, ATTO_F32, atto_shape1(COLS), 8);
    fill(&s->var, ATTO_F32, atto_shape1(COLS), 9);
}

static void drop(scene *s)
{
    atto_tensor *all[] = { &s->x,    &s->other,  &s->out, &s->turned, &s->mean,
                           &s->rstd, &s->labels, &s->d,   &s->w,      &s->var };
    for (int i = 0; i < COUNT_OF(all); i++) atto_tensor_free(all[i]);
}

static scene half_of(const scene *s, int half)
{
    const int64_t begin = half * (ROWS / 2), end = begin + ROWS / 2;
    scene h = *s;
    const atto_tensor *from[] = { &s->x,    &s->other, &s->out,    &s->turned,
                                  &s->mean, &s->rstd,  &s->labels, &s->d };
    atto_tensor *to[] = { &h.x, &h.other, &h.out, &h.turned, &h.mean, &h.rstd, &h.labels, &h.d };
    for (int i = 0; i < COUNT_OF(to); i++)
        MUST(atto_tensor_slice(from[i], 0, begin, end, 1, to[i]));
    return h;
}

static void check(op_fn op)
{
    scene s;
    make(&s);
    const size_t bytes = (size_t)ROWS * COLS * sizeof(float);
    unsigned char *got = malloc(bytes), *want = malloc(bytes);
    assert_true(got && want);
    MUST(atto_tensor_fill(&s.out, -1.0));
    op(&s);
    MUST(atto_tensor_read(&s.out, got));
    MUST(atto_tensor_fill(&s.out, -1.0));
    for (int i = 0; i < 2; i++) {
        const scene h = half_of(&s, i);
        op(&h);
    }
    MUST(atto_tensor_read(&s.out, want));
    assert_memory_equal(got, want, bytes);
    free(got), free(want);
    drop(&s);
}

/* Rows [n, COLS] as many short ones of a vector's width that divides all of them. */
#define SHORT 32
static atto_tensor short_rows_of(const atto_tensor *t)
{
    const int64_t n = t->shape[0] * COLS / SHORT;
    return atto_tensor_of(t->buffer, t->dtype, atto_shape2(n, SHORT), t->offset / SHORT * SHORT);
}

/* Rows as images [n, ROWS / IMAGES channels, COLS], or [n, DEPTH, ROWS / IMAGES, WIDTH] with
 * channels last. */
static atto_tensor channels_of(const atto_tensor *t)
{
    const int64_t n = t->shape[0] / (ROWS / IMAGES);
    return atto_tensor_of(t->buffer, t->dtype, atto_shape3(n, ROWS / IMAGES, COLS), t->offset);
}

static atto_tensor pixels_of(const atto_tensor *t, int64_t edge, int64_t width)
{
    const int32_t order[] = { 0, 3, 1, 2 };
    const int64_t n = t->shape[0] / (ROWS / IMAGES);
    atto_tensor v =
        atto_tensor_of(t->buffer, t->dtype, atto_shape4(n, edge, width, DEPTH), t->offset);
    atto_tensor_permute(&v, order, &v);
    return v;
}

/* ---- the ops ---- */

static void act_forward(const scene *s)
{
    const struct atto_act_args a = { .x = &s->turned, .y = &s->out, .act = atto_gelu() };
    MUST(atto_act_forward(test_dev, &a));
}

static void act_backward(const scene *s)
{
    const struct atto_act_args a = {
        .x = &s->turned, .dy = &s->other, .dx = &s->out, .act = atto_gelu()
    };
    MUST(atto_act_backward(test_dev, &a));
}

static void softmax_forward(const scene *s)
{
    const struct atto_softmax_args a = { .x = &s->x, .y = &s->out, .dim = 1 };
    MUST(atto_softmax_forward(test_dev, &a));
}

static void softmax_backward(const scene *s)
{
    const struct atto_softmax_args a = { .y = &s->x, .dy = &s->other, .dx = &s->out, .dim = 1 };
    MUST(atto_softmax_backward(test_dev, &a));
}

static void softmax_columns(const scene *s)
{
    const atto_tensor x = channels_of(&s->x), y = channels_of(&s->out);
    const struct atto_softmax_args a = { .x = &x, .y = &y, .dim = 1, .kind = ATTO_SOFTMAX_LOG };
    MUST(atto_softmax_forward(test_dev, &a));
}

static struct atto_layer_norm_args norm_of(const scene *s)
{
    return (struct atto_layer_norm_args){ .x = &s->x,
                                          .w = &s->w,
                                          .y = &s->out,
                                          .mean = &s->mean,
                                          .rstd = &s->rstd,
                                          .dy = &s->other,
                                          .dx = &s->out,
                                          .dims = 1,
                                          .eps = 1e-5f };
}

static void layer_norm_forward(const scene *s)
{
    const struct atto_layer_norm_args a = norm_of(s);
    MUST(atto_layer_norm_forward(test_dev, &a));
}

static void layer_norm_backward(const scene *s)
{
    const struct atto_layer_norm_args a = norm_of(s);
    MUST(atto_layer_norm_backward(test_dev, &a));
}

/* With statistics that are given: then elements do not depend on others. */
static void batch_norm_rows(const scene *s)
{
    const struct atto_batch_norm_args a = {
        .x = &s->x, .running_mean = &s->w, .running_var = &s->var, .y = &s->out, .eps = 1e-5f
    };
    MUST(atto_batch_norm_forward(test_dev, &a));
}

static void batch_norm_images(const scene *s)
{
    const atto_tensor x = channels_of(&s->x), dy = channels_of(&s->other);
    const atto_tensor dx = channels_of(&s->out);
    atto_tensor mean = s->mean, rstd = s->rstd; /* those of the first rows, for both halves */
    mean.offset = rstd.offset = 0;
    mean.shape[0] = rstd.shape[0] = ROWS / IMAGES;
    const struct atto_batch_norm_args a = {
        .x = &x, .mean = &mean, .rstd = &rstd, .dy = &dy, .dx = &dx, .eps = 1e-5f
    };
    MUST(atto_batch_norm_backward(test_dev, &a));
}

static void batch_norm_short_rows(const scene *s)
{
    const atto_tensor x = short_rows_of(&s->x), dy = short_rows_of(&s->other);
    const atto_tensor dx = short_rows_of(&s->out);
    atto_tensor mean = s->mean, rstd = s->rstd;
    mean.offset = rstd.offset = 0;
    mean.shape[0] = rstd.shape[0] = SHORT;
    const struct atto_batch_norm_args a = {
        .x = &x, .mean = &mean, .rstd = &rstd, .dy = &dy, .dx = &dx, .eps = 1e-5f
    };
    MUST(atto_batch_norm_backward(test_dev, &a));
}

static void loss_forward(const scene *s)
{
    const struct atto_loss_args a = { .x = &s->x,
                                      .target = &s->other,
                                      .loss = &s->out,
                                      .kind = ATTO_LOSS_MSE,
                                      .reduction = ATTO_REDUCTION_NONE };
    MUST(atto_loss_forward(test_dev, &a));
}

static void loss_backward(const scene *s)
{
    const struct atto_loss_args a = { .x = &s->x,
                                      .target = &s->other,
                                      .dloss = &s->other,
                                      .dx = &s->out,
                                      .kind = ATTO_LOSS_L1,
                                      .reduction = ATTO_REDUCTION_NONE };
    MUST(atto_loss_backward(test_dev, &a));
}

static void cross_entropy_backward(const scene *s)
{
    const struct atto_cross_entropy_args a = { .x = &s->x,
                                               .target = &s->labels,
                                               .dloss = &s->d,
                                               .dx = &s->out,
                                               .reduction = ATTO_REDUCTION_NONE };
    MUST(atto_cross_entropy_backward(test_dev, &a));
}

/* Rows as heads of one position. */
static void turn(const scene *s, atto_rope_pairing pairing, bool backward)
{
    atto_tensor in, out;
    const atto_tensor cosines = atto_tensor_of(s->w.buffer, ATTO_F32, atto_shape2(1, 512), 0);
    const atto_tensor sines = atto_tensor_of(s->var.buffer, ATTO_F32, atto_shape2(1, 512), 0);
    const atto_shape shape = atto_shape4(1, s->x.shape[0], 1, COLS);
    MUST(atto_tensor_reshape(&s->x, shape, &in));
    MUST(atto_tensor_reshape(&s->out, shape, &out));
    const struct atto_rope_args a = { .x = &in,
                                      .cos = &cosines,
                                      .sin = &sines,
                                      .y = &out,
                                      .dy = &in,
                                      .dx = &out,
                                      .pairing = pairing };
    MUST(backward ? atto_rope_backward(test_dev, &a) : atto_rope_forward(test_dev, &a));
}

static void rope_forward(const scene *s)
{
    turn(s, ATTO_ROPE_HALVES, false);
}

static void rope_backward(const scene *s)
{
    turn(s, ATTO_ROPE_NEIGHBOURS, true);
}

/* dy of an image begins where its rows do, so that halves see the same. */
static void pool_backward(const scene *s)
{
    const atto_tensor dx = pixels_of(&s->out, ROWS / IMAGES, WIDTH);
    atto_tensor dy = pixels_of(&s->other, ROWS / IMAGES / 2 + 1, WIDTH / 2 + 1);
    dy.stride[0] = dx.stride[0];
    const struct atto_avg_pool_args a = { .dy = &dy,
                                          .dx = &dx,
                                          .window = { .dims = 2,
                                                      .kernel = { 3, 3 },
                                                      .stride = { 2, 2 },
                                                      .padding = { 1, 1 },
                                                      .dilation = { 1, 1 } } };
    MUST(atto_avg_pool_backward(test_dev, &a));
}

/* Images [n, DEPTH, ROWS / IMAGES, WIDTH] in rows. */
static atto_tensor planes_of(const atto_tensor *t)
{
    const int64_t n = t->shape[0] / (ROWS / IMAGES);
    return atto_tensor_of(t->buffer, t->dtype, atto_shape4(n, DEPTH, ROWS / IMAGES, WIDTH),
                          t->offset);
}

/* 3 x 3 around each pixel; the weights are the first elements of other. */
static void convolve(const scene *s, bool channels_last, int64_t groups)
{
    const atto_tensor x = channels_last ? pixels_of(&s->x, ROWS / IMAGES, WIDTH) : planes_of(&s->x);
    const atto_tensor y =
        channels_last ? pixels_of(&s->out, ROWS / IMAGES, WIDTH) : planes_of(&s->out);
    const atto_tensor w =
        atto_tensor_of(s->other.buffer, ATTO_F32, atto_shape4(DEPTH, DEPTH / groups, 3, 3), 0);
    const struct atto_conv_args a = { .x = &x,
                                      .w = &w,
                                      .y = &y,
                                      .window = { .dims = 2,
                                                  .groups = groups,
                                                  .stride = { 1, 1 },
                                                  .padding = { 1, 1 },
                                                  .padding_after = { 1, 1 },
                                                  .dilation = { 1, 1 } } };
    MUST(atto_conv_forward(test_dev, &a));
}

static void conv_rows(const scene *s)
{
    convolve(s, false, 1);
}

static void conv_pixels(const scene *s)
{
    convolve(s, true, 1);
}

static void conv_depthwise_rows(const scene *s)
{
    convolve(s, false, DEPTH);
}

static void conv_depthwise_pixels(const scene *s)
{
    convolve(s, true, DEPTH);
}

#define TEST(op)                         \
    static void large_##op(void **state) \
    {                                    \
        (void)state;                     \
        check(op);                       \
    }
TEST(act_forward)
TEST(act_backward)
TEST(softmax_forward)
TEST(softmax_backward)
TEST(softmax_columns)
TEST(layer_norm_forward)
TEST(layer_norm_backward)
TEST(batch_norm_rows)
TEST(batch_norm_images)
TEST(batch_norm_short_rows)
TEST(loss_forward)
TEST(loss_backward)
TEST(cross_entropy_backward)
TEST(pool_backward)
TEST(rope_forward)
TEST(rope_backward)
TEST(conv_rows)
TEST(conv_pixels)
TEST(conv_depthwise_rows)
TEST(conv_depthwise_pixels)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_act_forward),
        cmocka_unit_test(large_act_backward),
        cmocka_unit_test(large_softmax_forward),
        cmocka_unit_test(large_softmax_backward),
        cmocka_unit_test(large_softmax_columns),
        cmocka_unit_test(large_layer_norm_forward),
        cmocka_unit_test(large_layer_norm_backward),
        cmocka_unit_test(large_batch_norm_rows),
        cmocka_unit_test(large_batch_norm_images),
        cmocka_unit_test(large_batch_norm_short_rows),
        cmocka_unit_test(large_loss_forward),
        cmocka_unit_test(large_loss_backward),
        cmocka_unit_test(large_cross_entropy_backward),
        cmocka_unit_test(large_pool_backward),
        cmocka_unit_test(large_rope_forward),
        cmocka_unit_test(large_rope_backward),
        cmocka_unit_test(large_conv_rows),
        cmocka_unit_test(large_conv_pixels),
        cmocka_unit_test(large_conv_depthwise_rows),
        cmocka_unit_test(large_conv_depthwise_pixels),
    };
    return test_main("large", tests, sizeof tests / sizeof tests[0]);
}
