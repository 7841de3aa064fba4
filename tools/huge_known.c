/* SPDX-License-Identifier: MIT */
/* attocl selftest --huge: softmax, norms and losses of constants, where every result is known.
 *
 * Constants come in four parts: of four columns, or of four images. Results are compared block by
 * block, to a rounding of f16; sums over all to 1e-5, so that one is wrong in which a part of 2^31
 * is missing. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "bench.h"
#include "check.h"
#include "huge.h"
#include "tool.h"

#define PARTS 4

/* Element i of a tensor belongs to part i / run % PARTS. */
typedef struct pattern {
    int64_t elements, run;
    double part[PARTS];
} pattern;

static pattern constant(int64_t elements, double value)
{
    return (pattern){ elements, 1, { value, value, value, value } };
}

/* Ends a line of the report. */
static bool verdict(bool ok)
{
    printf("  %s\n", ok ? "PASS" : "FAIL");
    return ok;
}

static void begin(const char *name, bool backward)
{
    printf("%-13s %-8s", name, backward ? "backward" : "forward");
}

/* Every element of the blocks is what the pattern says, but for roundings of f16. */
static bool expect_pattern(huge *h, const atto_tensor *flat, const pattern *p)
{
    int64_t start[HUGE_BLOCKS], length[HUGE_BLOCKS];
    bool ok = true;
    huge_blocks(p->elements, start, length);
    for (int b = 0; b < HUGE_BLOCKS; b++) {
        double worst = 0;
        if (length[b] < 1) continue;
        atto_status status = huge_read(flat, start[b], length[b], h->raw_got);
        if (status == ATTO_OK)
            status = check_widen(h->reference, h->raw_got, ATTO_F16, length[b], h->got);
        if (status != ATTO_OK) return tool_fail("reading a block", status) == TOOL_OK;
        for (int64_t i = 0; i < length[b]; i++) {
            const double want = p->part[(start[b] + i) / p->run % PARTS];
            double off = fabs((double)h->got[i] - want) / (0x1p-10 * fabs(want) + 0x1p-10);
            if (isnan(off)) off = (double)INFINITY;
            if (off > worst) worst = off;
        }
        printf(" %9.3f", worst);
        ok = ok && worst <= 1;
    }
    return ok;
}

/* Numbers in f32 that stand for everything: sums, means. */
static bool expect_numbers(const char *name, const atto_tensor *t, const double *want)
{
    float got[PARTS];
    const int64_t n = atto_tensor_numel(t);
    const atto_status status = atto_tensor_read(t, got);
    if (status != ATTO_OK) return tool_fail(name, status) == TOOL_OK;
    for (int64_t i = 0; i < n; i++) {
        if (fabs((double)got[i] - want[i]) <= 1e-5 * fabs(want[i])) continue;
        printf("\n  %s[%" PRId64 "] is %.9g, expected %.9g", name, i, (double)got[i], want[i]);
        return false;
    }
    return true;
}

/* A view of a huge tensor's first elements, and its columns or images one by one. */
static atto_tensor view(const atto_tensor *flat, atto_shape shape)
{
    return atto_tensor_of(flat->buffer, flat->dtype, shape, 0);
}

static atto_status fill_parts(const atto_tensor *t, int32_t dim, const double *values)
{
    for (int k = 0; k < PARTS; k++) {
        atto_tensor part;
        BENCH_TRY(atto_tensor_slice(t, dim, k, k + 1, 1, &part));
        BENCH_TRY(atto_tensor_fill(&part, values[k]));
    }
    return ATTO_OK;
}

/* ---- softmax: zeros, whose results are known ---- */

/* Rows of two, one row of all elements, and columns of two. In the long row 1 / elements is nothing
 * in f16, but the logarithm of that differs from one of a sum that lacks a 16th. */
typedef struct softmax_case {
    const char *name;
    atto_softmax_kind kind;
    int32_t dim;
    bool one_row; /* y is -log(elements) */
    double y;
} softmax_case;

static const softmax_case softmax_cases[] = {
    { "log_softmax", ATTO_SOFTMAX_LOG, 1, false, -0.693147180559945 },
    { "log row", ATTO_SOFTMAX_LOG, 1, true, 0.0 },
    { "softmax dim 0", ATTO_SOFTMAX_PLAIN, 0, false, 0.5 },
};

