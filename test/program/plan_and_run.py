"""Compares `lehr plan` with the run that follows it: calibrates this machine, plans the quickstart, and runs some of its steps.

Usage: plan_and_run.py LEHR      (standard library only)

Other work on the machine slows a run and not its plan, so a machine that is busy is calibrated and measured again. The
figures must agree once: the plan's step time within a quarter of the median step, its tokens per second and MFU as well,
and its memory within a twentieth of what the run says that its tensors take.
"""
import json, os, re, subprocess, sys, tempfile, time
from pathlib import Path
from statistics import median

lehr = os.path.abspath(sys.argv[1])
ATTEMPTS, STEPS, LEFT_OUT, TOLERANCE, OF_MEMORY = 8, 40, 10, 0.25, 0.05
PREFIXES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
run_only = ["--lr_scheduler.warmup_steps=5", "--checkpoint.enable=false", "--validation.enable=false", "--sample.max_new_tokens=1"]


def output_of(*command):
    done = subprocess.run([lehr, *map(str, command)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"lehr {command[0]} ended with exit code {done.returncode}: {done.stderr}")
    return done.stdout + done.stderr


def compared(folder):
    """Returns the ratio of plan and run for each figure."""
    machine, config = folder / "machine.toml", "recipe/quickstart.toml"
    machine.write_text(output_of("plan", "--calibrate"))
    output_of("plan", config, "--machine", machine, "--output", folder / "plan")
    plan = json.loads((folder / "plan/plan.json").read_text())
    begin = time.monotonic()
    told = output_of("train", config, f"--job.dump_folder={folder / 'run'}", f"--training.steps={STEPS}", *run_only)
    wall = time.monotonic() - begin
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    seconds = [line["step_seconds"] for line in lines]
    if sum(seconds) > wall:
        raise RuntimeError(f"the steps took {sum(seconds)} s, and the whole command {wall} s")
    step = median(seconds[LEFT_OUT:])
    number, unit = re.search(r"memory +([\d.]+) (\w+) of tensors at most in a step", told).groups()
    at_the_median = [line for line in lines[LEFT_OUT:] if line["step_seconds"] <= step]
    rate = median(line["num_tokens"] / line["step"] for line in at_the_median) / step
    peak = lines[-1]["tokens_per_second"] / lines[-1]["mfu"]  # in tokens per second
    return {
        "step time": plan["step_seconds"] / step,
        "tokens per second": plan["tokens_per_second"] / rate,
        "MFU": plan["mfu"] / (rate / peak),
        "memory": plan["peak_bytes"] / (float(number) * PREFIXES[unit]),
    }


for attempt in range(ATTEMPTS):
    with tempfile.TemporaryDirectory() as work:
        try:
            ratios = compared(Path(work))
        except RuntimeError as error:  # the calibration says so if it was disturbed
            print(f"attempt {attempt + 1}: {error}", flush=True)
            continue
    print(f"attempt {attempt + 1}: plan / run: " + ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items()), flush=True)
    if all(abs(ratio - 1) <= (OF_MEMORY if name == "memory" else TOLERANCE) for name, ratio in ratios.items()):
        print(f"{len(ratios)} passed: the run was as planned")
        sys.exit(0)
print(f"FAILED: no run of {ATTEMPTS} was as planned")
sys.exit(1)
