/* SPDX-License-Identifier: MIT */
/* Internals: options of a device, and the ATTOCL_* variables that mirror them. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "device.h"

static const char *const variables[] = {
    "ATTOCL_FALLBACK",       "ATTOCL_HIDDEN_COPIES", "ATTOCL_CACHE",   "ATTOCL_PORTABLE",
    "ATTOCL_DEBUG",          "ATTOCL_PROFILE",       "ATTOCL_THREADS", "ATTOCL_INDEX",
    "ATTOCL_MAX_WORK_GROUP", "ATTOCL_LOCAL_BYTES",   "ATTOCL_MEMORY",  "ATTOCL_CPU",
    "ATTOCL_CACHE_DIR",      "ATTOCL_KERNEL_DIR",    "ATTOCL_DEVICE",  "ATTOCL_TUNE",
    "ATTOCL_CLBLAST",        "ATTOCL_CBLAS",
};

static int clear_environment(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(variables); i++) unsetenv(variables[i]);
    return 0;
}

/* ---- each variable reaches its field ---- */

#define FIELD(member) offsetof(atto_device_options, member)

static const struct value_row {
    const char *variable, *text;
    size_t field;
    char kind; /* b: bool, i: int32_t, u: uint64_t, s: text */
    int64_t number;
} values[] = {
    { "ATTOCL_FALLBACK", "0", FIELD(no_fallback), 'b', true },
    { "ATTOCL_FALLBACK", "1", FIELD(no_fallback), 'b', false },
    { "ATTOCL_HIDDEN_COPIES", "0", FIELD(no_hidden_copies), 'b', true },
    { "ATTOCL_CACHE", "0", FIELD(no_cache), 'b', true },
    { "ATTOCL_CACHE", "1", FIELD(no_cache), 'b', false },
    { "ATTOCL_PORTABLE", "1", FIELD(portable), 'b', true },
    { "ATTOCL_PORTABLE", "0", FIELD(portable), 'b', false },
    { "ATTOCL_DEBUG", "sync", FIELD(sync), 'b', true },
    { "ATTOCL_TUNE", "1", FIELD(tune_on_first_use), 'b', true },
    { "ATTOCL_TUNE", "0", FIELD(tune_on_first_use), 'b', false },
    { "ATTOCL_PROFILE", "1", FIELD(profile), 'b', true },
    { "ATTOCL_THREADS", "3", FIELD(num_threads), 'i', 3 },
    { "ATTOCL_INDEX", "64", FIELD(index_bits), 'i', 64 },
    { "ATTOCL_INDEX", "32", FIELD(index_bits), 'i', 32 },
    { "ATTOCL_MAX_WORK_GROUP", "64", FIELD(max_work_group), 'i', 64 },
    { "ATTOCL_LOCAL_BYTES", "16384", FIELD(max_local_bytes), 'i', 16384 },
    { "ATTOCL_MEMORY", "1000", FIELD(max_memory_bytes), 'u', 1000 },
    { "ATTOCL_MEMORY", "64M", FIELD(max_memory_bytes), 'u', 64 << 20 },
    { "ATTOCL_MEMORY", "2G", FIELD(max_memory_bytes), 'u', INT64_C(2) << 30 },
    { "ATTOCL_CPU", "base", FIELD(cpu_level), 's', 0 },
    { "ATTOCL_CPU", "avx512", FIELD(cpu_level), 's', 0 },
    { "ATTOCL_CACHE_DIR", "/some/where", FIELD(cache_dir), 's', 0 },
    { "ATTOCL_KERNEL_DIR", "relative dir", FIELD(kernel_dir), 's', 0 },
    { "ATTOCL_CBLAS", "libblas.so", FIELD(cblas), 's', 0 },
    { "ATTOCL_CLBLAST", "0", FIELD(clblast), 's', 0 },
};

static void expect_field(const struct value_row *row, const atto_device_options *set)
{
    const void *field = (const char *)set + row->field;
    switch (row->kind) {
    case 'b':
        assert_int_equal(*(const bool *)field, row->number);
        break;
    case 'i':
        assert_int_equal(*(const int32_t *)field, row->number);
        break;
    case 'u':
        assert_int_equal(*(const uint64_t *)field, row->number);
        break;
    default:
        assert_string_equal(*(const char *const *)field, row->text);
        break;
    }
}

/* The opposite of what a row says, as the caller's struct would have it. */
static atto_device_options opposite(const struct value_row *row)
{
    atto_device_options options;
    memset(&options, 0, sizeof options);
    void *field = (char *)&options + row->field;
    if (row->kind == 'b') *(bool *)field = !row->number;
    if (row->kind == 'i' && row->field != FIELD(index_bits)) *(int32_t *)field = 1;
    if (row->kind == 'u') *(uint64_t *)field = 1;
    if (row->kind == 's') *(const char **)field = "avx2";
    return options;
}

static void options_environment_wins_over_the_struct(void **state)
{
    for (int i = 0; i < COUNT_OF(values); i++) {
        clear_environment(state);
        setenv(values[i].variable, values[i].text, 1);
        atto__options resolved;
        MUST(atto__options_resolve(NULL, &resolved));
        expect_field(&values[i], &resolved.set);
        atto__options_clear(&resolved);
        const atto_device_options options = opposite(&values[i]);
        MUST(atto__options_resolve(&options, &resolved));
        expect_field(&values[i], &resolved.set);
        atto__options_clear(&resolved);
    }
}

