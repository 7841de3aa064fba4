/* SPDX-License-Identifier: MIT */
/* Measures ops on one device: rows say what runs and what it must move, the core says how fast.
 *
 *     bench_open -> bench_plan -> bench_measure for each case -> bench_close
 *
 * Nothing here prints; tools/bench_main.c does. Uses the public API only. */
#ifndef ATTO_BENCH_H
#define ATTO_BENCH_H

#include <attocl.h>

/* Passes a failure up. */
#define BENCH_TRY(call)                                           \
    do {                                                          \
        const atto_status bench_try_status = (call);              \
        if (bench_try_status != ATTO_OK) return bench_try_status; \
    } while (0)

/* How the tensors of a row lie in memory. */
typedef enum bench_layout {
    BENCH_DENSE,      /* [n] */
    BENCH_PITCHED,    /* [rows, cols] inside [rows, cols + 64], every tensor */
    BENCH_TRANSPOSED, /* [rows, cols]; x and dy are transposed views, the output is dense */
    BENCH_LAYOUT_COUNT
} bench_layout;

/* Small tensors that a row's prepare may add. */
#define BENCH_EXTRAS 7

/* Bytes that a multiprocessor can hold of a row, of all tensors that are read and of sums over
 * rows: large GPUs have 256 KiB of registers, and work-items need half of theirs for all else. */
#define BENCH_ON_CHIP (128 * 1024)

/* The sizes of a row of matrices; zeroed where the row is elementwise. */
typedef struct bench_matrix {
    int64_t m, n, k; /* rows, features out, features in */
    int64_t batch;   /* of so many products; 0 = one, without that dimension */
    bool shared;     /* which have one w */
} bench_matrix;

/* The sizes of a row of attention, or of a module around it; zeroed elsewhere. */
typedef struct bench_heads {
    int64_t batches, heads, shared; /* of queries, and of keys */
    int64_t queries, keys, width;
    bool causal;
    int64_t weights; /* of the module, in squares of its heads' features, heads times width */
} bench_heads;

/* The sizes of a row of convolutions; zeroed elsewhere. */
typedef struct bench_images {
    int64_t batch, channels, edge; /* of x, [batch, channels, edge, edge] */
    int64_t outputs, kernel, stride, padding, groups;
    bool transposed, channels_last;
} bench_images;

/* The tensors that rows may use; contents of outputs are undefined. Elementwise rows have the first
 * three, all of one shape. Of a batch of matrices all but b and db have that dimension, too. Of
 * attention x, w, b and out, dw, db are q, k, v and results like them, z is y. Of convolutions x
 * and out, dy and z, w and dw are the images and the filter. */
typedef struct bench_tensors {
    atto_tensor x;   /* [m, k] */
    atto_tensor dy;  /* [m, n] */
    atto_tensor out; /* forward [m, n], backward [m, k] */

    /* Rows of matrices only. */
    atto_tensor w;  /* [n, k] */
    atto_tensor b;  /* [n] */
    atto_tensor z;  /* [m, n], an input of backward */
    atto_tensor dw; /* [n, k] */
    atto_tensor db; /* [n] */
    atto_tensor extra[BENCH_EXTRAS];
} bench_tensors;

#define BENCH_DTYPE(dtype) (1u << (dtype))
#define BENCH_F32_ONLY     BENCH_DTYPE(ATTO_F32)
#define BENCH_FLOATS       (BENCH_DTYPE(ATTO_F32) | BENCH_DTYPE(ATTO_F16) | BENCH_DTYPE(ATTO_BF16))

