/* SPDX-License-Identifier: MIT */
/* Pooling, forward and backward: the double oracle decides, on every backend. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- one case ---- */

typedef struct pool_case {
    bool is_max;
    atto_dtype index; /* of maxima: 0 = forward without indices, and no backward */
    atto_shape shape; /* of x */
    atto_pool_window window;
    int64_t out[2]; /* adaptive */
    bool exclude;
    int64_t override;
    atto_dtype dtype;     /* 0 = f32 */
    test_layout layout;   /* of all tensors */
    test_layout y_layout; /* of y, dy and indices if it is another one than dense */
    bool add;
    double range; /* of x; 0 = 2 */
    bool ties;    /* x is whole numbers: equal maxima in most windows */
    uint64_t seed;
} pool_case;

typedef struct pool_scene {
    pool_case c;
    oracle_pool o;
    atto_shape y_shape;
    int64_t x_numel, y_numel;
    double *x, *dy, *old;
    oracle_pool_answer want;
    test_tensor tx, ty, tindices, tdy, tdx;
    struct atto_avg_pool_args avg;
    struct atto_max_pool_args max;
} pool_scene;

static void measure(pool_scene *s)
{
    const pool_case *c = &s->c;
    const int32_t dims = c->window.dims, rank = c->shape.rank;
    oracle_pool *o = &s->o;
    *o = (oracle_pool){ .is_max = c->is_max, .planes = 1, .h = 1, .oh = 1, .window = c->window };
    o->exclude = c->exclude;
    o->override = c->override;
    s->y_shape = c->shape;
    for (int32_t d = 0; d < rank - dims; d++) o->planes *= c->shape.dim[d];
    for (int32_t at = 0; at < dims; at++) {
        const int64_t in = c->shape.dim[rank - dims + at];
        const int64_t out =
            c->window.adaptive ? c->out[at] : oracle_pool_outputs(&c->window, at, in);
        *(dims == 2 && at == 0 ? &o->h : &o->w) = in;
        *(dims == 2 && at == 0 ? &o->oh : &o->ow) = out;
        s->y_shape.dim[rank - dims + at] = out;
    }
    s->x_numel = o->planes * o->h * o->w;
    s->y_numel = o->planes * o->oh * o->ow;
}

static int64_t *whole_numbers(int64_t n)
{
    return (int64_t *)(void *)test_doubles(n);
}

static void draw(pool_scene *s)
{
    const pool_case *c = &s->c;
    oracle_pool_answer *w = &s->want;
    s->x = test_doubles(s->x_numel), s->old = test_doubles(s->x_numel);
    s->dy = test_doubles(s->y_numel);
    test_uniform(c->seed + 1, -c->range, c->range, c->dtype, s->x, s->x_numel);
    test_uniform(c->seed + 2, -1.0, 1.0, c->dtype, s->old, s->x_numel);
    test_uniform(c->seed + 3, -2.0, 2.0, c->dtype, s->dy, s->y_numel);
    for (int64_t i = 0; c->ties && i < s->x_numel; i++) s->x[i] = floor(s->x[i]);
    double **of_y[] = { &w->y, &w->index, &w->terms, &w->divisor };
    for (int i = 0; i < 4; i++) *of_y[i] = test_doubles(s->y_numel);
    w->summed = whole_numbers(s->y_numel);
    w->dx = test_doubles(s->x_numel), w->dx_terms = test_doubles(s->x_numel);
    w->dx_summed = whole_numbers(s->x_numel);
}

static void begin(pool_scene *s, const pool_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (s->c.range == 0.0) s->c.range = 2.0;
    measure(s);
    draw(s);
}

static void make(test_tensor *t, atto_dtype dtype, atto_shape shape, test_layout layout,
                 const double *values)
{
    test_tensor_make(t, test_dev, dtype, shape, layout);
    if (values) test_tensor_put(t, values);
}

static bool has_backward(const pool_scene *s)
{
    return !s->c.is_max || s->c.index;
}

static void build(pool_scene *s)
{
    const pool_case *c = &s->c;
    const test_layout small = c->y_layout ? c->y_layout : c->layout;
    const test_layout out = c->layout == LAYOUT_BROADCAST ? LAYOUT_DENSE : c->layout;
    make(&s->tx, c->dtype, c->shape, c->layout, s->x);
    test_tensor_held(&s->tx, s->x); /* a view that repeats has fewer values */
    make(&s->ty, c->dtype, s->y_shape, small == LAYOUT_BROADCAST ? LAYOUT_DENSE : small, NULL);
    if (c->index)
        make(&s->tindices, c->index, s->y_shape, small == LAYOUT_BROADCAST ? LAYOUT_DENSE : small,
             NULL);
    make(&s->tdy, c->dtype, s->y_shape, small, s->dy);
    test_tensor_held(&s->tdy, s->dy);
    make(&s->tdx, c->dtype, c->shape, out, c->add ? s->old : NULL);
    s->avg = (struct atto_avg_pool_args){ .x = &s->tx.view,
                                          .y = &s->ty.view,
                                          .dy = &s->tdy.view,
                                          .dx = &s->tdx.view,
                                          .add_dx = c->add,
                                          .exclude_padding = c->exclude,
                                          .divisor_override = c->override,
                                          .window = c->window };
    s->max = (struct atto_max_pool_args){ .x = &s->tx.view,
                                          .y = &s->ty.view,
                                          .indices = c->index ? &s->tindices.view : NULL,
                                          .dy = &s->tdy.view,
                                          .dx = &s->tdx.view,
                                          .add_dx = c->add,
                                          .window = c->window };
}

