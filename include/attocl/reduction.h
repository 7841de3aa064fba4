/* SPDX-License-Identifier: MIT */
/* What a loss makes of its positions. */
#ifndef ATTOCL_REDUCTION_H
#define ATTOCL_REDUCTION_H

/** PyTorch's names and, as 0, its default. Each loss says what its mean divides by. */
typedef enum atto_reduction {
    ATTO_REDUCTION_MEAN = 0,
    ATTO_REDUCTION_SUM = 1,
    ATTO_REDUCTION_NONE = 2,
    ATTO_REDUCTION_BATCH_MEAN = 3 /**< the sum divided by x's first size; of attocl/loss.h only */
} atto_reduction;

#endif
