/* SPDX-License-Identifier: MIT */
/* Internals: extents, overlap and merging of dimensions, judged by walking every element. */
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "layout.h"

/* ---- views over a buffer that needs no device ---- */

static atto_buffer ground = { .bytes = 1 << 20 };

typedef struct view_row {
    int32_t rank;
    int64_t shape[ATTO_MAX_RANK], stride[ATTO_MAX_RANK], offset;
} view_row;

static atto_tensor view_of(const view_row *row)
{
    atto_tensor t = { &ground, ATTO_F32, row->rank, { 0 }, { 0 }, row->offset };
    memcpy(t.shape, row->shape, sizeof t.shape);
    memcpy(t.stride, row->stride, sizeof t.stride);
    return t;
}

static int64_t position(const atto_tensor *t, int64_t index)
{
    int64_t at = t->offset;
    for (int32_t d = t->rank - 1; d >= 0; d--) {
        at += index % t->shape[d] * t->stride[d];
        index /= t->shape[d];
    }
    return at;
}

/* How often each of the first 4096 elements is reached. */
static void visit(const atto_tensor *t, unsigned char visits[4096])
{
    memset(visits, 0, 4096);
    for (int64_t i = 0; i < atto_tensor_numel(t); i++) visits[position(t, i)]++;
}

static const view_row views[] = {
    { 0, { 0 }, { 0 }, 3 },
    { 1, { 7 }, { 1 }, 0 },
    { 1, { 7 }, { 3 }, 1 },
    { 1, { 7 }, { 0 }, 1 },
    { 1, { 1 }, { 0 }, 1 },
    { 2, { 3, 5 }, { 5, 1 }, 0 },
    { 2, { 3, 5 }, { 5, 1 }, 15 },
    { 2, { 3, 5 }, { 7, 1 }, 2 },
    { 2, { 5, 3 }, { 1, 5 }, 0 },
    { 2, { 3, 5 }, { 4, 1 }, 0 },
    { 2, { 3, 5 }, { 10, 2 }, 0 },
    { 2, { 3, 5 }, { 10, 2 }, 1 },
    { 2, { 3, 5 }, { 2, 6 }, 0 },
    { 2, { 3, 5 }, { 2, 6 }, 1 },
    { 2, { 3, 5 }, { 2, 5 }, 0 },
    { 2, { 3, 1 }, { 2, 0 }, 0 },
    { 2, { 3, 2 }, { 0, 1 }, 0 },
    { 3, { 2, 3, 4 }, { 12, 4, 1 }, 0 },
    { 3, { 2, 3, 4 }, { 1, 2, 6 }, 5 },
    { 3, { 2, 3, 4 }, { 40, 10, 2 }, 0 },
    { 3, { 2, 3, 4 }, { 40, 10, 2 }, 1 },
    { 3, { 2, 3, 4 }, { 40, 10, 2 }, 9 },
    { 4, { 2, 3, 4, 5 }, { 60, 1, 15, 3 }, 0 },
    { 5, { 2, 2, 2, 2, 2 }, { 100, 40, 17, 7, 2 }, 0 },
    { 5, { 2, 2, 2, 2, 2 }, { 100, 40, 17, 7, 2 }, 1 },
    { 3, { 2, 0, 4 }, { 4, 4, 1 }, 0 },
    { 2, { 0, 5 }, { 5, 0 }, 0 }, /* empty: nothing is reached twice */
};

static void layout_extent_reaches_the_last_element(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(views); i++) {
        const atto_tensor t = view_of(&views[i]);
        const int64_t n = atto_tensor_numel(&t);
        int64_t last = t.offset - 1;
        for (int64_t k = 0; k < n; k++)
            if (position(&t, k) > last) last = position(&t, k);
        assert_int_equal(atto__extent(&t), last - t.offset + 1);
    }
}

/* May err on the safe side, but never call distinct what is not; exact when strides nest, as all
 * strides of ordinary views do. */
static void layout_distinct_sees_every_repetition(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(views); i++) {
        const atto_tensor t = view_of(&views[i]);
        unsigned char visits[4096];
        visit(&t, visits);
        bool repeats = false;
        for (int k = 0; k < 4096; k++) repeats = repeats || visits[k] > 1;
        if (repeats) assert_false(atto__view_distinct(&t));
        const bool odd_strides = i == 14; /* [3,5] by (2,5): distinct, but not nested */
        if (!repeats && !odd_strides && atto_tensor_numel(&t) > 0)
            assert_true(atto__view_distinct(&t));
    }
}

