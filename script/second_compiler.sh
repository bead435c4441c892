#!/usr/bin/env bash
# Compiles everything (library, program, tests, benchmarks) with g++ and warnings as errors (preset ci), and runs the tests
# of some folders. If CCACHE_DIR is set, objects are cached there between runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CXX=g++
script/setup.sh g++ libbenchmark-dev ${CCACHE_DIR:+ccache}
make --no-print-directory configure PRESET=ci
cmake -DLEHR_BENCH=ON build/ci >/dev/null
make --no-print-directory test PRESET=ci ARGS="-R '^(base|ops|optim|structure)\$\$'"
cmake --build build/ci --target lehr_benchmarks
