#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the rows of `attocl bench` in PyTorch, and in attorch where it is installed.

`attocl bench --compare` starts it and asks for a row right after it has measured it, so that both see the
same machine. A question is a line of JSON, an answer is a line: milliseconds, or `- reason`.

    {"peer": "torch", "op": "gelu", "pass": "forward", "dtype": "f32", "shape": [67108864],
     "layout": "dense", "device": "cuda", "index": 0, "threads": 2, "samples": 25, "dropout": 0.5}

The first line that it writes says which versions it found. Timing is the library's own: several sets of
tensors in turn so that no cache helps, the median of samples, events on GPUs and the wall clock on CPUs.
A backward pass is timed alone, over a graph that is kept.
"""
import json
import os
import statistics
import sys
import time

# Answers have a descriptor of their own: whatever a library prints must not be taken for one.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
PITCH = 64  # elements between the rows of a pitched tensor


class Unknown(Exception):
    """A row that a peer has no counterpart of."""


# ---- rows ----


class Row:
    """What is asked for, and tensors for it."""

    def __init__(self, question):
        self.op, self.direction = question["op"], question["pass"]
        self.dtype = DTYPES[question["dtype"]]
        self.shape, self.layout = question["shape"], question["layout"]
        self.cuda, self.samples = question["device"] == "cuda", question["samples"]
        self.device = f"cuda:{question['index']}" if self.cuda else question["device"]
        self.dropout = question.get("dropout", 0.0)
        self.module = None  # that all sets of tensors share

    def normal(self, *shape, grad=False):
        t = torch.randn(*shape, device=self.device, dtype=torch.float32).to(self.dtype)
        return t.requires_grad_() if grad else t

    def like_x(self, grad=False):
        """A tensor of the row's shape that lies in memory as the row says."""
        if self.layout == "pitched":
            rows, cols = self.shape
            t = self.normal(rows, cols + PITCH)[:, :cols]
        elif self.layout == "transposed":
            rows, cols = self.shape
            t = self.normal(cols, rows).t()
        else:
            t = self.normal(*self.shape)
        return t.detach().requires_grad_() if grad else t

    def backward(self):
        return self.direction == "backward"


def calls(row, function, inputs, outputs_like=None):
    """A function to time: forward without a graph, or the gradients of all inputs that want one."""
    if not row.backward():
        with torch.no_grad():
            function(*inputs)

        def forward():
            with torch.no_grad():
                function(*inputs)

        return forward
    y = function(*inputs)
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    dy = torch.randn_like(y) if y.dim() else torch.ones_like(y)
    return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)


def elementwise(function):
    return lambda row: calls(row, function, [row.like_x(grad=row.backward())])


def binary(function):
    return lambda row: calls(row, function, [row.like_x(grad=row.backward()),
                                             row.like_x(grad=row.backward())])


def linear(act):
    def make(row):
        m, n, k = row.shape
        x, w = row.normal(m, k, grad=row.backward()), row.normal(n, k, grad=row.backward())
        b = row.normal(n, grad=row.backward())
        if act is None:
            return calls(row, F.linear, [x, w, b])
        return calls(row, lambda x, w, b: act(F.linear(x, w, b)), [x, w, b])
    return make


def matmul(turned, shared=False):
    """x [batch, m, k] times w, stored [..., n, k] if turned, else [..., k, n]."""
    def make(row):
        batch, m, n, k = row.shape
        x = row.normal(batch, m, k, grad=row.backward())
        sizes = (n, k) if turned else (k, n)
        w = row.normal(*(sizes if shared else (batch, *sizes)), grad=row.backward())
        return calls(row, lambda x, w: torch.matmul(x, w.mT if turned else w), [x, w])
    return make


def attention(causal):
    """q [B, H, L, D] beside k and v [B, G, S, D]."""
    def make(row):
        batches, heads, shared, queries, keys, width = row.shape
        q = row.normal(batches, heads, queries, width, grad=row.backward())
        k, v = (row.normal(batches, shared, keys, width, grad=row.backward()) for _ in range(2))
        return calls(row, lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=heads != shared), [q, k, v])
    return make


