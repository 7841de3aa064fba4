/* SPDX-License-Identifier: MIT */
/* rnn.cl - recurrent cells behind their products.
 *
 *   LSTM   i, f, o = sigmoid, g = tanh of x    cy = f c + i g        y = o tanh(cy)
 *   GRU    r, z = sigmoid(x + u)               n = tanh(x_n + r u_n) y = n + z (h - n)
 *
 * Tensors are [rows, H], gates [rows, parts, H], with any step from row to row. Work-item t takes
 * run t of H / ATTO_RUN * rows: neighbours read next to each other in every part of a row.
 *
 *   t = row * per_row + run      element = row * step + part * H + run * ATTO_RUN
 *
 * All of a run is loaded before anything of it is stored, so an output may be an input.
 *
 *   ATTO_RUN, ATTO_VECTORS of atto_kernel.h: a vector, or one element, which any H and step allows;
 *   and the others of atto_kernel.h
 */
#include "atto_kernel.h"
#include "atto_rnn_flags.h"

#define RUN_PARAMETERS                                                                         \
    const atto_index runs, const atto_index per_row, const atto_index width, const uint magic, \
        const uint shift

/* Names the run: `row`, and `first`, its first feature. */
#define ATTO_PLACE                                                \
    const atto_index t = get_global_id(0);                        \
    if (t >= runs) return;                                        \
    const atto_index row = atto_divide(t, per_row, magic, shift); \
    const atto_index first = (t - row * per_row) * ATTO_RUN

/* Three or four parts of gates, still as they are stored. */
ATTO_UNROLLED void fetch_3(__global const ATTO_T *p, atto_index at, atto_index width, atto_raw *raw)
{
    raw[0] = atto_load_unit(p, at);
    raw[1] = atto_load_unit(p, at + width);
    raw[2] = atto_load_unit(p, at + 2 * width);
}

ATTO_UNROLLED void fetch_4(__global const ATTO_T *p, atto_index at, atto_index width, atto_raw *raw)
{
    fetch_3(p, at, width, raw);
    raw[3] = atto_load_unit(p, at + 3 * width);
}

ATTO_UNROLLED void store_unit(__global ATTO_T *p, atto_index at, const float *v)
{
    atto_store_run(p, at, 1, ATTO_RUN, v);
}

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_lstm_cell_forward)
ATTO_KERNEL void atto_lstm_cell_forward(__global const ATTO_T *x, const ulong x_at,
                                        const atto_index x_step, __global const ATTO_T *c,
                                        const ulong c_at, const atto_index c_step,
                                        __global ATTO_T *y, const ulong y_at,
                                        const atto_index y_step, __global ATTO_T *cy,
                                        const ulong cy_at, const atto_index cy_step,
                                        __global ATTO_T *gates, const ulong gates_at,
                                        const atto_index gates_step, RUN_PARAMETERS, const uint has)
{
    ATTO_PLACE;
    atto_raw raw[4];
    float i[ATTO_RUN], f[ATTO_RUN], g[ATTO_RUN], o[ATTO_RUN], state[ATTO_RUN], out[ATTO_RUN];
    fetch_4(x + x_at, row * x_step + first, width, raw);
    atto_widen_unit(atto_load_unit(c + c_at, row * c_step + first), state);
    atto_widen_unit(raw[0], i);
    atto_widen_unit(raw[1], f);
    atto_widen_unit(raw[2], g);
    atto_widen_unit(raw[3], o);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        i[k] = attop_sigmoid(i[k]);
        f[k] = attop_sigmoid(f[k]);
        g[k] = attop_tanh(g[k]);
        o[k] = attop_sigmoid(o[k]);
        state[k] = f[k] * state[k] + i[k] * g[k];
        out[k] = o[k] * attop_tanh(state[k]);
    }
    store_unit(y + y_at, row * y_step + first, out);
    store_unit(cy + cy_at, row * cy_step + first, state);
    if (has & ATTO_RNN_GATES) {
        const atto_index at = row * gates_step + first;
        gates += gates_at;
        store_unit(gates, at, i);
        store_unit(gates, at + width, f);
        store_unit(gates, at + 2 * width, g);
        store_unit(gates, at + 3 * width, o);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_lstm_cell_backward)
