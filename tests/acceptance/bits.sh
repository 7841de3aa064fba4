#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The same bits in every run and process, with any number of threads, with cold and with warm kernel caches.
#
#   tests/acceptance/bits.sh PROGRAM cpu-base|cpu|opencl
#
# PROGRAM is build/release/tests/acceptance, which runs each case twice. On OpenCL, where the first process builds all
# kernels, that is a case of each family.

set -euo pipefail
program=$1
device=$2
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# One of each family, from its line's beginning to where it is the only one.
cases=(
    'act f32 300x1000 act=gelu dropout=0.5'
    'linear f32 300x1000 out=96 bias=1 act=identity'
    'matmul f32 300x1000 out=96 shared=0 turned=0'
    'attention f32 8x96x200 causal=none mask=none shared=0 dropout=0 keys=same'
    'mha f32 8x96x200 inputs=self heads=2 bias=1 causal=0'
    'softmax f32 300x1000 kind=softmax dim=last'
    'glu f32 300x1000 act=silu dim=last'
    'layer_norm f32 300x1000 eps=1e-05 weight=1 bias=1'
    'rms_norm f32 300x1000 eps=1e-05 weight=1'
    'batch_norm f32 4x16x30x28 eps=1e-05 momentum=0.1 weight=1 bias=1 track=1 residual=0 training=1 act=identity'
    'group_norm f32 4x16x30x28 eps=1e-05 groups=2 weight=1 bias=1'
    'loss f32 300x1000 kind=mse reduction=mean weight=0 pos_weight=0'
    'nll_loss f32 300x1000 reduction=mean weight=0 ignore=0'
    'cross_entropy f32 300x1000 reduction=mean weight=0 ignore=0 smoothing=0 probabilities=0'
    'conv f32 4x16x30x28 out=16 kernel=3 stride=1 padding=0 groups=1 bias=0 as=plain'
    'conv_transposed f32 4x16x30x28 out=16 kernel=3 stride=1 padding=0 groups=1 bias=0 output_padding=0 as=plain'
    'avg_pool f32 4x16x30x28 kernel=3 stride=2 padding=1 ceil=0 exclude=0 divisor=0'
    'max_pool f32 4x16x30x28 kernel=2 stride=0 padding=0 ceil=0 dilation=1'
    'adaptive_pool f32 4x16x30x28 out=1 max=0'
    'index_select f32 300x1000 dim=first padding=0'
    'gather f32 300x1000 dim=first'
    'rope f32 4x16x30x28 pairing=halves turned=all position=shared'
    'lstm_cell f32 300x1000 given=both'
    'gru_cell f32 300x1000'
    'pad f32 4x16x30x28 mode=reflect amount=3'
    'resize f32 4x16x30x28 mode=linear to=scaled'
    'reduce f32 300x1000 kind=sum dim=first'
    'binary f32 300x1000 kind=div'
)

# run CACHE [ARGUMENT]...: lines of bits; drivers' own caches lie in the folder too.
run()
{
    local cache=$folder/$1
    shift
    mkdir -p "$cache"
    if ! ATTOCL_CACHE_DIR=$cache POCL_CACHE_DIR=$cache CUDA_CACHE_PATH=$cache \
        "$program" --bits --device "$device" "$@" > "$folder/all"; then
        grep '^FAILED' "$folder/all" || { echo "$device: the program ends with" && tail -n 3 "$folder/all"; }
        exit 1
    fi
    grep -E '^([0-9a-f]{16} |bits )' "$folder/all" > "$folder/now" || true
}

# same WHAT CASES: the run before has had so many cases, and the bits of the first.
same()
{
    local what=$1 count
    count=$(grep -cE '^[0-9a-f]{16} ' "$folder/now") || true
    [ "$count" -ge "$2" ] || { echo "$device: $count cases, expected $2" && exit 1; }
    printf '%s  %s\n' "$(sed -n '/^bits/p' "$folder/now")" "$what, $count cases"
    [ -f "$folder/first" ] || cp "$folder/now" "$folder/first"
    diff "$folder/first" "$folder/now" || { echo "$device: other bits: $what" && exit 1; }
}

if [ "$device" = opencl ]; then
    "$program" --bits --device opencl --filter 'no such case' > /dev/null 2> "$folder/problem" || true
    if [ -s "$folder/problem" ]; then cat "$folder/problem" && exit 77; fi
    filter=$(printf '|%s' "${cases[@]}")
    for cache in cold warm; do
        run kernels --filter "${filter:1}"
        same $cache ${#cases[@]}
    done
    exit
fi
for threads in 1 2 7; do
    ATTOCL_THREADS=$threads run cache --filter ' f32 ' --every 61
    same "$threads threads" 50
done
