#!/usr/bin/env bash
# Runs what is built and says what passed, failed and was skipped: run_tests.sh PRESET BUILD_FOLDER [ctest arguments].
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
preset=$1 build=$2
shift 2
rm -rf "$build/results"
mkdir -p "$build/results"
# Tests are threads and processes of their own: as many at once as there are cores, at least two.
cores=$(nproc)
# The thread sanitizer of clang 14 finds its memory taken where addresses are random over more than 28 bits.
start=()
[ "$preset" != tsan ] || ! setarch -R true 2>/dev/null || start=(setarch -R)
"${start[@]}" ctest --preset "$preset" -j$((cores < 2 ? 2 : cores)) --output-junit "$PWD/$build/results/ctest.xml" "$@"
ran=$?
python3 script/test_report.py "$build"
reported=$?
exit $((ran != 0 ? ran : reported))
