/* SPDX-License-Identifier: MIT */
/* Ops of the CPU backend with tensors of any kind, each in memory of its own that is exactly as
 * large as it needs. A call that is refused leaves everything as it was; one that succeeds writes
 * the elements of its outputs and nothing else, and what the oracle says. */
#include <math.h>

#include "ops.h"
#include "oracle.h"

enum { CALLS = 3, LARGEST_EXTENT = 1 << 15, LARGEST_COST = 300000 };

/* ---- devices ---- */

/* Base and best level; kernels for huge tensors; no packed copies. */
static const struct device_row {
    const char *level;
    int32_t index_bits;
    bool no_hidden_copies;
} device_rows[] = {
    { "base", 0, false },
    { NULL, 0, false },
    { NULL, 64, false },
    { NULL, 0, true },
};

enum { DEVICES = sizeof device_rows / sizeof device_rows[0] };

static atto_device *devices[DEVICES];

static void close_devices(void)
{
    for (int32_t i = 0; i < DEVICES; i++) atto_device_close(devices[i]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    for (int32_t i = 0; i < DEVICES; i++) {
        const atto_device_options options = { .ignore_environment = true,
                                              .num_threads = 1,
                                              .no_cache = true,
                                              .max_memory_bytes = (uint64_t)256 << 20,
                                              .cpu_level = device_rows[i].level,
                                              .index_bits = device_rows[i].index_bits,
                                              .no_hidden_copies = device_rows[i].no_hidden_copies };
        MUST_HOLD(atto_device_open("cpu", &options, &devices[i]) == ATTO_OK, "%s",
                  atto_last_error());
    }
    atexit(close_devices);
    return 0;
}

/* ---- cells ---- */

cell *cell_of(call *c, const char *name)
{
    for (int32_t i = 0; i < c->count; i++)
        if (strcmp(c->cells[i].field->name, name) == 0) return &c->cells[i];
    MUST_HOLD(false, "%s has no field %s", c->info->name[0], name);
    return NULL;
}

/* Fields that the call can do without are missing more often. */
static bool is_dropped(const call *c, const atto__field *field, bytes *b)
{
    const int32_t optional =
        c->direction == ATTO_FORWARD ? ATTO_FIELD_OPTIONAL_FORWARD : ATTO_FIELD_OPTIONAL_BACKWARD;
    const bool used =
        atto__field_writes(field, c->direction) || atto__field_reads(field, &c->args, c->direction);
    return take_chance(b, !used ? 2 : field->role & optional ? 4 : 200);
}

/* Elements of the buffer up to the view's last one; 0 if it is empty. */
static int64_t extent_of(const atto_tensor *t)
{
    int64_t extent = t->offset + 1;
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] == 0) return 0;
        extent += (t->shape[d] - 1) * t->stride[d];
    }
    return extent;
}

int64_t element_at(const atto_tensor *t, int64_t index)
{
    int64_t at = t->offset;
    for (int32_t d = t->rank - 1; d >= 0; d--) {
        at += index % t->shape[d] * t->stride[d];
        index /= t->shape[d];
    }
    return at;
}

/* Dimensions, innermost first: row-major, channels_last, or in another order. */
static void take_order(bytes *b, uint8_t how, int32_t rank, int32_t *order)
{
    for (int32_t d = 0; d < rank; d++) order[d] = rank - 1 - d;
    if (rank < 2 || (how != 5 && how != 6)) return;
    const int32_t first = how == 5 ? 1 : take_byte(b) % rank;
    int32_t n = 1;
    order[0] = first;
    for (int32_t d = rank - 1; d >= 0; d--)
        if (d != first) order[n++] = d;
}

/* Numbers of a call that are anything may make such sizes, too; no memory is large enough. */
static bool is_huge(const atto_shape *s)
{
    int64_t n = 1;
    for (int32_t d = 0; d < s->rank; d++) {
        if (s->dim[d] < 0 || s->dim[d] > LARGEST_EXTENT) return true;
        n *= s->dim[d] > 0 ? s->dim[d] : 1;
        if (n > LARGEST_EXTENT) return true;
    }
    return false;
}

/* The view in a buffer of its own: dense, behind an offset, with longer rows, permuted, every other
 * element, repeated. */
static void place(bytes *b, cell *c)
{
    const uint8_t byte = take_byte(b), how = byte % 8;
    const int64_t gap = how == 4 ? take_byte(b) % 4 : 0;
    int32_t order[ATTO_MAX_RANK];
    int64_t step = how == 7 ? 2 : 1;
    c->view = atto_tensor_of(NULL, c->dtype, c->shape, how == 3 ? take_byte(b) % 9 : 0);
    take_order(b, how, c->shape.rank, order);
    for (int32_t i = 0; i < c->shape.rank; i++) {
        const int64_t size = c->shape.dim[order[i]];
        c->view.stride[order[i]] = step;
        step = step * (size > 0 ? size : 1) + (i == 0 ? gap : 0);
    }
    if (byte < 244 || c->shape.rank == 0) return;
    const int32_t d = take_byte(b) % c->shape.rank;
    /* along a dimension of size 1 any stride will do */
    c->view.stride[d] = c->shape.dim[d] == 1 ? (int64_t)(take_word(b, 8) >> 1) : 0;
}

