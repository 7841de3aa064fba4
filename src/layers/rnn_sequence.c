/* SPDX-License-Identifier: MIT */
/* LSTM and GRU over sequences. A layer's products with its input are one linear for all steps; the
 * rest of the layer in one direction is one node of the tape, below called a pass:
 *
 *     for every step t, from the first or from the last:
 *         LSTM   gates_t = gx_t + W_hh h + b_hh     h, c = cell(gates_t, c)     y_t = h
 *         GRU    u = W_hh h + b_hh                  h = cell(gx_t, u, h)        y_t = h
 *
 * Backward goes the other way round: the cell's gradients of its gates, dz_t, times W_hh are
 * added to the gradient of the y before. Then one product gives that of W_hh: dz of all steps
 * and the states before them. */
#include <inttypes.h>

#include "layers/checks.h"
#include "layers/rnn.h"

/* ---- a pass ---- */

enum { IN_GX, IN_W, IN_H, IN_C, IN_COUNT }; /* a GRU has no c; the bias is last if there is one */
enum { OUT_Y, OUT_GATES, OUT_CY, OUT_CELLS, OUT_COUNT };

/* What a pass is, without its tensors: the node's args. */
typedef struct plan {
    int64_t length, batches, hidden;
    bool is_lstm, backwards;
    int32_t time; /* dimension of steps in gx and y */
    int32_t bias; /* which input; -1: none */
} plan;

/* And with them. cells are the states between steps, [L - 1, B, H]; gates [L, B, 4 H]. */
typedef struct pass {
    atto_device *dev;
    plan p;
    bool saves;
    atto_tensor gx, w, h, c, b;      /* inputs */
    atto_tensor y, gates, cy, cells; /* results; without saves the last step's c alone */
    atto_tensor scratch;             /* one step's gates, or a GRU's u */
} pass;

/* Index `at` of dimension d, which goes away. */
static atto_tensor part_of(const atto_tensor *t, int32_t d, int64_t at)
{
    atto_tensor out = *t;
    out.offset += at * t->stride[d];
    out.rank--;
    for (int32_t i = d; i < out.rank; i++) {
        out.shape[i] = t->shape[i + 1];
        out.stride[i] = t->stride[i + 1];
    }
    return out;
}

/* Step number k of a pass, as an index. */
static int64_t step_of(const plan *p, int64_t k)
{
    return p->backwards ? p->length - 1 - k : k;
}

/* Of gx, y or something like them. */
static atto_tensor at_step(const plan *p, const atto_tensor *t, int64_t k)
{
    return part_of(t, p->time, step_of(p, k));
}

/* The states before step k, and the cell state behind it. */
static atto_tensor h_before(const pass *s, int64_t k)
{
    return k == 0 ? s->h : at_step(&s->p, &s->y, k - 1);
}

static atto_tensor c_behind(const pass *s, int64_t k)
{
    return s->saves && k < s->p.length - 1 ? part_of(&s->cells, 0, k) : s->cy;
}

static atto_tensor c_before(const pass *s, int64_t k)
{
    return k == 0 ? s->c : c_behind(s, k - 1);
}

/* ---- forward ---- */

static atto_status alloc_results(pass *s)
{
    const plan *p = &s->p;
    const int64_t l = p->length, n = p->batches, h = p->hidden;
    const atto_dtype dtype = s->gx.dtype;
    const atto_shape y = p->time == 0 ? atto_shape3(l, n, h) : atto_shape3(n, l, h);
    ATTO_TRY(atto_tensor_alloc(s->dev, dtype, y, &s->y));
    if (p->is_lstm) ATTO_TRY(atto_tensor_alloc(s->dev, dtype, atto_shape2(n, h), &s->cy));
    if (!s->saves || !p->is_lstm)
        ATTO_TRY(atto_tensor_alloc(s->dev, dtype, atto_shape2(n, (p->is_lstm ? 4 : 3) * h),
                                   &s->scratch));
    if (!s->saves) return ATTO_OK;
    ATTO_TRY(atto_tensor_alloc(s->dev, dtype, atto_shape3(l, n, 4 * h), &s->gates));
    return p->is_lstm ? atto_tensor_alloc(s->dev, dtype, atto_shape3(l - 1, n, h), &s->cells)
                      : ATTO_OK;
}

