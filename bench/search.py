"""Measures `lehr search` on the quickstart models. Parts:

- losses: ways to make a smaller model of a trained one, at equal parameters, or another cost that --budget names.
- costs: the times of children, as the sum of their parts and as measured.
- reuse: layer forwards and time of the scores of a deep model, with prefixes reused and without.

    bench/search.py                              losses: an hour on two cores for both models and 3 seeds
    bench/search.py --budget prefill_seconds     the same at equal measured time
    bench/search.py --parts costs,reuse          some minutes (reuse needs make bench-build)

Losses: for each seed a teacher is trained, and `lehr search` is run in several ways that share what they can: scores, library.
Losses are those of `lehr eval` on all held-out text; a tenth of it was used to choose variants, by all ways alike.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
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
# Budgets of five children whose times are predicted.
CHILDREN = [("prefill_seconds", 80), ("prefill_seconds", 65), ("prefill_seconds", 50), ("decode_seconds", 80), ("decode_seconds", 60)]
STEPS = {"quickstart": 1400, "quickstart_moe": 700}  # of the recipes
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


def budget_of(kind, percent):
    """Returns the arguments of a budget in place of the recipe's, which limits the parameters."""
    return ([] if kind == "parameters" else ["--budget.parameters=100 %"]) + [f"--budget.{kind}={percent:g} %"]


def search(lehr, recipe, teacher, folder, seed, options, extra):
    """Returns the cost that the budget limits (a share), losses after search and after distillation, and KL after search."""
    result = folder / "result.json"
    if not result.exists():
        lehr("search", "recipe/search_quickstart.toml", f"--search.teacher={teacher}", f"--search.config={recipe}",
             f"--search.output={folder}", *budget_of(options.budget, 100 * options.share), f"--solve.seed={seed}",
             "--solve.candidates=1", "--solve.rounds=0", f"--local_distillation.steps={options.local_steps}",
             f"--distillation.steps={options.distil_steps}", *extra)
        found = json.loads((folder / "search.json").read_text())
        child = max(folder.glob("child-*"), key=os.path.getmtime)
        distilled = newest_checkpoint(max(folder.glob("distil-*"), key=os.path.getmtime))
        best = found["candidates"][0]
        result.write_text(json.dumps({
            "share": best["costs"][options.budget] / found["teacher_costs"][options.budget],
            "losses": [lehr.loss(recipe, child), lehr.loss(recipe, distilled)],
            "kl": best["measured"]["kl"]}))
    return json.loads(result.read_text())


def measure(lehr, recipe, seed, root, options, teacher_steps):
    """Returns way -> (share of the budget's cost, losses, KL) of one seed."""
    teacher = train(lehr, recipe, root / "teacher", seed, teacher_steps)
    by_parameters = options.budget == "parameters"
    folders = root if by_parameters else root / options.budget
    first = folders / "integer_program"
    ignored = shutil.ignore_patterns("distil-*", "child-*", "result.json")
    if not by_parameters and not first.exists() and (root / "integer_program").exists():
        shutil.copytree(root / "integer_program", first, ignore=ignored)  # library and scores are the same
    results = {"teacher": {"share": 1, "losses": [lehr.loss(recipe, teacher)] * 2, "kl": 0}}
    for way in ["integer program", *(way for way in WAYS if way != "integer program")]:
        folder = folders / way.replace(" ", "_").replace(",", "")
        if not folder.exists() and folder != first:
            shutil.copytree(first, folder, ignore=ignored)
        results[way] = search(lehr, recipe, teacher, folder, seed, options, WAYS[way])
    if not by_parameters:
        return results  # the uniform model has the parameters of a budget
    # As many tokens as local distillation and distillation of a child together.
    uniform = train(lehr, recipe, root / "uniform", seed, options.local_steps + options.distil_steps, *uniform_arguments(teacher, options.share))
    loss = lehr.loss(recipe, uniform)
    results[UNIFORM] = {"share": parameters_of(uniform) / parameters_of(teacher), "losses": [float("nan"), loss], "kl": float("nan")}
    return results


