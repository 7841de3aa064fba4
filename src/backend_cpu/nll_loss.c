/* SPDX-License-Identifier: MIT */
/* Negative log-likelihood on the CPU.
 *
 *   forward    each = - weight[label] x[label]
 *   backward   dx = 0, but - g weight[label] at the label
 *
 * Positions in blocks: up to 1024 neighbours of one outer index, or as many rows as make a few
 * thousand elements. A block's gradient is cleared, then its labels are set while it is in the
 * cache.
 */
#include <stdatomic.h>
#include <string.h>

#include "backend_cpu/rows.h"
#include "divide.h"
#include "nll_loss.h"

#define CLEARED_AT_ONCE 4096 /* elements */

typedef struct job {
    const struct atto_nll_loss_args *a;
    const atto_tensor *x; /* or dx */
    atto__nll_loss n;
    atomic_uint *errors; /* the device's error word */
    float *loss;         /* forward: [positions], or NULL */
    float *partial;      /* forward: [blocks] of losses, then of weights */
    int64_t blocks;
    float total; /* backward */
} job;

/* What the label says about a position. */
typedef struct verdict {
    bool counts; /* not ignored, and a class */
    bool wrong;  /* no class */
    int64_t label;
    float weight;
} verdict;

static int64_t label_of(const atto_tensor *target, int64_t position)
{
    const void *memory = atto__memory(target);
    const int64_t at = target->offset + position;
    return target->dtype == ATTO_I64 ? ((const int64_t *)memory)[at]
                                     : (int64_t)((const int32_t *)memory)[at];
}

/* One element as a block of one. */
static span element_of(const atto_tensor *t, int64_t at)
{
    char *memory = atto__memory(t);
    return (span){ memory + (t->offset + at) * (int64_t)atto_dtype_size(t->dtype), 1, 1, t->dtype };
}

static float *floats_of(const atto_tensor *t)
{
    return (float *)atto__memory(t) + t->offset;
}

static float load_one(const atto_tensor *t, int64_t at)
{
    float one[1] = { 0.0f };
    return *load_block(element_of(t, at), one);
}

static bool is_ignored(const job *j, int64_t label)
{
    return j->a->has_ignore_index && label == j->a->ignore_index;
}

/* Whether it is a class; else the device learns of it. */
static bool is_class(const job *j, int64_t label)
{
    if (label >= 0 && label < j->n.classes) return true;
    atomic_fetch_or_explicit(j->errors, ATTO_ERROR_LABEL, memory_order_relaxed);
    return false;
}

static verdict judge(const job *j, int64_t position)
{
    const struct atto_nll_loss_args *a = j->a;
    const int64_t label = label_of(a->target, position);
    if (is_ignored(j, label)) return (verdict){ false, false, label, 0.0f };
    if (!is_class(j, label)) return (verdict){ false, true, label, 0.0f };
    return (verdict){ true, false, label, a->weight ? load_one(a->weight, label) : 1.0f };
}

/* Where class c of a position stands. */
static int64_t element_at(const atto__nll_loss *n, int64_t position, int64_t c)
{
    return (position / n->step * n->classes + c) * n->step + position % n->step;
}

/* Threads for that many elements of work. */
static int32_t threads_for(const atto_device *dev, int64_t elements)
{
    return elements < ATTO_SERIAL_BELOW ? 1 : atto__cpu_threads(dev);
}

static job job_of(atto_device *dev, const struct atto_nll_loss_args *a, const atto_tensor *x)
{
    return (job){
        .a = a, .x = x, .n = atto__nll_loss_of(x), .errors = dev->error_word->memory, .total = 1.0f
    };
}

/* ---- forward ---- */

static float position_loss(const job *j, const verdict *v, int64_t position)
{
    if (!v->counts) return v->wrong ? NAN : 0.0f;
    return -(load_one(j->x, element_at(&j->n, position, v->label)) * v->weight);
}

/* Blocks of positions; without a reduction losses are stored, else added up, with the weights. */
static void forward_blocks(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const bool reads = j->x == j->a->x; /* else backward wants the weights only */
    float loss[ATTO_BLOCK], weight[ATTO_BLOCK];
    for (int64_t block = begin; block < end; block++) {
        const int64_t first = block * ATTO_BLOCK, left = j->n.positions - first;
        const int32_t n = (int32_t)(left < ATTO_BLOCK ? left : ATTO_BLOCK);
        for (int32_t i = 0; i < n; i++) {
            const verdict v = judge(j, first + i);
            weight[i] = v.weight;
            loss[i] = reads ? position_loss(j, &v, first + i) : 0.0f;
        }
        if (j->loss) memcpy(j->loss + first, loss, (size_t)n * sizeof *loss);
        j->partial[block] = block_sum(loss, n);
        j->partial[j->blocks + block] = block_sum(weight, n);
    }
}

static float sum_partials(const float *partial, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)partial[i];
    return (float)sum;
}

/* Goes over all positions; *loss and *weight get the sums. */
static atto_status sum_positions(atto_device *dev, job *j, float *loss, float *weight)
{
    j->blocks = atto__divide_up(j->n.positions, ATTO_BLOCK);
    const int64_t n = 2 * j->blocks + 1; /* there is no block of 0 bytes */
    atto_buffer header;
    atto_tensor partial;
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &n, &header, &partial));
    j->partial = atto__memory(&partial);
    atto__parallel_for(threads_for(dev, j->n.positions), j->blocks, forward_blocks, j);
    *loss = sum_partials(j->partial, j->blocks);
    *weight = sum_partials(j->partial + j->blocks, j->blocks);
    return ATTO_OK;
}

