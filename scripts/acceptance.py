#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Judges cases of the acceptance grid by PyTorch in f64; scripts/acceptance.sh starts it.

A question is a line of JSON: the op, its options, and its tensors with the files that hold what went in and
what came out, dense and row-major. The answer is a line,

    y 1.2e-07 1.1e-05 0.011 dx 3e-06 ...

with the worst element of each output: its error, what is allowed there, and the quotient. Allowed is
atol + rtol |expected|, which the question names. On top come what no tolerance of that form covers: an
activation's jump where its argument is a few roundings from it, the roundings of a long sum, and those of a mean that is
taken off numbers hardly different from it. `- reason`
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

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64}
UNIT = 2.0 ** -24  # a rounding of f32
IGNORED = 1        # the label that "ignore" means, as in tests/acceptance/cases_loss.c


class Wrong(Exception):
    """A case that cannot be right, whatever the tolerance."""


class Case:
    """A question's options and tensors, everything in f64."""

    kept = {}  # inputs by file, until the files are replaced

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
    size = F.linear(x.abs(), w.abs(), None if b is None else b.abs())
    y_jump, _ = jump(f, z, 16 * UNIT * size)
    # Backward starts from z as it is stored.
    dz = dy * slope(f, c.stored("z") if "z" in c.tensors else z)
    rows = dz.reshape(-1, dz.shape[-1])
    return {"z": z, "y": (f(z), y_jump), "dx": dz @ w,
            "dw": rows.t() @ x.reshape(-1, x.shape[-1]), "db": rows.sum(0)}


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


# ---- normalisations ----


def by_column(t, like):
    return t


def by_channel(t, like):
    return t.reshape([1, -1] + [1] * (like.dim() - 2))


NORM_ROUNDINGS = 36  # of a normalised value and its gradient, as tests/tolerance.c counts them


def mean_extra(rows, x, scale, dy, eps):
    """What the mean's roundings do to y and dx where the deviations from it are small: they are known to a rounding
    of the mean. rows makes matrices, a row for each mean."""
    r, g = rows(x), rows(dy * scale)
    mean = r.mean(1, keepdim=True)
    rstd = torch.rsqrt(r.var(1, unbiased=False, keepdim=True) + eps)
    n = (r - mean) * rstd
    off = NORM_ROUNDINGS * UNIT * (1.0 + mean.abs() * rstd)
    slope = (g * n).mean(1, keepdim=True).abs() + n.abs() * g.abs().mean(1, keepdim=True)
    return (abs(rows(scale * torch.ones_like(x))) * off).reshape(x.shape), \
        (rstd * off * slope).reshape(x.shape)


def norm(function, placed, rows_of=None):
    """Of a normalisation without parameters, which come behind it: some of PyTorch's refuse one alone. rows_of: see
    mean_extra; None where no mean is taken off."""
    def run(c):
        x, w, b, dy = c.leaf("x"), c.leaf("w"), c.leaf("b"), c.get("dy")
        scale = 1.0 if w is None else placed(w, x)
        y = function(x, c) * scale
        y = y if b is None else y + placed(b, x)
        out = {"y": y, **gradients(y, dy, {"x": x, "w": w, "b": b})}
        if rows_of:
            with torch.no_grad():
                y_extra, dx_extra = mean_extra(rows_of(c), x, scale, dy, c["eps"])
            out.update(y=(y, y_extra), dx=(out["dx"], dx_extra))
        return out
    return run


def groups_of(c):
    return int(c["groups"]) or c.get("x").shape[1]


layer_norm = norm(lambda x, c: F.layer_norm(x, x.shape[-1:], eps=c["eps"]), by_column,
                  lambda c: lambda t: t.reshape(-1, t.shape[-1]))
rms_norm = norm(lambda x, c: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c["eps"]), by_column)
group_norm = norm(lambda x, c: F.group_norm(x, groups_of(c), eps=c["eps"]), by_channel,
                  lambda c: lambda t: t.reshape(t.shape[0] * groups_of(c), -1))


