/* SPDX-License-Identifier: MIT */
/* Devices: list, open, close, logs, host memory, events, and machines without OpenCL. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atto_test.h"

#define MOST 64

static int32_t list_devices(atto_device_info infos[MOST])
{
    int32_t count = -1;
    MUST(atto_device_list(NULL, infos, MOST, &count));
    assert_in_range(count, 1, MOST);
    return count;
}

/* y = x + 1 by a kernel of the test's own. */
static void add_one(const atto_kernel_arg *args, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++)
        ((float *)args[1].data)[i] = ((const float *)args[0].data)[i] + 1.0f;
}

static atto_status use_kernel(atto_device *dev, const atto_tensor *x, const atto_tensor *y)
{
    const atto_kernel_source source = {
        .name = "add_one",
        .text = "__kernel void add_one(__global const float *x, ulong x_at, __global float *y,\n"
                "                      ulong y_at, ulong n)\n"
                "{ size_t i = get_global_id(0); if (i < n) y[y_at + i] = x[x_at + i] + 1; }",
        .cpu = add_one
    };
    const atto_kernel_arg args[] = { atto_kernel_in(x), atto_kernel_out(y) };
    atto_kernel *kernel;
    atto_status status = atto_kernel_create(dev, &source, &kernel);
    if (status == ATTO_OK) status = atto_kernel_launch(kernel, atto_tensor_numel(x), args, 2);
    atto_kernel_destroy(kernel);
    return status;
}

/* One step of a small network, with everything a tape has. */
static atto_status train_once(atto_device *dev)
{
    atto_module *net = NULL;
    atto_tape *tape = NULL;
    atto_meter *meter = NULL;
    const float x[2] = { 1.0f, 2.0f };
    atto_status status = atto_sequential_create(dev, &net);
    if (status == ATTO_OK)
        status = atto_sequential_linear(
            net, 2, 3, &(atto_linear_options){ .act = atto_gelu(), .dropout = 0.5f });
    if (status == ATTO_OK) status = atto_sequential_flatten(net, 0);
    if (status == ATTO_OK) status = atto_sequential_linear(net, 3, 1, NULL);
    if (status == ATTO_OK) status = atto_tape_create(dev, &tape);
    if (status == ATTO_OK) status = atto_meter_create(dev, &meter);
    if (status == ATTO_OK) {
        const atto_var y = atto_apply(tape, net, atto_input(tape, ATTO_F32, atto_shape1(2), x));
        atto_meter_add(meter, tape, y);
        status = atto_backward(tape, y);
        const atto_status end = atto_tape_end(tape);
        if (status == ATTO_OK) status = end;
    }
    double mean;
    if (status == ATTO_OK) status = atto_meter_take(meter, &mean);
    atto_meter_free(meter);
    atto_tape_free(tape);
    atto_module_free(net);
    return status;
}

/* Forward and backward of n elements on dev; the worth of a first use. */
static atto_status use_device(atto_device *dev, int64_t n)
{
    atto_tensor x, y;
    atto_status status = atto_tensor_alloc(dev, ATTO_F32, atto_shape1(n), &x);
    if (status != ATTO_OK) return status;
    status = atto_tensor_alloc(dev, ATTO_F32, atto_shape1(n), &y);
    const struct atto_act_args a = { .x = &x, .y = &y, .dy = &x, .dx = &y, .act = atto_silu() };
    float *host = status == ATTO_OK ? calloc((size_t)n, sizeof *host) : NULL;
    if (status == ATTO_OK) status = atto_tensor_write(&x, host);
    if (status == ATTO_OK) status = atto_act_forward(dev, &a);
    if (status == ATTO_OK) status = atto_act_backward(dev, &a);
    if (status == ATTO_OK) status = use_kernel(dev, &x, &y);
    if (status == ATTO_OK) status = train_once(dev);
    if (status == ATTO_OK) status = atto_tensor_read(&y, host);
    free(host);
    atto_tensor_free(&x);
    atto_tensor_free(&y);
    return status;
}

/* Opening a GPU takes a quarter of a second: loops over open do fewer rounds there. */
static bool opens_slowly(void)
{
    atto_device_info info;
    MUST(atto_device_describe(test_dev, &info));
    return info.kind >= ATTO_KIND_INTEGRATED_GPU;
}

/* ---- list ---- */

