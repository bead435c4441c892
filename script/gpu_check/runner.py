"""Runs steps one after the other, each with a time limit, keeps their logs, and collects one verdict per item."""
import os
import signal
import subprocess
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, TimeoutError as NotYet
from dataclasses import dataclass, field
from pathlib import Path

PASSED, FAILED, NOT_RUN = "passed", "FAILED", "not run"


class NotRun(Exception):
    """This item cannot be checked here; the message says why."""


class Failed(Exception):
    """This item failed; the message says how."""


@dataclass
class Verdict:
    step: str
    item: str
    status: str
    text: str = ""
    goal: str = ""
    seconds: float = 0

    def line(self):
        goal = f" (goal: {self.goal})" if self.goal else ""
        return f"{self.status:8} {self.step}: {self.item}{': ' + self.text if self.text else ''}{goal}"


@dataclass
class Step:
    name: str
    limit: float  # seconds
    work: object  # called with the check
    least: float = 5  # seconds that earlier steps leave to this one; it does not start with fewer


def last_lines(text, count=6):
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:] if line.strip())[-600:]


@dataclass
class Runner:
    """Runs all steps. `judges`: a missed goal is a failure; in a rehearsal goals are only shown."""
    out: Path
    env: dict
    root: Path
    total: float
    judges: bool = True
    verdicts: list = field(default_factory=list)
    saved: object = None  # called after each step with this runner

    def __post_init__(self):
        self.began = time.monotonic()
        self.step = None
        self.deadline = self.began + self.total
        self.beside = ThreadPoolExecutor(max_workers=2)
        self.processes = []
        self.log_folder = self.out / "logs"
        self.log_folder.mkdir(parents=True, exist_ok=True)

    def left(self):
        return self.deadline - time.monotonic()

    def limit_of(self, step, later):
        """Returns the seconds of a step: its limit, less what the later steps need at least, but its own least in any case."""
        spare = self.left() - sum(min(other.least, other.limit) for other in later)
        return min(step.limit, self.left(), max(spare, step.least))

    def perform(self, steps):
        for number, step in enumerate(steps, 1):
            begin = time.monotonic()
            limit = self.limit_of(step, steps[number:])
            print(f"\n[{number}/{len(steps)}] {step.name}: at most {limit:.0f} s; {self.left():.0f} s of "
                  f"{self.total:.0f} s are left", flush=True)
            self.step = step
            self.step_ends = begin + limit
            if limit < min(step.least, step.limit):
                self.note(step.name, NOT_RUN, "the time budget is spent")
            else:
                self.guarded(step.name, lambda: step.work(self))
            print(f"      {time.monotonic() - begin:.1f} s", flush=True)
            if self.saved:
                self.saved(self)

    def guarded(self, item, work):
        """Calls work(). An exception becomes this item's verdict, and the check continues."""
        try:
            return work()
        except NotRun as reason:
            self.note(item, NOT_RUN, str(reason))
        except Failed as problem:
            self.note(item, FAILED, str(problem))
        except Exception as problem:  # a bug of this script must not prevent later items
            (self.log_folder / "script_errors.log").open("a").write(f"{item}\n{traceback.format_exc()}\n")
            self.note(item, FAILED, f"{type(problem).__name__}: {problem} (logs/script_errors.log)")
        return None

    def note(self, item, status, text="", goal=""):
        verdict = Verdict(self.step.name if self.step else "", item, status, text, goal)
        self.verdicts.append(verdict)
        print("  " + verdict.line(), flush=True)

    def judge(self, item, reached, text, goal=""):
        """Notes an item with a goal; in a rehearsal it always passes."""
        self.note(item, PASSED if reached or not self.judges else FAILED, text, goal)

    def start(self, name, command, env=None):
        """Starts a process with a log, in its own process group, so that a time limit ends all of it."""
        log = open(self.log_folder / f"{name}.log", "wb")
        log.write(("$ " + " ".join(map(str, command)) + "\n").encode())
        log.flush()
        with log:
            process = subprocess.Popen([str(c) for c in command], cwd=self.root, env={**self.env, **(env or {})}, stdout=log,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)
        self.processes.append(process)
        return process

    def stop(self):
        """Ends background processes that still run."""
        self.beside.shutdown(wait=False, cancel_futures=True)
        for process in self.processes:
            if process.poll() is None:
                end(process)

    def log_of(self, name):
        return (self.log_folder / f"{name}.log").read_text(errors="replace").split("\n", 1)[-1]

    def run(self, name, command, limit=None, env=None, codes=(0,)):
        """Runs a command to its end within the step's time, and returns its output. Raises Failed for another exit code."""
        limit = min(limit or self.step.limit, self.step_ends - time.monotonic(), self.left())
        if limit <= 0:
            raise NotRun("the step's time is spent")
        process = self.start(name, command, env)
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            end(process)
            raise Failed(f"it did not end within {limit:.0f} s (logs/{name}.log: {last_lines(self.log_of(name), 2)})")
        if code not in codes:
            raise Failed(f"exit code {code} (logs/{name}.log: {last_lines(self.log_of(name))})")
        return self.log_of(name)

    def run_beside(self, name, command, limit=300, env=None):
        """Starts a command in the background, on the CPU; returns a future of its output."""
        def work():
            process = self.start(name, command, env)
            try:
                code = process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                end(process)
                raise Failed(f"{name} did not end within {limit:.0f} s")
            if code != 0:
                raise Failed(f"{name}: exit code {code} (logs/{name}.log: {last_lines(self.log_of(name))})")
            return self.log_of(name)
        return self.beside.submit(work)

    def wait_for(self, future):
        try:
            return future.result(timeout=max(1, min(self.step_ends - time.monotonic(), self.left())))
        except NotYet:
            raise NotRun("its background run on the CPU has not ended")


def end(process):
    """Kills a process and all its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
