#!/usr/bin/env bash
# Runs the built tests and reports those that passed, failed and were skipped: run_tests.sh PRESET BUILD_FOLDER [ctest
# arguments].
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
preset=$1 build=$2
shift 2
rm -rf "$build/results"
mkdir -p "$build/results"
# One more at a time than there are cores, since some wait: for a time limit to pass, or for processes that they started.
jobs=$(($(nproc) + 1))
# clang 14's thread sanitizer cannot map its shadow memory if addresses are randomized over more than 28 bits.
start=()
[ "$preset" != tsan ] || ! setarch -R true 2>/dev/null || start=(setarch -R)
"${start[@]}" ctest --preset "$preset" -j$jobs --output-junit "$PWD/$build/results/ctest.xml" "$@"
ran=$?
python3 script/test_report.py "$build"
reported=$?
exit $((ran != 0 ? ran : reported))
