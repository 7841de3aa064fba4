/* SPDX-License-Identifier: MIT */
/* attocl bench --cpu-math: is every formula of atto_math.h vectorised, and is GELU worth its name.
 */
#include <string.h>

#include "bench.h"
#include "tool.h"

/* A formula that costs more than this many exponentials was not vectorised. */
#define MOST_EXPS 4.0

/* GELU on 16 M elements: the least part of y = a*x, and of a loop over libm's erff. */
#define LARGE            (1 << 24)
#define LEAST_TIMES_LIBM 5.0

typedef struct level_limit {
    const char *level;
    double least_of_scale; /* 0 = no statement */
} level_limit;

static const level_limit limits[] = { { "avx512", 0.55 }, { "avx2", 0.35 }, { "base", 0.0 } };

static double least_of_scale(const char *level)
{
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (strcmp(limits[i].level, level) == 0) return limits[i].least_of_scale;
    return 0.0;
}

/* One loop of the table: false when it is too slow. */
static bool check_loop(json *j, const char *name, const char *pass, double ns, double exp_ns)
{
    const double ratio = ns / exp_ns;
    const bool ok = ratio <= MOST_EXPS;
    printf("%-12s %-8s %8.3f %7.2f  %s\n", name, pass, ns, ratio, ok ? "" : "TOO SLOW");
    if (j->file == NULL) return ok;
    json_open_object(j, NULL);
    json_string(j, "op", name);
    json_string(j, "pass", pass);
    json_number(j, "ns_per_element", ns);
    json_number(j, "exps", ratio);
    json_close_object(j);
    return ok;
}

static bool check_formulas(json *j, const bench_loops *loops)
{
    bool ok = true;
    const double exp_ns = bench_loop_ns(loops->exp, 0, 0);
    printf("%-12s %-8s %8s %7s\n", "op", "pass", "ns", "exps");
    check_loop(j, "exp", "-", exp_ns, exp_ns);
    for (int kind = 0; kind < ATTO_ACT_COUNT; kind++) {
        const atto_activation act = atto_activation_default((atto_activation_kind)kind);
        const char *name = atto_activation_name((atto_activation_kind)kind);
        const double forward = bench_loop_ns(loops->forward[kind], act.a, act.b);
        const double backward = bench_loop_ns(loops->backward[kind], act.a, act.b);
        ok = check_loop(j, name, "forward", forward, exp_ns) && ok;
        ok = check_loop(j, name, "backward", backward, exp_ns) && ok;
    }
    return ok;
}

static void json_gelu(json *j, const bench_gelu *g)
{
    if (j->file == NULL) return;
    json_open_object(j, "gelu_large");
    json_integer(j, "elements", g->elements);
    json_number(j, "attocl_ms", g->attocl_ms);
    json_number(j, "scale_ms", g->scale_ms);
    json_number(j, "libm_ms", g->libm_ms);
    json_close_object(j);
}

static bool judge(const char *what, double value, double least)
{
    const bool ok = value >= least;
    printf("  %-26s %6.2f", what, value);
    if (least > 0) printf("  (at least %.2f)  %s", least, ok ? "PASS" : "FAIL");
    puts("");
    return ok;
}

static bool check_gelu(json *j, const bench_loops *loops, int *code)
{
    bench_gelu g;
    const double least = least_of_scale(loops->level);
    const atto_status status = bench_gelu_large(loops, LARGE, &g);
    if (status != ATTO_OK) {
        *code = tool_fail("GELU in memory", status);
        return false;
    }
    printf("\nGELU of %d elements, all threads: attocl %.2f ms, y = a*x %.2f ms, erff %.2f ms\n",
           LARGE, g.attocl_ms, g.scale_ms, g.libm_ms);
    json_gelu(j, &g);
    const bool a = judge("speed against y = a*x", g.scale_ms / g.attocl_ms, least);
    const bool b = judge("speed against erff of libm", g.libm_ms / g.attocl_ms,
                         least > 0 ? LEAST_TIMES_LIBM : 0.0);
    return a && b;
}

static bool run(json *j, const bench_loops *loops, int *code)
{
    if (j->file != NULL) {
        json_open_object(j, NULL);
        json_string(j, "attocl", atto_version());
        json_string(j, "level", loops->level);
        json_open_array(j, "rows");
    }
    printf("level %s, data in the first-level cache, one thread\n\n", loops->level);
    const bool formulas = check_formulas(j, loops);
    if (j->file != NULL) json_close_array(j);
    const bool gelu = check_gelu(j, loops, code);
    if (j->file != NULL) json_close_object(j);
    return formulas && gelu;
}

int tool_cpu_math(const char *at_most, const char *json_path)
{
    const bench_loops *loops = bench_loops_of(at_most);
    json j = { .file = NULL };
    int code = TOOL_OK;
    if (loops == NULL)
        return tool_misuse("bench", "--cpu-level is '%s', expected base, avx2 or avx512", at_most);
    if (json_path != NULL && !json_open(&j, json_path)) return TOOL_FAILED;
    if (!run(&j, loops, &code)) code = TOOL_FAILED;
    if (json_path != NULL && !json_finish(&j, json_path)) code = TOOL_FAILED;
    if (code != TOOL_OK) fputs("attocl bench --cpu-math: too slow\n", stderr);
    return code;
}
