/* SPDX-License-Identifier: MIT */
/* Optimisers: SGD, Adam, AdamW and RMSprop with PyTorch's formulas and defaults. */
#ifndef ATTOCL_OPTIMIZER_H
#define ATTOCL_OPTIMIZER_H

#include <attocl/module.h>
#include <attocl/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * An optimiser owns the storage of what it trains. Making one moves values and gradients of all
 * trainable parameters into a few large blocks (chunks), with what the method remembers of each
 * element in f32 beside them. f16 and bf16 parameters also get a master copy in f32, which is
 * updated and then rounded into the parameter; a value written by others (atto_param_write,
 * atto_param_changed) is taken over at the next step. Frozen parameters are left alone, also when
 * they thaw later. It holds references to its parameters and its device: free in any order.
 */
typedef struct atto_optimizer atto_optimizer;

/** Parameters with a learning rate or weight decay of their own: those that meet all conditions
 * given. A parameter belongs to the first group that takes it, else to the base group. */
typedef struct atto_param_group {
    const char *prefix;        /**< of the key: "encoder."; NULL = any */
    const char *suffix;        /**< of the key: "bias"; NULL = any */
    const atto_module *module; /**< the parameters of this tree; NULL = any */
    /** Says which; NULL = all. */
    bool (*match)(void *data, const char *key, const atto_param *p);
    void *data;
    double lr_factor;      /**< times the step's learning rate; 0 = 1, ATTO_ZERO = exactly 0 */
    bool has_weight_decay; /**< weight_decay, 0 too, replaces the base group's */
    double weight_decay;
    uint64_t reserved[4]; /**< must be 0 */
} atto_param_group;

/** What is trained, and how it differs. */
typedef struct atto_param_set {
    atto_param *const *params; /**< instead of a module (which is then NULL): count parameters, */
    const char *const *keys;   /**< and their keys; NULL = "" for all */
    int32_t count;
    int32_t group_count;
    const atto_param_group *groups; /**< group_count of them; read during the call only */
} atto_param_set;

/** Options of atto_sgd_create; zero is PyTorch's default. */
typedef struct atto_sgd_options {
    double momentum;
    double dampening;
    double weight_decay; /**< added to the gradient, times the value */
    bool nesterov;       /**< needs momentum > 0 and dampening 0 */
    bool maximize;       /**< climbs instead */
    atto_param_set set;
    uint64_t reserved[4]; /**< must be 0 */
} atto_sgd_options;

/** Options of atto_adam_create. */
typedef struct atto_adam_options {
    double beta1;        /**< 0 = 0.9; ATTO_ZERO = exactly 0 */
    double beta2;        /**< 0 = 0.999; ATTO_ZERO */
    double eps;          /**< 0 = 1e-8; ATTO_ZERO */
    double weight_decay; /**< added to the gradient, times the value */
    bool maximize;
    atto_param_set set;
    uint64_t reserved[4];
} atto_adam_options;

/** Options of atto_adamw_create. */
typedef struct atto_adamw_options {
    double beta1; /**< 0 = 0.9; ATTO_ZERO = exactly 0 */
    double beta2; /**< 0 = 0.999; ATTO_ZERO */
    double eps;   /**< 0 = 1e-8; ATTO_ZERO */
    bool maximize;
    atto_param_set set;
    uint64_t reserved[4];
} atto_adamw_options;

/** Options of atto_rmsprop_create. */
typedef struct atto_rmsprop_options {
    double alpha;        /**< 0 = 0.99; ATTO_ZERO = exactly 0 */
    double eps;          /**< 0 = 1e-8; ATTO_ZERO */
    double weight_decay; /**< added to the gradient, times the value */
    double momentum;
    bool centered; /**< divides by the deviation instead of the root mean square */
    bool maximize;
    atto_param_set set;
    uint64_t reserved[4];
} atto_rmsprop_options;

