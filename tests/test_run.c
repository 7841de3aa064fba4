/* SPDX-License-Identifier: MIT */
/* What every op owes its caller, generated from the op table and its field lists: each bad argument
 * gives the right status, names the field, leaves every tensor untouched and the device usable. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"

/* ---- the op table as data ---- */

typedef enum use {
    UNUSED,
    READS,
    READS_IF_GIVEN,
    WRITES,
    WRITES_IF_GIVEN,
    UPDATES_IF_GIVEN /* reads and writes */
} use;
typedef enum direction { FORWARD, BACKWARD } direction;

/* What each role of tables.h means in the two directions. */
/* clang-format off */
#define USE_IN        { READS, READS }
#define USE_IN_OPT    { READS_IF_GIVEN, READS_IF_GIVEN }
#define USE_IN_NEEDED { READS, READS_IF_GIVEN }
#define USE_IN_FWD    { READS, UNUSED }
#define USE_IN_FWD_OPT { READS_IF_GIVEN, UNUSED }
#define USE_STATE_OPT { UPDATES_IF_GIVEN, UNUSED }
#define USE_OUT       { WRITES, UNUSED }
#define USE_SAVED     { WRITES, READS }
#define USE_SAVED_OPT { WRITES_IF_GIVEN, READS_IF_GIVEN }
#define USE_SAVED_NEEDED { WRITES, READS_IF_GIVEN }
#define USE_SAVED_FWD_OPT { WRITES_IF_GIVEN, READS }
#define USE_DIN       { UNUSED, READS }
#define USE_DIN_OPT   { UNUSED, READS_IF_GIVEN }
#define USE_DOUT      { UNUSED, WRITES_IF_GIVEN }
/* clang-format on */

typedef struct field {
    const char *name;
    size_t offset; /* of the pointer in the args struct */
    use uses[2];
} field;

#define MAX_FIELDS 24

/* A legal tensor for a field, and the range of its values. */
typedef struct spec {
    atto_shape shape;
    atto_dtype dtype;
    double lo, hi;
} spec;

typedef struct op_row {
    const char *name;
    size_t bytes, reserved;
    bool elementwise, in_place;
    test_layout packed; /* a layout of many dimensions that takes hidden copies */
    const field *fields;
    int field_count;
    atto_status (*call)(atto_device *dev, direction d, const void *args);
    void (*numbers)(void *args);
    spec (*spec_of)(const char *name, bool many_dims);
} op_row;

/* ---- one pair of functions per op: legal numbers, legal tensors ---- */

static spec spec_elementwise(bool many_dims)
{
    const atto_shape many = atto_shape_of(5, (int64_t[]){ 2, 3, 2, 3, 5 });
    return (spec){ many_dims ? many : atto_shape2(3, 5), ATTO_F32, -2.0, 2.0 };
}

static void numbers_act(struct atto_act_args *a)
{
    a->act = atto_gelu();
    a->dropout = 0.5f;
}
static spec spec_act(const char *name, bool many_dims)
{
    (void)name;
    return spec_elementwise(many_dims);
}

static void numbers_dropout(struct atto_dropout_args *a)
{
    a->p = 0.5f;
}
static spec spec_dropout(const char *name, bool many_dims)
{
    (void)name;
    return spec_elementwise(many_dims);
}

static void numbers_linear(struct atto_linear_args *a)
{
    a->act = atto_gelu();
    a->dropout = 0.5f;
}
/* 6 rows, 5 features in, 3 out. */
static spec spec_linear(const char *name, bool many_dims)
{
    static const struct {
        const char *name;
        int64_t columns;
    } matrices[] = {
        { "x", 5 }, { "dx", 5 }, { "y", 3 }, { "z", 3 }, { "dy", 3 }, { "residual", 3 }
    };
    spec legal = { atto_shape1(3), ATTO_F32, -2.0, 2.0 }; /* b, db */
    if (strcmp(name, "w") == 0 || strcmp(name, "dw") == 0) legal.shape = atto_shape2(3, 5);
    for (int i = 0; i < COUNT_OF(matrices); i++)
        if (strcmp(name, matrices[i].name) == 0)
            legal.shape = many_dims ? atto_shape3(2, 3, matrices[i].columns)
                                    : atto_shape2(6, matrices[i].columns);
    return legal;
}

static void numbers_cross_entropy(struct atto_cross_entropy_args *a)
{
    a->reduction = ATTO_REDUCTION_NONE;
    a->label_smoothing = 0.25f;
}
/* 12 positions of 5 classes with probabilities, whose gradient is a field too. */
static spec spec_cross_entropy(const char *name, bool many_dims)
{
    static const char *const matrices[] = { "x", "dx", "target", "dtarget" };
    spec legal = { many_dims ? atto_shape3(2, 3, 2) : atto_shape1(12), ATTO_F32, 0.0, 1.0 };
    if (strcmp(name, "weight") == 0) legal.shape = atto_shape1(5);
    if (strcmp(name, "total") == 0) legal.shape = atto_shape_of(0, NULL);
    for (int i = 0; i < COUNT_OF(matrices); i++)
        if (strcmp(name, matrices[i]) == 0)
            legal.shape = many_dims ? atto_shape4(2, 5, 3, 2) : atto_shape2(12, 5);
    return legal;
}

static void numbers_unary(struct atto_unary_args *a)
{
    a->kind = ATTO_UNARY_EXP;
}
static spec spec_unary(const char *name, bool many_dims)
{
    (void)name;
    return spec_elementwise(many_dims);
}

