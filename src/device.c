/* SPDX-License-Identifier: MIT */
/* Devices: list, open, share, close; logs, scratch, sticky errors, events. */
#include "device.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "layout.h"

static const atto__backend *const backends[] = {
#define X(name) &atto__##name##_backend,
    ATTO_BACKEND_TABLE(X)
#undef X
};

enum { BACKENDS = sizeof backends / sizeof backends[0] };

/* ---- logs ---- */

static void log_line(const atto__options *options, atto_log_level level, const char *format,
                     va_list args)
{
    if (!options->set.log) return;
    va_list again;
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, format, args);
    char *text = length < 0 ? NULL : atto__alloc((size_t)length + 1);
    if (text) {
        vsnprintf(text, (size_t)length + 1, format, again);
        options->set.log(options->set.log_data, level, text);
        atto__free(text);
    }
    va_end(again);
}

void atto__log_to(const atto__options *options, atto_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(options, level, format, args);
    va_end(args);
}

void atto__log(const atto_device *dev, atto_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    log_line(&dev->options, level, format, args);
    va_end(args);
}

/* ---- list ---- */

typedef struct device_list {
    atto_device_info *infos;
    int32_t count;
    int32_t first[BACKENDS + 1]; /* where each backend's devices start */
} device_list;

static bool is_backend(const char *name)
{
    for (int32_t b = 0; b < BACKENDS; b++)
        if (strcmp(name, backends[b]->name) == 0) return true;
    return false;
}

/* Every backend's devices in table order, which puts the CPU backend last. A name that is a
 * backend's asks that one alone: whoever wants the CPU does not depend on GPU drivers. */
static atto_status list_all(const atto__options *options, const char *name, device_list *out)
{
    memset(out, 0, sizeof *out);
    int32_t counts[BACKENDS] = { 0 }, total = 0;
    const bool one = name && is_backend(name);
    for (int32_t b = 0; b < BACKENDS; b++) {
        if (!one || strcmp(name, backends[b]->name) == 0)
            ATTO_TRY(backends[b]->list(options, NULL, 0, &counts[b]));
        out->first[b] = total;
        total += counts[b];
    }
    out->first[BACKENDS] = total;
    out->infos = atto__alloc((size_t)total * sizeof *out->infos);
    ATTO_REQUIRE(out->infos, ATTO_E_MEMORY, "device_list: out of host memory");
    for (int32_t b = 0; b < BACKENDS; b++) {
        int32_t again;
        if (counts[b] == 0) continue;
        const atto_status status =
            backends[b]->list(options, out->infos + out->first[b], counts[b], &again);
        if (status != ATTO_OK) {
            atto__free(out->infos);
            out->infos = NULL;
            return status;
        }
    }
    out->count = total;
    for (int32_t i = 0; i < total; i++) out->infos[i].index = one ? -1 : i;
    return ATTO_OK;
}

atto_status atto__check_abi(const char *call, int32_t abi)
{
    ATTO_REQUIRE(
        abi == ATTO_ABI, ATTO_E_VERSION,
        "%s: the program was compiled with headers of ABI %d, the library (%s) has ABI %d; "
        "rebuild the program",
        call, (int)abi, atto_version(), ATTO_ABI);
    return ATTO_OK;
}

atto_status atto_device_list_abi(int32_t abi, const atto_device_options *options,
                                 atto_device_info *infos, int32_t capacity, int32_t *count)
{
    ATTO_REQUIRE(count, ATTO_E_NULL, "device_list: count is NULL");
    *count = 0;
    ATTO_TRY(atto__check_abi("device_list", abi));
    ATTO_REQUIRE(capacity >= 0, ATTO_E_ARGUMENT, "device_list: capacity is %d", (int)capacity);
    ATTO_REQUIRE(infos || capacity == 0, ATTO_E_NULL, "device_list: infos is NULL");
    atto__options resolved;
    ATTO_TRY(atto__options_resolve(options, &resolved));
    device_list list;
    const atto_status status = list_all(&resolved, NULL, &list);
    atto__options_clear(&resolved);
    ATTO_TRY(status);
    for (int32_t i = 0; i < list.count && i < capacity; i++) infos[i] = list.infos[i];
    *count = list.count;
    atto__free(list.infos);
    return ATTO_OK;
}

