/* SPDX-License-Identifier: MIT */
/* Families for --bits alone, which the tests judge: reductions, functions of two elements. */
#include "grid.h"

/* ---- reduce ---- */

static const char *reduce_text(int value)
{
    return atto_reduce_name((atto_reduce_kind)value);
}

static const char *dim_text(int value)
{
    return value == 0 ? "last" : "first";
}

static int32_t dim_of(const grid_case *c)
{
    return grid_int(c, "dim") == 0 ? c->shape.rank - 1 : 0;
}

static void build_reduce(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    atto_shape y = c->shape;
    y.dim[dim_of(c)] = 1;
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_reduce(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_reduce_args a = { .x = grid_at(s, "x"),
                                        .y = grid_at(s, "y"),
                                        .dy = grid_at(s, "dy"),
                                        .dx = grid_at(s, "dx"),
                                        .kind = (atto_reduce_kind)grid_int(c, "kind"),
                                        .dims = { dim_of(c) },
                                        .dim_count = 1 };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_reduce_backward(dev, &a) : atto_reduce_forward(dev, &a);
}

const grid_family grid_reduce = {
    .name = "reduce",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "kind", ATTO_REDUCE_MIN + 1, { 0 }, reduce_text },
                 { "dim", 2, { 0 }, dim_text } },
    .build = build_reduce,
    .call = call_reduce,
};

/* ---- binary: b repeats along the first dimension, so that db is a sum ---- */

static const char *binary_text(int value)
{
    return atto_binary_name((atto_binary_kind)value);
}

static void build_binary(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    atto_shape b = c->shape;
    b.dim[0] = 1;
    grid_input(s, "a", c->dtype, c->shape, GRID_POSITIVE, 1);
    grid_input(s, "b", c->dtype, b, GRID_POSITIVE, 3);
    grid_input(s, "dy", c->dtype, c->shape, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, c->shape, GRID_FORWARD, true);
    grid_output(s, "da", c->dtype, c->shape, GRID_BACKWARD, true);
    grid_output(s, "db", c->dtype, b, GRID_BACKWARD, true);
}

static atto_status call_binary(grid_scene *s, bool backward)
{
    const struct atto_binary_args a = { .a = grid_at(s, "a"),
                                        .b = grid_at(s, "b"),
                                        .y = grid_at(s, "y"),
                                        .dy = grid_at(s, "dy"),
                                        .da = grid_at(s, "da"),
                                        .db = grid_at(s, "db"),
                                        .kind =
                                            (atto_binary_kind)grid_int(grid_case_of(s), "kind") };
    atto_device *dev = atto_tensor_device(a.a);
    return backward ? atto_binary_backward(dev, &a) : atto_binary_forward(dev, &a);
}

const grid_family grid_binary = {
    .name = "binary",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "kind", ATTO_BINARY_COUNT, { 0 }, binary_text } },
    .build = build_binary,
    .call = call_binary,
};
