/* SPDX-License-Identifier: MIT */
/* attocl bench: options, the table on the terminal, CSV and JSON. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "peer.h"
#include "tool.h"

static const char usage[] =
    "Usage: attocl bench [OPTION]...\n"
    "Measures ops on a device and compares each with the time that its bytes need at the least.\n\n"
    "  -d, --device NAME    as atto_device_open takes it (default: auto)\n"
    "  -f, --filter TEXT    only rows whose line of --list contains TEXT\n"
    "  -t, --dtype DTYPE    every row on f32, f16 or bf16 instead of the usual choice\n"
    "  -n, --size N         elements per tensor (default: 67108864 on GPUs, twice that in 16 "
    "bits,\n"
    "                       16777216 on CPUs);\n"
    "                       matrices have no more than that, and a shape of rows x outputs x "
    "inputs\n"
    "  -s, --samples N      timed samples per row (default: 25)\n"
    "  -q, --quick          an eighth of the elements (unless --size) and 7 samples: for a look,\n"
    "                       not for figures\n"
    "  -c, --csv            comma-separated values instead of a table\n"
    "  -j, --json FILE      write JSON as well (- is standard output, then without the table)\n"
    "  -l, --list           list the rows that would run\n"
    "\nBeside others, each row right after ours (needs PyTorch; a CUDA device for GPUs):\n"
    "      --compare LIST   torch, attorch, or both: torch,attorch\n"
    "      --attorch DIR    the folder that holds attorch's package\n"
    "      --python PATH    the interpreter that has PyTorch (default: python3)\n"
    "      --cuda N         the GPU that they use, as CUDA counts (default: 0)\n"
    "      --timeout S      seconds that an answer of theirs may take (default: 600)\n"
    "      --picture FILE   draw the shares of the floor (.svg, .png, .pdf; needs --json FILE and\n"
    "                       matplotlib)\n"
    "\nInstead of the table:\n"
    "      --cpu-math       the CPU's formulas in cache and GELU in memory; fails when too slow\n"
    "      --cpu-level L    with --cpu-math: at most base, avx2 or avx512\n"
    "      --first-call     time to open a device and to finish the first call, cold and warm\n"
    "\n  -h, --help           this text\n";

typedef enum style { STYLE_TABLE, STYLE_CSV, STYLE_SILENT } style;

typedef struct request {
    const char *device;
    const char *json_path;
    const char *cpu_level;
    const char *picture_path;
    bench_options bench;
    peer_options peers;
    bool compares;
    bool csv, list, cpu_math, first_call, first_call_child;
} request;

#define MAX_CASES 1024

/* A measured case or its failure. */
typedef struct outcome {
    bench_case which;
    atto_status status;
    bench_result result;
    double peer_ms[PEER_COUNT]; /* NAN: not asked, or no answer */
} outcome;

static void shape_text(atto_shape shape, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int32_t i = 0; i < shape.rank && used < bytes; i++)
        used +=
            (size_t)snprintf(out + used, bytes - used, "%s%" PRId64, i ? "x" : "", shape.dim[i]);
}

static const char *note(const bench_result *r)
{
    if (r->latency) return "latency";
    if (r->hidden_copies) return "hidden copies";
    return r->noisy ? "noisy" : "";
}

/* The table and the CSV. */

static void print_head(style how, const peer_options *peers)
{
    if (how == STYLE_TABLE)
        printf("%-13s %-8s %-5s %-10s %-14s %9s %9s %8s %9s %9s %9s", "op", "pass", "dtype",
               "layout", "shape", "median ms", "min ms", "GB/s", "floor ms", "of ceiling",
               "TFLOP/s");
    if (how == STYLE_CSV)
        printf("op,pass,dtype,layout,shape,median_ms,min_ms,gb_per_s,floor_ms,fraction,tflop_per_s,"
               "samples,launches,note");
    for (int i = 0; i < PEER_COUNT; i++) {
        if (!peers->wanted[i]) continue;
        if (how == STYLE_TABLE) printf(" %9s ms   x", peer_name(i));
        if (how == STYLE_CSV) printf(",%s_ms", peer_name(i));
    }
    if (how != STYLE_SILENT) puts("");
}

