/* SPDX-License-Identifier: MIT */
/* Convolution on OpenCL: walks of convolution.h as launches of src/cl/conv.cl.
 *
 * A walk is two launches: one packs the filter and lists the taps, one multiplies. A strided dx has
 * a walk for each phase. dw is a product over all spots, whose sums are cut as gemm.c cuts them. */
#include "backend_opencl/conv.h"
#include "fold.h"
#include "gemm.h"

/* Tap distances stand in 16 bits, coordinates in 31 with room for what is far away. */
static bool is_too_long(const atto__conv_axis *a)
{
    return a->big > INT32_MAX / 4 || (a->small - 1) * a->stride > INT32_MAX / 4 ||
           a->padding > INT16_MAX / 2 || a->dilation * (a->kernel - 1) > INT16_MAX / 2;
}

static atto_status conv_of(atto_device *dev, const struct atto_conv_args *a,
                           const atto__layout *layout, const atto_tensor *big,
                           const atto_tensor *small, const atto_tensor *filter, conv *out)
{
    *out = (conv){ .dev = dev,
                   .a = a,
                   .c = atto__convolution_of(&a->window, big, small, filter),
                   .channels = layout->channels_last,
                   .wide = layout->wide };
    ATTO_REQUIRE(
        !is_too_long(&out->c.h) && !is_too_long(&out->c.w), ATTO_E_BUILD,
        "conv: an image of 2^29 or more elements with its padding, or a reach or padding of "
        "2^14 or more, along an axis");
    const double spots = (double)out->c.batch * (double)out->c.h.big * (double)out->c.w.big;
    out->wide = out->wide || spots > INT32_MAX / 2;
    return ATTO_OK;
}

static bool has_elements(const atto_tensor *t)
{
    return t && atto_tensor_numel(t) > 0;
}

atto_status atto__conv_launch(const conv *v, const atto__conv_knobs *knobs, const atto__args *args,
                              int64_t groups)
{
    atto__variant variant;
    atto__conv_variant(knobs, &variant);
    if (knobs->tile)
        return atto__launch_sized(v->dev, &variant, args, groups,
                                  atto__gemm_tile_items(knobs->tile));
    return atto__launch(v->dev, &variant, args, groups);
}

/* ---- arguments ---- */

/* ATTO_SPOT_PARAMETERS */
static void arg_spots(atto__args *args, const conv *v, const atto__conv_walk *h,
                      const atto__conv_walk *w, const atto_tensor *image)
{
    atto__arg_index(args, v->wide, v->c.batch * h->count * w->count);
    atto__arg_index(args, v->wide, h->count);
    atto__arg_index(args, v->wide, w->count);
    atto__arg_divider(args, v->wide, h->count);
    atto__arg_divider(args, v->wide, w->count);
    atto__arg_uint(args, (uint32_t)h->in_step);
    atto__arg_uint(args, (uint32_t)w->in_step);
    atto__arg_uint(args, (uint32_t)image->shape[2]);
    atto__arg_uint(args, (uint32_t)image->shape[3]);
}

/* A result of a walk: its steps are those of the walk's spots. */
static atto_tensor stepped(const atto_tensor *t, const atto__conv_walk *h, const atto__conv_walk *w)
{
    atto_tensor s = *t;
    s.offset += h->first * t->stride[2] + w->first * t->stride[3];
    s.stride[2] *= h->step;
    s.stride[3] *= w->step;
    return s;
}

/* Whether four neighbours of a stepped result are 16-byte neighbours (8 in 16 bits) in memory. */
static bool has_quads(const conv *v, const atto_tensor *t, const atto__conv_walk *h,
                      const atto__conv_walk *w, int64_t outputs)
{
    static const int32_t around_channels[] = { 0, 2, 3 }, around_width[] = { 0, 1, 2 };
    if (v->channels) return outputs % 4 == 0 && atto__conv_divides4(t, around_channels, 3);
    if (t->stride[3] != 1) return false;
    if (w->count % 4 == 0) return atto__conv_divides4(t, around_width, 3);
    const bool joins = h->count == 1 || t->stride[2] == w->count;
    return joins && h->count * w->count % 4 == 0 && atto__conv_divides4(t, around_width, 2);
}

