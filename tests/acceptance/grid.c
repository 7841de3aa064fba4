/* SPDX-License-Identifier: MIT */
/* What families share: options by name, products of sizes, names. */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double grid_get(const grid_case *c, const char *name)
{
    for (int i = 0; c->family->options[i].name; i++)
        if (strcmp(c->family->options[i].name, name) == 0) return c->option[i];
    fprintf(stderr, "acceptance: %s has no option %s\n", c->family->name, name);
    exit(2);
}

int grid_int(const grid_case *c, const char *name)
{
    return (int)grid_get(c, name);
}

void grid_text(const grid_case *c, char text[GRID_TEXT])
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; c->family->options[i].name && used < GRID_TEXT; i++) {
        const grid_option *o = &c->family->options[i];
        char number[32];
        snprintf(number, sizeof number, "%g", c->option[i]);
        used += (size_t)snprintf(text + used, GRID_TEXT - used, "%s%s=%s", i ? " " : "", o->name,
                                 o->text ? o->text((int)c->option[i]) : number);
    }
}

int64_t grid_product(atto_shape shape, int32_t from, int32_t to)
{
    int64_t n = 1;
    for (int32_t d = from; d < to; d++) n *= shape.dim[d];
    return n;
}

int64_t grid_depth(int64_t n)
{
    return n <= 64 ? n : 64 + n / 32;
}

const char *grid_act_text(int value)
{
    return atto_activation_name((atto_activation_kind)value);
}

const char *grid_reduction_text(int value)
{
    static const char *const names[] = { "mean", "sum", "none", "batch_mean" };
    return names[value];
}
