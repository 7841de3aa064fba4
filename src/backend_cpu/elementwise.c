/* SPDX-License-Identifier: MIT */
/* Elementwise ops on the CPU.
 *
 *   unary     y = f(x)               dx = f'(x, dy)          (+ dx)
 *   cast      y = x                  dx = dy                 (+ dx)
 *   binary    y = f(a, b)            da = f_a(a, b, dy)      db = f_b(a, b, dy)
 *   where     y = cond ? a : b       da = cond ? dy : 0      db = cond ? 0 : dy
 *   compare   y = a < b
 *
 * A gradient with stride 0 is a sum: it is computed in full, in f32, and then folded.
 */
#include "backend_cpu/fold.h"
#include "backend_cpu/loops.h"

/* ---- unary ---- */

typedef struct unary_loops {
    void (*f)(const float *x, float *y, int32_t n, float a, float b);
    void (*df)(const float *x, const float *dy, float *dx, int32_t n, float a, float b);
} unary_loops;

#define X(NAME, name)                                                                         \
    static void unary_##name(const float *x, float *y, int32_t n, float a, float b)           \
    {                                                                                         \
        ATTO_SIMD                                                                             \
        for (int32_t i = 0; i < n; i++) y[i] = attom_unary_##name(x[i], a, b);                \
    }                                                                                         \
    static void unary_##name##_grad(const float *x, const float *dy, float *dx, int32_t n,    \
                                    float a, float b)                                         \
    {                                                                                         \
        ATTO_SIMD                                                                             \
        for (int32_t i = 0; i < n; i++) dx[i] = attom_unary_##name##_grad(x[i], dy[i], a, b); \
    }
ATTO_UNARY_TABLE(X)
#undef X

static const unary_loops unaries[] = {
#define X(NAME, name) { unary_##name, unary_##name##_grad },
    ATTO_UNARY_TABLE(X)
#undef X
};

static void unary_block(const void *args, const block_at *at)
{
    const struct atto_unary_args *a = args;
    float x_buffer[ATTO_BLOCK], y_buffer[ATTO_BLOCK];
    const span to = span_of(a->y, at);
    const float *x = load_block(span_of(a->x, at), x_buffer);
    float *y = store_target(to, y_buffer);
    unaries[a->kind].f(x, y, at->n, a->lo, a->hi);
    store_block(y, to);
}

static void unary_grad_block(const void *args, const block_at *at)
{
    const struct atto_unary_args *a = args;
    float x_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK], dx_buffer[ATTO_BLOCK];
    const span to = span_of(a->dx, at);
    const float *x = load_block(span_of(a->x, at), x_buffer);
    const float *dy = load_block(span_of(a->dy, at), dy_buffer);
    float *dx = a->add_dx ? dx_buffer : store_target(to, dx_buffer);
    unaries[a->kind].df(x, dy, dx, at->n, a->lo, a->hi);
    if (a->add_dx) accumulate_block(dx, to, x_buffer);
    store_block(dx, to);
}

atto_status ATTO_LEVEL_NAME(unary_forward)(atto_device *dev, const struct atto_unary_args *a,
                                           const atto__layout *layout)
{
    return for_each_block(dev, layout, unary_block, a);
}

atto_status ATTO_LEVEL_NAME(unary_backward)(atto_device *dev, const struct atto_unary_args *a,
                                            const atto__layout *layout)
{
    return for_each_block(dev, layout, unary_grad_block, a);
}

/* ---- cast ---- */

/* dx += dy rounded to dx's dtype. */
static void cast_add_block(const void *args, const block_at *at)
{
    const struct atto_cast_args *a = args;
    float dy_buffer[ATTO_BLOCK], dx_buffer[ATTO_BLOCK], old_buffer[ATTO_BLOCK];
    uint32_t rounded[ATTO_BLOCK];
    const span to = span_of(a->dx, at);
    const span between = { rounded, 1, at->n, to.dtype };
    store_block(load_block(span_of(a->dy, at), dy_buffer), between);
    const float *dx = load_block(between, dx_buffer), *old = load_block(to, old_buffer);
    for (int32_t i = 0; i < at->n; i++) dx_buffer[i] = dx[i] + old[i];
    store_block(dx_buffer, to);
}

