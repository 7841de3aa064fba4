/* SPDX-License-Identifier: MIT */
/* Attention in double, from its definition: all L x S probabilities stand in memory.
 *
 * What a result may be off by is counted in u = 2^-24, with n the terms of a sum in f32, each of
 * which may add a rounding of the sum so far; a sum's worth is that of its terms' magnitudes.
 *
 *   z     D products and sums, scale is rounded and multiplied by: D + 4 of scale sum |q k|; with a mask
 *         that is added one of |z|. None where the caller says that nothing is rounded
 *   e     exp 6 of e^(z - top); its argument is off by what z is, by the rounding of a difference,
 *         twice where a block's maximum is not the row's, and as often of top
 *   sum   a term and a rescaling with each block of keys, of which there are S / 8 at the most. An
 *         error of z moves it by its mean over the keys. A factor that rescales it rescales y alike,
 *         so that only the product is rounded
 *   lse   what log makes of the sum's, log 6 of itself; the whole is rounded. With lse_low it is not:
 *         that is the sum's logarithm beside top - lse, rounded, which is exact unless top is smaller
 *         than the logarithm: 2 of that
 *   y     what e and sum are off by, division 5, dropout 1; a term and a rescaling as in sum
 *   p     of backward: e^(z - lse), exp 6, with what z and lse are off by in its argument, two
 *         differences of at most |z - top| and the logarithm, and a change of base
 *   dp    E products and sums; dropout 1
 *   delta E products and sums of dy and y, which comes as it was stored; else y's own on top
 *   dz    p's of it, difference and product 2, what dp and delta are off by times p
 *   dq    a term for each key, scale 1 and a change of base 1; dk for each query and head that meets
 *         the key, dv likewise
 *
 * What q, k, v, y and dy come off by moves products by as much of the other factor.
 *
 * exp and products of it may be 0 below 2^-120. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FADE 0x1p-96 /* 2^-120 in u */

/* One query of one head. Arrays have an element for each key. */
typedef struct row {
    const oracle_attention *o;
    int64_t head, query; /* head: of all batches */
    const double *q;
    const double *k, *v; /* of the head of keys that it uses */
    const double *q_off, *k_off, *v_off;
    int64_t shared;    /* number of the head of keys */
    double *z, *z_off; /* -infinity: hidden */
    double *p, *p_off; /* forward's probability before dropout; off as a share */
    double *back_off;  /* likewise backward's */
    double *keep;      /* factor of dropout */
    bool sees;         /* a key */
    double top, last;  /* the largest score, and the logarithm of the sum of e^(z - top) */
    double lse, lse_off;
    double last_off; /* lse_off of lse and lse_low together */
} row;

static double scale_of(const oracle_attention *o)
{
    return o->scale != 0.0 ? o->scale : 1.0 / sqrt((double)o->d);
}

/* Element of the mask for an index into [B, H, L, S]: from the right, where size 1 repeats. */
static int64_t mask_at(const oracle_attention *o, const int64_t index[4])
{
    int64_t at = 0, step = 1;
    for (int32_t i = 1; i <= o->mask_shape.rank; i++) {
        const int64_t size = o->mask_shape.dim[o->mask_shape.rank - i];
        if (size != 1) at += index[4 - i] * step;
        step *= size;
    }
    return at;
}

static bool causal_hides(const oracle_attention *o, int64_t query, int64_t key)
{
    if (o->causal == ATTO_CAUSAL_NONE) return false;
    return key > query + (o->causal == ATTO_CAUSAL_BOTTOM_RIGHT ? o->keys - o->queries : 0);
}

/* What is added to a product; -infinity hides. */
static double mask_of(const row *r, int64_t key)
{
    const oracle_attention *o = r->o;
    if (!o->mask) return 0.0;
    const int64_t index[] = { r->head / o->heads, r->head % o->heads, r->query, key };
    const double mask = o->mask[mask_at(o, index)];
    return !o->mask_hides ? mask : mask == 0.0 ? -INFINITY : 0.0;
}

