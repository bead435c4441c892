#!/usr/bin/env bash
# Runs the checks that take too long for `make test`, in eight shares. Each landing runs one share (.ci/run).
#
#   script/test_all.sh                 all shares in turn (some hours on two cores)
#   script/test_all.sh --share 3/8     the third share, as a landing does
#   script/test_all.sh --share 3/8 --only asan    parts whose names contain a word: meshes, asan, tsan, g++, interop, gpu,
#                                      configs, draws, pairs, faults, fuzz, run-as-planned, site, notebooks, optionals, mutants
#   script/test_all.sh --list          lists the contents of each share
#
# A share has: an eighth of all combinations of model, mesh and schedule (LEHR_ALL_MESHES=1); runs that have an eighth
# of all pairs of features (docs/composition.md); some test suites under the address and undefined-behaviour sanitizers,
# or under the thread sanitizer (ranks are threads); an eighth of the mutation tests (make mutants); and clang-tidy's
# check of unchecked accesses to optionals, over an eighth of the sources.
# One share compiles everything with g++ (each landing compiles an eighth and what changed) and runs tests of that
# build. Two shares install transformers and peft, and compare with them; one of these rehearses the check of a GPU on
# the CPU (docs/gpu.md); one runs commands on 5,000 mutated config.json files; one trains 300 random runs on random
# meshes; one injects faults into real runs; one plans the quickstart and runs it, and runs each libFuzzer harness for a
# few seconds; one makes the site; one executes the notebooks. Random numbers are seeded by the commit. The last lines
# name each failure and its place.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# Per share: the suites under a sanitizer, and what else it does.
shares=(
  'asan base|mesh|data|metric|optim|state|descriptor|pipeline notebooks g++'
  'asan ops|nn interop gpu'
  'asan shard|peft|model|prune|search|emulate site'
  'asan train|train_mesh|train_pipeline|train_draws|plan'
  'asan commands|commands_on_ranks|metrics_command|search_command|tables|launch|wrong_input|train_on_ranks|kill_and_resume|stop_and_disk_full configs'
  'tsan base|mesh|data|metric|optim|state|pipeline|launch interop faults'
  'tsan ops|nn|shard|peft|model|prune|search|emulate run-as-planned fuzz'
  'tsan train|train_mesh|train_pipeline|train_draws|plan draws'
)
count=${#shares[@]}

list() {
  for ((i = 0; i < count; ++i)); do
    echo "$((i + 1))/$count: ${shares[i]}; an eighth of all meshes, of the pairs of features, of the planted bugs, and of the sources for optionals"
  done
}

share=all only=''
while [ $# -gt 0 ]; do
  case $1 in
    --list) list; exit ;;
    --share)
      [[ ${2:-} =~ ^([1-9][0-9]*)/$count$ && ${BASH_REMATCH[1]} -le $count ]] ||
        { echo "test-all: --share is K/$count with K from 1 to $count, found '${2:-}'" >&2; exit 2; }
      share=${BASH_REMATCH[1]}
      shift 2 ;;
    --only)
      [[ " meshes asan tsan g++ interop gpu configs draws pairs faults fuzz run-as-planned site notebooks optionals mutants " = *" ${2:-} "* ]] ||
        { echo "test-all: --only is meshes, asan, tsan, g++, interop, gpu, configs, draws, pairs, faults, fuzz, run-as-planned, site, notebooks, optionals or mutants, found '${2:-}'" >&2; exit 2; }
      only=$2
      shift 2 ;;
    *) echo "test-all: expected --share K/$count, --only WORD or --list, found '$1'" >&2; exit 2 ;;
  esac
done

logs=build/test_all
mkdir -p "$logs"
failed=()
lines=()

. script/step_log.sh

# step NAME COMMAND...: runs the command; if it fails, prints the relevant lines of its log immediately.
step() {
  local name=$1
  [[ $name != *san\ of\ * ]] || name=${name%% of *}  # not by the names of suites
  [[ $name = *"$only"* ]] || return 0
  run_step "$@"
  if [ "$code" = 0 ]; then
    lines+=("passed  $what: $(grep -E '^[0-9]+ (passed|caught|draws|faults|of [0-9]+ (commands|parsers))' "$(log_of "$1")" | tail -n 1)")
  else
    failed+=("$1")
    lines+=("FAILED  $what" "$(script/what_failed.sh "$(log_of "$1")")")
    echo "FAILED  $1"
  fi
  printf '%s\n' "${lines[-1]}"
}

