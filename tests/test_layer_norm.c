/* SPDX-License-Identifier: MIT */
/* Layer norm and RMS norm, forward and backward: the double oracle decides, on every backend. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_norm.h"

/* ---- one case ---- */

typedef struct norm_case {
    atto_shape shape; /* of x */
    int32_t dims;     /* 0 = 1 */
    bool rms;
    atto_dtype dtype;        /* 0 = f32 */
    atto_dtype w, b, dw, db; /* 0 = not there */
    bool no_dx, add, no_saved;
    test_layout layout;    /* of x, y, dy, dx */
    test_layout dx_layout; /* if it is another one than dense */
    test_layout params;    /* of w, b, dw, db */
    double shift;          /* of x */
    double eps;            /* 0 = 1e-5 */
    uint64_t seed;
} norm_case;

/* A case with its sizes, data and tensors. */
typedef struct norm_scene {
    norm_case c;
    int64_t rows, cols, numel;
    atto_shape row_shape, normalised;
    double *x, *w, *b, *dy, *old, *old_params;
    test_tensor tx, tw, tb, ty, tmean, trstd, tdy, tdx, tdw, tdb;
    struct atto_layer_norm_args layer;
    struct atto_rms_norm_args rms;
    oracle_row_norm_answer want;
} norm_scene;

static void measure(norm_scene *s)
{
    const atto_shape shape = s->c.shape;
    const int32_t leading = shape.rank - s->c.dims;
    s->row_shape = atto_shape_of(leading, shape.dim);
    s->normalised = atto_shape_of(s->c.dims, shape.dim + leading);
    s->rows = s->cols = 1;
    for (int32_t d = 0; d < shape.rank; d++) *(d < leading ? &s->rows : &s->cols) *= shape.dim[d];
    s->numel = s->rows * s->cols;
}

static void draw(norm_scene *s)
{
    const norm_case *c = &s->c;
    s->x = test_doubles(s->numel), s->dy = test_doubles(s->numel), s->old = test_doubles(s->numel);
    s->w = test_doubles(s->cols), s->b = test_doubles(s->cols);
    s->old_params = test_doubles(s->cols);
    test_uniform(c->seed + 1, c->shift - 2.0, c->shift + 2.0, c->dtype, s->x, s->numel);
    test_uniform(c->seed + 2, -2.0, 2.0, c->dtype, s->dy, s->numel);
    test_uniform(c->seed + 3, -1.0, 1.0, c->dtype, s->old, s->numel);
    if (c->w) test_uniform(c->seed + 4, -2.0, 2.0, c->w, s->w, s->cols);
    if (c->b) test_uniform(c->seed + 5, -2.0, 2.0, c->b, s->b, s->cols);
    test_uniform(c->seed + 6, -1.0, 1.0, ATTO_BF16, s->old_params, s->cols); /* exact in all */
}

/* A tensor for a field of both args structs, which is NULL where there is none. */
static void make(norm_scene *s, test_tensor *t, atto_dtype dtype, atto_shape shape,
                 test_layout layout, const double *values, const atto_tensor **layer,
                 const atto_tensor **rms)
{
    (void)s;
    if (dtype) test_tensor_make(t, test_dev, dtype, shape, layout);
    if (dtype && values) test_tensor_put(t, values);
    if (layer) *layer = dtype ? &t->view : NULL;
    if (rms) *rms = dtype ? &t->view : NULL;
}

static void build(norm_scene *s)
{
    const norm_case *c = &s->c;
    struct atto_layer_norm_args *l = &s->layer;
    struct atto_rms_norm_args *m = &s->rms;
    const atto_dtype saved = c->no_saved ? (atto_dtype)0 : ATTO_F32;
    const test_layout out = c->dx_layout ? c->dx_layout : c->layout;
    const double *olds = c->add ? s->old_params : NULL;
    make(s, &s->tx, c->dtype, c->shape, c->layout, s->x, &l->x, &m->x);
    make(s, &s->tw, c->w, s->normalised, c->params, s->w, &l->w, &m->w);
    make(s, &s->tb, c->b, s->normalised, c->params, s->b, &l->b, NULL);
    make(s, &s->ty, c->dtype, c->shape, c->layout, NULL, &l->y, &m->y);
    make(s, &s->tmean, c->rms ? (atto_dtype)0 : saved, s->row_shape, LAYOUT_OFFSET, NULL, &l->mean,
         NULL);
    make(s, &s->trstd, saved, s->row_shape, LAYOUT_OFFSET, NULL, &l->rstd, &m->rstd);
    make(s, &s->tdy, c->dtype, c->shape, c->layout, s->dy, &l->dy, &m->dy);
    make(s, &s->tdx, c->no_dx ? (atto_dtype)0 : c->dtype, c->shape, out, c->add ? s->old : NULL,
         &l->dx, &m->dx);
    make(s, &s->tdw, c->dw, s->normalised, c->params, olds, &l->dw, &m->dw);
    make(s, &s->tdb, c->db, s->normalised, c->params, olds, &l->db, NULL);
    l->add_dx = l->add_dw = l->add_db = m->add_dx = m->add_dw = c->add;
    l->dims = m->dims = c->dims;
    l->eps = m->eps = (float)c->eps;
}

