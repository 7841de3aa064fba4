#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Cross-builds library, tests and command for Windows and runs tests of the CPU backend on Wine.
#
#   scripts/wine.sh          a part of the cases of every family, and of what is below and above
#   scripts/wine.sh REGEX    the tests with such names, as in ctest -R, whole
#
# Tests that fork or read folders are POSIX only and left out. cmocka is built from Debian's source
# package. Wine needs no display. The CPU levels are base and AVX2.

set -euo pipefail
source "$(dirname "$0")/common.sh"

if [ "${1:-}" = --help ]; then
    usage
    exit
fi
need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64
need ninja ninja-build
has_header CL/cl.h || die 'CL/cl.h not found. On Debian: apt-get install opencl-c-headers'
wine=/usr/lib/wine/wine64
need $wine wine64
folder=$root/build/wine
built=$folder/build
packages=$folder/packages
library=$packages/cmocka/src/libcmocka-static.a

part='\.cpu$|^(layout|math|select|options|gradcheck|tool\.(info|selftest|huge.*|tune.*|usage))$'

# folder_of DLL: where GCC keeps it.
folder_of() { dirname "$(x86_64-w64-mingw32-gcc -print-file-name="$1")"; }

if [ ! -f "$library" ]; then
    mkdir -p "$packages/source"
    printf 'deb-src http://deb.debian.org/debian %s main\n' \
        "$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)" > "$packages/sources.list"
    own=(-o "Dir::Etc::sourcelist=$packages/sources.list" -o Dir::Etc::sourceparts=/dev/null)
    apt_aside "$packages" "${own[@]}" update
    apt_aside "$packages" "${own[@]}" source --download-only cmocka
    tar -xf "$packages"/cmocka_*.orig.tar.xz -C "$packages/source" --strip-components=1
    quiet cmake -S "$packages/source" -B "$packages/cmocka" -G Ninja \
        --toolchain "$root/scripts/mingw-w64.cmake" \
        -DWITH_STATIC_LIB=ON -DWITH_EXAMPLES=OFF -DCMAKE_BUILD_TYPE=Release
    quiet cmake --build "$packages/cmocka" -j "$jobs"
fi
# The folder CL alone: /usr/include itself would bring the headers of glibc.
mkdir -p "$folder/include"
cp -RL /usr/include/CL "$folder/include/"
cmake -S "$root" -B "$built" -G Ninja --toolchain "$root/scripts/mingw-w64.cmake" \
    -DATTO_WERROR=ON -DCMAKE_BUILD_TYPE=Release -DATTO_BUILD_EXAMPLES=OFF \
    -DATTO_CPU_LEVELS='base;avx2' -DCMAKE_CROSSCOMPILING_EMULATOR=$wine \
    -DATTO_OPENCL_INCLUDE_DIR="$folder/include" \
    -DATTO_CMOCKA_INCLUDE_DIR="$packages/source/include" -DATTO_CMOCKA_LIBRARY="$library"
cmake --build "$built" -j "$jobs"

# A Windows of its own, and where it finds DLLs: the library's, and those of GCC.
export WINEPREFIX=$folder/prefix WINEDEBUG=-all
WINEPATH="Z:$built;Z:$(folder_of libgomp-1.dll);Z:$(folder_of libwinpthread-1.dll)"
export WINEPATH
unset DISPLAY
quiet $wine cmd /c ver || die 'Wine does not start'
if [ $# -gt 0 ]; then
    tests wine/build -R "$1"
else
    export ATTO_TEST_PART=1
    tests wine/build -R "$part"
fi