static void numbers_cast(struct atto_cast_args *a)
{
    (void)a;
}
static spec spec_cast(const char *name, bool many_dims)
{
    (void)name;
    return spec_elementwise(many_dims);
}

static void numbers_binary(struct atto_binary_args *a)
{
    a->kind = ATTO_BINARY_MUL;
}
static spec spec_binary(const char *name, bool many_dims)
{
    (void)name;
    return spec_elementwise(many_dims);
}

static void numbers_where(struct atto_where_args *a)
{
    (void)a;
}
static spec spec_where(const char *name, bool many_dims)
{
    spec legal = spec_elementwise(many_dims);
    if (strcmp(name, "cond") == 0) legal.dtype = ATTO_I32;
    return legal;
}

static void numbers_compare(struct atto_compare_args *a)
{
    a->kind = ATTO_COMPARE_LT;
}
static spec spec_compare(const char *name, bool many_dims)
{
    spec legal = spec_elementwise(many_dims);
    if (strcmp(name, "y") == 0) legal.dtype = ATTO_I32;
    return legal;
}

/* Over the last dimension, or over every other one. */
static void numbers_reduce(struct atto_reduce_args *a)
{
    a->kind = ATTO_REDUCE_MEAN; /* a maximum that is not x's gives NaN */
    a->dim_count = 1;
    a->dims[0] = -1;
}
static spec spec_reduce(const char *name, bool many_dims)
{
    spec legal = spec_elementwise(many_dims);
    if (strcmp(name, "y") == 0 || strcmp(name, "dy") == 0)
        legal.shape = many_dims ? atto_shape4(2, 3, 2, 3) : atto_shape1(3);
    return legal;
}

/* Over the last dimension, or one in the middle. */
static void numbers_softmax(struct atto_softmax_args *a)
{
    a->dim = 1;
}
static spec spec_softmax(const char *name, bool many_dims)
{
    (void)name;
    return spec_elementwise(many_dims);
}

/* Every field is used: binary cross-entropy, element by element. */
static void numbers_loss(struct atto_loss_args *a)
{
    a->kind = ATTO_LOSS_BCE_WITH_LOGITS;
    a->reduction = ATTO_REDUCTION_NONE;
}
static spec spec_loss(const char *name, bool many_dims)
{
    (void)name;
    return spec_elementwise(many_dims);
}

static void numbers_glu(struct atto_glu_args *a)
{
    a->dim = 1;
    a->act = atto_silu();
}
static spec spec_glu(const char *name, bool many_dims)
{
    spec legal = spec_elementwise(many_dims);
    const bool whole = strcmp(name, "x") == 0 || strcmp(name, "dx") == 0;
    legal.shape.dim[1] = whole ? 6 : 3;
    return legal;
}

static void numbers_nll_loss(struct atto_nll_loss_args *a)
{
    a->reduction = ATTO_REDUCTION_NONE;
}
/* 12 positions of 5 classes. */
static spec spec_nll_loss(const char *name, bool many_dims)
{
    spec legal = { many_dims ? atto_shape3(2, 3, 2) : atto_shape1(12), ATTO_F32, 0.0, 4.0 };
    if (strcmp(name, "target") == 0) legal.dtype = ATTO_I64;
    if (strcmp(name, "weight") == 0) legal.shape = atto_shape1(5);
    if (strcmp(name, "total") == 0) legal.shape = atto_shape_of(0, NULL);
    if (strcmp(name, "x") == 0 || strcmp(name, "dx") == 0)
        legal.shape = many_dims ? atto_shape4(2, 5, 3, 2) : atto_shape2(12, 5);
    return legal;
}

/* 6 rows of 5. */
static void numbers_layer_norm(struct atto_layer_norm_args *a)
{
    a->dims = 1;
    a->eps = 1e-5f;
}
static spec spec_layer_norm(const char *name, bool many_dims)
{
    static const char *const rows[] = { "x", "y", "dy", "dx" };
    spec legal = { atto_shape1(5), ATTO_F32, -2.0, 2.0 }; /* w, b, dw, db */
    if (strcmp(name, "mean") == 0 || strcmp(name, "rstd") == 0)
        legal.shape = many_dims ? atto_shape3(2, 3, 2) : atto_shape1(6);
    for (int i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(name, rows[i]) == 0)
            legal.shape = many_dims ? atto_shape4(2, 3, 2, 5) : atto_shape2(6, 5);
    return legal;
}

static void numbers_rms_norm(struct atto_rms_norm_args *a)
{
    a->dims = 1;
    a->eps = 1e-5f;
}
static spec spec_rms_norm(const char *name, bool many_dims)
{
    return spec_layer_norm(name, many_dims);
}

/* 12 values in each of 5 channels. */
static void numbers_batch_norm(struct atto_batch_norm_args *a)
{
    a->act = atto_gelu();
    a->training = true;
    a->momentum = 0.1f;
    a->eps = 1e-5f;
}
static spec spec_batch_norm(const char *name, bool many_dims)
{
    static const char *const full[] = { "x", "y", "dy", "dx", "residual", "dresidual" };
    spec legal = { atto_shape1(5), ATTO_F32, -2.0, 2.0 };
    if (strcmp(name, "batches") == 0) legal = (spec){ atto_shape0(), ATTO_I64, 0.0, 9.0 };
    for (int i = 0; i < COUNT_OF(full); i++)
        if (strcmp(name, full[i]) == 0)
            legal.shape = many_dims ? atto_shape4(2, 5, 3, 2) : atto_shape2(12, 5);
    return legal;
}