/* ---- open and close ---- */

static void destroy(atto_device *dev)
{
    if (dev->cpu) atto_device_close(dev->cpu);
    atto__tuner_close(dev);
    atto__scratch_reset(dev);
    atto__pool_give(dev, dev->error_word);
    if (dev->vt) {
        atto__pool_trim(dev);
        dev->vt->close(dev);
    }
    atto__options_clear(&dev->options);
    atto__free(dev);
}

/* The error word starts at 0 and is read back only when an op may have set it. */
static atto_status make_error_word(atto_device *dev)
{
    const uint32_t zero = 0;
    ATTO_TRY(atto__pool_take(dev, sizeof zero, &dev->error_word));
    return dev->vt->write(dev, dev->error_word->memory, 0, &zero, sizeof zero);
}

atto_status atto__device_open_by(const atto_device_options *options, const atto_device_info *info,
                                 atto_status (*open)(atto_device *dev, const void *job),
                                 const void *job, atto_device **out)
{
    atto_device *dev = atto__alloc(sizeof *dev);
    ATTO_REQUIRE(dev, ATTO_E_MEMORY, "device_open: out of host memory");
    atomic_init(&dev->references, 1);
    dev->info = *info;
    atto_status status = atto__options_resolve(options, &dev->options);
    if (status == ATTO_OK && dev->info.problem[0])
        status = atto__fail(ATTO_E_DEVICE, "device_open: %s cannot be used: %s", dev->info.name,
                            dev->info.problem);
    if (status == ATTO_OK) status = open(dev, job);
    if (status == ATTO_OK) status = make_error_word(dev);
    if (status == ATTO_OK && dev->info.kind != ATTO_KIND_CPU) status = atto__tuner_open(dev);
    if (status != ATTO_OK) {
        destroy(dev);
        return status;
    }
    atto__log(dev, ATTO_LOG_INFO, "using %s (%s)", dev->info.name, dev->vt->name);
    *out = dev;
    return ATTO_OK;
}

/* The device number `index` of a list. */
typedef struct listed {
    const device_list *list;
    int32_t index;
} listed;

static atto_status open_listed(atto_device *dev, const void *job)
{
    const listed *it = job;
    int32_t b = 0;
    while (it->index >= it->list->first[b + 1]) b++;
    return backends[b]->open(dev, it->index - it->list->first[b]);
}

static atto_status open_one(const atto_device_options *options, const device_list *list,
                            int32_t index, atto_device **out)
{
    const listed it = { list, index };
    return atto__device_open_by(options, &list->infos[index], open_listed, &it, out);
}

/* Opens the first candidate that works; a broken one is logged with its reason. */
static atto_status open_first(const atto_device_options *options, const atto__options *resolved,
                              const device_list *list, const int32_t *order, int32_t candidates,
                              atto_device **out)
{
    atto_status status = ATTO_E_DEVICE;
    for (int32_t i = 0; i < candidates && status != ATTO_OK; i++) {
        status = open_one(options, list, order[i], out);
        if (status != ATTO_OK && i + 1 < candidates)
            atto__log_to(resolved, ATTO_LOG_WARNING, "skipping %s: %s", list->infos[order[i]].name,
                         atto_last_error());
    }
    return status;
}

static atto_status open_named(const char *name, const atto_device_options *options,
                              const atto__options *resolved, atto_device **out)
{
    device_list list;
    ATTO_TRY(list_all(resolved, name, &list));
    int32_t *order = atto__alloc((size_t)list.count * sizeof *order);
    int32_t candidates;
    atto_status status = order ? ATTO_OK : atto__fail(ATTO_E_MEMORY, "device_open: out of memory");
    if (status == ATTO_OK) status = atto__select(name, list.infos, list.count, order, &candidates);
    if (status == ATTO_OK) status = open_first(options, resolved, &list, order, candidates, out);
    atto__free(order);
    atto__free(list.infos);
    return status;
}

