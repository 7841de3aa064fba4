/* SPDX-License-Identifier: MIT */
/* Attention on the CPU.
 *
 *   forward    a unit of work is up to CHUNK queries of a head. It packs the keys block by block, and
 *              takes each block to all its queries: scores, softmax as far as keys have come, y
 *   backward   a unit is a part of the keys of a head. For each of its blocks it goes over the queries
 *              that see it: probabilities from lse, dv, dk; dq of all queries adds up beside. Where
 *              heads are few, keys come in parts, whose dq are added in their order
 *
 * Where there is one query, the heads that share keys take the place of queries. */
#include "backend_cpu/attention_block.h"

#include <math.h>

/* Queries of a forward unit: what packing is shared by. */
#define CHUNK 256

/* Below that many multiplications nobody is woken up. */
#define ALONE_BELOW 65536

/* Parts of the keys, where heads are few; and floats that all parts' dq may take. */
#define MOST_PARTS   8
#define PARTS_FLOATS ((int64_t)8 << 20)

/* Queries that meet the same keys, one behind the other. */
typedef struct job {
    const struct atto_attention_args *a;
    atto__attention p;
    int32_t d_rows, e_rows;       /* D and E in multiples of ROWS */
    int32_t d_columns, e_columns; /* and of COLUMNS */
    float *room;                  /* scratch of each worker */
    int64_t room_floats;
    float *delta; /* [B, H, L] */
    float
        *dq; /* sums of dq: of each unit, or of each worker where units are more and whole heads */
    int64_t dq_floats;
    int64_t parts;
    bool by_unit;
} job;

/* Rows of one head. */
typedef struct place {
    int64_t batch, head; /* the first row's */
    int64_t keys_head;
} place;

static job job_of(const struct atto_attention_args *a)
{
    job j = { .a = a };
    atto__attention_of(a, &j.p);
    const atto__attention *p = &j.p;
    j.d_rows = round_up_to(p->d, ROWS);
    j.e_rows = round_up_to(p->e, ROWS);
    j.d_columns = round_up_to(p->d, COLUMNS);
    j.e_columns = round_up_to(p->e, COLUMNS);
    return j;
}

static int32_t threads_for(atto_device *dev, const atto__attention *p)
{
    const int64_t rows = p->batches * p->heads * p->queries;
    const bool is_small = rows * (p->d + p->e) < ALONE_BELOW / (p->keys + 1);
    return is_small ? 1 : atto__cpu_threads(dev);
}

/* Head number `unit` of all batches. */
static place place_of(const job *j, int64_t unit)
{
    const int64_t head = unit % j->p.heads;
    return (place){ unit / j->p.heads, head, head / j->p.shared };
}

/* Element of a row. */
static int64_t row_at(const atto__heads *t, const place *at, int64_t row)
{
    return at->batch * t->batch + at->head * t->head + row * t->row;
}

static int64_t keys_at(const atto__heads *t, const place *at, int64_t key)
{
    return at->batch * t->batch + at->keys_head * t->head + key * t->row;
}

/* Number of a row among all of [B, H, L]. */
static int64_t row_number(const job *j, const place *at, int64_t row)
{
    return (at->batch * j->p.heads + at->head) * j->p.queries + row;
}

static int32_t least(int64_t n, int32_t most)
{
    return (int32_t)(n < most ? n : most);
}

static block block_of(const job *j, const place *at, int64_t row, int64_t key, int64_t keys)
{
    const atto__attention *p = &j->p;
    block b = { .rows = least(j->p.queries - row, BLOCK_QUERIES),
                .keys = least(keys - key, BLOCK_KEYS),
                .key = key,
                .sees_all = true,
                .mask = j->a->mask,
                .drop = j->a->dropout > 0.0f ? &p->drop : NULL,
                .index = (uint64_t)(row_number(j, at, row) * p->keys),
                .index_row = (uint64_t)p->keys };
    for (int32_t q = 0; q < BLOCK_QUERIES; q++) {
        const int64_t seen = q < b.rows ? atto__keys_seen(&j->p, row + q) - key : b.keys;
        b.seen[q] = seen < 0 ? 0 : least(seen, b.keys);
        b.sees_all = b.sees_all && b.seen[q] == b.keys;
    }
    b.mask_at = row_at(&p->mask, at, row);
    b.mask_row = p->mask.row;
    b.mask_key = p->mask_key;
    return b;
}

