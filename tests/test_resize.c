/* SPDX-License-Identifier: MIT */
/* resize, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_resize.h"

/* nearest, linear, linear with align_corners: what a case is asked for by number. */
enum { HOWS = 3 };

/* ---- one case ---- */

typedef struct resize_case {
    int64_t n, c, h, w, oh, ow;
    bool flat;      /* [n, c, w] */
    bool unbatched; /* without n, which is 1 */
    int how;
    double scale[2]; /* {height, width} */
    bool add;
    atto_dtype dtype;    /* 0 = f32 */
    test_layout in, out; /* of x and dx, of y and dy */
    uint64_t seed;
} resize_case;

/* A case with its data and tensors. */
typedef struct resize_scene {
    resize_case c;
    oracle_resize q;
    int64_t n, m; /* elements of x, of y */
    double *x, *old, *dx, *dx_terms, *y, *dy, *y_terms;
    test_tensor tx, ty, tdy, tdx;
    struct atto_resize_args args;
} resize_scene;

static atto_shape shape_of(const resize_case *c, bool of_y)
{
    const int64_t all[] = { c->n, c->c, of_y ? c->oh : c->h, of_y ? c->ow : c->w };
    atto_shape s = { .rank = 0 };
    for (int d = 0; d < 4; d++)
        if (!(d == 0 && c->unbatched) && !(d == 2 && c->flat)) s.dim[s.rank++] = all[d];
    return s;
}

static void begin(resize_scene *s, const resize_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    s->q = (oracle_resize){ .mode = c->how == 0 ? ATTO_RESIZE_NEAREST : ATTO_RESIZE_LINEAR,
                            .align_corners = c->how == 2,
                            .scale = { c->scale[0], c->scale[1] },
                            .planes = c->n * c->c,
                            .h = c->h,
                            .w = c->w,
                            .oh = c->oh,
                            .ow = c->ow };
    s->n = s->q.planes * c->h * c->w;
    s->m = s->q.planes * c->oh * c->ow;
    double **small[] = { &s->x, &s->old, &s->dx, &s->dx_terms };
    double **large[] = { &s->y, &s->dy, &s->y_terms };
    for (int i = 0; i < COUNT_OF(small); i++) *small[i] = test_doubles(s->n);
    for (int i = 0; i < COUNT_OF(large); i++) *large[i] = test_doubles(s->m);
    test_uniform(c->seed + 1, -4.0, 4.0, s->c.dtype, s->x, s->n);
    test_uniform(c->seed + 2, -1.0, 1.0, s->c.dtype, s->old, s->n);
    test_uniform(c->seed + 3, -2.0, 2.0, s->c.dtype, s->dy, s->m);
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values, const atto_tensor **slot)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
    *slot = &t->view;
}

static void build(resize_scene *s)
{
    const resize_case *c = &s->c;
    struct atto_resize_args *a = &s->args;
    make(&s->tx, c->dtype, shape_of(c, false), c->in, s->x, &a->x);
    make(&s->ty, c->dtype, shape_of(c, true), c->out, NULL, &a->y);
    make(&s->tdy, c->dtype, shape_of(c, true), c->out, s->dy, &a->dy);
    make(&s->tdx, c->dtype, shape_of(c, false), c->in, c->add ? s->old : NULL, &a->dx);
    a->add_dx = c->add;
    a->mode = s->q.mode;
    a->align_corners = s->q.align_corners;
    a->dims = c->flat ? 1 : 2;
    a->scale[0] = c->scale[c->flat ? 1 : 0];
    a->scale[1] = c->flat ? 0.0 : c->scale[1];
}

static void end(resize_scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->ty, &s->tdy, &s->tdx };
    double *arrays[] = { s->x, s->old, s->dx, s->dx_terms, s->y, s->dy, s->y_terms };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void call(resize_scene *s)
{
    MUST(atto_resize_forward(test_dev, &s->args));
    MUST(atto_resize_backward(test_dev, &s->args));
}

