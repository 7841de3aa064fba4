/* SPDX-License-Identifier: MIT */
/* What a call looks like: each op has a plan that draws legal numbers, shapes and dtypes most of
 * the time. fuzz_ops.c breaks some of them afterwards. */
#include "ops.h"

#include <math.h>

/* ---- draws ---- */

/* 1 to most, seldom 0. */
static int64_t take_size(bytes *b, int32_t most)
{
    const uint8_t byte = take_byte(b);
    return byte >= 250 ? 0 : 1 + byte % most;
}

/* low to high, seldom anything. */
static int64_t take_int(bytes *b, int32_t low, int32_t high)
{
    const uint8_t byte = take_byte(b);
    if (byte >= 252) return (int64_t)take_word(b, byte == 252 ? 8 : 4);
    return low + byte % (high - low + 1);
}

static atto_shape take_shape(bytes *b, int32_t low, int32_t high)
{
    static const int32_t most[] = { 1, 70, 24, 9, 6, 4, 3, 3, 2 };
    atto_shape s = { .rank = (int32_t)take_number(b, low, high) };
    for (int32_t d = 0; d < s.rank; d++) s.dim[d] = take_size(b, most[s.rank]);
    return s;
}

static atto_dtype take_float_type(bytes *b)
{
    static const atto_dtype types[] = { ATTO_F32, ATTO_F32, ATTO_F16, ATTO_BF16 };
    return types[take_byte(b) % 4];
}

static atto_dtype take_index_type(bytes *b)
{
    return take_flag(b) ? ATTO_I64 : ATTO_I32;
}

static atto_dtype like_or_f32(bytes *b, atto_dtype like)
{
    return take_flag(b) ? ATTO_F32 : like;
}

static float take_float(bytes *b)
{
    static const float usual[] = { 1e-5f, 0.0f, 0.5f, 1.0f, 0.1f, -1.0f, 2.0f };
    const uint8_t byte = take_byte(b);
    if (byte < 245) return usual[byte % 7];
    const uint32_t bits = (uint32_t)take_word(b, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static atto_activation take_activation(bytes *b)
{
    const uint8_t byte = take_byte(b);
    if (byte < 128) return atto_identity();
    const int32_t kind = (int32_t)take_int(b, 0, ATTO_ACT_COUNT - 1);
    atto_activation act = { .kind = (atto_activation_kind)kind };
    if (byte < 240) return atto_activation_default(act.kind);
    act.a = take_float(b), act.b = take_float(b);
    return act;
}

static float take_dropout(bytes *b)
{
    return take_byte(b) < 192 ? 0.0f : take_float(b);
}

static atto_rng take_rng(bytes *b)
{
    atto_rng rng = { .seed = 7, .offset = take_byte(b), .kind = ATTO_RNG_PHILOX };
    if (rng.offset < 240) return rng;
    rng.offset = take_word(b, 8), rng.kind = (atto_rng_kind)take_int(b, 0, 1);
    return rng;
}

static void take_adds(call *c, bytes *b)
{
    for (int32_t i = 0; i < c->count; i++) {
        bool *add = (bool *)((char *)&c->args + c->cells[i].field->add_offset);
        if (c->cells[i].field->add_offset) *add = take_flag(b);
    }
}

/* ---- shapes ---- */

static void plan(call *c, const char *name, atto_dtype dtype, atto_shape shape)
{
    cell *cell = cell_of(c, name);
    cell->planned = true;
    cell->dtype = dtype;
    cell->shape = shape;
}

/* Names separated by blanks. */
static void plan_all(call *c, const char *names, atto_dtype dtype, atto_shape shape)
{
    char name[32];
    int read;
    for (; sscanf(names, "%31s%n", name, &read) == 1; names += read) plan(c, name, dtype, shape);
}

static int64_t numel(atto_shape s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s.rank; d++) n *= s.dim[d];
    return n;
}

static atto_shape part_of(atto_shape s, int32_t from, int32_t to)
{
    atto_shape part = { .rank = to - from };
    for (int32_t d = from; d < to; d++) part.dim[d - from] = s.dim[d];
    return part;
}

/* A shape that broadcasts to s: fewer dimensions, some of them 1. */
static atto_shape take_broadcast(bytes *b, atto_shape s)
{
    const uint8_t how = take_byte(b), ones = take_byte(b);
    if (how & 1) return s;
    atto_shape part = part_of(s, how >> 1 & 1 ? how % (s.rank + 1) : 0, s.rank);
    for (int32_t d = 0; d < part.rank; d++)
        if (ones >> d & 1) part.dim[d] = 1;
    return part;
}

static atto_shape broadcast(atto_shape a, atto_shape b)
{
    const atto_shape longer = a.rank > b.rank ? a : b;
    atto_shape s = longer;
    for (int32_t i = 1; i <= s.rank; i++) {
        const int64_t of_a = i <= a.rank ? a.dim[a.rank - i] : 1;
        const int64_t of_b = i <= b.rank ? b.dim[b.rank - i] : 1;
        s.dim[s.rank - i] = of_a == 1 ? of_b : of_a;
    }
    return s;
}

/* ---- element by element ---- */

static void plan_act(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 5);
    c->args.act.act = take_activation(b);
    c->args.act.dropout = take_dropout(b), c->args.act.rng = take_rng(b);
    plan_all(c, "x y dy dx", take_float_type(b), s);
}

