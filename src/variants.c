/* SPDX-License-Identifier: MIT */
/* Writes options from knobs, and searches a small set of variants that covers every pair of them.
 */
#include "variants.h"

#include <string.h>

#include "cl/atto_attention_sizes.h"
#include "cl/atto_gather_sizes.h"

/* ---- options ---- */

/* Text that grows at its end; what does not fit is cut, which a test notices by the missing knob.
 */
typedef struct text {
    char *at, *end;
} text;

static void put(text *t, const char *piece)
{
    const size_t length = strlen(piece), room = (size_t)(t->end - t->at);
    const size_t n = length < room ? length : room;
    memcpy(t->at, piece, n);
    t->at += n;
    *t->at = '\0';
}

static void put_number(text *t, int32_t value)
{
    char digits[12];
    char *at = digits + sizeof digits - 1;
    *at = '\0';
    do *--at = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    put(t, at);
}

static void put_value(text *t, const char *knob, const char *value)
{
    put(t, " -DATTO_");
    put(t, knob);
    put(t, "=");
    put(t, value);
}

static void put_knob(text *t, const char *knob, int32_t value)
{
    put_value(t, knob, "");
    put_number(t, value);
}

/* The whole function name: the bare one may be a macro of the compiler's (PoCL: tanh). */
static void put_act(text *t, const char *act)
{
    put_value(t, "ACT", "attom_");
    put(t, act);
}

static void put_formula(text *t, const char *formula)
{
    put_value(t, "FORMULA", "attom_");
    put(t, formula);
}

/* Names the kernel and starts its options with the guard that leaves out the file's others. */
static text begin(atto__variant *out, const char *file, const char *kernel, const char *suffix)
{
    text name = { out->kernel, out->kernel + sizeof out->kernel - 1 };
    text options = { out->options, out->options + sizeof out->options - 1 };
    out->file = file;
    put(&name, kernel);
    put(&name, suffix);
    put(&options, "-DATTO_ONE_KERNEL -DATTO_KERNEL_");
    put(&options, kernel);
    return options;
}

static void put_dense_walk(text *t, int32_t items, bool wide)
{
    put_knob(t, "INDEX", wide ? 64 : 32);
    put_knob(t, "STRIDED", 0);
    put_knob(t, "ITEMS", items);
}

static void put_walk(text *t, atto__form form, int32_t run, bool wide)
{
    if (form == ATTO_FORM_DENSE) {
        put_dense_walk(t, ATTO_DENSE_ITEMS, wide);
        return;
    }
    put_knob(t, "INDEX", wide ? 64 : 32);
    put_knob(t, "STRIDED", 1);
    put_knob(t, "RUN", run);
    put_knob(t, "VECTORS", form == ATTO_FORM_VECTORS);
}

static const char *suffix_of(atto__form form)
{
    return form == ATTO_FORM_DENSE ? "" : "_strided";
}

int32_t atto__vector_elements(atto_dtype dtype)
{
    return 16 / (int32_t)atto_dtype_size(dtype);
}

int32_t atto__run_elements(atto_dtype dtype, atto__form form)
{
    if (form == ATTO_FORM_ELEMENTS) return 1;
    return form == ATTO_FORM_RUNS ? 4 : atto__vector_elements(dtype);
}

void atto__elementwise_variant(const atto__elementwise_knobs *k, atto__variant *out)
{
    text t = begin(out, k->file, k->kernel, suffix_of(k->form));
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    if (k->act) put_act(&t, k->act);
    if (k->formula) put_formula(&t, k->formula);
    if (k->scalar) put_knob(&t, "SCALAR", k->scalar);
    if (k->wide_out) put_knob(&t, "WIDE_OUT", 1);
    put_knob(&t, "DROPOUT", k->dropout);
    const int32_t run = atto__run_elements(k->dtype, k->form);
    if (k->items && k->form == ATTO_FORM_DENSE)
        put_dense_walk(&t, k->items, k->wide);
    else
        put_walk(&t, k->form, run, k->wide);
}

int32_t atto__copy_elements(atto_dtype from, atto_dtype to)
{
    return atto__vector_elements(atto_dtype_size(from) < atto_dtype_size(to) ? from : to);
}

static const char *word_of(atto_dtype dtype)
{
    const size_t bytes = atto_dtype_size(dtype);
    return bytes == 2 ? "u16" : bytes == 4 ? "u32" : "u64";
}

void atto__copy_variant(atto_dtype from, atto_dtype to, atto__form form, bool wide,
                        atto__variant *out)
{
    text t = begin(out, "tensor.cl", "atto_copy", suffix_of(form));
    put_value(&t, "FROM", from == to ? word_of(from) : atto_dtype_name(from));
    put_value(&t, "TO", from == to ? word_of(to) : atto_dtype_name(to));
    put_walk(&t, form, form == ATTO_FORM_ELEMENTS ? 1 : atto__copy_elements(from, to), wide);
}

void atto__fill_variant(atto_dtype to, atto__form form, bool wide, atto__variant *out)
{
    text t = begin(out, "tensor.cl", "atto_fill", suffix_of(form));
    put_value(&t, "FROM", word_of(to));
    put_value(&t, "TO", word_of(to));
    put_walk(&t, form, form == ATTO_FORM_ELEMENTS ? 1 : atto__vector_elements(to), wide);
}

/* ---- rows ---- */

/* Of the lines whose work-items can hold the row the first one: work-items of a row (0: a
 * work-group), and the most vectors that one of them gets. */
static const struct {
    int32_t lanes, vectors;
} row_shares[] = { { 1, 4 }, { 8, 4 }, { 32, 8 }, { 128, 4 }, { 0, 16 } };

/* Elements in flight a work-item where rows are read again instead. */
#define ROW_CHUNK 16

static int32_t power_of_two_from(int64_t n)
{
    int32_t p = 1;
    while (p < n) p *= 2;
    return p;
}

atto__row_knobs atto__row_knobs_for(int64_t slots, atto_dtype dtype, int32_t group, int32_t floats)
{
    const int32_t per_vector = atto__vector_elements(dtype);
    const int64_t vectors = (slots + per_vector - 1) / per_vector;
    for (size_t i = 0; i < sizeof row_shares / sizeof row_shares[0]; i++) {
        const int32_t wanted = row_shares[i].lanes;
        const int32_t room = (wanted == 0 || floats < 32 ? floats : 32) / per_vector;
        const int32_t lanes = wanted == 0 || wanted > group ? group : wanted;
        const int32_t most = row_shares[i].vectors < room ? row_shares[i].vectors : room;
        const int64_t each = (vectors + lanes - 1) / lanes;
        if (each > most) continue;
        return (atto__row_knobs){ wanted, power_of_two_from(each), true, 0 };
    }
    return (atto__row_knobs){ 0, ROW_CHUNK / per_vector, false, 0 };
}

/* Work-groups beside the device's own, and work-items of a row in each; 0: all. */
static const struct {
    int32_t group, lanes;
} row_tries[] = { { 0, 1 },   { 0, 8 },  { 0, 32 },   { 0, 64 },  { 0, 128 }, { 0, 0 },
                  { 64, 32 }, { 64, 0 }, { 128, 32 }, { 128, 0 }, { 512, 0 }, { 1024, 0 } };

int32_t atto__row_knobs_all(int64_t slots, atto_dtype dtype, int32_t group, int32_t most_group,
                            int32_t floats, atto__row_knobs *out)
{
    const int32_t per_vector = atto__vector_elements(dtype);
    const int64_t vectors = (slots + per_vector - 1) / per_vector;
    int32_t count = 0;
    out[count++] = atto__row_knobs_for(slots, dtype, group, floats);
    for (size_t i = 0; i < sizeof row_tries / sizeof row_tries[0]; i++) {
        const int32_t own = row_tries[i].group ? row_tries[i].group : group;
        const int32_t lanes = row_tries[i].lanes ? row_tries[i].lanes : own;
        const int64_t each = (vectors + lanes - 1) / lanes;
        if (own > most_group || lanes > own || own * (row_tries[i].group != 0) == group) continue;
        if (each <= floats / per_vector)
            out[count++] = (atto__row_knobs){ row_tries[i].lanes, power_of_two_from(each), true,
                                              row_tries[i].group };
    }
    for (int32_t chunk = ROW_CHUNK; chunk <= 2 * ROW_CHUNK; chunk *= 2)
        for (int32_t own = 0; own <= 1024 && own <= most_group; own += 512)
            if (own != group) out[count++] = (atto__row_knobs){ 0, chunk / per_vector, false, own };
    return count;
}

static void put_row(text *t, const atto__row_knobs *row)
{
    if (row->lanes == 0) {
        put_value(t, "LANES", "ATTO_WG");
    } else {
        put_knob(t, "LANES", row->lanes);
    }
    put_knob(t, "ITEMS", row->items);
    put_knob(t, "HELD", row->held);
    if (row->group) put_knob(t, "GROUP", row->group);
}

/* Vectors in flight a work-item: 64 bytes. As many elements as f32 has then where results are
 * stored (on an H200 twice as many bf16 took 1.4 times as long), half of them where targets take
 * registers too (Intel's compiler spills otherwise); one vector where it has a position for
 * itself. */
#define CROSS_ENTROPY_VECTORS  4
#define CROSS_ENTROPY_ELEMENTS 16

static int32_t cross_entropy_items(const atto__cross_entropy_knobs *k, bool spread)
{
    const bool stores = strcmp(k->kernel, "atto_cross_entropy_backward") == 0;
    const int32_t vector = atto__vector_elements(k->dtype);
    if (k->lanes == ATTO_LANES_ONE) return 1;
    if (spread) return CROSS_ENTROPY_ELEMENTS / 2 / vector;
    return stores ? CROSS_ENTROPY_ELEMENTS / vector : CROSS_ENTROPY_VECTORS;
}

