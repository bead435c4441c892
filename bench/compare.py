"""Runs Lehr and its peers alternately on the same work and writes bench/results.md.

    make bench                                    builds what is needed, then runs this
    .bench/bin/python bench/compare.py --presets tiny,small,moe --dtypes fp32,bf16 --rounds 5

Every contender starts from the same weights (the first losses are compared) and trains on the same tokens. Rounds
alternate, so that a busy moment of the machine hits all alike; a ratio is taken within each round.
"""
import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = {"tiny": (512, 4), "small": (1024, 1), "moe": (1024, 2)}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        print("failed:", " ".join(command), done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads(lines[-1])


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default=os.path.join(HERE, "..", "build", "bin", "train_step_bench"))
    p.add_argument("--presets", default="tiny,small,moe")
    p.add_argument("--dtypes", default="fp32,bf16")
    p.add_argument("--peers", default="transformers eager,transformers compile,torchtitan eager,torchtitan compile")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--out", default=os.path.join(HERE, "results.md"))
    a = p.parse_args()
    start = [sys.executable, os.path.join(HERE, "peer_transformers.py")]
    peers = [name for name in a.peers.split(",") if importlib.util.find_spec(name.split()[0])]
    absent = sorted({name.split()[0] for name in a.peers.split(",")} - {name.split()[0] for name in peers})
    for name in absent:
        print(f"{name} is not installed and left out; bench/peer_{name}.py says how to install it")
    report = ["# Training steps, side by side", "",
              f"{cpu_name()}, {os.cpu_count()} cores; {a.rounds} alternating rounds, {a.steps} timed steps each after 2 "
              "others; the median step of a round counts. Written by bench/compare.py." +
              "".join(f" Without {name}, which was not installed." for name in absent) +
              (" torchtitan's experts compute in bfloat16 under fp32 too." if "moe" in a.presets.split(",") else ""), "",
              "| preset | dtype | contender | tokens/s: median (min to max) | Lehr's ratio to it | peak memory MB |",
              "| --- | --- | --- | --- | --- | --- |"]
    for preset in a.presets.split(","):
        seq, batch = SHAPES[preset]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(start + ["--preset", preset, "--save-init", folder], check=True, capture_output=True)
            for dtype in a.dtypes.split(","):
                work = ["--model", folder, "--dtype", dtype, "--seq", str(seq), "--batch", str(batch),
                        "--steps", str(a.steps), "--warmup", "2", "--threads", str(os.cpu_count())]
                contenders = {"lehr": [a.lehr] + work}
                for name in peers:
                    script, mode = name.split()
                    contenders[name] = [sys.executable, os.path.join(HERE, f"peer_{script}.py")] + work + ["--mode", mode]
                results = {name: [] for name in contenders}
                for _ in range(a.rounds):
                    for name, command in contenders.items():
                        result = run(command)
                        if result:
                            results[name].append(result)
                for name, found in results.items():
                    if not found:
                        report.append(f"| {preset} | {dtype} | {name} | did not run | | |")
                        continue
                    ratios = [ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in zip(results["lehr"], found)]
                    gap = max(abs(x - y) for x, y in zip(results["lehr"][0]["losses"], found[0]["losses"]))
                    report.append(
                        f"| {preset} | {dtype} | {name} | {spread([r['tokens_per_s'] for r in found])} | {spread(ratios)} | "
                        f"{max(r['peak_rss_mb'] for r in found):.0f} |")
                    print(report[-1], f"largest difference of losses {gap:.1e}", flush=True)
    with open(a.out, "w") as f:
        f.write("\n".join(report) + "\n")


if __name__ == "__main__":
    main()
