/* SPDX-License-Identifier: MIT */
/* Reductions on the CPU.
 *
 *   sum, mean   y = sum x / n        dx = dy / n
 *   max, min    y = max x            dx = (x == y) dy / number of ties
 *   argmax      y = position of the first maximum
 *
 * A task folds one slab, a fixed stretch of the folded dimensions, for one output (where the
 * innermost dimension is folded: rows) or for up to ATTO_BLOCK neighbouring ones (columns). Slabs
 * are as many as the shape says, never as there are threads, and are combined in order.
 */
#include <math.h>
#include <string.h>

#include "backend_cpu/fold.h"
#include "backend_cpu/loops.h"
#include "divide.h"

/* Partial results of a row: as many as the widest vector, so that each level adds in one order. */
#define LANES 16

/* Columns: rows that are added up before they join the total, which keeps sums short. */
#define RUN 128

#define TASKS         64    /* enough for the threads of most machines */
#define SLAB_ELEMENTS 16384 /* less is not worth a slab */

typedef struct fold_job {
    const atto__reduction *r;
    atto__fold_plan p;
    int64_t columns;         /* size of the innermost kept dimension */
    int64_t column_blocks;   /* of at most ATTO_BLOCK */
    int64_t row_chunks;      /* rows: blocks in the innermost folded dimension */
    int64_t steps;           /* rows: blocks over all folded dimensions; columns: their elements */
    int64_t slabs, per_slab; /* slabs of per_slab steps */
    float *values;           /* [slabs, outputs] where there are several slabs */
    int64_t *positions;      /* ARG: likewise */
} fold_job;

/* What has been folded so far for n outputs. */
typedef struct state {
    float value[ATTO_BLOCK];
    int64_t position[ATTO_BLOCK]; /* ARG only; -1: nothing yet */
} state;

static float start_of(const fold_job *job)
{
    return job->r->fold == ATTO_FOLD_MAX || job->r->fold == ATTO_FOLD_ARG ? -INFINITY : 0.0f;
}

static void begin(const fold_job *job, state *s, int32_t n)
{
    const float start = start_of(job);
    for (int32_t i = 0; i < n; i++) s->value[i] = start;
    for (int32_t i = 0; i < n && job->r->fold == ATTO_FOLD_ARG; i++) s->position[i] = -1;
}

/* ---- where things are ---- */

/* sum of coordinate * stride for the flat index over the first dims dimensions. */
static int64_t offset_of(int64_t index, const int64_t *size, const int64_t *stride, int32_t dims)
{
    int64_t offset = 0;
    for (int32_t d = dims - 1; d >= 0 && index > 0; d--) {
        offset += index % size[d] * stride[d];
        index /= size[d];
    }
    return offset;
}

static span span_at(const atto_tensor *t, int64_t offset, int64_t stride, int32_t n)
{
    char *memory = atto__memory(t);
    return (span){ memory + (t->offset + offset) * (int64_t)atto_dtype_size(t->dtype), stride, n,
                   t->dtype };
}

static const float *load_signed(span from, bool negate, float *buffer)
{
    const float *x = load_block(from, buffer);
    if (!negate) return x;
    for (int32_t i = 0; i < from.n; i++) buffer[i] = -x[i];
    return buffer;
}

/* ---- rows: n elements into one result ---- */

typedef float (*fold_fn)(float folded, float x, float match);

ATTO_INLINE float fold_sum(float folded, float x, float match)
{
    (void)match;
    return folded + x;
}

ATTO_INLINE float fold_max(float folded, float x, float match)
{
    (void)match;
    return attop_max(folded, x);
}

ATTO_INLINE float fold_ties(float folded, float x, float match)
{
    return folded + (x == match ? 1.0f : 0.0f);
}

/* LANES results of every LANES-th element, then those pairwise. */
ATTO_INLINE float fold_row(fold_fn f, fold_fn join, const float *x, int32_t n, float start,
                           float match)
{
    float lane[LANES];
    for (int32_t l = 0; l < LANES; l++) lane[l] = start;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        ATTO_SIMD
        for (int32_t l = 0; l < LANES; l++) lane[l] = f(lane[l], x[i + l], match);
    }
    for (int32_t l = 0; i + l < n; l++) lane[l] = f(lane[l], x[i + l], match);
    for (int32_t width = LANES / 2; width > 0; width /= 2)
        for (int32_t l = 0; l < width; l++) lane[l] = join(lane[l], lane[l + width], 0.0f);
    return lane[0];
}

static float row_sum(const float *x, int32_t n)
{
    return fold_row(fold_sum, fold_sum, x, n, 0.0f, 0.0f);
}

static float row_max(const float *x, int32_t n)
{
    return fold_row(fold_max, fold_max, x, n, -INFINITY, 0.0f);
}

