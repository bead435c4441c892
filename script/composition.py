#!/usr/bin/env python3
"""Makes docs/composition.md, the table of all pairs of features, from runs; or checks the page in the tree.

    LEHR_DRAWS=pairs LEHR_TEST_SEED=7 LEHR_COMPOSITION=pairs.jsonl build/bin/train_draws_test
    script/composition.py pairs.jsonl [--random random.jsonl]    writes the page; random.jsonl is of LEHR_DRAWS=300
    script/composition.py --check                                the test `composition`

Rules are in test/train/composition.json: features, the groups of which a run has one, and the reasons to refuse a run. The
page is not made from runs that differ from one device, were refused for other reasons, or leave a pair out. --check says
which pairs of the rules the page lacks, so a new feature fails until runs cover it. Standard library only.
"""
import argparse
import json
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/composition.md"
NEVER = "–"
INTRO = """# Which features work together

This compatibility matrix has each pair of features of a training run. A cell is one of three:

| cell | meaning |
| --- | --- |
| T12 | Twelve runs with both features gave the results of one device in float64: losses, gradient norms, metrics, final weights and optimizer state after {steps} steps agreed within 1e-9 (Gemma 4: 1e-8), relative to the value, or of a tensor to its largest element (`bound_of` in `test/train/compare_draw.h`). |
| R1 | Refused before memory is allocated, with the message of reason R1 below. |
| – | Cannot occur, by the rules of `test/train/composition.json`: two schedules at once, experts of a dense model. |

`script/composition.py` makes this page from runs of `test/train/pairs_test.cpp`, and the test `composition` fails if a
pair is missing. {command}

```sh
LEHR_DRAWS=pairs LEHR_TEST_SEED={seed} LEHR_COMPOSITION=pairs.jsonl build/bin/train_draws_test
script/composition.py pairs.jsonl
```

"""


class Rules:
    def __init__(self, path=ROOT / "test/train/composition.json"):
        rules = json.loads(path.read_text())
        self.features = {one["name"]: one for one in rules["features"]}
        self.reasons = rules["reasons"]
        self.groups = list(dict.fromkeys(one["group"] for one in rules["features"]))

    def with_needs(self, names):
        found = set(names)
        for name in names:
            found |= self.with_needs(self.features[name].get("needs", []))
        return found

    def can_meet(self, *names):
        found = self.with_needs(names)
        groups = [self.features[name]["one_of"] for name in found if "one_of" in self.features[name]]
        return len(groups) == len(set(groups)) and not any(
            other in found for name in found for other in self.features[name].get("never_with", []))

    def refuses(self, *names):
        """The number of the reason for which every run with these features is refused, from 1; or None."""
        found = self.with_needs(names)
        for number, reason in enumerate(self.reasons, 1):
            if reason.get("always") and all(found & set(one.split("|")) for one in reason["features"]):
                return number
        return None

    def reason_of(self, error):
        return next((number for number, one in enumerate(self.reasons, 1) if one["message"] in error), None)

    def head(self, name):
        return self.features[name]["head"]

    def expected(self, one, other):
        """The cell of a pair, T for runs that are equal."""
        if not self.can_meet(one, other):
            return NEVER
        number = self.refuses(one, other)
        return f"R{number}" if number else "T"


def table(head, rows):
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def legend(rules):
    return table(["short", "feature", "key", "a run with it"],
                 [[one["head"], f"`{name}`", f"`{one['key']}`", one["is"]] for name, one in rules.features.items()])


def reasons(rules):
    def names(reason):
        return ", ".join(" or ".join(f"`{name}`" for name in one.split("|")) for one in reason["features"])
    rows = [[f"R{number}", names(one), "all runs" if one.get("always") else "some runs", f"`{one['key']}`", one["kind"], one["why"]]
            for number, one in enumerate(rules.reasons, 1)]
    return table(["", "features", "refuses", "key", "kind", "reason"], rows)


def kinds(rules):
    limitations = sum(one["kind"] == "limitation" for one in rules.reasons)
    text = ("A reason refuses *all runs* with its features, or *some runs*: then other settings or sizes let the features run\n"
            "together. In the column *kind*, a *limitation* could be removed by writing code, and a *principle* could not.")
    return text if limitations else text + " All\nreasons are principles."


