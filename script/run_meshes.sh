#!/usr/bin/env bash
# Trains on all pairs of model, mesh and schedule that tests know (LEHR_ALL_MESHES=1): run_meshes.sh BUILD_FOLDER.
# GTEST_TOTAL_SHARDS and GTEST_SHARD_INDEX choose a part of them.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export LEHR_ALL_MESHES=1
make --no-print-directory configure && cmake --build "$1" --target train_mesh_test train_pipeline_test train_test || exit
suites='*EveryMesh*:*EverySchedule*:*HeterogeneousMeshes*:*UnequalMoELayers*'
failed=0
for binary in train_mesh_test train_pipeline_test train_test; do
  "$1/bin/$binary" --gtest_filter="$suites" --gtest_brief=1 || failed=1
done
exit "$failed"
