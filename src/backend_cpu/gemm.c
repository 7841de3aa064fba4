/* SPDX-License-Identifier: MIT */
/* Matrix product: blocks, packing, tiles, and the products of a few rows.
 *
 * Rows of C are cut into blocks, K into blocks, columns into blocks, the loops nested in this
 * order; around them, where sums stand in scratch, a loop over parts of C that scratch has room
 * for. A step of the innermost loop is
 *
 *   pack      B's block of this K and these columns; for the first columns A's block as well
 *   multiply  tasks of some panels of A by some of B; later K blocks add to C; the last one ends
 *             with finish on what the task has completed
 *
 * A stage of work (parallel.h) multiplies for one step and packs for the next one, into the other
 * of two buffers: threads without a task pack instead of waiting for those that have one. A single
 * thread has one buffer, which is kinder to its caches.
 *
 * Products with few rows or columns have ways of their own (gemm_whole.h, skinny.h); those with few
 * of both and a long K are cut into parts of K, by their sizes, one for each thread at a time.
 */
#include "backend_cpu/gemm.h"

#include "backend_cpu/cblas.h"
#include "backend_cpu/gemm_whole.h"
#include "backend_cpu/loops.h"
#include "backend_cpu/parallel.h"
#include "backend_cpu/skinny.h"
#include "divide.h"

/* Columns whose sums stand in scratch at a time, where C itself cannot hold them. */
#define SCRATCH_COLUMNS 2048

/* ---- blocks ---- */

typedef struct plan {
    const atto__gemm *g;
    int64_t part, row_block, column_block, k_block;     /* sizes: columns, rows, columns, k */
    int64_t parts, row_blocks, column_blocks, k_blocks; /* how many; column blocks in a part */
    int64_t steps;
    int64_t task_panels, task_columns; /* panels of A and of B in a task */
    int32_t buffers;                   /* 2, or 1 for a single thread */
    float *a[2], *b[2];                /* packed blocks, in turns */
    float *c;                          /* sums, [row_block, part]; NULL: they stand in g->c */
} plan;

/* One step of the loops. The last part may have fewer columns: then steps without any end it. */
typedef struct step {
    float *a, *b;                 /* its packed blocks */
    int64_t part, row, column, k; /* where they start */
    int32_t rows, columns, depth;
    int64_t a_panels, b_panels;
    bool first_column, first_k, last_k;
} step;

static step locate_step(const plan *p, int64_t number)
{
    const atto__gemm *g = p->g;
    const int64_t column = number % p->column_blocks;
    const int64_t k = number / p->column_blocks % p->k_blocks;
    const int64_t block = number / p->column_blocks / p->k_blocks;
    step s = { .part = block / p->row_blocks * p->part };
    s.a = p->a[number / p->column_blocks % p->buffers];
    s.b = p->b[number % p->buffers];
    s.row = block % p->row_blocks * p->row_block;
    s.column = s.part + column * p->column_block;
    s.k = k * p->k_block;
    s.rows = (int32_t)least(p->row_block, g->m - s.row);
    if (s.column < g->n) s.columns = (int32_t)least(p->column_block, g->n - s.column);
    s.depth = (int32_t)least(p->k_block, g->k - s.k);
    s.a_panels = atto__divide_up(s.rows, TILE_ROWS);
    s.b_panels = atto__divide_up(s.columns, TILE_COLUMNS);
    s.first_column = column == 0;
    s.first_k = k == 0;
    s.last_k = k == p->k_blocks - 1;
    return s;
}

/* ---- packing ---- */

static void pack_a_group(const plan *p, const step *s, int64_t group)
{
    const int64_t first = group * GROUP_ROWS;
    pack_a(p->g, s->row + first, s->k, (int32_t)least(GROUP_ROWS, s->rows - first), s->depth,
           s->a + first * s->depth);
}

static void pack_b_group(const plan *p, const step *s, int64_t group)
{
    const int64_t first = group * GROUP_COLUMNS;
    pack_b(p->g, s->column + first, s->k, (int32_t)least(GROUP_COLUMNS, s->columns - first),
           s->depth, s->b + first * s->depth);
}

