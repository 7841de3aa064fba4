/* SPDX-License-Identifier: MIT */
/* Kernels of the OpenCL backend as files: the cache of built ones, damaged in every way, and
 * sources that do not build, which must send their op to the CPU. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "atto_test.h"

#define PATH_SIZE 1024

/* ---- logs ---- */

typedef struct log_book {
    int warnings, fallbacks;
    char last_warning[1024];
} log_book;

static void write_log(void *data, atto_log_level level, const char *message)
{
    log_book *book = data;
    if (level != ATTO_LOG_WARNING) return;
    book->warnings++;
    book->fallbacks += strstr(message, "runs on the CPU") != NULL;
    snprintf(book->last_warning, sizeof book->last_warning, "%s", message);
}

/* ---- one use of a device ---- */

/* relu of -2, -1, 0, 1, ...; whether the answer is right. */
static bool relu_is_right(atto_device *dev)
{
    enum { N = 1000 };
    float x[N], y[N];
    atto_tensor tx, ty;
    for (int i = 0; i < N; i++) x[i] = (float)(i - 2);
    if (atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &tx) != ATTO_OK) return false;
    if (atto_tensor_alloc(dev, ATTO_F32, atto_shape1(N), &ty) != ATTO_OK) return false;
    const struct atto_act_args a = { .x = &tx, .y = &ty, .act = atto_relu() };
    bool right = atto_tensor_write(&tx, x) == ATTO_OK && atto_act_forward(dev, &a) == ATTO_OK &&
                 atto_tensor_read(&ty, y) == ATTO_OK;
    for (int i = 0; i < N && right; i++) right = y[i] == (i < 2 ? 0.0f : x[i]);
    atto_tensor_free(&tx);
    atto_tensor_free(&ty);
    return right;
}

/* The first OpenCL device with this cache: it must work whatever the cache holds, without a word.
 */
static atto_device_stats use_cache(const char *folder, bool no_cache)
{
    log_book book = { 0, 0, "" };
    const atto_device_options options = { .ignore_environment = true,
                                          .cache_dir = folder,
                                          .no_cache = no_cache,
                                          .no_fallback = true,
                                          .log = write_log,
                                          .log_data = &book };
    atto_device *dev;
    atto_device_stats stats;
    MUST(atto_device_open("opencl", &options, &dev));
    if (!relu_is_right(dev)) fail_msg("with cache %s: %s", folder, atto_last_error());
    MUST(atto_device_stats_get(dev, &stats));
    atto_device_close(dev);
    if (book.warnings) fail_msg("with cache %s a warning: %s", folder, book.last_warning);
    return stats;
}

/* ---- folders ---- */

typedef void (*file_fn)(const char *path);

static void each_file(const char *folder, file_fn body, int *count)
{
    char path[PATH_SIZE];
    DIR *dir = opendir(folder);
    *count = 0;
    for (struct dirent *entry = dir ? readdir(dir) : NULL; entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%.500s/%.500s", folder, entry->d_name);
        if (body) body(path);
        (*count)++;
    }
    if (dir) closedir(dir);
}

static int file_count(const char *folder)
{
    int count;
    each_file(folder, NULL, &count);
    return count;
}

static void remove_any(const char *path)
{
    if (unlink(path) != 0) rmdir(path);
}

static void remove_folder(const char *folder)
{
    int count;
    each_file(folder, remove_any, &count);
    rmdir(folder);
}

