#!/usr/bin/env bash
# Opens the notebooks in Jupyter with this tree's wheel (make wheel first), or with --run executes them all. Installs what
# they need into .venv-notebook.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
script/python_env.sh .venv-notebook example/notebook/requirements.txt torch
case ${1:-} in
  --run) LEHR_ALL_NOTEBOOKS=1 exec .venv-notebook/bin/python test/python/notebooks.py build/lehr build ;;
  --setup) exit ;;
  '') ;;
  *) echo "notebooks: expected --run, --setup or nothing, found '$1'" >&2; exit 2 ;;
esac
wheel=$(cat build/wheel/wheel.txt 2>/dev/null) || { echo "notebooks: there is no wheel yet; run make wheel" >&2; exit 1; }
.venv-notebook/bin/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
.venv-notebook/bin/pip install --quiet --disable-pip-version-check jupyterlab
exec .venv-notebook/bin/jupyter lab example/notebook
