/* SPDX-License-Identifier: MIT */
/* Convolution: checks, the public calls and recording functions. Modules: conv_module.c. */
#include "layers/conv.h"

#include <inttypes.h>
#include <stddef.h>

#include "layers/checks.h"

static const char *call_name(atto__direction direction)
{
    return direction == ATTO_FORWARD ? "conv_forward" : "conv_backward";
}

/* ---- windows ---- */

static atto_status check_axis(const char *what, const atto_conv_window *v, int32_t at)
{
    const struct {
        const char *name;
        int64_t value, least;
    } numbers[] = { { "stride", v->stride[at], 1 },
                    { "padding", v->padding[at], 0 },
                    { "padding_after", v->padding_after[at], 0 },
                    { "dilation", v->dilation[at], 1 } };
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        ATTO_REQUIRE(numbers[i].value >= numbers[i].least && numbers[i].value <= ATTO_CONV_MOST,
                     ATTO_E_ARGUMENT, "%s: %s[%d] is %" PRId64 ", expected %d to %d", what,
                     numbers[i].name, (int)at, numbers[i].value, (int)numbers[i].least,
                     ATTO_CONV_MOST);
    return ATTO_OK;
}

static atto_status check_window(const char *what, const atto_conv_window *v)
{
    ATTO_REQUIRE(v->dims == 1 || v->dims == 2, ATTO_E_ARGUMENT,
                 "%s: window.dims is %d, expected 1 or 2", what, (int)v->dims);
    ATTO_REQUIRE(v->groups >= 1 && v->groups <= ATTO_CONV_MOST, ATTO_E_ARGUMENT,
                 "%s: groups is %" PRId64 ", expected 1 to %d", what, v->groups, ATTO_CONV_MOST);
    for (int32_t at = 0; at < v->dims; at++) ATTO_TRY(check_axis(what, v, at));
    return ATTO_OK;
}

/* Elements of the big image that a window reaches over. */
static int64_t reach_of(const atto_conv_window *v, int32_t at, int64_t kernel)
{
    return v->dilation[at] * (kernel - 1) + 1;
}

/* Outputs of a convolution along an axis of in elements: 0 where there are none. */
static int64_t outputs_of(const atto_conv_window *v, int32_t at, int64_t in, int64_t kernel)
{
    const int64_t room = in + v->padding[at] + v->padding_after[at] - reach_of(v, at, kernel);
    return room < 0 ? 0 : room / v->stride[at] + 1;
}

/* The least outputs of a transposed one. */
static int64_t spread_of(const atto_conv_window *v, int32_t at, int64_t in, int64_t kernel)
{
    return (in - 1) * v->stride[at] - v->padding[at] - v->padding_after[at] +
           reach_of(v, at, kernel);
}

static int64_t greater(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- shapes ---- */

static atto_status check_filter(const char *what, const char *name, const atto_tensor *w,
                                const atto_conv_window *v)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(w->rank == v->dims + 2, ATTO_E_SHAPE, "%s: %s is %s, expected [%s, %s]", what,
                 name, atto__shape_text(w, text), v->transposed ? "C, O / groups" : "O, C / groups",
                 v->dims == 2 ? "KH, KW" : "K");
    for (int32_t d = 2; d < w->rank; d++)
        ATTO_REQUIRE(w->shape[d] >= 1 && w->shape[d] <= ATTO_CONV_MOST, ATTO_E_SHAPE,
                     "%s: dimension %d of %s, %s, is %s", what, (int)d, name,
                     atto__shape_text(w, text), w->shape[d] < 1 ? "empty" : "2^31 or more");
    ATTO_REQUIRE(w->shape[1] <= INT64_MAX / v->groups && w->shape[0] % v->groups == 0,
                 ATTO_E_ARGUMENT,
                 "%s: %s is %s: %" PRId64 " groups do not divide its %" PRId64 " channels", what,
                 name, atto__shape_text(w, text), v->groups, w->shape[0]);
    return ATTO_OK;
}

/* Channels that a filter reads, and those it writes. */
static int64_t channels_in(const atto_conv_window *v, const atto_tensor *w)
{
    return v->transposed ? w->shape[0] : w->shape[1] * v->groups;
}

static int64_t channels_out(const atto_conv_window *v, const atto_tensor *w)
{
    return v->transposed ? w->shape[1] * v->groups : w->shape[0];
}

