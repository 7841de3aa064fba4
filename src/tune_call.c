/* SPDX-License-Identifier: MIT */
/* One call in many ways: outputs are replaced by copies, so that no tensor of the caller's
 * changes. */
#include "tune_call.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "cl/atto_math.h"
#include "os.h"
#include "tensor.h"

/* A measurement: so many samples, each of so many calls that it takes at least that long; the best
 * of them counts. Another way must be faster than the first by a margin that noise does not
 * reach. */
#define SAMPLES        5
#define SAMPLE_SECONDS 2e-3
#define MOST_CALLS     1024
#define MARGIN         0.98
#define HOPELESS       3.0 /* so many times the best so far need not be measured well */

/* Of a large output only so many bytes are compared. */
#define COMPARED_BYTES ((size_t)8 << 20)

/* An output of the call and its copy. */
typedef struct output {
    const atto_tensor *original;
    bool reads; /* the call starts from what it holds */
    atto_tensor copy;
    atto_buffer header;
    size_t bytes;
    size_t compared; /* of them; where that is less, half at the start and half at the end */
    unsigned char *expected, *got; /* those of the first way, and of another one */
} output;

typedef struct session {
    atto_device *dev;
    const atto__op_info *op;
    atto__direction direction;
    const atto__layout *layout;
    atto__any_args args;
    atto__trial trial;
    int32_t scratch; /* pieces that are not a way's own */
    int32_t count;
    output outputs[ATTO_MAX_TENSORS];
} session;

/* ---- copies ---- */

/* A view like t's in memory of its own, as far from 64 bytes as t is. */
static atto_status make_copy(session *s, output *o)
{
    const atto_tensor *t = o->original;
    const int64_t vector = 64 / (int64_t)atto_dtype_size(t->dtype), start = t->offset % vector;
    const int64_t elements = start + atto__extent(t);
    atto_tensor flat;
    ATTO_TRY(atto__scratch_tensor(s->dev, t->dtype, 1, &elements, &o->header, &flat));
    o->copy = *t;
    o->copy.buffer = &o->header;
    o->copy.offset = start;
    o->bytes = (size_t)elements * atto_dtype_size(t->dtype);
    o->compared = o->bytes < COMPARED_BYTES ? o->bytes : COMPARED_BYTES;
    o->expected = atto__alloc(o->compared);
    o->got = atto__alloc(o->compared);
    ATTO_REQUIRE(o->expected && o->got, ATTO_E_MEMORY, "out of host memory");
    return atto__fill(s->dev, &flat, 0.0); /* what no element stands in is compared, too */
}

static atto_status begin(session *s, const void *args)
{
    int32_t count;
    const atto__field *fields = s->op->fields(&count);
    memcpy(&s->args, args, s->op->args_bytes);
    for (int32_t f = 0; f < count; f++) {
        const atto_tensor **field = atto__field_of(&s->args, &fields[f]);
        if (!*field || !atto__field_writes(&fields[f], s->direction)) continue;
        if (atto_tensor_numel(*field) == 0) continue;
        output *o = &s->outputs[s->count++];
        o->original = *field;
        o->reads = atto__field_reads(&fields[f], args, s->direction);
        ATTO_TRY(make_copy(s, o));
        *field = &o->copy;
    }
    s->scratch = s->dev->scratch_count;
    return ATTO_OK;
}

static void end(session *s)
{
    for (int32_t i = 0; i < s->count; i++) {
        atto__free(s->outputs[i].expected);
        atto__free(s->outputs[i].got);
    }
}

static bool is_float(atto_dtype dtype)
{
    return dtype == ATTO_F32 || dtype == ATTO_F16 || dtype == ATTO_BF16;
}

