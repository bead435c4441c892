#!/usr/bin/env bash
# Trains on all combinations of model, mesh and schedule of the tests (LEHR_ALL_MESHES=1): run_meshes.sh BUILD_FOLDER.
# GTEST_TOTAL_SHARDS and GTEST_SHARD_INDEX select a part of them. A binary that takes 20 minutes is assumed to hang.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export LEHR_ALL_MESHES=1
make --no-print-directory configure && cmake --build "$1" --target train_mesh_test train_pipeline_test train_test plan_test \
  search_test || exit
# Every test that does less without LEHR_ALL_MESHES.
suites='*EveryMesh*:*EverySchedule*:*HeterogeneousMeshes*:*UnequalMoELayers*:*AFlippedBitIsNamed*:*IsNotReportedWithoutAFault*'
suites+=':*EveryKindOfRun*:Float8.*:GatheredAgain*:GatedDeltaNet*:KeyValueHeads*:*AnyMeshToAnyMesh*:*OnMeshes.*:KeptWhole*'
suites+=':*PipelineOfFamilies*:PartialTrainingOnStages*:Distillation.OnRanks*:Distillation.InPipelineStagesEquals*:*Recipes*'
suites+=':*FindsTheFastestPlanThatFits*:PeakMemory.EqualsThatOfRuns:PartsOfExperts*:*SearchScores*:*LocalDistillation*:*PuzzletronFiles*'
suites+=':Searches.FindChildrenOf*:Searches.ScoreInTheMemory*:Solver.EqualsBruteForce*'
passed=0 failed=0
for binary in train_mesh_test train_pipeline_test train_test plan_test search_test; do
  log=$1/results/all_meshes_$binary.log
  mkdir -p "$1/results"
  timeout --kill-after=30 1200 "$1/bin/$binary" --gtest_filter="$suites" --gtest_brief=1 2>&1 | tee "$log"
  code=${PIPESTATUS[0]}
  # A binary without any of these suites fails, too. Not `grep -q`, which would close the pipe early.
  env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX "$1/bin/$binary" --gtest_list_tests --gtest_filter="$suites" |
    grep '^  ' >/dev/null || code=none
  here=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) test.*/\1/p' "$log")
  [ "$code" = 0 ] || { failed=$((failed + 1)); echo "FAILED: $binary (exit code $code)"; }
  passed=$((passed + ${here:-0}))
done
[ "$passed" -gt 0 ] || { failed=$((failed + 1)); echo "FAILED: no test of these suites exists"; }
echo "$passed passed, $failed failed, 0 skipped"
exit $((failed > 0))