/**
 * Makes an optimiser for the trainable parameters of a module; tied ones once.
 *
 *     SGD      g = dp + wd p;  b = momentum b + (1 - dampening) g  (b = g at first)
 *              p -= lr b,  Nesterov: p -= lr (g + momentum b)
 *     Adam     g = dp + wd p;  m += (1 - beta1)(g - m);  v = beta2 v + (1 - beta2) g^2
 *              p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)
 *     AdamW    p *= 1 - lr wd first, and g = dp
 *     RMSprop  g = dp + wd p;  v = alpha v + (1 - alpha) g^2;  centred: a += (1 - alpha)(g - a),
 *              v - a^2 for v;  p -= lr g / (sqrt(v) + eps),  or by a momentum buffer of that
 *
 * @param net      or NULL: then options->set.params says what
 * @param lr       >= 0; only remembered (atto_optimizer_lr): each step is told its own
 * @param options  NULL = defaults
 * @param out      NULL on failure; give it back with atto_optimizer_free
 *
 * Numerics  all arithmetic in f32; t counts the steps that a parameter had a gradient in, on the
 *           device. The root of centred RMSprop is taken of max(0, v - a^2), where PyTorch gives
 *           NaN
 * Returns   ATTO_E_NULL      out; neither net nor params, or both; one of the params
 *           ATTO_E_ARGUMENT  nothing to train; a number outside its range: lr, eps, momentum,
 *                            weight decay < 0, betas outside [0, 1), alpha outside [0, 1], NaN,
 *                            infinite as f32; Nesterov without momentum or with dampening; a
 *                            reserved word
 *           ATTO_E_STATE     a parameter belongs to another optimiser
 *           ATTO_E_DEVICE    parameters of two devices
 *           ATTO_E_MEMORY    parameters are as before
 */
ATTO_API atto_status atto_sgd_create(atto_module *net, double lr, const atto_sgd_options *options,
                                     atto_optimizer **out);
ATTO_API atto_status atto_adam_create(atto_module *net, double lr, const atto_adam_options *options,
                                      atto_optimizer **out);
/** weight_decay: PyTorch's default is 0.01. */
ATTO_API atto_status atto_adamw_create(atto_module *net, double lr, double weight_decay,
                                       const atto_adamw_options *options, atto_optimizer **out);
ATTO_API atto_status atto_rmsprop_create(atto_module *net, double lr,
                                         const atto_rmsprop_options *options, atto_optimizer **out);

/** Parameters keep their values, where they are. NULL is fine. */
ATTO_API void atto_optimizer_free(atto_optimizer *opt);

/**
 * One step with that learning rate, from the gradients since the last one. Parameters without one
 * are left alone, and their step does not count. Uses the gradients up: the next backward
 * overwrites. Enqueued, never waits, unless a kernel cannot be built and the CPU stands in.
 *
 * Returns  ATTO_E_NULL; ATTO_E_ARGUMENT (lr < 0, NaN, infinite as f32); ATTO_E_STATE (memory is
 *          mapped); ATTO_E_BUILD (a kernel, where the device's options forbid the CPU);
 *          ATTO_E_MEMORY, ATTO_E_BACKEND, ATTO_E_LOST (a launch: the gradients are used up if part
 *          of the step has been made, else as before)
 */
ATTO_API atto_status atto_optimizer_step(atto_optimizer *opt, double lr);

/** Forgets the gradients. */
ATTO_API void atto_optimizer_zero_grad(atto_optimizer *opt);

/** Elements that are trained. */
ATTO_API int64_t atto_optimizer_param_count(const atto_optimizer *opt);

/** The learning rate given at creation. */
ATTO_API double atto_optimizer_lr(const atto_optimizer *opt);

/** Changes SGD's and RMSprop's momentum, or Adam's beta1, for one-cycle training. ATTO_E_ARGUMENT for
 * a number outside its range; ATTO_E_STATE when made without momentum. */
ATTO_API atto_status atto_optimizer_set_momentum(atto_optimizer *opt, double momentum);

