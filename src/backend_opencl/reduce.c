/* SPDX-License-Identifier: MIT */
/* Reductions on OpenCL: see src/cl/reduce.cl. */
#include "fold.h"

/* ---- how a fold is cut ----
 *
 * By sizes and the device's work-group size alone, so that results do not depend on who else uses
 * the device. */

#define GROUPS     1024 /* work-groups that keep any GPU busy */
#define LANE_UNITS 8    /* a lane with fewer units than this to fold is not worth having */
#define SLAB_UNITS 8    /* per lane, likewise */
#define COALESCED  32   /* neighbouring work-items that should read neighbouring units */

typedef struct cut {
    int32_t run;             /* elements of a unit */
    int64_t outputs, length; /* in units */
    int64_t lanes;           /* work-items of an output unit: a power of two */
    int64_t groups;          /* work-groups of a slab */
    int64_t slabs, per_slab;
} cut;

/* Whether every stride but the innermost is a multiple of vector. */
static bool strides_divide(const int64_t *strides, int32_t count, int32_t vector)
{
    for (int32_t d = 0; d < count; d++)
        if (strides[d] % vector != 0) return false;
    return true;
}

/* The innermost elements of a unit are neighbours that start at a vector. */
static bool is_vector(const atto_tensor *t, const int64_t *inner, const int64_t *outer,
                      int32_t vector)
{
    return t->offset % vector == 0 && inner[3] == 1 && strides_divide(inner, 3, vector) &&
           strides_divide(outer, 4, vector);
}

/* The same, or one element for all of a unit, or no tensor. */
static bool is_operand(const atto_tensor *t, const int64_t *inner, const int64_t *outer,
                       int32_t vector)
{
    return !t || inner[3] == 0 || is_vector(t, inner, outer, vector);
}

static bool takes_vectors(const atto__reduction *r, const atto__fold_plan *p, int32_t vector)
{
    const bool rows = p->rows;
    if (r->fold == ATTO_FOLD_ARG && !rows) return false;
    return (rows ? p->size : p->kept_size)[3] % vector == 0 &&
           is_vector(r->in, rows ? p->in : p->kept_in, rows ? p->kept_in : p->in, vector) &&
           is_operand(r->a, rows ? p->a : p->kept_a, rows ? p->kept_a : p->a, vector) &&
           is_operand(r->b, rows ? p->b : p->kept_b, rows ? p->kept_b : p->b, vector);
}

static int64_t row_lanes(const cut *c, int64_t group)
{
    const int64_t units = c->run > 1 ? LANE_UNITS : 1; /* single elements: read side by side */
    int64_t lanes = 1;
    while (lanes < group && lanes * units < c->length) lanes *= 2;
    return lanes;
}

static int64_t column_lanes(const cut *c, int64_t group)
{
    int64_t lanes = 1;
    while (lanes < group && lanes * LANE_UNITS < c->length &&
           atto__group_count(c->outputs * lanes, group) < GROUPS / 2 &&
           (group / lanes > COALESCED || group / lanes > c->outputs))
        lanes *= 2;
    return lanes;
}

static void cut_slabs(cut *c)
{
    int64_t slabs = GROUPS / c->groups;
    const int64_t most = c->length / (c->lanes * SLAB_UNITS);
    if (slabs > most) slabs = most;
    if (slabs < 1) slabs = 1;
    c->per_slab = (c->length + slabs - 1) / slabs;
    c->slabs = (c->length + c->per_slab - 1) / c->per_slab;
}

static cut cut_of(const atto_device *dev, const atto__reduction *r, const atto__fold_plan *p)
{
    const int64_t group = atto__opencl_of(dev)->group_size;
    const int32_t vector = atto__vector_elements(r->in->dtype);
    cut c = { .run = takes_vectors(r, p, vector) ? vector : 1,
              .outputs = p->outputs,
              .length = p->length };
    if (p->rows) {
        c.length /= c.run;
        c.lanes = row_lanes(&c, group);
    } else {
        c.outputs /= c.run;
        c.lanes = column_lanes(&c, group);
    }
    c.groups = atto__group_count(c.outputs * c.lanes, group);
    cut_slabs(&c);
    return c;
}

/* ---- one launch ---- */

/* What a launch writes: the result, or [slabs, outputs] of its parts. */
typedef struct target {
    const atto_tensor *out;
    int64_t stride[4];         /* for the kept dimensions */
    int64_t slab_outputs;      /* elements from slab to slab */
    const atto_tensor *values; /* ARG with several slabs */
    bool is_part;
} target;

static void arg_strides(atto__args *args, bool wide, const int64_t *strides)
{
    atto__arg_index4(args, wide, strides);
}

/* The last dimension counts units. */
static void arg_unit_sizes(atto__args *args, bool wide, const int64_t *sizes, int32_t run)
{
    int64_t units[4] = { sizes[0], sizes[1], sizes[2], sizes[3] / run };
    atto__arg_sizes(args, wide, units);
}

static void arg_buffer(atto__args *args, const atto_tensor *t)
{
    atto__arg_tensor(args, t);
    args->count--; /* scratch starts at 0 */
}