static void store_scalar(const atto_tensor *t, float value)
{
    *floats_of(t) = value;
}

atto_status ATTO_LEVEL_NAME(nll_loss_forward)(atto_device *dev, const struct atto_nll_loss_args *a,
                                              const atto__layout *layout)
{
    (void)layout;
    const bool none = a->reduction == ATTO_REDUCTION_NONE;
    job j = job_of(dev, a, a->x);
    float sum, total;
    if (none && j.n.positions > 0) j.loss = floats_of(a->loss);
    dev->stats.launches++;
    ATTO_TRY(sum_positions(dev, &j, &sum, &total));
    if (a->total) store_scalar(a->total, total);
    if (!none) store_scalar(a->loss, a->reduction == ATTO_REDUCTION_MEAN ? sum / total : sum);
    return ATTO_OK;
}

/* ---- backward ---- */

/* Neighbours of one outer index. */
typedef struct run {
    int64_t first, n; /* positions */
    int64_t at;       /* in dx: class 0 of the first one, */
    int64_t apart;    /* how far the next one is from it, */
    int64_t ahead;    /* and what will soon be cleared */
} run;

static void set_label(const job *j, int64_t position, int64_t at)
{
    const struct atto_nll_loss_args *a = j->a;
    const verdict v = judge(j, position);
    if (!v.counts) return;
    const float g = floats_of(a->dloss)[a->reduction == ATTO_REDUCTION_NONE ? position : 0];
    const span to = element_of(a->dx, at + v.label * j->n.step);
    float buffer[1], value[1] = { -(g / j->total * v.weight) };
    if (a->add_dx) accumulate_block(value, to, buffer);
    store_block(value, to);
}

/* Whether labels get one number, and floats just it. */
static bool is_plain(const struct atto_nll_loss_args *a)
{
    return a->dx->dtype == ATTO_F32 && !a->add_dx && !a->weight &&
           a->reduction != ATTO_REDUCTION_NONE;
}

static void set_plain(const job *j, run r)
{
    const float value = -(*floats_of(j->a->dloss) / j->total);
    float *dx = floats_of(j->a->dx) + r.at;
    for (int64_t i = 0; i < r.n; i++, dx += r.apart) {
        const int64_t label = label_of(j->a->target, r.first + i);
        vec_prefetch_as(dx, r.ahead, ATTO_F32);
        if (!is_ignored(j, label) && is_class(j, label)) dx[label * j->n.step] = value;
    }
}

/* Elements first .. first + n - 1 of dx; all bits 0 is 0 in every dtype. */
static void clear(const atto_tensor *dx, int64_t first, int64_t n)
{
    memset(element_of(dx, first).first, 0, (size_t)n * atto_dtype_size(dx->dtype));
}

static void backward_positions(const job *j, int64_t first, int64_t n)
{
    const int64_t classes = j->n.classes, step = j->n.step;
    const int64_t apart = step > 1 ? 1 : classes; /* of positions */
    const run r = { first, n, element_at(&j->n, first, 0), apart, n * apart };
    if (!j->a->add_dx && step == 1) clear(j->a->dx, r.at, n * classes);
    for (int64_t c = 0; c < classes && !j->a->add_dx && step > 1; c++)
        clear(j->a->dx, r.at + c * step, n);
    if (is_plain(j->a)) {
        set_plain(j, r);
        return;
    }
    for (int64_t i = 0; i < n; i++) set_label(j, first + i, r.at + i * apart);
}

/* Positions of a block; blocks of one outer index. */
static int64_t block_size(const atto__nll_loss *n)
{
    const int64_t rows = CLEARED_AT_ONCE / n->classes;
    return n->step > 1 ? ATTO_BLOCK : rows > 0 ? rows : 1;
}

static int64_t blocks_per_outer(const atto__nll_loss *n)
{
    return atto__divide_up(n->step > 1 ? n->step : n->positions, block_size(n));
}

static void backward_blocks(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const int64_t length = j->n.step > 1 ? j->n.step : j->n.positions; /* of an outer index */
    const int64_t size = block_size(&j->n), per_outer = blocks_per_outer(&j->n);
    for (int64_t block = begin; block < end; block++) {
        const int64_t start = block % per_outer * size, left = length - start;
        backward_positions(j, block / per_outer * length + start, left < size ? left : size);
    }
}

atto_status ATTO_LEVEL_NAME(nll_loss_backward)(atto_device *dev, const struct atto_nll_loss_args *a,
                                               const atto__layout *layout)
{
    (void)layout;
    job j = job_of(dev, a, a->dx);
    const int32_t threads = threads_for(dev, j.n.positions * (a->add_dx ? 1 : j.n.classes));
    const int64_t outer = j.n.step > 1 ? j.n.positions / j.n.step : 1;
    float sum;
    dev->stats.launches++;
    if (a->reduction == ATTO_REDUCTION_MEAN && a->total) j.total = *floats_of(a->total);
    if (a->reduction == ATTO_REDUCTION_MEAN && !a->total)
        ATTO_TRY(sum_positions(dev, &j, &sum, &j.total));
    atto__parallel_for(threads, outer * blocks_per_outer(&j.n), backward_blocks, &j);
    return ATTO_OK;
}
