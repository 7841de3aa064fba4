/* SPDX-License-Identifier: MIT */
/* Layer norm and RMS norm on OpenCL: see src/cl/layer_norm.cl.
 *
 *   forward    one kernel
 *   backward   dx and work-groups' sums of dw and db in one kernel, or in two where rows do not fit
 *              into registers; then the sums of those sums
 */
#include "layer_norm.h"
#include "launch.h"
#include "tensor.h"

#define JOINED 8 /* columns of a work-group of join, as in the kernels */

typedef struct call {
    atto_device *dev;
    const atto__row_norm *n;
    bool wide, whole;
} call;

/* Vectors of 16 bytes begin where the tensor does. */
static bool is_aligned(const atto_tensor *t)
{
    return !t || t->offset % atto__vector_elements(t->dtype) == 0;
}

static call call_of(atto_device *dev, const atto__row_norm *n)
{
    const bool wide = dev->options.set.index_bits == 64 || n->cols >= INT32_MAX / 2;
    const atto_tensor *tensors[] = { n->x, n->w, n->b, n->y, n->dy, n->dx };
    bool whole = n->cols % atto__vector_elements(n->x->dtype) == 0;
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        whole = whole && is_aligned(tensors[i]);
    return (call){ dev, n, wide, whole };
}

static int32_t group_of(const call *k)
{
    return (int32_t)atto__opencl_of(k->dev)->group_size;
}

#define MOST_WORK_ITEMS 1024 /* of a work-group on NVIDIA's devices */
#define STAGES_BYTES \
    49152 /* local memory that they have at least; less means that options say so */

static atto__row_place place_of(const atto_device *dev)
{
    const atto__opencl *cl = atto__opencl_of(dev);
    const int32_t group = (int32_t)cl->group_size, most = dev->info.max_work_group;
    atto__row_place place = { .group = group, .most = group };
    if (!cl->nvidia) return place;
    while (place.most < MOST_WORK_ITEMS && 2 * place.most <= most) place.most *= 2;
    place.stages = cl->nvidia >= 80 && dev->info.local_bytes >= STAGES_BYTES;
    return place;
}

/* Work-items of a work-group. */
static int32_t items_of(const call *k, const atto__row_shape *rows)
{
    return rows->group > 0 ? rows->group : group_of(k);
}

static atto_status take_floats(atto_device *dev, int64_t count, atto_buffer *header,
                               atto_tensor *out)
{
    const int64_t size = count > 0 ? count : 1; /* there is no block of 0 bytes */
    return atto__scratch_tensor(dev, ATTO_F32, 1, &size, header, out);
}

static atto__variant variant_of(const call *k, const char *kernel, atto_dtype param,
                                atto__row_shape rows)
{
    const atto__norm_knobs knobs = { .kernel = kernel,
                                     .dtype = k->n->x->dtype,
                                     .param = param,
                                     .centred = k->n->centred,
                                     .whole = k->whole,
                                     .rows = rows,
                                     .wide = k->wide };
    atto__variant variant;
    atto__norm_variant(&knobs, &variant);
    return variant;
}

/* Elements that are empty in front of any row of x. */
static int64_t empty_slots(const atto__row_norm *n)
{
    const int64_t vector = atto__vector_elements(n->x->dtype);
    return n->cols % vector == 0 ? n->x->offset % vector : vector - 1;
}

/* ---- forward ---- */

/* A kernel knows one dtype of parameters: of two, b becomes f32, as w is. */
static atto_status match_params(const call *k, atto_buffer *header, atto_tensor *converted,
                                const atto_tensor **w, const atto_tensor **b)
{
    *w = k->n->w;
    *b = k->n->b;
    if (!*w || !*b || (*w)->dtype == (*b)->dtype) return ATTO_OK;
    const atto_tensor **narrow = (*w)->dtype == ATTO_F32 ? b : w;
    ATTO_TRY(atto__scratch_tensor(k->dev, ATTO_F32, (*narrow)->rank, (*narrow)->shape, header,
                                  converted));
    ATTO_TRY(atto__copy(k->dev, converted, *narrow));
    *narrow = converted;
    return ATTO_OK;
}

/* ---- ways ----
 *
 * Rows of whole vectors can be shared out in many ways. Sizes of the choices are a row's elements,
 * rows, and whether there is a mean. */

static atto__choice choice_of(const call *k, atto__choice_name name)
{
    return (atto__choice){ name,
                           k->n->x->dtype,
                           { k->n->cols, atto__many(k->n->rows), k->n->centred ? 1 : 2 } };
}

