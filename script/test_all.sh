#!/usr/bin/env bash
# The checks that are too long for `make test`, in eight shares of which each landing runs one (.ci/run).
#
#   script/test_all.sh                 all shares, one after the other (some hours on two cores)
#   script/test_all.sh --share 3/8     the third: what a landing runs
#   script/test_all.sh --list          what each share holds
#
# A share takes its random numbers from a seed of the commit, and holds: an eighth of all pairs of model, mesh and schedule
# (LEHR_ALL_MESHES=1); some suites under address and undefined-behaviour sanitizers, or under the thread sanitizer (ranks
# are threads); an eighth of the planted bugs (make mutants). Two shares install transformers and peft, and compare with
# them. Closing lines name what failed, and where.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# share: suites under a sanitizer, and whether the peers are installed.
shares=(
  'asan base|mesh|data|metric|optim|state|descriptor|pipeline'
  'asan ops|nn interop'
  'asan shard|peft|model|prune'
  'asan train|train_mesh|train_pipeline|plan'
  'asan commands|launch|wrong_input|train_on_ranks|kill_and_resume|stop_and_disk_full'
  'tsan base|mesh|data|metric|optim|state|pipeline|launch interop'
  'tsan ops|nn|shard|peft|model|prune'
  'tsan train|train_mesh|train_pipeline|plan'
)
count=${#shares[@]}

list() {
  for ((i = 0; i < count; ++i)); do
    echo "$((i + 1))/$count: ${shares[i]}; an eighth of all meshes and of the planted bugs"
  done
}

share=all
case "${1:-}" in
  --list) list; exit ;;
  --share)
    [[ ${2:-} =~ ^([1-9][0-9]*)/$count$ && ${BASH_REMATCH[1]} -le $count ]] ||
      { echo "test-all: --share is K/$count with K from 1 to $count, found '${2:-}'" >&2; exit 2; }
    share=${BASH_REMATCH[1]} ;;
  '') ;;
  *) echo "test-all: expected --share K/$count or --list, found '$1'" >&2; exit 2 ;;
esac

logs=build/test_all
mkdir -p "$logs"
failed=()
lines=()

# step NAME COMMAND...: runs it, keeps its log, and says at once what must be read of it if it fails.
step() {
  local name=$1 log=$logs/${1//[^A-Za-z0-9]/_}.log start=$SECONDS code=0
  shift
  printf '\n---- %s\n' "$name"
  "$@" </dev/null 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  if [ "$code" = 0 ]; then
    lines+=("passed  $name ($((SECONDS - start)) s): $(grep -E '^[0-9]+ (passed|caught)' "$log" | tail -n 1)")
  else
    failed+=("$name")
    lines+=("FAILED  $name (exit code $code, $((SECONDS - start)) s)" "$(script/what_failed.sh "$log")")
  fi
  printf '%s\n' "${lines[-1]}"
  [ "$code" = 0 ] || echo "FAILED  $name"
}

# The suites of a share, by ctest's names, in a build with a sanitizer. Builds no more than they need.
sanitized() {
  local preset=$1 suites=$2 suite targets=()
  make --no-print-directory configure PRESET="$preset" || return
  for suite in ${suites//|/ }; do
    if grep -qxE "$suite(_1)?" "build/$preset/gtest_entries.txt"; then
      targets+=("${suite}_test")
    elif ctest --preset "$preset" -N -R "^$suite\$" | grep -q 'Total Tests: 1'; then
      targets+=(lehr mesh_ranks)
    else
      echo "FAILED: ctest knows no suite $suite"
      return 1
    fi
  done
  cmake --build "build/$preset" -j "$(nproc)" --target "${targets[@]}" || return
  LEHR_TEST_SEED=$seed script/run_tests.sh "$preset" "build/$preset" -R "^($suites)(_[0-9]+)?\$"
}

meshes() {
  local number=$1
  LEHR_ALL_MESHES=1 LEHR_TEST_SEED=$seed GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$((number - 1)) \
    OMP_WAIT_POLICY=PASSIVE script/run_meshes.sh build
}

interop() {
  make build && script/bench_setup.sh && make test ARGS='-R ^interop' && ! grep -q 'skipped: ' build/results/ctest.xml
}

run_share() {
  local number=$1 preset suites peers
  read -r preset suites peers <<<"${shares[number - 1]}"
  step "share $number: all meshes, an eighth" meshes "$number"
  step "share $number: $preset of $suites" sanitized "$preset" "$suites"
  [ -z "$peers" ] || step "share $number: transformers and peft" interop
  step "share $number: planted bugs, an eighth" make mutants ARGS="--share $number/$count"
}

# A function of the commit, so that a failure can be seen again.
seed=${LEHR_TEST_SEED:-$((0x$(git rev-parse --short=6 HEAD 2>/dev/null || echo 1)))}
echo "test-all: share $share of $count, random numbers from LEHR_TEST_SEED=$seed"
if [ "$share" = all ]; then
  for ((number = 1; number <= count; ++number)); do run_share "$number"; done
else
  run_share "$share"
fi

printf '\n---- closing lines of share %s of %s (LEHR_TEST_SEED=%s) ----\n' "$share" "$count" "$seed"
printf '%s\n' "${lines[@]}"
[ ${#failed[@]} = 0 ]