/* A failure has as many columns as a result. */
static void print_failure(style how, const outcome *o, const peer_options *peers)
{
    const bench_row *row = o->which.row;
    const char *format =
        how == STYLE_TABLE ? "%-13s %-8s %-5s %-10s %s" : "%s,%s,%s,%s,,,,,,,,,,%s";
    printf(format, row->op, row->pass, atto_dtype_name(o->which.dtype),
           bench_layout_name(row->layout), atto_status_name(o->status));
    for (int i = 0; i < PEER_COUNT; i++)
        if (how == STYLE_CSV && peers->wanted[i]) putchar(',');
    puts("");
}

static void print_result(style how, const outcome *o)
{
    const bench_row *row = o->which.row;
    const bench_result *r = &o->result;
    char shape[64];
    shape_text(r->shape, shape, sizeof shape);
    const char *format = how == STYLE_TABLE
                             ? "%-13s %-8s %-5s %-10s %-14s %9.4f %9.4f %8.1f %9.4f %9.2f"
                             : "%s,%s,%s,%s,%s,%.6g,%.6g,%.6g,%.6g,%.4g";
    printf(format, row->op, row->pass, atto_dtype_name(o->which.dtype),
           bench_layout_name(row->layout), shape, r->median_ms, r->min_ms, r->gb_per_s, r->floor_ms,
           r->fraction);
    char speed[32] = ""; /* of the arithmetic: only where there are matrices */
    if (r->tflop_per_s > 0) snprintf(speed, sizeof speed, "%.4g", r->tflop_per_s);
    if (how == STYLE_CSV)
        printf(",%s,%d,%d,%s", speed, (int)r->samples, (int)r->launches, note(r));
    else
        printf(" %9s", speed);
}

/* Its time, and how many times ours it is. */
static void print_peers(style how, const outcome *o, const peer_options *peers)
{
    for (int i = 0; i < PEER_COUNT; i++) {
        if (!peers->wanted[i]) continue;
        const double ms = o->peer_ms[i];
        if (how == STYLE_CSV && isnan(ms))
            putchar(',');
        else if (how == STYLE_CSV)
            printf(",%.6g", ms);
        else if (isnan(ms))
            printf(" %12s %5s", "-", "");
        else
            printf(" %12.4f %5.2f", ms, ms / o->result.median_ms);
    }
}

static void print_outcome(style how, const outcome *o, const peer_options *peers)
{
    if (how == STYLE_SILENT) return;
    if (o->status == ATTO_OK) {
        print_result(how, o);
        print_peers(how, o, peers);
        printf(how == STYLE_TABLE ? "  %s\n" : "\n", note(&o->result));
    } else {
        print_failure(how, o, peers);
    }
    fflush(stdout);
}

static void print_ceilings(style how, const bench *b)
{
    if (how != STYLE_TABLE) return;
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++)
        if (b->ceiling[dtype].how != NULL)
            printf("ceiling %s: %.1f GB/s (%s)\n", atto_dtype_name((atto_dtype)dtype),
                   b->ceiling[dtype].gb_per_s, b->ceiling[dtype].how);
    if (b->options.quick) puts("quick: for a look, not for figures");
}

/* JSON. */

/* null: no counterpart, or no answer. */
static void json_peers(json *j, const outcome *o, const peer_options *peers)
{
    for (int i = 0; i < PEER_COUNT; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_ms", peer_name(i));
        if (peers->wanted[i]) json_number(j, key, o->peer_ms[i]);
    }
}

static void json_outcome(json *j, const outcome *o, const peer_options *peers)
{
    const bench_row *row = o->which.row;
    const bench_result *r = &o->result;
    char shape[64];
    shape_text(r->shape, shape, sizeof shape);
    json_open_object(j, NULL);
    json_string(j, "op", row->op);
    json_string(j, "pass", row->pass);
    json_string(j, "dtype", atto_dtype_name(o->which.dtype));
    json_string(j, "layout", bench_layout_name(row->layout));
    if (o->status == ATTO_OK) {
        json_string(j, "shape", shape);
        json_number(j, "bytes", r->bytes);
        json_number(j, "flops", r->flops);
        json_number(j, "ms", r->median_ms);
        json_number(j, "min_ms", r->min_ms);
        json_number(j, "gb_per_s", r->gb_per_s);
        if (r->tflop_per_s > 0) json_number(j, "tflop_per_s", r->tflop_per_s);
        json_number(j, "floor_ms", r->floor_ms);
        json_number(j, "fraction", r->fraction);
        json_integer(j, "samples", r->samples);
        json_integer(j, "launches_per_sample", r->launches);
        json_bool(j, "latency", r->latency);
        json_bool(j, "hidden_copies", r->hidden_copies);
        json_bool(j, "noisy", r->noisy);
        json_peers(j, o, peers);
    } else {
        json_string(j, "error", atto_status_name(o->status));
    }
    json_close_object(j);
}