/* One of numbers, the first one by default; same: which leaves the bits alone. */
static int32_t choose_number(const call *k, atto__choice_name name, bool same,
                             const int32_t *numbers, int32_t count)
{
    const atto__choice choice = choice_of(k, name);
    atto__ways ways;
    if (!atto__choice_asks(k->dev, &choice)) return numbers[0];
    ways.count = 0;
    for (int32_t i = 0; i < count; i++)
        atto__ways_add(&ways, &(atto__way){ { numbers[i] }, same ? 0 : i });
    return atto__choose(k->dev, &choice, &ways).number[0];
}

static void add_shape(atto__ways *ways, const atto__row_shape *shape)
{
    const atto__way way = { { shape->lanes, shape->items, shape->group }, ways->count };
    atto__ways_add(ways, &way);
}

/* The shape with other lanes, up to so many vectors each, and other work-groups: numbers of a way
 * are lanes, vectors of each, and the work-group. */
static void choose_shape(const call *k, atto__choice_name name, const atto__row_place *place,
                         int32_t most_items, atto__row_shape *shape)
{
    const int64_t vectors = k->n->cols / atto__vector_elements(k->n->x->dtype);
    const atto__choice choice = choice_of(k, name);
    atto__ways ways;
    if (!k->whole || !shape->held || !atto__choice_asks(k->dev, &choice)) return;
    ways.count = 0;
    add_shape(&ways, shape);
    for (int32_t items = 1; items <= most_items; items *= 2) {
        atto__row_shape other = { .lanes = 1, .items = items };
        while ((int64_t)other.lanes * items < vectors && other.lanes < place->most)
            other.lanes *= 2;
        if ((int64_t)other.lanes * items < vectors) continue;
        for (other.group = 64; other.group <= place->most; other.group *= 2)
            if (other.group >= other.lanes) add_shape(&ways, &other);
    }
    const atto__way way = atto__choose(k->dev, &choice, &ways);
    shape->lanes = way.number[0];
    shape->items = way.number[1];
    shape->group = way.number[2];
}

/* A few times the rows that are side by side, if many work-groups are left then: while a row is
 * written the next is already being read. Large work-groups, of which few fit beside each other,
 * begin more seldom. */
static int64_t rows_ahead(const call *k, const atto__row_shape *shape, int64_t side_by_side)
{
    const int64_t most = shape->lanes >= 512 ? 8 : 4;
    int64_t times = k->n->rows / side_by_side / 512;
    if (times < 1) times = 1;
    const int32_t numbers[] = { (int32_t)(times > most ? most : times), 1, 2, 4, 8, 16 };
    return choose_number(k, ATTO_CHOICE_NORM_AHEAD, true, numbers, 6) * side_by_side;
}

static atto_status norm_forward(atto_device *dev, const atto__row_norm *n)
{
    const call k = call_of(dev, n);
    atto_buffer header;
    atto_tensor converted;
    const atto_tensor *w, *b;
    ATTO_TRY(match_params(&k, &header, &converted, &w, &b));
    const atto_dtype param = w ? w->dtype : b ? b->dtype : ATTO_F32;
    const atto__row_place place = place_of(dev);
    atto__row_shape rows =
        atto__norm_forward_shape(n->cols + empty_slots(n), n->x->dtype, k.whole, &place);
    choose_shape(&k, ATTO_CHOICE_NORM_FORWARD, &place, 32 / atto__vector_elements(n->x->dtype),
                 &rows);
    const int64_t per_group = rows_ahead(&k, &rows, items_of(&k, &rows) / rows.lanes);
    const atto__variant variant = variant_of(&k, "atto_norm_forward", param, rows);
    atto__args args;
    args.count = 0;
    atto__arg_tensor(&args, n->x);
    atto__arg_optional(&args, w);
    atto__arg_optional(&args, b);
    atto__arg_tensor(&args, n->y);
    atto__arg_optional(&args, n->mean);
    atto__arg_optional(&args, n->rstd);
    atto__arg_ulong(&args, (uint64_t)n->rows);
    atto__arg_index(&args, k.wide, n->cols);
    atto__arg_float(&args, n->eps);
    atto__arg_uint(&args, (uint32_t)per_group);
    return atto__launch_sized(dev, &variant, &args, atto__group_count(n->rows, per_group),
                              items_of(&k, &rows));
}

/* ---- backward ---- */

/* What the launches of a backward share. */
typedef struct gradient {
    call k;
    atto__row_shape rows;
    int64_t per_group, groups; /* rows with one sum, and such sums */
    bool wants_sums;           /* of dw or db */
    atto_buffer partial_header, sums_header;
    atto_tensor partial, sums; /* no buffer where not needed */
} gradient;

/* Work-groups side by side in the kernel whose work-items have columns. */
static int64_t strips_of(const call *k)
{
    const int64_t vector = atto__vector_elements(k->n->x->dtype);
    return atto__group_count(k->n->cols + vector - 1, group_of(k) * vector);
}

