#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds, tests and measures attocl on a Linux machine with an NVIDIA GPU, in less than 8 minutes.
#
#   scripts/h200.sh [FOLDER]   JSON, logs and the summary go to FOLDER (default build/h200)
#   scripts/h200.sh --setup    first writes /etc/OpenCL/vendors/nvidia.icd if it is missing (as root)
#
# Needs gcc or clang, cmake, make or ninja, python3, the OpenCL headers, libOpenCL.so.1 and NVIDIA's
# driver; no network. Without cmocka the tests are not built, and the summary says SKIP; without zlib
# the examples are not built. Every step runs, also after a failure. Exit status 0 when no step failed.

set -euo pipefail
source "$(dirname "$0")/common.sh"

icd=/etc/OpenCL/vendors/nvidia.icd
driver=libnvidia-opencl.so.1
tree=$root/build/gpu

out=$root/build/h200
setup=no
for argument in "$@"; do
    case $argument in
        --help)
            usage
            exit
            ;;
        --setup) setup=yes ;;
        -*) die "unknown argument $argument; try --help" ;;
        *) out=$argument ;;
    esac
done

loadable() { python3 -c "import ctypes; ctypes.CDLL('$1')" 2> /dev/null; }

check_machine()
{
    need cc gcc
    need cmake cmake
    need python3 python3
    command -v ninja > /dev/null || need make make
    has_header CL/cl.h || die "CL/cl.h not found. On Debian: apt-get install opencl-c-headers"
    loadable libOpenCL.so.1 || die "libOpenCL.so.1 not found. On Debian: apt-get install ocl-icd-libopencl1"
    loadable "$driver" || die "$driver not found: NVIDIA's driver with its OpenCL part is not installed"
    [ -e "$icd" ] || register_driver
}

register_driver()
{
    if [ "$setup" = yes ] && [ "$(id -u)" = 0 ]; then
        mkdir -p "$(dirname "$icd")"
        printf '%s\n' "$driver" > "$icd"
        say "wrote $icd"
        return
    fi
    die "$icd is missing, so no OpenCL program finds the GPU. As root:
    mkdir -p $(dirname "$icd") && echo $driver > $icd
or run scripts/h200.sh --setup as root"
}

budget=480 # seconds
names=()
results=()
seconds=()
failed=0

# record NAME RESULT SECONDS: a line of the summary.
record()
{
    names+=("$1")
    results+=("$2")
    seconds+=("$3")
    if [ "$2" = FAIL ]; then failed=1; fi
}

# step NAME LIMIT COMMAND...: runs it for at most LIMIT seconds and not beyond the budget of the
# whole script; its output goes to NAME.log too.
step()
{
    local name=$1 limit=$2 start=$SECONDS result=ok
    shift 2
    say "$name"
    if ((limit > budget - SECONDS)); then limit=$((budget - SECONDS)); fi
    if ((limit <= 0)); then
        say "no time left of $budget seconds"
        record "$name" FAIL 0
        return
    fi
    timeout "$limit" "$@" 2>&1 | tee "$out/$name.log" || result=FAIL
    record "$name" "$result" $((SECONDS - start))
}

summary()
{
    local i
    printf '\n%-16s %-6s %8s\n' step result seconds
    for i in "${!names[@]}"; do
        printf '%-16s %-6s %8d\n' "${names[i]}" "${results[i]}" "${seconds[i]}"
    done
    printf '%-16s %-6s %8d\n' total "$([ $failed = 0 ] && echo ok || echo FAIL)" $SECONDS
}

# The first OpenCL device must be NVIDIA's, or every figure below would be about another one.
# shellcheck disable=SC2317 # called through bash -c
check_device()
{
    "$attocl" info --json > "$out/info.json"
    python3 - "$out/info.json" << 'PYTHON'
import json, sys
devices = [d for d in json.load(open(sys.argv[1]))["devices"] if d["backend"] == "opencl"]
if not devices:
    sys.exit("no OpenCL device")
first = devices[0]
print(first["name"], "driver", first["driver"])
if first["problem"] or "NVIDIA" not in first["name"] + first["vendor"]:
    sys.exit("the first OpenCL device cannot be used or is not NVIDIA's: " + str(first["problem"]))
PYTHON
}

check_machine
mkdir -p "$out"
out=$(cd "$out" && pwd)
attocl=$tree/attocl
export attocl out
export -f check_device

with_tests=ON
has_header cmocka.h || with_tests=OFF
with_examples=ON
has_header zlib.h || with_examples=OFF

generator=()
if [ ! -f "$tree/CMakeCache.txt" ] && command -v ninja > /dev/null; then generator=(-G Ninja); fi
step configure 60 cmake -S "$root" -B "$tree" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
    -DATTO_BUILD_TESTS=$with_tests -DATTO_BUILD_EXAMPLES=$with_examples
step build 180 cmake --build "$tree" -j "$jobs"
if [ $failed = 1 ]; then
    summary
    exit 1
fi

step info 30 "$attocl" info
step device 30 bash -c check_device
if [ $with_tests = ON ]; then
    tests=(ctest --test-dir "$tree" --output-on-failure --no-tests=error)
    step tests-gpu 150 "${tests[@]}" -j 4 -L opencl
    step tests-cpu 90 "${tests[@]}" -j "$jobs" -L 'cpu|host|tool|examples'
else
    say "SKIP: cmocka.h not found, the tests were not built"
    record tests-gpu SKIP 0
    record tests-cpu SKIP 0
fi
step selftest 120 "$attocl" selftest --device opencl --json "$out/selftest.json"
step huge 60 "$attocl" selftest --device opencl --huge
step bench 120 "$attocl" bench --device opencl --json "$out/bench.json"
step cpu-math 30 "$attocl" bench --cpu-math --json "$out/cpu-math.json"
step first-call 60 "$attocl" bench --device opencl --first-call --json "$out/first-call.json"

summary | tee "$out/summary.txt"
exit $failed