static void end(pool_scene *s)
{
    test_tensor *tensors[] = { &s->tx, &s->ty, &s->tindices, &s->tdy, &s->tdx };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    oracle_pool_answer *w = &s->want;
    void *arrays[] = { s->x,       s->dy,     s->old, w->y,        w->index,    w->terms,
                       w->divisor, w->summed, w->dx,  w->dx_terms, w->dx_summed };
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static atto_status forward(const pool_scene *s)
{
    return s->c.is_max ? atto_max_pool_forward(test_dev, &s->max)
                       : atto_avg_pool_forward(test_dev, &s->avg);
}

static atto_status backward(const pool_scene *s)
{
    return s->c.is_max ? atto_max_pool_backward(test_dev, &s->max)
                       : atto_avg_pool_backward(test_dev, &s->avg);
}

/* ---- judgement ---- */

static test_about about_of(const pool_scene *s, const char *op, const test_tensor *t)
{
    return (test_about){ op, test_layout_name(s->c.layout), t->view.dtype,
                         atto_shape_of(t->view.rank, t->view.shape), s->c.seed };
}

static void judge(const pool_scene *s, const char *op, const test_tensor *t, const double *want,
                  const double *terms, const int64_t *summed, const double *old)
{
    double *got = test_doubles(t->numel), *sum = test_doubles(t->numel);
    double *allowed = test_doubles(t->numel);
    const test_about about = about_of(s, op, t);
    test_tensor_get(t, got);
    for (int64_t i = 0; i < t->numel; i++) {
        const double before = old ? old[i] : 0.0;
        const int64_t n = summed[i] + (old ? 1 : 0);
        sum[i] = want[i] + before;
        allowed[i] = isfinite(sum[i])
                         ? atto_tol(op, t->view.dtype, n > 0 ? n : 1, terms[i] + fabs(before))
                         : 0.0;
    }
    expect_close(&about, got, sum, allowed, t->numel);
    free(got), free(sum), free(allowed);
}

static void judge_exactly(const pool_scene *s, const char *op, const test_tensor *t,
                          const double *want)
{
    const test_about about = about_of(s, op, t);
    double *got = test_doubles(t->numel);
    test_tensor_get(t, got);
    expect_equal(&about, got, want, t->numel);
    free(got);
}

static void judge_forward(const pool_scene *s)
{
    const oracle_pool_answer *w = &s->want;
    if (!s->c.is_max) {
        judge(s, "avg_pool", &s->ty, w->y, w->terms, w->summed, NULL);
    } else {
        judge_exactly(s, "max_pool", &s->ty, w->y);
        if (s->c.index) judge_exactly(s, "indices", &s->tindices, w->index);
    }
}

static void judge_backward(const pool_scene *s)
{
    const oracle_pool_answer *w = &s->want;
    judge(s, s->c.is_max ? "max_pool_grad" : "avg_pool_grad", &s->tdx, w->dx, w->dx_terms,
          w->dx_summed, s->c.add ? s->old : NULL);
}

static void ask_oracle(pool_scene *s)
{
    s->o.x = s->x;
    s->o.dy = s->dy;
    oracle_pooling(&s->o, &s->want);
}

static void run_scene(pool_scene *s)
{
    ask_oracle(s);
    MUST(forward(s));
    judge_forward(s);
    if (!has_backward(s)) return;
    MUST(backward(s));
    judge_backward(s);
}

static void check(const pool_case *c)
{
    pool_scene s;
    begin(&s, c);
    build(&s);
    run_scene(&s);
    assert_true(test_tensor_untouched(&s.tx) && test_tensor_untouched(&s.tdy));
    end(&s);
}

/* ---- windows and what is done with them ---- */

static atto_pool_window window2(int64_t kh, int64_t kw, int64_t sh, int64_t sw, int64_t ph,
                                int64_t pw)
{
    return (atto_pool_window){ .dims = 2,
                               .kernel = { kh, kw },
                               .stride = { sh, sw },
                               .padding = { ph, pw },
                               .dilation = { 1, 1 } };
}

static atto_pool_window window1(int64_t kernel, int64_t stride, int64_t padding)
{
    return (atto_pool_window){ .dims = 1,
                               .kernel = { kernel },
                               .stride = { stride },
                               .padding = { padding },
                               .dilation = { 1 } };
}

static const atto_pool_window adaptive2 = { .dims = 2, .adaptive = true };

static atto_pool_window dilated(atto_pool_window w, int64_t dh, int64_t dw)
{
    w.dilation[0] = dh, w.dilation[1] = dw;
    return w;
}

static atto_pool_window ceiled(atto_pool_window w)
{
    w.ceil_mode = true;
    return w;
}

/* Means with every way to count, maxima with every index: number `what`. */
#define WHATS 7
static void with_what(int what, pool_case *c)
{
    static const atto_dtype indices[] = { 0, ATTO_I32, ATTO_I64 };
    c->is_max = what >= 4;
    if (c->is_max) {
        c->index = indices[what - 4];
    } else {
        c->exclude = what % 2 == 1;
        c->override = !c->window.adaptive && what >= 2 ? 3 : 0;
    }
}

/* The rest of the options goes round. */
static void with_turn(int turn, pool_case *c)
{
    static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
    c->dtype = dtypes[turn % 3];
    c->add = turn / 3 % 2 == 1;
    c->ties = turn / 7 % 2 == 1;
    c->seed = 1000 + (uint64_t)turn;
}

/* A kernel takes longer to build than all its cases to run: some of the turns will do. The steps
 * share no divisor with the cycles of dtypes, layouts and whats. */
static bool is_skipped(int turn)
{
    return test_on_opencl() && turn % (test_in_disguise() ? 149 : 23) != 0;
}

/* Every what, along rows and along channels. */
static void check_window(atto_shape shape, atto_pool_window window, int64_t oh, int64_t ow,
                         int *turn)
{
    for (int what = 0; what < WHATS; what++)
        for (int last = 0; last < 2; last++) {
            pool_case c = { .shape = shape, .window = window, .out = { oh, ow } };
            c.layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
            with_what(what, &c);
            with_turn((*turn)++, &c);
            if (window.dilation[0] * window.dilation[window.dims - 1] > 1 && !c.is_max) continue;
            if (!is_skipped(*turn)) check(&c);
        }
}

static void pool_of_any_window_matches_oracle(void **state)
{
    (void)state;
    const atto_pool_window windows[] = {
        window2(2, 2, 2, 2, 0, 0),
        window2(3, 3, 2, 2, 1, 1),
        ceiled(window2(2, 2, 2, 2, 0, 0)),
        ceiled(window2(3, 3, 2, 2, 1, 1)),
        window2(2, 2, 2, 2, 1, 1),
        window2(3, 3, 1, 1, 1, 1),
        window2(1, 1, 1, 1, 0, 0),
        window2(1, 1, 3, 2, 0, 0),
        window2(3, 2, 1, 2, 1, 0),
        window2(5, 3, 3, 1, 2, 1),
        ceiled(window2(2, 3, 3, 4, 1, 1)),
        window2(4, 4, 4, 4, 0, 0),
        ceiled(window2(4, 5, 5, 5, 2, 2)),
        window2(7, 7, 1, 1, 3, 3),
        dilated(window2(3, 3, 1, 1, 1, 1), 2, 2),
        dilated(window2(2, 2, 2, 2, 1, 1), 3, 1),
        ceiled(dilated(window2(3, 2, 2, 3, 1, 1), 1, 4)),
        dilated(window2(2, 2, 2, 2, 0, 0), 2, 1),
    };
    const atto_shape shapes[] = { atto_shape4(2, 3, 7, 9), atto_shape4(1, 8, 16, 24),
                                  atto_shape4(2, 5, 13, 8) };
    int turn = 0;
    for (int i = 0; i < COUNT_OF(windows); i++)
        for (int k = 0; k < COUNT_OF(shapes); k++) check_window(shapes[k], windows[i], 0, 0, &turn);
}

static void pool_of_adaptive_windows_matches_oracle(void **state)
{
    (void)state;
    const int64_t outs[][2] = { { 1, 1 }, { 7, 9 }, { 3, 4 }, { 2, 7 },
                                { 9, 1 }, { 8, 8 }, { 1, 24 } };
    const atto_shape shapes[] = { atto_shape4(2, 3, 7, 9), atto_shape4(1, 8, 16, 24),
                                  atto_shape3(5, 13, 8) };
    int turn = 0;
    for (int i = 0; i < COUNT_OF(outs); i++)
        for (int k = 0; k < COUNT_OF(shapes); k++)
            check_window(shapes[k], adaptive2, outs[i][0], outs[i][1], &turn);
}

/* Large windows, which work-items share out: whole planes, whole rows, blocks, with odd sizes. */
static void pool_of_large_windows_matches_oracle(void **state)
{
    (void)state;
    const struct {
        atto_shape shape;
        atto_pool_window window;
    } rows[] = {
        { atto_shape4(2, 8, 32, 48), window2(32, 48, 1, 1, 0, 0) },
        { atto_shape4(2, 3, 33, 47), window2(33, 47, 1, 1, 0, 0) },
        { atto_shape4(1, 16, 40, 40), window2(8, 8, 8, 8, 0, 0) },
        { atto_shape4(1, 3, 40, 43), window2(8, 9, 8, 8, 0, 0) },
        { atto_shape4(1, 8, 40, 16), window2(10, 16, 10, 1, 0, 0) },
        { atto_shape4(1, 8, 30, 30), window2(11, 9, 5, 4, 5, 4) },
        { atto_shape4(1, 4, 30, 30), ceiled(window2(16, 16, 9, 8, 8, 0)) },
        { atto_shape4(1, 4, 70, 70), dilated(window2(9, 8, 3, 2, 4, 0), 3, 5) },
        { atto_shape4(2, 24, 7, 7), window2(7, 7, 7, 7, 0, 0) },
    };
    int turn = 0;
    for (int i = 0; i < COUNT_OF(rows); i++)
        check_window(rows[i].shape, rows[i].window, 0, 0, &turn);
    check_window(atto_shape4(1, 4, 50, 61), adaptive2, 3, 4, &turn);
    check_window(atto_shape4(1, 4, 64, 64), adaptive2, 2, 2, &turn);
}

/* The shapes for which OpenCL has kernels of their own, each once, whatever turns are skipped:
 * neighbours whose windows share elements, along rows and along channels, with odd sizes; one
 * window that is the image. */
static void pool_of_shapes_with_kernels_matches_oracle(void **state)
{
    (void)state;
    const atto_pool_window two = window2(2, 2, 2, 2, 0, 0), three = window2(3, 3, 2, 2, 1, 1);
    const test_layout last = LAYOUT_CHANNELS_LAST;
    const struct {
        atto_shape shape;
        atto_pool_window window;
        int64_t out; /* adaptive */
        test_layout layout;
        atto_dtype dtype;
        int what;
        bool add;
    } rows[] = {
        { atto_shape4(2, 3, 7, 19), three, 0, LAYOUT_DENSE, ATTO_F32, 6, false },
        { atto_shape4(2, 3, 7, 38), three, 0, LAYOUT_DENSE, ATTO_BF16, 1, true },
        { atto_shape4(1, 2, 6, 40), two, 0, LAYOUT_DENSE, ATTO_F16, 5, true },
        { atto_shape4(2, 8, 7, 9), three, 0, last, ATTO_F32, 1, true },
        { atto_shape4(2, 16, 6, 9), three, 0, last, ATTO_BF16, 5, false },
        { atto_shape4(1, 8, 9, 8), two, 0, last, ATTO_F16, 0, false },
        { atto_shape4(2, 3, 8, 40), window2(8, 40, 1, 1, 0, 0), 0, LAYOUT_DENSE, ATTO_F32, 0,
          true },
        { atto_shape4(2, 3, 5, 7), adaptive2, 1, LAYOUT_DENSE, ATTO_BF16, 5, false },
        { atto_shape4(2, 16, 5, 7), adaptive2, 1, last, ATTO_F32, 0, true },
        { atto_shape4(2, 12, 6, 7), window2(6, 7, 1, 1, 0, 0), 0, last, ATTO_F32, 6, false },
        { atto_shape4(2, 3, 6, 7), window2(6, 7, 1, 1, 0, 0), 0, last, ATTO_F32, 2, false },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        pool_case c = { .shape = rows[i].shape,
                        .window = rows[i].window,
                        .out = { rows[i].out, rows[i].out },
                        .layout = rows[i].layout,
                        .dtype = rows[i].dtype,
                        .add = rows[i].add,
                        .seed = 4000 + (uint64_t)i };
        with_what(rows[i].what, &c);
        check(&c);
    }
}

/* ---- sizes ---- */

/* I10 */
static void pool_takes_any_size(void **state)
{
    (void)state;
    const int64_t sizes[] = { 1,  2,  3,  4,  5,   8,   15,   16,   17,
                              31, 33, 63, 65, 129, 257, 1023, 1025, 2051 };
    int turn = 0;
    for (int i = 0; i < COUNT_OF(sizes); i++) {
        const int64_t n = sizes[i];
        check_window(atto_shape4(1, 2, 3, n), ceiled(window2(2, 2, 2, 2, 0, 0)), 0, 0, &turn);
        check_window(atto_shape4(1, 2, 3, n), window2(3, 3, 2, 2, 1, 1), 0, 0, &turn);
        check_window(atto_shape4(1, n, 3, 4), window2(3, 3, 2, 2, 1, 1), 0, 0, &turn);
        check_window(atto_shape4(1, 1, n, 2), window2(2, 1, 1, 1, 1, 0), 0, 0, &turn);
        check_window(atto_shape4(n, 1, 1, 3), window2(1, 3, 1, 1, 0, 1), 0, 0, &turn);
    }
}

/* One dimension, with and without a batch. */
static void pool_of_sequences_matches_oracle(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape3(3, 4, 33), atto_shape2(5, 40),
                                  atto_shape3(1, 8, 2500), atto_shape2(1, 1) };
    const atto_pool_window windows[] = { window1(2, 2, 0), ceiled(window1(3, 2, 1)),
                                         window1(40, 1, 20), window1(1, 1, 0) };
    const atto_pool_window adaptive = { .dims = 1, .adaptive = true };
    int turn = 0;
    for (int k = 0; k < COUNT_OF(shapes); k++) {
        for (int i = 0; i < COUNT_OF(windows); i++)
            if (oracle_pool_outputs(&windows[i], 0, shapes[k].dim[shapes[k].rank - 1]) > 0)
                check_window(shapes[k], windows[i], 0, 0, &turn);
        check_window(shapes[k], adaptive, 1, 0, &turn);
        check_window(shapes[k], adaptive, 7, 0, &turn);
    }
}

