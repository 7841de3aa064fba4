/* SPDX-License-Identifier: MIT */
/* Modules: trees of parameters, buffers and options, with a forward function. */
#ifndef ATTOCL_MODULE_H
#define ATTOCL_MODULE_H

#include <attocl/record.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A module holds parameters, children and options, never activations: one module may stand in many
 * places of a network and be called twice at once. It is counted: adding a child takes a reference.
 */
typedef struct atto_module atto_module;

/** What a kind of module does. Users make their own the same way as the library does. */
typedef struct atto_module_class {
    const char *name; /**< "Linear" */

    /** Records the module's work on the tape, and returns its output. Errors go to the tape. NULL where
     * a function of your own does it instead, or where the module only holds others. */
    atto_var (*forward)(atto_module *m, atto_tape *tape, atto_var x);

    /** Frees what data holds, data included; NULL when there is nothing to free. */
    void (*destroy)(void *data);

    /** For classes that take two inputs, as losses do; forward is NULL then. */
    atto_var (*forward2)(atto_module *m, atto_tape *tape, atto_var a, atto_var b);
} atto_module_class;

/**
 * A new module without parameters and children.
 *
 * @param cls   stays alive as long as the module. It has a name
 * @param data  the class's own; atto_module_data gives it back. On failure it stays the caller's
 * @param out   NULL on failure; give it back with atto_module_free
 * Returns      ATTO_E_NULL, ATTO_E_MEMORY
 */
ATTO_API atto_status atto_module_create(atto_device *dev, const atto_module_class *cls, void *data,
                                        atto_module **out);

/** One more owner, and one less; the last one frees the tree below. NULL is fine. */
ATTO_API void atto_module_retain(atto_module *m);
ATTO_API void atto_module_free(atto_module *m);

ATTO_API void *atto_module_data(const atto_module *m);
ATTO_API const char *atto_module_class_name(const atto_module *m);
ATTO_API atto_device *atto_module_device(const atto_module *m);

/**
 * Makes a parameter of m. *out is borrowed: the module owns it.
 *
 * @param name  part of its key in a state dict: "weight"; no dot, no other parameter or child
 * Returns      ATTO_E_NULL, ATTO_E_ARGUMENT (name), and as atto_param_create
 */
ATTO_API atto_status atto_module_param(atto_module *m, const char *name, atto_dtype dtype,
                                       atto_shape shape, atto_param **out);

/** The same parameter under a second name or in a second module: tied weights. */
ATTO_API atto_status atto_module_share(atto_module *m, const char *name, atto_param *p);

/**
 * Adds a tensor of m that is no parameter and belongs to its state dict: running statistics. m
 * keeps a reference to its buffer; the memory is the same.
 *
 * Returns ATTO_E_NULL, ATTO_E_ARGUMENT (name), ATTO_E_DEVICE, ATTO_E_MEMORY
 */
ATTO_API atto_status atto_module_buffer(atto_module *m, const char *name, const atto_tensor *t);

/** Adds a child; m keeps a reference of its own. ATTO_E_ARGUMENT for a bad name, or a child that
 * contains m. */
ATTO_API atto_status atto_module_child(atto_module *m, const char *name, atto_module *child);

/** Training (new modules) or evaluation, for the whole tree. In training only, dropout draws, batch
 * norm takes the batch's statistics, and running statistics move. */
ATTO_API void atto_module_train(atto_module *m, bool training);
ATTO_API bool atto_module_is_training(const atto_module *m);

/** Freezes, or not, every parameter of the tree. */
ATTO_API void atto_module_freeze(atto_module *m, bool frozen);

/** Parameters of the tree with their keys ("0.weight"): a module's own in order of registration, then
 * those of its children; a tied one appears under each of its names. Stops at the first failure of
 * visit, and returns it. */
typedef atto_status (*atto_param_visit)(void *data, const char *key, atto_param *p);
ATTO_API atto_status atto_module_params(const atto_module *m, atto_param_visit visit, void *data);

/** The tree's buffers likewise. */
typedef atto_status (*atto_buffer_visit)(void *data, const char *key, const atto_tensor *t);
ATTO_API atto_status atto_module_buffers(const atto_module *m, atto_buffer_visit visit, void *data);

/**
 * One parameter of the tree by its key ("weight", "0.bias", "layers.1.linear1.weight"), for a head that
 * shares an embedding's weight, or to look at it. *out is borrowed.
 *
 * Returns ATTO_E_NULL; ATTO_E_ARGUMENT: there is none of that key, and the message has those there are
 */
ATTO_API atto_status atto_module_find_param(const atto_module *m, const char *key,
                                            atto_param **out);

/** Sum of elements over the tree's parameters, tied ones once. */
ATTO_API int64_t atto_module_param_count(const atto_module *m);

