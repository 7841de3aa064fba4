/* SPDX-License-Identifier: MIT */
/* Internals of the OpenCL backend: what it reads out of a driver's texts. */
#include <stdio.h>
#include <string.h>

#include "atto_test.h"
#include "backend_opencl/cache.h"
#include "backend_opencl/devices.h"

/* OpenCL C 1.2 is asked for wherever the compiler has it, whatever else it calls itself (C3). */
static void driver_standard_follows_the_compiler_version(void **state)
{
    (void)state;
    static const struct {
        const char *text, *option;
    } rows[] = {
        { "OpenCL C 1.2 pocl", "-cl-std=CL1.2" },
        { "OpenCL C 1.2 ", "-cl-std=CL1.2" },
        { "OpenCL C 2.0 AMD", "-cl-std=CL1.2" },
        { "OpenCL C 3.0", "-cl-std=CL1.2" },
        { "OpenCL C 1.10 x", "-cl-std=CL1.2" },
        { "OpenCL C 1.1 Mesa", NULL },
        { "OpenCL C 1.0", NULL },
        { "OpenCL 3.0 CUDA", NULL }, /* a device version, not a compiler's */
        { "OpenCL C ", NULL },
        { "OpenCL C x.y", NULL },
        { "OpenCL C -1.2", NULL },
        { "", NULL },
    };
    for (int i = 0; i < COUNT_OF(rows); i++) {
        const char *option = atto__cl_std_option(rows[i].text);
        if ((option == NULL) != (rows[i].option == NULL) ||
            (option && strcmp(option, rows[i].option) != 0))
            fail_msg("'%s' gives %s", rows[i].text, option ? option : "nothing");
    }
}

typedef struct key_parts {
    const char *name, *version, *driver, *platform, *kernel, *options, *source;
} key_parts;

static atto__cache_key key_of(const key_parts *p)
{
    atto_device_info was = test_dev->info;
    snprintf(test_dev->info.name, sizeof was.name, "%s", p->name);
    snprintf(test_dev->info.version, sizeof was.version, "%s", p->version);
    snprintf(test_dev->info.driver, sizeof was.driver, "%s", p->driver);
    snprintf(test_dev->info.platform, sizeof was.platform, "%s", p->platform);
    const atto__cache_key key = atto__cache_key_of(test_dev, p->kernel, p->options, p->source);
    test_dev->info = was;
    return key;
}

/* A changed driver, device, platform, option or source is another key (D2). */
static void driver_changes_change_the_cache_key(void **state)
{
    (void)state;
    const key_parts rows[] = {
        { "gpu", "OpenCL 3.0", "580.1", "CUDA", "k", "-DA=1", "text" },
        { "gpu2", "OpenCL 3.0", "580.1", "CUDA", "k", "-DA=1", "text" },
        { "gpu", "OpenCL 3.1", "580.1", "CUDA", "k", "-DA=1", "text" },
        { "gpu", "OpenCL 3.0", "580.2", "CUDA", "k", "-DA=1", "text" },
        { "gpu", "OpenCL 3.0", "580.1", "CUDA2", "k", "-DA=1", "text" },
        { "gpu", "OpenCL 3.0", "580.1", "CUDA", "k2", "-DA=1", "text" },
        { "gpu", "OpenCL 3.0", "580.1", "CUDA", "k", "-DA=2", "text" },
        { "gpu", "OpenCL 3.0", "580.1", "CUDA", "k", "-DA=1", "text2" },
        { "gpu", "OpenCL 3.0", "580.1", "CUDA", "k", "-DA=1text", "" }, /* other borders */
    };
    for (int i = 0; i < COUNT_OF(rows); i++)
        for (int j = 0; j < COUNT_OF(rows); j++) {
            const atto__cache_key a = key_of(&rows[i]), b = key_of(&rows[j]);
            assert_int_equal(memcmp(a.hash, b.hash, sizeof a.hash) == 0, i == j);
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(driver_standard_follows_the_compiler_version),
    cmocka_unit_test(driver_changes_change_the_cache_key),
};

TEST_MAIN("driver", tests)
