/* SPDX-License-Identifier: MIT */
/* Recurrent cells, forward and backward: the double oracle decides, on every backend. Layers and
 * modules are in test_recurrent.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "oracle_rnn.h"

/* ---- one case ---- */

typedef struct cell_case {
    bool is_gru;
    int64_t rows, hidden;
    atto_dtype dtype;       /* 0 = f32 */
    test_layout layout;     /* of inputs and, if it is another one than dense: */
    test_layout out_layout; /* of outputs */
    bool add;
    bool no_dy, no_dcy; /* an LSTM's */
    uint64_t seed;
} cell_case;

/* X and U: gates before their functions; C: an LSTM's old state, or a GRU's h. */
enum { X, U, C, Y, CY, GATES, DY, DCY, DX, DU, DC, TENSORS };

/* A case with its data and tensors. */
typedef struct scene {
    cell_case c;
    int64_t n, parts; /* elements of a state; gates of x */
    oracle_cell o;
    double *values[TENSORS], *want[TENSORS], *off[TENSORS];
    test_tensor t[TENSORS];
    struct atto_lstm_cell_args lstm;
    struct atto_gru_cell_args gru;
} scene;

static bool is_output(int i)
{
    return i == Y || i == CY || i == GATES || i >= DX;
}

static int64_t parts_of(const scene *s, int i)
{
    return i == X || i == U || i == DX || i == DU ? s->parts : i == GATES ? 4 : 1;
}

static void begin(scene *s, const cell_case *c)
{
    memset(s, 0, sizeof *s);
    s->c = *c;
    if (!s->c.dtype) s->c.dtype = ATTO_F32;
    s->n = c->rows * c->hidden;
    s->parts = c->is_gru ? 3 : 4;
    for (int i = 0; i < TENSORS; i++) {
        const double most = i == X || i == U ? 4.0 : 2.0;
        s->values[i] = test_doubles(4 * s->n);
        s->want[i] = test_doubles(4 * s->n);
        s->off[i] = test_doubles(4 * s->n);
        test_uniform(c->seed * 100 + (uint64_t)i, -most, most, s->c.dtype, s->values[i],
                     parts_of(s, i) * s->n);
    }
}

static void end(scene *s)
{
    for (int i = 0; i < TENSORS; i++) {
        test_tensor_drop(&s->t[i]);
        free(s->values[i]), free(s->want[i]), free(s->off[i]);
    }
}

static void make(scene *s, int i)
{
    const test_layout out = s->c.out_layout ? s->c.out_layout : s->c.layout;
    const bool is_read = !is_output(i) || (i >= DX && s->c.add);
    test_tensor_make(&s->t[i], test_dev, s->c.dtype,
                     atto_shape2(s->c.rows, parts_of(s, i) * s->c.hidden),
                     is_output(i) ? out : s->c.layout);
    if (is_read) test_tensor_put(&s->t[i], s->values[i]);
}

static const atto_tensor *view(const scene *s, int i)
{
    return &s->t[i].view;
}

static void build(scene *s)
{
    for (int i = 0; i < TENSORS; i++) make(s, i);
    s->lstm = (struct atto_lstm_cell_args){ .x = view(s, X),
                                            .c = view(s, C),
                                            .y = view(s, Y),
                                            .cy = view(s, CY),
                                            .gates = view(s, GATES),
                                            .dy = s->c.no_dy ? NULL : view(s, DY),
                                            .dcy = s->c.no_dcy ? NULL : view(s, DCY),
                                            .dx = view(s, DX),
                                            .dc = view(s, DC),
                                            .add_dx = s->c.add,
                                            .add_dc = s->c.add };
    s->gru = (struct atto_gru_cell_args){ .x = view(s, X),
                                          .u = view(s, U),
                                          .h = view(s, C),
                                          .y = view(s, Y),
                                          .gates = view(s, GATES),
                                          .dy = view(s, DY),
                                          .dx = view(s, DX),
                                          .du = view(s, DU),
                                          .dh = view(s, DC),
                                          .add_dx = s->c.add,
                                          .add_du = s->c.add,
                                          .add_dh = s->c.add };
    s->o = (oracle_cell){ .rows = s->c.rows,
                          .hidden = s->c.hidden,
                          .x = s->values[X],
                          .u = s->values[U],
                          .state = s->values[C],
                          .cy = s->values[CY],
                          .gates = s->values[GATES],
                          .dy = s->c.no_dy ? NULL : s->values[DY],
                          .dcy = s->c.no_dcy ? NULL : s->values[DCY] };
}

