/* SPDX-License-Identifier: MIT */
/* The program of scripts/acceptance.sh: goes through the grid, on each device in turn. */
#include <dirent.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "json.h"
#include "scene.h"
#include "talk.h"

static const char usage[] =
    "Usage: acceptance --quick [OPTION]...\n"
    "       acceptance --reference SCRIPT [OPTION]...\n"
    "       acceptance --bits [OPTION]...\n\n"
    "  --quick             small shapes beside the oracle, on cpu-base, cpu and opencl\n"
    "  --reference SCRIPT  all shapes beside PyTorch, which SCRIPT asks, on auto\n"
    "  --bits              middling shapes twice, beside nothing, on cpu; prints hashes\n"
    "  --device NAME       instead of those devices; cpu-base: the CPU's portable code\n"
    "  --python PATH       the interpreter that has PyTorch (default: python3)\n"
    "  --filter TEXT       only cases whose line (op dtype shape options) contains TEXT, or one of "
    "A|B\n"
    "  --every N           every N-th case only: a sample\n"
    "  --tamper            with ones instead of x, q and dy on the device: cases have to fail\n"
    "  --json FILE         one entry for each case\n";

typedef struct request {
    bool quick, bits, tamper;
    const char *script, *python, *filter, *json_path;
    const char *devices[4];
    bool any_device; /* none was asked for: one that is not there is skipped */
    int64_t every;
} request;

typedef struct grid_run {
    const request *r;
    const char *device; /* as asked for */
    atto_device *dev;
    atto_device_info info;
    grid_store *store;
    talk *peer;
    char folder[64];
    bool fresh; /* files have been replaced since the last question */
    json *json;
    uint64_t hash;
    int64_t number, cases, passed, failed, skipped;
    const char *told[3]; /* reasons for skips that were printed */
} grid_run;

static const grid_family *const families[] = {
#define X(name) &grid_##name,
    GRID_FAMILIES(X)
#undef X
};

static const atto_dtype dtypes[] = { ATTO_F32, ATTO_F16, ATTO_BF16 };

/* Small ones: a row, one element, rows, a column, sequences, images. */
static const atto_shape small[] = {
    { 1, { 96 } },        { 1, { 1 } },       { 2, { 4, 50 } },      { 2, { 12, 1 } },
    { 3, { 2, 12, 14 } }, { 3, { 3, 5, 8 } }, { 4, { 2, 4, 5, 6 } },
};

/* Enough work for several threads. */
static const atto_shape middling[] = {
    { 1, { 100003 } },
    { 2, { 300, 1000 } },
    { 3, { 8, 96, 200 } },
    { 4, { 4, 16, 30, 28 } },
};

/* Those of attorch's tests. */
static const atto_shape all[] = {
    { 1, { 96 } },
    { 1, { 128 } },
    { 1, { 196 } },
    { 1, { 384 } },
    { 1, { 768 } },
    { 1, { 1024 } },
    { 1, { 3200 } },
    { 1, { 4800 } },
    { 1, { 8000 } },
    { 1, { 12288 } },
    { 2, { 1, 8000 } },
    { 2, { 4, 2000 } },
    { 2, { 8, 1024 } },
    { 2, { 32, 1024 } },
    { 2, { 128, 1024 } },
    { 2, { 2048, 768 } },
    { 2, { 6144, 256 } },
    { 2, { 8096, 32 } },
    { 2, { 12288, 1 } },
    { 2, { 2049, 2 } },
    { 2, { 4097, 4 } },
    { 3, { 1, 1024, 3072 } },
    { 3, { 8, 960, 196 } },
    { 3, { 64, 768, 128 } },
    { 3, { 128, 960, 196 } },
    { 3, { 2048, 64, 16 } },
    { 4, { 1, 3, 224, 224 } },
    { 4, { 8, 3, 224, 224 } },
    { 4, { 64, 64, 56, 56 } },
    { 4, { 256, 128, 28, 28 } },
    { 4, { 256, 2048, 7, 7 } },
};

#define HASH_START 0xcbf29ce484222325u /* of FNV-1a */

/* ---- a case ---- */

typedef struct outcome {
    const char *result; /* "passed", "failed", "skipped" */
    const char *reason; /* of a skip, or of a call that failed */
    grid_verdict worst;
} outcome;

static void shape_text(const atto_shape *shape, char *text, size_t bytes)
{
    size_t used = 0;
    for (int32_t d = 0; d < shape->rank && used < bytes; d++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, d ? "x" : "", shape->dim[d]);
}