/* What y's shape is for x and w, without more outputs than a transposed convolution must have. */
static atto_status shape_of_outputs(const char *what, const atto_conv_window *v,
                                    const atto_tensor *x, const atto_tensor *w, atto_shape *out)
{
    char text[ATTO_SHAPE_TEXT], w_text[ATTO_SHAPE_TEXT];
    const int32_t first = x->rank - v->dims;
    *out = atto_shape_of(x->rank, x->shape);
    ATTO_REQUIRE(x->shape[first - 1] == channels_in(v, w), ATTO_E_SHAPE,
                 "%s: x is %s beside w of %s in %" PRId64 " groups, expected %" PRId64 " channels",
                 what, atto__shape_text(x, text), atto__shape_text(w, w_text), v->groups,
                 channels_in(v, w));
    out->dim[first - 1] = channels_out(v, w);
    for (int32_t at = 0; at < v->dims; at++) {
        const int64_t in = x->shape[first + at], kernel = w->shape[2 + at];
        int64_t *size = &out->dim[first + at];
        *size = v->transposed ? spread_of(v, at, in, kernel) : outputs_of(v, at, in, kernel);
    }
    return ATTO_OK;
}

/* Somebody who pads both sides may have named one. */
static atto_status check_padding(const char *what, const char *name, const atto_conv_window *v,
                                 const atto_tensor *y, const atto_shape *out)
{
    const int32_t first = out->rank - v->dims;
    for (int32_t at = 0; y->rank == out->rank && at < v->dims; at++)
        ATTO_REQUIRE(y->shape[first + at] == out->dim[first + at] ||
                         v->padding[at] == v->padding_after[at],
                     ATTO_E_SHAPE,
                     "%s: dimension %d of %s is %" PRId64 ", expected %" PRId64
                     " where padding is %" PRId64 " and padding_after %" PRId64,
                     what, (int)(first + at), name, y->shape[first + at], out->dim[first + at],
                     v->padding[at], v->padding_after[at]);
    return ATTO_OK;
}

static atto_status check_outputs(const char *what, const atto_conv_window *v, const atto_tensor *x,
                                 const atto_tensor *w, const atto_shape *out)
{
    const int32_t first = x->rank - v->dims;
    for (int32_t at = 0; at < v->dims; at++)
        ATTO_REQUIRE(out->dim[first + at] >= 1, ATTO_E_ARGUMENT,
                     "%s: output size too small: dimension %d of x has %" PRId64
                     " elements, with kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64
                     " and %" PRId64 ", and dilation %" PRId64 " there is no output",
                     what, (int)(first + at), x->shape[first + at], w->shape[2 + at], v->stride[at],
                     v->padding[at], v->padding_after[at], v->dilation[at]);
    return ATTO_OK;
}

/* A transposed convolution has as many outputs as y, within limits. */
static atto_status take_more_outputs(const char *what, const char *name, const atto_conv_window *v,
                                     const atto_tensor *y, atto_shape *out)
{
    const int32_t first = out->rank - v->dims;
    for (int32_t at = 0; v->transposed && y->rank == out->rank && at < v->dims; at++) {
        const int64_t more = y->shape[first + at] - out->dim[first + at];
        const int64_t most = greater(v->stride[at], v->dilation[at]) - 1;
        ATTO_REQUIRE(more >= 0 && more <= most, ATTO_E_SHAPE,
                     "%s: dimension %d of %s is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                     what, (int)(first + at), name, y->shape[first + at], out->dim[first + at],
                     out->dim[first + at] + most);
        out->dim[first + at] += more;
    }
    return ATTO_OK;
}

/* ---- checks ---- */

/* The tensors of a direction: x or dx, w or dw, y or dy. */
typedef struct scene {
    const char *x_name, *w_name, *y_name;
    const atto_tensor *x, *w, *y;
} scene;

static atto_status shape_of_scene(const char *what, const scene *s, const atto_conv_window *v,
                                  atto_shape *y)
{
    ATTO_TRY(atto__image_check(what, s->x_name, s->x, v->dims, ATTO_CONV_MOST));
    ATTO_TRY(check_filter(what, s->w_name, s->w, v));
    ATTO_TRY(shape_of_outputs(what, v, s->x, s->w, y));
    ATTO_TRY(take_more_outputs(what, s->y_name, v, s->y, y));
    ATTO_TRY(check_outputs(what, v, s->x, s->w, y));
    return check_padding(what, s->y_name, v, s->y, y);
}