static char *make_folder(void)
{
    static char folder[32];
    snprintf(folder, sizeof folder, "/tmp/atto-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* ---- damage ---- */

static long size_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (long)info.st_size : -1;
}

static void flip_bit(const char *path, long at)
{
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    fseek(file, at, SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 4, file);
    fclose(file);
}

static void empty_file(const char *path)
{
    assert_int_equal(truncate(path, 0), 0);
}
static void cut_in_half(const char *path)
{
    assert_int_equal(truncate(path, size_of(path) / 2), 0);
}
static void cut_one_byte(const char *path)
{
    assert_int_equal(truncate(path, size_of(path) - 1), 0);
}
static void cut_after_eight(const char *path)
{
    assert_int_equal(truncate(path, 8), 0);
}
static void grow_by_one(const char *path)
{
    assert_int_equal(truncate(path, size_of(path) + 1), 0);
}
static void flip_first(const char *path)
{
    flip_bit(path, 0);
}
static void flip_twentieth(const char *path)
{
    flip_bit(path, 20);
}
static void flip_middle(const char *path)
{
    flip_bit(path, size_of(path) / 2);
}
static void flip_last(const char *path)
{
    flip_bit(path, size_of(path) - 1);
}
static void make_directory(const char *path)
{
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
}
static void dangle(const char *path)
{
    unlink(path);
    assert_int_equal(symlink("/nonexistent/file", path), 0);
}

/* The entries change names with each other: right in themselves, but another kernel's. */
static char first_entry[PATH_SIZE];
static void swap_entries(const char *path)
{
    char aside[PATH_SIZE + 8];
    if (!first_entry[0]) snprintf(first_entry, sizeof first_entry, "%s", path);
    if (strcmp(path, first_entry) == 0) return;
    snprintf(aside, sizeof aside, "%s.aside", path);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(rename(first_entry, path), 0);
    assert_int_equal(rename(aside, first_entry), 0);
}

static const struct damage_row {
    const char *what;
    file_fn damage;
    bool replaced; /* the next use finds a good entry again */
} damages[] = {
    { "0 bytes", empty_file, true },
    { "cut in half", cut_in_half, true },
    { "cut by one byte", cut_one_byte, true },
    { "8 bytes", cut_after_eight, true },
    { "one byte more", grow_by_one, true },
    { "first byte flipped", flip_first, true },
    { "byte 20 flipped", flip_twentieth, true },
    { "middle flipped", flip_middle, true },
    { "last byte flipped", flip_last, true },
    { "dangling link", dangle, true },
    { "a directory", make_directory, false },
    { "other kernels' entries", swap_entries, true },
};

/* ---- the cache (D1, D3) ---- */

static void kernels_are_built_once_and_then_loaded(void **state)
{
    (void)state;
    const char *folder = make_folder();
    const atto_device_stats cold = use_cache(folder, false);
    assert_true(cold.kernels_built > 0);
    assert_int_equal(cold.kernels_loaded, 0);
    const int files = file_count(folder);
    assert_true(files >= (int)cold.kernels_built); /* the probe's too, before counting starts */
    const atto_device_stats warm = use_cache(folder, false);
    assert_int_equal(warm.kernels_built, 0);
    assert_int_equal(warm.kernels_loaded, cold.kernels_built);
    assert_int_equal(file_count(folder), files);
    remove_folder(folder);
}

static void kernels_survive_any_damage_of_the_cache(void **state)
{
    (void)state;
    const char *folder = make_folder();
    const atto_device_stats cold = use_cache(folder, false);
    for (int i = 0; i < COUNT_OF(damages); i++) {
        int count;
        first_entry[0] = '\0';
        each_file(folder, damages[i].damage, &count);
        const atto_device_stats hurt = use_cache(folder, false);
        if (hurt.kernels_built == 0) fail_msg("%s: a damaged entry was used", damages[i].what);
        const atto_device_stats after = use_cache(folder, false);
        const bool good = after.kernels_built == 0 && after.kernels_loaded == cold.kernels_built;
        if (damages[i].replaced && !good)
            fail_msg("%s: the entry was not replaced (%d built)", damages[i].what,
                     (int)after.kernels_built);
        if (damages[i].replaced) continue;
        each_file(folder, remove_any, &count);
        use_cache(folder, false);
    }
    remove_folder(folder);
}

static void kernels_do_not_need_a_cache(void **state)
{
    (void)state;
    const char *folder = make_folder();
    char path[PATH_SIZE];
    use_cache(folder, true); /* no_cache: nothing is written */
    assert_int_equal(file_count(folder), 0);
    write_text(folder, "file", "");
    snprintf(path, sizeof path, "%s/file/below", folder); /* a folder that cannot be made */
    assert_true(use_cache(path, false).kernels_built > 0);
    assert_true(use_cache("/proc/attocl", false).kernels_built > 0); /* nor written, even by root */
    snprintf(path, sizeof path, "%s/a/b/c", folder);                 /* one that can: parents too */
    use_cache(path, false);
    assert_true(file_count(path) > 0);
    remove_folder(path);
    snprintf(path, sizeof path, "%s/a/b", folder);
    remove_folder(path);
    snprintf(path, sizeof path, "%s/a", folder);
    remove_folder(path);
    remove_folder(folder);
}

/* D3: many processes meet an empty cache at once, where one was killed while it wrote. */
static void kernels_are_cached_by_many_processes_at_once(void **state)
{
    (void)state;
    enum { PROCESSES = 4 };
    const char *folder = make_folder();
    write_text(folder, "0123456789abcdef0123456789abcdef.bin.Ab12Cd", "half a fi");
    pid_t children[PROCESSES];
    fflush(NULL);
    for (int i = 0; i < PROCESSES; i++) {
        children[i] = fork();
        if (children[i] != 0) continue;
        execl("/proc/self/exe", "test_program", "--use-cache", folder, (char *)NULL);
        _exit(126);
    }
    for (int i = 0; i < PROCESSES; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    const int files = file_count(folder);
    const atto_device_stats after = use_cache(folder, false);
    assert_int_equal(after.kernels_built, 0);
    assert_in_range(after.kernels_loaded, 1, files - 1); /* the stale file is none of them */
    assert_true(files <= (int)after.kernels_loaded + 2); /* nor did temporary files stay */
    remove_folder(folder);
}

static int use_cache_as_a_child(const char *folder)
{
    const atto_device_options options = { .ignore_environment = true,
                                          .cache_dir = folder,
                                          .no_fallback = true };
    atto_device *dev;
    if (atto_device_open("opencl", &options, &dev) != ATTO_OK) return 1;
    const bool right = relu_is_right(dev);
    atto_device_close(dev);
    return right ? 0 : 2;
}

/* ---- sources that do not build ---- */

static const char broken_source[] = "/* line 1 */\n/* line 2 */\nthis is no OpenCL C;\n";

static void open_with_sources(const char *folder, bool no_fallback, log_book *book,
                              atto_device **dev)
{
    const atto_device_options options = { .ignore_environment = true,
                                          .kernel_dir = folder,
                                          .no_fallback = no_fallback,
                                          .no_cache = true,
                                          .log = write_log,
                                          .log_data = book };
    MUST(atto_device_open("opencl", &options, dev));
}

/* Forward and backward of one layout, in f16, judged by the oracle; gaps keep their contents, and
 * the mask belongs to the elements also where the output's order of dimensions is another one. */
static void check_fallback(atto_device *dev, test_layout layout, bool add)
{
    enum { N = 3 * 7 };
    double x[N], dy[N], y[N], dx[N], want[N], dwant[N];
    test_tensor tx, ty, tdy, tdx;
    test_tensor *all[] = { &tx, &ty, &tdy, &tdx };
    for (int i = 0; i < 4; i++) test_tensor_make(all[i], dev, ATTO_F16, atto_shape2(3, 7), layout);
    test_uniform(1, -3.0, 3.0, ATTO_F16, x, N);
    test_uniform(2, -3.0, 3.0, ATTO_F16, dy, N);
    test_tensor_put(&tx, x);
    test_tensor_put(&tdy, dy);
    if (add) test_tensor_put(&tdx, x);
    const struct atto_act_args a = { .x = &tx.view,
                                     .y = &ty.view,
                                     .dy = &tdy.view,
                                     .dx = &tdx.view,
                                     .add_dx = add,
                                     .act = atto_relu(),
                                     .dropout = 0.5f,
                                     .rng = { .seed = 5 } };
    MUST(atto_act_forward(dev, &a));
    MUST(atto_act_backward(dev, &a));
    test_tensor_get(&ty, y);
    test_tensor_get(&tdx, dx);
    assert_true(test_tensor_untouched(&tx) && test_tensor_untouched(&tdy));
    for (int i = 0; i < N; i++) {
        const bool passes = x[i] > 0.0 && oracle_keep(a.rng, a.dropout, i);
        want[i] = passes ? 2.0 * x[i] : 0.0;
        dwant[i] = oracle_round(ATTO_F16, (passes ? 2.0 * dy[i] : 0.0) + (add ? x[i] : 0.0));
    }
    const test_about about = { "relu and dropout on the CPU instead", test_layout_name(layout),
                               ATTO_F16, atto_shape2(3, 7), 1 };
    expect_equal(&about, y, want, N);
    expect_equal(&about, dx, dwant, N);
    for (int i = 0; i < 4; i++) test_tensor_drop(all[i]);
}

static void kernels_that_do_not_build_run_on_the_cpu(void **state)
{
    (void)state;
    const test_layout layouts[] = { LAYOUT_DENSE, LAYOUT_OFFSET, LAYOUT_PITCHED, LAYOUT_TRANSPOSED,
                                    LAYOUT_STEP2 };
    log_book book = { 0, 0, "" };
    const char *folder = make_folder();
    atto_device *dev;
    atto_device_stats stats;
    write_text(folder, "act.cl", broken_source);
    open_with_sources(folder, false, &book, &dev);
    assert_int_equal(book.warnings, 0);
    for (int i = 0; i < COUNT_OF(layouts); i++) check_fallback(dev, layouts[i], i % 2);
    MUST(atto_device_stats_get(dev, &stats));
    assert_int_equal(stats.fallbacks, 2 * COUNT_OF(layouts));
    assert_int_equal(book.fallbacks, 2); /* once for forward, once for backward */
    assert_false(atto_device_supports(dev, ATTO_OP_ACT, ATTO_F16));
    assert_true(atto_device_supports(dev, ATTO_OP_DROPOUT, ATTO_F16));
    atto_device_close(dev);
    remove_folder(folder);
}

/* Empty tensors, which have no buffer, come along: of a product over nothing the bias is left. */
static void kernels_that_do_not_build_leave_empty_tensors_be(void **state)
{
    (void)state;
    const float bias[3] = { 1.0f, -2.0f, 0.5f };
    float got[6];
    log_book book = { 0, 0, "" };
    const char *folder = make_folder();
    atto_device *dev;
    atto_device_stats stats;
    atto_tensor b, y;
    write_text(folder, "gemm.cl", broken_source);
    open_with_sources(folder, false, &book, &dev);
    const atto_tensor x = atto_tensor_of(NULL, ATTO_F32, atto_shape2(2, 0), 0);
    const atto_tensor w = atto_tensor_of(NULL, ATTO_F32, atto_shape2(3, 0), 0);
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape1(3), &b));
    MUST(atto_tensor_alloc(dev, ATTO_F32, atto_shape2(2, 3), &y));
    MUST(atto_tensor_write(&b, bias));
    const struct atto_linear_args a = { .x = &x, .w = &w, .b = &b, .y = &y };
    MUST(atto_linear_forward(dev, &a));
    MUST(atto_tensor_read(&y, got));
    assert_memory_equal(got, bias, sizeof bias);
    assert_memory_equal(got + 3, bias, sizeof bias);
    MUST(atto_device_stats_get(dev, &stats));
    assert_int_equal(stats.fallbacks, 1);
    atto_tensor_free(&b);
    atto_tensor_free(&y);
    atto_device_close(dev);
    remove_folder(folder);
}

