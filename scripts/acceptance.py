#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Judges cases of the acceptance grid by PyTorch in f64; scripts/acceptance.sh starts it.

A question is a line of JSON: the op, its options, and its tensors with the files that hold what went in and
what came out, dense and row-major. The answer is a line,

    y 1.2e-07 1.1e-05 0.011 dx 3e-06 ...

with the worst element of each output: its error, what is allowed there, and the quotient. Allowed is
atol + rtol |expected|, which the question names. On top come what no tolerance of that form covers: an
activation's jump where its argument is a few roundings from it, and the roundings of sums and of terms that cancel
(docs/numerics.md). `- reason`
instead of an answer is a failure. The first line that this writes says which versions it found.
"""
import json
import os
import sys

# Answers have a descriptor of their own: whatever a library prints must not be taken for one.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32,
          "i64": torch.int64}
UNIT = 2.0 ** -24  # a rounding of f32
HALF_STEPS = {"f32": 2.0 ** -150, "f16": 2.0 ** -25, "bf16": 2.0 ** -134}  # of subnormal numbers
IGNORED = 1        # the label that "ignore" means, as in tests/acceptance/cases_loss.c


class Wrong(Exception):
    """A case that cannot be right, whatever the tolerance."""


class Case:
    """A question's options and tensors, everything in f64."""

    kept = {}  # inputs by file, until the files are replaced
    gradient = 1.0  # what gradients are small by, where they are of a mean

    def __init__(self, question):
        self.options, self.tensors, self.device = question, question["tensors"], question["device"]
        if question["fresh"]:
            Case.kept.clear()

    def __getitem__(self, option):
        return self.options[option]

    def read(self, name, key):
        t = self.tensors[name]
        shape, dtype = t["shape"], DTYPES[t["dtype"]]
        size = 1
        for n in shape:
            size *= n
        raw = torch.from_file(t[key], shared=False, size=size, dtype=dtype).reshape(shape)
        return raw.clone().to(self.device).to(torch.int64 if dtype == torch.int64 else torch.float64)

    def get(self, name):
        """An input; None where there is none."""
        t = self.tensors.get(name)
        if t is None:
            return None
        key = (t["in"], t["dtype"], tuple(t["shape"]))
        if key not in Case.kept:
            Case.kept[key] = self.read(name, "in")
        return Case.kept[key]

    def leaf(self, name):
        """An input that wants a gradient."""
        t = self.get(name)
        return None if t is None else t.detach().requires_grad_()

    def stored(self, name):
        """What the device has put into an output."""
        return self.read(name, "out")


def gradients(y, dy, leaves):
    """{"dx": ...} of the leaves {"x": ...} that are there."""
    there = {name: t for name, t in leaves.items() if t is not None}
    found = torch.autograd.grad(y, list(there.values()), dy)
    return {"d" + name: g for name, g in zip(there, found)}


# ---- roundings of sums ----
#
# A rounding is at most UNIT of what is rounded, and of either sign: sizes s of n of them, added up, exceed
# LIKELY UNIT sqrt(sum of s^2) with a probability of 2 e^-32 (Hoeffding's inequality).

LIKELY = 8


def likely(row):
    """Roundings in a row, of one size, as one: at most all of one sign."""
    return min(row, LIKELY * row ** 0.5)


def depth(n):
    """Roundings of a sum of n terms, of the sum of the terms' sizes: 32 or more are added up side by side, as
    tests/acceptance/grid.c counts them."""
    return likely(n if n <= 64 else 64 + n / 32)


def walk(total, squares):
    """Size of a sum's intermediate values: of the total, and of a random walk of its terms, whose squares add up to
    that."""
    return (total.square() + squares).sqrt()


def long_sum(n, total, squares):
    """What n additions in a row are off by."""
    return LIKELY * UNIT * n ** 0.5 * walk(total, squares)


# ---- activations ----

ACTS = {
    "identity": lambda x: x * 1.0,
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "hardswish": F.hardswish,
    "selu": F.selu,
    "mish": F.mish,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "celu": F.celu,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
}


def slope(act, z):
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        return torch.autograd.grad(act(z).sum(), z)[0]


def jump(act, z, error):
    """By how much act and its slope differ at the ends of z's error."""
    lower, upper = z.detach() - error, z.detach() + error
    return (act(upper) - act(lower)).abs(), (slope(act, upper) - slope(act, lower)).abs()


def check_share(mask, p):
    if mask.numel() < 1000:
        return
    dropped = 1.0 - mask.mean().item()
    if abs(dropped - p) > 0.1 * p + 0.05:
        raise Wrong(f"{dropped:.3f} of the elements are dropped")


def dropped(c, y, p):
    """The device's own mask, as the factor of each element: zeros of y count as dropped."""
    if p == 0.0:
        return 1.0
    if p == 1.0:
        return 0.0
    mask = (c.stored("y") != 0.0).double()
    check_share(torch.where(y.detach() == 0.0, torch.full_like(mask, 1.0 - p), mask), p)
    return mask / (1.0 - p)


def act(c):
    x = c.leaf("x")
    y = ACTS[c["act"]](x)
    y = y * dropped(c, y, c["dropout"])
    return {"y": y, **gradients(y, c.get("dy"), {"x": x})}


def dropout(c):
    x = c.leaf("x")
    y = x * dropped(c, x, c["p"])
    return {"y": y, **gradients(y, c.get("dy"), {"x": x})}


def linear(c):
    x, w, b, dy = c.get("x"), c.get("w"), c.get("b"), c.get("dy")
    f = ACTS[c["act"]]
    z = F.linear(x, w, b)
    z_off = long_sum(x.shape[-1] + 1, z,
                     F.linear(x.square(), w.square(), None if b is None else b.square()))
    y_off, _ = jump(f, z, z_off)
    # Backward starts from z as it is stored.
    dz = dy * slope(f, c.stored("z") if "z" in c.tensors else z)
    flat, x = dz.reshape(-1, dz.shape[-1]), x.reshape(-1, x.shape[-1])
    m, n = flat.shape
    dx, dw, db = dz @ w, flat.t() @ x, flat.sum(0)
    return {"z": (z, z_off), "y": (f(z), y_off),
            "dx": (dx, long_sum(n, dx, dz.square() @ w.square())),
            "dw": (dw, long_sum(m, dw, flat.square().t() @ x.square())),
            "db": (db, long_sum(m, db, flat.square().sum(0)))}


