/* SPDX-License-Identifier: MIT */
/* Internals: which device a name means, on machines that we only play (B3, B4). */
#include <stdio.h>
#include <string.h>

#include "atto_test.h"
#include "device.h"

/* ---- machines ---- */

#define MOST 8

typedef struct played_device {
    const char *name, *backend, *problem;
    atto_device_kind kind;
} played_device;

typedef struct machine {
    atto_device_info infos[MOST];
    int32_t count;
} machine;

static machine play(const played_device *devices, int32_t count)
{
    machine m;
    memset(&m, 0, sizeof m);
    for (int32_t i = 0; i < count; i++) {
        snprintf(m.infos[i].name, sizeof m.infos[i].name, "%s", devices[i].name);
        snprintf(m.infos[i].backend, sizeof m.infos[i].backend, "%s", devices[i].backend);
        snprintf(m.infos[i].problem, sizeof m.infos[i].problem, "%s", devices[i].problem);
        m.infos[i].kind = devices[i].kind;
        m.infos[i].index = i;
    }
    m.count = count;
    return m;
}

static const played_device laptop[] = {
    { "Intel(R) UHD Graphics", "opencl", "", ATTO_KIND_INTEGRATED_GPU },
    { "NVIDIA GeForce RTX 4070", "opencl", "", ATTO_KIND_DISCRETE_GPU },
    { "pthread-Intel Core i7", "opencl", "", ATTO_KIND_OPENCL_CPU },
    { "Intel(R) FPGA Emulation Device", "opencl", "", ATTO_KIND_ACCELERATOR },
    { "Intel Core i7", "cpu", "", ATTO_KIND_CPU },
};
static const played_device broken_gpu[] = {
    { "Old GPU", "opencl", "older than OpenCL 1.2", ATTO_KIND_DISCRETE_GPU },
    { "pthread-Core", "opencl", "", ATTO_KIND_OPENCL_CPU },
    { "Core", "cpu", "", ATTO_KIND_CPU },
};
static const played_device accelerator[] = {
    { "FPGA Emulation", "opencl", "", ATTO_KIND_ACCELERATOR },
    { "Core", "cpu", "", ATTO_KIND_CPU },
};
static const played_device plain[] = { { "Core", "cpu", "", ATTO_KIND_CPU } };
static const played_device two_gpus[] = {
    { "NVIDIA H200", "opencl", "", ATTO_KIND_DISCRETE_GPU },
    { "NVIDIA H200", "opencl", "", ATTO_KIND_DISCRETE_GPU },
    { "Xeon", "cpu", "", ATTO_KIND_CPU },
};

#define MACHINE(devices) devices, COUNT_OF(devices)

/* ---- what a name means ---- */

static const struct choice_row {
    const played_device *devices;
    int32_t count;
    const char *name;
    int32_t candidates, order[MOST];
} choices[] = {
    { MACHINE(laptop), "auto", 4, { 1, 0, 4, 2 } }, /* never the accelerator */
    { MACHINE(laptop), "opencl", 4, { 1, 0, 2, 3 } },
    { MACHINE(laptop), "cpu", 1, { 4 } },
    { MACHINE(laptop), "0", 1, { 0 } },
    { MACHINE(laptop), "4", 1, { 4 } },
    { MACHINE(laptop), "nvidia", 1, { 1 } },
    { MACHINE(laptop), "rtx 40", 1, { 1 } },
    { MACHINE(laptop), "UHD", 1, { 0 } },
    { MACHINE(broken_gpu), "core", 1, { 2 } },    /* a whole name before a part of another */
    { MACHINE(broken_gpu), "auto", 2, { 2, 1 } }, /* what has a problem is no candidate */
    { MACHINE(broken_gpu), "opencl", 1, { 1 } },
    { MACHINE(broken_gpu), "old gpu", 1, { 0 } }, /* asked for by name: open says why not */
    { MACHINE(accelerator), "auto", 1, { 1 } },
    { MACHINE(accelerator), "opencl", 1, { 0 } },
    { MACHINE(plain), "auto", 1, { 0 } },
    { MACHINE(plain), "cpu", 1, { 0 } },
    { MACHINE(two_gpus), "auto", 3, { 0, 1, 2 } },
};

static void select_finds_the_device_that_is_meant(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(choices); i++) {
        const machine m = play(choices[i].devices, choices[i].count);
        int32_t order[MOST], count = -1;
        MUST(atto__select(choices[i].name, m.infos, m.count, order, &count));
        bool same = count == choices[i].candidates;
        for (int32_t k = 0; same && k < count; k++) same = order[k] == choices[i].order[k];
        if (!same)
            fail_msg("row %d, '%s': %d candidates, first %s", i, choices[i].name, (int)count,
                     count > 0 ? m.infos[order[0]].name : "none");
    }
}

/* ---- what no device is called ---- */

static const struct refusal_row {
    const played_device *devices;
    int32_t count;
    const char *name;
    atto_status status;
    const char *words;
} refusals[] = {
    { MACHINE(laptop), "-1", ATTO_E_ARGUMENT, "-1|0 to 4" },
    { MACHINE(laptop), "5", ATTO_E_ARGUMENT, "5|0 to 4" },
    { MACHINE(laptop), "2147483647", ATTO_E_ARGUMENT, "0 to 4" },
    { MACHINE(laptop), "99999999999999999999999", ATTO_E_ARGUMENT, "0 to 4" },
    { MACHINE(laptop), "intel", ATTO_E_DEVICE, "intel|UHD|FPGA|number" }, /* ambiguous */
    { MACHINE(laptop), "radeon", ATTO_E_DEVICE, "radeon|UHD|RTX 4070" },  /* lists all */
    { MACHINE(laptop), "", ATTO_E_ARGUMENT, "empty" },
    { MACHINE(plain), "opencl", ATTO_E_DEVICE, "opencl|Core" },
    { MACHINE(plain), "1", ATTO_E_ARGUMENT, "0 to 0" },
    { MACHINE(two_gpus), "h200", ATTO_E_DEVICE, "h200|number" },
};

static void select_refuses_what_is_no_device(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT_OF(refusals); i++) {
        const machine m = play(refusals[i].devices, refusals[i].count);
        int32_t order[MOST], count;
        EXPECT_FAIL(atto__select(refusals[i].name, m.infos, m.count, order, &count),
                    refusals[i].status, refusals[i].words);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(select_finds_the_device_that_is_meant),
    cmocka_unit_test(select_refuses_what_is_no_device),
};
TEST_MAIN_HOST("select", tests)