static void arg_result(atto__args *args, const conv *v, const conv_result *r, const atto_tensor *t,
                       uint32_t flag, uint32_t *flags, bool *quads)
{
    const atto_tensor none = { .rank = 4 };
    if (!t) {
        atto__conv_arg_image(args, v, &none);
        return;
    }
    const atto_tensor s = stepped(t, &r->h, &r->w);
    atto__conv_arg_image(args, v, &s);
    *flags |= flag;
    *quads = *quads && has_quads(v, &s, &r->h, &r->w, r->outputs);
}

void atto__conv_arg_out(atto__args *args, const conv *v, const conv_result *r)
{
    const struct atto_conv_args *a = v->a;
    const atto_tensor none = { .rank = 1 };
    uint32_t flags = r->add ? ATTO_CONV_ADD : 0;
    bool quads = r->quads;
    const atto_tensor *bias = r->fused ? a->b : NULL;
    atto__arg_index(args, v->wide, r->outputs);
    arg_result(args, v, r, r->out, 0, &flags, &quads);
    atto__arg_tensor(args, bias ? bias : &none);
    if (bias) flags |= ATTO_CONV_BIAS | (bias->dtype == ATTO_F32 ? ATTO_CONV_BIAS_F32 : 0);
    arg_result(args, v, r, r->fused ? a->z : NULL, ATTO_CONV_Z, &flags, &quads);
    arg_result(args, v, r, r->fused ? a->residual : NULL, ATTO_CONV_RESIDUAL, &flags, &quads);
    if (quads) flags |= ATTO_CONV_QUADS;
    const atto_activation act = r->fused ? a->act : atto_identity();
    atto__arg_uint(args, flags);
    atto__arg_float(args, act.a);
    atto__arg_float(args, act.b);
}

/* ---- filter and taps ---- */

/* A walk of one product. */
typedef struct walk {
    const conv *v;
    const atto_tensor *in;
    conv_result r;
    bool to_big;
    int64_t groups, inputs; /* inputs: channels of a group */
    atto__gemm_cut cut;     /* without a tile where few */
    bool few;               /* outputs: atto_conv_few */
    bool chunked;           /* rows: steps of k have one tap */
    int64_t vector;         /* elements of k for one tap entry */
    int64_t k, padded;
} walk;

/* Values of k: taps of all channels. */
static int64_t length_of(const walk *k)
{
    const bool taps_first = k->v->channels || k->chunked;
    return k->r.h.taps * k->r.w.taps *
           (taps_first ? atto__conv_round_up(k->inputs, k->vector) : k->inputs);
}

/* The taps, and the filter if packed is not NULL. */
static atto_status pack(const walk *k, const atto_tensor *packed, const atto_tensor *taps)
{
    const conv *v = k->v;
    const atto_tensor none = { .rank = 4, .dtype = k->in->dtype };
    const atto_tensor *filter = packed ? v->a->w : &none;
    atto__args args;
    args.count = 0;
    atto__conv_arg_image(&args, v, filter);
    atto__arg_memory(&args, packed ? atto__memory(packed) : NULL);
    atto__arg_memory(&args, atto__memory(taps));
    atto__arg_uint(&args, (uint32_t)k->r.h.taps);
    atto__arg_uint(&args, (uint32_t)k->r.w.taps);
    atto__arg_uint4(&args, (uint32_t[]){ (uint32_t)k->r.h.tap, (uint32_t)k->r.w.tap,
                                         (uint32_t)k->r.h.tap_step, (uint32_t)k->r.w.tap_step });
    atto__arg_uint4(&args, (uint32_t[]){ (uint32_t)k->r.h.at, (uint32_t)k->r.w.at,
                                         (uint32_t)k->r.h.at_step, (uint32_t)k->r.w.at_step });
    atto__arg_index4(&args, v->wide, k->in->stride);
    atto__arg_uint(&args, (uint32_t)k->inputs);
    atto__arg_uint(&args, (uint32_t)k->r.outputs);
    atto__arg_uint(&args, (uint32_t)(packed ? k->padded : 1));
    atto__arg_uint(&args, (uint32_t)k->k);
    atto__arg_uint(&args, (uint32_t)k->groups);
    atto__arg_uint(&args, (uint32_t)k->vector);
    atto__arg_uint(&args, (packed ? ATTO_CONV_FILTER : 0) | (k->to_big ? ATTO_CONV_TO_BIG : 0));
    const atto__conv_knobs knobs = { .kernel = "atto_conv_pack",
                                     .a = filter->dtype,
                                     .b = ATTO_F32,
                                     .c = ATTO_F32,
                                     .channels = v->channels,
                                     .chunked = k->chunked,
                                     .wide = v->wide };
    const int64_t entries = k->k / k->vector;
    const int64_t elements = packed ? k->groups * k->k * k->padded : 0;
    return atto__conv_launch(v, &knobs, &args,
                             atto__conv_groups(v, entries > elements ? entries : elements));
}

