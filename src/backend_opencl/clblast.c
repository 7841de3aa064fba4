/* SPDX-License-Identifier: MIT */
/* Opens CLBlast, tries it, and calls it. */
#include "clblast.h"

#include <math.h>
#include <string.h>

#include "alloc.h"
#include "opencl.h"
#include "os.h"
#include "tensor.h"

/* ---- the library ----
 *
 * The part of its C interface that is used here; see clblast_c.h. */

enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 };

typedef int sgemm_fn(int layout, int a_transpose, int b_transpose, size_t m, size_t n, size_t k,
                     float alpha, cl_mem a, size_t a_at, size_t a_ld, cl_mem b, size_t b_at,
                     size_t b_ld, float beta, cl_mem c, size_t c_at, size_t c_ld,
                     cl_command_queue *queue, cl_event *event);
typedef int sgemm_in_fn(int layout, int a_transpose, int b_transpose, size_t m, size_t n, size_t k,
                        float alpha, cl_mem a, size_t a_at, size_t a_ld, cl_mem b, size_t b_at,
                        size_t b_ld, float beta, cl_mem c, size_t c_at, size_t c_ld,
                        cl_command_queue *queue, cl_event *event, cl_mem scratch);
typedef int scratch_fn(int layout, int a_transpose, int b_transpose, size_t m, size_t n, size_t k,
                       size_t a_at, size_t a_ld, size_t b_at, size_t b_ld, size_t c_at, size_t c_ld,
                       cl_command_queue *queue, size_t *bytes);
typedef int clear_fn(void);

struct atto__clblast {
    void *library; /* NULL: not there, or not to be trusted */
    bool tested;
    sgemm_fn *sgemm;
    sgemm_in_fn *sgemm_in; /* with scratch; NULL before CLBlast 1.4 */
    scratch_fn *scratch_bytes;
    clear_fn *clear;
};

/* Two calls at a time disturb each other's kernels before CLBlast 1.6.1. */
static atto__mutex one_at_a_time = ATTO_MUTEX_INIT;

/* Function pointers out of data pointers, as POSIX has it. */
#define FIND(field, name)                                           \
    do {                                                            \
        void *const found = atto__library_symbol(c->library, name); \
        memcpy(&c->field, &found, sizeof found);                    \
    } while (0)

static void open_library(const atto_device *dev, atto__clblast *c)
{
    static const char *const usual[] = {
#if defined(_WIN32)
        "clblast.dll",
#elif defined(__APPLE__)
        "libclblast.1.dylib",
        "libclblast.dylib",
#else
        "libclblast.so.1",
        "libclblast.so",
#endif
    };
    const char *chosen = dev->options.set.clblast;
    if (chosen) {
        c->library = strcmp(chosen, "0") == 0 ? NULL : atto__library_open(chosen);
    } else {
        for (size_t i = 0; !c->library && i < sizeof usual / sizeof usual[0]; i++)
            c->library = atto__library_open(usual[i]);
    }
    if (!c->library) return;
    FIND(sgemm, "CLBlastSgemm");
    FIND(sgemm_in, "CLBlastSgemmWithTempBuffer");
    FIND(scratch_bytes, "CLBlastSGemmTempBufferSize");
    FIND(clear, "CLBlastClearCache");
    if (c->sgemm && c->clear) return;
    atto__library_close(c->library);
    c->library = NULL;
}

static atto__clblast *clblast_of(atto_device *dev)
{
    atto__opencl *cl = atto__opencl_of(dev);
    if (cl->clblast) return cl->clblast;
    cl->clblast = atto__alloc(sizeof *cl->clblast);
    if (cl->clblast) open_library(dev, cl->clblast);
    return cl->clblast;
}

/* Kernels that the library keeps hold the device's context. */
static void drop_library(atto__clblast *c)
{
    if (!c->library) return;
    atto__lock(&one_at_a_time);
    c->clear();
    atto__unlock(&one_at_a_time);
    atto__library_close(c->library);
    c->library = NULL;
}

