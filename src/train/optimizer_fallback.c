/* SPDX-License-Identifier: MIT */
/* A part of an optimiser's step on the CPU backend, through host copies of what it reads and
 * writes. */
#include "run.h"
#include "train/optimizer.h"

typedef struct guest {
    const atto_tensor **field; /* of the args */
    const atto_tensor *home;
    atto_tensor copy; /* on the CPU */
    bool writes;
} guest;

#define MOST_GUESTS 11

typedef struct party {
    guest list[MOST_GUESTS];
    int32_t count;
} party;

static void invite(party *p, const atto_tensor **field, bool writes)
{
    if (*field) p->list[p->count++] = (guest){ .field = field, .home = *field, .writes = writes };
}

/* The tensors of that part. */
static party guests_of(atto__optim_part part, struct atto__optim_args *a)
{
    party p = { .count = 0 };
    if (part == ATTO_OPTIM_NORM || part == ATTO_OPTIM_BEGIN) {
        invite(&p, &a->flags, false);
        invite(&p, &a->control, true);
        invite(&p, &a->partials, true);
    }
    if (part == ATTO_OPTIM_NORM || part == ATTO_OPTIM_STEP) {
        invite(&p, &a->segment_of, false);
        invite(&p, &a->grad, false);
    }
    if (part == ATTO_OPTIM_BEGIN || part == ATTO_OPTIM_STEP) invite(&p, &a->coefficients, true);
    if (part == ATTO_OPTIM_BEGIN) {
        invite(&p, &a->group_of, false);
        invite(&p, &a->groups, false);
        invite(&p, &a->steps, true);
    }
    if (part == ATTO_OPTIM_STEP) {
        invite(&p, &a->value, true);
        invite(&p, &a->master, true);
        invite(&p, &a->shadow, true);
        for (int32_t i = 0; i < ATTO_OPTIM_STATES; i++) invite(&p, &a->state[i], true);
    }
    return p;
}

static size_t bytes_of(const atto_tensor *t)
{
    return (size_t)atto_tensor_numel(t) * atto_dtype_size(t->dtype);
}

static atto_status run_away(atto_device *dev, atto__optim_part part, struct atto__optim_args *a,
                            party *p)
{
    for (int32_t i = 0; i < p->count; i++) {
        guest *g = &p->list[i];
        ATTO_TRY(
            atto_tensor_alloc(dev->cpu, g->home->dtype, atto_shape1(g->home->shape[0]), &g->copy));
        ATTO_TRY(dev->vt->read(dev, atto__memory(g->home), 0, atto__memory(&g->copy),
                               bytes_of(g->home)));
        *g->field = &g->copy;
    }
    ATTO_TRY(atto__optim_slot(dev->cpu->vt, part)(dev->cpu, a));
    for (int32_t i = 0; i < p->count; i++) {
        const guest *g = &p->list[i];
        if (g->writes)
            ATTO_TRY(dev->vt->write(dev, atto__memory(g->home), 0, atto__memory(&g->copy),
                                    bytes_of(g->home)));
    }
    return ATTO_OK;
}

atto_status atto__optim_fallback(atto_device *dev, atto__optim_part part,
                                 const struct atto__optim_args *args)
{
    ATTO_TRY(atto__fallback_device(dev));
    struct atto__optim_args a = *args;
    party p = guests_of(part, &a);
    const atto_status status = run_away(dev, part, &a, &p);
    for (int32_t i = 0; i < p.count; i++) atto_tensor_free(&p.list[i].copy);
    return status;
}