/* What the call reads is as the caller has it, and what it does not write will be noticed. */
static atto_status reset_outputs(session *s)
{
    for (int32_t i = 0; i < s->count; i++) {
        const output *o = &s->outputs[i];
        if (o->reads) {
            ATTO_TRY(atto__copy(s->dev, &o->copy, o->original));
        } else {
            ATTO_TRY(atto__fill(s->dev, &o->copy, is_float(o->copy.dtype) ? (double)NAN : -1.0));
        }
    }
    return ATTO_OK;
}

static atto_status read_outputs(const session *s, bool expected)
{
    for (int32_t i = 0; i < s->count; i++) {
        const output *o = &s->outputs[i];
        unsigned char *to = expected ? o->expected : o->got;
        const size_t head = o->compared < o->bytes ? o->compared / 2 : o->bytes;
        const size_t tail = o->compared - head;
        void *memory = atto__memory(&o->copy);
        ATTO_TRY(s->dev->vt->read(s->dev, memory, 0, to, head));
        if (tail > 0) ATTO_TRY(s->dev->vt->read(s->dev, memory, o->bytes - tail, to + head, tail));
    }
    return ATTO_OK;
}

/* ---- comparing ---- */

static float float_of(atto_dtype dtype, const void *data, int64_t i)
{
    uint16_t half;
    float value;
    if (dtype == ATTO_F32) {
        memcpy(&value, (const char *)data + 4 * i, sizeof value);
        return value;
    }
    memcpy(&half, (const char *)data + 2 * i, sizeof half);
    return dtype == ATTO_F16 ? attom_f16_to_f32(half) : attom_bf16_to_f32(half);
}

/* The largest finite magnitude. */
static float largest_of(atto_dtype dtype, const void *data, int64_t n)
{
    float largest = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        const float magnitude = fabsf(float_of(dtype, data, i));
        if (isfinite(magnitude) && magnitude > largest) largest = magnitude;
    }
    return largest;
}

/* Two ways round sums of the same terms differently: by far less than 2^-12 of the largest result,
 * and where a result is stored, by two roundings of its own. A wrong term shows as a share of the
 * largest. */
bool atto__results_agree(atto_dtype dtype, const void *expected, const void *got, int64_t n,
                         bool same_order)
{
    const size_t bytes = (size_t)n * atto_dtype_size(dtype);
    if (memcmp(expected, got, bytes) == 0) return true;
    if (same_order || !is_float(dtype)) return false;
    const float rounding = dtype == ATTO_F32 ? 0x1p-22f : dtype == ATTO_F16 ? 0x1p-9f : 0x1p-6f;
    const float apart = 0x1p-12f * largest_of(dtype, expected, n);
    for (int64_t i = 0; i < n; i++) {
        const float e = float_of(dtype, expected, i), g = float_of(dtype, got, i);
        if (e == g || (isnan(e) && isnan(g))) continue;
        if (!isfinite(e) || !(fabsf(e - g) <= apart + rounding * fabsf(e))) return false;
    }
    return true;
}

static bool outputs_agree(const session *s, bool same_order)
{
    for (int32_t i = 0; i < s->count; i++) {
        const output *o = &s->outputs[i];
        const int64_t n = (int64_t)(o->compared / atto_dtype_size(o->copy.dtype));
        if (!atto__results_agree(o->copy.dtype, o->expected, o->got, n, same_order)) return false;
    }
    return true;
}

/* ---- running ---- */

static atto_status run_once(session *s)
{
    const atto_status status = s->op->call(s->dev->vt, s->direction, s->dev, &s->args, s->layout);
    atto__scratch_release(s->dev, s->scratch);
    return status;
}

/* Seconds of that many calls. */
static atto_status time_calls(session *s, int32_t calls, double *out)
{
    ATTO_TRY(s->dev->vt->sync(s->dev));
    const double start = s->dev->tuner->clock();
    for (int32_t i = 0; i < calls; i++) ATTO_TRY(run_once(s));
    ATTO_TRY(s->dev->vt->sync(s->dev));
    *out = s->dev->tuner->clock() - start;
    return ATTO_OK;
}

