/* SPDX-License-Identifier: MIT */
/* Modules as trees: parameters, children, keys. */
#include "train/module.h"

#include <stdio.h>
#include <string.h>

#include "alloc.h"

/* A parameter, a child or a buffer under its name. */
typedef struct entry {
    char *name;
    atto_param *param;
    atto_module *child;
    atto_tensor buffer; /* no dtype where there is none */
} entry;

struct atto_module {
    atto_device *dev; /* holds a reference */
    atomic_int references;
    const atto_module_class *cls;
    void *data;
    bool evaluates;
    entry *entries; /* in order of registration */
    int32_t count, capacity;
};

/* ---- create, free ---- */

atto_status atto_module_create(atto_device *dev, const atto_module_class *cls, void *data,
                               atto_module **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "module_create: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(dev && cls && cls->name, ATTO_E_NULL, "module_create: %s is NULL",
                 !dev   ? "dev"
                 : !cls ? "cls"
                        : "the class's name");
    atto_module *m = atto__alloc(sizeof *m);
    ATTO_REQUIRE(m, ATTO_E_MEMORY, "module_create: out of host memory");
    memset(m, 0, sizeof *m);
    atomic_init(&m->references, 1);
    m->dev = dev;
    m->cls = cls;
    m->data = data;
    atto__device_retain(dev);
    *out = m;
    return ATTO_OK;
}

static atto_status make_with_copy(atto_device *dev, const atto_module_class *cls, const void *data,
                                  size_t bytes, atto_module **out)
{
    void *own = atto__alloc(bytes);
    ATTO_REQUIRE(own, ATTO_E_MEMORY, "out of host memory");
    memcpy(own, data, bytes);
    const atto_status status = atto_module_create(dev, cls, own, out);
    if (status != ATTO_OK) atto__free(own);
    return status;
}

atto_status atto__module_make(atto_device *dev, const char *call, const atto_module_class *cls,
                              const void *data, size_t bytes, atto__module_fill fill,
                              const void *options, atto_module **out)
{
    *out = NULL;
    atto_status status = make_with_copy(dev, cls, data, bytes, out);
    if (status == ATTO_OK && fill) status = fill(*out, (*out)->data, options);
    if (status == ATTO_OK) return ATTO_OK;
    atto_module_free(*out);
    *out = NULL;
    return atto__fail_in(status, "%s: ", call);
}

void atto_module_retain(atto_module *m)
{
    if (m) atomic_fetch_add(&m->references, 1);
}

void atto_module_free(atto_module *m)
{
    if (!m || atomic_fetch_sub(&m->references, 1) > 1) return;
    for (int32_t i = 0; i < m->count; i++) {
        atto__free(m->entries[i].name);
        atto_param_free(m->entries[i].param);
        atto_tensor_free(&m->entries[i].buffer);
        atto_module_free(m->entries[i].child);
    }
    atto__free(m->entries);
    if (m->cls->destroy) m->cls->destroy(m->data);
    atto__device_release(m->dev);
    atto__free(m);
}

void *atto_module_data(const atto_module *m)
{
    return m ? m->data : NULL;
}

const char *atto_module_class_name(const atto_module *m)
{
    return m ? m->cls->name : "?";
}

atto_device *atto_module_device(const atto_module *m)
{
    return m ? m->dev : NULL;
}

bool atto__module_is(const atto_module *m, const atto_module_class *cls)
{
    return m && m->cls == cls;
}

int32_t atto__module_count(const atto_module *m)
{
    return m->count;
}

atto_param *atto__module_param_at(const atto_module *m, int32_t i)
{
    return i < m->count ? m->entries[i].param : NULL;
}

atto_module *atto__module_child_at(const atto_module *m, int32_t i)
{
    return i < m->count ? m->entries[i].child : NULL;
}

/* ---- names ---- */

