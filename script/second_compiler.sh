#!/usr/bin/env bash
# Compiles everything (library, program, tests, benches) with g++ and warnings as errors, as `ci` of CMakePresets.json.
# Where CCACHE_DIR is set, objects are kept there between runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=(g++ libbenchmark-dev)
[ -z "${CCACHE_DIR:-}" ] || packages+=(ccache)
CXX=g++ script/setup.sh "${packages[@]}"
cmake --preset ci -DLEHR_BENCH=ON
cmake --build build/ci -j "$(nproc)" -- -k 0