static void device_list_describes_every_device(void **state)
{
    (void)state;
    atto_device_info infos[MOST];
    const int32_t count = list_devices(infos);
    for (int32_t i = 0; i < count; i++) {
        assert_int_equal(infos[i].index, i);
        assert_true(strlen(infos[i].name) > 0 && strlen(infos[i].platform) > 0);
        assert_in_range(infos[i].kind, ATTO_KIND_ACCELERATOR, ATTO_KIND_DISCRETE_GPU);
        assert_true(infos[i].problem[0] || infos[i].compute_units > 0);
        assert_true(infos[i].problem[0] || infos[i].memory_bytes > 0);
    }
    assert_string_equal(infos[count - 1].backend, "cpu"); /* always there, always last */
    assert_int_equal(infos[count - 1].kind, ATTO_KIND_CPU);
}

static void device_list_fills_what_there_is_room_for(void **state)
{
    (void)state;
    atto_device_info infos[MOST], one[2];
    const int32_t count = list_devices(infos);
    int32_t again = -1;
    memset(one, 0x77, sizeof one);
    MUST(atto_device_list(NULL, one, 1, &again));
    assert_int_equal(again, count);
    assert_string_equal(one[0].name, infos[0].name);
    assert_int_equal(one[1].name[0], 0x77); /* untouched */
    MUST(atto_device_list(NULL, NULL, 0, &again));
    assert_int_equal(again, count);
    EXPECT_FAIL(atto_device_list(NULL, one, 1, NULL), ATTO_E_NULL, "count");
    EXPECT_FAIL(atto_device_list(NULL, NULL, 1, &again), ATTO_E_NULL, "infos");
    EXPECT_FAIL(atto_device_list(NULL, one, -1, &again), ATTO_E_ARGUMENT, "capacity");
}

/* ---- open by name (B3, B4) ---- */

static void expect_backend(const char *name, const char *backend)
{
    atto_device *dev;
    atto_device_info info;
    MUST(atto_device_open(name, NULL, &dev));
    MUST(atto_device_describe(dev, &info));
    if (backend) assert_string_equal(info.backend, backend);
    assert_string_equal(info.problem, "");
    MUST(use_device(dev, 100));
    atto_device_close(dev);
}

static void device_open_takes_names_and_numbers(void **state)
{
    (void)state;
    unsetenv("ATTOCL_DEVICE");
    atto_device_info infos[MOST];
    const int32_t count = list_devices(infos);
    expect_backend(NULL, NULL);
    expect_backend("auto", NULL);
    expect_backend("cpu", "cpu");
    if (test_on_opencl()) expect_backend("opencl", "opencl");
    for (int32_t i = 0; i < count; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", (int)i);
        if (!infos[i].problem[0]) expect_backend(number, infos[i].backend);
    }
}

static void device_open_refuses_what_is_no_device(void **state)
{
    (void)state;
    atto_device_info infos[MOST];
    char number[16], range[32];
    const int32_t count = list_devices(infos);
    snprintf(range, sizeof range, "0 to %d", (int)count - 1);
    const int numbers[] = { -1, (int)count, INT_MAX };
    for (int i = 0; i < COUNT_OF(numbers); i++) {
        atto_device *dev = (atto_device *)&dev;
        snprintf(number, sizeof number, "%d", numbers[i]);
        EXPECT_FAIL(atto_device_open(number, NULL, &dev), ATTO_E_ARGUMENT, range);
        assert_null(dev);
    }
    atto_device *dev;
    EXPECT_FAIL(atto_device_open("no such device", NULL, &dev), ATTO_E_DEVICE, infos[0].name);
    EXPECT_FAIL(atto_device_open("", NULL, &dev), ATTO_E_ARGUMENT, "empty");
    EXPECT_FAIL(atto_device_open("cpu", NULL, NULL), ATTO_E_NULL, "out");
    EXPECT_FAIL(atto_device_open_abi(ATTO_ABI + 1, "cpu", NULL, &dev), ATTO_E_VERSION,
                atto_version());
    assert_null(dev);
    EXPECT_FAIL(atto_device_open_abi(0, "cpu", NULL, &dev), ATTO_E_VERSION, "ABI 0");
}

/* A part that several names share; found on most machines with PoCL. */
static void device_open_refuses_ambiguous_names(void **state)
{
    (void)state;
    atto_device_info infos[MOST];
    atto_device *dev;
    const int32_t count = list_devices(infos);
    if (count < 2) return;
    const char shared[2] = { infos[0].name[0], '\0' };
    for (int32_t i = 1; i < count; i++)
        if (strstr(infos[i].name, shared)) {
            EXPECT_FAIL(atto_device_open(shared, NULL, &dev), ATTO_E_DEVICE, infos[i].name);
            return;
        }
}