static void free_results(pass *s)
{
    atto_tensor *const all[] = { &s->y, &s->cy, &s->gates, &s->cells, &s->scratch };
    for (size_t i = 0; i < COUNT_OF(all); i++) atto_tensor_free(all[i]);
}

/* The cell works where its gates lie. */
static atto_status lstm_step(const pass *s, int64_t k)
{
    const atto_tensor gx = at_step(&s->p, &s->gx, k), h = h_before(s, k), c = c_before(s, k);
    const atto_tensor y = at_step(&s->p, &s->y, k), cy = c_behind(s, k);
    const atto_tensor gates = s->saves ? part_of(&s->gates, 0, k) : s->scratch;
    const struct atto_linear_args sum = {
        .x = &h, .w = &s->w, .b = s->b.dtype ? &s->b : NULL, .residual = &gx, .y = &gates
    };
    const struct atto_lstm_cell_args cell = {
        .x = &gates, .c = &c, .y = &y, .cy = &cy, .gates = s->saves ? &gates : NULL
    };
    ATTO_TRY(atto_linear_forward(s->dev, &sum));
    return atto_lstm_cell_forward(s->dev, &cell);
}

static atto_status gru_step(const pass *s, int64_t k)
{
    const atto_tensor gx = at_step(&s->p, &s->gx, k), h = h_before(s, k);
    const atto_tensor y = at_step(&s->p, &s->y, k);
    const atto_tensor gates = s->saves ? part_of(&s->gates, 0, k) : s->scratch;
    const struct atto_linear_args product = {
        .x = &h, .w = &s->w, .b = s->b.dtype ? &s->b : NULL, .y = &s->scratch
    };
    const struct atto_gru_cell_args cell = {
        .x = &gx, .u = &s->scratch, .h = &h, .y = &y, .gates = s->saves ? &gates : NULL
    };
    ATTO_TRY(atto_linear_forward(s->dev, &product));
    return atto_gru_cell_forward(s->dev, &cell);
}

static atto_status run_steps(const pass *s)
{
    for (int64_t k = 0; k < s->p.length; k++)
        ATTO_TRY(s->p.is_lstm ? lstm_step(s, k) : gru_step(s, k));
    return ATTO_OK;
}

/* ---- backward ---- */

/* A pass going back: gradients that it makes on the way. */
typedef struct way_back {
    atto_tape *tape;
    atto_node *node;
    pass s;
    atto_tensor dy; /* of all steps; a step adds to that before it */
    atto_tensor dz; /* of what W_hh is part of, like gx */
    atto_tensor dx; /* of gx: dz's memory for an LSTM, unless gx had a gradient already */
    atto_tensor dc;
    const atto_tensor *target; /* of gx; NULL: not wanted */
    bool add;
    bool owns_dy, owns_dz, owns_dx;
} way_back;

static atto_status input_grad(const way_back *b, int32_t i, const atto_tensor **out, bool *add)
{
    *out = NULL;
    *add = false;
    return i < 0 ? ATTO_OK : atto_node_input_grad(b->tape, b->node, i, out, add);
}

/* The last results' gradients; NULL where nothing came. */
static const atto_tensor *result_grad(const way_back *b, int32_t i)
{
    const atto_tensor *grad = &atto__values(b->tape)[b->node->results[i]].grad;
    return grad->dtype ? grad : NULL;
}

static atto_status like_gx(way_back *b, atto_tensor *out)
{
    const atto_tensor *gx = &b->s.gx;
    return atto_tensor_alloc(b->s.dev, gx->dtype, atto_shape_of(gx->rank, gx->shape), out);
}