def matmul(c):
    a, b, dy = c.get("a"), c.get("b"), c.get("dy")
    w = b.mT if c["turned"] else b
    da, db, off = dy @ w.mT, a.mT @ dy, a.square().mT @ dy.square()
    depth = a.shape[-2]
    if c["shared"] and a.dim() > 2:
        depth, batch = a.numel() // a.shape[-1], tuple(range(a.dim() - 2))
        db, off = db.sum(batch), off.sum(batch)
    if c["turned"]:
        db, off = db.mT, off.mT
    y = a @ w
    return {"y": (y, long_sum(a.shape[-1], y, a.square() @ w.square())),
            "da": (da, long_sum(dy.shape[-1], da, dy.square() @ w.square().mT)),
            "db": (db, long_sum(depth, db, off))}


def glu(c):
    x = c.leaf("x")
    a, b = x.chunk(2, dim=-1 if c["dim"] == "last" else 0)
    y = a * ACTS[c["act"]](b)
    return {"y": y, **gradients(y, c.get("dy"), {"x": x})}


def softmax(c):
    dim = -1 if c["dim"] == "last" else 0
    x, dy, y = c.get("x"), c.get("dy"), c.stored("y")  # backward starts from y as it is stored
    sign = -1.0 if c["kind"] == "softmin" else 1.0
    if c["kind"] == "log_softmax":
        return {"y": F.log_softmax(x, dim), "dx": dy - y.exp() * dy.sum(dim, keepdim=True)}
    return {"y": F.softmax(sign * x, dim),
            "dx": sign * y * (dy - (dy * y).sum(dim, keepdim=True))}


# ---- attention ----
#
# Here a tensor comes as a pair with what it is off by: 0.0 where it is exact.

# Roundings of a probability and of the gradient of a score beside those of sums, as tests/oracle_attention.c counts
# them.
SHARE_ROUNDINGS, SCORE_ROUNDINGS = 26, 4


def exact(t):
    return t, 0.0


def each(f, pair):
    """f of a tensor and of what it is off by."""
    t, off = pair
    return f(t), f(off) if torch.is_tensor(off) else off


def passed(a, b):
    """What a @ b is off by where its factors are."""
    (x, x_off), (w, w_off) = a, b
    off = x_off @ w.abs() if torch.is_tensor(x_off) else 0.0
    if torch.is_tensor(w_off):
        off = off + (x.abs() + x_off) @ w_off
    return off


def product(a, b):
    """a @ b, with its own roundings."""
    x, w = a[0], b[0]
    y = x @ w
    return y, passed(a, b) + long_sum(x.shape[-1], y, x.square() @ w.square())


def turned(pair):
    return each(lambda t: t.mT, pair)


def scaled(pair, scale):
    return each(lambda t: scale * t, pair)


def row_sum(t):
    return t.sum(-1, keepdim=True)


def scores(q, k, seen, mask):
    """scale q k^T + mask with -inf where a key is hidden, and what it is off by."""
    z, off = scaled(product(q, turned(k)), q[0].shape[-1] ** -0.5)
    off = off + SCORE_ROUNDINGS * UNIT * z.abs()
    if mask is not None:
        z, off = z + mask, off + UNIT * (z + mask).abs()
    return z.masked_fill(~seen, -float("inf")), off


class Shares:
    """Probabilities from scores: forward's p and what it is off by, log of the sum, backward's."""

    def __init__(self, z, z_off):
        lse = torch.logsumexp(z, -1, keepdim=True)
        blind, none = lse == -float("inf"), torch.zeros_like(lse)
        self.p = torch.where(blind, torch.zeros_like(z), (z - lse).exp())
        reach = torch.where(self.p > 0, (z - lse).abs() + z_off / UNIT, torch.zeros_like(z))
        one = SHARE_ROUNDINGS + likely(z.shape[-1]) + row_sum(self.p * reach)
        last = torch.where(blind, none, lse - z.amax(-1, keepdim=True))  # the sum's logarithm, beside the largest score
        pair_off = UNIT * (one + 8 * last)  # of lse and lse_low together; lse alone is rounded once more
        self.off = self.p * UNIT * (one + 2 * reach)
        self.back_off = self.off + self.p * (pair_off + UNIT * (reach + 3 * last))
        self.lse = (torch.where(blind, -lse, lse).squeeze(-1),
                    (pair_off + UNIT * torch.where(blind, none, lse.abs())).squeeze(-1))
        self.pair_off = pair_off.squeeze(-1)


def attend(q, k, v, dy, seen, stored, mask=None, keep=1.0):
    """All results of attention of [B, H, L, D]. stored: y as backward gets it, from y as forward has it."""
    share, scale = Shares(*scores(q, k, seen, mask)), q[0].shape[-1] ** -0.5
    p, kept = share.p, (share.p * keep, share.off * keep)
    y = product(kept, v)
    back = stored(y)
    # dz = p (keep dp - delta)
    dp, dp_off = product(dy, turned(v))
    delta = row_sum(dy[0] * back[0])
    delta_off = row_sum(dy[0].abs() * back[1] + dy[1] * (back[0].abs() + back[1])) + long_sum(
        dy[0].shape[-1], delta, row_sum((dy[0] * back[0]).square()))
    inner, inner_off = keep * dp - delta, keep * dp_off + delta_off
    dz = (scale * p * inner, scale * (p * inner_off + share.back_off * (inner.abs() + inner_off) +
                                      4 * UNIT * (p * inner).abs()))
    return {"y": y, "lse": share.lse, "lse_low": (share.lse[0], share.pair_off), "dq": product(dz, k), "dk": product(turned(dz), q),
            "dv": product(turned((kept[0], share.back_off * keep)), dy)}


