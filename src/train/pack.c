/* SPDX-License-Identifier: MIT */
/* Packing: the parameters of an optimiser become views of a few large vectors. */
#include <inttypes.h>
#include <string.h>

#include "alloc.h"
#include "train/optimizer.h"

#define BLOCK ATTO_OPTIM_BLOCK

/* A chunk's f32 vectors are at most this long. */
#define CHUNK_BYTES ((int64_t)1 << 30)

/* ---- which parameters ---- */

static bool starts_with(const char *key, const char *prefix)
{
    return !prefix || strncmp(key, prefix, strlen(prefix)) == 0;
}

static bool ends_with(const char *key, const char *suffix)
{
    if (!suffix) return true;
    const size_t length = strlen(key), tail = strlen(suffix);
    return length >= tail && strcmp(key + length - tail, suffix) == 0;
}

static atto_status group_takes(const atto_param_group *g, const char *key, const atto_param *p,
                               bool *out)
{
    *out = starts_with(key, g->prefix) && ends_with(key, g->suffix);
    if (*out && g->module) ATTO_TRY(atto__module_has(g->module, p, out));
    if (*out && g->match) *out = g->match(g->data, key, p);
    return ATTO_OK;
}

/* The first group that takes the parameter; the base group comes behind the last. */
static atto_status find_group(const atto_param_set *set, const char *key, const atto_param *p,
                              int32_t *group)
{
    bool takes = false;
    for (*group = 0; *group < set->group_count; ++*group) {
        ATTO_TRY(group_takes(&set->groups[*group], key, p, &takes));
        if (takes) break;
    }
    return ATTO_OK;
}

static bool is_there(const atto_optimizer *o, const atto_param *p)
{
    for (int32_t i = 0; i < o->trained_count; i++)
        if (o->trained[i].p == p) return true;
    return false;
}

/* Room for one more; doubles. */
static atto_status make_room(atto_optimizer *o)
{
    const int32_t n = o->trained_count;
    if ((n & (n - 1)) != 0) return ATTO_OK; /* not a power of two: there is room */
    atto__trained *grown = atto__alloc((size_t)(n ? 2 * n : 1) * sizeof *grown);
    ATTO_REQUIRE(grown, ATTO_E_MEMORY, "%s_create: out of host memory", o->name);
    if (n) memcpy(grown, o->trained, (size_t)n * sizeof *grown);
    atto__free(o->trained);
    o->trained = grown;
    return ATTO_OK;
}

atto_status atto__optimizer_add(atto_optimizer *o, const atto_param_set *set, const char *key,
                                atto_param *p)
{
    const int64_t numel = atto_tensor_numel(&p->value);
    if (p->frozen || numel == 0 || is_there(o, p)) return ATTO_OK;
    ATTO_REQUIRE(!p->is_packed, ATTO_E_STATE,
                 "%s_create: parameter \"%s\" belongs to another optimiser", o->name, key);
    ATTO_REQUIRE(!o->dev || o->dev == p->dev, ATTO_E_DEVICE,
                 "%s_create: parameter \"%s\" is on %s, others are on %s", o->name, key,
                 p->dev->info.name, o->dev->info.name);
    int32_t group;
    ATTO_TRY(find_group(set, key, p, &group));
    ATTO_TRY(make_room(o));
    if (!o->dev) atto__device_retain(p->dev);
    o->dev = p->dev;
    atto_param_retain(p);
    o->trained[o->trained_count++] = (atto__trained){
        .p = p, .group = group, .blocks = (numel + BLOCK - 1) / BLOCK, .version = p->version
    };
    return ATTO_OK;
}

/* ---- where they go ---- */

/* Gives each parameter of that dtype its chunk and place, in order. */
static void place(atto_optimizer *o, atto_dtype dtype, int64_t most_blocks)
{
    int64_t used = most_blocks;
    for (int32_t i = 0; i < o->trained_count; i++) {
        atto__trained *t = &o->trained[i];
        if (t->p->value.dtype != dtype) continue;
        if (used + t->blocks > most_blocks) {
            o->chunk_count++;
            used = 0;
        }
        t->chunk = o->chunk_count - 1;
        t->first_block = used;
        used += t->blocks;
    }
}