/* Milliseconds of one call; roughly, if it takes much longer than the limit. */
static atto_status measure(session *s, double limit_ms, double *out_ms)
{
    double best = HUGE_VAL, seconds;
    int32_t calls = 1;
    ATTO_TRY(time_calls(s, calls, &seconds));
    *out_ms = 1e3 * seconds;
    if (*out_ms > HOPELESS * limit_ms && seconds > SAMPLE_SECONDS) return ATTO_OK;
    while (seconds < SAMPLE_SECONDS && calls < MOST_CALLS) {
        calls *= 2;
        ATTO_TRY(time_calls(s, calls, &seconds));
    }
    for (int32_t i = 0; i < SAMPLES; i++) {
        ATTO_TRY(time_calls(s, calls, &seconds));
        best = seconds < best ? seconds : best;
    }
    *out_ms = 1e3 * best / calls;
    return ATTO_OK;
}

static atto_status run_and_read(session *s, bool expected)
{
    ATTO_TRY(reset_outputs(s));
    ATTO_TRY(run_once(s));
    return read_outputs(s, expected);
}

/* ---- choosing ---- */

typedef struct verdict {
    int32_t best, tried, wrong, failed;
    double first_ms, best_ms;
} verdict;

/* "lanes 32 items 4 held 1 group 128" */
static const char *way_text(const atto__asked *asked, int32_t way, char *out, size_t bytes)
{
    const char *label = atto__choice_numbers(asked->name);
    size_t used = 0;
    out[0] = '\0';
    for (int32_t i = 0; *label && used < bytes; i++) {
        const size_t length = strcspn(label, ",");
        used += (size_t)snprintf(out + used, bytes - used, "%s%.*s %d", i ? " " : "", (int)length,
                                 label, (int)asked->ways.list[way].number[i]);
        label += length + (label[length] == ',');
    }
    return out;
}

static void log_way(const session *s, const atto__asked *asked, double ms)
{
    char way[96];
    atto__log(s->dev, ATTO_LOG_INFO, "tried %s %s: %s: %.4f ms", atto__choice_text(asked->name),
              atto_dtype_name(asked->dtype), way_text(asked, asked->taken, way, sizeof way), ms);
}

static void log_verdict(const session *s, const atto__asked *asked, const verdict *v)
{
    char way[96], rejected[64] = "";
    const int64_t *n = asked->size;
    if (v->wrong + v->failed > 0)
        snprintf(rejected, sizeof rejected, ", %d wrong, %d failed", (int)v->wrong, (int)v->failed);
    atto__log(s->dev, ATTO_LOG_INFO,
              "%s %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
              ": %s: %.4f ms, default %.4f (%d ways%s)",
              atto__choice_text(asked->name), atto_dtype_name(asked->dtype), n[0], n[1], n[2], n[3],
              way_text(asked, v->best, way, sizeof way), v->best_ms, v->first_ms, (int)v->tried,
              rejected);
}

/* The way that asked->taken names. A clock that stands still has measured nothing. */
static atto_status try_way(session *s, const atto__asked *asked, bool same_order, verdict *v)
{
    double ms = 0.0;
    v->tried++;
    atto_status status = run_and_read(s, false);
    if (status == ATTO_OK && !outputs_agree(s, same_order)) {
        char way[96];
        v->wrong++;
        atto__log(s->dev, ATTO_LOG_WARNING, "%s %s: %s computes something else",
                  atto__choice_text(asked->name), atto_dtype_name(asked->dtype),
                  way_text(asked, asked->taken, way, sizeof way));
        return ATTO_OK;
    }
    if (status == ATTO_OK) status = measure(s, v->best_ms, &ms);
    if (status == ATTO_E_LOST) return status;
    if (status == ATTO_OK) log_way(s, asked, ms);
    if (status != ATTO_OK) {
        v->failed++;
        char way[96];
        atto__log(s->dev, ATTO_LOG_INFO, "tried %s %s: %s: %s", atto__choice_text(asked->name),
                  atto_dtype_name(asked->dtype), way_text(asked, asked->taken, way, sizeof way),
                  atto_last_error());
    } else if (ms > 0.0 && ms < v->best_ms && ms < MARGIN * v->first_ms) {
        v->best = asked->taken;
        v->best_ms = ms;
    }
    return ATTO_OK;
}

