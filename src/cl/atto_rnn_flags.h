/* SPDX-License-Identifier: MIT */
/* Bits of the last argument of rnn.cl's kernels. Macros only: the host includes this too. */
#ifndef ATTO_RNN_FLAGS_H
#define ATTO_RNN_FLAGS_H

/* The optional tensors that are there. */
#define ATTO_RNN_GATES 1u /* forward */
#define ATTO_RNN_DY    2u /* backward of an LSTM, */
#define ATTO_RNN_DCY   4u /* both of them */
#define ATTO_RNN_DX    8u
#define ATTO_RNN_DU    16u
#define ATTO_RNN_DH    32u /* of an LSTM: dc */

/* Gradients that are added to what is there. */
#define ATTO_RNN_ADD_DX 64u
#define ATTO_RNN_ADD_DU 128u
#define ATTO_RNN_ADD_DH 256u

#endif
