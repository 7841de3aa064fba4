/* SPDX-License-Identifier: MIT */
/* Recurrent cells on the CPU, behind their products.
 *
 *   LSTM   cy = f c + i g,  y = o tanh(cy)       gates i, f, g, o
 *   GRU    y = n + z (h - n)                     gates r, z, n, and u_n beside them
 *
 * Blocks of up to 256 features of a row. All of a block is loaded before anything of it is stored,
 * so an output may be an input.
 */
#include <attocl/rnn.h>

#include <string.h>

#include "backend_cpu/loops.h"

#define FEATURES 256 /* of a block */

/* The buffers of one block: each gate, and what else it reads and writes. */
typedef float lane[FEATURES];

typedef struct job {
    const void *args;
    int64_t width, per_row; /* features, and blocks of them */
} job;

/* A block: features first .. first + n - 1 of a row. */
typedef struct place {
    int64_t row, first, width;
    int32_t n;
} place;

static place place_of(const job *j, int64_t unit)
{
    const int64_t first = unit % j->per_row * FEATURES, left = j->width - first;
    return (place){ unit / j->per_row, first, j->width,
                    (int32_t)(left < FEATURES ? left : FEATURES) };
}

/* Part number `part` of the block's row. */
static span span_at(const atto_tensor *t, place p, int64_t part)
{
    const int64_t at = t->offset + p.row * t->stride[0] + part * p.width + p.first;
    char *memory = atto__memory(t);
    return (span){ memory + at * (int64_t)atto_dtype_size(t->dtype), 1, p.n, t->dtype };
}

static void load_parts(const atto_tensor *t, place p, int32_t parts, lane *buffers,
                       const float **out)
{
    for (int32_t k = 0; k < parts; k++) out[k] = load_block(span_at(t, p, k), buffers[k]);
}

static void store_part(const float *values, const atto_tensor *t, place p, int64_t part)
{
    store_block(values, span_at(t, p, part));
}

/* A gradient, if it is wanted. */
static void give_parts(lane *values, const atto_tensor *t, place p, int32_t parts, bool add)
{
    float old[FEATURES];
    for (int32_t k = 0; t && k < parts; k++) {
        const span to = span_at(t, p, k);
        if (add) accumulate_block(values[k], to, old);
        store_block(values[k], to);
    }
}

/* One part, or zeros where there is none. */
static const float *load_or_zero(const atto_tensor *t, place p, float *buffer)
{
    if (t) return load_block(span_at(t, p, 0), buffer);
    memset(buffer, 0, (size_t)p.n * sizeof *buffer);
    return buffer;
}

/* ---- LSTM ---- */

static void lstm_forward(const struct atto_lstm_cell_args *a, place p)
{
    lane x_buffers[4], c_buffer, gates[4], y, cy;
    const float *x[4];
    load_parts(a->x, p, 4, x_buffers, x);
    const float *xi = x[0], *xf = x[1], *xg = x[2], *xo = x[3];
    const float *c = load_block(span_at(a->c, p, 0), c_buffer);
    ATTO_SIMD
    for (int32_t k = 0; k < p.n; k++) {
        const float i = attop_sigmoid(xi[k]), f = attop_sigmoid(xf[k]);
        const float g = attop_tanh(xg[k]), o = attop_sigmoid(xo[k]);
        const float state = f * c[k] + i * g;
        gates[0][k] = i;
        gates[1][k] = f;
        gates[2][k] = g;
        gates[3][k] = o;
        cy[k] = state;
        y[k] = o * attop_tanh(state);
    }
    store_part(y, a->y, p, 0);
    store_part(cy, a->cy, p, 0);
    for (int32_t k = 0; a->gates && k < 4; k++) store_part(gates[k], a->gates, p, k);
}

static void lstm_backward(const struct atto_lstm_cell_args *a, place p)
{
    lane gate_buffers[4], c_buffer, cy_buffer, dy_buffer, dcy_buffer, dx[4], dc;
    const float *gates[4];
    load_parts(a->gates, p, 4, gate_buffers, gates);
    const float *gate_i = gates[0], *gate_f = gates[1], *gate_g = gates[2], *gate_o = gates[3];
    const float *c = load_block(span_at(a->c, p, 0), c_buffer);
    const float *cy = load_block(span_at(a->cy, p, 0), cy_buffer);
    const float *dy = load_or_zero(a->dy, p, dy_buffer);
    const float *dcy = load_or_zero(a->dcy, p, dcy_buffer);
    ATTO_SIMD
    for (int32_t k = 0; k < p.n; k++) {
        const float i = gate_i[k], f = gate_f[k], g = gate_g[k], o = gate_o[k];
        const float t = attop_tanh(cy[k]);
        const float s = dcy[k] + dy[k] * o * (1.0f - t * t);
        dx[0][k] = s * g * (i * (1.0f - i));
        dx[1][k] = s * c[k] * (f * (1.0f - f));
        dx[2][k] = s * i * (1.0f - g * g);
        dx[3][k] = dy[k] * t * (o * (1.0f - o));
        dc[k] = s * f;
    }
    give_parts(dx, a->dx, p, 4, a->add_dx);
    give_parts(&dc, a->dc, p, 1, a->add_dc);
}

