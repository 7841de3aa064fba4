/* SPDX-License-Identifier: MIT */
/* Layer norm and RMS norm on the CPU; of the latter the mean is 0.
 *
 *   forward    y = n w + b,  n = (x - mean) rstd
 *   backward   dx = rstd (g - sum of g / F - n sum of (g n) / F),  g = dy w
 *              dw = sum over rows of dy n,  db = sum over rows of dy
 *
 * A row at a time: it is read from memory by the first pass over it, or already while the row
 * before was being written, and by the others from the cache. Rows are cut into slabs by their
 * number alone; each has sums of its own for dw and db, which are added in order.
 */
#include "layer_norm.h"

#include "backend_cpu/row_norm.h"
#include "backend_cpu/rows.h"
#include "divide.h"

#define MAX_SLABS 32

typedef struct job {
    const atto__row_norm *n;
    const float *w, *b; /* [cols], f32; w NULL where dw alone is wanted */
    float *partial;     /* [slabs, 2, cols]: dw and db of a slab; NULL = neither is wanted */
    int64_t slabs;
    bool streams;
} job;

/* ---- forward ---- */

static void put_number(const atto_tensor *t, int64_t at, float value)
{
    if (t) ((float *)atto__memory(t))[t->offset + at] = value;
}

static float number_at(const atto_tensor *t, int64_t at)
{
    return t ? ((const float *)atto__memory(t))[t->offset + at] : 0.0f;
}

/* ahead: the row that will be needed after some others. */
static void write_forward(const job *j, int64_t r, const row_moments *m, int64_t ahead)
{
    const atto__row_norm *n = j->n;
    const int64_t next = r + ahead < n->rows ? ahead * n->cols : 0;
    put_number(n->mean, r, m->mean + m->rest);
    put_number(n->rstd, r, m->rstd);
    write_row(row_at(n->x, r, n->cols), row_at(n->y, r, n->cols), n->cols, m, j->w, j->b, next,
              j->streams);
}

static void forward_row(const job *j, int64_t r)
{
    const atto__row_norm *n = j->n;
    const row_moments m = moments_of(row_at(n->x, r, n->cols), n->cols, n->centred, n->eps);
    write_forward(j, r, &m, 1);
}

static void forward_rows(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t r = begin; r < end; r++) forward_row(j, r);
    if (j->streams) end_stream();
}

/* Groups of VEC_LANES rows; what is left of the last one goes row by row. */
static void forward_groups(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const atto__row_norm *n = j->n;
    row_moments m[VEC_LANES];
    for (int64_t r = begin * VEC_LANES; r < end * VEC_LANES; r += VEC_LANES) {
        const row_of x = row_at(n->x, r, n->cols);
        const bool whole = r + VEC_LANES <= n->rows;
        for (int64_t i = r; !whole && i < n->rows; i++) forward_row(j, i);
        if (!whole) continue;
        ROW_BY_DTYPE(x.dtype, short_moments(x, (int32_t)n->cols, n->centred, n->eps, m, row_dtype));
        for (int32_t i = 0; i < VEC_LANES; i++) write_forward(j, r + i, &m[i], VEC_LANES);
    }
    if (j->streams) end_stream();
}

/* w or b as floats: in place, converted, or constant. Scratch of cols floats. */
static const float *parameter_of(const atto_tensor *t, float standard, int64_t cols, float *scratch)
{
    if (t && t->dtype == ATTO_F32 && cols > 0) return (const float *)atto__memory(t) + t->offset;
    for (int64_t i = 0; !t && i < cols; i++) scratch[i] = standard;
    for (int64_t first = 0; t && first < cols; first += ATTO_BLOCK) {
        const int64_t left = cols - first;
        const row_of from = row_at(t, 0, cols);
        const span s = { (char *)from.memory + first * (int64_t)atto_dtype_size(t->dtype), 1,
                         (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK), t->dtype };
        load_block(s, scratch + first);
    }
    return scratch;
}

static int32_t threads_for(const atto_device *dev, const atto__row_norm *n)
{
    return n->rows * n->cols < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

static atto_status take_floats(atto_device *dev, int64_t count, atto_buffer *header, float **out)
{
    atto_tensor scratch;
    const int64_t size = count > 0 ? count : 1;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &size, header, &scratch));
    *out = atto__memory(&scratch);
    return ATTO_OK;
}

static atto_status norm_forward(atto_device *dev, const atto__row_norm *n)
{
    atto_buffer header;
    float *scratch;
    ATTO_TRY(take_floats(dev, 2 * n->cols, &header, &scratch));
    const job j = { .n = n,
                    .w = parameter_of(n->w, 1.0f, n->cols, scratch),
                    .b = parameter_of(n->b, 0.0f, n->cols, scratch + n->cols),
                    .streams = streams_to(n->y) };
    dev->stats.launches++;
    const int32_t threads = threads_for(dev, n);
    if (is_short_row(n->cols))
        atto__parallel_for(threads, atto__divide_up(n->rows, VEC_LANES), forward_groups, &j);
    else
        atto__parallel_for(threads, n->rows, forward_rows, &j);
    return ATTO_OK;
}

/* ---- backward ---- */

static row_grad grad_of(const job *j, int64_t r, int64_t ahead)
{
    const atto__row_norm *n = j->n;
    return (row_grad){ .x = row_at(n->x, r, n->cols),
                       .dy = row_at(n->dy, r, n->cols),
                       .w = j->w,
                       .mean = number_at(n->mean, r),
                       .rstd = number_at(n->rstd, r),
                       .cols = n->cols,
                       .centred = n->centred,
                       .ahead = r + ahead < n->rows ? ahead * n->cols : 0 };
}