static void device_open_auto_obeys_the_environment(void **state)
{
    (void)state;
    atto_device *dev;
    atto_device_info info;
    setenv("ATTOCL_DEVICE", "cpu", 1);
    MUST(atto_device_open("auto", NULL, &dev));
    MUST(atto_device_describe(dev, &info));
    assert_string_equal(info.backend, "cpu");
    atto_device_close(dev);
    setenv("ATTOCL_DEVICE", "no such device", 1);
    EXPECT_FAIL(atto_device_open(NULL, NULL, &dev), ATTO_E_DEVICE, "no such device");
    MUST(atto_device_open("cpu", NULL, &dev)); /* a name in the program is not overruled */
    atto_device_close(dev);
    const atto_device_options options = { .ignore_environment = true };
    MUST(atto_device_open("auto", &options, &dev));
    atto_device_close(dev);
    unsetenv("ATTOCL_DEVICE");
}

static void device_open_uses_the_cpu_level_it_is_told(void **state)
{
    (void)state;
    const char *const levels[] = { "base", "avx2", "avx512" };
    for (int i = 0; i < COUNT_OF(levels); i++) {
        const atto_device_options options = { .ignore_environment = true, .cpu_level = levels[i] };
        atto_device *dev;
        atto_device_info info;
        MUST(atto_device_open("cpu", &options, &dev));
        MUST(atto_device_describe(dev, &info));
        int got = 0;
        while (strcmp(info.version, levels[got]) != 0) assert_true(++got < COUNT_OF(levels));
        assert_true(got <= i); /* less where processor or build have not got it */
        MUST(use_device(dev, 1000));
        atto_device_close(dev);
    }
}

/* ---- the other calls ---- */

static void device_calls_refuse_null(void **state)
{
    (void)state;
    atto_device_info info;
    atto_device_stats stats;
    EXPECT_FAIL(atto_device_describe(NULL, &info), ATTO_E_NULL, "device_describe");
    EXPECT_FAIL(atto_device_describe(test_dev, NULL), ATTO_E_NULL, "device_describe");
    EXPECT_FAIL(atto_device_stats_get(NULL, &stats), ATTO_E_NULL, "device_stats_get");
    EXPECT_FAIL(atto_device_stats_get(test_dev, NULL), ATTO_E_NULL, "device_stats_get");
    EXPECT_FAIL(atto_device_sync(NULL), ATTO_E_NULL, "device_sync");
    EXPECT_FAIL(atto_device_trim(NULL), ATTO_E_NULL, "device_trim");
    assert_false(atto_device_supports(NULL, ATTO_OP_ACT, ATTO_F32));
    assert_false(atto_device_supports(test_dev, ATTO_OP_COUNT, ATTO_F32));
    assert_false(atto_device_supports(test_dev, (atto_op)-1, ATTO_F32));
    assert_false(atto_device_supports(test_dev, ATTO_OP_ACT, (atto_dtype)0));
    assert_true(atto_device_supports(test_dev, ATTO_OP_DROPOUT, ATTO_BF16));
    atto_device_close(NULL);
    atto_event_destroy(NULL);
}

static void device_events_measure_time(void **state)
{
    (void)state;
    atto_event *start = NULL, *end = NULL;
    EXPECT_FAIL(atto_event_record(test_dev, &start), ATTO_E_STATE, "profile");
    assert_null(start);
    const atto_device_options options = { .profile = true };
    atto_device *dev;
    double ms = -1.0;
    MUST(atto_device_open(test_device_name(), &options, &dev));
    MUST(use_device(dev, 100));
    MUST(atto_event_record(dev, &start));
    MUST(use_device(dev, 1 << 20));
    MUST(atto_event_record(dev, &end));
    MUST(atto_event_elapsed(start, end, &ms));
    assert_true(ms > 0.0 && ms < 1e5);
    EXPECT_FAIL(atto_event_elapsed(NULL, end, &ms), ATTO_E_NULL, "start");
    EXPECT_FAIL(atto_event_elapsed(start, NULL, &ms), ATTO_E_NULL, "end");
    EXPECT_FAIL(atto_event_elapsed(start, end, NULL), ATTO_E_NULL, "out");
    atto_device_close(dev); /* events keep what they need */
    atto_event_destroy(start);
    atto_event_destroy(end);
    EXPECT_FAIL(atto_event_record(NULL, &start), ATTO_E_NULL, "dev");
    assert_null(start);
}