static float row_ties(const float *x, int32_t n, float match)
{
    return fold_row(fold_ties, fold_sum, x, n, 0.0f, match);
}

/* Whether a new value at a position takes the place of the best so far: larger, or NaN where that
 * is none, or equal and further in front. */
static bool beats(float value, int64_t position, float best, int64_t best_position)
{
    const bool both_nan = value != value && best != best;
    if (best_position < 0) return true;
    if (value == best || both_nan) return position < best_position;
    return value > best || (value != value && best == best);
}

/* The block's maximum, and only if it wins, where it first occurs. */
static void row_arg(const float *x, int32_t n, int64_t first, int64_t step, float *best,
                    int64_t *position)
{
    const float top = row_max(x, n);
    if (*position >= 0 && !beats(top, -1, *best, *position)) return;
    int32_t i = 0;
    while (i < n - 1 && !(x[i] == top || (x[i] != x[i] && top != top))) i++;
    if (!beats(top, first + i * step, *best, *position)) return;
    *best = top;
    *position = first + i * step;
}

static void fold_row_block(const fold_job *job, int64_t step, int64_t base, float match, state *s)
{
    const atto__fold_plan *p = &job->p;
    const int64_t row = step / job->row_chunks;
    const int64_t start = step % job->row_chunks * ATTO_BLOCK;
    const int64_t left = p->size[3] - start;
    const int32_t n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
    const int64_t at = base + offset_of(row, p->size, p->in, 3) + start * p->in[3];
    float buffer[ATTO_BLOCK];
    const float *x = load_signed(span_at(job->r->in, at, p->in[3], n), job->r->negate, buffer);
    switch (job->r->fold) {
    case ATTO_FOLD_MAX:
        s->value[0] = attop_max(s->value[0], row_max(x, n));
        break;
    case ATTO_FOLD_ARG:
        row_arg(x, n, offset_of(row, p->size, p->index, 3) + start * p->index[3], p->index[3],
                s->value, s->position);
        break;
    case ATTO_FOLD_TIES:
        s->value[0] += row_ties(x, n, match);
        break;
    default:
        s->value[0] += row_sum(x, n);
        break;
    }
}

/* ---- columns: n elements into n results ---- */

static void columns_arg(const float *x, int32_t n, int64_t position, state *s)
{
    for (int32_t i = 0; i < n; i++) {
        if (!beats(x[i], position, s->value[i], s->position[i])) continue;
        s->value[i] = x[i];
        s->position[i] = position;
    }
}

ATTO_INLINE void fold_columns(fold_fn f, const float *x, const float *match, float *folded,
                              int32_t n)
{
    ATTO_SIMD
    for (int32_t i = 0; i < n; i++) folded[i] = f(folded[i], x[i], match[i]);
}

static void fold_column_step(const fold_job *job, int64_t step, int64_t base, int32_t n,
                             const float *match, state *s)
{
    const atto__fold_plan *p = &job->p;
    const int64_t at = base + offset_of(step, p->size, p->in, 4);
    float buffer[ATTO_BLOCK];
    const float *x = load_signed(span_at(job->r->in, at, p->kept_in[3], n), job->r->negate, buffer);
    switch (job->r->fold) {
    case ATTO_FOLD_MAX:
        fold_columns(fold_max, x, x, s->value, n);
        break;
    case ATTO_FOLD_ARG:
        columns_arg(x, n, offset_of(step, p->size, p->index, 4), s);
        break;
    case ATTO_FOLD_TIES:
        fold_columns(fold_ties, x, match, s->value, n);
        break;
    default:
        fold_columns(fold_sum, x, x, s->value, n);
        break;
    }
}

/* ---- results ---- */

/* n outputs from number first on, neighbours along the innermost kept dimension. */
static span outputs_at(const fold_job *job, const atto_tensor *t, const int64_t *stride,
                       int64_t first, int32_t n)
{
    return span_at(t, offset_of(first, job->p.kept_size, stride, 4), stride[3], n);
}

static void write_positions(span to, const int64_t *position)
{
    for (int32_t i = 0; i < to.n; i++) {
        if (to.dtype == ATTO_I32) {
            ((int32_t *)to.first)[i * to.stride] = (int32_t)position[i];
        } else {
            ((int64_t *)to.first)[i * to.stride] = position[i];
        }
    }
}

static void write_outputs(const fold_job *job, int64_t first, int32_t n, state *s)
{
    const atto__reduction *r = job->r;
    const span to = outputs_at(job, r->out, job->p.kept_out, first, n);
    float buffer[ATTO_BLOCK], *v = s->value;
    if (r->fold == ATTO_FOLD_ARG) {
        write_positions(to, s->position);
        return;
    }
    if (r->fold == ATTO_FOLD_TIES) {
        const float *share =
            load_block(outputs_at(job, r->share, job->p.kept_share, first, n), buffer);
        for (int32_t i = 0; i < n; i++) v[i] = share[i] / v[i];
    } else if (r->fold == ATTO_FOLD_SUM) {
        for (int32_t i = 0; i < n; i++) v[i] /= r->divisor;
    } else {
        for (int32_t i = 0; i < n && r->negate; i++) v[i] = -v[i];
    }
    if (r->add) accumulate_block(v, to, buffer);
    store_block(v, to);
}