/* Element of what an input is off by. */
static double off_at(const double *off, int64_t at)
{
    return off ? off[at] : 0.0;
}

/* What a product is off by where its factors are. */
static double product_off(double a, double a_off, double b, double b_off)
{
    return a_off * fabs(b) + fabs(a) * b_off + a_off * b_off * 0x1p-24;
}

static void put_product(row *r, int64_t key)
{
    const oracle_attention *o = r->o;
    const bool hidden = causal_hides(o, r->query, key);
    const double mask = hidden ? -INFINITY : mask_of(r, key);
    r->z[key] = mask;
    r->z_off[key] = 0.0;
    if (hidden || (o->mask_hides && mask == -INFINITY)) return; /* k is not looked at */
    double sum = 0.0, size = 0.0, off = 0.0;
    for (int64_t d = 0; d < o->d; d++) {
        const double q = r->q[d], k = r->k[key * o->d + d];
        sum += q * k;
        size += fabs(q * k);
        off += product_off(q, off_at(r->q_off, d), k, off_at(r->k_off, key * o->d + d));
    }
    r->z[key] = scale_of(o) * sum + mask;
    if (isfinite(r->z[key]))
        r->z_off[key] = fabs(scale_of(o)) * (((double)o->d + 4.0) * size + off) +
                        (mask != 0.0 ? fabs(r->z[key]) : 0.0);
    if (o->exact) r->z_off[key] = 0.0;
}

/* Share of e^x that x being off by so many u makes; finite. */
static double share(double off)
{
    return expm1(fmin(off * 0x1p-24, 64.0)) * 0x1p24;
}

static double summed(int64_t n)
{
    return 1.125 * (double)n;
}

static void put_probabilities(row *r, double top)
{
    const oracle_attention *o = r->o;
    const int64_t keys = o->keys;
    double sum = 0.0, mean = 0.0, back_off;
    for (int64_t s = 0; s < keys; s++) sum += r->p[s] = exp(r->z[s] - top);
    for (int64_t s = 0; s < keys; s++)
        if (r->p[s] > 0.0) mean += r->p[s] / sum * (r->z_off[s] + 2.0 * fabs(r->z[s] - top));
    const double sum_off = share(mean) + 6.0 + summed(keys), last = log(sum);
    r->top = top, r->last = last, r->lse = top + last;
    r->lse_off = sum_off + 6.0 * last + fabs(r->lse);
    r->last_off = sum_off + 8.0 * last;
    back_off = o->with_low ? r->last_off : r->lse_off;
    for (int64_t s = 0; s < keys; s++) {
        const double z = r->z[s], z_off = r->z_off[s], below = fabs(z - top);
        r->p[s] /= sum;
        r->p_off[s] = r->back_off[s] = 0.0;
        if (z == -INFINITY) continue;
        r->p_off[s] = share(z_off + 2.0 * below) + sum_off + 12.0;
        r->back_off[s] = share(z_off + back_off + 3.0 * (below + last)) + 6.0;
    }
}

static void put_row(row *r)
{
    const oracle_attention *o = r->o;
    double top = -INFINITY;
    for (int64_t s = 0; s < o->keys; s++) {
        put_product(r, s);
        top = isnan(r->z[s]) || r->z[s] > top ? r->z[s] : top;
        if (isnan(top)) break;
    }
    for (int64_t s = 0; s < o->keys; s++) {
        const int64_t index = (r->head * o->queries + r->query) * o->keys + s;
        r->keep[s] = oracle_keep(o->rng, o->p, index) ? oracle_keep_scale(o->p) : 0.0;
        if (o->p == 0.0f) r->keep[s] = 1.0;
    }
    r->sees = top != -INFINITY;
    r->lse = INFINITY;
    r->top = r->last = r->lse_off = r->last_off = 0.0;
    if (isnan(top)) {
        for (int64_t s = 0; s < o->keys; s++) r->p[s] = r->p_off[s] = r->back_off[s] = NAN;
        r->top = r->lse = NAN;
    } else if (r->sees) {
        put_probabilities(r, top);
    }
}

