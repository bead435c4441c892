"""The Python of the interop tests: this one, or another that has what they import."""
import os, sys
from pathlib import Path


def run_there_or_skip(missing, needs):
    """Call it when an import failed with `missing`: runs the program in the Python that LEHR_INTEROP_PYTHON names, or in
    .bench (what `make bench` sets up). If there is none, or if it lacks a module too, exits with 77, which ctest shows as
    skipped."""
    usual = Path(__file__).resolve().parents[2] / ".bench/bin/python"
    other = os.environ.pop("LEHR_INTEROP_PYTHON", str(usual))
    if os.path.exists(other) and not os.environ.get("LEHR_INTEROP_TRIED"):
        os.environ["LEHR_INTEROP_TRIED"] = other
        os.execv(other, [other, *sys.argv])
    print(f"skipped: {missing}; set LEHR_INTEROP_PYTHON to a Python with {needs}")
    sys.exit(77)