/** Calls the module in a scope of the tape: of what it records only the output, and what backward
 * needs, lives on. */
ATTO_API atto_var atto_apply(atto_tape *tape, atto_module *m, atto_var x);

/** The same for a module that takes two inputs: a loss of the network's output and a target. */
ATTO_API atto_var atto_apply2(atto_tape *tape, atto_module *m, atto_var a, atto_var b);

/* ---- the library's modules; each _create gives a module that atto_module_free frees ---- */

/** Options of linear modules; zero is PyTorch's default. */
typedef struct atto_linear_options {
    bool no_bias;
    atto_activation act; /**< behind the product */
    float dropout;       /**< behind the activation, in training */
    atto_dtype dtype;    /**< of the parameters; 0 = f32 */
    uint64_t reserved[4];
} atto_linear_options;

/** y = x weight^T + bias, with weight [out, in] and bias [out], drawn as PyTorch does: uniform in
 * +-1/sqrt(in). options may be NULL. ATTO_E_SHAPE: a negative size; ATTO_E_ARGUMENT: dropout
 * outside [0, 1]. */
ATTO_API atto_status atto_linear_create(atto_device *dev, int64_t in, int64_t out,
                                        const atto_linear_options *options, atto_module **m);

/** An activation as a module, and dropout behind it in training. */
ATTO_API atto_status atto_act_create(atto_device *dev, atto_activation act, float dropout,
                                     atto_module **m);

/** Dropout in training. */
ATTO_API atto_status atto_dropout_create(atto_device *dev, float p, atto_module **m);

/** All dimensions from start (negative: from the end) to the last become one. PyTorch: start = 1. */
ATTO_API atto_status atto_flatten_create(atto_device *dev, int32_t start, atto_module **m);

/** Gives its input. */
ATTO_API atto_status atto_identity_create(atto_device *dev, atto_module **m);

/** Softmax, LogSoftmax or Softmin over dimension dim; -1 is the last. ATTO_E_ARGUMENT: unknown kind. */
ATTO_API atto_status atto_softmax_create(atto_device *dev, atto_softmax_kind kind, int32_t dim,
                                         atto_module **m);

/** GLU: halves of dimension dim, with any activation as the gate's. PyTorch's: dim = -1, atto_sigmoid(). */
ATTO_API atto_status atto_glu_create(atto_device *dev, int32_t dim, atto_activation act,
                                     atto_module **m);

/** Options of CrossEntropyLoss; zero is PyTorch's default. */
typedef struct atto_cross_entropy_loss_options {
    const float *weight; /**< [classes], read during the call; NULL = 1 for every class */
    int64_t classes;     /**< of weight; else not used */
    atto_reduction reduction;
    bool has_ignore_index;
    int64_t ignore_index;
    float label_smoothing;
    uint64_t reserved[4];
} atto_cross_entropy_loss_options;

/**
 * Cross-entropy as a module of two inputs, logits and target: atto_apply2. options may be NULL.
 *
 * Returns ATTO_E_NULL; ATTO_E_ARGUMENT: label_smoothing outside [0, 1] or NaN, unknown reduction,
 *         weight given and classes not above 0, a reserved word not 0; ATTO_E_SHAPE: classes beyond
 *         2^59; ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST
 */
ATTO_API atto_status atto_cross_entropy_loss_create(atto_device *dev,
                                                    const atto_cross_entropy_loss_options *options,
                                                    atto_module **m);

/* Losses as modules of two inputs, the network's output and a target: atto_apply2. options may be
 * NULL: PyTorch's defaults.
 *
 * Returns ATTO_E_NULL; ATTO_E_ARGUMENT: unknown reduction, beta or delta out of range, a reserved
 *         word not 0; of weights also ATTO_E_SHAPE, ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST */

/** L1Loss, MSELoss. */
ATTO_API atto_status atto_l1_loss_create(atto_device *dev, const atto_loss_options *options,
                                         atto_module **m);
ATTO_API atto_status atto_mse_loss_create(atto_device *dev, const atto_loss_options *options,
                                          atto_module **m);

/** SmoothL1Loss, HuberLoss; PyTorch: beta = 1, delta = 1. */
ATTO_API atto_status atto_smooth_l1_loss_create(atto_device *dev, float beta,
                                                const atto_loss_options *options, atto_module **m);
ATTO_API atto_status atto_huber_loss_create(atto_device *dev, float delta,
                                            const atto_loss_options *options, atto_module **m);

