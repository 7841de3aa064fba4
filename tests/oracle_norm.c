/* SPDX-License-Identifier: MIT */
/* Normalisations from their definitions, in double. */
#include "oracle_norm.h"

#include <math.h>

/* ---- rows ---- */

static double weight(const oracle_row_norm *c, int64_t i)
{
    return c->w ? c->w[i] : 1.0;
}

static void moments(const oracle_row_norm *c, int64_t r, double *mean, double *rstd)
{
    const double *x = c->x + r * c->cols;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < c->cols; i++) sum += x[i];
    *mean = c->centred ? sum / (double)c->cols : 0.0;
    for (int64_t i = 0; i < c->cols; i++) squares += (x[i] - *mean) * (x[i] - *mean);
    *rstd = 1.0 / sqrt(squares / (double)c->cols + c->eps);
}

/* An f32 evaluation knows the mean to a rounding of itself, and of the deviations' size: in units
 * of the normalised values |mean| rstd and 1. */
static double blur(double mean, double rstd)
{
    return 1.0 + fabs(mean) * rstd;
}

static void forward_row(const oracle_row_norm *c, int64_t r, oracle_row_norm_answer *out)
{
    moments(c, r, &out->mean[r], &out->rstd[r]);
    const double mean = out->mean[r], rstd = out->rstd[r];
    for (int64_t i = 0; i < c->cols; i++) {
        const int64_t at = r * c->cols + i;
        const double n = (c->x[at] - mean) * rstd, w = weight(c, i), b = c->b ? c->b[i] : 0.0;
        out->y[at] = n * w + b;
        out->y_terms[at] = fabs(w) * (fabs(n) + (c->centred ? blur(mean, rstd) : 0.0)) + fabs(b);
    }
}

static void backward_row(const oracle_row_norm *c, int64_t r, oracle_row_norm_answer *out)
{
    const double mean = out->mean[r], rstd = out->rstd[r], f = (double)c->cols;
    const double off = c->centred ? blur(mean, rstd) : 0.0;
    double sum_g = 0.0, sum_gn = 0.0, size_g = 0.0, size_gn = 0.0;
    for (int64_t i = 0; i < c->cols; i++) {
        const int64_t at = r * c->cols + i;
        const double n = (c->x[at] - mean) * rstd, g = c->dy[at] * weight(c, i);
        sum_g += g, sum_gn += g * n;
        size_g += fabs(g), size_gn += fabs(g) * (fabs(n) + off);
        out->dw[i] += c->dy[at] * n;
        out->dw_terms[i] += fabs(c->dy[at]) * (fabs(n) + off);
        out->db[i] += c->dy[at];
        out->db_terms[i] += fabs(c->dy[at]);
    }
    for (int64_t i = 0; i < c->cols; i++) {
        const int64_t at = r * c->cols + i;
        const double n = (c->x[at] - mean) * rstd, g = c->dy[at] * weight(c, i);
        const double centre = c->centred ? sum_g / f : 0.0;
        const double size_centre = c->centred ? size_g / f : 0.0;
        out->dx[at] = rstd * (g - centre - n * sum_gn / f);
        out->dx_terms[at] = rstd * (fabs(g) + size_centre + (fabs(n) + off) * size_gn / f);
    }
}

void oracle_row_norm_of(const oracle_row_norm *c, oracle_row_norm_answer *out)
{
    for (int64_t i = 0; i < c->cols; i++)
        out->dw[i] = out->dw_terms[i] = out->db[i] = out->db_terms[i] = 0.0;
    for (int64_t r = 0; r < c->rows; r++) {
        forward_row(c, r, out);
        backward_row(c, r, out);
    }
}

/* ---- channels ---- */

static int64_t element(const oracle_batch_norm *c, int64_t n, int64_t channel, int64_t i)
{
    return (n * c->channels + channel) * c->size + i;
}

static void channel_moments(const oracle_batch_norm *c, int64_t channel,
                            oracle_batch_norm_answer *out)
{
    const double m = (double)(c->n * c->size);
    double sum = 0.0, squares = 0.0;
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t i = 0; i < c->size; i++) sum += c->x[element(c, n, channel, i)];
    const double mean = sum / m;
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t i = 0; i < c->size; i++) {
            const double d = c->x[element(c, n, channel, i)] - mean;
            squares += d * d;
        }
    const double var = c->training ? squares / m : c->running_var[channel];
    out->mean[channel] = c->training ? mean : c->running_mean[channel];
    out->rstd[channel] = 1.0 / sqrt(var + c->eps);
    if (!c->running_mean) return;
    const double share = c->training ? c->share : 0.0;
    out->running_mean[channel] = (1.0 - share) * c->running_mean[channel] + share * mean;
    out->running_var[channel] = (1.0 - share) * c->running_var[channel] +
                                (share == 0.0 ? 0.0 : share * squares / (m - 1.0));
}

/* What a rounding of z's terms moves act(z), or act'(z), in such roundings. Where z may be on
 * either side of a kink, anything goes. */
#define ROUNDING 0x1p-24

static double slope(double (*f)(atto_activation act, double z), atto_activation act, double z,
                    double terms)
{
    const double h = ROUNDING * terms;
    if (!isfinite(z) || !isfinite(h)) return 0.0;
    if (oracle_act_kink_distance(act, z) < 1000.0 * h) return 4.0 / ROUNDING;
    return fabs(f(act, z + h) - f(act, z - h)) / (2.0 * ROUNDING);
}

static double act_of(atto_activation act, double z)
{
    return oracle_act_forward(act, 0.0f, (atto_rng){ 0 }, 0, z);
}

static double derivative_of(atto_activation act, double z)
{
    return oracle_act_backward(act, 0.0f, (atto_rng){ 0 }, 0, z, 1.0);
}

