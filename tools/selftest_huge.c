/* SPDX-License-Identifier: MIT */
/* attocl selftest --huge: tensors of more than 2^31 elements, compared block by block.
 *
 * Only the blocks come to the host. The CPU computes a block of dropout by starting the random
 * stream where the block starts: element i takes counter offset + i / 4. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "check.h"
#include "huge.h"
#include "tool.h"

static const check_op ops[] = {
    { "relu", { ATTO_ACT_RELU, 0, 0 }, 0.0f, CHECK_ACT, 0 },
    { "gelu", { ATTO_ACT_GELU, 0, 0 }, 0.0f, CHECK_ACT, 0 },
    { "gelu+dropout", { ATTO_ACT_GELU, 0, 0 }, 0.5f, CHECK_ACT, 0 },
    { "dropout", { ATTO_ACT_IDENTITY, 0, 0 }, 0.5f, CHECK_DROPOUT, 0 },
};

atto_status huge_read(const atto_tensor *t, int64_t start, int64_t n, void *out)
{
    atto_tensor block;
    const atto_status status = atto_tensor_slice(t, 0, start, start + n, 1, &block);
    return status == ATTO_OK ? atto_tensor_read(&block, out) : status;
}

static atto_status read_blocks(huge *h, int64_t start, int64_t n)
{
    atto_status status = huge_read(&h->x, start, n, h->raw_x);
    if (status == ATTO_OK) status = huge_read(&h->dy, start, n, h->raw_dy);
    if (status == ATTO_OK) status = huge_read(&h->out, start, n, h->raw_got);
    return status;
}

static atto_status widen_blocks(huge *h, int64_t n)
{
    atto_device *ref = h->reference;
    atto_status status = check_widen(ref, h->raw_x, ATTO_F16, n, h->x32);
    if (status == ATTO_OK) status = check_widen(ref, h->raw_dy, ATTO_F16, n, h->dy32);
    if (status == ATTO_OK) status = check_widen(ref, h->raw_got, ATTO_F16, n, h->got);
    if (status == ATTO_OK) status = check_widen(ref, h->raw_want, ATTO_F16, n, h->want);
    return status;
}

/* Compares elements start .. start + n; start is a multiple of 4. */
static bool check_block(huge *h, const check_op *op, bool backward, atto_rng rng, int64_t start,
                        int64_t n)
{
    const atto_rng here = { rng.seed, rng.offset + (uint64_t)start / 4, rng.kind };
    atto_status status = read_blocks(h, start, n);
    if (status == ATTO_OK)
        status = check_call_host(h->reference, op, backward, here, ATTO_F16, n, h->raw_x, h->raw_dy,
                                 h->raw_want);
    if (status == ATTO_OK) status = widen_blocks(h, n);
    if (status != ATTO_OK) return tool_fail(op->name, status) == TOOL_OK;
    const check_worst w =
        check_compare(op, ATTO_F16, n, h->x32, backward ? h->dy32 : NULL, h->got, h->want);
    printf(" %9.3f", w.ratio);
    if (w.ratio > 1)
        printf("\n  element %" PRId64 " is %.9g, expected %.9g\n", start + w.index, (double)w.got,
               (double)w.want);
    return w.ratio <= 1;
}

#define EDGE_31 ((int64_t)1 << 31) /* elements; in f16 as many bytes as 2^32 */
#define EDGE_32 ((int64_t)1 << 32)

void huge_blocks(int64_t elements, int64_t *start, int64_t *length)
{
    const int64_t n = elements < HUGE_BLOCK ? elements : HUGE_BLOCK;
    const int64_t last = elements - n;
    start[0] = 0;
    start[1] = elements > EDGE_32 ? EDGE_32 - n / 2 : last / 2;
    start[2] = elements > EDGE_31 ? EDGE_31 - n / 2 : last / 4;
    for (int i = 1; i < 3; i++) start[i] = (start[i] < last ? start[i] : last) / 4 * 4;
    start[3] = (last + 3) / 4 * 4; /* rounded up: the block must not run over the end */
    for (int i = 0; i < HUGE_BLOCKS; i++) length[i] = n;
    length[3] = elements - start[3];
}

static bool check_pass(huge *h, const check_op *op, bool backward)
{
    const atto_rng rng = { .seed = 11 };
    int64_t start[HUGE_BLOCKS], length[HUGE_BLOCKS];
    atto_status status = atto_tensor_fill(&h->out, -1.0);
    if (status == ATTO_OK) status = check_call(h->dev, op, backward, rng, &h->x, &h->dy, &h->out);
    if (status == ATTO_OK) status = atto_device_sync(h->dev);
    if (status != ATTO_OK) return tool_fail(op->name, status) == TOOL_OK;
    printf("%-13s %-8s", op->name, backward ? "backward" : "forward");
    huge_blocks(h->elements, start, length);
    bool ok = true;
    for (int i = 0; i < HUGE_BLOCKS; i++)
        if (length[i] > 0) ok = check_block(h, op, backward, rng, start[i], length[i]) && ok;
    printf("  %s\n", ok ? "PASS" : "FAIL");
    return ok;
}

static atto_status prepare(huge *h, const char *device)
{
    const atto_device_options base = { .ignore_environment = true, .cpu_level = "base" };
    const atto_device_options strict = { .no_fallback = true, .no_hidden_copies = true };
    const atto_shape shape = atto_shape1(h->elements);
    atto_status status = atto_device_open("cpu", &base, &h->reference);
    if (status == ATTO_OK) status = atto_device_open(device, &strict, &h->dev);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_F16, shape, &h->x);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_F16, shape, &h->dy);
    if (status == ATTO_OK) status = atto_tensor_alloc(h->dev, ATTO_F16, shape, &h->out);
    if (status == ATTO_OK) status = bench_fill_normal(h->dev, &h->x, 1);
    if (status == ATTO_OK) status = bench_fill_normal(h->dev, &h->dy, 2);
    return status;
}

static bool check_all(huge *h)
{
    bool ok = true;
    printf("f16, %" PRId64 " elements, worst error / tolerance by block\n", h->elements);
    printf("%-13s %-8s %9s %9s %9s %9s\n", "op", "pass", "first",
           h->elements > EDGE_32 ? "2^32" : "middle", h->elements > EDGE_31 ? "2^31" : "quarter",
           "last");
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        ok = check_pass(h, &ops[i], false) && ok;
        ok = check_pass(h, &ops[i], true) && ok;
    }
    return huge_known(h) && ok;
}

int tool_selftest_huge(const char *device, int64_t elements)
{
    huge *h = calloc(1, sizeof *h);
    bool ok = false;
    if (h == NULL) return tool_fail("selftest --huge", ATTO_E_MEMORY);
    h->elements = elements;
    const atto_status status = prepare(h, device);
    if (status == ATTO_OK)
        ok = check_all(h);
    else
        tool_fail("selftest --huge", status);
    atto_tensor_free(&h->x);
    atto_tensor_free(&h->dy);
    atto_tensor_free(&h->out);
    atto_device_close(h->dev);
    atto_device_close(h->reference);
    free(h);
    return ok ? TOOL_OK : TOOL_FAILED;
}