/** Options of BCEWithLogitsLoss; zero is PyTorch's default. */
typedef struct atto_bce_with_logits_loss_options {
    const float *weight;     /**< read during the call; NULL = 1 for every element */
    atto_shape weight_shape; /**< which broadcasts; at least one dimension where weight is given */
    const float *pos_weight; /**< likewise */
    atto_shape pos_weight_shape;
    atto_reduction reduction;
    uint64_t reserved[4];
} atto_bce_with_logits_loss_options;

/** BCEWithLogitsLoss. */
ATTO_API atto_status atto_bce_with_logits_loss_create(
    atto_device *dev, const atto_bce_with_logits_loss_options *options, atto_module **m);

/** KLDivLoss. */
ATTO_API atto_status atto_kl_div_loss_create(atto_device *dev, const atto_kl_div_options *options,
                                             atto_module **m);

/** Options of NLLLoss; zero is PyTorch's default. */
typedef struct atto_nll_loss_options {
    const float *weight; /**< [classes], read during the call; NULL = 1 for every class */
    int64_t classes;     /**< of weight; else not used */
    atto_reduction reduction;
    bool has_ignore_index;
    int64_t ignore_index;
    uint64_t reserved[4];
} atto_nll_loss_options;

/** NLLLoss. ATTO_E_ARGUMENT also where weight is given and classes is not above 0. */
ATTO_API atto_status atto_nll_loss_create(atto_device *dev, const atto_nll_loss_options *options,
                                          atto_module **m);

