#!/usr/bin/env bash
# The Python environment of the peers, .bench: transformers and tokenizers beside the torch of .venv. Nothing else needs it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
stamp=.bench/.lehr-setup
[ "$(cat "$stamp" 2>/dev/null)" != "$(cksum bench/requirements.txt)" ] || exit 0
[ -x .bench/bin/python ] || .venv/bin/python -m venv .bench
# The same torch for all, without a second copy of it.
(cd .venv/lib/python3*/site-packages && pwd) >"$(echo .bench/lib/python3*/site-packages)/torch_of_venv.pth"
.bench/bin/pip install --quiet -r bench/requirements.txt
cksum bench/requirements.txt >"$stamp"