void atto__clblast_close(atto_device *dev)
{
    atto__clblast *c = atto__opencl_of(dev)->clblast;
    if (!c) return;
    drop_library(c);
    atto__free(c);
    atto__opencl_of(dev)->clblast = NULL;
}

/* ---- a product ---- */

/* c = a b + beta c; a [m, k] or, transposed, [k, m]; b [k, n] or [n, k]. */
typedef struct product {
    size_t m, n, k;
    bool a_transposed, b_transposed;
    const atto_tensor *a, *b, *c;
    float beta;
} product;

static size_t pitch_of(const atto_tensor *t)
{
    return (size_t)(t->shape[0] > 1 ? t->stride[0] : t->shape[1]);
}

/* Memory for the library's packed copies, of which 0 bytes may be wanted. */
static int take_scratch(atto_device *dev, atto__clblast *c, const product *p, cl_mem *out)
{
    atto__opencl *cl = atto__opencl_of(dev);
    size_t bytes = 0;
    const int code = c->scratch_bytes(
        ROW_MAJOR, p->a_transposed ? TRANSPOSED : AS_IT_IS, p->b_transposed ? TRANSPOSED : AS_IT_IS,
        p->m, p->n, p->k, (size_t)p->a->offset, pitch_of(p->a), (size_t)p->b->offset,
        pitch_of(p->b), (size_t)p->c->offset, pitch_of(p->c), &cl->queue, &bytes);
    *out = NULL;
    if (code != 0 || bytes == 0) return code;
    atto_buffer header;
    atto_tensor scratch;
    const int64_t floats = (int64_t)(bytes / sizeof(float) + 1);
    if (atto__scratch_tensor(dev, ATTO_F32, 1, &floats, &header, &scratch) != ATTO_OK)
        return CL_MEM_OBJECT_ALLOCATION_FAILURE;
    *out = atto__memory(&scratch);
    return 0;
}

static int multiply(atto_device *dev, atto__clblast *c, const product *p)
{
    atto__opencl *cl = atto__opencl_of(dev);
    const int a_transpose = p->a_transposed ? TRANSPOSED : AS_IT_IS;
    const int b_transpose = p->b_transposed ? TRANSPOSED : AS_IT_IS;
    const size_t a_at = (size_t)p->a->offset, b_at = (size_t)p->b->offset,
                 c_at = (size_t)p->c->offset;
    cl_mem scratch = NULL;
    if (c->sgemm_in && c->scratch_bytes) {
        const int code = take_scratch(dev, c, p, &scratch);
        if (code != 0) return code;
    }
    if (scratch)
        return c->sgemm_in(ROW_MAJOR, a_transpose, b_transpose, p->m, p->n, p->k, 1.0f,
                           atto__memory(p->a), a_at, pitch_of(p->a), atto__memory(p->b), b_at,
                           pitch_of(p->b), p->beta, atto__memory(p->c), c_at, pitch_of(p->c),
                           &cl->queue, NULL, scratch);
    return c->sgemm(ROW_MAJOR, a_transpose, b_transpose, p->m, p->n, p->k, 1.0f, atto__memory(p->a),
                    a_at, pitch_of(p->a), atto__memory(p->b), b_at, pitch_of(p->b), p->beta,
                    atto__memory(p->c), c_at, pitch_of(p->c), &cl->queue, NULL);
}

static atto_status run_product(atto_device *dev, atto__clblast *c, const product *p)
{
    atto__lock(&one_at_a_time);
    const int code = multiply(dev, c, p);
    atto__unlock(&one_at_a_time);
    if (code != 0)
        return atto__cl_fail(dev, "CLBlastSgemm", code); /* its codes are OpenCL's, and more */
    dev->stats.launches++;
    return ATTO_OK;
}

/* ---- the test ----
 *
 * Whole numbers so small that every sum is exact, whatever its order. */

#define TEST_LARGE   1025 /* beyond the size from which matrices are packed */
#define TEST_SAMPLES 64   /* elements of each product that are looked at */

static float entry(int64_t i, int64_t seed)
{
    return (float)((i * 2654435761u + seed * 40503u) >> 7 & 3) - 1.0f; /* -1, 0, 1, 2 */
}

