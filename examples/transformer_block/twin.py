#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""examples/transformer_block in PyTorch: the same sequences, network and training, to compare accuracy and time.

    python3 twin.py [--task sort] [--epochs 4] [--layers 2] [--norm-first] [--seed 1] [--threads 2]

Sequences are the same numbers as those of task.c; initial weights and the order within an epoch come from
PyTorch's own generator. Numbers of blocks beside torch.nn.TransformerEncoderLayer's, one by one, are compared
by examples/tests/test_example_transformer_block.c.
"""
import argparse
import math
import time

import torch

SYMBOLS, LENGTH, HELD_OUT = 10, 10, 1000
WIDTH, HEADS, FEED = 32, 4, 64
SEQUENCES, BATCH, RATE, WARMUP, WEIGHT_DECAY = 12800, 64, 0.003, 100, 0.01
MASK = 2**64 - 1


def mix(state):
    """One number of the stream of examples/common/shuffle.c, and the state behind it."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31), state


def is_held_out(symbols):
    """Whether a sequence is for the test."""
    value = len(symbols)
    for symbol in symbols:
        value, _ = mix(value ^ symbol)
    return value % 8 == 0


def draw(task, seed, held_out, count):
    """Symbols, what is hidden, and answers: [count, LENGTH] each."""
    state, _ = mix(seed + held_out)
    shortest = (LENGTH + 1) // 2
    symbols = torch.full((count, LENGTH), SYMBOLS)
    answers = torch.full((count, LENGTH), -100)
    for row in range(count):
        while True:
            number, state = mix(state)
            sequence = []
            for _ in range(shortest + number % (LENGTH - shortest + 1)):
                number, state = mix(state)
                sequence.append(number % SYMBOLS)
            if is_held_out(sequence) == held_out:
                break
        answer = sorted(sequence) if task == "sort" else sequence[::-1]
        symbols[row, : len(sequence)] = torch.tensor(sequence)
        answers[row, : len(sequence)] = torch.tensor(answer)
    return symbols, symbols == SYMBOLS, answers


class Network(torch.nn.Module):
    """network.c's."""

    def __init__(self, layers, norm_first):
        super().__init__()
        self.embedding = torch.nn.Embedding(SYMBOLS + 1, WIDTH, padding_idx=SYMBOLS)
        self.positions = torch.nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, HEADS, FEED, 0.0, batch_first=True,
                                             norm_first=norm_first) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(WIDTH) if norm_first else torch.nn.Identity()
        self.head = torch.nn.Linear(WIDTH, SYMBOLS)

    def forward(self, symbols, hidden):
        x = self.embedding(symbols) + self.positions
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        return self.head(self.norm(x))


def loss_of(network, symbols, hidden, answers):
    """The loss of a batch, and its logits."""
    y = network(symbols, hidden)
    return torch.nn.functional.cross_entropy(y.reshape(-1, SYMBOLS), answers.reshape(-1)), y


def train(network, optimizer, scheduler, data):
    """One epoch; returns the mean loss of its steps."""
    losses = []
    for rows in torch.randperm(SEQUENCES).split(BATCH):
        loss, _ = loss_of(network, *(part[rows] for part in data))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


def test(network, data):
    """Loss, and the share of positions and of sequences that are right."""
    network.eval()
    with torch.no_grad():
        loss, y = loss_of(network, *data)
    network.train()
    right = (y.argmax(-1) == data[2]) | data[1]
    seen = ~data[1]
    return loss.item(), right[seen].double().mean().item(), right.all(1).double().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=["sort", "reverse"], default="sort")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--norm-first", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    data = draw(options.task, options.seed, False, SEQUENCES)
    held_out = draw(options.task, options.seed, True, HELD_OUT)
    network = Network(options.layers, options.norm_first)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=WEIGHT_DECAY)
    total = options.epochs * math.ceil(SEQUENCES / BATCH)
    warmup = min(WARMUP, total // 2)

    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    print(f"PyTorch {torch.__version__}, {options.threads} threads")
    for epoch in range(1, options.epochs + 1):
        start = time.monotonic()
        loss = train(network, optimizer, scheduler, data)
        seconds = time.monotonic() - start
        test_loss, positions, sequences = test(network, held_out)
        print(f"epoch {epoch}/{options.epochs}  loss {loss:.4f}  test loss {test_loss:.4f}  "
              f"positions right {100 * positions:.2f} %  sequences {100 * sequences:.1f} %  "
              f"{SEQUENCES / seconds:.0f} sequences/s  {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
