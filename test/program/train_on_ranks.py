"""Tests lehr train with a process per rank: it equals a run on one device, and any rank may be killed.

Usage: train_on_ranks.py LEHR [KILLS]   (LEHR_RANK_KILLS does the same; 2, or 4 with LEHR_ALL_MESHES=1, which also
tests more meshes)
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from disturbed_run import environment
from expectations import TINY, exit_with_failures, expect

lehr = sys.argv[1]
all_meshes = "LEHR_ALL_MESHES" in os.environ
kills = int(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("LEHR_RANK_KILLS", "4" if all_meshes else "2"))
SECONDS = 15  # A killed rank must end the run within this time.

SETTINGS = ["--training.dtype=float64", "--checkpoint.interval=2", "--validation.enable=true", "--validation.freq=6",
            "--validation.local_batch_size=4"]


def curves(folder):
    """Returns the metrics by step, except times and memory, which differ between runs."""
    kept = {}
    with open(f"{folder}/metrics.jsonl") as file:
        for line in file:
            entry = json.loads(line)
            for key in ("loss", "grad_norm", "validation_loss", "num_tokens"):
                if key in entry:
                    kept[entry["step"], key] = entry[key]
    return kept


def bytes_of(folder, step):
    found = {}
    for stem in ("model", "optimizer"):
        with open(f"{folder}/checkpoints/step-{step}/{stem}.safetensors", "rb") as file:
            found[stem] = file.read()
    return found


def memory_of(pids):
    """Returns the resident bytes of processes by the kernel's accounts; 0 if one has ended."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm") as file:
                total += int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0
    return total


def logged(folder, key):
    try:
        with open(f"{folder}/metrics.jsonl") as file:
            return [entry[key] for entry in map(json.loads, file) if key in entry]
    except OSError:
        return []


def check_memory(start, folder):
    """Compares memory_bytes of two ranks with the sum of their processes, which are read when a step has been logged."""
    running = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pairs = []
    while running.poll() is None:
        children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True).stdout.split()
        before = len(logged(folder, "memory_bytes"))
        now = memory_of([pid for pid in children if "\0RANK=" in environment(pid)])
        values = logged(folder, "memory_bytes")
        if values and len(values) == before and now > 0:
            pairs.append((values[-1], now))
        time.sleep(0.01)
    # A figure of one rank would be half of it; memory grows by less than a tenth within a step.
    worst = max((abs(told / found - 1) for told, found in pairs[:-1]), default=1)
    expect(f"memory_bytes is the memory of both processes (off by {100 * worst:.1f} %)", worst < 0.1, pairs[:20])


