"""Runs Lehr and PyTorch's FSDP2 and DCP alternately, two ranks each over Gloo, and writes bench/results_ranks.md.

    make bench-fsdp                               builds the benchmarks, then runs this script
    .bench/bin/python bench/fsdp.py --presets tiny --dtypes fp32 --rounds 3

Both start from the same weights; the script ends with an error, after all is measured, if losses or gradient norms differ
(bench/agree.py). A contender that dies is a row "did not run", and the report is written after every row. A rank has one
thread and its own sequences. The two alternate within a round, so that load on the machine affects both; ratios are
computed per round.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time

import memory_law
from agree import compare as same_work
from contenders import HERE, SHAPES, run, some_of, spread, why_not
from machine import cpu_class
from report import Report, Section

KEPT = "Lehr recomputes matmul outputs of every second layer in backward, its default; FSDP2 saves all activations."
PARTS = {"training": "Training: FSDP on 2 ranks", "memory": "Peak memory and its closed form",
         "checkpoints": "Checkpoints of 2 ranks", "background": "Saving in the background"}
PRESETS = [name for name in SHAPES if name != "moe"]  # bench/peer_fsdp2.py shards a dense model


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
        return result

    def load(self):
        """Returns a sentence about other programs since the last call."""
        text = f"Other programs took {spread(self.others)} cores meanwhile."
        self.others = []
        return text


def training(section, rounds, a, models):
    """Returns what is wrong with the work of the two."""
    section.add(f"One thread per rank; {a.rounds} alternating rounds of {a.steps} timed steps after 2 others. Differences are the "
                f"largest of losses in nats, and of gradient norms as a share. {KEPT}", "")
    section.table("CPU", "preset", "dtype", "tokens/s: Lehr", "FSDP2", "ratio (min to max)", "share of the peak: Lehr", "FSDP2",
                  "peak MB of both ranks: Lehr", "FSDP2", "ratio (min to max)", "losses, norms differ by", "cores of other programs")
    found = [training_row(section, rounds, a, preset, dtype, os.path.join(models, preset))
             for preset in a.presets for dtype in a.dtypes]
    return [complaint for complaint in found if complaint]


def middle(results, key):
    return f"{statistics.median(r[key] for r in results if r):.0f}" if any(results) else why_not(results)


def training_row(section, rounds, a, preset, dtype, folder):
    seq, batch = SHAPES[preset]
    work = ["--model", folder, "--dtype", dtype, "--seq", str(seq), "--batch", str(max(1, batch // 2)), "--steps", str(a.steps),
            "--warmup", "2", "--threads", "1"]
    rounds.others = []
    results = [(rounds.lehr("train_step", work + ["--measure_peak"]), rounds.peer("peer_fsdp2.py", work)) for _ in range(a.rounds)]
    ours, theirs = zip(*results)
    pairs = [(x, y) for x, y in results if x and y]
    ratios = {key: spread([x[key] / y[key] for x, y in pairs]) if pairs else "" for key in ("tokens_per_s", "peak_rss_mb")}
    shares = [[pair[i]["tokens_per_s"] * pair[0]["flops_per_token"] / pair[0]["peak_flops"] for pair in pairs] for i in (0, 1)]
    differ, wrong = same_work(*zip(*pairs), dtype) if pairs else ("", "")
    section.row(cpu_class(), preset, dtype, middle(ours, "tokens_per_s"), middle(theirs, "tokens_per_s"), ratios["tokens_per_s"],
                *(f"{100 * statistics.median(share):.1f} %" if share else "" for share in shares), middle(ours, "peak_rss_mb"),
                middle(theirs, "peak_rss_mb"), ratios["peak_rss_mb"], differ, spread(rounds.others))
    return f"{preset} {dtype}: {wrong}" if wrong else ""


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


def checkpoints(section, rounds, a, folder, disk):
    work = ["--model", folder, "--folder", os.path.join(disk, "checkpoints"), "--runs", "2"]
    rows, missing = [], []
    for _ in range(a.rounds):
        # DCP leaves dirty pages in the page cache: sync before each contender, so that it does not pay for the other.
        os.sync()
        ours = rounds.lehr("checkpoint_ranks", work)
        os.sync()
        theirs = rounds.peer("peer_dcp.py", work)
        os.sync()
        if not (ours and theirs):
            missing += [f"{name} {result}" for name, result in (("Lehr", ours), ("DCP", theirs)) if not result]
            continue
        megabytes = ours["mb"]
        disk_s = raw_write(disk, ours["mb"])
        for i in range(len(ours["save_s"])):
            rows.append({"disk": disk_s} | {f"lehr {key}": ours[key][i] for key in ours if key.endswith("_s")}
                        | {f"dcp {key}": theirs[key][i] for key in theirs if key.endswith("_s")})
    seconds = {"save": ("lehr save_s", "dcp save_s"), "load from the disk": ("lehr load_s", "dcp cold_load_s"),
               "the same, checksums compared": ("lehr checked_load_s", "dcp cold_load_s"),
               "load from the page cache": ("lehr cached_load_s", "dcp load_s"),
               "the same, with checksums": ("lehr cached_checked_load_s", "dcp load_s")}
    size = f"State of {megabytes:.0f} MB: float32 weights and AdamW's moments, in the files of each. " if rows else ""
    section.add(f"{size}{a.rounds} alternating rounds, one thread per rank. {rounds.load()} Seconds, median (min to max); DCP has no "
                "checksums.", "")
    section.table("operation", "Lehr", "DCP", "times as fast")
    if not rows:
        section.row("all", *missing[:1], "", "")
        return
    for name, (our, their) in seconds.items():
        section.row(name, spread([row[our] for row in rows]), spread([row[their] for row in rows]),
                    spread([row[their] / row[our] for row in rows]))
    section.row("plain write and fsync of as much", spread([row["disk"] for row in rows]), "",
                spread([row["disk"] / row["lehr save_s"] for row in rows]))
    for reason in missing:
        section.row("a round that does not count", reason, "", "")


def background(section, rounds, a, folder, disk):
    """Measures the cost of one asynchronous save, against steps without one. CPU time does not depend on other load."""
    seq, _ = SHAPES["small"]
    work = ["--model", folder, "--seq", str(seq), "--batch", "1", "--steps", str(a.save_every), "--warmup", "2", "--threads", "1"]
    wall, cpu, waited, written, missing = [], [], [], [], []
    for _ in range(a.rounds):
        without = rounds.lehr("train_step", work)
        saving = rounds.lehr("train_step", work + [f"--save_every={a.save_every}",
                                                   "--save_folder=" + os.path.join(disk, "background")])
        if not (without and saving):
            missing.append(why_not([without, saving]))
            continue
        wall.append(100 * (sum(saving["step_ms"]) / sum(without["step_ms"]) - 1))
        cpu.append(100 * (saving["cpu_s"] / without["cpu_s"] - 1))
        waited.append(saving["save_wait_s"][-1])
        written.append(saving["save_write_s"][-1])
    section.add(f"Preset small in float32, one save in {a.save_every} steps, against as many steps without; {a.rounds} rounds, one thread "
                f"per rank. {rounds.load()}", "")
    section.table("cost", "median (min to max)")
    for name, values in (("more wall time, %", wall), ("more CPU time of all ranks, %", cpu),
                         ("wait of the loop for the copy, s", waited), ("writing in the thread, s", written)):
        section.row(name, spread(values) if values else missing[0])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(HERE, "..", "build"))
    p.add_argument("--presets", type=some_of(*PRESETS), default=["tiny", "small"], help="of " + ",".join(PRESETS))
    # FSDP2 keeps weights in float32; all in bfloat16 is no choice.
    p.add_argument("--dtypes", type=some_of("fp32", "amp"), default=["fp32", "amp"], help="of fp32,amp")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--save-every", type=int, default=20)
    p.add_argument("--parts", type=some_of(*PARTS), default=list(PARTS),
                   help="parts to measure, of " + ",".join(PARTS) + "; other sections of the report are kept")
    p.add_argument("--disk", help="folder on the disk to measure; default: the folder for temporary files")
    p.add_argument("--out", default=os.path.join(HERE, "results_ranks.md"))
    a = p.parse_args()
    rounds = Rounds(a)
    report = Report(a.out, "Ranks over Gloo, side by side", "Written by bench/fsdp.py, part by part (`make bench-fsdp`).")
    wrong = []
    with tempfile.TemporaryDirectory() as models, tempfile.TemporaryDirectory(dir=a.disk) as disk:
        presets = set(a.presets if "training" in a.parts else [])
        presets |= {"small"} if {"checkpoints", "background"} & set(a.parts) else set()
        memory_law.save_models(models, sorted(presets))
        small = os.path.join(models, "small")
        measures = {"training": lambda section: training(section, rounds, a, models),
                    "memory": lambda section: memory_law.measure(section, rounds, models),
                    "checkpoints": lambda section: checkpoints(section, rounds, a, small, disk),
                    "background": lambda section: background(section, rounds, a, small, disk)}
        for part in a.parts:
            rounds.others = []
            wrong += measures[part](Section(report, PARTS[part])) or []
    if wrong:
        sys.exit("not the same work:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
