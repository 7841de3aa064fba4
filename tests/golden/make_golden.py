#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the golden files of tests/golden/ with PyTorch on a CPU, in float64.

    python3 make_golden.py --out tests/golden

act.txt: every activation and its gradient on one grid of inputs that are exact in float32. Lines:

    # comment
    torch VERSION
    inputs N                  then N lines "x dy"
    act NAME A B              then N lines "y dx1 dx": dx1 for dy = 1, dx for the dy of the grid

optim.txt: trajectories of optimisers and values of schedules. Lines:

    # comment
    torch VERSION
    optim N STEPS             then the start, and the gradient of each step: N numbers a line
    case METHOD LR WD MOMENTUM DAMPENING NESTEROV BETA1 BETA2 EPS CENTERED MAXIMIZE CLIP
                              then the values after each step: N numbers a line
    scaled SCALE INTERVAL     GradScaler over SGD with lr 0.5; the gradient of step BAD_STEP has an
                              infinity. Each line: the scale after the step, then the N values
    schedule NAME STEPS       then that many numbers

elementwise.txt: unary and binary ops and their gradients. Lines:

    unary NAME N              then N lines "x dy y dx"
    binary NAME N             then N lines "a b dy y da db"

reduce.txt: amax, amin, argmax and argmin of rows with ties, NaN and infinities, and amax's gradient:

    rows N LENGTH             then for each row a line of x, one of dy, one of amax's dx, and one of
                              amax, amin, argmax, argmin

NAME, A and B are those of ATTO_ACTIVATION_TABLE; A and B are exact in float32 too. Numbers are the
shortest decimals that read back as the same double.

linear.txt: torch.nn.Linear with an activation behind it, on inputs that are exact in DTYPE. Lines:

    # comment
    torch VERSION
    linear DTYPE NAME M N K   then a line each: x [M,K], w [N,K], b [N], dy [M,N], z = x w^T + b,
                              y = NAME(z), dx, dw, db
cross_entropy.txt: cross-entropy and its gradients for combinations of options, inputs exact in
float32. Lines:

    torch VERSION
    case RANK D0 D1 ... KIND REDUCTION SMOOTHING HAS_IGNORE IGNORE HAS_WEIGHT
    x ...  target ...  weight ...  dloss ...  loss ...  dx ...  dtarget ...

KIND is labels or shares, REDUCTION the number of ATTO_REDUCTION_*; each word is followed by its
numbers, weight only with HAS_WEIGHT, dtarget only with shares.

multihead_attention.txt: torch.nn.MultiheadAttention of small sizes with combinations of its options. Lines:

    torch VERSION
    case BATCHED FIRST BIAS BIAS_KV ZERO KDIM VDIM PADDING PAIRS CAUSAL PARAMETERS
    NAME COUNT ...            of each parameter, then query, key, value, dy, with masks padding and mask,
                              y, weights (of each head), and as grad the gradients of query, key, value
                              and of the parameters in their order

transformer_block.txt: torch.nn.TransformerEncoderLayer without dropout, with combinations of its options.
Lines:

    torch VERSION
    case BATCHED FIRST NORM_FIRST BIAS GELU EPS PADDING PAIRS CAUSAL METHOD PARAMETERS
    NAME COUNT ...            of each parameter, then x, dy, with masks padding and mask, y, dx and as grad
                              the parameters' gradients in their order; target, and as trained the
                              parameters after BLOCK_STEPS steps of METHOD, sgd or adamw, on the squares of
                              y - target

rnn.txt: torch.nn.LSTMCell, GRUCell, LSTM and GRU of small sizes with combinations of their options. Lines:

    torch VERSION
    case LSTM CELL BATCHED FIRST BIAS TWO_WAYS LAYERS STATES GIVEN L N I H PARAMETERS
    NAME COUNT ...            of each parameter, then x, with STATES h and c, of GIVEN's bits 1, 2 and 4 the
                              gradients dy, dhy and dcy, then y, hy and cy, and as grad the gradients of x, h,
                              c and of the parameters in their order

A GRU has no c; of cells y is hy.

softmax.txt: softmax, log_softmax and softmin over each dimension of small tensors. Lines:

    torch VERSION
    case NAME DIM RANK D0 D1 ...
    x ...  dy ...  y ...  dx ...

glu.txt: gated linear units with each activation, a act(b) with the halves a and b of x. Lines:

    torch VERSION
    case NAME A B DIM RANK D0 D1 ...
    x ...  dy ...  y ...  dx ...

conv.txt: torch.nn.Conv1d, Conv2d and the transposed ones with combinations of their options. All numbers are whole,
so that any version of PyTorch writes the same file; x, weight, bias and dy are made up as conv_numbers says. Lines:

    torch VERSION
    case KIND RIM PADDED DIMS GROUPS BIAS KERNEL STRIDE DILATION PADDING OUTPUT_PADDING RANK D0 D1 ...
    y ...  dx ...  dw ...  db ...

KIND is plain or transposed, RIM the padding_mode, PADDED numbers or same; KERNEL to OUTPUT_PADDING are DIMS
numbers each, D0 D1 ... the shape of y; db is there with BIAS.

matmul.txt: products of batches and their gradients. Numbers are multiples of 1/64, so that every
sum is exact and any version of PyTorch writes the same file. Lines:

    torch VERSION
    case RANK D0 D1 ... RANK D0 D1 ...
    a ...  b ...  dy ...  y ...  da ...  db ...

The shapes are those of a and b.

loss.txt: pointwise losses, and losses of labels, inputs exact in float32. Lines:

    torch VERSION
    case KIND REDUCTION THRESHOLD HAS_WEIGHT HAS_POS_WEIGHT RANK D0 ... RANK D0 ...
    x ...  target ...  weight ...  pos_weight ...  dloss ...  loss ...  dx ...  dtarget ...
    nll RANK D0 ... REDUCTION HAS_IGNORE IGNORE HAS_WEIGHT
    x ...  target ...  weight ...  dloss ...  loss ...  dx ...

KIND is the number of ATTO_LOSS_*; the shapes are x's and the target's. weight is shaped like x,
pos_weight is a vector of its last size.
layer_norm.txt: layer norm and RMS norm and their gradients, inputs exact in float32. Lines:

    torch VERSION
    case RANK D0 D1 ... KIND DIMS EPS HAS_WEIGHT HAS_BIAS
    x ...  weight ...  bias ...  dy ...  y ...  dx ...  dweight ...  dbias ...

KIND is layer or rms; weight, bias and their gradients only where they are there.

batch_norm.txt: batch norm with a residual and an activation behind it, inputs exact in float32. Lines:

    torch VERSION
    case RANK D0 D1 ... TRAINING MOMENTUM EPS HAS_WEIGHT HAS_BIAS HAS_RESIDUAL ACT
    x ...  weight ...  bias ...  residual ...  running_mean ...  running_var ...  dy ...  y ...
    mean_after ...  var_after ...  dx ...  dweight ...  dbias ...  dresidual ...

ACT is a name of ATTO_ACTIVATION_TABLE.

group_norm.txt: group norm and, with running statistics, instance norm, inputs exact in float32. Lines:

    torch VERSION
    case RANK D0 D1 ... GROUPS MOMENTUM EPS HAS_WEIGHT HAS_BIAS HAS_RUNNING
    x ...  weight ...  bias ...  running_mean ...  running_var ...  mean_after ...  var_after ...
    dy ...  y ...  dx ...  dweight ...  dbias ...

pool.txt: pooling of a few inputs that are exact in float32. Lines:

    torch VERSION
    input NUMBER RANK D0 D1 ...
    x ...
    case OP INPUT DIMS KERNEL STRIDE PADDING DILATION CEIL EXCLUDE DIVISOR OUT
    dy ...  y ...  index ...  dx ...

OP is avg, max, adaptive_avg or adaptive_max; KERNEL, STRIDE, PADDING, DILATION and OUT are two numbers each,
of which DIMS count; index stands behind maxima only.

index.txt: rows and elements that an index names, inputs exact in float32. Lines:

    torch VERSION
    case OP DIM HAS_PADDING PADDING RANK D0 D1 ... RANK D0 D1 ...
    x ...  index ...  dy ...  y ...  dx ...

OP is embedding, index_select or gather; the shapes are x's and the index's.

attention.txt: scaled dot product attention and its gradients, inputs exact in float32. Lines:

    torch VERSION
    case B H G L S D E CAUSAL SCALE MASK RANK D0 D1 ...
    q ...  k ...  v ...  mask ...  dy ...  y ...  dq ...  dk ...  dv ...

CAUSAL is the number of ATTO_CAUSAL_*; SCALE 0 is the default; MASK is none, bool or float, and its shape and
numbers are there unless it is none.

rope.txt: rotary position embedding as Hugging Face (halves) and Meta (neighbours, complex numbers) write it.
Lines:

    torch VERSION
    case PAIRING DIMS THETA OFFSET RANK B H L D
    cos ...  sin ...  x ...  dy ...  y ...  dx ...

PAIRING is halves or neighbours, DIMS what is turned of D; tables are [OFFSET + L, DIMS / 2].

pad.txt: torch.nn.functional.pad in all modes, and its gradient. Lines:

    torch VERSION
    case MODE VALUE RANK D0 D1 ... AMOUNTS
    x ...  dy ...  y ...  dx ...

MODE is one of ATTO_PAD_TABLE; AMOUNTS are before and after of every dimension, the first one first.

resize.txt: torch.nn.functional.interpolate, and its gradient. Lines:

    torch VERSION
    case MODE ALIGN DIMS SCALE ... OUT ... RANK D0 D1 ...
    x ...  dy ...  y ...  dx ...