static atto_status alloc_gradients(way_back *b)
{
    const plan *p = &b->s.p;
    const atto_tensor *y = &b->s.y, *dy = result_grad(b, OUT_Y);
    if (dy) b->dy = *dy; /* nobody reads it behind this node */
    b->owns_dy = !dy;
    if (!dy) {
        ATTO_TRY(atto_tensor_alloc(b->s.dev, y->dtype, atto_shape_of(y->rank, y->shape), &b->dy));
        ATTO_TRY(atto_tensor_fill(&b->dy, 0.0));
    }
    ATTO_TRY(input_grad(b, IN_GX, &b->target, &b->add));
    const bool direct = b->target && !b->add;
    b->owns_dz = !(direct && p->is_lstm);
    if (b->owns_dz)
        ATTO_TRY(like_gx(b, &b->dz));
    else
        b->dz = *b->target;
    if (p->is_lstm) {
        b->dx = b->dz;
        return atto_tensor_alloc(b->s.dev, y->dtype, atto_shape2(p->batches, p->hidden), &b->dc);
    }
    b->owns_dx = b->target && b->add;
    if (b->owns_dx) return like_gx(b, &b->dx);
    if (b->target) b->dx = *b->target;
    return ATTO_OK;
}

static void free_gradients(way_back *b)
{
    if (b->owns_dy) atto_tensor_free(&b->dy);
    if (b->owns_dz) atto_tensor_free(&b->dz);
    if (b->owns_dx) atto_tensor_free(&b->dx);
    atto_tensor_free(&b->dc);
}

/* Where the gradient of the state before step k goes. */
static atto_status state_target(const way_back *b, int64_t k, atto_tensor *view,
                                const atto_tensor **out, bool *add)
{
    if (k == 0) return input_grad(b, IN_H, out, add);
    *view = at_step(&b->s.p, &b->dy, k - 1);
    *out = view;
    *add = true;
    return ATTO_OK;
}

/* into += or = dz_k W_hh */
static atto_status state_gradient(const way_back *b, int64_t k, const atto_tensor *into, bool add)
{
    const atto_tensor dz = at_step(&b->s.p, &b->dz, k);
    const struct atto_linear_args product = { .w = &b->s.w, .dy = &dz, .dx = into, .add_dx = add };
    return into ? atto_linear_backward(b->s.dev, &product) : ATTO_OK;
}

static atto_status lstm_step_back(const way_back *b, int64_t k)
{
    const pass *s = &b->s;
    const atto_tensor c = c_before(s, k), cy = c_behind(s, k), gates = part_of(&s->gates, 0, k);
    const atto_tensor dy = at_step(&s->p, &b->dy, k), dz = at_step(&s->p, &b->dz, k);
    const bool is_last = k == s->p.length - 1;
    struct atto_lstm_cell_args cell = { .c = &c,
                                        .cy = &cy,
                                        .gates = &gates,
                                        .dy = &dy,
                                        .dcy = is_last ? result_grad(b, OUT_CY) : &b->dc,
                                        .dx = &dz,
                                        .dc = &b->dc };
    if (k == 0) ATTO_TRY(input_grad(b, IN_C, &cell.dc, &cell.add_dc));
    ATTO_TRY(atto_lstm_cell_backward(s->dev, &cell));
    atto_tensor view;
    const atto_tensor *into;
    bool add;
    ATTO_TRY(state_target(b, k, &view, &into, &add));
    return state_gradient(b, k, into, add);
}

static atto_status gru_step_back(const way_back *b, int64_t k)
{
    const pass *s = &b->s;
    const atto_tensor h = h_before(s, k), gates = part_of(&s->gates, 0, k);
    const atto_tensor dy = at_step(&s->p, &b->dy, k), dz = at_step(&s->p, &b->dz, k);
    atto_tensor view, dx;
    struct atto_gru_cell_args cell = { .h = &h, .gates = &gates, .dy = &dy, .du = &dz };
    if (b->dx.dtype) {
        dx = at_step(&s->p, &b->dx, k);
        cell.dx = &dx;
    }
    ATTO_TRY(state_target(b, k, &view, &cell.dh, &cell.add_dh));
    ATTO_TRY(atto_gru_cell_backward(s->dev, &cell));
    return state_gradient(b, k, cell.dh, true);
}

/* Steps first to end - 1 of a pass, of gx, y or something like them. */
static atto_tensor steps_of(const plan *p, const atto_tensor *t, int64_t first, int64_t end)
{
    atto_tensor out = *t;
    const int64_t start = p->backwards ? p->length - end : first;
    out.offset += start * t->stride[p->time];
    out.shape[p->time] = end - first;
    return out;
}