static void line_of(const grid_case *c, char text[2 * GRID_TEXT])
{
    char shape[64] = "", options[GRID_TEXT];
    shape_text(&c->shape, shape, sizeof shape);
    grid_text(c, options);
    snprintf(text, 2 * GRID_TEXT, "%s %s %s %s", c->family->name, atto_dtype_name(c->dtype), shape,
             options);
}

static void write_entry(grid_run *g, const grid_case *c, grid_pass pass, const outcome *o)
{
    char shape[64] = "", options[GRID_TEXT];
    json *j = g->json;
    if (!j) return;
    shape_text(&c->shape, shape, sizeof shape);
    grid_text(c, options);
    json_open_object(j, NULL);
    json_string(j, "op", c->family->name);
    json_string(j, "pass", pass == GRID_BACKWARD ? "backward" : "forward");
    json_string(j, "dtype", atto_dtype_name(c->dtype));
    json_string(j, "shape", shape);
    json_string(j, "options", options);
    json_string(j, "device", g->device);
    if (!o->reason) {
        json_string(j, "tensor", o->worst.tensor);
        json_number(j, "worst_error", o->worst.error);
        json_number(j, "tolerance", o->worst.allowed);
    } else {
        json_string(j, "reason", o->reason);
    }
    json_string(j, "result", o->result);
    json_close_object(j);
}

static void tell(const grid_run *g, const grid_case *c, grid_pass pass, const outcome *o)
{
    char line[2 * GRID_TEXT];
    line_of(c, line);
    printf("FAILED on %s: %s %s: ", g->device, line,
           pass == GRID_BACKWARD ? "backward" : "forward");
    if (o->reason)
        printf("%s\n", o->reason);
    else
        printf("%s is off by %.3g, allowed %.3g and a rounding\n", o->worst.tensor, o->worst.error,
               o->worst.allowed);
}

static void count(grid_run *g, const grid_case *c, grid_pass pass, const outcome *o)
{
    g->cases++;
    if (strcmp(o->result, "skipped") == 0)
        g->skipped++;
    else if (strcmp(o->result, "passed") == 0)
        g->passed++;
    else
        g->failed++;
    if (strcmp(o->result, "failed") == 0) tell(g, c, pass, o);
    write_entry(g, c, pass, o);
}

static void count_both(grid_run *g, const grid_case *c, const char *result, const char *reason)
{
    const outcome o = { result, reason, { "", 0, 0, 0 } };
    count(g, c, GRID_FORWARD, &o);
    count(g, c, GRID_BACKWARD, &o);
}

/* Quick runs on OpenCL have one size of heads for each family, of attention and of MHA. */
static bool has_other_heads(const grid_case *c)
{
    const int64_t width = c->shape.dim[c->shape.rank - 1];
    if (c->family == &grid_mha) return width != 14 || grid_int(c, "heads") != 2;
    return c->family == &grid_attention && width != 14;
}

/* Why a quick run leaves a case out: those kernels are built, and judged by the oracle, in the
 * tests. */
static const char *skip_of(const grid_run *g, const grid_case *c)
{
    if (!g->r->quick || strcmp(g->device, "opencl") != 0) return NULL;
    if (c->dtype != ATTO_F32) return "kernels of f16 and bf16: PoCL builds each for seconds";
    if (has_other_heads(c))
        return "kernels of attention for other sizes of heads: PoCL builds each for seconds";
    for (int i = 0; c->family->options[i].name; i++)
        if (strcmp(c->family->options[i].name, "act") == 0 && c->family != &grid_act &&
            (int)c->option[i] != ATTO_ACT_IDENTITY && (int)c->option[i] != ATTO_ACT_GELU)
            return "kernels of activations but GELU: PoCL builds each for seconds";
    return NULL;
}

/* Each reason once. */
static void tell_skip(grid_run *g, const char *skip)
{
    int count = 0;
    for (; count < COUNT_OF(g->told) && g->told[count]; count++)
        if (skip == g->told[count]) return;
    if (count < COUNT_OF(g->told)) g->told[count] = skip;
    printf("%-9s skips %s\n", g->device, skip);
}

