"""Runs Lehr and PyTorch's FSDP2 and DCP alternately, two ranks each over Gloo, and writes bench/results_ranks.md.

    make bench-fsdp                               builds the benchmarks, then runs this script
    .bench/bin/python bench/fsdp.py --presets tiny --dtypes fp32 --rounds 3

Both start from the same weights, and their losses must agree. A rank has one thread and its own sequences. The two
alternate within a round, so that load on the machine affects both; ratios are computed per round.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time

import memory_law
from compare import HERE, SHAPES, cpu_name, run, spread
from report import Report

TOLERANCE = {"fp32": 1e-4, "amp": 2e-2}  # of losses; bfloat16 has 8 bits
KEPT = "Lehr recomputes matmul outputs of every second layer in backward, its default; FSDP2 saves all activations."


def others_share(work):
    """Returns the result of `work`, and the mean number of cores that other processes kept busy meanwhile."""
    ticks = os.sysconf("SC_CLK_TCK")

    def busy():
        with open("/proc/stat") as f:
            user, nice, system = (int(word) for word in f.readline().split()[1:4])
        return (user + nice + system) / ticks

    before, own, begin = busy(), os.times(), time.perf_counter()
    result = work()
    after = os.times()
    mine = after.children_user + after.children_system - own.children_user - own.children_system
    return result, max(0.0, busy() - before - mine) / (time.perf_counter() - begin)


class Rounds:
    """Starts programs on two or more ranks, and records the load of the machine by other processes."""

    def __init__(self, a):
        build = os.path.abspath(a.build)
        self.launch = [os.path.join(build, "lehr"), "launch", "-n"]
        self.theirs = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        self.bin = os.path.join(build, "bin")
        self.others = []
        os.environ["OMP_NUM_THREADS"] = "1"

    def lehr(self, program, arguments, ranks=2):
        return self.measure(self.launch + [str(ranks), "--", os.path.join(self.bin, program + "_bench")] + arguments)

    def peer(self, script, arguments):
        return self.measure(self.theirs + [os.path.join(HERE, script)] + arguments)

    def measure(self, command):
        result, others = others_share(lambda: run(command))
        self.others.append(others)
        if result is None:
            sys.exit("a contender failed")
        return result


def training(rounds, a, preset, dtype, folder):
    seq, batch = SHAPES[preset]
    batch = max(1, batch // 2)
    work = ["--model", folder, "--dtype", dtype, "--seq", str(seq), "--batch", str(batch), "--steps", str(a.steps),
            "--warmup", "2", "--threads", "1"]
    pairs = [(rounds.lehr("train_step", work), rounds.peer("peer_fsdp2.py", work)) for _ in range(a.rounds)]
    gap = max(abs(x - y) for ours, theirs in pairs for x, y in zip(ours["losses"], theirs["losses"]))
    if gap > TOLERANCE[dtype]:
        sys.exit(f"{preset} {dtype}: losses differ by {gap:.1e}, so the two did not do the same work")
    speed = [x["tokens_per_s"] / y["tokens_per_s"] for x, y in pairs]
    memory = [x["peak_rss_mb"] / y["peak_rss_mb"] for x, y in pairs]
    ours, theirs = ([pair[i] for pair in pairs] for i in (0, 1))

    def middle(results, key):
        return statistics.median(r[key] for r in results)

    row = (f"| {preset} | {dtype} | {middle(ours, 'tokens_per_s'):.0f} | {middle(theirs, 'tokens_per_s'):.0f} | "
           f"{spread(speed)} | {middle(ours, 'peak_rss_mb'):.0f} | {middle(theirs, 'peak_rss_mb'):.0f} | {spread(memory)} | {gap:.0e} |")
    print(row, flush=True)
    return row


def raw_write(folder, megabytes):
    """Returns the seconds of a plain write and fsync of as many MB."""
    block = os.urandom(8_000_000)
    path = os.path.join(folder, "raw")
    begin = time.perf_counter()
    with open(path, "wb", buffering=0) as f:
        for _ in range(int(megabytes / 8)):
            f.write(block)
        os.fsync(f.fileno())
    seconds = time.perf_counter() - begin
    os.remove(path)
    return seconds


def checkpoints(rounds, a, folder, disk):
    work = ["--model", folder, "--folder", os.path.join(disk, "checkpoints"), "--runs", "2"]
    rows = []
    for _ in range(a.rounds):
        # DCP leaves dirty pages in the page cache: sync before each contender, so that it does not pay for the other.
        os.sync()
        ours = rounds.lehr("checkpoint_ranks", work)
        os.sync()
        theirs = rounds.peer("peer_dcp.py", work)
        os.sync()
        disk_s = raw_write(disk, ours["mb"])
        for i in range(len(ours["save_s"])):
            rows.append({"disk": disk_s} | {f"lehr {key}": ours[key][i] for key in ours if key.endswith("_s")}
                        | {f"dcp {key}": theirs[key][i] for key in theirs if key.endswith("_s")})
    seconds = {"save": ("lehr save_s", "dcp save_s"), "load from the disk": ("lehr load_s", "dcp cold_load_s"),
               "the same, checksums compared": ("lehr checked_load_s", "dcp cold_load_s"),
               "load from the page cache": ("lehr cached_load_s", "dcp load_s"),
               "the same, with checksums": ("lehr cached_checked_load_s", "dcp load_s")}
    table = [f"| {name} | {spread([row[our] for row in rows])} | {spread([row[their] for row in rows])} | "
             f"{spread([row[their] / row[our] for row in rows])} |" for name, (our, their) in seconds.items()]
    write = [row["disk"] for row in rows]
    table += [f"| plain write and fsync of as much | {spread(write)} | | {spread([row['disk'] / row['lehr save_s'] for row in rows])} |"]
    print("\n".join(table), flush=True)
    return [f"State of {ours['mb']:.0f} MB: float32 weights and AdamW's moments, in the files of each. Seconds, median (min to max); DCP "
            "has no checksums.", "", "| operation | Lehr | DCP | times as fast |", "| --- | --- | --- | --- |"] + table


def background(rounds, a, folder, disk):
    """Measures the cost of one asynchronous save, against steps without one. CPU time does not depend on other load."""
    seq, _ = SHAPES["small"]
    work = ["--model", folder, "--seq", str(seq), "--batch", "1", "--steps", str(a.save_every), "--warmup", "2", "--threads", "1"]
    wall, cpu, waited, written = [], [], [], []
    for _ in range(a.rounds):
        without = rounds.lehr("train_step", work)
        saving = rounds.lehr("train_step", work + [f"--save_every={a.save_every}",
                                                   "--save_folder=" + os.path.join(disk, "background")])
        wall.append(100 * (sum(saving["step_ms"]) / sum(without["step_ms"]) - 1))
        cpu.append(100 * (saving["cpu_s"] / without["cpu_s"] - 1))
        waited.append(saving["save_wait_s"][-1])
        written.append(saving["save_write_s"][-1])
    table = [f"| {name} | {spread(values)} |" for name, values in (
        ("more wall time, %", wall), ("more CPU time of all ranks, %", cpu), ("wait of the loop for the copy, s", waited),
        ("writing in the thread, s", written))]
    print("\n".join(table), flush=True)
    return [f"Preset small in float32, one save in {a.save_every} steps, against as many steps without.", "",
            "| cost | median (min to max) |", "| --- | --- |"] + table


def put(report, rounds, a, title, measure):
    """Measures one section, and writes the report with it."""
    rounds.others = []
    lines = measure()
    report.put(title, [
        f"{cpu_name()}, {os.cpu_count()} cores, of which other programs took {spread(rounds.others)} meanwhile; one thread per rank"
        + ("." if "closed" in title else f"; {a.rounds} alternating rounds, {a.steps} timed training steps each after 2 others."),
        ""] + lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    p.add_argument("--presets", default="tiny,small")
    p.add_argument("--dtypes", default="fp32,amp")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--save-every", type=int, default=20)
    p.add_argument("--parts", default="training,memory,checkpoints,background",
                   help="parts to measure (default: %(default)s); other sections of the report are kept")
    p.add_argument("--disk", help="folder on the disk to measure; default: the folder for temporary files")
    p.add_argument("--out", default=os.path.join(HERE, "results_ranks.md"))
    a = p.parse_args()
    rounds = Rounds(a)
    parts = a.parts.split(",")
    report = Report(a.out, "Ranks over Gloo, side by side", "Written by bench/fsdp.py, part by part.")
    with tempfile.TemporaryDirectory() as models, tempfile.TemporaryDirectory(dir=a.disk) as disk:
        presets = set(a.presets.split(",")) if "training" in parts else set()
        presets |= {"small"} if {"checkpoints", "background"} & set(parts) else set()
        memory_law.save_models(models, sorted(presets))
        if "training" in parts:
            head = ["| preset | dtype | tokens/s: Lehr | FSDP2 | ratio (min to max) | peak MB of both ranks: Lehr | FSDP2 | "
                    "ratio (min to max) | losses differ by at most |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
            put(report, rounds, a, "Training: FSDP on 2 ranks", lambda: [KEPT, ""] + head + [
                training(rounds, a, preset, dtype, os.path.join(models, preset))
                for preset in a.presets.split(",") for dtype in a.dtypes.split(",")])
        if "memory" in parts:
            put(report, rounds, a, "Peak memory and its closed form", lambda: memory_law.section(rounds, models))
        if "checkpoints" in parts:
            put(report, rounds, a, "Checkpoints of 2 ranks", lambda: checkpoints(rounds, a, os.path.join(models, "small"), disk))
        if "background" in parts:
            put(report, rounds, a, "Saving in the background", lambda: background(rounds, a, os.path.join(models, "small"), disk))


if __name__ == "__main__":
    main()
