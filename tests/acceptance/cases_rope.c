/* SPDX-License-Identifier: MIT */
/* Family rope: heads turned by tables of any numbers. */
#include "grid.h"
#include "oracle_rope.h"

/* Rows of the tables in front of the first position. */
#define OFFSET 3

static const char *pairing_text(int value)
{
    return value == 0 ? "halves" : "neighbours";
}

static const char *turned_text(int value)
{
    return value == 0 ? "all" : "part";
}

static const char *position_text(int value)
{
    static const char *const names[] = { "offset", "shared", "each" };
    return names[value];
}

static bool has_pairs(const grid_case *c)
{
    return c->shape.dim[3] >= 4;
}

static int64_t pairs_of(const grid_case *c)
{
    return c->shape.dim[3] / (grid_int(c, "turned") == 0 ? 2 : 4);
}

static int64_t rows_of(const grid_case *c)
{
    return c->shape.dim[2] + OFFSET;
}

static void build_rope(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape table = atto_shape2(rows_of(c), pairs_of(c));
    const int64_t b = c->shape.dim[0], l = c->shape.dim[2];
    const int position = grid_int(c, "position");
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, c->shape, GRID_NORMAL, 2);
    grid_input(s, "cos", ATTO_F32, table, GRID_NORMAL, 3);
    grid_input(s, "sin", ATTO_F32, table, GRID_NORMAL, 4);
    if (position > 0)
        grid_labels(s, "position", position == 1 ? atto_shape1(l) : atto_shape2(b, l), rows_of(c),
                    5);
    grid_output(s, "y", c->dtype, c->shape, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_rope(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const struct atto_rope_args a = { .x = grid_at(s, "x"),
                                      .cos = grid_at(s, "cos"),
                                      .sin = grid_at(s, "sin"),
                                      .position = grid_at(s, "position"),
                                      .y = grid_at(s, "y"),
                                      .dy = grid_at(s, "dy"),
                                      .dx = grid_at(s, "dx"),
                                      .pairing = grid_int(c, "pairing") == 0 ? ATTO_ROPE_HALVES
                                                                             : ATTO_ROPE_NEIGHBOURS,
                                      .offset = grid_int(c, "position") == 0 ? OFFSET : 0 };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_rope_backward(dev, &a) : atto_rope_forward(dev, &a);
}

static void answer_rope(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const int64_t *shape = c->shape.dim, n = grid_product(c->shape, 0, 4);
    const oracle_rope q = { .batches = shape[0],
                            .heads = shape[1],
                            .length = shape[2],
                            .d = shape[3],
                            .pairs = pairs_of(c),
                            .rows = rows_of(c),
                            .neighbours = grid_int(c, "pairing") == 1,
                            .offset = OFFSET,
                            .position_rank = grid_int(c, "position"),
                            .cos = grid_held(s, "cos"),
                            .sin = grid_held(s, "sin"),
                            .position = grid_held(s, "position") };
    oracle_rope_forward(&q, grid_held(s, "x"), grid_want(s, "y", n), grid_terms(s, "y", n));
    oracle_rope_backward(&q, grid_held(s, "dy"), grid_want(s, "dx", n), grid_terms(s, "dx", n));
    grid_allow(s, "y", "rope", 1);
    grid_allow(s, "dx", "rope_grad", 1);
}

const grid_family grid_rope = {
    .name = "rope",
    .least_rank = 4,
    .most_rank = 4,
    .options = { { "pairing", 2, { 0 }, pairing_text },
                 { "turned", 2, { 0 }, turned_text },
                 { "position", 3, { 0 }, position_text } },
    .exists = has_pairs,
    .build = build_rope,
    .call = call_rope,
    .answer = answer_rope,
};