static void begin(norm_scene *s, const norm_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    if (!s->c.dims) s->c.dims = 1;
    if (s->c.eps == 0.0) s->c.eps = 1e-5;
    if (s->c.rms) s->c.b = s->c.db = (atto_dtype)0;
    s->c.eps = (double)(float)s->c.eps;
    measure(s);
    draw(s);
}

static void end(norm_scene *s)
{
    test_tensor *tensors[] = { &s->tx,    &s->tw,  &s->tb,  &s->ty,  &s->tmean,
                               &s->trstd, &s->tdy, &s->tdx, &s->tdw, &s->tdb };
    oracle_row_norm_answer *w = &s->want;
    double *arrays[] = { s->x,    s->w,    s->b,        s->dy,      s->old,     s->old_params,
                         w->mean, w->rstd, w->y,        w->dx,      w->y_terms, w->dx_terms,
                         w->dw,   w->db,   w->dw_terms, w->db_terms };
    for (int i = 0; i < COUNT_OF(tensors); i++) test_tensor_drop(tensors[i]);
    for (int i = 0; i < COUNT_OF(arrays); i++) free(arrays[i]);
}

static void ask_oracle(norm_scene *s)
{
    oracle_row_norm_answer *w = &s->want;
    double **by_row[] = { &w->mean, &w->rstd };
    double **by_element[] = { &w->y, &w->y_terms, &w->dx, &w->dx_terms };
    double **by_column[] = { &w->dw, &w->dw_terms, &w->db, &w->db_terms };
    for (int i = 0; i < 2; i++) *by_row[i] = test_doubles(s->rows);
    for (int i = 0; i < 4; i++) *by_element[i] = test_doubles(s->numel);
    for (int i = 0; i < 4; i++) *by_column[i] = test_doubles(s->cols);
    const oracle_row_norm question = { .rows = s->rows,
                                       .cols = s->cols,
                                       .centred = !s->c.rms,
                                       .eps = s->c.eps,
                                       .x = s->x,
                                       .w = s->c.w ? s->w : NULL,
                                       .b = s->c.b ? s->b : NULL,
                                       .dy = s->dy };
    oracle_row_norm_of(&question, w);
}

static atto_status call(norm_scene *s, bool backward)
{
    if (s->c.rms)
        return backward ? atto_rms_norm_backward(test_dev, &s->rms)
                        : atto_rms_norm_forward(test_dev, &s->rms);
    return backward ? atto_layer_norm_backward(test_dev, &s->layer)
                    : atto_layer_norm_forward(test_dev, &s->layer);
}

/* ---- judgement ---- */

/* Summands that stand in one row of additions: a backend adds up 32 or more of a row's side by
 * side, or 16 in blocks of 1024. */
static int64_t row_depth(const norm_scene *s)
{
    return s->cols <= 64 ? s->cols : 64 + s->cols / 32;
}

/* Of a sum over rows: all of a slab or a work-group, then the partial sums. */
static int64_t column_depth(const norm_scene *s)
{
    return s->rows <= 96 ? s->rows : 96 + s->rows / 32;
}

static void judge(const norm_scene *s, const test_tensor *t, const char *op, int64_t n,
                  const double *want, const double *terms, const double *old)
{
    if (!t->view.dtype) return;
    double *got = test_doubles(t->numel), *sum = test_doubles(t->numel);
    double *allowed = test_doubles(t->numel);
    const atto_shape shape = atto_shape_of(t->view.rank, t->view.shape);
    const test_about about = { op, test_layout_name(s->c.layout), t->view.dtype, shape, s->c.seed };
    test_tensor_get(t, got);
    for (int64_t i = 0; i < t->numel; i++) {
        sum[i] = want[i] + (old ? old[i] : 0.0);
        allowed[i] = isfinite(sum[i])
                         ? atto_tol(op, t->view.dtype, n, terms[i] + fabs(old ? old[i] : 0.0))
                         : 0.0;
    }
    expect_close(&about, got, sum, allowed, t->numel);
    free(got), free(sum), free(allowed);
}

