# SPDX-License-Identifier: MIT
# Sourced by the other scripts: repository root, number of jobs, messages.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck disable=SC2034 # used by the scripts that source this file
jobs=${JOBS:-$(nproc)}

say() { printf '== %s\n' "$*"; }

die()
{
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# need TOOL PACKAGE: fails with the package's name when the tool is not there.
need()
{
    command -v "$1" > /dev/null || die "$1 not found. On Debian: apt-get install $2"
}

# has_header NAME: whether the C compiler finds it.
has_header() { printf '#include <%s>\n' "$1" | cc -E -x c - > /dev/null 2>&1; }

# quiet COMMAND...: shows what it prints only when it fails.
quiet()
{
    local log status=0
    log=$(mktemp)
    "$@" > "$log" 2>&1 || status=$?
    [ $status = 0 ] || cat "$log" >&2
    rm "$log"
    return $status
}

# usage: prints the comment that opens the calling script, for --help.
usage() { sed -n '3,/^$/s/^# \{0,1\}//p' "$0"; }

# only_pocl: OpenCL is PoCL and nothing else, whatever other drivers the machine has.
only_pocl()
{
    local icd=/etc/OpenCL/vendors/pocl.icd
    [ -f $icd ] || die "PoCL not found. On Debian: apt-get install pocl-opencl-icd"
    mkdir -p "$root/build/pocl"
    cp $icd "$root/build/pocl/"
    export OCL_ICD_VENDORS=$root/build/pocl
}

# configure PRESET [CMake arguments]: makes or updates build/PRESET.
configure()
{
    local preset=$1
    shift
    local -a generator=()
    if [ ! -f "$root/build/$preset/CMakeCache.txt" ] && command -v ninja > /dev/null; then
        generator=(-G Ninja)
    fi
    (cd "$root" && cmake --preset "$preset" -DATTO_WERROR=ON "${generator[@]}" "$@")
}

# build PRESET [CMake arguments]: configures and builds build/PRESET.
build()
{
    configure "$@"
    cmake --build "$root/build/$1" -j "$jobs"
}

# best_levels: base and the best CPU level of this machine, for builds whose tests use no other.
best_levels()
{
    local level
    for level in avx512vl avx2; do
        if grep -qw $level /proc/cpuinfo; then
            printf 'base;%s\n' "${level%vl}"
            return
        fi
    done
    echo base
}

# tests PRESET [ctest arguments]: runs tests of build/PRESET; having none to run is a failure.
tests()
{
    local preset=$1
    shift
    ctest --test-dir "$root/build/$preset" --output-on-failure --no-tests=error -j "$jobs" "$@"
}

# apt_aside FOLDER ARGUMENTS...: apt-get whose lists and downloads lie in FOLDER; it needs no root and
# leaves the system's lists alone.
apt_aside()
{
    local folder=$1
    shift
    mkdir -p "$folder/lists/partial"
    (cd "$folder" && quiet apt-get -q -o APT::Sandbox::User= -o Dir::State::status=/dev/null \
        -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder" "$@")
}
