/* SPDX-License-Identifier: MIT */
/* Depthwise convolutions on OpenCL: launches of src/cl/conv_depthwise.cl, one for forward or dx
 * (where channels are innermost, and one that turns the filter), two for dw. */
#include "backend_opencl/conv.h"

/* A sum along an axis as the kernels know it: result o < count adds w[first_tap + t tap_step] times
 * the image at (o step + at + t at_step) / divide, t < taps, where that divides. */
typedef struct axis {
    int64_t count, image, taps, step, at, at_step, divide, first_tap, tap_step;
} axis;

static axis axis_of(const atto__conv_axis *a, bool to_big)
{
    if (!to_big)
        return (axis){ .count = a->small,
                       .image = a->big,
                       .taps = a->kernel,
                       .step = a->stride,
                       .at = -a->padding,
                       .at_step = a->dilation,
                       .divide = 1,
                       .tap_step = 1 };
    return (axis){ .count = a->big,
                   .image = a->small,
                   .taps = a->kernel,
                   .step = 1,
                   .at = a->padding - (a->kernel - 1) * a->dilation,
                   .at_step = a->dilation,
                   .divide = a->stride,
                   .first_tap = a->kernel - 1,
                   .tap_step = -1 };
}

/* The kernels know the rows of taps of these. */
#define MOST_KNOWN 7

static bool is_known(const axis *h, const axis *w)
{
    return h->at_step == 1 && h->taps <= MOST_KNOWN && h->step <= 2 && h->divide <= 2 &&
           h->divide == w->divide;
}

/* The one of two numbers of rows of which whole blocks cover so many with less to spare. */
static int32_t fitting(int64_t count, int32_t more, int32_t fewer)
{
    const int64_t spare = atto__divide_up(count, more) * more - count;
    return atto__divide_up(count, fewer) * fewer - count < spare ? fewer : more;
}

/* Results of a work-item: as many as share what it loads while all its loads are under way. */
static int32_t rows_of(const conv *v, const axis *h)
{
    if (h->count == 1 && h->divide == 1) return 1;
    if (h->count <= 4 || (v->channels && h->step == 2)) return 4;
    if (h->divide > 1) return v->channels || h->count <= 8 ? 8 : 16;
    if (v->channels || h->count <= 8 || h->step == 2) return fitting(h->count, 8, 7);
    return fitting(h->count, 16, 14);
}

/* The same of dw, which has a result and what its taps meet in registers for each. */
static int32_t rows_of_filter(const axis *h)
{
    if (h->count == 1) return 1;
    return h->count <= 4 || h->step > 1 ? 4 : fitting(h->count, 8, 7);
}

/* How a call's results are shared out among work-items. */
typedef struct plan {
    axis h, w;
    int64_t blocks, lead, items; /* items: of all images, of one channel or quad of channels */
    atto__conv_knobs knobs;
} plan;

static plan plan_of(const conv *v, axis h, axis w, int32_t rows)
{
    plan p = { .h = h, .w = w };
    const bool known = is_known(&p.h, &p.w), divides = p.h.divide > 1 || p.w.divide > 1;
    p.knobs.depthwise.h = known ? (int32_t)p.h.taps : 0;
    p.knobs.depthwise.step = known ? (int32_t)p.h.step : 1;
    p.knobs.depthwise.divide = !divides ? 1 : known ? (int32_t)p.h.divide : 0;
    p.knobs.depthwise.rows = rows;
    p.knobs.depthwise.w = 1;
    p.knobs.depthwise.each = v->channels ? 4 : 1;
    p.knobs.channels = v->channels;
    p.knobs.wide = v->wide;
    if (known) p.lead = ((p.h.at % p.h.divide) + p.h.divide) % p.h.divide;
    p.blocks = atto__divide_up(p.h.count + p.lead, p.knobs.depthwise.rows);
    p.items = v->c.batch * p.blocks * p.w.count;
    return p;
}

static uint32_t word(int64_t n)
{
    return (uint32_t)(int32_t)n;
}