def mean_and_range(values, digits=4):
    if any(value != value for value in values):
        return ""
    text = f"{statistics.mean(values):.{digits}f}"
    return text if len(values) == 1 or max(values) == 0 else f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def report(section, model, seeds):
    for way in seeds[0]:
        rows = [results[way] for results in seeds]
        section.row(model, way, f"{100 * statistics.mean(row['share'] for row in rows):.1f} %",
                    *(mean_and_range([row[key] for row in rows]) for key in ("kl",)),
                    *(mean_and_range([row["losses"][i] for row in rows]) for i in (0, 1)))


def report_orders(section, tables):
    section.add("", "How often the first of two ways has the lower loss (of all seeds, by model), and how much lower on average:", "")
    section.table("better, as published", "than", "loss after", *(f"{model}: seeds, mean difference" for model in tables))
    for better, worse, column in ORDERS:
        if any(worse not in seeds[0] for seeds in tables.values()):
            continue
        cells = []
        for seeds in tables.values():
            differences = [results[worse]["losses"][column] - results[better]["losses"][column] for results in seeds]
            alike = sum(d == 0 for d in differences)
            cells.append(f"{sum(d > 0 for d in differences)} of {len(seeds)}{f' ({alike} alike)' if alike else ''}, "
                         f"{statistics.mean(differences):+.4f}")
        section.row(better, worse, "distillation" if column else "search", *cells)


def losses(lehr, work, report_file, a):
    tables = {}
    for model in a.models.split(","):
        tables[model] = []
        for seed in range(1, a.seeds + 1):
            root = work / model / f"seed{seed}"
            root.mkdir(parents=True, exist_ok=True)
            tables[model].append(measure(lehr, f"recipe/{model}.toml", seed, root, a, a.teacher_steps or STEPS[model]))
            print(f"{model}, seed {seed}: done", flush=True)
    by_parameters = a.budget == "parameters"
    words = a.budget.replace("_", " ")
    # Losses hardly depend on the CPU, so one section is enough.
    section = Section(report_file(by_class=False), "Losses" if by_parameters else f"Losses at equal {words}")
    section.add(f"Loss on the held-out text, in nats per byte, mean of {a.seeds} seeds (and range). Budget: {100 * a.share:g} % of the "
                f"teacher's {words}. {a.local_steps} steps of local distillation, {a.distil_steps} of distillation, 2,048 bytes each. The integer "
                "program takes one solution of the scores in the teacher, \"best of 6\" measures candidates and repeats as `lehr search` "
                "does by default. " + ("The uniform model has narrower feed-forward blocks in all layers alike, and is trained from scratch on as "
                "many bytes as both distillations together. " if by_parameters else "") +
                "KL: after the search, on the sequences by which variants were chosen.", "")
    section.table("model", "way", words, "KL", "loss after search", "loss after distillation")
    for model, seeds in tables.items():
        report(section, model, seeds)
    report_orders(section, tables)
    section.write()


