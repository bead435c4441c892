"""Runs Lehr and its peers alternately on the same work, and writes bench/results.md section by section.

    make bench                                    builds the benchmarks, then runs this script
    .bench/bin/python bench/compare.py --parts training --presets tiny,small,moe --dtypes fp32,bf16 --rounds 5

training   training steps of every preset: tokens per second and peak memory
memory     preset small with longer sequences: peak memory, with the peers at --memory-seq, and Lehr alone up to 16384
           tokens
start      wall time of a process that runs one step of preset tiny
loading    2 GB of weights loaded as tensors and into a model, from the disk and from the page cache, with safetensors
           and from_pretrained

All contenders start from the same weights (the first losses are compared) and train on the same tokens. Contenders
alternate within a round, so that load on the machine affects all alike; ratios are computed per round.
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
import time

from report import Report

HERE = os.path.dirname(os.path.abspath(__file__))
SLOW = 1.25
# Lehr with n of selective_ac_option = "op n" (matmul outputs of every n-th layer are recomputed in backward) other than
# the default of 2; 0: nothing is recomputed.
OTHERS = {"lehr, all kept": 0, 'lehr, "op"': 1}
DEFAULT = ("By default Lehr recomputes matmul outputs of every second layer in backward (activation_checkpoint.selective_ac_option = "
           "\"op 2\"); \"op\": of every layer; the peers save all activations.")
SHAPES = {"tiny": (512, 4), "small": (1024, 1), "moe": (1024, 2)}


def run(command, **environment):
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
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


def spread(values, digits=2):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


class Contenders:
    """Lehr and the installed peers, with their commands."""

    def __init__(self, a):
        self.bin = os.path.dirname(os.path.abspath(a.lehr))
        self.lehr = os.path.abspath(a.lehr)
        self.peers = [name for name in a.peers.split(",") if importlib.util.find_spec(name.split()[0])]
        self.absent = sorted({name.split()[0] for name in a.peers.split(",")} - {name.split()[0] for name in self.peers})
        for name in self.absent:
            print(f"{name} is not installed and is left out; bench/peer_{name}.py tells how to install it")

    def commands(self, folder, dtype, seq, batch, steps, warmup, others=False):
        work = ["--model", folder, "--dtype", dtype, "--seq", str(seq), "--batch", str(batch),
                "--steps", str(steps), "--warmup", str(warmup), "--threads", str(os.cpu_count())]
        found = {"lehr": [self.lehr] + work}
        if others:
            found |= {name: [self.lehr] + work + [f"--recompute_matmuls={n}"] for name, n in OTHERS.items()}
        for name in self.peers:
            script, mode = name.split()
            found[name] = [sys.executable, os.path.join(HERE, f"peer_{script}.py")] + work + ["--mode", mode]
        return found

    @staticmethod
    def save_init(preset, folder):
        subprocess.run([sys.executable, os.path.join(HERE, "peer_transformers.py"), "--preset", preset, "--save-init", folder],
                       check=True, capture_output=True)


def head(text):
    return [f"{cpu_name()}, {os.cpu_count()} cores; {text}", ""]


def training(contenders, a):
    lines = head(f"{a.rounds} alternating rounds of {a.steps} timed steps after 2 warm-up steps; the median step of a round counts. "
                 f"Contenders that are {SLOW} times slower than the fastest peer in the first round run in no other round."
                 + "".join(f" Without {name}, which was not installed." for name in contenders.absent)
                 + " torchtitan's experts compute in bfloat16 under fp32 too. " + DEFAULT)
    lines += ["| preset | dtype | contender | tokens/s: median (min to max) | Lehr's ratio to it | peak memory MB |",
              "| --- | --- | --- | --- | --- | --- |"]
    for preset in a.presets.split(","):
        seq, batch = SHAPES[preset]
        with tempfile.TemporaryDirectory() as folder:
            contenders.save_init(preset, folder)
            for dtype in a.dtypes.split(","):
                commands = contenders.commands(folder, dtype, seq, batch, a.steps, 2, others=preset == "small")
                rounds = [{name: run(command) for name, command in commands.items()}]
                fastest = max([r["tokens_per_s"] for name, r in rounds[0].items() if name in contenders.peers and r], default=0)
                near = [name for name, r in rounds[0].items() if name == "lehr" or r and SLOW * r["tokens_per_s"] > fastest]
                rounds += [{name: run(commands[name]) for name in near} for _ in range(a.rounds - 1)]
                for name in commands:
                    both = [(r["lehr"], r[name]) for r in rounds if r["lehr"] and r.get(name)]
                    if not both:
                        lines.append(f"| {preset} | {dtype} | {name} | did not run | | |")
                        continue
                    speed = [theirs["tokens_per_s"] for _, theirs in both]
                    ratios = [ours["tokens_per_s"] / theirs["tokens_per_s"] for ours, theirs in both]
                    gap = max(abs(x - y) for x, y in zip(both[0][0]["losses"], both[0][1]["losses"]))
                    lines.append(f"| {preset} | {dtype} | {name} | {spread(speed, 0)} | {spread(ratios)} | "
                                 f"{max(theirs['peak_rss_mb'] for _, theirs in both):.0f} |")
                    print(lines[-1], f"largest difference of losses {gap:.1e}", flush=True)
    return lines


def memory(contenders, a):
    lines = head("preset small in float32, one sequence, two steps; the process's peak resident memory. " + DEFAULT)
    lines += ["| tokens per sequence | contender | peak memory MB | times its parameters, gradients and moments | Lehr's ratio to it | "
              "with all kept | with \"op\" |", "| --- | --- | --- | --- | --- | --- | --- |"]

    def row(seq, name, result, last):
        if result is None:
            lines.append(f"| {seq} | {name} | did not run | | {last} |")
        else:
            lines.append(f"| {seq} | {name} | {result['peak_rss_mb']:.0f} | {result['peak_rss_mb'] / state:.2f} | {last} |")
        print(lines[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        contenders.save_init("small", folder)
        state = 4 * os.path.getsize(os.path.join(folder, "model.safetensors")) / 1e6
        results = {name: run(command)
                   for name, command in contenders.commands(folder, "fp32", a.memory_seq, 1, 1, 1, others=True).items()}
        for name, result in results.items():
            row(a.memory_seq, name, result, " | ".join(
                f"{results[ours]['peak_rss_mb'] / result['peak_rss_mb']:.2f}" if results[ours] and result else ""
                for ours in ("lehr", *OTHERS)))
        lines += ["", "Lehr alone:", "", "| tokens per sequence | contender | peak memory MB | times its parameters, gradients and moments | "
                  "more KB per token |", "| --- | --- | --- | --- | --- |"]
        for name in ("lehr", *OTHERS):
            before = None
            for seq in (512, 1024, 2048, 4096, 8192, 16384):
                result = run(contenders.commands(folder, "fp32", seq, 1, 1, 1, others=True)[name])
                each = (result["peak_rss_mb"] - before[1]) / (seq - before[0]) * 1000 if before and result else None
                row(seq, name, result, f"{each:.0f}" if each else "")
                before = (seq, result["peak_rss_mb"]) if result else None
    return lines


def start(contenders, a):
    lines = head(f"preset tiny in float32; {a.rounds} alternating rounds after one that fills the page cache. Contenders that compile run "
                 "first without compiled code, and then a second time with the code that the first run cached on the disk.")
    lines += ["| contender | seconds: median (min to max) | times Lehr's: median (min to max) |", "| --- | --- | --- |"]
    seq, batch = SHAPES["tiny"]

    def seconds(command, **environment):
        begin = time.perf_counter()
        return time.perf_counter() - begin if run(command, **environment) else None

    def one_round(commands):
        found = {}
        for name, command in commands.items():
            if "compile" not in name:
                found[name] = seconds(command)
                continue
            with tempfile.TemporaryDirectory() as compiled:
                for label in (name, name + ", compiled before"):
                    found[label] = seconds(command, TORCHINDUCTOR_CACHE_DIR=compiled)
        return found

    with tempfile.TemporaryDirectory() as folder:
        contenders.save_init("tiny", folder)
        commands = contenders.commands(folder, "fp32", seq, batch, 1, 0)
        one_round({name: command for name, command in commands.items() if "compile" not in name})
        rounds = [one_round(commands) for _ in range(a.rounds)]
        for name in rounds[0]:
            both = [(r["lehr"], r[name]) for r in rounds if r["lehr"] and r[name]]
            if both:
                lines.append(f"| {name} | {spread([theirs for _, theirs in both])} | "
                             f"{spread([theirs / ours for ours, theirs in both], 1)} |")
            else:
                lines.append(f"| {name} | did not run | |")
            print(lines[-1], flush=True)
    return lines


def loading(contenders, a):
    lines = head(f"30 layers of preset small, 2 GB; {a.rounds} rounds in rotating order, one process per measurement; cached: after an "
                 "untimed touch. Seconds, and their ratio to touching every page of the mapped file, median (min to max). Tensors that "
                 "view the file are mapped too, and each of their pages is touched. A model's parameters need memory of their own, whose "
                 "allocation takes time, so they are compared separately.")
    lines += ["| file is | operation | seconds | times the touch |", "| --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory(dir=a.disk) as folder:
        contenders.save_init("loading", folder)
        os.sync()
        for place in ("cached", "cold"):
            work = [f"--model={folder}", f"--cold={'true' if place == 'cold' else 'false'}"]
            lehr = [os.path.join(contenders.bin, "load_model_bench")] + work + ["--what"]
            peer = [sys.executable, os.path.join(HERE, "peer_loading.py")] + work + ["--what"]
            touch = {"map and touch every page": lehr + ["touch"]}
            views = {"Lehr: all tensors, viewing the file": lehr + ["view"], "safetensors: safe_open, get_tensor": peer + ["view"]}
            copies = {"read into one buffer": lehr + ["read"], "Lehr: a model's parameters": lehr + ["load"],
                      "transformers: from_pretrained": peer + ["load"]}
            for group in (touch | views, touch | copies):
                lines += loading_rows(place, group, a.rounds)
    return lines


def loading_rows(place, group, count):
    names = list(group)
    rounds = []
    for first in range(count):
        rounds.append({})
        for name in names[first % len(names):] + names[:first % len(names)]:
            if place == "cached":
                run(group[names[0]])
            rounds[-1][name] = run(group[name])
    lines = []
    for name in names:
        seconds = [r[name]["seconds"] for r in rounds if r[name]]
        shares = [r[name]["seconds"] / r[names[0]]["seconds"] for r in rounds if r[names[0]] and r[name]]
        lines.append(f"| {place} | {name} | {spread(seconds, 3) if seconds else 'did not run'} | {spread(shares) if shares else ''} |")
        print(lines[-1], flush=True)
    return lines


PARTS = {"training": ("Training steps", training), "memory": ("Memory and sequence length", memory),
         "start": ("A process of one step", start), "loading": ("Loading weights", loading)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default=os.path.join(HERE, "..", "build", "bin", "train_step_bench"))
    p.add_argument("--parts", default=",".join(PARTS),
                   help="parts to measure (default: %(default)s); other sections of the report are kept")
    p.add_argument("--presets", default="tiny,small,moe")
    p.add_argument("--dtypes", default="fp32,bf16")
    p.add_argument("--peers", default="transformers eager,transformers compile,torchtitan eager,torchtitan compile")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--memory-seq", type=int, default=2048)
    p.add_argument("--disk", help="folder on the disk to load from; default: the folder for temporary files")
    p.add_argument("--out", default=os.path.join(HERE, "results.md"))
    a = p.parse_args()
    unknown = set(a.parts.split(",")) - set(PARTS)
    if unknown:
        p.error(f"--parts: there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    contenders = Contenders(a)
    report = Report(a.out, "Lehr and its peers, side by side", "Written by bench/compare.py, part by part (`make bench`).")
    for part in a.parts.split(","):
        title, measure = PARTS[part]
        report.put(title, measure(contenders, a))


if __name__ == "__main__":
    main()