atto_status ATTO_LEVEL_NAME(cast_forward)(atto_device *dev, const struct atto_cast_args *a,
                                          const atto__layout *layout)
{
    return ATTO_LEVEL_NAME(copy)(dev, a->y, a->x, layout);
}

atto_status ATTO_LEVEL_NAME(cast_backward)(atto_device *dev, const struct atto_cast_args *a,
                                           const atto__layout *layout)
{
    return a->add_dx ? for_each_block(dev, layout, cast_add_block, a)
                     : ATTO_LEVEL_NAME(copy)(dev, a->dx, a->dy, layout);
}

/* ---- sums over repetitions ---- */

static atto_status sum_into(atto_device *dev, const atto_tensor *in, float divisor,
                            const atto__gradient *g, const atto__layout *layout)
{
    const atto__reduction r = { .fold = ATTO_FOLD_SUM,
                                .in = in,
                                .out = g->out,
                                .layout = layout,
                                .divisor = divisor,
                                .add = g->add };
    return ATTO_LEVEL_NAME(fold)(dev, &r);
}

/* The block's values, n of them, to an output. */
static void put_gradient(float *values, const atto__gradient *g, const block_at *at)
{
    float old_buffer[ATTO_BLOCK];
    const span to = span_of(g->out, at);
    if (g->add) accumulate_block(values, to, old_buffer);
    store_block(values, to);
}

/* job begins with the gradient that body writes: straight, or through a full one where it is a
 * sum. */
static atto_status write_gradient(atto_device *dev, const atto__layout *layout, block_fn body,
                                  atto__gradient *job)
{
    const atto__gradient wanted = *job;
    if (!atto__is_summed(wanted.out)) return for_each_block(dev, layout, body, job);
    atto_buffer buffer;
    atto_tensor full;
    ATTO_TRY(atto__scratch_full(dev, layout, &buffer, &full));
    job->out = &full;
    job->add = false;
    ATTO_TRY(for_each_block(dev, layout, body, job));
    return sum_into(dev, &full, 1.0f, &wanted, layout);
}

/* ---- binary ---- */

typedef struct binary_loops {
    float sign_b; /* where the gradients are signs: db is dy times that */
    void (*f)(const float *a, const float *b, float *y, int32_t n);
    void (*df[2])(const float *a, const float *b, const float *dy, float *d, int32_t n);
} binary_loops;

#define X(NAME, name, gradient)                                                               \
    static void binary_##name(const float *a, const float *b, float *y, int32_t n)            \
    {                                                                                         \
        ATTO_SIMD                                                                             \
        for (int32_t i = 0; i < n; i++) y[i] = attom_binary_##name(a[i], b[i]);               \
    }                                                                                         \
    static void binary_##name##_da(const float *a, const float *b, const float *dy, float *d, \
                                   int32_t n)                                                 \
    {                                                                                         \
        ATTO_SIMD                                                                             \
        for (int32_t i = 0; i < n; i++) d[i] = attom_binary_##name##_da(a[i], b[i], dy[i]);   \
    }                                                                                         \
    static void binary_##name##_db(const float *a, const float *b, const float *dy, float *d, \
                                   int32_t n)                                                 \
    {                                                                                         \
        ATTO_SIMD                                                                             \
        for (int32_t i = 0; i < n; i++) d[i] = attom_binary_##name##_db(a[i], b[i], dy[i]);   \
    }
ATTO_BINARY_TABLE(X)
#undef X

