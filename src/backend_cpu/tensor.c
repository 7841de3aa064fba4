/* SPDX-License-Identifier: MIT */
/* Copying with conversion, and filling, on the CPU. */
#include <math.h>
#include <string.h>

#include "backend_cpu/stream.h"
#include "backend_cpu/turned.h"

typedef struct copy_job {
    const atto_tensor *to, *from;
    uint64_t bits; /* fill only */
} copy_job;

/* ---- same dtype: bits move ---- */

static void move_2(const uint16_t *from, int64_t from_stride, uint16_t *to, int64_t to_stride,
                   int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i * to_stride] = from[i * from_stride];
}

static void move_4(const uint32_t *from, int64_t from_stride, uint32_t *to, int64_t to_stride,
                   int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i * to_stride] = from[i * from_stride];
}

static void move_8(const uint64_t *from, int64_t from_stride, uint64_t *to, int64_t to_stride,
                   int32_t n)
{
    for (int32_t i = 0; i < n; i++) to[i * to_stride] = from[i * from_stride];
}

static void move(span from, span to)
{
    const size_t bytes = atto_dtype_size(to.dtype);
    if (from.stride == 1 && to.stride == 1) {
        memcpy(to.first, from.first, (size_t)to.n * bytes);
    } else if (bytes == 2) {
        move_2(from.first, from.stride, to.first, to.stride, to.n);
    } else if (bytes == 4) {
        move_4(from.first, from.stride, to.first, to.stride, to.n);
    } else {
        move_8(from.first, from.stride, to.first, to.stride, to.n);
    }
}

/* ---- conversions: floats through float, integers through int64 ---- */

static int64_t round_down(float value, int64_t lowest, int64_t highest)
{
    if (value != value) return 0;
    if (value <= (float)lowest) return lowest;
    if (value >= (float)highest) return highest;
    return (int64_t)value;
}

static void store_integers(const float *from, span to)
{
    int32_t *to32 = to.first;
    int64_t *to64 = to.first;
    for (int32_t i = 0; i < to.n; i++) {
        if (to.dtype == ATTO_I32) {
            to32[i * to.stride] = (int32_t)round_down(from[i], INT32_MIN, INT32_MAX);
        } else {
            to64[i * to.stride] = round_down(from[i], INT64_MIN, INT64_MAX);
        }
    }
}

static int64_t integer_at(span from, int32_t i)
{
    const int32_t *from32 = from.first;
    const int64_t *from64 = from.first;
    return from.dtype == ATTO_I32 ? from32[i * from.stride] : from64[i * from.stride];
}

/* value as a float that rounds to f16 and bf16 as value itself would: cut to 24 bits, the last one
 * set if anything was cut (rounding to odd). Two roundings to nearest can end one place off. */
static float to_odd_float(int64_t value)
{
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    int32_t shift = 0;
    uint64_t lost = 0;
    for (; size >> 24; shift++) {
        lost |= size & 1;
        size >>= 1;
    }
    const float magnitude = ldexpf((float)(size | lost), shift);
    return value < 0 ? -magnitude : magnitude;
}

static int32_t saturate(int64_t value)
{
    return (int32_t)(value < INT32_MIN ? INT32_MIN : value > INT32_MAX ? INT32_MAX : value);
}

static void convert_integers(span from, span to)
{
    int32_t *to32 = to.first;
    int64_t *to64 = to.first;
    for (int32_t i = 0; i < to.n; i++) {
        const int64_t value = integer_at(from, i);
        if (to.dtype == ATTO_I32) {
            to32[i * to.stride] = saturate(value);
        } else {
            to64[i * to.stride] = value;
        }
    }
}

static bool is_integer(atto_dtype dtype)
{
    return dtype == ATTO_I32 || dtype == ATTO_I64;
}

static void convert(span from, span to)
{
    float buffer[ATTO_BLOCK];
    const float *values = buffer;
    if (is_integer(from.dtype) && is_integer(to.dtype)) {
        convert_integers(from, to);
        return;
    }
    if (is_integer(from.dtype)) {
        for (int32_t i = 0; i < from.n; i++) {
            const int64_t value = integer_at(from, i);
            buffer[i] = to.dtype == ATTO_F32 ? (float)value : to_odd_float(value);
        }
    } else {
        values = load_block(from, buffer);
    }
    if (is_integer(to.dtype)) {
        store_integers(values, to);
    } else {
        store_block(values, to);
    }
}

static void copy_block(const void *job_, const block_at *at)
{
    const copy_job *job = job_;
    const span from = input_of(job->from, at), to = span_of(job->to, at);
    if (at->tile && to.stride == 1 && streams_to(job->to)) {
        stream_block(from.first, to.first, to.n);
    } else if (from.dtype == to.dtype) {
        move(from, to);
    } else {
        convert(from, to);
    }
}

static void fill_block(const void *job_, const block_at *at)
{
    const copy_job *job = job_;
    const span to = span_of(job->to, at);
    uint16_t as16 = (uint16_t)job->bits;
    uint32_t as32 = (uint32_t)job->bits;
    uint64_t as64 = job->bits;
    switch (atto_dtype_size(to.dtype)) {
    case 2:
        move_2(&as16, 0, to.first, to.stride, to.n);
        break;
    case 4:
        move_4(&as32, 0, to.first, to.stride, to.n);
        break;
    default:
        move_8(&as64, 0, to.first, to.stride, to.n);
        break;
    }
}

atto_status ATTO_LEVEL_NAME(copy)(atto_device *dev, const atto_tensor *dst, const atto_tensor *src,
                                  const atto__layout *layout)
{
    const copy_job job = { dst, src, 0 };
    return for_each_tile(dev, layout, src, NULL, copy_block, &job);
}

atto_status ATTO_LEVEL_NAME(fill)(atto_device *dev, const atto_tensor *dst, uint64_t bits,
                                  const atto__layout *layout)
{
    const copy_job job = { dst, NULL, bits };
    return for_each_block(dev, layout, fill_block, &job);
}
