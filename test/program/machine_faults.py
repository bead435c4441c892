"""Faults of the machine that a run is on: its memory, its disk and its clock (faults.py injects them)."""
import os, shutil, signal, subprocess, sys, time
from pathlib import Path

from disturbed_run import file_limit
from expectations import expect
from fault_harness import DIAGNOSED_IN, RANKS


class MemoryCgroup:
    """A new cgroup (version 1 or 2) for processes whose memory is limited; OSError if the system allows none."""

    def __init__(self):
        top = Path("/sys/fs/cgroup/memory")
        first = top.exists()
        self.limit, self.used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if first else ("memory.max", "memory.current")
        self.folder = (top if first else Path("/sys/fs/cgroup")) / f"lehr-faults-{os.getpid()}"
        self.folder.mkdir()
        if not (self.folder / self.limit).exists():
            self.folder.rmdir()
            raise OSError(f"{self.folder} has no {self.limit}")

    def wrap(self):
        """Returns what runs a command in the cgroup."""
        return "sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "-"

    def leave(self, bytes):
        """Limits the memory to what is used, and so much more."""
        (self.folder / self.limit).write_text(str(int((self.folder / self.used).read_text()) + bytes))

    def fill(self):
        """Allocates memory in the cgroup until the kernel has killed a process of it, but not the one that allocates."""
        program = """
import re
killed = lambda: int(re.search(r"^oom_kill (\\d+)", open("/proc/vmstat").read(), re.M)[1])
open("/proc/self/oom_score_adj", "w").write("-1000")
before, blocks = killed(), []
while killed() == before and len(blocks) < 1000:
    blocks.append(bytearray(b"x") * (1 << 20))
"""
        subprocess.run([*self.wrap(), sys.executable, "-c", program])

    def remove(self):
        self.folder.rmdir()


def too_little_memory(harness):
    """A limit below what the run needs is reported before memory is allocated, with both numbers, and ends it with an error."""
    run = harness.new_run("memory", 1)
    begin = time.monotonic()
    run.start("--model.args.hidden_size=8192", "--model.args.intermediate_size=32768", wrap=("prlimit", f"--as={6 << 30}"))
    took = harness.ends("memory", run, [1], r"the run needs [\d.]+ GiB, more than the [\d.]+ [GM]iB granted", r"memory", begin=begin)
    harness.rows.append(("a limit of memory that the run does not fit", f"{took:.1f} s", "-"))


def killed_for_memory(harness):
    """Another process uses up the memory of the ranks' cgroup, so that the kernel kills a rank."""
    try:
        group = MemoryCgroup()
    except OSError as error:
        print(f"skip  cgroup: {error}")
        return
    run = harness.new_run("cgroup", RANKS).start(wrap=group.wrap())
    run.wait_for(8)
    group.leave(64 << 20)
    begin = time.monotonic()
    group.fill()
    took = harness.ends("the kernel kills a rank", run, [137], r"rank \d was killed by signal 9 \(SIGKILL\)", r"for lack of memory", begin=begin)
    group.remove()
    harness.goes_on("the kernel kills a rank", run, "another process uses up the memory of the cgroup, and the kernel kills a rank", took)


def folder_removed(harness):
    run = harness.new_run("removed", RANKS).start()
    run.wait_for(10)
    shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
    error = run.end()
    good = harness.has_same_bits(run)
    expect("the folder of checkpoints is removed: later ones are saved, and the run ends with the same bits", good, f"{run.code}\n{error}")
    harness.rows.append(("the folder of checkpoints is removed during the run", "-", "the same bits"))


def disk_full(harness):
    run = harness.new_run("disk_full", 1)
    run.finish("--training.steps=10", "--lr_scheduler.decay_ratio=0.0")
    shutil.rmtree(run.folder)
    _, error = run.finish(wrap=file_limit(100))  # checkpoints are larger, the log is not
    expect("disk full: the run says which checkpoint was not saved", "was not saved" in error, error)
    expect("disk full: nothing half-written is published", not list(run.folder.glob("checkpoints/*")), list(run.folder.glob("checkpoints/*")))
    harness.goes_on("disk full", run, "the disk is full: the run goes on without checkpoints, and says so", 0)


def clock_jumps(harness):
    """The time of day jumps by an hour all the time: no time limit passes early, a sleeping rank is found as always, and the
    bits are the same."""
    compiler = next((found for name in ("clang++", "g++", "c++") if (found := shutil.which(name))), None)
    if compiler is None:
        print("skip  clock: there is no compiler for jumping_clock.cpp")
        return
    library = harness.work / "jumping_clock.so"
    source = Path(__file__).with_name("jumping_clock.cpp")
    subprocess.run([compiler, "-std=c++20", "-O1", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    run = harness.new_run("clock", RANKS)
    run.environment = {"LD_PRELOAD": str(library)}
    run.start()
    run.wait_for(20)
    victim = harness.rng.randrange(RANKS)
    begin = time.monotonic()
    run.hit(victim, signal.SIGSTOP)
    took = harness.ends("SIGSTOP while the clock jumps", run, [1, 137], rf"rank {victim}\b", r"was not finished within 5 s",
                        within=DIAGNOSED_IN + 10, begin=begin)
    harness.goes_on("the clock jumps", run,
                    "a rank is suspended while the wall clock jumps by an hour back and forth", took)