def module(make):
    """A module on x [N, T, E] of heads side by side; gradients are those of x and of all parameters."""
    def run(row):
        batches, heads, _, queries, _, width = row.shape
        row.module = m = row.module or make(heads * width, heads).to(row.device, row.dtype)
        # Without gradients PyTorch has a faster way in evaluation; nothing drops out in either.
        m.train(row.backward())
        x = row.normal(batches, queries, heads * width, grad=row.backward())
        if not row.backward():
            return calls(row, m, [x])
        y = m(x)
        wanted, dy = [x, *m.parameters()], torch.randn_like(y)
        return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)
    return run


class SelfAttention(torch.nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


def transformer_block(features, heads):
    return torch.nn.TransformerEncoderLayer(features, heads, 4 * features, dropout=0.0, activation="gelu",
                                            batch_first=True, norm_first=True)


class Recurrent(torch.nn.Module):
    def __init__(self, kind, features):
        super().__init__()
        self.layer = kind(features, features, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0]


HIDDEN = 512


def lstm_cell(row):
    """A cell behind its products, as a program without a fused one writes it."""
    rows = row.shape[0]
    c = row.normal(rows, HIDDEN, grad=row.backward())

    def cell(x, c):
        i, f, g, o = x.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.cat((torch.sigmoid(o) * torch.tanh(c), c), 1)

    return calls(row, cell, [row.like_x(grad=row.backward()), c])


def gru_cell(row):
    rows = row.shape[0]
    h = row.normal(rows, HIDDEN, grad=row.backward())

    def cell(x, u, h):
        (xr, xz, xn), (ur, uz, un) = x.chunk(3, 1), u.chunk(3, 1)
        n = torch.tanh(xn + torch.sigmoid(xr + ur) * un)
        return n + torch.sigmoid(xz + uz) * (h - n)

    return calls(row, cell, [row.like_x(grad=row.backward()), row.like_x(grad=row.backward()), h])


def cross_entropy(row):
    rows, cols = row.shape
    x = row.normal(rows, cols, grad=row.backward())
    labels = (torch.arange(rows, device=row.device) * 7919) % cols
    return calls(row, lambda x: F.cross_entropy(x, labels), [x])


def rows_of(function):
    """An op on x [rows, cols]."""
    return lambda row: calls(row, function, [row.like_x(grad=row.backward())])


def glu(act):
    def make(row):
        rows, half = row.shape
        x = row.normal(rows, 2 * half, grad=row.backward())
        if act is None:
            return calls(row, F.glu, [x])
        return calls(row, lambda x: x[:, :half] * act(x[:, half:]), [x])
    return make


def layer_norm(row):
    cols = row.shape[-1]
    x, w, b = row.like_x(grad=row.backward()), row.normal(cols), row.normal(cols)
    for t in (w, b):
        t.requires_grad_(row.backward())
    return calls(row, lambda x, w, b: F.layer_norm(x, (cols,), w, b), [x, w, b])


def rms_norm(row):
    cols = row.shape[-1]
    x, w = row.like_x(grad=row.backward()), row.normal(cols).requires_grad_(row.backward())
    return calls(row, lambda x, w: F.rms_norm(x, (cols,), w), [x, w])


IMAGE = 56 * 56


def images(row):
    """[rows, cols] are images [rows, channels, 56, 56] where cols is a multiple of one, else rows of channels; or
    28 by 28, if the op says so."""
    rows, cols = row.shape
    edge = 28 if "28x28" in row.op else 56
    shape = (rows, cols // edge ** 2, edge, edge) if cols % edge ** 2 == 0 else (rows, cols)
    return row.normal(*shape, grad=row.backward())


def batch_norm(row):
    x = images(row)
    shape = x.shape
    w, b = (torch.ones(shape[1], device=row.device, requires_grad=row.backward()) for _ in "wb")
    if "+residual" not in row.op:
        return calls(row, lambda x, w, b: F.batch_norm(x, None, None, w, b, True), [x, w, b])
    return calls(row, lambda x, w, b, r: F.relu(F.batch_norm(x, None, None, w, b, True) + r),
                 [x, w, b, images(row)])


def norm_of_images(function):
    """[rows, cols] are images [rows, channels, 56, 56]; an op ending in channels_last wants that format."""
    def make(row):
        x = row.normal(row.shape[0], row.shape[1] // IMAGE, 56, 56)
        if row.op.endswith("channels_last"):
            x = x.contiguous(memory_format=torch.channels_last)
        w, b = (torch.ones(x.shape[1], device=row.device, requires_grad=row.backward()) for _ in "wb")
        return calls(row, function, [x.requires_grad_(row.backward()), w, b])
    return make


def group_norms():
    """Group norm with 32 groups, instance norm."""
    kinds = {"group_norm": norm_of_images(lambda x, w, b: F.group_norm(x, 32, w, b)),
             "instance_norm": norm_of_images(lambda x, w, b: F.instance_norm(x, None, None, w, b))}
    return {op + form: make for op, make in kinds.items() for form in ("", " channels_last")}


def loss(function, both=False):
    """Of an input and a target like it; the target wants a gradient where both do."""
    def make(row):
        x = row.like_x(grad=row.backward())
        t = torch.rand(*row.shape, device=row.device).to(row.dtype)
        if both:
            t.requires_grad_(row.backward())
        return calls(row, function, [x, t])
    return make


def nll_loss(row):
    rows, cols = row.shape
    x = row.normal(rows, cols, grad=row.backward())
    labels = (torch.arange(rows, device=row.device) * 7919) % cols
    return calls(row, lambda x: F.nll_loss(x, labels), [x])


VOCABULARY = 50257


def embedding(positions):
    """[rows, cols] of a table; of fewer positions than those of the full size from as many fewer rows."""
    def make(row):
        rows, cols = row.shape
        count = -(-VOCABULARY * rows // positions)
        table = row.normal(count, cols).requires_grad_(row.backward())
        index = (torch.arange(rows, device=row.device) * 7919) % count
        return calls(row, lambda table: F.embedding(index, table), [table])
    return make


def gather(row):
    rows, cols = row.shape
    x = row.like_x(grad=row.backward())
    index = ((torch.arange(rows * cols, device=row.device) * 7919) % rows).reshape(rows, cols)
    return calls(row, lambda x: torch.gather(x, 0, index), [x])


HEADS, POSITIONS = 32, 2048


def rope(row):
    """[rows, 128] are heads, one behind the other or side by side; as models of Hugging Face turn them."""
    rows, size = row.shape
    angles = torch.outer(torch.arange(POSITIONS, device=row.device),
                         10000.0 ** (-torch.arange(0, size, 2, device=row.device) / size))
    angles = angles.repeat_interleave(2, -1) if "neighbours" in row.op else torch.cat((angles, angles), -1)
    cos, sin = angles.cos().to(row.dtype), angles.sin().to(row.dtype)
    batches = rows // (HEADS * POSITIONS)
    if "side by side" in row.op:
        x = row.normal(batches, POSITIONS, HEADS, size).transpose(1, 2)
    else:
        x = row.normal(batches, HEADS, POSITIONS, size)

    def other(x):
        if "neighbours" in row.op:
            return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
        u, v = x.chunk(2, -1)
        return torch.cat((-v, u), -1)

    return calls(row, lambda x: x * cos + other(x) * sin, [x.requires_grad_(row.backward())])


CHANNELS, EDGE = 64, 112


def pool(function, edge=EDGE):
    """[rows, cols] are images [n, 64, edge, edge]; an op ending in channels_last wants that format."""
    def make(row):
        n = row.shape[0] * row.shape[1] // (CHANNELS * edge * edge)
        x = row.normal(n, CHANNELS, edge, edge)
        if row.op.endswith("channels_last"):
            x = x.contiguous(memory_format=torch.channels_last)
        return calls(row, function, [x.requires_grad_(row.backward())])
    return make


def pools(op, function, edge=EDGE):
    return {op: pool(function, edge), op + " channels_last": pool(function, edge)}


def conv(pick, function=F.conv2d):
    """[batch, channels, edge, outputs, kernel, stride, padding, groups]; pick: 0 dx, 1 dw."""
    def make(row):
        batch, channels, edge, outputs, kernel, stride, padding, groups = row.shape
        turned = function is F.conv_transpose2d
        first, second = (channels, outputs) if turned else (outputs, channels)
        form = torch.channels_last if "channels_last" in row.op else torch.contiguous_format
        x = row.normal(batch, channels, edge, edge).contiguous(memory_format=form)
        w = row.normal(first, second // groups, kernel, kernel).contiguous(memory_format=form)
        inputs = [x, w]
        if row.backward():
            inputs[pick].requires_grad_(True)
        return calls(row, lambda x, w: function(x, w, stride=stride, padding=padding, groups=groups), inputs)
    return make


def convs(op, function=F.conv2d):
    rows = {}
    for form in ("", " channels_last"):
        rows[op + form] = conv(0, function)
        rows[op + form + " dx"] = conv(0, function)
        rows[op + form + " dw"] = conv(1, function)
    return rows


def gelu_dropout(row):
    x = row.like_x(grad=row.backward())
    return calls(row, lambda x: F.dropout(F.gelu(x), row.dropout, True), [x])


TORCH = {
    "identity": elementwise(lambda x: x.clone()),
    "sigmoid": elementwise(torch.sigmoid),
    "logsigmoid": elementwise(F.logsigmoid),
    "tanh": elementwise(torch.tanh),
    "relu": elementwise(F.relu),
    "gelu": elementwise(F.gelu),
    "gelu_tanh": elementwise(lambda x: F.gelu(x, approximate="tanh")),
    "silu": elementwise(F.silu),
    "relu6": elementwise(F.relu6),
    "hardsigmoid": elementwise(F.hardsigmoid),
    "hardtanh": elementwise(F.hardtanh),
    "hardswish": elementwise(F.hardswish),
    "selu": elementwise(F.selu),
    "mish": elementwise(F.mish),
    "softplus": elementwise(F.softplus),
    "softsign": elementwise(F.softsign),
    "tanhshrink": elementwise(F.tanhshrink),
    "leaky_relu": elementwise(F.leaky_relu),
    "elu": elementwise(F.elu),
    "celu": elementwise(F.celu),
    "hardshrink": elementwise(F.hardshrink),
    "softshrink": elementwise(F.softshrink),
    "dropout": lambda row: calls(row, lambda x: F.dropout(x, row.dropout, True),
                                 [row.like_x(grad=row.backward())]),
    "gelu+dropout": gelu_dropout,
    "exp": elementwise(torch.exp),
    "log": elementwise(lambda x: torch.log(x.abs())),
    "add": binary(torch.add),
    "mul": binary(torch.mul),
    "div": binary(torch.div),
    "linear": linear(None),
    "linear+gelu": linear(F.gelu),
    "matmul": matmul(False),
    "matmul qk": matmul(True),
    "matmul shared": matmul(False, shared=True),
    "attention": attention(False),
    "attention causal": attention(True),
    "mha": module(lambda features, heads: SelfAttention(features, heads, batch_first=True)),
    "transformer block": module(transformer_block),
    "lstm": module(lambda features, heads: Recurrent(torch.nn.LSTM, features)),
    "gru": module(lambda features, heads: Recurrent(torch.nn.GRU, features)),
    "lstm cell": lstm_cell,
    "gru cell": gru_cell,
    "cross_entropy": cross_entropy,
    "nll_loss": nll_loss,
    "embedding": embedding(65536),
    "embedding few": embedding(8192),
    "gather": gather,
    "rope": rope,
    "rope neighbours": rope,
    "rope side by side": rope,
    "softmax": rows_of(lambda x: F.softmax(x, -1)),
    "log_softmax": rows_of(lambda x: F.log_softmax(x, -1)),
    "softmax columns": rows_of(lambda x: F.softmax(x, 0)),
    "glu": glu(None),
    "glu silu": glu(F.silu),
    "glu gelu": glu(F.gelu),
    "layer_norm": layer_norm,
    "layer_norm sweep": layer_norm,
    "rms_norm": rms_norm,
    "batch_norm": batch_norm,
    "batch_norm 28x28": batch_norm,
    "batch_norm+residual+relu 28x28": batch_norm,
    **group_norms(),
    "mse loss": loss(F.mse_loss),
    "mse loss each": loss(lambda x, t: F.mse_loss(x, t, reduction="none")),
    "mse loss both": loss(F.mse_loss, both=True),
    "l1 loss": loss(F.l1_loss),
    "smooth l1 loss": loss(F.smooth_l1_loss),
    "huber loss": loss(F.huber_loss),
    "bce with logits": loss(F.binary_cross_entropy_with_logits),
    "kl div log": loss(lambda x, t: F.kl_div(x, t, log_target=True)),
    **convs("conv"),
    **convs("depthwise"),
    **convs("conv_transpose", F.conv_transpose2d),
    **pools("max_pool 2/2", lambda x: F.max_pool2d(x, 2)),
    **pools("max_pool 3/2", lambda x: F.max_pool2d(x, 3, 2, 1)),
    **pools("avg_pool 2/2", lambda x: F.avg_pool2d(x, 2)),
    **pools("avg_pool 3/2", lambda x: F.avg_pool2d(x, 3, 2, 1)),
    **pools("avg_pool global", lambda x: F.adaptive_avg_pool2d(x, 1)),
    **pools("pad constant", lambda x: F.pad(x, (3, 3, 3, 3))),
    **pools("pad reflect", lambda x: F.pad(x, (3, 3, 3, 3), "reflect")),
    **pools("resize nearest", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), 56),
    **pools("resize linear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 56),
}


# ---- attorch ----


def attorch_rows(attorch):
    """Modules of attorch by the names of our rows; it has no pitched and no transposed tensors."""
    modules = {
        "gelu": attorch.GELU, "relu": attorch.ReLU, "silu": attorch.SiLU, "sigmoid": attorch.Sigmoid,
        "tanh": attorch.Tanh, "mish": attorch.Mish, "hardswish": attorch.Hardswish, "selu": attorch.SELU,
        "logsigmoid": attorch.LogSigmoid, "softplus": attorch.Softplus, "elu": attorch.ELU,
    }

    def plain(module):
        def make(row):
            if row.layout != "dense":
                raise Unknown("attorch takes contiguous tensors")
            return calls(row, module(), [row.like_x(grad=row.backward())])
        return make

    table = {op: plain(module) for op, module in modules.items()}
    table["dropout"] = lambda row: calls(row, attorch.Dropout(row.dropout),
                                         [row.like_x(grad=row.backward())])
    table["gelu+dropout"] = lambda row: calls(row, attorch.GELU(drop_p=row.dropout),
                                              [row.like_x(grad=row.backward())])
    table["cross_entropy"] = lambda row: attorch_cross_entropy(attorch, row)
    table["softmax"] = plain(lambda: attorch.Softmax(dim=-1))
    table["log_softmax"] = plain(lambda: attorch.LogSoftmax(dim=-1))
    table["layer_norm"] = lambda row: attorch_norm(row, attorch.LayerNorm(row.shape[-1]))
    table["layer_norm sweep"] = table["layer_norm"]
    table["batch_norm"] = lambda row: attorch_batch_norm(attorch, row)
    table["batch_norm 28x28"] = table["batch_norm+residual+relu 28x28"] = table["batch_norm"]
    table["rms_norm"] = lambda row: attorch_norm(row, attorch.RMSNorm(row.shape[-1]))
    table["mse loss"] = lambda row: loss(attorch.MSELoss())(row)
    table["l1 loss"] = lambda row: loss(attorch.L1Loss())(row)
    table["smooth l1 loss"] = lambda row: loss(attorch.SmoothL1Loss())(row)
    table["huber loss"] = lambda row: loss(attorch.HuberLoss())(row)
    return table


def attorch_norm(row, module):
    """Gradients of x and of the parameters."""
    module = module.to(row.device)
    x = row.like_x(grad=row.backward())
    if not row.backward():
        return calls(row, module, [x])
    y = module(x)
    wanted, dy = [x, *module.parameters()], torch.randn_like(y)
    return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)


def attorch_batch_norm(attorch, row):
    """Residual and activation are fused there, too. Gradients of x, the residual and the parameters."""
    x = images(row)
    more = "+residual" in row.op
    cls = attorch.BatchNorm2d if x.dim() == 4 else attorch.BatchNorm1d
    module = cls(x.shape[1], act_func="relu" if more else None).to(row.device)
    inputs = [x, images(row)] if more else [x]
    if not row.backward():
        return calls(row, module, inputs)
    y = module(*inputs)
    wanted, dy = [*inputs, *module.parameters()], torch.randn_like(y)
    return lambda: torch.autograd.grad(y, wanted, dy, retain_graph=True)


def attorch_cross_entropy(attorch, row):
    rows, cols = row.shape
    x = row.normal(rows, cols, grad=row.backward())
    labels = (torch.arange(rows, device=row.device) * 7919) % cols
    loss = attorch.CrossEntropyLoss()
    return calls(row, lambda x: loss(x, labels), [x])


# ---- timing ----

GPU_BYTES, CPU_BYTES, MOST_SETS = 1 << 30, 10 * (32 << 20), 64


def sets_of(make, row):
    """As many sets of tensors as no cache holds."""
    elements = 1
    for n in row.shape:
        elements *= n
    if row.op.startswith("linear"):
        m, n, k = row.shape
        elements = m * n + m * k + n * k
    if row.op.startswith("matmul"):
        batch, m, n, k = row.shape
        elements = batch * (m * n + m * k + n * k)
    if row.op.startswith(("conv", "depthwise")):
        batch, channels, edge, outputs, _, stride, _, _ = row.shape
        scale = stride if "transpose" in row.op else 1 / stride
        elements = int(batch * edge * edge * (channels + outputs * scale * scale))
    # Of weights: about as many results like x.
    squares = {"mha": 4, "transformer block": 12, "lstm": 8, "gru": 6}.get(row.op, 0)
    if squares or row.op.startswith("attention"):
        batches, heads, shared, queries, keys, width = row.shape
        elements = batches * width * (heads * queries + shared * keys)
        elements += batches * heads * queries * width * squares // 2
    item = torch.empty((), dtype=row.dtype).element_size()
    wanted = GPU_BYTES if row.cuda else CPU_BYTES
    count = min(MOST_SETS, max(1, -(-wanted // (2 * elements * item))))
    return [make(row) for _ in range(count)]


class Clock:
    """Times calls of functions in turn, also from one timing to the next."""

    def __init__(self, cuda, functions):
        self.cuda = cuda
        self.functions, self.next = functions, 0

    def call(self):
        self.functions[self.next]()
        self.next = (self.next + 1) % len(self.functions)

    def time(self, count):
        """Milliseconds of one of count calls."""
        if not self.cuda:
            start = time.perf_counter()
            for _ in range(count):
                self.call()
            return 1e3 * (time.perf_counter() - start) / count
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.call()
        start.record()
        for _ in range(count):
            self.call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / count


def measure(make, row):
    functions = sets_of(make, row)
    clock = Clock(row.cuda, functions)
    for f in functions:
        f()
    once = min(clock.time(2) for _ in range(2))
    # Enough calls that the device is busy while Python enqueues the next ones.
    count = max(1, min(200, int(2.0 / max(once, 1e-3)))) if clock.cuda else \
        max(1, min(100, int(1.0 / max(once, 1e-3))))
    return statistics.median(clock.time(count) for _ in range(row.samples))


# ---- questions ----


def say(line):
    print(line[:500], file=ANSWERS, flush=True)


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def answer(question, tables):
    if question["peer"] not in tables:
        raise Unknown("not installed")
    row = Row(question)
    make = tables[question["peer"]].get(row.op)
    if make is None:
        raise Unknown("no counterpart")
    return measure(make, row)


def revision(folder):
    """The commit of a clone; attorch has no version."""
    try:
        with open(os.path.join(folder, ".git", "HEAD"), encoding="ascii") as file:
            head = file.read().strip()
        if head.startswith("ref: "):
            with open(os.path.join(folder, ".git", head[5:]), encoding="ascii") as file:
                head = file.read().strip()
        return head[:12]
    except OSError:
        return "of an unknown commit"


def load(folder):
    """The tables, and what was found."""
    tables, found = {"torch": TORCH}, ["torch " + torch.__version__]
    if torch.cuda.is_available():
        found.append("cuda " + str(torch.version.cuda))
        found += [f"gpu {i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if folder:
        sys.path.insert(0, folder)
        try:
            import attorch
            tables["attorch"] = attorch_rows(attorch)
            found.append("attorch " + revision(folder))
            found.append("triton " + sys.modules["triton"].__version__)
        except Exception as error:  # whatever stands in that folder
            found.append("no attorch: " + first_line(error))
    return tables, found


def main():
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    tables, found = load(sys.argv[1] if len(sys.argv) > 1 else "")
    say("; ".join(found))
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if question["device"] == "cuda" and not torch.cuda.is_available():
                raise Unknown("PyTorch finds no CUDA device")
            if question["device"] == "cuda":
                torch.cuda.set_device(question["index"])
            torch.set_num_threads(question["threads"])
            say(f"{answer(question, tables):.6g}")
        except Unknown as reason:
            say("- " + str(reason))
        except Exception as error:  # the row's fault, not the run's
            say("- " + first_line(error))
        if question["device"] == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
