/* SPDX-License-Identifier: MIT */
/* Padding on the CPU.
 *
 *   forward    y = x's element, or the value
 *   backward   dx = sum of dy over the elements of y that x's element became (+ dx)
 *
 * A unit of work is a piece of a row of the output, along the innermost axis.
 */
#include <string.h>

#include "backend_cpu/index.h"
#include "backend_cpu/vec.h"
#include "divide.h"
#include "padding.h"
#include "tensor.h"

#define COPIED 16384 /* elements of y in a piece */

typedef struct job {
    const struct atto_pad_args *a;
    atto__padding p;
    pad_axis inner;
    int64_t x_step[ATTO_MAX_RANK], y_step[ATTO_MAX_RANK];
    int64_t pieces; /* of a row */
    uint64_t value; /* its bits */
} job;

static job job_of(const struct atto_pad_args *a, const atto_tensor *x, const atto_tensor *y,
                  const atto__layout *layout)
{
    job j = { .a = a, .p = atto__padding_of(a, x, y, layout->channels_last) };
    j.inner = j.p.axis[j.p.count - 1];
    atto__padding_steps(&j.p, true, j.x_step);
    atto__padding_steps(&j.p, false, j.y_step);
    return j;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t greatest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- forward ---- */

static void put_value(char *to, uint64_t bits, size_t size, int64_t n)
{
    if (size == 2)
        for (int64_t i = 0; i < n; i++) ((uint16_t *)to)[i] = (uint16_t)bits;
    else if (size == 4)
        for (int64_t i = 0; i < n; i++) ((uint32_t *)to)[i] = (uint32_t)bits;
    else
        for (int64_t i = 0; i < n; i++) ((uint64_t *)to)[i] = bits;
}

static void put_one(char *to, const char *from, size_t size)
{
    if (size == 2)
        memcpy(to, from, 2);
    else if (size == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, 8);
}

/* First element of x's row from which row of y is taken; -1: the row is outside. */
static int64_t source_row(const job *j, int64_t row)
{
    int64_t at = 0;
    for (int32_t d = j->p.count - 2; d >= 0; d--) {
        const pad_axis *a = &j->p.axis[d];
        const int64_t i = pad_source((int)j->a->mode, *a, row % a->out);
        row /= a->out;
        if (i < 0) return -1;
        at += i * j->x_step[d];
    }
    return at;
}

/* Elements first to end - 1 of a row, which are outside. */
static void put_outside(const job *j, char *to, const char *from, size_t size, int64_t first,
                        int64_t end)
{
    if (end <= first) return;
    if (j->a->mode == ATTO_PAD_CONSTANT) {
        put_value(to, j->value, size, end - first);
        return;
    }
    for (int64_t o = first; o < end; o++, to += size)
        put_one(to, from + pad_source((int)j->a->mode, j->inner, o) * (int64_t)size, size);
}

static void forward_piece(const job *j, int64_t row, int64_t first, int64_t n)
{
    const size_t size = atto_dtype_size(j->a->y->dtype);
    const int64_t at = source_row(j, row), end = first + n;
    char *to = dense_span(j->a->y, row * j->inner.out + first, 1).first;
    if (at < 0 || j->inner.in == 0) { /* x may have no memory */
        put_value(to, j->value, size, n);
        return;
    }
    const char *from = dense_span(j->a->x, at, 1).first;
    const int64_t begin = least(greatest(j->inner.before, first), end);
    const int64_t behind = least(greatest(j->inner.before + j->inner.in, begin), end);
    put_outside(j, to, from, size, first, begin);
    if (behind > begin)
        memcpy(to + (begin - first) * (int64_t)size,
               from + (begin - j->inner.before) * (int64_t)size, (size_t)(behind - begin) * size);
    put_outside(j, to + (behind - first) * (int64_t)size, from, size, behind, end);
}

static void forward_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % j->pieces * COPIED;
        forward_piece(j, unit / j->pieces, first, least(j->inner.out - first, COPIED));
    }
}

atto_status ATTO_LEVEL_NAME(pad_forward)(atto_device *dev, const struct atto_pad_args *a,
                                         const atto__layout *layout)
{
    const int64_t n = atto_tensor_numel(a->y);
    job j = job_of(a, a->x, a->y, layout);
    j.pieces = atto__divide_up(j.inner.out, COPIED);
    j.value = atto__bits_of(a->y->dtype, a->value);
    dev->stats.launches++;
    atto__parallel_for(index_threads(dev, n), n / j.inner.out * j.pieces, forward_units, &j);
    return ATTO_OK;
}

/* ---- backward ---- */

/* Elements of x's rows: those before front_end and from back_begin on may be outside as well. */
static void edges_of(const job *j, int64_t *front_end, int64_t *back_begin)
{
    const pad_axis *a = &j->inner;
    const int64_t after = a->out - a->in - a->before;
    *front_end = 1, *back_begin = a->in - 1; /* replicate */
    if (j->a->mode == ATTO_PAD_REFLECT) *front_end = a->before + 1, *back_begin = a->in - 1 - after;
    if (j->a->mode == ATTO_PAD_CIRCULAR) *front_end = after, *back_begin = a->in - a->before;
}