static void plan_dropout(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 5);
    c->args.dropout.p = take_float(b), c->args.dropout.rng = take_rng(b);
    plan_all(c, "x y dy dx", take_float_type(b), s);
}

static void plan_unary(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 5);
    c->args.unary.kind = (atto_unary_kind)take_int(b, 0, ATTO_UNARY_COUNT - 1);
    c->args.unary.lo = take_float(b), c->args.unary.hi = take_float(b);
    plan_all(c, "x y dy dx", take_float_type(b), s);
}

static void plan_cast(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 5);
    plan(c, "x", (atto_dtype)take_int(b, 1, 5), s);
    plan(c, "y", (atto_dtype)take_int(b, 1, 5), s);
    plan(c, "dy", take_float_type(b), s);
    plan(c, "dx", take_float_type(b), s);
}

static void plan_binary(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 6);
    const atto_shape of_a = take_broadcast(b, s), of_b = take_broadcast(b, s);
    const atto_dtype dtype = take_float_type(b);
    c->args.binary.kind = (atto_binary_kind)take_int(b, 0, ATTO_BINARY_COUNT - 1);
    c->args.binary.value = take_float(b);
    plan_all(c, "a da", dtype, of_a);
    plan_all(c, "b db", dtype, of_b);
    plan_all(c, "y dy", dtype, broadcast(of_a, of_b));
}

static void plan_where(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 6), of_cond = take_broadcast(b, s);
    const atto_shape of_a = take_broadcast(b, s), of_b = take_broadcast(b, s);
    const atto_dtype dtype = take_float_type(b);
    c->args.where.value = take_float(b);
    plan(c, "cond", ATTO_I32, of_cond);
    plan_all(c, "a da", dtype, of_a);
    plan_all(c, "b db", dtype, of_b);
    plan_all(c, "y dy", dtype, broadcast(of_cond, broadcast(of_a, of_b)));
}

static void plan_compare(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 6);
    const atto_shape of_a = take_broadcast(b, s), of_b = take_broadcast(b, s);
    const atto_dtype dtype = (atto_dtype)take_int(b, 1, 5);
    c->args.compare.kind = (atto_compare_kind)take_int(b, 0, ATTO_COMPARE_COUNT - 1);
    c->args.compare.value = take_float(b);
    plan(c, "a", dtype, of_a);
    plan(c, "b", dtype, of_b);
    plan(c, "y", ATTO_I32, broadcast(of_a, of_b));
}

