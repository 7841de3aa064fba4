/* SPDX-License-Identifier: MIT */
/* The tape: records what is computed, and runs it backwards. */
#ifndef ATTOCL_TAPE_H
#define ATTOCL_TAPE_H

#include <attocl/param.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A tape belongs to one device and records one step at a time: recording calls, atto_backward,
 * atto_tape_end, and the next step. It owns every value of the step. Recording calls return an
 * atto_var and never fail loudly: the first error sticks to the tape, later calls do nothing, and
 * atto_backward, atto_tape_status and atto_tape_end return it, with its message.
 */
typedef struct atto_tape atto_tape;

/** A value of the step: a small handle, copied freely. It is dead after the step, and after the scope
 * in which it was made unless it was returned from it; using a dead one is ATTO_E_STATE. */
typedef struct atto_var {
    int32_t slot;
    uint32_t generation; /**< unique over all tapes; 0 is none */
} atto_var;

/**
 * @param out  NULL on failure; give it back with atto_tape_free
 * Returns     ATTO_E_NULL, ATTO_E_MEMORY
 */
ATTO_API atto_status atto_tape_create(atto_device *dev, atto_tape **out);

/** Ends the step and gives everything back. NULL is fine. */
ATTO_API void atto_tape_free(atto_tape *tape);

ATTO_API atto_device *atto_tape_device(const atto_tape *tape);

/** The first error of this step, whose message becomes the thread's last. */
ATTO_API atto_status atto_tape_status(const atto_tape *tape);

/**
 * Makes a failure stick to the tape as that of a recording call does, unless there is one already:
 * for recording functions of your own.
 *
 * @param status   ATTO_OK does nothing
 * @param message  NULL = the thread's last error, which the call that failed has left
 * Returns         status; ATTO_E_NULL without a tape
 */
ATTO_API atto_status atto_tape_fail(atto_tape *tape, atto_status status, const char *message);

/** Ends the step: every value of it dies, and the tape is fresh. Gradients of parameters stay. Does
 * not wait. Returns the step's first error, or ATTO_E_INDEX (once) if a kernel of this or an
 * earlier step found bad data and word of it has come back; atto_device_sync always knows. */
ATTO_API atto_status atto_tape_end(atto_tape *tape);

/** Whether what follows is recorded for backward (true in a new tape). Without, values live to the end
 * of their scope only. Returns what it was. */
ATTO_API bool atto_tape_record(atto_tape *tape, bool on);

/**
 * Mixed precision for what is recorded from now on, over the ends of steps, until it is called
 * again. Each recorded op brings its float inputs to a dtype of its class (docs/autocast.md):
 *
 *     LOW     f16 or bf16: linear, matmul, convolutions, attention, LSTM and GRU
 *     F32     f32: softmax, layer and group norm, losses, sums and means, exp, log, pow, ...
 *     WIDEST  the widest of its inputs: arithmetic with two tensors, where, concat
 *     FLOW    what they are: activations, dropout, pooling, batch norm, embedding, rope, pad, resize
 *
 * Casts are recorded: gradients arrive in the dtype of what was cast, those of f32 parameters in
 * f32. A value is cast once for each dtype, a parameter once for each change of it; an optimiser
 * writes the parameters' casts in its own launch from then on. Integers are left alone, and so are
 * the biases, weights and running statistics in f32 that an op takes beside low inputs; so are
 * atto_record and ops on tensors (atto_linear_forward, ...). Backward runs in the dtypes of the
 * forward. What a module's forward switches ends with atto_apply. A cast parameter takes half its
 * size more memory.
 *
 * @param dtype  ATTO_F16 or ATTO_BF16; ATTO_F32 switches it off, as in a new tape. f16 needs
 *               atto_optimizer_scale_loss
 * Returns       ATTO_E_NULL; ATTO_E_DTYPE (integers); ATTO_E_STATE (in a backward function)
 * Source        Micikevicius et al. 2018, arXiv:1710.03740; the lists are those of PyTorch
 */
ATTO_API atto_status atto_tape_autocast(atto_tape *tape, atto_dtype dtype);

/** What it was called with last: to switch back, or for recording functions of your own. */
ATTO_API atto_dtype atto_tape_autocast_dtype(const atto_tape *tape);

/** Where the tape's random numbers (dropout) start. A new tape has seed 0, offset 0; the stream goes
 * on from step to step. */
ATTO_API void atto_tape_seed(atto_tape *tape, uint64_t seed, uint64_t offset);

/* ---- values ---- */

/** Host data as a value without gradient; data is dense and has been read when the call returns. */
ATTO_API atto_var atto_input(atto_tape *tape, atto_dtype dtype, atto_shape shape, const void *data);