static bool share_an_element(const atto_tensor *a, const atto_tensor *b)
{
    unsigned char in_a[4096], in_b[4096];
    visit(a, in_a);
    visit(b, in_b);
    for (int k = 0; k < 4096; k++)
        if (in_a[k] && in_b[k]) return true;
    return false;
}

/* Equal strides that nest, whichever view is longer. */
static bool one_lattice(const atto_tensor *a, const atto_tensor *b)
{
    atto_tensor joint = *a;
    if (a->rank != b->rank) return false;
    for (int32_t d = 0; d < a->rank; d++) {
        if (a->shape[d] > 1 && b->shape[d] > 1 && a->stride[d] != b->stride[d]) return false;
        if (a->shape[d] < 2) joint.stride[d] = b->stride[d];
        if (a->shape[d] < b->shape[d]) joint.shape[d] = b->shape[d];
    }
    return atto__view_distinct(&joint);
}

static void check_overlap(const atto_tensor *a, const atto_tensor *b)
{
    const bool shared = share_an_element(a, b);
    assert_int_equal(atto__view_overlap(a, b), atto__view_overlap(b, a));
    if (shared) assert_true(atto__view_overlap(a, b));
    if (!shared && one_lattice(a, b)) assert_false(atto__view_overlap(a, b)); /* exact */
}

static void layout_overlap_sees_every_shared_element(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(views); i++)
        for (int j = 0; j < COUNT_OF(views); j++) {
            const atto_tensor a = view_of(&views[i]), b = view_of(&views[j]);
            check_overlap(&a, &b);
        }
    /* equal strides, every distance */
    for (int i = 0; i < COUNT_OF(views); i++)
        for (int64_t distance = 0; distance < 300; distance++) {
            const atto_tensor a = view_of(&views[i]);
            atto_tensor b = a;
            b.offset += distance;
            check_overlap(&a, &b);
            for (int32_t d = 0; d < a.rank; d++) { /* and shorter ones */
                atto_tensor part = b;
                part.shape[d] = (b.shape[d] + 1) / 2;
                check_overlap(&a, &part);
            }
        }
}

/* Element i, j of the matrix is element i * columns + j of the view; where there is none, strides
 * are the reason. */
static void layout_rows_keep_the_order_of_elements(void **state)
{
    (void)state;
    static const struct {
        view_row view;
        int64_t rows, columns, stride; /* rows -1: refused */
    } cases[] = {
        { { 0, { 0 }, { 0 }, 3 }, 1, 1, 1 },
        { { 1, { 7 }, { 1 }, 3 }, 1, 7, 7 },
        { { 1, { 7 }, { 2 }, 3 }, -1, 0, 0 },
        { { 1, { 1 }, { 9 }, 3 }, 1, 1, 1 },
        { { 2, { 3, 5 }, { 5, 1 }, 0 }, 3, 5, 5 },
        { { 2, { 3, 5 }, { 8, 1 }, 0 }, 3, 5, 8 },
        { { 2, { 3, 5 }, { 1, 3 }, 0 }, -1, 0, 0 },
        { { 2, { 3, 5 }, { 0, 1 }, 0 }, 3, 5, 0 },
        { { 3, { 2, 3, 5 }, { 24, 8, 1 }, 0 }, 6, 5, 8 },
        { { 3, { 2, 3, 5 }, { 25, 8, 1 }, 0 }, -1, 0, 0 },
        { { 3, { 2, 1, 5 }, { 25, 8, 1 }, 0 }, 2, 5, 25 },
        { { 3, { 3, 2, 1 }, { 1, 3, 1 }, 0 }, -1, 0, 0 },
        { { 3, { 4, 0, 5 }, { 3, 99, 1 }, 0 }, 0, 5, 99 },
        { { 2, { 4, 0 }, { 9, 7 }, 0 }, 4, 0, 9 },
    };
    for (int i = 0; i < COUNT_OF(cases); i++) {
        atto_tensor t = view_of(&cases[i].view);
        const atto_tensor before = t;
        if (!atto__view_rows(&t)) {
            assert_int_equal(cases[i].rows, -1);
            assert_memory_equal(&t, &before, sizeof t);
            continue;
        }
        assert_int_equal(t.rank, 2);
        assert_int_equal(t.shape[0], cases[i].rows);
        assert_int_equal(t.shape[1], cases[i].columns);
        assert_int_equal(t.stride[0], cases[i].stride);
        assert_int_equal(t.stride[1], 1);
        assert_int_equal(t.offset, before.offset);
    }
}

