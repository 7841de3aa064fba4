/* SPDX-License-Identifier: MIT */
/* Lower triangles: a mask, and a value on a tape with zeros above the diagonal. Both compare numbers of
 * columns with those of rows, so that no matrix crosses from the host. */
#include <attocl/record.h>

#include <inttypes.h>
#include <string.h>

#include "alloc.h"
#include "layers/checks.h"
#include "train/tape.h"

/* first, first + 1, ...; NULL without memory. */
static int64_t *numbers_from(int64_t first, int64_t n)
{
    int64_t *numbers = atto__alloc((size_t)n * sizeof *numbers);
    for (int64_t i = 0; numbers && i < n; i++) numbers[i] = first + i;
    return numbers;
}

/* The last column that row 0 keeps; beyond the matrix is as good as at its edge. */
static int64_t last_column(int64_t rows, int64_t cols, int64_t diagonal)
{
    return diagonal < -rows ? -rows : diagonal > cols ? cols : diagonal;
}

/* ---- the mask ---- */

static atto_status write_numbers(atto_device *dev, atto_shape shape, int64_t first, int64_t n,
                                 atto_tensor *out)
{
    ATTO_TRY(atto_tensor_alloc(dev, ATTO_I64, shape, out));
    if (n == 0) return ATTO_OK;
    int64_t *numbers = numbers_from(first, n);
    ATTO_REQUIRE(numbers, ATTO_E_MEMORY, "no memory for %" PRId64 " numbers", n);
    const atto_status status = atto_tensor_write(out, numbers);
    atto__free(numbers);
    return status;
}

static atto_status fill_mask(atto_device *dev, int64_t last, const atto_tensor *mask)
{
    const int64_t rows = mask->shape[0], cols = mask->shape[1];
    atto_tensor row = { 0 }, col = { 0 };
    const struct atto_compare_args a = { .a = &col, .b = &row, .y = mask, .kind = ATTO_COMPARE_LE };
    atto_status status = write_numbers(dev, atto_shape2(rows, 1), last, rows, &row);
    if (status == ATTO_OK) status = write_numbers(dev, atto_shape2(1, cols), 0, cols, &col);
    if (status == ATTO_OK) status = atto_compare_forward(dev, &a);
    atto_tensor_free(&row);
    atto_tensor_free(&col);
    return status;
}

atto_status atto_tril_mask(atto_device *dev, int64_t rows, int64_t cols, int64_t diagonal,
                           atto_tensor *mask)
{
    const char *what = "tril_mask";
    if (mask) memset(mask, 0, sizeof *mask);
    ATTO_REQUIRE(dev && mask, ATTO_E_NULL, "%s: %s is NULL", what, dev ? "mask" : "dev");
    ATTO_REQUIRE(rows >= 0 && cols >= 0, ATTO_E_SHAPE, "%s: %s is %" PRId64 ", expected 0 or more",
                 what, rows < 0 ? "rows" : "cols", rows < 0 ? rows : cols);
    atto_status status = atto_tensor_alloc(dev, ATTO_I32, atto_shape2(rows, cols), mask);
    if (status == ATTO_OK) status = fill_mask(dev, last_column(rows, cols, diagonal), mask);
    if (status == ATTO_OK) return ATTO_OK;
    atto_tensor_free(mask);
    return atto__fail_in(status, "%s: ", what);
}

/* ---- on a tape ---- */

static atto_var numbers_on(atto_tape *tape, atto_shape shape, int64_t first, int64_t n)
{
    int64_t *numbers = numbers_from(first, n);
    if (!numbers) {
        atto__tape_fail(tape,
                        atto__fail(ATTO_E_MEMORY, "tril: no memory for %" PRId64 " numbers", n));
        return atto__no_var();
    }
    const atto_var v = atto_input(tape, ATTO_I64, shape, numbers);
    atto__free(numbers);
    return v;
}

static atto_status check_x(const atto_tensor *x)
{
    char text[ATTO_SHAPE_TEXT];
    ATTO_REQUIRE(x->rank >= 2, ATTO_E_SHAPE, "tril: x is %s, expected two dimensions or more",
                 atto__shape_text(x, text));
    ATTO_REQUIRE(atto__is_float(x->dtype), ATTO_E_DTYPE, "tril: x is %s, expected f32, f16 or bf16",
                 atto_dtype_name(x->dtype));
    return ATTO_OK;
}

atto_var atto_tril(atto_tape *tape, atto_var x, int64_t diagonal)
{
    const atto_tensor *t = atto__tape_tensor(tape, "tril", x);
    const uint32_t zero = 0; /* in every dtype */
    if (!t || atto__tape_fail(tape, check_x(t)) != ATTO_OK) return atto__no_var();
    const atto_dtype dtype = t->dtype;
    const int64_t rows = t->shape[t->rank - 2], cols = t->shape[t->rank - 1];
    const int64_t last = last_column(rows, cols, diagonal);
    const atto_var row = numbers_on(tape, atto_shape2(rows, 1), last, rows);
    const atto_var col = numbers_on(tape, atto_shape2(1, cols), 0, cols);
    const atto_var mask = atto_compare(tape, ATTO_COMPARE_LE, col, row);
    return atto_where(tape, mask, x, atto_input(tape, dtype, atto_shape0(), &zero));
}
