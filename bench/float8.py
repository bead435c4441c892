"""Trains the quickstart recipe in bfloat16 and in float8, and reports the differences of the losses.

    bench/float8.py --lehr build/lehr --out bench/results_float8.md       some minutes on two cores

All runs are recipe/quickstart.toml with the same sequences and initial weights. One more run has another seed: it shows
how much losses differ by chance. With --plot (build/bin/plot_losses_bench) the losses are drawn too.
"""
import argparse
import json
import os
import statistics
import subprocess
import tempfile

from report import Report

MIXED = ["--training.mixed_precision_param=bfloat16"]
RUNS = [
    ("float32", []),
    ("bfloat16", MIXED),
    ("bfloat16, another seed", [*MIXED, "--debug.seed=43"]),
    ("float8 rowwise", [*MIXED, "--float8.enable=true", "--float8.recipe=rowwise"]),
    ("float8 rowwise_with_gw_hp", [*MIXED, "--float8.enable=true", "--float8.recipe=rowwise_with_gw_hp"]),
]
MEASURE = "bfloat16"  # the run that the others are compared with


def run(a, name, options, folder):
    arguments = [a.lehr, "train", "recipe/quickstart.toml", "--quiet", f"--job.dump_folder={folder}",
                 f"--training.steps={a.steps}", f"--validation.freq={a.steps}", "--checkpoint.enable=false",
                 "--sample.max_new_tokens=1", "--metrics.enable_tensorboard=false", *options]
    done = subprocess.run(arguments, capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(a.threads)})
    if done.returncode != 0:
        raise SystemExit(f"{name}: {' '.join(arguments)}\n{done.stderr[-2000:]}")
    with open(f"{folder}/metrics.jsonl") as f:
        lines = [json.loads(line) for line in f]
    return {"losses": [line["loss"] for line in lines if "loss" in line],
            "norms": [line["grad_norm"] for line in lines if "grad_norm" in line],
            "validation": [line["validation_loss"] for line in lines if "validation_loss" in line][-1],
            "speed": statistics.median(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)}


def row(name, found, measure):
    last = len(found["losses"]) // 10

    def end(one):
        return statistics.mean(one["losses"][-last:])

    apart = [abs(x - y) / y for x, y in zip(found["losses"], measure["losses"])]
    cells = [name, f"{end(found):.4f}", f"{found['validation']:.4f}"]
    if found is measure:
        return cells + ["", "", "", ""]
    return cells + [f"{100 * (end(found) / end(measure) - 1):+.2f} %",
                    f"{100 * (found['validation'] / measure['validation'] - 1):+.2f} %",
                    f"{100 * statistics.mean(apart):.2f} %", f"{100 * max(apart):.2f} %"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default="build/lehr")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--steps", type=int, default=1400)
    p.add_argument("--out", default="bench/results_float8.md")
    p.add_argument("--plot", help="program that draws the picture; default: no picture")
    p.add_argument("--picture", default="docs/picture/float8_loss.svg")
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = {}
        for i, (name, options) in enumerate(RUNS):
            found[name] = run(a, name, options, f"{work}/{i}")
            print(name, found[name]["validation"], flush=True)
        if a.plot:
            lines = [f"{name}={work}/{i}" for i, (name, _) in enumerate(RUNS) if name != "float32"]
            subprocess.run([a.plot, a.picture, "The quickstart in bfloat16 and float8", *lines], check=True)
    last = a.steps // 10
    lines = [f"recipe/quickstart.toml, {a.steps} steps, on a CPU, which emulates float8 without its speed. Losses in nats per byte: "
             f"on the training text, as the mean of the last {last} steps, and on the held-out text. Differences are relative to "
             "bfloat16: at the end, held out, and at the same step (mean and maximum). Another seed has other weights and "
             "sequences.", "",
             "| arithmetic | loss | held out | at the end | held out | of a step | at most |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(row(name, one, found[MEASURE])) + " |" for name, one in found.items()]
    Report(a.out, "Float8 compared with bfloat16", "Written by bench/float8.py.", by_class=False).put("Losses", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