static atto_status make_matrix(atto_device *dev, int64_t seed, atto_buffer *header,
                               atto_tensor *out)
{
    const int64_t n = TEST_LARGE * TEST_LARGE;
    float *host = atto__alloc_aligned((size_t)n * sizeof *host);
    ATTO_REQUIRE(host, ATTO_E_MEMORY, "out of host memory");
    for (int64_t i = 0; i < n; i++) host[i] = entry(i, seed);
    atto_status status = atto__scratch_tensor(dev, ATTO_F32, 1, &n, header, out);
    if (status == ATTO_OK)
        status = dev->vt->write(dev, atto__memory(out), 0, host, (size_t)n * sizeof *host);
    atto__free_aligned(host);
    return status;
}

/* Element (i, j) of a matrix that begins its tensor. */
static float at(bool transposed, int64_t rows, int64_t columns, int64_t i, int64_t j, int64_t seed)
{
    return entry(transposed ? j * rows + i : i * columns + j, seed);
}

static float expected(const product *p, int64_t i, int64_t j)
{
    float sum = p->beta == 0.0f ? 0.0f : entry(i * (int64_t)p->n + j, 3);
    for (int64_t r = 0; r < (int64_t)p->k; r++)
        sum += at(p->a_transposed, (int64_t)p->m, (int64_t)p->k, i, r, 1) *
               at(p->b_transposed, (int64_t)p->k, (int64_t)p->n, r, j, 2);
    return sum;
}

static atto_status look_at(atto_device *dev, const product *p, bool *right)
{
    const int64_t elements = (int64_t)(p->m * p->n);
    const int64_t samples = elements < TEST_SAMPLES ? elements : TEST_SAMPLES;
    float *host = atto__alloc((size_t)elements * sizeof *host);
    ATTO_REQUIRE(host, ATTO_E_MEMORY, "out of host memory");
    const atto_status status =
        dev->vt->read(dev, atto__memory(p->c), 0, host, (size_t)elements * sizeof *host);
    for (int64_t s = 0; status == ATTO_OK && s < samples; s++) {
        const int64_t e = s == 0 ? elements - 1 : s * 7919 % elements;
        *right = *right && host[e] == expected(p, e / (int64_t)p->n, e % (int64_t)p->n);
    }
    atto__free(host);
    return status;
}

/* matrices: a, b, c and what c starts from. */
static atto_status test_product(atto_device *dev, atto__clblast *library, product p,
                                atto_tensor *matrices, bool *right)
{
    const int64_t shapes[3][2] = {
        { (int64_t)(p.a_transposed ? p.k : p.m), (int64_t)(p.a_transposed ? p.m : p.k) },
        { (int64_t)(p.b_transposed ? p.n : p.k), (int64_t)(p.b_transposed ? p.k : p.n) },
        { (int64_t)p.m, (int64_t)p.n },
    };
    atto_tensor views[3];
    for (int32_t i = 0; i < 3; i++)
        views[i] = atto_tensor_of(matrices[i].buffer, ATTO_F32,
                                  atto_shape2(shapes[i][0], shapes[i][1]), 0);
    p.a = &views[0];
    p.b = &views[1];
    p.c = &views[2];
    if (p.beta == 0.0f) {
        ATTO_TRY(atto__fill(dev, &matrices[2], (double)NAN)); /* which must not be read */
    } else {
        ATTO_TRY(atto__copy(dev, &matrices[2], &matrices[3]));
    }
    ATTO_TRY(run_product(dev, library, &p));
    return look_at(dev, &p, right);
}