/** Options of MultiheadAttention; zero is PyTorch's default. */
typedef struct atto_multihead_attention_module_options {
    float dropout;        /**< of probabilities, in training; 0 to 1 */
    bool no_bias;         /**< projections lack theirs */
    bool add_bias_kv;     /**< a learned key and value more, bias_k and bias_v */
    bool add_zero_attn;   /**< a key and value of zeros more, behind all others */
    bool batch_first;     /**< inputs are [batch, positions, ...], not [positions, batch, ...] */
    int64_t kdim, vdim;   /**< features of keys and values; 0 = embed_dim */
    atto_dtype dtype;     /**< of the parameters; 0 = f32 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_multihead_attention_module_options;

/**
 * Multi-head attention: projections of queries, keys and values, attention of every head, and one
 * projection of all heads. options may be NULL.
 *
 * Parameters, named and drawn as PyTorch's: in_proj_weight [3 E, E], or where kdim or vdim differs from
 * E q_proj_weight [E, E], k_proj_weight [E, kdim] and v_proj_weight [E, vdim]; in_proj_bias [3 E];
 * bias_k and bias_v [1, 1, E]; out_proj.weight [E, E]; out_proj.bias [E]. E is embed_dim.
 *
 * atto_apply gives the attention of x with itself; atto_multihead_attention has the rest.
 *
 * Returns ATTO_E_NULL; ATTO_E_SHAPE: embed_dim, num_heads, kdim or vdim is not above 0, embed_dim is no
 *         multiple of num_heads, a head has over 256 features; ATTO_E_ARGUMENT: dropout outside [0,
 *         1], a reserved word not 0; ATTO_E_DTYPE, ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST
 * Source  Vaswani et al. 2017, "Attention Is All You Need"; PyTorch 2.11 torch.nn.MultiheadAttention
 */
ATTO_API atto_status atto_multihead_attention_create(
    atto_device *dev, int64_t embed_dim, int64_t num_heads,
    const atto_multihead_attention_module_options *options, atto_module **m);

/** Options of atto_multihead_attention; zero, and NULL for the struct, is no mask and no weights. */
typedef struct atto_multihead_attention_options {
    /** Keys that no query sees: [N, S], or [S] beside unbatched inputs. i32: not 0 hides, as PyTorch's
     * True does (in attocl/attention.h it is 0 that hides); f32 or like the inputs: added to scores.
     * NULL = none */
    const atto_var *key_padding_mask;
    /** What queries do not see, in the same forms: [T, S] or [N * heads, T, S]. NULL = none */
    const atto_var *attn_mask;
    atto_causal
        causal; /**< hides keys as well; keys that add_bias_kv and add_zero_attn add stay seen */
    /** Gets the probabilities, as dropout leaves them: [N, T, S], the mean over heads, or with each_head
     * [N, heads, T, S]; S counts added keys, and N is missing beside unbatched inputs. They take
     * memory that attention alone does not. NULL = not wanted */
    atto_var *weights;
    bool each_head;       /**< PyTorch's average_attn_weights=False */
    uint64_t reserved[4]; /**< must be 0 */
} atto_multihead_attention_options;

/**
 * The module's attention of T queries to S keys and values, in a scope of its own.
 *
 * query is [T, N, E], key [S, N, kdim], value [S, N, vdim], with batch_first [N, T, E] and so on, or
 * unbatched [T, E]; the result is like query. A query that sees no key gets out_proj.bias, and has no
 * part in gradients, where PyTorch's is NaN. Errors go to the tape: ATTO_E_NULL, ATTO_E_ARGUMENT (m is
 * another module; causal is none), ATTO_E_SHAPE, ATTO_E_DTYPE; ATTO_E_UNSUPPORTED: a mask would need a
 * gradient, which it gets with weights only.
 */
ATTO_API atto_var atto_multihead_attention(atto_tape *tape, atto_module *m, atto_var query,
                                           atto_var key, atto_var value,
                                           const atto_multihead_attention_options *options);

/** Options of Embedding; zero is PyTorch's default. */
typedef struct atto_embedding_module_options {
    bool has_padding;     /**< padding holds */
    int64_t padding;      /**< a row from 0 to count - 1: zero at first, and it gets no gradient */
    atto_dtype dtype;     /**< of weight; 0 = f32 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_embedding_module_options;

/** Embedding: weight is [count, dims], drawn from N(0, 1); indices, i32 or i64 of any shape, become
 * [index..., dims]. options may be NULL. ATTO_E_SHAPE: a negative size; ATTO_E_ARGUMENT: padding is
 * no row. */
ATTO_API atto_status atto_embedding_create(atto_device *dev, int64_t count, int64_t dims,
                                           const atto_embedding_module_options *options,
                                           atto_module **m);

/** Options of LayerNorm and RMSNorm; zero is PyTorch's default. */
typedef struct atto_norm_options {
    float eps; /**< 0 = 1e-5, for RMSNorm the machine epsilon of the input's dtype; ATTO_ZERO = 0 */
    bool no_affine;   /**< neither weight nor bias */
    bool no_bias;     /**< no bias; RMSNorm never has one */
    atto_dtype dtype; /**< of the parameters; 0 = f32 */
    uint64_t reserved[4];
} atto_norm_options;

/** Layer norm over the trailing dimensions, which must be `normalised`: weight (1 at first) and bias (0)
 * have that shape. options may be NULL. ATTO_E_SHAPE: a negative size, or no dimension;
 * ATTO_E_ARGUMENT: eps. */
ATTO_API atto_status atto_layer_norm_create(atto_device *dev, atto_shape normalised,
                                            const atto_norm_options *options, atto_module **m);

/** RMS norm likewise, with weight alone. */
ATTO_API atto_status atto_rms_norm_create(atto_device *dev, atto_shape normalised,
                                          const atto_norm_options *options, atto_module **m);

/** Group norm of [N, C] or [N, C, ...]: weight (1 at first) and bias (0) are [channels]. options may be NULL.
 * ATTO_E_ARGUMENT: groups is below 1 or does not divide channels, eps; ATTO_E_SHAPE: a negative
 * size. */
ATTO_API atto_status atto_group_norm_create(atto_device *dev, int64_t groups, int64_t channels,
                                            const atto_norm_options *options, atto_module **m);

/** Options of InstanceNorm1d and InstanceNorm2d; zero is PyTorch's default. */
typedef struct atto_instance_norm_module_options {
    float eps;                /**< 0 = 1e-5; ATTO_ZERO = 0 */
    float momentum;           /**< 0 = 0.1; ATTO_ZERO = 0, which PyTorch's None means here */
    bool affine;              /**< weight and bias */
    bool track_running_stats; /**< in training, and used in evaluation */
    atto_dtype dtype;         /**< of weight and bias; 0 = f32. Statistics are f32 */
    uint64_t reserved[4];
} atto_instance_norm_module_options;

/**
 * Instance norm of [N, C, L] or [C, L], and of [N, C, H, W] or [C, H, W]: weight (1 at first) and
 * bias (0) if affine; the buffers running_mean (0), running_var (1) and num_batches_tracked (which
 * stays 0, as PyTorch's does) if they are tracked. options may be NULL. ATTO_E_SHAPE: a negative
 * size; ATTO_E_ARGUMENT: eps, momentum. A call fails with ATTO_E_ARGUMENT where a channel's own
 * statistics are those of one value.
 */
ATTO_API atto_status atto_instance_norm1d_create(atto_device *dev, int64_t channels,
                                                 const atto_instance_norm_module_options *options,
                                                 atto_module **m);
ATTO_API atto_status atto_instance_norm2d_create(atto_device *dev, int64_t channels,
                                                 const atto_instance_norm_module_options *options,
                                                 atto_module **m);

/** Options of BatchNorm1d and BatchNorm2d; zero is PyTorch's default. */
typedef struct atto_batch_norm_module_options {
    float eps;       /**< 0 = 1e-5; ATTO_ZERO = 0 */
    float momentum;  /**< 0 = 0.1; ATTO_ZERO = 0 */
    bool cumulative; /**< PyTorch's momentum=None: running statistics are plain means */
    bool no_affine;  /**< neither weight nor bias */
    bool
        no_running_stats; /**< PyTorch's track_running_stats=False: always the batch's statistics */
    atto_activation act;  /**< behind the residual */
    atto_dtype dtype;     /**< of weight and bias; 0 = f32. Statistics are f32 */
    uint64_t reserved[4];
} atto_batch_norm_module_options;

/**
 * Batch norm of [N, C] or [N, C, L], and of [N, C, H, W]: weight (1 at first), bias (0), and the
 * buffers running_mean (0), running_var (1) and num_batches_tracked (0). atto_apply2 takes a
 * residual, which is added before the activation. options may be NULL. ATTO_E_SHAPE: a negative
 * size; ATTO_E_ARGUMENT: eps, momentum, act.
 */
ATTO_API atto_status atto_batch_norm1d_create(atto_device *dev, int64_t channels,
                                              const atto_batch_norm_module_options *options,
                                              atto_module **m);
ATTO_API atto_status atto_batch_norm2d_create(atto_device *dev, int64_t channels,
                                              const atto_batch_norm_module_options *options,
                                              atto_module **m);

/** Options of convolution modules; zero is PyTorch's default. Pairs are {height, width}; the 1d
 * modules read the first, and the second must be 0. What they mean stands in attocl/record.h. */
typedef struct atto_conv_module_options {
    int64_t stride[2];          /**< 0 = 1 */
    int64_t padding[2];         /**< on both sides */
    int64_t dilation[2];        /**< 0 = 1 */
    int64_t output_padding[2];  /**< transposed */
    int64_t groups;             /**< 0 = 1 */
    bool same;                  /**< padding='same' */
    atto_pad_kind padding_mode; /**< 0 = zeros; not transposed */
    bool no_bias;
    atto_activation act; /**< behind the bias */
    atto_dtype dtype;    /**< of the parameters; 0 = f32 */
    uint64_t reserved[4];
} atto_conv_module_options;

/**
 * Convolutions: Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d. weight is [out, in / groups,
 * kernel], of the transposed ones [in, out / groups, kernel], bias [out]; both drawn as PyTorch
 * does: uniform in +-1/sqrt(weight's elements along its dimensions from 1 on). atto_apply2 takes a
 * residual, which is added behind the activation. options may be NULL.
 *
 * Returns ATTO_E_NULL; ATTO_E_SHAPE: in or out is negative; ATTO_E_ARGUMENT: kernel or a number
 *         outside its range, groups do not divide in and out, a reserved word not 0;
 *         ATTO_E_DTYPE, ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST
 */
ATTO_API atto_status atto_conv1d_create(atto_device *dev, int64_t in, int64_t out, int64_t kernel,
                                        const atto_conv_module_options *options, atto_module **m);
ATTO_API atto_status atto_conv2d_create(atto_device *dev, int64_t in, int64_t out, int64_t kernel_h,
                                        int64_t kernel_w, const atto_conv_module_options *options,
                                        atto_module **m);
ATTO_API atto_status atto_conv_transpose1d_create(atto_device *dev, int64_t in, int64_t out,
                                                  int64_t kernel,
                                                  const atto_conv_module_options *options,
                                                  atto_module **m);
ATTO_API atto_status atto_conv_transpose2d_create(atto_device *dev, int64_t in, int64_t out,
                                                  int64_t kernel_h, int64_t kernel_w,
                                                  const atto_conv_module_options *options,
                                                  atto_module **m);

/**
 * Puts a batch norm that follows a convolution into the convolution's parameters, for inference:
 *
 *     weight = weight * gamma * rstd
 *     bias   = (bias - running_mean) * gamma * rstd + beta     rstd = 1 / sqrt(running_var + eps)
 *
 * computed in double, and rounded once to their dtype. A convolution without a bias gets the
 * parameter "bias". batch_norm then gives its input as it is, with its residual and activation as
 * before; applying it in training mode fails (ATTO_E_STATE). What it holds stays, but belongs to the old
 * weights: save before folding. Waits for the device.
 *
 * @param conv        a convolution module without activation, used nowhere else
 * @param batch_norm  BatchNorm1d or BatchNorm2d of its output, used nowhere else
 * Returns ATTO_E_NULL; ATTO_E_ARGUMENT: a module of another class, conv has an activation,
 *         batch_norm has no running statistics; ATTO_E_SHAPE: other channels, other dimensions;
 *         ATTO_E_STATE: was folded before; ATTO_E_DEVICE, ATTO_E_MEMORY, ATTO_E_BACKEND,
 *         ATTO_E_LOST. On failure the modules are as they were, unless the device fails while it is
 *         written to
 */
ATTO_API atto_status atto_conv_fold_batch_norm(atto_module *conv, atto_module *batch_norm);

/**
 * Pooling: AvgPool1d, AvgPool2d, MaxPool1d, ... What kernel, options and out mean stands in
 * attocl/record.h; who wants indices calls atto_max_pool2d. options may be NULL.
 *
 * Returns ATTO_E_NULL; ATTO_E_ARGUMENT: a number outside its range, a reserved word not 0;
 *         ATTO_E_MEMORY
 */
ATTO_API atto_status atto_avg_pool1d_create(atto_device *dev, int64_t kernel,
                                            const atto_avg_pool_options *options, atto_module **m);
ATTO_API atto_status atto_avg_pool2d_create(atto_device *dev, int64_t kernel_h, int64_t kernel_w,
                                            const atto_avg_pool_options *options, atto_module **m);
ATTO_API atto_status atto_max_pool1d_create(atto_device *dev, int64_t kernel,
                                            const atto_max_pool_options *options, atto_module **m);
ATTO_API atto_status atto_max_pool2d_create(atto_device *dev, int64_t kernel_h, int64_t kernel_w,
                                            const atto_max_pool_options *options, atto_module **m);
ATTO_API atto_status atto_adaptive_avg_pool1d_create(atto_device *dev, int64_t out,
                                                     atto_module **m);
ATTO_API atto_status atto_adaptive_avg_pool2d_create(atto_device *dev, int64_t out_h, int64_t out_w,
                                                     atto_module **m);
ATTO_API atto_status atto_adaptive_max_pool1d_create(atto_device *dev, int64_t out,
                                                     atto_module **m);
ATTO_API atto_status atto_adaptive_max_pool2d_create(atto_device *dev, int64_t out_h, int64_t out_w,
                                                     atto_module **m);

/** Options of LSTMCell and GRUCell; zero is PyTorch's default. */
typedef struct atto_rnn_cell_options {
    bool no_bias;
    atto_dtype dtype;     /**< of the parameters; 0 = f32 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_rnn_cell_options;

/** Options of LSTM and GRU; zero is PyTorch's default. */
typedef struct atto_rnn_module_options {
    int32_t layers; /**< 1 to 32; 0 = 1 */
    bool no_bias;
    bool batch_first; /**< sequences are [batch, steps, ...], not [steps, batch, ...] */
    bool bidirectional;
    float dropout;        /**< on every layer's output but the last one's, in training */
    atto_dtype dtype;     /**< of the parameters; 0 = f32 */
    uint64_t reserved[4]; /**< must be 0 */
} atto_rnn_module_options;

/**
 * LSTMCell, GRUCell, LSTM and GRU: attocl/record.h, with parameters of their own. options may be
 * NULL.
 *
 * Parameters, named and drawn as PyTorch's (uniform in +-1/sqrt(hidden)): weight_ih [G hidden, in],
 * weight_hh [G hidden, hidden], bias_ih and bias_hh [G hidden], G = 4 of an LSTM, 3 of a GRU; of
 * layers with _l0, _l1, ... behind the name, and _reverse behind that for the second direction.
 *
 * atto_apply starts with states of zeros and gives y: of a cell the new hidden state, of layers
 * those of all steps. atto_rnn_apply has the states as well.
 *
 * Returns ATTO_E_NULL; ATTO_E_SHAPE: in is negative, hidden is not above 0; ATTO_E_ARGUMENT:
 *         layers, dropout outside [0, 1], a reserved word not 0; ATTO_E_DTYPE, ATTO_E_MEMORY,
 *         ATTO_E_BACKEND, ATTO_E_LOST
 */
ATTO_API atto_status atto_lstm_cell_create(atto_device *dev, int64_t in, int64_t hidden,
                                           const atto_rnn_cell_options *options, atto_module **m);
ATTO_API atto_status atto_gru_cell_create(atto_device *dev, int64_t in, int64_t hidden,
                                          const atto_rnn_cell_options *options, atto_module **m);
ATTO_API atto_status atto_lstm_create(atto_device *dev, int64_t in, int64_t hidden,
                                      const atto_rnn_module_options *options, atto_module **m);
ATTO_API atto_status atto_gru_create(atto_device *dev, int64_t in, int64_t hidden,
                                     const atto_rnn_module_options *options, atto_module **m);

/** States of a recurrent module: those before the first step, and where those behind the last one
 * go. Of a cell [N, hidden] or [hidden], of layers [layers D, N, hidden] or [layers D, hidden],
 * D = 2 if bidirectional, else 1. NULL = zeros, and not wanted; c and cy are an LSTM's. hy may be
 * where h is, and cy where c is. */
typedef struct atto_rnn_states {
    const atto_var *h, *c;
    atto_var *hy, *cy;
    uint64_t reserved[4]; /**< must be 0 */
} atto_rnn_states;

/** One of these modules with its states, in a scope of its own. Errors go to the tape: those of
 * atto_lstm and its like; ATTO_E_ARGUMENT: m is another module. */
ATTO_API atto_var atto_rnn_apply(atto_tape *tape, atto_module *m, atto_var x,
                                 const atto_rnn_states *states);
/**
 * Padding, as PyTorch's modules: elements around the last dimension, or the last two. Of x's
 * dimensions reflection, replication and circular take one or two more; constant any more. Amounts
 * and modes: attocl/pad.h.
 *
 * Returns ATTO_E_NULL; ATTO_E_ARGUMENT: an amount below 0 where there is no constant; ATTO_E_MEMORY
 */
ATTO_API atto_status atto_zero_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                            atto_module **m);
ATTO_API atto_status atto_zero_pad2d_create(atto_device *dev, int64_t left, int64_t right,
                                            int64_t top, int64_t bottom, atto_module **m);
ATTO_API atto_status atto_constant_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                                double value, atto_module **m);
ATTO_API atto_status atto_constant_pad2d_create(atto_device *dev, int64_t left, int64_t right,
                                                int64_t top, int64_t bottom, double value,
                                                atto_module **m);
ATTO_API atto_status atto_reflection_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                                  atto_module **m);
ATTO_API atto_status atto_reflection_pad2d_create(atto_device *dev, int64_t left, int64_t right,
                                                  int64_t top, int64_t bottom, atto_module **m);
