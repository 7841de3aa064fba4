/* SPDX-License-Identifier: MIT */
/* Lines of build logs get the names that the sources have, for compilers that count on their
 * own. */
#include "backend_opencl/source.h"

#include "alloc.h"
#include "atto_test.h"

static const char source[] = "#line 1 \"act.cl\"\n"
                             "first\n"
                             "#line 1 \"atto_math.h\"\n"
                             "header\n"
                             "#line 3 \"act.cl\"\n"
                             "third\n"
                             "fourth\n";

static void expect_named(const char *log, const char *wanted)
{
    char *named = atto__source_name_lines(source, log);
    assert_string_equal(named, wanted);
    atto__free(named);
}

static void source_lines_get_their_names(void **state)
{
    (void)state;
    expect_named("", "");
    expect_named("no line here\n", "no line here\n");
    expect_named("<kernel>:2:5: error: x\n", "act.cl:1:5: error: x\n");
    expect_named("<kernel>:4:1: a\n<kernel>:6: b", "atto_math.h:1:1: a\nact.cl:3: b");
    expect_named("input.cl:2:5: a\n<kernel>:4:1: b", "act.cl:1:5: a\natto_math.h:1:1: b");
    expect_named("<kernel>:7:1", "act.cl:4:1");
    expect_named("<kernel>:", "<kernel>:0");
    expect_named("<kernel>:99:1", "act.cl:96:1"); /* beyond the end: counted on */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(source_lines_get_their_names) };
    return cmocka_run_group_tests_name("source", tests, NULL, NULL);
}
