/* SPDX-License-Identifier: MIT */
/* Optimisers and modules: the parameters of a tree. */
#include <attocl/module.h>

#include "train/optimizer.h"

typedef struct collection {
    atto_optimizer *o;
    const atto_param_set *set;
} collection;

static atto_status collect(void *data, const char *key, atto_param *p)
{
    const collection *c = data;
    return atto__optimizer_add(c->o, c->set, key, p);
}

atto_status atto__optimizer_add_net(atto_optimizer *o, const atto_param_set *set,
                                    const atto_module *net)
{
    collection c = { o, set };
    return atto_module_params(net, collect, &c);
}

typedef struct search {
    const atto_param *wanted;
    bool found;
} search;

static atto_status compare(void *data, const char *key, atto_param *p)
{
    search *s = data;
    (void)key;
    s->found = s->found || s->wanted == p;
    return ATTO_OK;
}

atto_status atto__module_has(const atto_module *m, const atto_param *p, bool *out)
{
    search s = { p, false };
    ATTO_TRY(atto_module_params(m, compare, &s));
    *out = s.found;
    return ATTO_OK;
}
