/* SPDX-License-Identifier: MIT */
/* Softmax on the CPU.
 *
 *   forward    softmax      y = e / sum of e,  e = e^(x - max x)
 *              log_softmax  y = (x - max x) - log(sum of e)
 *   backward   softmax      dx = y (dy - sum of dy y)
 *              log_softmax  dx = dy - e^y (sum of dy)
 * softmin is softmax of -x.
 *
 * Where elements along dim are neighbours a thread takes a row at a time, in blocks of up to 1024;
 * else as many columns side by side as fit the room, one element of each at a time. */
#include <float.h>

#include <attocl/softmax.h>

#include "axis.h"
#include "backend_cpu/rows.h"
#include "backend_cpu/stream.h"

/* Floats of one row, or of columns side by side, that a thread keeps. */
#define ROOM (8 * ATTO_BLOCK)

typedef struct job {
    const struct atto_softmax_args *a;
    atto__axis axis;
    int32_t width; /* columns side by side; 0: rows */
    int64_t per_outer;
    bool streams; /* the result passes the caches by */
    bool add;     /* to what is there: gradients */
} job;

static float sign_of(const job *j)
{
    return j->a->kind == ATTO_SOFTMAX_MIN ? -1.0f : 1.0f;
}

static bool is_log(const job *j)
{
    return j->a->kind == ATTO_SOFTMAX_LOG;
}

static span span_at(const atto_tensor *t, int64_t at, int64_t stride, int32_t n)
{
    char *memory = atto__memory(t);
    return (span){ memory + (t->offset + at) * (int64_t)atto_dtype_size(t->dtype), stride, n,
                   t->dtype };
}

static int32_t block_of(int64_t left)
{
    return (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
}

/* Where results go before put: in place, unless something is to be done with them on the way. */
static float *target_of(const job *j, span to, float *buffer)
{
    return j->streams || j->add ? buffer : store_target(to, buffer);
}

static void put(const job *j, float *values, span to)
{
    float buffer[ATTO_BLOCK];
    if (j->add) accumulate_block(values, to, buffer);
    put_block(values, to, j->streams);
}

/* The block as floats with the sign that the kind gives them. */
static const float *load_signed(const job *j, span s, float *buffer)
{
    const float *x = load_block(s, buffer);
    if (j->a->kind != ATTO_SOFTMAX_MIN) return x;
    ATTO_SIMD
    for (int32_t i = 0; i < s.n; i++) buffer[i] = -x[i];
    return buffer;
}

/* ---- rows, forward ---- */

/* to = f e^(x - top) */
static void shares_block(const float *x, float top, float factor, float *to, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) to[i] = factor * attop_exp_share(x[i] - top);
}

static void logs_block(const float *x, float top, float log_sum, float *to, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) to[i] = (x[i] - top) - log_sum;
}

static void scale_block(const float *e, float factor, float *to, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) to[i] = factor * e[i];
}

/* Longer rows keep their e in y, where a second-level cache still has it when it is scaled. */
#define KEPT (256 * ATTO_BLOCK)

/* What a pass over a row leaves: its maximum, the sum of e^(x - top), and if there is a place for
 * it, each block's e relative to the maximum so far. */
typedef struct pass {
    float top, sum;
    float *e; /* NULL: computed again */
    float tops[KEPT / ATTO_BLOCK];
    float room[ROOM];
} pass;

static float *place_of_e(const job *j, int64_t row, pass *p)
{
    const int64_t n = j->axis.size;
    if (is_log(j) || n > KEPT) return NULL;
    if (n <= ROOM) return p->room;
    return j->a->y->dtype == ATTO_F32 ? span_at(j->a->y, row * n, 1, 0).first : NULL;
}

/* The sum is scaled down when a block has a larger maximum. It starts at a finite number, since
 * -inf - -inf is NaN; a NaN that the maximum drops comes back in the sum. */