static void judge(resize_scene *s)
{
    const resize_case *c = &s->c;
    oracle_resize_forward(&s->q, s->x, s->y, s->y_terms);
    oracle_resize_backward(&s->q, s->dy, s->dx, s->dx_terms);
    test_judge(&s->ty, "resize", c->out, c->seed, 1, s->y, s->y_terms, NULL);
    test_judge(&s->tdx, "resize_grad", c->in, c->seed, c->add ? 2 : 1, s->dx, s->dx_terms,
               c->add ? s->old : NULL);
    assert_true(test_tensor_untouched(&s->tx) && test_tensor_untouched(&s->tdy));
}

static void check(const resize_case *c)
{
    resize_scene s;
    begin(&s, c);
    build(&s);
    call(&s);
    judge(&s);
    MUST(atto_device_sync(test_dev));
    end(&s);
}

/* ---- sizes ---- */

/* Larger, smaller, the same, by whole numbers and others; from one element and to one; whole
 * vectors and odd sizes; rows longer than a piece of work, of x and of y. */
static const struct {
    int64_t n, c, h, w, oh, ow;
} sizes[] = {
    { 1, 1, 1, 1, 1, 1 },    { 1, 2, 1, 1, 3, 5 },     { 2, 1, 3, 5, 1, 1 },
    { 2, 3, 4, 6, 8, 12 },   { 2, 3, 8, 12, 4, 6 },    { 1, 2, 5, 7, 13, 16 },
    { 1, 8, 7, 16, 5, 24 },  { 2, 16, 3, 3, 6, 9 },    { 1, 1, 9, 11, 9, 11 },
    { 1, 2, 2, 3, 5, 1300 }, { 1, 1, 3, 2600, 2, 40 }, { 1, 1, 2, 2600, 3, 1703 },
    { 1, 3, 40, 3, 7, 4 },   { 2, 700, 2, 3, 3, 5 },
};

static resize_case case_of(int i, int how)
{
    return (resize_case){ .n = sizes[i].n,
                          .c = sizes[i].c,
                          .h = sizes[i].h,
                          .w = sizes[i].w,
                          .oh = sizes[i].oh,
                          .ow = sizes[i].ow,
                          .how = how,
                          .seed = 100 + (uint64_t)i };
}

static void resize_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int how = 0; how < HOWS; how++)
            for (int last = 0; last < 2; last++) {
                resize_case c = case_of(i, how);
                c.add = (i + how + last) % 2 == 1;
                c.in = c.out = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
                check(&c);
            }
}

static void resize_takes_sequences(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i++)
        for (int how = 0; how < HOWS; how++) {
            resize_case c = case_of(i, how);
            c.h = c.oh = 1;
            c.flat = true;
            c.unbatched = c.n == 1 && i % 2 == 0;
            c.in = c.out = i % 3 == 0 && !c.unbatched ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
            check(&c);
        }
}

static void resize_takes_single_images(void **state)
{
    (void)state;
    for (int i = 3; i < 9; i++)
        for (int how = 0; how < HOWS; how++) {
            resize_case c = case_of(i, how);
            c.n = 1;
            c.unbatched = true;
            check(&c);
        }
}

static void resize_takes_f16_and_bf16(void **state)
{
    (void)state;
    for (int i = 3; i < COUNT_OF(sizes); i++)
        for (int how = 0; how < HOWS; how++) {
            resize_case c = case_of(i, how);
            c.dtype = (i + how) % 2 ? ATTO_BF16 : ATTO_F16;
            c.in = c.out = (i / 2 + how) % 2 ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
            c.add = how == 1;
            check(&c);
        }
}

/* Scales that are not those of the sizes: what is left over at the end, and beyond it. */
static void resize_takes_scales(void **state)
{
    (void)state;
    const double scales[][2] = { { 2.0, 2.0 }, { 1.7, 2.3 }, { 0.4, 0.9 },
                                 { 5.0, 1.3 }, { 0.0, 2.1 }, { 1e6, 1e-6 } };
    const int64_t widths[] = { 15, 7, 14 }; /* of 7, two of which leave the scale aside */
    for (int i = 0; i < COUNT_OF(scales); i++)
        for (int how = 0; how < HOWS; how++)
            for (int flat = 0; flat < 2; flat++) {
                const int64_t ow = widths[(i + how + flat) % COUNT_OF(widths)];
                resize_case c = { .n = 2,
                                  .c = 3,
                                  .h = flat ? 1 : 6,
                                  .w = 7,
                                  .oh = flat ? 1 : 11,
                                  .ow = ow,
                                  .how = how,
                                  .flat = flat == 1,
                                  .scale = { flat ? 0.0 : scales[i][0], scales[i][1] },
                                  .seed = 200 + (uint64_t)i };
                check(&c);
            }
}