/* ---- layouts ---- */

static int64_t hidden_copies(void)
{
    atto_device_stats stats;
    MUST(atto_device_stats_get(test_dev, &stats));
    return (int64_t)stats.hidden_copies;
}

/* I9. What has a unit stride along rows or channels is taken as it is. */
static void pool_takes_any_layout(void **state)
{
    (void)state;
    const atto_pool_window windows[] = { window2(2, 2, 2, 2, 0, 0), window2(3, 3, 2, 2, 1, 1),
                                         window2(3, 2, 1, 1, 1, 1), window2(8, 8, 1, 1, 0, 0) };
    const bool native[LAYOUT_COUNT] = {
        [LAYOUT_DENSE] = true,    [LAYOUT_OFFSET] = true,  [LAYOUT_OFFSET4] = true,
        [LAYOUT_PITCHED] = true,  [LAYOUT_ALIGNED] = true, [LAYOUT_CHANNELS_LAST] = true,
        [LAYOUT_BROADCAST] = true
    };
    int turn = 0;
    for (int layout = 0; layout < LAYOUT_COUNT; layout++)
        for (int i = 0; i < COUNT_OF(windows); i++)
            for (int what = 0; what < WHATS; what++) {
                const int64_t before = hidden_copies();
                pool_case c = { .shape = atto_shape4(2, 8, 8, 16),
                                .window = windows[i],
                                .layout = (test_layout)layout };
                with_what(what, &c);
                with_turn(turn++, &c);
                if (is_skipped(turn)) continue;
                check(&c);
                assert_true(!native[layout] || hidden_copies() == before);
            }
}

