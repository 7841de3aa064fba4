/* SPDX-License-Identifier: MIT */
/* Results in f32 against the oracle, within the tolerances of the tests: convolution, product,
 * linear layer, softmax, pooling, layer norm, forward. */
#include <math.h>

#include "atto_test.h"
#include "ops.h"
#include "oracle_conv.h"
#include "oracle_norm.h"

/* ---- numbers ---- */

/* Everything that a judgement allocates, until it is over. */
static void *kept[40];
static int32_t kept_count;

static void *room(int64_t n, size_t size)
{
    void *memory = calloc(n > 0 ? (size_t)n : 1, size);
    MUST_HOLD(memory && kept_count < COUNT_OF(kept), "no memory");
    kept[kept_count++] = memory;
    return memory;
}

static double *doubles(int64_t n)
{
    return room(n, sizeof(double));
}

/* The tensor's values in row-major order; NULL if it is not there. */
static double *values_of(call *c, const char *name)
{
    const cell *cell = cell_of(c, name);
    const atto_tensor *t = &cell->view;
    if (!*atto__field_of(&c->args, cell->field)) return NULL;
    const int64_t n = atto_tensor_numel(t);
    const size_t size = atto_dtype_size(t->dtype);
    double *values = doubles(n);
    for (int64_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, c->blocks[cell->block].data + (size_t)element_at(t, i) * size, size);
        values[i] = oracle_decode(t->dtype, bits);
    }
    return values;
}

/* An output that is there, f32, and not empty. */
static bool is_f32(call *c, const char *name)
{
    const cell *cell = cell_of(c, name);
    return *atto__field_of(&c->args, cell->field) && cell->view.dtype == ATTO_F32 &&
           atto_tensor_numel(&cell->view) > 0;
}

static bool is_within(double got, double want, double allowed)
{
    if (isnan(want)) return isnan(got);
    if (!isfinite(want)) return got == want;
    return got >= (double)(float)(want - allowed) && got <= (double)(float)(want + allowed);
}

/* An element of an output against a sum of n terms, of that size together. */
static void judge(const call *c, const char *op, const char *name, int64_t i, double got,
                  double want, int64_t n, double terms)
{
    const double allowed = n > 0 && isfinite(want) ? atto_tol(op, ATTO_F32, n, terms) : 0.0;
    MUST_HOLD(is_within(got, want, allowed), "%s: %s[%lld] is %.9g, expected %.9g within %g",
              c->info->name[c->direction], name, (long long)i, got, want, allowed);
}

/* The sum of n terms, and y: with the residual, if there is one. */
static void judge_sum(const call *c, const char *op, int64_t i, const double *y, const double *z,
                      const double *residual, int64_t n, oracle_sum sum)
{
    const double more = residual ? residual[i] : 0.0;
    if (z) judge(c, op, "z", i, z[i], sum.value, n, sum.terms);
    judge(c, op, "y", i, y[i], sum.value + more, n + (residual != NULL), sum.terms + fabs(more));
}

/* ---- products ---- */

static void judge_matmul(call *c)
{
    const atto_tensor *a = c->args.matmul.a, *b = c->args.matmul.b, *y = c->args.matmul.y;
    if (!is_f32(c, "y")) return;
    oracle_matmul o = { .m = a->shape[a->rank - 2],
                        .k = a->shape[a->rank - 1],
                        .n = b->shape[b->rank - 1],
                        .a_batch = atto_shape_of(a->rank - 2, a->shape),
                        .b_batch = atto_shape_of(b->rank - 2, b->shape),
                        .batch = atto_shape_of(y->rank - 2, y->shape),
                        .a = values_of(c, "a"),
                        .b = values_of(c, "b") };
    const int64_t n = atto_tensor_numel(y);
    oracle_sum *want = room(n, sizeof *want);
    const double *got = values_of(c, "y");
    oracle_matmul_product(&o, want, NULL, NULL);
    for (int64_t i = 0; i < n; i++)
        judge(c, "matmul", "y", i, got[i], want[i].value, o.k, want[i].terms);
}

