/* SPDX-License-Identifier: MIT */
/* Matmul on OpenCL: batches of products of gemm.c.
 *
 * A launch has two dimensions of the batch; what else strides keep apart is a loop here. Products
 * that a gradient sums up, and that are not part of k (matmul.h), are added one after another, in
 * f32. */
#include "matmul.h"

#include "gemm.h"

/* The last two dimensions that are kept are a launch's. */
#define IN_A_LAUNCH 2

typedef struct job {
    const atto__product *p;
    int32_t looped; /* kept dimensions that are a loop here */
    bool add;
} job;

static int64_t looped_at(const job *j, const atto__matrices *x, int64_t index)
{
    return atto__product_at(j->p, x, 0, j->looped, index);
}

/* Dimension number d of a launch's, 0 the inner one; 0 if there is none. */
static int64_t of_launch(const job *j, const int64_t *list, int32_t d)
{
    const int32_t at = j->p->kept - 1 - d;
    return at >= j->looped ? list[at] : 0;
}

static struct atto__gemm_steps steps_of(const job *j, const atto__matrices *x)
{
    return (struct atto__gemm_steps){ of_launch(j, x->batch, 1), of_launch(j, x->batch, 0) };
}

static int64_t at_least_one(int64_t n)
{
    return n > 0 ? n : 1;
}

static atto__gemm_batch batch_of(const job *j)
{
    return (atto__gemm_batch){ .outer = at_least_one(of_launch(j, j->p->size, 1)),
                               .inner = at_least_one(of_launch(j, j->p->size, 0)),
                               .a = steps_of(j, &j->p->a),
                               .b = steps_of(j, &j->p->b),
                               .out = steps_of(j, &j->p->c) };
}

/* An operand as the engine takes it: [rows, k] or [k, rows]. */
static atto_tensor side_of(const atto__matrices *x, int64_t rows, int64_t k, int64_t at)
{
    const bool along = atto__matrices_along_k(x, rows, k);
    return (atto_tensor){ .buffer = x->t->buffer,
                          .dtype = x->t->dtype,
                          .rank = 2,
                          .shape = { along ? rows : k, along ? k : rows },
                          .stride = { atto__matrices_pitch(x, rows, k), 1 },
                          .offset = x->t->offset + at };
}

static atto_tensor result_of(const job *j, int64_t at)
{
    const atto__product *p = j->p;
    return (atto_tensor){ .buffer = p->c.t->buffer,
                          .dtype = p->c.t->dtype,
                          .rank = 2,
                          .shape = { p->m, p->n },
                          .stride = { p->m > 1 ? p->c.stride[0] : p->n, 1 },
                          .offset = p->c.t->offset + at };
}

/* Product number step of those that are summed, into out. */
static atto_status run_step(atto_device *dev, const job *j, int64_t index, int64_t step,
                            atto__gemm *g)
{
    const atto__product *p = j->p;
    const int64_t a_at = atto__product_at(p, &p->a, p->kept, p->summed, step);
    const int64_t b_at = atto__product_at(p, &p->b, p->kept, p->summed, step);
    const atto_tensor a = side_of(&p->a, p->m, p->k, looped_at(j, &p->a, index) + a_at);
    const atto_tensor b = side_of(&p->b, p->n, p->k, looped_at(j, &p->b, index) + b_at);
    g->a = &a;
    g->b = &b;
    const int32_t scratch = dev->scratch_count;
    ATTO_TRY(atto__gemm_run(dev, g));
    atto__scratch_release(dev, scratch);
    return ATTO_OK;
}

static atto__gemm product_of(const job *j, const atto_tensor *out, bool add)
{
    const atto__product *p = j->p;
    return (atto__gemm){ .m = p->m,
                         .n = p->n,
                         .k = p->k,
                         .a_transposed = !atto__matrices_along_k(&p->a, p->m, p->k),
                         .b_transposed = !atto__matrices_along_k(&p->b, p->n, p->k),
                         .out = out,
                         .add = add,
                         .act = atto_identity(),
                         .batch = batch_of(j) };
}

/* Sums of all steps; the first one adds if add. */
static atto_status run_steps(atto_device *dev, const job *j, int64_t index, atto__gemm *g)
{
    const int64_t steps = atto__product_count(j->p, j->p->kept, j->p->summed);
    for (int64_t step = 0; step < steps; step++) {
        g->add = g->add || step > 0;
        ATTO_TRY(run_step(dev, j, index, step, g));
    }
    return ATTO_OK;
}

/* 16-bit results of several steps: rounded once, behind the last. */
static atto_status run_steps_apart(atto_device *dev, const job *j, int64_t index,
                                   const atto_tensor *out)
{
    atto_buffer header;
    atto_tensor sums;
    const atto__gemm last = product_of(j, out, j->add);
    const int64_t products = last.batch.outer * last.batch.inner;
    const int64_t shape[] = { products * j->p->m, j->p->n };
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 2, shape, &header, &sums));
    atto_tensor first = sums;
    first.shape[0] = j->p->m;
    atto__gemm g = product_of(j, &first, false);
    g.batch.out.inner = j->p->m * j->p->n;
    g.batch.out.outer = g.batch.inner * g.batch.out.inner;
    ATTO_TRY(run_steps(dev, j, index, &g));
    return atto__gemm_finish(dev, &last, &sums, 1);
}

static atto_status run_job(atto_device *dev, const job *j)
{
    const atto__product *p = j->p;
    const bool apart = p->c.t->dtype != ATTO_F32 && p->summed > 0;
    const int64_t loops = atto__product_count(p, 0, j->looped);
    const int32_t scratch = dev->scratch_count;
    for (int64_t index = 0; index < loops; index++) {
        const atto_tensor out = result_of(j, looped_at(j, &p->c, index));
        atto__gemm g = product_of(j, &out, j->add);
        ATTO_TRY(apart ? run_steps_apart(dev, j, index, &out) : run_steps(dev, j, index, &g));
        atto__scratch_release(dev, scratch);
    }
    return ATTO_OK;
}

static atto_status multiply(atto_device *dev, const atto_tensor *a, bool a_turned,
                            const atto_tensor *b, bool b_turned, const atto_tensor *c, bool add)
{
    atto__product p;
    atto__product_of(&p, a, a_turned, b, b_turned, c);
    if (atto__product_is_empty(&p)) return ATTO_OK;
    const job j = { &p, p.kept > IN_A_LAUNCH ? p.kept - IN_A_LAUNCH : 0, add };
    return run_job(dev, &j);
}

atto_status atto__opencl_matmul_forward(atto_device *dev, const struct atto_matmul_args *p,
                                        const atto__layout *layout)
{
    (void)layout;
    return multiply(dev, p->a, false, p->b, false, p->y, false);
}

atto_status atto__opencl_matmul_backward(atto_device *dev, const struct atto_matmul_args *p,
                                         const atto__layout *layout)
{
    (void)layout;
    if (p->da) ATTO_TRY(multiply(dev, p->dy, false, p->b, true, p->da, p->add_da));
    if (p->db) ATTO_TRY(multiply(dev, p->a, true, p->dy, false, p->db, p->add_db));
    return ATTO_OK;
}

atto_status atto__opencl_matmul_prepare(atto_device *dev, atto_dtype dtype)
{
    return atto__gemm_prepare(dev, dtype);
}
