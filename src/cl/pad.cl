/* SPDX-License-Identifier: MIT */
/* pad.cl - elements around a tensor.
 *
 *   forward    y = x's element that atto_pad.h names, or the value
 *   backward   dx = sum of dy over the elements of y that x's element became (+ dx)
 *
 * Tensors have no gaps. They are [.., axis x, axis y, axis z, axis w], the last one innermost, as
 * memory has them. Work-item t takes elements t RUN to (t + 1) RUN - 1 of the result, whichever
 * rows they are in:
 *
 *   elements   RUN 1
 *   runs       RUN of 16 bytes: stored as one vector, read one by one. A row has a run or more, so
 *              that a run is in two rows at most
 *   vectors    the same, but all of them come from one vector, or from none
 *
 *   -D         default  meaning
 *   ATTO_MODE  0        a number of atto_pad.h
 *   ATTO_AXES  4        axes: 4, or 8, of which the outer four are the second group of arguments
 *   ATTO_WORD  u32      forward: storage of the tensors, of which bits are moved: u16, u32 or u64
 *   ATTO_RUN, ATTO_VECTORS as above; ATTO_DTYPE (backward) and the others of atto_kernel.h
 */
#include "atto_kernel.h"

#ifndef ATTO_MODE
#define ATTO_MODE 0
#endif
#ifndef ATTO_AXES
#define ATTO_AXES 4
#endif
#ifndef ATTO_WORD
#define ATTO_WORD u32
#endif

#if ATTO_INDEX == 64
typedef long pad_place;
#else
typedef int pad_place;
#endif
#include "atto_pad.h"

/* ---- axes ---- */

/* Sizes of the result and of the source, and the source's steps. */
typedef struct axes {
    atto_index4 size;
    uint4 magic, shift;
    atto_index4 other, before, step;
} axes;

#define AXES_PARAMETERS(x)                                                    \
    const atto_index4 x##_size, const uint4 x##_magic, const uint4 x##_shift, \
        const atto_index4 x##_other, const atto_index4 x##_before, const atto_index4 x##_step
#define AXES_OF(x)                                                      \
    {                                                                   \
        x##_size, x##_magic, x##_shift, x##_other, x##_before, x##_step \
    }
#if ATTO_AXES == 8
#define ALL_AXES_PARAMETERS AXES_PARAMETERS(inner), AXES_PARAMETERS(outer)
#else
#define ALL_AXES_PARAMETERS AXES_PARAMETERS(inner)
#endif

/* Coordinates of element n; *left: what they leave of it for axes further out. */
static inline atto_index4 split(atto_index n, const axes *a, atto_index *left)
{
    atto_index4 at;
    const atto_index rows = atto_divide(n, a->size.w, a->magic.w, a->shift.w);
    at.w = n - rows * a->size.w;
    const atto_index planes = atto_divide(rows, a->size.z, a->magic.z, a->shift.z);
    at.z = rows - planes * a->size.z;
    const atto_index images = atto_divide(planes, a->size.y, a->magic.y, a->shift.y);
    at.y = planes - images * a->size.y;
    *left = atto_divide(images, a->size.x, a->magic.x, a->shift.x);
    at.x = images - *left * a->size.x;
    return at;
}

/* ---- forward ---- */

typedef ushort atto_u16;
typedef uint atto_u32;
typedef ulong atto_u64;
#define word_t         ATTO_PASTE(atto_, ATTO_WORD)
#define ATTO_WORDS_u16 8
#define ATTO_WORDS_u32 4
#define ATTO_WORDS_u64 2
#define WORDS          ATTO_PASTE(ATTO_WORDS_, ATTO_WORD) /* in 16 bytes */

static inline uint4 pack_u16(const ushort *v)
{
    return as_uint4((ushort8)(ATTO_JOIN_8(v)));
}

static inline uint4 pack_u32(const uint *v)
{
    return (uint4)(ATTO_JOIN_4(v));
}

static inline uint4 pack_u64(const ulong *v)
{
    return as_uint4((ulong2)(ATTO_JOIN_2(v)));
}

