/* SPDX-License-Identifier: MIT */
/* Checks and packs the tensors of a call. */
#include "operand.h"

#include <assert.h>

#include "tensor.h"

void atto__operand_add(atto__operands *set, const char *name, const atto_tensor *given, bool reads,
                       bool writes)
{
    assert(set->count < ATTO_MAX_TENSORS);
    atto__operand *o = &set->list[set->count++];
    o->name = name;
    o->given = o->given_by_caller = given;
    o->view = *given;
    /* A stride along one element means nothing; in sums a huge one would overflow. */
    for (int32_t d = 0; d < given->rank && d < ATTO_MAX_RANK; d++)
        if (given->shape[d] == 1 && given->stride[d] > INT32_MAX) o->view.stride[d] = 0;
    o->reads = reads;
    o->writes = writes;
    o->is_packed = false;
}

static atto_status check_one(const atto__operands *set, const atto__operand *o)
{
    const atto_status status = atto__view_check(o->given, o->name);
    if (status != ATTO_OK) return atto__fail_in(status, "%s: ", set->call);
    const atto_device *owner = atto_tensor_device(o->given);
    ATTO_REQUIRE(!owner || owner == set->dev, ATTO_E_DEVICE,
                 "%s: %s belongs to another device (%s) than dev (%s)", set->call, o->name,
                 owner->info.name, set->dev->info.name);
    ATTO_REQUIRE(!o->writes || atto__view_distinct(o->given), ATTO_E_STRIDE,
                 "%s: %s: elements of an output overlap each other", set->call, o->name);
    ATTO_REQUIRE(!o->writes || !o->given->buffer || !o->given->buffer->read_only, ATTO_E_STATE,
                 "%s: %s is an output, and its memory is read-only", set->call, o->name);
    return ATTO_OK;
}

atto_status atto__operands_check(const atto__operands *set)
{
    for (int32_t i = 0; i < set->count; i++) ATTO_TRY(check_one(set, &set->list[i]));
    return ATTO_OK;
}

void atto__operands_count_writes(const atto__operands *set)
{
    for (int32_t i = 0; i < set->count; i++) {
        const atto__operand *o = &set->list[i];
        if (o->writes && o->given->buffer) o->given->buffer->writes++;
    }
}

atto_status atto__operands_check_aliases(const atto__operands *set, bool in_place)
{
    for (int32_t i = 0; i < set->count; i++) {
        const atto__operand *out = &set->list[i];
        for (int32_t j = 0; out->writes && j < set->count; j++) {
            const atto__operand *other = &set->list[j];
            if (i == j || !atto__view_overlap(out->given, other->given)) continue;
            const bool exact =
                in_place && !other->writes && atto__view_same(out->given, other->given);
            ATTO_REQUIRE(exact, ATTO_E_ALIAS, "%s: %s overlaps %s", set->call, out->name,
                         other->name);
        }
    }
    return ATTO_OK;
}

atto_status atto__operand_pack(atto__operands *set, atto__operand *o)
{
    atto_device *dev = set->dev;
    ATTO_REQUIRE(!dev->options.set.no_hidden_copies, ATTO_E_STRIDE,
                 "%s: %s has strides that need a packed copy, which the device's options forbid",
                 set->call, o->name);
    dev->stats.hidden_copies++;
    return atto__operand_arrange(set, o);
}

atto_status atto__operand_arrange(atto__operands *set, atto__operand *o)
{
    atto_device *dev = set->dev;
    ATTO_TRY(atto__scratch_tensor(dev, o->given->dtype, o->given->rank, o->given->shape, &o->buffer,
                                  &o->packed));
    o->view = o->packed;
    o->is_packed = true;
    return o->reads ? atto__copy(dev, &o->packed, o->given) : ATTO_OK;
}

atto_tensor atto__folded_counter(const atto_tensor *full, uint32_t folded)
{
    int64_t stride = 1;
    atto_tensor counter = *full;
    for (int32_t d = full->rank - 1; d >= 0; d--) {
        const bool counts = folded >> d & 1u;
        counter.stride[d] = counts ? stride : 0;
        if (counts) stride *= full->shape[d];
    }
    return counter;
}

/* Bit i: output number i of the set sums up dimension d; the highest: it is folded. */
static uint32_t summed_by(const atto__operands *set, uint32_t folded, int32_t d)
{
    uint32_t bits = (folded >> d & 1u) << 31;
    for (int32_t i = 0; i < set->count; i++) {
        const atto_tensor *view = &set->list[i].view;
        if (set->list[i].writes && view->shape[d] > 1 && view->stride[d] == 0) bits |= 1u << i;
    }
    return bits;
}

/* Dimensions sorted by who sums them up; equal ones keep their order. */
static void summing_order(const atto__operands *set, uint32_t folded, int32_t *order)
{
    for (int32_t d = 0; d < set->list[0].view.rank; d++) {
        const uint32_t key = summed_by(set, folded, d);
        int32_t at = d;
        for (; at > 0 && summed_by(set, folded, order[at - 1]) > key; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
}

static atto_tensor reordered(const atto_tensor *t, const int32_t *order)
{
    atto_tensor out = *t;
    for (int32_t d = 0; d < t->rank; d++) {
        out.shape[d] = t->shape[order[d]];
        out.stride[d] = t->stride[order[d]];
    }
    return out;
}

/* Inputs in full; of an output, or of what a reduction makes, each element once. */
static atto_status pack_expanded(atto__operands *set, atto__operand *o, const int32_t *order,
                                 const atto_tensor *full, uint32_t folded)
{
    const bool reduced = !atto__shape_same(o->given_by_caller, full);
    const atto_tensor expanded = reordered(&o->view, order);
    o->shaped = expanded;
    for (int32_t d = 0; d < expanded.rank; d++) {
        const bool once = o->writes || (reduced && (folded >> order[d] & 1u));
        if (once && expanded.stride[d] == 0) o->shaped.shape[d] = 1;
    }
    if (o->is_packed) {
        o->source = o->buffer;
        o->shaped.buffer = &o->source;
    }
    o->given = &o->shaped;
    ATTO_TRY(atto__operand_pack(set, o));
    atto__view_expand(&o->view, &expanded, 0);
    return ATTO_OK;
}

atto_status atto__operands_pack_expanded(atto__operands *set, const atto_tensor *full,
                                         uint32_t folded, atto_tensor *counter)
{
    int32_t order[ATTO_MAX_RANK] = { 0 };
    summing_order(set, folded, order);
    for (int32_t i = 0; i < set->count; i++)
        ATTO_TRY(pack_expanded(set, &set->list[i], order, full, folded));
    *counter = reordered(counter, order);
    return ATTO_OK;
}

atto_status atto__operands_unpack(const atto__operands *set)
{
    for (int32_t i = 0; i < set->count; i++) {
        const atto__operand *o = &set->list[i];
        if (o->is_packed && o->writes) ATTO_TRY(atto__copy(set->dev, o->given, &o->packed));
    }
    return ATTO_OK;
}
