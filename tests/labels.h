/* SPDX-License-Identifier: MIT */
/* What tests of losses with labels share: the sizes behind x's shape, and labels. */
#ifndef LABELS_H
#define LABELS_H

#include "atto_test.h"

/* x is [outer, classes, step], a vector one position. */
typedef struct label_sizes {
    int64_t outer, classes, step, positions, numel;
    atto_shape places; /* x without its classes */
} label_sizes;

static inline label_sizes label_sizes_of(atto_shape x)
{
    label_sizes s = { .outer = 1, .step = 1 };
    const int32_t at = x.rank == 1 ? 0 : 1;
    for (int32_t d = 0; d < x.rank; d++) {
        if (d < at) s.outer *= x.dim[d];
        if (d > at) s.step *= x.dim[d];
        if (d != at) s.places.dim[s.places.rank++] = x.dim[d];
    }
    s.classes = x.dim[at];
    s.positions = s.outer * s.step;
    s.numel = s.positions * s.classes;
    return s;
}

/* A quarter of the labels is *ignore, if it is not NULL. */
static inline void draw_labels(const label_sizes *s, const int64_t *ignore, uint64_t seed,
                               double *labels)
{
    for (int64_t i = 0; i < s->positions; i++) {
        labels[i] = (double)(test_random(&seed) % (uint64_t)s->classes);
        if (ignore && test_random(&seed) % 4 == 0) labels[i] = (double)*ignore;
    }
}

#endif
