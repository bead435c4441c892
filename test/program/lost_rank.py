"""Time from the loss of one of four ranks to the next finished step: preset `small` under lehr launch --restarts --min-ranks.

Usage: lost_rank.py LEHR [--kills N] [--seed N] [--table FILE]      (standard library only; run in the root of the repository)

The model is that of bench/profile_small.toml, whose step has 1024 tokens, here 256 per rank (dp_shard 4). A rank that has
failed once already is killed at a random instant of a step: it is left out, and two ranks go on (three do not divide the four
sequences of a step). Local checkpoints are in memory. The stages of the time are those that the log shows; the last one is the step itself.
"""
import argparse, os, random, re, shutil, signal, statistics, sys, tempfile, threading, time
from pathlib import Path

from disturbed_run import Run

RANKS = 4
CONFIG = "bench/profile_small.toml"
SETTINGS = ["--parallelism.data_parallel_shard_degree=4", "--training.global_batch_size=4", "--training.seq_len=256",
            "--training.steps=1000000", "--checkpoint.enable=true", "--checkpoint.interval=1000", "--checkpoint.local_interval=1"]
# The end of each stage, as a pattern for a line of the output; the lines come in this order.
STAGES = {
    "detected, ranks ended": re.compile(r"starting all ranks again"),
    "program started, ranks connected": re.compile(r"^\d\d:\d\d:\d\d "),
    "checkpoint checked and loaded": re.compile(r"resuming from"),
    "step": re.compile(r"\bstep +\d+/"),
}


class Output:
    """The lines that a run prints, with the times at which they came."""

    def __init__(self, process):
        self.lines, self.process = [], process
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def wait_for(self, pattern, after=0, seconds=600):
        """Returns the index of the first line from `after` on that matches."""
        until = time.monotonic() + seconds
        index = after
        while time.monotonic() < until:
            while index < len(self.lines):
                if pattern.search(self.lines[index][1]):
                    return index
                index += 1
            if self.process.poll() is not None and not self.thread.is_alive() and index == len(self.lines):
                break
            time.sleep(0.005)
        raise RuntimeError(f"no line matches {pattern.pattern}:\n" + "\n".join(line for _, line in self.lines[-20:]))


def stages_of(lines, kill):
    """Returns the seconds of each stage, from the lines (time, text) after the kill."""
    seconds, before, index = {}, kill, 0
    for name, pattern in STAGES.items():
        while not pattern.search(lines[index][1]):
            index += 1
        seconds[name] = lines[index][0] - before
        before = lines[index][0]
        index += 1
    return seconds


def lose_a_rank(lehr, folder, memory, rng):
    """Kills one rank twice; returns the stages after the second time, and the number of ranks that go on."""
    run = Run(lehr, folder, CONFIG, RANKS, [*SETTINGS, f"--checkpoint.local_folder={memory}"])
    victim = rng.randrange(RANKS)
    run.start(launch=("--restarts", 2, "--min-ranks", 1), loud=True)
    output = Output(run.process)
    try:
        last = output.wait_for(STAGES["program started, ranks connected"])
        run.hit(victim, signal.SIGKILL)  # its first failure
        last = output.wait_for(STAGES["detected, ranks ended"], last)
        last = output.wait_for(STAGES["step"], last)
        last = output.wait_for(STAGES["step"], last + 1)  # before its update, the local checkpoint of the step before is complete
        seconds = run.metrics()[-1]["step_seconds"]
        time.sleep(rng.uniform(0, seconds))
        first = len(output.lines)
        kill = time.monotonic()
        run.hit(victim, signal.SIGKILL)
        last = output.wait_for(STAGES["detected, ranks ended"], first)
        output.wait_for(STAGES["step"], last)
        text = "\n".join(line for _, line in output.lines[first:])
        ranks = re.search(r"is left out; the run continues with (\d+) ranks", text)
        if not ranks:
            raise RuntimeError(f"rank {victim} was not left out:\n{text}")
        return stages_of(output.lines[first:], kill), int(ranks[1])
    finally:
        run.process.send_signal(signal.SIGTERM)
        try:
            run.process.wait(timeout=60)
        except Exception:
            run.process.kill()


def table_of(losses):
    lines = ["| loss | " + " | ".join(STAGES) + " | in all |", "| --- |" + " --- |" * (len(STAGES) + 1)]
    rows = [[f"{one[name]:.1f} s" for name in STAGES] + [f"{sum(one.values()):.1f} s"] for one in losses]
    lines += [f"| {number} | {' | '.join(row)} |" for number, row in enumerate(rows, 1)]
    medians = [f"{statistics.median(one[name] for one in losses):.1f} s" for name in STAGES]
    lines.append(f"| median | {' | '.join(medians)} | {statistics.median(sum(one.values()) for one in losses):.1f} s |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lehr", type=Path)
    parser.add_argument("--kills", type=int, default=10, help="lost ranks; default 10")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", type=Path, help="file for the table of docs/reliability.md")
    options = parser.parse_args()
    if options.kills < 1:
        parser.error("--kills: expected at least 1")
    rng = random.Random(options.seed)
    work = Path(tempfile.mkdtemp(prefix="lehr-lost-rank-"))
    memory = Path(tempfile.mkdtemp(prefix="lehr-lost-rank-", dir="/dev/shm"))
    losses = []
    try:
        for number in range(1, options.kills + 1):
            stages, ranks = lose_a_rank(options.lehr.resolve(), work / "run", memory, rng)
            losses.append(stages)
            print(f"{number} of {options.kills}: {sum(stages.values()):.1f} s to the next step, on {ranks} ranks: "
                  + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in stages.items())
                  + f"; load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)
    table = table_of(losses)
    print(table)
    if options.table:
        options.table.write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