/* p = 1, dp = (3, 4), whose norm 5 is clipped to 2.5: twice lr 0.125 of (1.5, 2). */
static void check_optimizer_fallback(atto_device *dev, bool works)
{
    const uint16_t ones[2] = { 0x3f80, 0x3f80 }, gradient[2] = { 0x4040, 0x4080 }; /* bf16 */
    uint16_t value[2];
    atto_param *p;
    atto_optimizer *opt;
    atto_tensor grad;
    bool add;
    MUST(atto_param_create(dev, ATTO_BF16, atto_shape1(2), &p));
    MUST(atto_param_write(p, ones));
    const atto_sgd_options options = { .momentum = 1.0, .set = { .params = &p, .count = 1 } };
    MUST(atto_sgd_create(NULL, 0.125, &options, &opt));
    MUST(atto_optimizer_clip_norm(opt, 2.5000005)); /* over 5.000001 */
    for (int s = 0; s < 2 && works; s++) {
        MUST(atto_param_grad_target(p, &grad, &add));
        MUST(atto_tensor_write(&grad, gradient));
        MUST(atto_optimizer_step(opt, 0.125)); /* the buffer holds one, then two gradients */
    }
    MUST(atto_param_grad_target(p, &grad, &add));
    if (!works) EXPECT_FAIL(atto_optimizer_step(opt, 0.125), ATTO_E_BUILD, "optim.cl:3|error");
    MUST(atto_param_read(p, value));
    assert_int_equal(value[0], works ? 0x3ee0 : 0x3f80); /* 1 - 3 * 0.1875 = 0.4375 */
    assert_int_equal(value[1], works ? 0x3e80 : 0x3f80); /* 1 - 3 * 0.25 = 0.25 */
    atto_optimizer_free(opt);
    atto_param_free(p);
}

