/* SPDX-License-Identifier: MIT */
/* Chooses walks and assembles elementwise launches. */
#include "walk.h"

/* ---- walks ---- */

static bool offsets_divide(const atto_tensor *const *tensors, int32_t count, int32_t vector)
{
    for (int32_t i = 0; i < count; i++)
        if (tensors[i]->offset % vector != 0) return false;
    return true;
}

/* Whether every row starts at a multiple of vector and is made of whole vectors. */
static bool rows_divide(const atto_tensor *t, const atto__layout *layout, int32_t vector)
{
    const int32_t last = layout->rank - 1;
    if (t->stride[last] != 1 || layout->shape[last] % vector != 0) return false;
    for (int32_t d = 0; d < last; d++)
        if (t->stride[d] % vector != 0) return false;
    return true;
}

atto__form atto__walk_form(const atto_tensor *const *tensors, int32_t count,
                           const atto__layout *layout, int32_t vector)
{
    if (!offsets_divide(tensors, count, vector)) return ATTO_FORM_ELEMENTS;
    if (layout->dense) return ATTO_FORM_DENSE;
    for (int32_t i = 0; i < count; i++)
        if (layout->rank == 0 || !rows_divide(tensors[i], layout, vector))
            return ATTO_FORM_ELEMENTS;
    return ATTO_FORM_VECTORS;
}

/* One element for a whole row: no vectors are loaded from it. */
static bool is_splat(const atto_tensor *t)
{
    return t->rank > 0 && t->stride[t->rank - 1] == 0;
}

/* The form that all tensors allow, the splats among them left aside. */
static atto__form form_with_splats(const atto__elementwise *call, int32_t vector)
{
    const atto_tensor *others[ATTO_ELEMENTWISE_TENSORS];
    int32_t count = 0;
    for (int32_t i = 0; i < call->count; i++)
        if (!is_splat(call->tensors[i])) others[count++] = call->tensors[i];
    return atto__walk_form(others, count, call->layout, vector);
}

static int64_t row_length(const atto__layout *layout)
{
    return layout->rank > 0 ? layout->shape[layout->rank - 1] : 1;
}

/* values of the layout's dimensions, innermost last; what is missing in front is fill. */
static void align_right(const int64_t *values, int32_t rank, int64_t fill, int64_t *out)
{
    for (int32_t d = 0; d < ATTO_MERGED_RANK; d++) {
        const int32_t from = d - (ATTO_MERGED_RANK - rank);
        out[d] = from < 0 ? fill : values[from];
    }
}

atto__walk atto__walk_of(const atto__layout *layout, atto__form form, int32_t run)
{
    atto__walk walk = { .form = form, .run = run, .items = ATTO_DENSE_ITEMS, .layout = layout };
    align_right(layout->shape, layout->rank, 1, walk.size);
    walk.size[3] = (row_length(layout) + run - 1) / run;
    walk.runs = walk.size[0] * walk.size[1] * walk.size[2] * walk.size[3];
    return walk;
}

/* A dense walk's tail wants a work-item for each of its elements, fewer than a vector's. */
bool atto__rows_at_units(const atto_tensor *t, int32_t unit)
{
    bool fit = t->offset % unit == 0;
    for (int32_t d = 0; d < t->rank - 1; d++)
        fit = fit && (t->shape[d] <= 1 || t->stride[d] % unit == 0);
    return fit;
}

int64_t atto__walk_groups(const atto_device *dev, const atto__walk *walk)
{
    const int64_t group = atto__opencl_of(dev)->group_size;
    if (walk->form != ATTO_FORM_DENSE) return atto__group_count(walk->runs, group);
    const int64_t vectors = atto__group_count(walk->layout->numel / walk->run, group * walk->items);
    const int64_t tail = atto__group_count(walk->run, group);
    return vectors > tail ? vectors : tail;
}

/* The kernels' atto_divide: n / size = (high half of n * magic + n) >> shift for n < 2^31. */
static void divider_of(uint32_t size, uint32_t *magic, uint32_t *shift)
{
    uint64_t power = 1;
    *shift = 0;
    for (; power < size; power *= 2) (*shift)++;
    *magic = (uint32_t)(((power - size) << 32) / size + 1);
}

void atto__arg_sizes(atto__args *args, bool wide, const int64_t *size)
{
    uint32_t magic[4] = { 0 }, shift[4] = { 0 };
    for (int32_t d = 0; d < 4 && !wide; d++) divider_of((uint32_t)size[d], &magic[d], &shift[d]);
    atto__arg_index4(args, wide, size);
    atto__arg_uint4(args, magic);
    atto__arg_uint4(args, shift);
}

void atto__arg_divider(atto__args *args, bool wide, int64_t size)
{
    uint32_t magic = 0, shift = 0;
    if (!wide) divider_of((uint32_t)size, &magic, &shift);
    atto__arg_uint(args, magic);
    atto__arg_uint(args, shift);
}