/* dy = 1: what softmax shifts by a constant stays, so dx is 0; in the long row it is 1 - n e^y,
 * which sees a sum that lacks a 500th, since y is rounded. */
static atto_status softmax_dx(huge *h, const softmax_case *c, int64_t n, double *dx)
{
    *dx = 0.0;
    if (!c->one_row) return ATTO_OK;
    BENCH_TRY(huge_read(&h->out, 0, 1, h->raw_got));
    BENCH_TRY(check_widen(h->reference, h->raw_got, ATTO_F16, 1, h->got));
    *dx = 1.0 - (double)n * exp((double)h->got[0]);
    return ATTO_OK;
}

/* dx goes where x was. */
static bool check_softmax(huge *h, const softmax_case *c)
{
    const int64_t half = h->elements / 2, n = c->one_row ? h->elements : 2 * half;
    const atto_shape shape = c->one_row    ? atto_shape2(1, n)
                             : c->dim == 1 ? atto_shape2(half, 2)
                                           : atto_shape2(2, half);
    const atto_tensor x = atto_tensor_of(h->x.buffer, ATTO_F16, shape, 0);
    const atto_tensor y = atto_tensor_of(h->out.buffer, ATTO_F16, shape, 0);
    const atto_tensor dy = atto_tensor_of(h->dy.buffer, ATTO_F16, shape, 0);
    const struct atto_softmax_args a = {
        .x = &x, .y = &y, .dy = &dy, .dx = &x, .kind = c->kind, .dim = c->dim
    };
    double value = c->one_row ? -log((double)n) : c->y;
    bool ok = true;
    for (int backward = 0; backward < 2; backward++) {
        atto_status status = atto_tensor_fill(&h->x, backward ? 7.0 : 0.0);
        if (status == ATTO_OK && !backward) status = atto_tensor_fill(&h->out, 7.0);
        if (status == ATTO_OK) status = atto_tensor_fill(&h->dy, 1.0);
        if (status == ATTO_OK)
            status =
                backward ? atto_softmax_backward(h->dev, &a) : atto_softmax_forward(h->dev, &a);
        if (status == ATTO_OK && backward) status = softmax_dx(h, c, n, &value);
        if (status != ATTO_OK) return tool_fail(c->name, status) == TOOL_OK;
        const pattern want = constant(n, value);
        begin(c->name, backward == 1);
        ok = verdict(expect_pattern(h, backward ? &h->x : &h->out, &want)) && ok;
    }
    return ok;
}

/* ---- norms: of 0, 2, 0, 2 the mean is 1 and so is the variance ---- */

/* What small tensors a norm or a loss has. */
typedef struct small {
    atto_tensor a, b, c, d;
} small;

static void free_small(small *s)
{
    atto_tensor_free(&s->a);
    atto_tensor_free(&s->b);
    atto_tensor_free(&s->c);
    atto_tensor_free(&s->d);
}

static const double norm_x[PARTS] = { 0, 2, 0, 2 }, norm_dy[PARTS] = { 1, 0, 0, 0 };

static bool expect_norm(huge *h, const char *name, int64_t run, bool backward, const small *s,
                        const double *dw, const double *db)
{
    const pattern y = { PARTS * run * (h->elements / (PARTS * run)), run, { -1, 1, -1, 1 } };
    const pattern dx = { y.elements, run, { 0.5, 0, -0.5, 0 } };
    begin(name, backward);
    bool ok = expect_pattern(h, &h->out, backward ? &dx : &y);
    if (backward) ok = expect_numbers("dw", &s->c, dw) && expect_numbers("db", &s->d, db) && ok;
    return verdict(ok);
}

