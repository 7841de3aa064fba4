/* SPDX-License-Identifier: MIT */
/* Bits of the flags arguments of matrix kernels. Macros only: the host includes this too. */
#ifndef ATTO_GEMM_FLAGS_H
#define ATTO_GEMM_FLAGS_H

/* What the epilogue does (atto_epilogue.h). */
#define ATTO_EPILOGUE_BIAS     1u  /* adds bias[column], stored like b */
#define ATTO_EPILOGUE_BIAS_F32 2u  /* and that is f32 */
#define ATTO_EPILOGUE_Z        4u  /* stores the sum before the activation */
#define ATTO_EPILOGUE_RESIDUAL 8u  /* adds residual */
#define ATTO_EPILOGUE_ADD      16u /* adds what c holds */
#define ATTO_EPILOGUE_QUADS    32u /* columns, strides and offsets are multiples of 4 */

/* How the prologue reads (atto_prologue.h). */
#define ATTO_PROLOGUE_QUADS 1u /* columns, strides and offsets are multiples of 4 */

#endif
