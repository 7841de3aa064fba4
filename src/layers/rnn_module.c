/* SPDX-License-Identifier: MIT */
/* LSTMCell, GRUCell, LSTM and GRU as modules. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "alloc.h"
#include "layers/checks.h"
#include "layers/rnn.h"
#include "train/module.h"

/* Parameters are the module's first ones, those of a pass after another. */
typedef struct rnn_module {
    bool is_cell;
    int32_t gates; /* 4: LSTM; 3: GRU */
    int64_t in, hidden;
    int32_t layers, directions;
    bool has_bias, batch_first;
    float dropout;
} rnn_module;

/* Parameters of one pass as values; the biases lie in `bias`. */
static atto_rnn_weights weights_of(atto_module *m, atto_tape *tape, int32_t pass, atto_var *bias)
{
    const rnn_module *data = atto_module_data(m);
    const int32_t first = pass * (data->has_bias ? 4 : 2);
    atto_rnn_weights w = { .w_ih = atto_use(tape, atto__module_param_at(m, first)),
                           .w_hh = atto_use(tape, atto__module_param_at(m, first + 1)) };
    if (!data->has_bias) return w;
    bias[0] = atto_use(tape, atto__module_param_at(m, first + 2));
    bias[1] = atto_use(tape, atto__module_param_at(m, first + 3));
    w.b_ih = &bias[0];
    w.b_hh = &bias[1];
    return w;
}

static atto_var run_cell(atto_module *m, atto_tape *tape, atto_var x, const atto_rnn_states *s)
{
    const rnn_module *data = atto_module_data(m);
    atto_var bias[2], cy;
    const atto_rnn_weights w = weights_of(m, tape, 0, bias);
    const atto_var y = data->gates == 4 ? atto_lstm_cell(tape, x, s->h, s->c, &w, &cy)
                                        : atto_gru_cell(tape, x, s->h, &w);
    if (s->hy) *s->hy = y;
    if (s->cy) *s->cy = cy;
    return y;
}

static atto_var run_layers(atto_module *m, atto_tape *tape, atto_var x, const atto_rnn_states *s)
{
    const rnn_module *data = atto_module_data(m);
    atto_var bias[ATTO_RNN_MOST_PASSES][2];
    atto_rnn_weights weights[ATTO_RNN_MOST_PASSES];
    for (int32_t i = 0; i < data->layers * data->directions; i++)
        weights[i] = weights_of(m, tape, i, bias[i]);
    const atto_rnn_options options = { .layers = data->layers,
                                       .bidirectional = data->directions == 2,
                                       .batch_first = data->batch_first,
                                       .dropout = atto_module_is_training(m) ? data->dropout : 0.0f,
                                       .h = s->h,
                                       .c = s->c,
                                       .hy = s->hy,
                                       .cy = s->cy };
    return data->gates == 4 ? atto_lstm(tape, x, weights, &options)
                            : atto_gru(tape, x, weights, &options);
}

/* ---- calls ---- */

static atto_var forward(atto_module *m, atto_tape *tape, atto_var x)
{
    return atto_rnn_apply(tape, m, x, NULL);
}

static const atto_module_class classes[2][2] = {
    { { .name = "GRU", .forward = forward, .destroy = atto__free },
      { .name = "GRUCell", .forward = forward, .destroy = atto__free } },
    { { .name = "LSTM", .forward = forward, .destroy = atto__free },
      { .name = "LSTMCell", .forward = forward, .destroy = atto__free } },
};

static const atto_module_class *class_of(const rnn_module *data)
{
    return &classes[data->gates == 4][data->is_cell];
}

static bool is_recurrent(const atto_module *m)
{
    bool any = false;
    for (int32_t i = 0; i < 4; i++) any = any || atto__module_is(m, &classes[i / 2][i % 2]);
    return any;
}