/* The mean: sums of numbers of size |x|. rstd: half the roundings of the squares' sum. */
static void judge_saved(const norm_scene *s)
{
    double *size = test_doubles(s->rows);
    for (int64_t i = 0; i < s->numel; i++) size[i / s->cols] += fabs(s->x[i]) / (double)s->cols;
    judge(s, &s->tmean, "layer_norm", row_depth(s), s->want.mean, size, NULL);
    for (int64_t r = 0; r < s->rows; r++) size[r] = 2.0 * s->want.rstd[r];
    judge(s, &s->trstd, "layer_norm", row_depth(s), s->want.rstd, size, NULL);
    free(size);
}

static void judge_forward(const norm_scene *s)
{
    judge(s, &s->ty, "layer_norm", row_depth(s), s->want.y, s->want.y_terms, NULL);
    judge_saved(s);
}

static void judge_backward(const norm_scene *s)
{
    const oracle_row_norm_answer *w = &s->want;
    const double *old = s->c.add ? s->old : NULL, *old_params = s->c.add ? s->old_params : NULL;
    const int64_t n = row_depth(s), columns = column_depth(s);
    judge(s, &s->tdx, "layer_norm_grad", n, w->dx, w->dx_terms, old);
    judge(s, &s->tdw, "layer_norm_grad", n + columns, w->dw, w->dw_terms, old_params);
    judge(s, &s->tdb, "layer_norm_grad", columns, w->db, w->db_terms, old_params);
}

static void expect_inputs_untouched(const norm_scene *s)
{
    assert_true(test_tensor_untouched(&s->tx) && test_tensor_untouched(&s->tdy));
    assert_true(test_tensor_untouched(&s->tw) && test_tensor_untouched(&s->tb));
}

static void run_scene(norm_scene *s)
{
    build(s);
    ask_oracle(s);
    MUST(call(s, false));
    if (!s->c.no_saved) MUST(call(s, true));
}

static void check(const norm_case *c)
{
    norm_scene s;
    begin(&s, c);
    run_scene(&s);
    judge_forward(&s);
    if (!c->no_saved) judge_backward(&s);
    expect_inputs_untouched(&s);
    end(&s);
}

/* A device that plays another one has to build every kernel again: a third of the cases will do. */
static int case_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* ---- every combination of options ---- */

#define OPTION_SETS 256

static void with_options(int bits, norm_case *c)
{
    c->rms = bits & 1;
    c->w = bits & 2 ? ATTO_F32 : (atto_dtype)0;
    c->b = bits & 4 ? ATTO_F32 : (atto_dtype)0;
    c->add = bits & 8;
    c->no_dx = bits & 16;
    c->dw = bits & 32 ? ATTO_F32 : (atto_dtype)0;
    c->db = bits & 64 ? ATTO_F32 : (atto_dtype)0;
    c->no_saved = bits & 128;
}

static void layer_norm_matches_oracle_with_all_options(void **state)
{
    (void)state;
    const int64_t cols[] = { 5, 24, 130 };
    for (int bits = 0; bits < OPTION_SETS; bits++) {
        norm_case c = { .shape = atto_shape2(37, cols[bits % 3]), .seed = 100 + (uint64_t)bits };
        with_options(bits, &c);
        if (c.no_dx && !c.dw && !c.db) continue; /* nothing to do */
        check(&c);
    }
}

static void layer_norm_of_trailing_dimensions(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape4(2, 3, 4, 5), atto_shape3(3, 1, 7), atto_shape1(12) };
    for (int i = 0; i < 3; i++)
        for (int32_t dims = 1; dims <= shapes[i].rank; dims++)
            for (int rms = 0; rms < 2; rms++)
                check(&(norm_case){ .shape = shapes[i],
                                    .dims = dims,
                                    .rms = rms,
                                    .w = ATTO_F32,
                                    .b = ATTO_F32,
                                    .dw = ATTO_F32,
                                    .db = ATTO_F32,
                                    .seed = 400 });
}

/* ---- sizes (I10) ---- */

static const int64_t sizes[][2] = {
    { 1, 1 },     { 5, 1 },       { 300, 2 },   { 2049, 3 }, { 9, 8 },     { 9, 31 },
    { 9, 33 },    { 7, 63 },      { 7, 65 },    { 7, 127 },  { 7, 128 },   { 7, 129 },
    { 19, 217 },  { 5, 255 },     { 5, 256 },   { 5, 257 },  { 5, 1023 },  { 5, 1024 },
    { 5, 1025 },  { 33, 768 },    { 4097, 4 },  { 3, 4095 }, { 3, 4096 },  { 3, 4100 },
    { 3, 4101 },  { 2, 8191 },    { 10, 8192 }, { 2, 8196 }, { 2, 16384 }, { 1, 50001 },
    { 70, 4104 }, { 1030, 2052 }, { 1200, 16 }, { 600, 40 },
};

