/* SPDX-License-Identifier: MIT */
/* Kernel variants: the knobs of each family as compiler options, and the set that tests build.
 *
 * The OpenCL backend makes its options here and nowhere else, so what the tests and the portability
 * gate compile is what a device gets. Nothing here needs OpenCL. */
#ifndef ATTO_VARIANTS_H
#define ATTO_VARIANTS_H

#include <attocl/act.h>
#include <attocl/elementwise.h>
#include <attocl/loss.h>
#include <attocl/pad.h>
#include <attocl/softmax.h>

#include "optim.h"

/* One program: compile file with options, take kernel out of it. The device adds its -cl-std and
 * -DATTO_WG=<work-group size>. */
typedef struct atto__variant {
    const char *file;
    char kernel[64];
    char options[512];
} atto__variant;

/* How a kernel walks its tensors. All but the first take sizes and strides as arguments. */
typedef enum atto__form {
    ATTO_FORM_DENSE,    /* every stride 1, every offset at 16 bytes */
    ATTO_FORM_VECTORS,  /* 16-byte vectors along the innermost dimension */
    ATTO_FORM_ELEMENTS, /* one element a work-item, any strides */
    ATTO_FORM_RUNS,     /* four elements a work-item that share one Philox counter, any strides */
    ATTO_FORM_COUNT
} atto__form;

/* 16-byte vectors a work-item of a dense kernel takes (ATTO_ITEMS in the kernels). */
#define ATTO_DENSE_ITEMS 2

typedef enum atto__dropout_knob {
    ATTO_DROPOUT_NONE,
    ATTO_DROPOUT_PHILOX,
    ATTO_DROPOUT_TRITON,
    ATTO_DROPOUT_COUNT
} atto__dropout_knob;

/* Knobs of an elementwise family. */
typedef struct atto__elementwise_knobs {
    const char *file;    /* "act.cl" */
    const char *kernel;  /* "atto_act_forward"; walks with strides add "_strided" */
    const char *act;     /* name of the activation, or NULL where there is none */
    const char *formula; /* "binary_mul" for attom_binary_mul, or NULL */
    int32_t scalar;      /* binary, where: bit 0: a is a number, bit 1: b is */
    bool wide_out;       /* where: the output is f32 whatever the inputs are */
    atto_dtype dtype;
    atto__dropout_knob dropout;
    atto__form form;
    int32_t items; /* of a dense kernel: 16-byte vectors of a work-item; 0: ATTO_DENSE_ITEMS */
    bool wide;
} atto__elementwise_knobs;

/* Elements of a 16-byte vector. */
int32_t atto__vector_elements(atto_dtype dtype);

/* Elements a work-item takes along the innermost dimension. */
int32_t atto__run_elements(atto_dtype dtype, atto__form form);

void atto__elementwise_variant(const atto__elementwise_knobs *knobs, atto__variant *out);

/* tensor.cl. Equal dtypes move words; the vectors of a copy hold 16 bytes of the smaller dtype. */
int32_t atto__copy_elements(atto_dtype from, atto_dtype to);
void atto__copy_variant(atto_dtype from, atto_dtype to, atto__form form, bool wide,
                        atto__variant *out);
void atto__fill_variant(atto_dtype to, atto__form form, bool wide, atto__variant *out);

/* How rows of atto_row.h are shared out. */
typedef struct atto__row_knobs {
    int32_t lanes; /* work-items of a row; 0: a work-group */
    int32_t items; /* 16-byte vectors of a chunk */
    bool held;     /* a row is one chunk of each lane */
    int32_t group; /* work-items of a work-group; 0: as the device has them */
} atto__row_knobs;

/* For rows of that many slots and work-groups of that size; a work-item has room for that many
 * floats of a row, at least 16. Here is the place to choose otherwise for a device. */
atto__row_knobs atto__row_knobs_for(int64_t slots, atto_dtype dtype, int32_t group, int32_t floats);

/* The same, and other ways for such rows, on a device that takes work-groups of up to that size;
 * returns their number, at most ATTO_ROW_WAYS. */