static atto_status check_call(const atto_module *m, const atto_tape *tape, const atto_rnn_states *s)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "rnn_apply: m is NULL");
    ATTO_REQUIRE(is_recurrent(m), ATTO_E_ARGUMENT,
                 "rnn_apply: the module is a %s, expected an LSTM, a GRU or a cell of one",
                 atto_module_class_name(m));
    ATTO_REQUIRE(atto_module_device(m) == tape->dev, ATTO_E_DEVICE,
                 "rnn_apply: the module lives on another device than the tape");
    const rnn_module *data = atto_module_data(m);
    ATTO_REQUIRE(data->gates == 4 || (!s->c && !s->cy), ATTO_E_ARGUMENT,
                 "rnn_apply: %s is given, which a %s has not", s->c ? "c" : "cy",
                 atto_module_class_name(m));
    return atto__reserved_check("rnn_apply: states", s->reserved);
}

/* The op would blame the weights. */
static atto_status check_input(const atto_module *m, const atto_tensor *x)
{
    char text[ATTO_SHAPE_TEXT];
    const rnn_module *data = atto_module_data(m);
    ATTO_REQUIRE(x->rank < 1 || x->shape[x->rank - 1] == data->in, ATTO_E_SHAPE,
                 "%s: the input is %s, expected %" PRId64 " features in its last dimension",
                 atto_module_class_name(m), atto__shape_text(x, text), data->in);
    return ATTO_OK;
}

atto_var atto_rnn_apply(atto_tape *tape, atto_module *m, atto_var x, const atto_rnn_states *states)
{
    atto_rnn_states own = { .h = NULL };
    const atto_rnn_states *s = &own;
    atto_var h, c;
    if (states) own = *states;
    if (own.h) h = *own.h; /* where hy and cy may go */
    if (own.c) c = *own.c;
    if (own.h) own.h = &h;
    if (own.c) own.c = &c;
    if (s->hy) *s->hy = atto__no_var();
    if (s->cy) *s->cy = atto__no_var();
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    if (atto__tape_fail(tape, check_call(m, tape, s)) != ATTO_OK) return atto__no_var();
    const atto_tensor *input = atto__tape_tensor(tape, atto_module_class_name(m), x);
    if (!input || atto__tape_fail(tape, check_input(m, input)) != ATTO_OK) return atto__no_var();
    const rnn_module *data = atto_module_data(m);
    atto_scope_begin(tape);
    const atto_var y = data->is_cell ? run_cell(m, tape, x, s) : run_layers(m, tape, x, s);
    const atto_var keep[] = { y, s->hy ? *s->hy : y, s->cy ? *s->cy : y };
    atto_scope_end(tape, keep, COUNT_OF(keep));
    return y;
}

/* ---- making them ---- */

static atto_status add_one(atto_module *m, const rnn_module *data, const char *name,
                           atto_shape shape, atto_dtype dtype)
{
    atto_param *p;
    ATTO_TRY(atto_module_param(m, name, dtype, shape, &p));
    return atto_param_init_uniform(p, 1.0 / sqrt((double)data->hidden));
}

/* Of layer number i in one direction; suffix is what its names end with. */
static atto_status add_pass(atto_module *m, const rnn_module *data, int64_t in, const char *suffix,
                            atto_dtype dtype)
{
    static const char *const stems[] = { "weight_ih", "weight_hh", "bias_ih", "bias_hh" };
    const int64_t rows = data->gates * data->hidden;
    const atto_shape shapes[] = { atto_shape2(rows, in), atto_shape2(rows, data->hidden),
                                  atto_shape1(rows), atto_shape1(rows) };
    for (int32_t k = 0; k < (data->has_bias ? 4 : 2); k++) {
        char name[40];
        snprintf(name, sizeof name, "%s%s", stems[k], suffix);
        ATTO_TRY(add_one(m, data, name, shapes[k], dtype));
    }
    return ATTO_OK;
}

/* Source: PyTorch 2.11 torch.nn.RNNBase.reset_parameters, and its names. */
static atto_status add_params(atto_module *m, void *data_, const void *dtype_)
{
    const rnn_module *data = data_;
    const atto_dtype given = *(const atto_dtype *)dtype_, dtype = given ? given : ATTO_F32;
    if (data->is_cell) return add_pass(m, data, data->in, "", dtype);
    for (int32_t i = 0; i < data->layers * data->directions; i++) {
        char suffix[24];
        const int32_t layer = i / data->directions;
        const bool backwards = i % data->directions == 1;
        const int64_t in = layer == 0 ? data->in : data->directions * data->hidden;
        snprintf(suffix, sizeof suffix, "_l%d%s", (int)layer, backwards ? "_reverse" : "");
        ATTO_TRY(add_pass(m, data, in, suffix, dtype));
    }
    return ATTO_OK;
}

