/* SPDX-License-Identifier: MIT */
/* Devices that we have measured, with what `attocl tune` wrote there. */
#include <string.h>

#include "tune.h"

static const struct {
    const char *platform, *device;
    const char *lines; /* "choice dtype 4 sizes 4 numbers" */
} measured[] = {
    /* driver 580.159.04; what was more than 3 % faster and no matter of launches. f16 is as bf16. */
    { "NVIDIA CUDA", "NVIDIA H200",
      "softmax_forward bf16 2048 8192 0 0 0 2 1 128\n"
      "softmax_forward bf16 32768 2048 0 0 0 2 0 512\n"
      "softmax_forward bf16 65536 1024 0 0 0 4 0 1024\n"
      "softmax_forward bf16 65536 2048 0 0 0 2 0 512\n"
      "softmax_forward bf16 131072 512 0 0 0 4 0 1024\n"
      "softmax_forward f16 2048 8192 0 0 0 2 1 128\n"
      "softmax_forward f16 32768 2048 0 0 0 2 0 512\n"
      "softmax_forward f16 65536 1024 0 0 0 4 0 1024\n"
      "softmax_forward f16 65536 2048 0 0 0 2 0 512\n"
      "softmax_forward f16 131072 512 0 0 0 4 0 1024\n"
      "softmax_forward f32 32768 2048 0 0 0 16 1 512\n"
      "softmax_forward f32 65536 1024 0 0 0 8 0 1024\n"
      "softmax_forward f32 65536 2048 0 0 0 8 0 1024\n"
      "softmax_forward f32 131072 512 0 0 0 8 0 512\n"
      "softmax_backward bf16 2048 8192 0 0 0 2 1 128\n"
      "softmax_backward bf16 16384 4096 0 0 0 2 0 512\n"
      "softmax_backward bf16 32768 2048 0 0 0 4 0 512\n"
      "softmax_backward bf16 65536 1024 0 0 0 2 0 1024\n"
      "softmax_backward bf16 65536 2048 0 0 0 2 0 1024\n"
      "softmax_backward f16 2048 8192 0 0 0 2 1 128\n"
      "softmax_backward f16 16384 4096 0 0 0 2 0 512\n"
      "softmax_backward f16 32768 2048 0 0 0 4 0 512\n"
      "softmax_backward f16 65536 1024 0 0 0 2 0 1024\n"
      "softmax_backward f16 65536 2048 0 0 0 2 0 1024\n"
      "softmax_backward f32 16384 4096 0 0 0 8 1 512\n"
      "softmax_backward f32 32768 2048 0 0 0 8 0 512\n"
      "softmax_backward f32 65536 2048 0 0 0 4 0 1024\n"
      "cross_entropy_forward bf16 4096 8192 1 0 1 0 0 0\n"
      "cross_entropy_forward bf16 65536 4096 1 0 1 0 0 0\n"
      "cross_entropy_forward f16 4096 8192 1 0 1 0 0 0\n"
      "cross_entropy_forward f16 65536 4096 1 0 1 0 0 0\n"
      "cross_entropy_forward f32 4096 8192 1 0 1 0 0 0\n"
      "cross_entropy_forward f32 65536 4096 1 0 1 0 0 0\n"
      "cross_entropy_backward bf16 4096 8192 1 0 1 0 0 0\n"
      "cross_entropy_backward f16 4096 8192 1 0 1 0 0 0\n"
      "cross_entropy_backward f32 65536 4096 1 0 1 0 0 0\n"
      "norm_forward bf16 2048 8192 1 0 64 4 64 0\n"
      "norm_forward f16 2048 8192 1 0 64 4 64 0\n"
      "norm_forward f32 512 8192 1 0 64 2 64 0\n"
      "norm_forward f32 512 8192 2 0 128 1 128 0\n"
      "norm_forward f32 2048 8192 2 0 512 1 512 0\n"
      "norm_ahead bf16 4096 8192 2 0 1 0 0 0\n"
      "norm_ahead bf16 8192 8192 1 0 16 0 0 0\n"
      "norm_ahead f16 4096 8192 2 0 1 0 0 0\n"
      "norm_ahead f16 8192 8192 1 0 16 0 0 0\n"
      "norm_ahead f32 2048 8192 1 0 1 0 0 0\n"
      "norm_ahead f32 4096 8192 2 0 1 0 0 0\n"
      "norm_ahead f32 8192 8192 2 0 1 0 0 0\n"
      "norm_ahead f32 16384 4096 2 0 2 0 0 0\n"
      "norm_ahead f32 32768 2048 2 0 1 0 0 0\n"
      "norm_backward bf16 512 8192 1 0 32 2 512 0\n"
      "norm_backward bf16 512 8192 2 0 32 2 512 0\n"
      "norm_backward bf16 8192 8192 1 0 512 2 512 0\n"
      "norm_backward bf16 8192 8192 2 0 512 2 512 0\n"
      "norm_backward f16 512 8192 1 0 32 2 512 0\n"
      "norm_backward f16 512 8192 2 0 32 2 512 0\n"
      "norm_backward f16 8192 8192 1 0 512 2 512 0\n"
      "norm_backward f16 8192 8192 2 0 512 2 512 0\n"
      "norm_backward f32 64 8192 1 0 16 1 512 0\n"
      "norm_backward f32 256 8192 2 0 16 4 512 0\n"
      "norm_backward f32 8192 8192 1 0 512 4 512 0\n"
      "norm_backward f32 8192 8192 2 0 512 4 512 0\n"
      "gemm bf16 1024 1024 1024 8 0 2 1 0\n"
      "gemm bf16 2048 2048 2048 8 0 1 1 0\n"
      "gemm bf16 4096 4096 1 8 0 2 1 0\n"
      "gemm bf16 4096 4096 8 8 0 2 1 0\n"
      "gemm bf16 4096 4096 32 8 0 1 1 0\n"
      "gemm bf16 4096 4096 4096 1 0 1 1 0\n"
      "gemm bf16 4096 4096 4096 8 0 1 1 0\n"
      "gemm bf16 8192 4096 4096 1 0 1 1 0\n"
      "gemm bf16 8192 8192 8192 1 0 1 1 0\n"
      "gemm bf16 8192 8192 8192 8 0 1 1 0\n"
      "gemm f16 1024 1024 1024 8 0 2 1 0\n"
      "gemm f16 2048 2048 2048 8 0 1 1 0\n"
      "gemm f16 4096 4096 1 8 0 2 1 0\n"
      "gemm f16 4096 4096 8 8 0 2 1 0\n"
      "gemm f16 4096 4096 32 8 0 1 1 0\n"
      "gemm f16 4096 4096 4096 1 0 1 1 0\n"
      "gemm f16 4096 4096 4096 8 0 1 1 0\n"
      "gemm f16 8192 4096 4096 1 0 1 1 0\n"
      "gemm f16 8192 8192 8192 1 0 1 1 0\n"
      "gemm f16 8192 8192 8192 8 0 1 1 0\n"
      "gemm f32 1024 1024 1024 1 0 2 1 0\n"
      "gemm f32 1024 1024 1024 4 0 2 1 0\n"
      "gemm f32 1024 1024 1024 8 0 2 1 0\n"
      "gemm f32 4096 4096 1 8 0 2 1 0\n"
      "gemm f32 4096 4096 8 8 0 2 1 0\n" },
};

const char *atto__tuned_builtin(const atto_device_info *info)
{
    for (size_t i = 0; i < sizeof measured / sizeof measured[0]; i++)
        if (strcmp(info->platform, measured[i].platform) == 0 &&
            strcmp(info->name, measured[i].device) == 0)
            return measured[i].lines;
    return NULL;
}
