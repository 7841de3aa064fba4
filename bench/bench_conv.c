/* SPDX-License-Identifier: MIT */
/* Benchmark rows of convolutions: distinct layers of ResNet-50, of ConvNeXt-T and MobileNet-V2, and a
 * transposed one, contiguous and channels_last.
 *
 * A tensor counts once a pass, however often windows share its elements; 2 flops a product. */
#include "bench.h"

/* What a row runs on a GPU; on a CPU an eighth of the images. */
typedef struct layer {
    int64_t batch, channels, edge, outputs, kernel, stride, padding, groups;
    bool transposed;
} layer;

static int64_t outputs_of(const layer *l)
{
    return l->transposed ? (l->edge - 1) * l->stride - 2 * l->padding + l->kernel
                         : (l->edge + 2 * l->padding - l->kernel) / l->stride + 1;
}
