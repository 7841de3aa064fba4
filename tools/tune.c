/* SPDX-License-Identifier: MIT */
/* attocl tune: brings up calls, which the library measures in all their ways. */
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "tool.h"

static const char usage[] =
    "Usage: attocl tune [OPTION]...\n"
    "Runs ops on a device in all the ways that the library knows, compares their results, and "
    "writes\n"
    "down the fastest, beside the kernel cache; every later process on this device uses them. Sums "
    "are\n"
    "then rounded in another order than before: results differ in their last bits.\n\n"
    "  -d, --device NAME    as atto_device_open takes it (default: auto)\n"
    "  -f, --filter TEXT    only ops whose line of --list contains TEXT\n"
    "  -t, --dtype DTYPE    only f32, f16 or bf16 (default: all three)\n"
    "  -n, --size N         elements per tensor (default: 67108864 on GPUs, twice that in 16 "
    "bits,\n"
    "                       16777216 on CPUs)\n"
    "  -v, --verbose        the time of every way\n"
    "  -l, --list           list what would be run\n"
    "  -h, --help           this text\n";

#define MAX_CASES 4096

/* Lengths that ops on rows are measured with, beside those of the benchmarks. */
static const int64_t lengths[] = {
    64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072
};
#define LENGTHS ((int32_t)(sizeof lengths / sizeof lengths[0]))

static const char *const row_ops[] = { "softmax", "cross_entropy", "layer_norm", "rms_norm" };
#define ROW_OPS ((int32_t)(sizeof row_ops / sizeof row_ops[0]))

typedef struct request {
    const char *device;
    bench_options bench;
    bool list, verbose;
} request;

typedef struct plan {
    int32_t count;
    bench_case cases[MAX_CASES];
    int32_t row_count;
    bench_row rows[MAX_CASES]; /* those with lengths of their own */
} plan;

/* ---- what to run ---- */

static bool is_row_op(const bench_row *row)
{
    for (int32_t i = 0; i < ROW_OPS; i++)
        if (strcmp(row->op, row_ops[i]) == 0) return true;
    return false;
}

static void add_case(plan *p, const bench_case *c)
{
    if (p->count < MAX_CASES) p->cases[p->count++] = *c;
}

/* The row with every length, in about as many elements as it has. */
static void add_lengths(plan *p, const bench_case *c)
{
    const int64_t elements = c->row->rows * c->row->cols;
    for (int32_t i = 0; i < LENGTHS && p->row_count < MAX_CASES; i++) {
        bench_row *row = &p->rows[p->row_count++];
        *row = *c->row;
        row->cols = lengths[i];
        row->rows = elements / lengths[i];
        add_case(p, &(bench_case){ row, c->dtype });
    }
}

static bool is_own(const plan *p, const bench_row *row)
{
    return row >= p->rows && row < p->rows + p->row_count;
}

static bool is_repeated(const plan *p, const bench_case *c)
{
    for (int32_t i = 0; i < p->count; i++) {
        const bench_row *row = p->cases[i].row;
        if (is_own(p, row) && p->cases[i].dtype == c->dtype && strcmp(row->op, c->row->op) == 0 &&
            strcmp(row->pass, c->row->pass) == 0)
            return true;
    }
    return false;
}

static void make_plan(const bench_options *options, plan *p)
{
    static bench_case found[MAX_CASES];
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++) {
        bench_options one = *options;
        if (options->dtype && options->dtype != (atto_dtype)dtype) continue;
        one.dtype = (atto_dtype)dtype;
        int32_t n = bench_plan(&one, found, MAX_CASES);
        if (n > MAX_CASES) n = MAX_CASES;
        for (int32_t i = 0; i < n; i++) {
            if (found[i].dtype != one.dtype) continue;
            const bool more = is_row_op(found[i].row) && !is_repeated(p, &found[i]);
            add_case(p, &found[i]);
            if (more) add_lengths(p, &found[i]);
        }
    }
}

static void case_text(const bench_case *c, char *out, size_t size)
{
    bench_case_text(c, out, size);
    const size_t used = strlen(out);
    if (c->row->cols > 0 && used < size)
        snprintf(out + used, size - used, " rows of %" PRId64, c->row->cols);
}

/* ---- running it ---- */

typedef struct report {
    bool verbose;
    int32_t settled;
} report;