/* Windows of 2 x 2 over [2, 3, 4, 6]. */
static atto_pool_window window_of_two(void)
{
    return (atto_pool_window){
        .dims = 2, .kernel = { 2, 2 }, .stride = { 2, 2 }, .dilation = { 1, 1 }
    };
}
static spec spec_pool(const char *name, bool many_dims)
{
    const bool big = strcmp(name, "x") == 0 || strcmp(name, "dx") == 0;
    spec legal = { atto_shape4(2, 3, big ? 4 : 2, big ? 6 : 3), ATTO_F32, -2.0, 2.0 };
    if (!many_dims) legal.shape = atto_shape3(3, big ? 4 : 2, big ? 6 : 3);
    if (strcmp(name, "indices") == 0) legal = (spec){ legal.shape, ATTO_I64, 0.0, 1.0 };
    return legal;
}

static void numbers_avg_pool(struct atto_avg_pool_args *a)
{
    a->window = window_of_two();
}
static spec spec_avg_pool(const char *name, bool many_dims)
{
    return spec_pool(name, many_dims);
}

static void numbers_max_pool(struct atto_max_pool_args *a)
{
    a->window = window_of_two();
}
static spec spec_max_pool(const char *name, bool many_dims)
{
    return spec_pool(name, many_dims);
}

/* 2 images of 3 channels and 4 x 5 elements, 2 outputs of 4 x 5; filters of 3 x 3. */
static void numbers_conv(struct atto_conv_args *a)
{
    a->act = atto_silu();
    a->window = (atto_conv_window){ .dims = 2,
                                    .groups = 1,
                                    .stride = { 1, 1 },
                                    .padding = { 1, 1 },
                                    .padding_after = { 1, 1 },
                                    .dilation = { 1, 1 } };
}
static spec spec_conv(const char *name, bool many_dims)
{
    spec legal = { atto_shape4(2, 2, 4, 5), ATTO_F32, -1.0, 1.0 };
    const bool image = strcmp(name, "x") == 0 || strcmp(name, "dx") == 0;
    const bool filter = strcmp(name, "w") == 0 || strcmp(name, "dw") == 0;
    const bool bias = strcmp(name, "b") == 0 || strcmp(name, "db") == 0;
    if (image) legal.shape = atto_shape4(2, 3, 4, 5);
    if (filter) legal.shape = atto_shape4(2, 3, 3, 3);
    if (bias) legal.shape = atto_shape1(2);
    (void)many_dims;
    return legal;
}

/* 5 groups of one channel in 4 images. */
static void numbers_group_norm(struct atto_group_norm_args *a)
{
    a->groups = 5;
    a->momentum = 0.1f;
    a->eps = 1e-5f;
}
static spec spec_group_norm(const char *name, bool many_dims)
{
    static const char *const full[] = { "x", "y", "dy", "dx" };
    spec legal = { atto_shape1(5), ATTO_F32, -2.0, 2.0 };
    if (strcmp(name, "mean") == 0 || strcmp(name, "rstd") == 0)
        legal.shape = atto_shape2(many_dims ? 2 : 4, 5);
    for (int i = 0; i < COUNT_OF(full); i++)
        if (strcmp(name, full[i]) == 0)
            legal.shape = many_dims ? atto_shape4(2, 5, 3, 2) : atto_shape3(4, 5, 3);
    return legal;
}

/* Rows of a table of 6 x 5, all of them the first two. */
static void numbers_index_select(struct atto_index_select_args *a)
{
    a->dim = 0;
}
static spec spec_index_select(const char *name, bool many_dims)
{
    spec legal = { atto_shape2(6, 5), ATTO_F32, -2.0, 2.0 }; /* x, dx */
    if (strcmp(name, "index") == 0)
        legal = (spec){ many_dims ? atto_shape3(3, 2, 2) : atto_shape1(12), ATTO_I64, 0.0, 1.5 };
    if (strcmp(name, "y") == 0 || strcmp(name, "dy") == 0)
        legal.shape = many_dims ? atto_shape4(3, 2, 2, 5) : atto_shape2(12, 5);
    return legal;
}

/* 4 of 3 along dimension 1. */
static void numbers_gather(struct atto_gather_args *a)
{
    a->dim = 1;
}
static spec spec_gather(const char *name, bool many_dims)
{
    const bool whole = strcmp(name, "x") == 0 || strcmp(name, "dx") == 0;
    spec legal = { many_dims ? atto_shape4(2, whole ? 3 : 4, 3, 2) : atto_shape2(5, whole ? 3 : 4),
                   ATTO_F32, -2.0, 2.0 };
    if (strcmp(name, "index") == 0) legal = (spec){ legal.shape, ATTO_I64, 0.0, 1.5 };
    return legal;
}

static void numbers_matmul(struct atto_matmul_args *a)
{
    (void)a;
}
/* 2 products of [3, 5] and [5, 4], or 12. */
static spec spec_matmul(const char *name, bool many_dims)
{
    const bool of_a = strcmp(name, "a") == 0 || strcmp(name, "da") == 0;
    const bool of_b = strcmp(name, "b") == 0 || strcmp(name, "db") == 0;
    const int64_t rows = of_b ? 5 : 3, columns = of_a ? 5 : 4;
    return (spec){ many_dims ? atto_shape_of(5, (int64_t[]){ 2, 3, 2, rows, columns })
                             : atto_shape3(2, rows, columns),
                   ATTO_F32, -2.0, 2.0 };
}