/* One element becomes many thousands, and the other way round. */
static void resize_takes_huge_scales(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++) {
        check(&(resize_case){
            .n = 1, .c = 1, .h = 1, .w = 2, .oh = 3, .ow = 20000, .how = how, .seed = 230 });
        check(&(resize_case){
            .n = 1, .c = 2, .h = 1, .w = 1, .oh = 200, .ow = 300, .how = how, .seed = 231 });
        check(&(resize_case){
            .n = 1, .c = 1, .h = 40, .w = 20000, .oh = 1, .ow = 3, .how = how, .seed = 232 });
    }
}

/* ---- values ---- */

/* The elements themselves: nearest moves bits, and where y has x's size so do the others. */
static void resize_of_the_same_size_is_a_copy(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++)
        for (int d = 0; d < 3; d++) {
            resize_case c = case_of(8, how);
            resize_scene s;
            c.dtype = (atto_dtype)(ATTO_F32 + d);
            begin(&s, &c);
            build(&s);
            call(&s);
            test_tensor_get(&s.ty, s.y);
            test_tensor_get(&s.tdx, s.dx);
            for (int64_t i = 0; i < s.n; i++) assert_true(s.y[i] == s.x[i] && s.dx[i] == s.dy[i]);
            end(&s);
        }
}

/* With align_corners the corners are x's; a line stays a line. */
static void resize_keeps_corners_and_lines(void **state)
{
    (void)state;
    resize_scene s;
    begin(&s, &(resize_case){ .n = 1, .c = 1, .h = 3, .w = 5, .oh = 7, .ow = 9, .how = 2 });
    for (int i = 0; i < 15; i++) s.x[i] = 8.0 * (i / 5) + 4.0 * (i % 5);
    build(&s);
    call(&s);
    test_tensor_get(&s.ty, s.y);
    for (int o = 0; o < 63; o++) {
        const double want = 8.0 * (o / 9) / 3.0 + 2.0 * (o % 9);
        assert_true(fabs(s.y[o] - want) <= 0x1p-18);
    }
    assert_true(s.y[0] == 0.0 && s.y[8] == 16.0 && s.y[54] == 16.0 && s.y[62] == 32.0);
    end(&s);
}

static void resize_passes_infinities_and_nan_on(void **state)
{
    (void)state;
    const double special[] = { INFINITY, -INFINITY, NAN, -0.0, 0x1p-149 };
    for (int last = 0; last < 2; last++) {
        resize_case c = case_of(3, 0);
        resize_scene s;
        c.in = c.out = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
        begin(&s, &c);
        for (int i = 0; i < COUNT_OF(special); i++) {
            s.x[11 * i] = special[i];
            s.dy[17 * i] = special[i];
        }
        build(&s);
        call(&s);
        judge(&s);
        end(&s);
        c = case_of(5, 1);
        c.in = c.out = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
        begin(&s, &c);
        s.x[17] = NAN;
        s.dy[33] = NAN;
        build(&s);
        call(&s);
        oracle_resize_forward(&s.q, s.x, s.y, s.y_terms);
        oracle_resize_backward(&s.q, s.dy, s.dx, s.dx_terms);
        double *got = test_doubles(s.m);
        test_tensor_get(&s.ty, got);
        for (int64_t i = 0; i < s.m; i++) assert_true(isnan(got[i]) || !isnan(s.y[i]));
        test_tensor_get(&s.tdx, got);
        for (int64_t i = 0; i < s.n; i++) assert_true(isnan(got[i]) || !isnan(s.dx[i]));
        free(got);
        end(&s);
    }
}

