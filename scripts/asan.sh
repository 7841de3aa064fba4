#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs tests under AddressSanitizer (leaks included) and UndefinedBehaviorSanitizer.
#
#   scripts/asan.sh [ctest arguments]   default: the CPU backend, and some families with the label small on
#                                       OpenCL (all of them: -L small, as scripts/nightly.sh does)

set -euo pipefail
source "$(dirname "$0")/common.sh"

# Tests ask for more memory than there is.
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1
# OpenCL drivers keep memory until the process ends; what is ours must be freed.
export LSAN_OPTIONS=suppressions=$root/scripts/lsan.txt:print_suppressions=0

# Families whose many kernels take minutes to build, and whose host code is like that of the others.
slow='attention|matmul|linear|cross_entropy|elementwise|softmax|loss|nll_loss|layer_norm|batch_norm|group_norm|pool|index_select|gather|rope|conv|rnn|pad|resize'

export POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable # a third of the time that kernels take to build
only_pocl # Intel's driver opens libraries in a way that AddressSanitizer forbids
build asan -DATTO_CPU_LEVELS="$(best_levels)"
if [ $# -gt 0 ]; then
    tests asan "$@"
else
    # The programs' own tests start them over and over, and tool.bench has every op compute, which takes minutes;
    # release runs them.
    # Families whose loops are shared out like those of others take minutes, too; nightly.sh has all.
    ATTO_TEST_PART=1 tests asan -LE 'wide|small' \
        -E '\.(cpu-base|opencl)$|^example\.programs$|^tool\.bench$|^(pool|group_norm|softmax|bits)\.cpu$'
    # Twice, because the leak checker itself crashes now and then among PoCL's threads; a leak stays.
    tests asan -L small -E "^($slow)\\." --repeat until-pass:2
fi
