/* SPDX-License-Identifier: MIT */
/* A call that fuzz_ops makes: what its plan says (ops_plan.c), its memory (fuzz_ops.c), and what
 * its results must be (ops_judge.c). */
#ifndef FUZZ_OPS_H
#define FUZZ_OPS_H

#include "bytes.h"
#include "device.h"
#include "operand.h"
#include "run.h"

/* Host memory exactly as large as a tensor needs it. */
typedef struct block {
    unsigned char *data, *before; /* what it is, and what it was before the call */
    size_t bytes;
    atto_tensor whole;
} block;

/* One field of the args struct. */
typedef struct cell {
    const atto__field *field;
    bool planned; /* the plan has given it dtype and shape */
    atto_dtype dtype;
    atto_shape shape;
    atto_tensor view; /* what the call gets */
    int32_t block;    /* number of its block; -1 = none */
} cell;

typedef struct call {
    atto_device *dev;
    atto_op op;
    const atto__op_info *info;
    atto__direction direction;
    atto__any_args args;
    cell cells[ATTO_MAX_TENSORS];
    int32_t count;
    block blocks[ATTO_MAX_TENSORS];
    int32_t block_count;
    bool tame;     /* floats between -2 and 2; else any bits */
    int64_t limit; /* most integers are from 0 to limit - 1 */
    int64_t cost;  /* products or so; calls that cost much are not made */
} call;

/* The cell of that name; there must be one. */
cell *cell_of(call *c, const char *name);

/* Numbers of the call, and dtypes and shapes of its tensors: mostly what the op wants. */
void plan_call(call *c, bytes *b);

/* The results of a call that has succeeded, against the oracle, where it knows the op. */
void judge_call(call *c);

/* Number of the element in its block, at a row-major index of the view. */
int64_t element_at(const atto_tensor *t, int64_t index);

#endif
