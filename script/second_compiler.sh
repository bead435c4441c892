#!/usr/bin/env bash
# Compiles everything (library, program, tests, benchmarks) with g++ and warnings as errors (preset ci), and runs the tests
# of some folders. If CCACHE_DIR is set, objects are cached there between runs.
#
#   script/second_compiler.sh                  as a landing does
#   script/second_compiler.sh --since COMMIT   only compiles the sources that differ from COMMIT, and names all that fail.
#                                              Needed even if `g++ -fsyntax-only` is silent: some warnings come from -O2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CXX=g++
since=
case ${1:-} in
  '') ;;
  --since)
    since=${2:?second_compiler: --since needs a commit}
    git rev-parse --quiet --verify "$since^{commit}" >/dev/null ||
      { echo "second_compiler: git knows no commit '$since'" >&2; exit 2; } ;;
  *) echo "second_compiler: expected --since COMMIT or nothing, found '$1'" >&2; exit 2 ;;
esac
script/setup.sh g++ libbenchmark-dev ${CCACHE_DIR:+ccache}
make --no-print-directory configure PRESET=ci
cmake -DLEHR_BENCH=ON build/ci >/dev/null
if [ -n "$since" ]; then
  # An object is [FOLDER/]CMakeFiles/TARGET.dir/SOURCE.o, where SOURCE is relative to FOLDER; folder/python is python.
  mapfile -t objects < <(
    awk 'NR == FNR { changed[$0 ".o"]; next }
         { sub(/: .*/, ""); source = $0; sub(/CMakeFiles\/[^\/]*\.dir\//, "", source); sub(/^folder\//, "", source) }
         source in changed' \
      <(git diff --name-only --diff-filter=d "$since" -- '*.cpp') <(ninja -C build/ci -t targets all))
  [ ${#objects[@]} = 0 ] || ninja -C build/ci -k 0 "${objects[@]}"
  echo "second_compiler: ${#objects[@]} objects of sources that differ from $since compile with g++ without a warning"
  exit
fi
make --no-print-directory test PRESET=ci ARGS="-R '^(base|ops|optim|structure)\$\$'"
cmake --build build/ci --target lehr_benchmarks