static void numbers_attention(struct atto_attention_args *a)
{
    a->dropout = 0.5f;
}
/* 2 batches of 4 heads, 2 of keys, of 3 queries and 5 keys. */
static spec spec_attention(const char *name, bool many_dims)
{
    (void)many_dims;
    if (strcmp(name, "mask") == 0) return (spec){ atto_shape2(3, 5), ATTO_F32, -2.0, 2.0 };
    if (strncmp(name, "lse", 3) == 0) return (spec){ atto_shape3(2, 4, 3), ATTO_F32, 1.0, 2.0 };
    const bool of_keys = strchr("kv", name[strlen(name) - 1]);
    const int64_t head = strchr("qk", name[strlen(name) - 1]) ? 6 : 7;
    return (spec){ of_keys ? atto_shape4(2, 2, 5, head) : atto_shape4(2, 4, 3, head), ATTO_F32,
                   -2.0, 2.0 };
}

static void numbers_rope(struct atto_rope_args *a)
{
    a->pairing = ATTO_ROPE_NEIGHBOURS;
}
/* 2 batches of 3 heads of 4 positions, 6 of 7 elements turned by rows of a table of 5. */
static spec spec_rope(const char *name, bool many_dims)
{
    (void)many_dims;
    if (strcmp(name, "cos") == 0 || strcmp(name, "sin") == 0)
        return (spec){ atto_shape2(5, 3), ATTO_F32, -1.0, 1.0 };
    if (strcmp(name, "position") == 0) return (spec){ atto_shape2(2, 4), ATTO_I64, 0.0, 4.5 };
    return (spec){ atto_shape4(2, 3, 4, 7), ATTO_F32, -2.0, 2.0 };
}

static void numbers_lstm_cell(struct atto_lstm_cell_args *a)
{
    (void)a;
}
/* Gates and states of 3 x 4, or 2 x 3 x 2 x 4. */
static spec spec_lstm_cell(const char *name, bool many_dims)
{
    const bool of_gates = strchr("xs", name[strlen(name) - 1]);
    const int64_t last = of_gates ? 16 : 4;
    return (spec){ many_dims ? atto_shape4(2, 3, 2, last) : atto_shape2(3, last), ATTO_F32,
                   of_gates ? 0.1 : -2.0, of_gates ? 0.9 : 2.0 };
}

static void numbers_gru_cell(struct atto_gru_cell_args *a)
{
    (void)a;
}
static spec spec_gru_cell(const char *name, bool many_dims)
{
    spec legal = spec_lstm_cell(name, many_dims);
    if (strchr("xu", name[strlen(name) - 1])) legal.shape.dim[legal.shape.rank - 1] = 12;
    return legal;
}

/* A row in front of [2, 3, 4, 6] or [4, 6], and a column behind. */
static void numbers_pad(struct atto_pad_args *a)
{
    a->before[0] = a->after[1] = 1;
}
static spec spec_pad(const char *name, bool many_dims)
{
    const bool big = strcmp(name, "y") == 0 || strcmp(name, "dy") == 0;
    spec legal = { atto_shape2(big ? 5 : 4, big ? 7 : 6), ATTO_F32, -2.0, 2.0 };
    if (many_dims) legal.shape = atto_shape4(big ? 3 : 2, big ? 4 : 3, 4, 6);
    return legal;
}

/* [2, 3, 4, 6] to [2, 3, 5, 9]. */
static void numbers_resize(struct atto_resize_args *a)
{
    a->mode = ATTO_RESIZE_LINEAR;
    a->dims = 2;
}
static spec spec_resize(const char *name, bool many_dims)
{
    const bool big = strcmp(name, "y") == 0 || strcmp(name, "dy") == 0;
    spec legal = { atto_shape4(2, 3, big ? 5 : 4, big ? 9 : 6), ATTO_F32, -2.0, 2.0 };
    if (!many_dims) legal.shape = atto_shape3(3, big ? 5 : 4, big ? 9 : 6);
    return legal;
}