static atto_status forward(const scene *s)
{
    return s->c.is_gru ? atto_gru_cell_forward(test_dev, &s->gru)
                       : atto_lstm_cell_forward(test_dev, &s->lstm);
}

static atto_status backward(const scene *s)
{
    return s->c.is_gru ? atto_gru_cell_backward(test_dev, &s->gru)
                       : atto_lstm_cell_backward(test_dev, &s->lstm);
}

static oracle_off answer(const scene *s, int i)
{
    return (oracle_off){ s->want[i], s->off[i] };
}

static void judge(const scene *s, int i)
{
    const bool adds = i >= DX && s->c.add;
    test_judge(&s->t[i], s->c.is_gru ? "gru_cell" : "lstm_cell", s->c.layout, s->c.seed,
               adds ? 2 : 1, s->want[i], s->off[i], adds ? s->values[i] : NULL);
}

static void judge_forward(scene *s)
{
    if (s->c.is_gru) {
        oracle_gru_forward(&s->o, answer(s, Y), answer(s, GATES));
    } else {
        oracle_lstm_forward(&s->o, answer(s, Y), answer(s, CY), answer(s, GATES));
        judge(s, CY);
    }
    judge(s, Y);
    if (s->lstm.gates) judge(s, GATES);
}

/* From what forward has stored. */
static void judge_backward(scene *s)
{
    test_tensor_get(&s->t[GATES], s->values[GATES]);
    if (s->c.is_gru) {
        oracle_gru_backward(&s->o, answer(s, DX), answer(s, DU), answer(s, DC));
        judge(s, DU);
    } else {
        test_tensor_get(&s->t[CY], s->values[CY]);
        oracle_lstm_backward(&s->o, answer(s, DX), answer(s, DC));
    }
    judge(s, DX);
    judge(s, DC);
}

static void check(const cell_case *c)
{
    scene s;
    begin(&s, c);
    build(&s);
    MUST(forward(&s));
    MUST(backward(&s));
    judge_forward(&s);
    judge_backward(&s);
    const int inputs[] = { X, U, C, DY, DCY };
    for (int i = 0; i < COUNT_OF(inputs); i++) assert_true(test_tensor_untouched(&s.t[inputs[i]]));
    end(&s);
}

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* A device that plays another one has to build every kernel again: a third of the cases will do. */
static int case_step(void)
{
    return test_on_opencl() && test_in_disguise() ? 3 : 1;
}

/* ---- sizes, layouts, gradients ---- */

static void rnn_matches_oracle_at_any_size(void **state)
{
    (void)state;
    const int64_t sizes[] = { 1, 2, 3, 4, 7, 8, 13, 16, 64, 129, 255, 256, 257, 512, 1031 };
    const int64_t rows[] = { 1, 5, 32 };
    for (int i = 0; i < COUNT_OF(sizes); i += case_step())
        for (int d = 0; d < 3; d++)
            for (int gru = 0; gru < 2; gru++)
                check(&(cell_case){ .is_gru = gru == 1,
                                    .rows = rows[i % 3],
                                    .hidden = sizes[i],
                                    .dtype = dtypes[d],
                                    .add = i % 2 == 1,
                                    .seed = 10 + (uint64_t)i });
    check(&(cell_case){ .rows = 700, .hidden = 61, .seed = 40 });
    check(&(cell_case){ .is_gru = true, .rows = 700, .hidden = 64, .seed = 41 });
}

static void rnn_takes_any_layout(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_OFFSET,  LAYOUT_OFFSET4,    LAYOUT_PITCHED,
                                    LAYOUT_ALIGNED, LAYOUT_TRANSPOSED, LAYOUT_STEP2 };
    for (int i = 0; i < COUNT_OF(layouts); i++)
        for (int gru = 0; gru < 2; gru++)
            for (int mixed = 0; mixed < 2; mixed++)
                check(&(cell_case){ .is_gru = gru == 1,
                                    .rows = 6,
                                    .hidden = 24,
                                    .dtype = dtypes[i % 3],
                                    .layout = mixed ? LAYOUT_DENSE : layouts[i],
                                    .out_layout = layouts[i],
                                    .add = i % 2 == 1,
                                    .seed = 50 + (uint64_t)i });
}