/* Tensors of one call that lie differently: packed copies, equal results. */
static void pool_takes_mixed_layouts(void **state)
{
    (void)state;
    const test_layout pairs[][2] = { { LAYOUT_DENSE, LAYOUT_CHANNELS_LAST },
                                     { LAYOUT_CHANNELS_LAST, LAYOUT_PITCHED },
                                     { LAYOUT_SCATTERED, LAYOUT_CHANNELS_LAST },
                                     { LAYOUT_CHANNELS_LAST, LAYOUT_TRANSPOSED } };
    int turn = 0;
    for (int i = 0; i < COUNT_OF(pairs); i++)
        for (int what = 0; what < WHATS; what++) {
            pool_case c = { .shape = atto_shape4(2, 3, 6, 10),
                            .window = window2(3, 3, 2, 2, 1, 1),
                            .layout = pairs[i][0],
                            .y_layout = pairs[i][1] };
            with_what(what, &c);
            with_turn(turn++, &c);
            if (!is_skipped(turn)) check(&c);
        }
}

/* Rows of outputs of one element each, with gaps between them. */
static void pool_of_whole_rows_takes_pitched_outputs(void **state)
{
    (void)state;
    for (int what = 0; what < WHATS; what += 6) {
        pool_case c = { .shape = atto_shape4(2, 3, 6, 5),
                        .window = window2(2, 5, 2, 1, 0, 0),
                        .y_layout = LAYOUT_PITCHED };
        with_what(what, &c);
        check(&c);
    }
}

/* [C, H, W] with channels innermost. */
static void pool_takes_an_image_without_batch_channels_last(void **state)
{
    (void)state;
    pool_scene s, t;
    const int32_t order[] = { 2, 0, 1 };
    begin(&s, &(pool_case){ .shape = atto_shape3(8, 6, 4), .window = window2(2, 2, 2, 2, 0, 0) });
    begin(&t, &(pool_case){ .shape = atto_shape3(6, 4, 8), .window = window2(1, 1, 1, 1, 0, 0) });
    build(&s);
    build(&t);
    MUST(atto_tensor_permute(&t.tx.view, order, &t.tx.view));
    MUST(atto_tensor_copy(&t.tx.view, &s.tx.view));
    const int64_t before = hidden_copies();
    atto_tensor y = t.ty.view; /* [6, 4, 8]: room for [3, 2, 8] */
    y.shape[0] = 3, y.shape[1] = 2, y.stride[0] = 16;
    MUST(atto_tensor_permute(&y, order, &y));
    s.avg.x = &t.tx.view;
    s.avg.y = &y;
    MUST(atto_avg_pool_forward(test_dev, &s.avg));
    assert_int_equal(hidden_copies(), before);
    MUST(atto_tensor_copy(&s.ty.view, &y));
    ask_oracle(&s);
    judge_forward(&s);
    end(&s);
    end(&t);
}

/* ---- what is no ordinary number ---- */

/* F7: infinities and NaN go where PyTorch lets them go. */
static void pool_propagates_nan_and_infinity(void **state)
{
    (void)state;
    const double odd[] = { NAN, INFINITY, -INFINITY };
    const atto_pool_window windows[] = { window2(2, 2, 2, 2, 0, 0), window2(3, 3, 2, 2, 1, 1),
                                         window2(3, 3, 1, 1, 1, 1), window2(8, 16, 1, 1, 0, 0) };
    int turn = 0;
    for (int i = 0; i < COUNT_OF(windows); i++)
        for (int what = 0; what < WHATS; what++)
            for (int layout = 0; layout < 2; layout++) {
                if (is_skipped(turn++)) continue;
                pool_scene s;
                uint64_t seed = 17;
                pool_case c = { .shape = atto_shape4(2, 8, 8, 16), .window = windows[i] };
                c.layout = layout ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
                with_what(what, &c);
                begin(&s, &c);
                for (int64_t k = 0; k < s.x_numel; k += 1 + (int64_t)(test_random(&seed) % 9))
                    s.x[k] = odd[test_random(&seed) % 3];
                for (int64_t k = 0; k < s.x_numel / 16; k++) s.x[k] = -INFINITY;
                build(&s);
                run_scene(&s);
                end(&s);
            }
}

/* A window of -inf has the index of its first element, one in the padding alone has none. */
static void max_pool_of_nothing_gives_minus_infinity(void **state)
{
    (void)state;
    pool_scene s;
    begin(&s, &(pool_case){ .is_max = true,
                            .index = ATTO_I32,
                            .shape = atto_shape4(1, 1, 4, 4),
                            .window = dilated(window2(2, 2, 1, 1, 1, 1), 5, 5) });
    build(&s);
    run_scene(&s);
    double y = 0.0, index = 0.0;
    test_tensor_get(&s.ty, &y);
    test_tensor_get(&s.tindices, &index);
    assert_true(y == -INFINITY && index == -1.0);
    end(&s);
}

/* H11: sums are f32; what overflows at the end is infinite. PoCL builds the kernel along channels
 * for two minutes. */
