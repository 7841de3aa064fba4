/* SPDX-License-Identifier: MIT */
/* A layer of a transformer's encoder: a module written with the public API, as an application writes its
 * own. Options, parameters, initial values and numbers are those of PyTorch's
 * torch.nn.TransformerEncoderLayer. */
#ifndef TRANSFORMER_BLOCK_BLOCK_H
#define TRANSFORMER_BLOCK_BLOCK_H

#include "failure.h"

/* Options of the module; zero is PyTorch's default. */
typedef struct transformer_block_options {
    int64_t dim_feedforward; /* 0 = 2048 */
    float dropout;           /* in training; 0 = 0.1, ATTO_ZERO = none */
    atto_activation act;     /* between linear1 and linear2; zero = ReLU */
    float layer_norm_eps;    /* 0 = 1e-5, ATTO_ZERO = 0 */
    bool batch_first;        /* x is [N, T, d_model], not [T, N, d_model] */
    bool norm_first;         /* norms stand before what they belong to, not behind */
    bool no_bias;            /* neither projections nor norms have one */
    atto_dtype dtype;        /* of the parameters; 0 = f32 */
} transformer_block_options;

/*
 * The module; give it back with atto_module_free. options may be NULL.
 *
 *     norm behind (default)                     norm_first
 *     y = norm1(x + dropout(self_attn(x)))      y = x + dropout(self_attn(norm1(x)))
 *     z = norm2(y + dropout(feed(y)))           z = y + dropout(feed(norm2(y)))
 *     feed(y) = linear2(dropout(act(linear1(y))))
 *
 * Parameters: self_attn.in_proj_weight, self_attn.in_proj_bias, self_attn.out_proj.weight,
 * self_attn.out_proj.bias, then weight and bias of linear1, linear2, norm1 and norm2.
 *
 * out is NULL on failure, and failure_message tells: ATTO_E_NULL; ATTO_E_SHAPE: d_model or
 * dim_feedforward is not above 0, d_model is no multiple of nhead; ATTO_E_ARGUMENT: dropout outside
 * [0, 1], layer_norm_eps; and what the library's modules return.
 */
atto_status transformer_block_create(atto_device *dev, int64_t d_model, int64_t nhead,
                                     const transformer_block_options *options, atto_module **out);

/* What positions do not see. Zero, and NULL for the struct, hides nothing; then it is atto_apply. */
typedef struct transformer_block_call {
    const atto_var *src_mask;         /* [T, T] or [N * nhead, T, T]; NULL = none */
    const atto_var *key_padding_mask; /* [N, T], or [T] beside an unbatched x; NULL = none */
    bool causal;                      /* nothing behind itself */
} transformer_block_call;

/*
 * The module on x, [T, N, d_model], with batch_first [N, T, d_model], or unbatched [T, d_model]; the
 * result is like x. Masks of i32 hide where they are not 0, masks of floats are added to scores, as of
 * atto_multihead_attention. Errors go to the tape.
 */
atto_var transformer_block(atto_tape *tape, atto_module *m, atto_var x,
                           const transformer_block_call *call);

#endif