static void rnn_takes_rows_of_a_sequence_as_they_are(void **state)
{
    (void)state;
    atto_device_stats before, after;
    for (int gru = 0; gru < 2; gru++) {
        scene s;
        begin(&s, &(cell_case){ .is_gru = gru == 1,
                                .rows = 5,
                                .hidden = 12,
                                .layout = LAYOUT_PITCHED,
                                .seed = 60 });
        build(&s);
        MUST(atto_device_stats_get(test_dev, &before));
        MUST(forward(&s));
        MUST(backward(&s));
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.hidden_copies, before.hidden_copies);
        assert_int_equal(after.launches, before.launches + 2);
        judge_forward(&s);
        judge_backward(&s);
        end(&s);
    }
}

static void lstm_backward_takes_one_gradient_or_none(void **state)
{
    (void)state;
    for (int i = 1; i < 4; i++)
        check(&(cell_case){
            .rows = 3, .hidden = 20, .no_dy = i & 1, .no_dcy = i & 2, .seed = 70 + (uint64_t)i });
}

static void rnn_writes_the_gradients_that_are_wanted(void **state)
{
    (void)state;
    for (int gru = 0; gru < 2; gru++)
        for (int wanted = 0; wanted < 3; wanted++) {
            scene s;
            begin(&s, &(cell_case){ .is_gru = gru == 1, .rows = 3, .hidden = 8, .seed = 80 });
            build(&s);
            MUST(forward(&s));
            const int fields[] = { DX, DU, DC };
            if (wanted != 0) s.lstm.dx = s.gru.dx = NULL;
            if (wanted != 1) s.gru.du = NULL;
            if (wanted != 2) s.lstm.dc = s.gru.dh = NULL;
            MUST(backward(&s));
            for (int i = 0; i < 3; i++)
                if (i != wanted) assert_true(test_tensor_untouched(&s.t[fields[i]]));
            test_tensor_get(&s.t[GATES], s.values[GATES]);
            test_tensor_get(&s.t[CY], s.values[CY]);
            if (gru)
                oracle_gru_backward(&s.o, answer(&s, DX), answer(&s, DU), answer(&s, DC));
            else
                oracle_lstm_backward(&s.o, answer(&s, DX), answer(&s, DC));
            if (gru || wanted != 1) judge(&s, fields[wanted]);
            end(&s);
        }
}

static void rnn_without_gates_saves_nothing(void **state)
{
    (void)state;
    for (int gru = 0; gru < 2; gru++) {
        scene s;
        begin(&s, &(cell_case){ .is_gru = gru == 1, .rows = 3, .hidden = 21, .seed = 90 });
        build(&s);
        s.lstm.gates = s.gru.gates = NULL;
        MUST(forward(&s));
        assert_true(test_tensor_untouched(&s.t[GATES]));
        judge_forward(&s);
        end(&s);
    }
}

/* Old states are replaced, gates and gradients lie where their sources did. */
static void rnn_works_in_place(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++)
        for (int gru = 0; gru < 2; gru++) {
            uint64_t want[4][3 * 40 * 4], got[4][3 * 40 * 4];
            scene s;
            begin(
                &s,
                &(cell_case){
                    .is_gru = gru == 1, .rows = 3, .hidden = 40, .dtype = dtypes[d], .seed = 95 });
            build(&s);
            MUST(forward(&s));
            MUST(backward(&s));
            test_tensor_bits(&s.t[gru ? Y : CY], want[0]);
            test_tensor_bits(&s.t[DC], want[1]);
            test_tensor_bits(&s.t[GATES], want[2]);
            s.lstm.dc = s.lstm.dcy;
            s.gru.dh = s.gru.dy;
            MUST(backward(&s));
            test_tensor_bits(&s.t[gru ? DY : DCY], got[1]);
            s.lstm.cy = s.lstm.c;
            s.gru.y = s.gru.h;
            if (!gru) s.lstm.gates = s.lstm.x;
            MUST(forward(&s));
            test_tensor_bits(&s.t[C], got[0]);
            test_tensor_bits(&s.t[gru ? GATES : X], got[2]);
            assert_memory_equal(got[0], want[0], 120 * sizeof want[0][0]);
            assert_memory_equal(got[1], want[1], 120 * sizeof want[0][0]);
            assert_memory_equal(got[2], want[2], 480 * sizeof want[0][0]);
            end(&s);
        }
}