static void avg_pool_in_f16_does_not_overflow_inside(void **state)
{
    (void)state;
    const int layouts = test_on_opencl() && test_in_disguise() ? 1 : 2;
    for (int layout = 0; layout < layouts; layout++)
        for (int wide = 0; wide < 2; wide++) {
            pool_scene s;
            begin(&s, &(pool_case){ .shape = atto_shape4(1, 8, 56, 56),
                                    .window = window2(56, 56, 1, 1, 0, 0),
                                    .override = wide ? 1 : 0,
                                    .layout = layout ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                                    .dtype = ATTO_F16 });
            for (int64_t i = 0; i < s.x_numel; i++) s.x[i] = 100.0;
            build(&s);
            MUST(forward(&s));
            double y[8];
            test_tensor_get(&s.ty, y);
            for (int i = 0; i < 8; i++) assert_true(y[i] == (wide ? (double)INFINITY : 100.0));
            end(&s);
        }
}

/* ---- gradients ---- */

/* Central differences of forward, which is linear or piecewise linear. */
static void pool_gradients_match_central_differences(void **state)
{
    (void)state;
    if (test_on_opencl()) skip(); /* the same oracle */
    for (int what = 0; what < WHATS; what += 2) {
        pool_scene s;
        pool_case c = { .shape = atto_shape4(1, 2, 5, 6),
                        .window = ceiled(window2(3, 2, 2, 1, 1, 1)),
                        .seed = 77 };
        with_what(what, &c);
        begin(&s, &c);
        ask_oracle(&s);
        for (int64_t i = 0; i < s.x_numel; i++) {
            const double here = s.x[i], step = 1e-4, want = s.want.dx[i];
            double loss[2] = { 0.0, 0.0 };
            oracle_pool_answer moved = s.want;
            double *scratch = test_doubles(2 * s.x_numel + 4 * s.y_numel);
            moved.y = scratch, moved.index = scratch + s.y_numel;
            moved.terms = scratch + 2 * s.y_numel, moved.divisor = scratch + 3 * s.y_numel;
            moved.dx = scratch + 4 * s.y_numel, moved.dx_terms = moved.dx + s.x_numel;
            for (int side = 0; side < 2; side++) {
                s.x[i] = here + (side ? step : -step);
                oracle_pooling(&s.o, &moved);
                for (int64_t o = 0; o < s.y_numel; o++) loss[side] += moved.y[o] * s.dy[o];
            }
            s.x[i] = here;
            free(scratch);
            assert_true(fabs((loss[1] - loss[0]) / (2.0 * step) - want) < 1e-6);
        }
        end(&s);
    }
}

/* Indices that point elsewhere touch nothing outside dx. */
static void max_pool_backward_survives_any_indices(void **state)
{
    (void)state;
    const double odd[] = { -1, -7, 24, 1e6, 2147483647.0, -2147483648.0, 5 };
    for (int k = 0; k < 4; k++) {
        pool_scene s;
        begin(&s, &(pool_case){ .is_max = true,
                                .index = k % 2 ? ATTO_I64 : ATTO_I32,
                                .shape = atto_shape4(1, 2, 4, 6),
                                .window = k < 2 ? window2(2, 2, 2, 2, 0, 0)
                                                : window2(3, 1, 5, 1, 1, 0) });
        build(&s);
        double *indices = test_doubles(s.y_numel), *dx = test_doubles(s.x_numel);
        for (int64_t i = 0; i < s.y_numel; i++) indices[i] = odd[i % COUNT_OF(odd)];
        test_tensor_put(&s.tindices, indices);
        MUST(backward(&s));
        test_tensor_get(&s.tdx, dx);
        for (int64_t i = 0; i < s.x_numel; i++) assert_true(isfinite(dx[i]));
        free(indices), free(dx);
        end(&s);
    }
}

/* ---- nothing, and again ---- */

/* I1 */
static void pool_of_an_empty_batch_launches_nothing(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape4(0, 3, 4, 4), atto_shape4(2, 0, 4, 4) };
    for (int i = 0; i < 2; i++)
        for (int what = 0; what < WHATS; what++) {
            atto_device_stats before, after;
            pool_case c = { .shape = shapes[i], .window = window2(2, 2, 2, 2, 0, 0) };
            pool_scene s;
            with_what(what, &c);
            begin(&s, &c);
            build(&s);
            MUST(atto_device_stats_get(test_dev, &before));
            MUST(forward(&s));
            if (has_backward(&s)) MUST(backward(&s));
            MUST(atto_device_stats_get(test_dev, &after));
            assert_int_equal(after.launches, before.launches);
            end(&s);
        }
}

/* J1 */
static void pool_repeats_bit_for_bit(void **state)
{
    (void)state;
    const atto_pool_window windows[] = { window2(3, 3, 2, 2, 1, 1), window2(5, 5, 1, 1, 2, 2),
                                         window2(64, 48, 1, 1, 0, 0) };
    for (int i = 0; i < COUNT_OF(windows); i++)
        for (int k = 0; k < 4; k++) {
            pool_scene s;
            if (test_on_opencl() && test_in_disguise() && (i + k + k / 2) % 2) continue;
            begin(&s, &(pool_case){ .shape = atto_shape4(2, 8, 64, 48),
                                    .is_max = k / 2 == 1,
                                    .index = k / 2 ? ATTO_I32 : 0,
                                    .layout = k % 2 ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE,
                                    .window = windows[i],
                                    .seed = 5 });
            build(&s);
            uint64_t *bits[4];
            for (int b = 0; b < 4; b++)
                bits[b] = calloc((size_t)(b % 2 ? s.x_numel : s.y_numel), sizeof **bits);
            for (int run = 0; run < 20; run++) {
                MUST(forward(&s));
                MUST(backward(&s));
                test_tensor_bits(&s.ty, bits[run ? 2 : 0]);
                test_tensor_bits(&s.tdx, bits[run ? 3 : 1]);
                if (run == 0) continue;
                assert_memory_equal(bits[0], bits[2], (size_t)s.y_numel * sizeof **bits);
                assert_memory_equal(bits[1], bits[3], (size_t)s.x_numel * sizeof **bits);
            }
            for (int b = 0; b < 4; b++) free(bits[b]);
            end(&s);
        }
}

/* Forward and backward of a step allocate nothing and copy nothing. */
static void pool_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    for (int what = 0; what < WHATS; what += 3) {
        pool_scene s;
        pool_case c = { .shape = atto_shape4(2, 3, 8, 9), .window = window2(3, 3, 2, 2, 1, 1) };
        with_what(what, &c);
        begin(&s, &c);
        build(&s);
        atto_device_stats before, after;
        for (int i = 0; i < 5; i++) {
            if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
            MUST(forward(&s));
            if (has_backward(&s)) MUST(backward(&s));
        }
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        assert_int_equal(after.launches - before.launches, has_backward(&s) ? 6 : 3);
        end(&s);
    }
}

