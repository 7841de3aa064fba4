/* SPDX-License-Identifier: MIT */
/* The tensors of one call: checks that need no knowledge of the op, and dense copies of those that
 * a backend cannot walk. */
#ifndef ATTO_OPERAND_H
#define ATTO_OPERAND_H

#include "layout.h"

typedef struct atto__operand {
    const char *name;         /* in messages */
    const atto_tensor *given; /* the caller's view, or shaped */
    const atto_tensor *given_by_caller;
    atto_tensor shaped; /* the caller's elements in another shape, when they are packed thus */
    atto_tensor view;   /* what the backend gets */
    bool reads, writes;
    bool is_packed;
    atto_tensor packed; /* then: the dense copy in scratch, */
    atto_buffer buffer; /* and its header */
    atto_buffer source; /* header of the first copy, of an input that is packed twice */
} atto__operand;

typedef struct atto__operands {
    atto_device *dev;
    const char *call; /* "act_forward", in messages */
    int32_t count;
    atto__operand list[ATTO_MAX_TENSORS];
} atto__operands;

/* given is neither NULL nor one too many. The backend will see it as it is, unless it is packed. */
void atto__operand_add(atto__operands *set, const char *name, const atto_tensor *given, bool reads,
                       bool writes);

/* Each view is legal, belongs to the device and is not mapped; no output overlaps itself. */
atto_status atto__operands_check(const atto__operands *set);

/* Counts the call as one that writes to the buffers of its outputs. */
void atto__operands_count_writes(const atto__operands *set);

/* An output shares no element with another tensor of the call, except that it may be exactly the
 * same view as an input where in_place says so. */
atto_status atto__operands_check_aliases(const atto__operands *set, bool in_place);

/* Gives the backend a dense copy in scratch instead, with the contents if they are read.
 * ATTO_E_STRIDE if the device's options forbid that. */
atto_status atto__operand_pack(atto__operands *set, atto__operand *o);

/* The same for what kernels rearrange whatever it lies like: not a hidden copy. */
atto_status atto__operand_arrange(atto__operands *set, atto__operand *o);

/* Of views that were expanded to full: the same where that takes too many dimensions. All of them
 * get one other order of dimensions, in which those that one output sums up, or that a reduction
 * folds (bit d of folded), stand together, so that two outputs and any inputs merge to four;
 * counter is reordered with them. */
atto_status atto__operands_pack_expanded(atto__operands *set, const atto_tensor *full,
                                         uint32_t folded, atto_tensor *counter);

/* A view of full's shape whose strides count the elements of the folded dimensions in row-major
 * order; the others have stride 0. */
atto_tensor atto__folded_counter(const atto_tensor *full, uint32_t folded);

/* Packed outputs go back where they belong. */
atto_status atto__operands_unpack(const atto__operands *set);

#endif