static atto_status scratch_taps(const conv *v, int64_t entries, atto_buffer *header,
                                atto_tensor *out)
{
    const int64_t words = 4 * (entries > 0 ? entries : 1);
    return atto__scratch_tensor(v->dev, ATTO_I32, 1, &words, header, out);
}

/* ---- a walk ---- */

/* Whether an image's vectors of channels are whole. */
static bool has_vectors(const atto_tensor *t, int64_t channels)
{
    static const int32_t around[] = { 0, 2, 3 };
    const int32_t vector = atto__vector_elements(t->dtype);
    bool all = t->offset % vector == 0 && channels % vector == 0;
    for (int32_t i = 0; i < 3; i++)
        all = all && (t->shape[around[i]] == 1 || t->stride[around[i]] % vector == 0);
    return all;
}

static atto_status cut_of(const conv *v, int64_t m, int64_t n, int64_t k, bool may_cut,
                          atto__gemm_cut *out)
{
    const atto__gemm sizes = {
        .m = m, .n = n, .k = k, .batch = { .outer = v->c.groups, .inner = 1 }
    };
    ATTO_REQUIRE(atto__gemm_cut_of(v->dev, &sizes, may_cut, out), ATTO_E_BUILD,
                 "work-groups of %d with %llu bytes are too small",
                 (int)atto__opencl_of(v->dev)->group_size,
                 (unsigned long long)v->dev->info.local_bytes);
    return ATTO_OK;
}

static atto_status multiply(const walk *k, const atto_tensor *packed, const atto_tensor *taps)
{
    const conv *v = k->v;
    const atto_dtype filter = packed->dtype, window = k->in->dtype;
    const atto__conv_knobs knobs = {
        .kernel = k->few ? "atto_conv_few" : "atto_conv_tile",
        .tile = k->cut.tile,
        .a = v->channels ? window : filter,
        .b = v->channels ? filter : window,
        .c = k->r.out->dtype,
        .a_vectors = v->channels && has_vectors(k->in, k->inputs),
        .channels = v->channels,
        .chunked = k->chunked,
        .wide = v->wide,
        .act = k->r.fused ? atto_activation_name(v->a->act.kind) : NULL,
    };
    atto__args args;
    args.count = 0;
    atto__conv_arg_image(&args, v, k->in);
    atto__arg_memory(&args, atto__memory(packed));
    atto__arg_memory(&args, atto__memory(taps));
    atto__arg_index(&args, v->wide, k->padded);
    atto__arg_index(&args, v->wide, k->k * k->padded);
    atto__arg_index(&args, v->wide, k->inputs * k->in->stride[1]);
    atto__arg_index(&args, v->wide, k->k);
    atto__arg_index(&args, v->wide, k->cut.tiles);
    arg_spots(&args, v, &k->r.h, &k->r.w, k->in);
    atto__conv_arg_out(&args, v, &k->r);
    return atto__conv_launch(v, &knobs, &args, k->cut.tiles * k->groups);
}

/* Outputs that a work-item sums up, and steps of k at once, ATTO_TILE_K's default. */
#define FEW_OUTPUTS 4
#define FEW_STEP    8

static atto_status plan_outputs(walk *k, int64_t spots)
{
    const conv *v = k->v;
    k->few = k->r.outputs <= FEW_OUTPUTS;
    if (k->few) {
        k->cut = (atto__gemm_cut){ .tiles = atto__conv_groups(v, spots) };
        return ATTO_OK;
    }
    return cut_of(v, v->channels ? spots : k->r.outputs, v->channels ? k->r.outputs : spots,
                  k->inputs * k->r.h.taps * k->r.w.taps, false, &k->cut);
}

/* Channels are rounded up to a step of k where that adds at most an eighth. */
#define CHUNK_WASTE 8

