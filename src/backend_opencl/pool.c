/* SPDX-License-Identifier: MIT */
/* Pooling on OpenCL: see src/cl/pool.cl. */
#include "launch.h"
#include "pooling.h"
#include "walk.h"

/* ---- which kernel, and how it is cut ----
 *
 * By shapes, strides and the work-group size alone, and where only a measurement can tell, by
 * choices. */

#define LANES_FROM    32    /* elements of a window from which on lanes share it out along width */
#define CHANNEL_ITEMS 65536 /* work-items along channels that keep a GPU busy */
#define CHANNEL_RUNS  4     /* neighbouring runs that a work-group reads at least */
#define ROW_ITEMS \
    (1 << 19) /* the same along width, where fewer lanes than ROW_LANES read too little */
#define ROW_LANES 32

typedef struct call {
    atto_device *dev;
    atto__pooling p;
    bool is_max, add, channels, wide;
    atto_tensor big, small; /* x, y or dx, dy */
    atto_tensor indices;
    bool has_indices;
} call;

/* Sums of an axis' numbers would not fit in 31 bits: lanes step several windows beyond its end. */
static bool is_long(const atto__pool_axis *a)
{
    const int64_t most = INT32_MAX / 32;
    if (a->kernel == 0) return a->in > most || a->in >= INT32_MAX / (a->out + 2);
    return a->in > most || a->stride > most || a->dilation > INT16_MAX ||
           a->kernel > most / a->dilation;
}

/* The one window of an adaptive axis is the axis. */
static void fix_window(atto__pool_axis *a)
{
    if (a->kernel == 0 && a->out == 1) *a = (atto__pool_axis){ a->in, 1, a->in, 1, 0, 1 };
}

static call call_of(atto_device *dev, const atto__pooling *p, const atto_tensor *big,
                    const atto_tensor *small, const atto_tensor *indices,
                    const atto__layout *layout)
{
    call k = { .dev = dev,
               .p = *p,
               .channels = layout->channels_last,
               .wide = layout->wide || is_long(&p->h) || is_long(&p->w),
               .big = *big,
               .small = *small,
               .has_indices = indices != NULL };
    if (indices) k.indices = *indices;
    if (!k.channels) k.big.stride[3] = k.small.stride[3] = k.indices.stride[3] = 1;
    fix_window(&k.p.h);
    fix_window(&k.p.w);
    return k;
}

/* Offset and every stride but the unit one are multiples of a vector. */
static bool is_aligned(const call *k, const atto_tensor *t)
{
    const int32_t vector = atto__vector_elements(k->big.dtype), unit = k->channels ? 1 : 3;
    for (int32_t d = 0; d < 4; d++)
        if (d != unit && t->stride[d] % vector != 0) return false;
    return t->offset % vector == 0;
}

/* Runs along channels are vectors. */
static bool has_channel_vectors(const call *k)
{
    return k->channels && k->p.channels % atto__vector_elements(k->big.dtype) == 0 &&
           is_aligned(k, &k->big) && is_aligned(k, &k->small) &&
           (!k->has_indices || is_aligned(k, &k->indices));
}

/* 2 or 3: a window of that edge, undilated; 0: another one. */
static int32_t window_edge(const call *k)
{
    const atto__pool_axis *h = &k->p.h, *w = &k->p.w;
    const bool square = h->kernel == w->kernel && h->dilation == 1 && w->dilation == 1;
    return square && (h->kernel == 2 || h->kernel == 3) ? (int32_t)h->kernel : 0;
}

/* Two pixels along an axis have the same windows. */
static bool has_pairs(const call *k)
{
    const atto__pool_axis *h = &k->p.h, *w = &k->p.w;
    const int32_t edge = window_edge(k);
    return edge && h->stride == 2 && w->stride == 2 && h->padding == edge - 2 &&
           w->padding == edge - 2;
}

/* What the kernels _paired take. */
static bool is_paired(const call *k)
{
    return !k->channels && has_pairs(k);
}

/* Elements of the largest window along an axis. */
static int64_t window_length(const atto__pool_axis *a)
{
    if (a->kernel != 0) return a->kernel < a->in ? a->kernel : a->in;
    return (a->in + a->out - 1) / a->out + 1;
}