static void json_ceilings(json *j, const bench *b)
{
    json_open_object(j, "ceilings");
    for (int dtype = ATTO_F32; dtype <= ATTO_BF16; dtype++) {
        if (b->ceiling[dtype].how == NULL) continue;
        json_open_object(j, atto_dtype_name((atto_dtype)dtype));
        json_number(j, "gb_per_s", b->ceiling[dtype].gb_per_s);
        json_string(j, "how", b->ceiling[dtype].how);
        json_close_object(j);
    }
    json_close_object(j);
}

/* beside: what the peers said they are; NULL where none was asked. */
static bool write_json(const request *r, const bench *b, const char *beside,
                       const outcome *outcomes, int32_t n)
{
    json j;
    if (!json_open(&j, r->json_path)) return false;
    json_open_object(&j, NULL);
    tool_json_header(&j, &b->info);
    json_integer(&j, "elements", b->options.elements);
    json_string(&j, "clock", b->events ? "device" : "wall");
    json_bool(&j, "quick", b->options.quick);
    if (beside) json_string(&j, "beside", beside);
    json_ceilings(&j, b);
    json_open_array(&j, "rows");
    for (int32_t i = 0; i < n; i++) json_outcome(&j, &outcomes[i], &r->peers);
    json_close_array(&j);
    json_close_object(&j);
    return json_finish(&j, r->json_path);
}

/* Running. */

/* Asks for those that are wanted; says why one has no figure. */
static void ask_peers(peer *p, const peer_options *wanted, outcome *o)
{
    for (int i = 0; i < PEER_COUNT; i++) {
        const char *reason;
        o->peer_ms[i] = (double)NAN;
        if (!p || !wanted->wanted[i] || o->status != ATTO_OK) continue;
        o->peer_ms[i] = peer_measure(p, i, &o->which, &o->result, &reason);
        if (isnan(o->peer_ms[i]))
            fprintf(stderr, "attocl bench: %s %s %s %s: %s\n", peer_name(i), o->which.row->op,
                    o->which.row->pass, atto_dtype_name(o->which.dtype), reason);
    }
}

/* What a run consists of. */
typedef struct run {
    const request *r;
    bench *b;
    peer *peers; /* NULL: none */
    style how;
} run;

/* Returns how many cases were tried; a lost device ends the run. */
static int32_t run_cases(const run *u, const bench_case *cases, int32_t n, outcome *outcomes,
                         int *code)
{
    for (int32_t i = 0; i < n; i++) {
        outcome *o = &outcomes[i];
        char text[128];
        bench_case_text(&cases[i], text, sizeof text);
        tool_progress("[%d/%d] %s", (int)i + 1, (int)n, text);
        o->which = cases[i];
        o->status = bench_measure(u->b, &cases[i], &o->result);
        ask_peers(u->peers, &u->r->peers, o);
        tool_progress(NULL);
        print_outcome(u->how, o, &u->r->peers);
        if (o->status == ATTO_OK) continue;
        *code = tool_fail(cases[i].row->op, o->status);
        if (o->status == ATTO_E_LOST) return i + 1;
    }
    return n;
}

/* The peers that --compare names; TOOL_FAILED after a message. */
static int start_peers(run *u)
{
    if (!u->r->compares) return TOOL_OK;
    u->peers = peer_start(&u->r->peers, u->b);
    if (!u->peers) return TOOL_FAILED;
    if (u->how == STYLE_TABLE) printf("beside %s\n", peer_versions(u->peers));
    return TOOL_OK;
}

