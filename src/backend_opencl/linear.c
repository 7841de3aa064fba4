/* SPDX-License-Identifier: MIT */
/* Linear on OpenCL: three products (gemm.c), and see src/cl/linear.cl. */
#include "cl/atto_gemm_flags.h"
#include "gemm.h"
#include "walk.h"

atto_status atto__opencl_linear_forward(atto_device *dev, const struct atto_linear_args *a,
                                        const atto__layout *layout)
{
    (void)layout;
    const atto__gemm g = {
        .m = a->y->shape[0],
        .n = a->y->shape[1],
        .k = a->x->shape[1],
        .a = a->x,
        .b = a->w,
        .out = a->y,
        .bias = a->b,
        .z = a->z,
        .residual = a->residual,
        .act = a->act,
        .dropout = a->dropout,
        .rng = a->rng,
    };
    return atto__gemm_run(dev, &g);
}

/* ---- backward ---- */

/* What the three gradients are made of: dy and what dz needs besides, or dz. */
typedef struct gradient {
    const atto_tensor *dy; /* [M, N] */
    const atto_tensor *z;  /* NULL where the activation is the identity */
    atto_activation act;
    float dropout;
    atto_rng rng;
    bool plain; /* dz is dy */
} gradient;

static gradient gradient_of(const struct atto_linear_args *a)
{
    const bool identity = a->act.kind == ATTO_ACT_IDENTITY;
    return (gradient){
        .dy = a->dy,
        .z = identity ? NULL : a->z,
        .act = a->act,
        .dropout = a->dropout,
        .rng = a->rng,
        .plain = identity && !(a->dropout > 0.0f),
    };
}

/* The part of a product's description that is the same for dx, dw and db. */
static atto__gemm product_of(const gradient *d, const atto_tensor *out, bool add)
{
    return (atto__gemm){
        .m = out->shape[0],
        .n = out->shape[1],
        .a = d->dy,
        .out = out,
        .add = add,
        .act = d->act,
        .dropout = d->dropout,
        .rng = d->rng,
        .prologue = !d->plain,
        .prologue_z = d->z,
    };
}

/* dx = dz w */
static atto__gemm product_dx(const struct atto_linear_args *a, const gradient *d)
{
    atto__gemm g = product_of(d, a->dx, a->add_dx);
    g.k = a->dy->shape[1];
    g.b = a->w;
    g.b_transposed = true;
    return g;
}

/* dw = dz^T x */
static atto__gemm product_dw(const struct atto_linear_args *a, const gradient *d)
{
    atto__gemm g = product_of(d, a->dw, a->add_dw);
    g.k = a->dy->shape[0];
    g.a_transposed = true;
    g.b = a->x;
    g.b_transposed = true;
    return g;
}

static bool has_elements(const atto_tensor *t)
{
    return t && atto_tensor_numel(t) > 0;
}

/* A product computes dz once for each tile beside another. Above so many evaluations in all, about
 * 4 us of an H200, a kernel that stores dz first is worth its launch. */
#define MOST_EVALUATIONS (INT64_C(1) << 21)

static bool wants_dz(atto_device *dev, const struct atto_linear_args *a, const gradient *d)
{
    if (d->plain) return false;
    int64_t passes = a->db ? 1 : 0;
    if (has_elements(a->dx)) {
        const atto__gemm g = product_dx(a, d);
        passes += atto__gemm_passes(dev, &g);
    }
    if (has_elements(a->dw)) {
        const atto__gemm g = product_dw(a, d);
        passes += atto__gemm_passes(dev, &g);
    }
    return passes > 1 && atto_tensor_numel(a->dy) > MOST_EVALUATIONS / passes;
}

/* ATTO_DY_PARAMETERS */
static void arg_dy(atto__args *args, const gradient *d, bool wide)
{
    atto__arg_matrix(args, wide, d->dy);
    atto__arg_matrix(args, wide, d->z);
    atto__arg_index(args, wide, d->dy->shape[0]);
    atto__arg_index(args, wide, d->dy->shape[1]);
}

static atto__gemm_knobs knobs_of(const atto_device *dev, const gradient *d)
{
    return (atto__gemm_knobs){
        .a = d->dy->dtype,
        .b = ATTO_F32,
        .c = ATTO_F32,
        .act = atto_activation_name(d->act.kind),
        .dropout = atto__dropout_knob_of(d->dropout, d->rng),
        .prologue = true,
        .wide = atto__matrix_wide(dev, d->dy) || atto__matrix_wide(dev, d->z),
    };
}

