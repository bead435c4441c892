#!/usr/bin/env bash
# Makes a Python environment, or does nothing if it is current: script/python_env.sh FOLDER REQUIREMENTS [torch]
# With `torch` it shares the torch of .venv instead of installing a second copy.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$1 requirements=$2 stamp=$1/.lehr-setup
[ "$(cat "$stamp" 2>/dev/null)" != "$(cksum "$requirements")" ] || exit 0
if [ ! -x "$folder/bin/python" ]; then
  # The Python of .venv, whose version torch's wheel supports; script/setup.sh created it.
  python=.venv/bin/python
  [ -x $python ] || python=${PYTHON:-python3}
  "$python" -m venv "$folder" || { echo "$folder: $python cannot make an environment; run make setup" >&2; exit 1; }
fi
[ "${3:-}" != torch ] ||
  (cd .venv/lib/python3*/site-packages && pwd) >"$(echo "$folder"/lib/python3*/site-packages)/torch_of_venv.pth"
"$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements"
cksum "$requirements" >"$stamp"