static void plan_taps(walk *k)
{
    const int64_t step = k->cut.tile ? k->cut.tile->k : FEW_STEP;
    const int64_t rounded = atto__conv_round_up(k->inputs, step);
    k->chunked = !k->v->channels && (rounded - k->inputs) * CHUNK_WASTE <= k->inputs;
    k->vector = k->chunked ? step : 1;
    if (k->v->channels) k->vector = atto__vector_elements(k->in->dtype);
    k->k = length_of(k);
}

static atto_status run_walk(walk *k)
{
    const conv *v = k->v;
    const int32_t scratch = v->dev->scratch_count;
    k->groups = v->c.groups;
    k->inputs = k->to_big ? v->c.small_channels : v->c.big_channels;
    k->r.outputs = k->to_big ? v->c.big_channels : v->c.small_channels;
    k->padded = atto__conv_round_up(k->r.outputs, atto__vector_elements(v->a->w->dtype));
    const int64_t spots = v->c.batch * k->r.h.count * k->r.w.count;
    if (spots == 0 || k->r.outputs == 0) return ATTO_OK;
    ATTO_TRY(plan_outputs(k, spots));
    k->r.quads = v->channels || !k->few;
    plan_taps(k);
    if (k->k == 0 && k->r.add) return ATTO_OK;
    atto_buffer headers[2];
    atto_tensor packed, taps;
    int64_t room = k->groups * k->k * k->padded;
    if (room == 0) room = 1;
    ATTO_TRY(atto__scratch_tensor(v->dev, v->a->w->dtype, 1, &room, &headers[0], &packed));
    ATTO_TRY(scratch_taps(v, k->k / k->vector, &headers[1], &taps));
    if (k->k > 0) ATTO_TRY(pack(k, &packed, &taps));
    ATTO_TRY(multiply(k, &packed, &taps));
    atto__scratch_release(v->dev, scratch);
    return ATTO_OK;
}

/* r says what is made; its walk is found here. */
static atto_status run_small(const conv *v, const atto_tensor *in, const conv_result *r)
{
    if (atto__conv_is_depthwise(v)) return atto__conv_depthwise(v, in, r, false);
    walk k = { .v = v, .in = in, .r = *r };
    k.r.h = atto__conv_walk_small(&v->c.h);
    k.r.w = atto__conv_walk_small(&v->c.w);
    return run_walk(&k);
}

static atto_status run_big(const conv *v, const atto_tensor *in, const conv_result *r)
{
    if (atto__conv_is_depthwise(v)) return atto__conv_depthwise(v, in, r, true);
    walk k = { .v = v, .in = in, .r = *r, .to_big = true };
    for (int64_t i = 0; i < atto__conv_phases(&v->c.h); i++) {
        for (int64_t j = 0; j < atto__conv_phases(&v->c.w); j++) {
            k.r.h = atto__conv_walk_big(&v->c.h, i);
            k.r.w = atto__conv_walk_big(&v->c.w, j);
            ATTO_TRY(run_walk(&k));
        }
    }
    return ATTO_OK;
}

/* ---- dw ---- */

/* Whether spots of the small image are vectors in memory. */
static bool has_spot_vectors(const atto_tensor *t)
{
    const int32_t vector = atto__vector_elements(t->dtype);
    const int64_t plane = t->shape[2] * t->shape[3];
    const bool joins = t->shape[2] == 1 || t->stride[2] == t->shape[3];
    return joins && plane % vector == 0 && t->offset % vector == 0 &&
           (t->shape[1] == 1 || t->stride[1] % vector == 0) &&
           (t->shape[0] == 1 || t->stride[0] % vector == 0);
}

/* Slices of spots that keep a GPU busy: by shapes alone, as the order of sums is. An H200 has 132
 * multiprocessors, each of which runs two tiles of 128 x 128 at a time, or as many smaller ones as
 * have as many sums: the fewest slices with which nine tenths of these places have work until the
 * end. Each slice has so many spots that its sums are worth storing. */
#define PLACED_SUMS (INT64_C(132) * 2 * 128 * 128)
#define LEAST_SPOTS 512
#define MOST_SLICES 256

int64_t atto__conv_slices(int64_t groups, int64_t places, int64_t most)
{
    int64_t best = 1, best_share = 0;
    for (int64_t s = 1; s <= most; s++) {
        const int64_t share = 1000 * groups * s / (atto__divide_up(groups * s, places) * places);
        if (share > best_share) {
            best = s;
            best_share = share;
        }
        if (share >= 900) break;
    }
    return best;
}