#define pack_words ATTO_PASTE(pack_, ATTO_WORD)

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pad_forward)
/* Adds an axis' part to *from; false: the place is outside. */
static inline int source_in(atto_index size, atto_index other, atto_index before, atto_index step,
                            atto_index at, pad_place *from)
{
    const pad_axis a = { (pad_place)other, (pad_place)size, (pad_place)before };
    const pad_place i = pad_source(ATTO_MODE, a, (pad_place)at);
    *from += i * (pad_place)step;
    return i >= 0;
}

#define SOURCE_IN(a, c, at, from) \
    source_in((a)->size.c, (a)->other.c, (a)->before.c, (a)->step.c, (at).c, from)

typedef struct row {
    pad_place from; /* x's row */
    int inside;
    pad_place at; /* along y's row */
} row;

/* The row that element n of y is in; not returned: Oclgrind lacks what clang makes of that. */
static inline void find_row(atto_index n, const axes *inner, const axes *outer, row *r)
{
    atto_index left;
    const atto_index4 at = split(n, inner, &left);
    r->from = 0;
    r->at = (pad_place)at.w;
    r->inside = SOURCE_IN(inner, x, at, &r->from) & SOURCE_IN(inner, y, at, &r->from) &
                SOURCE_IN(inner, z, at, &r->from);
#if ATTO_AXES == 8
    const atto_index4 far = split(left, outer, &left);
    r->inside &= SOURCE_IN(outer, x, far, &r->from) & SOURCE_IN(outer, y, far, &r->from) &
                 SOURCE_IN(outer, z, far, &r->from) & SOURCE_IN(outer, w, far, &r->from);
#endif
}

/* x's element for place at along that row, or the value. */
static inline word_t word_of(__global const word_t *x, row r, pad_axis a, pad_place at,
                             word_t value)
{
    const pad_place i = pad_source(ATTO_MODE, a, at);
    return r.inside && i >= 0 ? x[r.from + i] : value;
}

ATTO_KERNEL void atto_pad_forward(__global const word_t *x, const ulong x_at, __global word_t *y,
                                  const ulong y_at, const atto_index n, const ulong value,
                                  ALL_AXES_PARAMETERS)
{
    const atto_index first = (atto_index)get_global_id(0) * ATTO_RUN;
    const axes inner = AXES_OF(inner);
#if ATTO_AXES == 8
    const axes outer = AXES_OF(outer);
#else
    const axes outer = inner;
#endif
    if (first >= n) return;
    const pad_axis w = { (pad_place)inner.other.w, (pad_place)inner.size.w,
                         (pad_place)inner.before.w };
    row r;
    find_row(first, &inner, &outer, &r);
    x += x_at;
    y += y_at;
#if ATTO_RUN == 1
    y[first] = word_of(x, r, w, r.at, (word_t)value);
#else
    word_t v[WORDS];
    uint4 raw;
#if ATTO_VECTORS
    const pad_place i = pad_source(ATTO_MODE, w, r.at);
#pragma unroll
    for (int k = 0; k < WORDS; k++) v[k] = (word_t)value;
    raw = pack_words(v);
    if (r.inside && i >= 0) raw = ((__global const uint4 *)x)[(r.from + i) / WORDS];
#else
    row next = r;
    if (r.at + WORDS > w.out && first - r.at + w.out < n)
        find_row(first - (atto_index)r.at + (atto_index)w.out, &inner, &outer, &next);
#pragma unroll
    for (int k = 0; k < WORDS; k++) {
        const int here = r.at + k < w.out;
        v[k] = (word_t)value;
        if (first + k < n)
            v[k] =
                word_of(x, here ? r : next, w, here ? r.at + k : r.at + k - w.out, (word_t)value);
    }
    raw = pack_words(v);
#endif
    if (first + WORDS <= n) {
        ((__global uint4 *)y)[first / WORDS] = raw;
    } else {
        for (int k = 0; k < WORDS; k++)
            if (first + k < n) y[first + k] = v[k];
    }
#endif
}
#endif

/* ---- backward ---- */

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_pad_backward)
/* Of an axis: x's place, how many of y it became, and the number of elements from one of y's places
 * to the next. */
typedef struct aim {
    pad_axis a;
    pad_place i, count, step;
} aim;

