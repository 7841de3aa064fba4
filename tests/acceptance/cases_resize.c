/* SPDX-License-Identifier: MIT */
/* Family resize: along the last dimension of three, the last two of four. */
#include "grid.h"
#include "oracle_resize.h"

enum { TWICE, HALF, THIRTEEN, SCALED };
#define SCALE 1.7

static const char *mode_text(int value)
{
    static const char *const names[] = { "nearest", "linear", "aligned" };
    return names[value];
}

static const char *to_text(int value)
{
    static const char *const names[] = { "twice", "half", "thirteen", "scaled" };
    return names[value];
}

static int64_t size_of(const grid_case *c, int64_t n)
{
    switch (grid_int(c, "to")) {
    case TWICE:
        return 2 * n;
    case HALF:
        return n > 1 ? n / 2 : 1;
    case THIRTEEN:
        return 13;
    default:
        return (int64_t)((double)n * SCALE);
    }
}

static atto_shape result_of(const grid_case *c)
{
    atto_shape y = c->shape;
    for (int32_t d = 2; d < y.rank; d++) y.dim[d] = size_of(c, y.dim[d]);
    return y;
}

static void build_resize(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape y = result_of(c);
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_resize(grid_scene *s, bool backward)
{
    const grid_case *c = grid_case_of(s);
    const double scale = grid_int(c, "to") == SCALED ? SCALE : 0.0;
    const int mode = grid_int(c, "mode");
    const int32_t dims = c->shape.rank - 2;
    const struct atto_resize_args a = { .x = grid_at(s, "x"),
                                        .y = grid_at(s, "y"),
                                        .dy = grid_at(s, "dy"),
                                        .dx = grid_at(s, "dx"),
                                        .mode =
                                            mode == 0 ? ATTO_RESIZE_NEAREST : ATTO_RESIZE_LINEAR,
                                        .align_corners = mode == 2,
                                        .dims = dims,
                                        .scale = { scale, dims == 2 ? scale : 0.0 } };
    atto_device *dev = atto_tensor_device(a.x);
    return backward ? atto_resize_backward(dev, &a) : atto_resize_forward(dev, &a);
}

static void answer_resize(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const atto_shape y = result_of(c);
    const int32_t rank = y.rank;
    const double scale = grid_int(c, "to") == SCALED ? SCALE : 0.0;
    const oracle_resize q = { .mode = grid_int(c, "mode") == 0 ? ATTO_RESIZE_NEAREST
                                                               : ATTO_RESIZE_LINEAR,
                              .align_corners = grid_int(c, "mode") == 2,
                              .scale = { rank == 4 ? scale : 0.0, scale },
                              .planes = c->shape.dim[0] * c->shape.dim[1],
                              .h = rank == 4 ? c->shape.dim[2] : 1,
                              .w = c->shape.dim[rank - 1],
                              .oh = rank == 4 ? y.dim[2] : 1,
                              .ow = y.dim[rank - 1] };
    const int64_t n = grid_product(c->shape, 0, rank), m = grid_product(y, 0, rank);
    oracle_resize_forward(&q, grid_held(s, "x"), grid_want(s, "y", m), grid_terms(s, "y", m));
    oracle_resize_backward(&q, grid_held(s, "dy"), grid_want(s, "dx", n), grid_terms(s, "dx", n));
    grid_allow(s, "y", "resize", 1);
    grid_allow(s, "dx", "resize_grad", 1);
}

const grid_family grid_resize = {
    .name = "resize",
    .least_rank = 3,
    .most_rank = 4,
    .options = { { "mode", 3, { 0 }, mode_text }, { "to", 4, { 0 }, to_text } },
    .build = build_resize,
    .call = call_resize,
    .answer = answer_resize,
};