static void layout_overlap_counts_bytes_across_dtypes(void **state)
{
    (void)state;
    atto_tensor a = atto_tensor_of(&ground, ATTO_F32, atto_shape1(10), 10); /* bytes 40 to 80 */
    atto_tensor b = atto_tensor_of(&ground, ATTO_F16, atto_shape1(10), 10); /* bytes 20 to 40 */
    assert_false(atto__view_overlap(&a, &b));
    b.offset = 11;
    assert_true(atto__view_overlap(&a, &b));
    b.offset = 39;
    assert_true(atto__view_overlap(&a, &b));
    b.offset = 40;
    assert_false(atto__view_overlap(&a, &b));
    atto_buffer other = { .bytes = 1 << 20 };
    b.offset = 20, b.buffer = &other;
    assert_false(atto__view_overlap(&a, &b));
    b.buffer = NULL;
    assert_false(atto__view_overlap(&a, &b));
}

static void layout_same_ignores_strides_of_size_one(void **state)
{
    (void)state;
    const view_row one = { 3, { 4, 1, 5 }, { 5, 99, 1 }, 2 };
    atto_tensor a = view_of(&one), b = a;
    b.stride[1] = 0;
    assert_true(atto__view_same(&a, &b));
    b.stride[0] = 6;
    assert_false(atto__view_same(&a, &b));
    b = a, b.offset++;
    assert_false(atto__view_same(&a, &b));
    b = a, b.dtype = ATTO_I32;
    assert_false(atto__view_same(&a, &b));
    b = a, b.rank = 2;
    assert_false(atto__view_same(&a, &b));
}

static void layout_view_check_holds_views_to_their_buffer(void **state)
{
    (void)state;
    const int64_t room = (1 << 20) / 4;
    atto_tensor t = atto_tensor_of(&ground, ATTO_F32, atto_shape1(room), 0);
    MUST(atto__view_check(&t, "t"));
    t.offset = 1;
    EXPECT_FAIL(atto__view_check(&t, "act: t"), ATTO_E_SHAPE, "act: t");
    t.shape[0]--;
    MUST(atto__view_check(&t, "t"));
    t.stride[0] = 2;
    EXPECT_FAIL(atto__view_check(&t, "t"), ATTO_E_SHAPE, "t");
    t.shape[0] = 0, t.offset = 1 << 30; /* empty: reaches nothing */
    MUST(atto__view_check(&t, "t"));
    t = atto_tensor_of(&ground, ATTO_F32, atto_shape2(INT64_MAX, INT64_MAX), 0);
    EXPECT_FAIL(atto__view_check(&t, "t"), ATTO_E_SHAPE, "t");
    t = atto_tensor_of(&ground, ATTO_F32, atto_shape2(2, 2), INT64_MAX);
    EXPECT_FAIL(atto__view_check(&t, "t"), ATTO_E_ARGUMENT, "t");
}

static void layout_shape_text_shows_all_dimensions(void **state)
{
    (void)state;
    char text[ATTO_SHAPE_TEXT];
    atto_tensor t = atto_tensor_of(&ground, ATTO_F32, atto_shape3(2, 30, 4), 0);
    assert_string_equal(atto__shape_text(&t, text), "[2,30,4]");
    t.rank = 0;
    assert_string_equal(atto__shape_text(&t, text), "[]");
    const int64_t most[8] = { INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN,
                              INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN };
    t = atto_tensor_of(&ground, ATTO_F32, atto_shape_of(8, most), 0);
    assert_int_equal(strlen(atto__shape_text(&t, text)), 8 * 20 + 7 + 2);
}

/* ---- merging ---- */

/* Two tensors of one shape: an output first, then an input. */
typedef struct merge_row {
    const char *what;
    int32_t rank;
    int64_t shape[ATTO_MAX_RANK], out[ATTO_MAX_RANK], in[ATTO_MAX_RANK];
    bool by_index;
    int32_t merged; /* rank wanted; -1: cannot be merged to four */
    bool dense;
} merge_row;