ATTO_API atto_status atto_replication_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                                   atto_module **m);
ATTO_API atto_status atto_replication_pad2d_create(atto_device *dev, int64_t left, int64_t right,
                                                   int64_t top, int64_t bottom, atto_module **m);
ATTO_API atto_status atto_circular_pad1d_create(atto_device *dev, int64_t left, int64_t right,
                                                atto_module **m);
ATTO_API atto_status atto_circular_pad2d_create(atto_device *dev, int64_t left, int64_t right,
                                                int64_t top, int64_t bottom, atto_module **m);

/**
 * Upsample: what out and options mean stands in attocl/record.h. options may be NULL.
 *
 * Returns ATTO_E_NULL; ATTO_E_ARGUMENT: a negative size, what attocl/resize.h refuses, a reserved
 *         word not 0; ATTO_E_MEMORY
 */
ATTO_API atto_status atto_upsample1d_create(atto_device *dev, int64_t out,
                                            const atto_resize_options *options, atto_module **m);
ATTO_API atto_status atto_upsample2d_create(atto_device *dev, int64_t out_h, int64_t out_w,
                                            const atto_resize_options *options, atto_module **m);

/** Children one after another, named "0", "1", ... */
ATTO_API atto_status atto_sequential_create(atto_device *dev, atto_module **m);