def costs(lehr, work, report_file, a):
    section = Section(report_file(by_class=True), "Times of children")
    section.add("Five children of each model, chosen under budgets of measured time: the sum of the times of their parts, each "
                "measured once in a layer of its own, and the time of the child as a whole.", "")
    section.table("model", "budget", "prefill: sum of parts", "measured", "difference", "decoding step: sum of parts", "measured", "difference")
    worst = 0
    for model in a.models.split(","):
        root = work / model / "seed1"
        root.mkdir(parents=True, exist_ok=True)
        recipe = f"recipe/{model}.toml"
        teacher = train(lehr, recipe, root / "teacher", 1, a.teacher_steps or STEPS[model])
        for kind, share in CHILDREN:
            folder = root / "costs"
            lehr("search", "recipe/search_quickstart.toml", f"--search.teacher={teacher}", f"--search.config={recipe}",
                 f"--search.output={folder}", *budget_of(kind, share), "--solve.candidates=1",
                 "--solve.rounds=0", "--local_distillation.steps=0", "--distillation.steps=0", f"--workload.rounds={a.rounds}")
            found = json.loads((folder / "search.json").read_text())
            cells = []
            for part in ("prefill", "decode"):
                predicted, measured = found["candidates"][0]["costs"][f"{part}_seconds"], found["child_seconds"][part]
                worst = max(worst, abs(predicted / measured - 1))
                cells += [f"{1e3 * predicted:.3f} ms", f"{1e3 * measured:.3f} ms", f"{100 * (predicted / measured - 1):+.1f} %"]
            section.row(model, f"{kind} {share} %", *cells)
    section.add("", f"The largest difference is {100 * worst:.1f} %.")
    section.write()


def reuse(lehr, work, report_file, a):
    done = subprocess.run([a.scores_bench, f"--layers={a.layers}"], capture_output=True, text=True, env=lehr.variables)
    if done.returncode != 0:
        raise SystemExit(f"{a.scores_bench}: {done.stderr}")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    most = found[-1]  # of layers, from the embeddings
    section = Section(report_file(by_class=True), "Reuse of prefixes")
    section.add(f"All variants of a model of {a.layers} layers with random weights, each with six alternatives of sub-blocks, or eleven "
                "of whole layers, as pairs of sub-blocks.", "")
    section.table("variants of", "begins at", "measurements", "layer forwards", "time", "fewer layer forwards", "less time")
    for one in reversed(found):
        section.row(one["variants"], "the replaced layer" if one["reuse"] else "the embeddings", one["measurements"],
                    f"{one['layer_forwards']:,}", f"{one['seconds']:.1f} s",
                    f"{most['layer_forwards'] / one['layer_forwards']:.2f} x", f"{most['seconds'] / one['seconds']:.2f} x")
    section.write()


PARTS = {"losses": losses, "costs": costs, "reuse": reuse}
BUDGETS = ("parameters", "active_parameters", "memory", "kv_cache", "prefill_flops", "decode_flops", "prefill_seconds", "decode_seconds")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default="build/lehr")
    p.add_argument("--scores-bench", default="build/bin/search_scores_bench", help="the program of the part reuse")
    p.add_argument("--parts", default="losses", help=f"of {', '.join(PARTS)}; default: %(default)s")
    p.add_argument("--models", default="quickstart,quickstart_moe", help="default: %(default)s")
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--budget", default="parameters", choices=BUDGETS, help="the cost that losses are compared at")
    p.add_argument("--share", type=float, default=0.6, help="the budget, a share of the teacher's cost")
    p.add_argument("--teacher-steps", type=int, help="not given: those of the recipe")
    p.add_argument("--local-steps", type=int, default=150)
    p.add_argument("--distil-steps", type=int, default=200)
    p.add_argument("--rounds", type=int, default=21, help="measurements of a time in the part costs")
    p.add_argument("--layers", type=int, default=32, help="layers of the model of the part reuse")
    p.add_argument("--work", type=Path, help="folder that is kept, and continued by the next run")
    p.add_argument("--out", default="bench/results_search.md")
    a = p.parse_args()
    if "reuse" in a.parts.split(",") and not Path(a.scores_bench).exists():
        p.error(f"{a.scores_bench}: no such program; run `make bench-build`, or give --scores-bench")
    parts = a.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        p.error(f"--parts: expected {', '.join(PARTS)}, found {unknown[0]}")
    lehr = Lehr(a.lehr)
    work = a.work or Path(tempfile.mkdtemp(prefix="lehr-bench-search-"))

    def report_file(by_class):
        return Report(a.out, "Searches on the quickstart models", "Written by bench/search.py.", by_class=by_class)

    for part in parts:
        PARTS[part](lehr, work, report_file, a)


if __name__ == "__main__":
    main()