static void judge_linear(call *c)
{
    const struct atto_linear_args *a = &c->args.linear;
    if (!is_f32(c, "y") || a->act.kind != ATTO_ACT_IDENTITY || a->dropout != 0.0f) return;
    oracle_linear o = { .n = a->w->shape[0],
                        .k = a->w->shape[1],
                        .x = values_of(c, "x"),
                        .w = values_of(c, "w"),
                        .b = values_of(c, "b") };
    o.m = atto_tensor_numel(a->y) / o.n;
    const double *y = values_of(c, "y"), *z = values_of(c, "z"), *more = values_of(c, "residual");
    for (int64_t i = 0; i < o.m * o.n; i++)
        judge_sum(c, "linear", i, y, z, more, o.k + (o.b != NULL),
                  oracle_linear_z(&o, i / o.n, i % o.n));
}

static void judge_conv(call *c)
{
    const struct atto_conv_args *a = &c->args.conv;
    const atto_conv_window *w = &a->window;
    if (!is_f32(c, "y") || a->act.kind != ATTO_ACT_IDENTITY) return;
    const int32_t dims = w->dims, first = a->x->rank - dims;
    oracle_conv o = { .transposed = w->transposed,
                      .rim = ORACLE_RIM_ZEROS,
                      .batch = first > 1 ? a->x->shape[0] : 1,
                      .channels = a->x->shape[first - 1],
                      .outputs = a->y->shape[first - 1],
                      .groups = w->groups,
                      .axis = { { 1, 1, 1, 1, 1, 0 }, { 1, 1, 1, 1, 1, 0 } },
                      .x = values_of(c, "x"),
                      .w = values_of(c, "w"),
                      .b = values_of(c, "b") };
    for (int32_t d = 0; d < dims; d++) {
        oracle_conv_axis *axis = &o.axis[2 - dims + d];
        axis->in = a->x->shape[first + d], axis->out = a->y->shape[first + d];
        axis->kernel = a->w->shape[2 + d];
        axis->stride = w->stride[d], axis->dilation = w->dilation[d];
        axis->before = w->padding[d];
    }
    const int64_t count = atto_tensor_numel(a->y);
    const int64_t n = o.channels / o.groups * o.axis[0].kernel * o.axis[1].kernel + (o.b != NULL);
    oracle_sum *sums = room(count, sizeof *sums);
    const double *y = values_of(c, "y"), *z = values_of(c, "z"), *more = values_of(c, "residual");
    oracle_convolve(&o, &(oracle_conv_answer){ .y = sums });
    for (int64_t i = 0; i < count; i++) judge_sum(c, "conv", i, y, z, more, n, sums[i]);
}

/* ---- rows ---- */

static void judge_softmax(call *c)
{
    const struct atto_softmax_args *a = &c->args.softmax;
    if (!is_f32(c, "y")) return;
    const int32_t dim = a->dim < 0 ? a->dim + a->x->rank : a->dim;
    oracle_softmax o = {
        .outer = 1, .size = 1, .step = 1, .kind = a->kind, .x = values_of(c, "x")
    };
    for (int32_t d = 0; d < a->x->rank; d++) {
        int64_t *part = d < dim ? &o.outer : d > dim ? &o.step : &o.size;
        *part *= a->x->shape[d];
    }
    const int64_t n = atto_tensor_numel(a->y);
    double *want = doubles(n), *terms = doubles(n);
    const double *got = values_of(c, "y");
    oracle_softmax_forward(&o, want, terms);
    for (int64_t i = 0; i < n; i++)
        judge(c, atto_softmax_name(a->kind), "y", i, got[i], want[i], o.size, terms[i]);
}