/** Appends a child, with a reference of its own. ATTO_E_ARGUMENT if m is no Sequential. */
ATTO_API atto_status atto_sequential_add(atto_module *m, atto_module *child);

/** Make and append in one: what the _create of that name takes. */
ATTO_API atto_status atto_sequential_linear(atto_module *m, int64_t in, int64_t out,
                                            const atto_linear_options *options);
ATTO_API atto_status atto_sequential_act(atto_module *m, atto_activation act, float dropout);
ATTO_API atto_status atto_sequential_dropout(atto_module *m, float p);
ATTO_API atto_status atto_sequential_flatten(atto_module *m, int32_t start);
ATTO_API atto_status atto_sequential_softmax(atto_module *m, atto_softmax_kind kind, int32_t dim);
ATTO_API atto_status atto_sequential_glu(atto_module *m, int32_t dim, atto_activation act);
ATTO_API atto_status atto_sequential_embedding(atto_module *m, int64_t count, int64_t dims,
                                               const atto_embedding_module_options *options);
ATTO_API atto_status atto_sequential_layer_norm(atto_module *m, atto_shape normalised,
                                                const atto_norm_options *options);
ATTO_API atto_status atto_sequential_rms_norm(atto_module *m, atto_shape normalised,
                                              const atto_norm_options *options);