#define ATTO_ROW_WAYS 20
int32_t atto__row_knobs_all(int64_t slots, atto_dtype dtype, int32_t group, int32_t most_group,
                            int32_t floats, atto__row_knobs *out);

/* cross_entropy.cl. */
typedef enum atto__lanes {
    ATTO_LANES_ONE,   /* one work-item a position */
    ATTO_LANES_WARP,  /* 32 */
    ATTO_LANES_PART,  /* 128 */
    ATTO_LANES_GROUP, /* a work-group */
    ATTO_LANES_COUNT
} atto__lanes;

typedef struct atto__cross_entropy_knobs {
    const char *kernel; /* "atto_cross_entropy_forward" */
    atto_dtype dtype, target;
    atto__lanes lanes;
    bool spread; /* every class has a share of the target; always so with probabilities */
    bool whole;  /* rows are made of 16-byte vectors; many classes only */
    bool wide;
} atto__cross_entropy_knobs;

void atto__cross_entropy_variant(const atto__cross_entropy_knobs *knobs, atto__variant *out);

/* layer_norm.cl: how the work-items of a work-group share out rows. */
typedef struct atto__row_shape {
    int32_t lanes;  /* work-items of a row, a power of two */
    int32_t items;  /* 16-byte vectors that a lane has at a time */
    bool held;      /* which is all it has */
    int32_t group;  /* work-items of a work-group; 0: as many as usual on the device */
    int32_t stages; /* rows on their way in local memory (atto_ahead.h), or 0 */
    int32_t groups; /* work-groups that share out all rows; 0: as many as it takes */
} atto__row_shape;

/* Where a norm's rows run. */
typedef struct atto__row_place {
    int32_t group; /* work-items of a work-group as usual, */
    int32_t most;  /* and at most */
    bool stages;   /* copies into local memory need no registers */
} atto__row_place;

/* For rows of so many slots (elements, and what is empty in front of them). whole: none is, and
 * rows are made of 16-byte vectors. Here is the place to choose otherwise for a device. */
atto__row_shape atto__norm_forward_shape(int64_t slots, atto_dtype dtype, bool whole,
                                         const atto__row_place *place);
atto__row_shape atto__norm_backward_shape(int64_t slots, atto_dtype dtype, bool whole,
                                          const atto__row_place *place);

typedef struct atto__norm_knobs {
    const char *kernel; /* "atto_norm_forward" */
    atto_dtype dtype, param;
    bool centred;
    bool whole; /* rows are made of 16-byte vectors, parameters too */
    atto__row_shape rows;
    bool wide;
} atto__norm_knobs;

void atto__norm_variant(const atto__norm_knobs *knobs, atto__variant *out);

/* batch_norm.cl */
typedef struct atto__batch_norm_knobs {
    const char *kernel, *act; /* "atto_batch_norm_apply", "relu" */
    atto_dtype dtype, out;    /* out: of dw and db */
    bool last, vectors, wide;
    int32_t lanes; /* of the kernels that merge; 0 = all of a work-group */
} atto__batch_norm_knobs;

void atto__batch_norm_variant(const atto__batch_norm_knobs *knobs, atto__variant *out);

/* A tile of gemm.cl: what one work-group computes at a time. */
typedef struct atto__gemm_tile {
    const char *name;
    int32_t m, n;           /* elements of the result, */
    int32_t k;              /* and of the sum in local memory */
    int32_t item_m, item_n; /* elements of the result of a work-item; item_n = n / 8 */
    int32_t slices;         /* parts of the work-group, which share out k */
} atto__gemm_tile;

/* Larger ones first: the more a work-item has, the fewer bytes it moves per product. */
/* Files of measurements name them by number: new ones come last. */
#define ATTO_GEMM_TILES 7
extern const atto__gemm_tile atto__gemm_tiles[ATTO_GEMM_TILES];

int32_t atto__gemm_tile_items(const atto__gemm_tile *tile); /* of a work-group */
int32_t atto__gemm_tile_local_bytes(const atto__gemm_tile *tile);

