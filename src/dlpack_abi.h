/* SPDX-License-Identifier: MIT */
/* What DLPack's tensors look like in memory, as its specification has it (version 1.1,
 * https://dmlc.github.io/dlpack/latest/c_api.html). Not dlpack.h itself, which programs include. */
#ifndef ATTO_DLPACK_ABI_H
#define ATTO_DLPACK_ABI_H

#include <stdint.h>

#define ATTO_DL_MAJOR 1
#define ATTO_DL_MINOR 1

enum { ATTO_DL_CPU = 1, ATTO_DL_OPENCL = 4 };

enum { ATTO_DL_INT = 0, ATTO_DL_FLOAT = 2, ATTO_DL_BFLOAT = 4 };

#define ATTO_DL_READ_ONLY ((uint64_t)1)

typedef struct atto__dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t type_code, type_bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: dense */
    uint64_t byte_offset;
} atto__dl_tensor;

struct DLManagedTensor {
    atto__dl_tensor tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self);
};

struct DLManagedTensorVersioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    atto__dl_tensor tensor;
};

#endif