def causal(rows, keys, device, last=0):
    """Row l sees the keys up to l + last."""
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(last)


def attention(c):
    """Backward starts from y as it is stored. Heads that share keys are as many more queries of one head."""
    q, k, v, dy = (c.get(name) for name in ("q", "k", "v", "dy"))
    heads, rows, keys = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]

    def join(t):
        return t.reshape(*k.shape[:2], heads * rows, -1)

    seen = causal(rows, keys, q.device, {"none": keys, "top_left": 0, "bottom_right": keys - rows}[c["causal"]])
    mask = c.get("mask")
    if mask is not None and c["mask"] == "bool":
        seen, mask = seen & (mask != 0), None
    if mask is not None:
        mask = mask.repeat(heads, 1)
    keep = c.stored("keep") if "keep" in c.tensors else torch.ones(1, dtype=q.dtype, device=q.device)
    out = attend(exact(join(q)), exact(k), exact(v), exact(join(dy)), seen.repeat(heads, 1),
                 lambda y: exact(join(c.stored("y"))), mask, join(keep) if "keep" in c.tensors else keep)
    for name, like in (("y", dy), ("lse", dy[..., 0]), ("lse_low", dy[..., 0]), ("dq", q)):
        out[name] = each(lambda t: t.reshape(like.shape), out[name])
    lse, pair_off = out["lse_low"]
    out["lse_low"] = torch.where(lse.isinf(), torch.zeros_like(lse), lse - c.stored("lse")), pair_off
    return {**out, "keep": exact(keep)}


# ---- MultiheadAttention ----


def project(x, w, b):
    """x w^T + b; w and b are exact."""
    z, off = product(x, exact(w.mT))
    return (z, off) if b is None else (z + b, off + UNIT * (z + b).abs())


def parameters_off(x, dz):
    """What the gradients of a projection's weight and bias are off by."""
    x, dz = (each(lambda t: t.flatten(0, 1), pair) for pair in (x, dz))
    ones = torch.ones(1, len(x[0]), dtype=x[0].dtype, device=x[0].device)
    return product(turned(dz), x)[1], product(exact(ones), dz)[1].squeeze(0)


def met(parts):
    """What gradients that meet in one tensor are off by: each goes into all sums but one."""
    return sum(off + (len(parts) - 1) * UNIT * t.abs() for t, off in parts)


def split(t, heads):
    """[N, T, E] as [N, heads, T, D]."""
    return t.reshape(*t.shape[:2], heads, -1).transpose(1, 2)


def join(t):
    return t.transpose(1, 2).flatten(2)


def mha_off(c, inputs, w, b, out_w, out_b, seen):
    """What roundings of f32 do to the module's results: its ops one behind the other. w, b: of query, key and
    value."""
    heads, dy = int(c["heads"]), exact(c.get("dy"))
    q, k, v = (each(lambda t: split(t, heads), project(exact(x), *of)) for x, *of in zip(inputs, w, b))
    dy_heads = each(lambda t: split(t, heads), product(dy, exact(out_w)))
    out = attend(q, k, v, dy_heads, seen, lambda y: y)
    y, *dz = (each(join, out[name]) for name in ("y", "dq", "dk", "dv"))
    dx = [product(d, exact(of)) for d, of in zip(dz, w)]
    met_in = {"self": {"dq": dx}, "memory": {"dq": dx[:1], "dk": dx[1:]},
              "cross": {"dq": dx[:1], "dk": dx[1:2], "dv": dx[2:]}}[c["inputs"]]
    dw, db = zip(*(parameters_off(exact(x), d) for x, d in zip(inputs, dz)))
    dout_w, dout_b = parameters_off(y, dy)
    return {"y": project(y, out_w, out_b)[1], "dw": torch.cat(dw), "db": torch.cat(db), "dout_w": dout_w,
            "dout_b": dout_b, **{name: met(parts) for name, parts in met_in.items()}}


# In 16 bits a tape rounds what it stores between two ops. What that does is far less than a bound of all factors'
# magnitudes, since errors of one number meet again with either sign; so it is tried out, TRIES times.
STEPS = {"f16": 2.0 ** -11, "bf16": 2.0 ** -8}
TRIES = 16


class Stored(torch.autograd.Function):
    """A number off by a rounding of a step, at random, and likewise its gradient."""

    @staticmethod
    def forward(ctx, t, step, gradient_step):
        ctx.step = gradient_step
        return Stored.off(t, step)

    @staticmethod
    def backward(ctx, gradient):
        return Stored.off(gradient, ctx.step), None, None

    @staticmethod
    def off(t, step):
        return t * (1.0 + step * (2.0 * torch.rand_like(t) - 1.0))


