/* SPDX-License-Identifier: MIT */
/* Kernels of the user's on the CPU: a C function over ranges of items. */
#include "alloc.h"
#include "backend_cpu/cpu.h"
#include "backend_cpu/parallel.h"

typedef struct cpu_kernel {
    atto_kernel_fn function;
    int64_t grain;
} cpu_kernel;

atto_status atto__cpu_kernel_create(atto_device *dev, const atto_kernel_source *source, void **out,
                                    atto__signature *signature)
{
    (void)dev;
    ATTO_REQUIRE(source->cpu, ATTO_E_NULL, "%s: cpu is NULL, which the CPU backend needs",
                 source->name);
    cpu_kernel *kernel = atto__alloc(sizeof *kernel);
    ATTO_REQUIRE(kernel, ATTO_E_MEMORY, "out of host memory");
    kernel->function = source->cpu;
    kernel->grain = source->grain;
    *out = kernel;
    signature->count = -1;
    return ATTO_OK;
}

void atto__cpu_kernel_destroy(atto_device *dev, void *kernel)
{
    (void)dev;
    atto__free(kernel);
}

static void *first_element(const atto_tensor *t)
{
    if (!t->buffer) return NULL;
    return (char *)atto__memory(t) + (size_t)t->offset * atto_dtype_size(t->dtype);
}

typedef struct launch_job {
    const cpu_kernel *kernel;
    const atto_kernel_arg *args;
    int64_t n;
} launch_job;

/* Calls the function for ranges of at most grain items. */
static void launch_ranges(const void *job_, int64_t begin, int64_t end)
{
    const launch_job *job = job_;
    const int64_t grain = job->kernel->grain;
    for (int64_t range = begin; range < end; range++) {
        const int64_t first = range * grain;
        job->kernel->function(job->args, first, job->n - first < grain ? job->n : first + grain);
    }
}

atto_status atto__cpu_launch(atto_device *dev, void *kernel, int64_t n, const atto_kernel_arg *args,
                             int32_t count)
{
    const cpu_kernel *k = kernel;
    atto_kernel_arg filled[ATTO_KERNEL_MAX_ARGS];
    for (int32_t i = 0; i < count; i++) {
        filled[i] = args[i];
        filled[i].data = args[i].tensor ? first_element(args[i].tensor) : NULL;
    }
    const int64_t ranges = (n - 1) / k->grain + 1;
    const launch_job call = { k, filled, n };
    dev->stats.launches++;
    atto__parallel_for(atto__cpu_threads(dev), ranges, launch_ranges, &call);
    return ATTO_OK;
}
