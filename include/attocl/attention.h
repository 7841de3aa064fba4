/* SPDX-License-Identifier: MIT */
/* Scaled dot-product attention: softmax(scale q k^T + mask) v without the matrix of probabilities. */
#ifndef ATTOCL_ATTENTION_H
#define ATTOCL_ATTENTION_H

#include <attocl/device.h>
#include <attocl/rng.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Largest size of a head: D and E. */
#define ATTO_ATTENTION_MAX_HEAD 256

/** Which keys a query sees. Query l and key s are numbered from 0; there are L and S of them. */
typedef enum atto_causal {
    ATTO_CAUSAL_NONE,        /**< all */
    ATTO_CAUSAL_TOP_LEFT,    /**< s <= l, PyTorch's is_causal */
    ATTO_CAUSAL_BOTTOM_RIGHT /**< s <= l + S - L: the last query sees all, as with a cache of keys */
} atto_causal;

/**
 * Arguments of atto_attention_forward and atto_attention_backward. B batches, H heads of queries, G
 * heads of keys and values, of which H is a multiple: head h uses number h / (H / G).
 *
 * Tensors may have any strides as long as their last dimension has stride 1: heads that stand side
 * by side, [B, L, H, D], are atto_tensor_permute of it, and parts of a packed [B, L, 3, H, D] are
 * views of that. Others are packed first.
 */
struct atto_attention_args {
    const atto_tensor *q; /**< in   [B, H, L, D]   f32 f16 bf16; D is 1 to 256 */
    const atto_tensor *k; /**< in   [B, G, S, D]   like q */
    const atto_tensor *v; /**< in   [B, G, S, E]   like q; E is 1 to 256 */
    /** in   1 to 4 dimensions, which broadcast to [B, H, L, S] from the right. i32: keys where it is
     * 0 are not seen (PyTorch's boolean mask); f32 or like q: added to the scaled products, -inf hides
     * a key. NULL = none; gets no gradient */
    const atto_tensor *mask;
    const atto_tensor *y;        /**< out  [B, H, L, E]   like q */
    const atto_tensor *lse;      /**< out  [B, H, L]      f32; forward: NULL = not wanted */
    const atto_tensor *lse_low;  /**< out  like lse       what lse has lost; NULL = not wanted, 0 */
    const atto_tensor *dy;       /**< in   like y */
    const atto_tensor *dq;       /**< out  like q         NULL = not wanted */
    const atto_tensor *dk;       /**< out  like k         NULL = not wanted */
    const atto_tensor *dv;       /**< out  like v         NULL = not wanted */
    bool add_dq, add_dk, add_dv; /**< += instead of = */
    atto_causal causal;          /**< hides keys as well as mask does */
    float scale;                 /**< 0 = 1 / sqrt(D) */
    float dropout;               /**< probability of setting a probability to 0; 0 to 1 */
    atto_rng rng;                /**< of dropout; numbered like a row-major [B, H, L, S] */
    uint64_t reserved[4];        /**< must be 0 */
};

/**
 * Attention of every query.
 *
 *     z = scale q k^T + mask          p = softmax(z) along the keys that are seen
 *     y = dropout(p) v                lse = log of the sum of e^z over them
 *
 * lse is rounded to f32, and lse_low is what that took from it: lse + lse_low is the logarithm. A query
 * that sees no key (S = 0 among them) gets y = 0, lse = +inf and lse_low = 0, and has no part in any
 * gradient.
 *
 * @param dev  device that owns every buffer below
 * @param p    uses q, k, v, mask, y, lse, lse_low, causal, scale, dropout, rng
 *
 * Saved     q, k, v, mask, y, lse, lse_low
 * Numerics  products, softmax and sums in f32 whatever the dtype; keys are taken in blocks, the sum
 *           of those before being rescaled (online softmax). No atomics: equal calls give equal bits
 * Data      NaN in a query makes its row NaN, NaN in a key those of all queries that see it; causal and
 *           an i32 mask hide it, an added -inf does not. A hidden key has probability 0, and 0 times
 *           NaN or infinity in v is NaN, as in PyTorch; where a whole block of keys is hidden by causal,
 *           v is not read. So padding must be finite. A query whose scores are all -inf sees nothing.
 *           Gradients beside NaN or infinity are not specified
 * Memory    O(L) scratch, never L x S
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     q, k or v has not four dimensions, they do not fit together, H is no
 *                            multiple of G, D or E is 0 or over 256, mask does not broadcast
 *           ATTO_E_DTYPE     a combination that is not in the table above
 *           ATTO_E_ARGUMENT  causal, scale (NaN or infinite), dropout or rng is none
 *           ATTO_E_UNSUPPORTED  on OpenCL: over 2^31 - 1025 queries, keys, or heads of all batches
 * Source    Dao et al. 2022, "FlashAttention"; Dao 2023, "FlashAttention-2"; PyTorch 2.11
 *           torch.nn.functional.scaled_dot_product_attention (its enable_gqa is always on)
 */
ATTO_API atto_status atto_attention_forward(atto_device *dev, const struct atto_attention_args *p);

/**
 * Its gradients. Probabilities are computed again from lse and lse_low, masks from rng.
 *
 *     dv = dropout(p)^T dy        dz = p * (dropout'(dy v^T) - sum of dy * y)
 *     dq = scale dz k             dk = scale dz^T q              (+ old, with add_...)
 *
 * Heads of queries that share keys add up in dk and dv.
 *
 * Numerics  probabilities are e^((z - lse) - lse_low), as good as forward's for scores of any size.
 *           Without lse_low they are off by |lse| 2^-24 of themselves: 6e-4 where scores are around
 *           -1e4; around -1e9, of a mask on all keys that a query sees, gradients are as many times
 *           too large as these are
 *
 * @param p  uses what forward used (y, lse and lse_low as it left them), and dy, dq, dk, dv
 */
ATTO_API atto_status atto_attention_backward(atto_device *dev, const struct atto_attention_args *p);

#ifdef __cplusplus
}
#endif

#endif