class StoredAttention(torch.autograd.Function):
    """Attention whose result is stored; backward, which reads that again, does not undo the rounding."""

    @staticmethod
    def forward(ctx, q, k, v, seen, step):
        p = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -float("inf")).softmax(-1)
        y = Stored.off(p @ v, step)
        ctx.save_for_backward(q, k, v, p, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        q, k, v, p, y = ctx.saved_tensors
        dz = p * (dy @ v.mT - row_sum(dy * y)) * q.shape[-1] ** -0.5
        return dz @ k, dz.mT @ q, p.mT @ dy, None, None


def mha_try(c, inputs, w, b, out_w, out_b, seen):
    """The module with numbers rounded where they are stored."""
    step, heads = STEPS[c.tensors["y"]["dtype"]], int(c["heads"])
    # Gradients that meet in one tensor are rounded as often as there are others; the last rounding is the judge's.
    meet = step * {"self": 2, "memory": 1, "cross": 0}[c["inputs"]]
    q, k, v = (split(Stored.apply(F.linear(Stored.apply(x, 0.0, meet), *of), step, step), heads)
               for x, *of in zip(inputs, w, b))
    y = join(StoredAttention.apply(q, k, v, seen, step))
    return F.linear(Stored.apply(y, 0.0, step), out_w, out_b)


def mha_tried(out, run):
    """LIKELY root mean squares of what tries differ by, of an element or of its row, whichever is larger."""
    squares = {name: torch.zeros_like(t) for name, t in out.items()}
    torch.manual_seed(0)
    for _ in range(TRIES):
        for name, t in run().items():
            squares[name] += (t - out[name]).detach().square() / TRIES
    return {name: LIKELY * torch.maximum(t, t.mean(-1, keepdim=True)).sqrt() for name, t in squares.items()}


def mha(c):
    """Values are those of PyTorch's module."""
    x, names, dy = {name: c.leaf(name) for name in ("q", "k", "v")}, ("w", "b", "out_w", "out_b"), c.get("dy")
    q = x["q"]
    k = q if x["k"] is None else x["k"]
    v = k if x["v"] is None else x["v"]
    seen = causal(q.shape[1], k.shape[1], q.device, 0 if c["causal"] else k.shape[1])
    m = torch.nn.MultiheadAttention(q.shape[-1], int(c["heads"]), bias=c["bias"] != 0, batch_first=True,
                                    device=q.device, dtype=q.dtype)
    own = dict(zip(names, (m.in_proj_weight, m.in_proj_bias, m.out_proj.weight, m.out_proj.bias)))
    with torch.no_grad():
        for name, p in own.items():
            if p is not None:
                p.copy_(c.get(name))

    def run(y):
        return {"y": y, **gradients(y, dy, {**x, **own})}

    def parts():
        b = (None,) * 3 if own["b"] is None else own["b"].chunk(3)
        return (q, k, v), own["w"].chunk(3), b, own["out_w"], own["out_b"], seen
    out = run(m(q, k, v, need_weights=False, attn_mask=~seen)[0])
    with torch.no_grad():
        off = mha_off(c, *parts())
    if c.tensors["y"]["dtype"] in STEPS:
        tried = mha_tried(out, lambda: run(mha_try(c, *parts())))
        off = {name: off[name] + t for name, t in tried.items()}
    return {name: (value, off[name]) for name, value in out.items()}


# ---- normalisations ----


def by_column(t, like):
    return t


def by_channel(t, like):
    return t.reshape([1, -1] + [1] * (like.dim() - 2))


# Roundings of a normalised value and of gradients, beside those of sums, as tests/tolerance.c counts them.
ROUNDINGS, BATCH_ROUNDINGS = (20, 36), (52, 100)


class Normal:
    """x normalised, n, and what sizes it is made of. mean_of: means of a tensor where x has them."""

    def __init__(self, x, eps, mean_of, centred=True, given=None):
        self.mean_of = mean_of
        if given:
            mean, var = given
        else:
            mean = mean_of(x) if centred else torch.zeros_like(x)
            var = mean_of((x - mean).square())
        self.rstd = torch.rsqrt(var + eps)
        self.n = (x - mean) * self.rstd
        # A rounding of the mean is one of |mean| rstd, one of the deviations is one of 1.
        self.blur = (1.0 + mean.abs() * self.rstd) * (1.0 if centred else 0.0)
        self.size = self.n.abs() + self.blur
        self.centred, self.given = centred, given

    def dx_size(self, g):
        """Of dx = rstd (g - mean of g - n (mean of g n)), g a size."""
        if self.given:
            return self.rstd * g
        centre = self.mean_of(g) if self.centred else 0.0
        return self.rstd * (g + centre + self.size * self.mean_of(g * self.size))

    def parameters(self, dz, size, sum_of, roundings):
        """What dw and db, sums of dz n and dz, are off by. size: dz's, for each term's roundings."""
        terms = dz.numel() / sum_of(dz).numel()
        one = LIKELY * UNIT * (roundings + terms ** 0.5)
        shift = sum_of(dz * self.blur)  # all n of a mean are off alike
        dw = walk(sum_of(dz * self.n), shift.square() + sum_of((size * self.size).square()))
        return {"dw": one * dw, "db": one * walk(sum_of(dz), sum_of(size.square()))}


def norm(function, placed, mean_of, count, sum_of, centred=True):
    """Of a normalisation without parameters, which come behind it: some of PyTorch's refuse one alone. count: values
    that are normalised together; sum_of: sums as gradients of parameters are."""
    def run(c):
        x, w, b, dy = c.leaf("x"), c.leaf("w"), c.leaf("b"), c.get("dy")
        scale = torch.ones(1, device=x.device, dtype=x.dtype) if w is None else placed(w, x)
        y = function(x, c) * scale
        y = y if b is None else y + placed(b, x)
        out = {"y": y, **gradients(y, dy, {"x": x, "w": w, "b": b})}
        with torch.no_grad():
            row = depth(count(c))
            forward, backward = ((k + row) * UNIT for k in ROUNDINGS)
            v = Normal(x, c["eps"], lambda t: mean_of(t, c), centred)
            extra = {"y": forward * (scale.abs() * v.size + (0.0 if b is None else placed(b, x).abs())),
                     "dx": backward * v.dx_size((dy * scale).abs()),
                     **v.parameters(dy, dy, lambda t: sum_of(t), ROUNDINGS[1] + row)}
        return {name: (value, extra[name]) for name, value in out.items()}
    return run


def groups_of(c):
    return int(c["groups"]) or c.get("x").shape[1]


def columns(t):
    return t.reshape(-1, t.shape[-1]).sum(0)


def channels(t):
    return t.sum([d for d in range(t.dim()) if d != 1])


def group_mean(t, c):
    rows = t.reshape(t.shape[0] * groups_of(c), -1)
    return rows.mean(1, keepdim=True).expand_as(rows).reshape(t.shape)


def row_mean(t, c):
    return t.mean(-1, keepdim=True).expand_as(t)


def channel_mean(t):
    return t.mean([d for d in range(t.dim()) if d != 1], keepdim=True).expand_as(t)


def row_length(c):
    return c.get("x").shape[-1]


def group_size(c):
    return c.get("x")[0].numel() / groups_of(c)


layer_norm = norm(lambda x, c: F.layer_norm(x, x.shape[-1:], eps=c["eps"]), by_column, row_mean,
                  row_length, columns)
rms_norm = norm(lambda x, c: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c["eps"]), by_column,
                row_mean, row_length, columns, centred=False)