static void judge_layer_norm(call *c)
{
    const struct atto_layer_norm_args *a = &c->args.layer_norm;
    if (!is_f32(c, "y") || a->eps < 1e-6f) return; /* deviations that round to 0 */
    oracle_row_norm o = { .rows = 1,
                          .cols = 1,
                          .centred = true,
                          .eps = (double)a->eps,
                          .x = values_of(c, "x"),
                          .w = values_of(c, "w"),
                          .b = values_of(c, "b") };
    for (int32_t d = 0; d < a->x->rank; d++)
        *(d < a->x->rank - a->dims ? &o.rows : &o.cols) *= a->x->shape[d];
    const int64_t n = o.rows * o.cols;
    o.dy = doubles(n);
    oracle_row_norm_answer want = {
        .mean = doubles(o.rows),
        .rstd = doubles(o.rows),
        .y = doubles(n),
        .y_terms = doubles(n),
        .dx = doubles(n),
        .dx_terms = doubles(n),
        .dw = doubles(o.cols),
        .dw_terms = doubles(o.cols),
        .db = doubles(o.cols),
        .db_terms = doubles(o.cols),
    };
    const double *got = values_of(c, "y");
    oracle_row_norm_of(&o, &want);
    for (int64_t i = 0; i < n; i++)
        judge(c, "layer_norm", "y", i, got[i], want.y[i], o.cols, want.y_terms[i]);
}

/* ---- windows ---- */

static void judge_pool(call *c, const atto_tensor *x, const atto_tensor *y, oracle_pool *o)
{
    const int32_t dims = o->window.dims, first = x->rank - dims;
    if (!is_f32(c, "y")) return;
    for (int32_t d = 0; d < dims && !o->window.adaptive; d++)
        if (o->window.kernel[d] > 1000) return; /* the oracle looks at each element of a window */
    o->planes = o->h = o->oh = 1;
    for (int32_t d = 0; d < first; d++) o->planes *= x->shape[d];
    if (dims == 2) o->h = x->shape[first], o->oh = y->shape[first];
    o->w = x->shape[x->rank - 1], o->ow = y->shape[x->rank - 1];
    o->x = values_of(c, "x");
    const int64_t n = atto_tensor_numel(y), of_x = atto_tensor_numel(x);
    oracle_pool_answer want = { .y = doubles(n),
                                .index = doubles(n),
                                .terms = doubles(n),
                                .divisor = doubles(n),
                                .summed = room(n, sizeof(int64_t)),
                                .dx = doubles(of_x),
                                .dx_terms = doubles(of_x),
                                .dx_summed = room(of_x, sizeof(int64_t)) };
    const double *got = values_of(c, "y");
    oracle_pooling(o, &want);
    for (int64_t i = 0; i < n; i++)
        judge(c, "avg_pool", "y", i, got[i], want.y[i], o->is_max ? 0 : want.summed[i],
              want.terms[i]);
}

static void judge_avg_pool(call *c)
{
    const struct atto_avg_pool_args *a = &c->args.avg_pool;
    oracle_pool o = { .window = a->window,
                      .exclude = a->exclude_padding,
                      .override = a->divisor_override };
    judge_pool(c, a->x, a->y, &o);
}

static void judge_max_pool(call *c)
{
    oracle_pool o = { .is_max = true, .window = c->args.max_pool.window };
    judge_pool(c, c->args.max_pool.x, c->args.max_pool.y, &o);
}

void judge_call(call *c)
{
    switch (c->op) {
    case ATTO_OP_MATMUL:
        judge_matmul(c);
        break;
    case ATTO_OP_LINEAR:
        judge_linear(c);
        break;
    case ATTO_OP_CONV:
        judge_conv(c);
        break;
    case ATTO_OP_SOFTMAX:
        judge_softmax(c);
        break;
    case ATTO_OP_LAYER_NORM:
        judge_layer_norm(c);
        break;
    case ATTO_OP_AVG_POOL:
        judge_avg_pool(c);
        break;
    case ATTO_OP_MAX_POOL:
        judge_max_pool(c);
        break;
    default:
        break;
    }
    while (kept_count > 0) free(kept[--kept_count]);
}