static void layer_norm_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i += case_step()) {
        check(&(norm_case){ .shape = atto_shape2(sizes[i][0], sizes[i][1]),
                            .w = ATTO_F32,
                            .b = ATTO_F32,
                            .dw = ATTO_F32,
                            .db = ATTO_F32,
                            .layout = i % 4 == 3 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                            .params = i % 3 == 2 ? LAYOUT_OFFSET : LAYOUT_DENSE,
                            .seed = 500 + (uint64_t)i });
    }
}

static void rms_norm_takes_any_size(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(sizes); i += test_on_opencl() ? 5 : 1)
        check(&(norm_case){ .shape = atto_shape2(sizes[i][0], sizes[i][1]),
                            .rms = true,
                            .w = ATTO_F32,
                            .dw = ATTO_F32,
                            .add = i % 2 == 1,
                            .seed = 600 + (uint64_t)i });
}

/* ---- dtypes and layouts ---- */

static void layer_norm_takes_f16_and_bf16(void **state)
{
    (void)state;
    const atto_dtype dtypes[] = { ATTO_F16, ATTO_BF16 };
    const int64_t cols[] = { 10, 64, 131, 2056, 4104, 9000 };
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < COUNT_OF(cols); i += case_step()) {
            if (test_on_opencl() && i % 2 != d) continue; /* kernels take long to build */
            norm_case c = { .shape = atto_shape2(11, cols[i]),
                            .dtype = dtypes[d],
                            .rms = (i + d) % 3 == 2,
                            .w = ATTO_F32,
                            .b = dtypes[d],
                            .dw = dtypes[d],
                            .db = ATTO_F32,
                            .add = i % 2 == 0,
                            .seed = 700 + (uint64_t)i };
            check(&c);
            if (test_on_opencl() && i % 3 != 0) continue;
            c.w = dtypes[d], c.b = i % 2 ? ATTO_F32 : dtypes[d];
            c.dw = ATTO_F32, c.db = ATTO_F32;
            c.add = false;
            check(&c);
        }
}

/* I9: what does not lie row by row gives what its contiguous copy would. */
static void layer_norm_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET, LAYOUT_PITCHED,   LAYOUT_TRANSPOSED,
                                    LAYOUT_STEP2,  LAYOUT_SCATTERED, LAYOUT_CHANNELS_LAST };
    for (int i = 0; i < COUNT_OF(layouts); i += case_step())
        for (int rms = 0; rms < 2; rms++)
            check(&(norm_case){ .shape = atto_shape3(4, 3, 8),
                                .dims = 1 + i % 2,
                                .rms = rms,
                                .w = ATTO_F32,
                                .b = ATTO_F32,
                                .dw = ATTO_F32,
                                .db = ATTO_F32,
                                .layout = layouts[i],
                                .params = i % 2 ? LAYOUT_STEP2 : LAYOUT_OFFSET,
                                .add = i % 2 == 1,
                                .seed = 800 + (uint64_t)i });
}

/* Vectors of x and of dx do not begin at the same columns. */
static void layer_norm_backward_takes_another_alignment(void **state)
{
    (void)state;
    const int64_t cols[] = { 8, 132, 4100 };
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            check(&(norm_case){ .shape = atto_shape2(9, cols[i]),
                                .w = ATTO_F32,
                                .dw = ATTO_F32,
                                .db = ATTO_F32,
                                .layout = k ? LAYOUT_OFFSET : LAYOUT_DENSE,
                                .dx_layout = k ? LAYOUT_OFFSET4 : LAYOUT_OFFSET,
                                .add = k == 1,
                                .seed = 850 });
}

/* ---- values ---- */

/* y of one row without parameters. */
static void run_row(bool rms, atto_dtype dtype, int64_t n, const double *x, double eps, double *y)
{
    norm_scene s;
    begin(&s, &(norm_case){ .shape = atto_shape2(1, n), .rms = rms, .dtype = dtype, .eps = eps });
    memcpy(s.x, x, (size_t)n * sizeof *x);
    build(&s);
    MUST(call(&s, false));
    test_tensor_get(&s.ty, y);
    end(&s);
}

/* H1: the variance of numbers that lie far from 0. */
static void layer_norm_keeps_the_digits_of_a_large_mean(void **state)
{
    (void)state;
    const double shifts[] = { 0, 100, 1000, 10000 },
                 first[] = { -1.3416, -1.3415, -1.3415, -1.3313 };
    for (int i = 0; i < 4; i++) {
        double x[16], y[16];
        for (int k = 0; k < 16; k++) x[k] = (double)(float)(shifts[i] + k * 1e-3);
        run_row(false, ATTO_F32, 16, x, 1e-5, y);
        assert_true(fabs(y[0] - first[i]) < 6e-5);
    }
}