/* One op as the tables of bench_<family>.c list it. */
typedef struct bench_row {
    const char *op;
    const char *pass; /* "forward", "backward", or "-" */
    atto_status (*call)(atto_device *dev, const struct bench_row *row, const bench_tensors *t);
    /* NULL, or what has to be done before each call; not timed. */
    atto_status (*before)(atto_device *dev, const struct bench_row *row, const bench_tensors *t);
    /* NULL, or makes t->extra (released with the set) for a set whose other tensors are there. */
    atto_status (*prepare)(atto_device *dev, const struct bench_row *row, bench_tensors *t);
    /* Shape of the tensors where bench_elements are 67,108,864, with others more or fewer rows;
     * 0 = as the options and the layout say. */
    int64_t rows, cols;
    int64_t rows_each; /* rows that belong together, as those of an image; 0 = 1 */
    bool at_most;      /* never more rows than that */
    atto_activation act;
    float dropout;
    atto_unary_kind unary;
    atto_binary_kind binary;
    atto_reduce_kind reduce;
    atto_loss_kind loss;
    bench_layout layout;
    atto_dtype out_dtype;    /* 0 = the dtype of x */
    uint32_t default_dtypes; /* dtypes of x that run unless the user names one */
    uint32_t dtypes;         /* dtypes of x that run when the user names one */
    int32_t reads;           /* elementwise: tensors like x that must be read ... */
    int32_t writes;          /* ... and tensors like out that must be written */
    bool held;           /* rows are read once only while they fit on a chip, see BENCH_ON_CHIP, */
    int32_t sums;        /* beside so many f32 sums over rows for each column */
    bool on_request;     /* runs where a filter names it only */
    double parts;        /* and what share of such a tensor more is read or written, */
    double words;        /* and how many 32-bit words per element */
    int32_t flops;       /* per element: products, sums, and one per elementary function; per
                                m n k where there are matrices: 2 a product; of attention, per query
                                and key and element of a head, half of them where it is causal */
    bench_matrix matrix; /* as on a GPU, see bench_matrix_of */
    bench_heads attention; /* likewise */
    bench_images images;   /* likewise */
} bench_row;

/* Whether the row's op has the word in its name. */
bool bench_says(const bench_row *row, const char *word);

/* t's buffer as [batch, channels, edge, edge], of which channels_last has channels innermost. */
atto_tensor bench_image(const atto_tensor *t, int64_t batch, int64_t channels, int64_t edge,
                        bool channels_last);

/* X(name): bench_<name>.c defines bench_<name>_rows and bench_<name>_row_count. */
#define BENCH_TABLES(X) \
    X(act)              \
    X(dropout)          \
    X(linear)           \
    X(cross_entropy)    \
    X(elementwise)      \
    X(reduce)           \
    X(softmax)          \
    X(glu)              \
    X(optim)            \
    X(tensor)           \
    X(loss)             \
    X(nll_loss)         \
    X(layer_norm)       \
    X(batch_norm)       \
    X(group_norm)       \
    X(conv)             \
    X(pool)             \
    X(index_select) X(gather) X(matmul) X(attention) X(module) X(rope) X(rnn) X(pad) X(resize)

#define X(name)                                   \
    extern const bench_row bench_##name##_rows[]; \
    extern const int32_t bench_##name##_row_count;
BENCH_TABLES(X)
#undef X

/* Zero everywhere is the default. */
typedef struct bench_options {
    const char *filter; /* part of bench_case_text */
    int64_t elements; /* 0 = 67,108,864 on GPUs, 134,217,728 there in 16 bits, 16,777,216 on CPUs */
    atto_dtype dtype; /* run every row on this dtype */
    int32_t samples;  /* 0 = 25 */
    atto_log_fn log;  /* NULL, or receives what the device says */
    void *log_data;
    bool quick; /* an eighth of the elements, 7 samples: for a look, not for figures */
} bench_options;

/* A row on one dtype. */
typedef struct bench_case {
    const bench_row *row;
    atto_dtype dtype;
} bench_case;

typedef struct bench_result {
    atto_shape shape; /* of out; m, n, k where there are matrices; of attention B, H, G, L, S, D */
    double bytes;     /* that one call must move at the least */
    double flops;     /* of one call */
    double median_ms;
    double min_ms;
    double gb_per_s;
    double tflop_per_s; /* 0 where the row is elementwise */
    double floor_ms;    /* bytes / ceiling */
    double fraction;    /* floor / median */
    int32_t samples;
    int32_t launches;   /* calls per sample */
    bool latency;       /* one call takes less than 20 us: no statement on bandwidth */
    bool hidden_copies; /* the library packed a tensor */
    bool noisy;         /* the median is 1.5 times the minimum: the machine was not alone */
} bench_result;

/* The fastest way to move bytes that we know on this device. */
typedef struct bench_ceiling {
    double gb_per_s;
    const char *how; /* "copy", "identity" or "y = a*x"; NULL = not measured yet */
} bench_ceiling;

#define BENCH_MAX_SETS    64
#define BENCH_MAX_SAMPLES 1000

typedef struct bench {
    atto_device *dev;
    atto_device_info info;
    bench_options options; /* with the defaults filled in */
    bool is_cpu;           /* the device works in host memory */
    bool doubles_halves;   /* 16-bit tensors have twice the elements that the options say */
    bool events;           /* device clock, otherwise wall clock */
    bench_ceiling ceiling[ATTO_BF16 + 1];

    /* The buffer sets of the last measured case, used in turn. */
    bench_case made_for;
    bench_tensors sets[BENCH_MAX_SETS];
    int32_t set_count;
    int32_t next;
} bench;

