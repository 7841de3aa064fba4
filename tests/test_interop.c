/* SPDX-License-Identifier: MIT */
/* OpenCL interop: the caller's context, queue, memory objects and events (D10, E7, M3). The tests are
 * the caller: they use OpenCL through the library's table of functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <attocl/dlpack.h>
#include <attocl/opencl.h>

#include "atto_test.h"
#include "backend_opencl/loader.h"
#include "dlpack_abi.h"
#include "os.h"

#define N 1000

/* Another program in this process. */
typedef struct program {
    cl_context context;
    cl_device_id device;
    cl_command_queue queue;
} program;

#define CL(call) assert_int_equal(call, CL_SUCCESS)

static program program_make(cl_command_queue_properties properties)
{
    atto_opencl handles;
    cl_int code;
    MUST(atto_device_opencl(test_dev, &handles));
    program p = { .device = handles.device };
    p.context = atto__cl.CreateContext(NULL, 1, &p.device, NULL, NULL, &code);
    CL(code);
    p.queue = atto__cl.CreateCommandQueue(p.context, p.device, properties, &code);
    CL(code);
    return p;
}

static void program_drop(program *p)
{
    atto__cl.ReleaseCommandQueue(p->queue);
    atto__cl.ReleaseContext(p->context);
}

static atto_device *open_on(const program *p)
{
    atto_device *dev;
    const atto_opencl handles = { p->context, p->device, p->queue };
    MUST(atto_device_open_opencl(&handles, NULL, &dev));
    return dev;
}

