#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs what tests and gates need, on Debian and Ubuntu. Does nothing when all of it is there.
#
#   scripts/install-packages.sh          build, tests and every gate
#   scripts/install-packages.sh --tests  only what scripts/test.sh needs
#   scripts/install-packages.sh --demo   only what scripts/demo.sh needs
#   scripts/install-packages.sh --list   print the packages, install nothing

set -euo pipefail
source "$(dirname "$0")/common.sh"

demo_packages=(
    gcc cmake ninja-build python3
    opencl-c-headers ocl-icd-libopencl1 pocl-opencl-icd # PoCL: OpenCL on the CPU
    zlib1g-dev                                          # the examples' data sets
)
tests_packages=(
    "${demo_packages[@]}" g++ pkg-config binutils git libcmocka-dev
    libxml2-utils # xmllint: the examples' pictures
    libclblast1   # another way to multiply, which a test tries
    python3-numpy # an example exchanges tensors with it
)
gate_packages=(
    clang libomp-dev             # second compiler, ThreadSanitizer, fuzzers
    clang-15                     # kernels for AMD and NVIDIA; clang-14 cannot
    rocm-device-libs             # AMD's built-in functions as bitcode
    intel-opencl-icd             # ocloc: kernels for Intel
    oclgrind                     # simulator that reports bad accesses and races
    gcc-mingw-w64-x86-64         # Windows cross-build
    clang-format-14 shellcheck
)

# Prints those of the given packages that are not installed.
missing()
{
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] ||
            printf '%s\n' "$package"
    done
}

# Not root: through sudo if that is there.
as_root()
{
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo > /dev/null; then
        sudo "$@"
    else
        die "not root and no sudo; as root: apt-get install ${wanted[*]}"
    fi
}

# On Debian the libraries of clang's sanitizers are a package of their own.
if grep -q '^ID=debian' /etc/os-release 2> /dev/null; then
    gate_packages+=(libclang-rt-14-dev)
fi
packages=("${tests_packages[@]}" "${gate_packages[@]}")
case ${1:-} in
    '') ;;
    --tests) packages=("${tests_packages[@]}") ;;
    --demo) packages=("${demo_packages[@]}") ;;
    --list)
        printf '%s\n' "${packages[@]}"
        exit
        ;;
    --help)
        usage
        exit
        ;;
    *) die "unknown argument $1; try --help" ;;
esac

if ! command -v apt-get > /dev/null || ! command -v dpkg-query > /dev/null; then
    die "this is not Debian or Ubuntu; install what corresponds to: ${packages[*]}"
fi

mapfile -t wanted < <(missing "${packages[@]}")
if [ ${#wanted[@]} = 0 ]; then
    say "all ${#packages[@]} packages are there"
    exit
fi
say "installing ${wanted[*]}"
export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -q
as_root apt-get install -q -y --no-install-recommends "${wanted[@]}"
