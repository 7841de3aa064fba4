/* SPDX-License-Identifier: MIT */
/* Resizing along one axis, for kernels and the CPU backend: which elements of x one of y is made
 * of. Whoever includes this defines the signed type resize_place and includes atto_math.h. */
#ifndef ATTO_RESIZE_KERNEL_H
#define ATTO_RESIZE_KERNEL_H

#define RESIZE_NEAREST 0
#define RESIZE_LINEAR  1 /* pixels are squares, whose centres are at halves */
#define RESIZE_ALIGNED 2 /* pixels are points, the first and the last of x and y the same */

typedef struct resize_axis {
    resize_place in, out;
    float scale; /* of y's places in x */
} resize_axis;

/* y's element o is (1 - *part) of x's element i, which is returned, and *part of the one behind it.
 * Grows with o. */
ATTO_INLINE resize_place resize_at(int how, resize_axis a, resize_place o, float *part)
{
    const float most = 2147483520.0f; /* the float below 2^31 */
    float at = (float)o * a.scale;
    if (how == RESIZE_LINEAR) at = ((float)o + 0.5f) * a.scale - 0.5f;
    at = at > 0.0f ? at : 0.0f;
    at = at < most ? at : most;
    resize_place i = (resize_place)at;
    i = i < a.in - 1 ? i : a.in - 1;
    const float rest = at - (float)i;
    *part = how == RESIZE_NEAREST ? 0.0f : rest < 1.0f ? rest : 1.0f;
    return i;
}

/* What o has of x's element i: at: what resize_at returns. */
ATTO_INLINE float resize_share(resize_axis a, resize_place at, float part, resize_place i)
{
    const resize_place next = at + 1 < a.in ? at + 1 : at;
    return (at == i ? 1.0f - part : 0.0f) + (next == i ? part : 0.0f);
}

#endif