/* PyTorch's verdict on a scene that has run; NULL, or why there is none. */
static const char *ask_peer(grid_run *g, grid_scene *s, const char **answer)
{
    const char *reason;
    if (talk_is_over(g->peer)) return "the peer has ended";
    if (!grid_scene_write(s, talk_question(g->peer), g->info.kind == ATTO_KIND_CPU ? "cpu" : "cuda",
                          g->fresh))
        return "a file could not be written";
    g->fresh = false;
    *answer = talk_answer(g->peer, &reason);
    if (!*answer) return reason;
    return strncmp(*answer, "- ", 2) == 0 ? *answer + 2 : NULL;
}

static void judge(grid_run *g, const grid_case *c, grid_scene *s, const atto_status *status)
{
    static char message[512];
    const char *answer = "", *problem = g->peer ? ask_peer(g, s, &answer) : NULL;
    if (!g->peer) grid_scene_answer(s);
    for (int pass = GRID_FORWARD; pass <= GRID_BACKWARD; pass++) {
        outcome o = { "failed", problem, { "", 0, 0, 0 } };
        if (!grid_scene_has(s, (grid_pass)pass)) continue;
        if (status[pass] != ATTO_OK) {
            snprintf(message, sizeof message, "%s", atto_status_text(status[pass]));
            o.reason = message;
        } else if (!problem) {
            o.worst = g->peer ? grid_scene_parse(s, (grid_pass)pass, answer)
                              : grid_scene_judge(s, (grid_pass)pass);
            if (o.worst.share <= 1.0) o.result = "passed";
        }
        count(g, c, (grid_pass)pass, &o);
    }
}

/* The device computes with other numbers than those that are judged. */
static void tamper(const grid_scene *s)
{
    static const char *const inputs[] = { "x", "q", "dy", "dloss" };
    for (int i = 0; i < COUNT_OF(inputs); i++)
        if (grid_at(s, inputs[i])) (void)atto_tensor_fill(grid_at(s, inputs[i]), 1.0);
}

static void run_passes(grid_scene *s, atto_status *status)
{
    for (int pass = GRID_FORWARD; pass <= GRID_BACKWARD; pass++) {
        if (!grid_scene_has(s, (grid_pass)pass)) continue;
        status[pass] = grid_scene_run(s, (grid_pass)pass);
        if (status[pass] != ATTO_OK) fprintf(stderr, "%s\n", atto_last_error());
    }
}

/* Twice, from the start: NULL, or what is wrong. */
static const char *hash_case(grid_run *g, const grid_case *c, uint64_t *hash)
{
    uint64_t found[2];
    for (int round = 0; round < 2; round++) {
        atto_status status[2] = { ATTO_OK, ATTO_OK };
        grid_scene *s = grid_scene_create(g->store, c);
        if (!s) return "its tensors could not be made";
        run_passes(s, status);
        found[round] = grid_scene_hash(s, HASH_START);
        grid_scene_destroy(s);
        if (status[0] != ATTO_OK || status[1] != ATTO_OK) return "a call failed";
    }
    *hash = found[0];
    return found[0] == found[1] ? NULL : "other bits the second time";
}

static void run_bits(grid_run *g, const grid_case *c)
{
    char line[2 * GRID_TEXT];
    uint64_t hash = 0;
    const char *problem = hash_case(g, c, &hash);
    line_of(c, line);
    printf("%016" PRIx64 " %s\n", hash, line);
    g->hash = g->hash * 31 + hash;
    count_both(g, c, problem ? "failed" : "passed", problem ? problem : "not judged");
}

static void clear_store(grid_run *g)
{
    grid_store_clear(g->store);
    g->fresh = true;
}

static void run_case(grid_run *g, const grid_case *c)
{
    atto_status status[2] = { ATTO_OK, ATTO_OK };
    const char *skip = skip_of(g, c);
    if (skip) {
        tell_skip(g, skip);
        count_both(g, c, "skipped", skip);
        return;
    }
    if (!grid_store_has_room(g->store)) clear_store(g);
    if (g->r->bits) {
        run_bits(g, c);
        return;
    }
    grid_scene *s = grid_scene_create(g->store, c);
    if (!s) {
        count_both(g, c, "failed", "its tensors could not be made");
        return;
    }
    if (g->r->tamper) tamper(s);
    run_passes(s, status);
    judge(g, c, s, status);
    grid_scene_destroy(s);
}

/* ---- the product of options ---- */

static int64_t combinations(const grid_family *f)
{
    int64_t n = 1;
    for (int i = 0; f->options[i].name; i++) n *= f->options[i].count;
    return n;
}