static void operand_args(atto__args *args, const atto_tensor *t, bool wide, const int64_t *kept,
                         const int64_t *folded)
{
    if (!t) return;
    atto__arg_tensor(args, t);
    arg_strides(args, wide, kept);
    arg_strides(args, wide, folded);
}

static void fold_args(atto__args *args, const atto__reduction *r, const atto__fold_plan *p,
                      const cut *c, const target *to)
{
    const bool wide = r->layout->wide, share = r->share && !to->is_part;
    args->count = 0;
    atto__arg_tensor(args, r->in);
    atto__arg_tensor(args, to->out);
    if (r->formula) {
        operand_args(args, r->a, wide, p->kept_a, p->a);
        operand_args(args, r->b, wide, p->kept_b, p->b);
        atto__arg_float(args, r->value);
    }
    if (r->match) {
        atto__arg_tensor(args, r->match);
        arg_strides(args, wide, p->kept_match);
    }
    if (share) {
        atto__arg_tensor(args, r->share);
        arg_strides(args, wide, p->kept_share);
    }
    if (to->values) arg_buffer(args, to->values);
    atto__arg_uint(args, (uint32_t)c->lanes);
    atto__arg_index(args, wide, c->groups);
    atto__arg_index(args, wide, c->outputs);
    arg_unit_sizes(args, wide, p->kept_size, p->rows ? 1 : c->run);
    arg_strides(args, wide, p->kept_in);
    arg_strides(args, wide, to->stride);
    atto__arg_index(args, wide, c->length);
    arg_unit_sizes(args, wide, p->size, p->rows ? c->run : 1);
    arg_strides(args, wide, p->in);
    arg_strides(args, wide, p->index);
    atto__arg_uint(args, p->rank <= 1);
    atto__arg_index(args, wide, c->per_slab);
    atto__arg_ulong(args, (uint64_t)to->slab_outputs);
}

/* sign: of the input; out_sign: of the result. */
static atto_status launch_fold(atto_device *dev, const atto__reduction *r, const atto__fold_plan *p,
                               const cut *c, const target *to, float sign, float out_sign)
{
    static const char *const names[] = { [ATTO_FOLD_SUM] = "sum",
                                         [ATTO_FOLD_MAX] = "max",
                                         [ATTO_FOLD_ARG] = "arg",
                                         [ATTO_FOLD_TIES] = "ties" };
    const atto__fold_knobs knobs = {
        .fold = names[r->fold],
        .formula = r->formula,
        .scalar = r->formula ? (r->a ? 0 : 1) | (r->b ? 0 : 2) : 0,
        .dtype = r->in->dtype,
        .out = to->out->dtype,
        .rows = p->rows,
        .vectors = c->run > 1,
        .share = r->share && !to->is_part,
        .slabs = to->values != NULL,
        .wide = r->layout->wide,
    };
    atto__variant variant;
    atto__fold_variant(&knobs, &variant);
    atto__args args;
    fold_args(&args, r, p, c, to);
    atto__arg_float(&args, sign);
    atto__arg_float(&args, out_sign);
    atto__arg_float(&args, to->is_part ? 1.0f : r->divisor);
    atto__arg_uint(&args, r->add && !to->is_part);
    return atto__launch(dev, &variant, &args, c->groups * c->slabs);
}

static target target_of(const atto__reduction *r, const atto__fold_plan *p)
{
    target to = { .out = r->out };
    for (int32_t d = 0; d < 4; d++) to.stride[d] = p->kept_out[d];
    return to;
}

/* ---- two launches ---- */

/* Dense strides of the kept dimensions; their order is that of the outputs' numbers. */
static void dense_strides(const atto__fold_plan *p, int64_t *stride)
{
    int64_t next = 1;
    for (int32_t d = 3; d >= 0; d--) {
        stride[d] = next;
        next *= p->kept_size[d];
    }
}

static atto_status join_positions(atto_device *dev, const atto__reduction *r,
                                  const atto__fold_plan *p, int64_t slabs,
                                  const atto_tensor *values, const atto_tensor *positions)
{
    const bool wide = r->layout->wide;
    atto__variant variant;
    atto__fold_join_variant(r->out->dtype, wide, &variant);
    atto__args args;
    args.count = 0;
    arg_buffer(&args, values);
    arg_buffer(&args, positions);
    atto__arg_tensor(&args, r->out);
    atto__arg_index(&args, wide, p->outputs);
    atto__arg_index(&args, wide, slabs);
    atto__arg_sizes(&args, wide, p->kept_size);
    arg_strides(&args, wide, p->kept_out);
    return atto__launch(dev, &variant, &args,
                        atto__group_count(p->outputs, atto__opencl_of(dev)->group_size));
}