static void read_row(const job *j, int64_t row, pass *p)
{
    const int64_t n = j->axis.size;
    float buffer[ATTO_BLOCK];
    p->top = -FLT_MAX, p->sum = 0.0f, p->e = place_of_e(j, row, p);
    for (int64_t first = 0; first < n; first += ATTO_BLOCK) {
        const span s = span_at(j->a->x, row * n + first, 1, block_of(n - first));
        const float *x = load_signed(j, s, buffer);
        float *e = p->e ? p->e + first : p->room;
        const float larger = block_max(p->top, x, s.n);
        shares_block(x, larger, 1.0f, e, s.n);
        p->sum = p->sum * attop_exp_share(p->top - larger) + block_sum(e, s.n);
        p->top = larger;
        if (p->e) p->tops[first / ATTO_BLOCK] = larger;
    }
}

static void forward_row(const job *j, int64_t row, pass *p)
{
    const int64_t n = j->axis.size;
    float buffer[ATTO_BLOCK], out[ATTO_BLOCK];
    read_row(j, row, p);
    const float log_sum = attop_log(p->sum), factor = 1.0f / p->sum;
    for (int64_t first = 0; first < n; first += ATTO_BLOCK) {
        const int32_t count = block_of(n - first);
        const span to = span_at(j->a->y, row * n + first, 1, count);
        const bool in_place = p->e && p->e != p->room;
        float *y = in_place ? to.first : target_of(j, to, out);
        prefetch_block(span_at(j->a->x, (row + 1) * n + first, 1, count));
        if (p->e) {
            const float down = attop_exp_share(p->tops[first / ATTO_BLOCK] - p->top);
            scale_block(p->e + first, down * factor, y, count);
        } else {
            const float *x = load_signed(j, span_at(j->a->x, row * n + first, 1, count), buffer);
            if (is_log(j)) logs_block(x, p->top, log_sum, y, count);
            if (!is_log(j)) shares_block(x, p->top, factor, y, count);
        }
        if (!in_place) put(j, y, to);
    }
}

/* Rows of at most a block: nothing is scaled, and nothing kept. */
static void forward_short_row(const job *j, const float *x, float *y, int32_t n)
{
    const float top = block_max(-FLT_MAX, x, n);
    shares_block(x, top, 1.0f, y, n);
    const float sum = block_sum(y, n);
    if (is_log(j)) {
        logs_block(x, top, attop_log(sum), y, n);
    } else {
        scale_block(y, 1.0f / sum, y, n);
    }
}

/* As many of them as a block has room for are loaded and stored at once. */
static int32_t rows_together(const job *j, int64_t left)
{
    const int64_t fit = ATTO_BLOCK / j->axis.size;
    return (int32_t)(left < fit ? left : fit);
}

static void forward_short_rows(const job *j, int64_t begin, int64_t end)
{
    const int32_t n = (int32_t)j->axis.size;
    float buffer[ATTO_BLOCK], out[ATTO_BLOCK];
    for (int64_t row = begin; row < end;) {
        const int32_t rows = rows_together(j, end - row);
        const span to = span_at(j->a->y, row * n, 1, rows * n);
        const float *x = load_signed(j, span_at(j->a->x, row * n, 1, rows * n), buffer);
        float *y = target_of(j, to, out);
        prefetch_block(span_at(j->a->x, (row + rows) * n, 1, rows * n));
        for (int32_t r = 0; r < rows; r++) forward_short_row(j, x + r * n, y + r * n, n);
        put(j, y, to);
        row += rows;
    }
}

static void forward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    pass p;
    if (j->axis.size <= ATTO_BLOCK) {
        forward_short_rows(j, begin, end);
    } else {
        for (int64_t row = begin; row < end; row++) forward_row(j, row, &p);
    }
    end_stream();
}

/* ---- rows, backward ---- */

static void products_block(const float *a, const float *b, float *to, int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) to[i] = a[i] * b[i];
}

