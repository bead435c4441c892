"""Commands of the program whose results are dicts.

inspect and verify compute in this process. plan, evaluate, score and search run the program, and read what it writes.
With progress=True they show its log and progress on sys.stderr, by default on a terminal and in a notebook; a function
gets each line as text. Ctrl-C stops the program, which says what is kept, and raises KeyboardInterrupt.
"""
from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Mapping, Union

from ._config import overrides_of
from ._module import Error, call, expect_device, expect_dtype, operators
from ._running import Progress, run

import torch

Config = Union[str, "os.PathLike[str]", Mapping[str, Any]]


def _run(command: str, config: Any, overrides: Mapping[str, Any] | None, options: Mapping[str, Any],
         progress: Progress, good: tuple[int, ...] = (0,)) -> str:
    """Runs a command of the program and returns its standard output."""
    with tempfile.TemporaryDirectory() as folder:
        keys = overrides_of(overrides or {})
        if isinstance(config, Mapping):
            keys = overrides_of(config) | keys
            config = Path(folder) / "config.toml"
            config.write_text("")
        arguments = [command, os.fspath(config)]
        for name, value in options.items():
            name = name if "." in name else name.replace("_", "-")  # machine.memory_gb is a key, memory_gb an option
            if isinstance(value, bool) and "." not in name:
                arguments.append(f"--{'' if value else 'no-'}{name}")
            elif value is not None:
                if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
                    value = ",".join(value)  # names, as kinds="kv_heads,ffn"
                text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else json.dumps(value)
                arguments.append(f"--{name}={text}")
        arguments += [f"--{key}={value}" for key, value in keys.items()]
        code, output, log = run(arguments, progress)
    if code not in good:
        message = re.split(r"^\d\d:\d\d:\d\d .*\n?", log, flags=re.MULTILINE)[-1].strip()  # what follows the log
        raise Error(message.removeprefix("error: ") or f"lehr {command}: exit code {code}")
    return output


def inspect(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Describes a model folder: model_type, config, num_parameters, flops_per_token (in training at 4096 tokens),
    kv_cache_per_token by layer, and tensors with name, dtype and shape. Loads no weights.

        lehr.inspect("Qwen3-0.6B")["num_parameters"]
    """
    return json.loads(call(operators.inspect, os.fspath(folder)))


def verify(folder: str | os.PathLike[str], reference: str | os.PathLike[str] | None = None, *, device: str = "cpu",
           dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Compares a model with a reference (docs/verify.md). Returns ok, rows with name, max_abs, max_rel, tolerance and
    ok, and left_out, the reference's tensors that were not compared.

        assert lehr.verify("reference/")["ok"]
    """
    return json.loads(call(operators.verify, os.fspath(folder), os.fspath(reference or ""), expect_device(device),
                           expect_dtype(dtype)))


def plan(config: Config, overrides: Mapping[str, Any] | None = None, *, progress: Progress = None,
         **options: Any) -> dict[str, Any]:
    """Predicts time and memory of a run: the content of plan.json (docs/plan.md). Options are those of `lehr plan`;
    with output, a folder, the report and its pictures are kept there.

        lehr.plan("run.toml", devices=8, machine="h100")
    """
    if options.get("calibrate"):
        raise Error("lehr.plan: calibrate prints a machine and makes no plan; run: lehr plan --calibrate > machine.toml, "
                    "and pass machine=\"machine.toml\"")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(options.pop("output", None) or folder) / "plan.json"
        before = file.stat().st_mtime_ns if file.exists() else None
        printed = _run("plan", config, overrides, {**options, "output": file.parent}, progress,
                       good=(0, 3))  # 3: it does not fit
        if not file.exists() or file.stat().st_mtime_ns == before:  # a search found nothing
            raise Error(f"lehr plan: made no plan; it printed:\n{printed.strip()}")
        return json.loads(file.read_text())


def evaluate(config: Config, overrides: Mapping[str, Any] | None = None, *, progress: Progress = None,
             **options: Any) -> dict[str, Any]:
    """Loss and perplexity on the held-out data of a config. Options are those of `lehr eval`.

        lehr.evaluate("run.toml", model="my_model")["perplexity"]
    """
    return json.loads(_run("eval", config, overrides, options, progress))


def score(config: Config, output: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, *,
          progress: Progress = None, **options: Any) -> dict[str, Any]:
    """Scores the parts of a model for pruning, and writes them to the folder `output`: the content of scores.json
    (docs/score.md). Options are those of `lehr score`.

        lehr.score("run.toml", "outputs/scores", kinds="kv_heads")
    """
    _run("score", config, overrides, {**options, "output": output}, progress)
    return json.loads((Path(output) / "scores.json").read_text())


def search(config: Config, output: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, *,
           progress: Progress = None, **options: Any) -> dict[str, Any]:
    """Finds the best smaller version of a trained model, in the folder `output`: the content of search.json
    (docs/search.md). Run it again to resume. Options are those of `lehr search`.

        lehr.search("search.toml", "outputs/search", {"budget.parameters": "50 %"})
    """
    _run("search", config, {**(overrides or {}), "search.output": os.fspath(output)}, options, progress)
    return json.loads((Path(output) / "search.json").read_text())
