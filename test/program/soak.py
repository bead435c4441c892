"""A soak of lehr train: for a given time, runs on random meshes are disturbed by random faults, and each must go on with the
bits of an undisturbed one; beside them a long run that nobody disturbs must not grow.

Usage: soak.py LEHR [--minutes N] [--seed N] [--episode K] [--json FILE] [--table FILE]      (standard library only)

Faults, models and meshes follow from the seed and the number of the episode, so that `--seed 7 --episode 12` repeats one.
docs/reliability.md has the figures of a soak; --table writes its tables, --json all figures.
"""
import argparse, json, shutil, statistics, sys, tempfile, time
from pathlib import Path

from disturbed_run import Run
from expectations import TINY, expect
from long_run import LongRun
from soak_draws import KINDS, STEPS, Episode
from soak_faults import Disturbed


def span(seconds):
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"


def undisturbed(lehr, work, episode, known):
    """Returns the run on the mesh of the episode that nobody disturbs; made once for each such run."""
    key = (episode.family, episode.mesh, episode.threads, episode.interval)
    if key not in known:
        folder = work / f"undisturbed_{episode.number}"
        folder.mkdir()
        run = Run(lehr, folder / "run", TINY, episode.mesh.ranks, episode.settings() + episode.mesh.arguments(),
                  episode.threads)
        code, error = run.finish("--comm.train_timeout_seconds=300")  # it must not fail because the machine is busy
        if code != 0:
            raise RuntimeError(f"the undisturbed run of {episode} ended with exit code {code}:\n{error}")
        known[key] = run
    return known[key]


def run_episode(lehr, work, episode, known):
    """Returns the figures of one episode."""
    try:
        whole = undisturbed(lehr, work, episode, known)
    except RuntimeError as error:
        return {"episode": episode.number, "run": str(episode), "faults": [], "skipped": [], "useful": 0, "wall": 0, "problems": [str(error)]}
    disturbed = Disturbed(lehr, work / f"episode_{episode.number}", episode)
    wall = disturbed.train()
    disturbed.check(whole)
    useful = sum(line.get("step_seconds", 0) for line in disturbed.run.metrics())
    figures = {"episode": episode.number, "run": str(episode), "faults": disturbed.recoveries, "skipped": disturbed.skipped,
               "useful": useful, "wall": wall, "problems": disturbed.problems}
    if not disturbed.problems:
        disturbed.remove()
    return figures


def summary_of(episodes):
    """Returns the figures by kind of fault, and in all. Goodput by kind is of runs that had only this kind."""
    kinds = {}
    for kind in KINDS:
        of_kind = [one for one in episodes if any(name == kind for name, _ in one["faults"])]
        seconds = [took for one in of_kind for name, took in one["faults"] if name == kind]
        only = [one for one in of_kind if all(name == kind for name, _ in one["faults"])]
        kinds[kind] = {"faults": len(seconds), "failed": [one["episode"] for one in of_kind if one["problems"]],
                       "recovery_median": statistics.median(seconds) if seconds else None,
                       "recovery_max": max(seconds, default=None), "goodput": goodput(only), "runs": len(only)}
    undisturbed_runs = [one for one in episodes if not one["faults"]]
    return {"episodes": len(episodes), "faults": sum(kind["faults"] for kind in kinds.values()),
            "failed": [one["episode"] for one in episodes if one["problems"]], "goodput": goodput(episodes),
            "goodput_without_fault": goodput(undisturbed_runs), "kinds": kinds}


def goodput(episodes):
    wall = sum(one["wall"] for one in episodes)
    return sum(one["useful"] for one in episodes) / wall if wall else None


def percent(share):
    return "-" if share is None else f"{100 * share:.0f} %"