/* Windows of whole rows, which follow each other: one axis. */
static bool can_flatten(const call *k)
{
    const atto__pool_axis *h = &k->p.h, *w = &k->p.w;
    const bool whole = w->out == 1 && w->kernel == w->in && w->padding == 0 && h->padding == 0;
    const int64_t pixel = k->channels ? k->big.stride[3] : 1;
    const bool unrolled = k->channels && window_edge(k);
    return !unrolled && whole && h->kernel != 0 && h->dilation == 1 && w->dilation == 1 &&
           atto__pool_fits(h) && (h->in == 1 || k->big.stride[2] == w->in * pixel);
}

static void swap_dims(atto_tensor *t)
{
    const int64_t stride = t->stride[2];
    t->shape[3] = t->shape[2];
    t->shape[2] = 1;
    t->stride[3] = stride;
    t->stride[2] = 0;
}

static void flatten(call *k)
{
    atto__pool_axis *h = &k->p.h, *w = &k->p.w;
    const int64_t row = w->in;
    *w = (atto__pool_axis){ h->in * row, h->out, h->kernel * row, h->stride * row, 0, 1 };
    *h = (atto__pool_axis){ 1, 1, 1, 1, 0, 1 };
    k->big.shape[2] = 1;
    k->big.shape[3] = w->in;
    k->big.stride[2] = 0;
    swap_dims(&k->small);
    swap_dims(&k->indices);
    k->wide = k->wide || is_long(w);
}

/* ---- arguments ---- */

static atto__pool_knobs knobs_of(const call *k, const char *kernel)
{
    const int32_t bits = k->indices.dtype == ATTO_I64 ? 64 : 32;
    return (atto__pool_knobs){ .kernel = kernel,
                               .dtype = k->big.dtype,
                               .is_max = k->is_max,
                               .index_bits = k->has_indices ? bits : 0,
                               .channels = k->channels,
                               .wide = k->wide };
}

/* In the walk's order. */
static void arg_image(atto__args *args, const call *k, const atto_tensor *t)
{
    const int64_t *s = t->stride;
    const int64_t channels[] = { s[0], s[2], s[3], s[1] };
    atto__arg_tensor(args, t);
    atto__arg_index4(args, k->wide, k->channels ? channels : s);
}

static void arg_axis(atto__args *args, const call *k, const atto__pool_axis *a)
{
    const int64_t numbers[] = { a->in, a->out, a->kernel, a->stride, a->padding, a->dilation };
    for (int32_t i = 0; i < 6; i++) atto__arg_index(args, k->wide, numbers[i]);
    atto__arg_divider(args, k->wide, a->stride > 0 ? a->stride : 1);
}

/* FORWARD_PARAMETERS or BACKWARD_PARAMETERS, over that many runs of a size; returns all of them. */
static int64_t arg_call(atto__args *args, const call *k, bool forward, const int64_t *size,
                        int64_t run)
{
    const int64_t row = size[3];
    const int64_t units[4] = { size[0], size[1], size[2], (row + run - 1) / run };
    const int64_t runs = units[0] * units[1] * units[2] * units[3];
    args->count = 0;
    arg_image(args, k, forward ? &k->big : &k->small);
    arg_image(args, k, forward ? &k->small : &k->big);
    arg_image(args, k, &k->indices);
    atto__arg_index(args, k->wide, runs);
    atto__arg_index(args, k->wide, row);
    atto__arg_sizes(args, k->wide, units);
    arg_axis(args, k, &k->p.h);
    arg_axis(args, k, &k->p.w);
    atto__arg_float(args, k->is_max ? 1.0f : atto__pool_uniform(&k->p));
    atto__arg_uint(args, k->p.exclude);
    if (!forward) atto__arg_uint(args, k->add);
    return runs;
}

static uint32_t alignment_of(const call *k)
{
    return (uint32_t)is_aligned(k, &k->big) | (uint32_t)is_aligned(k, &k->small) << 1 |
           (uint32_t)(k->has_indices && is_aligned(k, &k->indices)) << 2;
}

/* Work-items of a work-group. */
static int32_t group_of(const call *k, const atto__pool_knobs *knobs)
{
    return knobs->group ? knobs->group : (int32_t)atto__opencl_of(k->dev)->group_size;
}

static atto_status launch(const call *k, const atto__pool_knobs *knobs, const atto__args *args,
                          int64_t items)
{
    const int32_t group = group_of(k, knobs);
    atto__variant variant;
    atto__pool_variant(knobs, &variant);
    return atto__launch_sized(k->dev, &variant, args, atto__group_count(items, group), group);
}

/* ---- ways ---- */