/* So many that sums are few beside the rows, and work-groups many enough for any device. The order
 * of sums depends on nothing but the shape and the work-group's size. */
static int64_t rows_per_group(const call *k, const atto__row_shape *shape, int64_t side_by_side)
{
    const int64_t rows = k->n->rows, groups = shape->groups;
    int64_t per_group = groups > 0    ? atto__group_count(rows, groups)
                        : shape->held ? rows / 512
                                      : rows * strips_of(k) / 512;
    if (per_group < 8) per_group = 8;
    if (per_group > 64 && groups == 0) per_group = 64;
    if (per_group < rows / 1024) per_group = rows / 1024;
    return (per_group + side_by_side - 1) / side_by_side * side_by_side;
}

/* How many work-groups share out all rows, and whether rows are copied ahead. */
static void choose_groups(const call *k, const atto__row_place *place, atto__row_shape *shape)
{
    const int32_t units = k->dev->info.compute_units;
    const int32_t groups[] = { shape->groups, 0, units, 2 * units, 3 * units, 4 * units };
    const int32_t stages[] = { shape->stages, 0, 2 };
    if (!k->whole || !shape->held) return;
    shape->groups = choose_number(k, ATTO_CHOICE_NORM_GROUPS, false, groups, 6);
    const bool can = place->stages && k->n->x->dtype != ATTO_F32;
    shape->stages = choose_number(k, ATTO_CHOICE_NORM_STAGES, true, stages, can ? 3 : 1);
}

static atto_status plan_gradient(atto_device *dev, const atto__row_norm *n, gradient *g)
{
    memset(g, 0, sizeof *g);
    g->k = call_of(dev, n);
    g->partial = g->sums = atto_tensor_of(NULL, ATTO_F32, atto_shape1(0), 0);
    const int64_t vector = atto__vector_elements(n->x->dtype);
    const int64_t slots = n->cols + (n->cols % vector == 0 ? n->x->offset % vector : 0);
    const atto__row_place place = place_of(dev);
    g->rows = atto__norm_backward_shape(slots, n->x->dtype, g->k.whole, &place);
    choose_shape(&g->k, ATTO_CHOICE_NORM_BACKWARD, &place, 16 / (int32_t)vector, &g->rows);
    choose_groups(&g->k, &place, &g->rows);
    g->wants_sums = n->dw || n->db;
    const int64_t side_by_side = g->rows.held ? items_of(&g->k, &g->rows) / g->rows.lanes : 1;
    g->per_group = g->wants_sums || !g->rows.held ? rows_per_group(&g->k, &g->rows, side_by_side)
                                                  : side_by_side;
    g->groups = (n->rows + g->per_group - 1) / g->per_group;
    if (g->wants_sums)
        ATTO_TRY(take_floats(dev, g->groups * 2 * n->cols, &g->partial_header, &g->partial));
    if (!g->rows.held && n->dx) ATTO_TRY(take_floats(dev, 2 * n->rows, &g->sums_header, &g->sums));
    return ATTO_OK;
}

/* GRADIENT_PARAMETERS */
static void arg_gradient(atto__args *args, const gradient *g)
{
    const atto__row_norm *n = g->k.n;
    args->count = 0;
    atto__arg_tensor(args, n->x);
    atto__arg_tensor(args, n->dy);
    atto__arg_optional(args, n->w);
    atto__arg_optional(args, n->mean);
    atto__arg_tensor(args, n->rstd);
    atto__arg_optional(args, n->dx);
    atto__arg_memory(args, g->partial.buffer ? atto__memory(&g->partial) : NULL);
    atto__arg_memory(args, g->sums.buffer ? atto__memory(&g->sums) : NULL);
    atto__arg_ulong(args, (uint64_t)n->rows);
    atto__arg_index(args, g->k.wide, n->cols);
    atto__arg_uint(args, (uint32_t)g->per_group);
    atto__arg_uint(args, n->add_dx);
}

static atto_dtype param_of(const atto__row_norm *n)
{
    return n->w ? n->w->dtype : ATTO_F32;
}

static atto_status launch_held(const gradient *g)
{
    atto__args args;
    const atto__variant variant =
        variant_of(&g->k, "atto_norm_backward", param_of(g->k.n), g->rows);
    arg_gradient(&args, g);
    return atto__launch_sized(g->k.dev, &variant, &args, g->groups, items_of(&g->k, &g->rows));
}