static void resize_of_nothing(void **state)
{
    (void)state;
    atto_device_stats before, after;
    for (int how = 0; how < HOWS; how++) {
        MUST(atto_device_stats_get(test_dev, &before));
        check(&(resize_case){ .n = 0, .c = 3, .h = 2, .w = 3, .oh = 4, .ow = 5, .how = how });
        check(&(resize_case){ .n = 2, .c = 0, .h = 2, .w = 3, .oh = 4, .ow = 5, .how = how });
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.launches, before.launches);
    }
}

/* ---- strides ---- */

static void resize_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET,       LAYOUT_OFFSET4,    LAYOUT_PITCHED,
                                    LAYOUT_ALIGNED,      LAYOUT_TRANSPOSED, LAYOUT_SCATTERED,
                                    LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int k = 0; k < COUNT_OF(layouts); k++) {
            resize_case c = case_of(k % 2 ? 6 : 3, (i + k) % HOWS);
            c.in = layouts[i];
            c.out = layouts[k];
            c.dtype = i % 2 ? ATTO_F32 : ATTO_F16;
            c.add = k % 2 == 1;
            check(&c);
        }
}

static void resize_takes_images_without_copies(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_DENSE, LAYOUT_PITCHED, LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int how = 0; how < HOWS; how++) {
            resize_case c = case_of(6, how);
            resize_scene s;
            atto_device_stats before, after;
            c.in = c.out = layouts[i];
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

/* Some channels of more, along which pixels of x do not begin at whole vectors, as those of y do;
 * and the other way round, backward. */
static void resize_takes_some_of_the_channels(void **state)
{
    (void)state;
    enum { C = 8, H = 3, W = 4, OH = 5, OW = 6 };
    for (int how = 0; how < HOWS; how++) {
        double x[C * H * W], dy[C * OH * OW], y[C * OH * OW], dx[C * H * W], terms[C * OH * OW];
        const oracle_resize q = { .mode = how == 0 ? ATTO_RESIZE_NEAREST : ATTO_RESIZE_LINEAR,
                                  .align_corners = how == 2,
                                  .planes = C,
                                  .h = H,
                                  .w = W,
                                  .oh = OH,
                                  .ow = OW };
        test_tensor t[4]; /* x, y, dy, dx */
        atto_tensor part[4];
        atto_device_stats before, after;
        for (int i = 0; i < 4; i++) {
            const bool is_part = i % 2 == 0, is_small = i % 3 == 0;
            test_tensor_make(&t[i], test_dev, ATTO_F32,
                             atto_shape4(1, C + 3 * is_part, is_small ? H : OH, is_small ? W : OW),
                             LAYOUT_CHANNELS_LAST);
            MUST(atto_tensor_slice(&t[i].view, 1, 3 * is_part, C + 3 * is_part, 1, &part[i]));
        }
        double *all = test_doubles((C + 3) * OH * OW);
        test_uniform(500, -4.0, 4.0, ATTO_F32, all, (C + 3) * H * W);
        test_tensor_put(&t[0], all);
        memcpy(x, all + 3 * H * W, sizeof x);
        test_uniform(501, -4.0, 4.0, ATTO_F32, all, (C + 3) * OH * OW);
        test_tensor_put(&t[2], all);
        memcpy(dy, all + 3 * OH * OW, sizeof dy);
        free(all);
        const struct atto_resize_args a = { .x = &part[0],
                                            .y = &part[1],
                                            .dy = &part[2],
                                            .dx = &part[3],
                                            .mode = q.mode,
                                            .align_corners = q.align_corners,
                                            .dims = 2 };
        MUST(atto_device_stats_get(test_dev, &before));
        MUST(atto_resize_forward(test_dev, &a));
        MUST(atto_resize_backward(test_dev, &a));
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        oracle_resize_forward(&q, x, y, terms);
        test_judge(&t[1], "resize", LAYOUT_CHANNELS_LAST, 500, 1, y, terms, NULL);
        oracle_resize_backward(&q, dy, dx, terms);
        test_judge(&t[3], "resize_grad", LAYOUT_CHANNELS_LAST, 501, 1, dx, terms, NULL);
        for (int i = 0; i < 4; i++) test_tensor_drop(&t[i]);
    }
}

/* ---- repeatability ---- */

static void take_bits(resize_scene *s, uint64_t *bits)
{
    call(s);
    test_tensor_bits(&s->ty, bits);
    test_tensor_bits(&s->tdx, bits + s->m);
}

static void resize_repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int how = 0; how < HOWS; how++)
        for (int last = 0; last < 2; last++) {
            resize_scene s;
            begin(&s, &(resize_case){ .n = 2,
                                      .c = 5,
                                      .h = 37,
                                      .w = 41,
                                      .oh = 83,
                                      .ow = 59,
                                      .how = how,
                                      .in = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                                      .out = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                                      .seed = 300 });
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

static void resize_does_not_depend_on_threads(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    const int32_t threads[] = { 1, 2, 7 };
    uint64_t *bits = NULL;
    atto_device *before = test_dev;
    for (int i = 0; i < COUNT_OF(threads); i++) {
        const atto_device_options options = { .num_threads = threads[i] };
        resize_scene s;
        MUST(atto_device_open("cpu", &options, &test_dev));
        begin(&s,
              &(resize_case){
                  .n = 2, .c = 5, .h = 37, .w = 41, .oh = 83, .ow = 59, .how = 1, .seed = 310 });
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

static void resize_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    resize_scene s;
    resize_case c = case_of(5, 1);
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

static void refuse(void (*spoil)(resize_scene *s), atto_status status, const char *forward,
                   const char *backward)
{
    resize_scene s;
    begin(&s, &(resize_case){ .n = 2, .c = 3, .h = 4, .w = 5, .oh = 6, .ow = 7, .how = 1 });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(atto_resize_forward(test_dev, &s.args), status, forward);
    EXPECT_FAIL(atto_resize_backward(test_dev, &s.args), status, backward);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    end(&s);
}

static void other_mode(resize_scene *s)
{
    s->args.mode = ATTO_RESIZE_COUNT;
}
static void no_dims(resize_scene *s)
{
    s->args.dims = 0;
}
static void three_dims(resize_scene *s)
{
    s->args.dims = 3;
}
static void one_dim(resize_scene *s)
{
    s->args.dims = 1;
}
static void aligned_nearest(resize_scene *s)
{
    s->args.mode = ATTO_RESIZE_NEAREST;
    s->args.align_corners = true;
}
static void negative_scale(resize_scene *s)
{
    s->args.scale[1] = -2.0;
}
static void infinite_scale(resize_scene *s)
{
    s->args.scale[0] = INFINITY;
}
static void nan_scale(resize_scene *s)
{
    s->args.scale[0] = NAN;
}
static void other_channels(resize_scene *s)
{
    s->ty.view.shape[1] = s->tdy.view.shape[1] = 2;
}
static void other_rank(resize_scene *s)
{
    s->ty.view.rank = s->tdy.view.rank = 3;
}
static void no_width(resize_scene *s)
{
    s->ty.view.shape[3] = s->tdy.view.shape[3] = 0;
}
static void whole_numbers(resize_scene *s)
{
    s->tx.view.dtype = s->ty.view.dtype = s->tdx.view.dtype = s->tdy.view.dtype = ATTO_I32;
}
static void half_y(resize_scene *s)
{
    s->ty.view.dtype = s->tdy.view.dtype = ATTO_F16;
}

static void resize_refuses_what_does_not_fit(void **state)
{
    (void)state;
    refuse(other_mode, ATTO_E_ARGUMENT, "resize_forward: mode is 2|0 to 1",
           "resize_backward: mode is 2");
    refuse(no_dims, ATTO_E_ARGUMENT, "dims is 0", "dims is 0");
    refuse(three_dims, ATTO_E_ARGUMENT, "dims is 3", "dims is 3");
    refuse(one_dim, ATTO_E_SHAPE, "y is [2,3,6,7]|[N, C, L] or [C, L]", "dy is [2,3,6,7]");
    refuse(aligned_nearest, ATTO_E_ARGUMENT, "align_corners|nearest", "align_corners|nearest");
    refuse(negative_scale, ATTO_E_ARGUMENT, "scale[1] is -2", "scale[1] is -2");
    refuse(infinite_scale, ATTO_E_ARGUMENT, "scale[0] is inf", "scale[0] is inf");
    refuse(nan_scale, ATTO_E_ARGUMENT, "scale[0] is", "scale[0] is");
    refuse(other_channels, ATTO_E_SHAPE, "y is [2,2,6,7], expected [2,3,6,7]",
           "dy is [2,2,6,7], expected [2,3,6,7]");
    refuse(other_rank, ATTO_E_SHAPE, "y is [2,3,6]|expected [2,3,4,5]", "dy is [2,3,6]|expected");
    refuse(no_width, ATTO_E_SHAPE, "dimension 3 of y|is empty", "dimension 3 of dy");
    refuse(whole_numbers, ATTO_E_DTYPE, "y is i32", "dy is i32");
    refuse(half_y, ATTO_E_DTYPE, "y is f16|f32", "dy is f16|f32");
}

/* ---- on a tape and as modules ---- */

/* By a function or by a module: results lie as x does, and nothing is copied. */
static void check_step(const resize_case *c, bool by_module, bool by_scale)
{
    const bool last = c->in == LAYOUT_CHANNELS_LAST;
    const atto_resize_options o = { .mode = c->how == 0 ? ATTO_RESIZE_NEAREST : ATTO_RESIZE_LINEAR,
                                    .align_corners = c->how == 2,
                                    .scale = { c->scale[c->flat ? 1 : 0],
                                               c->flat ? 0.0 : c->scale[1] } };
    const int64_t oh = by_scale ? 0 : c->oh, ow = by_scale ? 0 : c->ow;
    resize_scene s;
    atto_tape *tape;
    atto_module *m = NULL;
    atto_tensor seen;
    atto_device_stats before, after;
    begin(&s, c);
    build(&s);
    MUST(atto_tape_create(test_dev, &tape));
    if (by_module)
        MUST(c->flat ? atto_upsample1d_create(test_dev, ow, &o, &m)
                     : atto_upsample2d_create(test_dev, oh, ow, &o, &m));
    if (m) assert_string_equal(atto_module_class_name(m), "Upsample");
    MUST(atto_device_stats_get(test_dev, &before));
    const atto_var x = atto_borrow(tape, &s.tx.view, true);
    const atto_var y = m         ? atto_apply(tape, m, x)
                       : c->flat ? atto_resize1d(tape, x, ow, &o)
                                 : atto_resize2d(tape, x, oh, ow, &o);
    MUST(atto_var_tensor(tape, y, &seen));
    assert_true((seen.stride[1] == 1) == last);
    MUST(atto_tensor_copy(&s.ty.view, &seen));
    MUST(atto_backward_from(tape, y, &s.tdy.view));
    MUST(atto_var_grad(tape, x, &seen));
    assert_true((seen.stride[1] == 1) == last);
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    MUST(atto_tensor_copy(&s.tdx.view, &seen));
    judge(&s);
    atto_module_free(m);
    atto_tape_free(tape);
    end(&s);
}

static void resize_functions_and_modules_match_oracle(void **state)
{
    (void)state;
    for (int k = 0; k < 24; k++) {
        const bool flat = k / 3 % 2 == 1, by_scale = k / 6 % 2 == 1, by_module = k / 12 == 1;
        resize_case c = { .n = 2,
                          .c = 3,
                          .h = flat ? 1 : 4,
                          .w = 5,
                          .oh = flat ? 1 : 9, /* of 2.3 */
                          .ow = 8,            /* of 1.7 */
                          .how = k % 3,
                          .flat = flat,
                          .seed = 400 + (uint64_t)k };
        if (by_scale) c.scale[0] = flat ? 0.0 : 2.3;
        if (by_scale) c.scale[1] = 1.7;
        c.in = c.out = k % 2 ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
        check_step(&c, by_module, by_scale);
    }
}

static void resize_modules_stand_in_a_sequential(void **state)
{
    (void)state;
    const float data[] = { 1, 2 }, want[] = { 1, 1, 2, 2, 1, 1, 2, 2 };
    float y[8];
    atto_tape *tape;
    atto_module *net;
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_upsample2d(net, 2, 0, NULL));
    MUST(atto_sequential_upsample2d(net, 0, 0, &(atto_resize_options){ .scale = { 1.0, 2.0 } }));
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape3(1, 1, 2), data);
    MUST(atto_var_read(tape, atto_apply(tape, net, x), y));
    assert_memory_equal(y, want, sizeof want);
    atto_module_free(net);
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_upsample1d(net, 4, NULL));
    const atto_var line = atto_input(tape, ATTO_F32, atto_shape2(1, 2), data);
    MUST(atto_var_read(tape, atto_apply(tape, net, line), y));
    assert_memory_equal(y, want, 4 * sizeof *want);
    atto_module_free(net);
    atto_tape_free(tape);
}

