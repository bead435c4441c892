"""Logs a run to Weights & Biases or MLflow from the files in its folder, even while it runs in another process."""
from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any, Iterator

_BATCH = 50  # steps that are logged before the last one is remembered


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """The metrics of a step. JSON has null for numbers that are not finite."""
    values = {key: float("nan") if value is None else value for key, value in row.items() if key != "step"}
    return {key: value for key, value in values.items() if isinstance(value, (int, float))}


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys and values: data.datasets.0.path."""
    items = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else None
    if items is None or not config:
        return {prefix[:-1]: config}
    return {name: value for key, item in items for name, value in _flat(item, f"{prefix}{key}.").items()}


class _Wandb:
    def __init__(self, folder: Path, config: dict[str, Any], project: str | None, run: str | None) -> None:
        import wandb
        self._run = wandb.init(project=project, name=folder.name, id=run, resume="allow" if run else None)
        self._run.config.update(config, allow_val_change=True)
        self.run = self._run.id

    def log(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._run.log(_numbers(row), step=row["step"])

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=1 if status == "stopped" else 0)


class _MLflow:
    def __init__(self, folder: Path, config: dict[str, Any], project: str | None, run: str | None) -> None:
        import mlflow
        self._entities, self._client = mlflow.entities, mlflow.MlflowClient()
        if run:
            self._client.update_run(run, status="RUNNING")
            self.run = run
            return
        name = project or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        self.run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        params = [self._entities.Param(key, str(value)[:6000]) for key, value in _flat(config).items()]
        for begin in range(0, len(params), 100):  # as many as a request may hold
            self._client.log_batch(self.run, params=params[begin:begin + 100])

    def log(self, rows: list[dict[str, Any]]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(key, value, now, row["step"]) for row in rows
                   for key, value in _numbers(row).items()]
        for begin in range(0, len(metrics), 1000):  # as many as a request may hold
            self._client.log_batch(self.run, metrics=metrics[begin:begin + 1000])

    def finish(self, status: str) -> None:
        if status != "running":
            self._client.set_terminated(self.run, "FINISHED" if status == "complete" else "KILLED")


_TRACKERS: dict[str, Any] = {"wandb": _Wandb, "mlflow": _MLflow}


class _Lines:
    """The lines of metrics.jsonl, while a run writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def read(self) -> Iterator[dict[str, Any] | None]:
        """Yields the whole lines that were appended since the last call. If a run that resumed has replaced the file,
        yields None, and then all lines."""
        if not self._path.exists():
            return
        now = self._path.stat()
        if self._file is None:
            self._file = open(self._path, "rb")
        elif os.fstat(self._file.fileno()).st_ino != now.st_ino or now.st_size < self._file.tell():
            self._file.close()
            self._file = open(self._path, "rb")
            yield None
        while True:
            begin = self._file.tell()
            line = self._file.readline()
            if not line.endswith(b"\n"):  # still being written
                self._file.seek(begin)
                return
            try:
                metrics = json.loads(line)
            except ValueError:
                continue
            if isinstance(metrics, dict) and isinstance(metrics.get("step"), int):
                yield metrics

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _is_running(folder: Path) -> bool | None:
    """Whether a run holds the lock of its folder; None if there is none to see."""
    try:
        lock = os.open(folder / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_UN)  # a forked process may have a copy of the descriptor
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(lock)


