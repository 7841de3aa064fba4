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
    o->given = given;
    o->view = *given;
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
    return ATTO_OK;
}

atto_status atto__operands_check(const atto__operands *set)
{
    for (int32_t i = 0; i < set->count; i++) ATTO_TRY(check_one(set, &set->list[i]));
    return ATTO_OK;
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
    ATTO_TRY(atto__scratch_tensor(dev, o->given->dtype, o->given->rank, o->given->shape, &o->buffer,
                                  &o->packed));
    o->view = o->packed;
    o->is_packed = true;
    dev->stats.hidden_copies++;
    return o->reads ? atto__copy(dev, &o->packed, o->given) : ATTO_OK;
}

atto_status atto__operands_unpack(const atto__operands *set)
{
    for (int32_t i = 0; i < set->count; i++) {
        const atto__operand *o = &set->list[i];
        if (o->is_packed && o->writes) ATTO_TRY(atto__copy(set->dev, o->given, &o->packed));
    }
    return ATTO_OK;
}
