#!/usr/bin/env python3
"""Checks correctness, speed and memory of Lehr on a GPU in one command, in at most ten minutes and without a network.
docs/gpu.md explains the output and lists the files to send back.

    make gpu-check                        builds, and checks the first GPU of this machine
    make gpu-check ARGS=--rehearse        every step on the CPU with small sizes: finds mistakes before a GPU is paid for
    make gpu-pack                         build/gpu_pack.tar.xz, for a machine that has Python with torch and nothing else

Exit code: the number of items that FAILED, 99 at most. Standard library only.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import correctness
import machine
import pack
import report
import speed
from runner import FAILED, PASSED, Failed, Runner, Step

ROOT = Path(__file__).resolve().parents[2]
GPU_SECONDS, REHEARSAL_SECONDS = 570, 900  # of all steps together


class Check:
    """State that the steps share."""

    def __init__(self, a, build, torch):
        self.root, self.build = ROOT, build
        self.out, self.device = Path(a.out).resolve(), "cpu" if a.rehearse or a.list else "cuda"
        self.lehr, self.torch = self.build / "lehr", torch
        self.gpu = None if self.device == "cpu" else machine.find_gpu()
        self.host, self.torch_version = machine.host(), machine.torch_version(torch)
        self.commit = self.find_commit()
        self.only_parse = False
        self.compared_steps = 20 if self.device == "cuda" else 5
        self.beside_threads = max(1, len(os.sched_getaffinity(0)) // 4)
        self.references, self.plans, self.facts, self.tokens, self.tables = {}, {}, {}, {}, {}
        self.rows, self.modes, self.peers = [], [], []
        self.runner, self.names = None, set()

    def find_commit(self):
        packed = self.root / "PACKED"
        if packed.exists():
            return packed.read_text().strip()
        told = subprocess.run(["git", "-C", str(self.root), "describe", "--always", "--dirty"], capture_output=True, text=True)
        return told.stdout.strip() or "unknown"


def device_and_libraries(check, runner):
    """Checks that there is a GPU, and that the program starts and finds its modules."""
    if check.device == "cuda":
        if not check.gpu:
            raise Failed("nvidia-smi finds no GPU")
        runner.note("GPU", PASSED, f"{check.gpu.name}, {check.gpu.memory_bytes / 2**30:.0f} GiB, driver {check.gpu.driver}, "
                                   f"compute capability {check.gpu.capability}")
    runner.note("torch", PASSED if check.torch_version.startswith(machine.TORCH_VERSION) else FAILED,
                f"{check.torch_version} in {check.torch}", machine.TORCH_VERSION)
    if not check.lehr.exists():
        raise Failed(f"{check.lehr} does not exist; run make build, or make gpu-pack on another machine")
    newer = check.root / "lib/newer"
    try:
        runner.run("start", [check.lehr, "--help"])
    except Failed:
        if not newer.exists():
            raise
        runner.env["LD_LIBRARY_PATH"] += f":{newer}"  # this system's C++ library is older than the program
        runner.run("start", [check.lehr, "--help"])
    runner.note("the program starts", PASSED)
    for module in ("liblehr_cuda.so", "liblehr_nccl.so"):
        there = (check.build / module).exists()
        why = check.build / "liblehr_cuda.txt"
        text = "" if there else (why.read_text() if module == "liblehr_cuda.so" and why.exists() else "is not beside the program")
        runner.note(module, PASSED if there or check.device == "cpu" else FAILED, text)
    if check.names & {"sizes", "head", "modes", "profile and traces"}:
        speed.write_data(check)
    if "CPU and GPU" in check.names:
        correctness.start_references(check)
    if "sizes" in check.names:
        speed.start_plans(check)


def steps_of(check):
    """The steps, most informative first. Of the two numbers, in seconds, a step takes at most the first; earlier steps leave
    it the second. The first ones add up to more than the time of the check, the second ones to less."""
    def step(name, limit, least, work):
        return Step(name, limit, lambda runner: work(check, runner), least)

    return [
        step("device and libraries", 40, 15, device_and_libraries),
        step("one step", 60, 10, correctness.one_step),
        step("GPU tests", 120, 40, correctness.gpu_tests),
        step("memcheck", 60, 20, correctness.sanitizer("memcheck")),
        step("racecheck", 60, 20, correctness.sanitizer("racecheck")),
        step("verify", 60, 25, correctness.verify),
        step("CPU and GPU", 90, 40, correctness.cpu_beside_gpu),
        step("graphs and deferred read-back", 45, 20, correctness.graphs_and_late_results),
        step("kill and resume", 45, 20, correctness.kill_and_resume),
        step("sizes", 240, 130, speed.sizes),
        step("head", 40, 20, speed.head),
        step("modes", 100, 60, speed.modes),
        step("profile and traces", 80, 35, speed.traces),
        step("peer", 100, 45, speed.peer),
        step("NCCL of one rank", 40, 15, correctness.one_rank_of_nccl),
        step("other commands", 60, 30, correctness.use_the_model),
    ]


def rehearsal(steps):
    """A CPU is slower, and shared: each step may take longer, and all steps together fifteen minutes."""
    for step in steps:
        step.limit, step.least = max(180, 2 * step.limit), 1.4 * step.least
    return steps


def arguments():
    p = argparse.ArgumentParser(prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rehearse", action="store_true", help="run every step on the CPU")
    p.add_argument("--no-network", action="store_true", help="run in a network namespace with loopback only, if the system allows it")
    p.add_argument("--pack", metavar="DIR", help="write the files that another machine needs to DIR and DIR.tar.xz, and exit")
    p.add_argument("--list", action="store_true", help="list the steps, let the program parse every config, and exit")
    p.add_argument("--torch", metavar="DIR", help="the torch package (default: this Python's, or .venv's)")
    p.add_argument("--build", metavar="DIR", help="the build folder (default: build)")
    p.add_argument("--out", metavar="DIR", default=str(ROOT / "outputs/gpu_check"), help="folder of logs, traces and results")
    p.add_argument("--only", metavar="NAMES", help="steps to run, such as \"one step,verify\"; the first always runs")
    p.add_argument("--minutes", type=float, help="time limit of all steps together (default: 9.5; 15 in a rehearsal)")
    p.add_argument("--loopback-up", action="store_true", help=argparse.SUPPRESS)
    return p.parse_args()


def save(check, runner):
    card = report.slug(check.gpu.name) if check.gpu else "rehearsal"
    text = report.markdown(check, runner.verdicts)
    (check.out / f"results_{card}.md").write_text(text)
    (check.out / "verdicts.json").write_text(json.dumps([vars(v) for v in runner.verdicts], indent=1))
    if check.gpu and (check.root / "bench").is_dir():
        (check.root / "bench" / f"results_{card}.md").write_text(text)


def list_steps(check, steps):
    """Lists the steps and lets the program parse all their configs, which finds removed keys without a run."""
    for number, step in enumerate(steps, 1):
        print(f"{number:2} {step.name}: at most {step.limit:.0f} s")
    runner, check.only_parse = check.runner, True
    runner.step = Step("list", 300, None)
    runner.step_ends = runner.deadline
    speed.write_data(check)
    for name, moe, sections, _, _ in correctness.COMPARED:
        correctness.train(check, f"list_{name}", correctness.small(check, name, "none", 2, moe, **sections))
    for size in [*speed.SIZES, speed.CUT_8B]:
        for device in ("cpu", "cuda"):
            check.device = device
            check.tokens = dict.fromkeys(("packed", "whole rows"), check.out / "data/packed.tokens")
            label = speed.label_of(size, f"list_{device}")
            correctness.train(check, label, speed.config_of(check, size, "packed", label))
    print("the program parses all of their configs")


def main():
    a = arguments()
    if a.no_network and not a.loopback_up:
        code = machine.without_network(sys.argv[1:])
        if code is not None:
            return code
        print("gpu check: this system allows no network namespace (unshare -n); the check uses the network as it is")
    if a.loopback_up:
        machine.bring_loopback_up()
    build = Path(a.build).resolve() if a.build else ROOT / "build"
    torch = machine.find_torch(a.torch, ROOT, build)
    if torch is None:
        print(f"gpu check: no torch package; expected torch {machine.TORCH_VERSION} in this Python or in .venv, or --torch DIR",
              file=sys.stderr)
        return 2
    if a.pack:
        try:
            pack.make_pack(ROOT, build, torch, Path(a.pack).resolve())
        except RuntimeError as problem:
            print(f"gpu pack: {problem}", file=sys.stderr)
            return 2
        return 0
    check = Check(a, build, torch)
    shutil.rmtree(check.out, ignore_errors=True)
    check.out.mkdir(parents=True)
    total = 60 * a.minutes if a.minutes else REHEARSAL_SECONDS if check.device == "cpu" else GPU_SECONDS
    runner = Runner(check.out, machine.environment(ROOT, torch), ROOT, total, judges=check.device == "cuda",
                    saved=lambda runner: save(check, runner))
    check.runner = runner
    steps = steps_of(check) if check.device == "cuda" else rehearsal(steps_of(check))
    if a.only:
        wanted = [name.strip() for name in a.only.split(",")]
        unknown = set(wanted) - {step.name for step in steps}
        if unknown:
            print(f"gpu check: there is no step {', '.join(sorted(unknown))}; --list prints all steps", file=sys.stderr)
            return 2
        steps = [step for step in steps if step is steps[0] or step.name in wanted]
    check.names = {step.name for step in steps}
    try:
        if a.list:
            list_steps(check, steps)
            return 0
        print(f"gpu check: {check.gpu.name if check.gpu else 'a rehearsal on the CPU' if a.rehearse else 'no GPU'}; commit "
              f"{check.commit}; {check.host}; logs in {check.out}")
        runner.perform(steps)
    except Failed as problem:
        print(f"gpu check: {problem}", file=sys.stderr)
        return 1
    finally:
        runner.stop()
    save(check, runner)
    print(report.closing(runner.verdicts))
    print(f"results: {check.out}/results_*.md; to send back: {report.archive(check)}")
    return min(99, sum(v.status == FAILED for v in runner.verdicts))


if __name__ == "__main__":
    sys.exit(main())