/* dz as a dense f32 matrix, which takes the place of dy. */
static atto_status store_dz(atto_device *dev, gradient *d, const atto_tensor *dz)
{
    const atto__gemm_knobs knobs = knobs_of(dev, d);
    const bool quads = atto__matrix_divides(d->dy, 4) && (!d->z || atto__matrix_divides(d->z, 4));
    atto__args args;
    args.count = 0;
    arg_dy(&args, d, knobs.wide);
    atto__arg_tensor(&args, dz);
    atto__arg_uint(&args, quads ? ATTO_PROLOGUE_QUADS : 0);
    atto__arg_float(&args, d->act.a);
    atto__arg_float(&args, d->act.b);
    atto__arg_dropout(&args, d->dropout, d->rng);
    atto__variant variant;
    atto__gemm_plain_variant("linear.cl", "atto_linear_dz", &knobs, &variant);
    const int64_t items = dz->shape[0] * ((dz->shape[1] + 3) / 4);
    ATTO_TRY(atto__launch(dev, &variant, &args,
                          atto__group_count(items, atto__opencl_of(dev)->group_size)));
    *d = (gradient){ .dy = dz, .act = atto_identity(), .plain = true };
    return ATTO_OK;
}

/* ---- db ---- */

#define SUM_COLUMNS    32  /* of a work-group, ATTO_SUM_COLUMNS */
#define SUM_ROWS       256 /* a slice of rows is at least so long */
#define WANTED_GROUPS  512
#define MOST_SUM_PARTS 64

/* Slices of rows that sum for themselves: by the shape alone, so that the order of a sum is. */
static int64_t sum_slices(const gradient *d)
{
    const int64_t blocks = atto__group_count(d->dy->shape[1], SUM_COLUMNS);
    const int64_t wanted = atto__group_count(WANTED_GROUPS, blocks);
    const int64_t most = atto__group_count(d->dy->shape[0], SUM_ROWS);
    const int64_t slices = wanted < most ? wanted : most;
    return slices < MOST_SUM_PARTS ? slices : MOST_SUM_PARTS;
}

/* Sums of each slice into a row of g->out. */
static atto_status launch_sums(atto_device *dev, const gradient *d, const atto__gemm *g,
                               int64_t slices)
{
    atto__gemm_knobs knobs = knobs_of(dev, d);
    knobs.c = g->out->dtype;
    knobs.wide = knobs.wide || atto__matrix_wide(dev, g->out);
    const int64_t group = atto__opencl_of(dev)->group_size;
    const int64_t slice = atto__group_count(d->dy->shape[0], slices);
    const int64_t blocks =
        atto__group_count(d->dy->shape[1], group < SUM_COLUMNS ? group : SUM_COLUMNS);
    atto__args args;
    args.count = 0;
    arg_dy(&args, d, knobs.wide);
    atto__arg_index(&args, knobs.wide, slice);
    atto__arg_ulong(&args, slices > 1 ? (uint64_t)d->dy->shape[1] : 0);
    atto__arg_epilogue(&args, g, knobs.wide);
    atto__variant variant;
    atto__gemm_plain_variant("linear.cl", "atto_linear_sums", &knobs, &variant);
    return atto__launch(dev, &variant, &args, blocks * slices);
}

/* db = column sums of dz */
static atto_status run_db(atto_device *dev, const struct atto_linear_args *a, const gradient *d)
{
    const int64_t slices = sum_slices(d);
    atto__gemm g = product_of(d, a->db, a->add_db);
    if (slices == 1) return launch_sums(dev, d, &g, 1);
    atto_buffer buffer;
    atto_tensor sums;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 2, (int64_t[]){ slices, g.n }, &buffer, &sums));
    const atto__gemm partial = product_of(d, &sums, false);
    ATTO_TRY(launch_sums(dev, d, &partial, slices));
    g.prologue = false;
    g.act = atto_identity();
    g.dropout = 0.0f;
    return atto__gemm_finish(dev, &g, &sums, slices);
}

atto_status atto__opencl_linear_backward(atto_device *dev, const struct atto_linear_args *a,
                                         const atto__layout *layout)
{
    (void)layout;
    gradient d = gradient_of(a);
    atto_buffer buffer;
    atto_tensor dz;
    if (wants_dz(dev, a, &d)) {
        ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 2, a->dy->shape, &buffer, &dz));
        ATTO_TRY(store_dz(dev, &d, &dz));
    }
    if (has_elements(a->dx)) {
        const atto__gemm g = product_dx(a, &d);
        ATTO_TRY(atto__gemm_run(dev, &g));
    }
    if (has_elements(a->dw)) {
        const atto__gemm g = product_dw(a, &d);
        ATTO_TRY(atto__gemm_run(dev, &g));
    }
    return has_elements(a->db) ? run_db(dev, a, &d) : ATTO_OK;
}

atto_status atto__opencl_linear_prepare(atto_device *dev, atto_dtype dtype)
{
    return atto__gemm_prepare(dev, dtype);
}
