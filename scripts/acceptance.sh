#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The acceptance grid: every op with every combination of its options, forward and backward.
#
#   scripts/acceptance.sh --quick         small shapes beside the oracle in double precision: the CPU backend at its
#                                         base and best level, and OpenCL; two minutes, needs no PyTorch
#   scripts/acceptance.sh [--device NAME] [--python PATH]
#                                         the shapes of attorch's tests beside PyTorch in f64, on one device (auto);
#                                         hours: 100,000 cases of up to 25 million elements
#   scripts/acceptance.sh ... --filter TEXT   only cases whose line (op dtype shape options) contains TEXT; A|B: either
#   scripts/acceptance.sh ... --every N       every N-th case: a sample
#
# Writes build/acceptance.json, one entry for each case. The last line says how many there were; exit status 1
# when one failed. PATH is a Python that has PyTorch, with CUDA where the device is a GPU (default: python3).

set -euo pipefail
source "$(dirname "$0")/common.sh"

if [ "${1:-}" = --help ]; then
    usage
    exit
fi
mode=(--reference "$root/scripts/acceptance.py")
for argument in "$@"; do
    if [ "$argument" = --quick ]; then mode=(); fi
done
quiet configure release
quiet cmake --build "$root/build/release" -j "$jobs" --target acceptance
"$root/build/release/tests/acceptance" --json "$root/build/acceptance.json" "${mode[@]}" "$@"