static atto_status check_name(const atto_module *m, const char *name)
{
    ATTO_REQUIRE(name, ATTO_E_NULL, "%s: the name is NULL", m->cls->name);
    ATTO_REQUIRE(name[0] && !strchr(name, '.'), ATTO_E_ARGUMENT,
                 "%s: the name \"%s\" is empty or has a dot", m->cls->name, name);
    for (int32_t i = 0; i < m->count; i++)
        ATTO_REQUIRE(strcmp(m->entries[i].name, name) != 0, ATTO_E_ARGUMENT,
                     "%s: there is a \"%s\" already", m->cls->name, name);
    return ATTO_OK;
}

static atto_status make_room(atto_module *m)
{
    if (m->count < m->capacity) return ATTO_OK;
    const int32_t capacity = 2 * m->capacity + 4;
    entry *larger = atto__alloc((size_t)capacity * sizeof *larger);
    ATTO_REQUIRE(larger, ATTO_E_MEMORY, "%s: out of host memory", m->cls->name);
    if (m->count > 0) memcpy(larger, m->entries, (size_t)m->count * sizeof *larger);
    atto__free(m->entries);
    m->entries = larger;
    m->capacity = capacity;
    return ATTO_OK;
}

/* A new entry without contents. */
static atto_status add_entry(atto_module *m, const char *name, entry **out)
{
    ATTO_TRY(check_name(m, name));
    ATTO_TRY(make_room(m));
    char *copy = atto__strdup(name);
    ATTO_REQUIRE(copy, ATTO_E_MEMORY, "%s: out of host memory", m->cls->name);
    *out = &m->entries[m->count++];
    **out = (entry){ .name = copy };
    return ATTO_OK;
}

/* ---- parameters and children ---- */

atto_status atto_module_share(atto_module *m, const char *name, atto_param *p)
{
    ATTO_REQUIRE(m && p, ATTO_E_NULL, "module_share: %s is NULL", m ? "p" : "m");
    ATTO_REQUIRE(p->dev == m->dev, ATTO_E_DEVICE, "%s: \"%s\" lives on another device",
                 m->cls->name, name ? name : "?");
    entry *e;
    ATTO_TRY(add_entry(m, name, &e));
    atto_param_retain(p);
    e->param = p;
    return ATTO_OK;
}

atto_status atto_module_param(atto_module *m, const char *name, atto_dtype dtype, atto_shape shape,
                              atto_param **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "module_param: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(m, ATTO_E_NULL, "module_param: m is NULL");
    atto_param *p;
    ATTO_TRY(atto_param_create(m->dev, dtype, shape, &p));
    const atto_status status = atto_module_share(m, name, p);
    atto_param_free(p); /* the module has its own reference */
    if (status == ATTO_OK) *out = p;
    return status;
}

atto_status atto_module_buffer(atto_module *m, const char *name, const atto_tensor *t)
{
    ATTO_REQUIRE(m && t, ATTO_E_NULL, "module_buffer: %s is NULL", m ? "t" : "m");
    const atto_device *owner = atto_tensor_device(t);
    ATTO_REQUIRE(!owner || owner == m->dev, ATTO_E_DEVICE, "%s: \"%s\" lives on another device",
                 m->cls->name, name ? name : "?");
    entry *e;
    ATTO_TRY(add_entry(m, name, &e));
    e->buffer = *t;
    atto_tensor_retain(t);
    return ATTO_OK;
}

static bool contains(const atto_module *tree, const atto_module *m)
{
    if (tree == m) return true;
    for (int32_t i = 0; i < tree->count; i++)
        if (tree->entries[i].child && contains(tree->entries[i].child, m)) return true;
    return false;
}

atto_status atto_module_child(atto_module *m, const char *name, atto_module *child)
{
    ATTO_REQUIRE(m && child, ATTO_E_NULL, "module_child: %s is NULL", m ? "child" : "m");
    ATTO_REQUIRE(child->dev == m->dev, ATTO_E_DEVICE, "%s: \"%s\" lives on another device",
                 m->cls->name, name ? name : "?");
    ATTO_REQUIRE(!contains(child, m), ATTO_E_ARGUMENT, "%s: \"%s\" contains this module",
                 m->cls->name, name ? name : "?");
    entry *e;
    ATTO_TRY(add_entry(m, name, &e));
    atto_module_retain(child);
    e->child = child;
    return ATTO_OK;
}

/* ---- one parameter ---- */