static void measure_chunks(atto_optimizer *o)
{
    for (int32_t i = 0; i < o->trained_count; i++) {
        const atto__trained *t = &o->trained[i];
        atto__chunk *c = &o->chunks[t->chunk];
        c->dtype = t->p->value.dtype;
        c->blocks = t->first_block + t->blocks;
    }
    for (int32_t i = 0; i < o->chunk_count; i++) {
        o->chunks[i].first_span = o->spans;
        o->spans += (o->chunks[i].blocks + ATTO_OPTIM_SPAN - 1) / ATTO_OPTIM_SPAN;
    }
}

static atto_status plan(atto_optimizer *o, int64_t chunk_bytes)
{
    int64_t most = chunk_bytes ? chunk_bytes : CHUNK_BYTES;
    const uint64_t limit = o->dev->info.max_alloc_bytes;
    if (limit && limit < (uint64_t)most) most = (int64_t)limit;
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++)
        place(o, (atto_dtype)dtype, most / (BLOCK * (int64_t)sizeof(float)));
    o->chunks = atto__alloc((size_t)o->chunk_count * sizeof *o->chunks);
    ATTO_REQUIRE(o->chunks, ATTO_E_MEMORY, "%s_create: out of host memory", o->name);
    measure_chunks(o);
    return ATTO_OK;
}

/* ---- memory ---- */

atto_status atto__optimizer_zeros(const atto_optimizer *o, atto_dtype dtype, int64_t n,
                                  atto_tensor *out)
{
    ATTO_TRY(atto_tensor_alloc(o->dev, dtype, atto_shape1(n), out));
    return atto_tensor_fill(out, 0.0);
}

static atto_status allocate_chunk(atto_optimizer *o, atto__chunk *c)
{
    const int64_t n = c->blocks * BLOCK;
    ATTO_TRY(atto__optimizer_zeros(o, c->dtype, n, &c->value));
    ATTO_TRY(atto__optimizer_zeros(o, c->dtype, n, &c->grad));
    if (c->dtype != ATTO_F32) ATTO_TRY(atto__optimizer_zeros(o, ATTO_F32, n, &c->master));
    for (int32_t i = 0; i < ATTO_OPTIM_STATES; i++)
        if (atto__optim_keeps(&o->method, i))
            ATTO_TRY(atto__optimizer_zeros(o, ATTO_F32, n, &c->state[i]));
    return atto__optimizer_zeros(o, ATTO_I32, c->blocks, &c->segment_of);
}