static atto_status check_module(const char *call, const rnn_module *data, const uint64_t *reserved)
{
    ATTO_TRY(atto__reserved_check(call, reserved));
    ATTO_REQUIRE(data->in >= 0, ATTO_E_SHAPE, "%s: in is %" PRId64 ", expected 0 or more", call,
                 data->in);
    ATTO_REQUIRE(data->hidden > 0 && data->hidden <= INT64_MAX / 8, ATTO_E_SHAPE,
                 "%s: hidden is %" PRId64 ", expected 1 to %" PRId64, call, data->hidden,
                 INT64_MAX / 8);
    ATTO_REQUIRE(data->layers > 0 && data->layers <= ATTO_RNN_MOST_LAYERS, ATTO_E_ARGUMENT,
                 "%s: layers is %d, expected 1 to %d", call, (int)data->layers,
                 ATTO_RNN_MOST_LAYERS);
    return atto__probability_check(call, data->dropout, &(atto_rng){ 0 });
}

static atto_status create(atto_device *dev, const char *call, const rnn_module *data,
                          atto_dtype dtype, const uint64_t *reserved, atto_module **m)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "%s: m is NULL", call);
    *m = NULL;
    ATTO_TRY(check_module(call, data, reserved));
    return atto__module_make(dev, call, class_of(data), data, sizeof *data, add_params, &dtype, m);
}

static atto_status create_cell(atto_device *dev, const char *call, int32_t gates, int64_t in,
                               int64_t hidden, const atto_rnn_cell_options *options,
                               atto_module **m)
{
    const atto_rnn_cell_options none = { .no_bias = false };
    const atto_rnn_cell_options *o = options ? options : &none;
    const rnn_module data = { .is_cell = true,
                              .gates = gates,
                              .in = in,
                              .hidden = hidden,
                              .layers = 1,
                              .directions = 1,
                              .has_bias = !o->no_bias };
    return create(dev, call, &data, o->dtype, o->reserved, m);
}

static atto_status create_layers(atto_device *dev, const char *call, int32_t gates, int64_t in,
                                 int64_t hidden, const atto_rnn_module_options *options,
                                 atto_module **m)
{
    const atto_rnn_module_options none = { .layers = 1 };
    const atto_rnn_module_options *o = options ? options : &none;
    const rnn_module data = { .gates = gates,
                              .in = in,
                              .hidden = hidden,
                              .layers = o->layers ? o->layers : 1,
                              .directions = o->bidirectional ? 2 : 1,
                              .has_bias = !o->no_bias,
                              .batch_first = o->batch_first,
                              .dropout = o->dropout };
    return create(dev, call, &data, o->dtype, o->reserved, m);
}

atto_status atto_lstm_cell_create(atto_device *dev, int64_t in, int64_t hidden,
                                  const atto_rnn_cell_options *options, atto_module **m)
{
    return create_cell(dev, "lstm_cell_create", 4, in, hidden, options, m);
}

atto_status atto_gru_cell_create(atto_device *dev, int64_t in, int64_t hidden,
                                 const atto_rnn_cell_options *options, atto_module **m)
{
    return create_cell(dev, "gru_cell_create", 3, in, hidden, options, m);
}

atto_status atto_lstm_create(atto_device *dev, int64_t in, int64_t hidden,
                             const atto_rnn_module_options *options, atto_module **m)
{
    return create_layers(dev, "lstm_create", 4, in, hidden, options, m);
}

atto_status atto_gru_create(atto_device *dev, int64_t in, int64_t hidden,
                            const atto_rnn_module_options *options, atto_module **m)
{
    return create_layers(dev, "gru_create", 3, in, hidden, options, m);
}