/* ---- memory ---- */

/* The bits of an element. Tame floats are between -2 and 2. */
static uint64_t draw(const call *c, atto_dtype dtype, uint64_t *state)
{
    const uint64_t random = next_random(state);
    const uint64_t index = c->limit > 0 ? random % (uint64_t)c->limit : 0;
    const float value = (float)((double)(int64_t)(random >> 40) * 0x1p-22 - 2.0);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    switch (dtype) {
    case ATTO_F32:
        return c->tame ? bits : random >> 32;
    case ATTO_F16: /* 2^-3 to 2 */
        return c->tame ? (random & 0x83ff) | (12 + (random >> 32) % 4) << 10 : random >> 32;
    case ATTO_BF16:
        return c->tame ? bits >> 16 : random >> 32;
    case ATTO_I32:
    case ATTO_I64:
        if (random >> 58 != 0) return index;
        return random & 1 ? (uint64_t)c->limit : random & 2 ? (uint64_t)-1 : random << 3;
    }
    return random;
}

static void fill(const call *c, block *block, atto_dtype dtype, uint64_t *state)
{
    const size_t size = atto_dtype_size(dtype);
    for (size_t i = 0; i + size <= block->bytes; i += size) {
        const uint64_t bits = draw(c, dtype, state); /* little-endian machines only */
        memcpy(block->data + i, &bits, size);
    }
    memcpy(block->before, block->data, block->bytes);
}

/* A block with room for so many elements; a dtype that is none takes as much as f32. */
static void make_block(call *c, cell *cell, int64_t n, uint64_t *state)
{
    const int32_t number = c->block_count++;
    const atto_dtype dtype = atto_dtype_size(cell->dtype) > 0 ? cell->dtype : ATTO_F32;
    block *block = &c->blocks[number];
    block->bytes = (size_t)n * atto_dtype_size(dtype);
    block->data = malloc(block->bytes), block->before = malloc(block->bytes);
    MUST_HOLD(block->data && block->before, "no memory");
    fill(c, block, dtype, state);
    MUST_HOLD(atto_tensor_wrap(c->dev, block->data, dtype, atto_shape1(n), NULL, NULL,
                               &block->whole) == ATTO_OK,
              "%s", atto_last_error());
    cell->block = number;
    cell->view.buffer = block->whole.buffer;
}

/* An earlier cell that has memory, or NULL. */
static const cell *take_other(const call *c, bytes *b, int32_t before)
{
    const int32_t other = before > 0 ? take_byte(b) % before : 0;
    return other < before && c->cells[other].block >= 0 ? &c->cells[other] : NULL;
}

/* Memory of its own, or that of an earlier cell, as the same view or as another one. False: it
 * would be too much. */
static bool give_memory(call *c, bytes *b, int32_t i, uint64_t *state)
{
    cell *cell = &c->cells[i];
    const int64_t extent = extent_of(&cell->view);
    const uint8_t how = take_byte(b);
    const bool in_place = c->info->in_place && atto__field_writes(cell->field, c->direction);
    if (extent == 0 && !take_chance(b, 4)) return true;
    if (extent > LARGEST_EXTENT) return false;
    if (how >= (in_place ? 160 : 248)) {
        const struct cell *other = take_other(c, b, i);
        if (other) {
            if (how % 8 > 0) cell->view = other->view;
            cell->block = other->block;
            cell->view.buffer = c->blocks[cell->block].whole.buffer;
            return true;
        }
    }
    const bool is_short = how >= 126 && how < 128;
    make_block(c, cell, extent > 1 ? extent - is_short : 1, state);
    return true;
}

/* What no caller should do. */
static void break_view(call *c, bytes *b, cell *cell)
{
    atto_tensor *t = &cell->view;
    const uint8_t how = take_byte(b);
    const int32_t d = t->rank > 0 ? how / 16 % t->rank : 0;
    const int64_t wild = (int64_t)take_word(b, how & 8 ? 8 : 2);
    switch (how % 8) {
    case 0:
        t->dtype = (atto_dtype)(take_byte(b) % 8);
        break;
    case 1:
        t->shape[d] += how & 8 ? 1 : -1;
        break;
    case 2:
        t->shape[d] = wild;
        break;
    case 3:
        t->rank += how & 8 ? 1 : -1;
        break;
    case 4:
        t->rank = (int32_t)wild;
        break;
    case 5:
        t->stride[d] = how & 16 ? -1 : wild;
        break;
    case 6:
        t->offset = how & 16 ? -1 : wild;
        break;
    default:
        t->buffer = NULL;
        break;
    }
    (void)c;
}

static void free_blocks(call *c)
{
    for (int32_t i = 0; i < c->block_count; i++) {
        atto_tensor_free(&c->blocks[i].whole);
        free(c->blocks[i].data), free(c->blocks[i].before);
    }
}

