"""Measures how much of its quiet speed each contender keeps beside other work, and writes bench/results_neighbours.md.

    make bench-neighbours                         builds the benchmarks, then runs this script
    .bench/bin/python bench/neighbours.py --presets tiny --peers "transformers eager" --rounds 1 --steps 5

Conditions: beside 0, 1, 2 and 4 processes that are always busy; with a quota of 1.5 cores, as of a container; and with
twice as many threads as cores. In a round each contender runs under each condition, and all contenders run under one
condition before the next begins. Shares are computed per round. Beside n busy processes, a fair share of c cores is
c / (c + n). The machine must be quiet otherwise.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, contextmanager

from agree import compare as same_work
from contenders import HERE, PEERS, SHAPES, Contenders, DidNotRun, run, save_init, some_of, spread, why_not
from machine import cpu_class
from quota import quota
from report import Report, Section, row_of

QUOTA = 1.5
CORES = os.cpu_count()
QUIET = "quiet"
# Condition: busy processes, cores granted, threads, and the share of the quiet speed that is fair.
CONDITIONS = {QUIET: (0, None, CORES, 1.0)}
CONDITIONS |= {f"beside {n} busy": (n, None, CORES, CORES / (CORES + n)) for n in (1, 2, 4)}
CONDITIONS |= {f"quota of {QUOTA} cores": (0, QUOTA, CORES, min(1.0, QUOTA / CORES)),
               f"{2 * CORES} threads": (0, None, 2 * CORES, 1.0)}


@contextmanager
def busy(count):
    """Keeps `count` processes busy, of this session and priority."""
    each = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield each
    finally:
        for process in each:
            process.kill()
            process.wait()


def speed(result):
    """Returns tokens per second over all timed steps: beside other work a median would leave out what was lost."""
    return result["seq"] * result["batch"] * len(result["step_ms"]) / sum(result["step_ms"]) * 1000


def run_condition(contenders, a, preset, folder, condition):
    """Returns the result of every contender."""
    processes, cores, threads, _ = CONDITIONS[condition]
    commands = contenders.commands(folder, a.dtype, *SHAPES[preset], a.steps, 2, threads=threads)
    with ExitStack() as stack:
        prefix = stack.enter_context(quota(cores)) if cores else []
        if isinstance(prefix, DidNotRun):
            return {name: prefix for name in commands}
        stack.enter_context(busy(processes))
        return {name: run([*prefix, *command]) for name, command in commands.items()}


def rows_of(preset, rounds):
    """Returns the rows of the report, and what is wrong. `rounds`: condition -> contender -> result, each."""
    rows, wrong = [], []
    for condition, (_, _, _, fair) in CONDITIONS.items():
        for name in rounds[0].get(condition, {}):
            results = [r[condition][name] for r in rounds if condition in r]
            both = [(r[QUIET][name], r[condition][name]) for r in rounds if condition in r and r[QUIET][name] and r[condition][name]]
            place = [cpu_class(), preset, name, condition]
            if not both:
                rows.append(place + [str(why_not(results + [r[QUIET][name] for r in rounds])), "", "", ""])
                continue
            shares = [speed(loaded) / speed(quiet) for quiet, loaded in both]
            rows.append(place + [spread([speed(loaded) for _, loaded in both], 0), spread(shares), f"{fair:.2f}",
                                 f"{statistics.median(shares) / fair:.2f}"])
            wrong += wrong_with(rounds, condition, name, place)
    return rows, wrong


def wrong_with(rounds, condition, name, place):
    """Load must not change what is computed: Lehr's losses have the same bits, and peers' agree with Lehr's."""
    for found in rounds:
        ours, theirs = found[QUIET].get("lehr"), found.get(condition, {}).get(name)
        if not (ours and theirs):
            continue
        wrong = same_work([ours], [theirs], ours["dtype"])[1]
        if name == "lehr" and ours["losses"] != theirs["losses"]:
            wrong = wrong or "other bits than on a quiet machine"
        if wrong:
            return [f"{place[1]} {name}, {condition}: {wrong}"]
    return []


def measure(section, contenders, a):
    """Returns what is wrong with the work of contenders."""
    section.add(f"{a.rounds} alternating rounds of {a.steps} timed steps after 2 others, {a.dtype}; tokens/s over all timed steps. Share: of "
                f"the contender's own quiet speed in the same round. A quota limits CPU time, and its fair share is {QUOTA} of "
                f"{CORES} cores.", "")
    section.table("CPU", "preset", "contender", "condition", "tokens/s: median (min to max)", "share of quiet", "fair share",
                  "of the fair share")
    wrong = []
    for preset in a.presets:
        before = list(section.lines)
        rounds, found = [], []
        with tempfile.TemporaryDirectory() as folder:
            if failed := save_init(preset, folder):
                section.row(cpu_class(), preset, "all", "all", failed, "", "", "")
                continue
            for _ in range(a.rounds):
                rounds.append({})
                for condition in CONDITIONS:
                    rounds[-1][condition] = run_condition(contenders, a, preset, folder, condition)
                    rows, found = rows_of(preset, rounds)
                    section.lines = before + [row_of(row) for row in rows]  # the rows so far
                    section.write()
                    print(*(row_of(row) for row in rows if row[3] == condition), sep="\n", flush=True)
        wrong += found
    return wrong


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--lehr", default=os.path.join(HERE, "..", "build", "bin", "train_step_bench"))
    p.add_argument("--presets", type=some_of(*SHAPES), default=["tiny", "small"], help="of " + ",".join(SHAPES))
    p.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--peers", type=some_of(*PEERS), default=list(PEERS), help="of " + ",".join(PEERS))
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--out", default=os.path.join(HERE, "results_neighbours.md"))
    a = p.parse_args()
    report = Report(a.out, "Lehr and its peers beside other work", "Written by bench/neighbours.py (`make bench-neighbours`).")
    wrong = measure(Section(report, "Share of the quiet speed"), Contenders(a.lehr, a.peers), a)
    if wrong:
        sys.exit("not the same work:\n  " + "\n  ".join(wrong))


if __name__ == "__main__":
    main()
