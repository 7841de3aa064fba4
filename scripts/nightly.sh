#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# What CI has no time for: all targets, all faults, fuzzers, every f16 and bf16 value, Intel's CPU runtime, wide
# indices and a small device for all families, all OpenCL tests on Oclgrind, ARM and Windows.
#
#   scripts/nightly.sh         all of it, some hours on two cores
#   scripts/nightly.sh NAME    one of: portability pocl disguises asan tsan fuzz exhaustive intel aarch64 wine
#                              oclgrind mutate

set -euo pipefail
source "$(dirname "$0")/common.sh"

portability() { "$root/scripts/portability.sh" --full; }

mutate() { "$root/scripts/mutate.sh"; }

oclgrind() { "$root/scripts/oclgrind.sh" '\.opencl$'; }

# CI runs a part of the cases.
pocl()
(
    build release
    only_pocl
    tests release -R '\.opencl$' -LE 'wide|small'
)

disguises()
(
    build release
    only_pocl
    tests release -L 'wide|small'
)

asan() { "$root/scripts/asan.sh" -L small && "$root/scripts/asan.sh" -R '\.cpu$|^tool\.bench$'; }

tsan() { "$root/scripts/tsan.sh" -R '\.cpu$'; }

fuzz() { "$root/scripts/fuzz.sh" all 60 && "$root/scripts/fuzz.sh" ops 600; }

# Without ctest and its time limit: all floats take longer.
exhaustive()
{
    build release
    ATTO_TEST_EXHAUSTIVE=1 "$root/build/release/tests/test_math"
}

# Intel's OpenCL for CPUs comes as a Python package; its compiler is unlike PoCL's, and it has
# sub-groups.
intel()
{
    local folder=$root/build/intel library
    need python3 python3-venv
    [ -x "$folder/venv/bin/pip" ] || python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q intel-opencl-rt intel-cmplr-lib-rt
    library=$(find "$folder/venv" -name libintelocl.so -print -quit)
    [ -n "$library" ] || die "no libintelocl.so in the package intel-opencl-rt"
    mkdir -p "$folder/vendors"
    printf '%s\n' "$library" > "$folder/vendors/intel.icd"
    build release
    export OCL_ICD_VENDORS=$folder/vendors
    "$root/build/release/attocl" info | tee "$folder/info"
    grep -q 'opencl, Intel' "$folder/info" || die "the device is not Intel's"
    tests release -R '\.opencl'
    unset OCL_ICD_VENDORS
}

# Machines that we do not have.
aarch64() { "$root/scripts/aarch64.sh"; }

wine() { "$root/scripts/wine.sh"; }

all=(portability pocl disguises asan tsan fuzz exhaustive intel aarch64 wine oclgrind mutate)
parts=("${all[@]}")
if [ "${1:-}" = --help ]; then
    usage
    exit
elif [ $# -gt 0 ]; then
    parts=("$@")
fi
for part in "${parts[@]}"; do
    [[ " ${all[*]} " == *" $part "* ]] || die "unknown part $part"
done
for part in "${parts[@]}"; do
    say "$part"
    "$part"
done
say "all passed: ${parts[*]}"