def cells_of(rules, runs):
    """The cells of all pairs, and what is missing."""
    count, refused = Counter(), set()
    for run in runs:
        for pair in combinations(sorted(run["features"]), 2):
            if run["result"] == "equal":
                count[pair] += 1
            else:
                refused.add((pair, rules.reason_of(run["error"])))
    cells, missing = {}, []
    for pair in combinations(rules.features, 2):
        pair = tuple(sorted(pair))
        cell = rules.expected(*pair)
        if cell == "T":
            cell += str(count[pair])
            if not count[pair]:
                missing.append(f"{pair[0]} with {pair[1]}: no run with both equalled one device")
        elif count[pair]:
            missing.append(f"{pair[0]} with {pair[1]}: a run was equal, but the rules say {cell}")
        elif cell != NEVER and (pair, int(cell[1:])) not in refused:
            missing.append(f"{pair[0]} with {pair[1]}: no run was refused for {cell}")
        cells[pair] = cell
    return cells, missing


def triangles(rules, cells):
    """A table per group: its features in columns, in rows those from its first on."""
    names, text = list(rules.features), ""
    for group in rules.groups:
        columns = [name for name in names if rules.features[name]["group"] == group]
        rows = [[f"`{row}`"] + [cells[tuple(sorted((row, column)))] if names.index(row) > names.index(column) else ""
                                for column in columns]
                for row in names[names.index(columns[0]) + 1:]]
        text += f"### {group}\n\n" + table([""] + [rules.head(name) for name in columns], rows) + "\n"
    return text


def result_of(rules, run):
    return f"{run['largest']}" if run["result"] == "equal" else f"R{rules.reason_of(run['error'])}"


def runs_table(rules, runs):
    degrees = ("dp_replicate", "dp_shard", "cp", "tp", "ep", "pp")

    def mesh(text):
        return " ".join(part for part in text.split("_") if not part.endswith("1")) or "one device"
    rows = []
    for run in sorted(runs, key=lambda run: run["number"]):
        options = ", ".join(rules.head(name) for name in rules.features if name in run["features"] and name not in degrees)
        on = mesh(run["mesh"]) + (f", then {mesh(run['then'])}" if run["then"] else "")
        rows.append([run["number"], run["family"], on, options, result_of(rules, run)])
    return table(["draw", "family", "mesh", "features", "largest difference, or refused for"], rows)


def summary(rules, runs):
    equal = [run for run in runs if run["result"] == "equal"]
    worst = max(equal, key=lambda run: float(run["largest"]))
    refused = Counter(rules.reason_of(run["error"]) for run in runs if run["result"] == "refused")
    by = ", ".join(f"{count} for R{number}" for number, count in sorted(refused.items()))
    return (f"{len(equal)} equalled one device, with a largest difference of {worst['largest']} (draw "
            f"{worst['number']}, {worst['where']}); {sum(refused.values())} were refused{': ' + by if by else ''}")


def read(path):
    runs = {}
    for line in Path(path).read_text().splitlines():
        run = json.loads(line)
        runs[run["seed"], run["number"]] = run
    return list(runs.values())


def commit():
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return git("rev-parse", "--short=8", "HEAD") + (" with changes" if git("status", "--porcelain", "--", "lehr", "test/train") else "")


def problems_of(rules, runs):
    found = []
    for run in runs:
        name = f"draw {run['number']} of seed {run['seed']}"
        if run["result"] == "different":
            found.append(f"{name} differs from one device: {run['where']} by {run['largest']}")
        elif run["result"] == "refused" and rules.reason_of(run["error"]) is None:
            found.append(f"{name} was refused for a reason that is not listed: {run['error']}")
        for name_of in set(run["features"]) - set(rules.features):
            found.append(f"{name} has the feature {name_of}, which the rules do not have")
    return found


