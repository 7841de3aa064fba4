/* SPDX-License-Identifier: MIT */
/* Rotary position embedding on the CPU.
 *
 *   to_u = u cos - v sin
 *   to_v = v cos + u sin     (+ to)     sin times sign: 1 forward, of x to y; -1 backward, of dy to dx
 *
 * Row by row, in the order in which rows lie in the output. Both elements of a pair are loaded before
 * either is stored, so an output may be the input.
 */
#include "rope.h"

#include <math.h>
#include <string.h>

#include "backend_cpu/index.h"
#include "backend_cpu/stream.h"

#define PAIRS 256 /* of a block */

typedef struct job {
    const atto__turn *t;
    atomic_uint *errors; /* the device's error word */
    bool heads_inside;   /* heads of a position are neighbours; else positions of a head are */
    bool past_cache;
} job;

/* A head's elements at one position. */
typedef struct row {
    int64_t from, to;       /* elements of the tensors */
    const float *cos, *sin; /* NULL: nothing is turned */
} row;

static int64_t element_of(const atto_tensor *t, int64_t b, int64_t h, int64_t l)
{
    return b * t->stride[0] + h * t->stride[1] + l * t->stride[2];
}

static const float *table_row(const atto_tensor *table, int64_t p)
{
    return (const float *)dense_span(table, p * table->stride[0], 1).first;
}

/* ---- pairs, in storage of a dtype: a constant where these are inlined ---- */

ATTO_INLINE void put_one(void *to, int32_t i, float value, atto_dtype dtype)
{
    if (dtype == ATTO_F16)
        ((uint16_t *)to)[i] = attom_f32_to_f16(value);
    else if (dtype == ATTO_BF16)
        ((uint16_t *)to)[i] = attom_f32_to_bf16(value);
    else
        ((float *)to)[i] = value;
}

/* A result, or what stands there and the result. */
ATTO_INLINE void give_one(void *to, int32_t i, float value, atto_dtype dtype, bool add)
{
    put_one(to, i, add ? vec_one_as(to, i, dtype) + value : value, dtype);
}

ATTO_INLINE void turn_as(const void *from_u, const void *from_v, void *to_u, void *to_v,
                         const float *c, const float *s, float sign, int32_t n, atto_dtype dtype,
                         bool add)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) {
        const float u = vec_one_as(from_u, i, dtype), v = vec_one_as(from_v, i, dtype);
        const float sine = sign * s[i];
        give_one(to_u, i, u * c[i] - v * sine, dtype, add);
        give_one(to_v, i, v * c[i] + u * sine, dtype, add);
    }
}

ATTO_INLINE void turn_either(const void *from_u, const void *from_v, void *to_u, void *to_v,
                             const float *c, const float *s, float sign, int32_t n,
                             atto_dtype dtype, bool add)
{
    if (add)
        turn_as(from_u, from_v, to_u, to_v, c, s, sign, n, dtype, true);
    else
        turn_as(from_u, from_v, to_u, to_v, c, s, sign, n, dtype, false);
}

static void turn_halves(const void *from_u, const void *from_v, void *to_u, void *to_v,
                        const float *c, const float *s, float sign, int32_t n, atto_dtype dtype,
                        bool add)
{
    if (dtype == ATTO_F16)
        turn_either(from_u, from_v, to_u, to_v, c, s, sign, n, ATTO_F16, add);
    else if (dtype == ATTO_BF16)
        turn_either(from_u, from_v, to_u, to_v, c, s, sign, n, ATTO_BF16, add);
    else
        turn_either(from_u, from_v, to_u, to_v, c, s, sign, n, ATTO_F32, add);
}

static void turn_neighbours(const float *x, float *to, const float *c, const float *s, float sign,
                            int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) {
        const float u = x[2 * i], v = x[2 * i + 1], sine = sign * s[i];
        to[2 * i] = u * c[i] - v * sine;
        to[2 * i + 1] = v * c[i] + u * sine;
    }
}

/* ---- blocks ---- */

/* Past the caches results go through a buffer. */
static void halves_block(const job *j, const row *r, int64_t i, int32_t n)
{
    const atto__turn *t = j->t;
    float out_u[PAIRS], out_v[PAIRS];
    const span to_u = dense_span(t->to, r->to + i, n);
    const span to_v = dense_span(t->to, r->to + t->half + i, n);
    const span from_u = dense_span(t->from, r->from + i, n);
    const span from_v = dense_span(t->from, r->from + t->half + i, n);
    turn_halves(from_u.first, from_v.first, j->past_cache ? out_u : to_u.first,
                j->past_cache ? out_v : to_v.first, r->cos + i, r->sin + i, t->sign, n, to_u.dtype,
                t->add);
    if (!j->past_cache) return;
    stream_block(out_u, to_u.first, n);
    stream_block(out_v, to_v.first, n);
}

