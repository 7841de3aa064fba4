/* SPDX-License-Identifier: MIT */
/* Tensors of a case: inputs from the store, outputs that start as NaN, arrays for the oracle. */
#include "scene.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "atto_test.h"
#include "draw.h"

typedef enum role { INPUT, STATE, OUTPUT } role;

typedef struct member {
    const char *name;
    role role;
    grid_pass pass; /* that writes it */
    bool judged;
    atto_tensor t;
    const double *held; /* what it holds, once asked for */
    double *want, *terms, *extra, *allowed;
    char file[GRID_PATH];
} member;

struct grid_scene {
    grid_store *store;
    grid_case c;
    member members[GRID_TENSORS];
    int count;
    atto_status status; /* the first failure of building */
    void *arrays[8 * GRID_TENSORS];
    int array_count;
};

const grid_case *grid_case_of(const grid_scene *s)
{
    return &s->c;
}

/* ---- memory ---- */

/* The program cannot go on without it. */
static void *must_have(void *memory)
{
    if (memory) return memory;
    fputs("acceptance: out of memory\n", stderr);
    exit(2);
}

void *grid_array(grid_scene *s, int64_t numel)
{
    void *array = must_have(calloc(numel > 0 ? (size_t)numel : 1, sizeof(double)));
    if (s->array_count == COUNT_OF(s->arrays)) must_have(NULL);
    return s->arrays[s->array_count++] = array;
}

grid_scene *grid_scene_create(grid_store *store, const grid_case *c)
{
    grid_scene *s = must_have(calloc(1, sizeof *s));
    s->store = store;
    s->c = *c;
    c->family->build(s);
    if (s->status == ATTO_OK) return s;
    fprintf(stderr, "acceptance: %s: %s\n", c->family->name, atto_last_error());
    grid_scene_destroy(s);
    return NULL;
}

void grid_scene_destroy(grid_scene *s)
{
    if (!s) return;
    for (int i = 0; i < s->count; i++)
        if (s->members[i].role != INPUT) atto_tensor_free(&s->members[i].t);
    for (int i = 0; i < s->array_count; i++) free(s->arrays[i]);
    free(s);
}

/* ---- members ---- */

static member *add(grid_scene *s, const char *name, role what, grid_pass pass, bool judged)
{
    if (s->count == GRID_TENSORS) must_have(NULL);
    member *m = &s->members[s->count++];
    *m = (member){ .name = name, .role = what, .pass = pass, .judged = judged };
    return m;
}

static void note(grid_scene *s, atto_status status)
{
    if (s->status == ATTO_OK) s->status = status;
}

static const grid_stored *stored(grid_scene *s, atto_dtype dtype, atto_shape shape, grid_draw draw,
                                 int64_t limit, uint64_t seed)
{
    const grid_stored *found = NULL;
    const int64_t n = grid_product(shape, 0, shape.rank);
    note(s, grid_store_get(s->store, (grid_recipe){ draw, seed, limit, dtype, n }, &found));
    return found;
}

static void add_input(grid_scene *s, const char *name, atto_dtype dtype, atto_shape shape,
                      grid_draw draw, int64_t limit, uint64_t seed)
{
    const grid_stored *found = stored(s, dtype, shape, draw, limit, seed);
    if (!found) return;
    member *m = add(s, name, INPUT, GRID_FORWARD, false);
    m->t = atto_tensor_of(found->t.buffer, dtype, shape, 0);
    m->held = found->values;
    snprintf(m->file, sizeof m->file, "%s", found->file);
}

void grid_input(grid_scene *s, const char *name, atto_dtype dtype, atto_shape shape, grid_draw draw,
                uint64_t seed)
{
    const int64_t columns = shape.dim[shape.rank - 1];
    add_input(s, name, dtype, shape, draw, draw == GRID_WEIGHT ? columns : 0, seed);
}

void grid_labels(grid_scene *s, const char *name, atto_shape shape, int64_t classes, uint64_t seed)
{
    add_input(s, name, ATTO_I64, shape, GRID_LABEL, classes, seed);
}

void grid_output(grid_scene *s, const char *name, atto_dtype dtype, atto_shape shape,
                 grid_pass pass, bool judged)
{
    member *m = add(s, name, OUTPUT, pass, judged);
    const bool is_float = dtype <= ATTO_BF16;
    note(s, atto_tensor_alloc(grid_store_device(s->store), dtype, shape, &m->t));
    if (s->status == ATTO_OK) note(s, atto_tensor_fill(&m->t, is_float ? (double)NAN : -7.0));
}