/* Knobs of gemm.cl and linear.cl; atto_tile.h says what they mean. */
typedef struct atto__gemm_knobs {
    atto_dtype a, b, c;
    bool a_transposed, b_transposed;
    bool a_vectors, b_vectors;
    bool prologue; /* activation and dropout are a's, not the result's */
    bool wide;
    const char *act;
    atto__dropout_knob dropout;
} atto__gemm_knobs;

void atto__gemm_tile_variant(const atto__gemm_tile *tile, const atto__gemm_knobs *knobs,
                             atto__variant *out);

/* rows of the result and work-items of a work-group. */
void atto__gemm_rows_variant(int32_t rows, int32_t lanes, const atto__gemm_knobs *knobs,
                             atto__variant *out);

/* Kernels that know neither tiles nor b: "gemm.cl" "atto_gemm_finish", "linear.cl"
 * "atto_linear_dz" */
void atto__gemm_plain_variant(const char *file, const char *kernel, const atto__gemm_knobs *knobs,
                              atto__variant *out);

/* conv.cl and conv_depthwise.cl. A tile for atto_conv_tile and atto_conv_filter, NULL for others. */
typedef struct atto__conv_knobs {
    const char *kernel; /* "atto_conv_tile" */
    const atto__gemm_tile *tile;
    atto_dtype a, b, c;
    bool a_vectors, b_vectors;
    bool channels; /* unit stride along channels */
    bool chunked;  /* else: steps of k have one tap; of atto_conv_tile and atto_conv_pack */
    bool wide;
    const char *act;
    struct {
        int32_t h, step, divide, rows, w, each;
    } depthwise; /* of conv_depthwise.cl, where the knobs stand */
} atto__conv_knobs;

void atto__conv_variant(const atto__conv_knobs *knobs, atto__variant *out);

/* optim.cl. norm has no knob but the dtype, begin none. shadow: its dtype, 0 = none. */
void atto__optim_norm_variant(atto_dtype dtype, atto__variant *out);
void atto__optim_begin_variant(atto__variant *out);
void atto__optim_step_variant(const atto__optim_method *method, atto_dtype dtype, atto_dtype shadow,
                              atto__variant *out);

/* The compare kernel of elementwise.cl, elements only. */
void atto__compare_variant(atto_dtype from, const char *comparison, bool scalar, bool wide,
                           atto__variant *out);

/* The fold kernels of reduce.cl. */
typedef struct atto__fold_knobs {
    const char *fold;    /* "sum", "max", "arg" or "ties" */
    const char *formula; /* sum: "binary_mul_db", or NULL */
    int32_t scalar;      /* then, as above */
    atto_dtype dtype, out;
    bool rows;    /* the innermost dimension is folded */
    bool vectors; /* 16 bytes at a time; not for columns of arg, whose tree has no room for that */
    bool share;   /* sum, ties */
    bool slabs;   /* arg: values are kept as well */
    bool wide;
} atto__fold_knobs;

void atto__fold_variant(const atto__fold_knobs *knobs, atto__variant *out);
void atto__fold_join_variant(atto_dtype out_dtype, bool wide, atto__variant *out);

/* How the columns of softmax.cl are shared out: elements of a row lie apart. */
typedef struct atto__column_knobs {
    int32_t deep;  /* work-items of a column */
    int32_t items; /* elements of a column that one of them has at a time */
    bool vectors;  /* each has 16 bytes of columns side by side; else one column */
    bool held;     /* and these are all it has */
} atto__column_knobs;

/* Elements that a work-item of columns holds. */
int32_t atto__column_elements(bool backward, atto_dtype dtype, bool vectors, bool nvidia);

/* For columns of that many elements, of which a work-item holds so many; group as of rows. */
atto__column_knobs atto__column_knobs_for(int64_t size, atto_dtype dtype, bool vectors,
                                          int32_t group, int32_t elements);

typedef struct atto__softmax_knobs {
    const char *kernel; /* "atto_softmax_forward"; that of columns adds "_columns" */
    atto_softmax_kind kind;
    atto_dtype dtype;
    bool has_columns; /* column holds; else row */
    atto__row_knobs row;
    atto__column_knobs column;
    bool wide;
} atto__softmax_knobs;

