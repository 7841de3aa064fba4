#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the fuzzers of tests/fuzz with AddressSanitizer and UndefinedBehaviorSanitizer: inputs made up by
# libFuzzer, from those in tests/fuzz/corpus on. What they found stays in build/fuzz/corpus, where the next
# run goes on; an input that breaks something, in build/fuzz/findings.
#
#   scripts/fuzz.sh                     all of them, a minute each
#   scripts/fuzz.sh TARGET [SECONDS]    one of: options select tune_file cache ops; or all
#   build/fuzz/tests/fuzz/fuzz_TARGET FILE    a finding again

set -euo pipefail
source "$(dirname "$0")/common.sh"

all=(options select tune_file cache ops)
folder=$root/build/fuzz
seconds=${2:-60}

case ${1:-all} in
    all) targets=("${all[@]}") ;;
    --help)
        usage
        exit
        ;;
    *)
        [[ " ${all[*]} " == *" $1 "* ]] || die "unknown target $1; try --help"
        targets=("$1")
        ;;
esac

export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
# Files of tune_file and cache, which a disk would make a hundred times slower.
[ ! -w /dev/shm ] || export TMPDIR=/dev/shm

# What libFuzzer's log says of a number: of its statistics, or of its last line that has it.
statistic() { sed -n "s/^stat::$1: *//p" "$2"; }
last() { sed -n "s/^#.* $1: \([0-9]*\).*/\1/p" "$2" | tail -n 1; }

# fuzz TARGET: for so many seconds, and what came of it.
fuzz()
{
    local target=$1 log=$folder/fuzz_$1.log found=$folder/findings status=0
    local corpus=$folder/corpus/$target
    mkdir -p "$corpus" "$found"
    "$folder/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=20 \
        -max_len=2000 -print_final_stats=1 -artifact_prefix="$found/$target-" \
        "$corpus" "$root/tests/fuzz/corpus/$target" > "$log" 2>&1 || status=$?
    if [ $status != 0 ]; then
        sed '/^#[0-9]/d; /NEW_FUNC/d' "$log" | sed -n 1,60p >&2
        die "$target: $(sed -n 's/.*Test unit written to //p' "$log"); $log has all"
    fi
    say "$target: nothing found in $(statistic number_of_executed_units "$log") runs," \
        "$(statistic average_exec_per_sec "$log") a second; cov $(last cov "$log"), ft $(last ft "$log")"
}

need clang clang
[[ $seconds =~ ^[0-9]+$ ]] || die "$seconds are no seconds"
configure fuzz -DATTO_CPU_LEVELS="$(best_levels)"
cmake --build "$folder" -j "$jobs" --target fuzzers
for target in "${targets[@]}"; do
    fuzz "$target"
done