void grid_state(grid_scene *s, const char *name, atto_shape shape, grid_draw draw, uint64_t seed)
{
    const grid_stored *found = stored(s, ATTO_F32, shape, draw, 0, seed);
    if (!found) return;
    member *m = add(s, name, STATE, GRID_FORWARD, true);
    const atto_tensor before = atto_tensor_of(found->t.buffer, ATTO_F32, shape, 0);
    note(s, atto_tensor_alloc(grid_store_device(s->store), ATTO_F32, shape, &m->t));
    if (s->status == ATTO_OK) note(s, atto_tensor_copy(&m->t, &before));
    m->held = found->values;
    snprintf(m->file, sizeof m->file, "%s", found->file);
}

static member *find(const grid_scene *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->members[i].name, name) == 0) return (member *)&s->members[i];
    return NULL;
}

const atto_tensor *grid_at(const grid_scene *s, const char *name)
{
    const member *m = find(s, name);
    return m ? &m->t : NULL;
}

/* ---- a pass ---- */

bool grid_scene_has(const grid_scene *s, grid_pass pass)
{
    for (int i = 0; i < s->count; i++)
        if (s->members[i].judged && s->members[i].pass == pass) return true;
    return false;
}

atto_status grid_scene_run(grid_scene *s, grid_pass pass)
{
    const atto_status status = s->c.family->call(s, pass == GRID_BACKWARD);
    return status == ATTO_OK ? atto_device_sync(grid_store_device(s->store)) : status;
}

/* ---- what outputs hold ---- */

static unsigned char *read_bytes(grid_scene *s, const atto_tensor *t, int64_t *bytes)
{
    *bytes = atto_tensor_numel(t) * (int64_t)atto_dtype_size(t->dtype);
    unsigned char *data = must_have(malloc(*bytes > 0 ? (size_t)*bytes : 1));
    note(s, atto_tensor_read(t, data));
    return data;
}

static double *read_values(grid_scene *s, const atto_tensor *t)
{
    int64_t bytes;
    unsigned char *data = read_bytes(s, t, &bytes);
    const int64_t size = (int64_t)atto_dtype_size(t->dtype), n = bytes / size;
    double *values = grid_array(s, n);
    for (int64_t i = 0; i < n; i++) values[i] = grid_decode(t->dtype, data + i * size);
    free(data);
    return values;
}

const double *grid_held(grid_scene *s, const char *name)
{
    member *m = find(s, name);
    if (!m) return NULL;
    if (!m->held) m->held = read_values(s, &m->t);
    return m->held;
}

/* ---- the oracle's side ---- */

static double *array_of(grid_scene *s, double **array, int64_t numel)
{
    if (!*array) *array = grid_array(s, numel);
    return *array;
}

double *grid_want(grid_scene *s, const char *name, int64_t numel)
{
    member *m = find(s, name);
    return m ? array_of(s, &m->want, numel) : grid_array(s, numel);
}

double *grid_terms(grid_scene *s, const char *name, int64_t numel)
{
    member *m = find(s, name);
    return m ? array_of(s, &m->terms, numel) : grid_array(s, numel);
}

double *grid_extra(grid_scene *s, const char *name, int64_t numel)
{
    member *m = find(s, name);
    return m ? array_of(s, &m->extra, numel) : grid_array(s, numel);
}

void grid_allow(grid_scene *s, const char *name, const char *op, int64_t n)
{
    member *m = find(s, name);
    if (!m) return;
    const int64_t numel = atto_tensor_numel(&m->t);
    double *allowed = array_of(s, &m->allowed, numel);
    for (int64_t i = 0; i < numel; i++) {
        if (!isfinite(m->want[i])) continue;
        allowed[i] = atto_tol(op, m->t.dtype, n, m->terms ? m->terms[i] : fabs(m->want[i]));
        if (m->extra) allowed[i] += m->extra[i];
    }
}

void grid_scene_answer(grid_scene *s)
{
    s->c.family->answer(s);
}

/* A state keeps in `held` what it was before. */
static void compare(grid_scene *s, const member *m, grid_verdict *worst)
{
    const double *got = read_values(s, &m->t);
    const int64_t n = atto_tensor_numel(&m->t);
    for (int64_t i = 0; i < n; i++) {
        const double share = m->want && m->allowed && s->status == ATTO_OK
                                 ? test_share(m->t.dtype, got[i], m->want[i], m->allowed[i])
                                 : (double)INFINITY;
        if (share <= worst->share) continue;
        *worst = (grid_verdict){ m->name, m->want ? fabs(got[i] - m->want[i]) : (double)INFINITY,
                                 m->allowed ? m->allowed[i] : 0.0, share };
    }
}

grid_verdict grid_scene_judge(grid_scene *s, grid_pass pass)
{
    grid_verdict worst = { "", 0.0, 0.0, -1.0 };
    for (int i = 0; i < s->count; i++)
        if (s->members[i].judged && s->members[i].pass == pass) compare(s, &s->members[i], &worst);
    if (worst.share < 0.0) worst.share = 0.0; /* nothing but empty tensors */
    return worst;
}