static void arg_strides(atto__args *args, const atto__layout *layout, const int64_t *strides)
{
    int64_t aligned[4];
    align_right(strides, layout->rank, 0, aligned);
    atto__arg_index4(args, layout->wide, aligned);
}

void atto__arg_walk(atto__args *args, const atto__walk *walk, const atto_tensor *const *tensors,
                    int32_t count)
{
    const bool wide = walk->layout->wide;
    if (walk->form == ATTO_FORM_DENSE) {
        atto__arg_index(args, wide, walk->layout->numel);
        return;
    }
    atto__arg_index(args, wide, walk->runs);
    atto__arg_index(args, wide, row_length(walk->layout));
    atto__arg_sizes(args, wide, walk->size);
    for (int32_t i = 0; i < count; i++) arg_strides(args, walk->layout, tensors[i]->stride);
}

/* ---- elementwise calls ---- */

atto__dropout_knob atto__dropout_knob_of(float p, atto_rng rng)
{
    if (!(p > 0.0f)) return ATTO_DROPOUT_NONE;
    return rng.kind == ATTO_RNG_TRITON ? ATTO_DROPOUT_TRITON : ATTO_DROPOUT_PHILOX;
}

void atto__arg_dropout(atto__args *args, float p, atto_rng rng)
{
    if (atto__dropout_knob_of(p, rng) == ATTO_DROPOUT_NONE) return;
    const atto__mask mask = atto__mask_of(p, rng);
    atto__arg_uint(args, mask.threshold);
    atto__arg_float(args, mask.p);
    atto__arg_float(args, mask.scale);
    atto__arg_ulong(args, mask.rng.seed);
    atto__arg_ulong(args, mask.rng.offset);
}

static atto__dropout_knob dropout_knob(const atto__elementwise *call)
{
    return atto__dropout_knob_of(call->p, call->rng);
}

/* Runs of four elements have consecutive logical indices and start at a multiple of 4. */
static bool index_grouped(const atto__layout *layout)
{
    const int32_t last = layout->rank - 1;
    if (last < 0 || layout->index_stride[last] != 1) return false;
    for (int32_t d = 0; d < last; d++)
        if (layout->index_stride[d] % 4 != 0) return false;
    return true;
}

/* Where vectors cannot be used, dropout still gains from taking the four elements of a counter. */
static atto__form choose_form(const atto__elementwise *call)
{
    const atto__form form = form_with_splats(call, atto__vector_elements(call->tensors[0]->dtype));
    const bool runs = form == ATTO_FORM_ELEMENTS && dropout_knob(call) == ATTO_DROPOUT_PHILOX &&
                      index_grouped(call->layout);
    return runs ? ATTO_FORM_RUNS : form;
}

static void arg_dropout(atto__args *args, const atto__elementwise *call, const atto__walk *walk)
{
    if (dropout_knob(call) == ATTO_DROPOUT_NONE) return;
    if (walk->form != ATTO_FORM_DENSE) {
        arg_strides(args, call->layout, call->layout->index_stride);
        atto__arg_uint(args, index_grouped(call->layout));
    }
    atto__arg_dropout(args, call->p, call->rng);
}

/* Vectors that a work-item of a dense kernel takes; the best number depends on how many tensors
 * there are. */
static int32_t choose_items(atto_device *dev, const atto__elementwise *call)
{
    const atto__choice choice = { ATTO_CHOICE_ELEMENTWISE,
                                  call->tensors[0]->dtype,
                                  { call->layout->numel, call->count } };
    atto__ways ways;
    if (!atto__choice_asks(dev, &choice)) return ATTO_DENSE_ITEMS;
    ways.count = 0;
    atto__ways_add(&ways, &(atto__way){ .number = { ATTO_DENSE_ITEMS } });
    for (int32_t items = 1; items <= 4; items *= 2)
        atto__ways_add(&ways, &(atto__way){ .number = { items } });
    return atto__choose(dev, &choice, &ways).number[0];
}

atto_status atto__elementwise_launch(atto_device *dev, const atto__elementwise *call)
{
    const atto_dtype dtype = call->tensors[0]->dtype;
    const atto__form form = choose_form(call);
    atto__walk walk = atto__walk_of(call->layout, form, atto__run_elements(dtype, form));
    if (form == ATTO_FORM_DENSE) walk.items = choose_items(dev, call);
    const atto__elementwise_knobs knobs = {
        .file = call->file,
        .kernel = call->kernel,
        .act = call->act,
        .formula = call->formula,
        .scalar = call->scalar,
        .dtype = dtype,
        .dropout = dropout_knob(call),
        .form = form,
        .items = walk.items,
        .wide = call->layout->wide,
    };
    atto__variant variant;
    atto__elementwise_variant(&knobs, &variant);

    atto__args args;
    args.count = 0;
    for (int32_t i = 0; i < call->count; i++) atto__arg_tensor(&args, call->tensors[i]);
    atto__arg_walk(&args, &walk, call->tensors, call->count);
    atto__args_append(&args, &call->own);
    arg_dropout(&args, call, &walk);
    return atto__launch(dev, &variant, &args, atto__walk_groups(dev, &walk));
}
