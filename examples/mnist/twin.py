#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The first steps of examples/mnist in PyTorch, in float64: what attocl's losses are compared with.

    python3 twin.py [--data examples/data/mnist] [--steps 20] > twin.txt

The same network (784-512-256-10, ReLU, no dropout), the same initial weights (drawn like
atto_linear_create with atto_seed(dev, 1)), the same batches of 64 in the order of the file, plain SGD
with learning rate 0.1. Prints the PyTorch version and one loss per line.
"""
import argparse
import gzip
import os
import struct

import numpy as np
import torch

SIZES = [784, 512, 256, 10]
SEED, BATCH, RATE = 1, 64, 0.1
WANTED_TORCH = "2.11"


def philox(counters, seed):
    """Philox4x32-10 (Salmon et al. 2011): four words for each 64-bit counter."""
    mask = np.uint64(0xFFFFFFFF)
    c = [counters & mask, counters >> np.uint64(32), np.zeros_like(counters), np.zeros_like(counters)]
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c[0]
        p1 = np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ k[0], p1 & mask, (p0 >> np.uint64(32)) ^ c[3] ^ k[1], p0 & mask]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return np.stack(c, axis=1).reshape(-1)


class Stream:
    """A device's stream of initial values."""

    def __init__(self, seed):
        self.seed, self.offset = seed, 0

    def uniform(self, shape, bound):
        n = int(np.prod(shape))
        counters = np.arange(self.offset, self.offset + (n + 3) // 4, dtype=np.uint64)
        self.offset += len(counters)
        words = philox(counters, self.seed)[:n] >> np.uint64(8)
        unit = words.astype(np.float64) / 16777216.0
        return ((2.0 * unit - 1.0) * bound).astype(np.float32).reshape(shape)


def network():
    stream, layers = Stream(SEED), []
    for i, o in zip(SIZES, SIZES[1:]):
        layer = torch.nn.Linear(i, o, dtype=torch.float64)
        bound = 1.0 / np.sqrt(i)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(stream.uniform((o, i), bound)))
            layer.bias.copy_(torch.from_numpy(stream.uniform((o,), bound)))
        layers += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def read_idx(path, header):
    with gzip.open(path, "rb") as file:
        data = file.read()
    shape = struct.unpack(f">{header}I", data[4 : 4 + 4 * header])
    return np.frombuffer(data, np.uint8, offset=4 + 4 * header).reshape(shape)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.path.join(os.path.dirname(__file__), "../data/mnist"))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if not torch.__version__.startswith(WANTED_TORCH):
        print(f"# warning: made with PyTorch {torch.__version__}, wanted {WANTED_TORCH}")
    images = read_idx(os.path.join(options.data, "train10k-images-idx3-ubyte.gz"), 3).reshape(-1, 784)
    labels = read_idx(os.path.join(options.data, "train10k-labels-idx1-ubyte.gz"), 1)
    pixels = (images.astype(np.float32) / np.float32(255.0) - np.float32(0.1307)) / np.float32(0.3081)
    x = torch.from_numpy(pixels.astype(np.float64))
    t = torch.from_numpy(labels.astype(np.int64))
    net = network()
    sgd = torch.optim.SGD(net.parameters(), lr=RATE)
    print(f"torch {torch.__version__}")
    for step in range(options.steps):
        rows = slice(BATCH * step, BATCH * (step + 1))
        loss = torch.nn.functional.cross_entropy(net(x[rows]), t[rows])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        print(repr(loss.item()))


if __name__ == "__main__":
    main()