/* dx = sign y (dy - t), or dy - e^y t */
static void gradient_block(const job *j, const float *y, const float *dy, float t, float *dx,
                           int32_t n)
{
    const float sign = sign_of(j);
    if (is_log(j)) {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) dx[i] = dy[i] - attop_exp_share(y[i]) * t;
    } else {
        ATTO_SIMD
        for (int32_t i = 0; i < n; i++) dx[i] = sign * y[i] * (dy[i] - t);
    }
}

/* Softmax's gradient goes straight past the caches where y and dy are floats. */
static bool goes_straight(const job *j)
{
    return j->streams && !j->add && !is_log(j);
}

/* Asks the second-level cache for an element: the first one is full of the present rows. */
static void ask_for(const float *from, int64_t at)
{
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)at * sizeof *from), 0, 2);
}

/* Elements that lie so far ahead are asked for; 0: none. */
static void stream_gradient(const job *j, const float *y, const float *dy, float t, float *dx,
                            int32_t n, int64_t ahead)
{
    const vec sign = vec_all(sign_of(j)), sum = vec_all(t);
    int32_t i = 0;
    for (; i < n && (uintptr_t)(dx + i) % sizeof(vec) != 0; i++)
        dx[i] = sign_of(j) * y[i] * (dy[i] - t);
    for (; i + 16 <= n; i += 16) {
        if (ahead) ask_for(y, i + ahead);
        if (ahead) ask_for(dy, i + ahead);
        VEC_UNROLL
        for (int32_t k = 0; k < 16; k += VEC_LANES)
            vec_stream(dx + i + k, sign * vec_load(y + i + k) * (vec_load(dy + i + k) - sum));
    }
    for (; i < n; i++) dx[i] = sign_of(j) * y[i] * (dy[i] - t);
}

static float sum_row(const job *j, int64_t row)
{
    const int64_t n = j->axis.size;
    float sum = 0.0f, y_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK];
    for (int64_t first = 0; first < n; first += ATTO_BLOCK) {
        const int32_t count = block_of(n - first);
        const float *dy = load_block(span_at(j->a->dy, row * n + first, 1, count), dy_buffer);
        if (is_log(j)) {
            sum += block_sum(dy, count);
        } else {
            const float *y = load_block(span_at(j->a->y, row * n + first, 1, count), y_buffer);
            sum += block_dot(y, dy, count);
        }
    }
    return sum;
}

static void backward_row(const job *j, int64_t row)
{
    const int64_t n = j->axis.size;
    const float t = sum_row(j, row);
    float y_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK], out[ATTO_BLOCK];
    for (int64_t first = 0; first < n; first += ATTO_BLOCK) {
        const int32_t count = block_of(n - first);
        const int64_t at = row * n + first;
        const span to = span_at(j->a->dx, at, 1, count);
        const float *y = load_block(span_at(j->a->y, at, 1, count), y_buffer);
        const float *dy = load_block(span_at(j->a->dy, at, 1, count), dy_buffer);
        if (goes_straight(j)) {
            stream_gradient(j, y, dy, t, to.first, count, 0); /* loads are seen coming */
            continue;
        }
        float *dx = target_of(j, to, out);
        prefetch_block(span_at(j->a->y, at + n, 1, count));
        prefetch_block(span_at(j->a->dy, at + n, 1, count));
        gradient_block(j, y, dy, t, dx, count);
        put(j, dx, to);
    }
}