static void device_option_sync_waits_after_every_call(void **state)
{
    (void)state;
    const atto_device_options options = { .sync = true };
    atto_device *dev;
    MUST(atto_device_open(test_device_name(), &options, &dev));
    atto_tensor x;
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(10), &x));
    MUST(atto_tensor_fill(&x, 1.0));
    const struct atto_act_args a = { .x = &x, .y = &x, .act = atto_relu() };
    atto_device_stats before, after;
    MUST(atto_device_stats_get(dev, &before));
    for (int i = 0; i < 5; i++) MUST(atto_act_forward(dev, &a));
    MUST(atto_device_stats_get(dev, &after));
    if (test_on_opencl()) assert_true(after.blocking_calls >= before.blocking_calls + 5);
    atto_tensor_free(&x);
    atto_device_close(dev);
}

/* ---- threads and processes ---- */

typedef struct relay {
    atto_device *dev;
    atto_status status;
} relay;

static void *open_elsewhere(void *data)
{
    relay *r = data;
    r->status = atto_device_open(test_device_name(), NULL, &r->dev);
    return NULL;
}
static void *use_elsewhere(void *data)
{
    relay *r = data;
    r->status = use_device(r->dev, 50000);
    return NULL;
}
static void *close_elsewhere(void *data)
{
    relay *r = data;
    atto_device_close(r->dev);
    return NULL;
}

/* E3: opened in one thread, used in another, closed in a third. */
static void device_moves_between_threads(void **state)
{
    (void)state;
    void *(*const steps[])(void *) = { open_elsewhere, use_elsewhere, close_elsewhere };
    relay r = { NULL, ATTO_OK };
    for (int i = 0; i < COUNT_OF(steps); i++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, steps[i], &r), 0);
        pthread_join(thread, NULL);
        assert_int_equal(r.status, ATTO_OK);
    }
}

/* E5: after a fork the CPU backend works in the child, without the parent's threads. A number of
 * threads that is asked for is used also where other programs keep the processors busy. */
static void device_cpu_works_in_a_forked_child(void **state)
{
    (void)state;
    atto_device *dev;
    const atto_device_options threads = { .num_threads = 2 };
    MUST(atto_device_open("cpu", &threads, &dev));
    MUST(use_device(dev, 1 << 18));
    const pid_t child = fork();
    if (child == 0) {
        alarm(60); /* a hang ends as a signal */
        if (use_device(dev, 1 << 18) != ATTO_OK) _exit(1);
        atto_device *own; /* the child's OpenMP has no threads either */
        if (atto_device_open("cpu", &threads, &own) != ATTO_OK) _exit(2);
        _exit(use_device(own, 1 << 18) == ATTO_OK ? 0 : 3);
    }
    int status = -1;
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    atto_device_close(dev);
}

static int open_descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return 0;
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* D4: opening and closing again and again leaves nothing behind. */
static void device_open_and_close_leave_no_descriptors(void **state)
{
    (void)state;
    const int cycles = opens_slowly() ? 30 : 200;
    atto_device *dev;
    int before = 0;
    for (int i = 0; i < cycles; i++) {
        if (i == 3) before = open_descriptors(); /* drivers may keep what they open once */
        MUST(atto_device_open(test_device_name(), NULL, &dev));
        if (i % 20 == 0) MUST(use_device(dev, 1000));
        atto_device_close(dev);
    }
    assert_in_range(open_descriptors(), 0, before);
}

/* ---- silence and logs ---- */

typedef struct log_book {
    int lines, warnings;
    char last[512];
} log_book;

static void write_log(void *data, atto_log_level level, const char *message)
{
    log_book *book = data;
    book->lines++;
    book->warnings += level == ATTO_LOG_WARNING;
    assert_null(strchr(message, '\n')); /* a line, without its end */
    snprintf(book->last, sizeof book->last, "%s", message);
}

/* Sends stdout and stderr to a file; returns what restores them. */
typedef struct capture {
    FILE *file;
    int out, err;
} capture;

static capture capture_begin(void)
{
    fflush(NULL);
    capture c = { tmpfile(), dup(1), dup(2) };
    assert_non_null(c.file);
    dup2(fileno(c.file), 1);
    dup2(fileno(c.file), 2);
    return c;
}