/* ATTO_DEPTHWISE_PARAMETERS; items: all that are counted. */
static void arg_plan(atto__args *args, const conv *v, const plan *p, int64_t items)
{
    atto__arg_uint4(
        args, (uint32_t[]){ word(p->h.at), word(p->w.at), word(p->h.at_step), word(p->w.at_step) });
    atto__arg_uint(args, word(p->h.taps));
    atto__arg_uint(args, word(p->w.taps));
    atto__arg_uint4(args, (uint32_t[]){ word(p->h.step), word(p->w.step), word(p->h.divide),
                                        word(p->w.divide) });
    atto__arg_uint(args, word(p->lead));
    atto__arg_uint(args, word(p->h.count));
    atto__arg_index(args, v->wide, items);
    atto__arg_index(args, v->wide, p->w.count);
    atto__arg_divider(args, v->wide, p->w.count);
    atto__arg_index(args, v->wide, p->blocks);
    atto__arg_divider(args, v->wide, p->blocks);
    atto__arg_uint(args, word(p->h.image));
    atto__arg_uint(args, word(p->w.image));
}

/* Whether four channels are a vector. */
static bool has_channel_vectors(const atto_tensor *t, int64_t channels)
{
    static const int32_t around[] = { 0, 2, 3 };
    return channels % 4 == 0 && atto__conv_divides4(t, around, 3);
}

/* The filter as [1, channels, taps], and where channels are innermost in the images, here too. */
static atto_status filter_of(const conv *v, atto_buffer *header, atto_tensor *out)
{
    *out = *v->a->w;
    out->shape[0] = 1;
    out->shape[1] = v->c.groups;
    out->stride[0] = 0;
    out->stride[1] = v->a->w->stride[0];
    if (!v->channels || out->stride[1] == 1) return ATTO_OK;
    const atto_tensor lying = *out;
    return atto__conv_copy_to_channels(v, &lying, header, out);
}

/* From the first element to the first tap, and with strides that go on from there. */
static int64_t tapped(const atto_tensor *w, const plan *p, atto_tensor *out)
{
    *out = *w;
    out->stride[0] = w->stride[1];
    out->stride[2] *= p->h.tap_step;
    out->stride[3] *= p->w.tap_step;
    return p->h.first_tap * w->stride[2] + p->w.first_tap * w->stride[3];
}

atto_status atto__conv_depthwise(const conv *given, const atto_tensor *in, const conv_result *r,
                                 bool to_big)
{
    conv v = *given;
    const int64_t channels = v.c.groups;
    const int64_t across = v.channels ? atto__divide_up(channels, 4) : channels;
    const axis h = axis_of(&v.c.h, to_big);
    plan p = plan_of(&v, h, axis_of(&v.c.w, to_big), rows_of(&v, &h));
    const int64_t items = p.items * across;
    if (items == 0) return ATTO_OK;
    if (items > INT32_MAX / 2) v.wide = p.knobs.wide = true;
    const int32_t scratch = v.dev->scratch_count;
    atto_buffer header;
    atto_tensor filter, taps;
    ATTO_TRY(filter_of(&v, &header, &filter));
    const int64_t first = tapped(&filter, &p, &taps);
    conv_result made = *r;
    made.outputs = channels;
    made.quads = v.channels;
    made.h = (atto__conv_walk){ .count = p.h.count, .step = 1 };
    made.w = (atto__conv_walk){ .count = p.w.count, .step = 1 };
    p.knobs.kernel = "atto_conv_depthwise";
    p.knobs.a = in->dtype;
    p.knobs.b = filter.dtype;
    p.knobs.c = r->out->dtype;
    p.knobs.a_vectors = v.channels && has_channel_vectors(in, channels);
    p.knobs.b_vectors = v.channels && has_channel_vectors(&filter, channels);
    p.knobs.act = r->fused ? atto_activation_name(v.a->act.kind) : NULL;
    atto__args args;
    args.count = 0;
    atto__conv_arg_image(&args, &v, in);
    atto__conv_arg_image(&args, &v, &taps);
    atto__arg_index(&args, v.wide, first);
    atto__arg_index(&args, v.wide, across);
    atto__arg_divider(&args, v.wide, across);
    arg_plan(&args, &v, &p, items);
    atto__conv_arg_out(&args, &v, &made);
    ATTO_TRY(atto__conv_launch(&v, &p.knobs, &args, atto__conv_groups(&v, items)));
    atto__scratch_release(v.dev, scratch);
    return ATTO_OK;
}

/* ---- dw ---- */

