/* SPDX-License-Identifier: MIT */
/* torch.nn.Linear's own numbers (golden/linear.txt, float64) judge the oracle tightly and every
 * backend as the oracle does. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- the file ---- */

#define MOST_ROWS     16
#define MOST_ELEMENTS 96

typedef double values[MOST_ELEMENTS];

/* x w b dy are exact in the dtype. */
typedef struct golden_row {
    atto_dtype dtype;
    atto_activation act;
    int m, n, k;
    values x, w, b, dy, z, y, dx, dw, db;
} golden_row;

static struct golden {
    char torch[64];
    int rows;
    golden_row row[MOST_ROWS];
} golden;

static void malformed(const char *what)
{
    fail_msg(ATTO_GOLDEN_DIR "/linear.txt: %s; make it again with make_golden.py", what);
}

static atto_dtype dtype_of(const char *name)
{
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++)
        if (strcmp(name, atto_dtype_name((atto_dtype)dtype)) == 0) return (atto_dtype)dtype;
    malformed(name);
    return ATTO_F32;
}

static atto_activation act_of(const char *name)
{
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++)
        if (strcmp(name, atto_activation_name((atto_activation_kind)kind)) == 0)
            return atto_activation_default((atto_activation_kind)kind);
    malformed(name);
    return atto_identity();
}

static void read_values(FILE *file, double *out, int count)
{
    if (count > MOST_ELEMENTS) malformed("too many elements");
    for (int i = 0; i < count; i++)
        if (fscanf(file, "%lf", &out[i]) != 1) malformed("an element is missing");
}

static bool read_row(FILE *file)
{
    char dtype[8], act[32];
    int m, n, k;
    if (fscanf(file, " linear %7s %31s %d %d %d", dtype, act, &m, &n, &k) != 5) return false;
    if (golden.rows == MOST_ROWS) malformed("too many rows");
    golden_row *r = &golden.row[golden.rows++];
    r->dtype = dtype_of(dtype);
    r->act = act_of(act);
    r->m = m, r->n = n, r->k = k;
    read_values(file, r->x, m * k);
    read_values(file, r->w, n * k);
    read_values(file, r->b, n);
    read_values(file, r->dy, m * n);
    read_values(file, r->z, m * n);
    read_values(file, r->y, m * n);
    read_values(file, r->dx, m * k);
    read_values(file, r->dw, n * k);
    read_values(file, r->db, n);
    return true;
}

static int read_golden(void **state)
{
    (void)state;
    FILE *file = fopen(ATTO_GOLDEN_DIR "/linear.txt", "r");
    if (!file) {
        print_error("cannot open " ATTO_GOLDEN_DIR "/linear.txt\n");
        return -1;
    }
    if (fscanf(file, "#%*[^\n] torch %63s", golden.torch) != 1) malformed("no version");
    while (read_row(file)) {
    }
    if (!feof(file)) malformed("something behind the last layer");
    fclose(file);
    return 0;
}

static void golden_file_is_complete(void **state)
{
    (void)state;
    bool seen[ATTO_BF16 + 1] = { false };
    for (int r = 0; r < golden.rows; r++) {
        const golden_row *row = &golden.row[r];
        seen[row->dtype] = true;
        for (int i = 0; i < row->m * row->k; i++)
            assert_true(row->x[i] == oracle_round(row->dtype, row->x[i]));
    }
    assert_true(seen[ATTO_F32] && seen[ATTO_F16] && seen[ATTO_BF16]);
    assert_int_equal(strncmp(golden.torch, "2.11", 4), 0);
}

/* ---- the oracle's view of a row ---- */

typedef struct answer {
    oracle_sum z[MOST_ELEMENTS], dz[MOST_ELEMENTS], dx[MOST_ELEMENTS], dw[MOST_ELEMENTS],
        db[MOST_ELEMENTS];
    double y[MOST_ELEMENTS];
} answer;

static oracle_linear layer_of(const golden_row *row)
{
    return (oracle_linear){ .m = row->m,
                            .n = row->n,
                            .k = row->k,
                            .x = row->x,
                            .w = row->w,
                            .b = row->b,
                            .z = row->z,
                            .dy = row->dy,
                            .act = row->act };
}

static void gradients_of(const oracle_linear *l, const oracle_sum *dz, answer *out)
{
    oracle_linear_dx(l, dz, out->dx);
    oracle_linear_dw(l, dz, out->dw);
    oracle_linear_db(l, dz, out->db);
}

static void answer_of(const golden_row *row, answer *out)
{
    const oracle_linear l = layer_of(row);
    for (int i = 0; i < row->m * row->n; i++) {
        out->z[i] = oracle_linear_z(&l, i / row->n, i % row->n);
        out->y[i] = oracle_linear_y(&l, i / row->n, i % row->n, out->z[i].value);
        out->dz[i] = oracle_linear_dz(&l, i / row->n, i % row->n);
    }
    gradients_of(&l, out->dz, out);
}

/* ---- the oracle against PyTorch ---- */

/* Both are double: as many roundings of 2^-53 as terms and an activation have. */
static void judge(const golden_row *row, const char *what, double got, double want, double terms)
{
    const double allowed = 0x1p-53 * (row->m + row->n + row->k + 64) * fmax(terms, fabs(want));
    if (fabs(got - want) <= allowed) return;
    fail_msg("%s of linear [%d,%d,%d] %s: the oracle says %.17g, PyTorch %s %.17g", what, row->m,
             row->n, row->k, atto_activation_name(row->act.kind), got, golden.torch, want);
}

static void judge_sums(const golden_row *row, const char *what, const oracle_sum *got,
                       const double *want, int count)
{
    for (int i = 0; i < count; i++) judge(row, what, got[i].value, want[i], got[i].terms);
}

