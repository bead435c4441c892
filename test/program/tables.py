#!/usr/bin/env python3
"""Trains on Parquet and Arrow files, as a run on the JSON lines of the same data: the same bits, also if it is killed.

Usage: tables.py LEHR      (standard library only)
LEHR_KILLS: kills of each of two runs (4). LEHR_TABLES: a folder with `train*.parquet` and `lines.jsonl` of the same rows,
in place of test/data/table/hub. Exit code 77: the program has no Apache Arrow.
"""
import json, os, random, signal, subprocess, sys, tempfile, time
from pathlib import Path

from expectations import TINY

lehr = os.path.abspath(sys.argv[1])
kills = int(os.environ.get("LEHR_KILLS", "4"))
fixtures = Path("test/data/table")
own = os.environ.get("LEHR_TABLES")
shards, lines = (f"{own}/train*.parquet", f"{own}/lines.jsonl") if own else (
    fixtures / "hub/data/train-*.parquet", fixtures / "hub.jsonl")

SETTINGS = ["--model.args.hidden_size=48", "--model.args.intermediate_size=96", "--model.args.head_dim=16",
            "--data.validation_fraction=0", "--training.global_batch_size=4", "--lr_scheduler.warmup_steps=5",
            "--checkpoint.interval=1", "--checkpoint.keep_latest_k=2"]


def run(*arguments, program=lehr):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=600)


def config(work, name, path, steps):
    """Returns the arguments of a run on `path`."""
    data = f'--data.datasets=[{{path="{path}",weight=3}},{{path="recipe/data/c4_sample.jsonl"}}]'
    return "train", TINY, "--quiet", f"--job.dump_folder={work / name}", *SETTINGS, data, f"--training.steps={steps}"


def learned(work, name):
    """Returns what the run logged, without times, and the weights and optimizer state of its last step."""
    keys = ("step", "loss", "grad_norm", "lr", "num_tokens")
    logged = [[row.get(key) for key in keys]
              for row in map(json.loads, (work / name / "metrics.jsonl").read_text().splitlines()) if "loss" in row]
    last = max((work / name / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    return logged, *((last / file).read_bytes() for file in ("model.safetensors", "optimizer.safetensors", "trainer.json"))


def survives(work, name, path, steps, seed):
    """Kills a run again and again, and then lets it end."""
    arguments, moments = config(work, name, path, steps), random.Random(seed)
    for _ in range(kills):
        process = subprocess.Popen([lehr, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0.2, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return learned(work, name)


def without_module(work):
    """Runs a program that has no module beside it."""
    folder = Path(tempfile.mkdtemp(prefix="alone-", dir=Path(lehr).parent)) / "a/b"
    folder.mkdir(parents=True)
    try:
        os.link(lehr, folder / "lehr")
        done = run("tokenize", "--tokenizer=byte", shards, f"--output={work / 'a.tokens'}", program=folder / "lehr")
    finally:
        (folder / "lehr").unlink(missing_ok=True)
        os.removedirs(folder)
    assert done.returncode == 2 and "need Apache Arrow" in done.stderr and "'make build ARROW=1'" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory(prefix="lehr-tables-") as folder:
        work = Path(folder)
        without_module(work)
        done = run("tokenize", "--tokenizer=byte", shards, f"--output={work / 'a.tokens'}")
        if "need Apache Arrow" in done.stderr:
            print("skipped: there is no Apache Arrow:", done.stderr.strip())
            sys.exit(77)
        assert done.returncode == 0, done.stderr
        assert run("tokenize", "--tokenizer=byte", lines, f"--output={work / 'b.tokens'}").returncode == 0
        assert (work / "a.tokens").read_bytes() == (work / "b.tokens").read_bytes(), "token files differ"

        steps = 60
        done = run(*config(work, "lines", lines, steps))
        assert done.returncode == 0, done.stderr
        expected = learned(work, "lines")
        assert len(expected[0]) == steps
        for seed, (name, path) in enumerate([("parquet", shards), ("saved", fixtures / "saved/train")]):
            if name == "saved" and own:
                continue
            found = survives(work, name, path, steps, seed)
            for what, a, b in zip(("losses", "weights", "optimizer", "trainer"), found, expected):
                assert a == b, f"{name}: the {what} differ from those of the JSON lines"
            print(f"{name}: {kills} kills; losses, weights, optimizer state and position are the bits of the JSON lines")


main()