static void keep_slab(const fold_job *job, int64_t slab, int64_t first, int32_t n, const state *s)
{
    const int64_t at = slab * job->p.outputs + first;
    memcpy(job->values + at, s->value, (size_t)n * sizeof *s->value);
    if (job->positions) memcpy(job->positions + at, s->position, (size_t)n * sizeof *s->position);
}

static void finish(const fold_job *job, int64_t slab, int64_t first, int32_t n, state *s)
{
    if (job->slabs > 1) {
        keep_slab(job, slab, first, n, s);
    } else {
        write_outputs(job, first, n, s);
    }
}

/* ---- tasks ---- */

static int64_t last_step(const fold_job *job, int64_t slab)
{
    const int64_t end = (slab + 1) * job->per_slab;
    return end < job->steps ? end : job->steps;
}

static void row_task(const fold_job *job, int64_t output, int64_t slab)
{
    const atto__fold_plan *p = &job->p;
    const int64_t base = offset_of(output, p->kept_size, p->kept_in, 4);
    float match = 0.0f, buffer[1] = { 0.0f };
    state s;
    begin(job, &s, 1);
    if (job->r->match)
        match = *load_block(outputs_at(job, job->r->match, p->kept_match, output, 1), buffer);
    for (int64_t step = slab * job->per_slab; step < last_step(job, slab); step++)
        fold_row_block(job, step, base, match, &s);
    finish(job, slab, output, 1, &s);
}

/* First output of a block of columns, and how many they are. */
static int64_t columns_of(const fold_job *job, int64_t block, int32_t *n)
{
    const int64_t start = block % job->column_blocks * ATTO_BLOCK;
    const int64_t left = job->columns - start;
    *n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
    return block / job->column_blocks * job->columns + start;
}

static void column_task(const fold_job *job, int64_t block, int64_t slab)
{
    const atto__fold_plan *p = &job->p;
    int32_t n;
    const int64_t first = columns_of(job, block, &n);
    const int64_t base = offset_of(first, p->kept_size, p->kept_in, 4);
    const float *match = NULL;
    float buffer[ATTO_BLOCK], total[ATTO_BLOCK];
    state s;
    begin(job, &s, n);
    if (job->r->match)
        match = load_block(outputs_at(job, job->r->match, p->kept_match, first, n), buffer);
    const bool sums = job->r->fold == ATTO_FOLD_SUM;
    memset(total, 0, (size_t)n * sizeof *total);
    const int64_t begin_step = slab * job->per_slab, end = last_step(job, slab);
    for (int64_t step = begin_step; step < end; step++) {
        fold_column_step(job, step, base, n, match, &s);
        if (!sums || ((step - begin_step) % RUN != RUN - 1 && step + 1 < end)) continue;
        for (int32_t i = 0; i < n; i++) total[i] += s.value[i];
        memset(s.value, 0, (size_t)n * sizeof *s.value);
    }
    if (sums) memcpy(s.value, total, (size_t)n * sizeof *total);
    finish(job, slab, first, n, &s);
}

static void join_slab(const fold_job *job, int64_t at, int32_t n, state *s)
{
    for (int32_t i = 0; i < n; i++) {
        const float v = job->values[at + i];
        if (job->r->fold == ATTO_FOLD_MAX) {
            s->value[i] = attop_max(s->value[i], v);
        } else if (job->r->fold != ATTO_FOLD_ARG) {
            s->value[i] += v;
        } else if (beats(v, job->positions[at + i], s->value[i], s->position[i])) {
            s->value[i] = v;
            s->position[i] = job->positions[at + i];
        }
    }
}

static void join_task(const fold_job *job, int64_t block)
{
    int32_t n;
    const int64_t first = columns_of(job, block, &n);
    state s;
    begin(job, &s, n);
    for (int64_t slab = 0; slab < job->slabs; slab++)
        join_slab(job, slab * job->p.outputs + first, n, &s);
    write_outputs(job, first, n, &s);
}

/* ---- the whole ---- */

static int64_t column_block_count(const fold_job *job)
{
    return job->p.outputs / job->columns * job->column_blocks;
}

