#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs attocl, shared and static, and builds and runs small programs against what was installed.
#
#   tests/install/run.sh
#
# Through find_package and through pkg-config; as C11, C++11 and C++20; in a folder with a space in
# its name; the programs of README.md and docs/custom-kernels.md included. Then the binaries are
# inspected: exported and undefined symbols, needed libraries, and instructions that an old CPU lacks.

set -euo pipefail
source "$(dirname "$0")/../../scripts/common.sh"

here=$root/tests/install
work="$root/build/install test"

# program_of PAGE N: its N-th C block that has a main.
program_of()
{
    awk -v n="$2" '/^```c$/ { inside = 1; text = ""; next }
         /^```/ && inside { inside = 0; if (text ~ /int main/ && --n == 0) { printf "%s", text; exit } }
         inside { text = text $0 "\n" }' "$root/$1"
}

# install_library KIND: builds and installs into "$work/KIND". The shared library as users have it; the static one
# hardly optimised, which takes less time and hides no symbol and no instruction from the inspections.
install_library()
{
    local kind=$1
    local -a build=(-DBUILD_SHARED_LIBS=ON -DCMAKE_BUILD_TYPE=Release)
    [ "$kind" = shared ] ||
        build=(-DBUILD_SHARED_LIBS=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="-O1 -DNDEBUG")
    quiet cmake -S "$root" -B "$work/$kind build" -G Ninja "${build[@]}" -DATTO_BUILD_TESTS=OFF -DATTO_BUILD_BENCH=OFF \
        -DATTO_BUILD_TOOLS=OFF -DATTO_BUILD_EXAMPLES=OFF
    quiet cmake --build "$work/$kind build" -j "$jobs"
    rm -rf "${work:?}/$kind"
    quiet cmake --install "$work/$kind build" --prefix "$work/$kind"
}

# Programs through find_package, then each is run.
use_cmake()
{
    local kind=$1 program device
    rm -rf "$work/$kind cmake"
    quiet cmake -S "$here" -B "$work/$kind cmake" -G Ninja -DCMAKE_PREFIX_PATH="$work/$kind" \
        -DWORK="$work"
    quiet cmake --build "$work/$kind cmake"
    for program in c11 cxx11 cxx20; do
        "$work/$kind cmake/$program" cpu
    done
    for program in readme_c11 readme_cxx11 readme_cxx20 readme_ops_c11; do
        "$work/$kind cmake/$program"
    done
    for device in cpu opencl; do
        ATTOCL_DEVICE=$device "$work/$kind cmake/custom_kernel_c11" | check_custom_kernel
    done
}

# 2 silu(x) at -1, 0, 1 and 2.
check_custom_kernel()
{
    diff - <(printf '%s\n' '-1.00 -> -0.53788' ' 0.00 ->  0.00000' ' 1.00 ->  1.46212' \
        ' 2.00 ->  3.52319') || die "the program of docs/custom-kernels.md computes something else"
}

# compile COMPILER STANDARD SOURCE OUTPUT: with the flags of pkg-config, which quotes for a shell.
compile()
{
    local compiler=$1 standard=$2 source=$3 output=$4
    eval "set -- $(pkg-config "${pc_flags[@]}" --cflags attocl)"
    check_cflags "$@"
    local compile_flags=("$@")
    eval "set -- $(pkg-config "${pc_flags[@]}" --libs attocl)"
    "$compiler" "-std=$standard" -Wall -Wextra -Wpedantic -Werror -fvisibility=hidden \
        "${compile_flags[@]}" "$source" "$@" -o "$output"
}

check_cflags()
{
    local flag
    for flag in "$@"; do
        [[ $flag == -I* || $flag == -DATTO_SHARED ]] || die "pkg-config hands down $flag"
    done
}

# Programs through pkg-config. A static library's needs come with --static.
use_pkg_config()
{
    local kind=$1 libraries
    local -a pc_flags=()
    [ "$kind" = shared ] || pc_flags=(--static)
    libraries=$(dirname "$(find "$work/$kind" -name attocl.pc)")
    export PKG_CONFIG_PATH=$libraries
    compile gcc c11 "$here/consumer.c" "$work/$kind pc c11"
    compile gcc c11 "$work/readme.c" "$work/$kind pc readme"
    cp "$here/consumer.c" "$work/consumer.cpp"
    compile g++ c++11 "$work/consumer.cpp" "$work/$kind pc cxx11"
    compile g++ c++20 "$work/consumer.cpp" "$work/$kind pc cxx20"
    for program in c11 cxx11 cxx20; do
        LD_LIBRARY_PATH=$(dirname "$libraries") "$work/$kind pc $program" cpu
    done
    # A machine without any OpenCL driver still has the CPU backend.
    LD_LIBRARY_PATH=$(dirname "$libraries") OCL_ICD_VENDORS=/nonexistent "$work/$kind pc c11" auto
}

# Only public names leave the shared library, and it needs no OpenCL to load.
inspect_shared()
{
    local library
    library=$(find "$work/shared" -name libattocl.so)
    if nm -D --defined-only "$library" | awk '{ print $3 }' | grep -vE '^atto_[a-z0-9]'; then
        die "these symbols are exported"
    fi
    if readelf -d "$library" | grep NEEDED |
        grep -vE '\[(libc|libm|libdl|libpthread|libgomp|libomp|ld-linux[a-z0-9-]*)\.so'; then
        die "these libraries are needed at load time"
    fi
}

# A library neither ends its host nor prints.
inspect_static()
{
    local library banned
    library=$(find "$work/static" -name libattocl.a)
    banned='abort|exit|_exit|_Exit|quick_exit|raise|stdout|stderr|puts|putchar|perror'
    banned+='|v?printf|v?fprintf|__v?f?printf_chk|__assert_fail|__stack_chk_fail_local'
    if nm -u "$library" | awk '$1 == "U" { print $2 }' | sort -u | grep -xE "$banned"; then
        die "the library calls these"
    fi
    if nm --defined-only -g "$library" | awk 'NF == 3 { print $3 }' | grep -vE '^atto_'; then
        die "these global names could clash with an application's"
    fi
}

# uses_avx OBJECT...: whether any has an instruction of AVX or later; the last one found is shown.
uses_avx()
{
    objdump -d --no-show-raw-insn "$@" |
        awk '/%[yz]mm/ || /[[:space:]]v[a-z0-9]+ .*%xmm/ { line = $0 }
             END { if (line) print line; exit !line }'
}

# Only the objects of the AVX levels may hold such instructions; that they do shows we can see them.
inspect_instructions()
{
    [ "$(uname -m)" = x86_64 ] || return 0
    local -a plain avx
    mapfile -t plain < <(find "$work/static build" -name '*.o' -not -path '*/atto_cpu_avx*')
    mapfile -t avx < <(find "$work/static build" -name '*.o' -path '*/atto_cpu_avx*')
    if [ ${#plain[@]} -lt 10 ] || [ ${#avx[@]} -lt 2 ]; then
        die "object files not found"
    fi
    uses_avx "${avx[@]}" > /dev/null || die "no AVX instruction in the AVX levels: this check sees nothing"
    if uses_avx "${plain[@]}"; then
        die "AVX instructions outside the AVX levels: the library would die on an old CPU"
    fi
}

mkdir -p "$work"
program_of README.md 1 > "$work/readme.c"
program_of README.md 2 > "$work/readme_ops.c"
program_of docs/custom-kernels.md 1 > "$work/custom_kernel.c"
for program in readme readme_ops custom_kernel; do
    [ -s "$work/$program.c" ] || die "a page has no C program with a main"
done
for kind in shared static; do
    say "$kind"
    install_library $kind
    use_cmake $kind
    use_pkg_config $kind
done
inspect_shared
inspect_static
inspect_instructions
say "symbols, needed libraries and instructions are as they should be"