atto_status atto_device_open_abi(int32_t abi, const char *name, const atto_device_options *options,
                                 atto_device **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "device_open: out is NULL");
    *out = NULL;
    ATTO_TRY(atto__check_abi("device_open", abi));
    atto__options resolved;
    ATTO_TRY(atto__options_resolve(options, &resolved));
    const bool automatic = !name || strcmp(name, "auto") == 0;
    const char *wanted = automatic ? (resolved.device ? resolved.device : "auto") : name;
    const atto_status status = open_named(wanted, options, &resolved, out);
    atto__options_clear(&resolved);
    return status;
}

void atto__device_retain(atto_device *dev)
{
    atomic_fetch_add(&dev->references, 1);
}

void atto__device_release(atto_device *dev)
{
    if (atomic_fetch_sub(&dev->references, 1) == 1) destroy(dev);
}

void atto_device_close(atto_device *dev)
{
    if (dev) atto__device_release(dev);
}

/* ---- state ---- */

atto_status atto__device_check(const atto_device *dev)
{
    ATTO_REQUIRE(!dev->lost, ATTO_E_LOST, "%s", dev->lost_message);
    ATTO_REQUIRE(!dev->in_kernel, ATTO_E_STATE,
                 "a kernel's C function calls the library on the device that runs it");
    return ATTO_OK;
}

atto_status atto__device_lose(atto_device *dev, const char *format, ...)
{
    if (!dev->lost) {
        va_list args;
        va_start(args, format);
        vsnprintf(dev->lost_message, sizeof dev->lost_message, format, args);
        va_end(args);
        dev->lost = true;
        atto__log(dev, ATTO_LOG_WARNING, "device lost: %s", dev->lost_message);
    }
    return atto__fail(ATTO_E_LOST, "%s", dev->lost_message);
}

atto_status atto_device_describe(const atto_device *dev, atto_device_info *out)
{
    ATTO_REQUIRE(dev && out, ATTO_E_NULL, "device_describe: %s is NULL", dev ? "out" : "dev");
    *out = dev->info;
    return ATTO_OK;
}

atto_status atto_device_stats_get(const atto_device *dev, atto_device_stats *out)
{
    ATTO_REQUIRE(dev && out, ATTO_E_NULL, "device_stats_get: %s is NULL", dev ? "out" : "dev");
    *out = dev->stats;
    return ATTO_OK;
}

atto_status atto_device_trim(atto_device *dev)
{
    ATTO_REQUIRE(dev, ATTO_E_NULL, "device_trim: dev is NULL");
    ATTO_TRY(atto__device_check(dev));
    atto__scratch_reset(dev);
    atto__pool_trim(dev);
    return ATTO_OK;
}

/* Clears a word that is not 0, and tells of it. */
static atto_status tell_data_error(atto_device *dev, uint32_t word)
{
    const uint32_t zero = 0;
    if (word == 0) return ATTO_OK;
    ATTO_TRY(dev->vt->write(dev, dev->error_word->memory, 0, &zero, sizeof zero));
    return atto__fail(
        ATTO_E_INDEX,
        "an earlier call met a label or an index out of range; with ATTOCL_DEBUG=sync the call "
        "itself fails");
}

atto_status atto__device_data_errors(atto_device *dev)
{
    if (!dev->error_armed) return ATTO_OK;
    uint32_t word = 0;
    ATTO_TRY(dev->vt->read(dev, dev->error_word->memory, 0, &word, sizeof word));
    dev->error_armed = false;
    if (word != 0) ATTO_TRY(dev->vt->poll(dev, dev->error_word->memory, NULL));
    return tell_data_error(dev, word);
}