/* The same of rows whose standard deviation is 0.01 about 100. */
static void check_digits(int64_t rows, int64_t cols)
{
    norm_scene s;
    begin(&s, &(norm_case){ .shape = atto_shape2(rows, cols), .seed = 900 });
    for (int64_t i = 0; i < s.numel; i++) s.x[i] = (double)(float)(100.0 + 0.0086 * s.x[i]);
    build(&s);
    ask_oracle(&s);
    MUST(call(&s, false));
    double *rstd = test_doubles(rows);
    test_tensor_get(&s.trstd, rstd);
    for (int64_t r = 0; r < rows; r++) assert_true(fabs(rstd[r] / s.want.rstd[r] - 1.0) < 1e-4);
    judge_forward(&s);
    free(rstd);
    end(&s);
}

/* They do not fit into registers. */
static void layer_norm_keeps_the_digits_of_long_rows(void **state)
{
    (void)state;
    check_digits(2, 32768);
}

/* Many are taken together. */
static void layer_norm_keeps_the_digits_of_short_rows(void **state)
{
    (void)state;
    check_digits(37, 64);
}

/* H3: squares of f16 beyond 65504. */
static void rms_norm_of_large_f16_is_one(void **state)
{
    (void)state;
    double *x = test_doubles(4096), *y = test_doubles(4096);
    for (int i = 0; i < 4096; i++) x[i] = 7600;
    run_row(true, ATTO_F16, 4096, x, 1e-3, y);
    for (int i = 0; i < 4096; i++) assert_true(y[i] == 1.0);
    free(x), free(y);
}

/* H4: squares beyond f32 make rstd 0, and the rest with it. */
static void layer_norm_of_huge_numbers_is_zero(void **state)
{
    (void)state;
    const int64_t cols[] = { 8, 100, 9000 };
    for (int i = 0; i < 6; i++) {
        const int64_t n = cols[i % 3];
        double *x = test_doubles(n), *y = test_doubles(n);
        for (int64_t k = 0; k < n; k++) x[k] = (double)(float)((k % 2 ? 1 : -1) * 1e30);
        run_row(i >= 3, ATTO_F32, n, x, 1e-5, y);
        for (int64_t k = 0; k < n; k++) assert_true(y[k] == 0.0);
        free(x), free(y);
    }
}

/* F7: a row with a NaN or an infinity is NaN as PyTorch has it, its neighbours are as ever. */
static void layer_norm_of_infinite_rows_is_ieee(void **state)
{
    (void)state;
    const int64_t cols[] = { 6, 200, 9001 };
    const double odd[] = { (double)NAN, (double)INFINITY, (double)-INFINITY };
    for (int i = 0; i < 18; i++) {
        norm_scene s;
        begin(&s, &(norm_case){ .shape = atto_shape2(5, cols[i % 3]),
                                .rms = i >= 9,
                                .w = ATTO_F32,
                                .b = ATTO_F32,
                                .dw = ATTO_F32,
                                .db = ATTO_F32,
                                .seed = 950 });
        s.x[2 * s.cols + s.cols / 2] = odd[i / 3 % 3];
        run_scene(&s);
        judge(&s, &s.ty, "layer_norm", row_depth(&s), s.want.y, s.want.y_terms, NULL);
        judge(&s, &s.trstd, "layer_norm", row_depth(&s), s.want.rstd, s.want.rstd, NULL);
        if (isnan(odd[i / 3 % 3])) judge_backward(&s);
        end(&s);
    }
}

/* A row of equal numbers has no variance: y is b, and gradients are those of eps. */
static void layer_norm_of_equal_numbers_is_the_bias(void **state)
{
    (void)state;
    const int64_t cols[] = { 7, 100, 9000 };
    for (int i = 0; i < 3; i++) {
        norm_scene s;
        begin(&s, &(norm_case){ .shape = atto_shape2(3, cols[i]), .b = ATTO_F32, .seed = 970 });
        for (int64_t k = 0; k < s.numel; k++) s.x[k] = (double)0.7f;
        build(&s);
        MUST(call(&s, false));
        double *y = test_doubles(s.numel);
        test_tensor_get(&s.ty, y);
        for (int64_t k = 0; k < s.numel; k++) assert_true(fabs(y[k] - s.b[k % s.cols]) < 2e-4);
        free(y);
        end(&s);
    }
}