static cl_uint context_references(const program *p)
{
    cl_uint count = 0;
    CL(atto__cl.GetContextInfo(p->context, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

static cl_uint queue_references(const program *p)
{
    cl_uint count = 0;
    CL(atto__cl.GetCommandQueueInfo(p->queue, CL_QUEUE_REFERENCE_COUNT, sizeof count, &count,
                                    NULL));
    return count;
}

static cl_uint memory_references(cl_mem memory)
{
    cl_uint count = 0;
    CL(atto__cl.GetMemObjectInfo(memory, CL_MEM_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

/* Commands that have run hold references until the driver's threads have let go of them. */
static void expect_references(cl_uint (*count)(const program *), const program *p, cl_uint wanted)
{
    CL(atto__cl.Finish(p->queue));
    for (int i = 0; i < 2000 && count(p) != wanted; i++) usleep(1000);
    assert_int_equal(count(p), wanted);
}

static void expect_memory_references(const program *p, cl_mem memory, cl_uint wanted)
{
    CL(atto__cl.Finish(p->queue));
    for (int i = 0; i < 2000 && memory_references(memory) != wanted; i++) usleep(1000);
    assert_int_equal(memory_references(memory), wanted);
}

static cl_mem memory_make(const program *p, cl_mem_flags flags, size_t bytes)
{
    cl_int code;
    cl_mem memory = atto__cl.CreateBuffer(p->context, flags, bytes, NULL, &code);
    CL(code);
    return memory;
}

static float input_of(int i)
{
    return (float)(i % 17 - 8);
}

static float relu(float x)
{
    return x > 0 ? x : 0;
}

static void fill_inputs(float *values)
{
    for (int i = 0; i < N; i++) values[i] = input_of(i);
}

/* y = relu(x) on dev. */
static void apply_relu(atto_device *dev, const atto_tensor *x, const atto_tensor *y)
{
    MUST(atto_act_forward(dev, &(struct atto_act_args){ .x = x, .y = y, .act = atto_relu() }));
}

/* ---- devices ---- */

static void device_runs_on_the_callers_queue(void **state)
{
    (void)state;
    program p = program_make(0);
    const cl_uint contexts = context_references(&p), queues = queue_references(&p);
    atto_device *dev = open_on(&p);
    atto_opencl handles;
    atto_device_info info;
    atto_tensor x;
    float values[N], got[N];
    fill_inputs(values);
    MUST(atto_device_opencl(dev, &handles));
    assert_true(handles.context == p.context && handles.device == p.device &&
                handles.queue == p.queue);
    MUST(atto_device_describe(dev, &info));
    assert_string_equal(info.backend, "opencl");
    assert_int_equal(info.index, -1);
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &x));
    MUST(atto_tensor_write(&x, values));
    apply_relu(dev, &x, &x);
    MUST(atto_tensor_read(&x, got));
    for (int i = 0; i < N; i++) assert_true(got[i] == relu(values[i]));
    atto_device_close(dev);
    MUST(atto_tensor_fill(&x, 1.0)); /* the tensor keeps the device */
    atto_tensor_free(&x);
    expect_references(context_references, &p, contexts);
    expect_references(queue_references, &p, queues);
    CL(atto__cl.Finish(p.queue)); /* it still works */
    program_drop(&p);
}

/* Without a queue, and beside one out of order, the device has a queue of its own. */
static void device_makes_a_queue_where_it_needs_one(void **state)
{
    (void)state;
    program p = program_make(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    const cl_uint contexts = context_references(&p), queues = queue_references(&p);
    for (int given = 0; given < 2; given++) {
        const atto_opencl handles = { p.context, p.device, given ? p.queue : NULL };
        atto_opencl own;
        atto_device *dev;
        cl_command_queue_properties properties = 0;
        MUST(atto_device_open_opencl(&handles, NULL, &dev));
        MUST(atto_device_opencl(dev, &own));
        assert_true(own.queue && own.queue != p.queue && own.context == p.context);
        CL(atto__cl.GetCommandQueueInfo(own.queue, CL_QUEUE_PROPERTIES, sizeof properties,
                                        &properties, NULL));
        assert_false(properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
        atto_device_close(dev);
        expect_references(context_references, &p, contexts);
        expect_references(queue_references, &p, queues);
    }
    program_drop(&p);
}

static void device_refuses_handles_that_do_not_fit(void **state)
{
    (void)state;
    program p = program_make(0), q = program_make(0);
    atto_device *dev = NULL;
    const cl_uint contexts = context_references(&p), queues = queue_references(&p);
    atto_opencl handles = { p.context, p.device, p.queue };
    const atto_device_options profile = { .ignore_environment = true, .profile = true };
    EXPECT_FAIL(atto_device_open_opencl(&handles, NULL, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_device_open_opencl(NULL, NULL, &dev), ATTO_E_NULL, "handles is NULL");
    EXPECT_FAIL(atto_device_open_opencl_abi(ATTO_ABI + 1, &handles, NULL, &dev), ATTO_E_VERSION,
                "ABI");
    EXPECT_FAIL(atto_device_open_opencl(&handles, &profile, &dev), ATTO_E_ARGUMENT,
                "profile|CL_QUEUE_PROFILING_ENABLE");
    handles.queue = q.queue;
    EXPECT_FAIL(atto_device_open_opencl(&handles, NULL, &dev), ATTO_E_DEVICE, "another context");
    handles.queue = NULL;
    handles.context = NULL;
    EXPECT_FAIL(atto_device_open_opencl(&handles, NULL, &dev), ATTO_E_NULL, "context is NULL");
    handles.context = p.context;
    handles.device = NULL;
    EXPECT_FAIL(atto_device_open_opencl(&handles, NULL, &dev), ATTO_E_NULL, "device is NULL");
    assert_null(dev);
    expect_references(context_references, &p, contexts);
    expect_references(queue_references, &p, queues);
    program_drop(&p);
    program_drop(&q);
}

static void device_profiles_on_a_queue_that_profiles(void **state)
{
    (void)state;
    program p = program_make(CL_QUEUE_PROFILING_ENABLE);
    const atto_opencl handles = { p.context, p.device, p.queue };
    const atto_device_options options = { .ignore_environment = true, .profile = true };
    atto_device *dev;
    atto_event *start, *end;
    double ms = -1;
    MUST(atto_device_open_opencl(&handles, &options, &dev));
    MUST(atto_event_record(dev, &start));
    MUST(atto_event_record(dev, &end));
    MUST(atto_event_elapsed(start, end, &ms));
    assert_true(ms >= 0);
    atto_event_destroy(start);
    atto_event_destroy(end);
    atto_device_close(dev);
    program_drop(&p);
}

/* Kernels are built, and come out of the cache, for one of a context's devices. */
static void device_may_be_one_of_several_in_its_context(void **state)
{
    (void)state;
    atto_opencl handles;
    cl_platform_id platform;
    cl_device_id ids[8];
    cl_uint count = 0;
    cl_int code;
    MUST(atto_device_opencl(test_dev, &handles));
    CL(atto__cl.GetDeviceInfo(handles.device, CL_DEVICE_PLATFORM, sizeof platform, &platform,
                              NULL));
    CL(atto__cl.GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 8, ids, &count));
    if (count < 2) {
        print_message("the platform has one device\n");
        skip();
    }
    if (count > 8) count = 8;
    handles.context = atto__cl.CreateContext(NULL, count, ids, NULL, NULL, &code);
    CL(code);
    handles.queue = NULL;
    char folder[] = "/tmp/atto-test-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    const atto_device_options options = { .ignore_environment = true, .cache_dir = folder };
    for (cl_uint i = 0; i < 2 * count; i++) {
        atto_device *dev;
        atto_device_stats stats;
        atto_tensor x;
        float values[N], got[N];
        fill_inputs(values);
        handles.device = ids[i % count];
        MUST(atto_device_open_opencl(&handles, &options, &dev));
        MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &x));
        MUST(atto_tensor_write(&x, values));
        apply_relu(dev, &x, &x);
        MUST(atto_tensor_read(&x, got));
        for (int k = 0; k < N; k++) assert_true(got[k] == relu(values[k]));
        MUST(atto_device_stats_get(dev, &stats));
        if (i >= count) assert_int_equal(stats.kernels_built, 0);
        atto_tensor_free(&x);
        atto_device_close(dev);
    }
    atto__cl.ReleaseContext(handles.context);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- memory ---- */

/* Write, op and read are three parties' on one queue; nobody waits in between. */
static void memory_is_shared_in_the_queues_order(void **state)
{
    (void)state;
    program p = program_make(0);
    atto_device *dev = open_on(&p);
    cl_mem in = memory_make(&p, CL_MEM_READ_WRITE, N * sizeof(float));
    cl_mem out = memory_make(&p, CL_MEM_READ_WRITE, (N + 3) * sizeof(float));
    const cl_uint references = memory_references(in);
    static float values[N], got[N];
    atto_tensor x, y;
    fill_inputs(values);
    MUST(atto_tensor_from_opencl(dev, in, ATTO_F32, atto_shape1(N), 0, &x));
    MUST(atto_tensor_from_opencl(dev, out, ATTO_F32, atto_shape1(N), 3, &y));
    expect_memory_references(&p, in, references + 1);
    for (int round = 0; round < 20; round++) {
        CL(atto__cl.EnqueueWriteBuffer(p.queue, in, CL_FALSE, 0, sizeof values, values, 0, NULL,
                                       NULL));
        apply_relu(dev, &x, &y);
        CL(atto__cl.EnqueueReadBuffer(p.queue, out, CL_FALSE, 3 * sizeof(float), sizeof got, got, 0,
                                      NULL, NULL));
        CL(atto__cl.Finish(p.queue));
        for (int i = 0; i < N; i++) assert_true(got[i] == relu(values[i]));
        values[round] += 1;
    }
    atto_tensor_free(&x);
    atto_tensor_free(&y);
    expect_memory_references(&p, in, references);
    atto_device_close(dev);
    expect_memory_references(&p, in, references);
    atto__cl.ReleaseMemObject(in);
    atto__cl.ReleaseMemObject(out);
    program_drop(&p);
}

/* Our tensors' memory in commands of the caller. */
static void memory_of_tensors_goes_out(void **state)
{
    (void)state;
    program p = program_make(0);
    atto_device *dev = open_on(&p);
    atto_tensor t, part, empty;
    cl_mem memory, other;
    float value = 0;
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape2(4, 5), &t));
    MUST(atto_tensor_fill(&t, 2.0));
    MUST(atto_tensor_slice(&t, 0, 2, 3, 1, &part));
    MUST(atto_tensor_fill(&part, 3.0));
    MUST(atto_tensor_opencl(&t, &memory));
    MUST(atto_tensor_opencl(&part, &other));
    assert_true(memory && memory == other);
    CL(atto__cl.EnqueueReadBuffer(p.queue, memory, CL_TRUE, (size_t)part.offset * sizeof value,
                                  sizeof value, &value, 0, NULL, NULL));
    assert_true(part.offset == 10 && value == 3.0f);
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(0), &empty));
    MUST(atto_tensor_opencl(&empty, &other));
    assert_null(other);
    atto_tensor_free(&t);
    atto_device_close(dev);
    program_drop(&p);
}

static void memory_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    program p = program_make(0), q = program_make(0);
    atto_device *dev = open_on(&p), *cpu;
    cl_mem small = memory_make(&p, CL_MEM_READ_WRITE, 40), far = memory_make(&q, 0, 4000);
    const cl_uint references = memory_references(small);
    atto_tensor t;
    const atto_shape ten = atto_shape1(10);
    MUST(atto_device_open("cpu", NULL, &cpu));
    EXPECT_FAIL(atto_tensor_from_opencl(dev, small, ATTO_F32, ten, 0, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_tensor_from_opencl(NULL, small, ATTO_F32, ten, 0, &t), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_tensor_from_opencl(dev, NULL, ATTO_F32, ten, 0, &t), ATTO_E_NULL, "memory");
    EXPECT_FAIL(atto_tensor_from_opencl(dev, small, ATTO_F32, atto_shape1(11), 0, &t), ATTO_E_SHAPE,
                "44 bytes|40");
    EXPECT_FAIL(atto_tensor_from_opencl(dev, small, ATTO_F32, ten, 1, &t), ATTO_E_SHAPE,
                "44 bytes|40");
    EXPECT_FAIL(atto_tensor_from_opencl(dev, small, ATTO_F32, ten, -1, &t), ATTO_E_ARGUMENT,
                "offset is -1");
    EXPECT_FAIL(atto_tensor_from_opencl(dev, small, ATTO_F32, ten, INT64_MAX - 3, &t),
                ATTO_E_ARGUMENT, "offset");
    EXPECT_FAIL(atto_tensor_from_opencl(dev, small, (atto_dtype)99, ten, 0, &t), ATTO_E_DTYPE,
                "99");
    EXPECT_FAIL(atto_tensor_from_opencl(dev, far, ATTO_F32, ten, 0, &t), ATTO_E_DEVICE,
                "another context");
    EXPECT_FAIL(atto_tensor_from_opencl(cpu, small, ATTO_F32, ten, 0, &t), ATTO_E_DEVICE,
                "no OpenCL device");
    assert_null(t.buffer);
    expect_memory_references(&p, small, references);
    MUST(atto_tensor_from_opencl(dev, small, ATTO_F32, ten, 0, &t)); /* after all that */
    MUST(atto_tensor_fill(&t, 1.0));
    atto_tensor_free(&t);
    expect_memory_references(&p, small, references);
    atto__cl.ReleaseMemObject(small);
    atto__cl.ReleaseMemObject(far);
    atto_device_close(cpu);
    atto_device_close(dev);
    program_drop(&p);
    program_drop(&q);
}

static void memory_keeps_to_its_access_flags(void **state)
{
    (void)state;
    program p = program_make(0);
    atto_device *dev = open_on(&p);
    cl_mem read = memory_make(&p, CL_MEM_READ_ONLY, N * sizeof(float));
    cl_mem write = memory_make(&p, CL_MEM_WRITE_ONLY, N * sizeof(float));
    static float values[N], got[N];
    atto_tensor x, y;
    fill_inputs(values);
    CL(atto__cl.EnqueueWriteBuffer(p.queue, read, CL_TRUE, 0, sizeof values, values, 0, NULL,
                                   NULL));
    MUST(atto_tensor_from_opencl(dev, read, ATTO_F32, atto_shape1(N), 0, &x));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &y));
    apply_relu(dev, &x, &y);
    MUST(atto_tensor_read(&y, got));
    for (int i = 0; i < N; i++) assert_true(got[i] == relu(values[i]));
    EXPECT_FAIL(atto_tensor_fill(&x, 0.0), ATTO_E_STATE, "read-only");
    atto_tensor_free(&x);
    EXPECT_FAIL(atto_tensor_from_opencl(dev, write, ATTO_F32, atto_shape1(N), 0, &x), ATTO_E_STATE,
                "write-only");
    atto_tensor_free(&y);
    atto__cl.ReleaseMemObject(read);
    atto__cl.ReleaseMemObject(write);
    atto_device_close(dev);
    program_drop(&p);
}