static void kernels_of_optimisers_run_on_the_cpu(void **state)
{
    (void)state;
    log_book book = { 0, 0, "" };
    const char *folder = make_folder();
    atto_device *dev;
    atto_device_stats stats;
    write_text(folder, "optim.cl", broken_source);
    open_with_sources(folder, false, &book, &dev);
    check_optimizer_fallback(dev, true);
    MUST(atto_device_stats_get(dev, &stats));
    assert_int_equal(stats.fallbacks, 2 * 3); /* norm, begin, step */
    assert_int_equal(book.fallbacks, 1);
    atto_device_close(dev);
    open_with_sources(folder, true, &book, &dev);
    check_optimizer_fallback(dev, false);
    atto_device_close(dev);
    remove_folder(folder);
}

/* With no_fallback the caller gets the compiler's words. */
static void kernels_that_do_not_build_are_an_error_when_told(void **state)
{
    (void)state;
    log_book book = { 0, 0, "" };
    const char *folder = make_folder();
    atto_device *dev;
    test_tensor x, y;
    write_text(folder, "act.cl", broken_source);
    open_with_sources(folder, true, &book, &dev);
    test_tensor_make(&x, dev, ATTO_F32, atto_shape1(9), LAYOUT_DENSE);
    test_tensor_make(&y, dev, ATTO_F32, atto_shape1(9), LAYOUT_DENSE);
    const struct atto_act_args a = { .x = &x.view, .y = &y.view, .act = atto_relu() };
    for (int i = 0; i < 2; i++) /* the second time from memory */
        EXPECT_FAIL(atto_act_forward(dev, &a), ATTO_E_BUILD, "act.cl:3|error");
    assert_true(test_tensor_untouched(&y));
    const struct atto_dropout_args drop = { .x = &x.view, .y = &y.view, .p = 0.5f };
    MUST(atto_dropout_forward(dev, &drop)); /* the rest works */
    test_tensor_drop(&x);
    test_tensor_drop(&y);
    atto_device_close(dev);
    remove_folder(folder);
}

