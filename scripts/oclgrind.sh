#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs tests of the OpenCL backend on Oclgrind, a simulator that sees bad accesses and data races.
#
#   scripts/oclgrind.sh          some tests that together reach every kernel and walk
#   scripts/oclgrind.sh REGEX    the tests with such names, as in ctest -R, whole
#
# Oclgrind reports to a log and lets the program go on, so the gate is: an empty log. Before that, a
# bad read and a race, seeded into copies of the kernels, must both fill the log.

set -euo pipefail
source "$(dirname "$0")/common.sh"

folder=$root/build/oclgrind
built=$root/build/release

# NAME is a test of ctest, NAME:TEST one of its own; the longest come first.
items=(
    reduce.opencl:reduce_takes_any_shape_and_layout
    cross_entropy.opencl:cross_entropy_takes_f16_and_bf16
    act.opencl:act_forward_and_backward_work_in_place
    tensor.opencl:tensor_copy_takes_any_layouts
    linear.opencl:linear_takes_every_dtype_with_everything_fused
    golden_act.opencl
    tensor.opencl:tensor_fill_converts_and_keeps_to_the_view
    act.opencl:act_with_dropout_matches_oracle
    tensor.opencl:tensor_copy_takes_any_size
    dropout.opencl:dropout_backward_accumulates
    act.opencl:act_backward_accumulates
    linear.opencl:linear_reads_nothing_outside_its_views
    reduce.opencl:reduce_finds_the_first_of_many
    elementwise.opencl:unary_takes_any_layout
    elementwise.opencl:where_selects_and_routes_gradients
    elementwise.opencl:cast_converts_and_casts_gradients_back
    linear.opencl:linear_takes_overlapping_inputs
    reduce.opencl:reduce_sums_f16_in_f32
    softmax.opencl:softmax_takes_another_alignment
    softmax.opencl:softmax_over_any_dimension_matches_oracle
    glu.opencl:glu_takes_any_layout
    matmul.opencl:matmul_packs_what_has_no_unit_stride
    matmul.opencl:matmul_reads_nothing_outside_its_views
    attention.opencl:attention_reads_nothing_outside_its_views
    kernel.opencl
    pool.opencl:pool_takes_any_layout
    pool.opencl:pool_of_large_windows_matches_oracle
    optim.opencl:optim_clips_what_is_unscaled
    optim_life.opencl:optim_packs_into_chunks
    loss.opencl:loss_broadcasts
    loss.opencl:bce_with_logits_takes_weights
    nll_loss.opencl:nll_loss_takes_f16_and_bf16
    index_select.opencl:index_select_takes_any_layout
    gather.opencl:gather_takes_any_layout
    gather.opencl:gather_adds_in_order
    rope.opencl:rope_takes_any_layout
    rnn.opencl:rnn_takes_any_layout
    conv.opencl:conv_transposed_limits_its_outputs
    conv.opencl:conv_makes_the_gradients_that_are_wanted
    conv.opencl:conv_on_small_work_groups_is_right
    pad.opencl:pad_counts_every_element_once
    resize.opencl:resize_takes_any_layout
    layer_norm.opencl:layer_norm_of_trailing_dimensions
    layer_norm.opencl:layer_norm_backward_takes_another_alignment
    batch_norm.opencl:batch_norm_takes_f16_and_bf16
    group_norm.opencl:group_norm_takes_f16_and_bf16
    group_norm.opencl:group_norm_packs_what_lies_otherwise
    instance_norm.opencl:norms_keep_channels_last_without_copies
)

# An ICD entry for Oclgrind alone, so that no other OpenCL can answer.
select_oclgrind()
{
    local library
    library=$(find /usr/lib /usr/local/lib -name liboclgrind-rt-icd.so -print -quit)
    [ -n "$library" ] || die "liboclgrind-rt-icd.so not found. On Debian: apt-get install oclgrind"
    mkdir -p "$folder/vendors"
    printf '%s\n' "$library" > "$folder/vendors/oclgrind.icd"
    export OCL_ICD_VENDORS=$folder/vendors OCLGRIND_DATA_RACES=1 ATTOCL_CACHE=0
    "$built/attocl" info > "$folder/info"
    grep -qE '^ *backend +opencl, Oclgrind$' "$folder/info" || die "$(cat "$folder/info")"
}

# must_report NAME SED TEXT: with that change to atto_kernel.h, the log soon holds TEXT.
must_report()
{
    local name=$1 change=$2 text=$3 seeded=$folder/seeded-$1 log=$folder/$1.log pid try
    mkdir -p "$seeded"
    cp "$root"/src/cl/*.cl "$root"/src/cl/*.h "$seeded"
    sed -i "$change" "$seeded/atto_kernel.h"
    if cmp -s "$root/src/cl/atto_kernel.h" "$seeded/atto_kernel.h"; then
        die "$name: the line to change is gone from atto_kernel.h"
    fi
    : > "$log"
    ATTOCL_KERNEL_DIR=$seeded OCLGRIND_LOG=$log \
        "$built/attocl" selftest --device Oclgrind > /dev/null 2>&1 &
    pid=$!
    for try in $(seq 300); do
        if grep -q "$text" "$log" || ! kill -0 $pid 2> /dev/null; then break; fi
        sleep 0.2
    done
    kill $pid 2> /dev/null || true
    wait $pid || true
    grep -q "$text" "$log" || die "$name: the seeded fault was not reported (try $try)"
    say "seeded fault reported: $name"
}

# one NAME[:TEST]: with a log of its own, since each process starts its log anew. 255 stops xargs.
one()
{
    local name=${1%%:*} log=$folder/$1.log output=$folder/$1.txt start=$SECONDS
    local filter=${1#"$name"}
    if ! OCLGRIND_LOG=$log ATTO_TEST_FILTER=${filter#:} \
        ctest --test-dir "$built" --no-tests=error -V -R "^${name//./\\.}\$" > "$output" 2>&1 ||
        ! grep -q '\[       OK \]' "$output"; then
        tail -n 60 "$output"
        echo "$1 failed, was skipped, or does not exist"
        exit 255
    fi
    if [ -s "$log" ]; then
        head -n 40 "$log"
        exit 255
    fi
    printf '%s: passed, nothing reported, %d s\n' "$1" $((SECONDS - start))
}

case ${1:-} in
    --one)
        one "$2"
        exit
        ;;
    --help)
        usage
        exit
        ;;
esac

mkdir -p "$folder"
build release
select_oclgrind
must_report bad-read 's/return atto_widen(p\[at\]);/return atto_widen(p[at + 4096]);/' \
    'Invalid read'
must_report race 's/p\[at\] = atto_narrow(value);/p[0] = atto_narrow(value);/' 'data race'
if [ $# = 0 ]; then
    export ATTO_TEST_PART=1 # of the cases; nightly.sh has all
else
    # Whole networks would take hours, of kernels that other tests reach.
    mapfile -t items < <(ctest --test-dir "$built" -N -R "$1" -E '^pretrained\.' |
        sed -n 's/^ *Test *#[0-9]*: //p')
    [ ${#items[@]} -gt 0 ] || die "no test is named like $1"
fi
printf '%s\n' "${items[@]}" | xargs -P "$jobs" -n 1 "$0" --one ||
    die "the run above failed, or Oclgrind reported something"