/* 16 bits are widened first: compilers do not take such neighbours apart in vectors. */
static void neighbours_block(const job *j, const row *r, int64_t i, int32_t n)
{
    const atto__turn *t = j->t;
    float in[2 * PAIRS], out[2 * PAIRS], old[2 * PAIRS];
    const span to = dense_span(t->to, r->to + 2 * i, 2 * n);
    const float *x = load_block(dense_span(t->from, r->from + 2 * i, 2 * n), in);
    float *turned = t->add || j->past_cache ? out : store_target(to, out);
    turn_neighbours(x, turned, r->cos + i, r->sin + i, t->sign, n);
    if (t->add) accumulate_block(turned, to, old);
    put_block(turned, to, j->past_cache);
}

/* Elements that are not turned. */
static void copy_block(const job *j, const row *r, int64_t i, int32_t n)
{
    float in[2 * PAIRS], out[2 * PAIRS], old[2 * PAIRS];
    const span to = dense_span(j->t->to, r->to + i, n);
    const float *x = load_block(dense_span(j->t->from, r->from + i, n), in);
    if (j->t->add) {
        memcpy(out, x, (size_t)n * sizeof *out);
        accumulate_block(out, to, old);
        store_block(out, to);
    } else {
        put_block(x, to, j->past_cache);
    }
}

static void nan_block(const job *j, const row *r, int64_t i, int32_t n)
{
    float out[2 * PAIRS];
    for (int32_t k = 0; k < n; k++) out[k] = NAN;
    store_block(out, dense_span(j->t->to, r->to + i, n));
}

/* The block over elements (or pairs) from first to end - 1, at most so many at a time. */
static void each_block(const job *j, const row *r, int64_t first, int64_t end, int64_t most,
                       void (*block)(const job *j, const row *r, int64_t i, int32_t n))
{
    for (int64_t i = first; i < end; i += most)
        block(j, r, i, (int32_t)(end - i < most ? end - i : most));
}

/* ---- rows ---- */

/* The row of the tables; -1 where there is none, of which the device learns. */
static int64_t position_of(const job *j, int64_t b, int64_t l)
{
    const atto__turn *t = j->t;
    if (!t->position) return t->offset + l;
    return index_of(t->position, b * t->position_batch + l * t->position_step, t->rows, j->errors);
}

static void turn_row(const job *j, int64_t b, int64_t h, int64_t l)
{
    const atto__turn *t = j->t;
    const int64_t p = position_of(j, b, l);
    row r = { element_of(t->from, b, h, l), element_of(t->to, b, h, l), NULL, NULL };
    if (p < 0) {
        each_block(j, &r, 0, t->d, 2 * PAIRS, nan_block);
        return;
    }
    if (t->half > 0) {
        r.cos = table_row(t->cos, p);
        r.sin = table_row(t->sin, p);
        each_block(j, &r, 0, t->half, PAIRS, t->neighbours ? neighbours_block : halves_block);
    }
    each_block(j, &r, 2 * t->half, t->d, 2 * PAIRS, copy_block);
}

static void turn_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t heads = j->t->heads, length = j->t->length;
    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / (heads * length), rest = i % (heads * length);
        if (j->heads_inside)
            turn_row(j, b, rest % heads, rest / heads);
        else
            turn_row(j, b, rest / length, rest % length);
    }
    end_stream();
}

static atto_status run(atto_device *dev, const atto__turn *t)
{
    const bool fresh = !t->add && t->from->buffer != t->to->buffer;
    const job j = { t, dev->error_word->memory, t->heads > 1 && t->to->stride[1] < t->to->stride[2],
                    fresh && streams_to(t->to) };
    dev->stats.launches++;
    atto__parallel_for(index_threads(dev, atto_tensor_numel(t->to)),
                       t->batches * t->heads * t->length, turn_rows, &j);
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(rope_forward)(atto_device *dev, const struct atto_rope_args *a,
                                          const atto__layout *layout)
{
    const atto__turn t = atto__turn_of(a, false);
    (void)layout;
    return run(dev, &t);
}

atto_status ATTO_LEVEL_NAME(rope_backward)(atto_device *dev, const struct atto_rope_args *a,
                                           const atto__layout *layout)
{
    const atto__turn t = atto__turn_of(a, true);
    (void)layout;
    return run(dev, &t);
}
