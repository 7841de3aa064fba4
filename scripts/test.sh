#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds attocl and runs all its tests; installs missing packages first (Debian, Ubuntu).
#
#   scripts/test.sh                  everything
#   scripts/test.sh -R '^softmax'    arguments go to ctest: -R and -E choose by name, -L by label
#
# Exit status 0 when all tests passed. docs/testing.md names the variables that change what the tests
# run on.

set -euo pipefail
source "$(dirname "$0")/common.sh"

if [ "${1:-}" = --help ]; then
    usage
    exit
fi
if command -v dpkg-query > /dev/null; then
    "$root/scripts/install-packages.sh" --tests
fi
build release
tests release "$@"
