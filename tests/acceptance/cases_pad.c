/* SPDX-License-Identifier: MIT */
/* Family pad: elements around the last dimension of three, the last two of four. */
#include <string.h>

#include "grid.h"
#include "oracle_pad.h"

static const char *mode_text(int value)
{
    static const char *const names[] = {
#define X(NAME, name) #name,
        ATTO_PAD_TABLE(X)
#undef X
    };
    return names[value];
}

static oracle_pad pad_of(const grid_case *c)
{
    const int64_t amount = grid_int(c, "amount");
    oracle_pad q = { .x = c->shape, .mode = (atto_pad_kind)grid_int(c, "mode"), .value = 0.5 };
    for (int32_t d = 2; d < c->shape.rank; d++) {
        q.before[d] = amount;
        q.after[d] = amount - (d == 2); /* not the same on all sides */
    }
    return q;
}

/* As much as every mode takes. */
static bool has_room(const grid_case *c)
{
    const int64_t amount = grid_int(c, "amount");
    for (int32_t d = 2; d < c->shape.rank; d++)
        if (c->shape.dim[d] <= amount) return false;
    return true;
}

static void build_pad(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const oracle_pad q = pad_of(c);
    const atto_shape y = oracle_pad_shape(&q);
    grid_input(s, "x", c->dtype, c->shape, GRID_NORMAL, 1);
    grid_input(s, "dy", c->dtype, y, GRID_NORMAL, 2);
    grid_output(s, "y", c->dtype, y, GRID_FORWARD, true);
    grid_output(s, "dx", c->dtype, c->shape, GRID_BACKWARD, true);
}

static atto_status call_pad(grid_scene *s, bool backward)
{
    const oracle_pad q = pad_of(grid_case_of(s));
    struct atto_pad_args a = { .x = grid_at(s, "x"),
                               .y = grid_at(s, "y"),
                               .dy = grid_at(s, "dy"),
                               .dx = grid_at(s, "dx"),
                               .mode = q.mode,
                               .value = q.value };
    atto_device *dev = atto_tensor_device(a.x);
    memcpy(a.before, q.before, sizeof a.before);
    memcpy(a.after, q.after, sizeof a.after);
    return backward ? atto_pad_backward(dev, &a) : atto_pad_forward(dev, &a);
}

static void answer_pad(grid_scene *s)
{
    const grid_case *c = grid_case_of(s);
    const oracle_pad q = pad_of(c);
    const atto_shape y = oracle_pad_shape(&q);
    const int64_t n = grid_product(c->shape, 0, c->shape.rank), m = grid_product(y, 0, y.rank);
    oracle_pad_forward(&q, grid_held(s, "x"), grid_want(s, "y", m));
    const int64_t most =
        oracle_pad_backward(&q, grid_held(s, "dy"), grid_want(s, "dx", n), grid_terms(s, "dx", n));
    grid_allow(s, "y", "pad", 1);
    grid_allow(s, "dx", "pad_grad", most);
}

const grid_family grid_pad = {
    .name = "pad",
    .least_rank = 3,
    .most_rank = 4,
    .options = { { "mode", ATTO_PAD_COUNT, { 0 }, mode_text }, { "amount", 2, { 1, 3 }, NULL } },
    .exists = has_room,
    .build = build_pad,
    .call = call_pad,
    .answer = answer_pad,
};