/* Opens the device with profiling and without fallback. *b is zeroed on failure. */
atto_status bench_open(const char *device, const bench_options *options, bench *b);

/* Fine on NULL and on a zeroed bench. */
void bench_close(bench *b);

/* The cases that the options select; returns how many there are, also beyond capacity. */
int32_t bench_plan(const bench_options *options, bench_case *cases, int32_t capacity);

/* Warms up, measures, compares with the ceiling (measured once per dtype). */
atto_status bench_measure(bench *b, const bench_case *c, bench_result *out);

/* Runs a case once, in tensors of its own. */
atto_status bench_run(bench *b, const bench_case *c);

/* Writes "op pass dtype layout", and the sizes where there are matrices: what a filter is part
 * of. */
void bench_case_text(const bench_case *c, char *out, size_t size);

/* The sizes with which a row runs: on CPUs a quarter of those from 1024 on; then the largest one
 * halved until no tensor has more elements than the options say. */
bench_matrix bench_matrix_of(const bench *b, const bench_row *row);

/* The same of attention, where batches are halved before heads; modules have an eighth of the batches
 * on CPUs. */
bench_heads bench_heads_of(const bench *b, const bench_row *row);

/* The same of convolutions: on CPUs an eighth of the images; then images, edges and channels are
 * halved, in this order. */
bench_images bench_images_of(const bench *b, const bench_row *row);

/* Edge of y. */
int64_t bench_images_out(const bench_images *s);

/* bench_optim.c, bench_module.c: free the optimiser, the module that their rows have made. */
void bench_optim_drop(void);
void bench_module_drop(void);

/* Elements per tensor of that dtype. */
int64_t bench_elements(const bench *b, atto_dtype dtype);

/* "dense", "pitched", "transposed". */
const char *bench_layout_name(bench_layout layout);

/* data.c: sets, layouts and normal random data. */
atto_status bench_make_sets(bench *b, const bench_case *c);
void bench_free_sets(bench *b);

/* n values drawn from N(0, 1); none is so small that f16 would make it subnormal. */
void bench_normal(float *out, int64_t n, uint64_t seed);

/* Fills a dense rank-1 tensor of any size and float dtype with such values; they repeat. */
atto_status bench_fill_normal(atto_device *dev, const atto_tensor *flat, uint64_t seed);

/* cpu_math.c: loops over host memory, compiled once per CPU level. */
typedef void (*bench_loop)(float *restrict y, const float *restrict x, int64_t n, float a, float b);

typedef struct bench_loops {
    const char *level;
    bench_loop exp;       /* y = attop_exp(x): the yardstick of one elementary function */
    bench_loop scale;     /* y = a * x: the yardstick of memory */
    bench_loop gelu_libm; /* y = x/2 (1 + erff(x / sqrt 2)) */
    bench_loop forward[ATTO_ACT_COUNT];
    bench_loop backward[ATTO_ACT_COUNT]; /* y = act'(x) */
} bench_loops;

/* The loops of the best level that this CPU has, at most the named one ("base", "avx2", "avx512";
 * NULL = no limit). NULL when the name is none. */
const bench_loops *bench_loops_of(const char *at_most);

/* Runs a loop over n elements with all OpenMP threads. */
void bench_loop_parallel(bench_loop loop, float *y, const float *x, int64_t n, float a);

/* Nanoseconds per element of a loop over data in the first-level cache, one thread. */
double bench_loop_ns(bench_loop loop, float a, float b);

/* Three ways over large arrays, interleaved: medians in ms. */
typedef struct bench_gelu {
    int64_t elements;
    double attocl_ms;
    double scale_ms;
    double libm_ms;
} bench_gelu;

atto_status bench_gelu_large(const bench_loops *loops, int64_t elements, bench_gelu *out);

/* GB/s of y = a * x over host arrays of that many bytes each; the median of the samples. */
double bench_host_ceiling(const char *at_most, int64_t bytes, int32_t samples);

/* Bytes of the CPU's last-level cache; 32 MiB where the system does not say. */
int64_t bench_last_level_cache(void);

/* Monotonic seconds. */
double bench_clock(void);

/* Sorts values and returns the median. */
double bench_median(double *values, int32_t n);

/* Any labels below classes into an i32 vector; not in order, or neighbours would share cache
 * lines. */
atto_status bench_write_labels(int64_t classes, const atto_tensor *labels);

#endif