/* ---- events ---- */

/* Two queues without an order, and a device between them: events alone order the three. */
static void events_order_work_across_queues(void **state)
{
    (void)state;
    program p = program_make(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    atto_device *dev = open_on(&p);
    cl_mem memory = memory_make(&p, CL_MEM_READ_WRITE, N * sizeof(float));
    atto_tensor x, y;
    cl_mem result;
    MUST(atto_tensor_from_opencl(dev, memory, ATTO_F32, atto_shape1(N), 0, &x));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &y));
    MUST(atto_tensor_opencl(&y, &result));
    for (int round = 0; round < 100; round++) {
        float values[N], got[N];
        cl_event written, computed, read;
        for (int i = 0; i < N; i++) values[i] = input_of(i + round);
        CL(atto__cl.EnqueueWriteBuffer(p.queue, memory, CL_FALSE, 0, sizeof values, values, 0, NULL,
                                       &written));
        MUST(atto_opencl_wait(dev, 1, &written));
        apply_relu(dev, &x, &y);
        MUST(atto_opencl_signal(dev, &computed));
        CL(atto__cl.EnqueueReadBuffer(p.queue, result, CL_FALSE, 0, sizeof got, got, 1, &computed,
                                      &read));
        CL(atto__cl.WaitForEvents(1, &read));
        for (int i = 0; i < N; i++) assert_true(got[i] == relu(values[i]));
        atto__cl.ReleaseEvent(written);
        atto__cl.ReleaseEvent(computed);
        atto__cl.ReleaseEvent(read);
    }
    atto_tensor_free(&x);
    atto_tensor_free(&y);
    atto__cl.ReleaseMemObject(memory);
    atto_device_close(dev);
    program_drop(&p);
}

