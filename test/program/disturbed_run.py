"""A run of lehr train that a test disturbs: its processes, its steps, and what it must not leave behind.

The ranks are one process, processes of lehr launch, or threads of one process (standard library only).
"""
import json, os, random, subprocess, time
from pathlib import Path


class Run:
    """A run in a folder of its own. `arguments` follow `lehr train CONFIG` at each start, and `environment` is added to ours."""

    def __init__(self, lehr, folder, config, ranks=1, arguments=(), threads=False, environment=None, rng=random):
        self.lehr, self.folder, self.config = Path(lehr), Path(folder), Path(config)
        self.ranks, self.arguments, self.threads, self.rng = ranks, list(arguments), threads, rng
        self.environment = environment
        self.process, self.code, self.pids = None, None, {}

    def command(self, *more, launch=(), by=(), loud=False):
        """Returns the command of a start; `launch` are options of lehr launch, `by` is another launcher's command."""
        quiet = [] if loud else ["--quiet"]
        train = ["train", self.config, *quiet, f"--job.dump_folder={self.folder}", *self.arguments, *more]
        threads = ["--threads"] if self.threads else []
        ranks = ["launch", "-n", self.ranks, *threads, *launch, "--"] if self.ranks > 1 and not by else []
        return [str(word) for word in [*by, self.lehr, *ranks, *train]]

    def start(self, *more, launch=(), by=(), wrap=(), loud=False):
        """Starts the run; `wrap` is a command that runs the command after it, such as one that limits the size of files. With
        `loud` it logs its steps, and both outputs are one."""
        self.process = subprocess.Popen([*wrap, *self.command(*more, launch=launch, by=by, loud=loud)],
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT if loud else subprocess.PIPE, text=True,
                                        env={**os.environ, **self.environment} if self.environment else None)
        self.code, self.pids = None, {}
        return self

    def end(self, seconds=300):
        """Waits for the end, sets `code`, and returns standard error (of a loud run all output); a run that hangs is killed, and
        has no exit code."""
        try:
            output, error = self.process.communicate(timeout=seconds)
            error = output if error is None else error
        except subprocess.TimeoutExpired:
            self.process.kill()
            error = "it hangs"
        self.code = self.process.returncode
        return error

    def finish(self, *more, **how):
        """Starts the run and waits for its end; returns exit code and standard error."""
        error = self.start(*more, **how).end()
        return self.code, error

    def is_running(self):
        return self.process.poll() is None

    def steps(self):
        """Returns the number of steps in metrics.jsonl, which a resumed run first cuts to those of its checkpoint."""
        try:
            return sum('"loss"' in line for line in (self.folder / "metrics.jsonl").read_text().splitlines())
        except OSError:
            return 0

    def wait_for(self, step):
        while self.is_running() and self.steps() < step:
            time.sleep(0.01)
        time.sleep(self.rng.uniform(0, 0.1))

    def pid(self, rank):
        """Returns the process of a rank, or 0; found once per start, since a search takes longer than a save."""
        if self.ranks == 1 or self.threads:
            return self.process.pid
        if rank in self.pids and f"\0RANK={rank}\0" in environment(self.pids[rank]):  # not since the launcher's restart
            return self.pids[rank]
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        self.pids = {r: int(pid) for pid in children for r in range(self.ranks) if f"\0RANK={r}\0" in environment(pid)}
        return self.pids.get(rank, 0)

    def hit(self, rank, number):
        """Sends a signal to a rank; returns false if its process has ended."""
        pid = self.pid(rank)
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:  # the run has just ended
            return False
        return pid != 0

    def checkpoint(self, step):
        return self.folder / f"checkpoints/step-{step}"

    def checkpoints(self):
        """Returns the published checkpoints, oldest first, without those that were set aside."""
        whole = [path for path in self.folder.glob("checkpoints/step-*") if path.name[5:].isdigit()]
        return sorted(whole, key=lambda path: int(path.name[5:]))

    def newest(self):
        return self.checkpoints()[-1]

    def bits(self, step):
        return {stem: (self.checkpoint(step) / f"{stem}.safetensors").read_bytes() for stem in ("model", "optimizer")}

    def losses(self):
        return {line["step"]: line["loss"] for line in self.metrics() if "loss" in line}

    def metrics(self):
        """Returns the whole lines of metrics.jsonl; a kill may have cut the last one."""
        try:
            lines = (self.folder / "metrics.jsonl").read_text().split("\n")[:-1]
        except OSError:
            return []
        return [json.loads(line) for line in lines]

    def processes(self):
        """Returns the processes that have the folder in their command line."""
        return [pid for pid in filter(str.isdigit, os.listdir("/proc")) if str(self.folder) in command_line(pid)]

    def has_half_written(self):
        return any(name.startswith(".step-") and name.endswith(".saving") for name in names(self.folder / "checkpoints"))

    def wait_for_a_save(self, instant="write"):
        """Returns within a checkpoint's writing, or for "rename" right after it has got its name."""
        while self.is_running() and not self.has_half_written():
            pass  # a save takes milliseconds
        if instant == "write":
            time.sleep(self.rng.uniform(0, 0.003))
        while instant == "rename" and self.is_running() and self.has_half_written():
            pass

    def leftovers(self):
        """Returns what a run must not leave: processes, and half-written checkpoints."""
        return self.processes() + [path.name for path in self.folder.glob("checkpoints/.*step-*")]


def environment(pid):
    try:
        return "\0" + Path(f"/proc/{pid}/environ").read_text()
    except OSError:  # the process has just ended
        return ""


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def wait_until(condition, seconds):
    """Waits until the condition holds, at most so long; returns whether it holds."""
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.01)
    return condition()


def file_limit(kib):
    """Returns what runs a command as if the disk were full, without privileges: writes of larger files fail."""
    return "bash", "-c", f'ulimit -f {kib}; exec "$@"', "-"


def flip_a_bit(path, rng, first=0):
    """Flips a random bit of a file, from byte `first` on; returns its byte."""
    raw = bytearray(path.read_bytes())
    byte = rng.randrange(first, len(raw))
    raw[byte] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    return byte
