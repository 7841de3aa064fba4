/* SPDX-License-Identifier: MIT */
/* Linear on the CPU: products from gemm.c, and what is fused with them.
 *
 *   forward    z = x w^T + b,  y = drop(act(z)) + residual
 *   backward   dz = drop(act'(z) dy),  dx = dz w,  dw = dz^T x,  db = column sums of dz    (+ old)
 */
#include "backend_cpu/act.h"
#include "backend_cpu/gemm.h"
#include "backend_cpu/mask.h"

/* Hooks of gemm.c get runs that fit the buffers of a block. */
_Static_assert(ATTO_GEMM_RUN <= ATTO_BLOCK, "a run of gemm.h must fit a block of loops.h");

typedef struct linear_job {
    const struct atto_linear_args *a;
    atto__mask mask;
} linear_job;

/* Part of a matrix's row. */
static span run_of(const atto_tensor *t, int64_t row, int64_t column, int32_t n)
{
    const int64_t at = t->offset + row * t->stride[0] + column;
    char *memory = atto__memory(t);
    return (span){ memory + at * (int64_t)atto_dtype_size(t->dtype), 1, n, t->dtype };
}

static void *first_element(const atto_tensor *t)
{
    return t->buffer ? run_of(t, 0, 0, 0).first : NULL;
}

static atto__gemm_side side_of(const atto_tensor *t, bool along_k)
{
    return (atto__gemm_side){ first_element(t), t->stride[0], t->dtype, along_k };
}

/* Sums stand in the output itself where it is f32; else finish stores them, or adds them. */
static void set_output(atto__gemm *g, const atto_tensor *t, bool add)
{
    g->c = t->dtype == ATTO_F32 ? first_element(t) : NULL;
    g->c_stride = t->stride[0];
    g->accumulate = g->c && add;
}

static void drop_at(float *values, const linear_job *job, int64_t row, int64_t column, int32_t n,
                    int64_t columns)
{
    drop_values(values, n, &job->mask, (uint64_t)(row * columns + column), 1);
}

/* ---- forward ---- */

/* From sums to y. */
static void finish_forward(const void *job_, int64_t row, int64_t column, int32_t n, float *values)
{
    const linear_job *job = job_;
    const struct atto_linear_args *a = job->a;
    float buffer[ATTO_BLOCK];
    if (a->b) {
        const float *bias = load_block(run_of(a->b, 0, column, n), buffer);
        for (int32_t i = 0; i < n; i++) values[i] += bias[i];
    }
    if (a->z) store_block(values, run_of(a->z, row, column, n));
    if (a->act.kind != ATTO_ACT_IDENTITY)
        ATTO_LEVEL_NAME(act_loops)[a->act.kind].f(values, values, n, a->act.a, a->act.b);
    if (job->mask.p > 0.0f) drop_at(values, job, row, column, n, a->y->shape[1]);
    if (a->residual) accumulate_block(values, run_of(a->residual, row, column, n), buffer);
    store_block(values, run_of(a->y, row, column, n));
}

atto_status ATTO_LEVEL_NAME(linear_forward)(atto_device *dev, const struct atto_linear_args *a,
                                            const atto__layout *layout)
{
    (void)layout;
    const linear_job job = { a, atto__mask_of(a->dropout, a->rng) };
    atto__gemm g = { .m = a->y->shape[0],
                     .n = a->y->shape[1],
                     .k = a->x->shape[1],
                     .a = side_of(a->x, true),
                     .b = side_of(a->w, true),
                     .finish = finish_forward,
                     .job = &job };
    set_output(&g, a->y, false);
    dev->stats.launches++;
    return ATTO_LEVEL_NAME(gemm)(dev, &g);
}

/* ---- backward ---- */

/* A run of dz. */
static void load_dz(const void *job_, int64_t row, int64_t column, int32_t n, float *dz)
{
    const linear_job *job = job_;
    const struct atto_linear_args *a = job->a;
    float dy_buffer[ATTO_BLOCK], z_buffer[ATTO_BLOCK];
    const float *dy = load_block(run_of(a->dy, row, column, n), dy_buffer);
    if (a->act.kind != ATTO_ACT_IDENTITY) {
        const float *z = load_block(run_of(a->z, row, column, n), z_buffer);
        ATTO_LEVEL_NAME(act_loops)[a->act.kind].df(z, dy, dz, n, a->act.a, a->act.b);
    } else {
        memcpy(dz, dy, (size_t)n * sizeof *dz);
    }
    if (job->mask.p > 0.0f) drop_at(dz, job, row, column, n, a->dy->shape[1]);
}

static void finish_gradient(const atto_tensor *t, bool add, int64_t row, int64_t column, int32_t n,
                            float *values)
{
    float buffer[ATTO_BLOCK];
    const span to = run_of(t, row, column, n);
    if (add) accumulate_block(values, to, buffer);
    store_block(values, to);
}

static void finish_dx(const void *job_, int64_t row, int64_t column, int32_t n, float *values)
{
    const linear_job *job = job_;
    finish_gradient(job->a->dx, job->a->add_dx, row, column, n, values);
}

