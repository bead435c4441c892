"""Compares ways to make a smaller model of a trained one, at equal parameters, on the quickstart models.

    bench/search.py --lehr build/lehr --out bench/results_search.md     an hour on two cores for both models and 3 seeds

For each seed a teacher is trained, and `lehr search` is run in several ways that share what they can: scores, library.
Losses are those of `lehr eval` on all held-out text; a tenth of it was used to choose variants, by all ways alike.
"""
import argparse
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from lehr_program import Lehr, newest_checkpoint
from report import Report, Section

WAYS = {
    "best of 6, 2 rounds": ["--solve.candidates=6", "--solve.rounds=2"],
    "integer program": [],
    "integer program, scores by loss": ["--score.objective=nll"],
    "greedy": ["--solve.method=greedy"],
    "random": ["--solve.method=random"],
    "without local distillation": ["--local_distillation.steps=0"],
    "only no-ops": ["--space.sizes=false"],
}
UNIFORM = "uniform, from scratch"
# Pairs of which the paper found the first to be better (arXiv 2411.19146), and the column in which they are compared.
ORDERS = [
    ("best of 6, 2 rounds", "integer program", 1),
    ("integer program", "greedy", 0),
    ("greedy", "random", 0),
    ("integer program", "integer program, scores by loss", 0),
    ("integer program", "without local distillation", 0),
    ("integer program", "only no-ops", 0),
    ("integer program", "greedy", 1),
    ("greedy", "random", 1),
    ("integer program", "integer program, scores by loss", 1),
    ("integer program", "without local distillation", 1),
    ("integer program", "only no-ops", 1),
    ("integer program", UNIFORM, 1),
]


def parameters_of(model):
    """Returns the number of parameters that a model folder's files hold."""
    total = 0
    for path in model.glob("model*.safetensors"):
        with open(path, "rb") as f:
            header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        for name, info in header.items():
            count = 1
            for size in info.get("shape", ()):
                count *= size
            total += count if name != "__metadata__" else 0
    return total


def train(lehr, recipe, folder, seed, steps, *arguments):
    if not (folder / "done").exists():
        lehr("train", recipe, f"--job.dump_folder={folder}", f"--debug.seed={seed}", f"--training.steps={steps}", "--quiet", *arguments)
        (folder / "done").touch()
    return newest_checkpoint(folder)


def uniform_arguments(teacher, share):
    """Returns the arguments of a model with the teacher's depth, whose feed-forward blocks are as wide as `share` of the
    teacher's parameters allows: in steps of 8, at most that many."""
    config = json.loads((teacher / "config.json").read_text())
    hidden, layers, experts = config["hidden_size"], config["num_hidden_layers"], config.get("num_experts", 0)
    moe_layers = sum(1 for i in range(layers) if experts and i not in config.get("mlp_only_layers", []))
    widths = {"intermediate_size": layers - moe_layers, "moe_intermediate_size": moe_layers * experts}
    blocks = sum(3 * hidden * config.get(key, 0) * count for key, count in widths.items())
    whole = parameters_of(teacher)
    factor = 1 - (1 - share) * whole / blocks
    if factor <= 0:
        raise SystemExit("bench/search.py: a uniform model of this size needs fewer KV heads or layers; use a larger --share")
    return [f"--model.args.{key}={int(config[key] * factor) // 8 * 8}" for key, count in widths.items() if count]


def search(lehr, recipe, teacher, folder, seed, options, extra):
    """Returns parameters (a share), losses after search and after distillation, and KL after search."""
    result = folder / "result.json"
    if not result.exists():
        lehr("search", "recipe/search_quickstart.toml", f"--search.teacher={teacher}", f"--search.config={recipe}",
             f"--search.output={folder}", f"--budget.parameters={100 * options.share:g} %", f"--solve.seed={seed}",
             "--solve.candidates=1", "--solve.rounds=0", f"--local_distillation.steps={options.local_steps}",
             f"--distillation.steps={options.distil_steps}", *extra)
        found = json.loads((folder / "search.json").read_text())
        child = max(folder.glob("child-*"), key=os.path.getmtime)
        distilled = newest_checkpoint(max(folder.glob("distil-*"), key=os.path.getmtime))
        best = found["candidates"][0]
        result.write_text(json.dumps({
            "parameters": best["costs"]["parameters"] / found["teacher_costs"]["parameters"],
            "losses": [lehr.loss(recipe, child), lehr.loss(recipe, distilled)],
            "kl": best["measured"]["kl"]}))
    return json.loads(result.read_text())