static const merge_row merges[] = {
    { "one element", 3, { 1, 1, 1 }, { 9, 9, 9 }, { 0, 5, 7 }, true, 0, true },
    { "dense", 3, { 2, 3, 4 }, { 12, 4, 1 }, { 12, 4, 1 }, true, 1, true },
    { "dense with ones", 4, { 2, 1, 3, 4 }, { 12, 99, 4, 1 }, { 12, 0, 4, 1 }, true, 1, true },
    { "rows", 2, { 3, 4 }, { 7, 1 }, { 4, 1 }, true, 2, false },
    { "rows that merge above", 3, { 2, 3, 4 }, { 21, 7, 1 }, { 12, 4, 1 }, true, 2, false },
    { "all transposed, any order", 2, { 3, 4 }, { 1, 3 }, { 1, 3 }, false, 1, true },
    { "all transposed, by index", 2, { 3, 4 }, { 1, 3 }, { 1, 3 }, true, 2, false },
    { "one transposed", 2, { 3, 4 }, { 4, 1 }, { 1, 3 }, false, 2, false },
    { "broadcast rows", 2, { 3, 4 }, { 4, 1 }, { 0, 1 }, false, 2, false },
    { "broadcast all", 2, { 3, 4 }, { 4, 1 }, { 0, 0 }, false, 1, false },
    { "step 2", 2, { 3, 4 }, { 8, 2 }, { 8, 2 }, true, 1, false },
    { "channels_last", 4, { 2, 3, 4, 5 }, { 60, 1, 15, 3 }, { 60, 1, 15, 3 }, false, 1, true },
    { "channels_last, by index",
      4,
      { 2, 3, 4, 5 },
      { 60, 1, 15, 3 },
      { 60, 1, 15, 3 },
      true,
      3,
      false },
    { "five apart",
      5,
      { 2, 2, 2, 2, 2 },
      { 100, 40, 17, 7, 2 },
      { 16, 8, 4, 2, 1 },
      false,
      -1,
      false },
    { "eight that are one",
      8,
      { 2, 2, 2, 2, 2, 2, 2, 2 },
      { 128, 64, 32, 16, 8, 4, 2, 1 },
      { 128, 64, 32, 16, 8, 4, 2, 1 },
      true,
      1,
      true },
};

/* Walking the merged dimensions meets the same (out, in, logical index) triples as the original. */
static void check_walk(const merge_row *row, const atto_tensor *out, const atto_tensor *in,
                       const atto_tensor before[2], const atto__layout *l)
{
    static int64_t in_at[4096], index_at[4096];
    memset(in_at, 0xff, sizeof in_at);
    for (int64_t i = 0; i < l->numel; i++) {
        in_at[position(&before[0], i)] = position(&before[1], i);
        index_at[position(&before[0], i)] = i;
    }
    for (int64_t i = 0; i < l->numel; i++) {
        int64_t rest = i, index = 0;
        for (int32_t d = l->rank - 1; d >= 0; d--) {
            index += rest % l->shape[d] * l->index_stride[d];
            rest /= l->shape[d];
        }
        const int64_t at = position(out, i);
        assert_int_equal(in_at[at], position(in, i));
        if (row->by_index) assert_int_equal(index_at[at], index);
        in_at[at] = -1; /* once only */
    }
}

static void layout_merge_walks_every_element_once(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(merges); i++) {
        const merge_row *row = &merges[i];
        view_row views_of[2] = { { row->rank, { 0 }, { 0 }, 0 }, { row->rank, { 0 }, { 0 }, 0 } };
        for (int t = 0; t < 2; t++) {
            memcpy(views_of[t].shape, row->shape, sizeof row->shape);
            memcpy(views_of[t].stride, t ? row->in : row->out, sizeof row->out);
        }
        atto_tensor out = view_of(&views_of[0]), in = view_of(&views_of[1]);
        const atto_tensor before[2] = { out, in };
        atto_tensor *walk[2] = { &out, &in };
        atto__layout l;
        const bool merged = atto__layout_merge(walk, 2, row->by_index, false, &l);
        if (merged != (row->merged >= 0)) fail_msg("%s: merged %d", row->what, merged);
        if (!merged) { /* then nothing changed */
            assert_memory_equal(&out, &before[0], sizeof out);
            assert_memory_equal(&in, &before[1], sizeof in);
            continue;
        }
        if (l.rank != row->merged || l.dense != row->dense)
            fail_msg("%s: rank %d, dense %d", row->what, (int)l.rank, l.dense);
        assert_int_equal(out.rank, l.rank);
        assert_int_equal(in.rank, l.rank);
        assert_int_equal(l.numel, atto_tensor_numel(&before[0]));
        assert_false(l.wide);
        check_walk(row, &out, &in, before, &l);
    }
}