ATTO_KERNEL void
atto_lstm_cell_backward(__global const ATTO_T *c, const ulong c_at, const atto_index c_step,
                        __global const ATTO_T *cy, const ulong cy_at, const atto_index cy_step,
                        __global const ATTO_T *gates, const ulong gates_at,
                        const atto_index gates_step, __global const ATTO_T *dy, const ulong dy_at,
                        const atto_index dy_step, __global const ATTO_T *dcy, const ulong dcy_at,
                        const atto_index dcy_step, __global ATTO_T *dx, const ulong dx_at,
                        const atto_index dx_step, __global ATTO_T *dc, const ulong dc_at,
                        const atto_index dc_step, RUN_PARAMETERS, const uint has)
{
    ATTO_PLACE;
    atto_raw raw[4];
    float i[ATTO_RUN], f[ATTO_RUN], g[ATTO_RUN], o[ATTO_RUN];
    float old[ATTO_RUN], state[ATTO_RUN], d[ATTO_RUN], s[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) d[k] = s[k] = 0.0f;
    fetch_4(gates + gates_at, row * gates_step + first, width, raw);
    atto_widen_unit(atto_load_unit(c + c_at, row * c_step + first), old);
    atto_widen_unit(atto_load_unit(cy + cy_at, row * cy_step + first), state);
    if (has & ATTO_RNN_DY) atto_widen_unit(atto_load_unit(dy + dy_at, row * dy_step + first), d);
    if (has & ATTO_RNN_DCY)
        atto_widen_unit(atto_load_unit(dcy + dcy_at, row * dcy_step + first), s);
    atto_widen_unit(raw[0], i);
    atto_widen_unit(raw[1], f);
    atto_widen_unit(raw[2], g);
    atto_widen_unit(raw[3], o);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        const float t = attop_tanh(state[k]), in = i[k];
        s[k] += d[k] * o[k] * (1.0f - t * t);
        i[k] = s[k] * g[k] * (in * (1.0f - in));
        g[k] = s[k] * in * (1.0f - g[k] * g[k]);
        o[k] = d[k] * t * (o[k] * (1.0f - o[k]));
        d[k] = s[k] * f[k]; /* dc */
        f[k] = s[k] * old[k] * (f[k] * (1.0f - f[k]));
    }
    if (has & ATTO_RNN_DX) {
        const atto_index at = row * dx_step + first;
        dx += dx_at;
        atto_store_gradient(dx, at, i, has & ATTO_RNN_ADD_DX);
        atto_store_gradient(dx, at + width, f, has & ATTO_RNN_ADD_DX);
        atto_store_gradient(dx, at + 2 * width, g, has & ATTO_RNN_ADD_DX);
        atto_store_gradient(dx, at + 3 * width, o, has & ATTO_RNN_ADD_DX);
    }
    if (has & ATTO_RNN_DH)
        atto_store_gradient(dc + dc_at, row * dc_step + first, d, has & ATTO_RNN_ADD_DH);
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gru_cell_forward)
ATTO_KERNEL void atto_gru_cell_forward(__global const ATTO_T *x, const ulong x_at,
                                       const atto_index x_step, __global const ATTO_T *u,
                                       const ulong u_at, const atto_index u_step,
                                       __global const ATTO_T *h, const ulong h_at,
                                       const atto_index h_step, __global ATTO_T *y,
                                       const ulong y_at, const atto_index y_step,
                                       __global ATTO_T *gates, const ulong gates_at,
                                       const atto_index gates_step, RUN_PARAMETERS, const uint has)
{
    ATTO_PLACE;
    atto_raw raw_x[3], raw_u[3];
    float r[ATTO_RUN], z[ATTO_RUN], n[ATTO_RUN], ur[ATTO_RUN], uz[ATTO_RUN], un[ATTO_RUN];
    float state[ATTO_RUN];
    fetch_3(x + x_at, row * x_step + first, width, raw_x);
    fetch_3(u + u_at, row * u_step + first, width, raw_u);
    atto_widen_unit(atto_load_unit(h + h_at, row * h_step + first), state);
    atto_widen_unit(raw_x[0], r);
    atto_widen_unit(raw_x[1], z);
    atto_widen_unit(raw_x[2], n);
    atto_widen_unit(raw_u[0], ur);
    atto_widen_unit(raw_u[1], uz);
    atto_widen_unit(raw_u[2], un);
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        r[k] = attop_sigmoid(r[k] + ur[k]);
        z[k] = attop_sigmoid(z[k] + uz[k]);
        n[k] = attop_tanh(n[k] + r[k] * un[k]);
        state[k] = n[k] + z[k] * (state[k] - n[k]);
    }
    store_unit(y + y_at, row * y_step + first, state);
    if (has & ATTO_RNN_GATES) {
        const atto_index at = row * gates_step + first;
        gates += gates_at;
        store_unit(gates, at, r);
        store_unit(gates, at + width, z);
        store_unit(gates, at + 2 * width, n);
        store_unit(gates, at + 3 * width, un);
    }
}
#endif

