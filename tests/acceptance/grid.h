/* SPDX-License-Identifier: MIT */
/* The acceptance grid: every op with every combination of its options, in every dtype, on the
 * shapes of attorch's own tests or small ones like them.
 *
 * A family is a row of a table: its options, the tensors of a case, the call, the answer. Cases are
 * the product of options, dtypes and shapes. Each runs forward, then backward, and is judged
 * against the oracle of the tests (small shapes), or against PyTorch in f64 (all shapes;
 * scripts/acceptance.py). */
#ifndef ACCEPTANCE_GRID_H
#define ACCEPTANCE_GRID_H

#include <attocl.h>

#include "oracle.h"

#define COUNT_OF(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum { GRID_OPTIONS = 12, GRID_TENSORS = 20, GRID_TEXT = 256 };

typedef struct grid_case grid_case;
typedef struct grid_scene grid_scene;

/* An option and its values: `values`, or 0 to count - 1 where they have names. */
typedef struct grid_option {
    const char *name; /* NULL ends a list */
    int count;
    double values[8];
    const char *(*text)(int value);
} grid_option;

typedef struct grid_family {
    const char *name;
    int32_t least_rank, most_rank;
    grid_option options[GRID_OPTIONS];
    /* Of the comparison with PyTorch, at least torch.testing's: attorch's, where
     * scripts/acceptance.py derives none. */
    double rtol, grad_rtol, atol, grad_atol;
    /* Not 0: runs without PyTorch have every thin-th combination of options, for want of time. */
    int thin;
    /* NULL, or the shape that options decide, for the comparison with PyTorch alone. */
    atto_shape (*shape)(const grid_case *c);
    /* NULL, or whether the options and the shape mean something together. */
    bool (*exists)(const grid_case *c);
    /* Declares the tensors, by grid_input and grid_output. */
    void (*build)(grid_scene *s);
    atto_status (*call)(grid_scene *s, bool backward);
    /* Fills in what outputs should be, by grid_want, grid_terms and grid_allow. NULL: only for
     * --bits. */
    void (*answer)(grid_scene *s);
} grid_family;

/* X(name): families, in the order in which they run; cases_*.c define grid_<name>. */
#define GRID_FAMILIES(X) \
    X(act)               \
    X(dropout)           \
    X(linear)            \
    X(matmul)            \
    X(attention)         \
    X(mha)               \
    X(softmax)           \
    X(glu)               \
    X(layer_norm)        \
    X(rms_norm)          \
    X(batch_norm)        \
    X(group_norm)        \
    X(loss)              \
    X(nll_loss)          \
    X(cross_entropy)     \
    X(conv)              \
    X(conv_transposed)   \
    X(conv_layer)        \
    X(avg_pool)          \
    X(max_pool)          \
    X(adaptive_pool)     \
    X(index_select)      \
    X(gather)            \
    X(rope)              \
    X(lstm_cell)         \
    X(gru_cell)          \
    X(pad)               \
    X(resize)            \
    X(reduce)            \
    X(binary)
#define X(name) extern const grid_family grid_##name;
GRID_FAMILIES(X)
#undef X

struct grid_case {
    const grid_family *family;
    atto_dtype dtype;
    atto_shape shape;            /* of x */
    double option[GRID_OPTIONS]; /* in the order of the family's */
};

/* The value of an option; the program ends when there is none of that name. */
double grid_get(const grid_case *c, const char *name);
int grid_int(const grid_case *c, const char *name);

/* "reduction=mean weight=1" */
void grid_text(const grid_case *c, char text[GRID_TEXT]);

/* ---- tensors of a case ---- */

/* What an input holds. */
typedef enum grid_draw {
    GRID_NORMAL,   /* N(0, 1) */
    GRID_POSITIVE, /* from [0.25, 2) */
    GRID_SHARE,    /* from [0, 1) */
    GRID_LOG,      /* from [-6, 0) */
    GRID_LABEL,    /* whole numbers below a limit */
    GRID_WEIGHT,   /* N(0, 1 / columns): products with N(0, 1) stay of that size */
    GRID_DRAWS
} grid_draw;

/* Inputs of one draw and one seed are equal, up to their dtype's rounding. Values repeat after 2^20
 * + 7 elements. */
void grid_input(grid_scene *s, const char *name, atto_dtype dtype, atto_shape shape, grid_draw draw,
                uint64_t seed);
void grid_labels(grid_scene *s, const char *name, atto_shape shape, int64_t classes, uint64_t seed);

/* What a direction writes; starts as NaN. judged: it is compared. */
typedef enum grid_pass { GRID_FORWARD, GRID_BACKWARD } grid_pass;
void grid_output(grid_scene *s, const char *name, atto_dtype dtype, atto_shape shape,
                 grid_pass pass, bool judged);

/* Read and written by forward: starts as such an input, is compared after forward. */
void grid_state(grid_scene *s, const char *name, atto_shape shape, grid_draw draw, uint64_t seed);

/* For args structs; NULL where no tensor has that name. */
const atto_tensor *grid_at(const grid_scene *s, const char *name);

const grid_case *grid_case_of(const grid_scene *s);

/* ---- for answers ---- */

/* An input as it is stored, or what the device has stored in an output; NULL where there is
 * none. */
const double *grid_held(grid_scene *s, const char *name);

/* Arrays to fill, zeroed; terms as atto_tol takes them. Zeroed ones that nobody reads where no
 * tensor has that name: `numel` says how long. */
double *grid_want(grid_scene *s, const char *name, int64_t numel);
double *grid_terms(grid_scene *s, const char *name, int64_t numel);

/* What an output may be off by beside its own roundings, zeroed. */
double *grid_extra(grid_scene *s, const char *name, int64_t numel);

/* How far an output may be off: n summands of its terms, op as a row of tolerance.c. */
void grid_allow(grid_scene *s, const char *name, const char *op, int64_t n);

/* A zeroed array that lives as long as the scene. */
void *grid_array(grid_scene *s, int64_t numel);

/* Sizes of x: of all, of the first `dims` dimensions, of the rest. */
int64_t grid_product(atto_shape shape, int32_t from, int32_t to);

/* Summands that stand in one row of additions where n are added side by side, 32 or more at a
 * time. */
int64_t grid_depth(int64_t n);

/* The dtype's name, "forward" and so on, shared by cases_*.c. */
const char *grid_act_text(int value);
const char *grid_reduction_text(int value);

#endif