static int64_t a_groups(const step *s)
{
    return s->first_column ? atto__divide_up(s->a_panels, GROUP_PANELS) : 0;
}

static void pack_unit(const plan *p, const step *s, int64_t unit)
{
    const int64_t groups = a_groups(s);
    if (unit < groups) {
        pack_a_group(p, s, unit);
    } else {
        pack_b_group(p, s, unit - groups);
    }
}

/* ---- tasks ---- */

/* Element [row, column] of C, or of the sums kept for it. */
static float *sums_at(const plan *p, const step *s, int64_t row, int64_t column)
{
    const atto__gemm *g = p->g;
    if (g->c) return g->c + row * g->c_stride + column;
    return p->c + (row - s->row) * p->part + column - s->part;
}

static void multiply_panel_pair(const plan *p, const step *s, int64_t a_panel, int64_t b_panel)
{
    const int64_t i = a_panel * TILE_ROWS, j = b_panel * TILE_COLUMNS;
    multiply_tile(s->depth, s->a + i * s->depth, s->b + j * s->depth,
                  sums_at(p, s, s->row + i, s->column + j), p->c ? p->part : p->g->c_stride,
                  (int32_t)least(TILE_ROWS, s->rows - i),
                  (int32_t)least(TILE_COLUMNS, s->columns - j), !s->first_k || p->g->accumulate);
}

/* Rows of panels a0 .. a1 of A, columns of panels b0 .. b1 of B. */
static void finish_panels(const plan *p, const step *s, int64_t a0, int64_t a1, int64_t b0,
                          int64_t b1)
{
    const int64_t row = s->row + a0 * TILE_ROWS, end = s->row + least(a1 * TILE_ROWS, s->rows);
    const int64_t column = s->column + b0 * TILE_COLUMNS;
    const int64_t end_column = s->column + least(b1 * TILE_COLUMNS, s->columns);
    finish_lines(p->g, row, (int32_t)(end - row), column, (int32_t)(end_column - column),
                 sums_at(p, s, row, column), p->c ? p->part : p->g->c_stride);
}

/* Some panels of B at a time, so that finish finds the sums in the first-level cache. */
static void multiply_unit(const plan *p, const step *s, int64_t unit)
{
    const int64_t across = atto__divide_up(s->b_panels, p->task_columns);
    const int64_t a0 = unit / across * p->task_panels, b0 = unit % across * p->task_columns;
    const int64_t a1 = least(a0 + p->task_panels, s->a_panels);
    const int64_t b1 = least(b0 + p->task_columns, s->b_panels);
    for (int64_t first = b0; first < b1; first += FINISH_PANELS) {
        const int64_t end = least(first + FINISH_PANELS, b1);
        for (int64_t j = first; j < end; j++)
            for (int64_t i = a0; i < a1; i++) multiply_panel_pair(p, s, i, j);
        if (s->last_k) finish_panels(p, s, a0, a1, first, end);
    }
    end_stream();
}

/* ---- stages ---- */

static int64_t tasks_of(const plan *p, const step *s)
{
    return atto__divide_up(s->a_panels, p->task_panels) *
           atto__divide_up(s->b_panels, p->task_columns);
}

static int64_t packs_of(const step *s)
{
    return s->depth == 0 ? 0 : a_groups(s) + atto__divide_up(s->b_panels, GROUP_PANELS);
}

/* Stage i multiplies for step i - 1 and packs for step i. */
static int64_t stage_units(const void *job, int64_t stage)
{
    const plan *p = job;
    int64_t units = 0;
    if (stage > 0) {
        const step s = locate_step(p, stage - 1);
        units += tasks_of(p, &s);
    }
    if (stage < p->steps) {
        const step s = locate_step(p, stage);
        units += packs_of(&s);
    }
    return units;
}

static void stage_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    (void)worker;
    const plan *p = job;
    if (stage > 0) {
        const step s = locate_step(p, stage - 1);
        const int64_t tasks = tasks_of(p, &s);
        if (unit < tasks) {
            multiply_unit(p, &s, unit);
            return;
        }
        unit -= tasks;
    }
    const step s = locate_step(p, stage);
    pack_unit(p, &s, unit);
}