static void slice_spots(const conv *v, int64_t spots, atto__gemm_cut *cut)
{
    const int64_t places = PLACED_SUMS / (cut->tile->m * cut->tile->n);
    int64_t most = spots / LEAST_SPOTS < MOST_SLICES ? spots / LEAST_SPOTS : MOST_SLICES;
    if (v->dev->info.kind == ATTO_KIND_OPENCL_CPU) most = 1;
    const int64_t slices = atto__conv_slices(cut->tiles * v->c.groups, places, most);
    cut->slice = atto__conv_round_up(atto__divide_up(spots, slices), 64);
    if (cut->slice == 0) cut->slice = 64;
    cut->slices = spots > 0 ? atto__divide_up(spots, cut->slice) : 1;
}

atto_status atto__conv_finish_filter(const conv *v, int64_t inputs, int64_t vector,
                                     const atto_tensor *sums, int64_t columns, int64_t slices)
{
    const atto_tensor *dw = v->a->dw;
    const int64_t rows = v->c.groups * v->c.small_channels;
    atto__args args;
    args.count = 0;
    atto__arg_memory(&args, atto__memory(sums));
    atto__arg_index(&args, v->wide, rows);
    atto__arg_index(&args, v->wide, columns);
    atto__arg_uint(&args, (uint32_t)slices);
    atto__arg_uint(&args, (uint32_t)inputs);
    atto__arg_uint(&args, (uint32_t)atto__conv_round_up(inputs, vector));
    atto__arg_uint(&args, (uint32_t)v->c.h.kernel);
    atto__arg_uint(&args, (uint32_t)v->c.w.kernel);
    atto__conv_arg_image(&args, v, dw);
    atto__arg_uint(&args, v->a->add_dw);
    const atto__conv_knobs knobs = { .kernel = "atto_conv_finish",
                                     .a = ATTO_F32,
                                     .b = ATTO_F32,
                                     .c = dw->dtype,
                                     .channels = v->channels,
                                     .wide = v->wide };
    return atto__conv_launch(v, &knobs, &args, atto__conv_groups(v, rows * columns));
}

static atto_status multiply_filter(const walk *k, const atto_tensor *small, const atto_tensor *taps,
                                   const atto__gemm_cut *cut, int64_t columns,
                                   const atto_tensor *sums)
{
    const conv *v = k->v;
    const int64_t m = v->c.small_channels;
    const atto__conv_knobs knobs = {
        .kernel = "atto_conv_filter",
        .tile = cut->tile,
        .a = small->dtype,
        .b = k->in->dtype,
        .c = ATTO_F32,
        .a_vectors = v->channels ? has_vectors(small, m) : has_spot_vectors(small),
        .b_vectors = v->channels && has_vectors(k->in, k->inputs),
        .channels = v->channels,
        .wide = v->wide,
    };
    atto__args args;
    args.count = 0;
    atto__conv_arg_image(&args, v, small);
    atto__conv_arg_image(&args, v, k->in);
    atto__arg_memory(&args, atto__memory(taps));
    atto__arg_index(&args, v->wide, m);
    atto__arg_index(&args, v->wide, k->k);
    atto__arg_index(&args, v->wide, columns);
    atto__arg_index(&args, v->wide, m * small->stride[1]);
    atto__arg_index(&args, v->wide, k->inputs * k->in->stride[1]);
    atto__arg_index(&args, v->wide, cut->tiles);
    atto__arg_index(&args, v->wide, cut->slice);
    atto__arg_index(&args, v->wide, cut->slices);
    atto__arg_index(&args, v->wide, v->c.groups);
    arg_spots(&args, v, &k->r.h, &k->r.w, k->in);
    atto__arg_memory(&args, atto__memory(sums));
    return atto__conv_launch(v, &knobs, &args, cut->tiles * cut->slices * v->c.groups);
}