/* Threads share out units of work; who computes them never changes a bit. */
static void pool_does_not_depend_on_the_number_of_threads(void **state)
{
    (void)state;
    if (test_on_opencl()) skip();
    atto_device *before = test_dev;
    uint64_t *bits[4];
    for (int threads = 1; threads <= 3; threads += 2) {
        const atto_device_options options = { .num_threads = threads };
        pool_scene s;
        MUST(atto_device_open(test_device_name(), &options, &test_dev));
        begin(&s, &(pool_case){ .shape = atto_shape4(2, 5, 65, 67),
                                .window = window2(3, 3, 2, 2, 1, 1) });
        build(&s);
        MUST(forward(&s));
        MUST(backward(&s));
        uint64_t **y = &bits[threads == 1 ? 0 : 2], **dx = &bits[threads == 1 ? 1 : 3];
        *y = calloc((size_t)s.y_numel, sizeof **y);
        *dx = calloc((size_t)s.x_numel, sizeof **dx);
        test_tensor_bits(&s.ty, *y);
        test_tensor_bits(&s.tdx, *dx);
        if (threads > 1) {
            assert_memory_equal(bits[0], bits[2], (size_t)s.y_numel * sizeof **bits);
            assert_memory_equal(bits[1], bits[3], (size_t)s.x_numel * sizeof **bits);
        }
        end(&s);
        atto_device_close(test_dev);
    }
    for (int b = 0; b < 4; b++) free(bits[b]);
    test_dev = before;
}

/* ---- what is refused ---- */

typedef struct refusal {
    void (*spoil)(pool_scene *s);
    atto_status status;
    const char *words;
    bool of_max_only, of_avg_only, backward_only;
} refusal;

static void set_window(pool_scene *s, atto_pool_window w)
{
    s->avg.window = s->max.window = w;
}
static void no_kernel(pool_scene *s)
{
    set_window(s, window2(2, 0, 2, 2, 0, 0));
}
static void no_stride(pool_scene *s)
{
    set_window(s, window2(2, 2, 0, 2, 0, 0));
}
static void no_dilation(pool_scene *s)
{
    set_window(s, dilated(window2(2, 2, 2, 2, 0, 0), 1, 0));
}
static void dilated_mean(pool_scene *s)
{
    set_window(s, dilated(window2(2, 2, 2, 2, 0, 0), 2, 1));
}
static void much_padding(pool_scene *s)
{
    set_window(s, window2(3, 3, 2, 2, 2, 1));
}
static void negative_padding(pool_scene *s)
{
    set_window(s, window2(3, 3, 2, 2, 0, -1));
}
static void large_kernel(pool_scene *s)
{
    set_window(s, window2(2, 7, 2, 2, 0, 0));
}
static void three_dims(pool_scene *s)
{
    s->avg.window.dims = s->max.window.dims = 3;
}
static void sequences(pool_scene *s)
{
    set_window(s, window1(2, 2, 0));
}
static void other_y(pool_scene *s)
{
    s->ty.view.shape[2] = s->tdy.view.shape[2] = 1;
}
static void half_y(pool_scene *s)
{
    s->ty.view.dtype = s->tdy.view.dtype = ATTO_F16;
}
static void integer_x(pool_scene *s)
{
    s->tx.view.dtype = s->tdx.view.dtype = ATTO_I32;
}
static void no_width(pool_scene *s)
{
    s->tx.view.shape[3] = s->tdx.view.shape[3] = 0;
}
static void float_indices(pool_scene *s)
{
    s->tindices.view.dtype = ATTO_F32;
}
static void short_indices(pool_scene *s)
{
    s->tindices.view.shape[1] = 2;
}
static void no_indices(pool_scene *s)
{
    s->max.indices = NULL;
}
static void adaptive_divisor(pool_scene *s)
{
    s->avg.window.adaptive = true;
    s->avg.divisor_override = 2;
}

static const refusal refusals[] = {
    { no_kernel, ATTO_E_ARGUMENT, "kernel[1] is 0|expected 1", false, false, false },
    { no_stride, ATTO_E_ARGUMENT, "stride[0] is 0", false, false, false },
    { no_dilation, ATTO_E_ARGUMENT, "dilation[1] is 0", false, false, false },
    { dilated_mean, ATTO_E_ARGUMENT, "dilation[0] is 2|means", false, true, false },
    { much_padding, ATTO_E_ARGUMENT, "padding[0] is 2|half of kernel[0], which is 3", false, false,
      false },
    { negative_padding, ATTO_E_ARGUMENT, "padding[1] is -1", false, false, false },
    { large_kernel, ATTO_E_ARGUMENT, "output size too small|6 elements|kernel 7", false, false,
      false },
    { three_dims, ATTO_E_ARGUMENT, "dims is 3", false, false, false },
    { sequences, ATTO_E_SHAPE, "[N, C, L]", false, false, false },
    { other_y, ATTO_E_SHAPE, "y is [2,3,1,3]|expected [2,3,2,3]", false, false, false },
    { half_y, ATTO_E_DTYPE, "y is f16|expected f32", false, false, false },
    { integer_x, ATTO_E_DTYPE, "x is i32", false, false, false },
    { no_width, ATTO_E_SHAPE, "dimension 3 of |x, [2,3,4,0], is empty", false, false, false },
    { float_indices, ATTO_E_DTYPE, "indices is f32", true, false, false },
    { short_indices, ATTO_E_SHAPE, "indices is [2,2,2,3]", true, false, false },
    { no_indices, ATTO_E_NULL, "indices is NULL", true, false, true },
    { adaptive_divisor, ATTO_E_ARGUMENT, "divisor_override is 2|adaptive", false, true, false },
};

/* I6, and the rest: one change to a good call. */
static void pool_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(refusals); i++)
        for (int k = 0; k < 4; k++) {
            const refusal *r = &refusals[i];
            const bool is_max = k % 2 == 1, back = k / 2 == 1;
            if ((is_max && r->of_avg_only) || (!is_max && r->of_max_only)) continue;
            if (!back && r->backward_only) continue;
            pool_scene s;
            begin(&s, &(pool_case){ .is_max = is_max,
                                    .index = is_max ? ATTO_I64 : 0,
                                    .shape = atto_shape4(2, 3, 4, 6),
                                    .window = window2(2, 2, 2, 2, 0, 0) });
            build(&s);
            r->spoil(&s);
            EXPECT_FAIL(back ? backward(&s) : forward(&s), r->status, r->words);
            assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
            end(&s);
        }
}

/* ---- on a tape and as modules ---- */

/* How a step asks for a case: by function or by module. */
typedef atto_var (*recorded)(atto_tape *tape, atto_var x, atto_var *indices);
typedef atto_status (*created)(atto_module **m);

typedef struct step_row {
    pool_case c;
    recorded function;
    created module;
    const char *name;
} step_row;

#define MAX_OPTIONS                                                                       \
    &(atto_max_pool_options)                                                              \
    {                                                                                     \
        .stride = { 2, 1 }, .padding = { 1, 0 }, .dilation = { 1, 2 }, .ceil_mode = true, \
        .indices = ATTO_I32                                                               \
    }
