#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Compiles the kernels for Intel, AMD and NVIDIA without any of their GPUs; warnings are errors.
#
#   scripts/portability.sh            each variant for one Intel device, one AMD device and NVIDIA
#   scripts/portability.sh --touched  each for one device of one of them, in turn; for one of each of them where
#                                     the last change touched its file
#   scripts/portability.sh --full     each variant for all targets
#
# The variants are the test set of src/variants.c. Before them each file is compiled alone, as
# OpenCL C 1.2, 2.0 and 3.0, for a device without any extension.

set -euo pipefail
source "$(dirname "$0")/common.sh"

intel=(skl tgllp dg2 pvc)           # ocloc takes one device a call
amd=(gfx906 gfx90a gfx1030 gfx1100) # gfx1100 is newer than Debian's device libraries
nvidia=(nvptx64)
in_turn=(skl gfx906 nvptx64 tgllp gfx90a nvptx64 dg2 gfx1030 nvptx64 pvc gfx1100 nvptx64)
kernels=$root/src/cl
folder=$root/build/portability
includes=(-I "$kernels" -I "$root/include")
# Knobs decide which arguments and helpers a kernel needs, so unused ones are no mistake.
strict=(-cl-std=CL1.2 -ferror-limit=3 -Wall -Wextra -Wdouble-promotion -Werror
    -Wno-unused-parameter -Wno-unused-but-set-parameter -Wno-unused-variable -Wno-unused-function)

# Folder of AMD's built-in functions.
amd_libraries()
{
    local bitcode
    bitcode=$(find /usr/lib /opt/rocm* -name ocml.bc -print -quit 2> /dev/null) || true
    [ -n "$bitcode" ] || die "ocml.bc not found. On Debian: apt-get install rocm-device-libs"
    dirname "$bitcode"
}

# compile TARGET FILE OPTIONS OUTPUT
compile()
{
    local target=$1 file=$2 output=$4
    local -a options
    read -r -a options <<< "$3"
    case $target in
        gfx1100)
            clang-15 -x cl -target amdgcn-amd-amdhsa -mcpu="$target" -nogpulib "${includes[@]}" \
                "${strict[@]}" "${options[@]}" -c "$kernels/$file" -o "$output"
            ;;
        gfx*)
            clang-15 -x cl -target amdgcn-amd-amdhsa -mcpu="$target" "${includes[@]}" \
                --rocm-device-lib-path="$AMD_LIBRARIES" \
                "${strict[@]}" "${options[@]}" -c "$kernels/$file" -o "$output"
            ;;
        nvptx64)
            clang-15 -x cl -target nvptx64 "${includes[@]}" \
                "${strict[@]}" "${options[@]}" -S "$kernels/$file" -o "$output"
            ;;
        *) # relative paths: ocloc splits its options at spaces
            cd "$kernels"
            ocloc compile -file "$file" -device "$target" -out_dir "$output" -output kernel \
                -options "-cl-std=CL1.2 -I . -I ../../include -Werror ${options[*]}"
            ;;
    esac
}

# Warnings in the log. ocloc's remark that a kernel spills registers is about speed and is none: products have
# tiles that the planner never chooses on Intel (src/backend_opencl/gemm.c, most_sums).
warnings() { grep 'warning:' "$1" | grep -v 'compiled SIMD[0-9]* allocated [0-9]* regs and spilled'; }

# one "TARGET<tab>FILE<tab>OPTIONS": one compilation, with its log on failure. 255 stops xargs.
one()
{
    local target file options work
    IFS=$'\t' read -r target file options <<< "$1"
    work=$(mktemp -d "$folder/work.XXXXXX")
    if (compile "$target" "$file" "$options" "$work/kernel") > "$work/log" 2>&1 &&
        ! warnings "$work/log" > /dev/null; then
        rm -r "$work"
        printf '%s\n' "$target" >> "$folder/done"
    else
        printf '%s: %s %s\n' "$target" "$file" "$options"
        head -n 60 "$work/log"
        exit 255
    fi
}

# Names of the kernel files that the last change touched.
touched()
{
    local base=HEAD~1
    cd "$root"
    if git rev-parse -q --verify origin/main > /dev/null &&
        [ "$(git merge-base origin/main HEAD)" != "$(git rev-parse HEAD)" ]; then
        base=origin/main
    fi
    git diff --name-only "$base" -- 'src/cl/*.cl' 2> /dev/null | xargs -r -n1 basename || true
}

# Reads "FILE<tab>KERNEL<tab>OPTIONS", writes the list of compilations. Kernels that share a file
# and options are one compilation. The single targets of neighbours differ.
plan()
{
    local file options number=0 target
    while IFS=$'\t' read -r file options; do
        if [ -n "$everywhere" ]; then
            for target in "${intel[@]}" "${amd[@]}" "${nvidia[@]}"; do
                printf '%s\t%s\t%s\n' "$target" "$file" "$options"
            done
        elif [ -n "$sparse" ] && ! grep -qxF "$file" <<< "$changed"; then
            printf '%s\t%s\t%s\n' "${in_turn[number % ${#in_turn[@]}]}" "$file" "$options"
        else
            printf '%s\t%s\t%s\n' "${intel[number % ${#intel[@]}]}" "$file" "$options" \
                "${amd[number % ${#amd[@]}]}" "$file" "$options" "${nvidia[0]}" "$file" "$options"
        fi
        number=$((number + 1))
    done < <(cut -f 1,3 | LC_ALL=C sort -u)
}

# Every file compiles alone, with its own defaults, in each language version and with no extension.
alone()
{
    local file version
    if grep -nwE 'printf|assert' "$kernels"/*.cl "$kernels"/*.h; then
        die "no printf in a kernel: some drivers leak for it even when it never runs"
    fi
    for file in "$kernels"/*.cl; do
        for version in CL1.2 CL2.0 CL3.0; do
            clang-15 -x cl -target spir64 -Xclang -cl-ext=-all "${includes[@]}" "${strict[@]}" \
                -cl-std=$version -fsyntax-only "$file" ||
                die "$(basename "$file") does not compile alone as $version"
        done
    done
}

# The test set, from a small C program that the tests' build makes.
variants()
{
    quiet configure release
    quiet cmake --build "$root/build/release" -j "$jobs" --target print_variants
    "$root/build/release/tests/print_variants"
}

everywhere=
sparse=
changed=
case ${1:-} in
    '') ;;
    --touched)
        changed=$(touched)
        sparse=yes
        ;;
    --full) everywhere=yes ;;
    --one)
        one "$2"
        exit
        ;;
    --help)
        usage
        exit
        ;;
    *) die "unknown argument $1; try --help" ;;
esac

need clang-15 clang-15
need ocloc intel-opencl-icd
AMD_LIBRARIES=$(amd_libraries)
export AMD_LIBRARIES
rm -rf "$folder"
mkdir -p "$folder"
alone
say "each file alone: OpenCL C 1.2, 2.0, 3.0"
variants > "$folder/variants"
[ -s "$folder/variants" ] || die "there are no variants"
say "$(wc -l < "$folder/variants") variants"
plan < "$folder/variants" > "$folder/plan"
xargs -P "$jobs" -d '\n' -n 1 "$0" --one < "$folder/plan" || die "the compilation above failed"
cmp -s <(cut -f 1 "$folder/plan" | sort) <(sort "$folder/done") || die "some did not run"
sort "$folder/done" | uniq -c | sed 's/^/==/'