ATTO_API atto_status atto_sequential_group_norm(atto_module *m, int64_t groups, int64_t channels,
                                                const atto_norm_options *options);
ATTO_API atto_status atto_sequential_instance_norm1d(
    atto_module *m, int64_t channels, const atto_instance_norm_module_options *options);
ATTO_API atto_status atto_sequential_instance_norm2d(
    atto_module *m, int64_t channels, const atto_instance_norm_module_options *options);
ATTO_API atto_status atto_sequential_batch_norm1d(atto_module *m, int64_t channels,
                                                  const atto_batch_norm_module_options *options);
ATTO_API atto_status atto_sequential_batch_norm2d(atto_module *m, int64_t channels,
                                                  const atto_batch_norm_module_options *options);
ATTO_API atto_status atto_sequential_conv1d(atto_module *m, int64_t in, int64_t out, int64_t kernel,
                                            const atto_conv_module_options *options);
ATTO_API atto_status atto_sequential_conv2d(atto_module *m, int64_t in, int64_t out,
                                            int64_t kernel_h, int64_t kernel_w,
                                            const atto_conv_module_options *options);
ATTO_API atto_status atto_sequential_conv_transpose1d(atto_module *m, int64_t in, int64_t out,
                                                      int64_t kernel,
                                                      const atto_conv_module_options *options);