def written(rules, pairs, random, of, random_of=None):
    """The page, or a list of problems."""
    problems = problems_of(rules, pairs + random)
    if problems:
        return None, problems
    cells, missing = cells_of(rules, pairs + random)
    seeds = sorted({run["seed"] for run in pairs})
    if len(seeds) != 1:
        missing.append(f"the runs of pairs are of {len(seeds)} seeds, expected one")
    if missing:
        return None, missing
    text = INTRO.format(steps=5, seed=seeds[0], command=f"These runs are of commit {of} and seed {seeds[0]}.")
    text += f"Of the {len(pairs)} runs for pairs, {summary(rules, pairs)}.\n"
    if random:
        text += (f"Of {len(random)} random runs, called draws (`LEHR_DRAWS=300 LEHR_TEST_SEED={random[0]['seed']}`, commit {random_of or of}), "
                 f"which count in the table too, {summary(rules, random)}.\n")
    text += "\n## Features\n\n" + legend(rules)
    text += ("\nNot in the table: bfloat16, stochastic rounding, CUDA graphs and several processes. The runs are of threads on a CPU in\n"
             "float64. [parallelism.md](parallelism.md#unsupported-combinations) lists what commands other than `lehr train` refuse.\n")
    text += "\n## Pairs\n\nA pair of features of two groups is in the table of the group that comes first.\n\n" + triangles(rules, cells)
    text += "## Reasons to refuse\n\n" + kinds(rules) + "\n\n" + reasons(rules)
    text += (f"\n## Runs\n\nThese are the runs for pairs. To repeat draw N, run\n`LEHR_DRAWS=10000 LEHR_TEST_SEED={seeds[0]} "
             "build/bin/train_draws_test --gtest_filter='*EqualsOneDevice/N'`.\n\n" + runs_table(rules, pairs))
    return text, []


def check(rules, page):
    """What the page lacks of the rules."""
    found, cells = [], {}
    section = page.split("\n## Pairs\n")[-1].split("\n## Reasons")[0]
    by_head = {one["head"]: name for name, one in rules.features.items()}
    columns = []
    for line in section.splitlines():
        row = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(row) == {"---"}:
            continue
        if row[0] == "":
            columns = [by_head.get(head, head) for head in row[1:]]
            continue
        for column, cell in zip(columns, row[1:]):
            if cell:
                cells[tuple(sorted((row[0].strip("`"), column)))] = cell
    for name in sorted({name for pair in cells for name in pair} - set(rules.features)):
        found.append(f"the page has the feature {name}, which the rules no longer have")
    for pair in combinations(rules.features, 2):
        pair = tuple(sorted(pair))
        cell, wanted = cells.get(pair, "nothing"), rules.expected(*pair)
        if wanted == "T" and not re.fullmatch(r"T[1-9]\d*", cell):
            found.append(f"{pair[0]} with {pair[1]}: expected runs that equalled one device, found {cell}")
        elif wanted != "T" and cell != wanted:
            found.append(f"{pair[0]} with {pair[1]}: expected {wanted} by the rules, found {cell}")
    for title, text in (("features", legend(rules)), ("reasons", reasons(rules))):
        if text not in page:
            found.append(f"the table of {title} is not that of the rules")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="?", help="lines about the runs of LEHR_DRAWS=pairs")
    parser.add_argument("--random", help="lines about random draws")
    parser.add_argument("--commit", help="the commit of the runs; default: that of the tree")
    parser.add_argument("--random-commit", help="the commit of the random draws, if it is another one")
    parser.add_argument("--check", action="store_true", help="compare the page with the rules")
    arguments = parser.parse_args()
    rules = Rules()
    if arguments.check == bool(arguments.pairs):
        parser.error("expected a file of lines, or --check")
    if arguments.check:
        found = check(rules, PAGE.read_text())
        what = "run the pairs again and write the page (script/composition.py --help)"
    else:
        page, found = written(rules, read(arguments.pairs), read(arguments.random) if arguments.random else [],
                              arguments.commit or commit(), arguments.random_commit)
        what = f"{PAGE.relative_to(ROOT)} is not written"
        if page:
            PAGE.write_text(page)
    for line in found:
        print(f"composition: {line}")
    if found:
        sys.exit(f"composition: {len(found)} problems; {what}")
    pairs = sum(rules.can_meet(*pair) for pair in combinations(rules.features, 2))
    print(f"{pairs} pairs of {len(rules.features)} features: each equals one device or is refused for a reason")


if __name__ == "__main__":
    main()