/* A device that waits for an event does not compute before. */
static void wait_holds_work_back(void **state)
{
    (void)state;
    program p = program_make(0);
    atto_device *dev = open_on(&p);
    atto_tensor t;
    cl_int code, at = CL_COMPLETE;
    cl_event (*create_user_event)(cl_context, cl_int *);
    cl_int (*set_user_event_status)(cl_event, cl_int);
    void *library = atto__library_open("libOpenCL.so.1"); /* the library does not use these */
    void *create = atto__library_symbol(library, "clCreateUserEvent");
    void *set = atto__library_symbol(library, "clSetUserEventStatus");
    memcpy(&create_user_event, &create, sizeof create);
    memcpy(&set_user_event_status, &set, sizeof set);
    cl_event gate = create_user_event(p.context, &code), done;
    CL(code);
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &t));
    MUST(atto_opencl_wait(dev, 1, &gate));
    MUST(atto_tensor_fill(&t, 5.0));
    MUST(atto_opencl_signal(dev, &done));
    CL(atto__cl.GetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof at, &at, NULL));
    assert_int_not_equal(at, CL_COMPLETE);
    CL(set_user_event_status(gate, CL_COMPLETE));
    CL(atto__cl.WaitForEvents(1, &done));
    atto__cl.ReleaseEvent(gate);
    atto__cl.ReleaseEvent(done);
    atto__library_close(library);
    atto_tensor_free(&t);
    atto_device_close(dev);
    program_drop(&p);
}

