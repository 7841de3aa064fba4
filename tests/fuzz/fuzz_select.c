/* SPDX-License-Identifier: MIT */
/* The choice of a device: whatever the name and the machine, candidates are devices of the list. */
#include "bytes.h"
#include "device.h"

enum { MOST = 8 };

/* A text as the field of an info: cut to fit. */
static void take_field(bytes *b, char *out, size_t size)
{
    char *text = take_text(b);
    snprintf(out, size, "%s", text);
    free(text);
}

/* n devices in a block of exactly their size. */
static atto_device_info *take_machine(bytes *b, int32_t n)
{
    static const char *const backends[] = { "cpu", "opencl", "" };
    atto_device_info *infos = calloc(n ? (size_t)n : 1, sizeof *infos);
    MUST_HOLD(infos, "no memory");
    for (int32_t i = 0; i < n; i++) {
        const uint8_t how = take_byte(b);
        take_field(b, infos[i].name, sizeof infos[i].name);
        if (how % 4 == 3)
            take_field(b, infos[i].backend, sizeof infos[i].backend);
        else
            snprintf(infos[i].backend, sizeof infos[i].backend, "%s", backends[how % 4]);
        if (how & 4) snprintf(infos[i].problem, sizeof infos[i].problem, "problem");
        infos[i].kind = (atto_device_kind)(how >> 3 & 7);
        infos[i].index = i;
    }
    return infos;
}

/* Different ones; only a backend's name, or "auto", leaves out broken ones. */
static void check_order(const char *name, const atto_device_info *infos, int32_t n,
                        const int32_t *order, int32_t count)
{
    bool seen[MOST] = { false }, by_backend = strcmp(name, "auto") == 0;
    for (int32_t i = 0; i < n; i++) by_backend |= strcmp(infos[i].backend, name) == 0;
    MUST_HOLD(count >= 1 && count <= n, "%d of %d", (int)count, (int)n);
    for (int32_t i = 0; i < count; i++) {
        MUST_HOLD(order[i] >= 0 && order[i] < n && !seen[order[i]], "candidate %d is %d", (int)i,
                  (int)order[i]);
        seen[order[i]] = true;
        MUST_HOLD(!by_backend || !infos[order[i]].problem[0], "candidate %d is broken", (int)i);
        MUST_HOLD(!i || infos[order[i]].kind <= infos[order[i - 1]].kind, "%d is better", (int)i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes b = { .at = data, .left = size };
    char *name = take_text(&b);
    const int32_t n = (int32_t)take_number(&b, 0, MOST);
    atto_device_info *infos = take_machine(&b, n);
    int32_t *order = malloc(n ? (size_t)n * sizeof *order : 1), count = -1;
    MUST_HOLD(order, "no memory");
    atto__fail(ATTO_OK, "%s", "");
    const atto_status status = atto__select(name, infos, n, order, &count);
    if (status == ATTO_OK) {
        check_order(name, infos, n, order, count);
    } else {
        MUST_HOLD(status == ATTO_E_ARGUMENT || status == ATTO_E_DEVICE, "%s",
                  atto_status_name(status));
        MUST_HOLD(atto_last_error()[0], "%s without a message", atto_status_name(status));
    }
    free(name), free(infos), free(order);
    return 0;
}
