/* SPDX-License-Identifier: MIT */
/* Activations, with dropout fused behind them if wanted. */
#ifndef ATTOCL_ACT_H
#define ATTOCL_ACT_H

#include <attocl/device.h>
#include <attocl/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Which activation. ATTO_ACT_IDENTITY is 0: a zeroed atto_activation does nothing. */
typedef enum atto_activation_kind {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) ATTO_ACT_##NAME,
    ATTO_ACTIVATION_TABLE(X)
#undef X
        ATTO_ACT_COUNT
} atto_activation_kind;

/** An activation as a value: kind and its at most two numbers. Make one with atto_relu() and so on.
 */
typedef struct atto_activation {
    atto_activation_kind kind;
    float a;
    float b;
} atto_activation;

/* atto_relu(), atto_gelu(), atto_leaky_relu(slope), atto_hardtanh(lo, hi), atto_softplus(beta,
 * threshold), ...: one constructor per row of ATTO_ACTIVATION_TABLE. */
#define X(NAME, name, parameters, a, b, default_a, default_b, rule) \
    static inline atto_activation atto_##name parameters            \
    {                                                               \
        atto_activation act = { ATTO_ACT_##NAME, a, b };            \
        return act;                                                 \
    }
ATTO_ACTIVATION_TABLE(X)
#undef X

/** "relu", "leaky_relu", ...; "?" for a value that is no activation. */
ATTO_API const char *atto_activation_name(atto_activation_kind kind);

/** The activation with PyTorch's default numbers. ATTO_ACT_IDENTITY for a value that is none. */
ATTO_API atto_activation atto_activation_default(atto_activation_kind kind);

/** Arguments of atto_act_forward and atto_act_backward; literal: 0 is 0, nothing is defaulted. */
struct atto_act_args {
    const atto_tensor *x;  /**< in   any shape    f32 f16 bf16 */
    const atto_tensor *y;  /**< out  like x       overwritten; may be x itself */
    const atto_tensor *dy; /**< in   like x */
    const atto_tensor *dx; /**< out  like x       may be dy itself; NULL = not wanted */
    bool add_dx;           /**< dx += instead of dx = */
    atto_activation act;
    float dropout; /**< probability p of setting an element to 0, 0 <= p <= 1; 0 = no dropout */
    atto_rng rng;  /**< which mask; the same value in forward and backward */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * Activation, then dropout.
 *
 *     y[i] = keep[i] * act(x[i]) / (1 - p)
 *
 * @param dev  device that owns every buffer below
 * @param a    uses x, y, act, dropout, rng
 *
 * Saved     x (pass it to atto_act_backward; forward in place loses it)
 * Numerics  computed in f32 whatever the dtype; bounds in docs/numerics.md. NaN gives NaN
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_NULL      dev, a, x or y is NULL
 *           ATTO_E_SHAPE     y is not shaped like x (0 elements are fine)
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16, or y differs from x
 *           ATTO_E_ARGUMENT  dropout outside [0, 1] or NaN, unknown kind or rng, illegal a or b:
 *                            NaN; infinite softplus beta, celu or elu alpha, leaky_relu slope;
 *                            softplus beta or celu alpha 0, softshrink lambda < 0, hardtanh
 *                            lo >= hi
 *           ATTO_E_STRIDE    y overlaps itself or has stride 0
 *           ATTO_E_ALIAS     y overlaps x without being the same view
 *           ATTO_E_DEVICE    a buffer of another device
 * Source    PyTorch 2.11 torch.nn.functional; dropout: Srivastava et al. 2014
 */
ATTO_API atto_status atto_act_forward(atto_device *dev, const struct atto_act_args *a);

/**
 * Its gradient.
 *
 *     dx[i] = keep[i] * act'(x[i]) * dy[i] / (1 - p)         (+ dx[i] with add_dx)
 *
 * @param a    uses x, dy, dx, add_dx, act, dropout, rng. x is forward's input
 *
 * Returns as atto_act_forward. At the kinks act' is PyTorch's choice (docs/ops/act.md).
 */
ATTO_API atto_status atto_act_backward(atto_device *dev, const struct atto_act_args *a);

#ifdef __cplusplus
}
#endif

#endif