static atto_status allocate_tables(atto_optimizer *o)
{
    const int64_t segments = o->trained_count;
    const struct {
        atto_tensor *t;
        atto_dtype dtype;
        int64_t n;
    } list[] = {
        { &o->flags, ATTO_I32, segments },
        { &o->group_of, ATTO_I32, segments },
        { &o->groups, ATTO_F32, 2 * (int64_t)o->group_count },
        { &o->steps, ATTO_I32, segments },
        { &o->coefficients, ATTO_F32, segments * ATTO_OPTIM_COEFFICIENTS },
        { &o->partials, ATTO_F32, 2 * o->spans },
        { &o->control, ATTO_F32, ATTO_CONTROL_WORDS },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        ATTO_TRY(atto__optimizer_zeros(o, list[i].dtype, list[i].n, list[i].t));
    o->flags_written = atto__alloc((size_t)segments * sizeof *o->flags_written);
    o->flags_next = atto__alloc((size_t)segments * sizeof *o->flags_next);
    ATTO_REQUIRE(o->flags_written && o->flags_next, ATTO_E_MEMORY, "%s_create: out of host memory",
                 o->name);
    return ATTO_OK;
}

/* ---- tables ---- */

static atto_status write_segment_of(const atto_optimizer *o, int32_t chunk)
{
    const atto__chunk *c = &o->chunks[chunk];
    int32_t *list = atto__alloc((size_t)c->blocks * sizeof *list);
    ATTO_REQUIRE(list, ATTO_E_MEMORY, "%s_create: out of host memory", o->name);
    for (int32_t s = 0; s < o->trained_count; s++) {
        const atto__trained *t = &o->trained[s];
        for (int64_t b = 0; t->chunk == chunk && b < t->blocks; b++) list[t->first_block + b] = s;
    }
    const atto_status status = atto_tensor_write(&c->segment_of, list);
    atto__free(list);
    return status;
}

static atto_status write_group_of(const atto_optimizer *o)
{
    for (int32_t s = 0; s < o->trained_count; s++) o->flags_next[s] = o->trained[s].group;
    return atto_tensor_write(&o->group_of, o->flags_next);
}

static void group_numbers(const atto_param_group *g, double weight_decay, float *out)
{
    out[0] = g->lr_factor == 0.0 ? 1.0f : g->lr_factor == ATTO_ZERO ? 0.0f : (float)g->lr_factor;
    out[1] = (float)(g->has_weight_decay ? g->weight_decay : weight_decay);
}

static atto_status write_groups(const atto_optimizer *o, const atto__optimizer_spec *spec)
{
    const atto_param_group base = { 0 };
    float *list = atto__alloc((size_t)o->group_count * 2 * sizeof *list);
    ATTO_REQUIRE(list, ATTO_E_MEMORY, "%s_create: out of host memory", o->name);
    for (int32_t g = 0; g < o->group_count; g++)
        group_numbers(g < spec->set->group_count ? &spec->set->groups[g] : &base,
                      spec->weight_decay, list + 2 * g);
    const atto_status status = atto_tensor_write(&o->groups, list);
    atto__free(list);
    return status;
}

static atto_status write_tables(const atto_optimizer *o, const atto__optimizer_spec *spec)
{
    const float control[ATTO_CONTROL_WORDS] = { [ATTO_CONTROL_SCALE] = 1.0f };
    for (int32_t c = 0; c < o->chunk_count; c++) ATTO_TRY(write_segment_of(o, c));
    ATTO_TRY(write_group_of(o));
    ATTO_TRY(write_groups(o, spec));
    return atto_tensor_write(&o->control, control);
}

/* ---- moving ---- */

atto_tensor atto__optimizer_view(const atto__trained *t, const atto_tensor *vector)
{
    const atto_tensor *value = &t->p->value;
    return atto_tensor_of(vector->buffer, vector->dtype, atto_shape_of(value->rank, value->shape),
                          t->first_block * BLOCK);
}

static atto_status move_params(atto_optimizer *o)
{
    for (int32_t i = 0; i < o->trained_count; i++) {
        atto__trained *t = &o->trained[i];
        const atto__chunk *c = &o->chunks[t->chunk];
        const atto_tensor value = atto__optimizer_view(t, &c->value);
        const atto_tensor grad = atto__optimizer_view(t, &c->grad);
        t->moved = true;
        ATTO_TRY(atto__param_move(t->p, &value, &grad));
    }
    for (int32_t i = 0; i < o->chunk_count; i++)
        if (o->chunks[i].master.buffer)
            ATTO_TRY(atto_tensor_copy(&o->chunks[i].master, &o->chunks[i].value));
    return ATTO_OK;
}

/* Parameters move last, when nothing can run out any more. */
atto_status atto__optimizer_pack(atto_optimizer *o, const atto__optimizer_spec *spec)
{
    ATTO_TRY(plan(o, spec->chunk_bytes));
    for (int32_t i = 0; i < o->chunk_count; i++) ATTO_TRY(allocate_chunk(o, &o->chunks[i]));
    ATTO_TRY(allocate_tables(o));
    ATTO_TRY(write_tables(o, spec));
    return move_params(o);
}
