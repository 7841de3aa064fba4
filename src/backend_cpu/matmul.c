/* SPDX-License-Identifier: MIT */
/* Matmul on the CPU: batches of products of gemm.c.
 *
 *   y = a b          da = dy b^T          db = a^T dy          (+ old)
 *
 * Where a gradient sums over the batch and the sum is not part of k (matmul.h), products are added
 * one after another in f32. */
#include "matmul.h"

#include "backend_cpu/gemm.h"
#include "backend_cpu/loops.h"

/* One pass over the results: the summed dimensions stand still. */
typedef struct matmul_job {
    const atto__product *p;
    int64_t a_at, b_at; /* elements from the operands' first matrices */
    float *sums;        /* [results, m, n] where c is not f32 and products are added; else NULL */
    bool add;
} matmul_job;

static char *element(const atto_tensor *t, int64_t at)
{
    if (!t->buffer) return NULL;
    return (char *)atto__memory(t) + (t->offset + at) * (int64_t)atto_dtype_size(t->dtype);
}

static int64_t kept_at(const atto__product *p, const atto__matrices *x, int64_t item)
{
    return atto__product_at(p, x, 0, p->kept, item);
}

static int64_t pitch_of_c(const atto__product *p)
{
    return p->m > 1 ? p->c.stride[0] : p->n;
}

static void locate(const void *job_, int64_t item, atto__gemm *g)
{
    const matmul_job *job = job_;
    const atto__product *p = job->p;
    g->a.data = element(p->a.t, job->a_at + kept_at(p, &p->a, item));
    g->b.data = element(p->b.t, job->b_at + kept_at(p, &p->b, item));
    if (job->sums)
        g->c = job->sums + item * p->m * p->n;
    else if (p->c.t->dtype == ATTO_F32)
        g->c = (float *)(void *)element(p->c.t, kept_at(p, &p->c, item));
    g->first_row = item * p->m;
}

/* Rounds sums to c. Rows of all results stand below each other. */
static void store_rounded(const void *job_, int64_t row, int64_t column, int32_t n, float *values)
{
    const matmul_job *job = job_;
    const atto__product *p = job->p;
    const int64_t at = kept_at(p, &p->c, row / p->m) + row % p->m * pitch_of_c(p) + column;
    const span to = { element(p->c.t, at), 1, n, p->c.t->dtype };
    float buffer[ATTO_BLOCK];
    if (job->add) accumulate_block(values, to, buffer);
    store_block(values, to);
}

static atto__gemm_side side_of(const atto__matrices *x, int64_t rows, int64_t k)
{
    return (atto__gemm_side){ element(x->t, 0), atto__matrices_pitch(x, rows, k), x->t->dtype,
                              atto__matrices_along_k(x, rows, k) };
}

/* Where the sums of 16-bit results stand between products that are added. */
static atto_status make_sums(atto_device *dev, matmul_job *job, int64_t items)
{
    atto_buffer header;
    atto_tensor sums;
    const int64_t floats = items * job->p->m * job->p->n;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &floats, &header, &sums));
    job->sums = atto__memory(&sums);
    return ATTO_OK;
}

static atto_status run_product(atto_device *dev, const atto__product *p, bool add)
{
    const int64_t items = atto__product_count(p, 0, p->kept);
    const int64_t steps = atto__product_count(p, p->kept, p->summed);
    const bool is_float = p->c.t->dtype == ATTO_F32;
    matmul_job job = { .p = p, .add = add };
    atto__gemm g = { .m = p->m,
                     .n = p->n,
                     .k = p->k,
                     .a = side_of(&p->a, p->m, p->k),
                     .b = side_of(&p->b, p->n, p->k),
                     .c_stride = pitch_of_c(p),
                     .job = &job };
    if (!is_float && steps > 1) {
        ATTO_TRY(make_sums(dev, &job, items));
        g.c_stride = p->n;
    }
    locate(&job, 0, &g);
    const int32_t scratch = dev->scratch_count;
    for (int64_t step = 0; step < steps; step++) {
        job.a_at = atto__product_at(p, &p->a, p->kept, p->summed, step);
        job.b_at = atto__product_at(p, &p->b, p->kept, p->summed, step);
        g.accumulate = g.c && (step > 0 || (is_float && add));
        g.finish = !is_float && step == steps - 1 ? store_rounded : NULL;
        ATTO_TRY(ATTO_LEVEL_NAME(gemm_batch)(dev, &g, items, locate));
        atto__scratch_release(dev, scratch);
    }
    return ATTO_OK;
}

static atto_status multiply(atto_device *dev, const atto_tensor *a, bool a_turned,
                            const atto_tensor *b, bool b_turned, const atto_tensor *c, bool add)
{
    atto__product p;
    atto__product_of(&p, a, a_turned, b, b_turned, c);
    return atto__product_is_empty(&p) ? ATTO_OK : run_product(dev, &p, add);
}

atto_status ATTO_LEVEL_NAME(matmul_forward)(atto_device *dev, const struct atto_matmul_args *p,
                                            const atto__layout *layout)
{
    (void)layout;
    dev->stats.launches++;
    return multiply(dev, p->a, false, p->b, false, p->y, false);
}

atto_status ATTO_LEVEL_NAME(matmul_backward)(atto_device *dev, const struct atto_matmul_args *p,
                                             const atto__layout *layout)
{
    (void)layout;
    dev->stats.launches++;
    const int32_t scratch = dev->scratch_count;
    if (p->da) ATTO_TRY(multiply(dev, p->dy, false, p->b, true, p->da, p->add_da));
    atto__scratch_release(dev, scratch);
    if (p->db) ATTO_TRY(multiply(dev, p->a, true, p->dy, false, p->db, p->add_db));
    return ATTO_OK;
}