static void options_ignore_environment_keeps_the_struct(void **state)
{
    for (int i = 0; i < COUNT_OF(values); i++) {
        clear_environment(state);
        setenv(values[i].variable, values[i].text, 1);
        setenv("ATTOCL_DEVICE", "nonsense", 1);
        const atto_device_options options = { .ignore_environment = true };
        atto__options resolved;
        MUST(atto__options_resolve(&options, &resolved));
        assert_memory_equal(&resolved.set, &options, sizeof options);
        assert_null(resolved.device);
        atto__options_clear(&resolved);
    }
}

/* Strings are copies: the caller's, and the environment's, may go away. */
static void options_own_their_strings(void **state)
{
    clear_environment(state);
    char folder[] = "/tmp/kernels";
    setenv("ATTOCL_CACHE_DIR", "/first", 1);
    setenv("ATTOCL_DEVICE", "some device", 1);
    const atto_device_options options = { .kernel_dir = folder };
    atto__options resolved;
    MUST(atto__options_resolve(&options, &resolved));
    memset(folder, 'x', sizeof folder - 1);
    setenv("ATTOCL_CACHE_DIR", "/other", 1);
    setenv("ATTOCL_DEVICE", "another device", 1);
    assert_string_equal(resolved.set.kernel_dir, "/tmp/kernels");
    assert_string_equal(resolved.set.cache_dir, "/first");
    assert_string_equal(resolved.device, "some device");
    atto__options_clear(&resolved);
}

static void options_empty_variable_is_no_variable(void **state)
{
    clear_environment(state);
    for (int i = 0; i < COUNT_OF(variables); i++) setenv(variables[i], "", 1);
    atto__options resolved;
    const atto_device_options zero = { 0 };
    MUST(atto__options_resolve(NULL, &resolved));
    assert_memory_equal(&resolved.set, &zero, sizeof zero);
    assert_null(resolved.device);
    atto__options_clear(&resolved);
}

/* ---- what is refused ---- */

static const struct bad_row {
    const char *variable, *text;
} bad_values[] = {
    { "ATTOCL_FALLBACK", "yes" },      { "ATTOCL_FALLBACK", "2" },
    { "ATTOCL_HIDDEN_COPIES", "-1" },  { "ATTOCL_CACHE", "off" },
    { "ATTOCL_PORTABLE", "true" },     { "ATTOCL_PROFILE", " 1" },
    { "ATTOCL_DEBUG", "1" },           { "ATTOCL_DEBUG", "syn" },
    { "ATTOCL_THREADS", "two" },       { "ATTOCL_THREADS", "-1" },
    { "ATTOCL_THREADS", "2x" },        { "ATTOCL_THREADS", "99999999999999999999" },
    { "ATTOCL_INDEX", "16" },          { "ATTOCL_INDEX", "63" },
    { "ATTOCL_MAX_WORK_GROUP", "-5" }, { "ATTOCL_MAX_WORK_GROUP", "4294967296" },
    { "ATTOCL_LOCAL_BYTES", "16K" },   { "ATTOCL_LOCAL_BYTES", "1e3" },
    { "ATTOCL_MEMORY", "-1" },         { "ATTOCL_MEMORY", "9999999999T" },
    { "ATTOCL_MEMORY", "1MB" },        { "ATTOCL_MEMORY", "M" },
    { "ATTOCL_CPU", "sse2" },          { "ATTOCL_CPU", "avx" },
    { "ATTOCL_CPU", "base|avx2" },
};

static void options_refuse_bad_variables_and_name_them(void **state)
{
    for (int i = 0; i < COUNT_OF(bad_values); i++) {
        clear_environment(state);
        setenv(bad_values[i].variable, bad_values[i].text, 1);
        atto_device *dev;
        EXPECT_FAIL(atto_device_open("cpu", NULL, &dev), ATTO_E_ARGUMENT, bad_values[i].variable);
        assert_null(dev);
        const atto_device_options options = { .ignore_environment = true };
        MUST(atto_device_open("cpu", &options, &dev));
        atto_device_close(dev);
    }
}

static void options_refuse_bad_fields(void **state)
{
    clear_environment(state);
    const struct {
        const char *words;
        atto_device_options options;
    } rows[] = {
        { "num_threads|-1", { .num_threads = -1 } },
        { "num_threads", { .num_threads = INT32_MAX } },
        { "index_bits|16", { .index_bits = 16 } },
        { "max_work_group|-1", { .max_work_group = -1 } },
        { "max_local_bytes", { .max_local_bytes = -1 } },
        { "cpu_level|mmx", { .cpu_level = "mmx" } },
        { "cpu_level", { .cpu_level = "" } },
        { "reserved", { .reserved = { 1, 0, 0, 0 } } },
        { "reserved", { .reserved = { 0, 0, 0, 1 } } },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        atto_device *dev;
        EXPECT_FAIL(atto_device_open("cpu", &rows[i].options, &dev), ATTO_E_ARGUMENT,
                    rows[i].words);
        assert_null(dev);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup(options_environment_wins_over_the_struct, clear_environment),
    cmocka_unit_test_setup(options_ignore_environment_keeps_the_struct, clear_environment),
    cmocka_unit_test_setup(options_own_their_strings, clear_environment),
    cmocka_unit_test_setup(options_empty_variable_is_no_variable, clear_environment),
    cmocka_unit_test_setup(options_refuse_bad_variables_and_name_them, clear_environment),
    cmocka_unit_test_setup(options_refuse_bad_fields, clear_environment),
};
TEST_MAIN_HOST("options", tests)