static void backward_short_rows(const job *j, int64_t begin, int64_t end)
{
    const int32_t n = (int32_t)j->axis.size;
    float y_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK], out[ATTO_BLOCK];
    for (int64_t row = begin; row < end;) {
        const int32_t rows = rows_together(j, end - row);
        const int64_t at = row * n, next = (row + rows) * n;
        const span to = span_at(j->a->dx, at, 1, rows * n);
        const float *y = load_block(span_at(j->a->y, at, 1, rows * n), y_buffer);
        const float *dy = load_block(span_at(j->a->dy, at, 1, rows * n), dy_buffer);
        float *dx = goes_straight(j) ? to.first : target_of(j, to, out);
        if (!goes_straight(j)) {
            prefetch_block(span_at(j->a->y, next, 1, rows * n));
            prefetch_block(span_at(j->a->dy, next, 1, rows * n));
        }
        for (int32_t first = 0; first < rows * n; first += n) {
            const float *y_row = y + first, *dy_row = dy + first;
            const float t = is_log(j) ? block_sum(dy_row, n) : block_dot(y_row, dy_row, n);
            if (goes_straight(j))
                stream_gradient(j, y_row, dy_row, t, dx + first, n, rows * n);
            else
                gradient_block(j, y_row, dy_row, t, dx + first, n);
        }
        if (!goes_straight(j)) put(j, dx, to);
        row += rows;
    }
}

static void backward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    if (j->axis.size <= ATTO_BLOCK) {
        backward_short_rows(j, begin, end);
    } else {
        for (int64_t row = begin; row < end; row++) backward_row(j, row);
    }
    end_stream();
}

/* ---- columns ---- */

/* Element c of n columns side by side, of the columns of unit `unit`. */
typedef struct columns {
    int64_t first; /* of element 0 */
    int32_t n;
} columns;

static columns columns_of(const job *j, int64_t unit)
{
    const int64_t outer = unit / j->per_outer, inner = unit % j->per_outer * j->width;
    const int64_t left = j->axis.step - inner;
    return (columns){ outer * j->axis.size * j->axis.step + inner,
                      (int32_t)(left < j->width ? left : j->width) };
}

static span element_of(const job *j, const atto_tensor *t, columns k, int64_t c)
{
    return span_at(t, k.first + c * j->axis.step, 1, k.n);
}

static void fill(float *to, float value, int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i] = value;
}

static void tops_of(const job *j, columns k, float *top)
{
    float buffer[ATTO_BLOCK];
    fill(top, -FLT_MAX, k.n);
    for (int64_t c = 0; c < j->axis.size; c++) {
        const float *x = load_signed(j, element_of(j, j->a->x, k, c), buffer);
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) top[i] = x[i] > top[i] ? x[i] : top[i];
    }
}

/* e[c] = e^(x - top) where all of them fit the room. */
static void sums_of(const job *j, columns k, const float *top, float *sum, float *e)
{
    float buffer[ATTO_BLOCK];
    const bool fits = j->axis.size * k.n <= ROOM;
    fill(sum, 0.0f, k.n);
    for (int64_t c = 0; c < j->axis.size; c++) {
        const float *x = load_signed(j, element_of(j, j->a->x, k, c), buffer);
        float *to = e + (fits ? c * k.n : 0);
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) {
            to[i] = attop_exp_share(x[i] - top[i]);
            sum[i] += to[i];
        }
    }
}

/* last: the log of the sum, or what to multiply by. */
static void results_of(const job *j, columns k, int64_t c, const float *top, const float *last,
                       const float *e, float *y)
{
    float buffer[ATTO_BLOCK];
    if (!is_log(j) && j->axis.size * k.n <= ROOM) {
        products_block(e + c * k.n, last, y, k.n);
        return;
    }
    const float *x = load_signed(j, element_of(j, j->a->x, k, c), buffer);
    if (is_log(j)) {
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) y[i] = (x[i] - top[i]) - last[i];
    } else {
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) y[i] = last[i] * attop_exp_share(x[i] - top[i]);
    }
}