/* Tasks are halved until there are some for each thread. */
static void share_out(plan *p, int32_t threads)
{
    const int64_t a_panels = atto__divide_up(p->row_block, TILE_ROWS);
    const int64_t b_panels = atto__divide_up(p->column_block, TILE_COLUMNS);
    p->task_panels = least(TASK_PANELS, a_panels);
    p->task_columns = least(TASK_COLUMNS / TILE_COLUMNS, b_panels);
    while (threads > 1 &&
           atto__divide_up(a_panels, p->task_panels) * atto__divide_up(b_panels, p->task_columns) <
               8 * (int64_t)threads) {
        if (p->task_panels > 1) {
            p->task_panels = atto__divide_up(p->task_panels, 2);
        } else if (p->task_columns > 1) {
            p->task_columns = atto__divide_up(p->task_columns, 2);
        } else {
            break;
        }
    }
}

static plan make_plan(const atto__gemm *g, int32_t threads)
{
    plan p = { .g = g, .buffers = threads > 1 ? 2 : 1 };
    p.row_block = round_up(atto__divide_up(g->m, atto__divide_up(g->m, ROW_BLOCK)), TILE_ROWS);
    p.row_blocks = atto__divide_up(g->m, p.row_block);
    p.part = g->c ? g->n : least(g->n, SCRATCH_COLUMNS);
    p.parts = atto__divide_up(g->n, p.part);
    p.column_block = least(COLUMN_BLOCK, round_up(g->n, TILE_COLUMNS));
    p.column_blocks = atto__divide_up(p.part, p.column_block);
    p.k_block = k_block_of(g);
    p.k_blocks = g->k > 0 ? atto__divide_up(g->k, p.k_block) : 1;
    p.steps = p.parts * p.row_blocks * p.column_blocks * p.k_blocks;
    share_out(&p, threads);
    return p;
}

static atto_status take_scratch(atto_device *dev, plan *p)
{
    for (int32_t i = 0; i < p->buffers && i < p->steps; i++) {
        ATTO_TRY(scratch_floats(dev, p->column_block * p->k_block, &p->b[i]));
        if (i < p->steps / p->column_blocks)
            ATTO_TRY(scratch_floats(dev, p->row_block * p->k_block, &p->a[i]));
    }
    if (p->g->c) return ATTO_OK;
    return scratch_floats(dev, least(p->row_block, p->g->m) * p->part, &p->c);
}

static atto_status run_packed(atto_device *dev, const atto__gemm *g)
{
    plan p = make_plan(g, threads_for(g, atto__cpu_most_threads(dev)));
    ATTO_TRY(take_scratch(dev, &p));
    atto__parallel(threads_for(g, atto__cpu_threads(dev)),
                   &(atto__work){ p.steps + 1, stage_units, stage_run, &p });
    return ATTO_OK;
}

/* ---- one operand as a whole ---- */

static atto_status run_whole(atto_device *dev, const atto__gemm *g)
{
    const int32_t most = atto__cpu_most_threads(dev);
    whole_plan p = plan_whole(g, most);
    ATTO_TRY(scratch_floats(dev, p.lines * p.k_block * p.k_blocks, &p.whole));
    ATTO_TRY(scratch_floats(dev, most * p.own_floats, &p.own));
    atto__parallel(threads_for(g, atto__cpu_threads(dev)),
                   &(atto__work){ 2, whole_units, whole_run, &p });
    return ATTO_OK;
}

/* ---- a few rows ---- */

typedef struct skinny_plan {
    const atto__gemm *g;
    const float *a; /* rows as floats: A's own memory, or converted */
    int64_t a_stride;
    float *converted;
    int32_t columns; /* of a unit */
} skinny_plan;

static int64_t skinny_units(const void *job, int64_t stage)
{
    const skinny_plan *p = job;
    if (stage == 0) return p->converted ? p->g->m * atto__divide_up(p->g->k, ATTO_GEMM_RUN) : 0;
    return atto__divide_up(p->g->n, p->columns);
}