/* Columns as parts: dw and db have one number for each. */
static bool check_layer_norm(huge *h)
{
    const int64_t rows = h->elements / PARTS;
    const double n = (double)rows, dw[PARTS] = { -n, 0, 0, 0 }, db[PARTS] = { n, 0, 0, 0 };
    const atto_shape shape = atto_shape2(rows, PARTS), columns = atto_shape1(PARTS);
    const atto_tensor x = view(&h->x, shape), dy = view(&h->dy, shape), out = view(&h->out, shape);
    small s = { { 0 }, { 0 }, { 0 }, { 0 } };
    const struct atto_layer_norm_args a = { .x = &x,
                                            .y = &out,
                                            .mean = &s.a,
                                            .rstd = &s.b,
                                            .dy = &dy,
                                            .dx = &out,
                                            .dw = &s.c,
                                            .db = &s.d,
                                            .dims = 1 };
    bool ok = true;
    atto_status status = atto_tensor_alloc(h->dev, ATTO_F32, atto_shape1(rows), &s.a);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_F32, atto_shape1(rows), &s.b);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_F32, columns, &s.c);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_F32, columns, &s.d);
    if (status == ATTO_OK) status = fill_parts(&x, 1, norm_x);
    if (status == ATTO_OK) status = fill_parts(&dy, 1, norm_dy);
    if (status == ATTO_OK) status = atto_tensor_fill(&h->out, 7.0);
    if (status == ATTO_OK) status = atto_layer_norm_forward(h->dev, &a);
    if (status == ATTO_OK) ok = expect_norm(h, "layer_norm", 1, false, &s, dw, db);
    if (status == ATTO_OK) status = atto_layer_norm_backward(h->dev, &a);
    if (status == ATTO_OK) ok = expect_norm(h, "layer_norm", 1, true, &s, dw, db) && ok;
    free_small(&s);
    return status == ATTO_OK ? ok : tool_fail("layer_norm", status) == TOOL_OK;
}

/* Images as parts, of two channels: dw and db have a sum over two images' worth of one channel. */
static bool check_batch_norm(huge *h)
{
    const int64_t size = h->elements / (2 * PARTS);
    const double n = (double)size, dw[2] = { -n, -n }, db[2] = { n, n };
    const atto_shape shape = atto_shape3(PARTS, 2, size), channels = atto_shape1(2);
    const atto_tensor x = view(&h->x, shape), dy = view(&h->dy, shape), out = view(&h->out, shape);
    small s = { { 0 }, { 0 }, { 0 }, { 0 } };
    const struct atto_batch_norm_args a = { .x = &x,
                                            .y = &out,
                                            .mean = &s.a,
                                            .rstd = &s.b,
                                            .dy = &dy,
                                            .dx = &out,
                                            .dw = &s.c,
                                            .db = &s.d,
                                            .training = true };
    atto_tensor *const tensors[] = { &s.a, &s.b, &s.c, &s.d };
    bool ok = true;
    atto_status status = fill_parts(&x, 0, norm_x);
    for (int i = 0; i < 4 && status == ATTO_OK; i++)
        status = atto_tensor_alloc(h->dev, ATTO_F32, channels, tensors[i]);
    if (status == ATTO_OK) status = fill_parts(&dy, 0, norm_dy);
    if (status == ATTO_OK) status = atto_tensor_fill(&h->out, 7.0);
    if (status == ATTO_OK) status = atto_batch_norm_forward(h->dev, &a);
    if (status == ATTO_OK) ok = expect_norm(h, "batch_norm", 2 * size, false, &s, dw, db);
    if (status == ATTO_OK) status = atto_batch_norm_backward(h->dev, &a);
    if (status == ATTO_OK) ok = expect_norm(h, "batch_norm", 2 * size, true, &s, dw, db) && ok;
    free_small(&s);
    return status == ATTO_OK ? ok : tool_fail("batch_norm", status) == TOOL_OK;
}

/* ---- losses: sums over all positions, gradients for the upstream gradient 1 ---- */

/* A loss of everything. */
static bool expect_loss(const char *name, atto_status status, const atto_tensor *loss, double want)
{
    if (status != ATTO_OK) return tool_fail(name, status) == TOOL_OK;
    begin(name, false);
    return verdict(expect_numbers("loss", loss, &want));
}

/* The gradient of x, which goes to out. */
static bool expect_gradient(huge *h, const char *name, atto_status status, const pattern *dx)
{
    if (status != ATTO_OK) return tool_fail(name, status) == TOOL_OK;
    begin(name, true);
    return verdict(expect_pattern(h, &h->out, dx));
}