static void write_backward(const job *j, int64_t r, const row_grad *g, row_sums sums)
{
    const atto__row_norm *n = j->n;
    if (n->dx) write_row_grad(g, sums, row_at(n->dx, r, n->cols), n->add_dx, j->streams);
}

/* VEC_LANES rows from r on. */
static void backward_group(const job *j, int64_t r, float *dw)
{
    const int32_t cols = (int32_t)j->n->cols;
    row_grad g[VEC_LANES];
    row_sums sums[VEC_LANES];
    for (int32_t i = 0; i < VEC_LANES; i++) g[i] = grad_of(j, r + i, VEC_LANES);
    ROW_BY_DTYPE(g[0].x.dtype, short_sums(g, cols, dw, dw ? dw + cols : NULL, sums, row_dtype));
    for (int32_t i = 0; i < VEC_LANES; i++) write_backward(j, r + i, &g[i], sums[i]);
}

static void backward_row(const job *j, int64_t r, float *dw)
{
    const row_grad g = grad_of(j, r, 1);
    write_backward(j, r, &g, sum_row(&g, dw, dw ? dw + g.cols : NULL));
}

static void backward_slabs(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const atto__row_norm *n = j->n;
    const int64_t per_slab = (n->rows + j->slabs - 1) / j->slabs;
    for (int64_t s = begin; s < end; s++) {
        const int64_t last = (s + 1) * per_slab < n->rows ? (s + 1) * per_slab : n->rows;
        float *dw = j->partial ? j->partial + 2 * s * n->cols : NULL;
        int64_t r = s * per_slab;
        for (int64_t i = 0; dw && i < 2 * n->cols; i++) dw[i] = 0.0f;
        for (; is_short_row(n->cols) && r + VEC_LANES <= last; r += VEC_LANES)
            backward_group(j, r, dw);
        for (; r < last; r++) backward_row(j, r, dw);
    }
    if (j->streams) end_stream();
}

/* One parameter's gradient: slabs' sums in order. */
typedef struct join_job {
    const job *j;
    const atto_tensor *out;
    int64_t part; /* 0 = dw, 1 = db */
    bool add;
} join_job;

static void join_blocks(const void *job_, int64_t begin, int64_t end)
{
    const join_job *k = job_;
    const int64_t cols = k->j->n->cols;
    for (int64_t block = begin; block < end; block++) {
        float sum[ATTO_BLOCK] = { 0.0f }, old[ATTO_BLOCK];
        const int64_t first = block * ATTO_BLOCK, left = cols - first;
        const int32_t n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
        for (int64_t s = 0; s < k->j->slabs; s++) {
            const float *from = k->j->partial + (2 * s + k->part) * cols + first;
            for (int32_t i = 0; i < n; i++) sum[i] += from[i];
        }
        const row_of row = row_at(k->out, 0, cols);
        const span to = { (char *)row.memory + first * (int64_t)atto_dtype_size(row.dtype), 1, n,
                          row.dtype };
        if (k->add) accumulate_block(sum, to, old);
        store_block(sum, to);
    }
}

static void join_slabs(const job *j, const atto_tensor *out, int64_t part, bool add,
                       int32_t threads)
{
    const join_job k = { j, out, part, add };
    if (out)
        atto__parallel_for(threads, (j->n->cols + ATTO_BLOCK - 1) / ATTO_BLOCK, join_blocks, &k);
}

/* Of at least 8 rows, so that slabs' sums stay small beside the rows. */
static int64_t slabs_of(const atto__row_norm *n)
{
    const int64_t slabs = n->rows / 8;
    return n->rows == 0 ? 0 : slabs < 1 ? 1 : slabs < MAX_SLABS ? slabs : MAX_SLABS;
}

static atto_status norm_backward(atto_device *dev, const atto__row_norm *n)
{
    atto_buffer header, partials;
    float *scratch;
    const int32_t threads = threads_for(dev, n);
    ATTO_TRY(take_floats(dev, n->cols, &header, &scratch));
    job j = { .n = n,
              .w = parameter_of(n->w, 1.0f, n->cols, scratch),
              .slabs = slabs_of(n),
              .streams = n->dx && !n->add_dx && streams_to(n->dx) };
    if (n->dw || n->db) ATTO_TRY(take_floats(dev, 2 * j.slabs * n->cols, &partials, &j.partial));
    dev->stats.launches++;
    atto__parallel_for(threads, j.slabs, backward_slabs, &j);
    join_slabs(&j, n->dw, 0, n->add_dw, threads);
    join_slabs(&j, n->db, 1, n->add_db, threads);
    return ATTO_OK;
}

/* ---- the ops ---- */

atto_status ATTO_LEVEL_NAME(layer_norm_forward)(atto_device *dev,
                                                const struct atto_layer_norm_args *a,
                                                const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__layer_norm_of(a);
    return norm_forward(dev, &n);
}

atto_status ATTO_LEVEL_NAME(layer_norm_backward)(atto_device *dev,
                                                 const struct atto_layer_norm_args *a,
                                                 const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__layer_norm_of(a);
    return norm_backward(dev, &n);
}

atto_status ATTO_LEVEL_NAME(rms_norm_forward)(atto_device *dev, const struct atto_rms_norm_args *a,
                                              const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__rms_norm_of(a);
    return norm_forward(dev, &n);
}

atto_status ATTO_LEVEL_NAME(rms_norm_backward)(atto_device *dev, const struct atto_rms_norm_args *a,
                                               const atto__layout *layout)
{
    (void)layout;
    const atto__row_norm n = atto__rms_norm_of(a);
    return norm_backward(dev, &n);
}
