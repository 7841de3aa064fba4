/* SPDX-License-Identifier: MIT */
/* A layer between the library and OpenCL: counts the objects that live, and lets a chosen call fail. It
 * takes the place of the functions in the library's table. */
#ifndef CL_LAYER_H
#define CL_LAYER_H

#include "backend_opencl/loader.h"

/* X(KIND, name) */
#define CL_KIND_TABLE(X) \
    X(CONTEXT, context)  \
    X(QUEUE, queue)      \
    X(MEMORY, memory)    \
    X(PROGRAM, program)  \
    X(KERNEL, kernel)    \
    X(EVENT, event)

typedef enum cl_kind {
#define X(KIND, name) CL_KIND_##KIND,
    CL_KIND_TABLE(X)
#undef X
        CL_KINDS
} cl_kind;

/* Counted since the layer began: references, not objects. */
extern struct cl_layer {
    long live[CL_KINDS];
    long calls;         /* that could fail */
    long fail_at;       /* this call fails, counted from 1; 0: none does */
    cl_int code;        /* with this code, */
    bool stays;         /* and all that follow, too */
    const char *failed; /* the name of the first that failed, or NULL */
} cl_layer;

/* From here on calls go through the layer; counts start at 0. OpenCL is loaded. */
void cl_layer_begin(void);
void cl_layer_end(void);

/* "2 memory, 1 event" or "". */
const char *cl_layer_left(void);

#endif
