/* SPDX-License-Identifier: MIT */
/* Rows of atto_row.h on the host: how many slots one has, and how many a work-group. */
#ifndef ATTO_OPENCL_ROWS_H
#define ATTO_OPENCL_ROWS_H

#include "launch.h"

/* The most slots of a row of t, which is [outer, cols, step] without gaps: where rows do not all
 * begin at 16 bytes, some are empty. */
static inline int64_t atto__row_slots(const atto_tensor *t, int64_t cols, int64_t step)
{
    const int32_t vector = atto__vector_elements(t->dtype);
    const bool aligned = step != 1 || (t->offset % vector == 0 && cols % vector == 0);
    return aligned ? cols : cols + vector - 1;
}

/* Work-items of a work-group. */
static inline int32_t atto__row_group(const atto_device *dev, const atto__row_knobs *row)
{
    return row->group ? row->group : (int32_t)atto__opencl_of(dev)->group_size;
}

static inline int64_t atto__rows_per_group(const atto_device *dev, const atto__row_knobs *row)
{
    const int32_t group = atto__row_group(dev, row);
    return row->lanes == 0 || row->lanes >= group ? 1 : group / row->lanes;
}

/* Whether offsets inside a row need 64 bits. */
static inline bool atto__row_is_wide(const atto_device *dev, int64_t cols, int64_t step)
{
    return dev->options.set.index_bits == 64 || cols > INT32_MAX / 2 / step;
}

/* Floats of a row that a work-item may hold: what is sure to fit beside all else, and where a
 * work-item has 255 registers. */
#define ATTO_ROW_FLOATS        32
#define ATTO_ROW_FLOATS_NVIDIA 64

static inline int32_t atto__row_floats(const atto_device *dev)
{
    return atto__opencl_of(dev)->nvidia ? ATTO_ROW_FLOATS_NVIDIA : ATTO_ROW_FLOATS;
}

/* How to share out that many rows; a way's numbers are lanes, items, held and group. */
static inline atto__row_knobs atto__row_choose(atto_device *dev, atto__choice_name name,
                                               atto_dtype dtype, int64_t slots, int64_t rows,
                                               int32_t floats)
{
    const int32_t group = (int32_t)atto__opencl_of(dev)->group_size;
    const atto__choice choice = { name, dtype, { slots, atto__many(rows) } };
    if (!atto__choice_asks(dev, &choice)) return atto__row_knobs_for(slots, dtype, group, floats);
    atto__row_knobs all[ATTO_ROW_WAYS];
    const int32_t count =
        atto__row_knobs_all(slots, dtype, group, dev->info.max_work_group, floats, all);
    atto__ways ways;
    ways.count = 0;
    for (int32_t i = 0; i < count; i++) {
        const atto__row_knobs *k = &all[i];
        atto__ways_add(&ways, &(atto__way){ { k->lanes, k->items, k->held, k->group }, i });
    }
    const atto__way way = atto__choose(dev, &choice, &ways);
    return (atto__row_knobs){ way.number[0], way.number[1], way.number[2] != 0, way.number[3] };
}

#endif