static long capture_end(capture *c)
{
    fflush(NULL);
    dup2(c->out, 1);
    dup2(c->err, 2);
    close(c->out);
    close(c->err);
    struct stat info;
    fstat(fileno(c->file), &info);
    fclose(c->file);
    return (long)info.st_size;
}

static void device_logs_to_its_callback_and_never_prints(void **state)
{
    (void)state;
    log_book book = { 0, 0, "" };
    const atto_device_options options = { .log = write_log, .log_data = &book };
    const atto_device_options *const ways[] = { NULL, &options };
    for (int i = 0; i < 2; i++) {
        atto_device *dev = NULL;
        capture c = capture_begin();
        atto_status status = atto_device_open(test_device_name(), ways[i], &dev);
        if (status == ATTO_OK) status = use_device(dev, 1000);
        atto_act_forward(dev, NULL); /* failures do not print either */
        atto_device_close(dev);
        const long printed = capture_end(&c);
        assert_int_equal(status, ATTO_OK);
        assert_int_equal(printed, 0);
    }
    assert_true(book.lines > 0);
    assert_int_equal(book.warnings, 0);
}

/* ---- host memory ---- */

/* Counts what is held, and fails one allocation: the fail_at-th, from 1; 0 = none. */
typedef struct meter {
    long held, taken, fail_at;
} meter;

static void *meter_allocate(void *data, size_t bytes)
{
    meter *m = data;
    if (__atomic_add_fetch(&m->taken, 1, __ATOMIC_SEQ_CST) == m->fail_at) return NULL;
    void *block = malloc(bytes);
    if (block) __atomic_add_fetch(&m->held, 1, __ATOMIC_SEQ_CST);
    return block;
}

static void meter_release(void *data, void *pointer)
{
    meter *m = data;
    assert_non_null(pointer);
    __atomic_sub_fetch(&m->held, 1, __ATOMIC_SEQ_CST);
    free(pointer);
}

static atto_status life_of_a_device(void)
{
    atto_device *dev = NULL;
    atto_status status = atto_device_open(test_device_name(), NULL, &dev);
    if (status != ATTO_OK) {
        assert_null(dev);
        return status;
    }
    status = use_device(dev, 300);
    atto_device_close(dev);
    return status;
}

static meter host_meter; /* outlives a test that fails in the middle */
static long failure_step;

/* The whole library uses the allocator: test_dev, which holds memory of the other one, is closed
 * for the time being. */
static int close_test_device(void **state)
{
    (void)state;
    failure_step = opens_slowly() ? 7 : 1;
    atto_device_close(test_dev);
    test_dev = NULL;
    return 0;
}

static int reopen_test_device(void **state)
{
    (void)state;
    atto_set_allocator(NULL);
    return atto_device_open(test_device_name(), NULL, &test_dev) == ATTO_OK ? 0 : -1;
}

static void device_survives_every_failing_allocation(void **state)
{
    (void)state;
    const atto_allocator allocator = { meter_allocate, meter_release, &host_meter };
    host_meter = (meter){ 0, 0, 0 };
    MUST(atto_set_allocator(&allocator));
    MUST(life_of_a_device());
    assert_int_equal(host_meter.held, 0);
    assert_true(host_meter.taken > 0);
    const long step = test_in_disguise() ? 5 * failure_step : failure_step;
    long n = 1 - step, refused = 0;
    do {
        host_meter = (meter){ 0, 0, n += step };
        const atto_status status = life_of_a_device();
        if (status != ATTO_OK && status != ATTO_E_MEMORY)
            fail_msg("allocation %ld fails: %s: %s", n, atto_status_name(status),
                     atto_last_error());
        if (host_meter.held != 0)
            fail_msg("allocation %ld fails: %ld blocks leak", n, host_meter.held);
        refused += status == ATTO_E_MEMORY;
    } while (host_meter.taken >= n && n < 10000);
    assert_true(refused > 0); /* some allocation matters */
}

static void device_allocator_is_set_only_while_nothing_is_held(void **state)
{
    (void)state;
    meter m = { 0, 0, 0 };
    const atto_allocator good = { meter_allocate, meter_release, &m };
    const atto_allocator half = { meter_allocate, NULL, &m };
    EXPECT_FAIL(atto_set_allocator(&good), ATTO_E_STATE, "in use"); /* test_dev is open */
    EXPECT_FAIL(atto_set_allocator(&half), ATTO_E_NULL, "release");
    assert_int_equal(m.taken, 0);
}

