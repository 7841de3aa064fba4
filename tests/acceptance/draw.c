/* SPDX-License-Identifier: MIT */
/* Draws inputs, uploads them, and keeps them until the shape changes. */
#include "draw.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

enum { MOST = 64 };

/* Values repeat after so many, a prime: no row of any shape begins where another one did. */
#define PERIOD 1048583

struct grid_store {
    atto_device *dev;
    const char *folder;
    grid_stored entries[MOST];
    int count;
};

grid_store *grid_store_create(atto_device *dev, const char *folder)
{
    grid_store *store = calloc(1, sizeof *store);
    if (!store) return NULL;
    store->dev = dev;
    store->folder = folder;
    return store;
}

void grid_store_clear(grid_store *store)
{
    for (int i = 0; i < store->count; i++) {
        atto_tensor_free(&store->entries[i].t);
        free(store->entries[i].values);
        if (store->entries[i].file[0]) remove(store->entries[i].file);
    }
    store->count = 0;
}

bool grid_store_has_room(const grid_store *store)
{
    return store->count + GRID_TENSORS <= MOST;
}

void grid_store_destroy(grid_store *store)
{
    if (store) grid_store_clear(store);
    free(store);
}

atto_device *grid_store_device(const grid_store *store)
{
    return store->dev;
}

const char *grid_store_folder(const grid_store *store)
{
    return store->folder;
}

/* ---- values ---- */

static double uniform(uint64_t *state, double lo, double hi)
{
    return lo + (hi - lo) * (double)(test_random(state) >> 11) * 0x1p-53;
}

/* Box and Muller's. */
static double normal(uint64_t *state)
{
    const double turn = uniform(state, 0.0, 6.283185307179586), u = uniform(state, 0.0, 1.0);
    return sqrt(-2.0 * log(1.0 - u)) * cos(turn);
}

static double value_of(const grid_recipe *r, uint64_t *state)
{
    switch (r->draw) {
    case GRID_POSITIVE:
        return uniform(state, 0.25, 2.0);
    case GRID_SHARE:
        return uniform(state, 0.0, 1.0);
    case GRID_LOG:
        return uniform(state, -6.0, 0.0);
    case GRID_LABEL:
        return (double)(test_random(state) % (uint64_t)r->limit);
    case GRID_WEIGHT:
        return normal(state) / sqrt((double)r->limit);
    default:
        return normal(state);
    }
}

static void encode(atto_dtype dtype, double value, unsigned char *element)
{
    const uint64_t bits = oracle_encode(dtype, value);
    memcpy(element, &bits, atto_dtype_size(dtype)); /* little-endian, as all of the devices are */
}

double grid_decode(atto_dtype dtype, const unsigned char *element)
{
    uint64_t bits = 0;
    memcpy(&bits, element, atto_dtype_size(dtype));
    return oracle_decode(dtype, bits);
}

/* The first PERIOD elements, and these again and again. */
static void fill(const grid_recipe *r, unsigned char *data)
{
    const size_t size = atto_dtype_size(r->dtype), block = PERIOD * size;
    const size_t bytes = (size_t)r->numel * size;
    uint64_t state = 1000 * r->seed + r->draw;
    for (int64_t i = 0; i < r->numel && i < PERIOD; i++)
        encode(r->dtype, value_of(r, &state), data + (size_t)i * size);
    for (size_t at = block; at < bytes; at += block)
        memcpy(data + at, data, bytes - at < block ? bytes - at : block);
}

static double *decode_all(const grid_recipe *r, const unsigned char *data)
{
    double *values = calloc(r->numel > 0 ? (size_t)r->numel : 1, sizeof *values);
    for (int64_t i = 0; values && i < r->numel; i++)
        values[i] = grid_decode(r->dtype, data + (size_t)i * atto_dtype_size(r->dtype));
    return values;
}

/* ---- the store ---- */

bool grid_write_file(const char *path, const void *data, int64_t bytes)
{
    FILE *file = fopen(path, "wb");
    bool fine = file && fwrite(data, 1, (size_t)bytes, file) == (size_t)bytes;
    if (file && fclose(file) != 0) fine = false;
    if (!fine) fprintf(stderr, "acceptance: %s could not be written\n", path);
    return fine;
}

static atto_status keep(grid_store *store, grid_stored *e, const unsigned char *data)
{
    const grid_recipe *r = &e->recipe;
    const int64_t bytes = r->numel * (int64_t)atto_dtype_size(r->dtype);
    atto_status status = atto_tensor_alloc(store->dev, r->dtype, atto_shape1(r->numel), &e->t);
    if (status == ATTO_OK) status = atto_tensor_write(&e->t, data);
    if (status != ATTO_OK) return status;
    if (!store->folder) {
        e->values = decode_all(r, data);
        return e->values ? ATTO_OK : ATTO_E_MEMORY;
    }
    snprintf(e->file, sizeof e->file, "%s/in_%d", store->folder, (int)(e - store->entries));
    return grid_write_file(e->file, data, bytes) ? ATTO_OK : ATTO_E_IO;
}

static bool alike(const grid_recipe *a, const grid_recipe *b)
{
    return a->draw == b->draw && a->seed == b->seed && a->limit == b->limit &&
           a->dtype == b->dtype && a->numel == b->numel;
}

atto_status grid_store_get(grid_store *store, grid_recipe recipe, const grid_stored **out)
{
    for (int i = 0; i < store->count; i++) {
        *out = &store->entries[i];
        if (alike(&store->entries[i].recipe, &recipe)) return ATTO_OK;
    }
    *out = NULL;
    if (store->count == MOST) return ATTO_E_MEMORY;
    unsigned char *data = malloc((size_t)recipe.numel * sizeof(double) + 1);
    if (!data) return ATTO_E_MEMORY;
    grid_stored *e = &store->entries[store->count++];
    memset(e, 0, sizeof *e);
    e->recipe = recipe;
    fill(&e->recipe, data);
    const atto_status status = keep(store, e, data);
    free(data);
    if (status == ATTO_OK) {
        *out = e;
        return ATTO_OK;
    }
    atto_tensor_free(&e->t);
    store->count--;
    return status;
}