static inline aim aim_of(atto_index size, atto_index other, atto_index before, atto_index step,
                         atto_index at)
{
    aim m;
    m.a.in = (pad_place)size;
    m.a.out = (pad_place)other;
    m.a.before = (pad_place)before;
    m.i = (pad_place)at;
    m.count = pad_count(ATTO_MODE, m.a, m.i);
    m.step = (pad_place)step;
    return m;
}

#define AIM_OF(a, c, at) aim_of((a)->size.c, (a)->other.c, (a)->before.c, (a)->step.c, (at).c)

/* The axes' aims, innermost first, of element n of dx; returns how many elements of dy it gets. */
ATTO_UNROLLED pad_place aims_of(atto_index n, const axes *inner, const axes *outer, aim *m)
{
    atto_index left;
    const atto_index4 at = split(n, inner, &left);
    m[0] = AIM_OF(inner, w, at);
    m[1] = AIM_OF(inner, z, at);
    m[2] = AIM_OF(inner, y, at);
    m[3] = AIM_OF(inner, x, at);
#if ATTO_AXES == 8
    const atto_index4 far = split(left, outer, &left);
    m[4] = AIM_OF(outer, w, far);
    m[5] = AIM_OF(outer, z, far);
    m[6] = AIM_OF(outer, y, far);
    m[7] = AIM_OF(outer, x, far);
#endif
    pad_place terms = 1;
#pragma unroll
    for (int d = 0; d < ATTO_AXES; d++) terms *= m[d].count;
    return terms;
}

/* Where term k is. */
ATTO_UNROLLED pad_place term_at(const aim *m, pad_place k)
{
    pad_place at = 0;
#pragma unroll
    for (int d = 0; d < ATTO_AXES; d++) {
        pad_place mine = 0;
        if (ATTO_MODE != PAD_CONSTANT && m[d].count > 1) {
            const pad_place rest = k / m[d].count;
            mine = k - rest * m[d].count;
            k = rest;
        }
        at += pad_target(ATTO_MODE, m[d].a, m[d].i, mine) * m[d].step;
    }
    return at;
}

#if ATTO_VECTORS
#define UNIT ATTO_RUN
#else
#define UNIT 1
#endif

/* The sum for the unit from element n of dx on. */
ATTO_UNROLLED void gather_unit(__global const ATTO_T *dy, atto_index n, const axes *inner,
                               const axes *outer, float *sum)
{
    aim m[ATTO_AXES];
    const pad_place terms = aims_of(n, inner, outer, m);
#pragma unroll
    for (int k = 0; k < UNIT; k++) sum[k] = 0.0f;
    for (pad_place t = 0; t < terms; t++) {
        float v[UNIT];
        atto_widen_unit(atto_load_unit(dy, (size_t)term_at(m, t)), v);
#pragma unroll
        for (int k = 0; k < UNIT; k++) sum[k] = t == 0 ? v[k] : sum[k] + v[k];
    }
}

ATTO_KERNEL void atto_pad_backward(__global const ATTO_T *dy, const ulong dy_at,
                                   __global ATTO_T *dx, const ulong dx_at, const atto_index n,
                                   const uint add, ALL_AXES_PARAMETERS)
{
    const atto_index first = (atto_index)get_global_id(0) * ATTO_RUN;
    const axes inner = AXES_OF(inner);
#if ATTO_AXES == 8
    const axes outer = AXES_OF(outer);
#else
    const axes outer = inner;
#endif
    float sum[ATTO_RUN];
    if (first >= n) return;
    dy += dy_at;
    dx += dx_at;
#pragma unroll
    for (int k = 0; k < ATTO_RUN; k += UNIT)
        if (first + k < n) gather_unit(dy, first + k, &inner, &outer, sum + k);
    if (ATTO_RUN > 1 && first + ATTO_RUN <= n) {
#if ATTO_RUN > 1
        float old[ATTO_RUN];
        if (add) {
            atto_unpack(atto_fetch(dx, first / ATTO_VEC), old);
            atto_add_run(sum, old);
        }
        atto_put(dx, first / ATTO_VEC, atto_pack(sum));
#endif
    } else {
#pragma unroll
        for (int k = 0; k < ATTO_RUN; k++)
            if (first + k < n)
                atto_store(dx, first + k, add ? sum[k] + atto_load(dx, first + k) : sum[k]);
    }
}
#endif
