#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Trains the MNIST example on every device of this machine and prints a table.
#
#   scripts/demo.sh                 installs what is missing, builds, trains on each device
#   scripts/demo.sh --epochs N      another number of epochs (default 5)
#   scripts/demo.sh --no-install    fails where something is missing, instead of installing it
#
# Devices are those of `attocl info`: OpenCL devices and the CPU backend. What is missing comes from
# Debian's or Ubuntu's packages, as root or through sudo; PoCL, an OpenCL for CPUs, is among it where
# the machine has no OpenCL driver. Figures and curves go to build/demo/results. Exit status 0
# when every usable device reached a test accuracy of 0.95.

set -euo pipefail
source "$(dirname "$0")/common.sh"
export LC_ALL=C # points in figures

tree=$root/build/demo
out=$tree/results
accuracy_wanted=0.95
epochs=5
install=yes
while [ $# -gt 0 ]; do
    case $1 in
        --help)
            usage
            exit
            ;;
        --no-install) install=no ;;
        --epochs)
            [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || die "--epochs is '${2:-}', expected 1 or more"
            epochs=$2
            shift
            ;;
        *) die "unknown argument $1; try --help" ;;
    esac
    shift
done

# ---- what must be there ----

has_driver()
{
    compgen -G "${OCL_ICD_VENDORS:-/etc/OpenCL/vendors}/*.icd" > /dev/null ||
        [ -f "${OCL_ICD_VENDORS:-}" ]
}

has_loader() { python3 -c "import ctypes; ctypes.CDLL('libOpenCL.so.1')" 2> /dev/null; }

# Prints what is not there, by the name of its package.
missing()
{
    command -v cc > /dev/null || echo gcc
    command -v cmake > /dev/null || echo cmake
    command -v ninja > /dev/null || command -v make > /dev/null || echo ninja-build
    command -v python3 > /dev/null || echo python3
    has_header CL/cl.h || echo opencl-c-headers
    has_header zlib.h || echo zlib1g-dev
    has_loader || echo ocl-icd-libopencl1
    has_driver || echo pocl-opencl-icd
}

prepare()
{
    local wanted
    wanted=$(missing | paste -s -d ' ')
    [ -n "$wanted" ] || return 0
    [ $install = yes ] || die "missing: $wanted (names of Debian's packages)"
    "$root/scripts/install-packages.sh" --demo
    wanted=$(missing | paste -s -d ' ')
    [ -z "$wanted" ] || die "still missing after the installation: $wanted"
}

build_demo()
{
    local -a generator=()
    if [ ! -f "$tree/CMakeCache.txt" ] && command -v ninja > /dev/null; then generator=(-G Ninja); fi
    quiet cmake -S "$root" -B "$tree" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release \
        -DATTO_BUILD_TESTS=OFF
    quiet cmake --build "$tree" -j "$jobs"
}

# ---- devices ----

# A line for each device: index, backend, name, why it cannot be used; separated by tabs.
devices()
{
    "$tree/attocl" info --json | python3 -c '
import json, sys
for d in json.load(sys.stdin)["devices"]:
    fields = d["index"], d["backend"], d["name"] or "?", d["problem"] or ""
    print("\t".join(" ".join(str(f).split()) for f in fields))'
}

rows=()
failed=0

row() { rows+=("$(printf '%-40.40s %-7s %9s %9s %9s  %s' "$@")"); }

# figures CSV: seconds per epoch, last training loss, last test accuracy.
figures()
{
    awk -F , 'NR > 1 { seconds += $5; loss = $2; accuracy = $4; n++ }
              END { if (!n) exit 1; printf "%.3f %.4f %.4f\n", seconds / n, loss, accuracy }' "$1"
}

# at_least VALUE BOUND: false for what is no number, nan among it.
at_least() { [[ $1 =~ ^[0-9.]+$ ]] && awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 >= b + 0) }'; }

# train INDEX BACKEND NAME: trains there and adds a row.
train()
{
    local csv=$out/device$1.csv seconds loss accuracy result=ok
    rm -f "$csv"
    "$tree/examples/mnist" --device "$1" --epochs "$epochs" --csv "$csv" \
        --plot "$out/device$1.svg" || result="FAILED"
    if ! read -r seconds loss accuracy < <(figures "$csv" 2> /dev/null); then
        seconds=- loss=- accuracy=-
        result=FAILED
    elif [ $result = ok ] && ! at_least "$accuracy" "$accuracy_wanted"; then
        result="FAILED (accuracy below $accuracy_wanted)"
    fi
    [ "$result" = ok ] || failed=1
    row "$3" "$2" "$seconds" "$loss" "$accuracy" "$result"
}

prepare
say "building"
build_demo
mkdir -p "$out"
devices > "$out/devices.tsv"
while IFS=$'\t' read -r index backend name problem <&3; do
    say "device $index: $name ($backend)"
    if [ -n "$problem" ]; then
        row "$name" "$backend" - - - "not usable: $problem"
    else
        train "$index" "$backend" "$name"
    fi
done 3< "$out/devices.tsv"

printf '\n%-40s %-7s %9s %9s %9s\n' device backend s/epoch loss accuracy
printf '%s\n' "${rows[@]}"
say "curves and figures are in $out"
exit $failed
