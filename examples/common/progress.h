/* SPDX-License-Identifier: MIT */
/* How far a training is: on a terminal one line that is redrawn, elsewhere (a pipe, a file,
 * TERM=dumb) nothing but one plain line for each epoch. */
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What a line shows. */
typedef struct progress_view {
    int64_t epoch, epochs; /* from 1 */
    int64_t done, total;   /* items of this epoch */
    double loss;           /* NaN: not known yet */
    double seconds;        /* since the epoch began */
    const char *unit;      /* what items are, for "<unit>/s": "images" */
} progress_view;

typedef struct progress {
    FILE *out;
    double (*clock)(void); /* seconds; a test puts its own here */
    bool live;             /* out is a terminal that can redraw a line */
    bool colour;           /* and NO_COLOR (no-color.org) is not set */
    bool drawn;            /* a line stands there unfinished */
    double began, last;    /* start of the epoch, last redraw */
    progress_view view;
} progress;

/* unit is the caller's and stays valid. */
progress progress_start(FILE *out, int64_t epochs, const char *unit);

/* Epoch 1 ... epochs begins, with total items. */
void progress_epoch(progress *p, int64_t epoch, int64_t total);

/* So many items of the epoch are done. Draws at most 10 times a second. A loss of NaN keeps the
 * last one: who leaves the loss on the device knows it only now and then. */
void progress_step(progress *p, int64_t done, double loss);

/* Ends the epoch with a line "epoch 3/10  <metrics>  52000 images/s  1.2 s" in both modes; speed
 * and time are those up to the last step. */
void progress_epoch_end(progress *p, const char *metrics);

/* Takes an unfinished line away, before anything else is printed. */
void progress_clear(progress *p);

/* The line for a terminal of that many columns, without colour and line end: epoch, bar, percent,
 * loss, items per second, time left of the whole training. Shorter than width; what does not fit is
 * left out from the right, then the bar. Returns out. */
const char *progress_format(const progress_view *view, int width, char *out, size_t bytes);

#endif
