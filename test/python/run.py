#!/usr/bin/env python3
"""Tests the Python package as users have it: installs the wheel in a temporary folder, and runs this folder's tests.

Usage: run.py LEHR BUILD [test ...]
Needs torch and pip, in this Python or in .venv. `run.py LEHR BUILD interop` compares with transformers, in this Python,
in the one that LEHR_INTEROP_PYTHON names, or in .bench. Exit code 77: no Python with torch, or with transformers.
"""
import os, sys, tempfile, unittest
from pathlib import Path

from installed_wheel import install_wheel

here = Path(__file__).resolve().parent
root = here.parents[1]
interop = "interop" in sys.argv[3:]
names = ["interop"] if interop else (sys.argv[3:] or ["model", "trainer", "program", "track", "docs"])

try:
    import torch
    if interop:
        import transformers
except ImportError as missing:
    usual = root / (".bench/bin/python" if interop else ".venv/bin/python")
    other = os.environ.get("LEHR_INTEROP_PYTHON", str(usual)) if interop else str(usual)
    if os.path.exists(other) and not os.environ.get("LEHR_PYTHON_TRIED"):
        os.environ["LEHR_PYTHON_TRIED"] = other
        os.execv(other, [other, *sys.argv])
    remedy = "set LEHR_INTEROP_PYTHON to a Python with torch and transformers" if interop else "run make setup"
    print(f"skipped: {missing}; {remedy}")
    sys.exit(77)

with tempfile.TemporaryDirectory(prefix="lehr-python-") as folder:
    install_wheel(sys.argv[2], folder)
    sys.path[:0] = [folder, str(here)]
    os.environ["LEHR_BUILT"] = os.path.abspath(sys.argv[1])
    os.environ["LEHR_INSTALLED"] = folder
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"{name}_tests" for name in names])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful() or result.testsRun == 0)