MODE is nearest or linear; of SCALE and OUT there are DIMS; SCALE is 0 where OUT was given, else OUT follows from it.
"""
import argparse
import math
import os
import random
import struct
import sys

import torch
import torch.nn.functional as F

WANTED_TORCH = "2.11"


def f32(value):
    """The nearest float32, as a float."""
    return struct.unpack("<f", struct.pack("<f", value))[0]


def step_f32(value, direction):
    """The float32 next to value, upwards (+1) or downwards (-1)."""
    if value == 0.0:
        return direction * 2.0**-149
    bits = struct.unpack("<i", struct.pack("<f", value))[0]
    bits += direction if value > 0 else -direction
    return struct.unpack("<f", struct.pack("<i", bits))[0]


# name, a, b, function of a float64 tensor. Defaults first, then other parameters.
ACTIVATIONS = [
    ("identity", 0, 0, lambda x, a, b: x * 1.0),
    ("sigmoid", 0, 0, lambda x, a, b: torch.sigmoid(x)),
    ("logsigmoid", 0, 0, lambda x, a, b: F.logsigmoid(x)),
    ("tanh", 0, 0, lambda x, a, b: torch.tanh(x)),
    ("relu", 0, 0, lambda x, a, b: F.relu(x)),
    ("gelu", 0, 0, lambda x, a, b: F.gelu(x)),
    ("gelu_tanh", 0, 0, lambda x, a, b: F.gelu(x, approximate="tanh")),
    ("silu", 0, 0, lambda x, a, b: F.silu(x)),
    ("relu6", 0, 0, lambda x, a, b: F.relu6(x)),
    ("hardsigmoid", 0, 0, lambda x, a, b: F.hardsigmoid(x)),
    ("hardtanh", -1, 1, lambda x, a, b: F.hardtanh(x, a, b)),
    ("hardswish", 0, 0, lambda x, a, b: F.hardswish(x)),
    ("selu", 0, 0, lambda x, a, b: F.selu(x)),
    ("mish", 0, 0, lambda x, a, b: F.mish(x)),
    ("softplus", 1, 20, lambda x, a, b: F.softplus(x, a, b)),
    ("softsign", 0, 0, lambda x, a, b: F.softsign(x)),
    ("tanhshrink", 0, 0, lambda x, a, b: F.tanhshrink(x)),
    ("leaky_relu", 0.01, 0, lambda x, a, b: F.leaky_relu(x, a)),
    ("elu", 1, 0, lambda x, a, b: F.elu(x, a)),
    ("celu", 1, 0, lambda x, a, b: F.celu(x, a)),
    ("hardshrink", 0.5, 0, lambda x, a, b: F.hardshrink(x, a)),
    ("softshrink", 0.5, 0, lambda x, a, b: F.softshrink(x, a)),
    ("hardtanh", -0.25, 3, lambda x, a, b: F.hardtanh(x, a, b)),
    ("softplus", 5, 20, lambda x, a, b: F.softplus(x, a, b)),
    ("softplus", 0.5, 3, lambda x, a, b: F.softplus(x, a, b)),
    ("leaky_relu", 0.3, 0, lambda x, a, b: F.leaky_relu(x, a)),
    ("leaky_relu", -0.5, 0, lambda x, a, b: F.leaky_relu(x, a)),
    ("elu", 0.7, 0, lambda x, a, b: F.elu(x, a)),
    ("elu", 2, 0, lambda x, a, b: F.elu(x, a)),
    ("celu", 0.5, 0, lambda x, a, b: F.celu(x, a)),
    ("celu", 2.5, 0, lambda x, a, b: F.celu(x, a)),
    ("hardshrink", 1.5, 0, lambda x, a, b: F.hardshrink(x, a)),
    ("softshrink", 0, 0, lambda x, a, b: F.softshrink(x, a)),
    ("softshrink", 1.5, 0, lambda x, a, b: F.softshrink(x, a)),
]


def act_inputs():
    """Kinks and their neighbours, every magnitude, both signs, and what is not a number."""
    kinks = [0.25, 0.5, 1.0, 1.5, 3.0, 4.0, 6.0, 20.0]
    sizes = [1e-45, 1e-40, 1e-30, 1e-12, 1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.75, 2.0, 2.5, 5.0, 8.0,
             9.0, 12.0, 16.0, 17.0, 22.0, 23.0, 25.0, 50.0, 87.0, 88.0, 89.0, 90.0, 100.0, 120.0,
             1000.0, 1e10, 3e38]
    positive = set(f32(v) for v in sizes)
    for kink in kinks:
        positive.update([step_f32(kink, -1), kink, step_f32(kink, 1)])
    finite = [-v for v in sorted(positive, reverse=True)] + [-0.0, 0.0] + sorted(positive)
    return finite + [math.inf, -math.inf, math.nan]


def act_evaluate(function, a, b, x, dy):
    """y, and dx for the upstream gradient dy, of one tensor."""
    leaf = x.clone().requires_grad_(True)
    y = function(leaf, a, b)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    return y.detach().tolist(), dx.tolist()


def close(p, q):
    """Equal up to the rounding of a few double operations."""
    if math.isnan(p) or math.isnan(q) or math.isinf(p) or math.isinf(q):
        return p == q or (math.isnan(p) and math.isnan(q))
    return abs(p - q) <= 1e-13 * max(abs(p), abs(q)) + 1e-300


def check_tails(name, whole, function, a, b, xs, dys):
    """PyTorch has a vector loop and a scalar tail. Elements where they differ are reported."""
    notes = []
    for i, x in enumerate(xs):
        y, dx = act_evaluate(function, a, b, torch.tensor([x], dtype=torch.float64),
                             torch.tensor([dys[i]], dtype=torch.float64))
        for what, one, many in (("y", y[0], whole[0][i]), ("dx", dx[0], whole[1][i])):
            if not close(one, many):
                notes.append(f"# {name} {a!r} {b!r}: {what}({x!r}) is {many!r} in a vector, "
                             f"{one!r} alone")
    return notes


def write_act(out):
    """Writes act.txt; returns its path."""
    xs = act_inputs()
    rng = random.Random(2011)
    dys = [rng.choice((-1, 1)) * rng.randint(1, 128) / 64 for _ in xs]
    x = torch.tensor(xs, dtype=torch.float64)
    dy = torch.tensor(dys, dtype=torch.float64)
    ones = torch.ones_like(x)
    lines = ["# Activations and their gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}", f"inputs {len(xs)}"]
    lines += [f"{p!r} {q!r}" for p, q in zip(xs, dys)]
    notes = []
    for name, a, b, function in ACTIVATIONS:
        a, b = f32(a), f32(b)
        y, dx1 = act_evaluate(function, a, b, x, ones)
        again, dx = act_evaluate(function, a, b, x, dy)
        assert repr(y) == repr(again), name
        notes += check_tails(name, (y, dx), function, a, b, xs, dys)
        lines.append(f"act {name} {a!r} {b!r}")
        lines += [f"{p!r} {q!r} {r!r}" for p, q, r in zip(y, dx1, dx)]
    path = os.path.join(out, "act.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines + notes) + "\n")
    for note in notes:
        print(note, file=sys.stderr)
    return path


# dtype of the inputs, activation, rows, features out, features in.
LINEARS = [
    ("f32", "relu", 1, 1, 1),
    ("f32", "identity", 3, 4, 5),
    ("f32", "gelu", 5, 3, 7),
    ("f16", "gelu", 2, 9, 6),
    ("f16", "identity", 7, 2, 11),
    ("bf16", "relu", 4, 5, 3),
    ("bf16", "gelu", 3, 4, 9),
]

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def linear_values(rng, dtype, *shape):
    """A float64 tensor of values from [-1, 1] that the dtype holds exactly."""
    values = [rng.uniform(-1.0, 1.0) for _ in range(math.prod(shape))]
    return torch.tensor(values, dtype=torch.float64).to(DTYPES[dtype]).to(torch.float64).view(shape)


def linear_case(rng, dtype, name, m, n, k):
    """The lines of one layer."""
    function = next(f for other, _, _, f in ACTIVATIONS if other == name)
    x = linear_values(rng, dtype, m, k).requires_grad_(True)
    layer = torch.nn.Linear(k, n, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(linear_values(rng, dtype, n, k))
        layer.bias.copy_(linear_values(rng, dtype, n))
    dy = linear_values(rng, dtype, m, n)
    z = layer(x)
    y = function(z, 0.0, 0.0)
    y.backward(dy)
    tensors = (x, layer.weight, layer.bias, dy, z, y, x.grad, layer.weight.grad, layer.bias.grad)
    lines = [f"linear {dtype} {name} {m} {n} {k}"]
    return lines + [" ".join(repr(v) for v in t.flatten().tolist()) for t in tensors]


def write_linear(out):
    """Writes linear.txt; returns its path."""
    rng = random.Random(2012)
    lines = ["# Linear layers and their gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for row in LINEARS:
        lines += linear_case(rng, *row)
    path = os.path.join(out, "linear.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


REDUCTIONS = ["mean", "sum", "none"]  # as atto_reduction counts them
SHAPES = [(5,), (4, 3), (3, 1), (6, 7), (2, 5, 3), (2, 3, 2, 2)]


def ce_case(x, target, weight, dloss, reduction, smoothing, ignore):
    """The lines of one case."""
    soft = target.dtype == torch.float64
    x = x.clone().requires_grad_(True)
    target = target.clone().requires_grad_(soft)
    loss = F.cross_entropy(x, target, weight=weight, reduction=REDUCTIONS[reduction],
                           label_smoothing=smoothing, ignore_index=-100 if ignore is None else ignore)
    dloss = dloss.reshape(-1)[: loss.numel()].reshape(loss.shape)
    grads = torch.autograd.grad(loss, [x, target] if soft else [x], dloss)
    parts = [("x", x), ("target", target)] + ([] if weight is None else [("weight", weight)])
    parts += [("dloss", dloss), ("loss", loss), ("dx", grads[0])]
    parts += [("dtarget", grads[1])] if soft else []
    shape = " ".join(str(n) for n in x.shape)
    lines = [f"case {x.dim()} {shape} {'shares' if soft else 'labels'} {reduction} {smoothing!r} "
             f"{int(ignore is not None)} {0 if ignore is None else ignore} {int(weight is not None)}"]
    return lines + [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                    for name, t in parts]


def ce_numbers(rng, shape, low, high):
    """Multiples of 1/64."""
    n = math.prod(shape)
    return torch.tensor([rng.randint(low * 64, high * 64) / 64 for _ in range(n)],
                        dtype=torch.float64).reshape(shape)


def ce_random(rng, shape, soft, weighted, reduction, smoothing, ignore):
    """A case of that kind with random numbers."""
    classes = shape[0] if len(shape) == 1 else shape[1]
    places = shape[:0] if len(shape) == 1 else shape[:1] + shape[2:]
    target = ce_numbers(rng, shape, 0, 1)
    if not soft:
        labels = [rng.randrange(classes) for _ in range(math.prod(places))]
        if ignore is not None:
            labels = [ignore if rng.random() < 0.3 else label for label in labels]
        target = torch.tensor(labels, dtype=torch.int64).reshape(places)
    weight = ce_numbers(rng, (classes,), 1, 3) if weighted else None
    dloss = ce_numbers(rng, places + (1,), -2, 2)
    return ce_case(ce_numbers(rng, shape, -6, 6), target, weight, dloss, reduction, smoothing, ignore)


# Logits, label: huge, infinite, not a number.
CE_EXTREMES = [([1000.0, -1000.0], 1), ([1000.0, -1000.0], 0), ([-math.inf, 0.0], 0),
               ([-math.inf, 0.0], 1), ([math.inf, 0.0], 1), ([-math.inf, -math.inf], 0),
               ([math.nan, 0.0], 1), ([2.0**100, -(2.0**100)], 0),
               ([2.0**100, -(2.0**100)], 1)]


def write_cross_entropy(out):
    """Writes cross_entropy.txt; returns its path."""
    rng = random.Random(2011)
    lines = ["# Cross-entropy and its gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    count = 0
    for soft in (False, True):
        for ignore in (None,) if soft else (None, 0, -100):
            for weighted in (False, True):
                for smoothing in (0.0, 0.25):
                    for reduction in range(3):
                        for _ in range(2):
                            shape = SHAPES[count % len(SHAPES)]
                            count += 5 if count % 7 else 1
                            lines += ce_random(rng, shape, soft, weighted, reduction, smoothing,
                                               ignore)
    x = torch.tensor([row for row, _ in CE_EXTREMES], dtype=torch.float64)
    target = torch.tensor([label for _, label in CE_EXTREMES])
    ones = torch.ones(len(CE_EXTREMES), dtype=torch.float64)
    lines += ce_case(x, target, None, ones, 2, 0.0, None)
    nothing = torch.full((3,), -100)
    for reduction in range(3):  # every label is ignored
        lines += ce_case(x[:3], nothing, None, ones[:3], reduction, 0.0, -100)
    path = os.path.join(out, "cross_entropy.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


def case_lines(head, x, dim, y, dy):
    """The head with the shape of x, and a line each for x, dy, y and dx."""
    (dx,) = torch.autograd.grad(y, x, dy)
    shape = " ".join(str(n) for n in x.shape)
    return [f"case {head} {dim} {x.dim()} {shape}"] + [
        " ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
        for name, t in (("x", x), ("dy", dy), ("y", y), ("dx", dx))]


def write_lines(out, name, lines):
    """Writes a file; returns its path."""
    path = os.path.join(out, name)
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


LOSSES = ["l1", "mse", "smooth_l1", "huber", "bce", "kl", "kl_log"]  # as atto_loss_kind counts them
LOSS_SHAPES = [((6,), (6,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((1, 3), (2, 2, 3)),
               ((), ())]


def batch_mean(call, x):
    """The sum divided by x's first size, which PyTorch has for kl_div only."""
    return call("sum") / (x.shape[0] if x.dim() > 0 else 1)