ATTO_API atto_status atto_sequential_conv_transpose2d(atto_module *m, int64_t in, int64_t out,
                                                      int64_t kernel_h, int64_t kernel_w,
                                                      const atto_conv_module_options *options);
ATTO_API atto_status atto_sequential_avg_pool1d(atto_module *m, int64_t kernel,
                                                const atto_avg_pool_options *options);
ATTO_API atto_status atto_sequential_avg_pool2d(atto_module *m, int64_t kernel_h, int64_t kernel_w,
                                                const atto_avg_pool_options *options);
ATTO_API atto_status atto_sequential_max_pool1d(atto_module *m, int64_t kernel,
                                                const atto_max_pool_options *options);
ATTO_API atto_status atto_sequential_max_pool2d(atto_module *m, int64_t kernel_h, int64_t kernel_w,
                                                const atto_max_pool_options *options);
ATTO_API atto_status atto_sequential_adaptive_avg_pool1d(atto_module *m, int64_t out);
ATTO_API atto_status atto_sequential_adaptive_avg_pool2d(atto_module *m, int64_t out_h,
                                                         int64_t out_w);
ATTO_API atto_status atto_sequential_adaptive_max_pool1d(atto_module *m, int64_t out);
ATTO_API atto_status atto_sequential_adaptive_max_pool2d(atto_module *m, int64_t out_h,
                                                         int64_t out_w);

ATTO_API atto_status atto_sequential_lstm(atto_module *m, int64_t in, int64_t hidden,
                                          const atto_rnn_module_options *options);
ATTO_API atto_status atto_sequential_gru(atto_module *m, int64_t in, int64_t hidden,
                                         const atto_rnn_module_options *options);
ATTO_API atto_status atto_sequential_zero_pad1d(atto_module *m, int64_t left, int64_t right);
ATTO_API atto_status atto_sequential_zero_pad2d(atto_module *m, int64_t left, int64_t right,
                                                int64_t top, int64_t bottom);
ATTO_API atto_status atto_sequential_constant_pad1d(atto_module *m, int64_t left, int64_t right,
                                                    double value);
ATTO_API atto_status atto_sequential_constant_pad2d(atto_module *m, int64_t left, int64_t right,
                                                    int64_t top, int64_t bottom, double value);
ATTO_API atto_status atto_sequential_reflection_pad1d(atto_module *m, int64_t left, int64_t right);
ATTO_API atto_status atto_sequential_reflection_pad2d(atto_module *m, int64_t left, int64_t right,
                                                      int64_t top, int64_t bottom);
ATTO_API atto_status atto_sequential_replication_pad1d(atto_module *m, int64_t left, int64_t right);
ATTO_API atto_status atto_sequential_replication_pad2d(atto_module *m, int64_t left, int64_t right,
                                                       int64_t top, int64_t bottom);
ATTO_API atto_status atto_sequential_circular_pad1d(atto_module *m, int64_t left, int64_t right);
ATTO_API atto_status atto_sequential_circular_pad2d(atto_module *m, int64_t left, int64_t right,
                                                    int64_t top, int64_t bottom);
ATTO_API atto_status atto_sequential_upsample1d(atto_module *m, int64_t out,
                                                const atto_resize_options *options);
ATTO_API atto_status atto_sequential_upsample2d(atto_module *m, int64_t out_h, int64_t out_w,
                                                const atto_resize_options *options);

/** Where initial values come from: the seed of the device's stream, 0 when it is opened. The same
 * seed gives the same bits on every device. */
ATTO_API void atto_seed(atto_device *dev, uint64_t seed);

/** p = uniform numbers in [-bound, bound), from the device's stream. */
ATTO_API atto_status atto_param_init_uniform(atto_param *p, double bound);

/** p = normal numbers (Box-Muller). */
ATTO_API atto_status atto_param_init_normal(atto_param *p, double mean, double deviation);

/** p = one number. */
ATTO_API atto_status atto_param_init_constant(atto_param *p, double value);

#ifdef __cplusplus
}
#endif

#endif