static bool starts(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

/* What the library says while it measures goes to standard output, without what it says of
 * kernels. */
static void print_log(void *data, atto_log_level level, const char *message)
{
    report *r = data;
    const bool detail = starts(message, "built ") || starts(message, "loaded ") ||
                        starts(message, "using ") || (starts(message, "tried ") && !r->verbose);
    if (level == ATTO_LOG_INFO && detail) return;
    tool_progress(NULL);
    puts(message);
    fflush(stdout);
    if (strstr(message, "ms, default ")) r->settled++;
}

static int run_cases(bench *b, const plan *p)
{
    int code = TOOL_OK;
    for (int32_t i = 0; i < p->count; i++) {
        char text[160];
        case_text(&p->cases[i], text, sizeof text);
        tool_progress("[%d/%d] %s", (int)i + 1, (int)p->count, text);
        const atto_status status = bench_run(b, &p->cases[i]);
        tool_progress(NULL);
        if (status == ATTO_OK) continue;
        code = tool_fail(text, status);
        if (status == ATTO_E_LOST) break;
    }
    return code;
}

static int tune(const request *r, const plan *p)
{
    bench b;
    report found = { .verbose = r->verbose };
    bench_options options = r->bench;
    options.log = print_log;
    options.log_data = &found;
    atto_status status = bench_open(r->device, &options, &b);
    if (status != ATTO_OK) return tool_fail("opening the device", status);
    if (b.info.kind == ATTO_KIND_CPU) {
        printf("%s: the CPU backend has nothing to choose\n", b.info.name);
        bench_close(&b);
        return TOOL_OK;
    }
    printf("%s, %s %s, driver %s\n", b.info.name, b.info.platform, b.info.version,
           b.info.driver[0] ? b.info.driver : "-");
    status = atto_device_tune(b.dev, true);
    int code = status == ATTO_OK ? run_cases(&b, p) : tool_fail("tuning", status);
    if (status == ATTO_OK) status = atto_device_tune(b.dev, false);
    if (status != ATTO_OK && code == TOOL_OK) code = tool_fail("tuning", status);
    printf("%d choices measured\n", (int)found.settled);
    bench_close(&b);
    return code;
}

static int list_cases(const plan *p)
{
    for (int32_t i = 0; i < p->count; i++) {
        char text[160];
        case_text(&p->cases[i], text, sizeof text);
        puts(text);
    }
    return TOOL_OK;
}

/* ---- options ---- */

static const struct option long_options[] = {
    { "device", required_argument, NULL, 'd' }, { "filter", required_argument, NULL, 'f' },
    { "dtype", required_argument, NULL, 't' },  { "size", required_argument, NULL, 'n' },
    { "verbose", no_argument, NULL, 'v' },      { "list", no_argument, NULL, 'l' },
    { "help", no_argument, NULL, 'h' },         { NULL, 0, NULL, 0 },
};

/* Negative: done, with success. */
static int parse_option(int option, request *r)
{
    switch (option) {
    case 'd':
        r->device = optarg;
        return TOOL_OK;
    case 'f':
        r->bench.filter = optarg;
        return TOOL_OK;
    case 't':
        r->bench.dtype = tool_parse_dtype(optarg);
        if (r->bench.dtype) return TOOL_OK;
        return tool_misuse("tune", "--dtype is '%s', expected f32, f16 or bf16", optarg);
    case 'n':
        r->bench.elements = tool_parse_count(optarg, INT64_C(1) << 40);
        if (r->bench.elements > 0) return TOOL_OK;
        return tool_misuse("tune", "--size is '%s', expected a positive number", optarg);
    case 'v':
        r->verbose = true;
        return TOOL_OK;
    case 'l':
        r->list = true;
        return TOOL_OK;
    case 'h':
        fputs(usage, stdout);
        return -1;
    default:
        return tool_bad_option("tune");
    }
}

int tool_tune(int argc, char **argv)
{
    static plan p;
    request r = { .device = NULL };
    int option;
    while ((option = getopt_long(argc, argv, "d:f:t:n:vlh", long_options, NULL)) != -1) {
        const int code = parse_option(option, &r);
        if (code != TOOL_OK) return code < 0 ? TOOL_OK : code;
    }
    if (optind < argc) return tool_misuse("tune", "unexpected argument '%s'", argv[optind]);
    make_plan(&r.bench, &p);
    if (p.count == 0) return tool_misuse("tune", "nothing contains '%s'", r.bench.filter);
    return r.list ? list_cases(&p) : tune(&r, &p);
}