static void set_options(grid_case *c, int64_t number)
{
    for (int i = 0; c->family->options[i].name; i++) {
        const grid_option *o = &c->family->options[i];
        const int at = (int)(number % o->count);
        c->option[i] = o->text ? (double)at : o->values[at];
        number /= o->count;
    }
}

/* Families with more combinations than this get one shape for each in quick runs, in turn. */
#define MANY 100

/* Shapes of the ranks that the family takes; returns how many. */
static int shapes_of(const grid_run *g, const grid_family *f, const atto_shape *list[32])
{
    const atto_shape *from = g->r->quick ? small : g->r->bits ? middling : all;
    const int n = g->r->quick ? COUNT_OF(small) : g->r->bits ? COUNT_OF(middling) : COUNT_OF(all);
    int found = 0;
    if (f->shape) {
        list[0] = &from[0]; /* any: options decide */
        return g->r->quick || g->r->bits ? 0 : 1;
    }
    for (int i = 0; i < n; i++)
        if (from[i].rank >= f->least_rank && from[i].rank <= f->most_rank) list[found++] = &from[i];
    return found;
}

/* One of the texts between '|'. */
static bool contains_one(const char *line, const char *texts)
{
    char text[GRID_TEXT];
    for (const char *at = texts; at; at = strchr(at, '|')) {
        at += *at == '|';
        snprintf(text, sizeof text, "%.*s", (int)strcspn(at, "|"), at);
        if (strstr(line, text)) return true;
    }
    return false;
}

static bool wanted(grid_run *g, const grid_case *c)
{
    char line[2 * GRID_TEXT];
    line_of(c, line);
    if (g->r->filter && !contains_one(line, g->r->filter)) return false;
    /* Of bits small families give every third case at least. */
    const bool thick = g->r->bits && combinations(c->family) <= MANY && g->r->every > 3;
    return g->number++ % (thick ? 3 : g->r->every) == 0;
}

static void run_shape(grid_run *g, grid_case *c, int at, int shapes)
{
    const int64_t n = combinations(c->family);
    const bool turns = g->r->quick && n > MANY;
    const int thin = g->r->quick || g->r->bits ? c->family->thin : 0;
    for (int d = 0; d < COUNT_OF(dtypes); d++) {
        c->dtype = dtypes[d];
        clear_store(g);
        for (int64_t i = 0; i < n; i++) {
            set_options(c, i);
            if (thin > 0 && i % thin) continue;
            if (turns && (i / 2 + i + d) % shapes != at) continue;
            if (c->family->shape) {
                clear_store(g);
                c->shape = c->family->shape(c);
            }
            if (c->family->exists && !c->family->exists(c)) continue;
            if (wanted(g, c)) run_case(g, c);
        }
    }
}

static void run_family(grid_run *g, const grid_family *f)
{
    const atto_shape *shapes[32];
    const int n = shapes_of(g, f, shapes);
    const int64_t before[] = { g->cases, g->failed, g->skipped };
    for (int i = 0; i < n; i++) {
        grid_case c = { .family = f, .shape = *shapes[i] };
        run_shape(g, &c, i, n);
    }
    if (g->cases == before[0]) return;
    printf("%-9s %-14s %6" PRId64 " cases, %" PRId64 " failed, %" PRId64 " skipped\n", g->device,
           f->name, g->cases - before[0], g->failed - before[1], g->skipped - before[2]);
    fflush(stdout);
}

/* ---- devices ---- */

static atto_status open_device(grid_run *g)
{
    const bool base = strcmp(g->device, "cpu-base") == 0;
    const atto_device_options options = { .no_fallback = true, .cpu_level = base ? "base" : NULL };
    const atto_status status = atto_device_open(base ? "cpu" : g->device, &options, &g->dev);
    return status == ATTO_OK ? atto_device_describe(g->dev, &g->info) : status;
}

static bool start_peer(grid_run *g)
{
    const char *reason;
    const char *const argv[] = { g->r->python ? g->r->python : "python3", g->r->script, NULL };
    snprintf(g->folder, sizeof g->folder, "/dev/shm/attocl-XXXXXX");
    if (!mkdtemp(g->folder)) {
        fprintf(stderr, "acceptance: %s cannot be made\n", g->folder);
        g->folder[0] = '\0';
        return false;
    }
    g->peer = talk_start("acceptance", argv, 300);
    const char *versions = g->peer ? talk_answer(g->peer, &reason) : NULL;
    if (versions)
        printf("beside %s\n", versions);
    else
        fprintf(stderr, "acceptance: %s %s: %s\n", argv[0], argv[1], g->peer ? reason : "");
    return versions != NULL;
}

