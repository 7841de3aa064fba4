#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The same bits in every process, with any number of threads, with cold and with warm kernel caches.
#
#   tests/acceptance/bits.sh PROGRAM cpu-base|cpu|opencl
#
# PROGRAM is build/release/tests/acceptance. On OpenCL, where every process of a cold cache builds its kernels,
# one case for each of three families runs.

set -euo pipefail
program=$1
device=$2
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# run CACHE [ARGUMENT]...: one line of bits; drivers' own caches lie in the folder too.
run()
{
    local cache=$folder/$1
    shift
    mkdir -p "$cache"
    ATTOCL_CACHE_DIR=$cache POCL_CACHE_DIR=$cache CUDA_CACHE_PATH=$cache "$program" --bits --device "$device" "$@" |
        sed -n '/^bits/p; / [1-9][0-9]* failed, /p; /^0 cases/p'
}

first=
same()
{
    local bits=$1 what=$2
    printf '%s  %s\n' "$bits" "$what"
    [ "${first:=$bits}" = "$bits" ] || { echo "$device: other bits: $what" && exit 1; }
    [[ $bits =~ ^bits\ [0-9a-f]{16}$ ]] || { echo "$device: no bits" && exit 1; }
}

if [ "$device" = opencl ]; then
    "$program" --bits --device opencl --filter 'no such case' > /dev/null 2> "$folder/problem" || true
    if [ -s "$folder/problem" ]; then cat "$folder/problem" && exit 77; fi
    for case in 'softmax f32 300x1000 kind=softmax dim=last' 'layer_norm f32 300x1000 eps=1e-05 weight=1 bias=1' \
        'cross_entropy f32 300x1000 reduction=mean weight=0 ignore=0 smoothing=0 probabilities=0'; do
        first=
        same "$(run cold --filter "$case")" "$case, cold"
        same "$(run cold --filter "$case")" "$case, warm"
    done
    exit
fi
for threads in 1 2 7; do
    same "$(ATTOCL_THREADS=$threads run cache --filter ' f32 ' --every 61)" "$threads threads"
done
