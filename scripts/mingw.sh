#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Cross-builds library, bench and command for Windows: they compile and link; nothing runs.
#
#   scripts/mingw.sh

set -euo pipefail
source "$(dirname "$0")/common.sh"

need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64
folder=$root/build/mingw
mkdir -p "$folder/include"
# The folder CL alone: /usr/include itself would bring the headers of glibc.
cp -RL /usr/include/CL "$folder/include/"
cmake -S "$root" -B "$folder" -G Ninja --toolchain "$root/scripts/mingw-w64.cmake" \
    -DATTO_WERROR=ON -DATTO_OPENCL_INCLUDE_DIR="$folder/include" \
    -DATTO_BUILD_TESTS=OFF -DATTO_BUILD_EXAMPLES=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O1 # nothing runs
cmake --build "$folder" -j "$jobs"

dll=$(find "$folder" -name '*attocl*.dll' -print -quit)
[ -n "$dll" ] || die "no DLL was built"
x86_64-w64-mingw32-objdump -p "$dll" > "$folder/dll.txt"
if grep -iE 'DLL Name:.*(opencl|clblast)' "$folder/dll.txt"; then
    die "the DLL must open OpenCL and CLBlast at run time, not import them"
fi
say "built $(basename "$dll")"
