/* SPDX-License-Identifier: MIT */
/* Bits of the flags arguments of conv.cl. Macros only: the host includes this too. */
#ifndef ATTO_CONV_FLAGS_H
#define ATTO_CONV_FLAGS_H

/* What happens to a sum. */
#define ATTO_CONV_BIAS     1u  /* adds bias[channel], stored like the filter */
#define ATTO_CONV_BIAS_F32 2u  /* and that is f32 */
#define ATTO_CONV_Z        4u  /* stores the sum before the activation */
#define ATTO_CONV_RESIDUAL 8u  /* adds residual */
#define ATTO_CONV_ADD      16u /* adds what c holds */
#define ATTO_CONV_QUADS    32u /* four neighbours of a result are neighbours in memory */

/* What atto_conv_pack makes. */
#define ATTO_CONV_FILTER 1u /* the filter, too */
#define ATTO_CONV_TO_BIG 2u /* its outputs are channels of the big image */

#endif