static void plan_loss(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 5), of_target = take_broadcast(b, s);
    const atto_dtype dtype = take_float_type(b), of_weight = like_or_f32(b, dtype);
    c->args.loss.kind = (atto_loss_kind)take_int(b, 0, ATTO_LOSS_COUNT - 1);
    c->args.loss.reduction = (atto_reduction)take_int(b, 0, 3);
    c->args.loss.threshold = take_float(b);
    plan_all(c, "x dx", dtype, s);
    plan_all(c, "target dtarget", dtype, of_target);
    plan(c, "weight", of_weight, take_broadcast(b, s));
    plan(c, "pos_weight", of_weight, take_broadcast(b, s));
    const bool each = c->args.loss.reduction == ATTO_REDUCTION_NONE;
    plan_all(c, "loss dloss", ATTO_F32, each ? s : atto_shape0());
}

/* ---- along dimensions ---- */

static void plan_reduce(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 6);
    struct atto_reduce_args *a = &c->args.reduce;
    const uint8_t which = take_byte(b), how = take_byte(b);
    atto_shape kept = { .rank = 0 };
    a->kind = (atto_reduce_kind)take_int(b, 0, ATTO_REDUCE_COUNT - 1);
    for (int32_t d = 0; d < s.rank; d++)
        if (which >> d & 1) a->dims[a->dim_count++] = how & 2 ? d - s.rank : d;
    for (int32_t d = 0; d < s.rank; d++) {
        const bool reduced = a->dim_count == 0 || which >> d & 1;
        if (!reduced || how & 1) kept.dim[kept.rank++] = reduced ? 1 : s.dim[d];
    }
    if (how >= 250) a->dims[how % 8] = (int32_t)take_word(b, 4), a->dim_count = (int32_t)how - 251;
    const bool place = a->kind == ATTO_REDUCE_ARGMAX || a->kind == ATTO_REDUCE_ARGMIN;
    const atto_dtype dtype = take_float_type(b);
    plan_all(c, "x dx", dtype, s);
    plan_all(c, "y dy", place ? take_index_type(b) : dtype, kept);
}

static void plan_softmax(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 5);
    c->args.softmax.kind = (atto_softmax_kind)take_int(b, 0, ATTO_SOFTMAX_COUNT - 1);
    c->args.softmax.dim = (int32_t)take_int(b, -s.rank, s.rank ? s.rank - 1 : 0);
    plan_all(c, "x y dy dx", take_float_type(b), s);
}

static void plan_glu(call *c, bytes *b)
{
    atto_shape s = take_shape(b, 1, 5);
    const atto_dtype dtype = take_float_type(b);
    const int64_t dim = take_int(b, 0, s.rank - 1);
    c->args.glu.act = take_activation(b);
    c->args.glu.dim = (int32_t)(take_flag(b) ? dim : dim - s.rank);
    plan_all(c, "y dy", dtype, s);
    if (dim >= 0 && dim < s.rank) s.dim[dim] *= 2;
    plan_all(c, "x dx", dtype, s);
}

static void plan_layer_norm(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 1, 5);
    const int32_t dims = (int32_t)take_number(b, 1, s.rank);
    const atto_dtype dtype = take_float_type(b);
    const atto_shape inner = part_of(s, s.rank - dims, s.rank);
    c->args.layer_norm.dims = take_chance(b, 64) ? (int32_t)take_word(b, 4) : dims;
    c->args.layer_norm.eps = take_float(b);
    plan_all(c, "x y dy dx", dtype, s);
    plan_all(c, "w dw", like_or_f32(b, dtype), inner);
    plan_all(c, "b db", like_or_f32(b, dtype), inner);
    plan_all(c, "mean rstd", ATTO_F32, part_of(s, 0, s.rank - dims));
}

static void plan_rms_norm(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 1, 5);
    const int32_t dims = (int32_t)take_number(b, 1, s.rank);
    const atto_dtype dtype = take_float_type(b);
    c->args.rms_norm.dims = take_chance(b, 64) ? (int32_t)take_word(b, 4) : dims;
    c->args.rms_norm.eps = take_float(b);
    plan_all(c, "x y dy dx", dtype, s);
    plan_all(c, "w dw", like_or_f32(b, dtype), part_of(s, s.rank - dims, s.rank));
    plan(c, "rstd", ATTO_F32, part_of(s, 0, s.rank - dims));
}

