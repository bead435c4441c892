#!/usr/bin/env python3
"""Executes notebooks of example/notebook with the wheel, each in a minute or two, in a temporary folder.

Usage: notebooks.py LEHR BUILD [name ...]
Executes the notebooks that are named; without a name the first, or with LEHR_ALL_NOTEBOOKS=1 all.
Runs in this Python, in that of LEHR_NOTEBOOK_PYTHON, or in .venv-notebook (script/notebooks.sh makes it). Exit code 77: none has
nbclient, ipykernel, matplotlib and torch.
"""
import os, sys, tempfile, time
from pathlib import Path

from installed_wheel import install_wheel

root = Path(__file__).resolve().parents[2]
try:
    import ipykernel, matplotlib, nbclient, nbformat, torch
except ImportError as missing:
    other = os.environ.get("LEHR_NOTEBOOK_PYTHON", str(root / ".venv-notebook/bin/python"))
    if os.path.exists(other) and not os.environ.get("LEHR_PYTHON_TRIED"):
        os.environ["LEHR_PYTHON_TRIED"] = other
        os.execv(other, [other, *sys.argv])
    print(f"skipped: {missing}; set LEHR_NOTEBOOK_PYTHON to a Python with nbclient, ipykernel, matplotlib and torch, "
          "or run script/notebooks.sh --setup")
    sys.exit(77)

failed = []
with tempfile.TemporaryDirectory(prefix="lehr-notebooks-") as folder:
    packages, work = Path(folder, "packages"), Path(folder, "example/notebook")
    install_wheel(sys.argv[2], packages)
    work.mkdir(parents=True)
    Path(folder, "recipe").symlink_to(root / "recipe")
    os.environ |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")]))}
    notebooks = sorted((root / "example/notebook").glob("*.ipynb"))
    if sys.argv[3:]:
        notebooks = [path for path in notebooks if path.stem in sys.argv[3:]]
    elif not os.environ.get("LEHR_ALL_NOTEBOOKS"):
        notebooks = notebooks[:1]
    for path in notebooks:
        started = time.monotonic()
        notebook = nbformat.read(path, as_version=4)
        try:
            nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": work}}).execute()
        except (nbclient.exceptions.CellExecutionError, nbclient.exceptions.CellTimeoutError) as error:
            failed.append(path.name)
            print(f"FAILED {path.name}: {error}")
        else:
            outputs = sum(len(cell.get("outputs", [])) for cell in notebook.cells)
            print(f"passed {path.name}: {time.monotonic() - started:.0f} s, {outputs} outputs", flush=True)
        if keep := os.environ.get("LEHR_NOTEBOOK_OUTPUT"):
            nbformat.write(notebook, Path(keep, path.name))
sys.exit(bool(failed))