class _Log:
    """What one tracker has of a run: its id there and the last step, kept in a file beside the metrics."""

    def __init__(self, folder: Path, to: str, project: str | None) -> None:
        self._folder, self._to, self._project = folder, to, project
        self._file = folder / f"tracked_{to}.json"
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._run, self.last = known.get("run"), known.get("step", -1)
        self._tracker: Any = None
        self._rows: list[dict[str, Any]] = []

    def config(self) -> dict[str, Any]:
        file = self._folder / "config.toml"
        try:
            import tomllib
        except ImportError:  # Python 3.10
            warnings.warn("config.toml is not logged: this needs Python 3.11 or newer")
            return {}
        return tomllib.loads(file.read_text()) if file.exists() else {}

    def steps(self) -> int | None:
        """training.steps, read by its line, as Python 3.10 has no TOML."""
        file = self._folder / "config.toml"
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        section = re.search(r"^\[training\][ \t]*\n((?:(?!\[).*\n?)*)", text, re.M)
        found = section and re.search(r"^steps\s*=\s*([0-9_]+)", section[1], re.M)
        return int(found[1]) if found else None

    def add(self, row: dict[str, Any]) -> None:
        """Logs a step, unless an earlier call has."""
        if row["step"] > (self._rows[-1]["step"] if self._rows else self.last):
            self._rows.append(row)
            if len(self._rows) == _BATCH:
                self.write()

    def write(self) -> None:
        if not self._rows:
            return
        if self._tracker is None:
            try:
                self._tracker = _TRACKERS[self._to](self._folder, self.config(), self._project, self._run)
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError(f"{error}; install it: pip install {self._to}") from None
            self._remember()  # the tracker's run, before anything can fail
        self._tracker.log(self._rows)
        self.last = self._rows[-1]["step"]
        self._rows = []
        self._remember()

    def _remember(self) -> None:
        beside = self._file.with_suffix(".tmp")
        beside.write_text(json.dumps({"run": self._tracker.run, "step": self.last}) + "\n")
        beside.replace(self._file)

    def finish(self, status: str) -> None:
        if self._tracker is not None:
            self._tracker.finish(status)


def track(run: str | os.PathLike[str], to: str, *, follow: bool = False, project: str | None = None,
          interval: float = 2.0) -> int:
    """Logs a run of `lehr train` to a tracker, from the config.toml and metrics.jsonl in its folder. Returns the last
    step that the tracker has, -1 if it has none. Call it again for the steps that follow: tracked_wandb.json or
    tracked_mlflow.json in the folder keeps that step and the tracker's run, which is continued.

    to: "wandb" or "mlflow", whose package must be installed; each finds its server, or its files, by its own
    environment variables (WANDB_MODE=offline, MLFLOW_TRACKING_URI).
    follow: wait for new steps, every `interval` seconds, until the run has ended. Without it, the last step of a run
    that still trains is left for the next call, since its validation may follow.
    project: W&B's project or MLflow's experiment; default: the tracker's.

        lehr.track("outputs/quickstart", to="mlflow")
    """
    folder = Path(run)
    if to not in _TRACKERS:
        raise ValueError(f'to: expected "wandb" or "mlflow", found {to!r}; a run writes its TensorBoard files itself')
    if not follow and not (folder / "metrics.jsonl").exists():
        raise FileNotFoundError(f"{folder}: holds no metrics.jsonl; expected the folder of a run (job.dump_folder)")
    log, lines = _Log(folder, to, project), _Lines(folder / "metrics.jsonl")
    status, was_running = "running", False
    newest: dict[str, Any] | None = None  # its validation may follow on a line of its own
    try:
        while True:
            running = _is_running(folder)  # before the lines: a run that has ended has written all of them
            for line in lines.read():
                if line is not None and newest is not None and line["step"] == newest["step"]:
                    newest |= line
                    continue
                if line is not None and newest is not None:
                    log.add(newest)
                newest = line
            if newest is not None and not running:
                log.add(newest)
            log.write()
            steps = log.steps()
            is_complete = steps is not None and log.last >= steps
            if not running:
                status = "complete" if is_complete else "stopped"
            was_running = was_running or bool(running)
            if not follow or (not running and (is_complete or was_running)):
                break
            time.sleep(interval)
    finally:
        lines.close()
        log.finish(status)
    return log.last


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m lehr.track",
        description="Logs a run to Weights & Biases or MLflow, from the files in its folder. Repeat it for new steps.")
    parser.add_argument("run", help="folder of the run (job.dump_folder)")
    parser.add_argument("--to", choices=sorted(_TRACKERS), required=True, help="tracker; its package must be installed")
    parser.add_argument("--follow", action="store_true", help="wait for new steps until the run has ended")
    parser.add_argument("--project", help="W&B's project or MLflow's experiment; default: the tracker's")
    options = parser.parse_args()
    try:
        last = track(options.run, options.to, follow=options.follow, project=options.project)
    except (ImportError, OSError) as error:
        parser.exit(1, f"lehr.track: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "lehr.track: stopped; run it again to continue\n")
    print(f"{options.run}: logged up to step {last} to {options.to}")
