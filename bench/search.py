#!/usr/bin/env python3
"""Compares ways to make a smaller model, at equal parameters, on the quickstart models: bench/search.py [--seeds 3].

For each seed a teacher is trained, and lehr search is run in several ways, which share its library where they can:

  exact          the integer program, with local distillation, by KL
  by loss        the same, by the loss of each variant instead of KL
  greedy         greedy choice from the same library
  random         random variants of the same library, within the budget
  no local       without local distillation: variants keep the teacher's weights
  only no-ops    whole sub-blocks only

Losses are on held-out text, before and after the same number of steps of distillation.
"""
import argparse, json, shutil, statistics, subprocess, sys, tempfile
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--lehr", default="build/lehr")
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--recipe", default="recipe/quickstart.toml")
parser.add_argument("--budget", default="60 %")
parser.add_argument("--teacher-steps", type=int, default=1400)
parser.add_argument("--distil-steps", type=int, default=200)
parser.add_argument("--local-steps", type=int, default=150)
parser.add_argument("--work", type=Path, help="folder that is kept, and continued by the next run")
options = parser.parse_args()

WAYS = {
    "exact": [],
    "by loss": ["--score.objective=nll"],
    "greedy": ["--solve.method=greedy"],
    "random": ["--solve.method=random"],
    "no local": ["--local_distillation.steps=0"],
    "only no-ops": ["--space.sizes=false"],
}


def run(*arguments):
    done = subprocess.run([options.lehr, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}", file=sys.stderr)
    return done


def search(folder, teacher, config, seed, extra):
    done = run("search", "recipe/search_quickstart.toml", f"--search.teacher={teacher}", f"--search.config={config}",
               f"--search.output={folder}", f"--budget.parameters={options.budget}", f"--solve.seed={seed}",
               f"--local_distillation.steps={options.local_steps}", f"--distillation.steps={options.distil_steps}",
               *extra)
    return json.loads((folder / "search.json").read_text()) if done.returncode == 0 else None


def main():
    work = options.work or Path(tempfile.mkdtemp(prefix="lehr-bench-search-"))
    work.mkdir(parents=True, exist_ok=True)
    table = {}
    for seed in range(1, options.seeds + 1):
        root = work / f"seed{seed}"
        config = root / "teacher/config.toml"
        run("train", options.recipe, f"--job.dump_folder={root / 'teacher'}", f"--debug.seed={seed}",
            f"--training.steps={options.teacher_steps}", "--quiet")
        teacher = max((root / "teacher/checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))
        for way, extra in WAYS.items():
            folder = root / way.replace(" ", "_")
            if way in ("by loss", "greedy", "random") and not folder.exists():
                shutil.copytree(root / "exact", folder, ignore=shutil.ignore_patterns("distil", "child", "search.json"))
            found = search(folder, teacher, config, seed, extra)
            if found is None:
                continue
            best = found["candidates"][0]
            table.setdefault(way, []).append(
                (best["costs"]["parameters"] / found["teacher_costs"]["parameters"], best["measured"]["kl"],
                 best["measured"]["loss"], found["distilled"]["kl"], found["distilled"]["loss"]))
            table.setdefault("teacher", []).append((1, 0, found["teacher_scores"]["loss"], 0,
                                                    found["teacher_scores"]["loss"]))
            print(f"seed {seed} {way}: {table[way][-1]}", file=sys.stderr, flush=True)
    print("| way | seeds | parameters | KL | loss | KL, distilled | loss, distilled |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way, rows in table.items():
        means = [statistics.mean(column) for column in zip(*rows)]
        least = [f"{mean:.4f} ({min(column):.4f} to {max(column):.4f})" for mean, column in zip(means, zip(*rows))]
        print(f"| {way} | {len(rows)} | {100 * means[0]:.1f} % | " + " | ".join(least[1:]) + " |")


main()