# Not F.group_norm, which refuses groups of one value where there is one sample.
group_norm = norm(lambda x, c: torch.group_norm(x, groups_of(c), eps=c["eps"]), by_channel, group_mean,
                  group_size, channels)


def batch_norm_extra(c, f, given, scale, rest, dy):
    """An activation's jumps, and what it makes of z's roundings. Slopes change by at most 1 for a change of z by 1."""
    x = c.get("x")
    v = Normal(x, c["eps"], channel_mean, given=given)
    row = depth(x.numel() / x.shape[1]) if given is None else 0
    forward, backward = ((k + row) * UNIT for k in BATCH_ROUNDINGS)
    z = v.n * scale + rest
    size = scale.abs() * v.size + rest.abs()
    error = forward * size
    y_off, slope_off = jump(f, z, error)
    dz = dy * slope(f, z)
    dz_off = slope_off * dy.abs() + backward * dz.abs()
    steep = dy.abs() if c["act"] == "identity" else dy.abs() * (1.0 + size)
    parameters = v.parameters(dz, steep, channels, BATCH_ROUNDINGS[1] + row)
    # Beyond that a slope jumps, for all of a channel in one direction.
    jumps = (slope_off - 2.0 * error).clamp(min=0.0) * dy.abs()
    return {"y": y_off + forward * f(z).abs(), "dresidual": dz_off, "dx": scale.abs() * v.dx_size(dz_off),
            "dw": parameters["dw"] + channels(jumps * v.n.abs()), "db": parameters["db"] + channels(jumps)}


def batch_norm(c):
    x, w, b, r, dy = c.leaf("x"), c.leaf("w"), c.leaf("b"), c.leaf("residual"), c.get("dy")
    mean, var = ((None if t is None else t.clone()) for t in
                 (c.get("running_mean"), c.get("running_var")))
    training, f = c["training"] != 0, ACTS[c["act"]]
    n = F.batch_norm(x, mean, var, None, None, training, c["momentum"], c["eps"])
    scale = torch.ones_like(x[:1]) if w is None else by_channel(w, x)
    rest = (0.0 if b is None else by_channel(b, x)) + (torch.zeros_like(x) if r is None else r)
    y = f(n * scale + rest)
    out = {"y": y, "running_mean": mean, "running_var": var,
           **gradients(y, dy, {"x": x, "w": w, "b": b, "residual": r})}
    given = None if training else (by_channel(mean, x), by_channel(var, x))
    extra = batch_norm_extra(c, f, given, scale.detach(), rest.detach(), dy)
    return {name: (value, extra.get(name, 0.0)) for name, value in out.items()}


# ---- losses ----

# Roundings on a term's way into a sum over elements or positions, and of the sum's quotient by a count
# (docs/numerics.md).
SUM_DEPTH, QUOTIENT = 99, 6


def reduced(each, reduction, by):
    """The loss, and what the roundings of its sum allow."""
    if reduction == "none":
        return each, 0.0
    off = (likely(SUM_DEPTH) + QUOTIENT) * UNIT
    return each.sum() / by, off * each.detach().abs().sum() / abs(by)


LOSSES = {
    "l1": lambda x, t, c: F.l1_loss(x, t, reduction="none"),
    "mse": lambda x, t, c: F.mse_loss(x, t, reduction="none"),
    "smooth_l1": lambda x, t, c: F.smooth_l1_loss(x, t, reduction="none"),
    "huber": lambda x, t, c: F.huber_loss(x, t, reduction="none"),
    "bce_with_logits": lambda x, t, c: F.binary_cross_entropy_with_logits(
        x, t, c.get("weight"), reduction="none", pos_weight=c.get("pos_weight")),
    "kl_div": lambda x, t, c: F.kl_div(x, t, reduction="none"),
    "kl_div_log": lambda x, t, c: F.kl_div(x, t, reduction="none", log_target=True),
}


def pointwise(c):
    x, t = c.leaf("x"), c.leaf("target")
    each = LOSSES[c["kind"]](x, t, c)
    by = {"mean": each.numel(), "batch_mean": x.shape[0]}.get(c["reduction"], 1)
    value, extra = reduced(each, c["reduction"], by)
    c.gradient = 1.0 / by
    return {"loss": (value, extra), **gradients(value, c.get("dloss"), {"x": x, "target": t})}


def of_labels(function):
    def run(c):
        x, t = c.leaf("x"), c.get("target")
        soft = c.options.get("probabilities", 0) != 0
        t = t.detach().requires_grad_() if soft else t
        more = {"weight": c.get("weight"), "ignore_index": IGNORED if c["ignore"] else -100}
        if "smoothing" in c.options:
            more["label_smoothing"] = c["smoothing"]
        value = function(x, t, reduction=c["reduction"], **more)
        extra = 0.0
        if c["reduction"] != "none":
            with torch.no_grad():
                each = function(x, t, reduction="none", **more)
                total = each.sum()
                mean = c["reduction"] == "mean"  # the weights are added up too
                by = (total / value).abs() if mean else 1.0
                off = likely(2 * SUM_DEPTH) + QUOTIENT if mean else likely(SUM_DEPTH)
                extra = off * UNIT * each.abs().sum() / by
                c.gradient = 1.0 / float(by) if float(by) > 0 else 1.0
        return {"loss": (value, extra),
                **gradients(value, c.get("dloss"), {"x": x, "target": t if soft else None})}
    return run


# ---- convolutions ----


def numbers(text):
    """"5x3" is (5, 3), "3" is (3,)."""
    return tuple(int(n) for n in text.split("x"))


