"""Compares training through the Python module with the program's, and writes bench/results_python.md.

    make bench-python                             builds program and wheel, then runs this script
    .venv/bin/python bench/python_module.py --presets small --rounds 3

Each way to train is a process of its own, and each round runs all of them one after another. The next round begins with
the next way, so that a machine that becomes slower in a round is unfair to all ways alike. The loss and the data in Python
are those of the run written in Python, so that all losses must have the bits of the program's.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from contenders import some_of, spread
from machine import cpu_class
from report import Report, Section

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "test/python"))
from installed_wheel import install_wheel

# Preset -> config, tokens per sequence, sequences per step.
PRESETS = {"small": ("bench/profile_small.toml", 1024, 1), "quickstart": ("recipe/quickstart.toml", 256, 8)}
PROGRAM = "lehr train"


def summed(output, batch):
    return output.nll.sum()


def byte_data(seq_len, batch):
    """Returns a function of the step: the sequences that follow each other in the text."""
    import torch
    text = torch.frombuffer(bytearray((ROOT / "recipe/data/tinyshakespeare.txt").read_bytes()), dtype=torch.uint8)
    return lambda step: text[step * batch * seq_len:(step + 1) * batch * seq_len].view(batch, seq_len).long()


def hooked(trainer):
    for hook in (trainer.on_step_begin, trainer.on_gradients_ready, trainer.on_step_end):
        hook(lambda step: None)
    return trainer


# Way to train -> a trainer of `config` with `overrides`, and whether the program trains on the same data.
WAYS = {
    "lehr.Trainer": (lambda lehr, *run: lehr.Trainer(*run), True),
    "with three hooks": (lambda lehr, *run: hooked(lehr.Trainer(*run)), True),
    "loss in Python": (lambda lehr, *run: lehr.Trainer(*run, loss=summed), True),
    "data in Python": (lambda lehr, *run: lehr.Trainer(*run, data=byte_data(run[1]["training.seq_len"],
                                                                              run[1]["training.local_batch_size"])), False),
}


def overrides(preset, folder, steps):
    _, seq_len, batch = PRESETS[preset]
    return {"job.dump_folder": folder, "training.steps": steps, "training.seq_len": seq_len,
            "training.local_batch_size": batch, "lr_scheduler.warmup_steps": 1,
            "checkpoint.enable": False, "validation.enable": False, "metrics.enable_tensorboard": False,
            "metrics.measure_peak": False, "sample.max_new_tokens": 1, "metrics.log_freq": 1}


def run(a, preset, way, place):
    """Returns the seconds and losses of a run's steps, without those of the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        keys = overrides(preset, folder, a.steps + a.warmup)
        if way == PROGRAM:
            command = [a.lehr, "train", PRESETS[preset][0], "--quiet"]
            command += [f"--{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in keys.items()]
        else:
            command = [sys.executable, __file__, "--child", way, preset, json.dumps(keys)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([place, os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
        if done.returncode != 0:
            raise SystemExit(f"{way}: {' '.join(map(str, command))}\n{done.stderr[-2000:]}")
        lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "step_seconds" in line][a.warmup:]
    return {"seconds": [step["step_seconds"] for step in steps], "losses": [step["loss"] for step in steps]}


def rotated_rounds(a, preset, place):
    """Returns the runs of each round; round k begins with the k-th way."""
    ways = [PROGRAM, *WAYS]
    return [{way: run(a, preset, way, place) for way in ways[k % len(ways):] + ways[:k % len(ways)]}
            for k in range(a.rounds)]


def measure(section, a, place):
    """Returns the ways whose losses differ from the program's."""
    section.add(f"{a.rounds} rounds of {a.steps} steps after {a.warmup} others, each round in another order, float32. "
                "Speed: that of the program in the same round, over the median step.", "")
    section.table("CPU", "preset", "way to train", "ms per step: median (min to max)", "of the program's speed", "losses")
    wrong = []
    for preset in a.presets:
        rounds = rotated_rounds(a, preset, place)
        for way in (PROGRAM, *WAYS):
            medians = [statistics.median(r[way]["seconds"]) for r in rounds]
            speed = [statistics.median(r[PROGRAM]["seconds"]) / median for r, median in zip(rounds, medians)]
            comparable = way == PROGRAM or WAYS[way][1]
            same = all(r[way]["losses"] == r[PROGRAM]["losses"] for r in rounds)
            if comparable and not same:
                wrong.append(f"{preset}, {way}")
            section.row(cpu_class(), preset, way, spread([1000 * median for median in medians], 1),
                        "" if way == PROGRAM else spread(speed, 3),
                        ("same bits" if same else "DIFFERENT") if comparable else "of other sequences")
    return wrong


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=str(ROOT / "build"), help="folder with the program and the wheel")
    p.add_argument("--presets", type=some_of(*PRESETS), default=list(PRESETS), help="of " + ",".join(PRESETS))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--warmup", type=int, default=3)
    p.add_argument("--out", default=str(ROOT / "bench/results_python.md"))
    p.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        import lehr
        way, preset, keys = a.child
        WAYS[way][0](lehr, PRESETS[preset][0], json.loads(keys)).run()
        return
    a.lehr = str(Path(a.build) / "lehr")
    with tempfile.TemporaryDirectory() as place:
        install_wheel(a.build, place)
        report = Report(a.out, "Training through the Python module", "Written by bench/python_module.py (`make bench-python`).")
        wrong = measure(Section(report, "Speed beside the program's"), a, place)
    if wrong:
        raise SystemExit("losses differ from the program's: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
