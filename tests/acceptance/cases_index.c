/* SPDX-License-Identifier: MIT */
/* Families of indices: index_select with embedding's padding, gather. */
#include "grid.h"
#include "oracle_index.h"

/* Where a row gets no gradient, it is this one. */
#define PADDING 0

static const char *dim_text(int value)
{
    return value == 0 ? "last" : "first";
}

static int32_t dim_of(const grid_case *c)
{
    return grid_int(c, "dim") == 0 ? c->shape.rank - 1 : 0;
}

static bool dims_differ(const grid_case *c)
{
    return c->shape.rank > 1 || grid_int(c, "dim") == 0;
}

static bool is_padded(const grid_case *c)
{
    return grid_int(c, "padding") != 0;
}

/* x, what is selected by an index of any shape, and the gradients. */
static void build(grid_scene *s, atto_shape index, atto_shape y)
{
    const grid_case *c = grid_case_of(s);
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_labels(s, "index", index, c->shape.dim[dim_of(c)], 2);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 3);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static oracle_index question_of(grid_scene *s, atto_shape index)
{
    const grid_case *c = grid_case_of(s);
    return (oracle_index){ .x = c->shape,
                           .shape = index,
                           .dim = dim_of(c),
                           .index = grid_held(s, "index"),
                           .values = grid_held(s, "x"),
                           .dy = grid_held(s, "dy") };
}

static oracle_index_answer answer_of(grid_scene *s, atto_shape y)
{
    const grid_case *c = grid_case_of(s);
    const int64_t n = grid_product(c->shape, 0, c->shape.rank);
    return (oracle_index_answer){ .y = grid_want(s, "y", grid_product(y, 0, y.rank)),
                                  .dx = grid_want(s, "dx", n),
                                  .dx_terms = grid_terms(s, "dx", n),
                                  .dx_count = grid_array(s, n) };
}

/* ---- index_select ---- */

/* Some more positions than there are rows. */
static atto_shape positions_of(const grid_case *c)
{
    return atto_shape1(c->shape.dim[dim_of(c)] + 3);
}

static atto_shape selected(const grid_case *c)
{
    atto_shape y = c->shape;
    y.dim[dim_of(c)] += 3;
    return y;
}

static void build_index_select(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    build(s, positions_of(c), selected(c));
}

static atto_status call_index_select(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_index_select_args a = { .x = grid_at(s, "x"),
                                              .index = grid_at(s, "index"),
                                              .y = grid_at(s, "y"),
                                              .dy = grid_at(s, "dy"),
                                              .dx = grid_at(s, "dx"),
                                              .dim = dim_of(c),
                                              .has_padding = is_padded(c),
                                              .padding = PADDING };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_index_select_backward(dev, &a) : atto_index_select_forward(dev, &a);
}

static void answer_index_select(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    oracle_index question = question_of(s, positions_of(c));
    oracle_index_answer a = answer_of(s, selected(c));
    question.has_padding = is_padded(c);
    question.padding = PADDING;
    oracle_index_select(&question, &a);
    grid_allow(s, "y", "index_select", 1);
    grid_allow(s, "dx", "index_select_grad", a.most > 0 ? a.most : 1);
}

const grid_family grid_index_select = {
    .name = "index_select",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "dim", 2, { 0 }, dim_text }, { "padding", 2, { 0, 1 }, NULL } },
    .exists = dims_differ,
    .build = build_index_select,
    .call = call_index_select,
    .answer = answer_index_select,
};

/* ---- gather ---- */

static void build_gather(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    build(s, c->shape, c->shape);
}

static atto_status call_gather(grid_scene *s, bool backward)
{
    const struct atto_gather_args a = { .x = grid_at(s, "x"),
                                        .index = grid_at(s, "index"),
                                        .y = grid_at(s, "y"),
                                        .dy = grid_at(s, "dy"),
                                        .dx = grid_at(s, "dx"),
                                        .dim = dim_of(grid_case_of(s)) };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_gather_backward(dev, &a) : atto_gather_forward(dev, &a);
}

static void answer_gather(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const oracle_index question = question_of(s, c->shape);
    oracle_index_answer a = answer_of(s, c->shape);
    oracle_gather(&question, &a);
    grid_allow(s, "y", "gather", 1);
    grid_allow(s, "dx", "gather_grad", a.most > 0 ? a.most : 1);
}

const grid_family grid_gather = {
    .name = "gather",
    .least_rank = 1,
    .most_rank = 4,
    .options = { { "dim", 2, { 0 }, dim_text } },
    .exists = dims_differ,
    .build = build_gather,
    .call = call_gather,
    .answer = answer_gather,
};