/* I1: no rows: gradients of parameters are 0, or what they were. */
static void layer_norm_of_no_rows(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        norm_scene s;
        begin(&s, &(norm_case){ .shape = atto_shape2(0, 5),
                                .rms = i & 1,
                                .w = ATTO_F32,
                                .dw = ATTO_F32,
                                .db = ATTO_F32,
                                .add = i & 2 });
        build(&s);
        MUST(call(&s, false));
        MUST(call(&s, true));
        double got[5];
        test_tensor_get(&s.tdw, got);
        for (int k = 0; k < 5; k++) assert_true(got[k] == (s.c.add ? s.old_params[k] : 0.0));
        if (!s.c.rms) test_tensor_get(&s.tdb, got);
        for (int k = 0; k < 5; k++) assert_true(got[k] == (s.c.add ? s.old_params[k] : 0.0));
        end(&s);
    }
}

/* Rows of nothing have no mean. */
static void layer_norm_of_empty_rows(void **state)
{
    (void)state;
    norm_scene s;
    double mean[3];
    begin(&s, &(norm_case){ .shape = atto_shape2(3, 0), .w = ATTO_F32, .dw = ATTO_F32 });
    build(&s);
    MUST(call(&s, false));
    MUST(call(&s, true));
    test_tensor_get(&s.tmean, mean);
    for (int r = 0; r < 3; r++) assert_true(isnan(mean[r]));
    end(&s);
}

/* ---- repeatability ---- */

static void bits_of(norm_scene *s, uint64_t *dx, uint64_t *dw, uint64_t *db)
{
    MUST(call(s, true));
    test_tensor_bits(&s->tdx, dx);
    test_tensor_bits(&s->tdw, dw);
    test_tensor_bits(&s->tdb, db);
}

/* J1 */
static void layer_norm_repeats_bit_for_bit(void **state)
{
    (void)state;
    const atto_shape shapes[] = { atto_shape2(5003, 10), atto_shape2(300, 768),
                                  atto_shape2(40, 9000) };
    for (int i = 0; i < 3; i++) {
        norm_scene s;
        begin(
            &s,
            &(norm_case){
                .shape = shapes[i], .w = ATTO_F32, .dw = ATTO_F32, .db = ATTO_F32, .seed = 1000 });
        build(&s);
        MUST(call(&s, false));
        const size_t all = (size_t)s.numel * 8, some = (size_t)s.cols * 8;
        uint64_t *bits[2][3];
        for (int k = 0; k < 6; k++) bits[k / 3][k % 3] = calloc(1, k % 3 ? some : all);
        bits_of(&s, bits[0][0], bits[0][1], bits[0][2]);
        for (int run = 0; run < 20; run++) {
            bits_of(&s, bits[1][0], bits[1][1], bits[1][2]);
            for (int k = 0; k < 3; k++) assert_memory_equal(bits[0][k], bits[1][k], k ? some : all);
        }
        for (int k = 0; k < 6; k++) free(bits[k / 3][k % 3]);
        end(&s);
    }
}

/* Forward and backward of a step allocate nothing and copy nothing. */
static void layer_norm_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    norm_scene s;
    begin(&s, &(norm_case){ .shape = atto_shape2(100, 24),
                            .w = ATTO_F32,
                            .b = ATTO_F32,
                            .dw = ATTO_F32,
                            .db = ATTO_F32 });
    build(&s);
    atto_device_stats before, after;
    for (int i = 0; i < 5; i++) {
        if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
        MUST(call(&s, false));
        MUST(call(&s, true));
    }
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.allocations, before.allocations);
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    assert_int_equal(after.blocking_calls, before.blocking_calls);
    end(&s);
}

/* ---- what is refused ---- */

/* Makes one change to a good call of 6 x 5, forward and backward. */
static void refuse(void (*spoil)(norm_scene *s), bool rms, bool backward, atto_status status,
                   const char *words)
{
    norm_scene s;
    begin(&s, &(norm_case){ .shape = atto_shape2(6, 5),
                            .rms = rms,
                            .w = ATTO_F32,
                            .b = ATTO_F32,
                            .dw = ATTO_F32,
                            .db = ATTO_F32 });
    build(&s);
    spoil(&s);
    EXPECT_FAIL(call(&s, backward), status, words);
    assert_true(test_tensor_untouched(&s.ty) && test_tensor_untouched(&s.tdx));
    assert_true(test_tensor_untouched(&s.tdw) && test_tensor_untouched(&s.trstd));
    end(&s);
}