static fold_job plan(const atto__reduction *r)
{
    fold_job job = { .r = r, .p = atto__fold_plan_of(r) };
    const atto__fold_plan *p = &job.p;
    job.columns = p->kept_size[3];
    job.column_blocks = atto__divide_up(job.columns, ATTO_BLOCK);
    job.row_chunks = atto__divide_up(p->size[3], ATTO_BLOCK);
    job.steps = p->rows ? p->length / p->size[3] * job.row_chunks : p->length;
    const int64_t tasks = p->rows ? p->outputs : column_block_count(&job);
    const int64_t worth = r->layout->numel / tasks / SLAB_ELEMENTS;
    int64_t slabs = atto__divide_up(TASKS, tasks);
    if (slabs > worth) slabs = worth;
    if (slabs > job.steps) slabs = job.steps;
    if (slabs < 1) slabs = 1;
    job.per_slab = atto__divide_up(job.steps, slabs);
    job.slabs = atto__divide_up(job.steps, job.per_slab);
    return job;
}

static atto_status make_room(atto_device *dev, fold_job *job, atto_buffer *headers)
{
    const int64_t n = job->slabs * job->p.outputs;
    atto_tensor values, positions;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &n, &headers[0], &values));
    job->values = atto__memory(&values);
    if (job->r->fold != ATTO_FOLD_ARG) return ATTO_OK;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_I64, 1, &n, &headers[1], &positions));
    job->positions = atto__memory(&positions);
    return ATTO_OK;
}

static void run_tasks(const void *job_, int64_t begin, int64_t end)
{
    const fold_job *job = job_;
    for (int64_t task = begin; task < end; task++) {
        if (job->p.rows) {
            row_task(job, task / job->slabs, task % job->slabs);
        } else {
            column_task(job, task / job->slabs, task % job->slabs);
        }
    }
}

static void run_joins(const void *job, int64_t begin, int64_t end)
{
    for (int64_t block = begin; block < end; block++) join_task(job, block);
}

atto_status ATTO_LEVEL_NAME(fold)(atto_device *dev, const atto__reduction *r)
{
    fold_job job = plan(r);
    atto_buffer headers[2];
    if (job.slabs > 1) ATTO_TRY(make_room(dev, &job, headers));
    const int64_t blocks = job.p.rows ? job.p.outputs : column_block_count(&job);
    const int64_t tasks = blocks * job.slabs;
    const int32_t threads = r->layout->numel < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
    dev->stats.launches++;
    atto__parallel_for(threads, tasks, run_tasks, &job);
    if (job.slabs == 1) return ATTO_OK;
    const int64_t joins = column_block_count(&job);
    dev->stats.launches++;
    atto__parallel_for(threads, joins, run_joins, &job);
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(reduce_forward)(atto_device *dev, const struct atto_reduce_args *a,
                                            const atto__layout *layout)
{
    const atto__reduction r = atto__reduction_of(a, layout);
    return ATTO_LEVEL_NAME(fold)(dev, &r);
}

/* ---- backward ---- */

typedef struct spread_job {
    const struct atto_reduce_args *a;
    const atto_tensor *share; /* MAX, MIN: dy / ties, like dy */
    float divisor;            /* SUM, MEAN */
} spread_job;

static void spread_block(const void *job_, const block_at *at)
{
    const spread_job *job = job_;
    const struct atto_reduce_args *a = job->a;
    float x_buffer[ATTO_BLOCK], y_buffer[ATTO_BLOCK], dy_buffer[ATTO_BLOCK], dx[ATTO_BLOCK];
    const span to = span_of(a->dx, at);
    const float *dy = load_block(span_of(job->share ? job->share : a->dy, at), dy_buffer);
    if (job->share) {
        const float *x = load_block(span_of(a->x, at), x_buffer);
        const float *y = load_block(span_of(a->y, at), y_buffer);
        for (int32_t i = 0; i < at->n; i++) dx[i] = (x[i] == y[i] ? 1.0f : 0.0f) * dy[i];
    } else {
        for (int32_t i = 0; i < at->n; i++) dx[i] = dy[i] / job->divisor;
    }
    if (a->add_dx) accumulate_block(dx, to, x_buffer);
    store_block(dx, to);
}

atto_status ATTO_LEVEL_NAME(reduce_backward)(atto_device *dev, const struct atto_reduce_args *a,
                                             const atto__layout *layout)
{
    spread_job job = { .a = a, .divisor = 1.0f };
    atto_buffer header;
    atto_tensor share;
    if (a->kind == ATTO_REDUCE_MEAN) job.divisor = (float)layout->folded;
    if (a->kind == ATTO_REDUCE_MAX || a->kind == ATTO_REDUCE_MIN) {
        ATTO_TRY(atto__scratch_like(dev, a->y, a->y->dtype, &header, &share));
        const atto__reduction ties = atto__ties_of(a, layout, &share);
        ATTO_TRY(ATTO_LEVEL_NAME(fold)(dev, &ties));
        job.share = &share;
    }
    return for_each_block(dev, layout, spread_block, &job);
}
