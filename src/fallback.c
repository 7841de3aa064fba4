/* SPDX-License-Identifier: MIT */
/* An op that a device cannot run, on the CPU backend, through host copies of its tensors.
 *
 * Written once for every op: the field list says which tensors are read and written. Each buffer's
 * part that the call touches goes out and back as one piece, so that gaps of strided views keep
 * their contents and views of one buffer stay together. */
#include <string.h>

#include "layout.h"
#include "run.h"

/* The part of one buffer that a call touches. */
typedef struct guest {
    atto_buffer *home;
    size_t begin, end; /* bytes */
    atto_tensor copy;  /* on the CPU */
    bool writes;
} guest;

/* One call's tensors away from home. */
typedef struct party {
    guest guests[ATTO_MAX_TENSORS];
    int32_t count;
    atto_tensor views[ATTO_MAX_TENSORS]; /* over the guests' copies */
    int32_t view_count;
} party;

atto_status atto__fallback_device(atto_device *dev)
{
    if (dev->cpu) return ATTO_OK;
    atto_device_options options = dev->options.set;
    options.ignore_environment = true;
    options.max_memory_bytes = 0;
    options.cblas = NULL; /* which was meant for a device of its own */
    return atto_device_open("cpu", &options, &dev->cpu);
}

static guest *guest_of(party *p, atto_buffer *home)
{
    for (int32_t i = 0; i < p->count; i++)
        if (p->guests[i].home == home) return &p->guests[i];
    guest *g = &p->guests[p->count++];
    g->home = home;
    g->begin = SIZE_MAX;
    return g;
}

/* Widens the guest by one view. Begins at a multiple of 8, so that any dtype's offset is whole. */
static void include(guest *g, const atto_tensor *view, bool writes)
{
    const size_t size = atto_dtype_size(view->dtype);
    const size_t begin = (size_t)view->offset * size / 8 * 8;
    const size_t end = ((size_t)view->offset + (size_t)atto__extent(view)) * size;
    if (begin < g->begin) g->begin = begin;
    if (end > g->end) g->end = end;
    g->writes = g->writes || writes;
}

static atto_status bring(atto_device *dev, guest *g)
{
    const size_t bytes = g->end - g->begin;
    const atto_shape words = atto_shape1((int64_t)((bytes + 7) / 8));
    ATTO_TRY(atto_tensor_alloc(dev->cpu, ATTO_I64, words, &g->copy));
    return dev->vt->read(dev, g->home->block->memory, g->begin, atto__memory(&g->copy), bytes);
}

static atto_status send_home(atto_device *dev, const guest *g)
{
    return dev->vt->write(dev, g->home->block->memory, g->begin, atto__memory(&g->copy),
                          g->end - g->begin);
}

/* The same view over the guest's copy. */
static const atto_tensor *visit(party *p, const guest *g, const atto_tensor *home)
{
    const int64_t size = (int64_t)atto_dtype_size(home->dtype);
    atto_tensor *view = &p->views[p->view_count++];
    *view = *home;
    view->buffer = g->copy.buffer;
    view->offset = home->offset - (int64_t)g->begin / size;
    return view;
}

/* Applies one step to every tensor of the call: first the guests are measured, then brought, then
 * args points at them. */
static atto_status invite(atto_device *dev, const atto__op_info *op, atto__direction direction,
                          void *args, party *p)
{
    int32_t count;
    const atto__field *fields = op->fields(&count);
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t f = 0; f < count; f++) {
            const atto_tensor **slot = atto__field_of(args, &fields[f]);
            const bool writes = atto__field_writes(&fields[f], direction);
            if (!*slot || !(writes || atto__field_reads(&fields[f], args, direction))) continue;
            if (atto__extent(*slot) == 0) continue; /* may have no buffer */
            guest *g = guest_of(p, (*slot)->buffer);
            if (pass == 0) {
                include(g, *slot, writes);
            } else {
                *slot = visit(p, g, *slot);
            }
        }
        for (int32_t i = 0; pass == 0 && i < p->count; i++) ATTO_TRY(bring(dev, &p->guests[i]));
    }
    return ATTO_OK;
}

/* What the CPU's kernel found in the data is told by the device that was asked. */
static atto_status pass_data_errors(atto_device *dev)
{
    const uint32_t found = 1;
    dev->cpu->error_armed = true;
    const atto_status status = atto__device_data_errors(dev->cpu);
    if (status != ATTO_E_INDEX) return status;
    return dev->vt->write(dev, dev->error_word->memory, 0, &found, sizeof found);
}

static atto_status run_away(atto_device *dev, const atto__op_info *op, atto__direction direction,
                            void *args, const atto__layout *layout, party *p)
{
    ATTO_TRY(invite(dev, op, direction, args, p));
    atto__scratch_reset(dev->cpu);
    ATTO_TRY(op->call(dev->cpu->vt, direction, dev->cpu, args, layout));
    if (op->data_errors) ATTO_TRY(pass_data_errors(dev));
    for (int32_t i = 0; i < p->count; i++)
        if (p->guests[i].writes) ATTO_TRY(send_home(dev, &p->guests[i]));
    return ATTO_OK;
}

atto_status atto__fallback(atto_device *dev, atto_op op, atto__direction direction,
                           const void *args, const atto__layout *layout)
{
    ATTO_TRY(atto__fallback_device(dev));
    const atto__op_info *info = atto__op(op);
    atto__any_args copy;
    memcpy(&copy, args, info->args_bytes);
    party p;
    memset(&p, 0, sizeof p);
    const atto_status status = run_away(dev, info, direction, &copy, layout, &p);
    for (int32_t i = 0; i < p.count; i++) atto_tensor_free(&p.guests[i].copy);
    return status;
}
