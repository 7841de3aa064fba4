/* SPDX-License-Identifier: MIT */
/* The network. block.c explains what all modules have in common; here are what it has not: a list of
 * children, a parameter, a buffer, and two inputs. */
#include "network.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct network {
    atto_module *embedding, *norm, *head; /* norm: NULL = none */
    atto_param *positions;                /* [length, width]; NULL: waves */
    atto_tensor waves;                    /* likewise; the module holds its memory */
    int64_t layers;
    atto_module *block[]; /* [layers] */
} network;

/* ---- forward ---- */

/* [T, width]. A parameter comes onto the tape with atto_use, which is where its gradient goes; a buffer
 * with atto_borrow. */
static atto_var first_positions(const network *net, atto_tape *tape, int64_t count)
{
    const atto_var all = net->positions != NULL ? atto_use(tape, net->positions)
                                                : atto_borrow(tape, &net->waves, false);
    return atto_slice(tape, all, 0, 0, count, 1);
}

static atto_var network_forward(atto_module *m, atto_tape *tape, atto_var symbols, atto_var hidden)
{
    const network *net = atto_module_data(m);
    const transformer_block_call call = { .key_padding_mask = &hidden };
    const atto_var none = { .generation = 0 };
    atto_tensor t;
    if (atto_var_tensor(tape, symbols, &t) != ATTO_OK) return none; /* the tape has the error */
    if (t.rank != 2) {
        atto_tape_fail(tape, ATTO_E_SHAPE, "network: symbols have no shape [N, T]");
        return none;
    }
    const atto_var x = atto_apply(tape, net->embedding, symbols);
    atto_var y = atto_add(tape, x, first_positions(net, tape, t.shape[1]));
    for (int64_t i = 0; i < net->layers; i++) y = transformer_block(tape, net->block[i], y, &call);
    if (net->norm != NULL) y = atto_apply(tape, net->norm, y);
    return atto_apply(tape, net->head, y);
}

static const atto_module_class network_class = {
    .name = "Network",
    .forward2 = network_forward, /* and no forward */
    .destroy = free,
};

/* ---- create ---- */

/* As in block.c: the module's own reference stays. */
static atto_status adopt(atto_module *m, const char *name, atto_module *child)
{
    const atto_status status = atto_module_child(m, name, child);
    atto_module_free(child);
    return status != ATTO_OK ? failure(status, "%s: %s", name, atto_last_error()) : ATTO_OK;
}

static atto_status add_embedding(atto_module *m, network *net, const network_options *o)
{
    const atto_embedding_module_options options = { .has_padding = true, .padding = o->symbols };
    TRY_ATTO(atto_embedding_create(atto_module_device(m), o->symbols + 1, o->width, &options,
                                   &net->embedding));
    return adopt(m, "embedding", net->embedding);
}

static atto_status add_learned_positions(atto_module *m, network *net, const network_options *o)
{
    const atto_shape shape = atto_shape2(o->length, o->width);
    TRY_ATTO(atto_module_param(m, "positions", ATTO_F32, shape, &net->positions));
    TRY_ATTO(atto_param_init_normal(net->positions, 0.0, 1.0));
    return ATTO_OK;
}

/* Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5. */
static void fill_waves(float *waves, int64_t length, int64_t width)
{
    for (int64_t position = 0; position < length; position++)
        for (int64_t i = 0; i < width; i++) {
            const double rate = pow(10000.0, -(double)(i / 2 * 2) / (double)width);
            const double angle = (double)position * rate;
            waves[position * width + i] = (float)(i % 2 == 0 ? sin(angle) : cos(angle));
        }
}

/* A buffer is no parameter and is not trained, but belongs to the module's state. As with children, the module
 * keeps a reference, and ours goes; the view that net->waves is stays. */
static atto_status add_waves(atto_module *m, network *net, const network_options *o)
{
    const atto_shape shape = atto_shape2(o->length, o->width);
    float *numbers = malloc((size_t)(o->length * o->width) * sizeof *numbers);
    if (numbers == NULL) return failure(ATTO_E_MEMORY, "network: no memory for positions");
    fill_waves(numbers, o->length, o->width);
    atto_tensor t;
    atto_status status = atto_tensor_alloc(atto_module_device(m), ATTO_F32, shape, &t);
    if (status == ATTO_OK) status = atto_tensor_write(&t, numbers);
    if (status == ATTO_OK) status = atto_module_buffer(m, "positions", &t);
    net->waves = t;
    atto_tensor_free(&t);
    free(numbers);
    return status != ATTO_OK ? failure(status, "positions: %s", atto_last_error()) : ATTO_OK;
}

/* "layers.0" is a child of a child in PyTorch. A Sequential of blocks would do here too, were it not for
 * masks, which it does not pass on; as a holder of the list it gives the same keys. */
static atto_status add_blocks(atto_module *m, network *net, const network_options *o)
{
    transformer_block_options options = o->block;
    options.batch_first = true;
    atto_module *list;
    TRY_ATTO(atto_sequential_create(atto_module_device(m), &list));
    TRY(adopt(m, "layers", list));
    for (int64_t i = 0; i < o->layers; i++) {
        TRY(transformer_block_create(atto_module_device(m), o->width, o->heads, &options,
                                     &net->block[i]));
        const atto_status status = atto_sequential_add(list, net->block[i]);
        atto_module_free(net->block[i]);
        TRY_ATTO(status);
    }
    return ATTO_OK;
}

static atto_status add_norm(atto_module *m, network *net, const network_options *o)
{
    const atto_norm_options options = { .eps = o->block.layer_norm_eps };
    TRY_ATTO(
        atto_layer_norm_create(atto_module_device(m), atto_shape1(o->width), &options, &net->norm));
    return adopt(m, "norm", net->norm);
}

static atto_status add_head(atto_module *m, network *net, const network_options *o)
{
    TRY_ATTO(atto_linear_create(atto_module_device(m), o->width, o->symbols, NULL, &net->head));
    return adopt(m, "head", net->head);
}

static atto_status add_children(atto_module *m, network *net, const network_options *o)
{
    TRY(add_embedding(m, net, o));
    TRY(o->sinusoidal ? add_waves(m, net, o) : add_learned_positions(m, net, o));
    TRY(add_blocks(m, net, o));
    if (o->block.norm_first) TRY(add_norm(m, net, o));
    return add_head(m, net, o);
}

atto_status network_create(atto_device *dev, const network_options *options, atto_module **out)
{
    *out = NULL;
    network *net = calloc(1, sizeof *net + (size_t)options->layers * sizeof net->block[0]);
    if (net == NULL) return failure(ATTO_E_MEMORY, "network: no memory");
    net->layers = options->layers;
    atto_module *m;
    atto_status status = atto_module_create(dev, &network_class, net, &m);
    if (status != ATTO_OK) {
        free(net);
        return failure(status, "%s", atto_last_error());
    }
    status = add_children(m, net, options);
    if (status != ATTO_OK) {
        atto_module_free(m);
        return status;
    }
    *out = m;
    return ATTO_OK;
}