/* A run of A's rows as floats. */
static void convert_unit(const skinny_plan *p, int64_t unit)
{
    const atto__gemm *g = p->g;
    const int64_t runs = atto__divide_up(g->k, ATTO_GEMM_RUN);
    const int64_t row = unit / runs, k = unit % runs * ATTO_GEMM_RUN;
    const int32_t n = (int32_t)least(ATTO_GEMM_RUN, g->k - k);
    float *to = p->converted + row * g->k + k;
    if (g->prologue) {
        g->prologue(g->job, row, k, n, to);
    } else {
        for (int32_t i = 0; i < n; i++)
            to[i] = vec_one_as(g->a.data, row * g->a.stride + k + i, g->a.dtype);
    }
}

/* Sums go to C, if there is one, and to finish. */
static void deliver(const atto__gemm *g, int64_t row, int64_t column, int32_t n, float *sums)
{
    if (g->c) {
        float *c = g->c + row * g->c_stride + column;
        for (int32_t i = 0; i < n; i++) c[i] = g->accumulate ? c[i] + sums[i] : sums[i];
        sums = c;
    }
    finish_lines(g, row, 1, column, n, sums, n);
}

ATTO_INLINE void skinny_as(const skinny_plan *p, atto_dtype dtype, int64_t column, int32_t n,
                           float *out)
{
    const atto__gemm *g = p->g;
    if (g->b.along_k) {
        dot_block((int32_t)g->m, n, g->k, p->a, p->a_stride, &g->b, dtype, column, out);
    } else {
        sum_block((int32_t)g->m, n, g->k, p->a, p->a_stride, &g->b, dtype, column, out);
    }
}

static void skinny_unit(const skinny_plan *p, int64_t unit)
{
    const atto__gemm *g = p->g;
    float out[SUM_FLOATS];
    const int64_t column = unit * p->columns;
    const int32_t n = (int32_t)least(p->columns, g->n - column);
    switch (g->b.dtype) {
    case ATTO_F16:
        skinny_as(p, ATTO_F16, column, n, out);
        break;
    case ATTO_BF16:
        skinny_as(p, ATTO_BF16, column, n, out);
        break;
    default:
        skinny_as(p, ATTO_F32, column, n, out);
        break;
    }
    for (int32_t i = 0; i < g->m; i++) deliver(g, i, column, n, out + i * n);
}

static void skinny_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    (void)worker;
    if (stage == 0) {
        convert_unit(job, unit);
    } else {
        skinny_unit(job, unit);
    }
}

/* Columns of a unit: as many as the sums have room for, fewer to give each thread some. Whole
 * vectors, so that the cut changes no bits. */
static int32_t sum_columns(const atto__gemm *g, int32_t threads)
{
    const int64_t room = least(ATTO_GEMM_RUN, SUM_FLOATS / g->m / VEC_LANES * VEC_LANES);
    const int64_t share = round_up(atto__divide_up(g->n, 4 * (int64_t)threads), 4 * VEC_LANES);
    return (int32_t)least(room, share);
}

static bool converts(const atto__gemm *g)
{
    return g->prologue || g->a.dtype != ATTO_F32;
}

/* converted: room for A as floats, if it is not read as it is. */
static skinny_plan plan_skinny(const atto__gemm *g, int32_t threads, float *converted)
{
    skinny_plan p = { .g = g, .a = g->a.data, .a_stride = g->a.stride, .converted = converted };
    p.columns = g->b.along_k ? DOT_COLUMNS : sum_columns(g, threads);
    if (!converted) return p;
    p.a = converted;
    p.a_stride = g->k;
    return p;
}

static atto_status run_skinny(atto_device *dev, const atto__gemm *g)
{
    const int32_t threads = threads_for(g, atto__cpu_threads(dev));
    float *converted = NULL;
    if (converts(g)) ATTO_TRY(scratch_floats(dev, g->m * g->k, &converted));
    const skinny_plan p = plan_skinny(g, threads, converted);
    atto__parallel(threads, &(atto__work){ 2, skinny_units, skinny_run, &p });
    return ATTO_OK;
}

/* ---- a BLAS of the user's ---- */

/* Columns that an operand's stored rows have. */
static bool has_rows_of(const atto__gemm_side *side, int64_t columns)
{
    return side->dtype == ATTO_F32 && side->stride >= columns && side->stride <= INT32_MAX;
}