/* Rows that are not held. */
static atto_status launch_columns(const gradient *g)
{
    const atto__row_norm *n = g->k.n;
    const int32_t group = group_of(&g->k);
    const int64_t strips = strips_of(&g->k);
    const atto__row_shape one = { .lanes = group, .items = 1 };
    const atto__variant sums = variant_of(&g->k, "atto_norm_sums", param_of(n), g->rows);
    const atto__variant columns = variant_of(&g->k, "atto_norm_columns", param_of(n), one);
    atto__args args;
    arg_gradient(&args, g);
    if (n->dx)
        ATTO_TRY(atto__launch(g->k.dev, &sums, &args,
                              atto__group_count(n->rows, group / g->rows.lanes)));
    atto__arg_index(&args, g->k.wide, strips);
    return atto__launch(g->k.dev, &columns, &args, strips * g->groups);
}

/* dw, db or, of one dtype, both. */
static atto_status launch_join(const gradient *g, const atto_tensor *dw, const atto_tensor *db)
{
    const atto__row_norm *n = g->k.n;
    const int32_t group = group_of(&g->k), joined = group < JOINED ? group : JOINED;
    const int64_t strips = atto__group_count(n->cols, joined);
    const atto__norm_knobs knobs = { .kernel = "atto_norm_join",
                                     .dtype = ATTO_F32,
                                     .param = dw ? dw->dtype : db->dtype,
                                     .centred = true,
                                     .rows = { .lanes = group, .items = 1 },
                                     .wide = g->k.wide };
    atto__variant variant;
    atto__args args;
    atto__norm_variant(&knobs, &variant);
    args.count = 0;
    atto__arg_memory(&args, atto__memory(&g->partial));
    atto__arg_uint(&args, (uint32_t)g->groups);
    atto__arg_optional(&args, dw);
    atto__arg_optional(&args, db);
    atto__arg_index(&args, g->k.wide, n->cols);
    atto__arg_index(&args, g->k.wide, strips);
    atto__arg_uint(&args, n->add_dw);
    atto__arg_uint(&args, n->add_db);
    return atto__launch(g->k.dev, &variant, &args, dw && db ? 2 * strips : strips);
}

static atto_status norm_backward(atto_device *dev, const atto__row_norm *n)
{
    gradient g;
    ATTO_TRY(plan_gradient(dev, n, &g));
    if (n->rows > 0) ATTO_TRY(g.rows.held ? launch_held(&g) : launch_columns(&g));
    if (!g.wants_sums || n->cols == 0) return ATTO_OK;
    if (n->dw && n->db && n->dw->dtype == n->db->dtype) return launch_join(&g, n->dw, n->db);
    if (n->dw) ATTO_TRY(launch_join(&g, n->dw, NULL));
    return n->db ? launch_join(&g, NULL, n->db) : ATTO_OK;
}

/* ---- the ops ---- */

atto_status atto__opencl_layer_norm_forward(atto_device *dev, const struct atto_layer_norm_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__layer_norm_of(a);
    return norm_forward(dev, &n);
}

atto_status atto__opencl_layer_norm_backward(atto_device *dev, const struct atto_layer_norm_args *a,
                                             const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__layer_norm_of(a);
    return norm_backward(dev, &n);
}

atto_status atto__opencl_rms_norm_forward(atto_device *dev, const struct atto_rms_norm_args *a,
                                          const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__rms_norm_of(a);
    return norm_forward(dev, &n);
}

atto_status atto__opencl_rms_norm_backward(atto_device *dev, const struct atto_rms_norm_args *a,
                                           const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__rms_norm_of(a);
    return norm_backward(dev, &n);
}

/* Rows of 1024 in that dtype, which are held. */
static atto_status prepare(atto_device *dev, atto_dtype dtype, bool centred)
{
    const atto__row_place place = place_of(dev);
    const atto__norm_knobs knobs[] = {
        { .kernel = "atto_norm_forward",
          .dtype = dtype,
          .centred = centred,
          .whole = true,
          .rows = atto__norm_forward_shape(1024, dtype, true, &place) },
        { .kernel = "atto_norm_backward",
          .dtype = dtype,
          .centred = centred,
          .whole = true,
          .rows = atto__norm_backward_shape(1024, dtype, true, &place) },
        { .kernel = "atto_norm_join",
          .dtype = ATTO_F32,
          .centred = true,
          .rows = { .lanes = place.group, .items = 1 } },
    };
    for (int32_t i = 0; i < 3; i++) {
        atto__variant variant;
        atto__norm_knobs k = knobs[i];
        k.param = ATTO_F32;
        atto__norm_variant(&k, &variant);
        ATTO_TRY(atto__prepare(dev, &variant));
    }
    return ATTO_OK;
}

atto_status atto__opencl_layer_norm_prepare(atto_device *dev, atto_dtype dtype)
{
    return prepare(dev, dtype, true);
}

atto_status atto__opencl_rms_norm_prepare(atto_device *dev, atto_dtype dtype)
{
    return prepare(dev, dtype, false);
}