/* ---- values ---- */

/* Gates that are open or shut for good, and NaN. */
static void rnn_passes_infinities_and_nan_on(void **state)
{
    (void)state;
    const double inf = INFINITY, nan = NAN;
    /* One row of four features: i, f, g, o; r, z, n. */
    const double x[16] = { inf, -inf, 0,   nan, /* */ -inf, inf, inf, 0,
                           inf, 0,    nan, 0,   /* */ inf,  inf, 0,   0 };
    const double c[4] = { 5, 3, inf, 1 };
    const double want_cy[4] = { 1, 3, nan, nan };
    const double want_y[4] = { tanh(1.0), tanh(3.0), nan, nan };
    scene s;
    begin(&s, &(cell_case){ .rows = 1, .hidden = 4 });
    memcpy(s.values[X], x, sizeof x);
    memcpy(s.values[C], c, sizeof c);
    build(&s);
    MUST(forward(&s));
    double y[4], cy[4];
    test_tensor_get(&s.t[Y], y);
    test_tensor_get(&s.t[CY], cy);
    for (int i = 0; i < 4; i++) {
        assert_true(isnan(want_y[i]) ? isnan(y[i]) : fabs(y[i] - want_y[i]) < 1e-6);
        assert_true(isnan(want_cy[i]) ? isnan(cy[i]) : cy[i] == want_cy[i]);
    }
    end(&s);

    const double gru_x[12] = { 0, inf, 0, nan, /* */ inf, -inf, -inf, 0, /* */ 0, 1, -inf, 0 };
    const double h[4] = { 7, 7, 7, 7 }, want_h[4] = { 7, tanh(1.0), -1, nan };
    begin(&s, &(cell_case){ .is_gru = true, .rows = 1, .hidden = 4 });
    memcpy(s.values[X], gru_x, sizeof gru_x);
    memset(s.values[U], 0, 12 * sizeof(double));
    memcpy(s.values[C], h, sizeof h);
    build(&s);
    MUST(forward(&s));
    test_tensor_get(&s.t[Y], y);
    for (int i = 0; i < 4; i++)
        assert_true(isnan(want_h[i]) ? isnan(y[i]) : fabs(y[i] - want_h[i]) < 1e-6);
    end(&s);
}

static void rnn_of_nothing_launches_nothing(void **state)
{
    (void)state;
    for (int gru = 0; gru < 2; gru++)
        for (int i = 0; i < 2; i++) {
            atto_device_stats before, after;
            MUST(atto_device_stats_get(test_dev, &before));
            check(&(cell_case){ .is_gru = gru == 1, .rows = 3 * i, .hidden = 3 - 3 * i });
            MUST(atto_device_stats_get(test_dev, &after));
            assert_int_equal(after.launches, before.launches);
        }
}

static void rnn_repeats_bit_for_bit(void **state)
{
    (void)state;
    for (int gru = 0; gru < 2; gru++) {
        scene s;
        begin(&s, &(cell_case){ .is_gru = gru == 1, .rows = 101, .hidden = 130 });
        build(&s);
        uint64_t *first = calloc((size_t)s.n * 4, sizeof *first);
        uint64_t *again = calloc((size_t)s.n * 4, sizeof *again);
        for (int run = 0; run < 20; run++) {
            MUST(forward(&s));
            MUST(backward(&s));
            test_tensor_bits(&s.t[DX], run == 0 ? first : again);
            if (run > 0) assert_memory_equal(first, again, (size_t)s.n * 3 * sizeof *first);
        }
        free(first), free(again);
        end(&s);
    }
}