/* ---- machines without OpenCL, played in a child process (B1, B6) ---- */

/* What the child does: everything must work on the CPU, and silently. */
#define HAS_DRIVERS 11

static int life_without_opencl(void)
{
    atto_device_info infos[MOST];
    int32_t count = 0;
    atto_device *dev = NULL;
    if (atto_device_list(NULL, infos, MOST, &count) != ATTO_OK) return 10;
    if (count != 1 || strcmp(infos[0].backend, "cpu") != 0) return HAS_DRIVERS;
    if (atto_device_open("opencl", NULL, &dev) != ATTO_E_DEVICE || dev) return 12;
    if (atto_device_open("auto", NULL, &dev) != ATTO_OK) return 13;
    if (use_device(dev, 1000) != ATTO_OK) return 14;
    atto_device_close(dev);
    return 0;
}

typedef struct child_result {
    int code;
    char output[512];
} child_result;

/* Runs this program again with one variable set. */
static child_result run_child(const char *variable, const char *value)
{
    child_result result = { -1, "" };
    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        dup2(pipe_ends[1], 1);
        dup2(pipe_ends[1], 2);
        close(pipe_ends[0]);
        close(pipe_ends[1]);
        setenv(variable, value, 1);
        unsetenv("ATTOCL_DEVICE");
        execl("/proc/self/exe", "test_device", "--without-opencl", (char *)NULL);
        _exit(126);
    }
    close(pipe_ends[1]);
    size_t have = 0;
    ssize_t got;
    while ((got = read(pipe_ends[0], result.output + have, sizeof result.output - 1 - have)) > 0)
        have += (size_t)got;
    close(pipe_ends[0]);
    int status = -1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
    return result;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void expect_silent_life(const char *variable, const char *folder, const char *what)
{
    const child_result r = run_child(variable, folder);
    if (r.code == HAS_DRIVERS && strcmp(variable, "OCL_ICD_VENDORS") == 0) {
        print_message("  SKIP: %s: this ICD loader does not obey OCL_ICD_VENDORS\n", what);
        return;
    }
    if (r.code != 0 || r.output[0])
        fail_msg("%s: exit code %d, printed: %s", what, r.code, r.output);
}

static void device_open_without_opencl_uses_the_cpu_silently(void **state)
{
    (void)state;
    char folder[] = "/tmp/atto-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    expect_silent_life("OCL_ICD_VENDORS", folder, "no driver");

    /* a driver that is not there; and loaders that cannot be loaded stand for missing ones */
    const char *const names[] = { "broken.icd", "libOpenCL.so", "libOpenCL.so.1" };
    char paths[3][64];
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
        write_text(paths[i], i == 0 ? "/nonexistent/libbroken.so\n" : "");
    }
    expect_silent_life("OCL_ICD_VENDORS", folder, "a driver whose library is missing");
    expect_silent_life("LD_LIBRARY_PATH", folder, "no libOpenCL");
    for (int i = 0; i < 3; i++) unlink(paths[i]);
    rmdir(folder);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(device_list_describes_every_device),
    cmocka_unit_test(device_list_fills_what_there_is_room_for),
    cmocka_unit_test(device_open_takes_names_and_numbers),
    cmocka_unit_test(device_open_refuses_what_is_no_device),
    cmocka_unit_test(device_open_refuses_ambiguous_names),
    cmocka_unit_test(device_open_auto_obeys_the_environment),
    cmocka_unit_test(device_open_uses_the_cpu_level_it_is_told),
    cmocka_unit_test(device_calls_refuse_null),
    cmocka_unit_test(device_events_measure_time),
    cmocka_unit_test(device_option_sync_waits_after_every_call),
    cmocka_unit_test(device_moves_between_threads),
    cmocka_unit_test(device_cpu_works_in_a_forked_child),
    cmocka_unit_test(device_open_and_close_leave_no_descriptors),
    cmocka_unit_test(device_logs_to_its_callback_and_never_prints),
    cmocka_unit_test_setup_teardown(device_survives_every_failing_allocation, close_test_device,
                                    reopen_test_device),
    cmocka_unit_test(device_allocator_is_set_only_while_nothing_is_held),
    cmocka_unit_test(device_open_without_opencl_uses_the_cpu_silently),
};

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--without-opencl") == 0) return life_without_opencl();
    return test_main("device", tests, COUNT_OF(tests));
}
