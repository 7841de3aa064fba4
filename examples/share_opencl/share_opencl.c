/* SPDX-License-Identifier: MIT */
/* Two users of one OpenCL queue: a simulation with its own kernel moves particles, and a network computes
 * the forces on them. The positions and the forces are two buffers of the simulation's, which the
 * network reads and writes where they are. For comparison the same steps go through the host. */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <attocl/opencl.h>

#include "clock.h"
#include "failure.h"
#include "options.h"

#define STEP_SECONDS 0.01f

typedef struct settings {
    int64_t platform, particles, steps, width;
    uint64_t seed;
} settings;

/* ---- the simulation: plain OpenCL ---- */

static const char move_text[] =
    "__kernel void move(__global float2 *position, __global float2 *velocity,\n"
    "                   __global const float2 *force, float dt)\n"
    "{\n"
    "    const size_t i = get_global_id(0);\n"
    "    velocity[i] += dt * force[i];\n"
    "    position[i] += dt * velocity[i];\n"
    "}\n";

typedef struct simulation {
    cl_device_id device;
    cl_context context;
    cl_command_queue queue;
    cl_program program;
    cl_kernel move;
    cl_mem position, velocity, force; /* [particles, 2] f32 */
} simulation;

#define TRY_CL(call)                                                                     \
    do {                                                                                 \
        const cl_int code_ = (call);                                                     \
        if (code_ != CL_SUCCESS) return failure(ATTO_E_BACKEND, "%s: %d", #call, code_); \
    } while (0)

static atto_status choose_device(simulation *s, int64_t number)
{
    cl_platform_id platforms[16];
    cl_uint count = 0;
    if (clGetPlatformIDs(16, platforms, &count) != CL_SUCCESS || count == 0)
        return failure(ATTO_E_DEVICE, "there is no OpenCL platform");
    if (count > 16) count = 16;
    if (number >= (int64_t)count)
        return failure(ATTO_E_ARGUMENT, "--platform is %lld, expected 0 to %u", (long long)number,
                       count - 1);
    TRY_CL(clGetDeviceIDs(platforms[number], CL_DEVICE_TYPE_ALL, 1, &s->device, NULL));
    return ATTO_OK;
}

/* Places and velocities from -1 to 1: a small generator is enough. */
static void draw(uint64_t seed, float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = (float)(int32_t)(seed >> 32) / 2147483648.0f;
    }
}

static atto_status fill(simulation *s, cl_mem memory, uint64_t seed, size_t n)
{
    float *values = malloc(n * sizeof *values);
    if (!values) return failure(ATTO_E_MEMORY, "out of host memory");
    draw(seed, values, n);
    const cl_int code = clEnqueueWriteBuffer(s->queue, memory, CL_TRUE, 0, n * sizeof *values,
                                             values, 0, NULL, NULL);
    free(values);
    return code == CL_SUCCESS ? ATTO_OK : failure(ATTO_E_BACKEND, "clEnqueueWriteBuffer: %d", code);
}