static bool fits_blas(const atto__gemm *g)
{
    const bool sizes = g->m <= INT32_MAX && g->n <= INT32_MAX && g->k <= INT32_MAX && g->k > 0;
    return sizes && !g->prologue && !g->pack_a && !g->pack_b &&
           has_rows_of(&g->a, g->a.along_k ? g->k : g->m) &&
           has_rows_of(&g->b, g->b.along_k ? g->k : g->n) &&
           (!g->c || (g->c_stride >= g->n && g->c_stride <= INT32_MAX));
}

typedef struct sums {
    const atto__gemm *g;
    float *c;
    int64_t stride;
} sums;

static void finish_some(const void *job, int64_t begin, int64_t end)
{
    const sums *s = job;
    for (int64_t column = 0; column < s->g->n; column += ATTO_GEMM_RUN)
        finish_lines(s->g, begin, (int32_t)(end - begin), column,
                     (int32_t)least(ATTO_GEMM_RUN, s->g->n - column),
                     s->c + begin * s->stride + column, s->stride);
}

static atto_status run_blas(atto_device *dev, const atto__gemm *g, atto__sgemm_fn *sgemm)
{
    sums s = { g, g->c, g->c_stride };
    if (!s.c) {
        s.stride = g->n;
        ATTO_TRY(scratch_floats(dev, g->m * g->n, &s.c));
    }
    sgemm(ATTO_CBLAS_ROW_MAJOR, g->a.along_k ? ATTO_CBLAS_AS_IT_IS : ATTO_CBLAS_TRANSPOSED,
          g->b.along_k ? ATTO_CBLAS_TRANSPOSED : ATTO_CBLAS_AS_IT_IS, (int)g->m, (int)g->n,
          (int)g->k, 1.0f, g->a.data, (int)g->a.stride, g->b.data, (int)g->b.stride,
          g->c && g->accumulate ? 1.0f : 0.0f, s.c, (int)s.stride);
    if (g->finish || g->finish_rows)
        atto__parallel_for(threads_for(g, atto__cpu_threads(dev)), g->m, finish_some, &s);
    return ATTO_OK;
}

/* ---- a product in one thread ---- */

/* The next n floats of memory, which is NULL while they are counted; 64 bytes apart. */
static float *take_floats(float *memory, int64_t *used, int64_t n)
{
    float *taken = memory ? memory + *used : NULL;
    *used += round_up(n, 16);
    return taken;
}

static void run_alone(const void *job, int64_t (*units)(const void *, int64_t),
                      void (*run)(const void *, int64_t, int64_t, int32_t), int64_t stages)
{
    atto__parallel(1, &(atto__work){ stages, units, run, job });
}

static int64_t alone_skinny(const atto__gemm *g, float *memory)
{
    int64_t used = 0;
    float *converted = converts(g) ? take_floats(memory, &used, g->m * g->k) : NULL;
    const skinny_plan p = plan_skinny(g, 1, converted);
    if (memory) run_alone(&p, skinny_units, skinny_run, 2);
    return used;
}

static int64_t alone_whole(const atto__gemm *g, float *memory)
{
    int64_t used = 0;
    whole_plan p = plan_whole(g, 1);
    p.whole = take_floats(memory, &used, p.lines * p.k_block * p.k_blocks);
    p.own = take_floats(memory, &used, p.own_floats);
    if (memory) run_alone(&p, whole_units, whole_run, 2);
    return used;
}

static int64_t alone_packed(const atto__gemm *g, float *memory)
{
    int64_t used = 0;
    plan p = make_plan(g, 1);
    p.a[0] = take_floats(memory, &used, p.row_block * p.k_block);
    p.b[0] = take_floats(memory, &used, p.column_block * p.k_block);
    if (!g->c) p.c = take_floats(memory, &used, least(p.row_block, g->m) * p.part);
    if (memory) run_alone(&p, stage_units, stage_run, p.steps + 1);
    return used;
}

static bool is_skinny(const atto__gemm *g)
{
    return g->m <= ATTO_GEMM_SKINNY && g->a.along_k && g->k > 0 && !g->pack_a && !g->pack_b;
}

/* Computes the product in this thread and returns how many floats of memory that takes; memory
 * NULL: only that. */