static atto_status enter(atto__tuner *tuner, const atto__asked *asked)
{
    const atto__tuned entry = { asked->key, asked->ways.list[asked->taken], ATTO_FROM_DEVICE,
                                tuner->round };
    ATTO_REQUIRE(atto__tuner_enter(tuner, asked->name, &entry), ATTO_E_MEMORY,
                 "out of host memory");
    return ATTO_OK;
}

/* The first way once more, in the conditions that the best one had. */
static atto_status confirm(session *s, atto__asked *asked, verdict *v)
{
    double ms;
    asked->taken = 0;
    ATTO_TRY(measure(s, HUGE_VAL, &ms));
    v->first_ms = ms < v->first_ms ? ms : v->first_ms;
    if (v->best_ms >= MARGIN * v->first_ms) v->best = 0, v->best_ms = v->first_ms;
    return ATTO_OK;
}

/* Finds the best way of one choice and lets the call keep it. */
static atto_status settle(session *s, atto__asked *asked)
{
    atto__tuner *tuner = s->dev->tuner;
    const atto__way *first = &asked->ways.list[0];
    verdict v = { .tried = 1 };
    ATTO_TRY(run_and_read(s, true)); /* choices before this one may have changed the bits */
    ATTO_TRY(measure(s, HUGE_VAL, &v.first_ms));
    v.best_ms = v.first_ms;
    for (int32_t i = 1; i < asked->ways.count; i++) {
        const bool same_order = asked->ways.list[i].order == first->order;
        if (!same_order && !tuner->explicitly) continue;
        asked->taken = i;
        ATTO_TRY(try_way(s, asked, same_order, &v));
    }
    if (v.best > 0) ATTO_TRY(confirm(s, asked, &v));
    asked->taken = v.best;
    log_verdict(s, asked, &v);
    tuner->changed = true;
    return enter(tuner, asked);
}

/* Of a call that cannot be measured: nobody tries again. */
static void leave_as_it_is(session *s, int32_t from)
{
    atto__log(s->dev, ATTO_LOG_WARNING, "%s is not tuned: %s", s->op->name[s->direction],
              atto_last_error());
    for (int32_t i = from; i < s->trial.count; i++) {
        s->trial.asked[i].taken = 0;
        if (enter(s->dev->tuner, &s->trial.asked[i]) != ATTO_OK) return;
    }
}

atto_status atto__tune_call(atto_device *dev, const atto__op_info *op, atto__direction direction,
                            const void *args, const atto__layout *layout)
{
    session *s = atto__alloc(sizeof *s); /* too large for a stack */
    ATTO_REQUIRE(s, ATTO_E_MEMORY, "%s: out of host memory", op->name[direction]);
    s->dev = dev;
    s->op = op;
    s->direction = direction;
    s->layout = layout;
    s->trial = dev->tuner->open;
    const int32_t scratch = dev->scratch_count;
    int32_t settled = 0;
    atto_status status = begin(s, args);
    dev->tuner->trial = &s->trial;
    while (status == ATTO_OK && settled < s->trial.count) {
        status = settle(s, &s->trial.asked[settled]);
        if (status == ATTO_OK) settled++;
    }
    dev->tuner->trial = NULL;
    if (status != ATTO_OK && status != ATTO_E_LOST) leave_as_it_is(s, settled);
    end(s);
    atto__scratch_release(dev, scratch);
    atto__free(s);
    return status == ATTO_E_LOST ? status : ATTO_OK;
}