/* dw and db: the first step's, from the state that was given, and those of all others. */
static atto_status weight_gradients(const way_back *b)
{
    const pass *s = &b->s;
    const plan *p = &s->p;
    const atto_tensor dz = at_step(p, &b->dz, 0);
    struct atto_linear_args product = { .x = &s->h, .dy = &dz };
    ATTO_TRY(input_grad(b, IN_W, &product.dw, &product.add_dw));
    ATTO_TRY(input_grad(b, p->bias, &product.db, &product.add_db));
    if (!product.dw && !product.db) return ATTO_OK;
    ATTO_TRY(atto_linear_backward(s->dev, &product));
    if (p->length == 1) return ATTO_OK;
    const atto_tensor states = steps_of(p, &s->y, 0, p->length - 1);
    const atto_tensor others = steps_of(p, &b->dz, 1, p->length);
    product.x = &states;
    product.dy = &others;
    product.add_dw = product.add_db = true;
    return atto_linear_backward(s->dev, &product);
}

static atto_status go_back(way_back *b)
{
    ATTO_TRY(alloc_gradients(b));
    for (int64_t k = b->s.p.length - 1; k >= 0; k--)
        ATTO_TRY(b->s.p.is_lstm ? lstm_step_back(b, k) : gru_step_back(b, k));
    ATTO_TRY(weight_gradients(b));
    const bool is_apart = b->target && b->dx.buffer != b->target->buffer;
    return is_apart ? atto__accumulate(b->s.dev, b->target, &b->dx) : ATTO_OK;
}

static atto_status pass_backward(atto_tape *tape, atto_node *node)
{
    way_back b = { .tape = tape, .node = node, .s = { .dev = tape->dev, .saves = true } };
    pass *s = &b.s;
    s->p = *(const plan *)atto_node_args(tape, node);
    s->gx = *atto_node_input(tape, node, IN_GX);
    s->w = *atto_node_input(tape, node, IN_W);
    s->h = *atto_node_input(tape, node, IN_H);
    s->y = atto__values(tape)[node->results[OUT_Y]].tensor;
    s->gates = atto__values(tape)[node->results[OUT_GATES]].tensor;
    if (s->p.is_lstm) {
        s->c = *atto_node_input(tape, node, IN_C);
        s->cy = atto__values(tape)[node->results[OUT_CY]].tensor;
        s->cells = atto__values(tape)[node->results[OUT_CELLS]].tensor;
    }
    const atto_status status = go_back(&b);
    free_gradients(&b);
    return status;
}

static const atto_op_class lstm_class = { "lstm", pass_backward };
static const atto_op_class gru_class = { "gru", pass_backward };

/* ---- recording a pass ---- */

/* A pass being recorded. */
typedef struct recording {
    atto_tape *tape;
    pass s;
    atto__binding inputs[IN_COUNT + 1];
    int32_t slots[IN_COUNT + 1], grads[IN_COUNT + 1]; /* as autocast hands them on */
    int32_t count;
} recording;

static bool wants_grad(const recording *r)
{
    for (int32_t i = 0; i < r->count; i++)
        if (r->tape->records && atto__values(r->tape)[r->inputs[i].v.slot].needs_grad) return true;
    return false;
}

/* Casts to what gx is where autocast is on. */
static atto_status cast_inputs(recording *r)
{
    const atto_dtype dtype =
        r->tape->autocast == ATTO_F32 ? 0 : atto__values(r->tape)[r->slots[IN_GX]].tensor.dtype;
    for (int32_t i = 1; dtype && i < r->count; i++)
        if (atto__autocast_applies(r->tape, &r->inputs[i], dtype))
            ATTO_TRY(
                atto__autocast_value(r->tape, &r->inputs[i], dtype, &r->slots[i], &r->grads[i]));
    return ATTO_OK;
}

static void drop_casts(const recording *r)
{
    for (int32_t i = 0; i < r->count; i++)
        if (r->slots[i] != r->inputs[i].v.slot)
            atto__value_drop(&atto__values(r->tape)[r->slots[i]]);
}