static int64_t compute_short(const atto__gemm *g, float *memory)
{
    if (is_skinny(g)) return alone_skinny(g, memory);
    return is_whole(g, 1) ? alone_whole(g, memory) : alone_packed(g, memory);
}

/* ---- a long K ---- */

/* Sums of so many products, of which there are few, are added up in parts, by a thread each; then
 * the parts in order. How many there are depends on the sizes alone. */
#define PART_DEPTH  768
#define MOST_PARTS  32
#define LEAST_PARTS 16
#define PART_FLOATS (1 << 22)

typedef struct parts_plan {
    const atto__gemm *g;
    int64_t parts, depth;
    float *sums; /* [parts][m][n] */
    float *room; /* scratch of each worker */
    int64_t room_floats;
} parts_plan;

static int64_t parts_of(const atto__gemm *g)
{
    return least(MOST_PARTS, g->k / PART_DEPTH);
}

static bool is_long(const atto__gemm *g)
{
    const int64_t parts = parts_of(g);
    return parts >= LEAST_PARTS && !g->prologue && !is_skinny(g) &&
           g->m * g->n <= PART_FLOATS / parts;
}

static void skip_k(atto__gemm_side *side, int64_t k)
{
    if (!side->data) return;
    const int64_t elements = side->along_k ? k : k * side->stride;
    side->data = (const char *)side->data + elements * (int64_t)atto_dtype_size(side->dtype);
}

static atto__gemm part_of_product(const parts_plan *p, int64_t part)
{
    atto__gemm g = *p->g;
    const int64_t first = part * p->depth;
    g.k = least(p->depth, g.k - first);
    g.first_k += first;
    skip_k(&g.a, first);
    skip_k(&g.b, first);
    g.c = p->sums + part * g.m * g.n;
    g.c_stride = g.n;
    g.accumulate = false;
    g.finish = NULL;
    g.finish_rows = NULL;
    return g;
}

static int64_t parts_units(const void *job, int64_t stage)
{
    const parts_plan *p = job;
    return stage == 0 ? p->parts : p->g->m;
}

/* A row of C. */
static void add_parts(const parts_plan *p, int64_t row)
{
    const atto__gemm *g = p->g;
    for (int64_t column = 0; column < g->n; column += ATTO_GEMM_RUN) {
        const int32_t n = (int32_t)least(ATTO_GEMM_RUN, g->n - column);
        float *first = p->sums + row * g->n + column;
        for (int64_t part = 1; part < p->parts; part++) {
            const float *more = first + part * g->m * g->n;
            ATTO_SIMD
            for (int32_t i = 0; i < n; i++) first[i] += more[i];
        }
        deliver(g, row, column, n, first);
    }
}

static void parts_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    const parts_plan *p = job;
    if (stage == 0) {
        const atto__gemm g = part_of_product(p, unit);
        compute_short(&g, p->room + worker * p->room_floats);
    } else {
        add_parts(p, unit);
    }
}

static parts_plan plan_parts(const atto__gemm *g)
{
    parts_plan p = { .g = g, .parts = parts_of(g) };
    p.depth = round_up(atto__divide_up(g->k, p.parts), VEC_LANES);
    p.parts = atto__divide_up(g->k, p.depth);
    const atto__gemm first = part_of_product(&p, 0), last = part_of_product(&p, p.parts - 1);
    const int64_t all = compute_short(&first, NULL), rest = compute_short(&last, NULL);
    p.room_floats = all > rest ? all : rest;
    return p;
}

static atto_status run_parts(atto_device *dev, const atto__gemm *g)
{
    const int32_t most = atto__cpu_most_threads(dev);
    parts_plan p = plan_parts(g);
    ATTO_TRY(scratch_floats(dev, p.parts * g->m * g->n, &p.sums));
    ATTO_TRY(scratch_floats(dev, most * p.room_floats, &p.room));
    atto__parallel(threads_for(g, atto__cpu_threads(dev)),
                   &(atto__work){ 2, parts_units, parts_run, &p });
    return ATTO_OK;
}