with tempfile.TemporaryDirectory() as work:
    def command(folder, ranks, *options):
        train = ["train", TINY, "--quiet", f"--job.dump_folder={folder}", *SETTINGS, *options]
        return [lehr, *train] if ranks == 1 else [lehr, "launch", "-n", str(ranks), "--", *train]

    def run(folder, ranks, *options):
        done = subprocess.run(command(folder, ranks, *options), capture_output=True, text=True, timeout=300)
        expect(f"{os.path.basename(folder)} ends well", done.returncode == 0, done.stdout + done.stderr)
        return done

    def degrees(**wanted):
        return [f"--parallelism.{name}_degree={count}" for name, count in wanted.items()]

    run(f"{work}/alone", 1)
    alone = curves(f"{work}/alone")
    meshes = {
        "two_shards": degrees(data_parallel_shard=2),
        "two_by_two": degrees(data_parallel_shard=2, tensor_parallel=2),
        "context": degrees(data_parallel_replicate=2, context_parallel=2),
        "stages": [*degrees(data_parallel_shard=2, pipeline_parallel=2), "--parallelism.pipeline_parallel_schedule=ZBH1"],
    }
    for name, options in meshes.items():
        if name == "two_shards" and not all_meshes:
            continue
        run(f"{work}/{name}", 2 if name == "two_shards" else 4, *options)
        found = curves(f"{work}/{name}")
        worst = max((abs(found.get(key, 0) - value) / abs(value) for key, value in alone.items()), default=1)
        # float64 sums in another order.
        expect(f"{name} computes what one device computes (off by {worst:.1e})", worst < 1e-10 and len(found) == len(alone))

    check_memory(
        command(f"{work}/memory", 2, *meshes["two_shards"], "--training.steps=60", "--checkpoint.enable=false"), f"{work}/memory")

    told = subprocess.run(
        [argument for argument in command(f"{work}/told", 2, "--training.steps=1", "--lr_scheduler.warmup_steps=0") if argument != "--quiet"],
        capture_output=True, text=True, timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    expect(
        "ranks without GPUs say once why they compute on CPUs",
        told.returncode == 0 and len(re.findall("the ranks compute on CPUs, since some have no GPU of their own: rank 0: ", told.stderr)) == 1,
        told.stdout + told.stderr)

    done = subprocess.run(
        [lehr, "launch", "-n", "4", "--threads", "--", "train", TINY, "--quiet", f"--job.dump_folder={work}/threads",
         *SETTINGS, *degrees(data_parallel_shard=2, tensor_parallel=2)], capture_output=True, text=True, timeout=300)
    expect("ranks as threads end well", done.returncode == 0, done.stdout + done.stderr)
    found = curves(f"{work}/threads")
    worst = max(abs(found.get(key, 0) - value) / abs(value) for key, value in alone.items())
    expect(f"ranks as threads compute what one device computes (off by {worst:.1e})", worst < 1e-10)

    # Long enough for that number of kills.
    steps = 12 if kills <= 4 else 10 * kills
    four = [*degrees(data_parallel_shard=2, tensor_parallel=2), f"--training.steps={steps}"]
    run(f"{work}/never_killed", 4, *four)
    whole = bytes_of(f"{work}/never_killed", steps)
    random.seed(20261121)
    folder = f"{work}/killed"
    done_kills = 0
    for number in range(kills):
        running = subprocess.Popen(command(folder, 4, *four), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        victim = random.randrange(4)
        time.sleep(random.uniform(0.5, 4.0))
        children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True).stdout.split()
        mine = [pid for pid in children if f"\0RANK={victim}\0" in environment(pid)]
        killed = time.monotonic()
        if mine:
            os.kill(int(mine[0]), signal.SIGKILL)
        out, err = running.communicate(timeout=120)
        took = time.monotonic() - killed
        if running.returncode == 0:  # it had finished before
            break
        done_kills += 1
        expect(
            f"kill {number}: the job ends and names the rank ({took:.1f} s)",
            took < SECONDS and running.returncode == 137 and len(re.findall(f"rank {victim}\\b.*killed by signal 9", err)) == 1,
            f"rank {victim}, exit code {running.returncode}\n{err}")
    expect(f"{done_kills} ranks were killed", done_kills > 0)
    run(folder, 4, *four)
    expect("killed and resumed is never killed, bit for bit", bytes_of(folder, steps) == whole)

    # The same without a person: one launch, in which a rank is killed after its first checkpoint.
    folder = f"{work}/restarted"
    launched = command(folder, 4, *four)
    running = subprocess.Popen([*launched[:2], "--restarts", "2", *launched[2:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while running.poll() is None and not logged(folder, "loss")[3:]:
        time.sleep(0.02)
    children = subprocess.run(["pgrep", "-P", str(running.pid)], capture_output=True, text=True).stdout.split()
    mine = [pid for pid in children if "\0RANK=2\0" in environment(pid)]
    if mine:
        os.kill(int(mine[0]), signal.SIGKILL)
    out, err = running.communicate(timeout=120)
    record = open(f"{folder}/flight_record/rank_1.txt").read() if os.path.exists(f"{folder}/flight_record/rank_1.txt") else ""
    expect(
        "the other ranks leave their last collectives",
        not mine or re.search(r"^rank 1 \(.*\) .*, in (the save after )?step \d+\n(.* s ago: \w+ .*, \d+ bytes, .*\n)+$", record),
        record or "no file flight_record/rank_1.txt")
    expect(
        "lehr launch --restarts goes on by itself after a kill",
        running.returncode == 0 and "rank 2 was killed by signal 9" in err and "starting all ranks again, restart 1 of 2" in err,
        f"{running.returncode}\n{out}{err}")
    expect("and ends with the bits of a run that was never killed", bytes_of(folder, steps) == whole)

    shutil.copytree(f"{work}/two_by_two", f"{work}/elsewhere")
    run(f"{work}/elsewhere", 1, "--checkpoint.load_step=6")
    found = curves(f"{work}/elsewhere")
    worst = max(abs(found.get(key, 0) - value) / abs(value) for key, value in alone.items())
    expect(f"what four ranks began one device goes on with (off by {worst:.1e})", worst < 1e-10 and len(found) == len(alone))

    refused = subprocess.run(command(f"{work}/refused", 2, *degrees(tensor_parallel=4)), capture_output=True, text=True)
    expect(
        "a mesh of another size is refused once",
        refused.returncode == 2 and refused.stderr.count("4 ranks") == 1 and "lehr launch -n 4" in refused.stderr,
        refused.stderr)

exit_with_failures()