void atto__cross_entropy_variant(const atto__cross_entropy_knobs *k, atto__variant *out)
{
    static const int32_t lanes[ATTO_LANES_COUNT] = { 1, 32, 128, 0 };
    const bool soft = k->target != ATTO_I32 && k->target != ATTO_I64;
    const atto__row_knobs row = { lanes[k->lanes], cross_entropy_items(k, soft || k->spread), false,
                                  0 };
    text t = begin(out, "cross_entropy.cl", k->kernel, "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_value(&t, "TARGET", atto_dtype_name(k->target));
    put_knob(&t, "SOFT", soft);
    put_knob(&t, "SPREAD", soft || k->spread);
    if (k->whole) put_knob(&t, "WHOLE", 1);
    put_row(&t, &row);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

/* Elements that a lane holds: one array of them, or one of five. */
#define ROW_HELD      32
#define ROW_HELD_MANY 16

/* As few work-items as can hold the row with `usual` vectors each, else the most work-items with up
 * to `most`; where even that is not enough, chunks of half. */
static atto__row_shape share_row(int64_t vectors, int32_t usual, int32_t most, int32_t widest)
{
    atto__row_shape shape = { .lanes = 1, .items = usual, .held = true };
    while (shape.lanes < widest && (int64_t)shape.lanes * shape.items < vectors) shape.lanes *= 2;
    if ((int64_t)shape.lanes * shape.items >= vectors) {
        while (shape.items > 1 && (int64_t)shape.lanes * (shape.items / 2) >= vectors)
            shape.items /= 2;
    } else if ((int64_t)shape.lanes * most >= vectors) {
        shape.items = most;
    } else {
        shape.items = most > 1 ? most / 2 : 1;
        shape.held = false;
    }
    return shape;
}

static int64_t vectors_of(int64_t slots, atto_dtype dtype)
{
    const int32_t vector = atto__vector_elements(dtype);
    return (slots + vector - 1) / vector;
}

/* Rows that are not whole need more registers. */
static atto__row_shape ragged_shape(int64_t slots, atto_dtype dtype, int32_t held,
                                    const atto__row_place *place)
{
    const int32_t most = held / atto__vector_elements(dtype);
    return share_row(vectors_of(slots, dtype), most > 1 ? most / 2 : 1, most, place->group);
}

/* On an H200 the next row keeps memory busy while a row's few work-items, a work-group for
 * themselves from 128 on, wait for each other. */
#define FORWARD_WIDEST 512
#define FORWARD_GROUP  128

atto__row_shape atto__norm_forward_shape(int64_t slots, atto_dtype dtype, bool whole,
                                         const atto__row_place *place)
{
    const int64_t vectors = vectors_of(slots, dtype);
    const int32_t most = ROW_HELD / atto__vector_elements(dtype);
    const int32_t widest = place->most < FORWARD_WIDEST ? place->most : FORWARD_WIDEST;
    if (!whole) return ragged_shape(slots, dtype, ROW_HELD, place);
    const bool few = vectors <= (dtype == ATTO_F32 ? 256 : 64);
    atto__row_shape shape = share_row(vectors, few ? 2 : 4, most, widest);
    if (!shape.held) return ragged_shape(slots, dtype, ROW_HELD, place);
    shape.group = place->group < FORWARD_GROUP ? place->group : FORWARD_GROUP;
    if (shape.group < shape.lanes) shape.group = shape.lanes;
    return shape;
}

/* dw and db take two registers an element for as long as a work-group lives, so that few
 * work-groups fit beside each other, and as many as fit on an H200 share out all rows: one of 1024
 * work-items on a multiprocessor, each with 64 registers, enough for 8 elements; or three of 256,
 * which is faster for f32. */
#define BACKWARD_ELEMENTS 8
#define MULTIPROCESSORS   132
#define STAGES_FROM       128 /* lanes */

atto__row_shape atto__norm_backward_shape(int64_t slots, atto_dtype dtype, bool whole,
                                          const atto__row_place *place)
{
    const int32_t vector = atto__vector_elements(dtype), usual = BACKWARD_ELEMENTS / vector;
    const bool large = place->most > place->group;
    if (!whole) return ragged_shape(slots, dtype, ROW_HELD_MANY, place);
    atto__row_shape shape = share_row(vectors_of(slots, dtype), usual,
                                      large ? usual : ROW_HELD_MANY / vector, place->most);
    if (!shape.held) return ragged_shape(slots, dtype, ROW_HELD_MANY, place);
    if (!large) return shape;
    const bool three = dtype == ATTO_F32 && shape.lanes <= place->group / 2;
    shape.group = three ? place->group : place->most;
    shape.groups = three ? 3 * MULTIPROCESSORS : MULTIPROCESSORS;
    shape.stages = place->stages && vector > 4 && shape.lanes >= STAGES_FROM ? 2 : 0;
    return shape;
}

void atto__norm_variant(const atto__norm_knobs *k, atto__variant *out)
{
    text t = begin(out, "layer_norm.cl", k->kernel, "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_value(&t, "PARAM", atto_dtype_name(k->param));
    put_knob(&t, "CENTRED", k->centred);
    put_knob(&t, "LANES", k->rows.lanes);
    put_knob(&t, "ITEMS", k->rows.items);
    put_knob(&t, "HELD", k->rows.held);
    put_knob(&t, "WHOLE", k->whole);
    if (k->rows.group > 0) put_knob(&t, "GROUP", k->rows.group);
    if (k->rows.stages > 0) put_knob(&t, "STAGES", k->rows.stages);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

/* The kernels that merge slabs know neither x nor the activation. */
void atto__batch_norm_variant(const atto__batch_norm_knobs *k, atto__variant *out)
{
    const bool joins = strcmp(k->kernel, "atto_batch_norm_join") == 0;
    const bool groups = strcmp(k->kernel, "atto_group_norm_groups") == 0;
    const bool merges = joins || groups || strcmp(k->kernel, "atto_batch_norm_finish") == 0;
    const bool moments = strcmp(k->kernel, "atto_batch_norm_moments") == 0;
    text t = begin(out, groups ? "group_norm.cl" : "batch_norm.cl", k->kernel, "");
    if (merges) {
        put_value(&t, "OUT", atto_dtype_name(joins ? k->out : ATTO_F32));
        if (k->lanes > 0) put_knob(&t, "LANES", k->lanes);
        return;
    }
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_act(&t, moments ? "identity" : k->act);
    put_knob(&t, "LAST", k->last);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "VECTORS", k->vectors);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

/* clang-format off */
const atto__gemm_tile atto__gemm_tiles[ATTO_GEMM_TILES] = {
    /* name        m    n   k  item  slices */
    { "128x128", 128, 128,  8, 8, 16, 1 },
    { "64x64",    64,  64, 16, 8,  8, 1 },
    { "64x64i4",  64,  64,  8, 4,  8, 1 }, /* for few registers */
    { "32x32x4",  32,  32, 32, 4,  4, 4 }, /* few tiles: shorter sums */
    { "16x32x8",  16,  32, 64, 4,  4, 8 },
    { "32x32",    32,  32,  8, 4,  4, 1 }, /* CPUs, and devices with small work-groups */
    { "8x32",      8,  32,  8, 4,  4, 1 },
};
/* clang-format on */

int32_t atto__gemm_tile_items(const atto__gemm_tile *tile)
{
    return tile->m / tile->item_m * 8 * tile->slices;
}

/* Two steps' tiles, or 32 columns of each part's sums. */
int32_t atto__gemm_tile_local_bytes(const atto__gemm_tile *tile)
{
    const int32_t steps = 2 * tile->k * (tile->m + tile->n), block = tile->slices * tile->m * 32;
    return 4 * (steps > block ? steps : block);
}

static void put_gemm(text *t, const atto__gemm_knobs *k)
{
    put_value(t, "A", atto_dtype_name(k->a));
    put_value(t, "B", atto_dtype_name(k->b));
    put_value(t, "C", atto_dtype_name(k->c));
    put_act(t, k->act);
    put_knob(t, "DROPOUT", k->dropout);
    put_knob(t, "PROLOGUE", k->prologue);
    put_knob(t, "INDEX", k->wide ? 64 : 32);
}

static void put_operands(text *t, const atto__gemm_knobs *k)
{
    put_knob(t, "A_TRANSPOSED", k->a_transposed);
    put_knob(t, "B_TRANSPOSED", k->b_transposed);
    put_knob(t, "A_VECTORS", k->a_vectors);
    put_knob(t, "B_VECTORS", k->b_vectors);
}

static void put_tile(text *t, const atto__gemm_tile *tile)
{
    put_knob(t, "TILE_M", tile->m);
    put_knob(t, "TILE_N", tile->n);
    put_knob(t, "TILE_K", tile->k);
    put_knob(t, "ITEM_M", tile->item_m);
    put_knob(t, "ITEM_N", tile->item_n);
    put_knob(t, "SLICES", tile->slices);
}

void atto__gemm_tile_variant(const atto__gemm_tile *tile, const atto__gemm_knobs *knobs,
                             atto__variant *out)
{
    text t = begin(out, "gemm.cl", "atto_gemm_tile", "");
    put_gemm(&t, knobs);
    put_operands(&t, knobs);
    put_tile(&t, tile);
}

/* The filter of a tile is packed as rows of outputs in whole vectors; of dw's operands the small
 * image has spots, or channels, along its rows. */
void atto__conv_variant(const atto__conv_knobs *k, atto__variant *out)
{
    const bool tile = strcmp(k->kernel, "atto_conv_tile") == 0;
    const bool few = strcmp(k->kernel, "atto_conv_few") == 0, depthwise = k->depthwise.rows > 0;
    text t = begin(out, depthwise ? "conv_depthwise.cl" : "conv.cl", k->kernel, "");
    if (few || depthwise) {
        put_knob(&t, "A_VECTORS", k->a_vectors);
        put_knob(&t, "B_VECTORS", k->b_vectors);
    }
    put_value(&t, "A", atto_dtype_name(k->a));
    put_value(&t, "B", atto_dtype_name(k->b));
    put_value(&t, "C", atto_dtype_name(k->c));
    put_act(&t, k->act ? k->act : "identity");
    put_knob(&t, "CHANNELS", k->channels);
    put_knob(&t, "CHUNKED", k->chunked);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
    if (depthwise) {
        put_knob(&t, "DEPTHWISE_H", k->depthwise.h);
        put_knob(&t, "DEPTHWISE_STEP", k->depthwise.step);
        put_knob(&t, "DEPTHWISE_DIVIDE", k->depthwise.divide);
        put_knob(&t, "DEPTHWISE_ROWS", k->depthwise.rows);
        put_knob(&t, "DEPTHWISE_W", k->depthwise.w);
        put_knob(&t, "DEPTHWISE_EACH", k->depthwise.each);
    }
    if (!k->tile) return;
    put_knob(&t, "A_TRANSPOSED", tile != k->channels);
    put_knob(&t, "B_TRANSPOSED", tile || k->channels);
    put_knob(&t, "A_VECTORS", tile && !k->channels ? 1 : k->a_vectors);
    put_knob(&t, "B_VECTORS", tile && k->channels ? 1 : k->b_vectors);
    put_tile(&t, k->tile);
}

void atto__gemm_rows_variant(int32_t rows, int32_t lanes, const atto__gemm_knobs *knobs,
                             atto__variant *out)
{
    text t = begin(out, "gemm.cl", "atto_gemm_rows", "");
    put_gemm(&t, knobs);
    put_operands(&t, knobs);
    put_knob(&t, "ROWS", rows);
    put_knob(&t, "LANES", lanes);
}

void atto__gemm_plain_variant(const char *file, const char *kernel, const atto__gemm_knobs *knobs,
                              atto__variant *out)
{
    text t = begin(out, file, kernel, "");
    put_gemm(&t, knobs);
}

void atto__optim_norm_variant(atto_dtype dtype, atto__variant *out)
{
    text t = begin(out, "optim.cl", "atto_optim_norm", "");
    put_value(&t, "DTYPE", atto_dtype_name(dtype));
}

void atto__optim_begin_variant(atto__variant *out)
{
    begin(out, "optim.cl", "atto_optim_begin", "");
}

void atto__optim_step_variant(const atto__optim_method *method, atto_dtype dtype, atto_dtype shadow,
                              atto__variant *out)
{
    text t = begin(out, "optim.cl", "atto_optim_step", "");
    put_value(&t, "DTYPE", atto_dtype_name(dtype));
    put_knob(&t, "OPTIM", method->kind);
    put_knob(&t, "MOMENTUM", method->has_momentum);
    put_knob(&t, "CENTERED", method->centered);
    if (shadow) put_value(&t, "SHADOW", atto_dtype_name(shadow));
}

void atto__compare_variant(atto_dtype from, const char *comparison, bool scalar, bool wide,
                           atto__variant *out)
{
    text t = begin(out, "elementwise.cl", "atto_compare_forward", "_strided");
    put_value(&t, "FROM", atto_dtype_name(from));
    put_value(&t, "COMPARE", comparison);
    put_knob(&t, "SCALAR", scalar ? 2 : 0);
    put_walk(&t, ATTO_FORM_ELEMENTS, 1, wide);
}

void atto__fold_variant(const atto__fold_knobs *k, atto__variant *out)
{
    text t = begin(out, "reduce.cl", "atto_fold", "");
    put_value(&t, "FOLD", "fold_"); /* max alone is a macro of PoCL's */
    put(&t, k->fold);
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_value(&t, "OUT", atto_dtype_name(k->out));
    if (k->formula) put_formula(&t, k->formula);
    if (k->scalar) put_knob(&t, "SCALAR", k->scalar);
    put_knob(&t, "ROWS", k->rows);
    put_knob(&t, "SHARE", k->share);
    put_knob(&t, "SLABS", k->slabs);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "VECTORS", k->vectors);
}

void atto__fold_join_variant(atto_dtype out_dtype, bool wide, atto__variant *out)
{
    text t = begin(out, "reduce.cl", "atto_fold_join", "");
    put_value(&t, "OUT", atto_dtype_name(out_dtype));
    put_knob(&t, "INDEX", wide ? 64 : 32);
}

/* Work-items of a column, as few as can hold it. One that is alone has two sizes; more of them
 * would only make more kernels. */
static const int32_t column_depths[] = { 1, 8, 16, 32 };
#define COLUMN_DEPTHS (sizeof column_depths / sizeof column_depths[0])

/* Vectors are held as they are stored, and NVIDIA's GPUs have room for more of them in 16 bits than
 * the registers alone say. Backward holds y and dy. */
int32_t atto__column_elements(bool backward, atto_dtype dtype, bool vectors, bool nvidia)
{
    const int32_t one = backward ? ROW_CHUNK : 2 * ROW_CHUNK;
    return dtype == ATTO_F32 || !vectors ? one : nvidia ? 4 * one : 2 * one;
}

atto__column_knobs atto__column_knobs_for(int64_t size, atto_dtype dtype, bool vectors,
                                          int32_t group, int32_t elements)
{
    const int32_t side_by_side = vectors ? atto__vector_elements(dtype) : 1;
    const int32_t most = elements / side_by_side;
    int32_t deep = 1;
    for (size_t i = 0; i < COLUMN_DEPTHS; i++) {
        deep = column_depths[i] < group ? column_depths[i] : group;
        const int64_t each = (size + deep - 1) / deep;
        const bool few = deep == 1 && each <= most / 4;
        if (each <= most) return (atto__column_knobs){ deep, few ? most / 4 : most, vectors, true };
    }
    return (atto__column_knobs){ deep, ROW_CHUNK / side_by_side, vectors, false };
}

void atto__softmax_variant(const atto__softmax_knobs *k, atto__variant *out)
{
    text t = begin(out, "softmax.cl", k->kernel, "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_knob(&t, "LOG", k->kind == ATTO_SOFTMAX_LOG);
    put_knob(&t, "NEGATE", k->kind == ATTO_SOFTMAX_MIN);
    if (k->has_columns) {
        put_knob(&t, "DEEP", k->column.deep);
        put_knob(&t, "ITEMS", k->column.items);
        put_knob(&t, "HELD", k->column.held);
        put_knob(&t, "RUN", k->column.vectors ? atto__vector_elements(k->dtype) : 1);
        put_knob(&t, "VECTORS", k->column.vectors);
    } else {
        put_row(&t, &k->row);
    }
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

void atto__glu_variant(const atto__glu_knobs *k, atto__variant *out)
{
    text t = begin(out, "glu.cl", k->kernel, "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_act(&t, k->act);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "VECTORS", k->vectors);
    put_knob(&t, "ITEMS", k->items ? k->items : ATTO_DENSE_ITEMS);
    if (k->group) put_knob(&t, "GROUP", k->group);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

void atto__rnn_variant(const atto__rnn_knobs *k, atto__variant *out)
{
    text t = begin(out, "rnn.cl", k->kernel, "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "VECTORS", k->vectors);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

/* 16-byte vectors in flight a work-item: as many as fit into few registers. */
int32_t atto__loss_items(const atto__loss_knobs *k)
{
    const bool sums = k->kernel && strcmp(k->kernel, "atto_loss_sum") == 0;
    if (k->items > 0) return k->items;
    if (k->dtype != ATTO_F32) return 1; /* a run has twice the elements */
    return sums && !k->weights ? 4 : 2;
}

void atto__loss_variant(const atto__loss_knobs *k, atto__variant *out)
{
    text t = begin(out, "loss.cl", k->kernel, "");
    if (strcmp(k->kernel, "atto_loss_finish") == 0) return;
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_value(&t, "FORMULA", "attom_loss_");
    put(&t, k->loss);
    put_knob(&t, "WEIGHTS", k->weights);
    if (k->weights) put_value(&t, "WEIGHT", atto_dtype_name(k->weight));
    if (k->gradients) {
        put_knob(&t, "EACH", k->each);
        put_knob(&t, "GRADIENTS", k->gradients);
        put_value(&t, "OUT", atto_dtype_name(k->out));
    }
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
    put_knob(&t, "STRIDED", k->form != ATTO_FORM_DENSE);
    put_knob(&t, "RUN", atto__run_elements(k->dtype, k->form));
    put_knob(&t, "VECTORS", k->form != ATTO_FORM_ELEMENTS);
    put_knob(&t, "ITEMS", atto__loss_items(k));
}

void atto__nll_loss_variant(const atto__nll_loss_knobs *k, atto__variant *out)
{
    text t = begin(out, "nll_loss.cl", k->kernel, "");
    if (strcmp(k->kernel, "atto_nll_loss_finish") == 0) return;
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_value(&t, "TARGET", atto_dtype_name(k->target));
    put_knob(&t, "VECTORS", k->vectors);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

void atto__index_select_variant(const atto__index_select_knobs *k, atto__variant *out)
{
    text t = begin(out, "index_select.cl", k->kernel, "");
    const bool forward = strcmp(k->kernel, "atto_index_select_forward") == 0;
    if (forward || strcmp(k->kernel, "atto_index_select_count") == 0)
        put_value(&t, "INDEX_IN", atto_dtype_name(k->index));
    if (forward) {
        put_knob(&t, "UNIT", k->unit);
        put_knob(&t, "INDEX", k->wide ? 64 : 32);
    }
    if (strcmp(k->kernel, "atto_index_select_sum") != 0) return;
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_knob(&t, "WIDE_OUT", k->wide_out);
    put_knob(&t, "VECTORS", k->vectors);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
    if (k->group) put_knob(&t, "GROUP", k->group);
}

void atto__gather_variant(const atto__gather_knobs *k, atto__variant *out)
{
    text t = begin(out, "gather.cl", k->kernel, "");
    if (strcmp(k->kernel, "atto_gather_forward") == 0)
        put_knob(&t, "UNIT", (int32_t)atto_dtype_size(k->dtype));
    else
        put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_value(&t, "INDEX_IN", atto_dtype_name(k->index));
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
    if (k->group) put_knob(&t, "GROUP", k->group);
}

/* ---- attention ---- */

const atto__attention_tile atto__attention_tiles[ATTO_ATTENTION_TILES] = {
    { 8, 64, 4, 4, INT32_MAX }, /* few rows */
    { 64, 64, 8, 8, 128 },       { 64, 64, 8, 4, 160 },
    { 64, 64, 4, 4, INT32_MAX }, { 32, 32, 4, 4, INT32_MAX },
};

int32_t atto__attention_tile_items(const atto__attention_tile *t)
{
    return t->m / t->item_m * (t->n / t->item_n);
}

uint64_t atto__attention_tile_bytes(const atto__attention_tile *t)
{
    return (uint64_t)ATTO_ATTENTION_BYTES(t->m, t->n);
}

bool atto__attention_tile_fits(const atto__attention_tile *t, int64_t rows, int32_t scores,
                               int32_t columns)
{
    const int32_t across = t->n / t->item_n, sums = (columns + across - 1) / across;
    return t->item_m * (t->item_n * scores + sums) <= t->floats && (t->m > 8 || rows <= t->m);
}

void atto__attention_variant(const atto__attention_knobs *k, atto__variant *out)
{
    text t = begin(out, "attention.cl", k->kernel, "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_knob(&t, "OUT", k->out);
    if (k->group) {
        put_knob(&t, "GROUP", k->group);
        return;
    }
    put_knob(&t, "HEAD", k->head);
    put_knob(&t, "M", k->tile.m);
    put_knob(&t, "N", k->tile.n);
    put_knob(&t, "ITEM_M", k->tile.item_m);
    put_knob(&t, "ITEM_N", k->tile.item_n);
    put_knob(&t, "GROUP", atto__attention_tile_items(&k->tile));
    put_knob(&t, "HIDING", k->mask);
    if (k->mask == ATTO_MASK_ADDED) put_value(&t, "HIDING_IN", atto_dtype_name(k->mask_dtype));
    put_knob(&t, "DROPOUT", (int32_t)k->dropout);
    put_knob(&t, "VECTORS", k->vectors);
    if (k->parts) put_knob(&t, "SPLIT", 1);
    if (k->loops) put_knob(&t, "UNROLL", 1);
}

void atto__rope_variant(const atto__rope_knobs *k, atto__variant *out)
{
    text t = begin(out, "rope.cl", "atto_rope_turn", "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_knob(&t, "NEIGHBOURS", k->neighbours);
    put_knob(&t, "POSITIONS", k->position != 0);
    if (k->position) put_value(&t, "INDEX_IN", atto_dtype_name(k->position));
    put_knob(&t, "HEADS", k->heads);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "VECTORS", k->vectors);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

void atto__pad_variant(const atto__pad_knobs *k, atto__variant *out)
{
    text t = begin(out, "pad.cl", k->backward ? "atto_pad_backward" : "atto_pad_forward", "");
    if (k->backward)
        put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    else
        put_value(&t, "WORD", word_of(k->dtype));
    put_knob(&t, "MODE", k->mode);
    put_knob(&t, "AXES", k->axes);
    put_knob(&t, "RUN", k->form == ATTO_FORM_ELEMENTS ? 1 : atto__vector_elements(k->dtype));
    put_knob(&t, "VECTORS", k->form == ATTO_FORM_VECTORS);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

void atto__resize_variant(const atto__resize_knobs *k, atto__variant *out)
{
    text t =
        begin(out, "resize.cl", k->backward ? "atto_resize_backward" : "atto_resize_forward", "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_knob(&t, "HOW", k->how);
    put_knob(&t, "CHANNELS", k->channels);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "VECTORS", k->vectors);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
}

void atto__pool_variant(const atto__pool_knobs *k, atto__variant *out)
{
    text t = begin(out, "pool.cl", k->kernel, "");
    put_value(&t, "DTYPE", atto_dtype_name(k->dtype));
    put_knob(&t, "MAX", k->is_max);
    put_knob(&t, "INDEX_OUT", k->index_bits);
    put_knob(&t, "CHANNELS", k->channels);
    if (k->window) put_knob(&t, "WINDOW", k->window);
    if (k->items) put_knob(&t, "ITEMS", k->items);
    if (k->group) put_knob(&t, "GROUP", k->group);
    put_knob(&t, "INDEX", k->wide ? 64 : 32);
    put_knob(&t, "RUN", k->vectors ? atto__vector_elements(k->dtype) : 1);
    put_knob(&t, "VECTORS", k->vectors);
}

void atto__probe_variant(atto__variant *out)
{
    begin(out, "probe.cl", "atto_probe", "");
}

/* ---- the test set ---- */

#define MAX_AXES   8
#define MAX_VALUES 64 /* of all axes together */

/* The knobs of one group of kernels: axis i takes values 0 .. sizes[i] - 1. make writes the variant
 * (if out is not NULL) and tells whether those values can occur together. Behind the last axis it
 * finds the variant's number, for knobs that need not meet all others: each activation once. */
typedef struct plan {
    const char *family;
    int32_t axes;
    int32_t sizes[MAX_AXES];
    bool (*make)(const int32_t *values, atto__variant *out);
} plan;

static const atto_dtype float_dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };
static const atto_dtype all_dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16, ATTO_I32, ATTO_I64 };
static const atto_dtype word_dtypes[] = { ATTO_F16, ATTO_F32, ATTO_I64 };

static bool make_elementwise(const atto__elementwise_knobs *knobs, atto__variant *out)
{
    if (knobs->form == ATTO_FORM_RUNS && knobs->dropout != ATTO_DROPOUT_PHILOX) return false;
    if (out) atto__elementwise_variant(knobs, out);
    return true;
}

/* Axes: direction, form, dtype, dropout, index, activation. */
static bool make_act(const int32_t *v, atto__variant *out)
{
    const atto__elementwise_knobs knobs = {
        .file = "act.cl",
        .kernel = v[0] == 0 ? "atto_act_forward" : "atto_act_backward",
        .act = atto_activation_name((atto_activation_kind)v[5]),
        .dtype = float_dtypes[v[2]],
        .dropout = (atto__dropout_knob)v[3],
        .form = (atto__form)v[1],
        .wide = v[4] == 1,
    };
    return make_elementwise(&knobs, out);
}

/* Axes: direction, form, dtype, dropout, index. */
static bool make_dropout(const int32_t *v, atto__variant *out)
{
    const atto__elementwise_knobs knobs = {
        .file = "dropout.cl",
        .kernel = v[0] == 0 ? "atto_dropout_forward" : "atto_dropout_backward",
        .dtype = float_dtypes[v[2]],
        .dropout = (atto__dropout_knob)v[3],
        .form = (atto__form)v[1],
        .wide = v[4] == 1,
    };
    return make_elementwise(&knobs, out);
}

/* Axes: kernel, form, dtype, index, kind. */
static bool make_unary(const int32_t *v, atto__variant *out)
{
    char formula[32];
    text t = { formula, formula + sizeof formula - 1 };
    put(&t, "unary_");
    put(&t, atto_unary_name((atto_unary_kind)v[4]));
    if (v[0] == 1) put(&t, "_grad");
    const atto__elementwise_knobs knobs = {
        .file = "elementwise.cl",
        .kernel = v[0] == 0 ? "atto_unary_forward" : "atto_unary_backward",
        .formula = formula,
        .dtype = float_dtypes[v[2]],
        .form = (atto__form)v[1],
        .wide = v[3] == 1,
    };
    return make_elementwise(&knobs, out);
}

/* Axes: kernel (forward, da, db), form, dtype, index, kind, operands (both, b a number, a a number,
 * neither). */
static bool make_binary(const int32_t *v, atto__variant *out)
{
    static const char *const suffixes[] = { "", "_da", "_db" };
    static const int32_t scalars[] = { 0, 2, 1, 3 };
    const bool signs = v[4] <= ATTO_BINARY_SUB;
    if ((v[5] == 3) != (signs && v[0] > 0)) return false;
    char formula[32];
    text t = { formula, formula + sizeof formula - 1 };
    put(&t, "binary_");
    put(&t, atto_binary_name((atto_binary_kind)v[4]));
    put(&t, suffixes[v[0]]);
    const atto__elementwise_knobs knobs = {
        .file = "elementwise.cl",
        .kernel = v[0] == 0 ? "atto_binary_forward" : "atto_binary_backward",
        .formula = formula,
        .scalar = scalars[v[5]],
        .dtype = float_dtypes[v[2]],
        .form = (atto__form)v[1],
        .wide = v[3] == 1,
    };
    return make_elementwise(&knobs, out);
}

/* Axes: kernel, dtype, index, operands (both, b or a a number; backward: full gradients in f32). */
static bool make_where(const int32_t *v, atto__variant *out)
{
    if (v[0] == 1 && v[3] > 1) return false;
    const atto__elementwise_knobs knobs = {
        .file = "elementwise.cl",
        .kernel = v[0] == 0 ? "atto_where_forward" : "atto_where_backward",
        .scalar = v[0] == 0 ? v[3] : 0,
        .wide_out = v[0] == 1 && v[3] == 1,
        .dtype = float_dtypes[v[1]],
        .form = ATTO_FORM_ELEMENTS,
        .wide = v[2] == 1,
    };
    return make_elementwise(&knobs, out);
}

/* Axes: dtype, comparison, operand, index. */
static bool make_compare(const int32_t *v, atto__variant *out)
{
    const char *comparison = atto_compare_name((atto_compare_kind)v[1]);
    if (out) atto__compare_variant(all_dtypes[v[0]], comparison, v[2] == 1, v[3] == 1, out);
    return true;
}

/* Axes: fold, dtype, rows, vectors, index, use (alone, first of two launches, second of them). */
static bool make_fold(const int32_t *v, atto__variant *out)
{
    static const char *const folds[] = { "sum", "max", "arg", "ties" };
    const bool arg = v[0] == 2, ties = v[0] == 3, first = v[5] == 1, second = v[5] == 2;
    atto__fold_knobs knobs = {
        .fold = second && ties ? "sum" : folds[v[0]],
        .dtype = second ? ATTO_F32 : float_dtypes[v[1]],
        .out = first ? ATTO_F32 : float_dtypes[v[1]],
        .rows = v[2] == 1,
        .vectors = v[3] == 1,
        .share = ties && !first,
        .slabs = arg && first,
        .wide = v[4] == 1,
    };
    if (arg) knobs.out = first || v[4] == 1 ? ATTO_I64 : ATTO_I32;
    if (arg && (second || (knobs.vectors && !knobs.rows))) return false;
    if (second && (knobs.rows || knobs.vectors)) return false;
    if (out) atto__fold_variant(&knobs, out);
    return true;
}

/* Axes: kind, dtype, rows, vectors, index, which (da, db, da of a and a number, db of a number and
 * b). */
static bool make_fold_formula(const int32_t *v, atto__variant *out)
{
    static const int32_t scalars[] = { 0, 0, 2, 1 };
    char formula[32];
    text t = { formula, formula + sizeof formula - 1 };
    put(&t, "binary_");
    put(&t, atto_binary_name((atto_binary_kind)(v[0] + ATTO_BINARY_MUL)));
    put(&t, v[5] % 2 == 0 ? "_da" : "_db");
    const atto__fold_knobs knobs = {
        .fold = "sum",
        .formula = formula,
        .scalar = scalars[v[5]],
        .dtype = float_dtypes[v[1]],
        .out = v[4] == 1 ? ATTO_F32 : float_dtypes[v[1]],
        .rows = v[2] == 1,
        .vectors = v[3] == 1,
        .wide = v[4] == 1,
    };
    if (out) atto__fold_variant(&knobs, out);
    return true;
}

/* Axes: dtype, index. */
static bool make_fold_join(const int32_t *v, atto__variant *out)
{
    if (out) atto__fold_join_variant(v[0] == 0 ? ATTO_I32 : ATTO_I64, v[1] == 1, out);
    return true;
}

/* Axes: kernel, form, dtype, index. */
static bool make_spread(const int32_t *v, atto__variant *out)
{
    const atto__elementwise_knobs knobs = {
        .file = "reduce.cl",
        .kernel = v[0] == 0 ? "atto_spread" : "atto_spread_ties",
        .dtype = float_dtypes[v[2]],
        .form = (atto__form)v[1],
        .wide = v[3] == 1,
    };
    return make_elementwise(&knobs, out);
}

/* Axes: from, to, form, index. */
static bool make_copy(const int32_t *v, atto__variant *out)
{
    const bool moves_dense = v[0] == v[1] && v[2] == ATTO_FORM_DENSE; /* clEnqueueCopyBuffer */
    if (moves_dense || v[2] == ATTO_FORM_RUNS) return false;
    if (out)
        atto__copy_variant(all_dtypes[v[0]], all_dtypes[v[1]], (atto__form)v[2], v[3] == 1, out);
    return true;
}

/* Axes: word, form, index. */
static bool make_fill(const int32_t *v, atto__variant *out)
{
    if (v[1] != ATTO_FORM_VECTORS && v[1] != ATTO_FORM_ELEMENTS) return false;
    if (out) atto__fill_variant(word_dtypes[v[0]], (atto__form)v[1], v[2] == 1, out);
    return true;
}

/* Axes: kernel, dtype, target (i32, i64, f32, like x), lanes, spread, index, whole. */
static bool make_cross_entropy(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_cross_entropy_forward",
                                           "atto_cross_entropy_backward" };
    const atto_dtype targets[] = { ATTO_I32, ATTO_I64, ATTO_F32, float_dtypes[v[1]] };
    const atto__cross_entropy_knobs knobs = {
        .kernel = kernels[v[0]],
        .dtype = float_dtypes[v[1]],
        .target = targets[v[2]],
        .lanes = (atto__lanes)v[3],
        .spread = v[4] == 1,
        .whole = v[6] == 1,
        .wide = v[5] == 1,
    };
    if (knobs.whole && knobs.lanes != ATTO_LANES_PART && knobs.lanes != ATTO_LANES_GROUP)
        return false;
    const bool soft = v[2] >= 2, twice = v[2] == 3 && v[1] == 0;
    if (twice || (soft && !knobs.spread)) return false;
    if (out) atto__cross_entropy_variant(&knobs, out);
    return true;
}

/* Axes: kernel, target. What stands in f32 and knows no more. */
static bool make_cross_entropy_sums(const int32_t *v, atto__variant *out)
{
    const atto__cross_entropy_knobs knobs = {
        .kernel = v[0] == 0 ? "atto_cross_entropy_share" : "atto_cross_entropy_sum",
        .dtype = ATTO_F32,
        .target = v[1] == 0 ? ATTO_I32 : ATTO_I64,
        .lanes = ATTO_LANES_GROUP,
    };
    if (v[0] == 1 && v[1] == 0) return false;
    if (out) atto__cross_entropy_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, parameters in f32, centred, lanes, items, index, whole. Rows that are not
 * held have half of the items, and backward two kernels. */
static bool make_norm(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_norm_forward", "atto_norm_forward",
                                           "atto_norm_backward", "atto_norm_sums" };
    static const int32_t lanes[] = { 1, 8, 64, 256 };
    const bool held = v[0] % 2 == 0, many = v[0] >= 2;
    const int32_t items = 1 << v[5], vector = atto__vector_elements(float_dtypes[v[1]]);
    const int32_t most = (many ? ROW_HELD_MANY : ROW_HELD) / vector;
    const atto__norm_knobs knobs = {
        .kernel = kernels[v[0]],
        .dtype = float_dtypes[v[1]],
        .param = v[2] == 1 ? ATTO_F32 : float_dtypes[v[1]],
        .centred = v[3] == 1,
        .whole = v[7] == 1,
        .rows = { .lanes = lanes[v[4]], .items = items, .held = held },
        .wide = v[6] == 1,
    };
    if (items > most || (v[2] == 1 && v[1] == 0)) return false;
    if (!held && (v[4] != 3 || items != (most > 1 ? most / 2 : 1))) return false;
    if (out) atto__norm_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, parameters in f32, centred, index, whole. */
static bool make_norm_columns(const int32_t *v, atto__variant *out)
{
    const atto__norm_knobs knobs = {
        .kernel = v[0] == 0 ? "atto_norm_columns" : "atto_norm_join",
        .dtype = v[0] == 0 ? float_dtypes[v[1]] : ATTO_F32,
        .param = v[0] == 0 && v[2] == 1 ? ATTO_F32 : float_dtypes[v[1]],
        .centred = v[3] == 1,
        .whole = v[0] == 0 && v[5] == 1,
        .rows = { .lanes = 256, .items = 1 },
        .wide = v[4] == 1,
    };
    if (v[2] == 1 && (v[0] == 1 || v[1] == 0)) return false;
    if (v[0] == 1 && (v[3] == 0 || v[5] == 1)) return false;
    if (out) atto__norm_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, channels last, vectors, index. */
static bool make_batch_norm(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_batch_norm_moments", "atto_batch_norm_apply",
                                           "atto_batch_norm_sums", "atto_batch_norm_dx" };
    const atto__batch_norm_knobs knobs = {
        .kernel = kernels[v[0]],
        .act = atto_activation_name((atto_activation_kind)(v[5] % ATTO_ACT_COUNT)),
        .dtype = float_dtypes[v[1]],
        .out = ATTO_F32,
        .last = v[2] == 1,
        .vectors = v[3] == 1,
        .wide = v[4] == 1,
    };
    if (out) atto__batch_norm_variant(&knobs, out);
    return true;
}

static const int32_t merging_lanes[] = { 0, 8, 32 };

/* Axes: kernel, dtype of dw and db, lanes. */
static bool make_batch_norm_merge(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_batch_norm_join", "atto_batch_norm_finish" };
    const atto__batch_norm_knobs knobs = {
        .kernel = kernels[v[0]],
        .act = "identity",
        .dtype = ATTO_F32,
        .out = float_dtypes[v[1]],
        .lanes = merging_lanes[v[2]],
    };
    if (v[0] > 0 && v[1] > 0) return false;
    if (out) atto__batch_norm_variant(&knobs, out);
    return true;
}

static bool make_group_norm(const int32_t *v, atto__variant *out)
{
    const atto__batch_norm_knobs knobs = { .kernel = "atto_group_norm_groups",
                                           .out = ATTO_F32,
                                           .lanes = merging_lanes[v[0]] };
    if (out) atto__batch_norm_variant(&knobs, out);
    return true;
}

/* a, b, c of the products: operands and result of one dtype, or with an f32 result, or an f32 a,
 * which is how dz is stored, or an f32 b, a gradient of matmul's. */
static const atto_dtype gemm_dtypes[][3] = {
    { ATTO_F32, ATTO_F32, ATTO_F32 },   { ATTO_F16, ATTO_F16, ATTO_F16 },
    { ATTO_F16, ATTO_F16, ATTO_F32 },   { ATTO_BF16, ATTO_BF16, ATTO_BF16 },
    { ATTO_BF16, ATTO_BF16, ATTO_F32 }, { ATTO_F32, ATTO_F16, ATTO_F16 },
    { ATTO_F32, ATTO_F16, ATTO_F32 },   { ATTO_F32, ATTO_BF16, ATTO_BF16 },
    { ATTO_F32, ATTO_BF16, ATTO_F32 },  { ATTO_F16, ATTO_F32, ATTO_F16 },
    { ATTO_BF16, ATTO_F32, ATTO_F32 },
};
#define GEMM_SAME 5 /* so many have a and b of one dtype */

/* Knobs from the values of the axes that all plans of gemm.cl have. */
static atto__gemm_knobs gemm_knobs(int32_t dtypes, int32_t dropout, int32_t wide, int32_t number)
{
    return (atto__gemm_knobs){
        .a = gemm_dtypes[dtypes][0],
        .b = gemm_dtypes[dtypes][1],
        .c = gemm_dtypes[dtypes][2],
        .dropout = (atto__dropout_knob)dropout,
        .wide = wide == 1,
        .act = atto_activation_name((atto_activation_kind)(number % ATTO_ACT_COUNT)),
    };
}

/* Axes: tile, dtypes, transposed operands, operands in vectors, dropout, index, prologue. */
static bool make_gemm_tile(const int32_t *v, atto__variant *out)
{
    atto__gemm_knobs knobs = gemm_knobs(v[1], v[4], v[5], v[7]);
    knobs.a_transposed = v[2] & 1;
    knobs.b_transposed = v[2] >> 1;
    knobs.a_vectors = v[3] & 1;
    knobs.b_vectors = v[3] >> 1;
    knobs.prologue = v[6] == 1;
    if (out) atto__gemm_tile_variant(&atto__gemm_tiles[v[0]], &knobs, out);
    return true;
}

/* Axes: rows, dtypes, operands in vectors, dropout, index, work-items. */
static bool make_gemm_rows(const int32_t *v, atto__variant *out)
{
    atto__gemm_knobs knobs = gemm_knobs(v[1], v[3], v[4], v[6]);
    knobs.a_vectors = v[2] & 1;
    knobs.b_vectors = v[2] >> 1;
    if (out) atto__gemm_rows_variant(v[0] ? 4 : 1, v[5] ? 256 : 64, &knobs, out);
    return true;
}

/* Axes: dtypes, dropout, index. */
static bool make_gemm_finish(const int32_t *v, atto__variant *out)
{
    const atto__gemm_knobs knobs = gemm_knobs(v[0], v[1], v[2], v[3]);
    if (out) atto__gemm_plain_variant("gemm.cl", "atto_gemm_finish", &knobs, out);
    return true;
}

/* Axes: kernel, dtypes, dropout, index. */
static bool make_linear(const int32_t *v, atto__variant *out)
{
    atto__gemm_knobs knobs = gemm_knobs(v[1], v[2], v[3], v[4]);
    knobs.prologue = true;
    if (out)
        atto__gemm_plain_variant("linear.cl", v[0] ? "atto_linear_sums" : "atto_linear_dz", &knobs,
                                 out);
    return true;
}

/* Axes: kernel, tile, dtypes, vectors, order (rows, channels, rows in chunks), index. */
static bool make_conv_tile(const int32_t *v, atto__variant *out)
{
    if (v[0] == 1 && v[4] == 2) return false;
    const atto__conv_knobs knobs = {
        .kernel = v[0] ? "atto_conv_filter" : "atto_conv_tile",
        .tile = &atto__gemm_tiles[v[1]],
        .a = gemm_dtypes[v[2]][0],
        .b = gemm_dtypes[v[2]][1],
        .c = v[0] ? ATTO_F32 : gemm_dtypes[v[2]][2],
        .a_vectors = v[3] & 1,
        .b_vectors = v[3] >> 1,
        .channels = v[4] == 1,
        .chunked = v[0] == 0 && v[4] == 2,
        .wide = v[5] == 1,
        .act = v[0] ? NULL : atto_activation_name((atto_activation_kind)(v[6] % ATTO_ACT_COUNT)),
    };
    if (out) atto__conv_variant(&knobs, out);
    return true;
}

/* Axes: dtypes, vectors, order, index. */
static bool make_conv_few(const int32_t *v, atto__variant *out)
{
    const atto__conv_knobs knobs = {
        .kernel = "atto_conv_few",
        .a = gemm_dtypes[v[0]][0],
        .b = gemm_dtypes[v[0]][1],
        .c = gemm_dtypes[v[0]][2],
        .a_vectors = v[1] & 1,
        .b_vectors = v[1] >> 1,
        .channels = v[2] == 1,
        .chunked = v[2] == 2,
        .wide = v[3] == 1,
        .act = atto_activation_name((atto_activation_kind)(v[4] % ATTO_ACT_COUNT)),
    };
    if (out) atto__conv_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtypes, vectors, order, index; the filters, by the number, are those of layers and
 * their gradients, and any. */
static bool make_conv_depthwise(const int32_t *v, atto__variant *out)
{
    static const struct {
        int32_t h, step, divide, rows;
    } filters[] = { { 3, 1, 1, 8 }, { 3, 2, 1, 4 }, { 3, 1, 2, 8 }, { 7, 1, 1, 8 }, { 5, 1, 1, 8 },
                    { 5, 2, 1, 4 }, { 0, 1, 1, 4 }, { 0, 1, 0, 4 }, { 1, 1, 1, 1 } };
    const int32_t filter = v[5] % (int32_t)(sizeof filters / sizeof filters[0]);
    const atto__conv_knobs knobs = {
        .kernel = v[0] ? "atto_conv_depthwise_filter" : "atto_conv_depthwise",
        .a = gemm_dtypes[v[1]][0],
        .b = gemm_dtypes[v[1]][1],
        .c = v[0] ? ATTO_F32 : gemm_dtypes[v[1]][2],
        .a_vectors = v[2] & 1,
        .b_vectors = v[2] >> 1,
        .channels = v[3] == 1,
        .wide = v[4] == 1,
        .act = v[0] ? NULL : atto_activation_name((atto_activation_kind)(v[5] % ATTO_ACT_COUNT)),
        .depthwise = { filters[filter].h, filters[filter].step, v[0] ? 1 : filters[filter].divide,
                       filters[filter].rows, v[0] ? 3 : 1,
                       v[3] == 0 ? 1
                       : v[0]    ? 2
                                 : 4 },
    };
    if (out) atto__conv_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, order, index. */
static bool make_conv(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_conv_pack", "atto_conv_finish", "atto_conv_dz" };
    if (v[0] > 0 && v[2] == 2) return false;
    const atto__conv_knobs knobs = {
        .kernel = kernels[v[0]],
        .a = float_dtypes[v[1]],
        .b = ATTO_F32,
        .c = v[0] == 1 ? float_dtypes[v[1]] : ATTO_F32,
        .channels = v[2] == 1,
        .chunked = v[0] == 0 && v[2] == 2,
        .wide = v[3] == 1,
        .act =
            v[0] == 2 ? atto_activation_name((atto_activation_kind)(v[4] % ATTO_ACT_COUNT)) : NULL,
    };
    if (out) atto__conv_variant(&knobs, out);
    return true;
}

/* Axes: dtype. */
static bool make_optim_norm(const int32_t *v, atto__variant *out)
{
    if (out) atto__optim_norm_variant(float_dtypes[v[0]], out);
    return true;
}

static bool make_optim_begin(const int32_t *v, atto__variant *out)
{
    (void)v;
    if (out) atto__optim_begin_variant(out);
    return true;
}

/* Axes: method, momentum, centred, dtype, shadow. Only RMSprop has both options; Adam has neither.
 * Only f32 values have a shadow. */
static bool make_optim_step(const int32_t *v, atto__variant *out)
{
    static const atto_dtype shadows[] = { 0, ATTO_F16, ATTO_BF16 };
    const atto__optim_method method = { v[0], v[1] == 1, v[2] == 1 };
    if (method.kind == ATTO_OPTIM_ADAM && method.has_momentum) return false;
    if (method.kind != ATTO_OPTIM_RMSPROP && method.centered) return false;
    if (float_dtypes[v[3]] != ATTO_F32 && v[4] > 0) return false;
    if (out) atto__optim_step_variant(&method, float_dtypes[v[3]], shadows[v[4]], out);
    return true;
}

/* Rows in every way that atto__row_knobs_for shares them out. */
static const atto__row_knobs row_samples[] = {
    { 1, 1, true, 0 },  { 1, 4, true, 0 },   { 8, 2, true, 0 },   { 32, 1, true, 0 },
    { 32, 8, true, 0 }, { 128, 4, true, 0 }, { 0, 2, true, 0 },   { 0, 8, true, 0 },
    { 0, 16, true, 0 }, { 0, 4, false, 0 },  { 0, 4, true, 512 }, { 32, 2, true, 128 },
};
#define ROW_SAMPLES ((int32_t)(sizeof row_samples / sizeof row_samples[0]))

/* With as many floats a work-item as f32 has. */
static atto__row_knobs row_sample(int32_t i, atto_dtype dtype)
{
    atto__row_knobs row = row_samples[i];
    if (dtype != ATTO_F32 && row.items > 1) row.items /= 2;
    return row;
}

/* Axes: kernel, kind, dtype, share, index. */
static bool make_softmax_rows(const int32_t *v, atto__variant *out)
{
    const atto__softmax_knobs knobs = {
        .kernel = v[0] == 0 ? "atto_softmax_forward" : "atto_softmax_backward",
        .kind = (atto_softmax_kind)v[1],
        .dtype = float_dtypes[v[2]],
        .row = row_sample(v[3], float_dtypes[v[2]]),
        .wide = v[4] == 1,
    };
    if (out) atto__softmax_variant(&knobs, out);
    return true;
}

/* Axes: kernel, kind, dtype, depth, vectors, held, index, NVIDIA. */
static bool make_softmax_columns(const int32_t *v, atto__variant *out)
{
    const atto_dtype dtype = float_dtypes[v[2]];
    const bool vectors = v[4] == 1, held = v[5] == 1;
    const int32_t room = atto__column_elements(v[0] == 1, dtype, vectors, v[7] == 1);
    const int32_t chunk = held ? room : ROW_CHUNK;
    const int32_t side_by_side = vectors ? atto__vector_elements(dtype) : 1;
    const atto__softmax_knobs knobs = {
        .kernel = v[0] == 0 ? "atto_softmax_forward_columns" : "atto_softmax_backward_columns",
        .kind = (atto_softmax_kind)v[1],
        .dtype = dtype,
        .has_columns = true,
        .column = { column_depths[v[3]], chunk / side_by_side, vectors, held },
        .wide = v[6] == 1,
    };
    if (!held && v[3] != COLUMN_DEPTHS - 1) return false;
    if (v[7] == 1 && !(held && vectors && dtype != ATTO_F32))
        return false; /* the same as without */
    if (out) atto__softmax_variant(&knobs, out);
    return true;
}

/* Axes: direction, vectors, dtype, index, activation. */
static bool make_glu(const int32_t *v, atto__variant *out)
{
    const atto__glu_knobs knobs = {
        .kernel = v[0] == 0 ? "atto_glu_forward" : "atto_glu_backward",
        .act = atto_activation_name((atto_activation_kind)v[4]),
        .dtype = float_dtypes[v[2]],
        .vectors = v[1] == 1,
        .wide = v[3] == 1,
    };
    if (out) atto__glu_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, vectors, index. */
static bool make_rnn(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_lstm_cell_forward", "atto_lstm_cell_backward",
                                           "atto_gru_cell_forward", "atto_gru_cell_backward" };
    const atto__rnn_knobs knobs = { kernels[v[0]], float_dtypes[v[1]], v[2] == 1, v[3] == 1 };
    if (out) atto__rnn_variant(&knobs, out);
    return true;
}

/* Axes: kernel, form, dtype, index, kind, weights (with bit 2: in f32), use of backward (both
 * gradients, with a dloss each, dx for a sum, dtarget). */
static bool make_loss(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_loss_each", "atto_loss_sum",
                                           "atto_loss_backward" };
    static const int32_t gradients[] = { 3, 3, 1, 2 };
    const bool backward = v[0] == 2;
    const atto_dtype dtype = float_dtypes[v[2]];
    const atto__loss_knobs knobs = {
        .kernel = kernels[v[0]],
        .loss = atto_loss_name((atto_loss_kind)v[4]),
        .dtype = dtype,
        .weight = v[5] & 4 ? ATTO_F32 : dtype,
        .out = v[6] == 2 ? ATTO_F32 : dtype,
        .weights = v[5] & 3,
        .each = v[6] == 1,
        .gradients = backward ? gradients[v[6]] : 0,
        .form = (atto__form)v[1],
        .wide = v[3] == 1,
    };
    if (knobs.form == ATTO_FORM_RUNS || (v[6] > 0 && !backward) || v[5] == 4) return false;
    if (knobs.weights && v[4] != ATTO_LOSS_BCE_WITH_LOGITS) return false;
    if (out) atto__loss_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, target, index, vectors. */
static bool make_nll_loss(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_nll_loss_planes", "atto_nll_loss_rows",
                                           "atto_nll_loss_positions", "atto_nll_loss_scatter" };
    const atto__nll_loss_knobs knobs = {
        .kernel = kernels[v[0]],
        .dtype = float_dtypes[v[1]],
        .target = v[2] == 0 ? ATTO_I32 : ATTO_I64,
        .wide = v[3] == 1,
        .vectors = v[4] == 1,
    };
    if ((v[0] > 0 && v[4] == 1) || (v[0] > 1 && v[3] == 1)) return false;
    if (out) atto__nll_loss_variant(&knobs, out);
    return true;
}

/* The kernels that sum up partial sums. */
static bool make_loss_finish(const int32_t *v, atto__variant *out)
{
    const atto__loss_knobs knobs = { .kernel = "atto_loss_finish" };
    (void)v;
    if (out) atto__loss_variant(&knobs, out);
    return true;
}

static bool make_nll_loss_finish(const int32_t *v, atto__variant *out)
{
    const atto__nll_loss_knobs knobs = { .kernel = "atto_nll_loss_finish" };
    (void)v;
    if (out) atto__nll_loss_variant(&knobs, out);
    return true;
}

/* Axes: unit, dtype of the index, index. */
static bool make_index_select_forward(const int32_t *v, atto__variant *out)
{
    static const int32_t units[] = { 16, 4, 2 };
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_forward",
                                             .unit = units[v[0]],
                                             .index = v[1] == 0 ? ATTO_I32 : ATTO_I64,
                                             .wide = v[2] == 1 };
    if (out) atto__index_select_variant(&knobs, out);
    return true;
}

/* Axes: kernel, with the two dtypes of an index for the first. */
static bool make_index_select_order(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_index_select_count", "atto_index_select_count",
                                           "atto_index_select_place", "atto_index_select_fill",
                                           "atto_index_select_rank" };
    const atto__index_select_knobs knobs = { .kernel = kernels[v[0]],
                                             .index = v[0] == 0 ? ATTO_I32 : ATTO_I64 };
    if (out) atto__index_select_variant(&knobs, out);
    return true;
}

/* Axes: dtype, dtype of sums, vectors, index. */
static bool make_index_select_sum(const int32_t *v, atto__variant *out)
{
    const atto__index_select_knobs knobs = { .kernel = "atto_index_select_sum",
                                             .dtype = float_dtypes[v[0]],
                                             .wide_out = v[1] == 1,
                                             .vectors = v[2] == 1,
                                             .group = ATTO_INDEX_SUM_GROUP,
                                             .wide = v[3] == 1 };
    if (v[0] == 0 && v[1] == 1) return false;
    if (out) atto__index_select_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, dtype of the index, index. */
static bool make_gather(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_gather_forward", "atto_gather_backward",
                                           "atto_gather_backward_line",
                                           "atto_gather_backward_tile" };
    const atto__gather_knobs knobs = { .kernel = kernels[v[0]],
                                       .dtype = float_dtypes[v[1]],
                                       .group = v[0] == 3 ? ATTO_GATHER_GROUP : 0,
                                       .index = v[2] == 0 ? ATTO_I32 : ATTO_I64,
                                       .wide = v[3] == 1 };
    if (out) atto__gather_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype, head, mask, dropout, vectors, tile, parts. */
static bool make_attention(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_attention_forward", "atto_attention_keys",
                                           "atto_attention_queries" };
    static const int32_t heads[] = { 64, 40, 256 };
    const atto__attention_knobs knobs = { .kernel = kernels[v[0]],
                                          .dtype = float_dtypes[v[1]],
                                          .head = heads[v[2]],
                                          .out = heads[(v[2] + v[0]) % 3],
                                          .mask = v[3],
                                          .mask_dtype = v[5] ? float_dtypes[v[1]] : ATTO_F32,
                                          .dropout = (atto__dropout_knob)v[4],
                                          .vectors = v[5] == 1,
                                          .parts = v[7] == 1,
                                          .tile = atto__attention_tiles[v[6]] };
    if (v[7] == 1 && v[0] != 0) return false; /* forward alone has parts */
    if (out) atto__attention_variant(&knobs, out);
    return true;
}

/* Axes: dtype, pairing, vectors, dtype of positions, heads, index. */
static bool make_rope(const int32_t *v, atto__variant *out)
{
    static const atto_dtype positions[] = { (atto_dtype)0, ATTO_I32, ATTO_I64 };
    const atto__rope_knobs knobs = { .dtype = float_dtypes[v[0]],
                                     .position = positions[v[3]],
                                     .neighbours = v[1] == 1,
                                     .vectors = v[2] == 1,
                                     .heads = v[4] == 1 ? ATTO_ROPE_HEADS : 1,
                                     .wide = v[5] == 1 };
    if (out) atto__rope_variant(&knobs, out);
    return true;
}

/* Axes: kernel, dtype. */
static bool make_attention_rows(const int32_t *v, atto__variant *out)
{
    const atto__attention_knobs knobs = { .kernel = v[0] == 0 ? "atto_attention_delta"
                                                              : "atto_attention_join",
                                          .dtype = float_dtypes[v[1]],
                                          .out = 64,
                                          .group = 64 };
    if (out) atto__attention_variant(&knobs, out);
    return true;
}

/* What is computed: means, maxima, maxima with indices. */
static atto__pool_knobs pool_knobs(const char *kernel, int32_t what, int32_t dtype, int32_t wide)
{
    static const int32_t bits[] = { 0, 0, 32, 64 };
    return (atto__pool_knobs){ .kernel = kernel,
                               .dtype = float_dtypes[dtype],
                               .is_max = what > 0,
                               .index_bits = bits[what],
                               .wide = wide == 1 };
}

/* Axes: kernel, what, dtype, index, channels, vectors. */
static bool make_pool(const int32_t *v, atto__variant *out)
{
    static const char *const kernels[] = { "atto_pool_forward", "atto_pool_forward_lanes",
                                           "atto_pool_backward", "atto_pool_backward_channels" };
    atto__pool_knobs knobs = pool_knobs(kernels[v[0]], v[1], v[2], v[3]);
    knobs.channels = v[4] == 1;
    knobs.vectors = v[5] == 1;
    if (v[0] == 1) knobs.items = ATTO_POOL_ITEMS;
    if (v[0] >= 2 && (v[1] == 1 || knobs.channels != (v[0] == 3))) return false;
    if (v[0] == 0 && !knobs.channels && knobs.vectors) return false;
    if (out) atto__pool_variant(&knobs, out);
    return true;
}

/* Axes: what, dtype, index, vectors, channels. */
static bool make_pool_whole(const int32_t *v, atto__variant *out)
{
    atto__pool_knobs knobs = pool_knobs("atto_pool_backward_whole", v[0], v[1], v[2]);
    knobs.items = ATTO_POOL_ITEMS;
    knobs.vectors = v[3] == 1;
    knobs.channels = v[4] == 1;
    if (v[0] == 1) return false;
    if (out) atto__pool_variant(&knobs, out);
    return true;
}

/* Axes: kernel, what, dtype, index, window. */
static bool make_pool_window(const int32_t *v, atto__variant *out)
{
    enum { UNROLLED, DOWN, UNROLLED_BACK, PAIRED, PAIRED_BACK };
    static const char *const kernels[] = { "atto_pool_forward_unrolled", "atto_pool_forward_down",
                                           "atto_pool_backward_unrolled",
                                           "atto_pool_forward_paired",
                                           "atto_pool_backward_paired" };
    atto__pool_knobs knobs = pool_knobs(kernels[v[0]], v[1], v[2], v[3]);
    knobs.vectors = true;
    knobs.channels = v[0] < PAIRED;
    knobs.window = v[4] == 0 ? 2 : 3;
    if ((v[0] == UNROLLED_BACK || v[0] == PAIRED_BACK) && v[1] == 1) return false;
    if (v[0] == DOWN && (v[1] == 0 || knobs.window == 2)) return false;
    if (out) atto__pool_variant(&knobs, out);
    return true;
}

/* Axes: direction, dtype, mode, axes of the tensors, form, index. */
static bool make_pad(const int32_t *v, atto__variant *out)
{
    static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16, ATTO_I64 };
    static const atto__form forms[] = { ATTO_FORM_ELEMENTS, ATTO_FORM_RUNS, ATTO_FORM_VECTORS };
    const atto__pad_knobs knobs = { .backward = v[0] == 1,
                                    .dtype = dtypes[v[1]],
                                    .mode = v[2],
                                    .axes = v[3] == 1 ? 8 : 4,
                                    .form = forms[v[4]],
                                    .wide = v[5] == 1 };
    if (v[1] == (knobs.backward ? 3 : 2)) return false; /* integers; words of 2 bytes, once */
    if (out) atto__pad_variant(&knobs, out);
    return true;
}

/* Axes: direction, dtype, how, channels, vectors, index. */
static bool make_resize(const int32_t *v, atto__variant *out)
{
    const atto__resize_knobs knobs = { .backward = v[0] == 1,
                                       .dtype = float_dtypes[v[1]],
                                       .how = v[2],
                                       .channels = v[3] == 1,
                                       .vectors = v[4] == 1,
                                       .wide = v[5] == 1 };
    if (out) atto__resize_variant(&knobs, out);
    return true;
}

static bool make_probe(const int32_t *v, atto__variant *out)
{
    (void)v;
    if (out) atto__probe_variant(out);
    return true;
}

static const plan plans[] = {
    { "act", 6, { 2, ATTO_FORM_COUNT, 3, ATTO_DROPOUT_COUNT, 2, ATTO_ACT_COUNT }, make_act },
    { "dropout", 5, { 2, ATTO_FORM_COUNT, 3, ATTO_DROPOUT_COUNT, 2 }, make_dropout },
    { "elementwise", 5, { 2, ATTO_FORM_COUNT, 3, 2, ATTO_UNARY_COUNT }, make_unary },
    { "elementwise", 6, { 3, ATTO_FORM_COUNT, 3, 2, ATTO_BINARY_COUNT, 4 }, make_binary },
    { "elementwise", 4, { 2, 3, 2, 3 }, make_where },
    { "elementwise", 4, { 5, ATTO_COMPARE_COUNT, 2, 2 }, make_compare },
    { "reduce", 6, { 4, 3, 2, 2, 2, 3 }, make_fold },
    { "reduce", 6, { ATTO_BINARY_COUNT - ATTO_BINARY_MUL, 3, 2, 2, 2, 4 }, make_fold_formula },
    { "reduce", 2, { 2, 2 }, make_fold_join },
    { "reduce", 4, { 2, ATTO_FORM_COUNT, 3, 2 }, make_spread },
    { "tensor", 4, { 5, 5, ATTO_FORM_COUNT, 2 }, make_copy },
    { "tensor", 3, { 3, ATTO_FORM_COUNT, 2 }, make_fill },
    { "cross_entropy", 7, { 2, 3, 4, ATTO_LANES_COUNT, 2, 2, 2 }, make_cross_entropy },
    { "cross_entropy", 2, { 2, 2 }, make_cross_entropy_sums },
    { "layer_norm", 8, { 4, 3, 2, 2, 4, 4, 2, 2 }, make_norm },
    { "layer_norm", 6, { 2, 3, 2, 2, 2, 2 }, make_norm_columns },
    { "batch_norm", 5, { 4, 3, 2, 2, 2 }, make_batch_norm },
    { "batch_norm", 3, { 2, 3, 3 }, make_batch_norm_merge },
    { "group_norm", 1, { 3 }, make_group_norm },
    { "gemm", 7, { ATTO_GEMM_TILES, 11, 4, 4, ATTO_DROPOUT_COUNT, 2, 2 }, make_gemm_tile },
    { "gemm", 6, { 2, GEMM_SAME, 4, ATTO_DROPOUT_COUNT, 2, 2 }, make_gemm_rows },
    { "gemm", 3, { GEMM_SAME, ATTO_DROPOUT_COUNT, 2 }, make_gemm_finish },
    { "linear", 4, { 2, GEMM_SAME, ATTO_DROPOUT_COUNT, 2 }, make_linear },
    { "optim", 1, { 3 }, make_optim_norm },
    { "optim", 1, { 1 }, make_optim_begin },
    { "optim", 5, { 3, 2, 2, 3, 3 }, make_optim_step },
    { "probe", 1, { 1 }, make_probe },
    { "softmax", 5, { 2, ATTO_SOFTMAX_COUNT, 3, ROW_SAMPLES, 2 }, make_softmax_rows },
    { "softmax", 8, { 2, ATTO_SOFTMAX_COUNT, 3, COLUMN_DEPTHS, 2, 2, 2, 2 }, make_softmax_columns },
    { "glu", 5, { 2, 2, 3, 2, ATTO_ACT_COUNT }, make_glu },
    { "loss", 7, { 3, ATTO_FORM_COUNT, 3, 2, ATTO_LOSS_COUNT, 8, 4 }, make_loss },
    { "loss", 1, { 1 }, make_loss_finish },
    { "nll_loss", 5, { 4, 3, 2, 2, 2 }, make_nll_loss },
    { "nll_loss", 1, { 1 }, make_nll_loss_finish },
    { "conv", 6, { 2, ATTO_GEMM_TILES, 11, 4, 3, 2 }, make_conv_tile },
    { "conv", 4, { 11, 4, 3, 2 }, make_conv_few },
    { "conv", 5, { 2, 11, 4, 2, 2 }, make_conv_depthwise },
    { "conv", 4, { 3, 3, 3, 2 }, make_conv },
    { "pool", 6, { 4, 4, 3, 2, 2, 2 }, make_pool },
    { "pool", 5, { 5, 4, 3, 2, 2 }, make_pool_window },
    { "pool", 5, { 4, 3, 2, 2, 2 }, make_pool_whole },
    { "index_select", 3, { 3, 2, 2 }, make_index_select_forward },
    { "index_select", 1, { 5 }, make_index_select_order },
    { "index_select", 4, { 3, 2, 2, 2 }, make_index_select_sum },
    { "gather", 4, { 4, 3, 2, 2 }, make_gather },
    { "attention",
      8,
      { 3, 3, 3, 3, ATTO_DROPOUT_COUNT, 2, ATTO_ATTENTION_TILES, 2 },
      make_attention },
    { "attention", 2, { 2, 3 }, make_attention_rows },
    { "rope", 6, { 3, 2, 2, 3, 2, 2 }, make_rope },
    { "rnn", 4, { 4, 3, 2, 2 }, make_rnn },
    { "pad", 6, { 2, 4, ATTO_PAD_COUNT, 2, 3, 2 }, make_pad },
    { "resize", 6, { 2, 3, 3, 2, 2, 2 }, make_resize },
};

/* Pairs of values that no chosen variant has yet. An axis is paired with itself too, so that a
 * plan of one axis works. */
typedef struct pairs {
    bool open[MAX_VALUES][MAX_VALUES];
} pairs;

/* The next combination in counting order; false after the last. */
static bool advance(const plan *p, int32_t *values)
{
    for (int32_t i = 0; i < p->axes; i++) {
        if (++values[i] < p->sizes[i]) return true;
        values[i] = 0;
    }
    return false;
}

/* Counts the open pairs that a combination has; sets them all to state if change. */
static int32_t visit_pairs(const plan *p, pairs *all, const int32_t *values, bool change,
                           bool state)
{
    int32_t count = 0, row = 0;
    for (int32_t i = 0; i < p->axes; row += p->sizes[i++]) {
        int32_t column = row;
        for (int32_t j = i; j < p->axes; column += p->sizes[j++]) {
            bool *open = &all->open[row + values[i]][column + values[j]];
            count += *open;
            if (change) *open = state;
        }
    }
    return count;
}

static void open_possible_pairs(const plan *p, pairs *all)
{
    int32_t values[MAX_AXES + 1] = { 0 };
    memset(all, 0, sizeof *all);
    do
        if (p->make(values, NULL)) visit_pairs(p, all, values, true, true);
    while (advance(p, values));
}

/* The first combination with the most open pairs; returns their number. */
static int32_t best_combination(const plan *p, pairs *all, int32_t *best)
{
    int32_t values[MAX_AXES + 1] = { 0 }, most = 0;
    do {
        if (!p->make(values, NULL)) continue;
        const int32_t count = visit_pairs(p, all, values, false, false);
        if (count > most) memcpy(best, values, sizeof values);
        most = count > most ? count : most;
    } while (advance(p, values));
    return most;
}

static int32_t cover(const plan *p, atto__variant *out, int32_t capacity)
{
    pairs all;
    int32_t count = 0, values[MAX_AXES + 1];
    open_possible_pairs(p, &all);
    while (best_combination(p, &all, values) > 0) {
        visit_pairs(p, &all, values, true, false);
        values[p->axes] = count;
        if (count < capacity) p->make(values, &out[count]);
        count++;
    }
    return count;
}

int32_t atto__variants(const char *family, atto__variant *out, int32_t capacity)
{
    int32_t count = 0;
    for (size_t i = 0; ATTO_WITH_OPENCL && i < sizeof plans / sizeof plans[0]; i++) {
        if (family && strcmp(family, plans[i].family) != 0) continue;
        const int32_t room = count < capacity ? capacity - count : 0;
        count += cover(&plans[i], room > 0 ? out + count : NULL, room);
    }
    return count;
}