def convolution(c):
    """A case's function of x, w and b, which are [N, C, ...], and the channels of a group."""
    x, w = c.get("x"), c.get("w")
    axes, channels = x.dim() - 2, x.shape[-1 if c["as"] == "channels_last" else 1]
    if c["op"] == "conv_layer":
        _, _, stride, padding, groups = numbers(c["layer"])
        return lambda x, w, b: F.conv2d(x, w, b, stride, padding, 1, groups), groups
    kernel, stride, groups = numbers(c["kernel"]), numbers(c["stride"]), int(c["groups"])
    groups = channels if groups < 0 else groups
    padding, dilation = int(c["padding"]), 2 if c["as"] == "dilated" else 1
    padding = kernel[0] // 2 if padding < 0 else padding
    stride = stride * axes if len(stride) == 1 else stride
    if c["op"] == "conv_transposed":
        f = F.conv_transpose1d if axes == 1 else F.conv_transpose2d
        more = int(c["output_padding"])
        return lambda x, w, b: f(x, w, b, stride, padding, more, groups, dilation), groups
    f = F.conv1d if axes == 1 else F.conv2d
    padding = "same" if c["as"] == "same" else padding
    return lambda x, w, b: f(x, w, b, stride, padding, dilation, groups), groups


def conv(c):
    """Sizes of what is added up come from the same function of squares."""
    last = c["as"] == "channels_last"

    def planes(t):
        return t.movedim(-1, 1) if last else t

    def as_stored(t):
        return t.movedim(1, -1) if last else t
    f, groups = convolution(c)
    x, w, b, dy = planes(c.get("x")), c.get("w"), c.get("b"), planes(c.get("dy"))

    def run(x, w, b, dy):
        leaves = {"x": x.detach().requires_grad_(), "w": w.detach().requires_grad_(),
                  "b": None if b is None else b.detach().requires_grad_()}
        y = f(*leaves.values())
        return {"y": y.detach(), **gradients(y, dy, leaves)}
    out = run(x, w, b, dy)
    squares = run(x.square(), w.square(), None if b is None else b.square(), dy.square())
    taps = w[0, 0].numel()
    positions = x.shape[0] * (x if c["op"] == "conv_transposed" else dy)[0, 0].numel()
    terms = {"y": x.shape[1] // groups * taps + 1, "dx": dy.shape[1] // groups * taps,
             "dw": positions, "db": dy.shape[0] * dy[0, 0].numel()}
    images = ("y", "dx")
    return {name: tuple(as_stored(t) if name in images else t
                        for t in (value, long_sum(terms[name], value, squares[name])))
            for name, value in out.items()}


# ---- pooling: sequences are images of height 1 ----


def image(x):
    return x.unsqueeze(2) if x.dim() == 3 else x


def window(c, x):
    """Kernel, stride and padding; attorch's numbers."""
    k, s, p = int(c["kernel"]), int(c["stride"]), int(c["padding"])
    s, p = s or k, k // 2 if p < 0 else p
    return ((1, k), (1, s), (0, p)) if x.dim() == 3 else (k, s, p)


# Roundings beside those of sums, as tests/tolerance.c counts them: of means, of their gradients.
POOL_ROUNDINGS = (6, 7)


def pooled(c, function, windows):
    """windows: that hold an element, at most. The forward pass of maxima is exact."""
    x, dy = c.leaf("x"), c.get("dy")
    y = function(image(x))
    y, index = y if isinstance(y, tuple) else (y, None)
    shape = c.tensors["y"]["shape"]
    y = y.reshape(shape)
    dx, size = (torch.autograd.grad(y, x, g, retain_graph=True)[0] for g in (dy, dy.abs()))
    out = {"y": y, "dx": (dx, (POOL_ROUNDINGS[1] + windows - 1) * UNIT * size)}
    if index is not None:
        out["indices"] = index.reshape(shape)
    return out


