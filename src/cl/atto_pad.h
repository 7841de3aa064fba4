/* SPDX-License-Identifier: MIT */
/* Padding along one axis, for kernels and the CPU backend: which element of x one of y is, and
 * which of y one of x became. Whoever includes this defines the signed type pad_place and
 * ATTO_INLINE. */
#ifndef ATTO_PAD_KERNEL_H
#define ATTO_PAD_KERNEL_H

/* ATTO_PAD_TABLE's order. */
#define PAD_CONSTANT  0
#define PAD_REFLECT   1
#define PAD_REPLICATE 2
#define PAD_CIRCULAR  3

/* y's element o is x's element o - before, if there is one. */
typedef struct pad_axis {
    pad_place in, out, before;
} pad_axis;

/* x's element, or -1: the value. */
ATTO_INLINE pad_place pad_source(int mode, pad_axis a, pad_place o)
{
    const pad_place i = o - a.before, last = a.in - 1;
    if (i >= 0 && i <= last) return i;
    if (mode == PAD_REFLECT) return i < 0 ? -i : 2 * last - i;
    if (mode == PAD_REPLICATE) return i < 0 ? 0 : last;
    if (mode == PAD_CIRCULAR) return i < 0 ? i + a.in : i - a.in;
    return -1;
}

/* Whether x's element i is outside as well, in front or behind; reflect and circular. */
ATTO_INLINE int pad_has_front(int mode, pad_axis a, pad_place i)
{
    return mode == PAD_REFLECT ? i >= 1 && i <= a.before : i >= a.in - a.before;
}

ATTO_INLINE int pad_has_back(int mode, pad_axis a, pad_place i)
{
    const pad_place after = a.out - a.in - a.before;
    return mode == PAD_REFLECT ? i <= a.in - 2 && i >= a.in - 1 - after : i < after;
}

/* How many elements of y x's element i became. */
ATTO_INLINE pad_place pad_count(int mode, pad_axis a, pad_place i)
{
    const pad_place o = i + a.before;
    if (mode == PAD_CONSTANT) return o >= 0 && o < a.out;
    if (mode == PAD_REPLICATE)
        return 1 + (i == 0 ? a.before : 0) + (i == a.in - 1 ? a.out - a.in - a.before : 0);
    return 1 + pad_has_front(mode, a, i) + pad_has_back(mode, a, i);
}

/* Number k of them, ascending. */
ATTO_INLINE pad_place pad_target(int mode, pad_axis a, pad_place i, pad_place k)
{
    const pad_place o = i + a.before;
    if (mode == PAD_CONSTANT) return o;
    if (mode == PAD_REPLICATE) return (i == 0 ? 0 : o) + k;
    const int front = pad_has_front(mode, a, i);
    if (k == front) return o;
    if (k < front) return mode == PAD_REFLECT ? a.before - i : o - a.in;
    return mode == PAD_REFLECT ? a.before + 2 * (a.in - 1) - i : o + a.in;
}

#endif