/* The same file, complete, from a folder: used instead of the one in the library. */
static void kernels_come_from_the_kernel_dir(void **state)
{
    (void)state;
    log_book book = { 0, 0, "" };
    atto_device *dev;
    const char *const folders[] = { ATTO_KERNEL_SOURCES, "/nonexistent" };
    for (int i = 0; i < COUNT_OF(folders); i++) {
        open_with_sources(folders[i], true, &book, &dev);
        assert_true(relu_is_right(dev));
        atto_device_close(dev);
    }
    assert_int_equal(book.warnings, 0);
}

/* Probes that do not build, or compute nonsense: such a device stays closed, "auto" goes on. */
static const char *const bad_probes[] = {
    broken_source,
    "#include \"atto_kernel.h\"\n"
    "ATTO_KERNEL void atto_probe(__global uint *out, const ulong at)\n"
    "{\n"
    "    if (get_local_id(0) == 0) out[at] = 12345;\n"
    "}\n",
};

static void kernels_that_fail_the_probe_keep_a_device_closed(void **state)
{
    (void)state;
    const char *folder = make_folder();
    for (int i = 0; i < COUNT_OF(bad_probes); i++) {
        const atto_device_options options = { .ignore_environment = true,
                                              .kernel_dir = folder,
                                              .no_cache = true };
        atto_device *dev;
        atto_device_info info;
        write_text(folder, "probe.cl", bad_probes[i]);
        EXPECT_FAIL(atto_device_open("opencl", &options, &dev), ATTO_E_DEVICE, "does not work");
        assert_null(dev);
        MUST(atto_device_open("auto", &options, &dev)); /* the CPU is left */
        MUST(atto_device_describe(dev, &info));
        assert_string_equal(info.backend, "cpu");
        assert_true(relu_is_right(dev));
        atto_device_close(dev);
    }
    remove_folder(folder);
}

