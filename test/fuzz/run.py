#!/usr/bin/env python3
"""Builds the harnesses of libFuzzer, runs them one after the other at low priority, and counts.

Usage: run.py [--parser NAME]... [--seconds N] [--runs N] [--seed N] [--list]      (standard library only; make fuzz)

Each harness starts from test/fuzz/corpus/NAME and from the inputs that earlier runs found (build/fuzz/found/NAME), and
stops after N seconds (60) or N runs. An input that crashes, leaks, takes more than 10 seconds, or takes more memory than
64 MiB and four times its size is kept in build/fuzz/broken; the line that repeats it is printed. build/fuzz/counts.json
adds up all runs.
"""
import argparse, json, os, re, resource, subprocess, sys, time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "test/fuzz"
BUILD = ROOT / "build/fuzz"
SECONDS_PER_INPUT = 10
LONGEST = {"template": 2048, "pattern": 512, "bpe": 600, "safetensors": 2048, "toml": 2048}
OPTIONS = {"ASAN_OPTIONS": "detect_container_overflow=0:detect_leaks=1:abort_on_error=1:handle_abort=1:"
                           "malloc_context_size=4:quarantine_size_mb=16",  # a third of the memory, and less time
           "UBSAN_OPTIONS": "print_stacktrace=1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


def parsers():
    return sorted(path.stem.removeprefix("parse_") for path in HERE.glob("parse_*.cpp"))


def build(names):
    if not (BUILD / "build.ninja").exists():
        subprocess.run(["cmake", "-S", HERE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_CXX_COMPILER=clang++"], check=True,
                       stdout=subprocess.DEVNULL)
    jobs = os.environ.get("JOBS", str(os.cpu_count()))
    subprocess.run(["cmake", "--build", BUILD, "-j", jobs, "--target", *(f"parse_{name}" for name in names)], check=True)


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(name, options):
    """Returns the number of executions, the CPU time, and whether no input broke it."""
    found, broken = BUILD / "found" / name, BUILD / "broken"
    found.mkdir(parents=True, exist_ok=True)
    broken.mkdir(exist_ok=True)
    command = ["nice", "-n", "15", BUILD / f"parse_{name}", found, HERE / "corpus" / name,
               f"-max_total_time={options.seconds}", f"-timeout={SECONDS_PER_INPUT}", "-rss_limit_mb=4096",
               f"-max_len={LONGEST.get(name, 4096)}", "-print_final_stats=1", f"-artifact_prefix={broken}/{name}-"]
    if options.runs:
        command.append(f"-runs={options.runs}")
    if options.seed:
        command.append(f"-seed={options.seed % (1 << 31) or 1}")
    if (HERE / f"{name}.dict").exists():
        command.append(f"-dict={HERE / name}.dict")
    before = cpu_seconds()
    log = BUILD / f"{name}.log"
    with open(log, "w") as out:
        code = subprocess.run(list(map(str, command)), stdout=out, stderr=subprocess.STDOUT,
                              env={**os.environ, **OPTIONS}, cwd=BUILD).returncode
    text = log.read_text(errors="replace")
    executions = int((re.findall(r"stat::number_of_executed_units:\s*(\d+)", text) or [0])[-1])
    if code != 0:
        print(f"FAILED {name}: exit code {code}; log: {log.relative_to(ROOT)}")
        for line in re.findall(r"^(?:BROKEN|SUMMARY|==\d+== ?ERROR|.*runtime error).*$", text, re.M)[:4]:
            print(f"  {line}")
        for artifact in re.findall(r"Test unit written to (\S+)", text)[:1]:
            print(f"  again: {(BUILD / f'parse_{name}').relative_to(ROOT)} {Path(artifact).relative_to(ROOT)}")
    return executions, cpu_seconds() - before, code == 0


def add_up(name, executions, seconds):
    file = BUILD / "counts.json"
    counts = json.loads(file.read_text()) if file.exists() else {}
    total = counts.setdefault(name, {"executions": 0, "cpu_seconds": 0})
    total["executions"] += executions
    total["cpu_seconds"] = round(total["cpu_seconds"] + seconds, 1)
    file.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    return counts


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--parser", action="append", choices=parsers(), help="one of them; default: all")
    arguments.add_argument("--seconds", type=int, default=60, help="per parser")
    arguments.add_argument("--runs", type=int, default=0, help="per parser; 0: until the time is over")
    arguments.add_argument("--seed", type=int, default=0, help="of the random numbers; 0: another one each time")
    arguments.add_argument("--list", action="store_true", help="name the parsers")
    options = arguments.parse_args()
    if options.list:
        print("\n".join(parsers()))
        return 0
    names = options.parser or parsers()
    build(names)
    broken, total, started = [], 0, time.monotonic()
    for name in names:
        executions, seconds, whole = run(name, options)
        counts = add_up(name, executions, seconds)
        total += executions
        broken += [] if whole else [name]
        print(f"{name:<12} {executions:>12,} executions, {seconds:>7.1f} s of CPU; "
              f"{counts[name]['executions']:,} since the first run", flush=True)
    everything = sum(one["executions"] for one in counts.values())
    print(f"{len(names) - len(broken)} of {len(names)} parsers held; {total:,} executions in "
          f"{time.monotonic() - started:.0f} s; {everything:,} since the first run")
    return 1 if broken else 0


sys.exit(main())
