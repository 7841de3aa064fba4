/* SPDX-License-Identifier: MIT */
/* The tensors of one call: checks that need no knowledge of the op, and dense copies of those that a
 * backend cannot walk. */
#ifndef ATTO_OPERAND_H
#define ATTO_OPERAND_H

#include "layout.h"

typedef struct atto__operand {
    const char *name;         /* in messages */
    const atto_tensor *given; /* the caller's view */
    atto_tensor view;         /* what the backend gets */
    bool reads, writes;
    bool is_packed;
    atto_tensor packed; /* then: the dense copy in scratch, */
    atto_buffer buffer; /* and its header */
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

/* An output shares no element with another tensor of the call, except that it may be exactly the
 * same view as an input where in_place says so. */
atto_status atto__operands_check_aliases(const atto__operands *set, bool in_place);

/* Gives the backend a dense copy in scratch instead, with the contents if they are read.
 * ATTO_E_STRIDE if the device's options forbid that. */
atto_status atto__operand_pack(atto__operands *set, atto__operand *o);

/* Packed outputs go back where they belong. */
atto_status atto__operands_unpack(const atto__operands *set);

#endif