/* Scores of a block, mask and all. Returns how many keys there are in whole tiles. */
static int32_t masked_scores(const block *b, const float *keys, const float *queries, int32_t d,
                             float *room, float *scores)
{
    const int32_t tiles = round_up_to(b->keys, ROWS);
    score(keys, queries, d, tiles, b->rows, scores);
    if (b->mask) apply_mask(b, room, scores);
    hide(b, tiles, scores);
    return tiles;
}

static atto_status take_floats(atto_device *dev, int64_t n, float **out)
{
    atto_buffer header;
    atto_tensor t;
    const int64_t floats = n > 0 ? n : 1; /* there is no block of 0 bytes */
    ATTO_TRY(atto__scratch_tensor(dev, ATTO_F32, 1, &floats, &header, &t));
    *out = atto__memory(&t);
    return ATTO_OK;
}

/* The next floats of a worker's room, of which *used are taken; room NULL: only counts. */
static float *cut(float *room, int64_t *used, int64_t floats)
{
    float *at = room ? room + *used : NULL;
    *used += floats;
    return at;
}

/* ---- forward ---- */

/* A unit's scratch: packed keys and values, scores; of each block of queries what is packed and what
 * becomes y. */
typedef struct forward_room {
    float *keys, *values, *scores, *masks, *queries, *out;
} forward_room;