static void integer_input(norm_scene *s)
{
    s->tx.view.dtype = ATTO_I32;
}
static void no_dims(norm_scene *s)
{
    s->layer.dims = s->rms.dims = 0;
}
static void many_dims(norm_scene *s)
{
    s->layer.dims = s->rms.dims = 3;
}
static void negative_eps(norm_scene *s)
{
    s->layer.eps = s->rms.eps = -1e-5f;
}
static void nan_eps(norm_scene *s)
{
    s->layer.eps = s->rms.eps = NAN;
}
static void short_weight(norm_scene *s)
{
    s->tw.view.shape[0] = 4;
}
static void narrow_weight(norm_scene *s)
{
    s->tw.view.dtype = ATTO_F16;
}
static void short_rstd(norm_scene *s)
{
    s->trstd.view.shape[0] = 5;
}
static void short_bias(norm_scene *s)
{
    s->tb.view.shape[0] = 4;
}
static void short_db(norm_scene *s)
{
    s->tdb.view.shape[0] = 4;
}
static void no_mean(norm_scene *s)
{
    s->layer.mean = NULL;
}
static void no_rstd(norm_scene *s)
{
    s->layer.rstd = s->rms.rstd = NULL;
}

static void layer_norm_refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool rms = i & 1, backward = i & 2;
        refuse(integer_input, rms, backward, ATTO_E_DTYPE, "x is i32");
        refuse(no_dims, rms, backward, ATTO_E_SHAPE, "dims is 0|1 to the rank of x, which is 2");
        refuse(many_dims, rms, backward, ATTO_E_SHAPE, "dims is 3");
        refuse(negative_eps, rms, backward, ATTO_E_ARGUMENT, "eps is -1e-05");
        refuse(nan_eps, rms, backward, ATTO_E_ARGUMENT, "eps is");
        refuse(short_weight, rms, backward, ATTO_E_SHAPE, "w is [4]|expected [5]");
        refuse(narrow_weight, rms, backward, ATTO_E_DTYPE, "w is f16, expected f32");
        refuse(short_rstd, rms, backward, ATTO_E_SHAPE, "rstd is [5]|expected [6]");
    }
    refuse(short_bias, false, false, ATTO_E_SHAPE, "b is [4]");
    refuse(short_db, false, true, ATTO_E_SHAPE, "db is [4]");
    refuse(no_mean, false, true, ATTO_E_NULL, "mean is NULL");
    refuse(no_rstd, false, true, ATTO_E_NULL, "rstd is NULL");
    refuse(no_rstd, true, true, ATTO_E_NULL, "rstd is NULL");
}

/* ---- tape and modules ---- */

/* Both modules against the ops, with a step's gradients. */
static void norm_modules_match_the_ops(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const bool rms = i & 1;
        const atto_dtype dtype = i & 2 ? ATTO_BF16 : ATTO_F32;
        const double eps = i & 4 ? 0.25 : !rms ? 1e-5 : dtype == ATTO_F32 ? 0x1p-23 : 0x1p-7;
        norm_scene s;
        begin(&s, &(norm_case){ .shape = atto_shape3(2, 3, 5),
                                .dims = 2,
                                .rms = rms,
                                .dtype = dtype,
                                .dw = ATTO_F32,
                                .db = ATTO_F32,
                                .eps = eps,
                                .seed = 1100 });
        build(&s);
        ask_oracle(&s);
        atto_module *m;
        atto_tape *tape;
        const atto_norm_options options = { .eps = i & 4 ? 0.25f : 0.0f };
        MUST(rms ? atto_rms_norm_create(test_dev, atto_shape2(3, 5), &options, &m)
                 : atto_layer_norm_create(test_dev, atto_shape2(3, 5), &options, &m));
        assert_string_equal(atto_module_class_name(m), rms ? "RMSNorm" : "LayerNorm");
        assert_int_equal(atto_module_param_count(m), rms ? 15 : 30);
        MUST(atto_tape_create(test_dev, &tape));
        const atto_var x = atto_borrow(tape, &s.tx.view, true);
        const atto_var y = atto_apply(tape, m, x);
        atto_tensor got, dx;
        MUST(atto_var_tensor(tape, y, &got));
        MUST(atto_tensor_copy(&s.ty.view, &got));
        judge(&s, &s.ty, "layer_norm", row_depth(&s), s.want.y, s.want.y_terms, NULL);
        MUST(atto_backward_from(tape, y, &s.tdy.view));
        MUST(atto_var_grad(tape, x, &dx));
        MUST(atto_tensor_copy(&s.tdx.view, &dx));
        judge(&s, &s.tdx, "layer_norm_grad", row_depth(&s), s.want.dx, s.want.dx_terms, NULL);
        MUST(atto_tape_end(tape));
        atto_tape_free(tape);
        atto_module_free(m);
        end(&s);
    }
}

static atto_status note_key(void *data, const char *key, atto_param *p)
{
    double value = 0.0;
    const atto_tensor t = atto_param_value(p);
    float first[6];
    MUST(atto_tensor_read(&t, first));
    value = (double)first[0];
    assert_true(value == (strcmp(key, "weight") == 0 ? 1.0 : 0.0));
    strcat((char *)data, key);
    return ATTO_OK;
}

