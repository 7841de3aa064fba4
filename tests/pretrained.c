/* SPDX-License-Identifier: MIT */
#include "pretrained.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ---- */

static FILE *open_file(const char *name, const char *suffix)
{
    char path[512];
    snprintf(path, sizeof path, ATTO_PRETRAINED_DIR "/%s%s", name, suffix);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    return file;
}

static bool is_dtype(const pretrained_array *a, const char *dtype)
{
    return strcmp(a->dtype, dtype) == 0;
}

static size_t bytes_of(const pretrained_array *a)
{
    const size_t size = is_dtype(a, "f32") ? 4 : is_dtype(a, "s16") ? 2 : 1;
    assert_true(size > 1 || is_dtype(a, "u8"));
    return size * (size_t)a->count;
}

/* A line: name dtype rank size size ... */
static bool read_line(FILE *index, pretrained_array *a)
{
    int rank;
    if (fscanf(index, " %47s %7s %d", a->name, a->dtype, &rank) != 3) return false;
    assert_in_range(rank, 0, ATTO_MAX_RANK);
    a->shape = (atto_shape){ .rank = rank };
    a->count = 1;
    a->is_loaded = false;
    for (int d = 0; d < rank; d++) {
        long long size;
        assert_int_equal(fscanf(index, "%lld", &size), 1);
        a->shape.dim[d] = size;
        a->count *= size;
    }
    return true;
}

/* Returns how many bytes the arrays have. */
static size_t read_index(pretrained *p, const char *name)
{
    FILE *file = open_file(name, ".txt");
    size_t bytes = 0;
    p->count = 0;
    assert_int_equal(fscanf(file, "#%*[^\n]"), 0);
    while (p->count < COUNT_OF(p->arrays) && read_line(file, &p->arrays[p->count]))
        bytes += bytes_of(&p->arrays[p->count++]);
    assert_true(feof(file));
    fclose(file);
    return bytes;
}

void pretrained_open(pretrained *p, const char *name)
{
    const size_t bytes = read_index(p, name);
    p->bytes = malloc(bytes + 1); /* one more than there should be */
    assert_non_null(p->bytes);
    FILE *file = open_file(name, ".bin");
    assert_int_equal(fread(p->bytes, 1, bytes + 1, file), bytes);
    fclose(file);
    const unsigned char *data = p->bytes;
    for (int i = 0; i < p->count; i++) {
        p->arrays[i].data = data;
        data += bytes_of(&p->arrays[i]);
    }
}

void pretrained_close(pretrained *p)
{
    free(p->bytes);
}

/* ---- arrays ---- */

static pretrained_array *find(pretrained *p, const char *name)
{
    for (int i = 0; i < p->count; i++)
        if (strcmp(p->arrays[i].name, name) == 0) return &p->arrays[i];
    fail_msg("no array is named %s", name);
    return NULL;
}

const pretrained_array *pretrained_find(pretrained *p, const char *name)
{
    return find(p, name);
}

float *pretrained_floats(const pretrained_array *a)
{
    float *out = malloc((size_t)a->count * sizeof *out);
    assert_non_null(out);
    for (int64_t i = 0; i < a->count; i++) {
        int16_t sample;
        if (is_dtype(a, "u8")) out[i] = a->data[i];
        if (is_dtype(a, "f32")) memcpy(&out[i], a->data + 4 * i, 4);
        if (!is_dtype(a, "s16")) continue;
        memcpy(&sample, a->data + 2 * i, 2);
        out[i] = sample;
    }
    return out;
}

/* ---- modules ---- */

typedef struct source {
    pretrained *from;
    const char *prefix;
} source;

static const void *take(const source *s, const char *key, const atto_tensor *like)
{
    char name[96];
    snprintf(name, sizeof name, "%s%s%s", s->prefix, s->prefix[0] ? "." : "", key);
    pretrained_array *a = find(s->from, name);
    const size_t sizes = (size_t)like->rank * sizeof *like->shape;
    if (a->is_loaded) fail_msg("%s is loaded twice", name);
    if (!is_dtype(a, "f32") || like->dtype != ATTO_F32) fail_msg("%s is not f32", name);
    if (a->shape.rank != like->rank || memcmp(a->shape.dim, like->shape, sizes) != 0)
        fail_msg("%s has another shape than the module's", name);
    a->is_loaded = true;
    return a->data;
}

static atto_status load_param(void *s, const char *key, atto_param *p)
{
    const atto_tensor value = atto_param_value(p);
    return atto_param_write(p, take(s, key, &value));
}

static atto_status load_buffer(void *s, const char *key, const atto_tensor *t)
{
    if (strstr(key, "num_batches_tracked")) return ATTO_OK;
    return atto_tensor_write(t, take(s, key, t));
}

void pretrained_load(pretrained *p, const char *prefix, atto_module *m)
{
    source s = { p, prefix };
    MUST(atto_module_params(m, load_param, &s));
    MUST(atto_module_buffers(m, load_buffer, &s));
}

void pretrained_expect_all_loaded(const pretrained *p)
{
    for (int i = 0; i < p->count - 2; i++) /* the last two are outputs and inputs */
        if (!p->arrays[i].is_loaded) fail_msg("%s is not loaded", p->arrays[i].name);
}
