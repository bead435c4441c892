#!/usr/bin/env bash
# Compiles Lehr (library, program, tests, benchmarks) with g++ and warnings as errors (preset ci), and runs the tests of
# some folders. If CCACHE_DIR is set, objects are cached there between runs.
#
#   script/second_compiler.sh                  everything
#   script/second_compiler.sh --since COMMIT   only compiles the sources that differ from COMMIT, and for each header that
#                                              differs one source that includes it; names all sources that fail.
#                                              Needed even if `g++ -fsyntax-only` is silent: some warnings come from -O2
#   script/second_compiler.sh --share K/8      as a landing does: those that differ from the landing before the last, and
#                                              an eighth of all others
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CXX=g++
count=8
since='' share=''
case ${1:-} in
  '') ;;
  --since)
    since=${2:?second_compiler: --since needs a commit}
    git rev-parse --quiet --verify "$since^{commit}" >/dev/null ||
      { echo "second_compiler: git knows no commit '$since'" >&2; exit 2; } ;;
  --share)
    [[ ${2:-} =~ ^([1-9][0-9]*)/$count$ && ${BASH_REMATCH[1]} -le $count ]] ||
      { echo "second_compiler: --share is K/$count with K from 1 to $count, found '${2:-}'" >&2; exit 2; }
    share=${BASH_REMATCH[1]}
    # Each landing changes .ci/share once.
    since=$(git log --format=%H -3 -- .ci/share | tail -n 1) ;;
  *) echo "second_compiler: expected --since COMMIT, --share K/$count or nothing, found '$1'" >&2; exit 2 ;;
esac
script/setup.sh g++ libbenchmark-dev ${CCACHE_DIR:+ccache}
make --no-print-directory configure PRESET=ci
cmake -DLEHR_BENCH=ON build/ci >/dev/null

# The sources to compile for the files that differ from a commit.
changed_sources() {
  local file source
  git diff --name-only --diff-filter=d "$1" -- '*.cpp' '*.h' '*.inl' | while read -r file; do
    source=${file%.*}.cpp
    [ -f "$source" ] || source=$(git grep -lF "#include \"$file\"" -- '*.cpp' | sed -n 1p) || source=
    [ -z "$source" ] || echo "$source"
  done | sort -u
}

# The objects of the sources in standard input. An object is [FOLDER/]CMakeFiles/TARGET.dir/SOURCE.o, where SOURCE is
# relative to FOLDER; folder/python is python.
objects_of() {
  awk 'NR == FNR { wanted[$0 ".o"]; next }
       { source = $0; sub(/CMakeFiles\/[^\/]*\.dir\//, "", source); sub(/^folder\//, "", source) }
       source in wanted' - <(all_objects)
}

all_objects() {
  ninja -C build/ci -t targets all | sed -nE 's/^([^ ]+\.cpp\.o): .*/\1/p'
}

if [ -n "$since$share" ]; then
  mapfile -t objects < <([ -z "$since" ] || changed_sources "$since" | objects_of)
  told="${#objects[@]} objects of sources that differ from ${since:-no commit}"
  if [ -n "$share" ]; then
    mapfile -t others < <(all_objects | sort | awk -v k="$share" -v n="$count" 'NR % n == k - 1' |
      grep -vxFf <(printf '%s\n' "${objects[@]}"))
    told+=" and ${#others[@]} others of share $share/$count"
    objects+=("${others[@]}")
  fi
  [ ${#objects[@]} = 0 ] || ninja -C build/ci -k 0 "${objects[@]}"
  echo "second_compiler: $told compile with g++ without a warning"
  exit
fi
make --no-print-directory test PRESET=ci ARGS="-R '^(base|ops|optim|structure)\$\$'"
cmake --build build/ci --target lehr_benchmarks