static void plan_batch_norm(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 2, 5), channels = part_of(s, 1, 2);
    const atto_dtype dtype = take_float_type(b);
    c->args.batch_norm.act = take_activation(b);
    c->args.batch_norm.training = take_flag(b), c->args.batch_norm.cumulative = take_flag(b);
    c->args.batch_norm.momentum = take_float(b), c->args.batch_norm.eps = take_float(b);
    plan_all(c, "x residual y dy dx dresidual", dtype, s);
    plan_all(c, "w dw", like_or_f32(b, dtype), channels);
    plan_all(c, "b db", like_or_f32(b, dtype), channels);
    plan_all(c, "running_mean running_var mean rstd", ATTO_F32, channels);
    plan(c, "batches", ATTO_I64, atto_shape0());
}

static void plan_group_norm(call *c, bytes *b)
{
    atto_shape s = take_shape(b, 2, 5);
    const atto_dtype dtype = take_float_type(b);
    const int64_t groups = take_int(b, 1, 5);
    const int64_t usual = groups > 0 && groups < 8 ? groups : 1;
    s.dim[1] *= usual;
    c->args.group_norm.groups = groups;
    c->args.group_norm.momentum = take_float(b), c->args.group_norm.eps = take_float(b);
    plan_all(c, "x y dy dx", dtype, s);
    plan_all(c, "w dw", like_or_f32(b, dtype), part_of(s, 1, 2));
    plan_all(c, "b db", like_or_f32(b, dtype), part_of(s, 1, 2));
    plan_all(c, "running_mean running_var", ATTO_F32, part_of(s, 1, 2));
    plan_all(c, "mean rstd", ATTO_F32, atto_shape2(s.dim[0], usual));
}

/* ---- labels and indices ---- */

static atto_shape positions_of(atto_shape s)
{
    atto_shape p = { .rank = s.rank - 1 };
    for (int32_t d = 0; d < p.rank; d++) p.dim[d] = s.dim[d == 0 ? 0 : d + 1];
    return p;
}

static void plan_nll_loss(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 1, 5), positions = positions_of(s);
    const atto_dtype dtype = take_float_type(b);
    struct atto_nll_loss_args *a = &c->args.nll_loss;
    a->reduction = (atto_reduction)take_int(b, 0, 2);
    a->has_ignore_index = take_flag(b), a->ignore_index = take_int(b, 0, 8);
    c->limit = s.dim[s.rank > 1];
    plan(c, "x", dtype, s);
    plan(c, "dx", take_float_type(b), s);
    plan(c, "target", take_index_type(b), positions);
    plan(c, "weight", like_or_f32(b, dtype), part_of(s, s.rank > 1, 1 + (s.rank > 1)));
    const bool each = a->reduction == ATTO_REDUCTION_NONE;
    plan_all(c, "loss dloss", ATTO_F32, each ? positions : atto_shape0());
    plan(c, "total", ATTO_F32, atto_shape0());
}

static void plan_cross_entropy(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 1, 5), positions = positions_of(s);
    const atto_dtype dtype = take_float_type(b);
    struct atto_cross_entropy_args *a = &c->args.cross_entropy;
    a->reduction = (atto_reduction)take_int(b, 0, 2);
    a->has_ignore_index = take_flag(b), a->ignore_index = take_int(b, 0, 8);
    a->label_smoothing = take_flag(b) ? take_float(b) : 0.0f;
    c->limit = s.dim[s.rank > 1];
    plan_all(c, "x dx", dtype, s);
    if (take_flag(b))
        plan(c, "target", take_index_type(b), positions);
    else
        plan_all(c, "target dtarget", like_or_f32(b, dtype), s);
    plan(c, "weight", like_or_f32(b, dtype), part_of(s, s.rank > 1, 1 + (s.rank > 1)));
    const bool each = a->reduction == ATTO_REDUCTION_NONE;
    plan_all(c, "loss dloss", ATTO_F32, each ? positions : atto_shape0());
    plan(c, "lse", ATTO_F32, positions);
    plan(c, "total", ATTO_F32, atto_shape0());
}