static void forward_columns(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    float e[ROOM], top[ATTO_BLOCK], sum[ATTO_BLOCK], out[ATTO_BLOCK];
    for (int64_t unit = begin; unit < end; unit++) {
        const columns k = columns_of(j, unit);
        tops_of(j, k, top);
        sums_of(j, k, top, sum, e);
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) sum[i] = is_log(j) ? attop_log(sum[i]) : 1.0f / sum[i];
        for (int64_t c = 0; c < j->axis.size; c++) {
            const span to = element_of(j, j->a->y, k, c);
            float *y = target_of(j, to, out);
            results_of(j, k, c, top, sum, e, y);
            put(j, y, to);
        }
    }
    end_stream();
}

static void column_sums_of(const job *j, columns k, float *sum)
{
    float y_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK];
    fill(sum, 0.0f, k.n);
    for (int64_t c = 0; c < j->axis.size; c++) {
        const float *dy = load_block(element_of(j, j->a->dy, k, c), dy_buffer);
        if (is_log(j)) {
            ATTO_SIMD
            for (int32_t i = 0; i < k.n; i++) sum[i] += dy[i];
        } else {
            const float *y = load_block(element_of(j, j->a->y, k, c), y_buffer);
            ATTO_SIMD
            for (int32_t i = 0; i < k.n; i++) sum[i] += y[i] * dy[i];
        }
    }
}

static void column_gradients_of(const job *j, columns k, int64_t c, const float *sum, float *dx)
{
    float y_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK];
    const float sign = sign_of(j);
    const float *y = load_block(element_of(j, j->a->y, k, c), y_buffer);
    const float *dy = load_block(element_of(j, j->a->dy, k, c), dy_buffer);
    if (is_log(j)) {
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) dx[i] = dy[i] - attop_exp_share(y[i]) * sum[i];
    } else {
        ATTO_SIMD
        for (int32_t i = 0; i < k.n; i++) dx[i] = sign * y[i] * (dy[i] - sum[i]);
    }
}

static void backward_columns(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    float sum[ATTO_BLOCK], out[ATTO_BLOCK];
    for (int64_t unit = begin; unit < end; unit++) {
        const columns k = columns_of(j, unit);
        column_sums_of(j, k, sum);
        for (int64_t c = 0; c < j->axis.size; c++) {
            const span to = element_of(j, j->a->dx, k, c);
            float *dx = target_of(j, to, out);
            column_gradients_of(j, k, c, sum, dx);
            put(j, dx, to);
        }
    }
    end_stream();
}

/* ---- calls ---- */

/* Columns side by side: all of their elements fit the room if 16 or more of them do. */
static int32_t width_for(int64_t size)
{
    const int64_t fit = ROOM / size / 16 * 16;
    return (int32_t)(fit < 16 ? 256 : fit > ATTO_BLOCK ? ATTO_BLOCK : fit);
}

static job job_of(const struct atto_softmax_args *a, bool add)
{
    job j = { a, atto__axis_of(a->y, a->dim), 0, 1, streams_to(a->y), add };
    if (j.axis.step == 1) return j;
    j.width = width_for(j.axis.size);
    j.per_outer = (j.axis.step + j.width - 1) / j.width;
    return j;
}

static atto_status run(atto_device *dev, const job *j, atto__range_fn by_row,
                       atto__range_fn by_column)
{
    const int64_t units = j->axis.outer * j->per_outer;
    const int64_t elements = j->axis.outer * j->axis.size * j->axis.step;
    const int32_t threads = elements < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
    dev->stats.launches++;
    atto__parallel_for(threads, units, j->width == 0 ? by_row : by_column, j);
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(softmax_forward)(atto_device *dev, const struct atto_softmax_args *a,
                                             const atto__layout *layout)
{
    (void)layout;
    const job j = job_of(a, false);
    return run(dev, &j, forward_rows, forward_columns);
}

atto_status ATTO_LEVEL_NAME(softmax_backward)(atto_device *dev, const struct atto_softmax_args *a,
                                              const atto__layout *layout)
{
    (void)layout;
    const job j = job_of(a, a->add_dx);
    return run(dev, &j, backward_rows, backward_columns);
}