static atto_status run_filter_as_it_lies(const conv *v, const atto_tensor *big,
                                         const atto_tensor *small)
{
    walk k = { .v = v,
               .in = big,
               .groups = v->c.groups,
               .inputs = v->c.big_channels,
               .r.outputs = v->c.small_channels };
    k.r.h = atto__conv_walk_small(&v->c.h);
    k.r.w = atto__conv_walk_small(&v->c.w);
    k.vector = v->channels ? atto__vector_elements(big->dtype) : 1;
    k.k = length_of(&k);
    const int64_t columns = atto__conv_round_up(k.k, 4),
                  spots = v->c.batch * k.r.h.count * k.r.w.count;
    atto__gemm_cut cut;
    ATTO_TRY(cut_of(v, v->c.small_channels, k.k, spots, true, &cut));
    slice_spots(v, spots, &cut);
    const int64_t rows = v->c.groups * v->c.small_channels;
    const int64_t shape[] = { cut.slices * rows, columns };
    atto_buffer headers[2];
    atto_tensor sums, taps;
    ATTO_TRY(atto__scratch_tensor(v->dev, ATTO_F32, 2, shape, &headers[0], &sums));
    ATTO_TRY(scratch_taps(v, k.k / k.vector, &headers[1], &taps));
    ATTO_TRY(pack(&k, NULL, &taps));
    ATTO_TRY(multiply_filter(&k, small, &taps, &cut, columns, &sums));
    return atto__conv_finish_filter(v, k.inputs, k.vector, &sums, columns, cut.slices);
}

/* Of small planes in rows, neighbours along channels are what vectors can be loaded of: copies cost
 * less than they save. On an H200, dw of 512 to 512 channels, 3 x 3 of 7 x 7, 64 images: 0.71 ms
 * without copies, 0.45 with them. */
#define SMALL_PLANE 1024

atto_status atto__conv_copy_to_channels(const conv *v, const atto_tensor *t, atto_buffer *header,
                                        atto_tensor *out)
{
    ATTO_TRY(atto__scratch_tensor(v->dev, t->dtype, 4, t->shape, header, out));
    out->stride[0] = t->shape[1] * t->shape[2] * t->shape[3];
    out->stride[1] = 1;
    out->stride[2] = t->shape[1] * t->shape[3];
    out->stride[3] = t->shape[1];
    atto_tensor to = *out, from = *t;
    atto_tensor *const walked[] = { &to, &from };
    atto__layout layout;
    ATTO_REQUIRE(atto__layout_merge(walked, 2, false, v->wide, &layout), ATTO_E_STRIDE,
                 "conv: an image cannot be walked");
    return v->dev->vt->copy(v->dev, &to, &from, &layout);
}

static atto_status run_filter(const conv *v, const atto_tensor *big, const atto_tensor *small)
{
    const bool copies = !v->channels && v->c.h.kernel * v->c.w.kernel > 1 && v->c.groups == 1 &&
                        v->c.h.big * v->c.w.big <= SMALL_PLANE && v->c.batch > 0;
    if (atto__conv_is_depthwise(v)) return atto__conv_depthwise_filter(v, big, small);
    if (!copies) return run_filter_as_it_lies(v, big, small);
    atto_buffer headers[2];
    atto_tensor images[2];
    conv turned = *v;
    turned.channels = true;
    ATTO_TRY(atto__conv_copy_to_channels(v, big, &headers[0], &images[0]));
    ATTO_TRY(atto__conv_copy_to_channels(v, small, &headers[1], &images[1]));
    return run_filter_as_it_lies(&turned, &images[0], &images[1]);
}

/* ---- db and dz ---- */

/* Sums over all but the channels. */
static atto_status run_bias(const conv *v, const atto_tensor *dz)
{
    if (!has_elements(dz)) return v->a->add_db ? ATTO_OK : atto_tensor_fill(v->a->db, 0.0);
    atto_tensor in = *dz, out = *v->a->db;
    atto_tensor *walked[] = { &in, &out };
    atto__layout layout;
    out.rank = 4;
    for (int32_t d = 0; d < 4; d++) {
        out.stride[d] = d == 1 ? v->a->db->stride[0] : 0;
        out.shape[d] = dz->shape[d];
    }
    if (out.shape[1] > 1 && out.stride[1] == 0) out.stride[1] = 1;
    atto__layout_merge(walked, 2, false, v->wide, &layout);
    const atto__reduction sum = { .fold = ATTO_FOLD_SUM,
                                  .in = &in,
                                  .out = &out,
                                  .layout = &layout,
                                  .divisor = 1.0f,
                                  .add = v->a->add_db };
    return atto__opencl_fold(v->dev, &sum);
}