def loss_value(kind, x, target, reduction, threshold, weight, pos_weight):
    """PyTorch's loss; reduction as atto_reduction counts it."""
    calls = {
        "l1": lambda r: F.l1_loss(x, target, reduction=r),
        "mse": lambda r: F.mse_loss(x, target, reduction=r),
        "smooth_l1": lambda r: F.smooth_l1_loss(x, target, reduction=r, beta=threshold),
        "huber": lambda r: F.huber_loss(x, target, reduction=r, delta=threshold),
        "bce": lambda r: F.binary_cross_entropy_with_logits(x, target, reduction=r, weight=weight,
                                                            pos_weight=pos_weight),
        "kl": lambda r: F.kl_div(x, target, reduction=r),
        "kl_log": lambda r: F.kl_div(x, target, reduction=r, log_target=True),
    }
    if reduction < 3:
        return calls[kind](REDUCTIONS[reduction])
    if kind in ("kl", "kl_log"):
        return calls[kind]("batchmean")
    return batch_mean(calls[kind], x)


def with_shape(t):
    return " ".join([str(t.dim())] + [str(n) for n in t.shape])


def loss_case(kind, reduction, threshold, x, target, weight, pos_weight, dloss):
    """The lines of one case."""
    x = x.clone().requires_grad_(True)
    target = target.clone().requires_grad_(True)
    loss = loss_value(kind, x, target, reduction, threshold, weight, pos_weight)
    dloss = dloss.reshape(-1)[: loss.numel()].reshape(loss.shape)
    dx, dtarget = torch.autograd.grad(loss, [x, target], dloss)
    parts = [("x", x), ("target", target)] + ([] if weight is None else [("weight", weight)])
    parts += [] if pos_weight is None else [("pos_weight", pos_weight)]
    parts += [("dloss", dloss), ("loss", loss), ("dx", dx), ("dtarget", dtarget)]
    lines = [f"case {LOSSES.index(kind)} {reduction} {threshold!r} {int(weight is not None)} "
             f"{int(pos_weight is not None)} {with_shape(x)} {with_shape(target)}"]
    return lines + [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                    for name, t in parts]


def loss_random(rng, kind, reduction, number):
    """A case of that kind with random numbers."""
    shapes = LOSS_SHAPES[number % len(LOSS_SHAPES)]
    shapes = (shapes[0], shapes[0]) if kind == "bce" else shapes
    x = ce_numbers(rng, shapes[0], -6 if kind[:2] == "kl" else -4, 0 if kind[:2] == "kl" else 4)
    low, high = {"bce": (0, 1), "kl": (0, 1), "kl_log": (-6, 0)}.get(kind, (-4, 4))
    target = ce_numbers(rng, shapes[1], low, high)
    if kind == "kl":  # the slope at 0 is no number in PyTorch
        target = target.clamp(min=1 / 64)
    weighted, positive = kind == "bce" and number % 4 in (1, 3), kind == "bce" and number % 4 > 1
    weight = ce_numbers(rng, shapes[0], 1, 3) if weighted else None
    pos_weight = ce_numbers(rng, shapes[0][-1:], 1, 4) if positive else None
    threshold = {"smooth_l1": [1.0, 0.25, 0.0, 2.5], "huber": [1.0, 0.25, 3.0, 2.5]}.get(
        kind, [0.0])
    return loss_case(kind, reduction, threshold[number % len(threshold)], x, target, weight,
                     pos_weight, ce_numbers(rng, (12,), -2, 2))


# x, target: kinks, infinite, not a number, huge logits.
LOSS_EXTREMES = [
    ("l1", 0.0, [(1.0, 1.0), (math.inf, 1.0), (1.0, math.inf), (math.nan, 1.0)]),
    ("mse", 0.0, [(1.0, 1.0), (math.inf, 1.0), (math.nan, 1.0), (2.0**60, 1.0)]),
    ("smooth_l1", 1.0, [(2.0, 1.0), (1.0, 1.0), (0.0, 1.0), (math.inf, 1.0), (math.nan, 1.0)]),
    ("smooth_l1", 0.0, [(2.0, 1.0), (1.5, 1.0), (0.0, 1.0), (-math.inf, 1.0)]),
    ("huber", 2.0, [(3.0, 1.0), (1.0, 1.0), (-1.0, 1.0), (-math.inf, 1.0), (math.nan, 1.0)]),
    ("bce", 0.0, [(1e4, 1.0), (1e4, 0.0), (-1e4, 0.0), (-1e4, 1.0), (math.inf, 0.0),
                  (math.nan, 0.5)]),
    ("kl", 0.0, [(-3.0, 1.0), (0.0, 1.0), (-math.inf, 0.5), (math.nan, 0.5)]),
    ("kl_log", 0.0, [(-3.0, 0.0), (0.0, -100.0), (-math.inf, -1.0)]),
]


def nll_random(rng, shape, reduction, weighted, ignore):
    """The lines of a case of nll_loss with random numbers."""
    classes = shape[0] if len(shape) == 1 else shape[1]
    places = shape[:0] if len(shape) == 1 else shape[:1] + shape[2:]
    labels = [rng.randrange(classes) for _ in range(math.prod(places))]
    if ignore is not None:
        labels = [ignore if rng.random() < 0.3 else label for label in labels]
    target = torch.tensor(labels, dtype=torch.int64).reshape(places)
    weight = ce_numbers(rng, (classes,), 1, 3) if weighted else None
    x = ce_numbers(rng, shape, -6, 0).requires_grad_(True)
    loss = F.nll_loss(x, target, weight=weight, reduction=REDUCTIONS[reduction],
                      ignore_index=-100 if ignore is None else ignore)
    dloss = ce_numbers(rng, places + (1,), -2, 2).reshape(-1)[: loss.numel()].reshape(loss.shape)
    (dx,) = torch.autograd.grad(loss, [x], dloss)
    parts = [("x", x), ("target", target)] + ([] if weight is None else [("weight", weight)])
    parts += [("dloss", dloss), ("loss", loss), ("dx", dx)]
    lines = [f"nll {with_shape(x)} {reduction} {int(ignore is not None)} "
             f"{0 if ignore is None else ignore} {int(weight is not None)}"]
    return lines + [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                    for name, t in parts]