/* d = 1 everywhere. */
static bool check_pointwise(huge *h, const small *s)
{
    const struct atto_loss_args a = { .x = &h->x,
                                      .target = &h->dy,
                                      .loss = &s->a,
                                      .dloss = &s->b,
                                      .dx = &h->out,
                                      .kind = ATTO_LOSS_MSE,
                                      .reduction = ATTO_REDUCTION_SUM };
    const pattern dx = constant(h->elements, 2.0);
    atto_status status = atto_tensor_fill(&h->x, 3.0);
    if (status == ATTO_OK) status = atto_tensor_fill(&h->dy, 2.0);
    if (status == ATTO_OK) status = atto_loss_forward(h->dev, &a);
    const bool ok = expect_loss("mse sum", status, &s->a, (double)h->elements);
    if (status == ATTO_OK) status = atto_loss_backward(h->dev, &a);
    return expect_gradient(h, "mse sum", status, &dx) && ok;
}

/* Label 2 of four everywhere, logarithms of -1. */
static bool check_nll(huge *h, const small *s, int64_t rows)
{
    const atto_tensor x = view(&h->x, atto_shape2(rows, PARTS)),
                      out = view(&h->out, atto_shape2(rows, PARTS));
    const struct atto_nll_loss_args a = { .x = &x,
                                          .target = &s->c,
                                          .loss = &s->a,
                                          .dloss = &s->b,
                                          .dx = &out,
                                          .reduction = ATTO_REDUCTION_SUM };
    const pattern dx = { rows * PARTS, 1, { 0, 0, -1, 0 } };
    atto_status status = atto_tensor_fill(&h->x, -1.0);
    if (status == ATTO_OK) status = atto_nll_loss_forward(h->dev, &a);
    const bool ok = expect_loss("nll_loss", status, &s->a, (double)rows);
    if (status == ATTO_OK) status = atto_nll_loss_backward(h->dev, &a);
    return expect_gradient(h, "nll_loss", status, &dx) && ok;
}

/* Equal logits: the logarithm of 4 each. */
static bool check_cross_entropy_of(huge *h, const small *s, int64_t rows)
{
    const atto_tensor x = view(&h->x, atto_shape2(rows, PARTS)),
                      out = view(&h->out, atto_shape2(rows, PARTS));
    const struct atto_cross_entropy_args a = { .x = &x,
                                               .target = &s->c,
                                               .loss = &s->a,
                                               .dloss = &s->b,
                                               .dx = &out,
                                               .reduction = ATTO_REDUCTION_SUM };
    const pattern dx = { rows * PARTS, 1, { 0.25, 0.25, -0.75, 0.25 } };
    atto_status status = atto_cross_entropy_forward(h->dev, &a);
    const bool ok = expect_loss("cross_entropy", status, &s->a, (double)rows * log(4.0));
    if (status == ATTO_OK) status = atto_cross_entropy_backward(h->dev, &a);
    return expect_gradient(h, "cross_entropy", status, &dx) && ok;
}

static bool check_losses(huge *h)
{
    const int64_t rows = h->elements / PARTS;
    small s = { { 0 }, { 0 }, { 0 }, { 0 } };
    atto_status status = atto_tensor_alloc(h->dev, ATTO_F32, atto_shape0(), &s.a);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_F32, atto_shape0(), &s.b);
    if (status == ATTO_OK) status = atto_tensor_fill(&s.b, 1.0);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_I32, atto_shape1(rows), &s.c);
    if (status == ATTO_OK) status = atto_tensor_fill(&s.c, 2.0);
    bool ok = status == ATTO_OK || tool_fail("losses", status) == TOOL_OK;
    if (ok) ok = check_pointwise(h, &s);
    ok = ok && check_nll(h, &s, rows);
    ok = ok && check_cross_entropy_of(h, &s, rows);
    free_small(&s);
    return ok;
}

bool huge_known(huge *h)
{
    bool ok = true;
    for (size_t i = 0; i < sizeof softmax_cases / sizeof softmax_cases[0]; i++)
        ok = check_softmax(h, &softmax_cases[i]) && ok;
    ok = check_layer_norm(h) && ok;
    ok = check_batch_norm(h) && ok;
    return check_losses(h) && ok;
}