/* One of numbers, the first one by default, and a work-group's size. Both leave the bits alone.
 * Sizes are elements of x and of y, those of a window, and 1 << (maxima + 2 along channels + 4
 * (bits of an index / 32)). */
static int32_t choose(const call *k, atto__choice_name name, const int32_t *numbers, int32_t count,
                      atto__pool_knobs *knobs)
{
    const int32_t own = (int32_t)atto__opencl_of(k->dev)->group_size;
    const int32_t kind = k->is_max + 2 * k->channels + 4 * (knobs->index_bits / 32);
    const int64_t window = window_length(&k->p.h) * window_length(&k->p.w);
    const atto__choice choice = { name,
                                  k->big.dtype,
                                  { atto_tensor_numel(&k->big), atto_tensor_numel(&k->small),
                                    window, (int64_t)1 << kind } };
    atto__ways ways;
    if (!atto__choice_asks(k->dev, &choice)) return numbers[0];
    ways.count = 0;
    for (int32_t i = 0; i < count; i++)
        atto__ways_add_groups(&ways, numbers[i], own, k->dev->info.max_work_group);
    const atto__way way = atto__choose(k->dev, &choice, &ways);
    knobs->group = way.number[1];
    return way.number[0];
}

/* A work-group's size alone. */
static void choose_group(const call *k, atto__choice_name name, atto__pool_knobs *knobs)
{
    choose(k, name, (const int32_t[]){ 0 }, 1, knobs);
}

/* ---- forward ---- */

static void outputs_size(const call *k, int64_t *size)
{
    const int64_t channels[] = { k->p.batch, k->p.h.out, k->p.w.out, k->p.channels };
    const int64_t rows[] = { k->p.batch, k->p.channels, k->p.h.out, k->p.w.out };
    for (int32_t d = 0; d < 4; d++) size[d] = k->channels ? channels[d] : rows[d];
}

static atto_status forward_paired(const call *k)
{
    int64_t size[4];
    atto__args args;
    atto__pool_knobs knobs = knobs_of(k, "atto_pool_forward_paired");
    knobs.vectors = true;
    knobs.window = window_edge(k);
    choose_group(k, ATTO_CHOICE_POOL_FORWARD, &knobs);
    outputs_size(k, size);
    const int64_t runs = arg_call(&args, k, true, size, atto__vector_elements(k->big.dtype));
    atto__arg_uint(&args, alignment_of(k));
    return launch(k, &knobs, &args, runs);
}

/* Elements of a window of one output begin and end at vectors. */
static bool has_window_vectors(const call *k)
{
    const int32_t vector = atto__vector_elements(k->big.dtype);
    const atto__pool_axis *w = &k->p.w;
    return !k->channels && w->kernel != 0 && w->kernel % vector == 0 && w->stride % vector == 0 &&
           w->padding == 0 && w->dilation == 1 && w->kernel <= w->in && atto__pool_fits(w) &&
           is_aligned(k, &k->big);
}

/* Work-items of an output, or of a run of channels: a power of two. */
static int64_t lanes_of(const call *k, int64_t runs, int64_t loads)
{
    const int64_t group = atto__opencl_of(k->dev)->group_size;
    const int64_t most = k->channels ? group / CHANNEL_RUNS : group;
    int64_t lanes = 1;
    if (loads < LANES_FROM) return 1;
    const int64_t least = k->channels ? 1 : ROW_LANES;
    const int64_t enough = k->channels ? CHANNEL_ITEMS : ROW_ITEMS;
    while (lanes < most && lanes * ATTO_POOL_ITEMS < loads &&
           !(lanes >= least && runs * lanes >= enough))
        lanes *= 2;
    return lanes;
}

static atto_status forward_lanes(const call *k, const int64_t *size, int64_t run, int64_t lanes,
                                 bool vectors)
{
    atto__args args;
    atto__pool_knobs knobs = knobs_of(k, "atto_pool_forward_lanes");
    knobs.vectors = vectors;
    knobs.items = ATTO_POOL_ITEMS;
    const int64_t runs = arg_call(&args, k, true, size, run);
    const int64_t vector = vectors && !k->channels ? atto__vector_elements(k->big.dtype) : 1;
    int64_t across = 1;
    while (across < lanes && across * vector < window_length(&k->p.w)) across *= 2;
    atto__arg_uint(&args, (uint32_t)lanes);
    atto__arg_uint(&args, (uint32_t)across);
    return launch(k, &knobs, &args, runs * lanes);
}