def write_loss(out):
    """Writes loss.txt; returns its path."""
    rng = random.Random(2012)
    lines = ["# Losses and their gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for kind in LOSSES:
        for reduction in range(4):
            for number in range(6):
                if kind == "bce" and number == 5:
                    number = 0  # a scalar has no last size
                lines += loss_random(rng, kind, reduction, number)
    for kind, threshold, rows in LOSS_EXTREMES:
        x, target = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows))
        ones = torch.ones(len(rows), dtype=torch.float64)
        lines += loss_case(kind, 2, threshold, x, target, None, None, ones)
    for ignore in (None, 0, -100):
        for weighted in (False, True):
            for reduction in range(3):
                for shape in SHAPES + [(9, 2)]:
                    lines += nll_random(rng, shape, reduction, weighted, ignore)
    path = os.path.join(out, "loss.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


SOFTMAXES = [("softmax", F.softmax), ("log_softmax", F.log_softmax), ("softmin", F.softmin)]

# Rows: huge, infinite, not a number.
SOFTMAX_EXTREMES = [[-math.inf] * 3, [-math.inf, 0.0, -math.inf], [2.0**100, -(2.0**100), 0.0],
                    [math.inf, 0.0, 1.0], [math.inf, math.inf, 0.0], [-math.inf, math.inf, 0.0],
                    [math.nan, 0.0, 1.0], [math.nan] * 3, [-1000.0, -1001.0, -1002.0],
                    [0.0, 0.0, 0.0], [2.0**127, 2.0**127, 2.0**126], [0.0, -87.0, -104.0]]


def write_softmax(out):
    """Writes softmax.txt; returns its path."""
    rng = random.Random(2014)
    lines = ["# Softmax and its gradient in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for name, function in SOFTMAXES:
        for shape in SHAPES:
            for dim in range(-len(shape), len(shape)):
                size = 6 if dim < 0 else 30
                x = ce_numbers(rng, shape, -size, size).requires_grad_(True)
                lines += case_lines(name, x, dim, function(x, dim=dim), ce_numbers(rng, shape, -2, 2))
        for row in SOFTMAX_EXTREMES:
            x = torch.tensor(row, dtype=torch.float64, requires_grad=True)
            dy = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)
            lines += case_lines(name, x, 0, function(x, dim=0), dy)
    return write_lines(out, "softmax.txt", lines)


def write_glu(out):
    """Writes glu.txt; returns its path."""
    rng = random.Random(2015)
    lines = ["# Gated linear units and their gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for name, a, b, function in ACTIVATIONS:
        a, b = f32(a), f32(b)
        for shape, dim in (((2, 6), 1), ((4, 3), -2), ((2, 2, 3), 1), ((8,), 0)):
            x = ce_numbers(rng, shape, -6, 6).requires_grad_(True)
            first, gate = x.chunk(2, dim)
            y = F.glu(x, dim) if name == "sigmoid" else first * function(gate, a, b)
            lines += case_lines(f"{name} {a!r} {b!r}", x, dim, y, ce_numbers(rng, y.shape, -2, 2))
    return write_lines(out, "glu.txt", lines)


MATMUL_SHAPES = [((2, 3), (3, 4)), ((1, 1), (1, 1)), ((3, 1), (1, 2)), ((1, 5), (5, 1)),
                 ((2, 2, 3), (2, 3, 2)), ((2, 2, 3), (3, 2)), ((2, 3), (2, 3, 2)), ((2, 1, 2, 3), (2, 3, 2)),
                 ((1, 2, 3), (3, 3, 2)), ((2, 2, 1, 2), (2, 1, 2, 3)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 2)),
                 ((1, 2, 3), (0, 3, 2))]


def write_matmul(out):
    """Writes matmul.txt; returns its path."""
    rng = random.Random(2026)
    lines = ["# Batched matrix products and their gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for shapes in MATMUL_SHAPES:
        a, b = (ce_numbers(rng, shape, -2, 2).requires_grad_(True) for shape in shapes)
        y = torch.matmul(a, b)
        dy = ce_numbers(rng, y.shape, -2, 2)
        da, db = torch.autograd.grad(y, (a, b), dy)
        lines.append("case " + " ".join(f"{t.dim()} " + " ".join(str(n) for n in t.shape) for t in (a, b)))
        lines += [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                  for name, t in (("a", a), ("b", b), ("dy", dy), ("y", y), ("da", da), ("db", db))]
    return write_lines(out, "matmul.txt", lines)


# B, H, G, L, S, D, E, causal, scale, mask, its shape. Masks hide all of row 0.
ATTENTION_CASES = [
    (1, 1, 1, 3, 4, 2, 2, 0, 0, "none", None), (1, 1, 1, 1, 1, 2, 2, 0, 0, "none", None),
    (2, 2, 2, 3, 3, 2, 2, 1, 0, "none", None), (1, 2, 2, 2, 5, 2, 2, 1, 0, "none", None),
    (1, 2, 2, 5, 2, 2, 2, 1, 0, "none", None), (1, 2, 2, 2, 5, 2, 2, 2, 0, "none", None),
    (1, 2, 2, 5, 2, 2, 2, 2, 0, "none", None), (1, 4, 2, 2, 3, 3, 4, 0, 0, "none", None),
    (2, 3, 1, 2, 3, 2, 2, 1, 0, "none", None), (1, 1, 1, 3, 4, 2, 2, 0, 1.5, "none", None),
    (1, 1, 1, 3, 4, 3, 4, 0, -0.25, "none", None), (1, 2, 2, 3, 4, 2, 2, 0, 0, "bool", (3, 4)),
    (1, 2, 2, 3, 4, 2, 2, 0, 0, "float", (3, 4)), (2, 2, 1, 2, 4, 2, 2, 0, 0, "bool", (2, 1, 1, 4)),
    (2, 2, 1, 2, 4, 2, 2, 0, 0, "float", (2, 1, 2, 4)), (1, 2, 2, 4, 4, 2, 2, 0, 0, "float", (2, 4, 4)),
    (1, 2, 2, 3, 4, 2, 2, 0, 2.0, "float", (2, 1, 4)), (1, 1, 1, 3, 5, 2, 2, 0, 0, "bool", (3, 1)),
    (1, 4, 1, 1, 6, 3, 4, 2, 0, "none", None),
]


def attention_mask(rng, kind, shape):
    """A third of the keys is hidden, and all of the first row where rows are more than one."""
    if kind == "none":
        return None
    hidden = torch.tensor([rng.randrange(3) == 0 for _ in range(math.prod(shape))]).reshape(shape)
    if shape[-2] > 1:
        hidden[..., 0, :] = True
    if kind == "bool":
        return ~hidden
    return ce_numbers(rng, shape, -2, 2).masked_fill(hidden, -math.inf)


def attention_case(rng, b, h, g, length, s, d, e, causal, scale, kind, mask_shape):
    """The lines of one case."""
    q, k, v = (ce_numbers(rng, shape, -2, 2).requires_grad_(True)
               for shape in ((b, h, length, d), (b, g, s, d), (b, g, s, e)))
    mask = attention_mask(rng, kind, mask_shape)
    given = mask
    if causal == 2:
        given = torch.ones(length, s, dtype=torch.bool).tril(s - length)
    y = F.scaled_dot_product_attention(q, k, v, given, is_causal=causal == 1, scale=scale or None,
                                       enable_gqa=True)
    dy = ce_numbers(rng, y.shape, -2, 2)
    grads = torch.autograd.grad(y, (q, k, v), dy)
    shape = "" if mask is None else " " + with_shape(mask)
    parts = [("q", q), ("k", k), ("v", v), ("mask", mask), ("dy", dy), ("y", y),
             *zip(("dq", "dk", "dv"), grads)]
    return [f"case {b} {h} {g} {length} {s} {d} {e} {causal} {scale} {kind}{shape}"] + [
        " ".join([name] + [repr(float(x)) for x in t.detach().reshape(-1).tolist()])
        for name, t in parts if t is not None]


def write_attention(out):
    """Writes attention.txt; returns its path. By PyTorch's plain formula, not by its fused kernels."""
    rng = random.Random(2017)
    lines = ["# Scaled dot product attention and its gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        for case in ATTENTION_CASES:
            lines += attention_case(rng, *case)
    return write_lines(out, "attention.txt", lines)


# batched, batch_first, bias, add_bias_kv, add_zero_attn, kdim, vdim, and masks: key_padding_mask 0 none,
# 1 boolean, 2 numbers; attn_mask 0 none, 1 boolean, 2 numbers, and 3 and 4 the same for each head; causal.
MULTIHEADS = [
    (1, 1, 1, 0, 0, 8, 8, 0, 0, 0), (1, 0, 1, 0, 0, 8, 8, 0, 0, 0), (0, 0, 1, 0, 0, 8, 8, 0, 0, 0),
    (1, 1, 0, 0, 0, 8, 8, 0, 0, 0), (1, 0, 1, 0, 0, 5, 6, 0, 0, 0), (1, 1, 1, 0, 0, 8, 6, 1, 0, 0),
    (1, 0, 1, 1, 0, 8, 8, 0, 0, 0), (1, 1, 1, 0, 1, 8, 8, 0, 0, 0), (1, 0, 1, 1, 1, 8, 8, 1, 1, 0),
    (1, 1, 1, 0, 0, 8, 8, 1, 0, 0), (1, 0, 1, 0, 0, 8, 8, 2, 0, 0), (1, 1, 1, 0, 0, 8, 8, 0, 1, 0),
    (1, 0, 1, 0, 0, 8, 8, 0, 2, 0), (1, 1, 1, 0, 0, 8, 8, 0, 3, 0), (1, 0, 1, 0, 0, 8, 8, 0, 4, 0),
    (1, 1, 1, 0, 0, 8, 8, 1, 1, 0), (1, 0, 1, 0, 0, 8, 8, 2, 4, 0), (1, 1, 1, 0, 0, 8, 8, 1, 2, 0),
    (1, 1, 1, 0, 0, 8, 8, 0, 0, 1), (1, 0, 1, 0, 0, 8, 8, 1, 0, 1), (1, 1, 1, 1, 1, 8, 8, 0, 0, 1),
    (0, 1, 1, 0, 0, 8, 8, 1, 2, 0), (0, 0, 1, 1, 0, 5, 6, 0, 3, 0), (1, 1, 0, 1, 1, 5, 8, 2, 3, 0),
]
EMBED, HEADS, BATCHES, QUERIES, KEYS = 8, 2, 2, 3, 4


def multihead_mask(rng, kind, shape):
    """A mask that leaves the first key to every query, and what PyTorch takes of it."""
    if kind == 0:
        return None
    hides = torch.tensor([rng.random() < 0.4 for _ in range(math.prod(shape))]).reshape(shape)
    hides[..., 0] = False
    numbers = ce_numbers(rng, shape, -1, 1)
    return hides if kind % 2 else numbers.masked_fill(hides, -math.inf)


def multihead_case(rng, case):
    """The lines of one case."""
    batched, first, bias, bias_kv, zero, kdim, vdim, padding, pairs, causal = case
    module = torch.nn.MultiheadAttention(EMBED, HEADS, 0.0, bool(bias), bool(bias_kv), bool(zero), kdim,
                                         vdim, bool(first), dtype=torch.float64)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(ce_numbers(rng, parameter.shape, -1, 1))

    def sequence(length, size):
        shape = (length, size) if not batched else \
            (BATCHES, length, size) if first else (length, BATCHES, size)
        return ce_numbers(rng, shape, -1, 1)

    inputs = [sequence(n, size).requires_grad_(True)
              for n, size in ((QUERIES, EMBED), (KEYS, kdim), (KEYS, vdim))]
    heads = HEADS * (BATCHES if batched else 1)
    padding_mask = multihead_mask(rng, padding, (BATCHES, KEYS) if batched else (KEYS,))
    mask = multihead_mask(rng, pairs, (QUERIES, KEYS) if pairs < 3 else (heads, QUERIES, KEYS))
    hidden = torch.ones(QUERIES, KEYS).triu(1).bool() if causal else mask
    if padding_mask is not None and hidden is not None and padding_mask.dtype != hidden.dtype:
        padding_mask, hidden = (m if m.is_floating_point() else
                                torch.zeros(m.shape, dtype=torch.float64).masked_fill(m, -math.inf)
                                for m in (padding_mask, hidden))
    y, weights = module(*inputs, key_padding_mask=padding_mask, attn_mask=hidden,
                        average_attn_weights=False)
    dy = ce_numbers(rng, y.shape, -1, 1)
    parameters = dict(module.named_parameters())
    grads = torch.autograd.grad(y, inputs + list(parameters.values()), dy)
    parts = list(parameters.items()) + list(zip(("query", "key", "value"), inputs)) + [("dy", dy)]
    parts += [("padding", padding_mask)] if padding else []
    parts += [("mask", mask)] if pairs else []
    parts += [("y", y), ("weights", weights)]
    parts += zip(["grad"] * len(grads), grads)
    return ["case " + " ".join(str(n) for n in case) + f" {len(parameters)}"] + \
        [" ".join([name] + [str(t.numel())] + [repr(float(v)) for v in t.detach().reshape(-1).tolist()])
         for name, t in parts]


def write_multihead(out):
    """Writes multihead_attention.txt; returns its path."""
    rng = random.Random(1706)
    lines = ["# MultiheadAttention in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for case in MULTIHEADS:
        lines += multihead_case(rng, case)
    return write_lines(out, "multihead_attention.txt", lines)


# lstm, cell, batched, batch_first, bias, bidirectional, layers, states, given, L, N, I, H.
RNNS = [(lstm, 1, batched, 0, bias, 0, 1, states, given, 1, n, i, h)
        for lstm in (1, 0)
        for batched, bias, states, given, n, i, h in
        ((1, 1, 1, 5, 2, 3, 4), (1, 1, 1, 4, 3, 2, 5), (1, 0, 1, 1, 2, 4, 3), (1, 1, 0, 7, 3, 1, 2), (0, 1, 1, 5, 1, 3, 4),
         (0, 0, 0, 1, 1, 5, 3), (1, 1, 1, 6, 1, 7, 1))] + [
    (lstm, 0, batched, first, bias, two, layers, states, given, length, n, i, h)
    for lstm in (1, 0)
    for batched, first, bias, two, layers, states, given, length, n, i, h in
    ((1, 0, 1, 0, 1, 1, 7, 3, 2, 3, 4), (1, 1, 1, 0, 1, 1, 7, 3, 2, 3, 4), (1, 0, 1, 0, 1, 0, 1, 4, 2, 2, 3),
     (1, 1, 0, 0, 1, 1, 6, 2, 3, 3, 3), (1, 0, 1, 1, 1, 1, 7, 3, 2, 3, 2), (1, 1, 1, 1, 1, 0, 1, 3, 2, 3, 3),
     (1, 0, 1, 0, 2, 1, 7, 3, 2, 3, 3), (1, 1, 0, 0, 3, 0, 3, 2, 2, 2, 3), (1, 0, 1, 1, 2, 1, 7, 3, 2, 2, 3),
     (1, 1, 1, 1, 2, 1, 7, 4, 2, 3, 2), (1, 1, 0, 1, 2, 0, 4, 2, 3, 3, 2), (0, 0, 1, 0, 1, 1, 7, 3, 1, 3, 4),
     (0, 1, 1, 1, 2, 1, 7, 3, 1, 2, 3), (0, 0, 0, 0, 2, 0, 1, 4, 1, 3, 3), (1, 0, 1, 0, 1, 1, 7, 1, 2, 3, 4),
     (1, 1, 1, 1, 1, 1, 2, 1, 3, 2, 1), (1, 0, 1, 1, 5, 1, 7, 2, 1, 1, 2), (1, 0, 0, 1, 1, 1, 7, 5, 1, 5, 1))]


def rnn_parts(module, case, inputs):
    """y, hy and of an LSTM cy."""
    lstm, cell = case[:2]
    x, states = inputs[0], tuple(inputs[1:])
    given = None if not states else states if lstm else states[0]
    if cell:
        out = module(x, given)
        return [out[0], *out] if lstm else [out, out]
    y, out = module(x, given)
    return [y, *out] if lstm else [y, out]


def rnn_case(rng, case):
    """The lines of one case."""
    lstm, cell, batched, first, bias, two, layers, states, given, length, n, i, h = case
    given = given & 3 + 4 * lstm or 2
    if cell:
        module = (torch.nn.LSTMCell if lstm else torch.nn.GRUCell)(i, h, bool(bias), dtype=torch.float64)
    else:
        module = (torch.nn.LSTM if lstm else torch.nn.GRU)(i, h, layers, bool(bias), bool(first), 0.0, bool(two),
                                                           dtype=torch.float64)
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.copy_(ce_numbers(rng, parameter.shape, -1, 1))
    batch = (n,) if batched else ()
    steps = () if cell else (length,)
    x_shape = (*batch, *steps, i) if first else (*steps, *batch, i)
    state_shape = (*(() if cell else (layers * (1 + two),)), *batch, h)
    inputs = [ce_numbers(rng, x_shape, -2, 2)] + [ce_numbers(rng, state_shape, -1, 1) for _ in range(states * (1 + lstm))]
    for t in inputs:
        t.requires_grad_(True)
    results = rnn_parts(module, case, inputs)
    grads = [ce_numbers(rng, t.shape, -1, 1) if given >> k & 1 else None for k, t in enumerate(results)]
    total = sum((t * g).sum() for t, g in zip(results, grads) if g is not None)
    wanted = torch.autograd.grad(total, inputs + list(parameters.values()), allow_unused=True)
    wanted = [torch.zeros_like(t) if g is None else g for g, t in zip(wanted, inputs + list(parameters.values()))]
    parts = list(parameters.items()) + list(zip(("x", "h", "c"), inputs))
    parts += [(name, g) for name, g in zip(("dy", "dhy", "dcy"), grads) if g is not None]
    parts += list(zip(("y", "hy", "cy"), results)) + [("grad", g) for g in wanted]
    numbers = (*case[:8], given, *case[9:], len(parameters))
    return ["case " + " ".join(str(k) for k in numbers)] + \
        [" ".join([name] + [str(t.numel())] + [repr(float(v)) for v in t.detach().reshape(-1).tolist()])
         for name, t in parts]


def write_rnn(out):
    """Writes rnn.txt; returns its path."""
    rng = random.Random(1997)
    lines = ["# Recurrent cells and layers in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for case in RNNS:
        lines += rnn_case(rng, case)
    return write_lines(out, "rnn.txt", lines)


# batched, batch_first, norm_first, bias, gelu, eps, masks as of MULTIHEADS (key_padding_mask, src_mask), causal,
# method.
BLOCKS = [
    (1, 1, 0, 1, 0, 1e-5, 0, 0, 0, "sgd"), (1, 0, 1, 1, 0, 1e-5, 0, 0, 0, "adamw"),
    (1, 1, 1, 1, 1, 1e-5, 1, 0, 0, "sgd"), (1, 0, 0, 1, 1, 1e-5, 1, 1, 0, "adamw"),
    (1, 1, 0, 0, 0, 1e-5, 0, 2, 0, "adamw"), (1, 1, 1, 0, 1, 0.125, 0, 0, 1, "sgd"),
    (1, 0, 0, 1, 0, 0.125, 2, 4, 0, "sgd"), (0, 0, 0, 1, 1, 1e-5, 0, 1, 0, "sgd"),
    (1, 1, 1, 1, 0, 1e-5, 1, 0, 1, "adamw"), (0, 1, 1, 1, 0, 1e-5, 1, 0, 0, "adamw"),
]
BLOCK_MODEL, BLOCK_HEADS, BLOCK_WIDTH, BLOCK_BATCHES, BLOCK_POSITIONS = 4, 2, 6, 2, 5
BLOCK_STEPS = 5
BLOCK_OPTIMIZERS = {"sgd": lambda p: torch.optim.SGD(p, lr=0.125, momentum=0.5),
                    "adamw": lambda p: torch.optim.AdamW(p, lr=0.015625, weight_decay=0.125, eps=2.0**-6)}


def block_case(rng, case):
    """The lines of one case."""
    batched, first, norm_first, bias, gelu, eps, padding, pairs, causal, method = case
    module = torch.nn.TransformerEncoderLayer(BLOCK_MODEL, BLOCK_HEADS, BLOCK_WIDTH, 0.0,
                                              "gelu" if gelu else "relu", eps, bool(first),
                                              bool(norm_first), bool(bias), dtype=torch.float64)
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for parameter in parameters.values():
            parameter.copy_(ce_numbers(rng, parameter.shape, -1, 1))
    shape = (BLOCK_POSITIONS, BLOCK_MODEL) if not batched else \
        (BLOCK_BATCHES, BLOCK_POSITIONS, BLOCK_MODEL) if first else \
        (BLOCK_POSITIONS, BLOCK_BATCHES, BLOCK_MODEL)
    x, dy, target = (ce_numbers(rng, shape, -1, 1) for _ in range(3))
    x.requires_grad_(True)
    square = (BLOCK_POSITIONS, BLOCK_POSITIONS)
    padding_mask = multihead_mask(rng, padding,
                                  (BLOCK_BATCHES, BLOCK_POSITIONS) if batched else square[:1])
    mask = multihead_mask(rng, pairs, square if pairs < 3 else (BLOCK_BATCHES * BLOCK_HEADS, *square))
    hidden = torch.ones(square).triu(1).bool() if causal else mask

    def forward():
        return module(x, src_mask=hidden, src_key_padding_mask=padding_mask)

    y = forward()
    start = [p.detach().clone() for p in parameters.values()]
    grads = torch.autograd.grad(y, [x] + list(parameters.values()), dy)
    optimizer = BLOCK_OPTIMIZERS[method](parameters.values())
    for _ in range(BLOCK_STEPS):
        optimizer.zero_grad()
        F.mse_loss(forward(), target).backward()
        optimizer.step()
    parts = list(zip(parameters, start)) + [("x", x), ("dy", dy)]
    parts += [("padding", padding_mask)] if padding else []
    parts += [("mask", mask)] if pairs else []
    parts += [("y", y), ("dx", grads[0])] + [("grad", g) for g in grads[1:]] + [("target", target)]
    parts += [("trained", p) for p in parameters.values()]
    return ["case " + " ".join(str(n) for n in case) + f" {len(parameters)}"] + \
        [" ".join([name] + [str(t.numel())] + [repr(float(v)) for v in t.detach().reshape(-1).tolist()])
         for name, t in parts]


def write_transformer_block(out):
    """Writes transformer_block.txt; returns its path."""
    rng = random.Random(2017)
    lines = ["# TransformerEncoderLayer in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for case in BLOCKS:
        lines += block_case(rng, case)
    return write_lines(out, "transformer_block.txt", lines)


OPTIM_N = 7
OPTIM_STEPS = 12
BAD_STEP = 3

# method, lr, and the options that differ from PyTorch's defaults. RMSprop's alpha stands as beta2.
OPTIMS = [
    ("sgd", 0.1, {}),
    ("sgd", 0.1, {"weight_decay": 0.05}),
    ("sgd", 0.1, {"momentum": 0.9}),
    ("sgd", 0.1, {"momentum": 0.9, "weight_decay": 0.05}),
    ("sgd", 0.1, {"momentum": 0.8, "dampening": 0.3}),
    ("sgd", 0.1, {"momentum": 0.9, "nesterov": True}),
    ("sgd", 0.1, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.05, "maximize": True}),
    ("sgd", 0.1, {"clip": 1.0}),
    ("adam", 0.01, {}),
    ("adam", 0.01, {"weight_decay": 0.05}),
    ("adam", 0.01, {"betas": (0.8, 0.95), "eps": 0.01}),
    ("adam", 0.01, {"betas": (0.0, 0.99)}),
    ("adam", 0.01, {"betas": (0.9, 0.0), "eps": 0.125}),
    ("adam", 0.01, {"maximize": True, "clip": 0.5}),
    ("adamw", 0.01, {}),
    ("adamw", 0.01, {"weight_decay": 0.5}),
    ("adamw", 0.01, {"weight_decay": 0.0, "betas": (0.85, 0.98), "eps": 1e-4}),
    ("adamw", 0.01, {"maximize": True}),
    ("rmsprop", 0.01, {}),
    ("rmsprop", 0.01, {"weight_decay": 0.05, "alpha": 0.9}),
    ("rmsprop", 0.01, {"eps": 0.1}),
    ("rmsprop", 0.01, {"momentum": 0.9}),
    ("rmsprop", 0.01, {"centered": True}),
    ("rmsprop", 0.01, {"centered": True, "momentum": 0.7, "maximize": True}),
]
OPTIM_CLASSES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
                 "rmsprop": torch.optim.RMSprop}


def optim_data():
    """The start and the gradients, exact in float32, of several magnitudes; one is always 0."""
    rng = random.Random(411)
    sizes = [1.0, 1.0, 0.1, 10.0, 1e-3, 1e-6, 0.0]
    start = [f32(rng.uniform(-2, 2)) for _ in range(OPTIM_N)]
    grads = [[f32(size * rng.uniform(-1, 1)) for size in sizes] for _ in range(OPTIM_STEPS)]
    return start, grads


def optim_numbers(optimizer):
    """What a case line holds of the optimiser's defaults."""
    d = optimizer.defaults
    beta1, beta2 = d.get("betas", (0.0, d.get("alpha", 0.0)))
    flags = [int(bool(d.get(name, False))) for name in ("nesterov", "centered", "maximize")]
    return [d["weight_decay"], d.get("momentum", 0.0), d.get("dampening", 0.0), flags[0], beta1,
            beta2, d.get("eps", 0.0), flags[1], flags[2]]


def numbers_line(values):
    """Numbers as text, the shortest that read back."""
    return " ".join(repr(v) for v in values)


def optim_case(method, lr, options, start, grads):
    """The lines of one trajectory."""
    options = dict(options)
    clip = options.pop("clip", 0.0)
    p = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = OPTIM_CLASSES[method]([p], lr=lr, foreach=False, **options)
    lines = [f"case {method} {lr!r} {numbers_line(optim_numbers(optimizer))} {clip!r}"]
    for grad in grads:
        p.grad = torch.tensor(grad, dtype=torch.float64)
        if clip:
            torch.nn.utils.clip_grad_norm_([p], clip)
        optimizer.step()
        lines.append(numbers_line(p.detach().tolist()))
    return lines


def scaled_case(scale, interval, start, grads):
    """SGD behind PyTorch's GradScaler, whose own arithmetic is float32."""
    p = torch.tensor(start, dtype=torch.float32, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.5, foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    lines = [f"scaled {scale!r} {interval}"]
    for i, grad in enumerate(grads):
        scaler.scale(torch.zeros(1))  # makes the scale
        p.grad = torch.tensor(grad, dtype=torch.float32) * scaler.get_scale()
        if i == BAD_STEP:
            p.grad[2] = math.inf
        scaler.step(optimizer)
        scaler.update()
        lines.append(numbers_line([scaler.get_scale()] + p.detach().tolist()))
    return lines


def schedule_case(name, steps, lr, make, momentum=False):
    """The learning rates (or momenta) of a scheduler before each step."""
    p = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=lr, momentum=0.9)
    scheduler = make(optimizer)
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["momentum" if momentum else "lr"])
        optimizer.step()
        if len(values) < steps:
            scheduler.step()
    return [f"schedule {name} {steps}"] + [repr(v) for v in values]


def schedule_lines():
    """Every schedule of schedule.h that PyTorch has."""
    s = torch.optim.lr_scheduler
    cycle = s.OneCycleLR
    lines = schedule_case("step", 30, 0.5, lambda o: s.StepLR(o, 7, 0.1))
    lines += schedule_case("multi_step", 30, 0.5, lambda o: s.MultiStepLR(o, [3, 11, 20], 0.3))
    lines += schedule_case("exponential", 30, 0.5, lambda o: s.ExponentialLR(o, 0.9))
    lines += schedule_case("linear", 30, 0.5, lambda o: s.LinearLR(o, 1 / 3, 1.0, 12))
    lines += schedule_case("cosine", 75, 0.5, lambda o: s.CosineAnnealingLR(o, 25, 0.01))
    lines += schedule_case("one_cycle", 50, 0.5, lambda o: cycle(o, 0.8, 50))
    lines += schedule_case("one_cycle_odd", 37, 0.5, lambda o: cycle(
        o, 0.8, 37, pct_start=0.21, div_factor=10.0, final_div_factor=100.0))
    lines += schedule_case("one_cycle_linear", 50, 0.5, lambda o: cycle(
        o, 0.8, 50, anneal_strategy="linear"))
    lines += schedule_case("one_cycle_three", 50, 0.5, lambda o: cycle(
        o, 0.8, 50, three_phase=True))
    lines += schedule_case("one_cycle_momentum", 50, 0.5, lambda o: cycle(o, 0.8, 50), True)
    return lines


def write_optim(out):
    """Writes optim.txt; returns its path."""
    start, grads = optim_data()
    lines = ["# Optimisers in float64, and schedules, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}", f"optim {OPTIM_N} {OPTIM_STEPS}", numbers_line(start)]
    lines += [numbers_line(grad) for grad in grads]
    for method, lr, options in OPTIMS:
        lines += optim_case(method, lr, options, start, grads)
    lines += scaled_case(65536.0, 4, start, grads)
    lines += schedule_lines()
    path = os.path.join(out, "optim.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


UNARY = [
    ("neg", torch.neg),
    ("abs", torch.abs),
    ("exp", torch.exp),
    ("log", torch.log),
    ("sqrt", torch.sqrt),
    ("rsqrt", torch.rsqrt),
    ("square", torch.square),
    ("reciprocal", torch.reciprocal),
    ("clamp", lambda x: torch.clamp(x, -0.25, 0.75)),
]

BINARY = [
    ("add", torch.add),
    ("sub", torch.sub),
    ("mul", torch.mul),
    ("div", torch.div),
    ("pow", torch.pow),
    ("maximum", torch.maximum),
    ("minimum", torch.minimum),
]

EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 0.75, -0.25, 1.5, 100.0,
         math.inf, -math.inf, math.nan]


def join(*columns):
    """Columns of numbers as lines."""
    return [" ".join(repr(v) for v in line) for line in zip(*columns)]


def write_elementwise(out):
    """Writes elementwise.txt; returns its path."""
    lines = ["# Elementwise ops and their gradients in float64, made by make_golden.py.",
             f"torch {torch.__version__}"]
    xs = EDGES + [f32(v) for v in (1e-30, 1e-5, 0.1, 7.3, 80.0)]
    dys = [(-1.0 if i % 3 == 0 else 1.0) * (1 + i % 5) / 4 for i in range(len(xs))]
    for name, function in UNARY:
        x = torch.tensor(xs, dtype=torch.float64, requires_grad=True)
        y = function(x)
        (dx,) = torch.autograd.grad(y, x, torch.tensor(dys, dtype=torch.float64))
        lines.append(f"unary {name} {len(xs)}")
        lines += join(xs, dys, y.tolist(), dx.tolist())
    pairs = [(p, q) for p in EDGES for q in EDGES]
    dys = [(-1.0 if i % 3 == 0 else 1.0) * (1 + i % 5) / 4 for i in range(len(pairs))]
    for name, function in BINARY:
        a = torch.tensor([p for p, _ in pairs], dtype=torch.float64, requires_grad=True)
        b = torch.tensor([q for _, q in pairs], dtype=torch.float64, requires_grad=True)
        y = function(a, b)
        da, db = torch.autograd.grad(y, (a, b), torch.tensor(dys, dtype=torch.float64))
        lines.append(f"binary {name} {len(pairs)}")
        lines += join(a.tolist(), b.tolist(), dys, y.tolist(), da.tolist(), db.tolist())
    path = os.path.join(out, "elementwise.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


def write_reduce(out):
    """Writes reduce.txt; returns its path."""
    rows = [[1.0, 3.0, 3.0, 2.0, 0.0, 3.0], [1.0, math.nan, 5.0, math.nan, -1.0, 0.0],
            [-math.inf] * 6, [math.inf, 1.0, math.inf, 2.0, 3.0, 4.0], [math.nan] * 6,
            [0.0, -0.0, 0.0, -0.0, 0.0, -0.0], [-1.0, -7.0, -7.0, -1.0, -2.0, -3.0],
            [2.5, -math.inf, 2.5, math.inf, 0.0, 0.5]]
    lines = ["# Extremes of rows in float64, made by make_golden.py.",
             f"torch {torch.__version__}", f"rows {len(rows)} {len(rows[0])}"]
    for i, row in enumerate(rows):
        x = torch.tensor(row, dtype=torch.float64, requires_grad=True)
        dy = 0.75 - i / 2
        y = torch.amax(x, 0)
        (dx,) = torch.autograd.grad(y, x, torch.tensor(dy, dtype=torch.float64))
        results = [y.item(), torch.amin(x, 0).item(), torch.argmax(x).item(),
                   torch.argmin(x).item()]
        lines += join(*([v] for v in row)) + [repr(dy)] + join(*([v] for v in dx.tolist()))
        lines += join(*([v] for v in results))
    path = os.path.join(out, "reduce.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


def rms_norm(x, shape, weight, eps):
    """torch.nn.functional.rms_norm, which old versions lack."""
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, shape, weight, eps)
    dims = tuple(range(-len(shape), 0))
    y = x * torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + eps)
    return y if weight is None else y * weight


def word(name, values):
    """A line of that name with a tensor's numbers."""
    return " ".join([name] + [repr(v) for v in values.detach().reshape(-1).tolist()])


def norm_case(x, kind, dims, eps, weight, bias, dy):
    """The lines of one case; gradients for the upstream dy."""
    shape = x.shape[x.dim() - dims:]
    given = [("x", x)] + [(n, t) for n, t in (("weight", weight), ("bias", bias)) if t is not None]
    for _, t in given:
        t.requires_grad_(True)
    y = (F.layer_norm(x, shape, weight, bias, eps) if kind == "layer"
         else rms_norm(x, shape, weight, eps))
    grads = torch.autograd.grad(y, [t for _, t in given], dy)
    sizes = " ".join(str(n) for n in x.shape)
    lines = [f"case {x.dim()} {sizes} {kind} {dims} {eps!r} {int(weight is not None)} "
             f"{int(bias is not None)}"]
    lines += [word(n, t) for n, t in given] + [word("dy", dy), word("y", y)]
    return lines + [word("d" + n, g) for (n, _), g in zip(given, grads)]


NORM_SHAPES = [((4, 6), 1), ((1, 5), 1), ((7,), 1), ((2, 3, 4), 2), ((2, 3, 4), 1), ((3, 1), 1),
               ((2, 2, 3, 2), 3), ((5, 2), 2)]
# Rows that are far from 0, tiny, huge, equal, infinite, not a number.
NORM_EXTREMES = [[10000.0 + i / 1024 for i in range(8)], [i * 2.0**-60 for i in range(8)],
                 [(-1.0)**i * 2.0**60 for i in range(8)], [0.75] * 8,
                 [1.0, math.inf] + [0.5] * 6, [1.0, -math.inf] + [0.5] * 6,
                 [math.nan] + [0.25] * 7]


def write_layer_norm(out):
    """Writes layer_norm.txt; returns its path."""
    rng = random.Random(2012)
    lines = ["# Layer norm and RMS norm in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    count = 0
    for kind in ("layer", "rms"):
        for eps in (f32(1e-5), 0.25, 0.0):
            for weighted in (False, True):
                for biased in (False, True) if kind == "layer" else (False,):
                    for _ in range(8):
                        shape, dims = NORM_SHAPES[count % len(NORM_SHAPES)]
                        count += 1
                        if eps == 0.0 and math.prod(shape[len(shape) - dims:]) < 3:
                            continue
                        row = shape[len(shape) - dims:]
                        lines += norm_case(ce_numbers(rng, shape, -4, 4), kind, dims, eps,
                                           ce_numbers(rng, row, -2, 2) if weighted else None,
                                           ce_numbers(rng, row, -2, 2) if biased else None,
                                           ce_numbers(rng, shape, -2, 2))
        for row in NORM_EXTREMES:
            x = torch.tensor([row], dtype=torch.float64)
            lines += norm_case(x, kind, 1, f32(1e-5), None, None, ce_numbers(rng, (1, 8), -2, 2))
    path = os.path.join(out, "layer_norm.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


BATCH_SHAPES = [(6, 3), (2, 3, 4), (2, 2, 3, 2), (3, 1), (2, 4, 1), (3, 2, 1, 2)]


def batch_case(rng, shape, training, momentum, eps, given, act):
    """The lines of one case; given says which of weight, bias and residual are there."""
    channels = (shape[1],)
    x = ce_numbers(rng, shape, -4, 4)
    parts = [("x", x)]
    for name, size, there in zip(("weight", "bias", "residual"), (channels, channels, shape), given):
        parts += [(name, ce_numbers(rng, size, -2, 2))] if there else []
    named = dict(parts)
    for t in named.values():
        t.requires_grad_(True)
    mean, var = ce_numbers(rng, channels, -1, 1), ce_numbers(rng, channels, 1, 3)
    after = mean.clone(), var.clone()
    z = F.batch_norm(x, after[0], after[1], named.get("weight"), named.get("bias"), training,
                     momentum, eps)
    z = z + named["residual"] if "residual" in named else z
    y = {"identity": lambda v: v, "relu": F.relu, "gelu": F.gelu}[act](z)
    dy = ce_numbers(rng, shape, -2, 2)
    grads = torch.autograd.grad(y, [t for _, t in parts], dy)
    sizes = " ".join(str(n) for n in shape)
    flags = " ".join(str(int(there)) for there in given)
    lines = [f"case {len(shape)} {sizes} {int(training)} {momentum!r} {eps!r} {flags} {act}"]
    lines += [word(n, t) for n, t in parts]
    lines += [word("running_mean", mean), word("running_var", var), word("dy", dy), word("y", y),
              word("mean_after", after[0]), word("var_after", after[1])]
    return lines + [word("d" + n, g) for (n, _), g in zip(parts, grads)]


def write_batch_norm(out):
    """Writes batch_norm.txt; returns its path."""
    rng = random.Random(2013)
    lines = ["# Batch norm in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    count = 0
    for training in (True, False):
        for act in ("identity", "relu", "gelu"):
            for bits in range(8):
                for momentum, eps in ((0.125, f32(1e-5)), (0.5, 0.25), (1.0, f32(1e-3))):
                    given = (bits & 1, bits & 2, bits & 4)
                    shape = BATCH_SHAPES[count % len(BATCH_SHAPES)]
                    count += 1 if count % 5 else 2
                    lines += batch_case(rng, shape, training, momentum, eps,
                                        [bool(bit) for bit in given], act)
    path = os.path.join(out, "batch_norm.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


GROUP_SHAPES = [((2, 4, 3), 2), ((2, 6, 2, 2), 3), ((3, 4), 2), ((2, 3, 4), 3), ((1, 4, 1, 5), 1),
                ((2, 2, 3, 2), 2), ((4, 3, 2), 1)]


def group_case(rng, shape, groups, momentum, eps, given, running):
    """The lines of one case; given says which of weight and bias are there."""
    channels = (shape[1],)
    parts = [("x", ce_numbers(rng, shape, -4, 4))]
    for name, there in zip(("weight", "bias"), given):
        parts += [(name, ce_numbers(rng, channels, -2, 2))] if there else []
    named = dict(parts)
    for t in named.values():
        t.requires_grad_(True)
    weight, bias = named.get("weight"), named.get("bias")
    tracked = []
    if running:
        mean, var = ce_numbers(rng, channels, -1, 1), ce_numbers(rng, channels, 1, 3)
        after = mean.clone(), var.clone()
        y = F.instance_norm(named["x"], *after, weight, bias, True, momentum, eps)
        tracked = [word("running_mean", mean), word("running_var", var),
                   word("mean_after", after[0]), word("var_after", after[1])]
    else:
        if bias is not None and weight is None:  # whose backward PyTorch 2.11 cannot do
            weight = torch.ones(channels, dtype=torch.float64)
        y = F.group_norm(named["x"], groups, weight, bias, eps)
    dy = ce_numbers(rng, shape, -2, 2)
    grads = torch.autograd.grad(y, [t for _, t in parts], dy)
    sizes = " ".join(str(n) for n in shape)
    flags = " ".join(str(int(there)) for there in (*given, running))
    lines = [f"case {len(shape)} {sizes} {groups} {momentum!r} {eps!r} {flags}"]
    lines += [word(n, t) for n, t in parts] + tracked + [word("dy", dy), word("y", y)]
    return lines + [word("d" + n, g) for (n, _), g in zip(parts, grads)]


def write_group_norm(out):
    """Writes group_norm.txt; returns its path."""
    rng = random.Random(2014)
    lines = ["# Group and instance norm in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for momentum, eps in ((0.125, f32(1e-5)), (0.5, 0.25), (1.0, f32(1e-3))):
        for given in ((False, False), (True, False), (False, True), (True, True)):
            for shape, groups in GROUP_SHAPES:
                running = groups == shape[1]
                lines += group_case(rng, shape, groups, momentum, eps, given, running)
    return write_lines(out, "group_norm.txt", lines)


# Shapes of the inputs; the last two have ties, infinities and NaN.
POOL_SHAPES = [(1, 2, 5, 5), (2, 4, 5), (1, 2, 8), (2, 11), (1, 1, 4, 5), (1, 1, 5, 6)]
# kernel, stride, padding, dilation
POOL_WINDOWS = [((2, 2), (2, 2), (0, 0), (1, 1)), ((3, 3), (2, 2), (1, 1), (1, 1)),
                ((3, 2), (1, 2), (1, 0), (1, 1)), ((2, 3), (3, 2), (1, 1), (1, 1)),
                ((3, 2), (1, 1), (1, 1), (1, 2)), ((4, 4), (3, 3), (2, 1), (1, 1))]
POOL_OUTS = [(1, 1), (3, 4), (2, 5), (4, 7)]


def pool_input(rng, number, shape):
    """A float64 tensor; whole numbers where there shall be ties."""
    n = math.prod(shape)
    values = [rng.randint(-128, 128) / 64 for _ in range(n)]
    if number >= 4:
        values = [float(rng.randint(-2, 2)) for _ in range(n)]
    if number == 5:
        for i in rng.sample(range(n), n // 3):
            values[i] = rng.choice([math.inf, -math.inf, math.nan])
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def pool_lines(rng, op, number, dims, x, window, flags, out, function):
    """The lines of one case, or none where PyTorch refuses it."""
    leaf = x.clone().requires_grad_(True)
    try:
        y = function(leaf)
    except RuntimeError:
        return []
    y, index = y if isinstance(y, tuple) else (y, None)
    dy = ce_numbers(rng, tuple(y.shape), -2, 2)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    numbers = [n for pair in window for n in pair] + list(flags) + list(out)
    parts = [("dy", dy), ("y", y)] + ([] if index is None else [("index", index)]) + [("dx", dx)]
    return [f"case {op} {number} {dims} " + " ".join(str(int(n)) for n in numbers)] + [
        " ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()]) for name, t in parts]


def pool_cases(rng, number, dims, x):
    """Every window and option of one input."""
    avg = F.avg_pool2d if dims == 2 else F.avg_pool1d
    most = F.max_pool2d if dims == 2 else F.max_pool1d
    lines = []
    for window in POOL_WINDOWS:
        k, s, p, d = (pair if dims == 2 else pair[:1] for pair in window)
        for ceil in (False, True):
            for exclude, divisor in ((False, 0), (True, 0), (False, 3)) if d == (1,) * dims else ():
                if divisor and dims == 1 or number == 4:
                    continue
                more = {"divisor_override": divisor} if divisor else {}
                lines += pool_lines(rng, "avg", number, dims, x, window, (ceil, exclude, divisor), (0, 0),
                                    lambda t: avg(t, k, s, p, ceil, not exclude, **more))
            lines += pool_lines(rng, "max", number, dims, x, window, (ceil, 0, 0), (0, 0),
                                lambda t: most(t, k, s, p, d, ceil, return_indices=True))
    none = ((0, 0),) * 4
    for out in POOL_OUTS:
        size = out if dims == 2 else out[:1]
        for op, name in (("adaptive_avg", "avg"), ("adaptive_max", "max")):
            function = getattr(F, f"adaptive_{name}_pool{dims}d")
            more = {"return_indices": True} if name == "max" else {}
            lines += pool_lines(rng, op, number, dims, x, none, (0, 0, 0), out,
                                lambda t: function(t, size, **more))
    return lines


def write_pool(out):
    """Writes pool.txt; returns its path."""
    rng = random.Random(2013)
    lines = ["# Pooling and its gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for number, shape in enumerate(POOL_SHAPES):
        x = pool_input(rng, number, shape)
        lines += [f"input {number} {len(shape)} " + " ".join(str(n) for n in shape),
                  "x " + numbers_line(x.reshape(-1).tolist())]
        for dims in (1, 2):
            if len(shape) - dims in (1, 2) and number not in (1, 2) or (number, dims) in ((1, 2), (2, 1)):
                lines += pool_cases(rng, number, dims, x)
    path = os.path.join(out, "pool.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


# op, dim, padding, shape of x, shape of the index
INDEX_CASES = [
    ("embedding", 0, None, (5, 3), (7,)), ("embedding", 0, 2, (5, 3), (2, 6)),
    ("embedding", 0, 0, (3, 2), (9,)), ("embedding", 0, None, (1, 4), (2, 1, 3)),
    ("embedding", 0, 4, (5, 4), ()), ("embedding", 0, None, (4, 1), (0,)),
    ("index_select", 0, None, (4, 3, 2), (6,)), ("index_select", 1, None, (4, 3, 2), (5,)),
    ("index_select", 2, None, (4, 3, 2), (5,)), ("index_select", -2, None, (2, 3, 3), (1,)),
    ("index_select", 0, None, (7,), (9,)), ("index_select", 1, None, (2, 3), (0,)),
    ("gather", 0, None, (6,), (10,)), ("gather", 0, None, (3, 4), (5, 4)),
    ("gather", 1, None, (3, 4), (3, 7)), ("gather", -1, None, (3, 4), (2, 5)),
    ("gather", 1, None, (2, 3, 4), (2, 5, 4)), ("gather", 1, None, (3, 3, 4), (2, 4, 2)),
    ("gather", 2, None, (3, 3, 2), (3, 2, 5)), ("gather", 0, None, (2, 3, 4), (4, 2, 3)),
    ("gather", 2, None, (2, 3, 2, 3), (2, 2, 3, 2)), ("gather", 0, None, (3, 2), (0, 2)),
]


def index_case(rng, op, dim, padding, shape, index_shape):
    """The lines of one case; half of its indices are the padding or 0."""
    names = [rng.choice([padding or 0, rng.randrange(shape[dim])])
             for _ in range(math.prod(index_shape))]
    index = torch.tensor(names, dtype=torch.int64).reshape(index_shape)
    x = ce_numbers(rng, shape, -2, 2).requires_grad_(True)
    if op == "embedding":
        y = F.embedding(index, x, padding_idx=padding)
    else:
        y = {"index_select": torch.index_select, "gather": torch.gather}[op](x, dim, index)
    dy = ce_numbers(rng, tuple(y.shape), -2, 2)
    (dx,) = torch.autograd.grad(y, [x], dy)
    lines = [f"case {op} {dim} {int(padding is not None)} {padding or 0} {with_shape(x)} "
             f"{with_shape(index)}"]
    parts = [("x", x), ("index", index), ("dy", dy), ("y", y), ("dx", dx)]
    return lines + [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                    for name, t in parts]


def write_index(out):
    """Writes index.txt; returns its path."""
    rng = random.Random(2014)
    lines = ["# Rows and elements of an index in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for case in INDEX_CASES:
        lines += index_case(rng, *case)
    path = os.path.join(out, "index.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


# pairing, dims, theta, offset, shape of x
ROPE_CASES = [
    ("halves", 8, 10000.0, 0, (1, 2, 3, 8)), ("neighbours", 8, 10000.0, 0, (1, 2, 3, 8)),
    ("halves", 4, 500000.0, 7, (2, 1, 4, 7)), ("neighbours", 4, 500000.0, 7, (2, 1, 4, 7)),
    ("halves", 2, 100.0, 1, (1, 1, 5, 2)), ("neighbours", 2, 100.0, 1, (1, 1, 5, 2)),
    ("halves", 16, 10000.0, 3, (1, 3, 2, 24)), ("neighbours", 16, 10000.0, 3, (1, 3, 2, 24)),
]


def turned_halves(x, angles):
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    u, v = x.chunk(2, -1)
    return x * cos + torch.cat((-v, u), -1) * sin


def turned_neighbours(x, angles):
    numbers = torch.view_as_complex(x.contiguous().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(numbers * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def rope_case(rng, pairing, dims, theta, offset, shape):
    """The lines of one case."""
    positions = torch.arange(offset + shape[2], dtype=torch.float64)
    paces = 1.0 / theta ** (torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    angles = torch.outer(positions, paces)
    x, dy = ce_numbers(rng, shape, -2, 2).requires_grad_(True), ce_numbers(rng, shape, -2, 2)
    turned = {"halves": turned_halves, "neighbours": turned_neighbours}[pairing]
    y = torch.cat((turned(x[..., :dims], angles[offset:]), x[..., dims:]), -1)
    (dx,) = torch.autograd.grad(y, [x], dy)
    lines = [f"case {pairing} {dims} {theta!r} {offset} {with_shape(x)}"]
    parts = [("cos", angles.cos()), ("sin", angles.sin()), ("x", x), ("dy", dy), ("y", y), ("dx", dx)]
    return lines + [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                    for name, t in parts]


def write_rope(out):
    """Writes rope.txt; returns its path."""
    rng = random.Random(2021)
    lines = ["# Rotary position embedding in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for case in ROPE_CASES:
        lines += rope_case(rng, *case)
    path = os.path.join(out, "rope.txt")
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.write("\n".join(lines) + "\n")
    return path


# shape of x, amounts as functional.pad has them: before and after of the last dimension, of the one in
# front of it, ...
PAD_CASES = [
    ((2, 5), (2, 1)), ((2, 5), (4, 4)), ((1, 2, 4), (0, 3)), ((2, 1, 3), (2, 0)),
    ((2, 3, 4), (1, 2, 2, 0)), ((1, 2, 4, 3), (2, 2, 3, 1)), ((2, 2, 2, 3), (0, 2, 1, 1)),
    ((1, 3, 2, 4), (3, 1, 1, 2, 1, 2)), ((1, 2, 3, 2, 3), (2, 1, 0, 1, 2, 2)),
]
PAD_MORE = {
    "constant": [((4,), (1, 2)), ((3, 6), (-2, 1)), ((3, 6), (-1, -3, 2, -2)), ((2, 2, 2), (0, 0, 1, 0, 0, 1)),
                 ((2, 1, 2, 1, 2), (1, 0, 0, 1, 1, 0, 0, 1, 1, 1)), ((0, 2), (1, 1, 2, 0))],
    "reflect": [((2, 1, 1), (0, 0))],
    "replicate": [((1, 1), (3, 2)), ((2, 1, 1), (2, 3, 1, 0)), ((1, 2, 3), (7, 0))],
    "circular": [((1, 3), (3, 3)), ((2, 1, 1), (1, 1)), ((1, 2, 3, 2), (2, 2, 3, 3))],
}


def pad_case(rng, mode, value, shape, amounts):
    """The lines of one case."""
    x = ce_numbers(rng, shape, -2, 2).requires_grad_(True)
    y = F.pad(x, amounts, mode, value) if mode == "constant" else F.pad(x, amounts, mode)
    dy = ce_numbers(rng, y.shape, -2, 2)
    (dx,) = torch.autograd.grad(y, [x], dy)
    pairs = [(0, 0)] * (len(shape) - len(amounts) // 2)
    pairs += [amounts[i:i + 2] for i in range(len(amounts) - 2, -1, -2)]
    lines = [f"case {mode} {value!r} {with_shape(x)} " + " ".join(f"{b} {a}" for b, a in pairs)]
    parts = [("x", x), ("dy", dy), ("y", y), ("dx", dx)]
    return lines + [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                    for name, t in parts]


def write_pad(out):
    """Writes pad.txt; returns its path."""
    rng = random.Random(2022)
    lines = ["# Padding and its gradient in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for mode, more in PAD_MORE.items():
        for shape, amounts in PAD_CASES + more:
            if mode == "reflect" and any(n <= max(amounts[2 * i:2 * i + 2])
                                         for i, n in enumerate(shape[::-1][:len(amounts) // 2])):
                continue
            if mode == "circular" and any(n < max(amounts[2 * i:2 * i + 2])
                                          for i, n in enumerate(shape[::-1][:len(amounts) // 2])):
                continue
            lines += pad_case(rng, mode, 1.5, shape, amounts)
    return write_lines(out, "pad.txt", lines)


# shape of x, sizes or scales of the result
RESIZE_SIZES = [
    ((1, 2, 4), (8,)), ((2, 1, 5), (3,)), ((1, 1, 6), (6,)), ((2, 3), (7,)), ((1, 1, 1), (4,)), ((1, 2, 7), (1,)),
    ((1, 2, 2, 3), (4, 6)), ((1, 1, 5, 4), (3, 7)), ((1, 1, 4, 6), (2, 3)), ((2, 3, 2), (3, 5)), ((1, 1, 1, 3), (2, 2)),
    ((1, 1, 3, 1), (5, 3)), ((1, 1, 3, 4), (1, 1)), ((2, 1, 2, 2), (5, 9)),
]
RESIZE_SCALES = [
    ((1, 2, 5), (2.0,)), ((1, 1, 5), (1.7,)), ((1, 1, 7), (0.6,)), ((1, 1, 3, 4), (2.0, 2.0)), ((1, 1, 4, 3), (1.3, 2.9)),
    ((1, 2, 5, 6), (0.7, 0.45)), ((1, 1, 3, 3), (1.1, 4.4)), ((1, 1, 2, 5), (2.4, 1.1)), ((1, 1, 3), (1.2,)),
]


def resize(x, mode, align, out, scale):
    """With the batch that interpolate wants; bilinear is linear of two dimensions."""
    dims = len(out or scale)
    name = "bilinear" if mode == "linear" and dims == 2 else mode
    batched = x if x.dim() == dims + 2 else x.unsqueeze(0)
    y = F.interpolate(batched, size=out, scale_factor=scale, mode=name,
                      align_corners=align if mode == "linear" else None)
    return y if x.dim() == dims + 2 else y.squeeze(0)


def resize_case(rng, mode, align, shape, out, scale):
    """The lines of one case."""
    x = ce_numbers(rng, shape, -2, 2).requires_grad_(True)
    y = resize(x, mode, align, out, scale)
    # Elements that float32, in which coordinates are, takes as well.
    if mode == "nearest":
        assert torch.equal(resize(x.detach().float(), mode, align, out, scale).double(), y.detach())
    dy = ce_numbers(rng, y.shape, -2, 2)
    (dx,) = torch.autograd.grad(y, [x], dy)
    dims = len(out or scale)
    numbers = " ".join(repr(s) for s in scale or (0.0,) * dims) + " " + " ".join(str(n) for n in y.shape[-dims:])
    lines = [f"case {mode} {int(align)} {dims} {numbers} {with_shape(x)}"]
    parts = [("x", x), ("dy", dy), ("y", y), ("dx", dx)]
    return lines + [" ".join([name] + [repr(v) for v in t.detach().reshape(-1).tolist()])
                    for name, t in parts]


def write_resize(out):
    """Writes resize.txt; returns its path."""
    rng = random.Random(2023)
    lines = ["# Resizing and its gradient in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    for mode, align in (("nearest", False), ("linear", False), ("linear", True)):
        for shape, size in RESIZE_SIZES:
            lines += resize_case(rng, mode, align, shape, size, None)
        for shape, scale in RESIZE_SCALES:
            # There PyTorch leaves the scale aside, of one dimension in the gradient only.
            if mode == "nearest" and len(scale) == 1 and any(int(n * s) in (n, 2 * n) and s not in (1, 2)
                                         for n, s in zip(shape[-len(scale):], scale)):
                continue
            lines += resize_case(rng, mode, align, shape, None, scale)
    return write_lines(out, "resize.txt", lines)


# Kind, dims, then of every axis: kernel, stride, dilation; padding as the module takes it, and its mode.
CONV_KERNELS = {1: ((1,), (2,), (3,), (5,)), 2: ((1, 1), (2, 2), (3, 3), (3, 2), (1, 4))}
CONV_STEPS = {1: ((1,), (2,), (3,)), 2: ((1, 1), (2, 2), (1, 2), (3, 1))}
CONV_DILATIONS = {1: ((1,), (2,)), 2: ((1, 1), (2, 1))}
CONV_RIMS = ("zeros", "reflect", "replicate", "circular")
CONV_INPUTS = {1: (2, 4, 8), 2: (2, 4, 5, 4)}  # batch, channels, sizes


def conv_numbers(case, which, shape):
    """Whole numbers from -5 to 5 that the reader of conv.txt makes up likewise."""
    n = math.prod(shape)
    values = [(i * i * 7 + i * 13 + case * 5 + which * 3) % 11 - 5 for i in range(n)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def conv_paddings(dims, stride):
    """Paddings and modes, those of strings at stride 1 alone."""
    yield from (((0,) * dims, "zeros"), ((1,) * dims, "zeros"), (tuple(range(2, 2 - dims, -1)), "zeros"))
    yield from ((tuple(range(2, 2 - dims, -1)), rim) for rim in CONV_RIMS[1:])
    if set(stride) == {1}:
        yield from (("same", rim) for rim in CONV_RIMS)


def conv_module(kind, dims, groups, bias, kernel, stride, dilation, padding, rim, more):
    name = f"Conv{'Transpose' if kind == 'transposed' else ''}{dims}d"
    outputs = {1: 3, 2: 6, 4: 8 if dims == 1 else 4}[groups]
    return getattr(torch.nn, name)(4, outputs, kernel, stride=stride, padding=padding,
                                   dilation=dilation, groups=groups, bias=bias, padding_mode=rim,
                                   dtype=torch.float64, **more)


def conv_case(number, kind, dims, groups, bias, kernel, stride, dilation, padding, rim, extra):
    """The lines of one case, or none where PyTorch refuses it."""
    try:
        m = conv_module(kind, dims, groups, bias, kernel, stride, dilation, padding, rim,
                        {"output_padding": extra} if kind == "transposed" else {})
    except ValueError:
        return []
    x, w = conv_numbers(number, 0, CONV_INPUTS[dims]), conv_numbers(number, 1, m.weight.shape)
    with torch.no_grad():
        m.weight.copy_(w)
        if bias:
            m.bias.copy_(conv_numbers(number, 2, m.bias.shape))
    x.requires_grad_(True)
    try:
        y = m(x)
    except RuntimeError:
        return []
    wanted = [x, m.weight] + ([m.bias] if bias else [])
    grads = torch.autograd.grad(y, wanted, conv_numbers(number, 3, y.shape))
    same = padding == "same"
    numbers = [dims, groups, int(bias), *kernel, *stride, *dilation, *((0,) * dims if same else padding), *extra]
    head = f"case {kind} {rim} {'same' if same else 'numbers'} " + " ".join(str(n) for n in numbers)
    parts = list(zip(("y", "dx", "dw", "db"), (y, *grads)))
    return [head + " " + with_shape(y)] + [
        " ".join([name] + [str(int(v)) for v in t.detach().reshape(-1).tolist()]) for name, t in parts]


def conv_cases():
    """Arguments of conv_case behind its number. Groups and bias take turns."""
    turn = 0
    for dims in (1, 2):
        for kernel in CONV_KERNELS[dims]:
            for stride in CONV_STEPS[dims]:
                for dilation in CONV_DILATIONS[dims]:
                    none = (0,) * dims
                    for padding, rim in conv_paddings(dims, stride):
                        turn += 1
                        yield ("plain", dims, (1, 2, 4)[turn % 3], turn % 4 != 0, kernel, stride, dilation, padding,
                               rim, none)
                    for padding, extra in ((none, none), ((1,) * dims, none), (none, (1,) * dims),
                                           ((1,) * dims, tuple(range(dims - 1, -1, -1)))):
                        turn += 1
                        yield ("transposed", dims, (1, 2, 4)[turn % 3], turn % 4 != 0, kernel, stride, dilation,
                               padding, "zeros", extra)


def write_conv(out):
    """Writes conv.txt; returns its path."""
    lines = ["# Convolutions and their gradients in float64, made by tests/golden/make_golden.py.",
             f"torch {torch.__version__}"]
    number = 0
    for case in conv_cases():
        more = conv_case(number, *case)
        lines += more
        number += len(more) > 0
    return write_lines(out, "conv.txt", lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)),
                        help="folder to write to (default: that of this script)")
    parser.add_argument("--any-version", action="store_true",
                        help=f"run with a PyTorch other than {WANTED_TORCH}")
    arguments = parser.parse_args()
    if not torch.__version__.startswith(WANTED_TORCH + ".") and not arguments.any_version:
        parser.error(f"PyTorch is {torch.__version__}, the golden files come from {WANTED_TORCH}")
    os.makedirs(arguments.out, exist_ok=True)
    for write in (write_act, write_linear, write_cross_entropy, write_optim, write_elementwise,
                  write_reduce, write_softmax, write_glu, write_loss, write_layer_norm, write_batch_norm,
                  write_group_norm, write_pool, write_index, write_matmul, write_attention,
                  write_multihead, write_transformer_block, write_rope, write_pad, write_resize, write_conv, write_rnn):
        path = write(arguments.out)
        print(f"{path}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
