#!/usr/bin/env bash
# Installs the peers of the benchmarks into .bench: a Python environment with transformers, JAX, tokenizers and .venv's
# torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -x .bench/bin/python ] || script/setup.sh g++ python3-dev  # torch.compile compiles C++ that includes Python.h
script/python_env.sh .bench bench/requirements.txt torch