static const binary_loops binaries[] = {
#define X(NAME, name, gradient)                             \
    { ATTO_BINARY_##NAME == ATTO_BINARY_SUB ? -1.0f : 1.0f, \
      binary_##name,                                        \
      { binary_##name##_da, binary_##name##_db } },
    ATTO_BINARY_TABLE(X)
#undef X
};

/* An operand's block: the tensor's, or the number that stands for it. */
static const float *load_operand(const atto_tensor *t, float value, const block_at *at,
                                 float *buffer)
{
    if (t) return load_block(span_of(t, at), buffer);
    for (int32_t i = 0; i < at->n; i++) buffer[i] = value;
    return buffer;
}

static void binary_block(const void *args, const block_at *at)
{
    const struct atto_binary_args *x = args;
    float a_buffer[ATTO_BLOCK], b_buffer[ATTO_BLOCK], y_buffer[ATTO_BLOCK];
    const span to = span_of(x->y, at);
    const float *a = load_operand(x->a, x->value, at, a_buffer);
    const float *b = load_operand(x->b, x->value, at, b_buffer);
    float *y = store_target(to, y_buffer);
    binaries[x->kind].f(a, b, y, at->n);
    store_block(y, to);
}

typedef struct binary_job {
    atto__gradient to;
    const struct atto_binary_args *args;
} binary_job;

static void binary_grad_block(const void *job_, const block_at *at)
{
    const binary_job *job = job_;
    const struct atto_binary_args *x = job->args;
    float a_buffer[ATTO_BLOCK], b_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK], d[ATTO_BLOCK];
    const float *a = load_operand(x->a, x->value, at, a_buffer);
    const float *b = load_operand(x->b, x->value, at, b_buffer);
    const float *dy = load_block(span_of(x->dy, at), dy_buffer);
    binaries[x->kind].df[job->to.of_b](a, b, dy, d, at->n);
    put_gradient(d, &job->to, at);
}

atto_status ATTO_LEVEL_NAME(binary_forward)(atto_device *dev, const struct atto_binary_args *a,
                                            const atto__layout *layout)
{
    return for_each_block(dev, layout, binary_block, a);
}

static atto_status binary_gradient(atto_device *dev, const struct atto_binary_args *a,
                                   const atto__layout *layout, atto__gradient to)
{
    const binary_loops *loops = &binaries[a->kind];
    if (!to.out) return ATTO_OK;
    if (atto__gradient_is_sign(a->kind) && atto__is_summed(to.out))
        return sum_into(dev, a->dy, to.of_b ? loops->sign_b : 1.0f, &to, layout);
    binary_job job = { to, a };
    return write_gradient(dev, layout, binary_grad_block, &job.to);
}

atto_status ATTO_LEVEL_NAME(binary_backward)(atto_device *dev, const struct atto_binary_args *a,
                                             const atto__layout *layout)
{
    const atto_tensor *inputs[] = { a->a, a->b, a->dy };
    atto__gradient pair[] = { { a->da, a->add_da, false }, { a->db, a->add_db, true } };
    atto__gradients_order(pair, inputs, 3);
    ATTO_TRY(binary_gradient(dev, a, layout, pair[0]));
    return binary_gradient(dev, a, layout, pair[1]);
}

/* ---- where ---- */

static const int32_t *truth_at(span cond, int32_t i)
{
    return (const int32_t *)cond.first + i * cond.stride;
}

static void where_block(const void *args, const block_at *at)
{
    const struct atto_where_args *x = args;
    float a_buffer[ATTO_BLOCK], b_buffer[ATTO_BLOCK], y[ATTO_BLOCK];
    const span cond = span_of(x->cond, at);
    const float *a = load_operand(x->a, x->value, at, a_buffer);
    const float *b = load_operand(x->b, x->value, at, b_buffer);
    for (int32_t i = 0; i < at->n; i++) y[i] = *truth_at(cond, i) ? a[i] : b[i];
    store_block(y, span_of(x->y, at));
}

typedef struct where_job {
    atto__gradient to;
    const struct atto_where_args *args;
} where_job;

static void where_grad_block(const void *job_, const block_at *at)
{
    const where_job *job = job_;
    float dy_buffer[ATTO_BLOCK], d[ATTO_BLOCK];
    const span cond = span_of(job->args->cond, at);
    const float *dy = load_block(span_of(job->args->dy, at), dy_buffer);
    for (int32_t i = 0; i < at->n; i++)
        d[i] = (*truth_at(cond, i) == 0) == job->to.of_b ? dy[i] : 0.0f;
    put_gradient(d, &job->to, at);
}

atto_status ATTO_LEVEL_NAME(where_forward)(atto_device *dev, const struct atto_where_args *a,
                                           const atto__layout *layout)
{
    return for_each_block(dev, layout, where_block, a);
}

static atto_status where_gradient(atto_device *dev, const struct atto_where_args *a,
                                  const atto__layout *layout, atto__gradient to)
{
    where_job job = { to, a };
    return to.out ? write_gradient(dev, layout, where_grad_block, &job.to) : ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(where_backward)(atto_device *dev, const struct atto_where_args *a,
                                            const atto__layout *layout)
{
    atto__gradient pair[] = { { a->da, a->add_da, false }, { a->db, a->add_db, true } };
    atto__gradients_order(pair, &a->dy, 1);
    ATTO_TRY(where_gradient(dev, a, layout, pair[0]));
    return where_gradient(dev, a, layout, pair[1]);
}

/* ---- compare ---- */

#define X(NAME, name, operator_)                        \
    static int32_t float_##name(float a, float b)       \
    {                                                   \
        return a operator_ b;                           \
    }                                                   \
    static int32_t integer_##name(int64_t a, int64_t b) \
    {                                                   \
        return a operator_ b;                           \
    }
ATTO_COMPARE_TABLE(X)
#undef X

static const struct {
    int32_t (*floats)(float a, float b);
    int32_t (*integers)(int64_t a, int64_t b);
} comparisons[] = {
#define X(NAME, name, operator_) { float_##name, integer_##name },
    ATTO_COMPARE_TABLE(X)
#undef X
};

static int64_t integer_at(span from, int32_t i)
{
    return from.dtype == ATTO_I32 ? ((const int32_t *)from.first)[i * from.stride]
                                  : ((const int64_t *)from.first)[i * from.stride];
}

static void compare_integers(const struct atto_compare_args *x, const block_at *at)
{
    const span a = span_of(x->a, at), b = x->b ? span_of(x->b, at) : a, to = span_of(x->y, at);
    int32_t *y = to.first;
    for (int32_t i = 0; i < at->n; i++)
        y[i * to.stride] = comparisons[x->kind].integers(
            integer_at(a, i), x->b ? integer_at(b, i) : (int64_t)x->value);
}

static void compare_floats(const struct atto_compare_args *x, const block_at *at)
{
    float a_buffer[ATTO_BLOCK], b_buffer[ATTO_BLOCK];
    const float *a = load_block(span_of(x->a, at), a_buffer);
    const float *b = load_operand(x->b, x->value, at, b_buffer);
    const span to = span_of(x->y, at);
    int32_t *y = to.first;
    for (int32_t i = 0; i < at->n; i++) y[i * to.stride] = comparisons[x->kind].floats(a[i], b[i]);
}

static void compare_block(const void *args, const block_at *at)
{
    const struct atto_compare_args *x = args;
    if (x->a->dtype == ATTO_I32 || x->a->dtype == ATTO_I64) {
        compare_integers(x, at);
    } else {
        compare_floats(x, at);
    }
}

atto_status ATTO_LEVEL_NAME(compare_forward)(atto_device *dev, const struct atto_compare_args *a,
                                             const atto__layout *layout)
{
    return for_each_block(dev, layout, compare_block, a);
}

/* Not reached: the check refuses it. */
atto_status ATTO_LEVEL_NAME(compare_backward)(atto_device *dev, const struct atto_compare_args *a,
                                              const atto__layout *layout)
{
    (void)dev, (void)a, (void)layout;
    return ATTO_E_UNSUPPORTED;
}
