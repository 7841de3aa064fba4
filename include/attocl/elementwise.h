/* SPDX-License-Identifier: MIT */
/* Arithmetic element by element, with broadcasting: unary, cast, binary, where, compare. */
#ifndef ATTOCL_ELEMENTWISE_H
#define ATTOCL_ELEMENTWISE_H

#include <attocl/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Broadcasting, as in NumPy and PyTorch: shapes are aligned at the right; a size 1, or a dimension
 * that is not there, repeats. [5,1,3] and [2,3] make [5,2,3]. y must have the shape that the inputs
 * make. The gradient of an input that was repeated is the sum over the repetitions, in f32 and in
 * an order that depends on the shapes, the strides and the device.
 *
 * Every op computes in f32 whatever the dtype.
 */

/* ---- unary ---- */

typedef enum atto_unary_kind {
#define X(NAME, name) ATTO_UNARY_##NAME,
    ATTO_UNARY_TABLE(X)
#undef X
        ATTO_UNARY_COUNT
} atto_unary_kind;

/** "neg", "clamp", ...; "?" for a value that is no kind. */
ATTO_API const char *atto_unary_name(atto_unary_kind kind);

/** Arguments of atto_unary_forward and atto_unary_backward. */
struct atto_unary_args {
    const atto_tensor *x;  /**< in   any shape    f32 f16 bf16 */
    const atto_tensor *y;  /**< out  like x       overwritten; may be x itself */
    const atto_tensor *dy; /**< in   like x */
    const atto_tensor *dx; /**< out  like x       may be dy itself; NULL = not wanted */
    bool add_dx;           /**< dx += instead of dx = */
    atto_unary_kind kind;
    float lo, hi;         /**< of ATTO_UNARY_CLAMP; -INFINITY and INFINITY leave a side open */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * One function of each element.
 *
 *     NEG -x    ABS |x|    EXP e^x    LOG ln x    SQRT x^(1/2)    RSQRT x^(-1/2)    SQUARE x^2
 *     RECIPROCAL 1/x    CLAMP min(max(x, lo), hi)
 *
 * Saved     x (pass it to atto_unary_backward; forward in place loses it)
 * Numerics  bounds in docs/numerics.md. NaN gives NaN
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     y is not shaped like x
 *           ATTO_E_DTYPE     x is not f32, f16 or bf16, or y differs from x
 *           ATTO_E_ARGUMENT  unknown kind; lo or hi of CLAMP is NaN
 */
ATTO_API atto_status atto_unary_forward(atto_device *dev, const struct atto_unary_args *a);

/**
 * Its gradient, at the edges PyTorch's (docs/ops/elementwise.md): 0 for ABS at 0; dy for CLAMP from
 * lo to hi, both inclusive; infinite for SQRT, RSQRT, LOG and RECIPROCAL at 0.
 *
 * @param a  uses x, dy, dx, add_dx, kind, lo, hi. x is forward's input
 */
ATTO_API atto_status atto_unary_backward(atto_device *dev, const struct atto_unary_args *a);

/* ---- cast ---- */

/** Arguments of atto_cast_forward and atto_cast_backward. */
struct atto_cast_args {
    const atto_tensor *x;  /**< in   any shape    any dtype; not used by backward */
    const atto_tensor *y;  /**< out  shaped like x, any dtype */
    const atto_tensor *dy; /**< in   any shape    f32 f16 bf16 */
    const atto_tensor *dx; /**< out  shaped like dy, f32 f16 bf16; NULL = not wanted */
    bool add_dx;           /**< dx += instead of dx = */
    uint64_t reserved[4];  /**< must be 0 */
};

/**
 * Another dtype: y = x, converted as atto_tensor_copy converts.
 *
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE  y is not shaped like x
 */
ATTO_API atto_status atto_cast_forward(atto_device *dev, const struct atto_cast_args *a);

/**
 * dx = dy, converted back; with add_dx it is converted first and then added.
 *
 * Returns   as forward; ATTO_E_DTYPE if dx or dy is not f32, f16 or bf16
 */
ATTO_API atto_status atto_cast_backward(atto_device *dev, const struct atto_cast_args *a);

/* ---- binary ---- */

typedef enum atto_binary_kind {
#define X(NAME, name, gradient) ATTO_BINARY_##NAME,
    ATTO_BINARY_TABLE(X)
#undef X
        ATTO_BINARY_COUNT
} atto_binary_kind;

/** "add", "maximum", ...; "?" for a value that is no kind. */
ATTO_API const char *atto_binary_name(atto_binary_kind kind);

/** Arguments of atto_binary_forward and atto_binary_backward; literal: 0 is 0. */
struct atto_binary_args {
    const atto_tensor *a;  /**< in   broadcasts   f32 f16 bf16; NULL = the number value */
    const atto_tensor *b;  /**< in   broadcasts   like a; NULL = the number value */
    const atto_tensor *y;  /**< out  what a and b make, like a; may be a or b itself where
                                the shapes are equal */
    const atto_tensor *dy; /**< in   like y */
    const atto_tensor *da; /**< out  like a       may be dy itself; NULL = not wanted */
    const atto_tensor *db; /**< out  like b       may be dy itself; NULL = not wanted */
    bool add_da, add_db;   /**< += instead of = */
    atto_binary_kind kind;
    float value;          /**< stands for a or b where that is NULL: x + 2 is b = NULL, value = 2 */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * One function of two elements.
 *
 *     ADD a + b    SUB a - b    MUL a b    DIV a / b    POW a^b    MAXIMUM    MINIMUM
 *
 * Saved     a and b; ADD and SUB need neither in backward
 * Numerics  bounds in docs/numerics.md. MAXIMUM and MINIMUM give NaN if either is NaN; POW has the
 *           special cases of C's pow
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_NULL      a and b are both NULL
 *           ATTO_E_SHAPE     a or b does not broadcast to y, or y is larger than both make it
 *           ATTO_E_DTYPE     a dtype that is none of f32, f16, bf16, or differs from the others
 *           ATTO_E_ARGUMENT  unknown kind
 */
ATTO_API atto_status atto_binary_forward(atto_device *dev, const struct atto_binary_args *a);

/**
 * Its gradients, at the edges PyTorch's (docs/ops/elementwise.md): MAXIMUM and MINIMUM give half of
 * dy to each where a = b; POW gives 0 to a where b = 0, and 0 to b where a = 0 <= b.
 *
 * @param a  uses a and b (unless kind is ADD or SUB), dy, da, db, add_da, add_db, kind, value
 *
 * Returns   as forward; ATTO_E_NULL if a and b are both NULL and kind needs them;
 *           ATTO_E_ALIAS if da and db are both in place
 */
ATTO_API atto_status atto_binary_backward(atto_device *dev, const struct atto_binary_args *a);

/* ---- where ---- */

/** Arguments of atto_where_forward and atto_where_backward; literal: 0 is 0. */
struct atto_where_args {
    const atto_tensor *cond; /**< in   broadcasts   i32; not 0 = true */
    const atto_tensor *a;    /**< in   broadcasts   f32 f16 bf16; NULL = the number value */
    const atto_tensor *b;    /**< in   broadcasts   like a; NULL = the number value */
    const atto_tensor *y;    /**< out  what the three make, like a; may be a or b itself where
                                  the shapes are equal */
    const atto_tensor *dy;   /**< in   like y */
    const atto_tensor *da;   /**< out  like a       may be dy itself; NULL = not wanted */
    const atto_tensor *db;   /**< out  like b       may be dy itself; NULL = not wanted */
    bool add_da, add_db;     /**< += instead of = */
    float value;             /**< stands for a or b where that is NULL */
    uint64_t reserved[4];    /**< must be 0 */
};

/**
 * y = a where cond is not 0, else b.
 *
 * Saved     cond
 * Async     enqueued on dev
 * Returns   as atto_binary_forward; ATTO_E_DTYPE also if cond is not i32
 */
ATTO_API atto_status atto_where_forward(atto_device *dev, const struct atto_where_args *a);

/**
 * da = dy where cond is not 0, else 0; db the other way round; summed over repetitions.
 *
 * @param a  uses cond, dy, da, db, add_da, add_db
 */
ATTO_API atto_status atto_where_backward(atto_device *dev, const struct atto_where_args *a);

/* ---- compare ---- */

typedef enum atto_compare_kind {
#define X(NAME, name, operator_) ATTO_COMPARE_##NAME,
    ATTO_COMPARE_TABLE(X)
#undef X
        ATTO_COMPARE_COUNT
} atto_compare_kind;

/** "eq", "lt", ...; "?" for a value that is no kind. */
ATTO_API const char *atto_compare_name(atto_compare_kind kind);

/** Arguments of atto_compare_forward; literal: 0 is 0. */
struct atto_compare_args {
    const atto_tensor *a; /**< in   broadcasts   any dtype */
    const atto_tensor *b; /**< in   broadcasts   like a; NULL = the number value */
    const atto_tensor *y; /**< out  what a and b make, i32 */
    atto_compare_kind kind;
    float value;          /**< stands for b where that is NULL; beside integers a whole number */
    uint64_t reserved[4]; /**< must be 0 */
};

/**
 * y = 1 where a EQ, NE, LT, LE, GT or GE b holds, else 0. With NaN only NE holds.
 *
 * Async     enqueued on dev
 * Returns   ATTO_OK, what every op returns (attocl/device.h), and in particular
 *           ATTO_E_SHAPE     a or b does not broadcast to y, or y is larger than both make it
 *           ATTO_E_DTYPE     b's dtype is not a's, or y is not i32
 *           ATTO_E_ARGUMENT  unknown kind; a value that no integer equals beside integers
 */
ATTO_API atto_status atto_compare_forward(atto_device *dev, const struct atto_compare_args *a);

/** ATTO_E_UNSUPPORTED: a comparison has no gradient. */
ATTO_API atto_status atto_compare_backward(atto_device *dev, const struct atto_compare_args *a);

#ifdef __cplusplus
}
#endif

#endif
