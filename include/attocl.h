/* SPDX-License-Identifier: MIT */
/* attocl: neural-network layers in C, forward and backward, on GPUs and CPUs. */
#ifndef ATTOCL_H
#define ATTOCL_H

#include <attocl/device.h>
#include <attocl/dlpack.h>
#include <attocl/kernel.h>
#include <attocl/opencl.h>
#include <attocl/rng.h>
#include <attocl/status.h>
#include <attocl/tensor.h>

#include <attocl/act.h>
#include <attocl/attention.h>
#include <attocl/batch_norm.h>
#include <attocl/conv.h>
#include <attocl/cross_entropy.h>
#include <attocl/dropout.h>
#include <attocl/elementwise.h>
#include <attocl/gather.h>
#include <attocl/glu.h>
#include <attocl/group_norm.h>
#include <attocl/index_select.h>
#include <attocl/layer_norm.h>
#include <attocl/linear.h>
#include <attocl/loss.h>
#include <attocl/matmul.h>
#include <attocl/nll_loss.h>
#include <attocl/pad.h>
#include <attocl/pool.h>
#include <attocl/reduce.h>
#include <attocl/resize.h>
#include <attocl/rnn.h>
#include <attocl/rope.h>
#include <attocl/softmax.h>

#include <attocl/kv_cache.h>
#include <attocl/meter.h>
#include <attocl/module.h>
#include <attocl/optimizer.h>
#include <attocl/param.h>
#include <attocl/record.h>
#include <attocl/schedule.h>
#include <attocl/tape.h>

#endif