def batch_norm(c):
    """The activation's jumps reach dx through w and rstd, and dw and db as sums."""
    x, w, b, r, dy = c.leaf("x"), c.leaf("w"), c.leaf("b"), c.leaf("residual"), c.get("dy")
    mean, var = ((None if t is None else t.clone()) for t in
                 (c.get("running_mean"), c.get("running_var")))
    training, f = c["training"] != 0, ACTS[c["act"]]
    n = F.batch_norm(x, mean, var, None, None, training, c["momentum"], c["eps"])
    weight = 1.0 if w is None else by_channel(w, x)
    z = n * weight + (0.0 if b is None else by_channel(b, x)) + (0.0 if r is None else r)
    y = f(z)
    out = {"running_mean": mean, "running_var": var,
           **gradients(y, dy, {"x": x, "w": w, "b": b, "residual": r})}
    with torch.no_grad():
        size = (n.abs() + 1.0) * abs(weight) + z.abs()
        y_jump, dz_jump = jump(f, z, 16 * UNIT * size)
        dz_jump = dz_jump * dy.abs()
        rest = [d for d in range(x.dim()) if d != 1]
        spread = x.var(rest, unbiased=False) if training else c.get("running_var")
        rstd = by_channel(torch.rsqrt(spread + c["eps"]), x)
        extra = {"dx": dz_jump * abs(weight) * rstd, "dresidual": dz_jump,
                 "dw": (dz_jump * n.abs()).sum(rest), "db": dz_jump.sum(rest)}
    return {"y": (y, y_jump), **{k: (v, extra[k]) if k in extra else v for k, v in out.items()}}


# ---- losses ----

SUM_DEPTH = 128  # additions in a row of a sum over any number of positions


def reduced(each, reduction, by):
    """The loss, and what the roundings of its sum allow."""
    if reduction == "none":
        return each, 0.0
    return each.sum() / by, SUM_DEPTH * UNIT * each.detach().abs().sum() / abs(by)


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
                by = (total / value).abs() if c["reduction"] == "mean" else 1.0
                extra = SUM_DEPTH * UNIT * each.abs().sum() / by
        return {"loss": (value, extra),
                **gradients(value, c.get("dloss"), {"x": x, "target": t if soft else None})}
    return run


# ---- pooling: sequences are images of height 1 ----


def image(x):
    return x.unsqueeze(2) if x.dim() == 3 else x


def window(c, x):
    """Kernel, stride and padding; attorch's numbers."""
    k, s, p = int(c["kernel"]), int(c["stride"]), int(c["padding"])
    s, p = s or k, k // 2 if p < 0 else p
    return ((1, k), (1, s), (0, p)) if x.dim() == 3 else (k, s, p)


def pooled(c, function):
    x = c.leaf("x")
    y = function(image(x))
    y, index = y if isinstance(y, tuple) else (y, None)
    shape = c.tensors["y"]["shape"]
    y = y.reshape(shape)
    out = {"y": y, **gradients(y, c.get("dy"), {"x": x})}
    if index is not None:
        out["indices"] = index.reshape(shape)
    return out


def avg_pool(c):
    k, s, p = window(c, c.get("x"))
    return pooled(c, lambda x: F.avg_pool2d(x, k, s, p, c["ceil"] != 0, c["exclude"] == 0,
                                            int(c["divisor"]) or None))


def max_pool(c):
    flat = c.get("x").dim() == 3
    k, s, p = window(c, c.get("x"))
    d = int(c["dilation"])
    return pooled(c, lambda x: F.max_pool2d(x, k, s, p, (1, d) if flat else d, c["ceil"] != 0,
                                            return_indices=True))


def adaptive_pool(c):
    n = int(c["out"])
    size = (1, n) if c.get("x").dim() == 3 else n
    if c["max"]:
        return pooled(c, lambda x: F.adaptive_max_pool2d(x, size, return_indices=True))
    return pooled(c, lambda x: F.adaptive_avg_pool2d(x, size))


OPS = {"act": act, "dropout": dropout, "linear": linear, "softmax": softmax, "glu": glu,
       "layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm,
       "group_norm": group_norm, "loss": pointwise, "nll_loss": of_labels(F.nll_loss),
       "cross_entropy": of_labels(F.cross_entropy), "avg_pool": avg_pool, "max_pool": max_pool,
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
        text += " %s %.6g %.6g %.6g" % (name, *worst(c.stored(name), want, extra, t["rtol"], t["atol"]))
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