static atto_status check_forward(const struct atto_conv_args *a)
{
    const char *what = call_name(ATTO_FORWARD);
    const atto_conv_window *v = &a->window;
    const scene s = { "x", "w", "y", a->x, a->w, a->y };
    atto_shape y;
    ATTO_TRY(shape_of_scene(what, &s, v, &y));
    const atto_dtype dtype = a->x->dtype, out = a->y->dtype;
    const atto__expected parts[] = { { "w", a->w, atto_shape_of(a->w->rank, a->w->shape), dtype,
                                       false },
                                     { "b", a->b, atto_shape1(channels_out(v, a->w)), dtype, true },
                                     { "y", a->y, y, dtype, true },
                                     { "z", a->z, y, out, false },
                                     { "residual", a->residual, y, out, false } };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

/* Only db is wanted. */
static atto_status check_bias(const struct atto_conv_args *a)
{
    const char *what = call_name(ATTO_BACKWARD);
    ATTO_TRY(atto__image_check(what, "dy", a->dy, a->window.dims, ATTO_CONV_MOST));
    const atto_tensor *dy = a->dy;
    const atto_shape y = atto_shape_of(dy->rank, dy->shape);
    const atto_dtype out = a->db && a->db->dtype != ATTO_F32 ? a->db->dtype : dy->dtype;
    const atto__expected parts[] = {
        { "dy", dy, y, out, true },
        { "z", a->z, y, dy->dtype, false },
        { "db", a->db, atto_shape1(dy->shape[dy->rank - a->window.dims - 1]), out, true }
    };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

static atto_status check_backward(const struct atto_conv_args *a)
{
    const char *what = call_name(ATTO_BACKWARD);
    const atto_conv_window *v = &a->window;
    ATTO_REQUIRE(!a->dx || a->w, ATTO_E_NULL, "%s: w is NULL, which dx needs", what);
    ATTO_REQUIRE(!a->dw || a->x, ATTO_E_NULL, "%s: x is NULL, which dw needs", what);
    ATTO_REQUIRE(a->z || a->act.kind == ATTO_ACT_IDENTITY, ATTO_E_NULL,
                 "%s: z is NULL, which the derivative of %s needs", what,
                 atto_activation_name(a->act.kind));
    if (!a->dx && !a->dw) return check_bias(a);
    ATTO_TRY(atto__image_check(what, "dy", a->dy, v->dims, ATTO_CONV_MOST));
    const scene s = { a->x ? "x" : "dx",   a->w ? "w" : "dw",   "dy",
                      a->x ? a->x : a->dx, a->w ? a->w : a->dw, a->dy };
    atto_shape y;
    ATTO_TRY(shape_of_scene(what, &s, v, &y));
    const atto_dtype dtype = s.x->dtype;
    const atto_shape x = atto_shape_of(s.x->rank, s.x->shape);
    const atto_shape w = atto_shape_of(s.w->rank, s.w->shape);
    const atto__expected parts[] = { { "x", a->x, x, dtype, false },
                                     { "w", a->w, w, dtype, false },
                                     { "dy", a->dy, y, dtype, true },
                                     { "z", a->z, y, a->dy->dtype, false },
                                     { "dx", a->dx, x, dtype, false },
                                     { "dw", a->dw, w, dtype, true },
                                     { "db", a->db, atto_shape1(channels_out(v, s.w)), dtype,
                                       true } };
    return atto__tensors_check(what, parts, COUNT_OF(parts));
}

atto_status atto__conv_check(const struct atto_conv_args *a, atto__direction direction)
{
    const char *what = call_name(direction);
    ATTO_TRY(atto__activation_check(what, a->act));
    ATTO_TRY(check_window(what, &a->window));
    return direction == ATTO_FORWARD ? check_forward(a) : check_backward(a);
}

int32_t atto__conv_spatial(const void *args)
{
    return ((const struct atto_conv_args *)args)->window.dims;
}

atto_status atto_conv_forward(atto_device *dev, const struct atto_conv_args *a)
{
    return atto__run(dev, ATTO_OP_CONV, ATTO_FORWARD, a);
}

atto_status atto_conv_backward(atto_device *dev, const struct atto_conv_args *a)
{
    return atto__run(dev, ATTO_OP_CONV, ATTO_BACKWARD, a);
}

/* ---- on a tape ---- */

static atto_status check_same(const atto__conv_request *r)
{
    const atto_conv_window *v = &r->window;
    ATTO_REQUIRE(!v->transposed, ATTO_E_ARGUMENT,
                 "%s: options: same is set, which a transposed convolution has not", r->what);
    for (int32_t at = 0; at < v->dims; at++) {
        ATTO_REQUIRE(v->stride[at] == 1, ATTO_E_ARGUMENT,
                     "%s: options: same is set, and stride[%d] is %" PRId64 ", expected 1", r->what,
                     (int)at, v->stride[at]);
        ATTO_REQUIRE(v->padding[at] == 0, ATTO_E_ARGUMENT,
                     "%s: options: same is set, and padding[%d] is %" PRId64 ", expected 0",
                     r->what, (int)at, v->padding[at]);
    }
    return ATTO_OK;
}

static atto_status check_output_padding(const atto__conv_request *r)
{
    const atto_conv_window *v = &r->window;
    for (int32_t at = 0; at < v->dims; at++) {
        const int64_t more = r->output_padding[at];
        const int64_t most = v->transposed ? greater(v->stride[at], v->dilation[at]) - 1 : 0;
        ATTO_REQUIRE(more >= 0 && more <= most, ATTO_E_ARGUMENT,
                     "%s: options: output_padding[%d] is %" PRId64 ", expected %s", r->what,
                     (int)at, more,
                     v->transposed ? "0 or more, and less than stride or dilation"
                                   : "0 unless the convolution is transposed");
    }
    return ATTO_OK;
}

static bool has_second(const atto__conv_geometry *g)
{
    return g->stride[1] != 0 || g->padding[1] != 0 || g->dilation[1] != 0 ||
           g->output_padding[1] != 0;
}

static atto_status check_request(const atto__conv_request *r, const atto__conv_geometry *g)
{
    ATTO_REQUIRE((int)g->padding_mode >= 0 && g->padding_mode < ATTO_PAD_COUNT, ATTO_E_ARGUMENT,
                 "%s: options: padding_mode is %d, expected 0 to %d", r->what, (int)g->padding_mode,
                 ATTO_PAD_COUNT - 1);
    ATTO_REQUIRE(g->padding_mode == ATTO_PAD_CONSTANT || !r->window.transposed, ATTO_E_ARGUMENT,
                 "%s: options: padding_mode is not 0, but a transposed convolution has zeros only",
                 r->what);
    ATTO_REQUIRE(r->window.dims == 2 || !has_second(g), ATTO_E_ARGUMENT,
                 "%s: options: the second of a pair is not 0, but there is one dimension", r->what);
    ATTO_TRY(check_window(r->what, &r->window));
    if (r->same) ATTO_TRY(check_same(r));
    ATTO_TRY(check_output_padding(r));
    return atto__activation_check(r->what, r->act);
}

atto_status atto__conv_request_make(const char *what, int32_t dims, bool transposed,
                                    const atto__conv_geometry *g, atto_activation act,
                                    atto__conv_request *r)
{
    *r = (atto__conv_request){
        .what = what,
        .window = { .dims = dims, .transposed = transposed, .groups = g->groups ? g->groups : 1 },
        .same = g->same,
        .padding_mode = g->padding_mode,
        .act = act
    };
    for (int32_t at = 0; at < dims; at++) {
        r->window.stride[at] = g->stride[at] ? g->stride[at] : 1;
        r->window.padding[at] = r->window.padding_after[at] = g->padding[at];
        r->window.dilation[at] = g->dilation[at] ? g->dilation[at] : 1;
        r->output_padding[at] = g->output_padding[at];
    }
    return check_request(r, g);
}

/* The window over w's kernel. */
static atto_conv_window window_of(const atto__conv_request *r, const atto_tensor *w)
{
    atto_conv_window v = r->window;
    for (int32_t at = 0; r->same && at < v.dims; at++) {
        const int64_t all = reach_of(&v, at, w->shape[2 + at]) - 1;
        v.padding[at] = all / 2;
        v.padding_after[at] = all - all / 2;
    }
    return v;
}

static atto_status result_shape(const atto__conv_request *r, const atto_tensor *x,
                                const atto_tensor *w, atto_conv_window *v, atto_shape *shape)
{
    ATTO_TRY(atto__image_check(r->what, "x", x, r->window.dims, ATTO_CONV_MOST));
    ATTO_TRY(check_filter(r->what, "w", w, &r->window));
    *v = window_of(r, w);
    ATTO_TRY(check_window(r->what, v));
    ATTO_TRY(shape_of_outputs(r->what, v, x, w, shape));
    for (int32_t at = 0; at < v->dims; at++)
        shape->dim[shape->rank - v->dims + at] += r->output_padding[at];
    return check_outputs(r->what, v, x, w, shape);
}

#define FIELD(name) offsetof(struct atto_conv_args, name)

/* x with what is outside the image around it, where that is not zeros: then the window has none. */
static atto_var surround(atto_tape *tape, const atto__conv_request *r, atto_var x, int32_t rank,
                         atto_conv_window *v)
{
    int64_t before[ATTO_MAX_RANK] = { 0 }, after[ATTO_MAX_RANK] = { 0 };
    if (r->padding_mode == ATTO_PAD_CONSTANT) return x;
    for (int32_t at = 0; at < v->dims; at++) {
        before[rank - v->dims + at] = v->padding[at];
        after[rank - v->dims + at] = v->padding_after[at];
        v->padding[at] = v->padding_after[at] = 0;
    }
    return atto_pad_mode(tape, x, r->padding_mode, before, after);
}

atto_var atto__conv_record(atto_tape *tape, atto_status status, const atto__conv_request *r,
                           atto_var x, atto_var w, const atto_var *bias, const atto_var *residual)
{
    const atto_tensor *tx = atto__tape_tensor(tape, r->what, x);
    const atto_tensor *tw = atto__tape_tensor(tape, r->what, w);
    if (!tx || !tw) return atto__no_var();
    struct atto_conv_args args = { .act = r->act };
    atto_shape shape;
    if (status == ATTO_OK) status = result_shape(r, tx, tw, &args.window, &shape);
    if (atto__tape_fail(tape, status) != ATTO_OK) return atto__no_var();
    const bool moves = atto__image_channels_last(tx, r->window.dims);
    const int32_t innermost = tx->rank - 1 - r->window.dims;
    x = surround(tape, r, x, tx->rank, &args.window);
    if (!atto__tape_tensor(tape, r->what, x)) return atto__no_var();
    int32_t count = 0;
    atto__binding inputs[4];
    inputs[count++] = (atto__binding){ .field = FIELD(x), .v = x };
    inputs[count++] = (atto__binding){ .field = FIELD(w), .v = w, .f32_grad = true };
    if (bias) inputs[count++] = (atto__binding){ .field = FIELD(b), .v = *bias, .f32_too = true };
    if (residual)
        inputs[count++] =
            (atto__binding){ .field = FIELD(residual), .v = *residual, .passes = true };
    const atto__result y = { .field = FIELD(y),
                             .like_inputs = true,
                             .shape = shape,
                             .moves = moves,
                             .innermost = innermost };
    atto__result results[] = { y, y };
    results[1].field = FIELD(z);
    results[1].only_saved = true;
    return atto__record_op(tape, ATTO_OP_CONV, &args, inputs, count, results,
                           r->act.kind == ATTO_ACT_IDENTITY ? 1 : 2);
}

static atto_var record_with(atto_tape *tape, const char *what, int32_t dims, bool transposed,
                            atto_var x, atto_var w, const atto_conv_options *options)
{
    const atto_conv_options none = { .groups = 0 };
    const atto_conv_options *o = options ? options : &none;
    const atto__conv_geometry g = { .stride = o->stride,
                                    .padding = o->padding,
                                    .dilation = o->dilation,
                                    .output_padding = o->output_padding,
                                    .groups = o->groups,
                                    .same = o->same,
                                    .padding_mode = o->padding_mode };
    atto__conv_request r;
    atto_status status = atto__conv_request_make(what, dims, transposed, &g, o->act, &r);
    if (status == ATTO_OK) status = atto__reserved_check(what, o->reserved);
    return atto__conv_record(tape, status, &r, x, w, o->bias, o->residual);
}

atto_var atto_conv1d(atto_tape *tape, atto_var x, atto_var w, const atto_conv_options *options)
{
    return record_with(tape, "conv1d", 1, false, x, w, options);
}

atto_var atto_conv2d(atto_tape *tape, atto_var x, atto_var w, const atto_conv_options *options)
{
    return record_with(tape, "conv2d", 2, false, x, w, options);
}

atto_var atto_conv_transpose1d(atto_tape *tape, atto_var x, atto_var w,
                               const atto_conv_options *options)
{
    return record_with(tape, "conv_transpose1d", 1, true, x, w, options);
}

atto_var atto_conv_transpose2d(atto_tape *tape, atto_var x, atto_var w,
                               const atto_conv_options *options)
{
    return record_with(tape, "conv_transpose2d", 2, true, x, w, options);
}
