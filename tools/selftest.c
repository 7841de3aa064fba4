/* SPDX-License-Identifier: MIT */
/* attocl selftest: every op of a device against the CPU backend at its base level. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "check.h"
#include "tool.h"

static const char usage[] =
    "Usage: attocl selftest [OPTION]...\n"
    "Runs every op in both directions on a device and on the CPU's plain code and compares them.\n"
    "The figures are worst error / tolerance; above 1 is a failure.\n\n"
    "  -d, --device NAME  as atto_device_open takes it (default: auto)\n"
    "  -a, --all          every device that can be used\n"
    "  -f, --filter TEXT  only ops whose name contains TEXT\n"
    "  -F, --full         every memory layout with every activation, not with a few of them\n"
    "      --huge[=N]     instead: f16 tensors of N elements (default 2147483655, 13 GB), checked\n"
    "                     at their ends, in the middle and around element 2^31\n"
    "  -j, --json FILE    write JSON as well\n"
    "  -h, --help         this text\n";

/* How a [rows, cols] tensor lies in memory. */
typedef enum pattern {
    DENSE,
    OFFSET,     /* dense, but one element behind an aligned address */
    PITCHED,    /* three elements between rows */
    TRANSPOSED, /* columns are contiguous */
    BROADCAST   /* one row in memory; inputs only */
} pattern;

typedef struct test_case {
    const char *name;
    int64_t rows, cols;
    pattern in, out;
    bool in_place; /* out is x forward and dy backward */
    bool layout;   /* checks the walk over memory, which all activations share */
} test_case;

/* clang-format off */
static const test_case cases[] = {
    { "one element",       1,     1, DENSE,      DENSE,      false, false },
    { "dense",             1,     7, DENSE,      DENSE,      false, false },
    { "dense",             1,   257, DENSE,      DENSE,      false, false },
    { "dense",             1, 65537, DENSE,      DENSE,      false, false },
    { "offset",            1,  1000, OFFSET,     OFFSET,     false, true },
    { "in place",          1,  1000, DENSE,      DENSE,      true,  true },
    { "pitched",          33,   129, PITCHED,    PITCHED,    false, true },
    { "transposed input", 65,    64, TRANSPOSED, DENSE,      false, true },
    { "transposed output", 65,   64, DENSE,      TRANSPOSED, false, true },
    { "broadcast input",  17,   130, BROADCAST,  DENSE,      false, true },
};
/* clang-format on */

enum { CASES = sizeof cases / sizeof cases[0], MAX_ELEMENTS = 65537, DTYPES = ATTO_BF16 };