static void place_inputs(recording *r)
{
    const atto__value *values = atto__values(r->tape);
    r->s.gx = values[r->slots[IN_GX]].tensor;
    r->s.w = values[r->slots[IN_W]].tensor;
    r->s.h = values[r->slots[IN_H]].tensor;
    if (r->s.p.is_lstm) r->s.c = values[r->slots[IN_C]].tensor;
    if (r->s.p.bias >= 0) r->s.b = values[r->slots[r->s.p.bias]].tensor;
}

static atto_status push_node(recording *r, atto_var *results)
{
    pass *s = &r->s;
    atto_tensor *const tensors[] = { &s->y, &s->gates, &s->cy, &s->cells };
    const int32_t count = s->p.is_lstm ? OUT_COUNT : OUT_CY;
    atto_node *node;
    ATTO_TRY(atto__tape_push_node(r->tape, s->p.is_lstm ? &lstm_class : &gru_class, &s->p,
                                  sizeof s->p, &node));
    for (int32_t i = 0; i < r->count; i++) {
        node->inputs[i] = r->slots[i];
        node->grads[i] = r->grads[i];
    }
    node->input_count = r->count;
    node->held_inputs = 1u << IN_W | 1u << IN_H | (s->p.is_lstm ? 1u << IN_C : 0u);
    for (int32_t i = 0; i < count; i++) {
        ATTO_TRY(atto__tape_push(r->tape, tensors[i], &results[i]));
        node->results[node->result_count++] = results[i].slot;
    }
    node->held_results = (1u << count) - 1;
    atto__node_hold(r->tape, node);
    for (int32_t i = 0; i < count; i++) {
        atto__value *value = &atto__values(r->tape)[results[i].slot];
        const bool is_result = i == OUT_Y || i == OUT_CY;
        value->node = is_result ? (int32_t)r->tape->nodes.count - 1 : -1;
        value->needs_grad = is_result;
        if (is_result) continue;
        value->is_named = false;
        atto__value_drop(value);
    }
    return ATTO_OK;
}

static atto_status run_and_record(recording *r, atto_var *results)
{
    ATTO_TRY(cast_inputs(r));
    place_inputs(r);
    ATTO_TRY(alloc_results(&r->s));
    ATTO_TRY(run_steps(&r->s));
    if (r->s.saves) return push_node(r, results);
    ATTO_TRY(atto__tape_push(r->tape, &r->s.y, &results[OUT_Y]));
    return r->s.p.is_lstm ? atto__tape_push(r->tape, &r->s.cy, &results[OUT_CY]) : ATTO_OK;
}

/* ---- layers ---- */

/* A network being recorded. */
typedef struct network {
    atto_tape *tape;
    const char *what;
    const atto_rnn_options *o;
    int32_t gates, layers, directions;
    bool is_batched;
    plan p; /* of every pass */
} network;

/* Layer number i's states, counted with directions: *given's, or zeros. */
static atto_var state_of(const network *n, const atto_var *given, int32_t i, atto_dtype dtype)
{
    atto_var out = atto__no_var();
    if (!given) {
        const atto_shape shape = atto_shape2(n->p.batches, n->p.hidden);
        atto__tape_fail(n->tape, atto__rnn_zeros(n->tape, dtype, shape, &out));
        return out;
    }
    if (n->layers * n->directions == 1 && !n->is_batched) return *given; /* [1, H] */
    out = n->layers * n->directions == 1 ? *given : atto_slice(n->tape, *given, 0, i, i + 1, 1);
    return n->is_batched ? atto_squeeze(n->tape, out, 0) : out;
}