/** A tensor of the caller's as a value. It is not copied, and must not change until the step is over;
 * its buffer stays alive that long, whoever frees it. watch: backward computes its gradient, which
 * atto_var_grad gives. The tape's error otherwise: ATTO_E_NULL, ATTO_E_DTYPE (integers watched),
 * ATTO_E_DEVICE, and those of any view. */
ATTO_API atto_var atto_borrow(atto_tape *tape, const atto_tensor *t, bool watch);

/** A parameter as a value; its gradient goes to the parameter. */
ATTO_API atto_var atto_use(atto_tape *tape, atto_param *p);

/** The tensor behind a value, until the value dies. ATTO_E_NULL, ATTO_E_STATE (a dead value, or the
 * tape's own error). */
ATTO_API atto_status atto_var_tensor(atto_tape *tape, atto_var v, atto_tensor *out);

/** The gradient of a watched value, until atto_tape_end, or of the parameter behind an atto_use.
 * ATTO_E_STATE if there is none. */
ATTO_API atto_status atto_var_grad(atto_tape *tape, atto_var v, atto_tensor *out);

/** A value's contents to the host, in its dtype; waits. */
ATTO_API atto_status atto_var_read(atto_tape *tape, atto_var v, void *data);

/** The value's tensor beyond the end of the step; release it with atto_tensor_free. What a reshape made
 * may share its source's memory. ATTO_E_ARGUMENT: a borrowed tensor or a parameter, which have
 * owners. */
ATTO_API atto_status atto_keep(atto_tape *tape, atto_var v, atto_tensor *out);

/** Values made between the two die at the end, except those in keep and what backward needs. The tape's
 * error otherwise: ATTO_E_STATE (no scope is open), ATTO_E_ARGUMENT (count < 0), ATTO_E_NULL. */
ATTO_API void atto_scope_begin(atto_tape *tape);
ATTO_API void atto_scope_end(atto_tape *tape, const atto_var *keep, int32_t count);

/**
 * Computes the gradients of a scalar value (one element) with respect to every parameter and
 * watched value that it came from. Each recorded op is run backwards once and then forgotten with
 * what it had saved, so a second backward over the same op is ATTO_E_STATE. After a failure,
 * parameters have the gradients that were finished: forget them (atto_optimizer_zero_grad) before
 * the step is tried again.
 *
 * Returns the step's first error; ATTO_E_SHAPE (loss is not one element), ATTO_E_STATE (a parameter
 *         was changed since its forward, a dead value)
 */
ATTO_API atto_status atto_backward(atto_tape *tape, atto_var loss);

/** The same from any value and its gradient, which is like the value; ATTO_E_SHAPE if it is not. */
ATTO_API atto_status atto_backward_from(atto_tape *tape, atto_var v, const atto_tensor *gradient);

/* ---- ops of users ---- */

typedef struct atto_node atto_node;

/** What a recorded op does backwards. */
typedef struct atto_op_class {
    const char *name;

    /** Runs once. The functions below give the tensors; returns the first failure. It runs ops and
     * launches kernels; recording calls, atto_backward and atto_tape_end are ATTO_E_STATE here. */
    atto_status (*backward)(atto_tape *tape, atto_node *node);
} atto_op_class;

#define ATTO_NODE_INPUTS 8

/**
 * Records an op that has been run: output is what it computed from the inputs.
 *
 * @param cls       stays alive until the end of the step
 * @param args      copied: what backward needs besides tensors
 * @param inputs    count of them, at most ATTO_NODE_INPUTS
 * @param output    taken over: the tape frees it; zeroed on return
 * Returns          the output as a value
 */
ATTO_API atto_var atto_record(atto_tape *tape, const atto_op_class *cls, const void *args,
                              size_t args_bytes, const atto_var *inputs, int32_t count,
                              atto_tensor *output);

/* For backward functions: the bytes of args; an input's tensor; the output's tensor and
 * gradient. */
ATTO_API const void *atto_node_args(const atto_tape *tape, const atto_node *node);
ATTO_API const atto_tensor *atto_node_input(const atto_tape *tape, const atto_node *node,
                                            int32_t i);
ATTO_API const atto_tensor *atto_node_output(const atto_tape *tape, const atto_node *node);
ATTO_API const atto_tensor *atto_node_output_grad(const atto_tape *tape, const atto_node *node);

/** Where input i's gradient goes: NULL if it is not wanted; with *add it is added to. ATTO_E_NULL,
 * ATTO_E_ARGUMENT (no such input), ATTO_E_MEMORY. */
ATTO_API atto_status atto_node_input_grad(atto_tape *tape, const atto_node *node, int32_t i,
                                          const atto_tensor **out, bool *add);

#ifdef __cplusplus
}
#endif

#endif