def overlap(k, s):
    """Windows of k every s along an axis that hold an element."""
    return -(-k // s)


def avg_pool(c):
    k, s, p = window(c, c.get("x"))

    def means(x):
        return F.avg_pool2d(x, k, s, p, c["ceil"] != 0, c["exclude"] == 0, int(c["divisor"]) or None)
    edge, axes = int(c["kernel"]), c.get("x").dim() - 2
    out = pooled(c, means, overlap(edge, int(c["stride"]) or edge) ** axes)
    size = means(image(c.get("x").abs())).reshape(out["y"].shape)
    return {**out, "y": (out["y"], (POOL_ROUNDINGS[0] + edge ** axes - 1) * UNIT * size)}


def max_pool(c):
    axes = c.get("x").dim() - 2
    k, s, p = window(c, c.get("x"))
    d, edge = int(c["dilation"]), int(c["kernel"])
    # Dilated windows hold each element at most as often as they have elements.
    windows = edge if d > 1 else overlap(edge, int(c["stride"]) or edge)
    return pooled(c, lambda x: F.max_pool2d(x, k, s, p, (1, d) if axes == 1 else d, c["ceil"] != 0,
                                            return_indices=True), windows ** axes)


def adaptive_pool(c):
    """Neighbouring windows share at most an element along an axis, unless there are more of them than elements."""
    n, x, lengths = int(c["out"]), image(c.get("x")), c.get("x").shape[2:]
    size = (1, n) if len(lengths) == 1 else n
    windows = 1
    for have in lengths:
        windows *= 2 if n <= have else -(-n // have) + 1
    if c["max"]:
        return pooled(c, lambda t: F.adaptive_max_pool2d(t, size, return_indices=True), windows)
    out = pooled(c, lambda t: F.adaptive_avg_pool2d(t, size), windows)
    y = out["y"]
    mean_size, mean_square = (F.adaptive_avg_pool2d(t, size).reshape(y.shape) for t in (x.abs(), x.square()))
    summands = least = 1
    for have in lengths:
        summands *= have if n == 1 else have // n + 2
        least *= max(have // n, 1)
    off = POOL_ROUNDINGS[0] * UNIT * mean_size + long_sum(summands, y, mean_square / least)
    return {**out, "y": (y, off)}


# ---- rows and elements of an index ----

PADDING = 0  # the row that "padding" means, as in tests/acceptance/cases_index.c


def added(dy, y, sums):
    """y, and the gradient with what it may be off by; sums adds up what belongs to each element of x."""
    dx, counts, squares = sums(dy), sums(torch.ones_like(dy)), sums(dy.square())
    return {"y": y, "dx": (dx, LIKELY * UNIT * counts.sqrt() * walk(dx, squares))}


def index_select(c):
    x, index, dy = c.get("x"), c.get("index"), c.get("dy")
    dim = -1 if c["dim"] == "last" else 0

    def sums(d):
        out = torch.zeros_like(x).index_add_(dim, index, d)
        if c["padding"]:
            out.select(dim, PADDING).zero_()
        return out
    return added(dy, x.index_select(dim, index), sums)


def gather(c):
    x, index, dy = c.get("x"), c.get("index"), c.get("dy")
    dim = -1 if c["dim"] == "last" else 0
    return added(dy, x.gather(dim, index), lambda d: torch.zeros_like(x).scatter_add_(dim, index, d))


def rope(c):
    x, dy, position = c.get("x"), c.get("dy"), c.get("position")
    cos, sin = c.get("cos"), c.get("sin")
    if position is None:
        position = torch.arange(x.shape[2], device=x.device) + 3
    if position.dim() == 1:
        position = position.expand(x.shape[0], -1)
    cos, sin = cos[position].unsqueeze(1), sin[position].unsqueeze(1)
    pairs = cos.shape[-1]

    def turned(t, sin, sizes=False):
        part, rest = t[..., :2 * pairs], t[..., 2 * pairs:]
        halves = c["pairing"] == "halves"
        u, v = part.chunk(2, -1) if halves else (part[..., 0::2], part[..., 1::2])
        new = (u * cos.abs() + v * sin, v * cos.abs() + u * sin) if sizes else (u * cos - v * sin, v * cos + u * sin)
        part = torch.cat(new, -1) if halves else torch.stack(new, -1).flatten(-2)
        return torch.cat((part, rest), -1)

    return {"y": (turned(x, sin), 2 * UNIT * turned(x.abs(), sin.abs(), True)),
            "dx": (turned(dy, -sin), 2 * UNIT * turned(dy.abs(), sin.abs(), True))}


# ---- recurrent cells ----
#
# Tensors as pairs with what they are off by in f32, in UNIT, as tests/oracle_rnn.c counts it.

SIGMOID_ROUNDINGS, TANH_ROUNDINGS = 12, 10


class Off:
    """A tensor and what it is off by."""

    def __init__(self, t, off=0.0):
        self.t, self.off = t, off

    def __add__(self, other):
        t = self.t + other.t
        return Off(t, self.off + other.off + t.abs())

    def __sub__(self, other):
        return self + Off(-other.t, other.off)

    def __mul__(self, other):
        t = self.t * other.t
        return Off(t, self.t.abs() * other.off + other.t.abs() * self.off + t.abs())

    def sigmoid(self):
        s = self.t.sigmoid()
        return Off(s, SIGMOID_ROUNDINGS * s + s * (1 - s) * self.off)

    def tanh(self):
        t = self.t.tanh()
        return Off(t, TANH_ROUNDINGS * t.abs() + (1 - t * t) * self.off)

    def rest(self):
        """1 - t"""
        return Off(torch.ones_like(self.t)) - self

    def pair(self):
        return self.t, UNIT * self.off


def gates_of(t, count):
    return [Off(part) for part in t.chunk(count, -1)]


def joined(parts):
    """Gates one behind the other."""
    return torch.cat([p.t for p in parts], -1), UNIT * torch.cat(
        [p.off if torch.is_tensor(p.off) else torch.zeros_like(p.t) for p in parts], -1)


def lstm_cell(c):
    i, f, g, o = gates_of(c.get("x"), 4)
    gates = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    state = Off(c.get("c"))
    cy = gates[1] * state + gates[0] * gates[2]
    y = gates[3] * cy.tanh()
    # Backward starts from what forward has stored.
    i, f, g, o = gates_of(c.stored("gates"), 4)
    t, none = Off(c.stored("cy")).tanh(), torch.zeros_like(state.t)
    dy, dcy = (Off(none if c.get(name) is None else c.get(name)) for name in ("dy", "dcy"))
    s = dcy + dy * o * (t * t).rest()
    dx = s * g * (i * i.rest()), s * state * (f * f.rest()), s * i * (g * g).rest(), dy * t * (o * o.rest())
    return {"y": y.pair(), "cy": cy.pair(), "gates": joined(gates), "dx": joined(dx), "dc": (s * f).pair()}


def gru_cell(c):
    (xr, xz, xn), (ur, uz, un), h = gates_of(c.get("x"), 3), gates_of(c.get("u"), 3), Off(c.get("h"))
    r, z = (xr + ur).sigmoid(), (xz + uz).sigmoid()
    n = (xn + r * un).tanh()
    y = Off(n.t) + z * (h - Off(n.t))
    y.off = y.off + (1 - z.t) * n.off
    gates = joined((r, z, n, un))
    r, z, n, un = gates_of(c.stored("gates"), 4)
    dy = Off(c.get("dy"))
    dn, dz = dy * z.rest() * (n * n).rest(), dy * (h - n) * (z * z.rest())
    dr = dn * un * (r * r.rest())
    return {"y": y.pair(), "gates": gates, "dx": joined((dr, dz, dn)), "du": joined((dr, dz, dn * r)),
            "dh": (dy * z).pair()}


# ---- padding and resizing: the last dimension of three, the last two of four ----


def pad(c):
    x, dy = c.leaf("x"), c.get("dy")
    amount, axes = int(c["amount"]), c.get("x").dim() - 2
    # Dimension 2 has one less behind.
    amounts = [amount, amount] * (axes - 1) + [amount, amount - 1]
    y = F.pad(x, amounts, "constant", 0.5) if c["mode"] == "constant" else F.pad(x, amounts, c["mode"])
    dx, size, count = (torch.autograd.grad(y, x, g, retain_graph=True)[0]
                       for g in (dy, dy.abs(), torch.ones_like(dy)))
    return {"y": y, "dx": (dx, (count - 1).clamp(min=0) * UNIT * size)}


def nearest_place(n, m, scale):
    """x's element for each of y's; coordinates are f32. A size that stays or doubles leaves the scale aside."""
    step = torch.tensor(1 / scale if scale and m not in (n, 2 * n) else n / m, dtype=torch.float32)
    at = torch.arange(m, dtype=torch.float32) * step
    return at.floor().long().clamp(max=n - 1)


def linear_place(n, m, aligned, scale):
    """The same, exactly and with a fraction."""
    at = torch.arange(m, dtype=torch.float64)
    if aligned:
        return at * ((n - 1) / (m - 1) if m > 1 else 0.0)
    return (at + 0.5) * (1 / scale if scale and m != n else n / m) - 0.5


def resize_nearest(c, sizes, scale):
    x, dy = c.leaf("x"), c.get("dy")
    y = image(x)
    for d, m in enumerate(sizes):
        y = y.index_select(2 + d, nearest_place(y.shape[2 + d], m, scale).to(x.device))
    y = y.reshape(dy.shape)
    dx, size, count = (torch.autograd.grad(y, x, g, retain_graph=True)[0]
                       for g in (dy, dy.abs(), torch.ones_like(dy)))
    return {"y": y, "dx": (dx, (count - 1).clamp(min=0) * UNIT * size)}


# Roundings as tests/oracle_resize.c counts them.
RESIZE_PRODUCTS, RESIZE_COORDINATE = 8, 4


def resize(c):
    """What shares are off by counts with the largest elements around, and with all of dy that is near."""
    x, dy = c.leaf("x"), c.get("dy")
    scale = 1.7 if c["to"] == "scaled" else None
    sizes = list(dy.shape[2:]) if x.dim() == 4 else [1, dy.shape[2]]
    if c["mode"] == "nearest":
        return resize_nearest(c, sizes, scale)
    aligned = c["mode"] == "aligned"
    off, y, size, terms = 0.0, image(x), image(x.abs()), 1
    for d, m in enumerate(sizes):
        n = y.shape[2 + d]
        at = linear_place(n, m, aligned, scale).clamp(0, n - 1).to(x.device)
        low, part = at.floor().long(), at - at.floor()
        shape = [-1 if k == 2 + d else 1 for k in range(4)]
        high, part = (low + 1).clamp(max=n - 1), part.reshape(shape)
        y, size = ((1 - part) * t.index_select(2 + d, low) + part * t.index_select(2 + d, high) for t in (y, size))
        terms *= m if n == 1 else min(m, 2 * -(-m // (n - 1)) + 1)  # of an element of dx
        if n > 1:
            off = off + RESIZE_COORDINATE * (at.reshape(shape) + 1) + 1
    around = F.max_pool2d(image(c.get("x").abs()), 5, 1, 2)
    places = [linear_place(n, m, aligned, scale).clamp(0, n - 1).long().to(x.device)
              for n, m in zip(around.shape[2:], sizes)]
    largest = 2 * around.index_select(2, places[0]).index_select(3, places[1])
    dx, dx_size, near = (torch.autograd.grad(y, x, g, retain_graph=True)[0]
                         for g in (image(dy), image(dy.abs()), image(dy.abs()) * off))
    near = (9 * F.avg_pool2d(image(near), 3, 1, 1)).reshape(x.shape)
    return {"y": (y.reshape(dy.shape), (UNIT * (RESIZE_PRODUCTS * size + off * largest)).reshape(dy.shape)),
            "dx": (dx, UNIT * ((RESIZE_PRODUCTS + terms - 1) * dx_size + near))}


OPS = {"act": act, "dropout": dropout, "linear": linear, "matmul": matmul, "attention": attention,
       "mha": mha, "softmax": softmax, "glu": glu,
       "layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm,
       "group_norm": group_norm, "loss": pointwise, "nll_loss": of_labels(F.nll_loss),
       "cross_entropy": of_labels(F.cross_entropy), "conv": conv, "conv_transposed": conv,
       "conv_layer": conv, "avg_pool": avg_pool, "max_pool": max_pool,
       "index_select": index_select, "gather": gather, "rope": rope, "lstm_cell": lstm_cell, "gru_cell": gru_cell,
       "pad": pad, "resize": resize,
       "adaptive_pool": adaptive_pool}


# ---- verdict ----


def worst(got, want, extra, rtol, atol):
    """Error, allowed error and their quotient where that is largest. Equal infinities and NaN are right."""
    if got.numel() == 0:
        return 0.0, 0.0, 0.0
    got, want = got.double(), want.detach().double()
    same = (got == want) | (got.isnan() & want.isnan())
    error = torch.where(same, torch.zeros_like(want), (got - want).abs())
    allowed = (atol + rtol * want.abs() + extra) * torch.ones_like(want)
    share = torch.where(same, torch.zeros_like(want), error / allowed)
    share = torch.where(share.isnan(), torch.full_like(share, float("inf")), share).reshape(-1)
    at = int(share.argmax())
    return error.reshape(-1)[at].item(), allowed.reshape(-1)[at].item(), share[at].item()


def answer(question):
    c = Case(question)
    found = OPS[question["op"]](c)
    text = ""
    for name, t in c.tensors.items():
        if "out" not in t:
            continue
        want, extra = found[name] if isinstance(found[name], tuple) else (found[name], 0.0)
        atol = t["atol"]
        if name in ("dx", "dtarget"):
            atol = max(atol * c.gradient, HALF_STEPS[t["dtype"]])
        text += " %s %.6g %.6g %.6g" % (name, *worst(c.stored(name), want, extra, t["rtol"], atol))
    return text + " "


def say(line):
    print(line[:3000], file=ANSWERS, flush=True)


def main():
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    say(f"torch {torch.__version__}, {gpu}")
    for line in sys.stdin:
        try:
            say(answer(json.loads(line)))
        except Wrong as reason:
            say(f"- {reason}")
        except Exception as error:  # a case that PyTorch refuses is a finding, not the end
            say("- " + (str(error).splitlines() or [type(error).__name__])[0][:300])


if __name__ == "__main__":
    main()