/* One layer in one direction; *cy only of an LSTM. */
static atto_var run_pass(const network *n, atto_var x, const atto_rnn_weights *w, int32_t i,
                         bool backwards, atto_var *cy)
{
    const bool is_lstm = n->gates == 4;
    atto_var results[OUT_COUNT] = { atto__no_var(), atto__no_var(), atto__no_var(),
                                    atto__no_var() };
    const atto_var gx = atto_linear(n->tape, x, w->w_ih, &(atto_linear_fused){ .bias = w->b_ih });
    const atto_tensor *t = atto__tape_tensor(n->tape, n->what, gx);
    if (!t) return atto__no_var();
    const atto_dtype dtype = t->dtype;
    const atto_var h = state_of(n, n->o->h, i, dtype);
    const atto_var c = is_lstm ? state_of(n, n->o->c, i, dtype) : atto__no_var();
    recording r = { .tape = n->tape, .s = { .dev = n->tape->dev, .p = n->p } };
    r.s.p.is_lstm = is_lstm;
    r.s.p.backwards = backwards;
    r.s.p.bias = w->b_hh ? (is_lstm ? IN_COUNT : IN_C) : -1;
    r.inputs[r.count++] = (atto__binding){ .v = gx };
    r.inputs[r.count++] = (atto__binding){ .v = w->w_hh, .f32_grad = true };
    r.inputs[r.count++] = (atto__binding){ .v = h };
    if (is_lstm) r.inputs[r.count++] = (atto__binding){ .v = c };
    if (w->b_hh) r.inputs[r.count++] = (atto__binding){ .v = *w->b_hh, .f32_too = true };
    for (int32_t k = 0; k < r.count; k++) {
        if (!atto__tape_value(n->tape, n->what, r.inputs[k].v)) return atto__no_var();
        r.slots[k] = r.grads[k] = r.inputs[k].v.slot;
    }
    r.s.saves = wants_grad(&r);
    const bool failed = atto__tape_fail(n->tape, run_and_record(&r, results)) != ATTO_OK;
    drop_casts(&r);
    free_results(&r.s); /* what was not pushed */
    *cy = failed ? atto__no_var() : results[OUT_CY];
    return failed ? atto__no_var() : results[OUT_Y];
}

/* y behind the last step, as [1, N, H]. */
static atto_var last_state(const network *n, atto_var y, bool backwards)
{
    const int64_t at = backwards ? 0 : n->p.length - 1;
    const atto_var last = atto_slice(n->tape, y, n->p.time, at, at + 1, 1);
    return n->p.time == 0 ? last : atto_transpose(n->tape, last, 0, 1);
}

/* States of all passes, which are [1, N, H] each, as the caller gets them. */
static atto_var join_states(const network *n, const atto_var *parts)
{
    const int32_t count = n->layers * n->directions;
    const atto_var all = count == 1 ? parts[0] : atto_concat(n->tape, parts, count, 0);
    return n->is_batched ? all : atto_squeeze(n->tape, all, 1);
}

static atto_var run_layers(const network *n, atto_var x, const atto_rnn_weights *weights)
{
    atto_var hy[ATTO_RNN_MOST_PASSES], cy[ATTO_RNN_MOST_PASSES], y = x;
    if (!n->is_batched) y = atto_unsqueeze(n->tape, y, 1);
    for (int32_t layer = 0; layer < n->layers; layer++) {
        atto_var both[2] = { y, y };
        for (int32_t d = 0; d < n->directions; d++) {
            const int32_t i = layer * n->directions + d;
            both[d] = run_pass(n, y, &weights[i], i, d == 1, &cy[i]);
            if (n->o->hy) hy[i] = last_state(n, both[d], d == 1);
            if (n->o->cy) cy[i] = atto_unsqueeze(n->tape, cy[i], 0);
        }
        y = n->directions == 1 ? both[0] : atto_concat(n->tape, both, 2, 2);
        if (n->o->dropout > 0.0f && layer < n->layers - 1)
            y = atto_dropout(n->tape, y, n->o->dropout);
    }
    if (n->o->hy) *n->o->hy = join_states(n, hy);
    if (n->o->cy) *n->o->cy = join_states(n, cy);
    return n->is_batched ? y : atto_squeeze(n->tape, y, 1);
}

/* ---- checks ---- */

static atto_status check_input(network *n, atto_var x, int64_t *features)
{
    const atto_tensor *t = atto__tape_tensor(n->tape, n->what, x);
    char text[ATTO_SHAPE_TEXT];
    if (!t) return n->tape->status;
    ATTO_REQUIRE(t->rank == 2 || t->rank == 3, ATTO_E_SHAPE,
                 "%s: x is %s, expected two dimensions, or three with the batch", n->what,
                 atto__shape_text(t, text));
    n->is_batched = t->rank == 3;
    n->p.time = n->is_batched && n->o->batch_first ? 1 : 0;
    n->p.length = t->shape[n->p.time];
    n->p.batches = n->is_batched ? t->shape[1 - n->p.time] : 1;
    ATTO_REQUIRE(n->p.length > 0, ATTO_E_SHAPE, "%s: x is %s, expected 1 step or more", n->what,
                 atto__shape_text(t, text));
    *features = t->shape[t->rank - 1];
    return ATTO_OK;
}