/* Wide is a matter of offsets from the view's start, not of the base offset. */
static void layout_is_wide_from_two_to_the_31(void **state)
{
    (void)state;
    atto__layout l;
    const struct {
        int64_t size, stride;
        bool forced, wide;
    } rows[] = {
        { 10, 1, false, false },
        { 10, 1, true, true },
        { INT64_C(1) << 31, 1, false, true },
        { (INT64_C(1) << 31) - 1, 1, false, false },
        { 3, INT64_C(1) << 30, false, true },
        { 2, (INT64_C(1) << 31) - 2, false, false },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        atto_tensor t = atto_tensor_of(NULL, ATTO_F32, atto_shape1(rows[i].size), INT64_C(1) << 40);
        t.stride[0] = rows[i].stride;
        atto_tensor *walk[1] = { &t };
        assert_true(atto__layout_merge(walk, 1, true, rows[i].forced, &l));
        assert_int_equal(l.wide, rows[i].wide);
    }
}

static void dimensions_move_and_the_rest_keeps_its_order(void **state)
{
    (void)state;
    const atto_tensor image = atto_tensor_of(NULL, ATTO_F32, atto_shape4(2, 3, 4, 5), 0);
    atto_tensor moved = image;
    atto__view_move(&moved, 1, 3);
    const int64_t shape[] = { 2, 4, 5, 3 }, stride[] = { 60, 5, 1, 20 };
    assert_memory_equal(moved.shape, shape, sizeof shape);
    assert_memory_equal(moved.stride, stride, sizeof stride);
    atto__view_move(&moved, 3, 1);
    assert_true(atto__view_same(&moved, &image));
    atto__view_move(&moved, 2, 2);
    assert_true(atto__view_same(&moved, &image));
}

/* [2, 3, 4, 5] with dimension 1 innermost, then with a gap. */
static void channels_last_is_dense_by_its_channels(void **state)
{
    (void)state;
    atto_tensor t = atto_tensor_of(NULL, ATTO_F32, atto_shape4(2, 4, 5, 3), 0);
    assert_true(atto__view_dense_by(&t, 3) && atto__view_dense(&t));
    atto__view_move(&t, 3, 1);
    assert_true(atto__view_dense_by(&t, 1));
    assert_false(atto__view_dense_by(&t, 3) || atto__view_dense_by(&t, 0));
    t.stride[2] = 16, t.stride[0] = 64;
    assert_false(atto__view_dense_by(&t, 1));
    t.shape[0] = 0;
    assert_true(atto__view_dense_by(&t, 1)); /* empty */
    const atto_tensor scalar = atto_tensor_of(NULL, ATTO_F32, atto_shape0(), 0);
    assert_true(atto__view_dense_by(&scalar, -1));
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(dimensions_move_and_the_rest_keeps_its_order),
    cmocka_unit_test(channels_last_is_dense_by_its_channels),
    cmocka_unit_test(layout_extent_reaches_the_last_element),
    cmocka_unit_test(layout_distinct_sees_every_repetition),
    cmocka_unit_test(layout_overlap_sees_every_shared_element),
    cmocka_unit_test(layout_rows_keep_the_order_of_elements),
    cmocka_unit_test(layout_overlap_counts_bytes_across_dtypes),
    cmocka_unit_test(layout_same_ignores_strides_of_size_one),
    cmocka_unit_test(layout_view_check_holds_views_to_their_buffer),
    cmocka_unit_test(layout_shape_text_shows_all_dimensions),
    cmocka_unit_test(layout_merge_walks_every_element_once),
    cmocka_unit_test(layout_is_wide_from_two_to_the_31),
};
TEST_MAIN_HOST("layout", tests)