/* clang-format off */
#define F(field, role) { #field, offsetof(args, field), USE_##role },
#define X(op, OP, layout, autocast, in_place, random, data_errors)                          \
    static atto_status call_##op(atto_device *dev, direction d, const void *args)           \
    {                                                                                       \
        return d == FORWARD ? atto_##op##_forward(dev, args) : atto_##op##_backward(dev, args); \
    }                                                                                       \
    static void set_##op(void *args) { numbers_##op(args); }                                \
    static const field *fields_##op(int *count)                                             \
    {                                                                                       \
        typedef struct atto_##op##_args args;                                               \
        static const field fields[] = { ATTO_##OP##_FIELDS(F) };                            \
        *count = COUNT_OF(fields);                                                          \
        return fields;                                                                      \
    }
ATTO_OP_TABLE(X)
#undef X
#undef F

#define IS_IN_PLACE    true
#define IS_DISTINCT    false
#define IS_ELEMENTWISE true
#define IS_BROADCAST   true /* unless the shapes differ: fill_field_lists */
#define IS_ROWS        false
#define IS_DENSE       false
#define IS_CHANNELS    false
#define IS_IMAGES      false
#define IS_FILTERED    false
#define IS_MATRICES    false
#define IS_INNER       false
#define PACKED_ELEMENTWISE LAYOUT_SCATTERED
#define PACKED_BROADCAST   LAYOUT_SCATTERED
#define PACKED_ROWS        LAYOUT_SCATTERED
#define PACKED_DENSE       LAYOUT_SCATTERED
#define PACKED_CHANNELS    LAYOUT_SCATTERED
#define PACKED_IMAGES      LAYOUT_STEP2
#define PACKED_FILTERED    LAYOUT_STEP2
#define PACKED_MATRICES    LAYOUT_STEP2
#define PACKED_INNER       LAYOUT_STEP2
static op_row ops[] = {
#define X(op, OP, layout, autocast, in_place, random, data_errors)                          \
    { #op, sizeof(struct atto_##op##_args), offsetof(struct atto_##op##_args, reserved),    \
      IS_##layout, IS_##in_place, PACKED_##layout, NULL, 0, call_##op, set_##op, spec_##op },
    ATTO_OP_TABLE(X)
#undef X
};

typedef union any_args {
#define X(op, OP, layout, autocast, in_place, random, data_errors) struct atto_##op##_args op;
    ATTO_OP_TABLE(X)
#undef X
} any_args;
/* clang-format on */

static bool has_one_shape(const op_row *op)
{
    const spec first = op->spec_of(op->fields[0].name, false);
    for (int f = 1; f < op->field_count; f++) {
        const spec other = op->spec_of(op->fields[f].name, false);
        if (memcmp(&first.shape, &other.shape, sizeof first.shape) != 0) return false;
    }
    return true;
}

static bool has_one_dtype(const op_row *op)
{
    for (int f = 1; f < op->field_count; f++)
        if (op->spec_of(op->fields[f].name, false).dtype !=
            op->spec_of(op->fields[0].name, false).dtype)
            return false;
    return true;
}

static void fill_field_lists(void)
{
    int i = 0;
#define X(op, OP, layout, autocast, in_place, random, data_errors) \
    ops[i].fields = fields_##op(&ops[i].field_count);              \
    i++;
    ATTO_OP_TABLE(X)
#undef X
    for (i = 0; i < COUNT_OF(ops); i++)
        ops[i].elementwise = ops[i].elementwise && has_one_shape(&ops[i]);
}

/* ---- a call ready to be made, and to be spoilt ---- */

typedef struct scene {
    const op_row *op;
    direction d;
    any_args args;
    test_tensor tensors[MAX_FIELDS];
    atto_tensor views[MAX_FIELDS]; /* what args points to */
} scene;

static const atto_tensor **slot(scene *s, int f)
{
    return (const atto_tensor **)(void *)((char *)&s->args + s->op->fields[f].offset);
}

static use use_of(const scene *s, int f)
{
    return s->op->fields[f].uses[s->d];
}

static bool writes(const scene *s, int f)
{
    return use_of(s, f) >= WRITES;
}

/* Every field of both directions gets a tensor. */
static void build(scene *s, atto_device *dev, const op_row *op, direction d, test_layout layout,
                  bool many_dims)
{
    memset(s, 0, sizeof *s);
    s->op = op;
    s->d = d;
    op->numbers(&s->args);
    for (int f = 0; f < op->field_count; f++) {
        const spec legal = op->spec_of(op->fields[f].name, many_dims);
        test_tensor_make(&s->tensors[f], dev, legal.dtype, legal.shape, layout);
        double *values = test_doubles(s->tensors[f].numel);
        test_uniform((uint64_t)f, legal.lo, legal.hi, legal.dtype, values, s->tensors[f].numel);
        test_tensor_put(&s->tensors[f], values);
        free(values);
        s->views[f] = s->tensors[f].view;
        *slot(s, f) = &s->views[f];
    }
}

static void tear_down(scene *s)
{
    for (int f = 0; f < s->op->field_count; f++) test_tensor_drop(&s->tensors[f]);
}

static atto_status make_call(scene *s, atto_device *dev)
{
    return s->op->call(dev, s->d, &s->args);
}

static bool nothing_changed(scene *s)
{
    for (int f = 0; f < s->op->field_count; f++)
        if (!test_tensor_untouched(&s->tensors[f])) return false;
    return true;
}

/* The call must fail thus, say so, change nothing, and leave a device on which a legal call works.
 */
static void expect_refusal(scene *s, const char *fault, const char *name, atto_status wanted)
{
    const atto_status got = make_call(s, test_dev);
    const char *message = atto_last_error();
    if (got != wanted || !strstr(message, name) || !strstr(message, s->op->name))
        fail_msg("%s %s, %s: %s on %s gave %s, wanted %s; message: %s", s->op->name,
                 s->d == FORWARD ? "forward" : "backward", fault, name, test_backend(),
                 atto_status_name(got), atto_status_name(wanted), message);
    if (!nothing_changed(s))
        fail_msg("%s %s, %s: %s: a tensor changed although the call failed", s->op->name,
                 s->d == FORWARD ? "forward" : "backward", fault, name);
    scene good;
    build(&good, test_dev, s->op, s->d, LAYOUT_DENSE, false);
    MUST(make_call(&good, test_dev));
    MUST(atto_device_sync(test_dev));
    tear_down(&good);
}

/* A comparison has no gradient: nothing to pass. */
static bool has_fields(const op_row *op, direction d)
{
    for (int f = 0; f < op->field_count; f++)
        if (op->fields[f].uses[d] != UNUSED) return true;
    return false;
}

/* Calls body for every op and direction. */
static void for_each_call(void (*body)(const op_row *op, direction d))
{
    for (int i = 0; i < COUNT_OF(ops); i++)
        for (int d = FORWARD; d <= BACKWARD; d++)
            if (has_fields(&ops[i], (direction)d)) body(&ops[i], (direction)d);
}

/* ---- faults of one field ---- */

static void past_the_end(atto_tensor *t)
{
    t->offset += 100000;
}
static void negative_offset(atto_tensor *t)
{
    t->offset = -1;
}
static void negative_stride(atto_tensor *t)
{
    t->stride[t->rank - 1] = -1;
}
static void stride_past_the_end(atto_tensor *t)
{
    t->stride[0] = 100000;
}
static void rank_nine(atto_tensor *t)
{
    t->rank = 9;
}
static void negative_rank(atto_tensor *t)
{
    t->rank = -1;
}
static void negative_size(atto_tensor *t)
{
    t->shape[0] = -1;
}
static void unknown_dtype(atto_tensor *t)
{
    t->dtype = (atto_dtype)0;
}
static void large_dtype(atto_tensor *t)
{
    t->dtype = (atto_dtype)1000;
}
static void no_buffer(atto_tensor *t)
{
    t->buffer = NULL;
}
static void stride_zero(atto_tensor *t)
{
    t->stride[0] = 0;
}
static void overlapping(atto_tensor *t)
{
    t->stride[0] = t->shape[t->rank - 1] - 1; /* a vector's elements become one */
    if (t->rank == 1) t->stride[0] = 0;
}

static const struct fault_row {
    const char *name;
    void (*spoil)(atto_tensor *t);
    atto_status status;
    bool outputs_only;
    bool of_a_dimension; /* scalars have none */
} fault_rows[] = {
    { "past the end", past_the_end, ATTO_E_SHAPE, false, false },
    { "negative offset", negative_offset, ATTO_E_ARGUMENT, false, false },
    { "negative stride", negative_stride, ATTO_E_STRIDE, false, true },
    { "stride past the end", stride_past_the_end, ATTO_E_SHAPE, false, true },
    { "rank 9", rank_nine, ATTO_E_SHAPE, false, false },
    { "rank -1", negative_rank, ATTO_E_SHAPE, false, false },
    { "negative size", negative_size, ATTO_E_SHAPE, false, true },
    { "unknown dtype", unknown_dtype, ATTO_E_DTYPE, false, false },
    { "large dtype", large_dtype, ATTO_E_DTYPE, false, false },
    { "no buffer", no_buffer, ATTO_E_NULL, false, false },
    { "stride 0", stride_zero, ATTO_E_STRIDE, true, true },
    { "overlapping rows", overlapping, ATTO_E_STRIDE, true, true },
};

static void spoil_each_field(const op_row *op, direction d)
{
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    for (int f = 0; f < op->field_count; f++)
        for (int i = 0; i < COUNT_OF(fault_rows); i++) {
            if (use_of(&s, f) == UNUSED || (fault_rows[i].outputs_only && !writes(&s, f))) continue;
            if (fault_rows[i].of_a_dimension && s.tensors[f].view.rank == 0) continue;
            s.views[f] = s.tensors[f].view;
            fault_rows[i].spoil(&s.views[f]);
            expect_refusal(&s, fault_rows[i].name, op->fields[f].name, fault_rows[i].status);
            s.views[f] = s.tensors[f].view;
        }
    tear_down(&s);
}

static void run_refuses_bad_views(void **state)
{
    (void)state;
    for_each_call(spoil_each_field);
}

static void omit_each_field(const op_row *op, direction d)
{
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    for (int f = 0; f < op->field_count; f++) {
        if (use_of(&s, f) != READS && use_of(&s, f) != WRITES) continue;
        *slot(&s, f) = NULL;
        expect_refusal(&s, "NULL", op->fields[f].name, ATTO_E_NULL);
        *slot(&s, f) = &s.views[f];
    }
    tear_down(&s);
}

static void run_refuses_missing_tensors(void **state)
{
    (void)state;
    for_each_call(omit_each_field);
}

/* Wrong for the op though legal as a view: another dtype, another shape, both or one too few. */
static void mismatch_each_field(const op_row *op, direction d)
{
    if (!op->elementwise) return; /* the family's own test does it */
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    for (int f = 0; f < op->field_count; f++) {
        if (use_of(&s, f) == UNUSED) continue;
        const atto_tensor good = s.views[f];
        const bool any_dtype = strcmp(op->name, "cast") == 0;
        s.views[f].dtype = good.dtype == ATTO_I32 ? ATTO_F32 : ATTO_I32;
        if (!any_dtype) expect_refusal(&s, "i32, or f32 for i32", op->name, ATTO_E_DTYPE);
        s.views[f].dtype = ATTO_F16;
        if (!any_dtype) expect_refusal(&s, "f16 beside f32", op->name, ATTO_E_DTYPE);
        s.views[f] = good;
        s.views[f].shape[1] = 4;
        expect_refusal(&s, "smaller", op->name, ATTO_E_SHAPE);
        s.views[f] = good;
        s.views[f].shape[0] = 5, s.views[f].shape[1] = 3, s.views[f].stride[0] = 3;
        expect_refusal(&s, "as many elements, other shape", op->name, ATTO_E_SHAPE);
        s.views[f] = good;
        s.views[f].rank = 1;
        expect_refusal(&s, "rank 1", op->name, ATTO_E_SHAPE);
        s.views[f] = good;
        s.views[f].shape[0] = 0;
        expect_refusal(&s, "empty beside full", op->name, ATTO_E_SHAPE);
        s.views[f] = good;
    }
    tear_down(&s);
}

static void run_refuses_mismatched_tensors(void **state)
{
    (void)state;
    for_each_call(mismatch_each_field);
}

static void move_each_field_to_another_device(const op_row *op, direction d)
{
    atto_device *other;
    MUST(atto_device_open("cpu", NULL, &other));
    scene s, foreign;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    build(&foreign, other, op, d, LAYOUT_DENSE, false);
    for (int f = 0; f < op->field_count; f++) {
        if (use_of(&s, f) == UNUSED) continue;
        *slot(&s, f) = &foreign.views[f];
        expect_refusal(&s, "other device", op->fields[f].name, ATTO_E_DEVICE);
        assert_true(nothing_changed(&foreign));
        *slot(&s, f) = &s.views[f];
    }
    tear_down(&foreign);
    tear_down(&s);
    atto_device_close(other);
}

static void run_refuses_tensors_of_another_device(void **state)
{
    (void)state;
    for_each_call(move_each_field_to_another_device);
}

/* ---- aliases ---- */

/* An output whose first element is one of another tensor of the call: the last, or, where the views
 * are of one shape, any that is not the first. */
static void overlap_each_output(const op_row *op, direction d)
{
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    for (int out = 0; out < op->field_count; out++)
        for (int other = 0; other < op->field_count; other++) {
            if (!writes(&s, out) || other == out || use_of(&s, other) == UNUSED) continue;
            if (atto_dtype_size(s.views[out].dtype) != atto_dtype_size(s.views[other].dtype))
                continue;
            atto_tensor room;
            const int64_t n = s.tensors[other].numel;
            MUST(atto_tensor_alloc(test_dev, ATTO_I64, atto_shape1(n + s.tensors[out].numel),
                                   &room));
            s.views[out].buffer = s.views[other].buffer = room.buffer;
            s.views[other].offset = 0;
            const int64_t size = (int64_t)atto_dtype_size(s.views[other].dtype);
            const int64_t own = (int64_t)atto_dtype_size(s.views[out].dtype);
            for (int64_t shift = op->elementwise ? 1 : n - 1; shift < n; shift += 13) {
                s.views[out].offset = shift * size / own;
                expect_refusal(&s, "overlap", op->fields[out].name, ATTO_E_ALIAS);
            }
            s.views[out] = s.tensors[out].view;
            s.views[other] = s.tensors[other].view;
            atto_tensor_free(&room);
        }
    tear_down(&s);
}

static void run_refuses_partial_overlap(void **state)
{
    (void)state;
    for_each_call(overlap_each_output);
}

/* The same view: allowed where the table says IN_PLACE and the other one is an input. */
static void alias_each_output(const op_row *op, direction d)
{
    if (!op->elementwise) return; /* the views are not of one shape */
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    for (int out = 0; out < op->field_count; out++)
        for (int other = 0; other < op->field_count; other++) {
            if (!writes(&s, out) || other == out || use_of(&s, other) == UNUSED) continue;
            if (s.views[out].dtype != s.views[other].dtype) continue;
            s.views[out] = s.tensors[other].view;
            if (op->in_place && !writes(&s, other)) {
                MUST(make_call(&s, test_dev));
                tear_down(&s);
                build(&s, test_dev, op, d, LAYOUT_DENSE, false);
            } else {
                expect_refusal(&s, "same view", op->fields[out].name, ATTO_E_ALIAS);
            }
            s.views[out] = s.tensors[out].view;
        }
    tear_down(&s);
}

static void run_takes_exact_aliases_where_the_table_says(void **state)
{
    (void)state;
    for_each_call(alias_each_output);
}

/* Neighbours in one buffer, also interleaved, are no overlap where they have the same strides. */
static void interleave(const op_row *op, direction d)
{
    if (!op->elementwise || !has_one_dtype(op)) return;
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    atto_tensor shared;
    const int64_t n = op->field_count, numel = s.tensors[0].numel;
    MUST(atto_tensor_alloc(test_dev, ATTO_F32, atto_shape1(numel * n), &shared));
    MUST(atto_tensor_fill(&shared, 1.0));
    for (int f = 0; f < op->field_count; f++) {
        atto_tensor *view = &s.views[f];
        view->buffer = shared.buffer;
        view->offset = f;
        for (int32_t dim = 0; dim < view->rank; dim++) view->stride[dim] *= n;
    }
    MUST(make_call(&s, test_dev));
    atto_tensor_free(&shared);
    tear_down(&s);
}

static void run_takes_interleaved_tensors(void **state)
{
    (void)state;
    for_each_call(interleave);
}

/* ---- faults of the call ---- */

static void spoil_call(const op_row *op, direction d)
{
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    uint64_t *reserved = (uint64_t *)(void *)((char *)&s.args + op->reserved);
    for (int i = 0; i < 4; i++) {
        reserved[i] = 1;
        expect_refusal(&s, "reserved", "reserved", ATTO_E_ARGUMENT);
        reserved[i] = 0;
    }
    EXPECT_FAIL(op->call(NULL, d, &s.args), ATTO_E_NULL, op->name);
    EXPECT_FAIL(op->call(test_dev, d, NULL), ATTO_E_NULL, op->name);
    assert_true(nothing_changed(&s));
    tear_down(&s);
}

static void run_refuses_reserved_words_and_null_structs(void **state)
{
    (void)state;
    for_each_call(spoil_call);
}

/* Fields of the other direction are not looked at. */
static void ruin_unused_fields(const op_row *op, direction d)
{
    scene s;
    build(&s, test_dev, op, d, LAYOUT_DENSE, false);
    for (int f = 0; f < op->field_count; f++)
        if (use_of(&s, f) == UNUSED) memset(&s.views[f], 0x5a, sizeof s.views[f]);
    MUST(make_call(&s, test_dev));
    for (int f = 0; f < op->field_count; f++)
        if (use_of(&s, f) == UNUSED) assert_true(test_tensor_untouched(&s.tensors[f]));
    tear_down(&s);
}

static void run_ignores_fields_of_the_other_direction(void **state)
{
    (void)state;
    for_each_call(ruin_unused_fields);
}

/* ---- outputs ---- */

static void expect_no_nan(scene *s, int f)
{
    double *values = test_doubles(s->tensors[f].numel);
    test_tensor_get(&s->tensors[f], values);
    for (int64_t i = 0; i < s->tensors[f].numel; i++)
        if (values[i] != values[i])
            fail_msg("%s: element %" PRId64 " of %s was not written", s->op->name, i,
                     s->op->fields[f].name);
    free(values);
}

/* Every output element is written, also where it lies scattered; nothing else is. */
static void write_all_outputs(const op_row *op, direction d)
{
    for (int layout = 0; layout < LAYOUT_BROADCAST; layout++) {
        scene s;
        build(&s, test_dev, op, d, (test_layout)layout, false);
        for (int f = 0; f < op->field_count; f++)
            if (writes(&s, f) && use_of(&s, f) != UPDATES_IF_GIVEN)
                test_tensor_put(&s.tensors[f], NULL); /* NaN */
        MUST(make_call(&s, test_dev));
        for (int f = 0; f < op->field_count; f++) {
            if (writes(&s, f)) {
                assert_false(test_tensor_untouched(&s.tensors[f]));
                expect_no_nan(&s, f);
            } else {
                assert_true(test_tensor_untouched(&s.tensors[f]));
            }
        }
        tear_down(&s);
    }
}

static void run_writes_every_output_element_and_nothing_else(void **state)
{
    (void)state;
    for_each_call(write_all_outputs);
}

/* ---- hidden copies ---- */

static void count_hidden_copies(const op_row *op, direction d)
{
    scene s;
    atto_device_stats before, after;
    build(&s, test_dev, op, d, op->packed, true);
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(make_call(&s, test_dev));
    MUST(atto_device_stats_get(test_dev, &after));
    assert_true(after.hidden_copies > before.hidden_copies);
    tear_down(&s);
    if (!op->elementwise) return;
    build(&s, test_dev, op, d, LAYOUT_SCATTERED, false); /* two dimensions: none needed */
    MUST(atto_device_stats_get(test_dev, &before));
    MUST(make_call(&s, test_dev));
    MUST(atto_device_stats_get(test_dev, &after));
    assert_int_equal(after.hidden_copies, before.hidden_copies);
    tear_down(&s);
}

static void run_counts_hidden_copies(void **state)
{
    (void)state;
    for_each_call(count_hidden_copies);
}

static atto_device *strict; /* opened with no_hidden_copies */

static void forbid_hidden_copies(const op_row *op, direction d)
{
    scene s;
    build(&s, strict, op, d, op->packed, true);
    EXPECT_FAIL(make_call(&s, strict), ATTO_E_STRIDE, op->name);
    assert_true(nothing_changed(&s));
    tear_down(&s);
    build(&s, strict, op, d, op->elementwise ? LAYOUT_SCATTERED : LAYOUT_DENSE, false);
    MUST(make_call(&s, strict));
    tear_down(&s);
}

static void run_refuses_hidden_copies_when_told(void **state)
{
    (void)state;
    const atto_device_options options = { .no_hidden_copies = true };
    MUST(atto_device_open(test_device_name(), &options, &strict));
    for_each_call(forbid_hidden_copies);
    atto_device_stats stats;
    MUST(atto_device_stats_get(strict, &stats));
    assert_int_equal(stats.hidden_copies, 0);
    atto_device_close(strict);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(run_refuses_bad_views),
    cmocka_unit_test(run_refuses_missing_tensors),
    cmocka_unit_test(run_refuses_mismatched_tensors),
    cmocka_unit_test(run_refuses_tensors_of_another_device),
    cmocka_unit_test(run_refuses_partial_overlap),
    cmocka_unit_test(run_takes_exact_aliases_where_the_table_says),
    cmocka_unit_test(run_takes_interleaved_tensors),
    cmocka_unit_test(run_refuses_reserved_words_and_null_structs),
    cmocka_unit_test(run_ignores_fields_of_the_other_direction),
    cmocka_unit_test(run_writes_every_output_element_and_nothing_else),
    cmocka_unit_test(run_counts_hidden_copies),
    cmocka_unit_test(run_refuses_hidden_copies_when_told),
};

int main(void)
{
    fill_field_lists();
    return test_main("run", tests, COUNT_OF(tests));
}
