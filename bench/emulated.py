#!/usr/bin/env python3
"""Compares the planned with the emulated step time of random meshes and schedules, into bench/results_emulated.md.

    bench/emulated.py --lehr build/lehr --seed 1 --count 30
    bench/emulated.py --lehr build/lehr --seed 1 --count 30 --only 7    one of them, with the commands, on the screen only

A mesh has 8 to 32 ranks on nodes of 4 or 8 H100, a schedule that is defined for it, and a model whose layers are those of a
published one. The emulation (docs/emulate.md) runs the program of every rank; the plan does not. Standard library only.
"""
import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from report import Report

ROOT = Path(__file__).resolve().parents[1]
SCHEDULES = {"1F1B": (1,), "GPipe": (1,), "LoopedBFS": (2,), "Interleaved1F1B": (2, 4), "InterleavedZeroBubble": (1, 2),
             "ZBH1": (1,), "ZBH2": (1,), "ZBVZeroBubble": (2,), "DualPipeV": (2,)}
MODELS = {"llama3 8B": ("llama3", "8B", 4096), "llama3 70B": ("llama3", "70B", 4096),
          "qwen3 30B-A3B": ("qwen3_moe", "30B-A3B", 4096)}


def split(number, parts, rng):
    """Returns `parts` powers of two whose product is `number`, which is one."""
    degrees = [1] * parts
    while number > 1:
        degrees[rng.randrange(parts)] *= 2
        number //= 2
    return degrees


def draw(rng):
    """Returns a run that a mesh may refuse: options of `lehr plan`, and its description."""
    model = rng.choice(list(MODELS))
    family, flavor, tokens = MODELS[model]
    ranks = rng.choice([8, 16, 32])
    pp, dp, tp, cp, rep = split(ranks, 5, rng)
    experts = rng.choice([1, 2, 4, 8]) if "A3B" in flavor else 1
    schedule = rng.choice(list(SCHEDULES)) if pp > 1 else "none"
    per_rank = rng.choice(SCHEDULES[schedule]) if pp > 1 else 1
    microbatches = rng.choice([1, 2, 3, 4]) * pp if pp > 1 else rng.choice([1, 2, 4])
    layers = max(8, pp * per_rank * rng.choice([1, 2]))
    keys = {
        "model.name": f'"{family}"', "model.flavor": f'"{flavor}"', "model.args.num_hidden_layers": layers,
        "training.seq_len": tokens, "training.local_batch_size": 1,
        "training.global_batch_size": microbatches * dp * rep,
        "parallelism.pipeline_parallel_degree": pp, "parallelism.data_parallel_shard_degree": dp,
        "parallelism.data_parallel_replicate_degree": rep, "parallelism.tensor_parallel_degree": tp,
        "parallelism.context_parallel_degree": cp, "parallelism.expert_parallel_degree": experts,
        "parallelism.context_parallel_rotate_method": rng.choice(['"allgather"', '"ring"']),
        "parallelism.fsdp_reshard_after_forward": rng.choice(['"default"', '"always"', '"never"']),
        "parallelism.fsdp_reduce_each_microbatch": rng.choice(["true", "false"]),
        "activation_checkpoint.mode": rng.choice(['"none"', '"full"', '"selective"']),
    }
    if pp > 1:
        keys |= {"parallelism.pipeline_parallel_schedule": f'"{schedule}"',
                 "parallelism.pipeline_parallel_stages_per_rank": per_rank, "parallelism.pipeline_parallel_microbatch_size": 1}
    keys |= {"machine.ranks_per_node": rng.choice([4, 8])}
    mesh = " ".join(f"{name}{n}" for name, n in
                    (("pp", pp), ("rep", rep), ("dp", dp), ("cp", cp), ("tp", tp), ("ep", experts)) if n > 1)
    what = f"{schedule}{f' x {per_rank}' if per_rank > 1 else ''}"
    return {"keys": keys, "model": f"{model}, {layers} layers", "mesh": mesh or "one device", "ranks": ranks, "schedule": what,
            "microbatches": microbatches}


def command(lehr, one, base, output):
    return [str(c) for c in [lehr, "plan", base, "--no-schedules", "--emulate", "--output", output]] + [
        f"--{key}={value}" for key, value in one["keys"].items()]


def emulate(lehr, one, folder, number):
    """Fills in planned and emulated seconds; returns False if the run is refused as a config, and raises for other errors."""
    base = Path(folder) / "base.toml"
    output = Path(folder) / str(number)
    done = subprocess.run(command(lehr, one, base, output), capture_output=True, text=True, cwd=ROOT)
    if done.returncode == 2:
        one["refused"] = done.stderr.strip().splitlines()[-1]
        return False
    if done.returncode not in (0, 3):
        sys.exit(f"{' '.join(command(lehr, one, base, output))}\n{done.stderr}")
    one["report"] = done.stdout
    found = json.loads((output / "emulation.json").read_text())
    one |= {"planned": found["planned_seconds"], "emulated": found["step_seconds"]}
    return True


def table(runs):
    lines = ["| # | model | ranks | mesh | schedule | micro-batches | planned, ms | emulated, ms | planned / emulated |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for number, one in enumerate(runs, 1):
        lines.append(f"| {number} | {one['model']} | {one['ranks']} | {one['mesh']} | {one['schedule']} | {one['microbatches']} | "
                     f"{1e3 * one['planned']:.1f} | {1e3 * one['emulated']:.1f} | {one['planned'] / one['emulated']:.3f} |")
    errors = [abs(one["planned"] / one["emulated"] - 1) for one in runs]
    within = sum(e <= 0.05 for e in errors)
    return "\n".join(lines) + (f"\n\n{within} of {len(runs)} within 5 %; median of the distances "
                               f"{100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %.\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lehr", default="build/lehr")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--only", type=int, help="number of one run, from 1")
    arguments = parser.parse_args()
    lehr = Path(arguments.lehr).resolve()
    rng = random.Random(arguments.seed)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "base.toml").write_text(
            '[tokenizer]\npath = "byte"\n[[data.datasets]]\npath = "none"\n[training]\ndtype = "float32"\n'
            'mixed_precision_param = "bfloat16"\nmixed_precision_reduce = "float32"\n[optimizer]\nname = "adamw"\n')
        with ThreadPoolExecutor(2) as pool:
            drawn = 0
            while len(runs) < arguments.count:
                batch = [draw(rng) for _ in range(max(4, arguments.count - len(runs)))]
                fits = list(pool.map(lambda pair: emulate(lehr, pair[1], folder, pair[0]), enumerate(batch, drawn)))
                drawn += len(batch)
                runs += [one for one, ok in zip(batch, fits) if ok]
                print(f"{len(runs)} runs, {drawn - len(runs)} refused as configs", file=sys.stderr)
        runs = runs[:arguments.count]
        if arguments.only:
            one = runs[arguments.only - 1]
            print(" ".join(command(lehr, one, "base.toml", "out")), one["report"], sep="\n")
            return
    report = Report(str(ROOT / "bench/results_emulated.md"), "Planned and emulated step times",
                    "Written by bench/emulated.py: random meshes and schedules on the preset `h100`. docs/emulate.md says what an "
                    "emulation is.", by_class=False)
    report.put(f"Seed {arguments.seed}, {arguments.count} meshes", table(runs).splitlines())
    print(table(runs))


if __name__ == "__main__":
    main()