/**
 * From now on each step first multiplies the gradients by min(1, max_norm / (norm + 1e-6)), norm =
 * the root of the sum of their squares over all parameters. INFINITY only measures, 0 stops. As in
 * PyTorch, an infinite norm makes finite gradients 0 and infinite ones NaN, and a NaN makes all
 * NaN; with loss scaling such a step is skipped.
 *
 * Numerics  squares and their sum are f32: gradients above 1.8e19 have an infinite norm, those
 *           below 1e-23 hardly count; the same order of summation whatever the number of threads
 * Returns   ATTO_E_NULL, ATTO_E_ARGUMENT (negative or NaN), ATTO_E_MEMORY
 */
ATTO_API atto_status atto_optimizer_clip_norm(atto_optimizer *opt, double max_norm);

/** The last step's norm, before clipping and without the loss scale: one f32 of rank 0 on the device;
 * 0 before the first one measured. ATTO_E_STATE unless steps measure it. */
ATTO_API atto_status atto_optimizer_norm_tensor(const atto_optimizer *opt, atto_tensor *out);
/** The same on the host; waits. */
ATTO_API atto_status atto_optimizer_norm(const atto_optimizer *opt, float *out);

/** Options of atto_optimizer_scale_loss; zero is the default of PyTorch's GradScaler. */
typedef struct atto_loss_scale_options {
    double initial;          /**< 0 = 65536 */
    double growth;           /**< factor after growth_interval good steps; 0 = 2 */
    double backoff;          /**< factor after a bad one; 0 = 0.5 */
    int32_t growth_interval; /**< 0 = 2000 */
    int32_t good_steps;      /**< in a row already, of a run that goes on; less than the interval */
    bool off;                /**< no scaling from now on: GradScaler's enabled=False */
    uint64_t reserved[4];
} atto_loss_scale_options;

/**
 * From now on gradients are those of loss * scale: a step divides by it. If one is infinite or NaN
 * the step changes nothing and the scale shrinks, not below 2^-126; after growth_interval good
 * steps in a row it grows. Decided on the device. The caller scales the loss:
 * atto_backward_from(tape, loss, &scale) with the tensor of atto_optimizer_loss_scale, instead of
 * atto_backward(tape, loss).
 *
 * @param options  NULL = defaults
 * Returns         ATTO_E_NULL, ATTO_E_MEMORY, ATTO_E_ARGUMENT (initial < 2^-126, growth <= 1,
 *                 either infinite as f32, backoff as f32 not in (0, 1), negative interval,
 *                 good_steps outside 0 to interval - 1, reserved)
 */
ATTO_API atto_status atto_optimizer_scale_loss(atto_optimizer *opt,
                                               const atto_loss_scale_options *options);

/** The options with which a later run goes on: initial is the scale now, good_steps how many there
 * were since it changed last; off if steps do not scale. Waits. ATTO_E_NULL, and as
 * atto_tensor_read. */
ATTO_API atto_status atto_optimizer_loss_scale_options(const atto_optimizer *opt,
                                                       atto_loss_scale_options *out);

/** The current scale: one f32 of rank 0 on the device, like a loss; 1 without loss scaling. Borrowed. */
ATTO_API atto_status atto_optimizer_loss_scale(const atto_optimizer *opt, atto_tensor *out);

/** How many steps were skipped so far; waits. */
ATTO_API atto_status atto_optimizer_skipped(const atto_optimizer *opt, int64_t *out);

/**
 * What the optimiser remembers of a parameter, by PyTorch's name: "step" (one i32),
 * "momentum_buffer", "exp_avg", "exp_avg_sq", "square_avg", "grad_avg" (f32, shaped like it), and
 * "master" of f16 and bf16 ones. Borrowed; may be written, to go on with a run. ATTO_E_ARGUMENT:
 * not a parameter of this optimiser, or no such state.
 */
ATTO_API atto_status atto_optimizer_state(const atto_optimizer *opt, const atto_param *p,
                                          const char *name, atto_tensor *out);

/** The gradients as few large vectors, to be summed over machines between backward and step: how many,
 * and each. Parameters without a gradient have anything there. */
ATTO_API int32_t atto_optimizer_chunk_count(const atto_optimizer *opt);
ATTO_API atto_status atto_optimizer_grad_chunk(const atto_optimizer *opt, int32_t i,
                                               atto_tensor *out);

#ifdef __cplusplus
}
#endif

#endif