/* ---- rows ---- */

static double *numbers(int64_t n)
{
    double *array = calloc(n > 0 ? (size_t)n : 1, sizeof *array);
    if (!array) abort();
    return array;
}

static void open_row(const oracle_attention *o, row *r)
{
    memset(r, 0, sizeof *r);
    r->o = o;
    double **const arrays[] = { &r->z, &r->z_off, &r->p, &r->p_off, &r->back_off, &r->keep };
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) *arrays[i] = numbers(o->keys);
}

static void close_row(row *r)
{
    free(r->z), free(r->z_off), free(r->p), free(r->p_off), free(r->back_off), free(r->keep);
}

static const double *from(const double *off, int64_t at)
{
    return off ? off + at : NULL;
}

/* number: of all queries, heads and batches. */
static void go_to(row *r, int64_t number)
{
    const oracle_attention *o = r->o;
    r->head = number / o->queries;
    r->query = number % o->queries;
    const int64_t batch = r->head / o->heads, head = r->head % o->heads;
    r->shared = batch * o->key_heads + head / (o->heads / o->key_heads);
    r->q = o->q + number * o->d;
    r->k = o->k + r->shared * o->keys * o->d;
    r->v = o->v + r->shared * o->keys * o->e;
    r->q_off = from(o->q_off, number * o->d);
    r->k_off = from(o->k_off, r->shared * o->keys * o->d);
    r->v_off = from(o->v_off, r->shared * o->keys * o->e);
    put_row(r);
}

static int64_t row_count(const oracle_attention *o)
{
    return o->batches * o->heads * o->queries;
}

/* ---- forward ---- */

/* A key that causal hides takes no part: see the header. */
static oracle_sum output(const row *r, int64_t e)
{
    const oracle_attention *o = r->o;
    oracle_sum y = { 0.0, 0.0 };
    for (int64_t s = 0; s < o->keys && r->sees; s++) {
        if (causal_hides(o, r->query, s)) continue;
        const double v = r->v[s * o->e + e], p = r->p[s] * r->keep[s], term = p * v;
        y.value += term;
        y.terms +=
            product_off(p, p * r->p_off[s] + r->keep[s] * FADE, v, off_at(r->v_off, s * o->e + e)) +
            fabs(term) * summed(o->keys);
    }
    return y;
}

/* What is left of top + last beside a rounded lse. */
static oracle_sum lse_low(const row *r, double lse)
{
    if (!r->sees) return (oracle_sum){ 0.0, 0.0 };
    return (oracle_sum){ (r->top - lse) + r->last, r->last_off };
}

void oracle_attention_forward(const oracle_attention *o, oracle_sum *y, oracle_sum *lse,
                              oracle_sum *low)
{
    row r;
    open_row(o, &r);
    for (int64_t i = 0; i < row_count(o); i++) {
        go_to(&r, i);
        for (int64_t e = 0; e < o->e && y; e++) y[i * o->e + e] = output(&r, e);
        if (lse) lse[i] = (oracle_sum){ r.lse, r.lse_off };
        if (low) low[i] = lse_low(&r, o->lse[i]);
    }
    close_row(&r);
}

/* ---- backward ---- */

static void add(oracle_sum *sum, double value, double off)
{
    sum->value += value;
    sum->terms += off;
}

static void add_product(oracle_sum *sum, double x, double y)
{
    add(sum, x * y, fabs(x * y));
}

/* A row of dy, and its product with y; off: what y and dy are off by. */
typedef struct upstream {
    const double *dy, *dy_off;
    oracle_sum delta;
    double off;
} upstream;

