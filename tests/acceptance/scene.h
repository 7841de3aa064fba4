/* SPDX-License-Identifier: MIT */
/* A case on a device: its tensors, what they hold, and the verdict on what came out. */
#ifndef ACCEPTANCE_SCENE_H
#define ACCEPTANCE_SCENE_H

#include <stdio.h>

#include "grid.h"

/* Inputs that cases of one shape share. Folder: where their bytes also go as files, or NULL. */
typedef struct grid_store grid_store;

grid_store *grid_store_create(atto_device *dev, const char *folder);
void grid_store_clear(grid_store *store);

/* Whether the inputs of one scene more are sure to fit. */
bool grid_store_has_room(const grid_store *store);
void grid_store_destroy(grid_store *store);

/* The worst output of a pass. */
typedef struct grid_verdict {
    const char *tensor;
    double error, allowed, share; /* share > 1: bad */
} grid_verdict;

/* Declares the tensors of a case; NULL after a message on stderr. */
grid_scene *grid_scene_create(grid_store *store, const grid_case *c);
void grid_scene_destroy(grid_scene *s);

/* Runs a pass; a failing call's status. */
atto_status grid_scene_run(grid_scene *s, grid_pass pass);

/* The family has outputs of that pass in this case. */
bool grid_scene_has(const grid_scene *s, grid_pass pass);

/* Compares with the oracle, which grid_scene_answer has asked once both passes have run. */
void grid_scene_answer(grid_scene *s);
grid_verdict grid_scene_judge(grid_scene *s, grid_pass pass);

/* Carries a hash on over every byte that came out. */
uint64_t grid_scene_hash(grid_scene *s, uint64_t hash);

/* Writes what came out into files, and the case and its tensors as a line of JSON that names all
 * files. */
bool grid_scene_write(grid_scene *s, FILE *to, const char *device, bool fresh);

/* "y 1e-7 1e-5 0.01 dx ...": error, tolerance and share of each output, as the peer answers. The
 * worst one of a pass; a share of infinity where one is missing. */
grid_verdict grid_scene_parse(const grid_scene *s, grid_pass pass, const char *answer);

#endif
