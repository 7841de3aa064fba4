#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Formats the tracked C, C++ and OpenCL C files with clang-format 14.
#
#   scripts/format.sh          rewrites files in place
#   scripts/format.sh --check  changes nothing, shows what it would change and fails

set -euo pipefail
source "$(dirname "$0")/common.sh"

sources() { git ls-files -- '*.c' '*.h' '*.cl' '*.inc' '*.cpp'; }

# Prints what would change.
differences()
{
    local file
    while read -r file; do
        clang-format-14 "$file" | diff -U 1 --label "$file" --label formatted "$file" - || true
    done < <(sources)
}

need clang-format-14 clang-format-14 # other versions disagree about details
cd "$root"
case ${1:-} in
    '')
        sources | tr '\n' '\0' | xargs -0 clang-format-14 -i
        ;;
    --check)
        mkdir -p build
        if ! sources | tr '\n' '\0' |
            xargs -0 -P "$(nproc)" -n 16 clang-format-14 --dry-run -Werror > build/format.log 2>&1; then
            differences > build/format.diff
            head -n 40 build/format.diff
            die "$(grep -c '^--- ' build/format.diff) files differ; run scripts/format.sh"
        fi
        ;;
    --help)
        usage
        exit
        ;;
    *) die "unknown argument $1; try --help" ;;
esac
say "$(sources | wc -l) files"
