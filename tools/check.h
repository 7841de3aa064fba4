/* SPDX-License-Identifier: MIT */
/* What selftest compares: the ops, the same call on any device, and how far results may differ. */
#ifndef ATTO_CHECK_TOOL_H
#define ATTO_CHECK_TOOL_H

#include <attocl.h>

/* Which of the library's ops runs. */
typedef enum check_family {
    CHECK_ACT,           /* atto_act_* */
    CHECK_DROPOUT,       /* atto_dropout_* */
    CHECK_UNARY,         /* atto_unary_* */
    CHECK_BINARY,        /* atto_binary_* */
    CHECK_LINEAR,        /* atto_linear_*, through check_linear */
    CHECK_CROSS_ENTROPY, /* nothing of the op below counts */
    CHECK_SOFTMAX,       /* atto_softmax_*, through check_rows */
    CHECK_GLU,           /* atto_glu_*, likewise */
    CHECK_LAYER_NORM,    /* atto_layer_norm_*, through check_norm; and so the next three */
    CHECK_RMS_NORM,
    CHECK_BATCH_NORM,
    CHECK_GROUP_NORM,
    CHECK_POOL,      /* kind 1: maxima */
    CHECK_CONV,      /* atto_conv_*, kind 1: transposed; through check_conv */
    CHECK_INDEX,     /* atto_index_select_*, kind 1: atto_gather_*; through check_index */
    CHECK_MATMUL,    /* atto_matmul_*, through check_matmul */
    CHECK_ATTENTION, /* atto_attention_*, through check_attention */
    CHECK_ROPE,      /* atto_rope_*, kind 1: neighbours; through check_rope */
    CHECK_RNN,       /* atto_lstm_cell_*, kind 1: atto_gru_cell_*; through check_rnn */
    CHECK_PAD,       /* atto_pad_*, kind: atto_pad_kind; through check_image */
    CHECK_RESIZE,    /* atto_resize_*, kind: nearest, linear, align_corners; likewise */
    CHECK_LOSS       /* atto_loss_* or atto_nll_loss_*, through check_loss; kind counts */
} check_family;

/* One op as selftest runs it: an activation, dropout, or both, perhaps behind a product; a unary or
 * binary kind. */
typedef struct check_op {
    const char *name;
    atto_activation act;
    float dropout;
    check_family family;
    int kind; /* atto_unary_kind, atto_binary_kind, atto_softmax_kind, atto_loss_kind or CHECK_NLL */
} check_op;

/* Forward: out = op(x). Backward: out = op'(x) * dy. Binary: of x and dy; its backward is da for
 * the upstream gradient dy. */
atto_status check_call(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                       const atto_tensor *x, const atto_tensor *dy, const atto_tensor *out);

/* The same on dense host data of a dtype, through a device of any kind. */
atto_status check_call_host(atto_device *dev, const check_op *op, bool backward, atto_rng rng,
                            atto_dtype dtype, int64_t n, const void *x, const void *dy, void *out);

/* Host data from f32 to a dtype and back, through dev. */
atto_status check_narrow(atto_device *dev, const float *in, atto_dtype dtype, int64_t n, void *out);
atto_status check_widen(atto_device *dev, const void *in, atto_dtype dtype, int64_t n, float *out);

/* Cross-entropy of some shapes on both devices; *ratio is the worst error / tolerance, infinite
 * when a call fails. */
atto_status check_cross_entropy(atto_device *dev, atto_device *reference, bool backward,
                                atto_dtype dtype, double *ratio);

/* The same of softmax and gated linear units; check_softmax.c. */
atto_status check_rows(atto_device *dev, atto_device *reference, const check_op *op, bool backward,
                       atto_dtype dtype, double *ratio);

/* A normalisation of some shapes likewise. */
atto_status check_norm(atto_device *dev, atto_device *reference, check_family family, bool backward,
                       atto_dtype dtype, double *ratio);

/* The same for pooling: means or maxima, every kernel, contiguous and channels_last. */
atto_status check_pool(atto_device *dev, atto_device *reference, bool is_max, bool backward,
                       atto_dtype dtype, double *ratio);

/* Images padded and resized, contiguous and channels_last; check_image.c. */
atto_status check_image(atto_device *dev, atto_device *reference, const check_op *op, bool backward,
                        atto_dtype dtype, double *ratio);
/* Convolutions, or transposed ones, likewise; check_conv.c. */
atto_status check_conv(atto_device *dev, atto_device *reference, bool transposed, bool backward,
                       atto_dtype dtype, double *ratio);

/* Rows, or elements, that an index names; check_index.c. */
atto_status check_index(atto_device *dev, atto_device *reference, bool is_gather, bool backward,
                        atto_dtype dtype, double *ratio);

/* Heads turned by positions; check_rope.c. */
atto_status check_rope(atto_device *dev, atto_device *reference, bool neighbours, bool backward,
                       atto_dtype dtype, double *ratio);

/* Recurrent cells, of an LSTM or of a GRU; check_rnn.c. */
atto_status check_rnn(atto_device *dev, atto_device *reference, bool is_gru, bool backward,
                      atto_dtype dtype, double *ratio);

/* Batched products likewise. */
atto_status check_matmul(atto_device *dev, atto_device *reference, bool backward, atto_dtype dtype,
                         double *ratio);

/* Attention of some shapes likewise. */
atto_status check_attention(atto_device *dev, atto_device *reference, bool backward,
                            atto_dtype dtype, double *ratio);

/* A pointwise loss, or for CHECK_NLL that of labels, likewise. */
#define CHECK_NLL ATTO_LOSS_COUNT
atto_status check_loss(atto_device *dev, atto_device *reference, int kind, bool backward,
                       atto_dtype dtype, double *ratio);

/* The worst element of a comparison: error / tolerance, at most 1 when all is well. */
typedef struct check_worst {
    double ratio;
    int64_t index;
    float got, want;
} check_worst;

/*
 * |got - want| <= 64 * 2^-24 * (1 + |x|) * |dy| / (1 - p)   a few ulp of each term of the formula
 *                 + eps(dtype) * |want| + tiny(dtype)        one step of the stored result
 *                 + 64 * 2^-24 * |want|                      unary and binary: results may be large
 *
 * with |dy| = 1 forward. NaN must meet NaN, infinities must be equal. dy is NULL forward.
 */
check_worst check_compare(const check_op *op, atto_dtype dtype, int64_t n, const float *x,
                          const float *dy, const float *got, const float *want);

/*
 * check_linear.c: the worst element of y and z, or of dx, dw and db, over shapes from 1 x 1 x 1 to
 * some hundreds, dense and with gaps between rows. Sums in another order may differ by their
 * roundings:
 *
 * |got - want| <= 2^-23 * (terms + 64) * (1 + sum of |terms|)
 *                 + eps(dtype) * |want| + tiny(dtype)
 *
 * *where says which tensor of which shape it is.
 */
#define CHECK_WHERE 64
atto_status check_linear(atto_device *dev, atto_device *reference, const check_op *op,
                         bool backward, atto_rng rng, atto_dtype dtype, check_worst *out,
                         char where[CHECK_WHERE]);

/* check.c: error / tolerance of one element, where tolerance is that of the arithmetic. */
double check_element(atto_dtype dtype, float got, float want, double tolerance);

#endif