static void plan_index_select(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 1, 4), index = take_shape(b, 0, 3);
    const int32_t dim = (int32_t)take_number(b, 0, s.rank - 1);
    struct atto_index_select_args *a = &c->args.index_select;
    const atto_dtype dtype = take_float_type(b);
    atto_shape y = { .rank = 0 };
    a->dim = take_flag(b) ? dim - s.rank : dim;
    a->has_padding = take_flag(b), a->padding = take_int(b, 0, 3);
    if (take_chance(b, 64)) a->dim = (int32_t)take_word(b, 4);
    c->limit = s.dim[dim];
    for (int32_t d = 0; d < dim; d++) y.dim[y.rank++] = s.dim[d];
    for (int32_t d = 0; d < index.rank; d++) y.dim[y.rank++] = index.dim[d];
    for (int32_t d = dim + 1; d < s.rank; d++) y.dim[y.rank++] = s.dim[d];
    c->cost = numel(y);
    plan_all(c, "x dx", dtype, s);
    plan(c, "index", take_index_type(b), index);
    plan_all(c, "y dy", dtype, y);
}

static void plan_gather(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 1, 5);
    const int32_t dim = (int32_t)take_number(b, 0, s.rank - 1);
    const atto_dtype dtype = take_float_type(b);
    atto_shape index = s;
    for (int32_t d = 0; d < s.rank; d++)
        if (take_flag(b))
            index.dim[d] = take_size(b, d == dim || s.dim[d] == 0 ? 20 : (int32_t)s.dim[d]);
    c->args.gather.dim = take_flag(b) ? dim - s.rank : dim;
    if (take_chance(b, 64)) c->args.gather.dim = (int32_t)take_word(b, 4);
    c->limit = s.dim[dim];
    plan_all(c, "x dx", dtype, s);
    plan(c, "index", take_index_type(b), index);
    plan_all(c, "y dy", dtype, index);
}

/* ---- products ---- */

static void plan_linear(call *c, bytes *b)
{
    atto_shape s = take_shape(b, 1, 4);
    const int64_t k = s.dim[s.rank - 1], n = take_size(b, 70);
    const atto_dtype dtype = take_float_type(b), out = like_or_f32(b, dtype);
    struct atto_linear_args *a = &c->args.linear;
    a->act = take_activation(b), a->dropout = take_dropout(b), a->rng = take_rng(b);
    c->cost = numel(s) * n;
    plan_all(c, "x dx", dtype, s);
    plan(c, "w", dtype, atto_shape2(n, k));
    plan(c, "dw", like_or_f32(b, dtype), atto_shape2(n, k));
    plan(c, "b", like_or_f32(b, dtype), atto_shape1(n));
    plan(c, "db", like_or_f32(b, dtype), atto_shape1(n));
    s.dim[s.rank - 1] = n;
    plan_all(c, "residual y z dy", out, s);
}

static atto_shape with_matrix(atto_shape batch, int64_t rows, int64_t columns)
{
    batch.dim[batch.rank++] = rows, batch.dim[batch.rank++] = columns;
    return batch;
}

static void plan_matmul(call *c, bytes *b)
{
    atto_shape batch = { .rank = (int32_t)take_number(b, 0, 3) };
    for (int32_t d = 0; d < batch.rank; d++) batch.dim[d] = take_size(b, 3);
    const atto_shape of_a = take_broadcast(b, batch), of_b = take_broadcast(b, batch);
    const atto_shape of_y = broadcast(of_a, of_b);
    const int32_t most = batch.rank == 0 ? 100 : 24;
    const int64_t m = take_size(b, most), n = take_size(b, most), k = take_size(b, most);
    const atto_dtype dtype = take_float_type(b);
    c->cost = numel(of_y) * m * n * k;
    plan(c, "a", dtype, with_matrix(of_a, m, k));
    plan(c, "b", dtype, with_matrix(of_b, k, n));
    plan(c, "da", like_or_f32(b, dtype), with_matrix(of_a, m, k));
    plan(c, "db", like_or_f32(b, dtype), with_matrix(of_b, k, n));
    plan_all(c, "y dy", like_or_f32(b, dtype), with_matrix(of_y, m, n));
}

