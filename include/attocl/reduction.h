/* SPDX-License-Identifier: MIT */
/* What a loss makes of its positions. */
#ifndef ATTOCL_REDUCTION_H
#define ATTOCL_REDUCTION_H

/** PyTorch's names and, as 0, its default. Each loss says what its mean divides by. */
typedef enum atto_reduction {
    ATTO_REDUCTION_MEAN = 0,
    ATTO_REDUCTION_SUM = 1,
    ATTO_REDUCTION_NONE = 2
} atto_reduction;

#endif