static const entry *find_entry(const atto_module *m, const char *name, size_t length)
{
    for (int32_t i = 0; i < m->count; i++)
        if (strncmp(m->entries[i].name, name, length) == 0 && m->entries[i].name[length] == '\0')
            return &m->entries[i];
    return NULL;
}

#define NAMES_TEXT 160

/* Names of a module's parameters, or of its children; as many as the text has room for. */
static const char *names_of(const atto_module *m, bool of_params, char text[NAMES_TEXT])
{
    size_t used = 0;
    strcpy(text, "none");
    for (int32_t i = 0; i < m->count; i++) {
        const entry *e = &m->entries[i];
        if (of_params ? !e->param : !e->child) continue;
        const int length =
            snprintf(text + used, NAMES_TEXT - used, "%s%s", used ? ", " : "", e->name);
        used += (size_t)length;
        if (used >= NAMES_TEXT) break;
    }
    return text;
}

atto_status atto_module_find_param(const atto_module *m, const char *key, atto_param **out)
{
    ATTO_REQUIRE(out, ATTO_E_NULL, "module_find_param: out is NULL");
    *out = NULL;
    ATTO_REQUIRE(m && key, ATTO_E_NULL, "module_find_param: %s is NULL", m ? "key" : "m");
    char names[NAMES_TEXT];
    for (const char *name = key;;) {
        const size_t length = strcspn(name, ".");
        const bool is_param = name[length] == '\0';
        const entry *e = find_entry(m, name, length);
        ATTO_REQUIRE(e && (is_param ? e->param != NULL : e->child != NULL), ATTO_E_ARGUMENT,
                     "module_find_param: \"%s\": %s has no %s \"%.*s\", but %s", key, m->cls->name,
                     is_param ? "parameter" : "child", (int)length, name,
                     names_of(m, is_param, names));
        if (is_param) {
            *out = e->param;
            return ATTO_OK;
        }
        m = e->child;
        name += length + 1;
    }
}

/* ---- the tree ---- */

void atto_module_train(atto_module *m, bool training)
{
    if (!m) return;
    m->evaluates = !training;
    for (int32_t i = 0; i < m->count; i++) atto_module_train(m->entries[i].child, training);
}

bool atto_module_is_training(const atto_module *m)
{
    return m && !m->evaluates;
}

void atto_module_freeze(atto_module *m, bool frozen)
{
    for (int32_t i = 0; m && i < m->count; i++) {
        atto_param_freeze(m->entries[i].param, frozen);
        atto_module_freeze(m->entries[i].child, frozen);
    }
}

/* What visits the tree: one of the two is NULL. */
typedef struct visitor {
    atto_param_visit param;
    atto_buffer_visit buffer;
    void *data;
} visitor;

static atto_status visit_tree(const atto_module *m, const char *prefix, const visitor *v);

static atto_status visit_entry(const entry *e, const char *key, const visitor *v)
{
    if (e->child) return visit_tree(e->child, key, v);
    return e->param ? v->param(v->data, key, e->param) : v->buffer(v->data, key, &e->buffer);
}

/* A key is "prefix" + name; below a child it goes on with a dot. */
static atto_status visit_tree(const atto_module *m, const char *prefix, const visitor *v)
{
    for (int32_t pass = 0; pass < 2; pass++) { /* what is its own, then that of children */
        for (int32_t i = 0; i < m->count; i++) {
            const entry *e = &m->entries[i];
            const bool wanted = v->param ? e->param != NULL : e->buffer.dtype != 0;
            if (pass == 0 ? !wanted : !e->child) continue;
            char *key = atto__format("%s%s%s", prefix, e->name, e->child ? "." : "");
            ATTO_REQUIRE(key, ATTO_E_MEMORY, "module: out of host memory");
            const atto_status status = visit_entry(e, key, v);
            atto__free(key);
            ATTO_TRY(status);
        }
    }
    return ATTO_OK;
}

atto_status atto_module_params(const atto_module *m, atto_param_visit visit, void *data)
{
    ATTO_REQUIRE(m && visit, ATTO_E_NULL, "module_params: %s is NULL", m ? "visit" : "m");
    return visit_tree(m, "", &(visitor){ .param = visit, .data = data });
}