static void finish_dw(const void *job_, int64_t row, int64_t column, int32_t n, float *values)
{
    const linear_job *job = job_;
    finish_gradient(job->a->dw, job->a->add_dw, row, column, n, values);
}

/* dz on the left side of both products: dy itself where it is the same. */
static void set_dz(atto__gemm *g, const linear_job *job, bool along_k)
{
    const struct atto_linear_args *a = job->a;
    g->a = side_of(a->dy, along_k);
    if (a->act.kind != ATTO_ACT_IDENTITY || job->mask.p > 0.0f) g->prologue = load_dz;
    g->job = job;
}

static atto_status backward_dx(atto_device *dev, const linear_job *job)
{
    const struct atto_linear_args *a = job->a;
    atto__gemm g = {
        .m = a->dx->shape[0], .n = a->dx->shape[1], .k = a->dy->shape[1], .b = side_of(a->w, false)
    };
    set_dz(&g, job, true);
    set_output(&g, a->dx, a->add_dx);
    if (!g.c) g.finish = finish_dx;
    return ATTO_LEVEL_NAME(gemm)(dev, &g);
}

static atto_status backward_dw(atto_device *dev, const linear_job *job)
{
    const struct atto_linear_args *a = job->a;
    atto__gemm g = {
        .m = a->dw->shape[0], .n = a->dw->shape[1], .k = a->dy->shape[0], .b = side_of(a->x, false)
    };
    set_dz(&g, job, false);
    set_output(&g, a->dw, a->add_dw);
    if (!g.c) g.finish = finish_dw;
    return ATTO_LEVEL_NAME(gemm)(dev, &g);
}

/* ---- bias gradient: sums over slabs of rows, cut by shape alone, then over slabs in order ---- */

#define SLAB_ROWS 64

typedef struct bias_job {
    const linear_job *linear;
    float *partial; /* [slabs, N] */
    int64_t slabs, runs;
} bias_job;

static int64_t bias_units(const void *job_, int64_t stage)
{
    const bias_job *job = job_;
    return stage == 0 ? job->slabs * job->runs : job->runs;
}

static void sum_slab(const bias_job *job, int64_t slab, int64_t column, int32_t n)
{
    const atto_tensor *dy = job->linear->a->dy;
    float *sums = job->partial + slab * dy->shape[1] + column;
    float dz[ATTO_BLOCK];
    const int64_t first = slab * SLAB_ROWS, left = dy->shape[0] - first;
    load_dz(job->linear, first, column, n, sums);
    for (int64_t i = 1; i < SLAB_ROWS && i < left; i++) {
        load_dz(job->linear, first + i, column, n, dz);
        for (int32_t j = 0; j < n; j++) sums[j] += dz[j];
    }
}

static void sum_slabs(const bias_job *job, int64_t column, int32_t n)
{
    const struct atto_linear_args *a = job->linear->a;
    const int64_t columns = a->dy->shape[1];
    float sums[ATTO_BLOCK] = { 0 };
    for (int64_t slab = 0; slab < job->slabs; slab++)
        for (int32_t j = 0; j < n; j++) sums[j] += job->partial[slab * columns + column + j];
    finish_gradient(a->db, a->add_db, 0, column, n, sums);
}

static void bias_run(const void *job_, int64_t stage, int64_t unit, int32_t worker)
{
    (void)worker;
    const bias_job *job = job_;
    const int64_t column = unit % job->runs * ATTO_BLOCK;
    const int64_t left = job->linear->a->dy->shape[1] - column;
    const int32_t n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
    if (stage == 0) {
        sum_slab(job, unit / job->runs, column, n);
    } else {
        sum_slabs(job, column, n);
    }
}

static atto_status backward_db(atto_device *dev, const linear_job *linear)
{
    const int64_t rows = linear->a->dy->shape[0], columns = linear->a->dy->shape[1];
    bias_job job = { linear, NULL, (rows + SLAB_ROWS - 1) / SLAB_ROWS,
                     (columns + ATTO_BLOCK - 1) / ATTO_BLOCK };
    if (job.slabs > 0) {
        atto_buffer header;
        atto_tensor scratch;
        ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 2, (int64_t[]){ job.slabs, columns }, &header,
                                      &scratch));
        job.partial = atto__memory(&scratch);
    }
    const int32_t threads = rows * columns < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
    atto__parallel(threads, &(atto__work){ 2, bias_units, bias_run, &job });
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(linear_backward)(atto_device *dev, const struct atto_linear_args *a,
                                             const atto__layout *layout)
{
    (void)layout;
    const linear_job job = { a, atto__mask_of(a->dropout, a->rng) };
    dev->stats.launches++;
    if (a->dx && atto_tensor_numel(a->dx) > 0) ATTO_TRY(backward_dx(dev, &job));
    if (a->dw && atto_tensor_numel(a->dw) > 0) ATTO_TRY(backward_dw(dev, &job));
    if (a->db && atto_tensor_numel(a->db) > 0) ATTO_TRY(backward_db(dev, &job));
    return ATTO_OK;
}