/* ---- one call ---- */

/* Which op and how; its tensors, with memory. False: not worth making. */
static bool make_call(call *c, bytes *b)
{
    int32_t count;
    memset(c, 0, sizeof *c);
    c->dev = devices[take_byte(b) % DEVICES];
    c->op = (atto_op)(take_byte(b) % ATTO_OP_COUNT);
    c->info = atto__op(c->op);
    const atto__field *fields = c->info->fields(&count);
    const uint8_t how = take_byte(b);
    uint64_t state = how >> 2;
    c->direction = how & 1 ? ATTO_BACKWARD : ATTO_FORWARD;
    c->tame = !(how & 2) || how < 192;
    for (int32_t i = 0; i < count; i++) c->cells[i] = (cell){ .field = &fields[i], .block = -1 };
    c->count = count;
    plan_call(c, b);
    if (c->cost > LARGEST_COST) return false;
    for (int32_t i = 0; i < count; i++) {
        cell *cell = &c->cells[i];
        if (!cell->planned || is_dropped(c, cell->field, b)) continue;
        if (cell->shape.rank > 0 && take_chance(b, 60))
            cell->shape.dim[take_byte(b) % cell->shape.rank] += take_flag(b) ? 1 : -1;
        if (is_huge(&cell->shape)) return false;
        place(b, cell);
        if (!give_memory(c, b, i, &state)) return false;
        if (take_chance(b, 40)) break_view(c, b, cell);
        *atto__field_of(&c->args, cell->field) = &cell->view;
    }
    return true;
}

static atto_status run_call(const call *c, atto_device *dev)
{
    const bool forward = c->direction == ATTO_FORWARD;
    switch (c->op) {
#define X(op, OP, layout, autocast, in_place, random, data_errors) \
    case ATTO_OP_##OP:                                             \
        return forward ? atto_##op##_forward(dev, &c->args.op)     \
                       : atto_##op##_backward(dev, &c->args.op);
        ATTO_OP_TABLE(X)
#undef X
    case ATTO_OP_COUNT:
        break;
    }
    return ATTO_OK;
}

/* The statuses of which attocl/device.h says that outputs stay untouched. */
static bool is_refusal(atto_status status)
{
    return (status >= ATTO_E_DEVICE && status <= ATTO_E_NULL) || status == ATTO_E_STATE;
}

/* Takes what the call may have written for what was there before. */
static void forget_written(call *c)
{
    for (int32_t i = 0; i < c->count; i++) {
        const cell *cell = &c->cells[i];
        if (!*atto__field_of(&c->args, cell->field) || cell->block < 0) continue;
        if (!atto__field_writes(cell->field, c->direction)) continue;
        const size_t size = atto_dtype_size(cell->view.dtype);
        block *block = &c->blocks[cell->block];
        for (int64_t n = atto_tensor_numel(&cell->view), j = 0; j < n; j++) {
            const size_t at = (size_t)element_at(&cell->view, j) * size;
            memcpy(block->before + at, block->data + at, size);
        }
    }
}

static void check_untouched(const call *c, atto_status status)
{
    for (int32_t i = 0; i < c->block_count; i++) {
        const block *block = &c->blocks[i];
        for (size_t j = 0; j < block->bytes; j++)
            MUST_HOLD(block->data[j] == block->before[j],
                      "%s, %s: byte %zu of block %d, of %zu, has changed",
                      c->info->name[c->direction], atto_status_name(status), j, (int)i,
                      block->bytes);
    }
}

static void check_call(call *c, bytes *b)
{
    const bool no_device = take_chance(b, 250);
    atto__fail(ATTO_OK, "%s", "");
    const atto_status status = run_call(c, no_device ? NULL : c->dev);
    const char *name = c->info->name[c->direction];
    MUST_HOLD(status == ATTO_OK || atto_last_error()[0], "%s: %s without a message", name,
              atto_status_name(status));
    const atto_status told = atto_device_sync(c->dev);
    MUST_HOLD(told == ATTO_OK ||
                  (told == ATTO_E_INDEX && status == ATTO_OK && c->info->data_errors),
              "%s: sync says %s", name, atto_last_error());
    if (status != ATTO_OK) {
        MUST_HOLD(is_refusal(status) || status == ATTO_E_UNSUPPORTED || status == ATTO_E_MEMORY,
                  "%s: %s", name, atto_last_error());
        if (is_refusal(status)) check_untouched(c, status);
        return;
    }
    forget_written(c);
    check_untouched(c, status);
    if (c->tame && c->direction == ATTO_FORWARD) judge_call(c);
}

/* Another one for every input. */
static uint64_t seed_of(const uint8_t *data, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) hash = (hash ^ data[i]) * 0x100000001b3u;
    return hash | 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static call c;
    bytes b = { data, size, seed_of(data, size) };
    for (int32_t i = 0; i < CALLS && b.left > 0; i++) {
        if (make_call(&c, &b)) check_call(&c, &b);
        free_blocks(&c);
    }
    return 0;
}