atto_status atto__device_poll_errors(atto_device *dev)
{
    if (!dev->error_armed) return ATTO_OK;
    uint32_t word = 0;
    ATTO_TRY(dev->vt->poll(dev, dev->error_word->memory, &word));
    return tell_data_error(dev, word);
}

atto_status atto_device_sync(atto_device *dev)
{
    ATTO_REQUIRE(dev, ATTO_E_NULL, "device_sync: dev is NULL");
    ATTO_TRY(atto__device_check(dev));
    ATTO_TRY(dev->vt->sync(dev));
    return atto__device_data_errors(dev);
}

atto_status atto__device_finish_call(atto_device *dev)
{
    return dev->options.set.sync ? atto_device_sync(dev) : ATTO_OK;
}

bool atto_device_supports(atto_device *dev, atto_op op, atto_dtype dtype)
{
    return dev && (int)op >= 0 && op < ATTO_OP_COUNT && !dev->lost &&
           dev->vt->supports(dev, op, dtype);
}

/* ---- scratch ---- */

void atto__scratch_release(atto_device *dev, int32_t keep)
{
    while (dev->scratch_count > keep) atto__pool_give(dev, dev->scratch[--dev->scratch_count]);
}

void atto__scratch_reset(atto_device *dev)
{
    atto__scratch_release(dev, 0);
}

static atto_status scratch_block(atto_device *dev, size_t bytes, atto__block **out)
{
    ATTO_REQUIRE(dev->scratch_count < ATTO_SCRATCH_PIECES, ATTO_E_MEMORY,
                 "a call wants more than %d pieces of scratch memory", ATTO_SCRATCH_PIECES);
    ATTO_TRY(atto__pool_take(dev, bytes, out));
    dev->scratch[dev->scratch_count++] = *out;
    return ATTO_OK;
}

atto_status atto__scratch_tensor(atto_device *dev, atto_dtype dtype, int32_t rank,
                                 const int64_t *shape, atto_buffer *buffer, atto_tensor *out)
{
    *out = atto_tensor_of(buffer, dtype, atto_shape_of(rank, shape), 0);
    memset(buffer, 0, sizeof *buffer);
    buffer->dev = dev;
    buffer->bytes = (size_t)atto_tensor_numel(out) * atto_dtype_size(dtype);
    return scratch_block(dev, buffer->bytes, &buffer->block);
}

/* ---- events ---- */

struct atto_event {
    atto_device *dev; /* holds a reference */
    void *handle;     /* the backend's own */
};

atto_status atto_event_record(atto_device *dev, atto_event **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "event_record: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(dev, ATTO_E_NULL, "event_record: dev is NULL");
    ATTO_TRY(atto__device_check(dev));
    ATTO_REQUIRE(dev->options.set.profile, ATTO_E_STATE,
                 "event_record: open the device with the option profile (ATTOCL_PROFILE=1)");
    atto_event *event = atto__alloc(sizeof *event);
    ATTO_REQUIRE(event, ATTO_E_MEMORY, "event_record: out of host memory");
    const atto_status status = dev->vt->event_record(dev, &event->handle);
    if (status != ATTO_OK) {
        atto__free(event);
        return status;
    }
    event->dev = dev;
    atto__device_retain(dev);
    *out = event;
    return ATTO_OK;
}

atto_status atto_event_elapsed(const atto_event *start, const atto_event *end, double *out_ms)
{
    ATTO_REQUIRE(start && end && out_ms, ATTO_E_NULL, "event_elapsed: %s is NULL",
                 !start ? "start"
                 : !end ? "end"
                        : "out_ms");
    ATTO_REQUIRE(start->dev == end->dev, ATTO_E_DEVICE,
                 "event_elapsed: the events are of two devices");
    ATTO_TRY(atto__device_check(start->dev));
    return start->dev->vt->event_elapsed(start->dev, start->handle, end->handle, out_ms);
}

void atto_event_destroy(atto_event *event)
{
    if (!event) return;
    event->dev->vt->event_destroy(event->dev, event->handle);
    atto__device_release(event->dev);
    atto__free(event);
}