/* ---- GRU ---- */

static void gru_forward(const struct atto_gru_cell_args *a, place p)
{
    lane x_buffers[3], u_buffers[3], h_buffer, gates[4], y;
    const float *x[3], *u[3];
    load_parts(a->x, p, 3, x_buffers, x);
    load_parts(a->u, p, 3, u_buffers, u);
    const float *xr = x[0], *xz = x[1], *xn = x[2], *ur = u[0], *uz = u[1], *un = u[2];
    const float *h = load_block(span_at(a->h, p, 0), h_buffer);
    ATTO_SIMD
    for (int32_t k = 0; k < p.n; k++) {
        const float r = attop_sigmoid(xr[k] + ur[k]), z = attop_sigmoid(xz[k] + uz[k]);
        const float n = attop_tanh(xn[k] + r * un[k]);
        gates[0][k] = r;
        gates[1][k] = z;
        gates[2][k] = n;
        gates[3][k] = un[k];
        y[k] = n + z * (h[k] - n);
    }
    store_part(y, a->y, p, 0);
    for (int32_t k = 0; a->gates && k < 4; k++) store_part(gates[k], a->gates, p, k);
}

static void gru_backward(const struct atto_gru_cell_args *a, place p)
{
    lane gate_buffers[4], h_buffer, dy_buffer, dx[3], du[3], dh;
    const float *gates[4];
    load_parts(a->gates, p, 4, gate_buffers, gates);
    const float *gate_r = gates[0], *gate_z = gates[1], *gate_n = gates[2], *un = gates[3];
    const float *h = load_block(span_at(a->h, p, 0), h_buffer);
    const float *dy = load_block(span_at(a->dy, p, 0), dy_buffer);
    ATTO_SIMD
    for (int32_t k = 0; k < p.n; k++) {
        const float r = gate_r[k], z = gate_z[k], n = gate_n[k];
        const float dn = dy[k] * (1.0f - z) * (1.0f - n * n);
        const float dz = dy[k] * (h[k] - n) * (z * (1.0f - z));
        const float dr = dn * un[k] * (r * (1.0f - r));
        dx[0][k] = du[0][k] = dr;
        dx[1][k] = du[1][k] = dz;
        dx[2][k] = dn;
        du[2][k] = dn * r;
        dh[k] = dy[k] * z;
    }
    give_parts(dx, a->dx, p, 3, a->add_dx);
    give_parts(du, a->du, p, 3, a->add_du);
    give_parts(&dh, a->dh, p, 1, a->add_dh);
}

/* ---- all blocks ---- */

static void lstm_forward_blocks(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) lstm_forward(j->args, place_of(j, unit));
}

static void lstm_backward_blocks(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) lstm_backward(j->args, place_of(j, unit));
}

static void gru_forward_blocks(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) gru_forward(j->args, place_of(j, unit));
}

static void gru_backward_blocks(const void *job_, int64_t begin, int64_t end)
{
    const job *j = job_;
    for (int64_t unit = begin; unit < end; unit++) gru_backward(j->args, place_of(j, unit));
}

/* state: any tensor of [rows, H] */
static atto_status run(atto_device *dev, const void *args, const atto_tensor *state,
                       atto__range_fn blocks)
{
    const int64_t rows = state->shape[0], width = state->shape[1];
    const job j = { args, width, (width + FEATURES - 1) / FEATURES };
    const int32_t threads = rows * width < ATTO_SERIAL_BELOW / 4 ? 1 : atto__cpu_threads(dev);
    dev->stats.launches++;
    atto__parallel_for(threads, rows * j.per_row, blocks, &j);
    return ATTO_OK;
}

atto_status ATTO_LEVEL_NAME(lstm_cell_forward)(atto_device *dev,
                                               const struct atto_lstm_cell_args *a,
                                               const atto__layout *layout)
{
    (void)layout;
    return run(dev, a, a->c, lstm_forward_blocks);
}

atto_status ATTO_LEVEL_NAME(lstm_cell_backward)(atto_device *dev,
                                                const struct atto_lstm_cell_args *a,
                                                const atto__layout *layout)
{
    (void)layout;
    return run(dev, a, a->c, lstm_backward_blocks);
}

atto_status ATTO_LEVEL_NAME(gru_cell_forward)(atto_device *dev, const struct atto_gru_cell_args *a,
                                              const atto__layout *layout)
{
    (void)layout;
    return run(dev, a, a->h, gru_forward_blocks);
}

atto_status ATTO_LEVEL_NAME(gru_cell_backward)(atto_device *dev, const struct atto_gru_cell_args *a,
                                               const atto__layout *layout)
{
    (void)layout;
    return run(dev, a, a->h, gru_backward_blocks);
}