static void events_of_others_are_refused(void **state)
{
    (void)state;
    program p = program_make(0), q = program_make(0);
    atto_device *dev = open_on(&p), *other = open_on(&q), *cpu;
    cl_event event, none[2] = { NULL, NULL };
    atto_opencl handles;
    MUST(atto_device_open("cpu", NULL, &cpu));
    MUST(atto_opencl_signal(other, &event));
    EXPECT_FAIL(atto_opencl_wait(dev, 1, &event), ATTO_E_DEVICE, "event 0|another context");
    EXPECT_FAIL(atto_opencl_wait(NULL, 1, &event), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_opencl_wait(dev, 1, NULL), ATTO_E_NULL, "events");
    EXPECT_FAIL(atto_opencl_wait(dev, 2, none), ATTO_E_NULL, "event 0");
    EXPECT_FAIL(atto_opencl_wait(dev, -1, &event), ATTO_E_ARGUMENT, "-1");
    MUST(atto_opencl_wait(dev, 0, NULL));
    EXPECT_FAIL(atto_opencl_wait(cpu, 1, &event), ATTO_E_DEVICE, "no OpenCL device");
    EXPECT_FAIL(atto_opencl_signal(cpu, &none[0]), ATTO_E_DEVICE, "no OpenCL device");
    EXPECT_FAIL(atto_opencl_signal(dev, NULL), ATTO_E_NULL, "event");
    EXPECT_FAIL(atto_device_opencl(cpu, &handles), ATTO_E_DEVICE, "no OpenCL device");
    EXPECT_FAIL(atto_device_opencl(NULL, &handles), ATTO_E_NULL, "dev");
    EXPECT_FAIL(atto_device_opencl(dev, NULL), ATTO_E_NULL, "out");
    atto__cl.ReleaseEvent(event);
    atto_device_close(cpu);
    atto_device_close(dev);
    atto_device_close(other);
    program_drop(&p);
    program_drop(&q);
}

