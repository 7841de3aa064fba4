/* SPDX-License-Identifier: MIT */
/* attocl bench --compare: bench/peer.py, started once, measures in PyTorch what we have just
 * measured. */
#ifndef ATTO_PEER_H
#define ATTO_PEER_H

#include "bench.h"

/* X(NAME, name): peers that peer.py knows. */
#define PEER_TABLE(X) \
    X(TORCH, torch)   \
    X(ATTORCH, attorch)

enum {
#define X(NAME, name) PEER_##NAME,
    PEER_TABLE(X)
#undef X
        PEER_COUNT
};

typedef struct peer_options {
    bool wanted[PEER_COUNT];
    const char *python;  /* the interpreter; NULL = python3 */
    const char *attorch; /* the folder that holds attorch's package, or NULL */
    int cuda_device;     /* where it measures on a GPU, as CUDA counts them */
    int timeout_s;       /* how long an answer may take */
} peer_options;

typedef struct peer peer;

const char *peer_name(int which);

/* "torch,attorch" into options->wanted; false when a name is none. */
bool peer_parse(const char *list, peer_options *options);

/* Starts it for a device; NULL with a message on stderr. */
peer *peer_start(const peer_options *options, const bench *b);

/* What it found: versions, separated by "; ". */
const char *peer_versions(const peer *p);

/* It has ended, or an answer took too long: no row has a figure any more. */
bool peer_is_lost(const peer *p);

/* Milliseconds of the case that gave r, or NAN; *reason is why then, until the next call. */
double peer_measure(peer *p, int which, const bench_case *c, const bench_result *r,
                    const char **reason);

/* NULL is fine. */
void peer_stop(peer *p);

/* Draws the figures of a JSON file into a picture, by bench/plot.py; false with a message on
 * stderr. */
bool peer_plot(const peer_options *options, const char *json_path, const char *picture_path);

#endif
