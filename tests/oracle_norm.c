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

/* An f32 evaluation knows the mean to a rounding of itself, and of the deviations' size: in units of
 * the normalised values |mean| rstd and 1. */
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