static int run_open(run *u, const bench_case *cases, int32_t n)
{
    static outcome outcomes[MAX_CASES];
    const request *r = u->r;
    const bench *b = u->b;
    int code = TOOL_OK;
    if (u->how == STYLE_TABLE)
        printf("%s, %s %s, driver %s\n", b->info.name, b->info.platform, b->info.version,
               b->info.driver[0] ? b->info.driver : "-");
    if (start_peers(u) != TOOL_OK) return TOOL_FAILED;
    if (u->how == STYLE_TABLE) puts("");
    print_head(u->how, &r->peers);
    const int32_t tried = run_cases(u, cases, n, outcomes, &code);
    print_ceilings(u->how, b);
    if (u->peers && peer_is_lost(u->peers)) {
        fputs("attocl bench: the peer was lost; rows after that have our figures only\n", stderr);
        code = TOOL_FAILED;
    }
    const char *beside = u->peers ? peer_versions(u->peers) : NULL;
    if (r->json_path && !write_json(r, b, beside, outcomes, tried)) code = TOOL_FAILED;
    peer_stop(u->peers);
    if (r->picture_path && !peer_plot(&r->peers, r->json_path, r->picture_path)) code = TOOL_FAILED;
    return code;
}

static int list_cases(const bench_case *cases, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        char text[128];
        bench_case_text(&cases[i], text, sizeof text);
        puts(text);
    }
    return TOOL_OK;
}

static int run_rows(const request *r)
{
    static bench_case cases[MAX_CASES];
    int32_t n = bench_plan(&r->bench, cases, MAX_CASES);
    if (n > MAX_CASES) n = MAX_CASES;
    if (n == 0) return tool_misuse("bench", "no row contains '%s'", r->bench.filter);
    if (r->list) return list_cases(cases, n);
    bench b;
    const atto_status status = bench_open(r->device, &r->bench, &b);
    if (status != ATTO_OK) return tool_fail("opening the device", status);
    const bool to_stdout = r->json_path != NULL && strcmp(r->json_path, "-") == 0;
    run u = { r, &b, NULL, to_stdout ? STYLE_SILENT : r->csv ? STYLE_CSV : STYLE_TABLE };
    const int code = run_open(&u, cases, n);
    bench_close(&b);
    return code;
}

/* Options. */

enum {
    OPTION_CPU_MATH = 256,
    OPTION_CPU_LEVEL,
    OPTION_FIRST_CALL,
    OPTION_CHILD,
    OPTION_COMPARE,
    OPTION_ATTORCH,
    OPTION_PYTHON,
    OPTION_PICTURE,
    OPTION_CUDA,
    OPTION_TIMEOUT
};