#define AVG_OPTIONS                                                                         \
    &(atto_avg_pool_options)                                                                \
    {                                                                                       \
        .stride = { 2, 1 }, .padding = { 1, 0 }, .ceil_mode = true, .exclude_padding = true \
    }

static atto_var avg1(atto_tape *tape, atto_var x, atto_var *indices)
{
    (void)indices;
    return atto_avg_pool1d(tape, x, 3, NULL);
}
static atto_status avg1_module(atto_module **m)
{
    return atto_avg_pool1d_create(test_dev, 3, NULL, m);
}
static atto_var avg2(atto_tape *tape, atto_var x, atto_var *indices)
{
    (void)indices;
    return atto_avg_pool2d(tape, x, 3, 2, AVG_OPTIONS);
}
static atto_status avg2_module(atto_module **m)
{
    return atto_avg_pool2d_create(test_dev, 3, 2, AVG_OPTIONS, m);
}
static atto_var max1(atto_tape *tape, atto_var x, atto_var *indices)
{
    return atto_max_pool1d(tape, x, 3, NULL, indices);
}
static atto_status max1_module(atto_module **m)
{
    return atto_max_pool1d_create(test_dev, 3, NULL, m);
}
static atto_var max2(atto_tape *tape, atto_var x, atto_var *indices)
{
    return atto_max_pool2d(tape, x, 3, 2, MAX_OPTIONS, indices);
}
static atto_status max2_module(atto_module **m)
{
    return atto_max_pool2d_create(test_dev, 3, 2, MAX_OPTIONS, m);
}
static atto_var adaptive_avg1(atto_tape *tape, atto_var x, atto_var *indices)
{
    (void)indices;
    return atto_adaptive_avg_pool1d(tape, x, 4);
}
static atto_status adaptive_avg1_module(atto_module **m)
{
    return atto_adaptive_avg_pool1d_create(test_dev, 4, m);
}
static atto_var adaptive_avg2(atto_tape *tape, atto_var x, atto_var *indices)
{
    (void)indices;
    return atto_adaptive_avg_pool2d(tape, x, 3, 0);
}
static atto_status adaptive_avg2_module(atto_module **m)
{
    return atto_adaptive_avg_pool2d_create(test_dev, 3, 0, m);
}
static atto_var adaptive_max1(atto_tape *tape, atto_var x, atto_var *indices)
{
    return atto_adaptive_max_pool1d(tape, x, 4, indices);
}
static atto_status adaptive_max1_module(atto_module **m)
{
    return atto_adaptive_max_pool1d_create(test_dev, 4, m);
}
static atto_var adaptive_max2(atto_tape *tape, atto_var x, atto_var *indices)
{
    return atto_adaptive_max_pool2d(tape, x, 3, 0, indices);
}
static atto_status adaptive_max2_module(atto_module **m)
{
    return atto_adaptive_max_pool2d_create(test_dev, 3, 0, m);
}

#define IMAGE          \
    {                  \
        4,             \
        {              \
            2, 3, 7, 5 \
        }              \
    }
#define SEQUENCE     \
    {                \
        3,           \
        {            \
            2, 3, 11 \
        }            \
    }
#define PLAIN_3                                                        \
    {                                                                  \
        .dims = 1, .kernel = { 3 }, .stride = { 3 }, .dilation = { 1 } \
    }
#define STEEP(w)                                                                                   \
    {                                                                                              \
        .dims = 2, .ceil_mode = true, .kernel = { 3, 2 }, .stride = { 2, 1 }, .padding = { 1, 0 }, \
        .dilation = {                                                                              \
            1,                                                                                     \
            w                                                                                      \
        }                                                                                          \
    }
#define ADAPTIVE(n)                 \
    {                               \
        .dims = n, .adaptive = true \
    }

/* clang-format off */
static const step_row step_rows[] = {
    { { .shape = SEQUENCE, .window = PLAIN_3 }, avg1, avg1_module, "AvgPool1d" },
    { { .shape = IMAGE, .window = STEEP(1), .exclude = true }, avg2, avg2_module, "AvgPool2d" },
    { { .shape = SEQUENCE, .window = PLAIN_3, .is_max = true, .index = ATTO_I64 },
      max1, max1_module, "MaxPool1d" },
    { { .shape = IMAGE, .window = STEEP(2), .is_max = true, .index = ATTO_I32 },
      max2, max2_module, "MaxPool2d" },
    { { .shape = SEQUENCE, .window = ADAPTIVE(1), .out = { 4 } },
      adaptive_avg1, adaptive_avg1_module, "AdaptiveAvgPool1d" },
    { { .shape = IMAGE, .window = ADAPTIVE(2), .out = { 3, 5 } },
      adaptive_avg2, adaptive_avg2_module, "AdaptiveAvgPool2d" },
    { { .shape = SEQUENCE, .window = ADAPTIVE(1), .out = { 4 }, .is_max = true, .index = ATTO_I64 },
      adaptive_max1, adaptive_max1_module, "AdaptiveMaxPool1d" },
    { { .shape = IMAGE, .window = ADAPTIVE(2), .out = { 3, 5 }, .is_max = true, .index = ATTO_I64 },
      adaptive_max2, adaptive_max2_module, "AdaptiveMaxPool2d" },
};
/* clang-format on */

/* What a var holds, into a tensor of the scene. */
static void fetch(atto_tape *tape, atto_var v, const atto_tensor *into)
{
    atto_tensor t;
    MUST(atto_var_tensor(tape, v, &t));
    assert_int_equal(t.dtype, into->dtype);
    MUST(atto_tensor_copy(into, &t));
}

static void expect_like(const atto_tensor *got, const atto_tensor *x, bool last)
{
    assert_int_equal(got->rank, x->rank);
    assert_true((got->stride[1] == 1) == last);
}

/* Forward, perhaps with indices, and backward; results lie as x does, and nothing is copied. */
static void check_step(const step_row *row, bool by_module, bool wants_indices, bool last)
{
    pool_scene s;
    pool_case c = row->c;
    c.layout = last ? LAYOUT_CHANNELS_LAST : LAYOUT_DENSE;
    begin(&s, &c);
    build(&s);
    ask_oracle(&s);
    atto_tape *tape;
    atto_module *m = NULL;
    atto_var y, indices;
    atto_tensor seen, dx;
    MUST(atto_tape_create(test_dev, &tape));
    if (by_module) MUST(row->module(&m));
    if (by_module) assert_string_equal(atto_module_class_name(m), row->name);
    const int64_t before = hidden_copies();
    const atto_var x = atto_borrow(tape, &s.tx.view, true);
    y = by_module ? atto_apply(tape, m, x)
                  : row->function(tape, x, wants_indices ? &indices : NULL);
    MUST(atto_tape_status(tape));
    MUST(atto_var_tensor(tape, y, &seen));
    expect_like(&seen, &s.tx.view, last);
    fetch(tape, y, &s.ty.view);
    if (wants_indices && c.is_max) {
        fetch(tape, indices, &s.tindices.view);
        judge_forward(&s);
        EXPECT_FAIL(atto_backward_from(tape, indices, &s.tindices.view), ATTO_E_STATE, "nothing");
        /* That is the step's error: once more in another one. */
        atto_tape_free(tape);
        MUST(atto_tape_create(test_dev, &tape));
        const atto_var again = atto_borrow(tape, &s.tx.view, true);
        y = row->function(tape, again, &indices);
        MUST(atto_backward_from(tape, y, &s.tdy.view));
        MUST(atto_var_grad(tape, again, &dx));
    } else {
        MUST(atto_backward_from(tape, y, &s.tdy.view));
        MUST(atto_var_grad(tape, x, &dx));
    }
    expect_like(&dx, &s.tx.view, last);
    assert_int_equal(hidden_copies(), before);
    MUST(atto_tensor_copy(&s.tdx.view, &dx));
    judge_backward(&s);
    atto_module_free(m);
    atto_tape_free(tape);
    end(&s);
}

