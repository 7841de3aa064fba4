#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs the CPU tests under ThreadSanitizer (clang and libomp), after a seeded race was reported.
#
#   scripts/tsan.sh [ctest arguments]   default: tests of the CPU backend, one of each kind

set -euo pipefail
source "$(dirname "$0")/common.sh"

# libomp is not instrumented: its own accesses are to be ignored, and Archer, a part of it, tells
# ThreadSanitizer which accesses OpenMP orders. Tests ask for more memory than there is.
export TSAN_OPTIONS=ignore_noninstrumented_modules=1:allocator_may_return_null=1
OMP_TOOL_LIBRARIES=$(find /usr/lib/llvm* /usr/lib/x86_64-linux-gnu -name libarcher.so -print -quit)
export OMP_TOOL_LIBRARIES
export ATTOCL_THREADS=2
folder=$root/build/tsan

# seeded NAME: compiles scripts/seeded_race.c into $folder/NAME with the flags that follow.
seeded()
{
    local name=$1
    shift
    clang -std=c11 -O2 -g -fopenmp -fsanitize=thread "$@" "$root/scripts/seeded_race.c" \
        -o "$folder/$name"
}

# A race must be found and its absence must not be: else the gate is blind or cries wolf. Without
# Archer the latter shows only in larger programs, so that it runs is asked of itself.
prove_sight()
{
    seeded race -DSEEDED
    seeded no_race
    if "$folder/race" > "$folder/race.log" 2>&1; then
        die "the seeded race was not reported"
    fi
    grep -q 'ThreadSanitizer: data race' "$folder/race.log" || die "$(cat "$folder/race.log")"
    ARCHER_OPTIONS=verbose=1 "$folder/no_race" > "$folder/no_race.log" 2>&1 ||
        die "a loop without a race was reported"
    grep -q '^Archer detected' "$folder/no_race.log" || die "Archer does not run"
    say "the seeded race was reported"
}

need clang clang
[ -n "$OMP_TOOL_LIBRARIES" ] || die "libarcher.so not found. On Debian: apt-get install libomp-dev"
mkdir -p "$folder"
prove_sight
build tsan -DATTO_CPU_LEVELS="$(best_levels)"
if [ $# = 0 ]; then
    # Each way of sharing out work, and what uses devices from several threads: loops over blocks, stages of
    # products, folds, lists. Families that are shared out like others take two thirds of the time; nightly.sh has them.
    export ATTO_TEST_PART=1
    set -- -R '^(act|dropout|linear|matmul|attention|conv|reduce|index_select|optim|optim_life|kernel|tensor|device|training|tape)\.cpu$'
fi
tests tsan "$@"