static const struct option long_options[] = {
    { "device", required_argument, NULL, 'd' },
    { "filter", required_argument, NULL, 'f' },
    { "dtype", required_argument, NULL, 't' },
    { "size", required_argument, NULL, 'n' },
    { "samples", required_argument, NULL, 's' },
    { "quick", no_argument, NULL, 'q' },
    { "csv", no_argument, NULL, 'c' },
    { "json", required_argument, NULL, 'j' },
    { "list", no_argument, NULL, 'l' },
    { "compare", required_argument, NULL, OPTION_COMPARE },
    { "attorch", required_argument, NULL, OPTION_ATTORCH },
    { "python", required_argument, NULL, OPTION_PYTHON },
    { "picture", required_argument, NULL, OPTION_PICTURE },
    { "cuda", required_argument, NULL, OPTION_CUDA },
    { "timeout", required_argument, NULL, OPTION_TIMEOUT },
    { "cpu-math", no_argument, NULL, OPTION_CPU_MATH },
    { "cpu-level", required_argument, NULL, OPTION_CPU_LEVEL },
    { "first-call", no_argument, NULL, OPTION_FIRST_CALL },
    { "first-call-child", no_argument, NULL, OPTION_CHILD }, /* what --first-call starts */
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static bool parse_cuda(const char *text, int *number)
{
    *number = (int)tool_parse_count(text, 63);
    return *number > 0 || strcmp(text, "0") == 0;
}

/* Options with a value that can be wrong; TOOL_OK, or TOOL_USAGE after a message. */
static int parse_value(int option, request *r)
{
    if (option == 't' && (r->bench.dtype = tool_parse_dtype(optarg)) == 0)
        return tool_misuse("bench", "--dtype is '%s', expected f32, f16 or bf16", optarg);
    if (option == 'n' && (r->bench.elements = tool_parse_count(optarg, (int64_t)1 << 40)) == 0)
        return tool_misuse("bench", "--size is '%s', expected a positive number", optarg);
    if (option == 's' &&
        (r->bench.samples = (int32_t)tool_parse_count(optarg, BENCH_MAX_SAMPLES)) == 0)
        return tool_misuse("bench", "--samples is '%s', expected 1 to %d", optarg,
                           BENCH_MAX_SAMPLES);
    if (option == OPTION_CUDA && !parse_cuda(optarg, &r->peers.cuda_device))
        return tool_misuse("bench", "--cuda is '%s', expected 0 to 63", optarg);
    if (option == OPTION_TIMEOUT &&
        (r->peers.timeout_s = (int)tool_parse_count(optarg, 86400)) == 0)
        return tool_misuse("bench", "--timeout is '%s', expected 1 to 86400 seconds", optarg);
    if (option == OPTION_COMPARE && !peer_parse(optarg, &r->peers))
        return tool_misuse("bench", "--compare is '%s', expected torch, attorch or both", optarg);
    r->compares = r->compares || option == OPTION_COMPARE;
    return TOOL_OK;
}

/* TOOL_OK, TOOL_USAGE after a message, or -1 after --help. */
static int parse_option(int option, request *r)
{
    switch (option) {
    case 'd':
        r->device = optarg;
        break;
    case 'f':
        r->bench.filter = optarg;
        break;
    case 'q':
        r->bench.quick = true;
        break;
    case 'c':
        r->csv = true;
        break;
    case 'j':
        r->json_path = optarg;
        break;
    case 'l':
        r->list = true;
        break;
    case OPTION_CPU_MATH:
        r->cpu_math = true;
        break;
    case OPTION_CPU_LEVEL:
        r->cpu_level = optarg;
        break;
    case OPTION_FIRST_CALL:
        r->first_call = true;
        break;
    case OPTION_CHILD:
        r->first_call_child = true;
        break;
    case OPTION_ATTORCH:
        r->peers.attorch = optarg;
        break;
    case OPTION_PYTHON:
        r->peers.python = optarg;
        break;
    case OPTION_PICTURE:
        r->picture_path = optarg;
        break;
    case 'h':
        fputs(usage, stdout);
        return -1;
    case 't':
    case 'n':
    case 's':
    case OPTION_COMPARE:
    case OPTION_CUDA:
    case OPTION_TIMEOUT:
        return parse_value(option, r);
    default:
        return tool_bad_option("bench");
    }
    return TOOL_OK;
}

static bool has_ending(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot &&
           (strcmp(dot, ".svg") == 0 || strcmp(dot, ".png") == 0 || strcmp(dot, ".pdf") == 0);
}

int tool_bench(int argc, char **argv)
{
    request r = { .peers = { .timeout_s = 600 } };
    int option;
    while ((option = getopt_long(argc, argv, "d:f:t:n:s:qcj:lh", long_options, NULL)) != -1) {
        const int code = parse_option(option, &r);
        if (code != TOOL_OK) return code < 0 ? TOOL_OK : code;
    }
    if (optind < argc) return tool_misuse("bench", "unexpected argument '%s'", argv[optind]);
    if (r.picture_path && (!r.json_path || strcmp(r.json_path, "-") == 0))
        return tool_misuse("bench", "--picture needs --json FILE");
    if (r.picture_path && !has_ending(r.picture_path))
        return tool_misuse("bench", "--picture is '%s', expected .svg, .png or .pdf",
                           r.picture_path);
    if (r.cpu_level && !r.cpu_math) return tool_misuse("bench", "--cpu-level needs --cpu-math");
    if (r.cpu_math && r.first_call)
        return tool_misuse("bench", "--cpu-math and --first-call exclude each other");
    if ((r.json_path && !tool_can_write(r.json_path)) ||
        (r.picture_path && !tool_can_write(r.picture_path)))
        return TOOL_FAILED;
    if (r.first_call_child) return tool_first_call_child(r.device);
    if (r.first_call) return tool_first_call(r.device, r.json_path);
    if (r.cpu_math) return tool_cpu_math(r.cpu_level, r.json_path);
    return run_rows(&r);
}