/* What forward_down takes. */
static bool has_shared_rows(const call *k)
{
    return k->is_max && window_edge(k) == 3 && k->p.h.stride == 2;
}

/* Outputs below each other that a work-item may have; 0: another kernel, with one. */
static const int32_t downs[] = { 0, 1, 2, 4, 8 };
#define DOWNS ((int32_t)(sizeof downs / sizeof downs[0]))

/* Along channels, windows of 2 x 2 and 3 x 3. */
static atto_status forward_unrolled(const call *k, int64_t *size, int64_t run)
{
    atto__args args;
    atto__pool_knobs knobs = knobs_of(k, "atto_pool_forward_unrolled");
    knobs.vectors = true;
    knobs.window = window_edge(k);
    const int32_t down =
        choose(k, ATTO_CHOICE_POOL_FORWARD, downs, has_shared_rows(k) ? DOWNS : 1, &knobs);
    if (down > 0) size[1] = (size[1] + down - 1) / down;
    const int64_t runs = arg_call(&args, k, true, size, run);
    if (down == 0) return launch(k, &knobs, &args, runs);
    knobs.kernel = "atto_pool_forward_down";
    atto__arg_uint(&args, (uint32_t)down);
    return launch(k, &knobs, &args, runs);
}

static atto_status forward_any(const call *k, const int64_t *size, int64_t run)
{
    atto__args args;
    atto__pool_knobs knobs = knobs_of(k, "atto_pool_forward");
    knobs.vectors = run > 1;
    choose_group(k, ATTO_CHOICE_POOL_FORWARD, &knobs);
    return launch(k, &knobs, &args, arg_call(&args, k, true, size, run));
}

static atto_status run_forward(call *k)
{
    int64_t size[4];
    if (is_paired(k)) return forward_paired(k);
    if (can_flatten(k)) flatten(k);
    outputs_size(k, size);
    const bool vectors = k->channels ? has_channel_vectors(k) : has_window_vectors(k);
    const int32_t vector = vectors ? atto__vector_elements(k->big.dtype) : 1;
    const int64_t run = k->channels ? vector : 1;
    const int64_t loads = window_length(&k->p.h) * window_length(&k->p.w) / (vector / run);
    const int64_t runs = size[0] * size[1] * size[2] * ((size[3] + run - 1) / run);
    const int64_t lanes = lanes_of(k, runs, loads);
    if (lanes > 1) return forward_lanes(k, size, run, lanes, vectors);
    return run > 1 && window_edge(k) ? forward_unrolled(k, size, run) : forward_any(k, size, run);
}

atto_status atto__opencl_avg_pool_forward(atto_device *dev, const struct atto_avg_pool_args *a,
                                          const atto__layout *layout)
{
    const atto__pooling p = atto__avg_pool_of(a, a->x, a->y);
    call k = call_of(dev, &p, a->x, a->y, NULL, layout);
    return run_forward(&k);
}

atto_status atto__opencl_max_pool_forward(atto_device *dev, const struct atto_max_pool_args *a,
                                          const atto__layout *layout)
{
    const atto__pooling p = atto__pooling_of(a->x, a->y, &a->window);
    call k = call_of(dev, &p, a->x, a->y, a->indices, layout);
    k.is_max = true;
    return run_forward(&k);
}

/* ---- backward ---- */

static int64_t half(int64_t n)
{
    return (n + 1) / 2;
}

static atto_status backward_paired(const call *k)
{
    atto__args args;
    const int64_t size[4] = { k->p.batch, k->p.channels, half(k->p.h.in), half(k->p.w.in) };
    atto__pool_knobs knobs = knobs_of(k, "atto_pool_backward_paired");
    knobs.vectors = true;
    knobs.window = window_edge(k);
    choose_group(k, ATTO_CHOICE_POOL_BACKWARD, &knobs);
    const int64_t runs = arg_call(&args, k, false, size, atto__vector_elements(k->big.dtype) / 2);
    atto__arg_uint(&args, alignment_of(k));
    return launch(k, &knobs, &args, runs);
}

/* One window is the axis. */
static bool is_whole_axis(const atto__pool_axis *a)
{
    return a->out == 1 && a->padding == 0 && a->dilation == 1 && a->kernel == a->in;
}

/* Images whose rows follow each other. */
static bool is_whole(const call *k)
{
    const int64_t *stride = k->big.stride, pixel = k->channels ? k->p.channels : 1;
    const bool dense = (k->p.w.in == 1 || stride[3] == pixel) &&
                       (k->p.h.in == 1 || stride[2] == k->p.w.in * pixel);
    return dense && is_whole_axis(&k->p.h) && is_whole_axis(&k->p.w);
}