/* ---- all bits ---- */

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const unsigned char *data, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++) hash = (hash ^ data[i]) * 0x100000001b3u;
    return hash;
}

uint64_t grid_scene_hash(grid_scene *s, uint64_t hash)
{
    for (int i = 0; i < s->count; i++) {
        int64_t bytes;
        if (s->members[i].role == INPUT) continue;
        unsigned char *data = read_bytes(s, &s->members[i].t, &bytes);
        hash = hash_bytes(hash, data, bytes);
        free(data);
    }
    return hash;
}

/* ---- the peer's side ---- */

static bool write_file(grid_scene *s, member *m, char path[GRID_PATH])
{
    int64_t bytes;
    snprintf(path, GRID_PATH, "%s/out_%s", grid_store_folder(s->store), m->name);
    unsigned char *data = read_bytes(s, &m->t, &bytes);
    const bool fine = s->status == ATTO_OK && grid_write_file(path, data, bytes);
    free(data);
    return fine;
}

static void write_shape(FILE *to, const char *key, const int64_t *shape, int32_t rank)
{
    fprintf(to, ", \"%s\": [", key);
    for (int32_t d = 0; d < rank; d++) fprintf(to, "%s%" PRId64, d ? ", " : "", shape[d]);
    fputs("]", to);
}

static bool is_integer(atto_dtype dtype)
{
    return dtype == ATTO_I32 || dtype == ATTO_I64;
}

/* PyTorch's own tolerances by dtype, as torch.testing has them. */
static double default_rtol(atto_dtype dtype)
{
    return dtype == ATTO_F32 ? 1.3e-6 : dtype == ATTO_F16 ? 1e-3 : 1.6e-2;
}

static bool write_member(grid_scene *s, member *m, FILE *to, bool first)
{
    const grid_family *f = s->c.family;
    const bool grad = m->pass == GRID_BACKWARD;
    char path[GRID_PATH] = "";
    fprintf(to, "%s\"%s\": {\"dtype\": \"%s\"", first ? "" : ", ", m->name,
            atto_dtype_name(m->t.dtype));
    write_shape(to, "shape", m->t.shape, m->t.rank);
    if (m->role != OUTPUT) fprintf(to, ", \"in\": \"%s\"", m->file);
    if (m->judged) {
        if (!write_file(s, m, path)) return false;
        /* A result in f32 of f16 or bf16 inputs is an f32 evaluation of these; an index is right or
         * wrong. */
        const double rtol = fmax(grad ? f->grad_rtol : f->rtol, default_rtol(m->t.dtype));
        const double atol = fmax(grad ? f->grad_atol : f->atol, 1e-5);
        fprintf(to, ", \"out\": \"%s\", \"pass\": \"%s\", \"rtol\": %g, \"atol\": %g", path,
                grad ? "backward" : "forward", is_integer(m->t.dtype) ? 0.0 : rtol,
                is_integer(m->t.dtype) ? 0.0 : atol);
    }
    fputs("}", to);
    return true;
}

static void write_options(const grid_case *c, FILE *to)
{
    const grid_option *o = c->family->options;
    for (int i = 0; o[i].name; i++) {
        const int at = (int)c->option[i];
        if (o[i].text)
            fprintf(to, ", \"%s\": \"%s\"", o[i].name, o[i].text(at));
        else
            fprintf(to, ", \"%s\": %.17g", o[i].name, c->option[i]);
    }
}

bool grid_scene_write(grid_scene *s, FILE *to, const char *device, bool fresh)
{
    bool fine = true;
    fprintf(to, "{\"op\": \"%s\", \"device\": \"%s\", \"fresh\": %s", s->c.family->name, device,
            fresh ? "true" : "false");
    write_options(&s->c, to);
    fputs(", \"tensors\": {", to);
    for (int i = 0; i < s->count; i++) fine = write_member(s, &s->members[i], to, i == 0) && fine;
    fputs("}}\n", to);
    return fine;
}

grid_verdict grid_scene_parse(const grid_scene *s, grid_pass pass, const char *answer)
{
    grid_verdict worst = { "", 0.0, 0.0, -1.0 };
    for (int i = 0; i < s->count; i++) {
        const member *m = &s->members[i];
        grid_verdict v = { m->name, (double)INFINITY, 0.0, (double)INFINITY };
        char key[64];
        if (!m->judged || m->pass != pass) continue;
        snprintf(key, sizeof key, " %s ", m->name);
        const char *at = strstr(answer, key);
        if (at && sscanf(at + strlen(key), "%lf %lf %lf", &v.error, &v.allowed, &v.share) != 3)
            v.share = (double)INFINITY;
        if (!(v.share <= worst.share)) worst = v;
    }
    if (isnan(worst.share)) worst.share = (double)INFINITY;
    return worst;
}
