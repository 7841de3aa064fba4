/* SPDX-License-Identifier: MIT */
/* The tables that everything else expands from: statuses, dtypes, activations, ops, their tensors.
 *
 * Comments and macros only, so that C, C++ and OpenCL C can all include this file. A table takes
 * the name of a macro and applies it to each of its rows. */
#ifndef ATTOCL_TABLES_H
#define ATTOCL_TABLES_H

/* X(NAME, value, text): the enumerator is ATTO_<NAME>. */
/* clang-format off */
#define ATTO_STATUS_TABLE(X)                                                          \
    X(OK,              0, "success")                                                  \
    X(E_NULL,         -1, "a required pointer is NULL")                               \
    X(E_ARGUMENT,     -2, "an argument is outside its legal range")                   \
    X(E_SHAPE,        -3, "shapes do not match")                                      \
    X(E_DTYPE,        -4, "dtype not allowed here")                                   \
    X(E_STRIDE,       -5, "strides not allowed here")                                 \
    X(E_ALIAS,        -6, "an output overlaps another tensor")                        \
    X(E_DEVICE,       -7, "no such device, or a tensor of another device")            \
    X(E_INDEX,        -8, "an index or a label in the data is out of range")          \
    X(E_STATE,        -9, "object is in the wrong state for this call")               \
    X(E_UNSUPPORTED, -10, "not supported")                                            \
    X(E_MEMORY,      -11, "out of memory")                                            \
    X(E_BUILD,       -12, "a kernel could not be built")                              \
    X(E_BACKEND,     -13, "the driver reported an error")                             \
    X(E_LOST,        -14, "the device is lost")                                       \
    X(E_IO,          -15, "a file could not be read or written")                      \
    X(E_FORMAT,      -16, "malformed data")                                           \
    X(E_VERSION,     -17, "header and library versions do not match")

/* X(NAME, name, value, bytes): the enumerator is ATTO_<NAME>. 0 is no dtype, so that a zeroed
 * tensor is never mistaken for a valid one. */
#define ATTO_DTYPE_TABLE(X)     \
    X(F32,  f32,  1, 4)         \
    X(F16,  f16,  2, 2)         \
    X(BF16, bf16, 3, 2)         \
    X(I32,  i32,  4, 4)         \
    X(I64,  i64,  5, 8)

/* X(NAME, name, parameters, a, b, default_a, default_b, rule)
 *
 * Expands to the enumerator ATTO_ACT_<NAME>, the constructor atto_<name> parameters, and the calls
 * attom_<name>(x, a, b) and attom_<name>_grad(x, a, b) of atto_math.h. The defaults are PyTorch's.
 * rule names what the two numbers must satisfy (rule_<rule> in src/layers/act.c). Rows are only
 * ever appended: their order is part of the ABI. */
