/* SPDX-License-Identifier: MIT */
/* Curves as an SVG picture: panels side by side, each with round ticks, grid and legend. Series
 * differ in colour, in lightness and in dashes, so that they stay apart on a grey print and for
 * colour-blind eyes. */
#ifndef EXAMPLES_CURVES_H
#define EXAMPLES_CURVES_H

#include <stdint.h>

#include "failure.h"

/* One series. A point where x or y is NaN, infinite or beyond 1e300 is a gap; a point between two
 * gaps is a dot. Of more than CURVES_EACH points in order of x, the lowest and the highest of each
 * stretch are drawn, so that no spike is lost and the file stays small. */
typedef struct curve {
    const char *name;
    const double *x, *y; /* [count] */
    int64_t count;       /* 0 is fine */
    int style; /* n: looks like the n-th series of a panel; 0: like one at its own place */
} curve;

#define CURVES_EACH 1000

typedef struct curve_panel {
    const char *title, *x_label, *y_label;
    const curve *curves;
    int count;
} curve_panel;

/* Writes the picture. Texts are UTF-8 and escaped. The same bytes in every locale.
 * Returns ATTO_E_IO with a message that names the file. */
atto_status curves_write(const char *path, const char *title, const curve_panel *panels, int count);

#endif