void atto__softmax_variant(const atto__softmax_knobs *knobs, atto__variant *out);

/* glu.cl. */
typedef struct atto__glu_knobs {
    const char *kernel, *act; /* "atto_glu_forward", "sigmoid" */
    atto_dtype dtype;
    bool vectors;  /* or elements, where strides or offsets are odd */
    int32_t items; /* runs of a work-item; 0: ATTO_DENSE_ITEMS */
    int32_t group; /* work-items of a work-group; 0: as the device has them */
    bool wide;
} atto__glu_knobs;

void atto__glu_variant(const atto__glu_knobs *knobs, atto__variant *out);

/* rnn.cl. */
typedef struct atto__rnn_knobs {
    const char *kernel; /* "atto_lstm_cell_forward" */
    atto_dtype dtype;
    bool vectors; /* or elements, where sizes, strides or offsets are odd */
    bool wide;
} atto__rnn_knobs;

void atto__rnn_variant(const atto__rnn_knobs *knobs, atto__variant *out);

/* loss.cl. */
typedef struct atto__loss_knobs {
    const char *kernel; /* "atto_loss_sum"; of "atto_loss_finish" nothing else counts */
    const char *loss;   /* "mse" */
    atto_dtype dtype;   /* of x and target, */
    atto_dtype weight;  /* of the weights, */
    atto_dtype out;     /* and of the gradients */
    int32_t weights;    /* bit 0: weight, bit 1: pos_weight */
    bool each;          /* backward: every element has its dloss */
    int32_t gradients;  /* backward: bit 0: dx, bit 1: dtarget */
    atto__form form;    /* dense, vectors or elements */
    bool wide;
    int32_t items; /* runs that a work-item has at a time; 0 = as atto__loss_items says */
} atto__loss_knobs;

void atto__loss_variant(const atto__loss_knobs *knobs, atto__variant *out);

/* Runs that a work-item has at a time. */
int32_t atto__loss_items(const atto__loss_knobs *knobs);

/* nll_loss.cl. */
typedef struct atto__nll_loss_knobs {
    const char *kernel; /* "atto_nll_loss_rows"; of "atto_nll_loss_finish" nothing else counts */
    atto_dtype dtype, target;
    bool vectors; /* planes: 16 bytes at a time */
    bool wide;    /* rows and planes */
} atto__nll_loss_knobs;

void atto__nll_loss_variant(const atto__nll_loss_knobs *knobs, atto__variant *out);

/* Work-items of a work-group of sums: small, so that the pieces of a row with many positions go to
 * many multiprocessors. */
#define ATTO_INDEX_SUM_GROUP 64

/* index_select.cl. Of "atto_index_select_place", _fill and _rank nothing else counts. */
typedef struct atto__index_select_knobs {
    const char *kernel; /* "atto_index_select_forward" */
    int32_t unit;       /* forward: bytes that move at a time: 16, 4, 2 */
    atto_dtype index;   /* forward, count */
    atto_dtype dtype;   /* sum */
    bool wide_out;      /* sum: f32 whatever dtype is */
    bool vectors;       /* sum: 16 bytes at a time */
    int32_t group;      /* sum: work-items of a work-group; 0: as the device has them */
    bool wide;          /* forward, sum */
} atto__index_select_knobs;

void atto__index_select_variant(const atto__index_select_knobs *knobs, atto__variant *out);

/* gather.cl. */
typedef struct atto__gather_knobs {
    const char *kernel; /* "atto_gather_forward" */
    atto_dtype dtype, index;
    int32_t group; /* backward: work-items of a work-group; 0: as the device has them */
    bool wide;
} atto__gather_knobs;

void atto__gather_variant(const atto__gather_knobs *knobs, atto__variant *out);

/* attention.cl: a work-group's scores, those of a work-item, and how many floats of it stay in registers beside all
 * else, as NVIDIA's compiler has it. */