static atto_status test_library(atto_device *dev, atto__clblast *c, bool *right)
{
    static const size_t sizes[] = { 1, 7, 64, 65 };
    atto_tensor matrices[4];
    atto_buffer headers[4];
    *right = true;
    for (int32_t i = 0; i < 4; i++)
        ATTO_TRY(make_matrix(dev, i < 2 ? i + 1 : 3, &headers[i], &matrices[i]));
    const int32_t scratch = dev->scratch_count;
    for (int32_t i = 0; *right && i < 4 * 64 + 4; i++) {
        const int32_t shape = i / 4;
        product p = { TEST_LARGE, TEST_LARGE - 2, TEST_LARGE - 1,    i & 1, (i >> 1) & 1, NULL,
                      NULL,       NULL,           (float)(shape & 1) };
        if (shape < 64)
            p.m = sizes[shape & 3], p.n = sizes[shape >> 2 & 3], p.k = sizes[shape >> 4];
        ATTO_TRY(test_product(dev, c, p, matrices, right));
        atto__scratch_release(dev, scratch);
    }
    return ATTO_OK;
}

static atto_status give_up(atto_device *dev, atto__clblast *c, const char *why)
{
    atto__log(dev, ATTO_LOG_WARNING, "CLBlast is not used on %s: %s", dev->info.name, why);
    drop_library(c);
    return atto__fail(ATTO_E_UNSUPPORTED, "CLBlast does not work on this device");
}

/* Where memory is short it is tried again some other time. */
static atto_status ensure_tested(atto_device *dev, atto__clblast *c)
{
    if (c->tested) return ATTO_OK;
    bool right;
    const int32_t scratch = dev->scratch_count;
    const atto_status status = test_library(dev, c, &right);
    atto__scratch_release(dev, scratch);
    if (status == ATTO_E_LOST || status == ATTO_E_MEMORY) return status;
    if (status != ATTO_OK) return give_up(dev, c, atto_last_error());
    if (!right) return give_up(dev, c, "it computes wrong numbers");
    c->tested = true;
    return ATTO_OK;
}

/* ---- the engine's side ---- */

/* Rows side by side without overlap, and no number in it beyond an int, which the library computes
 * with. */
static bool is_matrix(const atto_tensor *t)
{
    const int64_t reach = t->offset + (t->shape[0] - 1) * t->stride[0] + t->shape[1];
    return t->dtype == ATTO_F32 && reach <= INT32_MAX &&
           (t->shape[0] == 1 || t->stride[0] >= t->shape[1]);
}

bool atto__clblast_can(atto_device *dev, const atto__gemm *g)
{
    if (g->prologue || g->m == 0 || g->n == 0 || g->k == 0) return false;
    if (g->batch.outer > 1 || g->batch.inner > 1) return false;
    if (!is_matrix(g->a) || !is_matrix(g->b) || g->m > INT32_MAX / g->n) return false;
    if (g->out->dtype == ATTO_F32 && !is_matrix(g->out)) return false;
    const atto__clblast *c = clblast_of(dev);
    return c && c->library;
}

/* Nothing happens to the sums. */
static bool ends_plain(const atto__gemm *g)
{
    return g->out->dtype == ATTO_F32 && !g->bias && !g->z && !g->residual &&
           g->act.kind == ATTO_ACT_IDENTITY && !(g->dropout > 0.0f);
}

static atto_status run_with(atto_device *dev, atto__clblast *c, const atto__gemm *g)
{
    product p = { (size_t)g->m, (size_t)g->n, (size_t)g->k, g->a_transposed,     !g->b_transposed,
                  g->a,         g->b,         g->out,       g->add ? 1.0f : 0.0f };
    if (ends_plain(g)) return run_product(dev, c, &p);
    atto_buffer header;
    atto_tensor sums;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 2, (int64_t[]){ g->m, g->n }, &header, &sums));
    p.c = &sums;
    p.beta = 0.0f;
    ATTO_TRY(run_product(dev, c, &p));
    return atto__gemm_finish(dev, g, &sums, 1);
}

atto_status atto__clblast_run(atto_device *dev, const atto__gemm *g)
{
    atto__clblast *c = clblast_of(dev);
    atto_status status = ensure_tested(dev, c);
    if (status == ATTO_OK) status = run_with(dev, c, g);
    if (status == ATTO_OK || status == ATTO_E_LOST || status == ATTO_E_UNSUPPORTED) return status;
    return give_up(dev, c, atto_last_error());
}