static atto_status simulation_open(simulation *s, const settings *set)
{
    const char *text = move_text;
    const size_t bytes = (size_t)set->particles * 2 * sizeof(float);
    cl_int code;
    TRY(choose_device(s, set->platform));
    s->context = clCreateContext(NULL, 1, &s->device, NULL, NULL, &code);
    TRY_CL(code);
    s->queue = clCreateCommandQueue(s->context, s->device, 0, &code);
    TRY_CL(code);
    s->program = clCreateProgramWithSource(s->context, 1, &text, NULL, &code);
    TRY_CL(code);
    TRY_CL(clBuildProgram(s->program, 1, &s->device, "", NULL, NULL));
    s->move = clCreateKernel(s->program, "move", &code);
    TRY_CL(code);
    cl_mem *const buffers[] = { &s->position, &s->velocity, &s->force };
    for (int i = 0; i < 3; i++) {
        *buffers[i] = clCreateBuffer(s->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
        TRY_CL(code);
    }
    return ATTO_OK;
}

static void simulation_close(simulation *s)
{
    const cl_mem buffers[] = { s->position, s->velocity, s->force };
    for (int i = 0; i < 3; i++)
        if (buffers[i]) clReleaseMemObject(buffers[i]);
    if (s->move) clReleaseKernel(s->move);
    if (s->program) clReleaseProgram(s->program);
    if (s->queue) clReleaseCommandQueue(s->queue);
    if (s->context) clReleaseContext(s->context);
}

static atto_status move(simulation *s, size_t particles)
{
    const float dt = STEP_SECONDS;
    TRY_CL(clSetKernelArg(s->move, 0, sizeof s->position, &s->position));
    TRY_CL(clSetKernelArg(s->move, 1, sizeof s->velocity, &s->velocity));
    TRY_CL(clSetKernelArg(s->move, 2, sizeof s->force, &s->force));
    TRY_CL(clSetKernelArg(s->move, 3, sizeof dt, &dt));
    TRY_CL(clEnqueueNDRangeKernel(s->queue, s->move, 1, NULL, &particles, NULL, 0, NULL, NULL));
    return ATTO_OK;
}

/* ---- the network: attocl on the simulation's queue ---- */

typedef struct forces {
    atto_device *dev;
    atto_module *net;
    atto_tape *tape;
    atto_tensor position, force; /* the simulation's buffers */
    float *host;                 /* as many numbers, for the comparison */
} forces;

static atto_status forces_open(forces *f, const simulation *s, const settings *set)
{
    const atto_opencl handles = { s->context, s->device, s->queue };
    const atto_shape shape = atto_shape2(set->particles, 2);
    TRY_ATTO(atto_device_open_opencl(&handles, NULL, &f->dev));
    atto_seed(f->dev, set->seed);
    TRY_ATTO(atto_sequential_create(f->dev, &f->net));
    TRY_ATTO(atto_sequential_linear(f->net, 2, set->width,
                                    &(atto_linear_options){ .act = atto_tanh() }));
    TRY_ATTO(atto_sequential_linear(f->net, set->width, 2, NULL));
    TRY_ATTO(atto_tape_create(f->dev, &f->tape));
    atto_tape_record(f->tape, false);
    TRY_ATTO(atto_tensor_from_opencl(f->dev, s->position, ATTO_F32, shape, 0, &f->position));
    TRY_ATTO(atto_tensor_from_opencl(f->dev, s->force, ATTO_F32, shape, 0, &f->force));
    f->host = malloc((size_t)set->particles * 2 * sizeof *f->host);
    return f->host ? ATTO_OK : failure(ATTO_E_MEMORY, "out of host memory");
}

static void forces_close(forces *f)
{
    free(f->host);
    atto_tensor_free(&f->position);
    atto_tensor_free(&f->force);
    atto_tape_free(f->tape);
    atto_module_free(f->net);
    atto_device_close(f->dev);
}

/* force = net(position), where they are. */
static atto_status compute_shared(forces *f)
{
    atto_tensor result;
    const atto_var x = atto_borrow(f->tape, &f->position, false);
    TRY_ATTO(atto_var_tensor(f->tape, atto_apply(f->tape, f->net, x), &result));
    TRY_ATTO(atto_tensor_copy(&f->force, &result));
    TRY_ATTO(atto_tape_end(f->tape));
    return ATTO_OK;
}

/* The same through the host, as without sharing. */
static atto_status compute_by_host(forces *f, simulation *s, const settings *set)
{
    const size_t bytes = (size_t)set->particles * 2 * sizeof *f->host;
    TRY_CL(clEnqueueReadBuffer(s->queue, s->position, CL_TRUE, 0, bytes, f->host, 0, NULL, NULL));
    const atto_var x = atto_input(f->tape, ATTO_F32, atto_shape2(set->particles, 2), f->host);
    TRY_ATTO(atto_var_read(f->tape, atto_apply(f->tape, f->net, x), f->host));
    TRY_ATTO(atto_tape_end(f->tape));
    TRY_CL(clEnqueueWriteBuffer(s->queue, s->force, CL_TRUE, 0, bytes, f->host, 0, NULL, NULL));
    return ATTO_OK;
}

/* ---- both ---- */

/* All steps from the same start; the last positions go to `places`. */
static atto_status simulate(simulation *s, forces *f, const settings *set, bool shared,
                            float *places)
{
    const size_t n = (size_t)set->particles, numbers = 2 * n;
    atto_device_stats before, after;
    TRY(compute_shared(f)); /* kernels are built */
    TRY(move(s, n));
    TRY(fill(s, s->position, set->seed, numbers));
    TRY(fill(s, s->velocity, set->seed + 1, numbers));
    TRY_ATTO(atto_device_stats_get(f->dev, &before));
    const double start = clock_seconds();
    for (int64_t i = 0; i < set->steps; i++) {
        TRY(shared ? compute_shared(f) : compute_by_host(f, s, set));
        TRY(move(s, n));
    }
    TRY_CL(clFinish(s->queue));
    const double seconds = clock_seconds() - start;
    TRY_ATTO(atto_device_stats_get(f->dev, &after));
    printf("%-16s %8.3f ms a step, %llu times waited\n",
           shared ? "shared buffers" : "through the host", 1e3 * seconds / (double)set->steps,
           (unsigned long long)(after.blocking_calls - before.blocking_calls));
    TRY_CL(clEnqueueReadBuffer(s->queue, s->position, CL_TRUE, 0, numbers * sizeof *places, places,
                               0, NULL, NULL));
    return ATTO_OK;
}

static atto_status compare(simulation *s, forces *f, const settings *set)
{
    const size_t bytes = (size_t)set->particles * 2 * sizeof(float);
    float *places[2] = { malloc(bytes), malloc(bytes) };
    atto_status status =
        places[0] && places[1] ? ATTO_OK : failure(ATTO_E_MEMORY, "out of host memory");
    for (int i = 0; i < 2 && status == ATTO_OK; i++)
        status = simulate(s, f, set, i == 0, places[i]);
    if (status == ATTO_OK && memcmp(places[0], places[1], bytes) != 0)
        status = failure(ATTO_E_STATE, "the particles end in different places");
    if (status == ATTO_OK) printf("the particles end in the same places, bit for bit\n");
    free(places[0]);
    free(places[1]);
    return status;
}

int main(int argc, char **argv)
{
    settings set = { .particles = 100000, .steps = 100, .width = 32, .seed = 1 };
    const option_row rows[] = {
        { "platform", 'P', OPTION_COUNT, &set.platform, 0, 15, "N", "OpenCL's platform" },
        { "particles", 'n', OPTION_COUNT, &set.particles, 1, 1e8, "N", "in the plane" },
        { "steps", 't', OPTION_COUNT, &set.steps, 1, 1e6, "N", "of the simulation" },
        { "width", 'w', OPTION_COUNT, &set.width, 1, 4096, "N", "of the network's hidden layer" },
        OPTION_RANDOM(&set.seed),
    };
    const option_page page = { "share_opencl",
                               "Moves particles with an OpenCL kernel by forces that a network "
                               "computes from buffers\nof the simulation, and compares with copies "
                               "through the host.\n",
                               rows, (int)(sizeof rows / sizeof rows[0]) };
    const int parsed = options_parse(&page, argc, argv);
    if (parsed != OPTIONS_RUN) return parsed;
    simulation s = { .context = NULL };
    forces f = { .dev = NULL };
    atto_status status = simulation_open(&s, &set);
    if (status == ATTO_OK) status = forces_open(&f, &s, &set);
    if (status == ATTO_OK) status = compare(&s, &f, &set);
    if (status != ATTO_OK)
        fprintf(stderr, "share_opencl: %s: %s\n", atto_status_name(status), failure_message());
    forces_close(&f);
    simulation_close(&s);
    return status == ATTO_OK ? OPTIONS_OK : OPTIONS_FAILED;
}