/* dz as a dense f32 image in scratch; dy itself without an activation. */
static atto_status make_dz(const conv *v, atto_buffer *header, atto_tensor *made,
                           const atto_tensor **dz)
{
    const struct atto_conv_args *a = v->a;
    *dz = a->dy;
    if (a->act.kind == ATTO_ACT_IDENTITY) return ATTO_OK;
    static const int32_t rows[] = { 0, 1, 2, 3 }, channels[] = { 0, 2, 3, 1 };
    const int32_t *order = v->channels ? channels : rows;
    ATTO_TRY(atto__scratch_tensor(v->dev, ATTO_F32, 4, a->dy->shape, header, made));
    int64_t size[4], dy[4], z[4], step = 1;
    for (int32_t i = 3; i >= 0; i--) {
        size[i] = a->dy->shape[order[i]];
        dy[i] = a->dy->stride[order[i]];
        z[i] = a->z->stride[order[i]];
        made->stride[order[i]] = step;
        step *= size[i];
    }
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, a->dy);
    atto__arg_index4(&args, v->wide, dy);
    atto__arg_tensor(&args, a->z);
    atto__arg_index4(&args, v->wide, z);
    atto__arg_tensor(&args, made);
    atto__arg_index(&args, v->wide, step);
    atto__arg_sizes(&args, v->wide, size);
    atto__arg_float(&args, a->act.a);
    atto__arg_float(&args, a->act.b);
    const atto__conv_knobs knobs = { .kernel = "atto_conv_dz",
                                     .a = a->dy->dtype,
                                     .b = ATTO_F32,
                                     .c = ATTO_F32,
                                     .wide = v->wide,
                                     .act = atto_activation_name(a->act.kind) };
    *dz = made;
    return atto__conv_launch(v, &knobs, &args, atto__conv_groups(v, step));
}

/* ---- calls ---- */

atto_status atto__opencl_conv_forward(atto_device *dev, const struct atto_conv_args *a,
                                      const atto__layout *layout)
{
    const bool transposed = a->window.transposed;
    conv v;
    ATTO_TRY(conv_of(dev, a, layout, transposed ? a->y : a->x, transposed ? a->x : a->y, a->w, &v));
    return transposed ? run_big(&v, a->x, &(conv_result){ .out = a->y, .fused = true })
                      : run_small(&v, a->x, &(conv_result){ .out = a->y, .fused = true });
}

static atto_status run_dx(const conv *v, const atto_tensor *dz)
{
    const conv_result r = { .out = v->a->dx, .add = v->a->add_dx };
    return v->a->window.transposed ? run_small(v, dz, &r) : run_big(v, dz, &r);
}

atto_status atto__opencl_conv_backward(atto_device *dev, const struct atto_conv_args *a,
                                       const atto__layout *layout)
{
    const atto_tensor *x = a->x ? a->x : a->dx, *w = a->w ? a->w : a->dw, *dz;
    const bool transposed = a->window.transposed;
    conv v = { .dev = dev, .a = a, .channels = layout->channels_last, .wide = layout->wide };
    if (x && w)
        ATTO_TRY(conv_of(dev, a, layout, transposed ? a->dy : x, transposed ? x : a->dy, w, &v));
    atto_buffer header;
    atto_tensor made;
    ATTO_TRY(make_dz(&v, &header, &made, &dz));
    if (has_elements(a->dx)) ATTO_TRY(run_dx(&v, dz));
    if (has_elements(a->dw)) ATTO_TRY(transposed ? run_filter(&v, dz, x) : run_filter(&v, x, dz));
    return has_elements(a->db) ? run_bias(&v, dz) : ATTO_OK;
}

atto_status atto__opencl_conv_prepare(atto_device *dev, atto_dtype dtype)
{
    const atto__gemm sizes = { .m = 64, .n = 64, .k = 64 };
    atto__gemm_cut cut;
    ATTO_REQUIRE(atto__gemm_cut_of(dev, &sizes, false, &cut), ATTO_E_BUILD,
                 "work-groups are too small");
    const atto__conv_knobs knobs = { .kernel = "atto_conv_tile",
                                     .tile = cut.tile,
                                     .a = dtype,
                                     .b = dtype,
                                     .c = dtype,
                                     .act = "identity" };
    atto__variant variant;
    atto__conv_variant(&knobs, &variant);
    return atto__prepare(dev, &variant);
}