#define ATTO_ACTIVATION_TABLE(X)                                                               \
    X(IDENTITY,    identity,    (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(SIGMOID,     sigmoid,     (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(LOGSIGMOID,  logsigmoid,  (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(TANH,        tanh,        (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(RELU,        relu,        (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(GELU,        gelu,        (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(GELU_TANH,   gelu_tanh,   (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(SILU,        silu,        (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(RELU6,       relu6,       (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(HARDSIGMOID, hardsigmoid, (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(HARDTANH,    hardtanh,    (float lo, float hi), lo,    hi,       -1.0f,  1.0f, ORDERED)  \
    X(HARDSWISH,   hardswish,   (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(SELU,        selu,        (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(MISH,        mish,        (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(SOFTPLUS,    softplus,    (float beta, float threshold), beta, threshold, 1.0f, 20.0f, NONZERO) \
    X(SOFTSIGN,    softsign,    (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(TANHSHRINK,  tanhshrink,  (void),               0.0f,  0.0f,      0.0f,  0.0f, ANY)      \
    X(LEAKY_RELU,  leaky_relu,  (float slope),        slope, 0.0f,     0.01f,  0.0f, FINITE)   \
    X(ELU,         elu,         (float alpha),        alpha, 0.0f,      1.0f,  0.0f, FINITE)   \
    X(CELU,        celu,        (float alpha),        alpha, 0.0f,      1.0f,  0.0f, NONZERO)  \
    X(HARDSHRINK,  hardshrink,  (float lambda),       lambda, 0.0f,     0.5f,  0.0f, ANY)      \
    X(SOFTSHRINK,  softshrink,  (float lambda),       lambda, 0.0f,     0.5f,  0.0f, NONNEGATIVE)

/* X(NAME, name): the enumerator is ATTO_UNARY_<NAME>; attom_unary_<name>(x, a, b) and
 * attom_unary_<name>_grad(x, dy, a, b) of atto_math.h. Rows are only ever appended. */
#define ATTO_UNARY_TABLE(X)        \
    X(NEG,        neg)             \
    X(ABS,        abs)             \
    X(EXP,        exp)             \
    X(LOG,        log)             \
    X(SQRT,       sqrt)            \
    X(RSQRT,      rsqrt)           \
    X(SQUARE,     square)          \
    X(RECIPROCAL, reciprocal)      \
    X(CLAMP,      clamp)

/* X(NAME, name, gradient): the enumerator is ATTO_BINARY_<NAME>; attom_binary_<name>(a, b),
 * attom_binary_<name>_da(a, b, dy) and _db. gradient: SIGNS where both gradients are dy or -dy and
 * need neither a nor b, else VALUES. Rows are only ever appended. */
#define ATTO_BINARY_TABLE(X)       \
    X(ADD,        add,     SIGNS)  \
    X(SUB,        sub,     SIGNS)  \
    X(MUL,        mul,     VALUES) \
    X(DIV,        div,     VALUES) \
    X(POW,        pow,     VALUES) \
    X(MAXIMUM,    maximum, VALUES) \
    X(MINIMUM,    minimum, VALUES)

/* X(NAME, name, operator): the enumerator is ATTO_COMPARE_<NAME>. Rows are only ever appended. */
#define ATTO_COMPARE_TABLE(X) \
    X(EQ, eq, ==)             \
    X(NE, ne, !=)             \
    X(LT, lt, <)              \
    X(LE, le, <=)             \
    X(GT, gt, >)              \
    X(GE, ge, >=)

/* X(NAME, name): the enumerator is ATTO_REDUCE_<NAME>. Rows are only ever appended. */
#define ATTO_REDUCE_TABLE(X) \
    X(SUM,    sum)           \
    X(MEAN,   mean)          \
    X(MAX,    max)           \
    X(MIN,    min)           \
    X(ARGMAX, argmax)        \
    X(ARGMIN, argmin)

/* X(NAME, name): the enumerator is ATTO_SOFTMAX_<NAME>. Rows are only ever appended. */
#define ATTO_SOFTMAX_TABLE(X) \
    X(PLAIN,  softmax)        \
    X(LOG,    log_softmax)    \
    X(MIN,    softmin)
/* X(NAME, name, rule): the enumerator is ATTO_LOSS_<NAME>; attom_loss_<name>(x, t, a) of
 * atto_math.h, and its derivatives _dx and _dt. rule: what the args' threshold must satisfy,
 * POSITIVE or NONNEGATIVE; UNUSED: it is not looked at. Rows are only ever appended. */
#define ATTO_LOSS_TABLE(X)                            \
    X(L1,              l1,              UNUSED)       \
    X(MSE,             mse,             UNUSED)       \
    X(SMOOTH_L1,       smooth_l1,       NONNEGATIVE)  \
    X(HUBER,           huber,           POSITIVE)     \
    X(BCE_WITH_LOGITS, bce_with_logits, UNUSED)       \
    X(KL_DIV,          kl_div,          UNUSED)       \
    X(KL_DIV_LOG,      kl_div_log,      UNUSED)

/* X(NAME, name): the enumerator is ATTO_PAD_<NAME>. Rows are only ever appended. */
#define ATTO_PAD_TABLE(X)     \
    X(CONSTANT,  constant)    \
    X(REFLECT,   reflect)     \
    X(REPLICATE, replicate)   \
    X(CIRCULAR,  circular)

/* X(NAME, name): the enumerator is ATTO_RESIZE_<NAME>. Rows are only ever appended. */
#define ATTO_RESIZE_TABLE(X)  \
    X(NEAREST,   nearest)     \
    X(LINEAR,    linear)

/* X(op, OP, layout, autocast, in_place, random, data_errors)
 *
 * Names the struct atto_<op>_args, its fields ATTO_<OP>_FIELDS, the public pair atto_<op>_forward
 * and _backward, the check atto__<op>_check, and one slot per direction in every backend.
 *   layout       what a backend gets to see; everything else is packed first:
 *                ELEMENTWISE: all tensors have one shape and may be walked in any order
 *                BROADCAST: the same, where tensors were expanded to the shape of the largest by
 *                strides 0; an output with a stride 0 gets the sum, or what its family reduces by
 *                ROWS: each tensor is a matrix with unit stride along its rows, its leading
 *                dimensions merged to one
 *                DENSE: each tensor is row-major without gaps
 *                CHANNELS: no gaps; images, the tensors of the highest rank, are row-major, or all
 *                have dimension 1 innermost (channels_last), as the largest of them has; others are
 *                row-major
 *                IMAGES: the same, but only the innermost dimension needs unit stride; images have
 *                four dimensions, batch, channels, height, width (those that the caller's lacks
 *                have size 1)
 *                FILTERED: the same, where w and dw are the filters of the images: they lie as these do,
 *                but do not decide how, and bringing them to it is no hidden copy
 *                MATRICES: the last two dimensions are a matrix that has unit stride along its rows
 *                or along its columns; those before them are the batch, to whose shape every tensor
 *                was expanded by strides 0, and have any strides. An output with a stride 0 gets
 *                the sum over that dimension
 *                INNER: a tensor's last dimension has unit stride, the others have any strides
 *   autocast     what autocast does to the floats among the inputs: LOW, F32, WIDEST or FLOW
 *   in_place     IN_PLACE: an output may be exactly one of the inputs; else DISTINCT
 *   random       DROPS_BY(field): draws numbers by logical element index when that probability is
 *                above 0; else FIXED
 *   data_errors  DATA_ERRORS: the kernel may set a bit in the device's error word; else NONE
 * Rows are only ever appended: their order is part of the ABI. */
#define ATTO_OP_TABLE(X)                                                      \
    X(act,     ACT,     ELEMENTWISE, FLOW, IN_PLACE, DROPS_BY(dropout), NONE) \
    X(dropout, DROPOUT, ELEMENTWISE, FLOW, IN_PLACE, DROPS_BY(p),       NONE) \
    X(linear,  LINEAR,  ROWS,        LOW,  DISTINCT, DROPS_BY(dropout), NONE) \
    X(cross_entropy, CROSS_ENTROPY, DENSE, F32, DISTINCT, FIXED, DATA_ERRORS) \
    X(unary,   UNARY,   ELEMENTWISE, FLOW, IN_PLACE, FIXED,             NONE) \
    X(cast,    CAST,    ELEMENTWISE, FLOW, DISTINCT, FIXED,             NONE) \
    X(binary,  BINARY,  BROADCAST, WIDEST, IN_PLACE, FIXED,             NONE) \
    X(where,   WHERE,   BROADCAST, WIDEST, IN_PLACE, FIXED,             NONE) \
    X(compare, COMPARE, BROADCAST, WIDEST, DISTINCT, FIXED,             NONE) \
    X(reduce,  REDUCE,  BROADCAST, F32,    DISTINCT, FIXED,             NONE) \
    X(softmax, SOFTMAX, DENSE,     F32,    DISTINCT, FIXED,             NONE) \
    X(glu,     GLU,     DENSE,     FLOW,   DISTINCT, FIXED,             NONE) \
    X(loss,    LOSS,    BROADCAST, F32,    DISTINCT, FIXED,             NONE) \
    X(nll_loss, NLL_LOSS, DENSE,   F32,    DISTINCT, FIXED,       DATA_ERRORS) \
    X(layer_norm, LAYER_NORM, DENSE, F32,  DISTINCT, FIXED,             NONE) \
    X(rms_norm, RMS_NORM, DENSE,   FLOW,   DISTINCT, FIXED,             NONE) \
    X(batch_norm, BATCH_NORM, CHANNELS, FLOW, DISTINCT, FIXED,          NONE) \
    X(avg_pool, AVG_POOL, IMAGES,  FLOW,   DISTINCT, FIXED,             NONE) \
    X(max_pool, MAX_POOL, IMAGES,  FLOW,   DISTINCT, FIXED,             NONE) \
    X(group_norm, GROUP_NORM, CHANNELS, F32, DISTINCT, FIXED,           NONE) \
    X(index_select, INDEX_SELECT, DENSE, FLOW, DISTINCT, FIXED,  DATA_ERRORS) \
    X(gather,  GATHER,  DENSE,     FLOW,   DISTINCT, FIXED,      DATA_ERRORS) \
    X(matmul,  MATMUL,  MATRICES,  LOW,    DISTINCT, FIXED,             NONE) \
    X(attention, ATTENTION, INNER, LOW,    DISTINCT, DROPS_BY(dropout), NONE) \
    X(rope,    ROPE,    INNER,     FLOW,   IN_PLACE, FIXED,      DATA_ERRORS) \
    X(conv,    CONV,    FILTERED,  LOW,    DISTINCT, FIXED,             NONE) \
    X(lstm_cell, LSTM_CELL, ROWS,  LOW,    IN_PLACE, FIXED,             NONE) \
    X(gru_cell, GRU_CELL, ROWS,    LOW,    IN_PLACE, FIXED,             NONE) \
    X(pad,     PAD,     CHANNELS,  FLOW,   DISTINCT, FIXED,             NONE) \
    X(resize,  RESIZE,  IMAGES,    FLOW,   DISTINCT, FIXED,             NONE)

/* F(field, role), beside each args struct as ATTO_<OP>_FIELDS. Roles:
 *   IN          read by forward and again by backward      must be given to both
 *   IN_OPT      the same                                   NULL = not there
 *   IN_NEEDED   the same                                   backward says which gradient needs it
 *   IN_FWD      read by forward only                       must be given to forward
 *   IN_FWD_OPT  the same                                   NULL = not there
 *   STATE_OPT   read and written by forward                NULL = not there
 *   OUT         written by forward, not read again         must be given to forward
 *   SAVED       written by forward, read by backward       must be given to both
 *   SAVED_OPT   the same                                   NULL = not wanted; see its family
 *   SAVED_NEEDED the same                                  must be given to forward; backward says
 *                                                          which gradient needs it
 *   SAVED_FWD_OPT the same                                 forward: NULL = not wanted; must be
 *   given
 *                                                          to backward
 *   DIN         gradient of an output, read by backward    must be given to backward
 *   DIN_OPT     the same                                   NULL = 0
 *   DOUT        gradient of an input, written by backward  NULL = not wanted; add_<field> adds to
 *                                                          it */
#define ATTO_ACT_FIELDS(F)     F(x, IN)     F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_DROPOUT_FIELDS(F) F(x, IN_FWD) F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_LINEAR_FIELDS(F)                                                                  \
    F(x, IN_NEEDED) F(w, IN_NEEDED) F(b, IN_FWD_OPT) F(residual, IN_FWD_OPT) F(y, OUT)         \
    F(z, SAVED_OPT) F(dy, DIN) F(dx, DOUT) F(dw, DOUT) F(db, DOUT)
#define ATTO_CROSS_ENTROPY_FIELDS(F)                                                           \
    F(x, IN) F(target, IN) F(weight, IN_OPT) F(loss, OUT) F(lse, SAVED_OPT)                    \
    F(total, SAVED_OPT) F(dloss, DIN) F(dx, DOUT) F(dtarget, DOUT)
#define ATTO_UNARY_FIELDS(F)   F(x, IN)     F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_CAST_FIELDS(F)    F(x, IN_FWD) F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_BINARY_FIELDS(F)  F(a, IN_OPT) F(b, IN_OPT) F(y, OUT) F(dy, DIN) F(da, DOUT) F(db, DOUT)
#define ATTO_WHERE_FIELDS(F)                                                                   \
    F(cond, IN) F(a, IN_FWD_OPT) F(b, IN_FWD_OPT) F(y, OUT) F(dy, DIN) F(da, DOUT) F(db, DOUT)
#define ATTO_COMPARE_FIELDS(F) F(a, IN_FWD) F(b, IN_FWD_OPT) F(y, OUT)
#define ATTO_REDUCE_FIELDS(F)  F(x, IN_NEEDED) F(y, SAVED_NEEDED) F(dy, DIN) F(dx, DOUT)
#define ATTO_SOFTMAX_FIELDS(F) F(x, IN_FWD) F(y, SAVED) F(dy, DIN) F(dx, DOUT)
#define ATTO_GLU_FIELDS(F)     F(x, IN)     F(y, OUT)   F(dy, DIN) F(dx, DOUT)
#define ATTO_LOSS_FIELDS(F)                                                                    \
    F(x, IN) F(target, IN) F(weight, IN_OPT) F(pos_weight, IN_OPT) F(loss, OUT) F(dloss, DIN)  \
    F(dx, DOUT) F(dtarget, DOUT)
#define ATTO_NLL_LOSS_FIELDS(F)                                                                \
    F(x, IN_FWD) F(target, IN) F(weight, IN_OPT) F(loss, OUT) F(total, SAVED_OPT)              \
    F(dloss, DIN) F(dx, DOUT)
#define ATTO_LAYER_NORM_FIELDS(F)                                                              \
    F(x, IN) F(w, IN_OPT) F(b, IN_FWD_OPT) F(y, OUT) F(mean, SAVED_FWD_OPT)                    \
    F(rstd, SAVED_FWD_OPT) F(dy, DIN) F(dx, DOUT) F(dw, DOUT) F(db, DOUT)
#define ATTO_RMS_NORM_FIELDS(F)                                                                \
    F(x, IN) F(w, IN_OPT) F(y, OUT) F(rstd, SAVED_FWD_OPT) F(dy, DIN) F(dx, DOUT) F(dw, DOUT)
#define ATTO_BATCH_NORM_FIELDS(F)                                                              \
    F(x, IN) F(w, IN_OPT) F(b, IN_OPT) F(residual, IN_OPT) F(running_mean, STATE_OPT)          \
    F(running_var, STATE_OPT) F(batches, STATE_OPT) F(y, OUT) F(mean, SAVED_FWD_OPT)           \
    F(rstd, SAVED_FWD_OPT) F(dy, DIN) F(dx, DOUT) F(dw, DOUT) F(db, DOUT) F(dresidual, DOUT)
#define ATTO_AVG_POOL_FIELDS(F) F(x, IN_FWD) F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_MAX_POOL_FIELDS(F) F(x, IN_FWD) F(y, OUT) F(indices, SAVED_OPT) F(dy, DIN) F(dx, DOUT)
#define ATTO_GROUP_NORM_FIELDS(F)                                                              \
    F(x, IN) F(w, IN_OPT) F(b, IN_FWD_OPT) F(running_mean, STATE_OPT)                          \
    F(running_var, STATE_OPT) F(y, OUT) F(mean, SAVED_FWD_OPT) F(rstd, SAVED_FWD_OPT)          \
    F(dy, DIN) F(dx, DOUT) F(dw, DOUT) F(db, DOUT)
#define ATTO_INDEX_SELECT_FIELDS(F) F(x, IN_FWD) F(index, IN) F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_GATHER_FIELDS(F)  F(x, IN_FWD) F(index, IN) F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_MATMUL_FIELDS(F)                                                                  \
    F(a, IN_NEEDED) F(b, IN_NEEDED) F(y, OUT) F(dy, DIN) F(da, DOUT) F(db, DOUT)
#define ATTO_ATTENTION_FIELDS(F)                                                               \
    F(q, IN) F(k, IN) F(v, IN) F(mask, IN_OPT) F(y, SAVED) F(lse, SAVED_FWD_OPT)               \
    F(lse_low, SAVED_OPT) F(dy, DIN) F(dq, DOUT) F(dk, DOUT) F(dv, DOUT)
#define ATTO_ROPE_FIELDS(F)                                                                    \
    F(x, IN_FWD) F(cos, IN) F(sin, IN) F(position, IN_OPT) F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_CONV_FIELDS(F)                                                                    \
    F(x, IN_NEEDED) F(w, IN_NEEDED) F(b, IN_FWD_OPT) F(residual, IN_FWD_OPT) F(y, OUT)         \
    F(z, SAVED_OPT) F(dy, DIN) F(dx, DOUT) F(dw, DOUT) F(db, DOUT)
#define ATTO_LSTM_CELL_FIELDS(F)                                                               \
    F(x, IN_FWD) F(c, IN) F(y, OUT) F(cy, SAVED) F(gates, SAVED_FWD_OPT) F(dy, DIN_OPT)        \
    F(dcy, DIN_OPT) F(dx, DOUT) F(dc, DOUT)
#define ATTO_GRU_CELL_FIELDS(F)                                                                \
    F(x, IN_FWD) F(u, IN_FWD) F(h, IN) F(y, OUT) F(gates, SAVED_FWD_OPT) F(dy, DIN)            \
    F(dx, DOUT) F(du, DOUT) F(dh, DOUT)
#define ATTO_PAD_FIELDS(F)     F(x, IN_FWD) F(y, OUT) F(dy, DIN) F(dx, DOUT)
#define ATTO_RESIZE_FIELDS(F)  F(x, IN_FWD) F(y, OUT) F(dy, DIN) F(dx, DOUT)
/* clang-format on */

#endif