#define CHANNELS 32 /* of a work-group where they are innermost, in pairs; a small one has fewer */

/* Columns of taps of a work-item: registers hold the sums of so many. */
static int32_t columns_of(const conv *v, const plan *p)
{
    const int32_t down = p->knobs.depthwise.h > 0 ? p->knobs.depthwise.h : 1;
    const int64_t most = (v->channels ? 16 : 28) / down;
    return (int32_t)(p->w.taps < most ? p->w.taps : most);
}

static plan plan_filter(const conv *v)
{
    const axis h = axis_of(&v->c.h, false);
    plan p = plan_of(v, h, axis_of(&v->c.w, false), rows_of_filter(&h));
    p.knobs.depthwise.w = columns_of(v, &p);
    p.knobs.depthwise.each = v->channels ? 2 : 1;
    return p;
}

/* Work-items side by side that have other channels. */
static int64_t lanes_of(const conv *v, const plan *p)
{
    const int64_t most = CHANNELS / p->knobs.depthwise.each;
    const int64_t group = atto__opencl_of(v->dev)->group_size;
    return !v->channels ? 1 : most < group ? most : group;
}

/* Work-groups of a slice: blocks of channels, and of taps. */
static int64_t groups_of(const conv *v, const plan *p)
{
    const int64_t down = p->knobs.depthwise.h > 0 ? 1 : p->h.taps;
    return atto__divide_up(v->c.groups, lanes_of(v, p) * p->knobs.depthwise.each) *
           atto__divide_up(p->w.taps, p->knobs.depthwise.w) * down;
}

/* An H200 has 132 multiprocessors, each of which runs two work-groups at a time that have sums of
 * pairs of channels, eight of those of one. A slice has so many items for each work-item that its
 * sums are worth storing. */
#define PLACES_OF_PAIRS (INT64_C(132) * 2)
#define PLACES          (INT64_C(132) * 8)
#define LEAST_OF_PAIRS  8
#define LEAST           2
#define MOST_SLICES     256

static int64_t slice_of(const conv *v, const plan *p)
{
    const int64_t lines = atto__opencl_of(v->dev)->group_size / lanes_of(v, p);
    const int64_t least = lines * (v->channels ? LEAST_OF_PAIRS : LEAST);
    const int64_t most = p->items / least < MOST_SLICES ? p->items / least : MOST_SLICES;
    const int64_t slices =
        atto__conv_slices(groups_of(v, p), v->channels ? PLACES_OF_PAIRS : PLACES, most);
    return p->items > 0 ? atto__divide_up(p->items, slices) : 1;
}

atto_status atto__conv_depthwise_filter(const conv *v, const atto_tensor *big,
                                        const atto_tensor *small)
{
    const int64_t channels = v->c.groups, taps = v->c.h.kernel * v->c.w.kernel;
    const int64_t columns = atto__conv_round_up(taps, 4);
    plan p = plan_filter(v);
    p.knobs.kernel = "atto_conv_depthwise_filter";
    p.knobs.a = small->dtype;
    p.knobs.b = big->dtype;
    p.knobs.c = ATTO_F32;
    p.knobs.a_vectors = v->channels && has_channel_vectors(small, channels);
    p.knobs.b_vectors = v->channels && has_channel_vectors(big, channels);
    const int64_t slice = slice_of(v, &p);
    const int64_t slices = p.items > 0 ? atto__divide_up(p.items, slice) : 1;
    const int64_t shape[] = { slices * channels, columns };
    atto_buffer header;
    atto_tensor sums;
    ATTO_TRY(atto__scratch_tensor(v->dev, ATTO_F32, 2, shape, &header, &sums));
    atto__args args;
    args.count = 0;
    atto__conv_arg_image(&args, v, small);
    atto__conv_arg_image(&args, v, big);
    atto__arg_index(&args, v->wide, channels);
    atto__arg_index(&args, v->wide, columns);
    atto__arg_index(&args, v->wide, slice);
    arg_plan(&args, v, &p, p.items);
    atto__arg_memory(&args, atto__memory(&sums));
    ATTO_TRY(atto__conv_launch(v, &p.knobs, &args, groups_of(v, &p) * slices));
    return atto__conv_finish_filter(v, 1, 1, &sums, columns, slices);
}