# Runs the suites of a share, by ctest's names, in a build with a sanitizer. Builds only their targets.
sanitized() {
  local preset=$1 suites=$2 suite targets=()
  make --no-print-directory configure PRESET="$preset" || return
  for suite in ${suites//|/ }; do
    if grep -qxE "$suite(_1)?" "build/$preset/gtest_entries.txt"; then
      targets+=("${suite}_test")
    elif ctest --preset "$preset" -N -R "^$suite\$" | grep -q 'Total Tests: 1'; then
      targets+=(lehr mesh_ranks forked_commands)
    else
      echo "FAILED: ctest knows no suite $suite"
      return 1
    fi
  done
  cmake --build "build/$preset" -j "$(nproc)" --target "${targets[@]}" || return
  # Programs in full, which no other check does.
  local all=()
  [[ $suites != *kill_and_resume* ]] || all=(LEHR_ALL_MESHES=1)
  env "${all[@]}" LEHR_TEST_SEED="$seed" script/run_tests.sh "$preset" "build/$preset" -R "^($suites)(_[0-9]+)?\$"
}

meshes() {
  local number=$1
  LEHR_ALL_MESHES=1 LEHR_TEST_SEED=$seed GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$((number - 1)) \
    OMP_WAIT_POLICY=PASSIVE script/run_meshes.sh build
}

interop() {
  make build && script/bench_setup.sh && make test ARGS='-R ^interop' && ! grep -q 'skipped: ' build/results/ctest.xml
}

# The check of a GPU, on the CPU, without a network, and with the peer that it compares with.
rehearsal() {
  make gpu-build && script/bench_setup.sh &&
    .bench/bin/python script/gpu_check --build build --rehearse --no-network --out build/gpu_check &&
    ! grep 'transformers cannot be imported' build/gpu_check/results_rehearsal.md
}

configs() {
  make build && cmake --build build --target forked_commands && OMP_WAIT_POLICY=PASSIVE LEHR_TEST_SEED=$seed \
    python3 test/program/mutated_configs.py build/lehr build/bin/forked_commands 5000
}

draws() {
  make --no-print-directory configure && cmake --build build --target train_draws_test &&
    LEHR_DRAWS=300 LEHR_TEST_SEED=$seed OMP_WAIT_POLICY=PASSIVE build/bin/train_draws_test --gtest_brief=1
}

# Each pair of features in a run that equals one device or is refused for a reason (docs/composition.md); an eighth.
pairs() {
  make --no-print-directory configure && cmake --build build --target train_draws_test &&
    LEHR_DRAWS=pairs:$1/$count LEHR_TEST_SEED=$seed OMP_WAIT_POLICY=PASSIVE build/bin/train_draws_test --gtest_filter='*EveryPair*'
}

faults() {
  make faults ARGS="--seed $seed"
}

run_as_planned() {
  make build && OMP_WAIT_POLICY=PASSIVE python3 test/program/plan_and_run.py build/lehr
}

# Every page and link of the site; nothing is loaded from another host.
site() {
  make docs && ! grep -rlE '<(script|link|img|iframe)[^>]* (src|href)="(https?:)?//' build/site --include='*.html'
}

notebooks() {
  make wheel && script/notebooks.sh --setup && LEHR_ALL_NOTEBOOKS=1 make test ARGS='-R ^notebooks$' && ! grep -q 'skipped: ' build/results/ctest.xml
}

# Each parser's harness, from the seeds of the repository and with the random numbers of the share.
fuzz() {
  make fuzz ARGS="--seconds 8 --seed $seed"
}

optionals() {
  script/setup.sh clang-tidy && make --no-print-directory configure PRESET=dev &&
    script/tidy.sh --checks='-*,bugprone-unchecked-optional-access' --all --share "$1/$count"
}

run_share() {
  local number=$1 preset suites extras
  read -r preset suites extras <<<"${shares[number - 1]}"
  step "share $number: all meshes, an eighth" meshes "$number"
  step "share $number: pairs of features, an eighth" pairs "$number"
  step "share $number: $preset of $suites" sanitized "$preset" "$suites"
  [[ " $extras " != *' g++ '* ]] || step "share $number: g++ of everything" script/second_compiler.sh
  [[ " $extras " != *' interop '* ]] || step "share $number: interop with transformers and peft" interop
  [[ " $extras " != *' gpu '* ]] || step "share $number: rehearsal of gpu-check" rehearsal
  [[ " $extras " != *' configs '* ]] || step "share $number: configs, 5,000 mutated ones" configs
  [[ " $extras " != *' draws '* ]] || step "share $number: draws, 300 random runs" draws
  [[ " $extras " != *' faults '* ]] || step "share $number: faults in real runs" faults
  [[ " $extras " != *' run-as-planned '* ]] || step "share $number: run-as-planned, the quickstart" run_as_planned
  [[ " $extras " != *' site '* ]] || step "share $number: site, every page and link" site
  [[ " $extras " != *' notebooks '* ]] || step "share $number: notebooks" notebooks
  [[ " $extras " != *' fuzz '* ]] || step "share $number: fuzz, each parser" fuzz
  step "share $number: optionals that are read without a look, an eighth of the sources" optionals "$number"
  step "share $number: mutants (planted bugs), an eighth" make mutants ARGS="--share $number/$count"
}

# A function of the commit, so that failures can be reproduced.
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