def table_of(summary):
    """Returns the lines of docs/reliability.md."""
    lines = ["| fault | injected | recovered | median | longest | goodput |", "| --- | --- | --- | --- | --- | --- |"]
    for kind, text in KINDS.items():
        one = summary["kinds"][kind]
        took = ["-", "-"] if not one["faults"] else [f"{one['recovery_median']:.1f} s", f"{one['recovery_max']:.1f} s"]
        recovered = "all" if not one["failed"] else f"not in episodes {', '.join(map(str, one['failed']))}"
        lines.append(f"| {text} | {one['faults']} | {recovered} | {took[0]} | {took[1]} | {percent(one['goodput'])} |")
    lines.append(f"| all, in {summary['episodes']} runs | {summary['faults']} | "
                 f"{'all' if not summary['failed'] else 'not all'} | | | {percent(summary['goodput'])} |")
    if long_run := summary.get("long_run"):
        lines += ["", f"The long run: {long_run['steps']} steps and {long_run['validations']} validations in {span(long_run['seconds'])}.",
                  "", "| process | KiB per 1000 steps (95 % interval) | resident | descriptors | threads |", "| --- | --- | --- | --- | --- |"]
        for name, one in long_run["processes"].items():
            lines.append(f"| {name} | {one['kib_per_1000_steps']:.2f} ({one['low']:.2f} to {one['high']:.2f}) | "
                         f"{one['rss_kib'][0] / 1024:.1f} to {one['rss_kib'][1] / 1024:.1f} MiB | "
                         f"{one['descriptors'][0]:.0f} to {one['descriptors'][1]:.0f} | {one['threads'][0]:.0f} to {one['threads'][1]:.0f} |")
    return "\n".join(lines) + "\n"


def problems_of(long_run, code, alive, error):
    """Returns what is wrong with the run that nobody disturbed."""
    found = [] if alive else [f"the long run ended by itself with exit code {code}: {error}"]
    for name, one in long_run["processes"].items():
        if not one["level"]:
            found.append(f"long run, {name}: its memory grows by {one['kib_per_1000_steps']:.2f} KiB per 1000 steps")
        for what in ("descriptors", "threads"):
            if one[what][1] > one[what][0]:
                found.append(f"long run, {name}: its {what} grew from {one[what][0]:.0f} to {one[what][1]:.0f}")
    return found


def soak(options, work, episodes):
    """Runs episodes until the time is over, beside the long run; returns its figures and problems."""
    lehr, known = options.lehr.resolve(), {}
    begin = time.monotonic()
    left = lambda: options.minutes * 60 - (time.monotonic() - begin)
    long_run = LongRun(lehr, work / "long")
    long_run.start()
    try:
        number = 0
        while left() > 0:
            number += 1
            one = run_episode(lehr, work, Episode(options.seed, number), known)
            episodes.append(one)
            report(one)
            faults = sum(len(each["faults"]) for each in episodes)
            failed = sum(bool(each["problems"]) for each in episodes)
            print(f"      {span(time.monotonic() - begin)} of {span(options.minutes * 60)}, {span(max(0, left()))} left: {number} "
                  f"runs, {faults} faults, {failed} failures", flush=True)
    finally:
        code, error = long_run.finish()
    figures = long_run.summary()
    return figures, problems_of(figures, code, long_run.alive, error)


def report(one):
    took = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in one["faults"]) or "no fault"
    expect(f"{one['episode']}: {one['run']}: {took}", not one["problems"], "\n".join(map(str.strip, one["problems"])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lehr", type=Path)
    parser.add_argument("--minutes", type=float, default=20, help="of the soak; default 20")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--episode", type=int, default=0, help="run only this one, without the long run")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--table", type=Path, help="file for the tables of docs/reliability.md")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="lehr-soak-"))
    episodes, problems = [], []
    if options.episode:
        episodes.append(run_episode(options.lehr.resolve(), work, Episode(options.seed, options.episode), {}))
        report(episodes[0])
        summary = summary_of(episodes)
    else:
        long_run, problems = soak(options, work, episodes)
        summary = {"seed": options.seed, "minutes": options.minutes, **summary_of(episodes), "long_run": long_run, "problems": problems}
    failed = len(summary["failed"]) + len(problems)
    table = table_of(summary)
    print(table)
    for problem in problems:
        print(f"FAILS {problem}")
    if options.table:
        options.table.write_text(table)
    if options.json:
        options.json.write_text(json.dumps({**summary, "runs": episodes}, indent=1) + "\n")
    if failed:
        print(f"kept: {work}; again: soak.py LEHR --seed {options.seed} --episode K")
    else:
        shutil.rmtree(work)
    print(f"{summary['faults']} faults in {len(episodes)} runs of {STEPS} steps, seed {options.seed}, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