static atto_status backward_whole(call *k)
{
    const int32_t vector = atto__vector_elements(k->big.dtype);
    const int64_t pixels = k->p.h.in * k->p.w.in;
    const int64_t image = k->channels ? pixels * k->p.channels : pixels;
    const int64_t size[4] = { k->p.batch, k->channels ? 1 : k->p.channels, 1, image };
    atto__pool_knobs knobs = knobs_of(k, "atto_pool_backward_whole");
    atto__args args;
    if (k->p.override == 0.0f) k->p.override = (float)pixels;
    k->p.w.stride = k->p.channels; /* what the kernel divides by */
    k->big.stride[2] = image;      /* an image is a row */
    k->big.stride[3] = k->channels ? image : 1;
    knobs.vectors =
        k->channels ? has_channel_vectors(k) : image % vector == 0 && is_aligned(k, &k->big);
    knobs.wide = k->wide = k->wide || image > INT32_MAX / 2;
    knobs.items = choose(k, ATTO_CHOICE_POOL_BACKWARD,
                         (const int32_t[]){ ATTO_POOL_ITEMS, 1, 2, 8 }, 4, &knobs);
    const int64_t group = group_of(k, &knobs), run = knobs.vectors ? vector : 1;
    const int64_t groups = arg_call(&args, k, false, size, knobs.items * group * run);
    return launch(k, &knobs, &args, groups * group);
}

static atto_status run_backward(call *k)
{
    atto__args args;
    if (is_paired(k)) return backward_paired(k);
    if (is_whole(k)) return backward_whole(k);
    const int32_t vector = atto__vector_elements(k->big.dtype);
    const int64_t channels[] = { k->p.batch, half(k->p.h.in), half(k->p.w.in), k->p.channels };
    const int64_t rows[] = { k->p.batch, k->p.channels, k->p.h.in, k->p.w.in };
    atto__pool_knobs knobs =
        knobs_of(k, k->channels ? "atto_pool_backward_channels" : "atto_pool_backward");
    knobs.vectors =
        k->channels ? has_channel_vectors(k) : k->p.w.in % vector == 0 && is_aligned(k, &k->big);
    if (k->channels && knobs.vectors && has_pairs(k)) {
        knobs.kernel = "atto_pool_backward_unrolled";
        knobs.window = window_edge(k);
    }
    choose_group(k, ATTO_CHOICE_POOL_BACKWARD, &knobs);
    const int64_t runs =
        arg_call(&args, k, false, k->channels ? channels : rows, knobs.vectors ? vector : 1);
    return launch(k, &knobs, &args, runs);
}

atto_status atto__opencl_avg_pool_backward(atto_device *dev, const struct atto_avg_pool_args *a,
                                           const atto__layout *layout)
{
    if (!a->dx) return ATTO_OK;
    const atto__pooling p = atto__avg_pool_of(a, a->dx, a->dy);
    call k = call_of(dev, &p, a->dx, a->dy, NULL, layout);
    k.add = a->add_dx;
    return run_backward(&k);
}

atto_status atto__opencl_max_pool_backward(atto_device *dev, const struct atto_max_pool_args *a,
                                           const atto__layout *layout)
{
    if (!a->dx) return ATTO_OK;
    const atto__pooling p = atto__pooling_of(a->dx, a->dy, &a->window);
    call k = call_of(dev, &p, a->dx, a->dy, a->indices, layout);
    k.is_max = true;
    k.add = a->add_dx;
    return run_backward(&k);
}

/* ---- prepare ---- */

static atto_status prepare(atto_device *dev, atto__pool_knobs knobs)
{
    static const char *const kernels[] = { "atto_pool_forward", "atto_pool_backward" };
    for (int32_t i = 0; i < 2; i++) {
        atto__variant variant;
        knobs.kernel = kernels[i];
        atto__pool_variant(&knobs, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}

atto_status atto__opencl_avg_pool_prepare(atto_device *dev, atto_dtype dtype)
{
    return prepare(dev, (atto__pool_knobs){ .dtype = dtype });
}

atto_status atto__opencl_max_pool_prepare(atto_device *dev, atto_dtype dtype)
{
    return prepare(dev, (atto__pool_knobs){ .dtype = dtype, .is_max = true, .index_bits = 32 });
}