def measure(lehr, recipe, seed, root, options, teacher_steps):
    """Returns way -> (share of the parameters, losses, KL) of one seed."""
    teacher = train(lehr, recipe, root / "teacher", seed, teacher_steps)
    first = root / "integer_program"
    results = {"teacher": {"parameters": 1, "losses": [lehr.loss(recipe, teacher)] * 2, "kl": 0}}
    for way in ["integer program", *(way for way in WAYS if way != "integer program")]:
        folder = root / way.replace(" ", "_").replace(",", "")
        if not folder.exists() and folder != first:
            shutil.copytree(first, folder, ignore=shutil.ignore_patterns("distil-*", "child-*", "result.json"))
        results[way] = search(lehr, recipe, teacher, folder, seed, options, WAYS[way])
    # As many tokens as local distillation and distillation of a child together.
    uniform = train(lehr, recipe, root / "uniform", seed, options.local_steps + options.distil_steps, *uniform_arguments(teacher, options.share))
    loss = lehr.loss(recipe, uniform)
    results[UNIFORM] = {"parameters": parameters_of(uniform) / parameters_of(teacher), "losses": [float("nan"), loss], "kl": float("nan")}
    return results


def mean_and_range(values, digits=4):
    if any(value != value for value in values):
        return ""
    text = f"{statistics.mean(values):.{digits}f}"
    return text if len(values) == 1 or max(values) == 0 else f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def report(section, model, seeds):
    for way in ["teacher", *WAYS, UNIFORM]:
        rows = [results[way] for results in seeds]
        section.row(model, way, f"{100 * statistics.mean(row['parameters'] for row in rows):.1f} %",
                    *(mean_and_range([row[key] for row in rows]) for key in ("kl",)),
                    *(mean_and_range([row["losses"][i] for row in rows]) for i in (0, 1)))


def report_orders(section, tables):
    section.add("", "How often the first of two ways has the lower loss (of all seeds, by model), and how much lower on average:", "")
    section.table("better, as published", "than", "loss after", *(f"{model}: seeds, mean difference" for model in tables))
    for better, worse, column in ORDERS:
        cells = []
        for seeds in tables.values():
            differences = [results[worse]["losses"][column] - results[better]["losses"][column] for results in seeds]
            alike = sum(d == 0 for d in differences)
            cells.append(f"{sum(d > 0 for d in differences)} of {len(seeds)}{f' ({alike} alike)' if alike else ''}, "
                         f"{statistics.mean(differences):+.4f}")
        section.row(better, worse, "distillation" if column else "search", *cells)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default="build/lehr")
    p.add_argument("--models", default="quickstart,quickstart_moe", help="default: %(default)s")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--share", type=float, default=0.6, help="the budget, a share of the teacher's parameters")
    p.add_argument("--teacher-steps", type=int, help="not given: those of the recipe")
    p.add_argument("--local-steps", type=int, default=150)
    p.add_argument("--distil-steps", type=int, default=200)
    p.add_argument("--work", type=Path, help="folder that is kept, and continued by the next run")
    p.add_argument("--out", default="bench/results_search.md")
    a = p.parse_args()
    lehr = Lehr(a.lehr)
    work = a.work or Path(tempfile.mkdtemp(prefix="lehr-bench-search-"))
    steps = {"quickstart": 1400, "quickstart_moe": 700}
    tables = {}
    for model in a.models.split(","):
        tables[model] = []
        for seed in range(1, a.seeds + 1):
            root = work / model / f"seed{seed}"
            root.mkdir(parents=True, exist_ok=True)
            tables[model].append(measure(lehr, f"recipe/{model}.toml", seed, root, a, a.teacher_steps or steps[model]))
            print(f"{model}, seed {seed}: done", flush=True)
    # Losses hardly depend on the CPU, so one section is enough.
    section = Section(Report(a.out, "Searches on the quickstart models", "Written by bench/search.py.", by_class=False), "Losses")
    section.add(f"Loss on the held-out text, in nats per byte, mean of {a.seeds} seeds (and range). Budget: {100 * a.share:g} % of the "
                f"teacher's parameters. {a.local_steps} steps of local distillation, {a.distil_steps} of distillation, 2,048 bytes each. The integer "
                "program takes one solution of the scores in the teacher, \"best of 6\" measures candidates and repeats as `lehr search` "
                "does by default. The uniform model has narrower feed-forward blocks in all layers alike, and is trained from scratch on as "
                "many bytes as both distillations together. KL: after the search, on the sequences by which variants were chosen.", "")
    section.table("model", "way", "parameters", "KL", "loss after search", "loss after distillation")
    for model, seeds in tables.items():
        report(section, model, seeds)
    report_orders(section, tables)
    section.write()


if __name__ == "__main__":
    main()