/* ---- DLPack ---- */

static int deleted;

static void count_deleted(struct DLManagedTensorVersioned *self)
{
    (void)self;
    deleted++;
}

/* The memory object lives as long as somebody holds it, in both directions. */
static void dlpack_carries_memory_objects(void **state)
{
    (void)state;
    program p = program_make(0);
    atto_device *dev = open_on(&p);
    cl_mem memory = memory_make(&p, CL_MEM_READ_WRITE, 100 * sizeof(float));
    const cl_uint references = memory_references(memory);
    int64_t shape[] = { 90 };
    struct DLManagedTensorVersioned m = { .major = 1,
                                          .deleter = count_deleted,
                                          .tensor = { .data = memory,
                                                      .device_type = ATTO_DL_OPENCL,
                                                      .ndim = 1,
                                                      .type_code = ATTO_DL_FLOAT,
                                                      .type_bits = 32,
                                                      .lanes = 1,
                                                      .shape = shape,
                                                      .byte_offset = 40 } };
    struct DLManagedTensorVersioned *out;
    atto_tensor t;
    deleted = 0;
    shape[0] = 91;
    EXPECT_FAIL(atto_tensor_from_dlpack(dev, &m, &t), ATTO_E_SHAPE, "404 bytes|400");
    shape[0] = 90;
    m.tensor.byte_offset = 41;
    EXPECT_FAIL(atto_tensor_from_dlpack(dev, &m, &t), ATTO_E_ARGUMENT, "byte_offset is 41");
    m.tensor.byte_offset = UINT64_MAX - 3;
    EXPECT_FAIL(atto_tensor_from_dlpack(dev, &m, &t), ATTO_E_ARGUMENT, "offset");
    EXPECT_FAIL(atto_tensor_from_dlpack(test_dev, &m, &t), ATTO_E_ARGUMENT, "offset");
    m.tensor.byte_offset = 40;
    EXPECT_FAIL(atto_tensor_from_dlpack(test_dev, &m, &t), ATTO_E_DEVICE, "another context");
    assert_int_equal(deleted, 0);
    expect_memory_references(&p, memory, references);
    MUST(atto_tensor_from_dlpack(dev, &m, &t));
    assert_int_equal(t.offset, 10);
    MUST(atto_tensor_fill(&t, 4.0));
    MUST(atto_tensor_to_dlpack(&t, &out));
    atto_tensor_free(&t);
    assert_int_equal(deleted, 0);
    assert_ptr_equal(out->tensor.data, memory);
    assert_true(out->tensor.byte_offset == 40 && out->tensor.shape[0] == 90 &&
                out->tensor.strides[0] == 1);
    float value = 0;
    CL(atto__cl.EnqueueReadBuffer(p.queue, memory, CL_TRUE, 396, sizeof value, &value, 0, NULL,
                                  NULL));
    assert_true(value == 4.0f);
    out->deleter(out);
    assert_int_equal(deleted, 1);
    expect_memory_references(&p, memory, references);
    atto__cl.ReleaseMemObject(memory);
    atto_device_close(dev);
    program_drop(&p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(device_runs_on_the_callers_queue),
    cmocka_unit_test(device_makes_a_queue_where_it_needs_one),
    cmocka_unit_test(device_refuses_handles_that_do_not_fit),
    cmocka_unit_test(device_profiles_on_a_queue_that_profiles),
    cmocka_unit_test(device_may_be_one_of_several_in_its_context),
    cmocka_unit_test(memory_is_shared_in_the_queues_order),
    cmocka_unit_test(memory_of_tensors_goes_out),
    cmocka_unit_test(memory_that_does_not_fit_is_refused),
    cmocka_unit_test(memory_keeps_to_its_access_flags),
    cmocka_unit_test(events_order_work_across_queues),
    cmocka_unit_test(wait_holds_work_back),
    cmocka_unit_test(events_of_others_are_refused),
    cmocka_unit_test(dlpack_carries_memory_objects),
};

TEST_MAIN("interop", tests)