/* The folder is empty but for outputs. */
static void remove_folder(const grid_run *g)
{
    char path[256];
    DIR *folder = g->folder[0] ? opendir(g->folder) : NULL;
    if (!folder) return;
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        snprintf(path, sizeof path, "%s/%.128s", g->folder, entry->d_name);
        if (entry->d_name[0] != '.') remove(path);
    }
    closedir(folder);
    rmdir(g->folder);
}

static bool run_device(grid_run *g, const char *device)
{
    g->device = device;
    g->number = 0;
    const atto_status status = open_device(g);
    if (status == ATTO_E_DEVICE && g->r->any_device) {
        printf("%s: SKIP, %s\n", device, atto_last_error());
        return true;
    }
    if (status != ATTO_OK) {
        fprintf(stderr, "acceptance: %s: %s\n", device, atto_last_error());
        return false;
    }
    printf("%s is %s, %s %s\n", device, g->info.name, g->info.platform, g->info.version);
    bool fine = !g->r->script || start_peer(g);
    g->store = fine ? grid_store_create(g->dev, g->r->script ? g->folder : NULL) : NULL;
    fine = g->store != NULL;
    for (int i = 0; g->store && i < COUNT_OF(families); i++)
        if (families[i]->answer || g->r->bits) run_family(g, families[i]);
    grid_store_destroy(g->store);
    talk_stop(g->peer);
    remove_folder(g);
    atto_device_close(g->dev);
    g->peer = NULL;
    return fine;
}

/* ---- the program ---- */

static const struct option options[] = {
    { "quick", no_argument, NULL, 'q' },        { "reference", required_argument, NULL, 'r' },
    { "device", required_argument, NULL, 'd' }, { "python", required_argument, NULL, 'p' },
    { "filter", required_argument, NULL, 'f' }, { "every", required_argument, NULL, 'e' },
    { "json", required_argument, NULL, 'j' },   { "tamper", no_argument, NULL, 't' },
    { "bits", no_argument, NULL, 'b' },         { NULL, 0, NULL, 0 },
};

static bool parse(int argc, char **argv, request *r)
{
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) switch (option) {
        case 'q':
            r->quick = true;
            break;
        case 'b':
            r->bits = true;
            break;
        case 't':
            r->tamper = true;
            break;
        case 'r':
            r->script = optarg;
            break;
        case 'd':
            r->devices[0] = optarg;
            break;
        case 'p':
            r->python = optarg;
            break;
        case 'f':
            r->filter = optarg;
            break;
        case 'e':
            r->every = strtoll(optarg, NULL, 10);
            break;
        case 'j':
            r->json_path = optarg;
            break;
        default:
            return false;
        }
    return optind == argc && r->every > 0 && r->quick + r->bits + (r->script != NULL) == 1;
}

static void choose_devices(request *r)
{
    static const char *const quick[] = { "cpu-base", "cpu", "opencl" };
    if (r->devices[0]) return;
    r->any_device = r->quick;
    if (!r->quick) r->devices[0] = r->bits ? "cpu" : "auto";
    for (int i = 0; r->quick && i < COUNT_OF(quick); i++) r->devices[i] = quick[i];
}

int main(int argc, char **argv)
{
    request r = { .every = 1 };
    json j;
    if (!parse(argc, argv, &r)) {
        fputs(usage, stderr);
        return 2;
    }
    choose_devices(&r);
    grid_run g = { .r = &r, .hash = HASH_START };
    if (r.json_path && !json_open(&j, r.json_path)) return 2;
    if (r.json_path) g.json = &j, json_open_array(&j, NULL);
    bool fine = true;
    for (int i = 0; r.devices[i]; i++) fine = run_device(&g, r.devices[i]) && fine;
    if (g.json) json_close_array(&j);
    if (g.json && !json_finish(&j, r.json_path)) fine = false;
    if (r.bits) printf("bits %016" PRIx64 "\n", g.hash);
    printf("%" PRId64 " cases, %" PRId64 " passed, %" PRId64 " failed, %" PRId64 " skipped\n",
           g.cases, g.passed, g.failed, g.skipped);
    return fine && g.failed == 0 && g.passed > 0 ? 0 : 1;
}