static atto_status check_states(const network *n, const char *name, const atto_var *v)
{
    if (!v) return ATTO_OK;
    const atto_tensor *t = atto__tape_tensor(n->tape, n->what, *v);
    if (!t) return n->tape->status;
    const int64_t passes = n->layers * n->directions;
    const atto_shape shape = n->is_batched ? atto_shape3(passes, n->p.batches, n->p.hidden)
                                           : atto_shape2(passes, n->p.hidden);
    return atto__same_shape_check(n->what, name, t, shape);
}

static atto_status check_options(const network *n)
{
    const atto_rnn_options *o = n->o;
    ATTO_TRY(atto__reserved_check(n->what, o->reserved));
    ATTO_REQUIRE(o->layers >= 0 && o->layers <= ATTO_RNN_MOST_LAYERS, ATTO_E_ARGUMENT,
                 "%s: layers is %d, expected 1 to %d", n->what, (int)o->layers,
                 ATTO_RNN_MOST_LAYERS);
    ATTO_REQUIRE(n->gates == 4 || (!o->c && !o->cy), ATTO_E_ARGUMENT,
                 "%s: %s is given, which a GRU has not", n->what, o->c ? "c" : "cy");
    return atto__probability_check(n->what, o->dropout, &(atto_rng){ 0 });
}

static atto_status check(network *n, atto_var x, const atto_rnn_weights *weights)
{
    int64_t features = 0;
    ATTO_TRY(check_options(n));
    ATTO_TRY(check_input(n, x, &features));
    ATTO_TRY(atto__rnn_hidden(n->tape, n->what, weights, &n->p.hidden));
    for (int32_t i = 0; i < n->layers * n->directions; i++) {
        const int64_t in = i < n->directions ? features : n->directions * n->p.hidden;
        ATTO_TRY(atto__rnn_check_weights(n->tape, n->what, &weights[i], n->gates, in, n->p.hidden));
    }
    ATTO_TRY(check_states(n, "h", n->o->h));
    return check_states(n, "c", n->o->c);
}

static atto_var run(atto_tape *tape, const char *what, int32_t gates, atto_var x,
                    const atto_rnn_weights *weights, const atto_rnn_options *options)
{
    atto_rnn_options o = { .layers = 1 };
    atto_var h, c;
    if (options) o = *options;
    if (o.h) h = *o.h; /* where hy and cy may go */
    if (o.c) c = *o.c;
    if (o.h) o.h = &h;
    if (o.c) o.c = &c;
    network n = { .tape = tape, .what = what, .o = &o, .gates = gates };
    if (n.o->hy) *n.o->hy = atto__no_var();
    if (n.o->cy) *n.o->cy = atto__no_var();
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    n.layers = n.o->layers ? n.o->layers : 1;
    n.directions = n.o->bidirectional ? 2 : 1;
    if (atto__tape_fail(tape, check(&n, x, weights)) != ATTO_OK) return atto__no_var();
    atto_scope_begin(tape);
    const atto_var y = run_layers(&n, x, weights);
    const atto_var keep[] = { y, n.o->hy ? *n.o->hy : y, n.o->cy ? *n.o->cy : y };
    atto_scope_end(tape, keep, COUNT_OF(keep));
    return tape->status == ATTO_OK ? y : atto__no_var();
}

atto_var atto_lstm(atto_tape *tape, atto_var x, const atto_rnn_weights *weights,
                   const atto_rnn_options *options)
{
    return run(tape, "lstm", 4, x, weights, options);
}

atto_var atto_gru(atto_tape *tape, atto_var x, const atto_rnn_weights *weights,
                  const atto_rnn_options *options)
{
    return run(tape, "gru", 3, x, weights, options);
}
