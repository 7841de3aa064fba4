/* SPDX-License-Identifier: MIT */
/* Families lstm_cell and gru_cell: recurrent cells behind their products. A shape is that of the
 * states. */
#include "grid.h"
#include "oracle_rnn.h"

enum { GIVEN_BOTH, GIVEN_DY, GIVEN_DCY, GIVEN };

static const char *given_text(int value)
{
    static const char *const names[GIVEN] = { "both", "dy", "dcy" };
    return names[value];
}

/* The shape of so many gates. */
static atto_shape gates_of(const grid_case *c, int64_t gates)
{
    atto_shape shape = c->shape;
    shape.dim[shape.rank - 1] *= gates;
    return shape;
}

/* Gates are four times a state, and the reference's f64 ones many. */
static bool is_not_large(const grid_case *c)
{
    return grid_product(c->shape, 0, c->shape.rank) <= 1 << 24;
}

static oracle_off answer_of(grid_scene *s, const char *name, int64_t n)
{
    return (oracle_off){ grid_want(s, name, n), grid_terms(s, name, n) };
}

/* ---- LSTM ---- */

static void build_lstm(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int given = grid_int(c, "given");
    grid_input(s, "x", c->dtype, gates_of(c, 4), GRID_NORMAL, 1);
    grid_input(s, "c", c->dtype, c->shape, GRID_NORMAL, 2);
    if (given != GIVEN_DCY) grid_input(s, "dy", c->dtype, c->shape, GRID_NORMAL, 3);
    if (given != GIVEN_DY) grid_input(s, "dcy", c->dtype, c->shape, GRID_NORMAL, 4);
    grid_output(s, "y", c->dtype, c->shape, GRID_FORWARD, true);
    grid_output(s, "cy", c->dtype, c->shape, GRID_FORWARD, true);
    grid_output(s, "gates", c->dtype, gates_of(c, 4), GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, gates_of(c, 4), GRID_BACKWARD, true);
    grid_output(s, "dc", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_lstm(grid_scene *s, bool backward)
{
    const struct atto_lstm_cell_args a = { .x = grid_at(s, "x"),
                                           .c = grid_at(s, "c"),
                                           .y = grid_at(s, "y"),
                                           .cy = grid_at(s, "cy"),
                                           .gates = grid_at(s, "gates"),
                                           .dy = grid_at(s, "dy"),
                                           .dcy = grid_at(s, "dcy"),
                                           .dx = grid_at(s, "dx"),
                                           .dc = grid_at(s, "dc") };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_lstm_cell_backward(dev, &a) : atto_lstm_cell_forward(dev, &a);
}

static oracle_cell cell_of(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    return (oracle_cell){ .rows = grid_product(c->shape, 0, c->shape.rank - 1),
                          .hidden = c->shape.dim[c->shape.rank - 1],
                          .x = grid_held(s, "x"),
                          .gates = grid_held(s, "gates"),
                          .dy = grid_held(s, "dy") };
}

static void answer_lstm(grid_scene *s)
{
    const int64_t n = grid_product(grid_case_of(s)->shape, 0, grid_case_of(s)->shape.rank);
    oracle_cell o = cell_of(s);
    o.state = grid_held(s, "c");
    o.cy = grid_held(s, "cy");
    o.dcy = grid_held(s, "dcy");
    oracle_lstm_forward(&o, answer_of(s, "y", n), answer_of(s, "cy", n),
                        answer_of(s, "gates", 4 * n));
    oracle_lstm_backward(&o, answer_of(s, "dx", 4 * n), answer_of(s, "dc", n));
    static const char *const names[] = { "y", "cy", "gates", "dx", "dc" };
    for (int i = 0; i < COUNT_OF(names); i++)
        grid_allow(s, names[i], i < 3 ? "lstm_cell" : "lstm_cell_grad", 1);
}

const grid_family grid_lstm_cell = {
    .name = "lstm_cell",
    .least_rank = 2,
    .most_rank = 3,
    .options = { { "given", GIVEN, { 0 }, given_text } },
    .exists = is_not_large,
    .build = build_lstm,
    .call = call_lstm,
    .answer = answer_lstm,
};

/* ---- GRU ---- */

static void build_gru(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    grid_input(s, "x", c->dtype, gates_of(c, 3), GRID_NORMAL, 1);
    grid_input(s, "u", c->dtype, gates_of(c, 3), GRID_NORMAL, 2);
    grid_input(s, "h", c->dtype, c->shape, GRID_NORMAL, 3);
    grid_input(s, "dy", c->dtype, c->shape, GRID_NORMAL, 4);
    grid_output(s, "y", c->dtype, c->shape, GRID_FORWARD, true);
    grid_output(s, "gates", c->dtype, gates_of(c, 4), GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, gates_of(c, 3), GRID_BACKWARD, true);
    grid_output(s, "du", c->dtype, gates_of(c, 3), GRID_BACKWARD, true);
    grid_output(s, "dh", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_gru(grid_scene *s, bool backward)
{
    const struct atto_gru_cell_args a = { .x = grid_at(s, "x"),
                                          .u = grid_at(s, "u"),
                                          .h = grid_at(s, "h"),
                                          .y = grid_at(s, "y"),
                                          .gates = grid_at(s, "gates"),
                                          .dy = grid_at(s, "dy"),
                                          .dx = grid_at(s, "dx"),
                                          .du = grid_at(s, "du"),
                                          .dh = grid_at(s, "dh") };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_gru_cell_backward(dev, &a) : atto_gru_cell_forward(dev, &a);
}

static void answer_gru(grid_scene *s)
{
    const int64_t n = grid_product(grid_case_of(s)->shape, 0, grid_case_of(s)->shape.rank);
    oracle_cell o = cell_of(s);
    o.u = grid_held(s, "u");
    o.state = grid_held(s, "h");
    oracle_gru_forward(&o, answer_of(s, "y", n), answer_of(s, "gates", 4 * n));
    oracle_gru_backward(&o, answer_of(s, "dx", 3 * n), answer_of(s, "du", 3 * n),
                        answer_of(s, "dh", n));
    static const char *const names[] = { "y", "gates", "dx", "du", "dh" };
    for (int i = 0; i < COUNT_OF(names); i++)
        grid_allow(s, names[i], i < 2 ? "gru_cell" : "gru_cell_grad", 1);
}

const grid_family grid_gru_cell = {
    .name = "gru_cell",
    .least_rank = 2,
    .most_rank = 3,
    .exists = is_not_large,
    .build = build_gru,
    .call = call_gru,
    .answer = answer_gru,
};