static void plan_attention(call *c, bytes *b)
{
    const int64_t batches = take_size(b, 3), shared = take_number(b, 1, 3), g = take_size(b, 3);
    const int64_t l = take_size(b, 40), s = take_size(b, 40), d = take_size(b, 40);
    const int64_t e = take_flag(b) ? d : take_size(b, 40), h = g * shared;
    const atto_dtype dtype = take_float_type(b);
    struct atto_attention_args *a = &c->args.attention;
    a->causal = (atto_causal)take_int(b, 0, 2);
    a->scale = take_flag(b) ? take_float(b) : 0.0f;
    a->dropout = take_dropout(b), a->rng = take_rng(b);
    c->cost = batches * h * l * s * (d + e);
    plan_all(c, "q dq", dtype, atto_shape4(batches, h, l, d));
    plan_all(c, "k dk", dtype, atto_shape4(batches, g, s, d));
    plan_all(c, "v dv", dtype, atto_shape4(batches, g, s, e));
    plan_all(c, "y dy", dtype, atto_shape4(batches, h, l, e));
    plan_all(c, "lse lse_low", ATTO_F32, atto_shape3(batches, h, l));
    c->limit = 2;
    const atto_dtype of_mask = take_flag(b) ? ATTO_I32 : like_or_f32(b, dtype);
    if (take_flag(b)) plan(c, "mask", of_mask, take_broadcast(b, atto_shape4(batches, h, l, s)));
}

static void plan_rope(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 4, 4);
    const int64_t rotated = take_size(b, 3), rows = s.dim[2] + take_byte(b) % 3;
    const atto_dtype dtype = take_float_type(b);
    c->args.rope.pairing = (atto_rope_pairing)take_int(b, 0, 1);
    plan_all(c, "x y dy dx", dtype, s);
    plan_all(c, "cos sin", ATTO_F32, atto_shape2(rows, rotated));
    c->limit = rows;
    if (take_flag(b))
        c->args.rope.offset = take_int(b, 0, 2);
    else
        plan(c, "position", take_index_type(b),
             take_flag(b) ? part_of(s, 2, 3) : atto_shape2(s.dim[0], s.dim[2]));
}

static void plan_lstm_cell(call *c, bytes *b)
{
    atto_shape s = take_shape(b, 1, 4);
    const atto_dtype dtype = take_float_type(b);
    plan_all(c, "c y cy dy dcy dc", dtype, s);
    s.dim[s.rank - 1] *= 4;
    plan_all(c, "x gates dx", dtype, s);
}

static void plan_gru_cell(call *c, bytes *b)
{
    atto_shape s = take_shape(b, 1, 4), three = s, four = s;
    const atto_dtype dtype = take_float_type(b);
    three.dim[s.rank - 1] *= 3, four.dim[s.rank - 1] *= 4;
    plan_all(c, "h y dy dh", dtype, s);
    plan_all(c, "x u dx du", dtype, three);
    plan(c, "gates", dtype, four);
}

/* ---- images ---- */

typedef struct image {
    int32_t dims;
    int64_t batch, channels, size[2];
    bool unbatched;
} image;

static image take_image(bytes *b)
{
    image i = { .dims = (int32_t)take_number(b, 1, 2), .unbatched = take_chance(b, 4) };
    i.batch = i.unbatched ? 1 : take_size(b, 3);
    i.channels = take_size(b, take_flag(b) ? 40 : 5);
    for (int32_t d = 0; d < i.dims; d++) i.size[d] = take_size(b, d == 0 && i.dims == 2 ? 10 : 36);
    return i;
}

static atto_shape shape_of_image(const image *i, int64_t channels, const int64_t *size)
{
    atto_shape s = { .rank = 0 };
    if (!i->unbatched) s.dim[s.rank++] = i->batch;
    s.dim[s.rank++] = channels;
    for (int32_t d = 0; d < i->dims; d++) s.dim[s.rank++] = size[d];
    return s;
}

static bool is_small(int64_t n)
{
    return n >= 0 && n < 1000;
}

static int32_t take_dims(bytes *b, const image *i)
{
    return take_chance(b, 64) ? (int32_t)take_word(b, 4) : i->dims;
}