static void rnn_in_a_steady_state_costs_launches_only(void **state)
{
    (void)state;
    for (int gru = 0; gru < 2; gru++) {
        scene s;
        begin(&s, &(cell_case){ .is_gru = gru == 1, .rows = 10, .hidden = 30 });
        build(&s);
        atto_device_stats before, after;
        for (int i = 0; i < 5; i++) {
            if (i == 2) MUST(atto_device_stats_get(test_dev, &before));
            MUST(forward(&s));
            MUST(backward(&s));
        }
        MUST(atto_device_stats_get(test_dev, &after));
        assert_int_equal(after.launches - before.launches, 2 * 3);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.blocking_calls, before.blocking_calls);
        end(&s);
    }
}

/* The kernels cannot be built: the CPU does it. */
static void rnn_falls_back_to_the_cpu(void **state)
{
    (void)state;
    if (!test_on_opencl()) skip();
    test_broken b;
    test_broken_open(&b, "rnn");
    atto_device *own = test_dev;
    test_dev = b.dev;
    check(&(cell_case){ .rows = 3, .hidden = 9 });
    check(&(cell_case){ .is_gru = true, .rows = 3, .hidden = 9 });
    test_dev = own;
    test_broken_close(&b, 4);
}

/* ---- what is refused ---- */

static void spoil_x(scene *s)
{
    s->t[X].view.shape[1]--;
    s->t[DX].view.shape[1]--;
}
static void spoil_y(scene *s)
{
    s->t[Y].view.shape[0] = 2;
    s->t[DY].view.shape[0] = 2;
}
static void spoil_gates(scene *s)
{
    s->t[GATES].view.shape[1] = 9;
}
static void spoil_rank(scene *s)
{
    s->t[C].view.rank = 0;
}
static void spoil_dtype(scene *s)
{
    s->t[C].view.dtype = ATTO_I32;
}
static void spoil_mix(scene *s)
{
    s->t[Y].view.dtype = ATTO_F16;
    s->t[DY].view.dtype = ATTO_F16;
}

static void refuse(void (*spoil)(scene *s), atto_status status, const char *words)
{
    for (int i = 0; i < 4; i++) {
        scene s;
        begin(&s, &(cell_case){ .is_gru = i / 2 == 1, .rows = 3, .hidden = 4 });
        build(&s);
        spoil(&s);
        EXPECT_FAIL(i % 2 ? backward(&s) : forward(&s), status, words);
        assert_true(test_tensor_untouched(&s.t[CY]) && test_tensor_untouched(&s.t[DU]));
        end(&s);
    }
}

static void rnn_refuses_what_does_not_fit(void **state)
{
    (void)state;
    refuse(spoil_x, ATTO_E_SHAPE, "x is [3,|expected [3,1");
    refuse(spoil_y, ATTO_E_SHAPE, "y is [2,4]|[3,4]");
    refuse(spoil_gates, ATTO_E_SHAPE, "gates is [3,9]|[3,16]");
    refuse(spoil_rank, ATTO_E_SHAPE, "has no dimension");
    refuse(spoil_dtype, ATTO_E_DTYPE, "is i32|f32, f16 or bf16");
    refuse(spoil_mix, ATTO_E_DTYPE, "y is f16|expected f32");
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(rnn_matches_oracle_at_any_size),
    cmocka_unit_test(rnn_takes_any_layout),
    cmocka_unit_test(rnn_takes_rows_of_a_sequence_as_they_are),
    cmocka_unit_test(lstm_backward_takes_one_gradient_or_none),
    cmocka_unit_test(rnn_writes_the_gradients_that_are_wanted),
    cmocka_unit_test(rnn_without_gates_saves_nothing),
    cmocka_unit_test(rnn_works_in_place),
    cmocka_unit_test(rnn_passes_infinities_and_nan_on),
    cmocka_unit_test(rnn_of_nothing_launches_nothing),
    cmocka_unit_test(rnn_repeats_bit_for_bit),
    cmocka_unit_test(rnn_in_a_steady_state_costs_launches_only),
    cmocka_unit_test(rnn_falls_back_to_the_cpu),
    cmocka_unit_test(rnn_refuses_what_does_not_fit),
};
TEST_MAIN("rnn", tests)