static void norm_modules_have_pytorchs_parameters(void **state)
{
    (void)state;
    const struct {
        bool rms;
        atto_norm_options options;
        const char *keys;
    } rows[] = { { false, { .eps = 0 }, "weightbias" },
                 { false, { .no_bias = true }, "weight" },
                 { false, { .no_affine = true }, "" },
                 { true, { .eps = 0 }, "weight" },
                 { true, { .no_affine = true }, "" } };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        char keys[64] = "";
        atto_module *m;
        MUST(rows[i].rms ? atto_rms_norm_create(test_dev, atto_shape1(6), &rows[i].options, &m)
                         : atto_layer_norm_create(test_dev, atto_shape1(6), &rows[i].options, &m));
        MUST(atto_module_params(m, note_key, keys));
        assert_string_equal(keys, rows[i].keys);
        atto_module_free(m);
    }
}

static void norm_modules_refuse_what_does_not_fit(void **state)
{
    (void)state;
    atto_module *m;
    atto_tape *tape;
    const float data[12] = { 0.0f };
    EXPECT_FAIL(atto_layer_norm_create(test_dev, atto_shape0(), NULL, &m), ATTO_E_SHAPE,
                "layer_norm_create|no dimension");
    EXPECT_FAIL(atto_layer_norm_create(test_dev, atto_shape1(-1), NULL, &m), ATTO_E_SHAPE,
                "layer_norm_create");
    EXPECT_FAIL(
        atto_rms_norm_create(test_dev, atto_shape1(3), &(atto_norm_options){ .eps = -2 }, &m),
        ATTO_E_ARGUMENT, "rms_norm_create|eps is -2");
    EXPECT_FAIL(atto_rms_norm_create(test_dev, atto_shape1(3),
                                     &(atto_norm_options){ .reserved = { 1 } }, &m),
                ATTO_E_ARGUMENT, "reserved");
    EXPECT_FAIL(atto_layer_norm_create(NULL, atto_shape1(3), NULL, &m), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_layer_norm_create(test_dev, atto_shape1(3), NULL, NULL), ATTO_E_NULL, "m is");
    MUST(atto_layer_norm_create(test_dev, atto_shape2(2, 3), NULL, &m));
    MUST(atto_tape_create(test_dev, &tape));
    atto_var x = atto_input(tape, ATTO_F32, atto_shape2(4, 3), data);
    atto_apply(tape, m, x);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "LayerNorm: the input is [4,3]|ends in [2,3]");
    x = atto_input(tape, ATTO_F32, atto_shape1(3), data);
    atto_apply(tape, m, x);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "LayerNorm: the input is [3]");
    x = atto_input(tape, ATTO_F32, atto_shape2(4, 3), data);
    atto_rms_norm(tape, x, 1, &(atto_layer_norm_options){ .bias = &x });
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_ARGUMENT, "bias is given");
    x = atto_input(tape, ATTO_F32, atto_shape2(4, 3), data);
    atto_layer_norm(tape, x, 3, NULL);
    EXPECT_FAIL(atto_tape_end(tape), ATTO_E_SHAPE, "dims is 3");
    atto_tape_free(tape);
    atto_module_free(m);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(layer_norm_matches_oracle_with_all_options),
    cmocka_unit_test(layer_norm_of_trailing_dimensions),
    cmocka_unit_test(layer_norm_takes_any_size),
    cmocka_unit_test(rms_norm_takes_any_size),
    cmocka_unit_test(layer_norm_takes_f16_and_bf16),
    cmocka_unit_test(layer_norm_takes_any_layout),
    cmocka_unit_test(layer_norm_backward_takes_another_alignment),
    cmocka_unit_test(layer_norm_keeps_the_digits_of_a_large_mean),
    cmocka_unit_test(layer_norm_keeps_the_digits_of_long_rows),
    cmocka_unit_test(layer_norm_keeps_the_digits_of_short_rows),
    cmocka_unit_test(rms_norm_of_large_f16_is_one),
    cmocka_unit_test(layer_norm_of_huge_numbers_is_zero),
    cmocka_unit_test(layer_norm_of_infinite_rows_is_ieee),
    cmocka_unit_test(layer_norm_of_equal_numbers_is_the_bias),
    cmocka_unit_test(layer_norm_of_no_rows),
    cmocka_unit_test(layer_norm_of_empty_rows),
    cmocka_unit_test(layer_norm_repeats_bit_for_bit),
    cmocka_unit_test(layer_norm_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(layer_norm_refuses_what_does_not_fit),
    cmocka_unit_test(norm_modules_match_the_ops),
    cmocka_unit_test(norm_modules_have_pytorchs_parameters),
    cmocka_unit_test(norm_modules_refuse_what_does_not_fit),
};
TEST_MAIN("layer_norm", tests)