atto_status atto_module_buffers(const atto_module *m, atto_buffer_visit visit, void *data)
{
    ATTO_REQUIRE(m && visit, ATTO_E_NULL, "module_buffers: %s is NULL", m ? "visit" : "m");
    return visit_tree(m, "", &(visitor){ .buffer = visit, .data = data });
}

/* Parameters met so far; without room only their number is counted. */
typedef struct census {
    const atto_param **seen;
    int64_t count, capacity, elements;
} census;

static bool note_new(census *c, const atto_param *p)
{
    for (int64_t i = 0; i < c->count; i++)
        if (c->seen[i] == p) return false;
    if (c->count < c->capacity) c->seen[c->count] = p;
    c->count++;
    return true;
}

static atto_status count_entry(void *data, const char *key, atto_param *p)
{
    (void)key;
    census *c = data;
    const atto_tensor value = atto_param_value(p);
    if (!c->seen) {
        c->count++;
    } else if (note_new(c, p)) {
        c->elements += atto_tensor_numel(&value);
    }
    return ATTO_OK;
}

int64_t atto_module_param_count(const atto_module *m)
{
    census c = { 0 };
    if (!m || atto_module_params(m, count_entry, &c) != ATTO_OK) return 0;
    c.capacity = c.count;
    c.seen = atto__alloc((size_t)c.count * sizeof *c.seen);
    c.count = 0;
    if (c.seen) atto_module_params(m, count_entry, &c);
    atto__free(c.seen);
    return c.elements;
}

/* ---- apply ---- */

static atto_status check_apply(const atto_tape *tape, const atto_module *m, int32_t inputs)
{
    ATTO_REQUIRE(m, ATTO_E_NULL, "apply: the module is NULL");
    ATTO_REQUIRE(m->dev == tape->dev, ATTO_E_DEVICE,
                 "%s: the module lives on another device than the tape", m->cls->name);
    ATTO_REQUIRE(m->cls->forward || m->cls->forward2, ATTO_E_ARGUMENT,
                 "%s: the class has no forward: it holds others, or has a function of its own",
                 m->cls->name);
    ATTO_REQUIRE(inputs == 1 ? m->cls->forward != NULL : m->cls->forward2 != NULL, ATTO_E_ARGUMENT,
                 "%s: the module takes %s", m->cls->name,
                 inputs == 1 ? "two inputs, through atto_apply2" : "one input, through atto_apply");
    return ATTO_OK;
}

/* In a scope: of what forward records only its result is named afterwards. How it has switched
 * autocast is over as well. */
static atto_var apply(atto_tape *tape, atto_module *m, const atto_var *inputs, int32_t count)
{
    if (!tape || tape->status != ATTO_OK) return atto__no_var();
    if (atto__tape_fail(tape, check_apply(tape, m, count)) != ATTO_OK) return atto__no_var();
    for (int32_t i = 0; i < count; i++)
        if (!atto__tape_value(tape, m->cls->name, inputs[i])) return atto__no_var();
    atto_scope_begin(tape);
    const uint32_t generation = tape->generation;
    const size_t scopes = tape->scopes.count;
    const atto_dtype autocast = tape->autocast;
    const atto_var y = count == 1 ? m->cls->forward(m, tape, inputs[0])
                                  : m->cls->forward2(m, tape, inputs[0], inputs[1]);
    if (tape->generation != generation || tape->scopes.count != scopes)
        atto__tape_fail(tape, atto__fail(ATTO_E_STATE, "%s: its forward ended the %s of its caller",
                                         m->cls->name,
                                         tape->generation != generation ? "step" : "scope"));
    tape->autocast = autocast;
    atto_scope_end(tape, &y, 1);
    return tape->status == ATTO_OK ? y : atto__no_var();
}

atto_var atto_apply(atto_tape *tape, atto_module *m, atto_var x)
{
    return apply(tape, m, &x, 1);
}

atto_var atto_apply2(atto_tape *tape, atto_module *m, atto_var a, atto_var b)
{
    const atto_var inputs[] = { a, b };
    return apply(tape, m, inputs, 2);
}
