#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Cross-builds library, tests and command for 64-bit ARM and runs tests of the CPU backend on qemu.
#
#   scripts/aarch64.sh          a part of the cases of every family, and of what is below and above
#   scripts/aarch64.sh REGEX    the tests with such names, as in ctest -R, whole
#
# The CPU backend has one level there, so NAME.cpu and NAME.cpu-base are the same. cmocka comes from
# Debian's packages for arm64, which are unpacked, not installed.

set -euo pipefail
source "$(dirname "$0")/common.sh"

if [ "${1:-}" = --help ]; then
    usage
    exit
fi
need aarch64-linux-gnu-gcc 'gcc-aarch64-linux-gnu libc6-dev-arm64-cross'
need qemu-aarch64 qemu-user
need ninja ninja-build
has_header CL/cl.h || die 'CL/cl.h not found. On Debian: apt-get install opencl-c-headers'
folder=$root/build/aarch64
packages=$folder/packages
library=$packages/usr/lib/aarch64-linux-gnu/libcmocka.so

# Some minutes of one core. What is left out takes long, or is worked out like something here.
families='act|linear|matmul|conv|softmax|reduce|attention|pool|rnn|rope|gather'
part="^($families|tensor|kernel|run|training)\\.cpu\$|^(layout|options|select)\$"

if [ ! -f "$library" ]; then
    arm=(-o APT::Architecture=arm64 -o APT::Architectures=arm64)
    apt_aside "$packages" "${arm[@]}" update
    apt_aside "$packages" "${arm[@]}" download libcmocka0 libcmocka-dev
    for package in "$packages"/*.deb; do dpkg -x "$package" "$packages"; done
fi
# The folder CL alone: /usr/include itself would bring headers of another machine.
mkdir -p "$folder/include"
cp -RL /usr/include/CL "$folder/include/"
cmake -S "$root" -B "$folder" -G Ninja --toolchain "$root/scripts/aarch64.cmake" \
    -DATTO_WERROR=ON -DCMAKE_BUILD_TYPE=Release -DATTO_BUILD_EXAMPLES=OFF \
    -DATTO_OPENCL_INCLUDE_DIR="$folder/include" \
    -DATTO_CMOCKA_INCLUDE_DIR="$packages/usr/include" -DATTO_CMOCKA_LIBRARY="$library"
cmake --build "$folder" -j "$jobs"

aarch64-linux-gnu-readelf -h "$folder/tests/test_act" | grep -q AArch64 ||
    die "the tests are not built for AArch64"
if [ $# -gt 0 ]; then
    tests aarch64 -R "$1"
else
    export ATTO_TEST_PART=1
    tests aarch64 -R "$part"
fi