/* clang-format off */
static const check_op ops[] = {
#define X(NAME, name, parameters, a, b, default_a, default_b, rule)                                \
    { #name, { ATTO_ACT_##NAME, default_a, default_b }, 0.0f, CHECK_ACT, 0 },
    ATTO_ACTIVATION_TABLE(X)
#undef X
    { "gelu+dropout", { ATTO_ACT_GELU,     0.0f, 0.0f }, 0.5f, CHECK_ACT,     0 },
    { "dropout",      { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.3f, CHECK_DROPOUT, 0 },
#define X(NAME, name) { #name, { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_UNARY, ATTO_UNARY_##NAME },
    ATTO_UNARY_TABLE(X)
#undef X
#define X(NAME, name, gradient) \
    { #name, { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_BINARY, ATTO_BINARY_##NAME },
    ATTO_BINARY_TABLE(X)
#undef X
    { "linear",       { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_LINEAR, 0 },
    { "linear+gelu",  { ATTO_ACT_GELU,     0.0f, 0.0f }, 0.5f, CHECK_LINEAR, 0 },
    { "matmul",       { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_MATMUL, 0 },
    { "attention",    { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_ATTENTION, 0 },
    { "cross_entropy", { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_CROSS_ENTROPY, 0 },
#define X(NAME, name) { #name, { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_SOFTMAX, ATTO_SOFTMAX_##NAME },
    ATTO_SOFTMAX_TABLE(X)
#undef X
    { "glu",          { ATTO_ACT_SIGMOID,  0.0f, 0.0f }, 0.0f, CHECK_GLU,    0 },
    { "glu+silu",     { ATTO_ACT_SILU,     0.0f, 0.0f }, 0.0f, CHECK_GLU,    0 },
    { "layer_norm",   { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_LAYER_NORM, 0 },
    { "rms_norm",     { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_RMS_NORM, 0 },
    { "batch_norm",   { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_BATCH_NORM, 0 },
    { "group_norm",   { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_GROUP_NORM, 0 },
    { "conv",         { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_CONV, 0 },
    { "conv_transpose", { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_CONV, 1 },
    { "avg_pool",     { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_POOL, 0 },
    { "max_pool",     { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_POOL, 1 },
#define X(NAME, name, rule) \
    { #name, { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_LOSS, ATTO_LOSS_##NAME },
    ATTO_LOSS_TABLE(X)
#undef X
    { "index_select", { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_INDEX, 0 },
    { "gather",       { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_INDEX, 1 },
    { "rope",         { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_ROPE, 0 },
    { "rope pairs",   { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_ROPE, 1 },
#define X(NAME, name) \
    { "pad " #name, { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_PAD, ATTO_PAD_##NAME },
    ATTO_PAD_TABLE(X)
#undef X
    { "resize nearest", { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_RESIZE, 0 },
    { "resize linear",  { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_RESIZE, 1 },
    { "resize aligned", { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_RESIZE, 2 },
    { "nll_loss",     { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_LOSS, CHECK_NLL },
    { "lstm cell",    { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_RNN, 0 },
    { "gru cell",     { ATTO_ACT_IDENTITY, 0.0f, 0.0f }, 0.0f, CHECK_RNN, 1 },
};
/* clang-format on */

enum { OPS = sizeof ops / sizeof ops[0] };

typedef struct request {
    const char *device, *filter, *json_path;
    bool all, full;
    int64_t huge; /* elements; 0 = the usual cases */
} request;

/* One device under test, its reference, and room for the data of a case. */
typedef struct selftest {
    atto_device *dev;
    atto_device *reference;
    const request *request;
    float x[MAX_ELEMENTS], dy[MAX_ELEMENTS], got[MAX_ELEMENTS], want[MAX_ELEMENTS];
    float raw_x[MAX_ELEMENTS], raw_dy[MAX_ELEMENTS], raw_got[MAX_ELEMENTS], raw_want[MAX_ELEMENTS];
} selftest;

static const atto_rng rng = { .seed = 7, .offset = 3 };

/* A view of uninitialised memory in that pattern. */
static atto_status make_view(atto_device *dev, atto_dtype dtype, const test_case *c, pattern how,
                             atto_tensor *out)
{
    const int64_t pitch = how == PITCHED ? c->cols + 3 : c->cols;
    const int64_t first = how == OFFSET ? 1 : 0;
    atto_tensor flat;
    const atto_status status =
        atto_tensor_alloc(dev, dtype, atto_shape1(c->rows * pitch + first), &flat);
    if (status != ATTO_OK) return status;
    *out = atto_tensor_of(flat.buffer, dtype, atto_shape2(c->rows, c->cols), first);
    out->stride[0] = how == TRANSPOSED ? 1 : how == BROADCAST ? 0 : pitch;
    if (how == TRANSPOSED) out->stride[1] = c->rows;
    return ATTO_OK;
}

static atto_status make_input(atto_device *dev, atto_dtype dtype, const test_case *c,
                              const void *data, atto_tensor *out)
{
    atto_status status = make_view(dev, dtype, c, c->in, out);
    atto_tensor stored = *out;
    if (c->in == BROADCAST) stored.shape[0] = 1; /* data repeats its first row */
    if (c->in == BROADCAST) stored.stride[0] = c->cols;
    if (status == ATTO_OK) status = atto_tensor_write(&stored, data);
    return status;
}

/* NaN first, so that an element that nobody writes shows. */
static atto_status make_output(atto_device *dev, atto_dtype dtype, const test_case *c,
                               atto_tensor *out)
{
    const atto_status status = make_view(dev, dtype, c, c->out, out);
    return status == ATTO_OK ? atto_tensor_fill(out, NAN) : status;
}

static atto_status run_views(selftest *s, const check_op *op, bool backward, atto_dtype dtype,
                             const test_case *c)
{
    atto_tensor x = { 0 }, dy = { 0 }, out = { 0 };
    const atto_tensor *target = !c->in_place ? &out : backward ? &dy : &x;
    atto_status status = make_input(s->dev, dtype, c, s->raw_x, &x);
    if (status == ATTO_OK) status = make_input(s->dev, dtype, c, s->raw_dy, &dy);
    if (status == ATTO_OK) status = make_output(s->dev, dtype, c, &out);
    if (status == ATTO_OK) status = check_call(s->dev, op, backward, rng, &x, &dy, target);
    if (status == ATTO_OK) status = atto_tensor_read(target, s->raw_got);
    atto_tensor_free(&x);
    atto_tensor_free(&dy);
    atto_tensor_free(&out);
    return status;
}

/* Ordinary values, and where there is room the ones that formulas stumble over. */
static void make_data(selftest *s, const test_case *c)
{
    static const float specials[] = { 0.0f,   -0.0f, 0.5f,  -0.5f, 1.0f,     -1.0f,
                                      3.0f,   -3.0f, 6.0f,  20.0f, -20.0f,   90.0f,
                                      -90.0f, 1e4f,  -1e4f, NAN,   INFINITY, -INFINITY };
    const int64_t n = c->rows * c->cols;
    bench_normal(s->x, n, 1);
    bench_normal(s->dy, n, 2);
    for (int64_t i = 0; i < n; i++) s->x[i] *= 3;
    if (c->cols >= 64) memcpy(s->x, specials, sizeof specials);
    if (c->in != BROADCAST) return;
    for (int64_t i = c->cols; i < n; i++) s->x[i] = s->x[i - c->cols];
    for (int64_t i = c->cols; i < n; i++) s->dy[i] = s->dy[i - c->cols];
}

/* Rounds the data to the dtype; x and dy then hold what both devices will read. */
static atto_status round_data(selftest *s, atto_dtype dtype, int64_t n)
{
    atto_status status = check_narrow(s->reference, s->x, dtype, n, s->raw_x);
    if (status == ATTO_OK) status = check_narrow(s->reference, s->dy, dtype, n, s->raw_dy);
    if (status == ATTO_OK) status = check_widen(s->reference, s->raw_x, dtype, n, s->x);
    if (status == ATTO_OK) status = check_widen(s->reference, s->raw_dy, dtype, n, s->dy);
    return status;
}

static atto_status run_case(selftest *s, const check_op *op, bool backward, atto_dtype dtype,
                            const test_case *c, check_worst *out)
{
    const int64_t n = c->rows * c->cols;
    make_data(s, c);
    atto_status status = round_data(s, dtype, n);
    if (status == ATTO_OK)
        status = check_call_host(s->reference, op, backward, rng, dtype, n, s->raw_x, s->raw_dy,
                                 s->raw_want);
    if (status == ATTO_OK) status = run_views(s, op, backward, dtype, c);
    if (status == ATTO_OK) status = check_widen(s->reference, s->raw_got, dtype, n, s->got);
    if (status == ATTO_OK) status = check_widen(s->reference, s->raw_want, dtype, n, s->want);
    if (status == ATTO_OK)
        *out = check_compare(op, dtype, n, s->x, backward ? s->dy : NULL, s->got, s->want);
    return status;
}

/* Layouts are the same code for every activation, so a few stand for all. */
static bool wanted(const selftest *s, const check_op *op, const test_case *c)
{
    const atto_activation_kind kind = op->act.kind;
    if (op->family == CHECK_BINARY && op->kind == ATTO_BINARY_MUL) return true;
    return s->request->full || !c->layout || op->dropout > 0 || kind == ATTO_ACT_RELU ||
           kind == ATTO_ACT_GELU || kind == ATTO_ACT_LEAKY_RELU;
}

static void explain(const check_op *op, bool backward, atto_dtype dtype, const test_case *c,
                    const check_worst *w)
{
    printf("  %s %s %s, %s [%" PRId64 ",%" PRId64 "]: element %" PRId64 " is %.9g, expected %.9g\n",
           op->name, backward ? "backward" : "forward", atto_dtype_name(dtype), c->name, c->rows,
           c->cols, w->index, (double)w->got, (double)w->want);
}

/* The same for linear, which has shapes of its own. */
static double run_linear(selftest *s, const check_op *op, bool backward, atto_dtype dtype)
{
    check_worst w = { .ratio = INFINITY };
    char where[CHECK_WHERE];
    const atto_status status =
        check_linear(s->dev, s->reference, op, backward, rng, dtype, &w, where);
    if (status != ATTO_OK)
        tool_fail(op->name, status);
    else if (w.ratio > 1)
        printf("  %s %s %s, %s: element %" PRId64 " is %.9g, expected %.9g\n", op->name,
               backward ? "backward" : "forward", atto_dtype_name(dtype), where, w.index,
               (double)w.got, (double)w.want);
    return w.ratio;
}

/* Worst ratio over the cases; a call that fails counts as infinite. */
static double run_cell(selftest *s, const check_op *op, bool backward, atto_dtype dtype)
{
    double ratio = 0;
    if (op->family == CHECK_LINEAR) return run_linear(s, op, backward, dtype);
    if (op->family == CHECK_CROSS_ENTROPY || op->family == CHECK_LOSS) {
        const atto_status status =
            op->family == CHECK_LOSS
                ? check_loss(s->dev, s->reference, op->kind, backward, dtype, &ratio)
                : check_cross_entropy(s->dev, s->reference, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_SOFTMAX || op->family == CHECK_GLU) {
        const atto_status status = check_rows(s->dev, s->reference, op, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family >= CHECK_LAYER_NORM && op->family <= CHECK_GROUP_NORM) {
        const atto_status status =
            check_norm(s->dev, s->reference, op->family, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }

    if (op->family == CHECK_INDEX) {
        const atto_status status =
            check_index(s->dev, s->reference, op->kind == 1, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_ROPE) {
        const atto_status status =
            check_rope(s->dev, s->reference, op->kind == 1, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_RNN) {
        const atto_status status =
            check_rnn(s->dev, s->reference, op->kind == 1, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_MATMUL) {
        const atto_status status = check_matmul(s->dev, s->reference, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_ATTENTION) {
        const atto_status status = check_attention(s->dev, s->reference, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_PAD || op->family == CHECK_RESIZE) {
        const atto_status status = check_image(s->dev, s->reference, op, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_CONV) {
        const atto_status status =
            check_conv(s->dev, s->reference, op->kind == 1, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    if (op->family == CHECK_POOL) {
        const atto_status status =
            check_pool(s->dev, s->reference, op->kind == 1, backward, dtype, &ratio);
        if (status != ATTO_OK) tool_fail(op->name, status);
        return ratio;
    }
    for (int i = 0; i < CASES; i++) {
        check_worst worst = { .ratio = INFINITY };
        if (!wanted(s, op, &cases[i])) continue;
        const atto_status status = run_case(s, op, backward, dtype, &cases[i], &worst);
        if (status != ATTO_OK)
            tool_fail(op->name, status);
        else if (worst.ratio > 1)
            explain(op, backward, dtype, &cases[i], &worst);
        if (worst.ratio > ratio) ratio = worst.ratio;
    }
    return ratio;
}

static void json_cells(json *j, const check_op *op, bool backward, const double *ratio)
{
    if (j->file == NULL) return;
    json_open_object(j, NULL);
    json_string(j, "op", op->name);
    json_string(j, "pass", backward ? "backward" : "forward");
    for (int dtype = ATTO_F32; dtype <= DTYPES; dtype++)
        json_number(j, atto_dtype_name((atto_dtype)dtype), ratio[dtype]);
    json_close_object(j);
}

static bool run_line(selftest *s, const check_op *op, bool backward, json *j)
{
    double ratio[DTYPES + 1];
    bool ok = true;
    for (int dtype = ATTO_F32; dtype <= DTYPES; dtype++) {
        tool_progress("%s %s %s", op->name, backward ? "backward" : "forward",
                      atto_dtype_name((atto_dtype)dtype));
        ratio[dtype] = run_cell(s, op, backward, (atto_dtype)dtype);
        ok = ok && ratio[dtype] <= 1;
    }
    tool_progress(NULL);
    printf("%-13s %-8s %8.3f %8.3f %8.3f  %s\n", op->name, backward ? "backward" : "forward",
           ratio[ATTO_F32], ratio[ATTO_F16], ratio[ATTO_BF16], ok ? "PASS" : "FAIL");
    fflush(stdout);
    json_cells(j, op, backward, ratio);
    return ok;
}

static bool run_ops(selftest *s, json *j)
{
    const char *filter = s->request->filter;
    bool ok = true;
    printf("%-13s %-8s %8s %8s %8s\n", "op", "pass", "f32", "f16", "bf16");
    for (int i = 0; i < OPS; i++) {
        if (filter != NULL && strstr(ops[i].name, filter) == NULL) continue;
        ok = run_line(s, &ops[i], false, j) && ok;
        ok = run_line(s, &ops[i], true, j) && ok;
    }
    return ok;
}

static atto_status open_both(const char *device, selftest *s, atto_device_info *info)
{
    const atto_device_options base = { .ignore_environment = true, .cpu_level = "base" };
    const atto_device_options strict = { .no_fallback = true };
    atto_status status = atto_device_open("cpu", &base, &s->reference);
    if (status == ATTO_OK) status = atto_device_open(device, &strict, &s->dev);
    if (status == ATTO_OK) status = atto_device_describe(s->dev, info);
    return status;
}

static void json_begin(json *j, const atto_device_info *info)
{
    if (j->file == NULL) return;
    json_open_object(j, NULL);
    tool_json_header(j, info);
    json_open_array(j, "worst_error_over_tolerance");
}

static void json_end(json *j, bool ok)
{
    if (j->file == NULL) return;
    json_close_array(j);
    json_bool(j, "pass", ok);
    json_close_object(j);
}

static bool run_open(selftest *s, const atto_device_info *info, json *j)
{
    printf("%s, %s %s\n", info->name, info->platform, info->version);
    json_begin(j, info);
    const bool ok = run_ops(s, j);
    json_end(j, ok);
    printf("%s: %s\n\n", info->name, ok ? "PASS" : "FAIL");
    return ok;
}

static int run_device(const char *device, const request *r, json *j)
{
    selftest *s = calloc(1, sizeof *s);
    atto_device_info info;
    bool ok = false;
    if (s == NULL) return tool_fail("selftest", ATTO_E_MEMORY);
    s->request = r;
    const atto_status status = open_both(device, s, &info);
    if (status == ATTO_OK)
        ok = run_open(s, &info, j);
    else
        tool_fail("opening the device", status);
    atto_device_close(s->dev);
    atto_device_close(s->reference);
    free(s);
    return ok ? TOOL_OK : TOOL_FAILED;
}

/* Devices with a problem are named and skipped. */
static int run_all(const request *r, json *j)
{
    int32_t n;
    int code = TOOL_OK;
    atto_device_info *infos = tool_list(NULL, &n);
    if (infos == NULL) return TOOL_FAILED;
    for (int32_t i = 0; i < n; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", (int)infos[i].index);
        if (infos[i].problem[0])
            printf("%s: SKIP, %s\n\n", infos[i].name, infos[i].problem);
        else if (run_device(number, r, j) != TOOL_OK)
            code = TOOL_FAILED;
    }
    free(infos);
    return code;
}

static bool any_op(const char *filter)
{
    for (int i = 0; i < OPS; i++)
        if (filter == NULL || strstr(ops[i].name, filter) != NULL) return true;
    return false;
}

static int run(const request *r)
{
    json j = { .file = NULL };
    if (!any_op(r->filter)) return tool_misuse("selftest", "no op contains '%s'", r->filter);
    if (r->huge > 0) return tool_selftest_huge(r->device, r->huge);
    if (r->json_path != NULL && !json_open(&j, r->json_path)) return TOOL_FAILED;
    if (j.file != NULL) json_open_array(&j, NULL);
    int code = r->all ? run_all(r, &j) : run_device(r->device, r, &j);
    if (j.file != NULL) json_close_array(&j);
    if (j.file != NULL && !json_finish(&j, r->json_path)) code = TOOL_FAILED;
    return code;
}

static const struct option long_options[] = {
    { "device", required_argument, NULL, 'd' }, { "all", no_argument, NULL, 'a' },
    { "filter", required_argument, NULL, 'f' }, { "full", no_argument, NULL, 'F' },
    { "huge", optional_argument, NULL, 'H' },   { "json", required_argument, NULL, 'j' },
    { "help", no_argument, NULL, 'h' },         { NULL, 0, NULL, 0 },
};

/* TOOL_OK, TOOL_USAGE after a message, or -1 after --help. */
static int parse_option(int option, request *r)
{
    switch (option) {
    case 'd':
        r->device = optarg;
        break;
    case 'a':
        r->all = true;
        break;
    case 'f':
        r->filter = optarg;
        break;
    case 'F':
        r->full = true;
        break;
    case 'j':
        r->json_path = optarg;
        break;
    case 'h':
        fputs(usage, stdout);
        return -1;
    case 'H':
        r->huge = optarg == NULL ? 2147483655 : tool_parse_count(optarg, (int64_t)1 << 40);
        if (r->huge < 1)
            return tool_misuse("selftest", "--huge is '%s', expected a number", optarg);
        break;
    default:
        return tool_bad_option("selftest");
    }
    return TOOL_OK;
}

int tool_selftest(int argc, char **argv)
{
    request r = { .device = NULL };
    int option;
    while ((option = getopt_long(argc, argv, "d:af:Fj:h", long_options, NULL)) != -1) {
        const int code = parse_option(option, &r);
        if (code != TOOL_OK) return code < 0 ? TOOL_OK : code;
    }
    if (optind < argc) return tool_misuse("selftest", "unexpected argument '%s'", argv[optind]);
    if (r.device && r.all) return tool_misuse("selftest", "--all and --device exclude each other");
    if (r.json_path && !tool_can_write(r.json_path)) return TOOL_FAILED;
    return run(&r);
}
