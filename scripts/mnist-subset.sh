#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes examples/data/mnist from the four official files of MNIST: the test set as it is, and the
# first 10,000 training images and labels, so that the repository stays small.
#
#   scripts/mnist-subset.sh FOLDER [OUT]   FOLDER has the official .gz files
#
# An IDX file is a big-endian header (magic, count; images also rows, columns) and then bytes, so a
# cut is the same file with another count and fewer bytes. gzip -9 -n keeps neither name nor time:
# the same gzip writes the same bytes again.

set -euo pipefail
source "$(dirname "$0")/common.sh"

# cut_idx FILE BYTES: magic, the count 10000 (0x2710), then BYTES of what follows the old count.
cut_idx()
{
    set +o pipefail # head ends gzip early
    gzip -dc "$1" | head -c 4
    printf '\0\0\x27\x10'
    gzip -dc "$1" | tail -c +9 | head -c "$2"
}

case ${1:-} in
    --help)
        usage
        exit
        ;;
    '') die "which folder has the official files? Try --help" ;;
esac
from=$1
out=${2:-$root/examples/data/mnist}
for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
    [ -f "$from/$name-ubyte.gz" ] || die "$from has no $name-ubyte.gz"
done

mkdir -p "$out"
cp "$from"/t10k-{images-idx3,labels-idx1}-ubyte.gz "$out/"
cut_idx "$from/train-images-idx3-ubyte.gz" $((8 + 10000 * 28 * 28)) |
    gzip -9 -n > "$out/train10k-images-idx3-ubyte.gz"
cut_idx "$from/train-labels-idx1-ubyte.gz" 10000 | gzip -9 -n > "$out/train10k-labels-idx1-ubyte.gz"
chmod u=rw,go=r "$out"/*.gz
(cd "$out" && sha256sum -- *.gz)
