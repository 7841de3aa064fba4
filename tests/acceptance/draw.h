/* SPDX-License-Identifier: MIT */
/* Data of inputs, kept between cases of one shape: drawing and uploading takes longer than most
 * calls. */
#ifndef ACCEPTANCE_DRAW_H
#define ACCEPTANCE_DRAW_H

#include "scene.h"

enum { GRID_PATH = 256 };

/* What decides an input's bytes. */
typedef struct grid_recipe {
    grid_draw draw;
    uint64_t seed;
    int64_t limit; /* classes of labels, columns of weights */
    atto_dtype dtype;
    int64_t numel;
} grid_recipe;

typedef struct grid_stored {
    grid_recipe recipe;
    atto_tensor t;        /* rank 1 */
    double *values;       /* as stored; NULL where files are kept, for these are large */
    char file[GRID_PATH]; /* "" where none are kept */
} grid_stored;

/* The input of a recipe, from before or new; the store owns it. */
atto_status grid_store_get(grid_store *store, grid_recipe recipe, const grid_stored **out);

atto_device *grid_store_device(const grid_store *store);
const char *grid_store_folder(const grid_store *store);

/* An element's value. */
double grid_decode(atto_dtype dtype, const unsigned char *element);

/* False after a message on stderr. */
bool grid_write_file(const char *path, const void *data, int64_t bytes);

#endif