/* The parts, [slabs, outputs], folded as columns. */
static atto_status join_parts(atto_device *dev, const atto__reduction *r, const atto__fold_plan *p,
                              int64_t slabs, const atto_tensor *parts)
{
    atto__reduction last = *r;
    atto__fold_plan plan = *p;
    last.in = parts;
    last.match = last.a = last.b = NULL;
    last.formula = NULL;
    if (r->fold == ATTO_FOLD_TIES) last.fold = ATTO_FOLD_SUM;
    dense_strides(p, plan.kept_in);
    plan.rows = false;
    plan.rank = 1;
    for (int32_t d = 0; d < 4; d++) plan.size[d] = 1;
    plan.size[3] = plan.length = slabs;
    plan.in[3] = p->outputs;
    cut c = { .run = 1, .outputs = p->outputs, .length = slabs, .slabs = 1, .per_slab = slabs };
    const int64_t group = atto__opencl_of(dev)->group_size;
    c.lanes = column_lanes(&c, group);
    c.groups = atto__group_count(c.outputs * c.lanes, group);
    const target to = target_of(r, p);
    return launch_fold(dev, &last, &plan, &c, &to, 1.0f, r->negate ? -1.0f : 1.0f);
}

static atto_status fold_slabs(atto_device *dev, const atto__reduction *r, const atto__fold_plan *p,
                              const cut *c)
{
    const bool arg = r->fold == ATTO_FOLD_ARG;
    const int64_t n = c->slabs * p->outputs;
    atto_buffer headers[2];
    atto_tensor parts, values;
    ATTO_TRY(atto__scratch_tensor(dev, arg ? ATTO_I64 : ATTO_F32, 1, &n, &headers[0], &parts));
    if (arg) ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &n, &headers[1], &values));
    target to = {
        .out = &parts, .slab_outputs = p->outputs, .values = arg ? &values : NULL, .is_part = true
    };
    dense_strides(p, to.stride);
    ATTO_TRY(launch_fold(dev, r, p, c, &to, r->negate ? -1.0f : 1.0f, 1.0f));
    return arg ? join_positions(dev, r, p, c->slabs, &values, &parts)
               : join_parts(dev, r, p, c->slabs, &parts);
}

atto_status atto__opencl_fold(atto_device *dev, const atto__reduction *r)
{
    const atto__fold_plan p = atto__fold_plan_of(r);
    const cut c = cut_of(dev, r, &p);
    const float sign = r->negate ? -1.0f : 1.0f;
    if (c.slabs > 1) return fold_slabs(dev, r, &p, &c);
    const target to = target_of(r, &p);
    return launch_fold(dev, r, &p, &c, &to, sign, sign);
}

/* ---- the op ---- */

atto_status atto__opencl_reduce_forward(atto_device *dev, const struct atto_reduce_args *a,
                                        const atto__layout *layout)
{
    const atto__reduction r = atto__reduction_of(a, layout);
    return atto__opencl_fold(dev, &r);
}

static atto_status spread(atto_device *dev, const struct atto_reduce_args *a,
                          const atto__layout *layout)
{
    atto__elementwise call = { .file = "reduce.cl", .kernel = "atto_spread", .layout = layout };
    call.tensors[call.count++] = a->dy;
    call.tensors[call.count++] = a->dx;
    atto__arg_float(&call.own, a->kind == ATTO_REDUCE_MEAN ? (float)layout->folded : 1.0f);
    atto__arg_uint(&call.own, a->add_dx);
    return atto__elementwise_launch(dev, &call);
}

static atto_status spread_ties(atto_device *dev, const struct atto_reduce_args *a,
                               const atto__layout *layout)
{
    atto_buffer header;
    atto_tensor share;
    ATTO_TRY(atto__scratch_like(dev, a->y, a->y->dtype, &header, &share));
    const atto__reduction ties = atto__ties_of(a, layout, &share);
    ATTO_TRY(atto__opencl_fold(dev, &ties));
    atto__elementwise call = { .file = "reduce.cl",
                               .kernel = "atto_spread_ties",
                               .layout = layout };
    call.tensors[call.count++] = a->x;
    call.tensors[call.count++] = a->y;
    call.tensors[call.count++] = &share;
    call.tensors[call.count++] = a->dx;
    atto__arg_uint(&call.own, a->add_dx);
    return atto__elementwise_launch(dev, &call);
}

atto_status atto__opencl_reduce_backward(atto_device *dev, const struct atto_reduce_args *a,
                                         const atto__layout *layout)
{
    const bool is_extreme = a->kind == ATTO_REDUCE_MAX || a->kind == ATTO_REDUCE_MIN;
    return is_extreme ? spread_ties(dev, a, layout) : spread(dev, a, layout);
}

atto_status atto__opencl_reduce_prepare(atto_device *dev, atto_dtype dtype)
{
    const atto__fold_knobs fold = {
        .fold = "sum", .dtype = dtype, .out = dtype, .rows = true, .vectors = true
    };
    const atto__elementwise_knobs spread_knobs = { .file = "reduce.cl",
                                                   .kernel = "atto_spread",
                                                   .dtype = dtype };
    atto__variant variant;
    atto__fold_variant(&fold, &variant);
    ATTO_TRY(atto__prepare(dev, &variant));
    atto__elementwise_variant(&spread_knobs, &variant);
    return atto__prepare(dev, &variant);
}