/* n, z and their terms at an element. */
typedef struct normal {
    double n, off, z, z_terms;
} normal;

static normal normal_at(const oracle_batch_norm *c, const oracle_batch_norm_answer *out,
                        int64_t channel, int64_t at)
{
    normal v;
    const double w = c->w ? c->w[channel] : 1.0, b = c->b ? c->b[channel] : 0.0;
    const double residual = c->residual ? c->residual[at] : 0.0;
    v.n = (c->x[at] - out->mean[channel]) * out->rstd[channel];
    v.off = blur(out->mean[channel], out->rstd[channel]);
    v.z = v.n * w + b + residual;
    v.z_terms = fabs(w) * (fabs(v.n) + v.off) + fabs(b) + fabs(residual);
    return v;
}

static void channel_forward(const oracle_batch_norm *c, int64_t channel,
                            oracle_batch_norm_answer *out)
{
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t i = 0; i < c->size; i++) {
            const int64_t at = element(c, n, channel, i);
            const normal v = normal_at(c, out, channel, at);
            out->y[at] = act_of(c->act, v.z);
            out->y_terms[at] =
                oracle_act_terms(c->act, 0.0f, v.z) + slope(act_of, c->act, v.z, v.z_terms);
        }
}

static void channel_backward(const oracle_batch_norm *c, int64_t channel,
                             oracle_batch_norm_answer *out)
{
    const double m = (double)(c->n * c->size),
                 scale = (c->w ? c->w[channel] : 1.0) * out->rstd[channel];
    double sum = 0.0, size = 0.0, sum_n = 0.0, size_n = 0.0;
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t i = 0; i < c->size; i++) {
            const int64_t at = element(c, n, channel, i);
            const normal v = normal_at(c, out, channel, at);
            out->dz[at] = derivative_of(c->act, v.z) * c->dy[at];
            out->dz_terms[at] = oracle_act_grad_terms(c->act, 0.0f, v.z, c->dy[at]) +
                                fabs(c->dy[at]) * slope(derivative_of, c->act, v.z, v.z_terms);
            sum += out->dz[at], size += out->dz_terms[at];
            sum_n += out->dz[at] * v.n, size_n += out->dz_terms[at] * (fabs(v.n) + v.off);
        }
    out->db[channel] = sum, out->db_terms[channel] = size;
    out->dw[channel] = sum_n, out->dw_terms[channel] = size_n;
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t i = 0; i < c->size; i++) {
            const int64_t at = element(c, n, channel, i);
            const normal v = normal_at(c, out, channel, at);
            const double centre = c->training ? (sum + v.n * sum_n) / m : 0.0;
            const double blurred = c->training ? (size + (fabs(v.n) + v.off) * size_n) / m : 0.0;
            out->dx[at] = scale * (out->dz[at] - centre);
            out->dx_terms[at] = fabs(scale) * (out->dz_terms[at] + blurred);
        }
}

void oracle_batch_norm_of(const oracle_batch_norm *c, oracle_batch_norm_answer *out)
{
    for (int64_t channel = 0; channel < c->channels; channel++) {
        channel_moments(c, channel, out);
        channel_forward(c, channel, out);
        channel_backward(c, channel, out);
    }
}

/* ---- groups ---- */

static void one_group(const oracle_group_norm *c, int64_t n, int64_t g, oracle_row_norm_answer *out)
{
    const int64_t each = c->channels / c->groups, values = each * c->size, stat = n * c->groups + g;
    const int64_t first = (n * c->channels + g * each) * c->size;
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < values; i++) sum += c->x[first + i];
    const double mean = sum / (double)values;
    for (int64_t i = 0; i < values; i++) squares += pow(c->x[first + i] - mean, 2.0);
    const double rstd = 1.0 / sqrt(squares / (double)values + c->eps), off = blur(mean, rstd);
    double sum_v = 0.0, sum_vn = 0.0, size_v = 0.0, size_vn = 0.0;
    out->mean[stat] = mean, out->rstd[stat] = rstd;
    for (int64_t i = 0; i < values; i++) {
        const int64_t at = first + i, channel = g * each + i / c->size;
        const double unit = (c->x[at] - mean) * rstd, w = c->w ? c->w[channel] : 1.0;
        const double b = c->b ? c->b[channel] : 0.0, dy = c->dy[at];
        out->y[at] = unit * w + b;
        out->y_terms[at] = fabs(w) * (fabs(unit) + off) + fabs(b);
        out->dw[channel] += dy * unit, out->db[channel] += dy;
        out->dw_terms[channel] += fabs(dy) * (fabs(unit) + off);
        out->db_terms[channel] += fabs(dy);
        sum_v += dy * w, sum_vn += dy * w * unit;
        size_v += fabs(dy * w), size_vn += fabs(dy * w) * (fabs(unit) + off);
    }
    for (int64_t i = 0; i < values; i++) {
        const int64_t at = first + i, channel = g * each + i / c->size;
        const double unit = (c->x[at] - mean) * rstd, m = (double)values;
        const double v = c->dy[at] * (c->w ? c->w[channel] : 1.0);
        out->dx[at] = rstd * (v - sum_v / m - unit * sum_vn / m);
        out->dx_terms[at] = rstd * (fabs(v) + size_v / m + (fabs(unit) + off) * size_vn / m);
    }
}

void oracle_group_norm_of(const oracle_group_norm *c, oracle_row_norm_answer *out)
{
    for (int64_t i = 0; i < c->channels; i++)
        out->dw[i] = out->dw_terms[i] = out->db[i] = out->db_terms[i] = 0.0;
    for (int64_t n = 0; n < c->n; n++)
        for (int64_t g = 0; g < c->groups; g++) one_group(c, n, g, out);
}