typedef struct atto__attention_tile {
    int32_t m, n, item_m, item_n, floats;
} atto__attention_tile;

/* The first that fits is taken. */
#define ATTO_ATTENTION_TILES 5
extern const atto__attention_tile atto__attention_tiles[ATTO_ATTENTION_TILES];

int32_t atto__attention_tile_items(const atto__attention_tile *tile);
uint64_t atto__attention_tile_bytes(const atto__attention_tile *tile); /* of local memory */

/* Whether a tile is made for that many rows, and a work-item's sums stay in registers: of so many tiles of
 * scores, and of that many columns that these are multiplied into. */
bool atto__attention_tile_fits(const atto__attention_tile *tile, int64_t rows, int32_t scores,
                               int32_t columns);

typedef struct atto__attention_knobs {
    const char *kernel; /* "atto_attention_forward" */
    atto_dtype dtype;
    int32_t head, out; /* D and E */
    int32_t mask;      /* ATTO_MASK_... */
    atto_dtype mask_dtype;
    atto__dropout_knob dropout;
    bool vectors;
    bool loops; /* not unrolled */
    bool parts; /* forward: keys are shared out */
    atto__attention_tile tile;
    int32_t group; /* delta, join: work-items of a work-group */
} atto__attention_knobs;

void atto__attention_variant(const atto__attention_knobs *knobs, atto__variant *out);

/* rope.cl: heads that a work-item turns by the angles it has loaded, where there are several. */
#define ATTO_ROPE_HEADS 4

typedef struct atto__rope_knobs {
    atto_dtype dtype;
    atto_dtype position; /* dtype of positions; 0: none are given */
    bool neighbours;     /* are a pair; else halves are */
    bool vectors;        /* or elements, where strides or sizes are odd */
    int32_t heads;       /* of a work-item */
    bool wide;
} atto__rope_knobs;

void atto__rope_variant(const atto__rope_knobs *knobs, atto__variant *out);

/* Loads that a lane of a large window has under way, and runs of a work-item where the window is
 * the image. */
#define ATTO_POOL_ITEMS 4

/* pool.cl; what the knobs mean stands there. */
typedef struct atto__pool_knobs {
    const char *kernel; /* "atto_pool_forward" */
    atto_dtype dtype;
    bool is_max;
    int32_t index_bits; /* of maxima: 0, 32, 64 */
    bool channels, vectors;
    int32_t window; /* 2, 3; 0: no matter */
    int32_t items;  /* lanes and whole; 0: no matter */
    int32_t group;  /* work-items of a work-group; 0: as the device has them */
    bool wide;
} atto__pool_knobs;

void atto__pool_variant(const atto__pool_knobs *knobs, atto__variant *out);

/* pad.cl. */
typedef struct atto__pad_knobs {
    bool backward;
    atto_dtype dtype; /* forward: its size counts */
    int32_t mode;     /* atto_pad_kind */
    int32_t axes;     /* 4, 8 */
    atto__form form;  /* elements, runs (of which only results are vectors), vectors */
    bool wide;
} atto__pad_knobs;

void atto__pad_variant(const atto__pad_knobs *knobs, atto__variant *out);

/* resize.cl; what the knobs mean stands there. */
typedef struct atto__resize_knobs {
    bool backward;
    atto_dtype dtype;
    int32_t how; /* a number of atto_resize.h */
    bool channels, vectors;
    bool wide;
} atto__resize_knobs;

void atto__resize_variant(const atto__resize_knobs *knobs, atto__variant *out);

/* probe.cl. */
void atto__probe_variant(atto__variant *out);

/**
 * The test set: for each family every pair of knob values that can occur together, in as few
 * variants as a greedy search finds, at most 100.
 *
 * @param family    "act", "tensor", ...; NULL for all
 * @param out       filled up to capacity; may be NULL when capacity is 0
 * Returns          how many there are, also when that is more than capacity; 0 for an unknown
 *                  family and in a library built without OpenCL
 */
int32_t atto__variants(const char *family, atto__variant *out, int32_t capacity);

#endif