/* Outputs along an axis; of numbers that are none any. */
static int64_t windows(int64_t in, int64_t kernel, int64_t stride, int64_t padding,
                       int64_t dilation)
{
    if (!is_small(kernel) || !is_small(padding) || !is_small(dilation) || stride < 1) return 1;
    const int64_t room = in + padding - dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

static void plan_pool(call *c, bytes *b, atto_pool_window *w, bool is_max)
{
    const image i = take_image(b);
    int64_t out[2] = { 1, 1 };
    w->dims = take_dims(b, &i);
    w->ceil_mode = take_chance(b, 4), w->adaptive = take_chance(b, 4);
    for (int32_t d = 0; d < i.dims; d++) {
        w->kernel[d] = take_int(b, 1, 4), w->stride[d] = take_int(b, 1, 3);
        w->padding[d] = take_int(b, 0, is_small(w->kernel[d]) ? (int32_t)w->kernel[d] / 2 : 1);
        w->dilation[d] = is_max ? take_int(b, 1, 3) : take_int(b, 1, 1);
        out[d] = windows(i.size[d], w->kernel[d], w->stride[d], 2 * (w->padding[d] % 1000),
                         w->dilation[d]);
        if (w->ceil_mode) out[d] += take_flag(b);
        if (w->adaptive) out[d] = take_size(b, 12);
    }
    const atto_dtype dtype = take_float_type(b);
    c->cost = i.batch * i.channels * out[0] * out[1] * 16;
    plan_all(c, "x dx", dtype, shape_of_image(&i, i.channels, i.size));
    plan_all(c, "y dy", dtype, shape_of_image(&i, i.channels, out));
    if (is_max) plan(c, "indices", take_index_type(b), shape_of_image(&i, i.channels, out));
    c->limit = i.size[0] * (i.dims == 2 ? i.size[1] : 1);
}

static void plan_avg_pool(call *c, bytes *b)
{
    c->args.avg_pool.exclude_padding = take_flag(b);
    if (take_chance(b, 4)) c->args.avg_pool.divisor_override = take_int(b, 1, 9);
    plan_pool(c, b, &c->args.avg_pool.window, false);
}

static void plan_max_pool(call *c, bytes *b)
{
    plan_pool(c, b, &c->args.max_pool.window, true);
}

/* Filters [outputs, channels / groups, kernel], of transposed ones with the two exchanged. */
static void plan_filter(call *c, bytes *b, image *i, int64_t *outputs, const int64_t *kernel)
{
    atto_conv_window *w = &c->args.conv.window;
    const bool depthwise = take_chance(b, 4);
    w->groups = take_int(b, 1, 3);
    int64_t groups = is_small(w->groups) && w->groups > 0 ? w->groups : 1;
    if (depthwise)
        w->groups = groups = i->channels > 0 ? i->channels : 1;
    else
        i->channels *= groups;
    const int64_t in = i->channels / groups, out = take_size(b, depthwise ? 2 : 24);
    *outputs = out * groups;
    atto_shape s = { .rank = 2,
                     .dim = { w->transposed ? i->channels : *outputs, w->transposed ? out : in } };
    for (int32_t d = 0; d < i->dims; d++) s.dim[s.rank++] = kernel[d];
    cell *cell = cell_of(c, "w");
    plan(c, "w", cell_of(c, "x")->dtype, s);
    plan(c, "dw", like_or_f32(b, cell->dtype), s);
}

static void plan_conv(call *c, bytes *b)
{
    image i = take_image(b);
    struct atto_conv_args *a = &c->args.conv;
    atto_conv_window *w = &a->window;
    int64_t kernel[2] = { 1, 1 }, out[2] = { 1, 1 }, outputs;
    const atto_dtype dtype = take_float_type(b);
    w->dims = take_dims(b, &i), w->transposed = take_chance(b, 4);
    a->act = take_activation(b);
    for (int32_t d = 0; d < i.dims; d++) {
        kernel[d] = take_size(b, 5);
        w->stride[d] = take_int(b, 1, 3), w->dilation[d] = take_int(b, 1, 2);
        w->padding[d] = take_int(b, 0, 3), w->padding_after[d] = take_int(b, 0, 3);
        const int64_t around = w->padding[d] % 1000 + w->padding_after[d] % 1000;
        out[d] = windows(i.size[d], kernel[d], w->stride[d], around, w->dilation[d]);
        if (!w->transposed) continue;
        out[d] = (i.size[d] - 1) * (w->stride[d] % 1000) - around +
                 w->dilation[d] % 1000 * (kernel[d] - 1) + 1 + take_chance(b, 4);
        if (out[d] < 0 || out[d] > 1000) out[d] = 1;
    }
    plan(c, "x", dtype, atto_shape0());
    plan_filter(c, b, &i, &outputs, kernel);
    plan_all(c, "x dx", dtype, shape_of_image(&i, i.channels, i.size));
    plan_all(c, "residual y z dy", like_or_f32(b, dtype), shape_of_image(&i, outputs, out));
    plan(c, "b", like_or_f32(b, dtype), atto_shape1(outputs));
    plan(c, "db", like_or_f32(b, dtype), atto_shape1(outputs));
    const cell *x = cell_of(c, "x"), *y = cell_of(c, "y"), *filter = cell_of(c, "w");
    const int64_t images = numel(w->transposed ? x->shape : y->shape);
    c->cost = filter->shape.dim[0] > 0 ? images * (numel(filter->shape) / filter->shape.dim[0]) : 0;
}

static void plan_pad(call *c, bytes *b)
{
    const atto_shape s = take_shape(b, 0, 5);
    struct atto_pad_args *a = &c->args.pad;
    atto_shape y = s;
    a->mode = (atto_pad_kind)take_int(b, 0, ATTO_PAD_COUNT - 1);
    a->value = (double)take_float(b);
    for (int32_t d = 0; d < s.rank; d++) {
        const int32_t low = a->mode == ATTO_PAD_CONSTANT ? -1 : 0;
        a->before[d] = take_int(b, low, 3), a->after[d] = take_int(b, low, 3);
        if (is_small(a->before[d] + 10) && is_small(a->after[d] + 10))
            y.dim[d] += a->before[d] + a->after[d];
        if (y.dim[d] < 0 || y.dim[d] > 200) y.dim[d] = 1;
    }
    const atto_dtype dtype = take_flag(b) ? take_float_type(b) : (atto_dtype)take_int(b, 1, 5);
    c->cost = numel(y);
    plan_all(c, "x dx", dtype, s);
    plan_all(c, "y dy", dtype, y);
}

static void plan_resize(call *c, bytes *b)
{
    const image i = take_image(b);
    struct atto_resize_args *a = &c->args.resize;
    int64_t out[2] = { 1, 1 };
    a->mode = (atto_resize_kind)take_int(b, 0, ATTO_RESIZE_COUNT - 1);
    a->align_corners = take_chance(b, 4), a->dims = take_dims(b, &i);
    for (int32_t d = 0; d < i.dims; d++) {
        out[d] = take_size(b, 24);
        a->scale[d] = take_flag(b) ? (double)take_float(b) : 0.0;
        if (take_chance(b, 32))
            memcpy(&a->scale[d], &(uint64_t){ take_word(b, 8) }, sizeof(double));
    }
    const atto_dtype dtype = take_float_type(b);
    c->cost = i.batch * i.channels * out[0] * out[1];
    plan_all(c, "x dx", dtype, shape_of_image(&i, i.channels, i.size));
    plan_all(c, "y dy", dtype, shape_of_image(&i, i.channels, out));
}

void plan_call(call *c, bytes *b)
{
    static void (*const plans[])(call *, bytes *) = {
#define X(op, OP, layout, autocast, in_place, random, data_errors) plan_##op,
        ATTO_OP_TABLE(X)
#undef X
    };
    plans[c->op](c, b);
    take_adds(c, b);
    uint64_t *reserved = (uint64_t *)(void *)((char *)&c->args + c->info->reserved_offset);
    if (take_chance(b, 128)) reserved[take_byte(b) % 4] = take_word(b, 8);
}
