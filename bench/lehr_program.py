"""Runs of the program from benchmarks in Python."""
import json
import os
import subprocess
from pathlib import Path


class Lehr:
    """The program at `path`, with that many threads; None: as many as it takes."""

    def __init__(self, path, threads=None):
        self.path = path
        self.variables = {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}

    def __call__(self, *arguments):
        done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True, env=self.variables)
        if done.returncode != 0:
            raise SystemExit(f"lehr {' '.join(map(str, arguments))}\n{done.stderr[-2000:]}")
        return done.stdout

    def loss(self, recipe, model):
        return json.loads(self("eval", recipe, "--model", model))["loss"]


def newest_checkpoint(folder):
    """Returns the path of a run's newest checkpoint."""
    return max((Path(folder) / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
