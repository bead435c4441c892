#!/usr/bin/env bash
# Runs the built tests and reports those that passed, failed and were skipped: run_tests.sh PRESET BUILD_FOLDER [ctest
# arguments].
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
preset=$1 build=$2
shift 2
rm -rf "$build/results"
mkdir -p "$build/results"
# Tests start threads and processes of their own: run as many in parallel as there are cores, but at least two.
cores=$(nproc)
# clang 14's thread sanitizer cannot map its shadow memory if addresses are randomized over more than 28 bits.
start=()
[ "$preset" != tsan ] || ! setarch -R true 2>/dev/null || start=(setarch -R)
"${start[@]}" ctest --preset "$preset" -j$((cores < 2 ? 2 : cores)) --output-junit "$PWD/$build/results/ctest.xml" "$@"
ran=$?
python3 script/test_report.py "$build"
reported=$?
exit $((ran != 0 ? ran : reported))
