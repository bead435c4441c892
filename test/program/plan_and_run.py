"""Compares `lehr plan` with the run that follows it: calibrates this machine with the quickstart, plans it, and runs some
of its steps.

Usage: plan_and_run.py LEHR      (standard library only)

The plan's step time, tokens per second and MFU must be within a tenth of the run's; test/plan/peak_memory_test.cpp
compares its memory. Other work on the machine slows a run and not its plan. So the median step counts, a comparison
that fails is repeated, and it fails the test only if other work took less than a tenth of the cores in two of them. On a
machine that is never that quiet, nothing is judged, and the last line says so.
"""
import json, os, resource, subprocess, sys, tempfile, time
from pathlib import Path
from statistics import median

lehr = os.path.abspath(sys.argv[1])
ATTEMPTS, STEPS, LEFT_OUT, TOLERANCE, OTHER_WORK = 6, 40, 10, 0.1, 0.1
changes = ["--lr_scheduler.warmup_steps=5", "--checkpoint.enable=false", "--validation.enable=false", "--sample.max_new_tokens=1"]


class Disturbed(RuntimeError):
    """The program itself noticed that a measurement was wrong."""


class OtherWork:
    """Measures the share of the cores' time that other processes took, or the host of a virtual machine."""

    def __init__(self):
        self.begin = self.now()

    @staticmethod
    def now():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        own = used.ru_utime + used.ru_stime
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        idle = ticks[3] + ticks[4]
        return own, *(count / os.sysconf("SC_CLK_TCK") for count in (sum(ticks) - idle, sum(ticks)))

    def share(self):
        own, busy, all_time = (after - before for after, before in zip(self.now(), self.begin))
        return max(0.0, busy - own) / all_time


def output_of(*command):
    done = subprocess.run([lehr, *map(str, command)], capture_output=True, text=True)
    if "measure again" in done.stderr:
        raise Disturbed(done.stderr.strip())
    if done.returncode != 0:
        sys.exit(f"FAILED: lehr {command[0]} ended with exit code {done.returncode}:\n{done.stderr}")
    return done.stdout


def compared(folder):
    """Returns the ratio of plan and run for each figure."""
    machine, config = folder / "machine.toml", "recipe/quickstart.toml"
    machine.write_text(output_of("plan", config, "--calibrate"))
    output_of("plan", config, "--machine", machine, "--output", folder / "plan")
    plan = json.loads((folder / "plan/plan.json").read_text())
    begin = time.monotonic()
    output_of("train", config, "--quiet", f"--job.dump_folder={folder / 'run'}", f"--training.steps={STEPS}", *changes)
    wall = time.monotonic() - begin
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    seconds = [line["step_seconds"] for line in lines]
    if sum(seconds) > wall:
        sys.exit(f"FAILED: the steps took {sum(seconds):.2f} s, and the whole command {wall:.2f} s")
    step = median(seconds[LEFT_OUT:])
    rate = lines[-1]["num_tokens"] / STEPS / step
    peak = lines[-1]["tokens_per_second"] / lines[-1]["mfu"]  # in tokens per second
    return {
        "step time": plan["step_seconds"] / step,
        "tokens/s": plan["tokens_per_second"] / rate,
        "MFU": plan["mfu"] / (rate / peak),
    }


quiet = 0
for attempt in range(1, ATTEMPTS + 1):
    others = OtherWork()
    with tempfile.TemporaryDirectory() as work:
        try:
            ratios = compared(Path(work))
        except Disturbed as error:
            print(f"attempt {attempt}: {error}", flush=True)
            continue
    quiet += others.share() < OTHER_WORK
    print(f"attempt {attempt}: plan / run: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
          + f"; other work took {100 * others.share():.0f} % of the cores", flush=True)
    if all(abs(ratio - 1) <= TOLERANCE for ratio in ratios.values()):
        print(f"{len(ratios)} passed: the run was as planned")
        sys.exit(0)
if quiet < 2:
    print("0 passed: not judged, as other work took the machine's cores")
    sys.exit(0)
print(f"FAILED: {quiet} runs on a quiet machine, and none was as planned")
sys.exit(1)
