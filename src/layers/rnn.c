/* SPDX-License-Identifier: MIT */
/* Recurrent cells: checks, the public calls, and one step on a tape. */
#include "layers/rnn.h"

#include <inttypes.h>
#include <stddef.h>

#include "layers/checks.h"

/* ---- checks ---- */

/* The shape of t with another last dimension. */
static atto_shape with_last(const atto_tensor *t, int64_t last)
{
    atto_shape shape = atto_shape_of(t->rank, t->shape);
    shape.dim[shape.rank - 1] = last;
    return shape;
}

/* Hidden features: the state's last dimension. */
static atto_status check_state(const char *what, const char *name, const atto_tensor *state,
                               int64_t gates)
{
    ATTO_REQUIRE(atto__is_float(state->dtype), ATTO_E_DTYPE,
                 "%s: %s is %s, expected f32, f16 or bf16", what, name,
                 atto_dtype_name(state->dtype));
    ATTO_REQUIRE(state->rank > 0, ATTO_E_SHAPE, "%s: %s has no dimension", what, name);
    ATTO_REQUIRE(state->shape[state->rank - 1] <= INT64_MAX / gates, ATTO_E_SHAPE,
                 "%s: %s has %" PRId64 " features, expected at most %" PRId64, what, name,
                 state->shape[state->rank - 1], INT64_MAX / gates);
    return ATTO_OK;
}