static void pool_functions_and_modules_match_oracle(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(step_rows); i++)
        for (int last = 0; last < 2; last++) {
            check_step(&step_rows[i], false, false, last == 1);
            check_step(&step_rows[i], true, false, last == 1);
            if (step_rows[i].c.is_max) check_step(&step_rows[i], false, true, last == 1);
        }
}

/* Without gradients nothing is saved; indices come if they are asked for. */
static void pool_without_gradients_gives_indices_too(void **state)
{
    (void)state;
    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    atto_tape_record(tape, false);
    const float data[] = { 1, 7, 3, 9, 5, 2 };
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape2(1, 6), data);
    atto_var at;
    const atto_var y = atto_max_pool1d(tape, x, 2, NULL, &at);
    float got[3];
    int64_t indices[3];
    MUST(atto_var_read(tape, y, got));
    MUST(atto_var_read(tape, at, indices));
    assert_true(got[0] == 7 && got[1] == 9 && got[2] == 5);
    assert_true(indices[0] == 1 && indices[1] == 3 && indices[2] == 4);
    atto_tape_free(tape);
}

static void pool_modules_stand_in_a_sequential(void **state)
{
    (void)state;
    atto_tape *tape;
    atto_module *net;
    MUST(atto_tape_create(test_dev, &tape));
    MUST(atto_sequential_create(test_dev, &net));
    MUST(atto_sequential_max_pool2d(net, 2, 2, NULL));
    MUST(atto_sequential_avg_pool2d(net, 1, 2, NULL));
    MUST(atto_sequential_adaptive_avg_pool2d(net, 1, 1));
    MUST(atto_sequential_flatten(net, 1));
    const float data[] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape4(1, 1, 2, 4), data);
    float y;
    MUST(atto_var_read(tape, atto_apply(tape, net, x), &y));
    assert_true(y == 7.0f);
    atto_module_free(net);
    atto_tape_free(tape);
}

/* Wrong numbers, at the place where they are given. */
static void pool_modules_refuse_wrong_numbers(void **state)
{
    (void)state;
    atto_module *m = NULL;
    const atto_max_pool_options padded = { .padding = { 2, 0 } }, odd = { .indices = ATTO_F32 };
    const atto_avg_pool_options second = { .stride = { 1, 1 } }, reserved = { .reserved = { 1 } };
    EXPECT_FAIL(atto_max_pool2d_create(test_dev, 3, 3, &padded, &m), ATTO_E_ARGUMENT,
                "max_pool2d_create|padding[0] is 2");
    assert_null(m);
    EXPECT_FAIL(atto_max_pool2d_create(test_dev, 3, 0, NULL, &m), ATTO_E_ARGUMENT,
                "kernel[1] is 0");
    EXPECT_FAIL(atto_max_pool1d_create(test_dev, 3, &odd, &m), ATTO_E_DTYPE, "indices is f32");
    EXPECT_FAIL(atto_avg_pool1d_create(test_dev, 3, &second, &m), ATTO_E_ARGUMENT, "one dimension");
    EXPECT_FAIL(atto_avg_pool2d_create(test_dev, 3, 3, &reserved, &m), ATTO_E_ARGUMENT, "reserved");
    EXPECT_FAIL(atto_adaptive_avg_pool2d_create(test_dev, 3, -1, &m), ATTO_E_ARGUMENT,
                "size 1 of the output is -1");
    EXPECT_FAIL(atto_adaptive_max_pool1d_create(NULL, 3, &m), ATTO_E_NULL, "dev is NULL");
    EXPECT_FAIL(atto_avg_pool1d_create(test_dev, 3, NULL, NULL), ATTO_E_NULL, "m is NULL");

    atto_tape *tape;
    MUST(atto_tape_create(test_dev, &tape));
    const float data[] = { 1, 2 };
    const atto_var x = atto_input(tape, ATTO_F32, atto_shape3(1, 1, 2), data);
    atto_max_pool1d(tape, x, 3, NULL, NULL);
    EXPECT_FAIL(atto_tape_status(tape), ATTO_E_ARGUMENT, "max_pool1d|output size too small");
    atto_tape_free(tape);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(pool_of_any_window_matches_oracle),
    cmocka_unit_test(pool_of_adaptive_windows_matches_oracle),
    cmocka_unit_test(pool_of_large_windows_matches_oracle),
    cmocka_unit_test(pool_of_shapes_with_kernels_matches_oracle),
    cmocka_unit_test(pool_takes_any_size),
    cmocka_unit_test(pool_of_sequences_matches_oracle),
    cmocka_unit_test(pool_takes_any_layout),
    cmocka_unit_test(pool_takes_mixed_layouts),
    cmocka_unit_test(pool_of_whole_rows_takes_pitched_outputs),
    cmocka_unit_test(pool_takes_an_image_without_batch_channels_last),
    cmocka_unit_test(pool_propagates_nan_and_infinity),
    cmocka_unit_test(max_pool_of_nothing_gives_minus_infinity),
    cmocka_unit_test(avg_pool_in_f16_does_not_overflow_inside),
    cmocka_unit_test(pool_gradients_match_central_differences),
    cmocka_unit_test(max_pool_backward_survives_any_indices),
    cmocka_unit_test(pool_of_an_empty_batch_launches_nothing),
    cmocka_unit_test(pool_repeats_bit_for_bit),
    cmocka_unit_test(pool_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(pool_does_not_depend_on_the_number_of_threads),
    cmocka_unit_test(pool_refuses_what_does_not_fit),
    cmocka_unit_test(pool_functions_and_modules_match_oracle),
    cmocka_unit_test(pool_without_gradients_gives_indices_too),
    cmocka_unit_test(pool_modules_stand_in_a_sequential),
    cmocka_unit_test(pool_modules_refuse_wrong_numbers),
};
TEST_MAIN("pool", tests)