static int64_t alone_parts(const atto__gemm *g, float *memory)
{
    int64_t used = 0;
    parts_plan p = plan_parts(g);
    p.sums = take_floats(memory, &used, p.parts * g->m * g->n);
    p.room = take_floats(memory, &used, p.room_floats);
    if (memory) run_alone(&p, parts_units, parts_run, 2);
    return used;
}

/* compute_short of any product. */
static int64_t compute_alone(const atto__gemm *g, float *memory)
{
    return is_long(g) ? alone_parts(g, memory) : compute_short(g, memory);
}

/* ---- one product, and a batch ---- */

atto_status ATTO_LEVEL_NAME(gemm)(atto_device *dev, const atto__gemm *g)
{
    if (g->m == 0 || g->n == 0) return ATTO_OK;
    atto__sgemm_fn *sgemm = atto__cpu_sgemm(dev);
    if (sgemm && fits_blas(g)) return run_blas(dev, g, sgemm);
    if (is_skinny(g)) return run_skinny(dev, g);
    if (is_long(g)) return run_parts(dev, g);
    return is_whole(g, atto__cpu_most_threads(dev)) ? run_whole(dev, g) : run_packed(dev, g);
}

/* A unit of less work than that costs more to hand out than to do. */
#define UNIT_WORK (1 << 16)

typedef struct batch {
    const atto__gemm *g;
    void (*locate)(const void *job, int64_t item, atto__gemm *out);
    int64_t count, per_unit;
    float *room; /* scratch of each worker */
    int64_t room_floats;
} batch;

static int64_t batch_units(const void *job, int64_t stage)
{
    (void)stage;
    const batch *b = job;
    return atto__divide_up(b->count, b->per_unit);
}

static void batch_run(const void *job, int64_t stage, int64_t unit, int32_t worker)
{
    (void)stage;
    const batch *b = job;
    const int64_t end = least((unit + 1) * b->per_unit, b->count);
    for (int64_t item = unit * b->per_unit; item < end; item++) {
        atto__gemm g = *b->g;
        b->locate(g.job, item, &g);
        compute_alone(&g, b->room + worker * b->room_floats);
    }
}

static double work_of(const atto__gemm *g)
{
    return (double)g->m * (double)g->n * (double)g->k;
}

/* Products side by side, as many threads as there is work for. */
static atto_status run_side_by_side(atto_device *dev, batch *b)
{
    const double each = work_of(b->g), all = each * (double)b->count / THREAD_WORK;
    const int32_t most = atto__cpu_most_threads(dev), now = atto__cpu_threads(dev);
    const int32_t busy = all < now - 1 ? 1 + (int32_t)all : now;
    const int64_t share = b->count / (8 * (int64_t)most), fill = (int64_t)(UNIT_WORK / (each + 1));
    b->per_unit = share < 1 ? 1 : least(share, 1 + fill);
    b->room_floats = compute_alone(b->g, NULL);
    ATTO_TRY(scratch_floats(dev, most * b->room_floats, &b->room));
    atto__parallel(busy, &(atto__work){ 1, batch_units, batch_run, b });
    return ATTO_OK;
}

/* Whether one product leaves threads idle, of which the batch has work for as many or more. */
static bool goes_side_by_side(atto_device *dev, const atto__gemm *g, int64_t count)
{
    const int32_t most = atto__cpu_most_threads(dev), busy = threads_for(g, most);
    return count > 1 && least(count, most) >= busy && (busy < most || most == 1);
}

atto_status ATTO_LEVEL_NAME(gemm_batch)(atto_device *dev, const atto__gemm *g, int64_t count,
                                        void (*locate)(const void *job, int64_t item,
                                                       atto__gemm *out))
{
    if (g->m == 0 || g->n == 0) return ATTO_OK;
    const bool has_blas = atto__cpu_sgemm(dev) && fits_blas(g);
    if (!has_blas && goes_side_by_side(dev, g, count))
        return run_side_by_side(dev, &(batch){ .g = g, .locate = locate, .count = count });
    const int32_t scratch = dev->scratch_count;
    for (int64_t item = 0; item < count; item++) {
        atto__gemm one = *g;
        locate(g->job, item, &one);
        ATTO_TRY(ATTO_LEVEL_NAME(gemm)(dev, &one));
        atto__scratch_release(dev, scratch);
    }
    return ATTO_OK;
}