/* What elements begin to end - 1, of which the first sum is that of number first, got outside. */
static void add_outside(const job *j, const void *dy, int64_t begin, int64_t end, int64_t first,
                        float *sum)
{
    for (int64_t i = begin; i < end; i++) {
        const int64_t count = pad_count((int)j->a->mode, j->inner, i);
        for (int64_t k = 0; k < count; k++) {
            const int64_t o = pad_target((int)j->a->mode, j->inner, i, k);
            if (o != i + j->inner.before) sum[i - first] += vec_one_as(dy, o, j->a->dy->dtype);
        }
    }
}

/* sum (+)= what n elements from first on get from a row of dy. */
static void add_row(const job *j, int64_t dy_at, int64_t first, int32_t n, bool adds, float *sum)
{
    const pad_axis *a = &j->inner;
    const int64_t end = first + n;
    const int64_t begin = least(greatest(first, -a->before), end);
    const int64_t behind = greatest(least(end, a->out - a->before), begin);
    float buffer[ATTO_BLOCK];
    if (behind == begin) { /* dy may have no memory */
        if (!adds) memset(sum, 0, (size_t)n * sizeof *sum);
        return;
    }
    const float *dy = load_block(
        dense_span(j->a->dy, dy_at + begin + a->before, (int32_t)(behind - begin)), buffer);
    float *inside = sum + (begin - first);
    if (adds) {
        for (int64_t i = 0; i < behind - begin; i++) inside[i] += dy[i];
    } else {
        memset(sum, 0, (size_t)(begin - first) * sizeof *sum);
        memcpy(inside, dy, (size_t)(behind - begin) * sizeof *sum);
        memset(sum + (behind - first), 0, (size_t)(end - behind) * sizeof *sum);
    }
    if (j->a->mode == ATTO_PAD_CONSTANT || !j->p.is_padded[j->p.count - 1]) return;
    int64_t front_end, back_begin;
    edges_of(j, &front_end, &back_begin);
    const void *row = dense_span(j->a->dy, dy_at, 1).first;
    add_outside(j, row, first, least(front_end, end), first, sum);
    add_outside(j, row, greatest(greatest(back_begin, front_end), first), end, first, sum);
}

/* Whether n elements from first on are what a row of dy has there, and nothing else. */
static bool is_copy(const job *j, int64_t first, int64_t n)
{
    const pad_axis *a = &j->inner;
    const bool inside = first + a->before >= 0 && first + n + a->before <= a->out;
    return inside && !j->a->add_dx &&
           (j->a->mode == ATTO_PAD_CONSTANT || !j->p.is_padded[j->p.count - 1]);
}

/* The rows of dy that a row of dx gets, by the axes around it. */
typedef struct origin {
    int64_t place[ATTO_MAX_RANK], count[ATTO_MAX_RANK], rows;
} origin;

static origin origin_of(const job *j, int64_t row)
{
    origin g = { .rows = 1 };
    for (int32_t d = j->p.count - 2; d >= 0; d--) {
        g.place[d] = row % j->p.axis[d].in;
        row /= j->p.axis[d].in;
        g.count[d] = pad_count((int)j->a->mode, j->p.axis[d], g.place[d]);
        g.rows *= g.count[d];
    }
    return g;
}

/* Where number k of them begins. */
static int64_t origin_row(const job *j, const origin *g, int64_t k)
{
    int64_t at = 0;
    for (int32_t d = j->p.count - 2; d >= 0; d--) {
        at +=
            pad_target((int)j->a->mode, j->p.axis[d], g->place[d], k % g->count[d]) * j->y_step[d];
        k /= g->count[d];
    }
    return at;
}

static void backward_piece(const job *j, int64_t row, int64_t first, int32_t n)
{
    float buffer[ATTO_BLOCK], old[ATTO_BLOCK];
    const origin g = origin_of(j, row);
    const span to = dense_span(j->a->dx, row * j->inner.in + first, n);
    if (g.rows == 1 && is_copy(j, first, n)) {
        const int64_t at = origin_row(j, &g, 0) + first + j->inner.before;
        memcpy(to.first, dense_span(j->a->dy, at, n).first, (size_t)n * atto_dtype_size(to.dtype));
        return;
    }
    float *sum = j->a->add_dx ? buffer : store_target(to, buffer);
    if (g.rows == 0) memset(sum, 0, (size_t)n * sizeof *sum); /* cut off */
    for (int64_t k = 0; k < g.rows; k++) add_row(j, origin_row(j, &g, k), first, n, k > 0, sum);
    if (j->a->add_dx) accumulate_block(sum, to, old);
    store_block(sum, to);
}

static void backward_units(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = unit % j->pieces * ATTO_BLOCK;
        backward_piece(j, unit / j->pieces, first, (int32_t)least(j->inner.in - first, ATTO_BLOCK));
    }
}

atto_status ATTO_LEVEL_NAME(pad_backward)(atto_device *dev, const struct atto_pad_args *a,
                                          const atto__layout *layout)
{
    const int64_t n = atto_tensor_numel(a->dx);
    job j = job_of(a, a->dx, a->dy, layout);
    j.pieces = atto__divide_up(j.inner.in, ATTO_BLOCK);
    dev->stats.launches++;
    atto__parallel_for(index_threads(dev, n), n / j.inner.in * j.pieces, backward_units, &j);
    return ATTO_OK;
}