#if !defined(ATTO_ONE_KERNEL) || defined(ATTO_KERNEL_atto_gru_cell_backward)
ATTO_KERNEL void
atto_gru_cell_backward(__global const ATTO_T *h, const ulong h_at, const atto_index h_step,
                       __global const ATTO_T *gates, const ulong gates_at,
                       const atto_index gates_step, __global const ATTO_T *dy, const ulong dy_at,
                       const atto_index dy_step, __global ATTO_T *dx, const ulong dx_at,
                       const atto_index dx_step, __global ATTO_T *du, const ulong du_at,
                       const atto_index du_step, __global ATTO_T *dh, const ulong dh_at,
                       const atto_index dh_step, RUN_PARAMETERS, const uint has)
{
    ATTO_PLACE;
    atto_raw raw[4];
    float r[ATTO_RUN], z[ATTO_RUN], n[ATTO_RUN], un[ATTO_RUN], state[ATTO_RUN], d[ATTO_RUN];
    fetch_4(gates + gates_at, row * gates_step + first, width, raw);
    atto_widen_unit(atto_load_unit(h + h_at, row * h_step + first), state);
    atto_widen_unit(atto_load_unit(dy + dy_at, row * dy_step + first), d);
    atto_widen_unit(raw[0], r);
    atto_widen_unit(raw[1], z);
    atto_widen_unit(raw[2], n);
    atto_widen_unit(raw[3], un);
    float also_r[ATTO_RUN], also_z[ATTO_RUN];
#pragma unroll
    for (uint k = 0; k < ATTO_RUN; k++) {
        const float dn = d[k] * (1.0f - z[k]) * (1.0f - n[k] * n[k]);
        const float dz = d[k] * (state[k] - n[k]) * (z[k] * (1.0f - z[k]));
        const float dr = dn * un[k] * (r[k] * (1.0f - r[k]));
        d[k] *= z[k]; /* dh */
        n[k] = dn;
        un[k] = dn * r[k];
        r[k] = also_r[k] = dr;
        z[k] = also_z[k] = dz;
    }
    if (has & ATTO_RNN_DX) {
        const atto_index at = row * dx_step + first;
        dx += dx_at;
        atto_store_gradient(dx, at, r, has & ATTO_RNN_ADD_DX);
        atto_store_gradient(dx, at + width, z, has & ATTO_RNN_ADD_DX);
        atto_store_gradient(dx, at + 2 * width, n, has & ATTO_RNN_ADD_DX);
    }
    if (has & ATTO_RNN_DU) {
        const atto_index at = row * du_step + first;
        du += du_at;
        atto_store_gradient(du, at, also_r, has & ATTO_RNN_ADD_DU);
        atto_store_gradient(du, at + width, also_z, has & ATTO_RNN_ADD_DU);
        atto_store_gradient(du, at + 2 * width, un, has & ATTO_RNN_ADD_DU);
    }
    if (has & ATTO_RNN_DH)
        atto_store_gradient(dh + dh_at, row * dh_step + first, d, has & ATTO_RNN_ADD_DH);
}
#endif
