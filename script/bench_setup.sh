#!/usr/bin/env bash
# Installs the peers of the benchmarks into .bench: a Python environment with transformers, JAX, tokenizers and .venv's
# torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stamp=.bench/.lehr-setup
[ "$(cat "$stamp" 2>/dev/null)" != "$(cksum bench/requirements.txt)" ] || exit 0
script/setup.sh g++ python3-dev  # torch.compile compiles C++ that includes Python.h
[ -x .bench/bin/python ] || .venv/bin/python -m venv .bench
# Shares .venv's torch instead of installing a second copy.
(cd .venv/lib/python3*/site-packages && pwd) >"$(echo .bench/lib/python3*/site-packages)/torch_of_venv.pth"
.bench/bin/pip install --quiet -r bench/requirements.txt
cksum bench/requirements.txt >"$stamp"