static void resize_modules_refuse_what_does_not_fit(void **state)
{
    (void)state;
    const float data[] = { 1, 2, 3, 4 };
    const atto_resize_options aligned = { .align_corners = true }, reserved = { .reserved = { 1 } };
    const atto_resize_options second = { .scale = { 2.0, 2.0 } },
                              little = { .scale = { 0.1, 0.1 } };
    const atto_resize_options huge = { .scale = { 1e12, 1.0 } };
    atto_module *m = NULL;
    atto_tape *tape;
    EXPECT_FAIL(atto_upsample2d_create(test_dev, 2, 2, &aligned, &m), ATTO_E_ARGUMENT,
                "upsample2d_create: align_corners");
    assert_null(m);
    EXPECT_FAIL(atto_upsample1d_create(test_dev, 2, &reserved, &m), ATTO_E_ARGUMENT, "reserved");
    EXPECT_FAIL(atto_upsample1d_create(test_dev, 2, &second, &m), ATTO_E_ARGUMENT, "one dimension");
    EXPECT_FAIL(atto_upsample2d_create(test_dev, 2, -1, NULL, &m), ATTO_E_ARGUMENT,
                "size 1 of the output is -1");
    EXPECT_FAIL(atto_upsample2d_create(NULL, 2, 2, NULL, &m), ATTO_E_NULL, "dev is NULL");
    EXPECT_FAIL(atto_upsample2d_create(test_dev, 2, 2, NULL, NULL), ATTO_E_NULL, "m is NULL");
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_upsample2d_create(test_dev, 2, 2, NULL, &m));
    atto_apply(tape, m, atto_input(tape, ATTO_F32, atto_shape2(2, 2), data));
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "Upsample: x is [2,2]|[C, H, W]");
    atto_resize2d(tape, atto_input(tape, ATTO_F32, atto_shape3(1, 2, 2), data), 0, 0, &little);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "resize2d: scale[0] is 0.1|makes 0");
    atto_resize2d(tape, atto_input(tape, ATTO_F32, atto_shape3(1, 2, 2), data), 0, 0, &huge);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "resize2d: scale[0] is 1e+12");
    atto_module_free(m);
    atto_tape_free(tape);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(resize_takes_any_size),
    cmocka_unit_test(resize_takes_sequences),
    cmocka_unit_test(resize_takes_single_images),
    cmocka_unit_test(resize_takes_f16_and_bf16),
    cmocka_unit_test(resize_takes_scales),
    cmocka_unit_test(resize_takes_huge_scales),
    cmocka_unit_test(resize_of_the_same_size_is_a_copy),
    cmocka_unit_test(resize_keeps_corners_and_lines),
    cmocka_unit_test(resize_passes_infinities_and_nan_on),
    cmocka_unit_test(resize_of_nothing),
    cmocka_unit_test(resize_takes_any_layout),
    cmocka_unit_test(resize_takes_images_without_copies),
    cmocka_unit_test(resize_takes_some_of_the_channels),
    cmocka_unit_test(resize_repeats_bit_for_bit),
    cmocka_unit_test(resize_does_not_depend_on_threads),
    cmocka_unit_test(resize_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(resize_refuses_what_does_not_fit),
    cmocka_unit_test(resize_functions_and_modules_match_oracle),
    cmocka_unit_test(resize_modules_stand_in_a_sequential),
    cmocka_unit_test(resize_modules_refuse_what_does_not_fit),
};
TEST_MAIN("resize", tests)
