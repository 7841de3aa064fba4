/* SPDX-License-Identifier: MIT */
/* A plug-in in C whose interface is DLPack: what exchange.py calls through ctypes. Every function
 * returns 0 or an atto_status, for which plugin_error has words. */
#include <stdlib.h>

#include <attocl.h>

#define PLUGIN_API __attribute__((visibility("default")))

PLUGIN_API const char *plugin_error(void);
PLUGIN_API int plugin_open(void);
PLUGIN_API void plugin_close(void);
PLUGIN_API int plugin_gelu(struct DLManagedTensor *managed);
PLUGIN_API int plugin_squares(int64_t rows, int64_t columns, struct DLManagedTensor **out);

static atto_device *dev;

const char *plugin_error(void)
{
    return atto_last_error();
}

int plugin_open(void)
{
    return atto_device_open("cpu", NULL, &dev);
}

void plugin_close(void)
{
    atto_device_close(dev);
    dev = NULL;
}

/* GELU in place. The tensor is taken over, and given back when it is freed here. */
int plugin_gelu(struct DLManagedTensor *managed)
{
    atto_tensor t;
    atto_status status = atto_tensor_from_dlpack_unversioned(dev, managed, &t);
    if (status != ATTO_OK) return status;
    status = atto_act_forward(dev, &(struct atto_act_args){ .x = &t, .y = &t, .act = atto_gelu() });
    atto_tensor_free(&t);
    return status;
}

/* A new f32 tensor, element i of which is i * i. */
int plugin_squares(int64_t rows, int64_t columns, struct DLManagedTensor **out)
{
    const int64_t n = rows * columns;
    float *values = malloc((size_t)n * sizeof *values);
    atto_tensor t;
    atto_status status = values ? ATTO_OK : ATTO_E_MEMORY;
    for (int64_t i = 0; values && i < n; i++) values[i] = (float)(i * i);
    if (status == ATTO_OK)
        status = atto_tensor_alloc(dev, ATTO_F32, atto_shape2(rows, columns), &t);
    if (status == ATTO_OK) {
        status = atto_tensor_write(&t, values);
        if (status == ATTO_OK) status = atto_tensor_to_dlpack_unversioned(&t, out);
        atto_tensor_free(&t); /* the exported one holds it */
    }
    free(values);
    return status;
}