atto_status atto__lstm_cell_check(const struct atto_lstm_cell_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "lstm_cell_forward" : "lstm_cell_backward";
    ATTO_TRY(check_state(what, "c", a->c, 4));
    const atto_dtype dtype = a->c->dtype;
    const atto_shape one = atto_shape_of(a->c->rank, a->c->shape);
    const atto_shape all = with_last(a->c, 4 * one.dim[one.rank - 1]);
    const atto__expected parts[] = {
        { "x", forward ? a->x : NULL, all, dtype, false },
        { "y", forward ? a->y : NULL, one, dtype, false },
        { "cy", a->cy, one, dtype, false },
        { "gates", a->gates, all, dtype, false },
        { "dy", forward ? NULL : a->dy, one, dtype, false },
        { "dcy", forward ? NULL : a->dcy, one, dtype, false },
        { "dx", forward ? NULL : a->dx, all, dtype, false },
        { "dc", forward ? NULL : a->dc, one, dtype, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto__gru_cell_check(const struct atto_gru_cell_args *a, atto__direction direction)
{
    const bool forward = direction == ATTO_FORWARD;
    const char *what = forward ? "gru_cell_forward" : "gru_cell_backward";
    ATTO_TRY(check_state(what, "h", a->h, 4));
    const atto_dtype dtype = a->h->dtype;
    const atto_shape one = atto_shape_of(a->h->rank, a->h->shape);
    const atto_shape all = with_last(a->h, 3 * one.dim[one.rank - 1]);
    const atto__expected parts[] = {
        { "x", forward ? a->x : NULL, all, dtype, false },
        { "u", forward ? a->u : NULL, all, dtype, false },
        { "y", forward ? a->y : NULL, one, dtype, false },
        { "gates", a->gates, with_last(a->h, 4 * one.dim[one.rank - 1]), dtype, false },
        { "dy", forward ? NULL : a->dy, one, dtype, false },
        { "dx", forward ? NULL : a->dx, all, dtype, false },
        { "du", forward ? NULL : a->du, all, dtype, false },
        { "dh", forward ? NULL : a->dh, one, dtype, false },
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

/* ---- the ops ---- */

atto_status atto_lstm_cell_forward(atto_device *dev, const struct atto_lstm_cell_args *a)
{
    return atto__run(dev, ATTO_OP_LSTM_CELL, ATTO_FORWARD, a);
}

atto_status atto_lstm_cell_backward(atto_device *dev, const struct atto_lstm_cell_args *a)
{
    return atto__run(dev, ATTO_OP_LSTM_CELL, ATTO_BACKWARD, a);
}

atto_status atto_gru_cell_forward(atto_device *dev, const struct atto_gru_cell_args *a)
{
    return atto__run(dev, ATTO_OP_GRU_CELL, ATTO_FORWARD, a);
}

atto_status atto_gru_cell_backward(atto_device *dev, const struct atto_gru_cell_args *a)
{
    return atto__run(dev, ATTO_OP_GRU_CELL, ATTO_BACKWARD, a);
}

/* ---- weights ---- */

static atto_status check_bias(atto_tape *tape, const char *what, const char *name,
                              const atto_var *bias, int64_t size)
{
    if (!bias) return ATTO_OK;
    const atto_tensor *t = atto__tape_tensor(tape, what, *bias);
    return t ? atto__same_shape_check(what, name, t, atto_shape1(size)) : tape->status;
}

atto_status atto__rnn_check_weights(atto_tape *tape, const char *what, const atto_rnn_weights *w,
                                    int64_t gates, int64_t in, int64_t hidden)
{
    const atto_tensor *w_ih = atto__tape_tensor(tape, what, w->w_ih);
    const atto_tensor *w_hh = atto__tape_tensor(tape, what, w->w_hh);
    if (!w_ih || !w_hh) return tape->status;
    ATTO_TRY(atto__reserved_check(what, w->reserved));
    ATTO_TRY(atto__same_shape_check(what, "w_ih", w_ih, atto_shape2(gates * hidden, in)));
    ATTO_TRY(atto__same_shape_check(what, "w_hh", w_hh, atto_shape2(gates * hidden, hidden)));
    ATTO_TRY(check_bias(tape, what, "b_ih", w->b_ih, gates * hidden));
    return check_bias(tape, what, "b_hh", w->b_hh, gates * hidden);
}

atto_status atto__rnn_hidden(atto_tape *tape, const char *what, const atto_rnn_weights *w,
                             int64_t *hidden)
{
    ATTO_REQUIRE(w, ATTO_E_NULL, "%s: weights is NULL", what);
    const atto_tensor *t = atto__tape_tensor(tape, what, w->w_hh);
    if (!t) return tape->status;
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(t->rank == 2 && t->shape[1] > 0 && t->shape[1] <= INT64_MAX / 4, ATTO_E_SHAPE,
                 "%s: w_hh is %s, expected two dimensions, the last one with 1 or more", what,
                 atto__shape_text(t, text));
    *hidden = t->shape[1];
    return ATTO_OK;
}

atto_status atto__rnn_zeros(atto_tape *tape, atto_dtype dtype, atto_shape shape, atto_var *out)
{
    atto_tensor t;
    ATTO_TRY(atto_tensor_alloc(tape->dev, dtype, shape, &t));
    atto_status status = atto_tensor_fill(&t, 0.0);
    if (status == ATTO_OK) status = atto__tape_push(tape, &t, out);
    atto_tensor_free(&t); /* unless it was taken over */
    return status;
}

/* ---- one step on a tape ---- */

/* A step being put together: its states, given or zeros. */
typedef struct step {
    atto_tape *tape;
    const char *what;
    int64_t gates;
    atto_shape shape; /* of a state */
    atto_dtype dtype; /* of x */
} step;

static atto_status state_of(const step *s, const char *name, const atto_var *given, atto_var *out)
{
    if (!given) return atto__rnn_zeros(s->tape, s->dtype, s->shape, out);
    const atto_tensor *t = atto__tape_tensor(s->tape, s->what, *given);
    if (!t) return s->tape->status;
    ATTO_TRY(atto__same_shape_check(s->what, name, t, s->shape));
    *out = *given;
    return ATTO_OK;
}

static atto_status begin_step(step *s, atto_var x, const atto_rnn_weights *w)
{
    int64_t hidden = 0;
    const atto_tensor *t = atto__tape_tensor(s->tape, s->what, x);
    if (!t) return s->tape->status;
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(t->rank == 1 || t->rank == 2, ATTO_E_SHAPE,
                 "%s: x is %s, expected one dimension, or two with the batch", s->what,
                 atto__shape_text(t, text));
    ATTO_TRY(atto__rnn_hidden(s->tape, s->what, w, &hidden));
    s->shape = with_last(t, hidden);
    s->dtype = t->dtype;
    return atto__rnn_check_weights(s->tape, s->what, w, s->gates, t->shape[t->rank - 1], hidden);
}

static bool fails(const step *s, atto_status status)
{
    return atto__tape_fail(s->tape, status) != ATTO_OK;
}

atto_var atto_lstm_cell(atto_tape *tape, atto_var x, const atto_var *h, const atto_var *c,
                        const atto_rnn_weights *weights, atto_var *cy)
{
    step s = { .tape = tape, .what = "lstm_cell", .gates = 4 };
    atto_var old_h, old_c;
    const atto_var given = c ? *c : atto__no_var(); /* cy may be c */
    if (cy) *cy = atto__no_var();
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    if (fails(&s, cy ? ATTO_OK : atto__fail(ATTO_E_NULL, "lstm_cell: cy is NULL")) ||
        fails(&s, begin_step(&s, x, weights)))
        return atto__no_var();
    atto_scope_begin(tape);
    if (fails(&s, state_of(&s, "h", h, &old_h)) ||
        fails(&s, state_of(&s, "c", c ? &given : NULL, &old_c)))
        return atto__no_var();
    const atto_var from_x =
        atto_linear(tape, x, weights->w_ih, &(atto_linear_fused){ .bias = weights->b_ih });
    const atto_var sum =
        atto_linear(tape, old_h, weights->w_hh,
                    &(atto_linear_fused){ .bias = weights->b_hh, .residual = &from_x });
    struct atto_lstm_cell_args args = { .add_dx = false };
#define FIELD(name) offsetof(struct atto_lstm_cell_args, name)
    const atto__binding inputs[] = { { .field = FIELD(x), .v = sum },
                                     { .field = FIELD(c), .v = old_c } };
    const atto__result results[] = {
        { .field = FIELD(y), .like_inputs = true, .shape = s.shape },
        { .field = FIELD(cy), .like_inputs = true, .shape = s.shape, .also = cy, .has_grad = true },
        { .field = FIELD(gates),
          .like_inputs = true,
          .shape = atto__rnn_last(s.shape, 4),
          .only_saved = true },
    };
#undef FIELD
    const atto_var y = atto__record_op(tape, ATTO_OP_LSTM_CELL, &args, inputs, COUNT_OF(inputs),
                                       results, COUNT_OF(results));
    const atto_var keep[] = { y, *cy };
    atto_scope_end(tape, keep, COUNT_OF(keep));
    return y;
}

atto_var atto_gru_cell(atto_tape *tape, atto_var x, const atto_var *h,
                       const atto_rnn_weights *weights)
{
    step s = { .tape = tape, .what = "gru_cell", .gates = 3 };
    atto_var old_h;
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    if (fails(&s, begin_step(&s, x, weights))) return atto__no_var();
    atto_scope_begin(tape);
    if (fails(&s, state_of(&s, "h", h, &old_h))) return atto__no_var();
    const atto_var from_x =
        atto_linear(tape, x, weights->w_ih, &(atto_linear_fused){ .bias = weights->b_ih });
    const atto_var from_h =
        atto_linear(tape, old_h, weights->w_hh, &(atto_linear_fused){ .bias = weights->b_hh });
    struct atto_gru_cell_args args = { .add_dx = false };
#define FIELD(name) offsetof(struct atto_gru_cell_args, name)
    const atto__binding inputs[] = { { .field = FIELD(x), .v = from_x },
                                     { .field = FIELD(u), .v = from_h },
                                     { .field = FIELD(h), .v = old_h } };
    const atto__result results[] = {
        { .field = FIELD(y), .like_inputs = true, .shape = s.shape },
        { .field = FIELD(gates),
          .like_inputs = true,
          .shape = atto__rnn_last(s.shape, 4),
          .only_saved = true },
    };
#undef FIELD
    const atto_var y = atto__record_op(tape, ATTO_OP_GRU_CELL, &args, inputs, COUNT_OF(inputs),
                                       results, COUNT_OF(results));
    atto_scope_end(tape, &y, 1);
    return y;
}