static void golden_linear_matches_oracle(void **state)
{
    (void)state;
    for (int r = 0; r < golden.rows; r++) {
        const golden_row *row = &golden.row[r];
        answer a;
        answer_of(row, &a);
        judge_sums(row, "z", a.z, row->z, row->m * row->n);
        for (int i = 0; i < row->m * row->n; i++) judge(row, "y", a.y[i], row->y[i], a.z[i].terms);
        judge_sums(row, "dx", a.dx, row->dx, row->m * row->k);
        judge_sums(row, "dw", a.dw, row->dw, row->n * row->k);
        judge_sums(row, "db", a.db, row->db, row->n);
    }
}

/* ---- the device against PyTorch ---- */

typedef double (*function)(double x, double a, double b);

/* How far f may be off when z is: the larger change at the two ends. */
static double change(function f, double z, double off)
{
    return fmax(fabs(f(z - off, 0.0, 0.0) - f(z, 0.0, 0.0)),
                fabs(f(z + off, 0.0, 0.0) - f(z, 0.0, 0.0)));
}

/* What each number may be off by. The device's own z, in f32, goes into its gradients. */
typedef struct tolerance {
    values z, y, dx, dw, db;
} tolerance;

static void allow_sums(const golden_row *row, const oracle_sum *off, const oracle_sum *sums, int n,
                       double *out, int count)
{
    for (int i = 0; i < count; i++)
        out[i] = off[i].terms + atto_tol("linear_grad", row->dtype, n, sums[i].terms);
}

static void tolerance_of(const golden_row *row, const answer *a, tolerance *out)
{
    const oracle_linear l = layer_of(row);
    const oracle_act *o = oracle_act_of(row->act.kind);
    char grad[40];
    answer off = *a; /* of dz: what each is off by; then what the gradients inherit */
    snprintf(grad, sizeof grad, "%s_grad", o->name);
    for (int i = 0; i < row->m * row->n; i++) {
        const double z = row->z[i], terms = oracle_act_terms(row->act, 0.0f, z);
        out->z[i] = atto_tol("linear", ATTO_F32, row->k + 1, a->z[i].terms);
        out->y[i] = change(o->f, z, out->z[i]) + atto_tol(o->name, ATTO_F32, 1, terms);
        off.dz[i].terms = change(o->df, z, out->z[i]) * fabs(row->dy[i]) +
                          atto_tol(grad, ATTO_F32, 1, a->dz[i].terms);
    }
    gradients_of(&l, off.dz, &off);
    allow_sums(row, off.dx, a->dx, row->n, out->dx, row->m * row->k);
    allow_sums(row, off.dw, a->dw, row->m, out->dw, row->n * row->k);
    allow_sums(row, off.db, a->db, row->m, out->db, row->n);
}

static void expect(const golden_row *row, const char *op, test_tensor *t, const double *want,
                   const double *allowed)
{
    const test_about about = { op, atto_activation_name(row->act.kind), t->view.dtype,
                               atto_shape_of(t->view.rank, t->view.shape), 0 };
    values got;
    test_tensor_get(t, got);
    expect_close(&about, got, want, allowed, t->numel);
    test_tensor_drop(t);
}

static void give(test_tensor *t, atto_dtype dtype, atto_shape shape, const double *data)
{
    test_tensor_make(t, test_dev, dtype, shape, LAYOUT_DENSE);
    if (data) test_tensor_put(t, data);
}

/* f32 where the op allows it, so that no rounding to 16 bits hides an error. */
static void check_device(const golden_row *row)
{
    const atto_shape sx = atto_shape2(row->m, row->k), sw = atto_shape2(row->n, row->k);
    const atto_shape sy = atto_shape2(row->m, row->n), sb = atto_shape1(row->n);
    test_tensor x, w, b, dy, z, y, dx, dw, db;
    answer a;
    tolerance allowed;
    answer_of(row, &a);
    tolerance_of(row, &a, &allowed);
    give(&x, row->dtype, sx, row->x);
    give(&w, row->dtype, sw, row->w);
    give(&b, row->dtype, sb, row->b);
    give(&dy, ATTO_F32, sy, row->dy);
    give(&z, ATTO_F32, sy, NULL);
    give(&y, ATTO_F32, sy, NULL);
    give(&dx, row->dtype, sx, NULL);
    give(&dw, ATTO_F32, sw, NULL);
    give(&db, ATTO_F32, sb, NULL);
    const struct atto_linear_args args = { .x = &x.view,
                                           .w = &w.view,
                                           .b = &b.view,
                                           .y = &y.view,
                                           .z = &z.view,
                                           .dy = &dy.view,
                                           .dx = &dx.view,
                                           .dw = &dw.view,
                                           .db = &db.view,
                                           .act = row->act };
    MUST(atto_linear_forward(test_dev, &args));
    MUST(atto_linear_backward(test_dev, &args));
    expect(row, "linear z", &z, row->z, allowed.z);
    expect(row, "linear y", &y, row->y, allowed.y);
    expect(row, "linear dx", &dx, row->dx, allowed.dx);
    expect(row, "linear dw", &dw, row->dw, allowed.dw);
    expect(row, "linear db", &db, row->db, allowed.db);
    test_tensor *const inputs[] = { &x, &w, &b, &dy };
    for (int i = 0; i < COUNT_OF(inputs); i++) test_tensor_drop(inputs[i]);
}

static void golden_linear_matches_device(void **state)
{
    (void)state;
    for (int r = 0; r < golden.rows; r++) check_device(&golden.row[r]);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(golden_file_is_complete, read_golden),
    cmocka_unit_test(golden_linear_matches_oracle),
    cmocka_unit_test(golden_linear_matches_device),
};
TEST_MAIN("golden_linear", tests)