static int32_t chunk_blocks(const job *j)
{
    return least((j->p.queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES, CHUNK / BLOCK_QUERIES);
}

static forward_room cut_forward(const job *j, float *room, int64_t *used)
{
    const int32_t blocks = chunk_blocks(j);
    const forward_room r = { .keys = cut(room, used, (int64_t)BLOCK_KEYS * j->p.d),
                             .values = cut(room, used, (int64_t)BLOCK_KEYS * j->e_rows),
                             .scores = cut(room, used, BLOCK_SCORES),
                             .masks = cut(room, used, MASK_FLOATS),
                             .queries = cut(room, used, (int64_t)blocks * BLOCK_QUERIES * j->p.d),
                             .out = cut(room, used, (int64_t)blocks * BLOCK_QUERIES * j->e_rows) };
    return r;
}

static void forward_block(const job *j, const forward_room *r, const block *b, int32_t number,
                          online *o)
{
    const float *queries = r->queries + (int64_t)number * BLOCK_QUERIES * j->p.d;
    float *out = r->out + (int64_t)number * BLOCK_QUERIES * j->e_rows;
    float share[BLOCK_QUERIES];
    const int32_t keys = masked_scores(b, r->keys, queries, j->p.d, r->masks, r->scores);
    exponentiate(o, keys, r->scores, share);
    const float *factors = factors_of(b, r->masks);
    if (factors) scale_by(factors, b->keys * BLOCK_QUERIES, r->scores);
    weigh(r->values, j->e_rows, r->scores, b->keys, b->rows, share, out);
}

/* A block's rows of y, and their lse. */
static void store_rows(const job *j, const place *at, int64_t row, const float *out,
                       const online *o)
{
    const int32_t rows = least(j->p.queries - row, BLOCK_QUERIES), e = j->p.e;
    for (int32_t q = 0; q < rows; q++) {
        const float sum = o->sum[q], inverse = 1.0f / sum;
        float values[ATTO_ATTENTION_MAX_HEAD];
        for (int32_t i = 0; i < e; i++)
            values[i] = sum == 0.0f ? 0.0f : out[i * BLOCK_QUERIES + q] * inverse;
        const int64_t to = row_at(&j->p.y, at, row + q);
        store_block(values, (span){ (void *)element_of(j->a->y, to), 1, e, j->a->y->dtype });
    }
}

/* A row's number in lse or lse_low. */
static float *number_of(const atto_tensor *t, const atto__heads *strides, const place *at,
                        int64_t row)
{
    return (float *)(void *)element_of(t, row_at(strides, at, row));
}

static void store_lse(const job *j, const place *at, int64_t row, const online *o)
{
    const struct atto_attention_args *a = j->a;
    const int32_t rows = least(j->p.queries - row, BLOCK_QUERIES);
    for (int32_t q = 0; q < rows; q++) {
        const bool blind = o->sum[q] == 0.0f;
        const float top = o->top[q], last = attop_log(o->sum[q]), lse = top + last;
        if (a->lse) *number_of(a->lse, &j->p.lse, at, row + q) = blind ? INFINITY : lse;
        if (a->lse_low)
            *number_of(a->lse_low, &j->p.lse_low, at, row + q) = blind ? 0.0f : (top - lse) + last;
    }
}

static void pack_chunk(const job *j, const forward_room *r, const place *at, int64_t first,
                       int32_t blocks, online *state)
{
    const atto__attention *p = &j->p;
    for (int32_t i = 0; i < blocks; i++) {
        const int64_t row = first + i * BLOCK_QUERIES;
        pack_columns(j->a->q, row_at(&p->q, at, row), p->q.row,
                     least(j->p.queries - row, BLOCK_QUERIES), p->d, p->scale,
                     r->queries + (int64_t)i * BLOCK_QUERIES * p->d);
        for (int32_t q = 0; q < BLOCK_QUERIES; q++) {
            state[i].top[q] = -INFINITY;
            state[i].sum[q] = 0.0f;
        }
    }
    memset(r->out, 0, (size_t)(blocks * BLOCK_QUERIES * j->e_rows) * sizeof(float));
}

/* Rows first .. of a head. */
static void forward_chunk(const job *j, const forward_room *r, const place *at, int64_t first)
{
    const atto__attention *p = &j->p;
    const int64_t last = first + CHUNK < j->p.queries ? first + CHUNK : j->p.queries;
    const int32_t blocks = (int32_t)((last - first + BLOCK_QUERIES - 1) / BLOCK_QUERIES);
    const int64_t seen = atto__keys_seen(&j->p, last - 1);
    online state[CHUNK / BLOCK_QUERIES];
    pack_chunk(j, r, at, first, blocks, state);
    for (int64_t key = 0; key < seen; key += BLOCK_KEYS) {
        const int32_t keys = least(p->keys - key, BLOCK_KEYS);
        pack_keys(j->a->k, keys_at(&p->k, at, key), p->k.row, keys, p->d, r->keys);
        pack_rows(j->a->v, keys_at(&p->v, at, key), p->v.row, keys, p->e, 1.0f, j->e_rows,
                  r->values);
        for (int32_t i = 0; i < blocks; i++) {
            const int64_t row = first + i * BLOCK_QUERIES;
            const int64_t end = row + BLOCK_QUERIES < last ? row + BLOCK_QUERIES : last;
            if (atto__keys_seen(&j->p, end - 1) <= key) continue;
            const block b = block_of(j, at, row, key, p->keys);
            forward_block(j, r, &b, i, &state[i]);
        }
    }
    for (int32_t i = 0; i < blocks; i++) {
        const int64_t row = first + i * BLOCK_QUERIES;
        store_rows(j, at, row, r->out + (int64_t)i * BLOCK_QUERIES * j->e_rows, &state[i]);
        store_lse(j, at, row, &state[i]);
    }
}

static int64_t chunks_of(const job *j)
{
    return (j->p.queries + CHUNK - 1) / CHUNK;
}

static int64_t forward_units(const void *job_, int64_t stage)
{
    (void)stage;
    const job *j = job_;
    return j->p.batches * j->p.heads * chunks_of(j);
}

/* The last chunks first: causal queries see more keys there. */
static void forward_run(const void *job_, int64_t stage, int64_t unit, int32_t worker)
{
    (void)stage;
    const job *j = job_;
    const int64_t heads = j->p.batches * j->p.heads;
    const place at = place_of(j, unit % heads);
    int64_t used = 0;
    const forward_room r = cut_forward(j, j->room + worker * j->room_floats, &used);
    forward_chunk(j, &r, &at, (chunks_of(j) - 1 - unit / heads) * CHUNK);
}

atto_status ATTO_LEVEL_NAME(attention_forward)(atto_device *dev,
                                               const struct atto_attention_args *a,
                                               const atto__layout *layout)
{
    (void)layout;
    job j = job_of(a);
    cut_forward(&j, NULL, &j.room_floats);
    ATTO_TRY(take_floats(dev, j.room_floats * atto__cpu_most_threads(dev), &j.room));
    dev->stats.launches++;
    atto__parallel(threads_for(dev, &j.p), &(atto__work){ 1, forward_units, forward_run, &j });
    return ATTO_OK;
}

/* ---- backward ---- */

/* A unit's scratch: a block of keys, packed in the two ways that products read it, and its
 * gradients; a block of queries, packed likewise. */
typedef struct backward_room {
    float *keys, *key_rows, *values, *dk, *dv;
    float *queries, *query_rows, *dy, *dy_rows;
    float *scores, *d, *masks;
} backward_room;

static backward_room cut_backward(const job *j, float *room, int64_t *used)
{
    const int64_t d = j->p.d, e = j->p.e;
    const backward_room r = { .keys = cut(room, used, BLOCK_KEYS * d),
                              .key_rows = cut(room, used, (int64_t)BLOCK_KEYS * j->d_rows),
                              .values = cut(room, used, BLOCK_KEYS * e),
                              .dk = cut(room, used, (int64_t)BLOCK_KEYS * j->d_columns),
                              .dv = cut(room, used, (int64_t)BLOCK_KEYS * j->e_columns),
                              .queries = cut(room, used, BLOCK_QUERIES * d),
                              .query_rows = cut(room, used, (int64_t)BLOCK_QUERIES * j->d_columns),
                              .dy = cut(room, used, BLOCK_QUERIES * e),
                              .dy_rows = cut(room, used, (int64_t)BLOCK_QUERIES * j->e_columns),
                              .scores = cut(room, used, BLOCK_SCORES),
                              .d = cut(room, used, BLOCK_SCORES),
                              .masks = cut(room, used, MASK_FLOATS) };
    return r;
}

static int64_t blocks_of(const job *j)
{
    return (j->p.queries + BLOCK_QUERIES - 1) / BLOCK_QUERIES;
}

static int64_t key_blocks_of(const job *j)
{
    return (j->p.keys + BLOCK_KEYS - 1) / BLOCK_KEYS;
}

/* Floats of dq of a block of queries, and of all that share keys. */
static int64_t dq_block_floats(const job *j)
{
    return (int64_t)BLOCK_QUERIES * j->d_rows;
}

static int64_t parts_of(const job *j)
{
    const int64_t heads = j->p.batches * j->p.heads / j->p.shared, blocks = key_blocks_of(j);
    int64_t parts = MOST_PARTS / heads;
    while (parts > 1 && parts * heads * j->dq_floats > PARTS_FLOATS) parts /= 2;
    if (parts > blocks) parts = blocks;
    return parts > 1 ? parts : 1;
}

/* The sum of dy * y, of each row. */
static void sum_deltas(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    const atto__attention *p = &j->p;
    for (int64_t row = begin; row < end; row++) {
        const int64_t l = row % p->queries, h = row / p->queries % p->heads;
        const int64_t b = row / p->queries / p->heads;
        const span y = { (void *)element_of(j->a->y, b * p->y.batch + h * p->y.head + l * p->y.row),
                         1, p->e, j->a->y->dtype };
        const span dy = { (void *)element_of(j->a->dy,
                                             b * p->dy.batch + h * p->dy.head + l * p->dy.row),
                          1, p->e, j->a->dy->dtype };
        float y_buffer[ATTO_ATTENTION_MAX_HEAD], dy_buffer[ATTO_ATTENTION_MAX_HEAD], sum = 0.0f;
        const float *y_row = load_block(y, y_buffer), *dy_row = load_block(dy, dy_buffer);
        for (int32_t i = 0; i < p->e; i++) sum += y_row[i] * dy_row[i];
        j->delta[row] = sum;
    }
}

/* Of rows that are not there: a probability of 0. */
static void load_row_sums(const job *j, const place *at, int64_t row, int32_t rows, row_sums *out)
{
    const struct atto_attention_args *a = j->a;
    for (int32_t q = 0; q < BLOCK_QUERIES; q++) {
        out->lse[q] = INFINITY;
        out->lse_low[q] = out->delta[q] = 0.0f;
        if (q >= rows) continue;
        out->lse[q] = *number_of(a->lse, &j->p.lse, at, row + q);
        if (a->lse_low) out->lse_low[q] = *number_of(a->lse_low, &j->p.lse_low, at, row + q);
        out->delta[q] = j->delta[row_number(j, at, row + q)];
    }
}

static void pack_queries(const job *j, const backward_room *r, const place *at, int64_t row,
                         int32_t rows)
{
    const atto__attention *p = &j->p;
    const struct atto_attention_args *a = j->a;
    const int64_t q = row_at(&p->q, at, row), dy = row_at(&p->dy, at, row);
    pack_columns(a->q, q, p->q.row, rows, p->d, p->scale, r->queries);
    pack_columns(a->dy, dy, p->dy.row, rows, p->e, 1.0f, r->dy);
    if (a->dk) pack_rows(a->q, q, p->q.row, rows, p->d, p->scale, j->d_columns, r->query_rows);
    if (a->dv) pack_rows(a->dy, dy, p->dy.row, rows, p->e, 1.0f, j->e_columns, r->dy_rows);
}

/* A block of keys and one of queries. dq: the queries' sums. */
static void backward_block(const job *j, const backward_room *r, const place *at, const block *b,
                           int64_t row, float *dq)
{
    const struct atto_attention_args *a = j->a;
    row_sums sums;
    load_row_sums(j, at, row, b->rows, &sums);
    pack_queries(j, r, at, row, b->rows);
    const int32_t keys = masked_scores(b, r->keys, r->queries, j->p.d, r->masks, r->scores);
    score(r->values, r->dy, j->p.e, keys, b->rows, r->d);
    differentiate(&sums, factors_of(b, r->masks), b->keys, r->scores, r->d);
    const size_t rest = (size_t)((keys - b->keys) * BLOCK_QUERIES) * sizeof(float);
    memset(r->scores + b->keys * BLOCK_QUERIES, 0, rest);
    memset(r->d + b->keys * BLOCK_QUERIES, 0, rest);
    if (a->dv) collect(r->scores, r->dy_rows, j->e_columns, keys, b->rows, r->dv);
    if (a->dk) collect(r->d, r->query_rows, j->d_columns, keys, b->rows, r->dk);
    if (a->dq) weigh(r->key_rows, j->d_rows, r->d, b->keys, b->rows, NULL, dq);
}

/* n floats become a row of t, or are added to it. */
static void store_row(const atto_tensor *t, int64_t at, float *values, int32_t n, bool add)
{
    float buffer[ATTO_ATTENTION_MAX_HEAD];
    const span to = { (void *)element_of(t, at), 1, n, t->dtype };
    if (add) accumulate_block(values, to, buffer);
    store_block(values, to);
}

static void store_keys(const job *j, const place *at, int64_t key, int32_t keys,
                       const backward_room *r)
{
    const struct atto_attention_args *a = j->a;
    for (int32_t i = 0; i < keys; i++) {
        if (a->dk)
            store_row(a->dk, keys_at(&j->p.dk, at, key + i), r->dk + i * j->d_columns, j->p.d,
                      a->add_dk);
        if (a->dv)
            store_row(a->dv, keys_at(&j->p.dv, at, key + i), r->dv + i * j->e_columns, j->p.e,
                      a->add_dv);
    }
}

/* Rows of dq from the sums of `parts` parts, part_floats apart. */
static void store_queries(const job *j, const place *at, int64_t row, const float *sums,
                          int64_t parts, int64_t part_floats)
{
    const int32_t rows = least(j->p.queries - row, BLOCK_QUERIES);
    for (int32_t q = 0; q < rows; q++) {
        float values[ATTO_ATTENTION_MAX_HEAD];
        for (int32_t i = 0; i < j->p.d; i++) {
            const float *from = sums + i * BLOCK_QUERIES + q;
            float sum = 0.0f;
            for (int64_t part = 0; part < parts; part++) sum += from[part * part_floats];
            values[i] = sum * j->p.scale;
        }
        store_row(j->a->dq, row_at(&j->p.dq, at, row + q), values, j->p.d, j->a->add_dq);
    }
}

/* The place of head number i of those that share keys with head `heads` * shared. */
static place sharing(const job *j, int64_t heads, int64_t i)
{
    return place_of(j, heads * j->p.shared + i);
}

static void backward_keys(const job *j, const backward_room *r, int64_t heads, int64_t key,
                          float *dq)
{
    const atto__attention *p = &j->p;
    const place first = sharing(j, heads, 0);
    const int32_t keys = least(p->keys - key, BLOCK_KEYS);
    const int64_t from = atto__first_query(p, key) / BLOCK_QUERIES;
    pack_keys(j->a->k, keys_at(&p->k, &first, key), p->k.row, keys, p->d, r->keys);
    pack_keys(j->a->v, keys_at(&p->v, &first, key), p->v.row, keys, p->e, r->values);
    if (j->a->dq)
        pack_rows(j->a->k, keys_at(&p->k, &first, key), p->k.row, keys, p->d, 1.0f, j->d_rows,
                  r->key_rows);
    memset(r->dk, 0, (size_t)(BLOCK_KEYS * j->d_columns) * sizeof(float));
    memset(r->dv, 0, (size_t)(BLOCK_KEYS * j->e_columns) * sizeof(float));
    for (int64_t i = 0; i < j->p.shared; i++) {
        const place at = sharing(j, heads, i);
        for (int64_t block_number = from; block_number < blocks_of(j); block_number++) {
            const int64_t row = block_number * BLOCK_QUERIES;
            const block b = block_of(j, &at, row, key, p->keys);
            backward_block(j, r, &at, &b, row,
                           dq + (i * blocks_of(j) + block_number) * dq_block_floats(j));
        }
    }
    store_keys(j, &first, key, keys, r);
}

static void finish_queries(const job *j, int64_t heads, const float *sums)
{
    for (int64_t i = 0; i < j->p.shared; i++) {
        const place at = sharing(j, heads, i);
        for (int64_t n = 0; n < blocks_of(j); n++)
            store_queries(j, &at, n * BLOCK_QUERIES,
                          sums + (i * blocks_of(j) + n) * dq_block_floats(j), 1, 0);
    }
}

/* Stage 0: heads of keys, in parts. Stage 1, of several parts: blocks of queries. */
static int64_t backward_units(const void *job_, int64_t stage)
{
    const job *j = job_;
    const int64_t heads = j->p.batches * j->p.heads / j->p.shared;
    return stage == 0 ? heads * j->parts : heads * j->p.shared * blocks_of(j);
}

static void backward_part(const job *j, int64_t unit, int32_t worker)
{
    const int64_t heads = unit / j->parts, part = unit % j->parts;
    float *dq = j->dq + (j->by_unit ? unit : worker) * j->dq_floats;
    int64_t used = 0;
    const backward_room r = cut_backward(j, j->room + worker * j->room_floats, &used);
    if (j->a->dq) memset(dq, 0, (size_t)j->dq_floats * sizeof(float));
    for (int64_t n = part; n < key_blocks_of(j); n += j->parts)
        backward_keys(j, &r, heads, n * BLOCK_KEYS, dq);
    if (j->a->dq && j->parts == 1) finish_queries(j, heads, dq);
}

static void backward_run(const void *job_, int64_t stage, int64_t unit, int32_t worker)
{
    const job *j = job_;
    if (stage == 0) {
        backward_part(j, unit, worker);
        return;
    }
    const int64_t n = unit % blocks_of(j), head = unit / blocks_of(j);
    const place at = place_of(j, head);
    const int64_t first = head / j->p.shared * j->parts * j->dq_floats;
    const int64_t in_part = (head % j->p.shared * blocks_of(j) + n) * dq_block_floats(j);
    store_queries(j, &at, n * BLOCK_QUERIES, j->dq + first + in_part, j->parts, j->dq_floats);
}

static atto_status take_backward(atto_device *dev, job *j)
{
    const atto__attention *p = &j->p;
    const int64_t workers = atto__cpu_most_threads(dev);
    cut_backward(j, NULL, &j->room_floats);
    j->dq_floats = j->a->dq ? j->p.shared * blocks_of(j) * dq_block_floats(j) : 1;
    j->parts = parts_of(j);
    const int64_t units = backward_units(j, 0);
    j->by_unit = j->parts > 1 || units <= workers;
    ATTO_TRY(take_floats(dev, j->room_floats * workers, &j->room));
    ATTO_TRY(take_floats(dev, j->dq_floats * (j->by_unit ? units : workers), &j->dq));
    return take_floats(dev, p->batches * p->heads * p->queries, &j->delta);
}

atto_status ATTO_LEVEL_NAME(attention_backward)(atto_device *dev,
                                                const struct atto_attention_args *a,
                                                const atto__layout *layout)
{
    (void)layout;
    job j = job_of(a);
    ATTO_TRY(take_backward(dev, &j));
    const int32_t threads = threads_for(dev, &j.p);
    dev->stats.launches++;
    atto__parallel_for(threads, j.p.batches * j.p.heads * j.p.queries, sum_deltas, &j);
    const int64_t stages = j.parts > 1 && a->dq ? 2 : 1;
    atto__parallel(threads, &(atto__work){ stages, backward_units, backward_run, &j });
    return ATTO_OK;
}