/* number: of the row. */
static upstream upstream_of(const row *r, int64_t number)
{
    const oracle_attention *o = r->o;
    const int64_t first = number * o->e;
    upstream up = { .dy = o->dy + first, .dy_off = from(o->dy_off, first) };
    for (int64_t e = 0; e < o->e; e++) {
        const oracle_sum y =
            o->y ? (oracle_sum){ o->y[first + e], off_at(o->y_off, first + e) } : output(r, e);
        add_product(&up.delta, up.dy[e], y.value);
        up.off += product_off(up.dy[e], off_at(up.dy_off, e), y.value, y.terms);
    }
    return up;
}

/* The gradients that one query and one key have in common. */
typedef struct pair {
    double p, p_off;   /* after dropout; off in u of 1 */
    double dz, dz_off; /* times scale */
} pair;

static pair pair_of(const row *r, int64_t s, const upstream *up)
{
    const oracle_attention *o = r->o;
    const double scale = scale_of(o), e = (double)o->e, p = r->p[s], keep = r->keep[s];
    oracle_sum dp = { 0.0, 0.0 };
    double off = 0.0;
    for (int64_t i = 0; i < o->e; i++) {
        const double v = r->v[s * o->e + i];
        add_product(&dp, up->dy[i], v);
        off += product_off(up->dy[i], off_at(up->dy_off, i), v, off_at(r->v_off, s * o->e + i));
    }
    const double inner = keep * dp.value - up->delta.value;
    const double both = (e + 3.0) * (keep * dp.terms + up->delta.terms) + keep * off + up->off;
    const double faded = p * r->back_off[s] + FADE;
    return (pair){ p * keep, keep * (faded + 2.0 * p), scale * p * inner,
                   fabs(scale) * product_off(inner, both, p, faded + 4.0 * p) };
}

typedef struct sums {
    oracle_sum *dq, *dk, *dv;
} sums;

static void add_pair(const row *r, int64_t s, const pair *of, const upstream *up, const sums *to)
{
    const oracle_attention *o = r->o;
    const double queries = (double)(o->queries * (o->heads / o->key_heads));
    const int64_t row_number = r->head * o->queries + r->query, key = r->shared * o->keys + s;
    const double in_dq = of->dz_off + fabs(of->dz) * summed(o->keys);
    const double in_dk = of->dz_off + fabs(of->dz) * summed((int64_t)queries);
    const double in_dv = of->p_off + of->p * summed((int64_t)queries);
    for (int64_t d = 0; d < o->d; d++) {
        const double q = r->q[d], k = r->k[s * o->d + d];
        const double q_off = off_at(r->q_off, d), k_off = off_at(r->k_off, s * o->d + d);
        if (to->dq)
            add(&to->dq[row_number * o->d + d], of->dz * k, product_off(of->dz, in_dq, k, k_off));
        if (to->dk) add(&to->dk[key * o->d + d], of->dz * q, product_off(of->dz, in_dk, q, q_off));
    }
    for (int64_t e = 0; e < o->e && to->dv; e++)
        add(&to->dv[key * o->e + e], of->p * up->dy[e],
            product_off(of->p, in_dv, up->dy[e], off_at(up->dy_off, e)));
}

static void clear(oracle_sum *list, int64_t n)
{
    if (list) memset(list, 0, (size_t)n * sizeof *list);
}

void oracle_attention_backward(const oracle_attention *o, oracle_sum *dq, oracle_sum *dk,
                               oracle_sum *dv)
{
    const int64_t rows = row_count(o), keys = o->batches * o->key_heads * o->keys;
    const sums to = { dq, dk, dv };
    row r;
    clear(dq, rows * o->d), clear(dk, keys * o->d), clear(dv, keys * o->e);
    open_row(o, &r);
    for (int64_t i = 0; i < rows; i++) {
        go_to(&r, i);
        const upstream up = upstream_of(&r, i);
        for (int64_t s = 0; s < o->keys && r.sees; s++) {
            if (causal_hides(o, r.query, s)) continue;
            const pair found = pair_of(&r, s, &up);
            add_pair(&r, s, &found, &up, &to);
        }
    }
    close_row(&r);
}