/* A tail may have more elements than a tiny work-group has work-items. */
static void kernels_write_every_tail_with_the_smallest_groups(void **state)
{
    (void)state;
    for (int32_t group = 1; group <= 4; group *= 2) {
        const atto_device_options options = { .max_work_group = group };
        atto_device *dev;
        MUST(atto_device_open("opencl", &options, &dev));
        for (int n = 1; n <= 17; n++) {
            double x[17], got[17];
            test_tensor from, to, copied;
            test_tensor_make(&from, dev, ATTO_F16, atto_shape1(n), LAYOUT_DENSE);
            test_tensor_make(&to, dev, ATTO_F16, atto_shape1(n), LAYOUT_DENSE);
            test_tensor_make(&copied, dev, ATTO_F32, atto_shape1(n), LAYOUT_DENSE);
            for (int i = 0; i < n; i++) x[i] = i + 1;
            test_tensor_put(&from, x);
            const struct atto_act_args a = { .x = &from.view, .y = &to.view, .act = atto_relu() };
            const test_about about = { "relu", "dense", ATTO_F16, atto_shape1(n), 0 };
            MUST(atto_act_forward(dev, &a));
            MUST(atto_tensor_copy(&copied.view, &to.view));
            test_tensor_get(&to, got);
            expect_equal(&about, got, x, n);
            test_tensor_get(&copied, got);
            expect_equal(&about, got, x, n);
            test_tensor_drop(&from);
            test_tensor_drop(&to);
            test_tensor_drop(&copied);
        }
        atto_device_close(dev);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(kernels_write_every_tail_with_the_smallest_groups),
    cmocka_unit_test(kernels_are_built_once_and_then_loaded),
    cmocka_unit_test(kernels_survive_any_damage_of_the_cache),
    cmocka_unit_test(kernels_do_not_need_a_cache),
    cmocka_unit_test(kernels_are_cached_by_many_processes_at_once),
    cmocka_unit_test(kernels_that_do_not_build_run_on_the_cpu),
    cmocka_unit_test(kernels_that_do_not_build_leave_empty_tensors_be),
    cmocka_unit_test(kernels_of_optimisers_run_on_the_cpu),
    cmocka_unit_test(kernels_that_do_not_build_are_an_error_when_told),
    cmocka_unit_test(kernels_come_from_the_kernel_dir),
    cmocka_unit_test(kernels_that_fail_the_probe_keep_a_device_closed),
};

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--use-cache") == 0) return use_cache_as_a_child(argv[2]);
    return test_main("program", tests, COUNT_OF(tests));
}
